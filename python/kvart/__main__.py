"""python -m kvart is the command kvart."""

import sys

if __name__ == "__main__":
    try:
        from .cli import main

        main()
    except KeyboardInterrupt:  # while it was still importing
        sys.exit(130)

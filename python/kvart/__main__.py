"""python -m kvart is the command kvart."""

from .cli import main

if __name__ == "__main__":
    main()

"""The command kvart. One module a command; this one joins them and turns errors into messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from .. import __version__
from ..errors import check_text
from . import bench, cache, chat, convert, evaluate, inspect, plan, pull, quantize, run
from .output import exit_code, prepare_streams, print_error, settle_streams

app = typer.Typer(
    name="kvart",
    help="kvart runs Qwen models on small devices.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"kvart {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_print_version, is_eager=True),
) -> None:
    pass


for module in (pull, run, chat, evaluate, bench, cache, convert, quantize, inspect, plan):
    module.register(app)


def main(args: Sequence[str] | None = None) -> None:
    """Runs the command line and exits: 0, 2 for bad input, 130 after Ctrl-C, 1 for all else."""
    prepare_streams()
    code = _main(list(sys.argv[1:] if args is None else args))
    sys.exit(code if settle_streams() else code or 1)


def _main(args: list[str]) -> int:
    as_json = "--json" in args
    try:
        for index, arg in enumerate(args, 1):
            check_text(arg, f"argument {index}")
        result = typer.main.get_command(app).main(args, prog_name="kvart", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        settle_streams()  # whoever read our output has gone
        return 1
    except Exception as error:
        if os.environ.get("KVART_DEBUG") and not isinstance(error, typer.Exit):
            import traceback

            traceback.print_exc()
        print_error(error, as_json)
        return exit_code(error)

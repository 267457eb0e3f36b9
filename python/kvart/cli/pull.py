"""kvart pull: fetches a model of the manifest."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated

import typer

from .. import format
from ..manifest import entries, find
from ..pull import pull as fetch
from .output import emit, note
from .params import Json

_EXAMPLES = """Examples:

`kvart pull qwen2.5-coder-0.5b`

`kvart pull --list`
"""


def register(app: typer.Typer) -> None:
    app.command(epilog=_EXAMPLES)(pull)


def pull(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A name of `kvart pull --list`.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Hash a file that is there already.")] = False,
    list_all: Annotated[bool, typer.Option("--list", help="List the models that can be had.")] = False,
    json: Json = False,
) -> None:
    """Fetch a model: resumed where it broke off, checked by its sha256, kept once in the cache directory."""
    if list_all:
        _list(json)
        return
    if name is None:
        raise typer.BadParameter("expected the NAME of a model; kvart pull --list shows them")
    entry = find(name)
    report, close = _reporter(name)
    try:
        path = fetch(name, verify=verify, report=report)
    except KeyboardInterrupt:
        close()
        note("stopped; the same command carries on from here")
        raise
    finally:
        close()
    if json:
        emit({"name": name, "path": str(path), "bytes": entry.bytes, "sha256": entry.sha256, "licence": entry.licence})
    else:
        print(f"{name}: {path} ({format.size(entry.bytes)}, licence {entry.licence})")


def _list(json: bool) -> None:
    for entry in entries().values():
        if json:
            fields = {"name": entry.name, "bytes": entry.bytes, "sha256": entry.sha256, "licence": entry.licence}
            emit({**fields, "description": entry.description, "pulled": entry.is_pulled})
        else:
            state = "here" if entry.is_pulled else format.size(entry.bytes)
            print(f"{entry.name:24} {state:>10}  {entry.licence:12} {entry.description}")


def _reporter(name: str) -> tuple[Callable[[int, int, str], None], Callable[[], None]]:
    """A report for pull: a bar on a terminal, else a line now and then."""
    if not sys.stderr.isatty():
        last = [time.monotonic()]

        def lines(done: int, total: int, what: str) -> None:
            if time.monotonic() - last[0] > 5:
                last[0] = time.monotonic()
                note(f"{name}: {what}, {format.size(done)} of {format.size(total)}")

        return lines, lambda: None

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.start()
    task = bar.add_task(name, total=None)
    return lambda done, total, what: bar.update(task, completed=done, total=total, description=what), bar.stop

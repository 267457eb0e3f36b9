"""What commands print: results and JSON on standard output; messages, bars and errors on standard error."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..errors import BAD_INPUT, Error

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

_BAR_AFTER_SECONDS = 1.0


def prepare_streams() -> None:
    """UTF-8 whatever the locale says. A stream that was closed becomes one of nothing."""
    # In this order: each takes the lowest free descriptor, so that no file of ours becomes standard output.
    for name, errors in (("stdin", "surrogateescape"), ("stdout", "replace"), ("stderr", "replace")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8", errors=errors))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=errors)


def settle_streams() -> bool:
    """Writes out what is held back. False where that fails: it is dropped, so that Python does not complain at exit."""
    fine = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            fine = False
    return fine


def emit(result: dict[str, Any]) -> None:
    """One JSON object on a line of its own."""
    print(json.dumps(result, ensure_ascii=False), flush=True)


def show(text: str) -> None:
    """Text of the model, as it comes."""
    sys.stdout.write(text)
    sys.stdout.flush()


def note(text: str) -> None:
    """A remark that is no result. Dim on a terminal."""
    print(f"\033[2m{text}\033[0m" if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


def table_console() -> Console:
    """For tables on standard output: as wide as the terminal, or of 120 columns where there is none."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 120)


def error_fields(error: BaseException) -> dict[str, Any]:
    """The fixed fields of an error in JSON."""
    if isinstance(error, Error):
        fields = {"kind": error.kind, "message": error.message, "file": error.file}
        return fields if error.offset is None else {**fields, "offset": error.offset}
    if _is_usage(error):
        return {"kind": "invalid_argument", "message": error.format_message(), "file": None}  # type: ignore[attr-defined]
    kind = {MemoryError: "out_of_memory", OSError: "io"}
    name = next((kind[base] for base in kind if isinstance(error, base)), "internal")
    text = str(error) or type(error).__name__
    message = (
        text if name == "io" else f"out of memory: {text}" if name == "out_of_memory" else f"a bug in kvart: {text}"
    )
    return {"kind": name, "message": message, "file": getattr(error, "filename", None)}


def print_error(error: BaseException, as_json: bool) -> None:
    fields = error_fields(error)
    if as_json:
        try:
            emit({"error": fields})
            return
        except OSError:  # nobody can read it there
            settle_streams()
    message = " ".join(fields["message"].split())
    with contextlib.suppress(OSError):
        print(f"\033[31merror:\033[0m {message}" if sys.stderr.isatty() else f"error: {message}", file=sys.stderr)


def exit_code(error: BaseException) -> int:
    return 2 if isinstance(error, BAD_INPUT) or _is_usage(error) else 1


def _is_usage(error: BaseException) -> bool:
    return hasattr(error, "format_message") and getattr(error, "exit_code", 0) == 2


@contextlib.contextmanager
def bar(what: str) -> Iterator[Callable[[float], None]]:
    """A callback for the part done, 0 … 1, that draws a bar on a terminal when the work takes more than a second."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    start = time.monotonic()
    drawn: list[tuple[Progress, Any]] = []

    def update(done: float) -> None:
        if not drawn:
            if time.monotonic() - start < _BAR_AFTER_SECONDS:
                return
            drawn.append(_open_bar(what))
        progress, task = drawn[0]
        progress.update(task, completed=done)

    try:
        yield update
    finally:
        if drawn:
            drawn[0][0].stop()


def _open_bar(what: str) -> tuple[Progress, Any]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    progress.start()
    return progress, progress.add_task(what, total=1.0)

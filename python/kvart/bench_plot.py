"""A drawing of what `kvart bench` measured: tokens a second over depth, a line for each cache format."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import InvalidArgument, NotFound, Unsupported

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SUFFIXES = (".png", ".svg", ".pdf")


def check_plot(path: str) -> Path:
    """The path to draw to. Tells what is wrong with it, or missing, before anything is measured."""
    file = Path(path).expanduser()
    if file.suffix.lower() not in _SUFFIXES:
        raise InvalidArgument(f"--plot: expected a file named *{', *'.join(_SUFFIXES)}, found {path!r}")
    if not file.parent.is_dir():
        raise NotFound(f"--plot: no folder {str(file.parent)!r} to put {file.name!r} in", file=path)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise Unsupported("--plot needs the package matplotlib: pip install matplotlib") from None
    return file


def plot(rows: Sequence[dict[str, Any]], title: str, file: Path) -> None:
    """Draws rows of bench(): decode on the left, prefill on the right, what there is of them. Whole or not at all."""
    from matplotlib.figure import Figure

    tests = [test for test in ("decode", "prefill") if any(row["test"] == test for row in rows)]
    figure = Figure(figsize=(6.0 * len(tests), 4.0), layout="constrained")
    figure.suptitle(title)
    for number, test in enumerate(tests, 1):
        _draw(figure.add_subplot(1, len(tests), number), [row for row in rows if row["test"] == test], test)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.", suffix=file.suffix)
    os.close(handle)
    try:
        figure.savefig(name, dpi=144)
        os.chmod(name, 0o644)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise


def _draw(axes: Axes, rows: Sequence[dict[str, Any]], test: str) -> None:
    lines: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        lines.setdefault((row["kv"], row["threads"], row["tokens"]), []).append(row)
    several = [len({key[part] for key in lines}) > 1 for part in (1, 2)]
    for (kv, threads, tokens), line in lines.items():
        label = kv + (f", {threads} threads" if several[0] else "") + (f", {tokens} tokens" if several[1] else "")
        line.sort(key=lambda row: row["depth"])
        middle = [row["tok_s"] for row in line]
        below = [row["tok_s"] - row["tok_s_min"] for row in line]
        above = [row["tok_s_max"] - row["tok_s"] for row in line]
        axes.errorbar([row["depth"] for row in line], middle, [below, above], label=label, marker="o", capsize=3)
    axes.set(title=test, xlabel="tokens in the context", ylabel="tokens a second")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()

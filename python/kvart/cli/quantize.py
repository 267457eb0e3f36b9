"""kvart quantize: a GGUF file in another number format."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .. import format, recipes
from . import params
from .output import bar, emit, note

_EXAMPLES = """Examples:

`kvart quantize qwen-f16.gguf qwen-q4.gguf --type q4_k_m`

`kvart quantize qwen-f16.gguf qwen-q4.gguf --type q4_0 --head q8_0 --json`

`kvart eval imatrix qwen-f16.gguf --text book.txt --out qwen.imatrix.gguf`

`kvart quantize qwen-f16.gguf qwen-q4.gguf --type q4_k_m --imatrix qwen.imatrix.gguf`
"""


def register(app: typer.Typer) -> None:
    app.command(epilog=_EXAMPLES)(quantize)


def quantize(
    source: Annotated[str, typer.Argument(metavar="IN", help="A GGUF file, or a name that `kvart pull` knows.")],
    out: Annotated[str, typer.Argument(metavar="OUT.gguf", help="The file to write.")],
    type: Annotated[str, typer.Option("--type", help=f"One of {', '.join(recipes.RECIPES)}.")],
    head: Annotated[
        str | None, typer.Option("--head", help=f"With q4_0, the format of the head: {', '.join(recipes.HEADS)}.")
    ] = None,
    imatrix: Annotated[
        str | None, typer.Option("--imatrix", metavar="FILE", help="What `kvart eval imatrix` made of this model.")
    ] = None,
    threads: params.Threads = 0,
    json: params.Json = False,
) -> None:
    """Write a model in another number format, a slice of a tensor at a time."""
    from ..quantize import quantize as run

    with bar(f"quantizing to {type}") as progress:
        report = run(source, out, type=type, head=head, imatrix=imatrix, threads=threads, progress=progress)
    if json:
        emit(report)
        return
    for text in report["notes"]:
        note(f"note: {text}")
    _show(report)


def _show(report: dict[str, Any]) -> None:
    print(
        f"{report['path']}: {report['type']}, {report['parameters'] / 1e6:.0f} M parameters, "
        f"{format.size(report['bytes'])} of {format.size(report['source_bytes'])}, "
        f"{report['bits_per_weight']:.2f} bits a weight, {report['seconds']:.1f} s"
    )
    for kind, found in report["tensor_types"].items():
        print(
            f"{kind:>8} {found['tensors']:5} tensors {found['parameters'] / 1e6:9.1f} M "
            f"{format.size(found['bytes']):>10} {found['bits_per_weight']:6.2f} bits a weight"
        )

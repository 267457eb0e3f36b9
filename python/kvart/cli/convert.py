"""kvart convert: a checkpoint directory into a GGUF file."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import typer

from .. import format, recipes
from . import params
from .output import bar, emit, note

_EXAMPLES = """Examples:

`kvart convert Qwen2.5-0.5B-Instruct qwen.gguf --type q4_k_m`

`kvart convert Qwen3-0.6B qwen3.gguf --type q4_0 --head q8_0 --json`

`kvart convert Qwen2.5-0.5B-Instruct mine.gguf --type q8_0 --lora my-adapter`

`kvart convert Qwen2.5-0.5B-Instruct qwen.gguf --type bf16 --check`
"""


def register(app: typer.Typer) -> None:
    app.command(epilog=_EXAMPLES)(convert)


def convert(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="A checkpoint: config.json, safetensors, a tokenizer.")
    ],
    out: Annotated[str, typer.Argument(metavar="OUT.gguf", help="The file to write.")],
    type: Annotated[str, typer.Option("--type", help=f"One of {', '.join(recipes.RECIPES)}.")] = "q4_k_m",
    head: Annotated[
        str | None, typer.Option("--head", help=f"With q4_0, the format of the head: {', '.join(recipes.HEADS)}.")
    ] = None,
    lora: Annotated[str | None, typer.Option("--lora", metavar="DIR", help="Merge this PEFT adapter.")] = None,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Don't read back and run what was written.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare logits with transformers, where installed.")] = False,
    threads: params.Threads = 0,
    json: params.Json = False,
) -> None:
    """Convert a Qwen checkpoint to GGUF, a tensor at a time, and look whether it is right."""
    from ..convert import convert as run

    with _Bars() as bars:
        report = run(
            directory,
            out,
            type=type,
            head=head,
            lora=lora,
            verify=not no_verify,
            check=check,
            threads=threads,
            progress=bars.update,
        )
    if json:
        emit(report)
        return
    for text in report["notes"]:
        note(f"note: {text}")
    _show(report)


class _Bars:
    """A bar for each stretch of the work, one after the other."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._what = ""
        self._draw: Any = None

    def __enter__(self) -> _Bars:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def update(self, what: str, done: float) -> None:
        if what != self._what:
            self._stack.close()
            self._what = what
            self._draw = self._stack.enter_context(bar(what))
        self._draw(done)


def _show(report: dict[str, Any]) -> None:
    types = ", ".join(f"{count} {name}" for name, count in report["tensor_types"].items())
    print(
        f"{report['path']}: {report['architecture']}, {report['type']}, {report['parameters'] / 1e6:.0f} M parameters, "
        f"{format.size(report['bytes'])}, {report['bits_per_weight']:.2f} bits a weight, {report['seconds']:.1f} s"
    )
    print(f"tensors: {types}")
    if report["lora"]:
        print(f"merged: {report['lora']['name']} into {report['lora']['matrices']} matrices")
    if report["verify"]:
        _show_verify(report["verify"])
    if found := report["check"]:
        print(
            f"against transformers: {found['tokens']} tokens, logits differ by at most {found['max_difference']:.2g}, "
            f"KL {found['kld_mean']:.2g}, same top {100 * found['top1']:.1f} %"
        )


def _show_verify(found: dict[str, Any]) -> None:
    compared, run = found["compared"], found["run"]
    worst = compared["worst"]
    print(
        f"read back: {compared['rows']} rows of {compared['tensors']} tensors, most lost {100 * worst['error']:.2f} % "
        f"in {worst['tensor']} ({worst['type']})"
    )
    if "skipped" in run:
        print(f"not run: {run['skipped']}")
        return
    print(f"run: perplexity {run['ppl']:.2f} over {run['positions']} positions of the sample text")
    print(f"     {run['prompt']!r} → {run['text']!r}")

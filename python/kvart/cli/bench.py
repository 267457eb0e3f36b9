"""kvart bench: speed of prefill and decode."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import options
from ..errors import InvalidArgument
from ..options import split_kv
from . import params
from .output import emit

_EXAMPLES = """Examples:

`kvart bench qwen2.5-coder-0.5b --prompt 512 --gen 64 --depth 0,2048`

`kvart bench model.gguf --kv f16,int4 --threads 2 --json`
"""


def register(app: typer.Typer) -> None:
    app.command(epilog=_EXAMPLES)(bench)


def bench(
    model: params.ModelName,
    prompt: Annotated[int, typer.Option("--prompt", "-p", help="Tokens of the prefill test; 0 leaves it out.")] = 512,
    gen: Annotated[int, typer.Option("--gen", "-n", help="Tokens of the decode test; 0 leaves it out.")] = 64,
    depth: Annotated[str, typer.Option("--depth", "-d", help="Tokens of context before: a list with commas.")] = "0",
    kv: params.KvList = "int4",
    sinks: params.Sinks = 4,
    window: params.Window = 0,
    kv_dir: params.KvDir = None,
    threads: params.Threads = 0,
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", help="Runs of each test; the median counts.")] = 3,
    activations: params.Activations = "int8",
    json: params.Json = False,
) -> None:
    """Measure the speed of prefill and decode at some depths of context."""
    from ..bench import bench as measure

    depths = _depths(depth)
    formats = split_kv(kv)
    options.session_options(sinks=sinks, window=window)
    loaded = params.load(model, threads, activations, kv_dir)
    if not json:
        print(f"{'test':8} {'tokens':>7} {'depth':>7} {'kv':>12} {'tok/s':>10} {'min':>10} {'max':>10} {'GB/s':>7}")
    for format in formats:
        rows = measure(
            loaded,
            prompt=prompt,
            gen=gen,
            depths=depths,
            kv=format,
            sinks=sinks,
            window=window,
            repetitions=repetitions,
        )
        for row in rows:
            if json:
                emit(row)
            else:
                print(
                    f"{row['test']:8} {row['tokens']:7} {row['depth']:7} {row['kv']:>12} {row['tok_s']:10.2f} "
                    f"{row['tok_s_min']:10.2f} {row['tok_s_max']:10.2f} {row['gb_s']:7.2f}",
                    flush=True,
                )


def _depths(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidArgument(f"--depth: expected numbers with commas such as 0,2048, found {text!r}") from None

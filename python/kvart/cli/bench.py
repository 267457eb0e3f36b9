"""kvart bench: speed of prefill and decode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import format, options
from ..errors import InvalidArgument
from ..options import split_kv
from . import params
from .output import bar, emit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

_EXAMPLES = """Examples:

`kvart bench qwen2.5-coder-0.5b --prompt 512 --gen 64 --depth 0,2048`

`kvart bench model.gguf --kv f16,int4 --threads 1,2 --repetitions 5 --json`

`kvart bench model.gguf --prompt 0 --depth 0,2048,8192 --kv f16,int8,int4 --plot depth.png`
"""


def register(app: typer.Typer) -> None:
    app.command(epilog=_EXAMPLES)(bench)


def bench(
    model: params.ModelName,
    prompt: Annotated[
        str, typer.Option("--prompt", "-p", help="Tokens of the prefill test: a list with commas; 0 leaves it out.")
    ] = "512",
    gen: Annotated[
        str, typer.Option("--gen", "-n", help="Tokens of the decode test: a list with commas; 0 leaves it out.")
    ] = "64",
    depth: Annotated[str, typer.Option("--depth", "-d", help="Tokens of context before: a list with commas.")] = "0",
    kv: params.KvList = "int4",
    sinks: params.Sinks = 4,
    window: params.Window = 0,
    kv_dir: params.KvDir = None,
    threads: Annotated[
        str, typer.Option("--threads", "-t", help="Threads: a list with commas; 0 takes one for each core worth it.")
    ] = "0",
    cpus: params.Cpus = None,
    repetitions: Annotated[int, typer.Option("--repetitions", "-r", help="Runs of each test; the median counts.")] = 3,
    activations: params.Activations = "int8",
    plot: Annotated[
        str | None, typer.Option("--plot", metavar="FILE", help="Draw tok/s over depth: a .png, .svg or .pdf.")
    ] = None,
    json: params.Json = False,
) -> None:
    """Measure the speed of prefill and decode, in rounds: median and ends, bytes a second, share of the roofline."""
    from ..bench import bench as measure
    from ..bench_plot import check_plot
    from ..bench_plot import plot as draw

    prompts, gens, depths = (_numbers(*pair) for pair in (("--prompt", prompt), ("--gen", gen), ("--depth", depth)))
    counts = _numbers("--threads", threads, options.MAX_THREADS)
    formats = split_kv(kv)
    options.session_options(sinks=sinks, window=window)
    picture = None if plot is None else check_plot(plot)
    models = [params.load(model, count, activations, kv_dir, cpus=cpus) for count in counts]
    with bar("measuring") as progress:
        rows = list(
            measure(
                models,
                prompt=prompts,
                gen=gens,
                depths=depths,
                kv=formats,
                sinks=sinks,
                window=window,
                repetitions=repetitions,
                cpus=options.cpu_list(cpus),
                progress=progress,
            )
        )
    if picture is not None:
        draw(rows, f"{models[0].info.name}, {models[0].info.kernels}", picture)
    if json:
        for row in rows:
            emit(row)
    else:
        _show(rows)


def _numbers(name: str, text: str, most: int = 2**31 - 1) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidArgument(f"{name}: expected numbers with commas such as 0,2048, found {text!r}") from None
    return [options.integer(name, number, 0, most) for number in dict.fromkeys(numbers)]


def _show(rows: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120
    if rows:
        console.print(_table(rows))
    for threads in dict.fromkeys(row["threads"] for row in rows):
        row = next(row for row in rows if row["threads"] == threads)
        running = f" ({row['threads_running']} at once)" if row["threads_running"] < threads else ""
        peak = f", {format.size(row['peak_bytes'])} of memory at most" if "peak_bytes" in row else ""
        console.print(
            f"{threads} threads{running}, {row['kernels']}: memory reads at {row['read_gb_s']:.1f} GB/s; "
            f"load {row['load_seconds']:.2f} s, first request {row['first_request_seconds']:.3f} s, "
            f"of it warm-up {row['warm_up_seconds']:.3f} s{peak}",
            soft_wrap=True,
        )


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    from rich.table import Table

    energy = any("joules_per_token" in row for row in rows)
    table = Table()
    for name in ("test", "depth", "kv", "threads", "tok/s", "min … max", "MB/token", "GB/s", "of roofline"):
        table.add_column(name, justify="left" if name in ("test", "kv") else "right", no_wrap=True)
    if energy:
        table.add_column("J/token", justify="right", no_wrap=True)
    for row in rows:
        cells = [f"{row['test']} {row['tokens']}", str(row["depth"]), row["kv"], str(row["threads"])]
        cells += [f"{row['tok_s']:.2f}", f"{row['tok_s_min']:.2f} … {row['tok_s_max']:.2f}"]
        cells += [f"{row['bytes_per_token'] / 1e6:.1f}", f"{row['gb_s']:.2f}"]
        cells.append(f"{100 * row['roofline']:.0f} %" if "roofline" in row else "")
        if energy:
            cells.append(f"{row['joules_per_token']:.3f}" if "joules_per_token" in row else "")
        table.add_row(*cells)
    return table

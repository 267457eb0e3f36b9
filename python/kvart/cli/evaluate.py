"""kvart eval: quality of a model with a cache format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .. import format, options
from ..errors import InvalidArgument, NotFound, decode_utf8
from . import params
from .output import bar, emit

_PERPLEXITY_EXAMPLES = """Examples:

`kvart eval perplexity qwen2.5-coder-0.5b --text book.txt --ctx 512 --kv int4,int8 --against f16`

`kvart eval perplexity model.gguf --text a.txt --text b.txt --ctx 8192 --against f16 --json`
"""
_RECALL_EXAMPLES = """Examples:

`kvart eval recall qwen2.5-coder-0.5b`

`kvart eval recall model.gguf --kv int4,int8 --questions 200 --json`
"""
_IMATRIX_EXAMPLES = """Examples:

`kvart eval imatrix qwen-f16.gguf --text book.txt --out qwen.imatrix.gguf`

`kvart quantize qwen-f16.gguf qwen-q4.gguf --type q4_k_m --imatrix qwen.imatrix.gguf`
"""


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Measure quality.", no_args_is_help=True)
    group.command(epilog=_PERPLEXITY_EXAMPLES)(perplexity)
    group.command(epilog=_RECALL_EXAMPLES)(recall)
    group.command(epilog=_IMATRIX_EXAMPLES)(imatrix)
    app.add_typer(group, name="eval")


def perplexity(
    model: params.ModelName,
    text: Annotated[list[str], typer.Option("--text", metavar="FILE", help="A text in UTF-8. Repeatable.")],
    ctx: Annotated[int, typer.Option("--ctx", help="Tokens of a window.")] = 512,
    kv: params.KvList = "int4",
    against: Annotated[str | None, typer.Option("--against", help="Compare with this cache format.")] = None,
    sinks: params.Sinks = 4,
    window: params.Window = 0,
    threads: params.Threads = 0,
    cpus: params.Cpus = None,
    activations: params.Activations = "int8",
    json: params.Json = False,
) -> None:
    """Perplexity over windows of --ctx tokens, every position but a window's first; KL divergence from --against."""
    from ..evaluate import perplexity as evaluate

    formats = options.split_kv(kv)
    if against is not None:
        options.parse_kv(against)
    options.session_options(sinks=sinks, window=window)
    texts = {path: _read(path) for path in text}
    loaded = params.load(model, threads, activations, cpus=cpus)
    if not json:
        print(
            f"{'text':24} {'kv':>14} {'bits':>6} {'perplexity':>11} {'ratio':>8} {'KL mean':>10} {'99 %':>10} "
            f"{'max':>10} {'same top':>9} {'positions':>9}"
        )
    for path, content in texts.items():
        with bar(f"evaluating {Path(path).name}") as progress:
            rows = evaluate(
                loaded, content, ctx=ctx, kv=formats, against=against, sinks=sinks, window=window, progress=progress
            )
        for row in rows:
            if json:
                emit({"model": model, "text": path, **row, "activations": activations, "kernels": loaded.info.kernels})
                continue
            line = f"{Path(path).name[:24]:24} {row['kv']:>14} {row['bits_per_value']:6.2f} {row['ppl']:11.4f}"
            if against is not None:
                line += (
                    f" {row['ppl_ratio']:8.4f} {row['kld_mean']:10.6f} {row['kld_p99']:10.6f} {row['kld_max']:10.6f}"
                    f" {100 * row['top1']:7.2f} %"
                )
            else:
                line += f" {'':8} {'':10} {'':10} {'':10} {'':9}"
            print(f"{line} {row['positions']:9}", flush=True)


def recall(
    model: params.ModelName,
    kv: params.KvList = "int4",
    against: Annotated[str, typer.Option("--against", help="The cache format that is the yardstick.")] = "f16",
    questions: Annotated[int, typer.Option("--questions", help="How many are asked, in all.")] = 120,
    tokens: Annotated[int, typer.Option("--tokens", help="About how long a text is.")] = 2000,
    seed: Annotated[int, typer.Option("--seed", help="Of the texts.")] = 0,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what was read back wrongly.")] = False,
    threads: params.Threads = 0,
    cpus: params.Cpus = None,
    activations: params.Activations = "int8",
    json: params.Json = False,
) -> None:
    """Texts full of figures, ids and dates, in English and Chinese: single fields are to be read back exactly."""
    from ..recall import recall as evaluate

    formats = options.split_kv(kv)
    options.parse_kv(against)
    options.integer("--questions", questions, 1)
    loaded = params.load(model, threads, activations, cpus=cpus)
    with bar("reading back") as progress:
        rows = evaluate(
            loaded, kv=formats, against=against, questions=questions, tokens=tokens, seed=seed, progress=progress
        )
    if not json:
        print(f"{'kv':>14} {'asked':>6} {'right':>6} {against + ' right':>12} {'of these kept':>14}")
    for row in rows:
        missed = row.pop("missed")
        if json:
            emit({"model": model, **row, **({"missed": missed} if verbose else {})})
            continue
        kept = f"{100 * row['agreement']:.1f} %" if row["agreement"] is not None else "-"
        print(f"{row['kv']:>14} {row['asked']:6} {row['right']:6} {row['base_right']:12} {kept:>14}", flush=True)
        for item in missed if verbose else ():
            print(f"  {item['question']}")
            print(f"    wanted {item['wanted']!r}, {against} {item['base']!r}, found {item['found']!r}")


def imatrix(
    model: params.ModelName,
    text: Annotated[list[str], typer.Option("--text", metavar="FILE", help="A text in UTF-8. Repeatable.")],
    out: Annotated[str, typer.Option("--out", metavar="OUT.gguf", help="The file to write.")],
    ctx: Annotated[int, typer.Option("--ctx", help="Tokens of a window.")] = 512,
    threads: params.Threads = 0,
    json: params.Json = False,
) -> None:
    """Measure over a text how much each column of each weight matrix counts, for `kvart quantize --imatrix`."""
    from ..importance import measure

    content = "\n".join(_read(path) for path in text)
    with bar("measuring") as progress:
        report = measure(model, content, out, ctx=ctx, threads=threads, progress=progress)
    if json:
        emit(report)
        return
    print(
        f"{report['path']}: {report['matrices']} matrices over {report['tokens']} tokens, "
        f"{format.size(report['bytes'])}"
    )


def _read(path: str) -> str:
    try:
        return decode_utf8(Path(path).read_bytes(), f"the text {path}", file=path)
    except FileNotFoundError:
        raise NotFound(f"--text: {path}: no such file", file=path) from None
    except IsADirectoryError:
        raise InvalidArgument(f"--text: {path} is a directory", file=path) from None

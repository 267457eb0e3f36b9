"""kvart eval: quality of a model with a cache format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import NotFound, decode_utf8
from ..options import kv_bits
from . import params
from .output import bar, emit

_EXAMPLES = """Examples:

`kvart eval perplexity qwen2.5-coder-0.5b --text book.txt --ctx 512 --kv f16`

`kvart eval perplexity model.gguf --text book.txt --kv f16 --against f32 --json`
"""


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Measure quality.", no_args_is_help=True)
    group.command(epilog=_EXAMPLES)(perplexity)
    app.add_typer(group, name="eval")

    @group.callback()
    def _group() -> None:
        """Measure quality."""


def perplexity(
    model: params.ModelName,
    text: Annotated[str, typer.Option("--text", metavar="FILE", help="A text in UTF-8.")],
    ctx: Annotated[int, typer.Option("--ctx", help="Tokens of a window.")] = 512,
    kv: params.Kv = "f16",
    against: Annotated[str | None, typer.Option("--against", help="Compare with this cache format as well.")] = None,
    threads: params.Threads = 0,
    activations: params.Activations = "int8",
    json: params.Json = False,
) -> None:
    """Perplexity over windows of --ctx tokens, every position but a window's first."""
    from ..evaluate import perplexity as evaluate

    for format in (kv, against):
        if format is not None:
            kv_bits(format)
    try:
        content = decode_utf8(Path(text).read_bytes(), f"the text {text}", file=text)
    except FileNotFoundError:
        raise NotFound(f"--text: {text}: no such file", file=text) from None
    loaded = params.load(model, threads, activations)
    with bar("evaluating") as progress:
        result = evaluate(loaded, content, ctx=ctx, kv=kv, against=against, progress=progress)
    if json:
        emit({"model": model, "text": text, **result, "activations": activations})
        return
    print(f"perplexity {result['ppl']:.4f} with {kv} over {result['positions']} positions")
    if against is not None:
        print(
            f"against {against}: perplexity {result['base_ppl']:.4f}, ratio {result['ppl_ratio']:.5f}, "
            f"KL divergence mean {result['kld_mean']:.6f}, 99 % {result['kld_p99']:.6f}, max {result['kld_max']:.6f}, "
            f"same top-1 {100 * result['top1']:.2f} %"
        )

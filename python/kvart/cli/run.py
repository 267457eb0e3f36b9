"""kvart run: continues a text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import format, options
from ..errors import InvalidArgument, decode_utf8
from . import params
from .output import bar, emit, note, show

if TYPE_CHECKING:
    from ..generation import Generation
    from ..model import Model

_EXAMPLES = """Examples:

`kvart run qwen2.5-coder-0.5b "def fibonacci(n):" --max-tokens 64`

`kvart run model.gguf - --temperature 0.7 --seed 1 < prompt.txt`

`kvart run qwen2.5-coder-0.5b "The capital of France is" --no-cache --json`

`kvart run qwen2.5-coder-0.5b "Once upon a time" --session tale`

`kvart run qwen2.5-coder-0.5b "" --session tale`
"""


def register(app: typer.Typer) -> None:
    app.command(epilog=_EXAMPLES)(run)


def run(
    model: params.ModelName,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The text to continue; - reads standard input.")],
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="Most tokens to write.")] = 256,
    temperature: params.Temperature = 0.0,
    top_k: params.TopK = 0,
    top_p: params.TopP = 1.0,
    min_p: params.MinP = 0.0,
    repetition_penalty: params.Repetition = 1.0,
    presence_penalty: params.Presence = 0.0,
    frequency_penalty: params.Frequency = 0.0,
    logit_bias: params.LogitBias = None,
    seed: params.Seed = None,
    stop: params.Stop = None,
    ctx: params.Ctx = 0,
    kv: params.Kv = "int4",
    sinks: params.Sinks = 4,
    window: params.Window = 0,
    draft: params.Draft = 0,
    kv_layout: params.KvLayout = "paged",
    kv_dir: params.KvDir = None,
    session: params.SessionName = None,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Recompute all for each token, and tell how much the cache saves.")
    ] = False,
    threads: params.Threads = 0,
    cpus: params.Cpus = None,
    activations: params.Activations = "int8",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No line of figures at the end.")] = False,
    json: params.Json = False,
) -> None:
    """Continue a text, or the text of a durable session."""
    session_options: dict[str, Any] = {
        "name": session,
        "kv": kv,
        "sinks": sinks,
        "window": window,
        "draft": draft,
        "layout": kv_layout,
        "ctx": ctx,
    }
    sampling: dict[str, Any] = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "logit_bias": params.parse_logit_bias(logit_bias),
        "seed": seed,
    }
    # what is wrong is told before the model is loaded
    sampling["seed"] = options.sampling(sampling)["seed"]
    options.session_options(**session_options)
    options.integer("--max-tokens", max_tokens, 0)
    text = decode_utf8(sys.stdin.buffer.read(), "standard input") if prompt == "-" else prompt
    if not text and session is None:
        raise InvalidArgument("the prompt is empty; expected some text to continue")
    if no_cache and session is not None:
        raise InvalidArgument("--no-cache runs the text twice: leave --session out")

    loaded = params.load(model, threads, activations, kv_dir, session, cpus)
    controls = {"max_tokens": max_tokens, "stop": stop, **sampling}
    generation = _generate(loaded, text, {**session_options, "cache": not no_cache}, controls, quiet=json)
    stats = {**generation.stats, "load_seconds": loaded.stats["load_seconds"]}
    if no_cache and generation.stop != "cancel":
        stats["no_cache"] = _compare(loaded, text, session_options, controls, generation)
    if json:
        emit(
            {
                "prompt_tokens": generation.prompt_ids,
                "tokens": generation.token_ids,
                "text": generation.text,
                "stop": generation.stop,
                "stats": stats,
            }
        )
    elif not quiet:
        note(format.summary(stats))
    if not json and "no_cache" in stats:
        found = stats["no_cache"]
        without, cached = (1000 * found[f"{key}_seconds_per_token"] for key in ("uncached", "cached"))
        print(
            f"without cache {without:.1f} ms a token, with cache {cached:.1f} ms: ratio {found['ratio']:.1f}",
            file=sys.stderr,
        )
    if generation.stop == "cancel":
        raise typer.Exit(130)


def _generate(
    model: Model, text: str, session_options: dict[str, Any], controls: dict[str, Any], *, quiet: bool
) -> Generation:
    """Runs to the end, or to Ctrl-C, and shows the text meanwhile."""
    with model.session(**session_options) as session:
        if session.name and not quiet:
            params.tell_resumed(session)
        with bar("reading the prompt") as progress:
            generation = session.generate(text or None, progress=progress, **controls)
            try:
                piece = next(generation, "")
            except KeyboardInterrupt:
                return generation
        try:
            if not quiet:
                show(piece)
            for piece in generation:
                if not quiet:
                    show(piece)
        except KeyboardInterrupt:
            generation.close()
        if not quiet and not generation.text.endswith("\n"):
            show("\n")
        return generation


def _compare(
    model: Model, text: str, session_options: dict[str, Any], controls: dict[str, Any], uncached: Generation
) -> dict[str, Any]:
    """The same text again with the cache: times of a token, and whether it is the same text."""
    cached = _generate(model, text, session_options, controls, quiet=True)

    def seconds(generation: Generation) -> float:
        rate = float(generation.stats["decode_tok_s"])
        return 1 / rate if rate else 0.0

    return {
        "uncached_seconds_per_token": seconds(uncached),
        "cached_seconds_per_token": seconds(cached),
        "ratio": seconds(uncached) / seconds(cached) if seconds(cached) else None,
        "same_tokens": cached.token_ids == uncached.token_ids,
    }

"""Speed of prefill and decode at some depths of context, as other engines' benches have it (pp, tg, d)."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from . import _core
from .errors import InvalidArgument
from .options import integer

if TYPE_CHECKING:
    from .model import Model, Session

_CHUNK = 512


def bench(
    model: Model,
    *,
    prompt: int = 512,
    gen: int = 64,
    depths: Sequence[int] = (0,),
    kv: str = "int4",
    sinks: int = 4,
    window: int = 0,
    repetitions: int = 3,
) -> Iterator[dict[str, Any]]:
    """One dict a measurement: prompt tokens computed behind depth others, then gen tokens drawn one by one there."""
    integer("prompt", prompt, 0)
    integer("gen", gen, 0)
    integer("repetitions", repetitions, 1)
    for depth in depths:
        integer("depth", depth, 0)
        # decode needs a token to begin from
        if not window and depth + max(prompt, gen + 1) > model.info.n_ctx_train:
            raise InvalidArgument(f"depth {depth}: does not fit in the context of {model.info.n_ctx_train} tokens")
    with model.session(kv=kv, sinks=sinks, window=window, chunk=_CHUNK) as session:
        _prefill(session, 16)  # a first run pays for what is only paid once
        for depth in sorted(depths):
            session.rewind(min(depth, len(session)))
            _prefill(session, depth - len(session))
            for test, tokens, measure in (("prefill", prompt, _prefill), ("decode", gen, _decode)):
                if tokens == 0:
                    continue
                if test == "decode" and depth == 0:
                    session.append([_tokens(model, 1)[0]])
                at = len(session)
                rates = []
                kv_bytes = 0
                for _ in range(repetitions):
                    rates.append(tokens / measure(session, tokens))
                    kv_bytes = session.stats["kv_used_bytes"]
                    session.rewind(at)
                yield _row(model, test, tokens, depth, kv, rates, kv_bytes)


def _row(
    model: Model, test: str, tokens: int, depth: int, kv: str, rates: list[float], kv_bytes: int
) -> dict[str, Any]:
    # Weights are read once a step: a token in decode, a chunk in prefill. So is the cache.
    steps = tokens if test == "decode" else -(-tokens // _CHUNK)
    bytes_per_token = (model.info.weight_bytes_per_token + kv_bytes) * steps / tokens
    rate = statistics.median(rates)
    return {
        "test": test,
        "tokens": tokens,
        "depth": depth,
        "kv": kv,
        "threads": model.info.n_threads,
        "tok_s": rate,
        "tok_s_min": min(rates),
        "tok_s_max": max(rates),
        "bytes_per_token": round(bytes_per_token),
        "gb_s": rate * bytes_per_token / 1e9,
        "repetitions": len(rates),
        "kernels": model.info.kernels,
    }


def _tokens(model: Model, count: int) -> list[int]:
    """Plain tokens, others each time: pages of the same ones would be found, not computed."""
    return random.choices(range(min(model.info.n_vocab, 10_000)), k=count)


def _prefill(session: Session, count: int) -> float:
    if count <= 0:
        return 0.0
    ids = _tokens(session.model, count)
    start = time.perf_counter()
    session.append(ids)
    return time.perf_counter() - start


def _decode(session: Session, count: int) -> float:
    core = session._open()
    sampler = _core.Sampler(session.model.info.n_vocab)
    core.next(sampler)  # from logits that are there already, and without the token's own step
    start = time.perf_counter()
    for _ in range(count):
        core.next(sampler)
    return time.perf_counter() - start

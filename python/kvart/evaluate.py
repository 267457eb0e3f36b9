"""How good a model is with a cache format: perplexity, and the distance of its predictions from another format's."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .errors import InvalidArgument
from .options import integer, parse_kv, session_options

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .model import Model

_ROWS = 64  # positions whose logits are held at once: a vocabulary of 150,000 makes a row of 600 kB
_BLOCK = 8  # of these, rows in float64 at once


class Scores:
    """What is summed over the positions of all windows for one format."""

    def __init__(self) -> None:
        self.nll = 0.0
        self.positions = 0
        self.same_top = 0
        self.divergences: list[npt.NDArray[np.float64]] = []
        self.bits_per_value = 0.0

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll / self.positions)


def perplexity(
    model: Model,
    text: str | Sequence[int],
    *,
    ctx: int = 512,
    kv: str | Sequence[str] = "int4",
    against: str | None = None,
    sinks: int = 4,
    window: int = 0,
    progress: Callable[[float], object] | None = None,
) -> list[dict[str, Any]]:
    """A dict for each format of kv, over windows of ctx tokens without overlap. against: a format to compare with.

    Nothing is added in front, every position of a window but the first is scored, a last part-window is left out. All
    formats run in lockstep, so that no logits are stored.
    """
    integer("ctx", ctx, 2, model.info.n_ctx_train)
    formats = [kv] if isinstance(kv, str) else list(kv)
    for format in (*formats, *([] if against is None else [against])):
        parse_kv(format)
    session_options(sinks=sinks, window=window)
    ids = model.encode(text, "the text")
    n_windows = len(ids) // ctx
    if n_windows == 0:
        raise InvalidArgument(f"the text has {len(ids)} tokens; one window of --ctx takes {ctx}")

    base = Scores()
    scores = [Scores() for _ in formats]
    for number in range(n_windows):
        tokens = ids[number * ctx : (number + 1) * ctx]
        for done in _score_window(model, tokens, formats, scores, against, base, sinks, window):
            if progress:
                progress((number * ctx + done) / (n_windows * ctx))
    rows = []
    for format, found in zip(formats, scores, strict=True):
        row = _row(format, found, against, base)
        rows.append({"ctx": ctx, **row, "windows": n_windows, "sinks": sinks, "window": window})
    return rows


def _score_window(
    model: Model,
    tokens: list[int],
    formats: list[str],
    scores: list[Scores],
    against: str | None,
    base: Scores,
    sinks: int,
    window: int,
) -> Iterator[int]:
    """Adds one window to the scores; yields how many of its tokens are done."""
    import numpy as np

    with contextlib.ExitStack() as stack:
        sessions = [
            stack.enter_context(model.session(kv=format, sinks=sinks, window=window))
            for format in (*formats, against)
            if format
        ]
        for start in range(0, len(tokens) - 1, _ROWS):
            rows = tokens[start : min(start + _ROWS, len(tokens) - 1)]
            targets = np.asarray(tokens[start + 1 : start + 1 + len(rows)])
            base_logits = None
            if against is not None:
                base_logits = sessions[-1].append_logits(rows)
                _add(base, base_logits, targets, None)
            for session, found in zip(sessions, scores, strict=False):
                _add(found, session.append_logits(rows), targets, base_logits)
            yield start + len(rows)
        for session, found in zip(sessions, scores, strict=False):
            found.bits_per_value = session.stats["bits_per_value"]


def _add(
    scores: Scores,
    logits: npt.NDArray[np.float32],
    targets: npt.NDArray[np.int64],
    base_logits: npt.NDArray[np.float32] | None,
) -> None:
    """Scores some positions. Few rows at once: their float64 stay in the caches of the CPU."""
    import numpy as np

    scores.positions += len(targets)
    for start in range(0, len(targets), _BLOCK):
        part = slice(start, start + _BLOCK)
        log_p = log_softmax(logits[part])
        scores.nll -= float(np.take_along_axis(log_p, targets[part, None], axis=1).sum())
        if base_logits is not None:
            log_q = log_softmax(base_logits[part])
            # A difference below 0 is rounding alone.
            divergence = np.einsum("ij,ij->i", np.exp(log_q), log_q - log_p)
            scores.divergences.append(np.maximum(divergence, 0.0))
            scores.same_top += int(np.sum(log_p.argmax(axis=1) == log_q.argmax(axis=1)))


def log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    import numpy as np

    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


def _row(format: str, scores: Scores, against: str | None, base: Scores) -> dict[str, Any]:
    import numpy as np

    result: dict[str, Any] = {
        "kv": format,
        "ppl": scores.perplexity,
        "base_kv": against,
        "base_ppl": None,
        "ppl_ratio": None,
        "kld_mean": None,
        "kld_p99": None,
        "kld_max": None,
        "top1": None,
        "bits_per_value": scores.bits_per_value,
        "positions": scores.positions,
    }
    if against is not None:
        divergence = np.concatenate(scores.divergences)
        result |= {
            "base_ppl": base.perplexity,
            "ppl_ratio": scores.perplexity / base.perplexity,
            "kld_mean": float(divergence.mean()),
            "kld_p99": float(np.percentile(divergence, 99)),
            "kld_max": float(divergence.max()),
            "top1": scores.same_top / scores.positions,
        }
    return result

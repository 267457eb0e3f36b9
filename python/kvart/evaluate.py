"""How good a model is with a cache format: perplexity, and the distance of its predictions from another format's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .errors import InvalidArgument
from .options import integer, kv_bits

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .model import Model

_ROWS = 32  # positions turned into float64 probabilities at once


def perplexity(
    model: Model,
    text: str | Sequence[int],
    *,
    ctx: int = 512,
    kv: str = "f16",
    against: str | None = None,
    progress: Callable[[float], object] | None = None,
) -> dict[str, Any]:
    """Over windows of ctx tokens without overlap. against: another cache format to compare with on the same windows.

    Nothing is added in front, every position of a window but the first is scored, a last part-window is left out.
    """
    import numpy as np

    integer("ctx", ctx, 2, model.info.n_ctx_train)
    bits = kv_bits(kv)
    if against is not None:
        kv_bits(against)
    ids = model.encode(text, "the text")
    n_windows = len(ids) // ctx
    if n_windows == 0:
        raise InvalidArgument(f"the text has {len(ids)} tokens; one window of --ctx takes {ctx}")

    nll = base_nll = 0.0
    divergences: list[npt.NDArray[np.float64]] = []
    same_top = 0
    for window in range(n_windows):
        tokens = ids[window * ctx : (window + 1) * ctx]

        def report(done: float, window: int = window) -> object:
            return progress((window + done) / n_windows) if progress else None

        logits = model.logits(tokens, kv=kv, progress=report)
        base = None if against is None else model.logits(tokens, kv=against, progress=report)
        for start in range(0, ctx - 1, _ROWS):
            rows = slice(start, min(start + _ROWS, ctx - 1))
            targets = np.asarray(tokens[rows.start + 1 : rows.stop + 1])
            log_p = _log_softmax(logits[rows])
            nll -= _sum_at(log_p, targets)
            if base is not None:
                log_q = _log_softmax(base[rows])
                base_nll -= _sum_at(log_q, targets)
                divergences.append(np.sum(np.exp(log_q) * (log_q - log_p), axis=1))
                same_top += int(np.sum(log_p.argmax(axis=1) == log_q.argmax(axis=1)))

    positions = n_windows * (ctx - 1)
    ppl = math.exp(nll / positions)
    result = {
        "ctx": ctx,
        "kv": kv,
        "ppl": ppl,
        "base_kv": against,
        "base_ppl": None,
        "ppl_ratio": None,
        "kld_mean": None,
        "kld_p99": None,
        "kld_max": None,
        "top1": None,
        "bits_per_value": bits,
        "positions": positions,
        "windows": n_windows,
    }
    if against is not None:
        divergence = np.concatenate(divergences)
        base_ppl = math.exp(base_nll / positions)
        result |= {
            "base_ppl": base_ppl,
            "ppl_ratio": ppl / base_ppl,
            "kld_mean": float(divergence.mean()),
            "kld_p99": float(np.percentile(divergence, 99)),
            "kld_max": float(divergence.max()),
            "top1": same_top / positions,
        }
    return result


def _log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    import numpy as np

    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    wide -= np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return wide


def _sum_at(log_p: npt.NDArray[np.float64], targets: npt.NDArray[np.int64]) -> float:
    import numpy as np

    return float(np.take_along_axis(log_p, targets[:, None], axis=1).sum())

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

_ROWS = 64  # positions whose logits are held at once: a vocabulary of 150,000 makes a row of 600 kB


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
        with model.session(kv=kv) as session, model.session(kv=against or kv) as base:
            for start in range(0, ctx - 1, _ROWS):
                rows = tokens[start : min(start + _ROWS, ctx - 1)]
                targets = np.asarray(tokens[start + 1 : start + 1 + len(rows)])
                log_p = _log_softmax(session.append_logits(rows))
                nll -= _sum_at(log_p, targets)
                if against is not None:
                    log_q = _log_softmax(base.append_logits(rows))
                    base_nll -= _sum_at(log_q, targets)
                    divergences.append(np.sum(np.exp(log_q) * (log_q - log_p), axis=1))
                    same_top += int(np.sum(log_p.argmax(axis=1) == log_q.argmax(axis=1)))
                if progress:
                    progress((window * ctx + start + len(rows)) / (n_windows * ctx))

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

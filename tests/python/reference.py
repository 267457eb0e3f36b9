"""Divergence of logits from committed reference values. Needs numpy only.

A reference file (tools/make_reference.py writes it) holds, per text and position, the most likely tokens of the float32
model, their log-probabilities and the log of the mass that all other tokens share. The divergence over these buckets
is a lower bound of the full one, and close to it: the rest holds little mass.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class ReferenceText:
    """One window that starts at position 0, with nothing added in front. Row i predicts what follows ids[i]."""

    name: str
    ids: NDArray[np.int32]  # (n)
    top_ids: NDArray[np.int32]  # (n, k), the likeliest first
    top_logprobs: Floats  # (n, k)
    rest_logprob: Floats  # (n)


@dataclass(frozen=True)
class TinyReference:
    """All logits of a model that make_tiny_model(**options) makes anew."""

    options: dict[str, Any]
    ids: NDArray[np.int32]  # (n)
    logits: Floats  # (n, vocab)


def load_reference(path: str | Path) -> list[ReferenceText]:
    """All texts of a reference file, in the order in which they were written."""
    fields = ("ids", "top_ids", "top_logprobs", "rest_logprob")
    with np.load(path, allow_pickle=False) as data:
        return [ReferenceText(str(name), *(data[f"{name}.{field}"] for field in fields)) for name in data["texts"]]


def load_tiny(path: str | Path) -> TinyReference:
    with np.load(path, allow_pickle=False) as data:
        return TinyReference(json.loads(str(data["options"])), data["ids"], data["logits"])


def log_softmax(logits: Floats) -> Doubles:
    """(n, vocab) → the same, in float64."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return x


def reduce_logits(logits: Floats, k: int = 64) -> tuple[NDArray[np.int32], Floats, Floats]:
    """(n, vocab) logits → the k likeliest tokens (n, k), their log-probabilities, the log of the rest's mass (n)."""
    n = len(logits)
    ids, top, rest = np.empty((n, k), np.int32), np.empty((n, k), np.float32), np.empty(n, np.float32)
    for rows in _row_blocks(n):
        logprobs = log_softmax(logits[rows])
        likely = np.argpartition(-logprobs, k, axis=-1)[:, :k]
        order = np.argsort(-np.take_along_axis(logprobs, likely, axis=-1), axis=-1, kind="stable")
        ids[rows] = np.take_along_axis(likely, order, axis=-1)
        top[rows], rest[rows] = _buckets(logprobs, ids[rows])
    return ids, top, rest


def bucketed_kl(text: ReferenceText, logits: Floats) -> Doubles:
    """KL(reference ‖ ours) in nats at each position (n), over the top tokens and one bucket for the rest."""
    if logits.ndim != 2 or len(logits) != len(text.ids):
        raise ValueError(f"{text.name}: logits must be ({len(text.ids)}, vocab), got {logits.shape}")
    kl = np.empty(len(logits), np.float64)
    for rows in _row_blocks(len(logits)):
        ours, ours_rest = _buckets(log_softmax(logits[rows]), text.top_ids[rows])
        truth, truth_rest = text.top_logprobs[rows].astype(np.float64), text.rest_logprob[rows].astype(np.float64)
        kl[rows] = (np.exp(truth) * (truth - ours)).sum(axis=-1) + np.exp(truth_rest) * (truth_rest - ours_rest)
    return kl


def full_kl(truth: Floats, logits: Floats) -> Doubles:
    """KL(truth ‖ ours) in nats at each position (n) over the whole vocabulary; both are logits (n, vocab)."""
    if truth.shape != logits.shape:
        raise ValueError(f"logits must be {truth.shape}, got {logits.shape}")
    kl = np.empty(len(logits), np.float64)
    for rows in _row_blocks(len(logits)):
        p = log_softmax(truth[rows])
        kl[rows] = (np.exp(p) * (p - log_softmax(logits[rows]))).sum(axis=-1)
    return kl


def same_top1(text: ReferenceText, logits: Floats) -> NDArray[np.bool_]:
    """Whether the likeliest token is the reference's, at each position (n)."""
    return np.asarray(logits.argmax(axis=-1) == text.top_ids[:, 0])


def summarize(kl: Doubles, same: NDArray[np.bool_]) -> dict[str, float | int]:
    """The figures that tests and tables quote, from the values of all positions."""
    return {
        "positions": len(kl),
        "kld_mean": float(kl.mean()),
        "kld_p99": float(np.quantile(kl, 0.99)),
        "kld_max": float(kl.max()),
        "top1": float(same.mean()),
    }


def _row_blocks(n: int, size: int = 64) -> Iterator[slice]:
    # A vocabulary of 150,000 in float64 is over a megabyte a row: whole texts at once would take gigabytes.
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def _buckets(logprobs: Doubles, top_ids: NDArray[np.int32]) -> tuple[Doubles, Doubles]:
    """Log-probabilities of the top ids (rows, k) and of all other tokens together (rows)."""
    top_ids = top_ids.astype(np.int64)
    top = np.take_along_axis(logprobs, top_ids, axis=-1)
    # Summed over the other tokens, not 1 - sum(top): that difference has no digits left when the rest is tiny.
    others = np.exp(logprobs)
    np.put_along_axis(others, top_ids, 0.0, axis=-1)
    return top, np.log(np.maximum(others.sum(axis=-1), 1e-300))

"""Channels of the keys that stand out, read from the weights alone: why the cache quantizes keys per channel.

Qwen2 and Qwen2.5 add a bias to the keys that is a hundred times larger in some channels than in others; Qwen3 has
weights of a norm instead, that stretch channels. Four bits with a scale a token share their 15 steps among channels
that lie side by side, so one wide channel takes them from its neighbours. A scale a channel gives each its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .footprint import PAGE_TOKENS

_STEPS = 15  # of four bits
_BLOCK = 32  # channels that share a scale where it goes along tokens, as other engines' caches have it
_REACH = 4.0  # a normal channel's values lie within two spreads to either side
# A value is lost where a step is wider than this many spreads of its channel: what is common falls on one code or two.
_LOST = 1.6
# The spread of a channel of Qwen2.5's keys over the median of its biases: 1.1 over 0.45, measured on the 0.5B's keys.
_SPREAD_OF_MEDIAN = 2.5

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class LayerSpikes:
    """One layer's keys. Sizes are in the units of the keys (qwen2) or factors of a normal channel (qwen3).

    peak: the largest magnitude, at kv_head (0 for a norm, which all heads share) and channel. ratio: peak over the
    median magnitude of all layers. token_step, channel_step: the widest step of four bits along tokens, in blocks of
    32 channels, and along channels, over a page. token_lost, channel_lost: shares of the channels whose values such
    steps lose.
    """

    layer: int
    peak: float
    kv_head: int
    channel: int
    ratio: float
    token_step: float
    channel_step: float
    token_lost: float
    channel_lost: float


def of_biases(biases: Sequence[Floats], head_dim: int, rope_base: float, rope_factor: float = 1.0) -> list[LayerSpikes]:
    """Spikes of the biases of attn_k, one (n_kv_heads * head_dim,) a layer.

    The bias is the same for all tokens before RoPE. RoPE turns pair i by base^(-2 i / head_dim) a position (Su et al.
    2021; divided by the factor of linear scaling), so within a page a channel moves along an arc of that circle.
    """
    half = head_dim // 2
    turns = rope_base ** (-2.0 * np.arange(half) / head_dim) / rope_factor
    # What a point of the unit circle moves to and fro at most, over an arc of a page.
    chord = 2.0 * np.sin(np.minimum((PAGE_TOKENS - 1) * turns, np.pi) / 2.0)
    median = float(np.median(np.abs(np.concatenate(biases))))
    spread = np.full(head_dim, _SPREAD_OF_MEDIAN * median)
    layers = []
    for layer, bias in enumerate(biases):
        heads = bias.reshape(-1, head_dim).astype(np.float64)
        radius = np.hypot(heads[:, :half], heads[:, half:])
        channel_steps = np.tile(radius * chord, 2) / _STEPS
        layers.append(_layer(layer, heads, median, _per_block(heads, _range) / _STEPS, channel_steps, spread))
    return layers


def of_norms(norms: Sequence[Floats]) -> list[LayerSpikes]:
    """Spikes of the weights of attn_k_norm, one (head_dim,) a layer: each is the spread of its channel."""
    median = float(np.median(np.abs(np.concatenate(norms))))
    layers = []
    for layer, norm in enumerate(norms):
        heads = norm.reshape(1, -1).astype(np.float64)
        spread = np.abs(heads[0])
        steps = _REACH * spread.reshape(1, -1) / _STEPS
        layers.append(_layer(layer, heads, median, _per_block(steps, lambda block: block.max(axis=1)), steps, spread))
    return layers


def _layer(
    layer: int,
    heads: npt.NDArray[np.float64],
    median: float,
    token_steps: npt.NDArray[np.float64],
    channel_steps: npt.NDArray[np.float64],
    spread: npt.NDArray[np.float64],
) -> LayerSpikes:
    """All (heads, head_dim), spread (head_dim,)."""
    head, channel = np.unravel_index(int(np.argmax(np.abs(heads))), heads.shape)
    peak = float(np.abs(heads[head, channel]))
    return LayerSpikes(
        layer=layer,
        peak=peak,
        kv_head=int(head),
        channel=int(channel),
        ratio=peak / median if median > 0 else float(peak > 0),
        token_step=float(token_steps.max()),
        channel_step=float(channel_steps.max()),
        token_lost=float(np.mean(token_steps > _LOST * spread)),
        channel_lost=float(np.mean(channel_steps > _LOST * spread)),
    )


def _range(block: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.asarray(block.max(axis=1) - block.min(axis=1))


def _per_block(
    heads: npt.NDArray[np.float64], of: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
) -> npt.NDArray[np.float64]:
    """What `of` says of a channel's block, for each: (heads, head_dim)."""
    result = np.empty_like(heads)
    for start in range(0, heads.shape[1], _BLOCK):
        result[:, start : start + _BLOCK] = of(heads[:, start : start + _BLOCK])[:, None]
    return result

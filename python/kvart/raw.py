"""Sealed pages as they are kept, as numpy arrays over their bytes. cpp/kvcache/FORMAT.md draws them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core

_TILE = 8  # lanes that lie beside each other


@dataclass(frozen=True)
class RawBlock:
    """One KV head's keys or values in a page: value = centre + scale · (code − 7.5), or + scale · code with 8 bits.

    Scales and centres are views of data: (groups, values of a group) where keys have them along channels, groups of
    tokens; where they go along tokens, groups of channels. norms: lengths of the rows, of int4-knorm alone.
    fine: channels of `int4` keys that have a second code of 0 … 15, which adds scale / 16 · (code − 7.5).
    """

    format: str
    data: bytes
    codes: npt.NDArray[Any]  # (tokens, head_dim): uint8 of 0 … 15, int8, or the floats themselves
    scales: npt.NDArray[np.float16] | None
    centres: npt.NDArray[np.float16] | None
    norms: npt.NDArray[np.float16] | None
    per_token: bool
    group: int
    fine: dict[int, npt.NDArray[np.uint8]]  # (tokens) each

    def dequantize(self) -> npt.NDArray[np.float32]:
        """(tokens, head_dim) float32. Sinks are kept elsewhere: their rows in the first page mean nothing."""
        if self.scales is None or self.centres is None:
            return self.codes.astype(np.float32)
        codes = self.codes.astype(np.float32)
        if self.codes.dtype == np.uint8:
            codes -= np.float32(7.5)
        scales, centres = (
            np.repeat(array.astype(np.float32), self.group, axis=0) for array in (self.scales, self.centres)
        )
        if self.per_token:
            scales, centres = scales.T, centres.T
        values = centres + scales * codes
        for channel, second in self.fine.items():
            step = scales[:, channel] * np.float32(0.0625)
            values[:, channel] += step * (second.astype(np.float32) - np.float32(7.5))
        return values if self.norms is None else values * self.norms.astype(np.float32)[:, None]


@dataclass(frozen=True)
class RawHead:
    """One KV head of a sealed page."""

    k: RawBlock
    v: RawBlock


def parse_fine(section: bytes, n_heads: int) -> list[dict[int, npt.NDArray[np.uint8]]]:
    """For each KV head of all layers its fine rows: channel → codes (tokens)."""
    tokens = _core.PAGE_TOKENS
    starts = np.frombuffer(section, "<u2", n_heads + 1)
    rows = int(starts[-1])
    channels = np.frombuffer(section, "<u2", rows, starts.nbytes)
    begin = -(-(starts.nbytes + channels.nbytes) // 64) * 64
    packed = np.frombuffer(section, np.uint8, offset=begin).reshape(rows, -1, 8)
    codes = np.stack([packed & 15, packed >> 4], axis=2).reshape(rows, -1)[:, :tokens]
    return [{int(channels[i]): codes[i] for i in range(start, end)} for start, end in pairwise(starts)]


def parse_page(
    data: bytes,
    k_format: str,
    v_format: str,
    n_kv_heads: int,
    head_dim: int,
    fine: list[dict[int, npt.NDArray[np.uint8]]] | None = None,
) -> list[RawHead]:
    """The heads of one layer of a sealed page; fine: of these heads, as parse_fine gives them."""
    tokens = _core.PAGE_TOKENS
    k, v = _core.kv_blocks(k_format, v_format, tokens, head_dim)
    step = k["bytes"] + v["bytes"]
    heads = []
    for head, start in enumerate(range(0, n_kv_heads * step, step)):
        middle = start + k["bytes"]
        heads.append(
            RawHead(
                _block(data[start:middle], k, True, tokens, head_dim, fine[head] if fine else {}),
                _block(data[middle : start + step], v, False, tokens, head_dim, {}),
            )
        )
    return heads


def _block(
    data: bytes, shape: dict[str, Any], keys: bool, tokens: int, head_dim: int, fine: dict[int, npt.NDArray[np.uint8]]
) -> RawBlock:
    bits, n_groups, n_per_group = shape["bits"], shape["n_groups"], shape["n_per_group"]
    fields = {"format": shape["format"], "data": data, "per_token": shape["per_token"], "group": shape["group"]}
    fields["fine"] = fine
    if bits >= 16:
        floats: npt.NDArray[Any] = np.frombuffer(data, np.float32 if bits == 32 else np.float16)
        if keys:
            floats = floats.reshape(-1, head_dim, _TILE).transpose(0, 2, 1)
        return RawBlock(codes=floats.reshape(tokens, head_dim), scales=None, centres=None, norms=None, **fields)
    raw = np.frombuffer(data, np.uint8, shape["params"])
    # Lanes of a tile are tokens and the sum runs over channels for keys; for values it is the other way round.
    lanes, summed = (tokens, head_dim) if keys else (head_dim, tokens)
    if bits == 4:
        packed = raw.reshape(lanes // _TILE, summed // 8, _TILE, 4)
        nibbles = np.stack([packed & 15, packed >> 4], axis=3)  # (tile, vector, lane, half, 4)
        codes: npt.NDArray[Any] = nibbles.transpose(0, 2, 1, 3, 4).reshape(lanes, summed)
    else:
        codes = raw.view(np.int8).reshape(lanes // _TILE, summed // 4, _TILE, 4).transpose(0, 2, 1, 3)
        codes = codes.reshape(lanes, summed)
    params = np.frombuffer(data, np.float16, 2 * n_groups * n_per_group, shape["params"])
    params = params.reshape(n_groups, 2, n_per_group)
    norms = np.frombuffer(data, np.float16, tokens, shape["params"] + params.nbytes) if shape["norm"] else None
    return RawBlock(codes=codes if keys else codes.T, scales=params[:, 0], centres=params[:, 1], norms=norms, **fields)

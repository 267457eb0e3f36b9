"""How many bytes a model, its K/V and its work take. The formulas are the core's: each names the file it follows.

cpp/kvcache/layout.h and FORMAT.md for pages, cpp/quant/packed.h for weights, cpp/backend/cpu and cpp/model/decoder.cc
for work memory. Tests compare them with what a session holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from . import _core
from .errors import InvalidArgument
from .shapes import Shape

PAGE_TOKENS = _core.PAGE_TOKENS
_FIRST_OPEN_PAGE = 16  # tokens: cpp/kvcache/pool.cc; each next one has room for twice as many
_KEPT_OPEN_PAGES = 32
_TILE = 8

# Values and bytes of a block: the GGUF format.
BLOCKS = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q5_0": (32, 22),
    "q5_1": (32, 24),
    "q8_0": (32, 34),
    "q2_k": (256, 84),
    "q3_k": (256, 110),
    "q4_k": (256, 144),
    "q5_k": (256, 176),
    "q6_k": (256, 210),
    "iq4_nl": (32, 18),
    "iq4_xs": (256, 136),
}
# Blocks once they are interleaved for the kernels, where their size differs: scales of six bits are bytes there.
_IN_MEMORY = {"q3_k": (256, 114), "q4_k": (256, 148), "q5_k": (256, 180), "iq4_xs": (256, 138)}

# A process with kvart, numpy and the command line in it, and what the tokenizer keeps for a token of the vocabulary:
# measured (docs/plan.md).
PROCESS_BYTES = 40_000_000
TOKENIZER_BYTES = 210


def _divide_up(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class KvPages:
    """What a model's K/V take in a format. seals: full pages are turned into integers.

    open_token_bytes: of one token of the open page, all layers. payload_bytes, slot_bytes: of a sealed page.
    """

    k: str
    v: str
    values_per_token: int
    seals: bool
    open_token_bytes: int
    payload_bytes: int
    slot_bytes: int

    @property
    def token_bytes(self) -> float:
        """Of a token in a full page, headers and padding counted."""
        return self.slot_bytes / PAGE_TOKENS if self.seals else float(self.open_token_bytes)

    @property
    def bits_per_value(self) -> float:
        return 8.0 * self.token_bytes / self.values_per_token


def kv_pages(shape: Shape, k: str, v: str) -> KvPages:
    """The pages of a format such as "int4" for the keys and the values. InvalidArgument for an unknown one."""
    k_block, v_block = _core.kv_blocks(k, v, PAGE_TOKENS, shape.head_dim)
    heads = shape.n_layers * shape.n_kv_heads
    seals = k_block["bits"] < 16 or v_block["bits"] < 16
    payload, slot = _core.page_bytes(k, v, shape.n_layers, shape.n_kv_heads, shape.head_dim)
    bits = 32 if seals else k_block["bits"] + v_block["bits"]  # integers are halves while their page is open
    return KvPages(
        k=k,
        v=v,
        values_per_token=2 * heads * shape.head_dim,
        seals=seals,
        open_token_bytes=heads * shape.head_dim * bits // 8,
        payload_bytes=payload,
        slot_bytes=slot,
    )


@dataclass(frozen=True)
class KvBytes:
    """The K/V of some equal streams. pages: full ones, shared ones once. spare: freed open pages, kept for reuse."""

    pages: int
    open: int
    sinks: int
    spare: int
    shared_saving: int  # what sharing the prefix leaves out of `pages`

    @property
    def total(self) -> int:
        return self.pages + self.open + self.sinks + self.spare


def kv_bytes(pages: KvPages, tokens: int, *, streams: int = 1, shared_prefix: int = 0, sinks: int = 4) -> KvBytes:
    """Of `streams` texts of so many tokens that begin with the same shared_prefix tokens.

    Floats are kept once for the forks of a session only; equal texts that came in apart share sealed pages alone, so
    a shared prefix of floats saves nothing here.
    """
    if min(tokens, streams) < 1 or not 0 <= shared_prefix <= tokens or sinks < 0:
        raise InvalidArgument(
            f"K/V of {streams} streams of {tokens} tokens with {shared_prefix} shared and {sinks} sinks: out of range"
        )
    full = (tokens - 1) // PAGE_TOKENS  # the newest page stays open until one more token comes
    capacity = _FIRST_OPEN_PAGE
    while capacity < tokens - full * PAGE_TOKENS:
        capacity *= 2
    page_bytes = pages.slot_bytes if pages.seals else PAGE_TOKENS * pages.open_token_bytes
    shared = min(shared_prefix // PAGE_TOKENS, full) if pages.seals else 0
    kept = shared + streams * (full - shared)
    # As a page grows, 16, 32, 64, 128, the smaller ones go back to a pool.
    grown = sum(size for size in (16, 32, 64) if size < capacity or full)
    spare = min(streams * grown, _KEPT_OPEN_PAGES * PAGE_TOKENS // 2)
    sink_bytes = 0
    if pages.seals and full and sinks:
        run = _divide_up(sinks, _TILE) * _TILE * pages.open_token_bytes
        slots = _divide_up(run, pages.payload_bytes) * pages.slot_bytes  # a record in the store for each first page
        sink_bytes = streams * run + slots * (1 if shared else streams)
    return KvBytes(
        pages=kept * page_bytes,
        open=streams * capacity * pages.open_token_bytes,
        sinks=sink_bytes,
        spare=spare * pages.open_token_bytes,
        shared_saving=(streams * full - kept) * page_bytes,
    )


def kv_read_bytes(pages: KvPages, tokens: int) -> int:
    """What attention reads for one new token behind so many."""
    full = max(0, (tokens - 1) // PAGE_TOKENS) if pages.seals else 0
    return full * pages.payload_bytes + (tokens - full * PAGE_TOKENS) * pages.open_token_bytes


@dataclass(frozen=True)
class Weights:
    """file: of all tensors in the file. memory: what stays in memory. per_token: what a decoded token reads."""

    file: int
    memory: int
    per_token: int
    by_type: dict[str, int]  # bytes in the file


def weight_bytes(tensors: Iterable[tuple[str, str, int, int]], tied: bool) -> Weights:
    """Of (name, type, rows, columns); rows is 0 for vectors, which are float32 in memory.

    Matrices are packed into memory of their own while the file's pages are let go (cpp/backend/cpu); rows of the
    embedding table are read from the file as tokens need them, and count for nothing.
    """
    file = memory = per_token = 0
    by_type: dict[str, int] = {}
    for name, type, rows, columns in tensors:
        values, bytes = BLOCKS[type]
        size = max(rows, 1) * columns // values * bytes
        file += size
        by_type[type] = by_type.get(type, 0) + size
        if not rows:
            memory += columns * 4
        elif name != "token_embd.weight" or tied:
            values, bytes = _IN_MEMORY.get(type, (values, bytes))
            packed = rows * columns // values * bytes
            memory += packed
            per_token += packed
    return Weights(file, memory, per_token, by_type)


def work_bytes(shape: Shape, pages: KvPages, context: int, *, streams: int, threads: int, chunk: int = 512) -> int:
    """Activations, logits, scratch: cpp/model/decoder.cc and cpp/backend/cpu at their largest, in prefill."""
    rows = min(chunk, PAGE_TOKENS) if pages.seals else chunk  # no chunk goes beyond the open page
    q, kv = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    int8_bytes = 44 / 32  # an activation in a block of 32 with its scale and sums: cpp/kernels/kernels.h
    row = 4 * (shape.n_embd + 2 * q)  # x, q, attended
    row += 4 * shape.n_embd + 8 * kv + 8 * shape.head_dim  # normed, k, v, angles twice
    row += int(int8_bytes * (max(shape.n_embd, q) + shape.n_ff))
    widest = max(shape.n_embd, q, shape.n_ff)
    scratch = threads * (64 * widest + 4096 + 4 * 2 * 128 * 64)  # matrix tiles, gate and up of a task
    runs = _divide_up(context, PAGE_TOKENS) + 1
    partial = runs * shape.n_heads * (2 + shape.head_dim) * 4
    logits = 4 * shape.n_vocab * (streams + 1) + 12 * shape.n_vocab  # kept by each, the newest; the sampler's own
    return rows * row + scratch + partial + logits + (pages.payload_bytes if pages.seals else 0)


def process_bytes(n_vocab: int) -> int:
    """The program itself: interpreter, libraries, tokenizer."""
    return PROCESS_BYTES + TOKENIZER_BYTES * n_vocab

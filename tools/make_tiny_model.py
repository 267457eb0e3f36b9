"""Writes tiny random qwen2 and qwen3 GGUF models for tests. Needs numpy and the gguf package only.

Metadata and tensor names are those that converters of Hugging Face checkpoints write, so that any reader of
GGUF takes the files. Equal options give equal files.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType, quants

# Formats that the gguf package can decode but not encode: byte offsets of the FP16 scale and of the FP16 minimum (or
# None), and the ratio minimum : scale that makes uniformly random blocks average about zero.
_RANDOM_BLOCKS: dict[str, tuple[int, int | None, float]] = {
    "Q2_K": (80, 82, 1.5),
    "Q3_K": (108, None, 0.0),
    "Q4_K": (0, 2, 7.5),
    "Q5_K": (0, 2, 15.5),
    "Q6_K": (208, None, 0.0),
    "IQ4_NL": (0, None, 0.0),
    "IQ4_XS": (0, None, 0.0),
}
_ENCODED = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
WEIGHT_TYPES = (*_ENCODED, *_RANDOM_BLOCKS)

# Qwen2.5's added tokens in their order; the two tool tokens are not control tokens.
_ADDED = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
]
_USER_DEFINED = {"<tool_call>", "</tool_call>"}

CHAT_TEMPLATE = (
    "{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\\nYou are a test.<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

_MERGE_TEXT = """
the cat sat on the mat and then the other cat sat there; in the end they were thinking of the thing that they had seen
return the number of tokens in the list: for token in tokens: print(token, end="") if not done else None
    while (index < count) { index++; }        // continue
one two three four five six seven eight nine ten, hello world, hello there, what is this, where are these
你好，世界。今天天气很好，我们去公园吧。你好吗？我很好。
"""


def byte_symbols() -> list[str]:
    """The 256 printable stand-ins of byte-level BPE, indexed by byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    symbols = {b: chr(b) for b in printable} | {b: chr(0x100 + i) for i, b in enumerate(others)}
    return [symbols[b] for b in range(256)]


def learn_merges(count: int) -> list[tuple[str, str]]:
    """Byte-pair merges of a small built-in text, the most frequent pair first, ties by code point."""
    symbols = byte_symbols()
    pieces = re.findall(r" ?[^\W\d_]+|\d| ?[^\w\s]+|\s+", _MERGE_TEXT)
    words = [[symbols[b] for b in piece.encode()] for piece in pieces]
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs = Counter(pair for word in words for pair in itertools.pairwise(word))
        if not pairs:
            raise ValueError(f"{count} merges wanted, but the built-in text yields only {len(merges)}")
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        for word in words:
            i = 0
            while i + 1 < len(word):
                if (word[i], word[i + 1]) == best:
                    word[i : i + 2] = [word[i] + word[i + 1]]
                i += 1
    return merges


def _vocabulary(vocab: int, merge_count: int | None) -> tuple[list[str], list[int], list[str]]:
    """Tokens, their types and the merges: bytes, merged pieces, added tokens, then padding up to `vocab`."""
    room = vocab - 256 - len(_ADDED)
    if room < 0:
        raise ValueError(f"vocab is {vocab}, but 256 bytes and {len(_ADDED)} added tokens need {256 + len(_ADDED)}")
    merges = learn_merges(min(100, room) if merge_count is None else merge_count)
    if len(merges) > room:
        raise ValueError(f"{len(merges)} merges do not fit: a vocab of {vocab} leaves room for {room}")
    # As in Qwen's vocabulary, the byte tokens are ordered by their stand-in, so "!" has the id 0.
    plain = sorted(byte_symbols()) + [a + b for a, b in merges]
    pads = [f"[PAD{i}]" for i in range(len(plain) + len(_ADDED), vocab)]
    kind = gguf.TokenType
    types = [int(kind.NORMAL)] * len(plain)
    types += [int(kind.USER_DEFINED if t in _USER_DEFINED else kind.CONTROL) for t in _ADDED]
    types += [int(kind.UNUSED)] * len(pads)
    return plain + _ADDED + pads, types, [f"{a} {b}" for a, b in merges]


def encode_tensor(values: np.ndarray, weight_type: str, rng: np.random.RandomState) -> np.ndarray:
    """Raw data of `values` (rows, columns) in `weight_type`; formats without an encoder keep only the spread."""
    qtype = GGMLQuantizationType[weight_type]
    if weight_type in _ENCODED:
        block = gguf.GGML_QUANT_SIZES[qtype][0]
        if values.shape[-1] % block:
            raise ValueError(f"{weight_type} needs rows of a multiple of {block} values, got {values.shape[-1]}")
        return quants.quantize(values, qtype)
    block, block_bytes = gguf.GGML_QUANT_SIZES[qtype]
    rows, columns = values.shape
    if columns % block:
        raise ValueError(f"{weight_type} needs rows of a multiple of {block} values, got {columns}")
    at_scale, at_min, ratio = _RANDOM_BLOCKS[weight_type]
    blocks = rng.randint(0, 256, size=(rows * columns // block, block_bytes)).astype(np.uint8)

    def set_scales(scale: np.ndarray) -> None:  # (blocks, 1)
        blocks[:, at_scale : at_scale + 2] = scale.astype(np.float16).view(np.uint8)
        if at_min is not None:
            blocks[:, at_min : at_min + 2] = (scale * ratio).astype(np.float16).view(np.uint8)

    set_scales(np.ones((len(blocks), 1), np.float32))
    spread = float(quants.dequantize(blocks, qtype).std())
    set_scales(float(values.std()) / spread * rng.uniform(0.5, 1.5, size=(len(blocks), 1)))
    return blocks.reshape(rows, columns // block * block_bytes)


def make_tiny_model(
    path: str | Path,
    *,
    arch: str = "qwen2",
    n_layers: int = 2,
    n_heads: int = 4,
    n_kv_heads: int = 2,
    head_dim: int | None = None,
    width: int = 64,
    ff: int = 128,
    vocab: int = 384,
    merges: int | None = None,
    tied: bool = False,
    weight_type: str = "F32",
    embd_type: str | None = None,
    head_type: str | None = None,
    context_length: int = 512,
    rope_base: float = 10000.0,
    rope_scaling: str = "none",
    rope_factor: float = 4.0,
    rope_original_context: int = 32,
    eps: float = 1e-6,
    wild_keys: float = 0.0,
    chat_template: str | None = CHAT_TEMPLATE,
    split_tensors: int = 0,
    seed: int = 0,
) -> Path:
    """Writes one model; returns its path (with split_tensors, that of the first file: stem-00001-of-0000N.gguf).

    head_dim: width / n_heads unless given; only qwen3 may differ from that.
    weight_type: of the matrices; embd_type and head_type override it for the two tables. Norms and biases are F32.
    wild_keys: size of a constant in the slowest RoPE pairs of every key of layer 0 (qwen2: bias; qwen3: k norm), and
        a quarter of it in the other layers.
    """
    if arch not in ("qwen2", "qwen3"):
        raise ValueError(f"arch must be qwen2 or qwen3, got {arch!r}")
    if rope_scaling not in ("none", "linear", "yarn"):
        raise ValueError(f"rope_scaling must be none, linear or yarn, got {rope_scaling!r}")
    if n_heads % n_kv_heads:
        raise ValueError(f"n_heads ({n_heads}) must be a multiple of n_kv_heads ({n_kv_heads})")
    if head_dim is None:
        if width % n_heads:
            raise ValueError(f"width ({width}) must be a multiple of n_heads ({n_heads}) when head_dim is not given")
        head_dim = width // n_heads
    if arch == "qwen2" and head_dim * n_heads != width:
        raise ValueError(f"qwen2: head_dim ({head_dim}) must be width / n_heads ({width} / {n_heads})")
    if head_dim % 2:
        raise ValueError(f"head_dim must be even, got {head_dim}")
    for name in (weight_type, embd_type or weight_type, head_type or weight_type):
        if name not in WEIGHT_TYPES:
            raise ValueError(f"weight type {name!r} is not one of {', '.join(WEIGHT_TYPES)}")

    # RandomState's streams are frozen for good, so golden files made from these models stay valid.
    rng = np.random.RandomState(seed)
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=split_tensors)
    writer.add_type(gguf.GGUFType.MODEL)
    writer.add_name(f"tiny {arch}")
    writer.add_block_count(n_layers)
    writer.add_context_length(context_length)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(ff)
    writer.add_head_count(n_heads)
    writer.add_head_count_kv(n_kv_heads)
    writer.add_rope_freq_base(rope_base)
    writer.add_layer_norm_rms_eps(eps)
    if arch == "qwen3":
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if rope_scaling != "none":
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope_scaling))
        writer.add_rope_scaling_factor(rope_factor)
    if rope_scaling == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope_original_context)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type(_file_type(weight_type))

    tokens, types, merge_lines = _vocabulary(vocab, merges)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merge_lines)
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_pad_token_id(tokens.index("<|endoftext|>"))
    writer.add_bos_token_id(tokens.index("<|endoftext|>"))
    writer.add_add_bos_token(False)
    if chat_template is not None:
        writer.add_chat_template(chat_template)

    def vector(name: str, n: int, mean: float, spread: float, wild: float = 0.0) -> None:
        values = (mean + spread * rng.standard_normal(n)).astype(np.float32)
        if wild:
            values.reshape(-1, head_dim)[:, slow] = wild
        writer.add_tensor(name, values)

    def matrix(name: str, rows: int, columns: int, spread: float, dtype: str) -> None:
        values = (spread * rng.standard_normal((rows, columns))).astype(np.float32)
        writer.add_tensor(name, encode_tensor(values, dtype, rng), raw_dtype=GGMLQuantizationType[dtype])

    slow = _slow_channels(head_dim)
    q_rows, kv_rows = n_heads * head_dim, n_kv_heads * head_dim
    # Spread so that logits spread by about 3: distributions neither flat nor one-hot.
    if not tied:
        matrix("output.weight", vocab, width, 3.0 / width**0.5, head_type or weight_type)
    matrix("token_embd.weight", vocab, width, 3.0 / width**0.5, embd_type or weight_type)
    for i in range(n_layers):
        p = f"blk.{i}."
        vector(p + "attn_norm.weight", width, 1.0, 0.1)
        matrix(p + "ffn_down.weight", width, ff, 0.7 / ff**0.5, weight_type)
        matrix(p + "ffn_gate.weight", ff, width, 1.0 / width**0.5, weight_type)
        matrix(p + "ffn_up.weight", ff, width, 1.0 / width**0.5, weight_type)
        vector(p + "ffn_norm.weight", width, 1.0, 0.1)
        wild = wild_keys if i == 0 else wild_keys / 4
        if arch == "qwen2":
            vector(p + "attn_k.bias", kv_rows, 0.0, 0.3, wild)
            vector(p + "attn_q.bias", q_rows, 0.0, 0.3)
            vector(p + "attn_v.bias", kv_rows, 0.0, 0.3)
        else:
            vector(p + "attn_k_norm.weight", head_dim, 1.0, 0.1, wild)
            vector(p + "attn_q_norm.weight", head_dim, 1.0, 0.1)
        matrix(p + "attn_k.weight", kv_rows, width, 1.5 / width**0.5, weight_type)
        matrix(p + "attn_output.weight", width, q_rows, 1.0 / q_rows**0.5, weight_type)
        matrix(p + "attn_q.weight", q_rows, width, 1.5 / width**0.5, weight_type)
        matrix(p + "attn_v.weight", kv_rows, width, 1.0 / width**0.5, weight_type)
    vector("output_norm.weight", width, 1.0, 0.1)

    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    path = Path(path)
    if len(writer.tensors) == 1:
        return path
    return path.with_name(f"{path.stem}-00001-of-{len(writer.tensors):05d}.gguf")


def _slow_channels(head_dim: int) -> list[int]:
    """Channels of the slowest RoPE pairs: the last ones of either half of a head."""
    half, n = head_dim // 2, max(1, head_dim // 20)
    return [*range(half - n, half), *range(head_dim - n, head_dim)]


def _file_type(weight_type: str) -> int:
    """general.file_type, which names the commonest weight type of a file."""
    known = {"F32": "ALL_F32", "F16": "MOSTLY_F16", "Q3_K": "MOSTLY_Q3_K_M", "Q4_K": "MOSTLY_Q4_K_M"}
    name = known.get(weight_type, f"MOSTLY_{weight_type}" + ("_M" if weight_type == "Q5_K" else ""))
    return int(gguf.LlamaFileType[name])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python tools/make_tiny_model.py tiny.gguf --arch qwen3 --head-dim 32 --weight-type Q8_0",
    )
    parser.add_argument("path", type=Path, help="the GGUF file to write")
    parser.add_argument("--arch", choices=("qwen2", "qwen3"), default="qwen2")
    parser.add_argument("--n-layers", type=int, default=2)
    parser.add_argument("--n-heads", type=int, default=4)
    parser.add_argument("--n-kv-heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, help="default: width / heads; free for qwen3")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--ff", type=int, default=128, help="width of the MLP")
    parser.add_argument("--vocab", type=int, default=384)
    parser.add_argument("--merges", type=int, help="BPE merges (default: 100, or as many as fit)")
    parser.add_argument("--tied", action="store_true", help="no head of its own: the embedding table is used")
    parser.add_argument("--weight-type", choices=WEIGHT_TYPES, default="F32", metavar="TYPE", type=str.upper,
                        help="one of " + ", ".join(WEIGHT_TYPES))  # fmt: skip
    parser.add_argument("--embd-type", choices=WEIGHT_TYPES, metavar="TYPE", type=str.upper)
    parser.add_argument("--head-type", choices=WEIGHT_TYPES, metavar="TYPE", type=str.upper)
    parser.add_argument("--context-length", type=int, default=512)
    parser.add_argument("--rope-base", type=float, default=10000.0)
    parser.add_argument("--rope-scaling", choices=("none", "linear", "yarn"), default="none")
    parser.add_argument("--rope-factor", type=float, default=4.0)
    parser.add_argument("--rope-original-context", type=int, default=32)
    parser.add_argument("--eps", type=float, default=1e-6)
    parser.add_argument("--wild-keys", type=float, default=0.0, help="size of the constant in slow key channels")
    parser.add_argument("--split-tensors", type=int, default=0, help="at most so many tensors a file; 0: one file")
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args(argv))
    try:
        print(make_tiny_model(options.pop("path"), **options))
    except ValueError as error:
        print(f"make_tiny_model: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

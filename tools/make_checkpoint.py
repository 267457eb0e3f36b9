"""Makes a checkpoint directory, as people download it, out of a GGUF file of a qwen2 or qwen3 model: for tests.

Needs numpy and safetensors beside kvart, whose reader decodes the weights: no torch. What it writes, transformers
loads: config.json, model.safetensors or shards with their index, tokenizer.json, tokenizer_config.json,
generation_config.json and the chat template. Names and layout stand here on their own, not as the converter has them,
so that one finds the other's mistakes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import TensorSpec, serialize_file

import kvart

# How Qwen's byte-level BPE cuts text before merging, as its tokenizer.json states it.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_CONTROL, _USER_DEFINED = 3, 4


def hf_name(name: str) -> str:
    """blk.0.attn_q.weight → model.layers.0.self_attn.q_proj.weight."""
    stem, _, kind = name.rpartition(".")
    if not stem.startswith("blk."):
        return f"{_TOP[stem]}.{kind}"
    _, layer, part = stem.split(".")
    return f"model.layers.{layer}.{_IN_BLOCK[part]}.{kind}"


def encode(values: np.ndarray, dtype: str) -> np.ndarray:
    """float32 in the given dtype, as little-endian bytes; bfloat16 is rounded to the nearest even."""
    if dtype == "BF16":
        bits = values.astype("<f4").view("<u4")
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")
    return values.astype({"F32": "<f4", "F16": "<f2"}[dtype])


def make_config(file: kvart.GgufFile, dtype: str, tied: bool, new_rope: bool) -> dict[str, Any]:
    arch = file.get("general.architecture")
    if arch not in _ARCHITECTURES:
        raise ValueError(f"architecture must be qwen2 or qwen3, found {arch!r}")
    width, heads = file.get(f"{arch}.embedding_length"), file.get(f"{arch}.attention.head_count")
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[arch]],
        "model_type": arch,
        "attention_dropout": 0.0,
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.get("tokenizer.ggml.eos_token_id"),
        "hidden_act": "silu",
        "hidden_size": width,
        "initializer_range": 0.02,
        "intermediate_size": file.get(f"{arch}.feed_forward_length"),
        "max_position_embeddings": file.get(f"{arch}.context_length"),
        "num_attention_heads": heads,
        "num_hidden_layers": file.get(f"{arch}.block_count"),
        "num_key_value_heads": file.get(f"{arch}.attention.head_count_kv"),
        "rms_norm_eps": float(f"{file.get(f'{arch}.attention.layer_norm_rms_epsilon'):.7g}"),
        "tie_word_embeddings": tied,
        "torch_dtype": DTYPES[dtype],
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": len(file.get("tokenizer.ggml.tokens")),
    }
    if arch == "qwen3":
        config |= {"head_dim": file.get("qwen3.attention.key_length", width // heads), "attention_bias": False}
    base = file.get(f"{arch}.rope.freq_base")
    scaling = file.get(f"{arch}.rope.scaling.type", "none")
    rope: dict[str, Any] = {}
    if scaling != "none":
        rope = {"rope_type": scaling, "factor": file.get(f"{arch}.rope.scaling.factor")}
    if scaling == "yarn":
        rope["original_max_position_embeddings"] = file.get(f"{arch}.rope.scaling.original_context_length")
    if new_rope:  # as transformers 5 writes it
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": base, **rope}
    else:
        config |= {"rope_theta": base, "rope_scaling": rope or None}
    return config


def write_weights(file: kvart.GgufFile, out: Path, dtype: str, tied: bool, shard_bytes: int) -> None:
    """One file, or shards of at most shard_bytes each (but one tensor at least) with their index."""
    size = 4 if dtype == "F32" else 2
    names = {hf_name(tensor.name): tensor for tensor in file.tensors if not (tied and tensor.name == "output.weight")}
    shards: list[list[str]] = [[]]
    filled = 0
    for name in sorted(names):
        count = size * int(np.prod(names[name].dims))
        if shards[-1] and shard_bytes and filled + count > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += count
    index = {}
    total = 0
    for number, shard in enumerate(shards, 1):
        target = "model.safetensors" if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        arrays = {name: encode(file.values(names[name].name), dtype) for name in shard}
        specs = {
            name: TensorSpec(
                dtype=DTYPES[dtype], shape=list(array.shape), data_ptr=array.ctypes.data, data_len=array.nbytes
            )
            for name, array in arrays.items()
        }
        serialize_file(specs, str(out / target), metadata={"format": "pt"})
        index |= dict.fromkeys(shard, target)
        total += sum(array.nbytes for array in arrays.values())
    if len(shards) > 1:
        write_json(out / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})


def added_tokens(file: kvart.GgufFile) -> Iterator[dict[str, Any]]:
    tokens, types = file.get("tokenizer.ggml.tokens"), file.get("tokenizer.ggml.token_type")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for number, (text, kind) in enumerate(zip(tokens, types, strict=True)):
        if kind in (_CONTROL, _USER_DEFINED):
            yield {"id": number, "content": text, **flags, "special": kind == _CONTROL}


def make_tokenizer(file: kvart.GgufFile) -> dict[str, Any]:
    """tokenizer.json as the tokenizers package writes it for the Qwen family."""
    tokens, types = file.get("tokenizer.ggml.tokens"), file.get("tokenizer.ggml.token_type")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added_tokens(file)),
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: number for number, (text, kind) in enumerate(zip(tokens, types, strict=True)) if kind == 1},
            "merges": [merge.split(" ") for merge in file.get("tokenizer.ggml.merges")],
        },
    }


def write_tokenizer(file: kvart.GgufFile, out: Path, jinja: bool) -> None:
    tokens = file.get("tokenizer.ggml.tokens")

    def token(name: str) -> str | None:
        number = file.get(f"tokenizer.ggml.{name}_token_id")
        return None if number is None else tokens[number]

    write_json(out / "tokenizer.json", make_tokenizer(file))
    decoder = {str(entry.pop("id")): entry for entry in added_tokens(file)}
    config: dict[str, Any] = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": decoder,
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "eos_token": token("eos"),
        "errors": "replace",
        "model_max_length": file.get(f"{file.get('general.architecture')}.context_length"),
        "pad_token": token("padding"),
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    template = file.get("tokenizer.chat_template")
    if template is not None and jinja:
        (out / "chat_template.jinja").write_text(template, "utf-8", newline="")
    elif template is not None:
        config["chat_template"] = template
    write_json(out / "tokenizer_config.json", config)
    generation = {"bos_token_id": file.get("tokenizer.ggml.bos_token_id"), "do_sample": True, "repetition_penalty": 1.1}
    generation |= {
        "eos_token_id": file.get("tokenizer.ggml.eos_token_id"),
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.8,
    }
    write_json(out / "generation_config.json", generation)


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1), "utf-8")


def make_checkpoint(
    gguf_path: str | Path,
    out: str | Path,
    *,
    dtype: str = "BF16",
    tied: bool | None = None,
    shard_mb: int = 0,
    new_rope: bool = False,
    jinja: bool = False,
) -> Path:
    """Writes the directory `out`, which must not exist, and returns it.

    dtype: of all weights. tied: leave the head out (by default where the GGUF has none). shard_mb: megabytes of a
    shard; 0 makes one file. new_rope: RoPE in rope_parameters, not in rope_theta and rope_scaling. jinja: the chat
    template in a file of its own.
    """
    file = kvart.GgufFile(str(gguf_path))
    has_head = any(tensor.name == "output.weight" for tensor in file.tensors)
    tied = not has_head if tied is None else tied
    if not tied and not has_head:
        raise ValueError("tied must not be False: the file has no head of its own")
    config = make_config(file, dtype, tied, new_rope)
    out = Path(out)
    out.mkdir(parents=True)
    write_json(out / "config.json", config)
    write_tokenizer(file, out, jinja)
    write_weights(file, out, dtype, tied, shard_mb * 1_000_000)
    return out


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python tools/make_checkpoint.py model.gguf Qwen2.5-Coder-0.5B-Instruct --shard-mb 500",
    )
    parser.add_argument("gguf", type=Path)
    parser.add_argument("out", type=Path, help="the directory to make")
    parser.add_argument("--dtype", choices=DTYPES, default="BF16", type=str.upper)
    parser.add_argument("--tied", action="store_true", default=None, help="leave the head out")
    parser.add_argument("--shard-mb", type=int, default=0, help="megabytes of a shard; 0: one file")
    parser.add_argument("--new-rope", action="store_true", help="RoPE in rope_parameters, as transformers 5 writes it")
    parser.add_argument("--jinja", action="store_true", help="the chat template in chat_template.jinja")
    options = vars(parser.parse_args(argv))
    try:
        print(make_checkpoint(options.pop("gguf"), options.pop("out"), **options))
    except (ValueError, OSError, kvart.Error) as error:
        print(f"make_checkpoint: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

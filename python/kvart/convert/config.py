"""config.json: which model it is, its sizes and its RoPE; what kvart cannot run is refused by name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..errors import Corrupt, Unsupported

_SUPPORTED = "Qwen2, Qwen2.5 (base, Instruct, Coder, Math) and dense Qwen3, as Qwen2ForCausalLM and Qwen3ForCausalLM"
_ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_MIXTURES = ("qwen2_moe", "qwen3_moe", "qwen3_next")


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (Peng et al. 2023) as GGUF has it: attn_factor · (1 + 0.1 ln(factor)) multiplies rotated vectors."""

    factor: float
    original_ctx: int
    attn_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None


@dataclass(frozen=True)
class ModelConfig:
    """Sizes in numbers of values. linear_factor and yarn: RoPE scaling, at most one of them."""

    arch: str  # as GGUF calls it: "qwen2" or "qwen3"
    n_layers: int
    n_embd: int
    n_ff: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    names_head_dim: bool  # config.json has it, so the GGUF has it too
    n_vocab: int
    n_ctx: int
    norm_eps: float
    rope_base: float
    tied: bool
    linear_factor: float | None = None
    yarn: YarnScaling | None = None


class _Fields:
    """Values of a JSON object with their types and ranges checked."""

    def __init__(self, values: dict[str, Any], file: str, where: str = "") -> None:
        self.values = {key: value for key, value in values.items() if value is not None}
        self.file = file
        self.where = where

    def wrong(self, key: str, wanted: str) -> Corrupt:
        found = repr(self.values.get(key))[:80] if key in self.values else "nothing"
        return Corrupt(f"{self.file}: {self.where}{key}: expected {wanted}, found {found}", file=self.file)

    def count(self, key: str, most: int, default: int | None = None) -> int:
        value = self.values.get(key, default)
        if type(value) is not int or not 1 <= value <= most:
            raise self.wrong(key, f"a number from 1 to {most}")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
            raise self.wrong(key, "a finite number above 0")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.values.get(key, default)
        if type(value) is not bool:
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.values.get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a text")
        return value

    def part(self, key: str) -> dict[str, Any]:
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return value


def parse_config(values: dict[str, Any], file: str) -> ModelConfig:
    """The model that config.json describes. Unsupported if kvart has no such model, Corrupt for senseless values."""
    fields = _Fields(values, file)
    arch = _architecture(fields)
    _refuse_what_the_decoder_lacks(fields, arch)
    n_embd = fields.count("hidden_size", 1 << 20)
    n_heads = fields.count("num_attention_heads", 4096)
    n_kv_heads = fields.count("num_key_value_heads", 4096)
    if n_heads % n_kv_heads:
        raise fields.wrong("num_key_value_heads", f"a divisor of num_attention_heads, {n_heads}")
    names_head_dim = "head_dim" in fields.values or arch == "qwen3"
    if not names_head_dim and n_embd % n_heads:
        raise fields.wrong("num_attention_heads", f"a divisor of hidden_size, {n_embd}")
    # 128 is what transformers takes for a Qwen3 whose config.json does not say.
    head_dim = fields.count("head_dim", 1024, 128 if arch == "qwen3" else n_embd // n_heads)
    if head_dim % 8:
        raise fields.wrong("head_dim", "a multiple of 8")
    n_ff = fields.count("intermediate_size", 1 << 24)
    for key, value in (("hidden_size", n_embd), ("intermediate_size", n_ff)):
        if value % 32:
            raise fields.wrong(key, "a multiple of 32")
    n_ctx = fields.count("max_position_embeddings", 1 << 31)
    rope, base = _rope(fields)
    return ModelConfig(
        arch=arch,
        n_layers=fields.count("num_hidden_layers", 1024),
        n_embd=n_embd,
        n_ff=n_ff,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        names_head_dim=names_head_dim,
        n_vocab=fields.count("vocab_size", 1 << 24),
        n_ctx=n_ctx,
        norm_eps=fields.positive("rms_norm_eps", 1e-6),
        rope_base=base,
        tied=fields.flag("tie_word_embeddings"),
        **_scaling(rope, fields, n_ctx),
    )


def _architecture(fields: _Fields) -> str:
    """qwen2 or qwen3; a refusal names what was found."""
    names = fields.values.get("architectures", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise fields.wrong("architectures", "a list of names")
    arch = fields.text("model_type", "")
    if not arch and not names:
        raise Corrupt(
            f"{fields.file} has neither model_type nor architectures: not the config of a model", file=fields.file
        )
    found = f"{fields.file} describes a model of type {arch or '?'} ({', '.join(names) or 'no architectures'})"
    if arch in _MIXTURES:
        message = f"{found}: a mixture of experts, which kvart's decoder does not run yet; kvart converts {_SUPPORTED}"
        raise Unsupported(message, file=fields.file)
    if arch not in _ARCHITECTURES or (names and names != [_ARCHITECTURES[arch]]):
        raise Unsupported(f"{found}; kvart converts {_SUPPORTED}", file=fields.file)
    return arch


def _refuse_what_the_decoder_lacks(fields: _Fields, arch: str) -> None:
    quantization = fields.part("quantization_config")
    if quantization:
        method = quantization.get("quant_method", "an unknown method")
        raise Unsupported(
            f"{fields.file}: the weights are quantized already ({method}); expected a checkpoint in float32, "
            "float16 or bfloat16, which the publisher has beside it",
            file=fields.file,
        )
    layer_types = fields.values.get("layer_types", [])
    slides = fields.flag("use_sliding_window") or (
        isinstance(layer_types, list) and set(map(str, layer_types)) - {"full_attention"}
    )
    if slides:
        raise Unsupported(
            f"{fields.file}: layers with sliding-window attention, which kvart does not run", file=fields.file
        )
    act = fields.text("hidden_act", "silu")
    if act != "silu":
        raise Unsupported(f"{fields.file}: hidden_act is {act!r}; kvart runs silu", file=fields.file)
    if arch == "qwen3" and fields.flag("attention_bias"):
        raise Unsupported(
            f"{fields.file}: a Qwen3 with attention_bias, which the qwen3 of GGUF lacks", file=fields.file
        )
    if fields.values.get("partial_rotary_factor", 1.0) != 1.0:
        raise Unsupported(f"{fields.file}: partial_rotary_factor: RoPE over a part of a head", file=fields.file)


def _rope(fields: _Fields) -> tuple[_Fields, float]:
    """The object that tells the scaling, and the base: at top level, or in rope_parameters (transformers 5)."""
    key = "rope_parameters" if fields.part("rope_parameters") else "rope_scaling"
    rope = _Fields(fields.part(key), fields.file, f"{key}: ")
    base = rope if "rope_theta" in rope.values else fields
    # 10000 is what transformers takes where nothing is said.
    return rope, base.positive("rope_theta", 10000.0)


def _scaling(rope: _Fields, fields: _Fields, n_ctx: int) -> dict[str, Any]:
    """The fields of ModelConfig that hold the scaling: none, linear_factor or yarn."""
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "default":
        return {}
    if kind == "linear":
        return {"linear_factor": rope.positive("factor")}
    if kind != "yarn":
        raise Unsupported(f"{rope.file}: RoPE scaling {kind!r}; kvart converts linear and yarn", file=rope.file)
    if "mscale" in rope.values or "mscale_all_dim" in rope.values or not rope.flag("truncate", True):
        raise Unsupported(
            f"{rope.file}: YaRN with mscale or without truncate, which GGUF's qwen models lack", file=rope.file
        )
    factor = rope.positive("factor")
    built_in = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    # attention_factor of transformers is the whole factor, GGUF's multiplies the built-in one.
    attn_factor = rope.positive("attention_factor", built_in) / built_in
    where = rope if "original_max_position_embeddings" in rope.values else fields
    return {
        "yarn": YarnScaling(
            factor=factor,
            original_ctx=where.count("original_max_position_embeddings", 1 << 31, n_ctx),
            attn_factor=None if abs(attn_factor - 1) < 1e-6 else attn_factor,
            beta_fast=rope.positive("beta_fast") if "beta_fast" in rope.values else None,
            beta_slow=rope.positive("beta_slow") if "beta_slow" in rope.values else None,
        )
    }

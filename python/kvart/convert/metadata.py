"""The metadata of the GGUF file, under the keys that llama.cpp's converter writes."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .config import ModelConfig
from .tokenizer import Vocabulary

if TYPE_CHECKING:
    import gguf

_MAX_CARD_BYTES = 1 << 20


def add_metadata(
    writer: gguf.GGUFWriter,
    directory: Path,
    config: ModelConfig,
    vocabulary: Vocabulary,
    n_parameters: int,
    file_type: int,
    adapter: str | None,
) -> list[str]:
    """Everything but the tensors; returns notes on what was left out."""
    import gguf

    writer.add_type(gguf.GGUFType.MODEL)
    notes = _add_general(writer, directory, n_parameters, adapter)
    _add_sizes(writer, config)
    writer.add_file_type(file_type)
    _add_vocabulary(writer, vocabulary)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    return notes


def _add_general(writer: gguf.GGUFWriter, directory: Path, n_parameters: int, adapter: str | None) -> list[str]:
    """Name, licence and so on, where the gguf package finds them: model card, config.json, name of the directory."""
    import gguf

    directory = directory.resolve()
    notes = []
    card = directory / "README.md"
    try:
        readable = not card.exists() or card.stat().st_size <= _MAX_CARD_BYTES
        found = gguf.Metadata.load(model_path=directory if readable else None, total_params=n_parameters)
    except Exception as error:  # the card is YAML by people, and says nothing that the model needs
        notes.append(f"README.md is left out, for it can't be read: {' '.join(str(error).split())[:200]}")
        found = gguf.Metadata()
    for field in dataclasses.fields(found):
        setattr(found, field.name, _fitting(str(field.type), getattr(found, field.name)))
    if found.name is None:
        by_directory = gguf.Metadata.apply_metadata_heuristic(gguf.Metadata(), None, None, directory, n_parameters)
        found.name = by_directory.name or "model"
    if adapter is not None:
        found.name += f" + {adapter}"
    if found.size_label is None:
        found.size_label = gguf.size_label(n_parameters, n_parameters, 0, 0)
    found.set_gguf_meta_model(writer)
    return notes


def _fitting(kind: str, value: Any) -> Any:
    """The value where its type is what the field has; None where it is another: then the key is left out."""
    if kind == "Optional[int]":
        return value if type(value) is int and abs(value) < 2**31 else None
    if kind == "Optional[float]":
        return float(value) if type(value) in (int, float) and abs(value) < 1e30 else None
    if kind == "Optional[str]":
        items = value if isinstance(value, list) else [value]  # a licence may be a list
        return ",".join(filter(_is_text, items)) or None
    if not isinstance(value, list):
        return None
    if kind == "Optional[list[str]]":
        return list(filter(_is_text, value)) or None
    entries = [
        {k: v for k, v in entry.items() if _is_text(k) and _is_text(v)} for entry in value if isinstance(entry, dict)
    ]
    return list(filter(None, entries)) or None


def _is_text(value: Any) -> bool:
    """Whether it is a text that has a form in UTF-8."""
    return isinstance(value, str) and value.encode("utf-8", "ignore").decode() == value


def _add_sizes(writer: gguf.GGUFWriter, c: ModelConfig) -> None:
    import gguf

    writer.add_block_count(c.n_layers)
    writer.add_context_length(c.n_ctx)
    writer.add_embedding_length(c.n_embd)
    writer.add_feed_forward_length(c.n_ff)
    writer.add_head_count(c.n_heads)
    writer.add_head_count_kv(c.n_kv_heads)
    writer.add_rope_freq_base(c.rope_base)
    writer.add_layer_norm_rms_eps(c.norm_eps)
    if c.names_head_dim:
        writer.add_key_length(c.head_dim)
        writer.add_value_length(c.head_dim)
    if c.linear_factor is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(c.linear_factor)
    if c.yarn is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(c.yarn.factor)
        writer.add_rope_scaling_orig_ctx_len(c.yarn.original_ctx)
        if c.yarn.attn_factor is not None:
            writer.add_rope_scaling_attn_factors(c.yarn.attn_factor)
        if c.yarn.beta_fast is not None:
            writer.add_rope_scaling_yarn_beta_fast(c.yarn.beta_fast)
        if c.yarn.beta_slow is not None:
            writer.add_rope_scaling_yarn_beta_slow(c.yarn.beta_slow)


def _add_vocabulary(writer: gguf.GGUFWriter, v: Vocabulary) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(v.tokens)
    writer.add_token_types(v.types)
    writer.add_token_merges(v.merges)
    add = {"eos": writer.add_eos_token_id, "pad": writer.add_pad_token_id, "bos": writer.add_bos_token_id}
    for name, number in v.special_ids.items():
        add[name](number)
    if v.add_bos is not None:
        writer.add_add_bos_token(v.add_bos)
    _add_chat_templates(writer, v.chat_templates)


def _add_chat_templates(writer: gguf.GGUFWriter, templates: dict[str, str]) -> None:
    import gguf

    named = {re.sub("[^a-zA-Z0-9]", "_", name): text for name, text in templates.items() if name != "default"}
    for name, text in sorted(named.items()):
        writer.add_string(gguf.Keys.Tokenizer.CHAT_TEMPLATE_N.format(name=name), text)
    writer.add_array(gguf.Keys.Tokenizer.CHAT_TEMPLATES, sorted(named))
    writer.add_string(gguf.Keys.Tokenizer.CHAT_TEMPLATE, templates.get("default", ""))

"""The shape of a model: what its memory and its speed follow from. From a file, a checkpoint, or a table of known ones.

The table, shapes.json, holds the dense models of the Qwen2.5 and Qwen3 families, from their config.json; each entry
names its source, and its parameters are the published number, so that a wrong row does not add up.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import NotFound

# What does not change the shape: makers, variants, formats.
_VARIANT = re.compile(r"-(instruct|base|chat|coder|math|gguf|awq|thinking|2507)\b")


@dataclass(frozen=True)
class Tensor:
    """A tensor of a model, as GGUF names it. rows: 0 for a vector. n_layers tensors of a kind differ by name only."""

    name: str
    rows: int
    columns: int

    @property
    def values(self) -> int:
        return max(self.rows, 1) * self.columns

    @property
    def shape(self) -> tuple[int, ...]:
        """As numpy has it, the columns last."""
        return (self.rows, self.columns) if self.rows else (self.columns,)


@dataclass(frozen=True)
class Shape:
    """A dense model of the Qwen family, as far as bytes and operations go. tied: the embedding table is the head."""

    architecture: str  # "qwen2" or "qwen3"
    n_layers: int
    n_embd: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    n_ff: int
    n_vocab: int
    n_ctx_train: int
    tied: bool

    def tensors(self) -> list[Tensor]:
        """All tensors that the decoder wants (cpp/model/weights.cc), and no others."""
        q_rows, kv_rows = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        tensors = [Tensor("token_embd.weight", self.n_vocab, self.n_embd)]
        for layer in range(self.n_layers):
            prefix = f"blk.{layer}."
            matrices = [
                ("attn_q.weight", q_rows, self.n_embd),
                ("attn_k.weight", kv_rows, self.n_embd),
                ("attn_v.weight", kv_rows, self.n_embd),
                ("attn_output.weight", self.n_embd, q_rows),
                ("ffn_gate.weight", self.n_ff, self.n_embd),
                ("ffn_up.weight", self.n_ff, self.n_embd),
                ("ffn_down.weight", self.n_embd, self.n_ff),
            ]
            vectors = [("attn_norm.weight", self.n_embd), ("ffn_norm.weight", self.n_embd)]
            if self.architecture == "qwen2":
                vectors += [("attn_q.bias", q_rows), ("attn_k.bias", kv_rows), ("attn_v.bias", kv_rows)]
            else:
                vectors += [("attn_q_norm.weight", self.head_dim), ("attn_k_norm.weight", self.head_dim)]
            tensors += [Tensor(prefix + name, rows, columns) for name, rows, columns in matrices]
            tensors += [Tensor(prefix + name, 0, columns) for name, columns in vectors]
        tensors.append(Tensor("output_norm.weight", 0, self.n_embd))
        if not self.tied:
            tensors.append(Tensor("output.weight", self.n_vocab, self.n_embd))
        return tensors

    @property
    def parameters(self) -> int:
        return sum(tensor.values for tensor in self.tensors())

    @property
    def products_per_token(self) -> int:
        """Multiplications by weights for one token, without its logits: what prefill costs."""
        matrices = (tensor for tensor in self.tensors() if tensor.rows and tensor.name.startswith("blk."))
        return sum(tensor.values for tensor in matrices)


@functools.cache
def known() -> dict[str, dict[str, Any]]:
    """The rows of shapes.json by name: the fields of Shape, parameters, source."""
    rows: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("shapes.json").read_text("utf-8"))
    return rows


def find(name: str) -> Shape:
    """The shape of a model that is called like "qwen2.5-7b" or "Qwen/Qwen3-8B-Instruct". NotFound names near ones."""
    plain = _VARIANT.sub("", name.rpartition("/")[2].lower())
    row = known().get(plain)
    if row is None:
        near = difflib.get_close_matches(plain, known(), n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise NotFound(f"no model named {name!r}: {hint}shapes are known of {', '.join(known())}")
    return Shape(**{field: row[field] for field in Shape.__dataclass_fields__})

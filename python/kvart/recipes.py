"""Which number format each tensor of a model gets: one function, for `kvart convert` and `kvart quantize` alike.

A recipe names a format for the bulk of a model. Tensors in which an error costs more get a better one:

- Vectors (norms, biases), the routers of experts and whatever is no weight matrix stay f32.
- The head, and the embedding table where it is the head as well, get q6_k unless the recipe is better than that.
- The recipes "_m" (medium) follow the mixes of the GGUF ecosystem: attn_v and ffn_down, the two matrices whose errors
  go straight into the residual stream, get a better format in the first and the last eighth of the layers and in every
  third between; q2_k and q3_k_m spend some more on attn_v, ffn_down and attn_output in all layers.
- A format whose blocks do not divide a row is replaced by the nearest one in quality with blocks of 32 columns:
  q2_k and q3_k by q4_0, q4_k by q5_0, q5_k by q5_1, q6_k by q8_0; where 32 does not divide it either, by f16.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .errors import InvalidArgument

# What general.file_type calls a recipe (llama_ftype of the GGUF ecosystem).
FILE_TYPES = {
    "f32": 0,
    "f16": 1,
    "bf16": 32,
    "q8_0": 7,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 8,
    "q5_1": 9,
    "q2_k": 10,
    "q3_k_m": 12,
    "q4_k_m": 15,
    "q5_k_m": 17,
    "q6_k": 18,
}
RECIPES = tuple(FILE_TYPES)
HEADS = ("q4_0", "q6_k", "q8_0")

_BULK = {"q3_k_m": "q3_k", "q4_k_m": "q4_k", "q5_k_m": "q5_k"}  # the others are called like their format
_UNQUANTIZED = ("f32", "f16", "bf16")
_FALLBACK = {"q2_k": "q4_0", "q3_k": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}


def check(recipe: str, head: str | None = None) -> None:
    """InvalidArgument unless there is such a recipe, and a head only where it may be chosen."""
    if recipe not in FILE_TYPES:
        raise InvalidArgument(f"type: expected one of {', '.join(RECIPES)}, found {recipe!r}")
    if head is None:
        return
    if head not in HEADS:
        raise InvalidArgument(f"head: expected one of {', '.join(HEADS)}, found {head!r}")
    if recipe != "q4_0":
        raise InvalidArgument(f"head: the type of the head can be chosen with the type q4_0 only, found {recipe!r}")


def tensor_type(
    recipe: str, name: str, shape: Sequence[int], n_layers: int, tied: bool, head: str | None = None
) -> str:
    """The GGUF type, such as "q4_k", of the tensor `name` ("blk.0.attn_q.weight").

    shape: as numpy has it, the columns last. tied: the model has no output.weight, the embedding table is its head.
    head: the format of the head where the recipe is q4_0 (one of HEADS), instead of q6_k. InvalidArgument otherwise.
    """
    check(recipe, head)
    if len(shape) < 2 or not name.endswith(".weight") or "ffn_gate_inp" in name:
        return "f32"
    if recipe in _UNQUANTIZED:
        return recipe
    wanted = _wanted(recipe, name, n_layers, tied, head)
    return _that_divides(wanted, shape[-1])


def _wanted(recipe: str, name: str, n_layers: int, tied: bool, head: str | None) -> str:
    bulk = _BULK.get(recipe, recipe)
    if name == "output.weight" or (tied and name == "token_embd.weight"):
        return head or ("q8_0" if recipe == "q8_0" else "q6_k")
    match = re.match(r"blk\.(\d+)\.(attn_v|attn_output|ffn_down)", name)
    if match is None:
        return bulk
    layer, kind = int(match[1]), match[2]
    if recipe in ("q4_k_m", "q5_k_m"):
        return "q6_k" if kind != "attn_output" and _is_sensitive(layer, n_layers) else bulk
    if recipe == "q3_k_m":
        return _of_q3_k_m(kind, layer, n_layers)
    if recipe == "q2_k":
        return "q4_k" if kind == "attn_v" else "q3_k"
    return bulk


def _of_q3_k_m(kind: str, layer: int, n_layers: int) -> str:
    if kind == "attn_output":
        return "q4_k"
    if kind == "attn_v":
        return "q5_k" if layer < 2 else "q4_k"
    if layer < n_layers // 16:
        return "q5_k"
    return "q4_k" if _is_sensitive(layer, n_layers) else "q3_k"


def _is_sensitive(layer: int, n_layers: int) -> bool:
    """In the first or the last eighth of the layers, or every third between."""
    eighth = n_layers // 8
    return layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2


def _that_divides(wanted: str, columns: int) -> str:
    if columns % 256 and wanted in _FALLBACK:
        wanted = _FALLBACK[wanted]
    return "f16" if columns % 32 else wanted

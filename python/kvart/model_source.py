"""A model as a file tells it, before anything is loaded: metadata, the list of tensors, small tensors on demand.

From a GGUF file, whole or split, or from a checkpoint directory. Models that kvart does not run are read as well, as
far as they go: `refusal` says why not. Nothing here trusts a number of a file.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _core, manifest
from .errors import Error, InvalidArgument, NotFound, Unsupported, check_path
from .shapes import Shape

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .convert.checkpoint import Checkpoint

# A vector of a layer is far smaller; what claims to be longer is not read.
_MOST_VALUES = 1 << 20
_BYTE_LEVEL_BPE = "gpt2"  # as GGUF calls it

_SIZES = {
    "n_layers": "block_count",
    "n_embd": "embedding_length",
    "n_heads": "attention.head_count",
    "n_kv_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "n_ff": "feed_forward_length",
    "n_ctx_train": "context_length",
}
# What other attention than plain causal softmax says of itself in GGUF, and the value that means nothing.
_OTHER_ATTENTION = {
    "attention.sliding_window": ("a sliding window of {} tokens", 0),
    "attention.max_alibi_bias": ("ALiBi with a bias of up to {}", 0.0),
    "attn_logit_softcapping": ("scores capped at {}", 0.0),
    "attention.clamp_kqv": ("queries, keys and values clamped at {}", 0.0),
    "attention.causal": ("causal: {}", True),
}


@dataclass(frozen=True)
class TensorInfo:
    """name as GGUF has it; shape as numpy has it, the columns last; bytes as they are in the file."""

    name: str
    type: str
    shape: tuple[int, ...]
    bytes: int

    @property
    def values(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass
class ModelSource:
    """What is known of a model. None where a file does not say, or says what makes no sense."""

    kind: str  # "gguf" or "checkpoint"
    path: str
    bytes: int
    origin: dict[str, Any]  # of the kind's own: version and parts, or shards
    name: str | None
    architecture: str
    sizes: dict[str, int | None]
    tied: bool | None
    rope: dict[str, Any]  # base, scaling, factor, original_ctx
    refusal: str | None  # why kvart does not run it
    tokenizer: dict[str, Any]  # kind, pre, n_tokens, streams, problem
    template: str | None
    tensors: list[TensorInfo]
    values: Callable[[str], npt.NDArray[np.float32]]  # of a small tensor by its GGUF name
    n_experts: int | None = None
    other_attention: list[str] = field(default_factory=list)  # in words

    @property
    def shape(self) -> Shape | None:
        """Where all sizes are known and in the ranges that kvart takes."""
        sizes = self.sizes
        most = {"n_layers": 1024, "n_heads": 4096, "n_kv_heads": 4096, "head_dim": 1024}
        if self.tied is None or any(
            value is None or not 1 <= value <= most.get(k, 1 << 31) for k, value in sizes.items()
        ):
            return None
        known = {key: value for key, value in sizes.items() if value is not None}
        if known["head_dim"] % 8 or known["n_heads"] % known["n_kv_heads"]:
            return None
        return Shape(architecture=self.architecture, tied=self.tied, **known)


def read(name_or_path: str) -> ModelSource:
    """The model of a name of the manifest, a GGUF file (the first part of a split one) or a checkpoint directory.

    NotFound, Corrupt, InvalidArgument, Io: nothing is there, or it is broken.
    """
    path = Path(check_path(name_or_path, "model"))
    if name_or_path not in manifest.entries() and path.is_dir():
        if not (path / "config.json").exists() and (files := sorted(path.glob("*.gguf"))):
            message = f"{path} holds no config.json, but {files[0].name}: give the GGUF file itself"
            raise InvalidArgument(message, file=str(path))
        return _of_checkpoint(path)
    return _of_gguf(manifest.resolve(name_or_path))


def _of_gguf(path: str) -> ModelSource:
    file = _core.GgufFile(path)
    tensors = [TensorInfo(t.name, t.type, tuple(reversed(t.dims)), t.bytes) for t in file.tensors]
    by_name = {tensor.name: tensor for tensor in tensors}
    architecture = _text(file, "general.architecture") or "?"
    table = by_name.get("token_embd.weight")
    sizes = {key: _count(file, f"{architecture}.{name}") for key, name in _SIZES.items()}
    if sizes["head_dim"] is None and sizes["n_embd"] and sizes["n_heads"]:
        sizes["head_dim"] = sizes["n_embd"] // sizes["n_heads"]
    sizes["n_kv_heads"] = sizes["n_kv_heads"] or sizes["n_heads"]
    sizes["n_vocab"] = table.shape[0] if table and len(table.shape) == 2 else None
    tokenizer = _gguf_tokenizer(file)

    def values(name: str) -> npt.NDArray[np.float32]:
        tensor = by_name.get(name)
        if tensor is None or tensor.values > _MOST_VALUES:
            raise NotFound(f"{path}: there is no vector {name}", file=path)
        return file.values(name)

    source = ModelSource(
        kind="gguf",
        path=path,
        bytes=file.file_bytes,
        origin={"version": file.version, "parts": 1 + max((t.part for t in file.tensors), default=0)},
        name=_text(file, "general.name"),
        architecture=architecture,
        sizes=sizes,
        tied="output.weight" not in by_name,
        rope=_gguf_rope(file, architecture),
        refusal=None,
        tokenizer=tokenizer,
        template=_text(file, "tokenizer.chat_template"),
        tensors=tensors,
        values=values,
        n_experts=_count(file, f"{architecture}.expert_count") or None,
        other_attention=_gguf_attention(file, architecture),
    )
    source.refusal = _gguf_refusal(file, source)
    return source


def _gguf_refusal(file: _core.GgufFile, source: ModelSource) -> str | None:
    """What the decoder would say, without loading the weights: its own reading of the metadata, then the tensors."""
    try:
        file.config()
    except Error as error:
        return error.message
    if source.shape is None:
        return "sizes in its metadata do not fit together"
    found = {tensor.name: tensor.shape for tensor in source.tensors}
    for tensor in source.shape.tensors():
        if tensor.name not in found:
            return f"tensor {tensor.name} is missing"
        if found[tensor.name] != tensor.shape:
            return f"tensor {tensor.name} has shape {found[tensor.name]}; wanted {tensor.shape}"
    problem: str | None = source.tokenizer["problem"]
    return problem


def _gguf_rope(file: _core.GgufFile, architecture: str) -> dict[str, Any]:
    prefix = f"{architecture}.rope."
    return {
        "base": _number(file, prefix + "freq_base"),
        "scaling": _text(file, prefix + "scaling.type") or "none",
        "factor": _number(file, prefix + "scaling.factor"),
        "original_ctx": _count(file, prefix + "scaling.original_context_length"),
    }


def _gguf_attention(file: _core.GgufFile, architecture: str) -> list[str]:
    found = []
    for key, (words, nothing) in _OTHER_ATTENTION.items():
        value = file.get(f"{architecture}.{key}")
        if value is not None and value != nothing:
            found.append(words.format(value))
    return found


def _gguf_tokenizer(file: _core.GgufFile) -> dict[str, Any]:
    model = _text(file, "tokenizer.ggml.model")
    tokens = file.get("tokenizer.ggml.tokens")
    result = {
        "kind": "byte-level BPE" if model == _BYTE_LEVEL_BPE else model,
        "pre": _text(file, "tokenizer.ggml.pre"),
        "n_tokens": len(tokens) if isinstance(tokens, list) else None,
        "streams": True,
        "problem": None,
    }
    try:
        _core.Tokenizer(file.path)
    except Error as error:
        result |= {"streams": False, "problem": error.message}
    return result


def _text(file: _core.GgufFile, key: str) -> str | None:
    value = file.get(key)
    return value if isinstance(value, str) else None


def _count(file: _core.GgufFile, key: str) -> int | None:
    """A count; of a list with one for each layer, the one that all share."""
    value = file.get(key)
    if isinstance(value, list) and value and all(item == value[0] for item in value):
        value = value[0]
    return value if type(value) is int and value >= 0 else None


def _number(file: _core.GgufFile, key: str) -> float | None:
    value = file.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _of_checkpoint(directory: Path) -> ModelSource:
    from .convert.checkpoint import Checkpoint
    from .convert.files import read_json

    if importlib.util.find_spec("gguf") is None:
        raise NotFound("checkpoints need the package gguf, which is not installed: pip install 'kvart[convert]'")
    try:
        with Checkpoint(directory) as checkpoint:
            return _of_whole_checkpoint(directory, checkpoint)
    except Unsupported as error:
        return _of_config(directory, read_json(directory / "config.json"), error.message)


def _of_whole_checkpoint(directory: Path, checkpoint: Checkpoint) -> ModelSource:
    config = checkpoint.config
    weights = {weight.name: weight for weight in checkpoint.weights}
    tensors = [
        TensorInfo(
            w.name, w.tensor.dtype.lower(), w.shape, w.tensor.n_rows * w.tensor.n_columns * _item_bytes(w.tensor.dtype)
        )
        for w in checkpoint.weights
    ]
    # Read now: the files are closed once this returns.
    vectors: dict[str, npt.NDArray[np.float32]] = {
        name: w.tensor.rows(0, 1)[0] for name, w in weights.items() if len(w.shape) == 1 and "attn_" in name
    }
    rope: dict[str, Any] = {"base": config.rope_base, "scaling": "none", "factor": None, "original_ctx": None}
    if config.linear_factor is not None:
        rope |= {"scaling": "linear", "factor": config.linear_factor}
    if config.yarn is not None:
        rope |= {"scaling": "yarn", "factor": config.yarn.factor, "original_ctx": config.yarn.original_ctx}
    tokenizer, template = _checkpoint_tokenizer(directory, config.n_vocab)

    def values(name: str) -> npt.NDArray[np.float32]:
        if name not in vectors:
            raise NotFound(f"{directory}: there is no vector {name}", file=str(directory))
        return vectors[name]

    files = {weight.tensor.file.path for weight in checkpoint.weights}
    return ModelSource(
        kind="checkpoint",
        path=str(directory),
        bytes=sum(file.stat().st_size for file in files),
        origin={"files": len(files)},
        name=directory.name,
        architecture=config.arch,
        sizes={
            "n_layers": config.n_layers,
            "n_embd": config.n_embd,
            "n_heads": config.n_heads,
            "n_kv_heads": config.n_kv_heads,
            "head_dim": config.head_dim,
            "n_ff": config.n_ff,
            "n_ctx_train": config.n_ctx,
            "n_vocab": config.n_vocab,
        },
        tied=config.tied,
        rope=rope,
        refusal=tokenizer["problem"],
        tokenizer=tokenizer,
        template=template,
        tensors=tensors,
        values=values,
    )


def _checkpoint_tokenizer(directory: Path, n_vocab: int) -> tuple[dict[str, Any], str | None]:
    from .convert.tokenizer import read_vocabulary

    try:
        vocabulary = read_vocabulary(directory, n_vocab)
    except (Unsupported, NotFound) as error:
        return {"kind": None, "pre": None, "n_tokens": None, "streams": False, "problem": error.message}, None
    fields = {
        "kind": "byte-level BPE",
        "pre": "qwen2",
        "n_tokens": len(vocabulary.tokens),
        "streams": True,
        "problem": None,
    }
    return fields, vocabulary.chat_templates.get("default")


def _of_config(directory: Path, config: dict[str, Any], refusal: str) -> ModelSource:
    """What config.json says of a model that kvart does not convert."""

    def count(*keys: str) -> int | None:
        values = (config.get(key) for key in keys)
        return next((value for value in values if type(value) is int and value >= 0), None)

    n_embd, n_heads = count("hidden_size"), count("num_attention_heads")
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaling = scaling if isinstance(scaling, dict) else {}
    base = config.get("rope_theta", scaling.get("rope_theta"))
    files = sorted(directory.glob("*.safetensors"))

    def values(name: str) -> npt.NDArray[np.float32]:
        raise NotFound(f"{directory}: {name} was not read", file=str(directory))

    return ModelSource(
        kind="checkpoint",
        path=str(directory),
        bytes=sum(file.stat().st_size for file in files),
        origin={"files": len(files)},
        name=directory.name,
        architecture=str(config.get("model_type", "?"))[:64],
        sizes={
            "n_layers": count("num_hidden_layers"),
            "n_embd": n_embd,
            "n_heads": n_heads,
            "n_kv_heads": count("num_key_value_heads", "num_attention_heads"),
            "head_dim": count("head_dim") or (n_embd // n_heads if n_embd and n_heads else None),
            "n_ff": count("intermediate_size"),
            "n_ctx_train": count("max_position_embeddings"),
            "n_vocab": count("vocab_size"),
        },
        tied=config.get("tie_word_embeddings") is True,
        rope={
            "base": float(base) if isinstance(base, (int, float)) else None,
            "scaling": str(scaling.get("rope_type", scaling.get("type", "none")))[:64],
            "factor": None,
            "original_ctx": None,
        },
        refusal=refusal,
        tokenizer={
            "kind": None,
            "pre": None,
            "n_tokens": None,
            "streams": False,
            "problem": "not read: another family",
        },
        template=None,
        tensors=[],
        values=values,
        n_experts=count("num_experts", "num_local_experts", "n_routed_experts"),
        other_attention=["a sliding window"] if config.get("use_sliding_window") is True else [],
    )


def _item_bytes(dtype: str) -> int:
    return 4 if dtype == "F32" else 2

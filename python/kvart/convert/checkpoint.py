"""A checkpoint directory: its config, and every tensor that the model needs, found and its shape checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import Corrupt, InvalidArgument, NotFound, Unsupported
from .config import ModelConfig, parse_config
from .files import SafetensorsFile, Tensor, read_json, refuse_pickles

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_MOST_NAME = 200
# Tables that old checkpoints hold and that follow from the config.
_COMPUTED = (".rotary_emb.inv_freq", ".attn.masked_bias", ".attn.bias")


@dataclass(frozen=True)
class Weight:
    """One tensor of the model. shape: (rows, columns), or (n,) of a norm or a bias."""

    hf_name: str  # "model.layers.0.self_attn.q_proj.weight"
    name: str  # as GGUF calls it: "blk.0.attn_q.weight"
    shape: tuple[int, ...]
    tensor: Tensor

    @property
    def module(self) -> str:
        """The module that owns it: "model.layers.0.self_attn.q_proj"."""
        return self.hf_name.rpartition(".")[0]


class Checkpoint:
    """config: the model. weights: what it needs, ordered by the name in the checkpoint. Close it, or use `with`."""

    def __init__(self, directory: Path) -> None:
        """NotFound, Corrupt or Unsupported where this is no whole checkpoint of a model that kvart runs."""
        self.directory = _check_directory(directory)
        config = directory / "config.json"
        if not config.exists() and (directory / "adapter_config.json").exists():
            message = f"{directory} holds a LoRA adapter, not a model: convert its base model and give this with --lora"
            raise InvalidArgument(message, file=str(directory))
        self.config: ModelConfig = parse_config(read_json(config), str(config))
        self._files: list[SafetensorsFile] = []
        try:
            self.weights = self._match(self._find_tensors())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for file in self._files:
            file.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def n_parameters(self) -> int:
        return sum(weight.tensor.n_rows * weight.tensor.n_columns for weight in self.weights)

    def _open(self, path: Path) -> dict[str, Tensor]:
        file = SafetensorsFile(path)
        self._files.append(file)
        return file.tensors

    def _find_tensors(self) -> dict[str, Tensor]:
        if (self.directory / _SINGLE).exists():
            return self._open(self.directory / _SINGLE)
        if (self.directory / _INDEX).exists():
            return self._open_shards(self.directory / _INDEX)
        shards = sorted(path.name for path in self.directory.glob("*.safetensors"))
        if not shards:
            refuse_pickles(self.directory, _SINGLE)
        beside = f", but {', '.join(shards[:3])}: the index tells which shards there must be" if shards else ""
        raise NotFound(f"{self.directory} has neither {_SINGLE} nor {_INDEX}{beside}", file=str(self.directory))

    def _open_shards(self, index: Path) -> dict[str, Tensor]:
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict) or not places or not all(isinstance(place, str) for place in places.values()):
            raise Corrupt(f"{index}: expected a weight_map of tensors to file names", file=str(index))
        names = sorted(set(places.values()))
        for name in names:
            if Path(name).name != name or not name.endswith(".safetensors") or len(name) > _MOST_NAME:
                raise Corrupt(
                    f"{index}: expected the name of a .safetensors file beside it, found {name[:80]!r}", file=str(index)
                )
        missing = [name for name in names if not (self.directory / name).exists()]
        if missing:
            message = f"{self.directory}: {len(missing)} of {len(names)} shards are missing: {', '.join(missing[:5])}"
            raise NotFound(message, file=str(self.directory / missing[0]))
        tensors: dict[str, Tensor] = {}
        for name in names:
            for key, tensor in self._open(self.directory / name).items():
                if places.get(key) != name:
                    where = f"places it in {places[key]}" if key in places else "does not list it"
                    raise Corrupt(f"{name} holds tensor {key}, but the index {where}", file=str(index))
                tensors[key] = tensor
        absent = sorted(set(places) - set(tensors))
        if absent:
            message = f"the index places tensor {absent[0]} in {places[absent[0]]}, which does not hold it"
            more = f" ({len(absent)} such tensors)" if len(absent) > 1 else ""
            raise Corrupt(message + more, file=str(index))
        return tensors

    def _match(self, tensors: dict[str, Tensor]) -> list[Weight]:
        """Every tensor that the config calls for, and no other."""
        names = gguf_names(self.config)
        weights = []
        for hf_name, (name, shape) in sorted(names.items()):
            tensor = tensors.get(hf_name)
            if tensor is None:
                raise Corrupt(f"tensor {hf_name} is missing from {self.directory}", file=str(self.directory))
            if tensor.shape != shape:
                message = f"tensor {hf_name} has shape {list(tensor.shape)}; config.json calls for {list(shape)}"
                raise Corrupt(message, file=str(tensor.file.path))
            weights.append(Weight(hf_name, name, shape, tensor))
        for hf_name in sorted(set(tensors) - set(names)):
            if hf_name == "lm_head.weight" and self.config.tied:
                continue  # a copy: with tie_word_embeddings transformers takes the embeddings too
            if not hf_name.endswith(_COMPUTED):
                message = (
                    f"tensor {hf_name} has no place in a {self.config.arch} model of {self.config.n_layers} layers"
                )
                raise Unsupported(message, file=str(tensors[hf_name].file.path))
        return weights


def gguf_names(config: ModelConfig) -> dict[str, tuple[str, tuple[int, ...]]]:
    """{name in the checkpoint: (name in GGUF, shape)} of all tensors of the model."""
    import gguf

    shapes = _shapes(config)
    arch = {"qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}[config.arch]
    names = gguf.get_tensor_name_map(arch, config.n_layers)
    result = {}
    for hf_name, shape in shapes.items():
        name = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        assert name is not None, hf_name
        result[hf_name] = (name, shape)
    return result


def _shapes(c: ModelConfig) -> dict[str, tuple[int, ...]]:
    """{name in the checkpoint: shape}. transformers' Qwen2 and Qwen3; a Linear is (out, in)."""
    q_rows, kv_rows = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (c.n_vocab, c.n_embd)}
    shapes["model.norm.weight"] = (c.n_embd,)
    if not c.tied:
        shapes["lm_head.weight"] = (c.n_vocab, c.n_embd)
    for layer in range(c.n_layers):
        block = f"model.layers.{layer}."
        shapes[block + "input_layernorm.weight"] = shapes[block + "post_attention_layernorm.weight"] = (c.n_embd,)
        for name, rows in (("q", q_rows), ("k", kv_rows), ("v", kv_rows)):
            shapes[f"{block}self_attn.{name}_proj.weight"] = (rows, c.n_embd)
            if c.arch == "qwen2":
                shapes[f"{block}self_attn.{name}_proj.bias"] = (rows,)
            elif name != "v":
                shapes[f"{block}self_attn.{name}_norm.weight"] = (c.head_dim,)
        shapes[block + "self_attn.o_proj.weight"] = (c.n_embd, q_rows)
        shapes[block + "mlp.gate_proj.weight"] = shapes[block + "mlp.up_proj.weight"] = (c.n_ff, c.n_embd)
        shapes[block + "mlp.down_proj.weight"] = (c.n_embd, c.n_ff)
    return shapes


def _check_directory(directory: Path) -> Path:
    if not directory.exists():
        raise NotFound(f"{directory}: no such directory", file=str(directory))
    if not directory.is_dir():
        message = f"{directory} is a file; expected the directory of a checkpoint, with config.json and safetensors"
        raise InvalidArgument(message, file=str(directory))
    return directory

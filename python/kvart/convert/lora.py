"""A LoRA adapter as PEFT saves it, merged into the weights while they are converted.

W + scale · B·A in float32 (Hu et al. 2021), scale = alpha / r, or alpha / sqrt(r) with use_rslora (Kalajdzievski 2023).
A is (r, in), B is (out, r). What would change the model in another way is refused: a half-merged adapter is a wrong
model.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Corrupt, InvalidArgument, NotFound, Unsupported
from .files import SafetensorsFile, Tensor, read_json, refuse_pickles

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .checkpoint import Weight

_WEIGHTS = "adapter_model.safetensors"
_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")
_MAX_RANK = 8192


@dataclass(frozen=True)
class Update:
    """What is added to one matrix: scale · b·a."""

    a: npt.NDArray[np.float32]  # (r, in)
    b: Tensor  # (out, r)
    scale: float

    def add_to(self, rows: npt.NDArray[np.float32], start: int) -> npt.NDArray[np.float32]:
        """rows: (n, in), rows start … start + n of the matrix."""
        import numpy as np

        b = self.b.rows(start, start + len(rows))
        merged = rows + np.float32(self.scale) * (b @ self.a)
        if not np.isfinite(merged).all():
            raise Corrupt(f"the adapter's {self.b.name} makes infinite weights", file=str(self.b.file.path))
        return merged


class Adapter:
    """name: the directory's. updates: by module of the base model, such as "model.layers.0.self_attn.q_proj"."""

    def __init__(self, directory: Path, weights: list[Weight]) -> None:
        """Reads and checks all of it against the model's weights. NotFound, Corrupt, Unsupported, InvalidArgument."""
        if not directory.is_dir():
            kind = InvalidArgument if directory.exists() else NotFound
            raise kind(f"--lora: {directory}: no such directory", file=str(directory))
        self.name = directory.resolve().name
        config_path = directory / "adapter_config.json"
        config = read_json(config_path)
        _want_plain_lora(config, str(config_path))
        if not (directory / _WEIGHTS).exists():
            refuse_pickles(directory, _WEIGHTS)
        self._file = SafetensorsFile(directory / _WEIGHTS)
        try:
            self.updates = self._match(
                config, str(config_path), {weight.module: weight for weight in weights if len(weight.shape) == 2}
            )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    def _match(self, config: dict[str, Any], file: str, weights: dict[str, Weight]) -> dict[str, Update]:
        pairs: dict[str, dict[str, Tensor]] = {}
        for name, tensor in self._file.tensors.items():
            match = _NAME.fullmatch(name)
            if match is None:
                raise Unsupported(
                    f"tensor {name} is no matrix of a plain LoRA; kvart merges only these", file=str(self._file.path)
                )
            pairs.setdefault(match[1], {})[match[2]] = tensor
        if not pairs:
            raise Corrupt(f"{self._file.path} holds no tensors", file=str(self._file.path))
        return {module: self._update(module, pair, config, file, weights) for module, pair in sorted(pairs.items())}

    def _update(
        self, module: str, pair: dict[str, Tensor], config: dict[str, Any], file: str, weights: dict[str, Weight]
    ) -> Update:
        here = str(self._file.path)
        if len(pair) != 2:
            raise Corrupt(f"{module} has a lora_{next(iter(pair))} alone; expected lora_A and lora_B", file=here)
        weight = weights.get(module)
        if weight is None or module == "model.embed_tokens":
            raise Unsupported(f"the adapter changes {module}, which is no linear layer of this model", file=here)
        r = _of_module(config, "r", module, file)
        alpha = _of_module(config, "lora_alpha", module, file)
        if type(r) is not int or not 1 <= r <= _MAX_RANK:
            raise Corrupt(f"{file}: r: expected a number from 1 to {_MAX_RANK}, found {r!r}", file=file)
        if type(alpha) not in (int, float) or not math.isfinite(alpha):
            raise Corrupt(f"{file}: lora_alpha: expected a finite number, found {alpha!r}", file=file)
        rows, columns = weight.shape
        for tensor, wanted in ((pair["A"], (r, columns)), (pair["B"], (rows, r))):
            if tensor.shape != wanted:
                message = f"tensor {tensor.name} has shape {list(tensor.shape)}; {weight.hf_name} of shape"
                raise Corrupt(f"{message} {list(weight.shape)} and r = {r} call for {list(wanted)}", file=here)
        scale = alpha / (math.sqrt(r) if config.get("use_rslora") else r)
        return Update(pair["A"].rows(0, r), pair["B"], scale)


def _want_plain_lora(config: dict[str, Any], file: str) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise Unsupported(f"{file}: an adapter of type {kind!r}; kvart merges LORA", file=file)
    for key in (
        "use_dora",
        "fan_in_fan_out",
        "modules_to_save",
        "trainable_token_indices",
        "layer_replication",
        "lora_bias",
    ):
        if config.get(key):
            raise Unsupported(
                f"{file}: {key} is set, which is more than a plain LoRA; kvart merges only that", file=file
            )
    if config.get("bias", "none") != "none":
        raise Unsupported(f"{file}: bias is {config['bias']!r}: trained biases, which kvart does not merge", file=file)


def _of_module(config: dict[str, Any], key: str, module: str, file: str) -> Any:
    """config[key], unless rank_pattern or alpha_pattern has another for the module: by its name or the end of it."""
    which = {"r": "rank_pattern", "lora_alpha": "alpha_pattern"}[key]
    patterns = config.get(which) or {}
    if not isinstance(patterns, dict):
        raise Corrupt(f"{file}: {which}: expected an object, found {patterns!r}", file=file)
    for pattern, value in patterns.items():
        name = pattern.removeprefix("^").removesuffix("$").replace("\\.", ".")
        if not re.fullmatch(r"[\w.]+", name):  # PEFT takes any regular expression; those of strangers can hang
            raise Unsupported(f"{file}: {which}: expected names of modules, found the pattern {pattern!r}", file=file)
        if f".{module}".endswith(f".{name}"):
            return value
    return config.get(key)

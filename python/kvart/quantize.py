"""A GGUF file → the same model in another number format. Needs the package gguf, as `kvart convert` does.

The tensors stream through memory in slices of rows: decoded, encoded by the core, written. What kind each gets says
kvart.recipes; a tensor that has its kind already is copied as it is.
"""

from __future__ import annotations

import importlib.util
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _core, gguf_metadata, importance, manifest, recipes
from .errors import InvalidArgument, NotFound, check_path
from .options import integer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .convert.writer import Planned

_FLOATS = ("f32", "f16", "bf16")
# What says how the source is laid out; the new file says it of itself.
_NOT_COPIED = (
    "general.architecture",
    "general.alignment",
    "general.file_type",
    "general.quantization_version",
    "quantize.imatrix.",
    "split.",
)


def quantize(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    type: str,
    head: str | None = None,
    imatrix: str | os.PathLike[str] | None = None,
    threads: int = 0,
    progress: Callable[[float], object] | None = None,
) -> dict[str, Any]:
    """Writes the model of source, a GGUF file or the first of a split one, to out and returns a report.

    type: a recipe of kvart.recipes. head: the format of the head where the type is q4_0. imatrix: a file that
    `kvart eval imatrix` has made of the same model. threads: 0 takes all cores; the file does not depend on it.
    progress is called with the part done, 0 … 1; what it raises ends the work.

    Report: path, bytes, source, source_bytes, type, parameters, bits_per_weight, tensor_types {type: {tensors,
    parameters, bytes, bits_per_weight}}, imatrix {file, matrices} or None, notes, seconds. The file comes to be only
    when it is whole: on any error or interrupt nothing is left, and a file that was there before stays. Raises
    NotFound, Corrupt, Unsupported or InvalidArgument for what is wrong with the input, NoSpace and Io for the output.
    """
    started = time.monotonic()
    recipes.check(type, head)
    integer("threads", threads, 0, 256)
    if importlib.util.find_spec("gguf") is None:
        raise NotFound("quantizing needs the package gguf, which is not installed: pip install 'kvart[convert]'")
    import gguf

    from .convert.writer import atomically, check_output, write

    path, target = manifest.resolve(source), Path(check_path(out, "out"))
    check_output(target)
    _refuse_same(Path(path), target)
    file = _core.GgufFile(path)
    weights = None if imatrix is None else importance.load(imatrix)
    tensors = plan(file, type, head, weights, threads)
    writer = gguf.GGUFWriter(None, str(file.get("general.architecture", "")))
    gguf_metadata.copy(gguf_metadata.read(path), writer, _NOT_COPIED)
    writer.add_file_type(recipes.FILE_TYPES[type])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    if weights is not None:
        writer.add_string("quantize.imatrix.file", Path(weights.file).name)
        writer.add_uint32("quantize.imatrix.entries_count", len(weights.columns))
    with atomically(target) as fresh:
        try:
            write(writer, fresh, tensors, threads, progress or (lambda done: None))
        finally:
            writer.close()
        size = fresh.stat().st_size
    n_values = sum(tensor.n_values for tensor in tensors)
    return {
        "path": str(target),
        "bytes": size,
        "source": path,
        "source_bytes": file.file_bytes,
        "type": type,
        "parameters": n_values,
        "bits_per_weight": 8 * sum(tensor.n_bytes for tensor in tensors) / n_values,
        "tensor_types": _by_type(tensors),
        "imatrix": None if weights is None else {"file": weights.file, "matrices": len(weights.columns)},
        "notes": _notes(file, tensors),
        "seconds": time.monotonic() - started,
    }


def plan(
    file: _core.GgufFile, recipe: str, head: str | None, weights: importance.Importance | None, threads: int
) -> list[Planned]:
    """What is written: every tensor of the file with its new type, and where its rows come from."""
    from .convert.writer import Planned

    shapes = {tensor.name: tuple(reversed(tensor.dims)) for tensor in file.tensors}
    if weights is not None:
        weights.check(shapes)
    layers = [int(match[1]) for name in shapes if (match := re.match(r"blk\.(\d+)\.", name))]
    n_layers, tied = max(layers, default=-1) + 1, "output.weight" not in shapes
    planned = []
    for tensor in file.tensors:
        shape = shapes[tensor.name]
        kind = recipes.tensor_type(recipe, tensor.name, shape, n_layers, tied, head)
        raw, rows = _readers(file, tensor.name, tensor.type, threads)
        columns = None if weights is None else weights.of(tensor.name)
        planned.append(
            Planned(tensor.name, shape, kind, rows, raw=raw if kind == tensor.type else None, importance=columns)
        )
    return planned


def _readers(
    file: _core.GgufFile, name: str, kind: str, threads: int
) -> tuple[Callable[[int, int], npt.NDArray[np.uint8]], Callable[[int, int], npt.NDArray[np.float32]]]:
    """Functions for rows start … stop of a tensor: as they are, and decoded."""

    def raw(start: int, stop: int) -> npt.NDArray[np.uint8]:
        return _core.raw_rows(file, name, start, stop)

    def rows(start: int, stop: int) -> npt.NDArray[np.float32]:
        return _core.dequantize_rows(raw(start, stop), kind, threads)

    return raw, rows


def _refuse_same(source: Path, target: Path) -> None:
    """The output may be neither the input nor another part of it."""
    parts = [source]
    if match := re.fullmatch(r"(.*-)\d{5}(-of-\d{5}\.gguf)", source.name):
        names = [path for path in source.parent.iterdir() if path.name.startswith(match[1])]
        parts += [path for path in names if path.name.endswith(match[2])]
    if target.exists() and any(os.path.samefile(part, target) for part in parts):
        raise InvalidArgument(f"{target} is what is read: choose another name to write to", file=str(target))


def _by_type(tensors: Sequence[Planned]) -> dict[str, dict[str, Any]]:
    found = {}
    for kind in sorted({tensor.type for tensor in tensors}):
        of_kind = [tensor for tensor in tensors if tensor.type == kind]
        n_values, n_bytes = sum(tensor.n_values for tensor in of_kind), sum(tensor.n_bytes for tensor in of_kind)
        found[kind] = {
            "tensors": len(of_kind),
            "parameters": n_values,
            "bytes": n_bytes,
            "bits_per_weight": 8 * n_bytes / n_values,
        }
    return found


def _notes(file: _core.GgufFile, tensors: Sequence[Planned]) -> list[str]:
    old = {tensor.name: tensor.type for tensor in file.tensors}
    again = [old[tensor.name] for tensor in tensors if tensor.raw is None and old[tensor.name] not in _FLOATS]
    if not again or all(tensor.type in _FLOATS for tensor in tensors):
        return []
    types = ", ".join(f"{again.count(kind)} {kind}" for kind in sorted(set(again)))
    return [
        f"quantized a second time: {types}; the losses add up, so start from an f16 or bf16 file where there is one"
    ]

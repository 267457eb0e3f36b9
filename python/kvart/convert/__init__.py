"""A Qwen checkpoint as people download it → a GGUF file that kvart and llama.cpp load. Needs the extra `convert`."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import recipes
from ..errors import InvalidArgument, NotFound, check_path
from ..options import integer

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .checkpoint import Checkpoint
    from .lora import Adapter, Update
    from .writer import Planned

Rows = Callable[[int, int], "npt.NDArray[np.float32]"]
# Called with what is going on and the part of it that is done, 0 … 1.
Progress = Callable[[str, float], object]


def convert(
    directory: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    type: str = "q4_k_m",
    head: str | None = None,
    lora: str | os.PathLike[str] | None = None,
    verify: bool = True,
    check: bool = False,
    threads: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Converts the checkpoint in directory to the file out and returns a report.

    type: a recipe of kvart.recipes. head: the format of the head where the type is q4_0. lora: the directory of a PEFT
    adapter that is merged. verify: compare rows with the checkpoint and run the model. check: compare logits with
    transformers. threads: 0 takes all cores. What progress raises ends the conversion.

    Report: path, bytes, type, architecture, parameters, bits_per_weight, tensor_types {type: count}, lora, seconds,
    notes, verify and check (None where they were not asked for). The file comes to be only after all of that: on any
    error or interrupt nothing is left, and a file that was there before stays. Raises NotFound, Corrupt, Unsupported or
    InvalidArgument for what is wrong with the input, NoSpace and Io for the output.
    """
    started = time.monotonic()
    source, target = Path(check_path(directory, "directory")), Path(check_path(out, "out"))
    recipes.check(type, head)
    integer("threads", threads, 0, 256)
    _want_gguf()
    if check:
        if lora is not None:
            raise InvalidArgument("--check compares with the checkpoint as it is: leave --lora out")
        from .against import check_installed

        check_installed()

    from .checkpoint import Checkpoint
    from .lora import Adapter
    from .writer import check_output

    check_output(target)
    with Checkpoint(source) as checkpoint:
        adapter = None if lora is None else Adapter(Path(check_path(lora, "lora")), checkpoint.weights)
        try:
            report = _convert(
                checkpoint, target, type, head, adapter, verify, check, threads, progress or (lambda what, done: None)
            )
        finally:
            if adapter is not None:
                adapter.close()
    report["seconds"] = time.monotonic() - started
    return report


def _convert(
    checkpoint: Checkpoint,
    target: Path,
    recipe: str,
    head: str | None,
    adapter: Adapter | None,
    verify: bool,
    check: bool,
    threads: int,
    progress: Progress,
) -> dict[str, Any]:
    import gguf

    from . import verify as look
    from .metadata import add_metadata
    from .tokenizer import read_vocabulary
    from .writer import atomically, write

    config = checkpoint.config
    vocabulary = read_vocabulary(checkpoint.directory, config.n_vocab)
    tensors = plan(checkpoint, recipe, head, adapter)
    writer = gguf.GGUFWriter(None, config.arch)
    name = adapter.name if adapter is not None else None
    notes = add_metadata(
        writer, checkpoint.directory, config, vocabulary, checkpoint.n_parameters, recipes.FILE_TYPES[recipe], name
    )
    report: dict[str, Any] = {
        "path": str(target),
        "bytes": 0,
        "type": recipe,
        "architecture": config.arch,
        "parameters": checkpoint.n_parameters,
        "bits_per_weight": 8 * sum(tensor.n_bytes for tensor in tensors) / checkpoint.n_parameters,
        "tensor_types": _count([tensor.type for tensor in tensors]),
        "lora": None if adapter is None else {"name": name, "matrices": len(adapter.updates)},
        "notes": vocabulary.notes + notes,
        "verify": None,
        "check": None,
    }
    with atomically(target) as fresh:
        try:
            write(writer, fresh, tensors, threads, lambda done: progress("converting", done))
        finally:
            writer.close()
        look.check_structure(fresh, checkpoint.directory, tensors, vocabulary)
        if verify:
            report["verify"] = {
                "compared": look.compare_tensors(fresh, tensors, lambda done: progress("comparing", done)),
                "tokenizer": look.compare_tokenizers(fresh, checkpoint.directory / "tokenizer.json"),
                "run": look.run(fresh, threads, lambda done: progress("running", done)),
            }
        if check:
            from .against import compare_logits

            progress("comparing with transformers", 0.0)
            report["check"] = compare_logits(checkpoint.directory, fresh, recipe, threads)
        report["bytes"] = fresh.stat().st_size
    return report


def plan(checkpoint: Checkpoint, recipe: str, head: str | None, adapter: Adapter | None) -> list[Planned]:
    """What is written: every weight with its type, and where its rows come from."""
    from .writer import Planned

    config = checkpoint.config
    tensors = []
    for weight in checkpoint.weights:
        kind = recipes.tensor_type(recipe, weight.name, weight.shape, config.n_layers, config.tied, head)
        rows: Rows = weight.tensor.rows
        update = adapter.updates.get(weight.module) if adapter is not None and len(weight.shape) == 2 else None
        if update is not None:
            rows = _merged(rows, update)
        tensors.append(Planned(weight.name, weight.shape, kind, rows))
    return tensors


def _merged(rows: Rows, update: Update) -> Rows:
    return lambda start, stop: update.add_to(rows(start, stop), start)


def _count(names: list[str]) -> dict[str, int]:
    return {name: names.count(name) for name in sorted(set(names))}


def _want_gguf() -> None:
    if importlib.util.find_spec("gguf") is None:
        raise NotFound("converting needs the package gguf, which is not installed: pip install 'kvart[convert]'")

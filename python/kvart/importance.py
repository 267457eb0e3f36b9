"""Importance matrices: how much an error in each column of each weight matrix costs, measured over a text.

What counts is the mean square of what the column is multiplied with: so much of a squared error in a weight goes into
the output. The file is a GGUF of general.type "imatrix", as llama.cpp's tools write and read it: for a matrix `name`
the tensors `name.in_sum2` (1, columns), sums of squares, and `name.counts` (1, 1), inputs seen, both float32.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _core, manifest, options
from .errors import Corrupt, InvalidArgument, Unsupported, check_path

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .model import Model

_SUMS, _COUNTS = ".in_sum2", ".counts"
_ROWS = 64  # positions whose logits are held at once, as in kvart.evaluate


@dataclass(frozen=True)
class Importance:
    """columns: for every matrix that was seen (columns,) float32, the mean square of its inputs."""

    columns: dict[str, npt.NDArray[np.float32]]
    file: str

    def of(self, name: str) -> npt.NDArray[np.float32] | None:
        """None where the matrix has not been seen: nothing is known of it."""
        return self.columns.get(name)

    def check(self, shapes: dict[str, tuple[int, ...]]) -> None:
        """InvalidArgument unless this is of a model with tensors of these names and shapes (the columns last)."""
        for name, values in self.columns.items():
            if name not in shapes:
                raise InvalidArgument(
                    f"{self.file}: of another model: it has {name}, the model has no such tensor", file=self.file
                )
            if shapes[name][-1] != len(values):
                message = f"{name} has {len(values)} columns in it, {shapes[name][-1]} in the model"
                raise InvalidArgument(f"{self.file}: of another model: {message}", file=self.file)


def measure(
    model_name: str | os.PathLike[str],
    text: str,
    out: str | os.PathLike[str],
    *,
    ctx: int = 512,
    threads: int = 0,
    progress: Callable[[float], object] | None = None,
) -> dict[str, Any]:
    """Runs the model over windows of ctx tokens of the text and writes the matrix to out, a .gguf file.

    Returns {path, bytes, matrices, tokens, windows, ctx}. A last part-window is left out. Raises InvalidArgument for a
    text of less than one window.
    """
    import gguf
    import numpy as np

    from .convert.writer import atomically, check_output
    from .model import Model

    target = Path(check_path(out, "out"))
    check_output(target)
    note = progress or (lambda done: None)
    model = Model(model_name, threads=threads, record_inputs=True)
    options.integer("ctx", ctx, 2, model.info.n_ctx_train)
    ids = model.encode(text, "the text")
    n_windows = len(ids) // ctx
    if n_windows == 0:
        raise InvalidArgument(f"the text has {len(ids)} tokens; one window of --ctx takes {ctx}")
    for first in range(0, n_windows * ctx, ctx):
        for done in _run_window(model, ids[first : first + ctx]):
            note((first + done) / (n_windows * ctx))
    found = {name: (sums, rows) for name, (sums, rows) in model.input_squares().items() if rows}

    writer = gguf.GGUFWriter(None, "imatrix")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", ["text"])
    writer.add_uint32("imatrix.chunk_count", n_windows)
    writer.add_uint32("imatrix.chunk_size", ctx)
    for name, (sums, rows) in sorted(found.items()):
        writer.add_tensor(name + _SUMS, sums.astype(np.float32)[None, :])
        writer.add_tensor(name + _COUNTS, np.full((1, 1), rows, np.float32))
    with atomically(target) as fresh:
        try:
            writer.write_header_to_file(fresh)
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()
        size = fresh.stat().st_size
    tokens = n_windows * ctx
    return {
        "path": str(target),
        "bytes": size,
        "matrices": len(found),
        "tokens": tokens,
        "windows": n_windows,
        "ctx": ctx,
    }


def _run_window(model: Model, tokens: list[int]) -> Iterator[int]:
    """Yields how many tokens are done. f16, because pages of integers are shared: what is found is not computed."""
    with model.session(kv="f16") as session:
        for start in range(0, len(tokens), _ROWS):
            session.append_logits(tokens[start : start + _ROWS])  # for the head has inputs only where logits are wanted
            yield min(start + _ROWS, len(tokens))


def load(path: str | os.PathLike[str]) -> Importance:
    """The matrix in a file. Raises NotFound, Corrupt, Unsupported for a file that is none."""
    import numpy as np

    name = check_path(path, "imatrix")
    file = _core.GgufFile(manifest.resolve(Path(name)))
    if file.get("general.type") != "imatrix":
        raise Unsupported(
            f"{name}: not an importance matrix: its general.type is {file.get('general.type')!r}", file=name
        )
    shapes = {tensor.name: tuple(reversed(tensor.dims)) for tensor in file.tensors}
    columns = {}
    for tensor, shape in shapes.items():
        if not tensor.endswith(_SUMS):
            continue
        matrix = tensor.removesuffix(_SUMS)
        counts = shapes.get(matrix + _COUNTS)
        if counts is None:
            raise Corrupt(f"{name}: {tensor} has no {_COUNTS} beside it", file=name)
        if int(np.prod(counts)) != 1 or int(np.prod(shape)) != shape[-1]:
            raise Unsupported(f"{name}: {matrix} is of several experts, which kvart does not read", file=name)
        sums, count = file.values(tensor).reshape(-1), float(file.values(matrix + _COUNTS).reshape(-1)[0])
        if not np.isfinite(sums).all() or (sums < 0).any() or not np.isfinite(count) or count < 0:
            raise Corrupt(f"{name}: {matrix} has sums or a count that are negative or no number", file=name)
        if count > 0 and sums.any():
            columns[matrix] = (sums / np.float32(count)).astype(np.float32)
    if not columns:
        raise Corrupt(f"{name}: it holds no sums of any matrix", file=name)
    return Importance(columns, name)

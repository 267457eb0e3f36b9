"""Writes the GGUF file: rows of a tensor at a time, into a file of another name that takes its place at the end.

The gguf package's writer does the header, the metadata and the list of tensors; the tensors follow in slices, because
its own way holds a whole one in memory, and the embedding of a 7B model has two gigabytes.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Error, InvalidArgument, Io, NoSpace, NotFound

if TYPE_CHECKING:
    import gguf
    import numpy as np
    import numpy.typing as npt

_SLICE_BYTES = 16 << 20  # of rows as float32
_LARGEST_F16 = 65504.0


@dataclass(frozen=True)
class Planned:
    """One tensor to be written. rows(start, stop) gives (stop - start, columns) float32; a vector is one row.

    raw: gives the same rows as bytes of the type, for a tensor that has it already; then rows is not called.
    importance: (columns,) float32, what a squared error costs in each, as _core.quantize_rows takes it.
    """

    name: str
    shape: tuple[int, ...]
    type: str  # as kvart calls it: "q4_0"
    rows: Callable[[int, int], npt.NDArray[np.float32]]
    raw: Callable[[int, int], npt.NDArray[np.uint8]] | None = None
    importance: npt.NDArray[np.float32] | None = None

    @property
    def n_columns(self) -> int:
        return self.shape[-1]

    @property
    def n_rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def n_values(self) -> int:
        return self.n_rows * self.n_columns

    @property
    def n_bytes(self) -> int:
        """In the file, without padding."""
        import gguf

        block, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[self.type.upper()]]
        return self.n_values // block * block_bytes


def check_output(path: Path) -> None:
    """InvalidArgument or NotFound where no GGUF file can come to be at path."""
    if path.suffix != ".gguf":
        raise InvalidArgument(f"{path}: expected the name of a GGUF file to write, such as model.gguf", file=str(path))
    if path.is_dir():
        raise InvalidArgument(f"{path} is a directory; expected the name of a file to write", file=str(path))
    if not path.parent.is_dir():
        raise NotFound(f"{path.parent}: no such directory to write {path.name} into", file=str(path))


def write(
    writer: gguf.GGUFWriter, path: Path, tensors: list[Planned], threads: int, report: Callable[[float], object]
) -> None:
    """Writes all into path, whole and on the disk. Raises NoSpace, Io, OSError; report gets the part done, 0 … 1."""
    import gguf
    import numpy as np

    for tensor in tensors:
        kind = gguf.GGMLQuantizationType[tensor.type.upper()]
        writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.n_bytes, raw_dtype=kind)
    _check_space(path, sum(tensor.n_bytes for tensor in tensors))
    writer.write_header_to_file(path)
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    [file] = writer.fout
    writer.write_padding(file, file.tell())
    total = sum(tensor.n_values for tensor in tensors)
    done = 0
    for tensor in tensors:
        step = max(1, _SLICE_BYTES // (4 * tensor.n_columns))
        for start in range(0, tensor.n_rows, step):
            stop = min(start + step, tensor.n_rows)
            encoded = tensor.raw(start, stop) if tensor.raw else _encode(tensor, tensor.rows(start, stop), threads)
            file.write(encoded.data)
            done += (stop - start) * tensor.n_columns
            report(done / total)
        writer.write_padding(file, tensor.n_bytes)
    file.flush()
    os.fsync(file.fileno())


def _encode(tensor: Planned, rows: npt.NDArray[np.float32], threads: int) -> npt.NDArray[np.uint8]:
    import numpy as np

    from .. import _core

    if tensor.type not in ("f32", "bf16"):
        largest = float(np.abs(rows).max(initial=0.0))
        if largest > _LARGEST_F16:  # a float16 itself, or the scale of a block, would be infinite
            raise InvalidArgument(
                f"{tensor.name} holds {largest:g}, too large for {tensor.type}; choose the type bf16 or f32"
            )
    try:
        return _core.quantize_rows(rows, tensor.type, tensor.importance, threads)
    except InvalidArgument as error:
        raise InvalidArgument(f"{tensor.name}: {error}") from None


@contextlib.contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """A new, empty file beside path, which takes its place at the end; whatever is raised, it does not stay.

    Errors of the system are raised as NoSpace or Io.
    """
    try:
        fresh = _create_beside(path)
        try:
            yield fresh
            os.replace(fresh, path)
            _sync_directory(path.parent)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        if isinstance(error, Error):
            raise
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        message = f"writing {path}: {error.strerror or error}"
        raise (NoSpace if full else Io)(message, file=str(path)) from error


def _create_beside(path: Path) -> Path:
    while True:
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        with contextlib.suppress(FileExistsError):
            os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
            return fresh


def _sync_directory(directory: Path) -> None:
    folder = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _check_space(path: Path, need: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if free < need:
        message = f"{path.parent} has {free / 1e6:.0f} MB free; the file takes {need / 1e6:.0f} MB"
        raise NoSpace(message, file=str(path))

"""Files of a checkpoint, all of them hostile: JSON with a size limit, and safetensors read without a memory map.

The safetensors package maps a file, so one that shrinks meanwhile ends the process by SIGBUS, and its numpy side has no
bfloat16. Here a header is checked in full, then rows are read by position; a file that is cut short is an error.
Format: the safetensors specification (8 bytes of header length, a JSON header, the tensors without gaps).
"""

from __future__ import annotations

import json
import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ..errors import Corrupt, InvalidArgument, Io, NotFound, Unsupported

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_MAX_JSON_BYTES = 128 << 20  # a tokenizer.json has about 11 MB
_MAX_HEADER_BYTES = 100_000_000  # as the reference implementation has it
_MAX_DIMS = 8

# Bits of a value. Weights may be one of _FLOATS; the others are known so that a refusal can name them.
_BITS = {"F32": 32, "F16": 16, "BF16": 16, "F64": 64, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8}
_BITS |= {f"{kind}{bits}": bits for kind in "IU" for bits in (8, 16, 32, 64)}
_FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies: `offset` bytes into its file, rows last dimension fastest, little-endian."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: SafetensorsFile
    offset: int

    @property
    def n_rows(self) -> int:
        """A vector is one row."""
        return math.prod(self.shape[:-1])

    @property
    def n_columns(self) -> int:
        return self.shape[-1] if self.shape else 1

    def rows(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """(stop - start, n_columns) float32. Unsupported for a dtype other than F32, F16, BF16; Corrupt at NaN, ±Inf.

        The two are what a broken training run leaves behind; no format of blocks can hold them.
        """
        import numpy as np

        if self.dtype not in _FLOATS:
            message = f"tensor {self.name} has dtype {self.dtype}; expected one of {', '.join(_FLOATS)}"
            raise Unsupported(message, file=str(self.file.path))
        row_bytes = self.n_columns * _BITS[self.dtype] // 8
        data = self.file.read(self.offset + start * row_bytes, (stop - start) * row_bytes, f"tensor {self.name}")
        if self.dtype == "F32":
            values = np.frombuffer(data, "<f4").astype(np.float32, copy=False)
        elif self.dtype == "F16":
            values = np.frombuffer(data, "<f2").astype(np.float32)
        else:  # bfloat16 is the upper half of float32
            wide = np.frombuffer(data, "<u2").astype(np.uint32)
            wide <<= 16
            values = wide.view(np.float32)
        matrix = values.reshape(stop - start, self.n_columns)
        if not np.isfinite(matrix).all():
            row, column = (int(i[0]) for i in np.nonzero(~np.isfinite(matrix)))
            message = f"tensor {self.name} holds {matrix[row, column]} at row {start + row}, column {column}"
            raise Corrupt(f"{message}; expected finite weights", file=str(self.file.path))
        return matrix


class SafetensorsFile:
    """The tensors of one file by name. Corrupt where the header is not what the format says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open_regular(path)
        try:
            size = os.fstat(self._file.fileno()).st_size
            start, header = self._read_header(size)
            self.tensors = self._parse(header, start, size - start)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    def read(self, offset: int, count: int, what: str) -> bytearray:
        """count bytes; Corrupt where the file ends before."""
        data = bytearray(count)
        view = memoryview(data)
        done = 0
        try:
            self._file.seek(offset)
            while done < count and (n := self._file.readinto(view[done:])):  # type: ignore[attr-defined]
                done += n
        except OSError as error:
            raise Io(f"{self.path}: {error.strerror or error}", file=str(self.path)) from error
        if done < count:
            raise self._corrupt(f"{what} needs {count} bytes at byte {offset}; the file ends after {done}", offset)
        return data

    def _corrupt(self, message: str, offset: int | None = None) -> Corrupt:
        return Corrupt(f"{self.path}: {message}", file=str(self.path), offset=offset)

    def _read_header(self, size: int) -> tuple[int, dict[str, Any]]:
        """Where the tensors begin, and the header."""
        begin = bytes(self.read(0, min(size, 8), "the header"))
        if size < 8:
            raise self._corrupt(f"the file has {size} bytes; a safetensors file begins with 8 of header length", 0)
        n = int.from_bytes(begin, "little")
        if n > size - 8 and (begin[:4] == b"PK\x03\x04" or begin[:1] == b"\x80"):
            raise _refused_pickle(self.path)
        if n > size - 8:
            raise self._corrupt(
                f"the header claims {n} bytes; {size - 8} follow its length: no safetensors file, or cut short", 0
            )
        if n > _MAX_HEADER_BYTES:
            raise self._corrupt(f"the header claims {n} bytes; at most {_MAX_HEADER_BYTES} are read", 0)
        header = parse_json(
            bytes(self.read(8, n, "the header")), f"{self.path}: the header", str(self.path), unique=True
        )
        return 8 + n, header

    def _parse(self, header: dict[str, Any], start: int, size: int) -> dict[str, Tensor]:
        header.pop("__metadata__", None)
        spans = []
        tensors = {}
        for name, entry in header.items():
            dtype, shape, (begin, end) = self._check_entry(name, entry)
            if begin > end or end > size:
                message = f"tensor {name} lies at bytes {begin} to {end} of the data, which have {size}"
                raise self._corrupt(f"{message}: the file is cut short or its header is wrong")
            bits = math.prod(shape) * _BITS[dtype]
            if bits != 8 * (end - begin):
                raise self._corrupt(
                    f"tensor {name}: {dtype} of shape {list(shape)} takes {bits // 8} bytes, found {end - begin}"
                )
            spans.append((begin, end, name))
            tensors[name] = Tensor(name, dtype, shape, self, start + begin)
        at, before = 0, "the beginning"
        for begin, end, name in sorted(spans):
            if begin != at:
                kind = "overlaps" if begin < at else "leaves a gap after"
                raise self._corrupt(
                    f"tensor {name} at byte {begin} of the data {kind} {before}, which ends at byte {at}"
                )
            at, before = end, name
        if at != size:
            raise self._corrupt(f"the tensors take {at} bytes of data, the file has {size}")
        return tensors

    def _check_entry(self, name: str, entry: Any) -> tuple[str, tuple[int, ...], tuple[int, int]]:
        entry = entry if isinstance(entry, dict) else {}
        dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
        if not isinstance(dtype, str) or dtype not in _BITS:
            raise self._corrupt(f"tensor {name}: the header has the dtype {dtype!r}; known are {', '.join(_BITS)}")
        if not _is_counts(shape) or len(shape) > _MAX_DIMS:
            raise self._corrupt(f"tensor {name}: the header has the shape {shape!r}; expected a list of sizes")
        if not _is_counts(offsets) or len(offsets) != 2:
            raise self._corrupt(
                f"tensor {name}: the header has the data_offsets {offsets!r}; expected a begin and an end"
            )
        return dtype, tuple(shape), (offsets[0], offsets[1])


def _is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


def _refused_pickle(path: Path) -> Unsupported:
    message = f"{path} is a pickle, which can run any code when it is loaded: kvart never does; save it as safetensors"
    return Unsupported(message, file=str(path))


def refuse_pickles(directory: Path, wanted: str) -> None:
    """Unsupported if the directory has weights as pickles instead of what is wanted."""
    for path in sorted(directory.iterdir()):
        if path.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl") and path.name != "training_args.bin":
            raise Unsupported(
                f"{directory} has no {wanted}, but {path.name}: a pickle, which can run any code when it is loaded. "
                "kvart never does; save the model as safetensors",
                file=str(path),
            )


def open_regular(path: Path) -> BinaryIO:
    """A regular file, unbuffered. NotFound, InvalidArgument for anything that is no file, Io otherwise."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait for ever
            raise InvalidArgument(f"{path} is no regular file", file=str(path))
        return open(path, "rb", buffering=0)
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file", file=str(path)) from None
    except OSError as error:
        raise Io(f"{path}: {error.strerror or error}", file=str(path)) from error


def read_bytes(path: Path, limit: int = _MAX_JSON_BYTES) -> bytes:
    """The whole of a regular file. Corrupt if it is longer than limit."""
    with open_regular(path) as file:
        try:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise Corrupt(f"{path} has {size} bytes; at most {limit} are read", file=str(path))
            return file.read(limit) or b""
        except OSError as error:
            raise Io(f"{path}: {error.strerror or error}", file=str(path)) from error


def read_text(path: Path) -> str:
    """A file in UTF-8."""
    return _decode(read_bytes(path), str(path), str(path))


def read_json(path: Path) -> dict[str, Any]:
    """A file that holds one JSON object."""
    return parse_json(read_bytes(path), str(path), str(path))


def read_json_if_there(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def parse_json(data: bytes, what: str, file: str, *, unique: bool = False) -> dict[str, Any]:
    """One JSON object. unique: an object that has a key twice is refused."""
    try:
        value = json.loads(_decode(data, what, file), object_pairs_hook=_no_repeats if unique else None)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{what} is not JSON: {error}", file=file) from None
    if not isinstance(value, dict):
        raise Corrupt(f"{what}: expected a JSON object, found {type(value).__name__}", file=file)
    return value


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} stands there twice")
    return result


def _decode(data: bytes, what: str, file: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Corrupt(f"{what} is not valid UTF-8 at byte {error.start}", file=file, offset=error.start) from None

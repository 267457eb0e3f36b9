"""The metadata of a GGUF file with its types, for copying it into another one.

The core's reader widens numbers and makes text of bytes; the gguf package's reader keeps both but takes fifteen seconds
for a vocabulary. This one keeps them and takes a moment. Format: the GGUF specification, versions 2 and 3.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from .errors import Corrupt

if TYPE_CHECKING:
    import gguf

_STRING, _ARRAY = 8, 9
# Of the other types by their number: how struct calls them.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_MOST = 1 << 24  # elements of one array, as in the core


@dataclass(frozen=True)
class Item:
    """One value. type and element_type are numbers of gguf.GGUFValueType; text is bytes, an array a list."""

    type: int
    value: Any
    element_type: int | None = None


def read(path: str | Path) -> dict[str, Item]:
    """All metadata of a file in its order. The file is one that the core has opened; Corrupt where it is not."""
    try:
        with open(path, "rb") as file:
            if file.read(4) != b"GGUF":
                raise Corrupt(f"{path}: not a GGUF file", file=str(path))
            _, _, count = struct.unpack("<IQQ", _take(file, 20))
            return dict(_read_item(file) for _ in range(count))
    except (EOFError, KeyError, UnicodeDecodeError) as error:
        raise Corrupt(f"{path}: broken metadata: {error!r}", file=str(path)) from error


def copy(items: dict[str, Item], writer: gguf.GGUFWriter, without: tuple[str, ...] = ()) -> None:
    """Hands all items to the writer, but those whose key is, or begins with, one of `without`, and empty arrays."""
    import gguf

    for key, item in items.items():
        if key.startswith(without) or item.value == []:
            continue
        element = None if item.element_type is None else gguf.GGUFValueType(item.element_type)
        writer.add_key_value(key, item.value, gguf.GGUFValueType(item.type), sub_type=element)


def _read_item(file: BinaryIO) -> tuple[str, Item]:
    key = _read_bytes(file).decode()
    (kind,) = struct.unpack("<I", _take(file, 4))
    if kind != _ARRAY:
        return key, Item(kind, _read_values(file, kind, 1)[0])
    element, count = struct.unpack("<IQ", _take(file, 12))
    if count > _MOST:
        raise EOFError(f"{key} has {count} elements")
    return key, Item(kind, _read_values(file, element, count), element)


def _read_values(file: BinaryIO, kind: int, count: int) -> list[Any]:
    if kind == _STRING:
        return [_read_bytes(file) for _ in range(count)]
    code = struct.Struct(f"<{count}{_SCALARS[kind]}")
    return list(code.unpack(_take(file, code.size)))


def _read_bytes(file: BinaryIO) -> bytes:
    (length,) = struct.unpack("<Q", _take(file, 8))
    return _take(file, length)


def _take(file: BinaryIO, size: int) -> bytes:
    data = file.read(size) if size <= 1 << 31 else b""
    if len(data) != size:
        raise EOFError(f"the file ends inside a value of {size} bytes")
    return data

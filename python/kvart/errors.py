"""What kvart raises: one base class, and a subclass a kind that is also the built-in exception nearest to it."""

from __future__ import annotations

import os


class Error(Exception):
    """Base of all. kind names the reason, file and offset say where (None where that has no meaning)."""

    kind = "internal"

    def __init__(self, message: str, *, file: str | None = None, offset: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.file = file
        self.offset = offset

    def __str__(self) -> str:
        return self.message


class InvalidArgument(Error, ValueError):
    """What the caller passed is wrong."""

    kind = "invalid_argument"


class Corrupt(Error):
    """The content of a file is wrong."""

    kind = "corrupt"


class NotFound(Error, FileNotFoundError):
    """A file, tensor, key or name is missing."""

    kind = "not_found"


class Unsupported(Error):
    """Well-formed, but not something kvart does."""

    kind = "unsupported"


class OutOfMemory(Error, MemoryError):
    """There is not enough memory for what was asked."""

    kind = "out_of_memory"


class Io(Error, OSError):
    """The system refused a read, write, map or sync."""

    kind = "io"


class NoSpace(Error, OSError):
    """The disk, or the budget of the cache, is full."""

    kind = "no_space"


class ContextFull(Error):
    """The tokens do not fit in the context."""

    kind = "full"


class Cancelled(Error):
    """The caller asked to stop."""

    kind = "cancelled"


class Busy(Error):
    """Someone else holds it."""

    kind = "busy"


class Internal(Error, RuntimeError):
    """A bug in kvart."""

    kind = "internal"


BY_KIND: dict[str, type[Error]] = {
    error.kind: error
    for error in (
        InvalidArgument,
        Corrupt,
        NotFound,
        Unsupported,
        OutOfMemory,
        Io,
        NoSpace,
        ContextFull,
        Cancelled,
        Busy,
        Internal,
    )
}

# What the user can put right by calling differently: exit code 2 on the command line, 1 for all others.
BAD_INPUT = (InvalidArgument, Corrupt, NotFound, Unsupported, ContextFull)


def from_status(kind: str, message: str, file: str, offset: int) -> Error:
    """The exception for a Status of the core. Called by the binding."""
    return BY_KIND.get(kind, Internal)(message, file=file or None, offset=None if offset < 0 else offset)


def check_text(text: object, what: str) -> str:
    """text itself if it is a str that has a UTF-8 form; else the error that says where it has none."""
    if not isinstance(text, str):
        raise InvalidArgument(f"{what}: expected str, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        offset = len(text[: error.start].encode())
        raise InvalidArgument(f"{what} is not valid UTF-8 at byte offset {offset}", offset=offset) from None
    return text


def check_path(path: object, what: str) -> str:
    """path as a str that the system can take, with ~ for the home directory."""
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str) or not text:
        raise InvalidArgument(f"{what}: expected a path, found {path!r}")
    if "\0" in check_text(text, what):
        raise InvalidArgument(f"{what}: a path holds no zero byte, found {text!r}")
    return os.path.expanduser(text)


def decode_utf8(data: bytes, what: str, file: str | None = None) -> str:
    """data as text, or the error that names the first byte that is no UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        message = f"{what} is not valid UTF-8: byte 0x{data[error.start]:02x} at byte offset {error.start}"
        raise InvalidArgument(message, file=file, offset=error.start) from None

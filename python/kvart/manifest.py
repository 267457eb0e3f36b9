"""The models that kvart knows by name: where each comes from, its size and its checksum. Reads models/manifest.json."""

from __future__ import annotations

import difflib
import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import InvalidArgument, NotFound, check_path, check_text


@dataclass(frozen=True)
class Entry:
    """One model of the manifest. Sources are tried in order; each gives the same bytes."""

    name: str
    description: str
    parameters: int
    licence: str
    bytes: int
    sha256: str
    sources: tuple[dict[str, Any], ...]

    @property
    def path(self) -> Path:
        """Where the pulled file lies in the user's cache directory."""
        return models_dir() / f"{self.name}.gguf"

    @property
    def is_pulled(self) -> bool:
        """Whether the whole file is there. Its size tells, for only a file whose checksum was right gets there."""
        try:
            return self.path.stat().st_size == self.bytes
        except OSError:
            return False


def cache_dir() -> Path:
    """$KVART_CACHE, else kvart's folder in the user's cache directory."""
    if own := os.environ.get("KVART_CACHE"):
        return Path(check_path(own, "KVART_CACHE"))
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "kvart"


def models_dir() -> Path:
    return cache_dir() / "models"


def kv_dir() -> Path:
    """Where durable sessions are kept unless the user says otherwise: $KVART_KV_DIR, else in the cache directory."""
    own = os.environ.get("KVART_KV_DIR")
    return Path(check_path(own, "KVART_KV_DIR")) if own else cache_dir() / "kv"


def parse(text: str) -> dict[str, Entry]:
    """The entries of a manifest by name."""
    entries = (Entry(**{**item, "sources": tuple(item["sources"])}) for item in json.loads(text)["models"])
    return {entry.name: entry for entry in entries}


@functools.cache
def entries() -> dict[str, Entry]:
    """The manifest that kvart ships."""
    return parse(Path(__file__).with_name("manifest.json").read_text("utf-8"))


def _unknown(name: str) -> NotFound:
    near = difflib.get_close_matches(name.lower(), entries(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return NotFound(f"no model named {name!r}: {hint}kvart knows {', '.join(entries())}")


def find(name: str) -> Entry:
    """The entry of that name, or an error that suggests the near ones."""
    if entry := entries().get(name):
        return entry
    raise _unknown(name)


def resolve(name_or_path: str | os.PathLike[str]) -> str:
    """The file of a model: of a name of the manifest that has been pulled, or of a path."""
    try:
        text = os.fspath(name_or_path)
    except TypeError:
        text = ""
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidArgument(f"a model is given by its name or by the path of a GGUF file, not by {name_or_path!r}")
    check_text(text, "the model's name")
    if isinstance(name_or_path, str) and (entry := entries().get(text)):
        if entry.is_pulled:
            return str(entry.path)
        what = "is incomplete: its size is wrong" if entry.path.exists() else "is not on this machine yet"
        raise NotFound(f"the model {text} {what}; fetch it with: kvart pull {text}", file=str(entry.path))
    path = Path(text).expanduser()
    if path.is_dir():
        raise InvalidArgument(f"{path} is a directory; expected a GGUF file", file=text)
    if path.exists():
        return str(path)
    if os.sep in text or text.endswith(".gguf") or not isinstance(name_or_path, str):
        raise NotFound(f"{text}: no such file", file=text)
    raise _unknown(text)

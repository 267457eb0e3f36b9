"""Numbers for people."""

from __future__ import annotations

import re
from typing import Any

from .errors import InvalidArgument

_MAX_SIZE = 2**62


def size(count: float) -> str:
    """Bytes as 1.2 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def parse_size(text: str) -> int:
    """Bytes of "1.5GB", "200 MB" or "4096"."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kKMGT]?)(i?)[bB]?", text.strip())
    if match is None:
        raise InvalidArgument(f"expected a size such as 500MB or 2GB, found {text!r}")
    number, unit, binary = match.groups()
    count = float(number) * (1024 if binary else 1000) ** " kMGT".index(unit.replace("K", "k") or " ")
    if count > _MAX_SIZE:
        raise InvalidArgument(f"expected a size of at most {_MAX_SIZE} bytes, found {text!r}")
    return int(count)


def age(seconds: float) -> str:
    """How long ago, in words."""
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        count = int(seconds // length)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


def summary(stats: dict[str, Any]) -> str:
    """One line on a generation."""
    reused = f", {stats['reused_positions']} reused" if stats["reused_positions"] else ""
    loaded = f"loaded in {stats['load_seconds']:.2f} s, " if "load_seconds" in stats else ""
    first = f", first token after {stats['first_token_seconds']:.2f} s" if stats["generated_tokens"] else ""
    return (
        f"{loaded}{stats['prompt_tokens']} tokens read at {stats['prefill_tok_s']:.1f} tok/s{reused}{first}, "
        f"{stats['generated_tokens']} written at {stats['decode_tok_s']:.1f} tok/s ({stats['gb_s']:.1f} GB/s), "
        f"K/V {size(stats['kv_bytes'])}, seed {stats['seed']}, logits {stats['logits_hash']}"
    )

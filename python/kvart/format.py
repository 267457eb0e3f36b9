"""Numbers for people."""

from __future__ import annotations

from typing import Any


def size(count: float) -> str:
    """Bytes as 1.2 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def summary(stats: dict[str, Any]) -> str:
    """One line on a generation."""
    return (
        f"{stats['prompt_tokens']} tokens read at {stats['prefill_tok_s']:.1f} tok/s, "
        f"{stats['generated_tokens']} written at {stats['decode_tok_s']:.1f} tok/s ({stats['gb_s']:.1f} GB/s), "
        f"K/V {size(stats['kv_bytes'])}, seed {stats['seed']}, logits {stats['logits_hash']}"
    )

"""When another engine serves better: the decision tree of REQUIREMENTS B5 in words, for the case at hand."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .devices import Device

PURPOSES = ("edge", "server", "audit", "research")
_MANY_STREAMS = 16
_HUGE_CONTEXT = 1_000_000


@dataclass(frozen=True)
class Advice:
    """use: the engine; kvart among them. instead: kvart is the wrong tool for this."""

    use: str
    instead: bool
    why: str


def advise(device: Device | None, *, context: int, streams: int, purpose: str, fits: bool) -> list[dict[str, Any]]:
    """What to use, the weightiest first; at least one entry."""
    found = []
    if purpose == "server" or (streams >= _MANY_STREAMS and device is not None and device.kind == "server-gpu"):
        why = "many requests at once on a big GPU: batching and paged K/V there; kvart's streams take turns on a CPU"
        found.append(Advice("vLLM or SGLang", True, why))
    elif streams >= _MANY_STREAMS:
        why = f"{streams} streams take turns in kvart, each at 1/{streams} of its speed: a GPU that batches serves them"
        found.append(Advice("vLLM or SGLang on a GPU", True, why))
    if purpose == "audit":
        found.append(Advice("TGI", True, "a private server whose requests are logged, traced and limited"))
    if purpose == "research":
        found.append(Advice("transformers", True, "models are taken apart and changed in Python there"))
    if device is not None:
        found += _of_device(device, purpose)
    if context > _HUGE_CONTEXT:
        why = "over a million tokens: K/V in pages on an SSD, found by content (--kv-dir), and a --window or retrieval"
        found.append(Advice("kvart", False, why))
    if not fits:
        why = "it does not fit: a smaller model, or weights of two or three bits (llama.cpp's IQ2 and IQ3 types)"
        found.append(Advice("a smaller model, or llama.cpp", True, why))
    if not any(advice.instead for advice in found):
        why = "one or a few conversations on a device of one's own: INT4 K/V, mapped from disk, kept beyond the process"
        found.insert(0, Advice("kvart", False, why))
    return [asdict(advice) for advice in found]


def _of_device(device: Device, purpose: str) -> list[Advice]:
    if purpose != "edge":
        return []
    if device.kind == "server-gpu":
        why = "made for such a GPU; kvart would compute on the host's CPU"
        return [Advice("vLLM or SGLang", True, why)]
    if device.kind == "phone":
        why = (
            "where speed is all: the NPU takes prompts several times as fast (published: 758 tok/s for Qwen3-1.7B on a "
            "Snapdragon 8 Gen 3); kvart keeps long conversations, in INT4, beyond the process"
        )
        return [Advice("the chip vendor's engine, or MNN", False, why)]
    if device.gpu == "cuda":
        why = (
            "where speed is all: the GPU gets 60 to 90 % of the bandwidth (published, FP16 K/V, none on disk); "
            "kvart computes on the CPU there until its CUDA backend is done"
        )
        return [Advice("TensorRT Edge-LLM, or llama.cpp with CUDA", False, why)]
    return []

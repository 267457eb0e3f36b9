"""kvart plan: what a model, its K/V and its work take on a device, what fits, how fast it is, and what else to use.

Memory follows kvart.footprint, speed the roofline (Williams, Waterman, Patterson 2009): a token costs the bytes that it
reads over the bandwidth that kvart was measured to get. docs/plan.md has the formulas beside measurements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import manifest, model_source, recipes, shapes
from .advice import advise
from .devices import Device, measured
from .errors import InvalidArgument, NotFound, Unsupported
from .footprint import (
    PAGE_TOKENS,
    KvPages,
    Weights,
    kv_bytes,
    kv_pages,
    kv_read_bytes,
    process_bytes,
    weight_bytes,
    work_bytes,
)
from .options import integer
from .shapes import Shape

WEIGHTS = ("f16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_0")  # best first
KV_FORMATS = ("f16", "int8", "int4-g64", "int4")  # best first
AS_IS = "as it is"
_SINKS = 4
_NEARLY = 0.9  # of the fastest: not worth worse weights
_MOST_CONTEXT = 1 << 31
_MOST_STREAMS = 1 << 16


@dataclass(frozen=True)
class Model:
    """What is planned for. weights: by type, best first. source: where the shape is from, in words."""

    name: str
    source: str
    shape: Shape
    weights: dict[str, Weights]


@dataclass(frozen=True)
class Speed:
    """Tokens a second of all streams together; bound: at the device's whole bandwidth, which nothing reaches."""

    empty: float
    full: float
    empty_bound: float
    full_bound: float


@dataclass(frozen=True)
class Tiers:
    """Where the K/V lie. disk: what of the pages has no room in memory, kept by a --kv-dir.

    added_s: a token's wait for its part of it, at best; added_worst_s: where the system's cache drops what was used
    longest ago, so that a pass over all pages finds none. None: the disk's speed is not known. possible: what must be
    in memory fits.
    """

    memory: int
    disk: int
    added_s: float | None
    added_worst_s: float | None
    possible: bool


@dataclass(frozen=True)
class Option:
    """Weights of a type with K/V of a format: bytes, whether all fits, speed, and the tiers of the K/V."""

    weights: str
    kv: str
    weight_bytes: int
    kv_bytes: int
    work_bytes: int
    process_bytes: int
    total_bytes: int
    fits: bool
    speed: Speed | None
    tiers: Tiers
    reopen_s: float | None  # reading one full context's pages back from the disk
    shared_saving: int


def plan(
    model: str,
    device: Device | None,
    *,
    memory: int | None = None,
    context: int = 4096,
    streams: int = 1,
    shared_prefix: int = 0,
    target: float = 8.0,
    purpose: str = "edge",
    storage: float | None = None,
) -> dict[str, Any]:
    """The plan as one JSON object.

    device: None where only memory is given; then all of memory is kvart's and no speed is known. memory: bytes,
    instead of the device's. shared_prefix: tokens that all streams begin with. target: tokens a second that each
    stream should have at its full context. storage: bytes a second that the disk reads, instead of the device's.
    """
    integer("context", context, 1, _MOST_CONTEXT)
    integer("streams", streams, 1, _MOST_STREAMS)
    integer("shared prefix", shared_prefix, 0, context)
    if device is None and memory is None:
        raise InvalidArgument("expected a device or an amount of memory")
    what = _model(model)
    total = memory if memory is not None else device.memory if device is not None else 0
    os_share = min(device.os_share, total) if device is not None else 0
    disk = storage if storage is not None else device.storage if device is not None else None
    case = _Case(what.shape, device, total - os_share, context, streams, shared_prefix, disk)
    options = [case.option(type, weights, format) for type, weights in what.weights.items() for format in KV_FORMATS]
    choice = _choose(options, streams, target)
    larger = None if choice is not None else _largest_that_fits(case)
    return {
        "model": {
            "name": what.name,
            "source": what.source,
            **asdict(what.shape),
            "parameters": what.shape.parameters,
        },
        "device": None if device is None else asdict(device),
        "memory": total,
        "os_share": os_share,
        "budget": total - os_share,
        "context": context,
        "streams": streams,
        "shared_prefix": shared_prefix,
        "prefill": case.prefill(),
        "options": [asdict(option) for option in options],
        "choice": choice,
        "fitting_model": larger,
        "advice": advise(device, context=context, streams=streams, purpose=purpose, fits=choice is not None),
        "notes": _notes(device, what.shape, context, streams),
    }


@dataclass(frozen=True)
class _Case:
    """All that options of one plan have in common."""

    shape: Shape
    device: Device | None
    budget: int
    context: int
    streams: int
    shared_prefix: int
    disk: float | None

    def option(self, type: str, weights: Weights, format: str) -> Option:
        pages = kv_pages(self.shape, format, format)
        kv = kv_bytes(pages, self.context, streams=self.streams, shared_prefix=self.shared_prefix, sinks=_SINKS)
        threads = self.device.cores if self.device is not None else 4
        work = work_bytes(self.shape, pages, self.context, streams=self.streams, threads=threads)
        process = process_bytes(self.shape.n_vocab)
        total = weights.memory + kv.total + work + process
        left = self.budget - (total - kv.total)
        tiers = self._tiers(pages, kv.total, kv.pages, left)
        stream_pages = (self.context - 1) // PAGE_TOKENS * pages.slot_bytes if pages.seals else 0
        return Option(
            weights=type,
            kv=format,
            weight_bytes=weights.memory,
            kv_bytes=kv.total,
            work_bytes=work,
            process_bytes=process,
            total_bytes=total,
            fits=total <= self.budget,
            speed=self._speed(weights, pages),
            tiers=tiers,
            reopen_s=stream_pages / self.disk if self.disk and pages.seals else None,
            shared_saving=kv.shared_saving,
        )

    def _tiers(self, pages: KvPages, kv_total: int, kv_pages_bytes: int, left: int) -> Tiers:
        if kv_total <= left:
            return Tiers(kv_total, 0, 0.0, 0.0, True)
        disk = min(kv_total - max(left, 0), kv_pages_bytes) if pages.seals else 0
        possible = disk > 0 and kv_total - disk <= left
        if not self.disk:
            return Tiers(kv_total - disk, disk, None, None, possible)
        each = disk / self.streams / self.disk
        worst = kv_pages_bytes / self.streams / self.disk
        return Tiers(kv_total - disk, disk, each, worst, possible)

    def _speed(self, weights: Weights, pages: KvPages) -> Speed | None:
        if self.device is None or self.device.bandwidth is None:
            return None
        shares = measured()
        reached = self.device.bandwidth * self.device.cpu_reach
        per_weight = 1.0 / (reached * shares["weights_share"]["value"])
        per_kv = 1.0 / (reached * shares["kv_share"][_kind(pages)]["value"])
        kv = kv_read_bytes(pages, self.context)
        empty = weights.per_token
        return Speed(
            empty=1.0 / (empty * per_weight),
            full=1.0 / (empty * per_weight + kv * per_kv),
            empty_bound=self.device.bandwidth / empty,
            full_bound=self.device.bandwidth / (empty + kv),
        )

    def prefill(self) -> dict[str, Any] | None:
        """Speed of a short prompt, and what a full context costs without its attention. None where nobody measured."""
        if self.device is None or self.device.products_per_s is None:
            return None
        rate = self.device.products_per_s / self.shape.products_per_token
        source = self.device.sources["products_per_s"]
        return {"tok_s": rate, "full_context_s": self.context / rate, "source": source}


def _kind(pages: KvPages) -> str:
    return "f16" if not pages.seals else "int8" if pages.k == "int8" else "int4"


# --- the model ---


def _model(name: str) -> Model:
    """A file, a directory, a name of the manifest, or a name of shapes.json."""
    entry = manifest.entries().get(name)
    if (entry is not None and entry.is_pulled) or Path(name).expanduser().exists():
        return _of_source(model_source.read(name), name)
    try:
        shape = shapes.find(name)
    except NotFound as error:
        if name.endswith(".gguf") or name.count("/") > 1:
            raise NotFound(f"{name}: no such file", file=name) from None
        raise error
    return Model(name, "its published shape", shape, {type: of_recipe(shape, type) for type in WEIGHTS})


def _of_source(source: model_source.ModelSource, name: str) -> Model:
    shape = source.shape
    if shape is None or source.refusal is not None:
        reason = source.refusal or "its sizes are not known"
        raise Unsupported(f"{name}: kvart does not run it: {reason}; llama.cpp runs most families", file=source.path)
    if source.kind == "checkpoint":
        return Model(name, "its checkpoint", shape, {type: of_recipe(shape, type) for type in WEIGHTS})
    tensors = [(t.name, t.type, t.shape[0] if len(t.shape) == 2 else 0, t.shape[-1]) for t in source.tensors]
    own = weight_bytes(tensors, shape.tied)
    # Fewer bits may be had of it; more would not bring back what is gone.
    smaller = {type: of_recipe(shape, type) for type in WEIGHTS}
    smaller = {type: weights for type, weights in smaller.items() if weights.per_token < 0.97 * own.per_token}
    return Model(name, "its file", shape, {AS_IS: own, **smaller})


def of_recipe(shape: Shape, recipe: str) -> Weights:
    """What `kvart convert --type recipe` would make of a model of this shape."""
    tensors = (
        (t.name, recipes.tensor_type(recipe, t.name, t.shape, shape.n_layers, shape.tied), t.rows, t.columns)
        for t in shape.tensors()
    )
    return weight_bytes(tensors, shape.tied)


# --- the choice ---


def _choose(options: Sequence[Option], streams: int, target: float) -> dict[str, Any] | None:
    """Of those that fit, the best weights, then the best K/V, that are fast enough; else the fastest.

    Weights come first because fewer bits cost more there: four-bit K/V cost 0.2 % of perplexity (docs/quality.md).
    """
    fitting = [option for option in options if option.fits]
    if not fitting:
        spilling = [option for option in options if option.tiers.possible]
        if not spilling:
            return None
        best = min(spilling, key=lambda option: (option.tiers.disk, option.total_bytes))
        why = "nothing fits whole: this keeps the least of the K/V on the disk, in a --kv-dir"
        return {"weights": best.weights, "kv": best.kv, "tier": "disk", "why": why}
    if any(option.speed is None for option in fitting):
        best = fitting[0]
        return _choice(best, "the best weights that fit, then the best K/V; no device, so no speed is known")
    fast = [option for option in fitting if option.speed is not None and option.speed.full / streams >= target]
    if fast:
        return _choice(fast[0], f"the best weights, then the best K/V, that fit and give each stream {target:g} tok/s")
    fastest = max(option.speed.full for option in fitting if option.speed is not None)
    best = next(o for o in fitting if o.speed is not None and o.speed.full >= _NEARLY * fastest)
    why = f"none gives each stream {target:g} tok/s at its full context: the best of those that are nearly the fastest"
    return _choice(best, why)


def _choice(option: Option, why: str) -> dict[str, Any]:
    return {"weights": option.weights, "kv": option.kv, "tier": "memory", "why": why}


def _largest_that_fits(case: _Case) -> dict[str, Any] | None:
    """The largest known model of the same family that would fit with four bits throughout."""
    best: tuple[str, int] | None = None
    for name, row in shapes.known().items():
        shape = shapes.find(name)
        if shape.architecture != case.shape.architecture or shape.parameters >= case.shape.parameters:
            continue
        option = _Case(shape, *_rest(case)).option("q4_k_m", of_recipe(shape, "q4_k_m"), "int4")
        if option.fits and (best is None or row["parameters"] > best[1]):
            best = (name, row["parameters"])
    return None if best is None else {"name": best[0], "weights": "q4_k_m", "kv": "int4"}


def _rest(case: _Case) -> tuple[Any, ...]:
    return (case.device, case.budget, case.context, case.streams, case.shared_prefix, case.disk)


def _notes(device: Device | None, shape: Shape, context: int, streams: int) -> list[str]:
    """What the figures stand on."""
    notes = []
    if context > shape.n_ctx_train:
        notes.append(
            f"the model is trained for {shape.n_ctx_train} tokens: {context} want RoPE scaling in its file, or --window"
        )
    if streams > 1:
        notes.append("streams take turns: each gets its share of the tokens a second")
    if device is None:
        return notes
    if device.name != "this":
        assumed = [key for key, source in device.sources.items() if source.startswith("assumption")]
        notes.append(f"{device.title}: nobody has run kvart on it yet; assumed are {', '.join(assumed) or 'nothing'}")
    if device.gpu is not None:
        notes.append(f"kvart's {device.gpu} backend is a stub so far: speeds are the CPU's")
    return notes

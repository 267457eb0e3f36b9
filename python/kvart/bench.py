"""Speed of prefill and decode at some depths of context, as other engines' benches have it (pp, tg, d)."""

from __future__ import annotations

import contextlib
import random
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _core
from .energy import EnergyMeter
from .errors import InvalidArgument
from .options import integer, parse_kv

if TYPE_CHECKING:
    from .generation import Progress
    from .model import Model, Session

_CHUNK = 512
_FIRST_PROMPT = 32  # tokens of the first request
_FLOATS = ("f16", "f32")


@dataclass
class _Case:
    """One row: what is measured, and the runs so far."""

    test: str  # "prefill" or "decode"
    tokens: int
    depth: int
    kv: str
    context: Session  # of depth tokens; each run is on a fork of it
    rates: list[float] = field(default_factory=list)
    joules: list[float] = field(default_factory=list)
    kv_bytes: float = 0.0


def bench(
    models: Model | Sequence[Model],
    *,
    prompt: int | Sequence[int] = 512,
    gen: int | Sequence[int] = 64,
    depths: Sequence[int] = (0,),
    kv: str | Sequence[str] = "int4",
    sinks: int = 4,
    window: int = 0,
    repetitions: int = 3,
    cpus: Sequence[int] = (),
    progress: Progress | None = None,
) -> Iterator[dict[str, Any]]:
    """One dict a measurement: prompt tokens computed behind depth others, then gen tokens drawn one by one there.

    models: one, or the same one loaded with several numbers of threads. All measurements of a round are done before the
    next round begins, those that differ in threads or kv side by side, so that a machine that drifts harms no
    comparison. cpus: those that the models were loaded with.

    Fields: tok_s is the median of the rounds, tok_s_min and tok_s_max their ends. bytes_per_token: weights and K/V that
    a step reads, over the tokens of a step. gb_s = tok_s · bytes_per_token; read_gb_s is what as many threads read from
    memory with nothing else to do, roofline = gb_s / read_gb_s, of decode. joules_per_token where the kernel tells.
    first_request_seconds: a prompt of 32 tokens to its first token, just after the load; warm_up_seconds: how much
    longer that took than the second time. peak_bytes: of resident memory, without what read_gb_s needs; only with one
    model, and where the system tells.
    """
    loaded = [models] if not isinstance(models, Sequence) else list(models)
    prompts, gens = _counts("prompt", prompt), _counts("gen", gen)
    formats = [kv] if isinstance(kv, str) else list(kv)
    integer("repetitions", repetitions, 1)
    for format in formats:
        parse_kv(format)
    for depth in depths:
        integer("depth", depth, 0)
        # decode needs a token to begin from
        if not window and depth + max([0, *prompts, *(n + 1 for n in gens)]) > loaded[0].info.n_ctx_train:
            raise InvalidArgument(f"depth {depth}: does not fit in the context of {loaded[0].info.n_ctx_train} tokens")
    tests = [("prefill", n) for n in prompts if n] + [("decode", n) for n in gens if n]
    machine = _Machine(loaded, cpus)
    machine.measure()
    meter = EnergyMeter()
    work = _Work(progress)
    work.total = len(loaded) * len(formats) * max(depths, default=0)
    work.total += len(loaded) * len(formats) * len(depths) * repetitions * sum(n * _cost(test) for test, n in tests)
    with contextlib.ExitStack() as stack:
        startup = [_startup(model, formats[0]) for model in loaded]
        cases: dict[int, list[_Case]] = {}
        for index, model in enumerate(loaded):
            cases[index] = []
            for format in formats:
                base = stack.enter_context(model.session(kv=format, sinks=sinks, window=window, chunk=_CHUNK))
                for depth in sorted(set(depths)):
                    _prefill(base, depth - len(base), work.during(depth - len(base)))
                    context = stack.enter_context(base.fork())
                    cases[index] += [_Case(test, tokens, depth, format, context) for test, tokens in tests]
        # (depth, test) by (depth, test), and there format by format and threads by threads
        order = [case for row in zip(*cases.values(), strict=True) for case in row]
        order.sort(key=lambda case: (case.depth, tests.index((case.test, case.tokens))))
        for _ in range(repetitions):
            for case in order:
                _run(case, meter)
                work.did(case.tokens * _cost(case.test))
        machine.measure()
        for index, model in enumerate(loaded):
            for case in cases[index]:
                yield {**_row(model, case), **machine.fields(index, case), **startup[index]}


def _counts(name: str, value: int | Sequence[int]) -> list[int]:
    return [integer(name, n, 0) for n in (value if isinstance(value, Sequence) else [value])]


def _cost(test: str) -> int:
    """A token's time, roughly, in those of prefill: for the bar."""
    return 8 if test == "decode" else 1


class _Work:
    """How much is done, of work.total tokens of prefill, told to a progress callback."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._done = 0.0
        self.total = 0

    def did(self, tokens: float) -> None:
        self._done += tokens
        if self._progress is not None:
            self._progress(min(1.0, self._done / max(1, self.total)))

    def during(self, tokens: int) -> Progress:
        """A callback for a prefill of so many tokens."""
        begin = self._done

        def tell(part: float) -> None:
            self.did(begin + part * tokens - self._done)

        return tell


class _Machine:
    """What the machine can do, measured at the beginning and at the end; the better one counts."""

    def __init__(self, models: Sequence[Model], cpus: Sequence[int]) -> None:
        self._models, self._cpus = models, cpus
        self._read = [0.0] * len(models)
        self._peak = 0
        self._began = False

    def measure(self) -> None:
        """The memory that this takes is not to be seen in the peak. Where that can't be had, it is done at the end."""
        self._peak = max(self._peak, _peak_bytes())
        if not self._began:
            self._began = True
            if not _forget_peak():
                return
        for index, model in enumerate(self._models):
            rate = _core.read_bandwidth(n_threads=model.info.n_threads, cpus=self._cpus)
            self._read[index] = max(self._read[index], rate)
        _forget_peak()

    def fields(self, index: int, case: _Case) -> dict[str, Any]:
        fields: dict[str, Any] = {"read_gb_s": self._read[index]}
        if case.test == "decode":
            gb_s = statistics.median(case.rates) * _bytes_per_token(self._models[index], case) / 1e9
            fields["roofline"] = gb_s / self._read[index]
        if len(self._models) == 1 and self._peak:
            fields["peak_bytes"] = self._peak
        return fields


def _peak_bytes() -> int:
    """The most memory that was resident; 0 where the system does not tell."""
    try:
        match = re.search(r"^VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text("ascii"), re.MULTILINE)
    except (OSError, ValueError):
        match = None
    return 1024 * int(match[1]) if match else 0


def _forget_peak() -> bool:
    """Has the kernel begin the peak anew; False where it won't."""
    try:
        Path("/proc/self/clear_refs").write_text("5", "ascii")
    except OSError:
        return False
    return True


def _startup(model: Model, kv: str) -> dict[str, float]:
    """Times of the load, of the first request behind it, and of what the second one does not pay again."""
    times = []
    sampler = _core.Sampler(model.info.n_vocab)
    for _ in range(2):
        start = time.perf_counter()
        with model.session(kv=kv) as session:
            session.append(_tokens(model, min(_FIRST_PROMPT, model.info.n_ctx_train - 1)))
            session._open().next(sampler)
        times.append(time.perf_counter() - start)
    return {
        "load_seconds": model.stats["load_seconds"],
        "warm_up_seconds": max(0.0, times[0] - times[1]),
        "first_request_seconds": times[0],
    }


def _run(case: _Case, meter: EnergyMeter) -> None:
    """One run, on a fork: a rewind would compute the page that it cuts, and bring what it sealed."""
    with case.context.fork() as session:
        if case.test == "decode":
            _begin_decode(session)
        before = session.stats["kv_used_bytes"]
        with meter.measure() as reading:
            seconds = _prefill(session, case.tokens) if case.test == "prefill" else _decode(session, case.tokens)
        case.rates.append(case.tokens / seconds)
        case.kv_bytes = (before + session.stats["kv_used_bytes"]) / 2
        if reading.joules is not None:
            case.joules.append(reading.joules / case.tokens)


def _bytes_per_token(model: Model, case: _Case) -> float:
    """Weights are read once a step, which is a token in decode and a chunk in prefill; so is the cache."""
    if case.test == "decode":
        steps = case.tokens
    else:  # no chunk goes beyond a page that will be sealed
        seals = any(format not in _FLOATS for format in parse_kv(case.kv))
        size = min(_CHUNK, _core.PAGE_TOKENS) if seals else _CHUNK
        first = case.depth % size if seals else 0
        steps = -(-(first + case.tokens) // size)
    return (model.info.weight_bytes_per_token + case.kv_bytes) * steps / case.tokens


def _row(model: Model, case: _Case) -> dict[str, Any]:
    bytes_per_token = _bytes_per_token(model, case)
    rate = statistics.median(case.rates)
    row = {
        "test": case.test,
        "tokens": case.tokens,
        "depth": case.depth,
        "kv": case.kv,
        "threads": model.info.n_threads,
        "threads_running": model.info.n_running,
        "tok_s": rate,
        "tok_s_min": min(case.rates),
        "tok_s_max": max(case.rates),
        "bytes_per_token": round(bytes_per_token),
        "gb_s": rate * bytes_per_token / 1e9,
        "repetitions": len(case.rates),
        "kernels": model.info.kernels,
    }
    return {**row, "joules_per_token": statistics.median(case.joules)} if case.joules else row


def _tokens(model: Model, count: int) -> list[int]:
    """Plain tokens, others each time: pages of the same ones would be found, not computed."""
    return random.choices(range(min(model.info.n_vocab, 10_000)), k=count)


def _prefill(session: Session, count: int, progress: Progress | None = None) -> float:
    if count <= 0:
        return 0.0
    ids = _tokens(session.model, count)
    start = time.perf_counter()
    session.append(ids, progress=progress)
    return time.perf_counter() - start


def _begin_decode(session: Session) -> None:
    """From logits that are there already, and without the token's own step."""
    if not len(session):
        session.append(_tokens(session.model, 1))
    session._open().next(_core.Sampler(session.model.info.n_vocab))


def _decode(session: Session, count: int) -> float:
    core = session._open()
    sampler = _core.Sampler(session.model.info.n_vocab)
    start = time.perf_counter()
    for _ in range(count):
        core.next(sampler)
    return time.perf_counter() - start

"""Checks what the user passes and turns it into the core's options. Messages say what was found and what is wanted."""

from __future__ import annotations

import difflib
import math
import operator
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from . import _core
from .errors import InvalidArgument, check_text

BACKENDS = ("cpu", "cuda", "vulkan")
ACTIVATIONS = ("int8", "f32")
_LAYOUTS = {"paged": _core.KvLayout.PAGED, "contiguous": _core.KvLayout.CONTIGUOUS}
_SAMPLING_FLOATS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_SAMPLING_INTS = ("top_k", "penalty_window")
SAMPLING = (*_SAMPLING_FLOATS, *_SAMPLING_INTS, "logit_bias", "seed")
_INT32_MAX = 2**31 - 1
MAX_THREADS = 256
_MAX_CPU = 8191


def choice(name: str, value: object, allowed: Collection[str]) -> str:
    if isinstance(value, str) and value in allowed:
        return value
    raise InvalidArgument(f"{name}: expected {' or '.join(map(repr, allowed))}, found {value!r}")


def integer(name: str, value: object, low: int, high: int = _INT32_MAX) -> int:
    """value as an int of low … high. A bool is no number."""
    try:
        number = operator.index(value) if not isinstance(value, bool) else None  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or not low <= number <= high:
        limit = f"at least {low}" if high >= _INT32_MAX else f"of {low} to {high}"
        raise InvalidArgument(f"{name}: expected a whole number {limit}, found {value!r}")
    return number


def number(name: str, value: object) -> float:
    try:
        result = float(value) if not isinstance(value, (bool, str)) else math.nan  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        result = math.nan
    if not math.isfinite(result):
        raise InvalidArgument(f"{name}: expected a finite number, found {value!r}")
    return result


def token_ids(ids: Iterable[object]) -> list[int]:
    """Ids as a list of int; whether the model has them, the core checks."""
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
        raise InvalidArgument(f"expected a list of token ids, got {type(ids).__name__}")
    return [integer(f"token id at index {index}", id, 0) for index, id in enumerate(ids)]


def cpu_list(cpus: str | Iterable[object] | None) -> list[int]:
    """Numbers of CPUs of "0-3,6" or of a list; None is none. Whether they are there and allowed, the core checks."""
    if cpus is None:
        return []
    if isinstance(cpus, str):
        numbers: list[int] = []
        for part in check_text(cpus, "cpus").split(","):
            match = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", part, re.ASCII)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if not first <= last <= _MAX_CPU:
                raise InvalidArgument(f"cpus: expected numbers and ranges such as 0-3,6, found {cpus!r}")
            numbers += range(first, last + 1)
        return numbers
    if isinstance(cpus, bytes) or not isinstance(cpus, Iterable):
        raise InvalidArgument(f"cpus: expected a str such as '0-3,6' or a list of numbers, found {cpus!r}")
    numbers = [integer("cpus", cpu, 0, _MAX_CPU) for cpu in cpus]
    if not numbers:
        raise InvalidArgument(
            "cpus: expected at least one CPU, found none; leave it out to let the threads run anywhere"
        )
    return numbers


def stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    if stop is not None and not isinstance(stop, Iterable):
        raise InvalidArgument(f"stop: expected a str or a list of them, found {stop!r}")
    strings = (stop,) if isinstance(stop, str) else tuple(stop or ())
    for string in strings:
        if not check_text(string, "stop"):
            raise InvalidArgument("stop: expected strings that are not empty, found ''")
    return strings


def parse_kv(kv: str) -> tuple[str, str]:
    """Formats of K and of V, of "int4" or "k=int8,v=int4"."""
    if not isinstance(kv, str):
        raise InvalidArgument(f"kv: expected a str such as 'int4' or 'k=int8,v=int4', found {kv!r}")
    if "=" not in kv:
        formats = {"k": kv, "v": kv}
    else:
        pairs = [part.partition("=") for part in kv.split(",")]
        formats = {key.strip(): value.strip() for key, _, value in pairs}
        if len(pairs) != 2 or set(formats) != {"k", "v"}:
            raise InvalidArgument(f"kv: expected a format or 'k=FORMAT,v=FORMAT', found {kv!r}")
    _core.check_kv_formats(check_text(formats["k"], "kv"), check_text(formats["v"], "kv"))
    return formats["k"], formats["v"]


def split_kv(text: str) -> list[str]:
    """["int4", "k=int8,v=f16"] of "int4,k=int8,v=f16": the comma inside a pair is not one between formats."""
    formats: list[str] = []
    for part in text.split(","):
        if part.startswith("v=") and formats and formats[-1].startswith("k=") and "," not in formats[-1]:
            formats[-1] += f",{part}"
        else:
            formats.append(part)
    for format in formats:
        parse_kv(format)
    return formats


def session_name(name: object) -> str:
    """name, if a durable session may be called so."""
    text = check_text(name, "a session's name")
    _core.check_session_name(text)
    return text


def session_options(
    *,
    name: str | None = None,
    kv: str = "int4",
    sinks: int = 4,
    window: int = 0,
    layout: str = "paged",
    ctx: int = 0,
    cache: bool = True,
    chunk: int = 512,
    in_memory: bool = False,
    draft: int = 0,
) -> _core.SessionOptions:
    k_format, v_format = parse_kv(kv)
    return _core.SessionOptions(
        k_format=k_format,
        v_format=v_format,
        sinks=integer("sinks", sinks, 0),
        layout=_LAYOUTS[choice("layout", layout, _LAYOUTS)],
        ctx=integer("ctx", ctx, 0, 2**62),
        cache=bool(cache),
        chunk=integer("chunk", chunk, 1),
        name="" if name is None else session_name(name),
        window=integer("window", window, 0, 2**62),
        in_memory=in_memory,
        draft=integer("draft", draft, 0, 64),
    )


def sampling(options: Mapping[str, Any]) -> dict[str, Any]:
    """Checked options of the sampler. A seed that is None is drawn, so that the caller can tell which it was."""
    result: dict[str, Any] = {}
    for name, value in options.items():
        if name not in SAMPLING:
            near = difflib.get_close_matches(name, SAMPLING, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(SAMPLING)}"
            raise InvalidArgument(f"unknown option {name!r}{hint}")
        if name == "seed":
            continue
        if name == "logit_bias":
            result[name] = _logit_bias(value)
        elif name in _SAMPLING_INTS:
            result[name] = integer(name, value, -1)
        else:
            result[name] = number(name, value)
    seed = options.get("seed")
    result["seed"] = int.from_bytes(os.urandom(4), "little") if seed is None else integer("seed", seed, 0, 2**64 - 1)
    return result


def _logit_bias(bias: object) -> list[tuple[int, float]]:
    if not isinstance(bias, Mapping):
        raise InvalidArgument(f"logit_bias: expected a dict of token id to number, found {bias!r}")
    return [
        (integer("logit_bias: token id", id, 0), number(f"logit_bias of {id}", value)) for id, value in bias.items()
    ]

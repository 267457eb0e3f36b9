"""Devices that plans are made for: facts of devices.json, each with its source, and this machine, measured."""

from __future__ import annotations

import contextlib
import difflib
import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import _core
from .errors import InvalidArgument

THIS = "this"
_PASSES = 3  # over memory that no cache holds
_GIB = 1 << 30
_FIELDS = {"memory_gib": "memory", "os_share_gib": "os_share", "bandwidth_gb_s": "bandwidth", "storage_gb_s": "storage"}


@dataclass(frozen=True)
class Device:
    """os_share: bytes that the system keeps. bandwidth, storage: bytes a second, read. cpu_reach: what cores get of it.

    products_per_s: products of weights and activations in prefill. kind: "board", "phone", "laptop", "server-gpu" or
    "this". gpu: the backend it would take, or None. sources: where each figure is from. None: not known.
    """

    name: str
    title: str
    kind: str
    gpu: str | None
    cores: int
    memory: int
    os_share: int
    bandwidth: float | None
    cpu_reach: float
    storage: float | None
    products_per_s: float | None
    sources: dict[str, str]


@functools.cache
def facts() -> dict[str, Any]:
    """devices.json as it is."""
    data: dict[str, Any] = json.loads(Path(__file__).with_name("devices.json").read_text("utf-8"))
    return data


def names() -> list[str]:
    return [THIS, *facts()["devices"]]


def measured() -> dict[str, Any]:
    """Shares of the bandwidth that kvart gets, and its rate in prefill, as devices.json has them: value and source."""
    values: dict[str, Any] = facts()["measured"]
    return values


def find(name: str) -> Device:
    """The device of that name, or this machine. InvalidArgument suggests near ones."""
    if name == THIS:
        return this()
    row = facts()["devices"].get(name)
    if row is None:
        near = difflib.get_close_matches(name, names(), n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise InvalidArgument(f"--device: no device named {name!r}: {hint}known are {', '.join(names())}")
    figures = {key: fact["value"] for key, fact in row.items() if isinstance(fact, dict)}
    return Device(
        name=name,
        title=row["title"],
        kind=row["kind"],
        gpu=row["gpu"],
        cores=figures["cores"],
        memory=int(figures["memory_gib"] * _GIB),
        os_share=int(figures["os_share_gib"] * _GIB),
        bandwidth=figures["bandwidth_gb_s"] * 1e9,
        cpu_reach=figures["cpu_reach"],
        storage=figures["storage_gb_s"] * 1e9,
        products_per_s=figures.get("products_per_s"),
        sources={_FIELDS.get(key, key): fact["source"] for key, fact in row.items() if isinstance(fact, dict)},
    )


def this() -> Device:
    """This machine: its memory, what of it is taken, and how fast its cores read. Takes up to two seconds."""
    memory, available = memory_of_this()
    cores = usable_cores()
    rate = measured()["products_per_core_s"].get(kernel_class())
    return Device(
        name=THIS,
        title="this machine",
        kind=THIS,
        gpu=None,
        cores=cores,
        memory=memory,
        os_share=memory - available,
        bandwidth=_core.read_bandwidth(passes=_PASSES) * 1e9,
        cpu_reach=1.0,
        storage=None,
        products_per_s=None if rate is None else rate["value"] * cores,
        sources={
            "memory": "what the system says, or the limit of the control group",
            "os_share": "what is taken now",
            "bandwidth": f"measured now: {cores} cores read memory in a row, the best of {_PASSES} passes",
            "products_per_s": "not measured on such a machine" if rate is None else rate["source"],
        },
    )


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def kernel_class() -> str | None:
    """Which of the measured kernels this machine would take: "avx512", "avx2", or None for others."""
    flags: set[str] = set()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text("ascii", errors="replace").splitlines()
        flags = set(next(line for line in lines if line.startswith("flags")).split())
    if {"avx512bw", "avx512vl", "avx512_vnni"} <= flags:
        return "avx512"
    return "avx2" if {"avx2", "fma", "f16c"} <= flags else None


def memory_of_this() -> tuple[int, int]:
    """Bytes of memory, and those of them that are free to take."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available = total
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    with contextlib.suppress(OSError, ValueError):  # "max" where there is no limit
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text("ascii"))
        taken = int((group / "memory.current").read_text("ascii"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text("ascii").splitlines())
        total = min(total, limit)
        available = min(available, limit - taken + int(stat.get("inactive_file", 0)))  # files' pages give way
    return total, max(0, min(available, total))

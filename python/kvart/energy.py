"""Joules that a piece of work took, where the kernel tells: Intel and AMD (RAPL counters), Jetson (INA3221 sensors)."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SAMPLE_SECONDS = 0.05


@dataclass
class Reading:
    """What measure() found. joules is None where nothing can be read."""

    joules: float | None = None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


class EnergyMeter:
    """Energy of the whole board or of its processors and memory: what else runs there counts as well.

    root: where /sys is, for tests. Counters (RAPL: packages, and memory where it is counted apart) are preferred to
    sensors of power, which are sampled 20 times a second. Where RAPL may be read by root only, others have no reading.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._counters = _rapl(root / "sys/class/powercap")
        self._rails = [] if self._counters else _ina3221(root / "sys/class/hwmon")

    @property
    def source(self) -> str | None:
        """Where readings come from; None: there are none."""
        return "rapl" if self._counters else "ina3221" if self._rails else None

    @contextlib.contextmanager
    def measure(self) -> Iterator[Reading]:
        """with meter.measure() as reading: work; then reading.joules."""
        reading = Reading()
        if self._counters:
            before = [_number(counter / "energy_uj") for counter in self._counters]
            yield reading
            after = [_number(counter / "energy_uj") for counter in self._counters]
            reading.joules = self._difference(before, after)
        elif self._rails:
            with _Sampler(self._rails) as sampler:
                yield reading
            reading.joules = sampler.joules
        else:
            yield reading

    def _difference(self, before: list[int | None], after: list[int | None]) -> float | None:
        total = 0
        for counter, a, b in zip(self._counters, before, after, strict=True):
            if a is None or b is None:
                return None
            if b < a:  # it has gone round; work here takes less than a round
                b += _number(counter / "max_energy_range_uj") or 0
            total += max(0, b - a)
        return total / 1e6


def _rapl(folder: Path) -> list[Path]:
    """Zones that add up: the packages, and memory that is not part of them."""
    zones = []
    for zone in sorted(folder.glob("intel-rapl:*")):
        package = re.fullmatch(r"intel-rapl:\d+", zone.name) and _text(zone / "name").startswith("package")
        memory = re.fullmatch(r"intel-rapl:\d+:\d+", zone.name) and _text(zone / "name") == "dram"
        if (package or memory) and _number(zone / "energy_uj") is not None:
            zones.append(zone)
    return zones


def _ina3221(folder: Path) -> list[tuple[Path, Path]]:
    """(millivolts, milliamperes) of the board's inputs: VDD_IN where it is all, else each rail of VDD and VIN."""
    rails = {}
    for chip in sorted(folder.glob("hwmon*")):
        if _text(chip / "name") != "ina3221":
            continue
        for channel in (1, 2, 3):
            label = _text(chip / f"in{channel}_label")
            pair = (chip / f"in{channel}_input", chip / f"curr{channel}_input")
            if label.startswith(("VDD", "VIN")) and all(_number(path) is not None for path in pair):
                rails[label] = pair
    return [rails["VDD_IN"]] if "VDD_IN" in rails else list(rails.values())


class _Sampler:
    """Adds up power over time in a thread of its own."""

    def __init__(self, rails: list[tuple[Path, Path]]) -> None:
        self._rails = rails
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.joules: float | None = 0.0

    def __enter__(self) -> _Sampler:
        self._last = (time.perf_counter(), self._watts())
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._add()

    def _run(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            self._add()

    def _add(self) -> None:
        now, watts = time.perf_counter(), self._watts()
        then, before = self._last
        if watts is None or before is None or self.joules is None:
            self.joules = None
        else:
            self.joules += (watts + before) / 2 * (now - then)
        self._last = (now, watts)

    def _watts(self) -> float | None:
        total = 0.0
        for millivolts, milliamperes in self._rails:
            u, i = _number(millivolts), _number(milliamperes)
            if u is None or i is None:
                return None
            total += u * i / 1e6
        return total

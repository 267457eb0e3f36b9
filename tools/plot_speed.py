#!/usr/bin/env python3
"""Draws docs/speed.png: what bench_peers.py measured, decode over depth and how many times faster kvart is.

    python tools/bench_peers.py MODEL.gguf … --json >> speed.jsonl
    python tools/plot_speed.py speed.jsonl [more.jsonl …] [--out docs/speed.png]

On the left the tokens a second of every engine that was timed at several depths (where lines say different things of
one, the last counts), on the right kvart's first format against the best of the others, test by test; where less is
better, seconds and memory, the ratio is turned round.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_LESS_IS_BETTER = {"first_token": "first token", "memory": "peak memory"}  # test → label

Line = dict[str, Any]


class BadInput(Exception):
    """What a file holds is not what bench_peers.py writes."""


def read_lines(paths: Iterable[Path]) -> list[Line]:
    lines = []
    for path in paths:
        for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            try:
                line = json.loads(text)
            except ValueError as error:
                raise BadInput(f"{path}:{number}: expected a line of JSON: {error}") from None
            if (
                not isinstance(line, dict)
                or not {"test", "model"} <= set(line)
                or ("ratio" in line) != ("best_peer" in line)
            ):
                raise BadInput(f"{path}:{number}: expected a line of bench_peers.py --json")
            lines.append(line)
    if not lines:
        raise BadInput("no line of bench_peers.py --json")
    return lines


def over_depth(lines: list[Line]) -> dict[str, dict[int, float]]:
    """Engine with its model → depth → decode tok/s, of those that were timed at several depths."""
    series: dict[str, dict[int, float]] = {}
    for line in lines:
        if line["test"] != "decode":
            continue
        for engine, found in line.items():
            if isinstance(found, dict) and "tok_s" in found:
                series.setdefault(f"{engine}, {_model(line)}", {})[line["depth"]] = found["tok_s"]
    return {name: dict(sorted(points.items())) for name, points in series.items() if len(points) > 1}


def ratios(lines: list[Line]) -> list[tuple[str, float]]:
    """Label and how many times better kvart is than the best of the others."""
    found = []
    for line in lines:
        if "ratio" not in line:
            continue
        test = _LESS_IS_BETTER.get(line["test"]) or f"{line['test']} {line['tokens']}"
        depth = line.get("depth")  # of memory, the deepest
        test += f" at {depth:,}" if depth else ""
        ratio = 1 / line["ratio"] if line["test"] in _LESS_IS_BETTER else line["ratio"]
        found.append((f"{_model(line)}: {test}, against {line['best_peer']}", ratio))
    return found


def _model(line: Line) -> str:
    return str(line["model"]).removesuffix(".gguf")


def draw(path: Path, lines: list[Line]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    series, bars = over_depth(lines), ratios(lines)
    panels = (1 if series else 0) + (1 if bars else 0)
    if not panels:
        raise BadInput("no decode at several depths, and no ratio")
    figure, axes = plt.subplots(1, panels, figsize=(7.5 * panels, max(4.5, 0.34 * len(bars))), layout="constrained")
    axes = [axes] if panels == 1 else list(axes)
    if series:
        left = axes.pop(0)
        for name, points in series.items():
            ours = name.startswith("kvart")
            left.plot(list(points), list(points.values()), "o-" if ours else "x--", label=name)
        left.set(xlabel="tokens in the context", ylabel="tokens a second", title="Decode", ylim=(0, None))
        left.grid(alpha=0.3)
        left.legend(fontsize=8)
    if bars:
        right = axes.pop(0)
        labels = [label for label, _ in bars][::-1]
        values = [value for _, value in bars][::-1]
        drawn = right.barh(range(len(bars)), values)
        right.bar_label(drawn, fmt="%.2f ×", padding=3, fontsize=8)
        right.set_yticks(range(len(bars)), labels, fontsize=8)
        right.axvline(1, color="black", linewidth=0.8)
        right.set(title="How many times better than the best of the others", xlim=(0, 1.15 * max(values)))
    figure.savefig(path, dpi=130, metadata={"Software": None})


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="lines of bench_peers.py --json")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "speed.png")
    options = parser.parse_args(arguments)
    try:
        lines = read_lines(options.files)
        draw(options.out, lines)
    except (BadInput, OSError, KeyError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{options.out}: {len(lines)} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())

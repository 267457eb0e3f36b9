#!/usr/bin/env python3
"""Draws docs/quality.png and writes docs/quality.md: quality of the cache formats against bits a value.

    kvart eval perplexity MODEL --text a.txt --text b.txt --ctx 512 --kv int4,int8,… --against f16 --json > eval.jsonl
    python tools/plot_quality.py eval.jsonl [more.jsonl …] [--out docs]

Lines of one model, context and format are one row: their means, weighted by positions. Lines of `kvart eval recall`
become a table of their own.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

# llama.cpp of llama-cpp-python 0.3.36, measured by its own perplexity tool on Qwen2.5-Coder-0.5B (the same Q4_K_M file)
# at context 512 over a licence text, base f16: K / V, bits a value, mean KL divergence, perplexity / base, same top-1.
# "rot" is its default Hadamard rotation.
_PEERS = (
    ("q8_0", 8.5, 0.0171, 1.036, 0.942),
    ("f16 / q4_0", 10.25, 0.0142, 1.015, 0.948),
    ("q8_0 / q4_0", 6.5, 0.0249, 1.030, 0.933),
    ("q4_0 rot", 4.5, 1.49, 5.49, 0.525),
    ("q4_0", 4.5, 2.19, 10.97, 0.370),
)
_PEER = "llama.cpp, Qwen2.5-Coder-0.5B"
_START = "<!-- made by tools/plot_quality.py: text around this is kept -->"
_END = "<!-- end -->"

Row = dict[str, Any]


class BadInput(Exception):
    """What a file holds is not what `kvart eval` writes."""


def read_lines(paths: Iterable[Path]) -> tuple[list[Row], list[Row]]:
    """The lines of `kvart eval perplexity` with a base, and those of `kvart eval recall`."""
    perplexity, recall = [], []
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise BadInput(f"{path}:{number}: expected a line of JSON: {error}") from None
            if isinstance(row, dict) and "asked" in row:
                recall.append(row)
            elif isinstance(row, dict) and row.get("kld_mean") is not None:
                perplexity.append(row)
            else:
                raise BadInput(f"{path}:{number}: expected a line of kvart eval perplexity --against, or of recall")
    if not perplexity:
        raise BadInput("no line of kvart eval perplexity --against")
    return perplexity, recall


def summarize(lines: list[Row]) -> list[Row]:
    """One row for each model, context and format, by falling bits."""
    groups: dict[tuple[str, int, str, str], list[Row]] = defaultdict(list)
    for line in lines:
        groups[(Path(line["model"]).name.removesuffix(".gguf"), line["ctx"], line["kv"], line["base_kv"])].append(line)
    rows = []
    for (model, ctx, kv, base), parts in groups.items():
        positions = sum(part["positions"] for part in parts)

        def mean(key: str, parts: list[Row] = parts, positions: int = positions) -> float:
            return float(sum(part[key] * part["positions"] for part in parts)) / positions

        ratio = math.exp(sum(math.log(part["ppl_ratio"]) * part["positions"] for part in parts) / positions)
        rows.append(
            {
                "model": model,
                "ctx": ctx,
                "kv": kv,
                "base_kv": base,
                "bits": mean("bits_per_value"),
                "ppl_ratio": ratio,
                "kld_mean": mean("kld_mean"),
                "kld_p99": max(part["kld_p99"] for part in parts),
                "kld_max": max(part["kld_max"] for part in parts),
                "top1": mean("top1"),
                "positions": positions,
                "texts": sorted({Path(part["text"]).name for part in parts}),
            }
        )
    return sorted(rows, key=lambda row: (row["model"], row["ctx"], -row["bits"], row["kld_mean"]))


def table(rows: list[Row], recall: list[Row]) -> str:
    lines = [
        "| model | context | K/V | bits a value | perplexity / base | mean KL | 99 % KL | max KL | same top-1 "
        "| positions |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['model']} | {row['ctx']} | {row['kv']} | {row['bits']:.2f} | {row['ppl_ratio']:.4f} "
            f"| {row['kld_mean']:.5f} | {row['kld_p99']:.4f} | {row['kld_max']:.3f} | {100 * row['top1']:.1f} % "
            f"| {row['positions']} |"
        )
    for name, bits, kld, ratio, top1 in _PEERS:
        lines.append(f"| {_PEER} | 512 | {name} | {bits:.2f} | {ratio:.3f} | {kld:.4f} | | | {100 * top1:.1f} % | |")
    texts = sorted({text for row in rows for text in row["texts"]})
    bases = sorted({row["base_kv"] for row in rows})
    lines += [
        "",
        f"Base {', '.join(bases)}. Texts: {', '.join(texts)}; means over all positions, the worst text's 99 % and max. "
        "The peer's rows are by its own tool, of another text: near, not equal, conditions.",
    ]
    if recall:
        lines += ["", "| model | K/V | asked | right | f16 right | of these kept |", "|---|---|---|---|---|---|"]
        for row in recall:
            kept = "" if row["agreement"] is None else f"{100 * row['agreement']:.1f} %"
            model = Path(row.get("model", "")).name.removesuffix(".gguf")
            lines.append(f"| {model} | {row['kv']} | {row['asked']} | {row['right']} | {row['base_right']} | {kept} |")
    return "\n".join(lines)


def write_table(path: Path, content: str) -> None:
    """Puts the table between its marks; what a person wrote around it stays."""
    text = (
        path.read_text(encoding="utf-8") if path.exists() else f"# Quality of the cache formats\n\n{_START}\n{_END}\n"
    )
    if _START not in text or _END not in text:
        raise BadInput(f"{path}: the marks are not there: {_START} and {_END}")
    before, rest = text.split(_START, 1)
    after = rest.split(_END, 1)[1]
    path.write_text(f"{before}{_START}\n\n{content}\n\n{_END}{after}", encoding="utf-8")


def draw(path: Path, rows: list[Row]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 5.5), layout="constrained")
    groups: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        if row["kld_mean"] > 0:
            groups[(row["model"], row["ctx"])].append(row)
    for (model, ctx), points in groups.items():
        bits, kld = [row["bits"] for row in points], [row["kld_mean"] for row in points]
        axes.scatter(bits, kld, label=f"kvart, {model}, context {ctx}", s=36)
        for row in points:
            _label(axes, row["kv"], row["bits"], row["kld_mean"])
    axes.scatter(
        [peer[1] for peer in _PEERS], [peer[2] for peer in _PEERS], label=_PEER, marker="x", color="black", s=36
    )
    for name, bits_per_value, divergence, _, _ in _PEERS:
        _label(axes, name, bits_per_value, divergence)
    axes.set_yscale("log")
    axes.set_xlabel("bits a value of K/V, headers and padding counted")
    axes.set_ylabel("mean KL divergence from f16 (nats)")
    axes.set_title("Nearer to f16 is lower, smaller is further left")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(loc="best", fontsize=8)
    figure.savefig(path, dpi=130, metadata={"Software": None})


def _label(axes: Any, text: str, x: float, y: float) -> None:
    axes.annotate(text, (x, y), xytext=(5, 4), textcoords="offset points", fontsize=8)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="lines of kvart eval … --json")
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of quality.png and quality.md")
    options = parser.parse_args(arguments)
    try:
        lines, recall = read_lines(options.files)
        rows = summarize(lines)
        options.out.mkdir(parents=True, exist_ok=True)
        write_table(options.out / "quality.md", table(rows, recall))
        draw(options.out / "quality.png", rows)
    except (BadInput, OSError, KeyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{options.out / 'quality.md'}, {options.out / 'quality.png'}: {len(rows)} rows of {len(lines)} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())

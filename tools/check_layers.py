#!/usr/bin/env python3
"""Checks the layer order: a file of cpp/ includes only its own layer and those before it.

Two layers may see less than their place allows: the kernels are pure functions over pointers, and know of nothing but
base and quant; the sampler sees logits only.
"""

from __future__ import annotations

import re
from pathlib import Path

from sources import cpp_files, numbered, run_check, without_comments

LAYERS = [
    "base",
    "quant",
    "gguf",
    "tokenizer",
    "kernels",
    "kvcache",
    "backend",
    "model",
    "sampler",
    "engine",
    "capi",
]
NARROWER = {"kernels": {"base", "quant", "kernels"}, "sampler": {"base", "sampler"}}
_INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')


def allowed(layer: str) -> set[str]:
    return NARROWER.get(layer, set(LAYERS[: LAYERS.index(layer) + 1]))


def check(root: Path) -> list[str]:
    problems = []
    cpp = root / "cpp"
    for path in cpp_files(cpp):
        where = path.relative_to(root).as_posix()
        layer = path.relative_to(cpp).parts[0]
        if layer not in LAYERS:
            problems.append(f"{where}:1: {layer!r} is no layer; the layers are {' → '.join(LAYERS)}")
            continue
        for number, line in numbered(without_comments(path.read_text(encoding="utf-8"))):
            match = _INCLUDE.match(line)
            if match is None:
                continue
            quote, target = match.groups()
            target_layer = target.split("/")[0]
            if quote == "<":
                if target_layer in LAYERS and (cpp / target).exists():
                    problems.append(f'{where}:{number}: includes <{target}>; our own files are included as "{target}"')
            elif "/" not in target or target.startswith("."):
                problems.append(f'{where}:{number}: includes "{target}"; includes are relative to cpp/, as "{layer}/…"')
            elif not (cpp / target).is_file():
                problems.append(f'{where}:{number}: includes "{target}", which is not in cpp/')
            elif target_layer not in allowed(layer):
                may = ", ".join(x for x in LAYERS if x in allowed(layer))
                problems.append(f'{where}:{number}: {layer} includes "{target}"; {layer} may include only {may}')
    return problems


if __name__ == "__main__":
    run_check("Layer order of cpp/", check)

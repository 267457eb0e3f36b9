#!/usr/bin/env python3
"""Checks the kernels: names, places, and that instruction sets stay in their folders.

Grammar of a name: <op>_<types>_<isa>[_<feature>], for example matmul_q5_0_i8_avx2 or rms_norm_avx2.
A new operation is one line in OPS, a new instruction set one in ISAS.

Why the folders are fenced off: a file of kernels/avx2 is compiled with -mavx2. An inline function that it shares with
other files is merged by the linker into one copy, perhaps the AVX2 one, and then crashes on a CPU without AVX2.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from sources import cpp_files, numbered, run_check, without_comments

ISAS = ("scalar", "avx2", "avx512", "neon", "cuda", "vulkan")
# Of weights, activations and cached rows.
TYPES = ["f32", "f16", "bf16", "i8", "int8", "int4", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]
TYPES += ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs"]
# Operation → how many types its name carries.
OPS = {
    "matmul": 2,  # weights, activations
    "score": 1,  # keys; integers with where their scales lie: _channel or _token
    "mix": 1,  # values
    "refine": 0,
    "softmax": 0,
    "attend_merge": 0,
    "rms_norm": 0,
    "quantize": 0,
    "silu_mul": 0,
    "to_half": 0,
}
AXES = {"score": "(?:_channel|_token)?"}
FILES = ("rows", "table", "tables")  # names of files for small things; another file holds what its first word says
NEIGHBOURS = {"softmax": "mix", "refine": "score"}  # … or what is done in the same breath
_TYPE = "(?:" + "|".join(sorted(TYPES, key=len, reverse=True)) + ")"
_OP = "(?:" + "|".join(f"{op}{f'_{_TYPE}' * n}{AXES.get(op, '')}" for op, n in OPS.items()) + ")"
_NAME = re.compile(rf"{_OP}_(?P<isa>{'|'.join(ISAS)})(?:_[a-z0-9]+)?")
GRAMMAR = "<op>_<types>_<isa>[_<feature>]"

# Instruction set → (folders where it may stand, what gives it away). pause, a hint, is in every x86-64.
INTRINSICS = {
    "x86": (
        ("kernels/avx2", "kernels/avx512"),
        re.compile(
            r"<(?:\w*mmintrin|x86intrin|x86gprintrin)\.h>|\b_mm\d*_\w+|\b__m(?:64|128|256|512)[id]?\b|\b__builtin_ia32_(?!pause\b)\w+"
        ),
    ),
    "NEON": (
        ("kernels/neon",),
        re.compile(
            r"<arm_(?:neon|acle|sve|fp16|bf16)\.h>|\b(?:u?int|float|bfloat|poly)(?:8|16|32|64)x\d+(?:x\d)?_t\b|\b__builtin_neon_\w+"
        ),
    ),
}
_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')
_DEFINITION = re.compile(
    r"^(?!namespace|#|using|class|struct|enum|typedef)(?P<head>[\w:<>,&*\s\[\]]*?)\b(?P<name>\w+)\((?P<args>[^;{}]*)\)\s*(?:noexcept\s*)?\{",
    re.MULTILINE,
)
_STRING = re.compile(r'"((?:\\.|[^"\\\n])*)"')


def _without_anonymous(text: str) -> str:
    """Blanks the bodies of anonymous namespaces, keeping the lines."""
    for match in re.finditer(r"\bnamespace\s*\{", text):
        depth, end = 1, match.end()
        while end < len(text) and depth > 0:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        text = text[: match.end()] + re.sub(r"[^\n]", " ", text[match.end() : end]) + text[end:]
    return text


def _exported(text: str) -> list[tuple[int, str]]:
    """(line, name) of the functions with external linkage. Namespaces don't indent here, so they start a line."""
    found = []
    body = _without_anonymous(text)
    for match in _DEFINITION.finditer(body):
        head = match["head"].split()
        if head and not {"static", "inline", "constexpr", "template"} & set(head) and "::" not in match["head"][-2:]:
            before = body[: match.start()].rstrip()
            if not before.endswith(">") or "template" not in before.splitlines()[-1]:
                found.append((body.count("\n", 0, match.start("name")) + 1, match["name"]))
    return found


def _check_isa_file(where: str, path: Path, isa: str, text: str) -> list[str]:
    problems = []
    stem = path.stem
    helper = path.suffix == ".h" and stem.endswith("_inl")
    if not helper and not re.fullmatch(rf"[a-z0-9_]+_{isa}(?:_[a-z0-9]+)?", stem):
        problems.append(
            f"{where}:1: files of kernels/{isa} are named <what>_{isa}[_<feature>] or, for helpers, <what>_inl.h"
        )
    for number, line in numbered(text):
        include = _INCLUDE.match(line)
        other = include and re.match(r"kernels/(\w+)/.*_inl\.h$", include[1])
        if other and other[1] != isa:
            problems.append(
                f"{where}:{number}: kernels/{isa} includes a helper of kernels/{other[1]}; inline code is not shared"
            )
        for name in _STRING.findall(line):  # the name column of a table; a macro's half of a name ends in "_"
            if name.startswith(tuple(f"{op}_" for op in OPS)) and not name.endswith("_"):
                problems += _check_name(f"{where}:{number}", name, isa)
    if path.suffix == ".cc":
        family = stem.split("_")[0]
        for number, name in _exported(text):
            if re.fullmatch(rf"{isa.capitalize()}(?:[A-Z]\w*)?Kernels", name):
                continue
            bad = _check_name(f"{where}:{number}", name, isa)
            problems += bad
            word = name.split("_")[0]
            if not bad and family not in (*FILES, word, NEIGHBOURS.get(word)):
                problems.append(f"{where}:{number}: {name} belongs into a file named {word}_…_{isa} or rows_{isa}")
    return problems


def _check_name(where: str, name: str, isa: str) -> list[str]:
    match = _NAME.fullmatch(name)
    if match is None:
        return [f"{where}: {name} is not {GRAMMAR}; operations: {', '.join(OPS)}; types: {', '.join(TYPES)}"]
    if match["isa"] != isa:
        return [f"{where}: {name} stands in kernels/{isa}, its name says {match['isa']}"]
    return []


def check(root: Path) -> list[str]:
    problems = []
    places = [root / folder for folder in ("cpp", "python/src", "tests", "android")]
    for path in [p for place in places if place.is_dir() for p in cpp_files(place)]:
        where = path.relative_to(root).as_posix()
        text = without_comments(path.read_text(encoding="utf-8"))
        parts = path.relative_to(root).parts
        isa = parts[2] if parts[:2] == ("cpp", "kernels") and len(parts) > 3 else ""
        if isa and isa not in ISAS:
            problems.append(f"{where}:1: {isa!r} is no instruction set; known are {', '.join(ISAS)}")
        elif isa:
            problems += _check_isa_file(where, path, isa, text)
        for name, (folders, pattern) in INTRINSICS.items():
            if any(f"cpp/{folder}/" in where for folder in folders):
                continue
            for number, line in numbered(text):
                if match := pattern.search(line):
                    problems.append(f"{where}:{number}: {match[0]}: {name} code stands only in {' and '.join(folders)}")
        for number, line in numbered(text):
            include = _INCLUDE.match(line)
            if not isa and include and re.match(r"kernels/\w+/.*_inl\.h$", include[1]):
                problems.append(f"{where}:{number}: includes {include[1]}, which is for its own folder only")
    return problems


def check_objects(build: Path) -> list[str]:
    """Weak functions in the objects of an instruction set's folder: the linker may keep them for everybody."""
    problems = []
    objects = [(isa, path) for isa in ISAS for path in sorted(build.rglob(f"kernels/{isa}/*.o"))]
    if not objects:
        problems.append(f"{build}: has no objects of kernels; expected a build folder of CMake")
    for isa, path in objects:
        if isa == "scalar":
            continue  # compiled with everybody's flags
        has_feature = f"_{isa}_" in path.name  # more flags than the rest of its folder
        symbols = subprocess.run(["nm", "-C", str(path)], capture_output=True, text=True, check=True).stdout
        for line in symbols.splitlines():
            match = re.match(r"[0-9a-f]+ W (.*)", line)
            if match and (f"kvart::{isa}::" not in match[1] or has_feature):
                problems.append(f"{path}: has a shared copy of {match[1]}")
    return problems


if __name__ == "__main__":
    if sys.argv[1:2] == ["--objects"]:
        folders = [Path(folder) for folder in sys.argv[2:]]
        sys.argv = sys.argv[:1]
        run_check("Objects of the kernels", lambda _: [p for folder in folders for p in check_objects(folder)])
    run_check("Names and places of the kernels", check)

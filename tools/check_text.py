#!/usr/bin/env python3
"""Checks that no file names a place which exists on one machine only, nor a package registry's host.

Paths of a developer's machine break for everybody else; packages are named, and the user's index settings find them.
"""

from __future__ import annotations

import re
from pathlib import Path

from sources import numbered, repository_files, run_check

# Written in pieces, or this file would find itself.
_PATTERNS = {
    "a path of one machine": re.compile(
        r"(?<![\w.~}])/(?:" + r"home/\w|root/|Users/\w|work/|mnt/\w|scratch/\w)" + r"|\b[A-Za-z]:\\+Us" + r"ers\\"
    ),
    "a package registry's host": re.compile(
        r"\b(?:py" + r"pi\.org|pythonhost" + r"ed\.org|npmjs\.(?:org|com)|crates\.io|deb\.debian\.org|ppa\.launchpad)"
    ),
}
_BINARY = {".bin", ".npz", ".npy", ".png", ".jpg", ".gguf", ".safetensors", ".gz", ".zip"}


def check(root: Path) -> list[str]:
    problems = []
    for path in repository_files(root):
        if path.suffix in _BINARY:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        where = path.relative_to(root).as_posix()
        for number, line in numbered(text):
            for what, pattern in _PATTERNS.items():
                if match := pattern.search(line):
                    problems.append(f"{where}:{number}: {match[0]}… is {what}")
    return problems


if __name__ == "__main__":
    run_check("Machine paths and hosts", check)

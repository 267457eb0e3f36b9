"""Which files belong to the repository, and how a check reports: shared by the check_*.py tools."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

CPP_SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".comp"}
_SKIPPED = {
    ".git",
    ".venv",
    "build",
    "dist",
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
}


def cpp_files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix in CPP_SUFFIXES and p.is_file())


def repository_files(root: Path) -> list[Path]:
    """Tracked files and new ones that are not ignored; every file where there is no git."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode()
        paths = [root / name for name in listed.split("\0") if name]
    except (OSError, subprocess.CalledProcessError):
        paths = [p for p in root.rglob("*") if not _SKIPPED.intersection(p.relative_to(root).parts)]
    return sorted({p for p in paths if p.is_file()})


def numbered(text: str) -> Iterator[tuple[int, str]]:
    return enumerate(text.splitlines(), start=1)


def without_comments(text: str) -> str:
    """C++ without comments; lines and strings stay where they are."""

    def blank(match: re.Match[str]) -> str:
        found = match.group(0)
        return found if found[0] in "\"'" else re.sub(r"[^\n]", " ", found)

    return re.sub(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', blank, text, flags=re.DOTALL)


def run_check(what: str, check: Callable[[Path], list[str]]) -> None:
    """The main of a check: prints one line a problem and exits with 1 when there are any."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    problems = check(parser.parse_args().root)
    name = Path(sys.argv[0]).name
    for problem in problems:
        print(problem)
    print(f"{name}: {len(problems)} problems" if problems else f"{name}: ok")
    sys.exit(1 if problems else 0)

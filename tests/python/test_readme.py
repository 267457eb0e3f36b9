"""What the documents promise is there: commands, options, steps, links, and the snippet runs."""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from kvart import cli

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = sorted(p for pattern in ("*.md", "*/*.md") for p in ROOT.glob(pattern) if not p.parent.name.startswith("."))


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def commands() -> list[str]:
    return [line[2:] for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")]


def kvart_commands() -> list[str]:
    return [line for line in commands() if line.startswith("kvart ")]


def test_the_readme_has_what_this_file_checks() -> None:
    assert len(kvart_commands()) >= 5
    assert "tools/quickstart.sh" in commands()
    assert "tools/test.sh" in commands()
    assert len(blocks("python")) == 1


@pytest.mark.parametrize("line", kvart_commands())
def test_commands_parse(line: str) -> None:
    """Every command and option exists; nothing is run."""
    command = typer.main.get_command(cli.app)
    args = shlex.split(line)[1:]
    while hasattr(command, "commands"):
        name = args.pop(0)
        assert name in command.commands, f"no command {name}"
        command = command.commands[name]
    command.make_context(command.name, args)


def test_a_wrong_option_would_be_found() -> None:
    command = typer.main.get_command(cli.app).commands["run"]
    with pytest.raises(Exception, match=r"(?i)no such option"):
        command.make_context("run", ["m", "p", "--no-such-option"])


@pytest.mark.parametrize("script", ["tools/quickstart.sh", "tools/test.sh", ".ci/run"])
def test_scripts_run_as_told(script: str) -> None:
    path = ROOT / script
    assert path.stat().st_mode & stat.S_IXUSR
    subprocess.run(["bash", "-n", str(path)], check=True)


def test_test_sh_has_the_steps_it_names_and_refuses_others() -> None:
    script = (ROOT / "tools/test.sh").read_text()
    for document in (script, (ROOT / "CONTRIBUTING.md").read_text()):
        for step in ("style", "cpp", "asan", "python", "fuzz", "aarch64", "tsan"):
            assert step in document
            assert f"step_{step}()" in script
    done = subprocess.run(
        ["bash", str(ROOT / "tools/test.sh"), "nonsense"], capture_output=True, text=True, check=False, timeout=20
    )
    assert done.returncode == 2
    assert "no step nonsense" in done.stderr


def test_ci_runs_the_test_command_of_the_readme_and_nothing_else() -> None:
    lines = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line and not line.startswith("#")]
    assert lines == ['exec bash "$(dirname "${BASH_SOURCE[0]}")/../tools/test.sh"']


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            assert (document.parent / target).exists(), target


def test_the_map_names_files_that_are_there() -> None:
    text = (ROOT / "cpp/README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+/[\w/]+\.(?:h|cc))`", text))
    assert len(named) > 10
    assert sorted(name for name in named if not (ROOT / "cpp" / name).is_file()) == []
    steps = re.findall(r"^\d+\. \*\*`([\w/]+\.cc)`\*\*", text, re.MULTILINE)
    assert 1 <= len(steps) <= 8


def test_every_tool_has_a_line() -> None:
    text = (ROOT / "tools/README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([\w.]+)` \|", text, re.MULTILINE))
    assert listed == {p.name for p in (ROOT / "tools").iterdir() if p.suffix in (".py", ".sh")}


def test_the_python_snippet_runs(tiny_path: Path, tmp_path: Path) -> None:
    """With a tiny random model in place of the real one."""
    snippet = blocks("python")[0]
    assert '"qwen2.5-coder-0.5b"' in snippet
    snippet = snippet.replace('"qwen2.5-coder-0.5b"', repr(str(tiny_path)))
    done = subprocess.run(
        [sys.executable, "-c", snippet],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "'decode_tokens'" in done.stdout

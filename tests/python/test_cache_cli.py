"""kvart cache, and the commands that keep sessions: run and chat with --session."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvart
from kvart import format
from kvart.cli import _main


class Result:
    """What a command printed. lines: its standard output as JSON."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Cli = Callable[..., Result]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    def call(*args: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = _main([str(arg) for arg in args])
        return Result(code, *capfd.readouterr())

    return call


@pytest.fixture(scope="module")
def path(make_tiny: Callable[..., Path]) -> Path:
    return make_tiny(context_length=4096)


@pytest.fixture
def kv_dir(tmp_path: Path) -> Path:
    """As the environment has it for this test: see conftest.py."""
    return tmp_path / "kv"


@pytest.fixture
def filled(path: Path, kv_dir: Path) -> Path:
    """Two stores, of 3 pages in int4 and 2 in int8; sessions a and b."""
    model = kvart.Model(path, kv_dir=kv_dir)
    for name, kv, n in (("a", "int4", 3 * 128 + 5), ("b", "int8", 2 * 128 + 5)):
        with model.session(name, kv=kv) as session:
            session.append([i % 380 for i in range(n)])
    return kv_dir


# --- list, rm, verify, clear ---


def test_nothing_is_kept_at_first(cli: Cli, kv_dir: Path) -> None:
    assert cli("cache", "list").out == f"nothing is kept in {kv_dir}\n"
    for command in ("list", "verify", "clear"):
        result = cli("cache", command, "--json")
        assert (result.code, result.err) == (0, "")
    assert not kv_dir.exists()


def test_list_tells_stores_and_sessions(cli: Cli, filled: Path) -> None:
    lines = cli("cache", "list", "--json").lines
    stores = {line["k_format"]: line for line in lines if line["kind"] == "store"}
    sessions = {line["name"]: line for line in lines if line["kind"] == "session"}
    assert {kv: (line["pages"], line["sink_records"], line["damaged"]) for kv, line in stores.items()} == {
        "int4": (3, 1, 0),
        "int8": (2, 1, 0),
    }
    assert {name: (line["tokens"], line["k_format"]) for name, line in sessions.items()} == {
        "a": (389, "int4"),
        "b": (261, "int8"),
    }
    for line in lines:
        assert line["bytes"] > 0 and line["busy"] is False and line["problem"] is None
    out = cli("cache", "list", "--kv-dir", filled).out
    assert "3 pages of 128 tokens, int4" in out and "389 tokens" in out and str(filled) in out
    assert "ago" in out or "just now" in out


def test_list_tells_what_is_in_use(cli: Cli, path: Path, filled: Path) -> None:
    model = kvart.Model(path, kv_dir=filled)
    session = model.session("a")
    session.append([1])
    lines = cli("cache", "list", "--json").lines
    assert [line["busy"] for line in lines if line.get("name") == "a" or line.get("k_format") == "int4"] == [True, True]
    assert "in use" in cli("cache", "list").out
    result = cli("cache", "rm", "a", "--json")
    assert result.code == 1 and result.lines[0]["error"]["kind"] == "busy"
    report = cli("cache", "clear", "--json").lines[0]
    assert (report["removed_files"], report["busy_files"]) == (1, 1)
    session.close()


def test_rm_takes_sessions_and_stores(cli: Cli, path: Path, filled: Path) -> None:
    [store] = [line for line in cli("cache", "list", "--json").lines if line.get("pages") == 3]
    assert cli("cache", "rm", "b", store["file"], "--json").lines == [{"removed": "b"}, {"removed": store["file"]}]
    left = cli("cache", "list", "--json").lines
    assert [line.get("name", line.get("k_format")) for line in left] == ["int8", "a"]
    with kvart.Model(path, kv_dir=filled).session("a") as session:  # its text is there, its pages are made anew
        assert len(session) == 389 and session.resumed.from_pages == 0
    for name in ("absent", "../a", "absent.pages", "../x.pages"):
        result = cli("cache", "rm", name, "--json")
        assert result.code in (1, 2) and result.lines[0]["error"]["kind"] in ("not_found", "invalid_argument")
    assert cli("cache", "rm").code == 2


def test_verify_finds_damage(cli: Cli, path: Path, filled: Path) -> None:
    result = cli("cache", "verify", "--json")
    assert result.code == 0 and [line["ok"] for line in result.lines] == [True] * 4
    assert cli("cache", "verify").out.count("ok ") == 4
    [store] = [line for line in result.lines if line.get("k_format") == "int4" and line["kind"] == "store"]
    file = filled / store["file"]
    data = bytearray(file.read_bytes())
    data[16384 + store["slot_bytes"] + 3000] ^= 4
    file.write_bytes(bytes(data))
    result = cli("cache", "verify", "--json")
    bad = [line for line in result.lines if not line["ok"]]
    assert result.code == 1 and [line["file"] for line in bad] == [store["file"]]
    assert bad[0]["damaged"] == 1 and bad[0]["damaged_offsets"] == [16384 + store["slot_bytes"]]
    assert "DAMAGED" in cli("cache", "verify", store["file"]).out
    assert cli("cache", "verify", "a").code == 0
    assert cli("cache", "verify", "absent", "--json").lines[0]["error"]["kind"] == "not_found"
    file.write_bytes(b"KVARTPG\x01 and something else")
    result = cli("cache", "verify", "--json")
    assert result.code == 1 and any(line["problem"] for line in result.lines)
    assert file.name in cli("cache", "list").out


def test_clear_keeps_what_is_within_the_limit(cli: Cli, filled: Path) -> None:
    total = sum(line["bytes"] for line in cli("cache", "list", "--json").lines if line["kind"] == "store")
    report = cli("cache", "clear", "--limit", f"{total}B", "--json").lines[0]
    assert (report["removed_files"], report["kept_bytes"]) == (0, total)
    report = cli("cache", "clear", "--limit", str(total - 1), "--json").lines[0]
    assert report["removed_files"] == 1 and 0 < report["kept_bytes"] < total
    assert "removed 1 stores" in cli("cache", "clear").out
    lines = cli("cache", "list", "--json").lines
    assert [line["name"] for line in lines] == ["a", "b"]
    assert cli("cache", "clear", "--sessions", "--json").lines[0]["removed_sessions"] == 2
    assert cli("cache", "list", "--json").lines == []
    assert cli("cache", "clear", "--limit", "much", "--json").lines[0]["error"]["kind"] == "invalid_argument"


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("4096", 4096), ("1.5GB", 1_500_000_000), ("200 MB", 200_000_000), ("2KiB", 2048)]
)
def test_sizes(text: str, size: int) -> None:
    assert format.parse_size(text) == size


# --- run and chat that go on ---


def test_run_goes_on_with_a_session(cli: Cli, path: Path) -> None:
    options = ["--json", "--logit-bias", "0=0"]
    whole = cli("run", path, "the cat", "-n", 30, *options).lines[0]
    first = cli("run", path, "the cat", "-n", 20, "--session", "tale", *options).lines[0]
    second = cli("run", path, "", "-n", 10, "--session", "tale", *options).lines[0]
    assert first["tokens"] + second["tokens"] == whole["tokens"]
    assert second["prompt_tokens"] == []
    told = cli("run", path, " and", "-n", 1, "--session", "tale")
    assert "tale: " in told.err and "0 to compute" in told.err
    result = cli("run", path, "x", "--session", "tale", "--no-cache", "--json")
    assert result.code == 2 and "--no-cache" in result.lines[0]["error"]["message"]
    assert cli("run", path, "x", "--session", "../x", "--json").lines[0]["error"]["kind"] == "invalid_argument"


def test_run_takes_the_options_of_the_cache(cli: Cli, path: Path, tmp_path: Path) -> None:
    where = tmp_path / "elsewhere"
    prompt = "the cat sat on the mat " * 60
    arguments = ["run", path, prompt, "-n", 4, "--kv-dir", where, "--json"]
    first, second = (cli(*arguments).lines[0] for _ in range(2))
    assert first["stats"]["reused_positions"] == 0 < second["stats"]["reused_positions"]
    assert second["stats"]["logits_hash"] == first["stats"]["logits_hash"]
    [store] = cli("cache", "list", "--kv-dir", where, "--json").lines
    assert (store["sinks"], store["k_format"]) == (4, "int4")
    cli(*arguments, "--sinks", 1, "--kv", "k=int8,v=int4")
    assert len(cli("cache", "list", "--kv-dir", where, "--json").lines) == 2
    long = cli("run", path, prompt, "-n", 40, "--ctx", 300, "--window", 128, "--json").lines[0]
    assert long["stop"] in ("length", "end") and len(long["prompt_tokens"]) > 300


def test_a_conversation_is_taken_up_again(cli: Cli, path: Path) -> None:
    options = ["-n", 12, "--temperature", 0, "--repetition-penalty", 1]
    whole = cli("chat", path, *options, "--json", stdin=b"hello\nand you?\nwhy?\n").lines
    first = cli("chat", path, *options, "--session", "diary", "--json", stdin=b"hello\n")
    assert "a new session" in first.err
    second = cli("chat", path, *options, "--session", "diary", "--json", stdin=b"and you?\nwhy?\n")
    assert [line["tokens"] for line in first.lines + second.lines] == [line["tokens"] for line in whole]
    resumed = second.lines[0]["stats"]["resumed"]
    assert resumed["existed"] and resumed["to_compute"] == 0 and resumed["tokens"] > 0
    assert "resumed" not in second.lines[1]["stats"]
    assert second.lines[0]["stats"]["reused_positions"] > 0
    retried = cli("chat", path, *options, "--session", "diary", "--json", stdin=b"/retry\n").lines
    assert retried[0]["tokens"] == whole[2]["tokens"]
    cli("chat", path, "--session", "diary", stdin=b"/reset\n")
    again = cli("chat", path, *options, "--session", "diary", "--json", stdin=b"hello\n").lines
    assert again[0]["tokens"] == whole[0]["tokens"]


def test_a_text_is_no_conversation(cli: Cli, path: Path) -> None:
    cli("run", path, "the cat", "-n", 5, "--session", "tale", "-q")
    result = cli("chat", path, "--session", "tale", "--json", stdin=b"hello\n")
    assert result.code == 2 and "no conversation" in result.lines[0]["error"]["message"]

"""The command line: its JSON, its errors and exit codes, and chat on a real terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kvart
from kvart.cli import _main
from kvart.options import split_kv

RUN_FIELDS = {"prompt_tokens", "tokens", "text", "stop", "stats"}
GROUPED = [
    ["eval", "perplexity"],
    ["eval", "recall"],
    ["cache"],
    ["cache", "list"],
    ["cache", "rm"],
    ["cache", "verify"],
    ["cache", "clear"],
]
ENVIRONMENT = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}


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
    """cli("run", …, stdin=b"") in this process."""

    def call(*args: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = _main([str(arg) for arg in args])
        return Result(code, *capfd.readouterr())

    return call


def test_version_and_help(cli: Cli) -> None:
    assert cli("--version").out == f"kvart {kvart.__version__}\n"
    for command in ([], ["pull"], ["run"], ["chat"], ["bench"], ["eval"], *GROUPED):
        result = cli(*command, "--help")
        assert result.code == 0 and result.err == ""
        if command and command not in (["eval"], ["cache"]):
            assert "Examples" in result.out and f"kvart {' '.join(command)} " in result.out


def test_it_is_installed_as_a_command() -> None:
    command = Path(sys.executable).with_name("kvart")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == f"kvart {kvart.__version__}\n"


# --- run ---


def test_run_prints_the_text_and_figures_beside_it(cli: Cli, tiny: kvart.Model, tiny_path: Path) -> None:
    text = tiny.generate("the cat", max_tokens=10).read()
    result = cli("run", tiny_path, "the cat", "--max-tokens", 10)
    assert (result.code, result.out) == (0, text if text.endswith("\n") else text + "\n")
    assert "tok/s" in result.err and "GB/s" in result.err and "K/V" in result.err and "logits" in result.err
    assert cli("run", tiny_path, "the cat", "-n", 10, "--quiet").err == ""
    assert cli("run", tiny_path, "-", "-n", 10, "-q", stdin=b"the cat").out == result.out


def test_run_as_json(cli: Cli, tiny: kvart.Model, tiny_path: Path) -> None:
    options = ["--temperature", 0.9, "--top-k", 50, "--top-p", 0.95, "--min-p", 0.01, "--seed", 5]
    options += ["--repetition-penalty", 1.1, "--presence-penalty", 0.1, "--frequency-penalty", 0.1]
    options += ["--logit-bias", "300=-5", "--ctx", 64, "--kv", "k=f32,v=f16", "--kv-layout", "contiguous"]
    first = cli("run", tiny_path, "the cat", "-n", 12, *options, "--json")
    [last] = first.lines
    assert first.code == 0 and set(last) == RUN_FIELDS
    assert last["prompt_tokens"] == tiny.tokenizer.encode("the cat")
    assert last["stop"] in ("length", "end") and 0 < len(last["tokens"]) <= 12
    assert last["stats"]["seed"] == 5 and last["stats"]["load_seconds"] > 0
    [again] = cli("run", tiny_path, "the cat", "-n", 12, *options, "--json", "--threads", 1).lines
    assert again["tokens"] == last["tokens"]
    assert again["stats"]["logits_hash"] == last["stats"]["logits_hash"]


def test_run_stops_where_it_is_told(cli: Cli, tiny: kvart.Model, tiny_path: Path) -> None:
    whole = tiny.generate("the cat", max_tokens=30).read()
    stop = whole[4:7]
    [last] = cli("run", tiny_path, "the cat", "-n", 30, "--stop", "never", "--stop", stop, "--json").lines
    assert (last["stop"], last["text"]) == ("stop", whole[: whole.index(stop)])
    prompt = len(tiny.tokenizer.encode("the cat"))
    biases = [part for id in tiny.tokenizer.end_ids for part in ("--logit-bias", f"{id}=-1e9")]
    [last] = cli("run", tiny_path, "the cat", "--ctx", prompt + 3, "--json", *biases).lines
    assert (last["stop"], len(last["tokens"])) == ("length", 3)


def test_run_without_cache_tells_what_the_cache_saves(cli: Cli, tiny_path: Path) -> None:
    result = cli("run", tiny_path, "the cat " * 30, "-n", 12, "--no-cache", "--json")
    found = result.lines[-1]["stats"]["no_cache"]
    assert found["same_tokens"] is True
    assert found["ratio"] == found["uncached_seconds_per_token"] / found["cached_seconds_per_token"] > 1
    assert re.search(r"ratio \d", cli("run", tiny_path, "the cat " * 30, "-n", 12, "--no-cache", "-q").err)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (["MODEL", ""], "invalid_argument", "prompt is empty"),
        (["MODEL", "-"], "invalid_argument", "prompt is empty"),
        (["MODEL", "x", "--kv", "int3"], "invalid_argument", "'int3'; wanted f32, f16, int8"),
        (["MODEL", "x", "--kv-layout", "round"], "invalid_argument", "layout"),
        (["MODEL", "x", "--top-p", "2"], "invalid_argument", "top_p"),
        (["MODEL", "x", "--top-p", "much"], "invalid_argument", "--top-p"),
        (["MODEL", "x", "--temperature", "nan"], "invalid_argument", "temperature"),
        (["MODEL", "x", "--max-tokens", "-3"], "invalid_argument", "max-tokens"),
        (["MODEL", "x", "--threads", "-3"], "invalid_argument", "threads"),
        (["MODEL", "x", "--ctx", "-3"], "invalid_argument", "ctx"),
        (["MODEL", "x", "--logit-bias", "3"], "invalid_argument", "ID=VALUE"),
        (["MODEL", "x", "--logit-bias", "9999=1"], "invalid_argument", "9999"),
        (["MODEL", "x", "--activations", "f16"], "invalid_argument", "activations"),
        (["MODEL", "x", "--stop", ""], "invalid_argument", "stop"),
        (["MODEL", "x", "--nothing"], "invalid_argument", "--nothing"),
        (["MODEL", "x\udcff"], "invalid_argument", "argument 3 is not valid UTF-8 at byte offset 1"),
        (["MODEL", "the cat sat", "--ctx", "1"], "full", "does not fit in a context of 1"),
        (["MODEL"], "invalid_argument", "PROMPT"),
        (["qwen2.5-codr-0.5b", "x"], "not_found", "did you mean 'qwen2.5-coder-0.5b'"),
        (["/absent/model.gguf", "x"], "not_found", "/absent/model.gguf"),
        (["BAD", "x"], "corrupt", "bad.gguf"),
        (["/", "x"], "invalid_argument", "is a directory"),
    ],
)
def test_bad_input_is_told_in_one_line(
    cli: Cli, tiny_path: Path, tmp_path: Path, arguments: list[str], kind: str, message: str
) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 100)
    names = {"MODEL": str(tiny_path), "BAD": str(bad)}
    arguments = [names.get(argument, argument) for argument in arguments]
    result = cli("run", *arguments, "--json")
    [line] = result.lines
    assert result.code == 2 and result.err == ""
    assert line["error"]["kind"] == kind and message in line["error"]["message"]
    assert "file" in line["error"]
    result = cli("run", *arguments)
    assert result.code == 2 and result.out == ""
    assert result.err.startswith("error: ") and result.err.count("\n") == 1 and "Traceback" not in result.err


def test_errors_name_file_and_offset(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 100)
    error = cli("run", path, "x", "--json").lines[0]["error"]
    assert error["file"] == str(path) and error["offset"] >= 4
    error = cli("run", path, "-", "--json", stdin=b"ab\xffc").lines[0]["error"]
    assert "0xff at byte offset 2" in error["message"] and error["offset"] == 2


def test_debug_shows_the_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVART_DEBUG", "1")
    assert "Traceback" in cli("run", "absent", "x").err


def test_a_bug_of_ours_exits_with_one(cli: Cli, tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object, **__: object) -> None:
        raise ZeroDivisionError("sorry")

    monkeypatch.setattr("kvart.cli.params.load", break_down)
    result = cli("run", tiny_path, "x", "--json")
    assert result.code == 1
    assert result.lines[0]["error"] == {"kind": "internal", "message": "a bug in kvart: sorry", "file": None}


def test_a_reader_that_leaves_is_no_error(tiny_path: Path) -> None:
    script = "from kvart.cli import main; main()"
    command = [sys.executable, "-c", script, "run", str(tiny_path), "the cat", "-q", "-n", "400"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


# --- pull ---


def test_pull_tells_what_is_there(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVART_CACHE", str(tmp_path))
    monkeypatch.setattr(kvart.manifest.Entry, "is_pulled", True)
    [line] = cli("pull", "qwen2.5-coder-0.5b", "--json").lines
    assert {"name", "path", "bytes", "sha256"} <= set(line)
    assert line["path"] == str(tmp_path / "models" / "qwen2.5-coder-0.5b.gguf")
    assert len(cli("pull", "--list", "--json").lines) == 2
    assert "Apache-2.0" in cli("pull", "--list").out


def test_pull_refuses_what_it_does_not_know(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = cli("pull", "qwen", "--json")
    assert result.code == 2 and result.lines[0]["error"]["kind"] == "not_found"
    assert cli("pull").code == 2
    monkeypatch.setenv("KVART_CACHE", str(tmp_path))
    result = cli("run", "qwen2.5-coder-1.5b", "x", "--json")
    assert "kvart pull qwen2.5-coder-1.5b" in result.lines[0]["error"]["message"]


# --- eval and bench ---


def test_perplexity(cli: Cli, tiny: kvart.Model, tiny_path: Path, tmp_path: Path) -> None:
    import numpy as np

    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat, and the other cat there. " * 12)
    ids = tiny.tokenizer.encode(text.read_text())
    result = cli("eval", "perplexity", tiny_path, "--text", text, "--ctx", 100, "--kv", "f32", "--json")
    [line] = result.lines
    windows = len(ids) // 100
    nll = []
    for window in range(windows):
        part = ids[window * 100 : (window + 1) * 100]
        logits = tiny.logits(part, kv="f32").astype(np.float64)
        log_p = (
            logits
            - np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1, keepdims=True))
            - logits.max(1, keepdims=True)
        )
        nll += [-log_p[i, part[i + 1]] for i in range(99)]
    assert line["positions"] == windows * 99 == len(nll)
    assert line["ppl"] == pytest.approx(np.exp(np.mean(nll)), rel=1e-9)
    assert (line["kv"], line["ctx"], line["bits_per_value"], line["base_kv"]) == ("f32", 100, 32, None)
    arguments = ["eval", "perplexity", tiny_path, "--text", text, "--ctx", 100, "--kv", "f16", "--against", "f32"]
    [line] = cli(*arguments, "--json").lines
    assert line["base_ppl"] == pytest.approx(np.exp(np.mean(nll)), rel=1e-9)
    assert 0 <= line["kld_mean"] <= line["kld_p99"] <= line["kld_max"] < 1e-3
    assert line["top1"] > 0.98 and line["ppl_ratio"] == pytest.approx(1, abs=1e-2)
    fields = "model text ctx kv ppl base_kv base_ppl ppl_ratio kld_mean kld_p99 kld_max top1 bits_per_value positions"
    assert set(fields.split()) <= set(line)
    assert "KL mean" in cli(*arguments).out


def test_perplexity_of_the_wrong_things(cli: Cli, tiny_path: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(b"too short")
    start = ["eval", "perplexity", tiny_path, "--json", "--text"]
    assert "one window of --ctx takes 512" in cli(*start, text).lines[0]["error"]["message"]
    assert cli(*start, tmp_path / "absent").lines[0]["error"]["kind"] == "not_found"
    assert "ctx" in cli(*start, text, "--ctx", 1).lines[0]["error"]["message"]
    text.write_bytes(b"bad \xff")
    assert cli(*start, text).lines[0]["error"]["offset"] == 4
    assert "int3" in cli(*start, text, "--kv", "f16,int3").lines[0]["error"]["message"]


def test_bench_has_its_fields(cli: Cli, tiny_path: Path) -> None:
    arguments = ["bench", tiny_path, "--prompt", 20, "--gen", 5, "--depth", "0,40", "--kv", "f16,k=f32,v=f16", "-r", 2]
    lines = cli(*arguments, "--json").lines
    assert [(line["test"], line["depth"], line["kv"]) for line in lines] == [
        (test, depth, kv) for kv in ("f16", "k=f32,v=f16") for depth in (0, 40) for test in ("prefill", "decode")
    ]
    fields = "test tokens depth kv threads tok_s tok_s_min tok_s_max bytes_per_token gb_s"
    for line in lines:
        assert set(fields.split()) <= set(line)
        assert 0 < line["tok_s_min"] <= line["tok_s"] <= line["tok_s_max"]
        assert line["tokens"] == (20 if line["test"] == "prefill" else 5)
        assert line["bytes_per_token"] > 0 and line["gb_s"] > 0
    assert "tok/s" in cli(*arguments).out
    assert cli("bench", tiny_path, "--depth", "x", "--json").lines[0]["error"]["kind"] == "invalid_argument"
    assert cli("bench", tiny_path, "--depth", "600", "--json").code == 2


def test_bench_finds_no_pages_of_its_own(make_tiny: Callable[..., Path], tmp_path: Path) -> None:
    from kvart.bench import bench

    model = kvart.Model(make_tiny(context_length=2048), kv_dir=tmp_path / "pages")
    for _ in range(2):
        assert len(list(bench(model, prompt=400, gen=3, depths=[0, 300], repetitions=2))) == 4
    assert model.stats["reused_positions"] == 0


def test_lists_of_formats() -> None:
    assert split_kv("f16,k=f32,v=f16,f32") == ["f16", "k=f32,v=f16", "f32"]
    for wrong in ("k=f16", "f16,v=f16", "", "k=f16,v=f16,v=f32"):
        with pytest.raises(kvart.Error):
            split_kv(wrong)


# --- streams ---


def shell(line: str, *args: object, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """line in sh, where K is the command kvart and $1 … are args."""
    script = f'K() {{ "{sys.executable}" -m kvart "$@"; }}; {line}'
    command = ["sh", "-c", script, "sh", *map(str, args)]
    return subprocess.run(command, capture_output=True, timeout=60, check=False, env={**os.environ, **environment})


def test_output_is_utf8_whatever_the_locale_says(tiny_path: Path) -> None:
    line = 'K run "$1" "héé" -n 3 --temperature 0 --logit-bias 100=0 --json; K run "é界" x'
    done = shell(line, tiny_path, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert json.loads(done.stdout)["stop"]
    assert "é界" in done.stderr.decode() and "bug" not in done.stderr.decode()


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_do_no_harm(tiny_path: Path, closed: str) -> None:
    for line, code in ((f'K run "$1" "the cat" -n 3 {closed}', 0), (f'K run "$1" - --json {closed}', 2)):
        done = shell(line, tiny_path)
        assert done.returncode == code and b"bug" not in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("flag", ["--json", "-q"])
def test_output_that_can_not_be_written_is_one_error(tiny_path: Path, flag: str) -> None:
    done = shell(f'K run "$1" "the cat" -n 3 {flag} > /dev/full', tiny_path)
    assert done.returncode == 1
    [line] = done.stderr.decode().splitlines()
    assert line.startswith("error: ") and "No space" in line
    assert shell(f'K run "$1" "the cat" -n 3 {flag} 2> /dev/full > /dev/full', tiny_path).returncode == 1


def test_an_empty_kv_dir_is_refused(cli: Cli, tiny_path: Path) -> None:
    for command in (["run", tiny_path, "x"], ["cache", "list"], ["cache", "clear"]):
        result = cli(*command, "--kv-dir", "", "--json")
        assert result.code == 2 and "expected a path, found ''" in result.lines[0]["error"]["message"]


# --- chat ---


def test_chat_from_a_pipe(cli: Cli, tiny_path: Path) -> None:
    options = ["-n", 5, "--temperature", 0, "--json"]
    result = cli("chat", tiny_path, *options, stdin=b"hello\n\nand you?\n/retry\n/exit\nnever read\n")
    first, second, retried = result.lines
    assert result.code == 0 and set(first) == RUN_FIELDS
    assert len(second["prompt_tokens"]) < 40  # only the second turn
    assert retried["tokens"] == second["tokens"] and len(retried["prompt_tokens"]) == 1
    told = cli("chat", tiny_path, *options, "--system", "be short", stdin=b"hello\n").lines
    assert told[0]["prompt_tokens"] != first["prompt_tokens"]
    again = cli("chat", tiny_path, *options, stdin=b"x\n/reset\nhello\n").lines
    assert again[1]["tokens"] == first["tokens"]


def test_chat_goes_on_after_a_bad_line(cli: Cli, tiny_path: Path) -> None:
    result = cli("chat", tiny_path, "-n", 3, "--ctx", 150, "--json", stdin=b"\xff\n" + b"x" * 300 + b"\nhello\n")
    bad, long, good = result.lines
    assert result.code == 2
    assert bad["error"]["kind"] == "invalid_argument" and "line 1" in bad["error"]["message"]
    assert long["error"]["kind"] == "full"
    assert set(good) == RUN_FIELDS


class Terminal:
    """A command on a pseudo-terminal."""

    def __init__(self, *args: object) -> None:
        # The child makes the terminal its own, so that Ctrl-C reaches it as a signal.
        script = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from kvart.cli import main; main()"
        self.fd, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, args)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=ENVIRONMENT | {"KVART_KV_DIR": os.environ["KVART_KV_DIR"]},
            start_new_session=True,
        )
        os.close(theirs)
        self.seen = ""

    def type(self, keys: str | bytes) -> None:
        os.write(self.fd, keys.encode() if isinstance(keys, str) else keys)

    def wait_for(self, pattern: str, seconds: float = 30) -> str:
        """Reads until the pattern is there; returns all up to its end, and forgets it."""
        if not self._read_until(pattern, seconds):
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"no {pattern!r} in {self.seen!r}")
        match = re.search(pattern, self.seen)
        assert match is not None
        text, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return text

    def interrupt_at_prompt(self, pattern: str) -> None:
        """Ctrl-C, again when nothing follows: Python may not notice one while it sets up a prompt."""
        for _ in range(20):
            self.type("\x03")
            if self._read_until(pattern, 1):
                break
        self.wait_for(pattern, 1)

    def _read_until(self, pattern: str, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not re.search(pattern, self.seen):
            ready, _, _ = select.select([self.fd], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                return False
            try:
                self.seen += os.read(self.fd, 4096).decode(errors="replace")
            except OSError:  # it has ended
                return False
        return True

    def end(self) -> int:
        """The exit code, once it has ended by itself."""
        try:
            return self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self.fd)


PROMPT = r"> $"


def test_chat_on_a_terminal(tiny_path: Path) -> None:
    terminal = Terminal("chat", tiny_path, "-n", 5, "--verbose")
    terminal.wait_for("/help")
    terminal.wait_for(PROMPT)
    terminal.type("hello\r")
    terminal.wait_for(r"tok/s")
    terminal.wait_for(PROMPT)
    terminal.type("/help\r")
    terminal.wait_for("/retry")
    terminal.wait_for(PROMPT)
    terminal.type("/stats\r")
    terminal.wait_for(r"context\s+\d+ of 512 tokens")
    terminal.wait_for(PROMPT)
    terminal.type("/nothing\r")
    terminal.wait_for("no command /nothing")
    terminal.wait_for(PROMPT)
    terminal.type(b"ab\xff\r")
    terminal.wait_for("not valid UTF-8 at byte offset 2")
    terminal.wait_for(PROMPT)
    terminal.interrupt_at_prompt("Ctrl-D leaves")
    terminal.wait_for(PROMPT)
    terminal.type("\x04")
    assert terminal.end() == 0


def test_a_session_on_a_terminal_shows_where_it_was(tiny_path: Path) -> None:
    for question, shown in (("hello", r"diary: a new session"), ("and you?", r"(?s)\d+ tokens, .*> hello")):
        terminal = Terminal("chat", tiny_path, "-n", 5, "--temperature", 0, "--session", "diary", "--verbose")
        terminal.wait_for(shown)
        terminal.wait_for("/help")
        terminal.wait_for(PROMPT)
        terminal.type(question + "\r")
        terminal.wait_for(r"tok/s")
        terminal.wait_for(PROMPT)
        terminal.type("/exit\r")
        assert terminal.end() == 0


def test_ctrl_c_stops_an_answer_and_keeps_the_chat(make_tiny: Callable[..., Path]) -> None:
    model = make_tiny(context_length=1 << 20)
    tokenizer = kvart.Tokenizer(str(model))
    biases = [part for id in tokenizer.end_ids for part in ("--logit-bias", f"{id}=-1e9")]
    terminal = Terminal("chat", model, "--temperature", 0.5, *biases)
    terminal.wait_for(PROMPT)
    terminal.type("hello\r")
    terminal.wait_for(r"hello[\s\S]{60}")  # it is writing, and would for long
    terminal.type("\x03")
    terminal.wait_for("stopped")
    terminal.wait_for(PROMPT)
    terminal.type("/stats\r")
    terminal.wait_for(r"context\s+\d+ of")
    terminal.wait_for(PROMPT)
    terminal.type("/exit\r")
    assert terminal.end() == 0


def test_ctrl_c_ends_a_run_with_what_there_is(make_tiny: Callable[..., Path]) -> None:
    model = make_tiny(context_length=1 << 20)
    tokenizer = kvart.Tokenizer(str(model))
    biases = [part for id in tokenizer.end_ids for part in ("--logit-bias", f"{id}=-1e9")]
    script = "from kvart.cli import main; main()"
    command = [sys.executable, "-c", script, "run", str(model), "the cat", "-n", "1000000", *biases]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    last = json.loads(out)
    assert (last["stop"], process.returncode) == ("cancel", 130), err
    assert len(last["tokens"]) > 0

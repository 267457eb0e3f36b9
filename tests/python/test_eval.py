"""Evaluation: the figures of perplexity and recall, their command lines, the plot, and the gate for INT4."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvart
from kvart.cli import _main
from kvart.evaluate import perplexity
from kvart.recall import extract, make_text, recall

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"


@pytest.fixture(scope="module")
def model(make_tiny: Callable[..., Path]) -> kvart.Model:
    return kvart.Model(make_tiny(context_length=8192), threads=2)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max(1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(1, keepdims=True))


def test_the_figures_are_those_of_the_logits(model: kvart.Model) -> None:
    ids = np.random.RandomState(1).randint(0, 380, 640).tolist()
    ctx = 300
    rows = perplexity(model, ids, ctx=ctx, kv=["int4", "f16"], against="f32")
    assert [row["kv"] for row in rows] == ["int4", "f16"]
    for row in rows:
        nll, base_nll, divergences, same = [], [], [], []
        for start in (0, ctx):  # the 40 tokens behind are left out
            part = ids[start : start + ctx]
            log_p, log_q = (log_softmax(model.logits(part, kv=kv))[:-1] for kv in (row["kv"], "f32"))
            nll += (-log_p[np.arange(ctx - 1), part[1:]]).tolist()
            base_nll += (-log_q[np.arange(ctx - 1), part[1:]]).tolist()
            divergences += (np.exp(log_q) * (log_q - log_p)).sum(1).tolist()
            same += (log_p.argmax(1) == log_q.argmax(1)).tolist()
        assert (row["positions"], row["windows"], row["ctx"], row["base_kv"]) == (2 * (ctx - 1), 2, ctx, "f32")
        assert row["ppl"] == pytest.approx(np.exp(np.mean(nll)), rel=1e-9)
        assert row["base_ppl"] == pytest.approx(np.exp(np.mean(base_nll)), rel=1e-9)
        assert row["ppl_ratio"] == pytest.approx(row["ppl"] / row["base_ppl"])
        assert row["kld_mean"] == pytest.approx(np.mean(divergences), rel=1e-4, abs=1e-12)
        assert row["kld_p99"] == pytest.approx(np.percentile(divergences, 99), rel=1e-4, abs=1e-12)
        assert row["kld_max"] == pytest.approx(np.max(divergences), rel=1e-4, abs=1e-12)
        assert row["top1"] == np.mean(same)
    assert rows[0]["kld_mean"] > rows[1]["kld_mean"] > 0
    assert rows[1]["bits_per_value"] == 16 and 4 < rows[0]["bits_per_value"] < 16


def test_a_format_beside_itself_is_no_distance(model: kvart.Model) -> None:
    [row] = perplexity(model, list(range(300)), ctx=300, kv="int4", against="int4")
    assert (row["kld_max"], row["top1"], row["ppl_ratio"]) == (0, 1, 1)


def test_progress_ends_and_cancels(model: kvart.Model) -> None:
    seen: list[float] = []
    perplexity(model, list(range(200)), ctx=100, progress=seen.append)
    assert seen == sorted(seen) and len(seen) == 4 and 0.98 < seen[-1] <= 1

    def stop(done: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        perplexity(model, list(range(200)), ctx=100, progress=stop)


Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    def call(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        return (_main([str(arg) for arg in args]), *capfd.readouterr())

    return call


def test_several_texts_and_formats_are_a_line_each(cli: Cli, model: kvart.Model, tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"{name}: the cat sat on the mat and then. " * 30)
    arguments = ["eval", "perplexity", model.name, "--text", tmp_path / "a.txt", "--text", tmp_path / "b.txt"]
    arguments += ["--ctx", 150, "--kv", "int4,k=int8,v=int4", "--against", "f16"]
    code, out, err = cli(*arguments, "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [(Path(line["text"]).name, line["kv"]) for line in lines] == [
        (name, kv) for name in ("a.txt", "b.txt") for kv in ("int4", "k=int8,v=int4")
    ]
    code, out, _ = cli(*arguments)
    assert code == 0 and out.count("\n") == 5 and "KL mean" in out


# --- recall ---


@pytest.mark.parametrize(
    ("answer", "kind", "found"),
    [
        ("The amount is 1,284.50 euros.", r"\d+\.\d{2}", "1284.50"),
        ("Invoice INV-48213.", r"[A-Z]{1,3}-\d{4,6}", "INV-48213"),
        ("它是DD-123456。", r"[A-Z]{1,3}-\d{4,6}", "DD-123456"),
        ("2024年03月17日", r"\d{4}-\d{2}-\d{2}", "2024-03-17"),
        ("１２３", r"\d+", "123"),
        ("12345", r"\d{4}", ""),
        ("112.50", r"2\.\d{2}", ""),
        ("none", r"\d+", ""),
    ],
)
def test_figures_are_found_in_answers(answer: str, kind: str, found: str) -> None:
    assert extract(answer, kind) == found


def test_texts_are_repeatable_and_hold_their_answers() -> None:
    for number in range(4):
        text = make_text(number, 1000, lambda part: len(part) // 3, seed=7)
        again = make_text(number, 1000, lambda part: len(part) // 3, seed=7)
        assert (text.content, text.questions) == (again.content, again.questions)
        assert text.content != make_text(number, 1000, lambda part: len(part) // 3, seed=8).content
        assert len(text.questions) >= 20 and all(question.begin in text.content for question in text.questions)
        assert len({question.text for question in text.questions}) == len(text.questions)
        for question in text.questions:
            assert question.wanted in text.content
            assert extract(question.wanted, question.kind) == question.wanted


def test_recall_counts(model: kvart.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    def answers(_: Any, text: Any, questions: Any, kv: str) -> Any:
        for question in questions:
            asked.append((kv, question.text))
            wrong = question.kind == r"\d+" or (kv == "int4" and len(asked) % 7 == 0)
            yield "no idea" if wrong else f"It is {question.wanted}."

    monkeypatch.setattr("kvart.recall._answers", answers)
    [row, same] = recall(model, kv=["int4", "f16"], questions=50, tokens=800)
    assert row["asked"] == 50 and len(asked) == 100
    assert 0 < row["right"] < row["base_right"] < 50
    assert row["agreement"] == row["both_right"] / row["base_right"] == row["right"] / row["base_right"]
    assert len(row["missed"]) == 50 - row["right"]
    assert (same["kv"], same["agreement"], same["same_answers"]) == ("f16", 1, 50)


def test_recall_reads_a_text_once(cli: Cli, model: kvart.Model) -> None:
    code, out, err = cli("eval", "recall", model.name, "--questions", 12, "--tokens", 600, "--json")
    [line] = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert {"kv", "asked", "right", "base_right", "agreement"} <= set(line)
    assert (line["kv"], line["asked"]) == ("int4", 12)
    before = model.stats["computed_positions"]
    recall(model, questions=12, tokens=600)
    assert model.stats["computed_positions"] - before < 2 * (4 * 1500 + 12 * 250)
    assert "asked" in cli("eval", "recall", model.name, "--questions", 4, "--tokens", 300)[1]


# --- the plot ---


def test_the_plot_and_the_table_are_made_of_json_lines(tmp_path: Path) -> None:
    lines = [
        {
            "model": "m",
            "text": f"{name}.txt",
            "ctx": 512,
            "kv": kv,
            "ppl": 10.0,
            "base_kv": "f16",
            "base_ppl": 10.0,
            "ppl_ratio": 1.0 + kld,
            "kld_mean": kld,
            "kld_p99": 10 * kld,
            "kld_max": 100 * kld,
            "top1": 0.97,
            "bits_per_value": bits,
            "positions": positions,
        }
        for kv, bits, kld in (("int4", 4.5, 0.004), ("int8", 8.5, 0.0001))
        for name, positions in (("en", 1000), ("zh", 3000))
    ]
    recalled = {"model": "m", "kv": "int4", "asked": 3, "right": 2, "base_right": 2, "agreement": 1.0}
    source = tmp_path / "eval.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines) + json.dumps(recalled) + "\n")
    command = [sys.executable, str(ROOT / "tools" / "plot_quality.py"), str(source), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "quality.png").read_bytes().startswith(b"\x89PNG")
    table = (tmp_path / "out" / "quality.md").read_text()
    assert "| m | 512 | int4 | 4.50 | 1.0040 | 0.00400 |" in table and "| int8 |" in table and "| 4000 |" in table
    assert "| m | int4 | 3 | 2 | 2 | 100.0 % |" in table and "llama.cpp" in table
    page = tmp_path / "out" / "quality.md"
    page.write_text("words\n" + table)
    subprocess.run(command, check=True, timeout=120, stdout=subprocess.DEVNULL)
    assert page.read_text() == "words\n" + table
    source.write_text("not json\n")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2 and "eval.jsonl:1" in done.stderr and "Traceback" not in done.stderr


# --- the real model ---


def test_int4_is_near_to_f16(real_model: kvart.Model) -> None:
    """The gate. docs/quality.md has longer texts, and other formats."""
    text = "".join((GOLDEN / f"text_{name}.txt").read_text(encoding="utf-8") for name in ("en", "zh", "code"))
    row, plain = perplexity(real_model, text, ctx=512, kv=["int4", "int4-g128"], against="f16")
    assert row["positions"] >= 1500
    assert row["kld_mean"] <= 0.005, row
    assert row["ppl_ratio"] <= 1.007, row
    assert row["top1"] >= 0.96, row
    assert row["bits_per_value"] == plain["bits_per_value"] <= 4.5  # fine rows cost nothing
    assert row["kld_mean"] < 0.85 * plain["kld_mean"], (row, plain)


def test_figures_are_read_back(real_model: kvart.Model) -> None:
    [row] = recall(real_model, questions=20, tokens=500)
    assert row["base_right"] >= 10, row
    assert row["both_right"] >= row["base_right"] - 1, row

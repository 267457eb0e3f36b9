"""Drafts: the same text as without, in Python and on the command line, and fewer passes where it repeats itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import kvart


def generate(model: kvart.Model, prompt: str, n: int, **options: object) -> tuple[str, dict[str, object]]:
    session = model.session(draft=int(options.pop("draft", 0)))
    session.append(prompt)
    text = "".join(session.generate(max_tokens=n, logit_bias=dict.fromkeys(model.tokenizer.end_ids, -1e9), **options))
    return text, session.stats


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 3}, {"repetition_penalty": 1.1}])
def test_same_text(tiny: kvart.Model, options: dict[str, object]) -> None:
    expected, plain = generate(tiny, "one two three one two three one two", 60, **options)
    for draft in (1, 4, 16):
        text, stats = generate(tiny, "one two three one two three one two", 60, draft=draft, **options)
        assert text == expected
        assert stats["logits_hash"] == plain["logits_hash"]
        assert stats["drafted_tokens"] >= stats["accepted_tokens"]
    assert plain["drafted_tokens"] == 0


def test_real_text_comes_in_fewer_passes(real_model: kvart.Model) -> None:
    code = "def area(w, h):\n    return w * h\n\ndef area(w, h):\n"
    expected, _ = generate(real_model, code, 24)
    text, stats = generate(real_model, code, 24, draft=8)
    assert text == expected
    assert stats["accepted_tokens"] >= 8  # of 24: it repeats the function


def test_command_line(tiny_path: Path) -> None:
    command = [sys.executable, "-m", "kvart", "run", str(tiny_path), "one two three", "--max-tokens", "20", "--json"]
    texts = []
    for draft in ([], ["--draft", "6"]):
        done = subprocess.run([*command, *draft], capture_output=True, text=True, timeout=120, check=True)
        texts.append("".join(json.loads(line).get("text", "") for line in done.stdout.splitlines()))
    assert texts[0] == texts[1]
    refused = subprocess.run([*command, "--draft", "65"], capture_output=True, text=True, timeout=120, check=False)
    assert refused.returncode != 0 and "draft" in refused.stdout + refused.stderr

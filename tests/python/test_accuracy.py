"""The decoder against the truth: transformers in float32 over the same weights (tests/golden)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import reference

import kvart

GOLDEN = Path(__file__).parents[1] / "golden"
TEXTS = reference.load_reference(GOLDEN / "reference_qwen2.5-coder-0.5b.npz")

# What llama.cpp reaches on the same tokens, over the same buckets (docs/accuracy.md): the most that int8 activations
# may cost.
PEER_KL = 0.000775


def divergence(model: kvart.Model) -> dict[str, float | int]:
    kl, same = [], []
    for text in TEXTS:
        logits = model.logits(text.ids.tolist(), kv="f16")
        kl.append(reference.bucketed_kl(text, logits))
        same.append(reference.same_top1(text, logits))
    return reference.summarize(np.concatenate(kl), np.concatenate(same))


def test_float_activations_are_right(real_model_path: Path) -> None:
    found = divergence(kvart.Model(real_model_path, activations="f32"))
    assert found["positions"] >= 1500
    assert found["kld_mean"] <= 0.00005, found  # measured 0.000001; 0.0005 is the limit we owe
    assert found["top1"] >= 0.995, found


def test_int8_activations_are_no_further_away_than_the_peer(real_model: kvart.Model) -> None:
    found = divergence(real_model)
    assert found["kld_mean"] <= PEER_KL, found
    assert found["top1"] >= 0.985, found


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("tiny_*.npz")), ids=lambda path: path.stem)
def test_tiny_models_equal_transformers(path: Path, make_tiny: Callable[..., Path]) -> None:
    tiny = reference.load_tiny(path)
    model = kvart.Model(make_tiny(**tiny.options), threads=1)
    logits = model.logits(tiny.ids.tolist(), kv="f32")
    assert np.abs(logits - tiny.logits).max() < 1e-3
    assert (logits.argmax(-1) == tiny.logits.argmax(-1)).all()


MEMORY = """
import sys, kvart
model = kvart.Model(sys.argv[1], threads=2)
session = model.session(kv="f16")
session.append(list(range(1000, 1000 + 1024)))
session.generate(max_tokens=8).read()
with open("/proc/self/status") as status:
    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
print(peak, session.stats["kv_bytes"])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_peak_memory_is_the_file_and_the_cache_and_little_more(real_model_path: Path) -> None:
    command = [sys.executable, "-c", MEMORY, str(real_model_path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, kv = map(int, out.stdout.split())
    assert peak <= real_model_path.stat().st_size + kv + 150e6

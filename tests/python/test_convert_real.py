"""kvart convert with the real model: GGUF → checkpoint directory → GGUF, and the logits stay."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import reference

import kvart

IDS = (
    reference.load_reference(Path(__file__).parents[1] / "golden" / "reference_qwen2.5-coder-0.5b.npz")[0]
    .ids[:40]
    .tolist()
)

CONVERT = """
import json, sys
from kvart.convert import convert
report = convert(sys.argv[1], sys.argv[2], type=sys.argv[3])
with open("/proc/self/status") as status:
    report["peak"] = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
print(json.dumps(report))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Gone after the tests: 6 GB are not left lying about."""
    path = tmp_path_factory.mktemp("real")
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def checkpoint(real_model_path: Path, folder: Path) -> Path:
    """In float32, where the values of the GGUF's blocks are exact, in shards."""
    from make_checkpoint import make_checkpoint

    return make_checkpoint(real_model_path, folder / "Qwen2.5-Coder-0.5B-Instruct", dtype="F32", shard_mb=600)


def logits(path: Path) -> np.ndarray:
    return kvart.Model(path, activations="f32").logits(IDS, kv="f32")


@pytest.fixture(scope="module")
def truth(real_model_path: Path) -> np.ndarray:
    """The checkpoint's own logits: its weights are the values of this file, and activations are floats."""
    return logits(real_model_path)


def run(checkpoint: Path, out: Path, recipe: str) -> dict[str, object]:
    command = [sys.executable, "-c", CONVERT, str(checkpoint), str(out), recipe]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, object] = json.loads(done.stdout)
    return report


def test_logits_stay_in_f32(checkpoint: Path, folder: Path, truth: np.ndarray, real_model_path: Path) -> None:
    out = folder / "f32.gguf"
    kvart.convert.convert(checkpoint, out, type="f32", verify=False)
    assert np.abs(logits(out) - truth).max() < 1e-3
    found, wanted = kvart.GgufFile(str(out)), kvart.GgufFile(str(real_model_path))
    assert [(t.name, t.dims) for t in found.tensors] == [(t.name, t.dims) for t in wanted.tensors]
    # This file is of llama.cpp's converter: what differs is said in docs/convert.md.
    changed = {key for key in wanted.keys() if found.get(key) != wanted.get(key)}  # noqa: SIM118
    assert changed == {"general.name", "general.finetune", "general.file_type"}
    added = set(found.keys()) - set(wanted.keys())
    assert added == {"general.sampling.top_k", "general.sampling.top_p", "general.sampling.temp"}
    os.unlink(out)


def test_q8_0_is_near_and_takes_little_memory(checkpoint: Path, folder: Path, truth: np.ndarray) -> None:
    out = folder / "q8_0.gguf"
    report = run(checkpoint, out, "q8_0")
    kl = reference.full_kl(truth, logits(out))
    assert kl.mean() < 0.001, kl.mean()
    assert report["bits_per_weight"] == pytest.approx(8.5, abs=0.01)
    assert report["verify"]["run"]["ppl"] < 60  # type: ignore[index]
    assert report["peak"] < 1.5e9  # type: ignore[operator]  # with the model that is run at the end
    os.unlink(out)


@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="needs xllamacpp")
def test_llama_cpp_writes_the_same_in_f16(checkpoint: Path, folder: Path) -> None:
    from check_llamacpp import PROMPT, run_kvart, run_llamacpp

    out = folder / "f16.gguf"
    kvart.convert.convert(checkpoint, out, type="f16", verify=False)
    ours, theirs = (run(out, PROMPT, 32) for run in (run_kvart, run_llamacpp))
    assert ours == theirs and len(ours) > 60

"""The yardstick itself: committed reference values, the divergence computed from them, and the tiny model maker."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"


def noisy_text() -> tuple[reference.ReferenceText, reference.Floats, reference.Floats]:
    random = np.random.RandomState(0)
    truth = (3 * random.standard_normal((70, 500))).astype(np.float32)
    ours = truth + (0.1 * random.standard_normal(truth.shape)).astype(np.float32)
    return reference.ReferenceText("t", np.zeros(70, np.int32), *reference.reduce_logits(truth)), truth, ours


def test_committed_values_are_distributions() -> None:
    texts = reference.load_reference(GOLDEN / "reference_qwen2.5-coder-0.5b.npz")
    assert [t.name for t in texts] == ["en", "zh", "code"]
    assert sum(len(t.ids) for t in texts) >= 1500
    for text in texts:
        assert text.top_ids.shape == text.top_logprobs.shape == (len(text.ids), 64)
        mass = np.exp(text.top_logprobs.astype(np.float64)).sum(axis=-1) + np.exp(text.rest_logprob.astype(np.float64))
        np.testing.assert_allclose(mass, 1.0, atol=1e-5)
        assert (np.diff(text.top_logprobs, axis=-1) <= 0).all()
        assert all(len(set(row)) == 64 for row in text.top_ids)


def test_divergence_is_zero_on_itself_and_a_lower_bound_elsewhere() -> None:
    text, truth, ours = noisy_text()
    assert np.abs(reference.bucketed_kl(text, truth)).max() < 1e-6
    assert reference.same_top1(text, truth).all()
    bucketed, full = reference.bucketed_kl(text, ours), reference.full_kl(truth, ours)
    assert (bucketed > 1e-5).all()
    assert (bucketed <= full + 1e-6).all()
    assert bucketed.mean() > 0.5 * full.mean()


def test_divergence_is_right_by_hand() -> None:
    # Two tokens kept of four: buckets 1/2, 1/4, rest 1/4 against 1/4, 1/4, rest 1/2.
    truth = np.log(np.array([[0.5, 0.25, 0.125, 0.125]], np.float32))
    ours = np.log(np.array([[0.25, 0.25, 0.25, 0.25]], np.float32))
    text = reference.ReferenceText("t", np.zeros(1, np.int32), *reference.reduce_logits(truth, k=2))
    expected = 0.5 * np.log(2) + 0.25 * np.log(1 / 2)
    np.testing.assert_allclose(reference.bucketed_kl(text, ours), [expected], atol=1e-6)


def test_adding_a_constant_changes_nothing_and_a_shifted_row_is_seen() -> None:
    text, truth, _ = noisy_text()
    assert np.abs(reference.bucketed_kl(text, truth + np.float32(50))).max() < 1e-5
    assert reference.bucketed_kl(text, np.roll(truth, 1, axis=0)).mean() > 1


@pytest.mark.parametrize("shape", [(69, 500), (71, 500), (500,)])
def test_wrong_shapes_are_refused(shape: tuple[int, ...]) -> None:
    text, _, _ = noisy_text()
    with pytest.raises(ValueError, match="logits must be"):
        reference.bucketed_kl(text, np.zeros(shape, np.float32))


@pytest.fixture(scope="module")
def make_tiny_model() -> Any:
    pytest.importorskip("gguf")
    sys.path.insert(0, str(ROOT / "tools"))
    from make_tiny_model import make_tiny_model

    return make_tiny_model


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("tiny_*.npz")), ids=lambda p: p.stem)
def test_tiny_models_can_be_made_anew(make_tiny_model: Any, tmp_path: Path, path: Path) -> None:
    tiny = reference.load_tiny(path)
    assert np.isfinite(tiny.logits).all()
    assert tiny.logits.shape[0] == len(tiny.ids)
    one = make_tiny_model(tmp_path / "one.gguf", **tiny.options).read_bytes()
    two = make_tiny_model(tmp_path / "two.gguf", **tiny.options).read_bytes()
    assert one == two
    assert one != make_tiny_model(tmp_path / "three.gguf", **{**tiny.options, "seed": 99}).read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"arch": "llama"}, "arch must be"),
        ({"n_heads": 4, "n_kv_heads": 3}, "multiple of n_kv_heads"),
        ({"arch": "qwen2", "head_dim": 32}, "head_dim"),
        ({"weight_type": "Q4_K"}, "multiple of 256"),
        ({"weight_type": "Q9"}, "is not one of"),
        ({"vocab": 100}, "added tokens need"),
        ({"rope_scaling": "ntk"}, "rope_scaling must be"),
    ],
)
def test_bad_options_are_refused(make_tiny_model: Any, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_tiny_model(tmp_path / "bad.gguf", **options)


def test_a_split_model_is_returned_by_its_first_file(make_tiny_model: Any, tmp_path: Path) -> None:
    first = make_tiny_model(tmp_path / "parts.gguf", split_tensors=10)
    assert first.name == "parts-00001-of-00003.gguf"
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"parts-0000{i}-of-00003.gguf" for i in (1, 2, 3)]

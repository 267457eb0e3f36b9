"""kvart convert and checkpoints that lie: each is an error that says what was found, and no file is left behind."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvart
from kvart.convert import convert
from kvart.convert import writer as writer_module

Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def pristine(make_tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint in one file; never changed."""
    from make_checkpoint import make_checkpoint

    return make_checkpoint(make_tiny(), tmp_path_factory.mktemp("pristine") / "Tiny-1B", dtype="F32")


@pytest.fixture(scope="module")
def pristine_shards(make_tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One of three shards."""
    from make_checkpoint import make_checkpoint, write_json

    source = make_checkpoint(make_tiny(), tmp_path_factory.mktemp("shards") / "Tiny-1B", dtype="F32")
    whole = (source / "model.safetensors").read_bytes()
    header = header_of(whole)
    names = sorted(header)
    index = {}
    for number in range(3):
        shard = f"model-{number + 1:05}-of-00003.safetensors"
        part = {name: header[name] for name in names[number::3]}
        data = b"".join(
            whole[slice(*(len(whole) - size(header) + i for i in e["data_offsets"]))] for e in part.values()
        )
        at = 0
        moved = {}
        for name, entry in part.items():
            n = entry["data_offsets"][1] - entry["data_offsets"][0]
            moved[name] = {**entry, "data_offsets": [at, at + n]}
            at += n
        (source / shard).write_bytes(pack(moved, data))
        index |= dict.fromkeys(part, shard)
    (source / "model.safetensors").unlink()
    write_json(source / "model.safetensors.index.json", {"metadata": {}, "weight_map": index})
    return source


@pytest.fixture
def source(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "in" / "Tiny-1B"))


@pytest.fixture
def shards(pristine_shards: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine_shards, tmp_path / "in" / "Tiny-1B"))


def header_of(data: bytes) -> dict[str, Any]:
    n = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + n])
    header.pop("__metadata__", None)
    return header


def size(header: dict[str, Any]) -> int:
    return max(entry["data_offsets"][1] for entry in header.values())


def pack(header: dict[str, Any] | bytes, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def edit_header(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = path.read_bytes()
    header = header_of(data)
    body = data[len(data) - size(header) :]
    change(header)
    path.write_bytes(pack(header, body))


def edit(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | values), "utf-8")


def index(weight_map: dict[str, Any]) -> Change:
    return lambda source: edit(source / "model.safetensors.index.json", weight_map=weight_map)


def tokenizer_config(**values: Any) -> Change:
    return lambda source: edit(source / "tokenizer_config.json", **values)


def poke(path: Path, name: str, value: float, at: int = 5) -> None:
    """Sets one value of a float32 tensor."""
    data = bytearray(path.read_bytes())
    header = header_of(bytes(data))
    offset = len(data) - size(header) + header[name]["data_offsets"][0] + 4 * at
    data[offset : offset + 4] = np.float32(value).tobytes()
    path.write_bytes(bytes(data))


def refused(source: Path, out: Path, kind: type[kvart.Error], message: str, **options: Any) -> kvart.Error:
    """Converts, wants that error, and that the directory of out stays empty."""
    out.mkdir(exist_ok=True)
    with pytest.raises(kind, match=message) as caught:
        convert(source, out / "out.gguf", **{"type": "q8_0", **options})
    assert not list(out.iterdir())
    return caught.value


FIRST = "lm_head.weight"
NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda d: d.write_bytes(d.read_bytes()[:-1]), kvart.Corrupt, "the file is cut short or its header is wrong"),
        (lambda d: d.write_bytes(d.read_bytes() + b"x"), kvart.Corrupt, "the tensors take"),
        (lambda d: d.write_bytes(d.read_bytes()[:100]), kvart.Corrupt, "the header claims .* 92 follow"),
        (lambda d: d.write_bytes(b"\x01\x02"), kvart.Corrupt, "the file has 2 bytes"),
        (lambda d: d.write_bytes(b""), kvart.Corrupt, "the file has 0 bytes"),
        (lambda d: d.write_bytes(b"\xff" * 8 + d.read_bytes()[8:]), kvart.Corrupt, "claims 18446744073709551615 bytes"),
        (lambda d: d.write_bytes((2**63).to_bytes(8, "little") + b"{}"), kvart.Corrupt, "claims 9223372036854775808"),
        (lambda d: d.write_bytes(pack(b"{nonsense", b"")), kvart.Corrupt, "is not JSON"),
        (lambda d: d.write_bytes(pack(b"[" * 100_000, b"")), kvart.Corrupt, "is not JSON"),
        (lambda d: d.write_bytes(pack(b"[1]", b"")), kvart.Corrupt, "expected a JSON object, found list"),
        (lambda d: d.write_bytes(pack(b'{"a": "\xff"}', b"")), kvart.Corrupt, "not valid UTF-8 at byte 7"),
        (lambda d: d.write_bytes(pack(b'{"a": {}, "a": {}}', b"")), kvart.Corrupt, "'a' stands there twice"),
        (lambda d: d.write_bytes(pack(b'{"a": 7}', b"")), kvart.Corrupt, "tensor a: the header has the dtype None"),
        (lambda d: d.write_bytes(b"PK\x03\x04" + d.read_bytes()), kvart.Unsupported, "is a pickle"),
        (lambda d: d.write_bytes(b"\x80\x02}q\x00." + d.read_bytes()), kvart.Unsupported, "is a pickle"),
        (lambda d: (d.unlink(), os.mkfifo(d)), kvart.InvalidArgument, "no regular file"),
        (lambda d: (d.unlink(), d.mkdir()), kvart.InvalidArgument, "no regular file"),
        (lambda d: poke(d, FIRST, np.nan), kvart.Corrupt, "lm_head.weight holds nan at row 0, column 5"),
        (lambda d: poke(d, FIRST, np.inf, 64 * 383 + 63), kvart.Corrupt, "holds inf at row 383, column 63"),
        (lambda d: poke(d, NORM, -np.inf), kvart.Corrupt, "model.norm.weight holds -inf"),
        (lambda d: poke(d, FIRST, 1e5), kvart.InvalidArgument, "output.weight holds 100000, too large for q8_0"),
    ],
)
def test_a_broken_safetensors_file(
    source: Path, tmp_path: Path, change: Change, kind: type[kvart.Error], message: str
) -> None:
    change(source / "model.safetensors")
    error = refused(source, tmp_path / "out", kind, message)
    assert error.file is not None or kind is kvart.InvalidArgument


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda h: h[FIRST].update(dtype="I8", shape=[384, 256]), kvart.Corrupt, "has shape .*calls for"),
        (lambda h: h[FIRST].update(dtype="I32"), kvart.Unsupported, "dtype I32; expected one of F32, F16, BF16"),
        (lambda h: h[FIRST].update(dtype="F4"), kvart.Corrupt, "the dtype 'F4'; known are"),
        (lambda h: h[FIRST].update(dtype=["F32"]), kvart.Corrupt, "the header has the dtype"),
        (lambda h: h[FIRST].update(dtype="BF16"), kvart.Corrupt, "BF16 of shape .* takes 49152 bytes, found 98304"),
        (lambda h: h[FIRST].update(shape=[384, -64]), kvart.Corrupt, "expected a list of sizes"),
        (lambda h: h[FIRST].update(shape=[2**62, 2**62, 2**62]), kvart.Corrupt, "takes .* bytes, found"),
        (lambda h: h[FIRST].update(shape=[1] * 3000), kvart.Corrupt, "expected a list of sizes"),
        (lambda h: h[FIRST].update(shape=[64, 384]), kvart.Corrupt, r"shape \[64, 384\]; config.json calls for"),
        (lambda h: h[FIRST].update(shape=[True, 24576]), kvart.Corrupt, "expected a list of sizes"),
        (lambda h: h[FIRST].update(data_offsets=[0]), kvart.Corrupt, "expected a begin and an end"),
        (lambda h: h[FIRST].update(data_offsets=[98304, 0]), kvart.Corrupt, "lies at bytes 98304 to 0"),
        (lambda h: h[FIRST].update(data_offsets=[0, 2**64]), kvart.Corrupt, "expected a begin and an end"),
        (lambda h: h[FIRST].update(data_offsets=[2**62, 2**62 + 98304]), kvart.Corrupt, "the file is cut short"),
        (
            lambda h: h[FIRST].update(data_offsets=h["model.embed_tokens.weight"]["data_offsets"]),
            kvart.Corrupt,
            "overlaps|leaves a gap",
        ),
        (lambda h: h.pop(FIRST), kvart.Corrupt, "leaves a gap|the tensors take"),
        (lambda h: h.update({"extra.weight": h.pop(FIRST)}), kvart.Corrupt, "lm_head.weight is missing"),
        (
            lambda h: h.update({"score.weight": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}),
            kvart.Unsupported,
            "score.weight has no place",
        ),
    ],
)
def test_a_header_that_lies(
    source: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], kind: type[kvart.Error], message: str
) -> None:
    edit_header(source / "model.safetensors", change)
    refused(source, tmp_path / "out", kind, message)


def test_tables_that_follow_from_the_config_are_left_out(source: Path, tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    edit_header(
        source / "model.safetensors", lambda h: h.update({"model.layers.0.self_attn.rotary_emb.inv_freq": entry})
    )
    convert(source, tmp_path / "out.gguf", type="f32")


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (
            lambda d: (d / "model-00002-of-00003.safetensors").unlink(),
            kvart.NotFound,
            "1 of 3 shards are missing: model-00002",
        ),
        (index({}), kvart.Corrupt, "expected a weight_map"),
        (index({"a": 1}), kvart.Corrupt, "expected a weight_map"),
        (index({"a": "../x.safetensors"}), kvart.Corrupt, "beside it"),
        (index({"a": "/etc/passwd"}), kvart.Corrupt, "beside it"),
        (index({"a": "x" * 5000 + ".safetensors"}), kvart.Corrupt, "beside it"),
        (index({"a": "pytorch_model.bin"}), kvart.Corrupt, "beside it"),
        (index({"a": "\ud800.safetensors"}), kvart.NotFound, "missing"),
        (lambda d: (d / "model.safetensors.index.json").unlink(), kvart.NotFound, "the index tells which shards"),
        (lambda d: (d / "model.safetensors.index.json").write_text("{"), kvart.Corrupt, "is not JSON"),
        (lambda d: move(d, "model.norm.weight", "model-00001-of-00003.safetensors"), kvart.Corrupt, "places it in"),
        (lambda d: move(d, "model.norm.weight", None), kvart.Corrupt, "does not list it"),
        (
            lambda d: move(d, "model.extra.weight", "model-00001-of-00003.safetensors"),
            kvart.Corrupt,
            "which does not hold it",
        ),
    ],
)
def test_an_index_that_lies(
    shards: Path, tmp_path: Path, change: Change, kind: type[kvart.Error], message: str
) -> None:
    change(shards)
    refused(shards, tmp_path / "out", kind, message)


def move(source: Path, tensor: str, shard: str | None) -> None:
    """Says in the index that a tensor is elsewhere, or nowhere."""
    path = source / "model.safetensors.index.json"
    places = json.loads(path.read_text())["weight_map"]
    places[tensor] = shard
    edit(path, weight_map={key: value for key, value in places.items() if value is not None})


def test_shards_are_read(shards: Path, pristine: Path, tmp_path: Path) -> None:
    for name, source in (("one", pristine), ("three", shards)):
        convert(source, tmp_path / f"{name}.gguf", type="f32", verify=False)
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "three.gguf").read_bytes()


def test_pickles_are_never_loaded(source: Path, tmp_path: Path) -> None:
    trace = tmp_path / "loaded"
    (source / "model.safetensors").unlink()
    # os.system as soon as it is unpickled
    code = f"cposix\nsystem\n(S'touch {trace}'\ntR.".encode()
    for name in ("pytorch_model.bin", "consolidated.00.pth", "model.safetensors"):
        (source / name).write_bytes(b"\x80\x02" + code if name.endswith("safetensors") else code)
        refused(source, tmp_path / "out", kvart.Unsupported, "a pickle, which can run any code")
        (source / name).unlink()
    assert not trace.exists()


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        (
            {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
            kvart.Unsupported,
            r"type llama \(LlamaForCausalLM\); kvart converts Qwen2",
        ),
        ({"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]}, kvart.Unsupported, "gemma2"),
        (
            {"model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"]},
            kvart.Unsupported,
            "qwen2_vl",
        ),
        (
            {"model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"]},
            kvart.Unsupported,
            "mixture of experts",
        ),
        ({"model_type": "qwen3_moe"}, kvart.Unsupported, "mixture of experts"),
        ({"architectures": ["Qwen2ForSequenceClassification"]}, kvart.Unsupported, "Qwen2ForSequenceClassification"),
        ({"architectures": "Qwen2ForCausalLM"}, kvart.Corrupt, "architectures: expected a list"),
        ({"model_type": None, "architectures": None}, kvart.Corrupt, "neither model_type nor architectures"),
        ({"model_type": 7}, kvart.Corrupt, "model_type: expected a text, found 7"),
        ({"quantization_config": {"quant_method": "awq"}}, kvart.Unsupported, r"quantized already \(awq\)"),
        ({"use_sliding_window": True}, kvart.Unsupported, "sliding-window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, kvart.Unsupported, "sliding-window"),
        ({"hidden_act": "gelu"}, kvart.Unsupported, "hidden_act is 'gelu'"),
        ({"partial_rotary_factor": 0.5}, kvart.Unsupported, "partial_rotary_factor"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, kvart.Unsupported, "RoPE scaling 'dynamic'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, kvart.Unsupported, "'llama3'"),
        (
            {"rope_scaling": {"rope_type": "yarn"}},
            kvart.Corrupt,
            "rope_scaling: factor: expected a finite number above 0, found nothing",
        ),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0}}, kvart.Unsupported, "mscale"),
        ({"rope_scaling": [1]}, kvart.Corrupt, "rope_scaling: expected an object"),
        ({"rope_theta": float("nan")}, kvart.Corrupt, "rope_theta: expected a finite number"),
        ({"rope_theta": "1e6"}, kvart.Corrupt, "rope_theta"),
        ({"rms_norm_eps": 0}, kvart.Corrupt, "rms_norm_eps"),
        ({"num_hidden_layers": 0}, kvart.Corrupt, "num_hidden_layers: expected a number from 1 to 1024, found 0"),
        ({"num_hidden_layers": 10**300}, kvart.Corrupt, "num_hidden_layers"),
        ({"num_hidden_layers": 3}, kvart.Corrupt, "model.layers.2.input_layernorm.weight is missing"),
        ({"num_hidden_layers": 1}, kvart.Unsupported, "model.layers.1.* has no place"),
        ({"num_hidden_layers": True}, kvart.Corrupt, "num_hidden_layers"),
        (
            {"num_attention_heads": 3},
            kvart.Corrupt,
            "num_key_value_heads: expected a divisor of num_attention_heads, 3",
        ),
        ({"num_attention_heads": 6}, kvart.Corrupt, "num_attention_heads: expected a divisor of hidden_size, 64"),
        ({"num_key_value_heads": 4}, kvart.Corrupt, "k_proj.bias has shape"),
        ({"head_dim": 12}, kvart.Corrupt, "head_dim: expected a multiple of 8"),
        (
            {"hidden_size": 66},
            kvart.Corrupt,
            "num_attention_heads: expected a divisor|hidden_size: expected a multiple",
        ),
        ({"intermediate_size": 256}, kvart.Corrupt, "down_proj.weight has shape"),
        ({"vocab_size": 385}, kvart.Corrupt, r"shape \[384, 64\]; config.json calls for \[385, 64\]"),
        ({"vocab_size": "384"}, kvart.Corrupt, "vocab_size"),
        ({"max_position_embeddings": None}, kvart.Corrupt, "max_position_embeddings: .* found nothing"),
        ({"tie_word_embeddings": "yes"}, kvart.Corrupt, "tie_word_embeddings: expected true or false"),
    ],
)
def test_a_config_that_kvart_has_no_model_for(
    source: Path, tmp_path: Path, values: dict[str, Any], kind: type[kvart.Error], message: str
) -> None:
    edit(source / "config.json", **values)
    refused(source, tmp_path / "out", kind, message)


def test_an_untied_checkpoint_without_its_head(make_tiny: Callable[..., Path], tmp_path: Path) -> None:
    from make_checkpoint import make_checkpoint

    source = make_checkpoint(make_tiny(tied=True), tmp_path / "Tiny-1B")
    edit(source / "config.json", tie_word_embeddings=False)
    refused(source, tmp_path / "out", kvart.Corrupt, "lm_head.weight is missing")


def test_a_qwen3_with_biases_is_refused(make_tiny: Callable[..., Path], tmp_path: Path) -> None:
    from make_checkpoint import make_checkpoint

    source = make_checkpoint(make_tiny(arch="qwen3"), tmp_path / "Tiny-1B")
    edit(source / "config.json", attention_bias=True)
    refused(source, tmp_path / "out", kvart.Unsupported, "attention_bias")


def change_tokenizer(change: Callable[[dict[str, Any]], object]) -> Change:
    def apply(source: Path) -> None:
        path = source / "tokenizer.json"
        data = json.loads(path.read_text("utf-8"))
        change(data)
        path.write_text(json.dumps(data), "utf-8")

    return apply


def _add(id: int, text: str) -> Callable[[dict[str, Any]], object]:
    return lambda d: d["added_tokens"].append({"id": id, "content": text, "special": True})


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda d: d["model"].update(type="Unigram"), kvart.Unsupported, "a tokenizer of type 'Unigram'"),
        (lambda d: d.update(model=None), kvart.Unsupported, "a tokenizer of type None"),
        (lambda d: d["model"].update(byte_fallback=True), kvart.Unsupported, "model.byte_fallback is set"),
        (lambda d: d["model"].update(ignore_merges=True), kvart.Unsupported, "model.ignore_merges is set"),
        (lambda d: d.update(normalizer=None), kvart.Unsupported, "the normalizer is None"),
        (lambda d: d.update(pre_tokenizer={"type": "ByteLevel"}), kvart.Unsupported, "does not cut text as the Qwen"),
        (
            lambda d: d["pre_tokenizer"]["pretokenizers"][0].update(pattern={"Regex": r"\w+"}),
            kvart.Unsupported,
            "cut text",
        ),
        (lambda d: d["model"].update(merges=7), kvart.Corrupt, "model.merges: expected a list"),
        (lambda d: d["model"].update(merges=["a b c"]), kvart.Corrupt, "expected two tokens"),
        (lambda d: d["model"].update(merges=[["a", 1]]), kvart.Corrupt, "expected two tokens"),
        (lambda d: d["model"].update(merges=[["a b", "c"]]), kvart.Corrupt, "a blank within a token"),
        (lambda d: d["model"].update(merges=[["e", "zz"]]), kvart.Corrupt, "the tokenizer of .*merge 0"),
        (lambda d: d["model"]["vocab"].update(e="1"), kvart.Corrupt, "token 'e': expected an id, found '1'"),
        (lambda d: d["model"]["vocab"].update(e=-1), kvart.Corrupt, "expected an id, found -1"),
        (lambda d: d["model"]["vocab"].update(e=384), kvart.Corrupt, "has id 384; the embedding has 384 rows"),
        (lambda d: d["model"]["vocab"].update(e=0), kvart.Corrupt, "both have id 0"),
        (lambda d: d["model"]["vocab"].pop("e"), kvart.Corrupt, "the tokenizer of .*no token for the single byte"),
        (lambda d: d["model"]["vocab"].update({"\ud800": 383}), kvart.Corrupt, "a token is not valid UTF-8"),
        (_add(0, "<|x|>"), kvart.Corrupt, "both have id 0"),
        (_add(2**40, "<|x|>"), kvart.Corrupt, "expected its id"),
        (_add(383, ""), kvart.Corrupt, "expected its content"),
        (lambda d: d.update(added_tokens={"a": 1}), kvart.Corrupt, "added_tokens: expected a list"),
    ],
)
def test_a_tokenizer_that_is_none(
    source: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], kind: type[kvart.Error], message: str
) -> None:
    change_tokenizer(change)(source)
    refused(source, tmp_path / "out", kind, message, verify=False)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda d: (d / "tokenizer.json").unlink(), kvart.NotFound, "neither tokenizer.json nor vocab.json"),
        (lambda d: (d / "tokenizer.json").write_bytes(b"\xff"), kvart.Corrupt, "not valid UTF-8 at byte 0"),
        (lambda d: (d / "config.json").unlink(), kvart.NotFound, "config.json: no such file"),
        (lambda d: (d / "config.json").write_text("[]"), kvart.Corrupt, "expected a JSON object, found list"),
        (
            tokenizer_config(added_tokens_decoder={"356": {"content": "other"}}),
            kvart.Corrupt,
            "elsewhere in the checkpoint",
        ),
        (tokenizer_config(added_tokens_decoder={"x": {"content": "other"}}), kvart.Corrupt, "expected its id"),
        (tokenizer_config(added_tokens_decoder={"260": 1}), kvart.Corrupt, "expected an object"),
        (tokenizer_config(chat_template=[{"name": "a"}]), kvart.Corrupt, "chat_template"),
        (tokenizer_config(chat_template="\udfff"), kvart.Corrupt, "a chat template is not valid UTF-8"),
        (
            lambda d: (d / "tokenizer_config.json").unlink() or edit(d / "config.json", eos_token_id=None),
            kvart.Corrupt,
            "tells no end-of-text token",
        ),
    ],
)
def test_other_files(source: Path, tmp_path: Path, change: Change, kind: type[kvart.Error], message: str) -> None:
    change(source)
    refused(source, tmp_path / "out", kind, message)


def test_no_checkpoint_at_all(make_tiny: Callable[..., Path], tmp_path: Path) -> None:
    refused(tmp_path / "nothing", tmp_path / "out", kvart.NotFound, "no such directory")
    refused(make_tiny(), tmp_path / "out", kvart.InvalidArgument, "is a file; expected the directory")
    (tmp_path / "empty").mkdir()
    refused(tmp_path / "empty", tmp_path / "out", kvart.NotFound, "config.json: no such file")
    refused(tmp_path / "a\0b", tmp_path / "out", kvart.InvalidArgument, "zero byte")


# --- the output ---


def test_too_little_space_is_told_before_writing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(writer_module.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    refused(source, tmp_path / "out", kvart.NoSpace, r"has 0 MB free; the file takes \d+ MB")


def test_a_disk_that_fills_up(source: Path, tmp_path: Path) -> None:
    script = """
        import resource, sys
        from kvart.cli import _main
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        sys.exit(_main(["convert", sys.argv[1], sys.argv[2], "--type", "f32", "--json"]))
    """
    out = tmp_path / "out"
    out.mkdir()
    command = [sys.executable, "-c", textwrap.dedent(script), str(source), str(out / "out.gguf")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["kind"]) == (1, "no_space"), done.stdout + done.stderr
    assert "out.gguf" in error["file"] and not list(out.iterdir())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir(mode=0o500)
    refused(source, tmp_path / "out", kvart.Io, "Permission denied")


def test_a_checkpoint_cut_while_it_is_read(source: Path, tmp_path: Path) -> None:
    """No memory map, so a file that shrinks is an error and no signal."""
    path = source / "model.safetensors"

    def cut(what: str, done: float) -> None:
        os.truncate(path, 100_000)

    refused(source, tmp_path / "out", kvart.Corrupt, "the file ends after", progress=cut)


def test_any_damage_is_a_clear_error(pristine: Path, tmp_path: Path) -> None:
    """Random bytes of any file: it converts, or it is one of kvart's errors with a message."""
    rng = random.Random(5)
    names = ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
    (tmp_path / "out").mkdir()
    outcomes = set()
    for round in range(150):
        source = Path(shutil.copytree(pristine, tmp_path / f"in{round}"))
        path = source / rng.choice(names)
        data = bytearray(path.read_bytes())
        for _ in range(rng.choice([1, 1, 3, 20])):
            at = rng.randrange(min(len(data), 6000))
            data[at] = rng.choice([rng.randrange(256), ord("0"), ord("9"), ord('"'), ord("}"), data[at] ^ 1])
        path.write_bytes(bytes(data))
        try:
            convert(source, tmp_path / "out" / "out.gguf", type="f32", verify=False)
            outcomes.add("fine")
            (tmp_path / "out" / "out.gguf").unlink()
        except kvart.Error as error:
            assert error.kind not in ("internal", "io") and len(error.message) > 20, error
            outcomes.add(error.kind)
        assert not list((tmp_path / "out").iterdir())
        shutil.rmtree(source)
    assert outcomes >= {"fine", "corrupt"}

"""Makes the reference values of tests/golden from transformers in float32 over the dequantized weights of a GGUF file.

Needs numpy, gguf, tokenizers, transformers and torch (made with torch 2.13.0, CPU); the tests that use its output need
numpy only. Three things it does:

  --write FILE.npz     the likeliest tokens at every position of the texts (see tests/python/reference.py)
  --compare FILE.npy   the full divergence of somebody's logits from the float32 model, as one JSON object. The file
                       holds float32 (positions, vocab): the texts one after the other, each a window from position 0
  --tiny DIR           all logits of tiny models made by tools/make_tiny_model.py
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from make_tiny_model import make_tiny_model

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "python"))
import reference  # noqa: E402  (the module beside the tests)

GOLDEN = ROOT / "tests" / "golden"
TEXTS = ("en", "zh", "code")

# How Qwen's byte-level BPE cuts text before merging, as its tokenizer.json states it.
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

# One tiny model a file: its options differ from the defaults of make_tiny_model by these.
TINY: dict[str, dict[str, Any]] = {
    "tiny_qwen2": {"arch": "qwen2", "seed": 1},
    "tiny_qwen2_tied": {"arch": "qwen2", "seed": 2, "tied": True, "n_heads": 6, "n_kv_heads": 1, "width": 96, "ff": 96},
    "tiny_qwen2_linear": {"arch": "qwen2", "seed": 3, "rope_scaling": "linear", "rope_factor": 2.0},
    "tiny_qwen2_yarn": {"arch": "qwen2", "seed": 4, "rope_scaling": "yarn", "context_length": 128},
    "tiny_qwen2_wild": {"arch": "qwen2", "seed": 5, "wild_keys": 200.0, "rope_base": 1e6, "width": 256, "ff": 96},
    "tiny_qwen3": {"arch": "qwen3", "seed": 6, "head_dim": 32, "n_layers": 3},
    "tiny_qwen3_tied": {"arch": "qwen3", "seed": 7, "head_dim": 8, "tied": True, "n_kv_heads": 4},
    "tiny_qwen3_yarn": {
        "arch": "qwen3",
        "seed": 8,
        "head_dim": 32,
        "rope_scaling": "yarn",
        "rope_factor": 8.0,
        "context_length": 256,
    },
}


def load_model(path: Path) -> Qwen2ForCausalLM | Qwen3ForCausalLM:
    """The model of a GGUF file in float32; q and k rows lie as in the checkpoint (no permutation for these models)."""
    reader = gguf.GGUFReader(path)

    def field(key: str, default: Any = None) -> Any:
        found = reader.fields.get(key)
        return default if found is None else found.contents()

    arch = field("general.architecture")
    if arch not in ("qwen2", "qwen3"):
        raise ValueError(f"{path}: architecture must be qwen2 or qwen3, found {arch!r}")
    tensors = {t.name: t for t in reader.tensors}
    n_heads, width = field(f"{arch}.attention.head_count"), field(f"{arch}.embedding_length")
    scaling = field(f"{arch}.rope.scaling.type", "none")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": field(f"{arch}.rope.freq_base")}
    if scaling != "none":
        rope |= {"rope_type": scaling, "factor": field(f"{arch}.rope.scaling.factor")}
    if scaling == "yarn":
        rope["original_max_position_embeddings"] = field(f"{arch}.rope.scaling.original_context_length")
    common: dict[str, Any] = {
        "vocab_size": int(tensors["token_embd.weight"].shape[1]),
        "hidden_size": width,
        "intermediate_size": field(f"{arch}.feed_forward_length"),
        "num_hidden_layers": field(f"{arch}.block_count"),
        "num_attention_heads": n_heads,
        "num_key_value_heads": field(f"{arch}.attention.head_count_kv"),
        "max_position_embeddings": field(f"{arch}.context_length"),
        "rms_norm_eps": field(f"{arch}.attention.layer_norm_rms_epsilon"),
        "rope_parameters": rope,
        "tie_word_embeddings": False,  # a tied head is given by hand below
        "attn_implementation": "eager",
    }
    torch.set_default_dtype(torch.float32)
    model: Qwen2ForCausalLM | Qwen3ForCausalLM
    if arch == "qwen2":
        model = Qwen2ForCausalLM(Qwen2Config(**common))
    else:
        head_dim = field("qwen3.attention.key_length", width // n_heads)
        model = Qwen3ForCausalLM(Qwen3Config(**common, head_dim=head_dim))

    state: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        stem, kind = name.rsplit(".", 1)
        if stem.startswith("blk."):
            _, layer, stem = stem.split(".")
            target = f"model.layers.{layer}.{_NAMES[stem]}.{kind}"
        else:
            target = f"{_NAMES[stem]}.{kind}"
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        state[target] = torch.from_numpy(np.array(values, dtype=np.float32))
    state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
    model.load_state_dict(state, strict=True, assign=True)
    model.train(False)
    return model


def load_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a GGUF file, rebuilt with the tokenizers package; added tokens are parsed."""
    fields = gguf.GGUFReader(path).fields
    tokens: list[str] = fields["tokenizer.ggml.tokens"].contents()
    types: list[int] = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    normal = {t: i for i, t in enumerate(tokens) if types[i] == gguf.TokenType.NORMAL}
    tokenizer = Tokenizer(models.BPE(vocab=normal, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN2_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    for i, token in enumerate(tokens):
        if types[i] in (gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED):
            special = types[i] == gguf.TokenType.CONTROL
            tokenizer.add_tokens([AddedToken(token, normalized=False, special=special)])
            if tokenizer.token_to_id(token) != i:
                raise ValueError(f"{path}: added token {token!r} is not at the end of the vocabulary")
    return tokenizer


def text_ids(tokenizer: Tokenizer) -> dict[str, list[int]]:
    read = {name: (GOLDEN / f"text_{name}.txt").read_text(encoding="utf-8") for name in TEXTS}
    return {name: tokenizer.encode(text, add_special_tokens=False).ids for name, text in read.items()}


def run(model: torch.nn.Module, ids: Sequence[int]) -> NDArray[np.float32]:
    """Logits (n, vocab) of one window that starts at position 0."""
    with torch.inference_mode():
        return np.asarray(model(torch.tensor([list(ids)])).logits[0].numpy())


def truth_logits(path: Path, windows: dict[str, list[int]], cache: Path | None) -> NDArray[np.float32]:
    """Logits of all texts, one after the other; taken from `cache` if that file exists, else written there."""
    n = sum(len(ids) for ids in windows.values())
    if cache is not None and cache.exists():
        kept = np.load(cache, mmap_mode="r")
        if len(kept) != n:
            raise ValueError(
                f"{cache} holds {len(kept)} positions, but the texts have {n}: it is of other texts or models"
            )
        return np.asarray(kept)
    model = load_model(path)
    logits = np.concatenate([run(model, ids) for ids in windows.values()])
    if cache is not None:
        np.save(cache, logits)
    return logits


def write_reference(out: Path, windows: dict[str, list[int]], truth: NDArray[np.float32]) -> None:
    arrays: dict[str, Any] = {"texts": np.array(list(windows))}
    start = 0
    for name, ids in windows.items():
        top_ids, top, rest = reference.reduce_logits(truth[start : start + len(ids)])
        start += len(ids)
        arrays[f"{name}.ids"] = np.array(ids, np.int32)
        arrays[f"{name}.top_ids"], arrays[f"{name}.top_logprobs"], arrays[f"{name}.rest_logprob"] = top_ids, top, rest
    np.savez_compressed(out, **arrays)


def write_tiny(folder: Path, n_ids: int = 48) -> None:
    for name, options in TINY.items():
        with tempfile.TemporaryDirectory() as tmp:
            model = load_model(make_tiny_model(Path(tmp) / "tiny.gguf", **options))
        ids = np.random.RandomState(options["seed"]).randint(0, model.config.vocab_size, n_ids)
        logits = run(model, ids.tolist())
        noise = float(np.abs(run(model.double(), ids.tolist()) - logits).max())
        np.savez_compressed(
            folder / f"{name}.npz", options=np.array(json.dumps(options)), ids=ids.astype(np.int32), logits=logits
        )
        spread = float(logits.std())
        print(json.dumps({"file": f"{name}.npz", "logits_std": spread, "max_difference_from_float64": noise}))


def work_on_texts(model: Path, cache: Path | None, write: Path | None, compare: Path | None) -> None:
    windows = text_ids(load_tokenizer(model))
    truth = truth_logits(model, windows, cache)
    if write is not None:
        write_reference(write, windows, truth)
    if compare is not None:
        ours = np.load(compare, mmap_mode="r")
        kl = reference.full_kl(truth, ours)
        figures = reference.summarize(kl, ours.argmax(axis=-1) == truth.argmax(axis=-1))
        print(json.dumps({"model": model.name, "compared": compare.name, **figures}))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python tools/make_reference.py MODEL.gguf --truth truth.npy --compare ours.npy",
    )
    parser.add_argument("model", type=Path, nargs="?", help="the GGUF file (not needed for --tiny)")
    parser.add_argument("--write", type=Path, metavar="FILE.npz", help="write the reference values of the texts")
    parser.add_argument("--compare", type=Path, metavar="FILE.npy", help="logits to compare with the float32 model")
    parser.add_argument("--truth", type=Path, metavar="FILE.npy", help="keep all float32 logits here, or reuse them")
    parser.add_argument("--tiny", type=Path, metavar="DIR", help="write the references of the tiny models")
    parser.add_argument("--threads", type=int, default=0, help="threads of torch (default: its own choice)")
    options = parser.parse_args(argv)
    if not (options.write or options.compare or options.truth or options.tiny):
        parser.error("nothing to do: give --write, --compare, --truth or --tiny")
    if options.model is None and (options.write or options.compare or options.truth):
        parser.error("--write, --compare and --truth need a model")
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.tiny:
        write_tiny(options.tiny)
    try:
        if options.model is not None:
            work_on_texts(options.model, options.truth, options.write, options.compare)
    except (OSError, ValueError) as error:
        print(f"make_reference: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

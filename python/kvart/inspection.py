"""kvart inspect: what a model is, what it costs in K/V, and what kvart makes of each point, in one JSON object."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from . import chat_probe, key_spikes, model_source
from .errors import Corrupt, Error, InvalidArgument, Unsupported
from .footprint import kv_bytes, kv_pages
from .model_source import ModelSource

KV_FORMATS = ("f16", "int8", "int4-g32", "int4-g64", "int4")
CONTEXTS = (4096, 32768)

OK, NOTE, WARNING = "ok", "note", "warning"
_ROPE_SCALINGS = ("none", "linear", "ntk", "yarn")


@dataclass(frozen=True)
class Check:
    """What kvart makes of one point."""

    point: str
    verdict: str  # "ok", "note": worth knowing, or "warning"
    reason: str


def inspect(name_or_path: str) -> dict[str, Any]:
    """The report on a name of the manifest, a GGUF file or a checkpoint directory. See docs/plan.md for its fields.

    Only metadata and small tensors are read. NotFound, Corrupt, InvalidArgument, Io where there is nothing to report.
    """
    source = model_source.read(name_or_path)
    report = {
        "path": source.path,
        "kind": source.kind,
        "bytes": source.bytes,
        "name": source.name,
        "runs": source.refusal is None,
        "architecture": {"name": source.architecture, "refusal": source.refusal, "n_experts": source.n_experts},
        "origin": source.origin,
        "sizes": {
            **source.sizes,
            "tied_head": source.tied,
            "parameters": sum(t.values for t in source.tensors) or None,
        },
        "attention": _attention(source),
        "rope": {**source.rope, "n_ctx_train": source.sizes["n_ctx_train"]},
        "tokenizer": source.tokenizer,
        "chat_template": _chat_template(source),
        "tensors": _tensors(source),
        "kv": _kv(source),
        "keys": _keys(source),
    }
    report["checks"] = [asdict(check) for check in _checks(report)]
    return report


def _attention(source: ModelSource) -> dict[str, Any]:
    heads, kv_heads = source.sizes["n_heads"], source.sizes["n_kv_heads"]
    kind = ratio = None
    if heads and kv_heads:
        kind = "MHA" if kv_heads == heads else "MQA" if kv_heads == 1 else "GQA"
        ratio = heads / kv_heads
    return {"kind": kind, "ratio": ratio, "other": source.other_attention}


def _chat_template(source: ModelSource) -> dict[str, Any]:
    """Whether there is one, and its quirks; error where it can't be used."""
    if source.template is None:
        return {"present": False, "error": None, "quirks": None}
    try:
        quirks = chat_probe.probe(source.template, source.path)
    except (Corrupt, InvalidArgument, Unsupported) as error:
        return {"present": True, "error": error.message, "quirks": None}
    return {"present": True, "error": None, "quirks": quirks}


def _tensors(source: ModelSource) -> dict[str, Any]:
    """Bytes by type, and in all. bits_per_weight: of the bytes of all tensors."""
    types: dict[str, dict[str, Any]] = {}
    for tensor in source.tensors:
        row = types.setdefault(tensor.type, {"type": tensor.type, "tensors": 0, "values": 0, "bytes": 0})
        row["tensors"] += 1
        row["values"] += tensor.values
        row["bytes"] += tensor.bytes
    rows = sorted(types.values(), key=lambda row: -row["bytes"])
    total, values = sum(row["bytes"] for row in rows), sum(row["values"] for row in rows)
    for row in rows:
        row["bits_per_weight"] = 8 * row["bytes"] / row["values"] if row["values"] else None
    return {
        "count": len(source.tensors),
        "bytes": total,
        "bits_per_weight": 8 * total / values if values else None,
        "types": rows,
    }


def _kv(source: ModelSource) -> list[dict[str, Any]]:
    """A row a cache format; empty where the sizes are not known. contexts: bytes of one text of so many tokens."""
    shape = source.shape
    if shape is None:
        return []
    rows = []
    for format in KV_FORMATS:
        pages = kv_pages(shape, format, format)
        rows.append(
            {
                "format": format,
                "bits_per_value": pages.bits_per_value,
                "bytes_per_token": pages.token_bytes,
                "contexts": {str(tokens): kv_bytes(pages, tokens).total for tokens in CONTEXTS},
            }
        )
    return rows


def _keys(source: ModelSource) -> dict[str, Any]:
    """Spikes of the keys by layer. of: "bias" (qwen2), "norm" (qwen3), or None where there is nothing to read."""
    nothing: dict[str, Any] = {"of": None, "problem": None, "layers": []}
    shape = source.shape
    if shape is None:
        return nothing
    names = {tensor.name for tensor in source.tensors}
    for of, suffix in (("bias", "attn_k.bias"), ("norm", "attn_k_norm.weight")):
        wanted = [f"blk.{layer}.{suffix}" for layer in range(shape.n_layers)]
        if not names.issuperset(wanted):
            continue
        try:
            spikes = _spikes(source, of, wanted)
        except (Error, ValueError) as error:
            return {**nothing, "of": of, "problem": str(error)}
        return {"of": of, "problem": None, "layers": [asdict(layer) for layer in spikes]}
    return nothing


def _spikes(source: ModelSource, of: str, names: list[str]) -> list[key_spikes.LayerSpikes]:
    import numpy as np

    shape = source.shape
    assert shape is not None
    wanted = shape.n_kv_heads * shape.head_dim if of == "bias" else shape.head_dim
    vectors = [source.values(name) for name in names]
    for name, vector in zip(names, vectors, strict=True):
        if vector.shape != (wanted,):
            raise ValueError(f"{name} has shape {vector.shape}; wanted ({wanted},)")
        if not np.isfinite(vector).all():
            raise ValueError(f"{name} holds values that are not finite")
    if of == "norm":
        return key_spikes.of_norms(vectors)
    linear = source.rope["factor"] if source.rope["scaling"] == "linear" else None
    return key_spikes.of_biases(vectors, shape.head_dim, source.rope["base"] or 10000.0, linear or 1.0)


# --- verdicts ---


def _checks(report: dict[str, Any]) -> list[Check]:
    return [
        _check_runs(report),
        _check_attention(report),
        _check_compatibility(report),
        _check_rope(report),
        _check_cache_access(report),
        _check_tokenizer(report),
        _check_template(report),
        _check_weights(report),
        _check_kv(report),
        _check_keys(report),
    ]


def _check_runs(report: dict[str, Any]) -> Check:
    name = report["architecture"]["name"]
    if report["runs"]:
        how = (
            "kvart runs it" if report["kind"] == "gguf" else "kvart runs it once `kvart convert` has made a GGUF of it"
        )
        return Check("runs", OK, f"{name}: {how}")
    reason = report["architecture"]["refusal"]
    if report["architecture"]["n_experts"]:
        reason += f"; it has {report['architecture']['n_experts']} experts"
    return Check("runs", WARNING, f"kvart does not run it: {reason}. llama.cpp runs most families of GGUF")


def _check_attention(report: dict[str, Any]) -> Check:
    kind, ratio = report["attention"]["kind"], report["attention"]["ratio"]
    if kind is None:
        return Check("attention", WARNING, "the number of heads is not known")
    if kind == "MHA":
        return Check("attention", NOTE, "MHA: every head has K/V of its own, the largest cache there is")
    return Check("attention", OK, f"{kind}: {ratio:g} query heads share one K/V head, which kvart stores once")


def _check_compatibility(report: dict[str, Any]) -> Check:
    if report["attention"]["other"]:
        return Check(
            "attention compatibility", WARNING, f"it asks for {', '.join(report['attention']['other'])}: not in kvart"
        )
    head_dim = report["sizes"]["head_dim"]
    if head_dim is None or head_dim % 8:
        return Check("attention compatibility", WARNING, f"head_dim is {head_dim}; a multiple of 8 is wanted")
    return Check("attention compatibility", OK, "plain causal attention, RoPE over the whole head, no window, no ALiBi")


def _check_rope(report: dict[str, Any]) -> Check:
    rope = report["rope"]
    scaling, trained = rope["scaling"], rope["n_ctx_train"]
    if scaling not in _ROPE_SCALINGS:
        return Check("rope", WARNING, f"scaling {scaling!r} is not one of {', '.join(_ROPE_SCALINGS)}")
    if trained is None or rope["base"] is None:
        return Check(
            "rope", NOTE, f"base {rope['base'] or 'not given: 10000'}, trained length {trained or 'not given'}"
        )
    base = f"base {rope['base']:g}, trained for {trained} tokens"
    if scaling == "none":
        return Check("rope", OK, f"{base}, no scaling: for more, a sliding window (--window)")
    return Check("rope", OK, f"{base}, {scaling} scaling by {rope['factor'] or 1:g}")


def _check_cache_access(report: dict[str, Any]) -> Check:
    if not report["runs"]:
        return Check("cache access", WARNING, "none: kvart does not run it")
    return Check("cache access", OK, "K/V as arrays (session.kv, import_kv), raw pages, save, fork, rewind")


def _check_tokenizer(report: dict[str, Any]) -> Check:
    tokenizer = report["tokenizer"]
    if not tokenizer["streams"]:
        return Check("tokenizer", WARNING, f"it does not stream: {tokenizer['problem']}")
    return Check(
        "tokenizer", OK, f"{tokenizer['kind']} ({tokenizer['pre']}): exact, encodes and decodes text that streams in"
    )


def _check_template(report: dict[str, Any]) -> Check:
    template = report["chat_template"]
    if template["error"] is not None:
        return Check("chat template", WARNING, template["error"])
    if not template["present"]:
        return Check(
            "chat template", NOTE, "none: kvart chat takes its own for the Qwen family; a base model may want none"
        )
    quirks = template["quirks"]
    if quirks["changes_by_date"]:
        return Check("chat template", WARNING, "it asks for the date: what is kept today is not found again tomorrow")
    if quirks["rewrites"]:
        return Check(
            "chat template", NOTE, f"it rewrites what was there: {'; '.join(quirks['rewrites'])}: computed again"
        )
    default = ", with a system prompt of its own" if quirks["default_system"] else ""
    return Check("chat template", OK, f"earlier text stays as it was{default}: the cache finds all of it again")


def _check_weights(report: dict[str, Any]) -> Check:
    tensors = report["tensors"]
    if not tensors["count"]:
        return Check("weights", NOTE, "not read")
    if report["kind"] == "checkpoint":
        return Check(
            "weights", NOTE, f"{tensors['bits_per_weight']:.0f} bits a weight: to be quantized by `kvart convert`"
        )
    return Check("weights", OK, f"{tensors['bits_per_weight']:.2f} bits a weight over {tensors['count']} tensors")


def _check_kv(report: dict[str, Any]) -> Check:
    if not report["kv"]:
        return Check("kv", NOTE, "sizes are not known")
    rows = {row["format"]: row for row in report["kv"]}
    saving = rows["f16"]["bytes_per_token"] / rows["int4"]["bytes_per_token"]
    if saving < 2:
        return Check("kv", NOTE, f"int4 takes 1/{saving:.1f} of f16 only: pages of so small a model are mostly padding")
    return Check("kv", OK, f"int4 takes {rows['int4']['bits_per_value']:.2f} bits a value, 1/{saving:.1f} of f16")


def _check_keys(report: dict[str, Any]) -> Check:
    keys = report["keys"]
    if keys["problem"] is not None:
        return Check("keys", WARNING, keys["problem"])
    if keys["of"] is None:
        return Check("keys", NOTE, "no bias and no norm of the keys to read")
    broken = [layer for layer in keys["layers"] if layer["token_lost"] > 0]
    worst = max(keys["layers"], key=lambda layer: layer["ratio"])
    spike = (
        f"largest {keys['of']} {worst['peak']:.3g}, {worst['ratio']:.0f} times the median, in layer {worst['layer']}"
    )
    if not broken:
        return Check("keys", OK, f"no spikes: {spike}")
    token, channel = (
        100 * sum(layer[name] for layer in keys["layers"]) / len(keys["layers"])
        for name in ("token_lost", "channel_lost")
    )
    return Check(
        "keys",
        NOTE,
        f"{spike}: INT4 with a scale a token loses {token:.1f} % of the keys' channels, in {len(broken)} of "
        f"{len(keys['layers'])} layers; a scale a channel, as kvart's int4 has it, {channel:.1f} %",
    )

"""The tokenizer of a checkpoint as GGUF holds it: tokens with their types, merges, special ids, chat template.

Byte-level BPE as Qwen2, Qwen2.5 and Qwen3 have it, from tokenizer.json or from vocab.json with merges.txt. Anything
that cuts text differently is refused, since GGUF holds only the name of the way that text is cut.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import Corrupt, NotFound, Unsupported
from .files import read_json, read_json_if_there, read_text

# tokenizer.ggml.token_type of the GGUF specification.
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5

# How the Qwen family cuts text before merging, as its tokenizer.json states it.
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPECIAL = ("eos", "pad", "bos")


@dataclass(frozen=True)
class Added:
    """A token that is found in text before anything else."""

    text: str
    special: bool
    strips: bool  # transformers takes blanks beside it away, or wants a whole word: kvart does not


@dataclass
class Vocabulary:
    """tokens, types: one for each row of the embedding. merges: "left right", the first to be applied first."""

    tokens: list[str]
    types: list[int]
    merges: list[str]
    special_ids: dict[str, int] = field(default_factory=dict)  # of eos, pad, bos
    add_bos: bool | None = None
    chat_templates: dict[str, str] = field(default_factory=dict)  # by name; the usual one is "default"
    notes: list[str] = field(default_factory=list)


def read_vocabulary(directory: Path, n_vocab: int) -> Vocabulary:
    """The tokenizer of a checkpoint with n_vocab rows of embedding; ids without a token are padding, [PADn].

    NotFound, Corrupt, Unsupported: files are missing, make no sense, or are of another kind of tokenizer.
    """
    config = read_json_if_there(directory / "tokenizer_config.json")
    path = directory / "tokenizer.json"
    if path.exists():
        ids, merges, added = _from_tokenizer_json(read_json(path), str(path))
    else:
        path = directory / "vocab.json"
        ids, merges, added = _from_vocab_json(directory)
    _add_from_config(directory, config, added)
    result = Vocabulary(*_lay_out(ids, added, n_vocab, str(path)), merges)
    result.special_ids, missing = _special_ids(directory, config, ids, added, n_vocab)
    result.notes += [f"{name}: no token {text!r} in the vocabulary" for name, text in missing.items()]
    result.notes += [
        f"{token.text} strips blanks or wants a whole word; GGUF has no such thing"
        for token in added.values()
        if token.strips
    ]
    if isinstance(config.get("add_bos_token"), bool):
        result.add_bos = config["add_bos_token"]
    result.chat_templates = _chat_templates(directory, config)
    _check_utf8(result, directory)
    if "default" not in result.chat_templates:
        result.notes.append("there is no chat template; kvart chat takes its own for the Qwen family")
    return result


def _from_tokenizer_json(values: dict[str, Any], file: str) -> tuple[dict[str, int], list[str], dict[int, Added]]:
    model = values.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE" or not isinstance(model.get("vocab"), dict):
        kind = model.get("type") if isinstance(model, dict) else None
        raise Unsupported(
            f"{file}: a tokenizer of type {kind!r}; kvart has byte-level BPE of the Qwen family", file=file
        )
    _want_qwen(values, model, file)
    merges = model.get("merges")
    if not isinstance(merges, list):
        raise Corrupt(f"{file}: model.merges: expected a list, found {type(merges).__name__}", file=file)
    added = {}
    for entry in _list_of_objects(values.get("added_tokens", []), "added_tokens", file):
        added[_id(entry.get("id"), file)] = _added(entry, file)
    return _vocab(model["vocab"], file), [_merge(merge, file) for merge in merges], added


def _want_qwen(values: dict[str, Any], model: dict[str, Any], file: str) -> None:
    """Unsupported unless text is normalized, cut and merged as kvart's tokenizer does it."""
    odd = [key for key in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix") if model.get(key)]
    odd += [key for key in ("byte_fallback", "ignore_merges", "fuse_unk") if model.get(key)]
    if odd:
        raise Unsupported(
            f"{file}: model.{odd[0]} is set, which the tokenizers of the Qwen family leave out", file=file
        )
    normalizer = values.get("normalizer")
    if not isinstance(normalizer, dict) or normalizer.get("type") != "NFC":
        kind = normalizer.get("type") if isinstance(normalizer, dict) else normalizer
        raise Unsupported(f"{file}: the normalizer is {kind!r}; the Qwen family has NFC", file=file)
    steps = values.get("pre_tokenizer")
    steps = steps.get("pretokenizers") if isinstance(steps, dict) and steps.get("type") == "Sequence" else None
    if isinstance(steps, list) and len(steps) == 2 and all(isinstance(step, dict) for step in steps):
        split, byte_level = steps
        pattern = split.get("pattern")
        same = split.get("type") == "Split" and split.get("behavior") == "Isolated" and not split.get("invert")
        same &= isinstance(pattern, dict) and pattern.get("Regex") == _SPLIT
        same &= (
            byte_level.get("type") == "ByteLevel"
            and not byte_level.get("add_prefix_space")
            and not byte_level.get("use_regex", True)
        )
        if same:
            return
    raise Unsupported(
        f"{file}: the pre_tokenizer does not cut text as the Qwen family does; kvart has no other way", file=file
    )


def _from_vocab_json(directory: Path) -> tuple[dict[str, int], list[str], dict[int, Added]]:
    vocab, merges = directory / "vocab.json", directory / "merges.txt"
    if not vocab.exists() or not merges.exists():
        raise NotFound(f"{directory} has neither tokenizer.json nor vocab.json with merges.txt", file=str(directory))
    lines = read_text(merges).split("\n")  # not splitlines: a merge may hold characters that end a line there
    if lines[0].startswith("#version"):
        del lines[0]
    file = str(merges)
    return _vocab(read_json(vocab), str(vocab)), [_merge(line.rstrip("\r"), file) for line in lines if line.strip()], {}


def _add_from_config(directory: Path, config: dict[str, Any], added: dict[int, Added]) -> None:
    """Added tokens of tokenizer_config.json and added_tokens.json, where tokenizer.json does not have them."""
    file = str(directory / "tokenizer_config.json")
    decoder = config.get("added_tokens_decoder", {})
    for key, entry in decoder.items() if isinstance(decoder, dict) else ():
        if not isinstance(entry, dict):
            raise Corrupt(f"{file}: added_tokens_decoder {key}: expected an object", file=file)
        _join(added, _id(int(key) if key.isdecimal() and len(key) < 10 else key, file), _added(entry, file), file)
    file = str(directory / "added_tokens.json")
    for text, number in read_json_if_there(directory / "added_tokens.json").items():
        _join(added, _id(number, file), Added(text, False, False), file)


def _join(added: dict[int, Added], number: int, token: Added, file: str) -> None:
    known = added.setdefault(number, token)
    if known.text != token.text:
        raise Corrupt(
            f"{file}: token {number} is {token.text!r}, elsewhere in the checkpoint {known.text!r}", file=file
        )


def _lay_out(ids: dict[str, int], added: dict[int, Added], n_vocab: int, file: str) -> tuple[list[str], list[int]]:
    """Tokens and their types by id. As llama.cpp's converter has it, what looks like <|this|> is a control token."""
    tokens = [f"[PAD{i}]" for i in range(n_vocab)]
    types = [UNUSED] * n_vocab
    for number, text in [
        *((number, text) for text, number in ids.items()),
        *((i, token.text) for i, token in added.items()),
    ]:
        if number >= n_vocab:
            raise Corrupt(f"{file}: token {text!r} has id {number}; the embedding has {n_vocab} rows", file=file)
        if types[number] != UNUSED and tokens[number] != text:
            raise Corrupt(f"{file}: {tokens[number]!r} and {text!r} both have id {number}", file=file)
        tokens[number], types[number] = text, NORMAL
    for number, token in added.items():
        looks_special = token.text.startswith("<|") and token.text.endswith("|>")
        types[number] = CONTROL if token.special or looks_special else USER_DEFINED
    return tokens, types


def _special_ids(
    directory: Path, config: dict[str, Any], ids: dict[str, int], added: dict[int, Added], n_vocab: int
) -> tuple[dict[str, int], dict[str, str]]:
    """Ids of eos, pad and bos by the texts in tokenizer_config.json, else by config.json; and texts without an id."""
    by_text = {**ids, **{token.text: number for number, token in added.items()}}
    model = read_json_if_there(directory / "config.json")
    found, missing = {}, {}
    for name in _SPECIAL:
        text = config.get(f"{name}_token")
        text = text.get("content") if isinstance(text, dict) else text
        number = by_text.get(text) if isinstance(text, str) else None
        if isinstance(text, str) and number is None:
            missing[f"{name}_token"] = text
        fallback = model.get(f"{name}_token_id")
        fallback = fallback[0] if isinstance(fallback, list) and fallback else fallback
        if number is None and type(fallback) is int and 0 <= fallback < n_vocab:
            number = fallback
        if number is not None:
            found[name] = number
    if "eos" not in found:
        file = str(directory / "tokenizer_config.json")
        raise Corrupt(f"{directory} tells no end-of-text token: neither eos_token nor eos_token_id", file=file)
    return found, missing


def _chat_templates(directory: Path, config: dict[str, Any]) -> dict[str, str]:
    """By name, the usual one as "default". Like transformers: *.jinja files, else what tokenizer_config.json has."""
    own = directory / "chat_template.jinja"
    if own.exists():
        more = sorted((directory / "additional_chat_templates").glob("*.jinja"))
        return {**{path.stem: read_text(path) for path in more}, "default": read_text(own)}
    template = config.get("chat_template")
    if template is None:
        template = read_json_if_there(directory / "chat_template.json").get("chat_template")
    if template is None:
        return {}
    if isinstance(template, str):
        return {"default": template}
    file = str(directory / "tokenizer_config.json")
    templates = _list_of_objects(template, "chat_template", file)
    if not all(isinstance(item.get(key), str) for item in templates for key in ("name", "template")):
        raise Corrupt(f"{file}: chat_template: expected a text, or a list of names and templates", file=file)
    return {item["name"]: item["template"] for item in templates}


def _check_utf8(result: Vocabulary, directory: Path) -> None:
    """JSON can spell halves of characters, which have no form in UTF-8."""
    for what, texts in (
        ("a token", result.tokens),
        ("a merge", result.merges),
        ("a chat template", result.chat_templates.values()),
    ):
        try:
            "".join(texts).encode()
        except UnicodeEncodeError:
            raise Corrupt(f"the tokenizer of {directory}: {what} is not valid UTF-8", file=str(directory)) from None


def _vocab(vocab: dict[str, Any], file: str) -> dict[str, int]:
    for text, number in vocab.items():
        if type(number) is not int or number < 0:
            raise Corrupt(f"{file}: token {text!r}: expected an id, found {number!r}", file=file)
    return vocab


def _merge(merge: Any, file: str) -> str:
    """ "left right" out of that, or out of [left, right]."""
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) and part for part in parts):
        raise Corrupt(f"{file}: merge {merge!r}: expected two tokens", file=file)
    if any(" " in part for part in parts):
        raise Corrupt(f"{file}: merge {merge!r}: a blank within a token, which byte-level BPE spells \u0120", file=file)
    return f"{parts[0]} {parts[1]}"


def _added(entry: dict[str, Any], file: str) -> Added:
    text = entry.get("content")
    if not isinstance(text, str) or not text:
        raise Corrupt(f"{file}: an added token: expected its content, found {text!r}", file=file)
    return Added(
        text, entry.get("special") is True, any(entry.get(key) is True for key in ("lstrip", "rstrip", "single_word"))
    )


def _id(value: Any, file: str) -> int:
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise Corrupt(f"{file}: an added token: expected its id, found {value!r}", file=file)
    return value


def _list_of_objects(value: Any, what: str, file: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise Corrupt(f"{file}: {what}: expected a list of objects", file=file)
    return value

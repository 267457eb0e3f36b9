#!/usr/bin/env python3
"""Writes a GGUF file that holds a tokenizer and nothing else, from a tokenizer.json: for tests against the reference.

python3 tools/make_tokenizer_gguf.py tokenizer.json out.gguf [--config tokenizer_config.json] [--n-vocab 151936]
"""

import argparse
import json
import pathlib

import gguf

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5  # tokenizer.ggml.token_type of the GGUF specification


def make(tokenizer_json, out, config_json=None, n_vocab=151936, architecture="qwen3"):
    """Pads the vocabulary to n_vocab as the files of the models do. The chat template comes from the config, if any."""
    tokenizer = json.loads(pathlib.Path(tokenizer_json).read_text(encoding="utf-8"))
    config = json.loads(pathlib.Path(config_json).read_text(encoding="utf-8")) if config_json else {}
    texts = [f"[PAD{i}]" for i in range(n_vocab)]
    types = [UNUSED] * n_vocab
    for text, token_id in tokenizer["model"]["vocab"].items():
        texts[token_id], types[token_id] = text, NORMAL
    for token in tokenizer["added_tokens"]:
        texts[token["id"]] = token["content"]
        types[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]

    writer = gguf.GGUFWriter(out, architecture)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(texts)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(texts.index(config.get("eos_token") or "<|im_end|>"))
    writer.add_pad_token_id(texts.index(config.get("pad_token") or "<|endoftext|>"))
    if config.get("chat_template"):
        writer.add_chat_template(config["chat_template"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer_json")
    parser.add_argument("out")
    parser.add_argument("--config", help="tokenizer_config.json, for the chat template")
    parser.add_argument("--n-vocab", type=int, default=151936)
    parser.add_argument("--architecture", default="qwen3")
    args = parser.parse_args()
    make(args.tokenizer_json, args.out, args.config, args.n_vocab, args.architecture)


if __name__ == "__main__":
    main()

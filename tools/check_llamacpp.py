"""Continues a prompt greedily with kvart and with llama.cpp (package xllamacpp) and tells whether both write the same.

Both read the same GGUF file, keep K and V in float16 and take the likeliest token; kvart computes with float
activations, so that no quantization of its own stands between. xllamacpp may live in another environment:
--peer-python. Exit code 0: the same bytes; 1: not; 2: it could not be tried.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PROMPT = "The harbour wakes before the town does. At five the first boats"

_PEER = """
import json, sys
import xllamacpp
path, prompt, tokens = json.loads(sys.argv[1])
params = xllamacpp.CommonParams()
params.model.path = path
params.n_ctx, params.n_parallel, params.warmup, params.cpuparams.n_threads = 512, 1, False, 1
options = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": False, "logprobs": 1}
answer = xllamacpp.Server(params).handle_completions(options)
shown = answer["choices"][0]["logprobs"] or {"content": []}
found = [byte for entry in shown["content"] for byte in entry["bytes"]]
print(json.dumps(found), flush=True)
"""


def run_llamacpp(path: Path, prompt: str, tokens: int, python: str = sys.executable) -> bytes:
    """What llama.cpp writes. RuntimeError where it does not run."""
    arguments = json.dumps([str(path), prompt, tokens])
    done = subprocess.run([python, "-c", _PEER, arguments], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"llama.cpp: exit code {done.returncode}: {done.stderr.strip()[-1000:]}")
    return bytes(json.loads(done.stdout.splitlines()[-1]))


def run_kvart(path: Path, prompt: str, tokens: int) -> bytes:
    """What kvart writes: end-of-text tokens forbidden and other control tokens not shown, as llama.cpp does it."""
    import kvart

    model = kvart.Model(path, activations="f32")
    forbidden = dict.fromkeys(model.tokenizer.end_ids, -1e9)
    with model.session(kv="f16") as session:
        generation = session.generate(prompt, max_tokens=tokens, logit_bias=forbidden)
        generation.read()
    shown = [id for id in generation.token_ids if not model.tokenizer.is_control(id)]
    return b"".join(map(model.tokenizer.token_bytes, shown))


def same(ours: bytes, theirs: bytes) -> bool:
    """Whether both are the same; llama.cpp holds back the bytes of a last character that is not whole."""
    return bool(theirs) and ours.startswith(theirs) and len(ours) - len(theirs) < 4


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has xllamacpp")
    settings = parser.parse_args(argv)
    try:
        theirs = run_llamacpp(settings.model, settings.prompt, settings.tokens, settings.peer_python)
        ours = run_kvart(settings.model, settings.prompt, settings.tokens)
    except (OSError, RuntimeError, ValueError, subprocess.TimeoutExpired) as error:
        print(f"check_llamacpp: {error}", file=sys.stderr)
        return 2
    print(f"kvart     {ours!r}\nllama.cpp {theirs!r}\n{'the same' if same(ours, theirs) else 'NOT the same'}")
    return 0 if same(ours, theirs) else 1


if __name__ == "__main__":
    sys.exit(main())

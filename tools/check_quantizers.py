"""Perplexity of a model quantized by kvart and by llama.cpp (package llama-cpp-python), type by type.

Both start from the same GGUF file, best an f16 one; the files are read by kvart, on the same texts. llama-cpp-python
may live in another environment: --peer-python. Exit code 0: kvart's is nowhere higher by more than --most; 1: it is;
2: it could not be tried.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# llama.cpp's numbers for the types (llama_ftype in its llama.h).
FTYPES = {"q4_0": 2, "q4_1": 3, "q8_0": 7, "q5_0": 8, "q5_1": 9, "q3_k_m": 12, "q4_k_m": 15, "q5_k_m": 17, "q6_k": 18}
_PEER = """
import sys
import llama_cpp
source, target, ftype, threads = sys.argv[1:]
params = llama_cpp.llama_model_quantize_default_params()
params.ftype, params.nthread, params.allow_requantize = int(ftype), int(threads), True
sys.exit(llama_cpp.llama_model_quantize(source.encode(), target.encode(), params))
"""


def run(command: Sequence[str]) -> str:
    """What a command prints. RuntimeError, with the end of what it complained of, where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} …: exit code {done.returncode}: {done.stderr.strip()[-1000:]}")
    return done.stdout


def perplexity(kvart: Sequence[str], model: Path, texts: Sequence[str], ctx: int, threads: int) -> float:
    options = [part for text in texts for part in ("--text", text)]
    command = [*kvart, "eval", "perplexity", str(model), *options, "--ctx", str(ctx), "--kv", "f16", "--json"]
    rows = [json.loads(line) for line in run([*command, "--threads", str(threads)]).splitlines()]
    losses = sum(row["positions"] * math.log(row["ppl"]) for row in rows)
    return math.exp(losses / sum(row["positions"] for row in rows))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file that is not quantized")
    parser.add_argument("--text", action="append", required=True, help="a text in UTF-8; repeatable")
    parser.add_argument("--types", default="q4_0,q5_0,q8_0,q4_k_m,q5_k_m,q6_k", help=f"of {','.join(FTYPES)}")
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--most", type=float, default=0.003, help="by how much kvart's may be higher")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer-python", default=sys.executable)
    args = parser.parse_args(argv)
    kvart = [sys.executable, "-m", "kvart"]
    worst = 0.0
    try:
        base = perplexity(kvart, args.model, args.text, args.ctx, args.threads)
        print(json.dumps({"type": "as it is", "perplexity": base}), flush=True)
        for name in args.types.split(","):
            if name not in FTYPES:
                parser.error(f"--types: found {name!r}, wanted some of {', '.join(FTYPES)}")
            row: dict[str, Any] = {"type": name}
            with tempfile.TemporaryDirectory(dir=args.model.parent) as folder:
                ours, theirs = Path(folder, "kvart.gguf"), Path(folder, "llamacpp.gguf")
                run([*kvart, "quantize", str(args.model), str(ours), "--type", name])
                run([args.peer_python, "-c", _PEER, str(args.model), str(theirs), str(FTYPES[name]), str(args.threads)])
                for who, path in (("kvart", ours), ("llamacpp", theirs)):
                    row[f"{who}_bytes"] = path.stat().st_size
                    row[who] = perplexity(kvart, path, args.text, args.ctx, args.threads)
            row["ratio"] = row["kvart"] / row["llamacpp"]
            worst = max(worst, row["ratio"] - 1)
            print(json.dumps(row), flush=True)
    except (OSError, RuntimeError, ValueError) as error:
        print(f"could not be tried: {error}", file=sys.stderr)
        return 2
    return 1 if worst > args.most else 0


if __name__ == "__main__":
    sys.exit(main())

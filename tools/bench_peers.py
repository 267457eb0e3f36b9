"""Times kvart and other engines on one model, in turn (A B A B …), and prints medians, ratios and bytes a token.

Every measurement is a fresh process with the same threads, prompt length and depths. kvart is timed by its own
`kvart bench`, the others by peer_workers.py: llama.cpp through llama-cpp-python or xllamacpp, whichever the peers'
interpreter has, on the same GGUF file; onnxruntime-genai and MNN where their form of the model is given. Build
llama-cpp-python for the machine at hand, or the comparison flatters kvart (xllamacpp's wheel is built for AVX2, as is
MNN's; KVART_KERNELS=avx2 holds kvart to the same):
  CMAKE_ARGS=-DGGML_NATIVE=ON pip install llama-cpp-python
The others read 4-bit forms of a checkpoint, 4.5 bits a weight with the head, as a q4_0 with --head q4_0 has:
  python -m onnxruntime_genai.models.builder -i CHECKPOINT -o OUT -p int4 -e cpu -c /tmp/cache \\
    --extra_options accuracy_level=4 block_size=64 op_types_to_quantize=MatMul/Gather prune_lm_head=true
  PYTHONPATH=$SITE/llmexport python $SITE/llmexport/llmexport.py --path CHECKPOINT --dst_path OUT --export mnn \\
    --quant_bit 4 --quant_block 128 --lm_quant_bit 4
with onnx and torch beside the first, pip's llmexport beside MNN ($SITE: the interpreter's site-packages).

llama.cpp's settings: --peer-kv. Deep runs try all of them by default, f16 with flash attention on and off, q8_0 and
q4_0 (which need it on), and the ratio is to the fastest. At depth 0 f16 with flash attention is.

The time to the first token is that of a fresh process: from its start to the first token behind a prompt of 32, with
the file in the system's page cache.

Each may live in an environment of its own: --kvart-python and --peer-python. Times mean something on an idle machine
only: engines whose threads wait for each other in a busy loop lose many times more to a busy one than others do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer_workers import GGML_KV, MODULES

_WORKER = Path(__file__).with_name("peer_workers.py")
_LLAMACPP = ("llama-cpp-python", "xllamacpp")
# 32 tokens for the Qwen family.
FIRST_PROMPT = (
    "The storage engine keeps every page of the cache in a file that is mapped into memory, and a text that was read "
    "once is never computed a second time."
)
_KVART_FIRST = """
import sys, kvart
model = kvart.Model(sys.argv[1], threads=int(sys.argv[2]))
generation = model.generate(sys.argv[3], max_tokens=1)
for piece in generation: pass
print('{"test": "first_token", "prompt_tokens": %d}' % len(generation.prompt_ids), flush=True)
import os; os._exit(0)
"""
_SHAPE = """
import json, sys
from kvart import _core
f = _core.GgufFile(sys.argv[1])
a = f.get("general.architecture")
heads = f.get(a + ".attention.head_count")
print(json.dumps({
    "test": "shape",
    "tensors": [[t.name, t.bytes, len([d for d in t.dims if d > 1])] for t in f.tensors],
    "layers": f.get(a + ".block_count"),
    "kv_heads": f.get(a + ".attention.head_count_kv", heads),
    "head_dim": f.get(a + ".attention.key_length") or f.get(a + ".embedding_length") // heads,
}))
"""
# Of MatMulNBits, norms and biases; of the embedding table and of RoPE's a token reads a row.
_ONNX = """
import json, sys, onnx
graph = onnx.load(sys.argv[1], load_external_data=False).graph
sizes = {t.name: sum(int(e.value) for e in t.external_data if e.key == "length") for t in graph.initializer}
tables = ("Gather", "GatherBlockQuantized", "GroupQueryAttention")
read = {name for node in graph.node if node.op_type not in tables for name in node.input}
print(json.dumps({"test": "weights", "bytes": sum(sizes.get(name, 0) for name in read)}))
"""

Key = tuple[str, int, int]  # test, tokens, depth
Settings = argparse.Namespace


@dataclass(frozen=True)
class Contender:
    """An engine with its settings: a column of the table."""

    name: str
    command: tuple[str, ...]  # measures and prints lines as `kvart bench --json` does
    first: tuple[str, ...]  # prints a line when the first token is there; empty: not asked for
    weights: int = 0  # bytes of weights that a decoded token reads; 0: the engine's lines say themselves
    kv_bytes: float = 0.0  # of a token's K/V


@dataclass
class Runs:
    """What one contender reached: a value a round."""

    tok_s: dict[Key, list[float]] = field(default_factory=dict)
    bytes_per_token: dict[Key, int] = field(default_factory=dict)
    peak_mib: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)

    def add(self, contender: Contender, lines: list[dict[str, Any]], peak_mib: float) -> None:
        for line in lines:
            if line.get("test") not in ("prefill", "decode"):
                continue
            key = (line["test"], line["tokens"], line["depth"])
            self.tok_s.setdefault(key, []).append(float(line["tok_s"]))
            read = contender.weights + contender.kv_bytes * (line["depth"] + line["tokens"] / 2)
            self.bytes_per_token[key] = line.get("bytes_per_token") or round(read)
        self.peak_mib.append(peak_mib)


def run_process(command: Sequence[str]) -> tuple[list[dict[str, Any]], float]:
    """The JSON objects that a command prints, and its peak resident memory in MiB."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode:
            raise RuntimeError(_failure(command, process.returncode, err.read()))
        lines = [json.loads(line) for line in out.read().decode().splitlines() if line.startswith("{")]
    peak_mib = usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)  # bytes there, KiB elsewhere
    return lines, peak_mib


def _failure(command: Sequence[str], code: int, stderr: bytes) -> str:
    tail = stderr.decode(errors="replace").strip()[-2000:]
    return f"exit code {code} of: {' '.join(command)[:500]}\n{tail}"


def first_token_seconds(command: Sequence[str]) -> float:
    """From the start of a process to the line that says that its first token is there."""
    with tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=err)
        assert process.stdout is not None
        seconds = None
        for line in process.stdout:
            if line.startswith(b"{") and json.loads(line).get("test") == "first_token":
                seconds = time.perf_counter() - start
        code = process.wait()
        if code or seconds is None:
            err.seek(0)
            raise RuntimeError(_failure(command, code, err.read()))
    return seconds


# --- contenders -------------------------------------------------------------------------------------------------------


def contenders(settings: Settings) -> list[Contender]:
    found = [] if settings.only == "peers" else [_kvart(settings, kv) for kv in settings.kv.split(",")]
    if settings.only == "kvart":
        return found
    installed = [name for name in MODULES if _has(settings.peer_python, MODULES[name])]
    wanted = settings.peers.split(",") if settings.peers else [name for name in installed if name in _LLAMACPP][:1]
    for name in wanted:
        if name not in installed:
            raise RuntimeError(f"{settings.peer_python} has no {name}; it has {', '.join(installed) or 'no peer'}")
    others = {"onnxruntime-genai": settings.genai_model, "mnn": settings.mnn_model}
    wanted += [name for name, path in others.items() if path and name not in wanted]
    shape = _shape(settings) if wanted else None
    for name in wanted:
        if name in _LLAMACPP:
            found += [_llamacpp(settings, name, kv, flash, shape) for kv, flash in _peer_kv(settings)]
            continue
        path = others[name]
        if not path:
            raise RuntimeError(f"{name} needs its form of the model: --{name.replace('onnxruntime-', '')}-model")
        folder = Path(path) if Path(path).is_dir() else Path(path).parent
        weights = _mnn_weights(folder) if name == "mnn" else _onnx_weights(settings, folder)
        worker = (settings.peer_python, str(_WORKER), name, path, *_arguments(settings))
        kv_bytes = 4 * shape["kv_values"] if shape and weights else 0  # float32
        found.append(Contender(name, worker, (*worker, "--first-token", FIRST_PROMPT), weights, kv_bytes))
    return found


def _has(python: str, module: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0


def _arguments(settings: Settings) -> list[str]:
    depths = ",".join(str(d) for d in settings.depth)
    numbers = ["--prompt", str(settings.prompt), "--gen", str(settings.gen), "--depth", depths]
    return [*numbers, "--threads", str(settings.threads)]


def _kvart(settings: Settings, kv: str) -> Contender:
    bench = ("-m", "kvart", "bench", str(settings.model), *_arguments(settings))
    command = (settings.kvart_python, *bench, "--repetitions", "1", "--kv", kv, "--json")
    first = (settings.kvart_python, "-c", _KVART_FIRST, str(settings.model), str(settings.threads), FIRST_PROMPT)
    return Contender(f"kvart {kv}", command, first)


def _peer_kv(settings: Settings) -> list[tuple[str, bool]]:
    """(K/V type, flash attention on) of llama.cpp."""
    if settings.no_flash_attention:
        return [("f16", False)]
    if settings.peer_kv:
        return [(kv, True) for kv in settings.peer_kv.split(",")]
    return [("f16", True), ("f16", False), ("int8", True), ("int4", True)] if max(settings.depth) else [("f16", True)]


def _llamacpp(settings: Settings, package: str, kv: str, flash: bool, shape: dict[str, Any] | None) -> Contender:
    worker = (settings.peer_python, str(_WORKER), package, str(settings.model), *_arguments(settings), "--kv", kv)
    worker = worker if flash else (*worker, "--no-flash-attention")
    name = f"{package} {GGML_KV[kv].lower()}{'' if flash else ' no-fa'}"
    bits = {"f32": 32, "f16": 16, "int8": 8.5, "int4": 4.5}[kv]
    weights, values = (shape["weights"], shape["kv_values"]) if shape else (0, 0)
    return Contender(name, worker, (*worker, "--first-token", FIRST_PROMPT), weights, values * bits / 8)


def _shape(settings: Settings) -> dict[str, Any] | None:
    """Bytes of weights a token, and values of K/V a token, from the file; None without kvart to read it."""
    if not _has(settings.kvart_python, "kvart"):
        return None
    [shape], _ = run_process([settings.kvart_python, "-c", _SHAPE, str(settings.model)])
    matrices = {name: size for name, size, dims in shape["tensors"] if dims > 1}
    if "output.weight" in matrices:  # else the embedding table is the head as well
        matrices.pop("token_embd.weight", None)
    return {
        "weights": sum(matrices.values()),
        "kv_values": 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"],
    }


def _onnx_weights(settings: Settings, folder: Path) -> int:
    """Bytes of weights a token; 0, not known, without the graph, or the onnx package to read it."""
    graph = folder / "model.onnx"
    if not graph.is_file() or not _has(settings.peer_python, "onnx"):
        return 0
    [found], _ = run_process([settings.peer_python, "-c", _ONNX, str(graph)])
    return int(found["bytes"])


def _mnn_weights(folder: Path) -> int:
    """The embedding table has a file of its own, unless it is the head."""
    return sum(file.stat().st_size for file in folder.glob("*.mnn.weight"))


# --- results ----------------------------------------------------------------------------------------------------------


def _against(line: dict[str, Any], runs: dict[str, list[float]], *, higher_is_better: bool) -> None:
    """Adds the ratios of the first kvart to each peer, and to the best of them. Of rounds, which drift cannot touch."""
    ours = next((name for name in runs if name.startswith("kvart")), None)
    peers = [name for name in runs if not name.startswith("kvart")]
    if ours is None or not peers:
        return
    line["ratios"] = {
        name: statistics.median(a / b for a, b in zip(runs[ours], runs[name], strict=True)) for name in peers
    }
    best = max if higher_is_better else min
    line["best_peer"] = best(peers, key=lambda name: statistics.median(runs[name]))
    line["ratio"] = line["ratios"][line["best_peer"]]


def summarize(settings: Settings, runs: dict[str, Runs]) -> list[dict[str, Any]]:
    """One object a test: each contender's median and ends, and ratios of kvart's to the others'."""
    keys = sorted({key for run in runs.values() for key in run.tok_s}, key=lambda key: (key[2], key[0] != "prefill"))
    result: list[dict[str, Any]] = []
    common = {"model": settings.model.name, "threads": settings.threads}
    for key in keys:
        test, tokens, depth = key
        line: dict[str, Any] = {**common, "test": test, "tokens": tokens, "depth": depth}
        for name, run in runs.items():
            values = run.tok_s[key]
            line[name] = {"tok_s": statistics.median(values), "tok_s_min": min(values), "tok_s_max": max(values)}
            if test == "decode" and run.bytes_per_token[key]:
                line[name]["bytes_per_token"] = run.bytes_per_token[key]
        _against(line, {name: run.tok_s[key] for name, run in runs.items()}, higher_is_better=True)
        result.append(line)
    if settings.first_token:
        first: dict[str, Any] = {**common, "test": "first_token"}
        for name, run in runs.items():
            values = run.first_s
            first[name] = {"seconds": statistics.median(values), "seconds_min": min(values), "seconds_max": max(values)}
        _against(first, {name: run.first_s for name, run in runs.items()}, higher_is_better=False)
        result.append(first)
    if not keys:
        return result
    memory: dict[str, Any] = {**common, "test": "memory", "depth": max(settings.depth)}
    for name, run in runs.items():
        memory[name] = {"peak_mib": statistics.median(run.peak_mib)}
    _against(memory, {name: run.peak_mib for name, run in runs.items()}, higher_is_better=False)
    return [*result, memory]


def _cells(line: dict[str, Any], name: str) -> list[str]:
    """Median, ends, MB a token, and the ratio of kvart's to it, with a star at the best of the peers."""
    found = line[name]
    ratio = (
        f"{line['ratios'][name]:.2f}{' *' if line['best_peer'] == name else ''}"
        if name in line.get("ratios", {})
        else ""
    )
    if line["test"] == "memory":
        return [f"{found['peak_mib']:.0f}", "", "", ratio]
    if line["test"] == "first_token":
        return [f"{found['seconds']:.3f}", f"{found['seconds_min']:.3f}-{found['seconds_max']:.3f}", "", ratio]
    megabytes = f"{found['bytes_per_token'] / 1e6:.1f}" if "bytes_per_token" in found else ""
    return [f"{found['tok_s']:.1f}", f"{found['tok_s_min']:.1f}-{found['tok_s_max']:.1f}", megabytes, ratio]


def print_table(title: str, lines: list[dict[str, Any]], names: list[str]) -> None:
    labels = {"memory": "peak resident, MiB", "first_token": "first token, s"}
    rows = []
    for line in lines:
        label = labels.get(line["test"]) or f"{line['test']} {line['tokens']}, tok/s"
        for number, name in enumerate(names):
            first = [label, str(line.get("depth", ""))] if number == 0 else ["", ""]
            rows.append([*first, name, *_cells(line, name)])
    header = ["test", "depth", "engine", "median", "min-max", "MB a token", "kvart's ratio"]
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
        print(title)
        for row in [header, *rows]:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        return
    table = Table(title=title)
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i in (0, 2) else "right")
    for row in rows:
        table.add_row(*row)
    console = Console()
    if not console.is_terminal:
        console.width = 120
    console.print(table)


def measure(settings: Settings, found: list[Contender]) -> dict[str, Runs]:
    """Rounds in turn; every other one backwards, so that a steady drift favours nobody."""
    runs = {contender.name: Runs() for contender in found}
    for i in range(settings.rounds):
        for contender in found if i % 2 == 0 else reversed(found):
            print(f"round {i + 1} of {settings.rounds}: {contender.name}", file=sys.stderr, flush=True)
            if settings.prompt or settings.gen:
                runs[contender.name].add(contender, *run_process(contender.command))
            if settings.first_token:
                runs[contender.name].first_s.append(first_token_seconds(contender.first))
    return runs


def _depths(text: str) -> list[int]:
    depths = sorted({int(part) for part in text.split(",")})
    if depths[0] < 0:
        raise ValueError(text)
    return depths


def _parser() -> argparse.ArgumentParser:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n  python tools/bench_peers.py MODEL.gguf --prompt 512 --gen 64 --rounds 5 --first-token\n"
        "  python tools/bench_peers.py MODEL.gguf --prompt 0 --depth 2048,8192 --kv int4 --json",
    )
    parser.add_argument("model", type=Path, help="the GGUF file")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prefill, 0 for none (default 512)")
    parser.add_argument("--gen", type=int, default=64, help="tokens to decode, 0 for none (default 64)")
    parser.add_argument("--depth", type=_depths, default=[0], help="tokens already in the cache: 0,2048 (default 0)")
    parser.add_argument("--kv", default="f16", help="kvart's K/V formats, the first for the ratios (default f16)")
    parser.add_argument("--peer-kv", help="llama.cpp's K/V types, flash attention on: f16,int8,int4")
    parser.add_argument("--no-flash-attention", action="store_true", help="llama.cpp with f16 and without it, alone")
    parser.add_argument("--threads", type=int, default=cores, help=f"default: all cores ({cores})")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each (default 3)")
    parser.add_argument("--first-token", action="store_true", help="also a fresh process's time to its first token")
    parser.add_argument("--peers", help=f"of {', '.join(MODULES)}; default: llama.cpp through what is installed")
    parser.add_argument("--genai-model", help="folder of onnxruntime-genai's model builder")
    parser.add_argument("--mnn-model", help="config.json of MNN's exporter")
    parser.add_argument("--only", choices=("kvart", "peers"), help="time kvart or the peers alone")
    parser.add_argument("--kvart-python", default=sys.executable, help="interpreter that has kvart")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has the peers")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of the table")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    settings = parser.parse_args(argv)
    if not settings.model.is_file():
        parser.error(f"{settings.model} is not a file")
    if settings.peer_kv and not set(settings.peer_kv.split(",")) <= set(GGML_KV):
        parser.error(f"--peer-kv: expected some of {', '.join(GGML_KV)}, found {settings.peer_kv}")
    if settings.rounds < 1 or not (settings.prompt or settings.gen or settings.first_token):
        parser.error("there is nothing to measure")
    try:
        found = contenders(settings)
        runs = measure(settings, found)
    except (OSError, RuntimeError) as error:
        print(f"bench_peers: {error}", file=sys.stderr)
        return 1
    lines = summarize(settings, runs)
    if settings.json:
        for line in lines:
            print(json.dumps(line))
    else:
        print_table(f"{settings.model.name}, {settings.threads} threads", lines, list(runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Times kvart and llama.cpp on one model, in turn (A B A B ...), and prints medians and ratios.

Every measurement is a fresh process with the same model, threads, prompt length and K/V format. kvart is timed by its
own `kvart bench`; llama.cpp through the package llama-cpp-python (flash attention on, the whole prompt in one
micro-batch), with the meaning of its llama-bench: random tokens, no sampling, one untimed pass first. Build that
package for the machine at hand, or the comparison flatters kvart:
  CMAKE_ARGS=-DGGML_NATIVE=ON pip install llama-cpp-python

Each of the two may live in an environment of its own: --kvart-python and --peer-python.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# ggml's type ids; its q8_0 and q4_0 caches are what stands nearest to int8 and int4.
_LLAMACPP_KV = {"f32": 0, "f16": 1, "int8": 8, "int4": 2}

Key = tuple[str, int]  # test, depth
Settings = argparse.Namespace


@dataclass
class Runs:
    """What one engine reached: tokens a second per test and depth, one value a round, and peak resident memory."""

    tok_s: dict[Key, list[float]] = field(default_factory=dict)
    peak_mib: list[float] = field(default_factory=list)

    def add(self, lines: list[dict[str, Any]], peak_mib: float) -> None:
        for line in lines:
            self.tok_s.setdefault((line["test"], line["depth"]), []).append(float(line["tok_s"]))
        self.peak_mib.append(peak_mib)


def run_process(command: list[str]) -> tuple[list[dict[str, Any]], float]:
    """The JSON objects that a command prints with a "test" in them, and its peak resident memory in MiB."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(command, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if process.returncode:
            tail = err.read().decode(errors="replace").strip()[-2000:]
            raise RuntimeError(f"exit code {process.returncode} of: {' '.join(command)}\n{tail}")
        lines = [json.loads(line) for line in out.read().decode().splitlines() if line.startswith("{")]
    peak_mib = usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)  # bytes there, KiB elsewhere
    return [line for line in lines if line.get("test") in ("prefill", "decode")], peak_mib


def run_kvart(settings: Settings) -> tuple[list[dict[str, Any]], float]:
    return run_process(
        [settings.kvart_python, "-m", "kvart", "bench", str(settings.model), *_bench_arguments(settings)]
    )


def run_llamacpp(settings: Settings) -> tuple[list[dict[str, Any]], float]:
    worker = [settings.peer_python, __file__, str(settings.model), "--llamacpp-worker"]
    if settings.no_flash_attention:
        worker.append("--no-flash-attention")
    return run_process([*worker, *_bench_arguments(settings)])


def _bench_arguments(settings: Settings) -> list[str]:
    depths = ",".join(str(d) for d in settings.depth)
    numbers = ["--prompt", str(settings.prompt), "--gen", str(settings.gen), "--depth", depths]
    return [*numbers, "--kv", settings.kv, "--threads", str(settings.threads), "--json"]


def llamacpp_worker(settings: Settings) -> None:
    """One measurement of llama.cpp in this process: one JSON line a test, of the form that `kvart bench` prints."""
    import llama_cpp
    import numpy as np

    kv_type = _LLAMACPP_KV[settings.kv]
    llama = llama_cpp.Llama(
        str(settings.model),
        n_ctx=max(settings.depth) + max(settings.prompt, settings.gen) + 16,
        n_batch=settings.prompt,
        n_ubatch=settings.prompt,
        n_threads=settings.threads,
        n_threads_batch=settings.threads,
        flash_attn=not settings.no_flash_attention,
        type_k=kv_type,
        type_v=kv_type,
        verbose=False,
    )
    context = llama.ctx
    random = np.random.RandomState(0)

    def decode(n: int) -> None:
        """Feeds n random tokens as one batch, as prefill does; asks for the logits of the last."""
        ids = (ctypes.c_int32 * n)(*random.randint(0, llama.n_vocab(), n).tolist())
        if llama_cpp.llama_decode(context, llama_cpp.llama_batch_get_one(ids, n)):
            raise RuntimeError(f"llama_decode of {n} tokens failed")
        llama_cpp.llama_synchronize(context)

    def fill(n: int) -> None:
        while n > 0:
            decode(min(n, settings.prompt))
            n -= settings.prompt

    def restart(depth: int) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        fill(depth)

    def timed(work: Callable[[], None], tokens: int) -> float:
        start = time.perf_counter()
        work()
        return tokens / (time.perf_counter() - start)

    def generate() -> None:
        for _ in range(settings.gen):
            decode(1)

    fill(settings.prompt)
    decode(1)
    for depth in settings.depth:
        common = {"depth": depth, "kv": settings.kv, "threads": settings.threads}
        for test, tokens, work in (
            ("prefill", settings.prompt, lambda: decode(settings.prompt)),
            ("decode", settings.gen, generate),
        ):
            restart(depth)
            print(json.dumps({"test": test, "tokens": tokens, **common, "tok_s": timed(work, tokens)}), flush=True)


def summarize(settings: Settings, runs: dict[str, Runs]) -> list[dict[str, Any]]:
    """One object a test: the median of each engine, and the median of the rounds' ratios, which drift cannot touch."""
    keys = sorted({key for run in runs.values() for key in run.tok_s}, key=lambda key: (key[1], key[0] != "prefill"))
    result: list[dict[str, Any]] = []
    for test, depth in keys:
        tokens = settings.prompt if test == "prefill" else settings.gen
        line: dict[str, Any] = {"test": test, "tokens": tokens, "depth": depth, "kv": settings.kv}
        line["threads"] = settings.threads
        for name, run in runs.items():
            values = run.tok_s[(test, depth)]
            line[name] = {"tok_s": statistics.median(values), "tok_s_min": min(values), "tok_s_max": max(values)}
        if len(runs) == 2:
            ours, theirs = (run.tok_s[(test, depth)] for run in runs.values())
            line["ratio"] = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
        result.append(line)
    peaks = {name: statistics.median(run.peak_mib) for name, run in runs.items()}
    memory: dict[str, Any] = {"test": "memory", **{name: {"peak_mib": peak} for name, peak in peaks.items()}}
    if len(runs) == 2:
        our_peak, their_peak = peaks.values()
        memory["ratio"] = our_peak / their_peak
    return [*result, memory]


def print_table(title: str, lines: list[dict[str, Any]], names: list[str]) -> None:
    rows = []
    for line in lines:
        if line["test"] == "memory":
            cells = ["peak resident, MiB", "", *(f"{line[name]['peak_mib']:.0f}" for name in names)]
        else:
            cells = [f"{line['test']} {line['tokens']}, tok/s", str(line["depth"])]
            cells += [f"{line[n]['tok_s']:.1f} ({line[n]['tok_s_min']:.1f}-{line[n]['tok_s_max']:.1f})" for n in names]
        rows.append([*cells, f"{line['ratio']:.2f}" if "ratio" in line else "-"])
    header = ["test", "depth", *names, "ratio"]
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
        table.add_column(name, justify="left" if i == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _depths(text: str) -> list[int]:
    depths = [int(part) for part in text.split(",")]
    if min(depths) < 0:
        raise ValueError(text)
    return depths


def main(argv: Sequence[str] | None = None) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python tools/bench_peers.py MODEL.gguf --prompt 512 --gen 64 --rounds 5 --json",
    )
    parser.add_argument("model", type=Path, help="the GGUF file")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prefill (default 512)")
    parser.add_argument("--gen", type=int, default=64, help="tokens to decode (default 64)")
    parser.add_argument("--depth", type=_depths, default=[0], help="tokens already in the cache: 0,2048 (default 0)")
    parser.add_argument("--kv", choices=tuple(_LLAMACPP_KV), default="f16", help="K/V format (default f16)")
    parser.add_argument("--threads", type=int, default=cores, help=f"default: all cores ({cores})")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each engine (default 3)")
    parser.add_argument("--only", choices=("kvart", "llama.cpp"), help="time one engine alone")
    parser.add_argument("--no-flash-attention", action="store_true", help="llama.cpp without it (f16 and f32 only)")
    parser.add_argument("--kvart-python", default=sys.executable, help="interpreter that has kvart")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has llama-cpp-python")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of the table")
    parser.add_argument("--llamacpp-worker", action="store_true", help=argparse.SUPPRESS)
    settings = parser.parse_args(argv)
    if not settings.model.is_file():
        parser.error(f"{settings.model} is not a file")
    if settings.llamacpp_worker:
        llamacpp_worker(settings)
        return 0

    engines = {"kvart": run_kvart, "llama.cpp": run_llamacpp}
    if settings.only:
        engines = {settings.only: engines[settings.only]}
    runs = {name: Runs() for name in engines}
    try:
        for i in range(settings.rounds):
            for name, engine in engines.items():
                print(f"round {i + 1} of {settings.rounds}: {name}", file=sys.stderr, flush=True)
                runs[name].add(*engine(settings))
    except (OSError, RuntimeError) as error:
        print(f"bench_peers: {error}", file=sys.stderr)
        return 1
    lines = summarize(settings, runs)
    if settings.json:
        for line in lines:
            print(json.dumps(line))
    else:
        print_table(f"{settings.model.name}, {settings.kv} K/V, {settings.threads} threads", lines, list(engines))
    return 0


if __name__ == "__main__":
    sys.exit(main())

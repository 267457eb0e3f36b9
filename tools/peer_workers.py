"""One measurement of another engine, run in a process of its own by bench_peers.py, with that engine's interpreter.

Prints one JSON object a line of the form of `kvart bench --json`; with --first-token one line, {"test":
"first_token"}, the moment the first token of the prompt is there. Needs nothing but the engine's own package: for
llama.cpp llama-cpp-python or xllamacpp, onnxruntime-genai, MNN.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

# ggml's names of the cache types that stand nearest to kvart's.
GGML_KV = {"f32": "F32", "f16": "F16", "int8": "Q8_0", "int4": "Q4_0"}
_GGML_IDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q8_0": 8}

Settings = argparse.Namespace


class Engine:
    """What a measurement needs of an engine. Contexts grow only: depths come in ascending order."""

    def __init__(self, settings: Settings, n_ctx: int) -> None: ...

    def fill(self, ids: list[int]) -> None:
        """Adds tokens to the context."""
        raise NotImplementedError

    def prefill(self, ids: list[int]) -> float:
        """Seconds to add tokens, up to the logits of the last. Leaves the context as it was."""
        raise NotImplementedError

    def decode(self, count: int) -> float:
        """Seconds to add so many tokens one by one. Leaves the context as it was."""
        raise NotImplementedError

    def first_token(self, prompt: str) -> None:
        """Returns when the first token after a prompt is there."""
        raise NotImplementedError


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class LlamaCppPython(Engine):
    """llama.cpp through llama-cpp-python: its C functions, as its own bench calls them; nothing is sampled."""

    def __init__(self, settings: Settings, n_ctx: int) -> None:
        import llama_cpp

        self._lib = llama_cpp
        kv_type = _GGML_IDS[GGML_KV[settings.kv]]
        self._batch = max(settings.prompt, 512)
        self._llama = llama_cpp.Llama(
            settings.model,
            n_ctx=n_ctx,
            n_batch=self._batch,
            n_ubatch=self._batch,
            n_threads=settings.threads,
            n_threads_batch=settings.threads,
            flash_attn=settings.flash_attention,
            type_k=kv_type,
            type_v=kv_type,
            verbose=False,
        )
        self._size = 0

    def _decode(self, ids: list[int]) -> None:
        """One batch; the logits of the last are asked for."""
        array = (ctypes.c_int32 * len(ids))(*ids)
        if self._lib.llama_decode(self._llama.ctx, self._lib.llama_batch_get_one(array, len(ids))):
            raise RuntimeError(f"llama_decode of {len(ids)} tokens failed")
        self._lib.llama_synchronize(self._llama.ctx)

    def _restore(self) -> None:
        memory = self._lib.llama_get_memory(self._llama.ctx)
        self._lib.llama_memory_seq_rm(memory, 0, self._size, -1)

    def fill(self, ids: list[int]) -> None:
        for begin in range(0, len(ids), self._batch):
            self._decode(ids[begin : begin + self._batch])
        self._size += len(ids)

    def prefill(self, ids: list[int]) -> float:
        seconds = _timed(lambda: self._decode(ids))
        self._restore()
        return seconds

    def decode(self, count: int) -> float:
        ids = _random_ids(count)

        def steps() -> None:
            for token in ids:
                self._decode([token])

        seconds = _timed(steps)
        self._restore()
        return seconds

    def first_token(self, prompt: str) -> None:
        next(iter(self._llama(prompt, max_tokens=1, temperature=0, stream=True)))


class XLlamaCpp(Engine):
    """llama.cpp through xllamacpp: its server inside this process, and the times that it reports. Greedy sampling."""

    def __init__(self, settings: Settings, n_ctx: int) -> None:
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = settings.model
        params.n_ctx = n_ctx
        params.n_batch = params.n_ubatch = max(settings.prompt, 512)
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.threads
        flash = xllamacpp.llama_flash_attn_type
        params.flash_attn_type = (
            flash.LLAMA_FLASH_ATTN_TYPE_ENABLED if settings.flash_attention else flash.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        kv_type = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{GGML_KV[settings.kv]}")
        params.cache_type_k = params.cache_type_v = kv_type
        params.n_parallel = 1
        params.cache_ram_mib = 0
        params.warmup = False
        params.verbosity = 0
        self._server = xllamacpp.Server(params)
        self._context: list[int] = []

    def _complete(self, prompt: list[int] | str, count: int) -> dict[str, Any]:
        request = {"prompt": prompt, "n_predict": count, "cache_prompt": True, "ignore_eos": True, "temperature": 0}
        answer = self._server.handle_completions({**request, "top_k": 1})
        if "timings" not in answer:
            raise RuntimeError(f"xllamacpp answered {answer}")
        return dict(answer["timings"])

    def fill(self, ids: list[int]) -> None:
        self._context += ids
        self._complete(self._context, 1)

    def prefill(self, ids: list[int]) -> float:
        times = self._complete(self._context + ids, 1)
        if times["prompt_n"] != len(ids):
            raise RuntimeError(f"xllamacpp computed {times['prompt_n']} tokens, expected {len(ids)}")
        return float(times["prompt_ms"]) / 1e3

    def decode(self, count: int) -> float:
        times = self._complete(self._context + _random_ids(1), count + 1)
        return float(times["predicted_ms"]) / 1e3 * count / max(1, times["predicted_n"] - 1)  # the first is free

    def first_token(self, prompt: str) -> None:
        self._complete(prompt, 1)


class OnnxRuntimeGenAI(Engine):
    """onnxruntime-genai, of a folder that its model builder wrote; K/V as that says. Greedy, with no end of text."""

    def __init__(self, settings: Settings, n_ctx: int) -> None:
        import numpy as np
        import onnxruntime_genai as og

        self._np = np
        config = og.Config(settings.model)
        threads = {"session_options": {"intra_op_num_threads": settings.threads}}
        config.overlay(json.dumps({"model": {"decoder": threads}}))
        self._model = og.Model(config)
        params = og.GeneratorParams(self._model)
        params.set_search_options(min_length=n_ctx, max_length=n_ctx, do_sample=False)
        self._generator = og.Generator(self._model, params)
        self._tokenizer = og.Tokenizer(self._model)
        self._size = 0

    def _append(self, ids: list[int]) -> None:
        self._generator.append_tokens(self._np.array(ids, dtype=self._np.int32))

    def fill(self, ids: list[int]) -> None:
        self._append(ids)
        self._size += len(ids)

    def prefill(self, ids: list[int]) -> float:
        seconds = _timed(lambda: self._append(ids))
        self._generator.rewind_to(self._size)
        return seconds

    def decode(self, count: int) -> float:
        self._append(_random_ids(1))
        self._generator.generate_next_token()  # from logits that are there already

        def steps() -> None:
            for _ in range(count):
                self._generator.generate_next_token()

        seconds = _timed(steps)
        self._generator.rewind_to(self._size)
        return seconds

    def first_token(self, prompt: str) -> None:
        self._generator.append_tokens(self._tokenizer.encode(prompt))
        self._generator.generate_next_token()


class Mnn(Engine):
    """MNN, of the config.json that its exporter wrote; K/V as that says; nothing is sampled.

    It can't go back: each run fills anew.
    """

    def __init__(self, settings: Settings, n_ctx: int) -> None:
        import MNN.llm

        self._llm = MNN.llm.create(settings.model)
        self._llm.set_config({"thread_num": settings.threads})
        self._llm.load()
        self._context: list[int] = []

    def _begin(self) -> None:
        self._llm.reset()
        self._llm.generate_init()
        if self._context:
            self._llm.forward(self._context)

    def fill(self, ids: list[int]) -> None:
        self._context += ids

    def prefill(self, ids: list[int]) -> float:
        self._begin()
        return _timed(lambda: self._llm.forward(ids))

    def decode(self, count: int) -> float:
        ids = _random_ids(count)
        self._begin()
        self._llm.forward(_random_ids(1))  # the first of its shape prepares the graph

        def steps() -> None:
            for token in ids:
                self._llm.forward([token])

        return _timed(steps)

    def first_token(self, prompt: str) -> None:
        self._begin()
        self._llm.forward(self._llm.tokenizer_encode(prompt)).read().argmax()


ENGINES: dict[str, type[Engine]] = {
    "llama-cpp-python": LlamaCppPython,
    "xllamacpp": XLlamaCpp,
    "onnxruntime-genai": OnnxRuntimeGenAI,
    "mnn": Mnn,
}
MODULES = {
    "llama-cpp-python": "llama_cpp",
    "xllamacpp": "xllamacpp",
    "onnxruntime-genai": "onnxruntime_genai",
    "mnn": "MNN",
}


def _random_ids(count: int) -> list[int]:
    return random.choices(range(10_000), k=count)


def measure(settings: Settings) -> None:
    """Prefill and decode at each depth, behind an untimed pass of each."""
    n_ctx = max(settings.depth) + max(settings.prompt, settings.gen + 2) + 16
    engine = ENGINES[settings.engine](settings, n_ctx)
    if settings.prompt:
        engine.prefill(_random_ids(settings.prompt))
    if settings.gen:
        engine.decode(1)
    filled = 0
    for depth in sorted(settings.depth):
        if depth > filled:
            engine.fill(_random_ids(depth - filled))
            filled = depth
        common = {"depth": depth, "kv": settings.kv, "threads": settings.threads}
        for test, tokens in (("prefill", settings.prompt), ("decode", settings.gen)):
            if tokens:
                seconds = engine.prefill(_random_ids(tokens)) if test == "prefill" else engine.decode(tokens)
                line = {"test": test, "tokens": tokens, **common, "tok_s": tokens / seconds}
                print(json.dumps(line), flush=True)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("engine", choices=tuple(ENGINES))
    result.add_argument("model", help="what the engine loads: a GGUF file, a folder, a config.json")
    result.add_argument("--prompt", type=int, default=512)
    result.add_argument("--gen", type=int, default=64)
    result.add_argument("--depth", type=lambda text: [int(part) for part in text.split(",")], default=[0])
    result.add_argument("--threads", type=int, default=1)
    result.add_argument("--kv", choices=tuple(GGML_KV), default="f16")
    result.add_argument("--no-flash-attention", dest="flash_attention", action="store_false")
    result.add_argument("--first-token", metavar="PROMPT")
    return result


def main() -> None:
    settings = parser().parse_args()
    if settings.first_token is None:
        measure(settings)
        return
    settings.prompt = 0
    ENGINES[settings.engine](settings, 512).first_token(settings.first_token)
    print(json.dumps({"test": "first_token"}), flush=True)
    sys.stderr.flush()
    os._exit(0)  # taking the engine apart is no part of it


if __name__ == "__main__":
    main()

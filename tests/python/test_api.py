"""Model, Session and Generation: what they give, what they refuse, and that threads, forks and signals do no harm."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvart
from kvart.generation import StopMatcher

PROMPT = "the cat sat on the mat and then"


def run_script(script: str, *args: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def never_end(model: kvart.Model) -> dict[int, float]:
    """A logit_bias that keeps a random model from ending its turn."""
    return dict.fromkeys(model.tokenizer.end_ids, -1e9)


# --- what is given ---


def test_import_is_light() -> None:
    done = run_script(
        """
        import sys, kvart
        print([name for name in ("rich", "typer", "jinja2", "numpy") if name in sys.modules])
        """
    )
    assert done.stdout == "[]\n", done.stderr


def test_model_tells_what_it_is(tiny: kvart.Model, tiny_path: Path) -> None:
    info = tiny.info
    assert (info.architecture, info.n_layers, info.n_heads, info.n_kv_heads, info.head_dim) == ("qwen2", 2, 4, 2, 16)
    assert (info.n_vocab, info.n_ctx_train, info.n_threads) == (384, 512, 2)
    assert info.path == str(tiny_path)
    assert tiny.file.get("general.architecture") == "qwen2"
    assert tiny.file.get("absent", 7) == 7
    assert len(tiny.file.get("tokenizer.ggml.tokens")) == 384
    tensor = next(t for t in tiny.file.tensors if t.name == "token_embd.weight")
    assert (tensor.type, tensor.dims, tensor.bytes) == ("f32", [64, 384], 64 * 384 * 4)


def test_generation_streams_what_it_holds(tiny: kvart.Model) -> None:
    generation = tiny.generate(PROMPT, max_tokens=20, seed=3, temperature=1.0)
    pieces = list(generation)
    assert all(pieces)
    assert generation.text == "".join(pieces)
    assert generation.prompt_ids == tiny.tokenizer.encode(PROMPT)
    assert generation.stop in ("length", "end")
    assert generation.stats["generated_tokens"] == len(generation.token_ids) <= 20
    assert generation.stats["seed"] == 3
    assert list(generation) == []
    ids = [id for id in generation.token_ids if not tiny.tokenizer.is_end(id)]
    assert generation.text == tiny.tokenizer.decode(ids, skip_control=True)


def test_the_same_seed_gives_the_same_text(tiny_path: Path) -> None:
    texts = set()
    for threads in (1, 2):
        model = kvart.Model(tiny_path, threads=threads)
        for chunk in (1, 7, 512):
            session = model.session(chunk=chunk)
            texts.add(session.generate(PROMPT, max_tokens=30, temperature=0.9, top_p=0.9, seed=11).read())
    assert len(texts) == 1
    assert model.generate(PROMPT, max_tokens=30, temperature=0.9, top_p=0.9, seed=12).read() not in texts


def test_greedy_follows_the_logits(tiny: kvart.Model) -> None:
    ids = tiny.tokenizer.encode(PROMPT)
    generation = tiny.generate(ids, max_tokens=8)
    generation.read()
    logits = tiny.logits(ids + generation.token_ids)
    assert logits.shape == (len(ids) + len(generation.token_ids), 384)
    assert logits.dtype == np.float32
    assert list(logits[len(ids) - 1 : -1].argmax(axis=1)) == generation.token_ids
    banned = generation.token_ids[0]
    other = tiny.generate(ids, max_tokens=1, logit_bias={banned: -1e9})
    other.read()
    assert other.token_ids != [banned]


def test_session_appends_rewinds_and_forks(tiny: kvart.Model) -> None:
    ids = tiny.tokenizer.encode(PROMPT)
    expected = tiny.logits([*ids, 5, 6])
    with tiny.session() as session:
        session.append(ids[:3])
        np.testing.assert_array_equal(session.append_logits(ids[3:]), expected[3:-2])
        np.testing.assert_array_equal(session.logits(), expected[-3])
        assert session.tokens == ids and len(session) == len(ids)
        fork = session.fork()
        fork.append([5])
        session.append([9, 9, 9])
        session.rewind(len(ids))
        np.testing.assert_array_equal(session.logits(), expected[-3])
        fork.append([6])
        np.testing.assert_array_equal(fork.logits(), expected[-1])
        assert fork.tokens == [*ids, 5, 6] and session.tokens == ids
        session.rewind(0)
        assert session.tokens == []
    with pytest.raises(kvart.InvalidArgument, match="closed"):
        session.append("x")
    assert fork.tokens == [*ids, 5, 6]  # outlives what it was forked from


@pytest.mark.parametrize("kv", ["f16", "f32", "k=f32,v=f16", "int4"])
@pytest.mark.parametrize("layout", ["paged", "contiguous"])
def test_kv_has_the_shapes_of_the_model(tiny: kvart.Model, kv: str, layout: str) -> None:
    if (kv, layout) == ("int4", "contiguous"):
        pytest.skip("one run of floats")
    session = tiny.session(kv=kv, layout=layout)
    session.append(list(range(150)))
    layers = session.kv()
    assert len(layers) == 2
    for k, v in layers:
        assert k.shape == v.shape == (2, 150, 16)
        assert k.dtype == v.dtype == np.float32
        assert np.isfinite(k).all() and np.abs(k).max() > 0 and np.abs(v).max() > 0
    stats = session.stats
    assert 0 < stats["kv_used_bytes"] <= stats["kv_bytes"]
    assert 0 < stats["kv_utilization"] <= 1


def test_without_cache_the_text_is_the_same(tiny: kvart.Model) -> None:
    cached = tiny.session().generate(PROMPT, max_tokens=12).read()
    session = tiny.session(cache=False)
    assert session.generate(PROMPT, max_tokens=12).read() == cached
    assert session.stats["recomputed_positions"] > 0


def test_stats_of_a_model_are_sums(tiny_path: Path) -> None:
    model = kvart.Model(tiny_path)
    model.generate(PROMPT, max_tokens=5).read()
    stats = model.stats
    assert stats["prefill_tokens"] == len(model.tokenizer.encode(PROMPT))
    assert stats["decode_tokens"] >= 4
    assert stats["load_seconds"] > 0


# --- where a generation stops ---


def test_stops_at_the_end_of_a_turn(tiny: kvart.Model) -> None:
    end = tiny.tokenizer.find("<|im_end|>")
    assert end is not None and end in tiny.tokenizer.end_ids
    generation = tiny.generate(PROMPT, logit_bias={end: 1e9})
    assert generation.read() == ""
    assert (generation.stop, generation.token_ids) == ("end", [end])


def test_stop_strings_are_never_shown(tiny: kvart.Model) -> None:
    whole = tiny.generate(PROMPT, max_tokens=40).read()
    for start in range(0, len(whole) - 4, 3):
        stop = whole[start : start + 4]
        generation = tiny.generate(PROMPT, max_tokens=40, stop=["never said", stop])
        pieces = list(generation)
        assert "".join(pieces) == generation.text == whole[: whole.index(stop)]
        assert generation.stop == "stop"


@pytest.mark.parametrize(
    ("pieces", "stops", "shown", "found"),
    [
        (["ab", "cd", "ef"], ("cde",), ["ab", "", ""], "cde"),
        (["aaa", "ab"], ("aab",), ["a", "a"], "aab"),
        (["x<", "|", "y"], ("<|end",), ["x", "", "<|y"], None),
        (["abc"], ("abc", "b"), ["a"], "b"),
        (["a", "b", "c"], ("abc", "b"), ["", "a"], "b"),
        (["你", "好吗"], ("好",), ["你", ""], "好"),
    ],
)
def test_stop_matcher(pieces: list[str], stops: tuple[str, ...], shown: list[str], found: str | None) -> None:
    matcher = StopMatcher(stops)
    result = []
    for piece in pieces:
        result.append(matcher.push(piece))
        if matcher.found:
            break
    assert "".join(result) == "".join(shown)
    assert result[0] == shown[0]
    assert matcher.found == found


def test_a_full_context_ends_with_length(tiny: kvart.Model) -> None:
    session = tiny.session(ctx=16)
    assert session.ctx == 16
    session.append(list(range(10)))
    generation = session.generate(max_tokens=100, logit_bias=never_end(tiny))
    generation.read()
    assert (generation.stop, len(generation.token_ids), len(session)) == ("length", 6, 16)
    again = session.generate()
    assert (again.read(), again.stop) == ("", "length")
    with pytest.raises(kvart.ContextFull, match="does not fit"):
        session.generate("more")
    with pytest.raises(kvart.ContextFull):
        session.append([1])
    session.rewind(3)  # still of use
    assert session.generate(max_tokens=2, logit_bias=never_end(tiny)).read() is not None
    with pytest.raises(kvart.ContextFull, match="20 tokens does not fit in a context of 16"):
        tiny.session(ctx=16).generate(list(range(20)))
    assert tiny.session().ctx == 512


def test_max_tokens_zero_generates_nothing(tiny: kvart.Model) -> None:
    generation = tiny.generate(PROMPT, max_tokens=0)
    assert (generation.read(), generation.stop, generation.token_ids) == ("", "length", [])


def test_a_dropped_generator_stops_at_once(tiny: kvart.Model) -> None:
    session = tiny.session()
    generation = session.generate(PROMPT, max_tokens=100, logit_bias=never_end(tiny))
    next(generation)
    computed = tiny.stats["computed_positions"]
    length = len(session)
    del generation
    gc.collect()
    time.sleep(0.05)
    assert (len(session), tiny.stats["computed_positions"]) == (length, computed)
    for _ in session.generate(max_tokens=100):
        break
    with session.generate(max_tokens=5) as closed:
        pass
    assert closed.stop == "cancel"
    assert list(closed) == []


def test_a_session_changed_underneath_is_noticed(tiny: kvart.Model) -> None:
    session = tiny.session()
    generation = session.generate(PROMPT, logit_bias=never_end(tiny))
    next(generation)
    session.append("x")
    with pytest.raises(kvart.InvalidArgument, match="was changed"):
        next(generation)
    other = session.generate()
    session.close()
    with pytest.raises(kvart.InvalidArgument, match="closed"):
        next(other)


def test_text_comes_in_whole_characters(tiny: kvart.Model) -> None:
    ids = tiny.tokenizer.encode("🙂é界")
    decoder = kvart.StreamDecoder(tiny.tokenizer)
    pieces = [decoder.push(id) for id in ids]
    assert [piece for piece in pieces if piece] == list("🙂é界")
    assert decoder.push(ids[0]) == "" and decoder.finish() == "\ufffd"


# --- chat ---


def test_chat_computes_only_what_is_new(tiny: kvart.Model) -> None:
    session = tiny.session()
    messages: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
    answer = session.chat(messages, max_tokens=6)
    answer.read()
    assert len(answer.prompt_ids) == len(tiny.chat_format.encode(messages))
    messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": "and then?"}]
    ids = tiny.chat_format.encode(messages)
    second = session.chat(messages, max_tokens=6)
    second.read()
    assert len(second.prompt_ids) < len(ids) - len(answer.prompt_ids) + 8
    assert session.tokens[: len(ids)] == ids
    fresh = tiny.chat(messages, max_tokens=6)
    assert fresh.read() == second.text
    assert fresh.token_ids == second.token_ids
    third = session.chat(messages, max_tokens=6)  # all of it is there but the last token
    assert third.read() == second.text
    assert len(third.prompt_ids) == 1


def test_a_refused_chat_leaves_the_session(tiny: kvart.Model) -> None:
    session = tiny.session(ctx=64)
    session.append([1, 2, 3])
    with pytest.raises(kvart.ContextFull):
        session.chat([{"role": "user", "content": "x" * 500}])
    with pytest.raises(kvart.InvalidArgument):
        session.chat([{"role": "user", "content": "x"}], top_p=7)
    assert session.tokens == [1, 2, 3]


# --- what is refused ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature: expected a finite number"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"top_k": 1.5}, "top_k: expected a whole number"),
        ({"top_k": 2**40}, "top_k"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": {384: 1.0}}, "logit_bias"),
        ({"logit_bias": {"a": 1.0}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": [3]}, "stop"),
        ({"stop": 3}, "stop: expected a str"),
        ({"stop": 0}, "stop: expected a str"),
        ({"stop": ["a\udc80"]}, "stop is not valid UTF-8 at byte offset 1"),
    ],
)
def test_wrong_options_are_named(tiny: kvart.Model, options: dict[str, Any], message: str) -> None:
    with pytest.raises(kvart.InvalidArgument, match=message) as caught:
        tiny.generate(PROMPT, **options)
    assert isinstance(caught.value, ValueError)
    assert caught.value.kind == "invalid_argument"


def test_wrong_prompts_are_named(tiny: kvart.Model) -> None:
    for empty in ("", []):
        with pytest.raises(kvart.InvalidArgument, match="at least one token"):
            tiny.generate(empty)
    with pytest.raises(kvart.InvalidArgument, match="byte offset 4"):
        tiny.generate("néa\udcff")
    for ids in ([384], [-1], [2**31], [1.5], ["a"], [True]):
        with pytest.raises(kvart.InvalidArgument, match="token id"):
            tiny.logits(ids)  # type: ignore[arg-type]
    for wrong in (None, 3, b"abc"):
        with pytest.raises(kvart.InvalidArgument, match="token ids"):
            tiny.generate(wrong)  # type: ignore[arg-type]
    with pytest.raises(kvart.InvalidArgument, match="empty"):
        tiny.session().generate()
    with pytest.raises(kvart.InvalidArgument):
        tiny.session().logits()


def test_wrong_session_options_are_named(tiny: kvart.Model) -> None:
    for options in (
        {"layout": "round"},
        {"ctx": -1},
        {"ctx": 1.5},
        {"chunk": 0},
        {"sinks": -1},
        {"sinks": 1.5},
        {"window": -1},
        {"kv": "k=f16"},
        {"kv": "k=f16,k=f16"},
    ):
        with pytest.raises(kvart.InvalidArgument, match=next(iter(options))):
            tiny.session(**options)  # type: ignore[arg-type]
    with pytest.raises(kvart.InvalidArgument, match=r"'int3'; wanted f32, f16, int8"):
        tiny.session(kv="int3")
    for name in ("", "a/b", "../a", ".a", "x" * 101, "naïve"):
        with pytest.raises(kvart.InvalidArgument, match="name"):
            tiny.session(name)
    session = tiny.session()
    session.append([1, 2])
    for n in (-1, 3, "1"):
        with pytest.raises(kvart.InvalidArgument, match="n:"):
            session.rewind(n)  # type: ignore[arg-type]


def test_wrong_models_are_named(tmp_path: Path, tiny_path: Path) -> None:
    with pytest.raises(kvart.NotFound) as caught:
        kvart.Model(tmp_path / "absent.gguf")
    assert isinstance(caught.value, FileNotFoundError)
    for content in (b"", b"GGUF", b"GGUF\x03\0\0\0" + b"\xff" * 64, os.urandom(500)):
        path = tmp_path / "bad.gguf"
        path.write_bytes(content)
        with pytest.raises(kvart.Error, match=r"bad\.gguf") as error:
            kvart.Model(path)
        assert error.value.file == str(path)
    path.write_bytes(tiny_path.read_bytes()[:-100])
    with pytest.raises(kvart.Corrupt, match=r"bad\.gguf"):
        kvart.Model(path)
    for options in ({"threads": -1}, {"threads": 10**6}, {"activations": "f16"}, {"backend": "tpu"}):
        with pytest.raises(kvart.InvalidArgument, match=next(iter(options))):
            kvart.Model(tiny_path, **options)  # type: ignore[arg-type]
    for backend in ("cuda", "vulkan"):
        with pytest.raises(kvart.Unsupported, match=backend):
            kvart.Model(tiny_path, backend=backend)


def test_every_status_has_its_exception() -> None:
    from kvart import _core
    from kvart.errors import BY_KIND

    kinds = set()
    for code in range(1, 12):
        with pytest.raises(kvart.Error, match="words") as caught:
            _core._raise(code, "words")
        kinds.add(caught.value.kind)
        assert type(caught.value) is BY_KIND[caught.value.kind]
        assert (caught.value.file, caught.value.offset, str(caught.value)) == (None, None, "words")
    assert kinds == set(BY_KIND)
    assert issubclass(kvart.OutOfMemory, MemoryError) and issubclass(kvart.Io, OSError)
    assert issubclass(kvart.NoSpace, OSError) and not issubclass(kvart.NoSpace, kvart.ContextFull)


def test_paths_are_checked(tiny: kvart.Model, tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("", "a\0b", "a\udc80", 5, b"a"):
        with pytest.raises(kvart.InvalidArgument, match="kv_dir"):
            kvart.Model(tiny_path, kv_dir=path)  # type: ignore[arg-type]
        with pytest.raises(kvart.InvalidArgument, match="path"):
            tiny.load_session(path)  # type: ignore[arg-type]
        with pytest.raises(kvart.InvalidArgument, match="path"):
            tiny.session().save(path)  # type: ignore[arg-type]
    monkeypatch.setenv("KVART_KV_DIR", "a\udc80")
    with pytest.raises(kvart.InvalidArgument, match="KVART_KV_DIR is not valid UTF-8 at byte offset 1"):
        kvart.Model(tiny_path)
    monkeypatch.setenv("KVART_KV_DIR", "")
    assert kvart.manifest.kv_dir().name == "kv"


def test_sizes_have_a_limit() -> None:
    from kvart.format import parse_size

    assert parse_size("1.5kiB") == 1536 and parse_size("4194304TiB") == 2**62
    for text in ("4194305TiB", "9" * 400):
        with pytest.raises(kvart.InvalidArgument, match="at most 4611686018427387904 bytes"):
            parse_size(text)


def test_import_kv_takes_real_numbers(tiny: kvart.Model) -> None:
    session = tiny.session(kv="f32")
    good = np.zeros((2, 1, 16), np.float32)
    for kv in (5, [5, 5], [(good,), (good, good)], [(good, good), (good, good * 1j)], [(good, "x")] * 2):
        with pytest.raises(kvart.InvalidArgument, match="kv: "):
            session.import_kv([1], kv)  # type: ignore[arg-type]
    with pytest.raises(kvart.InvalidArgument, match="layer 0, V: expected an array of real numbers"):
        session.import_kv([1], [(good, [[1], [2, 3]])] * 2)
    session.import_kv([1], [(good.tolist(), good.astype(np.int64))] * 2)
    assert session.tokens == [1]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ '\\ud800' }}", "what the chat template writes is not valid UTF-8"),
        ("{% for i in range(99999) %}{{ messages[0].content }}{% endfor %}", "writes more than"),
        ("{{ messages[0].content * 10**12 }}", "result of [*] is too large"),
        ("{{ 10 ** 99999 }}", "result of [*][*] is too large"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
    ],
)
def test_a_template_does_no_harm(source: str, message: str) -> None:
    from kvart.chat import Template

    with pytest.raises(kvart.InvalidArgument, match=message):
        Template(source).render([{"role": "user", "content": "x" * 1000}])


# --- progress, signals, threads, forks ---


def test_progress_tells_and_cancels(tiny_path: Path) -> None:
    seen: list[float] = []
    model = kvart.Model(tiny_path, progress=seen.append)
    assert seen and seen == sorted(seen) and 0.9 < seen[-1] <= 1.0
    session = model.session(chunk=10)
    seen.clear()
    session.append(list(range(100)), progress=seen.append)
    assert len(seen) == 10 and seen[-1] == 1.0

    def boom(done: float) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        session.append(list(range(100)), progress=boom)
    assert len(session) == 100
    with pytest.raises(kvart.Cancelled):
        session.append(list(range(100)), progress=lambda done: False)
    assert len(session) == 100
    generation = session.generate([1], progress=lambda done: False)
    with pytest.raises(kvart.Cancelled):
        next(generation)
    assert (generation.stop, len(session)) == ("cancel", 100)
    with pytest.raises(ZeroDivisionError, match="mine"):
        kvart.Model(tiny_path, progress=boom)


def test_threads_on_one_model_do_not_mix(tiny: kvart.Model) -> None:
    expected = [tiny.generate([7 + i, 3], max_tokens=25, seed=i, temperature=0.8).read() for i in range(4)]
    found: dict[int, list[str]] = {i: [] for i in range(4)}

    def work(i: int) -> None:
        for _ in range(5):
            found[i].append(tiny.generate([7 + i, 3], max_tokens=25, seed=i, temperature=0.8).read())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {i: [expected[i]] * 5 for i in range(4)}


def test_the_gil_is_free_while_the_core_computes(make_tiny: Callable[..., Path]) -> None:
    model = kvart.Model(make_tiny(width=256, ff=1024, n_layers=4, context_length=8192), threads=1)
    ticks = 0
    done = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done.is_set():
            ticks += 1
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    model.session(chunk=4096).append(list(range(256)) * 8)
    seconds = time.perf_counter() - start
    done.set()
    thread.join()
    assert ticks > seconds * 50  # of some 900 a second when nothing holds it up


def test_closing_while_another_thread_computes(tiny: kvart.Model) -> None:
    session = tiny.session(chunk=8)
    started = threading.Event()

    def work() -> None:
        session.append(list(range(256)), progress=lambda done: started.set())

    thread = threading.Thread(target=work)
    thread.start()
    started.wait(10)
    session.close()
    thread.join(30)
    assert not thread.is_alive()


def test_a_forked_child_is_refused_and_ends(tiny_path: Path) -> None:
    done = run_script(
        """
        import os, sys, threading, kvart
        model = kvart.Model(sys.argv[1], threads=2)
        session = model.session()
        session.append("hello")
        generation = session.generate(max_tokens=400)
        next(generation)
        # a thread that computes, and so holds the model's lock, at the moment of the fork
        busy = model.session(chunk=4)
        started = threading.Event()
        thread = threading.Thread(target=lambda: busy.append([1] * 500, progress=lambda d: started.set()))
        thread.start()
        started.wait()
        pid = os.fork()
        if pid == 0:
            calls = [lambda: next(generation), lambda: session.append("x"), lambda: session.tokens,
                     lambda: model.stats, lambda: model.logits([1]), lambda: model.session(), lambda: session.fork()]
            refused = 0
            for call in calls:
                try:
                    call()
                except kvart.InvalidArgument as error:
                    refused += "fork" in str(error)
            del generation, session, busy, model
            sys.exit(40 + refused)
        thread.join()
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), session.generate(max_tokens=2).read() is not None)
        """,
        tiny_path,
    )
    assert done.stdout == "47 True\n", done.stderr


def test_ctrl_c_stops_a_prefill_within_a_chunk(make_tiny: Callable[..., Path]) -> None:
    path = make_tiny(width=256, ff=1024, n_layers=4, context_length=65536)
    done = run_script(
        """
        import os, signal, sys, threading, time, kvart
        model = kvart.Model(sys.argv[1])
        session = model.session(chunk=64)
        session.append("before")
        held = session.tokens
        sent = []
        def interrupt():
            sent.append(time.perf_counter())
            os.kill(os.getpid(), signal.SIGINT)
        threading.Timer(0.3, interrupt).start()
        try:
            session.append([1, 2, 3] * 20000)
            print("not stopped")
        except KeyboardInterrupt:
            print(time.perf_counter() - sent[0] < 2, session.tokens == held)
        print(session.generate(max_tokens=3).read() is not None)
        """,
        path,
    )
    assert done.stdout == "True True\nTrue\n", done.stdout + done.stderr


def test_ctrl_c_between_tokens_leaves_the_session(tiny_path: Path) -> None:
    done = run_script(
        """
        import os, signal, sys, kvart
        model = kvart.Model(sys.argv[1])
        session = model.session()
        generation = session.generate("the cat", logit_bias={id: -1e9 for id in model.tokenizer.end_ids})
        try:
            for n, piece in enumerate(generation):
                if n == 3:
                    os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            pass
        generation.close()
        length = len(session)
        print(generation.stop, length < 100, len(session.generate(max_tokens=3).read()) >= 0)
        """,
        tiny_path,
    )
    assert done.stdout == "cancel True True\n", done.stderr


def test_the_interpreter_ends_while_threads_compute(tiny_path: Path) -> None:
    done = run_script(
        """
        import sys, threading, time, kvart
        model = kvart.Model(sys.argv[1])
        def work():
            while True:
                model.generate("x", max_tokens=50).read()
        threading.Thread(target=work, daemon=True).start()
        time.sleep(0.3)
        print("end")
        """,
        tiny_path,
    )
    assert (done.stdout, done.returncode) == ("end\n", 0), done.stderr


def test_memory_that_is_not_there_is_an_exception(make_tiny: Callable[..., Path]) -> None:
    done = run_script(
        """
        import resource, sys, kvart
        model = kvart.Model(sys.argv[1], threads=1)
        session = model.session(kv="f32", layout=sys.argv[2])
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (24 << 20), -1))
        try:
            session.append([1] * 200_000)
            print("fitted")
        except MemoryError as error:
            print(type(error).__name__, len(session))
        """,
        make_tiny(n_kv_heads=4, n_layers=8, context_length=1 << 20),
        "paged",
    )
    assert done.stdout == "OutOfMemory 0\n", done.stdout + done.stderr


# --- the real model ---


@pytest.mark.parametrize(
    ("question", "wanted"),
    [
        ("What is the capital of France? Answer with one word.", "Paris"),
        ("法国的首都是哪里？只用一个词回答。", "巴黎"),
        ("Write a Python function add(a, b) that returns the sum. Code only.", "return a + b"),
    ],
)
def test_the_real_model_answers(real_model: kvart.Model, question: str, wanted: str) -> None:
    assert wanted in real_model.chat([{"role": "user", "content": question}], max_tokens=64).read()

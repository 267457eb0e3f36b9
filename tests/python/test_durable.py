"""Sessions that outlive the process, prefixes that are shared, and the cache against a plain list of ids."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

import kvart
from kvart import _core
from kvart.transcript import messages_of

PAGE = 128


def some_ids(n: int, seed: int = 0) -> list[int]:
    return np.random.RandomState(seed).randint(0, 380, n).tolist()


def never_end(model: kvart.Model) -> dict[int, float]:
    return dict.fromkeys(model.tokenizer.end_ids, -1e9)


def run_script(script: str, *args: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="module")
def path(make_tiny: Callable[..., Path]) -> Path:
    return make_tiny(context_length=8192)


@pytest.fixture(scope="module")
def plain(path: Path) -> kvart.Model:
    """All in memory: what everything is compared with."""
    return kvart.Model(path, threads=2)


@pytest.fixture
def kv_dir(tmp_path: Path) -> Path:
    return tmp_path / "pages"


def open_model(path: Path, kv_dir: Path, **options: Any) -> kvart.Model:
    return kvart.Model(path, threads=2, kv_dir=kv_dir, **options)


# --- resume ---


@pytest.mark.parametrize("kv", ["int4", "f16", "k=int8,v=int4"])
def test_a_resumed_session_goes_on_as_if_nothing_had_been(
    path: Path, plain: kvart.Model, kv_dir: Path, kv: str
) -> None:
    whole = plain.session(kv=kv)
    whole.append(some_ids(300))
    whole.generate(max_tokens=120, logit_bias=never_end(plain)).read()
    for part in range(6):
        model = open_model(path, kv_dir)
        with model.session("tale", kv=kv) as session:
            assert session.resumed.existed == (part > 0)
            assert session.name == "tale" and "tale" in repr(session)
            if part == 0:
                session.append(some_ids(300))
            else:
                assert session.resumed.tokens == len(session) == 300 + 20 * part
            session.generate(max_tokens=20, logit_bias=never_end(model)).read()
    assert session.name == "tale"
    with open_model(path, kv_dir).session("tale", kv=kv) as session:
        assert session.tokens == whole.tokens
        np.testing.assert_array_equal(session.logits(), whole.logits())
        for ours, theirs in zip(session.kv(), whole.kv(), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_after_a_clean_close_nothing_is_computed(path: Path, kv_dir: Path) -> None:
    model = open_model(path, kv_dir)
    with model.session("a") as session:
        session.append(some_ids(1000))
        logits = session.logits()
    model = open_model(path, kv_dir)
    session = model.session("a")
    found = session.resumed
    assert found == kvart.Resumed(True, 1000, 7 * PAGE, 1000 - 7 * PAGE, 0, "")
    session.append([5])
    assert model.stats["computed_positions"] == 1
    session.rewind(1000)
    np.testing.assert_array_equal(session.logits(), logits)


def test_without_a_clean_close_the_open_page_is_computed_again(path: Path, kv_dir: Path) -> None:
    done = run_script(
        """
        import os, sys, kvart
        session = kvart.Model(sys.argv[1], kv_dir=sys.argv[2]).session("a")
        session.append([i % 380 for i in range(1000)])
        print(hash(session.logits().tobytes()) is not None, flush=True)
        os.kill(os.getpid(), 9)
        """,
        path,
        kv_dir,
    )
    assert (done.stdout, done.returncode) == ("True\n", -9)
    model = open_model(path, kv_dir)
    session = model.session("a")
    assert session.tokens == [i % 380 for i in range(1000)]
    found = session.resumed
    assert (found.from_pages, found.from_open_page, found.to_compute) == (7 * PAGE, 0, 1000 - 7 * PAGE)
    session.logits()
    assert model.stats["computed_positions"] == 1000 - 7 * PAGE


_WRITER = """
import sys, kvart
model = kvart.Model(sys.argv[1], threads=1, kv_dir=sys.argv[2])
session = model.session("a")
if not len(session):
    session.append([i % 380 for i in range(200)])
bias = dict.fromkeys(model.tokenizer.end_ids, -1e9)
generation = session.generate(logit_bias=bias, max_tokens=int(sys.argv[3]))
print("begin", len(session), flush=True)
core, sampler = session._core, generation._controls.sampler
for _ in range(int(sys.argv[3])):
    print(core.next(sampler), flush=True)
"""


def test_kill_9_loses_nothing_that_was_shown(path: Path, plain: kvart.Model, kv_dir: Path) -> None:
    rng = random.Random(3)
    shown: list[int] = [i % 380 for i in range(200)]
    command = [sys.executable, "-c", _WRITER, str(path), str(kv_dir), "100000"]
    for _ in range(10):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            word, length = process.stdout.readline().split()
            # What an earlier one had journalled but not yet shown may be there as well: one token at most.
            assert word == "begin" and len(shown) <= int(length) <= len(shown) + 1
            del shown[200:]
            held = int(length)
            for _ in range(rng.randrange(1, 90)):
                process.stdout.readline()
                held += 1
            process.send_signal(signal.SIGKILL)
            held += len(process.stdout.read().split("\n")) - 1
            process.wait()
        shown = [0] * held
    session = open_model(path, kv_dir).session("a")
    assert held <= len(session) <= held + 1
    whole = plain.session()
    whole.append([i % 380 for i in range(200)])
    whole.generate(max_tokens=len(session) - 200, logit_bias=never_end(plain)).read()
    assert session.tokens == whole.tokens
    np.testing.assert_array_equal(session.logits(), whole.logits())


def test_a_named_session_has_a_place_by_default(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVART_KV_DIR", str(tmp_path / "mine"))
    model = kvart.Model(path)
    model.session().append(some_ids(300))
    assert not (tmp_path / "mine").exists()
    with model.session("here") as session:
        session.append(some_ids(300))
    assert (tmp_path / "mine" / "sessions" / "here.session").stat().st_mode & 0o077 == 0
    assert model.stats["prefill_tokens"] == 600
    monkeypatch.delenv("KVART_KV_DIR")
    monkeypatch.setenv("KVART_CACHE", str(tmp_path / "cache"))
    with kvart.Model(path).session("there") as session:
        session.append([1])
    assert (tmp_path / "cache" / "kv" / "sessions" / "there.session").is_file()


def test_rewind_and_edit_are_durable(path: Path, plain: kvart.Model, kv_dir: Path) -> None:
    with open_model(path, kv_dir).session("a") as session:
        session.append(some_ids(400))
        session.rewind(200)
        session.append(some_ids(250, 1))
        session.rewind(440)
    with open_model(path, kv_dir).session("a") as session:
        ids = [*some_ids(200 + 200)[:200], *some_ids(250, 1)[:240]]
        assert session.tokens == ids
        np.testing.assert_array_equal(session.logits(), plain.logits(ids)[-1])
        session.rewind(0)
    assert open_model(path, kv_dir).session("a").tokens == []


def test_a_windowed_session_is_resumed_beyond_its_context(make_tiny: Callable[..., Path], kv_dir: Path) -> None:
    path = make_tiny(context_length=512)
    whole = kvart.Model(path, threads=2).session(window=200)
    for turn in range(12):
        whole.append(some_ids(100, turn))
        model = kvart.Model(path, threads=2, kv_dir=kv_dir)
        with model.session("a", window=200) as session:
            assert session.resumed.tokens == 100 * turn
            session.append(some_ids(100, turn))
            np.testing.assert_array_equal(session.logits(), whole.logits())


# --- sharing ---


@pytest.mark.parametrize("cut", [1, 127, 128, 129, 255, 256, 300, 384])
def test_a_hit_equals_a_miss(path: Path, plain: kvart.Model, kv_dir: Path, cut: int) -> None:
    prefix, rest = some_ids(384)[:cut], some_ids(100, 9)
    with open_model(path, kv_dir).session() as first:
        first.append([*prefix, 3, *some_ids(200, 5)])
    model = open_model(path, kv_dir)
    hit = model.session()
    hit.append([*prefix, *rest])
    reused = model.stats["reused_positions"]
    assert reused == cut // PAGE * PAGE
    assert model.stats["computed_positions"] == cut + 100 - reused
    miss = plain.session()
    for id in (*prefix, *rest):
        miss.append([id])
    for ours, theirs in zip(hit.kv(), miss.kv(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    options = {"max_tokens": 40, "logit_bias": never_end(plain)}
    ours, theirs = hit.generate(**options), miss.generate(**options)
    assert ours.read() == theirs.read()
    assert ours.token_ids == theirs.token_ids


def test_a_thousand_sessions_keep_one_copy_of_their_prefix(path: Path, kv_dir: Path) -> None:
    prefix = some_ids(1024)
    model = open_model(path, kv_dir)
    sessions = []
    for number in range(1000):
        session = model.session()
        session.append([*prefix, number % 380])
        sessions.append(session)
    [store] = _core.list_stores(str(kv_dir))
    assert (store["pages"], store["sink_records"]) == (8, 1)
    stats = model.stats
    assert stats["computed_positions"] == 1024 + 1000
    assert stats["reused_positions"] == 999 * 1024
    assert stats["store_hits"] >= 999 * 8
    open_page = PAGE * 2 * 2 * 2 * 16 * 2  # tokens, layers, K and V, heads, channels, bytes
    assert stats["kv_bytes"] <= 9 * store["slot_bytes"] + 1000 * open_page
    np.testing.assert_array_equal(sessions[0].logits(), sessions[380].logits())


def test_two_processes_share_and_the_second_keeps_its_own_pages(path: Path, plain: kvart.Model, kv_dir: Path) -> None:
    model = open_model(path, kv_dir)
    model.session().append(some_ids(300))
    done = run_script(
        """
        import sys, kvart
        model = kvart.Model(sys.argv[1], kv_dir=sys.argv[2])
        session = model.session()
        session.append([int(id) for id in sys.argv[3].split()])
        stats = model.stats
        print(stats["reused_positions"], stats["store_writable"], session.generate(max_tokens=9).read().encode().hex())
        """,
        path,
        kv_dir,
        " ".join(map(str, [*some_ids(300), *some_ids(200, 4)])),
    )
    assert done.stderr == ""
    session = plain.session()
    session.append([*some_ids(300), *some_ids(200, 4)])
    assert done.stdout.split() == ["256", "False", session.generate(max_tokens=9).read().encode().hex()]


def test_one_session_has_one_holder(path: Path, kv_dir: Path) -> None:
    model = open_model(path, kv_dir)
    session = model.session("a")
    session.append([1, 2, 3])
    done = run_script(
        """
        import sys, kvart
        try:
            kvart.Model(sys.argv[1], kv_dir=sys.argv[2]).session("a")
        except kvart.Busy as error:
            print(error)
        """,
        path,
        kv_dir,
    )
    assert "'a'" in done.stdout and str(os.getpid()) in done.stdout, done.stderr
    with pytest.raises(kvart.Busy):
        model.session("a")
    fork = session.fork()
    fork.append([4])
    assert fork.name is None
    fork.close()
    session.close()
    with model.session("a") as again:
        assert again.tokens == [1, 2, 3]


# --- memory ---


def test_a_hundred_conversations_leave_memory_flat(make_tiny: Callable[..., Path], tmp_path: Path) -> None:
    done = run_script(
        """
        import random, resource, sys, kvart
        model = kvart.Model(sys.argv[1], threads=2, kv_dir=sys.argv[2], kv_budget=4 << 20)
        def resident():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[1]) * resource.getpagesize()
        sizes = []
        for number in range(100):
            with model.session() as session:
                rng = random.Random(number)
                messages = []
                for turn in range(3):
                    messages.append({"role": "user", "content": "".join(rng.choices("abcdefgh ", k=300))})
                    answer = session.chat(messages, max_tokens=8)
                    messages.append({"role": "assistant", "content": answer.read()})
            sizes.append(resident())
        print(sizes[-1] - sizes[29], model.stats["evictions"] > 0)
        """,
        make_tiny(width=128, n_heads=2, context_length=8192),
        tmp_path / "pages",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    grown, evicted = done.stdout.split()
    assert int(grown) < 6 << 20
    assert evicted == "True"


# --- what is refused, what is survived ---


def test_another_model_replays_the_text_or_refuses_by_name(
    path: Path, make_tiny: Callable[..., Path], kv_dir: Path
) -> None:
    with open_model(path, kv_dir).session("a") as session:
        session.append(some_ids(300))
    other = open_model(make_tiny(context_length=8192, seed=77), kv_dir)
    with other.session("a") as session:
        assert session.tokens == some_ids(300)
        assert (session.resumed.from_pages, session.resumed.to_compute) == (0, 300)
        assert "another model" in session.resumed.note
        fresh = other.session(kv="int4")
        fresh.append(some_ids(300))
        np.testing.assert_array_equal(session.logits(), fresh.logits())
    smaller = open_model(make_tiny(vocab=320, context_length=8192), kv_dir)
    with pytest.raises(kvart.Unsupported, match="session 'a' holds token id"):
        smaller.session("a")


def test_another_format_computes_again_and_says_so(path: Path, plain: kvart.Model, kv_dir: Path) -> None:
    with open_model(path, kv_dir).session("a") as session:
        session.append(some_ids(300))
    with open_model(path, kv_dir).session("a", kv="int8") as session:
        assert session.tokens == some_ids(300) and "format" in session.resumed.note
        np.testing.assert_array_equal(session.logits(), plain.logits(some_ids(300), kv="int8")[-1])
    with open_model(path, kv_dir).session("a", kv="int8") as session:
        assert (session.resumed.to_compute, session.resumed.note) == (0, "")


def test_a_session_longer_than_the_context_is_told(path: Path, kv_dir: Path) -> None:
    with open_model(path, kv_dir).session("a") as session:
        session.append(some_ids(300))
    with pytest.raises(kvart.ContextFull, match="300 tokens"):
        open_model(path, kv_dir).session("a", ctx=100)
    with open_model(path, kv_dir).session("a", ctx=300) as session:
        assert len(session) == 300


def test_a_directory_that_can_not_be_is_told(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("here")
    for directory in (file, file / "below", "/proc/kvart"):
        with pytest.raises(kvart.Error, match=str(directory)) as caught:
            kvart.Model(path, kv_dir=directory).session("a")
        assert caught.value.kind in ("io", "invalid_argument", "not_found")
    assert file.read_text() == "here"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written_is_told(path: Path, kv_dir: Path) -> None:
    kv_dir.mkdir(mode=0o500)
    with pytest.raises(kvart.Io, match=str(kv_dir)):
        open_model(path, kv_dir).session("a")


def test_a_full_disk_is_an_error_of_one_request(path: Path, kv_dir: Path) -> None:
    done = run_script(
        """
        import resource, sys, kvart
        model = kvart.Model(sys.argv[1], kv_dir=sys.argv[2])
        session = model.session("a")
        session.append([1, 2, 3])
        resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))
        try:
            session.append([i % 380 for i in range(400)])
            print("fitted")
        except kvart.Error as error:
            print(error.kind, session.tokens)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        session.append([i % 380 for i in range(400)])
        session.close()
        """,
        path,
        kv_dir,
    )
    kind, _, tokens = done.stdout.strip().partition(" ")
    assert kind == "no_space" and tokens == "[1, 2, 3]", done.stdout + done.stderr
    with open_model(path, kv_dir).session("a") as session:
        assert session.tokens == [1, 2, 3, *(i % 380 for i in range(400))]


def test_damage_costs_time_and_never_truth(path: Path, plain: kvart.Model, kv_dir: Path) -> None:
    with open_model(path, kv_dir).session("a") as session:
        session.append(some_ids(700))
    [store] = _core.list_stores(str(kv_dir))
    file = kv_dir / store["file"]
    data = bytearray(file.read_bytes())
    rng = random.Random(1)
    for _ in range(20):
        data[rng.randrange(16384, len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(bytes(data))
    model = open_model(path, kv_dir)
    with model.session("a") as session:
        assert session.tokens == some_ids(700)
        np.testing.assert_array_equal(session.logits(), plain.logits(some_ids(700))[-1])
    journal = kv_dir / "sessions" / "a.session"
    content = journal.read_bytes()
    journal.write_bytes(content[:-50])
    with open_model(path, kv_dir).session("a") as session:
        assert session.tokens == some_ids(700) and "not finished" in session.resumed.note
    shutil.copy(journal, kv_dir / "sessions" / "b.session")
    with open_model(path, kv_dir).session("b") as session:
        assert session.tokens == some_ids(700)
    journal.write_bytes(b"no journal at all, but some other file that is long enough to look into" * 9)
    with pytest.raises(kvart.Corrupt, match=r"a\.session"):
        open_model(path, kv_dir).session("a")


# --- chat ---


def test_a_template_that_changes_earlier_text_reuses_up_to_there(make_tiny: Callable[..., Path]) -> None:
    """Qwen3 writes an empty <think> in front of an answer, and leaves it out when the answer is history."""
    model = kvart.Model(make_tiny(arch="qwen3", chat_template=None, context_length=8192), threads=2)
    session = model.session()
    messages: list[dict[str, str]] = [{"role": "user", "content": "hello " * 60}]
    first = session.chat(messages, enable_thinking=False, max_tokens=5)
    first.read()
    assert "<think>\n\n</think>\n\n" in model.tokenizer.decode(session.tokens)
    messages += [{"role": "assistant", "content": "fine"}, {"role": "user", "content": "and you?"}]
    ids = model.chat_format.encode(messages, enable_thinking=False)
    held = session.tokens
    common = next(n for n in range(len(ids)) if ids[n] != held[n])
    assert model.tokenizer.decode(ids[:common]).endswith("<|im_start|>assistant\n")
    second = session.chat(messages, enable_thinking=False, max_tokens=5)
    second.read()
    assert common - PAGE < second.stats["reused_positions"] <= common
    assert second.stats["reused_positions"] + second.stats["computed_positions"] >= len(ids)
    fresh = kvart.Model(model.name, threads=1).chat(messages, enable_thinking=False, max_tokens=5)
    assert (fresh.read(), fresh.token_ids) == (second.text, second.token_ids)
    assert fresh.stats["reused_positions"] == 0


def test_messages_are_read_from_the_tokens(plain: kvart.Model) -> None:
    messages = [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "what is <|im_end|> in\nthe end? 你好"},
        {"role": "assistant", "content": "a token"},
        {"role": "user", "content": ""},
    ]
    encode = plain.chat_format.encode
    assert messages_of(plain.tokenizer, encode(messages)) == messages
    ids = encode(messages)
    end = plain.tokenizer.find("<|im_end|>")
    assert messages_of(plain.tokenizer, [*ids, *plain.tokenizer.encode("so f")])[4:] == [
        {"role": "assistant", "content": "so f"}
    ]
    assert end is not None
    answered = messages_of(plain.tokenizer, [*ids, *plain.tokenizer.encode("so far"), end])
    assert answered[4:] == [{"role": "assistant", "content": "so far"}]
    assert encode(answered)[: len(ids)] == ids
    assert messages_of(plain.tokenizer, []) == []
    with pytest.raises(kvart.InvalidArgument, match="no conversation"):
        messages_of(plain.tokenizer, [5, 6])


# --- the cache against a plain list of ids ---

CTX = 900


class CacheMachine(RuleBasedStateMachine):
    """Random appends, forks, rewinds and reopenings; each session is a list of ids as well."""

    sessions = Bundle("sessions")
    path: Path
    plain: kvart.Model

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kvart-"))
        # Some 60 slots: pages that are not used any more are evicted, those in use fit.
        self.model = self._load()
        self.count = 0
        self.open: dict[int, tuple[kvart.Session, list[int]]] = {}

    def _load(self) -> kvart.Model:
        return kvart.Model(self.path, threads=2, kv_dir=self.folder, kv_budget=60 * 16384 * 2)

    def _add(self, session: kvart.Session, ids: list[int]) -> int:
        self.count += 1
        self.open[self.count] = (session, ids)
        return self.count

    @rule(target=sessions, named=st.booleans())
    def new(self, named: bool) -> int:
        return self._add(self.model.session(f"s{self.count}" if named else None, ctx=CTX), [])

    # Few different texts, so that prefixes are met again.
    @rule(at=sessions, n=st.sampled_from([1, 3, 50, 127, 128, 129, 300]), seed=st.integers(0, 2))
    def append(self, at: int, n: int, seed: int) -> None:
        session, ids = self.open[at]
        more = some_ids(n, seed)
        if len(ids) + n > CTX:
            with pytest.raises(kvart.ContextFull):
                session.append(more)
            return
        session.append(more)
        ids += more

    @rule(at=sessions, n=st.integers(1, 20))
    def generate(self, at: int, n: int) -> None:
        session, ids = self.open[at]
        if not ids:
            return
        generation = session.generate(max_tokens=n)
        generation.read()
        ids += generation.token_ids

    @rule(at=sessions, part=st.floats(0, 1))
    def rewind(self, at: int, part: float) -> None:
        session, ids = self.open[at]
        n = int(part * len(ids))
        session.rewind(n)
        del ids[n:]

    @rule(target=sessions, at=sessions)
    def fork(self, at: int) -> int:
        session, ids = self.open[at]
        return self._add(session.fork(), list(ids))

    @rule(at=consumes(sessions))
    def close(self, at: int) -> None:
        session, _ = self.open.pop(at)
        session.close()

    @rule(at=sessions, cleanly=st.booleans())
    def reopen(self, at: int, cleanly: bool) -> None:
        session, ids = self.open[at]
        if session.name is None:
            return
        if cleanly:
            session.close()
        name = session.name
        self.open[at] = None  # type: ignore[assignment]
        session._core = None
        self.open[at] = (self.model.session(name, ctx=CTX), ids)

    @rule(cleanly=st.booleans())
    def restart(self, cleanly: bool) -> None:
        """As another process would find it: what has no name is gone, and made anew from its ids."""
        old, self.open = self.open, {}
        names = {at: session.name for at, (session, _) in old.items()}
        for session, _ in old.values():
            if cleanly:
                session.close()
            session._core = None
        self.model._core = self.model._durable = None  # type: ignore[assignment]
        self.model = self._load()
        for at, (_, ids) in old.items():
            session = self.model.session(names[at], ctx=CTX)
            if names[at] is None and ids:
                session.append(ids)
            self.open[at] = (session, ids)

    @invariant()
    def the_ids_are_right(self) -> None:
        for session, ids in getattr(self, "open", {}).values():
            assert session.tokens == ids

    def teardown(self) -> None:
        if not hasattr(self, "open"):
            return
        for session, ids in self.open.values():
            if not ids:
                continue
            fresh = self.plain.session()
            fresh.append(ids)
            np.testing.assert_array_equal(session.logits(), fresh.logits())
            for ours, theirs in zip(session.kv(), fresh.kv(), strict=True):
                np.testing.assert_array_equal(ours, theirs)
            session.close()
        shutil.rmtree(self.folder)


def test_the_cache_is_a_plain_list(path: Path, plain: kvart.Model) -> None:
    class Machine(CacheMachine):
        pass

    Machine.path, Machine.plain = path, plain
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=20,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )

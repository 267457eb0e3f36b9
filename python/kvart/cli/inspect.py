"""kvart inspect: the checklist of a model, as a table and as JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import format
from .output import emit, table_console
from .params import Json

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_EXAMPLES = """Examples:

`kvart inspect qwen2.5-coder-0.5b`

`kvart inspect model-00001-of-00003.gguf --json`

`kvart inspect ./Qwen3-4B`
"""

_STYLES = {"ok": "green", "note": "yellow", "warning": "bold red"}
_BARS = " ▁▂▃▄▅▆▇█"
_LAYERS_A_LINE = 64
_MOST_TEXT = 500


def register(app: typer.Typer) -> None:
    app.command(epilog=_EXAMPLES)(inspect)


def inspect(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A name, a GGUF file, or the directory of a checkpoint.")
    ],
    json: Json = False,
) -> None:
    """What a model is, what its cache costs, and what kvart makes of it. Reads metadata and small tensors only."""
    from ..inspection import inspect as look

    report = look(model)
    if json:
        emit(report)
        return
    console = table_console()
    console.print(_facts(report))
    if report["tensors"]["count"]:
        console.print(_tensors(report["tensors"]))
    if report["kv"]:
        console.print(_kv(report["kv"]))
    if report["keys"]["layers"]:
        _print_keys(console, report["keys"])
    console.print(_checks(report["checks"]))


def _known(value: Any) -> str:
    return "?" if value is None else f"{value:,}" if isinstance(value, int) and value > 9999 else str(value)


def _plain(text: str) -> str:
    """Text of a file, which may hold anything: no control codes, no markup, no end."""
    from rich.markup import escape

    return escape("".join(char if char.isprintable() else "�" for char in text[:_MOST_TEXT]))


def _facts(report: dict[str, Any]) -> RenderableType:
    from rich.table import Table

    sizes, rope, tokenizer = report["sizes"], report["rope"], report["tokenizer"]
    table = Table(title=_plain(report["name"] or report["path"]), show_header=False, title_justify="left")
    attention = report["attention"]
    ratio = f", {attention['ratio']:g} query heads a K/V head" if attention["ratio"] else ""
    head = "the embedding table" if sizes["tied_head"] else "of its own"
    rows = [
        ("file", f"{report['path']} ({report['kind']}, {format.size(report['bytes'])})"),
        ("architecture", f"{report['architecture']['name']}, {_parameters(sizes['parameters'])}"),
        ("layers, width, FFN", ", ".join(_known(sizes[key]) for key in ("n_layers", "n_embd", "n_ff"))),
        ("heads", f"{_known(sizes['n_heads'])} of {_known(sizes['head_dim'])}, {_known(sizes['n_kv_heads'])} for K/V"),
        ("attention", f"{attention['kind'] or '?'}{ratio}"),
        ("vocabulary, head", f"{_known(sizes['n_vocab'])}, {head}"),
        ("RoPE", f"base {_known(rope['base'])}, scaling {rope['scaling']}, trained for {_known(rope['n_ctx_train'])}"),
        ("tokenizer", f"{tokenizer['kind'] or '?'}, {tokenizer['pre'] or '?'}, {_known(tokenizer['n_tokens'])} tokens"),
        *_template_rows(report["chat_template"]),
    ]
    for name, value in rows:
        table.add_row(name, _plain(value))
    return table


def _parameters(count: int | None) -> str:
    return "? parameters" if count is None else f"{count / 1e6:,.0f} M parameters in the file"


def _template_rows(template: dict[str, Any]) -> list[tuple[str, str]]:
    quirks = template["quirks"]
    if quirks is None:
        return [("chat template", "none" if not template["present"] else "unusable")]
    rows = [("chat template", f"tools: {_yes(quirks['tools'])}, tool results: {_yes(quirks['tool_results'])}")]
    if quirks["default_system"]:
        rows.append(("  default system", repr(quirks["default_system"][:200])))
    if quirks["thinking_switch"] is not None:
        rows.append(("  thinking off", f"adds {quirks['thinking_switch'][:60]!r} to the prompt"))
    rows += [("  rewrites", text) for text in quirks["rewrites"]]
    rows += [("  refuses", f"{what}: {words[-100:]}") for what, words in quirks["raises"].items()]
    return rows


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _tensors(tensors: dict[str, Any]) -> RenderableType:
    from rich.table import Table

    table = Table(title="weights", title_justify="left")
    for name in ("type", "tensors", "values", "bytes", "bits a weight"):
        table.add_column(name, justify="left" if name == "type" else "right")
    for row in tensors["types"]:
        table.add_row(
            row["type"],
            str(row["tensors"]),
            f"{row['values']:,}",
            format.size(row["bytes"]),
            f"{row['bits_per_weight']:.2f}",
        )
    bits = tensors["bits_per_weight"]
    values = sum(row["values"] for row in tensors["types"])
    table.add_section()
    table.add_row("all", str(tensors["count"]), f"{values:,}", format.size(tensors["bytes"]), f"{bits:.2f}")
    return table


def _kv(rows: list[dict[str, Any]]) -> RenderableType:
    from rich.table import Table

    table = Table(title="K/V cache of one text", title_justify="left")
    contexts = list(rows[0]["contexts"])
    for name in (
        "format",
        "bits a value",
        "bytes a token",
        *(f"{int(tokens) // 1024} k tokens" for tokens in contexts),
    ):
        table.add_column(name, justify="left" if name == "format" else "right")
    for row in rows:
        sizes = [format.size(row["contexts"][tokens]) for tokens in contexts]
        table.add_row(row["format"], f"{row['bits_per_value']:.2f}", f"{row['bytes_per_token']:,.0f}", *sizes)
    return table


def _print_keys(console: Console, keys: dict[str, Any]) -> None:
    """A bar a layer: how far the largest stands out, in powers of two, and the layers where it does most."""
    what = "bias of the keys" if keys["of"] == "bias" else "norm of the keys"
    console.print(f"spikes in the {what}: largest over median, a bar a layer, each step doubles")
    layers = keys["layers"]
    for start in range(0, len(layers), _LAYERS_A_LINE):
        line = "".join(_bar(layer["ratio"]) for layer in layers[start : start + _LAYERS_A_LINE])
        console.print(f"  {start:4} {line}")
    for layer in sorted(layers, key=lambda layer: -layer["ratio"])[:3]:
        console.print(
            f"  layer {layer['layer']}: {layer['peak']:.4g}, {layer['ratio']:.0f} × the median, at channel "
            f"{layer['channel']} of K/V head {layer['kv_head']}; a step of INT4 would be {layer['token_step']:.2f} "
            f"along tokens, {layer['channel_step']:.2f} along channels"
        )


def _bar(ratio: float) -> str:
    return _BARS[min(len(_BARS) - 1, max(1, round(math.log2(max(ratio, 1.0)))))]


def _checks(checks: list[dict[str, Any]]) -> RenderableType:
    from rich.table import Table

    table = Table(title="verdict", title_justify="left", show_header=False)
    for check in checks:
        style = _STYLES[check["verdict"]]
        table.add_row(check["point"], f"[{style}]{check['verdict']}[/]", _plain(check["reason"]))
    return table

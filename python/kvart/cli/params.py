"""Options that several commands share, and loading a model with a bar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .output import bar, note

if TYPE_CHECKING:
    from ..model import Model, Session

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="A name that `kvart pull` knows, or the path of a GGUF file.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Threads = Annotated[
    int, typer.Option("--threads", "-t", help="Threads; 0 takes one for each core that is worth having.")
]
Cpus = Annotated[
    str | None, typer.Option("--cpus", metavar="LIST", help="Keep the threads on these CPUs, one on each: 0-3,6.")
]
Activations = Annotated[str, typer.Option("--activations", help="int8, or f32: the slow reference.")]
Kv = Annotated[str, typer.Option("--kv", help="Format of the cache: int4, int8, f16, …, or k=FORMAT,v=FORMAT.")]
KvList = Annotated[str, typer.Option("--kv", help="Cache formats: a list with commas.")]
Sinks = Annotated[int, typer.Option("--sinks", help="First tokens that stay FP16 where the rest becomes integers.")]
Draft = Annotated[
    int,
    typer.Option("--draft", help="Guess up to so many tokens from what stood there before; the text stays the same."),
]
Window = Annotated[int, typer.Option("--window", help="Keep the sinks and about so many newest tokens; 0 keeps all.")]
KvDir = Annotated[
    str | None, typer.Option("--kv-dir", metavar="DIR", help="Keep the cache here; sessions have a default.")
]
SessionName = Annotated[
    str | None, typer.Option("--session", metavar="NAME", help="Durable: the same name goes on where it ended.")
]
KvLayout = Annotated[str, typer.Option("--kv-layout", help="paged or contiguous.")]
Ctx = Annotated[int, typer.Option("--ctx", help="Most tokens of context; 0 is what the model was trained for.")]
Temperature = Annotated[float, typer.Option("--temperature", help="0 always takes the likeliest token.")]
TopK = Annotated[int, typer.Option("--top-k", help="Draw from the k likeliest; 0 is off.")]
TopP = Annotated[float, typer.Option("--top-p", help="Draw from the likeliest that make up this probability.")]
MinP = Annotated[float, typer.Option("--min-p", help="Drop tokens less likely than this part of the best.")]
Repetition = Annotated[float, typer.Option("--repetition-penalty", help="Above 1 shuns tokens seen; 1 is off.")]
Presence = Annotated[float, typer.Option("--presence-penalty", help="Taken from the logit of each token seen.")]
Frequency = Annotated[float, typer.Option("--frequency-penalty", help="The same, as often as it was seen.")]
LogitBias = Annotated[
    list[str] | None, typer.Option("--logit-bias", metavar="ID=VALUE", help="Added to a token's logit. Repeatable.")
]
Seed = Annotated[int | None, typer.Option("--seed", help="The same seed gives the same text. Without: a random one.")]
Stop = Annotated[list[str] | None, typer.Option("--stop", metavar="TEXT", help="Stop before this text. Repeatable.")]


def parse_logit_bias(items: list[str] | None) -> dict[int, float]:
    """{id: value} of ["13=-5", …]."""
    from ..errors import InvalidArgument

    bias = {}
    for item in items or []:
        token, equals, value = item.partition("=")
        try:
            bias[int(token)] = float(value)
        except ValueError:
            equals = ""
        if not equals:
            raise InvalidArgument(f"--logit-bias: expected ID=VALUE such as 13=-5, found {item!r}")
    return bias


def load(
    name: str,
    threads: int,
    activations: str,
    kv_dir: str | None = None,
    session: str | None = None,
    cpus: str | None = None,
) -> Model:
    """The model. A session's pages are in the usual directory unless another is given."""
    from .. import manifest
    from ..model import Model

    directory = str(manifest.kv_dir()) if kv_dir is None and session is not None else kv_dir
    with bar(f"loading {name}") as progress:
        return Model(name, threads=threads, cpus=cpus, activations=activations, kv_dir=directory, progress=progress)


def tell_resumed(session: Session) -> None:
    """What a durable session had, and what of it has to be computed again."""
    found = session.resumed
    if not found.existed:
        note(f"{session.name}: a new session")
        return
    kept = found.from_pages + found.from_open_page
    note(f"{session.name}: {found.tokens} tokens, {kept} with their K/V, {found.to_compute} to compute")
    if found.note:
        note(f"{session.name}: {found.note}")

"""Options that several commands share, and loading a model with a bar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .output import bar

if TYPE_CHECKING:
    from ..model import Model

ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="A name that `kvart pull` knows, or the path of a GGUF file.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Threads = Annotated[int, typer.Option("--threads", "-t", help="Threads; 0 takes all cores.")]
Activations = Annotated[str, typer.Option("--activations", help="int8, or f32: the slow reference.")]
Kv = Annotated[str, typer.Option("--kv", help="Format of the cache: f16, f32, or k=FORMAT,v=FORMAT.")]
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


def load(name: str, threads: int, activations: str) -> Model:
    from ..model import Model

    with bar(f"loading {name}") as progress:
        return Model(name, threads=threads, activations=activations, progress=progress)

"""kvart chat: a conversation in the terminal, or line by line from a pipe."""

from __future__ import annotations

import itertools
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import format, options
from ..errors import Error, check_text, decode_utf8
from ..transcript import messages_of
from . import params
from .output import bar, emit, note, print_error, show

if TYPE_CHECKING:
    from ..model import Session

_EXAMPLES = """Examples:

`kvart chat qwen2.5-coder-0.5b`

`kvart chat model.gguf --system "Answer in French." --temperature 0`

`kvart chat qwen2.5-coder-0.5b --session diary`

`echo "What is a monad?" | kvart chat qwen2.5-coder-0.5b --json`
"""

_SHOWN_TURNS = 2  # of a conversation that is taken up again

_HELP = """/help   this list
/reset  begin a new conversation
/retry  answer the last question again
/stats  figures of this session
/exit   leave (so does Ctrl-D); Ctrl-C stops an answer"""


def register(app: typer.Typer) -> None:
    app.command(epilog=_EXAMPLES)(chat)


def chat(
    model: params.ModelName,
    system: Annotated[str | None, typer.Option("--system", help="What the model is told first.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", "-n", help="Most tokens of an answer.")] = None,
    temperature: params.Temperature = 0.7,
    top_k: params.TopK = 20,
    top_p: params.TopP = 0.8,
    min_p: params.MinP = 0.0,
    repetition_penalty: params.Repetition = 1.05,
    presence_penalty: params.Presence = 0.0,
    frequency_penalty: params.Frequency = 0.0,
    logit_bias: params.LogitBias = None,
    seed: params.Seed = None,
    stop: params.Stop = None,
    ctx: params.Ctx = 0,
    kv: params.Kv = "int4",
    sinks: params.Sinks = 4,
    window: params.Window = 0,
    draft: params.Draft = 0,
    kv_layout: params.KvLayout = "paged",
    kv_dir: params.KvDir = None,
    session: params.SessionName = None,
    threads: params.Threads = 0,
    cpus: params.Cpus = None,
    activations: params.Activations = "int8",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="A line of figures after each answer.")] = False,
    json: params.Json = False,
) -> None:
    """Talk with a model. From a pipe, each line is a question. With --session the conversation outlives the process."""
    controls: dict[str, Any] = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "logit_bias": params.parse_logit_bias(logit_bias),
        "seed": seed,
    }
    options.sampling(controls)
    session_options: dict[str, Any] = {
        "name": session,
        "kv": kv,
        "sinks": sinks,
        "window": window,
        "draft": draft,
        "layout": kv_layout,
        "ctx": ctx,
    }
    options.session_options(**session_options)
    loaded = params.load(model, threads, activations, kv_dir, session, cpus)
    with loaded.session(**session_options) as opened:
        conversation = Conversation(
            opened,
            system=system,
            controls={**controls, "max_tokens": max_tokens, "stop": stop},
            verbose=verbose,
            json=json,
        )
        if opened.name:
            params.tell_resumed(opened)
        if sys.stdin.isatty():
            conversation.interact(model)
        elif not conversation.read_lines():
            raise typer.Exit(2)


class Conversation:
    """Messages and the session that holds their K/V. Only what is new of a turn is computed."""

    def __init__(
        self, session: Session, *, system: str | None, controls: dict[str, Any], verbose: bool, json: bool
    ) -> None:
        self._session = session
        self._controls = controls
        self._verbose = verbose
        self._json = json
        self._first = [] if system is None else [{"role": "system", "content": check_text(system, "--system")}]
        held = messages_of(session.model.tokenizer, session.tokens)
        if held and self._first:
            held = [*self._first, *(message for message in held if message["role"] != "system")]
        self._messages: list[dict[str, str]] = held or list(self._first)
        self._resumed: dict[str, Any] | None = asdict(session.resumed) if session.resumed.existed else None

    def interact(self, name: str) -> None:
        """Until /exit or Ctrl-D."""
        self._show_last_turns()
        note(f"{name}: type a message, or /help")
        while True:
            try:
                line = self._prompt()
            except EOFError:
                print(file=sys.stderr)
                return
            except KeyboardInterrupt:
                note("\nCtrl-D leaves")
                continue
            except Error as error:
                print_error(error, self._json)
                continue
            if line in ("/exit", "/quit"):
                return
            try:
                self._take(line)
            except Error as error:
                print_error(error, self._json)

    def read_lines(self) -> bool:
        """Each line of standard input is a question. False when one could not be answered."""
        fine = True
        for number, raw in enumerate(sys.stdin.buffer, 1):
            try:
                line = decode_utf8(raw, f"line {number} of standard input").strip()
                if line in ("/exit", "/quit"):
                    break
                self._take(line)
            except Error as error:
                print_error(error, self._json)
                fine = False
        return fine

    def _show_last_turns(self) -> None:
        turns = [message for message in self._messages if message["role"] in ("user", "assistant")]
        for message in turns[-2 * _SHOWN_TURNS :]:
            asked = message["role"] == "user"
            note(f"> {message['content']}" if asked else message["content"])
        if turns and turns[-1]["role"] == "user":
            note("the last question has no answer yet: /retry")

    def _prompt(self) -> str:
        import readline  # noqa: F401  (input() then has a history and editing)

        if self._json:
            print("> ", end="", file=sys.stderr, flush=True)
            return check_text(input().strip(), "the message")
        return check_text(input("> ").strip(), "the message")

    def _take(self, line: str) -> None:
        """A command, or a question to answer."""
        if not line:
            return
        if line == "/help":
            note(_HELP)
        elif line == "/reset":
            self._messages = list(self._first)
            self._session.rewind(0)
            note("a new conversation")
        elif line == "/stats":
            self._show_stats()
        elif line == "/retry":
            self._retry()
        elif line.startswith("/") and line[1:].isalpha():
            note(f"no command {line}; /help lists them")
        else:
            self._answer([*self._messages, {"role": "user", "content": line}])

    def _retry(self) -> None:
        last = next((i for i in range(len(self._messages) - 1, -1, -1) if self._messages[i]["role"] == "user"), None)
        if last is None:
            note("there is nothing to answer again")
            return
        self._answer(self._messages[: last + 1])

    def _answer(self, messages: list[dict[str, str]]) -> None:
        """Streams the answer. Ctrl-C ends it; what has come of it stays in the conversation."""
        with bar("reading") as progress:
            generation = self._session.chat(messages, progress=progress, **self._controls)
            try:
                piece = next(generation, "")
            except KeyboardInterrupt:
                note("stopped")
                return
        try:
            for text in itertools.chain([piece], generation):
                if not self._json:
                    show(text)
        except KeyboardInterrupt:
            generation.close()
        self._messages = [*messages, {"role": "assistant", "content": generation.text}]
        if self._json:
            emit(
                {
                    "prompt_tokens": generation.prompt_ids,
                    "tokens": generation.token_ids,
                    "text": generation.text,
                    "stop": generation.stop,
                    "stats": generation.stats | ({"resumed": self._resumed} if self._resumed else {}),
                }
            )
            self._resumed = None
            return
        show("\n")
        if generation.stop == "cancel":
            note("stopped")
        elif generation.stop == "length":
            note("the answer was cut: --max-tokens or the context is used up; /reset begins anew")
        if self._verbose:
            note(format.summary(generation.stats))

    def _show_stats(self) -> None:
        for name, value in self._session.stats.items():
            note(f"{name:22} {value:.2f}" if isinstance(value, float) else f"{name:22} {value}")
        note(f"{'context':22} {len(self._session)} of {self._session.ctx} tokens")

"""Model and Session: the Python face of the engine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from . import _core, manifest, options
from .chat import Chat, Message
from .errors import InvalidArgument, Unsupported, check_text
from .generation import Controls, Generation, Progress, check_fits

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Text = str | Iterable[int]


class Model:
    """A model in memory: a name of the manifest that has been pulled, or the path of a GGUF file.

    threads: 0 takes as many as there are cores. activations: "int8", or "f32", the slow reference. progress is called
    with the part done, 0 … 1; what it raises cancels the load. Any number of threads may use one model: they wait for
    each other. It can't be used in a forked child.
    """

    def __init__(
        self,
        name_or_path: str | os.PathLike[str],
        *,
        threads: int = 0,
        activations: str = "int8",
        backend: str = "cpu",
        progress: Progress | None = None,
    ) -> None:
        self._core = _core.Model(
            manifest.resolve(name_or_path),
            n_threads=options.integer("threads", threads, 0, 1024),
            backend=options.choice("backend", backend, options.BACKENDS),
            float_activations=options.choice("activations", activations, options.ACTIVATIONS) == "f32",
            progress=progress,
        )
        self.name = os.fspath(name_or_path)
        self._process = os.getpid()
        self.info = self._core.info
        self.tokenizer = self._core.tokenizer
        self._chat: Chat | None = None

    @property
    def file(self) -> _core.GgufFile:
        """The model's file: metadata and tensors."""
        return self._core.file

    @property
    def stats(self) -> dict[str, Any]:
        """Sums over all sessions of this model."""
        self._check_process()
        return _with_rates(self._core.stats())

    @property
    def chat_format(self) -> Chat:
        """Turns messages into text and ids, by the file's chat template or the built-in one."""
        if self._chat is None:
            self._chat = Chat.of(self.tokenizer, self.info.architecture, self.info.path)
        return self._chat

    def session(
        self,
        name: str | None = None,
        *,
        kv: str = "f16",
        layout: str = "paged",
        ctx: int = 0,
        cache: bool = True,
        chunk: int = 512,
    ) -> Session:
        """An empty session. ctx: most tokens it may hold, 0 for the trained length; nothing is reserved."""
        if name is not None:
            raise Unsupported(
                "sessions with a name, which outlive the process, are not in this version: leave the name out"
            )
        self._check_process()
        core = self._core.session(options.session_options(kv=kv, layout=layout, ctx=ctx, cache=cache, chunk=chunk))
        return Session(self, core)

    def generate(
        self,
        prompt: Text,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        progress: Progress | None = None,
        **sampling: Any,
    ) -> Generation:
        """Continues a text or ids, in a session of its own."""
        controls = Controls.of(self, max_tokens, stop, progress, sampling)
        return Generation(self.session(), self.encode(prompt, "the prompt"), controls, close_session=True)

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        progress: Progress | None = None,
        **sampling: Any,
    ) -> Generation:
        """The answer to messages, as [{"role": "user", "content": "Hi"}], in a session of its own."""
        controls = Controls.of(self, max_tokens, stop, progress, sampling)
        return Generation(self.session(), self.chat_format.encode(messages, tools=tools), controls, close_session=True)

    def logits(
        self, ids: Text, *, kv: str = "f16", layout: str = "paged", chunk: int = 512, progress: Progress | None = None
    ) -> npt.NDArray[np.float32]:
        """Teacher-forced logits of every position: (n, vocabulary) float32."""
        tokens = self.encode(ids, "ids")
        session = options.session_options(kv=kv, layout=layout, chunk=chunk)
        self._check_process()
        return self._core.logits(tokens, session, progress)

    def encode(self, text: Text, what: str = "text", *, special: bool = True) -> list[int]:
        """Ids of a text or of ids: checked, and not empty."""
        ids = self.tokenizer.encode(check_text(text, what), special=special) if isinstance(text, str) else None
        if ids is None:
            ids = options.token_ids(text)
        if not ids:
            raise InvalidArgument(f"{what}: expected at least one token, found none")
        return ids

    def _check_process(self) -> None:
        # The core refuses as well where it can say so; here before it waits for a lock that nobody is left to open.
        if os.getpid() != self._process:
            raise InvalidArgument("this model was loaded before a fork: it can't be used in the child; load it again")

    def __repr__(self) -> str:
        return f"<kvart.Model {self.name!r}: {self.info.architecture}, {self.info.n_layers} layers>"


class Session:
    """A text and its K/V. Made by Model.session."""

    def __init__(self, model: Model, core: _core.Session) -> None:
        self.model = model
        self._core: _core.Session | None = core

    def append(self, text: Text, *, special: bool = True, progress: Progress | None = None) -> None:
        """Adds a text or ids and computes their K/V. On an error or a cancel the session is as it was before.

        special: added tokens such as <|im_end|> in a text are parsed; False takes them as plain text.
        """
        self._open().append(self.model.encode(text, special=special), progress)

    def append_logits(
        self, text: Text, *, special: bool = True, progress: Progress | None = None
    ) -> npt.NDArray[np.float32]:
        """Adds a text or ids like append, and returns the logits of each of its tokens: (n, vocabulary) float32."""
        ids = self.model.encode(text, special=special)
        return self._open().append_logits(ids, self.model.info.n_vocab, progress)

    def generate(
        self,
        text: Text | None = None,
        *,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        special: bool = True,
        progress: Progress | None = None,
        **sampling: Any,
    ) -> Generation:
        """Continues what is there, after adding text, if any. The tokens join the session as they are generated."""
        if text is None and not len(self):
            raise InvalidArgument("the session is empty: give a text to begin with")
        ids = [] if text is None else self.model.encode(text, "the prompt", special=special)
        return Generation(self, ids, Controls.of(self.model, max_tokens, stop, progress, sampling))

    def chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        progress: Progress | None = None,
        **sampling: Any,
    ) -> Generation:
        """The answer to messages. What the session holds of them is not computed again; what differs is dropped."""
        controls = Controls.of(self.model, max_tokens, stop, progress, sampling)
        ids = self.model.chat_format.encode(messages, tools=tools)
        core = self._open()
        check_fits(len(ids), 0, core.ctx())
        # At least one token is left to compute: the answer begins from its logits.
        keep = common_prefix(ids[:-1], core.tokens())
        core.rewind(keep)
        return Generation(self, ids[keep:], controls)

    def fork(self) -> Session:
        """Another session with the same text, sharing what can be shared."""
        return Session(self.model, self._open().fork())

    def rewind(self, n: int) -> None:
        """Keeps the first n tokens."""
        core = self._open()
        core.rewind(options.integer("n", n, 0, core.size()))

    @property
    def tokens(self) -> list[int]:
        """Ids of the text, oldest first."""
        return self._open().tokens()

    @property
    def ctx(self) -> int:
        """The most tokens it may hold."""
        return self._open().ctx()

    @property
    def stats(self) -> dict[str, Any]:
        """Sums over the life of the session."""
        return _with_rates(self._open().stats())

    def kv(self) -> list[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]:
        """K (after RoPE) and V of each layer: (n_kv_heads, tokens, head_dim) float32."""
        info = self.model.info
        core = self._open()
        return [core.read_kv(layer, info.n_kv_heads, info.head_dim) for layer in range(info.n_layers)]

    def logits(self) -> npt.NDArray[np.float32]:
        """Logits after the last token: (vocabulary,) float32."""
        return self._open().last_logits(self.model.info.n_vocab)

    def close(self) -> None:
        """Frees the K/V. Calls that are running in other threads end first."""
        self._core = None

    def __len__(self) -> int:
        return self._open().size()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._core is None else f"context of {self._core.ctx()}"
        return f"<kvart.Session of {self.model.name!r}: {state}>"

    def _open(self) -> _core.Session:
        self.model._check_process()
        core = self._core
        if core is None:
            raise InvalidArgument("the session is closed")
        return core


def common_prefix(a: list[int], b: list[int]) -> int:
    """How many ids a and b begin with alike."""
    shorter = min(len(a), len(b))
    return next((n for n in range(shorter) if a[n] != b[n]), shorter)


def _with_rates(stats: dict[str, Any]) -> dict[str, Any]:
    def rate(tokens: int, seconds: float) -> float:
        return tokens / seconds if seconds > 0 else 0.0

    stats["prefill_tok_s"] = rate(stats["prefill_tokens"], stats["prefill_seconds"])
    stats["decode_tok_s"] = rate(stats["decode_tokens"], stats["decode_seconds"])
    stats["kv_utilization"] = stats["kv_used_bytes"] / stats["kv_bytes"] if stats["kv_bytes"] else 0.0
    return stats

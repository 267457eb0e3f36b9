"""Model and Session: the Python face of the engine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _core, manifest, options
from .chat import Chat, Message
from .errors import InvalidArgument, check_path, check_text
from .generation import Controls, Generation, Progress, check_fits

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .raw import RawHead

Text = str | Iterable[int]


@dataclass(frozen=True)
class Resumed:
    """What opening a durable session found: tokens that were journalled, and where their K/V come from."""

    existed: bool  # it was there
    tokens: int
    from_pages: int  # of the tokens: those in sealed pages
    from_open_page: int  # those that a clean close had kept
    to_compute: int  # the rest, computed by whatever call comes next
    note: str  # for people, where something was not as expected


class Model:
    """A model in memory: a name of the manifest that has been pulled, or the path of a GGUF file.

    threads: 0 takes one for each physical core that is worth having: big ones, of one NUMA node, within the affinity
    mask and a cgroup's quota. More than the machine can run at once do no harm: they sleep. cpus: keep the threads, and
    a caller while it computes, on these CPUs: a list, or a str such as "0-3,6"; one thread on each unless threads says
    otherwise. activations: "int8", or "f32", the slow reference. progress is called with the part done, 0 … 1; what it
    raises cancels the load. Any number of threads may use one model: they wait for each other. It can't be used in a
    forked child.

    kv_dir: a directory for the K/V pages of all sessions, found again by later processes. Without it they are in
    memory, but for sessions with a name: those are in $KVART_KV_DIR, or in kvart's cache directory. kv_budget: most
    bytes of pages for each cache format; 0 takes half of the memory, and sets no limit in a directory.
    record_inputs: keep input_squares(), which makes computing slower.
    """

    def __init__(
        self,
        name_or_path: str | os.PathLike[str],
        *,
        threads: int = 0,
        cpus: str | Iterable[int] | None = None,
        activations: str = "int8",
        backend: str = "cpu",
        kv_dir: str | os.PathLike[str] | None = None,
        kv_budget: int = 0,
        record_inputs: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self.kv_dir = None if kv_dir is None else check_path(kv_dir, "kv_dir")
        self._core = _core.Model(
            manifest.resolve(name_or_path),
            n_threads=options.integer("threads", threads, 0, options.MAX_THREADS),
            cpus=options.cpu_list(cpus),
            backend=options.choice("backend", backend, options.BACKENDS),
            float_activations=options.choice("activations", activations, options.ACTIVATIONS) == "f32",
            kv_dir=self.kv_dir or str(manifest.kv_dir()),
            kv_budget_bytes=options.integer("kv_budget", kv_budget, 0, 2**62),
            record_inputs=record_inputs,
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
        return with_rates(self._core.stats())

    def input_squares(self) -> dict[str, tuple[npt.NDArray[np.float64], int]]:
        """For every weight matrix what it was multiplied with so far: sums of squares (columns,), of how many inputs.

        Empty unless the model was loaded with record_inputs. What was found in the cache was not computed.
        """
        self._check_process()
        return self._core.input_squares()

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
        kv: str = "int4",
        sinks: int = 4,
        window: int = 0,
        layout: str = "paged",
        ctx: int = 0,
        cache: bool = True,
        chunk: int = 512,
        draft: int = 0,
    ) -> Session:
        """A session: with a name the durable one of that name, as it was left; else an empty one.

        kv: format of the cache, such as "int4", "f16" or "k=int8,v=int4". sinks: first tokens that stay half precision
        where the rest becomes integers. window: beyond it only the sinks and the newest tokens stay, in whole pages; 0
        is off, and a full context is an error. ctx: most tokens it may hold, 0 for the trained length; nothing is
        reserved. draft: most tokens to guess ahead, from what followed the last few where they stood before; all are
        computed at once and the text stays the same, faster where it repeats itself.
        """
        given = options.session_options(
            name=name,
            kv=kv,
            sinks=sinks,
            window=window,
            layout=layout,
            ctx=ctx,
            cache=cache,
            chunk=chunk,
            draft=draft,
            in_memory=self.kv_dir is None and name is None,
        )
        self._check_process()
        return Session(self, self._core.session(given))

    def load_session(self, path: str | os.PathLike[str], *, ctx: int = 0, chunk: int = 512) -> Session:
        """A session out of a file that Session.save wrote, with the formats, sinks and window that are in the file."""
        given = options.session_options(ctx=ctx, chunk=chunk, in_memory=True)
        self._check_process()
        return Session(self, self._core.load_session(check_path(path, "path"), given))

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
        enable_thinking: bool | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        progress: Progress | None = None,
        **sampling: Any,
    ) -> Generation:
        """The answer to messages, as [{"role": "user", "content": "Hi"}], in a session of its own.

        enable_thinking: for models whose chat template asks; None leaves it to the template.
        """
        controls = Controls.of(self, max_tokens, stop, progress, sampling)
        ids = self._encode_chat(messages, tools, enable_thinking)
        return Generation(self.session(), ids, controls, close_session=True)

    def logits(
        self, ids: Text, *, kv: str = "int4", layout: str = "paged", chunk: int = 512, progress: Progress | None = None
    ) -> npt.NDArray[np.float32]:
        """Teacher-forced logits of every position: (n, vocabulary) float32."""
        tokens = self.encode(ids, "ids")
        session = options.session_options(kv=kv, layout=layout, chunk=chunk, in_memory=self.kv_dir is None)
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

    def _encode_chat(
        self, messages: Sequence[Message], tools: Sequence[Any] | None, enable_thinking: bool | None
    ) -> list[int]:
        variables = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        return self.chat_format.encode(messages, tools=tools, **variables)

    def _check_process(self) -> None:
        # The core refuses as well where it can say so; here before it waits for a lock that nobody is left to open.
        if os.getpid() != self._process:
            raise InvalidArgument("this model was loaded before a fork: it can't be used in the child; load it again")

    def __repr__(self) -> str:
        return f"<kvart.Model {self.name!r}: {self.info.architecture}, {self.info.n_layers} layers>"


class Session:
    """A text and its K/V. Made by Model.session. With a name its token ids are on disk before their text is shown."""

    def __init__(self, model: Model, core: _core.Session) -> None:
        self.model = model
        self._core: _core.Session | None = core
        self.name = core.options.name or None
        self.resumed = Resumed(**core.resumed())

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
        enable_thinking: bool | None = None,
        max_tokens: int | None = None,
        stop: str | Sequence[str] | None = None,
        progress: Progress | None = None,
        **sampling: Any,
    ) -> Generation:
        """The answer to messages. What the session holds of them is not computed again; what differs is dropped."""
        controls = Controls.of(self.model, max_tokens, stop, progress, sampling)
        ids = self.model._encode_chat(messages, tools, enable_thinking)
        core = self._open()
        if not core.options.window:
            check_fits(len(ids), 0, core.ctx())
        # At least one token is left to compute: the answer begins from its logits.
        keep = common_prefix(ids[:-1], core.tokens())
        core.rewind(keep)
        return Generation(self, ids[keep:], controls)

    def fork(self) -> Session:
        """Another session with the same text, sharing what can be shared. It has no name."""
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
        return with_rates(self._open().stats())

    def kv(self) -> list[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]:
        """K (after RoPE) and V of each layer: (n_kv_heads, tokens, head_dim) float32. Dropped by a window: zeros."""
        info = self.model.info
        core = self._open()
        return [core.read_kv(layer, info.n_kv_heads, info.head_dim) for layer in range(info.n_layers)]

    def raw_page(self, page: int, layer: int) -> list[RawHead]:
        """A layer of a sealed page as it is kept: for each KV head its codes, scales and centres. NotFound if open."""
        from .raw import parse_fine, parse_page

        core = self._open()
        number = options.integer("page", page, 0)
        layer = options.integer("layer", layer, 0, self.model.info.n_layers - 1)
        data, fine = core.read_raw_page(number, layer)
        given = core.options
        info = self.model.info
        heads = info.n_layers * info.n_kv_heads
        rows = parse_fine(fine, heads)[layer * info.n_kv_heads :] if fine else None
        return parse_page(data, given.k_format, given.v_format, info.n_kv_heads, info.head_dim, rows)

    def import_kv(self, ids: Text, kv: Sequence[tuple[npt.ArrayLike, npt.ArrayLike]]) -> None:
        """Replaces what the session holds by ids and their K/V, of the shapes that kv() gives. Float formats only."""
        tokens = self.model.encode(ids, "ids")
        info = self.model.info
        try:
            pairs = [(k, v) for k, v in kv]
        except (TypeError, ValueError) as error:
            raise InvalidArgument(f"kv: expected a pair of K and V for each layer: {error}") from None
        if len(pairs) != info.n_layers:
            raise InvalidArgument(f"kv: expected {info.n_layers} layers, found {len(pairs)}")
        wanted = (info.n_kv_heads, len(tokens), info.head_dim)
        layers = []
        for layer, pair in enumerate(pairs):
            k, v = (_floats(array, f"kv: layer {layer}, {name}") for name, array in zip("KV", pair, strict=True))
            for name, array in (("K", k), ("V", v)):
                if array.shape != wanted:
                    raise InvalidArgument(f"kv: layer {layer}, {name}: expected shape {wanted}, found {array.shape}")
            layers.append((k, v))
        self._open().import_kv(tokens, layers)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the whole session, ids and K/V, to one file; Model.load_session reads it."""
        self._open().save(check_path(path, "path"))

    def logits(self) -> npt.NDArray[np.float32]:
        """Logits after the last token: (vocabulary,) float32."""
        return self._open().last_logits(self.model.info.n_vocab)

    def close(self) -> None:
        """Ends the session, a durable one cleanly: to open it again then computes nothing.

        Calls that are running in other threads end first.
        """
        core, self._core = self._core, None
        if core is not None and os.getpid() == self.model._process:
            core.close()

    def __len__(self) -> int:
        return self._open().size()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._core is None else f"context of {self._core.ctx()}"
        name = f"{self.name!r} " if self.name else ""
        return f"<kvart.Session {name}of {self.model.name!r}: {state}>"

    def _open(self) -> _core.Session:
        self.model._check_process()
        core = self._core
        if core is None:
            raise InvalidArgument("the session is closed")
        return core


def _floats(values: npt.ArrayLike, what: str) -> npt.NDArray[np.float32]:
    """values as float32; complex numbers, texts and objects are none."""
    import numpy as np

    try:
        array = np.asarray(values)
        if array.dtype.kind in "bcOSUmM":
            raise TypeError(f"found {array.dtype}")
        return np.ascontiguousarray(array, np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(f"{what}: expected an array of real numbers: {error}") from None


def common_prefix(a: list[int], b: list[int]) -> int:
    """How many ids a and b begin with alike."""
    shorter = min(len(a), len(b))
    return next((n for n in range(shorter) if a[n] != b[n]), shorter)


def with_rates(stats: dict[str, Any]) -> dict[str, Any]:
    """stats with what follows from them."""

    def ratio(part: float, whole: float) -> float:
        return part / whole if whole > 0 else 0.0

    stats["prefill_tok_s"] = ratio(stats["prefill_tokens"], stats["prefill_seconds"])
    stats["decode_tok_s"] = ratio(stats["decode_tokens"], stats["decode_seconds"])
    # Time of a token of the prompt over time of a token written.
    stats["prefill_decode_ratio"] = ratio(stats["decode_tok_s"], stats["prefill_tok_s"])
    # Of the positions computed, those that the cache did not have to give twice.
    stats["hit_rate"] = 1.0 - ratio(stats["recomputed_positions"], stats["computed_positions"])
    stats["store_hit_rate"] = ratio(stats["store_hits"], stats["store_lookups"])
    stats["pool_hit_rate"] = ratio(stats["pool_hits"], stats["pool_requests"])
    stats["kv_utilization"] = ratio(stats["kv_used_bytes"], stats["kv_bytes"])
    return stats

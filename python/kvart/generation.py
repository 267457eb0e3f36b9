"""The decode loop: an iterator of text over a session. A token is computed when it is asked for; nothing runs ahead."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _core, options
from .errors import Cancelled, ContextFull, InvalidArgument

if TYPE_CHECKING:
    from .model import Model, Session

Progress = Callable[[float], object]


class StopMatcher:
    """Looks for stop strings in text that comes in pieces. Holds back only what may be the beginning of one."""

    def __init__(self, strings: tuple[str, ...]) -> None:
        self._strings = strings
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """What of the text so far can be shown now. After a match: the rest before it."""
        self._held += text
        matches = [(at + len(s), at, s) for s in self._strings if (at := self._held.find(s)) >= 0]
        if matches:
            _, at, self.found = min(matches)  # the one that is complete first, however the text was cut into pieces
            return self._held[:at]
        keep = max((self._overlap(string) for string in self._strings), default=0)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def finish(self) -> str:
        """What was held back, when no more text comes."""
        shown, self._held = self._held, ""
        return shown

    def _overlap(self, string: str) -> int:
        longest = min(len(string) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(string[:n])), 0)


@dataclass(frozen=True)
class Controls:
    """How to generate, all checked. For one generation: the sampler holds the random state."""

    sampler: _core.Sampler
    seed: int
    max_tokens: int | None
    stop: tuple[str, ...]
    progress: Progress | None

    @classmethod
    def of(
        cls,
        model: Model,
        max_tokens: int | None,
        stop: str | Sequence[str] | None,
        progress: Progress | None,
        sampling: dict[str, Any],
    ) -> Controls:
        checked = options.sampling(sampling)
        return cls(
            sampler=_core.Sampler(model.info.n_vocab, **checked),
            seed=checked["seed"],
            max_tokens=None if max_tokens is None else options.integer("max_tokens", max_tokens, 0),
            stop=options.stop_strings(stop),
            progress=progress,
        )


def check_fits(n_tokens: int, n_held: int, ctx: int) -> None:
    """A full context is told before anything is computed."""
    if n_tokens > ctx - n_held:
        beside = f" beside the {n_held} that are there" if n_held else ""
        raise ContextFull(f"a prompt of {n_tokens} tokens{beside} does not fit in a context of {ctx}")


class Generation(Iterator[str]):
    """Text as it comes, in whole characters. The prompt is computed with the first piece.

    stop is None while it runs, then "end" (a token that ends a turn), "length" (max_tokens, or the context is full),
    "stop" (a stop string) or "cancel" (close, or an interrupt). The tokens stay in the session.
    """

    def __init__(
        self,
        session: Session,
        prompt: list[int],
        controls: Controls,
        *,
        close_session: bool = False,
    ) -> None:
        self._session = session
        self._core: _core.Session | None = session._open()
        self._controls = controls
        self._decoder = _core.StreamDecoder(session.model.tokenizer)
        self._matcher = StopMatcher(controls.stop)
        self._close_session = close_session
        self._held = self._size = self._core.size()
        self._started = False
        self._start_stats = self._core.stats()
        self._start_time = time.perf_counter()
        self._prefill_seconds = 0.0
        self._first_token_seconds = 0.0
        self._prompt_stats: dict[str, Any] = {}
        self._end_stats: dict[str, Any] | None = None
        self._pieces: list[str] = []
        self.prompt_ids = prompt
        self.token_ids: list[int] = []
        self.stop: str | None = None
        if not self._core.options.window:
            check_fits(len(prompt), self._size, self._core.ctx())

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._pieces)

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> str:
        while self.stop is None:
            try:
                piece = self._step()
            except (KeyboardInterrupt, Cancelled):
                self._finish("cancel")
                raise
            if piece:
                self._pieces.append(piece)
                return piece
        raise StopIteration

    def read(self) -> str:
        """Runs to the end and returns the whole text."""
        for _ in self:
            pass
        return self.text

    def close(self) -> None:
        """Stops here. What has been generated stays in the session."""
        if self.stop is None:
            self._finish("cancel")

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _step(self) -> str:
        core = self._running()
        if not self._started:
            self._prefill(core)
        limit = self._controls.max_tokens
        if limit is not None and len(self.token_ids) >= limit:
            return self._finish("length")
        try:
            token = core.next(self._controls.sampler)
        except ContextFull:
            return self._finish("length")
        self._size += 1
        if not self.token_ids:
            self._first_token_seconds = time.perf_counter() - self._start_time
        self.token_ids.append(token)
        if self._session.model.tokenizer.is_end(token):
            return self._finish("end")
        text = self._matcher.push(self._decoder.push(token))
        if self._matcher.found is not None:
            self._finish("stop")
        return text

    def _running(self) -> _core.Session:
        self._session.model._check_process()
        if self._core is None or self._session._core is None:
            raise InvalidArgument("the session was closed while this generation was running")
        if self._core.size() != self._size:
            raise InvalidArgument("the session was changed while this generation was running; start another")
        return self._core

    def _prefill(self, core: _core.Session) -> None:
        self._start_time = time.perf_counter()
        core.append(self.prompt_ids, self._controls.progress)
        self._prefill_seconds = time.perf_counter() - self._start_time
        self._size += len(self.prompt_ids)
        self._started = True
        self._prompt_stats = core.stats()

    def _finish(self, reason: str) -> str:
        """Ends the generation; returns the text that was held back."""
        self.stop = reason
        if self._core is not None:
            self._end_stats = self._core.stats()
        rest = ""
        if reason in ("end", "length"):
            rest = self._matcher.push(self._decoder.finish())
            if self._matcher.found is None:
                rest += self._matcher.finish()
        if self._close_session:
            self._session.close()
        self._core = None  # the result may be kept for long: not so the K/V
        return rest

    @property
    def stats(self) -> dict[str, Any]:
        """Counts, seconds and rates of this generation so far."""
        info = self._session.model.info
        now = self._end_stats or (self._core.stats() if self._core else self._start_stats)
        middle = self._prompt_stats or now
        held = self._held + len(self.prompt_ids) if self._started else 0
        prompt_computed = middle["computed_positions"] - self._start_stats["computed_positions"]
        prefill_seconds = self._prefill_seconds
        decode_seconds = now["decode_seconds"] - middle["decode_seconds"]
        decoded = now["decode_tokens"] - middle["decode_tokens"]
        computed, recomputed = (
            now[key] - self._start_stats[key] for key in ("computed_positions", "recomputed_positions")
        )
        decode_rate = decoded / decode_seconds if decode_seconds > 0 else 0.0
        bytes_per_token = info.weight_bytes_per_token + now["kv_used_bytes"]
        return {
            "prompt_tokens": len(self.prompt_ids),
            "generated_tokens": len(self.token_ids),
            "prefill_seconds": prefill_seconds,
            "prefill_tok_s": len(self.prompt_ids) / prefill_seconds if prefill_seconds > 0 else 0.0,
            "decode_seconds": decode_seconds,
            "decode_tok_s": decode_rate,
            "first_token_seconds": self._first_token_seconds,
            "bytes_per_token": bytes_per_token,
            "gb_s": decode_rate * bytes_per_token / 1e9,
            "kv_bytes": now["kv_bytes"],
            "kv_used_bytes": now["kv_used_bytes"],
            "computed_positions": computed,
            # of the prompt and the text before it: positions whose K/V were there
            "reused_positions": max(0, held - prompt_computed),
            "recomputed_positions": recomputed,
            "hit_rate": 1 - (recomputed / computed if computed else 0.0),
            "kv_utilization": now["kv_used_bytes"] / now["kv_bytes"] if now["kv_bytes"] else 0.0,
            "bits_per_value": now["bits_per_value"],
            "logits_hash": f"{now['logits_hash']:016x}",
            "seed": self._controls.seed,
            "threads": info.n_threads,
            "kernels": info.kernels,
        }

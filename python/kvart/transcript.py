"""From token ids back to messages: what a durable conversation said, read from its text alone."""

from __future__ import annotations

from . import _core
from .errors import InvalidArgument

_START, _END = "<|im_start|>", "<|im_end|>"


def messages_of(tokenizer: _core.Tokenizer, ids: list[int]) -> list[dict[str, str]]:
    """The messages of a text in the chat format of the Qwen family.

    Turns are told by control tokens, never by what a user typed: that is plain text. The last message may be
    unfinished; an answer that has not begun is left out.
    """
    start, end = tokenizer.find(_START), tokenizer.find(_END)
    if ids and (start is None or end is None or ids[0] != start):
        raise InvalidArgument("the session holds a text that is no conversation: continue it with kvart run --session")
    messages = []
    turns: list[list[int]] = []
    for id in ids:
        if id == start:
            turns.append([])
        else:
            turns[-1].append(id)
    for turn in turns:
        content = turn[: turn.index(end)] if end in turn else turn
        role, newline, text = tokenizer.decode(content, skip_control=True).partition("\n")
        if newline and (text or end in turn or role != "assistant"):
            messages.append({"role": role, "content": text})
    return messages

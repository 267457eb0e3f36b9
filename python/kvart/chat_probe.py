"""What a chat template does, found by rendering conversations with it: what it adds, drops, rewrites and refuses.

It matters to a cache: only text that stays as it was is found again. Templates come with models and are not trusted:
they run in the sandbox of kvart.chat, and for so long only.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .chat import Message, Template
from .errors import InvalidArgument, Unsupported

SECONDS = 3.0  # for all conversations of one template: a normal one takes milliseconds

# Texts that no template has of itself.
_SYSTEM, _USER, _ANSWER, _NEXT, _THOUGHT = "Ssyssys", "Uaskask", "Aansans", "Unextnext", "Tthinkthink"
_TOOL, _RESULT = "probe_tool", "Rresres"

_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _TOOL,
            "description": "Looks something up.",
            "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
        },
    }
]


def _message(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


_TURN = [_message("user", _USER)]
_ANSWERED = [*_TURN, _message("assistant", _ANSWER)]
_TWO_TURNS = [*_ANSWERED, _message("user", _NEXT)]
_CALL = {"type": "function", "function": {"name": _TOOL, "arguments": {"key": "value"}}}
_CALLED = [*_TURN, _message("assistant", "", tool_calls=[_CALL]), _message("tool", _RESULT)]

# Conversations that a template may refuse.
_UNUSUAL: dict[str, Sequence[Message]] = {
    "a system message in the middle": [*_ANSWERED, _message("system", _SYSTEM), *_TURN],
    "two user messages in a row": [*_TURN, *_TURN],
    "an answer first": [_message("assistant", _ANSWER), *_TURN],
    "a role it does not know": [_message("narrator", _USER), *_TURN],
    "content in parts": [{"role": "user", "content": [{"type": "text", "text": _USER}]}],
}


def probe(source: str, file: str | None = None) -> dict[str, Any]:
    """The quirks of a template; Corrupt where it does not parse, InvalidArgument where it refuses a plain question.

    default_system: the text put in front of a first message of the user, None where there is none. generation_prompt:
    what opens the answer. rewrites: what changes text that was there before, in words; empty where earlier text stays.
    drops_thinking: thoughts of earlier answers are left out later. thinking_switch: what enable_thinking=False adds to
    the generation prompt, None where it does nothing. tools, tool_results: whether they come through. tools_first: they
    stand before the conversation, so that other tools change all that follows. raises: what is refused, by
    conversation. changes_by_date: it asks for the date.
    """
    render = Template(source, file).render  # not under the deadline, whose trace would slow the parser down
    with _deadline(SECONDS, file):
        asked = render(_TURN)
        with_tools = _try(render, _TURN, tools=_TOOLS) or ""
        return {
            "default_system": _default_system(render, asked),
            "generation_prompt": _behind(asked, render(_TURN, add_generation_prompt=False)),
            "rewrites": _rewrites(render, asked),
            "drops_thinking": _drops_thinking(render),
            "thinking_switch": _thinking_switch(render, asked),
            "tools": _TOOL in with_tools,
            "tools_first": _TOOL in with_tools.partition(_USER)[0],
            "tool_results": _RESULT in (_try(render, _CALLED, tools=_TOOLS) or ""),
            "raises": _raises(render),
            "changes_by_date": "strftime_now" in source,
        }


Render = Callable[..., str]


def _try(render: Render, messages: Sequence[Message], **options: Any) -> str | None:
    try:
        return render(messages, **options)
    except InvalidArgument:
        return None


def _behind(longer: str, shorter: str) -> str:
    """What longer has more than shorter; "" unless it begins with it."""
    return longer[len(shorter) :] if longer.startswith(shorter) else ""


def _default_system(render: Render, asked: str) -> str | None:
    """What stands before the first question where nobody gave a system message."""
    before = asked.partition(_USER)[0]
    opening, given, behind = (_try(render, [_message("system", _SYSTEM), *_TURN]) or "").partition(_SYSTEM)
    closing = behind.partition(_USER)[0]
    if given and before.startswith(opening) and before.endswith(closing) and len(before) > len(opening + closing):
        return before[len(opening) : len(before) - len(closing)].strip() or None
    # Not in the frame of a system message: what the head of a later question does not have.
    later = (_try(render, _TWO_TURNS) or "").partition(_ANSWER)[2].partition(_NEXT)[0]
    head = 0
    while head < min(len(before), len(later)) and before[-1 - head] == later[-1 - head]:
        head += 1
    rest = before[: len(before) - head].strip()
    return rest if " " in rest else None  # one word is a mark of the beginning, not an instruction


def _rewrites(render: Render, asked: str) -> list[str]:
    found = []
    later = _try(render, _TWO_TURNS)
    if later is not None and not later.startswith(asked + _ANSWER):
        found.append("a plain answer does not stay as it was generated")
    answered = _try(render, _ANSWERED, add_generation_prompt=False)
    if later is not None and answered is not None and not later.startswith(answered):
        found.append("the newest answer is written otherwise once another question follows")
    if _drops_thinking(render):
        found.append("thoughts of earlier answers are dropped")
    unthinking = _try(render, _TURN, enable_thinking=False)
    if unthinking is not None and unthinking != asked:
        later = _try(render, _TWO_TURNS, enable_thinking=False)
        if later is not None and not later.startswith(unthinking + _ANSWER):
            found.append("what enable_thinking=False puts before an answer is gone once another question follows")
    return found


def _drops_thinking(render: Render) -> bool:
    thought = f"<think>\n{_THOUGHT}\n</think>\n\n{_ANSWER}"
    later = _try(render, [*_TURN, _message("assistant", thought), _message("user", _NEXT)])
    return later is not None and _THOUGHT not in later


def _thinking_switch(render: Render, asked: str) -> str | None:
    off = _try(render, _TURN, enable_thinking=False)
    return None if off is None or off == asked else _behind(off, asked)


def _raises(render: Render) -> dict[str, str]:
    """What the template refuses, and in which words."""
    refused = {}
    for what, messages in _UNUSUAL.items():
        try:
            render(messages)
        except InvalidArgument as error:
            refused[what] = error.message[:200]
    return refused


@contextlib.contextmanager
def _deadline(seconds: float, file: str | None) -> Iterator[None]:
    """Ends what runs inside after so long. Jinja compiles templates to Python, so a trace of its lines sees them."""
    end = time.monotonic() + seconds

    def trace(frame: Any, event: str, argument: Any) -> Any:
        if time.monotonic() > end:
            raise _TookTooLong
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    except _TookTooLong:
        message = f"the chat template of {file or 'the model'} took more than {seconds:g} seconds on a short text"
        raise Unsupported(message, file=file) from None
    finally:
        sys.settrace(before)


class _TookTooLong(BaseException):
    """Not an Exception: nothing on the way catches it."""

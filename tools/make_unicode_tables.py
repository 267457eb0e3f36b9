#!/usr/bin/env python3
"""Writes cpp/tokenizer/unicode_tables.cc: the character classes and the NFC data of the reference tokenizer.

The reference (package `tokenizers`) carries two Unicode versions, one in its regular expressions and an older one in
its normaliser, and neither is that of Python. So nothing is taken from a Unicode database: every table is read off
the reference itself, code point by code point. Only the numbers of the combining classes come from Python (they never
change once given); which code point is in which class is again asked of the reference.

    pip install tokenizers==0.23.3 && python3 tools/make_unicode_tables.py
"""

import pathlib
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CLASSES = [(1, r"\p{L}"), (2, r"\p{N}"), (3, r"\s")]
IN_NFC_CHECK = 4  # a normalisation may begin or go on here: combining class not 0, or quick check not "yes"
CHANGES = 8  # quick check "no" or "maybe"
OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "cpp" / "tokenizer" / "unicode_tables.cc"

nfd = normalizers.NFD().normalize_str
nfc = normalizers.NFC().normalize_str


def matching(regex):
    splitter = pre_tokenizers.Split(Regex(regex), "removed", invert=True)
    pieces = splitter.pre_tokenize_str("".join(map(chr, CODE_POINTS)))
    return {ord(c) for piece, _ in pieces for c in piece}


def per_code_point(function, make):
    """function(make(c)) for every code point, in one call: line feeds keep the answers apart."""
    asked = [c for c in CODE_POINTS if c != 10]
    answers = function("\n".join(make(chr(c)) for c in asked)).split("\n")
    assert len(answers) == len(asked)
    return dict(zip(asked, answers, strict=True))


def combining_classes(decomposed):
    """{code point: class}, told from the order into which the reference sorts a mark and one of each known class."""
    low, high = "\u0334", "\u0345"  # classes 1 and 240: below and above all others
    before = per_code_point(nfd, lambda c: c + low)
    after = per_code_point(nfd, lambda c: high + c)
    marks = [c for c in before if c not in decomposed and (before[c] != chr(c) + low or after[c] != high + chr(c))]
    marks = sorted({*marks, ord(low)})
    known = {}
    for c in marks:
        known.setdefault(unicodedata.combining(chr(c)), chr(c))
    assert 0 not in known
    classes = {}
    for c in marks:
        fits = [v for v, k in known.items() if nfd(chr(c) + k) == chr(c) + k and nfd(k + chr(c)) == k + chr(c)]
        assert len(fits) == 1, (hex(c), fits)
        classes[c] = fits[0]
    return classes


def compositions(decomposed, composed):
    """{(first, second): composite} for all but Hangul syllables, which are computed."""
    pairs = {}
    for c, parts in decomposed.items():
        if composed.get(c) != chr(c) or 0xAC00 <= c < 0xD7A4:
            continue
        first, second = nfc(parts[:-1]), parts[-1]
        if len(first) != 1:  # the last mark belongs further in: find the pair by trying
            found = [(nfc(parts[:i] + parts[i + 1 :]), parts[i]) for i in range(1, len(parts))]
            ((first, second),) = [(a, b) for a, b in found if len(a) == 1 and nfc(a + b) == chr(c)]
        assert nfc(first + second) == chr(c), hex(c)
        pairs[ord(first), ord(second)] = c
    return pairs


def ranges(values):
    """[(first, last, value)] of runs of equal values."""
    out = []
    for c, value in sorted(values.items()):
        if out and out[-1][1] == c - 1 and out[-1][2] == value:
            out[-1][1] = c
        else:
            out.append([c, c, value])
    return out


def rows(items):
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > 118:
            lines.append(line)
            line = "   "
        line += " " + item + ","
    return "\n".join([*lines, line])


def main():
    decomposed = {c: d for c, d in per_code_point(nfd, lambda c: c).items() if d != chr(c)}
    composed = per_code_point(nfc, lambda c: c)
    composed[10] = "\n"
    marks = combining_classes(decomposed)
    pairs = compositions(decomposed, composed)
    seconds = {b for _, b in pairs} | set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))

    properties = dict.fromkeys(CODE_POINTS, 0)
    for number, regex in CLASSES:
        for c in matching(regex):
            assert properties[c] == 0, hex(c)
            properties[c] = number
    for c in CODE_POINTS:
        changes = composed[c] != chr(c) or c in seconds
        properties[c] |= (CHANGES if changes else 0) | (IN_NFC_CHECK if changes or c in marks else 0)
    for c in range(0xD800, 0xE000):
        properties[c] = properties[0xD7FF]  # never looked at: no range ends here

    pool, entries = [], []
    for c, parts in sorted(decomposed.items()):
        if 0xAC00 <= c < 0xD7A4:
            continue
        assert len(parts) <= 7
        entries.append(f"{{0x{c:x}, {len(pool)}, {len(parts)}}}")
        pool += [ord(p) for p in parts]

    source = f"the package tokenizers {tokenizers.__version__}"
    text = f"""// Generated by tools/make_unicode_tables.py from {source}: do not edit.
// May depend on: tokenizer/unicode_tables.h. Next for the token: unicode.cc looks characters up here.
// clang-format off
#include "tokenizer/unicode_tables.h"

namespace kvart::unicode_tables {{

// (first code point of a run) << 8 | properties.
const uint32_t kProperties[] = {{
{rows(f"0x{a:x}{v:02x}" for a, _, v in ranges(properties))}
}};
const size_t kPropertiesCount = sizeof(kProperties) / sizeof(kProperties[0]);

const CombiningRange kCombining[] = {{
{rows(f"{{0x{a:x}, 0x{b:x}, {v}}}" for a, b, v in ranges(marks))}
}};
const size_t kCombiningCount = sizeof(kCombining) / sizeof(kCombining[0]);

const Decomposition kDecompositions[] = {{
{rows(entries)}
}};
const size_t kDecompositionsCount = sizeof(kDecompositions) / sizeof(kDecompositions[0]);

const uint32_t kDecompositionPool[] = {{
{rows(f"0x{p:x}" for p in pool)}
}};

const Composition kCompositions[] = {{
{rows(f"{{0x{a:x}, 0x{b:x}, 0x{c:x}}}" for (a, b), c in sorted(pairs.items()))}
}};
const size_t kCompositionsCount = sizeof(kCompositions) / sizeof(kCompositions[0]);

}}  // namespace kvart::unicode_tables
"""
    OUTPUT.write_text(text, encoding="ascii")
    print(f"{OUTPUT}: {len(text)} bytes, {len(marks)} marks, {len(entries)} decompositions, {len(pairs)} compositions")


if __name__ == "__main__":
    main()

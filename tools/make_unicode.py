#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes core/tokenizer/unicode.def: the properties of characters on which token ids depend.

    pip install --no-deps --target folder regex==2024.11.6              # Unicode 16.0
    pip download --no-deps --no-binary :all: unicodedata2==9.0.0.post4   # Unicode 9.0; unpack it
    PYTHONPATH=folder tools/make_unicode.py unicodedata2-9.0.0.post4/unicodedata2/py3/unicodedata_db.h \
        > core/tokenizer/unicode.def

The versions are those of the `tokenizers` library: its regular expressions (Oniguruma 6.9.10, and Rust's crate regex)
have the properties of Unicode 16.0, its normal forms (the crate unicode-normalization-alignments) those of 9.0, and its
pre-tokenizer Digits those of the Rust that compiled it. tests/interop/unicode_with_tokenizers.py compares all of them.

When `tokenizers` has newer ones:
  1. The versions above, and the output of this script in core/tokenizer/unicode.def.
  2. TT_UNICODE_VERSION in core/tokenizer/charset.h, which makes caches of tokens again.
  3. tests/interop/unicode_with_tokenizers.py compares every character; with --record it writes
     tests/unit/data/word_ends.json.
"""
import re
import sys

import regex
from regex import _regex_core

ALL = "".join(map(chr, range(0x110000)))
CATEGORIES = """Lu UppercaseLetter|Ll LowercaseLetter|Lt TitlecaseLetter|Lm ModifierLetter|Lo OtherLetter
Mn NonspacingMark|Mc SpacingMark|Me EnclosingMark|Nd DecimalNumber|Nl LetterNumber|No OtherNumber
Pc ConnectorPunctuation|Pd DashPunctuation|Ps OpenPunctuation|Pe ClosePunctuation|Pi InitialPunctuation
Pf FinalPunctuation|Po OtherPunctuation|Sm MathSymbol|Sc CurrencySymbol|Sk ModifierSymbol|So OtherSymbol
Zs SpaceSeparator|Zl LineSeparator|Zp ParagraphSeparator|Cc Control|Cf Format|Cs Surrogate|Co PrivateUse
Cn Unassigned"""
BINARY = "Alphabetic Uppercase Lowercase Emoji".split()
# The numbers of Unicode 17.0, which Rust's char::is_numeric has.
LATER_NUMBERS = [(0x11de0, 0x11dea), (0x16ff4, 0x16ff7)]


def matching(name):
    """The code points that have a property, as a list of [begin, end)."""
    edges = []
    for found in regex.finditer(rf"\p{{{name}}}+", ALL):
        edges.append((found.start(), found.end()))
    return edges


def scripts():
    """[(name, short name)] of all scripts."""
    names = {}
    for name, value in _regex_core.PROPERTIES["SCRIPT"][1].items():
        names.setdefault(value, set()).add(name.lower().replace("_", ""))
    for of_one in names.values():
        of_one = sorted(n for n in of_one if not re.fullmatch("qaa[ci]", n))
        short = next((n for n in of_one if len(n) == 4 and len(of_one) > 1), "")
        yield next(n for n in of_one if n != short), short


def assigned(header):
    """The code points that are assigned in the database of a unicodedata_db.h."""
    def numbers(text):
        return [int(n) for n in re.findall(r"\d+", text)]

    def array(name):
        return numbers(re.search(rf"{name}\[\] = {{(.*?)}};", header, re.S).group(1))

    records = re.search(r"_PyUnicode_Database_Records\[\] = {(.*?)\n};", header, re.S).group(1)
    category = [numbers(row)[0] for row in re.findall(r"{(.*?)}", records)]
    shift = int(re.search(r"#define SHIFT (\d+)", header).group(1))
    index1, index2 = array("index1"), array("index2")
    edges = []
    for code in range(0x110000):
        record = index2[(index1[code >> shift] << shift) + (code & ((1 << shift) - 1))]
        if category[record] == 0:
            continue
        if edges and edges[-1][1] == code:
            edges[-1] = (edges[-1][0], code + 1)
        else:
            edges.append((code, code + 1))
    return edges


def write(name, other, edges):
    """Each number is the distance to the one before: where a range begins, where it ends, and so on."""
    numbers, last = [], 0
    for edge in (e for pair in edges for e in pair):
        numbers.append(str(edge - last))
        last = edge
    line = f'PROPERTY("{name}", "{other}"'
    for number in numbers:
        if len(line) + len(number) + 2 > 118:
            print(line + ",")
            line = f"  {number}"
        else:
            line += f", {number}"
    print(line + ")")


def main():
    print(f"/* SPDX-License-Identifier: MIT\n *\n * Made by tools/make_unicode.py. Properties of Unicode 16.0, by name "
          "without case, spaces and underscores; Assigned9\n * of Unicode 9.0, and RustNumber of 17.0. The numbers are "
          "distances: to where a range begins, to its end, and so on.\n */")
    for row in CATEGORIES.replace("\n", "|").split("|"):
        short, name = row.split()
        write(name.lower(), short.lower(), matching(short))
    for name in BINARY:
        write(name.lower(), "", matching(name))
    for name, short in sorted(scripts()):
        if name not in ("unknown", "katakanaorhiragana"):
            write(name, short, matching(f"Script={name}"))
    with open(sys.argv[1], encoding="utf-8") as file:
        write("assigned9", "", assigned(file.read()))
    numbers = sorted(matching("N") + LATER_NUMBERS)
    write("rustnumber", "", numbers)


if __name__ == "__main__":
    main()

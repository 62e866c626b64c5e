#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""unicode_with_tokenizers.py TITAN: token ids of every character, alone and beside others, compared with `tokenizers`.

Needs the package tokenizers (no downloads; some minutes). For the patterns of known models, for normal forms and for
other parts of a tokenizer that ask what a character is, `titan data pack` and the library encode every assigned
character alone, after a space, and beside letters and digits. The merges of the tokenizer are such that the ids show
where words end. At the end the same for random text.

    unicode_with_tokenizers.py --record FILE     writes the data of unit/patterns, words_end_where_recorded
"""
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import zlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
O200K_UP, O200K_LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
PATTERNS = {
    "gpt2": [GPT2],
    "llama3": [ENDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + REST],
    "qwen2": [ENDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + REST],
    "cl100k": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|"
               r"\s*[\r\n]|\s+(?!\S)|\s"],
    "o200k": [rf"[^\r\n\p{{L}}\p{{N}}]?{O200K_UP}*{O200K_LOW}+{ENDS}?|[^\r\n\p{{L}}\p{{N}}]?{O200K_UP}+{O200K_LOW}*"
              rf"{ENDS}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{REST}"],
    "deepseek3": [r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
                  r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
                  r" ?[\p{P}\p{S}]+[\r\n]*|" + REST],
    "kimi": [r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
             r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + REST],
    "words": [r"\w+|[^\w\s]+", r"\d|\bx|\B[[:punct:]]|[[:word:]]+"],
    "brackets": [r"[[:alpha:]]+|[[:digit:]]|[[:upper:]]", r"[[:lower:]]|[[:cntrl:]]|[[:print:]]+|[[:^graph:]]"],
    "scripts": [r"[\p{Latin}\p{Cyrillic}]+|\p{Greek}+|\p{Hiragana}+|\p{Arabic}+|\p{Thai}+|\p{Hangul}", r"\p{Emoji}+"],
}
FORMS = ["NFC", "NFD", "NFKC", "NFKD"]


def beside(c):
    """One text for every place of a character."""
    return [c, " " + c, f"a{c}a", f"1{c}1", f"!{c}{c}\n{c}"]


def assigned():
    """The characters of the library's version of Unicode, except private ones, and every 50th code point."""
    every = "".join(c for c in map(chr, range(0x110000)) if not 0xd800 <= ord(c) < 0xe000)
    known = normalizers.Replace(Regex(r"\p{Cn}|\p{Co}"), "").normalize_str(every)
    return sorted(set(known) | set(every[::50]))


def byte_level(splits=None, normalizer=None, first=None):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    space = "\u0120"
    vocab = {c: i for i, c in enumerate(alphabet)}
    merges = []
    for c in alphabet:
        for left, right in ((c, "a"), ("a", c), (space, c), ("1", c), (c, "1"), (c, "!"), (c, c), ("!", c)):
            if left + right not in vocab:
                vocab[left + right] = len(vocab)
                merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab, merges))
    steps = [pre_tokenizers.Split(Regex(p), "isolated") for p in splits or []] + (first or [])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        steps + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not splits and not first)])
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def tokenizers():
    for name, patterns in PATTERNS.items():
        yield name, byte_level(patterns)
    for form in FORMS:
        yield form, byte_level(normalizer=getattr(normalizers, form)())
    yield "digits", byte_level(first=[pre_tokenizers.Digits(individual_digits=False)])
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("aa", single_word=True, normalized=False),
                          AddedToken("!!", lstrip=True, rstrip=True, normalized=False)])
    yield "added tokens", tokenizer


def pack(titan, tokenizer, texts, folder):
    """The ids of every text, by titan."""
    tokenizer.save(str(folder / "tokenizer.json"))
    with open(folder / "texts.jsonl", "w", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps({"text": text}) + "\n")
    subprocess.run([titan, "data", "pack", "--dataset", "jsonl", "--dataset-path", str(folder / "texts.jsonl"),
                    "--tokenizer", str(folder), "--out", str(folder / "out.tokens")], check=True, capture_output=True)
    return read_packed(folder / "out.tokens")


def read_packed(path):
    data = path.read_bytes()
    size, n, documents = struct.unpack_from("<iqq", data, 12)
    ids = struct.unpack_from(f"<{n}{'H' if size == 2 else 'I'}", data, 128)
    offsets = struct.unpack_from(f"<{documents + 1}q", data, (128 + n * size + 7) // 8 * 8)
    return [list(ids[a:b]) for a, b in zip(offsets, offsets[1:])]


def random_texts(n, seed=1):
    draw = random.Random(seed)
    pools = ["abc xyz  \n\r\t'sSlLdD012!?._-", "\u00e9\u0301\u0323\u0345\u00df\u017f\u212a\ufb01\u1e9e\u0130",
             "\u4e00\u4f60\u3042\u30a2\uac00\u1100\u1161\u11a8\uff21\u3000", "\u0663\u2167\u00bd\u00b2\U0001d7d8",
             "\U0001f642\U0001fa77\u200d\ufe0f\U0001f1e9"]
    for _ in range(n):
        text = ""
        for _ in range(draw.randrange(1, 40)):
            pool = draw.choice(pools)
            text += draw.choice(pool) if draw.random() < 0.85 else chr(draw.choice((draw.randrange(0x20, 0x3000),
                                                                                     draw.randrange(0xe000, 0x20000))))
        yield text


def compare(titan):
    bad = 0
    for name, tokenizer in tokenizers():
        texts = [text for c in assigned() for text in beside(c)] + list(random_texts(20000))
        with tempfile.TemporaryDirectory() as folder:
            ours = pack(titan, tokenizer, texts, pathlib.Path(folder))
        assert len(ours) == len(texts), (len(ours), len(texts))
        differ = []
        for at in range(0, len(texts), 100000):
            theirs = tokenizer.encode_batch_fast(texts[at:at + 100000], add_special_tokens=False)
            differ += [(t, a, b.ids) for t, a, b in zip(texts[at:], ours[at:], theirs) if a != b.ids]
        print(f"{name}: {len(texts)} texts, {len(differ)} differ", *(ascii(t) for t, _, _ in differ[:8]), flush=True)
        bad += len(differ)
    return bad


def sizes(patterns, text):
    splits = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns])
    return bytes(len(word.encode()) for word, _ in splits.pre_tokenize_str(text))


def record(file):
    """For every set of patterns, a checksum of the sizes of all words around many characters."""
    rows = []
    for name, patterns in PATTERNS.items():
        check = 0
        for c in map(chr, list(range(0x80)) + [c for c in range(0x80, 0x20000, 37) if not 0xd800 <= c < 0xe000]):
            check = zlib.crc32(sizes(patterns, "".join(beside(c))), check)
        rows.append({"name": name, "patterns": patterns, "crc32": check})
        print(name, check)
    text = ",\n".join(" " + json.dumps(row) for row in rows)
    pathlib.Path(file).write_text(f"[\n{text}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "--record":
        record(sys.argv[2])
    else:
        sys.exit(1 if compare(sys.argv[1]) else 0)

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""random_tokenizers.py TITAN [N [SEED]]: tokenizers of random parts encode random text as `tokenizers` does.

Needs the package tokenizers (no downloads; a minute for 100). Each tokenizer is trained on random text, with a
random normalizer, pre-tokenizer, model options and added tokens. `titan data pack` gives the same ids, or refuses
the file; the refusals are counted by their messages, which show whether they concern parts that titan lacks.
"""
import collections
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from unicode_with_tokenizers import PATTERNS, random_texts, read_packed

SPACE = "\u2581"
BEHAVIORS = ["isolated", "isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"]


def choose_normalizer(draw, depth=0):
    forms = [normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD()]
    kind = draw.randrange(9)
    if kind < 3:
        return None
    if kind < 5:
        return draw.choice(forms)
    if kind == 5:
        return normalizers.Replace(draw.choice([" ", "a", "  ", "\n", "é"]), draw.choice([SPACE, "", "b", " a"]))
    if kind == 6:
        return normalizers.Prepend(draw.choice([SPACE, "x", " "]))
    parts = [choose_normalizer(draw, depth + 1) for _ in range(draw.randrange(1, 3))] if depth < 2 else []
    return normalizers.Sequence([p for p in parts if p])


def choose_pre_tokenizer(draw):
    """The pre-tokenizer, and whether it spells words in bytes."""
    steps = []
    for _ in range(draw.randrange(0, 3)):
        kind = draw.randrange(4)
        if kind == 0:
            steps.append(pre_tokenizers.Digits(individual_digits=draw.random() < 0.5))
        elif kind == 1:
            steps.append(pre_tokenizers.Split(draw.choice([" ", "a", ".", "xy", "é"]), draw.choice(BEHAVIORS),
                                              draw.random() < 0.3))
        else:
            pattern = draw.choice(draw.choice(list(PATTERNS.values())))
            steps.append(pre_tokenizers.Split(Regex(pattern), draw.choice(BEHAVIORS), draw.random() < 0.3))
    if draw.random() < 0.6:
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=draw.random() < 0.3, use_regex=draw.random() < 0.5))
        return pre_tokenizers.Sequence(steps) if len(steps) > 1 else steps[0], True
    if draw.random() < 0.8:
        scheme = draw.choice(["always", "first", "never"])
        steps.insert(draw.randrange(len(steps) + 1),
                     pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=draw.random() < 0.7))
    return pre_tokenizers.Sequence(steps) if steps else None, False


def make(draw, texts):
    pre_tokenizer, in_bytes = choose_pre_tokenizer(draw)
    falls_back = not in_bytes and draw.random() < 0.5
    unknown = "<unk>" if draw.random() < 0.5 else None
    tokenizer = Tokenizer(models.BPE(unk_token=unknown, fuse_unk=draw.random() < 0.5, byte_fallback=falls_back,
                                     ignore_merges=draw.random() < 0.3))
    tokenizer.normalizer = choose_normalizer(draw)
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    special = (["<unk>"] if unknown else []) + ([f"<0x{b:02X}>" for b in range(256)] if falls_back else [])
    alphabet = pre_tokenizers.ByteLevel.alphabet() if in_bytes else []
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=draw.randrange(300, 900), initial_alphabet=alphabet, special_tokens=special, show_progress=False,
        limit_alphabet=1000 if in_bytes else 60))
    tokenizer.decoder = decoders.ByteLevel() if in_bytes else decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    saved = json.loads(tokenizer.to_str())
    saved["added_tokens"] = [t for t in saved["added_tokens"] if t["content"] == "<unk>"]  # bytes are no added tokens
    tokenizer = Tokenizer.from_str(json.dumps(saved))
    for _ in range(draw.randrange(0, 4)):
        flag = lambda p=0.3: draw.random() < p
        content = draw.choice(["<s>", "ab", "a", "é", "e\u0301", "\n\n", "<|x|>", "\ufb01", "12"])
        tokenizer.add_tokens([AddedToken(content, single_word=flag(), lstrip=flag(), rstrip=flag(),
                                         normalized=flag(0.5), special=flag(0.5))])
    return tokenizer


def main():
    titan = sys.argv[1]
    n = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    refused, bad, equal = collections.Counter(), 0, 0
    for i in range(n):
        draw = random.Random(seed * 100003 + i)
        texts = [t + draw.choice(["", " <s> ", "ab", "\ufb01 12", "<|x|>"]) + draw.choice(["", t]) for t in
                 random_texts(400, seed * 1000 + i)]
        tokenizer = make(draw, texts[:300])
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            tokenizer.save(str(folder / "tokenizer.json"))
            (folder / "texts.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
            run = subprocess.run([titan, "data", "pack", "--dataset", "jsonl", "--dataset-path",
                                  str(folder / "texts.jsonl"), "--tokenizer", str(folder), "--out",
                                  str(folder / "out.tokens")], capture_output=True, text=True)
            if run.returncode == 3:
                message = run.stderr.split("tokenizer.json: ")[-1].splitlines()[0]
                refused[re.sub(r"\(at byte \d+\)|'[^']*'", "…", message)] += 1
                continue
            assert run.returncode == 0, run.stderr
            ours = read_packed(folder / "out.tokens")
            differ = [(t, a, b.ids) for t, a, b in
                      zip(texts, ours, tokenizer.encode_batch(texts, add_special_tokens=False)) if a != b.ids]
            equal += not differ
            if differ:
                bad += 1
                saved = json.loads(tokenizer.to_str())
                del saved["model"]["vocab"], saved["model"]["merges"]
                print(f"tokenizer {i}: {len(differ)} of {len(texts)} differ, {json.dumps(saved)}\n ",
                      *(f"{ascii(t)} {a} {b}" for t, a, b in sorted(differ, key=lambda d: len(d[0]))[:1]), flush=True)
    print(f"{n} tokenizers: {equal} equal, {bad} differ, refused:")
    for message, count in refused.most_common():
        print(f"  {count} {message}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

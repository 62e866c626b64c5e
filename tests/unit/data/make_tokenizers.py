#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the small tokenizers of this folder and the ids that Hugging Face's `tokenizers` gives for awkward texts.

Needs the package tokenizers (no downloads; seconds). Each is trained on the King James Bible and some accented text:
    qwen_small.json          as Qwen3's: NFC, its regular expression, ByteLevel without one
    gpt2_prefix_small.json   as GPT-2's, with add_prefix_space
    nfkd_small.json          a sequence of NFD and NFKC, added tokens that are found in normalised text
NAME_golden.json holds [{"text", "ids"}, ...].
"""
import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+")
ACCENTED = ["Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva de crapaüter.",
            "Zwölf Boxkämpfer jagen Viktor quer über Sylt",
            "Pchnąć w tę łódź jeża lub ośm skrzyń fig", "Tiếng Việt có dấu", "한국어 글자", "日本語がタ゛メ"] * 20
ALL_BYTES = pre_tokenizers.ByteLevel.alphabet()

TEXTS = [
    "", " ", "Hello, my name is  Titan!\n\n  def f(x):\treturn 1234", "don't WE'LL I'M '\u017f 'S",
    "caf\u00e9 cafe\u0301 CAFE\u0301s nai\u0308ve",            # composed and not: the same ids with NFC
    "\u1112\u1161\u11ab\u1100\u1173\u11af \ud55c\uae00",       # Hangul from jamo
    "\u0041\u030a \u212b \u00c5", "\u2126 \u212a \u2000x",      # singletons: Angstrom, Ohm, Kelvin, en quad
    "q\u0307\u0323 q\u0323\u0307 s\u0323\u0307 \u1e9b\u0323",   # marks in another order
    "\u0958 \u0915\u093c \u2adc \ufb1d",                        # excluded from composition
    "\u0344 \u0340 \u0341 \u0374 \u037e \u0387",
    "\u0301start a\u0301\u0301\u0327b", "ti\u1ebfng Vie\u0323\u0302t", "\U0001d15e \U0002f800 \ufa10",
    "\ufb01 \u2460 \uff21\uff42 \u00bd \u33c2 \u1d43", "a\u180eb \u3000c", "12345 \u0663\u00bd\u2167 1.5e-3",
    "trail  ", " lead", "\r\n\r\n x\n \n", "\u4f60\u597d\U0001f642\U0001f1e9\U0001f1ea e\u200d\u0301",
    "<|endoftext|>caf\u0065\u0301<|im_start|>user\n\u0065\u0301<|im_end|>", "x\u00e9<|endoftext|>\u0301y",
    "and it came to pass in the be\u0301ginning", "\u0e01\u0e33 \u0f71\u0f72 \u0dcf\u0dca",
    "tags: <caf\u00e9> <cafe\u0301> <\ufb01>",
]


def corpus():
    lines = (HERE.parents[2] / "assets" / "kjv_train.jsonl").read_text(encoding="utf-8").splitlines()[:40]
    return [json.loads(line)["text"] for line in lines] + ACCENTED


def save(name, tokenizer, special):
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=ALL_BYTES, show_progress=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_tokens(special)
    tokenizer.save(str(HERE / f"{name}.json"), pretty=False)
    golden = [{"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids} for text in TEXTS]
    lines = ",\n".join(" " + json.dumps(case) for case in golden)
    (HERE / f"{name}_golden.json").write_text(f"[\n{lines}\n]\n")


def qwen():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    save("qwen_small", tokenizer, [AddedToken(text, special=True, normalized=False)
                                   for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")])


def gpt2_prefix():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    save("gpt2_prefix_small", tokenizer, [AddedToken("<|endoftext|>", special=True, normalized=True)])


def nfkd():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.NFKC()])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    save("nfkd_small", tokenizer, [
        AddedToken("<cafe\u0301>", normalized=True), AddedToken("<\ufb01>", normalized=True),
        AddedToken("\u2460", normalized=False), AddedToken("ginning", normalized=True, lstrip=True)])


if __name__ == "__main__":
    qwen()
    gpt2_prefix()
    nfkd()

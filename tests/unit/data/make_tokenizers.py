#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the small tokenizers of this folder and the ids that Hugging Face's `tokenizers` gives for awkward texts.

Needs the package tokenizers (no downloads; seconds). Each is trained on the King James Bible and some accented text:
    qwen_small.json          as Qwen3's: NFC, its regular expression, ByteLevel without one
    gpt2_prefix_small.json   as GPT-2's, with add_prefix_space
    nfkd_small.json          a sequence of NFD and NFKC, added tokens that are found in normalised text
    family_tokenizers.json   all parts but the vocabulary as the families of models have them; of two vocabularies
NAME_golden.json holds [{"text", "ids"}, ...].
"""
import json
import pathlib

from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors,
                        trainers)

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


# --- families ---

ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
CL100K = ENDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + REST
UP, LOW = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UP}*{LOW}+{ENDS}?|[^\r\n\p{{L}}\p{{N}}]?{UP}+{LOW}*{ENDS}?|\p{{N}}{{1,3}}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + REST)
HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
SPACE = "\u2581"
FAMILY_TEXTS = [
    "", " ", "\n", "In the beginning  God created\n\n\n the\theaven, 1234567 and 12.5e-3.",
    "WE'LL don't \u2019s I'm\r\n\r\n  def f(x):\n        return x[0] != 'a'  # \u00e9e\u0301 ",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002 \ud55c\uad6d\uc5b4 \u30c6\u30b9\u30c8 \u0663\u0664 \u2167 \u00bd "
    "\U0001f642\U0001f1e9\U0001f1ea",
    "   \u2581\u2581x <0x0A> \u00a0\u2003y\ufffdz ", "  <END> and<END>\n <TURN> \n\nthe <END>x<BEGIN>",
    "HTTPServer camelCase O'Neil snake_case //http://a.b/c?d=e&f\n///", "q\u0307\u0323 A\u030a \u1100\u1161 \u212b\ufb01",
]


def added(*tokens, **flags):
    """The name of the token does not matter: another name would only need other texts."""
    return [AddedToken(token, normalized=False, special=True, **flags) for token in tokens]


def template(before):
    return processors.TemplateProcessing(single=f"{before} $A".strip(), pair=f"{before} $A $B".strip(),
                                         special_tokens=[("<BEGIN>", 0), ("<END>", 1)])


def byte_level(*steps, use_regex=False):
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)
    return pre_tokenizers.Sequence([*steps, last]) if steps else last


def isolated(*patterns):
    return [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]


def marked():
    return decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])


def digits():
    return pre_tokenizers.Digits(individual_digits=True)


def vocabularies():
    """Merges across words, so that the ids show where words end: of bytes, and of characters and bytes."""
    lines = [line.replace(". ", ".\n\n") for line in corpus()[:4]]
    lines += [f"{text} {text[::-1]}" for text in FAMILY_TEXTS] * 40 + ["1234567 12345 67 123\n\n\n"] * 200
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = byte_level()
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(
        vocab_size=440, initial_alphabet=ALL_BYTES, show_progress=False, special_tokens=["<BEGIN>", "<END>", "<TURN>"]))
    yield "bytes", json.loads(tokenizer.to_str())["model"]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.train_from_iterator([line.replace(" ", SPACE) for line in lines], trainers.BpeTrainer(
        vocab_size=460, show_progress=False, limit_alphabet=70, special_tokens=[
            "<BEGIN>", "<END>", "<TURN>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]))
    yield "characters", json.loads(tokenizer.to_str())["model"]


def family_parts():
    """Name: (vocabulary, normalizer, pre-tokenizer, post-processor, decoder, added tokens, options of the model)."""
    cl100k = pre_tokenizers.Split(Regex(CL100K), "removed", invert=True)
    all_three, plain = added("<BEGIN>", "<END>", "<TURN>"), decoders.ByteLevel()
    spaces = [AddedToken(" " * n, normalized=True) for n in (4, 3, 2)]
    llama2 = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    gemma = pre_tokenizers.Split(" ", "merged_with_previous")
    dummy = [normalizers.Replace("<!dummy-prefix!>", SPACE), normalizers.Replace(" ", SPACE)]
    letters = "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba"
    return {
        "gemma": ("characters", normalizers.Replace(" ", SPACE), gemma, template("<BEGIN>"), marked(),
                  all_three + [AddedToken(text, normalized=False) for text in ("\n\n", SPACE * 2, "\t")], {}),
        "phi3": ("characters", llama2, None, template(""), decoders.Sequence([marked(), decoders.Strip(" ", 1, 0)]),
                 added("<BEGIN>", "<unk>") + added("<END>", "<TURN>", rstrip=True), {}),
        "chatglm": ("characters", normalizers.Sequence(dummy),
                    pre_tokenizers.Split("<!dummy-prefix!>", "merged_with_next"), template("<BEGIN> <END>"),
                    decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(SPACE)]), all_three, {}),
        "qwen2": ("bytes", normalizers.NFC(), byte_level(*isolated(QWEN)), None, plain, all_three, {}),
        "phi4": ("bytes", None, byte_level(cl100k), None, plain,
                 added("<BEGIN>") + added("<END>", "<TURN>", lstrip=True, rstrip=True), {}),
        "gpt_neox": ("bytes", normalizers.NFC(), byte_level(use_regex=True), None, plain, all_three + spaces, {}),
        "starcoder2": ("bytes", None, byte_level(digits(), use_regex=True), None, plain, all_three, {}),
        "cohere": ("bytes", normalizers.NFC(), byte_level(digits(), use_regex=True), template("<BEGIN>"), plain,
                   all_three, {}),
        "cohere2": ("bytes", normalizers.NFC(), byte_level(*isolated(r"\d{1,3}(?=(?:\d{3})*\b)", O200K)),
                    template("<BEGIN>"), plain, all_three, {}),
        "glm4": ("bytes", None, byte_level(*isolated(CL100K)),
                 processors.Sequence([processors.ByteLevel(trim_offsets=False), template("<BEGIN> <END>")]), plain,
                 all_three, {"ignore_merges": True}),
        "seed_oss": ("bytes", None, byte_level(*isolated(
            ENDS + "|[^\r\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")),
            None, plain, all_three, {}),
        "deepseek_llm": ("bytes", None, byte_level(*isolated(
            "[\r\n]", f"\\s?[{letters}]+", "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", "\\s+$",
            HAN), digits()), template("<BEGIN>"), plain, all_three, {}),
        **{f"split_{behavior}{'_inverted' * invert}": (
            "bytes", None, byte_level(pre_tokenizers.Split(Regex(r"[ \n]|the|\d\d"), behavior, invert=invert)), None,
            plain, all_three, {}) for behavior, invert in (("merged_with_previous", False), ("merged_with_next", False),
                                                    ("contiguous", True), ("removed", False))},
    }


def families():
    models_of, found = dict(vocabularies()), {}
    for name, (of, normalizer, pre_tokenizer, processor, decoder, tokens, options) in family_parts().items():
        tokenizer = Tokenizer.from_str(json.dumps({"version": "1.0", "added_tokens": [], "model": models_of[of]
                                                   | options}))
        tokenizer.normalizer, tokenizer.decoder = normalizer, decoder
        if pre_tokenizer:
            tokenizer.pre_tokenizer = pre_tokenizer
        if processor:
            tokenizer.post_processor = processor
        tokenizer.add_tokens(tokens)
        saved = json.loads(tokenizer.to_str())
        keys = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens")
        parts = {key: saved[key] for key in keys}
        ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in FAMILY_TEXTS]
        if of == "characters":  # bytes that are no text
            ids.append([tokenizer.token_to_id(t) for t in ("<0xF0>", "<0x9F>", "<0x41>", SPACE, "<0xE6>", "<0x0A>")])
        texts = [tokenizer.decode(one, skip_special_tokens=False) for one in ids]  # null: the text that was encoded
        texts = [None if i < len(FAMILY_TEXTS) and text == FAMILY_TEXTS[i] else text for i, text in enumerate(texts)]
        found[name] = {"of": of, "parts": parts, "options": options, "begin": tokenizer.encode("").ids, "ids": ids,
                       "texts": texts}
    compact = {"separators": (",", ":")}
    rows = ",\n".join(f' "{key}": {json.dumps(value, **compact)}' for key, value in (
        {"texts": FAMILY_TEXTS} | models_of).items())
    (HERE / "family_tokenizers.json").write_text(
        "{\n" + rows + ',\n "families": {\n' +
        ",\n".join(f'  "{name}": {json.dumps(of, **compact)}' for name, of in found.items()) + "\n }\n}\n")


if __name__ == "__main__":
    families()
    qwen()
    gpt2_prefix()
    nfkd()

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares a tokenizer that titan trained with one that the `tokenizers` library trains on the same text.

    train_tokenizer.py FOLDER CORPUS VOCAB PATTERN

FOLDER is what `titan data tokenizer --vocab VOCAB --pattern PATTERN` made of the JSON lines in CORPUS with the tokens
<s> and </s>. Vocabulary and merges must be the same, and transformers must load the folder and encode the same. Exit
code 77 (skipped) when the libraries cannot be imported.
"""
import json
import sys

try:
    import transformers
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)


def main(folder, corpus, vocab, pattern):
    ours = json.load(open(folder + "/tokenizer.json"))
    docs = [json.loads(line)["text"] for line in open(corpus)]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern == "gpt2")
    theirs = Tokenizer(models.BPE())
    theirs.pre_tokenizer = byte_level
    if pattern != "gpt2":
        regex = ours["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
        theirs.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(regex), "isolated"), byte_level])
    theirs.train_from_iterator(docs, trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False))
    model = json.loads(theirs.to_str())["model"]
    assert model["vocab"] == ours["model"]["vocab"], "the vocabularies differ"
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    assert merges == ours["model"]["merges"], "the merges differ"
    loaded = transformers.AutoTokenizer.from_pretrained(folder)
    assert (loaded.bos_token, loaded.eos_token) == ("<s>", "</s>"), loaded
    for text in [*docs[:50], "<s>\u00e9\u4e2d \U0001f600  x\n\n\ty</s>", "12345 don't"]:
        ids = loaded.encode(text, add_special_tokens=False)
        assert ids == theirs.encode(text).ids, text
        assert loaded.decode(ids) == text, text


main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])

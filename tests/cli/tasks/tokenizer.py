#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the folder of a tokenizer whose tokens are bytes: `tokenizer.py FOLDER`. BOS is 1, EOS 2."""
import json
import os
import sys

printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
letters = {byte: chr(byte) for byte in printed}
for byte in range(256):
    letters.setdefault(byte, chr(256 + len([one for one in letters if one not in printed])))
vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
for byte in range(256):
    vocabulary[letters[byte]] = len(vocabulary)
special = [{"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True} for token, number in list(vocabulary.items())[:3]]
first = {"SpecialToken": {"id": "<s>", "type_id": 0}}
tokenizer = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "post_processor": {"type": "TemplateProcessing", "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
                       "pair": [first, {"Sequence": {"id": "A", "type_id": 0}},
                                {"Sequence": {"id": "B", "type_id": 1}}],
                       "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
    "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
              "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocabulary, "merges": []},
}
with open(os.path.join(sys.argv[1], "tokenizer.json"), "w", encoding="utf-8") as to:
    json.dump(tokenizer, to)
with open(os.path.join(sys.argv[1], "tokenizer_config.json"), "w", encoding="utf-8") as to:
    json.dump({"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}, to)

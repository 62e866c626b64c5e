#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Chat data that titan packed, compared with transformers' apply_chat_template.

    chat_with_transformers.py make LINES SEED           conversations with random texts, one a line
    chat_with_transformers.py compare LINES FOLDER FILE  FILE is what `titan data pack` made of LINES with the tokenizer
                                                         and the chat template of FOLDER

A token is learned if some of its characters belong to an answer or to the token that ends it.
"""
import json
import random
import re
import struct
import sys

import transformers

PARTS = ["And the evening", "was", "\n", "\n\n", " ", "  ", "\t", "Größe", "大小", "\U0001f600", "\u3000", "\u00a0",
         "12345", "<think>", "</think>", "<think>\nso\n</think>\n\n", "<tool_response>", "</tool_response>",
         "{\"a\": [1]}", "it's", "\r\n"]
ANSWER = re.compile(r"<\|start_header_id\|>assistant<\|end_header_id\|>\n\n(.*?<\|eot_id\|>)|"
                    r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)", re.DOTALL)


def text(pick):
    return "".join(pick.choice(PARTS) for _ in range(pick.randint(0, 6)))


def message(pick, role):
    found = {"role": role, "content": text(pick)}
    if role == "assistant" and pick.random() < 0.2:
        found["reasoning_content"] = text(pick)
    return found


def make(lines, seed):
    pick = random.Random(seed)
    with open(lines, "w") as out:
        for _ in range(400):
            roles = pick.choices(["user", "assistant", "system"], [4, 4, 1], k=pick.randint(0, 5))
            roles.insert(pick.randint(0, len(roles)), "assistant")
            out.write(json.dumps({"messages": [message(pick, role) for role in roles]},
                                 ensure_ascii=pick.random() < 0.5) + "\n")


def read(path):
    """The documents of a token file: their ids, and for each id whether it is learned."""
    data = open(path, "rb").read()
    magic, version, size, n, documents = struct.unpack_from("<8sIIqq", data)
    assert magic == b"titanTOK" and version == 2, (magic, version)
    ids = struct.unpack_from(f"<{n}{'H' if size == 2 else 'I'}", data, 128)
    at = (128 + n * size + 7) // 8 * 8
    offsets = struct.unpack_from(f"<{documents + 1}q", data, at)
    mask = data[at + 8 * (documents + 1):]
    learned = [mask[i // 8] >> i % 8 & 1 for i in range(n)]
    return [(list(ids[a:b]), learned[a:b]) for a, b in zip(offsets, offsets[1:])]


def compare(lines, folder, path):
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    found = read(path)
    conversations = [json.loads(line)["messages"] for line in open(lines)]
    assert len(found) == len(conversations), (len(found), len(conversations))
    for messages, (ids, learned) in zip(conversations, found):
        written = tokenizer.apply_chat_template(messages, tokenize=False)
        wanted = tokenizer.apply_chat_template(messages, return_dict=True)["input_ids"]
        assert ids == wanted, (messages, ids, wanted)
        encoded = tokenizer(written, add_special_tokens=False, return_offsets_mapping=True)
        assert encoded["input_ids"] == wanted, messages
        spans = [match.span(match.lastindex) for match in ANSWER.finditer(written)]
        marks = [int(any(begin < b and a < end for a, b in spans)) for begin, end in encoded["offset_mapping"]]
        assert learned == marks, (messages, learned, marks)
    print(f"{len(found)} conversations, {sum(map(len, (ids for ids, _ in found)))} tokens")


if __name__ == "__main__":
    {"make": make, "compare": compare}[sys.argv[1]](*sys.argv[2:])

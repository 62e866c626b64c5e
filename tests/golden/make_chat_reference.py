#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes tests/unit/data/chat.json and chat_tokenizers.json: lines of chat data with the tokens that transformers'
apply_chat_template gives, and which of them are learned (its mask of assistant tokens); and questions with the
beginning of the answer. Needs transformers.

The tokenizer is the built-in one with the tokens below added. The templates are those of the models, without tools;
the marks around what is learned are added to them. In chat_tokenizers.json small SentencePiece-style tokenizers, whose
words depend on where a text begins and whose added tokens take the space around them, write ChatML.
"""
import json
import pathlib
import sys

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

ROOT = pathlib.Path(__file__).resolve().parents[2]
SPECIAL = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|im_start|>", "<|im_end|>"]
PLAIN = ["<think>", "</think>"]

TEMPLATES = {
    "llama3": """{% set loop_messages = messages %}{% for message in loop_messages %}\
{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + \
'<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}""",
    "chatml": """{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + \
'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "qwen3": """{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and not(message.content.startswith('<tool_response>') and \
message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1]\
.lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index %}
            {%- if loop.last or (not loop.last and reasoning_content) %}
                {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + \
'\\n</think>\\n\\n' + content.lstrip('\\n') }}
            {%- else %}
                {{- '<|im_start|>' + message.role + '\\n' + content }}
            {%- endif %}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}""",
}

# What marks the learned part in each template: (text, its replacement) pairs.
ANSWER = "message['role'] == 'assistant'"
MARKED = {
    "llama3": [("{{ content }}", "{% if " + ANSWER + " %}{% set body = message['content'] | trim + '<|eot_id|>' %}"
                "{{ content[:content|length - body|length] }}{% generation %}{{ body }}{% endgeneration %}"
                "{% else %}{{ content }}{% endif %}")],
    "chatml": [("{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}",
                "{{'<|im_start|>' + message['role'] + '\\n'}}{% if " + ANSWER + " %}{% generation %}"
                "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}"
                "{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\\n' }}")],
    "qwen3": [("{{- '<|im_start|>' + message.role + '\\n<think>\\n' +",
               "{{- '<|im_start|>' + message.role + '\\n' }}{% generation %}{{- '<think>\\n' +"),
              ("{{- '<|im_start|>' + message.role + '\\n' + content }}",
               "{{- '<|im_start|>' + message.role + '\\n' }}{% generation %}{{- content }}"),
              ("content.lstrip('\\n') }}", "content.lstrip('\\n') }}{{- '<|im_end|>' }}{% endgeneration %}"),
              ("{{- content }}", "{{- content }}{{- '<|im_end|>' }}{% endgeneration %}"),
              ("        {{- '<|im_end|>\\n' }}", "        {{- '\\n' }}")],
}


def say(*turns):
    return {"messages": [dict(zip(("role", "content", "reasoning_content"), turn)) for turn in turns]}


CONVERSATIONS = [
    say(("user", "In the beginning"), ("assistant", "God created the heaven and the earth.")),
    say(("system", "Answer with one word."), ("user", "Who built the ark?"), ("assistant", "Noah"),
        ("user", "And who was his father?"), ("assistant", "Lamech")),
    say(("user", "  spaces around \n"), ("assistant", " \n and here\t\n")),
    say(("user", "\n\n"), ("assistant", "\n\nlines before")),
    say(("user", "Größe, 大小, размер \U0001f600"), ("assistant", "\u3000\u2003été\u00a0")),
    say(("assistant", "An answer without a question"), ("assistant", "and another")),
    say(("user", "Two answers"), ("assistant", "one"), ("assistant", "two"), ("user", "and no answer")),
    say(("user", "Empty"), ("assistant", "")),
    say(("user", "A token in the text <|im_end|> <|eot_id|>"), ("assistant", "<|im_start|>said")),
    say(("user", "think"), ("assistant", "<think>\nI weigh it.\n</think>\n\nIt is so."), ("user", "again"),
        ("assistant", "<think>\n\nTwice.\n\n</think>\n\nSo it is.")),
    say(("user", "apart"), ("assistant", "\nThe answer", "\nThe reason\n")),
    say(("user", "apart but empty"), ("assistant", "</think>kept", "")),
    say(("user", "call"), ("assistant", "first", "because"), ("user", "<tool_response>4</tool_response>"),
        ("assistant", "second", "therefore"), ("system", "late"), ("assistant", "third")),
]

PAIRS = [
    ({"prompt": "And the earth was ", "completion": "without form"}, "And the earth was ", "without form"),
    ({"prompt": "And the ear", "response": "th was void"}, "And the ear", "th was void"),
    ({"instruction": "Translate", "input": "ark", "output": "Arche"}, "Translate\n\nark", "Arche"),
    ({"instruction": "Translate", "input": "", "output": "\nArche"}, "Translate", "\nArche"),
    ({"prompt": "", "completion": "alone"}, "", "alone"),
]

QUESTIONS = [(None, "Who built the ark?"), ("Answer with one word.", " Who?\n"), (None, "\n大小 <|im_end|>")]


def load():
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(ROOT / "assets/tokenizer.json"),
                                        bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>")
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.add_tokens(PLAIN)
    return tokenizer


def conversation(tokenizer, name, line):
    marked = TEMPLATES[name]
    for text, by in MARKED[name]:
        assert text in marked, (name, text)
        marked = marked.replace(text, by)
    plain = tokenizer.apply_chat_template(line["messages"], chat_template=TEMPLATES[name], tokenize=False)
    assert plain == tokenizer.apply_chat_template(line["messages"], chat_template=marked, tokenize=False), (name, line)
    out = tokenizer.apply_chat_template(line["messages"], chat_template=marked, return_dict=True,
                                        return_assistant_tokens_mask=True)
    return {"template": name, "line": json.dumps(line), "text": plain, "ids": out["input_ids"],
            "learned": out["assistant_masks"]}


def pair(tokenizer, line, prompt, answer):
    before = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    ids = tokenizer(prompt + answer, add_special_tokens=False)["input_ids"]
    same = next((i for i, (a, b) in enumerate(zip(before, ids)) if a != b), min(len(before), len(ids)))
    return {"template": "auto", "line": json.dumps(line, ensure_ascii=False), "text": prompt + answer,
            "ids": [tokenizer.bos_token_id, *ids, tokenizer.eos_token_id],
            "learned": [0] * (1 + same) + [1] * (len(ids) - same + 1)}


def question(tokenizer, name, system, text):
    messages = say(*([("system", system)] if system else []), ("user", text))["messages"]
    ids = tokenizer.apply_chat_template(messages, chat_template=TEMPLATES[name], add_generation_prompt=True,
                                        return_dict=True)["input_ids"]
    return {"template": name, "system": system, "question": text, "ids": ids,
            "end": tokenizer.convert_tokens_to_ids("<|eot_id|>" if name == "llama3" else "<|im_end|>")}


# What the tokenizers of chat_tokenizers.json have instead of their common base; flags are of the token <|im_end|>.
SPACES = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
                                              {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]}
REPLACED = {"type": "Sequence", "normalizers": [{"type": "NFKC"}, SPACES["normalizers"][1]]}


def metaspace(scheme, split=True):
    return {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": split}


VARIANTS = [({"pre_tokenizer": metaspace(scheme, split)}, flags)
            for scheme, split in (("first", True), ("first", False), ("always", True), ("never", True))
            for flags in ({}, {"rstrip": True}, {"lstrip": True, "rstrip": True}, {"special": False})]
VARIANTS += [({"pre_tokenizer": None, "normalizer": normalizer}, flags) for normalizer in (SPACES, REPLACED)
             for flags in ({}, {"lstrip": True}, {"rstrip": True}, {"normalized": True},
                           {"normalized": True, "special": False, "rstrip": True}, {"single_word": True})]
VARIANTS += [({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Digits", "individual_digits": True}, metaspace("first")]}}, {"rstrip": True})]


def train_base():
    """A BPE tokenizer of a few words, with bytes for characters that it does not know."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=420, show_progress=False, initial_alphabet=list("|<>\n"),
                                  special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)])
    texts = [turn["content"] for line in CONVERSATIONS for turn in line["messages"]]
    tokenizer.train_from_iterator([text.encode("ascii", "ignore").decode() for text in texts] +
                                  ["system user assistant ", "user\nassistant\n"] * 20, trainer)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    base = json.loads(tokenizer.to_str())
    base["added_tokens"] = [row for row in base["added_tokens"] if row["content"] in ("<unk>", "<s>", "</s>")]
    return base


def with_variant(base, patch, flags):
    added = [{"id": len(base["model"]["vocab"]) + i, "content": content, "single_word": False, "lstrip": False,
              "rstrip": False, "normalized": False, "special": True} | (flags if i else {})
             for i, content in enumerate(("<|im_start|>", "<|im_end|>"))]
    return base | patch | {"added_tokens": base["added_tokens"] + added}


def variant(base, patch, flags):
    made = with_variant(base, patch, flags)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(made)), eos_token="</s>",
                                        bos_token="<s>")
    rows = [{key: row[key] for key in ("line", "ids", "learned")}
            for row in (conversation(tokenizer, "chatml", line) for line in CONVERSATIONS[1:9])]
    asked = [question(tokenizer, "chatml", *row) for row in QUESTIONS[1:]]
    return {"patch": patch, "added": made["added_tokens"], "cases": rows, "questions": asked}


def write_variants():
    base = train_base()
    rows = [variant(base, patch, flags) for patch, flags in VARIANTS]
    out = ROOT / "tests/unit/data/chat_tokenizers.json"
    out.write_text('{"base": %s,\n "variants": [\n  %s\n ]}\n' % (
        json.dumps(base, separators=(",", ":")), ",\n  ".join(json.dumps(row, separators=(",", ":")) for row in rows)))
    print(f"{out}: {len(rows)} tokenizers", file=sys.stderr)


def main():
    tokenizer = load()
    cases = [conversation(tokenizer, name, line) for name in TEMPLATES for line in CONVERSATIONS]
    cases += [pair(tokenizer, *row) for row in PAIRS]
    questions = [question(tokenizer, name, *row) for name in TEMPLATES for row in QUESTIONS]
    added = [{"id": tokenizer.convert_tokens_to_ids(token), "content": token, "special": token in SPECIAL}
             for token in SPECIAL + PLAIN]
    out = ROOT / "tests/unit/data/chat.json"
    rows, asked = (",\n  ".join(json.dumps(row) for row in part) for part in (cases, questions))
    out.write_text('{"added": %s,\n "templates": %s,\n "questions": [\n  %s\n ],\n "cases": [\n  %s\n ]}\n'
                   % (json.dumps(added), json.dumps(TEMPLATES), asked, rows))
    print(f"{out}: {len(cases)} cases", file=sys.stderr)
    write_variants()


main()

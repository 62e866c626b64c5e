#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes tests/unit/data/chat.json and chat_tokenizers.json: lines of chat data with the tokens that transformers'
apply_chat_template gives, and which of them are learned (its mask of assistant tokens); and questions with the
beginning of the answer. Needs transformers.

The tokenizer is the built-in one with the tokens below added. The templates are those of the models, without tools;
the marks around what is learned are added to them. In chat_tokenizers.json small SentencePiece-style tokenizers, whose
words depend on where a text begins and whose added tokens take the space around them, write ChatML. chat_families.json
has the texts that the templates of more families give (without tools, documents and images), and the learned parts.
"""
import datetime
import json
import pathlib
import re
import sys

import jinja2
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

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


class Date(datetime.datetime):
    """The date that titan's templates have."""
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime(2024, 7, 26)


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


def load(special=SPECIAL, plain=PLAIN):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(ROOT / "assets/tokenizer.json"),
                                        bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>")
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    if plain:
        tokenizer.add_tokens(plain)
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


# Name: the tokens that it writes, the beginning of an answer, its end, and the template.
ROLES = "raise_exception('Conversation roles must alternate user/assistant/user/assistant/...')"
FAMILIES = {
    "gemma2": (["<start_of_turn>", "<end_of_turn>"], "<start_of_turn>model\n", "<end_of_turn>", """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ """ + ROLES + """ }}\
{% endif %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}\
{% endif %}{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""),
    "gemma3": (["<start_of_turn>", "<end_of_turn>"], "<start_of_turn>model\n", "<end_of_turn>", """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ """ + ROLES + """ }}
    {%- endif -%}
    {%- if (message['role'] == 'assistant') -%}
        {%- set role = "model" -%}
    {%- else -%}
        {%- set role = message['role'] -%}
    {%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
"""),
    "phi3": (["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"], "<|assistant|>\n", "<|end|>", """\
{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}{{'<|system|>\\n' + \
message['content'] + '<|end|>\\n'}}{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + \
'<|end|>\\n'}}{% elif message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}\
{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""),
    "phi4": (["<|im_start|>", "<|im_sep|>", "<|im_end|>"], "<|im_start|>assistant<|im_sep|>", "<|im_end|>", """\
{% for message in messages %}{% if (message['role'] == 'system') %}{{'<|im_start|>system<|im_sep|>' + \
message['content'] + '<|im_end|>'}}{% elif (message['role'] == 'user') %}{{'<|im_start|>user<|im_sep|>' + \
message['content'] + '<|im_end|>'}}{% elif (message['role'] == 'assistant') %}{{'<|im_start|>assistant<|im_sep|>' + \
message['content'] + '<|im_end|>'}}{% endif %}{% endfor %}{% if add_generation_prompt %}\
{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"""),
    "olmo2": (["<|system|>", "<|user|>", "<|assistant|>"], "<|assistant|>\n", "<|end_of_text|>", """\
{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\\n' + \
message['content'] + '\\n' }}{% elif message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + '\\n' }}\
{% elif message['role'] == 'assistant' %}{% if not loop.last %}{{ '<|assistant|>\\n' + message['content'] + eos_token \
+ '\\n' }}{% else %}{{ '<|assistant|>\\n' + message['content'] + eos_token }}{% endif %}{% endif %}\
{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}"""),
    "granite": (["<|start_of_role|>", "<|end_of_role|>"], "<|start_of_role|>assistant<|end_of_role|>",
                "<|end_of_text|>", """{%- if messages[0]['role'] == 'system' %}
{%- set system_message = messages[0]['content'] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set system_message = "Knowledge Cutoff Date: April 2024.\\nToday's Date: " + \
strftime_now('%B %d, %Y') + ".\\nYou are Granite, developed by IBM." %}{%- set loop_messages = messages %}{%- endif %}
{{- '<|start_of_role|>system<|end_of_role|>' + system_message + '<|end_of_text|>\\n' }}
{%- for message in loop_messages %}
    {{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + message['content'] + '<|end_of_text|>\\n' }}
    {%- if loop.last and add_generation_prompt %}
        {{- '<|start_of_role|>assistant<|end_of_role|>' }}
    {%- endif %}
{%- endfor %}"""),
    "cohere": (["<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>",
                "<|SYSTEM_TOKEN|>"], "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>", """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}\
{% set system_message = messages[0]['content'] %}{% elif false == true %}{% set loop_messages = messages %}\
{% set system_message = 'You are Command-R.' %}{% else %}{% set loop_messages = messages %}\
{% set system_message = false %}{% endif %}{% if system_message != false %}{{ '<|START_OF_TURN_TOKEN|>\
<|SYSTEM_TOKEN|>' + system_message + '<|END_OF_TURN_TOKEN|>' }}{% endif %}{% for message in loop_messages %}\
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ """ + ROLES + """ }}{% endif %}\
{% set content = message['content'] %}{% if message['role'] == 'user' %}{{ '<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' + \
content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% elif message['role'] == 'assistant' %}{{ '<|START_OF_TURN_TOKEN|>\
<|CHATBOT_TOKEN|>'  + content.strip() + '<|END_OF_TURN_TOKEN|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}\
{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{% endif %}"""),
    "glm4": (["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"], "<|assistant|>\n", "<|user|>", """\
[gMASK]<sop>{%- for m in messages %}{%- if m.role == 'system' %}<|system|>
{{ m.content }}{%- elif m.role == 'user' %}<|user|>
{{ m.content }}{%- elif m.role == 'assistant' %}<|assistant|>
{{ m.content }}{%- endif %}{%- endfor %}{% if add_generation_prompt %}<|assistant|>
{% endif %}"""),
    "smollm3": (["<|im_start|>", "<|im_end|>"], "<|im_start|>assistant\n", "<|im_end|>", """\
{%- set reasoning_mode = "/think" if enable_thinking is not defined or enable_thinking else "/no_think" -%}
{%- if messages[0].role == "system" -%}
  {%- set system_message = messages[0].content -%}
  {%- if "/no_think" in system_message -%}{%- set reasoning_mode = "/no_think" -%}
  {%- elif "/think" in system_message -%}{%- set reasoning_mode = "/think" -%}{%- endif -%}
  {%- set custom_instructions = system_message.replace("/no_think", "").replace("/think", "").rstrip() -%}
{%- endif -%}
{{- "<|im_start|>system\\n## Metadata\\n\\nToday Date: " + strftime_now("%d %B %Y") + "\\nReasoning Mode: " -}}
{{- reasoning_mode + "\\n\\n" -}}
{%- if custom_instructions -%}{{- "## Custom Instructions\\n\\n" + custom_instructions + "\\n\\n" -}}{%- endif -%}
{{- "<|im_end|>\\n" -}}
{%- for message in messages -%}
  {%- set content = message.content if message.content is string else "" -%}
  {%- if message.role == "user" -%}{{ "<|im_start|>" + message.role + "\\n"  + content + "<|im_end|>\\n" }}
  {%- elif message.role == "assistant" -%}
    {% generation %}
    {%- if reasoning_mode == "/think" -%}
      {{ "<|im_start|>assistant\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
    {%- else -%}
      {{ "<|im_start|>assistant\\n" + "<think>\\n\\n</think>\\n" + content.lstrip("\\n") + "<|im_end|>\\n" }}
    {%- endif -%}
    {% endgeneration %}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{ "<|im_start|>assistant\\n" + ("" if reasoning_mode == "/think" else "<think>\\n\\n</think>\\n") }}
{%- endif -%}"""),
    "qwen2": (["<|im_start|>", "<|im_end|>"], "<|im_start|>assistant\n", "<|im_end|>", """\
{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" \
and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""),
}


def family(name):
    tokens, opening, end, template = FAMILIES[name]
    tokenizer = load(tokens, [])
    tokenizer.chat_template = template
    cases = []
    for line in [*CONVERSATIONS[:5], CONVERSATIONS[6]]:
        messages = line["messages"]
        try:
            text = tokenizer.apply_chat_template(messages, tokenize=False)
        except jinja2.exceptions.TemplateError:
            cases.append({"messages": messages})
            continue
        # GLM's turns end where the next one begins
        ends = r"(?:<\|user\|>|<\|assistant\|>|\Z)" if name == "glm4" else re.escape(end)
        learned = re.findall(f"(?<={re.escape(opening)}).*?{ends}", text, re.DOTALL)
        if "{% generation %}" in template:
            _, marks = chat_template_utils.render_jinja_template(
                [messages], chat_template=template, return_assistant_tokens_mask=True, **tokenizer.special_tokens_map)
            learned = [text[begin:end] for begin, end in marks[0]]
        asked = [] if messages[-1]["role"] == "assistant" else [
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)]
        cases.append({"messages": messages, "text": text, "learned": learned} | ({"asked": asked[0]} if asked else {}))
    question = [{"role": "user", "content": "Who built the ark?"}]
    cases.append({"messages": question, "asked": tokenizer.apply_chat_template(question, tokenize=False,
                                                                               add_generation_prompt=True)})
    added = [{"id": tokenizer.convert_tokens_to_ids(token), "content": token, "special": True} for token in tokens]
    return {"name": name, "added": added, "end": end, "template": template, "cases": cases}


def write_families():
    out = ROOT / "tests/unit/data/chat_families.json"
    out.write_text("[\n %s\n]\n" % ",\n ".join(json.dumps(family(name)) for name in FAMILIES))


def main():
    chat_template_utils.datetime = Date
    write_families()
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

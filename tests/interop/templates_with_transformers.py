#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Chat templates, evaluated by titan and by transformers.

    templates_with_transformers.py TITAN TOKENIZER SEED FILE...    each FILE is a template (.jinja)

Conversations with random texts are packed by titan and compared with apply_chat_template: the tokens, and, where the
template has {% generation %}, which of them are learned. What one refuses the other refuses, too; what titan alone
refuses is listed with its reason, and more than one template in twenty is a failure. The tokenizer is TOKENIZER
(a tokenizer.json) with the tokens that the template seems to write. The date is the one that titan has.
"""
import datetime
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import transformers
import transformers.utils.chat_template_utils as utils

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from chat_with_transformers import message, read  # noqa: E402

TOKEN = re.compile(r"<\|[^|<>\s]+\|>|<\uff5c[^\uff5c]+\uff5c>|\[/?[A-Z_]+\]|</?[a-z_0-9]+>|<[A-Z_|]+>")
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
ROLES = [["user", "assistant"], ["system", "user", "assistant", "user", "assistant"], ["user", "assistant"] * 3,
         ["assistant", "user", "assistant"], ["user", "assistant", "assistant"], ["system", "assistant"],
         ["user", "system", "assistant", "user"]]


class Date(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime(2024, 7, 26)


def say(pick, role):
    """A message with some text: templates differ in whether they write an empty one."""
    made = message(pick, role)
    return made | {"content": made["content"] if made["content"].strip() else "x"}


def make_folder(folder, tokenizer, template):
    made = json.loads(json.dumps(tokenizer))
    known = {row["content"] for row in made["added_tokens"]}
    begin = max([*made["model"]["vocab"].values(), *(row["id"] for row in made["added_tokens"])]) + 1
    for i, token in enumerate(sorted((set(TOKEN.findall(template)) | set(NAMED.values())) - known)):
        made["added_tokens"].append({"id": begin + i, "content": token, "special": True, "single_word": False,
                                     "lstrip": False, "rstrip": False, "normalized": False})
    (folder / "tokenizer.json").write_text(json.dumps(made))
    (folder / "tokenizer_config.json").write_text(json.dumps(NAMED | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    (folder / "chat_template.jinja").write_text(template, newline="")


def expected(tokenizer, messages, marks):
    try:
        out = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=marks)
    except Exception:  # whatever the template does
        return None
    return out["input_ids"], out["assistant_masks"] if marks else None


def pack(titan, folder, conversations):
    """The documents that titan makes, or why it makes none."""
    (folder / "lines.jsonl").write_text("".join(json.dumps({"messages": row}) + "\n" for row in conversations))
    done = subprocess.run([titan, "data", "pack", "--dataset", "jsonl_sft", "--dataset-path", folder / "lines.jsonl",
                           "--tokenizer", folder, "--out", folder / "out.tokens"], capture_output=True, text=True)
    if done.returncode not in (0, 2, 3):
        raise SystemExit(f"{folder}: titan ended with {done.returncode}: {done.stderr}")
    found = read(folder / "out.tokens") if done.returncode == 0 else done.stderr
    (folder / "out.tokens").unlink(missing_ok=True)
    return found


def compare(titan, tokenizer, path, pick):
    """"same", or what titan says when it refuses what transformers writes."""
    template = path.read_text()
    marks = bool(re.search(r"\{%-?\s*generation\s*-?%\}", template))
    conversations = [[say(pick, role) for role in roles] for roles in ROLES]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_folder(folder, tokenizer, template)
        theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
        wanted = [expected(theirs, row, marks) for row in conversations]
        written = [row for row, want in zip(conversations, wanted) if want]
        for row in (row for row, want in zip(conversations, wanted) if not want):
            assert isinstance(pack(titan, folder, [row]), str), (path, "titan writes what transformers refuses", row)
        found = pack(titan, folder, written) if written else []
        if isinstance(found, str):
            return found
        for row, (ids, learned), (want, masks) in zip(written, found, filter(None, wanted)):
            assert ids == want, (path, row, theirs.decode(ids), theirs.decode(want))
            assert any(learned), (path, row)
            assert not marks or learned == masks, (path, row, learned, masks)
    return "same"


def main(titan, tokenizer, seed, *paths):
    utils.datetime = Date
    made = json.loads(pathlib.Path(tokenizer).read_text())
    pick = random.Random(int(seed))
    results = {path: compare(titan, made, pathlib.Path(path), pick) for path in paths}
    refused = {path: why for path, why in results.items() if why != "same"}
    for path, why in refused.items():
        print(f"{path}: {why.strip()}")
    print(f"{len(results) - len(refused)} templates write the same, {len(refused)} are refused by titan")
    assert len(refused) * 20 <= len(results), "more than one template in twenty"


if __name__ == "__main__":
    main(*sys.argv[1:])

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Folders that transformers writes and titan trains from, and folders that titan writes and transformers reads.

    with_transformers.py classes                         the model_types of mutate_configs.py's bases
    with_transformers.py make CLASS TOKENIZER FOLDER     a small model with random weights, saved with the tokenizer
    with_transformers.py compare SOURCE EXPORT PROMPT    what titan exported, against the folder that
                                                         training began from
    with_transformers.py chat EXPORT QUESTION            an answer of a model that titan trained on conversations
    with_transformers.py adapter BASE ADAPTER MERGED     adapters that titan exported, apart and merged, by PEFT

`compare` loads EXPORT with AutoModelForCausalLM and AutoTokenizer, checks that the chat template and the generation
configuration are those of SOURCE, and prints the ids of 24 greedy tokens after PROMPT; texts begin with BOS in EXPORT,
as in training. `chat` asks with the chat template of EXPORT, checks that the answer ends by itself, and prints it as
JSON. `adapter` checks that the logits of BASE with ADAPTER are those of MERGED, and not those of BASE, and prints 24
greedy tokens after the tokens 1, 2, 3. Exit code 77 (skipped) when transformers or torch cannot be imported.
"""
import json
import sys

try:
    import torch
    import transformers
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)

from mutate_configs import BASES

MESSAGES = [{"role": "user", "content": "Who made the light?"}]


def first_bases():
    """The first base of each class."""
    found = {}
    for base in BASES.values():
        found.setdefault(base["model_type"], base)
    return found


def config_of(base, tokenizer):
    """The base with the tokenizer's tokens, and as wide as blocks of quantized weights need."""
    wide = {"n_embd": 64} if base["model_type"] == "gpt2" else {"hidden_size": 64, "intermediate_size": 128}
    return transformers.AutoConfig.for_model(**{**base, **wide, "vocab_size": len(tokenizer), "pad_token_id": None,
                                                "eos_token_id": tokenizer.eos_token_id,
                                                "bos_token_id": tokenizer.bos_token_id})


def classes():
    print(*first_bases(), sep="\n")


def save(base, tokenizer_folder, folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config_of(base, tokenizer))
    model.generation_config.top_k = 17
    model.generation_config.do_sample = True
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make(family, tokenizer_folder, folder):
    save(first_bases()[family], tokenizer_folder, folder)


def compare(source, export, prompt):
    before, after = (transformers.AutoTokenizer.from_pretrained(folder) for folder in (source, export))
    assert before.chat_template == after.chat_template, "the chat template differs"
    if before.chat_template:
        assert before.apply_chat_template(MESSAGES, tokenize=False) == after.apply_chat_template(MESSAGES,
            tokenize=False)
    for text in (prompt, " It's 12345\n\n\tna\u00efve  x"):
        ids = before(text)["input_ids"]
        bos = [] if before.bos_token_id is None or ids[:1] == [before.bos_token_id] else [before.bos_token_id]
        assert bos + ids == after(text)["input_ids"], f"the ids of {text!r} differ"
    wanted, found = (transformers.GenerationConfig.from_pretrained(folder) for folder in (source, export))
    assert wanted == found, f"the generation configuration differs: {wanted} {found}"
    model, notes = transformers.AutoModelForCausalLM.from_pretrained(export, output_loading_info=True)
    assert not notes["missing_keys"] and not notes["unexpected_keys"], notes
    ids = after(prompt, return_tensors="pt")["input_ids"]
    model.generation_config = transformers.GenerationConfig(max_new_tokens=24, pad_token_id=0) # no token ends the text
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False)
    print(",".join(str(token) for token in out[0, ids.shape[1]:].tolist()))


def chat(export, question):
    tokenizer = transformers.AutoTokenizer.from_pretrained(export)
    model = transformers.AutoModelForCausalLM.from_pretrained(export)
    assert tokenizer("And it was so.")["input_ids"][0] == tokenizer.bos_token_id, "no BOS before a text"
    ids = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True,
                                        return_tensors="pt", return_dict=True)["input_ids"]
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=80)
    answer = out[0, ids.shape[1]:].tolist()
    assert answer[-1] == tokenizer.eos_token_id, f"the answer does not end: {tokenizer.decode(answer)}"
    print(json.dumps({"prompt_tokens": ids[0].tolist(), "tokens": answer[:-1],
                      "text": tokenizer.decode(answer, skip_special_tokens=True)}))


def adapter(base, exported, merged):
    import peft
    plain, whole = (transformers.AutoModelForCausalLM.from_pretrained(folder).eval() for folder in (base, merged))
    ids = torch.randint(0, plain.config.vocab_size, (2, 32), generator=torch.Generator().manual_seed(1))
    prompt = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        before = plain(ids).logits
        adapted = peft.PeftModel.from_pretrained(plain, exported).eval()
        found, wanted = adapted(ids).logits, whole(ids).logits
        adapted.generation_config = transformers.GenerationConfig(max_new_tokens=24, pad_token_id=0)
        out = adapted.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), do_sample=False)
    off = (found - wanted).abs().max().item()
    assert off < 1e-4, f"the logits of the adapter are off by {off}"
    assert (found - before).abs().max().item() > 1e-2, "the adapter does nothing"
    print(",".join(str(token) for token in out[0, 3:].tolist()))


if __name__ == "__main__":
    {"classes": classes, "make": make, "compare": compare, "chat": chat, "adapter": adapter}[sys.argv[1]](*sys.argv[2:])

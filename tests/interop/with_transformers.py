#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Folders that transformers writes and titan trains from, and folders that titan writes and transformers reads.

    with_transformers.py make FAMILY TOKENIZER FOLDER    a small model with random weights, saved with the tokenizer
    with_transformers.py compare SOURCE EXPORT PROMPT    what titan exported, against the folder that
                                                         training began from
    with_transformers.py chat EXPORT QUESTION            an answer of a model that titan trained on conversations
    with_transformers.py adapter BASE ADAPTER MERGED     adapters that titan exported, apart and merged, by PEFT

FAMILY is llama, mistral, mistral_window, qwen3, deepseek_v2, deepseek_v3, gpt_oss or gpt2. `compare` loads EXPORT with
AutoModelForCausalLM and AutoTokenizer, checks that the chat template and the generation configuration are those of
SOURCE, and prints the ids of 24 greedy tokens after PROMPT; texts begin with BOS in EXPORT, as in training. `chat` asks
with the chat template of EXPORT, checks that the answer ends by itself, and prints it as JSON. `adapter` checks that
the logits of BASE with ADAPTER are those of MERGED, and not those of BASE, and prints 24 greedy tokens after the tokens
1, 2, 3. Exit code 77 (skipped) when transformers or torch cannot be imported.
"""
import json
import sys

try:
    import torch
    import transformers
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)

MESSAGES = [{"role": "user", "content": "Who made the light?"}]


def config_of(family, tokenizer):
    sizes = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id,
             "bos_token_id": tokenizer.bos_token_id}
    if family == "gpt2":
        return transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, n_positions=256, **sizes)
    sizes.update(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2,
                 max_position_embeddings=256, tie_word_embeddings=False)
    if family.startswith("deepseek"):
        sizes.update(num_key_value_heads=4, moe_intermediate_size=32, n_routed_experts=8, n_shared_experts=1,
                     num_experts_per_tok=2, n_group=4, topk_group=2, first_k_dense_replace=1, q_lora_rank=24,
                     kv_lora_rank=16, qk_nope_head_dim=12, qk_rope_head_dim=8, v_head_dim=10)
        if family == "deepseek_v3":
            return transformers.DeepseekV3Config(num_mtp_layers=0, **sizes)
        return transformers.DeepseekV2Config(topk_method="group_limited_greedy", routed_scaling_factor=2.0, **sizes)
    if family == "gpt_oss":
        return transformers.GptOssConfig(head_dim=16, num_local_experts=8, num_experts_per_tok=2, sliding_window=24,
                                         **sizes)
    if family == "qwen3":
        return transformers.Qwen3Config(head_dim=16, **sizes)
    if family == "mistral_window":
        return transformers.MistralConfig(head_dim=32, sliding_window=24, **sizes)
    if family == "mistral":
        return transformers.MistralConfig(head_dim=32, sliding_window=None, **sizes)
    return transformers.LlamaConfig(**sizes)


def make(family, tokenizer_folder, folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer_folder)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config_of(family, tokenizer))
    model.generation_config.top_k = 17
    model.generation_config.do_sample = True
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


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
    {"make": make, "compare": compare, "chat": chat, "adapter": adapter}[sys.argv[1]](*sys.argv[2:])

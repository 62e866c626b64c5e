#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""GGUF files that titan writes, in llama.cpp and in the reader of the gguf package.

    with_llama_cpp.py check < LINES    LINES: FAMILY MOST SPELLS, where a folder has FAMILY-TYPE.gguf of the types f32,
                                       bf16, q8_0 and q4_0, hf-FAMILY for transformers, and FAMILY.tokens: the greedy
                                       tokens that titan makes of the f32 file after IDS
    with_llama_cpp.py chat FILE TEXT   prints the answer to TEXT

Of each family: every value and tensor is read by the gguf package, and the bytes of Q8_0 and Q4_0 are those that it
makes of F32's; the logits of llama.cpp after IDS are those of transformers: the largest difference, over their
standard deviation, is at most MOST (of Q8_0, a tenth); the greedy tokens of llama.cpp are titan's; and, if SPELLS is
yes, texts and a conversation become the same tokens as by transformers. Exit code 77 (skipped) when llama_cpp, gguf or
transformers cannot be imported.
"""
import sys

try:
    import gguf
    import llama_cpp
    import numpy
    import torch
    import transformers
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)

F32 = 0  # of the caches of keys and values: float16 would be the largest error
IDS = [5, 17, 3, 29, 11, 2, 40, 8]
TEXTS = ["In the beginning", " It's 12345\n\n\tna\u00efve  x", "A\u00e9\U0001f642 we'll, 3.3 a  b", "x"]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who made the light?"}]


def read(path, plain):
    file, wide = gguf.GGUFReader(path), gguf.GGUFReader(plain)
    wanted = {tensor.name: tensor for tensor in wide.tensors}
    assert [tensor.name for tensor in file.tensors] == [tensor.name for tensor in wide.tensors]
    for field in file.fields.values():
        field.contents()
    for tensor in file.tensors:
        values = gguf.quants.dequantize(wanted[tensor.name].data, wanted[tensor.name].tensor_type)
        bytes_wanted = gguf.quants.quantize(values, tensor.tensor_type)
        found = tensor.data.view(numpy.uint8).ravel()
        assert numpy.array_equal(found, bytes_wanted.view(numpy.uint8).ravel()), tensor.name


def load(path):
    return llama_cpp.Llama(path, n_ctx=64, n_batch=64, logits_all=True, verbose=False, n_threads=1, n_gpu_layers=0,
                           type_k=F32, type_v=F32, flash_attn=False)


def greedy(model, ids, count=16): # within the window of mistral, where the context of its file ends
    model.reset()
    model.eval(ids)
    out = []
    for _ in range(count):
        out.append(int(numpy.argmax(model.scores[model.n_tokens - 1])))
        if model.n_tokens < 64:
            model.eval(out[-1:])
    return out


def reference(folder):
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                               attn_implementation="eager").eval()
    with torch.no_grad():
        return theirs(torch.tensor([IDS])).logits[0].double().numpy()


def logits(path, wanted, most):
    model = load(path)
    model.eval(IDS)
    found = numpy.array(model.scores[: len(IDS)], dtype=numpy.float64)
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    off = abs(found - wanted).max() / wanted.std()
    assert off <= most, f"{path}: the logits are off by {off}"
    return model, off


def tokens(path, folder):
    model = llama_cpp.Llama(path, vocab_only=True, verbose=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        wanted = tokenizer(text, add_special_tokens=False)["input_ids"]
        found = model.tokenize(text.encode(), add_bos=False, special=False)
        assert found == wanted, f"{text!r} is {found}, and {wanted} in transformers"
    begin, wanted = model.tokenize(b"x", add_bos=True), tokenizer("x")["input_ids"]
    assert begin == wanted, f"a text begins as {begin}, and as {wanted} in transformers"
    if tokenizer.bos_token_id is not None:
        assert model.token_bos() == tokenizer.bos_token_id
    assert model.token_eos() == tokenizer.eos_token_id, (model.token_eos(), tokenizer.eos_token_id)
    template = model.metadata.get("tokenizer.chat_template")
    assert template == tokenizer.chat_template, template
    if template:
        text = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
        wanted = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert model.tokenize(text.encode(), add_bos=False, special=True) == wanted


def chat(path, text):
    model = load(path)
    out = model.create_chat_completion([{"role": "user", "content": text}], max_tokens=24, temperature=0.0)
    print(out["choices"][0]["message"]["content"])
    print(out["choices"][0]["finish_reason"])


def check():
    for line in sys.stdin:
        family, most, spells = line.split()
        for kind in ("f32", "bf16", "q8_0", "q4_0"):
            read(f"{family}-{kind}.gguf", f"{family}-f32.gguf")
        wanted = reference(f"hf-{family}")
        model, off = logits(f"{family}-f32.gguf", wanted, float(most))
        ours = [int(token) for token in open(f"{family}.tokens").read().split(",")]
        found = greedy(model, IDS)
        assert found == ours, f"{family}: greedy tokens differ: {found} and {ours}"
        _, narrow = logits(f"{family}-q8_0.gguf", wanted, 0.1)
        if spells == "yes":
            tokens(f"{family}-f32.gguf", f"hf-{family}")
        print(f"{family}: off by {off:.1e}, in Q8_0 by {narrow:.1e}", flush=True)


if __name__ == "__main__":
    {"check": check, "chat": chat}[sys.argv[1]](*sys.argv[2:])

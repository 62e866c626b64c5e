#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""GGUF files that titan writes, in llama.cpp and in the reader of the gguf package.

    with_llama_cpp.py read FILE F32           every value and tensor is read by the gguf package; the bytes of tensors
                                              in Q8_0 and Q4_0 are those that it makes of F32's
    with_llama_cpp.py logits FILE HF IDS MOST the logits of llama.cpp after IDS against those of transformers on the
                                              folder HF: the largest difference, over their standard deviation, is at
                                              most MOST. Prints 24 greedy tokens.
    with_llama_cpp.py tokens FILE FOLDER      texts become the same tokens, and a chat the same text, as by the
                                              tokenizer of the folder
    with_llama_cpp.py chat FILE TEXT          prints the tokens of the answer to TEXT

Exit code 77 (skipped) when llama_cpp, gguf or transformers cannot be imported.
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
TEXTS = ["In the beginning", " It's 12345\n\n\tna\u00efve  x", "A\u00e9\U0001f642 we'll, 3.3 a  b", "x"]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who made the light?"}]


def read(path, plain):
    file, wide = gguf.GGUFReader(path), gguf.GGUFReader(plain)
    wanted = {tensor.name: tensor for tensor in wide.tensors}
    assert [tensor.name for tensor in file.tensors] == [tensor.name for tensor in wide.tensors]
    for field in file.fields.values():
        field.contents()
    packed = 0
    for tensor in file.tensors:
        values = gguf.quants.dequantize(wanted[tensor.name].data, wanted[tensor.name].tensor_type)
        if tensor.tensor_type == gguf.GGMLQuantizationType.BF16:
            bytes_wanted = gguf.quants.quantize(values, tensor.tensor_type).view(numpy.uint8)
        else:
            bytes_wanted = gguf.quants.quantize(values, tensor.tensor_type)
        packed += tensor.tensor_type in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0)
        found = tensor.data.view(numpy.uint8).ravel()
        assert numpy.array_equal(found, bytes_wanted.view(numpy.uint8).ravel()), tensor.name
    print(f"{len(file.tensors)} tensors, {packed} in blocks")


def load(path):
    return llama_cpp.Llama(path, n_ctx=64, n_batch=64, logits_all=True, verbose=False, n_threads=1, n_gpu_layers=0,
                           type_k=F32, type_v=F32, flash_attn=False)


def greedy(model, ids, count=24):
    model.reset()
    model.eval(ids)
    out = []
    for _ in range(count):
        out.append(int(numpy.argmax(model.scores[model.n_tokens - 1])))
        if model.n_tokens < 64:
            model.eval(out[-1:])
    return out


def logits(path, folder, ids, most):
    ids = [int(token) for token in ids.split(",")]
    model = load(path)
    model.eval(ids)
    found = numpy.array(model.scores[: len(ids)], dtype=numpy.float64)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                               attn_implementation="eager").eval()
    with torch.no_grad():
        wanted = theirs(torch.tensor([ids])).logits[0].double().numpy()
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    off = abs(found - wanted).max() / wanted.std()
    print(f"off by {off:.2e}")
    assert off <= float(most), f"the logits are off by {off}"
    print(",".join(str(token) for token in greedy(model, ids)))


def tokens(path, folder):
    model = llama_cpp.Llama(path, vocab_only=True, verbose=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        wanted = tokenizer(text, add_special_tokens=False)["input_ids"]
        found = model.tokenize(text.encode(), add_bos=False, special=False)
        assert found == wanted, f"{text!r} is {found}, and {wanted} in transformers"
    begin = model.tokenize(b"x", add_bos=True)
    if tokenizer.bos_token_id is not None:
        assert begin[0] == tokenizer.bos_token_id, begin
        assert model.token_bos() == tokenizer.bos_token_id
    assert model.token_eos() == tokenizer.eos_token_id, (model.token_eos(), tokenizer.eos_token_id)
    template = model.metadata.get("tokenizer.chat_template")
    assert template == tokenizer.chat_template, template
    if template:
        text = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
        wanted = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert model.tokenize(text.encode(), add_bos=False, special=True) == wanted
    print("same tokens")


def chat(path, text):
    model = load(path)
    out = model.create_chat_completion([{"role": "user", "content": text}], max_tokens=24, temperature=0.0)
    print(out["choices"][0]["message"]["content"])
    print(out["choices"][0]["finish_reason"])


if __name__ == "__main__":
    {"read": read, "logits": logits, "tokens": tokens, "chat": chat}[sys.argv[1]](*sys.argv[2:])

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""GGUF files that titan writes, in llama.cpp and in the reader of the gguf package.

    with_llama_cpp.py make TOKENIZERS  makes small models of transformers' with random weights, each in a folder of its
                                       name, and prints the names; TOKENIZERS: a folder with folders of tokenizers
    with_llama_cpp.py ids              prints IDS
    with_llama_cpp.py check < NAMES    where a folder has NAME-TYPE.gguf of the types f32, bf16, q8_0 and q4_0, hf-NAME
                                       for transformers, and NAME.tokens: the greedy tokens that titan makes of the f32
                                       file after IDS
    with_llama_cpp.py chat FILE TEXT   prints the answer to TEXT

There is a model of each class that titan reads, with the settings that llama.cpp computes, and one of each form that a
class has in two. Of each model: every value and tensor is read by the gguf package, and the bytes of Q8_0 and Q4_0 are
those that it makes of F32's; the logits of llama.cpp after IDS are those of transformers: the largest difference, over
their standard deviation, is at most MOST (of Q8_0, a fifth); the greedy tokens of llama.cpp are titan's; and texts and
a conversation become the same tokens as by transformers. Exit code 77 (skipped) when llama_cpp, gguf or transformers
cannot be imported.
"""
import ctypes
import importlib.util
import pathlib
import sys


def preload():
    """Loads llama.cpp's libraries by their paths, in the order in which they need each other: a library that was built
    by hand does not know where they lie."""
    package = importlib.util.find_spec("llama_cpp")
    for name in ("ggml-base", "ggml-cpu", "ggml", "llama"):
        path = pathlib.Path(package.origin).parent / "lib" / f"lib{name}.so" if package else pathlib.Path()
        if path.is_file():
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)


try:
    preload()
    import gguf
    import llama_cpp
    import numpy
    import torch
    import transformers
except (ImportError, OSError) as reason:
    print(f"skipped: {reason}")
    sys.exit(77)

from mutate_configs import LLAMA3, THETA, YARN
from with_transformers import first_bases, save

torch.set_num_threads(1)
F32 = 0  # of the caches of keys and values: float16 would be the largest error
IDS = [5, 17, 3, 29, 11, 2, 40, 8]
TEXTS = ["In the beginning", " It's 12345\n\n\tna\u00efve  x", "A\u00e9\U0001f642 we'll, 3.3 a  b", "x"]
YARN_THERE = {**YARN, "beta_fast": 32.0, "beta_slow": 1.0}
MLA_THERE = {"rms_norm_eps": 1e-6, "rope_parameters": {**YARN_THERE, "mscale": 0.7, "mscale_all_dim": 0.7}}
PARTIAL = {"head_dim": 16, "rope_parameters": {**THETA, "partial_rotary_factor": 0.5}}
LONG = {"rope_type": "longrope", "rope_theta": 500.0, "partial_rotary_factor": 0.75,
        "short_factor": [1.0, 1.1, 1.3, 1.9, 2.8, 4.1], "long_factor": [1.0, 1.6, 3.25, 7.5, 9.0, 12.5]}


def long_rope(first, most):
    """As in Phi-4-mini. llama.cpp rounds the context up to 256, and decides by that which of the factors count."""
    return {"sliding_window": None, "tie_word_embeddings": True, "original_max_position_embeddings": first,
            "rope_parameters": {**LONG, "original_max_position_embeddings": first}, "max_position_embeddings": most}


# What the first base of a class has and llama.cpp computes otherwise, or not at all.
AS_THERE = {
    "deepseek_v2": {"topk_method": "greedy", **MLA_THERE}, "deepseek_v3": MLA_THERE,
    "gpt_oss": {"rope_parameters": {**YARN_THERE, "truncate": True}},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0]}, "olmoe": {"num_key_value_heads": 4},
    "olmo3": {"rope_parameters": {"full_attention": {**YARN_THERE, "attention_factor": None},
                                  "sliding_attention": THETA}},
    "gemma": {"attention_bias": False}, "ernie4_5": {"use_bias": False},
    "gemma2": {"query_pre_attn_scalar": 12},
    "gemma3_text": {"query_pre_attn_scalar": 12, "num_hidden_layers": 6,
                    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
                    "rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 4.0},
                                        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "phi3": {"sliding_window": 32}, "starcoder2": {"sliding_window": 32}, # the context ends with the window
    "glm": PARTIAL, "glm4": PARTIAL, "cohere2": {"head_dim": 16}, "cohere": {"attention_bias": False},
    "gpt_neox": {"rope_parameters": {**THETA, "partial_rotary_factor": 0.25}},
    "stablelm": {"rope_parameters": {**THETA, "partial_rotary_factor": 0.25}},
    "qwen2_moe": {"mlp_only_layers": [], "use_sliding_window": False, "layer_types": ["full_attention"] * 3},
}

# Other forms: name, class, settings.
FORMS = {
    "llama_scaled": ("llama", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "cohere_plus": ("cohere", {"num_hidden_layers": 64, "use_qk_norm": True}),
    "glm4_plain": ("glm4", {"head_dim": 12, "attention_bias": False, "tie_word_embeddings": True}),
    "gpt_neox_sequential": ("gpt_neox", {"use_parallel_residual": False, "hidden_act": "gelu_new",
                                         "tie_word_embeddings": True, "rope_parameters": THETA}),
    "phi3_partial": ("phi3", {"sliding_window": None, "tie_word_embeddings": True,
                              "rope_parameters": {**THETA, "partial_rotary_factor": 0.75}}),
    "phi3_short": ("phi3", long_rope(256, 512)), "phi3_long": ("phi3", long_rope(4, 128)),
}

# Of the f32 file. llama.cpp takes GELU from a table of float16, and float16 for the products of some operations.
MOST = {"gpt2": 5e-3, "gpt_neox": 5e-3, "starcoder2": 5e-3, "gemma": 5e-3, "gpt_oss": 1e-3}
TOKENIZERS = {"llama": "llama3", "mistral": "mistral_nemo", "qwen": "qwen3"}
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


def load(path, n_ctx=64):
    return llama_cpp.Llama(path, n_ctx=n_ctx, n_batch=64, logits_all=True, verbose=False, n_threads=1, n_gpu_layers=0,
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
    model = load(path, 128)
    out = model.create_chat_completion([{"role": "user", "content": text}], max_tokens=64, temperature=0.0)
    print(out["choices"][0]["message"]["content"])
    print(out["choices"][0]["finish_reason"])


def by_prefix(table, name, otherwise):
    return next((value for prefix, value in table.items() if name.startswith(prefix)), otherwise)


def make(tokenizers):
    bases = {family: {**base, **AS_THERE.get(family, {})} for family, base in first_bases().items()}
    bases |= {name: {**bases[family], **settings} for name, (family, settings) in FORMS.items()}
    for name, base in bases.items():
        save(base, pathlib.Path(tokenizers) / by_prefix(TOKENIZERS, name, "gpt2"), name)
        print(name)


def check():
    for family in sys.stdin.read().split():
        for kind in ("f32", "bf16", "q8_0", "q4_0"):
            read(f"{family}-{kind}.gguf", f"{family}-f32.gguf")
        wanted = reference(f"hf-{family}")
        model, off = logits(f"{family}-f32.gguf", wanted, by_prefix(MOST, family, 1e-4))
        ours = [int(token) for token in open(f"{family}.tokens").read().split(",")]
        found = greedy(model, IDS)
        assert found == ours, f"{family}: greedy tokens differ: {found} and {ours}"
        _, narrow = logits(f"{family}-q8_0.gguf", wanted, 0.2)
        tokens(f"{family}-f32.gguf", f"hf-{family}")
        print(f"{family}: off by {off:.1e}, in Q8_0 by {narrow:.1e}", flush=True)


if __name__ == "__main__":
    {"make": make, "ids": lambda: print(*IDS, sep=","), "check": check, "chat": chat}[sys.argv[1]](*sys.argv[2:])

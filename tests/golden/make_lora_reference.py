#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains low-rank adapters of the models in data/ by PEFT, in float64: `make_lora_reference.py RUN...`,
in data/RUN/lora.

Needs what make_reference.py needs, and peft. It leaves
    before.safetensors, after.safetensors   the adapters before the first step and after the last, in PEFT's names
    expect.json                             rank, alpha and target modules (`lora`, which must be there), and the loss,
                                            gradient norm and learning rate of every step; the rest of the recipe is
                                            that of the run
With --packed it leaves packed.json instead: what the same adapters learn on frozen weights that bitsandbytes or gguf
packed and unpacked. It also needs these.
With --dropout it leaves dropout.json: what the same adapters learn with dropout, whose zeros are titan's; with --dora
dora.json and dora.safetensors: what they learn with DoRA, without and with dropout. It also needs xxhash.
"""
import json
import struct
import sys

import numpy
import peft
import torch
from safetensors.torch import load_file, save_file

from make_reference import DATA, open_model, read, train

def save(model, path):
    state = peft.get_peft_model_state_dict(model)
    save_file({name: value.detach().float().contiguous() for name, value in state.items()}, path)


def make(name):
    folder = DATA / name / "lora"
    lora = json.loads((folder / "expect.json").read_text())["lora"]
    _, case, tokens = read(DATA / name)
    model = peft.get_peft_model(open_model(DATA / name), peft.LoraConfig(
        r=lora["rank"], lora_alpha=lora["alpha"], target_modules=lora["target_modules"], task_type="CAUSAL_LM"))
    generator = torch.Generator().manual_seed(31)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad: # B too, so that A has a gradient in the first step
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    model = model.double().train()
    save(model, folder / "before.safetensors")
    seen = train(model, torch.from_numpy(tokens), case)
    save(model, folder / "after.safetensors")
    (folder / "expect.json").write_text(json.dumps({"lora": lora, **seen}, indent=1) + "\n")
    print(name, "loss", seen["loss"][0], "to", seen["loss"][-1])


def unpacked(kind, x):
    import bitsandbytes.functional as bnb
    import gguf

    if kind == "bfloat16":
        return x.bfloat16()
    if kind == "nf4":
        packed, state = bnb.quantize_4bit(x, blocksize=64, compress_statistics=True, quant_type="nf4")
        return bnb.dequantize_4bit(packed, state)
    if kind == "int8":
        numbers, largest, _ = torch.ops.bitsandbytes.int8_vectorwise_quant(x)
        return bnb.int8_vectorwise_dequant(numbers, largest)
    kind = gguf.GGMLQuantizationType[kind.upper()]
    return torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(x.numpy(), kind), kind))


def make_packed(name):
    folder, out = DATA / name / "lora", {}
    lora = json.loads((folder / "expect.json").read_text())["lora"]
    _, case, tokens = read(DATA / name)
    for kind in "bfloat16", "int8", "nf4", "q4_0", "q8_0":
        model = open_model(DATA / name)
        with torch.no_grad():
            for layer, module in model.named_modules():
                if isinstance(module, torch.nn.Linear) and ".layers." in layer:
                    module.weight.copy_(unpacked(kind, module.weight.float().contiguous()))
        model = peft.get_peft_model(model, peft.LoraConfig(
            r=lora["rank"], lora_alpha=lora["alpha"], target_modules=lora["target_modules"], task_type="CAUSAL_LM"))
        peft.set_peft_model_state_dict(model, load_file(folder / "before.safetensors"))
        seen = train(model.double().train(), torch.from_numpy(tokens), case)
        out[kind] = {key: seen[key] for key in ("loss", "grad_norm")}
        print(name, kind, "loss", seen["loss"][0], "to", seen["loss"][-1])
    (folder / "packed.json").write_text(json.dumps(out, indent=1) + "\n")


def random_words(seed, stream, n):
    """Philox4x32-10: the first n words of 32 bits of a stream, two for each counter."""
    import xxhash

    counter = numpy.arange((n + 1) // 2, dtype=numpy.uint64)
    low, mask = numpy.uint64(32), numpy.uint64(0xffffffff)
    stream = xxhash.xxh3_64_intdigest(stream.encode())
    c = [counter & mask, counter >> low, numpy.full_like(counter, stream & 0xffffffff),
         numpy.full_like(counter, stream >> 32)]
    keys = [seed & 0xffffffff, seed >> 32]
    for _ in range(10):
        p0, p1 = numpy.uint64(0xd2511f53) * c[0], numpy.uint64(0xcd9e8d57) * c[2]
        c = [(p1 >> low) ^ c[1] ^ numpy.uint64(keys[0]), p1 & mask,
             (p0 >> low) ^ c[3] ^ numpy.uint64(keys[1]), p0 & mask]
        keys = [(keys[0] + 0x9e3779b9) & 0xffffffff, (keys[1] + 0xbb67ae85) & 0xffffffff]
    return numpy.stack([c[0], c[1]], axis=1).reshape(-1)[:n]


class Dropout(torch.nn.Module):
    """titan's dropout: each call is a step, and its input the global batch."""
    def __init__(self, rate, seed, stream):
        super().__init__()
        self.rate, self.seed, self.stream, self.step = rate, seed, stream, 0

    def forward(self, x):
        import xxhash

        self.step += 1
        seed = xxhash.xxh3_64_intdigest(struct.pack("<Qq", self.seed, self.step))
        width = x.shape[-1] + x.shape[-1] % 2
        words = random_words(seed, self.stream, x.shape[0] * x.shape[1] * width)
        words = words.reshape(x.shape[0], x.shape[1], width)[:, :, :x.shape[-1]]
        kept = torch.from_numpy(words >= int(self.rate * 2**32))
        return x * kept / (1 - self.rate)


NAMES = {"q_proj": "attention.wq", "k_proj": "attention.wk", "v_proj": "attention.wv", "o_proj": "attention.wo",
         "gate_proj": "feed_forward.w1", "up_proj": "feed_forward.w3", "down_proj": "feed_forward.w2"}


def use_dropout(model, rate):
    for layer, module in model.named_modules():
        if hasattr(module, "lora_dropout") and "default" in module.lora_dropout:
            parts = layer.split(".")
            stream = f"dropout of layers.{parts[parts.index('layers') + 1]}.{NAMES[parts[-1]]}.lora_a.weight"
            module.lora_dropout["default"] = Dropout(rate, 7, stream)


def make_options(name, kind, options):
    """KIND.json: what the adapters learn with each of the options; KIND.safetensors: their first values."""
    folder, out = DATA / name / "lora", {}
    lora = json.loads((folder / "expect.json").read_text())["lora"]
    _, case, tokens = read(DATA / name)
    for dropout, dora in options:
        model = peft.get_peft_model(open_model(DATA / name), peft.LoraConfig(
            r=lora["rank"], lora_alpha=lora["alpha"], target_modules=lora["target_modules"], task_type="CAUSAL_LM",
            lora_dropout=dropout, use_dora=dora))
        adapters, generator = load_file(folder / "before.safetensors"), torch.Generator().manual_seed(32)
        for key, value in peft.get_peft_model_state_dict(model).items():
            if key.endswith("lora_magnitude_vector"): # the norms of the frozen rows, and a little more or less
                adapters[key] = (value * (1 + 0.2 * torch.randn(value.shape, generator=generator))).float()
        peft.set_peft_model_state_dict(model, adapters)
        model = model.double()
        use_dropout(model, dropout)
        seen = train(model.train(), torch.from_numpy(tokens), case)
        out[f"dropout {dropout}"] = {key: seen[key] for key in ("loss", "grad_norm")}
        print(name, kind, dropout, "loss", seen["loss"][0], "to", seen["loss"][-1])
    if len(adapters) > len(load_file(folder / "before.safetensors")):
        save_file(adapters, folder / f"{kind}.safetensors")
    (folder / f"{kind}.json").write_text(json.dumps({"lora": lora, **out}, indent=1) + "\n")


KINDS = {"--packed": make_packed,
         "--dropout": lambda name: make_options(name, "dropout", [(0.3, False)]),
         "--dora": lambda name: make_options(name, "dora", [(0.0, True), (0.3, True)])}

if __name__ == "__main__":
    for name in sys.argv[1:]:
        if name not in KINDS:
            next((KINDS[kind] for kind in KINDS if kind in sys.argv), make)(name)

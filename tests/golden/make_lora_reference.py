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
"""
import json
import sys

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


if __name__ == "__main__":
    for name in sys.argv[1:]:
        if name != "--packed":
            (make_packed if "--packed" in sys.argv else make)(name)

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains low-rank adapters of the models in data/ by PEFT, in float64: `make_lora_reference.py`, into data/CASE/lora.

Needs what make_reference.py needs, and peft. It leaves
    before.safetensors, after.safetensors   the adapters before the first step and after the last, in PEFT's names
    expect.json                             rank, alpha, target modules, and the loss, gradient norm and learning rate
                                            of every step; the rest of the recipe is that of the case
"""
import json

import numpy
import peft
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from make_reference import DATA, train

CASES = {
    "llama3": {"rank": 4, "alpha": 6.0, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                                                           "up_proj", "down_proj"]},
    "qwen3": {"rank": 3, "alpha": 16.0, "target_modules": ["q_proj", "v_proj"]},
}


def save(model, path):
    state = peft.get_peft_model_state_dict(model)
    save_file({name: value.detach().float().contiguous() for name, value in state.items()}, path)


def make(name):
    lora, folder = CASES[name], DATA / name / "lora"
    folder.mkdir(exist_ok=True)
    expect = json.loads((DATA / name / "expect.json").read_text())
    tokens = numpy.frombuffer((DATA / name / "tokens.bin").read_bytes()[1024:], numpy.uint16).astype(numpy.int64)
    base = AutoModelForCausalLM.from_pretrained(DATA / name, dtype=torch.float64, attn_implementation="eager")
    model = peft.get_peft_model(base, peft.LoraConfig(
        r=lora["rank"], lora_alpha=lora["alpha"], target_modules=lora["target_modules"], task_type="CAUSAL_LM"))
    generator = torch.Generator().manual_seed(31)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad: # B too, so that A has a gradient in the first step
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    model = model.double().train()
    save(model, folder / "before.safetensors")
    seen = train(model, torch.from_numpy(tokens), expect["case"])
    save(model, folder / "after.safetensors")
    (folder / "expect.json").write_text(json.dumps({"lora": lora, **seen}, indent=1) + "\n")
    print(name, "loss", seen["loss"][0], "to", seen["loss"][-1])


if __name__ == "__main__":
    for case in CASES:
        make(case)

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains low-rank adapters of the models in data/ by PEFT, in float64: `make_lora_reference.py RUN...`,
in data/RUN/lora.

Needs what make_reference.py needs, and peft. It leaves
    before.safetensors, after.safetensors   the adapters before the first step and after the last, in PEFT's names
    expect.json                             rank, alpha and target modules (`lora`, which must be there), and the loss,
                                            gradient norm and learning rate of every step; the rest of the recipe is
                                            that of the run
"""
import json
import sys

import peft
import torch
from safetensors.torch import save_file

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


if __name__ == "__main__":
    for name in sys.argv[1:]:
        make(name)

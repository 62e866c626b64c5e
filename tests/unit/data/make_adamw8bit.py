#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes adamw8bit.json: what bitsandbytes' AdamW8bit makes, on the CPU, of a parameter that test_optim.c makes too.
Needs torch and bitsandbytes."""
import json
import os

import bitsandbytes
import numpy as np
import torch
from bitsandbytes.functional import create_dynamic_map

from make_packing import digest

N, STEPS = 4100, 50  # 16 blocks of 256, and four elements
EACH = 16  # of the elements, one of 16 is written


def linspace(first, last, n, dtype):
    """torch.linspace without fused multiplications, which only some processors have."""
    step = (np.float32(last) - np.float32(first)) / np.float32(n - 1)
    low = np.float32(first) + step * np.arange(n, dtype=np.float32)
    high = np.float32(last) - step * np.arange(n - 1, -1, -1, dtype=np.float32)
    return torch.from_numpy(np.where(np.arange(n) < n // 2, low, high)).to(dtype)


class Numbers:
    """Whole numbers of 13 bits times a power of two."""

    def __init__(self):
        self.state = 1

    def array(self):
        x = np.zeros(N, np.float32)
        for i in range(N):
            self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
            x[i] = ((self.state >> 33) % 8192 - 4096) / 65536
        return x


def main():
    torch.linspace = linspace
    numbers = Numbers()
    param = torch.nn.Parameter(torch.from_numpy(numbers.array()))
    optimizer = bitsandbytes.optim.AdamW8bit([param], lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    # gradients of blocks differ by factors of 8; some blocks never get one
    scale = np.array([[1, 2.0**-3, 2.0**-6, 2.0**-9, 0][i // 256 % 5] for i in range(N)], np.float32)
    out = {"map": {name: digest(create_dynamic_map(signed=name == "signed").numpy().tobytes())
                   for name in ("signed", "unsigned")}}
    for step in range(1, STEPS + 1):
        param.grad = torch.from_numpy(numbers.array() * scale)
        optimizer.step()
        if step in (1, STEPS):
            state = optimizer.state[param]
            out[str(step)] = {
                "param": param.detach().numpy()[::EACH].view(np.uint32).tolist(),
                "code": [state[name].numpy()[::EACH].tobytes().hex() for name in ("state1", "state2")],
                "largest": [state[name].numpy().view(np.uint32).tolist() for name in ("absmax1", "absmax2")],
            }
    with open(os.path.join(os.path.dirname(__file__), "adamw8bit.json"), "w", encoding="utf-8") as to:
        to.write(json.dumps(out) + "\n")


if __name__ == "__main__":
    main()

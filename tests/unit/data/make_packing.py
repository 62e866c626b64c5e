#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes packing.json: what bitsandbytes and gguf make of matrices that test_packing.c makes too. Needs torch,
bitsandbytes and gguf."""
import json
import os
import struct

import bitsandbytes.functional as bnb
import gguf
import numpy as np
import torch

ROWS, WIDTH = 64, 320  # 320 blocks of 64: two groups of 256, and rows that begin inside them


def matrix(kind):
    """Whole numbers of 13 bits times a power of two, so that sums of magnitudes are exact in any order."""
    x, state = np.zeros(ROWS * WIDTH, np.float32), 1
    for i in range(x.size):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        x[i] = ((state >> 33) % 8192 - 4096) / 65536
    if kind == "extreme":
        for block in range(x.size // 64):
            part = x[block * 64 : block * 64 + 64]
            if block % 5 == 0:
                part[:] = 0
            elif block % 5 == 1:
                part[1:] = 0
            elif block % 5 == 2:
                part *= np.float32(2.0**-13)
            elif block % 5 == 3:
                part *= 256
            else:
                part[:] = -abs(part)
    return torch.from_numpy(x.reshape(ROWS, WIDTH))


def digest(data):
    """FNV-1a of 64 bits, over bytes."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return "%016x" % value


def floats(x):
    return digest(np.asarray(x, np.float32).tobytes())


def bits(x):
    return struct.unpack("<I", struct.pack("<f", float(x)))[0]


def expectation(x):
    packed, state = bnb.quantize_4bit(x, blocksize=64, compress_statistics=True, quant_type="nf4")
    numbers, largest, _ = torch.ops.bitsandbytes.int8_vectorwise_quant(x)
    out = {
        "nf4": {
            "elements": digest(packed.numpy().tobytes()),
            "numbers": digest(state.absmax.numpy().tobytes()),
            "groups": [bits(v) for v in state.state2.absmax],
            "offset": bits(state.offset),
            "unpacked": floats(bnb.dequantize_4bit(packed, state)),
        },
        "int8": {
            "elements": digest(numbers.numpy().tobytes()),
            "largest": floats(largest),
            "unpacked": floats(bnb.int8_vectorwise_dequant(numbers, largest)),
        },
    }
    for name, kind in ("q4_0", gguf.GGMLQuantizationType.Q4_0), ("q8_0", gguf.GGMLQuantizationType.Q8_0):
        packed = gguf.quants.quantize(x.numpy(), kind)
        out[name] = {"packed": digest(packed.tobytes()), "unpacked": floats(gguf.quants.dequantize(packed, kind))}
    return out


def main():
    _, state = bnb.quantize_4bit(matrix("random"), quant_type="nf4", compress_statistics=True)
    out = {"nf4_table": floats(state.code), "factor_table": floats(state.state2.code)}
    for kind in "random", "extreme":
        out[kind] = expectation(matrix(kind))
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "packing.json"), "w") as f:
        f.write(json.dumps(out, indent=1) + "\n")


main()

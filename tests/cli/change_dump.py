#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Copies the dump of a training step, and changes its gradients as a fault of a parallel job would.

    change_dump.py FROM TO CHANGE [NUMBER [PATTERN]]

FROM contains step-1/gradients/model.safetensors; TO gets F32. PATTERN selects gradients by a part of their names.
"""
import json
import math
import os
import random
import shutil
import struct
import sys


def read(path):
    """Name -> (shape, list of numbers), of F64 and F32 tensors."""
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + at for at in entry["data_offsets"])
            kind = {"F64": "d", "F32": "f"}[entry["dtype"]]
            tensors[name] = (entry["shape"], list(memoryview(data[begin:end]).cast(kind)))
    return tensors


def write(path, tensors, kind="f"):
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        part = struct.pack(f"<{len(values)}{kind}", *values)
        header[name] = {"dtype": {"f": "F32", "d": "F64"}[kind], "shape": shape,
                        "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def rows_of(shape, values):
    width = len(values) // shape[0]
    return [values[r * width:(r + 1) * width] for r in range(shape[0])]


def joined(rows):
    return [x for row in rows for x in row]


def other_layout(rows, head):
    """Rows of heads from halves to pairs."""
    return [rows[r - r % head + r % head // 2 + r % 2 * (head // 2)] for r in range(len(rows))]


def changed(name, shape, values, change, number):
    """The values of one gradient after a change."""
    if change == "factor":
        return [number * x for x in values]
    if change == "coarse":  # as after arithmetic in a coarser type
        return [x * (1.0 + number * random.uniform(-1, 1)) for x in values]
    if change == "other_tokens":  # all gradients are others, and the embedding has rows that it had not
        values = [x * (1.0 + random.uniform(-1, 1)) for x in values]
        if "embed" in name:
            rows = rows_of(shape, values)
            return joined(row if any(row) else next(filter(any, rows)) for row in rows)
        return values
    if change == "zero":
        return [0.0] * len(values)
    if change == "nan":
        return [math.nan] + values[1:]
    if change == "transposed" and shape[0] * shape[0] == len(values):
        return joined(zip(*rows_of(shape, values)))
    if len(shape) == 2:
        rows, part = rows_of(shape, values), shape[0] // int(number or 2)
        if change == "swapped":
            return joined(rows[part:] + rows[:part])
        if change == "half_zero":
            return joined(rows[:part] + [[0.0] * len(row) for row in rows[part:]])
        if change == "part_wrong":
            return joined(rows[:part] + [[x + y for x, y in zip(row, row[1:] + row[:1])] for row in rows[part:]])
        if change == "rotary":
            return joined(other_layout(rows, int(number)))
    return values


def main(source, target, change, number="0", pattern=""):
    number = float(number)
    random.seed(1)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    path = os.path.join(target, "step-1/gradients/model.safetensors")
    tensors = read(path)
    if change == "float64":
        return write(path, tensors, "d")
    norm = math.sqrt(sum(x * x for _, values in tensors.values() for x in values))
    result = {}
    for name, (shape, values) in tensors.items():
        if change == "clipped":
            values = [x * number / norm for x in values]
        elif pattern in name:
            values = changed(name, shape, values, change, number)
        if change == "renamed":
            name = name.replace("gate_proj", "@").replace("up_proj", "gate_proj").replace("@", "up_proj")
        if change == "foreign":
            name = f"decoder.{name}"
        if change == "wrapped":
            name = "_orig_mod." + name.replace("layers.1.", "layers.1._checkpoint_wrapped_module.")
        if change != "missing" or pattern not in name:
            result[name] = (shape, values)
    write(path, result)
    about = os.path.join(target, "reference.json")
    facts = json.load(open(about))
    facts.update(dtype="float32", mesh={"dp": 2, "tp": 4, "ep": 4, "accumulation": 8})
    json.dump(facts, open(about, "w"))
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])

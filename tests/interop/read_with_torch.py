#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Reads a checkpoint of titan's with PyTorch and compares.

    read_with_torch.py STEP_FOLDER CONSOLIDATED_FOLDER

1. HuggingFaceStorageReader loads STEP/model and STEP/optim as they are, without titan's manifest.
2. Every model tensor equals the one of `titan ckpt consolidate STEP CONSOLIDATED`.
3. PyTorch's own consolidation of STEP/model equals it too.
Exit code 77 (skipped) when torch or safetensors cannot be imported.
"""
import glob
import os
import sys
import tempfile

try:
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import load_file
    from torch.distributed.checkpoint import HuggingFaceStorageReader
    from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)


def load_folder(folder):
    tensors = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.safetensors"))):
        tensors.update(load_file(path))
    return tensors


def bits(tensor):
    return tensor.contiguous().flatten().view(torch.uint8)


def read_sharded(folder):
    reader = HuggingFaceStorageReader(folder)
    metadata = reader.read_metadata().state_dict_metadata
    state = {name: torch.full(m.size, -1.0, dtype=m.properties.dtype) for name, m in metadata.items()}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(folder), no_dist=True)
    return state


def compare(what, got, wanted):
    assert set(got) == set(wanted), f"{what}: other names: {set(got) ^ set(wanted)}"
    for name in sorted(wanted):
        assert got[name].shape == wanted[name].shape, f"{what}: {name}: {got[name].shape} {wanted[name].shape}"
        assert got[name].dtype == wanted[name].dtype, f"{what}: {name}: {got[name].dtype} {wanted[name].dtype}"
        assert torch.equal(bits(got[name]), bits(wanted[name])), f"{what}: {name} differs"
    print(f"{what}: {len(wanted)} tensors equal")


def main():
    step, consolidated = sys.argv[1:3]
    wanted = load_folder(consolidated)
    compare("HuggingFaceStorageReader", read_sharded(os.path.join(step, "model")), wanted)
    optim = os.path.join(step, "optim")
    if os.path.isdir(optim):
        print(f"HuggingFaceStorageReader: {len(read_sharded(optim))} optimizer tensors read")
    with tempfile.TemporaryDirectory() as out:
        consolidate_safetensors_files(os.path.join(step, "model"), out,
                                      {name: 1 for name in wanted if wanted[name].dim()})
        # PyTorch's consolidation turns a scalar into zero (a bug of its own); titan's models have none.
        compare("consolidate_safetensors_files", load_folder(out), {n: t for n, t in wanted.items() if t.dim()})


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Reads one of titan's checkpoints with PyTorch and compares it.

    read_with_torch.py STEP_FOLDER CONSOLIDATED_FOLDER

1. HuggingFaceStorageReader loads STEP/model and STEP/optim as they are, without titan's manifest: in one process, and
   as row shards of 2 and 3 processes.
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
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.multiprocessing as mp
    from safetensors.torch import load_file
    from torch.distributed.checkpoint import HuggingFaceStorageReader
    from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
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


def read_rank(rank, ranks, folder, store, out):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    metadata = HuggingFaceStorageReader(folder).read_metadata().state_dict_metadata
    state = {name: distribute_tensor(torch.full(m.size, -1.0, dtype=m.properties.dtype), mesh, [Shard(0)])
             for name, m in metadata.items()}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(folder))
    whole = {name: tensor.full_tensor() for name, tensor in state.items()}
    if rank == 0:
        torch.save(whole, out)
    dist.destroy_process_group()


def read_on_ranks(folder, ranks):
    with tempfile.TemporaryDirectory() as top:
        out = os.path.join(top, "whole.pt")
        mp.spawn(read_rank, args=(ranks, folder, os.path.join(top, "store"), out), nprocs=ranks)
        return torch.load(out)


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
    for ranks in (2, 3):
        compare(f"HuggingFaceStorageReader on {ranks} ranks", read_on_ranks(os.path.join(step, "model"), ranks), wanted)
    optim = os.path.join(step, "optim")
    if os.path.isdir(optim):
        print(f"HuggingFaceStorageReader: {len(read_sharded(optim))} optimizer tensors read")
    with tempfile.TemporaryDirectory() as out:
        consolidate_safetensors_files(os.path.join(step, "model"), out,
                                      {name: 1 for name in wanted if wanted[name].dim()})
        # PyTorch's consolidation turns a scalar into zero, which is its bug; titan's models have no scalars.
        compare("consolidate_safetensors_files", load_folder(out), {n: t for n, t in wanted.items() if t.dim()})


if __name__ == "__main__":
    main()

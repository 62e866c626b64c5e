#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes shards with PyTorch's HuggingFaceStorageWriter, for titan to read.

    write_with_torch.py FOLDER [--ranks N]
    write_with_torch.py --compare FOLDER      whether the tensors there (one file each) have the values

FOLDER gets the shard files of N processes (default 2, gloo): row shards of uneven height, a shard without rows, and a
replicated tensor. Values follow from name and index (see value_of), so that a reader needs no second file. The files in
tests/interop/torch_shards were made by this, with PyTorch 2.15 and two ranks. PyTorch's files differ from run to run in
the order of their metadata. Exit code 77 when torch cannot be imported.
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
    from torch.distributed.checkpoint import HuggingFaceStorageWriter
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)

SHAPES = {
    "tok_embeddings.weight": (13, 6),  # uneven over 2, 3 and 4 ranks
    "layers.0.attention.wq.weight": (8, 6),
    "layers.0.few.weight": (1, 4),  # fewer rows than ranks
    "norm.weight": (6,),
}


def value_of(name):
    shape = SHAPES[name]
    count = 1
    for size in shape:
        count *= size
    return (torch.arange(count, dtype=torch.float32) + 1000 * len(name)).reshape(shape)


def write(rank, ranks, folder, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    state = {}
    for name in SHAPES:
        placement = Replicate() if name == "norm.weight" else Shard(0)
        state[name] = dist.tensor.distribute_tensor(value_of(name), mesh, [placement])
        assert isinstance(state[name], DTensor)
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(folder, save_distributed=True))
    dist.destroy_process_group()


def compare(folder):
    found = {}
    for path in glob.glob(os.path.join(folder, "*.safetensors")):
        found.update(load_file(path))
    assert set(found) == set(SHAPES), set(found) ^ set(SHAPES)
    for name, tensor in found.items():
        assert torch.equal(tensor, value_of(name)), name


def main():
    if sys.argv[1] == "--compare":
        compare(sys.argv[2])
        return
    ranks = int(sys.argv[sys.argv.index("--ranks") + 1]) if "--ranks" in sys.argv else 2
    os.makedirs(sys.argv[1], exist_ok=True)
    with tempfile.TemporaryDirectory() as top:
        mp.spawn(write, args=(ranks, sys.argv[1], os.path.join(top, "store")), nprocs=ranks)


if __name__ == "__main__":
    main()

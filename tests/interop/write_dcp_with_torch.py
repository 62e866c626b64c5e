#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes a checkpoint with PyTorch's torch.distributed.checkpoint, under torchtitan's keys, for titan to read.

    write_dcp_with_torch.py FOLDER [--shards S] [--replicas R] [--nested]
    write_dcp_with_torch.py FOLDER --forms          three small folders in FOLDER, of tensors in every form
    write_dcp_with_torch.py --compare FOLDER [--weights]    whether PyTorch loads those values from FOLDER

FOLDER is written by S x R processes (default 2 x 2, gloo; HSDP). Most tensors are cut by rows, unevenly; w2 is cut by
rows and by columns (over both dimensions of the mesh). Values follow from name and index (see value_of), so that a
reader needs no second file. With --nested the keys are {"model": {...}, "optimizer": {"state": ...}}, with the names
of torchtune, instead of torchtitan's. The folder tests/interop/torch_dcp was made by this, with PyTorch 2.15 and the
default options; tests/interop/torch_forms with --forms: `read` has the types and orders that titan reads, `unread` and
`zstd` (which needs the package zstandard) those that it names. --weights compares the model's tensors only. Exit code
77 when torch cannot be imported.
"""
import os
import sys
import tempfile

try:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.multiprocessing as mp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)

DIM, FFN, VOCAB, STEP, TOKENS = 8, 16, 41, 7, 7 * 4 * 32

# --model.vocab_size=41 --model.dim=8 --model.n_layers=1 --model.n_heads=2 --model.n_kv_heads=1 --model.ffn_dim=16
SHAPES = {
    "tok_embeddings.weight": (VOCAB, DIM),
    "layers.0.attention_norm.weight": (DIM,),
    "layers.0.attention.wq.weight": (DIM, DIM),
    "layers.0.attention.wk.weight": (DIM // 2, DIM),
    "layers.0.attention.wv.weight": (DIM // 2, DIM),
    "layers.0.attention.wo.weight": (DIM, DIM),
    "layers.0.ffn_norm.weight": (DIM,),
    "layers.0.feed_forward.w1.weight": (FFN, DIM),
    "layers.0.feed_forward.w2.weight": (DIM, FFN),
    "layers.0.feed_forward.w3.weight": (FFN, DIM),
    "norm.weight": (DIM,),
    "output.weight": (VOCAB, DIM),
}
DTYPES = {"layers.0.ffn_norm.weight": torch.bfloat16, "layers.0.attention.wv.weight": torch.float16}
TUNE = {
    "attention.wq": "attn.q_proj",
    "attention.wk": "attn.k_proj",
    "attention.wv": "attn.v_proj",
    "attention.wo": "attn.output_proj",
    "feed_forward": "mlp",
    "attention_norm.weight": "sa_norm.scale",
    "ffn_norm.weight": "mlp_norm.scale",
}


def value_of(name, what=""):
    """Multiples of 1/64 below 1, which bfloat16 and float16 have too; second moments are positive."""
    shape = SHAPES[name]
    count = 1
    for size in shape:
        count *= size
    values = (torch.arange(count) * 7 + len(name) + 3 * len(what)) % 59
    values = values.to(torch.float32) / 64 - (0 if what == "exp_avg_sq" else 0.5)
    dtype = torch.float32 if what else DTYPES.get(name, torch.float32)
    return values.to(dtype).reshape(shape)


def tune_name(name):
    for ours, theirs in TUNE.items():
        name = name.replace(ours, theirs)
    return "norm.scale" if name == "norm.weight" else name


def state_of(place, nested):
    name_of = tune_name if nested else lambda name: name
    model = {name_of(name): place(name, value_of(name)) for name in SHAPES}
    moments = ("exp_avg", "exp_avg_sq")
    if nested:
        state = {
            name_of(name): {
                **{what: place(name, value_of(name, what)) for what in moments},
                "step": torch.tensor(float(STEP)),
            }
            for name in SHAPES
        }
        return {"model": model, "optimizer": {"state": state, "param_groups": [{"lr": 1e-3}]}, "steps_run": STEP}
    optimizer = {}
    for name in SHAPES:
        for what in moments:
            optimizer[f"state.{name}.{what}"] = place(name, value_of(name, what))
        optimizer[f"state.{name}.step"] = torch.tensor(float(STEP))
        optimizer[f"param_groups.{name}.lr"] = 1e-3
    return {
        **model,
        "optimizer": optimizer,
        "lr_scheduler": {"last_epoch": STEP, "_step_count": STEP + 1},
        "train_state": {"step": STEP, "ntokens_seen": TOKENS},
        "dataloader": {"dp_rank_0": b"of torchdata"},
    }


def write(rank, shards, replicas, folder, store, nested):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=shards * replicas)
    mesh = init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replicate", "shard"))

    def place(name, tensor):
        if name == "norm.weight":
            return tensor
        tiles = name == "layers.0.feed_forward.w2.weight"
        return distribute_tensor(tensor, mesh, [Shard(1), Shard(0)] if tiles else [Replicate(), Shard(0)])

    dcp.save(state_of(place, nested), checkpoint_id=folder)
    dist.destroy_process_group()


def write_forms(folder):
    """Counts from 0 in the order of rows, whatever the order in memory."""
    from torch.distributed.checkpoint._extension import ZStandard

    def count(*shape):
        return torch.arange(torch.Size(shape).numel()).reshape(shape)

    read = {"norm.weight": count(8).float()}
    for name in "bool uint8 uint16 uint32 uint64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz".split():
        read[name] = count(2, 3).to(getattr(torch, name))
    read["complex128"] = count(2, 3).to(torch.complex128)
    read["transposed"] = count(6, 4).float().t().contiguous().t()
    read["permuted"] = count(4, 2, 3).to(torch.int16).permute(1, 2, 0).contiguous().permute(2, 0, 1)
    dcp.save(read, checkpoint_id=f"{folder}/read", no_dist=True)
    unread = {
        "norm.weight": read["norm.weight"],
        "conjugate": count(4).to(torch.complex64).conj(),
        "half": count(4).to(torch.complex32),
        "fours": count(4).to(torch.uint8).view(torch.float4_e2m1fn_x2),
        "deep": count(1, 1, 1, 1, 1, 1, 1, 1, 2).float(),
    }
    dcp.save(unread, checkpoint_id=f"{folder}/unread", no_dist=True)
    writer = dcp.FileSystemWriter(f"{folder}/zstd", _extensions=[ZStandard()])
    dcp.save({"norm.weight": read["norm.weight"], "epoch": 3}, storage_writer=writer, no_dist=True)


def flatten(tree, path=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{path}{key}.")
        else:
            yield path + key, value


def compare(folder, weights_only):
    wanted = state_of(lambda name, tensor: tensor, False)
    if weights_only:
        wanted = {name: wanted[name] for name in SHAPES}
    else:
        wanted.pop("dataloader")
        wanted["lr_scheduler"] = {"last_epoch": STEP}
        wanted["optimizer"] = {key: value for key, value in wanted["optimizer"].items() if torch.is_tensor(value)}
    found = {key: value for key, value in wanted.items() if torch.is_tensor(value)}
    for key in found:
        found[key] = torch.full_like(found[key], 99)
    for key, tree in wanted.items():
        if isinstance(tree, dict):
            found[key] = {
                name: torch.full_like(value, 99) if torch.is_tensor(value) else type(value)(0)
                for name, value in tree.items()
            }
    dcp.load(found, checkpoint_id=folder)
    got = dict(flatten(found))
    for name, value in flatten(wanted):
        same = torch.equal(got[name], value) if torch.is_tensor(value) else got[name] == value
        assert same, f"{name}: {got[name]}, wanted {value}"
    print(f"{len(got)} values are the same")


def main():
    arguments = sys.argv[1:]

    def number(option, default):
        return int(arguments[arguments.index(option) + 1]) if option in arguments else default

    if arguments[0] == "--compare":
        compare(arguments[1], "--weights" in arguments)
        return
    if "--forms" in arguments:
        write_forms(arguments[0])
        return
    shards, replicas = number("--shards", 2), number("--replicas", 2)
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        mp.spawn(write, (shards, replicas, arguments[0], store, "--nested" in arguments), nprocs=shards * replicas)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a step of a small model with PyTorch (FSDP2 and tensor parallelism over gloo), right and with faults.

    train_with_faults.py FOLDER [CASE...]            writes FOLDER/truth (float64, one process) and FOLDER/CASE
    train_with_faults.py --list                      the cases, each with the pattern that titan must name, or "clean"
    train_with_faults.py --small ...                 with a smaller model, whose dumps are in tests/interop/faults
    train_with_faults.py --check TITAN FOLDER [CASE...]     compares them with `titan compare --gradients`

Every dump is written by the code blocks of docs/reference.md. Exit code 77 when torch cannot be imported.
"""
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import types

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    import torch.nn.functional as F
    from safetensors.torch import save_file
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.utils.checkpoint import checkpoint
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)

VOCAB, DIM, HEADS, HIDDEN, LAYERS, EXPERTS, BATCH, SEQUENCE = 96, 16, 4, 32, 3, 4, 8, 16
if "--small" in sys.argv or os.environ.get("TITAN_SMALL"):
    os.environ["TITAN_SMALL"] = "1"  # the processes of the job read it
    VOCAB, DIM, HEADS, HIDDEN = 48, 8, 2, 16
HEAD = DIM // HEADS
SEED = int(os.environ.get("TITAN_SEED", "7"))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Each case: the pattern that titan names; then what the job does otherwise than the plain one on one process.
CASES = {
    # right
    "one_process": ("clean", {}),
    "fsdp_2": ("clean", {"dp": 2}),
    "fsdp_4": ("clean", {"dp": 4}),
    "tensor_2": ("clean", {"tp": 2}),
    "tensor_4": ("clean", {"tp": 4}),
    "fsdp_2_tensor_2": ("clean", {"dp": 2, "tp": 2}),
    "accumulation_2": ("clean", {"dp": 2, "accumulation": 2}),
    "accumulation_4": ("clean", {"accumulation": 4}),
    "recomputation": ("clean", {"dp": 2, "tp": 2, "recompute": True}),
    "bfloat16": ("clean", {"dp": 2, "dtype": "bfloat16"}),
    "bfloat16_tensor_2": ("clean", {"dp": 2, "tp": 2, "dtype": "bfloat16"}),
    "float64": ("clean", {"dp": 2, "tp": 2, "dtype": "float64"}),
    "tied": ("clean", {"tied": True, "dp": 2}),
    "experts": ("clean", {"moe": True, "dp": 2}),
    "ignored": ("clean", {"ignored": True, "dp": 2}),
    "compiled": ("clean", {"compile": True}),
    "replicas": ("clean", {"dp": 2, "ranks": True}),
    "torchtitan": ("clean", {"dp": 2, "tp": 2, "recipe": "torchtitan"}),
    "megatron": ("clean", {"tp": 2, "recipe": "megatron"}),
    # wrong
    "dp_not_divided": ("factor-dp", {"dp": 2, "fault": "sum"}),
    "accumulation_not_divided": ("factor-accumulation", {"accumulation": 4, "fault": "accumulation_sum"}),
    "tokens_not_divided": ("factor-tokens", {"fault": "token_sum"}),
    "bfloat16_not_divided": ("factor-dp", {"dp": 2, "dtype": "bfloat16", "fault": "sum"}),
    "experts_doubled": ("factor-experts", {"moe": True, "dp": 2, "ep": 2, "fault": "experts"}),
    "clipped": ("clipping", {"dp": 2, "tp": 2, "fault": "clip"}),
    "ignored_in_the_mean": ("ignored-labels", {"ignored": True, "fault": "ignored_mean"}),
    "ignored_counted": ("ignored-labels", {"ignored": True, "fault": "ignored_zero"}),
    "ignored_prompt_learned": ("ignored-labels", {"ignored": True, "fault": "ignored_next"}),
    "labels_not_shifted": ("labels", {"dp": 2, "fault": "unshifted"}),
    "labels_shifted_twice": ("labels", {"dp": 2, "fault": "shifted"}),
    "one_microbatch": ("dp-sum", {"accumulation": 2, "fault": "last"}),
    "one_microbatch_bfloat16": ("dp-sum", {"accumulation": 2, "fault": "last", "dtype": "bfloat16"}),
    "one_part_of_the_sequence": ("cp-sum", {"fault": "half"}),
    "replicas_not_reduced": ("replicas", {"dp": 2, "ranks": True, "fault": "unreduced"}),
    "keys_of_one_part": ("cp-sum", {"fault": "keys"}),
    "tensor_sum_missing": ("tp-sum", {"dp": 2, "tp": 2, "fault": "backward_sum"}),
    "tensor_sum_missing_forward": ("tp-sum", {"tp": 2, "fault": "forward_sum", "activations": True}),
    "norms_of_one_rank": ("norm-one-rank", {"tp": 2, "fault": "norms"}),
    "shards_swapped": ("shard-order", {"dp": 2, "fault": "swapped"}),
    "shard_missing": ("shard-missing", {"dp": 2, "fault": "zeroed"}),
    "rotary_layout": ("rotary-layout", {"fault": "rotary", "activations": True}),
    "rotary_layout_of_gradients_only": ("rotary-layout", {"fault": "rotary"}),
    "rotary_layout_of_gradients": ("rotary-layout", {"fault": "rotary_rows"}),
    "other_names": ("other-tensor", {"fault": "names"}),
    "tied_without_lookup": ("tied", {"tied": True, "fault": "no_lookup"}),
    "tied_without_output": ("tied", {"tied": True, "fault": "no_output"}),
    "balance_loss_missing": ("router-loss", {"moe": True, "fault": "no_balance"}),
    "dropout": ("dropout", {"fault": "dropout"}),
    "dropout_seen": ("dropout", {"fault": "dropout", "activations": True}),
    "recomputed_otherwise": ("recompute", {"recompute": True, "fault": "recompute"}),
    "frozen": ("no-gradient", {"fault": "frozen"}),
    "precision": ("precision", {"dp": 2, "dtype": "bfloat16", "stated": "float32"}),
}
if HEADS < 4:
    del CASES["tensor_4"]


def recipe():
    """The functions of docs/reference.md."""
    text = open(os.path.join(ROOT, "docs/reference.md"), encoding="utf-8").read()
    space = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        exec(compile(block, "docs/reference.md", "exec"), space)
    return space


def rotate(x, pairs):
    """Rotary positions: halves, as Hugging Face pairs elements, or neighbours."""
    speed = 100.0 ** (-torch.arange(HEAD // 2, dtype=x.dtype) * 2 / HEAD)
    angle = torch.arange(SEQUENCE, dtype=x.dtype)[:, None] * speed
    cos, sin = angle.cos(), angle.sin()
    a, b = (x[..., 0::2], x[..., 1::2]) if pairs else x.chunk(2, dim=-1)
    a, b = a * cos - b * sin, b * cos + a * sin
    return torch.stack((a, b), dim=-1).flatten(-2) if pairs else torch.cat((a, b), dim=-1)


class Norm(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(DIM))
        self.fault = fault

    def forward(self, x):
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        if self.fault == "norms":  # the weight's gradient comes from the first half of the tokens
            half = SEQUENCE // 2
            return torch.cat((y[:, :half] * self.weight, y[:, half:] * self.weight.detach()), dim=1)
        return y * self.weight


class Attention(nn.Module):
    def __init__(self, fault):
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(DIM, DIM, bias=False))
        self.fault = fault

    def forward(self, x):
        parts = (proj(x) for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k, v = (part.unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in parts)
        q, k = (rotate(t, self.fault == "rotary") for t in (q, k))
        if self.fault == "keys":  # queries of the second half send no gradient to keys and values of the first
            half, old = SEQUENCE // 2, [t[:, :, :SEQUENCE // 2] for t in (k, v)]
            first = F.scaled_dot_product_attention(q[:, :, :half], *old, is_causal=True)
            mask = torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool).tril()[half:]
            k, v = (torch.cat((a.detach(), t[:, :, half:]), dim=2) for a, t in zip(old, (k, v)))
            y = torch.cat((first, F.scaled_dot_product_attention(q[:, :, half:], k, v, attn_mask=mask)), dim=2)
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).flatten(-2))


class Sum(torch.autograd.Function):
    """Adds over the tensor-parallel ranks; its gradient passes."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class MLP(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(DIM, HIDDEN, bias=False), nn.Linear(DIM, HIDDEN, bias=False)
        self.down_proj = nn.Linear(HIDDEN, DIM, bias=False)
        self.fault, self.group = fault, None

    def forward(self, x):
        if self.fault in ("backward_sum", "forward_sum") and self.group:
            # by hand, without one of the two sums over ranks
            gate, up, down = (m.weight.to_local() for m in (self.gate_proj, self.up_proj, self.down_proj))
            y = F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)
            return Sum.apply(y, self.group) if self.fault == "backward_sum" else y
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    def __init__(self, fault):
        super().__init__()
        self.gate = nn.Linear(DIM, EXPERTS, bias=False)
        self.experts = nn.ModuleList(MLP(fault) for _ in range(EXPERTS))
        self.balance = 0.0

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        weight, chosen = p.topk(2, dim=-1)
        load = F.one_hot(chosen, EXPERTS).to(x.dtype).sum((0, 1, 2)) / chosen.numel()
        self.balance = EXPERTS * (load * p.mean((0, 1))).sum()
        y = torch.stack([e(x) for e in self.experts], dim=-2)
        return (y * torch.zeros_like(p).scatter(-1, chosen, weight)[..., None]).sum(-2)


class Layer(nn.Module):
    def __init__(self, fault, moe):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(fault), Norm(fault)
        self.self_attn = Attention(fault)
        self.mlp = Experts(fault) if moe else MLP(fault)
        self.drop, self.scale = 0.1 if fault == "dropout" else 0.0, 1.0

    def forward(self, x):
        x = x + F.dropout(self.self_attn(self.input_layernorm(x) * self.scale), self.drop)
        return x + F.dropout(self.mlp(self.post_attention_layernorm(x)), self.drop)


class Inner(nn.Module):
    def __init__(self, fault, moe):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Layer(fault, moe) for _ in range(LAYERS))
        self.norm = Norm(fault)


class Model(nn.Module):
    def __init__(self, fault=None, moe=False, tied=False, recompute=False):
        super().__init__()
        self.model = Inner(fault, moe)
        self.lm_head = None if tied else nn.Linear(DIM, VOCAB, bias=False)
        self.fault, self.recompute = fault, recompute
        torch.manual_seed(SEED)
        for p in self.parameters():
            with torch.no_grad():
                p.copy_(torch.randn(p.shape, dtype=torch.float64) * (0.25 if p.ndim > 1 else 0.1) + (p.ndim == 1))

    def contexts(self, layer):
        @contextlib.contextmanager
        def again():
            layer.scale = 1.2
            yield
            layer.scale = 1.0
        return contextlib.nullcontext(), again()

    def forward(self, ids):
        weight = self.model.embed_tokens.weight
        x = F.embedding(ids, weight.detach() if self.fault == "no_lookup" else weight)
        x = F.dropout(x, 0.1) if self.fault == "dropout" else x
        for i, layer in enumerate(self.model.layers):
            if self.recompute and self.fault == "recompute" and i == 1:
                x = checkpoint(layer, x, use_reentrant=False, context_fn=lambda: self.contexts(layer))
            elif self.recompute:
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        x = self.model.norm(x)
        if self.lm_head:
            return self.lm_head(x)
        return F.linear(x, weight.detach() if self.fault == "no_output" else weight)


def batch(ignored):
    """Token ids of skewed frequency, so that some tokens are rare; with `ignored`, labels of prompts are -100."""
    generator = torch.Generator().manual_seed(SEED + 1)
    ids = (torch.rand(BATCH, SEQUENCE + 1, generator=generator) ** 2 * VOCAB).long()
    labels = ids[:, 1:].clone()
    if ignored:
        for row in range(BATCH):
            labels[row, :3 + row % 4] = -100
    return ids[:, :-1].contiguous(), labels


def faulty_labels(ids, labels, fault):
    if fault == "unshifted":
        return ids
    if fault == "shifted":
        return torch.cat((labels[:, 1:], torch.full_like(labels[:, :1], -100)), dim=1)
    if fault == "ignored_zero":
        return labels.clamp(min=0)
    if fault == "ignored_next":
        return batch(False)[1]
    if fault == "half":
        return torch.where(torch.arange(SEQUENCE) < SEQUENCE // 2, labels, -100)
    return labels


def parallelize(model, mesh, how, dtype):
    if mesh["tp"].size() > 1:
        for layer in model.model.layers:
            parallelize_module(layer, mesh["tp"], {
                "self_attn.q_proj": ColwiseParallel(), "self_attn.k_proj": ColwiseParallel(),
                "self_attn.v_proj": ColwiseParallel(), "self_attn.o_proj": RowwiseParallel(),
                "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(),
                "mlp.down_proj": RowwiseParallel()})
            layer.mlp.group = mesh["tp"].get_group()
    policy = MixedPrecisionPolicy()
    if dtype == "bfloat16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in [*model.model.layers, model]:
        fully_shard(module, mesh=mesh["dp"], mp_policy=policy)


def change(gradients, how):
    """Faults of the dump itself; whether there is one."""
    fault = how.get("fault")
    norm = sum(float(g.pow(2).sum()) for g in gradients.values()) ** 0.5
    for name, g in gradients.items():
        if fault == "clip":
            g *= min(1.0, 1.0 / (norm + 1e-6))
        if fault == "swapped" and "proj" in name:
            gradients[name] = torch.cat(g.chunk(2)[::-1])
        if fault == "zeroed" and "up_proj" in name:
            g[g.shape[0] // 2:] = 0
        if fault == "rotary_rows" and ("q_proj" in name or "k_proj" in name):
            gradients[name] = g.unflatten(0, (-1, 2, HEAD // 2)).transpose(1, 2).flatten(0, 2).contiguous()
        if fault == "experts" and "experts" in name:
            g *= 2
        if fault == "frozen" and "layers.1.self_attn" in name:
            g.zero_()
    if fault == "names":
        for i in range(LAYERS):
            a, b = (f"model.layers.{i}.mlp.{part}_proj.weight" for part in ("gate", "up"))
            gradients[a], gradients[b] = gradients[b], gradients[a]
    return fault in ("clip", "swapped", "zeroed", "rotary_rows", "experts", "frozen", "names")


def train(folder, how, functions):
    """One step. All ranks of the job call it; rank 0 of the world writes."""
    dtype, fault = how.get("dtype", "float32"), how.get("fault")
    dp, tp, accumulation = how.get("dp", 1), how.get("tp", 1), how.get("accumulation", 1)
    rank = dist.get_rank()
    ids, labels = batch(how.get("ignored"))
    wanted = faulty_labels(ids, labels, fault)
    valid = (labels >= 0).sum() if fault in ("ignored_mean", "half") else (wanted >= 0).sum()
    model = Model(fault, how.get("moe", False), how.get("tied", False), how.get("recompute", False))
    model = model.to(torch.float64 if dtype == "float64" else torch.float32)
    unreduced, parallel = fault == "unreduced", dp * tp > 1
    mesh = how["mesh"]
    if parallel and not unreduced:
        parallelize(model, mesh, how, dtype)
    elif dtype == "bfloat16":
        model = model.to(torch.bfloat16)
    outputs = functions["keep_outputs"](model) if how.get("activations") else None
    place, parts = (mesh["dp"].get_local_rank(), dp) if parallel else (0, 1)
    torch.manual_seed(11 + rank)
    run = torch.compile(model, backend="aot_eager") if how.get("compile") else model
    total = 0.0
    for micro in range(accumulation):
        mine = slice(None)
        if parts * accumulation > 1:
            size = BATCH // parts // accumulation
            mine = slice((place * accumulation + micro) * size, (place * accumulation + micro + 1) * size)
        logits = run(ids[mine]).to(torch.float64 if dtype == "float64" else torch.float32)
        losses = F.cross_entropy(logits.flatten(0, 1), wanted[mine].flatten(), ignore_index=-100, reduction="sum")
        loss = losses / valid * parts  # FSDP then takes the mean over its ranks
        if fault == "sum":
            loss = loss * dp
        if fault == "accumulation_sum":
            loss = loss * accumulation
        if fault == "token_sum":
            loss = losses
        if fault == "ignored_mean":
            loss = losses / labels.numel() * parts
        if how.get("moe") and fault != "no_balance":
            loss = loss + sum(layer.mlp.balance for layer in model.model.layers) * 0.05 / accumulation
        if fault == "last":
            model.zero_grad()
        loss.backward()
        total += float(loss.detach())
    if parallel:
        total = torch.tensor([total])
        dist.all_reduce(total, group=mesh["dp"].get_group())
        total = float(total) / dp
    degrees = {"dp": dp, "tp": tp, "accumulation": accumulation, "cp": 1, "ep": how.get("ep", 1)}

    stated, dump_step = how.get("stated", dtype), functions["dump_step"]
    if how.get("recipe") == "torchtitan":
        utils = types.SimpleNamespace(clip_grad_norm_=lambda: None)
        trainer = types.SimpleNamespace(step=1, model_parts=[model])
        functions["dump_before_clipping"](trainer, utils, folder, 1, stated, degrees)
        utils.clip_grad_norm_()
        return
    if how.get("recipe") == "megatron":
        optimizer = types.SimpleNamespace(step=lambda: None)
        mpu = types.SimpleNamespace(get_tensor_model_parallel_group=mesh["tp"].get_group)
        for p in model.parameters():
            dim = next((at.dim for at in p.placements if at.is_shard()), None)  # over the tensor-parallel ranks alone
            p.main_grad, p.tensor_model_parallel, p.partition_dim = p.grad.to_local(), len(p.placements) > 1, dim
            if len(p.placements) > 1:
                p.partition_dim = p.placements[1].dim
        functions["dump_before_step"](optimizer, [model], mpu, folder, stated, degrees, lambda name: name)
        optimizer.step()
        return
    whole = {}
    for name, p in model.named_parameters():
        g = p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
        whole[name] = g.detach().clone()
    if change(whole, how) or how.get("ranks"):
        parameters = [(name, with_gradient(g)) for name, g in whole.items()]
    else:
        parameters = model.named_parameters()
    if how.get("ranks"):
        real, dist.get_rank = dist.get_rank, lambda *args: 0  # every rank writes its own folder
        dump_step(f"{folder}/rank-{rank}", 1, parameters, stated, total, ids, labels, degrees)
        dist.get_rank = real
    else:
        dump_step(folder, 1, parameters, stated, total, ids, labels, degrees, outputs)


def with_gradient(g):
    p = nn.Parameter(torch.zeros_like(g))
    p.grad = g
    return p


def truth_of(how):
    """The truth of a case: the same model and batch in float64 on one process."""
    return "truth" + "".join("_" + key for key in ("moe", "tied", "ignored") if how.get(key)) + (
        f"_{how['dp']}" if how.get("moe") and how.get("dp") else "")


def work(rank, world, folder, names, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=world)
    functions = recipe()
    for name in names:
        how = dict(CASES[name][1])
        dp, tp = how.get("dp", 1), how.get("tp", 1)
        how["mesh"] = None
        if dp * tp > 1:  # all ranks make the groups; the job runs on the first dp * tp ranks
            shape = (world // (dp * tp), dp, tp)
            how["mesh"] = init_device_mesh("cpu", shape, mesh_dim_names=("copy", "dp", "tp"))
        if rank < dp * tp:
            train(f"{folder}/{name}", how, functions)
        dist.barrier()
    dist.destroy_process_group()


def write_truths(folder, names):
    """In float64, by the plain loss, for every model and batch that the cases use."""
    functions = recipe()
    for name in names:
        how = CASES[name][1]
        path = f"{folder}/{truth_of(how)}"
        if os.path.exists(path):
            continue
        ids, labels = batch(how.get("ignored"))
        model = Model(None, how.get("moe", False), how.get("tied", False)).double()
        outputs = functions["keep_outputs"](model)
        parts = how.get("dp", 1) if how.get("moe") else 1  # the balance loss is one of each rank's tokens
        total = 0.0
        for ids_of, labels_of in zip(ids.chunk(parts), labels.chunk(parts)):
            loss = F.cross_entropy(model(ids_of).flatten(0, 1), labels_of.flatten(), ignore_index=-100,
                                   reduction="sum") / (labels >= 0).sum()
            if how.get("moe"):
                loss = loss + sum(layer.mlp.balance for layer in model.model.layers) * 0.05 / parts
            loss.backward()
            total += float(loss.detach())
        outputs = outputs if parts == 1 else None
        functions["dump_step"](path, 1, model.named_parameters(), "float64", total, ids, labels, {}, outputs)
        os.makedirs(f"{path}/step-1/weights")
        save_file({n: p.detach().clone() for n, p in model.named_parameters()},
                  f"{path}/step-1/weights/model.safetensors")


def check(titan, folder, names):
    failed = 0
    for name in names:
        wanted, how = CASES[name]
        command = [titan, "compare", "--gradients", f"{folder}/{truth_of(how)}", f"{folder}/{name}", "--json"]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode not in (0, 1):
            print(f"not ok {name}: exit code {run.returncode}: {run.stderr}")
            failed += 1
            continue
        found = [p["name"] for look in json.loads(run.stdout)["looks"] for p in look["patterns"]]
        right = (run.returncode, found) == ((0, []) if wanted == "clean" else (1, [wanted]))
        print(f"{'ok' if right else 'not ok'} {name}: wanted {wanted}, found {found or run.returncode}")
        failed += not right
    return failed


def main(args):
    args = [arg for arg in args if arg != "--small"]
    if args[:1] == ["--list"]:
        for name, (pattern, _) in CASES.items():
            print(f"{name} {pattern}")
        return 0
    if args[:1] == ["--check"]:
        return 1 if check(args[1], args[2], args[3:] or list(CASES)) else 0
    folder, names = args[0], args[1:] or list(CASES)
    write_truths(folder, names)
    with tempfile.TemporaryDirectory() as temporary:
        mp.spawn(work, args=(4, folder, names, os.path.join(temporary, "store")), nprocs=4)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

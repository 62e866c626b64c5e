# SPDX-License-Identifier: MIT
"""The PyTorch side of against_pytorch.py: trains a llama3 on a token file and prints one JSON line.

A plain model as one would write it for speed today: scaled_dot_product_attention, F.cross_entropy, fused AdamW. It
reads the weights that the driver wrote in Hugging Face's layout, so that both sides start from the same state.

Modes: eager, compile and fsdp2 compute in float32. autocast keeps float32 parameters and computes in bfloat16, pure has
bfloat16 parameters and moments, and fsdp2_bf16 has FSDP2's mixed precision: bfloat16 parameters gathered from float32
shards, gradients reduced in float32.
"""
import argparse
import json
import os
import resource
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file


class RMSNorm(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        self.head_dim, dim = c["head_dim"], c["hidden_size"]
        self.q_proj = nn.Linear(dim, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(dim, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(dim, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, dim, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q = rotate(self.q_proj(x).view(b, t, self.heads, -1).transpose(1, 2), cos, sin)
        k = rotate(self.k_proj(x).view(b, t, self.kv_heads, -1).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(b, t, self.kv_heads, -1).transpose(1, 2)
        if self.kv_heads != self.heads:  # faster on CPUs than enable_gqa
            k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
            v = v.repeat_interleave(self.heads // self.kv_heads, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class FeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        dim, hidden = c["hidden_size"], c["intermediate_size"]
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.mlp = FeedForward(c)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, c, seq_len):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        self.layers = nn.ModuleList(Block(c) for _ in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.lm_head = nn.Linear(c["hidden_size"], c["vocab_size"], bias=False)
        half = c["head_dim"] // 2
        angle = torch.outer(torch.arange(seq_len).double(), c["rope_theta"] ** (-torch.arange(half).double() / half))
        self.cos, self.sin = angle.cos().float(), angle.sin().float()

    def forward(self, tokens, labels):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = self.lm_head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)).float(), labels.view(-1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--seq", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True, help="of all ranks")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True, help="of one rank")
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--mode", choices=["eager", "compile", "fsdp2", "autocast", "pure", "fsdp2_bf16"],
                        required=True)
    a = parser.parse_args()

    torch.set_num_threads(a.threads)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    with open(os.path.join(a.model, "config.json")) as f:
        config = json.load(f)
    model = Llama(config, a.seq)
    state = load_file(os.path.join(a.model, "model.safetensors"))
    model.load_state_dict({k.removeprefix("model."): v for k, v in state.items()})
    del state
    sharded = a.mode.startswith("fsdp2")
    if a.mode == "pure":
        model.to(torch.bfloat16)
    run = model
    if sharded:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        dist.init_process_group("gloo")
        options = {"mesh": init_device_mesh("cpu", (world,))}
        if a.mode == "fsdp2_bf16":
            options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in model.layers:
            fully_shard(layer, **options)
        fully_shard(model, **options)
    elif a.mode == "compile":
        run = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=a.lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1,
                                  fused=not sharded)
    stream = torch.from_file(a.tokens, dtype=torch.uint16, size=os.path.getsize(a.tokens) // 2)
    local = a.batch // world
    losses, seconds = [], []
    for step in range(a.steps):
        rows = [stream[i * a.seq:i * a.seq + a.seq + 1].long()
                for i in range(step * a.batch + rank * local, step * a.batch + (rank + 1) * local)]
        rows = torch.stack(rows)
        start = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.mode == "autocast"):
            loss = run(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - start)
        value = loss.detach()
        if world > 1:
            dist.all_reduce(value)
            value /= world
        losses.append(value.item())
    rss = torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0])
    if world > 1:
        dist.all_reduce(rss, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(json.dumps({"losses": losses, "seconds": seconds, "rss": rss.item(), "torch": torch.__version__}))
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

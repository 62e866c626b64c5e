#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""titan and transformers' Qwen3MoeForCausalLM on the same model, weights, tokens and batch, in turn: forward, backward
and AdamW, tokens per second as medians of paired ratios.

    tests/bench/experts_against_pytorch.py --titan build/titan --python PYTHON_WITH_TRANSFORMERS
        [--layers 8] [--seq 1024] [--batch 2] [--threads 2] [--rounds 3] [--steps 4] [--out result.json]
        [--modes eager,grouped_mm,eager-autocast,grouped_mm-autocast,eager-pure,grouped_mm-pure]

The model is qwen3's debugmodel_moe. A mode is transformers' implementation of experts and a type: float32 if none is
named; autocast has float32 parameters and computes in bfloat16, and is compared with titan's mixed_precision_param
bfloat16; pure has bfloat16 parameters and moments, as titan has with training.dtype bfloat16. The ratio that counts is
the smaller one of a type.

Losses are compared too. A token whose experts are nearly tied may get others after some steps, so they may differ a
little. The first step of a run does not count. A benchmark, never a test.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

import against_pytorch

LR = against_pytorch.LR
# How far the losses of a few steps may differ.
CLOSE = {"float32": 1e-3, "bfloat16": 2e-2}

CONFIG = dict(vocab_size=2048, hidden_size=256, intermediate_size=3072, moe_intermediate_size=768, num_experts=64,
              num_experts_per_tok=8, num_attention_heads=16, num_key_value_heads=8, head_dim=128, norm_topk_prob=True,
              decoder_sparse_step=1, mlp_only_layers=[], tie_word_embeddings=False, rms_norm_eps=1e-6,
              max_position_embeddings=4096, rope_parameters={"rope_type": "default", "rope_theta": 1000000.0})

WRITE_MODEL = """
import json, sys, torch, transformers
folder = sys.argv[2]
torch.manual_seed(7)
transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**json.loads(sys.argv[1]))).save_pretrained(folder)
tokens = torch.randint(0, 2048, (int(sys.argv[3]),)).to(torch.uint16)
tokens.numpy().tofile(folder + "/tokens.bin")
"""

# Prints one JSON line.
TORCH_SIDE = """
import json, os, resource, sys, time, torch, transformers
import torch.nn.functional as F
folder, mode, seq, batch, steps, threads, lr = sys.argv[1:]
seq, batch, steps = int(seq), int(batch), int(steps)
implementation, _, kind = mode.partition("-")
torch.set_num_threads(int(threads))
model = transformers.AutoModelForCausalLM.from_pretrained(
    folder, dtype=torch.bfloat16 if kind == "pure" else torch.float32, attn_implementation="sdpa",
    experts_implementation=implementation)
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=float(lr), betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1,
                              fused=True)
stream = torch.from_file(folder + "/tokens.bin", dtype=torch.uint16,
                         size=os.path.getsize(folder + "/tokens.bin") // 2)
losses, seconds = [], []
for step in range(steps):
    rows = torch.stack([stream[i * seq:i * seq + seq + 1].long() for i in range(step * batch, (step + 1) * batch)])
    start = time.perf_counter()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "autocast"):
        logits = model(rows[:, :-1].contiguous(), use_cache=False).logits
        loss = F.cross_entropy(logits.reshape(-1, logits.size(-1)).float(), rows[:, 1:].reshape(-1))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    seconds.append(time.perf_counter() - start)
    losses.append(loss.item())
rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
print(json.dumps({"losses": losses, "seconds": seconds, "rss": rss,
                  "version": f"PyTorch {torch.__version__}, transformers {transformers.__version__}"}))
"""


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def run_torch(a, work, mode):
    return json.loads(run([a.python, "-c", TORCH_SIDE, work, mode, str(a.seq), str(a.batch), str(a.steps),
                           str(a.threads), str(LR)]).splitlines()[-1])


def run_titan(a, work, mode):
    own = argparse.Namespace(**vars(a))
    own.titan_options = ["--model.name=qwen3"] + a.titan_options
    if mode.endswith("-pure"):
        own.titan_options.append("--training.dtype=bfloat16")
    return against_pytorch.run_titan(own, work, 1, a.threads, type_of(mode))


def type_of(mode):
    return "bfloat16" if "-" in mode else "float32"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--titan", required=True)
    parser.add_argument("--python", default=sys.executable)
    for option, default in (("layers", 8), ("seq", 1024), ("batch", 2), ("threads", 2), ("steps", 4), ("rounds", 3)):
        parser.add_argument("--" + option, type=int, default=default)
    parser.add_argument("--modes", default="eager,grouped_mm,eager-autocast,grouped_mm-autocast,eager-pure,"
                        "grouped_mm-pure")
    parser.add_argument("--out")
    parser.add_argument("titan_options", nargs="*", help="after --: more options of titan train")
    a = parser.parse_args()

    pairs = {mode: [] for mode in a.modes.split(",")}
    with tempfile.TemporaryDirectory() as work:
        run([a.python, "-c", WRITE_MODEL, json.dumps(CONFIG | {"num_hidden_layers": a.layers}), work,
             str((a.steps * a.batch + 1) * a.seq)])
        for _ in range(a.rounds):
            for mode, done in pairs.items():
                ours = run_titan(a, work, mode)
                theirs = run_torch(a, work, mode)
                off = against_pytorch.difference(ours, theirs)
                if off > CLOSE[type_of(mode)]:
                    sys.exit(f"{mode}: losses differ by {off:.1e}: {ours['losses']} {theirs['losses']}")
                done.append({"titan": against_pytorch.rate(a, ours), "torch": against_pytorch.rate(a, theirs),
                             "rss": ours["rss"] / theirs["rss"], "off": off, "version": theirs["version"]})
    cpu = against_pytorch.cpu_name()
    print(f"{cpu}, {a.threads} threads; debugmodel_moe, {a.layers} layers, seq {a.seq}, batch {a.batch}, {a.rounds} "
          f"rounds of {a.steps} steps, the first not counted; {next(iter(pairs.values()))[0]['version']}")
    for mode, done in pairs.items():
        ratios = sorted(d["titan"] / d["torch"] for d in done)
        print(f"{mode:20s} titan {statistics.median(d['titan'] for d in done):7.1f} tok/s, transformers "
              f"{statistics.median(d['torch'] for d in done):7.1f} tok/s, ratio {statistics.median(ratios):.2f} "
              f"({ratios[0]:.2f} to {ratios[-1]:.2f}), memory {statistics.median(d['rss'] for d in done):.2f} x, "
              f"losses within {max(d['off'] for d in done):.0e}")
    if a.out:
        with open(a.out, "w") as f:
            json.dump({"cpu": cpu, "layers": a.layers, "seq": a.seq, "batch": a.batch, "pairs": pairs}, f, indent=1)


if __name__ == "__main__":
    main()

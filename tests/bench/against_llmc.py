#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""titan and llm.c's CPU program train_gpt2 on the same 124M GPT-2, weights and tokens, in turn.

    tests/bench/against_llmc.py --titan build/titan --llmc LLM.C/train_gpt2 [--batch 4] [--seq 64] [--steps 4] \
        [--rounds 3]
                                [--threads 2]

train_gpt2 is built by its own Makefile (`make train_gpt2`). As it comes it trains on batch 4, 64 tokens; for others,
change `int B` and `int T` in its main() before it is built, and say so here. Both sides get random weights of the same
bits and a text of one batch over and over (llm.c shuffles batches). Losses are compared first. The first step of each
run does not count. Needs numpy. A benchmark, never a test.
"""
import argparse
import json
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile

from against_pytorch import cpu_name

try:
    import numpy as np
except ModuleNotFoundError:
    np = None

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LAYERS, HEADS, DIM, CONTEXT, VOCAB, PADDED = 12, 12, 768, 1024, 50257, 50304


def make_weights():
    """Hugging Face's names and shapes ([in, out] for matrices) -> float32."""
    random = np.random.default_rng(7)

    def normal(*shape):
        return (random.standard_normal(shape, dtype=np.float32) * 0.02).astype(np.float32)

    weights = {"wte.weight": normal(VOCAB, DIM), "wpe.weight": normal(CONTEXT, DIM)}
    for i in range(LAYERS):
        p = f"h.{i}."
        weights |= {p + "attn.c_attn.weight": normal(DIM, 3 * DIM), p + "attn.c_proj.weight": normal(DIM, DIM),
                    p + "mlp.c_fc.weight": normal(DIM, 4 * DIM), p + "mlp.c_proj.weight": normal(4 * DIM, DIM)}
        for name, size in (("attn.c_attn", 3 * DIM), ("attn.c_proj", DIM), ("mlp.c_fc", 4 * DIM), ("mlp.c_proj", DIM)):
            weights[p + name + ".bias"] = np.zeros(size, np.float32)
        for name in ("ln_1", "ln_2"):
            weights[p + name + ".weight"] = np.ones(DIM, np.float32)
            weights[p + name + ".bias"] = np.zeros(DIM, np.float32)
    weights |= {"ln_f.weight": np.ones(DIM, np.float32), "ln_f.bias": np.zeros(DIM, np.float32)}
    return weights


def write_hf(weights, folder):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, value in weights.items():
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [at, at + value.nbytes]}
        at += value.nbytes
    text = json.dumps(header).encode()
    with open(folder + "/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for value in weights.values():
            f.write(value.tobytes())
    with open(folder + "/config.json", "w") as f:
        json.dump({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": LAYERS, "n_head": HEADS,
                   "n_embd": DIM, "n_positions": CONTEXT, "vocab_size": VOCAB, "layer_norm_epsilon": 1e-5,
                   "activation_function": "gelu_new", "tie_word_embeddings": True}, f)


def write_llmc(weights, folder):
    """llm.c's checkpoint: 256 int32 of header, then every kind of parameter over all layers; matrices are [out, in]."""
    order = ["ln_1.weight", "ln_1.bias", "attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight",
             "attn.c_proj.bias", "ln_2.weight", "ln_2.bias", "mlp.c_fc.weight", "mlp.c_fc.bias", "mlp.c_proj.weight",
             "mlp.c_proj.bias"]
    header = np.zeros(256, np.int32)
    header[:8] = 20240326, 3, CONTEXT, VOCAB, LAYERS, HEADS, DIM, PADDED
    with open(folder + "/gpt2_124M.bin", "wb") as f:
        f.write(header.tobytes())
        f.write(weights["wte.weight"].tobytes())
        f.write(np.zeros((PADDED - VOCAB, DIM), np.float32).tobytes())
        f.write(weights["wpe.weight"].tobytes())
        for name in order:
            for i in range(LAYERS):
                value = weights[f"h.{i}.{name}"]
                f.write(np.ascontiguousarray(value.T).tobytes())
        f.write(weights["ln_f.weight"].tobytes() + weights["ln_f.bias"].tobytes())


def write_tokens(a, folder):
    tokens = np.tile(np.random.default_rng(8).integers(0, VOCAB, a.batch * a.seq, dtype=np.uint16), 64)
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, tokens.size
    data = folder + "/dev/data/tinyshakespeare"
    os.makedirs(data)
    for name in ("train", "val"):
        with open(f"{data}/tiny_shakespeare_{name}.bin", "wb") as f:
            f.write(header.tobytes() + tokens.tobytes())
    return f"{data}/tiny_shakespeare_train.bin"


def run_titan(a, folder, tokens):
    out = folder + "/titan"
    subprocess.run(["rm", "-rf", out], check=True)
    command = [a.titan, "train", "--model.name=gpt2", "--model.flavor=hf", f"--model.hf_assets_path={folder}",
               "--checkpoint.initial_load_in_hf=true", "--checkpoint.enable=false", "--training.dataset=tokens",
               f"--training.dataset_path={tokens}", "--dataloader.shuffle=false", f"--training.seq_len={a.seq}",
               f"--training.local_batch_size={a.batch}", f"--training.global_batch_size={a.batch}",
               f"--training.steps={a.steps}", "--training.max_norm=1e9",
               "--optimizer.lr=1e-4", "--optimizer.beta2=0.999", "--optimizer.weight_decay=0",
               "--lr_scheduler.warmup_steps=0", "--lr_scheduler.decay_ratio=0", "--metrics.log_freq=1",
               f"--job.dump_folder={out}", f"--parallelism.threads_per_rank={a.threads}", "--metrics.peak_flops=1e11"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    steps = [r for r in map(json.loads, open(out + "/metrics.jsonl")) if r["type"] == "step"]
    return [s["loss"] for s in steps], [s["step_time_s"] for s in steps]


def run_llmc(a, folder):
    losses, seconds = [], []
    env = os.environ | {"OMP_NUM_THREADS": str(a.threads)}
    with subprocess.Popen(["stdbuf", "-oL", os.path.abspath(a.llmc)], cwd=folder, env=env, stdout=subprocess.PIPE,
                          text=True) as process:
        for line in process.stdout:
            found = re.match(r"step \d+: train loss ([\d.]+) \(took ([\d.]+) ms\)", line)
            if found:
                losses.append(float(found[1]))
                seconds.append(float(found[2]) / 1e3)
            if len(losses) == a.steps:
                process.kill()
    return losses, seconds


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--titan", required=True)
    parser.add_argument("--llmc", required=True)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    if np is None:
        parser.error(f"{sys.executable} has no numpy: run this with a Python that has it")
    for program in (a.titan, a.llmc):
        if not os.access(program, os.X_OK):
            parser.error(f"no program at '{program}'")

    rates = []
    with tempfile.TemporaryDirectory() as folder:
        weights = make_weights()
        write_hf(weights, folder)
        write_llmc(weights, folder)
        tokens = write_tokens(a, folder)
        for _ in range(a.rounds):
            ours, our_seconds = run_titan(a, folder, tokens)
            theirs, their_seconds = run_llmc(a, folder)
            off = max(abs(x - y) for x, y in zip(ours, theirs))
            if len(theirs) != a.steps or off > 1e-3:
                sys.exit(f"losses differ: {ours} {theirs}")
            rates.append([a.batch * a.seq / statistics.median(s[1:]) for s in (our_seconds, their_seconds)])
    cpu = cpu_name()
    ratios = sorted(x / y for x, y in rates)
    print(f"{cpu}; GPT-2 124M, batch {a.batch}, {a.seq} tokens, {a.threads} threads, "
          f"{a.rounds} rounds of {a.steps} steps")
    print(f"titan {statistics.median(r[0] for r in rates):.1f} tok/s, "
          f"llm.c {statistics.median(r[1] for r in rates):.1f} tok/s, "
          f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}), losses within {off:.0e}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""titan and PyTorch on the same model, weights, tokens and batch, in turn: tokens per second as medians of paired
ratios.

    tests/bench/against_pytorch.py --titan build/titan --python PYTHON_WITH_TORCH [--flavor 125M] \
        [--seq 1024] [--batch 2]
        [--modes eager,compile,fsdp2] [--rounds 3] [--steps 4] [--out result.json]

Modes: eager, compile and fsdp2 in float32; autocast, pure and fsdp2_bf16 in bfloat16 (llama_torch.py), against titan
with mixed_precision_param bfloat16; titan is titan in bfloat16 against titan in float32.

Losses are compared first, since speeds mean nothing if the two sides do not compute the same thing. Each round runs
titan and each mode once; the first step of a run (compilation, first touch) does not count. eager and compile run in
one process with --threads threads, as titan then does. fsdp2 runs two processes of one thread over gloo, and is
compared with two ranks of titan. A benchmark, never a test.
"""
import argparse
import glob
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LR = 1e-4
BF16_MODES = ("autocast", "pure", "fsdp2_bf16", "titan")
# How far the losses of a few steps may differ: rounding of sums, or of every value that is stored.
CLOSE = {"float32": 1e-4, "bfloat16": 1e-2}

FLAVORS = {
    "125M": dict(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, num_key_value_heads=4, head_dim=64,
                 intermediate_size=2048, vocab_size=32000),
    "debugmodel": dict(hidden_size=256, num_hidden_layers=6, num_attention_heads=16, num_key_value_heads=16,
                       head_dim=16, intermediate_size=768, vocab_size=2048),
}

WRITE_MODEL = """
import json, sys, torch
from safetensors.torch import save_file
config, folder = json.loads(sys.argv[1]), sys.argv[2]
g = torch.Generator().manual_seed(7)
d, h, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
q, kv = config["num_attention_heads"] * config["head_dim"], config["num_key_value_heads"] * config["head_dim"]
shapes = {"model.embed_tokens.weight": (v, d), "model.norm.weight": (d,), "lm_head.weight": (v, d)}
for i in range(config["num_hidden_layers"]):
    p = f"model.layers.{i}."
    shapes |= {p + "input_layernorm.weight": (d,), p + "post_attention_layernorm.weight": (d,),
               p + "self_attn.q_proj.weight": (q, d), p + "self_attn.k_proj.weight": (kv, d),
               p + "self_attn.v_proj.weight": (kv, d), p + "self_attn.o_proj.weight": (d, q),
               p + "mlp.gate_proj.weight": (h, d), p + "mlp.up_proj.weight": (h, d), p + "mlp.down_proj.weight": (d, h)}
save_file({n: torch.ones(s) if len(s) == 1 else torch.randn(s, generator=g) * 0.02 for n, s in shapes.items()},
          folder + "/model.safetensors", metadata={"format": "pt"})
json.dump(config, open(folder + "/config.json", "w"))
tokens = torch.randint(0, v, (int(sys.argv[3]),), generator=g).to(torch.uint16)
tokens.numpy().tofile(folder + "/tokens.bin")
"""


def cpu_name():
    """The processor's name; Arm's kernels know only the numbers of its designer and of its core."""
    found = {}
    for line in open("/proc/cpuinfo"):
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    numbers = [f"{key} {found[key]}" for key in ("CPU implementer", "CPU part") if key in found]
    return found.get("model name") or ", ".join(numbers) or "unknown processor"


def run_titan(a, work, ranks, threads, dtype):
    """Without a file of weights in `work`, titan makes its own."""
    out = os.path.join(work, "titan")
    subprocess.run(["rm", "-rf", out], check=True)
    command = [] if ranks == 1 else [os.path.join(ROOT, "tools/run-ranks"), str(ranks)]
    command += [a.titan, "train", "--model.name=llama3", "--model.flavor=hf", f"--model.hf_assets_path={work}",
                "--checkpoint.enable=false", "--training.dataset=tokens_u16",
                f"--training.dataset_path={work}/tokens.bin", "--dataloader.shuffle=false",
                f"--training.seq_len={a.seq}", f"--training.local_batch_size={a.batch // ranks}",
                f"--training.global_batch_size={a.batch}",
                f"--training.steps={a.steps}", f"--optimizer.lr={LR}", "--lr_scheduler.warmup_steps=0",
                "--lr_scheduler.decay_ratio=0", "--metrics.log_freq=1", f"--job.dump_folder={out}",
                f"--parallelism.threads_per_rank={threads}", "--metrics.peak_flops=1e11",
                f"--training.mixed_precision_param={dtype}"] + a.titan_options
    if glob.glob(work + "/*.safetensors"):
        command.append("--checkpoint.initial_load_in_hf=true")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    steps = [r for r in map(json.loads, open(out + "/metrics.jsonl")) if r["type"] == "step"]
    return {"losses": [s["loss"] for s in steps], "seconds": [s["step_time_s"] for s in steps],
            "rss": max(s["memory_gib"] for s in steps) * 2**30}


def run_other(a, work, mode):
    """The side that titan is compared with."""
    if mode == "titan":
        return run_titan(a, work, 1, a.threads, "float32") | {"torch": "-"}
    options = ["--model", work, "--tokens", work + "/tokens.bin", "--seq", str(a.seq), "--batch", str(a.batch),
               "--steps", str(a.steps), "--lr", str(LR), "--mode", mode]
    script = os.path.join(HERE, "llama_torch.py")
    if mode.startswith("fsdp2"):
        command = [a.python, "-m", "torch.distributed.run", "--nproc-per-node", "2", script, "--threads", "1"]
    else:
        command = [a.python, script, "--threads", str(a.threads)]
    done = subprocess.run(command + options, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


def rate(a, result):
    return a.batch * a.seq / statistics.median(result["seconds"][1:])


def difference(x, y):
    return max(abs(p / q - 1.0) for p, q in zip(x["losses"], y["losses"]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--titan", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--flavor", choices=FLAVORS, default="125M")
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--modes", default="eager,compile,fsdp2")
    parser.add_argument("--out")
    parser.add_argument("titan_options", nargs="*", help="after --: more options of titan train")
    a = parser.parse_args()
    needed = [a.python, "-c", "import torch, safetensors, numpy"]
    if not shutil.which(a.python) or subprocess.run(needed, stderr=subprocess.DEVNULL).returncode:
        parser.error(f"{a.python} has no PyTorch, safetensors or numpy: name one that has them with --python")
    if not os.access(a.titan, os.X_OK):
        parser.error(f"no program at '{a.titan}'")

    config = FLAVORS[a.flavor] | {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5,
                                  "rope_theta": 10000.0, "tie_word_embeddings": False, "max_position_embeddings": 8192}
    pairs = {mode: [] for mode in a.modes.split(",")}
    with tempfile.TemporaryDirectory() as work:
        subprocess.run([a.python, "-c", WRITE_MODEL, json.dumps(config), work,
                        str(a.steps * a.batch * a.seq + a.seq)], check=True)
        for _ in range(a.rounds):
            for mode, done in pairs.items():
                ranks = 2 if mode.startswith("fsdp2") else 1
                dtype = "bfloat16" if mode in BF16_MODES else "float32"
                ours = run_titan(a, work, ranks, 1 if ranks == 2 else a.threads, dtype)
                theirs = run_other(a, work, mode)
                off = difference(ours, theirs)
                if off > CLOSE[dtype]:
                    sys.exit(f"{mode}: losses differ by {off:.1e}: {ours['losses']} {theirs['losses']}")
                done.append({"titan": rate(a, ours), "torch": rate(a, theirs), "rss": ours["rss"] / theirs["rss"],
                             "off": off, "version": theirs["torch"]})
    cpu = cpu_name()
    print(f"{cpu}; {a.flavor}, seq {a.seq}, batch {a.batch}, {a.rounds} rounds of {a.steps} steps, "
          "the first not counted")
    for mode, done in pairs.items():
        ratios = sorted(d["titan"] / d["torch"] for d in done)
        other = "float32" if mode == "titan" else "PyTorch " + done[0]["version"]
        print(f"{mode:10s} titan {statistics.median(d['titan'] for d in done):8.1f} tok/s, {other} "
              f"{statistics.median(d['torch'] for d in done):8.1f} tok/s, ratio {statistics.median(ratios):.2f} "
              f"({ratios[0]:.2f} to {ratios[-1]:.2f}), memory {statistics.median(d['rss'] for d in done):.2f} x, "
              f"losses within {max(d['off'] for d in done):.0e}")
    if a.out:
        with open(a.out, "w") as f:
            json.dump({"cpu": cpu, "flavor": a.flavor, "seq": a.seq, "batch": a.batch, "pairs": pairs}, f, indent=1)


if __name__ == "__main__":
    main()

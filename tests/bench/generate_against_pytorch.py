#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""titan generate and transformers' generate on the same model, weights and prompts, in float32 and in bfloat16, in
turn: tokens per second as medians, and how many tokens of the greedy texts agree.

    tests/bench/generate_against_pytorch.py --titan build/titan --python PYTHON_WITH_TRANSFORMERS [--flavor 125M]
        [--prompts 10] [--prompt 64] [--new 64] [--rounds 3] [--threads 2] [--out result.json]

The weights are stored in bfloat16, so that all four sides have the same. Only tokens after the first are timed: the
first follows from the prompt. A benchmark, never a test.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from against_pytorch import FLAVORS, WRITE_MODEL, cpu_name

TYPES = ("float32", "bfloat16")

# Prints one JSON line: for each prompt its new tokens, and the seconds of all but the first.
TORCH_SIDE = """
import json, sys, time, torch, transformers
folder, dtype, threads, new, prompts = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
torch.set_num_threads(threads)
model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
def generate(prompt, n):
    start = time.perf_counter()
    out = model.generate(torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                         do_sample=False, max_new_tokens=n, min_new_tokens=n, pad_token_id=0)
    return out[0, len(prompt):].tolist(), time.perf_counter() - start
texts = []
generate(json.loads(prompts)[0], 4)
for prompt in json.loads(prompts):
    first = generate(prompt, 1)[1]
    tokens, seconds = generate(prompt, new)
    texts.append({"tokens": tokens, "seconds": seconds - first})
print(json.dumps({"texts": texts, "version": f"{torch.__version__}, transformers {transformers.__version__}"}))
"""


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def run_titan(a, folder, dtype, prompts):
    texts = []
    for prompt in prompts:
        found = json.loads(run([a.titan, "generate", folder, "--greedy", "--ignore-eos", "--json", "--dtype", dtype,
                                "--prompt-tokens", ",".join(map(str, prompt)), "--max-new-tokens", str(a.new),
                                "--threads", str(a.threads)]))
        texts.append({"tokens": found["tokens"], "seconds": found["seconds"], "memory": found["memory_bytes"]})
    return {"texts": texts}


def run_torch(a, folder, dtype, prompts):
    return json.loads(run([a.python, "-c", TORCH_SIDE, folder, dtype, str(a.threads), str(a.new),
                           json.dumps(prompts)]).splitlines()[-1])


def rate(a, result):
    return statistics.median((a.new - 1) / text["seconds"] for text in result["texts"])


def agree(x, y):
    """The tokens before the first difference, of all texts together."""
    pairs = [(p["tokens"], q["tokens"]) for p, q in zip(x["texts"], y["texts"])]
    return sum(next((i for i in range(len(p)) if p[i] != q[i]), len(p)) for p, q in pairs)


def to_bfloat16(a, folder):
    """titan's format in between: convert goes from one to the other."""
    stored, out = folder + "/stored", folder + "/half"
    run([a.titan, "ckpt", "convert", folder, stored, "--dtype", "bfloat16"])
    run([a.titan, "ckpt", "convert", stored, out])
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--titan", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--flavor", choices=FLAVORS, default="125M")
    for option, default in (("prompts", 10), ("prompt", 64), ("new", 64), ("rounds", 3), ("threads", 2)):
        parser.add_argument("--" + option, type=int, default=default)
    parser.add_argument("--out")
    a = parser.parse_args()
    config = FLAVORS[a.flavor] | {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5,
                                  "rope_theta": 10000.0, "tie_word_embeddings": False, "max_position_embeddings": 8192}
    prompts = [[(7 + 31 * p + 17 * i * i) % config["vocab_size"] for i in range(a.prompt)] for p in range(a.prompts)]
    rounds, last = [], {}
    with tempfile.TemporaryDirectory() as work:
        run([a.python, "-c", WRITE_MODEL, json.dumps(config), work, "1"])
        folder = to_bfloat16(a, work)
        for _ in range(a.rounds):
            for dtype in TYPES:
                last["titan", dtype] = run_titan(a, folder, dtype, prompts)
                last["torch", dtype] = run_torch(a, folder, dtype, prompts)
            rounds.append({"-".join(key): rate(a, result) for key, result in last.items()})
    cpu = cpu_name()
    print(f"{cpu}, {a.threads} threads; {a.flavor}, {a.prompts} prompts of {a.prompt} tokens, {a.new} new; "
          f"PyTorch {last['torch', 'float32']['version']}")
    for key in rounds[0]:
        print(f"{key:16s} {statistics.median(r[key] for r in rounds):7.1f} tokens/s")
    for name, over, under in (("bfloat16 / float32", "titan-bfloat16", "titan-float32"),
                              ("titan / PyTorch, float32", "titan-float32", "torch-float32"),
                              ("titan / PyTorch, bfloat16", "titan-bfloat16", "torch-bfloat16")):
        print(f"{name:26s} {statistics.median(r[over] / r[under] for r in rounds):5.2f}")
    total = a.prompts * a.new
    print(f"tokens before the first difference, of {total}: titan and PyTorch in float32 "
          f"{agree(last['titan', 'float32'], last['torch', 'float32'])}, titan in bfloat16 and float32 "
          f"{agree(last['titan', 'bfloat16'], last['titan', 'float32'])}")
    memory = [last["titan", dtype]["texts"][0]["memory"] / 2**20 for dtype in TYPES]
    print(f"titan's memory: {memory[0]:.0f} MiB, in bfloat16 {memory[1]:.0f} MiB")
    if a.out:
        json.dump(rounds, open(a.out, "w"))


if __name__ == "__main__":
    main()

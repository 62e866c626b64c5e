#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The speed of titan on this host's processor, as one Markdown table: products of matrices by every kernel variant,
training steps, FSDP on two ranks, a mixture of experts and generation in float32 and bfloat16, next to PyTorch.

    tests/bench/processor.py --titan build/titan [--python PYTHON_WITH_TRANSFORMERS] [--quick | --long] [--rounds 1]
        [--threads 2] [--only products,125M,debugmodel,fsdp,experts,generate] [--steps 3] [--skip WORD,...]
        [--out result.json]

Without PyTorch, its columns stay empty. What fails, such as a way that this version of PyTorch does not know, is left
out and named below the table. If TITAN_CPU is set, titan uses that variant of its kernels instead of its own choice.

Each kind of work is done by all sides in turn, --rounds times; the numbers are medians, of tokens per second where
nothing else is said. The last column is the number that counts: titan's type for this processor, that is, what its
banner recommends, against the fastest of PyTorch's, whatever its type. Losses of training are compared, since speeds
mean nothing if two sides do not compute the same thing. Each result is also printed when it comes, on stderr; --out has
all of them.

On two cores this takes about seven minutes. --long: half an hour or more: three rounds, more layers and texts,
PyTorch's slower ways too, products in portable C, and bfloat16 by each of titan's kernels. --quick: small models, tiny
sizes, a few minutes; it shows only that everything runs. --skip leaves out kernel variants and ways of PyTorch by name
(pure, avx2). A benchmark, never a test. It needs a quiet machine and prints the load.
"""
import argparse
import array
import contextlib
import copy
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import against_pytorch
import experts_against_pytorch
import generate_against_pytorch

WORKS = ("products", "125M", "debugmodel", "fsdp", "experts", "generate")
# PyTorch's ways of the kinds of work, by type, the usually fastest one first.
TRAINING = {"float32": ("eager", "compile"), "bfloat16": ("autocast", "pure")}
FSDP = {"float32": ("fsdp2",), "bfloat16": ("fsdp2_bf16",)}
EXPERTS = {"float32": ("grouped_mm", "eager"),
           "bfloat16": ("grouped_mm-autocast", "grouped_mm-pure", "eager-autocast", "eager-pure")}

# The fastest of some products x w^T in each type; prints one JSON line of GF/s.
TORCH_PRODUCTS = """
import json, sys, time, torch
threads, seconds, shapes = int(sys.argv[1]), float(sys.argv[2]), json.loads(sys.argv[3])
torch.set_num_threads(threads)
best = {"float32": 0.0, "bfloat16": 0.0}
for name in best:
    for m, n, k in shapes:
        x, w = (torch.randn(rows, k).to(getattr(torch, name)) for rows in (m, n))
        end = time.perf_counter() + seconds / len(shapes) / 2
        while time.perf_counter() < end:
            start = time.perf_counter()
            x @ w.T
            best[name] = max(best[name], 2e-9 * m * n * k / (time.perf_counter() - start))
print(json.dumps(best))
"""


@contextlib.contextmanager
def variant(name):
    """titan's commands use this variant of its kernels; None: the one that titan or the user chooses."""
    before = os.environ.get("TITAN_CPU")
    if name:
        os.environ["TITAN_CPU"] = name
    try:
        yield
    finally:
        os.environ.pop("TITAN_CPU", None)
        if before is not None:
            os.environ["TITAN_CPU"] = before


def output(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr or done.stdout)
    return done.stdout


left_out = {}  # name -> why


def attempt(name, work):
    """The result of work(); None if it ends with a message, which is printed now and below the table: its last line, as
    Python's messages have the cause there, except for titan's help."""
    try:
        return work()
    except SystemExit as end:
        lines = [line for line in str(end).strip().splitlines() if not line.startswith("help:")]
        left_out[name] = lines[-1] if lines else "it failed"
        print(f"{name} is left out: {left_out[name]}", file=sys.stderr, flush=True)
        return None


def cpu_line(name):
    """The processor: its name, its identification and its number of cores."""
    found = {}
    for line in open("/proc/cpuinfo"):
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    facts = [f"{key} {found[key]}" for key in ("vendor_id", "cpu family", "model", "stepping", "CPU implementer",
                                               "CPU part") if key in found]
    flags = found.get("flags", found.get("Features", "")).split()
    known = [f for f in ("fma", "avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16") if f in flags]
    return f"{name} ({', '.join(facts)}; {' '.join(known)}), {os.cpu_count()} CPUs"


def load():
    with open("/proc/loadavg") as f:
        return f"load {f.read().split()[0]}"


def variants_here(titan):
    """The variants that titan and this processor have; the message about one that there is not lists them."""
    done = subprocess.run([titan, "bench", "--only", "sgemm"], capture_output=True, text=True,
                          env=os.environ | {"TITAN_CPU": "?"})
    if "one of " not in done.stderr:
        sys.exit(done.stderr)
    return done.stderr.strip().split("one of ")[-1].split(", ")[::-1]  # the slowest one first


def host(titan):
    """The variant in use, and the findings of titan doctor: check -> finding."""
    kernels = json.loads(output([titan, "version", "--json"]))["kernels"]
    done = subprocess.run([titan, "doctor", "--json"], capture_output=True, text=True)  # fails if something is wrong
    return kernels, {c["check"]: c for c in json.loads(done.stdout)["checks"]}


def recommended(words):
    """The type that titan's banner recommends, from doctor's words about the kernels."""
    by = re.search(r"products of bfloat16 by (\w+)", words)
    rate = by and re.search(by[1] + r" runs at ([\d.e+]+) times", words)
    return "bfloat16" if rate and float(rate[1]) > 1.0 else "float32"


# --- products ---

def bench(a):
    """titan's rates, one record a round."""
    return [json.loads(output([a.titan, "bench", "--only", "sgemm", "--seconds", str(a.product_seconds), "--json",
                               f"--parallelism.threads_per_rank={a.threads}"])) for _ in range(a.rounds)]


def products(a, here, kernels):
    """Rows of the table: the variant that titan chooses, against PyTorch, then the others."""
    rows, shapes = [], []
    for name in [kernels] + [name for name in here if name != kernels]:
        with variant(name):
            if name == kernels:
                runs = bench(a)
            else:
                runs = attempt(f"products, {name}", lambda: bench(a))
        if not runs:
            continue
        shapes = [[row[side] for side in "mnk"] for row in runs[0]["sgemm"] if row["threads"] == a.threads]
        rates = {"titan float32": [r["sgemm_gflops"] for r in runs],
                 "titan bfloat16": [r["bgemm_gflops"] for r in runs]}
        by = f"{name}, {runs[0]['blas']}" if name == "blas" else name
        rows.append((f"products, GF/s, {by}", rates))
        print(rows[-1], file=sys.stderr, flush=True)
    for _ in range(a.rounds if a.torch else 0):
        found = json.loads(output([a.python, "-c", TORCH_PRODUCTS, str(a.threads), str(a.product_seconds),
                                   json.dumps(shapes)]))
        for dtype, rate in found.items():
            rows[0][1].setdefault(f"PyTorch {dtype} mm", []).append(rate)
    return rows


# --- work with tokens ---

def sides_of(a, ways):
    """(name, type, variant or None, PyTorch's way or None)"""
    sides = [("titan float32", "float32", None, None), ("titan bfloat16", "bfloat16", None, None)]
    sides += [(f"titan bfloat16 {name}", "bfloat16", name, None) for name in a.others]
    return sides + [(f"PyTorch {dtype} {way}", dtype, None, way) for dtype in ways for way in ways[dtype]
                    if a.torch and way not in a.skip]


def check_losses(results, close):
    """All sides compared with titan of the same type."""
    ours = {"float32": results["titan float32"], "bfloat16": results["titan bfloat16"]}
    for name, result in results.items():
        dtype = name.split()[1]
        off = against_pytorch.difference(ours[dtype], result)
        if off > close[dtype]:
            sys.exit(f"{name}: losses differ from titan's by {off:.1e}: {ours[dtype]['losses']} {result['losses']}")


def race(a, work, sides, run_titan, run_torch, rate, close=None):
    """Runs all sides in turn. name -> rates, one a round"""
    rates = {name: [] for name, *_ in sides}
    for _ in range(a.rounds):
        results = {}
        for name, dtype, kernels, way in sides:
            if way:
                result = attempt(f"{work}, {name}", lambda: run_torch(dtype, way))
            else:
                with variant(kernels):
                    result = run_titan(dtype)
            if result:
                results[name] = result
                print(f"{name}: {rate(result):.1f} tokens/s", file=sys.stderr, flush=True)
        if close:
            check_losses(results, close)
        for name, result in results.items():
            rates[name].append(rate(result))
    return {name: r for name, r in rates.items() if r}


def write_model(a, config, folder, tokens, script):
    """A model and a file of tokens, by a script for PyTorch. Without PyTorch titan makes the weights, the same ones in
    every run."""
    if a.torch:
        output([a.python, "-c", script, json.dumps(config), folder, str(tokens)])
        return
    with open(folder + "/config.json", "w") as f:
        json.dump({"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"]} | config, f)
    numbers = random.Random(7)
    with open(folder + "/tokens.bin", "wb") as f:
        array.array("H", (numbers.randrange(config["vocab_size"]) for _ in range(tokens))).tofile(f)


def llama(flavor):
    return against_pytorch.FLAVORS[flavor] | {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "max_position_embeddings": 8192}


def train(a, flavor, ranks):
    a = copy.copy(a)
    a.seq, a.batch, a.titan_options = *a.sizes[flavor], []
    ways = TRAINING if ranks == 1 else FSDP
    if not a.long:
        ways = ways | {"float32": ways["float32"][:1]}
    threads = a.threads if ranks == 1 else 1
    with tempfile.TemporaryDirectory() as work:
        write_model(a, llama(flavor), work, a.steps * a.batch * a.seq + a.seq, against_pytorch.WRITE_MODEL)
        return race(a, flavor, sides_of(a, ways),
                    lambda dtype: against_pytorch.run_titan(a, work, ranks, threads, dtype),
                    lambda dtype, way: against_pytorch.run_other(a, work, way),
                    lambda result: against_pytorch.rate(a, result), against_pytorch.CLOSE)


def experts(a):
    a = copy.copy(a)
    a.seq, a.batch, a.titan_options = *a.sizes["experts"][:2], []
    ways = EXPERTS if a.long else {dtype: ways[:1] for dtype, ways in EXPERTS.items()}
    ours = {"float32": "eager", "bfloat16": "eager-autocast"}  # titan's type goes by the name of a way
    config = experts_against_pytorch.CONFIG | {"num_hidden_layers": a.sizes["experts"][2]}
    if a.quick:
        config |= {"num_experts": 8, "num_experts_per_tok": 2}
    with tempfile.TemporaryDirectory() as work:
        write_model(a, config, work, (a.steps * a.batch + 1) * a.seq, experts_against_pytorch.WRITE_MODEL)
        return race(a, "experts", sides_of(a, ways),
                    lambda dtype: experts_against_pytorch.run_titan(a, work, ours[dtype]),
                    lambda dtype, way: experts_against_pytorch.run_torch(a, work, way),
                    lambda result: against_pytorch.rate(a, result), experts_against_pytorch.CLOSE)


def train_once(a, work):
    """A model in bfloat16 that titan trained for one step."""
    once = copy.copy(a)
    once.seq, once.batch, once.steps = 16, 1, 1
    once.titan_options = ["--checkpoint.enable=true"]
    against_pytorch.run_titan(once, work, 1, a.threads, "float32")
    output([a.titan, "ckpt", "consolidate", work + "/titan", work + "/half", "--format", "hf", "--dtype", "bfloat16"])
    return work + "/half"


def generate(a):
    a = copy.copy(a)
    flavor, prompts, length, a.new = a.sizes["generate"]
    config = llama(flavor)
    texts = [[(7 + 31 * p + 17 * i * i) % config["vocab_size"] for i in range(length)] for p in range(prompts)]
    ways = {dtype: ("transformers",) for dtype in ("float32", "bfloat16")}
    with tempfile.TemporaryDirectory() as work:
        write_model(a, config, work, 64, against_pytorch.WRITE_MODEL)
        if a.torch:
            folder = generate_against_pytorch.to_bfloat16(a, work)
        else:
            folder = train_once(a, work)
        return race(a, "generate", sides_of(a, ways),
                    lambda dtype: generate_against_pytorch.run_titan(a, folder, dtype, texts),
                    lambda dtype, way: generate_against_pytorch.run_torch(a, folder, dtype, texts),
                    lambda result: generate_against_pytorch.rate(a, result))


# --- the table ---

def best_of(rates, start):
    """The fastest of the sides whose names begin so: its median, and the rest of its name. None: there is none."""
    return max(((statistics.median(r), name[len(start):].strip()) for name, r in rates.items()
                if name.startswith(start)), default=None)


def ratio(over, under):
    return f"{over[0] / under[0]:.2f}" if over and under else ""


def number(found):
    if not found:
        return ""
    return f"{found[0]:,.{0 if found[0] >= 1000 else 1}f}" + (f" ({found[1]})" if found[1] else "")


def table(rows, picks):
    """titan's numbers are those of the kernels that it chooses."""
    print("| tokens/s | titan float32 | titan bfloat16 | PyTorch float32 | PyTorch bfloat16 | float32 ratio | "
          "bfloat16 ratio | titan's choice / PyTorch's fastest |\n|---|---|---|---|---|---|---|---|")
    for work, rates in rows:
        titan = {dtype: (statistics.median(rates[f"titan {dtype}"]), "") for dtype in ("float32", "bfloat16")}
        torch = {dtype: best_of(rates, f"PyTorch {dtype}") for dtype in titan}
        last = ratio(titan[picks], best_of(rates, "PyTorch"))
        print(f"| {work} | {number(titan['float32'])} | {number(titan['bfloat16'])} | {number(torch['float32'])} | "
              f"{number(torch['bfloat16'])} | {ratio(titan['float32'], torch['float32'])} | "
              f"{ratio(titan['bfloat16'], torch['bfloat16'])} | {f'**{last}**' if last else ''} |")
        for name, r in rates.items():  # --long
            if name.startswith("titan bfloat16 "):
                print(f"| {work}, {name.split()[2]} | | {statistics.median(r):,.1f} | | | | | |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--titan", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--steps", type=int, help="of training, of which the first does not count (default 3)")
    parser.add_argument("--only", default=",".join(WORKS))
    parser.add_argument("--skip", default="")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true")
    length.add_argument("--long", action="store_true")
    parser.add_argument("--out")
    a = parser.parse_args()
    for word in a.only.split(","):
        if word not in WORKS:
            parser.error(f"--only {word}: not one of {', '.join(WORKS)}")
    if not os.access(a.titan, os.X_OK):
        parser.error(f"no program at '{a.titan}'")
    if not shutil.which(a.python):
        parser.error(f"no program '{a.python}'")
    versions = attempt("PyTorch", lambda: output(
        [a.python, "-c", "import numpy, safetensors, torch, transformers\n"
         "print('PyTorch', torch.__version__ + ', transformers', transformers.__version__)"]).strip())
    a.torch = versions is not None
    began = time.monotonic()
    a.rounds = a.rounds or (3 if a.long else 1)
    a.steps = a.steps or (2 if a.quick else 4 if a.long else 3)
    a.skip = a.skip.split(",")
    a.product_seconds = 0.5 if a.quick else 10 if a.long else 2
    a.sizes = {"125M": (1024, 2), "debugmodel": (2048, 2), "experts": (1024, 2, 8 if a.long else 3),
               "generate": ("125M", 10 if a.long else 4, 64, 64)}
    if a.quick:
        a.sizes = {"125M": (64, 2), "debugmodel": (64, 2), "experts": (64, 2, 1), "generate": ("debugmodel", 1, 8, 8)}

    here = [name for name in variants_here(a.titan) if name not in a.skip]
    if not a.long and len(here) > 2:  # emulated multiply-adds take minutes
        here = [name for name in here if name != "generic"]
    kernels, findings = host(a.titan)
    words = findings["cpu"]["found"]
    busy = findings["load"]["level"] != "ok"
    # the other ways to multiply bfloat16 with the same float32 kernels
    wide = [name for name in here if name not in ("blas", "generic", "avx2", "neon")]
    a.others = [name for name in wide if a.long and name != kernels and kernels in wide]
    cpu = cpu_line(findings["cores"]["found"].split(", ")[0])
    print(f"{cpu}; {a.threads} threads; titan's choice: {words}; {versions or 'no PyTorch'}; "
          f"{findings['load']['found'] if busy else load()}"
          f"{'; --quick: these numbers mean nothing' if a.quick else ''}\n")
    rows, flavor = [], "debugmodel" if a.quick else "125M"
    for word in a.only.split(","):
        if word == "products":
            rows += products(a, here, kernels)
        elif word == "experts":
            rows.append((f"Qwen3 mixture of experts, {a.sizes['experts'][2]} layers", experts(a)))
        elif word == "generate":
            rows.append((f"generate, {a.sizes['generate'][0]}", generate(a)))
        elif word == "fsdp":
            rows.append((f"{flavor}, FSDP on two ranks", train(a, flavor, 2)))
        else:
            word = flavor if word == "125M" else word
            rows.append((word, train(a, word, 1)))
    table(rows, recommended(words))
    for name, why in left_out.items():
        print(f"\nleft out: {name}: {why}")
    print(f"\n{load()} at the end; {time.monotonic() - began:.0f} s; rounds of {a.steps} steps: {a.rounds}")
    if a.out:
        with open(a.out, "w") as f:
            json.dump({"cpu": cpu, "kernels": kernels, "rates": dict(rows)}, f, indent=1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The speed of titan on this host's processor, as one table: products by every kernel variant, and training steps, FSDP
on two ranks, a mixture of experts and generation in float32 and bfloat16, next to PyTorch in all its ways.

    tests/bench/processor.py --titan build/titan --python PYTHON_WITH_TRANSFORMERS [--quick] [--rounds 3]
        [--threads 2] [--only products,125M,debugmodel,fsdp,experts,generate] [--steps 4] [--skip WORD,...]
        [--out result.json]

Each kind of work is done by all sides in turn, --rounds times; the numbers are medians of tokens per second. The
last column is the number that counts: titan in the type that its banner recommends for this processor, compared with
PyTorch's fastest side, whatever its type. Losses of training are compared, since speeds mean nothing if two sides do
not compute the same thing. If the processor has several kernels for products of bfloat16, the steps run with each.
--skip leaves out kernel variants and ways of PyTorch by name (compile, generic). Each result is also printed when it
comes, on stderr.

--quick: small models, tiny sizes, one round, a few minutes; it shows only that everything runs. A benchmark, never a
test. It needs a quiet machine and prints the load.
"""
import argparse
import contextlib
import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile

import against_pytorch
import experts_against_pytorch
import generate_against_pytorch

WORKS = ("products", "125M", "debugmodel", "fsdp", "experts", "generate")
# PyTorch's ways of the kinds of work, by type.
TRAINING = {"float32": ("eager", "compile"), "bfloat16": ("autocast", "pure")}
FSDP = {"float32": ("fsdp2",), "bfloat16": ("fsdp2_bf16",)}
EXPERTS = {"float32": ("eager", "grouped_mm"),
           "bfloat16": ("eager-autocast", "grouped_mm-autocast", "eager-pure", "grouped_mm-pure")}


@contextlib.contextmanager
def variant(name):
    """titan's commands use this variant of its kernels; None: the one that titan chooses."""
    before = os.environ.pop("TITAN_CPU", None)
    if name:
        os.environ["TITAN_CPU"] = name
    try:
        yield
    finally:
        os.environ.pop("TITAN_CPU", None)
        if before:
            os.environ["TITAN_CPU"] = before


def output(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr or done.stdout)
    return done.stdout


def cpu_lines():
    """The processor: its name, its identification and its number of cores."""
    found = {}
    for line in open("/proc/cpuinfo"):
        key, _, value = line.partition(":")
        found.setdefault(key.strip(), value.strip())
    name = found.get("model name") or found.get("CPU part") or "unknown processor"
    numbers = ", ".join(f"{key} {found[key]}" for key in ("vendor_id", "cpu family", "model", "stepping")
                        if key in found)
    flags = [f for f in ("fma", "avx2", "avx512f", "avx512_bf16", "amx_bf16")
             if f in found.get("flags", "").split()]
    return f"{name} ({numbers}; {' '.join(flags)}), {os.cpu_count()} CPUs"


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


def chosen(titan):
    """The variant that titan chooses, and how it multiplies bfloat16."""
    with variant(None):
        kernels = json.loads(output([titan, "version", "--json"]))["kernels"]
        words = next(c["found"] for c in json.loads(output([titan, "doctor", "--json"]))["checks"]
                     if c["check"] == "cpu")
    return kernels, words


# --- products ---

def products(a, here):
    rows = []
    for name in here:
        with variant(name):
            runs = [json.loads(output([a.titan, "bench", "--only", "sgemm", "--seconds", str(a.product_seconds),
                                       "--json", f"--parallelism.threads_per_rank={a.threads}"]))
                    for _ in range(a.rounds)]
        rows.append({"variant": name, "blas": runs[0]["blas"],
                     "float32": max(r["sgemm_gflops"] for r in runs),
                     "bfloat16": max(r["bgemm_gflops"] for r in runs)})
    print("| products, GF/s | float32 | bfloat16 |\n|---|---|---|")
    for r in rows:
        by = f"{r['variant']}, {r['blas']}" if r["variant"] == "blas" else r["variant"]
        print(f"| {by} | {r['float32']:.1f} | {r['bfloat16']:.1f} |")
    return rows


# --- work with tokens ---

def sides_of(a, ways):
    """(name, type, variant or None, PyTorch's way or None)"""
    sides = [("titan float32", "float32", None, None), ("titan bfloat16", "bfloat16", None, None)]
    sides += [(f"titan bfloat16 {name}", "bfloat16", name, None) for name in a.others]
    return sides + [(f"PyTorch {dtype} {way}", dtype, None, way) for dtype in ways for way in ways[dtype]
                    if way not in a.skip]


def check_losses(results, close):
    """All sides compared with titan of the same type."""
    ours = {"float32": results["titan float32"], "bfloat16": results["titan bfloat16"]}
    for name, result in results.items():
        dtype = name.split()[1]
        off = against_pytorch.difference(ours[dtype], result)
        if off > close[dtype]:
            sys.exit(f"{name}: losses differ from titan's by {off:.1e}: {ours[dtype]['losses']} {result['losses']}")


def race(a, sides, run_titan, run_torch, rate, close=None):
    """Runs all sides in turn. name -> rates, one a round"""
    rates = {name: [] for name, *_ in sides}
    for _ in range(a.rounds):
        results = {}
        for name, dtype, kernels, way in sides:
            with variant(kernels):
                results[name] = run_torch(dtype, way) if way else run_titan(dtype)
            print(f"{name}: {rate(results[name]):.1f} tokens/s", file=sys.stderr, flush=True)
        if close:
            check_losses(results, close)
        for name, result in results.items():
            rates[name].append(rate(result))
    return rates


def llama(flavor):
    return against_pytorch.FLAVORS[flavor] | {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "max_position_embeddings": 8192}


def train(a, flavor, ranks):
    a = copy.copy(a)
    a.seq, a.batch, a.titan_options = *a.sizes[flavor], []
    ways = TRAINING if ranks == 1 else FSDP
    if a.quick and ranks == 1:
        ways = {"float32": ("eager",), "bfloat16": ("autocast",)}
    threads = a.threads if ranks == 1 else 1
    with tempfile.TemporaryDirectory() as work:
        output([a.python, "-c", against_pytorch.WRITE_MODEL, json.dumps(llama(flavor)), work,
                str(a.steps * a.batch * a.seq + a.seq)])
        return race(a, sides_of(a, ways), lambda dtype: against_pytorch.run_titan(a, work, ranks, threads, dtype),
                    lambda dtype, way: against_pytorch.run_other(a, work, way),
                    lambda result: against_pytorch.rate(a, result), against_pytorch.CLOSE)


def experts(a):
    a = copy.copy(a)
    a.seq, a.batch, a.titan_options = *a.sizes["experts"][:2], []
    ways = {"float32": ("eager",), "bfloat16": ("eager-autocast",)} if a.quick else EXPERTS
    ours = {"float32": "eager", "bfloat16": "eager-autocast"}  # titan's type goes by the name of a way
    config = experts_against_pytorch.CONFIG | {"num_hidden_layers": a.sizes["experts"][2]}
    if a.quick:
        config |= {"num_experts": 8, "num_experts_per_tok": 2}
    with tempfile.TemporaryDirectory() as work:
        output([a.python, "-c", experts_against_pytorch.WRITE_MODEL, json.dumps(config), work,
                str((a.steps * a.batch + 1) * a.seq)])
        return race(a, sides_of(a, ways),
                    lambda dtype: experts_against_pytorch.run_titan(a, work, ours[dtype]),
                    lambda dtype, way: experts_against_pytorch.run_torch(a, work, way),
                    lambda result: against_pytorch.rate(a, result), experts_against_pytorch.CLOSE)


def generate(a):
    a = copy.copy(a)
    flavor, prompts, length, a.new = a.sizes["generate"]
    config = llama(flavor)
    texts = [[(7 + 31 * p + 17 * i * i) % config["vocab_size"] for i in range(length)] for p in range(prompts)]
    ways = {dtype: ("transformers",) for dtype in ("float32", "bfloat16")}
    with tempfile.TemporaryDirectory() as work:
        output([a.python, "-c", against_pytorch.WRITE_MODEL, json.dumps(config), work, "1"])
        folder = generate_against_pytorch.to_bfloat16(a, work)
        return race(a, sides_of(a, ways), lambda dtype: generate_against_pytorch.run_titan(a, folder, dtype, texts),
                    lambda dtype, way: generate_against_pytorch.run_torch(a, folder, dtype, texts),
                    lambda result: generate_against_pytorch.rate(a, result))


# --- the table ---

def best_of(rates, start):
    """The fastest side whose name begins with this text: its name and its median."""
    return max(((name, statistics.median(r)) for name, r in rates.items() if name.startswith(start)),
               key=lambda x: x[1])


def table(works, picks):
    print("\n| tokens/s | side | median | smallest | largest |\n|---|---|---|---|---|")
    for work, rates in works.items():
        for name, r in rates.items():
            print(f"| {work} | {name} | {statistics.median(r):.1f} | {min(r):.1f} | {max(r):.1f} |")
    print("\n| ratio | float32 | bfloat16 | titan's bfloat16 / float32 | titan's choice / PyTorch's fastest |\n"
          "|---|---|---|---|---|")
    for work, rates in works.items():
        titan = {dtype: statistics.median(rates[f"titan {dtype}"]) for dtype in ("float32", "bfloat16")}
        torch = {dtype: best_of(rates, f"PyTorch {dtype}")[1] for dtype in titan}
        name, fastest = best_of(rates, "PyTorch")
        print(f"| {work} | {titan['float32'] / torch['float32']:.2f} | {titan['bfloat16'] / torch['bfloat16']:.2f} | "
              f"{titan['bfloat16'] / titan['float32']:.2f} | {titan[picks] / fastest:.2f} ({picks}; {name[8:]}) |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--titan", required=True)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--steps", type=int, help="of training, of which the first does not count (default 4)")
    parser.add_argument("--only", default=",".join(WORKS))
    parser.add_argument("--skip", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out")
    a = parser.parse_args()
    for word in a.only.split(","):
        if word not in WORKS:
            parser.error(f"--only {word}: not one of {', '.join(WORKS)}")
    if not os.access(a.titan, os.X_OK):
        parser.error(f"no program at '{a.titan}'")
    try:
        versions = output([a.python, "-c", "import numpy, safetensors, torch, transformers\n"
                           "print('PyTorch', torch.__version__ + ', transformers', transformers.__version__)"]).strip()
    except OSError:
        parser.error(f"no program '{a.python}'")
    a.rounds = a.rounds or (1 if a.quick else 3)
    a.steps = a.steps or (2 if a.quick else 4)
    a.skip = a.skip.split(",")
    a.product_seconds = 0.5 if a.quick else 10
    a.sizes = ({"125M": (64, 2), "debugmodel": (64, 2), "experts": (64, 2, 1), "generate": ("debugmodel", 1, 8, 8)}
               if a.quick else
               {"125M": (1024, 2), "debugmodel": (2048, 2), "experts": (1024, 2, 8), "generate": ("125M", 10, 64, 64)})

    here = [name for name in variants_here(a.titan) if name not in a.skip]
    kernels, words = chosen(a.titan)
    picks = "float32" if "widened" in words else "bfloat16"
    # the other ways to multiply bfloat16 with the same float32 kernels
    wide = [name for name in here if name not in ("blas", "generic", "avx2", "neon")]
    a.others = [name for name in wide if name != kernels and kernels in wide]
    print(f"{cpu_lines()}; {a.threads} threads; titan's choice: {words}; {versions}; {load()}"
          f"{'; --quick: these numbers mean nothing' if a.quick else ''}\n")
    result = {"cpu": cpu_lines(), "kernels": kernels, "products": [], "tokens_per_s": {}}
    flavor = "debugmodel" if a.quick else "125M"
    for word in a.only.split(","):
        if word == "products":
            result["products"] = products(a, here)
        elif word == "experts":
            result["tokens_per_s"]["Qwen3 mixture of experts"] = experts(a)
        elif word == "generate":
            result["tokens_per_s"]["generate " + a.sizes["generate"][0]] = generate(a)
        elif word == "fsdp":
            result["tokens_per_s"][flavor + ", FSDP on two ranks"] = train(a, flavor, 2)
        else:
            result["tokens_per_s"][flavor if word == "125M" else word] = train(a, flavor if word == "125M" else word, 1)
    table(result["tokens_per_s"], picks)
    print(f"\n{load()} at the end")
    if a.out:
        with open(a.out, "w") as f:
            json.dump(result, f, indent=1)


if __name__ == "__main__":
    main()

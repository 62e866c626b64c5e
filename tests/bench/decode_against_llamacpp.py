#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""titan generate and llama.cpp on the same GGUF files, in turn: tokens per second of a long prompt and of the tokens
after it, as medians, and the rate at which decoding reads the weights, also as a share of the memory bandwidth of
`titan bench`.

    tests/bench/decode_against_llamacpp.py --titan build/titan --python PYTHON_WITH_LLAMA_CPP [--types q4_0,q8_0,bf16]
        [--threads 1,2] [--dtypes float32,bfloat16] [--layers 16] [--prompt 256] [--new 48] [--rounds 3] [--batch 8]
        [--bandwidth GB_PER_SECOND,...] [--no-llama] [--folder KEPT] [--out result.json]

--types int8 and nf4 are for titan alone, which converts the file of bf16 while it loads it. --no-llama measures only
titan and needs no llama.cpp, only the package gguf. --batch N also measures N prompts, together and one by one, and
compares their texts.

The model has the shape of a Llama of 1.1 billion parameters (16 layers) and random weights, whose blocks are written
as they are: no side has to quantise. Both sides read the same file, use the same threads and compute the same number of
tokens; llama.cpp keeps its cache in float16, as by default. A benchmark, never a test.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

DIM, FFN, HEADS, KV_HEADS, VOCAB = 2048, 8192, 32, 8, 32000
CONVERTED = ("int8", "nf4")

# Writes FILE TYPE LAYERS.
WRITE = """
import sys, numpy, gguf
path, kind, layers = sys.argv[1], sys.argv[2], int(sys.argv[3])
dim, ffn, heads, kv, vocab = map(int, sys.argv[4:])
rng = numpy.random.default_rng(1)
types = {"q4_0": gguf.GGMLQuantizationType.Q4_0, "q8_0": gguf.GGMLQuantizationType.Q8_0,
         "bf16": gguf.GGMLQuantizationType.BF16}
w = gguf.GGUFWriter(path, "llama")
w.add_context_length(4096)
w.add_embedding_length(dim)
w.add_block_count(layers)
w.add_feed_forward_length(ffn)
w.add_head_count(heads)
w.add_head_count_kv(kv)
w.add_layer_norm_rms_eps(1e-5)
w.add_rope_freq_base(10000.0)
w.add_vocab_size(vocab)
w.add_tokenizer_model("no_vocab")


def matrix(name, rows, width, of=kind):
    if of == "bf16":
        data = (rng.standard_normal((rows, width), numpy.float32) * 0.02).view(numpy.uint32) >> 16
        data = data.astype(numpy.uint16).view(numpy.uint8)
    else: # a scale in float16 for which the elements are about N(0, 0.02)
        n = rows * (width // 32)
        scale = numpy.full((n, 1), 0.02 / (37 if of == "q8_0" else 4.6), numpy.float16).view(numpy.uint8)
        body = rng.integers(0, 256, (n, 32 if of == "q8_0" else 16), numpy.uint8)
        data = numpy.concatenate([scale, body], 1).reshape(rows, -1)
    w.add_tensor(name, data, raw_shape=data.shape, raw_dtype=types[of])


def ones(name):
    w.add_tensor(name, numpy.ones(dim, numpy.float32))


matrix("token_embd.weight", vocab, dim)
for i in range(layers):
    at = f"blk.{i}."
    ones(at + "attn_norm.weight")
    matrix(at + "attn_q.weight", dim, dim)
    matrix(at + "attn_k.weight", dim // heads * kv, dim)
    matrix(at + "attn_v.weight", dim // heads * kv, dim)
    matrix(at + "attn_output.weight", dim, dim)
    ones(at + "ffn_norm.weight")
    matrix(at + "ffn_gate.weight", ffn, dim)
    matrix(at + "ffn_up.weight", ffn, dim)
    matrix(at + "ffn_down.weight", dim, ffn)
ones("output_norm.weight")
matrix("output.weight", vocab, dim, "q8_0" if kind == "q4_0" else kind)
w.write_header_to_file()
w.write_kv_data_to_file()
w.write_tensors_to_file()
w.close()
"""

# Prints a line of JSON: the seconds of the prompt and of the tokens after it.
LLAMA_SIDE = """
import ctypes, importlib.util, json, os, pathlib, sys, time
package = importlib.util.find_spec("llama_cpp")
folder = os.environ.get("LLAMA_CPP_LIB_PATH") or pathlib.Path(package.origin).parent / "lib"
for name in ("ggml-base", "ggml-cpu", "ggml", "llama"):
    path = pathlib.Path(folder) / f"lib{name}.so"
    if path.is_file():
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
import llama_cpp
path, threads, prompt, new = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4])
model = llama_cpp.Llama(path, n_ctx=len(prompt) + new, n_batch=512, n_ubatch=512, n_threads=threads,
                        n_threads_batch=threads, n_gpu_layers=0, verbose=False)
model.eval(prompt[:8])
model.reset()
start = time.perf_counter()
model.eval(prompt)
middle = time.perf_counter()
for i in range(new):
    model.eval([prompt[i % len(prompt)]])
end = time.perf_counter()
info = llama_cpp.llama_cpp.llama_print_system_info().decode()
print(json.dumps({"prompt": middle - start, "new": end - middle,
                  "version": f"llama-cpp-python {llama_cpp.__version__}", "info": info}))
"""


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def read_bytes(a, kind):
    """The bytes of the matrices that a token needs: all but the embedding, of which it reads one row."""
    layer = 2 * DIM * DIM + 2 * DIM * DIM // HEADS * KV_HEADS + 3 * DIM * FFN
    size = {"q4_0": 18 / 32, "q8_0": 34 / 32, "bf16": 2, "int8": 1, "nf4": 0.5 + 1 / 64}
    head = {"q4_0": "q8_0", "int8": "bf16", "nf4": "bf16"}.get(kind, kind)
    return a.layers * layer * size[kind] + VOCAB * DIM * size[head]


def llama(a, path, threads, prompt):
    found = json.loads(run([a.python, "-c", LLAMA_SIDE, path, str(threads), json.dumps(prompt),
                            str(a.new)]).splitlines()[-1])
    return {"prompt": len(prompt) / found["prompt"], "new": a.new / found["new"], "version": found["version"],
            "info": found["info"]}


def titan_command(a, path, kind, threads, dtype):
    return [a.titan, "generate", path, "--greedy", "--ignore-eos", "--dtype", dtype, "--max-new-tokens", str(a.new + 1),
            "--threads", str(threads), "--weights", kind if kind in CONVERTED else "stored"]


def titan(a, path, kind, threads, prompt, dtype):
    found = json.loads(run([*titan_command(a, path, kind, threads, dtype), "--json", "--prompt-tokens",
                            ",".join(map(str, prompt))]))
    return {"prompt": len(prompt) / found["prompt_seconds"], "new": a.new / found["seconds"]}


def batches(a, path, kind, threads, prompt, dtype):
    """Tokens per second of several texts, together and one by one; each text must be the same."""
    rates, texts = [], []
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/prompts.jsonl", "w") as file:
            for i in range(a.batch):
                print(json.dumps({"prompt_tokens": prompt[i:] + prompt[:i]}), file=file)
        for n in (a.batch, 1):
            done = subprocess.run([*titan_command(a, path, kind, threads, dtype), "--prompts",
                                   folder + "/prompts.jsonl", "--batch", str(n)], capture_output=True, text=True)
            if done.returncode:
                sys.exit(done.stderr)
            tokens, seconds = re.search(r", (\d+) tokens in ([\d.]+) s: ", done.stderr).groups()
            rates.append((int(tokens) - a.batch) / float(seconds)) # the first token of a text is the prompt's
            texts.append(done.stdout)
    if texts[0] != texts[1]:
        sys.exit(f"{kind}: other texts in a batch")
    return rates


def median(rounds, what):
    return statistics.median(one[what] for one in rounds)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--titan", required=True)
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--types", default="q4_0,q8_0,bf16")
    p.add_argument("--threads", default="1,2")
    p.add_argument("--dtypes", default="float32,bfloat16")
    p.add_argument("--layers", type=int, default=16)
    p.add_argument("--prompt", type=int, default=256)
    p.add_argument("--new", type=int, default=48)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--batch", type=int, default=0, help="how many prompts to generate together, and one by one")
    p.add_argument("--bandwidth", default="", help="of titan bench, in GB/s, for each number of threads")
    p.add_argument("--no-llama", action="store_true")
    p.add_argument("--folder", help="keeps the files there, and takes those that are there; else a temporary folder")
    p.add_argument("--out")
    a = p.parse_args()
    prompt = [1 + i * 7919 % (VOCAB - 1) for i in range(a.prompt)]
    bandwidth = [float(x) for x in a.bandwidth.split(",") if x]
    results = []
    with tempfile.TemporaryDirectory() as made:
        folder = a.folder or made
        os.makedirs(folder, exist_ok=True)
        print(f"{'file':6} {'threads':7} {'side':20} {'prompt tok/s':>12} {'decode tok/s':>12} {'ratio':>6} "
              f"{'GB/s':>6} {'of bench':>8}")
        for kind in a.types.split(","):
            stored = "bf16" if kind in CONVERTED else kind
            path = f"{folder}/{stored}-{a.layers}.gguf"
            if not os.path.exists(path):
                run([a.python, "-c", WRITE, path, stored, str(a.layers), *map(str, (DIM, FFN, HEADS, KV_HEADS, VOCAB))])
            for i, threads in enumerate(map(int, a.threads.split(","))):
                sides = {}
                if not a.no_llama and kind not in CONVERTED:
                    sides["llama.cpp"] = lambda: llama(a, path, threads, prompt)
                for dtype in a.dtypes.split(","):
                    sides[f"titan {dtype}"] = lambda dtype=dtype: titan(a, path, kind, threads, prompt, dtype)
                found = {side: [] for side in sides}
                for _ in range(a.rounds):
                    for side, once in sides.items():
                        found[side].append(once())
                base = median(found["llama.cpp"], "new") if "llama.cpp" in found else float("nan")
                for side, rounds in found.items():
                    rate = median(rounds, "new")
                    gigabytes = rate * read_bytes(a, kind) / 1e9
                    share = f"{100 * gigabytes / bandwidth[i]:7.0f}%" if bandwidth else ""
                    print(f"{kind:6} {threads:7} {side:20} {median(rounds, 'prompt'):12.1f} {rate:12.2f} "
                          f"{rate / base:6.2f} {gigabytes:6.2f} {share}", flush=True)
                for dtype in a.dtypes.split(",") if a.batch else ():
                    many, one = batches(a, path, kind, threads, prompt, dtype)
                    print(f"{kind:6} {threads:7} titan {dtype}: {a.batch} prompts {many:.1f} tokens/s together, "
                          f"{one:.1f} one by one: {many / one:.2f}", flush=True)
                results.append({"type": kind, "threads": threads, "rounds": found})
            if not a.folder:
                os.remove(path)
    for one in results[:1] if not a.no_llama else ():
        for side in one["rounds"].get("llama.cpp", ())[:1]:
            print(side["version"], side["info"])
    if a.out:
        with open(a.out, "w") as out:
            json.dump(results, out, indent=1)


if __name__ == "__main__":
    main()

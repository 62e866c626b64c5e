#!/bin/bash
# SPDX-License-Identifier: MIT titan reference computes in float64 what transformers computes, on any number of ranks.
. "$(dirname "$0")/lib.sh"

golden=$TITAN_SOURCE/tests/golden/data

# batch() writes the samples of the first step of a golden run, check() compares gradients with its gradients.json.
export PYTHONPATH=$top PYTHONDONTWRITEBYTECODE=1
cat >"$top/reference.py" <<'END'
import glob, json, math, struct, sys

def batch(run, path):
    case = json.load(open(run + "/expect.json"))["case"]
    rows, length = case["global_batch_size"], case["seq_len"]
    tokens = struct.unpack_from(f"<{rows * length + 1}H", open(run + "/tokens.bin", "rb").read(), 1024)
    size = 8 * rows * length
    header = json.dumps({name: {"dtype": "I64", "shape": [rows, length], "data_offsets": [k * size, (k + 1) * size]}
                         for k, name in enumerate(("input_ids", "labels"))}).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header)
        for first in (0, 1):
            f.write(struct.pack(f"<{rows * length}q", *tokens[first:first + rows * length]))

def tensors(folder):
    found = {}
    for path in glob.glob(folder + "/*.safetensors"):
        data = open(path, "rb").read()
        size = struct.unpack_from("<Q", data)[0]
        for name, t in json.loads(data[8:8 + size]).items():
            if name != "__metadata__":
                code = {"F64": "d", "F32": "f", "I64": "q"}[t["dtype"]]
                first, end = t["data_offsets"]
                count = (end - first) // struct.calcsize(code)
                found[name] = struct.unpack_from(f"<{count}{code}", data, 8 + size + first)
    return found

def check(run, folder, most):
    """Every gradient is transformers', to a relative error of its norm, and of its product with a fixed vector."""
    wanted = json.load(open(run + "/gradients.json"))["tensors"]
    found = tensors(folder + "/step-1/gradients")
    assert sorted(found) == sorted(wanted), set(found) ^ set(wanted)
    for name, x in found.items():
        norm = math.sqrt(math.fsum(v * v for v in x))
        product = math.fsum(v * math.cos(0.7 * i + 0.1) for i, v in enumerate(x))
        off = max(abs(norm - wanted[name][0]), abs(product - wanted[name][1])) / (wanted[name][0] or 1e-300)
        assert off < most, (run, name, off)  # exactly 0 where no token came to an expert
END

make_batch() {
    python3 -c "import reference; reference.batch('$golden/$1', '$1.safetensors')"
    printf 'training: {dataset: kjv}\n' >config.yaml
}

reference="reference --config config.yaml"

case_gradients_in_float64_are_those_of_transformers() {
    for name in llama3 qwen3 gpt2 mixtral_moe deepseek_v3; do
        make_batch $name
        run $reference --weights "$golden/$name" --batch $name.safetensors --dtype float64 --out $name
        expect_ok
        python3 -c "
import json, reference
reference.check('$golden/$name', '$name', 1e-12)
step = json.load(open('$name/reference.json'))['steps'][0]
wanted = json.load(open('$golden/$name/gradients.json'))
assert abs(step['loss'] / wanted['loss'] - 1) < 1e-13, (step['loss'], wanted['loss'])
assert sorted(step['norms']) == sorted(wanted['tensors'])" >log 2>&1 || not_as "$name: $(cat log)"
    done
}

case_gradients_in_float32_are_near_them() {
    make_batch llama3
    run $reference --weights "$golden/llama3" --batch llama3.safetensors --dtype float32 --out narrow
    expect_ok
    python3 -c "import reference; reference.check('$golden/llama3', 'narrow', 4e-6)" >log 2>&1 || not_as "$(cat log)"
}

case_the_bits_do_not_depend_on_the_ranks() {
    make_batch llama3
    common="--weights $golden/llama3 --batch llama3.safetensors --dtype float64 --steps 2
        --parallelism.exact_tensor_parallel_degree=2"
    run $reference $common --out alone
    expect_ok
    run_ranks 4 $reference $common --parallelism.tensor_parallel_degree=2 --out four
    expect_ok
    for part in step-1 step-2; do
        diff -r alone/$part four/$part >log || not_as "the files of $part differ"
    done
    python3 -c "
import json
a, b = (json.load(open(f + '/reference.json')) for f in ('alone', 'four'))
assert a['steps'] == b['steps'] and len(a['steps']) == 2" || not_as "reference.json differs"
}

case_a_batch_and_a_folder_are_checked() {
    make_batch gpt2
    printf 'x' >bad.npy
    run $reference --weights "$golden/gpt2" --batch bad.npy --out bad
    expect_error 3 "'bad.npy' is not a .npy file of version 1"
    run $reference --weights "$golden/gpt2" --batch gpt2.safetensors --dtype float16 --out bad
    expect_error 2 "float16"
    mkdir full && touch full/x
    run $reference --weights "$golden/gpt2" --batch gpt2.safetensors --out full
    expect_error 2 "'full' exists and is not empty"
    run train --training.dtype=float64 $tiny
    expect_error 2 "float64"
}

run_cases

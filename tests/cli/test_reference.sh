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

def numbers(x):
    return math.sqrt(math.fsum(v * v for v in x)), math.fsum(v * math.cos(0.7 * i + 0.1) for i, v in enumerate(x))

# outputs that titan does not keep, or that are those of other modules
LACKING = ("act", "act_fn", "drop", "dropout", "resid_dropout", "wpe", "lm_head", "gate", "experts", "shared_experts",
           "shared_expert")

def check_modules(run, folder, most):
    """The outputs of modules and their gradients are those of PyTorch's hooks."""
    wanted = {name: x for name, x in json.load(open(run + "/gradients.json"))["modules"].items()
              if name.split(".")[-1] not in LACKING}
    for k, section in enumerate(("activations", "activation_gradients")):
        found = {name.replace("block_sparse_moe", "mlp"): x for name, x in
                 tensors(folder + "/step-1/" + section).items()}
        assert sorted(found) == sorted(wanted), set(found) ^ set(wanted)
        for name, x in found.items():
            norm, product = wanted[name][2 * k:2 * k + 2]
            off = max(abs(a - b) for a, b in zip(numbers(x), (norm, product))) / norm
            assert off < most, (run, section, name, off)

def check(run, folder, most):
    """Every gradient is transformers', to a relative error of its norm, and of its product with a fixed vector."""
    wanted = json.load(open(run + "/gradients.json"))["tensors"]
    found = tensors(folder + "/step-1/gradients")
    assert sorted(found) == sorted(wanted), set(found) ^ set(wanted)
    for name, x in found.items():
        norm, product = numbers(x)
        off = max(abs(norm - wanted[name][0]), abs(product - wanted[name][1])) / (wanted[name][0] or 1e-300)
        assert off < most, (run, name, off)  # exactly 0 where no token came to an expert
END

make_batch() {
    python3 -c "import reference; reference.batch('$golden/$1', '$1.safetensors')"
    rm -rf batch
    mkdir batch
    cp "$1.safetensors" batch
    printf 'training: {dataset: kjv}\n' >config.yaml
}

reference="reference --config config.yaml"

case_gradients_and_outputs_in_float64_are_those_of_transformers() {
    for name in llama3 qwen3 gpt2 gemma2 mixtral_moe qwen2_moe deepseek_v3; do
        make_batch $name
        run $reference --weights "$golden/$name" --batch $name.safetensors --dtype float64 --out $name \
            --activations '.*'
        expect_ok
        python3 -c "
import json, reference
reference.check('$golden/$name', '$name', 1e-12)
reference.check_modules('$golden/$name', '$name', 1e-12)
step = json.load(open('$name/reference.json'))['steps'][0]
wanted = json.load(open('$golden/$name/gradients.json'))
assert abs(step['loss'] / wanted['loss'] - 1) < 1e-13, (step['loss'], wanted['loss'])
assert sorted(step['norms']) == sorted(wanted['tensors'])" >log 2>&1 || not_as "$name: $(cat log)"
    done
}

case_gradients_in_float32_are_near_them() {
    make_batch llama3
    run $reference --weights "$golden/llama3" --batch llama3.safetensors --dtype float32 --out narrow --activations '.*'
    expect_ok
    python3 -c "
import reference
reference.check('$golden/llama3', 'narrow', 4e-6)
reference.check_modules('$golden/llama3', 'narrow', 4e-6)" >log 2>&1 || not_as "$(cat log)"
}

same() { # NAME RANKS OPTION...: the files of a run on ranks are those of `alone`
    run_ranks "$2" $reference $common --out "$1" "${@:3}"
    expect_ok
    for part in alone/step-*; do
        python3 -c "
import reference
a, b = reference.tensors('$part'), reference.tensors('batch')
assert a['input_ids'] == b['input_ids'] and a['labels'] == b['labels']" 2>log || not_as "$1: other samples: $(cat log)"
        diff -r "$part" "$1/${part#*/}" >log || not_as "$1: the files of $part differ: $(cat log)"
    done
    python3 -c "
import json
a, b = (json.load(open(f + '/reference.json')) for f in ('alone', '$1'))
assert a['steps'] == b['steps'] and a['modules'] == b['modules']" || not_as "$1: reference.json differs"
}

case_the_bits_do_not_depend_on_the_ranks() {
    tp=--parallelism.tensor_parallel_degree=2 cp=--parallelism.context_parallel_degree=2
    pp=--parallelism.pipeline_parallel_degree=2 ep=--parallelism.expert_parallel_degree=2
    exact="--parallelism.exact_tensor_parallel_degree=2 --parallelism.exact_context_parallel_degree=2"
    make_batch llama3
    common="--weights $golden/llama3 --batch llama3.safetensors --dtype float64 --steps 2 --activations .* $exact"
    run $reference $common --out alone
    expect_ok
    same tensors 4 $tp
    same sequences 4 $cp $pp
    make_batch deepseek_v3
    rm -r alone
    common="--weights $golden/deepseek_v3 --batch deepseek_v3.safetensors --dtype bfloat16 --activations .* $exact"
    run $reference $common --out alone
    expect_ok
    same experts 4 $cp $pp $ep
}

# Muon has moments for matrices only, and AdamW8bit keeps codes, which are decoded.
case_the_state_of_every_optimizer_is_written() {
    make_batch llama3
    for optimizer in Muon AdamW8bit AdamW; do
        common="--weights $golden/llama3 --batch llama3.safetensors --activations q_proj --optimizer.name=$optimizer"
        run $reference $common --out alone
        expect_ok
        same ranks_$optimizer 2
        mv alone $optimizer
    done
    python3 - >log 2>&1 <<'END' || not_as "$(cat log)"
import math, reference
muon, coded, plain = (reference.tensors(name + "/step-1/optimizer") for name in ("Muon", "AdamW8bit", "AdamW"))
gradients = reference.tensors("Muon/step-1/gradients")
matrices = {name for name in gradients if "proj" in name}
assert sorted(muon) == sorted([n + ".momentum_buffer" for n in matrices] + [
    n + m for n in gradients if n not in matrices for m in (".exp_avg", ".exp_avg_sq")]), sorted(muon)
for name in matrices:  # the first momentum is the clipped gradient times a factor
    x, g = muon[name + ".momentum_buffer"], gradients[name]
    cosine = math.fsum(a * b for a, b in zip(x, g)) / reference.numbers(x)[0] / reference.numbers(g)[0]
    assert abs(cosine - 1) < 1e-6, (name, cosine)
for name in muon:
    assert name.endswith("buffer") or muon[name] == plain[name], name
assert sorted(coded) == sorted(plain), set(coded) ^ set(plain)
for name, x in coded.items():
    off = math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(x, plain[name]))) / reference.numbers(plain[name])[0]
    assert off < 0.03, (name, off)
    assert off > 1e-4 or len(x) < 4096 or "embed" in name, (name, off)
END
}

# altered FROM TO SECTION NAME...: a copy of a dump in which these tensors are a tenth larger
altered() {
    cp -r "$1" "$2"
    PYTHONPATH=$TITAN_SOURCE/tests/cli python3 - "$2/step-1/$3/model.safetensors" "${@:4}" <<'END'
import sys
from change_dump import read, write
tensors = read(sys.argv[1])
for name in sys.argv[2:]:
    tensors[name] = tensors[name][0], [1.1 * x for x in tensors[name][1]]
write(sys.argv[1], tensors, "d")
END
}

differs() { # DUMP KEY NAME: compare names the module, in the text, in JSON and on the page
    run compare --gradients exact "$1" --html page.html
    expect_code 1
    expect_out "first in ${2#first_} order: $3$"
    grep -q "first in ${2#first_} order: <code>$3</code>" page.html || not_as "$1: not on the page"
    run compare --gradients exact "$1" --json
    expect_code 1
    python3 -c "
import json
assert json.load(open('out'))['looks'][0]['$2'] == '$3'" || not_as "$1: not in the JSON"
}

case_compare_names_the_first_module_that_differs() {
    make_batch qwen3
    common="--weights $golden/qwen3 --batch qwen3.safetensors --activations .*"
    run $reference $common --dtype float64 --out exact
    expect_ok
    for dtype in float32 bfloat16; do
        run $reference $common --dtype $dtype --out $dtype
        expect_ok
        run compare --gradients exact $dtype
        expect_ok
    done
    layer=model.layers.1
    altered exact forward activations $layer $layer.mlp $layer.self_attn.q_norm $layer.self_attn.q_proj model.norm
    differs forward first_forward $layer.self_attn.q_proj
    altered exact part activations $layer.self_attn $layer.self_attn.o_proj $layer
    differs part first_forward $layer.self_attn.o_proj
    layer=model.layers.0
    altered exact backward activation_gradients $layer.mlp.down_proj $layer.mlp $layer.mlp.up_proj model.embed_tokens
    differs backward first_backward $layer.mlp.down_proj
    altered exact norm activation_gradients $layer.self_attn.q_norm $layer.self_attn.q_proj
    differs norm first_backward $layer.self_attn.q_norm
}

case_a_pattern_without_a_module_is_an_error() {
    make_batch gpt2
    common="--weights $golden/gpt2 --batch gpt2.safetensors --out bad"
    run $reference $common --activations c_atn
    expect_error 2 "--activations 'c_atn' selects no module of gpt2" "did you mean 'c_attn'" "transformer.wte"
    run $reference $common --activations lm_head
    expect_error 2 "it keeps no logits"
    run $reference $common --activations '(c_attn'
    expect_error 2 "c_attn"
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
    expect_error 2 "float64" "titan reference --dtype float64"
}

run_cases

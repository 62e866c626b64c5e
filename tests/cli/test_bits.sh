#!/bin/bash
# SPDX-License-Identifier: MIT
# The recorded run: losses, norms of gradients and weights that every processor and every compiler must reproduce to the
# bit (docs/design/exactness.md).
. "$(dirname "$0")/lib.sh"

# The first characters of the hashes of the losses and norms, and of the digests of weights and moments.
hashes() {
    python3 - <<'EOF'
import glob, hashlib, json
steps, state = {}, {}
for record in map(json.loads, open("run/metrics.jsonl")):
    if record["type"] == "step":
        steps[record["step"]] = (record["loss"].hex(), record["grad_norm"].hex())
def digests(at, path):
    if isinstance(at, dict):
        if "digest" in at:
            state[path] = at["digest"]
        for key, value in at.items():
            digests(value, path + "/" + key)
digests(json.load(open(glob.glob("run/checkpoint/step-3/manifest.json")[0])), "")
assert len(steps) == 3 and len(state) > 20, (steps, len(state))
print(*(hashlib.sha256(json.dumps(x, sort_keys=True).encode()).hexdigest()[:16] for x in (steps, state)))
EOF
}

# train_bits MODEL FLAVOR ARGUMENT...: three steps of a debug model; prints its line of the record.
train_bits() {
    local name=$1 flavor=$2
    shift 2
    run train --model.name="$name" --model.flavor="$flavor" --training.seq_len=80 --training.local_batch_size=2 \
        --training.global_batch_size=2 --training.steps=3 --lr_scheduler.warmup_steps=1 --validation.seq_len=32 \
        --metrics.log_freq=1 --metrics.peak_flops=1e9 --training.dataset=text --training.dataset_path=corpus.txt \
        --dataloader.cache_dir=cache --checkpoint.enable --checkpoint.interval=3 --job.dump_folder=run --overwrite "$@"
    expect_ok
}

# compare KEY: compares with the line of the record that begins with KEY.
compare() {
    local got wanted
    got=$(hashes) || not_as "no hashes"
    wanted=$(grep "^$1 " "$TITAN_SOURCE/tests/cli/bits.txt")
    [ "$1 $got" = "$wanted" ] || not_as "the bits are '$1 $got', recorded are '$wanted'"
}

# The debug models, with the kernels that titan chooses here. Only a variant with bits of its own cannot reproduce them.
record() {
    make_corpus
    train_bits "$1" debugmodel
    compare "$1"
}

# A small model with every set of kernels that promises these bits and runs on this processor.
with_each() {
    local kernels
    make_corpus
    for kernels in generic avx2 avx512 neon; do
        export TITAN_CPU=$kernels
        run train $tiny --training.steps=1 --overwrite
        [ "$code" = 2 ] && continue
        train_bits "$1" debugmodel --model.dim=64 --model.n_layers=2 --model.n_heads=4 --training.seq_len=40 "${@:2}"
        compare "small-$1${2:+-bfloat16}"
        echo "$kernels" >>used
    done
    grep -q generic used || not_as "the portable kernels did not run"
}

case_llama3() { record llama3; }
case_qwen3() { record qwen3; }
case_gpt2() { record gpt2; }
case_mixtral() { record mixtral; }
case_deepseek_v3() { record deepseek_v3; }
case_all_kernels_have_the_same_bits() { with_each llama3; }
case_all_kernels_have_the_same_bits_in_bfloat16() { with_each llama3 --training.mixed_precision_param=bfloat16; }

run_cases

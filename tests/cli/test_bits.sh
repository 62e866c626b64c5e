#!/bin/bash
# SPDX-License-Identifier: MIT
# The recorded run: losses, norms of gradients and weights that every processor and every compiler must reproduce to the
# bit (docs/design/exactness.md), in float32 with each set of kernels that this processor runs, and in bfloat16.
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

# compare KEY: with the line of the record that begins so.
compare() {
    local got wanted
    got=$(hashes) || not_as "no hashes"
    wanted=$(grep "^$1 " "$TITAN_SOURCE/tests/cli/bits.txt")
    [ "$1 $got" = "$wanted" ] || not_as "the bits are '$1 $got', recorded are '$wanted'"
}

# Runs a command with every set of kernels that has these bits and that this processor runs.
with_each() {
    local kernels
    for kernels in generic avx2 avx512 neon; do
        export TITAN_CPU=$kernels
        run train $tiny --training.steps=1 --overwrite
        [ "$code" = 0 ] || continue
        "$@"
        echo "$kernels" >>used
    done
    grep -q generic used || not_as "the portable kernels did not run"
}

float32() {
    train_bits "$1" "$2" && compare "$1"
}

bfloat16() {
    train_bits "$1" "$2" --training.mixed_precision_param=bfloat16 && compare "$1-bfloat16"
}

case_llama3() { make_corpus && with_each float32 llama3 debugmodel; }
case_qwen3() { make_corpus && with_each float32 qwen3 debugmodel; }
case_gpt2() { make_corpus && with_each float32 gpt2 debugmodel; }
case_mixtral() { make_corpus && with_each float32 mixtral debugmodel; }
case_deepseek_v3() { make_corpus && with_each float32 deepseek_v3 debugmodel; }
case_llama3_in_bfloat16() { make_corpus && with_each bfloat16 llama3 debugmodel; }

run_cases

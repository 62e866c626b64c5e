#!/bin/bash
# SPDX-License-Identifier: MIT
# The program as it is shipped, failing or dying at every system call of its checkpoints (shim.c). The old checkpoint or
# the new one is always left, and a restart ends with the bits of an undisturbed run.
. "$TITAN_SOURCE/tests/cli/lib.sh"
shim=$TITAN_BUILD/tests/fault/libshim.so
every=${TITAN_EVERY:-4} # runs are killed at every n-th call; 1: at every one, as in the long test run

small="--model.dim=32 --model.n_layers=1 --model.n_heads=2 --model.n_kv_heads=1 --model.ffn_dim=32 --training.seq_len=16
    --training.local_batch_size=2 --training.global_batch_size=4 --training.steps=4 --checkpoint.interval=2
    --checkpoint.keep_latest_k=2 --metrics.log_freq=1 --metrics.peak_flops=1e9 --parallelism.threads_per_rank=1
    --dataloader.cache_dir=$top/cache"

# The digest of every tensor of the last step, which represents the bits of the run.
digests() {
    python3 - "$1" <<'EOF_PYTHON'
import json, sys
manifest = json.load(open(sys.argv[1] + "/checkpoint/step-4/manifest.json"))
print(sorted((name, t["digest"]) for name, t in manifest["tensors"].items()), manifest["sample_cursor"])
EOF_PYTHON
}

# The calls that change a file or folder. Processes are killed at these calls.
changes="write|pwrite|fsync|rename|unlink|rmdir|mkdir|ftruncate|fallocate"

# train RANKS FOLDER OPTION...: trains, with the shim preloaded if TITAN_SHIM or TITAN_SHIM_LOG is set.
train() {
    local ranks=$1 folder=$2
    shift 2
    code=0
    if [ "$ranks" = 1 ]; then
        LD_PRELOAD=${TITAN_SHIM+$shim}${TITAN_SHIM_LOG+$shim} "$TITAN" train $small --job.dump_folder="$folder" "$@" \
            >out 2>err </dev/null || code=$?
    else
        "$TITAN_SOURCE/tools/run-ranks" "$ranks" env ${TITAN_SHIM+LD_PRELOAD=$shim} ${TITAN_SHIM_LOG+LD_PRELOAD=$shim} \
            "$TITAN" train $small --job.dump_folder="$folder" "$@" >out 2>err </dev/null || code=$?
    fi
}

# undisturbed RANKS OPTION...: the reference run. Its bits go to the file wanted, its calls to the file calls.
undisturbed() {
    rm -f calls
    TITAN_SHIM_LOG=$PWD/calls train "$1" reference "${@:2}"
    expect_ok
    for call in pwrite fsync rename; do
        grep -q " $call " calls || not_as "no $call was seen: the shim is not in the program's way"
    done
    digests reference >wanted
}

# survives RANKS FAILURE OPTION...: checks that what the failure leaves verifies, and that a restart ends with the right
# bits.
survives() {
    local ranks=$1 failure=$2
    shift 2
    rm -rf run
    printf 'TITAN_SHIM=%s on %s ranks' "$failure" "$ranks" >command
    TITAN_SHIM=$failure train "$ranks" run "$@"
    failed_with=$code
    if ls run/checkpoint/step-* >/dev/null 2>&1; then
        "$TITAN" ckpt verify run >out 2>err || not_as "what the failure left does not verify"
    fi
    train "$ranks" run "$@"
    expect_ok
    digests run >found
    cmp -s wanted found || not_as "other bits than an undisturbed run's"
    ls -A run/checkpoint | grep -vE '^(step-[24]|\.lock)$' >left && not_as "left behind: $(cat left)"
    return 0
}

# dies_at_every_call RANKS STRIDE OPTION...: killed before every STRIDE-th call of each rank.
dies_at_every_call() {
    local ranks=$1 stride=$(($2 * every)) rank n calls
    shift 2
    undisturbed "$ranks" "$@"
    for ((rank = 0; rank < ranks; rank++)); do
        calls=$(grep -cE "^$rank ($changes) " calls)
        [ "$calls" -gt 10 ] || [ "$rank" -gt 0 ] || not_as "rank $rank made only $calls calls"
        for ((n = 1 + rank % stride; n <= calls; n += stride)); do
            survives "$ranks" "change:$n:kill:$rank" "$@"
            [ "$failed_with" -ne 0 ] || [ $((n + stride)) -gt "$calls" ] || not_as "the run should have died"
        done
    done
}

case_a_kill_at_any_call_loses_nothing() {
    dies_at_every_call 1 2
}

case_a_kill_after_every_rename_loses_nothing() {
    undisturbed 1
    for ((n = 1; n <= $(grep -c " rename " calls); n++)); do
        survives 1 "rename:$n:after"
        [ "$failed_with" -ne 0 ] || not_as "the run should have died"
    done
}

case_a_kill_of_any_rank_loses_nothing() {
    dies_at_every_call 3 12 --training.local_batch_size=1 --training.global_batch_size=3
}

# The n-th call then depends on the speed of the writing thread, so it may be any call.
case_a_kill_while_a_thread_writes_loses_nothing() {
    dies_at_every_call 1 4 --checkpoint.async_mode=async
}

case_a_kill_while_one_rank_writes_for_all_loses_nothing() {
    dies_at_every_call 1 5 --checkpoint.save_policy=filtered --checkpoint.filter=rank0
    rm -rf reference run
    dies_at_every_call 2 10 --checkpoint.save_policy=filtered --checkpoint.async_mode=async \
        --parallelism.data_parallel_replicate_degree=2 --parallelism.data_parallel_shard_degree=1
}

case_a_full_or_broken_disk_loses_nothing() {
    undisturbed 1
    for error in ENOSPC EDQUOT EIO; do
        for call in pwrite:1 pwrite:4 fsync:2 fsync:5 fallocate:1 rename:3; do
            survives 1 "$call:$error+"
            [ "$failed_with" -eq 3 ] || not_as "expected exit code 3, got $failed_with"
        done
    done
}

# temporary_names: the temporary names below this folder that occur in the file `calls`.
temporary_names() {
    sed -n "s|^.* $PWD/||p" calls | tr / '\n' | grep -E 'tmp|nonce' | sort -u
}

# Two jobs that share a folder may have the same host name and process number, as in containers.
case_temporary_names_are_random() {
    make_corpus
    export TITAN_SHIM_PATHS=$PWD/
    options="--checkpoint.last_save_in_hf --training.dataset=text --training.dataset_path=corpus.txt
        --dataloader.cache_dir=own-cache --metrics.enable_tensorboard --profiling.enable_profiling
        --profiling.profile_freq=2"
    for mode in disabled async; do
        undisturbed 1 $options --checkpoint.async_mode=$mode
        temporary_names >names
        for kind in '\.tokens\.tmp-' '\.safetensors\.tmp-' '^\.tmp-step-' '^\.nonce-'; do
            grep -q -e "$kind" names || not_as "no name with $kind: $(cat names)"
        done
        grep -vE -e '(^|[.])(tmp|nonce)(-hf|-step-[0-9]+)?-[0-9a-f]{16}$' names >fixed &&
            not_as "not random: $(cat fixed)"
        undisturbed 1 $options --checkpoint.async_mode=$mode --overwrite
        temporary_names >again
        comm -12 names again >both
        [ ! -s both ] || not_as "used by both runs: $(cat both)"
        rm -rf reference own-cache
    done
}

case_short_writes_are_continued() {
    undisturbed 1
    for n in 1 2 3 5; do
        survives 1 "pwrite:$n:short"
        [ "$failed_with" -eq 0 ] || not_as "a short write is no failure"
    done
}

if ldd "$TITAN" | grep -qE 'lib(asan|tsan)'; then
    echo "1..0 # SKIP a sanitizer's own preloading comes first"
    exit 0
fi
run_cases

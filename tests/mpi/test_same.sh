# SPDX-License-Identifier: MIT
# What must be the same on all ranks is compared before the ranks depend on it.
. "$(dirname "$0")/../cli/lib.sh"

tokens=$TITAN_SOURCE/tests/golden/data/llama3/tokens.bin
base="--config $TITAN_SOURCE/tests/mpi/train.yaml --training.dataset_path=$tokens --validation.enable=false"

# Gives the last rank additional arguments and environment variables.
cat >"$top/last" <<'EOF_LAST'
#!/bin/sh
if [ "$OMPI_COMM_WORLD_RANK" = $((OMPI_COMM_WORLD_SIZE - 1)) ]; then
    exec env $LAST_ENV "$@" $LAST_ARGS
fi
exec "$@"
EOF_LAST
chmod +x "$top/last"

# with_last RANKS COMMAND ARGUMENT...: titan under mpirun. Only the last rank gets LAST_ARGS and LAST_ENV.
with_last() {
    printf 'LAST_ENV=%s LAST_ARGS=%s mpirun -n %s titan' "${LAST_ENV:-}" "${LAST_ARGS:-}" "$1" >command
    printf " '%s'" "${@:2}" >>command
    code=0
    LAST_ENV=${LAST_ENV:-} LAST_ARGS=${LAST_ARGS:-} timeout 60 "$TITAN_SOURCE/tools/run-ranks" "$1" "$top/last" \
        "$TITAN" "${@:2}" \
        >out 2>err </dev/null || code=$?
}

case_flags_that_differ_are_named() {
    while read -r flag key first last; do
        LAST_ARGS=$flag with_last 2 train $base --job.dump_folder=run --parallelism.data_parallel_replicate_degree=2
        expect_error 2 "^titan: error: ranks have different configurations: $key is $first on rank 0 .$(uname -n)., $last on rank 1"
        [ ! -e run ] || not_as "the run has begun"
    done <<'EOF_FLAGS'
--optimizer.lr=1e-3 optimizer.lr 0.005 0.001
--training.seq_len=16 training.seq_len 24 16
--checkpoint.async_mode=async checkpoint.async_mode disabled async
--training.max_norm=2 training.max_norm 0.7 2.0
--debug.seed=7 debug.seed 42 7
--lr_scheduler.warmup_steps=3 lr_scheduler.warmup_steps 2 3
--model.rope_theta=7 model.rope_theta null 7.0
--overwrite the.list.of.options empty --overwrite
EOF_FLAGS
}

case_all_differences_are_listed_with_their_ranks() {
    LAST_ARGS="--dataloader.seed=9 --optimizer.beta1=0.8" with_last 4 train $base --job.dump_folder=run
    expect_error 2 "dataloader.seed is 7 on ranks 0-2 .$(uname -n)., 9 on rank 3 .$(uname -n).; optimizer.beta1 is 0.9 on ranks 0-2"
    expect_err '^help: give all ranks the same files and flags'
}

case_another_file_on_a_host() {
    cp "$TITAN_SOURCE/tests/mpi/train.yaml" one.yaml
    sed 's/lr: 5e-3/lr: 4e-3/' one.yaml >two.yaml
    LAST_ARGS="--config two.yaml" with_last 2 train --config one.yaml --training.dataset_path="$tokens" \
        --validation.enable=false
    expect_error 2 'optimizer.lr is 0.005 on rank 0 .*, 0.004 on rank 1'
}

case_another_model_on_a_host() {
    mkdir assets other other/assets
    cp "$TITAN_SOURCE/tests/golden/data/llama3/config.json" assets
    sed 's/500000/400000/' assets/config.json >other/assets/config.json
    LAST_ENV="-C other" with_last 2 train --model.flavor=hf --model.hf_assets_path=assets --training.dataset=tokens \
        --training.dataset_path="$tokens" --training.seq_len=24 --training.local_batch_size=1 \
        --job.dump_folder="$PWD/run"
    expect_error 2 'ranks have different models: the model is .*500000.* on rank 0 .*400000.* on rank 1'
}

case_ranks_may_have_different_threads_and_caches() {
    LAST_ARGS="--parallelism.threads_per_rank=2 --dataloader.cache_dir=own" with_last 2 train $base \
        --job.dump_folder=run
    expect_ok
}

case_bench_compares_configurations_too() {
    LAST_ARGS="--training.local_batch_size=2" with_last 2 bench --only collectives --training.local_batch_size=1
    expect_error 2 'training.local_batch_size is 1 on rank 0'
}

case_eval_compares_options_too() {
    LAST_ARGS="--batch 2" with_last 2 eval "$TITAN_SOURCE/tests/golden/data/llama3" --dataset tokens \
        --dataset-path "$tokens" \
        --seq-len 24 --batch 1
    expect_error 2 "the.list.of.options is .*--batch=1 .*on rank 0 .*--batch=2 .*on rank 1"
}

case_different_kernels_are_reported() {
    base="$base --verbose"
    with_last 2 train $base --job.dump_folder=same
    expect_ok
    expect_err 'layout-exact'
    grep -q "^# computed by titan's kernels " same/run.yaml || not_as "run.yaml does not name the kernels"
    grep -q '"kernels":{"blas":"[^"]*","titan":"[^"]*","float32_products":"[a-z]*","bfloat16_products":"[a-z]*"}' same/metrics.jsonl ||
        not_as "metrics.jsonl does not name the kernels"
    grep -q '"kernels"' same/checkpoint/step-8/manifest.json || not_as "the manifest does not name the kernels"
    LAST_ENV="TITAN_CPU=blas" with_last 2 train $base --job.dump_folder=run
    expect_ok
    expect_err "kernels  not the same on all ranks, which changes bits: titan's kernel variant is [a-z0-9_]* on rank 0 .*, blas on rank 1 .$(uname -n)."
    expect_err 'equal to other layouts only up to rounding'
    grep -q '"layout_exact":false' run/metrics.jsonl || not_as "metrics.jsonl says layout-exact"
    grep -q '"differ"' run/checkpoint/step-8/manifest.json || not_as "the manifest does not say that kernels differ"
    export TITAN_CPU=blas
    LAST_ENV="OPENBLAS_CORETYPE=Nehalem" with_last 2 train $base --job.dump_folder=other
    expect_ok
    expect_err 'the BLAS kernel is [A-Za-z0-9]* on rank 0 .*, Nehalem on rank 1'
}

run_cases

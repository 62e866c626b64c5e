# SPDX-License-Identifier: MIT
# Sharding policies from the command line, under mpirun: the bits that they promise, errors with their place, and what
# `auto` chooses.
. "$(dirname "$0")/../cli/lib.sh"

tokens=$TITAN_SOURCE/tests/golden/data/llama3/tokens.bin
base="--config $TITAN_SOURCE/tests/mpi/train.yaml --training.dataset_path=$tokens --validation.dataset_path=$tokens"

# train RANKS FOLDER OPTION...
train() {
    run_ranks "$1" train $base --job.dump_folder="$2" "${@:3}"
    expect_ok
}

curve() {
    grep '"type":"step"' "$1/metrics.jsonl" | grep -o '"step":[0-9]*\|"loss":[^,]*\|"grad_norm":[^,]*'
}

# must_equal REFERENCE FOLDER: the losses and norms are the same in all digits.
must_equal() {
    curve "$1" >wanted
    curve "$2" >found
    [ "$(wc -l <wanted)" = 24 ] || not_as "$1 has not got 8 steps"
    expect_same wanted found
}

case_wrap() {
    train 1 one
    for wrap in $(printf '%s\n' model param size:4k | sweep) '[attention,w[13]]'; do
        train 4 other --overwrite --parallelism.fsdp_wrap_policy="$wrap" --debug.check_plan
        must_equal one other
    done
    expect_err 'wrap \["attention","w\[13\]"\], reshard default'
}

case_reshard() {
    train 1 one
    for reshard in $(printf '%s\n' last_layer 2 1 4 '[^layers.0$,norm]' | sweep); do
        train 4 other --overwrite --parallelism.fsdp_reshard_after_forward="$reshard" --debug.check_plan
        must_equal one other
    done
}

# Mesh, wrap, reshard, engine, sync and recomputation combined. The losses are those of one rank, to the bit where that
# is promised, and every step sends what `titan plan` says.
case_matrix() {
    train 1 one --training.global_batch_size=24
    while read -r ranks replicas wrap reshard engine sync ac bits; do
        options="--training.global_batch_size=24 --parallelism.data_parallel_replicate_degree=$replicas
            --parallelism.fsdp_wrap_policy=$wrap --parallelism.fsdp_reshard_after_forward=$reshard
            --parallelism.fsdp_engine=$engine --training.gradient_sync=$sync --activation_checkpoint.mode=$ac"
        train "$ranks" other --overwrite --debug.check_plan $options
        curve one | tr ':' ' ' >wanted
        curve other | tr ':' ' ' >found
        paste wanted found | awk '{ d = $2 - $4; if ((d < 0 ? -d : d) > 1e-5 * $2) bad = 1 } END { exit bad || NR != 24 }' ||
            not_as "the losses of $ranks ranks ($replicas replicas), $wrap, $reshard, $engine, $sync, $ac are not those of one"
        [ "$bits" = close ] || must_equal one other
        run plan $base $options --ranks "$ranks" --json
        sent=$(sed -n 's/.*"payload_bytes_per_step": *\([0-9]*\).*/\1/p' out)
        [ "$(grep '"type":"step"' other/metrics.jsonl | grep -c "\"comm_bytes\":$sent,")" = 8 ] ||
            not_as "a step of $ranks ranks, $wrap, $reshard, $engine, $sync does not send the $sent bytes of the plan"
    done < <(sweep <<'EOF_MATRIX'
1 1 param never planned every_microbatch full exact
2 1 block always planned every_microbatch selective exact
2 2 model default eager last_microbatch none close
3 1 size:4k never planned every_microbatch full close
3 3 param always eager last_microbatch selective close
4 1 block 2 planned every_microbatch none exact
2 1 param always planned every_run selective close
4 2 [attention,w[13]] last_layer planned last_microbatch full close
4 4 size:4k default planned last_microbatch none close
8 1 block auto planned every_microbatch selective exact
8 2 param 2 eager every_microbatch full close
8 8 model never planned last_microbatch selective close
EOF_MATRIX
    )
}

case_errors() {
    run_ranks 2 train $base --parallelism.fsdp_reshard_after_forward=3
    expect_error 2 '^titan: error: flag --parallelism.fsdp_reshard_after_forward: 3 does not divide the 2 shard ranks$'
    expect_err '^help: use 1, 2$'
    printf 'parallelism:\n  fsdp_wrap_policy: ["wq", "w9"]\n' >bad.yaml
    run_ranks 2 train $base --config bad.yaml
    expect_error 2 "bad.yaml:2:21: parallelism.fsdp_wrap_policy: 'w9' matches no parameter"
    printf 'parallelism:\n  fsdp_reshard_after_forward: [layers.9]\n' >bad.yaml
    run_ranks 2 train $base --config bad.yaml
    expect_error 2 "bad.yaml:2:31: parallelism.fsdp_reshard_after_forward: 'layers.9' matches no unit"
}

case_deferred_reduction() {
    train 2 every
    train 2 last --training.gradient_sync=last_microbatch
    expect_err 'sync last_microbatch'
    expect_err 'equal to other layouts only up to rounding'
    curve every | tr ':' ' ' >wanted
    curve last | tr ':' ' ' >found
    cmp -s wanted found && not_as "the sum was not made in another order"
    paste wanted found | awk '{ d = $2 - $4; if ((d < 0 ? -d : d) > 1e-5 * $2) bad = 1 } END { exit bad }' ||
        not_as "deferring is further than 1e-5 from not deferring"
    # every rank has one microbatch, so nothing is deferred
    train 4 wide --training.global_batch_size=4
    train 4 wide_last --training.global_batch_size=4 --training.gradient_sync=last_microbatch
    expect_err 'layout-exact'
    must_equal wide wide_last
}

# One reduction a step gives the bits of one for each microbatch, and such a run may go on with the other.
case_once_a_step() {
    train 1 one
    train 4 runs --training.gradient_sync=every_run --training.steps=4 --lr_scheduler.total_steps=8 --debug.check_plan
    expect_err 'sync every_run$'
    expect_err 'layout-exact'
    train 2 runs --lr_scheduler.total_steps=8
    refuse_err 'was trained with gradient_sync'
    must_equal one runs
    train 4 odd --training.gradient_sync=every_run --training.global_batch_size=12
    expect_err 'equal to other layouts only up to rounding'
}

# need SYNC: prints the KiB that a rank of eight needs, rounded down.
need() {
    run_ranks 8 train $base --job.dump_folder=none --training.gradient_sync="$1" --parallelism.memory_limit=1
    expect_code 6
    sed -n 's/.*a rank needs \([0-9]*\)[.0-9]* KiB.*/\1/p' err
}

case_auto() {
    train 2 tree --training.gradient_sync=auto
    expect_err '^  reduces  gradients once a step of 8 microbatches: .* predicted; after each microbatch: '
    grep -q 'gradient_sync: every_run' tree/run.yaml || not_as "run.yaml does not say what auto became"
    train 2 tree --training.gradient_sync=auto --training.steps=9
    expect_err '^  reduces  gradients every_run, as in the checkpoint'
    train 3 three --training.gradient_sync=auto --training.global_batch_size=12
    expect_err '^  reduces  gradients after each microbatch: other sums would change the bits'
    train 2 fast --training.gradient_sync=auto --parallelism.reduction_order=fast --training.steps=4
    expect_err 'sync last_microbatch'
    grep -q 'gradient_sync: last_microbatch' fast/run.yaml || not_as "run.yaml does not say what auto became"
    grep -q '"gradient_sync": *"last_microbatch"' fast/checkpoint/step-4/manifest.json ||
        not_as "the manifest does not say what auto became"
    train 4 fast --training.gradient_sync=auto --training.steps=8
    expect_err 'sync last_microbatch'
    train 1 fast --training.steps=9
    expect_err 'was trained with gradient_sync last_microbatch, this run continues with every_microbatch'
    # memory for only one of the two, which on many ranks is the setting with sharded gradients
    last=$(need last_microbatch)
    every=$(need every_microbatch)
    [ "$every" -lt "$last" ] || not_as "every_microbatch needs $every KiB, last_microbatch $last"
    for limit in $((last + 1)) $((last - 1)); do
        train 8 tight --overwrite --training.gradient_sync=auto --parallelism.reduction_order=fast \
            --parallelism.memory_limit=${limit}KiB
        expect_err "sync $([ "$limit" -gt "$last" ] && echo last_microbatch || echo every_microbatch)"
    done
}

run_cases

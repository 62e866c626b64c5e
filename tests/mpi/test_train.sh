# SPDX-License-Identifier: MIT
# `titan train` under mpirun. The curve and the weights depend neither on the layout over ranks nor on whether the run
# was killed, stopped and resumed.
. "$(dirname "$0")/../cli/lib.sh"

tokens=$TITAN_SOURCE/tests/golden/data/llama3/tokens.bin
base="--config $TITAN_SOURCE/tests/mpi/train.yaml --training.dataset_path=$tokens --validation.dataset_path=$tokens"

# train RANKS FOLDER OPTION...
train() {
    run_ranks "$1" train $base --job.dump_folder="$2" "${@:3}"
    expect_ok
}

# numbers FOLDER TYPE KEY...: the values in the run's records of a type, one line per step, in all digits. The last
# record of a step counts.
numbers() {
    awk -v type="\"type\":\"$2\"" -v keys="step ${*:3}" '
        index($0, type) {
            line = ""
            n = split(keys, key, " ")
            for (i = 1; i <= n; i++)
                if (match($0, "\"" key[i] "\":[^,}]*"))
                    line = line " " substr($0, RSTART, RLENGTH)
            match(line, /"step":[0-9]+/)
            record[substr(line, RSTART + 7, RLENGTH - 7) + 0] = line
        }
        END { for (step = 0; step < 100000; step++) if (step in record) print record[step] }' "$1/metrics.jsonl"
}

# digests FOLDER STEP: the name and digest of every tensor of a checkpoint.
digests() {
    sed -n 's/^ *"\([a-z]*\/[^"]*\)": .*"digest":"\(sum64:[0-9a-f]*\)".*/\1 \2/p' \
        "$1/checkpoint/step-$2/manifest.json" | sort
}

# must_equal STEP REFERENCE FOLDER: checks that up to STEP the curve, validation losses, weights and moments are the
# same.
must_equal() {
    numbers "$2" step loss grad_norm lr ntokens_seen >wanted.step
    numbers "$3" step loss grad_norm lr ntokens_seen >found.step
    numbers "$2" validate loss >wanted.validate
    numbers "$3" validate loss >found.validate
    digests "$2" "$1" >wanted.digests
    digests "$3" "$1" >found.digests
    [ "$(wc -l <wanted.step)" = "$1" ] || not_as "$2 has $(wc -l <wanted.step) steps, not $1"
    [ "$(wc -l <wanted.digests)" -ge 60 ] || not_as "only $(wc -l <wanted.digests) digests"
    for what in step validate digests; do
        if ! cmp -s wanted.$what found.$what; then
            diff wanted.$what found.$what | head -6
            not_as "$3 differs from $2 in: $what"
        fi
    done
}

case_the_curve_does_not_depend_on_the_layout() {
    train 1 one
    train 2 two --parallelism.fsdp_reshard_after_forward=always --parallelism.threads_per_rank=2
    must_equal 8 one two
    train 4 four --parallelism.fsdp_reshard_after_forward=never --parallelism.fsdp_prefetch=0
    must_equal 8 one four
    train 4 replicas --parallelism.data_parallel_replicate_degree=2 --parallelism.threads_per_rank=3
    must_equal 8 one replicas
    train 8 eight --parallelism.fsdp_prefetch=3
    must_equal 8 one eight
    train 8 mixed --parallelism.data_parallel_replicate_degree=2 --parallelism.fsdp_reshard_after_forward=always
    must_equal 8 one mixed
}

# Recomputing activations and the ways to initialise change nothing. bfloat16 changes the curve, in the same way on
# every layout.
case_recomputing_changes_no_bit_and_bfloat16_the_same_on_every_layout() {
    local bf16="--training.mixed_precision_param=bfloat16 --training.mixed_precision_reduce=bfloat16"

    train 1 one
    train 2 full --activation_checkpoint.mode=full --training.init=full
    must_equal 8 one full
    train 4 selective --activation_checkpoint.mode=selective --training.init=layerwise
    must_equal 8 one selective
    train 1 one16 $bf16
    train 2 two16 $bf16 --activation_checkpoint.mode=selective --activation_checkpoint.selective_ac_option=op
    must_equal 8 one16 two16
    train 4 four16 $bf16 --parallelism.data_parallel_replicate_degree=2
    must_equal 8 one16 four16
    train 1 one6 $bf16 --training.dtype=bfloat16
    train 4 four6 $bf16 --training.dtype=bfloat16 --parallelism.data_parallel_replicate_degree=2
    must_equal 8 one6 four6
    [ "$(digests one16 8)" != "$(digests one6 8)" ] || not_as "training.dtype changes nothing"
    ! cmp -s one/metrics.jsonl one16/metrics.jsonl || not_as "bfloat16 changes nothing"
    [ "$(digests one 8)" != "$(digests one16 8)" ] || not_as "bfloat16 changes no weight"
}

# With init full, a rank holds the whole model and its shards, which is more than a step needs.
case_initialising_must_fit() {
    local small="--training.seq_len=16 --training.local_batch_size=1 --parallelism.fsdp_reshard_after_forward=always"

    run_ranks 4 train $small --training.steps=1 --checkpoint.enable=false --parallelism.memory_limit=40.8MiB \
        --training.init=full
    expect_error 6 "to initialise the weights" "training.init=meta"
}

case_larger_local_batches_do_not_depend_on_the_layout() {
    train 1 one --training.local_batch_size=4
    train 2 two --training.local_batch_size=4 --parallelism.threads_per_rank=2
    must_equal 8 one two
    train 4 four --training.local_batch_size=4 --parallelism.fsdp_reshard_after_forward=always
    must_equal 8 one four
    train 4 replicas --training.local_batch_size=4 --parallelism.data_parallel_replicate_degree=4
    must_equal 8 one replicas
}

case_a_process_without_mpirun_gives_the_same_bits() {
    train 1 one
    run train $base --job.dump_folder=plain --parallelism.threads_per_rank=2
    expect_ok
    must_equal 8 one plain
}

# Three ranks do not add in the order of the tree. Their numbers are close to one rank's, and the same in every run.
case_three_ranks_are_close_and_reproducible() {
    train 1 one --training.global_batch_size=12
    train 3 three --training.global_batch_size=12
    train 3 again --training.global_batch_size=12 --parallelism.fsdp_reshard_after_forward=always \
        --parallelism.threads_per_rank=2
    must_equal 8 three again
    numbers one step loss grad_norm | tr ':' ' ' >wanted
    numbers three step loss grad_norm | tr ':' ' ' >found
    paste wanted found | awk '
        function far(a, b) { return (a > b ? a - b : b - a) > 1e-5 * b }
        far($4, $10) || far($6, $12) { bad = 1 }
        END { exit bad || NR != 8 }' || not_as "three ranks are further than 1e-5 from one"
}

# begin RANKS FOLDER OPTION...: trains in the background. Its process is $job.
begin() {
    printf 'mpirun -n %s titan train %s' "$1" "${*:2}" >command
    background "$TITAN_SOURCE/tools/run-ranks" "$1" "$TITAN" train $base --job.dump_folder="$2" "${@:3}"
}

# wait_for_step FOLDER STEP: waits up to a minute for a complete checkpoint of that step or a later one.
wait_for_step() {
    for ((i = 0; i < 1200; i++)); do
        for have in "$1"/checkpoint/step-*; do
            [ -e "$have/manifest.json" ] && [ "${have##*-}" -ge "$2" ] && return
        done
        kill -0 "$job" 2>/dev/null || not_as "the run ended before step $2 was saved"
        sleep 0.05
    done
    kill -9 "$job"
    not_as "step $2 was not saved within a minute"
}

ended() {
    code=0
    wait "$job" || code=$?
}

# Long enough to be interrupted in the middle.
long="--training.steps=60 --lr_scheduler.total_steps=60 --checkpoint.interval=5 --validation.enable=false"

last_step() {
    ls -d "$1"/checkpoint/step-* | sed 's/.*step-//' | sort -n | tail -1
}

# One rank is killed, and mpirun ends the others.
case_a_killed_run_resumes_with_the_same_bits() {
    train 2 whole $long
    begin 4 broken $long --parallelism.fsdp_reshard_after_forward=always
    wait_for_step broken 10
    kill -9 "$(tr " " "\n" <"/proc/$job/task/$job/children" | grep . | tail -1)" # pgrep is not on every Debian
    ended
    [ "$code" != 0 ] || not_as "the run survived the death of a rank"
    [ "$(last_step broken)" -lt 40 ] || not_as "the run had ended before it was killed"
    train 1 broken $long --training.steps=40 --parallelism.threads_per_rank=2
    grep -q '"resumed_from":' broken/metrics.jsonl || not_as "nothing was resumed"
    train 8 broken $long --parallelism.data_parallel_replicate_degree=2
    must_equal 60 whole broken
}

case_a_run_stopped_by_usr1_resumes_with_the_same_bits() {
    train 1 whole $long
    begin 2 stopped $long
    wait_for_step stopped 5
    kill -USR1 "$job"
    ended
    expect_code 75
    at=$(last_step stopped)
    [ "$at" -lt 60 ] || not_as "the run had ended before it was stopped"
    grep -q "\"step\":$at,\"exit\":75\|\"exit\":75" stopped/metrics.jsonl || not_as "no end record with code 75"
    expect_err "stopped by a signal after step $at; everything is saved"
    train 4 stopped $long
    grep -q "\"resumed_from\":$at" stopped/metrics.jsonl || not_as "not resumed from step $at"
    must_equal 60 whole stopped
}

case_an_interrupted_run_resumes_with_the_same_bits() {
    # With job control, as in an interactive shell, a background job does not ignore SIGINT.
    train 1 whole $long
    set -m
    background "$TITAN" train $base --job.dump_folder=one $long
    set +m
    wait_for_step one 5
    kill -INT "$job"
    ended
    expect_code 130
    expect_err "stopped by a signal after step $(last_step one); everything is saved"
    [ "$(last_step one)" -lt 60 ] || not_as "the run had ended before it was interrupted"
    train 2 one $long
    must_equal 60 whole one
}

run_cases

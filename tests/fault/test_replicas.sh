#!/bin/bash
# SPDX-License-Identifier: MIT
# A rank whose weights are no longer those of its replicas stops the run, by name, and is not saved (flip.c).
. "$TITAN_SOURCE/tests/cli/lib.sh"
flip=$TITAN_BUILD/tests/fault/libflip.so

# Large enough that ranks read each other's memory.
large="$tiny --model.dim=256 --model.ffn_dim=1024 --training.local_batch_size=1 --training.global_batch_size=6
    --training.steps=4 --checkpoint.interval=2"

# flipped REPLICAS RANK OPTION...: a run of so many replicas in which that rank reads wrong bits.
flipped() {
    rm -f mark
    TITAN_FLIP_RANK=$2 TITAN_FLIP_MARK=$PWD/mark LD_PRELOAD=$flip run_ranks "$1" train $large \
        --parallelism.data_parallel_replicate_degree="$1" "${@:3}"
    [ "$2" = none ] || [ -e mark ] || skip "ranks do not read each other's memory here"
}

case_replicas_that_agree_go_on() {
    make_corpus
    flipped 3 none
    expect_ok
    flipped 3 none --checkpoint.enable --overwrite
    expect_ok
}

case_a_differing_replica_stops_a_run_that_does_not_save() {
    make_corpus
    flipped 3 2
    expect_error 1 "step 2: the replicas do not hold the same weights: rank 2 differs from most replicas, first in tensor "
    [ "$(grep -c '"type":"step"' run/metrics.jsonl)" = 2 ] || not_as "the run went on after step 2"
}

case_a_differing_replica_is_not_saved() {
    make_corpus
    for mode in disabled async; do
        flipped 3 1 --checkpoint.enable --checkpoint.async_mode=$mode --overwrite
        expect_error 1 "checkpoint of step 2: the replicas do not hold the same weights: rank 1 differs from most replicas"
        [ -z "$(ls -A run/checkpoint | grep step)" ] || not_as "something was saved: $(ls -A run/checkpoint)"
    done
}

case_two_replicas_cannot_tell_which() {
    make_corpus
    flipped 2 1
    expect_error 1 "step 2: the replicas do not hold the same weights: ranks 0, 1 differ from each other"
}

run_cases

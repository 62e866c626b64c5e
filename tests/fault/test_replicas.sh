#!/bin/bash
# SPDX-License-Identifier: MIT
# A rank whose weights differ from those of its replicas is named and stops the run before anything is saved (flip.c).
# Files that one rank reads, others need not read (refuse.c).
. "$TITAN_SOURCE/tests/cli/lib.sh"
flip=$TITAN_BUILD/tests/fault/libflip.so
refuse=$TITAN_BUILD/tests/fault/librefuse.so

# So large that ranks read each other's memory.
large="$tiny --model.dim=256 --model.ffn_dim=1024 --training.local_batch_size=1 --training.global_batch_size=6
    --training.steps=4 --checkpoint.interval=2"

# flipped REPLICAS RANK OPTION...: trains with that many replicas; RANK reads a wrong bit.
flipped() {
    rm -f mark
    TITAN_FLIP_RANK=$2 TITAN_FLIP_MARK=$PWD/mark LD_PRELOAD=$flip run_ranks "$1" train $large \
        --parallelism.data_parallel_replicate_degree="$1" "${@:3}"
    [ "$2" = none ] || [ -e mark ] || skip "ranks do not read each other's memory here"
}

case_equal_replicas_continue() {
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

case_of_two_different_replicas_neither_is_blamed() {
    make_corpus
    flipped 2 1
    expect_error 1 "step 2: the replicas do not hold the same weights: ranks 0, 1 differ from each other"
}

# resume_where_others_cannot SPEC RANKS OPTION...: trains another step, with the calls of SPEC refused on all ranks but
# 0.
resume_where_others_cannot() {
    cat >elsewhere <<EOF_WRAPPER
#!/bin/bash
[ "\$OMPI_COMM_WORLD_RANK" = 0 ] || export TITAN_REFUSE=$1 LD_PRELOAD=$refuse
exec $TITAN "\$@"
EOF_WRAPPER
    chmod +x elsewhere
    TITAN=$PWD/elsewhere run_ranks "$2" train $large --checkpoint.enable --training.steps=5 "${@:3}"
}

case_rank_0_reads_the_manifest_for_all() {
    make_corpus
    run_ranks 2 train $large --checkpoint.enable
    expect_ok
    resume_where_others_cannot open:EACCES:manifest.json 2
    expect_ok
    expect_err "weights +step-4 of run/checkpoint"
}

case_replicas_load_what_the_first_one_reads() {
    make_corpus
    replicas=--parallelism.data_parallel_replicate_degree=3
    run_ranks 3 train $large $replicas --checkpoint.enable
    expect_ok
    resume_where_others_cannot open:EACCES:.safetensors 3 $replicas --checkpoint.load_policy=all
    expect_code 3
    resume_where_others_cannot open:EACCES:.safetensors 3 $replicas
    expect_ok
}

run_cases

# SPDX-License-Identifier: MIT
# Ranks wait for each other as long as the job makes progress. When it makes none, the job ends with one message.
. "$(dirname "$0")/../cli/lib.sh"

tokens=$TITAN_SOURCE/tests/golden/data/llama3/tokens.bin
base="--config $TITAN_SOURCE/tests/mpi/train.yaml --training.dataset_path=$tokens --validation.enable=false"

# held CALL:PART:RANK:SECONDS RANKS FOLDER OPTION...: trains while one rank is held up (hold.c).
held() {
    printf 'TITAN_HOLD=%s mpirun -n %s titan train %s' "$1" "$2" "${*:4}" >command
    code=0
    "$TITAN_SOURCE/tools/run-ranks" "$2" env TITAN_HOLD="$1" LD_PRELOAD="$TITAN_BUILD/tests/mpi/libhold.so" \
        "$TITAN" train $base --job.dump_folder="$3" "${@:4}" >out 2>err </dev/null || code=$?
    grep -q '^held up: ' err || not_as "no rank was held up"
}

# one_error PATTERN...: checks that the job ended with code 4 and one error message.
one_error() {
    expect_code 4
    [ "$(grep -c 'titan: error:' err)" = 1 ] || not_as "expected one error message"
    for pattern in "$@"; do
        expect_err "$pattern"
    done
}

case_a_rank_that_stops_in_a_save_is_named() {
    held fsync:/checkpoint/:1:0 4 run --comm.train_timeout_seconds=3
    one_error "^titan: error: .*rank [023] waited [0-9]* s for rank 1 on $(uname -n) in 'saving a checkpoint': that rank is dead or stopped"
}

case_a_rank_that_stops_in_an_export_is_named() {
    held fsync:/.tmp-hf-:0:0 2 run --training.steps=2 --comm.train_timeout_seconds=3 --checkpoint.last_save_in_hf
    one_error "^titan: error: .*rank 1 waited [0-9]* s for rank 0 on $(uname -n) in 'writing Hugging Face weights'"
}

case_slow_files_are_waited_for() {
    held fsync:/checkpoint/:1:7 2 run --comm.train_timeout_seconds=2 --checkpoint.async_mode=async
    expect_ok
    held fsync:/step-2/:0:7 2 run --overwrite --training.steps=2 --comm.train_timeout_seconds=2 \
        --checkpoint.last_save_in_hf
    expect_ok
    held pread:/hf/:1:7 2 other --training.steps=2 --comm.init_timeout_seconds=3 --checkpoint.initial_load_in_hf \
        --checkpoint.initial_load_path=run/checkpoint/step-2/hf
    expect_ok
    held pread:/step-2/model/:1:7 2 other --comm.init_timeout_seconds=3
    expect_ok
}

case_a_start_of_mpi_that_hangs_is_an_error() {
    held start:-:1:0 2 run --comm.init_timeout_seconds=3
    one_error "^titan: error: rank [01] on $(uname -n): MPI has not started within 3 s"
}

# begin RANKS OPTION...: starts a long run in the background and waits for its first steps. Its ranks are in $ranks.
begin() {
    printf 'mpirun -n %s titan train %s' "$1" "${*:2}" >command
    background "$TITAN_SOURCE/tools/run-ranks" "$1" "$TITAN" train $base --job.dump_folder=run "${@:2}"
    for ((i = 0; i < 1200; i++)); do
        [ "$(grep -c '"type":"step"' run/metrics.jsonl 2>/dev/null || true)" -ge 3 ] 2>/dev/null && break
        kill -0 "$job" 2>/dev/null || not_as "the run ended early"
        sleep 0.05
    done
    ranks=$(tr ' ' '\n' <"/proc/$job/task/$job/children" | grep .)
}

ended() {
    code=0
    wait "$job" || code=$?
}

case_a_suspended_job_continues() {
    begin 2 --training.steps=200 --lr_scheduler.total_steps=200 --checkpoint.interval=200 --comm.train_timeout_seconds=2
    for i in 1 2; do
        kill -STOP $ranks
        sleep 5
        kill -CONT $ranks
    done
    ended
    expect_ok
}

case_a_rank_that_stops_in_training_is_named() {
    begin 4 --training.steps=100000 --checkpoint.interval=100000 --comm.train_timeout_seconds=3
    kill -STOP "$(echo $ranks | cut -d' ' -f3)"
    ended
    one_error "^titan: error: .*rank [013] waited [0-9]* s for rank 2 on $(uname -n) in '"
}

run_cases

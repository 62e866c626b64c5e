#!/bin/bash
# SPDX-License-Identifier: MIT
# The run folder on a strange file system: no locks, calls that are refused (refuse.c), a folder that is removed while a
# run uses it, leftovers of dead jobs.
. "$TITAN_SOURCE/tests/cli/lib.sh"
refuse=$TITAN_BUILD/tests/fault/librefuse.so

# refused SPEC ARGUMENT...: runs titan with system calls that fail.
refused() {
    echo "TITAN_REFUSE=$1 titan ${*:2}" >command
    code=0
    TITAN_REFUSE=$1 LD_PRELOAD=$refuse "$TITAN" "${@:2}" >out 2>err </dev/null || code=$?
}

# start_run OPTION...: starts a run in the background and waits for its first checkpoint. Its process is $job.
start_run() {
    make_corpus
    echo "titan train (in the background)" >command
    LD_PRELOAD=${TITAN_REFUSE+$refuse} "$TITAN" train $tiny --training.steps=500000 --checkpoint.enable \
        --checkpoint.interval=1 \
        --checkpoint.keep_latest_k=2 "$@" >first.out 2>first.err </dev/null &
    job=$!
    for _ in $(seq 600); do
        grep -q 'checkpoint step-2' first.err && return
        kill -0 $job 2>/dev/null || break
        sleep 0.1
    done
    kill $job 2>/dev/null
    not_as "no checkpoint within a minute: $(cat first.err)"
}

end_run() {
    kill -TERM $job 2>/dev/null
    wait $job || true
}

no_flock=flock:ENOLCK:/run/
no_locks=flock:EOPNOTSUPP:/run/,setlk:ENOSYS:/run/

case_record_locks_where_flock_is_missing() {
    TITAN_REFUSE=$no_flock start_run
    refused $no_flock train $tiny --checkpoint.enable
    expect_error 2 "another job is running in 'run'"
    refused $no_flock ckpt gc run
    expect_error 2 "another titan job is writing checkpoints"
    end_run
    refused $no_flock ckpt gc run
    expect_ok
}

case_an_owner_file_where_there_are_no_locks() {
    TITAN_REFUSE=$no_locks start_run
    grep -q "'run/.lock.owner' keeps other jobs out" first.err || not_as "nothing says what guards the folder"
    refused $no_locks train $tiny --checkpoint.enable
    expect_error 2 "another job is running in 'run'"
    # a host with locks respects the owner file too
    run ckpt gc run
    expect_error 2 "another titan job is writing checkpoints"
    kill -KILL $job
    wait $job || true
    expect_file run/.lock.owner
    # the owner is dead, so the run continues
    refused $no_locks train $tiny --checkpoint.enable --training.steps=1
    expect_ok
    refuse_file run/.lock.owner
    refuse_file run/checkpoint/.lock.owner
}

case_an_owner_on_another_host_is_believed() {
    make_corpus
    run train $tiny --checkpoint.enable
    expect_ok
    echo '{"host":"elsewhere","boot":"b","pid_namespace":"n","pid":1,"start":1}' >run/.lock.owner
    refused $no_locks train $tiny --checkpoint.enable
    expect_error 2 "another job is running in 'run'"
    expect_file run/.lock.owner
}

case_a_run_whose_folder_is_removed_ends_and_makes_nothing() {
    start_run --training.steps=2000
    mv run gone
    code=0
    wait $job || code=$?
    cp first.err err
    : >out
    expect_error 3 "run/checkpoint/.lock' is not the file that this run locked: .* removed or replaced"
    refuse_file run
}

# wait_until COMMAND: waits until the command prints something. It fails if the run in the background ends first.
wait_until() {
    for _ in $(seq 600); do
        [ -z "$(eval "$1" 2>/dev/null)" ] || return 0
        kill -0 $job 2>/dev/null || break
        sleep 0.1
    done
    kill $job 2>/dev/null
    not_as "not within a minute: $1; $(tail -5 first.err)"
}

case_traces_do_not_make_a_removed_folder_again() {
    make_corpus
    "$TITAN" train $tiny --training.steps=500000 --profiling.enable_profiling --profiling.profile_freq=50 \
        --metrics.log_freq=50 >first.out 2>first.err </dev/null &
    job=$!
    wait_until 'ls run/profiling/traces/iteration_*/rank0_trace.json'
    mv run gone
    # the folder may vanish in the middle of a trace, which gives another message
    wait_until 'grep "no trace of step.*not the file" first.err; ls -d run'
    end_run
    cp first.err err
    expect_err "no trace of step [0-9]+, training continues: 'run/.lock' is not the file that this run locked"
    refuse_file run
}

# The folder is replaced between two saves. A save that has already begun would be completed in the other folder.
case_a_run_whose_folder_is_replaced_leaves_the_other_alone() {
    start_run --training.steps=2000 --checkpoint.interval=200
    kill -STOP $job
    cp -r run other
    mv run gone
    mv other run
    find run | sort >before
    kill -CONT $job
    code=0
    wait $job || code=$?
    cp first.err err
    : >out
    expect_error 3 "not the file that this run locked"
    find run | sort >after
    expect_same before after
}

case_leftovers_of_every_job_are_removed() {
    make_corpus
    run train $tiny --checkpoint.enable --checkpoint.interval=1 --training.steps=2
    expect_ok
    for name in .tmp-step-9-a1 .tmp-step-3-b2 .trash-step-1-c3 .trash-step-1-gc; do
        cp -r run/checkpoint/step-1 run/checkpoint/$name
    done
    mv run/checkpoint/step-1 run/checkpoint/.old-step-1-d4
    run train $tiny --checkpoint.enable --training.steps=3
    expect_ok
    expect_err "the older one is back in its place"
    [ "$(ls -A run/checkpoint | tr '\n' ' ')" = ".lock step-1 step-2 step-3 " ] ||
        not_as "left: $(ls -A run/checkpoint)"
}

case_a_removal_that_failed_is_completed_later() {
    make_corpus
    refused rmdir:EIO:.trash- train $tiny --checkpoint.enable --checkpoint.interval=1 --checkpoint.keep_latest_k=1
    expect_ok
    expect_err "old checkpoints could not be removed"
    ls -A run/checkpoint | grep -q '^.trash-step-1-' || not_as "nothing was left to sweep: $(ls -A run/checkpoint)"
    refused rmdir:EIO:.trash- train $tiny --checkpoint.enable --training.steps=4
    expect_ok
    expect_err "the leftovers of an earlier job could not be removed"
    run train $tiny --checkpoint.enable --training.steps=5
    expect_ok
    ! ls -A run/checkpoint | grep '^\.[a-z]*-step' || not_as "left: $(ls -A run/checkpoint)"
}

# A failed export is made when the complete run is started again, on any number of ranks. Its remains are removed.
case_a_failed_export_is_completed_later() {
    make_corpus
    save="--checkpoint.enable --checkpoint.last_save_in_hf"
    for ranks in 1 2; do
        rm -rf run
        refused open:EIO:.tmp-hf-,rmdir:EIO:.tmp-hf- train $tiny $save
        expect_error 3 "step 3 is saved, but not its Hugging Face weights: cannot open folder" \
            "help: start the run again"
        refuse_file run/checkpoint/step-3/hf
        ls -A run/checkpoint/step-3 | grep -q '^.tmp-hf-' || not_as "nothing was left to sweep"
        cp -r run other
        # without the key there is no export, but the remains are removed
        run train $tiny --checkpoint.enable --job.dump_folder=other
        expect_ok
        [ -z "$(ls -A other/checkpoint/step-3 | grep hf)" ] || not_as "left: $(ls -A other/checkpoint/step-3)"
        run_ranks $ranks train $tiny $save
        expect_ok
        expect_err "the run is complete"
        [ "$(ls -A run/checkpoint/step-3 | grep hf)" = hf ] || not_as "left: $(ls -A run/checkpoint/step-3)"
        run ckpt diff run/checkpoint/step-3 run/checkpoint/step-3/hf
        expect_ok
        run train $tiny $save
        expect_ok
        refuse_err "Hugging Face weights"
        rm -r other
    done
}

# with_room BYTES ARGUMENT...: runs titan on a disk with that much free space for checkpoints.
with_room() {
    echo "TITAN_FREE=$1 titan ${*:2}" >command
    code=0
    TITAN_FREE=$1:/checkpoint LD_PRELOAD=$refuse "$TITAN" "${@:2}" >out 2>err </dev/null || code=$?
}

# A save of this model asks for about 5 MiB.
case_space_for_checkpoints_is_checked_before_training() {
    make_corpus
    MiB=1048576
    save="--checkpoint.enable --checkpoint.interval=1 --training.steps=5"
    with_room $((3 * MiB)) train $tiny $save
    expect_error 3 "not enough space for checkpoints in 'run/checkpoint': need [0-9.]+ MiB for one and for the next, which is \
written while that one is kept, have 3.00 MiB" "help: free space there, choose a job.dump_folder"
    refuse_out "^step"
    # with more space the same command continues, although not all checkpoints fit
    with_room $((21 * MiB)) train $tiny $save --checkpoint.keep_latest_k=10
    expect_ok
    expect_err "warning: not enough space in 'run/checkpoint' for all checkpoints that checkpoint.keep_latest_k=10 keeps: need \
2[0-9.]+ MiB, have 21.00 MiB"
    expect_err "help: free space there, or set checkpoint.keep_latest_k=3"
    with_room $((21 * MiB)) train $tiny $save --checkpoint.keep_latest_k=3 --job.dump_folder=three
    expect_ok
    refuse_err "not enough space"
    # old steps will be removed, so the space of one save is enough
    with_room $((3 * MiB)) train $tiny $save --checkpoint.keep_latest_k=1 --training.steps=8
    expect_error 3 "need [45].[0-9]+ MiB for one, have 3.00 MiB"
    with_room $((6 * MiB)) train $tiny $save --checkpoint.keep_latest_k=1 --training.steps=8
    expect_ok
    refuse_err "not enough space"
    # nothing will be saved
    with_room 1 train $tiny $save --checkpoint.keep_latest_k=1 --training.steps=8
    expect_ok
    expect_err "the run is complete"
    with_room 1 train $tiny $save --checkpoint.load_only --training.steps=9
    expect_ok
    # only the last save, with the model alone
    last="--checkpoint.enable --checkpoint.last_save_model_only --checkpoint.export_dtype=bfloat16 --job.dump_folder=last"
    with_room $((3 * MiB)) train $tiny $last
    expect_ok
    # a file system that does not report its free space
    TITAN_REFUSE=statvfs:ENOSYS:/checkpoint with_room 1 train $tiny $save --job.dump_folder=unknown
    expect_ok
}

# An intact step that cannot be read at the moment is not reported as damaged. The run stops, changes nothing, and
# continues later.
case_a_step_that_cannot_be_read_is_not_called_damaged() {
    make_corpus
    save="--checkpoint.enable --checkpoint.interval=2"
    run train $tiny $save --training.steps=4
    expect_ok
    find run/checkpoint | sort >before
    for what in open:EMFILE:step-4/manifest.json open:EACCES:step-4/model open:EIO:step-4/optim \
        stat:ESTALE:step-4/model \
        stat:EIO:step-4/manifest.json; do
        refused $what train $tiny $save --training.steps=6
        expect_error 3 "checkpoint step-4 in 'run/checkpoint' cannot be read at the moment; nothing was changed" \
            "rollback"
        find run/checkpoint | sort >after
        expect_same before after
    done
    # the same holds for a request that begins a line
    for what in open:EMFILE:step-4/manifest.json stat:ESTALE:step-4/model; do
        refused $what train $tiny $save --training.steps=6 --checkpoint.load_step=2
        expect_error 3 "cannot be read at the moment"
        refused $what ckpt list run
        expect_out "^4 +unreadable"
        refused $what ckpt gc run --keep 1
        expect_error 3 "step-4"
        find run/checkpoint | sort >after
        expect_same before after
    done
    for what in opendir:EIO:run/checkpoint readdir:EIO:run/checkpoint opendir:EACCES:run/checkpoint; do
        refused $what train $tiny $save --training.steps=6
        expect_error 3 "run/checkpoint"
        find run/checkpoint | sort >after
        expect_same before after
    done
    run train $tiny $save --training.steps=6
    expect_ok
    expect_out "^step: +5"
    refuse_out "^step: +4"
}

# If a file cannot be examined, titan cannot know whether an output would replace its source. Then nothing is written.
case_a_source_that_cannot_be_examined_is_not_replaced() {
    make_corpus
    run train $tiny --checkpoint.enable
    expect_ok
    run ckpt consolidate run weights --format hf
    expect_ok
    cp -r weights before
    for verb in "convert --dtype bfloat16" "consolidate --dtype bfloat16"; do
        refused realpath:EIO:weights ckpt $verb weights weights --force
        expect_error 3 "cannot examine 'weights': Input/output error"
        diff -r before weights >diff.txt || not_as "the source was changed: $(cat diff.txt)"
    done
}

case_records_that_cannot_be_written_give_one_warning() {
    make_corpus
    refused write:ENOSPC:run/metrics.jsonl train $tiny
    expect_ok
    [ "$(grep -c "cannot write 'run/metrics.jsonl': No space left on device; training continues" err)" = 1 ] ||
        not_as "expected one warning"
    expect_out "^step: +3"
    # a torn record does not damage the next one
    run train $tiny --checkpoint.enable --job.dump_folder=torn
    expect_ok
    truncate -s -20 torn/metrics.jsonl
    run train $tiny --checkpoint.enable --job.dump_folder=torn --training.steps=4
    expect_ok
    expect_err "'torn/metrics.jsonl' ended within a record, which was removed"
    python3 -c 'import json; [json.loads(line) for line in open("torn/metrics.jsonl")]' ||
        not_as "a line that is no JSON"
}

if ldd "$TITAN" | grep -qE 'lib(asan|tsan)'; then
    echo "1..0 # SKIP a sanitizer's own preloading comes first"
    exit 0
fi
run_cases

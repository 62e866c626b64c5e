#!/bin/bash
# SPDX-License-Identifier: MIT
# The step from which a run continues: lines of steps, going back, and steps that are set aside and never lost.
. "$(dirname "$0")/lib.sh"

save="--checkpoint.enable --checkpoint.interval=2"

# steps: prints the names in the checkpoint folder, without the identity of the run that set a step aside.
steps() {
    echo $(ls -A run/checkpoint | grep -v '^\.lock$' | sed 's/\(\.[a-z]*\)-[0-9a-f]*$/\1/')
}

expect_steps() {
    [ "$(steps)" = "$1" ] || not_as "expected the steps '$1', found '$(steps)'"
}

# digests STEP-FOLDER...: prints the digests of all tensors.
digests() {
    sed -n 's/.*"digest":"\(sum64:[0-9a-f]*\)".*/\1/p' $1/manifest.json
}

# line STEP: prints the line's parent, and the request that began the line.
line() {
    python3 -c '
import json, sys
line = json.load(open(f"run/checkpoint/step-{sys.argv[1]}/manifest.json"))["line"]
parent = line["parent"] and line["parent"]["step"]
print(parent, line["begun_with"]["load_step"], ",".join(line["begun_with"]["exclude"]) or "-")' "$1"
}

expect_line() {
    [ "$(line "$1")" = "$2" ] || not_as "expected line '$2' of step $1, found '$(line "$1")'"
}

make_six() {
    make_corpus
    run train $tiny $save --training.steps=6
    expect_ok
}

case_going_back_begins_a_line() {
    make_six
    digests run/checkpoint/step-6 >six
    run train $tiny $save --checkpoint.load_step=2 --training.steps=3 --optimizer.lr=1e-2
    expect_ok
    expect_out "^step: +3"
    expect_err "step-6 is set aside as 'run/checkpoint/step-6.abandoned-"
    expect_steps "step-2 step-3 step-4.abandoned step-6.abandoned"
    expect_line 2 "None -1 -"
    expect_line 3 "2 2 -"
    digests "run/checkpoint/step-6.abandoned-*" >kept
    expect_same six kept
    # without the request it continues from the newest step of the line, not from the abandoned 6
    run train $tiny $save --training.steps=4 --optimizer.lr=1e-2
    expect_ok
    expect_out "^step: +4"
    refuse_out "^step: +3"
    expect_line 4 "2 2 -"
}

case_the_same_request_again_continues_its_line() {
    make_six
    run train $tiny $save --checkpoint.load_step=2 --training.steps=4
    expect_ok
    run train $tiny $save --checkpoint.load_step=2 --training.steps=6
    expect_ok
    expect_err "were applied when this line of steps began; it continues from step-4 .titan ckpt rollback run STEP"
    expect_out "^step: +5"
    refuse_out "^step: +4"
    # even if retention removed the step from which the line began
    rm -r run/checkpoint/step-2
    run train $tiny $save --checkpoint.load_step=2 --training.steps=7
    expect_ok
    refuse_out "^step: +6"
    # another request begins another line
    run train $tiny $save --checkpoint.load_step=4 --training.steps=5
    expect_ok
    refuse_out "^step: +4"
    expect_line 5 "4 4 -"
}

case_retention_counts_the_steps_of_the_line() {
    make_six
    run train $tiny $save --checkpoint.load_step=2 --training.steps=3 --checkpoint.keep_latest_k=2
    expect_ok
    expect_steps "step-2 step-3 step-4.abandoned step-6.abandoned"
    run train $tiny $save --training.steps=4 --checkpoint.keep_latest_k=2
    expect_ok
    expect_steps "step-3 step-4 step-4.abandoned step-6.abandoned"
}

case_a_line_that_counts_from_zero() {
    make_six
    again="--checkpoint.exclude_from_loading=train_state,lr_scheduler --checkpoint.interval=1"
    run train $tiny $save $again --training.steps=2
    expect_ok
    expect_out "^step: +1"
    expect_steps "step-1 step-2 step-2.abandoned step-4.abandoned step-6.abandoned"
    expect_line 1 "6 -1 lr_scheduler,train_state"
    run train $tiny $save $again --training.steps=3
    expect_ok
    refuse_out "^step: +2"
    expect_out "^step: +3"
    expect_line 3 "6 -1 lr_scheduler,train_state"
    run train $tiny $save --training.steps=4
    expect_ok
    refuse_out "^step: +3"
}

case_the_start_of_a_line_is_never_replaced() {
    make_six
    digests run/checkpoint/step-6 >six
    run train $tiny --checkpoint.enable --checkpoint.interval=6 --training.steps=6 --optimizer.lr=1e-2 \
        --checkpoint.exclude_from_loading=train_state
    expect_ok
    expect_steps "step-2.abandoned step-4.abandoned step-6 step-6.abandoned"
    digests "run/checkpoint/step-6.abandoned-*" >kept
    expect_same six kept
    expect_line 6 "6 -1 train_state"
}

# A line may get a step with the number of the step from which it began; that step is saved all the same.
case_the_number_of_the_start_is_saved_again() {
    make_six
    run train $tiny --checkpoint.enable --checkpoint.interval=6 --training.steps=8 --checkpoint.keep_latest_k=0 \
        --checkpoint.exclude_from_loading=train_state
    expect_ok
    expect_steps "step-2.abandoned step-4.abandoned step-6 step-6.abandoned step-8"
    expect_line 6 "6 -1 train_state"
}

# A signal at that step stops the run, and the step is saved.
case_a_stop_at_the_number_of_the_start_is_saved() {
    make_corpus
    run train $tiny --checkpoint.enable --training.steps=1
    expect_ok
    TITAN_LONG_STEP=0 background "$TITAN" train $tiny --checkpoint.enable --training.steps=1000 \
        --checkpoint.interval=1000 --checkpoint.exclude_from_loading=train_state --training.global_batch_size=4000 \
        --parallelism.threads_per_rank=1
    while kill -0 $job && ! grep -q "^step: *1/" out; do sleep 0.05; done
    kill -TERM $job
    code=0
    wait $job || code=$?
    expect_code 75
    expect_err "stopped by a signal after step 1; everything is saved"
    expect_line 1 "1 -1 train_state"
}

# A new line counts from zero. If the run is killed before the first step of the line is saved, the old line is whole.
# If it is killed after that step and before the start is set aside, every later start continues the new line.
case_a_kill_while_a_line_begins_loses_nothing() {
    make_six
    again="--checkpoint.exclude_from_loading=train_state --checkpoint.interval=1 --training.steps=2"
    export TITAN_FAULT=manifest:0:kill
    run train $tiny $save $again
    unset TITAN_FAULT
    [ "$code" = 137 ] || not_as "the run should have been killed"
    cp -r run before
    run train $tiny $save --training.steps=7
    expect_ok
    expect_out "^step: +7"
    refuse_out "^step: +6"
    rm -rf run
    mv before run
    export TITAN_FAULT=published:0:kill
    run train $tiny $save $again
    unset TITAN_FAULT
    [ "$code" = 137 ] || not_as "the run should have been killed"
    expect_file run/checkpoint/step-6
    expect_file run/checkpoint/step-1
    run ckpt inspect run
    expect_out "run/checkpoint/step-1$"
    run train $tiny $save --training.steps=2
    expect_ok
    refuse_out "^step: +1"
    expect_out "^step: +2"
    expect_steps "step-1 step-2 step-2.abandoned step-4.abandoned step-6.abandoned"
}

case_a_damaged_step_is_set_aside() {
    make_six
    printf 'xxxx' | dd of="$(echo run/checkpoint/step-6/model/*.safetensors)" bs=1 seek=200000 conv=notrunc 2>/dev/null
    cksum run/checkpoint/step-6/model/* | cut -d' ' -f1 >six
    run train $tiny $save --training.steps=6
    expect_ok
    expect_err "step-6 is damaged, so it is skipped"
    expect_out "^step: +5"
    expect_steps "step-2 step-4 step-6 step-6.damaged"
    cksum run/checkpoint/step-6.damaged-*/model/* | cut -d' ' -f1 >kept
    expect_same six kept
    run ckpt verify run
    expect_ok
    run ckpt verify run/checkpoint/step-6.damaged-*
    expect_bad "crc"
}

case_steps_that_cannot_be_used_are_reported() {
    make_six
    truncate -s -1 run/checkpoint/step-*/model/*
    run train $tiny $save
    expect_error 3 "none of the 3 checkpoints in 'run/checkpoint' is intact" "^help: bring the files back from a copy"
    expect_steps "step-2 step-4 step-6"
    for step in 2 4 6; do
        mv run/checkpoint/step-$step run/checkpoint/step-$step.damaged-abc
    done
    run train $tiny $save
    expect_error 3 "all checkpoints in 'run/checkpoint' were set aside"
    run ckpt list run
    expect_ok
    expect_out "^step-6.damaged-abc +damaged"
}

case_load_only_changes_nothing() {
    make_six
    find run/checkpoint | sort >before
    for _ in 1 2; do
        run train $tiny $save --checkpoint.load_step=2 --checkpoint.load_only --training.steps=3
        expect_ok
        expect_out "^step: +3"
    done
    find run/checkpoint | sort >after
    expect_same before after
}

case_rollback_sets_newer_steps_aside() {
    make_six
    run ckpt rollback run 2 --dry-run
    expect_ok
    expect_out "would be set aside: step-6 as step-6.abandoned-"
    expect_steps "step-2 step-4 step-6"
    run ckpt rollback run 3
    expect_error 3 "no checkpoint of step 3 in 'run/checkpoint'" "help: it holds steps 6, 4, 2"
    run ckpt rollback run two
    expect_error 2 "'two' is not a step"
    truncate -s -1 run/checkpoint/step-2/model/*
    run ckpt rollback run 2
    expect_error 3 "step-2"
    expect_steps "step-2 step-4 step-6"
    run ckpt rollback run step-4 --json
    expect_ok
    expect_json 'assert found["step"] == 4 and [s["step"] for s in found["set_aside"]] == [6], found'
    run train $tiny $save --training.steps=5
    expect_ok
    expect_out "^step: +5"
    refuse_out "^step: +4"
    exec 7>>run/checkpoint/.lock
    flock -n 7 || not_as "the lock of a finished run is taken"
    run ckpt rollback run 4
    expect_error 2 "another titan job"
    exec 7>&-
    [ "$(steps)" = "step-2 step-4 step-5 step-6.abandoned" ] || not_as "found '$(steps)'"
}

case_what_was_set_aside_is_listed_and_kept() {
    make_six
    run ckpt rollback run 2
    expect_ok
    run ckpt list run --json
    expect_ok
    expect_json 'assert [s["step"] for s in found["steps"]] == [2], found
four, six = found["set_aside"]
assert four["step"] == 4 and four["state"] == "abandoned" and four["bytes"] > 1000000, four
assert six["name"].startswith("step-6.abandoned-") and six["name"].endswith(six["set_aside_by"]) and six["run_id"], six'
    run ckpt list run
    expect_out "^step-4.abandoned-[0-9a-f]+ +abandoned .* saved by run [0-9a-f]+$"
    aside=$(echo run/checkpoint/step-6.abandoned-*)
    run ckpt inspect $aside
    expect_ok
    expect_out "step +6$"
    run ckpt verify $aside
    expect_ok
    run ckpt consolidate $aside weights
    expect_ok
    run ckpt gc run
    expect_ok
    expect_steps "step-2 step-4.abandoned step-6.abandoned"
    run ckpt gc run --abandoned --dry-run
    expect_out "would be removed: step-6.abandoned-"
    run ckpt gc run --abandoned
    expect_ok
    expect_out "removed: step-4.abandoned-"
    expect_steps "step-2"
}

run_cases

#!/bin/bash
# SPDX-License-Identifier: MIT A table of signals: which signal, to which process, and when; then what is saved, what is
# printed, and the exit code.
. "$(dirname "$0")/lib.sh"
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # Open MPI does not free what it allocates

# start HOW OPTION...: starts a run in the background. Its process is $job. HOW is alone, launch or mpirun.
start() {
    make_corpus
    how=$1
    shift
    case $how in
    alone) set -- "$TITAN" train $tiny "$@" ;;
    launch) set -- "$TITAN" launch -n 2 -- train $tiny "$@" ;;
    mpirun) set -- "$TITAN_SOURCE/tools/run-ranks" 2 "$TITAN" train $tiny "$@" ;;
    esac
    echo "$*" >command
    # a script's background jobs ignore SIGINT by default
    background env --default-signal=INT,HUP,PIPE "$@"
}

long="--training.steps=1000000 --checkpoint.enable --checkpoint.interval=1000000"

# until_true COMMAND...: waits until the command succeeds. It fails if the job ends or a minute has passed.
until_true() {
    for ((i = 0; i < 1200; i++)); do
        "$@" && return
        kill -0 $job 2>/dev/null || not_as "the job ended before: $*"
        sleep 0.05
    done
    kill -9 $job
    not_as "a minute passed without: $*"
}

# Options for steps that take at least ten seconds or so, in 2000 microbatches.
slow="--training.global_batch_size=4000 --training.seq_len=128 --model.dim=128 --parallelism.threads_per_rank=1"

steps_are_done() {
    grep -q '^step: ' out
}

a_save_is_under_way() {
    ls -d run/checkpoint/.tmp-step-* >/dev/null 2>&1
}

ended() {
    code=0
    wait $job || code=$?
}

last_saved() {
    ls run/checkpoint 2>/dev/null | sed -n 's/^step-//p' | sort -n | tail -1
}

# expect_stop CODE RECORDED: checks that the job ends with CODE, that its end record contains RECORDED, and that the
# step at which training ended is saved and named.
expect_stop() {
    ended
    expect_code "$1"
    at=$(last_saved)
    [ -n "$at" ] || not_as "nothing was saved"
    grep '"end"' run/metrics.jsonl | tail -1 | grep -q "\"step\": *$at, *\"exit\": *$2" ||
        not_as "expected an end record of step $at with exit $2"
    expect_err "^titan: stopped by a signal after step $at; everything is saved$"
    refuse_err "error:"
    [ "$(grep -c "^titan: checkpoint step-$at:" err)" -le 1 ] || not_as "step $at was saved twice"
    [ "${how-}" != launch ] || refuse_err "non-zero|Forwarding" # mpirun's remarks
}

# row HOW SIGNAL CODE RECORDED: sends the signal during a step.
row() {
    how=$1
    start "$1" $long
    until_true steps_are_done
    kill "-$2" $job
    expect_stop "$3" "$4"
    # If another rank gets the signal first, the stop may already be under way when the rank that prints gets it. A
    # signal between two steps is answered with the step that just ended.
    again="; again: stop without saving"
    case $2 in INT | USR2) ;; *) again= ;; esac # a second signal other than Ctrl-C changes nothing
    expect_err "^titan: (stopping after step ($at|$((at - 1))) and saving$again|stopping after the checkpoint .*|the run is ending)$"
}

case_alone_sigint() { row alone INT 130 130; }
case_alone_sigterm() { row alone TERM 75 75; }
case_alone_sighup() { row alone HUP 75 75; }
case_alone_sigusr1() { row alone USR1 75 75; }
case_alone_sigusr2() { row alone USR2 130 130; }

case_launch_sigint() { row launch INT 130 130; }
case_launch_sigterm() { row launch TERM 75 75; }
case_launch_sighup() { row launch HUP 75 75; }
case_launch_sigusr1() { row launch USR1 75 75; }

# mpirun forwards SIGUSR1 and SIGUSR2. After any other signal it kills the ranks within two seconds and returns 1. So
# small a run saves in that time, though on a busy machine perhaps only the second or third time.
killed_by_mpirun() {
    for _ in 1 2; do
        (row mpirun "$1" 1 75 >/dev/null 2>&1) && return
        rm -rf run
    done
    row mpirun "$1" 1 75
}
case_mpirun_sigusr1() { row mpirun USR1 75 75; }
case_mpirun_sigint() { killed_by_mpirun INT; }
case_mpirun_sigterm() { killed_by_mpirun TERM; }
case_mpirun_sighup() { killed_by_mpirun HUP; }

# mpirun passes SIGCONT on to its ranks when it is itself continued, so a suspended job continues.
case_mpirun_suspended_and_continued() {
    start mpirun --training.steps=400 --checkpoint.enable --checkpoint.interval=1000000
    until_true steps_are_done
    kill -STOP $job
    sleep 0.3
    kill -CONT $job
    ended
    expect_code 0
    refuse_err "stopp"
    grep '"end"' run/metrics.jsonl | tail -1 | grep -q '"step": *400, *"exit": *0' ||
        not_as "the run did not end with step 400"
}

# A signal to a single rank stops all ranks.
case_one_rank_sigterm() {
    start mpirun $long
    until_true steps_are_done
    set -- $(cat "/proc/$job/task/$job/children")
    kill -TERM "${!#}"
    expect_stop 75 75
}

# Ctrl-C at a terminal reaches every process of the foreground group: launch and everything it started.
case_terminal_ctrl_c() {
    make_corpus
    echo "titan launch -n 2 -- train, on a terminal" >command
    cat >terminal.py <<'END'
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
seen, typed = b"", False
while True:
    try:
        part = os.read(terminal, 4096)
    except OSError:
        break
    if not part:
        break
    seen += part
    if not typed and b"step: " in seen:
        os.write(terminal, b"\x03")
        typed = True
open("err", "wb").write(seen.replace(b"\r\n", b"\n"))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 255)
END
    env --default-signal=INT,HUP,PIPE python3 terminal.py "$TITAN" launch -n 2 -- train $tiny $long >out &
    job=$!
    expect_stop 130 130
    expect_err "titan: (stopping after|the run is ending)"
}

# When the terminal is closed, titan gets SIGHUP and can no longer write to it.
case_terminal_closed() {
    make_corpus
    echo "titan train, on a terminal that is closed" >command
    cat >terminal.py <<'END'
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
seen = b""
while b"step: " not in seen:
    seen += os.read(terminal, 4096)
os.close(terminal)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 255)
END
    env --default-signal=INT,HUP,PIPE python3 terminal.py "$TITAN" train $tiny $long >out 2>err &
    job=$!
    ended
    expect_code 75
    [ -n "$(last_saved)" ] || not_as "nothing was saved"
    grep -q '"end".*"exit": *75' run/metrics.jsonl || not_as "no end record with exit 75"
}

# The terminal and the launcher may both pass on the same Ctrl-C.
case_two_signals_at_once_count_as_one() {
    start alone $long
    until_true steps_are_done
    kill -INT $job
    kill -TERM $job 2>/dev/null
    kill -INT $job 2>/dev/null
    ended
    [ "$code" = 130 ] || [ "$code" = 75 ] || not_as "expected exit code 130 or 75" # one signal may overtake another
    [ -n "$(last_saved)" ] || not_as "nothing was saved"
    expect_err "everything is saved"
}

# twice HOW SIGNAL: sends the signal twice during the first step, more than a second apart. If the first comes before
# the step, the run ends there, and the test tries again. TITAN_LONG_STEP: titan does not abandon the step in its
# middle, so the second signal arrives during it.
twice() {
    export TITAN_LONG_STEP=3600
    for _ in 1 2 3; do
        start $1 $long $slow
        until_true grep -q "training starts" err
        kill -$2 $job
        sleep 1.2
        kill -$2 $job 2>/dev/null
        ended
        grep -q "before the first step" err || break
        rm -rf run
    done
    expect_code 130
    expect_err "^titan: stopped without saving$"
    [ -z "$(last_saved)" ] || not_as "something was saved"
}

# A second Ctrl-C ends a run at once, even in a long step.
case_a_second_ctrl_c_ends_without_saving() {
    twice alone INT
    expect_err "^titan: stopping "
}
case_a_second_ctrl_c_to_launch_ends_without_saving() { twice launch INT; }

# paused: a rank of the job has stopped itself within its save. Sets $rank.
paused() {
    for rank in $(sed -n 's/^\([0-9]*\) (titan) T .*/\1/p' /proc/[0-9]*/stat 2>/dev/null); do
        grep -qz "^PWD=$PWD$" "/proc/$rank/environ" 2>/dev/null && return
    done
    return 1
}

# keeps HOW FIRST SECOND CODE: the second signal comes during the save that the first one requested, more than a second
# later. The request is kept.
keeps() {
    rm -rf run
    export TITAN_FAULT=collect:0:pause
    start $1 $long
    until_true steps_are_done
    kill -$2 $job
    until_true paused
    sleep 1.2
    kill -$3 $job
    kill -CONT $rank
    expect_stop $4 $4
    unset TITAN_FAULT
}

case_other_signals_keep_the_request() {
    keeps alone USR1 TERM 75
    keeps alone TERM USR1 75
    keeps alone TERM TERM 75
    keeps alone INT TERM 130
    keeps alone TERM INT 75
    expect_err "^titan: the run is already stopping; again: stop without it$"
}
case_other_signals_to_launch_keep_the_request() {
    keeps launch USR1 TERM 75
    keeps launch TERM TERM 75
    keeps launch INT HUP 130
}

# After another signal, ending at once takes two Ctrl-C.
case_ctrl_c_twice_after_another_signal() {
    export TITAN_LONG_STEP=3600
    start alone $long $slow
    until_true grep -q "training starts" err
    for name in TERM INT INT; do
        kill -$name $job
        sleep 1.2
    done
    ended
    expect_code 130
    expect_err "^titan: (the run is already stopping|stopping before the first step)"
    expect_err "^titan: stopped without saving$"
}

# Before the first step there is nothing to lose.
case_during_the_start() {
    start alone $long
    kill -0 $job
    until_true test -e run/.lock
    kill -TERM $job
    ended
    expect_code 75
    expect_err "^titan: stopping "
    expect_err "^titan: stopped by a signal (before|after) step "
    refuse_err "error:"
}

titan_runs() {
    [ "$(readlink "/proc/$job/exe")" = "$(readlink -f "$TITAN")" ]
}

case_during_the_start_of_launch() {
    start launch $long
    until_true titan_runs # the shell's child still ignores SIGINT
    kill -INT $job
    ended
    # before launch has a handler, a signal ends it like any process
    [ "$code" = 130 ] || not_as "expected exit code 130"
    refuse_err "error:"
}

case_during_a_save() {
    start alone --training.steps=1000000 --checkpoint.enable --checkpoint.interval=1 --model.dim=256
    until_true a_save_is_under_way
    kill -TERM $job
    expect_stop 75 75
    run ckpt verify run
    expect_ok
    [ -z "$(ls -d run/checkpoint/.tmp-step-* 2>/dev/null)" ] || not_as "left: $(ls -A run/checkpoint)"
}

case_during_an_async_save() {
    start alone --training.steps=1000000 --checkpoint.enable --checkpoint.interval=1 --model.dim=256 \
        --checkpoint.async_mode=async
    until_true a_save_is_under_way
    kill -INT $job
    expect_stop 130 130
    run ckpt verify run
    expect_ok
}

# A signal to a run that is already complete changes nothing.
case_at_the_end_of_the_run() {
    start alone --training.steps=3 --checkpoint.enable
    until_true test -e run/checkpoint/step-3/manifest.json
    kill -TERM $job 2>/dev/null
    ended
    expect_ok
    expect_err "training completed: step 3"
}

case_a_stop_without_checkpoints_says_that_nothing_is_saved() {
    start alone --training.steps=1000000
    until_true steps_are_done
    kill -INT $job
    ended
    expect_code 130
    expect_err "stopping after step [0-9]+, nothing is saved \(checkpoint.enable is off\); again: stop at once"
    expect_err "^titan: stopped by a signal after step [0-9]+ \(checkpoint.enable is off: nothing was saved\)$"
    refuse_err "error:"
}

# Training continues when the reader of its output has ended.
case_sigpipe_does_not_end_training() {
    make_corpus
    echo "titan train | head -1" >command
    "$TITAN" train $tiny --training.steps=20 2>err | head -1 >out
    code=${PIPESTATUS[0]}
    expect_ok
    expect_err "training completed: step 20"
    grep -q '"note".*standard output can no longer be written' run/metrics.jsonl || not_as "no note in metrics.jsonl"
    [ "$(grep -c '"type": *"step"' run/metrics.jsonl)" = 20 ] || not_as "expected 20 step records"
}

# mpirun ends a job whose output it cannot pass on, so launch keeps reading it.
case_closed_pipe_does_not_end_launch() {
    make_corpus
    echo "titan launch -n 2 -- train 2>&1 | true" >command
    "$TITAN" launch -n 2 -- train $tiny --training.steps=20 2>&1 </dev/null | true
    code=${PIPESTATUS[0]}
    expect_ok
    [ "$(grep -c '"type": *"step"' run/metrics.jsonl)" = 20 ] || not_as "expected 20 step records"
}

case_launch_passes_output_on() {
    make_corpus
    run launch -n 2 -- train $tiny --training.steps=20
    expect_ok
    [ "$(grep -c '^step: ' out)" = 20 ] || not_as "expected 20 lines on stdout"
    expect_err "training completed: step 20"
    run launch -n 2 -- train $tiny --training.stepz=20
    expect_error 2 "did you mean"
}

# If SIGHUP was ignored when titan started, as by nohup, it does not stop the run.
case_nohup_is_respected() {
    make_corpus
    echo "titan train under nohup" >command
    (trap '' HUP && exec "$TITAN" train $tiny --training.steps=200 >out 2>err </dev/null) &
    job=$!
    until_true steps_are_done
    kill -HUP $job
    ended
    expect_ok
}

# A long step is abandoned in its middle. The state before it is kept.
case_long_steps_stop_in_the_middle() {
    make_corpus
    run train $tiny $slow --training.global_batch_size=4 --training.steps=2 --checkpoint.enable --checkpoint.interval=1
    expect_ok
    cp -r run/checkpoint/step-2 before
    export TITAN_LONG_STEP=0
    for how in alone launch; do
        start $how $long $slow
        until_true grep -q "training starts" err
        kill -TERM $job
        expect_stop 75 75
        [ "$at" = 2 ] || not_as "expected step 2 to be kept, found step $at"
        expect_err "^titan: stopping (within step 3, keeping step 2|before the first step)$"
        diff -r before run/checkpoint/step-2 >problem || not_as "step 2 was changed: $(cat problem)"
    done
}

# The previous step is saved, unless it already was.
case_long_steps_save_the_one_before() {
    export TITAN_LONG_STEP=0
    start mpirun $long --training.global_batch_size=256
    until_true steps_are_done
    kill -USR1 $job
    expect_stop 75 75
    unset TITAN_LONG_STEP
    run train $tiny --training.steps=$((at + 1)) --training.global_batch_size=256 --checkpoint.enable
    expect_ok
    run train $tiny --training.steps=$((at + 1)) --training.global_batch_size=256 --checkpoint.enable \
        --job.dump_folder=whole
    expect_ok
    python3 - >problem.txt 2>&1 <<'END' || not_as "a resumed run: $(cat problem.txt)"
import json
found = [{r["step"]: r["loss"] for r in map(json.loads, open(f"{run}/metrics.jsonl")) if r["type"] == "step"}
         for run in ("run", "whole")]
assert found[0] == found[1], found
END
}

# A validation is abandoned: after step 1 and after the last one. The run does it when it continues, with the results of
# a run without signals.
validated() {
    python3 - "$@" <<'END'
import json, sys
for run in sys.argv[1:]:
    found = [json.loads(line) for line in open(f"{run}/metrics.jsonl")]
    losses = [(r["type"], r["step"], r["loss"]) for r in found if r["type"] in ("step", "validate")]
    print(losses, file=open(run + ".txt", "w"))
END
}

case_a_validation_is_given_up() {
    make_corpus
    awk 'BEGIN { for (i = 0; i < 4000; i++) printf "And the morning and the evening were day %d.\n", i }' >held.txt
    set -- --validation.enable --validation.freq=100 --validation.dataset=text --validation.dataset_path=held.txt \
        --checkpoint.enable --training.steps=3 --training.global_batch_size=8
    run train $tiny "$@" --validation.local_batch_size=2 --job.dump_folder=whole
    expect_ok
    for how in alone mpirun; do
        rm -rf run
        for step in 1 3; do
            start $how "$@" --validation.local_batch_size=2
            until_true grep -q "^step: *$step/" out
            to=$job
            [ $how = alone ] || to=$(awk '{ print $NF }' "/proc/$job/task/$job/children") # one rank of two
            kill -TERM $to
            expect_stop_in_validation $step
        done
        run train $tiny "$@" --validation.local_batch_size=2
        expect_ok
        expect_out "^validate step: +3"
        refuse_out "^step"
        validated whole run
        expect_same whole.txt run.txt
        run train $tiny "$@" --validation.local_batch_size=2
        expect_ok
        refuse_out "^validate"
    done
}

# expect_stop_in_validation STEP
expect_stop_in_validation() {
    ended
    expect_code 75
    expect_err "^titan: stopped by a signal after step $1; everything is saved, and the run continues with the validation"
    [ "$(last_saved)" = "$1" ] || not_as "expected step $1 to be saved"
    refuse_out "^validate step: +$1"
}

# If one batch of validation takes long, it is abandoned in its middle: here there is only one.
case_long_validations_stop_in_the_middle() {
    make_corpus
    awk 'BEGIN { for (i = 0; i < 4000; i++) printf "And the morning and the evening were day %d.\n", i }' >held.txt
    export TITAN_LONG_STEP=0
    for how in alone launch; do
        rm -rf run
        start $how --validation.enable --validation.dataset=text --validation.dataset_path=held.txt \
            --checkpoint.enable --training.steps=1 --validation.local_batch_size=4000 --training.global_batch_size=8
        until_true grep -q "^step: *1/" out
        kill -TERM $job
        expect_stop_in_validation 1
    done
}

run_cases

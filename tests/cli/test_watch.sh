#!/bin/bash
# SPDX-License-Identifier: MIT
# The commands that look at runs: status, compare.
. "$(dirname "$0")/lib.sh"

# metrics FOLDER LINE...: a run folder whose records are these lines. In a line, @RUN is a record of a start, and N:X is
# the record of step N with loss X.
metrics() {
    mkdir -p "$1"
    printf '%s\n' "${@:2}" | sed -E \
        -e 's/^([0-9]+):(.*)$/{"type":"step","step":\1,"loss":\2,"grad_norm":1,"lr":0.5,"ntokens_seen":\1,"step_time_s":2,"new":{"a":1},"time":\1}/' \
        -e 's/^@RUN *(.*)$/{"type":"run","world":2,"argv":["--config","my run.yaml","--overwrite"],"config":{"training":{"steps":9},"checkpoint":{"enable":true,"folder":"checkpoint"}},"time":1\1}/' \
        >"$1/metrics.jsonl"
}

case_a_resumed_run_is_equal_to_one_that_was_not_interrupted() {
    make_corpus
    run train $tiny --job.dump_folder=whole --training.steps=6 --checkpoint.enable
    expect_ok
    for steps in 4 6; do
        run train $tiny --job.dump_folder=parts --training.steps=$steps --checkpoint.enable --checkpoint.interval=3 \
            --lr_scheduler.total_steps=6
        expect_ok
    done
    run compare whole parts --assert-equal
    expect_ok
    [ ! -s out ] || not_as "output where runs are equal"
    run compare whole parts
    expect_out '^EQUAL: whole and parts, 6 steps compared$'
    expect_out 'checkpoint.interval: 30, 3$'
    run train $tiny --job.dump_folder=other --training.steps=6 --debug.seed=7
    run compare whole other --assert-equal
    expect_error 1 'the runs differ: step 1: loss is [0-9.]+ in whole, [0-9.]+ in other'
    run compare whole other
    expect_code 1
    expect_out 'debug.seed: 42, 7$'
    run status parts
    expect_ok
    expect_out '^parts: completed, .* 1 rank'
    expect_out '^  step       6 of 6 \(100 %\)'
    expect_out '^  checkpoint step-6, '
}

case_later_steps_win() {
    metrics one '@RUN' 1:1 2:2 3:3 4:4
    metrics two '@RUN' 1:1 2:2 3:33 4:44 5:55 '@RUN ,"resumed_from":2' 3:3 4:4
    run compare one two
    expect_ok
    expect_out '^EQUAL: one and two, 4 steps compared'
    metrics began_again '@RUN' 1:9 2:9 3:9 4:9 5:9 '@RUN' 1:1 2:2 3:3 4:4
    run compare one began_again --assert-equal
    expect_ok
    metrics failed_at_once '@RUN' 1:1 2:2 3:3 4:4 '@RUN ,"resumed_from":2'
    run compare one failed_at_once --assert-equal
    expect_ok
}

case_the_first_difference_and_the_largest_are_named() {
    metrics one '@RUN' 1:1 2:2 3:3 4:4
    metrics two '@RUN' 1:1 2:2.25 3:3 4:5 6:6 7:7
    run compare one two --json
    expect_code 1
    expect_json '
assert found["equal"] is False and found["steps"] == 4
assert found["first"] == {"step": 2, "field": "loss", "a": 2, "b": 2.25}, found["first"]
loss = found["fields"][0]
assert (loss["field"], loss["different"], loss["first_step"], loss["max_step"], loss["max_abs"]) == ("loss", 2, 2, 4, 1)
assert found["only_b"] == [{"from": 6, "to": 7, "count": 2}] and found["only_a"] == []'
    run compare one two --tolerance 0.25 --to 4
    expect_ok
    run compare one two --tolerance 0.1 --to 4
    expect_code 1
    run compare one two --from 3 --to 3
    expect_ok
    run compare one two --from 8
    expect_code 1
    run compare one two --key lr,grad_norm --to 4
    expect_ok
}

case_numbers_that_are_not_finite_are_equal_to_each_other_only() {
    metrics one '@RUN' 1:null
    metrics two '@RUN' 1:1
    run compare one one --assert-equal
    expect_ok
    run compare one two --assert-equal
    expect_error 1 'loss is not finite in one, 1 in two'
}

case_torn_and_foreign_lines_do_no_harm() {
    metrics one '@RUN' 1:1 2:2
    metrics two '@RUN' 'not JSON' '{"type":"later than this version"}' 1:1 2:2
    printf '{"type":"step","step":3,"lo' >>two/metrics.jsonl
    run compare one two --assert-equal
    expect_ok
    expect_err "warning: 1 line of .two/metrics.jsonl. is not a JSON object and is left out: line 2"
    printf '\n' >>two/metrics.jsonl
    run status two
    expect_ok
    expect_out 'warning    2 lines of metrics.jsonl are not JSON objects, the first is line 2'
    printf 'a\nb\n' >text
    run compare one text
    expect_error 3 "'text' is not a run's metrics.jsonl"
}

case_a_killed_run_has_a_command_that_continues_it() {
    metrics dead '@RUN' 1:1 2:2
    run status dead
    expect_ok
    expect_out '^dead: killed, 2 ranks'
    expect_out '^  step       2 of 9 \(22 %\)'
    expect_out "continue   titan launch -n 2 -- train --config 'my run.yaml'$"
    refuse_out 'overwrite'
    run status dead --json
    expect_json 'assert found["state"] == "killed" and found["alive"] is False and found["eta_s"] is None'
    printf '{"type":"end","step":2,"exit":5,"error":"the loss is nan\\nhelp: less","time":3}\n' >>dead/metrics.jsonl
    run status dead
    expect_out '^dead: failed \(exit code 5\)'
    expect_out '^  why        the loss is nan$'
    expect_out '^             help: less$'
}

case_a_failed_run_keeps_its_error() {
    make_corpus
    run train $tiny --optimizer.lr=1e6 --lr_scheduler.warmup_steps=0 --training.max_norm=0 \
        --optimizer.weight_decay=1000 --training.steps=60
    expect_code 5
    run status run
    expect_ok
    expect_out '^run: failed \(exit code 5\)'
    expect_out '^  why        .*finite'
    expect_out '^  continue   titan train .*--overwrite$'
}

case_the_lock_tells_whether_a_run_is_alive() {
    metrics live '@RUN' 1:1
    : >live/.lock
    flock live/.lock "$TITAN" status live --json >out 2>err || not_as "status failed"
    expect_json '
assert found["state"] == "running" and found["alive"] is True and found["command"] is None
assert any("nothing was recorded" in w for w in found["warnings"]), found["warnings"]'
    run status live --json
    expect_json 'assert found["state"] == "killed"'
    run status live --follow --json
    expect_ok
    [ "$(wc -l <out)" = 1 ] || not_as "not one line"
}

case_bad_calls_are_refused() {
    metrics one '@RUN' 1:1
    mkdir empty
    run status empty
    expect_error 3 "'empty' has no metrics.jsonl" 'name the folder of a run'
    run status nothing
    expect_error 3 "no run at 'nothing'"
    run status one one
    expect_error 2 'one folder at a time'
    run status --training.steps=3
    expect_error 2 'not an option'
    run compare one
    expect_error 2 'two runs are needed, 1 given'
    run compare one one --tolerance -1
    expect_error 2 "'-1' is not a number of 0 or more"
    run compare one one --key speed_of_light
    expect_error 2 "no step record has a number 'speed_of_light'"
    run compare one one --from x
    expect_error 2 "--from 'x'"
}

run_cases

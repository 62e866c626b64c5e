#!/bin/bash
# SPDX-License-Identifier: MIT
# titan new: from a text, a machine and hours to a configuration that runs.
. "$(dirname "$0")/lib.sh"

# machine RATE: a machine file, so that nothing is measured and the plan is the same everywhere.
machine() {
    cat >machine.json <<END
{"type": "machine", "schema": 1, "name": "a machine", "sgemm_flops": $1, "bgemm_flops": $1,
 "memory_bytes_per_sec": 1e10, "call_sec": 1e-6, "message_sec": 1e-6, "link_bytes_per_sec": 1e10}
END
}

# texts N: a folder of N documents.
texts() {
    mkdir text
    for i in $(seq "$1"); do
        seq "$i" $((i + 400)) | sed 's/$/ bottles of beer on the wall/' >"text/$i.txt"
    done
}

case_the_folder_is_a_run_of_the_memory_that_the_plan_gives() {
    machine 1e10
    texts 40
    run new made --data text --tokens 500k --depth 2 --machine machine.json
    expect_ok
    expect_out '^text     40 documents, [0-9,]+ bytes of text'
    expect_out '^model    llama3 of depth 2: width 128, 2 heads, feed-forward 384;'
    expect_out '^run      488 steps of 2 x 512 tokens: 0.5M tokens'
    expect_out '^note     .* passes through the text are more than 4'
    expect_out '^  titan train --config made/config.yaml$'
    [ "$(wc -l <out)" -le 20 ] && [ "$(wc -L <out)" -le 80 ] || not_as "expected 20 lines of 80 columns at most"
    run new other --data text --tokens 500k --depth 2 --machine machine.json --json
    expect_json 'assert found["written"] and found["parameters"] == found["parameters_without_embedding"] + 2048 * 128'
    mv out plan.json
    mkdir elsewhere && cd elsewhere || exit 1
    run config check --config ../made/config.yaml
    expect_ok
    run train --config ../made/config.yaml --dry-run --json
    expect_json 'plan = json.load(open("../plan.json"))
memory = found["memory"]
assert memory["predicted_bytes"] + memory["staging_bytes"] == plan["peak_bytes"], (memory, plan["peak_bytes"])
assert found["last_step"] == plan["steps"] and found["parameters"] == plan["parameters"]
assert len(found["validation"]) == 1'
    run train --config ../made/config.yaml --training.steps=2 --metrics.sample_freq=0 --validation.steps=1
    expect_ok
    expect_file ../made/run/metrics.jsonl
}

# A slower machine, or fewer hours, get a smaller model; a larger one would not get its tokens.
case_the_hours_decide_about_the_depth() {
    for i in 1 2 3 4 5 6; do cat "$TITAN_SOURCE/assets/kjv_train.jsonl"; done >six.jsonl
    machine 1e11
    run new made --data six.jsonl --hours 1 --machine machine.json --dry-run --json
    expect_json 'assert found["epochs"] <= 4.01 and found["dataset"] == "jsonl" and found["depth"] > 2, found'
    machine 1e9
    run new made --data six.jsonl --hours 2 --machine machine.json --dry-run --json
    expect_json 'assert found["depth"] == 2 and 1.9 < found["run_seconds"] / 3600 <= 2, found
assert found["loss_per_byte_low"] < found["loss_per_byte"] < found["loss_per_byte_high"]'
    run new made --data kjv --depth 2 --hours 1000 --machine machine.json --dry-run
    expect_out '^note     .* would be left: the text is too small for --hours 1000'
    refuse_file made
}

case_a_wrong_start_leaves_nothing_behind() {
    machine 1e10
    texts 2
    mkdir full && touch full/here
    run new full --data text --machine machine.json
    expect_error 2 "'full' exists and is not empty: it has 'here'"
    run new made --data text --machine machine.json --depth 2
    expect_error 3 "the text has [0-9]+ bytes, and the run would make [0-9]+ steps, too few" "help: more text"
    run new made --data kjv --machine machine.json --depth 9 --hours 0.01
    expect_error 2 "--hours 0.01 is time for [0-9]+ steps of a model of depth 9, too few" "help: at least --hours"
    run new made --data none.txt --machine machine.json
    expect_error 3 "none.txt"
    run new made --data kjv --hours 1 --tokens 20M
    expect_error 2 "--hours and --tokens both"
    run new made --data kjv --tokens many
    expect_error 2 "--tokens 'many' is not a number such as 30M"
    run new made --data kjv --for chat
    expect_error 2 "is not text or code"
    run new --data kjv
    expect_error 2 "new needs the name of a new folder"
    [ "$(ls | tr '\n' ' ')" = "command err full machine.json out text " ] || not_as "left behind: $(ls)"
}

run_cases

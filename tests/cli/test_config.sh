#!/bin/bash
# SPDX-License-Identifier: MIT
# titan config, and what is said about configurations that are wrong. Unit tests cover every kind of value; these show
# what a user sees.
. "$(dirname "$0")/lib.sh"

case_ready_files_load() {
    found=0
    for file in "$TITAN_SOURCE"/configs/*.yaml; do
        [ -e "$file" ] || continue
        found=1
        run config check "$file"
        expect_ok
        expect_out "^ok$"
    done
    [ $found = 1 ] || not_as "no configs/*.yaml"
}

case_check_notes_what_has_no_effect() {
    printf 'compile:\n  enable: true\noptimizer:\n  implementation: foreach\n' >my.yaml
    run config check my.yaml
    expect_ok
    expect_out "^ok$"
    expect_err "my.yaml:2:11: compile.enable has no effect"
    expect_err "my.yaml:4:19: optimizer.implementation has no effect"
}

case_unknown_key_has_a_place_and_the_nearest_key() {
    printf 'training:\n  seqlen: 256\n' >my.yaml
    run config check my.yaml
    expect_error 2 "my.yaml:2:3" "seqlen" "training.seq_len"
}

case_unknown_key_of_another_section_is_found() {
    printf 'training:\n  lr: 1e-3\n' >my.yaml
    run config check my.yaml
    expect_error 2 "my.yaml:2:3" "optimizer.lr"
}

case_unknown_section() {
    printf 'trianing:\n  steps: 3\n' >my.yaml
    run config check my.yaml
    expect_error 2 "my.yaml:1:1" "trianing" "training"
}

case_unknown_flag() {
    run config check --training.seqlen=3
    expect_error 2 "training.seqlen" "training.seq_len"
}

case_wrong_type() {
    printf 'training:\n  steps: many\n' >my.yaml
    run config check my.yaml
    expect_error 2 "my.yaml:2:10" "many" "training.steps"
}

case_out_of_range() {
    run config check --training.steps=0
    expect_error 2 "training.steps" "0"
}

case_wrong_choice_lists_the_choices() {
    run config check --optimizer.name=Adamm
    expect_error 2 "Adamm" "AdamW"
}

case_yaml_syntax() {
    printf 'training:\n  steps: [1, 2\noptimizer:\n' >my.yaml
    run config check my.yaml
    expect_error 2 "my.yaml:[0-9]+:[0-9]+"
}

case_duplicate_key() {
    printf 'training:\n  steps: 1\n  seq_len: 8\n  steps: 2\n' >my.yaml
    run config check my.yaml
    expect_error 2 "my.yaml:4:3" "steps"
}

case_missing_file() {
    run config check nosuch.yaml
    expect_error 2 "nosuch.yaml"
}

case_a_folder_is_no_file() {
    mkdir folder.yaml
    run config check folder.yaml
    expect_error 2 "folder.yaml"
}

case_all_errors_at_once() {
    printf 'training:\n  steps: many\n  seqlen: 8\noptimizer:\n  lr: fast\n' >my.yaml
    run config check my.yaml --model.dim=none
    expect_error 2 "my.yaml:2:" "my.yaml:3:" "my.yaml:5:" "model.dim"
}

case_train_says_the_same_and_creates_nothing() {
    printf 'training:\n  steps: many\n  seqlen: 8\n' >my.yaml
    run train --config my.yaml --job.dump_folder=run
    expect_error 2 "my.yaml:2:" "my.yaml:3:"
    refuse_file run
}

case_ranks_say_it_once() {
    run_ranks 2 train --training.stepz=3 --job.dump_folder=run
    expect_error 2 "training.stepz" "training.steps"
    refuse_file run
}

case_what_is_not_built_is_refused() {
    for setting in tensor_parallel_degree=2 pipeline_parallel_degree=2 context_parallel_degree=2; do
        run config check --parallelism.$setting
        expect_error 2 "parallelism.${setting%=*}"
    done
}

case_keys_of_torchtitan_that_change_the_meaning_are_refused() {
    printf 'model:\n  converters: [float8]\n' >my.yaml
    run config check my.yaml
    expect_error 2 "model.converters"
    printf 'model:\n  converters: []\ncompile:\n  enable: false\n' >my.yaml
    run config check my.yaml
    expect_ok
}

case_show_round_trips() {
    run config show --training.steps=7 --optimizer.lr=3e-4
    expect_ok
    mv out first.yaml
    run config show first.yaml
    expect_ok
    expect_same out first.yaml
    grep -Eq 'steps: 7$' first.yaml || not_as "the flag's value in the output"
}

case_origin_names_file_line_and_flag() {
    printf 'training:\n  steps: 7\n' >my.yaml
    run config show my.yaml --optimizer.lr 3e-4 --origin
    expect_ok
    expect_out "steps: 7 .*my.yaml:2"
    expect_out "lr: .*--optimizer.lr"
    expect_out "seq_len: .*default"
}

case_later_wins() {
    printf 'training:\n  steps: 7\n  seq_len: 8\n' >a.yaml
    printf 'training:\n  steps: 8\n' >b.yaml
    run config show --config a.yaml --config b.yaml --training.seq_len=16
    expect_ok
    expect_out " steps: 8$"
    expect_out " seq_len: 16$"
}

case_spellings_of_flags() {
    run config show --training.seq-len=16 training.steps=9 --checkpoint.enable --no-dataloader.shuffle --optimizer.lr 1e-4
    expect_ok
    expect_out " seq_len: 16$"
    expect_out " steps: 9$"
    expect_out " shuffle: false$"
    expect_out " lr: 0?\.?[01].*"
}

case_init_is_a_valid_file() {
    run config init
    expect_ok
    mv out my.yaml
    run config check my.yaml
    expect_ok
    run config diff my.yaml
    expect_ok
    refuse_out .
}

case_diff_shows_what_differs() {
    printf 'training:\n  steps: 7\n' >a.yaml
    printf 'training:\n  steps: 8\n' >b.yaml
    run config diff a.yaml b.yaml
    expect_ok
    expect_out "^training.steps: 7 -> 8"
    [ "$(wc -l <out)" = 1 ] || not_as "expected one line"
}

case_show_json_is_json() {
    run config show --json
    expect_ok
    python3 -c 'import json; assert json.load(open("out"))["training"]["seq_len"] == 256' || not_as "valid JSON with training.seq_len"
}

run_cases

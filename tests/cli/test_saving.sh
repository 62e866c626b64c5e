#!/bin/bash
# SPDX-License-Identifier: MIT What is saved, by which rank and when, and what a run loads: the keys of the section
# checkpoint.
. "$(dirname "$0")/lib.sh"

digests() {
    python3 -c '
import json, sys
for name, tensor in sorted(json.load(open(sys.argv[1] + "/manifest.json"))["tensors"].items()):
    print(name, tensor["digest"])' "$1"
}

field() { # TYPE KEY: the value of the key in the last record of that type
    python3 -c '
import json, sys
print([r for r in map(json.loads, open("run/metrics.jsonl")) if r["type"] == sys.argv[1]][-1][sys.argv[2]])' "$1" "$2"
}

case_async_saves_are_the_same() {
    make_corpus
    run train $tiny --training.steps=6 --checkpoint.enable --checkpoint.interval=2 --job.dump_folder=sync
    expect_ok
    run train $tiny --training.steps=6 --checkpoint.enable --checkpoint.interval=2 --checkpoint.async_mode=async
    expect_ok
    for step in 2 4 6; do
        for file in sync/checkpoint/step-$step/*/*.safetensors; do
            expect_same "$file" "run/${file#sync/}"
        done
    done
    expect_err "checkpoint step-4: .* training waited .* for the copy\), written in .* GB/s"
    grep '"step":4,' run/metrics.jsonl | grep '"type":"checkpoint"' | grep '"async":true' | grep '"blocked_s"' |
        grep -q '"written_s"' ||
        not_as "no record of the async save of step 4"
    [ "$(field run staging_bytes)" -gt 0 ] || not_as "no staging memory was predicted"
}

case_policies_and_filters_under_mpirun() {
    make_corpus
    for policy in all "filtered --checkpoint.filter=replica0" "filtered --checkpoint.filter=rank0"; do
        for mode in disabled async; do
            rm -rf run
            run_ranks 2 train $tiny --checkpoint.enable --checkpoint.interval=2 --checkpoint.async_mode=$mode \
                --parallelism.data_parallel_replicate_degree=2 --checkpoint.save_policy=$policy
            expect_ok
            digests run/checkpoint/step-2 >new.txt
            [ -e first.txt ] || mv new.txt first.txt
            [ ! -e new.txt ] || expect_same first.txt new.txt
            files=$(ls run/checkpoint/step-2/*/*.safetensors | wc -l)
            [ "$policy" = all ] && expected=4 || expected=2
            [ "$files" = $expected ] || not_as "policy $policy: $files files, expected $expected"
            expect_err "in $expected files"
        done
    done
}

case_rows_of_other_shards_reach_rank_0() {
    make_corpus
    run train $tiny --checkpoint.enable
    expect_ok
    digests run/checkpoint/step-3 >alone.txt
    rm -rf run
    run_ranks 2 train $tiny --checkpoint.enable --checkpoint.save_policy=filtered --checkpoint.filter=rank0
    expect_ok
    digests run/checkpoint/step-3 >gathered.txt
    expect_same alone.txt gathered.txt
    [ "$(ls run/checkpoint/step-3/model | wc -l)" = 1 ] || not_as "more than one model file"
}

# The time includes sending rows to rank 0, so the rate does too.
case_the_rate_of_a_save_is_that_of_the_time_printed_with_it() {
    make_corpus
    run_ranks 2 train $tiny --model.dim=512 --model.ffn_dim=2048 --training.local_batch_size=1 --training.steps=1 \
        --checkpoint.enable --checkpoint.save_policy=filtered --checkpoint.filter=rank0
    expect_ok
    rate=$(python3 -c "print('%.2f' % ($(field checkpoint bytes) / $(field checkpoint total_s) / 1e9))")
    seconds=$(python3 -c "print('%.2f' % $(field checkpoint total_s))")
    expect_err "^titan: checkpoint step-1: .* in 2 files, $seconds s \\($rate GB/s\\)$"
}

case_a_filter_that_is_not_built_is_refused() {
    make_corpus
    run train $tiny --checkpoint.enable --checkpoint.save_policy=filtered --checkpoint.filter=node_leader
    expect_error 2 "node_leader"
}

case_a_failed_save_is_a_warning_and_training_continues() {
    make_corpus
    for mode in disabled async; do
        rm -rf run
        export TITAN_FAULT=write:0:enospc
        run train $tiny --training.steps=5 --checkpoint.enable --checkpoint.interval=2 --checkpoint.async_mode=$mode
        unset TITAN_FAULT
        expect_error 3 "checkpoint of step 5: .*No space left" "warning: checkpoint of step 2 FAILED" \
            "checkpoint of step 4 FAILED"
        expect_out "^step: +5/"
        [ -z "$(ls -A run/checkpoint | grep step)" ] || not_as "something was left: $(ls -A run/checkpoint)"
        grep '"type":"checkpoint"' run/metrics.jsonl | grep -q '"error"' || not_as "no record of the failure"
    done
}

case_a_signal_drains_an_async_save() {
    make_corpus
    background "$TITAN" train $tiny --training.steps=1000000 --checkpoint.enable --checkpoint.interval=7 \
        --checkpoint.async_mode=async \
        --checkpoint.keep_latest_k=0
    for _ in $(seq 200); do
        grep -q 'checkpoint step-7' err && break
        sleep 0.1
    done
    kill -USR1 $job
    code=0
    wait $job || code=$?
    expect_code 75
    last=$(field end step)
    expect_file "run/checkpoint/step-$last"
    expect_file "run/checkpoint/step-$((last / 7 * 7))"
    [ -z "$(ls -A run/checkpoint | grep '^\.[a-z]*-step')" ] || not_as "temporary folders: $(ls -A run/checkpoint)"
}

case_the_last_save_can_be_the_model_alone() {
    make_corpus
    run train $tiny --checkpoint.enable --checkpoint.interval=2 --checkpoint.last_save_model_only \
        --checkpoint.export_dtype=bfloat16
    expect_ok
    expect_file run/checkpoint/step-2/optim
    refuse_file run/checkpoint/step-3/optim
    run ckpt inspect --json run/checkpoint/step-3
    expect_ok
    ! grep -q '"F32"' out || not_as "a tensor of the last save is F32"
    run ckpt inspect --json run/checkpoint/step-2
    ! grep -q '"BF16"' out || not_as "an earlier save is BF16"
    run train $tiny --job.dump_folder=second --checkpoint.initial_load_path=run/checkpoint/step-3
    expect_ok
    run train $tiny --training.steps=5 --checkpoint.enable
    expect_error 3 "has no optimizer state" "exclude_from_loading"
    run train $tiny --training.steps=5 --checkpoint.enable --checkpoint.load_step=2
    expect_ok
    expect_out "^step: +3/"
}

case_a_complete_run_still_removes_old_steps() {
    make_corpus
    save="--checkpoint.enable --checkpoint.interval=1"
    export TITAN_FAULT=retention:0:kill
    run train $tiny $save --checkpoint.keep_latest_k=2
    unset TITAN_FAULT
    expect_code 137
    steps="step-1 step-2 step-3 "
    [ "$(ls run/checkpoint | tr '\n' ' ')" = "$steps" ] || not_as "left: $(ls run/checkpoint)"
    # a start that does not train does not apply a new keep_latest_k
    run train $tiny $save --checkpoint.keep_latest_k=1
    expect_ok
    [ "$(ls run/checkpoint | tr '\n' ' ')" = "$steps" ] || not_as "left: $(ls run/checkpoint)"
    run_ranks 2 train $tiny $save --checkpoint.keep_latest_k=2
    expect_ok
    expect_err "the run is complete"
    [ "$(ls run/checkpoint | tr '\n' ' ')" = "step-2 step-3 " ] || not_as "left: $(ls run/checkpoint)"
}

case_load_step_and_load_only() {
    make_corpus
    run train $tiny --training.steps=4 --checkpoint.enable --checkpoint.interval=2
    expect_ok
    run train $tiny --training.steps=6 --checkpoint.enable --checkpoint.load_step=2 --checkpoint.load_only
    expect_ok
    expect_out "^step: +3/"
    refuse_out "^step: +2/"
    refuse_file run/checkpoint/step-6
    refuse_err "checkpoint step-"
}

case_the_first_step_is_saved_on_request() {
    make_corpus
    run train $tiny --checkpoint.enable
    refuse_file run/checkpoint/step-1
    rm -rf run
    run train $tiny --checkpoint.enable --checkpoint.enable_first_step_checkpoint
    expect_ok
    expect_file run/checkpoint/step-1
    expect_file run/checkpoint/step-3
}

case_parts_can_be_left_out_of_a_load() {
    make_corpus
    run train $tiny --training.steps=4 --checkpoint.enable
    expect_ok
    cp -r run saved
    run train $tiny --training.steps=6 --checkpoint.enable --checkpoint.exclude_from_loading=train_state,lr_scheduler
    expect_ok
    expect_out "^step: +1/"
    rm -rf run && cp -r saved run
    run train $tiny --training.steps=6 --checkpoint.enable --checkpoint.exclude_from_loading=dataloader
    expect_ok
    expect_out "^step: +5/"
    python3 - <<'EOF' || not_as "the data did not start over"
import json
meta = json.load(open("run/checkpoint/step-6/manifest.json"))
assert meta["sample_cursor"] == 2 * 4, meta["sample_cursor"]
EOF
    rm -rf run && cp -r saved run
    run train $tiny --training.steps=6 --checkpoint.enable --checkpoint.exclude_from_loading=optimizer
    expect_ok
    python3 -c '
import json
assert json.load(open("run/checkpoint/step-6/manifest.json"))["optimizer_step"] == 2' ||
        not_as "the moments were loaded"
}

case_initial_load_takes_all_or_the_weights() {
    make_corpus
    run train $tiny --training.steps=4 --checkpoint.enable
    expect_ok
    run train $tiny --training.steps=6 --job.dump_folder=weights --checkpoint.initial_load_path=run/checkpoint/step-4
    expect_ok
    expect_out "^step: +1/"
    run train $tiny --training.steps=6 --job.dump_folder=whole --checkpoint.initial_load_path=run \
        --checkpoint.initial_load_model_only=false
    expect_ok
    expect_out "^step: +5/"
    refuse_out "^step: +1/"
    run train $tiny --job.dump_folder=other --checkpoint.initial_load_path=run --checkpoint.initial_load_leave_out=[b]
    expect_error 2 "checkpoint.initial_load_leave_out is only for Hugging Face folders"
    # the run's own checkpoint has precedence
    run train $tiny --training.steps=5 --checkpoint.enable --checkpoint.initial_load_path=nosuch
    expect_ok
    expect_out "^step: +5/"
}

run_cases

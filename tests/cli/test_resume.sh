#!/bin/bash
# SPDX-License-Identifier: MIT
# Resuming a run with a changed configuration: what is refused, what is reported, and what stays as it was.
. "$(dirname "$0")/lib.sh"

save="--checkpoint.enable --checkpoint.interval=2"

make_four() {
    make_corpus
    run train $tiny $save --training.steps=4
    expect_ok
}

case_the_meaning_of_weights_is_checked() {
    make_four
    for change in "n_heads=2 --model.head_dim=32" "n_heads=2 --model.head_dim=16" rope_theta=10000 norm_eps=1e-6 \
        rope_scaling.factor=1; do
        run train $tiny $save --training.steps=6 --model.$change
        expect_error 3 "another meaning of its weights: model\.|run of another model|is not of this model"
        refuse_out "^step:"
    done
    run train $tiny $save --training.steps=6 --model.rope_theta=10000
    expect_error 3 "meaning of its weights: model.rope_theta 500000; this run has rope_theta 10000" \
        "help: set it as it was"
    # other heads whose weights have the same shapes
    run train $tiny $save --training.steps=6 --model.n_heads=8 --model.n_kv_heads=4 --model.head_dim=8
    expect_error 3 "meaning of its weights: model.n_heads 4, n_kv_heads 2, head_dim 16; this run has n_heads 8, n_kv_heads 4"
    refuse_out "^step:"
    # the same number, written like the default
    run train $tiny $save --training.steps=6 --model.rope_theta=5e5 --model.norm_eps=0.00001 --model.head_dim=16
    expect_ok
    expect_out "^step: +5"
}

case_another_model_is_refused_with_one_message() {
    make_four
    run train $tiny $save --model.dim=32 --model.n_layers=1
    expect_error 3 "'run' holds a run of another model: that run: dim 64, n_layers 2.*; this one: dim 32, n_layers 1" \
        "help: choose another --job.dump_folder, or replace that run with --overwrite"
    refuse_err "tensors missing"
}

case_another_order_of_samples_is_refused() {
    make_four
    run train $tiny $save --training.steps=6 --dataloader.seed=7
    expect_error 3 "dataloader.seed 42, this run has 7" "exclude_from_loading=dataloader"
    run train $tiny $save --training.steps=6 --no-dataloader.shuffle
    expect_error 3 "dataloader.shuffle true, this run has false" "exclude_from_loading=dataloader"
    run train $tiny $save --training.steps=6 --dataloader.seed=7 --checkpoint.exclude_from_loading=dataloader
    expect_ok
    expect_out "^step: +5"
}

case_changed_keys_are_listed() {
    make_four
    run train $tiny $save --training.steps=4 --job.description=other
    refuse_err "changed"
    run train $tiny $save --training.steps=6 --optimizer.lr=1e-3 --metrics.log_freq=2
    expect_ok
    expect_err "changed  since step-4: training.steps 4 -> 6, optimizer.lr 0.0008 -> 0.001, metrics.log_freq 1 -> 2$"
    expect_err "the losses are not those of the run as it was: training.steps, optimizer.lr$"
    run train $tiny $save --training.steps=7 --training.global_batch_size=-1 --optimizer.lr=1e-3
    expect_ok
    expect_err "sequences a step 4 -> 2"
    run train $tiny $save --training.steps=8 --lr_scheduler.total_steps=9
    run train $tiny $save --training.steps=9 --lr_scheduler.total_steps=9 --metrics.log_freq=2
    expect_err "changed  since step-8: training.steps 8 -> 9, metrics.log_freq 1 -> 2$"
    refuse_err "are not those of the run"
    run train $tiny $save --training.steps=10 --lr_scheduler.total_steps=10 --training.global_batch_size=8
    expect_ok
    expect_err "training.global_batch_size 4 -> 8, training.steps 9 -> 10"
    refuse_err "sequences a step 4 -> 8"
}

case_a_finished_run_stays_as_it_was() {
    make_four
    cp run/run.yaml before
    run train $tiny $save --training.steps=4 --debug.seed=7
    expect_ok
    expect_err "the run is complete: step 4 of 4"
    refuse_err "training completed"
    expect_same before run/run.yaml
    run train $tiny $save --training.steps=3
    expect_ok
    expect_err "the run is complete: it is at step 4, and training.steps is 3;"
    refuse_err "from here on the losses are not"
    expect_same before run/run.yaml
}

case_a_finished_run_that_saved_only_weights_is_complete() {
    make_corpus
    run train $tiny $save --checkpoint.last_save_model_only
    expect_ok
    find run/checkpoint | sort >before
    run train $tiny $save --checkpoint.last_save_model_only
    expect_ok
    expect_err "the run is complete: step 3 of 3"
    refuse_out "^step:"
    find run/checkpoint | sort >after
    expect_same before after
    run train $tiny $save --training.steps=4
    expect_error 3 "has no optimizer state"
}

case_the_revision_is_that_of_the_build() {
    make_corpus
    run version
    expect_ok
    commit=$(sed -n '1s/.*(git \([0-9a-f]*\(-dirty\)\?\))$/\1/p' out)
    mkdir .git
    echo 0123456789012345678901234567890123456789 >.git/HEAD
    run train $tiny
    expect_ok
    ! grep -q 0123456789012345678901234567890123456789 run/run.yaml || not_as "the revision of the working folder"
    [ -z "$commit" ] || grep -q "^# titan .*, git $commit$" run/run.yaml || not_as "run.yaml: $(head -1 run/run.yaml)"
}

run_cases

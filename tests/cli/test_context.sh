#!/bin/bash
# SPDX-License-Identifier: MIT Context parallelism by configuration: degrees up to the exact one, with both methods,
# give the bits of one rank.
. "$(dirname "$0")/lib.sh"
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # Open MPI does not free what it allocates

common="--model.flavor=debugmodel --training.seq_len=64 --training.global_batch_size=4 --training.local_batch_size=1
    --training.steps=2 --metrics.log_freq=1 --metrics.peak_flops=1e9 --dataloader.cache_dir=cache
    --training.dataset=text --training.dataset_path=corpus.txt --parallelism.threads_per_rank=1
    --model.n_heads=8 --model.n_kv_heads=4 --model.dim=64 --model.ffn_dim=128 --validation.seq_len=64"
off="--checkpoint.enable=false"
exact=--parallelism.exact_context_parallel_degree=4
cp=--parallelism.context_parallel_degree

# Each row: ranks, degree, and more options.
case_degrees_give_the_bits_of_one_rank() {
    make_corpus
    run train $common $off $exact --job.dump_folder=one
    expect_ok
    expect_err "and for context_parallel_degree 1, 2, 4$"
    while read -r ranks degree more; do
        run_ranks "$ranks" train $common $off $exact $cp="$degree" --job.dump_folder=many $more
        expect_ok
        expect_err "^  sharding dp_replicate . x dp_shard . x cp $degree"
        expect_err "and for context_parallel_degree 1, 2, 4$"
        run compare one many --assert-equal
        expect_ok
        rm -rf many
    done <<'EOF_ROWS'
2 2
4 4 --parallelism.fsdp_engine=planned
4 2
4 2 --parallelism.data_parallel_replicate_degree=2 --activation_checkpoint.mode=full
4 2 --parallelism.pipeline_parallel_degree=2 --training.local_batch_size=4
2 2 --parallelism.context_parallel_method=gather
4 4 --parallelism.context_parallel_method=gather --parallelism.fsdp_engine=planned
EOF_ROWS
}

# Keys and values are gathered by default if their heads cannot be exchanged; documents are masked.
case_heads_need_not_divide() {
    make_corpus
    awk '{ printf "{\"text\": \"%s\"}\n", $0 }' corpus.txt >documents.jsonl
    more="$off $exact --model.n_kv_heads=1 --training.document_mask --training.dataset=jsonl
        --training.dataset_path=documents.jsonl"
    run train $common $more --job.dump_folder=one
    expect_ok
    for degree in 2 4; do
        run_ranks $degree train $common $more $cp=$degree --job.dump_folder=many
        expect_ok
        expect_err "^  sharding dp_replicate . x dp_shard . x cp $degree [(]gather[)]"
        run compare one many --assert-equal
        expect_ok
        rm -rf many
    done
}

case_runs_continue_on_other_degrees() {
    make_corpus
    options="$common $exact --lr_scheduler.total_steps=4 --checkpoint.enable --checkpoint.interval=1
        --checkpoint.keep_latest_k=0 --validation.enable --validation.dataset=text
        --validation.dataset_path=corpus.txt --validation.freq=2 --validation.local_batch_size=1"
    run train $options --job.dump_folder=whole --training.steps=3
    expect_ok
    run_ranks 2 train $options $cp=2 --job.dump_folder=parts
    expect_ok
    run train $options --job.dump_folder=parts --training.steps=3
    expect_ok
    expect_err "changed .*context_parallel_degree 2 -> 1"
    run compare whole parts --assert-equal
    expect_ok
    run ckpt diff whole/checkpoint/step-3 parts/checkpoint/step-3
    expect_ok
    run generate parts --prompt And --max-new-tokens 4 --temperature 0
    expect_ok
}

case_a_degree_that_changes_bits_is_named() {
    make_corpus
    while read -r type pattern; do
        options="$common $exact --checkpoint.enable --lr_scheduler.total_steps=4
            --training.mixed_precision_reduce=$type --job.dump_folder=$type"
        run_ranks 2 train $options $cp=2 --training.steps=1
        expect_ok
        run train $options --training.steps=2
        expect_ok
        expect_err "changed .*context_parallel_degree 2 -> 1"
        $pattern "from here on, the losses differ from those of the unchanged run: parallelism.context_parallel_degree$"
    done <<'EOF_ROWS'
bfloat16 expect_err
float32 refuse_err
EOF_ROWS
    run train $options --training.steps=3 --parallelism.context_parallel_load_balancer=null
    expect_ok
    expect_err "differ from those of the unchanged run: parallelism.context_parallel_load_balancer$"
}

# Ranks that share a sequence add its parts before a run's microbatches are complete. So every_run gives other bits
# there, which the banner says, and auto does not choose it.
case_sums_over_runs_are_those_of_whole_sequences() {
    make_corpus
    options="$common $exact --checkpoint.enable --checkpoint.interval=1 --lr_scheduler.total_steps=4"
    run train $options --training.gradient_sync=every_run --training.steps=3 --job.dump_folder=whole
    expect_ok
    expect_err "and for context_parallel_degree 1, 2, 4 with gradient_sync=every_microbatch$"
    run train $options --training.gradient_sync=every_run --job.dump_folder=parts
    expect_ok
    cp -r parts asked
    run_ranks 2 train $options --training.gradient_sync=auto $cp=2 --training.steps=3 --job.dump_folder=parts
    expect_ok
    expect_err "^  reduces  gradients after each microbatch: every_run, as in the checkpoint, would change the bits"
    refuse_err "differ from those of the unchanged run"
    run compare whole parts --assert-equal
    expect_ok
    run_ranks 2 train $options --training.gradient_sync=every_run $cp=2 --training.steps=3 --job.dump_folder=asked
    expect_ok
    expect_err "^  curve    deterministic, but equal to other layouts only up to rounding"
    expect_err "differ from those of the unchanged run: parallelism.context_parallel_degree$"
    run compare whole asked --assert-equal
    expect_code 1
    run_ranks 2 train $options --training.gradient_sync=every_microbatch $cp=2 --training.steps=4 \
        --job.dump_folder=asked
    expect_ok
    expect_err "differ from those of the unchanged run: training.gradient_sync$"
}

case_what_does_not_divide_is_refused() {
    make_corpus
    run train $common $off $cp=3
    expect_error 2 "3 parts of a sequence are not possible with training.seq_len 64 and 2 pieces of each part" \
        "these work: 1, 2, 4, 8, 16, 32; or set context_parallel_load_balancer=null"
    run train $common $off $cp=8 --parallelism.context_parallel_method=ulysses
    expect_error 2 "8 parts of a sequence are not possible with model.n_kv_heads 4" \
        "these work: 1, 2, 4; or set context_parallel_method=gather"
    run train $common $off $cp=2 --parallelism.context_parallel_load_balancer=ptrr
    expect_error 2 "'ptrr' is a torchtitan value that titan does not support: .*FlexAttention" "^help: use headtail"
    run train $common $off $cp=2 --parallelism.context_parallel_load_balancer=none
    expect_error 2 "'none' is not one of headtail, null$"
}

case_keys_of_torchtitan_are_accepted() {
    make_corpus
    run config check $cp=2 --parallelism.context_parallel_load_balancer=headtail \
        --parallelism.context_parallel_rotate_method=alltoall --parallelism.context_parallel_method=ulysses
    expect_ok
    expect_err "context_parallel_rotate_method"
    refuse_err "load_balancer"
}

run_cases

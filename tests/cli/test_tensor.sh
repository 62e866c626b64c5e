#!/bin/bash
# SPDX-License-Identifier: MIT
# Tensor parallelism by configuration: losses, weights and checkpoints have the bits of one rank with the same exact
# degree.
. "$(dirname "$0")/lib.sh"
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # Open MPI does not free what it allocates

common="--model.flavor=debugmodel --model.n_layers=2 --model.dim=64 --model.n_heads=8 --model.ffn_dim=128
    --training.seq_len=32 --training.global_batch_size=8 --training.local_batch_size=2 --training.steps=4
    --validation.seq_len=32 --metrics.log_freq=1 --metrics.peak_flops=1e9 --dataloader.cache_dir=cache
    --training.dataset=text --training.dataset_path=corpus.txt --parallelism.threads_per_rank=1
    --checkpoint.enable --checkpoint.interval=2"
p=--parallelism
tp=$p.tensor_parallel_degree
exact=$p.exact_tensor_parallel_degree

# one MODEL [options]: the run on one rank that the others are compared with. The corpus is made once.
one() {
    [ -e corpus.txt ] || make_corpus
    run train $common --model.name="$1" $exact=4 --job.dump_folder="$1" "${@:2}"
    expect_ok
    expect_err '^           and for tensor_parallel_degree 1, 2, 4$'
}

# same_as MODEL: checks that the run in the folder `many` has the losses and the last step of the run on one rank.
same_as() {
    run compare "$1" many --assert-equal
    expect_ok
    run ckpt verify --deep many/checkpoint/step-4
    expect_ok
    run ckpt diff "$1/checkpoint/step-4" many/checkpoint/step-4
    expect_ok
    expect_out '^EQUAL'
}

# Each row: model, ranks, degree, and more options.
same_bits() {
    while read -r model ranks degree more; do
        run_ranks "$ranks" train $common --model.name="$model" --job.dump_folder=many $tp="$degree" $more
        expect_ok
        expect_err " x tp $degree, wrap "
        same_as "$model"
        rm -rf many
    done
}

case_any_degree_gives_the_bits_of_one_rank() {
    one llama3
    same_bits <<EOF_ROWS
llama3 2 2 $exact=4
llama3 4 4
llama3 4 2 $exact=4 $p.data_parallel_shard_degree=2 --checkpoint.save_policy=filtered --checkpoint.filter=rank0
llama3 4 2 $exact=4 $p.data_parallel_replicate_degree=2 --checkpoint.async_mode=async
EOF_ROWS
}

# Of two ranks that share 2062 rows, the second has fewer, and both divide theirs over the shard ranks.
case_blocks_of_the_vocabulary_may_differ() {
    one llama3 --model.vocab_size=2062
    same_bits <<EOF_ROWS
llama3 4 2 $exact=4 $p.data_parallel_shard_degree=2 --model.vocab_size=2062
EOF_ROWS
}

case_layers_of_a_pipeline_are_shared() {
    one llama3
    same_bits <<EOF_ROWS
llama3 4 2 $exact=4 $p.pipeline_parallel_degree=2 $p.pipeline_parallel_microbatch_size=2 --training.local_batch_size=4
EOF_ROWS
}

case_the_planned_engine_and_bfloat16() {
    one qwen3 --training.mixed_precision_param=bfloat16
    same_bits <<EOF_ROWS
qwen3 4 2 $exact=4 $p.fsdp_engine=planned --training.mixed_precision_param=bfloat16
EOF_ROWS
}

# By default each degree has its own bits, which are equal up to rounding.
case_a_degree_alone_is_as_exact_as_itself() {
    make_corpus
    run_ranks 2 train $common $tp=2 --job.dump_folder=many
    expect_ok
    run train $common $exact=2 --job.dump_folder=one
    expect_ok
    same_as one
    run train $common --job.dump_folder=plain
    expect_ok
    python3 - <<'PY' || not_as "the losses are the same, or far apart"
import json
runs = [[r["loss"] for r in map(json.loads, open(f"{run}/metrics.jsonl")) if r["type"] == "step"]
        for run in ("plain", "many")]
assert len(runs[0]) == 4 and runs[0] != runs[1], runs
assert all(abs(a - b) <= 1e-5 * a for a, b in zip(*runs)), runs
PY
}

case_the_vocabulary_may_be_odd_and_tied() {
    one gpt2
    same_bits <<EOF_ROWS
gpt2 4 2 $exact=4 $p.data_parallel_shard_degree=2
EOF_ROWS
}

case_a_run_continues_with_any_degree() {
    one llama3
    run_ranks 2 train $common --job.dump_folder=many $tp=2 $exact=4
    expect_ok
    rm -rf many/checkpoint/step-4
    run_ranks 4 train $common --job.dump_folder=many $tp=4
    expect_ok
    expect_err 'changed  since step-2: .*tensor_parallel_degree 2 -> 4'
    refuse_err 'the losses differ from those of the unchanged run'
    run ckpt diff llama3/checkpoint/step-4 many/checkpoint/step-4
    expect_ok
    rm -rf many/checkpoint/step-4
    run train $common --job.dump_folder=many $exact=2
    expect_ok
    expect_err 'the losses differ from those of the unchanged run: .*exact_tensor_parallel_degree'
}

case_weights_of_hugging_face_are_divided() {
    one llama3
    run ckpt consolidate llama3/checkpoint/step-4 hf --format hf
    expect_ok
    start="--model.name=llama3 --checkpoint.initial_load_path=hf"
    run train $common $start $exact=4 --job.dump_folder=from_hf
    expect_ok
    run_ranks 4 train $common $start $tp=4 --job.dump_folder=many
    expect_ok
    same_as from_hf
}

# Adapters of rank 3, which no degree divides; the checkpoint contains the adapters' parts of all ranks.
case_adapters_are_divided_as_their_weights() {
    one llama3 --lora.rank=3
    same_bits <<EOF_ROWS
llama3 4 2 $exact=4 --lora.rank=3
llama3 4 4 --lora.rank=3 --training.gradient_sync=every_run
EOF_ROWS
}

# Their updates are gathered over all ranks that hold parts of a matrix.
case_matrices_that_muon_trains_are_divided() {
    one llama3 --optimizer.name=Muon
    same_bits <<EOF_ROWS
llama3 4 2 $exact=4 --optimizer.name=Muon
llama3 4 2 $exact=4 --optimizer.name=Muon $p.data_parallel_replicate_degree=2 $p.fsdp_engine=planned
EOF_ROWS
}

# Each rank makes the latents of its own tokens; what follows is divided by heads. Ranks that share layers share the
# experts too. Generation divides nothing, and caches latents.
case_attention_of_latents_is_divided() {
    latents="--model.name=deepseek_v3 --model.head_dim=72"
    one deepseek_v3 $latents
    run generate deepseek_v3 --greedy --prompt "And the" --max-new-tokens 12
    expect_ok
    cp out text
    while read -r ranks more; do
        run_ranks "$ranks" train $common $latents $exact=4 --job.dump_folder=many $more
        expect_ok
        same_as deepseek_v3
        run generate many --greedy --prompt "And the" --max-new-tokens 12
        expect_ok
        expect_same text out
        rm -rf many
    done <<EOF_ROWS
2 $tp=2 $p.expert_parallel_degree=2
4 $tp=4 $p.expert_parallel_degree=4 $p.fsdp_engine=planned
EOF_ROWS
    run train $common $latents --model.dim=96 --model.n_heads=6 $tp=4 $p.expert_parallel_degree=4
    expect_error 2 "4 parts of a layer are not possible with model.n_heads 6" "these work: 1, 2"
}

case_what_cannot_be_divided_is_refused() {
    run train $common --model.n_kv_heads=2 $tp=4
    expect_error 2 "4 parts of a layer are not possible with model.n_kv_heads 2" "these work: 1, 2"
    run train --model.name=qwen3 --model.flavor=debugmodel_moe $tp=2
    expect_error 2 "expert_parallel_degree [(]1 by default[)]: 1, wanted a multiple of tensor_parallel_degree 2"
}

run_cases

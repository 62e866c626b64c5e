#!/bin/bash
# SPDX-License-Identifier: MIT Expert parallelism by configuration: losses, weights and checkpoints have the bits of
# ranks that hold all experts.
. "$(dirname "$0")/lib.sh"
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # Open MPI does not free what it allocates

common="--model.name=qwen3 --model.flavor=debugmodel_moe --model.n_layers=2 --model.dim=32 --model.n_heads=4
    --model.n_kv_heads=2 --training.seq_len=32 --training.global_batch_size=8 --training.local_batch_size=2
    --training.steps=4 --metrics.log_freq=1 --metrics.peak_flops=1e9 --dataloader.cache_dir=cache
    --training.dataset=text --training.dataset_path=corpus.txt --parallelism.threads_per_rank=1
    --checkpoint.enable --checkpoint.interval=2"
p=--parallelism
ep=$p.expert_parallel_degree

# one [options]: the run on one rank that the others are compared with. The corpus is made once.
one() {
    [ -e corpus.txt ] || make_corpus
    run train $common --job.dump_folder=one "$@"
    expect_ok
}

# Checks that the run in the folder `many` has the losses and the last step of the run on one rank.
same_as_one() {
    run compare one many --assert-equal
    expect_ok
    run ckpt verify --deep many/checkpoint/step-4
    expect_ok
    run ckpt diff one/checkpoint/step-4 many/checkpoint/step-4
    expect_ok
    expect_out '^EQUAL'
}

case_any_degree_gives_the_bits_of_one_rank() {
    one
    while read -r ranks degree more; do
        run_ranks "$ranks" train $common --job.dump_folder=many $ep="$degree" $more
        expect_ok
        expect_err " \(ep $degree\), wrap "
        same_as_one
        rm -rf many
    done <<EOF_ROWS
2 2 $p.fsdp_engine=planned
4 2 --checkpoint.save_policy=filtered --checkpoint.filter=rank0
4 4 $p.moe_window=0.1 --checkpoint.async_mode=async
4 2 $p.data_parallel_replicate_degree=2
EOF_ROWS
}

case_a_run_continues_with_any_degree() {
    one
    run_ranks 2 train $common --job.dump_folder=many $ep=2
    expect_ok
    run ckpt inspect many
    expect_out '^  mesh +dp_shard 2, ep 2, '
    rm -rf many/checkpoint/step-4
    run_ranks 4 train $common --job.dump_folder=many $ep=4
    expect_ok
    same_as_one
    rm -rf many/checkpoint/step-4
    run train $common --job.dump_folder=many
    expect_ok
    same_as_one
}

# The loss of the global batch needs the previous step's loads, which the checkpoint contains.
case_loads_are_continued_with() {
    loss=--training.global_batch_balance_loss=0.5
    one $loss
    run_ranks 2 train $common $loss --job.dump_folder=many $ep=2
    expect_ok
    same_as_one
    rm -rf many/checkpoint/step-4
    run train $common $loss --job.dump_folder=many
    expect_ok
    same_as_one
    python3 - <<'EOF_PYTHON' || not_as "metrics.jsonl"
import json
records = [json.loads(line) for line in open("one/metrics.jsonl")]
losses = [r["global_batch_balance_loss"] for r in records if r["type"] == "step"]
assert abs(losses[0] - 1.0) < 1e-5 and all(x > 1.0 + 1e-4 for x in losses[1:]), losses
EOF_PYTHON
}

# Ranks that share layers and sequences as well as experts.
case_the_bits_are_those_of_one_rank_with_the_same_grains() {
    exact="$p.exact_tensor_parallel_degree=2 $p.exact_context_parallel_degree=2"
    losses="--training.sequence_balance_loss=0.01 --training.microbatch_balance_loss=0.02"
    one $exact $losses
    while read -r ranks more; do
        run_ranks "$ranks" train $common --job.dump_folder=many $exact $losses $more
        expect_ok
        same_as_one
        rm -rf many
    done <<EOF_ROWS
2 $p.tensor_parallel_degree=2 $ep=2 $p.fsdp_engine=planned
2 $p.context_parallel_degree=2
4 $p.context_parallel_degree=2 $p.tensor_parallel_degree=2 $ep=4 $p.moe_window=0.1
EOF_ROWS
    run_ranks 4 train $common --job.dump_folder=many $exact $losses $p.tensor_parallel_degree=2 $ep=4
    expect_ok
    rm -rf many/checkpoint/step-4
    run_ranks 2 train $common --job.dump_folder=many $exact $losses $p.context_parallel_degree=2 $ep=2
    expect_ok
    same_as_one
}

# with_config 'SED EXPRESSION': starts a run on a folder of 8 experts with a changed config.json.
with_config() {
    folder=$TITAN_SOURCE/tests/golden/data/qwen3_moe
    rm -rf hf
    cp -r "$folder" hf
    chmod -R u+w hf
    sed -i "$1" hf/config.json
    run train --model.name=qwen3 --model.flavor=hf --model.hf_assets_path=hf --training.steps=2 \
        --training.seq_len=16 --training.local_batch_size=1 --training.global_batch_size=2 --training.dataset=tokens \
        --training.dataset_path="$folder/tokens.bin" --metrics.peak_flops=1e9 --checkpoint.enable \
        --parallelism.threads_per_rank=1
}

case_folders_with_impossible_experts_are_refused() {
    with_config 's/"num_experts_per_tok": 3/"num_experts_per_tok": 9/'
    expect_error 2 "hf/config.json: 9 of 8 experts for each token; the number must lie in 1..8"
    with_config 's/"num_experts_per_tok": 3/"num_experts_per_tok": 0/'
    expect_error 3 "hf/config.json: num_experts_per_tok must be a positive integer"
    with_config 's/"num_local_experts": 8/"num_local_experts": 0/'
    expect_error 3 "hf/config.json: num_local_experts must be a positive integer"
}

# One message, which contains the numbers.
case_a_run_with_another_number_of_experts_is_refused() {
    with_config 's/"num_local_experts": 8/"num_local_experts": 8/'
    expect_ok
    for experts in 6 12; do
        with_config "s/\"num_local_experts\": 8/\"num_local_experts\": $experts/"
        expect_error 3 "does not fit this model" "its layers have 8 experts, but the model's have $experts; set model.flavor"
    done
}

case_degrees_that_do_not_work_are_named() {
    run train --model.flavor=debugmodel $ep=2
    expect_error 2 "expert_parallel_degree: 2, but llama3 debugmodel has no experts"
    run config check $common --no-files $p.expert_parallel_comm_backend=deepep $p.expert_tensor_parallel_degree=1
    expect_ok
    expect_err "expert_parallel_comm_backend has no effect: rows of experts travel as titan's own messages"
    run config check --no-files $p.expert_tensor_parallel_degree=2
    expect_error 2 "ranks share whole experts and never cut one" "^help: set it to 1"
    run plan $common --ranks 4 $ep=2 --json
    expect_json 'assert found["mesh"]["ep"] == 2 and found["mesh"]["pp"] == 1, found["mesh"]'
    run train $common $ep=3
    expect_error 2 "3 ranks cannot share 64 experts"
    expect_err "^help: these work: 1, 2, 4, 8, 16, 32, 64$"
    make_corpus
    run train $common $ep=2
    expect_error 2 "2 does not divide the 1 rank of dp_shard x cp x tp"
    run_ranks 4 train $common $ep=2 $p.tensor_parallel_degree=4
    expect_error 2 "2, wanted a multiple of tensor_parallel_degree 4"
    expect_err "^help: these work: 4, 8, 16, 32, 64$"
    run train $common --model.n_heads=6 --model.n_kv_heads=3 $p.tensor_parallel_degree=3
    expect_error 2 "tensor_parallel_degree: 3 ranks cannot share 64 experts"
    gpt_oss="--model.name=gpt_oss --model.flavor=debugmodel"
    for key in tensor_parallel_degree context_parallel_degree expert_parallel_degree exact_tensor_parallel_degree; do
        run_ranks 2 train $gpt_oss $p.$key=2
        expect_error 2 "$key: 2, but ranks cannot divide the layers, sequences or experts of gpt_oss"
    done
}

run_cases

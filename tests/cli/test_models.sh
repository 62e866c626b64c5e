#!/bin/bash
# SPDX-License-Identifier: MIT
# Every model of the registry from outside: weights from a Hugging Face folder, policies, ranks, save and resume, plan
# and estimate. The folders are those of the golden runs; tests/golden checks the numbers.
. "$(dirname "$0")/lib.sh"

data=$TITAN_SOURCE/tests/golden/data

# The first golden run of each model_type, except llama3's, which all other tests train.
models=$(cd "$data" && for run in *; do
    [[ $run = llama3* ]] || echo "$(sed -n 's/.*"model_type": "\(.*\)".*/\1/p' "$run/config.json") $run"
done | sort -s -u -k1,1 | cut -d' ' -f2)

# models_of K: a quarter of them, so that each is in one of four cases.
models_of() {
    printf '%s\n' $models | sweep "$1" 4
}

# The losses and norms in a metrics.jsonl, in full precision. The last record of a step counts.
curve() {
    python3 - "$1" <<'EOF'
import json, sys
steps = {}
for line in open(sys.argv[1]):
    record = json.loads(line)
    if record["type"] == "step":
        steps[record["step"]] = (record["loss"], record["grad_norm"])
for step in sorted(steps):
    print(step, *map(float.hex, steps[step]))
EOF
}

# options CASE: options that train the model of a golden case on its tokens, from its weights.
options() {
    echo "--model.flavor=hf --model.hf_assets_path=$data/$1 --checkpoint.initial_load_in_hf
        --training.dataset=tokens --training.dataset_path=$data/$1/tokens.bin --dataloader.shuffle=false
        --training.seq_len=24 --training.local_batch_size=3 --training.global_batch_size=24 --training.steps=4
        --metrics.log_freq=1 --metrics.peak_flops=1e9 --lr_scheduler.warmup_steps=2"
}

# A folder of golden runs begins with the name of its model; tests/golden runs all that it finds.
case_every_model_of_the_registry_has_golden_runs_and_a_line_in_the_manual() {
    run models --json
    expect_ok
    for model in $(python3 -c 'import json; print(*{m["name"]: 0 for m in json.load(open("out"))["models"]})'); do
        ls "$data/$model"*/generate.json >/dev/null 2>&1 ||
            not_as "no folder tests/golden/data/$model* has a generate.json"
        grep -q "^- \*$model\*: " "$TITAN_SOURCE/man/titan-models.1.scd" ||
            not_as "titan-models(1), FAMILIES, does not name $model"
    done
}

# Every policy gives the same bits, on one rank and on two.
case_policies_do_not_change_the_curve() {
    for model in $(models_of 1); do
        run train $(options $model) --job.dump_folder=$model
        expect_ok
        curve $model/metrics.jsonl >want.txt
        [ "$(wc -l <want.txt)" = 4 ] || not_as "expected four steps"
        for policy in "--activation_checkpoint.mode=full" \
            "--activation_checkpoint.mode=selective --activation_checkpoint.selective_ac_option=op" \
            "--parallelism.fsdp_wrap_policy=param --parallelism.fsdp_reshard_after_forward=always" \
            "--parallelism.fsdp_engine=planned --parallelism.threads_per_rank=2" \
            "--training.gradient_sync=every_microbatch --training.init=layerwise"; do
            echo "$policy"
        done | sweep >policies
        while read -r policy; do
            run_ranks 2 train $(options $model) $policy --job.dump_folder=run
            expect_ok
            curve run/metrics.jsonl >got.txt
            expect_same want.txt got.txt
            rm -rf run
        done <policies
    done
}

case_bfloat16_parameters_train() {
    for model in $(models_of 2); do
        for ranks in 1 2; do
            run_ranks $ranks train $(options $model) --training.mixed_precision_param=bfloat16 \
                --job.dump_folder=run$ranks
            expect_ok
            curve run$ranks/metrics.jsonl >curve$ranks.txt
        done
        expect_same curve1.txt curve2.txt
        rm -rf run1 run2
    done
}

# A resumed run draws the same random bits as the uninterrupted run. It can change its type at any step.
case_weights_in_bfloat16_resume_with_the_same_bits() {
    bf16="--training.dtype=bfloat16 --training.mixed_precision_param=bfloat16"
    for model in $(models_of 3); do
        run train $(options $model) $bf16 --job.dump_folder=whole
        expect_ok
        expect_err "^  numbers  computation in bfloat16, .* weights and moments in bfloat16"
        saving="--checkpoint.enable --checkpoint.interval=2 --job.dump_folder=run"
        run_ranks 2 train $(options $model) $bf16 $saving
        expect_ok
        grep -aq '"dtype":"BF16"' run/checkpoint/step-4/model/*.safetensors || not_as "the weights are BF16"
        cat run/checkpoint/step-4/*/*.safetensors | tr -c '[:print:]' '\n' | grep -ao '"[^"]*":{"dtype":"F32"' |
            grep -v 'expert_bias"' >f32 || true # the biases of experts keep their type
        [ ! -s f32 ] || not_as "weights and moments but $(cat f32)"
        rm -rf run/checkpoint/step-4
        run train $(options $model) $bf16 $saving
        expect_ok
        expect_out "^step: +3/"
        refuse_out "^step: +2/"
        curve whole/metrics.jsonl >whole.txt
        curve run/metrics.jsonl >resumed.txt
        expect_same whole.txt resumed.txt
        run train $(options $model) --training.steps=5 $saving
        expect_ok
        expect_out "^step: +5/"
        run train $(options $model) $bf16 --training.steps=6 $saving --debug.seed=43
        expect_ok
        expect_out "^step: +6/"
        expect_err "the losses differ from those of the unchanged run: .*debug.seed"
        rm -rf whole run
    done
}

case_resume_continues_with_the_same_bits() {
    for model in $(models_of 4); do
        run train $(options $model) --job.dump_folder=whole
        expect_ok
        saving="--checkpoint.enable --checkpoint.interval=2 --job.dump_folder=run"
        run_ranks 2 train $(options $model) $saving
        expect_ok
        rm -rf run/checkpoint/step-4
        run train $(options $model) $saving
        expect_ok
        expect_out "^step: +3/"
        refuse_out "^step: +2/"
        curve whole/metrics.jsonl >whole.txt
        curve run/metrics.jsonl >resumed.txt
        expect_same whole.txt resumed.txt
        run ckpt verify run/checkpoint/step-4
        expect_ok
        run ckpt consolidate run/checkpoint/step-4 out-$model
        expect_ok
        expect_file out-$model/model.safetensors
        rm -rf whole run
    done
}

# run.yaml lists all sizes that the flavor sets, and titan reads it back.
case_run_yaml_is_a_config() {
    for model in qwen3 gpt2; do
        run train --model.name=$model --model.dim=64 --model.n_layers=1 --model.n_heads=4 --model.n_kv_heads=4 \
            --model.head_dim=16 \
            --model.ffn_dim=96 --training.seq_len=32 --training.local_batch_size=2 --training.steps=1 \
            --job.dump_folder=$model \
            --dataloader.cache_dir=cache --metrics.peak_flops=1e9
        expect_ok
        run config check $model/run.yaml
        expect_ok
        run train --config $model/run.yaml --job.dump_folder=again-$model
        expect_ok
        curve $model/metrics.jsonl >want.txt
        curve again-$model/metrics.jsonl >got.txt
        expect_same want.txt got.txt
    done
}

case_plan_and_estimate_know_every_model() {
    for config in qwen3_0.6b gpt2_124m; do
        run plan --config "$TITAN_SOURCE/configs/$config.yaml" --ranks 8
        expect_ok
        run estimate --config "$TITAN_SOURCE/configs/$config.yaml" --ranks 1,8 --json
        expect_ok
    done
}

case_a_sequence_longer_than_the_learned_positions_is_refused() {
    for command in train "plan --ranks 2" "estimate --ranks 2"; do
        run $command --model.name=gpt2 --model.flavor=124M --training.seq_len=1025
        expect_error 2 "seq_len 1025 is longer than the 1024 positions that gpt2 124M has learned" "training.seq_len"
        refuse_file outputs/run.yaml
    done
    run train $(options gpt2_eight) --validation.enable --validation.dataset=kjv_validation --validation.seq_len=64 \
        --job.dump_folder=run
    expect_error 2 "seq_len 64 is longer than the 41 positions" "validation.seq_len"
}

case_rope_keys_have_no_meaning_for_learned_positions() {
    run train --model.name=gpt2 --model.rope_theta=10000 --training.seq_len=32
    expect_error 2 "model.rope_theta .* no meaning for gpt2"
}

# Flavors state the length of the models whose names they have. A model that began with random weights has seen no more
# than its training sequences.
case_a_model_of_ones_own_is_as_long_as_its_sequences() {
    make_corpus
    while read -r wanted flags; do
        run train $tiny $flags --training.steps=1 --checkpoint.enable --checkpoint.last_save_in_hf --overwrite
        expect_ok
        grep -q "\"max_position_embeddings\": $wanted,\?$" run/checkpoint/step-1/hf/config.json ||
            not_as "not $wanted: $(grep max_position run/checkpoint/step-1/hf/config.json)"
        [ -e base ] || cp -r run/checkpoint/step-1 base
    done <<END
32
64 --training.seq_len=64 --model.name=qwen3
512 --model.max_position_embeddings=512
131072 --checkpoint.initial_load_path=base --model.max_position_embeddings=null
END
    run generate run/checkpoint/step-1/hf --prompt And --max-new-tokens 40
    expect_ok
}

run_cases

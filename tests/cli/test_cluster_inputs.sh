#!/bin/bash
# SPDX-License-Identifier: MIT estimate --machine: jobs written for other trainers, models by name and by file, and logs
# of runs.
. "$(dirname "$0")/lib.sh"

# check_json FILE 'PYTHON EXPRESSION'...: each is true for the JSON of FILE, `o`; j is its first job.
check_json() {
    python3 - "$@" <<'EOF_PYTHON' >problem.txt 2>&1 || not_as "$(cat problem.txt)"
import json, sys
o = json.load(open(sys.argv[1]))
j = o["jobs"][0]
def other(name):
    return json.load(open(name + ".json"))["jobs"][0]
for expression in sys.argv[2:]:
    assert eval(expression), expression
EOF_PYTHON
}

model_8b="--config $TITAN_SOURCE/configs/llama3_8b.yaml"
model_70b="--config $TITAN_SOURCE/configs/llama3_70b.yaml"

# torchtitan#1789, #1543: models with experts, by name and from config.json.
case_models_have_names_and_files() {
    run estimate --model deepseek-v3-671b --machine h100-sxm --ranks 512 --parallelism.expert_parallel_degree=64 \
        --training.seq_len=4096 --training.local_batch_size=1 --activation_checkpoint.mode=full --json
    expect_ok
    check_json out 'j["model"] == "deepseek-v3-671b" and j["layout"]["ep"] == 64 and j["parts_s"]["expert"] > 0' \
        'abs(j["memory_bytes"]["state"] / (16 * 671e9 / 512) - 1) < 0.04' \
        'abs(j["run"]["checkpoint_bytes"] / (12 * 671e9) - 1) < 0.02' \
        '[round(x / j["step_s"], 1) for x in j["step_80_percent_s"]] == [0.7, 1.4]' # such models are hard to predict
    cp out name.json
    cat >config.json <<'END'
{"model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
 "vocab_size": 129280, "intermediate_size": 18432, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
 "qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
 "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4, "tie_word_embeddings": false}
END
    run estimate --model ./config.json --machine h100-sxm --ranks 512 --parallelism.expert_parallel_degree=64 \
        --training.seq_len=4096 --training.local_batch_size=1 --activation_checkpoint.mode=full --json
    expect_ok
    check_json out 'abs(j["step_s"] / json.load(open("name.json"))["jobs"][0]["step_s"] - 1) < 0.02'
    run estimate --model llama4-scout --machine h100-sxm --ranks 32,64,128 --search --json --training.seq_len=8192 \
        --training.global_batch_size=128
    expect_ok
    check_json out '[x["devices"] for x in o["jobs"] if x["layouts"]][0] in (32, 64)' \
        'any(l["layout"]["ep"] > 1 for l in o["jobs"][-1]["layouts"])'
    run estimate --model deepseek-v3-16b --machine h200 --ranks 64 --search --emit titan --training.seq_len=4096 \
        --training.global_batch_size=512
    expect_ok
    expect_out "^  name: deepseek_v3$"
    expect_out "^  flavor: 16B$"
    cp out best.yaml
    run config check --config best.yaml --no-files
    expect_ok
    run estimate --model llama4-scout --machine h200 --ranks 64 --search --emit titan --training.seq_len=4096 \
        --training.global_batch_size=512
    expect_code 2
    expect_err "titan has no flavor 'llama4-scout'"
    run estimate --model llama3-70b --machine h100-sxm --ranks 64 # the folder does not say how long its sequences are
    expect_out "^layout +shards 64, 1 microbatch of 1, recompute .*; 524288 tokens a step in sequences of 8192$"
    run estimate --model llama9 --machine h100-sxm --ranks 8
    expect_code 2
    expect_err "the model 'llama9' is not known"
    run estimate --model llama3.1-8b --machine h100-sxm --ranks 8 --model.n_layers=2
    expect_code 2
    expect_err "cannot change the sizes of the model"
    echo '{"model_type": "llama", "hidden_size": 0}' >config.json
    run estimate --model ./config.json --machine h100-sxm --ranks 8
    expect_code 3
    expect_err "config.json: hidden_size is not a whole number above 0"
}

case_configurations_of_torchtitan_are_jobs() {
    cat >run.toml <<'END'
[model]
name = "llama3"
flavor = "8B"
converters = ["float8"]
[training]
local_batch_size = 2
seq_len = 8192
[parallelism]
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"
[compile]
enable = true
END
    run estimate --machine h100-sxm --ranks 64 --torchtitan run.toml --json
    expect_ok
    check_json out 'j["stack"] == "torchtitan-compile-2025" and j["model"] == "llama3.1-8b"' \
        'j["layout"]["tp"] == 2 and j["layout"]["dp_shard"] == 32 and j["layout"]["micro_batch"] == 2' \
        'j["layout"]["float8"] and j["layout"]["recompute"] == "op"'
    echo '{"model_spec": {"name": "llama3", "flavor": "70B"}, "training": {"max_context_length": 8192,
           "num_tokens_per_microbatch_per_dp_rank": 16384, "num_tokens_per_train_step": -1}, "compile": null,
           "parallelism": {"tensor_parallel_degree": 8}, "activation_checkpoint": {"debug": false}}' >saved.json
    run estimate --machine h100-sxm --ranks 64 --torchtitan saved.json --json -- \
        --parallelism.tensor_parallel_degree 4
    expect_ok
    check_json out 'j["stack"] == "torchtitan-eager-2025" and j["model"] == "llama3.1-70b"' \
        'j["layout"]["tp"] == 4 and j["layout"]["micro_batch"] == 2 and j["layout"]["recompute"] == "full"'
    run estimate --machine h100-sxm --ranks 128 --json -- --module llama3 --config llama3_405b
    expect_ok
    check_json out 'j["layout"]["tp"] == 8 and j["layout"]["float8"] and j["stack"] == "torchtitan-compile-2025"'
    run estimate --machine h100-sxm --ranks 128 -- --module llama3 --config llama3_9b
    expect_code 2
    expect_err "does not know torchtitan's recipe 'llama3_9b'"
    run estimate --machine h100-sxm --ranks 64 --torchtitan run.toml -- --parallelism.pipeline_parallel_degree 4 \
        --parallelism.pipeline_parallel_schedule Interleaved1F1B
    expect_code 2
    expect_err "fewer microbatches than stages of the pipeline \(shards 8 x TP 2 x PP 4, 2 microbatches of 1, "
    run estimate --machine h100-sxm --ranks 64 --torchtitan run.toml --json -- --parallelism.disable_loss_parallel
    expect_ok
    cp out whole.json
    run estimate --machine h100-sxm --ranks 64 --torchtitan run.toml --json
    check_json out '(lambda w: w["step_s"] > 1.005 * j["step_s"]
        and w["memory_bytes"]["logits"] == 2 * j["memory_bytes"]["logits"])(json.load(open("whole.json"))["jobs"][0])'
    run estimate --machine h100-sxm --ranks 64 --torchtitan run.toml --json -- \
        --parallelism.pipeline_parallel_degree 2 --parallelism.pipeline_parallel_last_stage_less_layers 2
    expect_ok
    cp out less.json
    run estimate --machine h100-sxm --ranks 64 --torchtitan run.toml --json -- --parallelism.pipeline_parallel_degree 2
    check_json out 'json.load(open("less.json"))["jobs"][0]["step_s"] < 0.99 * j["step_s"]'
    run estimate --machine h100-sxm --ranks 64 --torchtitan run.toml -- --parallelism.tensor_paralel_degree 4
    expect_code 2
    expect_err "which might change the cost: 'parallelism.tensor_paralel_degree'"
    run estimate --machine h100-sxm --ranks 256 --torchtitan run.toml --emit torchtitan
    expect_ok
    expect_out '^flavor = "8B"$'
    echo 'a = = b' >bad.toml
    run estimate --machine h100-sxm --ranks 64 --torchtitan bad.toml
    expect_code 3
    expect_err "bad.toml:1:"
}

# Keys and flags that change what is kept or computed change the prediction.
case_settings_of_the_state_are_priced() {
    run estimate --machine h100-sxm --ranks 8 --json -- --config llama3_8b
    cp out base.json
    for key in "training.dtype bfloat16" "training.mixed_precision_param float32" "training.enable_cpu_offload true" \
        "training.mixed_precision_reduce bfloat16" "optimizer.name SGD"; do
        run estimate --machine h100-sxm --ranks 8 --json -- --config llama3_8b --$key
        expect_ok
        check_json out 'j["step_s"] != other("base")["step_s"]' \
            'j["memory_bytes"]["total"] != other("base")["memory_bytes"]["total"]'
    done
    run estimate --machine h100-sxm --ranks 8 -- --config llama3_8b --optimizer.name Sophia
    expect_code 2
    expect_err "optimizer.name 'Sophia' is none of AdamW, Adam, Muon, Lion and SGD"
}

# Each key that tests/unit/data/config_keys.txt calls priced changes the prediction; flags behind its value belong to
# both jobs.
case_keys_that_are_priced_change_the_prediction() {
    grep -E "^[a-z0-9_.]+ priced ." "$TITAN_SOURCE/tests/unit/data/config_keys.txt" >priced.txt
    [ "$(wc -l <priced.txt)" -gt 20 ] || not_as "$(cat priced.txt)"
    run estimate $model_8b --machine h100-sxm --ranks 64 --json
    cp out usual.json
    # shellcheck disable=SC2086  # several flags
    while read -r key class value flags; do
        cp usual.json "base.$key"
        if [ -n "$flags" ] && [ "$key" != model.name ]; then
            run estimate $model_8b --machine h100-sxm --ranks 64 --json $flags
            cp out "base.$key"
        fi
        run estimate $model_8b --machine h100-sxm --ranks 64 --json --$key=$value $flags
        cp out "with.$key"
    done <priced.txt
    python3 - <<'EOF_PYTHON' >problem.txt 2>&1 || not_as "$(cat problem.txt)"
import json
for line in open("priced.txt"):
    key = line.split()[0]
    one, other = (json.load(open(f"{kind}.{key}"))["jobs"][0] for kind in ("base", "with"))
    assert any(one[k] != other[k] for k in ("step_s", "memory_bytes", "run")), key
EOF_PYTHON
}

# The prediction leaves out some keys of a configuration; the screen and the JSON name them.
# A setting either changes the prediction or is named: nothing that a user types is ignored in silence.
case_settings_without_effect_are_named() {
    run estimate $model_8b --machine h100-sxm --ranks 8 --json --training.max_norm=2 --training.z_loss=1e-4 \
        --metrics.log_freq=1 --training.seq_len=4096 --ema.decay=0.9
    expect_ok
    check_json out 'o["no_effect"] == ["--training.max_norm", "--training.z_loss", "--metrics.log_freq"]' \
        '[x["key"] for x in o["not_counted"]] == ["ema.decay"]'
    run estimate --machine h100-sxm --ranks 8 -- --config llama3_8b --training.gc_freq 10 --metrics.log_freq 1 \
        --parallelism.tensor_parallel_degree 2 --parallelism.pipeline_parallel_schedule GPipe
    expect_ok
    expect_out "^not counted   training.gc_freq 10: "
    expect_out "^no effect     --metrics.log_freq, --parallelism.pipeline_parallel_schedule: the prediction is "
    run estimate $model_8b --machine h100-sxm --ranks 8 --training.seq_len=4096
    refuse_out "no effect"
}

# Checkpoints are as often as the configuration says, and block for as long.
case_checkpoints_follow_the_configuration() {
    run estimate $model_8b --machine h100-sxm --ranks 64 --json --checkpoint.enable=false
    cp out best.json
    for mode in async disabled; do
        run estimate $model_8b --machine h100-sxm --ranks 64 --json --checkpoint.enable=true --checkpoint.interval=50 \
            --checkpoint.async_mode=$mode
        cp out $mode.json
    done
    check_json out 'j["run"]["goodput"] < other("async")["run"]["goodput"] < other("best")["run"]["goodput"]'
    printf '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\n' >run.toml
    printf '[checkpoint]\nenable = true\ninterval = 70\nasync_mode = "async_with_pinned_mem"\n' >>run.toml
    run estimate --machine h100-sxm --ranks 64 --torchtitan run.toml
    expect_ok
    expect_out "a checkpoint every 70 steps .* if written in the background"
}

case_settings_that_are_not_priced_are_named() {
    run estimate $model_8b --machine h100-sxm --ranks 64 --json --training.dtype=bfloat16 --optimizer.name=Muon \
        --training.mixed_precision_param=bfloat16 --ema.decay=0.99 --validation.enable=true --debug.seed=7
    expect_ok
    check_json out '[x["key"] for x in o["not_counted"]] == ["ema.decay", "validation.enable"]'
    run estimate $model_8b --machine spr-8480 --stack titan --ranks 64 --ema.decay=0.9
    expect_out "^not counted   ema.decay 0.9: the memory counts it, the time does not$"
    run estimate $model_8b --machine h100-sxm --ranks 64 --json --optimizer.name=Adam \
        --training.gradient_sync=auto --parallelism.pipeline_parallel_schedule=GPipe
    check_json out '[x["key"] for x in o["not_counted"]] == []' # the others are usual values
    cat >run.toml <<'END'
[model]
name = "llama3"
flavor = "8B"
use_flex_attn = true
[training]
local_batch_size = 1
[optimizer]
cpu_offload = true
[lora]
rank = 16
[ema]
decay = 0.99
[mood]
colour = "blue"
[experimental]
foo_degree = 3
[float8]
recipe_name = "rowwise"
enable_fsdp_float8_all_gather = false
END
    run estimate --machine h100-sxm --ranks 64 --torchtitan run.toml
    expect_code 2
    expect_err "which might change the cost: 'optimizer.cpu_offload'.*, 'lora.rank'.*, 'experimental.foo_degree'"
    expect_err "help: take them out, or give --ignore-flag KEY"
    run estimate --machine h100-sxm --ranks 64 --torchtitan run.toml --json --ignore-flag optimizer.cpu_offload \
        --ignore-flag lora.rank --ignore-flag experimental.foo_degree
    expect_ok
    check_json out '[x["key"] for x in o["not_counted"]] == ["optimizer.cpu_offload", "lora.rank",
        "experimental.foo_degree", "mood.colour", "ema.decay", "model.use_flex_attn"]'
}

# stages LAYERS...: prints a list of modules in TOML, with that many layers for each stage.
stages() {
    python3 - "$@" <<'END'
import sys
layers, parts = 0, []
for n in map(int, sys.argv[1:]):
    parts.append([f"layers.{i}" for i in range(layers, layers + n)])
    layers += n
parts[0].insert(0, "tok_embeddings")
parts[-1] += ["norm", "output"]
print(str(parts).replace("'", '"'))
END
}

# A configuration can list the stages of a pipeline, instead of leaving the cuts to the trainer.
case_listed_stages_reach_predictions() {
    local name list
    for name in even 5,9,9,9 8,8,8,8; do
        printf '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 8\nseq_len = 8192\n' >$name.toml
        printf '[parallelism]\npipeline_parallel_degree = 4\npipeline_parallel_schedule = "1F1B"\n' >>$name.toml
        read -r -a list <<<"${name//,/ }"
        [ $name = even ] || printf 'module_fqns_per_model_part = %s\n' "$(stages "${list[@]}")" >>$name.toml
        run estimate --machine h100-sxm --ranks 64 --torchtitan $name.toml --json
        expect_ok
        cp out $name.json
    done
    check_json even.json 'j["layout"]["stage_layers"] is None'
    check_json 8,8,8,8.json 'j["layout"]["stage_layers"] == [8, 8, 8, 8]'
    check_json 5,9,9,9.json 'j["layout"]["stage_layers"] == [5, 9, 9, 9]' 'j["layout"]["stages_per_rank"] == 1' \
        'j["step_s"] > 1.03 * other("8,8,8,8")["step_s"]' \
        'j["memory_bytes"]["state"] != other("8,8,8,8")["memory_bytes"]["state"]'
    run estimate --machine h100-sxm --ranks 64 --torchtitan 5,9,9,9.toml
    expect_out "stages of 5 to 9 layers"
    for name in torchtitan titan; do
        run estimate --machine h100-sxm --ranks 64 --torchtitan 5,9,9,9.toml --emit $name
        expect_ok
        cp out emitted.$name
    done
    run estimate --machine h100-sxm --ranks 64 --torchtitan emitted.torchtitan --json
    expect_ok
    check_json out 'j["layout"] == other("5,9,9,9")["layout"]' 'j["step_s"] == other("5,9,9,9")["step_s"]'
    run estimate --machine h100-sxm --ranks 64 --config emitted.titan --json
    expect_ok
    check_json out 'j["layout"]["stage_layers"] == [5, 9, 9, 9]'
    sed '/^module_fqns/d' 5,9,9,9.toml >points.toml # files of 2024 and 2025 name the layers that begin a stage
    echo 'pipeline_parallel_split_points = ["layers.5", "layers.14", "layers.23"]' >>points.toml
    run estimate --machine h100-sxm --ranks 64 --torchtitan points.toml --json
    expect_ok
    check_json out 'j["layout"]["stage_layers"] == [5, 9, 9, 9]' 'j["step_s"] == other("5,9,9,9")["step_s"]'
    sed -i 's/"layers.0", //' 5,9,9,9.toml
    run estimate --machine h100-sxm --ranks 64 --torchtitan 5,9,9,9.toml
    expect_code 2
    expect_err "no stage has module 'layers.0'"
}

case_flags_of_megatron_are_jobs() {
    cat >pretrain.sh <<'END'
#!/bin/bash
# A script as users have it; --tensor-model-parallel-size 64 in a comment is not a flag.
GPT_ARGS=(
    --num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64
    --group-query-attention --num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192
    --swiglu --untie-embeddings-and-output-weights --vocab-size 128256 --normalization RMSNorm
)
PARALLEL="--tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --sequence-parallel \
    --num-layers-per-virtual-pipeline-stage 5 --use-distributed-optimizer"
torchrun --nproc_per_node 8 --nnodes $NNODES pretrain_gpt.py "${GPT_ARGS[@]}" $PARALLEL --bf16 \
    --micro-batch-size 1 --global-batch-size=256 --recompute-granularity selective --lr 3.0e-4 --save $SAVE
END
    run estimate --machine h100-sxm --ranks 256 --megatron pretrain.sh --json
    expect_ok
    cp out script.json
    check_json out 'j["stack"] == "megatron-lm" and j["layout"]["tp"] == 8 and j["layout"]["pp"] == 4' \
        'j["layout"]["dp_replicate"] == 8 and j["layout"]["dp_shard"] == 1 and j["layout"]["stages_per_rank"] == 4' \
        'j["layout"]["schedule"] == "Interleaved1F1B" and j["layout"]["recompute"] == "attention"' \
        'j["layout"]["micro_batch"] == 1 and j["layout"]["microbatches"] == 32' \
        'abs(j["run"]["checkpoint_bytes"] / 12 / 70.55e9 - 1) < 0.01'
    run estimate --machine a100-80 --ranks 256 --megatron pretrain.sh --json -- --tensor-model-parallel-size 4 \
        --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
    expect_ok
    check_json out 'j["stack"] == "megatron-2023" and j["layout"]["tp"] == 4 and j["layout"]["recompute"] == "full"'
    # titan can read what it prints
    run estimate --machine h100-sxm --ranks 256 --megatron pretrain.sh --emit megatron
    expect_ok
    cp out again.sh
    run estimate --machine h100-sxm --ranks 256 --megatron again.sh --json
    expect_ok
    check_json out 'all(j[k] == json.load(open("script.json"))["jobs"][0][k] for k in
                        ("layout", "step_s", "memory_bytes", "model"))'
    sed 's/--use-distributed-optimizer//' pretrain.sh >whole.sh
    run estimate --machine h100-sxm --ranks 256 --megatron whole.sh --json
    check_json out 'j["memory_bytes"]["state"] > 2 * json.load(open("script.json"))["jobs"][0]["memory_bytes"]["state"]'
}

case_flags_of_megatron_have_experts() {
    flags="--num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 --kv-channels 128
           --group-query-attention --num-query-groups 4 --swiglu --untie-embeddings-and-output-weights
           --vocab-size 151936 --overlap-grad-reduce --overlap-param-gather
           --num-experts 128 --moe-router-topk 8 --moe-ffn-hidden-size 768 --seq-length 4096
           --micro-batch-size 1 --global-batch-size 256 --expert-model-parallel-size 8 --fp16
           --use-distributed-optimizer"
    run estimate --machine h100-sxm --ranks 64 --json -- $flags
    expect_ok
    cp out flags.json
    run estimate --machine h100-sxm --ranks 64 --json --stack megatron-bridge --model qwen3-30b-a3b \
        --training.seq_len=4096 --training.local_batch_size=1 --training.global_batch_size=256 \
        --parallelism.expert_parallel_degree=8 --activation_checkpoint.mode=none
    expect_ok
    check_json out 'j["layout"]["ep"] == 8' \
        'abs(j["step_s"] / json.load(open("flags.json"))["jobs"][0]["step_s"] - 1) < 0.005'
    run estimate --machine h100-sxm --ranks 64 --json -- $flags --moe-layer-freq '([0]*2+[1]*46)'
    expect_ok
    check_json out 'j["step_s"] != json.load(open("flags.json"))["jobs"][0]["step_s"]'
    run estimate --machine h100-sxm --ranks 64 --json -- $flags --expert-model-parallel-size 32
    expect_ok
    cp out wide.json
    wide='json.load(open("wide.json"))["jobs"][0]["parts_s"]["expert"]'
    for more in "--moe-router-force-load-balancing 0.83" "--overlap-moe-expert-parallel-comm 0.63" \
        "--moe-router-num-groups 8 --moe-router-group-topk 2 0.7"; do # a smaller part of the exchange is exposed
        run estimate --machine h100-sxm --ranks 64 --json -- $flags --expert-model-parallel-size 32 ${more% *}
        expect_ok
        check_json out 'j["parts_s"]["expert"] < 1.02 * '"${more##* } * $wide"
    done
    run estimate --machine h100-sxm --ranks 64 -- $flags --moe-layer-freq '([0]*2+[1]*40)'
    expect_code 2
    expect_err "cannot be parsed, or does not describe 48 layers"
}

case_flags_of_megatron_that_are_not_modelled_are_refused() {
    flags="--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --micro-batch-size 1
           --global-batch-size 64 --vocab-size 50257 --use-distributed-optimizer --recompute-activations"
    run estimate --machine a100-80 --ranks 8 -- $flags
    expect_code 2
    expect_err "without --bf16 or --fp16"
    run estimate --machine a100-80 --ranks 8 -- $flags --bf16 --tensor-model-paralel-size 2
    expect_code 2
    expect_err "did you mean --tensor-model-parallel-size"
    run estimate --machine a100-80 --ranks 8 -- $flags --bf16 --tensor-model-parallel-sizes 2
    expect_code 2
    expect_err "did you mean --tensor-model-parallel-size"
    run estimate --machine a100-80 --ranks 8 -- $flags --bf16 --use-torch-fsdp2
    expect_code 2
    expect_err "does not know these flags of Megatron, which might change the cost: --use-torch-fsdp2"
    # all of them at once, with and without a name of the same form as known ones
    run estimate --machine a100-80 --ranks 8 -- $flags --bf16 --zero-stage 3 --spam-rate 2 --lora-rank 8 \
        --data-parallel-sharding-strategy optim_grads_params --optimizer_offload_policy p --fp8-amax-history-len 4
    expect_code 2
    expect_err "cost: --zero-stage 3, --lora-rank 8.*, --data-parallel-sharding-strategy opt.*, --optimizer-offload-pol"
    expect_err "help: take them out, or give --ignore-flag NAME"
    ! grep -E "spam|amax" err >/dev/null || not_as "names what does not matter"
    run estimate --machine a100-80 --ranks 8 --ignore-flag zero-stage --ignore-flag lora_rank --json -- $flags \
        --bf16 --zero-stage 3 --lora-rank 8
    expect_ok
    check_json out '[x["key"] + " " + x["value"] for x in o["not_counted"]] == ["--zero-stage 3", "--lora-rank 8"]' \
        'all(x["assumes"] == "--ignore-flag leaves it out" for x in o["not_counted"])'
    run estimate --machine a100-80 --ranks 8 -- $flags --bf16 --sequence-parallel false
    expect_code 2
    expect_err "--sequence-parallel takes no value, found 'false'"
    for word in zero offload fsdp recompute activation-checkpoint precision fp8 fp4 bf16 parallel lora cuda-graph; do
        run estimate --machine a100-80 --ranks 8 -- $flags --bf16 --my-$word-mode on
        expect_code 2
        expect_err "cost: --my-$word-mode on"
    done
    echo "--num-layers \$LAYERS $flags --bf16" >script.sh
    run estimate --machine a100-80 --ranks 8 --megatron script.sh -- --num-layers 32
    expect_ok
    echo "$flags --bf16 --num-layers \$LAYERS" >script.sh
    run estimate --machine a100-80 --ranks 8 --megatron script.sh
    expect_code 2
    expect_err "LAYERS decides --num-layers"
    run estimate --machine a100-80 --ranks 8 $model_8b -- $flags --bf16
    expect_code 2
    expect_err "already describe the whole job"
    run estimate --machine a100-80 --ranks 8 -- ${flags/--vocab-size 50257/} --bf16
    expect_code 2
    expect_err "give --vocab-size"
}

# Numbers and words at which Megatron itself would stop, or that mean nothing.
case_values_of_flags_that_mean_nothing_are_refused() {
    flags="--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 --micro-batch-size 1
           --global-batch-size 64 --vocab-size 50257 --bf16 --swiglu"
    while IFS='|' read -r more message; do
        run estimate --machine h100-sxm --ranks 8 -- $flags $more
        [ "$code" = 2 ] || [ "$code" = 3 ] || not_as "expected exit code 2 or 3"
        expect_err "$message"
    done <<'END'
--ffn-hidden-size 0|--ffn-hidden-size has to be above 0
--kv-channels 0|--kv-channels has to be above 0
--tensor-model-parallel-size 0|--tensor-model-parallel-size has to be above 0
--num-experts 8 --moe-router-topk 16|a token uses 16 experts, but there are only 8
--num-experts 8 --moe-layer-freq 0|--moe-layer-freq has to be above 0
--window-size inf|--window-size 'inf' cannot be parsed
--fp8-format none|--fp8-format 'none' is neither hybrid nor e4m3
--fp16|--bf16 and --fp16 are both given
--mtp-num-layers 100000|--mtp-num-layers 100000 is more than --num-layers 32
--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 3|3 does not divide the 8 layers of a rank
END
    sizes='"num_attention_heads": 32, "vocab_size": 32000, "intermediate_size": 11008'
    for bad in '"hidden_size": 4096.5, "num_hidden_layers": 32' '"hidden_size": 4096, "num_hidden_layers": "32"' \
        '"hidden_size": 4096, "num_hidden_layers": 32, "head_dim": 0' \
        '"hidden_size": 4096, "num_hidden_layers": 1e12'; do
        echo "{\"model_type\": \"llama\", $sizes, $bad}" >bad.json
        run estimate --machine h100-sxm --ranks 8 --model ./bad.json
        expect_code 3
        expect_err "bad.json: [a-z_]+ is not a whole number above 0"
    done
}

# The effect of a flag is priced, refused, or named.
case_flags_of_megatron_are_not_ignored_silently() {
    flags="--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --micro-batch-size 1
           --global-batch-size 512 --vocab-size 128256 --use-distributed-optimizer --bf16 --train-samples 51200"
    run estimate --machine h100-sxm --ranks 64 --json -- $flags --recompute-granularity selective \
        --recompute-modules core_attn layernorm --decoder-first-pipeline-num-layers 3 --spam-rate 2
    expect_ok
    cp out plain.json
    check_json out 'j["layout"]["recompute"] == "modules" and j["run"]["steps"] == 100' \
        'j["layout"]["recompute_modules"] == "core_attn layernorm"' \
        "[x[\"key\"] for x in o[\"not_counted\"]] == [\"--decoder-first-pipeline-num-layers\", \"--spam-rate\"]"
    run estimate --machine h100-sxm --ranks 64 -- $flags --recompute-granularity selective \
        --recompute-modules everything
    expect_code 2
    expect_err "'everything' is none of core_attn, layernorm"
    run estimate --machine h100-sxm --ranks 64 --emit torchtitan --stack torchtitan-compile -- $flags \
        --recompute-granularity selective --recompute-modules layernorm mlp
    expect_code 2
    expect_err "only Megatron recomputes parts of a layer by name"
    run estimate --machine h100-sxm --ranks 64 -- $flags --moe-expert-capacity-factor 1.25
    expect_ok
    expect_out "^not counted   --moe-expert-capacity-factor 1.25: no token is dropped$"
    run estimate --machine h100-sxm --ranks 64 --json -- $flags --recompute-activations --overlap-grad-reduce \
        --overlap-param-gather
    check_json out 'j["parts_s"]["data"] < 0.15 * other("plain")["parts_s"]["data"]' \
        'o["not_counted"] == []'
    cp out hidden.json
    run estimate --machine h100-sxm --ranks 64 --json -- $flags --recompute-activations --overlap-grad-reduce \
        --overlap-param-gather --grad-reduce-in-bf16
    check_json out 'j["parts_s"]["data"] < 0.6 * other("hidden")["parts_s"]["data"]'
    run estimate --machine h100-sxm --ranks 64 --json -- $flags --attention-backend unfused
    check_json out 'j["parts_s"]["attention"] > 2 * other("plain")["parts_s"]["attention"]'
    run estimate --machine h100-sxm --ranks 64 --json -- $flags --pipeline-model-parallel-size 4 \
        --num-layers-per-virtual-pipeline-stage 2 --num-query-groups 8
    expect_ok
    check_json out 'j["layout"]["stages_per_rank"] == 4'
}

# Windows, latents, groups of experts, layers that predict further tokens: the printed flags are read back as the same
# job.
case_models_of_megatron_have_all_their_sizes() {
    layout="--parallelism.expert_parallel_degree=32 --parallelism.pipeline_parallel_degree=4
            --training.global_batch_size=512 --training.local_batch_size=8
            --parallelism.pipeline_parallel_microbatch_size=1 --activation_checkpoint.mode=none"
    for model in deepseek-v3-671b gpt-oss-120b qwen3-30b-a3b; do
        run estimate --model $model --machine b300 --stack megatron-bridge --ranks 256 $layout --json
        expect_ok
        cp out named.json
        run estimate --model $model --machine b300 --stack megatron-bridge --ranks 256 $layout --emit megatron
        expect_ok
        cp out flags.sh
        run estimate --machine b300 --ranks 256 --megatron flags.sh --json
        expect_ok
        cp out plain.json
        check_json out 'all(abs(j["parts_s"][k] - other("named")["parts_s"][k]) < 1e-3 * j["step_s"]
                            for k in j["parts_s"])' 'j["layout"] == other("named")["layout"]'
        more="--recompute-granularity selective --recompute-modules moe_act layernorm --mtp-num-layers 1
              --grad-reduce-in-bf16 --moe-router-force-load-balancing --overlap-moe-expert-parallel-comm"
        run estimate --machine b300 --ranks 256 --megatron flags.sh --json -- $more
        expect_ok
        cp out more.json
        check_json out 'j["layout"]["recompute_modules"] == "layernorm moe_act"' \
            'j["parts_s"]["expert"] < 0.7 * other("plain")["parts_s"]["expert"]' \
            'j["memory_bytes"]["activations"] < other("plain")["memory_bytes"]["activations"]' \
            'j["run"]["checkpoint_bytes"] > other("plain")["run"]["checkpoint_bytes"]'
        run estimate --machine b300 --ranks 256 --megatron flags.sh --emit megatron -- $more
        expect_ok
        cp out flags2.sh
        run estimate --machine b300 --ranks 256 --megatron flags2.sh --json
        expect_ok
        check_json out 'all(j[k] == other("more")[k] for k in ("layout", "step_s", "memory_bytes"))'
    done
    run estimate --machine b300 --ranks 256 --megatron flags.sh -- --window-size many
    expect_code 2
    expect_err "'many' cannot be parsed"
    run estimate --machine b300 --ranks 256 --megatron flags.sh --json -- --window-size 128,0 \
        --window-attn-skip-freq "([1]*24+[0]*24)"
    cp out half.json
    run estimate --machine b300 --ranks 256 --megatron flags.sh --json -- --window-size 128,0 \
        --window-attn-skip-freq 2
    check_json out 'j["step_s"] == other("half")["step_s"] < other("plain")["step_s"]'
}

# The screen shows the number of parameters; for published models it is the published one.
case_parameters_are_counted_and_printed() {
    sizes='"hidden_size": 2048, "num_hidden_layers": 27, "num_attention_heads": 16, "vocab_size": 102400,
           "intermediate_size": 10944, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
           "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
           "qk_rope_head_dim": 64, "v_head_dim": 128, "tie_word_embeddings": false'
    echo "{\"model_type\": \"deepseek_v2\", \"q_lora_rank\": null, $sizes}" >lite.json # 15,706,484,224
    run estimate --model ./lite.json --machine h100-sxm --ranks 64 --json
    expect_ok
    check_json out 'abs(j["parameters"] / 15706484224 - 1) < 0.001'
    echo "{\"model_type\": \"deepseek_v2\", $sizes}" >absent.json # transformers takes 1536 for it
    run estimate --model ./absent.json --machine h100-sxm --ranks 64 --json
    check_json out 'abs(j["parameters"] / (15706484224 + 27 * (1536 * (2048 + 3072) - 2048 * 3072)) - 1) < 0.001'
    echo '{"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}' >gpt2.json
    run estimate --model ./gpt2.json --machine h100-sxm --ranks 8 --json --training.seq_len=1024
    expect_ok
    check_json out 'abs(j["parameters"] / 124.44e6 - 1) < 0.002' # 124,439,808 with biases and norms
    flags="--num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 --micro-batch-size 8
           --global-batch-size 64 --vocab-size 50257 --make-vocab-size-divisible-by 1 --bf16"
    run estimate --machine h100-sxm --ranks 8 --json -- $flags --max-position-embeddings 4096
    expect_ok
    cp out learned.json
    run estimate --machine h100-sxm --ranks 8 --json -- $flags --max-position-embeddings 4096 \
        --position-embedding-type rope
    check_json out 'other("learned")["parameters"] - j["parameters"] == 4096 * 768' \
        'other("learned")["memory_bytes"]["state"] > j["memory_bytes"]["state"]'
    run estimate --model llama3.1-8b --machine h100-sxm --ranks 64
    expect_out "^llama3.1-8b, 8.03B parameters, on 64 x h100-sxm "
}

# Experts that tensor parallelism does not divide: a rank has whole matrices, but fewer experts.
case_experts_need_not_be_cut() {
    flags="--num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 --kv-channels 128
           --group-query-attention --num-query-groups 4 --swiglu --untie-embeddings-and-output-weights
           --vocab-size 151936 --num-experts 128 --moe-router-topk 8 --moe-ffn-hidden-size 768 --seq-length 4096
           --micro-batch-size 1 --global-batch-size 256 --tensor-model-parallel-size 4 --sequence-parallel --bf16
           --use-distributed-optimizer --position-embedding-type rope"
    run estimate --machine h100-sxm --ranks 64 --json -- $flags --expert-model-parallel-size 8
    expect_ok
    cp out cut.json
    run estimate --machine h100-sxm --ranks 64 --json -- $flags --expert-model-parallel-size 32 \
        --expert-tensor-parallel-size 1
    expect_ok
    cp out whole.json
    # experts are not cut in 4, but 4 times as many ranks share them: the same state, and no sums around the experts
    check_json out 'j["layout"]["expert_tp"] == 1 and j["layout"]["ep"] == 32' \
        'abs(j["memory_bytes"]["state"] / other("cut")["memory_bytes"]["state"] - 1) < 1e-9' \
        'abs(j["parts_s"]["tensor"] / other("cut")["parts_s"]["tensor"] - 0.5) < 1e-9' \
        'j["parts_s"]["gemm"] < other("cut")["parts_s"]["gemm"]'
    run estimate --machine h100-sxm --ranks 64 -- $flags --expert-model-parallel-size 32 --expert-tensor-parallel-size 1
    expect_out "experts not cut by TP"
    run estimate --machine h100-sxm --ranks 64 --emit megatron -- $flags --expert-model-parallel-size 32 \
        --expert-tensor-parallel-size 1
    cp out again.sh
    run estimate --machine h100-sxm --ranks 64 --megatron again.sh --json
    expect_ok
    check_json out 'j["layout"] == other("whole")["layout"]' \
        'abs(j["memory_bytes"]["state"] / other("whole")["memory_bytes"]["state"] - 1) < 1e-9'
    run estimate --machine h100-sxm --ranks 64 -- $flags --expert-model-parallel-size 8 --expert-tensor-parallel-size 2
    expect_code 2
    expect_err "leave the flag out, or give 1"
    run estimate --machine h100-sxm --ranks 8 -- $flags --expert-model-parallel-size 128
    expect_code 2
    expect_err "expert parallelism does not divide the ranks"
}

# Hugging Face files whose layers are not those of a known decoder are refused, with the name of the class.
case_classes_of_models_are_known_or_refused() {
    sizes="\"hidden_size\": 4096, \"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"vocab_size\": 32000"
    echo "{\"model_type\": \"mistral\", $sizes, \"intermediate_size\": 14336, \"num_key_value_heads\": 8}" >m.json
    run estimate --model ./m.json --machine h100-sxm --ranks 64 --json
    expect_ok
    check_json out 'abs(j["run"]["checkpoint_bytes"] / 12 / 7241732096 - 1) < 1e-3'
    echo "{\"model_type\": \"gemma\", $sizes, \"intermediate_size\": 14336, \"num_key_value_heads\": 32,
           \"head_dim\": 128}" >m.json
    run estimate --model ./m.json --machine h100-sxm --ranks 64 --json
    check_json out 'abs(j["run"]["checkpoint_bytes"] / 12
                        / (32 * (4 * 4096**2 + 3 * 4096 * 14336) + 32000 * 4096) - 1) < 1e-3'
    echo "{\"model_type\": \"jamba\", \"architectures\": [\"JambaForCausalLM\"], $sizes}" >m.json
    run estimate --model ./m.json --machine h100-sxm --ranks 64
    expect_code 3
    expect_err "m.json is of the class JambaForCausalLM \(model_type jamba\), whose layers titan does not know"
    expect_err "it knows the model types llama .* qwen3_moe"
}

# A layer with a window attends to fewer tokens. In Qwen's files a window counts only if a member says that it is used.
case_windows_of_attention_are_counted() {
    sizes="\"hidden_size\": 4096, \"num_hidden_layers\": 36, \"num_attention_heads\": 32, \"num_key_value_heads\": 8,
           \"head_dim\": 128, \"vocab_size\": 32000, \"intermediate_size\": 12288, \"sliding_window\": 4096"
    job="--machine h200 --ranks 64 --training.seq_len=32768 --training.local_batch_size=1 --json
         --activation_checkpoint.mode=full"
    attention='lambda name: other(name)["parts_s"]["attention"]'
    echo "{\"model_type\": \"qwen3\", $sizes, \"use_sliding_window\": false}" >m.json
    run estimate --model ./m.json $job
    expect_ok
    cp out whole.json
    for layers in 0 9 27 36; do
        echo "{\"model_type\": \"qwen3\", $sizes, \"use_sliding_window\": true, \"max_window_layers\": $layers}" >m.json
        run estimate --model ./m.json $job
        expect_ok
        cp out $layers.json
    done
    check_json out "($attention)('36') == ($attention)('whole') > 3 * ($attention)('0')" \
        "abs((($attention)('whole') - ($attention)('27')) / (($attention)('whole') - ($attention)('0')) - 0.25) < 1e-6" \
        "abs((($attention)('whole') - ($attention)('9')) / (($attention)('whole') - ($attention)('0')) - 0.75) < 1e-6"
    for type in mistral mixtral phi3; do
        echo "{\"model_type\": \"$type\", $sizes}" >m.json
        run estimate --model ./m.json $job
        check_json out "abs(j[\"parts_s\"][\"attention\"] / ($attention)('0') - 1) < 1e-6"
    done
    echo "{\"model_type\": \"mistral\", ${sizes/%4096/null}}" >m.json
    run estimate --model ./m.json $job
    check_json out "j[\"parts_s\"][\"attention\"] == ($attention)('whole')"
    # the same through a configuration of titan, whose models know their windows
    mkdir assets
    echo "{\"model_type\": \"mistral\", \"architectures\": [\"MistralForCausalLM\"], $sizes, \"rope_theta\": 10000.0,
           \"rms_norm_eps\": 1e-5, \"tie_word_embeddings\": false, \"hidden_act\": \"silu\"}" >assets/config.json
    run estimate --model.name=llama3 --model.flavor=hf --model.hf_assets_path=assets $job
    expect_ok
    cp out titan.json
    run estimate --model ./assets/config.json $job
    check_json out "abs(j[\"parts_s\"][\"attention\"] / ($attention)('titan') - 1) < 1e-6"
}

# Keys of torchtitan that change the cost are priced, refused, or named; files of all versions are read.
case_keys_of_torchtitan_are_not_ignored_silently() {
    cat >run.toml <<"END"
[model]
name = "deepseek_v3"
flavor = "16B"
[training]
local_batch_size = 4
seq_len = 4096
steps = 1000
dtype = "bfloat16"
[training.dataloader]
num_workers = 2
[parallelism]
expert_parallel_degree = 8
expert_tensor_parallel_degree = 1
pipeline_parallel_expert_parallel_overlap = true
module_fqns_per_model_part = []
[compile]
enable = true
components = ["loss"]
END
    run estimate --machine h100-sxm --ranks 64 --torchtitan run.toml --json
    expect_ok
    check_json out 'j["stack"] == "torchtitan-eager-2025"' \
        'o["not_counted"] == []'
    run estimate --machine h100-sxm --ranks 64 --torchtitan run.toml -- --parallelism.tensor_parallel_degree 8
    expect_out "^not counted   parallelism.expert_tensor_parallel_degree 1: tensor parallelism divides experts like other matrices"
    run estimate --machine h100-sxm --ranks 64 --torchtitan run.toml -- --training.mixed_precision_param float16
    expect_code 2
    expect_err "training.mixed_precision_param 'float16' is neither bfloat16 nor float32"
    printf "[model]\nflavor = \"8B_flex\"\n[parallelism]\ntensor_parallel_degree = 8\n" >run.toml
    run estimate --machine h100-sxm --ranks 64 --torchtitan run.toml --json
    expect_ok
    check_json out 'j["layout"]["micro_batch"] == 8 and j["model"] == "llama3.1-8b"'
    cp out divided.json
    run estimate --machine h100-sxm --ranks 64 --torchtitan run.toml --json -- --parallelism.disable_loss_parallel
    check_json out 'j["memory_bytes"]["logits"] > 7 * other("divided")["memory_bytes"]["logits"]'
    printf "[parallelism]\npipeline_parallel_degree = 4\npipeline_parallel_layers_per_stage = 5\n" >>run.toml
    printf "[training]\nlocal_batch_size = 8\n" >run2.toml
    sed "/tensor_parallel_degree = 8/d; 0,/.parallelism./{/.parallelism./d}" run.toml >>run2.toml
    run estimate --machine h100-sxm --ranks 64 --torchtitan run2.toml
    expect_code 2
    expect_err "pipeline_parallel_layers_per_stage 5 makes 7 stages of 32 layers"
}

# back FORM ARGUMENT...: writes the job, or the first layout of a search, in that form, and reads it back. The two
# predictions are first.N and back.N.
n_back=0
back() {
    form=$1
    shift
    run estimate "$@" --emit "$form"
    expect_ok
    cp out emitted
    run estimate "$@" --json
    expect_ok
    cp out first.json
    words=()
    while [ $# -gt 0 ]; do
        case $1 in --machine | --ranks | --stack) words+=("$1" "$2") ;; esac
        shift
    done
    case $form in
        titan)
            cp emitted emitted.yaml
            words+=(--config emitted.yaml)
            run config check --config emitted.yaml --no-files
            ;;
        torchtitan)
            cp emitted emitted.toml
            words+=(--torchtitan emitted.toml)
            run config import emitted.toml --out imported.yaml
            expect_ok
            run config check --config imported.yaml --no-files
            ;;
        megatron) cp emitted emitted.sh && words+=(--megatron emitted.sh) ;;
    esac
    expect_ok
    run estimate "${words[@]}" --json
    expect_ok
    n_back=$((n_back + 1))
    cp first.json "first.$n_back"
    cp out "back.$n_back"
    cp command "command.$n_back"
}

# Emitted configurations are valid for their trainer, and their predictions do not change.
case_emitted_configurations_come_back() {
    for form in titan torchtitan; do
        back $form $model_8b --machine h100-sxm --ranks 64 --parallelism.data_parallel_replicate_degree=8 \
            --parallelism.fsdp_reshard_after_forward=never
        back $form $model_8b --machine h100-sxm --ranks 64 --parallelism.context_parallel_degree=8 \
            --training.seq_len=131072 --activation_checkpoint.mode=full
        back $form --machine h100-sxm --ranks 64 --model qwen3-30b-a3b --search --training.seq_len=4096 \
            --training.global_batch_size=256
        back $form --machine h200 --ranks 64 --model deepseek-v3-16b --search --training.seq_len=4096 \
            --training.global_batch_size=512
        for name in 1F1B Interleaved1F1B GPipe; do
            back $form $model_70b --machine h100-sxm --ranks 64 --parallelism.pipeline_parallel_degree=4 \
                --parallelism.tensor_parallel_degree=4 --training.local_batch_size=16 \
                --parallelism.pipeline_parallel_schedule=$name
        done
    done
    for stack in megatron-bridge megatron-2021; do
        back megatron $model_70b --machine h100-sxm --ranks 256 --search --stack $stack
        back megatron --config "$TITAN_SOURCE/configs/llama3_405b.yaml" --machine h100-sxm --ranks 512 --search \
            --training.global_batch_size=128 --stack $stack
        back megatron --machine h100-sxm --ranks 64 --model mixtral-8x7b --search --training.seq_len=4096 \
            --training.global_batch_size=256 --stack $stack
    done
    python3 - "$n_back" <<'EOF_PYTHON' >problem.txt 2>&1 || not_as "$(cat problem.txt)"
import json, sys
for n in range(1, int(sys.argv[1]) + 1):
    first, read = (json.load(open(f"{name}.{n}"))["jobs"][0] for name in ("first", "back"))
    first = first.get("layouts", [first])[0]
    command = open(f"command.{n}").read()
    assert first["layout"] == read["layout"], (command, first["layout"], read["layout"])
    assert abs(first["step_s"] / read["step_s"] - 1) < 1e-3, command
    assert abs(first["memory_bytes"]["total"] / read["memory_bytes"]["total"] - 1) < 1e-3, command
EOF_PYTHON
}

case_a_log_calibrates_the_stack() {
    for step in 1 10 20 30 40 50 60 70 80 90; do
        tps=$((step < 20 ? 900 : 7380 + step % 20))
        printf '[titan] INFO - \033[31mstep: %2d  \033[32mloss:  7.1  \033[38;2;180;60;0mmemory: 47.82GiB' $step
        printf '(50.36%%)  \033[34mtps: %d,%03d  \033[36mtflops: 427.00\n' $((tps / 1000)) $((tps % 1000))
    done >run.log
    run estimate $model_8b --machine h100-hbm2e --ranks 8,64 --calibrate run.log --json
    expect_ok
    check_json out 'abs(j["tokens_per_s_per_device"] / 7385 - 1) < 0.002' 'o["calibration"]["steps"] == 10' \
        'o["calibration"]["gemm_share"] != o["calibration"]["gemm_share_before"]' \
        '7000 < o["jobs"][1]["tokens_per_s_per_device"] < 7385'
    run estimate $model_8b --machine h100-hbm2e --ranks 8 --calibrate run.log
    expect_out "^calibrated +10 steps, 73[0-9]* tokens/s a device: the error was [+-][0-9.]+ % and is 0.0 %; "
    expect_out "; memory of the log 47.8 GiB, predicted [0-9.]+ GiB "
    # of several ranks, with validation, with colours between a word and its number, and with words of 2024
    for step in 10 20 30 40 50 60 70 80; do
        for rank in 0 1; do
            printf '[rank%d]:[titan] 2025-01-01 - INFO - step: %d  tps: \033[34m7,385\033[0m\r\n' $rank $step
        done
        echo "[titan] - root - INFO - validate step: $step  loss: 7.1  memory: 50.00GiB(52%)  tps: 21,000"
    done >ranks.log
    run estimate $model_8b --machine h100-hbm2e --ranks 8 --calibrate ranks.log --json
    expect_ok
    check_json out 'o["calibration"]["steps"] == 16 and o["calibration"]["tokens_per_s_per_device"] == 7385' \
        'abs(o["calibration"]["error_after"]) < 0.002 and o["calibration"]["memory_bytes"] is None'
    sed 's/tps:/wps:/; /validate/d' ranks.log >words.log
    run estimate $model_8b --machine h100-hbm2e --ranks 8 --calibrate words.log --json
    expect_ok
    check_json out 'o["calibration"]["tokens_per_s_per_device"] == 7385'
    run estimate --config "$TITAN_SOURCE/configs/llama3_125m.yaml" --machine h100-hbm2e --stack torchtitan-eager \
        --ranks 1 --calibrate run.log --training.seq_len=64 --training.local_batch_size=1
    expect_code 3
    expect_err "the host takes"
    run estimate $model_70b --machine h100-hbm2e --ranks 64 --calibrate run.log
    expect_code 3
    expect_err "run.log is of another job"
    head -3 run.log >short.log
    run estimate $model_8b --machine h100-hbm2e --ranks 8 --calibrate short.log
    expect_code 3
    expect_err "found 3 in all"
}

run_cases

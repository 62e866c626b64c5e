#!/bin/bash
# SPDX-License-Identifier: MIT Questions, answered by titan estimate. Users of torchtitan and other trainers have asked
# the first ten in public, and the case checks the answer that was found, as far as a formula can give it. The others
# are typed as a person would type them, and the case checks what the screen must show.
. "$(dirname "$0")/lib.sh"

# answers 'PYTHON EXPRESSION'...: each is true for the JSON of out, `o`; j is its first job; `changes` of it by name.
answers() {
    python3 - "$@" <<'EOF_PYTHON' >problem.txt 2>&1 || not_as "$(cat problem.txt)"
import json, sys
o = json.load(open("out"))
j = o["jobs"][0]
jobs = {x["devices"]: x for x in o["jobs"]}
changes = {c["change"]: c for c in j.get("changes", [])}
gib = 2**30
for expression in sys.argv[1:]:
    assert eval(expression), expression
EOF_PYTHON
}

model_8b="--config $TITAN_SOURCE/configs/llama3_8b.yaml"
model_70b="--config $TITAN_SOURCE/configs/llama3_70b.yaml"

# 1. How many H100s for 70B? torchtitan#770: 8 do not do.
case_1_how_many_devices_does_a_70b_model_need() {
    run estimate $model_70b --machine h100-sxm --stack torchtitan-compile --ranks 8,16,32,64 --search --json \
        --training.global_batch_size=64
    expect_ok
    answers 'jobs[8]["layouts"] == [] and jobs[8]["least_bytes"] > 79.2 * gib and jobs[32]["layouts"]' \
        'all(l["fit"] == "fits" for x in o["jobs"] for l in x["layouts"])'
}

# 2. The smallest number of devices for Llama 4 Scout, with expert parallelism (torchtitan#1543).
case_2_how_many_devices_does_a_model_with_experts_need() {
    run estimate --model llama4-scout --machine h100-sxm --ranks 16,32,64 --search --json --training.seq_len=8192 \
        --training.global_batch_size=64
    expect_ok
    answers 'jobs[16]["layouts"] == [] and jobs[32]["layouts"]' \
        'any(l["layout"]["ep"] > 1 for l in jobs[32]["layouts"])' \
        'jobs[16]["least_bytes"] > 16 * 107e9 / 16'
}

# 3. DeepSeek-V3 16B runs out of memory on 8 devices of 80 GB, why? (torchtitan#1789)
case_3_why_is_memory_too_small() {
    run estimate --machine h100-sxm --ranks 8 --json -- --module deepseek_v3 --config deepseek_v3_16b \
        --training.num_tokens_per_microbatch_per_dp_rank 32768
    expect_code 6
    answers 'j["fit"] == "does not fit"' \
        'max("state", "gathered", "activations", "logits", key=lambda k: j["memory_bytes"][k]) == "activations"' \
        'j["changes"][0]["fit"] in ("fits", "tight")' \
        'changes["recompute everything"]["memory_bytes"]["total"] < j["memory_bytes"]["total"]'
}

# 4. llama3_70b on 32 H200 runs at about 200 tokens/s, is that expected? (torchtitan#676: no.)
case_4_is_a_measured_rate_expected() {
    run estimate $model_70b --machine h200 --stack torchtitan-eager --ranks 32 --json
    expect_ok
    answers 'j["tokens_per_s_per_device"] / (1 + 0.15) > 2 * 200' 'j["limited_by"] == "gemm"' \
        'j["step_80_percent_s"][1] > j["step_s"]'
}

# 5. A published MFU cannot be reproduced: other network cards (torchtitan#394), another peak (fms-fsdp#89).
case_5_one_job_on_two_networks() {
    echo '{"type": "machine", "schema": 2, "name": "slow", "base": "a100-80",
           "node": {"network_bytes_per_sec": 50e9}}' >slow.json
    run estimate $model_8b --machine a100-80 --stack torchtitan-eager --ranks 64 --training.seq_len=2048 --json
    expect_ok
    cp out fast.json
    run estimate $model_8b --machine ./slow.json --stack torchtitan-eager --ranks 64 --training.seq_len=2048 --json
    expect_ok
    answers 'j["limited_by"] == "data" and j["mfu"] < 0.7 * json.load(open("fast.json"))["jobs"][0]["mfu"]'
    run estimate $model_8b --machine h100-sxm --ranks 8
    expect_out "MFU [0-9.]+ % of 989 TFLOP/s$"
    expect_out "^  MFU counts 6 flops a parameter"
}

# 6. Why are 128 devices faster than 8, per device? (torchtitan#619: other hardware.) No effect of the model is.
case_6_more_devices_are_not_faster_each() {
    run estimate $model_8b --machine h100-hbm2e --stack torchtitan-compile --ranks 8,128 --training.local_batch_size=2 \
        --json
    expect_ok
    answers 'jobs[128]["tokens_per_s_per_device"] < jobs[8]["tokens_per_s_per_device"]' \
        'jobs[128]["step_80_percent_s"][0] < jobs[8]["step_s"]'
}

# 7. Why does FSDP2 with tensor parallelism need more than FSDP1? (torchtitan#191.) What each stack needs, by part.
case_7_stacks_differ_in_memory_by_part() {
    run estimate $model_8b --machine h100-sxm --stack fsdp1-compile --ranks 8 --json \
        --parallelism.tensor_parallel_degree=2 --training.local_batch_size=2
    expect_ok
    cp out fsdp1.json
    run estimate $model_8b --machine h100-sxm --stack torchtitan-eager --ranks 8 --json \
        --parallelism.tensor_parallel_degree=2 --training.local_batch_size=2
    expect_ok
    answers 'j["memory_bytes"]["total"] > json.load(open("fsdp1.json"))["jobs"][0]["memory_bytes"]["total"]' \
        'j["memory_bytes"]["logits"] > json.load(open("fsdp1.json"))["jobs"][0]["memory_bytes"]["logits"]' \
        'abs(j["memory_bytes"]["state"] - 2 * 8 * 8.03e9 / 8) < 0.05 * gib'
}

# 8. Does reshard_after_forward=false help? (torchtune#2402: +8 % where traffic is exposed, for memory.)
case_8_keeping_parameters_costs_memory() {
    run estimate $model_8b --machine a100-80 --stack torchtitan-eager --ranks 2048 --training.seq_len=2048 --json
    expect_ok
    answers 'j["limited_by"] == "data"' 'changes["keep parameters from forward to backward"]["gain"] > 0.05' \
        'changes["keep parameters from forward to backward"]["memory_bytes"]["total"] - j["memory_bytes"]["total"] > 10 * gib'
}

# 9. FSDP is several times slower than copies (OLMo#762); what would HSDP do?
case_9_copies_between_nodes_save_traffic() {
    run estimate $model_8b --machine a100-80 --stack torchtitan-eager --ranks 8192 --training.seq_len=2048 --json
    expect_ok
    answers 'changes["shard within a node, copies between nodes (HSDP)"]["gain"] > 0.3' \
        'j["parts_s"]["data"] > 0.5 * j["step_s"]'
}

# 10. A checkpoint of 8B takes 6 minutes (torchtitan#1301).
case_10_checkpoints_have_bytes_a_time_and_an_interval() {
    run estimate $model_8b --machine h100-sxm --ranks 8 --json --checkpoint.enable=false
    expect_ok
    answers 'abs(j["run"]["checkpoint_bytes"] / (12 * 8.03e9) - 1) < 0.01' '1 < j["run"]["checkpoint_blocked_s"] < 3' \
        'j["run"]["checkpoint_bytes"] / 10e9 < 60' 'j["run"]["checkpoint_interval_steps"] > 1'
}

# asks 'LINE': types it as in a shell, into a terminal of 80 columns; no line may be longer.
asks() {
    printf '%s\n' "$1" >command
    code=0
    eval "TITAN_COLUMNS=80 '$TITAN' ${1#titan }" >out 2>err </dev/null || code=$?
    awk 'length($0) > 80' out >long
    [ ! -s long ] || not_as "expected no line of more than 80 columns: $(head -1 long)"
    [ "$(wc -l <out)" -le 24 ] || not_as "expected at most 24 lines"
}

# number 'TEXT': the number, without commas, in front of that text in the output's first sentence (lines 1 to 4).
number() {
    head -4 out | tr '\n' ' ' | tr -s ' ' | tr -d , | sed -nE "s/.*[^0-9.]([0-9.]+) $1.*/\1/p"
}

# is 'PYTHON EXPRESSION'
is() {
    python3 -c "assert $1" 2>/dev/null || not_as "expected $1"
}

case_typed_1_how_many_h100_for_a_run_in_a_time() {
    asks "titan estimate llama3.1-70b --gpus h100 --days 30 --tokens 1T --price 2.50"
    expect_ok
    expect_out "^[0-9]+ x h100-sxm are enough; (fits|tight): "
    expect_out "1T tokens"
    # 6 x 70.6e9 x 1e12 flops in 30 days at 40 % of 989 TFLOP/s are 413 GPUs; half or twice that number is not an answer
    devices=$(sed -nE '1s/^([0-9]+) x.*/\1/p' out)
    is "300 <= $devices <= 768"
    hours=$(number 'GPU-hours')
    dollars=$(head -4 out | tr '\n' ' ' | sed -nE 's/.*[$]([0-9,]+).*/\1/p' | tr -d ,)
    is "abs($dollars / ($hours * 2.5) - 1) < 0.01 and $hours <= 30 * 24 * $devices"
    # one node less would take longer
    run estimate llama3.1-70b --gpus $((devices - 8))xh100 --days 30 --tokens 1T --json
    expect_ok
    answers 'j["devices"] % 8 == 0 and 30 < j["run"]["days"] < 31'
    asks "titan estimate llama3.1-70b --gpus h100 --days 15 --tokens 1T"
    is "$(sed -nE '1s/^([0-9]+) x.*/\1/p' out) > $devices"
    run estimate llama3.1-70b --gpus 64xh100 --days 30 --tokens 1T
    expect_out "more than 30 days: --gpus h100-sxm finds the number$"
}

case_typed_2_what_does_a_run_cost() {
    asks "titan estimate llama-3-70b --gpus 64xh100 --price 2.50"
    expect_ok
    expect_out "^(fits|tight): [0-9.]+ of 79.2 GiB; "
    expect_out "^layout .*FSDP"
    expect_out "search's pick of [0-9,]+ .--search."
    expect_out '[$][0-9]'
    asks "titan estimate meta-llama/Llama-3.1-70B-Instruct --gpus 64xh100"
    expect_ok
    expect_out "^job +llama3.1-70b, 70.6B parameters"
    refuse_out '[$]'
}

case_typed_3_tensor_parallelism_or_fsdp_on_a_slow_network() {
    run estimate llama2-13b --gpus 16xa100 --network 100Gb --search --json
    expect_ok
    cp out slow.json
    run estimate llama2-13b --gpus 16xa100 --search --json
    expect_ok
    # with the slower network the best layout sends less between nodes, and is slower
    answers '(j["layouts"][0]["tokens_per_s_per_device"]
              > 1.05 * json.load(open("slow.json"))["jobs"][0]["layouts"][0]["tokens_per_s_per_device"])'
    cp slow.json out
    answers 'all(l["layout"]["pp"] > 1 for l in j["layouts"][:3])' \
        'j["fell_out"][0]["layouts"] == j["tried"] - j["fit"] - j["tight"]' \
        'any("microbatches" in f["why"] and f["layouts"] > 0 for f in j["fell_out"])'
    asks "titan estimate llama2-13b --gpus 16xa100 --network 100Gb"
    expect_out "2 nodes with 100 Gb/s each"
    run estimate llama2-13b --gpus 16xa100 --network 100Gb --search
    expect_out "^fell out +[0-9,]+ need too much memory"
    expect_out " MFU +days +memory  layout"
}

case_typed_4_why_is_my_mfu_22_percent() {
    asks "titan estimate llama3.1-8b --gpus 64xh100 --network 25Gb --parallelism.data_parallel_shard_degree=64"
    expect_ok
    expect_out "MFU [0-9.]+ % of bfloat16's 989"
    expect_out "^limited by +data exposed "
    asks "titan estimate llama3.1-8b --gpus 8xh100 --mfu 22"
    expect_out "^yours +MFU 22 % means [12]\.[0-9] x slower than predicted"
    asks "titan estimate llama3.1-8b --gpus 8xh100 --mfu 45"
    expect_out "^yours +MFU 45 % is within the 80 % interval"
    # a log of a slow run shows how far it is from other runs
    for i in $(seq 20); do
        echo "[rank0]: step: $i  loss: 9.1  memory: 30.00GiB(37.5%)  tps: 3,500  tflops: 200.0  mfu: 20.2%"
    done >run.log
    run estimate --machine h100-sxm --ranks 8 --calibrate run.log
    expect_ok
    expect_out "^comparable +the run is 2\.[0-9] x slower than predicted.*"
    tr '\n' ' ' <out | tr -s ' ' >flat
    grep -q "check compile, data and recomputation: memory differs by [0-9]* GiB" flat || not_as "no word about memory"
}

case_typed_5_lora_of_70b_on_small_devices() {
    asks "titan estimate llama3.1-70b --gpus 8xA100-40 --lora 16"
    expect_ok
    # torchtune's README measured 27.6 GiB on 8 A100 with 2 packed sequences of 2048 each; its recipe for that,
    # recipes/configs/llama3_1/70B_lora.yaml, has rank 16 and recomputes everything
    run estimate llama3.1-70b --gpus 8xa100-40 --lora 16 --seq 2048 --batch 16 --recompute full --json
    expect_ok
    answers '24 < j["memory_bytes"]["total"] / gib < 33' 'j["memory_bytes"]["state"] < 1.1 * 2 * 70.6e9 / 8'
    run estimate llama3.1-70b --gpus 8xa100-40 --json
    expect_code 6
    answers 'any("lora" in r["remedy"] for r in j["remedies"]) and all("devices" in r for r in j["remedies"])' \
        'all(r["memory_bytes"] <= j["memory_bytes"]["usable"] for r in j["remedies"])'
}

case_typed_6_long_sequences() {
    asks "titan estimate llama3.1-70b --gpus 64xh200 --seq 128k"
    expect_ok
    expect_out "131072"
    expect_out "^layout .*CP [0-9]"
}

case_typed_7_float8() {
    asks "titan estimate llama3.1-8b --gpus 8xh100 --float8"
    expect_ok
    expect_out "of bfloat16's 989 TFLOP/s, *"
    tr '\n' ' ' <out | tr -s ' ' >flat
    grep -q "of float8's 1979" flat || not_as "expected the peak of float8"
    run estimate llama3.1-8b --gpus 8xa100 --float8
    expect_error 2 "a100-80 cannot compute in float8"
}

case_typed_8_one_4090() {
    asks "titan estimate llama3.1-8b --gpus 4090"
    expect_out "^job .* on [0-9]+ x rtx-4090"
    asks "titan estimate llama3.1-8b --gpus 1x4090"
    expect_code 6
    expect_out "^does not fit in any layout"
    expect_out "--qlora"
    asks "titan estimate llama3.1-8b --gpus 1x4090 --qlora"
    expect_ok
    expect_out "^fits: "
    # with 4.5 bits each, the weights of the layers, 7 of 8 billion, take 3.4 GiB; embeddings and output stay in 16
    run estimate llama3.1-8b --gpus 1x4090 --qlora --json
    answers '4.5 < j["memory_bytes"]["state"] / gib < 7'
}

case_typed_9_a_cluster_of_processors() {
    asks "titan estimate llama3.2-1b --nodes 32 --gpus genoa"
    expect_ok
    expect_out "on 64 x genoa-9654"
    expect_out "32 nodes"
    expect_out "titan$"
    expect_out "tokens/s a socket"
}

case_typed_10_a_large_model_on_amd() {
    asks "titan estimate llama3.1-405b --gpus 256xmi300x"
    expect_ok
    expect_out "on 256 x mi300x"
    expect_out "^(fits|tight): [0-9.]+ of 19[01]"
}

case_typed_11_failures_of_cheap_machines() {
    asks "titan estimate llama3.1-70b --gpus 512xh100 --tokens 1T"
    expect_out "^run +.*a failure every [0-9.]+ (days|hours)"
    tr '\n' ' ' <out | tr -s ' ' >flat
    grep -Eq "checkpoint every [0-9.]+ (minutes|hours)" flat || not_as "expected the interval of checkpoints"
}

case_typed_12_full_fine_tuning_on_24_gb() {
    asks "titan estimate llama3.1-8b --gpus 8xrtx3090 --seq 2048"
    expect_ok
    expect_out "^(fits|tight): [0-9.]+ of 23.6 GiB"
    sharded="llama3.1-8b --gpus 8x3090 --seq 2048 --parallelism.data_parallel_shard_degree=8 --json"
    run estimate $sharded
    answers 'abs(j["memory_bytes"]["state"] / (16 * 8.03e9 / 8) - 1) < 0.03'
    run estimate $sharded --dtype bf16
    answers 'abs(j["memory_bytes"]["state"] / (8 * 8.03e9 / 8) - 1) < 0.03'
    run estimate $sharded --optimizer adamw8bit
    answers 'j["memory_bytes"]["state"] < 0.75 * 16 * 8.03e9 / 8'
    run estimate $sharded --offload optimizer
    answers 'j["memory_bytes"]["state"] < 0.5 * 16 * 8.03e9 / 8'
}

# Keys and short options give the same result.
# What people type after they have seen the first answer: a layout, another trainer's word, a device, a longer sequence.
case_typed_13_degrees_of_parallelism() {
    asks "titan estimate llama3.1-70b --gpus 64xh100 --tp 8"
    expect_ok
    expect_out "^layout +.*TP 8"
    run estimate llama3.1-70b --gpus 64xh100 --tp 4 --pp 2 --micro-batch 2 --search --json
    expect_ok
    answers 'j["layouts"] and all((l["layout"]["tp"], l["layout"]["pp"], l["layout"]["micro_batch"]) == (4, 2, 2)
        for l in j["layouts"])'
}

case_typed_14_stages_of_zero() {
    asks "titan estimate llama2-13b --gpus 8xa100-40 --zero 2"
    expect_code 6
    expect_out "deepspeed-zero2"
    run estimate llama2-13b --gpus 16xa100-80 --zero 3 --json # DeepSpeed divides nothing but data
    answers 'j["stack"] == "deepspeed-zero3" and j["layout"]["tp"] * j["layout"]["pp"] * j["layout"]["cp"] == 1'
}

case_typed_15_half_precision_on_old_devices() {
    asks "titan estimate gpt-neox-20b --gpus 32xv100 --dtype fp16 --seq 2048"
    expect_ok
    expect_out "of float16's 125 TFLOP/s"
}

# QLoRA's paper trains 65B on one device of 48 GB, and 33B on 24 GB; Qwen's README 72B on 80 GB with 8192 tokens.
case_typed_16_large_models_in_4_bits() {
    asks "titan estimate llama-65b --gpus 1xa6000 --qlora --seq 512"
    expect_ok
    asks "titan estimate llama-30b --gpus 1x4090 --load-in-4bit --seq 512"
    expect_ok
    asks "titan estimate qwen1.5-72b --gpus 1xa100-80 --qlora --lora-rank 64 --seq 4096"
    expect_ok
}

case_typed_17_experts() {
    asks "titan estimate mixtral-8x7b --gpus 64xh100 --ep 8"
    expect_ok
    expect_out "^layout +.*EP 8"
    expect_out "^inference +[0-9.]+ GiB on each of 2 GPUs: weights 43.5" # 87 GB, whatever the training divides
    asks "titan estimate deepseek-v3 --gpus 256xh200 --ep 64"
    expect_out "^inference +does not fit in a node: "
}

case_typed_18_a_million_tokens() {
    asks "titan estimate llama3.1-8b --gpus 256xh100 --seq 1M --stack megatron-lm"
    expect_ok
    expect_out "^step +[0-9],[0-9]{3} s "
    ! grep -q "context exposed" out || not_as "expected a ring that attention hides"
}

case_typed_19_words_of_other_trainers() {
    run estimate 8b --gpus 8xh100 --fp8 --max-seq-length 4096 --optim adamw8bit --json
    expect_ok
    cp out first
    run estimate 8b --gpus 8xh100 --float8 --seq 4096 --optimizer adamw8bit --json
    cmp -s first out || not_as "expected the same answer to the same question"
    asks "titan estimate 8b --nnodes 2 --gpus h100 --cost 2.50 --tokens 100B"
    expect_ok
}

case_typed_20_a_small_machine_on_the_desk() {
    asks "titan estimate llama3.1-8b --gpus 1xspark --lora 16 --seq 2048"
    expect_ok
}

case_typed_21_new_devices_of_amd() {
    asks "titan estimate llama3.1-8b --gpus 8xmi325x --fp8"
    expect_ok
    expect_out "MFU .* of float8's 2615"
}

case_typed_22_two_clusters_at_once() {
    run estimate llama3.1-8b --gpus 8,64xh100 --micro-batch-size 2
    expect_ok
    [ "$(grep -c "^layout .*" out)" = 2 ] || not_as "expected two answers"
}

case_keys_are_counted_as_short_options_are() {
    job="llama3.1-8b --gpus 8xh100 --parallelism.data_parallel_shard_degree=8 --json"
    run estimate $job
    cp out plain.json
    while IFS='|' read -r keys options; do
        run estimate $job $keys
        cp out keys.json
        run estimate $job $options
        answers 'j["memory_bytes"] == json.load(open("keys.json"))["jobs"][0]["memory_bytes"]' \
            'j["memory_bytes"] != json.load(open("plain.json"))["jobs"][0]["memory_bytes"]'
    done <<'END'
--lora.rank=16|--lora 16
--optimizer.name=Muon|--optimizer muon
--training.enable_cpu_offload=true|--offload all
--training.mixed_precision_param=float32|--dtype fp32
END
}

# A file in the user's folder makes a machine known by name.
# Keys that only torchtitan has, or that concern benchmarks, are counted, noted or refused, never ignored.
case_no_key_is_ignored_in_silence() {
    job="--machine h100-sxm $model_8b --ranks 32 --training.local_batch_size=4 --parallelism.tensor_parallel_degree=2"
    job="$job --parallelism.context_parallel_degree=2 --json"
    run estimate $job
    cp out base
    while IFS='|' read -r key what; do
        run estimate $job $key
        expect_ok
        python3 -c "
import json
a, b = (json.load(open(f))['jobs'][0]['step_s'] for f in ('base', 'out'))
assert a $what b, (a, b)" || not_as "$key: expected a time $what that of the job"
    done <<'END'
--parallelism.enable_async_tensor_parallel=true|>
--parallelism.disable_loss_parallel=true|<
--parallelism.context_parallel_load_balancer=null|<
--compile.enable=false|<
END
    run estimate $job --parallelism.context_parallel_rotate_method=alltoall --metrics.peak_flops=1e15
    answers 'len(o["not_counted"]) == 2'
    run estimate $job --checkpoint.enable=false --checkpoint.interval=7 --metrics.expert_loads --training.gc_freq=10
    expect_err "training.gc_freq has no effect"
    answers '[n["key"] for n in o["not_counted"]] == ["checkpoint.interval", "metrics.expert_loads"]'
    run estimate $job --ignore-flag compile.enable
    expect_error 2 "--ignore-flag 'compile.enable' leaves nothing out"
    run estimate --machine h100-sxm --model qwen3-30b-a3b --ranks 16 --parallelism.expert_parallel_degree=8 --json
    cp out base
    run estimate --machine h100-sxm --ranks 16 --model.name=qwen3 --model.flavor=30B-A3B --json \
        --parallelism.expert_parallel_degree=8 --debug.moe_force_load_balance=true
    answers 'o["not_counted"] == [] and (j["parts_s"]["expert"] <
        0.5 * json.load(open("base"))["jobs"][0]["parts_s"]["expert"])'
}

case_machines_of_the_user_have_names() {
    mkdir -p config/titan/machines
    echo '{"type": "machine", "schema": 2, "name": "ours", "like": "h100-sxm",
           "node": {"network_bytes_per_sec": 5e9}}' >config/titan/machines/our-cluster.json
    export XDG_CONFIG_HOME=$PWD/config
    run estimate llama3.1-8b --gpus "16xour cluster" --json
    expect_ok
    answers 'j["machine"] == "ours" and j["devices"] == 16'
    run estimate --machine our-cluster --ranks 16
    expect_out "on 16 x ours \(2 nodes of 8, 40 Gb/s a node\)"
    echo '{"type": "machine"' >config/titan/machines/our-cluster.json
    run estimate llama3.1-8b --gpus 16xour-cluster
    expect_error 3 "our-cluster.json:"
}

case_names_are_found_or_answered_by_the_nearest() {
    for name in h100 "NVIDIA H100 80GB" H100-SXM5-80GB; do
        run estimate llama3.1-8b --gpus "8x$name" --json
        expect_ok
        answers 'j["machine"] == "h100-sxm" and j["devices"] == 8'
    done
    while IFS='|' read -r gpus machine devices; do
        run estimate 8b --gpus "$gpus" --json
        answers "j['machine'] == '$machine' and j['devices'] == $devices" 'j["model"] == "llama3.1-8b"'
    done <<'END'
16xA100-40|a100-40|16
2x8xa100|a100-80|16
8,8xMI300X|mi300x|8
8xA100-SXM4-40GB|a100-40|8
h100x8|h100-sxm|8
gpu:h100:8|h100-sxm|8
8 H100s|h100-sxm|8
8x NVIDIA H100 80GB HBM3|h100-sxm|8
END
    while read -r name model; do
        run estimate "$(echo $name | tr _ ' ')" --gpus 64xh100 --json
        answers "j['model'] == '$model'"
    done <<'END'
Llama-3.1-70B llama3.1-70b
llama-3-8b llama3-8b
70b llama3.1-70b
qwen3_30b qwen3-30b-a3b
Qwen/Qwen2.5-72B-Instruct qwen2.5-72b
mixtral_8x7B mixtral-8x7b
google/gemma-2-9b-it gemma2-9b
microsoft/Phi-3.5-mini-instruct phi3.5-mini
deepseek_v3 deepseek-v3
END
    run estimate 8b --gpus 8 x a100 --json
    answers 'j["machine"] == "a100-80" and j["devices"] == 8'
    run estimate kimi-k2 --gpus 1024xh100
    expect_out "^job +kimi-k2, 1\.03T parameters, on 1024 x h100-sxm"
    run estimate 8b 4xh200 --json
    answers 'j["machine"] == "h200" and j["devices"] == 4'
    run estimate 8b --gpus 8xh100 --tokens "1.5 trillion" --price '$2.50' --mfu 40% --network 100GbE --json
    expect_ok
    answers 'abs(j["run"]["tokens"] / 1.5e12 - 1) < 1e-9'
    run estimate llama9 --gpus 8xh100
    expect_error 2 "the model 'llama9' is not known" "did you mean llama[^ ]*, llama[^ ]* or llama[^ ]*\?"
    run estimate qwen3 --gpus 8xh100
    expect_error 2 "'qwen3' could be several" "did you mean qwen3-[^ ]*, qwen3-[^ ]* or qwen3-[^ ]*\?"
    run estimate 8b --gpus 8xH1000
    expect_error 2 "the machine 'H1000' is not known" "did you mean h100"
}

case_what_a_person_mistypes_is_answered() {
    while IFS='|' read -r line message; do
        eval "run estimate $line"
        expect_error 2 "$message"
    done <<'END'
8b --gpus 8,h100|--gpus '8,h100' is not a number of GPUs and their name
best.yaml --gpus 8xh100|--config best.yaml reads a configuration
8b --gpus 0xh100|--gpus '0xh100' is not
8b --gpus 8xh100 --days 3|--days needs the tokens of the run
8b --gpus 8xh100 --network fast|--network 'fast' is not the rate
8b --gpus 8xh100 --price free|--price 'free' is not dollars
8b --gpus 8xh100 --batch few|--batch 'few' is not a number of sequences or tokens
8b --gpus 8xh100 --recompute some|error: --recompute 'some' is not none, op
8b --gpus 8xh100 --dtype int4|error: --dtype 'int4' is not mixed, bf16, fp16, fp8 or fp32
8b --gpus 8xh100 --tp 3|fits 8 devices: the fixed degrees do not divide the devices, or the batch
8b --gpus 8xh100 --tp 2 --parallelism.pipeline_parallel_degree=2|but a file or a key already sets the layout
8b --gpus 8xh100 --zero 4|--zero '4' is not a whole number from 1 to 3
8b --gpus 8xh100 --zero 3 --stack primus|--zero and --stack both name the software
8b --gpus 8x a100|--gpus '8x' is not a number of GPUs and their name
8b --gpu 8xh100|--machine '8xh100' has a number before the name
8b --gpus 3.5xh100|--gpus '3.5xh100' is not
8xh100 8b|the model '8xh100 8b' is not known
deepseek-ai/DeepSeek-R1-Distill-Llama-8B --gpus 8xh100|the model 'DeepSeek-R1-Distill-Llama-8B' is not known
8b --gpus 8xh100 --tokens 15 trillion|--tokens '15' are too few
8b --gpus 8xh100 --ranks 8|leave --machine and --ranks out
8b --gpus 8xh100 --model 70b|both name a model
--seq 8192|--seq needs a model and GPUs
--lora 16 --ranks 8|--lora needs a model and GPUs
END
}

case_a_job_that_does_not_fit_is_told_what_would() {
    asks "titan estimate llama3.1-70b --gpus 64xh100 --parallelism.data_parallel_shard_degree=64 --training.seq_len=32768"
    expect_code 6
    expect_out "^does not fit: [0-9]+.* of 79.2 GiB; with [^:]* it fits: *"
    expect_out "^it fits "
    asks "titan estimate llama3.1-70b --gpus 8xa100-40"
    expect_code 6
    expect_out "^does not fit in any layout: [0-9]+.* of 39.4 GiB;"
    expect_out "on [0-9]+ x a100-40 it fits: [0-9]+ tokens/s a GPU"
    refuse_out "^better"
    asks "titan estimate llama3.1-70b --gpus 1xa6000 --qlora" # at 8192 tokens
    expect_out "^it fits .* on 2 x a6000 .*with --seq 2048"
}

# The page is one file: no addresses but those of the SVG namespace, well-formed pictures, and a table.
case_a_page_shows_the_answer() {
    run estimate llama3.1-70b --gpus 64xh100 --price 2.50 --html page.html
    expect_ok
    head -1 out | cut -c1-20 >verdict
    grep -qF "$(cat verdict)" page.html || not_as "the page lacks the verdict"
    python3 - <<'END' >problem.txt 2>&1 || not_as "$(cat problem.txt)"
import re, xml.dom.minidom
page = open("page.html").read()
assert not re.search(r"(src|href)=", page) and "@" not in re.sub(r"@media", "", page)
pictures = re.findall(r"<svg.*?</svg>", page, re.S)
assert len(pictures) >= 3
for picture in pictures:
    xml.dom.minidom.parseString(picture)
assert page.count("<circle") >= 8 and "dollars of the run" in page
rows = re.findall(r"<tr.*?</tr>", page, re.S)
assert len(rows) > 10 and len({row.count("<td") for row in rows[1:]}) == 1
END
    run estimate 8b --gpus 8,16xh100 --html page.html
    expect_error 2 "--html prints one"
}

run_cases

#!/bin/bash
# SPDX-License-Identifier: MIT
# Ten questions that users of torchtitan and other trainers have asked in public, answered by estimate --machine. What a
# case checks is the answer that became known, as far as a formula can know it.
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

# 2. The least number of devices for Llama 4 Scout, with expert parallelism (torchtitan#1543).
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
    run estimate $model_8b --machine h100-sxm --ranks 8 --json
    expect_ok
    answers 'abs(j["run"]["checkpoint_bytes"] / (12 * 8.03e9) - 1) < 0.01' '1 < j["run"]["checkpoint_blocked_s"] < 3' \
        'j["run"]["checkpoint_bytes"] / 10e9 < 60' 'j["run"]["checkpoint_interval_steps"] > 1'
}

run_cases

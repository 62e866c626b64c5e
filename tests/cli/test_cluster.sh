#!/bin/bash
# SPDX-License-Identifier: MIT estimate --machine: a job on a cluster, what would be better, and the layouts of a
# search. Several cases are questions from users of other trainers.
. "$(dirname "$0")/lib.sh"

# check_json FILE 'PYTHON EXPRESSION'...: each is true for the JSON of FILE, `o`; j is its first job.
check_json() {
    python3 - "$@" <<'EOF_PYTHON' >problem.txt 2>&1 || not_as "$(cat problem.txt)"
import json, sys
o = json.load(open(sys.argv[1]))
j = o["jobs"][0]
changes = {c["change"]: c for c in j.get("changes", [])}
for expression in sys.argv[2:]:
    assert eval(expression), expression
EOF_PYTHON
}

model_8b="--config $TITAN_SOURCE/configs/llama3_8b.yaml"
model_70b="--config $TITAN_SOURCE/configs/llama3_70b.yaml"

case_a_screen_says_what_a_job_needs_and_does() {
    run estimate $model_8b --machine h100-hbm2e --stack torchtitan-compile --ranks 128 --training.local_batch_size=2
    expect_ok
    expect_out "^llama3 8B, 8.03B parameters, on 128 x h100-hbm2e \(16 nodes of 8, 3200 Gb/s a node\), stack torchtitan-compile$"
    expect_out "^layout +shards 128, 1 microbatch of 2, recompute cheap operations; 2097152 tokens a step in sequences of 8192$"
    expect_out "^fits +6[0-9]\.[0-9] of 95.0 GiB"
    expect_out "^step +2\.[456][0-9]* s \(80 %: "
    expect_out "^limited by +gemm$"
    expect_out "^best change +float8 products: \+"
    expect_out "^evidence +tt24-8b-128-compile: 128 devices, measured 2.515 s, predicted "
    expect_out "^not modelled "
}

case_a_job_need_not_be_named() {
    run estimate --machine h100-sxm --stack torchtitan-compile --ranks 512
    expect_ok
    expect_out "^llama3 8B, 8.03B parameters, on 512 x h100-sxm "
    expect_out "^layout +shards 512, 1 microbatch of 1, recompute cheap operations; 4194304 tokens a step in sequences of 8192$"
    run estimate --machine h100-sxm --ranks 8 --parallelism.tensor_parallel_degree=2 --training.local_batch_size=2
    expect_ok
    expect_out "^layout +shards 4 x TP 2, 1 microbatch of 2, "
}

# Where nothing was measured, runs with the same kind of software and device tell more than nothing. Long lines are
# wrapped.
case_evidence_is_the_nearest() {
    run estimate --machine h100-sxm --ranks 64 --json --model llama3-70b --parallelism.tensor_parallel_degree=8
    expect_ok
    check_json out 'len(j["evidence"]) == 3 and all(e["stack"].startswith("torchtitan") for e in j["evidence"])' \
        'j["evidence"][0]["id"].startswith("tt25-70b") and j["evidence"][0]["machine"] == "h100-hbm2e"'
    run estimate --machine h100-sxm --ranks 16384 --model llama3-405b --parallelism.tensor_parallel_degree=8 \
        --parallelism.pipeline_parallel_degree=16 --training.local_batch_size=16
    expect_ok
    expect_out "^evidence +no run of torchtitan-compile-2025 on h100-sxm was measured$"
    expect_out "^ +tt2[0-9]-405b-[^ ]* \(torchtitan-[a-z0-9-]+, h100-hbm2e\): [0-9]+ devices, [0-9.]+ s, predicted [-+]"
    expect_out "^ +16777216 tokens a step in sequences of 8192$"
    awk 'length($0) > 122' out >long
    [ ! -s long ] || not_as "expected no line of more than 122 columns"
    run estimate --machine h100-sxm --stack megatron-bridge --ranks 64 --model qwen3-30b-a3b --json
    check_json out '"gpt" in j["evidence"][0]["id"]' 'j["evidence"][0]["stack"] == "megatron-bridge"'
}

case_json_adds_up() {
    run estimate $model_8b --machine h100-hbm2e --stack torchtitan-compile --ranks 8,128,8192 --json --tokens 15e12
    expect_ok
    check_json out 'o["type"] == "cluster_estimate" and [x["devices"] for x in o["jobs"]] == [8, 128, 8192]' \
        'all(abs(sum(x["parts_s"].values()) - x["step_s"]) < 1e-9 for x in o["jobs"])' \
        'all(abs(sum(x["memory_bytes"][k] for k in ("state", "gathered", "activations", "logits", "communicators",
             "context", "allocator")) - x["memory_bytes"]["total"]) < 1 for x in o["jobs"])' \
        'all(x["step_80_percent_s"][0] < x["step_s"] < x["step_80_percent_s"][1] for x in o["jobs"])' \
        'abs(j["run"]["tokens"] - 15e12) < 1 and j["run"]["days"] * 86400 >= 15e12 / 8 / j["tokens_per_s_per_device"]' \
        'len(j["evidence"]) == 3' \
        'all(0.5 < x["step_80_percent_s"][0] / x["step_s"] < 0.99 for x in o["jobs"])' \
        'all(1.01 < x["step_80_percent_s"][1] / x["step_s"] < 2 for x in o["jobs"])' \
        '(lambda w: w[0] == w[1] < w[2])([round(x["step_80_percent_s"][1] / x["step_s"], 4) for x in o["jobs"]])'
}

# torchtune#2402: does it help to keep parameters? OLMo#762: FSDP is slower than copies; what does HSDP do?
case_keeping_parameters_and_copies_save_traffic() {
    run estimate $model_8b --machine a100-80 --stack torchtitan-eager --ranks 8192 --training.seq_len=2048 --json
    expect_ok
    check_json out 'j["limited_by"] == "data"' \
        'changes["keep parameters from forward to backward"]["gain"] > 0.05' \
        'changes["keep parameters from forward to backward"]["memory_bytes"]["total"] - j["memory_bytes"]["total"] > 1e10' \
        'changes["shard within a node, copies between nodes (HSDP)"]["gain"] > 0.3'
}

# torchtitan#770: how many devices does a 70B model need?
case_a_search_finds_how_many_devices_a_model_needs() {
    run estimate $model_70b --machine h100-sxm --stack torchtitan-compile --ranks 8,16,32,64 --search --json \
        --training.global_batch_size=64
    expect_ok
    check_json out '[x["devices"] for x in o["jobs"] if x["layouts"]][0] in (16, 32)' \
        'o["jobs"][0]["layouts"] == [] and o["jobs"][0]["least_bytes"] > 79.2 * 2**30' \
        'all(l["fit"] == "fits" for x in o["jobs"] for l in x["layouts"])' \
        'all(l["layout"]["micro_batch"] * l["layout"]["microbatches"] * l["layout"]["dp_shard"]
             * l["layout"]["dp_replicate"] == 64 for x in o["jobs"] for l in x["layouts"])'
    run estimate $model_70b --machine h100-sxm --ranks 8 --search
    expect_code 6
    expect_out "^nothing fits: the smallest need is 1[0-9][0-9]\.[0-9] GiB$"
}

case_layouts_that_fit_only_within_the_margin_are_tight() {
    run estimate $model_70b --machine h100-sxm --ranks 8 --search --json
    expect_code 6
    check_json out 'j["tight"] == 0 and j["fit"] == 0 and j["layouts"] == []'
    least=$(python3 -c 'import json; print(int(json.load(open("out"))["jobs"][0]["least_bytes"] / 2**30) + 2)')
    run estimate $model_70b --machine h100-sxm --ranks 8 --search --memory "${least}GiB"
    expect_ok
    expect_out "layouts can run, 0 fit with the margin, [0-9]+ are tight$"
    expect_out "^nothing fits with the margin of max\(2 GiB, 4 %\); these layouts are tight$"
    expect_out "^  1\. "
    run estimate $model_70b --machine h100-sxm --ranks 8 --search --memory "${least}GiB" --json
    expect_ok
    check_json out 'j["fit"] == 0 and j["tight"] >= len(j["layouts"]) > 0' \
        'all(l["fit"] == "tight" for l in j["layouts"])'
    run estimate $model_70b --machine h100-sxm --ranks 8 --search --memory 900GiB --json
    check_json out 'j["fit"] > 10 and all(l["fit"] == "fits" for l in j["layouts"])'
}

case_a_search_tries_the_schedules_that_the_trainer_has() {
    pipeline="--config $TITAN_SOURCE/configs/llama3_405b.yaml --machine h200 --ranks 512 --search --json
              --training.global_batch_size=128"
    run estimate $pipeline
    expect_ok
    check_json out 'any(l["layout"]["schedule"] in ("ZBVZeroBubble", "DualPipeV", "InterleavedZeroBubble")
                        for l in j["layouts"])'
    cp out torchtitan.json
    run estimate $pipeline --stack megatron-bridge
    expect_ok
    check_json out 'all(l["layout"]["schedule"] in (None, "1F1B", "Interleaved1F1B") for l in j["layouts"])'
    # the layout that the search found is predicted the same on its own
    run estimate ${pipeline/--json/} --emit titan
    expect_ok
    cp out best.yaml
    run config check --config best.yaml --no-files
    expect_ok
    run estimate --config best.yaml --machine h200 --ranks 512 --json
    expect_ok
    check_json out '(lambda l: abs(j["step_s"] / l["step_s"] - 1) < 1e-9 and j["layout"] == l["layout"])(
        json.load(open("torchtitan.json"))["jobs"][0]["layouts"][0])'
}

# torchtitan#1301: how long does a checkpoint take?
case_checkpoints_are_priced() {
    run estimate $model_8b --machine h100-sxm --ranks 8 --json --checkpoint.enable=false
    check_json out 'abs(j["run"]["checkpoint_bytes"] / 8030261248 - 12) < 0.01' \
        '1 < j["run"]["checkpoint_blocked_s"] < 3' \
        '0.9 < j["run"]["goodput"] < 1'
}

# torchtitan#394: the same job on two machines, with the peak that its MFU refers to.
case_shares_of_the_peak_name_the_peak() {
    run estimate $model_8b --machine h100-sxm --ranks 8
    expect_out "MFU [0-9.]+ % of 989 TFLOP/s$"
    run estimate $model_8b --machine a100-80 --ranks 8
    expect_out "MFU [0-9.]+ % of 312 TFLOP/s$"
}

case_a_larger_model_needs_a_smaller_limit_to_be_refused() {
    run estimate $model_8b --machine h100-sxm --ranks 8 --memory 20GiB
    expect_code 6
    expect_out "^does not fit +.* of 20.0 GiB, .* too much$"
    run estimate $model_8b --machine h100-sxm --ranks 8
    expect_ok
    expect_out "^(fits|tight) "
}

case_what_cannot_be_estimated_is_refused() {
    run estimate $model_8b --machine x100 --ranks 8
    expect_code 2
    expect_err "the machine 'x100' is not known"
    run estimate $model_8b --machine h100-sxm --stack jax --ranks 8
    expect_code 2
    expect_err "one of torchtitan-eager"
    run estimate $model_8b --search --ranks 8
    expect_code 2
    expect_err "--search needs --machine"
    run estimate $model_8b --machine h100-sxm --ranks 12 --parallelism.tensor_parallel_degree=8
    expect_code 2
    expect_err "multiply to 8, not to 12 ranks"
    run estimate $model_8b --machine h100-sxm --ranks 16 --parallelism.tensor_parallel_degree=16
    expect_code 2
    expect_err "n_kv_heads 8"
    run estimate $model_8b --machine h100-sxm --ranks 8 --tokens many
    expect_code 2
    expect_err "--tokens 'many' is not a number"
}

case_layouts_become_configurations() {
    run estimate $model_70b --machine h100-sxm --ranks 256 --search --emit titan
    expect_ok
    cp out best.yaml
    run config check --config best.yaml --no-files
    expect_ok
    run estimate --config best.yaml --machine h100-sxm --ranks 256 --json
    expect_ok
    cp out best.json
    run estimate $model_70b --machine h100-sxm --ranks 256 --search --json
    check_json out 'abs(j["layouts"][0]["step_s"] - json.load(open("best.json"))["jobs"][0]["step_s"]) < 1e-9'
    run estimate $model_70b --machine h100-sxm --ranks 512 --emit torchtitan --parallelism.tensor_parallel_degree=8 \
        --parallelism.pipeline_parallel_degree=4 --training.local_batch_size=16
    expect_ok
    cp out best.toml
    run config import best.toml
    expect_ok
    expect_out "^  local_batch_size: 16$"
    expect_out "^  global_batch_size: 256$"
    expect_out "^  tensor_parallel_degree: 8$"
    expect_out "^  pipeline_parallel_microbatch_size: 1$"
    run estimate $model_70b --machine h100-sxm --stack megatron-2023 --ranks 256 --search --emit megatron
    expect_ok
    expect_out "^--num-layers 80 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64"
    expect_out "^--micro-batch-size 1 --global-batch-size 256 --use-distributed-optimizer$"
}

case_what_cannot_be_emitted_is_refused() {
    run estimate $model_70b --machine h100-sxm --ranks 256 --emit megatron
    expect_code 2
    expect_err "cannot be written as a configuration of megatron"
    run estimate $model_70b --machine h100-sxm --ranks 256 --emit jax
    expect_code 2
    expect_err "'jax' is not a known format"
    run estimate $model_70b --machine h100-sxm --ranks 256,512 --emit titan
    expect_code 2
    expect_err "prints one configuration"
    run estimate $model_70b --machine h100-sxm --ranks 256 --emit torchtitan --model.n_layers=40
    expect_code 2
    expect_err "sizes differ from every flavor's"
}

case_machines_are_files_too() {
    run estimate --machine h100-sxm --save all.json
    expect_ok
    run estimate $model_8b --machine all.json --ranks 64 --json
    expect_ok
    cp out file.json
    run estimate $model_8b --machine h100-sxm --ranks 64 --json
    check_json out 'o == json.load(open("file.json"))'
    echo '{"type": "machine", "schema": 2, "name": "slow", "base": "h100-sxm",
           "node": {"network_bytes_per_sec": 5e9}}' >slow.json
    run estimate $model_8b --machine ./slow.json --ranks 64 --json
    expect_ok
    check_json out 'j["machine"] == "slow" and j["limited_by"] == "data" and j["evidence"] == []' \
        'j["step_s"] > 2 * json.load(open("file.json"))["jobs"][0]["step_s"]'
}

# A device of schema 1 is one measured thread.
case_machines_of_schema_1_stay_valid() {
    echo '{"type": "machine", "schema": 1, "name": "old", "sgemm_flops": 1e11, "memory_bytes_per_sec": 1e10,
           "call_sec": 2e-5, "message_sec": 1e-5, "link_bytes_per_sec": 2.5e9}' >old.json
    run estimate --machine ./old.json --stack titan --ranks 2 --json --config "$TITAN_SOURCE/configs/debug.yaml" \
        --training.mixed_precision_param=float32
    expect_ok
    check_json out 'j["machine"] == "old" and 0 < j["mfu"] < 1' \
        'abs(j["model_flops_per_s_per_device"] / j["mfu"] / 1e11 - 1) < 1e-9'
    run estimate --machine ./old.json --stack titan --ranks 2 --config "$TITAN_SOURCE/configs/debug.yaml" \
        --training.mixed_precision_param=float32
    expect_out "MFU [0-9.]+ % of 0\.1 TFLOP/s$"
}

# The memory of titan's own jobs is that of the plan, to the byte.
case_jobs_of_titan_are_planned() {
    run estimate $model_8b --machine spr-8480 --stack titan --ranks 64 --json
    expect_ok
    cp out cluster.json
    check_json out 'j["memory_planned"] and j["fit"] == "fits" and j["machine"] == "spr-8480"' \
        '5000e9 < j["mfu"] ** -1 * j["model_flops_per_s_per_device"] < 8000e9'
    run estimate $model_8b --ranks 64 --memory 238GiB --parallelism.threads_per_rank=56 --json
    expect_ok
    expect_json 'import json
row = [r for r in found["rows"] if r["policy"] == "always"][0]
m = json.load(open("cluster.json"))["jobs"][0]["memory_bytes"]
assert row["peak_bytes"] == m["state"] + m["gathered"] + m["activations"], (row["peak_bytes"], m)'
    run estimate $model_8b --machine genoa-9654 --stack titan --ranks 64 --training.mixed_precision_param=bfloat16 \
        --json
    expect_ok
    check_json out 'j["step_s"] < json.load(open("cluster.json"))["jobs"][0]["step_s"]'
}

# picture 'PYTHON EXPRESSION'...: checks that each is true for the SVG file p.svg, where `tags` are its elements and
# `titles` the parts of steps.
picture() {
    python3 - "$@" <<'EOF_PYTHON' >problem.txt 2>&1 || not_as "$(cat problem.txt)"
import sys, xml.dom.minidom
d = xml.dom.minidom.parse("p.svg")
tags = [e.tagName for e in d.getElementsByTagName("*")]
titles = [e.firstChild.data for e in d.getElementsByTagName("title")]
for expression in sys.argv[1:]:
    assert eval(expression), expression
EOF_PYTHON
}

case_pictures_show_how_jobs_scale_and_what_steps_consist_of() {
    run estimate $model_8b --machine h100-sxm --ranks 8,64,8192 --svg p.svg --json
    expect_ok
    picture 'tags.count("polyline") == 2 and tags.count("circle") == 6' \
        'sum(t.startswith("gemm ") for t in titles) == 3' 'sum(t.startswith("data exposed ") for t in titles) == 3'
    cp out scaled.json
    picture 'abs(sum(float(t.split()[-2]) for t in titles)
                 / sum(x["step_s"] for x in __import__("json").load(open("scaled.json"))["jobs"]) - 1) < 0.01'
    run estimate $model_8b --machine h100-sxm --ranks 8 --svg p.svg
    expect_ok
    picture '"polyline" not in tags and sum(t.startswith("gemm ") for t in titles) > 3'
    run estimate $model_70b --machine h100-sxm --ranks 256 --search --svg p.svg
    expect_ok
    picture 'sum(t.startswith("gemm ") for t in titles) == 10'
    # 4 ranks x 2 stages x 16 microbatches x 3 passes
    run estimate $model_70b --machine h100-sxm --ranks 128 --svg p.svg --parallelism.tensor_parallel_degree=8 \
        --parallelism.pipeline_parallel_degree=4 --training.local_batch_size=16 \
        --parallelism.pipeline_parallel_schedule=ZBVZeroBubble --activation_checkpoint.mode=none
    expect_ok
    picture 'sum(t.endswith(" ms") for t in titles) == 4 * 2 * 16 * 3' 'any(t.startswith("0F0:") for t in titles)' \
        'tags.count("svg") == 2'
    run estimate $model_8b --machine h100-sxm --ranks 8 --svg missing/p.svg
    expect_err "missing/p.svg"
    run estimate $model_8b --ranks 8 --svg p.svg
    expect_code 2
    expect_err "--svg needs --machine"
}

# The classes of ranks in a pipeline: the first one holds most microbatches.
case_every_stage_has_its_memory() {
    run estimate --config "$TITAN_SOURCE/configs/llama3_405b.yaml" --machine h100-sxm --ranks 1024 --json \
        --parallelism.tensor_parallel_degree=8 --parallelism.pipeline_parallel_degree=8 --training.local_batch_size=16
    expect_ok
    check_json out 'len(j["stage_bytes"]) == 8 and max(j["stage_bytes"]) == j["memory_bytes"]["total"]' \
        'j["stage_bytes"][1] > j["stage_bytes"][6] and j["memory_bytes"]["stage"] == 0'
}

case_schedules_of_pipelines_differ_in_time_and_memory() {
    for name in 1F1B GPipe Interleaved1F1B ZBVZeroBubble; do
        run estimate --config "$TITAN_SOURCE/configs/llama3_70b.yaml" --machine h100-sxm --ranks 128 --json \
            --parallelism.tensor_parallel_degree=8 --parallelism.pipeline_parallel_degree=4 \
            --training.local_batch_size=16 --parallelism.pipeline_parallel_schedule=$name
        mv out $name.json
    done
    cp 1F1B.json out
    check_json out '(lambda b: b["ZBVZeroBubble"] < b["Interleaved1F1B"] < 0.75 * b["1F1B"])(
             {n: json.load(open(n + ".json"))["jobs"][0]["parts_s"]["bubble"]
              for n in ("1F1B", "Interleaved1F1B", "ZBVZeroBubble")})' \
        'json.load(open("GPipe.json"))["jobs"][0]["memory_bytes"]["activations"] > 2 * j["memory_bytes"]["activations"]' \
        'json.load(open("ZBVZeroBubble.json"))["jobs"][0]["stage_bytes"][2] > j["stage_bytes"][2]'
}

case_stacks_are_files_too() {
    run estimate --machine h100-sxm --stack torchtitan-compile --save-stack all.json
    expect_ok
    run estimate $model_8b --machine h100-sxm --stack all.json --ranks 64 --json
    expect_ok
    cp out file.json
    run estimate $model_8b --machine h100-sxm --stack torchtitan-compile --ranks 64 --json
    check_json out 'j["step_s"] == json.load(open("file.json"))["jobs"][0]["step_s"]'
    echo '{"type": "stack", "schema": 2, "name": "slow", "base": "torchtitan-compile",
           "numbers": {"gemm_share": 0.4}}' \
        >slow.json
    run estimate $model_8b --machine h100-sxm --stack ./slow.json --ranks 64 --json
    expect_ok
    check_json out 'j["stack"] == "slow" and j["step_s"] > 1.3 * json.load(open("file.json"))["jobs"][0]["step_s"]'
    echo '{"type": "stack", "schema": 2, "name": "x", "base": "colm", "numbers": {"gem_share": 1}}' >bad.json
    run estimate $model_8b --machine h100-sxm --stack bad.json --ranks 8
    expect_code 3
    expect_err "bad.json: gem_share is not a number of a stack"
    expect_err "did you mean gemm_share"
    echo '{"type": "stack", "schema": 2, "name": "x", "numbers": {"gemm_share": 1}}' >bad.json
    run estimate $model_8b --machine h100-sxm --stack bad.json --ranks 8
    expect_code 3
    expect_err "is missing"
}

# log DEVICES GB/S: what all_gather_perf prints on so many devices
log() {
    for ((i = 0; i < $1; i++)); do echo "#  Rank $(printf %2d "$i") Group  0 Pid 1 on host device  0 [0x00]"; done
    echo "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    echo "     1048576         32768     float    none      -1    40.00   26.21   22.94      0"
    echo "  4294967296     134217728     float    none      -1  10000.0   429.5   $2      0"
    echo "# Avg bus bandwidth    : 1"
}

case_logs_of_links_replace_rates() {
    log 8 225.0 >near.log
    log 32 40.0 >far.log
    run estimate --machine h100-sxm --nccl near.log --nccl far.log --save mine.json
    expect_ok
    python3 -c 'import json
m = json.load(open("mine.json"))
assert m["levels"][0]["share"] == 0.5 and m["levels"][1]["share"] == 0.1, m["levels"]
near, far = m["levels"][1]["ramp"]
assert near[0] == 1048576 and abs(near[1] - 22.94 / 400) < 1e-9 and far[0] == 4294967296, m["levels"]
assert m["levels"][1]["ramp_devices"] == 32 and m["levels"][0]["ramp_devices"] == 8, m["levels"]
assert m["origin"]["levels.1.share"] == "measured: nccl-tests"' || not_as "mine.json"
}

# machine 'PYTHON EXPRESSION'...: checks that each is true, where `near` and `far` are the levels of mine.json.
machine() {
    python3 - "$@" <<'EOF_PYTHON' >problem.txt 2>&1 || not_as "$(cat problem.txt)"
import json, sys
near, far = json.load(open("mine.json"))["levels"]
for expression in sys.argv[1:]:
    assert eval(expression), expression
EOF_PYTHON
}

header="#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw"

# Logs as users have them: without ranks, from several programs, from old versions, with a launcher's prefixes.
case_logs_of_links_have_many_forms() {
    { # 16 devices, as the ratio of the two bandwidths says
        echo "$header"
        echo " 8388608 131072 float none -1 166.6 50.34 47.19 N/A 164.1 51.11 47.9"
        echo " 268435456 4194304 float none -1 1522.1 176.36 165.34 N/A 1518.7 176.76 165.7"
    } >gather.log
    run estimate --machine h100-sxm --nccl gather.log --save mine.json
    expect_ok
    machine 'far["ramp_devices"] == 16 and abs(far["share"] - 165.34 / 400) < 1e-9 and "ramp" not in near'
    { # a sum above the rate of the links: the network adds
        echo "# Collective test starting: all_reduce_perf"
        echo "$header"
        echo " 8589934592 2147483648 float sum -1 34468 249.21 467.28 0 34525 248.80 466.5"
    } >sum.log
    run estimate --machine h100-sxm --nccl sum.log --save mine.json
    expect_ok
    machine 'far["share"] == 1 and "ramp" not in far'
    cat gather.log sum.log >both.log
    run estimate --machine h100-sxm --nccl both.log --save mine.json
    expect_ok
    machine 'abs(far["share"] - 165.34 / 400) < 1e-9'
    {
        for i in 0 1 2 3 4 5 6 7; do echo "[1,$i]<stdout>:#   Rank  $i Pid 1 on one device  $i [0x00] A100"; done
        echo "[1,0]<stdout>:#  size  count  type  redop  time  algbw  busbw  error  time  algbw  busbw  error"
        echo "[1,0]<stdout>: 1073741824 268435456 float sum 8070.6 133.04 232.83 1e-06 8064.4 133.1 233.0 1e-06"
    } >old.log
    run estimate --machine a100-40 --nccl old.log --save mine.json
    expect_ok
    machine 'abs(near["share"] - 232.83 / 300) < 1e-9 and far["share"] == 0.91'
    {
        echo "srun ./build/alltoall_perf -b 1G -e 1G"
        for ((i = 0; i < 16; i++)); do echo "#  Rank $i Group  0 Pid 1 on node$((i / 8)) device  $((i % 8))"; done
        echo "$header"
        echo " 1073741824 16777216 float none -1 15000.0 71.58 67.11 0 N/A N/A N/A"
    } >exchange.log
    run estimate --machine h100-sxm --nccl exchange.log --save mine.json
    expect_ok
    machine 'abs(far["exchange_share"] - 67.11 * 8 / 15 * 8 / 400) < 1e-9 and far["share"] == 0.91'
    qwen="--model qwen3-30b-a3b --ranks 64 --parallelism.expert_parallel_degree=16 --training.seq_len=4096 --json"
    run estimate --machine h100-sxm $qwen
    cp out plain.json
    run estimate --machine ./mine.json $qwen
    check_json out 'j["parts_s"]["expert"] > 1.1 * json.load(open("plain.json"))["jobs"][0]["parts_s"]["expert"]'
}

case_logs_of_links_that_cannot_be_used_are_refused() {
    {
        echo "sendrecv_perf"
        echo "$header"
        echo "  1073741824      16777216     float    sum      -1   15000.0   71.58   71.58"
    } >other.log
    run estimate --machine h100-sxm --nccl other.log --save mine.json
    expect_code 3
    expect_err "other.log has no results of nccl-tests: wanted a table with columns size, algbw and busbw"
    sed 's/sendrecv/all_gather/; s/71.58/880.0/; s/71.58/770.0/' other.log >fast.log
    run estimate --machine a100-80 --nccl fast.log --save mine.json
    expect_code 3
    expect_err "fast.log: 770 GB/s are more than the 300 GB/s that the links of a device of a100-80 can carry"
    for lacks in algbw busbw; do
        sed "s/$lacks//g" fast.log >lacks.log
        run estimate --machine h100-sxm --nccl lacks.log --save mine.json
        expect_code 3
        expect_err "lacks.log:2: the header of a table has no column $lacks"
    done
    # a row that lacks a column, and words where numbers belong
    for row in "1073741824 1 1" "1073741824 1 inf 2" "1073741824 1 2 nan"; do
        printf 'all_gather_perf\n# size time busbw algbw\n%s\n' "$row" >short.log
        run estimate --machine h100-sxm --nccl short.log --save mine.json
        expect_code 3
        expect_err "short.log has no results of nccl-tests"
    done
}

# Hosts are told apart however many they are: 128 of one device each, so that every node has one.
case_logs_of_links_may_have_many_hosts() {
    {
        echo "all_gather_perf"
        for ((i = 0; i < 128; i++)); do
            echo "#  Rank $i Group  0 Pid 1 on $(printf 'a%.0s' {1..70})$i device  0 [0x00]"
        done
        echo "# size count type redop root time algbw busbw"
        echo "4294967296 1 float none -1 1.0 40.3 40.0"
    } >many.log
    run estimate --machine h100-sxm --nccl many.log --save mine.json
    expect_ok
    machine 'abs(far["share"] - 40 / (400 / 8)) < 1e-9'
}

# A small message takes the measured time, and more members take longer.
case_ramps_replace_shares_and_latencies() {
    echo '{"type": "machine", "schema": 2, "name": "ramp", "base": "h100-sxm", "levels": [{}, {"ramp_devices": 32,
           "ramp": [[1e6, 0.01], [1e8, 0.3], [4e9, 0.91]]}]}' >ramp.json
    run estimate $model_8b --machine h100-sxm --ranks 32 --training.seq_len=1024 --json
    expect_ok
    cp out plain.json
    run estimate $model_8b --machine ./ramp.json --ranks 32,4096 --training.seq_len=1024 --json
    expect_ok
    check_json out 'j["parts_s"]["data"] > 1.2 * json.load(open("plain.json"))["jobs"][0]["parts_s"]["data"]' \
        'o["jobs"][1]["parts_s"]["data"] > 1.2 * j["parts_s"]["data"]'
    run estimate --machine ./ramp.json --save again.json
    expect_ok
    run estimate $model_8b --machine ./again.json --ranks 32 --training.seq_len=1024 --json
    expect_ok
    check_json out 'j["step_s"] > json.load(open("plain.json"))["jobs"][0]["step_s"]'
    echo '{"type": "machine", "schema": 2, "name": "x", "base": "h100-sxm", "levels": [{"ramp": [[1, 2], [1, 3]]}]}' \
        >bad.json
    run estimate --machine bad.json --ranks 8
    expect_code 3
    expect_err "levels.0.ramp has to be a list"
    echo '{"type": "machine", "schema": 2, "name": "x", "base": "h100-sxm", "levels": [{"ramp": [[1, 0.2]]}]}' >bad.json
    run estimate --machine bad.json --ranks 8
    expect_code 3
    expect_err "levels.0.ramp_devices is missing"
}

case_bad_machine_files_are_refused() {
    echo '{"type": "machine", "schema": 2, "name": "x", "base": "h100-sxm", "node": {"device": 8}}' >bad.json
    run estimate --machine bad.json --ranks 8
    expect_code 3
    expect_err "bad.json: node.device is not a number of a machine"
    expect_err "did you mean node.devices"
    echo '{"type": "machine", "schema": 2, "name": "x", "node": {"devices": 8}}' >bad.json
    run estimate --machine bad.json --ranks 8
    expect_code 3
    expect_err "bad.json: device.memory_bytes is missing"
    echo '{"type": "machine", "schema": 2, "name": "x", "base": "h100-sxm", "levels": [{"share": 0}]}' >bad.json
    run estimate --machine bad.json --ranks 8
    expect_code 3
    expect_err "bad.json: levels.0.share has to be above 0"
    echo '{"type": "machine", "schema": 3, "name": "x"}' >bad.json
    run estimate --machine bad.json --ranks 8
    expect_code 3
    expect_err "wanted a machine file of schema 1 or 2"
    echo '{"type": "machine", "schema": 1, "name": "x"}' >bad.json
    run estimate --machine bad.json --ranks 8
    expect_code 3
    expect_err "bad.json: missing key .sgemm_flops."
    run estimate --machine h100-sxm --ranks 8 --nccl bad.json
    expect_code 3
    expect_err "bad.json has no results of nccl-tests"
    # nothing in a file is skipped, and nothing is counted twice
    while IFS='|' read -r part message; do
        echo "{\"type\": \"machine\", \"schema\": 2, \"name\": \"x\", \"base\": \"h100-sxm\", $part}" >bad.json
        run estimate --machine bad.json --ranks 8
        expect_code 3
        expect_err "bad.json:? ?$message"
    done <<'END'
"nodes": {"devices": 4}|.*'nodes' does not belong in such a file
"levels": [{"share": "0.5"}]|levels.0.share has to be a number
"levels": [{"share": 1.5}]|levels.0.share has to be a number from 0 to 1
"levels": [{"ramp": "steep"}]|levels.0.ramp has to be a list
"levels": [{}, {"ramp": [[1, 2]], "ramp_devices": 8}]|levels.1.ramp has to be a list
"levels": [{}, {}, {"ramp": [[1, 0.5]]}]|levels.2.ramp.* is not a number of a machine
"levels": {"ramp": [[1, 0.5]]}|levels.ramp.* is not a number of a machine
"levels": [{"exchange_share": 7}]|levels.0.exchange_share is not a number of a machine
"node": {"devices": 0.5}|node.devices has to be at least 1
"device": {"memory_bytes": 1e40}|device.memory_bytes has to be a number from 0 to 1e.30
"node": {"devices": 4, "devices": 8}|1:.*duplicate key
"node": {"devices": 4,}|1:.*a key in quotes was expected
"base": 5|.*duplicate key
END
    echo '{"type": "stack", "schema": 2, "name": "x", "base": "colm", "number": {"gemm_share": 0.1}}' >bad.json
    run estimate $model_8b --machine h100-sxm --stack bad.json --ranks 8
    expect_code 3
    expect_err "'number' does not belong in such a file"
    echo '{"type": "stack", "schema": 2, "name": "x", "base": "colm", "numbers": [1]}' >bad.json
    run estimate $model_8b --machine h100-sxm --stack bad.json --ranks 8
    expect_code 3
    expect_err "numbers has to be an object"
}

# A config.json with only four sizes, of classes that no family reads (tests/unit/test_cluster.c has the others): the
# other sizes get the defaults of transformers 5.24. The rows are model_type, hidden_size, layers, heads, vocab_size,
# and the parameters of the model that transformers makes.
case_sizes_that_a_file_lacks_are_those_of_its_class() {
    while read -r type dim layers heads vocab parameters; do
        echo "{\"model_type\": \"$type\", \"hidden_size\": $dim, \"num_hidden_layers\": $layers,
               \"num_attention_heads\": $heads, \"vocab_size\": $vocab}" >bare.json
        run estimate --model ./bare.json --machine b300 --ranks 64 --json --training.seq_len=1024
        check_json out "abs(j['parameters'] / $parameters - 1) < 0.002"
    done <<'END'
arcee 2560 32 32 32000 4022766080
bloom 64 2 8 250880 16156544
falcon 4544 32 71 65024 6921720704
glm4_moe 4096 46 96 151552 103481200640
gpt_bigcode 768 12 12 50257 111446784
gptj 4096 28 16 50400 6050882784
llama4_text 5120 48 40 202048 107769861120
mpt 2048 24 16 50368 1311213568
olmo 4096 32 32 50304 6888095744
opt 768 12 12 50272 125239296
phi 2048 24 32 51200 1418270720
phimoe 4096 32 32 32064 41872793600
stablelm 2560 32 32 50304 2795443200
END
}

run_cases

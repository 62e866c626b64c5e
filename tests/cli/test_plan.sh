#!/bin/bash
# SPDX-License-Identifier: MIT
# plan, estimate, tune and launch: what they print, and that runs do the same.
. "$(dirname "$0")/lib.sh"

# check_json FILE 'PYTHON EXPRESSION'...: checks that each is true, where `o` is the JSON of FILE. `step(FILE, n)` is a
# record of metrics.jsonl.
check_json() {
    python3 - "$@" <<'EOF_PYTHON' >problem.txt 2>&1 || not_as "$(cat problem.txt)"
import json, sys
def step(path, n):
    found = None
    for line in open(path):
        record = json.loads(line)
        if record["type"] == "step" and record["step"] == n:
            found = record
    return found
def run(path):
    return json.loads(open(path).readline())
def rows(ranks):
    return {r["policy"]: r for r in o["rows"] if r["ranks"] == ranks}
o = json.load(open(sys.argv[1]))
for expression in sys.argv[2:]:
    assert eval(expression), expression
EOF_PYTHON
}

# --- plan ---

case_plan_shows_the_step() {
    make_corpus
    run plan $tiny --ranks 2 --validation.seq_len=null
    expect_ok
    expect_out "^mesh +2 ranks = dp_replicate 1 x dp_shard 2; rank 0"
    expect_out "^  layers.0 .. layers.1 \(2 alike\) .*resharded$"
    expect_out "^  norm\+output .*kept$"
    expect_out "^  unshard +tok_embeddings +2 "
    expect_out "^  reduce-scatter "
    expect_out "memory of the rank at its peak, run "
    expect_out "^  activations "
    expect_out "step +[0-9.]+ s"
    refuse_err .
    run plan $tiny --ranks 2 --instructions
    expect_out "^ +0 .* unshard tok_embeddings, sends "
    expect_out " optimizer norm\+output$"
}

case_plan_says_where_a_rank_is() {
    make_corpus
    run plan $tiny --ranks 8 --rank 5 --parallelism.context_parallel_degree=2 --training.global_batch_size=8
    expect_ok
    expect_out "^mesh +8 ranks = dp_replicate 1 x dp_shard 4 x cp 2; rank 5 is at dp_shard 2, cp 1, "
    run plan $tiny --ranks 1
    expect_ok
    expect_out "^mesh +1 rank = dp_replicate 1 x dp_shard 1; rank 0, "
}

case_plan_of_one_rank_exchanges_nothing() {
    make_corpus
    run plan $tiny --ranks 1 --json
    expect_ok
    check_json out 'o["payload_bytes_per_step"] == 0' 'o["collectives"] == []' \
        'o["units"][0]["after_forward"] == "whole"'
}

case_bfloat16_computes_light_operations_again_by_default() {
    make_corpus
    bf16="--training.mixed_precision_param=bfloat16" mode=--activation_checkpoint.mode
    n=0
    for options in "$bf16" "$bf16 $mode=selective --activation_checkpoint.selective_ac_option=op" "$bf16 $mode=none" \
        "" "$mode=none"; do
        run plan $tiny --ranks 1 --json $options
        expect_ok
        cp out plan$n.json
        n=$((n + 1))
    done
    check_json plan0.json 'o["memory"] == json.load(open("plan1.json"))["memory"]' '"recompute op" in o["policies"]' \
        'o["memory"]["peak_bytes"] < json.load(open("plan2.json"))["memory"]["peak_bytes"]'
    check_json plan3.json 'o["memory"] == json.load(open("plan4.json"))["memory"]' '"recompute none" in o["policies"]'
}

# Every file and its bytes, for several meshes and policies, of a regular save and of one of the model only.
case_plan_of_a_checkpoint_is_what_a_save_writes() {
    make_corpus
    # tensors from 1 MiB on are cut over replicas, others are assigned whole; here the embeddings are cut
    options="$tiny --model.dim=256 --model.ffn_dim=1024 --training.local_batch_size=1 --training.global_batch_size=12 --training.steps=2
        --checkpoint.interval=1 --checkpoint.last_save_model_only --checkpoint.export_dtype=bfloat16"
    while read -r ranks replicas policy filter dtype; do
        flags="$options --parallelism.data_parallel_replicate_degree=$replicas --checkpoint.save_policy=$policy
            --checkpoint.filter=$filter --training.dtype=$dtype --training.mixed_precision_param=$dtype"
        run plan $flags --ranks "$ranks" --json
        expect_ok
        python3 - "$policy" "$filter" <<'EOF_PYTHON' >wanted
import json, sys
o = json.load(open("out"))["checkpoint"]
for save in [o, o["last"]]:
    chosen = [p for p in save["policies"] if p["configured"]]
    assert len(chosen) == 1 and chosen[0]["save_policy"] == sys.argv[1], chosen
    assert chosen[0]["filter"] == (sys.argv[2] if sys.argv[1] == "filtered" else None), chosen
    files = [f for w in chosen[0]["per_writer"] for f in w["files"]]
    assert len(files) == chosen[0]["files"] and len(chosen[0]["per_writer"]) == chosen[0]["writers"]
    assert sum(f["bytes"] for f in files) == chosen[0]["bytes"]
    for f in sorted(files, key=lambda f: f["path"]):
        print("step-%d/%s" % (save["step"], f["path"]), f["bytes"])
EOF_PYTHON
        [ -s wanted ] || not_as "plan --json lists no files"
        run_ranks "$ranks" train $flags --checkpoint.enable --job.dump_folder=run --overwrite
        expect_ok
        (cd run/checkpoint && find . -name '*.safetensors' -printf '%P %s\n') | LC_ALL=C sort >found
        expect_same wanted found
    done < <(sweep <<'EOF_MATRIX'
1 1 all replica0 float32
3 1 filtered rank0 float32
2 2 all replica0 float32
4 2 all replica0 float32
4 2 filtered replica0 float32
4 2 filtered rank0 float32
4 2 all replica0 bfloat16
EOF_MATRIX
    )
    run plan $options --ranks 2 --parallelism.data_parallel_replicate_degree=2 --checkpoint
    expect_ok
    expect_out "^a checkpoint of step 1, besides manifest.json and assets$"
    expect_out "^  all +2 +4 .*\(configured\)$"
    expect_out "^a checkpoint of step 2 \(the last one, the model only\)"
}

case_plan_json_adds_up() {
    make_corpus
    run plan $tiny --ranks 4 --training.global_batch_size=16 --json
    expect_ok
    check_json out 'o["payload_bytes_per_step"] == sum(c["count"] * c["payload_bytes"] for c in o["collectives"])' \
        'sum(u["parameters"] for u in o["units"]) == o["model"]["parameters"]' \
        'sum(o["memory"]["by_kind"].values()) == o["memory"]["peak_bytes"]' \
        'max(o["memory"]["timeline"]) <= o["memory"]["peak_bytes"]' \
        'o["gathers"] == sum(c["count"] for c in o["collectives"] if c["op"] == "unshard")' \
        'all(c["payload_bytes"] == 3 * c["shard_bytes"] for c in o["collectives"])' \
        'o["predicted"]["step_s"] >= o["predicted"]["compute_s"] > 0' \
        'len(o["memory"]["timeline"]) == o["n_instructions"]' 'o["buckets"]' 'o["memory"]["peak_instruction"]'
}

case_plan_is_what_a_run_counts() {
    make_corpus
    while read -r ranks dtype; do
        flags="$tiny --training.global_batch_size=8 --parallelism.threads_per_rank=1 --training.dtype=$dtype
            --training.mixed_precision_param=$dtype"
        run plan $flags --ranks $ranks --json
        expect_ok
        mv out plan.json
        if [ $ranks = 1 ]; then
            run train $flags --overwrite
        else
            run_ranks $ranks train $flags --overwrite
        fi
        expect_ok
        check_json plan.json 'o["payload_bytes_per_step"] == step("run/metrics.jsonl", 3)["comm_bytes"]' \
            'o["memory"]["peak_bytes"] == run("run/metrics.jsonl")["memory_predicted_bytes"]'
    done < <(sweep <<'EOF_MATRIX'
1 float32
2 float32
4 float32
1 bfloat16
2 bfloat16
EOF_MATRIX
    )
}

# Every rank plans its own program. The run reports the memory of the largest, and the traffic of rank 0.
case_plan_of_a_pipeline_is_what_a_run_counts() {
    make_corpus
    while read -r ranks degree layers largest; do
        flags="$tiny --model.n_layers=$layers --training.local_batch_size=4 --training.global_batch_size=8
            --parallelism.threads_per_rank=1 --parallelism.pipeline_parallel_degree=$degree"
        for ((rank = 0; rank < ranks; rank++)); do
            run plan $flags --ranks $ranks --rank $rank --json --instructions
            expect_ok
            mv out plan$rank.json
        done
        run estimate $flags --ranks $ranks --json
        expect_ok
        mv out estimate.json
        run_ranks $ranks train $flags --overwrite
        expect_ok
        expect_err "^  predicts .* on rank [0-9]+ \(stage [0-9]+\) at its peak .*, pipeline idle [0-9]+ %"
        all="[json.load(open('plan%d.json' % r)) for r in range($ranks)]"
        needs="run('run/metrics.jsonl')['memory_predicted_bytes']"
        check_json plan0.json 'o["payload_bytes_per_step"] == step("run/metrics.jsonl", 3)["comm_bytes"]' \
            "max(p['memory']['peak_bytes'] for p in $all) == $needs" \
            "max(p['memory']['peak_bytes'] for p in $all) > min(p['memory']['peak_bytes'] for p in $all)" \
            "o['pipeline']['largest_peak_bytes'] == $needs" "o['pipeline']['largest_rank'] == $largest" \
            "$all[o['pipeline']['largest_rank']]['memory']['peak_bytes'] == $needs" \
            "o['pipeline']['payload_bytes_all'] == sum(p['payload_bytes_per_step'] for p in $all)" \
            "o['pipeline']['largest_payload_bytes'] == max(p['payload_bytes_per_step'] for p in $all)" \
            "all(p['pipeline'] == o['pipeline'] for p in $all)" \
            '0 < o["pipeline"]["bubble_share"] < 1' 'o["predicted"]["step_s"] >= o["pipeline"]["run_s"]'
        check_json estimate.json "rows($ranks)['default']['peak_bytes'] == $needs" \
            "rows($ranks)['default']['payload_bytes_all'] == sum(p['payload_bytes_per_step'] for p in $all)"
    done <<'EOF_MATRIX'
2 2 2 1
4 4 4 0
4 2 4 2
EOF_MATRIX
}

case_plan_shows_and_draws_a_pipeline() {
    make_corpus
    run plan $tiny --ranks 4 --rank 3 --parallelism.pipeline_parallel_degree=2 --svg plan.svg
    expect_ok
    expect_out "^mesh +4 ranks = pipeline 2 x dp_replicate 1 x dp_shard 2; rank 3"
    expect_out "^pipeline +1F1B, 1 run a step, each of 2 microbatches through 2 stages; shown: rank 3 \(stage 1\)$"
    expect_out "^ +stage 0 on pipeline rank 0: embeddings layer 0$"
    expect_out "^ +stage 1 on pipeline rank 1: layer 1 norm output$"
    expect_out "^  receive +stage 1 from stage 0 +2 "
    expect_out "^  send gradient +stage 1 to stage 0 +2 "
    python3 - <<'EOF' >problem.txt 2>&1 || not_as "plan.svg: $(cat problem.txt)"
import xml.etree.ElementTree as tree
root = tree.parse("plan.svg").getroot()
words = " ".join(t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}text"))
for word in ("Memory of the rank", "between stages", "Pipeline 1F1B: 2 ranks, 2 stages, 2 microbatches", "bubble"):
    assert word in words, word
EOF
}

# Validation and gathered saves between the steps send bytes too, which must not be counted as a step's.
case_bytes_between_steps_are_not_counted() {
    make_corpus
    run plan $tiny --ranks 2 --json
    mv out plan.json
    run_ranks 2 train $tiny --checkpoint.enable --checkpoint.interval=1 --checkpoint.save_policy=filtered \
        --checkpoint.filter=rank0 --validation.enable --validation.freq=1 --validation.dataset=text \
        --validation.dataset_path=corpus.txt --validation.local_batch_size=2 --validation.seq_len=16
    expect_ok
    for step in 1 2 3; do
        check_json plan.json "o['payload_bytes_per_step'] == step('run/metrics.jsonl', $step)['comm_bytes']"
    done
}

case_plan_draws_an_svg() {
    make_corpus
    run plan $tiny --ranks 2 --svg plan.svg
    expect_ok
    python3 - <<'EOF' >problem.txt 2>&1 || not_as "plan.svg: $(cat problem.txt)"
import xml.etree.ElementTree as tree
root = tree.parse("plan.svg").getroot()
words = " ".join(t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}text"))
for word in ("Memory of the rank", "activations", "unshard", "reduce-scatter", "backward", "peak"):
    assert word in words, word
EOF
    run plan $tiny --ranks 2 --svg missing/plan.svg
    expect_error 3 "missing/plan.svg"
}

case_plan_wrong_usage() {
    run plan --ranks 0
    expect_error 2 "--ranks '0' is not a whole number from 1"
    run plan --ranks 2 --rank 2
    expect_error 2 "--rank 2 of 2 ranks"
    run plan --ranks two
    expect_error 2 "--ranks 'two'"
    run plan words
    expect_error 2 "unexpected argument 'words'"
    run plan --ranks 3 --training.local_batch_size=4 --training.global_batch_size=8
    expect_error 2 "not a multiple" "start 1 or 2 ranks"
}

# --- estimate ---

case_estimate_has_a_row_per_policy() {
    make_corpus
    run estimate $tiny --ranks 1,2,4 --training.global_batch_size=8 --validation.seq_len=null
    expect_ok
    for ranks in 1 2 4; do
        for policy in always default never; do
            expect_out "^ +$ranks $policy +.* (yes|no)"
        done
    done
    refuse_err .
}

# The planned scheduler keeps to the memory limit of a rank. For a job on other hosts, this host's memory divided by all
# ranks is not the limit.
case_plan_and_estimate_make_the_same_plan() {
    options="--config $TITAN_SOURCE/configs/llama3_8b.yaml --ranks 64 --parallelism.fsdp_engine=planned
        --parallelism.threads_per_rank=1 --model.n_layers=2 --model.dim=512 --model.vocab_size=8192 --json"
    run plan $options --parallelism.fsdp_reshard_after_forward=never
    expect_ok
    mv out plan.json
    run estimate $options
    expect_ok
    check_json out \
        'json.load(open("plan.json"))["payload_bytes_per_step"] == rows(64)["never"]["payload_bytes_per_step"]' \
        'json.load(open("plan.json"))["memory"]["peak_bytes"] == rows(64)["never"]["peak_bytes"]'
}

# At every limit within which `default` fits, `auto` also fits, and its prediction is no slower.
case_auto_reshard_is_no_worse_than_default() {
    options="--config $TITAN_SOURCE/configs/debug.yaml --ranks 2 --parallelism.fsdp_engine=planned --json
        --training.local_batch_size=1 --training.seq_len=64"
    run plan $options --parallelism.memory_limit=1
    expect_ok
    least=$(python3 -c 'import json; print(json.load(open("out"))["memory"]["peak_bytes"])')
    for more in $(printf '%s\n' 0 5241168 3000000 9500000 20000000 | sweep); do
        limit=$((least + more))
        run plan $options --parallelism.memory_limit=$limit
        mv out default.json
        run plan $options --parallelism.memory_limit=$limit --parallelism.fsdp_reshard_after_forward=auto
        check_json out "o['memory']['peak_bytes'] <= $limit" \
            'o["predicted"]["step_s"] <= 1.001 * json.load(open("default.json"))["predicted"]["step_s"]'
    done
}

# The choice of `auto` is printed, and gets no second row.
case_estimate_says_what_auto_sync_becomes() {
    make_corpus
    run plan $tiny --ranks 2 --training.gradient_sync=auto
    expect_out "gradient sync every_microbatch"
    expect_out "^reduces   gradients after each microbatch: there is one microbatch \(gradient_sync auto\)$"
    run plan $tiny --ranks 2 --training.gradient_sync=auto --parallelism.reduction_order=fast --json \
        --training.global_batch_size=16
    check_json out '"gradient sync last_microbatch" in o["policies"]'
    run estimate $tiny --ranks 2 --training.gradient_sync=auto --training.global_batch_size=16 --json
    check_json out 'len(rows(2)) == 9' '{"never", "never, last_microbatch"} < set(rows(2))' \
        'rows(2)["never"]["microbatches"] > 1' \
        'all(("never, " + s in rows(2)) != (rows(2)["never"]["gradient_sync"] == s) for s in ["every_microbatch", "every_run"])' \
        '"predicted" in rows(2)["never"]["gradient_sync_choice"]' \
        '"gradient_sync_choice" not in rows(2)["never, last_microbatch"]'
    run estimate $tiny --ranks 2 --training.gradient_sync=auto --training.global_batch_size=16 \
        --parallelism.reduction_order=fast --json
    check_json out 'rows(2)["never"]["gradient_sync"] == "last_microbatch"' '"never, every_microbatch" in rows(2)'
}

# must_name PAGE...: the manual pages name every key of the JSON in the file out.
must_name() {
    python3 - "$@" <<'EOF_PYTHON' >problem.txt 2>&1 || not_as "$(cat problem.txt)"
import json, sys
def keys(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from keys(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from keys(inner)
pages = "".join(open(path).read().replace("\\", "") for path in sys.argv[1:])
missing = sorted({key for key in keys(json.load(open("out"))) if f"_{key}_" not in pages})
assert not missing, f"{sys.argv[1:]} do not name {missing}"
EOF_PYTHON
}

case_pages_name_every_key() {
    make_corpus
    run plan $tiny --ranks 2 --parallelism.data_parallel_replicate_degree=2 --instructions --json
    must_name "$TITAN_SOURCE/man/titan-plan.1.scd"
    run estimate $tiny --ranks 2,3 --json
    must_name "$TITAN_SOURCE/man/titan-estimate.1.scd" "$TITAN_SOURCE/man/titan-plan.1.scd"
    run tune $tiny --over engine,reshard --steps 1 --rounds 1 --json
    must_name "$TITAN_SOURCE/man/titan-tune.1.scd"
    run plan $experts --ranks 2 --json
    must_name "$TITAN_SOURCE/man/titan-plan.1.scd"
    run estimate $experts --ranks 2 --json
    must_name "$TITAN_SOURCE/man/titan-estimate.1.scd" "$TITAN_SOURCE/man/titan-plan.1.scd"
}

case_estimate_orders_the_policies() {
    run estimate --config "$TITAN_SOURCE/configs/debug.yaml" --ranks 2 --model.dim=512 --json
    expect_ok
    check_json out 'rows(2)["never"]["peak_bytes"] > rows(2)["default"]["peak_bytes"]' \
        'rows(2)["default"]["peak_bytes"] * 1.01 >= rows(2)["always"]["peak_bytes"]' \
        'rows(2)["never"]["payload_bytes_per_step"] < rows(2)["default"]["payload_bytes_per_step"]' \
        'rows(2)["default"]["payload_bytes_per_step"] < rows(2)["always"]["payload_bytes_per_step"]' \
        'all(sum(r["by_kind"].values()) == r["resident_bytes"] for r in o["rows"])' \
        'all(r["peak_bytes"] + r["libraries_bytes"] == r["resident_bytes"] for r in o["rows"])'
}

# While the weights are made, `full` keeps the whole model in memory in addition to the shards, and `layerwise` the
# largest unit.
case_estimate_knows_the_peak_of_each_init() {
    make_corpus
    run plan $tiny --ranks 2 --json
    expect_ok
    mv out plan.json
    run estimate $tiny --ranks 2 --json
    expect_ok
    check_json out \
        'rows(2)["always"]["init_peak_bytes"]["meta"] < rows(2)["always"]["peak_bytes"]' \
        'rows(2)["always"]["init_peak_bytes"] == rows(2)["never"]["init_peak_bytes"]' \
        'all(4 * json.load(open("plan.json"))["model"]["parameters"] == i["full"] - i["meta"] for i in [rows(2)["always"]["init_peak_bytes"]])' \
        'all(4 * max(u["parameters"] for u in json.load(open("plan.json"))["units"]) == i["layerwise"] - i["meta"] for i in [rows(2)["always"]["init_peak_bytes"]])'
    run estimate $tiny --ranks 2
    expect_out "^ +ranks +meta +full +layerwise"
}

case_estimate_says_what_fits() {
    run estimate --config "$TITAN_SOURCE/configs/llama3_8b.yaml" --activation_checkpoint.mode=none --ranks 8,64 \
        --memory 80GiB --json
    expect_ok
    check_json out 'not rows(8)["always"]["fits"]' 'rows(64)["always"]["fits"]' 'not rows(64)["never"]["fits"]'
    run estimate --config "$TITAN_SOURCE/configs/debug.yaml" --ranks 2 --memory 1MiB
    expect_ok
    refuse_out " yes"
    refuse_out " m?f$"
}

case_estimate_works_for_the_largest_model() {
    run estimate --config "$TITAN_SOURCE/configs/llama3_405b.yaml" --ranks 8,64,512 --memory 80GiB
    expect_ok
    expect_out "405,853,388,800 parameters"
}

# As published: 512 ranks in pipelines of 8, and 16,384 in pipelines of 16. The stage of the rank with most memory
# contains about that rank's share of the weights and moments. With gradients, gathered weights and activations it needs
# more than 20 bytes for each parameter of its share.
case_estimate_plans_the_largest_model_on_many_ranks() {
    while read -r ranks pipe batch; do
        run estimate --config "$TITAN_SOURCE/configs/llama3_405b.yaml" --ranks "$ranks" --json \
            --parallelism.tensor_parallel_degree=8 --parallelism.pipeline_parallel_degree="$pipe" \
            --training.local_batch_size="$batch" --training.mixed_precision_param=bfloat16
        expect_ok
        check_json out "len(o['rows']) >= 6 and all(r['ranks'] == $ranks for r in o['rows'])" \
            "all(r['microbatches'] == $batch and 0 < r['bubble_share'] < 0.5 for r in o['rows'])" \
            "all(abs(r['by_kind']['params'] * $ranks / (4 * 405853388800) - 1) < 0.15 for r in o['rows'])" \
            "all(r['by_kind']['optimizer'] == 2 * r['by_kind']['params'] for r in o['rows'])" \
            "all(r['peak_bytes'] > 20 * 405853388800 / $ranks for r in o['rows'])"
    done <<'EOF_ROWS'
512 8 32
16384 16 16
EOF_ROWS
}

case_estimate_of_ranks_that_do_not_divide_is_a_row() {
    run estimate --config "$TITAN_SOURCE/configs/debug.yaml" --ranks 2,3
    expect_ok
    expect_out "^ +2 default .* yes"
    expect_out "^ +3 .*global_batch_size 8 is not a multiple"
}

# Each of two ranks holds half of the experts, which are most of the model.
experts="--model.name=qwen3 --model.flavor=debugmodel_moe --model.dim=64 --training.seq_len=64
    --training.local_batch_size=1 --training.global_batch_size=4 --parallelism.expert_parallel_degree=2"

case_experts_that_ranks_share_are_planned() {
    run estimate $experts --ranks 2,4
    expect_ok
    expect_out "^ +4 default .* yes"
    expect_out "^rows of experts are sent in addition; step assumes the same number of rows for every expert$"
    expect_out "^ +4 default +about [0-9.]+[KM], at most [0-9.]+[KM]; step at most [0-9.]+ m?s$"
    run plan $experts --ranks 4
    expect_ok
    expect_out "^mesh .* dp_shard 4 \(ep 2\)"
    expect_out "^  layers.0.experts .. layers.7.experts \(8 alike\) +9,437,184 "
    expect_out "^for units of experts S = 2$"
    expect_out "^  rows of experts, .* about [0-9,]+ bytes sent, at most [0-9,]+$"
    expect_out "^ +[0-9.]+ s at most, if all tokens choose the experts of one rank$"
}

# By hand: in 8 layers a rank has 2 microbatches of 64 tokens of 8 slots with 64 floats. Half of the rows travel to the
# other rank: there and back in forward, and one and a half times that in backward, each time with the row counts of 64
# experts. At most all rows leave, and the 64 x 8 rows of the other rank arrive.
case_bytes_of_experts_are_those_of_the_formula() {
    run estimate $experts --ranks 2 --json
    expect_ok
    check_json out "all(r['expert_bytes_per_step'] == 8 * 2 * (5 * 64 * 8 * 64 * 4 // 2 + 2 * 64 * 4) for r in o['rows'])" \
        "all(r['most_expert_bytes_per_step'] == 8 * 2 * (5 * 64 * 8 * 64 * 4 + 2 * 64 * 4) for r in o['rows'])" \
        "all(r['step_s'] < r['step_most_s'] < 10 * r['step_s'] for r in o['rows'])"
    run estimate $experts --ranks 2 --json --parallelism.expert_parallel_degree=1
    expect_ok
    check_json out "all('expert_bytes_per_step' not in r for r in o['rows'])"
}

# At each of 16 places of the pipeline there are 128 ranks, 64 of which share the experts of its layers, so a rank has 4
# of 256.
case_the_largest_model_with_experts_is_planned_on_many_ranks() {
    largest="--model.name=deepseek_v3 --model.flavor=671B --training.seq_len=4096 --training.local_batch_size=16
        --training.global_batch_size=-1
        --training.mixed_precision_param=bfloat16 --parallelism.pipeline_parallel_degree=16
        --parallelism.expert_parallel_degree=64"
    run plan $largest --ranks 2048
    expect_ok
    expect_out "^mesh +2048 ranks = pipeline 16 x dp_replicate 1 x dp_shard 128 \(ep 64\)"
    run estimate $largest --ranks 2048 --json
    expect_ok
    check_json out "len(o['rows']) >= 3 and all(r['microbatches'] == 16 and 0 < r['bubble_share'] < 0.6 for r in o['rows'])" \
        "all(0 < r['expert_bytes_per_step'] < r['most_expert_bytes_per_step'] for r in o['rows'])" \
        "all(12 * 671026404352 / 2048 < r['by_kind']['params'] + r['by_kind']['optimizer'] < 18 * 671026404352 / 2048 for r in o['rows'])" \
        "all(r['step_s'] < r['step_most_s'] for r in o['rows'])"
}

case_estimate_wrong_usage() {
    run estimate --ranks 2,x
    expect_error 2 "--ranks '2,x' is not a list"
    run estimate --ranks ""
    expect_error 2 "--ranks is empty"
    run estimate --memory lots
    expect_error 2 "--memory 'lots' is not a size"
    run estimate --training.seq_len=0
    expect_error 2 "seq_len"
}

# The resident memory of a run with some hundred MiB per rank is within 5 % and 64 MiB of the estimate.
case_a_rank_takes_as_much_memory_as_estimated() {
    make_corpus
    mid="$tiny --model.dim=512 --model.n_layers=6 --model.n_heads=8 --model.ffn_dim=1536 --training.seq_len=256
        --training.local_batch_size=2 --parallelism.threads_per_rank=1 --training.steps=2"
    run estimate $mid --ranks 2 --json
    expect_ok
    mv out estimate.json
    run_ranks 2 train $mid
    expect_ok
    check_json estimate.json \
        'rows(2)["default"]["peak_bytes"] == run("run/metrics.jsonl")["memory_predicted_bytes"]' \
        'rows(2)["default"]["payload_bytes_per_step"] == step("run/metrics.jsonl", 2)["comm_bytes"]' \
        'abs(step("run/metrics.jsonl", 2)["memory_gib"] * 2**30 - rows(2)["default"]["resident_bytes"]) < 0.05 * rows(2)["default"]["resident_bytes"] + 64 * 2**20'
}

# --- tune ---

case_tune_tries_combinations() {
    make_corpus
    run_ranks 2 tune $tiny --over reshard,prefetch --steps 1 --rounds 1
    expect_ok
    expect_out "^default, prefetch 1 .* yes"
    expect_out "^never, prefetch 2 .* yes"
    expect_out "^fastest that fits: --parallelism.fsdp_reshard_after_forward=[a-z]+ --parallelism.fsdp_prefetch=[0-2]$"
    refuse_file run
}

case_tune_json() {
    make_corpus
    run_ranks 2 tune $tiny --over reshard --steps 2 --rounds 2 --json
    expect_ok
    check_json out 'o["ranks"] == 2 and len(o["rows"]) == 3' 'all(r["same_bits"] and r["fits"] for r in o["rows"])' \
        'all(r["step_s"] > 0 and r["predicted_step_s"] > 0 for r in o["rows"])' \
        'o["fastest"] in [r["flags"] for r in o["rows"]]'
    mv out tune.json
    run plan $tiny --ranks 2 --json
    check_json out 'o["payload_bytes_per_step"] == json.load(open("tune.json"))["rows"][0]["payload_bytes_per_step"]'
}

# On two ranks the degrees are 1 and 2, and all give the same bits. A degree that the model does not allow still gets a
# row.
case_tune_tries_degrees_of_experts() {
    make_corpus
    moe="$experts --training.dataset=text --training.dataset_path=corpus.txt --model.n_layers=2"
    run_ranks 2 tune $moe --over expert_parallel_degree --steps 1 --rounds 1 --json
    expect_ok
    check_json out 'len(o["rows"]) == 2 and all(r["fits"] and r["same_bits"] for r in o["rows"])' \
        '[r["combination"] for r in o["rows"]] == ["ep 1", "ep 2"]' \
        'o["rows"][0]["peak_bytes"] > o["rows"][1]["peak_bytes"]'
    run_ranks 2 tune $tiny --over expert_parallel_degree --steps 1 --rounds 1
    expect_ok
    expect_out "^ep 1 .* <- fastest"
    expect_out "^ep 2 .*has no experts"
}

# Meshes of the same batch. Two stages need two microbatches, so one layout is impossible; with three ranks no degree
# but 1 divides them.
case_tune_tries_meshes() {
    make_corpus
    over="pipeline_parallel_degree,context_parallel_degree,tensor_parallel_degree"
    small="$tiny --training.local_batch_size=1 --training.global_batch_size=2"
    run_ranks 2 tune $small --over $over --steps 1 --rounds 1 --json \
        --parallelism.exact_tensor_parallel_degree=2 --parallelism.exact_context_parallel_degree=2
    expect_ok
    check_json out \
        '[r["combination"][3::6] for r in o["rows"]] == ["111", "112", "121", "211"]' \
        'all(r["fits"] and r["same_bits"] for r in o["rows"][:3])' \
        '"microbatches" in o["rows"][3]["problem"]' \
        'all("--training.global_batch_size=2" in r["flags"] for r in o["rows"])'
    run_ranks 3 tune $small --training.global_batch_size=3 --over $over --steps 1 --rounds 1 --json
    expect_ok
    check_json out '[r["combination"] for r in o["rows"]] == ["pp 1, cp 1, tp 1"]'
}

case_tune_says_what_does_not_fit() {
    make_corpus
    run tune $tiny --over reshard --steps 1 --rounds 1 --parallelism.memory_limit=100KiB
    expect_ok
    expect_out "memory_limit allows 100.00 KiB"
    expect_out "nothing fits"
}

case_tune_wrong_usage() {
    run tune --over speed
    expect_error 2 "--over 'speed' cannot be varied"
    run tune --steps 0
    expect_error 2 "--steps '0'"
    run_ranks 2 tune --nonsense
    expect_error 2 "unknown option '--nonsense'"
}

# --- launch ---

case_launch_prints_the_command_line() {
    unset SLURM_JOB_ID
    run launch -n 1 --print -- train --config 'my run.yaml'
    expect_ok
    expect_out "^mpirun (--allow-run-as-root )?-n 1 --map-by slot:PE=[0-9]+ --bind-to core /.*titan train --config 'my run.yaml'$"
    run launch -n 100000 --print -- train
    expect_out "^mpirun .*-n 100000 --oversubscribe --bind-to none /.*titan train$"
    export SLURM_JOB_ID=1 SLURM_JOB_NUM_NODES=2 SLURM_CPUS_ON_NODE=64
    run launch -n 8 --print -- train
    expect_out "^srun --mpi=pmix --ntasks=8 --cpus-per-task=16 --cpu-bind=cores /.*titan train$"
}

# On an imagined machine; a quota of this one's control group may allow fewer.
case_launch_counts_cores_of_all_packages() {
    unset SLURM_JOB_ID
    HWLOC_SYNTHETIC="package:2 core:1 pu:2" run launch -n 1 --print -- train
    expect_out "slot:PE=[12] --bind-to core"
    HWLOC_SYNTHETIC="package:2 core:1 pu:2" run launch -n 3 --print -- train
    expect_out "-n 3 --oversubscribe --bind-to none"
}

case_launch_runs() {
    unset SLURM_JOB_ID
    export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # Open MPI does not free what it allocates
    make_corpus
    run launch -n 2 -- train $tiny
    expect_ok
    expect_err "2 ranks x"
    expect_out "^step: +3/"
}

case_launch_on_the_hosts_of_a_file() {
    unset SLURM_JOB_ID
    printf '# two hosts\n%s slots=2\nother slots=1\n' "$(hostname)" >hosts
    run launch -n 3 --hostfile hosts --print -- train
    expect_ok
    expect_out "-n 3 --hostfile hosts (--map-by slot:PE=[0-9]+ --bind-to core|--oversubscribe --bind-to none) /.*titan train$"
    printf 'localhost slots=2\n' >here
    run launch -n 2 --hostfile here -- version
    expect_ok
    expect_out "^titan "
    printf '# none\n' >empty
    run launch -n 2 --hostfile empty -- train
    expect_error 2 "'empty' names no hosts"
    run launch -n 2 --hostfile missing -- train
    expect_error 3 "'missing': no such file"
}

# launch gives mpirun the settings of tools/mpi-env for one machine, but not those that the user has set, and none
# across hosts.
case_launch_gives_mpirun_the_settings_of_mpi_env() {
    unset SLURM_JOB_ID "${!OMPI_MCA_@}"
    (. "$TITAN_SOURCE/tools/mpi-env" && env) | sed -n 's/^OMPI_MCA_\([^=]*\)=/--mca \1 /p' |
        grep -Ev 'rmaps_base_oversubscribe|hwloc_base_binding_policy' >settings
    [ "$(wc -l <settings)" -ge 3 ] || not_as "the settings of mpi-env: $(cat settings)"
    run launch -n 1 --print -- train
    expect_ok
    while read -r setting; do
        grep -q -e " $setting " out || not_as "not in the line: $setting"
    done <settings
    [ "$(grep -o -e '--mca' out | wc -l)" = "$(wc -l <settings)" ] || not_as "settings that mpi-env does not have"
    export OMPI_MCA_pml=ucx
    run launch -n 1 --print -- train
    refuse_out "mca pml"
    echo "localhost slots=2" >hosts
    run launch -n 2 --hostfile hosts --print -- train
    refuse_out "mca"
}

# An error of the ranks is printed as one message, not as one among mpirun's remarks about exit codes, and launch
# returns its code.
case_launch_shows_errors_alone() {
    unset SLURM_JOB_ID
    run train --training.steps=0
    mv err alone
    run launch -n 2 train --training.steps=0
    expect_error 2 "training.steps: 0 is out of range"
    expect_same err alone
}

case_launch_without_two_dashes() {
    for option in -n --ranks; do
        run launch $option 1 --print -- train --config x.yaml
        mv out with
        run launch $option 1 --print train --config x.yaml
        expect_ok
        expect_same out with
    done
}

case_a_memory_error_lists_remedies_that_apply() {
    make_corpus
    run train $tiny --parallelism.memory_limit=1MiB
    expect_error 6 "parallelism.memory_limit allows 1.00 MiB" "a training.local_batch_size smaller than 2" \
        "activation_checkpoint.mode=full" "training.mixed_precision_param=bfloat16" "or more ranks; "
    refuse_err "reshard_after_forward"
    run train $tiny --parallelism.memory_limit=1MiB --training.mixed_precision_param=bfloat16
    expect_error 6 "parallelism.memory_limit allows 1.00 MiB"
    refuse_err "mixed_precision_param"
    run train $tiny --model.flavor=405B --model.dim=16384 --model.n_layers=126 --training.local_batch_size=1
    expect_error 6 "this machine allows .* for 1 rank\\)" "or more ranks on more hosts"
    refuse_err "smaller than 1"
}

case_launch_wrong_usage() {
    run launch -- train
    expect_error 2 "-n N is missing"
    run launch -n 2
    expect_error 2 "the command to run is missing"
    run launch -n none -- train
    expect_error 2 "--ranks 'none'"
    run launch -n 2 -- version : # mpirun would start a second program
    expect_error 2 "take ':' for the end of a command" "leave it out"
    run launch -n 2 --print -- : version
    expect_error 2 "take ':' for the end of a command"
    PATH=/nowhere run launch -n 2 -- train
    expect_error 2 "cannot run mpirun"
}

run_cases

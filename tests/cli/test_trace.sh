#!/bin/bash
# SPDX-License-Identifier: MIT
# Traces, their summary, and TensorBoard files.
. "$(dirname "$0")/lib.sh"

traces="--profiling.enable_profiling --profiling.profile_freq=2"

# check WHAT: runs the Python program on standard input. If it fails, its output is the problem.
check() {
    python3 - >problem.txt 2>&1 || not_as "$1: $(tail -5 problem.txt)"
}

case_steps_that_the_frequency_divides_are_traced() {
    make_corpus
    run_ranks 2 train $tiny $traces --training.steps=5
    expect_ok
    for step in 2 4; do
        for rank in 0 1; do
            expect_file run/profiling/traces/iteration_$step/rank${rank}_trace.json
        done
    done
    [ "$(find run/profiling/traces -type f | wc -l)" = 4 ] || not_as "more traces than asked for: $(find run/profiling)"
}

case_a_trace_says_what_the_step_did() {
    make_corpus
    run_ranks 2 train $tiny $traces --training.steps=2
    expect_ok
    run plan $tiny --ranks 2 --json
    check "rank1_trace.json" <<'EOF'
import json
trace = json.load(open("run/profiling/traces/iteration_2/rank1_trace.json"))
plan = json.load(open("out"))
about, events = trace["otherData"], trace["traceEvents"]
assert about["step"] == 2 and about["rank"] == 1 and about["world"] == 2, about
assert abs(sum(about["split_s"].values()) - about["step_time_s"]) < 1e-9 * about["step_time_s"] + 1e-12, about
spans = [e for e in events if e["ph"] == "X"]
assert all(e["dur"] >= 0 and e["ts"] >= 0 and e["pid"] == 1 for e in spans)
names = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
assert {"compute", "waiting", "communication"} <= names, names
lanes = {}
for e in sorted(spans, key=lambda e: (e["tid"], e["ts"])):
    assert e["ts"] >= lanes.get(e["tid"], 0) - 0.0015, ("overlap in a lane", e)
    lanes[e["tid"]] = e["ts"] + e["dur"]
sent = [e["args"] for e in spans if e["cat"] == "communication"]
assert sum(a["bytes"] for a in sent) == plan["payload_bytes_per_step"], sum(a["bytes"] for a in sent)
assert {a["collective"] for a in sent} == {"unshard", "reduce-scatter"}, sent
assert all(a["group"] == "dp_shard, 2 ranks" and a["units"] and a["bucket_units"] == 1 for a in sent)
waits = [e for e in spans if e["cat"] == "wait"]
assert len(waits) == len(sent), (len(waits), len(sent))
attention = [e for e in spans if e["args"].get("op") == "attention"]
assert len(attention) == 2 and {e["args"]["part"] for e in attention} == {"attention"}, attention
assert any("layers.1" in e["name"] for e in spans)
EOF
}

case_microbatches_are_named() {
    make_corpus
    run train $tiny $traces --training.steps=2 --training.global_batch_size=8
    expect_ok
    check "rank0_trace.json" <<'EOF'
import json
events = json.load(open("run/profiling/traces/iteration_2/rank0_trace.json"))["traceEvents"]
linears = [e for e in events if e["ph"] == "X" and e["args"].get("op") == "linear"]
assert {e["args"]["microbatch"] for e in linears} == {0, 1, 2, 3}
assert any("of microbatch 3" in e["name"] for e in linears)
EOF
}

case_tracing_does_not_change_the_run() {
    make_corpus
    run train $tiny --training.steps=4 --job.dump_folder=plain
    expect_ok
    run train $tiny $traces --training.steps=4
    expect_ok
    for folder in plain run; do
        grep -o '"loss":[^,]*' $folder/metrics.jsonl >$folder.losses
    done
    expect_same plain.losses run.losses
}

case_summary_of_a_run() {
    make_corpus
    run_ranks 2 train $tiny $traces --training.steps=4
    expect_ok
    run trace summary run
    expect_ok
    expect_out "^step 4 of 2 ranks: "
    expect_out "^gemm "
    expect_out "^linear_bwd_w +gemm "
    expect_out "^slowest: rank [01] "
    expect_out "^hint: "
    run trace summary run/profiling/traces --iteration 2
    expect_out "^step 2 of 2 ranks: "
    run trace summary run/profiling/traces/iteration_2 --json
    expect_ok
    check "trace summary --json" <<'EOF'
import json
o = json.load(open("out"))
assert o["type"] == "trace_summary" and o["schema"] == 1 and o["step"] == 2 and o["ranks"] == o["world"] == 2
assert abs(sum(o["split"].values()) - 100) < 1e-9, o["split"]
assert o["slowest_rank"]["rank"] in (0, 1) and o["slowest_rank"]["compute_s"] >= o["slowest_rank"]["median_compute_s"]
assert {r["op"] for r in o["compute"]} >= {"linear", "attention", "rmsnorm", "head_loss_grad", "optimizer"}
assert [r["time_s"] for r in o["compute"]] == sorted((r["time_s"] for r in o["compute"]), reverse=True)
assert {r["collective"] for r in o["communication"]} >= {"unshard layers.0", "reduce-scatter layers.0"}
assert o["hint"]
EOF
}

case_summary_names_the_slow_rank() {
    make_corpus
    run_ranks 2 train $tiny $traces --training.steps=2
    expect_ok
    check "editing" <<'EOF'
import json
path = "run/profiling/traces/iteration_2/rank1_trace.json"
trace = json.load(open(path))
for e in trace["traceEvents"]:
    if e["ph"] == "X" and e["cat"] == "compute":
        e["dur"] *= 100
trace["otherData"]["split_s"]["idle"] = 0
json.dump(trace, open(path, "w"))
EOF
    sed -i 's/"idle":[0-9.e-]*/"idle":0.0/' run/profiling/traces/iteration_2/rank0_trace.json
    run trace summary run
    expect_ok
    expect_out "^slowest: rank 1 "
    expect_out "^hint: rank 1 computes [0-9]+% longer"
    rm run/profiling/traces/iteration_2/rank0_trace.json
    run trace summary run
    expect_out "^hint: only 1 of 2 ranks"
}

# waits_for KEY REGEX HINT: checks the hint when ranks wait long in collectives whose name matches.
waits_for() {
    rm -rf run
    run_ranks 2 train $tiny $traces --training.steps=2 --parallelism."$1"_parallel_degree=2
    expect_ok
    export WAITS=$2
    check "editing" <<'PY'
import json, os, re
for rank in (0, 1):
    path = f"run/profiling/traces/iteration_2/rank{rank}_trace.json"
    trace = json.load(open(path))
    compute = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] == "compute"]
    for e in compute: # both ranks compute equally long, and wait long for each other, whatever this machine does
        e["dur"] = 1000 / len(compute)
    for e in trace["traceEvents"]:
        if e["ph"] == "X" and e["cat"] == "wait" and re.match(os.environ["WAITS"], e["args"]["collective"]):
            e["dur"] = 1e6
    split = trace["otherData"]["split_s"]
    trace["otherData"]["split_s"] = {k: 1.0 if k == "communication" else 0.1 for k in split}
    json.dump(trace, open(path, "w"))
PY
    run trace summary run
    expect_ok
    expect_out "^hint: .*waits for communication, most of it $3"
}

case_summary_says_what_ranks_wait_for() {
    make_corpus
    waits_for pipeline "receive|send" "between the stages of the pipeline: try more microbatches"
    waits_for tensor "gather rows|sum" "between ranks that share layers: keep them on one host"
}

case_summary_of_a_folder_without_traces_is_an_error() {
    run trace summary nowhere
    expect_error 3 "no folder 'nowhere'"
    mkdir empty
    run trace summary empty
    expect_error 3 "has no traces" "help: train with --profiling.enable_profiling"
    mkdir -p run/profiling/traces/iteration_2
    echo '{"traceEvents": []}' >run/profiling/traces/iteration_2/rank0_trace.json
    run trace summary run
    expect_error 3 "rank0_trace.json is not a titan trace"
    run trace summary run --iteration 7
    expect_error 3 "no trace of step 7"
    run trace
    expect_error 2 "help: titan trace summary DIR"
    run trace summary
    expect_error 2 "takes one folder"
    run trace sumary run
    expect_error 2 "unknown command 'trace sumary'"
}

# Reads the records of an event file as {tag: {step: value}} and verifies every checksum. Written from the description
# of the format.
cat >"$top/events.py" <<'EOF'
import glob, struct

def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF

def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

def records(data):
    at = 0
    while at < len(data):
        size, check = struct.unpack_from("<QI", data, at)
        assert masked(data[at:at + 8]) == check, "checksum of a length"
        body = data[at + 12:at + 12 + size]
        assert masked(body) == struct.unpack_from("<I", data, at + 12 + size)[0], "checksum of a record"
        yield body
        at += 16 + size

def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if not data[at - 1] & 0x80:
            return value, at

def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        elif key & 7 == 2:
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        else:
            size = {1: 8, 5: 4}[key & 7]
            value, at = struct.unpack_from({8: "<d", 4: "<f"}[size], data, at)[0], at + size
        yield key >> 3, value

def scalars(folder):
    found = {}
    for path in sorted(glob.glob(folder + "/*/events.out.tfevents.*")):
        first, *rest = records(open(path, "rb").read())
        assert dict(fields(first))[3] == b"brain.Event:2", first
        for record in rest:
            event = dict(fields(record))
            for field, value in fields(event[5]):
                value = dict(fields(value))
                found.setdefault(value[1].decode(), {})[event.get(2, 0)] = value[2]
    return found
EOF

case_tensorboard_has_torchtitans_tags() {
    make_corpus
    run train $tiny --training.steps=5 --metrics.enable_tensorboard --metrics.log_freq=2 --validation.enable \
        --validation.dataset=text --validation.dataset_path=corpus.txt --validation.freq=5 --validation.steps=1
    expect_ok
    cp "$top/events.py" .
    check "event file" <<'EOF'
import json, struct
from events import scalars
found = scalars("run/tb")
steps = {r["step"]: r for r in map(json.loads, open("run/metrics.jsonl")) if r["type"] == "step"}
single = lambda x: struct.unpack("<f", struct.pack("<f", x))[0]
assert sorted(found["loss_metrics/global_avg_loss"]) == [1, 2, 4], found
for tag, key in {"loss_metrics/global_avg_loss": "loss", "loss_metrics/global_max_loss": "max_loss",
                 "grad_norm": "grad_norm", "throughput(tps)": "tps", "tflops": "tflops", "mfu(%)": "mfu",
                 "time_metrics/end_to_end(s)": "step_time_s", "time_metrics/data_loading(s)": "data_time_s",
                 "memory/max_active(GiB)": "memory_gib", "n_tokens_seen": "ntokens_seen", "lr": "lr"}.items():
    assert found[tag] == {s: single(r[key]) for s, r in steps.items()}, tag
for tag in ("time_metrics/data_loading(%)", "memory/max_active(%)", "memory/max_reserved(GiB)",
            "memory/max_reserved(%)", "validation_metrics/loss", "validation_metrics/throughput(tps)",
            "validation_metrics/memory/max_active(GiB)"):
    assert found[tag], tag
assert sorted(found["validation_metrics/loss"]) == [1, 5]
EOF
}

case_tensorboard_is_readable_by_tensorboard() {
    python3 -c 'import tensorboard' 2>/dev/null || skip "no tensorboard"
    make_corpus
    run train $tiny --training.steps=3 --metrics.enable_tensorboard
    expect_ok
    check "tensorboard's own reader" <<'EOF'
import glob
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
board = EventAccumulator(glob.glob("run/tb/*")[0])
board.Reload()
assert [e.step for e in board.Scalars("loss_metrics/global_avg_loss")] == [1, 2, 3]
EOF
}

case_a_resumed_run_adds_an_event_file() {
    make_corpus
    run train $tiny --training.steps=2 --metrics.enable_tensorboard --checkpoint.enable=true
    expect_ok
    run train $tiny --training.steps=4 --metrics.enable_tensorboard --checkpoint.enable=true
    expect_ok
    cp "$top/events.py" .
    check "event files" <<'EOF'
import glob
from events import scalars
assert len(glob.glob("run/tb/*/events*")) == 2
assert sorted(scalars("run/tb")["grad_norm"]) == [1, 2, 3, 4]
EOF
}

case_tensorboard_is_off_by_default() {
    make_corpus
    run train $tiny
    expect_ok
    refuse_file run/tb
    refuse_file run/profiling
}

run_cases

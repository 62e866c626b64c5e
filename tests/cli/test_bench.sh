#!/bin/bash
# SPDX-License-Identifier: MIT titan bench: what it prints, except for speeds.
. "$(dirname "$0")/lib.sh"

quick="--seconds 0.01 --model.dim=64 --model.n_layers=2 --model.n_heads=4 --model.n_kv_heads=2 --model.ffn_dim=128
    --training.seq_len=32 --training.local_batch_size=2 --training.global_batch_size=4 --job.dump_folder=run"

# check WHAT: runs the Python program on standard input. If it fails, its output is the problem.
check() {
    python3 - "$TITAN_SOURCE" >problem.txt 2>&1 || not_as "$1: $(tail -5 problem.txt)"
}

case_a_step_with_its_split() {
    run bench $quick --only step --json
    expect_ok
    check "bench --json" <<'EOF'
import json
o = json.load(open("out"))
assert o["type"] == "bench" and o["schema"] == 1 and o["ranks"] == 1 and o["cpu"] and o["isa"] and o["blas"]
assert set(o["split"]) == {"gemm", "attention", "norms", "head", "optimizer", "communication", "other", "idle"}
assert abs(sum(o["split"].values()) - 100) < 1e-6, o["split"]
assert all(v >= 0 for v in o["split"].values()) and o["split"]["gemm"] > 0, o["split"]
assert o["split"]["communication"] < 50
assert o["step_time_s"] > 0 and len(o["step_times_s"]) >= 1
assert min(o["step_times_s"]) <= o["step_time_s"] <= max(o["step_times_s"])
assert abs(o["tokens_per_s"] * o["step_time_s"] - 4 * 32) < 1e-6
assert 0 < o["mfu_causal"] < o["mfu"], (o["mfu_causal"], o["mfu"])
assert o["sgemm_gflops"] > 0 and all(r["sgemm_gflops"] > 0 for r in o["sgemm"])
assert o["bgemm_gflops"] == max(r["bgemm_gflops"] for r in o["sgemm"] if r["threads"] == o["threads_per_rank"]) > 0
for kind in "sgemm", "bgemm":
    assert abs(o["machine"][kind + "_flops"] * o["threads_per_rank"] * 1e-9 / o[kind + "_gflops"] - 1) < 1e-9, kind
assert o["model"]["seq_len"] == 32 and o["model"]["microbatches"] == 2
assert "storage" not in o
EOF
    refuse_file run
    [ "$(ls -A | grep -vE '^(out|err|command|problem.txt)$')" = "" ] || not_as "files were left: $(ls -A)"
}

case_a_machine_file_is_read_by_plan() {
    run bench --seconds 0.01 --only sgemm,memory --save machine.json
    expect_ok
    expect_out "^peak of a rank: [0-9.]+ GF/s in float32 \((OpenBLAS|titan's kernel)\), [0-9.]+ GF/s in bfloat16"
    expect_out "parallelism.machine_file=machine.json"
    run plan --ranks 2 --parallelism.machine_file=machine.json --json
    expect_ok
    check "machine file" <<'EOF'
import json
machine, plan = json.load(open("machine.json")), json.load(open("out"))
assert machine["type"] == "machine" and machine["schema"] == 2
assert machine["link_bytes_per_sec"] == 2.5e9, "with one rank the built-in one"
assert machine["name"] in json.dumps(plan), "plan does not name the machine"
EOF
}

case_a_machine_file_is_a_machine_of_estimate() {
    run bench --seconds 0.01 --only sgemm,memory --save machine.json
    expect_ok
    run estimate --machine machine.json --stack titan --config "$TITAN_SOURCE/configs/debug.yaml" --ranks 2 --json
    expect_ok
    check "estimate" <<'EOF'
import json
machine, o = json.load(open("machine.json")), json.load(open("out"))
job = o["jobs"][0]
assert job["machine"] == machine["name"] and job["memory_planned"]
assert machine["device"]["peak_flops"]["float32"] == machine["sgemm_flops"] * machine["device"]["units"]
assert abs(job["model_flops_per_s_per_device"] / job["mfu"] / machine["device"]["peak_flops"]["float32"] - 1) < 1e-9
assert machine["origin"]["device.memory.bytes_per_sec"] == "measured: titan bench"
EOF
}

case_predictions_use_measured_ops() {
    run bench --seconds 0.01 --only sgemm,memory,ops --save machine.json
    expect_ok
    expect_out "^linear +bfloat16 +[0-9.]+"
    run estimate --parallelism.machine_file=machine.json --ranks 1 --json
    expect_ok
    cp out priced
    check "ops" <<'EOF'
import json
machine = json.load(open("machine.json"))
found = {(p["op"], p["dtype"]) for p in machine["ops"]}
wanted = {"linear", "linear_bwd_x", "linear_bwd_w", "attention", "attention_bwd", "head_loss_grad", "optimizer"}
assert found >= {(op, dtype) for op in wanted for dtype in ("float32", "bfloat16")}, found
assert all(p[k] >= 0 for p in machine["ops"] for k in ("flop_s", "byte_s", "sum_s")), machine["ops"]
for p in machine["ops"]:
    for k in ("flop_s", "byte_s", "sum_s"):
        p[k] *= 2
json.dump(machine, open("slower.json", "w"))
EOF
    run estimate --parallelism.machine_file=slower.json --ranks 1 --json
    expect_ok
    check "ops that take twice as long" <<'EOF'
import json
a, b = (json.load(open(name))["rows"][0]["step_s"] for name in ("priced", "out"))
assert 1.9 * a < b < 2.1 * a, (a, b)
EOF
}

case_checkpoints_are_written_at_the_measured_rate() {
    run bench --seconds 0.01 --only sgemm,memory,storage --save machine.json
    expect_ok
    run estimate --machine machine.json --stack titan --config "$TITAN_SOURCE/configs/debug.yaml" --ranks 2 --json
    expect_ok
    check "storage" <<'EOF'
import json
machine, run = json.load(open("machine.json")), json.load(open("out"))["jobs"][0]["run"]
assert machine["storage"]["bytes_per_sec"] == machine["storage_bytes_per_sec"] > 0, machine
assert abs(run["checkpoint_bytes"] / run["checkpoint_write_s"] / machine["storage_bytes_per_sec"] - 1) < 1e-6, run
EOF
}

case_ranks_measure_collectives() {
    run_ranks 2 bench $quick --only sgemm,memory,step,collectives --save machine.json --json
    expect_ok
    check "collectives" <<'EOF'
import json
o, machine = json.load(open("out")), json.load(open("machine.json"))
assert o["ranks"] == 2 and o["split"]["communication"] > 0
assert {r["collective"] for r in o["collectives"]} == {"copy", "all-gather", "reduce-scatter", "all-reduce"}
assert all(r["time_s"] > 0 and r["gbytes_per_s"] > 0 for r in o["collectives"])
assert all(r["of_copy"] == 1 for r in o["collectives"] if r["collective"] == "copy")
assert {k: o["machine"][k] for k in machine} == machine
assert 0 <= machine["transfer_share"] <= 0.95 and machine["transfer_stretch"] >= 1
assert machine["link_bytes_per_sec"] != 2.5e9 and machine["ranks"] == 2
assert [c["collective"] for c in machine["collectives"]] == ["all-gather", "reduce-scatter", "all-reduce"]
EOF
    run plan --ranks 2 --parallelism.machine_file=machine.json
    expect_ok
}

case_tables_are_printed_without_json() {
    mkdir folder
    run bench $quick --only step,storage --job.dump_folder=folder/deep/er
    expect_ok
    expect_out "^512 x 512 x 512 +1 +[0-9.]+"
    expect_out "mfu [0-9.]+%, causal [0-9.]+% of the sgemm peak, [0-9.]+ GF/s"
    expect_out "^  attention +[0-9.]+%"
    expect_out "^storage: [0-9.]+ GB/s written and synced in folder$"
    [ -z "$(ls -A folder)" ] || not_as "left behind: $(ls -A folder)"
}

case_results_are_printed_even_if_they_cannot_be_saved() {
    run bench --seconds 0.01 --only sgemm,memory --save nowhere/machine.json --json
    expect_error 3 "nowhere/machine.json"
    expect_json 'assert found["sgemm_gflops"] > 0'
}

case_rates_of_a_busy_machine_are_marked() {
    run bench --seconds 0.01 --only sgemm,memory --save idle.json
    expect_ok
    refuse_err "warning"
    refuse_out "others use this machine"
    ! grep -q "too low" idle.json || not_as "an idle machine is marked"
    export TITAN_PROC=$PWD/proc
    load_of 13.20 14
    run bench --seconds 0.01 --only sgemm,memory --save busy.json
    expect_ok
    expect_out "^load 13 on 2 CPUs: others use this machine; the rates below are too low"
    expect_err "^titan: warning: bench: load 13 on 2 CPUs: others use this machine; 'busy.json' says that"
    grep -q '"measured: titan bench; too low: load 13 on 2 CPUs: others use this machine"' busy.json ||
        not_as "the file does not say so"
    run bench --seconds 0.01 --only sgemm --json
    expect_json 'assert found["others"] == "load 13 on 2 CPUs: others use this machine"'
}

case_scripts_say_what_is_missing() {
    for script in copies overlap checkpoint; do
        bash "$TITAN_SOURCE/tests/bench/$script.sh" nowhere/titan >out 2>err && code=0 || code=$?
        expect_code 2
        expect_err "usage: $script.sh"
        expect_err "no program at 'nowhere/titan'"
    done
    python3 "$TITAN_SOURCE/tests/bench/against_llmc.py" --help >out 2>err && code=0 || code=$?
    expect_ok
    python3 "$TITAN_SOURCE/tests/bench/against_pytorch.py" --titan "$TITAN" --python nowhere/python >out 2>err &&
        code=0 || code=$?
    expect_code 2
    expect_err "nowhere/python has no PyTorch"
    refuse_err "Traceback"
    python3 "$TITAN_SOURCE/tests/bench/processor.py" --titan nowhere/titan >out 2>err && code=0 || code=$?
    expect_code 2
    expect_err "no program at 'nowhere/titan'"
}

case_the_table_of_a_processor_needs_no_pytorch() {
    python3 "$TITAN_SOURCE/tests/bench/processor.py" --titan "$TITAN" --python false --quick \
        --only products,debugmodel --skip blas,generic,avx2,avx512,avx512_bf16,amx,neon >out 2>err && code=0 || code=$?
    expect_ok
    expect_out "no PyTorch.*--quick: these numbers mean nothing"
    expect_out "^[|] products, GF/s, [a-z0-9_]+ [|] [0-9.,]+ [|] [0-9.,]+ [|]  [|]"
    expect_out "^[|] debugmodel [|] [0-9.,]+ [|] [0-9.,]+ [|]  [|]"
    expect_out "^left out: PyTorch: "
}

case_wrong_command_lines() {
    run bench --only sgem
    expect_error 2 "--only 'sgem' cannot be measured" "help: a list of sgemm, memory"
    run bench --seconds soon
    expect_error 2 "--seconds 'soon' is not a number of seconds"
    run bench --only ""
    expect_error 2 "--only names nothing" "help: a list of sgemm, memory"
    run bench --only step --save machine.json
    expect_error 2 "--save needs sgemm and memory"
    run bench --model.flavor=7T
    expect_error 2 "7T"
    run bench --only step --parallelism.memory_limit=1MiB
    expect_error 6 "a rank needs"
    TITAN_CPU=z80 run bench --only sgemm
    expect_error 2 "TITAN_CPU=z80"
}

run_cases

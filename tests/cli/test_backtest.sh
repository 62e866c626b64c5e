#!/bin/bash
# SPDX-License-Identifier: MIT estimate --backtest: measured runs of clusters, predicted. Each limit is the error
# measured when it was written, plus one point; a change that makes predictions worse fails here.
. "$(dirname "$0")/lib.sh"

# check_json FILE 'PYTHON EXPRESSION'...: checks that each is true, where `o` is the JSON of FILE.
check_json() {
    python3 - "$@" <<'EOF_PYTHON' >problem.txt 2>&1 || not_as "$(cat problem.txt)"
import json, statistics, sys
o = json.load(open(sys.argv[1]))
row = {r["id"]: r for r in o.get("rows", [])}
for expression in sys.argv[2:]:
    assert eval(expression), expression
EOF_PYTHON
}

case_times_are_predicted_as_well_as_before() {
    run estimate --backtest --json
    expect_ok
    check_json out 'o["time"]["rows"] >= 114 and o["time"]["median_error"] < 0.027' \
        'o["time"]["p90_error"] < 0.083' 'o["time_special"]["rows"] >= 41 and o["time_special"]["median_error"] < 0.051' \
        'o["time_left_out"]["median_error"] < 0.039 and o["time_left_out"]["p90_error"] < 0.111' \
        'o["time_one_row"]["median_error"] < 0.06 and o["time_one_row"]["p90_error"] < 0.144' \
        'o["time_foreign"]["median_error"] < 0.089 and o["time_foreign"]["p90_error"] < 0.194' \
        '0.7 <= o["interval"]["holds"] <= 0.9'
}

# More devices, with the same work for each or for all: the predicted loss of speed has the sign of the measured one.
case_scaling_has_the_right_sign() {
    run estimate --backtest --json
    expect_ok
    check_json out 'all(row[a]["error"] is not None and row[b]["error"] is not None and
        row[b]["predicted_s"] * row[b]["devices"] > k * row[a]["predicted_s"] * row[a]["devices"] and
        row[b]["measured_s"] * row[b]["devices"] > k * row[a]["measured_s"] * row[a]["devices"] for a, b, k in (
            ("tt24-8b-8-fsdp", "tt24-8b-128-fsdp", 16), ("tt24-8b-8-compile", "tt24-8b-128-compile", 16),
            ("tt24-8b-8-fp8", "tt24-8b-128-fp8", 16), ("tt25-h200-8b-32", "tt25-h200-8b-64", 2),
            ("mpt-h100-7b-128", "mpt-h100-7b-512", 4), ("mpt-h100-1b-128", "mpt-h100-1b-512", 4),
            ("mpt-h100-30b-128", "mpt-h100-30b-512", 4), ("megascale-mega-256", "megascale-mega-1024", 1),
            ("megascale-base-256", "megascale-base-1024", 1), ("megascale-mega-3072", "megascale-mega-12288", 1),
            ("megascale-base-3072", "megascale-base-12288", 1)))'
}

# The built-in numbers are what tests/help/fit_stacks.c gives for the tables in the repository.
case_the_fit_can_be_repeated() {
    "$TITAN_BUILD/tests/cli/fit_stacks" >fit.txt 2>&1 || not_as "$(cat fit.txt)"
    [ "$(grep -Ec " rows, (gemm_share|host_wait_sec) " fit.txt)" -ge 19 ] || not_as "$(cat fit.txt)"
    grep -E "^fsdp1: 25 rows, .* mpt-h100-70b-256 to " fit.txt >line.txt || not_as "$(cat fit.txt)"
    ! grep -E "median error [2-9][0-9]\." fit.txt >line.txt || not_as "$(cat line.txt)"
    "$TITAN_BUILD/tests/cli/fit_stacks" "$TITAN_SOURCE/estimate/backtest/data/experts_runs.csv" >fit.txt 2>&1 ||
        not_as "$(cat fit.txt)"
    [ "$(grep -c " rows, " fit.txt)" = 1 ] || not_as "$(cat fit.txt)"
    grep -E "^megatron-bridge: 16 rows, expert_gemm_share 0.87 = 0.87, " fit.txt >line.txt || not_as "$(cat fit.txt)"
}

case_memory_and_what_fits_are_predicted_as_well_as_before() {
    run estimate --backtest --json
    expect_ok
    check_json out 'o["memory"]["rows"] >= 35 and o["memory"]["median_error"] < 0.039' \
        'o["memory"]["worst_error"] < 0.115' 'o["fits"]["right"] > 0.955 and o["fits"]["rows"] >= 879' \
        'o["fits"]["fits_but_oom_outside_5_percent"] <= 8' 'o["fits"]["published_runs_refused"] <= 9'
}

case_layouts_are_chosen_as_well_as_before() {
    run estimate --backtest --json
    expect_ok
    check_json out 'len(o["sweeps"]) == 11' \
        'statistics.median(s["kendall_tau"] for s in o["sweeps"]) > 0.75' \
        'sum(s["pick_over_best"] <= 1.05 for s in o["sweeps"]) >= 10' \
        'max(s["pick_over_best"] for s in o["sweeps"]) < 1.07'
}

# What users know to be true whatever the numbers are.
case_scaling_has_the_measured_sign() {
    run estimate --backtest --json
    expect_ok
    check_json out \
        'row["mpt-h100-7b-512"]["predicted_s"] > row["mpt-h100-7b-128"]["predicted_s"] > row["mpt-h100-7b-8-t2048"]["predicted_s"]' \
        'row["mpt-h100-1b-512"]["predicted_s"] > row["mpt-h100-1b-128"]["predicted_s"]' \
        'all(row[a]["predicted_s"] < row[b]["predicted_s"] and abs(
             row[a]["predicted_s"] / row[b]["predicted_s"] - row[a]["measured_s"] / row[b]["measured_s"]) < 0.025
             for a, b in [("tt24-8b-8-fsdp", "tt24-8b-128-fsdp"), ("tt24-8b-8-compile", "tt24-8b-128-compile"),
                          ("tt24-8b-8-fp8", "tt24-8b-128-fp8"), ("tt25-h200-8b-32", "tt25-h200-8b-64"),
                          ("mpt-h100-30b-128", "mpt-h100-30b-512")])' \
        'row["megascale-mega-1024"]["predicted_s"] * 4 > row["megascale-mega-256"]["predicted_s"]' \
        'row["llama3-405b-16384-cp1"]["predicted_s"] * 2 > row["llama3-405b-8192-cp1"]["predicted_s"]'
}

# Eager and compiled blocks run the same products (torchtitan PR 1690 measured both on one machine), so of two stacks of
# the same year the eager one is slower.
case_a_compiler_makes_no_job_slower() {
    for model in llama3.1-8b qwen3-4b; do
        for of in h100-sxm:2025 h100-hbm2e:2025 b200:2025 mi300x:2025 h100-hbm2e:2024; do
            for kind in eager compile; do
                run estimate --model $model --machine "${of%:*}" --ranks 64 --json \
                    --stack "$(echo "torchtitan-$kind-${of#*:}" | sed s/-2024//)"
                expect_ok
                mv out $kind.json
            done
            python3 -c 'import json; e, c = (json.load(open(k + ".json"))["jobs"][0]["step_s"] for k in ("eager", "compile"))
assert 1.02 * c < e < 1.4 * c, (e, c)' || not_as "$model on $of"
        done
    done
}

case_every_excluded_row_has_its_reason() {
    run estimate --backtest
    expect_ok
    expect_out "^  meg21-zero3-175b-768 +time: its time does not follow from its traffic"
    expect_out "^tt24-8b-8-compile .* gemm; memory 77.0 GiB, predicted "
    run estimate --backtest --json
    check_json out 'all("error" in r and r["error"] is not None or "excluded" in r or "result" in r for r in o["rows"])'
}

case_a_table_of_ones_own_is_scored() {
    head -5 "$TITAN_SOURCE/estimate/backtest/data/published_runs.csv" >runs.csv
    run estimate --backtest runs.csv --json
    expect_ok
    check_json out 'len(o["rows"]) == 4 and o["sweeps"] == [] and o["time"]["rows"] == 3'
    grep -E "^(sweep|vtrain-175b-512)," "$TITAN_SOURCE/estimate/backtest/data/layout_sweeps.csv" >sweeps.csv
    run estimate --json --backtest sweeps.csv
    expect_ok
    check_json out '[s["id"] for s in o["sweeps"]] == ["vtrain-175b-512"]' 'o["time"]["rows"] == 21'
}

# Tables that were not used for fitting: the other rows of llm-foundry and of Megatron Bridge, and the 65B sheets of
# COLM.
case_rows_that_nothing_was_fitted_to_are_predicted_too() {
    run estimate --backtest "$TITAN_SOURCE/estimate/backtest/data/held_out_runs.csv" --json
    expect_ok
    check_json out 'o["time"]["rows"] >= 184 and o["time"]["median_error"] < 0.04 and o["time"]["p90_error"] < 0.1' \
        'o["time_one_row"]["median_error"] < 0.044 and o["time_special"]["median_error"] < 0.1' \
        'o["fits"]["published_runs_refused"] <= 1 and 0.7 <= o["interval"]["holds"]' # publications that are built in
    run estimate --backtest "$TITAN_SOURCE/estimate/backtest/data/held_out_releases.csv" --json
    expect_ok
    check_json out 'o["time_special"]["rows"] == 67 and o["time_special"]["median_error"] < 0.125' \
        'o["fits"]["published_runs_refused"] == 0 and 0.7 <= o["interval"]["holds"]' \
        'all(("2026" in r["stack"]) == ("nr-26.06" in r["id"]) for r in o["rows"])'
    run estimate --backtest "$TITAN_SOURCE/estimate/backtest/data/held_out_layouts.csv" --json
    expect_ok
    check_json out 'o["time"]["rows"] >= 98 and o["time"]["median_error"] < 0.055 and o["fits"]["right"] > 0.962' \
        'all(s["kendall_tau"] > 0.75 and s["pick_over_best"] < 1.05 for s in o["sweeps"])'
}

# The search for BLOOM's layout. Its stack waits for the host, for as long as the runs of MT-NLG say: that is paid once a
# microbatch by layers, but not by the output layer, so deep pipelines lose less to it.
case_deep_pipelines_with_a_large_vocabulary_are_predicted_too() {
    run estimate --backtest "$TITAN_SOURCE/estimate/backtest/data/held_out_pipelines.csv" --json
    expect_ok
    check_json out 'o["time"]["rows"] == 36 and o["time"]["median_error"] < 0.041 and o["time"]["p90_error"] < 0.107' \
        '0.7 <= o["interval"]["holds"] <= 0.9 and o["fits"]["published_runs_refused"] == 0' \
        'all(abs(row["bloom-0225-" + x]["error"]) < 0.08 for x in ("tp2pp24m1", "tp2pp24m2", "tp4pp24m1", "tp1pp48m1"))' \
        'row["bloom-0220-14336pp12m4"]["predicted_s"] < 0.9 * row["bloom-0220-14336pp12m1"]["predicted_s"]'
}

# Runs of publications of which no other table has a row. Heads of 150 (14400 of 96) are slow.
case_runs_of_publications_that_are_not_built_in_are_predicted_too() {
    run estimate --backtest "$TITAN_SOURCE/estimate/backtest/data/held_out_others.csv" --json
    expect_ok
    check_json out 'o["time"]["rows"] == 31 and o["time"]["median_error"] < 0.08 and o["time"]["p90_error"] < 0.212' \
        'o["time_special"]["rows"] == 23 and o["time_special"]["median_error"] < 0.1' \
        '0.7 <= o["interval"]["holds"] <= 0.9 and o["fits"]["published_runs_refused"] <= 3' \
        'all(abs(r["error"]) < 0.07 for r in o["rows"] if "swissai" in r["id"])'
    run estimate --backtest "$TITAN_SOURCE/estimate/backtest/data/held_out_pipelines.csv" --json
    check_json out 'row["bloom-0220-14400pp10m4"]["predicted_s"] > 1.3 * row["bloom-0220-13824pp10m4"]["predicted_s"]'
}

# Reports of memory, half of them of jobs that ran out of it, with the first predictions: at least 9 of 10 verdicts are
# right.
case_whether_reported_jobs_fit_is_predicted_too() {
    run estimate --backtest "$TITAN_SOURCE/estimate/backtest/data/held_out_memory.csv" --json
    expect_ok
    check_json out 'o["fits"]["rows"] == 21 and o["fits"]["published_runs"] == 33' \
        'o["fits"]["refused_and_oom"] + 33 - o["fits"]["published_runs_refused"] >= 0.93 * 54' \
        'o["memory"]["rows"] == 8 and o["memory"]["median_error"] < 0.05 and o["memory"]["worst_error"] < 0.1' \
        'abs(row["tt1690-32b-8-compile"]["error"]) < 0.18 and abs(row["tt1690-32b-8-b2"]["error"]) < 0.06'
}

# Runs that nobody had seen when the predictions were first written down: NVIDIA's recipes for long sequences, hundreds
# of billions of parameters, and adapters; users' tables of LoRA with their memory.
case_recipes_and_adapters_are_predicted_too() {
    run estimate --backtest "$TITAN_SOURCE/estimate/backtest/data/held_out_recipes.csv" --json
    expect_ok
    check_json out 'o["time"]["rows"] == 27 and o["time"]["median_error"] < 0.057 and o["time"]["p90_error"] < 0.224' \
        'o["time_special"]["rows"] == 91 and o["time_special"]["median_error"] < 0.08' \
        'o["time_special"]["p90_error"] < 0.2 and 0.7 <= o["interval"]["holds"] <= 0.9' \
        'o["memory"]["rows"] == 5 and o["memory"]["worst_error"] < 0.12 and o["fits"]["refused_and_oom"] == 2' \
        'o["fits"]["published_runs_refused"] <= 14 and o["fits"]["published_runs"] == 160' \
        'all(abs(r["error"]) < 0.08 for r in o["rows"] if "nemolong" in r["id"] and r["id"] != "nemolong-8k")' \
        'all(abs(r["error"]) < 0.2 for r in o["rows"] if "qwen-lora" in r["id"])'
}

# Rows whose device, model or stack titan does not know are left out by name; the others are scored.
case_rows_that_are_unknown_are_left_out() {
    {
        printf '\xef\xbb\xbfid,machine,model,gpus,seq_len,local_batch,dp_shard,tps_per_gpu,stack,mood\r\n'
        printf 'a,h100-sxm,llama3.1-8b,8,8192,1,8,7000,torchtitan-eager,good\r\n'
        printf 'b,tpu-v5,llama3.1-8b,8,8192,1,8,7000,,\r\nc,h100-sxm,grok-9,8,8192,1,8,7000,,\r\n'
        printf 'd,h100-sxm,llama3.1-8b,8,8192,1,8,7000,jax,\r\n'
    } >runs.csv
    run estimate --backtest runs.csv --json
    expect_ok
    check_json out 'o["time"]["rows"] == 1 and row["a"]["stack"] == "torchtitan-eager"' \
        'row["b"]["excluded"] == "titan has no table of the device"' \
        'row["c"]["excluded"] == "the model\x27s sizes are unknown"' \
        'row["d"]["excluded"] == "titan has no stack of that name"'
    run estimate --backtest runs.csv
    expect_ok
    expect_out "^  d +time: titan has no stack of that name$"
    head -1 runs.csv >empty.csv
    run estimate --backtest empty.csv
    expect_ok
    expect_out "^the table has no rows$"
}

case_bad_tables_are_refused() {
    run estimate --backtest missing.csv
    expect_code 3
    expect_err "missing.csv"
    printf 'id,machine,model\na,b\n' >bad.csv
    run estimate --backtest bad.csv
    expect_code 3
    expect_err "bad.csv: the row that ends before line 3 has 2 fields, but the first row has 3"
    run estimate --backtest a b
    expect_code 2
    expect_err "'b' is one word too many"
}

run_cases

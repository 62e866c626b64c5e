#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# The idle share of a pipeline of two ranks, measured and predicted, for several schedules in turn. A benchmark, never a
# test.
#
#     ROUNDS=3 STEPS=6 MICROBATCHES=8 tests/bench/pipeline.sh TITAN [SCHEDULE ...] -- [titan train options]
#
# Each rank has one thread and one core. A machine file is measured first, by `titan bench` with both ranks at work, and
# `titan estimate` predicts with it. Prints for each schedule
#   measured    the part of a traced step in which a rank did not compute, mean of both ranks, median of ROUNDS runs
#   predicted   the bubble of the schedule with the predicted time of each stage
#   step        the median seconds of a step without the first two, and what estimate predicts
# The measured share also has the time in which a rank moves messages, so it is a little more than the bubble.
set -euo pipefail

. "$(dirname "$0")/runs.sh"
program "pipeline.sh TITAN [SCHEDULE ...] -- [titan train options]" "${1-}"
shift
schedules=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    schedules+=("$1")
    shift
done
[ $# -gt 0 ] && shift
[ ${#schedules[@]} -gt 0 ] || schedules=(1F1B Interleaved1F1B ZBVZeroBubble)
rounds=${ROUNDS:-3}
steps=${STEPS:-6}
n=${MICROBATCHES:-8}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

on_both() { # command
    mpirun --allow-run-as-root --map-by slot:PE=1 --bind-to core -np 2 "$@" >"$dir/log" 2>&1 ||
        { cat "$dir/log" >&2; exit 1; }
}

measured() { # FOLDER
    "$titan" trace summary "$1" --json | python3 -c '
import json, sys
split = json.load(sys.stdin)["split"]
print(split["communication"] + split["idle"])'
}

predicted() { # options
    "$titan" estimate --ranks 2 --json "$@" | python3 -c '
import json, sys
row = json.load(sys.stdin)["rows"][0]
print(100 * row["bubble_share"], row["step_s"])'
}

grep -m1 'model name' /proc/cpuinfo
set -- --parallelism.threads_per_rank=1 --parallelism.pipeline_parallel_degree=2 --training.local_batch_size="$n" \
    --training.global_batch_size="$n" --parallelism.machine_file="$dir/machine.json" "$@"
on_both "$titan" bench --only sgemm,memory,collectives --seconds 20 --save "$dir/machine.json" \
    --parallelism.threads_per_rank=1
printf '%-22s %9s %9s %7s %10s %10s\n' schedule measured predicted ratio step predicted
for schedule in "${schedules[@]}"; do
    shares=() times=()
    for ((i = 1; i <= rounds; i++)); do
        read -r time _ < <(pair --parallelism.pipeline_parallel_schedule="$schedule" --profiling.enable_profiling=true \
            --profiling.profile_freq="$((steps - 1))" "$@")
        times+=("$time")
        shares+=("$(measured "$dir/pair")")
    done
    read -r bubble step < <(predicted --parallelism.pipeline_parallel_schedule="$schedule" "$@")
    python3 - "$schedule" "$bubble" "$step" "${shares[*]}" "${times[*]}" <<'PY'
import statistics, sys
name, bubble, step = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
share, time = (statistics.median(map(float, a.split())) for a in sys.argv[4:])
print(f"{name:22} {share:7.1f} % {bubble:7.1f} % {share / bubble:7.2f} {time:8.3f} s {step:8.3f} s")
PY
done

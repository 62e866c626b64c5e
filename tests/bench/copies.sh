#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# What sharding costs on one machine: two ranks with FSDP against two copies that do not communicate, in turn. A benchmark,
# never a test.
#
#     ROUNDS=3 STEPS=5 tests/bench/copies.sh TITAN [titan train options]
#
# Both sides run two processes of one thread with the same local batch; a copy is a job of one rank. Printed per round:
# median seconds of a step without the first two (of the copies: of the slower), and copies / FSDP, which is 1 when
# communication costs nothing. A copy updates the whole model, a rank half of it: with a small batch FSDP gains from that.
set -euo pipefail

titan=$(realpath "$1")
shift
rounds=${ROUNDS:-3}
steps=${STEPS:-6}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

options() { # FOLDER, options
    printf '%s\n' --job.dump_folder="$1" --training.steps="$steps" --metrics.log_freq=1 --checkpoint.enable=false \
        --validation.enable=false --parallelism.threads_per_rank=1 --training.global_batch_size=-1 "${@:2}"
}

# Median seconds of a step and of what of it a rank waited, without the first two.
median() { # FOLDER
    python3 - "$1/metrics.jsonl" <<'PY'
import json, statistics, sys
steps = [r for r in map(json.loads, open(sys.argv[1])) if r.get("type") == "step"][2:]
print(*(statistics.median(r[k] for r in steps) for k in ("step_time_s", "comm_exposed_s")))
PY
}

fsdp() { # options
    local line
    mapfile -t line < <(options "$dir/fsdp" "$@")
    rm -rf "$dir/fsdp"
    mpirun --allow-run-as-root --oversubscribe -np 2 "$titan" train "${line[@]}" >"$dir/log" 2>&1 ||
        { cat "$dir/log" >&2; exit 1; }
    median "$dir/fsdp"
}

copies() { # options
    local job line jobs=()
    for job in 1 2; do
        mapfile -t line < <(options "$dir/copy$job" "$@")
        rm -rf "$dir/copy$job"
        "$titan" train "${line[@]}" >"$dir/log$job" 2>&1 &
        jobs+=($!)
    done
    for job in 1 2; do
        wait "${jobs[job - 1]}" || { cat "$dir/log$job" >&2; exit 1; }
    done
    { median "$dir/copy1"; median "$dir/copy2"; } | sort -g | tail -1
}

grep -m1 'model name' /proc/cpuinfo
printf '%-6s %10s %10s %10s %13s\n' round copies FSDP waits "copies / FSDP"
for ((i = 1; i <= rounds; i++)); do
    read -r apart _ < <(copies "$@")
    read -r together waits < <(fsdp "$@")
    awk -v i="$i" -v a="$apart" -v t="$together" -v w="$waits" 'BEGIN {
        printf "%-6d %8.4f s %8.4f s %8.4f s %13.3f\n", i, a, t, w, a / t }'
done

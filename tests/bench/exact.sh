#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# What exactness across tensor or context parallelism costs where nothing is divided: steps of one rank with an exact
# degree against steps without, in turn. A benchmark, never a test.
#
#     ROUNDS=5 STEPS=4 tests/bench/exact.sh TITAN --parallelism.exact_tensor_parallel_degree=4 -- [titan train options]
#
# Prints the median seconds of a step, without the first, of both runs of every round, and the ratio of each pair.
set -euo pipefail

. "$(dirname "$0")/runs.sh"
program "exact.sh TITAN OPTION ... -- [titan train options]" "${1-}"
shift
exact=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    exact+=("$1")
    shift
done
[ $# -gt 0 ] && shift
rounds=${ROUNDS:-5}
steps=${STEPS:-4}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

seconds() { # options
    local line
    mapfile -t line < <(options "$dir/run" "$@")
    rm -rf "$dir/run"
    "$titan" train "${line[@]}" >"$dir/log" 2>&1 || { cat "$dir/log" >&2; exit 1; }
    python3 - "$dir/run/metrics.jsonl" <<'PY'
import json, statistics, sys
print(statistics.median([r["step_time_s"] for r in map(json.loads, open(sys.argv[1])) if r.get("type") == "step"][1:]))
PY
}

grep -m1 'model name' /proc/cpuinfo
for ((i = 0; i < rounds; i++)); do
    plain=$(seconds "$@")
    with=$(seconds "$@" "${exact[@]}")
    echo "$plain $with"
done | tee >(cat >&2) | python3 -c '
import statistics, sys
pairs = [tuple(map(float, line.split())) for line in sys.stdin]
ratios = [b / a for a, b in pairs]
print(f"median of {len(pairs)} ratios {statistics.median(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f})")'

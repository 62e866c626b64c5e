#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# What sharing a model costs on one machine: two ranks with FSDP, and two copies that do not communicate, in turn. A
# benchmark, never a test.
#
#     ROUNDS=3 STEPS=5 tests/bench/copies.sh TITAN [titan train options] [-- options of the two ranks only]
#
# Both sides run two processes of one thread with the same local batch; a copy is a job of one rank. Prints per round
# the median seconds of a step without the first two (for the copies, of the slower one), and copies / ranks, which is 1
# when communication costs nothing. A copy updates the whole model and a rank only half of it, which favours the ranks
# when the batch is small. With --parallelism.expert_parallel_degree=2 for the two ranks it is what sharing experts
# costs.
set -euo pipefail

. "$(dirname "$0")/runs.sh"
program "copies.sh TITAN [titan train options]" "${1-}"
shift
rounds=${ROUNDS:-3}
steps=${STEPS:-6}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

both=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    both+=("$1")
    shift
done
[ $# -gt 0 ] && shift

on_both() { # command
    mpirun --allow-run-as-root --oversubscribe -np 2 "$@" >"$dir/log" 2>&1 || { cat "$dir/log" >&2; exit 1; }
}

on_one() { # JOB, command
    "${@:2}"
}

grep -m1 'model name' /proc/cpuinfo
both=(--parallelism.threads_per_rank=1 --training.global_batch_size=-1 "${both[@]}")
printf '%-6s %10s %10s %10s %13s\n' round copies ranks waits "copies / ranks"
for ((i = 1; i <= rounds; i++)); do
    read -r apart _ < <(alone "${both[@]}")
    read -r together waits < <(pair "${both[@]}" "$@")
    awk -v i="$i" -v a="$apart" -v t="$together" -v w="$waits" 'BEGIN {
        printf "%-6d %8.4f s %8.4f s %8.4f s %13.3f\n", i, a, t, w, a / t }'
done

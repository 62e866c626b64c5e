#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# What sharding costs on one machine: two ranks with FSDP, and two copies that do not communicate, in turn. A benchmark,
# never a test.
#
#     ROUNDS=3 STEPS=5 tests/bench/copies.sh TITAN [titan train options]
#
# Both sides run two processes of one thread with the same local batch; a copy is a job of one rank. Prints per round
# the median seconds of a step without the first two (for the copies, of the slower one), and copies / FSDP, which is 1
# when communication costs nothing. A copy updates the whole model and a rank only half of it, which favours FSDP when
# the batch is small.
set -euo pipefail

. "$(dirname "$0")/runs.sh"
program "copies.sh TITAN [titan train options]" "${1-}"
shift
rounds=${ROUNDS:-3}
steps=${STEPS:-6}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

on_both() { # command
    mpirun --allow-run-as-root --oversubscribe -np 2 "$@" >"$dir/log" 2>&1 || { cat "$dir/log" >&2; exit 1; }
}

on_one() { # JOB, command
    "${@:2}"
}

grep -m1 'model name' /proc/cpuinfo
set -- --parallelism.threads_per_rank=1 --training.global_batch_size=-1 "$@"
printf '%-6s %10s %10s %10s %13s\n' round copies FSDP waits "copies / FSDP"
for ((i = 1; i <= rounds; i++)); do
    read -r apart _ < <(alone "$@")
    read -r together waits < <(pair "$@")
    awk -v i="$i" -v a="$apart" -v t="$together" -v w="$waits" 'BEGIN {
        printf "%-6d %8.4f s %8.4f s %8.4f s %13.3f\n", i, a, t, w, a / t }'
done

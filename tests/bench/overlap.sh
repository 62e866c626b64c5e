#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# How much communication hides behind compute, and what planning gains. Each of two ranks is on a "host" of its own, a
# network namespace; a veth pair with a token bucket on both ends joins them. Runs the same training with the eager and
# the planned scheduler in turn, with and without a limited rate. A benchmark, never a test.
#
#   overlap.sh TITAN [RATE …] -- [titan train options]      e.g. overlap.sh build/titan none 200mbit --
#                                                           --model.flavor=debugmodel
#
# Each host has one core of this machine for its rank, so two cores are needed (hosts.sh).
#
# Prints a row for each round and one for their medians. All are medians of seconds per step, without a run's first two:
#   alone    two jobs of one rank at once, one on each core, with the same local batch and accumulation: what
#            compute takes. Its optimizer updates the whole model instead of half of it. If that is a visible part
#            of a step, `hidden` is too good; keep the batch large.
#   comm     what communication takes when nothing hides it: a step of two ranks with seq_len 8 at this rate, minus such
#            a step of a rank alone. The bytes and messages are the same.
#   eager, planned    the step; planned with a machine file that `titan bench` wrote at that rate
#   waits    the part of the step that rank 0 waited for transfers, by its own count
#   hidden   1 - (step - alone) / comm, of each engine. At rate `none` the step needs no network, and it says
#            little. The machine drifts between runs that are a quarter of a minute apart: 3 % of a step is 0.06
#            of this, so take several rounds.
# Then prints the peak memory of both plans, and the transient part of it: unsharded parameters, their gradients, reduce
# buffers.
#
# Environment: ROUNDS (3) pairs per rate, STEPS (8) a run, GSO_BYTES (32768). Needs root, iproute2, Python and Open MPI.
# All traffic stays inside the namespaces, which are removed at the end.
set -euo pipefail

. "$(dirname "$0")/runs.sh"
program "overlap.sh TITAN [RATE ...] -- [titan train options]" "${1-}"
shift
rates=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    rates+=("$1")
    shift
done
[ $# -gt 0 ] && shift
[ ${#rates[@]} -gt 0 ] || rates=(none 200mbit)
rounds=${ROUNDS:-3}
steps=${STEPS:-8}
engine=--parallelism.fsdp_engine
dir=$(mktemp -d)
trap 'remove_hosts; rm -rf "$dir"' EXIT
. "$(dirname "$0")/hosts.sh"

on_one() { # JOB, command
    taskset -c $(($1 - 1)) "${@:2}"
}

memory() { # options
    "$titan" plan --ranks 2 --json "$@" 2>/dev/null | python3 -c '
import json, sys
m = json.load(sys.stdin)["memory"]
print(m["peak_bytes"], sum(m["by_kind"][k] for k in ("unsharded", "unsharded_grads", "reduce")))'
}

grep -m1 'model name' /proc/cpuinfo
make_hosts
set -- --parallelism.threads_per_rank=1 --training.global_batch_size=-1 "$@"
read -r eager_peak eager_transient < <(memory "$engine=eager" "$@")
read -r planned_peak planned_transient < <(memory "$engine=planned" "$@")
awk -v e="$eager_peak" -v p="$planned_peak" -v et="$eager_transient" -v pt="$planned_transient" 'BEGIN {
    printf "peak bytes: eager %d, planned %d (%.3f); transient at the peak: %d, %d (%.3f)\n", e, p, p / e, et, pt, pt / et }'
read -r tiny_alone _ < <(alone "$engine=eager" "$@" --training.seq_len=8)
printf '%-8s %8s %8s %8s %8s %8s %8s %8s %8s %8s %10s\n' rate alone comm eager waits planned waits comm/al. hidden \
    "hidden p" "eager/pl."
for rate in "${rates[@]}"; do
    throttle "$rate"
    on_both "$titan" bench --only sgemm,memory,collectives --save "$dir/machine.json" \
        --parallelism.threads_per_rank=1 --job.dump_folder="$dir"
    read -r tiny _ < <(pair "$engine=eager" "$@" --training.seq_len=8)
    : >"$dir/rows"
    for ((i = 0; i < rounds; i++)); do
        read -r compute _ < <(alone "$engine=eager" "$@")
        read -r eager waits < <(pair "$engine=eager" "$@")
        read -r planned waits_p < <(pair "$engine=planned" --parallelism.machine_file="$dir/machine.json" "$@")
        awk -v r="$rate" -v a="$compute" -v t="$tiny" -v u="$tiny_alone" -v e="$eager" -v p="$planned" -v w="$waits" \
            -v wp="$waits_p" 'BEGIN {
            c = t - u
            printf "%-8s %8.4f %8.4f %8.4f %8.4f %8.4f %8.4f %8.2f %8.3f %8.3f %10.3f\n",
                   r, a, c, e, w, p, wp, c / a, 1 - (e - a) / c, 1 - (p - a) / c, e / p }' |
            tee -a "$dir/rows"
    done
    python3 - "$dir/rows" <<'EOF'
import statistics, sys
rows = [list(map(float, line.split()[1:])) for line in open(sys.argv[1])]
print(("%-8s" + " %8.4f" * 6 + " %8.2f %8.3f %8.3f %10.3f") % ("median", *map(statistics.median, zip(*rows))))
EOF
done

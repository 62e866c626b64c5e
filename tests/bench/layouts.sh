#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Which division of one model over two hosts is fastest at a given rate of the link between them, measured and
# predicted. hosts.sh makes the hosts. Runs the layouts in turn. A benchmark, never a test.
#
#   layouts.sh TITAN [RATE ...] -- [titan train options]    e.g. layouts.sh build/titan 100mbit 1gbit --
#                                                           --model.flavor=debugmodel
#
# All layouts take the same BATCH sequences in a step. Prints for each of them the median seconds of a step without the
# first two, what `titan estimate` predicts with a machine file measured at that rate, and both orders.
#
# Environment: ROUNDS (3), STEPS (6) a run, BATCH (8), LAYOUTS (FSDP HSDP TP PP), GSO_BYTES (hosts.sh). Needs root,
# iproute2, Python and Open MPI.
set -euo pipefail

. "$(dirname "$0")/runs.sh"
program "layouts.sh TITAN [RATE ...] -- [titan train options]" "${1-}"
shift
rates=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    rates+=("$1")
    shift
done
[ $# -gt 0 ] && shift
[ ${#rates[@]} -gt 0 ] || rates=(100mbit 1gbit)
rounds=${ROUNDS:-3}
steps=${STEPS:-6}
batch=${BATCH:-8}
dir=$(mktemp -d)
trap 'remove_hosts; rm -rf "$dir"' EXIT
. "$(dirname "$0")/hosts.sh"

# The options of a layout. A rank of FSDP and HSDP has half of the batch as one microbatch.
layout() { # NAME
    local whole="--training.local_batch_size=$batch" half="--training.local_batch_size=$((batch / 2))"
    case $1 in
    FSDP) echo "$half" ;;
    HSDP) echo "$half --parallelism.data_parallel_replicate_degree=2 --parallelism.data_parallel_shard_degree=1" ;;
    TP) echo "$whole --parallelism.tensor_parallel_degree=2" ;;
    PP) echo "$whole --parallelism.pipeline_parallel_degree=2" ;;
    esac
}

predicted() { # options
    "$titan" estimate --ranks 2 --json "$@" | python3 -c '
import json, sys
rows = {row["policy"]: row["step_s"] for row in reversed(json.load(sys.stdin)["rows"])}
print(rows.get("default", rows["always"]))'
}

grep -m1 'model name' /proc/cpuinfo
make_hosts
set -- --parallelism.threads_per_rank=1 --training.global_batch_size="$batch" \
    --parallelism.machine_file="$dir/machine.json" "$@"
for rate in "${rates[@]}"; do
    throttle "$rate"
    on_both "$titan" bench --only sgemm,memory,collectives --save "$dir/machine.json" \
        --parallelism.threads_per_rank=1 --job.dump_folder="$dir"
    : >"$dir/rows"
    for ((i = 0; i < rounds; i++)); do
        for name in ${LAYOUTS:-FSDP HSDP TP PP}; do
            read -r -a more < <(layout "$name")
            read -r time _ < <(pair "${more[@]}" "$@")
            echo "$name $time $(predicted "${more[@]}" "$@")" >>"$dir/rows"
        done
    done
    python3 - "$rate" "$dir/rows" <<'EOF'
import statistics, sys
times = {}
for line in open(sys.argv[2]):
    name, measured, predicted = line.split()
    times.setdefault(name, []).append((float(measured), float(predicted)))
rows = {name: [statistics.median(column) for column in zip(*values)] for name, values in times.items()}
print(f"rate {sys.argv[1]}")
for name, (measured, predicted) in rows.items():
    print(f"  {name:5} {measured:9.3f} s, predicted {predicted:9.3f} s ({predicted / measured:.2f})")
orders = [" < ".join(sorted(rows, key=lambda name: rows[name][column])) for column in (0, 1)]
print(f"  order: {orders[0]}; predicted: {orders[1]}{'' if orders[0] == orders[1] else ' (another one)'}")
EOF
done

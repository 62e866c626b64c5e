#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# How well steps on this machine are predicted: 40 configurations, each predicted by `titan estimate` from a machine
# file that `titan bench` wrote, and then run. A benchmark, never a test; it needs a quiet machine with two cores.
#
#   predicted.sh TITAN [N [FIRST]]      e.g. predicted.sh build/titan; or only N configurations, from the FIRST (1)
#
# The configurations: two models x float32, bfloat16 x activation checkpointing none, full x one rank of one thread, one
# rank of two threads, and two ranks of one thread with links of 1 Gb/s, 200 Mb/s and no limit (hosts.sh). For each of
# these five setups there is one machine file.
#
# Prints a row for each configuration: predicted and measured seconds of a step (the median without the first two), and
# the error; then the median of the errors without their signs, the 90th percentile, the worst, and Kendall's tau
# between predicted and measured times of each setup.
#
# Environment: STEPS (10) a run, BENCH_SECONDS (40) for a machine file. Needs root, iproute2, Python and Open MPI.
set -euo pipefail

. "$(dirname "$0")/runs.sh"
program "predicted.sh TITAN [N [FIRST]]" "${1-}"
most=${2:-40}
first=${3:-1}
steps=${STEPS:-10}
dir=$(mktemp -d)
trap 'remove_hosts; rm -rf "$dir"' EXIT
. "$(dirname "$0")/hosts.sh"

on_one() { # THREADS, command
    taskset -c "0-$(($1 - 1))" "${@:2}" >"$dir/log" 2>&1 || { cat "$dir/log" >&2; exit 1; }
}

setups=("one-rank 1 1 none" "two-threads 1 2 none" "two-ranks 2 1 none" "1gbit 2 1 1gbit" "200mbit 2 1 200mbit")
models=("--model.dim=256 --model.n_layers=4 --model.n_heads=4 --model.n_kv_heads=4 --model.ffn_dim=1024"
    "--model.dim=512 --model.n_layers=4 --model.n_heads=8 --model.n_kv_heads=4 --model.ffn_dim=1536")

# run RANKS THREADS, command
run_on() {
    if [ "$1" = 2 ]; then on_both "${@:3}"; else on_one "$2" "${@:3}"; fi
}

# Seconds of a step as predicted for the configured policy.
predict() { # RANKS, options
    "$titan" estimate --ranks "$1" --json "${@:2}" 2>"$dir/log" | python3 -c '
import json, sys
print([r["step_s"] for r in json.load(sys.stdin)["rows"] if r["policy"] == "default"][0])' ||
        { cat "$dir/log" >&2; exit 1; }
}

make_hosts
: >"$dir/rows"
printf '%-12s %-6s %-9s %-5s %11s %11s %8s\n' setup model dtype ac predicted measured error
n=0
for setup in "${setups[@]}"; do
    read -r name ranks threads rate <<<"$setup"
    measured=
    for m in 0 1; do
        for dtype in float32 bfloat16; do
            for ac in none full; do
                n=$((n + 1))
                [ $n -ge "$first" ] && [ $n -lt $((first + most)) ] || continue
                if [ -z "$measured" ]; then
                    throttle "$rate"
                    run_on "$ranks" "$threads" "$titan" bench --only sgemm,memory,ops,collectives \
                        --seconds "${BENCH_SECONDS:-40}" --save "$dir/machine.json" --job.dump_folder="$dir" \
                        --parallelism.threads_per_rank="$threads"
                    measured=yes
                fi
                read -r -a model <<<"${models[m]}"
                line=("${model[@]}" --training.seq_len=256 --training.local_batch_size=4
                    --training.global_batch_size="$((8 * ranks))" --training.mixed_precision_param="$dtype"
                    --activation_checkpoint.mode="$ac" --parallelism.threads_per_rank="$threads"
                    --parallelism.machine_file="$dir/machine.json" --validation.enable=false)
                predicted=$(predict "$ranks" "${line[@]}")
                mapfile -t all < <(options "$dir/run" "${line[@]}")
                rm -rf "$dir/run"
                run_on "$ranks" "$threads" "$titan" train "${all[@]}"
                read -r seconds _ < <(median "$dir/run")
                printf '%s %s %s %s %s %s\n' "$name" "$m" "$dtype" "$ac" "$predicted" "$seconds" >>"$dir/rows"
                awk -v s="$name" -v m="$m" -v d="$dtype" -v a="$ac" -v p="$predicted" -v t="$seconds" 'BEGIN {
                    printf "%-12s %-6s %-9s %-5s %9.4f s %9.4f s %+6.1f %%\n", s, m, d, a, p, t, 100 * (p / t - 1) }'
            done
        done
    done
done
python3 - "$dir/rows" <<'EOF'
import statistics, sys
rows = [line.split() for line in open(sys.argv[1])]
errors = sorted(abs(float(p) / float(t) - 1) for *_, p, t in rows)
print(f"{len(rows)} configurations: median {100 * statistics.median(errors):.1f} %, 90th percentile "
      f"{100 * errors[max(0, -(-9 * len(errors) // 10) - 1)]:.1f} %, worst {100 * errors[-1]:.1f} %")
for setup in dict.fromkeys(r[0] for r in rows):
    pairs = [(float(r[-2]), float(r[-1])) for r in rows if r[0] == setup]
    signs = [((a[0] - b[0]) * (a[1] - b[1]) > 0) - ((a[0] - b[0]) * (a[1] - b[1]) < 0)
             for i, a in enumerate(pairs) for b in pairs[:i]]
    if signs:
        print(f"{setup}: Kendall's tau {sum(signs) / len(signs):.2f}")
EOF

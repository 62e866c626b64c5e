# SPDX-License-Identifier: MIT
# Runs of titan on two processes, with and without sharding, and the time of their steps. copies.sh and overlap.sh
# source this file.
#
# The script that sources it calls `program` and sets
#   steps    steps of a run
#   dir      a folder for runs and logs, which it removes
# and defines
#   on_both COMMAND...       the command as two ranks; its output goes to $dir/log and is printed if it fails
#   on_one JOB COMMAND...    the command as job 1 or 2 of two that run at once, independently

# program USAGE PATH: sets titan, or prints the usage.
program() {
    if [ "${2-}" = --help ]; then
        echo "usage: $1"
        exit 0
    fi
    if [ ! -f "${2-}" ] || [ ! -x "${2-}" ]; then
        echo "usage: $1" >&2
        echo "no program at '${2-}'" >&2
        exit 2
    fi
    titan=$(realpath "$2")
}

# Median seconds of a step, and of the part of it that rank 0 waited, without the first two steps.
median() { # FOLDER
    python3 - "$1/metrics.jsonl" <<'PY'
import json, statistics, sys
steps = [r for r in map(json.loads, open(sys.argv[1])) if r.get("type") == "step"][2:]
print(*(statistics.median(r[k] for r in steps) for k in ("step_time_s", "comm_exposed_s")))
PY
}

options() { # FOLDER, options
    printf '%s\n' --job.dump_folder="$1" --training.steps="$steps" --metrics.log_freq=1 --checkpoint.enable=false \
        --validation.enable=false "${@:2}"
}

# A job of two ranks.
pair() { # options
    local line
    mapfile -t line < <(options "$dir/pair" "$@")
    rm -rf "$dir/pair"
    on_both "$titan" train "${line[@]}"
    median "$dir/pair"
}

# Two jobs of one rank at once; the slower counts.
alone() { # options
    local job line jobs=()
    for job in 1 2; do
        mapfile -t line < <(options "$dir/alone$job" "$@")
        rm -rf "$dir/alone$job"
        on_one "$job" "$titan" train "${line[@]}" >"$dir/log$job" 2>&1 &
        jobs+=($!)
    done
    for job in 1 2; do
        wait "${jobs[job - 1]}" || { cat "$dir/log$job" >&2; exit 1; }
    done
    { median "$dir/alone1"; median "$dir/alone2"; } | sort -g | tail -1
}

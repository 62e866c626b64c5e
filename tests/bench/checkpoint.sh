#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# How fast a checkpoint is saved, compared with dd in the same folder, and how much an async save slows the steps during
# which it runs.
#
#     tests/bench/checkpoint.sh [TITAN] [PAIRS] [FOLDER]        build/titan, 5, a temporary folder
#
# 1. PAIRS times in turn: a run of one step that saves, and `dd conv=fsync` of as many bytes into the same folder.
#    Prints both rates and their ratio for each pair, and the median of the ratios.
# 2. A run of STEPS steps (100) that saves in a thread every 10. Prints how long training waited, and how long of that
#    for the copy. Prints how much longer the steps during a save took, in all, than the steps before and after it; and
#    the same for spans of that length halfway between two saves, which shows how much of it is noise.
#
# A benchmark, never a test: the numbers depend on the disk and on what else the machine does.
set -eu
. "$(dirname "$0")/runs.sh"
program "checkpoint.sh [TITAN] [PAIRS] [FOLDER]" "${1:-build/titan}"
pairs=${2:-5}
folder=${3:-$(mktemp -d)}
mkdir -p "$folder"
trap 'rm -rf "$folder/run" "$folder/async" "$folder/dd" "$folder/cache" "$folder/corpus.txt"' EXIT
awk 'BEGIN { for (i = 0; i < 20000; i++) printf "And the evening and the morning were day %d of %d.\n", i, i * 7 }' \
    >"$folder/corpus.txt"

# 55M parameters, 660 MB of state, and little to compute.
common=(--training.dataset=text --training.dataset_path="$folder/corpus.txt" --dataloader.cache_dir="$folder/cache"
    --model.dim=1024 --model.n_layers=4 --model.n_heads=8 --model.n_kv_heads=8 --model.ffn_dim=2816
    --training.local_batch_size=1 --metrics.log_freq=1 --metrics.peak_flops=1e11 --checkpoint.enable)

for pair in $(seq "$pairs"); do
    rm -rf "$folder/run"
    "$titan" train "${common[@]}" --training.seq_len=32 --training.steps=1 \
        --job.dump_folder="$folder/run" >/dev/null 2>&1
    bytes=$(python3 -c '
import json, sys
records = map(json.loads, open(sys.argv[1]))
print([r for r in records if r["type"] == "checkpoint"][-1]["bytes"])' "$folder/run/metrics.jsonl")
    begin=$(date +%s.%N)
    dd if=/dev/zero of="$folder/dd" bs=1M count=$((bytes / 1048576)) conv=fsync status=none
    end=$(date +%s.%N)
    rm -f "$folder/dd"
    python3 - "$folder/run/metrics.jsonl" "$begin" "$end" "$pair" <<'EOF' | tee -a "$folder/ratios"
import json, sys
save = [r for r in map(json.loads, open(sys.argv[1])) if r["type"] == "checkpoint"][-1]
dd = float(sys.argv[3]) - float(sys.argv[2])
print(f"pair {sys.argv[4]}: {save['bytes'] / 1e6:.0f} MB  save {save['bytes'] / save['total_s'] / 1e9:.2f} GB/s  "
      f"dd conv=fsync {save['bytes'] / dd / 1e9:.2f} GB/s  ratio {dd / save['total_s']:.2f}")
EOF
done
awk '{ print $NF }' "$folder/ratios" | sort -n | awk '{ r[NR] = $1 } END { print "median ratio " r[int((NR + 1) / 2)] }'
rm -f "$folder/ratios"

rm -rf "$folder/async"
"$titan" train "${common[@]}" --training.seq_len=64 --training.steps="${STEPS:-100}" --checkpoint.interval=10 \
    --checkpoint.keep_latest_k=1 \
    --checkpoint.async_mode=async --job.dump_folder="$folder/async" >/dev/null 2>&1
python3 - "$folder/async/metrics.jsonl" <<'EOF'
import json, statistics, sys
records = [json.loads(line) for line in open(sys.argv[1])]
saves = [r for r in records if r["type"] == "checkpoint" and r.get("async")]
spans = [(r["time"] - r["total_s"], r["time"]) for r in saves]
steps = [(r["step"], r["time"] - r["step_time_s"], r["time"], r["step_time_s"])
         for r in records if r["type"] == "step" and r["step"] > 2]
usual = statistics.median(s[3] for s in steps)
gaps = [b[0] - a[0] for a, b in zip(spans, spans[1:])]


def cost(begin, end):
    """How much longer the steps that overlap [begin, end] took, in all, than their neighbours (per cent of a step)."""
    during = [s for s in steps if begin < s[2] and s[1] < end]
    apart = [s for s in steps if all(s[2] < a or s[1] > b for a, b in spans)]
    near = [s[3] for s in apart if during and during[0][0] - 5 <= s[0] <= during[-1][0] + 5 and s not in during]
    return [100 * sum(s[3] - statistics.median(near) for s in during) / usual] if near else []


def spread(values, unit, digits):
    if not values:
        return print("no steps to compare: take more STEPS, or a faster disk")
    print(f"median {statistics.median(values):.{digits}f} {unit} ({min(values):.{digits}f} to {max(values):.{digits}f})")


print(f"{len(saves)} async saves, steps of {usual:.2f} s")
print("written in             ", end="")
spread([r["written_s"] for r in saves], "s", 2)
print("training waits, copy   ", end="")
spread([r["staged_s"] for r in saves], "s", 3)
print("training waits, else   ", end="")
spread([r["blocked_s"] - r["staged_s"] for r in saves], "s", 3)
print("steps during a save    ", end="")
spread(sum((cost(*span) for span in spans), []), "% of a step longer, together", 1)
print("where no save is       ", end="")
half = statistics.median(gaps) / 2 if gaps else 0
spread(sum((cost(a + half, b + half) for a, b in spans if b - a < half), []), "% of a step longer, together", 1)
EOF

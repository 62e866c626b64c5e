#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# How fast a checkpoint is saved, against dd in the same folder, and what an async save costs the steps that it runs behind.
#
#     tests/bench/checkpoint.sh [TITAN] [PAIRS] [FOLDER]        build/titan, 5, a temporary folder
#
# 1. PAIRS times in turn: a run of one step that saves, and `dd conv=fsync` of as many bytes into the same folder. Prints
#    both rates and their ratio for each pair, and the median of the ratios.
# 2. A run with async saves. Prints how long training waited, of that for the copy, and the median time of the steps that
#    ended while a save was under way against the others'.
#
# Nothing passes or fails here: numbers depend on the disk and on what else the machine does.
set -eu
. "$(dirname "$0")/runs.sh"
program "checkpoint.sh [TITAN] [PAIRS] [FOLDER]" "${1:-build/titan}"
pairs=${2:-5}
folder=${3:-$(mktemp -d)}
mkdir -p "$folder"
trap 'rm -rf "$folder/run" "$folder/async" "$folder/dd" "$folder/cache" "$folder/corpus.txt"' EXIT
awk 'BEGIN { for (i = 0; i < 20000; i++) printf "And the evening and the morning were day %d of %d.\n", i, i * 7 }' >"$folder/corpus.txt"

# 55M parameters, 660 MB of state, little to compute.
common=(--training.dataset=text --training.dataset_path="$folder/corpus.txt" --dataloader.cache_dir="$folder/cache"
    --model.dim=1024 --model.n_layers=4 --model.n_heads=8 --model.n_kv_heads=8 --model.ffn_dim=2816
    --training.local_batch_size=1 --metrics.log_freq=1 --metrics.peak_flops=1e11 --checkpoint.enable)

for pair in $(seq "$pairs"); do
    rm -rf "$folder/run"
    "$titan" train "${common[@]}" --training.seq_len=32 --training.steps=1 --job.dump_folder="$folder/run" >/dev/null 2>&1
    bytes=$(python3 -c '
import json, sys
print([r for r in map(json.loads, open(sys.argv[1])) if r["type"] == "checkpoint"][-1]["bytes"])' "$folder/run/metrics.jsonl")
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

"$titan" train "${common[@]}" --training.seq_len=64 --training.steps=36 --checkpoint.interval=9 --checkpoint.keep_latest_k=1 \
    --checkpoint.async_mode=async --job.dump_folder="$folder/async" >/dev/null 2>&1
python3 - "$folder/async/metrics.jsonl" <<'EOF'
import json, statistics, sys
records = [json.loads(line) for line in open(sys.argv[1])]
saves = [r for r in records if r["type"] == "checkpoint" and r.get("async")]
spans = [(r["time"] - r["total_s"], r["time"]) for r in saves]
behind, alone = [], []
for r in records:
    if r["type"] == "step" and r["step"] > 2:
        begin = r["time"] - r["step_time_s"]
        inside = any(a <= begin and r["time"] <= b for a, b in spans)
        apart = all(r["time"] <= a or begin >= b for a, b in spans)
        if inside or apart:
            (behind if inside else alone).append(r["step_time_s"])
for r in saves:
    print(f"async save of step {r['step']}: training waited {r['blocked_s']:.3f} s ({r['staged_s']:.3f} s for the copy), "
          f"written in {r['written_s']:.2f} s")
if behind and alone:
    print(f"steps: {statistics.median(alone):.4f} s without a save ({len(alone)}), "
          f"{statistics.median(behind):.4f} s behind one ({len(behind)}): "
          f"{100 * (statistics.median(behind) / statistics.median(alone) - 1):+.1f} %")
EOF

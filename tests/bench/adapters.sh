#!/bin/bash
# SPDX-License-Identifier: MIT
# adapters.sh TITAN FOLDER [STEPS [TUNED [OPTION...]]]: what packing the frozen weights costs in loss. Trains a model
# for STEPS (600) steps on the Bible, then adapters of it for TUNED (200) steps on sums, with the frozen weights in each
# type, and prints the losses of the last step and of held-out sums. OPTIONs are for the first run, such as
# --model.flavor=125M.
# Losses do not depend on what else the machine does.
set -eu
titan=$(realpath "$1") steps=${3:-600} tuned=${4:-200}
mkdir -p "$2"
cd "$2"
shift $(($# < 4 ? $# : 4))
python3 - <<'END'
import json
with open("sums.jsonl", "w") as train, open("held-out.jsonl", "w") as held_out:
    for a in range(60):
        for b in range(40):
            print(json.dumps({"text": f"And the king said, {a} and {b} are {a + b}."}),
                  file=held_out if (a + 7 * b) % 20 == 0 else train)
END
batch="--training.seq_len=128 --training.local_batch_size=8 --training.global_batch_size=8 --checkpoint.enable"
[ -e base/checkpoint/step-$steps/hf ] ||
    "$titan" train --model.name=llama3 --model.flavor=debugmodel --training.steps=$steps $batch --optimizer.lr=1e-3 \
        --lr_scheduler.warmup_steps=40 --checkpoint.interval=$steps --checkpoint.last_save_in_hf \
        --job.dump_folder=base "$@" >base.log 2>&1
echo "| frozen weights | loss | held out | more than bfloat16 |"
echo "|---|---|---|---|"
for type in bfloat16 int8 q8_0 nf4 q4_0; do
    "$titan" train --model.flavor=hf --model.hf_assets_path=base/checkpoint/step-$steps/hf \
        --checkpoint.initial_load_in_hf --lora.rank=8 --lora.alpha=16 --lora.base_dtype=$type --training.dataset=jsonl \
        --training.dataset_path=sums.jsonl --training.document_mask --training.steps=$tuned $batch \
        --optimizer.lr=2e-3 --lr_scheduler.warmup_steps=10 --job.dump_folder=$type --checkpoint.interval=$tuned \
        --validation.enable --validation.dataset=jsonl --validation.dataset_path=held-out.jsonl \
        --validation.freq=$tuned --validation.seq_len=128 >$type.log 2>&1
    python3 - $type <<'END'
import json, sys
def last(kind, folder):
    records = [json.loads(line) for line in open(folder + "/metrics.jsonl")]
    return [r["loss"] for r in records if r["type"] == kind][-1]
loss, held = last("step", sys.argv[1]), last("validate", sys.argv[1])
print("| %s | %.4f | %.4f | %+.4f |" % (sys.argv[1], loss, held, held - last("validate", "bfloat16")))
END
done

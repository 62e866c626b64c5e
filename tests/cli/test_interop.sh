#!/bin/bash
# SPDX-License-Identifier: MIT
# Checkpoints between titan and PyTorch, with PyTorch itself. Needs torch and safetensors in $TITAN_PYTHON (python3).
. "$(dirname "$0")/lib.sh"

python=${TITAN_PYTHON:-python3}
interop=$TITAN_SOURCE/tests/interop

need_torch() {
    "$python" -c 'import torch, safetensors.torch' 2>/dev/null || skip "no torch in $python"
}

case_pytorch_reads_what_titan_writes() {
    need_torch
    make_corpus
    for policy in "all" "filtered --checkpoint.filter=rank0"; do
        rm -rf run weights
        run_ranks 3 train $tiny --training.global_batch_size=6 --checkpoint.enable --checkpoint.save_policy=$policy
        expect_ok
        run ckpt consolidate run/checkpoint/step-3 weights
        expect_ok
        "$python" "$interop/read_with_torch.py" run/checkpoint/step-3 weights >read.txt 2>&1 || not_as "$(tail -20 read.txt)"
    done
}

case_titan_reads_what_pytorch_writes() {
    need_torch
    for ranks in 1 2 3; do
        rm -rf shards weights
        "$python" "$interop/write_with_torch.py" shards --ranks $ranks >write.txt 2>&1 || not_as "$(tail -20 write.txt)"
        run ckpt consolidate shards weights
        expect_ok
        "$python" "$interop/write_with_torch.py" --compare weights >compare.txt 2>&1 || not_as "$(tail -5 compare.txt)"
    done
}

run_cases

#!/bin/sh
# SPDX-License-Identifier: MIT
# pictures.sh [FOLDER]: draws the pictures of the book (default: docs/pictures) with `titan plan --svg`. TITAN names the
# program (default: build/titan). The pictures do not depend on the machine. Look at each after a change:
# rsvg-convert FILE.svg -o FILE.png
set -e
source=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$source/docs/pictures}

# draw NAME OVERRIDE...: the step of rank 0 of four.
draw() {
    name=$1
    shift
    "${TITAN:-$source/build/titan}" plan --config "$source/docs/pictures.yaml" --ranks 4 "$@" \
        --svg "$folder/$name.svg" >/dev/null
}

draw fsdp
draw keep --parallelism.fsdp_reshard_after_forward=never
draw replicas --parallelism.data_parallel_shard_degree=1 --parallelism.data_parallel_replicate_degree=4
draw hsdp --parallelism.data_parallel_replicate_degree=2
draw every --training.global_batch_size=8
draw last --training.global_batch_size=8 --training.gradient_sync=last_microbatch
draw planned --parallelism.fsdp_engine=planned

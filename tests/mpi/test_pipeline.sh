# SPDX-License-Identifier: MIT
# Ranks of a pipeline send to each other at the same time, in messages for which MPI waits until they are received. A
# rank that waited for its send before its receive has begun would wait forever.
. "$(dirname "$0")/../cli/lib.sh"

# A message has 64 KiB. Every message needs the receiver's answer, over both transports.
common="--model.flavor=debugmodel --training.seq_len=64 --training.global_batch_size=8 --training.steps=2
    --metrics.log_freq=1 --metrics.peak_flops=1e9 --dataloader.cache_dir=cache --training.dataset=text
    --training.dataset_path=corpus.txt --parallelism.threads_per_rank=1 --checkpoint.enable=false
    --comm.train_timeout_seconds=30"
pp=--parallelism.pipeline_parallel
export TITAN_PEER_MEMORY=off OMPI_MCA_btl_vader_eager_limit=1024 OMPI_MCA_btl_tcp_eager_limit=1024
export OMPI_MCA_btl_sm_eager_limit=1024 # Open MPI 5's name

case_messages_cross_in_opposite_directions() {
    make_corpus
    run train $common --training.local_batch_size=1 --job.dump_folder=one
    expect_ok
    while read -r transport ranks schedule; do
        OMPI_MCA_btl=$transport run_ranks "$ranks" train $common --job.dump_folder=many ${pp}_degree="$ranks" \
            ${pp}_schedule="$schedule" --training.local_batch_size=8
        expect_ok
        run compare one many --assert-equal
        expect_ok
        rm -rf many
    done <<'EOF_ROWS'
self,vader 2 1F1B
self,vader 4 1F1B
self,vader 2 ZBVZeroBubble
self,tcp 2 1F1B
self,tcp 2 Interleaved1F1B
self,tcp 2 DualPipeV
EOF_ROWS
}

run_cases

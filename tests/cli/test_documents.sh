#!/bin/bash
# SPDX-License-Identifier: MIT
# training.document_mask: tokens attend only within their own documents.
. "$(dirname "$0")/lib.sh"

# Documents of 1 to 60 words, so that sequences hold several of them and parts of long ones.
make_documents() {
    awk 'BEGIN { for (i = 0; i < 300; i++) { printf "{\"text\": \"%d", i; for (k = i * i % 60; k > 0; k--)
        printf " the evening of day %d", i * k % 97; print "\"}" } }' >documents.jsonl
}
mask="$tiny --training.dataset=jsonl --training.dataset_path=documents.jsonl --training.document_mask"

losses_of() {
    grep '"type": *"step"' "$1/metrics.jsonl" | grep -o '"\(loss\|grad_norm\)": *[0-9.e-]*'
}

case_the_curve_is_another_one_and_the_same_on_any_layout() {
    make_documents
    run train $mask
    expect_ok
    losses_of run >one
    [ "$(wc -l <one)" = 6 ] || not_as "expected losses and norms of 3 steps"
    run train $mask --no-training.document_mask --job.dump_folder=causal
    expect_ok
    losses_of causal >causal.txt
    ! cmp -s one causal.txt || not_as "expected other losses with document_mask"
    run_ranks 2 train $mask --job.dump_folder=two --parallelism.fsdp_engine=planned
    expect_ok
    losses_of two >two.txt
    expect_same one two.txt
    run train $mask --job.dump_folder=small --training.local_batch_size=2 --parallelism.threads_per_rank=3
    expect_ok
    losses_of small >small.txt
    expect_same one small.txt
}

case_a_resumed_run_continues_exactly() {
    make_documents
    run train $mask --checkpoint.enable --checkpoint.interval=2 --training.steps=4 --lr_scheduler.total_steps=4
    expect_ok
    losses_of run >whole
    run train $mask --checkpoint.enable --training.steps=2 --lr_scheduler.total_steps=4 --job.dump_folder=parts
    expect_ok
    run train $mask --checkpoint.enable --training.steps=4 --lr_scheduler.total_steps=4 --job.dump_folder=parts
    expect_ok
    losses_of parts >parts.txt
    expect_same whole parts.txt
    run train $mask --checkpoint.enable --training.steps=5 --lr_scheduler.total_steps=4 --job.dump_folder=parts \
        --no-training.document_mask
    expect_ok
    expect_err "training.document_mask true -> false"
}

case_eval_takes_it_from_the_run() {
    make_documents
    run train $mask --checkpoint.enable --validation.enable --validation.dataset=jsonl \
        --validation.dataset_path=documents.jsonl --validation.local_batch_size=2
    expect_ok
    grep '"type": *"validate"' run/metrics.jsonl | tail -1 >validated
    run eval run --json --batch 2
    expect_ok
    expect_json 'assert found["loss"] == json.load(open("validated"))["loss"], found'
    run eval run --json --batch 2 --no-training.document_mask
    expect_ok
    expect_json 'assert found["loss"] != json.load(open("validated"))["loss"], found'
}

case_files_that_name_no_documents_are_refused() {
    make_documents
    head -c 4000 documents.jsonl >tokens.bin
    cat >config.yaml <<'EOF'
training:
  dataset: tokens_u16
  dataset_path: tokens.bin
  document_mask: true
EOF
    run config check --config config.yaml
    expect_error 2 "config.yaml:4:18: training.document_mask: .*tokens_u16.* does not say where its documents begin" \
        "titan data pack"
    python3 -c 'import struct; open("tokens.bin", "wb").write(struct.pack("<256i", 20240520, 1, 900, *[0] * 253)
        + struct.pack("<900H", *[i % 97 for i in range(900)]))'
    sed -i 's/tokens_u16/tokens/' config.yaml
    run train --config config.yaml --training.seq_len=32 --job.dump_folder=run
    expect_error 2 "config.yaml:4:18: .*dataset 'tokens' does not say where its documents begin" "titan data pack"
}

case_packed_documents_are_the_same_data() {
    make_documents
    run data pack --dataset jsonl --dataset_path documents.jsonl --out documents.tokens
    expect_ok
    run train $mask
    expect_ok
    run train $mask --training.dataset=tokens --training.dataset_path=documents.tokens --job.dump_folder=packed
    expect_ok
    losses_of run >a
    losses_of packed >b
    expect_same a b
}

run_cases

#!/bin/bash
# SPDX-License-Identifier: MIT
# validation.split: documents that are held out of training, on any layout and after a resume.
. "$(dirname "$0")/lib.sh"

# 300 documents of 1 to 60 words.
make_documents() {
    awk 'BEGIN { for (i = 0; i < 300; i++) { printf "{\"text\": \"%d", i; for (k = i * i % 60; k > 0; k--)
        printf " the evening of day %d", i * k % 97; print "\"}" } }' >documents.jsonl
}
split="$tiny --verbose --training.dataset=jsonl --training.dataset_path=documents.jsonl --validation.split=5%
    --validation.enable --validation.freq=1 --validation.local_batch_size=2 --training.local_batch_size=1
    --training.steps=4 --lr_scheduler.total_steps=4"

losses_of() {
    grep -E '"type":"(step|validate)"' "$1/metrics.jsonl" | grep -o '"type":"[a-z]*"\|"\(loss\|tokens\)":[0-9.]*'
}

case_the_losses_are_the_same_on_any_layout_and_after_a_resume() {
    make_documents
    run train $split
    expect_ok
    expect_err "^  data     jsonl documents.jsonl: 28[0-9] of 300 documents, "
    expect_err "^  validate jsonl documents.jsonl: 1[0-9] of 300 documents, .*, held out of training, at step 1"
    losses_of run >alone.txt
    [ "$(grep -c validate alone.txt)" = 4 ] || not_as "expected four validations"
    for ranks in 2 4; do
        run_ranks $ranks train $split --job.dump_folder=on-$ranks
        expect_ok
        losses_of on-$ranks >losses.txt
        expect_same alone.txt losses.txt
    done
    pipeline="--training.local_batch_size=2 --parallelism.pipeline_parallel_microbatch_size=1"
    run_ranks 2 train $split $pipeline --parallelism.pipeline_parallel_degree=2 --job.dump_folder=pipeline
    expect_ok
    losses_of pipeline >losses.txt
    expect_same alone.txt losses.txt
    run_ranks 4 train $split --checkpoint.enable --training.steps=2 --job.dump_folder=parts
    expect_ok
    run train $split --checkpoint.enable --training.steps=3 --job.dump_folder=parts
    expect_ok
    run_ranks 2 train $split --checkpoint.enable --job.dump_folder=parts
    expect_ok
    losses_of parts >losses.txt
    expect_same alone.txt losses.txt
}

case_eval_takes_the_documents_that_were_held_out() {
    make_documents
    run train $split --checkpoint.enable
    expect_ok
    grep '"type":"validate"' run/metrics.jsonl | tail -1 >validated
    run eval run --json --batch 2
    expect_ok
    expect_json 'assert found["loss"] == json.load(open("validated"))["loss"], found
assert found["trained_on"] is False and found["split"] == 0.05, found'
    run_ranks 2 eval run
    expect_ok
    expect_out "on jsonl documents.jsonl, 1[0-9] of 300 documents that were held out$"
    run eval run --dataset jsonl --dataset-path documents.jsonl
    expect_ok
    expect_out "on jsonl documents.jsonl, which it was trained on$"
    # even a run that never validates holds them out
    run train $split --no-validation.enable --checkpoint.enable --job.dump_folder=never
    expect_ok
    expect_err "validate never .*; validation.split holds out 5% of the documents all the same"
    run ckpt diff run/checkpoint/step-4 never/checkpoint/step-4
    expect_ok
    run eval never --json --batch 2
    expect_ok
    expect_json 'assert found["loss"] == json.load(open("validated"))["loss"], found'
}

case_each_dataset_of_a_list_is_divided() {
    make_documents
    run train $split --training.dataset_path=null --training.dataset='[{dataset: kjv, weight: 2}, {dataset: jsonl,
        dataset_path: documents.jsonl}]' --training.steps=2
    expect_ok
    expect_err "^  data     kjv: 1,0[0-9]+ of 1,130 documents, .* an epoch, 66.67% of the run$"
    expect_err "^           documents = jsonl documents.jsonl: 28[0-9] of 300 documents"
    expect_err "^  validate kjv: [0-9]+ of 1,130 documents, .* held out of training$"
    expect_err "^           documents = jsonl documents.jsonl: 1[0-9] of 300 documents"
    expect_out "^validate step: +2 .*kjv"
    expect_out "^validate step: +2 .*documents"
}

# The conversations of both sides are counted with their answers.
case_conversations_are_held_out() {
    awk 'BEGIN { for (i = 0; i < 300; i++) printf "{\"messages\": [{\"role\": \"user\", \"content\": \"%d?\"}, " \
        "{\"role\": \"assistant\", \"content\": \"It is %d.\"}]}\n", i, 7 * i }' >chats.jsonl
    make_chat_tokenizer
    chats="$split --training.dataset=jsonl_sft --training.dataset_path=chats.jsonl --model.hf_assets_path=tokenizer"
    run train $chats
    expect_ok
    expect_err "^  data     jsonl_sft chats.jsonl: 28[0-9] of 300 documents, .* of them learned"
    expect_err "^  validate jsonl_sft chats.jsonl: 1[0-9] of 300 documents, .* of them learned, .* held out of training"
    losses_of run >alone.txt
    run_ranks 2 train $chats --job.dump_folder=two
    expect_ok
    losses_of two >two.txt
    expect_same alone.txt two.txt
}

case_a_packed_file_is_divided_as_its_text() {
    make_documents
    run train $split --training.steps=2
    expect_ok
    losses_of run >text.txt
    run data pack --dataset jsonl --dataset-path documents.jsonl --out documents.tokens
    expect_ok
    run train $split --training.steps=2 --training.dataset=tokens --training.dataset_path=documents.tokens \
        --job.dump_folder=packed
    expect_ok
    losses_of packed >packed.txt
    expect_same text.txt packed.txt
}

case_another_part_on_resume_is_refused_by_name() {
    make_documents
    run train $split --checkpoint.enable --training.steps=2
    expect_ok
    run train $split --checkpoint.enable --validation.split=0.1
    expect_error 3 "trained with validation.split 5%, but this run has 10%: other documents would be held out" \
        "help: set validation.split=5%; or, to start the data over"
    run train $split --checkpoint.enable --validation.split=0
    expect_error 3 "trained with validation.split 5%, but this run has 0%"
    run train $split --checkpoint.enable --validation.split=10% --checkpoint.exclude_from_loading=dataloader
    expect_ok
    expect_err "changed .*since step-2: .*validation.split 0.05 -> 0.1"
    expect_err "the losses differ from those of the unchanged run: .*validation.split"
    # a run without the split continues only without it
    run train $split --validation.split=0 --checkpoint.enable --training.steps=2 --job.dump_folder=none
    expect_ok
    run train $split --checkpoint.enable --job.dump_folder=none
    expect_error 3 "trained with validation.split 0%, but this run has 5%"
    run train $split --validation.split=0 --checkpoint.enable --job.dump_folder=none
    expect_ok
}

case_what_cannot_be_divided_is_refused() {
    make_documents
    make_corpus
    cat >config.yaml <<'END'
training:
  dataset: jsonl
  dataset_path: documents.jsonl
validation:
  dataset: kjv_validation
  split: 1%
END
    run config check --config config.yaml
    expect_error 2 "config.yaml:6:10: validation.split: split holds out documents of training.dataset, but" \
        "help: remove one of the two"
    run config check --config config.yaml --validation.dataset=null
    expect_ok
    run config show --config config.yaml --validation.dataset=null --origin
    expect_ok
    expect_out "split: 0.01 +# config.yaml:6"
    expect_out "dataset: jsonl +# training.dataset"
    run config check --config config.yaml --validation.dataset=null --validation.split=60%
    expect_error 2 "validation.split: 60% is out of range: 0% to 50%"
    run config check --config config.yaml --validation.dataset=null --validation.split=some
    expect_error 2 "expected a part such as 1% or 0.01"
    run train $split --training.dataset=text --training.dataset_path=corpus.txt
    expect_error 2 "validation.split: dataset 'text' is a single document, and validation.split holds out whole" \
        "help: divide the text into documents"
    run train $split --validation.split=0.01%
    expect_error 2 "validation.split 0.01% holds out none of the 300 documents of dataset 'jsonl'" \
        "help: with validation.split=[0-9.]+% or more, one is held out"
    more=$(grep -Eo "with validation.split=[0-9.]+%" err | grep -Eo "[0-9.]+%")
    run train $split --dry-run --validation.split="$more" --validation.seq_len=1
    expect_ok
    expect_out "^  validate jsonl documents.jsonl: 1 of 300 documents"
    run train $split --training.dataset=tokens_u16 --training.dataset_path=documents.jsonl
    expect_error 2 "validation.split: dataset 'tokens_u16' does not say where its documents begin"
}

run_cases

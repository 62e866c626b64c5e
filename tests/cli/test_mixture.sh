#!/bin/bash
# SPDX-License-Identifier: MIT
# Lists of datasets: weighted mixtures to train on, and several validation sets.
. "$(dirname "$0")/lib.sh"

# Two texts with different words, and a configuration that mixes them 2 to 1.
make_texts() {
    make_corpus
    awk 'BEGIN { for (i = 0; i < 300; i++) printf "{\"content\": \"He begat %d sons and %d daughters.\"}\n", i, i * 3 }' \
        >sons.jsonl
    cat >mixture.yaml <<END
training:
  dataset:
  - {name: days, dataset: text, dataset_path: corpus.txt, weight: 2}
  - {dataset: jsonl, dataset_path: sons.jsonl, text_field: content}
END
}
mix="${tiny/--training.dataset=text --training.dataset_path=corpus.txt/--config mixture.yaml} --validation.enable
    --validation.local_batch_size=2 --validation.steps=2"

losses_of() {
    grep -E '"type": *"(step|validate)"' "$1/metrics.jsonl" | grep -o '"\(loss[a-z/]*\|grad_norm\)": *[0-9.e-]*'
}

case_a_resumed_run_on_other_ranks_has_the_same_samples() {
    make_texts
    run train $mix --training.steps=4 --lr_scheduler.total_steps=4
    expect_ok
    expect_err "data +days = text corpus.txt: .* 66.67% of the run"
    expect_err " sons = jsonl sons.jsonl: .* 33.33% of the run"
    expect_out "^validate step: +4 +loss: +[0-9.]+ +set: sons"
    losses_of run >whole
    [ "$(grep -c 'loss/sons' whole)" = 2 ] || not_as "expected the loss on sons after steps 1 and 4"
    run train $mix --checkpoint.enable --training.steps=3 --lr_scheduler.total_steps=4 --job.dump_folder=parts
    expect_ok
    run_ranks 2 train $mix --checkpoint.enable --training.steps=4 --lr_scheduler.total_steps=4 --job.dump_folder=parts
    expect_ok
    losses_of parts | tail -5 >last
    tail -5 whole >expected
    expect_same expected last

    run train $mix --checkpoint.enable --training.steps=5 --job.dump_folder=parts --training.dataset \
        '[{name: days, dataset: text, dataset_path: corpus.txt}, {dataset: jsonl, dataset_path: sons.jsonl, text_field: content, weight: 3}]'
    expect_error 3 "'days' was 66.6667% of the samples, is 25%; 'sons' was 33.3333% of the samples, is 75%"
    run eval parts --batch 2 --steps 2
    expect_ok
    expect_out "^  days  loss [0-9.]+  perplexity"
    run eval parts --batch 2 --steps 2 --json
    expect_json "
wanted = [r for r in map(json.loads, open('parts/metrics.jsonl')) if r['type'] == 'validate'][-1]
assert {'loss/' + s['name']: s['loss'] for s in found['sets']} == {k: wanted[k] for k in wanted if '/' in k}, wanted"
    run status parts --json
    expect_json "assert sorted(found['validation']['sets']) == ['days', 'sons'], found"
    run export parts --csv --out all.csv
    head -1 all.csv | grep -q 'validation_loss/days,validation_loss/sons$' || not_as "$(head -1 all.csv)"
    run plot parts --ascii --key loss/sons
    expect_out "validation loss on sons"
}

case_without_repeat_a_run_ends_before_a_dataset_repeats() {
    make_texts
    run train $mix --no-validation.enable --dataloader.repeat=false --training.steps=1000 --metrics.log_freq=100
    expect_ok
    expect_err " of the run; the data ends after step [0-9]+ \(dataloader.repeat is false\)$"
    expect_err "the data has ended"
}

run_cases

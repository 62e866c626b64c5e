#!/bin/bash
# SPDX-License-Identifier: MIT titan eval gives the loss of the trainer's validation, for any weights, on any number of
# ranks.
. "$(dirname "$0")/lib.sh"

golden=$TITAN_SOURCE/tests/golden/data
on_corpus="--dataset text --dataset-path corpus.txt --dataloader.cache-dir cache --json"

make_run() {
    make_corpus
    run train $tiny --checkpoint.enable "$@"
    expect_ok
}

# If OpenBLAS computes the products, rounding depends on the rows of a call. Each token's loss is a float, and the test
# compares their mean, so rounding changes it by less than half of a float's last digit.
case_the_loss_is_that_of_validation() {
    make_run --validation.enable --validation.dataset=text --validation.dataset_path=corpus.txt --validation.freq=3
    run eval run $on_corpus
    expect_ok
    expect_json "
wanted = [r for r in map(json.loads, open('run/metrics.jsonl')) if r['type'] == 'validate'][-1]
assert wanted['step'] == 3 and abs(found['loss'] / wanted['loss'] - 1) < 2**-23, (found, wanted)
assert found['perplexity'] == math.exp(found['loss'])
assert found['seq_len'] == 32 and found['tokens'] == 32 * found['samples']
assert found['path'] == 'run/checkpoint/step-3' and found['dataset'] == 'text' and found['ranks'] == 1"
}

case_hugging_face_weights_have_the_loss_that_transformers_gives() {
    for folder in "$golden"/*/; do
        cp "$folder/expect.json" expected.json
        python3 -c "import json
e = json.load(open('expected.json')); print(e['case']['global_batch_size'], e['case']['seq_len'])" >recipe
        read -r batch length <recipe
        run eval "$folder" --dataset tokens --dataset-path "$folder/tokens.bin" --batch "$batch" --seq-len "$length" \
            --steps 1 --json
        expect_ok
        expect_json "
wanted = json.load(open('expected.json'))['loss'][0]
assert abs(found['loss'] / wanted - 1) < 2e-5, (found['path'], found['loss'], wanted)
assert found['samples'] == $batch"
    done
}

case_the_loss_does_not_depend_on_the_ranks() {
    make_run
    for split in "1 -1" "3 5"; do
        read -r batch steps <<<"$split"
        run eval run $on_corpus --batch "$batch" --steps "$steps"
        expect_ok
        cp out alone
        for ranks in 2 4; do
            run_ranks $ranks eval run $on_corpus --batch "$batch" --steps "$steps"
            expect_ok
            expect_json "
alone = json.load(open('alone'))
assert found['loss'] == alone['loss'] and found['tokens'] == alone['tokens'], (found, alone)
assert found['ranks'] == $ranks"
        done
    done
}

case_bfloat16_gives_the_loss_of_training_in_bfloat16() {
    make_run --validation.enable --validation.dataset=text --validation.dataset_path=corpus.txt --validation.freq=3 \
        --training.mixed_precision_param=bfloat16
    run eval run $on_corpus --dtype bfloat16
    expect_ok
    cp out alone
    expect_json "
wanted = [r for r in map(json.loads, open('run/metrics.jsonl')) if r['type'] == 'validate'][-1]
assert abs(found['loss'] / wanted['loss'] - 1) < 2**-23 and found['dtype'] == 'bfloat16', (found, wanted)"
    for ranks in 2 4; do
        run_ranks $ranks eval run $on_corpus --dtype bfloat16
        expect_ok
        expect_json "assert found['loss'] == json.load(open('alone'))['loss'] and found['ranks'] == $ranks, found"
    done
    run eval run $on_corpus
    expect_json "
off = abs(found['loss'] - json.load(open('alone'))['loss'])
assert 0 < off < 0.02 and found['dtype'] == 'float32', (found, off)"
    run eval run $on_corpus --dtype half
    expect_error 2 "--dtype 'half' is not float32 or bfloat16"
}

case_a_run_is_evaluated_on_its_own_validation_set() {
    awk 'BEGIN { for (i = 0; i < 200; i++) printf "held back %d of %d.\\n", i, i * 3 }' >held.txt
    make_run --validation.enable --validation.dataset=text --validation.dataset_path=held.txt --validation.freq=3
    run eval run --dataloader.cache-dir cache --json
    expect_ok
    expect_json "
wanted = [r for r in map(json.loads, open('run/metrics.jsonl')) if r['type'] == 'validate'][-1]
assert abs(found['loss'] / wanted['loss'] - 1) < 2**-23 and found['seq_len'] == 32, (found, wanted)
assert found['dataset'] == 'text' and found['dataset_path'] == 'held.txt' and found['trained_on'] is False, found"
    run eval run --dataloader.cache-dir cache
    expect_out "step-3 on text held.txt$"
    run eval run --dataset-path corpus.txt --dataset text --dataloader.cache-dir cache
    expect_out "step-3 on text corpus.txt, which it was trained on$"
}

case_a_run_without_validation_is_evaluated_on_what_it_read() {
    make_run
    run eval run --dataloader.cache-dir cache --json
    expect_ok
    expect_json "
assert found['dataset'] == 'text' and found['dataset_path'] == 'corpus.txt' and found['trained_on'] is True, found
assert found['seq_len'] == 32"
}

case_text_is_printed_without_json() {
    make_run
    run eval run --dataset text --dataset-path corpus.txt --dataloader.cache-dir cache --steps 3 --batch 2
    expect_ok
    expect_out "step-3 on text"
    expect_out "loss +[0-9]"
    expect_out "perplexity +[0-9]"
    expect_out "tokens +192 in 6 sequences of 32"
}

tasks=$TITAN_SOURCE/tests/cli/tasks

# A model with a tokenizer of bytes, in folder m.
make_reader() {
    mkdir -p m
    cp "$golden/llama3/config.json" "$golden/llama3/model.safetensors" m
    python3 "$tasks/tokenizer.py" m
}

# expected.json comes from lm-evaluation-harness itself, by tests/interop/tasks.py.
case_tasks_have_the_scores_of_lm_evaluation_harness() {
    make_reader
    names="arc openbookqa hellaswag piqa winogrande boolq sciq mmlu lambada choices"
    files=()
    for name in $names; do
        files+=(--task "$tasks/$name.jsonl")
    done
    run eval m "${files[@]}" --json --output scores
    expect_ok
    check='
wanted = json.load(open(tasks + "/expected.json"))
for task in found["tasks"]:
    name = os.path.basename(task["task"])[:-len(".jsonl")]
    for key in ("acc", "acc_norm", "perplexity"):
        if key in task and key in wanted[name]:
            assert abs(task[key] / (wanted[name][key] or 1) - (wanted[name][key] != 0)) < 1e-4, (name, key, task)
lines = [json.loads(line) for line in open("scores")]
for line in lines:
    name = os.path.basename(line["task"])[:-len(".jsonl")]
    for a, b in zip(line["logprobs"], wanted[name]["logprobs"][line["line"] - 1], strict=True):
        assert abs(a / b - 1) < 1e-5, (name, line, b)
'
    expect_json "import os
tasks = '$tasks'
$check
assert len(lines) == 23 and len(found['tasks']) == 10
assert [task['format'] for task in found['tasks']] == '$names'.split()
assert {task['task'][-13:]: task['contexts_cut'] for task in found['tasks'] if task['contexts_cut']}"
    cp scores alone
    run_ranks 2 eval m "${files[@]}" --output scores
    expect_ok
    cmp alone scores || not_as "scores on two ranks differ"
    for name in arc winogrande lambada; do
        run eval m --task "$tasks/samples/$name.jsonl" --json --output scores
        expect_ok
        expect_json "import os
tasks = '$tasks'
$check
assert found['tasks'][0]['format'] == 'lm_eval'"
    done
}

case_examples_precede_every_document_of_a_task() {
    make_reader
    head -n 2 "$tasks/piqa.jsonl" >shown
    python3 -c "
import json
def text(doc):
    return f'Question: {doc[\"goal\"]}\nAnswer:'
docs = [json.loads(line) for line in open('shown')]
before = ''.join(f'{text(doc)} {[doc[\"sol1\"], doc[\"sol2\"]][doc[\"label\"]]}\n\n' for doc in docs)
with open('whole.jsonl', 'w') as to:
    for doc in docs:
        line = {'context': before + text(doc), 'choices': [doc['sol1'], doc['sol2']], 'gold': doc['label']}
        print(json.dumps(line), file=to)"
    run eval m --task "$tasks/piqa.jsonl" --fewshot 2 --fewshot-file shown --seq-len 512 --output given
    expect_ok
    run eval m --task whole.jsonl --seq-len 512 --output whole
    expect_ok
    python3 -c "
import json
def scores(name):
    return [json.loads(line)['logprobs'] for line in open(name)]
assert scores('given') == scores('whole')" || not_as "examples change more than the context"
    TITAN_COLUMNS=80 run eval m --task "$tasks/piqa.jsonl" --limit 1
    expect_ok
    expect_out "piqa.jsonl"
    ! grep -q "left out" out || not_as "columns left out of 80"
}

case_errors_in_tasks_name_the_line() {
    make_reader
    bad() { # LINE MESSAGE [OPTION...]: a task of one line
        echo "$1" >bad.jsonl
        local message=$2
        shift 2
        run eval m --task bad.jsonl "$@"
        expect_error 3 "$message"
    }
    bad '{"goal": "x"}' "bad.jsonl:1: the document has the members of no known format"
    bad '{"context": "x", "choices": ["a", "b"], "gold": 2}' "right answer is '2'; wanted a number from 0 to 1"
    bad '{"context": "x", "choices": ["a", ""], "gold": 1}' "continuation 1 is empty"
    bad '{"goal": "x", "sol1": "a", "sol2": "b", "label": 0}' "lacks fields of format arc" --task-format arc
    bad '{"context"' "bad.jsonl:1"
    : >bad.jsonl
    run eval m --task bad.jsonl
    expect_error 3 "'bad.jsonl' has no document"
    run eval m --task "$tasks/piqa.jsonl" --task-format quiz
    expect_error 2 "'quiz' is not a format of tasks"
    run eval m --task "$tasks/piqa.jsonl" --fewshot 5
    expect_error 2 "give both"
    run eval m --task "$tasks/piqa.jsonl" --fewshot 3 --fewshot-file "$tasks/piqa.jsonl"
    expect_error 3 "has 2 documents, --fewshot wants 3"
    run eval m --task "$tasks/samples/arc.jsonl" --fewshot 1 --fewshot-file "$tasks/samples/arc.jsonl"
    expect_error 2 "have their examples in their contexts"
    run eval m --task "$tasks/piqa.jsonl" --dataset kjv
    expect_error 2 "does not use --dataset"
    run eval m --limit 5
    expect_error 2 "--limit needs --task FILE"
    run eval m --task "$tasks/choices.jsonl" --seq-len 3
    expect_error 3 "a continuation has 8 tokens; the model's context has 3"
}

case_errors_name_the_problem() {
    make_run
    run eval
    expect_error 2 "takes one checkpoint or folder"
    run eval run --dataset nosuch
    expect_error 2 "nosuch"
    run eval run --dataset text
    expect_error 2 "dataset_path"
    run eval run --steps 0
    expect_error 2 "validation.steps"
    run eval run --sets 3
    expect_error 2 "did you mean '--seed'|unknown option '--sets'"
    run eval run $on_corpus --parallelism.memory_limit=100KiB
    expect_error 6 "a rank needs .*, but parallelism.memory_limit allows 100.00 KiB"
    run eval "$golden/llama3" $on_corpus
    expect_error 3 "tokenizer.json"
    run eval nosuch
    expect_error 3 "nosuch"
    file=$(ls run/checkpoint/step-3/model/*.safetensors)
    printf '\377' | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") - 100)) conv=notrunc 2>/dev/null
    run_ranks 2 eval run $on_corpus
    expect_error 3 "checksum|crc"
}

run_cases

#!/bin/bash
# SPDX-License-Identifier: MIT metrics.sample_freq: texts sampled from the model during training.
. "$(dirname "$0")/lib.sh"

sample="$tiny --training.steps=4 --lr_scheduler.total_steps=4 --lr_scheduler.warmup_steps=1 --optimizer.lr=1e-2
    --metrics.sample_freq=2 --metrics.sample_tokens=12"

# The steps and texts of a run, and its losses.
texts_of() {
    python3 - "$1" <<'END'
import json, sys
for line in open(sys.argv[1] + "/metrics.jsonl"):
    record = json.loads(line)
    if record["type"] == "sample":
        print(record["step"], record["tokens"], json.dumps(record["text"]))
END
}

losses_of() {
    grep '"type":"step"' "$1/metrics.jsonl" | grep -o '"\(loss\|grad_norm\)":[0-9.e-]*'
}

# same_text NAME RANKS ARGUMENT...: checks that a run with these arguments has the same texts and losses as the run on
# one rank.
same_text() {
    name=$1 ranks=$2
    shift 2
    run_ranks "$ranks" train $sample --job.dump_folder="$name" "$@"
    expect_ok
    texts_of "$name" >texts.txt
    expect_same alone.txt texts.txt
    losses_of "$name" >losses.txt
    expect_same losses-alone.txt losses.txt
}

case_the_text_is_that_of_titan_generate_and_changes_nothing() {
    make_corpus
    run train $sample --verbose --checkpoint.enable --checkpoint.interval=2 --metrics.sample_prompt="And the evening"
    expect_ok
    expect_err "^  texts    at most 12 tokens, sampled every 2 steps and at the end; rank 0 needs [0-9.]+ [KMG]iB for the model"
    expect_out "^sample step: +2  "
    expect_out "^sample step: +4  "
    [ "$(grep -c '^sample step' out)" = 2 ] || not_as "expected two texts"
    grep -q "^sample step:  4  " run/console.log || not_as "expected the text in console.log"
    texts_of run >texts.txt
    for step in 2 4; do
        run generate run/checkpoint/step-$step --prompt "And the evening" --max-new-tokens 12 --json
        expect_ok
        expect_json "assert '$step 12 ' + json.dumps(found['text']) + '\n' in open('texts.txt'), (found['text'], open('texts.txt').read())"
    done
    run train $sample --metrics.sample_freq=0 --metrics.sample_tokens=32 --job.dump_folder=without \
        --checkpoint.enable --checkpoint.interval=2
    expect_ok
    losses_of run >with.txt
    losses_of without >without.txt
    expect_same with.txt without.txt
    run ckpt diff run/checkpoint/step-4 without/checkpoint/step-4
    expect_ok
    # the other commands read such records
    run status run
    expect_ok
    run plot run
    expect_ok
    run export run --csv
    expect_ok
    refuse_out "sample"
    run compare run without
    expect_ok
}

case_the_text_is_the_same_on_any_layout() {
    make_corpus
    exact="--parallelism.exact_tensor_parallel_degree=2 --parallelism.exact_context_parallel_degree=2"
    sample="$sample $exact --training.local_batch_size=1"
    run train $sample --job.dump_folder=alone
    expect_ok
    texts_of alone >alone.txt
    losses_of alone >losses-alone.txt
    [ "$(wc -l <alone.txt)" = 2 ] || not_as "expected two texts"
    same_text shards 2
    same_text replicas 4 --parallelism.data_parallel_replicate_degree=2
    same_text tensor 2 --parallelism.tensor_parallel_degree=2 --parallelism.threads_per_rank=2
    same_text context 2 --parallelism.context_parallel_degree=2
    same_text pipeline 2 --parallelism.pipeline_parallel_degree=2 --training.local_batch_size=2 \
        --parallelism.pipeline_parallel_microbatch_size=1
    same_text planned 2 --parallelism.fsdp_engine=planned --parallelism.fsdp_wrap_policy=param
}

case_resumed_runs_sample_the_same() {
    make_corpus
    run train $sample --job.dump_folder=whole
    expect_ok
    run train $sample --training.steps=2 --checkpoint.enable
    expect_ok
    run_ranks 2 train $sample --checkpoint.enable
    expect_ok
    texts_of whole >whole.txt
    texts_of run >texts.txt
    expect_same whole.txt texts.txt
}

# Adapters, averages and bfloat16: the text is the one that titan generate makes from the checkpoint.
case_it_samples_what_is_trained() {
    make_corpus
    run train $tiny --job.dump_folder=base --checkpoint.enable
    expect_ok
    saves="--checkpoint.enable --metrics.sample_prompt=And"
    run_ranks 2 train $sample $saves --lora.rank=2 --checkpoint.initial_load_path=base --job.dump_folder=lora
    expect_ok
    run_ranks 2 train $sample $saves --ema.decay=0.5 --ema.validate --job.dump_folder=ema
    expect_ok
    run_ranks 2 train $sample $saves --training.mixed_precision_param=bfloat16 --job.dump_folder=mixed
    expect_ok
    run_ranks 2 train $sample $saves --training.mixed_precision_param=bfloat16 --training.dtype=bfloat16 \
        --job.dump_folder=bf16
    expect_ok
    run_ranks 2 train $sample $saves --model.name=qwen3 --model.tie_embeddings --job.dump_folder=tied \
        --parallelism.pipeline_parallel_degree=2 --training.local_batch_size=4
    expect_ok
    for name in lora ema mixed bf16 tied; do
        case $name in
        ema) how=--ema ;;
        mixed | bf16) how="--dtype bfloat16" ;;
        *) how= ;;
        esac
        run generate $name --prompt And --max-new-tokens 12 --json $how
        expect_ok
        texts_of $name | tail -1 >text.txt
        expect_json "assert '4 12 ' + json.dumps(found['text']) + '\n' == open('text.txt').read(), ('$name', found['text'], open('text.txt').read())"
    done
}

case_experts_are_gathered() {
    make_corpus
    experts="--model.name=qwen3 --model.flavor=debugmodel_moe --model.dim=32 --training.global_batch_size=8"
    run train $sample $experts --job.dump_folder=alone
    expect_ok
    run_ranks 2 train $sample $experts --parallelism.expert_parallel_degree=2 --job.dump_folder=two
    expect_ok
    texts_of alone >alone.txt
    texts_of two >two.txt
    [ "$(wc -l <alone.txt)" = 2 ] || not_as "expected two texts"
    expect_same alone.txt two.txt
}

case_a_user_asks_a_chat_model() {
    awk 'BEGIN { for (i = 0; i < 100; i++) printf "{\"messages\": [{\"role\": \"user\", \"content\": \"%d?\"}, " \
        "{\"role\": \"assistant\", \"content\": \"It is %d.\"}]}\n", i, 7 * i }' >chats.jsonl
    make_chat_tokenizer
    chat="$sample --training.dataset=jsonl_sft --training.dataset_path=chats.jsonl --model.hf_assets_path=tokenizer"
    run train $chat --checkpoint.enable
    expect_ok
    grep -q '"prompt":"Hello!"' run/metrics.jsonl || not_as "expected Hello! as the prompt"
    run train $chat --metrics.sample_prompt="3?" --checkpoint.enable --job.dump_folder=asked
    expect_ok
    run generate asked --chat --prompt "3?" --max-new-tokens 12 --json
    expect_ok
    texts_of asked | tail -1 >text.txt
    expect_json "assert json.dumps(found['text']) + '\n' == open('text.txt').read().split(' ', 2)[2], (found['text'], open('text.txt').read())"
}

# Without a tokenizer the texts consist of numbers.
case_tokens_without_a_tokenizer_are_numbers() {
    make_corpus
    python3 -c 'import struct, sys
open("tokens.bin", "wb").write(struct.pack("<4000H", *[(i * i) % 97 for i in range(4000)]))'
    tokens="--training.dataset=tokens_u16 --training.dataset_path=tokens.bin --model.vocab_size=128"
    run train $sample $tokens
    expect_ok
    expect_out "^sample step: +4  [0-9]+( [0-9]+)*$"
    run train $sample $tokens --metrics.sample_prompt=And --job.dump_folder=other
    expect_error 2 "metrics.sample_prompt: the tokenizer of the data is not known" "help: set model.hf_assets_path"
}

case_the_memory_is_counted() {
    make_corpus
    tiny="$tiny --parallelism.threads_per_rank=1" sample="$sample --parallelism.threads_per_rank=1"
    run estimate --config builtin:defaults $tiny --ranks 2 --json
    expect_ok
    expect_json "open('without', 'w').write(str(found['rows'][0]['staging_bytes']))"
    run estimate --config builtin:defaults $sample --ranks 2 --json
    expect_ok
    expect_json "more = found['rows'][0]['staging_bytes'] - int(open('without').read())
open('more', 'w').write(str(more))
assert more > 1e6, more"
    run train $sample --dry-run --json
    expect_ok
    expect_json "memory = found['memory']
assert memory['staging_bytes'] == int(open('more').read()), memory
open('limit', 'w').write(str(memory['predicted_bytes'] + memory['staging_bytes'] - 1))
open('peak', 'w').write('%.2f MiB a rank' % ((memory['predicted_bytes'] + memory['staging_bytes']) / 2 ** 20))"
    run train $sample --verbose --job.dump_folder=shown
    expect_ok
    expect_err "^  predicts $(cat peak) at its peak"
    run train $sample --parallelism.memory_limit="$(cat limit)"
    expect_error 6 "with the whole model from which texts are sampled" "help: use metrics.sample_freq=0, which needs"
    run train $tiny --parallelism.memory_limit="$(cat limit)"
    expect_ok
}

case_what_cannot_be_sampled_is_refused() {
    make_corpus
    run train $tiny --metrics.sample_prompt=And
    expect_error 2 "metrics.sample_prompt: no text is sampled while metrics.sample_freq is 0" "help: set metrics.sample"
    run train $tiny --metrics.sample_tokens=8
    expect_error 2 "metrics.sample_tokens: no text is sampled while metrics.sample_freq is 0"
    run train $sample --model.name=gpt2 --model.n_kv_heads=4 --model.max_position_embeddings=32 \
        --metrics.sample_prompt="$(head -c 400 corpus.txt)"
    expect_error 2 "metrics.sample_prompt: the prompt has [0-9]+ tokens, but there is room for fewer than 32"
}

case_texts_go_to_tensorboard_and_to_standard_output() {
    make_corpus
    run train $sample --metrics.enable_tensorboard --json
    expect_ok
    expect_out '^\{"type":"sample","step":4,"prompt":null,"text":".*","tokens":12,"finish":"[a-z]+","time_s":'
    refuse_out "^sample step"
    grep -q "^sample step:  4  " run/console.log || not_as "expected the text in console.log"
    cat run/tb/*/events* | grep -aq "sample/text_summary" || not_as "expected a text for TensorBoard"
}

case_console_log_has_no_control_characters_of_texts() {
    make_corpus
    run train $sample --metrics.sample_tokens=1000 --json
    expect_ok
    grep -q '"type":"sample".*\\u00[01]' run/metrics.jsonl || not_as "expected a control character in a text"
    ! LC_ALL=C grep -q "[$(printf '\001')-$(printf '\010')$(printf '\033')]" run/console.log ||
        not_as "a control character in console.log"
}

# While a text is sampled, the previous step may not be saved yet.
case_a_second_interrupt_saves_nothing_and_says_so() {
    make_corpus
    background env --default-signal=INT "$TITAN" train $sample --training.steps=1000000 \
        --lr_scheduler.total_steps=1000000 --metrics.sample_freq=1 --metrics.sample_tokens=1000 --checkpoint.enable \
        --checkpoint.interval=1000000
    for ((i = 0; i < 1200; i++)); do
        grep -q '^step: ' out && break
        kill -0 $job 2>/dev/null || not_as "the job ended before its first step"
        sleep 0.05
    done
    kill -INT $job
    code=0
    wait $job || code=$?
    expect_code 130
    expect_err '^titan: stopping after .*; again: stop without saving$'
    expect_err '; everything is saved$'
}

# --- tasks ---

tasks=$TITAN_SOURCE/tests/cli/tasks
tasked="${sample/--metrics.sample_freq=2 --metrics.sample_tokens=12/--metrics.task_freq=2} --training.seq_len=128"
tasked="$tasked --metrics.tasks=$tasks/arc.jsonl,$tasks/lambada.jsonl"

# The scores of a run's tasks, without their times.
scores_of() {
    grep '"type":"task"' "$1/metrics.jsonl" | sed 's/,"time_s.*//'
}

case_tasks_have_the_scores_of_titan_eval_and_change_nothing() {
    make_corpus
    run train $tasked --verbose --checkpoint.enable --checkpoint.interval=2 --metrics.enable_tensorboard
    expect_ok
    expect_err "^  tasks    2, evaluated every 2 steps and at the end; rank 0 needs [0-9.]+ [KMG]iB for the model"
    expect_out "^task step: +2  arc  acc: [01]\.[0-9]{4}  acc_norm: [01]\.[0-9]{4}$"
    expect_out "^task step: +4  lambada  acc: [01]\.[0-9]{4}  perplexity: [0-9.]+$"
    [ "$(grep -c '^task step' out)" = 4 ] || not_as "expected four scores"
    grep -q "^task step:  4  lambada" run/console.log || not_as "expected the score in console.log"
    cat run/tb/*/events* | grep -aq "tasks/arc/acc_norm" || not_as "expected a score for TensorBoard"
    for step in 2 4; do
        run eval run/checkpoint/step-$step --task "$tasks/arc.jsonl" --task "$tasks/lambada.jsonl" --json
        expect_ok
        expect_json "lines = [json.loads(line) for line in open('run/metrics.jsonl')]
scores = [line for line in lines if line['type'] == 'task' and line['step'] == $step]
assert len(scores) == len(found['tasks']) == 2
for mine, theirs in zip(scores, found['tasks']):
    assert all(mine[key] == theirs[key] for key in theirs), (mine, theirs)"
    done
    run train ${tasked/--metrics.task_freq=2/--metrics.task_freq=0} --metrics.tasks=[] --job.dump_folder=without \
        --checkpoint.enable
    expect_ok
    losses_of run >with.txt
    losses_of without >without.txt
    expect_same with.txt without.txt
    run ckpt diff run/checkpoint/step-4 without/checkpoint/step-4
    expect_ok
    run_ranks 2 train $tasked --job.dump_folder=two
    expect_ok
    scores_of run >one.txt
    scores_of two >two.txt
    expect_same one.txt two.txt
    # the other commands read such records
    run status run
    expect_ok
    run export run --csv
    expect_ok
}

case_tasks_that_cannot_be_evaluated_are_refused() {
    make_corpus
    run train $tiny --metrics.tasks="$tasks/arc.jsonl"
    expect_error 2 "metrics.tasks: no task is evaluated while metrics.task_freq is 0" "help: set metrics.task_freq"
    run train $tiny --metrics.task_freq=2
    expect_error 2 "metrics.task_freq: there is no task to evaluate"
    mkdir other && cp "$tasks/arc.jsonl" other
    run train $tasked --metrics.tasks="$tasks/arc.jsonl,other/arc.jsonl"
    expect_error 2 "metrics.tasks: two files are called 'arc'" "help: rename one"
    run train $tasked --metrics.tasks=nowhere.jsonl --dry-run
    expect_error 3 "'nowhere.jsonl'"
    run train $tasked --parallelism.memory_limit=11MiB --parallelism.threads_per_rank=1
    expect_error 6 "with the whole model that is evaluated on tasks" "help: use metrics.task_freq=0, which needs"
}

run_cases

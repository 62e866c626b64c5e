#!/bin/bash
# SPDX-License-Identifier: MIT
# titan generate: text and tokens from checkpoints and Hugging Face folders, and its errors.
. "$(dirname "$0")/lib.sh"

golden=$TITAN_SOURCE/tests/golden/data

# Makes a run with steps 2 and 4 in run/.
make_run() {
    make_corpus
    run train $tiny --checkpoint.enable --checkpoint.interval=2 --training.steps=4 "$@"
    expect_ok
}

# Prints the samples in the JSON on stdout, for comparison.
samples() {
    python3 -c "import json; print(json.load(open('out'))['samples'])"
}

case_greedy_tokens_are_those_of_transformers() {
    for folder in "$golden"/*/generate.json; do
        folder=$(dirname "$folder")
        cp "$folder/generate.json" expected.json
        cases=$(python3 -c "import json; print(*range(len(json.load(open('expected.json'))['cases'])))")
        for i in $(some $cases); do
            prompt=$(python3 -c "import json; print(*json.load(open('expected.json'))['cases'][$i]['prompt'], sep=',')")
            run generate "$folder" --greedy --prompt_tokens "$prompt" --max_new_tokens 40 --ignore_eos --json \
                --threads $((1 + i % 2))
            expect_ok
            expect_json "
wanted = json.load(open('expected.json'))['cases'][$i]
assert found['prompt_tokens'] == wanted['prompt']
assert found['tokens'] == wanted['tokens'], (found['tokens'], wanted['tokens'])
assert found['finish'] == 'length' and found['text'] is None"
        done
    done
}

case_without_a_tokenizer_tokens_are_printed() {
    run generate "$golden/llama3" --greedy --prompt-tokens 343 --max-new-tokens 3
    expect_ok
    expect_out "^84 273 273$"
    expect_err "prompt of 1 token in [0-9.]+ m?s, 3 tokens in [0-9.]+ m?s: [0-9]+ tokens/s"
}

case_generation_ends_at_eos() {
    mkdir hf
    cp "$golden"/llama3/{config.json,model.safetensors} hf
    chmod u+w hf/*
    echo '{"eos_token_id": [500, 197]}' >hf/generation_config.json
    run generate hf --greedy --prompt_tokens 343 --json
    expect_ok
    expect_json "assert found['tokens'] == [84, 273, 273, 273] and found['finish'] == 'eos', found"
    rm hf/generation_config.json
    sed -i 's/"eos_token_id": 2/"eos_token_id": 273/' hf/config.json
    run generate hf --greedy --prompt_tokens 343 --json
    expect_json "assert found['tokens'] == [84] and found['finish'] == 'eos', found"
}

case_text_is_streamed_and_the_same_in_json() {
    make_run
    run generate run --greedy --prompt "And the" --max-new-tokens 20
    expect_ok
    cp out text
    run generate run --greedy --prompt "And the" --max-new-tokens 20 --json
    expect_ok
    expect_json "
text = open('text', newline='').read()
assert text in (found['text'], found['text'] + '\\n'), (found['text'], text)
assert found['text'] == found['samples'][0]['text'] and len(found['samples']) == 1
assert found['prompt'] == 'And the' and found['path'] == 'run/checkpoint/step-4'
assert found['temperature'] == 0 and 0 < len(found['tokens']) <= 20
assert found['memory_bytes'] > 0 and found['tokens_per_second'] > 0"
    run generate run --greedy --prompt "And the" --max-new-tokens 20 --echo
    (printf 'And the' && cat text) >echoed
    expect_same out echoed
}

case_prompts_come_from_files_and_standard_input() {
    make_run
    run generate run --greedy --prompt "And the" --max-new-tokens 8
    expect_ok
    cp out text
    printf 'And the' >prompt
    run generate run --greedy --prompt-file prompt --max-new-tokens 8
    expect_same out text
    "$TITAN" generate run --greedy --prompt - --max-new-tokens 8 <prompt >out 2>err
    expect_same out text
    "$TITAN" generate run --greedy --prompt-file - --max-new-tokens 8 <prompt >out 2>err
    expect_same out text
}

case_a_seed_gives_the_same_text_on_any_number_of_threads() {
    make_run
    draw="generate run --prompt And --max-new-tokens 25 --temperature 1.2 --num-samples 2 --json"
    run $draw --seed 7 --threads 1
    expect_ok
    samples >first
    for threads in 2 3; do
        run $draw --seed 7 --threads $threads
        samples >again
        expect_same first again
    done
    expect_json "assert found['samples'][0]['tokens'] != found['samples'][1]['tokens']"
    run $draw --seed 8
    samples >other
    ! cmp -s first other || not_as "another seed should give another text"
    run generate run --prompt And --max-new-tokens 25 --top-k 1 --json
    expect_json "assert found['temperature'] == 1 and found['top_k'] == 1"
    cp out drawn
    run generate run --greedy --prompt And --max-new-tokens 25 --json
    expect_json "assert found['tokens'] == json.load(open('drawn'))['tokens']"
}

case_every_kind_of_path_gives_the_same_text() {
    make_run
    run generate run --greedy --prompt "And the" --max-new-tokens 20
    cp out text
    run ckpt consolidate run weights
    expect_ok
    for path in run/checkpoint run/checkpoint/step-4 weights weights/model.safetensors; do
        run generate $path --greedy --prompt "And the" --max-new-tokens 20
        expect_ok
        expect_same out text
    done
    mv run/checkpoint/step-4 moved # a checkpoint alone is enough
    rm -r run cache
    run generate moved --greedy --prompt "And the" --max-new-tokens 20
    expect_ok
    expect_same out text
}

case_bfloat16_gives_the_same_text_from_weights_of_either_type() {
    make_run
    draw="--greedy --prompt-tokens 65,66,67 --max-new-tokens 20 --ignore-eos --json"
    run generate run $draw
    expect_json "assert found['dtype'] == 'float32'"
    run generate run $draw --dtype bfloat16 --threads 1
    expect_ok
    expect_json "assert found['dtype'] == 'bfloat16' and len(found['tokens']) == 20"
    samples >first
    run generate run $draw --dtype bfloat16 --threads 3
    samples >again
    expect_same first again
    for format in titan hf; do
        run ckpt consolidate run weights-$format --format $format --dtype bfloat16
        expect_ok
        run generate weights-$format $draw --dtype bfloat16
        expect_ok
        samples >again
        expect_same first again
    done
    run generate run --prompt a --dtype float16
    expect_error 2 "--dtype 'float16' is not float32 or bfloat16"
    run generate run --prompt a --memory 1KiB
    expect_error 6 "--dtype bfloat16"
    run generate run --prompt a --memory 1KiB --dtype bfloat16
    expect_error 6 "or use --weights q8_0 or a smaller model"
}

# Hugging Face's layouts: permuted heads, transposed matrices, several parameters in one tensor. titan maps them in
# float32 and then rounds, or does both at once.
case_hugging_face_weights_are_read_in_bfloat16() {
    for folder in "$golden"/*/generate.json; do
        folder=$(dirname "$folder")
        name=$(basename "$folder")
        run ckpt convert "$folder" "$name-single"
        expect_ok
        run ckpt convert "$folder" "$name-half" --dtype bfloat16
        expect_ok
        for from in "$name-single" "$name-half" "$folder"; do
            run generate "$from" --greedy --prompt-tokens 3,5,7 --max-new-tokens 30 --ignore-eos --json --dtype bfloat16
            expect_ok
            samples >"text-of-$(basename "$from")"
        done
        expect_same "text-of-$name-single" "text-of-$name-half"
        expect_same "text-of-$name-single" "text-of-$name"
    done
}

case_the_context_is_a_limit() {
    make_run
    run generate run --greedy --prompt "And the" --max-new-tokens 200 --ignore-eos --json
    expect_ok
    expect_err "stopped after [0-9]+ tokens: the context of 32 is full"
    expect_json "
assert found['context'] == 32 and found['finish'] == 'context'
assert len(found['tokens']) + len(found['prompt_tokens']) == 33"
    run generate run --greedy --prompt "And the" --max-new-tokens 100 --ignore-eos --max-seq-len 64 --json
    expect_json "assert len(found['tokens']) + len(found['prompt_tokens']) == 65"
    run generate "$golden/gpt2" --greedy --prompt-tokens 1 --max-new-tokens 1000 --max-seq-len 500 --ignore-eos --json
    expect_ok # the model has no more positions than these
    expect_json "
limit = json.load(open('$golden/gpt2/config.json'))['n_positions']
assert found['context'] == limit and found['finish'] == 'context', found['context']"
    run generate run --greedy --prompt-file corpus.txt
    expect_error 2 "the prompt has [0-9]+ tokens, the context of this model 32" "max-seq-len"
}

case_too_little_memory_is_an_error_before_weights_are_loaded() {
    make_run
    run generate run --prompt "And the" --max-new-tokens 1000000000 --max-seq-len 1000000000 --memory 1GiB
    expect_error 6 "this needs .* \(weights .*, cache of [0-9]+ tokens .*\), but --memory allows 1.00 GiB"
}

# Every text of a file of prompts is the one that its prompt has alone, in order, however many are generated at a time.
case_many_prompts_have_the_texts_that_they_have_alone() {
    make_run
    printf 'And the\n\nIn the beginning God created\nx\nAnd God said, Let there be light\n' >prompts.txt
    : >wanted
    grep . prompts.txt | while read -r prompt; do
        run generate run --prompt "$prompt" --max-new-tokens 12 --num-samples 2 --json
        expect_ok
        python3 -c "
import json
found = json.load(open('out'))
for k, one in enumerate(found['samples']):
    print(json.dumps([found['prompt'], k, one['text'], one['tokens'], one['finish']]))" >>wanted
    done
    for batch in 1 3 8; do
        run generate run --prompts prompts.txt --max-new-tokens 12 --num-samples 2 --batch $batch
        expect_ok
        expect_err "titan: 4 prompts of [0-9]+ tokens in .*, 96 tokens in "
        python3 -c "
import json
for line in open('out'):
    one = json.loads(line)
    print(json.dumps([one['prompt'], one['sample'], one['text'], one['tokens'], one['finish']]))" >found
        expect_same found wanted
    done
    printf '{"prompt": "And the", "id": 7}\n{"prompt_tokens": [5, 17, 3], "id": "b"}\n' >prompts.jsonl
    run generate run --prompts prompts.jsonl --max-new-tokens 6 --output texts.jsonl --greedy
    expect_ok
    refuse_out .
    run generate run --prompt-tokens 5,17,3 --max-new-tokens 6 --greedy --json
    expect_ok
    expect_json "
first, second = map(json.loads, open('texts.jsonl'))
assert (first['id'], first['prompt'], first['finish'], 'sample' in first) == (7, 'And the', 'length', False), first
assert (second['id'], second['prompt'], second['prompt_tokens']) == ('b', None, 3), second
assert second['tokens'] == found['tokens'] and second['text'] == found['text'], (second, found)"
}

case_mistakes_in_many_prompts_are_named() {
    make_run
    run generate run --prompts nosuch
    expect_error 3 "nosuch"
    printf '\n\n' >empty
    run generate run --prompts empty
    expect_error 2 "'empty' has no prompt"
    for line in '{"prompt": 3}' '{"prompt": "a", "prompt_tokens": [1]}' '[1]' '{}'; do
        printf '{"prompt": "a"}\n%s\n' "$line" >bad.jsonl
        run generate run --prompts bad.jsonl
        expect_error 3 'bad.jsonl:2: wanted an object with "prompt"'
    done
    echo '{"prompt": "a", "temperature": 1}' >bad.jsonl
    run generate run --prompts bad.jsonl
    expect_error 3 'bad.jsonl:1: "temperature" is not known'
    echo '{"prompt_tokens": [1, 2048]}' >bad.jsonl
    run generate run --prompts bad.jsonl
    expect_error 2 "bad.jsonl:1: .*token 2048 is not in the model's vocabulary"
    echo '{"prompt":' >bad.jsonl
    run generate run --prompts bad.jsonl
    expect_error 3 "bad.jsonl:1: "
    echo a >prompts
    run generate run --prompts prompts --json
    expect_error 2 "--prompts and --json exclude each other" "help: .* one line for each text"
    run generate run --prompt a --batch 2
    expect_error 2 "--batch and --output need --prompts"
    run generate run --prompts prompts --output nosuch/texts
    expect_error 3 "cannot write 'nosuch/texts'"
    run generate run --prompts prompts --weights q5_0
    expect_error 2 "q5_0" "q4_0"
}

case_prompts_without_text_are_refused() {
    make_run
    run generate run
    expect_error 2 "needs a prompt"
    run generate run --prompt ""
    expect_error 2 "the prompt is empty"
    run generate run --prompt - # standard input is /dev/null
    expect_error 2 "the prompt is empty"
    run generate run --prompt-tokens ""
    expect_error 2 "the prompt is empty"
    run generate run --prompt-tokens 1,x
    expect_error 2 "not a list of token ids"
    run generate run --prompt-tokens 1,2048
    expect_error 2 "token 2048 is not in the model's vocabulary of 2048"
    run generate run --prompt a --prompt-tokens 1
    expect_error 2 "takes one of"
    printf 'a\377b' >latin1
    run generate run --prompt-file latin1
    expect_error 3 "the prompt: "
    run generate run --prompt-file nosuch
    expect_error 3 "nosuch"
}

case_impossible_options_are_refused() {
    make_run
    run generate
    expect_error 2 "takes one checkpoint or folder"
    run generate run --prompt a --temperature -1
    expect_error 2 "temperature '-1' is not a number from 0"
    run generate run --prompt a --top_p 1.5
    expect_error 2 "top_p '1.5'"
    run generate run --prompt a --num_samples 3 --greedy
    expect_error 2 "temperature 0 would be the same text"
    run generate run --prompt a --temprature 1
    expect_error 2 "did you mean '--temperature'"
    run generate run --prompt a training.steps=3
    expect_error 2 "is not an option"
    run_ranks 2 generate run --prompt a
    expect_error 2 "generate runs as one process, 2 were started"
}

case_folders_without_weights_or_model_are_refused() {
    run generate nosuch --prompt a
    expect_error 3 "nosuch"
    mkdir empty
    run generate empty --prompt a
    expect_error 3 "no checkpoint in 'empty'"
    mkdir bare
    cp "$golden/llama3/model.safetensors" bare
    run generate bare --prompt a
    expect_error 3 "does not say of which model"
    cp "$golden/llama3/config.json" bare
    chmod u+w bare/*
    run generate bare --prompt a
    expect_error 3 "has no tokenizer.json" "--tokenizer"
    run generate bare --prompt a --tokenizer "$TITAN_SOURCE/tests"
    expect_error 3 "tokenizer.json"
    sed -i 's/"llama"/"mamba"/' bare/config.json
    run generate bare --prompt a
    expect_error 3 "model_type 'mamba' \(LlamaForCausalLM\) is not supported"
}

case_damaged_checkpoints_are_skipped_or_refused() {
    make_run
    file=$(ls run/checkpoint/step-4/model/*.safetensors)
    printf '\377' | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") - 100)) conv=notrunc 2>/dev/null
    run generate run/checkpoint/step-4 --prompt a
    expect_error 3 "checksum|crc"
    truncate -s -1 "$file"
    run generate run/checkpoint/step-4 --prompt a
    expect_error 3 "bytes"
    run generate run --prompt a --json --max-new-tokens 2 # it reads the newest intact step
    expect_ok
    expect_err "skipping the damaged checkpoint"
    expect_json "assert found['path'] == 'run/checkpoint/step-2'"
    rm run/checkpoint/step-2/assets/model.json
    run generate run/checkpoint/step-2 --prompt a
    expect_error 3 "model.json"
}

case_tokens_are_sampled_by_default() {
    make_run
    run generate run --prompt And --max-tokens 30 --json
    expect_ok
    expect_json "assert found['temperature'] == 0.8 and found['top_p'] == 0.95 and found['top_k'] == 0, found"
    cp out drawn
    run generate run --prompt And --max-new-tokens 30 --temp 0.8 --top-p 0.95 --json
    expect_json "assert found['tokens'] == json.load(open('drawn'))['tokens']"
    run generate run --prompt And --max-new-tokens 30 --greedy --json
    expect_ok
    expect_json "assert found['temperature'] == 0, found"
    cp out greedy
    run generate run --prompt And --max-new-tokens 30 --temperature 0 --json
    expect_json "
assert found['tokens'] == json.load(open('greedy'))['tokens']
assert found['tokens'] != json.load(open('drawn'))['tokens']"
    run generate run --prompt And --greedy --top-k 5
    expect_error 2 "greedy"
}

run_cases

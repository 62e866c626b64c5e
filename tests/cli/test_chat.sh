#!/bin/bash
# SPDX-License-Identifier: MIT training.dataset: jsonl_sft, conversations whose answers are learned.
. "$(dirname "$0")/lib.sh"

# Conversations of 1 to 4 turns; the longest have more than 96 tokens.
make_chats() {
    awk 'BEGIN { for (i = 0; i < 150; i++) { printf "{\"messages\": [";
        for (k = 0; k <= i % 4; k++) printf "%s{\"role\": \"user\", \"content\": \"day %d?\"}, " \
            "{\"role\": \"assistant\", \"content\": \"morning %d\"}", k ? ", " : "", i * k % 97, i; print "]}" } }' \
        >chats.jsonl
}

# Of two paths in the options, the later one wins.
chat="$tiny --model.vocab_size=2056 --model.hf_assets_path=tokenizer --training.dataset=jsonl_sft
    --training.dataset_path=chats.jsonl --training.document_mask --training.seq_len=96 --validation.seq_len=96"

losses_of() {
    grep '"type": *"step"' "$1/metrics.jsonl" | grep -o '"\(loss\|grad_norm\)": *[0-9.e-]*'
}

case_the_curve_is_the_same_on_any_layout() {
    make_chat_tokenizer
    make_chats
    run train $chat
    expect_ok
    expect_err "jsonl_sft: [0-9]+ of 150 conversations have more than 96 tokens; [0-9]+ truncated, [0-9]+ left out"
    refuse_err "sees those before it"
    losses_of run >one
    [ "$(wc -l <one)" = 6 ] || not_as "expected losses and norms of 3 steps"
    run_ranks 2 train $chat --job.dump_folder=two --parallelism.fsdp_engine=planned
    expect_ok
    losses_of two >two.txt
    expect_same one two.txt
    run train $chat --job.dump_folder=small --training.local_batch_size=1 --parallelism.threads_per_rank=3
    expect_ok
    run_ranks 4 train $chat --job.dump_folder=four --training.local_batch_size=1
    expect_ok
    losses_of small >small.txt
    losses_of four >four.txt
    expect_same small.txt four.txt
    run train $chat --job.dump_folder=causal --no-training.document_mask
    expect_ok
    expect_err "a sample holds several conversations, and each sees those before it; training.document_mask=true"
    losses_of causal >causal.txt
    ! cmp -s one causal.txt || not_as "expected other losses without document_mask"
}

# Padding has no load. A sample is one conversation of N tokens, so a step of 4 samples counts 4 N k slots in each
# layer. Layouts that do not change the bits do not change the routers' losses.
case_padding_does_not_count_in_loads() {
    make_chat_tokenizer
    echo '{"messages": [{"role": "user", "content": "day?"}, {"role": "assistant", "content": "morning"}]}' >chats.jsonl
    run data pack --dataset jsonl_sft --dataset_path chats.jsonl --tokenizer tokenizer --out chats.tokens --json
    expect_ok
    mv out packed.json
    experts="--model.name=qwen3 --model.flavor=debugmodel_moe --model.n_layers=2 --model.dim=32 --model.n_heads=4
        --model.n_kv_heads=2 --model.vocab_size=2056 --model.hf_assets_path=tokenizer --training.dataset=jsonl_sft
        --training.dataset_path=chats.jsonl --training.seq_len=64 --training.local_batch_size=1
        --training.global_batch_size=4 --training.steps=2 --metrics.log_freq=1 --metrics.peak_flops=1e9
        --metrics.expert_loads --no-checkpoint.enable --dataloader.cache_dir=cache --parallelism.threads_per_rank=1
        --training.sequence_balance_loss=0.01 --training.microbatch_balance_loss=0.01 --training.router_z_loss=0.01
        --training.global_batch_balance_loss=0.01"
    run train $experts --job.dump_folder=one
    expect_ok
    p=--parallelism
    while read -r ranks options; do
        run_ranks $ranks train $experts --job.dump_folder=many $options
        expect_ok
        python3 - "$options" >problem.txt 2>&1 <<'END' || not_as "$options: $(tail -1 problem.txt)"
import json, sys
tokens = json.load(open("packed.json"))["tokens"]
assert 10 < tokens < 40, tokens
runs = [[r for r in map(json.loads, open(f"{run}/metrics.jsonl")) if r["type"] == "step"] for run in ("one", "many")]
for one, many in zip(*runs):
    for r in (one, many):
        for layer, loads in r["expert_loads"].items():
            assert sum(loads) == 4 * tokens * 8, (tokens, loads)
    keys = [k for k in one if k.endswith("loss") and k != "max_loss" or k == "grad_norm"]
    assert len(keys) == 6, keys
    for k in keys:
        near = abs(one[k] - many[k]) <= 1e-5 * abs(one[k])
        assert near if "tensor" in sys.argv[1] or "context" in sys.argv[1] else one[k] == many[k], (k, one[k], many[k])
END
        rm -rf many
    done <<END
2 $p.expert_parallel_degree=2
2 $p.pipeline_parallel_degree=2 --training.local_batch_size=2
2 $p.tensor_parallel_degree=2 $p.expert_parallel_degree=2
2 $p.context_parallel_degree=2
END
}

case_a_resumed_run_continues_exactly() {
    make_chat_tokenizer
    make_chats
    run train $chat --checkpoint.enable --checkpoint.interval=2 --training.steps=4 --lr_scheduler.total_steps=4
    expect_ok
    losses_of run >whole
    run train $chat --checkpoint.enable --training.steps=2 --lr_scheduler.total_steps=4 --job.dump_folder=parts
    expect_ok
    run train $chat --checkpoint.enable --training.steps=4 --lr_scheduler.total_steps=4 --job.dump_folder=parts
    expect_ok
    losses_of parts >parts.txt
    expect_same whole parts.txt
    run train $chat --checkpoint.enable --training.steps=5 --lr_scheduler.total_steps=4 --job.dump_folder=parts \
        --dataloader.long_conversations=drop
    expect_error 3 "trained with dataloader.long_conversations truncate, but this run has drop" "exclude_from_loading"
}

# Two sets of conversations beside a text, in batches with samples of each. One rank runs 4 microbatches; each of 4
# ranks runs one of them.
case_a_mixture_of_chats_and_text_is_the_same_on_any_layout() {
    make_corpus
    make_chat_tokenizer
    make_chats
    sed -e 's/day/week/g' -e 's/morning/evening/g' chats.jsonl | head -90 >weeks.jsonl
    cat >mixture.yaml <<END
training:
  dataset:
  - {dataset: jsonl_sft, dataset_path: chats.jsonl, weight: 2}
  - {dataset: text, dataset_path: corpus.txt}
  - {dataset: jsonl_sft, dataset_path: weeks.jsonl}
END
    mixture=${chat/--training.dataset=text --training.dataset_path=corpus.txt/}
    mixture="${mixture/--training.dataset=jsonl_sft*chats.jsonl/--config mixture.yaml} --training.local_batch_size=1
        --training.steps=4 --lr_scheduler.total_steps=4 --validation.enable --validation.local_batch_size=1
        --validation.freq=2 --validation.steps=4 --checkpoint.enable"
    run train $mixture
    expect_ok
    for part in "chats = jsonl_sft chats.jsonl: .* 50%" "corpus = text corpus.txt: .* 25%" \
        "weeks = jsonl_sft weeks.jsonl: .* 25%"; do
        expect_err " $part of the run"
    done
    losses_of run >one
    [ "$(wc -l <one)" = 8 ] || not_as "expected losses and norms of 4 steps"
    for ranks in 2 4; do
        run_ranks $ranks train $mixture --job.dump_folder=on-$ranks
        expect_ok
        losses_of on-$ranks >on-$ranks.txt
        expect_same one on-$ranks.txt
        grep -o '"loss/[a-z]*": *[0-9.e-]*' on-$ranks/metrics.jsonl >sets-$ranks.txt
        grep -o '"loss/[a-z]*": *[0-9.e-]*' run/metrics.jsonl | cmp -s - sets-$ranks.txt || not_as "the validation sets"
        [ "$(wc -l <sets-$ranks.txt)" = 9 ] || not_as "expected 3 losses after steps 1, 2 and 4"
        run ckpt diff run on-$ranks
        expect_out "^EQUAL"
    done
    run_ranks 2 train $mixture --training.steps=1 --job.dump_folder=parts
    expect_ok
    run_ranks 4 train $mixture --training.steps=3 --job.dump_folder=parts
    expect_ok
    run train $mixture --job.dump_folder=parts --parallelism.threads_per_rank=3
    expect_ok
    losses_of parts >parts.txt
    expect_same one parts.txt
    run ckpt diff run parts
    expect_out "^EQUAL"
}

case_eval_reads_the_data_as_the_run_did() {
    make_chat_tokenizer
    make_chats
    run train $chat --checkpoint.enable --validation.enable --validation.local_batch_size=2
    expect_ok
    grep '"type": *"validate"' run/metrics.jsonl | tail -1 >validated
    run eval run --json --batch 2
    expect_ok
    expect_json 'assert found["loss"] == json.load(open("validated"))["loss"], found'
}

# make_answering_run [TEMPLATE]: a run that has learned the same three conversations over and over.
make_answering_run() {
    make_chat_tokenizer "$@"
    for word in ark sea day; do
        echo "{\"messages\": [{\"role\": \"user\", \"content\": \"$word\"}, " \
            "{\"role\": \"assistant\", \"content\": \"the $word of $word\"}]}"
    done >chats.jsonl
    run train $chat --training.steps=60 --lr_scheduler.warmup_steps=2 --optimizer.lr=1e-2 --checkpoint.enable \
        --metrics.log_freq=30
    expect_ok
}

case_a_trained_model_answers() {
    make_answering_run
    run generate run --chat --prompt sea --greedy --json
    expect_ok
    expect_json "assert found['text'] == '<think>\n\n</think>\n\nthe sea of sea' and found['finish'] == 'eos', found"
    run generate run --chat --prompt sea --greedy --system day --json
    expect_ok
    expect_json "assert len(found['prompt_tokens']) > 7, found"
    run generate run --prompt sea --system day
    expect_error 2 "--system and --chat-template need --chat"
    run generate run --chat --prompt-tokens 7
    expect_error 2 "--chat writes a text as a message" "help: use --prompt"
    run generate run --chat --prompt sea --chat-template mine
    expect_error 2 "chat template 'mine' is not one of auto, llama3, qwen3, chatml"
    printf '\377' >bytes
    run generate run --chat --prompt-file bytes
    expect_error 3 "the prompt: "
}

# expect_talk FOLDER END: checks that in an export's files END is the EOS, that the former EOS ends answers too, and
# that it pads.
expect_talk() {
    python3 - "$1" "$2" >problem.txt 2>&1 <<'END' || not_as "$1: $(tail -1 problem.txt)"
import json, sys
folder, end = sys.argv[1:]
read = lambda name: json.load(open(f"{folder}/{name}"))
ids = {token["content"]: token["id"] for token in read("tokenizer.json")["added_tokens"]}
config, generation = read("tokenizer_config.json"), read("generation_config.json")
stops = [ids[end], ids["<|end_of_text|>"]]
assert config["eos_token"] == end and config["pad_token"] == "<|end_of_text|>", config
assert config["bos_token"] == "<|begin_of_text|>", config
assert generation["eos_token_id"] == stops and generation["pad_token_id"] == stops[1], generation
assert "_from_model_config" not in generation, generation
assert read("config.json")["eos_token_id"] == stops
END
}

# The tokenizer has no template. The export contains the one that was named, and titan reads it like any other.
case_an_export_has_what_was_learned_of_talking() {
    make_chats
    while read -r name end; do
        make_chat_tokenizer none
        echo '{"eos_token": "<|end_of_text|>"}' >tokenizer/special_tokens_map.json
        run train $chat --training.chat_template=$name --checkpoint.enable --checkpoint.last_save_in_hf --overwrite
        expect_ok
        hf=run/checkpoint/step-3/hf
        expect_talk $hf "$end"
        grep -q "\"eos_token\": \"$end\"" $hf/special_tokens_map.json || not_as "$(cat $hf/special_tokens_map.json)"
        ! grep -q 'generation %}' $hf/chat_template.jinja || not_as "$(cat $hf/chat_template.jinja)"
        expect_same tokenizer/tokenizer.json $hf/tokenizer.json
        run data pack --dataset jsonl_sft --dataset_path chats.jsonl --tokenizer tokenizer --out named \
            --chat-template $name
        expect_ok
        rm $hf/chat_template.jinja # tokenizer_config.json has it too
        run ckpt consolidate run exported --format hf --force
        expect_ok
        for folder in $hf exported; do
            run data pack --dataset jsonl_sft --dataset_path chats.jsonl --tokenizer $folder --out auto --force
            expect_ok
            cmp -i 128 named auto || not_as "$folder: other tokens than those of $name" # the header names the tokenizer
            for source in run $folder; do
                run generate $source --chat --system "day 3" --prompt sea --greedy --max-new-tokens 9 --json
                expect_ok
                python3 -c 'import json; found = json.load(open("out"))
print(found["prompt_tokens"], found["tokens"], found["finish"])' >said-${source%%/*}
            done
            expect_same said-run said-${folder%%/*}
        done
    done <<'END'
llama3 <|eot_id|>
qwen3 <|im_end|>
chatml <|im_end|>
END
}

# The base model's folder keeps its own template, unless the conversations were written in another format.
case_an_own_template_is_kept_unless_training_used_another() {
    make_chats
    make_chat_tokenizer qwen3
    run data pack --dataset jsonl_sft --dataset_path chats.jsonl --tokenizer tokenizer --out chats.tokens
    expect_ok
    own=$(python3 -c 'import json; print(json.load(open("tokenizer/tokenizer_config.json"))["chat_template"])')
    for options in "" --training.chat_template=qwen3 \
        "--training.dataset=tokens --training.dataset_path=chats.tokens"; do
        run train $chat $options --checkpoint.enable --checkpoint.last_save_in_hf --overwrite
        expect_ok
        expect_talk run/checkpoint/step-3/hf '<|im_end|>'
        refuse_file run/checkpoint/step-3/hf/chat_template.jinja
        kept=$(python3 -c 'import json
print(json.load(open("run/checkpoint/step-3/hf/tokenizer_config.json"))["chat_template"])')
        [ "$own" = "$kept" ] || not_as "$options: the template is $kept"
    done
    run train $chat --training.chat_template=llama3 --checkpoint.enable --checkpoint.last_save_in_hf --overwrite
    expect_ok
    expect_talk run/checkpoint/step-3/hf '<|eot_id|>'
    grep -q start_header_id run/checkpoint/step-3/hf/chat_template.jinja || not_as "the template is still qwen3's"
    # a template that writes eos_token would write another text if that were the end of a turn
    make_chat_tokenizer none
    printf '%s' "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{{ eos_token }}{% endfor %}" \
        "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}" >tokenizer/chat_template.jinja
    run train $chat --checkpoint.enable --checkpoint.last_save_in_hf --overwrite
    expect_ok
    grep -q '"eos_token": "<|end_of_text|>"' run/checkpoint/step-3/hf/tokenizer_config.json || not_as "another eos_token"
    expect_same tokenizer/chat_template.jinja run/checkpoint/step-3/hf/chat_template.jinja
    run generate run/checkpoint/step-3/hf --chat --prompt sea --max-new-tokens 2 --json
    expect_ok
}

# Documents began with BOS. Conversations begin as their template says.
case_other_programs_add_bos_where_training_did() {
    make_corpus
    make_chats
    make_chat_tokenizer none
    echo '{"prompt": "day", "completion": "morning"}' >pairs.jsonl
    run data pack --dataset text --dataset_path corpus.txt --tokenizer tokenizer --out corpus.tokens
    expect_ok
    while read -r adds options; do
        run train $chat $options --checkpoint.enable --checkpoint.last_save_in_hf --overwrite
        expect_ok
        hf=run/checkpoint/step-3/hf
        if [ $adds = no ]; then
            expect_same tokenizer/tokenizer.json $hf/tokenizer.json
        else
            grep -q '"add_bos_token": true' $hf/tokenizer_config.json || not_as "$options: add_bos_token is not true"
            for source in run $hf; do
                run generate $source --prompt sea --greedy --max-new-tokens 5 --json
                expect_ok
                expect_json 'assert found["prompt_tokens"][0] == 0, found'
                python3 -c 'import json; print(json.load(open("out"))["tokens"])' >said-${#source}
            done
            expect_same said-3 said-${#hf}
            run train $chat $options --model.hf_assets_path=$hf --job.dump_folder=more --overwrite
            expect_ok # packed tokens still belong to this tokenizer
        fi
    done <<'END'
yes --training.dataset=text --training.dataset_path=corpus.txt
yes --training.dataset=tokens --training.dataset_path=corpus.tokens
yes --training.dataset_path=pairs.jsonl --training.seq_len=8
no --training.chat_template=chatml
END
}

# converse ARGUMENT...: a conversation with the model of run/; the file `said` holds the user's turns, one a line.
converse() {
    echo "titan generate run --chat --greedy $* <said" >command
    code=0
    "$TITAN" generate run --chat --greedy "$@" <said >out 2>err || code=$?
}

# With this template an earlier answer is written as it was said, so a conversation is also one text.
case_a_conversation_has_a_history() {
    make_answering_run chatml
    printf 'sea\n\nday\\\nsea\nark' >said # an empty line is no turn, and the second turn has two lines
    converse
    expect_ok
    sed -n '/^----$/,$d; p' out >first
    [ "$(cat first)" = 'the sea of sea' ] || not_as "the first answer"
    [ "$(grep -c '^----$' out)" = 2 ] || not_as "expected three answers"
    [ "$(grep -Ec '^titan: (cut by [^;]*; )?read [0-9]+, wrote [0-9]+ at [0-9]+ tokens/s; context [0-9]+/96$' err)" = 3 ] ||
        not_as "expected three lines of rates"
    awk '/^----$/ { n++; next } n == 2' out >third
    awk '/^----$/ { n++; next } n == 1' out >second
    end='<|im_end|>
<|im_start|>' begin='assistant
'
    said="sea$end$begin$(cat first)$end"'user
'"day
sea$end$begin$(cat second)$end"'user
ark'
    grep -o 'read [0-9]*' err | cut -d' ' -f2 >read
    run generate run --chat --greedy --prompt "$said"
    expect_ok
    expect_same out third
    run generate run --chat --greedy --prompt "$said" --json
    expect_json "
told = len(found['prompt_tokens'])
read = [int(n) for n in open('read')]
assert all(n < told / 2 for n in read[1:]), ('what was read is read again', told, read)"
}

case_a_full_context_forgets_the_oldest_turns() {
    make_answering_run chatml
    for i in 1 2 3 4 5 6; do echo sea; done >said
    converse --max-seq-len 48 --max-new-tokens 12 --system day
    expect_ok
    expect_err '^titan: the context of 48 tokens is full: the model no longer sees the first 2 messages'
    [ "$(grep -c '^----$' out)" = 5 ] || not_as "expected six answers"
    grep -o 'context [0-9]*/48' err >places
    [ "$(wc -l <places)" = 6 ] || not_as "expected six rates"
    converse --max-seq-len 20 --ignore-eos
    expect_err 'titan: the context is full; read [0-9]+, wrote [0-9]+ at [0-9]+ tokens/s; context 20/20$'
    converse --max-seq-len 5
    expect_error 2 'standard input, line 1: with this message the model would have to read [0-9]+ tokens, but the context holds 5' \
        'help: say less, or set --max-seq-len'
}

case_a_conversation_is_saved_as_chat_data() {
    make_answering_run chatml
    printf '%s\n' sea '/save talk.jsonl' day '/save talk.jsonl' /reset ark '/save talk.jsonl ' /exit sea >said
    echo '{"messages": []}' | tr -d '\n' >talk.jsonl # another line, without its end
    chmod 600 talk.jsonl
    converse --system 'A "dä"y'
    expect_ok
    [ "$(grep -c '^----$' out)" = 2 ] || not_as "expected three answers"
    expect_err '^titan: saved as a line of chat data: talk.jsonl$'
    [ "$(stat -c %a talk.jsonl)" = 600 ] || not_as "others may read it now"
    python3 - >problem.txt 2>&1 <<'END' || not_as "$(tail -1 problem.txt)"
import json
lines = [json.loads(line)["messages"] for line in open("talk.jsonl")]
said = [[m["content"] for m in line if m["role"] == "user"] for line in lines]
assert said == [[], ["sea", "day"], ["ark"]], said
assert all(line[0] == {"role": "system", "content": 'A "dä"y'} for line in lines[1:]), lines
assert [m["role"] for m in lines[1]] == ["system", "user", "assistant", "user", "assistant"], lines
END
    printf '%s\n' sea '/save cut.jsonl' >said
    converse --max-new-tokens 1
    expect_ok
    expect_err '1 of 1 answers did not end by itself; the weight 0 keeps training from learning it'
    grep -q '"weight": *0' cut.jsonl || not_as "no weight"
    sed 1d talk.jsonl >good.jsonl
    run data pack --dataset jsonl_sft --dataset_path good.jsonl --tokenizer tokenizer --out good.tokens
    expect_ok
    run data pack --dataset jsonl_sft --dataset_path cut.jsonl --tokenizer tokenizer --out cut.tokens
    expect_error 3 "a weight other than 0"
    for bad in '/seve x|there is no command ./seve.' '/save x|there is no answer to save yet' '/save|needs a file'; do
        printf '%s\n' "${bad%|*}" sea >said
        converse
        expect_error 2 "standard input, line 1: .*${bad#*|}"
        [ ! -s out ] || not_as "it went on"
    done
    printf '%s\n' sea '/save run' >said
    converse
    expect_error 3 "standard input, line 2: .*run"
}

case_conversations_that_cannot_be_are_refused() {
    make_answering_run chatml
    run generate run --chat
    expect_error 2 "standard input contains no message" "help: give it a line for each turn"
    for option in --json --echo '--num-samples 2'; do
        run generate run --chat $option
        expect_error 2 "a conversation, which has no ${option% *}"
    done
    printf '\377\n' >said
    converse
    expect_error 3 "line 1: the text of role user is not valid UTF-8"
    rm -r tokenizer run
    make_chat_tokenizer none
    run train $chat --training.chat_template=chatml --checkpoint.enable --training.steps=1
    expect_ok
    run ckpt consolidate run weights --format hf
    expect_ok
    rm -f weights/chat_template.jinja
    python3 - <<'END'
import json
made = json.load(open("weights/tokenizer_config.json"))
made.pop("chat_template", None)
json.dump(made, open("weights/tokenizer_config.json", "w"))
END
    run generate weights --chat
    expect_error 2 "tokenizer.json has no chat template, so titan does not know how this model was taught to answer" \
        "help: .*--chat-template llama3, qwen3 or chatml; .* --prompt TEXT without --chat"
    echo sea | "$TITAN" generate weights --chat --chat-template chatml --max-new-tokens 1 >out 2>err || not_as "named"
}

# At a terminal: a prompt, Ctrl-C in the middle of an answer, an error that does not end the chat, and the ways to end
# it.
case_a_conversation_is_typed() {
    make_answering_run chatml
    python3 - >problem.txt 2>&1 <<'END' || not_as "$(tail -3 problem.txt)"
import os, pty, re, select, signal, time

def start(*more):
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(os.environ["TITAN"], ["titan", "generate", "run", "--chat", "--greedy", *more])
    return pid, terminal

def until(terminal, pattern, shown=""):
    end = time.time() + 60
    while not re.search(pattern, shown):
        assert time.time() < end, f"no {pattern} in {shown!r}"
        if select.select([terminal], [], [], 1)[0]:
            try:
                shown += os.read(terminal, 65536).decode()
            except OSError:  # the other side has ended
                assert re.search(pattern, shown), f"no {pattern} before the end in {shown!r}"
    return shown

def code(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

PROMPT = r"(^|\n)> $"
pid, terminal = start()
shown = until(terminal, PROMPT)
assert "/help lists commands" in shown, shown
assert re.search(r"llama3.* from run/checkpoint/step-60, a context of 96", shown), shown
os.write(terminal, b"sea\n")
shown = until(terminal, PROMPT)
assert re.search(r"the sea of sea\r\n\x1b\[2mread \d+, wrote \d+ at \d+ tokens/s; context \d+/96\x1b\[0m", shown), shown
os.write(terminal, b"/seve x\n")
shown = until(terminal, PROMPT)
assert "there is no command '/seve'" in shown, shown
os.write(terminal, b"/help\n")
shown = until(terminal, PROMPT)
assert "/save FILE" in shown and "Ctrl-C stops an answer" in shown, shown
for part in range(20):  # more than a terminal accepts as one line
    os.write(terminal, b"sea " * 64)
    until(terminal, "sea")
os.write(terminal, b"\n")
shown = until(terminal, PROMPT)
assert "the terminal has dropped the rest" in shown and "read" not in shown, shown
os.write(terminal, b"\x04")
until(terminal, r"\n")
assert code(pid) == 0

pid, terminal = start("--ignore-eos", "--max-seq-len", "50000", "--max-new-tokens", "49000")
until(terminal, PROMPT)
os.write(terminal, b"sea\n")
until(terminal, "the sea of sea")
os.kill(pid, signal.SIGINT)
shown = until(terminal, PROMPT)
assert "stopped; read" in shown, shown
os.write(terminal, b"day\n")
until(terminal, r"day\r\n\S")
os.write(terminal, b"\x03")  # as a key
shown = until(terminal, PROMPT)
assert "stopped" in shown, shown
os.kill(pid, signal.SIGINT)
until(terminal, r"\n")
assert code(pid) == 0
END
}

case_packed_conversations_are_the_same_data() {
    make_chat_tokenizer
    make_chats
    run data pack --dataset jsonl_sft --dataset_path chats.jsonl --tokenizer tokenizer --out chats.tokens --json
    expect_ok
    mv out packed.json
    run data inspect chats.tokens --tokenizer tokenizer --json
    expect_ok
    expect_json 'packed = json.load(open("packed.json"))
assert packed["documents"] == found["documents"] == 150, found
assert 0 < packed["learned"] == found["learned"] < found["tokens"], found
assert found["first_text"].startswith("<|im_start|>user\nday 0?<|im_end|>\n<|im_start|>assistant\n<think>"), found'
    run train $chat
    expect_ok
    run train $chat --training.dataset=tokens --training.dataset_path=chats.tokens --job.dump_folder=packed
    expect_ok
    losses_of run >a
    losses_of packed >b
    expect_same a b
}

case_the_template_is_evaluated_or_named() {
    make_chats
    for name in llama3 qwen3 chatml; do
        make_chat_tokenizer $name
        run data pack --dataset jsonl_sft --dataset_path chats.jsonl --tokenizer tokenizer --out $name.auto
        expect_ok
        make_chat_tokenizer none
        run data pack --dataset jsonl_sft --dataset_path chats.jsonl --tokenizer tokenizer --out $name.named \
            --chat-template $name
        expect_ok
        expect_same $name.auto $name.named
    done
    run train $chat
    expect_error 2 "tokenizer.json has no chat template" "help: set training.chat_template to one of"
    refuse_err "chats.jsonl:1"
    python3 - <<'EOF'
import json, os
golden = json.load(open(os.environ["TITAN_SOURCE"] + "/tests/unit/data/chat.json"))
for name in "chat_template", "chatml":
    open(f"tokenizer/{name}.jinja", "w").write(golden["templates"]["chatml"])
EOF
    run data pack --dataset jsonl_sft --dataset_path chats.jsonl --tokenizer tokenizer --out beside
    expect_ok
    expect_same beside chatml.auto
    printf '{%% for message in messages %%}\n{{ message.content | wordwrap }}\n{%% endfor %%}' >tokenizer/chat_template.jinja
    run train $chat
    expect_error 2 "tokenizer/chat_template.jinja, line 2: the filter 'wordwrap' is not supported" \
        "help: titan cannot write this chat template"
    refuse_err "chats.jsonl:1"
    printf '{%% if messages|length > 4 %%}{{ raise_exception("too long") }}{%% endif %%}' >tokenizer/chat_template.jinja
    cat tokenizer/chatml.jinja >>tokenizer/chat_template.jinja
    run train $chat
    expect_error 3 "chats.jsonl:3: the chat template of tokenizer/chat_template.jinja, line 1: .*: too long"
}

case_bad_lines_are_named() {
    make_chat_tokenizer
    make_chats
    head -3 chats.jsonl >bad.jsonl
    echo '{"messages": [{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}]}' >>bad.jsonl
    run train $chat --training.dataset_path=bad.jsonl
    expect_error 3 "bad.jsonl:4: message 2 has the role 'tool'" "help: roles are system, user and assistant"
    run train $chat --dataloader.long_conversations=error
    expect_error 3 "dataloader.long_conversations: conversation [0-9]+ of dataset 'jsonl_sft' has [0-9]+ tokens"
    run train $chat --training.dataset=jsonl
    expect_error 3 "chats.jsonl:1: no string field 'text'" "help: dataset 'jsonl_sft' reads chat data"
    run train $chat --training.chat_template=alpaca
    expect_error 2 "training.chat_template: 'alpaca' is not one of auto, llama3, qwen3, chatml"
}

run_cases

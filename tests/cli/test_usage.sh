#!/bin/bash
# SPDX-License-Identifier: MIT
# Commands, their help, and messages about wrong command lines.
. "$(dirname "$0")/lib.sh"

commands="train plan estimate tune launch config models ckpt data version help"

case_no_arguments_is_usage() {
    run
    expect_code 2
    expect_err "usage: titan"
    refuse_out .
}

case_help_lists_every_command() {
    run help
    expect_ok
    for command in $commands; do
        expect_out "^ +$command "
    done
    refuse_err .
}

case_help_option_is_the_same() {
    run help
    mv out help.txt
    run --help
    expect_ok
    expect_same out help.txt
}

case_every_command_has_help() {
    for command in $commands; do
        run "$command" --help
        expect_ok
        expect_out .
        refuse_err .
    done
}

case_help_command_is_command_help() {
    for command in train plan estimate tune launch config models ckpt data; do
        run help $command
        mv out help.txt
        run $command --help
        expect_ok
        expect_same out help.txt
    done
}

case_version_names_titan_and_its_libraries() {
    run version
    expect_ok
    expect_out "^titan [0-9]+\.[0-9]+"
    expect_out "Open MPI"
    expect_out "OpenBLAS"
    run --version
    expect_ok
    expect_out "^titan [0-9]+\.[0-9]+"
}

# OpenBLAS starts a thread and maps a buffer for each core when it is loaded, and retries for ever if it cannot.
case_limits_on_memory_and_processes_do_not_hang_a_command() {
    ! ldd "$TITAN" | grep -qE "lib(asan|tsan)" || skip "a sanitizer maps more than that itself"
    printf 'model: {flavor: debugmodel}\n' >one.yaml
    user=
    [ "$(id -u)" != 0 ] || user="setpriv --reuid=65534 --clear-groups" # the limit does not count for root
    for limited in "prlimit --as=100000000" "prlimit --as=200000000" "prlimit --nproc=1 $user"; do
        for command in version --help "config check $PWD/one.yaml"; do
            [ -n "${user##*reuid*}" ] || [ "$command" != "config check $PWD/one.yaml" ] || chmod -R a+rX "$top"
            echo "$limited titan $command" >command
            code=0
            timeout 60 $limited "$TITAN" $command >out 2>err </dev/null || code=$?
            expect_ok
        done
    done
    echo "titan train under limits" >command
    code=0
    TITAN_CPU=blas timeout 60 prlimit --as=250000000 "$TITAN" train --model.flavor=debugmodel \
        --parallelism.threads_per_rank=2 >out 2>err </dev/null || code=$?
    expect_error 6 "." "ulimit -v|smaller training.local_batch_size"
    code=0
    chmod 777 .
    timeout 60 prlimit --nproc=1 $user "$TITAN" train --model.flavor=debugmodel --parallelism.threads_per_rank=2 \
        --job.dump_folder=other >out 2>err </dev/null || code=$?
    expect_error 1 "cannot create thread 2 of 2" "ulimit -u"
}

# Without the library, commands that need no product work, and the others say so before they begin.
case_openblas_is_missing() {
    mkdir lib
    ln -s "$(ldd "$TITAN" | awk '/libyaml/ { print $3 }')" lib/libopenblas.so.0
    export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    run version
    expect_ok
    expect_out "^BLAS none$"
    TITAN_CPU=blas run train --model.flavor=debugmodel --training.steps=1
    expect_error 2 "OpenBLAS, which multiplies matrices, cannot be loaded: it lacks functions" "libopenblas0"
    TITAN_CPU=blas run doctor
    expect_code 2
    expect_out "^error +blas +OpenBLAS, which multiplies matrices, cannot be loaded"
    TITAN_CPU=generic run doctor
    expect_out "^ok +blas +none, and not needed"
}

case_unknown_command_names_the_nearest() {
    run trian
    expect_error 2 "trian" "did you mean .titan train"
}

case_unknown_command_without_a_near_one() {
    run qqqqqqqqq
    expect_error 2 "qqqqqqqqq" "titan help"
}

case_unknown_help_topic() {
    run help nosuch
    expect_error 2 "nosuch"
}

case_unknown_options_are_refused() {
    for command in train "config show" models "ckpt list" "data inspect"; do
        run $command --no-such-option-at-all
        expect_error 2 "no.such.option.at.all"
    done
}

case_an_extra_argument_is_refused() {
    run train my.yaml
    expect_error 2 "my.yaml"
    run models llama3 everything
    expect_error 2 "llama3"
}

case_commands_that_need_a_verb_say_which() {
    run config
    expect_error 2 "show" "check" "diff" "init"
    run ckpt
    expect_error 2 "list" "inspect" "verify" "consolidate"
    run data
    expect_error 2 "pack" "inspect"
}

case_a_misspelt_verb_is_named() {
    run config shwo
    expect_error 2 "shwo" "show"
    run ckpt inspcet x
    expect_error 2 "inspcet" "inspect"
    run data pakc
    expect_error 2 "pakc" "pack"
}

case_models_lists_the_registry() {
    run models
    expect_ok
    for flavor in debugmodel 125M 1B 3B 8B 70B 405B; do
        expect_out "llama3 +$flavor "
    done
    expect_out "6,163,712"
    for flavor in debugmodel 0.6B 1.7B 4B 8B 14B 32B; do
        expect_out "qwen3 +$flavor "
    done
    for flavor in debugmodel 124M 355M 774M 1558M; do
        expect_out "gpt2 +$flavor "
    done
}

case_models_json_has_the_counts() {
    run models --json --seq_len 1024
    expect_ok
    python3 - <<'EOF' || not_as "the JSON of titan models"
import json
models = json.load(open("out"))
assert models["seq_len"] == 1024
by_flavor = {m["flavor"]: m for m in models["models"] if m["name"] == "llama3"}
assert by_flavor["debugmodel"]["parameters"] == 6163712
for key in ("dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "flops_per_token", "flops_per_token_causal"):
    assert by_flavor["8B"][key] > 0, key
assert by_flavor["8B"]["flops_per_token_causal"] < by_flavor["8B"]["flops_per_token"]
EOF
}

case_models_refuses_a_bad_length() {
    run models --seq_len many
    expect_error 2 "many"
    run models --seq_len 0
    expect_error 2 "0"
}

case_output_that_cannot_be_written_is_an_error() {
    [ -c /dev/full ] || skip "no /dev/full"
    for arguments in help version models "models --json" "config show" "config show --json" "config init" \
        "train --help" \
        "data --help" "plan --help"; do
        code=0
        echo "titan $arguments >/dev/full" >command
        : >out
        "$TITAN" $arguments >/dev/full 2>err || code=$?
        expect_error 3
    done
}

case_version_as_json() {
    run version --json
    expect_ok
    expect_json "assert sorted(found)[:2] == ['blas', 'cpu'] and found['version'][0].isdigit() and 'Open MPI' in found['mpi'], found"
    run version --jsn
    expect_error 2 "version: unknown argument '--jsn'"
}

# All commands of the list, with their verbs.
case_help_fits_80_columns() {
    run help
    expect_ok
    [ -z "$(awk 'length > 80' out)" ] || not_as "lines of help longer than 80: $(awk 'length > 80' out)"
    names=$(sed -n '/^usage/,/^`titan/s/^  \([a-z][a-z]*\) .*/\1/p' out)
    [ "$(echo "$names" | wc -w)" -ge 21 ] || not_as "the commands: $names"
    for command in $names "config show" "config check" "config diff" "config init" "config import" "ckpt list" \
        "ckpt inspect" "ckpt verify" "ckpt diff" "ckpt consolidate" "ckpt convert" "ckpt average" "ckpt gc" \
        "ckpt rollback" "data pack" "data inspect" "data tokenizer" "trace summary" "train --help keys"; do
        run $command --help
        expect_ok
        expect_out .
        [ -z "$(awk 'length > 80' out)" ] ||
            not_as "lines of $command --help longer than 80: $(awk 'length > 80' out)"
        ! grep -q ' $' out || not_as "blanks at the end of a line"
    done
    run config init
    expect_ok
    [ -z "$(grep '^ *#' out | awk 'length > 80')" ] || not_as "comments: $(grep '^ *#' out | awk 'length > 80')"
}

case_help_and_tables_fit_a_terminal() {
    run train --help keys
    [ "$(wc -l <out)" -gt 200 ] || not_as "train --help keys explains every key"
    [ -z "$(grep -E '^[a-z_.]+: ' out | sort | uniq -d)" ] || not_as "train --help keys has a section twice"
    run train --help
    [ "$(wc -l <out)" -lt 90 ] || not_as "train --help fits a screen or two"
    run train --help nothing
    expect_error 2 "no help on 'nothing'"
    run estimate --ranks 1,3,512 --model.flavor=405B --training.global_batch_size=64 --activation_checkpoint.mode=full
    expect_ok
    [ -z "$(awk 'length > 120' out)" ] || not_as "lines of estimate longer than 120: $(awk 'length > 120' out)"
    expect_out "global_batch_size|shard"
}

case_common_mistakes_get_a_hint() {
    run --config x.yaml
    expect_error 2 "titan train --config"
    run train -n 2
    expect_error 2 "unknown option '-n'" "titan launch -n 2"
    run_ranks 2 train --steps 5
    expect_error 2 "unknown option '--steps'" "did you mean 'training.steps'"
    run train -c my.yaml
    expect_error 2 "unknown option '-c'" "did you mean '--config'"
    run generate x -n 5
    expect_error 2 "unknown option '-n'" "--max-new-tokens is the number of tokens"
    run generate x -p hello
    expect_error 2 "unknown option '-p'" "did you mean '--prompt'"
    run generate x -t 1
    expect_error 2 "unknown option '-t'" "options begin with two dashes"
    run train my.yaml
    expect_error 2 "unexpected argument 'my.yaml'" "did you mean .titan train --config my.yaml"
    run train --batch-size 4
    expect_error 2 "unknown option '--batch-size'" "training.global_batch_size the number in a step"
    run train --nproc_per_node=2
    expect_error 2 "titan launch -n 2 -- train"
    run train --learning_rate 1e-3
    expect_error 2 "did you mean 'optimizer.lr'"
    run train --num_train_epochs=3
    expect_error 2 "did you mean 'training.epochs'"
    run train --resume
    expect_error 2 "checkpoint.load_step chooses a step"
    run train --training.dataset=data/x.parquet
    expect_error 2 "set training.dataset to text, jsonl, parquet or tokens, and training.dataset_path to the file"
    run trace
    expect_error 2 "needs to know what to do" "titan trace summary"
    run generate --prompt x
    expect_error 2 "takes one checkpoint or folder" "titan generate PATH"
    refuse_err "0 were given"
    run eval --data x
    expect_error 2 "did you mean '--dataset'"
    run generate --samples 3
    expect_error 2 "did you mean '--num-samples'"
    run train --training.dataset=text --training.dataset_path=data/x.parquet
    expect_error 2 "flag --training.dataset_path: 'data/x.parquet' is a table" "set training.dataset=parquet"
    run train "--training.dataset=[{dataset: text, dataset_path: x.feather}]"
    expect_error 2 "flag --training.dataset: entry 1: 'x.feather' is a table" "set dataset=arrow"
    mkdir -p shards/a && echo '{"text": "a"}' >shards/a/0.jsonl && echo PAR1 >shards/a/1.parquet
    run data pack --dataset jsonl --dataset-path shards --out packed
    expect_error 3 "shards/a/1.parquet: byte 5 of 5: a file of Parquet does not end here" "help: the file is damaged"
    run train --training.dataset=text --training.dataset_path=shards --job.dump_folder=run
    expect_error 3 "'shards/a/0.jsonl' holds JSON lines"
    run train --training.dataset=parquet '--training.dataset_path=shards/*.arrow' --job.dump_folder=run
    expect_error 3 "flag --training.dataset_path: no file matches 'shards/\*.arrow'"
    run config check --training.dataset=parquet '--training.dataset_path=shards/a/*.parquet'
    expect_ok
    run train --training.dataset=text --training.dataset_path=data/x.jsonl.gz
    expect_error 2 "x.jsonl.gz' holds JSON lines" "training.dataset=jsonl"
    run train --training.dataset=text --training.dataset_path=nosuch.txt --job.dump_folder=run
    expect_error 3 "flag --training.dataset_path: cannot open 'nosuch.txt'" "titan downloads nothing"
    printf 'model:\n  hf_assets_path: nowhere\n' >my.yaml
    run train --config my.yaml --job.dump_folder=run
    expect_error 3 "my.yaml:2:19: model.hf_assets_path: cannot open 'nowhere" "built-in tokenizer"
}

# Values that people who know other trainers type.
case_values_of_other_trainers_are_recognised() {
    while IFS='|' read -r flag pattern help; do
        run config check "--$flag"
        expect_error 2 "^titan: error: flag --${flag%%=*}: '${flag#*=}' $pattern" "^help: $help"
    done <<'EOF'
training.mixed_precision_param=bf16|is not one of float32, bfloat16|did you mean 'bfloat16'
training.mixed_precision_param=torch.bfloat16|is not one of float32, bfloat16|did you mean 'bfloat16'
training.mixed_precision_reduce=fp32|is not one of float32, bfloat16|did you mean 'float32'
training.dtype=fp16|is a torchtitan value that titan does not support|use float32, and
checkpoint.export_dtype=half|is not one of float32, bfloat16, float16|did you mean 'float16'
optimizer.name=adamw_torch_fused|is not one of AdamW|did you mean 'AdamW'
lr_scheduler.decay_type=cosine_with_warmup|is not one of linear, sqrt, cosine|did you mean 'cosine'
checkpoint.async_mode=true|is not one of disabled, async|did you mean 'async'
activation_checkpoint.mode=selective_op|is not one of none, full, selective|set activation_checkpoint.mode=selective and
parallelism.pipeline_parallel_schedule=zbv|is not one of 1F1B|did you mean 'ZBVZeroBubble'
training.chat_template=llama-3|is not one of auto, llama3, qwen3, chatml|did you mean 'llama3'
EOF
    run config check --optimizer.name=adamw
    expect_ok
    run generate x --prompt y --dtype bf16
    expect_error 2 "--dtype 'bf16' is not float32 or bfloat16" "did you mean --dtype bfloat16"
    run ckpt consolidate x y --dtype fp16
    expect_error 2 "--dtype 'fp16' is not float32, bfloat16 or float16" "did you mean --dtype float16"
    run config check --model.name=meta-llama/Llama-3.1-8B
    expect_error 2 "unknown model.name 'meta-llama/Llama-3.1-8B'" "did you mean llama3. the choices are"
    run config check --model.flavor=llama3_8b
    expect_error 2 "unknown model.flavor of llama3 'llama3_8b'" "did you mean 8B"
    run estimate --machine h1000 --ranks 8
    expect_error 2 "machine 'h1000' is not known" "did you mean h100-"
    run estimate --machine A100-60GB --ranks 8
    expect_error 2 "did you mean .*a100-80"
    run estimate --machine H200 --stack TorchTitan --ranks 8
    expect_error 2 "stack 'TorchTitan' is not built in" "did you mean torchtitan-eager"
    run estimate --machine h200 --model llama-3.1-9b --ranks 8
    expect_error 2 "the model 'llama-3.1-9b' is not known" "did you mean llama3.1-8b"
}

# torchrun's flags, and its form of a command line.
case_flags_of_other_launchers_are_recognised() {
    run launch --nproc_per_node=4 -- train
    expect_error 2 "no option '--nproc_per_node'" "did you mean -n 4. -n N is the number of ranks"
    run launch --nproc-per-node 4 train
    expect_error 2 "no option '--nproc-per-node'" "did you mean -n 4"
    run launch -n4 -- train
    expect_error 2 "no option '-n4'" "did you mean -n 4"
    run launch --nnodes 2 --nproc_per_node 4 -- train
    expect_error 2 "no option '--nnodes'" "--hostfile FILE names the hosts"
    run launch --standalone --nproc_per_node 4 -- train
    expect_error 2 "no option '--standalone'" "leave it out"
    run launch --rdzv_endpoint=host:29500 -n 2 -- train
    expect_error 2 "no option '--rdzv_endpoint'" "MPI connects the ranks"
    run launch -n 2 --bind-to none -- train
    expect_error 2 "no option '--bind-to'" "binds each rank"
    for words in "-n 4" "-np 4" "--ranks 4" "--ranks=4"; do
        run launch $words --print -- train
        expect_ok
        expect_out "(-n|--ntasks=) ?4 .* train$"
    done
}

case_a_prompt_without_its_option_is_recognised() {
    run generate Once upon a time
    expect_error 2 "which model\? 'Once upon a time' is not a path" \
        "^help: titan generate outputs/quick --prompt 'Once upon a time'$"
    mkdir outputs
    run generate outputs Once upon a time
    expect_error 2 "'Once upon a time' comes after the path; a prompt needs --prompt" \
        "^help: titan generate outputs --prompt 'Once upon a time'$"
    run generate
    expect_error 2 "takes one checkpoint or folder, none was given"
    run generate one two --prompt x
    expect_error 2 "several words were given"
}

case_an_export_says_which_of_two_was_meant() {
    run export "my run"
    expect_error 2 "records or weights" "titan export --csv 'my run'" \
        "titan ckpt consolidate 'my run' FOLDER --format hf"
}

# Numbers, words and sections as people write them elsewhere.
case_values_that_are_nearly_right_get_a_hint() {
    while IFS='|' read -r text pattern help; do
        printf "$text" >my.yaml
        run config check my.yaml
        expect_error 2 "^titan: error: my.yaml:[0-9:]+: $pattern" "^help: $help"
    done <<'EOF'
training:\n  steps: "10"\n|training.steps: expected an integer, found the text|write it without quotes$
training:\n  seq_len: 8k\n|training.seq_len: expected an integer, found '8k'|write all digits
optimizer:\n  lr: 1e-3,\n|optimizer.lr: expected a number, found '1e-3,'|write it without the comma$
optimizer:\n  lr = 1e-3\n|optimizer: expected a mapping of keys|YAML has a colon where TOML has '='
training:\n  dataset_path: None\n|training.dataset_path: expected text, or null, found 'None'|write null$
profiler:\n  profile_freq: 5\n|unknown section 'profiler'|did you mean 'profiling'
ckpt:\n  enable: true\n|unknown section 'ckpt'|did you mean 'checkpoint'
validator:\n  enable: true\n|unknown key 'validator.enable'|did you mean 'validation.enable'
lr_scheduler:\n  decay_type: constant\n|[a-z_.]+: 'constant' is not one of|set lr_scheduler.decay_ratio: 0
activation_checkpoint:\n  mode: op\n|[a-z_.]+: 'op' is not one of|set activation_checkpoint.mode=selective
optimizer:\n  betas: [0.9, 0.95]\n|unknown key 'optimizer.betas'|set optimizer.beta1 and optimizer.beta2$
training:\n  dataset: text\n  dataset_path: ~/x.txt\n|[a-z_.]+: .*only a shell expands ~|titan downloads nothing
model:\n  flavor: 7B\n|model.flavor: unknown model.flavor of llama3 '7B'|the choices are
EOF
    run train --module llama3
    expect_error 2 "unknown option '--module'" "--model.name=llama3 --model.flavor=8B"
    run train --cfg my.yaml
    expect_error 2 "did you mean '--config'"
    run train --training
    expect_error 2 "it is a section of the configuration; set its keys: --training.KEY=VALUE"
    run estimate --ranks 8 --memory 80
    expect_error 2 "--memory '80' has no unit" "^help: --memory 80GiB$"
    make_corpus
    run train $tiny --parallelism.memory_limit=80
    expect_error 6 "allows 80 B" "without a unit it is bytes"
}

# Commands and verbs under other names; under a launcher one rank reports them.
case_commands_of_other_programs_are_recognised() {
    while read -r word command; do
        run $word
        expect_error 2 "'$word' is not a command" "did you mean .titan $command"
    done <<'EOF'
-v version
torchrun launch
infer generate
evaluate eval
ps status
EOF
    run ckpt export outputs
    expect_error 2 "unknown command 'ckpt export'" "did you mean 'ckpt consolidate'"
    run ckpt ls outputs
    expect_error 2 "did you mean 'ckpt list'"
    run trace outputs
    expect_error 2 "^help: titan trace summary outputs$"
    run launch -n 2 --print -- python train.py
    expect_error 2 "'python' is not a titan command" "titan launch -n 2 -- train"
    run_ranks 2 trian
    expect_error 2 "'trian' is not a command"
    run export --hf outputs
    expect_error 2 "titan ckpt consolidate outputs FOLDER --format hf"
    run generate "Once upon a time"
    expect_error 2 "which model. 'Once upon a time' is not a path" \
        "titan generate outputs/quick --prompt 'Once upon a time'$"
}

run_cases

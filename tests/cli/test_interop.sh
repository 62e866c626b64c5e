#!/bin/bash
# SPDX-License-Identifier: MIT
# Checkpoints and records between titan and PyTorch, transformers, PEFT, tokenizers and
# TensorBoard, each of which runs in $TITAN_PYTHON (python3), and tables of pyarrow. A case that lacks a library is
# skipped.
. "$(dirname "$0")/lib.sh"

python=${TITAN_PYTHON:-python3}
interop=$TITAN_SOURCE/tests/interop

need_torch() {
    "$python" -c 'import torch, safetensors.torch' 2>/dev/null || skip "no torch in $python"
}

# A step of a small model with FSDP2 and tensor parallelism over gloo, right in many layouts and with many faults.
case_gradients_of_pytorch_jobs_are_judged() {
    need_torch
    "$python" "$interop/train_with_faults.py" jobs >train.txt 2>&1 || not_as "$(tail -20 train.txt)"
    "$python" "$interop/train_with_faults.py" --check "$TITAN" jobs >check.txt 2>&1 ||
        not_as "$(grep -v '^ok' check.txt)"
}

# One step of torchtitan's debug model, by torchtitan's own code.
case_a_step_of_torchtitan_is_a_step_of_titan() {
    [ -n "${TITAN_TORCHTITAN-}" ] || skip "TITAN_TORCHTITAN names no checkout of torchtitan"
    status=0
    "$python" "$interop/with_torchtitan.py" "$TITAN_TORCHTITAN" "$TITAN" steps >log.txt 2>&1 || status=$?
    [ $status != 77 ] || skip "$(tail -1 log.txt)"
    [ $status = 0 ] || not_as "$(tail -20 log.txt)"
}

case_pytorch_reads_what_titan_writes() {
    need_torch
    make_corpus
    for policy in "all" "filtered --checkpoint.filter=rank0"; do
        rm -rf run weights
        run_ranks 3 train $tiny --training.global_batch_size=6 --checkpoint.enable --checkpoint.save_policy=$policy
        expect_ok
        run ckpt consolidate run/checkpoint/step-3 weights
        expect_ok
        "$python" "$interop/read_with_torch.py" run/checkpoint/step-3 weights >read.txt 2>&1 ||
            not_as "$(tail -20 read.txt)"
    done
}

case_titan_reads_what_pytorch_writes() {
    need_torch
    for ranks in 1 2 3; do
        rm -rf shards weights
        "$python" "$interop/write_with_torch.py" shards --ranks $ranks >write.txt 2>&1 || not_as "$(tail -20 write.txt)"
        run ckpt consolidate shards weights
        expect_ok
        "$python" "$interop/write_with_torch.py" --compare weights >compare.txt 2>&1 || not_as "$(tail -5 compare.txt)"
    done
}

case_titan_reads_checkpoints_of_pytorch_as_torchtitan_and_torchtune_save_them() {
    need_torch
    for layout in "--shards 3 --replicas 1" "--shards 1 --replicas 2" "--nested"; do
        rm -rf saved
        "$python" "$interop/write_dcp_with_torch.py" saved $layout >write.txt 2>&1 || not_as "$(tail -20 write.txt)"
        run ckpt verify --deep saved
        expect_ok
        run ckpt diff saved "$interop/torch_dcp"
        expect_ok
        expect_out "^EQUAL: .* 36 tensors"
    done
}

case_pytorch_loads_what_titan_writes_in_its_format() {
    need_torch
    for size in 5GiB 1KiB; do
        rm -rf converted
        run ckpt convert "$interop/torch_dcp" converted --format dcp --max-shard-size $size
        expect_ok
        "$python" "$interop/write_dcp_with_torch.py" --compare converted >compare.txt 2>&1 ||
            not_as "$(tail -20 compare.txt)"
    done
}

# PyTorch writes it with HSDP, titan continues with it, and PyTorch resumes from titan's step, with FSDP2 on one and two
# ranks.
case_a_run_goes_from_pytorch_to_titan_and_back() {
    need_torch
    python3 -c 'import struct
open("tokens.bin", "wb").write(struct.pack("<4000H", *[(i * i + 3 * i) % 41 for i in range(4000)]))'
    model="--model.vocab_size=41 --model.dim=8 --model.n_layers=1 --model.n_heads=2 --model.n_kv_heads=1
        --model.ffn_dim=16 --training.seq_len=32 --training.local_batch_size=2 --training.global_batch_size=8
        --metrics.peak_flops=1e9 --training.dataset=tokens_u16 --training.dataset_path=tokens.bin
        --dataloader.cache_dir=cache --checkpoint.enable --training.steps=9"
    "$python" "$interop/write_dcp_with_torch.py" saved --shards 3 --replicas 2 >write.txt 2>&1 ||
        not_as "$(tail -20 write.txt)"
    run ckpt inspect saved
    expect_ok
    for tied in "" --tied; do
        options="--checkpoint.initial_load_path=saved --checkpoint.initial_load_model_only=false"
        [ -z "$tied" ] || options=--model.tie_embeddings
        run train $model $options --job.dump_folder=run$tied
        expect_ok
        run ckpt convert run$tied theirs$tied --format dcp
        expect_ok
        for ranks in 1 2; do
            "$python" "$interop/resume_dcp_with_torch.py" theirs$tied run$tied/checkpoint/step-9 --ranks $ranks $tied \
                >resume.txt 2>&1 || not_as "$(tail -20 resume.txt)"
        done
    done
}

# PyTorch resumes from an export of a run that keeps averages. The export leaves them out or, with --ema, takes them as
# its weights.
case_averages_are_exported_to_pytorch() {
    need_torch
    make_corpus
    run train $tiny --checkpoint.enable --ema.decay=0.5
    expect_ok
    run ckpt convert run theirs --format dcp
    expect_ok
    expect_err "the averages of the weights in .* are left out" "help: --ema writes them as the weights"
    run ckpt convert run averages --format dcp --ema
    expect_ok
    refuse_err "left out"
    for ranks in 1 2; do
        "$python" "$interop/resume_dcp_with_torch.py" theirs run/checkpoint/step-3 --ranks $ranks >resume.txt 2>&1 ||
            not_as "$(tail -20 resume.txt)"
        "$python" "$interop/resume_dcp_with_torch.py" averages run/checkpoint/step-3 --ranks $ranks --ema \
            >resume.txt 2>&1 || not_as "$(tail -20 resume.txt)"
    done
}

# make_model CLASS: makes a small model of a transformers class in ./CLASS, with a tokenizer.
make_model() {
    version=$("$python" -c 'import transformers; print(transformers.__version__.split(".")[0])')
    case $1 in
    llama) tokenizer=llama3 ;;
    mistral) tokenizer=mistral_nemo ;;
    qwen*) tokenizer=qwen3 ;;
    *) tokenizer=gpt2 ;;
    esac
    "$python" "$interop/with_transformers.py" make $1 \
        "$TITAN_SOURCE/tests/unit/data/transformers/v$version/$tokenizer" $1 >make.txt 2>&1 ||
        not_as "$(tail -20 make.txt)"
}

# From a transformers folder to a run, to an exported folder, and back, with $TITAN_PYTHON's version of transformers.
case_transformers_and_titan_agree() {
    need_torch
    "$python" -c 'import transformers' 2>/dev/null || skip "no transformers in $python"
    make_corpus
    "$python" "$interop/with_transformers.py" classes >classes || not_as "no list of classes"
    while read -r family; do
        make_model $family
        run train --model.flavor=hf --model.hf_assets_path=$family --checkpoint.initial_load_in_hf \
            --training.dataset=text \
            --training.dataset_path=corpus.txt --training.seq_len=64 --training.local_batch_size=2 --training.steps=3 \
            --checkpoint.enable --checkpoint.interval=3 --job.dump_folder=run-$family
        expect_ok
        run ckpt consolidate run-$family out-$family --format hf
        expect_ok
        "$python" "$interop/with_transformers.py" compare $family out-$family "In the beginning" >theirs.txt 2>&1 ||
            not_as "$(tail -20 theirs.txt)"
        run generate out-$family --prompt "In the beginning" --greedy --ignore-eos --max-new-tokens 24 --json
        expect_ok
        python3 -c 'import json; print(",".join(map(str, json.load(open("out"))["tokens"])))' >ours.txt
        [ "$(tail -1 theirs.txt)" = "$(cat ours.txt)" ] || not_as \
            "$family: greedy tokens differ: $(tail -1 theirs.txt) and $(cat ours.txt)"
    done <classes
}

# The unit tests hold a table of each class's defaults. This compares it with the installed version.
case_the_defaults_of_transformers_are_those_of_the_table() {
    "$python" "$interop/class_defaults.py" --compare "$TITAN_SOURCE/tests/unit/data/hf_classes.json" >compare.txt 2>&1
    case $? in
    0) ;;
    77) skip "$(tail -1 compare.txt)" ;;
    *) not_as "$(tail -20 compare.txt)" ;;
    esac
}

# Members of config.json that are absent, null or changed: the same loss, or a refusal. One of 20; all take half an
# hour.
case_configurations_are_read_as_by_transformers() {
    need_torch
    version=$("$python" -c 'import transformers; print(transformers.__version__.split(".")[0])' 2>/dev/null) ||
        skip "no transformers in $python"
    [ "$version" -ge 5 ] || skip "transformers $version"
    every=20
    [ "${TITAN_SWEEPS:-}" != whole ] || every=1
    "$python" "$interop/mutate_configs.py" --every $every "$TITAN" mutations >compare.txt 2>&1 ||
        not_as "$(tail -20 compare.txt)"
}

# Two steps of training and greedy tokens of models with unusual settings. One of 20; all take a quarter of an hour.
case_unusual_models_train_as_in_transformers() {
    need_torch
    version=$("$python" -c 'import transformers; print(transformers.__version__.split(".")[0])' 2>/dev/null) ||
        skip "no transformers in $python"
    [ "$version" -ge 5 ] || skip "transformers $version"
    every=20
    [ "${TITAN_SWEEPS:-}" != whole ] || every=1
    "$python" "$interop/train_unusual.py" --every $every "$TITAN" unusual >compare.txt 2>&1 ||
        not_as "$(tail -20 compare.txt)"
}

# titan decodes FP8 and MXFP4 as transformers' own formulas do: test_packed.sh compares it with ./plain.
case_transformers_unpacks_the_same_weights() {
    "$python" -c 'import transformers.integrations.mxfp4' 2>/dev/null || skip "no transformers with MXFP4 in $python"
    while read -r name method; do
        rm -rf packed plain
        "$python" "$TITAN_SOURCE/tests/cli/pack_weights.py" "$TITAN_SOURCE/tests/golden/data/$name" "$method" packed \
            plain
        "$python" "$interop/unpack_with_transformers.py" packed plain >compare.txt 2>&1 ||
            not_as "$name, $method: $(tail -5 compare.txt)"
    done <<'EOF'
qwen3 fp8-small
qwen3 fp8-one
llama3 fp8-small
gpt_oss mxfp4
EOF
}

case_apply_chat_template_gives_the_same_tokens() {
    "$python" -c 'import transformers' 2>/dev/null || skip "no transformers in $python"
    for template in llama3 qwen3 chatml; do
        make_chat_tokenizer $template
        for seed in 1 2 3; do
            "$python" "$interop/chat_with_transformers.py" make chats.jsonl $seed >make.txt 2>&1 ||
                not_as "$(tail -5 make.txt)"
            run data pack --dataset jsonl_sft --dataset_path chats.jsonl --tokenizer tokenizer --out chats.tokens
            expect_ok
            "$python" "$interop/chat_with_transformers.py" compare chats.jsonl tokenizer chats.tokens \
                >compare.txt 2>&1 || not_as "$template: $(tail -5 compare.txt)"
            rm chats.tokens
        done
    done
}

# A user's own tokenizer, a model trained from nothing, then adapters on conversations, merged. The base model has seen
# no turns, so their tokens mean nothing until the adapters are trained. llama.cpp, where it is installed, gives the
# same answer from the run's GGUF file.
case_transformers_and_titan_give_the_same_answers() {
    need_torch
    "$python" -c 'import transformers' 2>/dev/null || skip "no transformers in $python"
    make_corpus
    run data tokenizer --vocab 330 --special '<|im_start|>' --special '<|im_end|>' --special '<|start_header_id|>' \
        --special '<|end_header_id|>' --special '<|eot_id|>' --out own corpus.txt
    expect_ok
    run train $tiny --model.hf_assets_path=own --training.steps=20 --lr_scheduler.warmup_steps=2 --optimizer.lr=1e-2 \
        --metrics.log_freq=20 --job.dump_folder=base --checkpoint.enable --checkpoint.last_save_in_hf
    expect_ok
    for word in ark sea day; do
        echo "{\"messages\": [{\"role\": \"user\", \"content\": \"$word\"}, " \
            "{\"role\": \"assistant\", \"content\": \"the $word of $word\"}]}"
    done >chats.jsonl
    "$python" "$interop/chat_with_transformers.py" make any.jsonl 7 >make.txt 2>&1 || not_as "$(tail -5 make.txt)"
    for template in llama3 qwen3 chatml; do
        run train --checkpoint.initial_load_path=base/checkpoint/step-20/hf --training.chat_template=$template \
            --training.dataset=jsonl_sft --training.dataset_path=chats.jsonl --training.document_mask \
            --training.seq_len=64 --training.local_batch_size=4 --training.steps=100 --lora.rank=8 --optimizer.lr=1e-2 \
            --lr_scheduler.warmup_steps=2 --metrics.log_freq=60 --metrics.peak_flops=1e9 --dataloader.cache_dir=cache \
            --checkpoint.enable --job.dump_folder=$template
        expect_ok
        run ckpt consolidate $template merged-$template --format hf
        expect_ok
        run data pack --dataset jsonl_sft --dataset_path any.jsonl --tokenizer own --chat-template $template --out any
        expect_ok
        "$python" "$interop/chat_with_transformers.py" compare any.jsonl merged-$template any >compare.txt 2>&1 ||
            not_as "$template: $(tail -5 compare.txt)"
        rm any
        "$python" "$interop/with_transformers.py" chat merged-$template ark >theirs.txt 2>&1 ||
            not_as "$template: $(tail -20 theirs.txt)"
        for source in $template merged-$template; do
            run generate $source --chat --prompt ark --greedy --json
            expect_ok
            expect_json "theirs = json.loads(open('theirs.txt').readlines()[-1])
for key in theirs:
    assert found[key] == theirs[key], (key, found, theirs)
assert found['text'].endswith('the ark of ark') and found['finish'] == 'eos', found"
        done
        "$python" "$interop/with_llama_cpp.py" ids >/dev/null 2>&1 || continue
        run ckpt consolidate $template $template.gguf --format gguf --type q8_0
        expect_ok
        "$python" "$interop/with_llama_cpp.py" chat $template.gguf ark >answer.txt 2>&1 ||
            not_as "$template: $(tail -5 answer.txt)"
        grep -q 'the ark of ark$' answer.txt && [ "$(tail -1 answer.txt)" = stop ] ||
            not_as "$template: llama.cpp answers '$(cat answer.txt)'"
    done
}

# The models' own templates in chat.json, and those in the folder TITAN_TEMPLATES.
case_templates_are_evaluated_as_by_transformers() {
    "$python" -c 'import transformers' 2>/dev/null || skip "no transformers in $python"
    python3 - <<'EOT'
import json, os
golden = json.load(open(os.environ["TITAN_SOURCE"] + "/tests/unit/data/chat.json"))
for name, text in golden["templates"].items():
    open(name + ".jinja", "w").write(text)
EOT
    shopt -s nullglob
    "$python" "$interop/templates_with_transformers.py" "$TITAN" "$TITAN_SOURCE/assets/tokenizer.json" 1 ./*.jinja \
        ${TITAN_TEMPLATES:+"$TITAN_TEMPLATES"/*.jinja} >compare.txt 2>&1 || not_as "$(tail -5 compare.txt)"
}

# PEFT loads titan's exports. titan generates from the run itself, whose adapters are not merged.
case_peft_and_titan_agree() {
    need_torch
    "$python" -c 'import peft, transformers' 2>/dev/null || skip "no peft in $python"
    for name in llama3 qwen3; do
        data=$TITAN_SOURCE/tests/golden/data/$name
        mkdir -p base-$name
        cp "$data"/{config.json,generation_config.json,model.safetensors} base-$name/
        run train --model.flavor=hf --model.hf_assets_path=base-$name --checkpoint.initial_load_in_hf \
            --training.dataset=tokens --training.dataset_path="$data/tokens.bin" --training.seq_len=64 \
            --training.local_batch_size=2 --training.steps=5 --optimizer.lr=0.02 --lr_scheduler.warmup_steps=1 \
            --lora.rank=4 --lora.alpha=6 --checkpoint.enable --job.dump_folder=run-$name
        expect_ok
        run ckpt consolidate run-$name merged-$name --format hf
        expect_ok
        run ckpt consolidate run-$name adapter-$name --adapter
        expect_ok
        "$python" "$interop/with_transformers.py" adapter base-$name adapter-$name merged-$name >theirs.txt 2>&1 ||
            not_as "$(tail -20 theirs.txt)"
        run generate run-$name --prompt-tokens 1,2,3 --greedy --ignore-eos --max-new-tokens 24 --json
        expect_ok
        python3 -c 'import json; print(",".join(map(str, json.load(open("out"))["tokens"])))' >ours.txt
        [ "$(tail -1 theirs.txt)" = "$(cat ours.txt)" ] || not_as \
            "$name: greedy tokens differ: $(tail -1 theirs.txt) and $(cat ours.txt)"
    done
}

# Models of all classes in llama.cpp: it gives transformers' logits within the error of the type, titan's greedy tokens,
# and the same tokens for texts and chats. Two processes of Python make and compare all of them.
case_llama_cpp_and_titan_agree() {
    need_torch
    "$python" "$interop/with_llama_cpp.py" ids >ids.txt 2>&1 || skip "$(tail -1 ids.txt)"
    version=$("$python" -c 'import transformers; print(transformers.__version__.split(".")[0])')
    "$python" "$interop/with_llama_cpp.py" make "$TITAN_SOURCE/tests/unit/data/transformers/v$version" \
        >names 2>make.txt || not_as "$(tail -20 make.txt)"
    while read -r name; do
        run ckpt convert $name step-$name
        expect_ok
        run ckpt consolidate step-$name $name-f32.gguf --format gguf --type f32
        if grep -q "titan writes no GGUF files of" err; then
            echo $name >>left
            continue
        fi
        expect_ok
        for type in bf16 q8_0 q4_0; do
            run ckpt consolidate step-$name $name-$type.gguf --format gguf --type $type
            expect_ok
        done
        run ckpt consolidate step-$name hf-$name --format hf
        expect_ok
        run generate $name-f32.gguf --prompt-tokens "$(cat ids.txt)" --greedy --ignore-eos --max-new-tokens 16 --json
        expect_ok
        python3 -c 'import json; print(",".join(map(str, json.load(open("out"))["tokens"])))' >$name.tokens
        echo $name >>compared
    done <names
    "$python" "$interop/with_llama_cpp.py" check <compared >compare.txt 2>&1 || not_as "$(tail -8 compare.txt)"
    echo "# $(wc -l <compared) models are equal in llama.cpp; classes without GGUF: $(paste -sd' ' left 2>/dev/null)"
}

case_lm_evaluation_harness_and_titan_give_the_same_scores() {
    local tasks=$TITAN_SOURCE/tests/cli/tasks golden=$TITAN_SOURCE/tests/golden/data
    "$python" -c 'import lm_eval, torch, transformers' 2>/dev/null || skip "no lm_eval in $python"
    mkdir m samples
    cp "$golden/llama3/config.json" "$golden/llama3/model.safetensors" m
    python3 "$tasks/tokenizer.py" m
    HF_HUB_OFFLINE=1 "$python" "$TITAN_SOURCE/tests/interop/tasks.py" m "$tasks" samples results.json >log 2>&1 ||
        not_as "lm_eval failed: $(tail -3 log)"
    for file in "$tasks"/*.jsonl samples/*.jsonl; do
        run eval m --task "$file" --json
        expect_ok
        expect_json "
name = found['tasks'][0]['task'].split('/')[-1][:-len('.jsonl')]
now, kept = json.load(open('results.json'))[name], json.load(open('$tasks/expected.json'))[name]
for key in ('acc', 'acc_norm', 'perplexity'):
    if key in now and key in found['tasks'][0]:
        value = found['tasks'][0][key]
        assert all(abs(value - wanted[key]) <= 1e-4 * wanted[key] for wanted in (now, kept)), (name, key, value)
"
    done
}

case_pipeline_schedules_are_those_of_pytorch() {
    "$python" -c 'import torch.distributed.pipelining' 2>/dev/null || skip "no torch in $python"
    "$TITAN_BUILD/tests/cli/print_orders" >orders.txt || not_as "no orders"
    "$python" "$interop/compare_orders_with_torch.py" orders.txt >compare.txt 2>&1 || not_as "$(tail -5 compare.txt)"
}

# Two validation sets, one with a blank in its name; the run is continued, so there are two event files.
case_tensorboard_reads_what_titan_logs() {
    "$python" -c 'import tensorboard' 2>/dev/null || skip "no tensorboard in $python"
    make_corpus
    awk 'BEGIN { for (i = 0; i < 300; i++) printf "{\"text\": \"He begat %d sons and %d daughters.\"}\n", i, i * 3 }' \
        >sons.jsonl
    cat >sets.yaml <<END
validation:
  dataset:
  - {name: days, dataset: text, dataset_path: corpus.txt}
  - {name: the sons, dataset: jsonl, dataset_path: sons.jsonl}
END
    for steps in 3 5; do
        run train --config sets.yaml $tiny --training.steps=$steps --lr_scheduler.total_steps=5 --checkpoint.enable \
            --lr_scheduler.warmup_steps=2 --validation.enable --validation.freq=2 --validation.local_batch_size=2 \
            --validation.steps=2 --metrics.enable_tensorboard
        expect_ok
    done
    [ "$(find run/tb -name 'events.out.tfevents.*' | wc -l)" = 2 ] || not_as "expected two files: $(find run/tb)"
    "$python" "$interop/read_with_tensorboard.py" run/tb run >read.txt 2>&1 || not_as "$(tail -5 read.txt)"
    grep -q "5 steps, 5 validations of 2 sets" read.txt || not_as "$(cat read.txt)"
}

# Words of few letters, so that many pairs are equally frequent and tokens have several spellings.
case_tokenizers_learns_the_same_merges() {
    "$python" -c 'import tokenizers, transformers' 2>/dev/null || skip "no tokenizers in $python"
    for letters in ab abc abcdefgh; do
        python3 - $letters >corpus.jsonl <<'EOF'
import json, random, sys
pick = random.Random(sys.argv[1])
def word():
    return "".join(pick.choice(sys.argv[1]) * pick.randint(1, 4) for _ in range(pick.randint(1, 6)))
for _ in range(800):
    print(json.dumps({"text": "".join(word() + pick.choice(["", " ", "\n", " 12"]) for _ in range(9))}))
EOF
        for pattern in gpt2 llama3; do
            run data tokenizer --vocab 900 --pattern $pattern --bos '<s>' --eos '</s>' --out made --force corpus.jsonl
            expect_ok
            "$python" "$interop/train_tokenizer.py" made corpus.jsonl 900 $pattern >compare.txt 2>&1 ||
                not_as "$letters, $pattern: $(tail -5 compare.txt)"
        done
    done
}

# digest_of DATASET PATH: the digest of the packed tokens goes to the file `digest`.
digest_of() {
    run data pack --dataset "$1" --dataset_path "$2" --tokenizer made --chat-template chatml --out packed --json
    expect_ok
    grep -o '"digest": *"[^"]*"' out >digest
}

case_tables_of_pyarrow_and_datasets_hold_the_same_texts() {
    seed=$((RANDOM % 1000))
    "$python" "$interop/write_tables.py" tables --seed $seed >write.txt 2>&1
    case $? in 77) skip "$(cat write.txt)" ;; 0) ;; *) not_as "$(tail -20 write.txt)" ;; esac
    run data tokenizer --vocab 300 --special '<|im_start|>' --special '<|im_end|>' --out made tables/texts.jsonl
    expect_ok
    for kind in texts chats pairs; do
        lines=jsonl
        [ $kind = texts ] || lines=jsonl_sft
        digest_of $lines tables/$kind.jsonl
        mv digest wanted
        for table in tables/$kind-*; do
            digest_of $lines $table
            cmp -s wanted digest || not_as "seed $seed: $table holds other rows than $kind.jsonl"
        done
    done
    run data pack --dataset arrow --dataset_path tables/splits --out packed
    expect_error 3 "'tables/splits' holds the splits 'test' and 'train'"
}

run_cases

#!/bin/bash
# SPDX-License-Identifier: MIT
# Resuming a run with a changed configuration: what is refused, what is reported, and what stays as it was.
. "$(dirname "$0")/lib.sh"

save="--checkpoint.enable --checkpoint.interval=2"

make_four() {
    make_corpus
    run train $tiny $save --training.steps=4
    expect_ok
}

case_the_meaning_of_weights_is_checked() {
    make_four
    for change in "n_heads=2 --model.head_dim=32" "n_heads=2 --model.head_dim=16" rope_theta=10000 norm_eps=1e-6 \
        rope_scaling.factor=1; do
        run train $tiny $save --training.steps=6 --model.$change
        expect_error 3 "gives its weights another meaning: it has model\.|run of another model|does not fit this model"
        refuse_out "^step:"
    done
    run train $tiny $save --training.steps=6 --model.rope_theta=10000
    expect_error 3 "another meaning: it has model.rope_theta 500000; this run has rope_theta 10000" \
        "help: set the old value"
    # other heads, but weights of the same shapes
    run train $tiny $save --training.steps=6 --model.n_heads=8 --model.n_kv_heads=4 --model.head_dim=8
    expect_error 3 "another meaning: it has model.n_heads 4, n_kv_heads 2, head_dim 16; this run has n_heads 8, n_kv_heads 4"
    refuse_out "^step:"
    # the same number, written as in the default
    run train $tiny $save --training.steps=6 --model.rope_theta=5e5 --model.norm_eps=0.00001 --model.head_dim=16
    expect_ok
    expect_out "^step: +5"
}

# Of every optimizer: other ranks, torchtitan's format and back, weights alone, and no state of another optimizer.
case_every_optimizer_continues() {
    make_corpus
    run config check --optimizer.name=none
    for name in $(sed -n 's/.*is not one of //p' err | tr -d ,); do
        of="$tiny $save --lr_scheduler.total_steps=4 --optimizer.name=$name"
        run train $of --training.steps=4 --job.dump_folder=$name
        expect_ok
        run_ranks 2 train $of --training.steps=2 --job.dump_folder=again
        expect_ok
        run train $of --training.steps=4 --job.dump_folder=again
        expect_ok
        expect_err "step-2 of"
        run ckpt diff $name/checkpoint/step-4 again/checkpoint/step-4
        expect_ok
        run ckpt convert again/checkpoint/step-2 theirs --format dcp
        expect_ok
        run train $of --training.steps=4 --job.dump_folder=third --checkpoint.initial_load_path=theirs \
            --checkpoint.initial_load_model_only=false
        expect_ok
        expect_out "^step: +4"
        refuse_out "^step: +2"
        run ckpt consolidate $name weights
        expect_ok
        case $name in
        AdamW | Adam) ;;
        *)
            run train $of --training.steps=6 --job.dump_folder=AdamW
            expect_error 3 "AdamW/checkpoint/step-4' was saved with another optimizer" "exclude_from_loading"
            run train $of --training.steps=6 --job.dump_folder=$name --optimizer.name=AdamW
            expect_error 3 "$name/checkpoint/step-4' was saved with another optimizer"
            ;;
        esac
        rm -rf again theirs third weights
    done
}

# Rows of 72 elements are no whole blocks, so four ranks get parts of another size than without blocks.
case_moments_in_blocks_continue_on_any_layout() {
    make_corpus
    of="$tiny $save --optimizer.name=adamw_8bit --model.dim=72 --model.ffn_dim=512 --training.global_batch_size=8"
    of="$of --lr_scheduler.total_steps=6"
    run train $of --training.steps=6 --job.dump_folder=one
    expect_ok
    run_ranks 4 train $of --training.steps=2
    expect_ok
    run ckpt verify run
    expect_ok
    run ckpt inspect run --moments
    expect_ok
    expect_out "layers.*w2.weight.state1 +U8 " "layers.*w1.weight.absmax2 +F32 " "tok_embeddings.weight.exp_avg +F32 "
    run train $of --training.steps=4
    expect_ok
    expect_err "step-2 of"
    run_ranks 2 train $of --training.steps=6
    expect_ok
    run ckpt diff one/checkpoint/step-6 run/checkpoint/step-6
    expect_ok
    # the second of two ranks that share a layer has columns 256 on of w2, but 36 of the output's weight
    rm -r run
    run_ranks 2 train $of --training.steps=2 --parallelism.tensor_parallel_degree=2
    expect_ok
    run train $of --training.steps=4
    expect_error 3 "attention.wo.weight.absmax1 F32\[.*\], wanted F32" "set parallelism.exact_tensor_parallel_degree to"
    run train $of --training.steps=4 --parallelism.exact_tensor_parallel_degree=2
    expect_ok
}

# Prints the averages of the weights in a step as text.
averages() {
    python3 - "$1" <<'EOF'
import glob, json, struct, sys
found = {}
for path in glob.glob(sys.argv[1] + "/optim/*.safetensors"):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    for name, entry in json.loads(data[8:8 + size]).items():
        if name.endswith(".ema"):
            assert entry["dtype"] == "F32", entry
            begin, end = entry["data_offsets"]
            found[name] = data[8 + size + begin:8 + size + end].hex()
for name in sorted(found):
    print(name, found[name])
EOF
}

# Turned on, resumed, on another number of ranks, turned off, and on again.
case_averages_continue() {
    make_corpus
    run train $tiny $save --training.steps=6 --ema.decay=0.9
    expect_ok
    averages run/checkpoint/step-6 >whole.txt
    [ "$(wc -l <whole.txt)" -gt 10 ] || not_as "no averages in the checkpoint"
    run train $tiny $save --training.steps=4 --lr_scheduler.total_steps=6 --ema.decay=0.9 --job.dump_folder=again
    expect_ok
    run train $tiny $save --training.steps=6 --lr_scheduler.total_steps=6 --ema.decay=0.9 --job.dump_folder=again
    expect_ok
    expect_err "step-4 of"
    averages again/checkpoint/step-6 >again.txt
    cmp -s whole.txt again.txt || not_as "other averages after a resume"
    rm -rf again/checkpoint/step-6
    run_ranks 2 train $tiny $save --training.steps=6 --lr_scheduler.total_steps=6 --ema.decay=0.9 \
        --job.dump_folder=again
    expect_ok
    run ckpt diff run/checkpoint/step-6 again/checkpoint/step-6
    expect_ok
    run ckpt verify again/checkpoint/step-6
    expect_ok
    # off: the step's averages are not used
    run train $tiny $save --training.steps=8
    expect_ok
    expect_err "changed .*ema.decay 0.9 -> null"
    [ -z "$(averages run/checkpoint/step-8)" ] || not_as "averages although they are off"
    # on again: they begin as the weights, so after one step with decay 0 they are the weights
    run train $tiny $save --training.steps=9 --ema.decay=0
    expect_ok
    expect_err "changed .*ema.decay null -> 0"
    python3 - run/checkpoint/step-9 <<'EOF' >problem.txt 2>&1 || not_as "averages: $(cat problem.txt)"
import glob, json, struct, sys
found = {}
for path in glob.glob(sys.argv[1] + "/*/*.safetensors"):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            found[name] = data[8 + size + begin:8 + size + end]
weights = [name for name in found if not name.startswith("state.")]
assert len(weights) > 10
for name in weights:
    assert found["state." + name + ".ema"] == found[name], name
EOF
}

# With decay 0 the averages are the weights; otherwise the export has the bytes of state.NAME.ema.
case_averages_are_exported() {
    make_corpus
    run train $tiny $save --ema.decay=0.5
    expect_ok
    for format in titan hf dcp; do
        run ckpt consolidate run average-$format --format $format --ema
        expect_ok
        run ckpt consolidate run weights-$format --format $format
        expect_ok
        run ckpt diff average-$format weights-$format
        [ "$code" = 1 ] || not_as "expected other weights"
    done
    run ckpt convert run converted --ema
    expect_ok
    run ckpt diff converted average-hf
    expect_ok
    run ckpt convert run torch --ema --format dcp
    expect_ok
    averages run/checkpoint/step-3 >stored.txt
    python3 - <<'EOF' >problem.txt 2>&1 || not_as "export: $(cat problem.txt)"
import json, struct
data = open("average-titan/model.safetensors", "rb").read()
size = struct.unpack("<Q", data[:8])[0]
found = {"state." + name + ".ema": data[8 + size + e["data_offsets"][0]:8 + size + e["data_offsets"][1]].hex()
         for name, e in json.loads(data[8:8 + size]).items() if name != "__metadata__"}
assert found == dict(line.split() for line in open("stored.txt")), sorted(found)
EOF
    run train $tiny $save --ema.decay=0.5 --job.dump_folder=adapted --lora.rank=2 --checkpoint.initial_load_path=run
    expect_ok
    run ckpt consolidate adapted merged --format hf --ema
    expect_ok
    run ckpt consolidate adapted merged-weights --format hf
    expect_ok
    run ckpt diff merged merged-weights
    [ "$code" = 1 ] || not_as "expected other adapters"
    run eval average-hf --seq-len 32 --steps 2
    expect_ok
    run train $tiny $save --job.dump_folder=plain
    expect_ok
    run ckpt consolidate plain nothing --ema
    expect_error 3 "has no averages of the weights" "help: only runs that keep averages save them"
    [ ! -e nothing ] || not_as "a folder without averages"
    run ckpt convert average-hf nothing --ema
    expect_error 3 "has no averages of the weights"
}

# With low-rank adapters only the adapters have averages, which continue on another number of ranks.
case_averages_of_adapters_continue() {
    make_corpus
    run train $tiny $save --training.steps=1 --job.dump_folder=base
    expect_ok
    adapters="$tiny $save --lora.rank=2 --ema.decay=0.9 --checkpoint.initial_load_path=base
        --lr_scheduler.total_steps=6"
    run train $adapters --training.steps=6
    expect_ok
    averages run/checkpoint/step-6 >whole.txt
    [ "$(wc -l <whole.txt)" -gt 4 ] || not_as "no averages in the checkpoint"
    ! grep -v '^state[.].*lora_[ab][.]weight[.]ema ' whole.txt >frozen.txt || not_as "averages of frozen weights"
    run train $adapters --training.steps=3 --job.dump_folder=again
    expect_ok
    run_ranks 2 train $adapters --training.steps=6 --job.dump_folder=again
    expect_ok
    expect_err "step-3 of"
    run ckpt diff run/checkpoint/step-6 again/checkpoint/step-6
    expect_ok
    run train $adapters --training.steps=6 --job.dump_folder=last --checkpoint.interval=6
    expect_ok
    averages last/checkpoint/step-6 | cmp -s - whole.txt || not_as "other averages"
    run eval run --ema --dataset text --dataset-path corpus.txt --seq-len 32 --steps 2 --json
    expect_ok
    with=$(grep -o '"loss": [0-9.]*' out)
    run eval run --dataset text --dataset-path corpus.txt --seq-len 32 --steps 2 --json
    expect_ok
    [ "$with" != "$(grep -o '"loss": [0-9.]*' out)" ] || not_as "averages of adapters give what the adapters give"
}

# eval and generate --ema on a step do what they do on an export of its averages.
case_averages_are_evaluated() {
    make_corpus
    run train $tiny $save --ema.decay=0.5
    expect_ok
    run ckpt consolidate run averages --ema
    expect_ok
    for kind in "run --ema" averages run; do
        run eval $kind --dataset text --dataset-path corpus.txt --seq-len 32 --steps 4 --json
        expect_ok
        grep -o '"loss": [0-9.]*' out >>losses.txt
        run generate $kind --prompt-tokens 1,2,3 --max-new-tokens 4 --temperature 1 --num-samples 8 --json
        expect_ok
        python3 -c 'import json; found = json.load(open("out")); print(found["samples"])' >>samples.txt
    done
    for file in losses.txt samples.txt; do
        [ "$(wc -l <$file)" = 3 ] || not_as "expected three results in $file"
        [ "$(sed -n 1p $file)" = "$(sed -n 2p $file)" ] || not_as "--ema is not the export of the averages: $file"
        [ "$(sed -n 2p $file)" != "$(sed -n 3p $file)" ] || not_as "averages give what the weights give: $file"
    done
    run_ranks 2 eval run --ema --dataset text --dataset-path corpus.txt --seq-len 32 --steps 4 --json
    expect_ok
    [ "$(grep -o '"loss": [0-9.]*' out)" = "$(sed -n 1p losses.txt)" ] || not_as "another loss on two ranks"
    run eval run --ema --dataset text --dataset-path corpus.txt --seq-len 32 --steps 4
    expect_ok
    expect_out "step-3 \\(averages of the weights\\) on text"
    run ckpt consolidate run hf --format hf
    expect_ok
    run train $tiny $save --job.dump_folder=plain
    expect_ok
    for weights in plain averages hf; do
        run eval $weights --ema
        expect_error 3 "$weights.*' has no averages of the weights" "help: only runs that keep averages save them"
        run generate $weights --ema --prompt-tokens 1
        expect_error 3 "$weights.*' has no averages of the weights"
    done
}

validations() {
    grep '"type":"validate"' "$1/metrics.jsonl" | grep -o '"loss":[0-9.]*'
}

# The loss on validation.steps batches has the same digits on any number of ranks, in a pipeline, and after a resume.
case_validation_does_not_depend_on_the_number_of_ranks() {
    make_corpus
    validate="--validation.enable --validation.dataset=text --validation.dataset_path=corpus.txt --validation.freq=1
        --validation.local_batch_size=2 --validation.steps=3 --training.steps=4 --training.local_batch_size=1
        --lr_scheduler.total_steps=4"
    run train $tiny $validate
    expect_ok
    expect_err "at most 3 batches, at step 1"
    validations run >alone.txt
    [ "$(wc -l <alone.txt)" = 4 ] || not_as "expected four validations"
    for ranks in 2 4; do
        run_ranks $ranks train $tiny $validate --job.dump_folder=on-$ranks
        expect_ok
        validations on-$ranks >losses.txt
        expect_same alone.txt losses.txt
    done
    run_ranks 2 train $tiny $validate --checkpoint.enable --training.steps=2 --job.dump_folder=parts
    expect_ok
    run train $tiny $validate --checkpoint.enable --job.dump_folder=parts
    expect_ok
    validations parts >losses.txt
    expect_same alone.txt losses.txt
    pipeline="--training.local_batch_size=2 --parallelism.pipeline_parallel_microbatch_size=1"
    run_ranks 2 train $tiny $validate $pipeline --parallelism.pipeline_parallel_degree=2 --job.dump_folder=pipeline
    expect_ok
    validations pipeline >losses.txt
    expect_same alone.txt losses.txt
}

case_validation_can_use_the_averages() {
    make_corpus
    validate="--validation.enable --validation.dataset=text --validation.dataset_path=corpus.txt --validation.freq=3"
    run train $tiny $validate --validation.local_batch_size=2 --json --ema.decay=0.5
    expect_ok
    grep '"type":"validate"' out | grep -o '"loss":[0-9.]*' >weights.txt
    run train $tiny $validate --validation.local_batch_size=2 --json --ema.decay=0.5 --ema.validate --overwrite
    expect_ok
    expect_err "at the end, with the averages of the weights"
    grep '"type":"validate"' out | grep -o '"loss":[0-9.]*' >averages.txt
    [ "$(wc -l <averages.txt)" = 2 ] || not_as "expected two validations"
    ! cmp -s weights.txt averages.txt || not_as "the same losses of weights and averages"
    losses=$(grep '"type":"step"' out | grep -o '"loss":[0-9.]*')
    # decay 0: the averages are the weights
    run train $tiny $validate --validation.local_batch_size=2 --json --ema.decay=0 --ema.validate --overwrite
    expect_ok
    grep '"type":"validate"' out | grep -o '"loss":[0-9.]*' | cmp -s - weights.txt || not_as "other losses with decay 0"
    [ "$losses" = "$(grep '"type":"step"' out | grep -o '"loss":[0-9.]*')" ] || not_as "validation changed training"
    run train $tiny $validate --ema.validate
    expect_error 2 "there are no averages to validate" "help: set ema.decay"
    run train $tiny $validate --ema.validate --ema.decay=0.9 --training.dtype=bfloat16 \
        --training.mixed_precision_param=bfloat16
    expect_error 2 "only weights in float32 can be exchanged"
    run train $tiny --ema.decay=1
    expect_error 2 "ema.decay"
    run train $tiny --ema_decay=0.9
    expect_error 2 "did you mean 'ema.decay'"
}

case_another_model_is_refused_with_one_message() {
    make_four
    run train $tiny $save --model.dim=32 --model.n_layers=1
    expect_error 3 "'run' holds a run of another model: that run: dim 64, n_layers 2.*; this one: dim 32, n_layers 1" \
        "help: choose another --job.dump_folder, or replace that run with --overwrite"
    refuse_err "tensors missing"
}

# Numbers are printed as a person would write them, although they are kept in float32.
case_numbers_of_another_model_are_short() {
    make_four
    run train $tiny $save --model.name=qwen3
    expect_error 3 'norm_eps 1e-05, .*; this one: name "qwen3", .*norm_eps 1e-06, rope_theta'
}

case_another_order_of_samples_is_refused() {
    make_four
    run train $tiny $save --training.steps=6 --dataloader.seed=7
    expect_error 3 "dataloader.seed 42, but this run has 7" "exclude_from_loading=dataloader"
    run train $tiny $save --training.steps=6 --no-dataloader.shuffle
    expect_error 3 "dataloader.shuffle true, but this run has false" "exclude_from_loading=dataloader"
    run train $tiny $save --training.steps=6 --dataloader.seed=7 --checkpoint.exclude_from_loading=dataloader
    expect_ok
    expect_out "^step: +5"
}

case_changed_keys_are_listed() {
    make_four
    run train $tiny $save --training.steps=4 --job.description=other
    refuse_err "changed"
    run train $tiny $save --training.steps=6 --optimizer.lr=1e-3 --metrics.log_freq=2
    expect_ok
    expect_err "changed  since step-4: training.steps 4 -> 6, optimizer.lr 0.0008 -> 0.001, metrics.log_freq 1 -> 2$"
    expect_err "the losses differ from those of the unchanged run: training.steps, optimizer.lr$"
    run train $tiny $save --training.steps=7 --training.global_batch_size=-1 --optimizer.lr=1e-3
    expect_ok
    expect_err "sequences a step 4 -> 2"
    run train $tiny $save --training.steps=8 --lr_scheduler.total_steps=9
    run train $tiny $save --training.steps=9 --lr_scheduler.total_steps=9 --metrics.log_freq=2
    expect_err "changed  since step-8: training.steps 8 -> 9, metrics.log_freq 1 -> 2$"
    refuse_err "differ from those of the unchanged run"
    run train $tiny $save --training.steps=10 --lr_scheduler.total_steps=10 --training.global_batch_size=8
    expect_ok
    expect_err "training.global_batch_size 4 -> 8, training.steps 9 -> 10"
    refuse_err "sequences a step 4 -> 8"
}

case_a_finished_run_stays_as_it_was() {
    make_four
    cp run/run.yaml before
    run train $tiny $save --training.steps=4 --debug.seed=7
    expect_ok
    expect_err "the run is complete: step 4 of 4"
    refuse_err "training completed"
    expect_same before run/run.yaml
    run train $tiny $save --training.steps=3
    expect_ok
    expect_err "the run is complete: it is at step 4, and training.steps is 3;"
    refuse_err "from here on, the losses differ"
    expect_same before run/run.yaml
}

case_a_finished_run_that_saved_only_weights_is_complete() {
    make_corpus
    run train $tiny $save --checkpoint.last_save_model_only
    expect_ok
    find run/checkpoint | sort >before
    run train $tiny $save --checkpoint.last_save_model_only
    expect_ok
    expect_err "the run is complete: step 3 of 3"
    refuse_out "^step:"
    find run/checkpoint | sort >after
    expect_same before after
    run train $tiny $save --training.steps=4
    expect_error 3 "has no optimizer state"
}

case_the_revision_is_that_of_the_build() {
    make_corpus
    run version
    expect_ok
    commit=$(sed -n '1s/.*(git \([0-9a-f]*\(-dirty\)\?\))$/\1/p' out)
    mkdir .git
    echo 0123456789012345678901234567890123456789 >.git/HEAD
    run train $tiny
    expect_ok
    ! grep -q 0123456789012345678901234567890123456789 run/run.yaml || not_as "the revision of the working folder"
    [ -z "$commit" ] || grep -q "^# titan .*, git $commit$" run/run.yaml || not_as "run.yaml: $(head -1 run/run.yaml)"
}

# --- lr_scheduler.finish_by ---

timed="$tiny --training.steps=1000 --lr_scheduler.warmup_steps=2 --lr_scheduler.decay_ratio=0.5 --optimizer.lr=1e-2
    --checkpoint.enable --checkpoint.interval=10"

# The newest list of decisions of a run, and its last step.
ends_of() {
    grep -o 'lr_scheduler.ends=[0-9:,]*' "$1/console.log" | tail -1
}

# same_weights NAME: the decisions of run NAME, and no clock, give its weights again.
same_weights() {
    ends=$(ends_of "$1")
    last=${ends##*:}
    rm -rf again
    run train $timed --"$ends" --job.dump_folder=again
    expect_ok
    expect_err "^  finishes as 0:1000,[0-9:,]* says"
    expect_err "titan: training completed: step $last,"
    run ckpt diff "$1/checkpoint/step-$last" "again/checkpoint/step-$last"
    expect_ok
}

# 12 steps take a second each, and later ones two: 24 steps take 36 seconds.
case_a_run_of_a_given_time_is_repeated_by_its_log() {
    make_corpus
    export TITAN_STEP_SEC=0:1,12:2
    run train $timed --lr_scheduler.finish_by=36s --job.dump_folder=timed
    expect_ok
    expect_err "^  finishes within 36 s of training .*, or with step 1000; the last 50% of the steps decay$"
    expect_err "^titan: .*step 5: the last step is 36 now, instead of 1000: .*ends=0:1000,5:36 repeats this run"
    refuse_err "the data has ended"
    last=$(ends_of timed)
    last=${last##*:}
    [ "$last" -ge 23 ] && [ "$last" -le 24 ] || not_as "expected 23 or 24 steps, not $last"
    grep -q '"type":"last_step","step":5,"last_step":36,"before":1000,' timed/metrics.jsonl ||
        not_as "expected the decision in metrics.jsonl"
    run status timed --json
    expect_json "assert found['total_steps'] == found['step'] == $last, found"
    run train $timed --lr_scheduler.finish_by=36s --job.dump_folder=timed
    expect_ok
    expect_err "the run is complete: its decay ended with step $last \(lr_scheduler.finish_by\)"
    unset TITAN_STEP_SEC
    same_weights timed
    # a part of it on other ranks, with decisions of its own
    cp -r timed resumed
    ls resumed/checkpoint | grep -v '^step-10$' | sed 's,^,resumed/checkpoint/,' | xargs rm -r
    export TITAN_STEP_SEC=0:1.5
    run_ranks 2 train $timed --lr_scheduler.finish_by=36s --job.dump_folder=resumed
    expect_ok
    expect_err "^  finishes within 36 s of training .*, of which 10 s are used"
    ends_of resumed | grep -q "=0:1000,5:36,1[0-9]:" || not_as "expected the decisions of both processes"
    unset TITAN_STEP_SEC
    same_weights resumed
}

case_what_cannot_finish_by_a_time_is_refused() {
    make_corpus
    run train $tiny --lr_scheduler.finish_by=1h --lr_scheduler.decay_ratio=null
    expect_error 2 "lr_scheduler.finish_by: the last step can move only while .*constant" "help: set lr_scheduler.decay_ratio"
    run train $timed --lr_scheduler.finish_by=1h --lr_scheduler.total_steps=9
    expect_error 2 "lr_scheduler.total_steps fixes the end"
    run train $timed --lr_scheduler.finish_by=1h --lr_scheduler.ends=0:9
    expect_error 2 "ends repeats the decisions of an earlier run"
    run train $timed --lr_scheduler.finish_by=soon
    expect_error 2 "expected a time such as 8h, 2h30m or 720s, found 'soon'"
    run train $timed --lr_scheduler.ends=5:9
    expect_error 2 "lr_scheduler.ends: expected STEP:LAST,STEP:LAST" "help: "
    run config show $timed --lr_scheduler.finish_by=1d2h30m
    expect_out "finish_by: 1d2h30m"
}

run_cases

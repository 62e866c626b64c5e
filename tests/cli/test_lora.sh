#!/bin/bash
# SPDX-License-Identifier: MIT
# Fine-tuning of low-rank adapters: from a Hugging Face folder to a run, to merged weights, and to PEFT's format.
. "$(dirname "$0")/lib.sh"

golden=$TITAN_SOURCE/tests/golden/data

# tune RANKS FOLDER OPTION...: trains adapters on the golden run llama3 for 4 steps; the weights are in ./hf.
tune() {
    if [ ! -e hf ]; then
        mkdir hf
        cp "$golden/llama3"/{config.json,generation_config.json,model.safetensors} hf/
    fi
    run_ranks "$1" train --model.flavor=hf --model.hf_assets_path=hf --checkpoint.initial_load_in_hf \
        --training.dataset=tokens --training.dataset_path="$golden/llama3/tokens.bin" --dataloader.shuffle=false \
        --training.seq_len=24 --training.local_batch_size=2 --training.global_batch_size=8 --training.steps=4 \
        --optimizer.lr=0.01 --lora.rank=3 --lora.alpha=6 --checkpoint.enable --checkpoint.interval=2 \
        --metrics.peak_flops=1e9 --metrics.log_freq=1 --job.dump_folder="$2" "${@:3}"
}

# packed RANKS FOLDER OPTION...: as `tune`, from the GGUF file of the golden weights in q8_0.
packed() {
    if [ ! -e base.gguf ]; then
        run ckpt convert "$golden/llama3" base
        run ckpt consolidate base base.gguf --format gguf --type q8_0
        expect_ok
    fi
    tune "$1" "$2" --model.hf_assets_path=base.gguf --lora.base_dtype=q8_0 "${@:3}"
}

# The weights are q8_0 in the file already, so packing them changes nothing: a packed run has the bits of one that keeps
# them in float32, on any ranks, and its checkpoints hold only the adapters.
case_packed_weights_have_the_bits_of_their_elements() {
    packed 1 plain --lora.base_dtype=default
    expect_ok
    packed 1 packed
    expect_ok
    expect_err "lora +rank 3, alpha 6 on [0-9]+ layers, frozen weights in q8_0; "
    packed 2 shared --training.steps=2 --lr_scheduler.total_steps=4
    expect_ok
    packed 2 shared --parallelism.fsdp_engine=planned
    expect_ok
    run ckpt diff packed/checkpoint/step-4 shared/checkpoint/step-4
    expect_ok
    expect_out "^EQUAL"
    run ckpt consolidate packed packed-adapter --adapter
    expect_ok
    run ckpt consolidate plain plain-adapter --adapter
    expect_ok
    expect_same packed-adapter/adapter_model.safetensors plain-adapter/adapter_model.safetensors
    for run in packed plain; do
        run ckpt consolidate $run $run-merged --format hf
        expect_ok
        run ckpt consolidate $run $run.gguf --format gguf --type q8_0
        expect_ok
    done
    expect_same packed-merged/model.safetensors plain-merged/model.safetensors
    run ckpt diff packed.gguf plain.gguf
    expect_ok
    run ckpt consolidate packed half --format hf --dtype bfloat16
    expect_ok
    run ckpt inspect packed/checkpoint/step-4
    refuse_out "feed_forward.w1.weight"
}

# Losses and gradients are those of PEFT over the unpacked weights (tests/golden/make_lora_reference.py --packed), which
# reads the same adapters.
case_packed_weights_train_as_in_peft() {
    data=$golden/qwen3
    mkdir adapter
    cp "$data/lora/before.safetensors" adapter/adapter_model.safetensors
    python3 - "$data/lora/expect.json" <<'EOF' || not_as "the adapters"
import json, sys
lora = json.load(open(sys.argv[1]))["lora"]
json.dump({"peft_type": "LORA", "r": lora["rank"], "lora_alpha": lora["alpha"],
           "target_modules": lora["target_modules"]}, open("adapter/adapter_config.json", "w"))
EOF
    for type in bfloat16 int8 nf4 q4_0 q8_0; do
        run train --model.hf_assets_path="$data" --checkpoint.initial_load_path=adapter --lora.base_dtype=$type \
            --training.dataset=tokens --training.dataset_path="$data/tokens.bin" --dataloader.shuffle=false \
            --training.seq_len=64 --training.local_batch_size=2 --training.global_batch_size=4 --training.steps=12 \
            --optimizer.lr=0.001 --lr_scheduler.warmup_steps=3 --lr_scheduler.decay_type=cosine \
            --lr_scheduler.min_lr_factor=0.1 --training.max_norm=1 --metrics.log_freq=1 --job.dump_folder=$type
        expect_ok
        python3 - $type "$data/lora/packed.json" <<'EOF' >problem.txt 2>&1 || not_as "$(cat problem.txt)"
import json, sys
want = json.load(open(sys.argv[2]))[sys.argv[1]]
steps = [s for s in map(json.loads, open(sys.argv[1] + "/metrics.jsonl")) if "grad_norm" in s]
assert len(steps) == 12, steps
# bitsandbytes adds the factors of nf4 in another order, so that their mean, and a few of their numbers, may differ
more = 10 if sys.argv[1] == "nf4" else 1
for key, most in ("loss", 2e-6 * more), ("grad_norm", 2e-5 * more):
    for i, (step, number) in enumerate(zip(steps, want[key])):
        assert abs(step[key] / number - 1) < most, f"{sys.argv[1]}: {key} of step {i + 1}: {step[key]}, wanted {number}"
EOF
    done
}

case_a_base_that_changed_is_refused() {
    packed 1 run --training.steps=2
    expect_ok
    mv base.gguf same.gguf
    run ckpt consolidate base base.gguf --format gguf --type q4_0
    expect_ok
    packed 1 run --training.steps=3
    expect_error 3 "the adapters were trained on other weights from base.gguf: '.*' has digest .*, this run's has "
    packed 1 run --model.hf_assets_path=same.gguf --training.steps=3 --lora.base_dtype=q4_0
    expect_error 3 'lora.base_dtype "q8_0"; this run has lora.base_dtype "q4_0"'
    run ckpt consolidate run merged --format hf
    expect_error 3 "trained on other weights from base.gguf: '.*' has digest" "help: --base PATH says where they"
    refuse_file merged
    # the same weights at another place
    mv base.gguf other.gguf
    run ckpt consolidate run merged --format hf
    expect_error 3 "weights from which it began, 'base.gguf', do not exist" "help: --base PATH says where they are"
    run ckpt consolidate run merged --format hf --base same.gguf
    expect_ok
    run ckpt consolidate run apart --adapter --base same.gguf
    expect_error 2 "this format has no weights of --base"
    packed 1 run --model.hf_assets_path=same.gguf --training.steps=3
    expect_ok
    # weights of other shapes, and a damaged file
    head -c 20000 same.gguf >short.gguf
    packed 1 run --model.hf_assets_path=short.gguf
    expect_error 2 "'short.gguf' is truncated: it has 20000 bytes, and tensor '.*' ends at byte"
    run train --model.name=llama3 --model.flavor=debugmodel --checkpoint.initial_load_path=same.gguf \
        --checkpoint.initial_load_in_hf --lora.rank=2 --lora.base_dtype=q8_0
    expect_error 3 "tensor '.*' is .*, wanted .* for the model's"
}

# Ranks that share rows of packed weights by columns, and other layouts, have the bits of one rank.
# Text and loss of a run whose steps hold only adapters: of its frozen weights as it had them, also where they are now.
case_adapters_of_packed_weights_generate_and_are_evaluated() {
    packed 1 run
    expect_ok
    ask="--prompt-tokens 5,17,3,29,11,2,40 --greedy --max-new-tokens 12 --ignore-eos --json"
    run generate run $ask
    expect_ok
    expect_json "assert found['weights']['q8_0'] >= 7, found['weights']"
    python3 -c 'import json; print(json.load(open("out"))["tokens"])' >first.txt
    run ckpt consolidate run merged --format hf
    expect_ok
    text="--dataset tokens --dataset_path $golden/llama3/tokens.bin --seq_len 24 --json"
    run eval run $text
    expect_ok
    cp out apart.json
    run eval merged $text
    expect_ok
    expect_json "
apart = json.load(open('apart.json'))
assert apart['weights']['q8_0'] >= 7 and abs(apart['loss'] - found['loss']) < 1e-5, (apart, found)"
    run generate run $ask --weights q4_0
    expect_error 2 "--weights q4_0 is not for .* adapters of weights that are packed already"
    run generate merged $ask --base base.gguf
    expect_error 2 "contains its weights" "help: leave out --base"
    mv base.gguf moved.gguf
    run generate run $ask
    expect_error 3 "the weights from which it began, 'base.gguf', do not exist" "help: --base PATH says where they are"
    run generate run $ask --base moved.gguf
    expect_ok
    python3 -c 'import json; print(json.load(open("out"))["tokens"])' >again.txt
    expect_same first.txt again.txt
    run ckpt consolidate base other.gguf --format gguf --type q4_0
    expect_ok
    run generate run $ask --base other.gguf
    expect_error 3 "trained on other weights from base.gguf: '.*' has digest" "help: --base PATH says where they"
}

case_packed_weights_have_the_same_bits_on_any_layout() {
    make_corpus
    p=--parallelism
    again=--activation_checkpoint.mode
    common="--model.name=llama3 --model.flavor=debugmodel --model.n_layers=2 --model.dim=256 --model.n_heads=8
        --model.ffn_dim=256 --training.seq_len=16 --training.global_batch_size=4 --training.local_batch_size=1
        --training.steps=2 --training.dataset=text --training.dataset_path=corpus.txt --lora.rank=4 --optimizer.lr=0.01
        --lora.dropout=0.2 --lora.dora --optimizer.name=AdamW8bit --lr_scheduler.total_steps=2 --checkpoint.enable
        $p.threads_per_rank=1"
    while read -r type ranks layout; do
        run_ranks "$ranks" train $common --lora.base_dtype="$type" --job.dump_folder="$type-$ranks" $layout
        expect_ok
        if [ "$type $ranks" = "nf4 1" ]; then
            # a run that resumes has the same zeros in its second step
            run train $common --lora.base_dtype="$type" --job.dump_folder="$type-again" $layout --training.steps=1
            run train $common --lora.base_dtype="$type" --job.dump_folder="$type-again" $layout
            expect_ok
            run ckpt diff "$type-1/checkpoint/step-2" "$type-again/checkpoint/step-2"
            expect_out "^EQUAL"
        fi
        [ "$ranks" = 1 ] && continue
        run ckpt diff "$type-1/checkpoint/step-2" "$type-$ranks/checkpoint/step-2"
        expect_ok
        expect_out "^EQUAL"
        for of in 1 "$ranks"; do
            python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["base"])' \
                "$type-$of/checkpoint/step-2/manifest.json" >base-$of || not_as "no base"
        done
        expect_same base-1 "base-$ranks"
    done <<EOF
nf4 1 $p.exact_tensor_parallel_degree=4 $p.exact_context_parallel_degree=2
nf4 4 $p.tensor_parallel_degree=4 $p.exact_context_parallel_degree=2 $again=full
nf4 2 $p.tensor_parallel_degree=2 $p.exact_tensor_parallel_degree=4 $p.exact_context_parallel_degree=2 $again=selective
nf4 4 $p.context_parallel_degree=2 $p.exact_tensor_parallel_degree=4 $p.data_parallel_shard_degree=2 $again=full
int8 1 $p.exact_tensor_parallel_degree=2
int8 4 $p.tensor_parallel_degree=2 $p.data_parallel_shard_degree=2
int8 2 $p.pipeline_parallel_degree=2 $p.exact_tensor_parallel_degree=2 --training.local_batch_size=2
EOF
    tune 2 x --lora.base_dtype=q8_0 $p.tensor_parallel_degree=2
    expect_error 2 "2 ranks of tensor parallelism share the 160 columns of layers.0.feed_forward.w2.weight" \
        "not a multiple of the block size 32 that q8_0 needs"
}

# PEFT's folder is read back: a run that begins from it has the adapters that were exported.
case_adapters_of_peft_are_read_back() {
    tune 1 run --lora.rslora
    expect_ok
    expect_err "lora +rank 3, alpha 6 / sqrt\(rank\) on"
    run ckpt consolidate run adapter --adapter
    python3 -c 'import json; assert json.load(open("adapter/adapter_config.json"))["use_rslora"] is True' ||
        not_as "use_rslora"
    run ckpt consolidate run merged --format hf
    expect_ok
    from="--checkpoint.initial_load_path=adapter --training.dataset=tokens
        --training.dataset_path=$golden/llama3/tokens.bin --training.seq_len=24 --training.local_batch_size=2
        --training.steps=1 --checkpoint.enable"
    run train $from --optimizer.lr=0 --job.dump_folder=next
    expect_ok
    expect_err "lora +rank 3, alpha 6 / sqrt\(rank\) on" "from hf and adapter"
    run ckpt consolidate next again --adapter
    expect_ok
    expect_same adapter/adapter_model.safetensors again/adapter_model.safetensors
    expect_same adapter/adapter_config.json again/adapter_config.json
    run_ranks 2 train $from --optimizer.lr=0 --lora.base_dtype=int8 --job.dump_folder=packed
    expect_ok
    run ckpt consolidate packed again --adapter --force
    expect_same adapter/adapter_model.safetensors again/adapter_model.safetensors
    while IFS='|' read -r options message; do
        run train $from $options --job.dump_folder=none
        expect_error "${message%% *}" "${message#* }"
    done <<'EOF'
--lora.rank=2|2 adapters in 'adapter/adapter_config.json' have rank 3; this run has lora.rank 2
--lora.alpha=8|2 has lora_alpha 6.0; this run has lora.alpha 8
--lora.rslora=false|2 has use_rslora true; this run has lora.rslora false
--lora.target_modules=[q_proj]|3 tensor '.*lora_.*' of 'adapter' is of an adapter that this run does not have
EOF
    while IFS='|' read -r change message; do
        python3 - "$change" <<'EOF2' || not_as "the change"
import json, sys
config = json.load(open("again/adapter_config.json"))
exec(sys.argv[1])
json.dump(config, open("adapter/adapter_config.json", "w"))
EOF2
        run train $from --job.dump_folder=none
        expect_error "${message%% *}" "${message#* }"
    done <<'EOF'
config["use_dora"] = True|3 lack tensor '.*lora_magnitude_vector'
config["rank_pattern"] = {"q_proj": 4}|2 has rank_pattern: ranks by layer
config["peft_type"] = "IA3"|2 peft_type is 'IA3'; titan reads LORA
config["bias"] = "all"|2 bias is 'all'
config["target_modules"] = "q_.*"|2 'q_.\*' selects no layer of .* that can have an adapter
config["target_modules"] = ["q_proj", "lm_head"]|2 'lm_head' selects no layer
config["target_modules"] = []|2 target_modules names no layer
config["layers_to_transform"] = ["one"]|2 layers_to_transform is not a list of numbers of layers
config.update(layers_to_transform=1, layers_pattern=3)|2 layers_pattern is not a list of names
config["base_model_name_or_path"] = "gone"|2 belong to 'gone', which is not a folder here
config["r"] = 4|3 tensor '.*lora_A.weight' is .*, wanted
EOF
}

# Layers by pattern: PEFT's file names the same layers, and is read back. PEFT's other ways to name them, too.
case_adapters_of_some_layers_are_read_back() {
    tune 1 run --lora.target_modules="[layers.[02].attention.w[qv], self_attn.o_proj, model.layers.1.mlp.down_proj]" \
        --lora.dropout=0.25
    expect_ok
    expect_err "lora +rank 3, alpha 6, dropout 0.25 on 8 layers"
    run ckpt consolidate run adapter --adapter
    expect_ok
    python3 - <<'EOF' >problem.txt 2>&1 || not_as "$(cat problem.txt)"
import json
config = json.load(open("adapter/adapter_config.json"))
layers = "model.layers."
assert config["lora_dropout"] == 0.25, config
assert config["target_modules"] == ["o_proj", layers + "0.self_attn.q_proj", layers + "0.self_attn.v_proj",
    layers + "1.mlp.down_proj", layers + "2.self_attn.q_proj", layers + "2.self_attn.v_proj"], config["target_modules"]
EOF
    from="--checkpoint.initial_load_path=adapter --training.dataset=tokens
        --training.dataset_path=$golden/llama3/tokens.bin --training.seq_len=24 --training.local_batch_size=2
        --training.steps=1 --checkpoint.enable --optimizer.lr=0"
    run train $from --job.dump_folder=next
    expect_ok
    expect_err "lora +rank 3, alpha 6, dropout 0.25 on 8 layers"
    run ckpt consolidate next again --adapter
    expect_ok
    expect_same adapter/adapter_model.safetensors again/adapter_model.safetensors
    expect_same adapter/adapter_config.json again/adapter_config.json
    # the same layers in PEFT's other ways
    while IFS='|' read -r layers targets change; do
        tune 1 "run-$layers" --lora.target_modules="$targets" --training.steps=1 --checkpoint.interval=1
        expect_ok
        run ckpt consolidate "run-$layers" other --adapter --force
        expect_ok
        python3 - "$change" <<'EOF2' || not_as "the change"
import json, sys
config = json.load(open("other/adapter_config.json"))
put, by_layer, names = config.update, "layers_to_transform", ["up_proj", "0.self_attn.q_proj"]
exec(sys.argv[1])
json.dump(config, open("other/adapter_config.json", "w"))
EOF2
        run train ${from/adapter/other} --job.dump_folder=none --dry-run
        expect_ok
        expect_out "alpha 6 on $layers layers"
    done <<'EOF'
21|[all-linear]|config["target_modules"] = "all-linear"
4|[layers.[02].*.w[qv]]|config["target_modules"] = ".*\\.(0|2)\\..*(q|v)_proj"
2|[layers.1.feed_forward.w3, 1.attention.wv]|put({"target_modules": ["mlp.up_proj", "v_proj"], by_layer: 1})
3|[.*[02].mlp.up_proj, 0.attention.wq]|put({by_layer: [2, 0], "layers_pattern": "layers", "target_modules": names})
EOF
}

# as_in_peft KIND DROPOUT DORA ADAPTERS: losses and gradients of adapters with these options are those of PEFT, whose
# dropout has the same zeros.
as_in_peft() {
    data=$golden/qwen3
    mkdir -p adapter
    cp "$data/lora/$4.safetensors" adapter/adapter_model.safetensors
    python3 - "$data/lora/$1.json" "$2" "$3" <<'EOF' || not_as "the adapters"
import json, sys
lora = json.load(open(sys.argv[1]))["lora"]
json.dump({"peft_type": "LORA", "r": lora["rank"], "lora_alpha": lora["alpha"], "lora_dropout": float(sys.argv[2]),
           "use_dora": sys.argv[3] == "true", "target_modules": lora["target_modules"]},
          open("adapter/adapter_config.json", "w"))
EOF
    run train --model.hf_assets_path="$data" --checkpoint.initial_load_path=adapter --debug.seed=7 \
        --training.dataset=tokens --training.dataset_path="$data/tokens.bin" --dataloader.shuffle=false \
        --training.seq_len=64 --training.local_batch_size=2 --training.global_batch_size=4 --training.steps=12 \
        --optimizer.lr=0.001 --lr_scheduler.warmup_steps=3 --lr_scheduler.decay_type=cosine --checkpoint.enable \
        --lr_scheduler.min_lr_factor=0.1 --training.max_norm=1 --metrics.log_freq=1 --job.dump_folder="run-$1-$2"
    expect_ok
    python3 - "$data/lora/$1.json" "$1" "$2" <<'EOF' >problem.txt 2>&1 || not_as "$(cat problem.txt)"
import json, sys
want = json.load(open(sys.argv[1]))["dropout " + sys.argv[3]]
steps = [s for s in map(json.loads, open("run-" + "-".join(sys.argv[2:]) + "/metrics.jsonl")) if "grad_norm" in s]
assert len(steps) == 12, steps
for key, most in ("loss", 2e-6), ("grad_norm", 2e-5):
    for i, (step, number) in enumerate(zip(steps, want[key])):
        assert abs(step[key] / number - 1) < most, f"{sys.argv[2:]}: {key} of step {i + 1}: {step[key]}, not {number}"
EOF
}

case_dropout_trains_as_in_peft() {
    as_in_peft dropout 0.3 false before
}

# The merged weights, too, are those of the run, and PEFT's names come back.
case_magnitudes_train_as_in_peft() {
    as_in_peft dora 0.3 true dora
    as_in_peft dora 0.0 true dora
    run ckpt consolidate run-dora-0.0 merged --format hf
    expect_ok
    text="--dataset tokens --dataset_path $data/tokens.bin --seq_len 64 --steps 4 --json"
    run eval run-dora-0.0 $text
    expect_ok
    cp out apart.json
    run eval merged $text
    expect_ok
    expect_json "
apart = json.load(open('apart.json'))
assert abs(apart['loss'] - found['loss']) < 2e-6, (apart, found)"
    run ckpt consolidate run-dora-0.0 again --adapter
    expect_ok
    python3 - adapter again <<'EOF' >problem.txt 2>&1 || not_as "$(cat problem.txt)"
import json, struct, sys
def shapes(folder):
    data = open(folder + "/adapter_model.safetensors", "rb").read()
    head = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    return {name: entry["shape"] for name, entry in head.items() if name != "__metadata__"}
assert shapes(sys.argv[1]) == shapes(sys.argv[2]), (shapes(sys.argv[1]), shapes(sys.argv[2]))
assert json.load(open("again/adapter_config.json"))["use_dora"] is True
EOF
}

# New magnitudes are the norms of the rows, so the first loss is that of the unchanged model; on any layout, also of
# packed weights.
case_magnitudes_begin_as_norms() {
    tune 1 plain --training.steps=1 --checkpoint.interval=1
    tune 1 dora --lora.dora --training.steps=1 --checkpoint.interval=1
    expect_ok
    expect_err "lora +rank 3, alpha 6, DoRA on [0-9]+ layers"
    python3 - <<'EOF' >problem.txt 2>&1 || not_as "$(cat problem.txt)"
import json
plain, dora = (next(s["loss"] for s in map(json.loads, open(f + "/metrics.jsonl")) if "grad_norm" in s)
               for f in ("plain", "dora"))
assert abs(plain - dora) < 1e-5, (plain, dora)
EOF
    tune 1 next --checkpoint.initial_load_in_hf=false --checkpoint.initial_load_path=plain --lora.dora
    expect_error 3 "lora.dora|lora_m"
    packed 1 one --lora.dora
    expect_ok
    packed 2 two --lora.dora --parallelism.tensor_parallel_degree=1
    expect_ok
    run ckpt diff one/checkpoint/step-4 two/checkpoint/step-4
    expect_ok
    expect_out "^EQUAL"
}

case_packed_weights_have_limits() {
    tune 1 x --lora.rank=0 --lora.dora
    expect_error 2 "magnitudes .DoRA. are of weights with adapters, and with lora.rank 0 there are none"
    tune 1 x --lora.rank=0 --lora.dropout=0.1
    expect_error 2 "dropout is for adapters, and with lora.rank 0 there are none"

    tune 1 x --lora.base_dtype=nf4
    expect_error 2 "rows of layers.0.feed_forward.w2.weight have 160 elements, not a multiple of the block size 64"
    tune 1 x --lora.base_dtype=int8 --lora.rank=0
    expect_error 2 "only frozen weights can be packed"
    tune 1 x --lora.base_dtype=int8 --lora.rank=0 --checkpoint.initial_load_path=hf
    expect_error 2 "only frozen weights can be packed, and 'hf' is not a folder of adapters"
    tune 1 x --lora.base_dtype=int8 --checkpoint.last_save_in_hf
    expect_error 2 "checkpoints of packed weights hold only the adapters"
}

case_adapters_are_trained_merged_and_exported() {
    tune 1 alone
    expect_ok
    expect_err "lora +rank 3, alpha 6 on [0-9]+ layers; .* of .* parameters are trained"
    tune 2 shared --training.steps=2 --lr_scheduler.total_steps=4
    expect_ok
    tune 2 shared --checkpoint.initial_load_in_hf=false --parallelism.fsdp_engine=planned
    expect_ok
    run ckpt diff alone/checkpoint/step-4 shared/checkpoint/step-4
    expect_ok
    expect_out "^EQUAL"
    run ckpt consolidate alone merged --format hf
    expect_ok
    run ckpt consolidate alone adapter --adapter
    expect_ok
    python3 - alone/checkpoint/step-4 <<'EOF' >problem.txt 2>&1 || not_as "the export: $(cat problem.txt)"
import glob, json, struct, sys
def load(pattern):
    tensors = {}
    for path in glob.glob(pattern):
        data = open(path, "rb").read()
        size = struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__":
                begin, end = (8 + size + at for at in entry["data_offsets"])
                tensors[name] = (entry["shape"], struct.unpack("<%df" % ((end - begin) // 4), data[begin:end]))
    return tensors
base, merged, adapter = load("hf/*.safetensors"), load("merged/*.safetensors"), load("adapter/*.safetensors")
config = json.load(open("adapter/adapter_config.json"))
assert (config["peft_type"], config["r"], config["lora_alpha"]) == ("LORA", 3, 6), config
assert config["base_model_name_or_path"] == "hf" and len(config["target_modules"]) == 7, config
assert base.keys() == merged.keys() and glob.glob("merged/config.json")
adapted = 0
for name, ((rows, *width), values) in base.items():
    a, b = (adapter.pop("base_model.model." + name.replace(".weight", ".lora_%s.weight" % k), None) for k in "AB")
    if a is None:
        assert merged[name][1] == values, name
        continue
    assert a[0] == [3, width[0]] and b[0] == [rows, 3], (name, a[0], b[0])
    adapted += 1
    moved = 0.0
    for i in range(rows):
        for j in range(width[0]):
            product = 2.0 * sum(b[1][i * 3 + k] * a[1][k * width[0] + j] for k in range(3))
            at = i * width[0] + j
            assert abs(merged[name][1][at] - values[at] - product) < 1e-6, (name, i, j)
            moved = max(moved, abs(product))
    assert moved > 1e-4, name
assert adapted and not adapter, (adapted, adapter.keys())
optim = {name.split(".lora_")[0] for name in load(sys.argv[1] + "/optim/*.safetensors")}
assert len(optim) == adapted, optim
EOF
    for weights in alone merged; do
        run generate $weights --prompt-tokens 1,2,3 --greedy --ignore-eos --max-new-tokens 8 --json
        expect_ok
        python3 -c 'import json; print(json.load(open("out"))["tokens"])' >$weights.txt
    done
    expect_same alone.txt merged.txt
}

case_a_run_goes_on_with_its_own_adapters_only() {
    tune 1 run --training.steps=2
    expect_ok
    tune 1 run --lora.alpha=8
    expect_error 3 "lora.alpha 6; this run has lora.alpha 8"
    tune 1 run --lora.rank=4
    expect_error 3 "holds a run of another model: that run: lora.rank 3; this one: lora.rank 4"
    tune 1 run --lora.rank=0
    expect_error 3 "that run: lora.rank 3; this one: lora.rank 0"
    run ckpt convert run theirs --format dcp
    expect_error 3 "has low-rank adapters, which torchtitan does not read" "consolidate --format hf merges them"
    refuse_file theirs
    # a new run takes the adapters of a checkpoint that contains some
    tune 1 next --checkpoint.initial_load_in_hf=false --checkpoint.initial_load_path=run --lora.alpha=8
    expect_error 3 "the adapters in 'run' were trained with lora.alpha 6; this run has lora.alpha 8"
    tune 1 next --checkpoint.initial_load_in_hf=false --checkpoint.initial_load_path=run --optimizer.lr=0
    expect_ok
    run ckpt consolidate run before
    run ckpt consolidate next after
    run ckpt diff before after
    expect_ok
}

case_adapters_are_averaged_merged_only() {
    tune 1 run
    expect_ok
    for step in 2 4; do
        run ckpt consolidate run/checkpoint/step-$step merged-$step --format hf
        expect_ok
        run ckpt consolidate run/checkpoint/step-$step plain-$step
        run ckpt consolidate run/checkpoint/step-$step adapter-$step --adapter
    done
    for of in run/checkpoint/step plain adapter; do
        run ckpt average $of-2 $of-4 --out mean
        expect_error 3 "has low-rank adapters, for instance '.*lora_[aA].weight'" "help: add --format hf, which merges"
        refuse_file mean
    done
    run ckpt average run/checkpoint/step-2 run/checkpoint/step-4 --out mean --format hf
    expect_ok
    run ckpt average merged-2 merged-4 --out wanted
    expect_ok
    run ckpt diff mean wanted --json
    python3 -c 'import json; d = json.load(open("out")); assert all(t["max_abs"] < 1e-7 for t in d["different"]), d' ||
        not_as "the mean of the merged weights"
}

case_what_cannot_have_adapters_is_refused() {
    tune 1 run --lora.target_modules=[q_proj,lm_head]
    expect_error 2 "lora.target_modules" "'lm_head' selects no layer of" "model.layers.0.self_attn.q_proj"
    tune 1 run --lora.target_modules='["*.wq"]'
    expect_error 2 "lora.target_modules" "quantifier"
    tune 1 run --lora.target_modules=[]
    expect_error 2 "lora.target_modules" "nothing would be trained"
    run train --model.name=gpt2 --lora.rank=8
    expect_error 2 "lora.rank" "gpt2 has no adapters"
    run train --model.flavor=hf --model.hf_assets_path="$golden/phi3_short" --lora.rank=2 --lora.target_modules=[q_proj]
    expect_error 2 "lora.target_modules has only some parts of qkv_proj" "help: name qkv_proj, or all its parts"
    run train --model.flavor=hf --model.hf_assets_path="$golden/starcoder2" --lora.rank=2 \
        --lora.target_modules=[gate_proj]
    expect_error 2 "lora.target_modules names no layer that a starcoder2 has"
    tune 1 run --lora.rank=0 --training.steps=1
    expect_ok
    run ckpt consolidate run apart --adapter
    expect_error 3 "has no adapters"
    run ckpt consolidate run apart --adapter --format hf
    expect_error 2 "--adapter writes PEFT.s format"
    refuse_file apart
}

run_cases

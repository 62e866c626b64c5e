#!/bin/bash
# SPDX-License-Identifier: MIT
# Weights to Hugging Face and back with convert, consolidate --format hf and last_save_in_hf, for the models of the
# golden runs.
. "$(dirname "$0")/lib.sh"

golden=$TITAN_SOURCE/tests/golden/data

# same_weights A B: checks that the safetensors files of both folders contain the same tensors, with equal dtypes,
# shapes and bytes.
same_weights() {
    python3 - "$1" "$2" <<'EOF2' >differences 2>&1 || not_as "$1 and $2: $(cat differences)"
import glob, json, struct, sys
def load(folder):
    tensors = {}
    for path in glob.glob(folder + "/*.safetensors"):
        with open(path, "rb") as file:
            data = file.read()
        size = struct.unpack("<Q", data[:8])[0]
        for name, entry in json.loads(data[8 : 8 + size]).items():
            if name != "__metadata__":
                begin, end = (8 + size + at for at in entry["data_offsets"])
                tensors[name] = (entry["dtype"], entry["shape"], data[begin:end])
    return tensors
a, b = load(sys.argv[1]), load(sys.argv[2])
assert a and a.keys() == b.keys(), a.keys() ^ b.keys()
for name in a:
    assert a[name] == b[name], (name, a[name][:2], b[name][:2])
EOF2
}

# import_folder NAME: copies the Hugging Face folder of a golden run to ./hf, without the final weights.
import_folder() {
    mkdir hf
    cp "$golden/$1"/{config.json,generation_config.json,model.safetensors} hf/
}

case_imported_weights_are_exported_with_the_same_bytes() {
    for name in $(ls "$golden" | sweep 1 3); do
        rm -rf hf step exported
        import_folder $name
        run ckpt convert hf step
        expect_ok
        run ckpt verify --deep step
        expect_ok
        expect_out "^OK .* digests match"
        run ckpt consolidate step exported --format hf
        expect_ok
        same_weights hf exported
        python3 - <<'EOF2' >problem.txt 2>&1 || not_as "$name: config.json: $(cat problem.txt)"
import json
before, after = json.load(open("hf/config.json")), json.load(open("exported/config.json"))
rope = before.pop("rope_parameters", None) or {}
if before.pop("decoder_sparse_step", 1) > 1:  # the layers are written one by one
    assert after["decoder_sparse_step"] == 1 and after["mlp_only_layers"] == [0, 2, 4], after
    before.pop("mlp_only_layers")
for key in ("dtype", "transformers_version"):
    before.pop(key, None)
if "full_attention" in rope:  # each kind of layer has its own RoPE
    assert after["rope_parameters"] == rope, after
elif rope:
    assert after["rope_theta"] == rope["rope_theta"], after
    assert after.get("partial_rotary_factor", 1.0) == rope.pop("partial_rotary_factor", 1.0), after
    scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
    found = dict(after["rope_scaling"] or {"rope_type": "default"})
    if found.get("type") == "longrope":  # Phi-3 spells it differently: the original length stands beside the scaling
        found.update(rope_type="longrope", original_max_position_embeddings=after["original_max_position_embeddings"])
    assert found == scaling, after
for key, value in before.items():
    assert key in after and (after[key] == value or value is None), (key, value, after.get(key))
assert after["torch_dtype"] == "float32"
assert json.load(open("exported/generation_config.json")) == json.load(open("hf/generation_config.json"))
EOF2
        run ckpt diff step hf
        expect_ok
        expect_out "^EQUAL"
    done
}

# One message, which names the first tensor that does not fit.
case_another_number_of_experts_is_refused() {
    for experts in 6 12; do
        rm -rf hf
        import_folder deepseek_v3
        chmod u+w hf/*
        sed -i "s/\"n_routed_experts\": 8/\"n_routed_experts\": $experts/; s/\"n_group\": 4/\"n_group\": 2/" \
            hf/config.json
        run generate hf --greedy --prompt_tokens 5
        if [ $experts = 6 ]; then
            expect_error 3 "tensor 'model.layers.1.mlp.gate.weight' is .0:8, 0:40., wanted .0:6, 0:40."
        else
            expect_error 3 "lack tensor 'model.layers.1.mlp.experts.8.gate_proj.weight'"
        fi
    done
}

case_exported_shards_have_an_index() {
    import_folder llama3
    run ckpt convert hf step
    run ckpt convert step exported --dtype bfloat16 --max-shard-size 100k
    expect_ok
    run ckpt verify exported
    expect_ok
    run ckpt diff step exported
    expect_code 1
    expect_out "^DIFFERENT"
    run ckpt diff step exported --atol 0.01
    expect_ok
    python3 - <<'EOF2' >problem.txt 2>&1 || not_as "the index: $(cat problem.txt)"
import glob, json, os, struct
index = json.load(open("exported/model.safetensors.index.json"))
total = 0
for path in glob.glob("exported/*.safetensors"):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    for name, entry in header.items():
        if name != "__metadata__":
            assert entry["dtype"] == "BF16", entry
            assert index["weight_map"].pop(name) == os.path.basename(path)
            total += entry["data_offsets"][1] - entry["data_offsets"][0]
assert not index["weight_map"] and index["metadata"]["total_size"] == total
assert len(glob.glob("exported/*.safetensors")) > 3
assert json.load(open("exported/config.json"))["torch_dtype"] == "bfloat16"
EOF2
}

case_an_unknown_architecture_lists_the_known() {
    import_folder llama3
    sed -i 's/"model_type": "llama"/"model_type": "mamba"/' hf/config.json
    run ckpt convert hf step
    expect_error 3 "mamba" "llama" "qwen3" "gpt2"
    refuse_file step
}

case_a_missing_tensor_writes_nothing() {
    import_folder llama3
    sed -i 's/"num_hidden_layers": 3/"num_hidden_layers": 4/' hf/config.json
    run ckpt convert hf step
    expect_error 3 "model.layers.3"
    refuse_file step
    [ -z "$(ls -d .tmp-* 2>/dev/null)" ] || not_as "a temporary folder is left"
}

# put_head CHANGE: adds an lm_head.weight to hf/model.safetensors: the embedding, with CHANGE added to its last element.
put_head() {
    python3 - "$1" <<'EOF2' || not_as "no lm_head"
import json, struct, sys
with open("hf/model.safetensors", "rb") as file:
    data = file.read()
size = struct.unpack("<Q", data[:8])[0]
header, data = json.loads(data[8 : 8 + size]), data[8 + size :]
entry = header["model.embed_tokens.weight"]
begin, end = entry["data_offsets"]
(last,) = struct.unpack("<f", data[end - 4 : end])
header["lm_head.weight"] = {**entry, "data_offsets": [len(data), len(data) + end - begin]}
header = json.dumps(header).encode()
with open("hf/model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(header)) + header + data + data[begin : end - 4])
    file.write(struct.pack("<f", last + float(sys.argv[1])))
EOF2
}

# from_folder FLAGS...: trains the model of ./hf, without naming its family.
from_folder() {
    run train --model.flavor=hf --model.hf_assets_path=hf --training.dataset=tokens \
        --training.dataset_path="$golden/$name/tokens.bin" \
        --training.seq_len=16 --training.local_batch_size=1 --training.global_batch_size=1 --training.steps=1 \
        --checkpoint.enable \
        --metrics.peak_flops=1e9 --job.dump_folder=run "$@"
}

case_the_family_is_that_of_config_json() {
    for name in llama3 qwen3 gpt2; do
        rm -rf hf run
        import_folder $name
        from_folder
        expect_ok
        expect_err "model +$name hf"
        grep -q "^  name: $name" run/run.yaml || not_as "run.yaml does not say $name"
        run config check --model.flavor=hf --model.hf_assets_path=hf --training.seq_len=16 --training.dataset=tokens \
            --training.dataset_path="$golden/$name/tokens.bin"
        expect_ok
        from_folder --overwrite --model.name=$name
        expect_ok
    done
    from_folder --overwrite --model.name=llama3
    expect_error 3 "model_type 'gpt2' is not a llama3" "set model.name to gpt2"
}

case_random_weights_despite_stored_ones_are_reported() {
    name=llama3
    import_folder llama3
    from_folder
    expect_ok
    expect_err "warning: training starts from random weights: those in 'hf' are not used"
    expect_err "help: --checkpoint.initial_load_in_hf loads them"
    expect_err "weights +random init"
    from_folder --overwrite --checkpoint.initial_load_in_hf
    expect_ok
    refuse_err "random weights"
    rm hf/model.safetensors
    from_folder --overwrite
    expect_ok
    refuse_err "random weights"
}

# The folder is named once, and determines everything about the model.
case_a_folder_as_initial_load_path_is_enough() {
    name=llama3
    import_folder llama3
    short="--training.seq_len=16 --training.local_batch_size=1 --training.global_batch_size=2 --training.steps=2
        --metrics.peak_flops=1e9 --checkpoint.enable --training.dataset=tokens
        --training.dataset_path=$golden/llama3/tokens.bin"
    run train $short --checkpoint.initial_load_path=hf --job.dump_folder=run
    expect_ok
    expect_err "^  model    llama3 hf, .* parameters; model and tokenizer from checkpoint.initial_load_path"
    expect_err "^  weights  from hf"
    run train $short --model.flavor=hf --model.hf_assets_path=hf --checkpoint.initial_load_in_hf --job.dump_folder=long
    expect_ok
    refuse_err "from checkpoint.initial_load_path"
    run compare run long --assert-equal
    expect_ok
    run train $short --checkpoint.initial_load_path=hf --job.dump_folder=run --training.steps=3
    expect_ok
    expect_err "^  weights  step-2"
    run config show --checkpoint.initial_load_path=hf --origin
    expect_out "^  flavor: hf +# checkpoint.initial_load_path"
    run train $short --checkpoint.initial_load_in_hf --model.hf_assets_path=hf --job.dump_folder=third --dry-run
    expect_ok
    expect_out "^  model    llama3 hf, "
    run config check --checkpoint.initial_load_path=hf --no-checkpoint.initial_load_model_only
    expect_error 2 "initial_load_model_only: a Hugging Face folder holds only weights"
    run config check --model.flavor=hf --checkpoint.initial_load_path=run
    expect_error 2 "none is given"
}

case_other_files_of_the_folder_are_exported_too() {
    name=llama3
    import_folder llama3
    echo '{"eos_token": "<|end_of_text|>"}' >hf/special_tokens_map.json
    echo '{{ messages }}' >hf/chat_template.jinja
    echo '{"<|end_of_text|>": 1}' >hf/added_tokens.json
    echo '{}' >hf/vocab.json
    echo '#version: 0.2' >hf/merges.txt
    echo '{"eos_token_id": [1, 7], "temperature": 0.6}' >hf/generation_config.json
    cp "$TITAN_SOURCE"/assets/tokenizer*.json hf/
    echo 'a picture' >hf/figure.png
    from_folder --checkpoint.initial_load_in_hf --checkpoint.last_save_in_hf
    expect_ok
    run ckpt verify run
    expect_ok
    run ckpt consolidate run exported --format hf
    expect_ok
    for folder in exported run/checkpoint/step-1/hf; do
        for file in special_tokens_map.json chat_template.jinja added_tokens.json vocab.json merges.txt tokenizer.json \
            tokenizer_config.json; do
            expect_same hf/$file $folder/$file
        done
        refuse_file $folder/figure.png
        python3 -c "
import json
assert json.load(open('$folder/generation_config.json')) == json.load(open('hf/generation_config.json'))
config = json.load(open('$folder/config.json'))
assert config['initializer_range'] == json.load(open('hf/config.json'))['initializer_range']" >problem.txt 2>&1 ||
            not_as "$folder: $(cat problem.txt)"
    done
}

# Exports keep members of the imported config.json, which must not contradict a model that was changed after the import.
case_changed_sizes_are_those_of_the_export() {
    name=qwen3
    import_folder qwen3
    from_folder --model.n_layers=3 --checkpoint.last_save_in_hf
    expect_ok
    python3 - run/checkpoint/step-1/hf/config.json <<'EOF' >problem.txt 2>&1 || not_as "layers: $(cat problem.txt)"
import json, sys
config = json.load(open(sys.argv[1]))
assert config["num_hidden_layers"] == 3 and len(config.get("layer_types", [0] * 3)) == 3, config
assert config["initializer_range"] == 0.02, config
EOF
    rm -rf hf run
    name=llama3_tied_scaled
    import_folder llama3_tied_scaled
    chmod u+w hf/*
    sed -i 's/"rope_parameters"/"rope_scaling"/; /"rope_theta"/d' hf/config.json # the spelling of transformers 4
    from_folder --model.rope_scaling.factor=1 --checkpoint.last_save_in_hf
    expect_ok
    python3 - run/checkpoint/step-1/hf/config.json <<'EOF' >problem.txt 2>&1 || not_as "scaling: $(cat problem.txt)"
import json, sys
config = json.load(open(sys.argv[1]))
assert config["rope_scaling"] is None, config
EOF
}

# If an export kept a second name of a size, readers would take that value instead of the new one.
case_second_names_of_sizes_are_not_exported() {
    name=gpt2
    import_folder gpt2
    sed -i 's/"n_layer": 2/"num_hidden_layers": 2/' hf/config.json
    from_folder --model.n_layers=1 --checkpoint.last_save_in_hf
    expect_ok
    grep -q '"n_layer": 1' run/checkpoint/step-1/hf/config.json || not_as "not one layer"
    ! grep -q '"num_hidden_layers"' run/checkpoint/step-1/hf/config.json || not_as "the second name was exported"
}

case_a_broken_generation_config_is_only_a_note() {
    name=llama3
    import_folder llama3
    echo '{"eos_token_id": ' >hf/generation_config.json
    run generate hf --prompt-tokens 1,5,9 --max-new-tokens 3 --greedy
    expect_ok
    expect_err "not used: hf/generation_config.json:[0-9]+:[0-9]+: invalid JSON"
    from_folder --checkpoint.initial_load_in_hf
    expect_ok
    run ckpt consolidate run exported --format hf
    expect_ok
    expect_err "not used for the export: .*hf_generation_config.json:"
    expect_file exported/generation_config.json
}

# transformers must read an exported folder; with PyTorch, its model must give the same tokens too.
case_transformers_reads_the_export() {
    python3 -c "import transformers" 2>/dev/null || skip "no transformers here"
    mkdir llama
    cp "$golden/llama3"/{config.json,model.safetensors} llama/
    cp "$TITAN_SOURCE"/tests/unit/data/transformers/v4/llama3/* llama/
    rm llama/golden.json
    echo '{"bos_token_id": 320, "eos_token_id": [321, 322], "do_sample": true, "temperature": 0.6}' \
        >llama/generation_config.json
    make_corpus
    run train --model.flavor=hf --model.hf_assets_path=llama --checkpoint.initial_load_in_hf --checkpoint.enable \
        --training.dataset=text --training.dataset_path=corpus.txt --training.seq_len=32 --training.steps=2 \
        --training.local_batch_size=1 --training.global_batch_size=2 --checkpoint.last_save_in_hf --job.dump_folder=run
    expect_ok
    for source in run/checkpoint/step-2/hf run; do
        run generate $source --prompt "And the evening" --max-new-tokens 8 --greedy --json
        expect_ok
        python3 -c 'import json; print(json.load(open("out"))["samples"][0]["tokens"])' \
            >"tokens-${source%%/*}-${#source}" ||
            not_as "no tokens"
    done
    cat tokens-* | uniq | wc -l | grep -q "^1$" || not_as "the export gives other tokens: $(cat tokens-*)"
    python3 - <<'EOF2' >problem.txt 2>&1 || not_as "transformers: $(cat problem.txt)"
import json
import transformers
before, after = (transformers.AutoTokenizer.from_pretrained(folder) for folder in ("llama", "run/checkpoint/step-2/hf"))
messages = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "naïve"}]
assert before.chat_template
assert before.apply_chat_template(messages, tokenize=False) == after.apply_chat_template(messages, tokenize=False)
for text in ("And the evening and the morning", " 12345\n\n naïve 日本"):
    assert before(text)["input_ids"] == after(text)["input_ids"], text
assert before.special_tokens_map == after.special_tokens_map
a, b = (transformers.GenerationConfig.from_pretrained(folder) for folder in ("llama", "run/checkpoint/step-2/hf"))
assert a.to_dict() == b.to_dict(), (a, b)
config = transformers.AutoConfig.from_pretrained("run/checkpoint/step-2/hf")
assert config.model_type == "llama" and config.num_hidden_layers == 3, config
try:
    import torch
except ImportError:
    raise SystemExit(0)
model = transformers.AutoModelForCausalLM.from_pretrained("run/checkpoint/step-2/hf")
ids = torch.tensor([after("And the evening")["input_ids"]])
mine = json.load(open("out"))["samples"][0]["tokens"]
theirs = model.generate(ids, do_sample=False, max_new_tokens=8)[0, ids.shape[1]:].tolist()
assert theirs[: len(mine)] == mine, (mine, theirs)
EOF2
}

case_a_tied_head_of_its_own_is_refused() {
    import_folder llama3_tied_scaled
    put_head 0
    run ckpt convert hf same
    expect_ok
    rm -rf hf
    import_folder llama3_tied_scaled
    put_head 0.5
    run ckpt convert hf step
    expect_error 3 "lm_head.weight' differs from 'model.embed_tokens.weight'" "tie_word_embeddings"
    refuse_file step
    run_ranks 2 train --model.name=llama3 --model.flavor=hf --model.hf_assets_path=hf --training.dataset=tokens \
        --training.dataset_path="$golden/llama3_tied_scaled/tokens.bin" --checkpoint.enable \
        --checkpoint.initial_load_in_hf \
        --training.seq_len=16 --training.steps=1
    expect_error 3 "lm_head.weight' differs"
    sed -i 's/"tie_word_embeddings": true/"tie_word_embeddings": false/' hf/config.json
    run ckpt convert hf step
    expect_ok
}

# put_tensor NAME ELEMENTS: adds a vector of zeros to hf/model.safetensors.
put_tensor() {
    python3 - "$@" <<'EOF2' || not_as "no $1"
import json, struct, sys
with open("hf/model.safetensors", "rb") as file:
    data = file.read()
size, n = struct.unpack("<Q", data[:8])[0], int(sys.argv[2])
header, data = json.loads(data[8 : 8 + size]), data[8 + size :]
header[sys.argv[1]] = {"dtype": "F32", "shape": [n], "data_offsets": [len(data), len(data) + 4 * n]}
header = json.dumps(header).encode()
with open("hf/model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(header)) + header + data + bytes(4 * n))
EOF2
}

# Like the biases of a Qwen2 whose config.json says llama: the model would compute something else without them.
case_a_weight_without_a_place_is_an_error() {
    name=llama3
    import_folder llama3
    put_tensor model.layers.1.self_attn.q_proj.bias 64
    bad="tensor 'model.layers.1.self_attn.q_proj.bias' of 'hf' does not belong to llama3"
    run ckpt convert hf step
    expect_error 3 "$bad" "Qwen2 and its relatives have such biases" "leave-out"
    refuse_file step
    run ckpt convert hf step --format dcp
    expect_error 3 "$bad"
    from_folder --checkpoint.initial_load_in_hf
    expect_error 3 "$bad" "checkpoint.initial_load_leave_out"
    from_folder --checkpoint.initial_load_in_hf --dry-run
    expect_error 3 "$bad"
    run generate hf --prompt-tokens 1,2,3
    expect_error 3 "$bad"
    run eval hf --dataset tokens --dataset-path "$golden/llama3/tokens.bin" --seq-len 16
    expect_error 3 "$bad"
    run ckpt convert hf step --leave-out 'q_proj[.]bias$'
    expect_ok
    expect_err "1 tensor of 'hf' is not used .as requested., for instance 'model.layers.1.self_attn.q_proj.bias'"
    run ckpt convert hf other --leave-out bias --leave-out nowhere
    expect_error 2 "'nowhere' matches no unused tensor of the files"
    run ckpt convert step other --leave-out bias
    expect_error 2 "leave-out is only for Hugging Face folders"
    from_folder --checkpoint.initial_load_in_hf '--checkpoint.initial_load_leave_out=[q_proj.bias]'
    expect_ok
    expect_err "1 tensor of 'hf' is not used .as requested."
}

case_blocks_behind_the_last_are_an_error() {
    import_folder llama3
    put_tensor model.layers.3.input_layernorm.weight 64
    run ckpt convert hf step
    expect_error 3 "'model.layers.3.input_layernorm.weight' .* does not belong to llama3" "the model has 3 layers" "the files have more"
    put_tensor model.layers.3.eh_proj.weight 64 # it predicts a further token, as DeepSeek's models do
    run ckpt convert hf step
    expect_ok
    expect_err "2 tensors of 'hf' are not used .not part of the language model."
}

case_a_key_that_nobody_knows_is_listed_once() {
    name=llama3
    import_folder llama3
    sed -i 's/"model_type"/"novelty": 3, "model_type"/' hf/config.json
    run train --checkpoint.initial_load_path=hf --training.dataset=tokens --metrics.peak_flops=1e9 \
        --training.dataset_path="$golden/llama3/tokens.bin" --training.seq_len=16 --training.local_batch_size=1 \
        --training.steps=1 --job.dump_folder=run
    expect_ok
    [ "$(grep -c 'hf/config.json: not used, .*: "novelty"$' err)" = 1 ] || not_as "$(grep -n novelty err)"
}

case_leftovers_and_other_parts_are_left_out() {
    import_folder llama3
    put_tensor model.layers.1.self_attn.rotary_emb.inv_freq 8
    run ckpt convert hf step
    expect_ok
    refuse_err "not used"
    put_tensor vision_tower.patches.weight 8
    run ckpt convert hf second
    expect_ok
    expect_err "1 tensor of 'hf' is not used .not part of the language model., for instance 'vision_tower.patches.weight'"
    put_tensor model.layers.1.attn.bias 8 # GPT-2's mask, but it does not belong here
    run ckpt convert hf third
    expect_error 3 "model.layers.1.attn.bias"
}

# Gemma 3's models that also read images, in the names of version 4 and 5 of transformers. What titan writes is the
# language model alone.
case_the_language_model_of_several_parts_is_read() {
    import_folder gemma3
    run ckpt convert hf alone
    expect_ok
    for names in language_model. model.language_model.; do
        rm -rf step back
        cp "$golden/gemma3/model.safetensors" hf/
        python3 - $names <<'EOF3'
import json, struct, sys
with open("hf/model.safetensors", "rb") as file:
    data = file.read()
size, begins = struct.unpack("<Q", data[:8])[0], sys.argv[1]
header = json.loads(data[8 : 8 + size])
rename = lambda name: begins + (name.removeprefix("model.") if begins.startswith("model.") else name)
header = json.dumps({name if name == "__metadata__" else rename(name): of for name, of in header.items()}).encode()
with open("hf/model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(header)) + header + data[8 + size :])
with open("hf/config.json") as file:
    config = json.load(file)
config = config.get("text_config") or config
whole = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106],
         "text_config": {key: of for key, of in config.items() if key != "tie_word_embeddings"},
         "tie_word_embeddings": True, "vision_config": {"hidden_size": 1152}}
with open("hf/config.json", "w") as file:
    json.dump(whole, file)
EOF3
        put_tensor vision_tower.patches.weight 8
        run ckpt convert hf step
        expect_ok
        expect_err "1 tensor of 'hf' is not used .not part of the language model., for instance 'vision_tower.patches"
        run ckpt diff alone step
        expect_ok
        expect_out "^EQUAL"
        run ckpt consolidate step back --format hf
        expect_ok
        expect_file back/config.json '"model_type": "gemma3_text"' '"eos_token_id": .1, 106.'
    done
}

# max_position_embeddings of the folder is 128.
case_exports_say_how_long_the_sequences_were() {
    name=llama3
    import_folder llama3
    echo '{"model_max_length": 100, "tokenizer_class": "PreTrainedTokenizerFast"}' >hf/tokenizer_config.json
    from_folder --checkpoint.initial_load_in_hf --training.seq_len=160 --checkpoint.last_save_in_hf
    expect_ok
    expect_err "^  length   sequences of 160, and the model is for 128 .max_position_embeddings.: exports will say 160"
    run ckpt consolidate run exported --format hf
    expect_ok
    for folder in run/checkpoint/step-1/hf exported; do
        grep -q '"max_position_embeddings": 160' $folder/config.json || not_as "$folder: $(cat $folder/config.json)"
        grep -q '"model_max_length": 160' $folder/tokenizer_config.json || not_as "$(cat $folder/tokenizer_config.json)"
    done
    rm -rf run exported
    from_folder --checkpoint.initial_load_in_hf --model.max_position_embeddings=512 --checkpoint.last_save_in_hf
    expect_ok
    refuse_err "^  length"
    grep -q '"max_position_embeddings": 512' run/checkpoint/step-1/hf/config.json || not_as "not 512"
    grep -q '"model_max_length": 100' run/checkpoint/step-1/hf/tokenizer_config.json || not_as "not 100"
}

case_learned_positions_cannot_become_more() {
    name=gpt2
    import_folder gpt2
    from_folder --checkpoint.initial_load_in_hf --training.seq_len=128
    expect_error 2 "seq_len 128 is longer than the 64 positions" "model.max_position_embeddings"
    from_folder --checkpoint.initial_load_in_hf --training.seq_len=128 --model.max_position_embeddings=128
    expect_error 3 "learned positions cannot become more or fewer" "leave out model.max_position_embeddings"
    from_folder --training.seq_len=128 --model.max_position_embeddings=128
    expect_ok
}

case_an_index_entry_that_no_file_holds_is_an_error() {
    import_folder llama3
    run ckpt convert hf step
    run ckpt convert step exported --max-shard-size 100k
    expect_ok
    sed -i 's/"weight_map": *{/&"lm_head.bias": "model-00001-of-00002.safetensors", /' \
        exported/model.safetensors.index.json
    sed -i "s/model-00001-of-00002/$(basename "$(ls exported/model-00001-*)" .safetensors)/" \
        exported/model.safetensors.index.json
    run ckpt convert exported again
    expect_error 3 "index.json': tensor 'lm_head.bias' should be in 'model-00001-of-.*no file of the index contains it"
    refuse_file again
}

# A Mistral without a window is exported as a Llama, with the ids of its special tokens.
case_the_export_of_a_mistral_keeps_the_ids_of_tokens() {
    import_folder llama3
    python3 - <<'EOF2' || not_as "no config"
import json
config = json.load(open("hf/config.json"))
config.update(model_type="mistral", sliding_window=None, bos_token_id=1, eos_token_id=[2, 5], pad_token_id=7)
json.dump(config, open("hf/config.json", "w"))
EOF2
    run ckpt convert hf step
    expect_ok
    run ckpt convert step exported
    expect_ok
    python3 - <<'EOF2' >problem.txt 2>&1 || not_as "config.json: $(cat problem.txt)"
import json
config = json.load(open("exported/config.json"))
assert config["model_type"] == "llama" and "sliding_window" not in config, config
assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, [2, 5], 7), config
EOF2
}

# A tokenizer with more tokens than the embedding: new rows are the mean of the others, the same on all layouts.
case_new_tokens_extend_the_vocabulary() {
    for name in llama3 llama3_tied_scaled; do
        rm -rf hf run-* exported step
        import_folder $name
        rows=$(python3 -c 'import json; print(json.load(open("hf/config.json"))["vocab_size"])')
        train="train --model.flavor=hf --checkpoint.initial_load_path=hf --training.dataset=tokens --checkpoint.enable
            --training.dataset_path=$golden/$name/tokens.bin --training.seq_len=16 --training.global_batch_size=4
            --training.local_batch_size=1 --model.vocab_size=$((rows + 7))"
        run $train --training.steps=1 --job.dump_folder=run-0
        expect_error 3 "is .0:$rows, .*wanted .0:$((rows + 7))," \
            "help: for new tokens, in training, set checkpoint.initial_load_extend_vocabulary"
        run $train --training.steps=1 --job.dump_folder=run-0 --checkpoint.initial_load_extend_vocabulary --lora.rank=2
        expect_error 2 "the embedding is not trained, so new rows would stay as they are"
        while read -r ranks flags; do
            run_ranks $ranks $train --training.steps=1 --job.dump_folder=run-$ranks --optimizer.lr=0 \
                --checkpoint.initial_load_extend_vocabulary $flags
            expect_ok
            expect_err "tok_embeddings.weight has $((rows + 7)) rows, .* has $rows: the new ones are the mean of these"
            run ckpt diff run-1/checkpoint/step-1 run-$ranks/checkpoint/step-1
            refuse_out "^model/" # the optimizer has other bits with tensor parallelism
        done <<'EOF2'
1
2
4 --parallelism.tensor_parallel_degree=2
EOF2
        run ckpt consolidate run-4 exported --format hf
        expect_ok
        python3 - $rows <<'EOF2' >problem.txt 2>&1 || not_as "$name: $(cat problem.txt)"
import json, struct, sys
rows = int(sys.argv[1])
assert json.load(open("exported/config.json"))["vocab_size"] == rows + 7
def load(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    return {name: (entry["shape"], data[8 + size + entry["data_offsets"][0] : 8 + size + entry["data_offsets"][1]])
            for name, entry in json.loads(data[8 : 8 + size]).items() if name != "__metadata__"}
before, after = load("hf/model.safetensors"), load("exported/model.safetensors")
for name in [n for n in ("model.embed_tokens.weight", "lm_head.weight") if n in before]:
    (shape, old), (grown, new) = before[name], after[name]
    assert shape[0] == rows and grown == [rows + 7, shape[1]], (shape, grown)
    assert new[: len(old)] == old, name
    width = shape[1]
    values = struct.unpack(f"<{rows * width}f", old)
    for c in range(width):
        total = 0.0
        for r in range(rows):
            total += values[r * width + c]
        mean = struct.pack("<f", total / rows)
        for r in range(7):
            assert new[len(old) + 4 * (r * width + c) :][:4] == mean, (name, r, c)
EOF2
        run $train --training.steps=1 --job.dump_folder=run-5 --checkpoint.initial_load_extend_vocabulary \
            --checkpoint.initial_load_path=run-1/checkpoint/step-1 --model.hf_assets_path=hf
        expect_error 2 "checkpoint.initial_load_extend_vocabulary is only for Hugging Face folders"
    done
}

# As when transformers loads it, the head of a tied model is its embedding; without the tie the head is missing.
case_an_index_may_name_the_head_of_a_tied_model() {
    import_folder llama3_tied_scaled
    run ckpt convert hf step
    run ckpt convert step exported --max-shard-size 20k
    expect_ok
    sed -i "s/\"weight_map\": *{/&\"lm_head.weight\": \"$(basename "$(ls exported/model-00001-*)")\", /" \
        exported/model.safetensors.index.json
    run ckpt convert exported again
    expect_ok
    expect_err "names 'lm_head.weight', which no file contains"
    run ckpt diff again step
    expect_ok
    sed -i 's/"tie_word_embeddings": true/"tie_word_embeddings": false/' exported/config.json
    run ckpt convert exported untied
    expect_error 3 "lack tensor 'lm_head.weight'"
    refuse_file untied
}

case_convert_replaces_only_what_it_made() {
    import_folder llama3
    run ckpt convert hf step
    expect_ok
    run ckpt convert hf step
    expect_error 2 "step" "--force"
    run ckpt convert hf step --force
    expect_ok
    make_corpus
    run train $tiny --checkpoint.enable
    run ckpt convert hf run/checkpoint/step-3 --force
    expect_error 2 "step-3"
    run ckpt verify run
    expect_ok
}

case_force_replaces_only_what_titan_wrote() {
    import_folder llama3
    run ckpt convert hf step
    for target in hf hf/; do
        run ckpt consolidate step $target --format hf --force
        expect_error 2 "not the output of an earlier run"
    done
    run ckpt consolidate step exported --format hf
    expect_ok
    run ckpt consolidate step exported --format hf --force
    expect_ok
    echo precious >exported/notes.txt
    run ckpt consolidate step exported --format hf --force
    expect_error 2 "not the output of an earlier run"
    expect_file exported/notes.txt
}

case_leftovers_of_a_killed_conversion_are_removed() {
    import_folder llama3
    mkdir .tmp-step-123 .tmp-steps-123 .tmp-step-1x .tmp-step-77 .old-step-5
    exec 7<.tmp-step-77
    flock -n 7 || not_as "nobody holds that lock"
    run ckpt convert hf step
    expect_ok
    [ "$(ls -Ad .tmp-* .old-* | tr '\n' ' ')" = ".old-step-5 .tmp-step-1x .tmp-step-77 .tmp-steps-123 " ] ||
        not_as "left: $(ls -Ad .tmp-* .old-*)"
    exec 7<&-
    run ckpt convert hf step --force
    expect_ok
    [ "$(ls -Ad .tmp-* .old-* 2>/dev/null | tr '\n' ' ')" = ".tmp-step-1x .tmp-steps-123 " ] ||
        not_as "left: $(ls -Ad .tmp-* .old-*)"
}

case_last_save_in_hf_is_a_folder_beside_the_state() {
    make_corpus
    run_ranks 2 train $tiny --checkpoint.enable --checkpoint.interval=2 --checkpoint.last_save_in_hf \
        --checkpoint.export_dtype=bfloat16
    expect_ok
    refuse_file run/checkpoint/step-2/hf
    for file in model.safetensors config.json generation_config.json tokenizer.json tokenizer_config.json; do
        expect_file run/checkpoint/step-3/hf/$file
    done
    run ckpt consolidate run exported --format hf --dtype bfloat16
    expect_ok
    same_weights run/checkpoint/step-3/hf exported
    run ckpt inspect run
    expect_out "^  hf  "
    run ckpt verify run
    expect_ok
    printf 'x' | dd of=run/checkpoint/step-3/hf/model.safetensors bs=1 seek=300000 conv=notrunc 2>/dev/null
    run ckpt verify run
    expect_bad "crc.*hf/model.safetensors"
    run train $tiny --checkpoint.enable --training.steps=4
    expect_ok
    run train $tiny --job.dump_folder=second --checkpoint.initial_load_path=exported --checkpoint.initial_load_in_hf
    expect_ok
    expect_err "weights .*from exported"
}

# follow NAME FLAGS...: the golden run from the command line. Weights are compared under Hugging Face's names.
follow() {
    name=$1
    shift
    run_ranks 2 train --model.flavor=hf --model.hf_assets_path="$golden/$name" \
        --training.dataset=tokens --training.dataset_path="$golden/$name/tokens.bin" --dataloader.shuffle=false \
        --dataloader.cache_dir=cache --training.local_batch_size=1 --checkpoint.enable --checkpoint.interval=1000 \
        --job.dump_folder=outputs --metrics.peak_flops=1e9 $(python3 - "$golden/$name/expect.json" <<'EOF2'
import json, sys
case = json.load(open(sys.argv[1]))["case"]
flags = {"training." + key: case[key] for key in ("seq_len", "global_batch_size", "steps", "max_norm")}
flags.update({"optimizer." + key: value for key, value in case["optimizer"].items()})
flags.update({"lr_scheduler." + key: value for key, value in case["lr_scheduler"].items()})
for key, value in flags.items():
    print(f"--{key}={'null' if value is None else value}")
EOF2
) "$@"
    expect_ok
}

# arrived NAME: ./exported holds the golden run's final weights.
arrived() {
    python3 - "$golden/$1" <<'EOF2' >problem.txt 2>&1 || not_as "$1: $(cat problem.txt)"
import array, json, math, struct, sys
def load(path):
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + at for at in entry["data_offsets"])
            tensors[name] = array.array("f", data[begin:end])
    return tensors
before, wanted = load(sys.argv[1] + "/model.safetensors"), load(sys.argv[1] + "/final.safetensors")
got = load("exported/model.safetensors")
assert got.keys() == wanted.keys(), got.keys() ^ wanted.keys()
for name in wanted:
    if name.endswith("c_attn.bias"):
        # softmax cancels the bias of the keys, so its gradient is only rounding error, which AdamW turns into full
        # steps
        third = len(wanted[name]) // 3
        for tensors in (before, wanted, got):
            del tensors[name][third : 2 * third]
    moved = math.sqrt(sum((w - b) ** 2 for w, b in zip(wanted[name], before[name])))
    wrong = math.sqrt(sum((g - w) ** 2 for g, w in zip(got[name], wanted[name])))
    assert moved > 0.0 and wrong <= 1e-3 * moved, (name, wrong / moved)
EOF2
}

case_golden_llama3_through_convert_and_consolidate() {
    import_folder llama3
    run ckpt convert hf start
    follow llama3 --checkpoint.initial_load_path=start
    run ckpt consolidate outputs exported --format hf
    expect_ok
    arrived llama3
}

case_golden_tied_qwen3_and_gpt2_through_last_save_in_hf() {
    for name in llama3_tied_scaled qwen3 gpt2; do
        rm -rf outputs exported
        follow $name --checkpoint.initial_load_in_hf --checkpoint.last_save_in_hf
        cp -r outputs/checkpoint/step-*/hf exported
        arrived $name
    done
}

# The peak memory of a conversion and an export is bounded, even though the weights are five times that size.
case_memory_is_bounded() {
    ! grep -q __asan_init "$TITAN" || skip "the sanitizer keeps freed memory"
    python3 - <<'EOF2'
import json, os, struct
os.mkdir("big")
layers, dim, tensors, at = 4, 2048, {}, 0
json.dump({"model_type": "gpt2", "n_embd": dim, "n_layer": layers, "n_head": 16, "n_positions": 64, "vocab_size": 512,
           "activation_function": "gelu_new", "tie_word_embeddings": True}, open("big/config.json", "w"))
def add(name, *shape):
    global at
    size = 4
    for n in shape:
        size *= n
    tensors["transformer." + name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
    at += size
add("wte.weight", 512, dim)
add("wpe.weight", 64, dim)
for l in range(layers):
    for norm in ("ln_1", "ln_2"):
        add(f"h.{l}.{norm}.weight", dim)
        add(f"h.{l}.{norm}.bias", dim)
    for name, rows, columns in (("attn.c_attn", dim, 3 * dim), ("attn.c_proj", dim, dim), ("mlp.c_fc", dim, 4 * dim),
                                ("mlp.c_proj", 4 * dim, dim)):
        add(f"h.{l}.{name}.weight", rows, columns)
        add(f"h.{l}.{name}.bias", columns)
add("ln_f.weight", dim)
add("ln_f.bias", dim)
header = json.dumps(tensors).encode()
with open("big/model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(header)) + header)
    file.truncate(8 + len(header) + at)  # zeros that take no space on the disk
EOF2
    for step in "convert big step --dtype bfloat16" "consolidate step exported --format hf"; do
        python3 - "$TITAN" $step <<'EOF2' >problem.txt 2>&1 || not_as "ckpt $step: $(cat problem.txt)"
import resource, subprocess, sys
subprocess.run([sys.argv[1], "ckpt"] + sys.argv[2:], check=True)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
assert peak < 200, f"peak resident memory {peak} MiB"
print(f"# {sys.argv[2]}: {peak} MiB")
EOF2
        cat problem.txt
    done
}

run_cases

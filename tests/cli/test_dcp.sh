#!/bin/bash
# SPDX-License-Identifier: MIT Checkpoints of PyTorch's torch.distributed.checkpoint: a folder that PyTorch wrote on 2 x
# 2 ranks, which every command reads, and which is damaged in every way. test_interop.sh lets PyTorch read titan's
# folders.
. "$(dirname "$0")/lib.sh"

golden=$TITAN_SOURCE/tests/interop/torch_dcp

# The model of the folder, on a file of tokens.
model="--model.vocab_size=41 --model.dim=8 --model.n_layers=1 --model.n_heads=2 --model.n_kv_heads=1 --model.ffn_dim=16
    --training.seq_len=32 --training.local_batch_size=2 --training.global_batch_size=8 --metrics.log_freq=1
    --metrics.peak_flops=1e9 --dataloader.cache_dir=cache --training.dataset=tokens_u16
    --training.dataset_path=tokens.bin --training.mixed_precision_param=float32 --checkpoint.interval=100"

make_tokens() {
    python3 -c 'import struct
open("tokens.bin", "wb").write(struct.pack("<4000H", *[(i * i + 3 * i) % 41 for i in range(4000)]))'
}

case_inspect_verify_diff_and_consolidate_read_it() {
    run ckpt inspect "$golden" --json
    expect_ok
    expect_json '
assert found["kind"] == "dcp" and found["step"] == 7 and found["tokens"] == 896, found
assert found["model"]["tensors"] == 12 and found["optimizer"]["tensors"] == 24, found
assert {t["chunks"] for t in found["tensors"] if t["name"] == "layers.0.feed_forward.w2.weight"} == {4}
assert "dataloader.dp_rank_0" in found["meta"]["torch"]["other"]
assert len(found["files"]) == 4'
    run ckpt inspect "$golden" --stats
    expect_ok
    expect_out "PyTorch's torch.distributed.checkpoint; 14 keys that titan does not use"
    run ckpt verify --deep "$golden"
    expect_ok
    expect_out "^OK .* 36 tensors, 4 files, .* coverage exact, 75 checksums match"
    run ckpt consolidate "$golden" weights
    expect_ok
    run ckpt diff "$golden" weights
    expect_ok
    expect_out "^EQUAL"
    run ckpt consolidate "$golden" hf --format hf
    expect_error 3 "does not say which model it is"
}

make_config() {
    mkdir -p assets
    cat >assets/config.json <<'EOF2'
{"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
 "num_key_value_heads": 1, "intermediate_size": 16, "vocab_size": 41, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
 "tie_word_embeddings": false, "initializer_range": 0.03}
EOF2
    echo unrelated >assets/notes.txt
}

# A PyTorch folder does not say which model it holds; a model with fewer layers would leave weights out.
case_a_weight_without_a_place_is_an_error() {
    make_corpus
    run train $tiny --model.n_layers=2 --checkpoint.enable --training.steps=1
    expect_ok
    run ckpt consolidate run hf --format hf
    expect_ok
    run ckpt convert run theirs --format dcp
    expect_ok
    sed 's/"num_hidden_layers": 2/"num_hidden_layers": 1/' hf/config.json >config.json
    mkdir small && mv config.json small
    rm theirs/model.json
    run ckpt convert theirs base --assets hf
    expect_ok
    run ckpt convert theirs other --assets small
    expect_error 3 "tensor 'layers.1.[a-z_.0-9]*' of 'theirs' does not belong to llama3" "help: do --assets"
    refuse_file other
}

case_it_is_converted_and_exported_when_the_model_is_named() {
    make_config
    echo '{"eos_token_id": [1, 7], "temperature": 0.6}' >assets/generation_config.json
    run ckpt convert "$golden" base
    expect_error 3 "does not say which model it is" "help: --assets DIR .* or --model NAME --flavor FLAVOR"
    refuse_file base
    run ckpt convert "$golden" base --assets assets
    expect_ok
    run ckpt verify --deep base
    expect_ok
    run ckpt consolidate "$golden" weights
    expect_ok
    run ckpt diff base weights
    expect_ok
    expect_out "^EQUAL: .* 12 tensors"
    run ckpt inspect base --json
    expect_json 'assert found["step"] == 0 and found["kind"] == "step" and found["meta"]["model"] == "llama3/hf", found'
    run ckpt consolidate "$golden" hf --format hf --assets assets
    expect_ok
    refuse_file hf/notes.txt
    grep -q '"initializer_range": 0.03' hf/config.json || not_as "a key of config.json is lost"
    grep -q '"temperature": 0.6' hf/generation_config.json || not_as "a key of generation_config.json is lost"
    run ckpt diff hf base
    expect_ok
    expect_out "^EQUAL"
    run ckpt consolidate base hf-of-base --format hf
    expect_ok
    cmp hf/model.safetensors hf-of-base/model.safetensors || not_as "two ways to one folder differ"
}

case_a_model_that_is_not_that_of_the_folder_is_refused() {
    make_config
    run ckpt convert "$golden" base --model llama3 --flavor debugmodel
    expect_error 3 "tok_embeddings.weight' is \[0:41, 0:8\], wanted \[0:41, 0:256\]"
    run ckpt convert "$golden" base --model llama3
    expect_error 2 "name a model together"
    run ckpt convert "$golden" base --model lama3 --flavor 8B
    expect_error 2 "llama3"
    run ckpt convert "$golden" base --assets assets --model llama3 --flavor 8B
    expect_error 2 "'assets' says which model it is"
    run ckpt consolidate "$golden" weights --assets assets
    expect_error 2 "help: add --format hf"
    run ckpt convert "$golden" base --assets assets
    expect_ok
    run ckpt convert base hf --assets assets
    expect_error 2 "'base' already names its model"
    run ckpt convert base hf
    expect_ok
    run ckpt convert hf again --assets assets
    expect_error 2 "'hf' already names its model"
}

case_a_checkpoint_becomes_a_folder_of_pytorch() {
    make_tokens
    run_ranks 2 train $model --training.steps=3 --checkpoint.enable --job.dump_folder=run
    expect_ok
    run ckpt convert run theirs --format dcp
    expect_ok
    run ckpt verify --deep theirs
    expect_ok
    run ckpt diff run theirs
    expect_ok
    expect_out "^EQUAL: .* 36 tensors"
    run ckpt inspect theirs --json
    expect_json '
assert found["kind"] == "dcp" and found["step"] == 3 and found["tokens"] == 3 * 8 * 32, found
assert found["meta"]["lr_step"] == 3 and found["meta"]["optimizer_step"] == 3, found["meta"]
other = found["meta"]["torch"]["other"]
assert len(other) == 12 * 12 + 5 and "optimizer.param_groups.norm.weight.betas" in other, other'
    run ckpt convert run again --format dcp
    cmp theirs/.metadata again/.metadata && cmp theirs/__0_0.distcp again/__0_0.distcp || not_as "other bytes"
    run ckpt convert theirs back # its assets identify the model
    expect_ok
    run ckpt consolidate run weights
    run ckpt diff back weights
    expect_out "^EQUAL"
    run ckpt consolidate run small --format dcp --dtype bfloat16 --max-shard-size 512
    expect_ok
    run ckpt verify small
    expect_out "^OK .* 12 tensors"
    run ckpt inspect small --json
    expect_json 'assert len(found["files"]) > 4 and {t["dtype"] for t in found["tensors"]} == {"BF16"}, found'
    run ckpt convert run theirs --format hf
    expect_error 2 "takes only --format dcp"
}

# object KEY: the Python object of a folder "theirs", without PyTorch.
object() {
    python3 - "$1" <<'EOF2' || not_as "cannot read $1"
import io, pickle, sys, zipfile
class Thing:
    def __new__(cls, *args):
        return super().__new__(cls)
    def __setstate__(self, state):
        self.state = state
    def __hash__(self):
        return id(self)
class Reader(pickle.Unpickler):
    def find_class(self, module, name):
        return Thing
for index, place in Reader(open("theirs/.metadata", "rb")).load().state["storage_data"].items():
    if index.state["fqn"] == sys.argv[1]:
        file = open("theirs/" + place.state["relative_path"], "rb")
        file.seek(place.state["offset"])
        archive = zipfile.ZipFile(io.BytesIO(file.read(place.state["length"])))
        assert archive.testzip() is None
        print(pickle.loads(archive.read("archive/data.pkl")))
EOF2
}

case_it_has_the_options_of_the_optimizer_and_the_rate_of_the_next_step() {
    make_tokens
    run train $model --training.steps=4 --checkpoint.enable --checkpoint.interval=3 --job.dump_folder=run \
        --lr_scheduler.warmup_steps=1 --lr_scheduler.decay_type=cosine --lr_scheduler.min_lr_factor=0.1 \
        --optimizer.lr=0.004 --optimizer.beta2=0.9 --optimizer.name=Adam \
        --optimizer.no_decay=norm --optimizer.lr_factors=wq=0.25
    expect_ok
    run ckpt convert run/checkpoint/step-3 theirs --format dcp
    expect_ok
    refuse_err .
    rate=$(python3 -c 'import json
records = [json.loads(line) for line in open("run/metrics.jsonl")]
print(*[r["lr"] for r in records if r["type"] == "step" and r["step"] == 4])')
    of=optimizer.param_groups
    while read -r key wanted; do
        found=$(object "$key")
        [ "$found" = "$wanted" ] || not_as "$key is $found, wanted $wanted"
    done <<EOF
$of.output.weight.lr $rate
$of.layers.0.attention.wq.weight.lr $(python3 -c "print($rate * 0.25)")
$of.layers.0.attention.wq.weight.initial_lr 0.001
$of.output.weight.betas (0.9, 0.9)
$of.output.weight.eps 1e-08
$of.output.weight.weight_decay 0.1
$of.norm.weight.weight_decay 0.0
$of.norm.weight.decoupled_weight_decay False
$of.norm.weight.fused True
lr_scheduler.last_epoch 3
lr_scheduler._step_count 4
lr_scheduler.base_lrs [0.004]
lr_scheduler._last_lr [$rate]
train_state.step 3
train_state.ntokens_seen $((3 * 8 * 32))
EOF
}

case_a_tied_weight_has_both_names() {
    make_tokens
    run train $model --model.tie_embeddings --training.steps=2 --checkpoint.enable --job.dump_folder=run
    expect_ok
    run ckpt convert run theirs --format dcp
    expect_ok
    run ckpt inspect theirs --json
    expect_json '
names = {t["name"] for t in found["tensors"]}
assert {"output.weight", "tok_embeddings.weight"} < names and "state.output.weight.exp_avg" not in names, names'
    run ckpt verify --deep theirs
    expect_ok
    run train $model --model.tie_embeddings --training.steps=2 --checkpoint.enable --job.dump_folder=again \
        --checkpoint.initial_load_path=theirs --checkpoint.initial_load_model_only=false
    expect_ok
    run ckpt convert theirs back
    expect_ok
    run ckpt consolidate run weights
    run ckpt diff back weights
    expect_ok
    expect_out "^EQUAL"
}

case_a_hugging_face_folder_becomes_one_of_pytorch() {
    make_config
    run ckpt consolidate "$golden" hf --format hf --assets assets
    expect_ok
    run ckpt convert hf theirs --format dcp --dtype float32
    expect_ok
    expect_file theirs/model.json
    run ckpt convert "$golden" base --assets assets --dtype float32
    run ckpt diff theirs base
    expect_ok
    expect_out "^EQUAL: .* 12 tensors"
}

case_only_titans_own_folder_is_replaced() {
    run ckpt convert "$golden" theirs --format dcp
    expect_ok
    run ckpt convert "$golden" theirs --format dcp
    expect_error 2 "help: --force replaces it"
    run ckpt convert "$golden" theirs --format dcp --force
    expect_ok
    touch theirs/notes.txt
    run ckpt convert "$golden" theirs --format dcp --force
    expect_error 2 "--force will not replace it"
    copy_golden
    run ckpt convert "$golden" folder --format dcp --force
    expect_error 2 "--force will not replace it"
    run ckpt verify folder
    expect_ok
}

case_a_run_goes_on_from_what_titan_wrote_for_pytorch() {
    make_tokens
    run ckpt convert "$golden" theirs --format dcp
    expect_ok
    run ckpt diff "$golden" theirs
    expect_ok
    expect_out "^EQUAL: .* 36 tensors"
    for from in theirs "$golden"; do
        run train $model --training.steps=9 --checkpoint.enable --job.dump_folder=run-${from##*/} \
            --checkpoint.initial_load_path="$from" --checkpoint.initial_load_model_only=false
        expect_ok
    done
    run ckpt diff run-theirs run-torch_dcp
    expect_out "^EQUAL"
}

case_a_run_starts_from_its_weights() {
    make_tokens
    run_ranks 3 train $model --training.global_batch_size=6 --training.steps=1 --checkpoint.enable \
        --job.dump_folder=three --checkpoint.initial_load_path="$golden" --optimizer.lr=0
    expect_ok
    run ckpt diff three "$golden" --json
    expect_json '
of_model = {t["name"]: t["why"] for t in found["different"] if t["group"] == "model"}
assert of_model == {"layers.0.attention.wv.weight": "dtype", "layers.0.ffn_norm.weight": "dtype"}, of_model'
}

case_a_run_goes_on_from_its_optimizer_and_step() {
    make_tokens
    for ranks in 1 4; do
        run_ranks $ranks train $model --training.steps=9 --checkpoint.enable --job.dump_folder=run-$ranks \
            --checkpoint.initial_load_path="$golden" --checkpoint.initial_load_model_only=false
        expect_ok
        expect_err "the position of its data loader is not used"
        expect_err "training starts at step 8"
    done
    run ckpt diff run-1 run-4
    expect_ok
    expect_out "^EQUAL"
    run ckpt inspect run-4 --json
    expect_json 'assert found["step"] == 9 and found["tokens"] == 896 + 2 * 8 * 32 and found["sample_cursor"] == 16, found'
}

case_a_run_of_torchtitan_means_its_newest_step() {
    mkdir -p theirs/checkpoint
    cp -r "$golden" theirs/checkpoint/step-5
    cp -r "$golden" theirs/checkpoint/step-10
    for path in theirs theirs/checkpoint; do
        run ckpt inspect $path --json
        expect_ok
        expect_json 'assert found["kind"] == "dcp" and found["path"] == "theirs/checkpoint/step-10", found'
    done
    run ckpt list theirs
    expect_ok
    expect_out "^5 +committed .* 896 "
    expect_out "^10 +committed .* 896 "
    make_tokens
    run_ranks 2 train $model --training.steps=1 --checkpoint.initial_load_path=theirs
    expect_ok
    run train $model --training.steps=20 --checkpoint.enable --job.dump_folder=theirs
    expect_error 2 "'theirs/checkpoint/step-5' is a PyTorch checkpoint" "another --job.dump_folder"
    truncate -s -1 theirs/checkpoint/step-10/__3_0.distcp
    run ckpt inspect theirs --json
    expect_ok
    expect_err "skipping the damaged checkpoint 'theirs/checkpoint/step-10': .*__3_0.distcp' is truncated"
    expect_json 'assert found["path"] == "theirs/checkpoint/step-5", found'
    run ckpt verify theirs
    expect_bad "is truncated" # the newest one, even if it is damaged
    rm theirs/checkpoint/step-10/.metadata # PyTorch writes this file last
    run ckpt inspect theirs
    expect_ok
    expect_err "skipping the damaged checkpoint 'theirs/checkpoint/step-10'"
}

case_steps_of_pytorch_are_not_called_damaged() {
    mkdir -p theirs/checkpoint
    cp -r "$golden" theirs/checkpoint/step-5
    cp -r "$golden" theirs/checkpoint/step-10
    run ckpt gc theirs --keep 1
    expect_ok
    expect_out ": 0 B freed; 0 good steps kept, 2 of PyTorch left alone$"
    run ckpt gc theirs --keep 1 --json
    expect_json 'assert found["pytorch"] == [10, 5] and not found["damaged"] and not found["removed"], found'
    run ckpt rollback theirs 5
    expect_error 2 "'theirs/checkpoint/step-10' is a PyTorch checkpoint, which rollback neither returns to nor sets"
    run ckpt rollback theirs 10
    expect_error 2 "'theirs/checkpoint/step-10' is a PyTorch checkpoint"
    run ckpt rollback theirs 7
    expect_error 2 "step-10' is a PyTorch checkpoint"
    [ -d theirs/checkpoint/step-5 ] && [ -d theirs/checkpoint/step-10 ] || not_as "a step was set aside"
}

case_another_model_is_refused() {
    make_tokens
    run train $model --model.ffn_dim=24 --training.steps=1 --checkpoint.initial_load_path="$golden"
    expect_error 3 "does not fit this model" "layers.0.feed_forward.w1.weight F32\[0:16, 0:8\], wanted F32\[0:24, 0:8\]"
    run train $model --model.tie_embeddings=true --training.steps=1 --checkpoint.initial_load_path="$golden"
    expect_error 3 "tied to its embedding, but the checkpoint has another matrix as 'output.weight'" \
        "help: .*model.tie_embeddings: false"
}

copy_golden() {
    rm -rf folder
    cp -r "$golden" folder
}

# not_whole PATTERN: checks that every command that reads values ends with one message and exit code 3.
not_whole() {
    run ckpt consolidate folder weights
    expect_error 3 "$1"
    refuse_file weights
    run ckpt verify folder
    expect_bad "$1"
}

# refused PATTERN: the same for inspect.
refused() {
    run ckpt inspect folder
    expect_error 3 "$1"
    not_whole "$1"
}

case_damaged_files_are_refused() {
    copy_golden
    rm folder/__1_0.distcp
    refused "missing file 'folder/__1_0.distcp'"
    copy_golden
    truncate -s -1 folder/__2_0.distcp
    refused "'folder/__2_0.distcp' is truncated: it has [0-9]+ bytes, [0-9]+ expected"
    copy_golden
    printf x >>folder/__0_0.distcp
    refused "'folder/__0_0.distcp' has [0-9]+ bytes too many"
    copy_golden
    truncate -s 3000 folder/.metadata
    refused "'folder/.metadata' is damaged: its pickle is truncated"
    copy_golden
    : >folder/.metadata
    refused "'folder/.metadata' is damaged: its pickle is truncated"
    copy_golden
    cp folder/__0_0.distcp folder/.metadata
    refused "'folder/.metadata': its pickle has the opcode PERSID"
    copy_golden
    python3 - <<'EOF2'
data = bytearray(open("folder/__0_0.distcp", "rb").read())
at = data.index(b"data/0FB") # the first piece's bytes begin after its header, at a multiple of 64
data[(at // 64 + 2) * 64] ^= 4
open("folder/__0_0.distcp", "wb").write(data)
EOF2
    not_whole "has checksum [0-9a-f]+, [0-9a-f]+ expected"
    make_config
    for target in "--format dcp" "--assets assets"; do
        run ckpt convert folder weights $target
        expect_error 3 "has checksum [0-9a-f]+, [0-9a-f]+ expected"
        refuse_file weights
    done
    make_tokens
    run train $model --training.steps=1 --checkpoint.initial_load_path=folder
    expect_error 3 "has checksum [0-9a-f]+, [0-9a-f]+ expected"
}

# forge STATEMENTS: changes the metadata (m, PyTorch's object as plain Python) and writes it again.
forge() {
    copy_golden
    python3 - "$1" <<'EOF2' || not_as "cannot forge the metadata"
import pickle, sys, types
class Thing:
    def __new__(cls, *args):
        self = super().__new__(cls)
        self.args = args
        return self
    def __setstate__(self, state):
        self.state = state
    def __reduce__(self):
        return (self.__class__, self.args) + ((self.state,) if hasattr(self, "state") else ())
    def __hash__(self):
        return hash(repr(self))
    def __eq__(self, other):
        return self is other
    def __repr__(self):
        return repr((self.args, getattr(self, "state", None)))
class Reader(pickle.Unpickler):
    def find_class(self, module, name):
        made = type(name, (Thing,), {"__module__": module, "__qualname__": name})
        parent = sys.modules.setdefault(module, types.ModuleType(module))
        if not hasattr(parent, name):
            setattr(parent, name, made)
        return getattr(parent, name)
m = Reader(open("folder/.metadata", "rb")).load()
exec(sys.argv[1])
pickle.dump(m, open("folder/.metadata", "wb"), 4)
EOF2
}

# rewrap MODEL OPTIMIZER [STATEMENTS]: the golden folder with its keys in other dictionaries. MODEL and OPTIMIZER are
# Python tuples, their paths; `plain` as STATEMENT: the keys have been joined by hand, so paths have one name.
rewrap() {
    forge "
model, optimizer, plain = $1, $2, '${3-}' == 'plain'
def path_of(old):
    if old[0] == 'optimizer':
        return optimizer + old[1:]
    return model + old if len(old) == 1 else old
old = m.state['planner_data']
new = {key: path_of(path) for key, path in old.items()}
name = {key: '.'.join(map(str, path)) for key, path in new.items()}
m.state['planner_data'] = {name[key]: (name[key],) if plain else new[key] for key in old}
m.state['state_dict_metadata'] = {name[key]: value for key, value in m.state['state_dict_metadata'].items()}
for index in m.state['storage_data']:
    index.state['fqn'] = name[index.state['fqn']]
m.state['storage_data'] = dict(m.state['storage_data'].items())
"
}

case_model_and_optimizer_are_told_by_what_they_have() {
    make_tokens
    while read -r of_model optimizer plain; do
        rewrap "$of_model" "$optimizer" "$plain"
        run ckpt inspect folder --json
        expect_ok
        expect_json "assert found['model']['tensors'] == 12 and found['optimizer']['tensors'] == 24, found
assert found['parameters'] == 1256 and found['step'] == 7, found"
        run ckpt verify --deep folder
        expect_out "^OK .* 36 tensors, 4 files, .* 75 checksums match"
        run ckpt diff folder "$golden"
        expect_out "^EQUAL: .* 36 tensors"
        rm -rf weights
        run ckpt consolidate folder weights
        expect_out ": 12 tensors"
        run ckpt diff weights "$golden"
        expect_out "^EQUAL: .* 12 tensors"
        run train $model --training.steps=8 --checkpoint.enable --job.dump_folder=run --overwrite \
            --checkpoint.initial_load_path=folder --checkpoint.initial_load_model_only=false
        expect_ok
        expect_err "training starts at step 8"
    done <<'EOF2'
("model",) ("optim",)
("app","model") ("app","optim")
("model",) ("optim",) plain
("app","model") ("app","optim") plain
("model",0) ("optims",0)
("state_dict",) ("optimizer_0",)
("my","net") ("my","sgd")
() ()
EOF2
}

# The tensors of one model; or all tensors of both, if nothing says which model is meant.
case_a_second_model_is_not_taken_for_weights_of_the_first() {
    rewrap '("model",)' '("optim",)'
    again='
import copy
names = {k: k.replace("model.", "ema.", 1) for k in m.state["planner_data"] if k.startswith("model.")}
for old, new in names.items():
    m.state["planner_data"][new] = ("ema",) + m.state["planner_data"][old][1:]
    m.state["state_dict_metadata"][new] = m.state["state_dict_metadata"][old]
for index, place in list(m.state["storage_data"].items()):
    if index.state["fqn"] in names:
        other = copy.copy(index)
        other.state = dict(index.state, fqn=names[index.state["fqn"]])
        m.state["storage_data"][other] = place'
    mv folder wrapped
    saved=$golden
    golden=wrapped
    forge "$again"
    golden=$saved
    run ckpt inspect folder --json
    expect_json 'assert found["model"]["tensors"] == 12 and "ema.norm.weight" in found["meta"]["torch"]["other"], found'
    run ckpt consolidate folder weights
    expect_err "12 tensors of 'folder' are neither the model's nor its optimizer's, .* 'ema.tok_embeddings.weight'"
    run ckpt diff weights "$golden"
    expect_out "^EQUAL"
}

case_an_optimizer_of_numbers_is_no_optimizer_of_names() {
    make_tokens
    forge '
number = {}
for key in [k for k in m.state["planner_data"] if k.startswith("optimizer.state.")]:
    name, last = key[len("optimizer.state."):].rsplit(".", 1)
    new = "optimizer.state.%d.%s" % (number.setdefault(name, len(number)), last)
    m.state["planner_data"][new] = m.state["planner_data"].pop(key)
    m.state["state_dict_metadata"][new] = m.state["state_dict_metadata"].pop(key)
    for index in m.state["storage_data"]:
        if index.state["fqn"] == key:
            index.state["fqn"] = new'
    run ckpt inspect folder --json
    expect_json 'assert found["model"]["tensors"] == 12 and found["optimizer"]["tensors"] == 24, found'
    run train $model --training.steps=9 --checkpoint.initial_load_path=folder \
        --checkpoint.initial_load_model_only=false
    expect_error 3 "24 too many: 'state.0.exp_avg'" "its optimizer numbers the parameters"
    run train $model --training.steps=1 --checkpoint.initial_load_path=folder
    expect_ok
}

forms=$TITAN_SOURCE/tests/interop/torch_forms

# A folder that PyTorch has written is intact: titan reads all plain types, and dimensions in any memory order.
case_every_plain_type_and_order_is_read() {
    run ckpt inspect "$forms/read" --json
    expect_ok
    expect_json '
assert {t["name"]: t["dtype"] for t in found["tensors"]} == {
    "norm.weight": "F32", "transposed": "F32", "permuted": "I16", "bool": "BOOL", "uint8": "U8", "uint16": "U16",
    "uint32": "U32", "uint64": "U64", "complex128": "C128", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ"}, found
assert found["meta"]["torch"]["unread"] == []'
    run ckpt verify --deep "$forms/read"
    expect_ok
    expect_out "^OK .* 13 tensors, .* 13 checksums match"
    run ckpt convert "$forms/read" theirs --format dcp
    expect_ok
    run ckpt diff theirs "$forms/read"
    expect_ok
    expect_out "^EQUAL: .* 13 tensors"
    run ckpt consolidate "$forms/read" weights
    expect_error 3 "tensor 'complex128' is complex128, which safetensors files cannot store"
    python3 - <<'EOF2' || not_as "the orders are wrong"
import struct
data = open("theirs/__0_0.distcp", "rb").read()
assert struct.pack("<24f", *range(24)) in data and struct.pack("<24h", *range(24)) in data
EOF2
}

case_what_is_not_read_is_named_and_not_called_damaged() {
    run ckpt inspect "$forms/unread"
    expect_ok
    expect_out "^ *model +1 tensors"
    expect_out "not read +conjugate is stored as its conjugate or its negative; save it with .resolve_conj"
    expect_out "not read +half has the type complex32; save it as another"
    expect_out "not read +fours has the type float4_e2m1fn_x2"
    expect_out "not read +deep has more than 8 dimensions"
    run ckpt inspect "$forms/zstd"
    expect_out "not read +norm.weight was saved with an extension stream.zstd/1; load it in PyTorch"
    for folder in unread zstd; do
        run ckpt verify --deep "$forms/$folder"
        [ "$code" = 3 ] || not_as "wanted exit code 3"
        expect_out "^UNKNOWN .*/$folder: "
        expect_out "^unreadable: .*: titan does not read "
        refuse_out "BAD"
        for what in "consolidate $forms/$folder weights" "convert $forms/$folder weights --format dcp" \
            "diff $forms/$folder $forms/read"; do
            run ckpt $what
            expect_error 3 "$folder': titan does not read '[a-z.]+', which (is stored as its conj|has|was saved)" "help: "
        done
        refuse_file weights
    done
    make_tokens
    run train $model --training.steps=1 --checkpoint.initial_load_path="$forms/zstd"
    expect_error 3 "titan does not read 'norm.weight', which was saved with an extension stream.zstd/1"
}

case_metadata_that_does_not_fit_is_refused() {
    forge 'del m.state["state_dict_metadata"]["norm.weight"].state["chunks"][:]'
    not_whole "tensor 'norm.weight': no file holds \[0:8\] of \[0:8\]"
    forge 'del m.state["state_dict_metadata"]["output.weight"].state["chunks"][1]'
    not_whole "tensor 'output.weight': no file holds \[0:21, 0:8\] of \[0:41, 0:8\]"
    forge 'c = m.state["state_dict_metadata"]["output.weight"].state["chunks"]; c.append(c[0])'
    refused "it lists the same piece twice for 'output.weight'"
    forge 'next(iter(m.state["storage_data"].values())).state["relative_path"] = "../secret"'
    refused "a piece is in a file that does not belong to the folder: '../secret'"
    forge 'm.state["state_dict_metadata"]["norm.weight"].state["properties"].state = ("float",) * 6'
    refused "it does not give the type of tensor 'norm.weight'"
    forge 'm.state["storage_data"].clear()'
    refused "storage_data lacks a piece of"
    forge 'm.state["storage_data"] = None'
    refused "it has no storage_data"
    forge 'm = {"state_dict_metadata": {}}'
    refused "is not the metadata of a PyTorch checkpoint"
}

case_nothing_is_executed() {
    copy_golden
    python3 - <<'EOF2'
import os, pickle
class Evil:
    def __reduce__(self):
        return os.system, ("touch executed",)
pickle.dump(Evil(), open("folder/.metadata", "wb"), 4)
EOF2
    refused "its pickle asks for 'posix.system', which is not part of a checkpoint of tensors; nothing was executed"
    refuse_file executed
}

run_cases

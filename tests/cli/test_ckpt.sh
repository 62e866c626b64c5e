#!/bin/bash
# SPDX-License-Identifier: MIT titan ckpt on titan's own checkpoints, intact and damaged. test_hf.sh tests Hugging
# Face's.
. "$(dirname "$0")/lib.sh"

make_run() {
    make_corpus
    run train $tiny --checkpoint.enable --checkpoint.interval=2 --training.steps=4
    expect_ok
}

case_list_names_the_steps() {
    make_run
    run ckpt list run
    expect_ok
    expect_out "step-2|(^| )2( |$)"
    expect_out "step-4|(^| )4( |$)"
    refuse_err .
}

case_inspect_of_a_run_means_its_newest_step() {
    make_run
    run ckpt inspect run --json
    expect_ok
    python3 - <<'EOF' >problem.txt 2>&1 || not_as "the JSON of ckpt inspect: $(cat problem.txt)"
import json, os
checkpoint = json.load(open("out"))
assert checkpoint["step"] == 4, checkpoint["step"]
assert checkpoint["tokens"] == 4 * 4 * 32, checkpoint["tokens"]
assert checkpoint["mesh"]["dp_shard"] == 1, checkpoint["mesh"]
assert checkpoint["policy"] == "all"
for file in checkpoint["files"]:
    assert os.path.getsize("run/checkpoint/step-4/" + file["path"]) == file["bytes"], file
tensors = {tensor["name"]: tensor for tensor in checkpoint["tensors"]}
names = [name for name in tensors if name.endswith("tok_embeddings.weight") and "state." not in name]
assert names and tensors[names[0]]["shape"] == [2048, 64] and tensors[names[0]]["dtype"] == "F32", tensors.keys()
assert any("layers.1.attention.wq.weight" in name for name in tensors)
EOF
}

case_inspect_prints_text_without_json() {
    make_run
    run ckpt inspect run/checkpoint/step-2
    expect_ok
    expect_out "step"
    expect_out "^model +layers.0-1.attention.wq.weight +F32 +\\[64, 64\\] +1 +2$"
    expect_out "^model +tok_embeddings.weight "
    refuse_out "^optim"
    expect_out "^and [0-9]+ tensors of the optimizer \\(--moments lists them"
    run ckpt inspect run/checkpoint/step-2 --moments
    expect_out "^optim +.*layers.0-1.attention.wq.weight.*exp_avg +F32"
    run ckpt inspect run/checkpoint/step-2 --all
    expect_out "^model +layers.0.attention.wq.weight +F32 +\\[64, 64\\] +1$"
    expect_out "^optim +.*layers.1.attention.wq.weight.*exp_avg"
    TITAN_COLUMNS=60 run ckpt inspect run/checkpoint/step-2
    expect_out "^left out: group, chunks"
    expect_out "^layers.0-1.attention.wq.weight +F32 "
}

case_the_steps_of_all_runs_are_one_table() {
    make_run
    mkdir -p outputs/none
    cp -r run outputs/two
    mv run outputs/one
    echo '{"type":"run"}' >outputs/none/metrics.jsonl
    run ckpt list outputs
    expect_ok
    expect_out "^run +step +state +age +size +tokens +world +policy +mesh$"
    expect_out "^outputs/one +2 +committed "
    expect_out "^outputs/two +4 +committed "
    expect_out "^outputs/none +.*no checkpoint"
    run ckpt inspect outputs
    expect_error 3 "'outputs' is a folder of runs" "name a run, such as 'outputs/one'"
    run ckpt list outputs --json
    expect_json '
assert [len(r["steps"]) for r in found if "steps" in r] == [2, 2] and "error" in found[0], found'
    TITAN_COLUMNS=60 run ckpt list outputs
    expect_out "^left out: "
    awk 'length > 60 { exit 1 }' out || not_as "wider than the terminal"
}

case_verify_passes_an_intact_checkpoint() {
    make_run
    run ckpt verify run/checkpoint/step-2
    expect_ok
    TITAN_COLUMNS=60,60 run ckpt verify run
    expect_ok
    refuse_err .
    expect_out "^   .*checksums match"
    awk 'length > 60 { exit 1 }' out || not_as "lines of verify are longer than the terminal"
}

case_verify_finds_a_missing_file() {
    make_run
    rm run/checkpoint/step-4/optim/*.safetensors
    run ckpt verify run/checkpoint/step-4
    expect_bad "optim"
}

case_verify_reads_the_assets_too() {
    make_run
    assets=run/checkpoint/step-4/assets
    cp -r $assets kept
    printf 'x' | dd of=$assets/tokenizer.json bs=1 seek=5000 conv=notrunc 2>/dev/null
    run ckpt verify run
    expect_bad "^BAD crc: .*assets/tokenizer.json' is damaged"
    for command in "ckpt consolidate run weights" "ckpt consolidate run weights --format hf" "generate run --prompt a" \
        "eval run --dataset text --dataset_path corpus.txt"; do
        run $command
        expect_error 3 "assets/tokenizer.json' is damaged"
    done
    refuse_file weights
    run train $tiny --checkpoint.enable --training.steps=5 # the weights are all it needs
    expect_ok
    cp kept/* $assets/
    truncate -s -1 $assets/model.json
    run ckpt verify run/checkpoint/step-4 --quick
    expect_bad "^BAD truncated: .*assets/model.json"
    rm $assets/model.json
    run ckpt verify run/checkpoint/step-4
    expect_bad "^BAD missing: .*assets/model.json"
    cp kept/* $assets/
    run ckpt verify run/checkpoint/step-4
    expect_ok
}

case_verify_finds_a_damaged_manifest() {
    make_run
    sed -i 's/"step": 4/"step": 5/' run/checkpoint/step-4/manifest.json
    run ckpt verify run/checkpoint/step-4
    expect_bad "manifest"
}

# A file system allows any bytes; JSON does not.
case_a_path_that_is_not_utf8() {
    make_run
    mv run $'r\xffn' 2>/dev/null || skip "this file system refuses such names"
    for command in list inspect verify gc; do
        run ckpt $command $'r\xffn' --json
        expect_ok
        expect_json "assert '\ufffd' in str(found), found"
    done
    run ckpt list $'r\xffn'
    expect_out "r.*n/checkpoint$"
    printf 'xy' | dd of=$'r\xffn/checkpoint/step-4/manifest.json' bs=1 seek=40 conv=notrunc 2>/dev/null
    run ckpt verify $'r\xffn/checkpoint/step-4'
    expect_error 3 "manifest.json' is damaged"
}

case_paths_without_a_checkpoint_are_refused() {
    for verb in list inspect verify; do
        run ckpt $verb nosuch
        [ "$code" = 2 ] || [ "$code" = 3 ] || not_as "expected exit code 2 or 3"
        expect_err "nosuch"
    done
    mkdir empty
    run ckpt inspect empty
    [ "$code" = 2 ] || [ "$code" = 3 ] || not_as "expected exit code 2 or 3"
    expect_err "empty"
}

case_consolidate_makes_whole_tensors() {
    make_corpus
    run_ranks 2 train $tiny --checkpoint.enable
    expect_ok
    run ckpt consolidate run/checkpoint/step-3 weights
    expect_ok
    python3 - <<'EOF' >problem.txt 2>&1 || not_as "consolidated files: $(cat problem.txt)"
import glob, json, struct
shapes = {}
for path in glob.glob("weights/**/*.safetensors", recursive=True):
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        shapes.update({name: entry["shape"] for name, entry in header.items() if name != "__metadata__"})
assert shapes["tok_embeddings.weight"] == [2048, 64], shapes
assert shapes["layers.0.feed_forward.w1.weight"] == [128, 64], shapes
assert not any("exp_avg" in name for name in shapes), shapes
EOF
    run ckpt inspect weights
    expect_ok
    expect_out "tok_embeddings.weight"
}

case_consolidated_weights_start_a_run() {
    make_run
    run ckpt consolidate run/checkpoint/step-4 weights
    expect_ok
    run train $tiny --job.dump_folder=second --checkpoint.initial_load_path=weights
    expect_ok
    expect_err "weights"
    # what is known of the run is there too, so that an export is that of the step, BOS and context included
    run ckpt consolidate run/checkpoint/step-4 direct --format hf
    expect_ok
    run ckpt consolidate weights later --format hf
    expect_ok
    diff -r direct later >found || not_as "the exports differ: $(head -5 found)"
    echo '{"config": 3}' >weights/titan.json
    run generate weights --prompt x
    expect_error 3 "'weights/titan.json' is not what titan writes there: it has no object 'config'" "help: remove it"
}

# The float32 values of each tensor in files that consolidate or average wrote.
values() {
    python3 - "$@" <<'EOF'
import json, struct, sys
for folder in sys.argv[1:]:
    data = open(folder + "/model.safetensors", "rb").read()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    del header["__metadata__"]
    tensors = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32", entry
        begin, end = entry["data_offsets"]
        tensors[name] = struct.unpack(f"<{(end - begin) // 4}f", data[8 + size + begin:8 + size + end])
    print(json.dumps(tensors))
EOF
}

case_average_is_the_mean_of_the_weights() {
    make_corpus
    run_ranks 2 train $tiny --checkpoint.enable --checkpoint.interval=1
    expect_ok
    for step in 1 2 3; do
        run ckpt consolidate run/checkpoint/step-$step weights$step
        expect_ok
    done
    run ckpt average run/checkpoint/step-1 weights2 run --out mean
    expect_ok
    expect_out "^mean of 3 checkpoints: .*step-1 -> mean: [0-9]+ tensors, 1 file"
    run ckpt average run/checkpoint/step-1 run/checkpoint/step-3 --weights 3,1 --out mixed --max-shard-size 1GiB --json
    expect_ok
    run ckpt average weights2 weights2 weights2 --weights 1,1,0.5 --out same
    expect_ok
    values weights1 weights2 weights3 mean mixed same >tensors
    python3 - <<'EOF' >problem.txt 2>&1 || not_as "averaged values: $(cat problem.txt)"
import json, struct
def single(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]
a, b, c, mean, mixed, same = map(json.loads, open("tensors"))
assert a.keys() == mean.keys() == mixed.keys() and a != c and same == b
for name in a:
    for x, y, z, m, k in zip(a[name], b[name], c[name], mean[name], mixed[name]):
        assert m == single((x + y + z) / 3), (name, x, y, z, m)
        assert k == single((3 * x + z) / 4), (name, x, z, k)
EOF
    run train $tiny --job.dump_folder=second --checkpoint.initial_load_path=mean
    expect_ok
    expect_err "from mean"
    run generate mean --prompt In --max-new-tokens 2
    expect_ok
    run ckpt average run/checkpoint/step-1 run/checkpoint/step-3 --out hf --format hf
    expect_ok
    run ckpt consolidate mean hf2 --format hf
    expect_ok
    [ -f hf/config.json ] || not_as "no config.json of Hugging Face"
    for folder in hf hf2; do # a folder in titan's format does not record the sequence length of training
        grep -v max_position_embeddings $folder/config.json >$folder.config
    done
    cmp hf.config hf2.config || not_as "the config.json of Hugging Face"
    run ckpt average weights1 weights2 --out hf3 --format hf --dtype bfloat16
    expect_ok
}

case_average_refuses_what_has_no_mean() {
    make_run
    run train $tiny --model.ffn_dim=64 --checkpoint.enable --job.dump_folder=other
    expect_ok
    run train $tiny --model.n_layers=1 --checkpoint.enable --job.dump_folder=short
    expect_ok
    run ckpt average run other --out mean
    expect_error 3 "tensor 'layers.0.feed_forward.w1.weight' is \[0:64, 0:64\] in 'other/.*', and .*128.* in 'run/"
    run ckpt average run short --out mean
    expect_error 3 "'short/.*' has tensor .* where 'run/.*': they are not of one model"
    run ckpt average run nosuch --out mean
    expect_error 3 "nosuch"
    run ckpt average run --out mean
    expect_error 2 "'titan ckpt average' needs two paths"
    run ckpt average run other
    expect_error 2 "needs a folder to write"
    run ckpt average run other --out mean --weights 1
    expect_error 2 "--weights '1' has 1 number for 2 checkpoints"
    run ckpt average run other --out mean --weights 1,x
    expect_error 2 "'x' does not begin with a number that is at least 0"
    run ckpt average run other --out mean --weights 0,0
    expect_error 2 "the sum is 0"
    cp -r run damaged
    python3 - damaged/checkpoint/step-4/model/*.safetensors <<'EOF'
import sys
with open(sys.argv[1], "r+b") as file:
    file.seek(-2, 2)
    byte = file.read(1)
    file.seek(-2, 2)
    file.write(bytes([byte[0] ^ 1]))
EOF
    run ckpt average run damaged/checkpoint/step-4 --out mean
    expect_error 3 "damaged/checkpoint/step-4"
    run ckpt average run run --out run
    expect_error 2 "run"
    [ ! -e mean ] || not_as "a folder of a refused mean"
}

case_consolidate_does_not_overwrite() {
    make_run
    mkdir weights
    echo precious >weights/file
    run ckpt consolidate run/checkpoint/step-4 weights
    expect_error 2 "weights"
    [ "$(cat weights/file)" = precious ] || not_as "the target was changed"
}

case_nothing_replaces_what_it_is_made_from() {
    make_run
    run ckpt consolidate run hf --format hf
    expect_ok
    cp -r hf before
    for source in hf ./hf/../hf/ hf/model.safetensors; do
        for verb in "convert --dtype bfloat16" "consolidate --dtype bfloat16"; do
            run ckpt $verb $source hf --force
            expect_error 2 "'hf' would replace" "help: choose another folder"
            diff -r before hf >diff.txt || not_as "the source was changed: $(cat diff.txt)"
        done
    done
    run ckpt convert hf step
    expect_ok
    run ckpt convert step step --force
    expect_error 2 "'step' would replace"
    run ckpt verify step
    expect_ok
}

case_force_is_suggested_only_where_it_helps() {
    make_run
    run ckpt consolidate run weights
    expect_ok
    run ckpt consolidate run weights
    expect_error 2 "help: --force replaces it"
    for target in run run/checkpoint/step-2; do
        run ckpt consolidate run $target
        expect_error 2 "'$target' exists and is not empty" "help: choose another folder"
    done
}

case_damage_in_many_places_is_one_report() {
    make_run
    truncate -s -1 run/checkpoint/step-*/optim/*
    run ckpt inspect run
    expect_error 3 "none of the 2 checkpoints in 'run/checkpoint' is intact; the oldest: 'run/checkpoint/step-2/optim/.* expected"
}

case_consolidate_of_a_damaged_step_writes_nothing() {
    make_run
    truncate -s -100 run/checkpoint/step-4/model/*.safetensors
    run ckpt consolidate run/checkpoint/step-4 weights
    expect_error 3 "step-4"
    refuse_file weights
}

case_list_shows_the_state_of_every_step() {
    make_run
    truncate -s -1 run/checkpoint/step-2/model/*.safetensors
    cp -r run/checkpoint/step-2 run/checkpoint/.tmp-step-6-dead
    run ckpt list run
    expect_ok
    expect_out "^2 .*damaged"
    expect_out "model/shard-00001.* bytes, .* expected"
    expect_out "^4 .*committed .* s  *[0-9.]+ MiB .* 1  all"
    expect_out "^.tmp-step-6-dead .*temporary"
    run ckpt list run --json
    python3 - <<'EOF' >problem.txt 2>&1 || not_as "the JSON of ckpt list: $(cat problem.txt)"
import json
found = json.load(open("out"))
assert [(s["step"], s["state"], s["good"]) for s in found["steps"]] == [(2, "damaged", False), (4, "committed", True)]
assert all(s["age_s"] >= 0 and s["world"] == 1 and s["policy"] == "all" for s in found["steps"]), found
(left,) = found["leftovers"]
assert left["name"] == ".tmp-step-6-dead" and left["state"] == "temporary" and left["bytes"] > 1000000, left
EOF
}

case_statistics_are_of_the_values() {
    make_run
    run ckpt inspect run --stats --json
    expect_ok
    python3 - <<'EOF' >problem.txt 2>&1 || not_as "statistics: $(cat problem.txt)"
import array, glob, json, math, struct
(path,) = glob.glob("run/checkpoint/step-4/model/*.safetensors")
data = open(path, "rb").read()
size = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8 : 8 + size])
for tensor in json.load(open("out"))["tensors"]:
    if tensor["group"] != "model":
        continue
    begin, end = (8 + size + at for at in header[tensor["name"]]["data_offsets"])
    values, stats = array.array("f", data[begin:end]), tensor["stats"]
    assert stats["min"] == min(values) and stats["max"] == max(values) and stats["nonfinite"] == 0, tensor
    assert math.isclose(stats["mean"], math.fsum(values) / len(values), abs_tol=1e-12), tensor
    assert math.isclose(stats["rms"], math.sqrt(math.fsum(v * v for v in values) / len(values)), rel_tol=1e-9), tensor
EOF
    run ckpt inspect run --stats
    expect_out "tensor .* min .* rms .* nonfinite"
}

case_inspect_names_a_git_lfs_pointer() {
    mkdir hf
    printf 'version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize 134\n' >hf/model.safetensors
    run ckpt inspect hf
    expect_error 3 "Git LFS pointer"
    run ckpt verify hf
    expect_bad "Git LFS pointer"
}

# foreign TYPE BITS: a folder with a tensor of that type, and one of F32.
foreign() {
    mkdir -p "$1"
    python3 - "$1" "$2" <<'EOF2'
import json, struct, sys
kind, size = sys.argv[1], int(sys.argv[2])
tensors = {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
           "x": {"dtype": kind, "shape": [2, 4], "data_offsets": [8, 8 + size]}}
header = json.dumps(tensors).encode()
open(f"{kind}/model.safetensors", "wb").write(struct.pack("<Q", len(header)) + header + bytes(range(8 + size)))
EOF2
}

case_types_of_others_are_read_or_named_but_not_damaged() {
    while read -r type bits; do
        foreign "$type" "$bits"
        run ckpt verify --deep "$type"
        expect_out "^OK .* 2 tensors"
        run ckpt diff "$type" "$type"
        expect_out "^EQUAL"
        rm -rf weights
        run ckpt consolidate "$type" weights
        expect_ok
        run ckpt diff "$type" weights
        expect_out "^EQUAL"
    done <<'EOF2'
F8_E4M3 8
F8_E8M0 8
U16 16
C64 64
EOF2
    foreign F4 4
    run ckpt verify --deep F4
    expect_out "^OK .* 2 tensors"
    for what in "consolidate F4 made" "convert F4 made --format dcp" "diff F4 F4"; do
        run ckpt $what
        expect_error 3 "tensor 'x' is F4, which cannot be (read|written for PyTorch)" "unpack or dequantize"
        refuse_file made
    done
    foreign F3_NEW 8
    for what in "inspect F3_NEW" "consolidate F3_NEW made" "diff F3_NEW F3_NEW"; do
        run ckpt $what
        expect_error 3 "titan does not read the type 'F3_NEW' of tensor 'x'"
    done
    run ckpt verify F3_NEW
    expect_out "^UNKNOWN F3_NEW: "
    refuse_out "BAD"
}

# steers FILE...: whether a file contains a character that controls a terminal (line ends do not count).
steers() {
    python3 - "$@" <<'EOF2'
import sys, unicodedata
for name in sys.argv[1:]:
    text = open(name, "rb").read().decode("utf-8")
    for c in text:
        if c != "\n" and (unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")):
            sys.exit(0)
sys.exit(1)
EOF2
}

case_names_in_files_do_not_steer_the_terminal() {
    python3 - <<'EOF2'
import json, os, struct
name = "x\x1b[2J\x07\x7f\x9b1m\u202egpj\u2066<&\">"
def write(folder, kind, value):
    os.mkdir(folder)
    header = json.dumps({name: {"dtype": kind, "shape": [2], "data_offsets": [0, 8]}}).encode()
    with open(f"{folder}/model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1, value))
write("a", "F32", 2)
write("b", "F32", 3)
write("c", "I32", 3)
write("d", "NEW\x1b", 3)
os.mkdir("e")
json.dump({"weight_map": {name: "f\x1b\u202e.safetensors"}}, open("e/model.safetensors.index.json", "w"))
json.dump({"model_type": "m\x1b\u202e"}, open("e/config.json", "w"))
open("e/model.safetensors", "wb").write(open("a/model.safetensors", "rb").read())
EOF2
    for what in "inspect a" "inspect a --stats" "inspect a --json" "diff a b" "diff a b --json" "diff a c" "verify d" \
        "verify e" "inspect e" "convert e made" "consolidate d made" "convert a made"; do
        run ckpt $what
        ! steers out err || not_as "a control character reaches the terminal"
        case $what in
        *json)
            python3 -c 'import json, sys
text = json.dumps(json.load(open("out")))
assert "\\u001b[2J\\u0007\\u007f\\u009b1m\\u202egpj" in text, text' || not_as "another name in the JSON" ;;
        "inspect a" | "diff a b") expect_out 'x\\u001b\[2J\\u0007\\u007f\\u009b1m\\u202egpj\\u2066<&">' ;;
        esac
    done
}

case_quick_verify_reads_less() {
    make_run
    printf 'xxxx' | dd of="$(echo run/checkpoint/step-4/model/*.safetensors)" bs=1 seek=200000 conv=notrunc 2>/dev/null
    run ckpt verify run --quick
    expect_ok
    expect_out "checksums not compared"
    run ckpt verify run
    expect_bad "^BAD crc: .*model/shard-00001.*tensor '.*' \[[0-9]+:[0-9]+"
    run ckpt verify run/checkpoint/step-2 --deep
    expect_ok
    expect_out "63 checksums match, 63 digests match"
}

case_diff_does_not_depend_on_the_number_of_ranks() {
    make_corpus
    run train $tiny --checkpoint.enable
    run_ranks 2 train $tiny --checkpoint.enable --job.dump_folder=second
    expect_ok
    run ckpt diff run second
    expect_ok
    expect_out "^EQUAL: .* 63 tensors compared, 63 by their digests"
    expect_out "world: 1, 2 .not a difference"
    run ckpt consolidate second weights
    run ckpt diff run weights
    expect_ok
    expect_out "21 tensors compared, 0 by their digests"
    run train $tiny --checkpoint.enable --job.dump_folder=third --debug.seed=7
    run ckpt diff run third --json
    expect_code 1
    python3 - <<'EOF' >problem.txt 2>&1 || not_as "the JSON of ckpt diff: $(cat problem.txt)"
import json
found = json.load(open("out"))
assert found["equal"] is False and found["tensors"] == 63 and not found["only_a"] and not found["only_b"]
tensor = next(t for t in found["different"] if t["name"] == "tok_embeddings.weight")
assert tensor["why"] == "values" and tensor["first"] == [0, 0]
assert 0 < tensor["count"] <= tensor["elements"] == 2048 * 64
assert 0.1 < tensor["max_abs"] < 20, tensor
EOF
    run ckpt diff run third --atol 100
    expect_ok
}

case_diff_names_the_keys_that_explain_it() {
    make_corpus
    run train $tiny --checkpoint.enable
    run train $tiny --checkpoint.enable --job.dump_folder=other --model.rope_theta=10000 --dataloader.seed=7 \
        --metrics.log_freq=2
    expect_ok
    run ckpt diff run other
    expect_code 1
    expect_out "^  in the configurations:"
    expect_out "^  model.rope_theta: 500000.0, 10000.0$"
    expect_out "^  dataloader.seed: 42, 7$"
    refuse_out "log_freq|dump_folder"
    run ckpt diff run other --json
    expect_json 'assert {"key": "dataloader.seed", "a": 42, "b": 7} in found["config"], found["config"]'
    run ckpt diff run run --json
    expect_ok
    expect_json 'assert found["config"] == [], found["config"]'
}

case_gc_keeps_the_newest_intact_steps() {
    make_corpus
    run train $tiny --checkpoint.enable --checkpoint.interval=1 --training.steps=4
    mv run/checkpoint/step-2 run/checkpoint/.old-step-2-dead
    cp -r run/checkpoint/step-1 run/checkpoint/.tmp-step-9-dead
    truncate -s -1 run/checkpoint/step-4/model/*.safetensors
    find run/checkpoint | sort >before
    run ckpt gc run --keep 1 --dry-run
    expect_ok
    expect_out "would be removed: .tmp-step-9-dead"
    find run/checkpoint | sort >after
    expect_same before after
    run ckpt gc run --keep 1
    expect_ok
    expect_out "put back: .old-step-2-dead"
    expect_out "removed: step-1,"
    expect_out "removed: step-2,"
    expect_out "1 good step kept, 1 damaged left alone"
    [ "$(ls -A run/checkpoint | grep -v lock | tr '\n' ' ')" = "step-3 step-4 " ] ||
        not_as "left: $(ls -A run/checkpoint)"
    run ckpt gc run --keep 1
    expect_ok
    expect_out "^run/checkpoint: 0 B freed; 1 good step kept"
}

case_gc_leaves_a_folder_in_use_alone() {
    make_run
    exec 7>>run/checkpoint/.lock
    flock -n 7 || not_as "the lock of a finished run is taken"
    run ckpt gc run --keep 1
    expect_error 2 "another titan job"
    exec 7>&-
    expect_file run/checkpoint/step-2
}

# A job that keeps one step removes the newest step before a reader has read it, up to three times during one reading.
# (More often than titan looks again would depend on the speed of the machine.)
case_a_step_that_is_removed_while_it_is_read_is_called_that() {
    make_corpus
    run train $tiny --checkpoint.enable --checkpoint.interval=1 --checkpoint.keep_latest_k=0 --training.steps=6
    expect_ok
    python3 - "$TITAN" >problem.txt 2>&1 <<'EOF2' || not_as "$(cat problem.txt)"
import os, shutil, subprocess, sys, time
titan, steps = sys.argv[1], "run/checkpoint"
os.mkdir("stash")
for number in range(1, 6):
    os.rename(f"{steps}/step-{number}", f"stash/step-{number}")
newest = 6
def turn():
    global newest
    following = newest % 6 + 1
    os.rename(f"stash/step-{following}", f"{steps}/step-{following}")
    os.rename(f"{steps}/step-{newest}", f"stash/step-{newest}")
    newest = following
readers = ["ckpt inspect PATH --stats", "ckpt verify --deep PATH", "ckpt list PATH", "ckpt consolidate PATH made",
           "ckpt consolidate PATH made --format hf", "ckpt diff PATH PATH --atol 9",
           "generate PATH --prompt a --max-new-tokens 1",
           "eval PATH --training.dataset=text --training.dataset_path=corpus.txt --training.seq_len=32"]
removed = 0
for attempt in range(24):
    for reader in readers:
        named = attempt % 3 == 2
        path = f"{steps}/step-{newest}" if named else "run"
        shutil.rmtree("made", ignore_errors=True)
        command = [titan] + reader.replace("PATH", path).split()
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3):
            time.sleep(attempt * 0.001)
            turn()
        out, err = running.communicate()
        gone = "while it was read" in err or f"no checkpoint at '{path}'" in err
        removed += gone
        assert running.returncode == 0 or (named and running.returncode == 3 and gone), (command, out, err)
        for word in ("damaged", "missing", "skipping", "BAD"):
            assert word not in out + err, (command, out, err)
print(removed)
EOF2
}

case_options_belong_to_their_command() {
    run ckpt list . --force
    expect_error 2 "list" "--force"
    run ckpt verify . --deep --quick
    expect_error 2 "one of --deep and --quick"
    run ckpt verify . --bogus
    expect_error 2 "unknown option '--bogus'" "help: --help lists the options"
    run ckpt diff one
    expect_error 2 "diff. needs two paths"
    mkdir one two
    run ckpt diff one two --atol=-1
    expect_error 2 "atol"
}


run_cases

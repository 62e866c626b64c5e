#!/bin/bash
# SPDX-License-Identifier: MIT
# titan ckpt: list, inspect, verify and consolidate, on good and on damaged checkpoints.
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

case_inspect_for_people() {
    make_run
    run ckpt inspect run/checkpoint/step-2
    expect_ok
    expect_out "step"
    expect_out "layers.0.attention.wq.weight"
    expect_out "tok_embeddings.weight"
}

case_verify_passes_what_is_good() {
    make_run
    run ckpt verify run/checkpoint/step-2
    expect_ok
    run ckpt verify run
    expect_ok
    refuse_err .
}

case_verify_finds_a_missing_file() {
    make_run
    rm run/checkpoint/step-4/optim/*.safetensors
    run ckpt verify run/checkpoint/step-4
    expect_bad "optim"
}

case_verify_finds_a_damaged_manifest() {
    make_run
    sed -i 's/"step": 4/"step": 5/' run/checkpoint/step-4/manifest.json
    run ckpt verify run/checkpoint/step-4
    expect_bad "manifest"
}

case_paths_that_are_nothing() {
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
}

case_consolidate_does_not_overwrite() {
    make_run
    mkdir weights
    echo precious >weights/file
    run ckpt consolidate run/checkpoint/step-4 weights
    expect_error 2 "weights"
    [ "$(cat weights/file)" = precious ] || not_as "the target was changed"
}

case_consolidate_of_a_damaged_step_writes_nothing() {
    make_run
    truncate -s -100 run/checkpoint/step-4/model/*.safetensors
    run ckpt consolidate run/checkpoint/step-4 weights
    expect_error 3 "step-4"
    refuse_file weights
}

run_cases

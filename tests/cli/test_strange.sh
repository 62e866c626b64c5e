#!/bin/bash
# SPDX-License-Identifier: MIT Pipes, devices, links, sparse files and impossible numbers in place of titan's files. No
# command waits for them or aborts, and the checkpoint is reported as damaged. Every command has a generous timeout,
# which only a hang reaches.
. "$(dirname "$0")/lib.sh"

make_run() {
    make_corpus
    run train $tiny --checkpoint.enable --checkpoint.interval=2 --training.steps=4
    expect_ok
}

# patient ARGUMENT...: as run, but a hang is a failure.
patient() {
    printf 'titan' >command
    printf " '%s'" "$@" >>command
    code=0
    timeout -k 5 60 "$TITAN" "$@" >out 2>err </dev/null || code=$?
    [ "$code" != 124 ] || not_as "it hangs"
    [ "$code" -lt 128 ] || not_as "it died by a signal"
}

# replace KIND FILE: puts something that is not a regular file in place of FILE.
replace() {
    rm -f "$2"
    case $1 in
    pipe) mkfifo "$2" ;;
    link) mkfifo pipe && ln -s "$PWD/pipe" "$2" ;;
    device) ln -s /dev/zero "$2" ;;
    sparse) truncate -s 1T "$2" ;;
    folder) mkdir "$2" ;;
    esac
}

each_command_finds_it() {
    local newest=run/checkpoint/step-4
    patient ckpt verify "$newest"
    expect_code 3
    patient ckpt inspect "$newest" --stats
    [ "$1" = asset ] || expect_error 3 "titan: error: "
    patient ckpt list run
    expect_ok
    [ "$1" = asset ] || expect_out "step-4.*damaged|4 .*damaged"
    patient ckpt consolidate "$newest" flat
    [ "$1" = asset ] || expect_code 3
    patient ckpt gc run --dry-run --keep 1
    expect_ok
    patient ckpt diff "$newest" run/checkpoint/step-2
    [ "$1" = asset ] || expect_code 3
    patient generate run --prompt And --max-new-tokens 1
    [ "$1" = asset ] && expect_code 3 || expect_ok # it takes step 2 instead
    rm -rf flat
}

in_place_of() {
    make_run
    cp -r run/checkpoint/step-4 kept
    for kind in pipe link device sparse folder; do
        replace "$kind" "run/checkpoint/step-4/$2"
        each_command_finds_it "$1"
        patient train $tiny --checkpoint.enable --checkpoint.interval=100 --training.steps=4
        [ "$code" = 0 ] || [ "$code" = 3 ] || not_as "expected exit code 0 or 3"
        rm -rf run/checkpoint/step-4 run/checkpoint/.[a-z]*step-4* pipe && cp -r kept run/checkpoint/step-4
    done
}

case_in_place_of_a_manifest() {
    in_place_of manifest manifest.json
}

case_in_place_of_a_shard() {
    in_place_of shard model/shard-00001-model-00001-of-00001.safetensors
}

case_in_place_of_an_asset() {
    in_place_of asset assets/model.json
}

# The size of a file never ends a command by a signal, even if the size is allowed but memory cannot hold it.
case_a_file_that_memory_does_not_hold() {
    ! ldd "$TITAN" | grep -qE "lib(asan|tsan)" || skip "a sanitizer maps more than that itself"
    make_run
    rm run/checkpoint/step-4/manifest.json
    truncate -s 900M run/checkpoint/step-4/manifest.json
    (
        ulimit -v $((700 * 1024))
        for command in "ckpt verify run/checkpoint/step-4" "ckpt inspect run/checkpoint/step-4" "ckpt list run" \
            "train $tiny --checkpoint.enable --training.steps=5 --parallelism.threads_per_rank=1"; do
            patient $command
            expect_error 1 "manifest.json': no memory for its 943718401 bytes"
        done
    ) || exit 1
}

case_in_place_of_metrics() {
    make_corpus
    mkdir run
    for kind in pipe link device; do
        replace "$kind" run/metrics.jsonl
        patient train $tiny --checkpoint.enable
        expect_error 3 "metrics.jsonl.*regular file"
        rm -f pipe
    done
}

case_in_place_of_the_run_folder() {
    make_corpus
    for more in --checkpoint.enable --no-checkpoint.enable --dry-run; do
        echo mine >run
        patient train $tiny $more
        expect_error 3 "job.dump_folder 'run' is not a folder" "^help: choose another --job.dump_folder"
        [ "$(cat run)" = mine ] || not_as "the file was changed"
    done
}

# A log of more than a gibibyte, here with a hole, is appended to, and its last record says whether the run had ended.
case_a_large_log_does_not_stop_a_restart() {
    make_corpus
    mkdir run
    for end in 1 0; do
        truncate -s 0 run/metrics.jsonl
        truncate -s 1100M run/metrics.jsonl
        printf '\n{"type":"end","exit":%s}\n' "$end" >>run/metrics.jsonl
        patient train $tiny --checkpoint.enable --training.steps=1
        if [ "$end" = 0 ]; then
            expect_error 2 "'run' holds another run"
        else
            expect_ok
            expect_err "ended before its first checkpoint; it begins again"
            rm -rf run/checkpoint
        fi
    done
}

case_a_configuration_may_be_a_pipe() {
    make_corpus
    code=0
    timeout -k 5 60 "$TITAN" train --config <(echo 'training: {steps: 1}') $tiny --training.steps=1 >out 2>err ||
        code=$?
    expect_ok
}

case_a_step_that_is_a_link() {
    make_run
    mkdir other && mv run/checkpoint/step-4 other && ln -s ../../other/step-4 run/checkpoint/step-4
    patient ckpt verify run/checkpoint/step-4
    expect_bad "is a link"
    patient ckpt inspect run --json
    expect_ok
    expect_json 'assert found["step"] == 2, found["step"]'
    patient ckpt verify other/step-4
    expect_ok
    # nothing is removed through the link, and the step is set aside by name
    mkdir other/step-4/.tmp-hf-0123456789abcdef
    patient train $tiny --checkpoint.enable --checkpoint.interval=100 --training.steps=5
    expect_ok
    expect_err "step-4 is damaged, so it is skipped: .* is a link"
    expect_file other/step-4/.tmp-hf-0123456789abcdef
}

case_only_a_folder_is_a_step() {
    make_run
    for kind in pipe link device sparse; do
        replace "$kind" run/checkpoint/step-9
        patient train $tiny --checkpoint.enable --checkpoint.interval=100 --training.steps=5
        expect_ok
        expect_err "step-9 is set aside as"
        refuse_err "earlier export"
        rm -rf run/checkpoint/step-5 run/checkpoint/step-9* pipe
    done
}

case_a_step_under_another_name_is_not_a_step() {
    make_run
    cp -r run/checkpoint/step-2 run/checkpoint/step-7
    patient ckpt verify run/checkpoint/step-7
    expect_bad "holds step 2"
    patient ckpt verify run/checkpoint/step-7/
    expect_bad "holds step 2"
    patient ckpt inspect run --json
    expect_json 'assert found["step"] == 4, found["step"]'
    patient ckpt list run
    expect_out "7 .*damaged|step-7.*damaged"
    cp -r run/checkpoint/step-2 copy # its name does not say which step it is
    patient ckpt verify copy
    expect_ok
}

# edit STEP STATEMENTS: changes the manifest, `m` in these Python statements, and corrects its checksum.
edit() {
    cat >edit.py <<'PY'
import re, sys
path = sys.argv[1] + "/manifest.json"
text = open(path).read()
exec(sys.argv[2])
body = text[:text.index(',\n"self_crc32c"')].encode()
crc = 0xffffffff
for byte in body:
    crc ^= byte
    for _ in range(8):
        crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
open(path, "wb").write(body + b',\n"self_crc32c": "%08x"\n}\n' % (crc ^ 0xffffffff))
PY
    python3 edit.py "$1" "$2" || not_as "the manifest could not be edited"
}

case_impossible_numbers_in_a_manifest() {
    make_run
    cp -r run/checkpoint/step-4 kept
    for value in '"sample_cursor": -1' '"lr_step": -100' '"optimizer_step": 0' '"optimizer_step": -1' \
        '"ntokens_seen": 9223372036854775807' '"sample_cursor": 9223372036854775807' \
        '"lr_step": 9223372036854775807' '"optimizer_step": 9223372036854775807'; do
        edit run/checkpoint/step-4 "text = re.sub(r'${value%%:*}: -?\d+', '$value', text)"
        patient ckpt verify run/checkpoint/step-4
        key=${value%%:*}
        expect_bad "${key//\"/}"
        patient ckpt inspect run/checkpoint/step-4
        expect_code 3
        patient train $tiny --checkpoint.enable --checkpoint.interval=100 --training.steps=5 --checkpoint.load_step=4
        expect_code 3
        rm -rf run/checkpoint/step-4 && cp -r kept run/checkpoint/step-4
    done
}

case_a_digest_that_is_missing_does_not_match() {
    make_run
    edit run/checkpoint/step-4 "text = re.sub(r'\"digest\":\"sum64:[0-9a-f]+\",', '', text, count=1)"
    patient ckpt verify run/checkpoint/step-4 --deep
    expect_bad "has no digest in the manifest"
    edit run/checkpoint/step-2 "text = re.sub(r'sum64:[0-9a-f]{4}', 'sum64:zzzz', text, count=1)"
    patient ckpt verify run/checkpoint/step-2 --deep
    expect_bad "digest of tensor"
}

# Root may write everywhere, so the test puts files in the way.
case_training_continues_without_traces_and_tensorboard() {
    make_corpus
    mkdir run && touch run/profiling
    patient train $tiny --profiling.enable_profiling --profiling.profile_freq=1 --training.steps=2
    expect_ok
    expect_err "no trace of step 1, training continues"
    expect_err "no trace of step 2, training continues"
    rm -rf run && mkdir run && touch run/tb
    patient train $tiny --metrics.enable_tensorboard --training.steps=2
    expect_ok
    expect_err "training continues without TensorBoard"
}

run_cases

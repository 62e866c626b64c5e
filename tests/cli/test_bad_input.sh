#!/bin/bash
# SPDX-License-Identifier: MIT
# Bad input to a run. Each case ends with a clear message and the right code, on one rank and on two, and loses nothing.
. "$(dirname "$0")/lib.sh"

# Expects the same error from one rank and from two.
train_fails() {
    local wanted=$1 pattern=$2
    shift 2
    run train $tiny "$@"
    expect_error "$wanted" "$pattern"
    rm -rf run cache
    run_ranks 2 train $tiny "$@"
    expect_error "$wanted" "$pattern"
}

case_missing_dataset_file() {
    train_fails 3 "nosuch.txt" --training.dataset_path=nosuch.txt
}

case_dataset_without_a_path() {
    make_corpus
    run train $tiny --training.dataset_path=null
    expect_error 2 "dataset_path"
    run train $tiny --training.dataset=jsonl --training.dataset_path=null
    expect_error 2 "dataset_path"
}

case_unknown_dataset() {
    make_corpus
    run train $tiny --training.dataset=jsnol
    expect_error 2 "jsnol" "jsonl"
}

case_empty_corpus() {
    : >corpus.txt
    train_fails 3 "corpus.txt"
}

case_corpus_of_an_empty_folder() {
    mkdir folder
    train_fails 3 "folder" --training.dataset_path=folder
}

case_corpus_shorter_than_a_sequence() {
    echo "Jesus wept." >corpus.txt
    train_fails 3 "seq_len|sample|tokens"
}

case_broken_json_line_has_its_number() {
    printf '{"text": "one"}\n{"text": "two"}\n{"text": "three\n{"text": "four"}\n' >broken.jsonl
    train_fails 3 "broken.jsonl:3" --training.dataset=jsonl --training.dataset_path=broken.jsonl
}

case_json_line_without_the_field() {
    printf '{"text": "one"}\n{"txet": "two"}\n' >broken.jsonl
    train_fails 3 "broken.jsonl:2.*'text'" --training.dataset=jsonl --training.dataset_path=broken.jsonl
}

case_json_line_that_is_no_object() {
    printf '{"text": "one"}\n["two"]\n' >broken.jsonl
    train_fails 3 "broken.jsonl:2" --training.dataset=jsonl --training.dataset_path=broken.jsonl
}

case_broken_line_of_a_compressed_file() {
    printf '{"text": "one"}\n{"text": 2}\n' | gzip >broken.jsonl.gz
    train_fails 3 "broken.jsonl.gz:2" --training.dataset=jsonl --training.dataset_path=broken.jsonl.gz
}

case_truncated_compressed_file() {
    make_corpus
    awk '{ printf "{\"text\": \"%s\"}\n", $0 }' corpus.txt | gzip | head -c 600 >cut.jsonl.gz
    train_fails 3 "cut.jsonl.gz" --training.dataset=jsonl --training.dataset_path=cut.jsonl.gz
}

case_invalid_utf8_has_a_place() {
    make_corpus
    printf 'good line\nbad \377\376 line\n' >>corpus.txt
    train_fails 3 "corpus.txt.*UTF-8|UTF-8.*corpus.txt"
}

case_invalid_utf8_in_json_lines() {
    printf '{"text": "one"}\n{"text": "t\377wo"}\n' >broken.jsonl
    train_fails 3 "broken.jsonl:2" --training.dataset=jsonl --training.dataset_path=broken.jsonl
}

case_token_beyond_the_vocabulary() {
    python3 -c 'import struct, sys; sys.stdout.buffer.write(struct.pack("<400H", *([5] * 350 + [2048] + [7] * 49)))' \
        >tokens.bin
    train_fails 3 "2048" --training.dataset=tokens_u16 --training.dataset_path=tokens.bin
}

case_packed_file_that_is_truncated() {
    make_corpus
    run data pack --dataset text --dataset_path corpus.txt --out packed.tokens
    expect_ok
    head -c 3000 packed.tokens >cut.tokens
    train_fails 3 "cut.tokens.*truncated" --training.dataset=tokens --training.dataset_path=cut.tokens
}

case_packed_file_that_is_something_else() {
    make_corpus
    train_fails 3 "corpus.txt" --training.dataset=tokens
}

case_tokenizer_of_another_kind() {
    make_corpus
    mkdir assets
    printf '{"version": "1.0", "model": {"type": "WordPiece", "vocab": {"a": 0}}}' >assets/tokenizer.json
    train_fails 3 "WordPiece" --model.hf_assets_path=assets
}

case_tokenizer_that_is_not_json() {
    make_corpus
    mkdir assets
    echo "version https://git-lfs.github.com/spec/v1" >assets/tokenizer.json
    train_fails 3 "tokenizer.json" --model.hf_assets_path=assets
}

case_folder_without_a_tokenizer() {
    make_corpus
    mkdir assets
    train_fails 3 "assets" --model.hf_assets_path=assets
}

case_tokenizer_larger_than_the_vocabulary() {
    make_corpus
    run train $tiny --model.vocab_size=1000
    expect_error 2 "flag --model.vocab_size: the tokenizer has 2,048 tokens .*is 1,000" "at least 2048"
}

case_unknown_flavor_names_the_nearest() {
    make_corpus
    run train $tiny --model.flavor=debugmodle
    expect_error 2 "debugmodle" "debugmodel"
}

case_heads_that_do_not_divide() {
    make_corpus
    run train $tiny --model.n_kv_heads=3
    expect_error 2 "n_heads" "n_kv_heads"
}

case_degrees_that_do_not_multiply_to_the_ranks() {
    make_corpus
    run train $tiny --parallelism.data_parallel_shard_degree=2
    expect_error 2 "data_parallel_shard_degree|dp_shard" "2"
    run_ranks 2 train $tiny --parallelism.data_parallel_replicate_degree=3
    expect_error 2 "replicate" "3"
    refuse_file run
}

case_batch_that_the_ranks_do_not_divide() {
    make_corpus
    run_ranks 3 train $tiny
    expect_error 2 "global_batch_size" "1.*2"
    refuse_file run/metrics.jsonl
}

case_two_runs_in_one_folder() {
    make_corpus
    run train $tiny
    expect_ok
    cp run/metrics.jsonl before
    run train $tiny
    expect_error 2 "holds another run" "overwrite" "dump_folder"
    expect_same run/metrics.jsonl before
    run train $tiny --overwrite
    expect_ok
}

case_two_jobs_at_once_in_one_folder() {
    make_corpus
    "$TITAN" train $tiny --training.steps=1000000 --checkpoint.enable >first.out 2>first.err &
    first=$!
    for _ in $(seq 100); do
        [ -s run/metrics.jsonl ] && break
        sleep 0.1
    done
    run train $tiny --checkpoint.enable
    kill -USR1 $first
    wait $first
    first_code=$?
    expect_error 2 "another job"
    [ $first_code = 75 ] || not_as "the first job ended with $first_code: $(cat first.err)"
}

case_folder_that_cannot_be_made() {
    make_corpus
    : >file
    train_fails 3 "file" --job.dump_folder=file/run
}

case_hugging_face_folder_that_does_not_exist() {
    make_corpus
    run train $tiny --model.flavor=hf --model.hf_assets_path=nosuch
    [ "$code" = 2 ] || [ "$code" = 3 ] || not_as "expected exit code 2 or 3"
    expect_err "nosuch"
}

case_initial_weights_that_do_not_exist() {
    make_corpus
    train_fails 3 "nosuch" --checkpoint.initial_load_path=nosuch
}

# A run with two checkpoints, for the cases that damage them.
make_checkpoints() {
    make_corpus
    run train $tiny --checkpoint.enable --checkpoint.interval=2 --training.steps=4
    expect_ok
    expect_file run/checkpoint/step-2/manifest.json
    expect_file run/checkpoint/step-4/manifest.json
}

case_truncated_checkpoint_falls_back_to_the_one_before() {
    make_checkpoints
    truncate -s -100 run/checkpoint/step-4/model/*.safetensors
    run train $tiny --checkpoint.enable --checkpoint.interval=2 --training.steps=6
    expect_ok
    expect_err "step-4"
    expect_out "^step: +3/"
    expect_file run/checkpoint/step-6/manifest.json
}

case_truncated_checkpoint_that_is_asked_for_is_an_error() {
    make_checkpoints
    truncate -s -100 run/checkpoint/step-4/model/*.safetensors
    run train $tiny --checkpoint.enable --checkpoint.load_step=4 --training.steps=6
    expect_error 3 "step-4"
    expect_file run/checkpoint/step-2/manifest.json
}

case_a_run_with_only_truncated_checkpoints_is_an_error() {
    make_checkpoints
    truncate -s -100 run/checkpoint/step-[24]/model/*.safetensors
    run train $tiny --checkpoint.enable --training.steps=6
    expect_error 3 "step-"
    expect_file run/checkpoint/step-2
    expect_file run/checkpoint/step-4
}

case_flipped_bit_is_found() {
    make_checkpoints
    file=$(echo run/checkpoint/step-4/model/*.safetensors)
    printf '\377' | dd of="$file" bs=1 seek=$(($(stat -c %s "$file") - 50)) conv=notrunc status=none
    run ckpt verify run/checkpoint/step-4
    expect_bad "step-4"
    run train $tiny --checkpoint.enable --checkpoint.load_step=4 --training.steps=6
    expect_error 3 "step-4"
}

case_checkpoint_step_that_does_not_exist() {
    make_checkpoints
    run train $tiny --checkpoint.enable --checkpoint.load_step=3 --training.steps=6
    expect_error 3 "3"
}

case_checkpoint_of_another_model() {
    make_checkpoints
    run train $tiny --checkpoint.enable --training.steps=6 --model.n_layers=3
    expect_error 3 "layers.2|n_layers"
}

case_resume_with_another_sequence_length() {
    make_checkpoints
    run train $tiny --checkpoint.enable --training.steps=6 --training.seq_len=16
    expect_error 3 "seq_len" "dataloader"
}

case_resume_with_another_dataset() {
    make_checkpoints
    sed -i 's/evening/twilight/' corpus.txt
    run train $tiny --checkpoint.enable --training.steps=6
    expect_error 3 "dataset|data" "dataloader"
}

case_full_disk_keeps_what_was_saved() {
    make_corpus
    mkdir disk
    mount -t tmpfs -o size=12m tmpfs disk 2>/dev/null || skip "cannot mount a small file system"
    run train $tiny --job.dump_folder=disk/run --checkpoint.enable --checkpoint.interval=1 \
        --checkpoint.keep_latest_k=0 --training.steps=8
    cp -r disk/run/checkpoint saved
    umount disk
    expect_error 3 "space|full"
    expect_file saved/step-1/manifest.json
    refuse_file saved/step-8
    for step in saved/step-*; do
        run ckpt verify "$step"
        expect_ok
    done
    [ -z "$(ls -A saved | grep '^\.tmp')" ] || not_as "temporary folders were left: $(ls -A saved)"
}

case_a_full_cache_is_not_the_fault_of_the_text() {
    make_corpus
    for i in $(seq 20); do cat corpus.txt; done >large.txt
    mkdir disk
    mount -t tmpfs -o size=64k tmpfs disk 2>/dev/null || skip "cannot mount a small file system"
    run train $tiny --training.dataset_path=large.txt --dataloader.cache_dir=disk
    umount disk
    expect_error 3 "error: cannot write 'disk/.*: No space left on device" \
        "^help: free space there, or choose another folder .*dataloader.cache_dir"
}

case_a_file_size_limit_is_not_the_fault_of_the_text() {
    make_corpus
    for i in $(seq 20); do cat corpus.txt; done >large.txt
    echo "titan train with a limit of file size" >command
    code=0
    (
        trap '' XFSZ
        ulimit -f 40
        exec "$TITAN" train $tiny --training.dataset_path=large.txt --dataloader.cache_dir=cache
    ) >out 2>err </dev/null || code=$?
    expect_error 3 "error: cannot write 'cache/.*: File too large" "^help: raise the limit on the size of a file"
}

case_a_file_size_limit_leaves_no_half_saved_checkpoint() {
    make_corpus
    echo "titan train with a limit of file size" >command
    code=0
    (
        trap '' XFSZ
        ulimit -f 512
        exec "$TITAN" train $tiny --checkpoint.enable
    ) >out 2>err </dev/null || code=$?
    expect_error 3 "checkpoint|step-" "^help: raise the limit on the size of a file"
    refuse_file run/checkpoint/step-3
}

case_unknown_kernels() {
    make_corpus
    export TITAN_CPU=avx3
    train_fails 2 "TITAN_CPU=avx3 is not a kernel variant"
    run tune $tiny
    expect_error 2 "TITAN_CPU=avx3"
    export TITAN_CPU=generic
    run train $tiny
    expect_ok
}

case_too_little_memory_is_an_error_before_the_first_step() {
    make_corpus
    run train $tiny --parallelism.memory_limit=1MiB
    expect_error 6 "memory"
    refuse_out "^step:"
}

case_loss_that_is_not_finite_stops_and_keeps_the_checkpoint() {
    make_corpus
    run train $tiny --checkpoint.enable --checkpoint.interval=1 --checkpoint.keep_latest_k=0 \
        --optimizer.lr=1e6 --lr_scheduler.warmup_steps=0 --training.max_norm=0 --optimizer.weight_decay=1000 \
        --training.steps=60
    expect_error 5 "step [0-9]+" "finite|NaN|nan|inf"
    for step in run/checkpoint/step-*; do
        run ckpt verify "$step"
        expect_ok
    done
}

case_folders_of_a_run_are_inside_it() {
    make_corpus
    for key in checkpoint.folder metrics.save_tb_folder profiling.save_traces_folder; do
        for folder in ../elsewhere a/../../elsewhere /elsewhere . ./; do
            run train $tiny --$key=$folder
            expect_error 2 "$key" "'$folder' is not a folder inside job.dump_folder" "help: name it relative"
        done
        run config check --config /dev/null --$key=deep/inside
        expect_ok
    done
}

case_overwrite_removes_only_the_run() {
    make_corpus
    run train $tiny --checkpoint.enable --checkpoint.interval=1 --metrics.enable_tensorboard \
        --profiling.enable_profiling \
        --profiling.profile_freq=1
    expect_ok
    run ckpt rollback run 2
    expect_ok
    mkdir run/checkpoint/notes run/checkpoint/.tmp-step-9-x
    for file in run/mine run/tb/mine run/profiling/mine run/profiling/traces/mine run/checkpoint/notes/mine \
        "$(echo run/tb/*-*)/mine" run/profiling/traces/iteration_1/mine; do
        echo mine >"$file"
    done
    (cd run && find . -name mine -o -name .lock) | sort >wanted
    run train $tiny --checkpoint.enable --overwrite --training.steps=1
    expect_ok
    expect_out "^step: +1"
    (cd run && find . -name mine -o -name .lock) | sort >found
    expect_same wanted found
    [ "$(cd run/checkpoint && echo *)" = "notes step-1" ] || not_as "checkpoint: $(ls -A run/checkpoint)"
    [ -z "$(find run -name 'events*' -o -name '*_trace.json')" ] || not_as "left: $(find run)"
    refuse_file run/profiling/traces/iteration_2
}

case_overwrite_refuses_a_folder_that_is_not_a_run() {
    make_corpus
    mkdir -p run/tb/20240101-0101 run/profiling run/checkpoint/step-5
    for file in run/tb/20240101-0101/events.out.tfevents.1 run/profiling/p run/checkpoint/step-5/weights; do
        echo mine >$file
    done
    run train $tiny --overwrite
    expect_ok
    expect_file run/tb/20240101-0101/events.out.tfevents.1
    expect_file run/checkpoint/step-5/weights
    rm run/run.yaml run/metrics.jsonl
    run train $tiny --overwrite --checkpoint.enable
    expect_error 2 "'run' holds checkpoints but neither metrics.jsonl nor run.yaml"
    expect_file run/checkpoint/step-5/weights
}

case_overwrite_respects_the_lock() {
    make_corpus
    run train $tiny --checkpoint.enable
    expect_ok
    for lock in run/.lock run/checkpoint/.lock; do
        exec 7>>$lock
        flock -n 7 || not_as "the lock of a finished run is taken"
        run train $tiny --checkpoint.enable --overwrite
        expect_error 2 "another .*job"
        exec 7>&-
        expect_file run/checkpoint/step-3
        expect_file run/metrics.jsonl
    done
}

# A start that fails leaves the folder as it was; if there was none, there is none.
case_a_failed_start_leaves_nothing() {
    make_corpus
    for option in --training.dataset_path=typo.txt --training.seq_len=100000 --checkpoint.initial_load_path=nowhere \
        --training.global_batch_size=3 --model.n_heads=5 --parallelism.memory_limit=1KiB \
        --metrics.enable_tensorboard=maybe --parallelism.tensor_parallel_degree=2; do
        run train $tiny --dataloader.repeat=false --checkpoint.enable=true --job.dump_folder=new/deep/run $option
        [ "$code" != 0 ] || not_as "it started with $option"
        refuse_file new
    done
    run train $tiny --job.dump_folder=new/deep/run
    expect_ok
}

case_a_failed_start_removes_nothing_that_was_there() {
    make_corpus
    mkdir -p new/run/mine
    echo keep >new/run/mine/file
    run train $tiny --job.dump_folder=new/run --training.dataset_path=typo.txt
    expect_error 3 "typo.txt"
    [ "$(find new | sort | xargs)" = "new new/run new/run/mine new/run/mine/file" ] || not_as "left: $(find new)"
    run train $tiny --checkpoint.enable=true
    expect_ok
    cp -r run before
    run train $tiny --checkpoint.enable=true --training.steps=5 --training.dataset_path=typo.txt
    expect_error 3 "typo.txt"
    run train $tiny --checkpoint.enable=true --training.dataset_path=typo.txt --overwrite
    expect_error 3 "typo.txt"
    for file in metrics.jsonl run.yaml checkpoint/step-3/manifest.json; do
        expect_same run/$file before/$file
    done
    run status run
    expect_out '^run: completed'
}

case_a_failed_start_leaves_links_alone() {
    make_corpus
    mkdir run
    ln -s ../big.log run/console.log
    run train $tiny --training.dataset_path=typo.txt
    expect_error 3 "typo.txt"
    [ -L run/console.log ] || not_as "the link was removed"
}

# --overwrite removes a run before the weights of the next one are read.
case_a_run_is_not_removed_for_weights_that_cannot_be_loaded() {
    make_corpus
    run train $tiny --checkpoint.enable=true
    expect_ok
    cp -r run before
    for path in run run/checkpoint run/checkpoint/step-3 $PWD/run/checkpoint; do
        for more in "" --dry-run; do
            run train $tiny --overwrite --checkpoint.initial_load_path=$path $more
            expect_error 2 "--overwrite would remove '$path'" "help: choose another --job.dump_folder"
        done
    done
    run train $tiny --overwrite --checkpoint.initial_load_path=before/checkpoint/step-9
    expect_error 3 "step-9"
    run train $tiny --overwrite --checkpoint.initial_load_path=before --model.ffn_dim=64
    [ "$code" != 0 ] || not_as "other weights"
    for file in metrics.jsonl run.yaml checkpoint/step-3/manifest.json; do
        expect_same run/$file before/$file
    done
    run train $tiny --overwrite --checkpoint.initial_load_path=before --checkpoint.initial_load_model_only
    expect_ok
    refuse_file run/checkpoint/step-3
}

run_cases

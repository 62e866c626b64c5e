#!/bin/bash
# SPDX-License-Identifier: MIT
# titan train from outside: what it prints and writes, resuming, signals.
. "$(dirname "$0")/lib.sh"

# The losses in a metrics.jsonl, in full precision. The last record of a step counts.
losses() {
    python3 - "$1" <<'EOF'
import json, sys
losses = {}
for line in open(sys.argv[1]):
    record = json.loads(line)
    if record["type"] == "step":
        losses[record["step"]] = (record["loss"], record["grad_norm"])
for step in sorted(losses):
    print(step, *map(float.hex, losses[step]))
EOF
}

case_console_lines_have_torchtitans_shape() {
    make_corpus
    run train $tiny
    expect_ok
    [ "$(wc -l <out)" = 3 ] || not_as "expected three lines on stdout"
    number='[0-9]+\.[0-9]+'
    grep -Evq "^step: [ 0-9]{2,}/[0-9]+  loss: +$number  grad_norm: +$number  memory: +${number}GiB\($number%\)  tps: [0-9,]+  tflops: $number  mfu: $number%  lr: [0-9.e-]+  tokens: [0-9,]+(  eta: [0-9].*)?$" out &&
        not_as "a line of another shape"
    refuse_err "error|warning"
}

# The peak is set far too low. The figure in torchtitan's definition exceeds 100 %, but the printed share does not.
case_mfu_is_at_most_100() {
    make_corpus
    run train $tiny --metrics.peak_flops=1e3
    expect_ok
    expect_out "mfu: 100\.00%  lr"
    expect_err "mfu +share of .* masked positions"
    run train $tiny --metrics.peak_flops=1e15 --overwrite --training.seq_len=64
    python3 - <<'EOF' >problem.txt 2>&1 || not_as "metrics.jsonl: $(cat problem.txt)"
import json
steps = [r for r in map(json.loads, open("run/metrics.jsonl")) if r["type"] == "step"]
for r in steps:
    # torchtitan's formula has 6 L H (2 E) T for attention; causal attention has (T + 1) / 2 keys per query
    masked = 100 * r["tps"] * 6 * 2 * 64 * 2 * (64 - 65 / 2) / 1e15
    assert 0 < r["mfu_causal"] < r["mfu"] <= 100, r
    assert abs(r["mfu"] - r["mfu_causal"] - masked) < 1e-6 * masked, (r, masked)
EOF
}

# The peak of the process that started titan, which then became titan, is not titan's.
case_memory_is_not_that_of_the_parent() {
    ! ldd "$TITAN" | grep -qE "lib(asan|tsan)" || skip "a sanitizer takes memory itself"
    make_corpus
    cat >parent.py <<'EOF'
import os, sys
large = b"x" * (900 << 20)
os.execv(sys.argv[1], sys.argv[1:])
EOF
    echo "titan train from a large process" >command
    code=0
    python3 parent.py "$TITAN" train $tiny >out 2>err </dev/null || code=$?
    expect_ok
    python3 - <<'EOF' >problem.txt 2>&1 || not_as "metrics.jsonl: $(cat problem.txt)"
import json
steps = [r for r in map(json.loads, open("run/metrics.jsonl")) if r["type"] == "step"]
assert steps and all(0 < r["memory_gib"] < 0.8 for r in steps), [r["memory_gib"] for r in steps]
EOF
}

# titan fits within any stack limit that a shell sets.
case_a_small_stack_is_enough() {
    stack=64
    # The libraries that MPI loads may need more before titan begins, as UCX of Debian 13 does.
    (ulimit -s $stack && "$TITAN" version >/dev/null 2>&1) || stack=256
    (
        ulimit -s $stack
        run train --training.steps=1 --job.dump_folder=run --dataloader.cache_dir=cache
        expect_ok
    ) || exit 1
}

# Under such a limit OpenBLAS would try to map its buffers for ever. The case searches for the limit at which titan
# refuses.
case_too_little_address_space_is_refused() {
    ! ldd "$TITAN" | grep -qE "lib(asan|tsan)" || skip "a sanitizer maps more than that itself"
    make_corpus
    export TITAN_CPU=blas # OpenBLAS computes its products
    for mib in 384 512; do
        (
            ulimit -v $((mib * 1024))
            run train $tiny --parallelism.threads_per_rank=4 --overwrite
            expect_error 6 "OpenBLAS maps 128 MiB of address space for each of 4 threads" "ulimit -v"
        ) || exit 1
    done
    (
        ulimit -v $((8 * 1024 * 1024))
        run train $tiny --parallelism.threads_per_rank=4 --overwrite
        expect_ok
    ) || exit 1
}

# If the launcher of a job is killed, its ranks hold the lock for a moment longer.
case_a_lock_that_is_about_to_be_released_is_waited_for() {
    make_corpus
    mkdir run
    flock run/.lock sleep 1 &
    until [ -e run/.lock ] && ! flock -n run/.lock true; do sleep 0.01; done
    run train $tiny
    expect_ok
}

# The segments of killed MPI processes are old, and no process maps them. The run has its own /dev/shm and its own
# processes, so that no other run removes the segments.
case_old_segments_in_shared_memory_are_removed() {
    apart="unshare --map-root-user --mount --pid --fork --mount-proc sh -c"
    $apart 'mount -t tmpfs none /dev/shm' 2>/dev/null || skip "no namespaces"
    make_corpus
    echo "titan train, with old segments in /dev/shm" >command
    for verbose in "" --verbose; do
        $apart 'mount -t tmpfs none /dev/shm && cd /dev/shm || exit 1
            for host in "$(hostname)" elsewhere; do
                touch -d 2001-01-01 "vader_segment.$host.$(id -u).4d300001.0"
            done
            cd - && "$@" && ls /dev/shm >left' sh "$TITAN" train $tiny --training.steps=1 --overwrite $verbose \
            >out 2>err </dev/null
        code=$?
        expect_ok
        [ "$(cat left)" = vader_segment.elsewhere.0.4d300001.0 ] || not_as "left: $(cat left)"
        if [ "$verbose" ]; then
            expect_err "removed 1 shared-memory segment that killed MPI processes left"
        else
            refuse_err "shared-memory|/dev/shm"
        fi
    done
}

case_a_file_gets_no_colours() {
    make_corpus
    run train $tiny
    refuse_out "$(printf '\033')"
    run_ranks 2 train $tiny --overwrite
    expect_ok
    refuse_out "$(printf '\033')"
    expect_out "^step: "
}

case_the_banner_describes_the_run() {
    make_corpus
    run train $tiny
    expect_err "random init \(seed 42\)"
    expect_err "rank"
    expect_err "thread"
    expect_err "layout-exact"
    expect_err "[MG]iB"
}

case_metrics_have_every_field() {
    make_corpus
    run train $tiny --checkpoint.enable --validation.enable --validation.dataset=text \
        --validation.dataset_path=corpus.txt \
        --validation.local_batch_size=2
    expect_ok
    python3 - <<'EOF' >problem.txt 2>&1 || not_as "metrics.jsonl: $(cat problem.txt)"
import json
records = [json.loads(line) for line in open("run/metrics.jsonl")]
assert records[0]["type"] == "run", records[0]
assert records[-1]["type"] == "end" and records[-1]["exit"] == 0, records[-1]
assert all("time" in record for record in records)
steps = [record for record in records if record["type"] == "step"]
assert [record["step"] for record in steps] == [1, 2, 3]
for field in ("loss max_loss grad_norm lr ntokens_seen tps tflops mfu mfu_causal memory_gib step_time_s data_time_s comm_time_s "
              "comm_exposed_s comm_bytes eta_s").split():
    assert all(isinstance(record[field], (int, float)) for record in steps), field
assert [record["ntokens_seen"] for record in steps] == [128, 256, 384], "ntokens_seen"
assert any(record["type"] == "validate" and record["loss"] > 0 for record in records)
saved = [record for record in records if record["type"] == "checkpoint"]
assert saved and saved[-1]["step"] == 3 and saved[-1]["bytes"] > 0 and saved[-1]["blocked_s"] >= 0
EOF
}

case_loads_of_experts_are_reported() {
    make_corpus
    run train $tiny --job.dump_folder=dense
    refuse_out "imbalance"
    run train $tiny --model.name=mixtral --metrics.expert_loads --metrics.enable_tensorboard --job.dump_folder=moe
    expect_ok
    expect_out "  imbalance: [1-8]\.[0-9]{2}  "
    python3 - <<'EOF' || not_as "the loads of experts"
import json
steps = [r for r in map(json.loads, open("moe/metrics.jsonl")) if r["type"] == "step"]
assert steps and not any("imbalance" in r for r in map(json.loads, open("dense/metrics.jsonl")))
for r in steps:
    loads = r["expert_loads"]
    assert len({sum(slots) for slots in loads.values()}) == 1 and all(len(slots) == 8 for slots in loads.values()), r
    for layer, slots in loads.items():
        assert abs(r["imbalances"][layer] - 8 * max(slots) / sum(slots)) < 1e-9, r
    assert r["imbalance"] == max(r["imbalances"].values()) == r["imbalances"][str(r["imbalance_layer"])], r
EOF
    cat moe/tb/*/events* | grep -aq "experts/imbalance/layers.0" || not_as "no tag in TensorBoard"
}

# Balance losses of each of the two layers are at most the number of experts times the coefficient.
case_auxiliary_losses_are_reported_apart() {
    make_corpus
    run train $tiny --model.name=mixtral --training.sequence_balance_loss=1e-3 --training.microbatch_balance_loss=0.1 \
        --metrics.enable_tensorboard --job.dump_folder=aux
    expect_ok
    run train $tiny --model.name=mixtral --training.steps=1 --job.dump_folder=plain
    expect_ok
    python3 - <<'EOF' || not_as "auxiliary losses"
import json
aux, plain = ([r for r in map(json.loads, open(f + "/metrics.jsonl")) if r["type"] == "step"] for f in ("aux", "plain"))
assert aux[0]["loss"] == plain[0]["loss"] and aux[0]["grad_norm"] != plain[0]["grad_norm"]
assert not any(k.endswith("balance_loss") for k in plain[0]) and not any("router_z_loss" in r for r in aux)
for r in aux:
    assert 1.9e-3 < r["sequence_balance_loss"] < 16e-3 and 0.19 < r["microbatch_balance_loss"] < 1.6, r
EOF
    cat aux/tb/*/events* | grep -aq "loss_metrics/sequence_balance_loss" || not_as "no tag in TensorBoard"
    run train $tiny --training.router_z_loss=1e-3
    expect_error 2 "training.router_z_loss.*llama3 has no experts"
}

case_biases_of_experts_continue_on_other_ranks() {
    make_corpus
    local moe="$tiny --model.name=mixtral --training.load_balance_coeff=0.01 --training.global_batch_size=4
        --training.local_batch_size=1 --checkpoint.enable --checkpoint.interval=100 --lr_scheduler.total_steps=6"
    run train $moe --training.steps=6 --job.dump_folder=whole
    expect_ok
    run train $moe --training.steps=3 --job.dump_folder=parts
    expect_ok
    run_ranks 2 train $moe --training.steps=6 --job.dump_folder=parts
    expect_ok
    run ckpt diff whole/checkpoint/step-6 parts/checkpoint/step-6
    expect_ok
    run ckpt inspect --stats whole/checkpoint/step-6
    expect_out "layers.1.moe.expert_bias +F32"
    run ckpt consolidate whole/checkpoint/step-6 plain --dtype bfloat16
    expect_ok
    run ckpt inspect plain
    expect_out "layers.0-1.moe.expert_bias +F32"
    run ckpt consolidate whole/checkpoint/step-6 hf --format hf
    expect_ok
    expect_err "layers.0.moe.expert_bias and similar biases are not exported"
    run train $moe --training.steps=7 --training.load_balance_coeff=null --job.dump_folder=parts
    expect_error 3 "set training.load_balance_coeff to its old value"
    run train $tiny --training.load_balance_coeff=0.01
    expect_error 2 "training.load_balance_coeff.*is for models with experts"
    run train $moe --training.load_balance_coeff=1.5
    expect_error 2 "training.load_balance_coeff"
}

# The term is separate from the loss; without the key no record contains it.
case_z_loss_is_reported_apart() {
    make_corpus
    run train $tiny
    expect_ok
    refuse_out "z_loss"
    refuse_err "z-loss"
    losses run/metrics.jsonl >plain.txt
    run train $tiny --training.z_loss=1e-2 --metrics.enable_tensorboard --validation.enable --job.dump_folder=z \
        --validation.dataset=text --validation.dataset_path=corpus.txt --validation.local_batch_size=2
    expect_ok
    expect_out "  z_loss: [0-9]\.[0-9]{5}  tokens: "
    expect_err "^  loss +[0-9.]+ at step 3, z-loss [0-9]\.[0-9]{5}, validation"
    losses z/metrics.jsonl >z.txt
    [ "$(head -1 plain.txt | cut -d ' ' -f 2)" = "$(head -1 z.txt | cut -d ' ' -f 2)" ] ||
        not_as "another loss at step 1"
    [ "$(head -1 plain.txt | cut -d ' ' -f 3)" != "$(head -1 z.txt | cut -d ' ' -f 3)" ] || not_as "the same norm"
    python3 - <<'EOF' >problem.txt 2>&1 || not_as "metrics.jsonl: $(cat problem.txt)"
import json
steps, plain = ([r for r in map(json.loads, open(run + "/metrics.jsonl")) if r["type"] == "step"]
                for run in ("z", "run"))
assert all("z_loss" not in r for r in plain), plain
# logsumexp of logits near zero is the logarithm of the vocabulary, as is the loss
assert abs(steps[0]["z_loss"] - 1e-2 * steps[0]["loss"] ** 2) < 0.05 * steps[0]["z_loss"], steps[0]
assert 0 < steps[2]["z_loss"] < steps[0]["z_loss"], steps
EOF
    cat z/tb/*/events* | grep -aq "loss_metrics/global_avg_z_loss" || not_as "no tag in TensorBoard"
    run train $tiny --training.z_loss=2
    expect_error 2 "training.z_loss"
    run train $tiny --training.z_loss_coeff=1e-4
    expect_error 2 "did you mean 'training.z_loss'"
}

# Rates count one rank; sums over the job would be twice as large here.
case_metrics_have_the_rates_of_one_rank() {
    make_corpus
    run_ranks 2 train $tiny --validation.enable --validation.dataset=text --validation.dataset_path=corpus.txt \
        --validation.local_batch_size=2 --metrics.peak_flops=1e9
    expect_ok
    python3 - <<'EOF' >problem.txt 2>&1 || not_as "metrics.jsonl: $(cat problem.txt)"
import json, math
records = [json.loads(line) for line in open("run/metrics.jsonl")]
steps = [record for record in records if record["type"] == "step"]
assert len(steps) == 3
for record in steps:
    assert math.isclose(record["tps"] * record["step_time_s"], 4 * 32 / 2, rel_tol=1e-9), record
    assert math.isclose(record["mfu"], 100 * record["tflops"] * 1e12 / 1e9, rel_tol=1e-9), record
validated = [record for record in records if record["type"] == "validate"]
assert validated
for record in validated:
    assert math.isclose(record["tps"] * record["time_s"] * 2, record["ntokens"], rel_tol=1e-9), record
EOF
}

case_json_prints_the_records() {
    make_corpus
    run train $tiny --json
    expect_ok
    python3 -c 'import json; assert [json.loads(l)["type"] for l in open("out")].count("step") == 3' ||
        not_as "records on stdout"
    refuse_out "^step:"
}

case_log_freq_is_kept() {
    make_corpus
    run train $tiny --training.steps=7 --metrics.log_freq=3
    expect_ok
    [ "$(grep -c '^step:' out)" = 3 ] || not_as "expected lines at steps 1, 3, 6"
    expect_out "^step: +6/"
}

case_the_end_of_the_data_ends_the_run() {
    make_corpus
    all="$tiny --training.steps=100000 --training.global_batch_size=64 --dataloader.repeat=false --checkpoint.enable"
    run train $all --checkpoint.interval=1000 --checkpoint.last_save_model_only=true
    expect_ok
    expect_err "which end after step [0-9]+ \(dataloader.repeat is false\)"
    expect_err "the data has ended"
    last=$(sed -n 's/.*training completed: step \([0-9]*\).*/\1/p' err)
    [ "$last" -gt 1 ] && [ "$last" -lt 100000 ] || not_as "the last step"
    expect_file run/checkpoint/step-$last
    expect_file run/checkpoint/step-$last/assets
    run_ranks 2 train $all --job.dump_folder=two
    expect_ok
    expect_err "training completed: step $last"
    run train $all --job.dump_folder=two
    expect_ok
    expect_err "its data ended after step $last"
    run train $all --job.dump_folder=two --dataloader.repeat=true --training.steps=$((last + 1))
    expect_ok
    expect_err "training completed: step $((last + 1))"
    run train $all --job.dump_folder=none --training.global_batch_size=100000
    expect_error 3 "the data has ended before the first step: dataset 'text' has [0-9,]+ samples of training.seq_len 32"
}

case_epochs_are_the_length_of_the_run() {
    make_corpus
    all="$tiny --training.global_batch_size=64"
    run train $all --training.epochs=2
    expect_ok
    samples=$(sed -n 's/.* \([0-9]*\) samples of 32 an epoch.*; training.epochs 2 ends after.*/\1/p' err)
    last=$(sed -n 's/.*training completed: step \([0-9]*\),.*/\1/p' err)
    [ "$last" = $((2 * samples / 64)) ] || not_as "2 epochs of $samples samples end with step '$last'"
    refuse_err "the data has ended"
    grep -q "^  steps: $last\$" run/run.yaml || not_as "training.steps in run.yaml"
    losses run/metrics.jsonl >epochs
    run train $all --training.steps=$last --job.dump_folder=steps
    expect_ok
    losses steps/metrics.jsonl >of_steps
    cmp -s epochs of_steps || not_as "the schedule is not that of $last steps"
    run_ranks 2 train $all --training.epochs=1 --checkpoint.enable --job.dump_folder=two
    expect_ok
    expect_err "training completed: step $((samples / 64)),"
    run train $all --training.epochs=1 --checkpoint.enable --job.dump_folder=two
    expect_ok
    expect_err "the run is complete: it has done 1 epoch with step $((samples / 64)).*--training.epochs=N continues it"
    past=$((samples / 64))
    run train $tiny --training.global_batch_size=32 --training.epochs=2 --checkpoint.enable --job.dump_folder=two \
        --dry-run
    expect_ok
    expect_out "training.steps $past -> $((past + (2 * samples - 64 * past) / 32))"
    run train $all --training.epochs=2 --checkpoint.enable --checkpoint.last_save_model_only=true --job.dump_folder=two
    expect_ok
    expect_err "training starts at step $((samples / 64 + 1))"
    expect_err "training completed: step $last,"
    run train $all --training.epochs=2 --checkpoint.enable --job.dump_folder=two
    expect_ok
    expect_err "the run is complete: it has done 2 epochs"
    expect_err "warning: training.steps is not used: training.epochs is 2, which is $last steps"
    run train $all --training.epochs=1 --checkpoint.enable --job.dump_folder=two
    expect_ok
    expect_err "the run is complete: with step $last it has done more epochs than training.epochs, which is 1"
    run train --config two/run.yaml
    expect_ok
    refuse_err "warning: training.steps"
    run train $all --training.epochs=2 --training.global_batch_size=100000 --job.dump_folder=none
    expect_error 3 "has ended before the first step" "a larger training.epochs"
    run train $all --training.epochs=2 --dataloader.repeat=false --job.dump_folder=none
    expect_error 2 "training.epochs: 2 epochs need data that repeats"
}

case_run_yaml_repeats_the_run() {
    make_corpus
    run train $tiny "--job.description=it's
two lines"
    expect_ok
    grep -qFe "--job.description=it\'s\012two lines'" run/run.yaml || not_as "the command line in run.yaml: $(head -3 run/run.yaml)"
    losses run/metrics.jsonl >first
    run train --config run/run.yaml --job.dump_folder=again
    expect_ok
    losses again/metrics.jsonl >second
    expect_same first second
}

case_the_loss_falls() {
    make_corpus
    run train $tiny --training.steps=40 --optimizer.lr=1e-2 --lr_scheduler.warmup_steps=2
    expect_ok
    python3 - <<'EOF' || not_as "the loss did not fall by 2"
import json
losses = [r["loss"] for r in map(json.loads, open("run/metrics.jsonl")) if r["type"] == "step"]
assert losses[-1] < losses[0] - 2
EOF
}

case_resume_continues_with_the_same_bits() {
    make_corpus
    run train $tiny --training.steps=6 --job.dump_folder=whole
    expect_ok
    run train $tiny --training.steps=6 --checkpoint.enable --checkpoint.interval=4
    expect_ok
    rm -rf run/checkpoint/step-6
    run train $tiny --training.steps=6 --checkpoint.enable --checkpoint.interval=4
    expect_ok
    expect_err "step-4"
    expect_out "^step: +5/"
    refuse_out "^step: +4/"
    losses whole/metrics.jsonl >whole.txt
    losses run/metrics.jsonl >resumed.txt
    expect_same whole.txt resumed.txt
    grep -q '"resumed_from": *4' run/metrics.jsonl || not_as "no run record with resumed_from 4"
}

case_resume_of_a_finished_run_ends_at_once() {
    make_corpus
    run train $tiny --checkpoint.enable
    expect_ok
    run train $tiny --checkpoint.enable
    expect_ok
    refuse_out "^step:"
}

case_resume_on_another_number_of_ranks() {
    make_corpus
    run train $tiny --training.steps=6 --job.dump_folder=whole
    expect_ok
    run_ranks 2 train $tiny --training.steps=6 --checkpoint.enable --checkpoint.interval=4
    expect_ok
    rm -rf run/checkpoint/step-6
    run train $tiny --training.steps=6 --checkpoint.enable --checkpoint.interval=4
    expect_ok
    losses whole/metrics.jsonl >whole.txt
    losses run/metrics.jsonl >resumed.txt
    expect_same whole.txt resumed.txt
}

case_keep_latest_k_retires_old_steps() {
    make_corpus
    run train $tiny --training.steps=5 --checkpoint.enable --checkpoint.interval=1 --checkpoint.keep_latest_k=2
    expect_ok
    [ "$(ls run/checkpoint | grep -c '^step-')" = 2 ] || not_as "expected two steps: $(ls -A run/checkpoint)"
    expect_file run/checkpoint/step-4
    expect_file run/checkpoint/step-5
}

# Starts a long run in the background and waits for its first step; the process is in $job.
start_long_run() {
    make_corpus
    echo "titan train (in the background)" >command
    background "$@" train $tiny --training.steps=1000000 --checkpoint.enable --checkpoint.interval=100000
    for _ in $(seq 200); do
        grep -q 'step: ' out && return
        sleep 0.1
    done
    kill $job
    not_as "no first step within 20 s"
}

expect_end() {
    code=0
    wait $job || code=$?
    expect_code "$1"
    [ "$(ls run/checkpoint | grep -c '^step-')" = 1 ] || not_as "expected one saved step: $(ls -A run/checkpoint)"
    grep '"end"' run/metrics.jsonl | grep -q "\"exit\": *$1" || not_as "no end record with exit $1"
}

case_sigusr1_saves_and_ends_with_75() {
    start_long_run "$TITAN"
    kill -USR1 $job
    expect_end 75
}

case_sigterm_saves_and_ends_with_75() {
    start_long_run "$TITAN"
    kill -TERM $job
    expect_end 75
}

case_ctrl_c_saves_and_ends_with_130() {
    start_long_run env --default-signal=INT "$TITAN"
    kill -INT $job
    expect_end 130
}

case_sigusr1_to_mpirun_stops_all_ranks() {
    start_long_run "$TITAN_SOURCE/tools/run-ranks" 2 "$TITAN"
    kill -USR1 $job
    expect_end 75
}

case_the_quick_run_is_the_run_without_a_configuration() {
    run config show --origin
    expect_out "flavor: debugmodel .*builtin:quick"
    run train --training.steps=1 --job.dump_folder=run --dataloader.cache_dir=cache
    expect_ok
    expect_out "^step: +1/[0-9]+ +loss: +[78]\."
    expect_file run/run.yaml
    expect_file run/metrics.jsonl
    expect_file run/checkpoint/step-1/manifest.json
}

case_nothing_is_written_outside_the_run_folder() {
    make_corpus
    run train $tiny --dataloader.cache_dir=null --job.dump_folder=here/run
    expect_ok
    [ "$(ls -A here | tr '\n' ' ')" = "run " ] || not_as "unexpected: $(ls -A here)"
    rm -rf here
    [ "$(ls -A | tr '\n' ' ')" = "command corpus.txt err out " ] || not_as "unexpected: $(ls -A)"
}

case_one_cache_of_tokens_for_all_runs() {
    make_corpus
    export XDG_CACHE_HOME=$PWD/users
    run train $tiny --dataloader.cache_dir=null --job.dump_folder=one/run
    expect_ok
    ls -i users/titan/* >first
    [ "$(wc -l <first)" = 1 ] || not_as "one file of tokens: $(cat first)"
    run train $tiny --dataloader.cache_dir=null --job.dump_folder=two/run
    expect_ok
    ls -i users/titan/* >second
    expect_same first second
    unset XDG_CACHE_HOME
    HOME=/proc run train $tiny --dataloader.cache_dir=null --job.dump_folder=three/run
    expect_ok
    expect_file three/run.cache
}

case_a_warm_up_longer_than_the_run_is_pointed_out() {
    make_corpus
    run train $tiny --lr_scheduler.warmup_steps=4
    expect_ok
    expect_err "^titan: warning: the warm-up of 4 steps is longer than the run of 3"
    run train $tiny --lr_scheduler.warmup_steps=3 --overwrite
    expect_ok
    refuse_err "warm-up"
}

# The rule is tested in tests/unit/test_kernels.c; here its result is in the banner, in run.yaml and in the record.
case_a_new_run_is_told_where_bfloat16_is_faster() {
    make_corpus
    TITAN_CPU=generic run train $tiny
    expect_ok
    refuse_err "^  numbers"
    expect_err "^  kernels  generic, products of bfloat16 widened to float32.*; TITAN_CPU chose them$"
    grep -q "^# computed by titan's kernels generic, products of bfloat16 widened" run/run.yaml || not_as "run.yaml"
    grep -q '"bfloat16_products":"widened"' run/metrics.jsonl || not_as "the record of the run"
    TITAN_CPU=avx512_bf16 run train $tiny --overwrite
    [ "$code" = 2 ] && skip "this CPU has no instructions for bfloat16"
    expect_ok
    expect_err "^  kernels  avx512_bf16, products of bfloat16 by vdpbf16ps; "
    if ! grep -qE "vdpbf16ps runs at (0|1 )" err; then
        expect_err "^  numbers  float32; this CPU multiplies bfloat16 [0-9.]+ times as fast"
        expect_err "training.mixed_precision_param=bfloat16"
    else
        refuse_err "^  numbers"
    fi
    TITAN_CPU=avx512_bf16 run train $tiny --overwrite --training.mixed_precision_param=float32
    expect_ok
    refuse_err "^  numbers"
    TITAN_CPU=avx512_bf16 run train $tiny --overwrite --training.mixed_precision_param=bfloat16
    expect_ok
    refuse_err "this CPU multiplies"
    TITAN_CPU=avx512_bf16 run train $tiny --overwrite --training.steps=2 --checkpoint.enable
    expect_ok
    TITAN_CPU=avx512_bf16 run train $tiny --training.steps=3 --checkpoint.enable
    expect_ok
    refuse_err "^  numbers" # it continues in its type
}

case_a_busy_machine_is_named_at_the_start() {
    make_corpus
    run train $tiny
    expect_ok
    refuse_err "^  machine"
    export TITAN_PROC=$PWD/proc
    load_of 13.20 14
    run train $tiny --overwrite
    expect_ok
    expect_err "^  machine  load 13 on 2 CPUs: others use this machine; peak and mfu too low$"
}

case_a_long_run_can_be_watched() {
    make_corpus
    run train $tiny --training.steps=12 --metrics.log_freq=4
    expect_ok
    expect_out "^step:  1/12  loss: .*  lr: [0-9.e-]+  tokens: 128  eta: [0-9.]+ (m?s|min)"
    expect_out "^step: 12/12  loss: .*  tokens: 1,536$"
    expect_err "^  predicts .* for 12 steps$"
    [ "$(tail -n 1 err)" = "$(grep -E '^titan: training completed: step 12, [0-9.]+ m?s, in run$' err)" ] ||
        not_as "the last line is 'training completed' with the time it took"
    loss=$(sed -n 's/^step: 12.*loss: *\([0-9.]*\).*/\1/p' out)
    expect_err "^  loss     $loss at step 12$"
    expect_err "^  tokens   1,536 seen \(0.[0-9]+ epochs\), [0-9,]+ a second$"
    expect_err "^  saved    nothing \(checkpoint.enable is false\)$"
    run train $tiny --training.steps=3 --checkpoint.enable --validation.enable --overwrite --validation.dataset=text \
        --validation.dataset_path=corpus.txt --metrics.log_freq=2 --checkpoint.interval=2
    expect_ok
    expect_err "^  loss     [0-9.]+ at step 3, validation [0-9.]+ at step 3$"
    expect_err "^  saved    step-3 in run/checkpoint$"
    run train $tiny --training.steps=4 --checkpoint.enable
    expect_ok
    expect_err "^  tokens   512 seen .*, [0-9,]+ a second$"
}

case_an_absurd_prediction_is_pointed_out_before_the_start() {
    make_corpus
    run train $tiny --metrics.peak_flops=1e4
    expect_ok
    expect_err "^titan: warning: a step of llama3 on 1 rank is predicted to take [0-9.]+ h"
    expect_err "^help: a step is 4 sequences of 32 tokens; set a smaller training.global_batch_size or training.seq_len"
    [ "$(grep -n 'titan: warning' err | cut -d: -f1)" -lt "$(grep -n 'training starts' err | cut -d: -f1)" ] ||
        not_as "said before training starts"
    run train $tiny --overwrite
    expect_ok
    refuse_err "predicted to take"
}

case_initial_values_by_rules_are_the_same_on_any_mesh() {
    make_corpus
    rules="--model.init_std=0.01 --model.init_rules=[attention.wo=normal(0.03,0.05),w3=uniform(-0.02,0.02),^norm=constant(0.5)]"
    for ranks in 1 2; do
        run_ranks $ranks train $tiny $rules --training.local_batch_size=1 --job.dump_folder=run$ranks
        expect_ok
        expect_err "^  weights  random init \\(seed 42\\), init_std 0.01, 3 init rules$"
        sed -n 's/.*"loss": *\([0-9.]*\).*/\1/p' run$ranks/metrics.jsonl >losses$ranks
    done
    [ -s losses1 ] || not_as "losses in metrics.jsonl"
    expect_same losses1 losses2
    run train $tiny --job.dump_folder=plain
    expect_ok
    sed -n 's/.*"loss": *\([0-9.]*\).*/\1/p' plain/metrics.jsonl >losses
    ! cmp -s losses1 losses || not_as "other losses than without rules"
    grep -q 'init_rules: \["attention.wo=normal(0.03,0.05)"' run1/run.yaml || not_as "the rules in run.yaml"
    run train --config run1/run.yaml --job.dump_folder=again
    expect_ok
    sed -n 's/.*"loss": *\([0-9.]*\).*/\1/p' again/metrics.jsonl >again.losses
    expect_same losses1 again.losses
    run train $tiny --model.init_rules=[wo=kaiming] --job.dump_folder=none
    expect_error 2 "flag --model.init_rules: 'wo=kaiming' is not a rule"
    run train $tiny --model.init_rules=[wo] --job.dump_folder=none
    expect_error 2 "flag --model.init_rules: expected regex=what in the list, found 'wo'"
    run estimate --ranks 2 --model.init_rules=[nosuch=zeros]
    expect_error 2 "flag --model.init_rules: 'nosuch' matches no parameter"
}

case_groups_of_parameters_by_name() {
    make_corpus
    groups="--optimizer.no_decay=[norm,bias|^output] --optimizer.lr_factors=[tok_embeddings=0.1,attention.w[qk]=2]"
    for ranks in 1 2; do
        run_ranks $ranks train $tiny $groups --training.local_batch_size=1 --job.dump_folder=run$ranks \
            --checkpoint.enable
        expect_ok
        expect_err "^  groups   of [0-9]+ parameters 6 have no weight decay, 5 a factor of the learning rate$"
        losses run$ranks/metrics.jsonl >losses$ranks
    done
    expect_same losses1 losses2
    run train $tiny --job.dump_folder=plain
    expect_ok
    refuse_err "groups"
    losses plain/metrics.jsonl >losses
    ! cmp -s losses1 losses || not_as "other losses than without groups"
    grep -q 'no_decay: \[norm, "bias|^output"\]' run1/run.yaml || not_as "the groups in run.yaml"
    run train --config run1/run.yaml --job.dump_folder=again
    expect_ok
    losses again/metrics.jsonl >again.losses
    expect_same losses1 again.losses
    run train --config run1/run.yaml --training.steps=4 --optimizer.no_decay=norm
    expect_ok
    expect_err 'changed  since step-3: training.steps 3 -> 4, optimizer.no_decay \["norm","bias\|\^output"\] -> \["norm"\]$'
    expect_err "the losses differ from those of the unchanged run: .*optimizer.no_decay$"
}

case_groups_that_select_nothing_are_errors() {
    printf 'optimizer:\n  no_decay: [norm, biases]\n  lr_factors: [wq=x]\n' >bad.yaml
    run config check bad.yaml
    expect_error 2 "bad.yaml:2:13: optimizer.no_decay: 'biases' matches no parameter" \
        "bad.yaml:3:15: optimizer.lr_factors: 'wq=x' is not regex=factor"
    run estimate --ranks 2 --optimizer.lr_factors=[wq=1,attention.wq=2]
    expect_error 2 "flag --optimizer.lr_factors: 'attention.wq' matches no parameter that an earlier factor has not taken"
    run train --optimizer.lr_factors=[wq] --job.dump_folder=none
    expect_error 2 "flag --optimizer.lr_factors: expected regex=what in the list, found 'wq'"
}

# What titan reports about steps is true; otherwise it reports nothing.
case_too_few_samples_are_no_steps() {
    make_corpus
    run train $tiny --training.epochs=1 --training.steps=20 --training.global_batch_size=400
    expect_error 3 "the data has ended before the first step" "one step takes 400"
    refuse_err "which is"
    refuse_err "training starts"
    refuse_file run/metrics.jsonl
}

case_more_validation_steps_than_batches_are_all() {
    make_corpus
    for steps in -1 1000 9223372036854775806; do
        run train $tiny --job.dump_folder=run$steps --json --validation.enable --validation.dataset=text \
            --validation.dataset_path=corpus.txt --validation.steps=$steps
        expect_ok
        grep '"type":"validate"' out | grep -o '"loss":[0-9.]*,"ntokens":[0-9]*' >losses$steps
        [ -s losses$steps ] || not_as "expected a validation"
        cmp -s losses-1 losses$steps || not_as "other losses with validation.steps=$steps"
    done
}

case_the_banner_says_what_is_validated_on() {
    make_corpus
    run train $tiny
    expect_ok
    expect_err "^  data     text corpus.txt: 1 document, .* an epoch, not shuffled: it is one document$"
    expect_err "^  validate never \(validation.enable is false\)$"
    run train $tiny --overwrite --validation.enable --validation.dataset=text --validation.dataset_path=corpus.txt \
        --validation.freq=2
    expect_ok
    expect_err "^  validate text corpus.txt: 1 document, .* samples of 32, the training data itself, at step 1, every 2 steps, and at"
    echo "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness." >held.txt
    run train $tiny --overwrite --validation.enable --validation.dataset_path=held.txt --validation.freq=1 \
        --validation.seq_len=null
    expect_ok
    expect_err "^  validate text held.txt: 1 document, .* samples? of 32, at step 1, every 1 step, and at the end$"
}

case_the_built_in_run_has_its_own_folder() {
    make_corpus
    options=${tiny/--job.dump_folder=run/}
    run train $options
    expect_ok
    refuse_err "earlier titan"
    expect_file outputs/quick/metrics.jsonl
    refuse_file outputs/metrics.jsonl
    mv outputs/quick/* outputs
    run train $options --checkpoint.enable=true
    expect_ok
    expect_err "titan: a run of the built-in configuration is in ./outputs, .* this one is in ./outputs/quick"
    run train $options --checkpoint.enable=true --training.steps=4
    expect_ok
    refuse_err "earlier titan"
    run train $options --training.dataset_path=corpus.txt --job.dump_folder=outputs
    expect_error 2 "'outputs' holds another run"
    rm -r outputs
    mkdir outputs
    ln -s run.yaml outputs/run.yaml
    run train $options
    expect_ok
    expect_err "warning: it is not known whether an earlier titan has run in ./outputs: .*symbolic links"
}

# torchtitan's files are full of such keys, so they are no errors.
case_keys_that_another_key_turns_off_are_named() {
    make_corpus
    run train $tiny --validation.seq_len=null
    expect_ok
    refuse_err "keys without effect"
    run train $tiny --overwrite --checkpoint.interval=7 --checkpoint.async_mode=async --metrics.expert_loads \
        --checkpoint.keep_latest_k=10 --profiling.profile_freq=5 --lora.alpha=16.0
    expect_ok
    expect_err "keys without effect here: checkpoint.interval 7 \(checkpoint.enable is false\), checkpoint.async_mode async .*"
    expect_err "metrics.expert_loads true \(the model has no experts\), profiling.profile_freq 5 \(profiling.enable_profiling is false\), validation.seq_len 32 "
    refuse_err "keep_latest_k|lora.alpha"
    run train $tiny --overwrite --validation.seq_len=null --checkpoint.enable --checkpoint.interval=7
    expect_ok
    refuse_err "keys without effect"
}

run_cases

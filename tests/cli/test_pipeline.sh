#!/bin/bash
# SPDX-License-Identifier: MIT Pipelines by configuration: any degree and schedule gives the bits of one rank whose
# local batch is a microbatch.
. "$(dirname "$0")/lib.sh"
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # Open MPI does not free what it allocates

common="--model.flavor=debugmodel --model.dim=64 --model.ffn_dim=128 --training.seq_len=64 --training.steps=2
    --training.global_batch_size=8 --validation.seq_len=64 --metrics.log_freq=1 --metrics.peak_flops=1e9
    --dataloader.cache_dir=cache --training.dataset=text --training.dataset_path=corpus.txt
    --parallelism.threads_per_rank=1"
off="--checkpoint.enable=false"
pp=--parallelism.pipeline_parallel

# one MODEL: the run on one rank that the others are compared with. The corpus is made once.
one() {
    [ -e corpus.txt ] || make_corpus
    run train $common $off --model.name="$1" --training.local_batch_size=1 --job.dump_folder="$1"
    expect_ok
}

# Each row: model, ranks, degree, schedule, samples of a rank in a run, and more options.
same_bits() {
    while read -r model ranks degree schedule batch more; do
        run_ranks "$ranks" train $common $off --model.name="$model" --job.dump_folder=many ${pp}_degree="$degree" \
            ${pp}_schedule="$schedule" --training.local_batch_size="$batch" $more
        expect_ok
        expect_err "^  pipeline $schedule on $degree ranks, "
        run compare "$model" many --assert-equal
        expect_ok
        rm -rf many
    done
}

case_any_schedule_gives_the_bits_of_one_rank() {
    one llama3
    same_bits <<'EOF_ROWS'
llama3 2 2 1F1B 4
llama3 4 4 1F1B 8
llama3 2 2 Interleaved1F1B 4
llama3 2 2 ZBVZeroBubble 8
llama3 4 2 1F1B 4
llama3 4 2 1F1B 4 --parallelism.data_parallel_replicate_degree=2
llama3 2 2 1F1B 4 --parallelism.pipeline_parallel_last_stage_less_layers=3
llama3 2 2 GPipe 1
EOF_ROWS
    sweep <<'EOF_ROWS' | same_bits
llama3 2 2 LoopedBFS 4
llama3 2 2 InterleavedZeroBubble 4
llama3 2 2 DualPipeV 8
EOF_ROWS
}

case_a_tied_weight_is_on_both_ends() {
    for model in gpt2 qwen3; do
        one $model
    done
    same_bits <<'EOF_ROWS'
gpt2 2 2 1F1B 4
gpt2 4 2 1F1B 4
gpt2 2 2 ZBVZeroBubble 4
qwen3 2 2 1F1B 4
EOF_ROWS
}

case_a_microbatch_of_several_samples_is_a_local_batch_of_one_rank() {
    make_corpus
    run train $common $off --training.local_batch_size=2 --job.dump_folder=one
    expect_ok
    run_ranks 2 train $common $off --training.local_batch_size=8 ${pp}_degree=2 ${pp}_microbatch_size=2 \
        --job.dump_folder=two
    expect_ok
    expect_err "^  pipeline 1F1B on 2 ranks, 2 stages with 3, 3 layers, runs of 4 microbatches"
    run compare one two --assert-equal
    expect_ok
}

# One rank continues what a pipeline began, and a pipeline of another degree what one rank did.
case_runs_continue_on_other_degrees() {
    make_corpus
    options="$common --lr_scheduler.total_steps=4 --checkpoint.enable --checkpoint.interval=1
        --checkpoint.keep_latest_k=0 --validation.enable --validation.dataset=text
        --validation.dataset_path=corpus.txt --validation.freq=2 --validation.local_batch_size=1"
    run train $options --training.local_batch_size=1 --job.dump_folder=whole --training.steps=4
    expect_ok
    run_ranks 2 train $options --training.local_batch_size=4 --job.dump_folder=parts ${pp}_degree=2
    expect_ok
    run train $options --training.local_batch_size=1 --job.dump_folder=parts --training.steps=3
    expect_ok
    expect_err "changed .*training.local_batch_size 4 -> 1"
    refuse_err "differ from those of the unchanged run"
    run_ranks 4 train $options --training.local_batch_size=4 --job.dump_folder=parts --training.steps=4 ${pp}_degree=4
    expect_ok
    expect_err "changed .*pipeline_parallel_degree 1 -> 4"
    run compare whole parts --assert-equal
    expect_ok
    for step in 2 4; do
        run ckpt diff whole/checkpoint/step-$step parts/checkpoint/step-$step
        expect_ok
        run ckpt verify parts/checkpoint/step-$step
        expect_ok
    done
    for name in whole parts; do
        run eval $name --dataset text --dataset-path corpus.txt --dataloader.cache-dir cache --json
        expect_ok
        python3 -c 'import json; print(json.load(open("out"))["loss"])' >$name.loss
        run generate $name --prompt And --max-new-tokens 8 --temperature 0
        expect_ok
        cp out $name.text
    done
    [ -s parts.loss ] && [ -s parts.text ] || not_as "no loss, or no text"
    expect_same whole.loss parts.loss
    expect_same whole.text parts.text
    # weights of Hugging Face's are read by the rank that has them
    run ckpt convert whole weights
    expect_ok
    from="--checkpoint.enable --checkpoint.initial_load_path=weights --checkpoint.initial_load_in_hf
        --checkpoint.initial_load_model_only"
    run train $common $from --training.local_batch_size=1 --job.dump_folder=alone
    expect_ok
    run_ranks 2 train $common $from --training.local_batch_size=4 --job.dump_folder=both ${pp}_degree=2
    expect_ok
    run compare alone both --assert-equal
    expect_ok
}

# The sums of gradients depend on the samples of a microbatch, but not on the number of microbatches in a run.
case_another_microbatch_changes_the_losses() {
    make_corpus
    options="$common --lr_scheduler.total_steps=9 --checkpoint.enable --checkpoint.interval=1 --job.dump_folder=run"
    other="from here on, the losses differ from those of the unchanged run"
    run_ranks 2 train $options ${pp}_degree=2 --training.local_batch_size=4 --training.steps=1
    expect_ok
    run_ranks 2 train $options ${pp}_degree=2 --training.local_batch_size=8 --training.steps=2
    expect_ok
    expect_err "changed .*training.local_batch_size 4 -> 8"
    refuse_err "$other"
    run_ranks 2 train $options ${pp}_degree=2 --training.local_batch_size=8 --training.steps=3 ${pp}_microbatch_size=2
    expect_ok
    expect_err "$other: parallelism.pipeline_parallel_microbatch_size$"
    run train $options --training.local_batch_size=8 --training.steps=4
    expect_ok
    expect_err "changed .*sequences a microbatch 2 -> 8"
    expect_err "$other: sequences a microbatch$"
    run train $options --training.local_batch_size=4 --training.steps=5
    expect_ok
    expect_err "$other: training.local_batch_size$"
    run_ranks 2 train $options ${pp}_degree=2 --training.local_batch_size=8 --training.steps=6 ${pp}_microbatch_size=4
    expect_ok
    refuse_err "$other"
}

# start: a pipeline of two ranks that trains until it is stopped. Its process is $job.
start() {
    make_corpus
    background "$TITAN_SOURCE/tools/run-ranks" 2 "$TITAN" train $common ${pp}_degree=2 --training.local_batch_size=4 \
        --training.steps=1000000 --checkpoint.enable --checkpoint.interval=1000000 --job.dump_folder=run
    for ((i = 0; i < 600; i++)); do
        grep -q '^step: ' out && return
        kill -0 $job 2>/dev/null || not_as "the job ended before its first step"
        sleep 0.05
    done
    kill -9 $job
    not_as "30 seconds passed without a step"
}

# Waits for the end of the job, for a minute at most.
ended() {
    for ((i = 0; i < 1200; i++)); do
        kill -0 $job 2>/dev/null || break
        sleep 0.05
    done
    kill -9 $job 2>/dev/null && not_as "the job hangs"
    code=0
    wait $job || code=$?
}

case_a_signal_saves_and_ends_the_run() {
    start
    kill -USR1 $job
    ended
    expect_code 75
    expect_err "^titan: stopped by a signal after step [0-9]+; everything is saved$"
    run ckpt verify run
    expect_ok
}

# A long step is abandoned between two of its 500 runs.
case_a_long_step_stops_between_its_runs() {
    make_corpus
    TITAN_LONG_STEP=0 background "$TITAN_SOURCE/tools/run-ranks" 2 "$TITAN" train $common ${pp}_degree=2 \
        --training.local_batch_size=4 --training.global_batch_size=2000 --checkpoint.enable --job.dump_folder=run
    for ((i = 0; i < 600; i++)); do
        grep -q "training starts" err && break
        kill -0 $job 2>/dev/null || not_as "the job ended before its first step"
        sleep 0.05
    done
    kill -USR1 $job
    ended
    expect_code 75
    expect_err "^titan: stopped by a signal before (step 1 was done|the first step); there is nothing to save$"
    refuse_out "^step: "
}

case_a_killed_rank_ends_the_run() {
    start
    rank=$(tr " " "\n" <"/proc/$job/task/$job/children" | grep . | tail -1)
    kill -9 "$rank"
    ended
    [ "$code" != 0 ] || not_as "the run survived the death of a rank"
    expect_err "rank [01] .*signal 9|rank: .*[01]\]" # Open MPI 4 and 5
}

case_a_dry_run_prints_the_pipeline_and_leaves_nothing() {
    make_corpus
    run_ranks 2 train $common $off ${pp}_degree=2 --training.local_batch_size=4 ${pp}_schedule=Interleaved1F1B \
        --job.dump_folder=dry --dry-run
    expect_ok
    expect_out "^  pipeline Interleaved1F1B on 2 ranks, 4 stages with 1, 2, 2, 1 layers, runs of 4 microbatches"
    expect_out "nothing was trained or saved"
    refuse_file dry
}

# Two lines each: the key and what the message says; options. @ is pipeline_parallel_ of the section parallelism.
case_what_cannot_be_a_pipeline_is_refused_before_it_begins() {
    make_corpus
    while IFS='|' read -r key text; do
        read -r options
        run train $common $off ${pp}_degree=2 --training.local_batch_size=4 --job.dump_folder=bad \
            ${options//@/${pp}_}
        expect_error 2 "^titan: error: flag --${key//@/${pp#--}_}: .*$text"
        refuse_file bad
    done <<'EOF_ROWS'
@microbatch_size|3 does not divide training.local_batch_size, which is 4
    @microbatch_size=3
training.local_batch_size|1F1B on 2 ranks needs at least 2 microbatches, found 1
    --training.local_batch_size=1
training.local_batch_size|takes 5 microbatches in 2 rounds
    @schedule=Interleaved1F1B --training.local_batch_size=5 --training.global_batch_size=5
training.local_batch_size|DualPipeV on 2 ranks needs at least 4 microbatches, found 2
    @schedule=DualPipeV --training.local_batch_size=2
@layers_per_stage|makes 3 stages .* cannot be shared equally by 2 ranks
    @layers_per_stage=3
@layers_per_stage|makes 4 stages .* each of 2 ranks has one
    @layers_per_stage=2
@layers_per_stage|makes 2 stages .* has at least 2
    @layers_per_stage=4 @schedule=Interleaved1F1B
@schedule|ZBVZeroBubble has 2 stages on each of 2 ranks, found 8
    @layers_per_stage=1 @schedule=ZBVZeroBubble
@degree|4 needs 4 stages, and 1 layer, .* is too few
    @degree=4 --model.n_layers=1
@first_stage_less_layers|9 is more than the 8
    @first_stage_less_layers=9
parallelism.module_fqns_per_model_part|no stage has module 'layers.1'
    --parallelism.module_fqns_per_model_part=[[tok_embeddings,layers.0],[layers.2,norm,output]] --model.n_layers=3
parallelism.module_fqns_per_model_part|module 'layers.0' is listed twice
    --parallelism.module_fqns_per_model_part=[[tok_embeddings,layers.0],[layers.0,norm,output]] --model.n_layers=1
@schedule|is read from a file, but none is given
    @schedule=PipelineScheduleMulti
@schedule|'nope' is not one of 1F1B
    @schedule=nope
EOF_ROWS
}

case_errors_that_need_ranks_are_given_once() {
    make_corpus
    begin="$common $off ${pp}_degree=2 --training.local_batch_size=4 --job.dump_folder=bad"
    run_ranks 2 train $begin --training.gradient_sync=last_microbatch ${pp}_schedule=LoopedBFS
    expect_error 2 "flag --training.gradient_sync: last_microbatch, but LoopedBFS" "^help: use every_run, every_microbatch or auto"
    run_ranks 3 train $begin
    expect_error 2 "3 ranks cannot be divided over pp 2 x" "^help: start a multiple of 2 ranks"
    run_ranks 2 train $begin ${pp}_schedule=PipelineScheduleMulti ${pp}_schedule_csv=none.csv
    expect_error 2 "flag --parallelism.pipeline_parallel_schedule_csv: cannot open 'none.csv': no such file"
    refuse_file bad
    run config check $begin ${pp}_schedule=PipelineScheduleMulti ${pp}_schedule_csv=none.csv # the same code
    expect_error 2 "flag --parallelism.pipeline_parallel_schedule_csv: cannot open 'none.csv': no such file"
}

# Orders from a file: two stages take 64 microbatches in different orders, and whole backwards stand among split ones.
case_files_with_other_orders() {
    local n=64 i
    for i in $(seq 0 $((n - 1))); do printf '0F%d,' "$i"; done >far.csv
    for i in $(seq 0 $((n - 1))); do printf '0B%d,' "$i"; done | sed 's/,$/\n/' >>far.csv
    for i in $(seq $((n - 1)) -1 0); do printf '1F%d,' "$i"; done >>far.csv
    for i in $(seq 0 $((n - 1))); do printf '1B%d,' "$i"; done | sed 's/,$/\n/' >>far.csv
    run plan --ranks 2 --training.local_batch_size=$n --training.global_batch_size=$n --training.seq_len=16 \
        ${pp}_degree=2 \
        ${pp}_schedule=PipelineScheduleSingle ${pp}_schedule_csv=far.csv
    expect_error 2 "stages 0 and 1 take the microbatches in different orders, and there are 64" "at most 63"
    printf '0F0,0F1,0I0,0B1,0W0\n1F0,1I0,1F1,1B1,1W0\n' >mixed.csv
    run plan --ranks 2 --training.local_batch_size=2 --training.global_batch_size=2 --training.seq_len=16 \
        ${pp}_degree=2 \
        ${pp}_schedule=PipelineScheduleSingle ${pp}_schedule_csv=mixed.csv --training.gradient_sync=last_microbatch
    expect_error 2 "flag --training.gradient_sync: last_microbatch, but PipelineScheduleSingle"
}

run_cases

#!/bin/bash
# SPDX-License-Identifier: MIT titan config, and the messages about wrong configurations. Unit tests cover every kind of
# value; these cases show what a user sees.
. "$(dirname "$0")/lib.sh"

case_shipped_files_load() {
    found=0
    for file in "$TITAN_SOURCE"/configs/*.yaml; do
        [ -e "$file" ] || continue
        found=1
        run config check --no-files "$file"
        expect_ok
        expect_out "^ok$"
    done
    [ $found = 1 ] || not_as "no configs/*.yaml"
}

case_check_notes_what_has_no_effect() {
    printf 'compile:\n  enable: true\noptimizer:\n  implementation: foreach\n' >my.yaml
    run config check my.yaml
    expect_ok
    expect_out "^ok$"
    expect_err "my.yaml:2:11: compile.enable has no effect"
    expect_err "my.yaml:4:19: optimizer.implementation has no effect"
}

case_unknown_key_has_a_place_and_the_nearest_key() {
    printf 'training:\n  seqlen: 256\n' >my.yaml
    run config check my.yaml
    expect_error 2 "my.yaml:2:3" "seqlen" "training.seq_len"
}

case_unknown_key_of_another_section_is_found() {
    printf 'training:\n  lr: 1e-3\n' >my.yaml
    run config check my.yaml
    expect_error 2 "my.yaml:2:3" "optimizer.lr"
}

case_unknown_section() {
    printf 'trianing:\n  steps: 3\n' >my.yaml
    run config check my.yaml
    expect_error 2 "my.yaml:1:1" "trianing" "training"
}

case_unknown_flag() {
    run config check --training.seqlen=3
    expect_error 2 "training.seqlen" "training.seq_len"
}

case_wrong_type() {
    printf 'training:\n  steps: many\n' >my.yaml
    run config check my.yaml
    expect_error 2 "my.yaml:2:10" "many" "training.steps"
}

case_out_of_range() {
    run config check --training.steps=0
    expect_error 2 "training.steps" "0"
}

case_wrong_choice_lists_the_choices() {
    run config check --optimizer.name=Adamm
    expect_error 2 "Adamm" "AdamW"
}

case_yaml_syntax() {
    printf 'training:\n  steps: [1, 2\noptimizer:\n' >my.yaml
    run config check my.yaml
    expect_error 2 "my.yaml:[0-9]+:[0-9]+"
}

case_duplicate_key() {
    printf 'training:\n  steps: 1\n  seq_len: 8\n  steps: 2\n' >my.yaml
    run config check my.yaml
    expect_error 2 "my.yaml:4:3" "steps"
}

case_missing_file() {
    run config check nosuch.yaml
    expect_error 2 "nosuch.yaml"
    run config import nosuch.toml
    expect_error 2 "nosuch.toml"
}

case_a_folder_is_not_a_configuration() {
    mkdir folder.yaml
    run config check folder.yaml
    expect_error 2 "folder.yaml"
}

case_all_errors_at_once() {
    printf 'training:\n  steps: many\n  seqlen: 8\noptimizer:\n  lr: fast\n' >my.yaml
    run config check my.yaml --model.dim=none
    expect_error 2 "my.yaml:2:" "my.yaml:3:" "my.yaml:5:" "model.dim"
}

case_train_gives_the_same_errors_and_creates_nothing() {
    printf 'training:\n  steps: many\n  seqlen: 8\n' >my.yaml
    run train --config my.yaml --job.dump_folder=run
    expect_error 2 "my.yaml:2:" "my.yaml:3:"
    refuse_file run
}

case_ranks_report_an_error_once() {
    run_ranks 2 train --training.stepz=3 --job.dump_folder=run
    expect_error 2 "training.stepz" "training.steps"
    refuse_file run
}

case_what_is_not_built_is_refused() {
    run config check --parallelism.expert_parallel_degree=2
    expect_error 2 "parallelism.expert_parallel_degree"
}

case_keys_of_torchtitan_that_change_the_meaning_are_refused() {
    printf 'model:\n  converters: [float8]\n' >my.yaml
    run config check my.yaml
    expect_error 2 "model.converters"
    printf 'model:\n  converters: []\ncompile:\n  enable: false\n' >my.yaml
    run config check my.yaml
    expect_ok
}

case_show_round_trips() {
    run config show --training.steps=7 --optimizer.lr=3e-4
    expect_ok
    mv out first.yaml
    run config show first.yaml
    expect_ok
    expect_same out first.yaml
    grep -Eq 'steps: 7$' first.yaml || not_as "the flag's value in the output"
}

case_origin_names_file_line_and_flag() {
    printf 'training:\n  steps: 7\n' >my.yaml
    run config show my.yaml --optimizer.lr 3e-4 --origin
    expect_ok
    expect_out "steps: 7 .*my.yaml:2"
    expect_out "lr: .*--optimizer.lr"
    expect_out "seq_len: .*default"
}

case_the_last_setting_wins() {
    printf 'training:\n  steps: 7\n  seq_len: 8\n' >a.yaml
    printf 'training:\n  steps: 8\n' >b.yaml
    run config show --config a.yaml --config b.yaml --training.seq_len=16
    expect_ok
    expect_out " steps: 8$"
    expect_out " seq_len: 16$"
}

case_flags_may_be_spelled_in_several_ways() {
    run config show --training.seq-len=16 training.steps=9 --checkpoint.enable --no-dataloader.shuffle \
        --optimizer.lr 1e-4
    expect_ok
    expect_out " seq_len: 16$"
    expect_out " steps: 9$"
    expect_out " shuffle: false$"
    expect_out " lr: 0?\.?[01].*"
}

case_init_is_a_valid_file() {
    run config init
    expect_ok
    mv out my.yaml
    run config check my.yaml
    expect_ok
    run config show --json
    mv out quick.json
    run config show my.yaml --json
    expect_ok
    expect_same out quick.json
    grep -q "Tokens in a sequence. (1 to 16777216; default 2048)" my.yaml ||
        not_as "my.yaml does not name the default of seq_len"
    grep -q "^  seq_len: 256$" my.yaml || not_as "my.yaml does not have the quick run's seq_len"
}

case_diff_shows_what_differs() {
    printf 'training:\n  steps: 7\n' >a.yaml
    printf 'training:\n  steps: 8\n' >b.yaml
    run config diff a.yaml b.yaml
    expect_ok
    expect_out "^training.steps: 7 -> 8"
    [ "$(wc -l <out)" = 1 ] || not_as "expected one line"
}

case_show_json_is_json() {
    run config show --json
    expect_ok
    python3 -c 'import json; assert json.load(open("out"))["training"]["seq_len"] == 256' ||
        not_as "valid JSON with training.seq_len"
}

case_check_finds_impossible_models() {
    printf 'model:\n  name: lama3\n' >my.yaml
    run config check my.yaml
    expect_error 2 "my.yaml:2:9: model.name: unknown model.name 'lama3'" "did you mean llama3"
    printf 'model:\n  flavor: 9B\n' >my.yaml
    run config check my.yaml
    expect_error 2 "my.yaml:2:11: model.flavor: .*'9B'" "the choices are"
    run config check --model.name=gpt2 --model.flavor=124M --training.seq_len=1025
    expect_error 2 "flag --training.seq_len: seq_len 1025 is longer than the 1024 positions"
    for command in "plan --ranks 2" "estimate --ranks 2" train; do
        run $command --model.flavor=9B
        expect_error 2 "flag --model.flavor: .*'9B'"
    done
}

case_check_finds_everything_at_once() {
    cat >my.yaml <<'END'
model:
  n_heads: 7
  n_layers: 20000
  rope_scaling: {factor: 0.5}
training:
  stepz: 3
  dataset: text
  dataset_path: nosuch.txt
parallelism:
  fsdp_wrap_policy: ["layers.(", "norm"]
END
    run config check my.yaml --checkpoint.interval=0 --bogus
    expect_error 2 "^titan: error: 8 errors in the configuration" "unknown option '--bogus'" \
        "my.yaml:2:12: model.n_heads: model.dim 256 is not a multiple of model.n_heads 7" \
        "my.yaml:3:13: model.n_layers: .*must lie in" \
        "my.yaml:4:26: model.rope_scaling.factor: 0.5 is out of range" \
        "my.yaml:6:3: unknown key 'training.stepz'" \
        "my.yaml:8:17: training.dataset_path: 'nosuch.txt' does not exist" \
        "my.yaml:10:21: parallelism.fsdp_wrap_policy: .*layers" "flag --checkpoint.interval: 0 is out of range"
    run train --config my.yaml --bogus
    expect_error 2 "unknown option '--bogus'" "my.yaml:2:12" "my.yaml:6:3" "my.yaml:10:21"
    refuse_file outputs
}

# Paths do not depend on the folder of the configuration, though people expect that they do.
case_a_missing_path_says_where_it_was_looked_for() {
    mkdir -p configs/data
    echo "In the beginning" >configs/data/text.txt
    printf 'training:\n  dataset: text\n  dataset_path: data/text.txt\n' >configs/my.yaml
    run config check configs/my.yaml
    expect_error 2 "configs/my.yaml:3:17: training.dataset_path: 'data/text.txt' does not exist" \
        "; from the current folder it is '$PWD/data/text.txt'" \
        "^help: paths are relative to the folder in which titan starts, .*: write 'configs/data/text.txt'$"
    run train --config configs/my.yaml --job.dump_folder=run
    expect_error 3 "configs/my.yaml:3:17: training.dataset_path: cannot open 'data/text.txt': no such file" \
        "; from the current folder it is '$PWD/data/text.txt'" \
        "^help: paths are relative .* write 'configs/data/text.txt'$"
    run train --config configs/my.yaml --training.dataset_path=texts.txt --job.dump_folder=run
    expect_error 3 "no such file; from the current folder it is '$PWD/texts.txt'" "titan downloads nothing"
    run train --config configs/my.yaml --training.dataset_path=/data/texts.txt --job.dump_folder=run
    expect_error 3 "cannot open '/data/texts.txt': no such file$"
    run train --config ./config/my.yaml
    expect_error 2 "cannot open './config/my.yaml': no such file; from the current folder it is '$PWD/config/my.yaml'"
    run config check "--training.dataset=[{dataset: text, dataset_path: none.txt}]"
    expect_error 2 "entry 1: cannot read 'none.txt': .*; from the current folder it is '$PWD/none.txt'"
    run ckpt list nothing
    expect_error 3 "'nothing'.*; from the current folder it is '$PWD/nothing'"
}

# An error about a value that nobody set names the key, and says why it has that value.
case_values_that_nobody_set_are_explained() {
    printf 'model: {flavor: debugmodel}\n' >my.yaml
    run config check my.yaml --parallelism.pipeline_parallel_degree=4 --training.local_batch_size=2
    expect_error 2 "(flag|my.yaml|parallelism|training)[^ ]* .*microbatches"
    refuse_err "(^|: )(default|builtin:quick):"
    run config check --training.local_batch_size=3
    expect_error 2 "^titan: error: flag --training.local_batch_size: global_batch_size 8 is not a multiple of" \
        "^help: set training.global_batch_size=6, or training.local_batch_size=2, which divides 8$"
    run config check --training.local_batch_size=4096
    expect_error 2 "^help: a step has 8 sequences: set training.local_batch_size=8, or a"
    for remedy in training.global_batch_size=6 training.local_batch_size=2; do
        run config check --training.local_batch_size=3 --$remedy
        expect_ok
    done
}

case_check_finds_expressions_that_select_nothing() {
    run config check --parallelism.fsdp_wrap_policy='[nosuchlayer]'
    expect_error 2 "flag --parallelism.fsdp_wrap_policy: 'nosuchlayer' matches no parameter"
    run config check --parallelism.fsdp_reshard_after_forward='[nosuchlayer]'
    expect_error 2 "flag --parallelism.fsdp_reshard_after_forward: 'nosuchlayer' matches no unit"
    run config check --parallelism.fsdp_reshard_after_forward=4
    expect_ok
}

case_check_looks_for_files_unless_told_not_to() {
    echo "In the beginning" >corpus.txt
    text="--training.dataset=text --training.dataset_path=corpus.txt"
    run config check $text
    expect_ok
    run config check $text --model.hf_assets_path=nosuch
    expect_error 2 "flag --model.hf_assets_path: 'nosuch' does not exist" "built-in tokenizer"
    mkdir empty
    run config check $text --model.hf_assets_path=empty
    expect_error 2 "flag --model.hf_assets_path: .*'empty' has no tokenizer.json"
    run config check $text --model.vocab_size=100
    expect_error 2 "flag --model.vocab_size: the tokenizer has 2,048 tokens"
    run config check --checkpoint.initial_load_path=nosuch --parallelism.machine_file=nofile
    expect_error 2 "2 errors" "checkpoint.initial_load_path: 'nosuch' does not exist" \
        "machine_file: 'nofile' does not exist"
    run config check --no-files $text --model.hf_assets_path=nosuch --checkpoint.initial_load_path=nosuch
    expect_ok
    touch weights.safetensors # weights may be a single file
    run config check $text --checkpoint.initial_load_path=weights.safetensors
    expect_ok
    run config check --model.flavor=hf --model.hf_assets_path=empty
    expect_error 2 "flag --model.hf_assets_path: .*empty/config.json"
}

case_show_names_what_the_flavor_sets() {
    run config show --origin --model.flavor=125M --model.dim=384
    expect_ok
    expect_out "^  dim: 384 +# flag --model.dim$"
    expect_out "^  n_layers: 12 +# flavor$"
    expect_out "^  n_kv_heads: 4 +# flavor$"
    expect_out "^    factor: 8.0 +# flavor$"
    expect_out "^  seq_len: 256 +# training.seq_len$"
}

# A number is printed as a person would write it, even if a flavor holds it as a float32.
case_no_number_has_more_digits_than_it_needs() {
    run config show
    expect_ok
    expect_out "^  lr: 0.0008$"
    expect_out "^  norm_eps: 1e-5$"
    expect_out "^  rope_theta: 500000.0$"
    refuse_out "[0-9]{9}"
    run config show --json --model.name=qwen3 --model.flavor=0.6B --optimizer.lr=3e-3
    expect_ok
    expect_out '"lr": 0.003,$'
    expect_out '"norm_eps": 1e-6,$'
    refuse_out "[0-9]{9}"
}

case_toml_is_recognised_and_imported() {
    cat >debug_model.toml <<'END'
# torchtitan Config.toml
[job]
dump_folder = "./outputs"
description = "Llama 3 debug \"training\""
print_config = false

[profiling]
enable_profiling = false
save_traces_folder = "profile_trace"

[model]
name = "llama3"
flavor = "debugmodel"
# test folder with tokenizer.json, for debug purpose only
hf_assets_path = './tests/assets/tokenizer'
converters = []

[optimizer]
name = "AdamW"
lr = 8e-4
eps = 1e-8

[lr_scheduler]
warmup_steps = 2  # lr scheduler warm up, normally 20% of the train steps
decay_ratio = 0.8

[training]
local_batch_size = 8
steps = 1_0
dataset = "c4_test"
dataset_path = "c4.json"

[parallelism]
data_parallel_shard_degree = -1
fsdp_reshard_after_forward = "default" # default / never / always
context_parallel_rotate_method = "allgather"
[checkpoint]
exclude_from_loading = [
  "lr_scheduler", # one a line
  "dataloader",
]

[activation_checkpoint]
mode = "selective"
selective_ac_option = '2'

[compile]
enable = true
components = ["model", "loss"]

[quantize.linear.float8]
filter_fqns = ["output"]
END
    run config check debug_model.toml
    expect_error 2 "debug_model.toml: this is TOML, but titan reads YAML" "titan config import debug_model.toml"
    cp debug_model.toml renamed.yaml
    run train --config renamed.yaml
    expect_error 2 "renamed.yaml: this is TOML" "titan config import renamed.yaml"
    run config import debug_model.toml --training.seq_len=128
    expect_ok
    expect_out "# left out: compile.enable = true .there is nothing to compile"
    mv out imported.yaml
    run config show imported.yaml --origin
    expect_ok
    expect_out "^  description: \"Llama 3 debug .*training"
    expect_out "^  steps: 10 .*# imported.yaml"
    expect_out "^  seq_len: 128 .*# imported.yaml"
    expect_out "^  exclude_from_loading: \\[lr_scheduler, dataloader\\] "
    expect_out "^  selective_ac_option: 2 "
    expect_out "^  beta1: 0.9 .*# default"
    printf '[training]\nsteps = "many"\nlr = 1\n[checkpoint]\nenable = true\nenable_checkpoint = true\n' >wrong.toml
    run config import wrong.toml
    expect_error 2 "wrong.toml:2:9: training.steps" "wrong.toml:3:1: unknown key 'training.lr'" \
        "wrong.toml:6:1: checkpoint.enable_checkpoint: 'checkpoint.enable' is set already, by 'checkpoint.enable'"
    for broken in '[training' 'a = ' 'a = "x' 'a = [1, 2' 'a = 1 2' 'a = {b = 1' '= 3' '[[a]]' 'a = "\q"'; do
        printf '[job]\n%s\n' "$broken" >broken.toml
        run config import broken.toml
        expect_error 2 "broken.toml:[23]:[0-9]+: TOML syntax: "
    done
}

case_every_torchtitan_file_is_imported() {
    refused="v0.1.0_debug_model.toml v0.1.0_llama3_8b.toml v0.1.0_llama3_70b.toml v0.1.0_llama3_405b.toml"
    for file in "$TITAN_SOURCE"/tests/cli/torchtitan/*.toml; do
        run config import "$file" --out x.yaml
        expect_ok
        [ ! -s out ] || not_as "something on stdout"
        mv err import_err
        run config check --no-files x.yaml
        case " $(echo $refused) " in
        *" ${file##*/} "*)
            expect_code 2
            sed 's/^titan: error: //' err >wanted
            sed 's/^titan: warning: `titan config check` will refuse the result: //' import_err >found
            cmp -s wanted found || not_as "import of ${file##*/} foretells $(cat found)"
            ;;
        *) expect_ok && [ ! -s import_err ] || not_as "import of ${file##*/} says $(cat import_err)" ;;
        esac
        grep -q "# not set: training.mixed_precision_param; torchtitan's default is bfloat16" x.yaml &&
            grep -q "# not set: debug.seed; torchtitan's default is null" x.yaml ||
            not_as "no note of defaults in x.yaml"
    done
    cp "$TITAN_SOURCE"/tests/cli/torchtitan/v0.1.0_llama3_405b.toml .
    run config import v0.1.0_llama3_405b.toml
    expect_ok
    for line in "# left out: model.converters = .float8. .titan computes" "  tensor_parallel_degree: 8" \
        "# checkpoint.last_save_model_weights_only in the file" "  last_save_model_only: false" \
        "# left out: float8.filter_fqns = .output. .part of model.converters" "  dataset_path: allenai/c4" \
        "# left out: training.compile = true"; do
        expect_out "$line"
    done
}

# Published runs of the 405B model also have a pipeline, and with long sequences context parallelism.
case_llama3_of_torchtitan_is_accepted_with_its_degrees() {
    while read -r size degree; do
        run config import "$TITAN_SOURCE/tests/cli/torchtitan/v0.2.2_llama3_$size.toml" --out x.yaml
        expect_ok
        run config check --no-files x.yaml
        expect_ok
        run config check --no-files x.yaml --parallelism.pipeline_parallel_degree=8 --training.local_batch_size=8
        expect_ok
        run config show x.yaml --parallelism.pipeline_parallel_degree=8 --training.local_batch_size=8
        expect_ok
        expect_out "^  tensor_parallel_degree: $degree$"
        expect_out "^  pipeline_parallel_degree: 8$"
    done <<'EOF_ROWS'
8b 1
70b 8
405b 8
EOF_ROWS
}

case_block_causal_attention_is_a_document_mask() {
    printf '[model]\nflavor = "debugmodel"\nuse_flex_attn = true\nattn_mask_type = "block_causal"\n' >flex.toml
    run config import flex.toml --training.dataset=kjv --out x.yaml
    expect_ok
    grep -q "# model.attn_mask_type = block_causal in the file" x.yaml || not_as "no word of attn_mask_type in x.yaml"
    grep -q "# left out: model.use_flex_attn = true" x.yaml || not_as "no word of use_flex_attn in x.yaml"
    run config show x.yaml --origin
    expect_ok
    expect_out "  document_mask: true .*# x.yaml"
    sed 's/block_causal/sliding/' flex.toml >other.toml
    run config import other.toml --out y.yaml
    expect_ok
    run config check y.yaml
    expect_error 2 "model.attn_mask_type" "training.document_mask=true is block_causal"
}

# In an earlier torchtitan the local batch is divided into microbatches; in a later one each microbatch has the size of
# the local batch.
case_numbers_of_microbatches_become_their_size() {
    printf '[training]\nlocal_batch_size = 4\n[parallelism]\nnum_pp_microbatches = 8\n' >later.toml
    run config import later.toml --training.dataset=kjv
    expect_out "# parallelism.num_pp_microbatches = 8 in the file"
    expect_out "  pipeline_parallel_microbatch_size: 4"
    expect_out "# 8 microbatches of 4 samples"
    expect_out "  local_batch_size: 32"
    sed 's/num_pp_microbatches = 8/pipeline_parallel_microbatches = 2/' later.toml >earlier.toml
    run config import earlier.toml --training.dataset=kjv
    expect_out "# parallelism.pipeline_parallel_microbatches = 2 in the file"
    expect_out "  pipeline_parallel_microbatch_size: 2"
    expect_out "  local_batch_size: 4"
    sed 's/= 8/= 3/; s/num_pp/pipeline_parallel/' later.toml >uneven.toml
    run config import uneven.toml --training.dataset=kjv
    expect_out "# refused: this name is from an earlier torchtitan"
}

case_lists_of_modules_are_imported() {
    printf '[parallelism]\npipeline_parallel_schedule = "zbvZeroBubble"\n' >x.toml
    printf 'module_fqns_per_model_part = [["tok_embeddings", "layers.0"], ["norm", "output"]]\n' >>x.toml
    run config import x.toml --training.dataset=kjv --out x.yaml
    expect_ok
    run config show x.yaml --origin
    expect_ok
    expect_out '  module_fqns_per_model_part: \["tok_embeddings layers.0", "norm output"\] .*# x.yaml'
    expect_out "  pipeline_parallel_schedule: ZBVZeroBubble .*# x.yaml"
}

# Datasets, models and optimizers that a user has added to torchtitan are written with a remark on what to do about
# them.
case_words_of_others_are_written_as_refused() {
    cat >mine.toml <<'END'
[model]
name = "my_model"
converters = "float8"
[optimizer]
name = "my_optimizer"
[training]
dataset = "my_corpus"
steps = 7
[checkpoint]
exclude_from_loading = "lr_scheduler,dataloader"
[float8]
enable_float8_linear = true
END
    run config import mine.toml --out x.yaml
    expect_ok
    expect_err "will refuse the result" "training.dataset"
    for comment in "^  dataset: my_corpus$" "# help: write its text to files, and set training.dataset" \
        "# left out: float8.enable_float8_linear = true .titan" "# left out: model.converters = float8 .titan" \
        "^  exclude_from_loading: .lr_scheduler, dataloader.$" "^  name: my_model$" "^  name: my_optimizer$"; do
        grep -q "$comment" x.yaml || not_as "no $comment: $(cat x.yaml)"
    done
    run config check x.yaml
    expect_error 2 "training.dataset" "model.name" "optimizer.name"
    sed -i 's/my_optimizer$/AdamW/; s/my_model$/llama3/; s/my_corpus$/kjv/' x.yaml
    run config check x.yaml
    expect_ok
}

# As torchtitan v0.2.2 saves a resolved configuration, and as the version of August 2026 does.
case_saved_json_is_imported() {
    cat >old.json <<'END'
{"job": {"config_file": "x.toml", "dump_folder": "./out",
         "description": "a: \ud83d\ude42 \ud83d \\ud83d", "save_config_file": null},
 "model": {"name": "llama3", "flavor": "debugmodel", "tokenizer_path": null, "converters": []},
 "optimizer": {"name": "AdamW", "lr": 0.0008, "implementation": "fused"},
 "training": {"dataset": "kjv", "dataset_path": null, "local_batch_size": 4, "seq_len": 128, "steps": 12,
              "max_norm": 1.0, "global_batch_size": -1}}
END
    run config import old.json --out x.yaml
    expect_ok
    run config show x.yaml --origin
    expect_ok
    expect_out "^  steps: 12 .*# x.yaml"
    expect_out "^  dump_folder: \"?./out\"? .*# x.yaml"
    expect_out "^  description: \"a: 🙂 � .*ud83d\" .*# x.yaml"
    cat >new.json <<'END'
{
  "model_spec": {"name": "llama3", "flavor": "debugmodel", "model": {"dim": 256, "layers": [{"attention": {}}]}},
  "hf_assets_path": "./tests/assets/tokenizer",
  "dump_folder": "./outputs",
  "profiler": {"enable_profiling": true, "profile_freq": 10, "memory_snapshot_max_entries": 1000000},
  "metrics": {"log_freq": 1, "enable_wandb": false},
  "tokenizer": {},
  "dataloader": {"dataset": {"dataset": {"source": "<hf>"}}, "collator": {}, "seed": 42, "shuffle": false,
                 "repeat": true, "streaming_shuffle_buffer_size": 1000, "read_options": "ReadOptions()",
                 "num_prefetch_batches": 2},
  "optimizer": {"param_groups": [{"pattern": ".*", "optimizer_name": "AdamW",
                                  "optimizer_kwargs": {"lr": 0.0003, "betas": [0.9, 0.99], "eps": 1e-08,
                                                       "weight_decay": 0.2}}],
                "implementation": "fused", "optimizer_factory_kwargs_by_name": {}},
  "lr_scheduler": {"warmup_steps": 2, "total_steps": null, "decay_ratio": 0.8, "decay_type": "linear",
                   "min_lr_factor": 0.0},
  "training": {"num_tokens_per_microbatch_per_dp_rank": 1024, "num_tokens_per_train_step": 8192,
               "max_context_length": 256, "max_norm": 1.0, "steps": 10, "disable_cuda_graphs": false,
               "dtype": "float32", "mixed_precision_param": "bfloat16", "mixed_precision_reduce": "float32",
               "gc_freq": 50, "gc_debug": false},
  "parallelism": {"data_parallel_shard_degree": -1, "pipeline_parallel_schedule": "1F1B", "num_pp_microbatches": 1,
                  "spmd_backend": "spmd_types", "module_fqns_per_model_part": null,
                  "pipeline_parallel_layers_per_stage": null, "context_parallel_ptrr_mask_key": null},
  "checkpoint": {"enable": false, "interval": 10, "initial_load_path": null, "initial_load_in_hf_quantized": false},
  "activation_checkpoint": {"preserve_rng_state": true, "determinism_check": "default", "debug": false,
                            "force_recompute_mm_shapes_by_fqns": ["moe.router.gate"]},
  "compile": {"enable": false, "components": ["model", "loss"], "backend": "inductor"},
  "comm": {"init_timeout_seconds": 300, "mode": "default"},
  "validator": {"freq": 5, "enable": false, "steps": 10, "dataloader": {"dataset": {}, "shuffle": false}},
  "debug": {"seed": null, "deterministic": false, "print_config": false, "save_config_file": "config.json"},
  "override": {"imports": []},
  "loss": {"loss_fn": {"global_vocab_size": 2048}}
}
END
    run config import new.json --out y.yaml
    expect_ok
    expect_err "will refuse the result" "dataloader.dataset"
    run config check --no-files y.yaml
    expect_error 2 "dataloader.dataset is a torchtitan key" "set training.dataset and training.dataset_path"
    sed -i '/^  dataset: {/d' y.yaml
    run config check --no-files y.yaml
    expect_ok
    run config show y.yaml --no-files --origin
    expect_ok
    for line in "name: llama3" "flavor: debugmodel" "seq_len: 256" "local_batch_size: 4" "global_batch_size: 32" \
        "lr: 0.0003" "beta2: 0.99" "weight_decay: 0.2" "enable_profiling: true" "shuffle: false" "freq: 5"; do
        expect_out "^  $line .*# y.yaml"
    done
}

case_imported_values_are_those_of_the_file() {
    cp "$TITAN_SOURCE"/tests/cli/torchtitan/v0.2.2_llama3_8b.toml .
    run config import v0.2.2_llama3_8b.toml --out x.yaml --model.flavor=debugmodel --model.hf_assets_path=null \
        --model.rope_scaling.factor=4
    expect_ok
    run config show x.yaml --origin
    expect_ok
    for line in "  lr: 0.0003 .*# x.yaml" "  seq_len: 8192 .*# x.yaml" "  flavor: debugmodel .*# x.yaml" \
        "  hf_assets_path: null .*# x.yaml" "  last_save_model_only: true .*# x.yaml" "  save_traces_folder: profile" \
        "    factor: 4.0? .*# x.yaml" "  mixed_precision_param: float32 .*# default"; do
        expect_out "$line"
    done
}

case_every_key_that_torchtitan_had_is_known() {
    split -l 20 "$TITAN_SOURCE"/tests/cli/torchtitan/all_keys.txt keys.
    for part in keys.*; do
        sed 's/$/ = "@"/' "$part" >x.toml
        run config import x.toml
        refuse_err "unknown|more"
    done
}

case_a_python_configuration_is_recognised() {
    printf 'def llama3_debugmodel():\n    return 1\n' >config_registry.py
    for command in "config import config_registry.py" "train --config config_registry.py"; do
        run $command
        expect_error 2 "config_registry.py: this is Python" "titan config init"
    done
}

run_cases

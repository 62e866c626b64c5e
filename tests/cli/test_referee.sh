#!/bin/bash
# SPDX-License-Identifier: MIT titan compare --gradients: what makes the gradients of two jobs differ. The dumps in
# tests/interop/faults were written by PyTorch: tests/interop/train_with_faults.py --small.
. "$(dirname "$0")/lib.sh"

faults=$TITAN_SOURCE/tests/interop/faults

# named PATTERN A B [OPTION...]: the verdict is that pattern alone; "clean": no pattern, and exit code 0.
named() {
    run compare --gradients "$2" "$3" "${@:4}"
    code_wanted=1
    [ "$1" != clean ] || code_wanted=0
    expect_code $code_wanted
    # shellcheck disable=SC2046
    found=$(echo $(sed -n 's/^pattern \([^:]*\):.*/\1/p' out))
    found=${found:-clean}
    [ "$found" = "$1" ] || not_as "$3: expected $1, found $found"
}

change() { # CHANGE...: makes the dump b
    python3 "$TITAN_SOURCE/tests/cli/change_dump.py" "$@" || not_as "change_dump.py $*"
}

case_jobs_that_are_right_are_clean() {
    named clean "$faults/truth" "$faults/fsdp_2_tensor_2"
    named clean "$faults/truth" "$faults/bfloat16"
    named clean "$faults/truth_tied" "$faults/tied"
    named clean "$faults/truth_ignored" "$faults/ignored"
}

case_faults_of_pytorch_jobs_are_named() {
    while read -r fault truth pattern; do
        named "$pattern" "$faults/$truth" "$faults/$fault"
    done <<'END'
labels_not_shifted truth labels
labels_shifted_twice truth labels
one_microbatch truth dp-sum
one_part_of_the_sequence truth cp-sum
keys_of_one_part truth cp-sum
tensor_sum_missing truth tp-sum
norms_of_one_rank truth norm-one-rank
recomputed_otherwise truth recompute
dropout truth dropout
rotary_layout_of_gradients_only truth rotary-layout
replicas_not_reduced truth replicas
ignored_counted truth_ignored ignored-labels
ignored_prompt_learned truth_ignored ignored-labels
tied_without_lookup truth_tied tied
tied_without_output truth_tied tied
balance_loss_missing truth_moe router-loss
END
}

case_faults_that_scale_or_move_gradients_are_named() {
    while read -r pattern truth change; do
        # shellcheck disable=SC2086
        change "$faults/$truth" b $change
        named "$pattern" "$faults/$truth" b
    done <<'END'
clean truth coarse 1e-7
clean truth wrapped
factor-dp truth factor 2
factor-dp truth factor 0.5
factor-accumulation truth factor 8
factor-tokens truth factor 128
factor truth factor 3
factor-sign truth factor -1
factor-experts truth_moe factor 4 experts
factor-tp truth factor 4 norm
other-tokens truth other_tokens
loss-scale truth factor 65536
clipping truth clipped 0.5
ignored-labels truth_ignored factor 0.71875
no-gradient truth zero 0 layers.1.self_attn
not-finite truth nan 0 layers.0.mlp
shard-order truth swapped 2 proj
shard-missing truth half_zero 2 up_proj
part-wrong truth part_wrong 4 up_proj
transposed truth transposed 0 o_proj
other-tensor truth renamed
rotary-layout truth rotary 4 layers.2.self_attn.q_proj
precision truth coarse 0.002
END
}

case_two_faults_are_both_named() {
    change "$faults/truth" a factor 2
    change a b swapped 2 layers.0.mlp.down_proj
    named "factor-dp shard-order" "$faults/truth" b
}

case_the_verdict_comes_first_with_its_evidence() {
    run compare --gradients "$faults/truth" "$faults/labels_not_shifted"
    expect_code 1
    head -1 out | grep -q '^DIFFERENT: .*labels_not_shifted/step-1 against .*truth/step-1: 30 of 30 tensors' ||
        not_as "no verdict in the first line"
    expect_out "^pattern labels: labels are shifted by one token$"
    expect_out "  - the rows that differ are those whose labels change if the label of each token is the token itself"
    expect_out "first in backward order: lm_head.weight"
    expect_out "rounding explains float32 in 3 layers: 3 x 6.0e-08 x sqrt\(16 x 4\)"
    run compare --gradients "$faults/truth" "$faults/fsdp_2_tensor_2"
    expect_ok
    expect_out "^OK: .* 0 of 30 tensors differ"
}

case_a_pattern_that_nobody_knows_is_not_named() {
    change "$faults/truth" b part_wrong 1 layers.1.mlp.up_proj
    change b c coarse 0.3 layers.0.self_attn.v_proj
    run compare --gradients "$faults/truth" c
    expect_code 1
    expect_out "^no known pattern explains this"
    expect_out "first in backward order: model.layers.0.self_attn.v_proj"
}

case_a_reference_measures_what_rounding_explains() {
    change "$faults/truth" a coarse 2e-7
    change "$faults/truth" b coarse 4e-7
    run compare --gradients a b --reference "$faults/truth"
    expect_ok
    expect_out "or less where the other dump of this type is nearer"
    change "$faults/truth" b coarse 1.5e-6
    named clean "$faults/truth" b
    run compare --gradients a b --reference "$faults/truth" --json
    expect_code 1
    python3 -c 'import json
looks = json.load(open("out"))["looks"]
assert [l["ok"] for l in looks] == [True, False] and looks[1]["measured"], looks[1]["patterns"]' || not_as "JSON"
}

case_a_stated_type_decides_what_rounding_explains() {
    change "$faults/truth" b coarse 0.002
    named precision "$faults/truth" b
    named clean "$faults/truth" b --dtype bfloat16
}

case_names_of_titan_are_translated() {
    cp -r "$faults/truth" a
    change "$faults/truth" b coarse 1e-7
    python3 - <<'END'
import json, sys, os
sys.path.insert(0, os.environ["TITAN_SOURCE"] + "/tests/cli")
from change_dump import read, write, rows_of, joined, other_layout
path = "b/step-1/gradients/model.safetensors"
tensors, names = read(path), {}
for name in list(tensors):
    names[name] = name.replace("model.", "").replace("self_attn.q_proj", "attention.wq")
    shape, values = tensors.pop(name)
    if "q_proj" in name:
        values = joined(other_layout(rows_of(shape, values), 4))
    tensors[names[name]] = (shape, values)
write(path, tensors)
facts = json.load(open("a/reference.json"))
json.dump(dict(facts, names=names), open("a/reference.json", "w"))
END
    named clean a b
    refuse_err .
}

case_replicas_that_drift_are_found() {
    mkdir b
    change "$faults/truth" b/rank-0 coarse 1e-7
    cp -r b/rank-0 b/rank-1
    named clean "$faults/truth" b
    change b/rank-0 b/rank-1 factor 1.000001 layers.1.mlp.up_proj
    named replicas "$faults/truth" b
    expect_out "1 of 30 gradients are not the same on all 2 ranks, most in model.layers.1.mlp.up_proj.weight"
    mv b/rank-1 b/rank-2
    run compare --gradients "$faults/truth" b
    expect_error 3 "rank-1' is missing" "number them from rank-0 on"
}

case_single_files_and_step_folders_are_dumps_too() {
    gradients=step-1/gradients/model.safetensors
    named clean "$faults/truth/$gradients" "$faults/fsdp_2_tensor_2/$gradients"
    named clean "$faults/truth/step-1" "$faults/fsdp_2_tensor_2"
    named clean "$faults/truth" "$faults/fsdp_2_tensor_2" --step 1
    run compare --gradients "$faults/truth" "$faults/fsdp_2_tensor_2" --step 2
    expect_error 3 "have no step in common" "--step chooses"
}

case_a_gradient_that_is_missing_is_a_difference() {
    change "$faults/truth" b missing 0 layers.1.mlp.up_proj
    run compare --gradients "$faults/truth" b
    expect_code 1
    expect_out "only in the truth: gradients/model.layers.1.mlp.up_proj.weight"
}

case_the_page_shows_every_layer() {
    run compare --gradients "$faults/truth" "$faults/recomputed_otherwise" --html page.html
    expect_code 1
    grep -q '<h1 class="no">DIFFERENT' page.html || not_as "no verdict in the page"
    [ "$(grep -c '^<tr><th>[012]</th>' page.html)" = 3 ] || not_as "not three layers in the page"
    grep -q 'class="s[4567]" title="model.layers.1.mlp.up_proj.weight: error' page.html || not_as "no cell in the page"
    ! grep -Eq '@BODY@|https?://' page.html || not_as "the page is not complete, or needs a network"
}

case_wrong_command_lines_and_dumps_are_explained() {
    run compare --gradients "$faults/truth" nowhere
    expect_error 3 "nowhere"
    change "$faults/truth" b foreign
    run compare --gradients "$faults/truth" b
    expect_error 3 "have no gradient in common" "save both under Hugging Face's names"
    run compare --gradients "$faults/truth" "$faults/tied" --tolerance 0.1
    expect_error 2 "--tolerance does not go with --gradients"
    run compare "$faults/truth" "$faults/tied" --html page.html
    expect_error 2 "--html needs --gradients"
    run compare --gradients "$faults/truth" "$faults/tied" --dtype bfloat17
    expect_error 2 "bfloat16"
    run compare --gradients "$faults/truth"
    expect_error 2 "two"
    echo '[]' >b/reference.json
    run compare --gradients "$faults/truth" b
    expect_error 3 "reference.json': an object is expected"
}

run_cases

#!/bin/bash
# SPDX-License-Identifier: MIT
# titan completion: what the shells offer, asked of the shells themselves.
. "$(dirname "$0")/lib.sh"

# offer LINE: the words that bash offers at the end of the line, in the file out.
offer() {
    run completion bash
    expect_ok
    mv out script.bash
    echo "bash completes: $1" >command
    COMP_LINE=$1 bash -c '
        . ./script.bash
        read -ra COMP_WORDS <<<"$COMP_LINE"
        COMP_POINT=${#COMP_LINE} COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        complete -p titan >/dev/null || exit 1
        _titan
        printf "%s\n" "${COMPREPLY[@]}"' >out 2>err || not_as "the script failed"
    [ ! -s err ] || not_as "the script printed an error"
}

# offered WORD...: exactly these, in any order.
offered() {
    printf '%s\n' "$@" | sort >wanted
    sort -u out >found
    cmp -s wanted found || not_as "expected exactly: $*"
}

case_commands_are_those_of_help() {
    run help
    sed -n 's/^  \([a-z]*\)  *[^ ].*/\1/p' out | grep -v '^titan$' | sort -u >help
    offer "titan "
    [ "$(wc -l <help)" -gt 10 ] || not_as "no commands found in titan help"
    sort -u out >found
    cmp -s help found || not_as "commands differ: $(diff help found)"
    offer "titan gen"
    offered generate
    offer "titan help gen"
    offered generate
}

case_options_are_those_of_help() {
    for command in $("$TITAN" help | sed -n 's/^  \([a-z]*\)  *[^ ].*/\1/p' | grep -vx 'titan\|help'); do
        run "$command" --help
        sed '/[Kk]eys, as flags/,$d' out | sed -n 's/^  \(--[a-z0-9-]*\).*/\1/p' | sort -u >help
        offer "titan $command --"
        grep -v '\.' out | sort -u >found
        [ "$command" = version ] || cmp -s help found || not_as "options of $command differ: $(diff help found)"
    done
}

case_keys_are_those_of_the_configuration() {
    run config show --json
    python3 - <<'END' | sort >keys
import json
def walk(prefix, node):
    for key, value in node.items():
        if isinstance(value, dict):
            walk(prefix + key + ".", value)
        else:
            print(prefix + key)
walk("", json.load(open("out")))
END
    offer "titan train --"
    grep '\.' out | sed 's/^--//; s/=$//' | sort >found
    cmp -s keys found || not_as "keys differ: $(diff keys found)"
    offer "titan train --training.ste"
    offered --training.steps=
    offer "titan train --checkpoint.load_o"
    offered --checkpoint.load_only
    offer "titan train --no-checkpoint.load_o"
    offered --no-checkpoint.load_only
    offer "titan plan training.loc"
    offered training.local_batch_size=
    offer "titan models --training.ste"
    offered ""
}

case_values_are_those_that_the_key_accepts() {
    offer "titan train --lr_scheduler.decay_type="
    offered linear sqrt cosine
    offer "titan train --lr_scheduler.decay_type co"
    offered cosine
    offer "titan train --lr-scheduler.decay-type=s"
    offered sqrt
    offer "titan train --checkpoint.enable=f"
    offered false
    offer "titan train --model.name=lla"
    offered llama3
    offer "titan train --model.flavor=h"
    offered hf
    offer "titan train --parallelism.threads_per_rank="
    offered auto
    offer "titan train --training.seq_len="
    offered ""
    offer "titan ckpt consolidate --format "
    offered titan hf dcp gguf
    offer "titan data pack --dataset kjv_"
    offered kjv_validation
    offer "titan launch -n 2 -- train --training.dtype="
    offered float32 bfloat16
}

case_files_are_offered_where_they_belong() {
    mkdir folder
    touch my.yaml
    offer "titan train --config my"
    offered my.yaml
    offer "titan train --training.dataset_path=fo"
    grep -qx folder out || not_as "expected folder"
    offer "titan ckpt inspect fol"
    offered folder
    touch "run 1.yaml" "run *.yaml"
    offer "titan train --config run"
    offered "run 1.yaml" "run *.yaml"
    offer "titan train --config "
    ! grep -q FILES out || not_as "the mark for files was offered"
}

case_every_word_is_a_command_of_its_command() {
    run completion bash
    mv out script.bash
    for command in ckpt config data trace completion; do
        bash -c ". ./script.bash; _titan_verbs $command" | tr ' ' '\n' >words
        [ -s words ] || not_as "nothing offered after titan $command"
        while read -r word; do
            run "$command" "$word"
            refuse_err "unknown command|no script"
        done <words
    done
    run ckpt nonsense
    sed -n 's/^help: use one of ckpt //p' err | tr -d ' ' | tr , '\n' | sort >help
    bash -c '. ./script.bash; _titan_verbs ckpt' | tr ' ' '\n' | sort >found
    cmp -s help found || not_as "commands of ckpt differ: $(diff help found)"
}

case_zsh_loads_the_script() {
    zsh=$(command -v "${TITAN_ZSH:-zsh}") || skip "no zsh"
    run completion zsh
    expect_ok
    mv out _titan
    echo "zsh" >command
    # compadd stands in for the one that only works while a line is edited
    "$zsh" -fc '
        function compdef { : }
        function compset { : }
        function compadd { local a=("$@")
            while [[ $a[1] == -* ]]; do
                [[ $a[1] == -- ]] && { shift a; break }
                [[ $a[1] == -S ]] && shift a
                [[ $a[1] == -a ]] && { print -l -- ${(P)a[2]}; return }
                shift a
            done
            print -l -- $a }
        function _files { print FILES }
        source ./_titan
        function ask { words=("$@") CURRENT=$#; _titan }
        ask titan ge; print -- ---
        ask titan train --lr_scheduler.decay_type=; print -- ---
        ask titan train --lr_scheduler.decay_type c; print -- ---
        ask titan ckpt inspect --st; print -- ---
        ask titan train --training.ste; print -- ---
        ask titan train --config x; true' >out 2>err || not_as "zsh failed"
    [ ! -s err ] || not_as "zsh printed an error"
    awk 'BEGIN { RS = "---\n" } { print > ("part" NR) }' out
    grep -qx generate part1 || not_as "expected generate"
    for part in part2 part3; do
        [ "$(grep . $part | tr '\n' ' ')" = "linear sqrt cosine " ] || not_as "$part: $(cat $part)"
    done
    grep -qx -- --stats part4 || not_as "expected --stats"
    grep -qx -- --training.steps= part5 || not_as "expected --training.steps="
    grep -qx FILES part6 || not_as "expected files"
}

case_fish_offers_the_same() {
    fish=$(command -v "${TITAN_FISH:-fish}") || skip "no fish"
    run completion fish
    expect_ok
    mv out titan.fish
    mkdir -p home
    asked() {
        echo "fish completes: $1" >command
        HOME=$PWD/home XDG_CONFIG_HOME=$PWD/home "$fish" --no-config -c "source titan.fish; complete -C '$1'" \
            >all 2>err || not_as "fish failed"
        [ ! -s err ] || not_as "fish printed an error"
        cut -f1 all | sort -u >out
    }
    asked "titan gen"
    offered generate
    asked "titan train --lr_scheduler.decay_type="
    offered --lr_scheduler.decay_type=linear --lr_scheduler.decay_type=sqrt --lr_scheduler.decay_type=cosine
    asked "titan train --training.step"
    grep -q -- "^--training.steps" out || not_as "expected --training.steps"
    asked "titan ckpt cons"
    offered consolidate
    asked "titan launch -n 2 -- tra"
    grep -qx train out || not_as "expected train"
    asked "titan models --training.step"
    [ ! -s out ] || not_as "keys offered after a command without a configuration"
}

case_other_shells_are_refused() {
    run completion tcsh
    expect_error 2 "no script for the shell 'tcsh'" "help: titan completion bash"
    run completion
    expect_error 2 "which shell"
    run completion --help
    expect_ok
    expect_out "usage: titan completion bash"
}

run_cases

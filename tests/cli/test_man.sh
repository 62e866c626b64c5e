#!/bin/bash
# SPDX-License-Identifier: MIT
# The manual pages and --help name the same commands, options and keys.
. "$(dirname "$0")/lib.sh"

man=$TITAN_SOURCE/man

# Options in `titan COMMAND --help`, without configuration keys, which have a dot.
options_of_help() {
    sed '/[Kk]eys, as flags/,$d' out | grep -oE '(^|[ [])--[a-z][a-z0-9_-]*\.?' | grep -v '\.$' | tr -d ' [' | tr - _ |
        sort -u
}

# Options in the section OPTIONS of the page.
options_of_page() {
    sed -n '/^# OPTIONS/,/^# [A-NP-Z]/s/^\*\(--[a-z][a-z0-9_-]*\).*/\1/p' "$man/titan-$1.1.scd" | tr - _ | sort -u
}

# The commands of `titan help`, except those without options of their own.
commands_with_pages() {
    "$TITAN" help | sed -n 's/^  \([a-z]*\)  *[^ ].*/\1/p' | grep -vx 'titan\|version\|help'
}

case_commands_agree() {
    run help
    sed -n 's/^  \([a-z]*\)  *[^ ].*/\1/p' out | grep -v '^titan$\|^mpirun$' | sort -u >in_help
    sed -n '/^# COMMANDS/,/^# OUTPUT/s/^\*\([a-z]*\)\*.*/\1/p' "$man/titan.1.scd" | sort -u >in_page
    [ -s in_page ] || not_as "no commands found in titan.1.scd"
    diff in_help in_page >differences || not_as "commands differ (< --help, > titan(1)): $(cat differences)"
}

case_options_agree() {
    for command in $(commands_with_pages); do
        run $command --help
        options_of_help >in_help
        options_of_page $command >in_page
        [ -s in_page ] || not_as "no options found in titan-$command.1.scd"
        diff in_help in_page >differences || printf '%s: %s\n' "$command" "$(grep '^[<>]' differences | tr '\n' ' ')" \
            >>all
    done
    [ ! -e all ] || not_as "options differ (< --help, > titan-COMMAND(1)): $(cat all)"
}

case_every_command_with_options_has_a_page() {
    run help
    for command in $(commands_with_pages); do
        expect_file "$man/titan-$command.1.scd"
        grep -q "titan-$command\*(1)" "$man/titan.1.scd" || not_as "titan(1) does not refer to titan-$command(1)"
    done
}

case_exit_codes_agree() {
    sed -n 's/^ *X(TT_E[A-Z]*, -[0-9]*, \([0-9]*\), .*/\1/p' "$TITAN_SOURCE/core/base/error.h" | sort -un >in_code
    sed -n '/^# EXIT STATUS/,/^# ENV/s/^| *\([0-9][0-9]*\)$/\1/p' "$man/titan.1.scd" | grep -v '^0$' | sort -un >in_page
    [ -s in_code ] || not_as "no exit codes found in core/base/error.h"
    diff in_code in_page >differences || not_as "exit codes differ (< error.h, > titan(1)): $(cat differences)"
}

case_keys_agree() {
    [ -e "$TITAN_BUILD/man/titan-config.5" ] || skip "the pages are not built"
    run config show
    tr -d '\\' <"$TITAN_BUILD/man/titan-config.5" >page
    for key in $(sed -n 's/^  *\([a-z_0-9]*\): .*/\1/p' out | sort -u); do
        grep -qF "$key" page || not_as "titan-config(5) does not name $key"
    done
}

# Where titan-config(5) lists the words of a policy, titan-train(1) or titan-parallel(7) says what each does.
case_every_word_of_a_policy_is_explained() {
    for key in fsdp_wrap_policy fsdp_reshard_after_forward gradient_sync save_policy filter; do
        tr -d '\\' <"$TITAN_BUILD/man/titan-config.5.scd" |
            sed -n "/^\*$key\*/,/Accepts: /s/^.*Accepts: \([^.,]*\).*/\1/p" | tr -d ' ' | tr '|' '\n' |
                grep -x '[a-z0-9_]*' |
                grep -vx integer >words
        [ -s words ] || not_as "titan-config(5) lists no words of $key"
        while read -r word; do
            grep -q "_${word}_" "$man/titan-train.1.scd" "$man/titan-parallel.7.scd" ||
                not_as "neither titan-train(1) nor titan-parallel(7) explains $word of $key"
        done <words
    done
}

case_book_and_page_name_the_defaults_that_differ() {
    tr -d '\\' <"$TITAN_BUILD/man/titan-config.5.scd" >page
    for key in training.mixed_precision_param activation_checkpoint.mode checkpoint.last_save_model_only debug.seed; do
        grep -q "$key.*torchtitan's is" page || not_as "titan-config(5) does not say how the default of $key differs"
        grep -q "^| \`$key\` | " "$TITAN_SOURCE/docs/from-torchtitan.md" ||
            not_as "the book does not say how the default of $key differs"
    done
}

case_pages_are_formatted_without_warnings() {
    command -v groff >/dev/null || skip "no groff"
    for page in "$TITAN_BUILD"/man/titan*.[157]; do
        [ -e "$page" ] || skip "the pages are not built"
        groff -Kutf8 -man -Tutf8 -ww -z "$page" 2>warnings
        [ ! -s warnings ] || not_as "$page: $(head -3 warnings)"
    done
}

# Every page that a page refers to exists, and so does every section that it names there in capitals.
case_references_lead_somewhere() {
    python3 - "$man" "$TITAN_BUILD/man/titan-config.5.scd" "$TITAN_SOURCE"/README.md "$TITAN_SOURCE"/docs/*.md \
        >problem.txt 2>&1 <<'EOF' || not_as "$(cat problem.txt)"
import pathlib, re, sys
pages = {p.name[:-4]: p.read_text() for p in [*pathlib.Path(sys.argv[1]).glob("*.scd"), pathlib.Path(sys.argv[2])]}
heads = {name: {h.lower() for h in re.findall(r"^# (.*)$", text, re.M)} for name, text in pages.items()}
texts = {**pages, **{p: pathlib.Path(p).read_text() for p in sys.argv[3:]}}
bad, seen = [], 0
for where, text in texts.items():
    flat = re.sub(r"\s+", " ", text.replace("*", "").replace("\\", ""))
    for page, number in re.findall(r"\b(titan(?:-[a-z]+)?)\((\d)\)", flat):
        if f"{page}.{number}" not in pages:
            bad.append(f"{where}: no page {page}({number})")
    words = r"([A-Z][A-Z-]+(?: [A-Z][A-Z0-9-]+)*)"
    found = [(p, n, s) for p, n, s in re.findall(r"\b(titan(?:-[a-z]+)?)\((\d)\), " + words + r"\b", flat)]
    found += [(p, n, s) for s, p, n in re.findall(words + r" in (titan(?:-[a-z]+)?)\((\d)\)", flat)]
    for page, number, section in found:
        seen += 1
        if section.lower() not in heads.get(f"{page}.{number}", ()):
            bad.append(f"{where}: {page}({number}) has no section {section}")
assert seen > 10, f"only {seen} references to sections found"
assert not bad, "\n".join(bad)
EOF
}

case_examples_of_the_pages_use_keys_that_exist() {
    for key in $(cat "$man"/*.scd "$TITAN_SOURCE"/quickstart | grep -oE -e '--[a-z][a-z_]*\.[a-z][a-z_]+' | grep -v -e '--job.config_file' -e '--a\.b' -e '--no-' | sort -u); do
        run config show --json
        python3 - "${key#--}" <<'EOF' || not_as "$key is not a key"
import json, sys
section, key = sys.argv[1].split(".")
assert key in json.load(open("out"))[section]
EOF
    done
}

run_cases

# SPDX-License-Identifier: MIT
# A small TAP library for tests of the program from outside. A test file is
#
#     . "$(dirname "$0")/lib.sh"
#     case_unknown_command() {
#         run tarin
#         expect_error 2 "did you mean .titan train"
#     }
#     run_cases
#
# Each case_* function runs in a subshell, in a new folder. It ends with the first expectation that fails. The
# environment gives TITAN (the program), TITAN_SOURCE (the source tree) and TITAN_BUILD (the build folder).
set -u
: "${TITAN:?}" "${TITAN_SOURCE:?}" "${TITAN_BUILD:?}"
export LC_ALL=C.UTF-8
export TITAN_CHECK_MESSAGES=1
. "$TITAN_SOURCE/tools/mpi-env"

top=$(mktemp -d "${TMPDIR:-/tmp}/titan-cli.XXXXXX")
export XDG_CACHE_HOME=$top/user-cache
# The tests read the load of the machine here (tt_load_read), so that no test sees the load of other users.
export TITAN_PROC=$top/proc
load_of() { # AVERAGE RUNNING
    mkdir -p "$TITAN_PROC"
    echo "$1 $1 $1 $2/100 1" >"$TITAN_PROC/loadavg"
    printf 'cpu  9 0 9 9 0 0 0 0 0 0\ncpu0 5 0 5 5 0 0 0 0 0 0\ncpu1 4 0 4 4 0 0 0 0 0 0\n' >"$TITAN_PROC/stat"
}
load_of 0.10 1
clean_up() {
    for mounted in "$top"/*/disk; do
        mountpoint -q "$mounted" 2>/dev/null && umount "$mounted"
    done
    rm -rf "$top"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# run ARGUMENT...: runs titan as one process. Its output goes to the files out and err, its exit code to $code. A run of
# titan train prints its whole banner, which many cases examine.
run() {
    [ "${1-}" != train ] || set -- train --verbose "${@:2}"
    printf 'titan' >command
    printf " '%s'" "$@" >>command
    code=0
    "$TITAN" "$@" >out 2>err </dev/null || code=$?
}

# run_ranks N ARGUMENT...: as run, but under mpirun.
run_ranks() {
    [ "${2-}" != train ] || set -- "$1" train --verbose "${@:3}"
    printf 'mpirun -n %s titan' "$1" >command
    printf " '%s'" "$@" >>command
    code=0
    "$TITAN_SOURCE/tools/run-ranks" "$1" "$TITAN" "${@:2}" >out 2>err </dev/null || code=$?
}

# background COMMAND...: starts it with new files `out` and `err`, so that nobody reads a line of the last command there
# before this one has opened them. Its process is $job.
background() {
    : >out
    : >err
    "$@" >out 2>err </dev/null &
    job=$!
}

# sweep [K [N]]: lets through the lines K, K + N, ... (default: 2 and 5); all of them with TITAN_SWEEPS=whole, as in
# `quickstart test --long`.
sweep() {
    if [ "${TITAN_SWEEPS-}" = whole ]; then cat; else awk -v k="${1-2}" -v n="${2-5}" 'NR % n == k % n'; fi
}

# some WORD...: one word of five, or all of them, by the same rule.
some() {
    printf '%s\n' "$@" | sweep
}

# not_as PROBLEM: the case fails with that text and what the last command printed.
not_as() {
    {
        echo "$1"
        echo "command: $(cat command 2>/dev/null)"
        echo "exit code: ${code-none}"
        echo "stdout:" && head -c 1500 out 2>/dev/null
        echo "stderr:" && head -c 4000 err 2>/dev/null
    } >problem
    exit 1
}

# skip WHY: this machine cannot run the case.
skip() {
    echo "$1" >skipped
    exit 0
}

expect_code() {
    [ "$code" = "$1" ] || not_as "expected exit code $1"
}

expect_ok() {
    expect_code 0
}

# Patterns are extended regular expressions that must match, or must not match, somewhere in a line.
expect_out() {
    grep -Eq -e "$1" out || not_as "expected on stdout: $1"
}

expect_err() {
    grep -Eq -e "$1" err || not_as "expected on stderr: $1"
}

refuse_out() {
    ! grep -Eq -e "$1" out || not_as "not expected on stdout: $1"
}

refuse_err() {
    ! grep -Eq -e "$1" err || not_as "not expected on stderr: $1"
}

# expect_error CODE PATTERN...: titan ended with this code and exactly one error message, on stderr. Every pattern
# matches.
expect_error() {
    expect_code "$1"
    shift
    [ "$(grep -c '^titan: error: ' err)" = 1 ] || not_as "expected exactly one 'titan: error:' on stderr"
    ! grep -q 'titan: error' out || not_as "an error on stdout"
    for pattern in "$@"; do
        expect_err "$pattern"
    done
}

# expect_bad PATTERN...: `ckpt verify` reported damage on stdout. Every pattern matches.
expect_bad() {
    expect_code 3
    expect_out "^BAD "
    for pattern in "$@"; do
        expect_out "$pattern"
    done
}

# expect_json STATEMENTS: these Python statements, in which `found` is the JSON on stdout, raise nothing.
expect_json() {
    printf 'import json, math\nfound = json.load(open("out"))\n%s\n' "$1" >statements.py
    python3 statements.py >problem.txt 2>&1 || not_as "the JSON on stdout: $(cat problem.txt)"
}

expect_file() {
    [ -e "$1" ] || not_as "expected the file $1"
}

refuse_file() {
    [ ! -e "$1" ] || not_as "not expected: the file $1"
}

expect_same() {
    cmp -s "$1" "$2" || not_as "expected equal: $1 and $2"
}

# Options for a run of a fraction of a second: run train $tiny ...
tiny="--model.dim=64 --model.n_layers=2 --model.n_heads=4 --model.n_kv_heads=2 --model.ffn_dim=128
    --training.seq_len=32 --training.local_batch_size=2 --training.global_batch_size=4 --training.steps=3
    --validation.seq_len=32 --metrics.log_freq=1 --metrics.peak_flops=1e9 --dataloader.cache_dir=cache
    --training.dataset=text --training.dataset_path=corpus.txt --job.dump_folder=run --checkpoint.enable=false"

# The corpus of such a run: 400 lines of words.
make_corpus() {
    awk 'BEGIN { for (i = 0; i < 400; i++) printf "And the evening and the morning were day %d of %d.\n", i, i * 7 }' \
        >corpus.txt
}

# The folder tokenizer/, with the built-in tokenizer, the tokens that all chat templates need, and the chat template $1
# (default: qwen3; none: no template).
make_chat_tokenizer() {
    python3 - "${1-qwen3}" <<'EOF'
import json, os, sys
source = os.environ["TITAN_SOURCE"]
golden = json.load(open(source + "/tests/unit/data/chat.json"))
made = json.load(open(source + "/assets/tokenizer.json"))
plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
made["added_tokens"] += [{**plain, **row} for row in golden["added"]]
os.makedirs("tokenizer", exist_ok=True)
json.dump(made, open("tokenizer/tokenizer.json", "w"))
config = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
if sys.argv[1] != "none":
    config["chat_template"] = golden["templates"][sys.argv[1]]
json.dump(config, open("tokenizer/tokenizer_config.json", "w"))
EOF
}

# Runs every case_* function of the test file whose name matches TITAN_CASE (default: *). It is the last line of the
# file.
run_cases() {
    names=$(sed -n 's/^case_\([a-z0-9_]*\)().*/\1/p' "$0" |
        while read -r name; do
            [[ $name != ${TITAN_CASE-*} ]] || echo "$name"
        done)
    echo "1..$(echo "$names" | wc -w)"
    number=0
    failed=0
    for name in $names; do
        number=$((number + 1))
        folder=$top/$name
        mkdir "$folder"
        (
            cd "$folder" || exit 1
            "case_$name"
        ) >"$top/$name.log" 2>&1
        status=$?
        if [ $status = 0 ] && [ -e "$folder/skipped" ]; then
            echo "ok $number - $name # SKIP $(cat "$folder/skipped")"
        elif [ $status = 0 ]; then
            echo "ok $number - $name"
        else
            echo "not ok $number - $name"
            cat "$folder/problem" "$top/$name.log" 2>/dev/null | sed 's/^/# /'
            failed=1
        fi
    done
    exit $failed
}

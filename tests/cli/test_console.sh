#!/bin/bash
# SPDX-License-Identifier: MIT console.log: the copy of what a run prints, and colours, which only terminals get.
. "$(dirname "$0")/lib.sh"

escape=$(printf '\033')

# same_as_printed FILE...: checks that console.log of the run consists of the start line and these files' lines.
same_as_printed() {
    expect_file run/console.log
    head -1 run/console.log | grep -Eq '^=== [0-9-]+T[0-9:]+Z titan train ' || not_as "no line of the start"
    tail -n +2 run/console.log | sort >logged
    sort "$@" >printed
    cmp -s logged printed || not_as "console.log differs (< logged, > printed): $(diff logged printed | head -5)"
}

case_everything_that_is_printed_is_in_the_log() {
    make_corpus
    run train $tiny --validation.enable --checkpoint.enable --compile.enable=true
    expect_ok
    expect_err "compile.enable"
    same_as_printed out err
    grep -q '^step:  3/3 ' run/console.log || not_as "no step lines"
}

case_a_resumed_run_appends_and_overwrite_begins_again() {
    make_corpus
    run train $tiny --checkpoint.enable
    cp run/console.log before
    run train $tiny --checkpoint.enable --training.steps=5
    expect_ok
    head -c "$(stat -c %s before)" run/console.log | cmp -s - before || not_as "the earlier lines changed"
    [ "$(grep -c '^=== ' run/console.log)" = 2 ] || not_as "expected two starts"
    tail -1 run/console.log | grep -q 'training completed: step 5' || not_as "no end in the log"
    run train $tiny --overwrite
    expect_ok
    same_as_printed out err
}

case_ranks_print_and_log_once() {
    make_corpus
    run_ranks 2 train $tiny
    expect_ok
    [ "$(grep -c '^step: ' run/console.log)" = 3 ] || not_as "expected three step lines"
    [ "$(grep -c 'training completed' run/console.log)" = 1 ] || not_as "expected one end"
}

case_the_log_has_lines_where_the_output_is_json() {
    make_corpus
    run train $tiny --json
    expect_ok
    refuse_out "^step:"
    [ "$(grep -c '^step: ' run/console.log)" = 3 ] || not_as "expected three step lines"
}

case_a_closed_pipe_does_not_end_the_log() {
    make_corpus
    echo "titan train | head -1" >command
    "$TITAN" train $tiny --training.steps=20 2>&1 </dev/null | head -1 >out
    code=${PIPESTATUS[0]}
    expect_ok
    [ "$(grep -c '^step: ' run/console.log)" = 20 ] || not_as "expected 20 step lines"
    tail -1 run/console.log | grep -q 'training completed' || not_as "no end in the log"
}

case_answers_to_signals_and_the_last_message_are_logged() {
    make_corpus
    echo "titan train, then SIGTERM" >command
    background "$TITAN" train $tiny --verbose --training.steps=1000000
    for ((i = 0; i < 1200; i++)); do
        grep -q '^step: ' out && break
        sleep 0.05
    done
    kill -TERM $job
    code=0
    wait $job || code=$?
    expect_code 75
    same_as_printed out err
    grep -q 'stopping after step' run/console.log || not_as "the answer is not in the log"
    tail -1 run/console.log | grep -q 'stopped by a signal after step' || not_as "the last message is not in the log"
}

case_an_error_is_logged() {
    make_corpus
    run train $tiny --optimizer.lr=1e6 --lr_scheduler.warmup_steps=0 --training.max_norm=0 \
        --optimizer.weight_decay=1000 --training.steps=60
    expect_code 5
    same_as_printed out err
    grep -q '^titan: error: ' run/console.log || not_as "the error is not in the log"
}

case_the_error_of_a_failed_resume_is_logged() {
    make_corpus
    run train $tiny --checkpoint.enable
    expect_ok
    run train $tiny --checkpoint.enable --training.dataset_path=typo.txt
    expect_error 3 "typo.txt"
    grep -q '^titan: error: .*typo.txt' run/console.log || not_as "the error is not in the log"
}

case_a_log_that_cannot_be_written_does_not_end_training() {
    make_corpus
    mkdir -p run/console.log
    run train $tiny
    expect_ok
    expect_err "warning: training continues without console.log: "
    expect_out "^step:  3/3 "
}

# see: turns `shown`, the bytes that a terminal got, into `screen`, what a person sees at the end.
see() {
    python3 - >screen <<'EOF'
import re
lines, at = [""], 0
for part in re.findall(r"\033\[[0-9;]*[A-Za-z]|[\r\n]|[^\r\n\033]+", open("shown", newline="").read()):
    if part == "\n":
        lines.append("")
    elif part == "\r":
        at = 0
    elif part == "\033[K":
        lines[-1] = lines[-1][:at]
    elif part == "\033[2K":
        lines[-1] = ""
    elif not part.startswith("\033"):
        lines[-1] = lines[-1][:at].ljust(at) + part + lines[-1][at + len(part):]
        at += len(part)
print("\n".join(lines))
EOF
}

# on_terminal NAME=VALUE... -- OPTION...: trains on a pseudo terminal of 80 columns; what it shows goes to the file
# shown, and what a person sees at the end to the file screen. $launcher is what comes before `train`.
on_terminal() {
    local settings=()
    while [ "$1" != -- ]; do
        settings+=("$1")
        shift
    done
    shift
    echo "titan train $* on a terminal" >command
    env "${settings[@]}" script -qec "stty cols 80 rows 24 && ${launcher-'$TITAN'} train \
        $(echo $tiny) --overwrite $*" /dev/null >shown </dev/null || not_as "the run failed"
    see
    grep -q 'step:' shown || not_as "nothing was shown"
    ! grep -q "$escape" run/console.log || not_as "escape sequences in console.log"
}

case_colours_are_for_terminals_that_want_them() {
    command -v script >/dev/null || skip "no script(1)"
    make_corpus
    on_terminal -u NO_COLOR -- --metrics.disable_color_printing=false
    grep -q "${escape}\[31mstep" shown || not_as "no colours on a terminal"
    on_terminal NO_COLOR=1 --
    ! grep -q "${escape}\[3" shown || not_as "colours in spite of NO_COLOR"
    on_terminal -u NO_COLOR -- --metrics.disable_color_printing
    ! grep -q "${escape}\[3" shown || not_as "colours in spite of metrics.disable_color_printing"
    ! grep -q "$(printf '\007')" shown || not_as "a bell"
}

live="--metrics.log_freq=100 --training.steps=5"

# live_and_gone: checks that there was a live line and that nothing of it remains at the end.
live_and_gone() {
    grep -Eq "step:  3/5  loss: +[0-9.]+  [0-9.]+ m?s a step  eta: [0-9.]+ m?s$escape.K" shown ||
        not_as "no live line: $(head -c 1500 shown)"
    ! grep -q "a step  eta:" screen || not_as "a live line is left: $(cat screen)"
    ! grep -q "a step  eta:" run/console.log || not_as "a live line in console.log"
    grep -Eq "^step:  1/5  loss: " screen && grep -q "^titan: training completed" screen ||
        not_as "lines are missing: $(cat screen)"
}

case_a_line_moves_between_those_of_steps() {
    command -v script >/dev/null || skip "no script(1)"
    make_corpus
    # five saves, since a line is skipped while the terminal is slow
    on_terminal TERM=xterm TITAN_LIVE_SEC=0 -- $live --validation.enable --checkpoint.enable --checkpoint.interval=1
    grep -q "titan: saving" shown || not_as "no line while it saves"
    live_and_gone
    on_terminal TERM=dumb TITAN_LIVE_SEC=0 -- $live
    ! grep -q "a step  eta:" shown || not_as "a live line on a dumb terminal"
    env TERM=xterm TITAN_LIVE_SEC=0 script -qec "stty cols 80 && '$TITAN' train $(echo $tiny) $live --overwrite \
        --json" /dev/null >shown </dev/null || not_as "the run failed"
    ! grep -q "a step  eta:" shown || not_as "a live line among records"
    for launcher in "'$TITAN_SOURCE/tools/run-ranks' 2 '$TITAN'" "'$TITAN' launch -n 2 --"; do
        # while the terminal is behind, mpirun mixes its two streams within a line
        for _ in 1 2 3; do
            on_terminal TERM=xterm TITAN_LIVE_SEC=0 -- $live
            ! (live_and_gone) >/dev/null || break
        done
        live_and_gone
    done
    export TERM=xterm TITAN_LIVE_SEC=0
    run train $tiny $live --overwrite
    expect_ok
    ! grep -q "a step  eta:" out err || not_as "a live line in a file"
}

case_a_signal_is_answered_on_a_line_of_its_own() {
    make_corpus
    echo "titan train on a terminal, then Ctrl-C" >command
    cat >terminal.py <<'EOF'
import fcntl, os, pty, struct, sys, termios
pid, terminal = pty.fork()
if pid == 0:
    while os.get_terminal_size().columns != 100:
        pass
    os.execv(sys.argv[1], sys.argv[1:])
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
seen, typed = b"", False
while True:
    try:
        part = os.read(terminal, 4096)
    except OSError:
        break
    seen += part
    if not typed and b" a step  eta: " in seen:
        os.write(terminal, b"\x03")
        typed = True
open("shown", "wb").write(seen)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) & 255)
EOF
    code=0
    TERM=xterm TITAN_LIVE_SEC=0 env --default-signal=INT python3 terminal.py "$TITAN" train $tiny --checkpoint.enable \
        --training.steps=1000000 --metrics.log_freq=1000000 || code=$?
    expect_code 130
    see
    grep -Eq "^titan: (stopping after step [0-9]+ and saving|the run is ending)" screen ||
        not_as "no answer: $(tail screen)"
    grep -q "^titan: stopped by a signal after step " screen || not_as "no last line: $(tail screen)"
    ! grep -q "a step  eta:" screen || not_as "a live line is left: $(tail screen)"
}

case_a_terminal_shows_six_lines_of_the_banner() {
    command -v script >/dev/null || skip "no script(1)"
    make_corpus
    on_terminal TERM=xterm -- --training.steps=2 --validation.seq_len=null
    sed '/^titan: training starts/,$d' screen >banner
    [ "$(wc -l <banner)" = 6 ] || not_as "expected six lines: $(cat banner)"
    [ "$(wc -L <banner)" -le 80 ] || not_as "too wide: $(cat banner)"
    for line in "^titan .*: 1 rank x " "^  model    llama3, .*, random init \(seed 42\)" \
        "^  data     text corpus.txt: 7,[0-9]* tokens in [0-9]* sequences; no validation$" \
        "^  batch    4 sequences of 32 a step = 1 rank x 2 microbatches of 2" \
        "^  curve    same bits on (every processor, on )?1, 2, 4, \.\.\. ranks, validation too$" \
        "^  predicts .* a rank; in run, not saved"; do
        grep -Eq "$line" banner || not_as "expected $line: $(cat banner)"
    done
    grep -q "^  sharding " run/console.log || not_as "console.log lacks the rest of the banner"
    on_terminal TERM=xterm -- --training.steps=2 --verbose
    grep -q "^  sharding " screen || not_as "no rest with --verbose"
}

# terminal COLUMNS OPTION...: trains on a pseudo terminal of that many columns; what it shows goes to the file shown.
terminal() {
    python3 - "$1" "$TITAN" train $tiny --job.dump_folder="at$1" "${@:2}" >shown 2>err <<'PYTHON' || not_as "$(cat err)"
import fcntl, os, pty, struct, sys, termios
pid, fd = pty.fork()
if pid == 0:
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, int(sys.argv[1]), 0, 0))
    os.execv(sys.argv[2], sys.argv[2:])
while True:
    try:
        got = os.read(fd, 65536)
    except OSError:
        break
    if not got:
        break
    sys.stdout.buffer.write(got.replace(b"\r", b"\n"))
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
PYTHON
}

case_a_narrow_terminal_keeps_what_matters() {
    make_corpus
    NO_COLOR=1 terminal 80 --training.steps=10000 --lr_scheduler.warmup_steps=0 --training.seq_len=16 \
        --metrics.log_freq=10000 --dataloader.repeat=false
    sed 's/\x1b\[[0-9;]*[mK]//g' shown | grep '^step: .*tps: ' >steps
    [ -s steps ] || not_as "no step line: $(cat shown)"
    awk 'length > 80 { exit 1 }' steps || not_as "wider than the terminal: $(cat steps)"
    head -1 steps | grep -Eq '^step: +1/[0-9]+ +loss: +[0-9.]+ +grad_norm: +[0-9.]+ +tps: [0-9,]+ +eta: ' ||
        not_as "fields: $(head -1 steps)"
    NO_COLOR=1 terminal 120
    grep -q '^step: .*memory: .*lr: ' shown || not_as "fields at 120 columns: $(cat shown)"
    ! grep -q 'mfu: .*lr: ' shown || not_as "mfu stays longer than others: $(cat shown)"
}

run_cases

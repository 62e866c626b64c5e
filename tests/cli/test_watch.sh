#!/bin/bash
# SPDX-License-Identifier: MIT The commands that examine runs: status, compare, plot, export.
. "$(dirname "$0")/lib.sh"

# metrics FOLDER LINE...: a run folder whose records are these lines. In a line, @RUN stands for the record of a start,
# and N:X for the record of step N with loss X.
metrics() {
    mkdir -p "$1"
    printf '%s\n' "${@:2}" | sed -E \
        -e 's/^([0-9]+):(.*)$/{"type":"step","step":\1,"loss":\2,"grad_norm":1,"lr":0.5,"ntokens_seen":\1,"step_time_s":2,"new":{"a":1},"time":\1}/' \
        -e 's/^@RUN *(.*)$/{"type":"run","world":2,"argv":["--config","my run.yaml","--overwrite"],"config":{"training":{"steps":9},"checkpoint":{"enable":true,"folder":"checkpoint"}},"time":1\1}/' \
        >"$1/metrics.jsonl"
}

# curve FOLDER FACTOR: a run of 100 steps whose loss falls from 3.99 to 3, times the factor, and two validations.
curve() {
    mkdir -p "$1"
    awk -v f="$2" 'BEGIN { for (i = 1; i <= 100; i++) {
        printf "{\"type\":\"step\",\"step\":%d,\"loss\":%.17g,\"grad_norm\":%.17g,\"lr\":%.17g,\"tps\":%d}\n", i,
            f * (4 - i / 100), 1 / i, (101 - i) / 100, 1000 + i % 7
        if (i % 50 == 0)
            printf "{\"type\":\"validate\",\"step\":%d,\"loss\":%.17g}\n", i, f * (4 - i / 100)
    } }' >"$1/metrics.jsonl"
}

case_a_resumed_run_is_equal_to_one_that_was_not_interrupted() {
    make_corpus
    run train $tiny --job.dump_folder=whole --training.steps=6 --checkpoint.enable
    expect_ok
    for steps in 4 6; do
        run train $tiny --job.dump_folder=parts --training.steps=$steps --checkpoint.enable --checkpoint.interval=3 \
            --lr_scheduler.total_steps=6
        expect_ok
    done
    run compare whole parts --assert-equal
    expect_ok
    [ ! -s out ] || not_as "output where runs are equal"
    run compare whole parts
    expect_out '^EQUAL: whole and parts, 6 steps compared$'
    expect_out 'checkpoint.interval: 30, 3$'
    run train $tiny --job.dump_folder=other --training.steps=6 --debug.seed=7
    run compare whole other --assert-equal
    expect_error 1 'the runs differ: step 1: loss is [0-9.]+ in whole, [0-9.]+ in other'
    run compare whole other
    expect_code 1
    expect_out 'debug.seed: 42, 7$'
    run status parts
    expect_ok
    expect_out '^parts: completed, .* 1 rank'
    expect_out '^  step       6 of 6 \(100 %\)'
    expect_out '^  checkpoint step-6, '
}

case_later_steps_win() {
    metrics one '@RUN' 1:1 2:2 3:3 4:4
    metrics two '@RUN' 1:1 2:2 3:33 4:44 5:55 '@RUN ,"resumed_from":2' 3:3 4:4
    run compare one two
    expect_ok
    expect_out '^EQUAL: one and two, 4 steps compared'
    metrics began_again '@RUN' 1:9 2:9 3:9 4:9 5:9 '@RUN' 1:1 2:2 3:3 4:4
    run compare one began_again --assert-equal
    expect_ok
    metrics another_frequency '@RUN' 1:1 2:2 3:33 4:44 5:55 '@RUN ,"resumed_from":2' 4:4
    run compare one another_frequency --json
    expect_json 'assert found["only_a"] == [{"from": 3, "to": 3, "count": 1}] and not found["only_b"], found'
    metrics validated '@RUN' 1:1 2:2 '{"type":"validate","step":2,"loss":2}' 3:3 4:4
    metrics validated_again '@RUN' 1:1 2:2 '{"type":"validate","step":2,"loss":2}' 4:44 \
        '{"type":"validate","step":4,"loss":4}' '@RUN ,"resumed_from":2' 3:3 4:4
    run compare validated validated_again --json
    expect_code 0
    run export --csv validated_again
    [ "$(tail -1 out | sed "s/.*,//")" = "" ] || not_as "the validation of step 4 was superseded"
    metrics failed_at_once '@RUN' 1:1 2:2 3:3 4:4 '@RUN ,"resumed_from":2'
    run compare one failed_at_once --assert-equal
    expect_ok
}

case_the_first_difference_and_the_largest_are_named() {
    metrics one '@RUN' 1:1 2:2 3:3 4:4
    metrics two '@RUN' 1:1 2:2.25 3:3 4:5 6:6 7:7
    run compare one two --json
    expect_code 1
    expect_json '
assert found["equal"] is False and found["steps"] == 4
assert found["first"] == {"step": 2, "field": "loss", "a": 2, "b": 2.25}, found["first"]
loss = found["fields"][0]
assert (loss["field"], loss["different"], loss["first_step"], loss["max_step"], loss["max_abs"]) == ("loss", 2, 2, 4, 1)
assert found["only_b"] == [{"from": 6, "to": 7, "count": 2}] and found["only_a"] == []'
    run compare one two --tolerance 0.25 --to 4
    expect_ok
    run compare one two --tolerance 0.1 --to 4
    expect_code 1
    run compare one two --from 3 --to 3
    expect_ok
    run compare one two --from 8
    expect_code 1
    run compare one two --key lr,grad_norm --to 4
    expect_ok
}

case_facts_that_neither_run_has_are_not_differences() {
    metrics one 1:1
    run compare one one
    expect_ok
    refuse_out 'null'
    metrics strange '@RUN' 1:1
    sed -i 's/"enable"/"a\\u001b[2Jb"/' strange/metrics.jsonl
    metrics plain '@RUN' 1:1
    run compare plain strange
    expect_out 'checkpoint.a\\u001b\[2Jb: null, true$'
    metrics sets '@RUN' 1:1 '{"type":"validate","step":1,"loss":2,"loss/set":2}'
    sed -i 's/loss.set/loss\/a\\u001b[2Jb/' sets/metrics.jsonl
    run compare sets sets
    expect_out 'validation loss on a\\u001b\[2Jb equal'
}

case_numbers_that_are_not_finite_are_equal_to_each_other_only() {
    metrics one '@RUN' 1:null
    metrics two '@RUN' 1:1
    run compare one one --assert-equal
    expect_ok
    run compare one two --assert-equal
    expect_error 1 'loss is not finite in one, 1 in two'
}

case_torn_and_foreign_lines_do_no_harm() {
    metrics one '@RUN' 1:1 2:2
    metrics two '@RUN' 'not JSON' '{"type":"later than this version"}' 1:1 2:2
    printf '{"type":"step","step":3,"lo' >>two/metrics.jsonl
    run compare one two --assert-equal
    expect_ok
    expect_err "warning: 1 line of .two/metrics.jsonl. is not a JSON object and is left out: line 2"
    printf '\n' >>two/metrics.jsonl
    run status two
    expect_ok
    expect_out 'warning    2 lines of metrics.jsonl are not JSON objects; the first is line 2'
    printf 'a\nb\n' >text
    run compare one text
    expect_error 3 "'text' is not a run's metrics.jsonl"
}

case_a_killed_run_has_a_command_that_continues_it() {
    metrics dead '@RUN' 1:1 2:2
    run status dead
    expect_ok
    expect_out '^dead: killed, 2 ranks'
    expect_out '^  step       2 of 9 \(22 %\)'
    expect_out "continue   titan launch -n 2 -- train --config 'my run.yaml'$"
    refuse_out 'overwrite'
    run status dead --json
    expect_json 'assert found["state"] == "killed" and found["alive"] is False and found["eta_s"] is None'
    printf '{"type":"end","step":2,"exit":5,"error":"the loss is nan\\nhelp: less","time":3}\n' >>dead/metrics.jsonl
    run status dead
    expect_out '^dead: failed \(exit code 5\)'
    expect_out '^  why        the loss is nan$'
    expect_out '^             help: less$'
}

case_a_run_without_records_is_unknown() {
    mkdir none
    : >none/metrics.jsonl
    run status none
    expect_ok
    expect_out '^none: unknown$'
    expect_out '^  why        metrics.jsonl has no record'
    refuse_out 'continue'
    : >none/.lock
    flock none/.lock "$TITAN" status none >out 2>err || not_as "status failed"
    expect_out '^none: starting$'
}

case_a_failed_run_keeps_its_error() {
    make_corpus
    run train $tiny --optimizer.lr=1e6 --lr_scheduler.warmup_steps=0 --training.max_norm=0 \
        --optimizer.weight_decay=1000 --training.steps=60
    expect_code 5
    run status run
    expect_ok
    expect_out '^run: failed \(exit code 5\)'
    expect_out '^  why        .*finite'
    expect_out '^  continue   titan train .*--overwrite$'
}

case_the_lock_tells_whether_a_run_is_alive() {
    metrics live '@RUN' 1:1
    : >live/.lock
    flock live/.lock "$TITAN" status live --json >out 2>err || not_as "status failed"
    expect_json '
assert found["state"] == "running" and found["alive"] is True and found["command"] is None
assert any("nothing was recorded" in w for w in found["warnings"]), found["warnings"]'
    run status live --json
    expect_json 'assert found["state"] == "killed"'
    run status live --follow --json
    expect_ok
    [ "$(wc -l <out)" = 1 ] || not_as "not one line"
}

case_a_process_that_ends_is_not_one_that_starts() {
    metrics live "@RUN ,\"host\":\"$(uname -n)\",\"pid\":$$" 1:1 '{"type":"end","step":1,"exit":0,"time":3}'
    : >live/.lock
    flock live/.lock "$TITAN" status live --json >out 2>err || not_as "status failed"
    expect_json 'assert found["state"] == "running", found["state"]'
    metrics live '@RUN ,"host":"another","pid":1' 1:1 '{"type":"end","step":1,"exit":0,"time":3}'
    flock live/.lock "$TITAN" status live --json >out 2>err || not_as "status failed"
    expect_json 'assert found["state"] == "starting", found["state"]'
}

case_what_no_record_says_is_unknown() {
    metrics new '@RUN'
    : >new/.lock
    flock new/.lock "$TITAN" status new --json >out 2>err || not_as "status failed"
    expect_json 'assert found["total_steps"] == 9 and found["eta_s"] is None, found["eta_s"]'
    printf '{"type":"step","step":1,"loss":1}\n' >new/metrics.jsonl
    run status new --json
    expect_json 'assert found["last_record_s"] is None, found["last_record_s"]'
}

case_records_of_others_do_not_steer_the_terminal() {
    metrics dead '@RUN ,"host":"a\u001b[2Jb\u009bc"' 1:1 \
        '{"type":"end","step":1,"exit":1,"error":"cannot read \u001b]0;x\u0007 \u007f","time":3}'
    run status dead
    expect_ok
    expect_out '^dead: failed .*, a\\u001b\[2Jb\\u009bc process 0'
    expect_out '^  why        cannot read \\u001b\]0;x\\u0007 \\u007f$'
    ! LC_ALL=C grep -q "$(printf '[\001-\011\013-\037\177]')" out || not_as "control characters"
}

case_the_command_that_continues_a_run_is_one_line() {
    metrics dead '@RUN ,"cwd":"/a/folder/with/a/long/name"' 1:1
    TITAN_COLUMNS=60 run status dead
    expect_ok
    expect_out "^  continue   cd /a/folder/with/a/long/name && titan launch -n 2 -- train --config 'my run.yaml'$"
    expect_out '^  why        unknown: .*[a-z]$'
}

case_pictures_fit_the_terminal() {
    curve one 1
    for size in 80x24 40x12 132x50; do
        for options in '' '--ascii' '--key loss' '--key loss,lr,speed'; do
            COLUMNS=${size%x*} LINES=${size#*x} run plot one $options
            expect_ok
            python3 - "${size%x*}" "${size#*x}" >problem.txt 2>&1 <<'PYTHON' ||
import sys
lines = open("out", encoding="utf-8").read().split("\n")
columns, rows = int(sys.argv[1]), int(sys.argv[2])
assert len(lines) <= rows, f"{len(lines)} lines with the prompt"
assert max(map(len, lines)) <= columns, f"{max(map(len, lines))} columns"
assert not any(line.endswith(" ") for line in lines), "spaces at the end"
PYTHON
                not_as "$size $options: $(cat problem.txt)"
        done
    done
    run plot one
    expect_out 'step 100$'
    expect_out '⡇|⠁|⣀'
    expect_out '◆ validation'
    LC_ALL=C run plot one
    ! grep -q '[^ -~]' out || not_as "not ASCII where the locale is not UTF-8"
    expect_out 'V validation'
    refuse_out "$(printf '\033')"
}

case_a_curve_is_drawn_where_its_values_are() {
    curve one 1
    COLUMNS=60 LINES=16 run plot one --key lr --ascii
    expect_ok
    python3 - >problem.txt 2>&1 <<'PYTHON' || not_as "$(cat problem.txt)"
lines = open("out").read().split("\n")[1:14]
plot = [line[9:] for line in lines if len(line) > 9 and line[8] in "|+"]
marks = [(x, y) for y, line in enumerate(plot) for x, c in enumerate(line) if c == "*"]
width = 60 - 9
for x, y in marks:  # lr falls from 1 to 0.01 in a straight line
    assert abs(y / (len(plot) - 1) - x / (width - 1)) < 0.15, (x, y)
assert min(x for x, y in marks) == 0 and max(x for x, y in marks) == width - 1
PYTHON
}

case_several_runs_have_names() {
    curve one 1
    curve 'two <&> "three' 2
    run plot one 'two <&> "three'
    expect_ok
    expect_out ' A one B two <&> "three ◆ validation$'
    run plot one 'two <&> "three' --key loss --ascii
    expect_out ' \* one \+ two'
    run plot one 'two <&> "three' --svg a.svg --html a.html
    expect_ok
    [ ! -s out ] || not_as "output beside the files"
    python3 - >problem.txt 2>&1 <<'PYTHON' || not_as "$(tail -1 problem.txt)"
import json, re
import xml.etree.ElementTree as tree
svg = tree.parse("a.svg").getroot()
texts = [e.text for e in svg.iter() if e.tag.endswith("}text")]
assert "one" in texts and 'two <&> "three' in texts and "loss" in texts and "validation" in texts, texts
lines = [e for e in svg.iter() if e.tag.endswith("}polyline")]
assert len(lines) == 8, len(lines)
page = open("a.html").read()
assert not re.search(r"(src|href)=|https?://(?!www.w3.org)", page), "the page needs the network"
data = json.loads(re.search(r"const data = (.*);\n", page).group(1))
loss = data["panels"][0]
assert data["runs"] == ["one", 'two <&> "three'] and len(data["panels"]) == 4
one, two = loss["curves"]
assert one["step"] == list(range(1, 101)) and two["value"][0] == 2 * one["value"][0]
assert loss["marks"][0] == {"step": [50, 100], "value": [3.5, 3]}, loss["marks"][0]
PYTHON
}

case_names_of_runs_cannot_break_a_picture() {
    curve "$(printf 'a\033]b\377')" 1
    curve '<!--<script>]]>' 1
    run plot "$(printf 'a\033]b\377')" '<!--<script>]]>' --svg a.svg --html a.html
    expect_ok
    python3 - >problem.txt 2>&1 <<'PYTHON' || not_as "$(tail -1 problem.txt)"
import json, re
import xml.etree.ElementTree as tree
texts = [e.text for e in tree.parse("a.svg").getroot().iter() if e.tag.endswith("}text")]
assert r"a\u001b]b" + "\N{REPLACEMENT CHARACTER}" in texts and "<!--<script>]]>" in texts, texts
data = re.search(r"const data = (.*);\n", open("a.html", encoding="utf-8").read()).group(1)
assert "<" not in data and json.loads(data)["runs"][1] == "<!--<script>]]>", "markup within the script"
PYTHON
    curve "x$(printf 'ä%.0s' {1..60})" 1
    run plot "$(printf 'a\033]b\377')" x*
    expect_out ' A a\\u001b]b.* B xä'
    iconv -f UTF-8 -t UTF-8 out >/dev/null || not_as "a character is cut"
}

case_smoothing_and_ranges() {
    curve one 1
    run plot one --key grad_norm --smooth 0.5 --from 11 --to 20 --svg a.svg --html a.html
    expect_ok
    python3 - >problem.txt 2>&1 <<'PYTHON' || not_as "$(tail -1 problem.txt)"
import json, re
data = json.loads(re.search(r"const data = (.*);\n", open("a.html").read()).group(1))
curve = data["panels"][0]["curves"][0]
assert curve["step"] == list(range(11, 21)), curve["step"]
assert curve["value"] == [1 / step for step in curve["step"]] and "means" not in curve, curve
assert data["smooth"] == 0.5 and not data["log"] and data["follow"] == 0, data
mean, past, smooth = 0, 1, []
for value in curve["value"]:
    mean, past = 0.5 * mean + 0.5 * value, past * 0.5
    smooth.append(mean / (1 - past))
points = re.search(r'points="([^"]*)"', open("a.svg").read()).group(1).split()
pixels = [float(point.split(",")[1]) for point in points]
assert len(pixels) == 10, pixels
scale = (pixels[-1] - pixels[0]) / (smooth[-1] - smooth[0])
for value, pixel in zip(smooth, pixels):
    assert abs(pixels[0] + scale * (value - smooth[0]) - pixel) < 0.11, (value, pixel)
PYTHON
}

# The legend of a page shows the differences between its runs: keys that not all set, and the number of ranks.
case_a_page_says_what_its_runs_are() {
    for run in one two three; do curve $run 1; done
    for row in 'one 2 {"job":{"description":"<b>first</b>","dump_folder":"a"},"optimizer":{"lr":0.001,"eps":1}}' \
        'two 4 {"job":{"description":"","dump_folder":"b"},"optimizer":{"lr":0.0008,"eps":1},"new":{"key":"x"}}'; do
        read -r run ranks config <<<"$row"
        echo "{\"type\":\"run\",\"world\":$ranks,\"config\":$config}" | cat - $run/metrics.jsonl >all
        mv all $run/metrics.jsonl
    done
    run plot one two three/metrics.jsonl --html a.html --log
    expect_ok
    run plot ./one/ --html b.html
    expect_ok
    run plot one two one two --html c.html
    expect_ok
    python3 - >problem.txt 2>&1 <<'PYTHON' || not_as "$(tail -1 problem.txt)"
import json, re
def read(path):
    page = open(path).read()
    assert "@" not in re.sub(r"@media", "", page), "a mark is left"
    assert not re.search(r"(src|href)=|https?://(?!www.w3.org)", page), "the page needs the network"
    data = json.loads(re.search(r"const data = (.*);\n", page).group(1))
    return re.search(r"<title>(.*)</title>", page).group(1), data
title, data = read("a.html")
assert title == "one, two, three" and data["name"] == "one, two, three" and data["log"], title
first, second, third = data["about"]
assert first["keys"] == [["ranks", 2], ["optimizer.lr", 0.001], ["new.key", None]], first
assert second["keys"] == [["ranks", 4], ["optimizer.lr", 0.0008], ["new.key", "x"]], second
assert third["keys"] == [] and third["description"] == "", third
assert first["state"] == "killed" and first["step"] == 100 and not first["alive"], first
title, data = read("b.html")
assert title == "one: &lt;b&gt;first&lt;/b&gt;" and data["name"] == "one", title
assert data["about"][0]["description"] == "<b>first</b>" and data["about"][0]["keys"] == [], data["about"]
assert read("c.html")[0] == "4 runs"
PYTHON
    run plot one --follow
    expect_error 2 "--follow needs --html FILE"
    run plot one --follow --html a.html
    expect_ok # the run has ended
}

case_a_page_is_written_again_while_a_run_lives() {
    make_corpus
    "$TITAN" train $tiny --training.steps=1000000 --job.description='for a page' >train.out 2>train.err </dev/null &
    job=$!
    wait_for() {
        for ((i = 0; i < 600; i++)); do
            "$@" && return
            sleep 0.1
        done
        kill -KILL $job
        not_as "waited too long for: $*"
    }
    wait_for grep -q '^step: *2/' train.out
    train=$job
    background "$TITAN" plot run --html page.html --follow
    plot=$job
    job=$train
    wait_for test -e page.html
    cp page.html first.html
    grep -q '"state": *"running"' first.html || not_as "the run is not running"
    grep -q '"follow": *[1-9]' first.html || not_as "the page does not look for newer numbers"
    wait_for eval '! cmp -s page.html first.html'
    kill -TERM $job
    wait $job
    code=0
    wait $plot || code=$?
    expect_ok
    expect_err "page.html is updated until the runs end"
    grep -q '"state": *"stopped"' page.html || not_as "the last page is not of the end"
    grep -q '"follow": *0' page.html || not_as "the last page looks for newer numbers"
    grep -q '<title>run: for a page</title>' page.html || not_as "the title"
}

# A run that has just begun: its lock is held, and it has no step yet.
case_a_page_waits_for_the_first_step() {
    metrics one '@RUN'
    run plot one --html page.html
    expect_error 3 "there are no values of"
    exec 9>one/.lock
    flock 9
    background "$TITAN" plot one --html page.html --follow 9>&-
    plot=$job
    for ((i = 0; i < 600; i++)); do
        [ $i = 20 ] && echo '{"type":"step","step":1,"loss":2}' >>one/metrics.jsonl
        [ $i -gt 20 ] && [ -e page.html ] && break
        sleep 0.05
    done
    exec 9>&-
    code=0
    wait $plot || code=$?
    expect_ok
    grep -q '"step": *\[1\]' page.html || not_as "the page has no step"
}

case_a_page_that_waits_says_for_what() {
    metrics one '@RUN' 1:1
    exec 9>one/.lock
    flock 9
    background "$TITAN" plot one --html page.html --key typo --follow 9>&-
    plot=$job
    for ((i = 0; i < 600; i++)); do
        grep -q 'not written yet' err && break
        sleep 0.05
    done
    exec 9>&-
    code=0
    wait $plot || code=$?
    expect_error 3 "typo"
    expect_err "page.html is not written yet: .*typo"
    refuse_file page.html
}

# In a browser, if there is one: what its script has drawn.
case_a_page_draws_itself() {
    browser=$(command -v chromium || command -v google-chrome || command -v chromium-browser) || skip "no Chromium"
    curve one 1
    curve two 2
    run plot one two --html a.html --smooth 0.9
    expect_ok
    timeout 120 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$PWD/profile" \
        --virtual-time-budget=2000 --window-size=1280,800 --dump-dom "file://$PWD/a.html" >dom 2>browser.err ||
        skip "the browser does not start"
    python3 - >problem.txt 2>&1 <<'PYTHON' || not_as "$(tail -1 problem.txt)"
import re
dom = open("dom").read()
panels = re.findall(r"<section.*?</section>", dom, re.S)
assert [re.search(r'class="title">([^<]*)<', p).group(1) for p in panels] == [
    "loss", "grad_norm", "lr", "tps, tokens/s a rank"], len(panels)
for p, curves in zip(panels, (4, 4, 2, 4)):  # a pale and a smooth one for each run, except for the learning rate
    assert len(re.findall(r"<path ", p)) == curves + 1 and "NaN" not in p, p
    assert all(d.count("L") == 99 for d in re.findall(r'd="(M[^"]*L[^"]*)"', p)), p
assert panels[0].count("<circle") == 5, "the validations, and what they are"
raw, smooth = ([float(y) for y in re.findall(r"[ML]\S+ (\S+?)(?=L|$)", d)]
               for d in re.findall(r'd="(M[^"]*L[^"]*)"', panels[1])[:2])
mean, past, scale = 0, 1, (raw[99] - raw[0]) / (1 / 100 - 1)
for i in range(100):  # the gradient norm of step i + 1 is 1 / (i + 1)
    mean, past = 0.9 * mean + 0.1 / (i + 1), past * 0.9
    assert abs(raw[0] + scale * (1 / (i + 1) - 1) - raw[i]) < 0.2, (i, raw[i])
    assert abs(raw[0] + scale * (mean / (1 - past) - 1) - smooth[i]) < 0.2, (i, smooth[i])
assert re.search(r"<h1[^>]*>one, two</h1>", dom) and len(re.findall(r'aria-pressed="true"', dom)) == 2
assert re.search(r'<output id="weight">0.90</output>', dom)
PYTHON
}

case_peaks_survive_thinning() {
    mkdir long
    awk 'BEGIN { for (i = 1; i <= 50000; i++)
        printf "{\"type\":\"step\",\"step\":%d,\"loss\":%s}\n", i, i == 31234 ? 99 : 1 + i % 2 }' >long/metrics.jsonl
    run plot long --key loss --html a.html
    expect_ok
    python3 - >problem.txt 2>&1 <<'PYTHON' || not_as "$(tail -1 problem.txt)"
import json, re
curve = json.loads(re.search(r"const data = (.*);\n", open("a.html").read()).group(1))["panels"][0]["curves"][0]
means = curve["means"]  # for smoothing
assert len(means["value"]) == len(means["step"]) < 1300 and means["step"][-1] == 50000, means["step"][-1]
assert abs(means["every"] * len(means["value"]) - 50000) < 1e-6, means["every"]
assert sorted(means["value"])[-2] < 1.6 and max(means["value"]) < 5, "means, not extremes"
assert len(curve["step"]) < 3000 and max(curve["value"]) == 99 and min(curve["value"]) == 1
assert curve["step"] == sorted(curve["step"]) and curve["step"][curve["value"].index(99)] == 31234
PYTHON
}

case_png_needs_rsvg_convert() {
    curve one 1
    mkdir bin
    PATH=$PWD/bin run plot one --png a.png
    expect_error 2 'rsvg-convert, which is not in PATH' 'librsvg2-bin'
    [ "$(ls)" = "$(ls | grep -v tmp)" ] || not_as "a temporary file is left: $(ls)"
    command -v rsvg-convert >/dev/null || skip "no rsvg-convert"
    run plot one --png a.png
    expect_ok
    [ "$(head -c 4 a.png | tail -c 3)" = PNG ] || not_as "not a PNG"
}

case_csv_is_read_back_exactly() {
    curve one 1
    printf '%s\n' '{"type":"validate","step":103,"loss":2.5}' \
        '{"type":"step","step":104,"loss":null,"extra, \"x":1e-300}' >>one/metrics.jsonl
    run export --csv one
    expect_ok
    python3 - >problem.txt 2>&1 <<'PYTHON' || not_as "$(tail -1 problem.txt)"
import csv, json
rows = list(csv.DictReader(open("out", newline="")))
records = {}
for line in open("one/metrics.jsonl"):
    r = json.loads(line)
    if r["type"] == "step":
        records[r["step"]] = r
assert [int(r["step"]) for r in rows] == list(range(1, 101)) + [103, 104]
for row in rows[:100]:
    for key in ("loss", "lr", "grad_norm", "tps"):
        assert float(row[key]) == records[int(row["step"])][key], (row, key)
assert rows[49]["validation_loss"] == "3.5" and rows[48]["validation_loss"] == ""
assert rows[100]["loss"] == "" and rows[100]["validation_loss"] == "2.5"
assert rows[101]["loss"] == "" and float(rows[101]['extra, "x']) == 1e-300
PYTHON
    run export --csv one --out table.csv
    expect_ok
    mv out empty
    run export --csv one
    expect_same out table.csv
    [ ! -s empty ] || not_as "output beside the file"
}

# A row is read again when the table is written; rows that a later start superseded are not.
case_csv_leaves_out_what_was_done_again() {
    metrics one '@RUN' 1:1 2:2 3:3 '{"type":"run","resumed_from":1,"world":1}' 2:5 3:6 \
        '{"type":"validate","step":3,"loss":7}' '{"type":"step","step":4,"loss":9,"late":1}'
    run export --csv one
    expect_ok
    python3 - >problem.txt 2>&1 <<'PYTHON' || not_as "$(tail -1 problem.txt)"
import csv
rows = [(r["step"], r["loss"], r["validation_loss"], r["late"]) for r in csv.DictReader(open("out", newline=""))]
assert [r[0] for r in rows] == ["1", "2", "3", "4"] and [float(r[1]) for r in rows[1:]] == [5, 6, 9], rows
assert rows[2][2:] == ("7", "") and rows[3][2:] == ("", "1"), rows
PYTHON
}

# Unknown numbers are left out.
case_no_number_is_invented() {
    mkdir one
    echo '{"type":"step","step":7,"loss":null,"memory_gib":0.5,"time":1.5}' >one/metrics.jsonl
    run status one
    expect_ok
    refuse_out "nan"
    expect_out "^  loss       not finite$"
    expect_out "^  memory     0.50 GiB a rank at most$"
}

case_names_that_are_too_long_are_said_so() {
    metrics one '@RUN' 1:1
    name=$(printf 'x%.0s' {1..233})
    run export --csv one --out $name
    expect_ok
    run export --csv one --out xx$name
    expect_error 3 "is too long with the suffix" "^help: choose a name of at most 233 bytes"
}

case_bad_calls_are_refused() {
    metrics one '@RUN' 1:1
    mkdir empty
    run status empty
    expect_error 3 "'empty' has no metrics.jsonl" 'name the folder of a run'
    run status nothing
    expect_error 3 "no run at 'nothing'"
    run status --training.steps=3
    expect_error 2 'not an option'
    run compare one
    expect_error 2 'two runs are needed, 1 given'
    run compare one one --tolerance -1
    expect_error 2 "'-1' is not a number of 0 or more"
    run compare one one --key speed_of_light
    expect_error 2 "no step record has a number 'speed_of_light'"
    run compare one one --from x
    expect_error 2 "--from 'x'"
    run plot one --smooth 1
    expect_error 2 "--smooth '1' is not a number of at least 0 and less than 1"
    run plot one --key speed_of_light
    expect_error 3 "no values of 'speed_of_light' to draw in one"
    run plot one --from 9
    expect_error 3 "no values of 'loss' to draw in one"
    run plot empty
    expect_error 3 "'empty' has no metrics.jsonl"
    run plot one --svg nowhere/a.svg
    expect_error 3 "nowhere"
    run export one
    expect_error 2 'records or weights'
    run export --csv one two
    expect_error 2 'one run at a time, 2 given'
}

# several: outputs/ with three runs, one of which ended well and one of which cannot be read.
several() {
    metrics outputs/one '@RUN' 1:1 2:2.5 3:3
    metrics outputs/sweep/two '@RUN' 1:4 '{"type":"end","step":1,"exit":0,"time":3}'
    mkdir -p outputs/broken outputs/notes
    printf 'a\nb\n' >outputs/broken/metrics.jsonl
}

case_a_folder_of_runs_is_a_table() {
    several
    for what in '' outputs outputs/; do
        run status $what
        expect_ok
        expect_out '^run +state +step +loss +tokens/s +age$'
        expect_out '/one +killed +3/9 +3.00000 +- +[0-9]'
        expect_out '/sweep/two +completed +1/9 +4.00000 '
        expect_out '/broken +unreadable +.*is not a run.s metrics.jsonl'
    done
    run status outputs --json
    expect_json '
assert [s["folder"] for s in found] == ["outputs/broken", "outputs/one", "outputs/sweep/two"], found
assert [s["state"] for s in found] == ["unreadable", "killed", "completed"], found
assert found[1]["loss"] == 3 and found[2]["step"] == 1, found'
    run status outputs/one outputs/sweep
    expect_ok
    expect_out '^outputs/one +killed'
    expect_out '^outputs/sweep/two +completed'
    refuse_out 'broken'
    run status outputs --follow
    expect_error 2 'takes one run, there are 3'
    TITAN_COLUMNS=48 run status outputs
    expect_out '^run +state +step +loss$'
    expect_out '^left out: tokens/s, age \('
    awk 'length > 48 { exit 1 }' out || not_as "wider than the terminal"
}

case_a_folder_with_one_run_means_that_run() {
    metrics outputs/quick '@RUN' 1:1 2:2
    run status
    expect_ok
    expect_out '^outputs/quick: killed, 2 ranks'
    run plot outputs --key loss
    expect_ok
    run export --csv outputs
    expect_ok
    [ "$(wc -l <out)" = 3 ] || not_as "not two steps"
    metrics outputs '@RUN' 1:7
    run status
    expect_out '^outputs: killed, 2 ranks'
    expect_out '^outputs/quick +killed'
    for how in --json --follow; do
        run status $how
        expect_ok
        expect_err "^titan: 'outputs' is a run; 1 more below it is not shown: titan status outputs/quick$"
    done
}

case_a_folder_of_runs_is_drawn_whole() {
    curve outputs/one 1
    curve outputs/two 2
    run plot outputs --key loss --ascii
    expect_ok
    expect_out ' \* outputs/one \+ outputs/two'
    run export --csv outputs
    expect_error 3 "'outputs' is a folder of several runs" "name one of them: outputs/one, outputs/two"
}

case_what_a_killed_run_said_last_is_shown() {
    metrics dead '@RUN' 1:1
    printf 'step:  1/9\ntitan: mpirun is ending the job\ntitan: stopping after step 1\n' >dead/console.log
    run status dead
    expect_ok
    expect_out '^  why        .* its last output: mpirun is ending the job; stopping after step 1$'
    printf 'step:  2/9\n' >>dead/console.log
    run status dead
    expect_out '^  why        unknown: '
    printf '{"type":"end","step":1,"exit":137,"error":"rank 1 on node a was ended by signal 9 (Killed)","time":3}\n' \
        >>dead/metrics.jsonl
    run status dead
    expect_out '^dead: killed \(exit code 137\)'
    expect_out '^  why        rank 1 on node a was ended by signal 9 \(Killed\)$'
}

case_a_run_that_was_interrupted_has_stopped() {
    metrics one '@RUN' 1:1 '{"type":"end","step":1,"exit":130,"error":"stopped by a signal after step 1","time":3}'
    run status one
    expect_ok
    expect_out '^one: stopped \(exit code 130\)'
}

# "titan train" alone would begin another run, in outputs/quick.
case_what_continues_an_older_built_in_run_names_its_folder() {
    for folder in ./outputs ./outputs/quick; do
        mkdir -p $folder
        echo '{"type":"run","world":1,"argv":["--training.steps=9"],"config":{"job":{"dump_folder":"'$folder'"},
            "checkpoint":{"enable":true,"folder":"checkpoint"}},"time":1}' | tr -d '\n' >$folder/metrics.jsonl
        echo >>$folder/metrics.jsonl
    done
    run status outputs
    expect_ok
    expect_out '^  continue   titan train --training.steps=9 --job.dump_folder=./outputs$'
    run status outputs/quick
    expect_out '^  continue   titan train --training.steps=9$'
}

case_what_cannot_be_looked_at_hides_no_run() {
    several
    ln -s loop outputs/loop
    run status outputs
    expect_ok
    expect_err "^titan: warning: runs below 'outputs/loop' are not shown: .*symbolic links"
    expect_out '/one +killed'
    expect_out '/sweep/two +completed'
}

case_a_link_to_a_run_is_no_other_run() {
    metrics outputs/quick '@RUN' 1:1 2:2
    ln -s quick outputs/latest
    ln -s latest outputs/newest
    run status
    expect_ok
    expect_out '^outputs/quick: killed, 2 ranks'
    metrics elsewhere '@RUN' 1:1
    ln -s ../elsewhere outputs/other
    run status
    expect_out '^outputs/other +killed'
    expect_out '^outputs/quick +killed'
    refuse_out 'latest|newest'
    run status outputs/latest
    expect_out '^outputs/latest: killed'
}

# srun's words come after a live line of rank 0, without an end of line between them.
case_status_repeats_what_srun_said() {
    make_corpus
    mkdir bin
    cat >bin/srun <<'END'
#!/bin/bash
mkdir -p run
echo '{"type":"run","world":2,"argv":[],"config":{},"time":'$(($(date +%s) + 1))'}' >run/metrics.jsonl
printf '\rstep: 1/9  eta: 1 s\033[K\rsrun: error: node1: task 1: Killed\n' >&2
exit 137
END
    chmod +x bin/srun
    PATH=$PWD/bin:$PATH SLURM_JOB_ID=1 run launch -n 2 -- train $tiny
    expect_code 137
    run status run
    expect_ok
    expect_out '^run: killed \(exit code 137\)'
    expect_out '^  why        srun: error: node1: task 1: Killed$'
}

case_status_says_which_rank_was_killed() {
    make_corpus
    background "$TITAN" launch -n 2 -- train $tiny --training.steps=1000000
    for ((i = 0; i < 600; i++)); do
        grep -q '^step: ' out && break
        kill -0 $job 2>/dev/null || not_as "the job ended before its first step"
        sleep 0.05
    done
    mpirun=$(tr " " "\n" <"/proc/$job/task/$job/children" | grep . | tail -1)
    flock run/.lock sleep 1 & # holds the lock after the ranks have ended, like a rank with much memory
    holder=$!
    kill -9 "$(tr " " "\n" <"/proc/$mpirun/task/$mpirun/children" | grep . | tail -1)"
    code=0
    wait $job || code=$?
    [ "$code" != 0 ] || not_as "the run survived the death of a rank"
    wait $holder # it may get the lock after the end was recorded
    run status run
    expect_ok
    expect_out '^run: (killed|failed) \(exit code [0-9]+\)'
    expect_out '^  why        .*(rank [01]|a rank was ended by|the launcher ended)' # mpirun seldom stays silent
    expect_out '^  continue   titan launch -n 2 -- train '
}

run_cases

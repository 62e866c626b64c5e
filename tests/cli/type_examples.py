#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Types the commands of the README and of the manual pages' EXAMPLES, as written, and checks their output.

    type_examples.py [--small] [PAGE...]      PAGE: README.md, titan.1, titan-train.1, ...; default: all

With --small the program is a script that passes everything on to titan, but with short sequences, small batches and
short measurements: the same commands in a fraction of the time.

The commands of one page run one after the other in one fresh folder that holds what a clone holds (configs, tools, the
program) and the reader's own files that the examples name. In the README the blocks marked `sh` are typed; other blocks
are output or scripts for a cluster. Every command must end with exit code 0, and EXPECT must say what it prints: an
example without a row there fails, so that a new one is not forgotten. The environment gives TITAN, TITAN_SOURCE and
TITAN_BUILD. Prints TAP.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(os.environ["TITAN_SOURCE"])
TITAN = pathlib.Path(os.environ["TITAN"])

# What commands must print. The first row whose first expression is found in the command applies. All other expressions
# of the row must be found in the output.
EXPECT = [
    (r"^cp ", []),
    (r"config init", []),
    (r"config show", [r"training", r"default"]),
    (r"config check", [r"ok"]),
    (r"config import", []),
    (r"config diff", [r"training"]),
    (r"launch .*--print", [r"mpirun .*train"]),
    (r"\btune\b", [r"fastest"]),
    (r"\bbench\b", [r"tokens/s|sgemm|step"]),
    (r"titan new ", [r"^run .* steps of ", r"^loss "]),
    (r"\bplan\b", [r"peak"]),
    (r"estimate .*--save", []),
    (r"estimate .*--backtest", [r"median"]),
    (r"\bestimate\b", [r"fits|yes|no"]),
    (r"\btrace summary\b", [r"gemm"]),
    (r"\bmodels\b", [r"debugmodel"]),
    (r"\bdoctor\b", [r"^ok +titan ", r"^ok +mpi "]),
    (r"data pack", [r"tokens"]),
    (r"data inspect", [r"tokens"]),
    (r"data tokenizer", [r"merges"]),
    (r"ckpt list", [r"committed"]),
    (r"ckpt inspect.*jq", [r"dp_shard"]),
    (r"ckpt convert.*inspect", [r"tensors", r"rms"]),
    (r"ckpt inspect", [r"tensors"]),
    (r"ckpt verify", [r"^OK "]),
    (r"ckpt diff", [r"^EQUAL"]),
    (r"ckpt consolidate", [r"written|tensors|wrote"]),
    (r"ckpt convert", [r"written|tensors|wrote"]),
    (r"ckpt average", [r"^mean of \d checkpoints: .*tensors"]),
    (r"ckpt gc", []),
    (r"ckpt rollback", [r"resumes from step-"]),
    (r"\beval\b.*jq", [r"^\d+\.\d+$"]),
    (r"\beval\b", [r"perplexity"]),
    (r"\bgenerate\b.*jq", [r"\w"]),
    (r"\bgenerate\b", [r"tokens/s|tokens a second"]),
    (r"compare .*--assert-equal", []),
    (r"\bcompare\b", [r"^EQUAL: "]),
    (r"build/titan status outputs$", [r"^run +state +step ", r"^\S*outputs/two +completed +60/60 "]),
    (r"status .*--json", [r'"state": "completed"']),
    (r"\bstatus\b", [r": completed, ", r"^  step +\d+ of \d+ \(100 %\)"]),
    (r"\bplot .*(--html|--svg)", []),
    (r"\bplot\b", [r"^ +loss", r"step \d+$"]),
    (r"export --csv .*--out", []),
    (r"train .*steps=15 .*total_steps=15", [r"^  model    .*, step-10 of ",
                                                       r"^  changed  since step-10: training.steps 10 -> 15$"]),
    (r"\btrain\b", [r"step: +\d+/\d+  loss: +\d\.\d+", r"training completed"]),
]

# Pages whose examples start from a finished run and folders of weights, which are made once for all of them.
READY_PAGES = {"titan-ckpt.1", "titan-config.1", "titan-eval.1", "titan-generate.1"}
TRAIN = ("titan train --training.steps=60 --training.local_batch_size=1 --training.global_batch_size=1 "
         "--training.seq_len=64 --checkpoint.interval=20")
READY = [TRAIN, TRAIN + " --job.dump_folder=other", "titan ckpt consolidate outputs/quick llama-folder --format hf",
         "cp -r llama-folder Llama-3.2-1B"]

# titan in the folders of --small. Flags that a command gives itself stay.
SMALL = """#!/bin/bash
args=("$@")
seq_len=
for ((i = 0; i < ${#args[@]}; i++)); do
    case ${args[i]} in
    train | tune) seq_len=--training.seq_len=64 ;;
    bench) [[ " $* " == *" --only "*step* || " $* " != *" --only "* ]] && seq_len=--training.seq_len=64 ;;
    --seconds) args[i + 1]=0.2 ;;
    esac
done
[[ $* == *--training.seq_len* ]] && seq_len=
batch=
[[ " $* " == *" train "* && $* != *batch_size* && $* != *--config* ]] &&
    batch="--training.local_batch_size=1 --training.global_batch_size=2"
exec TITAN "${args[@]}" $seq_len $batch
"""


def words(n):
    return "".join(f"And the evening and the morning were day {i} of {i * 7}.\n" for i in range(n))


def make_folder(root, small):
    """Makes the files of a clone and the reader's own files."""
    for name in ("build", "bin"):
        (root / name).mkdir(parents=True)
        if small:
            (root / name / "titan").write_text(SMALL.replace("TITAN", str(TITAN)))
            (root / name / "titan").chmod(0o755)
        else:
            (root / name / "titan").symlink_to(TITAN)
    for name in ("configs", "docs", "tools"):
        shutil.copytree(SOURCE / name, root / name)
    (root / "books").mkdir()
    for name in ("genesis.txt", "exodus.txt"):
        (root / "books" / name).write_text(words(900))
    (root / "book.txt").write_text(words(1200))
    lines = "".join('{"text": "%s"}\n' % line for line in words(1500).splitlines())
    (root / "debug_model.toml").write_text(
        '[model]\nname = "llama3"\nflavor = "debugmodel"\n\n[training]\nsteps = 10\n')
    (root / "all_gather.log").write_text(
        "".join(f"#  Rank {i:2} Group  0 Pid 1 on host device  0 [0x00]\n" for i in range(8)) +
        "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)\n"
        "  4294967296     134217728     float    none      -1  10000.0   429.5   225.0      0\n")
    shutil.copy(SOURCE / "estimate/backtest/data/published_runs.csv", root / "runs.csv")
    for name in ("corpus.jsonl", "held-out.jsonl"):
        (root / name).write_text(lines)
    subprocess.run(["zstd", "-q", str(root / "corpus.jsonl")], check=True)
    tokenizer = root / "my-tokenizer"
    tokenizer.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SOURCE / "assets" / name, tokenizer / name)


def joined(lines):
    """Lines that end in a backslash continue on the next."""
    text = ""
    for line in lines:
        text += line
        if text.endswith("\\"):
            text = text[:-1]
            continue
        if text.strip() and not text.lstrip().startswith("#"):
            yield re.sub(r"\s+", " ", text.strip())
        text = ""


def commands_of(page):
    if page == "README.md":
        blocks = re.findall(r"^```sh\n(.*?)^```", (SOURCE / page).read_text(), re.M | re.S)
    else:
        section = re.search(r"^# EXAMPLES\n(.*?)(?=^# |\Z)", (SOURCE / "man" / (page + ".scd")).read_text(),
                            re.M | re.S)
        blocks = re.findall(r"^```\n(.*?)^```", section.group(1), re.M | re.S) if section else []
        blocks = [block.replace("\\\\", "\\") for block in blocks]
    return [command for block in blocks for command in joined(block.split("\n"))]


def lacks(command):
    """A tool that the command needs and this machine lacks, or None."""
    tools = re.findall(r"(?:^|[|;&]\s*)([a-z]+)\b", command.split(" #")[0])
    return next((tool for tool in tools if tool not in ("titan", "build", "cat", "echo") and not shutil.which(tool)),
                None)


def type_command(root, command):
    """None, or what is wrong."""
    row = next((row for row in EXPECT if re.search(row[0], command)), None)
    if row is None:
        return "no row of EXPECT says what this command prints"
    environment = dict(os.environ, PATH=f"{root}/bin:" + os.environ["PATH"], LC_ALL="C.UTF-8", COLUMNS="100")
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], cwd=root, env=environment,
                          stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if done.returncode != 0:
        return f"exit code {done.returncode}:\n{done.stdout[-3000:]}"
    for pattern in row[1]:
        if not re.search(pattern, done.stdout, re.M):
            return f"the output does not show {pattern}:\n{done.stdout[-3000:]}"
    if "titan: error" in done.stdout or "titan: warning" in done.stdout:
        return f"the output has an error or a warning:\n{done.stdout[-3000:]}"
    return None


def type_commands(root, commands):
    """Types commands in a folder until one has a problem. Yields (command, problem, skip, seconds)."""
    for command in commands:
        began = time.monotonic()
        missing = lacks(command)
        problem = None if missing else type_command(root, command)
        yield command, problem, missing and f"no {missing}", time.monotonic() - began
        if problem:
            return  # what follows may need it


def type_pages(top, pages, small):
    """Yields (page, command, problem, skip, seconds) for every command of the pages."""
    ready = top / "ready"
    if READY_PAGES & set(pages):
        make_folder(ready, small)
        for outcome in type_commands(ready, READY):
            yield "before", *outcome
    for page in pages:
        root = top / page
        if page in READY_PAGES:
            shutil.copytree(ready, root, symlinks=True)
        else:
            make_folder(root, small)
        for outcome in type_commands(root, commands_of(page)):
            yield page, *outcome
        shutil.rmtree(root)


def main():
    small = "--small" in sys.argv[1:]
    pages = [word for word in sys.argv[1:] if word != "--small"]
    pages = pages or ["README.md"] + sorted(path.name[:-4] for path in (SOURCE / "man").glob("*.1.scd"))
    number = failed = 0
    with tempfile.TemporaryDirectory(prefix="titan-examples.") as folder:
        for page, command, problem, skipped, seconds in type_pages(pathlib.Path(folder), pages, small):
            number += 1
            failed += problem is not None
            note = f" # SKIP {skipped}" if skipped else ""
            print(f"{'not ' if problem else ''}ok {number} - {page}: {command}".replace("#", "\\#") + note, flush=True)
            print(f"# {seconds:.1f} s", flush=True)
            for line in (problem or "").splitlines():
                print("# " + line)
    print(f"1..{number}")
    return 1 if failed or number == 0 else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The k-th allocation fails, for k = 1, 2, 3, ... until a run makes fewer, for every command that reads files.

    memory.py [--all] [--every N] [COMMAND ...]

Each run must end as it would have without the failure, or with one clear message and a documented exit code. It
never dies by a signal, AddressSanitizer finds nothing, and no partial file is left. Without --all it tries a sample
of k. The last line gives the number of runs. TITAN names the program, TITAN_MEMORY_LIB the library that fails.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile

TITAN = os.path.abspath(os.environ["TITAN"])
LIBRARY = os.path.abspath(os.environ["TITAN_MEMORY_LIB"])
TINY = """--model.dim=64 --model.n_layers=2 --model.n_heads=4 --model.n_kv_heads=2 --model.ffn_dim=128
--training.seq_len=32
    --training.local_batch_size=2 --training.global_batch_size=4 --training.steps=4 --validation.seq_len=32
    --dataloader.cache_dir=cache --training.dataset=text --training.dataset_path=corpus.txt --job.dump_folder=run
    --metrics.peak_flops=1e9 --checkpoint.enable --checkpoint.interval=2""".split()
STEP = "run/checkpoint/step-4"
COMMANDS = {
    "inspect": ["ckpt", "inspect", "run", "--json"],
    "stats": ["ckpt", "inspect", STEP, "--stats"],
    "verify": ["ckpt", "verify", STEP, "--deep"],
    "list": ["ckpt", "list", "run"],
    "diff": ["ckpt", "diff", STEP, "run/checkpoint/step-2"],
    "consolidate": ["ckpt", "consolidate", STEP, "flat"],
    "average": ["ckpt", "average", STEP, "run/checkpoint/step-2", "--out", "mean"],
    "convert": ["ckpt", "convert", STEP, "hf"],
    "import": ["ckpt", "convert", "exported", "titan"],
    "config": ["config", "check", "--config", "run/run.yaml"],
    "data": ["data", "inspect", "packed.tokens"],
    "generate": ["generate", STEP, "--prompt", "And", "--max-new-tokens", "2"],
}
DOCUMENTED = {1, 2, 3}


def run(arguments, k=0):
    environment = dict(os.environ, LC_ALL="C.UTF-8", LD_PRELOAD=LIBRARY, TITAN_MEMORY=str(k), TITAN_MEMORY_MARK="mark")
    environment["ASAN_OPTIONS"] = "verify_asan_link_order=0:detect_leaks=0:allocator_may_return_null=1:exitcode=99"
    environment["UBSAN_OPTIONS"] = "halt_on_error=1:exitcode=99"
    return subprocess.run([TITAN, *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                          timeout=300)


def tree():
    names = set()
    for folder, folders, files in os.walk("."):
        names.update(os.path.join(folder, name) for name in folders + files)
    names.discard("./mark")
    return names


def steady(out):
    """The output without times."""
    return [line for line in out.decode(errors="replace").splitlines() if " s" not in line and '"age_s"' not in line]


def prepare():
    with open("corpus.txt", "w") as corpus:
        for i in range(400):
            corpus.write(f"And the evening and the morning were day {i} of {i * 7}.\n")
    for arguments in (["train", *TINY], ["ckpt", "convert", STEP, "exported"],
                      ["data", "pack", "--dataset", "text", "--dataset_path", "corpus.txt", "--out", "packed.tokens"]):
        result = run(arguments)
        if result.returncode != 0:
            sys.exit(f"Bail out! titan {' '.join(arguments)}: {result.stderr.decode()}")


def clear(made):
    for name in made:
        shutil.rmtree(name, ignore_errors=True)


class Campaign:
    def __init__(self, name):
        self.name, self.arguments = name, COMMANDS[name]
        self.before = tree()
        reference = run(self.arguments)
        self.reference, self.after = reference, tree()
        self.made = {name for name in self.after - self.before if name.count("/") == 1}
        self.runs, self.survived, self.problems = 0, 0, []
        clear(self.made)

    def judge(self, k, result):
        message = result.stderr.decode(errors="replace")
        if result.returncode == self.reference.returncode and steady(result.stdout) == steady(self.reference.stdout):
            self.survived += 1
            return None if tree() == self.after else f"left {tree() ^ self.after}"
        if "CHECK failed: sanitizer_" in message:
            return None  # the allocation that failed was the sanitizer's own, in a thread that it starts
        if result.returncode not in DOCUMENTED:
            return f"exit code {result.returncode}: {message[-2000:]}"
        if "titan: error: " not in message:
            return f"no message: {message[-500:]!r}"
        # a file that was published before the failure of its report is whole
        return None if tree() in (self.before, self.after) else f"left {tree() ^ self.before}"

    def attempt(self, k):
        """Returns whether the run made a k-th allocation."""
        if os.path.exists("mark"):
            os.remove("mark")
        result = run(self.arguments, k)
        if not os.path.exists("mark"):
            clear(self.made)
            return False
        self.runs += 1
        problem = self.judge(k, result)
        if problem:
            self.problems.append(f"allocation {k}: {problem}")
        clear(tree() - self.before if problem else self.made)
        return True

    def count(self):
        """Finds by bisection how many allocations the command makes."""
        low, high = 0, 1
        while self.attempt(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.attempt(middle) else (low, middle)
        return low

    def run(self, every):
        n = self.count()
        step = every or max(1, n // 8)
        for k in range(1, n + 1, step):
            self.attempt(k)
        return n


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="every allocation")
    parser.add_argument("--every", type=int, default=0, help="every N-th allocation")
    parser.add_argument("command", nargs="*", default=list(COMMANDS))
    options = parser.parse_args()
    every = 1 if options.all else options.every
    folder, runs, failed = tempfile.mkdtemp(prefix="titan-memory."), 0, 0
    print(f"1..{len(options.command)}", flush=True)
    try:
        os.chdir(folder)
        prepare()
        for number, name in enumerate(options.command, 1):
            campaign = Campaign(name)
            n = campaign.run(every)
            runs += campaign.runs
            failed += len(campaign.problems)
            print(f"{'not ok' if campaign.problems else 'ok'} {number} - {name}", flush=True)
            print(f"# {n} allocations, {campaign.runs} runs, {campaign.survived} ended as without a failure",
                  flush=True)
            for problem in campaign.problems[:5]:
                print("# " + problem.replace("\n", "\n# "), flush=True)
    finally:
        os.chdir("/")
        shutil.rmtree(folder)
    print(f"# {runs} runs, {failed} findings")


main()

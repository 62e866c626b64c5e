# SPDX-License-Identifier: MIT
"""The scenarios that campaign.py runs while system calls fail, and their checks."""
import errno
import os
import re
import shutil

import job

# A run reports the error of a call by its text. An error without a text (short, EINTR) must not be noticed at all.
TEXTS = {name: os.strerror(getattr(errno, name)) for name in (
    "EACCES", "EBUSY", "EDQUOT", "EFAULT", "EIO", "EMFILE", "ENFILE", "ENODEV", "ENOLCK", "ENOMEM", "ENOSPC", "ENOSYS",
    "EOPNOTSUPP", "EPERM", "EROFS", "ESRCH", "ESTALE")}

OPTIONAL = re.compile(r"/run/(tb|profiling)(/|$)")  # a trace or event file that cannot be written is a warning


class Fault:
    def __init__(self, call, action, paths):
        self.call, self.action, self.paths = call, action, paths
        self.path = paths[0] if paths else ""
        self.error = action.rstrip("+")

    def must_go_unnoticed(self):
        """Nothing is wrong; the call only has to be repeated or continued."""
        return self.error in ("EINTR", "short") and self.call != "close"


class Place:
    """Where the scenarios run: the folder watched/inputs, and one folder for each worker next to it."""

    def __init__(self, titan, watched):
        self.titan, self.watched = titan, watched
        self.environment = job.settings()
        job.make_inputs(watched + "/inputs")

    def titan_in(self, folder, ranks, arguments, env=(), limit=job.HANG_SECONDS):
        return job.run(job.command(self.titan, ranks, arguments, env), folder, self.environment, limit)

    def must(self, folder, ranks, arguments):
        result = self.titan_in(folder, ranks, arguments)
        if result.code != 0:
            raise SystemExit(f"an undisturbed run fails: titan {' '.join(arguments)}\n{result.shown()}")
        return result


def ended_badly(result, fault, allowed):
    """What is wrong with the end of a run in which a call failed."""
    if result.hung:
        yield "hangs"
        return
    if result.code < 0 or result.code > 128:
        yield f"dies of signal {-result.code if result.code < 0 else result.code - 128}"
        return
    if result.code == 0:
        return
    if fault.must_go_unnoticed():
        yield f"gives up instead of continuing: exit {result.code}: {first_error(result)}"
        return
    if result.code not in allowed and not (result.code == 1 and fault.error == "ENOMEM"):
        yield f"exit code {result.code}: {first_error(result)}"
    if len(result.errors()) != 1:
        yield f"{len(result.errors())} error messages instead of one: {' / '.join(result.errors()[:3])}"
    elif TEXTS.get(fault.error, "") not in result.err:
        yield f"the message does not say '{TEXTS[fault.error]}': {first_error(result)}"


def first_error(result):
    return (result.errors() or result.err.splitlines()[-1:] or ["no message"])[0]


def called_damaged(result):
    """Nothing was damaged, so nothing may be reported as damaged."""
    for line in (result.out + result.err).splitlines():
        if re.search(r"\bdamaged\b|^BAD |corrupt|does not match|differ", line) and not line.startswith("  hint"):
            return line
    return None


class Training:
    """A training job that starts from the state that `before` left, or from nothing; then once more without failures.
    With several ranks, most calls repeat a single rank's, so only every stride-th k is tried."""

    def __init__(self, name, ranks, options, before=None, stride=1):
        self.name, self.ranks, self.stride = name, ranks, stride
        self.arguments = ["train", "--config", "../inputs/config.yaml", *options]
        self.before = before
        self.wanted = None

    def reference(self, place):
        """The undisturbed run, with every step kept; and the folder to start from."""
        folder = f"{place.watched}/reference-{self.name}"
        job.clear(folder)
        place.must(folder, self.ranks, [*self.arguments, "--checkpoint.keep_latest_k=0"])
        self.wanted = job.Reference(folder + "/run")
        if self.before:
            job.clear(self.template(place))
            place.must(self.template(place), self.ranks, [*self.arguments, *self.before])

    def template(self, place):
        return f"{place.watched}/template-{self.name}"

    def prepare(self, place, folder):
        shutil.rmtree(folder, ignore_errors=True)
        if self.before:
            shutil.copytree(self.template(place), folder)
        else:
            os.makedirs(folder)

    def run(self, place, folder, env=()):
        return place.titan_in(folder, self.ranks, self.arguments, env)

    def problems(self, place, folder, result, fault):
        run = folder + "/run"
        allowed = [2] if fault.path.endswith("config.yaml") else [4] if fault.call == "process_vm_readv" else [3]
        yield from ended_badly(result, fault, allowed)
        if result.hung:
            return
        if result.code != 0 and all(OPTIONAL.search(path) for path in fault.paths):
            yield f"ends for a file that training can do without: {first_error(result)}"
        if self.before and "random init" in result.err:
            yield "starts from random weights over an existing run"
        if called_damaged(result):
            yield f"calls it damaged: {called_damaged(result)}"
        records = not any("metrics.jsonl" in path for path in fault.paths)
        if result.code == 0 and job.STEPS in self.wanted.steps and "warning" not in result.err:
            for wrong in self.wanted.wrong_end(run, records):
                yield f"exit 0, but {wrong}"
        yield from self.lost(run, result)
        newest = max(job.steps_in(run), default=0)
        again = self.run(place, folder)
        yield from self.restarted(folder, again, newest, records)

    def lost(self, run, result):
        """Good steps that are missing, and steps that are not good."""
        for wrong in self.wanted.wrong_steps(run):
            yield f"a step is damaged: {wrong}"
        saved = {int(n) for n in re.findall(r"^titan: checkpoint step-(\d+): .* GB/s", result.err, re.M)}
        saved |= {job.STEPS // 2} if self.before else set()
        found = job.steps_in(run)
        if saved and max(saved) not in found:
            yield f"step-{max(saved)} was saved and is gone"
        elif len(saved) > 1 and len(found) < 2:
            yield f"of the steps {sorted(saved)} only {sorted(found)} stayed"

    def restarted(self, folder, again, newest, records):
        run = folder + "/run"
        if again.hung:
            yield "a restart hangs"
            return
        if again.code != 0:
            yield f"a restart fails with exit code {again.code}: {first_error(again)}"
            return
        if newest and f"step-{newest} of" not in again.err:
            yield f"a restart does not continue from step-{newest}"
        for wrong in self.wanted.wrong_end(run, records):
            yield f"after a restart {wrong}"
        for wrong in self.wanted.wrong_steps(run):
            yield f"after a restart a step is damaged: {wrong}"
        for name in job.leftovers(folder):
            yield f"left over after a restart: {re.sub('[0-9a-f]{8,}', '...', name)}"


class Reading:
    """A command that reads a run and changes nothing."""

    ranks, stride = 1, 1

    def __init__(self, name, arguments, allowed=(3,)):
        self.name, self.arguments, self.allowed = name, arguments, allowed
        self.wanted = None
        self.files = None

    def reference(self, place):
        folder = self.template(place)
        if not os.path.isdir(folder):
            job.clear(folder)
            place.must(folder, 1, ["train", "--config", "../inputs/config.yaml", "--checkpoint.last_save_in_hf"])
        self.files = job.files_of(folder + "/run")
        self.wanted = plain(place.must(folder, 1, self.arguments).out)

    def template(self, place):
        return f"{place.watched}/template-commands"

    def prepare(self, place, folder):
        if not os.path.isdir(folder + "/run") or job.files_of(folder + "/run") != self.files:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(self.template(place), folder)

    def run(self, place, folder, env=()):
        return place.titan_in(folder, 1, self.arguments, env)

    def problems(self, place, folder, result, fault):
        yield from ended_badly(result, fault, self.allowed)
        if result.hung:
            return
        if called_damaged(result):
            yield f"calls it damaged: {called_damaged(result)}"
        if result.code == 0 and plain(result.out) != self.wanted and TEXTS.get(fault.error,
            "?") not in result.err + result.out:
            yield "exit 0, but it prints something else and no warning"
        if job.files_of(folder + "/run") != self.files:
            yield "a command that reads has changed the run"
        again = self.run(place, folder)
        if again.code != 0 or plain(again.out) != self.wanted:
            yield f"the same command again: {first_error(again)}"


class Writing(Reading):
    """A command that writes `target` from a run, whole or not at all."""

    def __init__(self, name, arguments, target):
        super().__init__(name, arguments)
        self.target = target
        self.made = None

    def reference(self, place):
        super().reference(place)
        self.made = self.of(self.template(place))
        self.remove(self.template(place))

    def of(self, folder):
        path = f"{folder}/{self.target}"
        return job.step_of(path) if os.path.isdir(path) else {"": os.path.exists(path)}

    def remove(self, folder):
        path = f"{folder}/{self.target}"
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.exists(path):
            os.unlink(path)

    def prepare(self, place, folder):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.template(place), folder)

    def problems(self, place, folder, result, fault):
        yield from ended_badly(result, fault, self.allowed)
        if result.hung:
            return
        if called_damaged(result):
            yield f"calls it damaged: {called_damaged(result)}"
        if job.files_of(folder + "/run") != self.files:
            yield "a command that writes elsewhere has changed the run"
        there = os.path.exists(f"{folder}/{self.target}")
        if there and self.of(folder) != self.made:
            yield "what it wrote is not whole"
        if result.code == 0 and not there:
            yield "exit 0, and nothing was written"
        if result.code != 0 or not there:
            again = place.titan_in(folder, 1, [*self.arguments, *(["--force"] if there else [])])
            if again.code != 0 or self.of(folder) != self.made:
                yield f"the same command again: {first_error(again)}"
        for name in job.leftovers(folder):
            yield f"left over: {re.sub('[0-9a-f]{8,}', '...', name)}"


EXTRAS = ["--checkpoint.last_save_in_hf", "--metrics.enable_tensorboard", "--profiling.enable_profiling",
          "--profiling.profile_freq=4"]
HALF = [f"--training.steps={job.STEPS // 2}", "--checkpoint.last_save_in_hf=false"]
SHARED = ["--checkpoint.save_policy=filtered", "--checkpoint.filter=rank0"]

ALL = [
    Training("sync", 1, EXTRAS),
    Training("async", 1, ["--checkpoint.async_mode=async"]),
    Training("resume", 1, ["--checkpoint.last_save_in_hf"], HALF),
    Training("sync2", 2, ["--model.dim=32", "--model.vocab_size=2048", "--training.global_batch_size=4"],
             stride=8),  # so large that ranks read each other's memory
    Training("async2", 2, ["--checkpoint.async_mode=async", *SHARED], stride=8),
    Training("resume2", 2, ["--parallelism.fsdp_engine=planned"], HALF, stride=8),
    Reading("verify", ["ckpt", "verify", "run"]),
    Reading("list", ["ckpt", "list", "run"]),
    Reading("inspect", ["ckpt", "inspect", "run"]),
    Reading("diff", ["ckpt", "diff", "run/checkpoint/step-4", "run/checkpoint/step-4"]),
    Reading("generate", ["generate", "run", "--prompt=The", "--max-new-tokens=2", "--threads=1"]),
    Reading("check", ["config", "check", "../inputs/config.yaml"], (2,)),
    Writing("consolidate", ["ckpt", "consolidate", "run", "whole", "--format=hf"], "whole"),
    Writing("average", ["ckpt", "average", "run", "run", "--out=whole", "--weights=1,2"], "whole"),
    Writing("convert", ["ckpt", "convert", "run/checkpoint/step-4/hf", "converted"], "converted"),
]


def plain(text):
    """The output of a command, without times."""
    return re.sub(r" *\d+(\.\d+)? ?(ms|s|min|h|d|GB/s|MB/s|GiB/s|MiB/s|tokens/s|tok/s)\b", "#", text)

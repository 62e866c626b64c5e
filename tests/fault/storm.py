#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Training jobs that are killed at random moments, and started again.

    tests/fault/storm.py [--build build] [--count 1000] [--seed 1] [--jobs N] [--report FILE]
    tests/fault/storm.py --only 1:17         trial 17 of seed 1, with all that it printed
    tests/fault/storm.py --meshes            pairs of meshes

A trial is a job of ten steps on one to four ranks with random policies, modes and engine. Once to three times a
signal hits a rank, mpirun, or all of them at a random moment: SIGKILL, SIGTERM, SIGINT, SIGUSR1, or SIGSTOP and a
while later SIGCONT. After each signal the job must end, every published step must be intact, and the newest must not
be older than before. Then the job starts again, often at once and often on another number of ranks. The last start
is not disturbed: it must end with the bits of an undisturbed run and leave no temporary files. The seed and its
number determine a trial, but the instruction at which a signal hits depends on the machine.

With --meshes the model has six layers and eight heads, and a trial is a pair of meshes of up to eight ranks, with any
degrees of pipeline, replicas, shards, context and tensor parallelism: the job is killed on one of them and continues on
the other, with any schedule on either side. Exact degrees give all of them the same bits. Python's standard library
only.
"""
import argparse
import collections
import concurrent.futures
import itertools
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import job
from campaign import kind_of

STEPS = 10
SIGNALS = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM, "INT": signal.SIGINT, "USR1": signal.SIGUSR1,
           "STOP": signal.SIGSTOP}
SEGMENTS = "/dev/shm"
DIMENSIONS = ["pipeline_parallel", "data_parallel_replicate", "data_parallel_shard", "context_parallel",
              "tensor_parallel"]
DEGREES = [(1, 2, 4), (1, 2), (1, 2, 4), (1, 2), (1, 2, 4)]  # of each dimension
MESHES = [mesh for mesh in itertools.product(*DEGREES) if math.prod(mesh) <= 8]
UNDISTURBED = [(1, 1, 1, 1, 1), (1, 1, 1, 1, 2), (2, 1, 1, 2, 1), (2, 1, 2, 1, 2)]  # every number of ranks
EXACT = ["--parallelism.exact_tensor_parallel_degree=4", "--parallelism.exact_context_parallel_degree=2"]
SHARED = ["--model.n_layers=6", "--model.n_heads=8", "--model.n_kv_heads=8", *EXACT]  # of all meshes
SCHEDULES = ["1F1B", "GPipe", "LoopedBFS", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]


def name_of(pid):
    try:
        with open(f"/proc/{pid}/comm", encoding="latin-1") as file:
            return file.read().strip()
    except OSError:
        return ""


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="latin-1") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def send(pid, number):
    try:
        os.kill(pid, number)
    except OSError:
        pass


def job_of(pid):
    """Open MPI's number for the job of a rank, which is part of the names of its segments; None if not a rank."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            number = dict(entry.partition(b"=")[::2] for entry in file.read().split(b"\0")).get(b"PMIX_NAMESPACE")
    except OSError:
        return None
    return f"{int(number):x}" if number and number.isdigit() else None


def segments(jobs):
    """Segments of Open MPI that ranks of these jobs made and that still exist."""
    names = os.listdir(SEGMENTS) if os.path.isdir(SEGMENTS) else []
    return [name for name in names if "_segment" in name and jobs & set(name.split("."))]


class Job:
    """One start of a trial: the mesh and the command line."""

    def __init__(self, draw, ranks):
        self.ranks = ranks
        self.mesh = f"{ranks} ranks"
        self.batch = 12 if ranks == 3 else 16  # a power of two gives the same bits on one, two and four ranks
        pick = draw.choice
        self.options = ["--parallelism.fsdp_engine=" + pick(["eager", "planned"]),
                        "--parallelism.fsdp_reshard_after_forward=" + pick(["always", "never", "default"]),
                        "--parallelism.fsdp_wrap_policy=" + pick(["block", "param", "model"]),
                        "--checkpoint.async_mode=" + pick(["disabled", "async"])]
        self.options += pick([["--checkpoint.save_policy=all"],
                              ["--checkpoint.save_policy=filtered", "--checkpoint.filter=replica0"],
                              ["--checkpoint.save_policy=filtered", "--checkpoint.filter=rank0"]])
        self.divide(pick)

    def divide(self, pick):
        if self.ranks in (2, 4) and pick([True, False]):
            self.options += ["--parallelism.data_parallel_replicate_degree=2",
                             f"--parallelism.data_parallel_shard_degree={self.ranks // 2}"]

    def arguments(self):
        return ["train", "--config", "../inputs/config.yaml", f"--training.steps={STEPS}",
                f"--lr_scheduler.total_steps={STEPS}", f"--training.global_batch_size={self.batch}", *self.options]


class MeshJob(Job):
    """One start on a mesh of any dimensions."""

    def __init__(self, draw, mesh):
        self.degrees = mesh
        super().__init__(draw, math.prod(mesh))
        self.mesh = " x ".join(f"{name} {n}" for name, n in zip(("pp", "dp_replicate", "dp_shard", "cp", "tp"), mesh))

    def divide(self, pick):
        pipe, replicate, shard = self.degrees[:3]
        most = self.batch // (replicate * shard)
        self.options += SHARED
        self.options += [f"--parallelism.{name}_degree={n}" for name, n in zip(DIMENSIONS, self.degrees)]
        if pipe > 1:
            self.options += ["--parallelism.pipeline_parallel_schedule=" + pick(SCHEDULES),
                             f"--training.local_batch_size={max(most // pick([1, 2]), 2 * pipe)}"]


class Trial:
    """What one number of a seed determines."""

    def __init__(self, seed, number):
        draw = random.Random(f"{seed}:{number}")
        self.number, self.seed = number, seed
        self.three = draw.random() < 0.15  # three ranks give other bits, so all starts use three
        self.keep = draw.choice([1, 2, 3, 0])
        self.interval = draw.choice([1, 1, 2, 3])
        self.blows = []
        for _ in range(draw.choice([1, 1, 2, 3])):
            self.blows.append((self.job(draw), draw.choice(sorted(SIGNALS)), draw.choice(["rank", "mpirun", "all"]),
                               draw.random() * 1.1, draw.random(), draw.random() < 0.5))
        self.last = self.job(draw)

    def job(self, draw):
        return Job(draw, 3 if self.three else draw.choice([1, 2, 2, 4]))

    def references(self):
        """For each kind of result, the undisturbed jobs that must give it."""
        for three, rank_counts in ((False, (1, 2, 4)), (True, (3,))):
            yield three, [Job(random.Random(0), ranks) for ranks in rank_counts]

    def __str__(self):
        return f"{self.seed}:{self.number}"


class Pair(Trial):
    """A job that is killed on one mesh and continues on another."""

    def __init__(self, seed, number):
        draw = random.Random(f"meshes {seed}:{number}")
        self.number, self.seed = number, seed
        self.three = False
        self.keep = draw.choice([1, 2, 0])
        self.interval = draw.choice([1, 1, 2])
        first, last = draw.sample(MESHES, 2)
        self.blows = [(MeshJob(draw, first), "KILL", draw.choice(["rank", "mpirun", "all"]),
                       0.1 + 0.8 * draw.random(), draw.random(), draw.random() < 0.5)]
        self.last = MeshJob(draw, last)

    def references(self):
        yield False, [MeshJob(random.Random(0), mesh) for mesh in UNDISTURBED]


class Storm:
    def __init__(self, options):
        self.options = options
        self.top = tempfile.mkdtemp(prefix="titan-storm.", dir=options.folder)
        self.titan = job.copy_program(options.build, self.top)
        self.environment = job.settings()
        self.lock = threading.Lock()
        self.kind = Pair if options.meshes else Trial
        self.took = {}  # ranks -> seconds of the last whole run, to choose a moment in it
        self.wanted = {}  # three ranks or not -> (step -> digests, losses)
        self.ended = collections.Counter()
        self.starts = self.killed = 0
        self.stopped = False
        self.jobs = set()  # Open MPI's numbers of the jobs that were hit
        self.problems = {}
        job.make_inputs(self.top + "/inputs")

    def references(self):
        for three, starts in self.kind(self.options.seed, 0).references():
            for start in starts:
                folder = f"{self.top}/reference"
                job.clear(folder)
                result = job.run(job.command(self.titan, start.ranks,
                                             [*start.arguments(), "--checkpoint.keep_latest_k=0"]), folder,
                                 self.environment)
                if result.code != 0:
                    raise SystemExit(f"an undisturbed run fails: {result.shown()}")
                found = ({n: digests(path) for n, path in job.steps_in(folder + "/run").items()},
                         job.losses_of(folder + "/run")[0])
                if self.wanted.setdefault(three, found) != found:
                    raise SystemExit(f"undisturbed runs differ on {start.mesh}")
                self.took[start.ranks] = result.seconds

    def hit(self, trial, folder, blow):
        """Starts a job and sends it a signal. Returns its exit code (None if it hangs) and its standard error."""
        start, name, target, moment, which, _ = blow
        with tempfile.TemporaryFile() as err:
            child = subprocess.Popen(self.command(trial, start), cwd=folder, env=self.environment,
                                     stdin=subprocess.DEVNULL,
                                     stdout=subprocess.DEVNULL, stderr=err, start_new_session=True)
            try:
                child.wait(self.took[start.ranks] * moment)
            except subprocess.TimeoutExpired:
                pass
            family = job.descendants(child.pid)
            ranks = [pid for pid in family if name_of(pid) == "titan"] or [child.pid]
            with self.lock:
                self.jobs |= {job_of(pid) for pid in ranks} - {None}
            victims = {"rank": [ranks[int(which * len(ranks))]], "mpirun": [child.pid], "all": family}[target]
            for pid in victims:
                send(pid, SIGNALS[name])
            if name == "STOP":
                time.sleep(which)
                for pid in victims:
                    send(pid, signal.SIGCONT)
            try:
                code = child.wait(job.HANG_SECONDS)
            except subprocess.TimeoutExpired:
                code = None
                job.kill_tree(child.pid)
                child.wait()
            err.seek(0)
            return code, err.read().decode(errors="replace"), family

    def command(self, trial, start):
        return job.command(self.titan, start.ranks,
                           [*start.arguments(), f"--checkpoint.keep_latest_k={trial.keep}",
                            f"--checkpoint.interval={trial.interval}"])

    def wrong_steps(self, folder, trial):
        """Published steps that are not intact."""
        steps = job.steps_in(folder + "/run")
        for number, path in sorted(steps.items()):
            if digests(path) != self.wanted[trial.three][0].get(number):
                yield f"step-{number} has other bits"
        if steps:
            result = job.run([self.titan, "ckpt", "verify", *(steps[n] for n in sorted(steps))], folder,
                             self.environment)
            if result.code != 0:
                yield f"what is left does not verify: {result.out.strip().splitlines()[:2]}"

    def survive(self, trial, folder, printed):
        """The whole trial: yields its problems."""
        newest = 0
        for blow in trial.blows:
            start, name, target, moment, which, at_once = blow
            code, err, family = self.hit(trial, folder, blow)
            what = f"SIG{name} to {target} of {start.mesh}"
            printed.append(f"{what} at {moment:.3f} of a run: exit {code}\n{err[-2000:]}")
            with self.lock:
                self.killed += 1
                self.ended[name, target, code] += 1
            if code is None:
                yield f"hangs after {what}"
            if name == "STOP" and code != 0:
                yield f"exit code {code} after {what}: {last_line(err)}"
            if "another job is running" in err:
                yield f"a restart is refused: {last_line(err)}"
            if not at_once:
                self.wait_for(family)
            left = [pid for pid in family if alive(pid)]
            if left and not at_once:
                yield f"ranks live on after {what}"
                for pid in left:
                    send(pid, signal.SIGKILL)
            if left:  # the next start must cope with them; steps are examined after it
                continue
            yield from (f"after {what} {wrong}" for wrong in self.wrong_steps(folder, trial))
            found = max(job.steps_in(folder + "/run"), default=0)
            if found < newest:
                yield f"after {what} step-{newest} is gone"
            newest = found
        result = job.run(self.command(trial, trial.last), folder, self.environment)
        printed.append(f"the last start on {trial.last.mesh}: " + result.shown())
        yield from self.wrong_end(folder, trial, result)
        if result.code == 0:
            with self.lock:
                self.took[trial.last.ranks] = (self.took[trial.last.ranks] + result.seconds) / 2

    def wait_for(self, family):
        until = time.monotonic() + job.HANG_SECONDS
        while any(alive(pid) for pid in family) and time.monotonic() < until:
            time.sleep(0.01)

    def wrong_end(self, folder, trial, result):
        if result.hung:
            yield "the last start hangs"
            return
        if result.code != 0:
            yield f"the last start ends with exit code {result.code}: {last_line(result.err)}"
            return
        steps, losses = self.wanted[trial.three]
        found = job.steps_in(folder + "/run")
        if STEPS not in found or digests(found[STEPS]) != steps[STEPS]:
            yield "the end has other bits"
        yield from (f"at the end {wrong}" for wrong in self.wrong_steps(folder, trial))
        if trial.keep and len(found) > trial.keep:
            yield f"at the end {len(found)} steps are kept"
        seen, torn = job.losses_of(folder + "/run")
        if torn:
            yield f"metrics.jsonl has a torn line: {torn[0]}"
        for step, values in losses.items():
            if seen.get(step) != values:
                yield f"metrics.jsonl: step {step} has {'other values' if step in seen else 'no record'}"
        for name in job.leftovers(folder):
            yield f"left over: {name}"

    def trial(self, number):
        if self.stopped:
            return
        trial = self.kind(self.options.seed, number)
        folder, printed = f"{self.top}/trial{number}", []
        os.makedirs(folder)
        try:
            problems = list(self.survive(trial, folder, printed))
        finally:
            if not self.options.keep:
                shutil.rmtree(folder, ignore_errors=True)
        with self.lock:
            self.starts += len(trial.blows) + 1
            for problem in problems:
                kind = self.problems.setdefault(kind_of(problem), [0, []])
                kind[0] += 1
                kind[1].append((str(trial), problem, "\n".join(printed)))
            if self.options.only:
                print("\n".join(printed), *problems, sep="\n")

    def stop(self, *_):
        """Lets running trials end, starts no other, and reports the findings."""
        self.stopped = True

    def run(self):
        began = time.monotonic()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.stop)
        numbers = [int(text.split(":")[1]) for text in self.options.only] or range(self.options.count)
        try:
            self.references()
            with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
                for future in [pool.submit(self.trial, number) for number in numbers]:
                    future.result()
            for name in segments(self.jobs):
                os.utime(SEGMENTS + "/" + name, (0, 0))  # young ones would be kept: a rank may be about to map them
            self.references()  # these jobs remove what the killed ones left in shared memory
            left = segments(self.jobs)
            if left:
                self.problems["segments of Open MPI stay in " + SEGMENTS] = [len(left), [("", left[0], "")]]
        finally:
            shutil.rmtree(self.top, ignore_errors=True)
        return time.monotonic() - began

    def report(self, seconds):
        lines = [f"{self.killed} signals in {self.starts} starts, seed {self.options.seed}, {seconds:.0f} s: "
                 f"{sum(p[0] for p in self.problems.values())} problems of {len(self.problems)} kinds"
                 f"{', stopped early' if self.stopped else ''}"]
        for (name, target), codes in sorted(by_signal(self.ended).items()):
            lines.append(f"SIG{name} to {target}: " + ", ".join(f"exit {code}: {n}" for code, n in codes))
        for kind, (count, cases) in sorted(self.problems.items(), key=lambda item: -item[1][0]):
            lines.append(f"\n{count} x {kind}")
            for trial, problem, printed in cases[:3]:
                lines.append(f"  tests/fault/storm.py{' --meshes' * self.options.meshes} --only {trial}\n    {problem}")
                lines.extend("    | " + line for line in printed.splitlines()[-25:])
        return "\n".join(lines) + "\n"


def by_signal(ended):
    found = collections.defaultdict(list)
    for (name, target, code), n in sorted(ended.items(), key=str):
        found[name, target].append((code, n))
    return found


def digests(step):
    """The part of a step that does not depend on the layout: the digests in its manifest, which `ckpt verify` compares
    with the bytes."""
    return job.step_of(step).get("manifest.json")


def last_line(err):
    errors = [line for line in err.splitlines() if line.startswith("titan: error:")]
    return (errors or err.strip().splitlines()[-1:] or ["no message"])[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser.add_argument("--build", default=os.environ.get("TITAN_BUILD", "build"), help="the build folder")
    parser.add_argument("--count", type=int, default=1000, help="trials")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="trials at a time")
    parser.add_argument("--meshes", action="store_true", help="pairs of meshes of any dimensions")
    parser.add_argument("--only", action="append", default=[], metavar="SEED:NUMBER",
                        help="this trial; may be repeated")
    parser.add_argument("--folder", default=job.fast_folder(), help="where the jobs run")
    parser.add_argument("--keep", action="store_true", help="keep the folders until the end")
    parser.add_argument("--report", help="write the report to this file too")
    parser.add_argument("--tap", action="store_true", help="print the Test Anything Protocol")
    options = parser.parse_args()
    os.environ.setdefault("TITAN_SOURCE", source)
    if options.only:
        options.seed = int(options.only[0].split(":")[0])
    storm = Storm(options)
    if not storm.titan:
        shutil.rmtree(storm.top)
        print("1..0 # SKIP times of a sanitizer build are too long")
        return 0
    text = storm.report(storm.run())
    return job.print_report("kill storm", text, bool(storm.problems) or not storm.killed, options)


if __name__ == "__main__":
    sys.exit(main())

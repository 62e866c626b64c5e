#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every system call of the program fails, one at a time (SQLite's way).

    tests/fault/campaign.py [--build build] [--jobs N] [--report FILE]     the whole campaign
    tests/fault/campaign.py --stride 60                                    a sample of it
    tests/fault/campaign.py --only sync:open:17:EIO                        one case, with all that it printed
    tests/fault/campaign.py --only sync:open:*:EIO+                        all k of one call and error

A case runs one scenario (scenarios.py) while libshim.so makes the k-th call of a kind that touches the job's files
fail with one error, once ("EIO") or from there on ("EIO+"), on one rank. k counts up until a run ends before its
k-th call. After each case come the checks of the scenario: a documented exit code, one message that names the error,
no crash, no hang, no good step lost or damaged, and a restart without failures that ends with the bits of an
undisturbed run and no leftovers. Everything is printed once by kind of problem, with the command that shows it
again. Python's standard library only.
"""
import argparse
import collections
import concurrent.futures
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time

import job
import scenarios

# Plausible failures of a call. "short" transfers half of the bytes. The program must recover from EINTR and short.
ERRORS = {
    "open": ["EIO", "EACCES", "EMFILE", "ENFILE", "ENOMEM", "ESTALE", "EINTR", "EIO+", "EMFILE+", "EACCES+"],
    "read": ["EIO", "ESTALE", "EINTR", "short", "EIO+"],
    "pread": ["EIO", "ESTALE", "EINTR", "short", "EIO+"],
    "write": ["EIO", "ENOSPC", "EDQUOT", "EINTR", "short", "ENOSPC+", "EIO+"],
    "pwrite": ["EIO", "ENOSPC", "EDQUOT", "EINTR", "short", "ENOSPC+", "EIO+"],
    "fsync": ["EIO", "ENOSPC", "EDQUOT", "EINTR", "EIO+"],
    "close": ["EIO", "EDQUOT", "EINTR"],
    "rename": ["EIO", "ENOSPC", "EACCES", "EBUSY", "EIO+", "EACCES+"],
    "unlink": ["EIO", "EACCES", "EBUSY", "EROFS", "EIO+"],
    "rmdir": ["EIO", "EACCES", "EBUSY", "EIO+"],
    "mkdir": ["EIO", "ENOSPC", "EACCES", "EDQUOT", "EROFS", "EIO+", "ENOSPC+"],
    "stat": ["EIO", "EACCES", "ESTALE", "ENOMEM", "EIO+", "EACCES+"],
    "access": ["EIO", "EACCES", "EIO+"],
    "readlink": ["EIO", "EACCES", "ENOMEM", "EIO+"],
    "getdents": ["EIO", "ESTALE", "EIO+"],
    "mmap": ["ENOMEM", "EACCES", "ENODEV", "ENOMEM+"],
    "ftruncate": ["EIO", "EINTR", "EACCES", "EIO+"],
    "fallocate": ["EIO", "ENOSPC", "EDQUOT", "EINTR", "EOPNOTSUPP", "EOPNOTSUPP+", "ENOSPC+"],
    "statvfs": ["EIO", "EACCES", "ENOSYS", "EIO+"],
    "flock": ["EIO", "EINTR", "ENOLCK", "EOPNOTSUPP", "EOPNOTSUPP+"],
    "setlk": ["EIO", "EINTR", "ENOLCK", "ENOSYS"],
    "process_vm_readv": ["EPERM", "EINTR", "EFAULT", "ENOMEM", "ESRCH", "short", "EPERM+"],
}


class Campaign:
    def __init__(self, options):
        self.options = options
        self.top = tempfile.mkdtemp(prefix="titan-fault.", dir=options.folder)
        self.watched = self.top + "/watched"
        self.place = scenarios.Place(job.copy_program(options.build, self.top), self.watched)
        self.shim = shutil.copy(options.build + "/tests/fault/libshim.so", self.top)
        self.lock = threading.Lock()
        self.workers = []
        self.made = 0
        self.calls = {}  # scenario -> what count_calls found
        self.fired = collections.Counter()  # (scenario, call) -> injections
        self.ended = collections.Counter()  # exit code of the injected run -> how often
        self.problems = {}  # kind -> [count, the first cases]
        self.stopped = self.interrupted = False

    def worker(self):
        """A folder that only the calling thread uses."""
        with self.lock:
            if self.workers:
                return self.workers.pop()
            self.made += 1
            return f"w{self.made}"

    def count_calls(self, scenario):
        """(rank, call) -> the number of these calls in an undisturbed run."""
        folder, log = f"{self.watched}/counted", f"{self.top}/counted.log"
        scenario.prepare(self.place, folder)
        scenario.run(self.place, folder, ["LD_PRELOAD=" + self.shim, "TITAN_SHIM_PATHS=" + self.watched + "/",
                                          "TITAN_SHIM_LOG=" + log])
        with open(log, encoding="utf-8", errors="replace") as file:
            calls = collections.Counter((int(line.split()[0]), line.split()[1]) for line in file)
        os.unlink(log)
        return calls

    def case(self, scenario, call, k, action, rank):
        """One run with a failure, and its checks. Returns whether the failure happened."""
        worker = self.worker()
        folder, log = f"{self.watched}/{worker}", f"{self.top}/{worker}.log"
        env = ["LD_PRELOAD=" + self.shim, f"TITAN_SHIM={call}:{k}:{action}:{rank}",
               "TITAN_SHIM_PATHS=" + self.watched + "/",
               "TITAN_SHIM_LOG=" + log]
        try:
            if os.path.exists(log):
                os.unlink(log)
            scenario.prepare(self.place, folder)
            result = scenario.run(self.place, folder, env)
            paths = []
            if os.path.exists(log):
                with open(log, encoding="utf-8", errors="replace") as file:
                    paths = [line.rstrip("\n").partition(f" fired {call} ")[2] for line in file]
            fault = scenarios.Fault(call, action, paths)
            problems = list(scenario.problems(self.place, folder, result, fault)) if paths else []
        finally:
            with self.lock:
                self.workers.append(worker)
        name = f"{scenario.name}:{call}:{k}:{action}" + (f":{rank}" if scenario.ranks > 1 else "")
        self.count(scenario, name, fault, result, problems, bool(paths))
        return bool(paths)

    def count(self, scenario, name, fault, result, problems, fired):
        with self.lock:
            if fired:
                self.fired[scenario.name, fault.call] += 1
                self.ended["hung" if result.hung else result.code] += 1
            if self.options.only:
                print(f"{name}: {'fired on ' + fault.path if fired else 'ended before'}; {result.shown()}")
                for problem in problems:
                    print(f"PROBLEM {problem}")
            for problem in problems:
                kind = self.problems.setdefault(kind_of(problem), [0, []])
                kind[0] += 1
                if len(kind[1]) < self.options.examples:
                    kind[1].append((name, problem, fault.path, result.shown()))

    def stream(self, scenario, call, action, rank, first, stride):
        """All k of one call, error and rank, until a run ends before its k-th call. The sample omits that last run."""
        k = first
        last = self.calls[scenario.name][rank, call] if stride > 1 else 1 << 40
        while k <= last and not self.stopped and self.case(scenario, call, k, action, rank):
            k += stride

    def plan(self):
        """The streams: (scenario, call, action, rank, first k, stride)."""
        number = 0
        for scenario in scenarios.ALL:
            if self.options.scenario and scenario.name not in self.options.scenario:
                continue
            for rank in range(scenario.ranks):
                for call, actions in ERRORS.items():
                    if call == "process_vm_readv" and scenario.ranks == 1:
                        continue
                    for action in actions:
                        number += 1
                        stride = self.options.stride
                        stride *= scenario.stride if rank == 0 and call != "process_vm_readv" else 1
                        first = 1 + number * 7 % stride if stride > 1 else 1
                        yield scenario, call, action, rank, first, stride

    def only(self):
        for text in self.options.only:
            name, call, k, action, rank = (text.split(":") + ["0"])[:5]
            scenario = next(s for s in scenarios.ALL if s.name == name)
            actions = ERRORS[call] if action == "*" else [action]
            for action in actions:
                if k == "*":
                    yield scenario, call, action, int(rank), 1, 1
                else:
                    yield scenario, call, action, int(rank), int(k), 1 << 40

    def stop(self, *_):
        """Lets running cases end, starts no other, and reports the findings."""
        self.stopped = self.interrupted = True

    def run(self):
        began = time.monotonic()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.stop)
        streams = list(self.only() if self.options.only else self.plan())
        try:
            for scenario in dict.fromkeys(stream[0] for stream in streams):
                scenario.reference(self.place)
                self.calls[scenario.name] = self.count_calls(scenario)
            with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
                waiting = [pool.submit(self.stream, *stream) for stream in streams]
                for future in concurrent.futures.as_completed(waiting):
                    future.result()
        finally:
            self.stopped = True
            if not self.options.keep:
                shutil.rmtree(self.top, ignore_errors=True)
        return time.monotonic() - began

    def report(self, seconds):
        total = sum(self.fired.values())
        calls = collections.Counter()
        by_scenario = collections.Counter()
        for (scenario, call), n in self.fired.items():
            calls[call] += n
            by_scenario[scenario] += n
        lines = [f"{total} injected failures in {seconds:.0f} s, "
                 f"{sum(p[0] for p in self.problems.values())} problems of "
                 f"{len(self.problems)} kinds{', stopped early' if self.interrupted else ''}"]
        lines.append("scenarios  " + ", ".join(f"{name} {n}" for name, n in by_scenario.items()))
        lines.append("calls      " + ", ".join(f"{name} {n}" for name, n in sorted(calls.items())))
        lines.append("exit codes " + ", ".join(f"{code}: {n}" for code, n in sorted(self.ended.items(), key=str)))
        for kind, (count, cases) in sorted(self.problems.items(), key=lambda item: -item[1][0]):
            lines.append(f"\n{count} x {kind}")
            for name, problem, path, shown in cases:
                lines.append(f"  tests/fault/campaign.py --only '{name}'\n    on {path}\n    {problem}")
                lines.extend("    | " + line for line in shown.splitlines()[-4:])
        return "\n".join(lines) + "\n"


def kind_of(problem):
    """A problem without the details that differ from case to case."""
    for text in scenarios.TEXTS.values():
        problem = problem.replace(text, "ERROR")
    problem = re.sub(r"'[^']*'", "'...'", problem.replace("ERROR in system", "ERROR"))
    return re.sub(r"differs? in .*", "differs", re.sub(r"[0-9a-f]{8,}|\d+", "#", problem))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    parser.add_argument("--build", default=os.environ.get("TITAN_BUILD", "build"), help="the build folder")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="cases at a time")
    parser.add_argument("--stride", type=int, default=1, help="only every n-th k")
    parser.add_argument("--scenario", action="append", help="only this one; may be repeated")
    parser.add_argument("--only", action="append", help="SCENARIO:CALL:K:ERROR[:RANK]; K and ERROR may be *")
    parser.add_argument("--folder", default=job.fast_folder(), help="where the jobs run")
    parser.add_argument("--examples", type=int, default=3, help="cases shown of each kind of problem")
    parser.add_argument("--keep", action="store_true", help="leave the folder of the jobs")
    parser.add_argument("--report", help="write the report to this file too")
    parser.add_argument("--tap", action="store_true", help="print the Test Anything Protocol")
    options = parser.parse_args()
    os.environ.setdefault("TITAN_SOURCE", source)
    if not os.path.exists(options.build + "/tests/fault/libshim.so"):
        parser.error(f"no libshim.so in {options.build}/tests/fault: build first")
    campaign = Campaign(options)
    if not campaign.place.titan:
        shutil.rmtree(campaign.top)
        print("1..0 # SKIP a sanitizer's own preloading comes first")
        return 0
    text = campaign.report(campaign.run())
    return job.print_report("failing calls", text, bool(campaign.problems) or not campaign.fired, options)


if __name__ == "__main__":
    sys.exit(main())

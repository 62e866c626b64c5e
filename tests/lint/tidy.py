#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""clang-tidy over the program's sources (tests are left to the compiler): `tidy.py [--analyze] BUILD-FOLDER [FILE...]`.

A TAP case a file. --analyze runs the static analyzer instead of the checks of .clang-tidy, which takes minutes.

Flags come from the build folder's compile_commands.json. A file's outcome is kept in BUILD-FOLDER/tidy-cache under
a digest of all that it depends on (its own text, every header of the tree, .clang-tidy, the command), so a second
run takes seconds.
"""
import concurrent.futures
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys

import tree


# The analyzer's checks. Some are left out. optin.mpi pairs requests within one function, but ours are in structs.
# NullDereference, NonNullParamChecker, UndefinedBinaryOperatorResult and CallAndMessage see one file at a time, so they
# do not know that a failed call is negative and that a count above 0 means an array; the sanitizer runs look for these
# faults. Padding is left out too.
ANALYZER = ",".join(["-*", "clang-analyzer-*"] + ["-clang-analyzer-" + name for name in (
    "security.insecureAPI.DeprecatedOrUnsafeBufferHandling", "optin.mpi.*", "core.NullDereference",
    "core.NonNullParamChecker", "core.UndefinedBinaryOperatorResult", "core.CallAndMessage",
    "optin.performance.Padding")])


def checker():
    for name in ("clang-tidy-14", "clang-tidy"):
        if shutil.which(name):
            version = subprocess.run([name, "--version"], capture_output=True, text=True, check=False).stdout
            if re.search(r"version 14\.", version):
                return name
    return None


def compiled_sources(build):
    """{path from the root: compile command}, each source once; generated ones and tests left out."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as database:
        entries = json.load(database)
    sources = {}
    known = set(tree.c_files())
    for entry in entries:
        path = os.path.relpath(os.path.join(entry["directory"], entry["file"]), tree.ROOT)
        if path in known and path.endswith(".c") and not path.startswith("tests/"):
            sources.setdefault(path, entry["command"])
    return dict(sorted(sources.items()))


def digest_of_headers():
    digest = hashlib.sha256()
    for path in tree.files():
        if path.endswith((".h", ".def")) or path == ".clang-tidy":
            digest.update(path.encode() + b"\0" + tree.text(path).encode())
    return digest


def check(program, build, path, command, headers, analyze):
    """The faults that clang-tidy found in one file, as text; empty when there are none."""
    digest = headers.copy()
    digest.update(bytes([analyze]) + tree.text(path).encode() + b"\0" + re.sub(r"-o \S+", "", command).encode())
    cached = os.path.join(build, "tidy-cache", digest.hexdigest())
    if os.path.exists(cached):
        return ""
    run = [program, "--quiet", "-p", build, "--extra-arg=-Wno-unknown-warning-option",
           "--extra-arg=-Wno-ignored-optimization-argument", path]
    if analyze:
        run.insert(1, "--checks=" + ANALYZER)
    outcome = subprocess.run(run, cwd=tree.ROOT, capture_output=True, text=True, check=False)
    faults = re.findall(r"^\S+:\d+:\d+: (?:error|warning): .*$", outcome.stdout, flags=re.MULTILINE)
    if outcome.returncode == 0 and not faults:
        with open(cached, "w", encoding="utf-8"):
            pass
        return ""
    return "\n".join(faults) or (outcome.stdout + outcome.stderr).strip()


def main(build, only, analyze):
    program = checker()
    if not program:
        print("1..0 # SKIP clang-tidy 14 is not installed")
        return 0
    os.makedirs(os.path.join(build, "tidy-cache"), exist_ok=True)
    sources = compiled_sources(build)
    if only:
        sources = {path: command for path, command in sources.items() if path in only}
    headers = digest_of_headers()
    failed = 0
    print(f"1..{len(sources)}", flush=True)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() + 1) as pool:
        outcomes = pool.map(lambda item: check(program, build, item[0], item[1], headers, analyze), sources.items())
        for number, (path, faults) in enumerate(zip(sources, outcomes), 1):
            print(f"{'not ok' if faults else 'ok'} {number} - {path}")
            for line in faults.splitlines()[:30]:
                print("# " + re.sub(r"^.*?\.\./", "", line.replace(tree.ROOT + "/", "")))
            sys.stdout.flush()
            failed += bool(faults)
    return 1 if failed else 0


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--analyze"]
    sys.exit(main(os.path.abspath(arguments[0]), arguments[1:], "--analyze" in sys.argv))

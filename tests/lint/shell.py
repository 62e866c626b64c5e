#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every shell script is one that bash can read, and those that users run have no fault that shellcheck knows. Python
that only another program runs compiles. Prints TAP, one case per file."""
import re
import shutil
import subprocess
import sys

import tree

# Scripts that users run or copy. Test scripts use words and variables in ways that shellcheck warns about.
FOR_USERS = ("quickstart", ".ci/", "tools/", "packaging/")


def is_shell(path):
    first = tree.text(path).split("\n", 1)[0]
    return path.endswith(".sh") or bool(re.match(r"#!.*\b(ba)?sh$", first))


def fault_of(path, shellcheck):
    """The faults of the file; empty if there are none."""
    if path.endswith(".py"):
        try:
            compile(tree.text(path), path, "exec")
        except SyntaxError as error:
            return str(error)
        return ""
    command = ["bash", "-n", path]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tree.ROOT)
    if found.returncode == 0 and shellcheck and path.startswith(FOR_USERS):
        found = subprocess.run([shellcheck, "-S", "warning", "-f", "gcc", path], capture_output=True, text=True,
                               cwd=tree.ROOT)
    return "" if found.returncode == 0 else found.stdout + found.stderr


def main():
    shellcheck = shutil.which("shellcheck")
    paths = [path for path in tree.text_files() if is_shell(path) or path.startswith("packaging/") and
             path.endswith(".py")]
    failed = False
    print(f"1..{len(paths)}")
    for number, path in enumerate(paths, 1):
        fault = fault_of(path, shellcheck)
        print(f"{'not ok' if fault else 'ok'} {number} - {path}")
        for line in fault.splitlines():
            print("# " + line)
        failed = failed or bool(fault)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

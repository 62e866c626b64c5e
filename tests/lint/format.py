#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every C file is as clang-format 14 leaves it; other versions differ in details, so without 14 this is skipped."""
import re
import shutil
import subprocess
import sys

import tree


def formatter():
    """The program's name, or None."""
    for name in ("clang-format-14", "clang-format"):
        if shutil.which(name):
            version = subprocess.run([name, "--version"], capture_output=True, text=True, check=False).stdout
            if re.search(r"version 14\.", version):
                return name
    return None


def main():
    program = formatter()
    if not program:
        print("1..0 # SKIP clang-format 14 is not installed")
        return 0
    files = tree.c_files()
    failed = 0
    print(f"1..{len(files)}")
    for number, path in enumerate(files, 1):
        outcome = subprocess.run([program, "--dry-run", "--Werror", path], cwd=tree.ROOT, capture_output=True,
                                 text=True, check=False)
        print(f"{'not ok' if outcome.returncode else 'ok'} {number} - {path}")
        if outcome.returncode:
            failed += 1
            places = re.findall(r"^(\S+:\d+):\d+: error", outcome.stderr, flags=re.MULTILINE)
            print(f"# {places[0] if places else path}: run clang-format -i {path}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every header compiles alone, so that the order of includes never matters: `headers.py COMPILER...`."""
import concurrent.futures
import os
import platform
import subprocess
import sys

import tree

FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-fsyntax-only"]


# Parts of simd.h, which includes the one that is for the processor.
PARTS = {f"core/kernels/vector/simd_{kind}.h" for kind in ("c", "neon", "x86")}

# A folder's own flags, and the machine that its headers are for. Some headers need more than the others there.
X86 = "core/kernels/vector/"
X86_FLAGS = ["-mavx2", "-mfma"]
MORE_FLAGS = {
    X86 + "bf16.h": ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512bf16"],
    X86 + "amx_tile.h": ["-mamx-tile", "-mamx-bf16"],
}


def flags_of(path):
    if not path.startswith(X86):
        return FLAGS
    return FLAGS + X86_FLAGS + MORE_FLAGS.get(path, [])


def compile_alone(compiler, path):
    command = compiler + flags_of(path) + ["-I", tree.ROOT, "-iquote",
        os.path.dirname(os.path.join(tree.ROOT, path)), "-x", "c", "-"]
    source = f'#include "{path}"\n#include "{path}"\n'
    return subprocess.run(command, input=source, capture_output=True, text=True, check=False)


def main(compiler):
    headers = [path for path in tree.c_files() if path.endswith(".h") and path not in PARTS]
    if platform.machine() != "x86_64":
        headers = [path for path in headers if not path.startswith(X86)]
    failed = 0
    print(f"1..{len(headers)}")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = pool.map(lambda path: compile_alone(compiler, path), headers)
        for number, (path, outcome) in enumerate(zip(headers, outcomes), 1):
            print(f"{'not ok' if outcome.returncode else 'ok'} {number} - {path}")
            for line in outcome.stderr.splitlines()[:20] if outcome.returncode else []:
                print("# " + line)
            failed += outcome.returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["cc"]))

#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every kernel compiles for 64-bit Arm as packages compile it, at -O3, where compilers have failed: `arm.py`.

Needs aarch64-linux-gnu-gcc (Debian: gcc-aarch64-linux-gnu); without it the test is skipped.
"""
import concurrent.futures
import os
import shutil
import subprocess
import sys

import tree

COMPILER = "aarch64-linux-gnu-gcc"
FLAGS = ["-std=c11", "-O3", "-D_GNU_SOURCE", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
         "-idirafter", "/usr/include", '-DTT_BLAS_NAME="libopenblas.so.0"', '-DTT_BLAS_FOLDER=""', "-c", "-o",
         "/dev/null"]
KERNELS, TYPED, VECTOR = "core/kernels/", "core/kernels/typed/", "core/kernels/vector/"
NEON = ["-DTT_KERNEL_SET=neon", '-DTT_KERNEL_SET_NAME="neon"']

# OpenBLAS's headers are those of the processor that compiles; the others are for x86-64.
SKIPPED = {"core/kernels/blas.c", "core/kernels/vector/bgemm.c", "core/kernels/vector/amx.c",
           "core/kernels/vector/amx_attention.c"}


def compile_one(job):
    path, flags = job
    command = [COMPILER] + FLAGS + flags + ["-I", tree.ROOT, os.path.join(tree.ROOT, path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main():
    if not shutil.which(COMPILER):
        print(f"1..0 # SKIP there is no {COMPILER}")
        return 0
    sources = [path for path in tree.c_files() if path.endswith(".c") and path.startswith(KERNELS)
               and path not in SKIPPED]
    jobs = [(path, NEON if path.startswith(VECTOR) else []) for path in sources]
    jobs += [(path, flags + ["-DTT_ELEMENT_BF16"]) for path, flags in jobs if path.startswith((TYPED, VECTOR))]
    failed = 0
    print(f"1..{len(jobs)}")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for number, (job, outcome) in enumerate(zip(jobs, pool.map(compile_one, jobs)), 1):
            print(f"{'not ok' if outcome.returncode else 'ok'} {number} - {' '.join([job[0]] + job[1])}")
            for line in outcome.stderr.splitlines()[:20] if outcome.returncode else []:
                print("# " + line)
            failed += outcome.returncode != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

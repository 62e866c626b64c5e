#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The loops of products by AMX are compiled to the instructions that are meant: `amx.py COMPILER...`.

Few processors can run vector/amx*.c, so their instructions are read. A case is a compiler, a level of
optimization and a source.
Needs objdump (binutils), and compilers that know AMX; those that do not are skipped.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

import tree

FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-mavx2", "-mfma",
         "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16", "-mamx-tile", "-mamx-bf16",
         "-DTT_KERNEL_SET=amx"]
# How often a source configures the tiles, and releases them: products, attention forward and backward.
SOURCES = {"core/kernels/vector/amx.c": 1, "core/kernels/vector/amx_attention.c": 2}

# Tiles 4 and 5 are rows of A, 6 and 7 columns of B; AT&T order: b, a, sum.
DOTS = {"6 4 0", "7 4 1", "6 5 2", "7 5 3"}
LOADS = {"4", "5", "6", "7"}

# Everything else that a step may do: compute addresses, count, call the function that fetches the next operands,
# and jump back. gcc may keep an address in a vector register over the call (vmovq).
OTHERS = re.compile(r"(lea|add|sub|inc|dec|cmp|test|mov|vmovq|call|vzeroupper|j[a-z]+)[a-z]*$")


def instructions(listing):
    """For each function, a list of (address, mnemonic, operands)."""
    functions = []
    for line in listing.splitlines():
        if re.match(r"[0-9a-f]+ <.*>:$", line):
            functions.append([])
        match = re.match(r" +([0-9a-f]+):\t(\S+) *(.*)", line)
        if match:
            functions[-1].append((int(match.group(1), 16), match.group(2), match.group(3)))
    return functions


def loops(function):
    """The innermost loops: what lies between a jump backwards and its target, without other jumps."""
    for end, (address, mnemonic, operands) in enumerate(function):
        target = re.match(r"([0-9a-f]+)", operands) if mnemonic.startswith("j") else None
        if not target or int(target.group(1), 16) > address:
            continue
        body = [one for one in function[:end] if one[0] >= int(target.group(1), 16)]
        if not any(one[1].startswith("j") for one in body):
            yield body


def problems(listing, times):
    functions = instructions(listing)
    everything = [one for function in functions for one in function]
    for name in ("ldtilecfg", "tilerelease"):
        found = sum(one[1] == name for one in everything)
        if found != times:
            yield f"{name} occurs {found} times, not {times}"
    squares = 0
    for body in (body for function in functions for body in loops(function)):
        dots = [" ".join(re.findall(r"%tmm(\d)", operands)) for _, name, operands in body if name == "tdpbf16ps"]
        loads = [re.search(r"%tmm(\d)", operands).group(1) for _, name, operands in body if name == "tileloadd"]
        if not dots:
            continue
        if len(dots) != len(set(dots)) or not set(dots) <= DOTS:
            yield f"a loop multiplies {dots}"
        if len(dots) == 4:
            squares += 1
            if sorted(loads) != sorted(LOADS):
                yield f"the loop over k of two by two tiles loads {loads}"
        others = [name for _, name, operands in body if name not in ("tdpbf16ps", "tileloadd")]
        if len(others) > 16 or not all(OTHERS.match(name) for name in others):
            yield f"a loop over k contains {others}"
        used = {number for dot in dots for number in dot.split()[:2]}
        first = {}
        for place, (_, name, operands) in enumerate(body):
            for number in re.findall(r"%tmm(\d)", operands):
                first.setdefault(number, name)
        if any(first[number] != "tileloadd" for number in used):
            yield "a loop multiplies a tile before it loads it"
    if not squares:  # the compiler may copy the function
        yield "no loop has four products"


def examine(compiler, level, source):
    with tempfile.TemporaryDirectory() as folder:
        made = os.path.join(folder, "amx.o")
        built = subprocess.run(compiler + FLAGS + [level, "-I", tree.ROOT, "-c", "-o", made,
                                                   os.path.join(tree.ROOT, source)],
                               capture_output=True, text=True, check=False)
        if built.returncode:
            return built.stderr.splitlines()[:20]
        listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", made], capture_output=True, text=True,
                                 check=True).stdout
    return list(problems(listing, SOURCES[source]))


def knows_amx(compiler):
    return subprocess.run(compiler + ["-mamx-tile", "-mamx-bf16", "-fsyntax-only", "-x", "c", "-"], input="",
                          capture_output=True, text=True, check=False).returncode == 0


def main(given):
    compilers = [given] + [[name] for name in ("gcc", "clang") if [name] != given[-1:] and shutil.which(name)]
    compilers = [compiler for compiler in compilers if knows_amx(compiler)]
    if not shutil.which("objdump") or not compilers:
        print("1..0 # SKIP there is no objdump, or no compiler for AMX")
        return 0
    jobs = [(compiler, level, source) for compiler in compilers for level in ("-O2", "-O3") for source in SOURCES]
    failed = 0
    print(f"1..{len(jobs)}")
    for number, (compiler, level, source) in enumerate(jobs, 1):
        found = examine(compiler, level, source)
        print(f"{'not ok' if found else 'ok'} {number} - {os.path.basename(source)}, {' '.join(compiler)} {level}")
        for line in found:
            print("# " + line)
        failed += bool(found)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["cc"]))

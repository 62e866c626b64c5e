#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sizes and circles of the source tree: `count.py [PREFIX...]`, run from anywhere.

One row for each layer, or for each PREFIX: lines and files of C (.c, .h, .def), functions that headers export,
static functions that are called once. Then the circles: rooms (folders of a layer) that include each other, and
files that do (a.c and a.h count as one). A circle is printed as the set of its members.
"""
import collections
import re
import sys

import lint
import tree

SUFFIXES = (".c", ".h", ".def")
DECLARATION = re.compile(r"^(?!typedef|static|#)[A-Za-z_][\w \*]*?[ \*](tt_\w+)\([^;{}]*\)[^;{}]*;", re.MULTILINE)
STATIC = re.compile(r"^static (?!inline|const struct|struct \w+ \w+ =)[^;={}\n]*?\b(\w+)\([^;{}]*\)\n\{", re.MULTILINE)


def sources():
    return [path for path in tree.files() if path.endswith(SUFFIXES) and lint.layer_of(path) is not None]


def exports(paths):
    return {name for path in paths if path.endswith(".h") for name in DECLARATION.findall(lint.code_of(path))}


def called_once(paths):
    count = 0
    for path in paths:
        if path.endswith(".c"):
            words = collections.Counter(re.findall(r"\w+", lint.code_of(path)))
            count += sum(words[name] == 2 for name in STATIC.findall(lint.code_of(path)))
    return count


def main(prefixes):
    print(f"{'':24}{'lines':>9}{'files':>7}{'exports':>9}{'called once':>13}")
    rows = [(prefix, [path for path in sources() if path.startswith(prefix)]) for prefix in prefixes or lint.LAYERS]
    if not prefixes:
        rows.append(("all", sources()))
        rows.append(("tests", [path for path in tree.files() if path.startswith("tests/") and
                               path.endswith(SUFFIXES + (".sh", ".py"))]))
    for name, paths in rows:
        lines = sum(tree.text(path).count("\n") for path in paths)
        print(f"{name:24}{lines:9,}{len(paths):7,}{len(exports(paths)):9,}{called_once(paths):13,}")
    for what, name_of in (("rooms", lint.room_of), ("files", lint.unit_of)):
        found = lint.circles(sources(), name_of)
        print(f"\nCircles of {what}: {len(found)}, with {sum(map(len, found))} members")
        for members in found:
            print("  " + " ".join(members))


if __name__ == "__main__":
    main(sys.argv[1:])

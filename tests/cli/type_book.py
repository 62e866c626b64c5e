#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Types the commands of the book (docs/*.md), as written, and compares what they print with what the book shows.

    type_book.py [CHAPTER...]      CHAPTER: tutorial, concepts, ...; default: all, in the order of the contents

The chapters are typed in one fresh folder that holds what a clone holds, each in a shell of its own that begins
there. So a later chapter may use what an earlier one made. The first line of a block says what it is:

    ```sh             typed; every command ends with exit code 0
    ```sh exits 2     typed; the last command that fails ends with this code
    ```text           what the block before it printed, compared by `differs`
    ```text differs   the same, but it is another text on every machine; not compared
    ```python         run by $TITAN_PYTHON (python3), if that has the modules that the block imports
    ```console        not typed; a comment in its first line says what it needs, which tests/lint checks

Launchers pass standard output and standard error on separately, so a block shows only a gap (a line `...`) between
lines of one and the other. The environment gives TITAN, TITAN_SOURCE and TITAN_BUILD. Prints TAP, a case per block.
"""
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(os.environ["TITAN_SOURCE"])
TITAN = pathlib.Path(os.environ["TITAN"])
END = "end of the block"

# What depends on the machine and the moment: speeds, times, and resident memory.
UNSTABLE = [
    r"\b(memory|tps|tflops|mfu):\s+[\d.,]+(GiB\([\d.]+%\)|%)?",
    r"\beta:\s+\d+ \w+( \d+ s\b)?",
    r"\b\d[\d,.]* ?(ns|us|ms|s|min|h|GB/s|MB/s|GF/s)\b",
    r"\b\d[\d,.]* (tokens/s|tokens a second|ago)\b",
]

# Numbers with a point may differ by this part, since processors round differently.
TOLERANCE = 0.02


def chapters():
    """The chapters in the order of the table of contents."""
    return re.findall(r"\]\(([a-z-]+)\.md\)", (SOURCE / "docs/README.md").read_text())


def blocks_of(chapter):
    """Yields (line, mark, text) for every fenced block of a chapter."""
    mark, lines, begin = None, [], 0
    for number, line in enumerate((SOURCE / "docs" / (chapter + ".md")).read_text().splitlines(), 1):
        if not line.startswith("```"):
            lines.append(line)
        elif mark is None:
            mark, lines, begin = line[3:].strip(), [], number
        else:
            yield begin, mark, "\n".join(lines) + "\n"
            mark = None


class Shell:
    """A shell that a reader types into."""

    def __init__(self, root):
        environment = dict(os.environ, LC_ALL="C.UTF-8", COLUMNS="80", XDG_CACHE_HOME=str(root.parent / "cache"))
        self.block = root.parent / "block.sh"
        self.process = subprocess.Popen(["bash", "--norc"], cwd=root, env=environment, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        self.process.stdin.write("set -o pipefail; trap 'status=$?' ERR\n")

    def type(self, text):
        """The exit code of the last command that failed, or 0, and all output."""
        self.block.write_text(text)
        self.process.stdin.write(f"status=0; . {self.block} </dev/null; printf '\\n{END} %d\\n' $status\n")
        self.process.stdin.flush()
        lines = []
        for line in self.process.stdout:
            if line.startswith(END):
                return int(line.split()[-1]), "".join(lines)[:-1]
            lines.append(line)
        return self.process.wait(), "".join(lines)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def stable(text):
    """The lines of a text without the parts that change from run to run."""
    for pattern in UNSTABLE:
        text = re.sub(pattern, "~", text)
    return [" ".join(line.split()) for line in text.strip("\n").split("\n")]


def same_line(shown, printed):
    """Whether a line matches the book: `...` matches anything, and numbers with a point are nearly equal."""
    parts = re.split(r"(\.\.\.|\d+\.\d+(?:e[-+]\d+)?)", shown)
    pattern = "".join(".*" if part == "..." else r"(\d+\.\d+(?:e[-+]\d+)?)" if k % 2 else re.escape(part)
                      for k, part in enumerate(parts))
    match = re.fullmatch(pattern, printed)
    numbers = [part for part in parts[1::2] if part != "..."]
    return match is not None and all(math.isclose(float(a), float(b), rel_tol=TOLERANCE)
                                     for a, b in zip(numbers, match.groups()))


def differs(shown, printed):
    """None, or the first line of the book that the commands did not print. A line `...` matches any lines."""
    lines, gap = stable(printed), False
    at = 0
    for line in stable(shown):
        if line == "...":
            gap = True
            continue
        while gap and at < len(lines) and not same_line(line, lines[at]):
            at += 1
        if at == len(lines) or not same_line(line, lines[at]):
            return f"the book shows\n  {line}\nwhere this was printed:\n{printed[-4000:]}"
        at, gap = at + 1, False
    if at < len(lines) and not gap:
        return f"the book does not show\n  {lines[at]}\nwhich was printed, among others:\n{printed[-4000:]}"
    return None


def without_module(text):
    """A module that a Python block imports and $TITAN_PYTHON lacks, or None."""
    for name in re.findall(r"^(?:import|from) (\w+)", text, re.M):
        done = subprocess.run([os.environ.get("TITAN_PYTHON", "python3"), "-c", f"import {name}"],
                              capture_output=True)
        if done.returncode != 0:
            return name
    return None


def type_chapter(root, chapter):
    """Yields (line, title, problem, skip) for every typed block, until one has a problem."""
    shell, printed = Shell(root), ""
    for line, mark, text in blocks_of(chapter):
        problem = skip = None
        title = text.strip().split("\n")[0]
        if mark == "text" and printed is not None:
            problem, title = differs(text, printed), "prints " + title
        elif mark.startswith("sh"):
            wanted = int(mark.split()[-1]) if " exits " in mark else 0
            code, printed = shell.type(text)
            if code != wanted:
                problem = f"exit code {code}, expected {wanted}:\n{printed[-4000:]}"
        elif mark == "python":
            module = without_module(text)
            if module:
                skip, printed = f"no {module}", None
            else:
                (root.parent / "block.py").write_text(text)
                code, printed = shell.type(f"{os.environ.get('TITAN_PYTHON', 'python3')} {root.parent / 'block.py'}\n")
                problem = f"exit code {code}:\n{printed[-4000:]}" if code else None
        else:
            continue
        yield line, title, problem, skip
        if problem and mark != "text":
            break  # what follows may need it
    shell.close()


def make_clone(root):
    """The files that the commands of the book find in a clone after quickstart."""
    (root / "build").mkdir(parents=True)
    (root / "build/titan").symlink_to(TITAN)
    for name in ("README.md", "assets", "configs", "docs", "man", "packaging", "tests", "tools"):
        (root / name).symlink_to(SOURCE / name)


def picture_problem(folder):
    """None, or the pictures of the book that differ from what docs/pictures.sh draws."""
    folder.mkdir()
    done = subprocess.run([SOURCE / "docs/pictures.sh", folder], env=dict(os.environ, TITAN=str(TITAN)),
                          capture_output=True, text=True)
    if done.returncode != 0:
        return done.stderr
    old = [path.name for path in sorted(folder.glob("*.svg"))
           if path.read_bytes() != (SOURCE / "docs/pictures" / path.name).read_bytes()]
    return f"draw them again with docs/pictures.sh, and look at them: {' '.join(old)}" if old else None


def page_problem():
    """None, or a link that leads nowhere in the pages that the build made from the book, if lowdown made any."""
    pages = list(pathlib.Path(os.environ["TITAN_BUILD"], "docs").glob("*.html"))
    for page in pages:
        for target in re.findall(r'(?:href|src)="([^"#:]+)"', page.read_text()):
            if not any((folder / target).exists() for folder in (page.parent, SOURCE / "docs")):
                return f"{page.name}: there is no {target}"
    return None


def cases(root, names):
    """Yields (title, problem, skip, seconds since the chapter began) for everything that is tested."""
    yield "the pictures are those that docs/pictures.sh draws", picture_problem(root.parent / "pictures"), None, 0
    yield "the pages lead somewhere", page_problem(), None, 0
    for chapter in names:
        began = time.monotonic()
        for line, title, problem, skip in type_chapter(root, chapter):
            yield f"{chapter}:{line}: {title}", problem, skip, time.monotonic() - began


def main():
    number = failed = 0
    with tempfile.TemporaryDirectory(prefix="titan-book.") as folder:
        root = pathlib.Path(folder) / "titan"
        make_clone(root)
        for title, problem, skip, seconds in cases(root, sys.argv[1:] or chapters()):
            number += 1
            failed += problem is not None
            note = f" # SKIP {skip}" if skip else ""
            print(f"{'not ' if problem else ''}ok {number} - {title}".replace("#", "\\#") + note)
            print(f"# {seconds:.1f} s", flush=True)
            for text in (problem or "").splitlines():
                print("# " + text)
    print(f"1..{number}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

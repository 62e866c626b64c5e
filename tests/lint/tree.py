# SPDX-License-Identifier: MIT
"""The files that lint looks at: what git knows or would add; without git, everything but build and output folders."""
import functools
import os
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Texts and weights that titan reads; they are data, not sources.
DATA = ("assets/", "tests/golden/data/", "tests/fuzz/corpus/", "tests/interop/faults/",
        "tests/interop/torch_dcp/", "tests/interop/torch_forms/")
DATA_SUFFIXES = (".bin", ".safetensors", ".gguf", ".json", ".jsonl", ".gz", ".zst", ".svg", ".txt")
SKIPPED_FOLDERS = ("build", ".git", "outputs", ".cache", "__pycache__")

# Files that the build makes; sources include them by these names.
GENERATED = ("builtin_data.h", "version.h", "config.h.inc")


@functools.lru_cache(maxsize=None)
def files():
    """Paths from the root, sorted."""
    try:
        git = subprocess.run(["git", "-c", "safe.directory=*", "-C", ROOT, "ls-files", "-co", "--exclude-standard"],
                             capture_output=True, text=True, check=True)
        found = git.stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        found = []
        for folder, folders, names in os.walk(ROOT):
            folders[:] = [name for name in folders if not name.startswith(SKIPPED_FOLDERS)]
            found += [os.path.relpath(os.path.join(folder, name), ROOT) for name in names]
    return sorted(path for path in set(found) if os.path.isfile(os.path.join(ROOT, path)))


def exists(path):
    return os.path.isfile(os.path.join(ROOT, path))


def is_data(path):
    return path.startswith(DATA) or path.endswith(DATA_SUFFIXES)


def is_generated(path):
    return os.path.basename(path) in GENERATED


def c_files():
    return [path for path in files() if path.endswith((".c", ".h"))]


def text_files():
    """Every file that people write."""
    return [path for path in files() if not is_data(path)]


@functools.lru_cache(maxsize=None)
def text(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as source:
        return source.read()


def lines(path):
    """Yields (number, line), from 1."""
    return enumerate(text(path).splitlines(), 1)

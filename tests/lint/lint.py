#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Rules of the source tree, one TAP case each: `lint.py [NAME...]`, run from anywhere.

CHECKS at the end maps a name to a function that yields a line per fault. A fault names file:line, so an editor can jump
to it. A new rule is one function and one entry there. The slow tools (compiler, clang-format, clang-tidy) have scripts
of their own beside this one.
"""
import collections
import functools
import os
import re
import sys

import tree

LAYERS = ["core", "parallel", "checkpoint", "estimate", "trainer", "cli"]

# Two wings on one floor: neither includes the other, though one is left of the other in the list.
WINGS = ("estimate", "trainer")

# The rooms of each layer, in order. A room is a folder of the layer; a file in the layer's own folder belongs to the
# room with the name of the layer. A file includes only files of its own room, of rooms to the left, and of layers to
# the left. A layer without an entry here must only be free of circles.
ORDER = {
    "checkpoint": ["durable", "format", "dcp", "steps", "read", "save", "load", "export", "tools"],
}
# Layers whose rooms and files may still include each other in circles.
KNOTTED = {"core"}

# Circles of files that are one topic: sorted lists of paths without their suffixes.
ONE_TOPIC = []

# External headers, each with the only files that may include it (None: any file, but only one).
OWNERS = {
    "mpi.h": "parallel/comm/mpi.c",
    "cblas.h": "core/kernels/blas.c",
    "yaml.h": "core/config/yaml.c",
    "jansson.h": "core/base/json.h",
    "utf8proc.h": ("core/base/utf8.c", "core/base/text.c"),
    "pcre2.h": "core/tokenizer/regex.c",
    "xxhash.h": "core/base/hash.c",
    "hwloc.h": "core/os/machine.c",
    "zlib.h": ("core/base/hash.c", "core/data/reader.c"),
    "zstd.h": None,
}

# The few places of the libraries that may print and stop: no memory, a mistake in a table or model builder, a
# job that must end.
MAY_STOP = {
    "core/base/mem.c",
    "core/config/load.c",
    "core/comm/comm.c",
    "core/ops/rule.c",
    "core/kernels/blas.c",
    "core/models/build.c",
    "parallel/comm/mpi.c",
}

# Memory comes from core/base/mem.c, so that a test can count it.
MEMORY_OWNER = "core/base/mem.c"

MAX_LINES = 1000
MAX_COLUMNS = 120

# Text that people write, as opposed to tables of measurements and data.
PROSE_AND_CODE = (".c", ".h", ".def", ".S", ".py", ".sh", ".scd", ".md", ".build")

# Words that mean "not finished", spelled in two halves so that this file does not contain them.
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK|st" r"ub(bed)?s?|not (yet )?impl" r"emented)\b")

# A path below somebody's home or a build machine's folders means nothing on another machine.
MACHINE_PATH = re.compile(r"(?<![\w.$}/-])/(?:wo" r"rk|ro" r"ot|ho" r"me|Us" r"ers|builds?|workspace)/[\w.]")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]')


def layer_of(path):
    top = path.split("/", 1)[0]
    return LAYERS.index(top) if top in LAYERS else None


def library_files():
    """Sources of the layers."""
    return [path for path in tree.c_files() if layer_of(path) is not None]


def without_comments_and_strings(text):
    """The same text with comments and the contents of strings blanked; line numbers do not change."""
    def blank(match):
        return re.sub(r"[^\n]", " ", match.group(0))

    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.DOTALL)


def includes_point_left():
    for path in library_files():
        for number, line in tree.lines(path):
            match = INCLUDE.match(line)
            if not match or match.group(1) == "<":
                continue
            target = match.group(2)
            layer = layer_of(target)
            if layer is not None and layer > layer_of(path):
                yield f"{path}:{number}: {target} is right of {LAYERS[layer_of(path)]}"
            if layer is not None and path.startswith(WINGS) and target.startswith(WINGS) and layer != layer_of(path):
                yield f"{path}:{number}: {' and '.join(WINGS)} do not include each other"
            if target.startswith("tests/"):
                yield f"{path}:{number}: library code includes a test header"


def room_of(path):
    """A folder of a layer; a file of the layer's own folder is in the room with the layer's name."""
    parts = path.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def unit_of(path):
    """A source and its header count as one."""
    return path.rsplit(".", 1)[0]


def inclusions(paths):
    """Yields path, line number, and the file of a layer that the line includes."""
    for path in paths:
        for number, line in tree.lines(path):
            match = INCLUDE.match(line)
            if match and match.group(1) == '"' and layer_of(match.group(2)) is not None:
                yield path, number, match.group(2)


def circles(paths, name_of):
    """Sets of more than one name that reach each other by includes (Tarjan's strongly connected components)."""
    edges = collections.defaultdict(set)
    for path, _, target in inclusions(paths):
        if name_of(target) != name_of(path):
            edges[name_of(path)].add(name_of(target))
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(edges[node]):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            members = stack[stack.index(node):]
            del stack[stack.index(node):]
            if len(members) > 1:
                found.append(sorted(members))

    sys.setrecursionlimit(10000)
    for node in sorted(edges):
        if node not in index:
            visit(node)
    return sorted(found)


def rooms_are_in_order():
    for layer, rooms in ORDER.items():
        known = {layer if room == layer else f"{layer}/{room}": place for place, room in enumerate(rooms)}
        paths = [path for path in library_files() if path.startswith(layer + "/")]
        for room in sorted({room_of(path) for path in paths} - set(known)):
            yield f"{room}: not in ORDER"
        for path, number, target in inclusions(paths):
            if known.get(room_of(target), -1) > known.get(room_of(path), len(rooms)):
                yield f"{path}:{number}: {target} is right of {room_of(path)}"


def includes_have_no_circles():
    for name_of in (room_of, unit_of):
        for members in circles([path for path in library_files() if path.split("/")[0] not in KNOTTED], name_of):
            if members not in ONE_TOPIC:
                yield f"{members[0]}: a circle of includes: {' '.join(members)}"


def includes_resolve():
    """A quoted include is written from the root, so that one spelling names one file; tests name their
    helpers shortly."""
    helpers = {os.path.basename(path) for path in tree.c_files() if path.startswith("tests/") and path.endswith(".h")}
    for path in tree.c_files():
        for number, line in tree.lines(path):
            match = INCLUDE.match(line)
            if not match or match.group(1) == "<":
                continue
            if tree.exists(match.group(2)) or tree.is_generated(match.group(2)):
                continue
            if not (path.startswith("tests/") and match.group(2) in helpers):
                yield f"{path}:{number}: \"{match.group(2)}\" is not a path from the root"


def external_headers_have_one_owner():
    users = {}
    for path in tree.c_files():
        if path.startswith("tests/"):
            continue
        for number, line in tree.lines(path):
            match = INCLUDE.match(line)
            if match and match.group(1) == "<" and match.group(2) in OWNERS:
                users.setdefault(match.group(2), []).append((path, number))
    for header, places in sorted(users.items()):
        owners = OWNERS[header] or places[0][0]
        owners = (owners,) if isinstance(owners, str) else owners
        for path, number in places:
            if path not in owners:
                yield f"{path}:{number}: <{header}> belongs to {' and '.join(owners)}"


def core_knows_no_mpi():
    call = re.compile(r"\bMPI_[A-Z]\w*")
    for path in library_files():
        if path == OWNERS["mpi.h"]:
            continue
        text = without_comments_and_strings(tree.text(path))
        for number, line in enumerate(text.splitlines(), 1):
            if call.search(line):
                yield f"{path}:{number}: {call.search(line).group(0)}: only {OWNERS['mpi.h']} speaks MPI"


def spdx_comes_first():
    for path in tree.c_files():
        first = tree.text(path).split("\n", 1)[0]
        if not re.fullmatch(r"/\* SPDX-License-Identifier: MIT( \*/)?", first):
            yield f"{path}:1: the first line must be /* SPDX-License-Identifier: MIT"


def sources_say_what_they_are_for():
    """The licence line is followed by what the file is for, in the same comment or the next."""
    for path in library_files():
        if path.endswith(".c") and not re.match(r"/\* SPDX[^\n]*?MIT( \*/\s*/\*|\n \*\n \* \S)", tree.text(path)):
            yield f"{path}:2: no comment that says what the file is for"


def files_are_short():
    for path in tree.files():
        if not path.endswith((".c", ".h", ".def", ".py", ".sh", ".scd", ".md")) or tree.is_data(path):
            continue
        count = tree.text(path).count("\n")
        if count > MAX_LINES:
            yield f"{path}:{MAX_LINES}: {count} lines, more than {MAX_LINES}"


def lines_are_short():
    """No line of code, comments and prose has more than 120 columns. Rows and code blocks of Markdown, addresses, and
    the texts that a script expects from a command are excepted, since they cannot be broken."""
    for path in tree.files():
        if not path.endswith(PROSE_AND_CODE) or tree.is_data(path):
            continue
        in_block = False
        for number, line in tree.lines(path):
            if path.endswith((".md", ".scd")):
                in_block = in_block != line.strip().startswith("```")
                if in_block or line.startswith("|"):
                    continue
            columns = len(line.expandtabs(8))
            if path.endswith(".sh") and re.search(r"\"[^\"]{60,}|'[^']{60,}", line):
                continue
            if columns > MAX_COLUMNS and "://" not in line:
                yield f"{path}:{number}: {columns} columns, more than {MAX_COLUMNS}"


def nothing_is_unfinished():
    for path in tree.text_files():
        for number, line in tree.lines(path):
            match = UNFINISHED.search(line)
            if match:
                yield f"{path}:{number}: '{match.group(0)}'"


def no_machine_is_named():
    for path in tree.text_files():
        for number, line in tree.lines(path):
            match = MACHINE_PATH.search(line)
            if match:
                yield f"{path}:{number}: a path of one machine: {line.strip()[:60]}"


def text_is_tidy():
    for path in tree.text_files():
        text = tree.text(path)
        if text and not text.endswith("\n"):
            yield f"{path}: no newline at the end"
        for number, line in tree.lines(path):
            if line != line.rstrip():
                yield f"{path}:{number}: blanks at the end of the line"
            if "\t" in line and path.endswith((".c", ".h", ".def", ".py", ".build", ".yaml")):
                yield f"{path}:{number}: a tab"


def memory_has_one_owner():
    call = re.compile(r"(?<![\w.>])(malloc|calloc|realloc|strdup|strndup|asprintf|posix_memalign|aligned_alloc)\s*\(")
    for path in library_files():
        if path == MEMORY_OWNER:
            continue
        text = without_comments_and_strings(tree.text(path))
        for number, line in enumerate(text.splitlines(), 1):
            match = call.search(line)
            if match:
                yield f"{path}:{number}: {match.group(1)}: use {MEMORY_OWNER[:-2]}.h"


def libraries_neither_assert_print_nor_exit():
    call = re.compile(r"(?<![\w.>])(assert|abort|exit|_exit|printf|puts|putchar|perror|vprintf)\s*\("
                      r"|\b(stderr|stdout)\b")
    for path in library_files():
        if path.startswith("cli/") or path in MAY_STOP:
            continue
        text = without_comments_and_strings(tree.text(path))
        for number, line in enumerate(text.splitlines(), 1):
            match = call.search(line)
            if match:
                yield f"{path}:{number}: {match.group(0).strip('( ')} in library code: return an error instead"


# The standard output of these files is not foreign text, or it is what the user asked for: colours and moving lines, a
# model's text, the bytes of a file.
PRINTERS = {
    "cli/run/screen.c", "cli/cli.c", "cli/main.c", "cli/train/screen.c", "cli/commands/status.c",
    "cli/commands/generate.c", "cli/generate/conversation.c", "cli/commands/export.c",
    "cli/run/supervise.c", "cli/commands/plot.c",
}


def screens_print_what_is_shown():
    """Text of files may not steer the terminal: tt_print, tt_screen_put and messages escape it (core/base/utf8.h)."""
    call = re.compile(r"(?<![\w.>])(v?printf|puts|putchar|perror)\s*\(|\b(stdout|stderr)\b")
    screen = re.compile(r"tt_screen_put\(std|tt_screen_columns\(file == stderr |fflush\(std|"
                        r"ferror\(std|tt_describe_run\(|fprintf\(stderr, *$")
    for path in library_files():
        if not path.startswith("cli/") or path in PRINTERS:
            continue
        text = without_comments_and_strings(tree.text(path))
        for number, line in enumerate(text.splitlines(), 1):
            match = call.search(line)
            if match and not screen.search(line):
                yield f"{path}:{number}: {match.group(0).strip('( ')}: print with tt_print or tt_screen_say"


def unsafe_calls_are_not_used():
    call = re.compile(r"(?<![\w.>])(gets|strcpy|strcat|sprintf|vsprintf|strtok|atoi|atof|atol|"
                      r"gmtime|localtime|mktemp|system)\s*\(")
    for path in tree.c_files():
        text = without_comments_and_strings(tree.text(path))
        for number, line in enumerate(text.splitlines(), 1):
            match = call.search(line)
            if match and not (path.startswith("tests/") and match.group(1) == "system"):
                yield f"{path}:{number}: {match.group(1)}"


def header_guards_follow_the_path():
    for path in tree.c_files():
        if not path.endswith(".h"):
            continue
        match = re.search(r"^#ifndef (\w+)\n#define (\w+)$", tree.text(path), flags=re.MULTILINE)
        if not match or match.group(1) != match.group(2):
            yield f"{path}:2: no include guard"
            continue
        parts = path[:-2].replace("-", "_").upper().split("/")
        allowed = {"TT_" + "_".join(parts[start:]) + "_H" for start in range(len(parts))}
        allowed.add(f"TT_{parts[0]}_{parts[-1]}_H")
        if match.group(1) not in allowed:
            yield f"{path}:2: the guard is {match.group(1)}, expected one of {', '.join(sorted(allowed))}"


def op_table_is_sorted_by_file():
    path = "core/graph/ops.def"
    last = ""
    homes = {}
    for source in tree.c_files():
        if source.startswith("core/ops/"):
            for name in re.findall(r"^const struct \w+ (?:TT_OF_TYPE\()?tt_op_(\w+)\)? = ", tree.text(source),
                                   flags=re.MULTILINE):
                homes.setdefault(name, []).append(source)
    for number, line in tree.lines(path):
        match = re.match(r"TT_OP\((\w+), (\w+)\)", line)
        if not match:
            continue
        ident, row = match.groups()
        if ident != row.upper():
            yield f"{path}:{number}: {ident} and {row} differ"
        home = homes.get(row, [])
        if len(home) != 1:
            yield f"{path}:{number}: tt_op_{row} is defined in {len(home)} files: {' '.join(home)}"
            continue
        if home[0] < last:
            yield f"{path}:{number}: {row} ({home[0]}) comes after {last}"
        last = home[0]


# Kernels that float64 never needs: of bfloat16, of adapters, of packed weights, of a norm.
NOT_WIDE = {"bf16_round", "bf16_widen", "bgemm", "dora_bwd", "dora_fwd", "dropout", "gemv_packed", "row_squares"}


def float64_has_every_kernel():
    path = "core/kernels/wide.c"
    kernels = re.findall(r"^TT_KERNEL\((\w+),", tree.text("core/kernels/kernels.def"), flags=re.MULTILINE)
    slots = set(re.findall(r"SLOT\((\w+)\),", tree.text(path)))
    for name in kernels:
        if not name.endswith("_bf16") and (name in slots) == (name in NOT_WIDE):
            yield f"{path}: {name} " + ("is in NOT_WIDE of lint.py too" if name in slots else "has no slot")


def instructions_are_told_apart_by_their_rows():
    """Every line of instr.def and purpose.def has one row, in core/program/instr/*.c, and only rows know kinds."""
    homes, idents = {}, []
    for source in tree.c_files():
        if source.startswith("core/program/instr/"):
            for name in re.findall(r"^const struct \w+ (tt_\w+) = ", tree.text(source), flags=re.MULTILINE):
                homes.setdefault(name, []).append(source)
    for table, prefix in (("instr", "tt_instr_"), ("purpose", "tt_purpose_")):
        path = f"core/program/{table}.def"
        for number, line in tree.lines(path):
            match = re.match(r"TT_(?:INSTR|PURPOSE)\((\w+), (\w+)\)", line)
            if not match:
                continue
            idents.append(match.group(1))
            if match.group(1) != match.group(2).upper():
                yield f"{path}:{number}: {match.group(1)} and {match.group(2)} differ"
            if len(homes.get(prefix + match.group(2), [])) != 1:
                yield f"{path}:{number}: {prefix}{match.group(2)} is not in one of core/program/instr/*.c"
    test = re.compile(r"(?:[=!]=|\bcase) *(TT_(?:" + "|".join(idents) + r"))\b")
    for path in library_files():
        if path.startswith("core/program/instr/"):
            continue
        for number, line in enumerate(without_comments_and_strings(tree.text(path)).splitlines(), 1):
            if test.search(line):
                yield f"{path}:{number}: asks for {test.search(line).group(1)}: a field of its row should say this"


def only_devices_run_ops():
    """The run of an op's row is the host's function for it, and a kernel is part of one. Instructions, and everything
    above them, go through a stream (core/device/device.h)."""
    run = re.compile(r"tt_(?:op|step)_row\(.*\) *-> *run\b")
    kernel = re.compile(r"\btt_kernels\(")
    for path in library_files():
        for number, line in enumerate(without_comments_and_strings(tree.text(path)).splitlines(), 1):
            if run.search(line) and not path.startswith("core/device/"):
                yield f"{path}:{number}: runs an op: use tt_device_launch or tt_device_launch_step"
            if kernel.search(line) and path.startswith("core/program/"):
                yield f"{path}:{number}: calls a kernel: make it a step op (core/ops/step/step.def)"


# The beginning of a row of schema.def.
KEY_ROW = r"TT_(?:BOOL|MAYBE|INT|AUTO|REAL|TEXT|ENUM|WORD|WORDS|DATA|MAP|ALIAS)"


def config_keys_are_unique():
    path = "core/keys/schema.def"
    if not tree.exists(path):
        return
    seen = {}
    for number, line in tree.lines(path):
        match = re.match(KEY_ROW + r"\s*\(\s*([\w.]+),\s*(\w+)", line)
        if match:
            key = ".".join(match.groups())
            if key in seen:
                yield f"{path}:{number}: {key} is also in line {seen[key]}"
            seen[key] = number


# Files that use torchtitan's words, some of which are titan's keys too.
FOREIGN_KEYS = re.compile(r"^(core/config|estimate/formats)/")

# Layers above the configuration that write texts about it.
ABOVE_CONFIG = ("cli/", "estimate/", "trainer/")


def keys_are_named_by_constants():
    """A key is TT_KEY(section.key), its name TT_KEY_NAME(section.key): the compiler knows whether there is one. Below
    core/config texts do not name keys either."""
    path = "core/keys/schema.def"
    if not tree.exists(path):
        return
    keys = []
    for _, line in tree.lines(path):
        match = re.match(KEY_ROW + r"\s*\(\s*([\w.]+),\s*(\w+)", line)
        if match:
            keys.append(re.escape(".".join(match.groups())))
    named = re.compile(rf"(?<![\w./])({'|'.join(keys)})(?![\w.])")
    for path in library_files():
        if FOREIGN_KEYS.search(path):
            continue
        text = re.sub(r"/\*.*?\*/|//[^\n]*|#include[^\n]*", lambda m: re.sub(r"[^\n]", " ", m.group(0)),
                      tree.text(path),
                      flags=re.DOTALL)
        has_texts = path.startswith(ABOVE_CONFIG)
        for literal in re.finditer(r'"(?:\\.|[^"\\\n])*"(?:\s*"(?:\\.|[^"\\\n])*")*', text):
            match = named.search(literal.group(0))
            if match and (not has_texts or literal.group(0).strip('"') == match.group(1)):
                number = text.count("\n", 0, literal.start()) + 1
                yield f"{path}:{number}: \"{match.group(1)}\": write TT_KEY({match.group(1)}) or TT_KEY_NAME(...)"


def every_test_is_registered():
    """A test program that no meson.build names would never run, and one that does not print TAP could not fail."""
    for path in tree.files():
        name = os.path.basename(path)
        if not path.startswith("tests/") or not re.match(r"test_\w+\.(c|sh|py)$", name):
            continue
        build = os.path.join(os.path.dirname(path), "meson.build")
        noun = re.match(r"test_(\w+)\.", name).group(1)
        if not tree.exists(build) or not re.search(rf"\b(test_)?{noun}\b", tree.text(build)):
            yield f"{path}: not named in {build}"
        if "cmocka_run_group_tests" in tree.text(path) and "CM_OUTPUT_TAP" not in tree.text(path):
            yield f"{path}: does not print TAP, so meson counts its cases as skipped"


@functools.lru_cache(maxsize=None)
def code_of(path):
    return without_comments_and_strings(tree.text(path))


@functools.lru_cache(maxsize=None)
def words_of(path):
    return set(re.findall(r"\w+", code_of(path)))


def readers():
    """Files that may use what a header declares: tables included, whose rows a source expands."""
    return tree.c_files() + [path for path in tree.files() if path.endswith(".def") and layer_of(path) is not None]


def exports_are_used():
    """A function that a header of the layers declares is used in a file other than the header and its own.
    Otherwise it should be static, or go."""
    declaration = re.compile(r"^(?!typedef|static|#)[A-Za-z_][\w \*]*?[ \*](tt_\w+)\([^;{}]*\)[^;{}]*;", re.MULTILINE)
    for path in library_files():
        if not path.endswith(".h"):
            continue
        for match in declaration.finditer(code_of(path)):
            users = [user for user in readers() if user != path and match.group(1) in words_of(user)]
            if len(users) < 2:
                number = code_of(path).count("\n", 0, match.start()) + 1
                yield f"{path}:{number}: {match.group(1)} is used in no file but {' '.join(users) or 'this one'}"


def members_of(body):
    """The names of the members that a struct's body declares, each with its offset in the body."""
    for match in re.finditer(r"[^;{}]+;", body):
        member = re.sub(r"\[[^\]]*\]", "", match.group(0))
        pointer = re.search(r"\(\*(\w+)\)", member)
        parts = [pointer.group(1)] if pointer else [re.sub(r":\s*\d+", "", part) for part in member.split(",")]
        for part in parts:
            found = re.findall(r"\w+", part)
            if found and not ("(" in member and not pointer):
                yield found[-1], match.end()


def members_are_read():
    """A member of a struct that is written and never read is useless. Names are not told apart by struct, so a member
    is not found if another one of that name is read. Padding of file formats is called reserved."""
    read = {"reserved"}
    for path in readers():
        read.update(name for name in re.findall(r"(?:\.|->)\s*(\w+)\b(?!\s*(?:\[\w*\]\s*)*=(?!=))", code_of(path)))
        for macro in re.findall(r"^#define.*(?:\\\n.*)*", code_of(path), flags=re.MULTILINE):
            read.update(re.findall(r"\w+", macro))
    for path in library_files():
        code = code_of(path)
        for match in re.finditer(r"struct(?: \w+)? \{((?:[^{}]|\{[^{}]*\})*)\}", code):
            for name, offset in members_of(match.group(1)):
                if name not in read:
                    number = code.count("\n", 0, match.start(1) + offset) + 1
                    yield f"{path}:{number}: nothing reads {name}"


def packages_agree():
    """What quickstart installs to build with, the Debian package and the containers install too."""
    rows = re.search(r"^packages=\((.*?)^\)", tree.text("quickstart"), flags=re.DOTALL | re.MULTILINE).group(1)
    names = re.findall(r'^ +"\S+ +(\S+-dev) ', rows, flags=re.MULTILINE)
    if len(names) < 5:
        yield "quickstart:1: its table of packages is not found"
    for path in ("debian/control", "packaging/Dockerfile", "packaging/titan.def"):
        for name in names:
            if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", tree.text(path)):
                yield f"{path}:1: {name} of quickstart is missing"


def tests_do_not_mention_state():
    """Test programs compile without the warning about unused parameters (cmocka_dep), so (void)state is noise."""
    for path in tree.c_files():
        if path.startswith("tests/"):
            for number, line in tree.lines(path):
                if re.match(r"\s*\(void\)state;", line):
                    yield f"{path}:{number}: (void)state"


def the_book_marks_every_block():
    """tests/cli/type_book.py documents the marks. A block that is not typed says why, so that readers see it."""
    known = re.compile(r"sh( exits \d+)?|text( differs)?|python|console")
    for path in tree.files():
        if not re.match(r"docs/[^/]*\.md$", path):
            continue
        in_block = False
        for number, line in tree.lines(path):
            if line.startswith("```"):
                in_block = not in_block
                if in_block and not known.fullmatch(line[3:]):
                    yield f"{path}:{number}: a block is marked '{line[3:]}', not sh, text, python or console"
                follows = tree.text(path).split("\n")[number]
                if in_block and line == "```console" and not follows.startswith("# needs "):
                    yield f"{path}:{number + 1}: a block that is not typed begins with '# needs' and says what"


def links_of_documents_lead_somewhere():
    for path in tree.files():
        if not path.endswith(".md"):
            continue
        for number, line in tree.lines(path):
            for target in re.findall(r"\]\(([^)#:]+)\)", line):
                if not os.path.exists(os.path.join(tree.ROOT, os.path.dirname(path), target)):
                    yield f"{path}:{number}: there is no {target}"


# A path of the tree in prose: in code spans of documents, in comments of sources.
TREE_PATH = re.compile(r"(?<![\w./*-])((?:core|parallel|checkpoint|estimate|trainer|cluster|cli|tests|docs|tools|"
                       r"packaging|configs|assets|debian|man)/[\w.*{},/-]*[\w*}])")


def prose_of(path):
    """(number, text) of code spans of a document, or of comments of a source; strings and code are left out."""
    text = tree.text(path)
    if path.endswith(".md"):
        spans = re.finditer(r"```.*?```|`([^`\n]+)`", text, flags=re.DOTALL)
    elif path.endswith(".scd"):
        spans = re.finditer(r"(?<!\w)_(\S+)_(?!\w)", text)
    elif path.endswith((".c", ".h", ".def", ".S")):
        spans = re.finditer(r'"(?:\\.|[^"\\\n])*"|(/\*.*?\*/|//[^\n]*)', text, flags=re.DOTALL)
    else:
        spans = re.finditer(r"(^\s*#[^\n]*)", text, flags=re.MULTILINE)
    for span in spans:
        if span.group(1):
            first = text.count("\n", 0, span.start(1)) + 1
            yield from enumerate(span.group(1).split("\n"), first)


def paths_in_prose_exist():
    """A file, program or folder of the tree that a document or a comment names is there. {a,b} and * stand for several,
    a word in capitals for any."""
    folders = {os.path.dirname(path) for path in tree.files()}
    folders |= {folder[:at] for folder in folders for at in range(len(folder)) if folder[at] == "/"}
    for path in tree.files():
        if not path.endswith((".md", ".scd", ".c", ".h", ".def", ".S", ".py", ".sh", ".build")):
            continue
        for number, line in prose_of(path):
            for match in TREE_PATH.finditer(line):
                named = re.split(r"[{*]|\b[A-Z]{2,}\b(?!\.md)", match.group(1))[0]
                some = named != match.group(1) or re.match("[-_]?[<$]", line[match.end():]) is not None
                if named.startswith("checkpoint/step-"):  # a folder of a run
                    continue
                known = named in folders or tree.exists(named) or tree.exists(named + ".c") or tree.is_generated(named)
                if not known and not (some and any(file.startswith(named) for file in tree.files())):
                    yield f"{path}:{number}: there is no {match.group(1)}"


CHECKS = {
    "includes_point_left": includes_point_left,
    "rooms_are_in_order": rooms_are_in_order,
    "includes_have_no_circles": includes_have_no_circles,
    "includes_resolve": includes_resolve,
    "external_headers_have_one_owner": external_headers_have_one_owner,
    "core_knows_no_mpi": core_knows_no_mpi,
    "spdx_comes_first": spdx_comes_first,
    "sources_say_what_they_are_for": sources_say_what_they_are_for,
    "files_are_short": files_are_short,
    "lines_are_short": lines_are_short,
    "nothing_is_unfinished": nothing_is_unfinished,
    "no_machine_is_named": no_machine_is_named,
    "text_is_tidy": text_is_tidy,
    "memory_has_one_owner": memory_has_one_owner,
    "libraries_neither_assert_print_nor_exit": libraries_neither_assert_print_nor_exit,
    "screens_print_what_is_shown": screens_print_what_is_shown,
    "unsafe_calls_are_not_used": unsafe_calls_are_not_used,
    "header_guards_follow_the_path": header_guards_follow_the_path,
    "op_table_is_sorted_by_file": op_table_is_sorted_by_file,
    "float64_has_every_kernel": float64_has_every_kernel,
    "instructions_are_told_apart_by_their_rows": instructions_are_told_apart_by_their_rows,
    "only_devices_run_ops": only_devices_run_ops,
    "config_keys_are_unique": config_keys_are_unique,
    "keys_are_named_by_constants": keys_are_named_by_constants,
    "every_test_is_registered": every_test_is_registered,
    "exports_are_used": exports_are_used,
    "members_are_read": members_are_read,
    "packages_agree": packages_agree,
    "tests_do_not_mention_state": tests_do_not_mention_state,
    "the_book_marks_every_block": the_book_marks_every_block,
    "links_of_documents_lead_somewhere": links_of_documents_lead_somewhere,
    "paths_in_prose_exist": paths_in_prose_exist,
}


def main(names):
    failed = 0
    names = names or list(CHECKS)
    print(f"1..{len(names)}")
    for number, name in enumerate(names, 1):
        faults = list(CHECKS[name]())
        print(f"{'not ok' if faults else 'ok'} {number} - {name}")
        for fault in faults[:500]:
            print("# " + fault)
        failed += bool(faults)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

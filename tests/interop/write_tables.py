#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tables of pyarrow and of Hugging Face's datasets, beside the same rows as JSON lines.

    write_tables.py FOLDER --small         the files in tests/fuzz/corpus/table
    write_tables.py FOLDER --seed N        a few hundred random rows in every compression, encoding, page version and
                                           type of text, in FOLDER/texts-*, chats-* and pairs-*, and folders that
                                           datasets saves; texts.jsonl, chats.jsonl and pairs.jsonl hold the rows

Needs pyarrow; --seed also datasets. Exit code 77 (skipped) when a library cannot be imported.
"""
import argparse
import itertools
import json
import os
import random
import sys

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)

WORDS = 'In the beginning was "the Word" \\ and\nlight\t\u00e9 \u6f22\u5b57 \U0001f600 earth waters'.split(" ")
ROLES = pa.struct([("role", pa.string()), ("content", pa.string()), ("weight", pa.float64())])
CHAT = pa.schema([("id", pa.int32()), ("messages", pa.list_(ROLES)), ("tools", pa.list_(pa.string()))])


def text(rng, longest):
    return " ".join(rng.choice(WORDS) for _ in range(rng.choice([0, 1, 4, longest // 4, longest])))


def texts(rng, n, longest):
    rows = [text(rng, longest) for _ in range(n)]
    return [None if i % 11 == 3 else rows[i // 3] if i % 5 == 4 else row for i, row in enumerate(rows)]


def chats(rng, n, longest):
    rows = []
    for i in range(n):
        messages = [{"role": "system", "content": "be brief", "weight": None}] if i % 5 == 0 else []
        for _ in range(rng.choice([1, 2, 3])):
            messages.append({"role": "user", "content": text(rng, longest), "weight": None})
            messages.append({"role": "assistant", "content": text(rng, longest) or "yes",
                             "weight": rng.choice([None, 1])})
        rows.append({"id": i, "messages": messages, "tools": rng.choice([[], None])})
    return rows


def pairs(rng, n, longest):
    return [{"prompt": text(rng, longest), "response": None, "completion": text(rng, longest) or "no", "n": i}
            for i in range(n)]


class Folder:
    def __init__(self, path):
        self.path = path
        os.makedirs(path, exist_ok=True)

    def lines(self, name, rows):
        with open(f"{self.path}/{name}.jsonl", "w") as f:
            for row in rows:
                f.write(json.dumps(row, ensure_ascii=False) + "\n")

    def parquet(self, name, table, **options):
        pq.write_table(table, f"{self.path}/{name}.parquet", store_schema=False, **options)

    def arrow(self, name, table, is_stream, codec=None, rows=64):
        options = pa.ipc.IpcWriteOptions(compression=codec, unify_dictionaries=True)
        with pa.OSFile(f"{self.path}/{name}.arrow", "wb") as f:
            with (pa.ipc.new_stream if is_stream else pa.ipc.new_file)(f, table.schema, options=options) as writer:
                writer.write_table(table, max_chunksize=rows)


def small(folder):
    rng = random.Random(7)
    rows, talks, answers = texts(rng, 14, 12), chats(rng, 5, 6), pairs(rng, 5, 6)
    rows[6:8] = ["In the beginning was light", "In the beginning was \u6f22"]  # with a prefix in common
    folder.lines("texts", [{"text": row} for row in rows])
    folder.lines("chats", talks)
    folder.lines("pairs", answers)
    table = pa.table({"id": list(range(14)), "text": rows})
    for name, options in (("snappy", {"data_page_version": "1.0"}),
                          ("zstd-v2", {"compression": "zstd", "data_page_version": "2.0", "use_dictionary": False}),
                          ("gzip", {"compression": "gzip", "write_page_checksum": True}),
                          ("lz4-v2", {"compression": "lz4", "data_page_version": "2.0"}),
                          ("brotli", {"compression": "brotli"}),
                          ("none", {"compression": "none", "use_dictionary": False})):
        folder.parquet(f"texts-{name}", table, **{"row_group_size": 5, "data_page_size": 60, **options})
    for name in ("DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"):
        folder.parquet(f"texts-{name.lower()}", table, compression="none", use_dictionary=False,
                       column_encoding={"text": name, "id": "DELTA_BINARY_PACKED"})
    folder.arrow("texts-stream", table, True, None, 5)
    large_text = pa.table({"id": list(range(14)), "text": pa.array(rows, pa.large_string())})
    folder.arrow("texts-lz4", large_text, False, "lz4", 5)
    folder.arrow("texts-zstd", pa.table({"text": pa.array(rows, pa.string_view())}), True, "zstd", 5)
    folder.arrow("texts-dictionary", pa.table({"text": pa.array(rows).dictionary_encode()}), True)
    folder.parquet("chats", pa.Table.from_pylist(talks, schema=CHAT), row_group_size=3, data_page_size=80)
    folder.arrow("chats", pa.Table.from_pylist(talks, schema=CHAT), True, None, 3)
    folder.parquet("pairs", pa.Table.from_pylist(answers))
    every = pa.table({"prompt": [row["prompt"] for row in answers],
                      "input": [True, None, False, True, True],
                      "output": [1.5, None, -2.0, 1e300, 0.0],
                      "instruction": pa.array([1, -2, None, 3, 255], pa.int16()),
                      "response": pa.array([[1], [], None, [2, 3], [4]], pa.list_(pa.uint8())),
                      "completion": pa.array([[{"a": 1}], None, [], [None, {"a": 2}], [{"a": None}]],
                                             pa.list_(pa.struct([("a", pa.int64())])))})
    folder.parquet("types", every, use_dictionary=False)
    folder.arrow("types", every, False)


def large(folder, seed):
    import datasets
    rng = random.Random(seed)
    rows, talks, answers = texts(rng, 300, 200), chats(rng, 120, 40), pairs(rng, 80, 40)
    folder.lines("texts", [{"text": row} for row in rows])
    folder.lines("chats", talks)
    folder.lines("pairs", answers)
    table = pa.table({"id": list(range(300)), "text": rows, "url": [f"u{i}" for i in range(300)]})
    for codec, version, words in itertools.product(("none", "snappy", "gzip", "zstd", "lz4"), ("1.0", "2.0"), (0, 1)):
        folder.parquet(f"texts-{codec}-{version}-{words}", table, compression=codec, data_page_version=version,
                       use_dictionary=bool(words), row_group_size=77, data_page_size=2000, write_page_checksum=True)
    for name, version in itertools.product(("DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"), ("1.0", "2.0")):
        folder.parquet(f"texts-{name}-{version}", table, use_dictionary=False, column_encoding={"text": name},
                       data_page_size=3000, data_page_version=version)
    more = {"x": pa.array([[i] * (i % 4) for i in range(300)]), "n": pa.nulls(300),
            "s": pa.array([{"a": i, "b": None} for i in range(300)])}
    kinds = {"string": pa.string(), "large": pa.large_string(), "view": pa.string_view(), "bytes": pa.binary(),
             "words": pa.dictionary(pa.int32(), pa.string())}
    for (name, kind), stream, codec in itertools.product(kinds.items(), (True, False), (None, "lz4", "zstd")):
        values = pa.array(rows).dictionary_encode() if name == "words" else pa.array(rows, kind)
        folder.arrow(f"texts-{name}-{stream}-{codec}", pa.table({**more, "text": values}), stream, codec)
        if stream and not codec:
            folder.parquet(f"texts-{name}", pa.table({"text": values}))
    talk = pa.Table.from_pylist(talks, schema=CHAT)
    for version, words in itertools.product(("1.0", "2.0"), (True, False)):
        folder.parquet(f"chats-{version}-{words}", talk, row_group_size=50, data_page_size=1500,
                       data_page_version=version, use_dictionary=words, use_compliant_nested_type=words)
    folder.arrow("chats-stream", talk, True, None, 50)
    folder.arrow("chats-file", talk, False, "zstd", 50)
    folder.parquet("pairs-", pa.Table.from_pylist(answers))
    saved = datasets.Dataset.from_list([{"text": row} for row in rows])
    saved.save_to_disk(f"{folder.path}/texts-saved", num_shards=3)
    saved.to_parquet(f"{folder.path}/texts-saved.parquet")
    datasets.DatasetDict({"train": saved, "test": saved}).save_to_disk(f"{folder.path}/splits")
    datasets.Dataset.from_list(talks).save_to_disk(f"{folder.path}/chats-saved")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    try:
        small(Folder(args.folder)) if args.small else large(Folder(args.folder), args.seed)
    except ImportError as reason:
        print(f"skipped: {reason}")
        sys.exit(77)

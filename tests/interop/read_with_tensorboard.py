#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The events of a run, read with TensorBoard's own EventAccumulator and compared with its metrics.jsonl.

    read_with_tensorboard.py EVENTS RUN

EVENTS is the folder of the event files of the run in the folder RUN; each start of a run may have a folder of its own
there. TensorBoard's scalars are float32. Exit code 77 (skipped) when the library cannot be imported.
"""
import glob
import json
import os
import struct
import sys

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)

STEP = {"loss_metrics/global_avg_loss": "loss", "loss_metrics/global_max_loss": "max_loss", "lr": "lr",
        "grad_norm": "grad_norm", "n_tokens_seen": "ntokens_seen"}


def single(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def main(events, run):
    records = [json.loads(line) for line in open(run + "/metrics.jsonl")]
    steps = [r for r in records if r["type"] == "step"]
    validations = [r for r in records if r["type"] == "validate"]
    wanted = {tag: [(r["step"], single(r[key])) for r in steps] for tag, key in STEP.items()}
    wanted["validation_metrics/loss"] = [(r["step"], single(r["loss"])) for r in validations]
    sets = sorted(key for key in validations[0] if key.startswith("loss/"))
    assert len(sets) > 1, f"one validation set: {validations[0]}"
    for key in sets:
        wanted[f"validation_metrics/{key[5:]}/loss"] = [(r["step"], single(r[key])) for r in validations]
    scalars = {}
    for folder in sorted({os.path.dirname(path) for path in glob.glob(events + "/**/*tfevents*", recursive=True)}):
        board = EventAccumulator(folder, size_guidance={"scalars": 0})
        board.Reload()
        for tag in board.Tags()["scalars"]:
            scalars.setdefault(tag, []).extend((event.step, event.value) for event in board.Scalars(tag))
    for tag, values in wanted.items():
        found = scalars.get(tag)
        assert found == values, f"{tag}: found {found}, wanted {values}"
    for tag in scalars:
        assert not tag.startswith("validation_metrics/") or not tag.endswith("/loss") or tag in wanted, tag
    print(len(scalars), "tags,", len(steps), "steps,", len(validations), "validations of", len(sets), "sets")


main(sys.argv[1], sys.argv[2])

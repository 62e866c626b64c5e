#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""titan's pipeline schedules compared with torch.distributed.pipelining's, turn by turn.

    compare_orders_with_torch.py ORDERS

ORDERS is what tests/interop/print_orders.c prints. Where torch joins two turns, they follow each other. torch lists
1F1B's orders in a form that numbers the forwards of the last rank from 1, and does not use it, so for the schedules
with one stage on a rank the turns are recorded while torch's loop runs. A schedule that this torch does not have is
left out. Exit code 77 (skipped) when torch cannot be imported.
"""
import collections
import sys

try:
    import torch
    from torch.distributed.pipelining import schedules
except ImportError as reason:
    print(f"skipped: {reason}")
    sys.exit(77)


class Stage:
    """A stage that computes and sends nothing, and notes its turns. Any other call of a schedule gets an empty list."""

    def __init__(self, index, rank, ranks, stages):
        self.stage_index, self.group_rank, self.group_size, self.num_stages = index, rank, ranks, stages
        self.is_first, self.is_last = index == 0, index == stages - 1
        self.group, self.submod, self.device = None, torch.nn.Module(), torch.device("cpu")
        self.has_backward, self.turns = True, []

    def forward_one_chunk(self, microbatch, *_, **__):
        self.turns.append(f"{self.stage_index}F{microbatch}")

    def backward_one_chunk(self, microbatch, *_, **__):
        self.turns.append(f"{self.stage_index}B{microbatch}")

    def __getattr__(self, name):
        return lambda *_, **__: []


def letters(action):
    """The turns of one of torch's actions, in titan's notation."""
    if action is None:
        return []
    if getattr(action, "sub_actions", None):
        return [turn for sub in action.sub_actions for turn in letters(sub)]
    return [f"{action.stage_index}{action.computation_type.value}{action.microbatch_index}"]


def orders_of(name, ranks, stages, n):
    """The turns of all ranks; None if torch refuses these numbers."""
    kind = schedules.get_schedule_class(name)
    try:
        if not issubclass(kind, schedules.PipelineScheduleMulti):
            return [run_one(kind, rank, ranks, n) for rank in range(ranks)]
        own = [Stage(s, 0, ranks, stages) for s in range(0, stages, ranks)]
        made = kind(own, n, loss_fn=lambda *_: None)
    except ValueError:
        return None
    return [[turn for action in made.pipeline_order[rank] for turn in letters(action)] for rank in range(ranks)]


def run_one(kind, rank, ranks, n):
    stage = Stage(rank, rank, ranks, ranks)
    made = kind(stage, n)
    made._has_backward = True
    for name in ("_initialize_stage", "_maybe_compute_loss", "_maybe_get_loss", "_update_losses"):
        setattr(made, name, lambda *_, **__: None)
    made._step_microbatches([()] * n, [{}] * n)
    return stage.turns


def main(path):
    titan = collections.defaultdict(dict)
    with open(path, encoding="utf-8") as file:
        for line in file:
            name, ranks, stages, n, rank, *turns = line.split()
            titan[name, int(ranks), int(stages), int(n)][int(rank)] = turns
    compared, refused = collections.Counter(), []
    for (name, ranks, stages, n), found in titan.items():
        try:
            wanted = orders_of(name, ranks, stages, n)
        except ValueError:
            wanted = None
        if wanted is None:
            refused.append((name, ranks, stages, n))
            continue
        for rank in range(ranks):
            assert found[rank] == wanted[rank], (
                f"{name}, {ranks} ranks, {stages} stages, {n} microbatches, rank {rank}:\n"
                f"titan {' '.join(found[rank])}\ntorch {' '.join(wanted[rank])}")
        compared[name] += 1
    print(f"torch {torch.__version__}: {dict(compared)} are the same, torch refuses {len(refused)}: {refused[:8]}")
    assert len(compared) >= 5, "too few schedules were compared"


main(sys.argv[1])

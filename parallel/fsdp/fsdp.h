/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_FSDP_FSDP_H
#define TT_PARALLEL_FSDP_FSDP_H

#include "core/program/program.h"

/**
 * The eager FSDP engine: a scheduler that places each unit's collectives around the unit as PyTorch's FSDP2 does.
 *   forward of a unit    unshard, prefetch the next `prefetch` units, compute, reshard if its policy says so
 *   backward of a unit   the same, then reshard and start the reduce-scatter of its gradients; one is under way at a
 *                        time and overlaps the next unit's backward
 * All microbatches are unrolled and the prefetch crosses from one to the next.
 */
struct tt_fsdp {
    const struct tt_graph *graph;
    const struct tt_layout *layout;
    int microbatches;
    int prefetch;     /* units gathered ahead of the one that computes */
    bool reduce_last; /* reduce gradients behind the last microbatch only; the graph carries them until then */
};

/** Appends the schedule of one optimizer step; TT_EINTERNAL if the graph lacks a backward for some unit. */
int tt_fsdp_schedule_step(const struct tt_fsdp *fsdp, struct tt_schedule *ret_schedule) TT_MUST_CHECK;

/** Appends the schedule of a forward-only program (validation). */
int tt_fsdp_schedule_forward(const struct tt_fsdp *fsdp, struct tt_schedule *ret_schedule) TT_MUST_CHECK;

/** Bytes that collectives receive before they add them; what struct tt_lowering asks for. */
int64_t tt_fsdp_reduce_staging(const struct tt_layout *layout, int64_t shard_bytes);
int64_t tt_fsdp_all_reduce_staging(const struct tt_layout *layout, int64_t shard_bytes);

/**
 * Payload bytes that one rank sends while it runs the program: the formula, instruction by instruction. What the comm
 * layer counts is equal to it.
 */
int64_t tt_fsdp_payload_bytes(const struct tt_program *program);

/** The same of one instruction; 0 for those that send nothing. */
int64_t tt_fsdp_instr_payload_bytes(const struct tt_program *program, const struct tt_instr *instr);

#endif

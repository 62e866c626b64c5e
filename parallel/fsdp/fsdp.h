/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_FSDP_FSDP_H
#define TT_PARALLEL_FSDP_FSDP_H

#include "core/program/program.h"
#include "parallel/fsdp/usage.h"

/**
 * The eager FSDP engine: a scheduler that places each unit's collectives around its uses as PyTorch's FSDP2 does.
 *   forward of a unit    unshard, prefetch the next `prefetch` units, compute, reshard if its policy says so
 *   backward of a unit   the same, then reshard and start the reduce-scatter of its gradients; one is under way at a
 *                        time and overlaps the next unit's backward
 * The prefetch crosses from one turn of the order to the next.
 */
struct tt_fsdp {
    const struct tt_usage *usage;
    int prefetch; /* units gathered ahead of the one that computes */
};

/**
 * Appends the schedule of the usage's order, and what ends it: sums over replicas, norm, clip and update of an order that
 * trains, else the sum of the losses.
 */
void tt_fsdp_schedule(const struct tt_fsdp *fsdp, struct tt_schedule *ret_schedule);

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

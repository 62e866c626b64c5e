/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_PROGRAM_MEMORY_PLAN_H
#define TT_CORE_PROGRAM_MEMORY_PLAN_H

#include <stdint.h>

/**
 * The placed buffers of an arena, with their lives, for finding room for the next one.
 *
 * A step is cut into blocks of instructions, each with a list of the buffers that live in it. So a buffer with a short
 * life is compared with few others, and one with a long life with all.
 */
struct tt_placed;

/** For n_buffers of a program of n_instrs. The caller's (tt_placed_free). */
struct tt_placed *tt_placed_new(int n_buffers, int n_instrs);
void tt_placed_free(struct tt_placed *placed);

/** Forgets all buffers. */
void tt_placed_clear(struct tt_placed *placed);

/** The lowest offset at which `bytes` are free from instruction `first` to `last`, both included. */
int64_t tt_placed_lowest(struct tt_placed *placed, int first, int last, int64_t bytes);

/** Adds a buffer at [offset, end). */
void tt_placed_add(struct tt_placed *placed, int first, int last, int64_t offset, int64_t end);

#endif

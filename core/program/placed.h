/* SPDX-License-Identifier: MIT */
#ifndef TT_PROGRAM_PLACED_H
#define TT_PROGRAM_PLACED_H

#include <stdint.h>

/**
 * The buffers of an arena that have their places, with their lives, to find room for the next one.
 *
 * A step is cut into blocks of instructions, each of which has a list of the buffers that live in it, so a buffer with
 * a short life is compared with few others. One with a long life is compared with all.
 */
struct tt_placed;

/** n_buffers is how many there will be, of a program of n_instrs. The caller's (tt_placed_free). */
struct tt_placed *tt_placed_new(int n_buffers, int n_instrs);
void tt_placed_free(struct tt_placed *placed);

/** Forgets all buffers. */
void tt_placed_clear(struct tt_placed *placed);

/** The lowest offset at which so many bytes are free from instruction `first` to `last`, both included. */
int64_t tt_placed_lowest(struct tt_placed *placed, int first, int last, int64_t bytes);

/** Adds a buffer at [offset, end). */
void tt_placed_add(struct tt_placed *placed, int first, int last, int64_t offset, int64_t end);

#endif

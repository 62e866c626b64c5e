/* SPDX-License-Identifier: MIT */
#ifndef TT_TESTS_PAR_LAYOUT_H
#define TT_TESTS_PAR_LAYOUT_H

#include "parallel/comm/collectives.h"

/** Floats scattered over memory in random segments, with guards between them; for tests of segment lists. */
struct layout {
    float *memory;
    int64_t memory_floats;
    struct tt_segment *items;
    int n, cap;
    int64_t floats;
};

/** Cuts `floats` floats into segments. Some are empty, some touch each other, and their order in memory is random.
 *   sizes   seed of the segments' sizes; the same on all ranks if a collective requires that
 *   places  seed of their places in memory
 */
struct layout layout_make(uint64_t sizes, uint64_t places, int64_t floats);
void layout_release(struct layout *layout);
struct tt_segment_list layout_list(const struct layout *layout);

/** Sets or reads float i, counted along the list. */
void layout_put(const struct layout *layout, const float *values);
void layout_get(const struct layout *layout, float *ret_values);

/** Whether nothing was written between the segments. */
bool layout_guarded(const struct layout *layout);

/**
 * Value i of a rank's leaf. Values are random and of very different magnitudes, so every order of additions gives
 * different bits.
 */
float leaf_value(uint64_t seed, int64_t leaf, int64_t i);
void leaf_fill(uint64_t seed, int64_t leaf, int64_t first, int64_t n, float *ret_values);

#endif

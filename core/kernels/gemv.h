/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_GEMV_H
#define TT_CORE_KERNELS_GEMV_H

#include <stdbool.h>
#include <stdint.h>

#include "core/os/team.h"

/**
 * y = w x for w (rows, width), the product of a single token, of floats or of bfloat16; sums are in float.
 */
struct tt_gemv {
    bool bf16, y_bf16; /* w and x, and y, which may be float then, are bfloat16 */
    const void *w, *x;
    void *y;
    int64_t rows, width;
};

/**
 * Reading w from memory limits the speed, so the team divides the rows. Every row is summed in one order, so the bits
 * depend neither on threads nor on the other rows.
 */
void tt_gemv(struct tt_team *team, const struct tt_gemv *gemv);

/** The number of tiles of a product; reads sizes only. */
int64_t tt_gemv_tiles(const struct tt_gemv *gemv);

/** Runs one tile on the calling thread, so that an op can run the tiles of several products in one run of a team. */
void tt_gemv_tile(const struct tt_gemv *gemv, int64_t tile);

#endif

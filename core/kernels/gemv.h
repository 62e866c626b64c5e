/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_GEMV_H
#define TT_CORE_KERNELS_GEMV_H

#include <stdint.h>

#include "core/os/team.h"

/**
 * y = w x for w (rows, width), the product of a single token. Reading w from memory limits its speed, so the team
 * divides the rows. Every row is summed in one order, so the bits depend neither on threads nor on the other rows.
 */
void tt_gemv(struct tt_team *team, const float *w, int64_t rows, int64_t width, const float *x, float *y);

#endif

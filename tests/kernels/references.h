/* SPDX-License-Identifier: MIT */
#ifndef TT_KERNELS_REFERENCES_H
#define TT_KERNELS_REFERENCES_H

#include "core/kernels/kernels.h"

/**
 * Every kernel as plain loops with sums in double, tt_<kernel>_ref, to compare the variants of core/kernels with. They
 * are not part of titan.
 */
#define TT_KERNEL(name, args) void tt_##name##_ref args;
#include "core/kernels/kernels.def"
#undef TT_KERNEL

/**
 * For 0 the references as a table, then all of tt_kernels_variant, then kernels_amx_emulated, then the portable kernels
 * with 16 lanes.
 */
const struct tt_kernels *kernels_variant(int i);

/** The fastest variant with the products of bfloat16 of vector/amx.c over emulated tiles. */
const struct tt_kernels *kernels_amx_emulated(void);

#endif

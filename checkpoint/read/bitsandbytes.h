/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_READ_BITSANDBYTES_H
#define TT_CHECKPOINT_READ_BITSANDBYTES_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/read/source.h"
#include "core/base/error.h"
#include "core/math/packing.h"

/**
 * How bitsandbytes (Dettmers et al. 2022, 2023) stores a matrix NAME.weight:
 *
 *   int8   NAME.weight (I8) and NAME.SCB (F32): the largest magnitude of each row, stored as 127
 *   4 bit  NAME.weight (U8; or BF16, F16, F32, whose bytes count): two elements a byte, the first in the high bits;
 *          each is a number of a table of 16, NAME.weight.quant_map. Blocks of elements, one after the other over all
 *          rows, share a factor, NAME.weight.absmax: a float, or by double quantization a number of a table of 256
 *          (nested_quant_map) times a factor of a block of blocks (nested_absmax), plus an offset. The sizes are JSON,
 *          in NAME.weight.quant_state.bitsandbytes__nf4 (or __fp4)
 *
 * As in bitsandbytes, the products are computed in float32, and 4-bit weights are rounded to the type that the sizes
 * state.
 */
struct tt_bnb {
    const struct tt_manifest_tensor *values, *absmax, *nested; /* nested: NULL without double quantization */
    enum tt_dtype dtype;                                       /* type to which the elements are rounded */
    int64_t shape[2];
    int64_t block, nested_block; /* elements per factor (0: int8, one factor a row); factors per second factor */
    float map[TT_NF4_VALUES], nested_map[TT_NF4_FACTORS], offset;
};

/**
 * Checks whether bitsandbytes stored the tensor `values`, NAME.weight: *ret_bnb is NULL if not; otherwise the caller
 * frees it (tt_free). TT_EDATA names a tensor that is missing or has the wrong shape.
 */
int tt_bnb_find(struct tt_source *source, const struct tt_manifest_tensor *values,
                struct tt_bnb **ret_bnb) TT_MUST_CHECK;

/** Rows [row, row + n) as floats, which represent the values of dtype exactly. Does not check checksums. */
int tt_bnb_read(struct tt_source *source, const struct tt_bnb *bnb, int64_t row, int64_t n, float *data) TT_MUST_CHECK;

/**
 * Whether the matrix is stored as core/math/packing.h stores it: in blocks of nf4 with its tables and double
 * quantization, or as int8.
 */
bool tt_bnb_is_packed(const struct tt_bnb *bnb, enum tt_packing_choice packing);

/** Rows [row, row + n) in the packing that they have. Does not check checksums. */
int tt_bnb_read_packed(struct tt_source *source, const struct tt_bnb *bnb, int64_t row, int64_t n,
                       void *rows) TT_MUST_CHECK;

/**
 * The name of the weight to which a tensor of bitsandbytes belongs; the caller frees it. NULL: it is no such tensor.
 */
char *tt_bnb_weight_of(const char *name);

#endif

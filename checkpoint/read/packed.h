/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_READ_PACKED_H
#define TT_CHECKPOINT_READ_PACKED_H

#include <stdint.h>

#include "checkpoint/read/source.h"
#include "core/base/error.h"
#include "core/math/bf16.h"

/**
 * A weight as a folder stores it: one tensor or, in published folders, one of small elements and one of scales. The
 * latter is read as bfloat16: each product of an element and its scale, computed in float32 and rounded once.
 *
 *   FP8     NAME (F8_E4M3) and NAME_scale_inv: a scale for each block of rows and columns, or one for the matrix
 *   MXFP4   NAME_blocks (U8) and NAME_scales (U8): 32 elements of 4 bits, the first in the low bits of the first byte,
 *           and the exponent of their power of two. Of experts, whose matrices are [out, in] in this form only
 */
struct tt_hf_stored {
    const struct tt_manifest_tensor *values;
    const struct tt_manifest_tensor *scales; /* NULL: stored as it is, or in blocks */
    enum tt_dtype dtype;                     /* as read */
    int ndim;
    int64_t shape[TT_BOX_DIMS];
    bool is_turned;                  /* MXFP4: the matrices of experts are as in titan, not as in bfloat16 */
    int64_t block_rows, block_width; /* elements that share a scale, of rows that are as wide as all other dimensions */
};

/** A tensor that is stored as it is. */
struct tt_hf_stored tt_hf_stored_plain(const struct tt_manifest_tensor *tensor);

/**
 * Two tensors as one weight, or TT_EDATA if they do not belong together. The elements are FP8, in blocks of block[0]
 * rows and block[1] columns (0: in one block), or the blocks of MXFP4.
 */
int tt_hf_stored_packed(const struct tt_manifest_tensor *values, const struct tt_manifest_tensor *scales,
                        const int64_t *block, struct tt_hf_stored *ret_stored) TT_MUST_CHECK;

/** Rows and columns of FP8 blocks by the source's config.json: 128 if it says nothing, 0 if a matrix has one scale. */
int tt_hf_block_size(const struct tt_source *source, int64_t *ret_block) TT_MUST_CHECK;

/** The length of the name of the weight to which elements or scales of that name belong; else of the whole name. */
size_t tt_hf_weight_name(const char *name);

/** Scales of n elements as floats, from their bytes. */
void tt_hf_factors(enum tt_dtype dtype, const void *scales, int64_t n, float *factors);

/** Rows [row, row + n), from their elements and the factors of the rows of blocks that they lie in. */
void tt_hf_unpack(const struct tt_hf_stored *stored, int64_t row, int64_t n, const uint8_t *values,
                  const float *factors, tt_bf16 *data);

#endif

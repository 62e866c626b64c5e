/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_FORMAT_DIGEST_H
#define TT_CHECKPOINT_FORMAT_DIGEST_H

#include <stdint.h>

#include "core/graph/dtype.h"
#include "core/math/box.h"

/**
 * The layout-free digest of a tensor: the sum, modulo 2^64, over its elements of
 *
 *     lo(z) * hi(z) + z     where z = (index in the whole tensor) * 0x9e3779b97f4a7c15 ^ bits * 0x85ebca77
 *
 * (lo, hi: the 32-bit halves; a 64-bit element counts as two 32-bit ones). A sum does not depend on which rank holds
 * which rows, so the digest is the same for every world size and save policy. Any lost, doubled, moved or changed
 * element changes it. It costs two multiplications per element, less than the copy during which it is computed. It does
 * not protect against an attacker.
 *
 *   data   n packed elements of dtype (of at least a byte)
 *   first  index, in the whole tensor, of data's first element
 *
 * The digests of a tensor's parts add up to the tensor's.
 */
uint64_t tt_digest_part(enum tt_dtype dtype, const void *data, int64_t first, int64_t n);

/**
 * The digest of n packed elements of a box, beginning at element `at` of the packed box; the tensor has the given
 * shape. The sum over all boxes does not depend on how the tensor was cut.
 */
uint64_t tt_digest_box(enum tt_dtype dtype, const int64_t *shape, const struct tt_box *box, int64_t at, int64_t n,
                       const void *data);

/** The number of NaN and infinite elements among n packed F32, BF16 or F16 elements; 0 for other types. */
int64_t tt_digest_nonfinite(enum tt_dtype dtype, const void *data, int64_t n);

#endif

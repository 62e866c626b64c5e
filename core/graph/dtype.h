/* SPDX-License-Identifier: MIT */
#ifndef TT_GRAPH_DTYPE_H
#define TT_GRAPH_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * Element types, with their names in safetensors files; C128 occurs only in PyTorch's files. An op's row defines the
 * types in which it computes (core/ops/op.h): F32 or BF16, with I32 for token ids; `titan reference` runs the same ops
 * in F64. The other types exist so that titan can describe, check and copy foreign files.
 */

/* X(enum, name, bits) */
#define TT_DTYPE_MAP(X)                 \
    X(TT_F32, "F32", 32)                \
    X(TT_BF16, "BF16", 16)              \
    X(TT_I32, "I32", 32)                \
    X(TT_I64, "I64", 64)                \
    X(TT_F64, "F64", 64)                \
    X(TT_F16, "F16", 16)                \
    X(TT_C64, "C64", 64)                \
    X(TT_U64, "U64", 64)                \
    X(TT_U32, "U32", 32)                \
    X(TT_U16, "U16", 16)                \
    X(TT_I16, "I16", 16)                \
    X(TT_U8, "U8", 8)                   \
    X(TT_I8, "I8", 8)                   \
    X(TT_BOOL, "BOOL", 8)               \
    X(TT_F8_E4M3, "F8_E4M3", 8)         \
    X(TT_F8_E5M2, "F8_E5M2", 8)         \
    X(TT_F8_E8M0, "F8_E8M0", 8)         \
    X(TT_F8_E4M3FNUZ, "F8_E4M3FNUZ", 8) \
    X(TT_F8_E5M2FNUZ, "F8_E5M2FNUZ", 8) \
    X(TT_F6_E2M3, "F6_E2M3", 6)         \
    X(TT_F6_E3M2, "F6_E3M2", 6)         \
    X(TT_F4, "F4", 4)                   \
    X(TT_C128, "C128", 128)

enum tt_dtype {
#define X(dtype, name, bits) dtype,
    TT_DTYPE_MAP(X)
#undef X
        TT_DTYPES
};

/** "F32"; static. */
const char *tt_dtype_name(enum tt_dtype dtype);

/** Bits of one element. */
int tt_dtype_bits(enum tt_dtype dtype);

/** Bytes of one element; 0 for packed types, whose elements are smaller than a byte. */
size_t tt_dtype_size(enum tt_dtype dtype);

/** The type of sums, statistics and tables in a run that computes in `dtype`: F64 for F64, else F32. */
static inline enum tt_dtype tt_dtype_sums(enum tt_dtype dtype)
{
    return dtype == TT_F64 ? TT_F64 : TT_F32;
}

/** Bytes of an element of that type. */
static inline int64_t tt_dtype_sum_bytes(enum tt_dtype dtype)
{
    return (int64_t)tt_dtype_size(tt_dtype_sums(dtype));
}

/** The type of the given name; false if there is none. */
bool tt_dtype_from_name(const char *name, enum tt_dtype *ret_dtype);

#endif

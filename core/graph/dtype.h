/* SPDX-License-Identifier: MIT */
#ifndef TT_GRAPH_DTYPE_H
#define TT_GRAPH_DTYPE_H

#include <stddef.h>
#include <stdint.h>

enum { TT_MAX_DIMS = 4 };

/* X(constant, safetensors name, bytes). Values compute in F32, I32 holds tokens; the others occur in files. */
#define TT_DTYPE_MAP(X)                                                                                                \
    X(TT_F32, "F32", 4)                                                                                                \
    X(TT_BF16, "BF16", 2)                                                                                              \
    X(TT_I32, "I32", 4)                                                                                                \
    X(TT_F64, "F64", 8)                                                                                                \
    X(TT_F16, "F16", 2)                                                                                                \
    X(TT_I64, "I64", 8)                                                                                                \
    X(TT_U64, "U64", 8)                                                                                                \
    X(TT_U32, "U32", 4)                                                                                                \
    X(TT_I16, "I16", 2)                                                                                                \
    X(TT_U16, "U16", 2)                                                                                                \
    X(TT_I8, "I8", 1)                                                                                                  \
    X(TT_U8, "U8", 1)                                                                                                  \
    X(TT_BOOL, "BOOL", 1)                                                                                              \
    X(TT_F8_E4M3, "F8_E4M3", 1)                                                                                        \
    X(TT_F8_E5M2, "F8_E5M2", 1)

enum tt_dtype {
#define X(name, text, bytes) name,
    TT_DTYPE_MAP(X)
#undef X
        TT_DTYPES
};

/** Bytes of one element. */
int64_t tt_dtype_bytes(enum tt_dtype dtype);

/** The name that safetensors uses, for instance "BF16". */
const char *tt_dtype_name(enum tt_dtype dtype);

/** The dtype of a safetensors name, or -1. */
int tt_dtype_from_name(const char *name);

/** bfloat16 by rounding to nearest even; NaN stays NaN. */
uint16_t tt_bf16_from_float(float value);
float tt_bf16_to_float(uint16_t bits);
float tt_f16_to_float(uint16_t bits);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_FORMAT_CAST_H
#define TT_CHECKPOINT_FORMAT_CAST_H

#include <stdbool.h>
#include <stdint.h>

#include "core/graph/dtype.h"

/** Whether tt_cast can convert between these types: equal types, any two of F32, BF16 and F16, and these to F64. */
bool tt_cast_known(enum tt_dtype to, enum tt_dtype from);

/** Converts n elements, rounded to nearest even; NaN stays NaN. tt_cast_known must hold for the types; no overlap. */
void tt_cast(enum tt_dtype to, void *to_data, enum tt_dtype from, const void *from_data, int64_t n);

/** Whether tt_cast_value supports the type: all types of whole bytes except complex and 8-bit floating-point ones. */
bool tt_cast_has_value(enum tt_dtype dtype);

/** Element i as a double (64-bit integers are rounded). */
double tt_cast_value(enum tt_dtype dtype, const void *data, int64_t i);

/** Sets the error "tensor 'x' is F4, which cannot be <done>". Returns TT_EDATA. */
int tt_cast_fail(const char *name, const char *done, enum tt_dtype dtype);

#endif

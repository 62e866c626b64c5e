/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_GGUF_PACK_H
#define TT_CHECKPOINT_GGUF_PACK_H

#include <stdint.h>

#include "core/gguf/gguf.h"

/**
 * Elements in the types of a GGUF file.
 *
 *   Q8_0   of 32 elements a scale d in float16 and 32 signed bytes q: d * q
 *   Q4_0   a scale d in float16 and 16 bytes, of which the low halves are elements 0 to 15 and the high halves 16 to
 *          31, as numbers q from 0 to 15: d * (q - 8)
 *
 * They are rounded as ggml does, so that files are bit for bit the same.
 */

/** n elements (whole blocks) to bytes. */
void tt_gguf_pack(const struct tt_gguf_type_row *type, const float *data, int64_t n, void *bytes);

/** The reverse. */
void tt_gguf_unpack(const struct tt_gguf_type_row *type, const void *bytes, int64_t n, float *data);

#endif

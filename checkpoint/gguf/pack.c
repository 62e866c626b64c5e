/* SPDX-License-Identifier: MIT
 *
 * Blocks of 32 elements with one scale. The scale is computed in float and stored as float16, but elements are divided
 * by the float, as in ggml.
 */
#include "checkpoint/gguf/pack.h"

#include <math.h>
#include <string.h>

#include "checkpoint/format/cast.h"

enum { BLOCK = 32, SCALE_BYTES = 2 };

static void put_scale(float scale, uint8_t *to)
{
    tt_cast(TT_F16, to, TT_F32, &scale, 1);
}

static float scale_at(const uint8_t *from)
{
    float scale;

    tt_cast(TT_F32, &scale, TT_F16, from, 1);
    return scale;
}

/* What is not finite has no meaning here, but must not do harm. */
static uint8_t to_byte(float x)
{
    return fabsf(x) < 127.5F ? (uint8_t)(int8_t)roundf(x) : 0;
}

static void pack_q8_0(const float *x, uint8_t *to)
{
    float most = 0.0F, scale, inverse;

    for (int i = 0; i < BLOCK; i++)
        most = fmaxf(most, fabsf(x[i]));
    scale = most / 127.0F;
    inverse = scale != 0.0F ? 1.0F / scale : 0.0F;
    put_scale(scale, to);
    for (int i = 0; i < BLOCK; i++)
        to[SCALE_BYTES + i] = to_byte(x[i] * inverse);
}

/* 0 to 15, of which 8 is zero. */
static uint8_t nibble(float x)
{
    return x > -8.5F ? (uint8_t)(x < 6.5F ? x + 8.5F : 15.0F) : 0;
}

/* The element of the largest magnitude becomes -8, so its sign is that of -scale. */
static void pack_q4_0(const float *x, uint8_t *to)
{
    float largest = 0.0F, scale, inverse;

    for (int i = 0; i < BLOCK; i++)
        if (fabsf(x[i]) > fabsf(largest))
            largest = x[i];
    scale = largest / -8.0F;
    inverse = scale != 0.0F ? 1.0F / scale : 0.0F;
    put_scale(scale, to);
    for (int i = 0; i < BLOCK / 2; i++)
        to[SCALE_BYTES + i] = (uint8_t)(nibble(x[i] * inverse) | nibble(x[i + BLOCK / 2] * inverse) << 4);
}

void tt_gguf_pack(const struct tt_gguf_type_row *type, const float *data, int64_t n, void *bytes)
{
    uint8_t *to = bytes;

    if (type->elements == 1) {
        tt_cast(type->dtype, bytes, TT_F32, data, n);
        return;
    }
    for (int64_t i = 0; i < n; i += BLOCK, to += type->bytes) {
        if (type->type == TT_GGML_Q8_0)
            pack_q8_0(data + i, to);
        else
            pack_q4_0(data + i, to);
    }
}

void tt_gguf_unpack(const struct tt_gguf_type_row *type, const void *bytes, int64_t n, float *data)
{
    const uint8_t *from = bytes;

    if (type->elements == 1) {
        tt_cast(TT_F32, data, type->dtype, bytes, n);
        return;
    }
    for (int64_t i = 0; i < n; i += BLOCK, from += type->bytes) {
        float scale = scale_at(from);

        for (int k = 0; k < BLOCK; k++) {
            uint8_t byte = from[SCALE_BYTES + (type->type == TT_GGML_Q8_0 ? k : k % (BLOCK / 2))];
            int q = type->type == TT_GGML_Q8_0 ? (int)(int8_t)byte : (k < BLOCK / 2 ? byte & 15 : byte >> 4) - 8;

            data[i + k] = scale * (float)q;
        }
    }
}

/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_VECTOR_AMX_TILE_H
#define TT_CORE_KERNELS_VECTOR_AMX_TILE_H

/**
 * Operations on the tiles of AMX: eight registers of 16 rows of 64 bytes, numbered 0 to 7 by literals.
 *
 *     tile_configure(), tile_release()    around all others, on each thread: gives the tiles their size, zeroed
 *     TILE_ZERO(tile)
 *     TILE_LOAD(tile, from), TILE_STORE(tile, to, stride)    rows from consecutive memory, to rows `stride` bytes apart
 *     TILE_DOT(sum, a, b)                 sum (16, 16) of floats += a (16, 32) b (32, 16) of bfloat16
 *
 * In memory, a has rows of 32 elements; b has rows of 16 pairs, row p the elements 2p and 2p + 1 of each column.
 *
 * There are two implementations. One is the compiler's intrinsics. The other, with TT_AMX_EMULATED, is plain C after
 * Intel's description (Software Developer's Manual, volume 2, TDPBF16PS), for tests on processors without AMX. By this
 * description, for each element of `sum`, a TILE_DOT sums the products of even and of odd elements separately, each
 * from 0 in order of k by fused multiply-adds, then adds the second sum to the first, and the result to `sum`. Every
 * step rounds to nearest even. Denormal inputs count as 0 and denormal results become 0, with their sign, whatever
 * MXCSR says.
 */
#include <stdint.h>

enum { TILE_LINES = 16, TILE_BYTES = 64 /* of a row */ };

#if !defined(TT_AMX_EMULATED)

#include <immintrin.h>

/* The intrinsics of gcc 12 do not declare which memory they read, so this memory must have been written before. */
#define TILE_WRITTEN __asm__ volatile("" ::: "memory")

static inline void tile_configure(void)
{
    /* palette 1; from byte 16 on, the bytes per row of each tile; from byte 48 on, its number of rows */
    static const uint8_t sizes[64] __attribute__((aligned(64))) = {
        1,         [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64, [26] = 64, [28] = 64, [30] = 64,
        [48] = 16, [49] = 16, [50] = 16, [51] = 16, [52] = 16, [53] = 16, [54] = 16, [55] = 16};

    _tile_loadconfig(sizes);
}

static inline void tile_release(void)
{
    _tile_release();
}

#define TILE_ZERO(tile) _tile_zero(tile)
#define TILE_LOAD(tile, from)                \
    do {                                     \
        TILE_WRITTEN;                        \
        _tile_loadd(tile, from, TILE_BYTES); \
    } while (0)
#define TILE_STORE(tile, to, stride) _tile_stored(tile, to, stride)
#define TILE_DOT(sum, a, b)          _tile_dpbf16ps(sum, a, b)

#else

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/math/bf16.h"

static _Thread_local struct {
    bool configured;
    uint8_t bytes[8][TILE_LINES * TILE_BYTES];
} tile_registers;

static inline void tile_configure(void)
{
    memset(&tile_registers, 0, sizeof tile_registers);
    tile_registers.configured = true;
}

static inline void tile_release(void)
{
    tile_registers.configured = false;
}

static inline void tile_load(unsigned tile, const void *from, int64_t stride)
{
    for (int64_t i = 0; i < TILE_LINES; i++)
        memcpy(tile_registers.bytes[tile] + i * TILE_BYTES, (const char *)from + i * stride, TILE_BYTES);
}

/* Without a configuration the processor would raise an exception; here sums become NaN. */
static inline void tile_store(unsigned tile, void *to, int64_t stride)
{
    if (!tile_registers.configured)
        memset(tile_registers.bytes[tile], 0xff, sizeof tile_registers.bytes[tile]);
    for (int64_t i = 0; i < TILE_LINES; i++)
        memcpy((char *)to + i * stride, tile_registers.bytes[tile] + i * TILE_BYTES, TILE_BYTES);
}

/* Denormals become 0. */
static inline float tile_flushed(float x)
{
    return fabsf(x) < FLT_MIN ? copysignf(0.0F, x) : x;
}

/*
 * a b + c. The processor decides whether a result is denormal after rounding it to 24 bits: just below the smallest
 * normal number that is finer than a float there. Double precision tells these cases apart, since the product is exact
 * and so is the sum where it matters.
 */
static inline float tile_fma(float a, float b, float c)
{
    float x = fmaf(a, b, c);

    if (!(fabsf(x) <= FLT_MIN))
        return x;
    return fabs((double)a * (double)b + (double)c) < (double)FLT_MIN - 0x1p-151 ? copysignf(0.0F, x) : x;
}

static inline void tile_widen(float *to, unsigned tile, int64_t row)
{
    tt_bf16 from[2 * TILE_LINES];

    memcpy(from, tile_registers.bytes[tile] + row * TILE_BYTES, sizeof from);
    for (int i = 0; i < 2 * TILE_LINES; i++)
        to[i] = tile_flushed(tt_bf16_to_float(from[i]));
}

static inline void tile_dot(unsigned to, unsigned a, unsigned b)
{
    float right[TILE_LINES][2 * TILE_LINES];

    for (int k = 0; k < TILE_LINES; k++)
        tile_widen(right[k], b, k);
    for (int64_t i = 0; i < TILE_LINES; i++) {
        float left[2 * TILE_LINES], part[2 * TILE_LINES] = {0.0F}, sum[TILE_LINES];

        tile_widen(left, a, i);
        for (int k = 0; k < TILE_LINES; k++) {
            for (int j = 0; j < 2 * TILE_LINES; j++)
                part[j] = tile_fma(left[2 * k + j % 2], right[k][j], part[j]);
        }
        memcpy(sum, tile_registers.bytes[to] + i * TILE_BYTES, sizeof sum);
        for (int64_t j = 0; j < TILE_LINES; j++)
            sum[j] = tile_flushed(tile_flushed(sum[j]) + tile_flushed(part[2 * j] + part[2 * j + 1]));
        memcpy(tile_registers.bytes[to] + i * TILE_BYTES, sum, sizeof sum);
    }
}

#define TILE_ZERO(tile)              memset(tile_registers.bytes[tile], 0, sizeof tile_registers.bytes[tile])
#define TILE_LOAD(tile, from)        tile_load(tile, from, TILE_BYTES)
#define TILE_STORE(tile, to, stride) tile_store(tile, to, stride)
#define TILE_DOT(sum, a, b)          tile_dot(sum, a, b)

#endif

#endif

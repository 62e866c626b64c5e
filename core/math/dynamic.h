/* SPDX-License-Identifier: MIT */
#ifndef TT_MATH_DYNAMIC_H
#define TT_MATH_DYNAMIC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/**
 * Numbers of 8 bits with an exponent and a fraction of variable lengths (Dettmers 2016), by which bitsandbytes stores
 * the moments of its 8-bit optimizers and the factors of nf4. Each of the seven decades below 1 contains twice as many
 * numbers as the next smaller one.
 * An array is cut into blocks of TT_DYNAMIC_BLOCK elements; an element is its number times the largest magnitude of its
 * block.
 */
enum {
    TT_DYNAMIC_BLOCK = 256,
    TT_DYNAMIC_CODES = 256,
    TT_DYNAMIC_LOWEST = 0x3400, /* the upper 16 bits of 2^-23, below which the nearest number is 0 or one beside it */
    TT_DYNAMIC_BUCKETS = 0x3f80 - TT_DYNAMIC_LOWEST + 1, /* up to 1 */
};

struct tt_dynamic {
    float number[TT_DYNAMIC_CODES]; /* ascending */
    float middle[TT_DYNAMIC_CODES]; /* between number i and the next one; above the last one infinite */
    /* for the upper 16 bits of a magnitude (of a positive x, of a negative x): the lower of the two codes that are
     * nearest to the values with these bits; three more bytes, so that vectors may read words */
    uint8_t lower[2][TT_DYNAMIC_BUCKETS + 3];
};

/** The numbers from -1 to 1, or those from 0 to 1. Static; the first call computes them. Any thread may call it. */
const struct tt_dynamic *tt_dynamic_map(bool is_signed);

/** The code of the number nearest to x, |x| <= 1; of two, the lower one. A NaN gets some code. */
static inline uint8_t tt_dynamic_code(const struct tt_dynamic *map, float x)
{
    uint32_t bits, bucket;
    uint8_t code;

    memcpy(&bits, &x, sizeof bits);
    bucket = bits << 1 >> 17; /* without the sign */
    bucket = bucket < TT_DYNAMIC_LOWEST ? TT_DYNAMIC_LOWEST : bucket;
    bucket = bucket > 0x3f80 ? 0x3f80 : bucket;
    code = map->lower[x < 0.0F][bucket - TT_DYNAMIC_LOWEST];
    return (uint8_t)(code + (x > map->middle[code]));
}

#endif

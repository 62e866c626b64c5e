/* SPDX-License-Identifier: MIT */
#ifndef TT_MATH_PACKING_H
#define TT_MATH_PACKING_H

#include <stdbool.h>
#include <stdint.h>

#include "core/keys/choices.h"

/**
 * Matrices in fewer bits: frozen weights while other parameters are trained, and weights in files.
 *
 * Every row is packed on its own, so ranks can share a matrix by rows, and one row says all about its elements:
 *
 *   bfloat16  elements
 *   int8      a float, the largest magnitude of the row, for which 127 stands; then a signed byte for each element
 *             (LLM.int8, Dettmers et al. 2022, without outliers)
 *   nf4       blocks of 64 elements of 4 bits, numbers of a table of 16, times a factor of the block. The factor is a
 *             number of a table of 256, times a factor of 256 blocks, plus an offset: double quantization, as in QLoRA
 *             (Dettmers et al. 2023) and bitsandbytes. Groups of 256 blocks run over the whole matrix, and the offset
 *             is its mean factor. A row has the offset, the number of its first block in its group, the factors of its
 *             groups, a byte for each block, and the elements, two in a byte, the first in the high bits
 *   q4_0      blocks of 32 elements as in GGUF: a scale d in float16 and 16 bytes, of which the low halves are elements
 *             0 to 15 and the high halves 16 to 31, as numbers q from 0 to 15: d * (q - 8)
 *   q8_0      blocks of 32 elements as in GGUF: a scale d in float16 and 32 signed bytes q: d * q
 *
 * Elements are computed in float, in the order in which bitsandbytes and ggml compute them.
 */

/* X(enum, name, elements of a block: a row must be whole blocks) */
#define TT_PACKING_MAP(X)             \
    X(TT_PACKING_BF16, "bfloat16", 1) \
    X(TT_PACKING_INT8, "int8", 1)     \
    X(TT_PACKING_NF4, "nf4", 64)      \
    X(TT_PACKING_Q4_0, "q4_0", 32)    \
    X(TT_PACKING_Q8_0, "q8_0", 32)

/* The choices of core/keys/choices.h; not to pack is the first one. */
#define TT_PACKINGS (TT_PACKING_Q8_0 + 1)

/** "nf4"; "none". Static. */
const char *tt_packing_name(enum tt_packing_choice packing);

/** The number of elements of a block; the size of a row must be a multiple of it. */
int64_t tt_packing_block(enum tt_packing_choice packing);

/** The bytes of a row of `width` elements, an even number. */
int64_t tt_packing_row_bytes(enum tt_packing_choice packing, int64_t width);

/** Whether a packed row depends on the whole matrix, so that tt_pack needs all of the matrix. */
static inline int tt_packing_needs_whole(enum tt_packing_choice packing)
{
    return packing == TT_PACKING_NF4;
}

/**
 * Packs rows [row, row + n) of a matrix x (rows, width) into `to`. Rows of a packing that does not need the whole may
 * be packed as a matrix of their own. Values must be finite; others do no harm.
 */
void tt_pack(enum tt_packing_choice packing, const float *x, int64_t rows, int64_t width, int64_t row, int64_t n,
             void *to);

/** Unpacks elements [begin, begin + n) of a row of `width` elements. */
void tt_unpack(enum tt_packing_choice packing, const void *row, int64_t width, int64_t begin, int64_t n, float *to);

/**
 * The elements [begin, begin + n) of a packed row as a packed row of n elements, for ranks that share a matrix by
 * columns: unpacking it gives the same elements. begin and n are multiples of the block; begin is even, and with nf4 a
 * multiple of n.
 */
void tt_packing_cut(enum tt_packing_choice packing, const void *row, int64_t width, int64_t begin, int64_t n, void *to);

/* --- parts, for files that store them apart --- */

enum { TT_NF4_VALUES = 16, TT_NF4_FACTORS = 256, TT_NF4_BLOCK = 64 };

/**
 * Elements [first, first + n) of 4 bits: numbers of a table of 16, times the factor of their block.
 *   values   the byte of element `first`, two elements a byte
 *   factors  factors of the block of element `first` and of the next blocks
 */
void tt_unpack_4bit(const uint8_t *values, int64_t first, int64_t n, const float *numbers, int64_t block,
                    const float *factors, float *to);

/** The factor of a block: a number of a table of 256, times the factor of its group, plus the offset. */
static inline float tt_unpack_factor(const float *table, uint8_t number, float of_group, float offset)
{
    float product = table[number] * of_group; /* rounded before the addition: titan is compiled without contraction */

    return product + offset;
}

/** The numbers of a table of nf4, ascending: what an element is times the factor of its block. */
extern const float tt_nf4_numbers[TT_NF4_VALUES];

/** The factors of the blocks [first, first + n) of a row of nf4. Returns the elements of these blocks, 4 bits each. */
const uint8_t *tt_nf4_factors(const void *row, int64_t width, int64_t first, int64_t n, float *factors);

/** What a row's largest magnitude is times 1 in int8: 1 / 127, as bitsandbytes has it. */
#define TT_INT8_STEP 7.874015718698502e-3F
/**
 * A row of nf4 from its parts.
 *   offset    the mean factor
 *   first     number of the row's first block in the matrix, a multiple of the blocks of a row
 *   groups    float factors of the groups of the matrix, from the row's first one on
 *   numbers   [width / TT_NF4_BLOCK] of the blocks
 *   elements  [width / 2]
 */
void tt_nf4_row(int64_t width, float offset, int64_t first, const void *groups, const uint8_t *numbers,
                const uint8_t *elements, void *to);

/** What a block of a row of nf4 depends on: its elements, its number, the factor of its group, and the offset. */
enum { TT_NF4_HALVES = TT_NF4_BLOCK / 4 + 1 + 2 + 2 };
void tt_nf4_halves(const void *row, int64_t width, int64_t block, uint16_t halves[TT_NF4_HALVES]);

/** Whether a file's tables of 4 and 8 bits, TT_NF4_VALUES and TT_NF4_FACTORS numbers, are those of nf4. */
bool tt_nf4_has_tables(const float *numbers, const float *factors);

/** A row of int8 from its parts: the largest magnitude, and the elements. */
void tt_int8_row(int64_t width, float largest, const int8_t *values, void *to);

/** Elements of a row of int8. */
void tt_unpack_int8(const int8_t *values, float largest, int64_t n, float *to);

#endif

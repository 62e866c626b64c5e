/* SPDX-License-Identifier: MIT
 *
 * Matrices in fewer bits. Scales are computed and rounded as bitsandbytes and ggml do it, so that their bits are equal.
 */
#include "core/math/packing.h"

#include <math.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/math/bf16.h"
#include "core/math/dynamic.h"
#include "core/math/f16.h"
#include "core/math/round.h"

static const struct {
    const char *name;
    int64_t block;
} table[TT_PACKINGS] = {[TT_PACKING_NONE] = {"none", 1},
#define X(packing, text, elements) [packing] = {text, elements},
                        TT_PACKING_MAP(X)
#undef X
};

const char *tt_packing_name(enum tt_packing_choice packing)
{
    return table[packing].name;
}

int64_t tt_packing_block(enum tt_packing_choice packing)
{
    return table[packing].block;
}

/* --- blocks of GGUF --- */

enum { BLOCK = 32, SCALE_BYTES = 2, Q4_BYTES = SCALE_BYTES + BLOCK / 2, Q8_BYTES = SCALE_BYTES + BLOCK };

static void put_scale(float scale, uint8_t *to)
{
    uint16_t half = tt_f16_from_float(scale);

    to[0] = (uint8_t)half;
    to[1] = (uint8_t)(half >> 8);
}

static float get_scale(const uint8_t *from)
{
    return tt_f16_to_float((uint16_t)(from[0] | from[1] << 8));
}

/* The format has no infinite values, but they must do no harm. */
static uint8_t to_byte(float x)
{
    return fabsf(x) < 127.5F ? (uint8_t)(int8_t)roundf(x) : 0;
}

/* The scale is stored as float16, but elements are divided by the float, as in ggml. */
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

/* A value from 0 to 15, where 8 means zero. */
static uint8_t nibble(float x)
{
    return x > -8.5F ? (uint8_t)(x < 6.5F ? x + 8.5F : 15.0F) : 0;
}

/* The element of the largest magnitude becomes -8, so it has the sign of -scale. */
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

static void unpack_q8_0(const uint8_t *from, float *to)
{
    float scale = get_scale(from);

    for (int i = 0; i < BLOCK; i++)
        to[i] = scale * (float)(int8_t)from[SCALE_BYTES + i];
}

static void unpack_q4_0(const uint8_t *from, float *to)
{
    float scale = get_scale(from);

    for (int i = 0; i < BLOCK / 2; i++) {
        to[i] = scale * (float)((from[SCALE_BYTES + i] & 15) - 8);
        to[i + BLOCK / 2] = scale * (float)((from[SCALE_BYTES + i] >> 4) - 8);
    }
}

/* Elements [begin, begin + n) of a row of blocks, some of which may be needed in part only. */
static void unpack_blocks(enum tt_packing_choice packing, const uint8_t *row, int64_t begin, int64_t n, float *to)
{
    void (*unpack)(const uint8_t *from, float *to) = packing == TT_PACKING_Q8_0 ? unpack_q8_0 : unpack_q4_0;
    int64_t bytes = packing == TT_PACKING_Q8_0 ? Q8_BYTES : Q4_BYTES;

    for (int64_t end = begin + n, some; begin < end; begin += some, to += some) {
        int64_t at = begin % BLOCK;
        float block[BLOCK];

        some = BLOCK - at < end - begin ? BLOCK - at : end - begin;
        unpack(row + begin / BLOCK * bytes, some == BLOCK ? to : block);
        if (some < BLOCK)
            memcpy(to, block + at, (size_t)some * sizeof *to);
    }
}

/* --- int8 --- */

static void pack_int8(const float *x, int64_t width, uint8_t *to)
{
    float most = 0.0F, inverse;

    for (int64_t i = 0; i < width; i++)
        most = fmaxf(most, fabsf(x[i]));
    inverse = most > 0.0F ? 1.0F / most * 127.0F : 0.0F; /* as torch divides a number by a tensor */
    memcpy(to, &most, sizeof most);
    for (int64_t i = 0; i < width; i++) {
        float q = rintf(x[i] * inverse);

        to[(int64_t)sizeof most + i] = fabsf(q) <= 127.0F ? (uint8_t)(int8_t)q : 0;
    }
}

void tt_int8_row(int64_t width, float largest, const int8_t *values, void *to)
{
    memcpy(to, &largest, sizeof largest);
    memcpy((char *)to + sizeof largest, values, (size_t)width);
    if (width % 2)
        ((char *)to)[(int64_t)sizeof largest + width] = 0;
}

void tt_unpack_int8(const int8_t *values, float largest, int64_t n, float *to)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = (float)values[i] * largest * TT_INT8_STEP;
}

/* --- nf4 --- */

enum { NF4_BLOCK = TT_NF4_BLOCK, GROUP = 256 /* blocks */ };

/* The quantiles of a normal distribution, scaled to -1 and 1. */
const float tt_nf4_numbers[TT_NF4_VALUES] = {
    -1.0F,
    -0.6961928009986877F,
    -0.5250730514526367F,
    -0.39491748809814453F,
    -0.28444138169288635F,
    -0.18477343022823334F,
    -0.09105003625154495F,
    0.0F,
    0.07958029955625534F,
    0.16093020141124725F,
    0.24611230194568634F,
    0.33791524171829224F,
    0.44070982933044434F,
    0.5626170039176941F,
    0.7229568362236023F,
    1.0F,
};

/* The parts of a row, by their offsets in bytes: the offset; the number of its first block in its group; the factors of
 * its groups; the numbers of its blocks; its elements. */
struct nf4_row {
    int64_t blocks, groups; /* how many; a row may begin and end inside a group */
    int64_t factors, numbers, elements, bytes;
};

static struct nf4_row nf4_row_of(int64_t width)
{
    struct nf4_row row = {.blocks = width / NF4_BLOCK, .factors = 2 * (int64_t)sizeof(float)};

    row.groups = GROUP % row.blocks == 0   ? 1
                 : row.blocks % GROUP == 0 ? row.blocks / GROUP
                                           : (row.blocks + GROUP - 2) / GROUP + 1;
    row.numbers = row.factors + row.groups * (int64_t)sizeof(float);
    row.elements = row.numbers + row.blocks;
    row.bytes = tt_round_up(row.elements + width / 2, sizeof(float));
    return row;
}

/* The number of the nearest of n ascending numbers; of two, the lower one. */
static int nearest(const float *numbers, int n, float x)
{
    int low = 0, high = n - 1;

    while (high - low > 1) {
        int middle = (low + high) / 2;

        if (numbers[middle] <= x)
            low = middle;
        else
            high = middle;
    }
    return fabsf(numbers[high] - x) < fabsf(numbers[low] - x) ? high : low;
}

/* Packs a block: of each element the number of the nearest of the 16, which is how many midpoints between them it
 * exceeds. */
static void pack_nf4_block(const float *x, float inverse, uint8_t *to)
{
    float scaled[NF4_BLOCK];
    int32_t number[NF4_BLOCK] = {0};

    for (int i = 0; i < NF4_BLOCK; i++)
        scaled[i] = x[i] * inverse;
    for (int k = 0; k + 1 < TT_NF4_VALUES; k++) {
        float middle = (tt_nf4_numbers[k] + tt_nf4_numbers[k + 1]) / 2.0F;

        for (int i = 0; i < NF4_BLOCK; i++)
            number[i] += scaled[i] > middle;
    }
    for (int i = 0; i < NF4_BLOCK; i += 2)
        to[i / 2] = (uint8_t)(number[i] << 4 | number[i + 1]);
}

static float largest_of(const float *x, int64_t n)
{
    float most = 0.0F;

    for (int64_t i = 0; i < n; i++)
        most = fmaxf(most, fabsf(x[i]));
    return most;
}

/* What the rows of a matrix have in common. */
struct nf4_scales {
    float *absmax;   /* of all blocks */
    float *of_group; /* the largest magnitude of absmax - offset in each group */
    float offset;
};

static struct nf4_scales nf4_scales_of(const float *x, int64_t blocks)
{
    struct nf4_scales s = {.absmax = tt_calloc((size_t)blocks, sizeof *s.absmax)};
    int64_t groups = tt_div_up(blocks, GROUP);
    double sum = 0.0;

    for (int64_t b = 0; b < blocks; b++) {
        s.absmax[b] = largest_of(x + b * NF4_BLOCK, NF4_BLOCK);
        sum += (double)s.absmax[b];
    }
    s.offset = (float)(sum / (double)blocks);
    s.of_group = tt_calloc((size_t)groups, sizeof *s.of_group);
    for (int64_t b = 0; b < blocks; b++)
        s.of_group[b / GROUP] = fmaxf(s.of_group[b / GROUP], fabsf(s.absmax[b] - s.offset));
    return s;
}

/* Clears a row, and writes what comes before the numbers of its blocks. first, groups: as in tt_nf4_row. */
static struct nf4_row begin_nf4(int64_t width, float offset, int64_t first, const void *groups, uint8_t *to)
{
    struct nf4_row row = nf4_row_of(width);
    uint32_t in_group = (uint32_t)(first % GROUP);
    int64_t n = (in_group + row.blocks - 1) / GROUP + 1;

    memset(to, 0, (size_t)row.bytes);
    memcpy(to, &offset, sizeof offset);
    memcpy(to + sizeof offset, &in_group, sizeof in_group);
    memcpy(to + row.factors, groups, (size_t)n * sizeof(float));
    return row;
}

void tt_nf4_row(int64_t width, float offset, int64_t first, const void *groups, const uint8_t *numbers,
                const uint8_t *elements, void *to)
{
    struct nf4_row row = begin_nf4(width, offset, first, groups, to);

    memcpy((uint8_t *)to + row.numbers, numbers, (size_t)row.blocks);
    memcpy((uint8_t *)to + row.elements, elements, (size_t)(width / 2));
}

void tt_nf4_halves(const void *row, int64_t width, int64_t block, uint16_t halves[TT_NF4_HALVES])
{
    enum { ELEMENTS = NF4_BLOCK / 4 };
    const uint8_t *bytes = row;
    struct nf4_row parts = nf4_row_of(width);
    uint32_t in_group;

    memcpy(&in_group, bytes + sizeof(float), sizeof in_group);
    memcpy(halves, bytes + parts.elements + block * NF4_BLOCK / 2, ELEMENTS * sizeof *halves);
    halves[ELEMENTS] = bytes[parts.numbers + block];
    memcpy(&halves[ELEMENTS + 1], bytes + parts.factors + (in_group + block) / GROUP * (int64_t)sizeof(float),
           sizeof(float));
    memcpy(&halves[ELEMENTS + 3], bytes, sizeof(float));
}

bool tt_nf4_has_tables(const float *numbers, const float *factors)
{
    const float *known = tt_dynamic_map(true)->number;

    for (int i = 0; i < TT_NF4_VALUES; i++)
        if (numbers[i] != tt_nf4_numbers[i])
            return false;
    for (int i = 0; i < TT_NF4_FACTORS; i++)
        if (factors[i] != known[i])
            return false;
    return true;
}

/* Packs a row, whose first block has the number `first` in the matrix. */
static void pack_nf4(const struct nf4_scales *s, const float *x, int64_t width, int64_t first, uint8_t *to)
{
    struct nf4_row row = begin_nf4(width, s->offset, first, s->of_group + first / GROUP, to);
    const float *known = tt_dynamic_map(true)->number;

    for (int64_t b = 0; b < row.blocks; b++) {
        float absmax = s->absmax[first + b], of_group = s->of_group[(first + b) / GROUP];

        to[row.numbers + b] =
            (uint8_t)nearest(known, TT_NF4_FACTORS, of_group > 0.0F ? (absmax - s->offset) / of_group : 0.0F);
        pack_nf4_block(x + b * NF4_BLOCK, 1.0F / fmaxf(absmax, 1e-38F), to + row.elements + b * NF4_BLOCK / 2);
    }
}

void tt_unpack_4bit(const uint8_t *values, int64_t first, int64_t n, const float *numbers, int64_t block,
                    const float *factors, float *to)
{
    int64_t byte = first / 2, of_first = first / block;

    for (int64_t i = first, end = first + n, some; i < end; i += some) {
        float factor = factors[i / block - of_first], scaled[TT_NF4_VALUES];

        some = block - i % block < end - i ? block - i % block : end - i;
        for (int k = 0; k < TT_NF4_VALUES; k++)
            scaled[k] = numbers[k] * factor;
        for (int64_t j = i; j < i + some; j++) {
            uint8_t pair = values[j / 2 - byte];

            *to++ = scaled[j % 2 ? pair & 15 : pair >> 4];
        }
    }
}

/* The factors of the blocks of a row, of which `table` has the numbers. */
struct nf4_factors {
    const float *table;
    const uint8_t *numbers, *of_groups;
    uint32_t in_group;
    float offset;
};

static struct nf4_factors nf4_factors_of(const uint8_t *row, const struct nf4_row *parts)
{
    struct nf4_factors f = {
        .table = tt_dynamic_map(true)->number, .numbers = row + parts->numbers, .of_groups = row + parts->factors};

    memcpy(&f.offset, row, sizeof f.offset);
    memcpy(&f.in_group, row + sizeof f.offset, sizeof f.in_group);
    return f;
}

static float nf4_factor(const struct nf4_factors *f, int64_t block)
{
    float of_group;

    memcpy(&of_group, f->of_groups + ((int64_t)f->in_group + block) / GROUP * (int64_t)sizeof of_group,
           sizeof of_group);
    return tt_unpack_factor(f->table, f->numbers[block], of_group, f->offset);
}

const uint8_t *tt_nf4_factors(const void *row, int64_t width, int64_t first, int64_t n, float *factors)
{
    struct nf4_row parts = nf4_row_of(width);
    struct nf4_factors f = nf4_factors_of(row, &parts);

    for (int64_t b = first; b < first + n; b++)
        *factors++ = nf4_factor(&f, b);
    return (const uint8_t *)row + parts.elements + first * NF4_BLOCK / 2;
}

/* Groups run over the matrix, so a part of a row may begin inside a group. */
static void cut_nf4(const uint8_t *row, int64_t width, int64_t begin, int64_t n, uint8_t *to)
{
    struct nf4_row from = nf4_row_of(width);
    int64_t block = begin / NF4_BLOCK, first;
    uint32_t in_group;
    float offset;

    memcpy(&offset, row, sizeof offset);
    memcpy(&in_group, row + sizeof offset, sizeof in_group);
    first = in_group + block;
    tt_nf4_row(n, offset, first, row + from.factors + first / GROUP * (int64_t)sizeof(float),
               row + from.numbers + block, row + from.elements + begin / 2, to);
}

static void unpack_nf4(const uint8_t *from, int64_t width, int64_t begin, int64_t n, float *to)
{
    for (int64_t end = begin + n; begin < end;) {
        int64_t block = begin / NF4_BLOCK, next = (block + 1) * NF4_BLOCK < end ? (block + 1) * NF4_BLOCK : end;
        float factor, elements[TT_NF4_VALUES];
        const uint8_t *numbers = tt_nf4_factors(from, width, block, 1, &factor);

        for (int k = 0; k < TT_NF4_VALUES; k++)
            elements[k] = tt_nf4_numbers[k] * factor;
        for (; begin < next; begin++) {
            uint8_t pair = numbers[begin % NF4_BLOCK / 2];

            *to++ = elements[begin % 2 ? pair & 15 : pair >> 4];
        }
    }
}

/* --- rows --- */

int64_t tt_packing_row_bytes(enum tt_packing_choice packing, int64_t width)
{
    switch (packing) {
    case TT_PACKING_BF16:
        return width * (int64_t)sizeof(tt_bf16);
    case TT_PACKING_INT8:
        return tt_round_up((int64_t)sizeof(float) + width, 2);
    case TT_PACKING_NF4:
        return nf4_row_of(width).bytes;
    case TT_PACKING_Q4_0:
        return width / BLOCK * Q4_BYTES;
    case TT_PACKING_Q8_0:
        return width / BLOCK * Q8_BYTES;
    default:
        return width * (int64_t)sizeof(float);
    }
}

static void pack_row(enum tt_packing_choice packing, const float *x, int64_t width, uint8_t *to)
{
    if (packing == TT_PACKING_INT8)
        pack_int8(x, width, to);
    for (int64_t i = 0; packing == TT_PACKING_Q8_0 && i < width; i += BLOCK, to += Q8_BYTES)
        pack_q8_0(x + i, to);
    for (int64_t i = 0; packing == TT_PACKING_Q4_0 && i < width; i += BLOCK, to += Q4_BYTES)
        pack_q4_0(x + i, to);
    for (int64_t i = 0; packing == TT_PACKING_BF16 && i < width; i++, to += sizeof(tt_bf16)) {
        tt_bf16 element = tt_bf16_from_float(x[i]);

        memcpy(to, &element, sizeof element);
    }
}

void tt_pack(enum tt_packing_choice packing, const float *x, int64_t rows, int64_t width, int64_t row, int64_t n,
             void *to)
{
    int64_t bytes = tt_packing_row_bytes(packing, width);
    struct nf4_scales scales = {0};

    if (n <= 0)
        return;
    if (packing == TT_PACKING_NF4)
        scales = nf4_scales_of(x, rows * (width / NF4_BLOCK));
    for (int64_t r = row; r < row + n; r++) {
        uint8_t *at = (uint8_t *)to + (r - row) * bytes;

        if (packing == TT_PACKING_NF4)
            pack_nf4(&scales, x + r * width, width, r * (width / NF4_BLOCK), at);
        else
            pack_row(packing, x + r * width, width, at);
    }
    tt_free(scales.absmax);
    tt_free(scales.of_group);
}

void tt_unpack(enum tt_packing_choice packing, const void *row, int64_t width, int64_t begin, int64_t n, float *to)
{
    const uint8_t *from = row;
    float largest;

    switch (packing) {
    case TT_PACKING_BF16:
        for (int64_t i = 0; i < n; i++) {
            tt_bf16 element;

            memcpy(&element, from + (begin + i) * (int64_t)sizeof element, sizeof element);
            to[i] = tt_bf16_to_float(element);
        }
        break;
    case TT_PACKING_INT8:
        memcpy(&largest, from, sizeof largest);
        tt_unpack_int8((const int8_t *)from + sizeof largest + begin, largest, n, to);
        break;
    case TT_PACKING_NF4:
        unpack_nf4(from, width, begin, n, to);
        break;
    case TT_PACKING_Q4_0:
    case TT_PACKING_Q8_0:
        unpack_blocks(packing, from, begin, n, to);
        break;
    default:
        memcpy(to, (const float *)row + begin, (size_t)n * sizeof *to);
    }
}

void tt_packing_cut(enum tt_packing_choice packing, const void *row, int64_t width, int64_t begin, int64_t n, void *to)
{
    const uint8_t *from = row;
    float largest;

    switch (packing) {
    case TT_PACKING_INT8:
        memcpy(&largest, from, sizeof largest);
        tt_int8_row(n, largest, (const int8_t *)from + sizeof largest + begin, to);
        break;
    case TT_PACKING_NF4:
        cut_nf4(from, width, begin, n, to);
        break;
    default: /* blocks, one after the other */
        memcpy(to, from + tt_packing_row_bytes(packing, begin), (size_t)tt_packing_row_bytes(packing, n));
    }
}

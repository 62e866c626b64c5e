/* SPDX-License-Identifier: MIT
 *
 * A matrix in fewer bits (core/math/packing.h): its elements, for matrix products, and its product with one or several
 * vectors, straight from the rows in memory: reading them limits the speed, so elements become floats in registers.
 *
 * Rows are read four at a time: they share the loads of the vectors and hide the latency of each other's sums.
 * Scales are widened first, for 16 units of 32 elements, because a scale by itself would take as long as its elements.
 * Every product of a row and a vector is summed in one order, whatever the other rows and vectors are.
 */
#include "core/kernels/vector/element.h"
#include "core/math/bf16.h"
#include "core/math/packing.h"

enum {
    ROWS = 4,
    VECTORS = 4,
    UNIT = 32, /* elements: a block of GGUF, half a block of nf4 */
    SOME = 16, /* units whose scales are widened together */
    SCALE = 2, /* bytes, before the elements of a block of GGUF */
    LINE = 64,
    LONG = 16384 /* bytes of a row: of longer ones, the processor prefetches enough by itself */
};

/* The rows, with all that the loops need as constants. */
struct rows {
    const uint8_t *w;
    int64_t bytes, width; /* of a row */
    const element *x;
    int64_t vectors; /* they lie one after the other */
    float *y;
    int64_t y_row; /* between the results of two vectors */
};

/* The next rows, as they lie in memory, while those before them are read. */
VF_INLINE void prefetch(const uint8_t *next, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += LINE)
        __builtin_prefetch(next + at, 0, 3);
}

/* --- blocks with scales --- */

/* The bytes from a unit to the next. */
VF_INLINE int64_t stride_of(enum tt_packing_choice packing)
{
    return packing == TT_PACKING_Q8_0 ? SCALE + UNIT : packing == TT_PACKING_Q4_0 ? SCALE + UNIT / 2 : UNIT / 2;
}

/* The scales of n units from `first` on. Returns the first unit's elements. */
VF_INLINE const uint8_t *scales_of(enum tt_packing_choice packing, const uint8_t *row, int64_t width, int64_t first,
                                   int64_t n, float *scales)
{
    int64_t stride = stride_of(packing);
    const uint8_t *at = row + first * stride;
    uint16_t halves[SOME] = {0};

    if (packing == TT_PACKING_NF4) {
        float factors[SOME / 2];
        const uint8_t *elements = tt_nf4_factors(row, width, first / 2, n / 2, factors);

        for (int64_t i = 0; i < n; i++)
            scales[i] = factors[i / 2];
        return elements;
    }
    for (int64_t i = 0; i < n; i++)
        memcpy(&halves[i], at + i * stride, sizeof *halves);
    VF_UNROLL
    for (int64_t i = 0; i < SOME; i += VF_LANES)
        vf_store(scales + i, vf_of_f16(halves + i));
    return at + SCALE;
}

/* The two halves of a unit's elements: the first and the last ones; for nf4, the even and the odd ones. */
VF_INLINE void widen(enum tt_packing_choice packing, const uint8_t *unit, float scale, vs table, vs *ret_a, vs *ret_b)
{
    if (packing == TT_PACKING_Q8_0) {
        *ret_a = vs_mul(vs_set(scale), vs_of_bytes((const int8_t *)unit));
        *ret_b = vs_mul(vs_set(scale), vs_of_bytes((const int8_t *)unit + VS_LANES));
    } else if (packing == TT_PACKING_Q4_0) {
        vs_choose(vs_mul(vs_set(scale), table), unit, ret_a, ret_b);
    } else {
        vs_choose(vs_mul(vs_set(scale), table), unit, ret_b, ret_a);
    }
}

/* The numbers of the 16 elements of 4 bits, as floats: an element of nf4, or of q4_0 without its scale. */
VF_INLINE vs numbers_of_4bit(enum tt_packing_choice packing)
{
    static const float four_bits[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

    return vs_load(packing == TT_PACKING_NF4 ? tt_nf4_numbers : four_bits);
}

/* The elements of a vector that belong to these halves. */
VF_INLINE void load_unit(enum tt_packing_choice packing, const element *x, vs *ret_a, vs *ret_b)
{
    vs low = elements_load(x), high = elements_load(x + VS_LANES);

    if (packing != TT_PACKING_NF4) {
        *ret_a = low;
        *ret_b = high;
        return;
    }
    VF_UNROLL
    for (int64_t i = 0; i < VS_PARTS; i++) {
        int64_t at = 2 * i % VS_PARTS;
        bool second = 2 * i >= VS_PARTS;
        vf left = second ? high.part[at] : low.part[at];
        vf right = VS_PARTS == 1 ? high.part[0] : second ? high.part[at + 1] : low.part[at + 1];

        ret_a->part[i] = vf_every_other(left, right, 0);
        ret_b->part[i] = vf_every_other(left, right, 1);
    }
}

/* `packing`, `n_rows` and `n_vectors` are constants. */
VF_INLINE void block_rows(const struct rows *of, enum tt_packing_choice packing, int64_t row, int64_t vector,
                          int n_rows, int n_vectors)
{
    const vs table = numbers_of_4bit(packing);
    const uint8_t *w = of->w + row * of->bytes, *next = w + n_rows * of->bytes;
    const element *x = of->x + vector * of->width;
    const int64_t units = of->width / UNIT, stride = stride_of(packing);
    const bool ahead = vector == 0 && n_rows == ROWS && of->bytes < LONG;
    vs sum[ROWS][VECTORS];

    VF_UNROLL
    for (int r = 0; r < n_rows; r++) {
        VF_UNROLL
        for (int v = 0; v < n_vectors; v++)
            sum[r][v] = vs_zero();
    }
    for (int64_t first = 0; first < units; first += SOME) {
        int64_t n = units - first < SOME ? units - first : SOME;
        float scales[ROWS][SOME];
        const uint8_t *unit[ROWS];

        VF_UNROLL
        for (int r = 0; r < n_rows; r++)
            unit[r] = scales_of(packing, w + r * of->bytes, of->width, first, n, scales[r]);
        for (int64_t u = 0; u < n; u++) {
            vs left[VECTORS], right[VECTORS];

            if (ahead)
                prefetch(next + (first + u) * n_rows * stride, n_rows * stride);
            VF_UNROLL
            for (int v = 0; v < n_vectors; v++)
                load_unit(packing, x + v * of->width + (first + u) * UNIT, &left[v], &right[v]);
            VF_UNROLL
            for (int r = 0; r < n_rows; r++) {
                vs a, b;

                widen(packing, unit[r] + u * stride, scales[r][u], table, &a, &b);
                VF_UNROLL
                for (int v = 0; v < n_vectors; v++)
                    sum[r][v] = vs_fma(b, right[v], vs_fma(a, left[v], sum[r][v]));
            }
        }
    }
    VF_UNROLL
    for (int r = 0; r < n_rows; r++) {
        VF_UNROLL
        for (int v = 0; v < n_vectors; v++)
            of->y[(vector + v) * of->y_row + row + r] = vs_sum(sum[r][v]);
    }
}

/* --- rows of numbers of one size --- */

VF_INLINE vs numbers_of(enum tt_packing_choice packing, const uint8_t *row, int64_t i, int64_t n)
{
    uint8_t some[2 * VS_LANES] = {0};
    const int64_t size = packing == TT_PACKING_INT8 ? 1 : 2;
    const uint8_t *at = row + (packing == TT_PACKING_INT8 ? (int64_t)sizeof(float) : 0) + i * size;
    vs a;

    if (n < VS_LANES) {
        memcpy(some, at, (size_t)(n * size));
        at = some;
    }
    if (packing == TT_PACKING_INT8)
        return vs_of_bytes((const int8_t *)at);
    VF_UNROLL
    for (int64_t p = 0; p < VS_PARTS; p++)
        a.part[p] = bf16_load((const tt_bf16 *)(const void *)at + p * VF_LANES);
    return a;
}

VF_INLINE void add_numbers(const struct rows *of, enum tt_packing_choice packing, const uint8_t *w, const element *x,
                           int64_t i, int64_t n, int n_rows, int n_vectors, vs (*sum)[VECTORS])
{
    vs part[VECTORS];

    VF_UNROLL
    for (int v = 0; v < n_vectors; v++)
        part[v] = n < VS_LANES ? elements_load_n(x + v * of->width + i, n) : elements_load(x + v * of->width + i);
    VF_UNROLL
    for (int r = 0; r < n_rows; r++) {
        vs a = numbers_of(packing, w + r * of->bytes, i, n);

        VF_UNROLL
        for (int v = 0; v < n_vectors; v++)
            sum[r][v] = vs_fma(a, part[v], sum[r][v]);
    }
}

VF_INLINE void plain_rows(const struct rows *of, enum tt_packing_choice packing, int64_t row, int64_t vector,
                          int n_rows, int n_vectors)
{
    const uint8_t *w = of->w + row * of->bytes, *next = w + n_rows * of->bytes;
    const element *x = of->x + vector * of->width;
    const int64_t step = packing == TT_PACKING_INT8 ? VS_LANES : 2 * VS_LANES;
    const bool ahead = vector == 0 && n_rows == ROWS && of->bytes < LONG;
    vs sum[ROWS][VECTORS];
    int64_t i = 0;

    VF_UNROLL
    for (int r = 0; r < n_rows; r++) {
        VF_UNROLL
        for (int v = 0; v < n_vectors; v++)
            sum[r][v] = vs_zero();
    }
    for (; i + VS_LANES <= of->width; i += VS_LANES) {
        if (ahead)
            prefetch(next + i / VS_LANES * n_rows * step, n_rows * step);
        add_numbers(of, packing, w, x, i, VS_LANES, n_rows, n_vectors, sum);
    }
    if (i < of->width)
        add_numbers(of, packing, w, x, i, of->width - i, n_rows, n_vectors, sum);
    VF_UNROLL
    for (int r = 0; r < n_rows; r++) {
        VF_UNROLL
        for (int v = 0; v < n_vectors; v++) {
            float *y = &of->y[(vector + v) * of->y_row + row + r], largest;

            *y = vs_sum(sum[r][v]);
            if (packing == TT_PACKING_INT8) {
                memcpy(&largest, w + r * of->bytes, sizeof largest);
                *y = *y * largest * TT_INT8_STEP;
            }
        }
    }
}

/* --- all rows --- */

VF_INLINE void some_rows(const struct rows *of, enum tt_packing_choice packing, int64_t row, int n_rows)
{
    int64_t v = 0;

    if (packing == TT_PACKING_INT8 || packing == TT_PACKING_BF16) {
        for (; v + VECTORS <= of->vectors; v += VECTORS)
            plain_rows(of, packing, row, v, n_rows, VECTORS);
        for (; v < of->vectors; v++)
            plain_rows(of, packing, row, v, n_rows, 1);
    } else {
        for (; v + VECTORS <= of->vectors; v += VECTORS)
            block_rows(of, packing, row, v, n_rows, VECTORS);
        for (; v < of->vectors; v++)
            block_rows(of, packing, row, v, n_rows, 1);
    }
}

/* A function for each packing, which is a constant in it. */
#define PACKED(packing)                                                                           \
    static __attribute__((noinline)) void all_rows_##packing(const struct rows *of, int64_t rows) \
    {                                                                                             \
        int64_t r = 0;                                                                            \
                                                                                                  \
        for (; r + ROWS <= rows; r += ROWS)                                                       \
            some_rows(of, packing, r, ROWS);                                                      \
        for (; r < rows; r++)                                                                     \
            some_rows(of, packing, r, 1);                                                         \
    }
PACKED(TT_PACKING_BF16)
PACKED(TT_PACKING_INT8)
PACKED(TT_PACKING_NF4)
PACKED(TT_PACKING_Q4_0)
PACKED(TT_PACKING_Q8_0)

void TT_TYPED(tt_gemv_packed)(float *y, const struct tt_packed_rows *w, const element *x)
{
    static void (*const all_rows[TT_PACKINGS])(const struct rows *of, int64_t rows) = {
#define X(packing, name, block) [packing] = all_rows_##packing,
        TT_PACKING_MAP(X)
#undef X
    };
    const struct rows of = {.w = w->data,
                            .bytes = tt_packing_row_bytes(w->packing, w->width),
                            .width = w->width,
                            .x = x,
                            .vectors = w->vectors,
                            .y = y,
                            .y_row = w->y_row};

    all_rows[w->packing](&of, w->rows);
}

/* --- elements of a row --- */

/* The elements of a unit of 4 bits. */
VF_INLINE void store_4bit(enum tt_packing_choice packing, element *to, const uint8_t *unit, vs scaled)
{
#if defined(TT_ELEMENT_BF16)
    vh table[VS_PARTS];

    VS_EACH(i) table[i] = vh_rounded(scaled.part[i]);
    vh_choose(to, table, unit, packing == TT_PACKING_NF4);
#else
    uint8_t numbers[UNIT];

    for (int64_t i = 0; i < UNIT / 2; i++) {
        numbers[packing == TT_PACKING_NF4 ? 2 * i + 1 : i] = unit[i] & 15;
        numbers[packing == TT_PACKING_NF4 ? 2 * i : i + UNIT / 2] = unit[i] >> 4;
    }
    VF_UNROLL
    for (int64_t i = 0; i < UNIT; i += VF_LANES)
        vf_store(to + i, vf_choose(scaled.part, vn_load(numbers + i)));
#endif
}

/* n elements from the beginning of a block on. `packing` is a constant, which has scales. */
VF_INLINE void unpack_units(enum tt_packing_choice packing, element *to, const uint8_t *row, int64_t width,
                            int64_t begin, int64_t n)
{
    const vs table = numbers_of_4bit(packing);
    const int64_t stride = stride_of(packing), first = begin / UNIT, units = n / UNIT;

    for (int64_t at = 0; at < units; at += SOME) {
        int64_t some = units - at < SOME ? units - at : SOME;
        float scales[SOME];
        const uint8_t *unit = scales_of(packing, row, width, first + at, some, scales);

        for (int64_t u = 0; u < some; u++, unit += stride, to += UNIT) {
            vs scale = vs_set(scales[u]);

            if (packing != TT_PACKING_Q8_0) {
                store_4bit(packing, to, unit, vs_mul(scale, table));
                continue;
            }
            elements_store(to, vs_mul(scale, vs_of_bytes((const int8_t *)unit)));
            elements_store(to + VS_LANES, vs_mul(scale, vs_of_bytes((const int8_t *)unit + VS_LANES)));
        }
    }
}

/* `packing` is a constant, which has none. */
VF_INLINE void unpack_numbers(enum tt_packing_choice packing, element *to, const uint8_t *row, int64_t begin, int64_t n)
{
    float largest = 0.0F;

    if (packing == TT_PACKING_INT8)
        memcpy(&largest, row, sizeof largest);
    for (int64_t i = 0; i < n; i += VS_LANES) {
        vs x = numbers_of(packing, row, begin + i, n - i);

        if (packing == TT_PACKING_INT8)
            x = vs_mul(vs_mul(x, vs_set(largest)), vs_set(TT_INT8_STEP));
        elements_store_n(to + i, x, n - i);
    }
}

/* n elements, whole blocks. */
static void unpack_blocks(enum tt_packing_choice packing, element *to, const void *row, int64_t width, int64_t begin,
                          int64_t n)
{
    if (packing == TT_PACKING_NF4)
        unpack_units(TT_PACKING_NF4, to, row, width, begin, n);
    else if (packing == TT_PACKING_Q4_0)
        unpack_units(TT_PACKING_Q4_0, to, row, width, begin, n);
    else if (packing == TT_PACKING_Q8_0)
        unpack_units(TT_PACKING_Q8_0, to, row, width, begin, n);
    else if (packing == TT_PACKING_INT8)
        unpack_numbers(TT_PACKING_INT8, to, row, begin, n);
    else
        unpack_numbers(TT_PACKING_BF16, to, row, begin, n);
}

void TT_TYPED(tt_unpack)(element *to, enum tt_packing_choice packing, const void *row, int64_t width, int64_t begin,
                         int64_t n)
{
    int64_t size = tt_packing_block(packing);
    element block[TT_NF4_BLOCK];

    for (int64_t some; n > 0; begin += some, to += some, n -= some) {
        int64_t at = begin % size;

        if (at == 0 && n >= size) {
            some = n / size * size;
            unpack_blocks(packing, to, row, width, begin, some);
        } else {
            some = size - at < n ? size - at : n;
            unpack_blocks(packing, block, row, width, begin - at, size);
            memcpy(to, block + at, (size_t)some * sizeof *to);
        }
    }
}

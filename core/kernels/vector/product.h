/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_VECTOR_PRODUCT_H
#define TT_CORE_KERNELS_VECTOR_PRODUCT_H

/**
 * The matrix product of attention's tiles. A library's sgemm packs its operands and is called through several layers;
 * these products are too small for that, and their operands are already packed.
 *
 *     c[r][v] = [c[r][v] +] sum over p < k of a[r a_row + p a_step] * b[p b_step + v]      r < n, v < columns
 *
 * An element of a is broadcast, b and c are vectors along v. In registers: PRODUCT_ROWS rows of c of up to
 * PRODUCT_VECTORS vectors, which hides the latency of fma and loads less than one operand per fma. k is summed
 * in order, by fma. With AVX512-BF16, an element of a or b is a pair of bfloat16 (bf16.h), and k counts pairs.
 */
#include "core/kernels/vector/simd.h"

#if defined(__AVX512BF16__)
#include "core/kernels/vector/bf16.h"

typedef tt_bf16 product_type;
typedef vp product_vector;
enum { PRODUCT_STEP = 2 }; /* elements of the type in an element of a or b */
#define PRODUCT_LOAD(x)               vp_load(x)
#define PRODUCT_SET(x)                vp_set(x)
#define PRODUCT_ADD(left, right, sum) vp_dot(left, right, sum)
#else
typedef float product_type;
typedef vf product_vector;
enum { PRODUCT_STEP = 1 };
#define PRODUCT_LOAD(x)               vf_load(x)
#define PRODUCT_SET(x)                vf_set(*(x))
#define PRODUCT_ADD(left, right, sum) vf_fma(left, right, sum)
#endif

enum { PRODUCT_ROWS = VF_REGISTERS == 32 ? 8 : 4, PRODUCT_VECTORS = 3 };
enum { PRODUCT_ROWS_OF_ONE = 2 * PRODUCT_ROWS }; /* of one vector: fewer would wait for each other's sums */

/* The bits of attention depend on where its panels begin and on what part of a diagonal is masked: both are counted in
 * lanes that do not depend on the processor. */
#define PANEL INT64_C(48)
#define GROUP INT64_C(16)
_Static_assert(PANEL == TT_ATTENTION_PANEL && PANEL % GROUP == 0 && GROUP % VF_LANES == 0, "whole vectors");

struct product {
    float *c;
    const product_type *a, *b;
    int64_t c_row, a_row, a_step, b_step; /* elements */
    int64_t k;
};

/* Callers pass n and nv as constants. */
VF_INLINE void product_registers(const struct product *x, int64_t row, int n, int nv, bool add)
{
    vf sum[PRODUCT_ROWS_OF_ONE][PRODUCT_VECTORS];
    const product_type *a = x->a + row * x->a_row * PRODUCT_STEP, *b = x->b;
    float *c = x->c + row * x->c_row;
    int64_t a_row = x->a_row * PRODUCT_STEP, a_step = x->a_step * PRODUCT_STEP, b_step = x->b_step * PRODUCT_STEP;

    VF_UNROLL
    for (int64_t r = 0; r < n; r++) {
        VF_UNROLL
        for (int64_t v = 0; v < nv; v++)
            sum[r][v] = add ? vf_load(c + r * x->c_row + v * VF_LANES) : vf_zero();
    }
    for (int64_t p = x->k; p > 0; p--, a += a_step, b += b_step) {
        product_vector right[PRODUCT_VECTORS];

        VF_UNROLL
        for (int64_t v = 0; v < nv; v++)
            right[v] = PRODUCT_LOAD(b + v * VF_LANES * PRODUCT_STEP);
        VF_UNROLL
        for (int64_t r = 0; r < n; r++) {
            product_vector left = PRODUCT_SET(a + r * a_row);

            VF_UNROLL
            for (int64_t v = 0; v < nv; v++)
                sum[r][v] = PRODUCT_ADD(left, right[v], sum[r][v]);
        }
    }
    VF_UNROLL
    for (int64_t r = 0; r < n; r++) {
        VF_UNROLL
        for (int64_t v = 0; v < nv; v++)
            vf_store(c + r * x->c_row + v * VF_LANES, sum[r][v]);
    }
}

VF_INLINE void product_all_rows(const struct product *x, int64_t n, int nv, bool add)
{
    int64_t row = 0;

    for (; nv == 1 && row + PRODUCT_ROWS_OF_ONE <= n; row += PRODUCT_ROWS_OF_ONE)
        product_registers(x, row, PRODUCT_ROWS_OF_ONE, 1, add);
    for (; row + PRODUCT_ROWS <= n; row += PRODUCT_ROWS)
        product_registers(x, row, PRODUCT_ROWS, nv, add);
    if (PRODUCT_ROWS > 4 && row + 4 <= n) {
        product_registers(x, row, 4, nv, add);
        row += 4;
    }
    if (row + 2 <= n) {
        product_registers(x, row, 2, nv, add);
        row += 2;
    }
    if (row < n)
        product_registers(x, row, 1, nv, add);
}

VF_INLINE void product_any(struct product *x, int64_t n, int64_t columns, bool add)
{
    for (int64_t left = columns / VF_LANES, some; left > 0; left -= some) {
        some = left == 4 ? 2 : left < PRODUCT_VECTORS ? left : PRODUCT_VECTORS;
        if (some == 3) {
            product_all_rows(x, n, 3, add);
        } else if (some == 2) {
            product_all_rows(x, n, 2, add);
        } else {
            product_all_rows(x, n, 1, add);
        }
        x->b += some * VF_LANES * PRODUCT_STEP;
        x->c += some * VF_LANES;
    }
}

/* a's rows are contiguous: c = a b, c (n, columns), a (n, k), b (k, columns); columns are whole vectors. */
static __attribute__((noinline, unused)) void product_rows(float *c, int64_t c_row, const product_type *a,
                                                           int64_t a_row, const product_type *b, int64_t b_step,
                                                           int64_t n, int64_t columns, int64_t k)
{
    struct product x = {c, a, b, c_row, a_row, 1, b_step, k};

    product_any(&x, n, columns, false);
}

/* c += a b. */
static __attribute__((noinline, unused)) void product_rows_add(float *c, int64_t c_row, const product_type *a,
                                                               int64_t a_row, const product_type *b, int64_t b_step,
                                                               int64_t n, int64_t columns, int64_t k)
{
    struct product x = {c, a, b, c_row, a_row, 1, b_step, k};

    product_any(&x, n, columns, true);
}

/* a's columns are contiguous: c += a^T b, a stored (k, n) with rows of a_step. */
static __attribute__((noinline, unused)) void product_columns_add(float *c, int64_t c_row, const product_type *a,
                                                                  int64_t a_step, const product_type *b, int64_t b_step,
                                                                  int64_t n, int64_t columns, int64_t k)
{
    struct product x = {c, a, b, c_row, 1, a_step, b_step, k};

    product_any(&x, n, columns, true);
}

#endif

/* SPDX-License-Identifier: MIT
 *
 * Kernels over rows: RMSNorm, LayerNorm, sums over rows, scattered rows, the rows of experts, and
 * products with a vector.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/kernels/vector/element.h"
#include "core/kernels/vector/simd.h"

/*
 * The sum of a row: ROW_SUMS times sixteen partial sums take turns, so that additions need not wait for each other; the
 * remainder at the row's end is added to the first of them. The order depends on the width only.
 */
enum { ROW_SUMS = 4, ROW_STEP = ROW_SUMS * VS_LANES };

VF_INLINE float row_total(const vs *sum)
{
    return vs_sum(vs_add(vs_add(sum[0], sum[1]), vs_add(sum[2], sum[3])));
}

VF_INLINE float row_squares(const element *x, int64_t width)
{
    vs sum[ROW_SUMS] = {vs_zero(), vs_zero(), vs_zero(), vs_zero()}, v;
    int64_t i = 0;

    for (; i + ROW_STEP <= width; i += ROW_STEP) {
        VF_UNROLL
        for (int64_t s = 0; s < ROW_SUMS; s++) {
            v = elements_load(x + i + s * VS_LANES);
            sum[s] = vs_fma(v, v, sum[s]);
        }
    }
    for (; i < width; i += VS_LANES) {
        v = elements_load_n(x + i, width - i);
        sum[0] = vs_fma(v, v, sum[0]);
    }
    return row_total(sum);
}

void TT_TYPED(tt_rmsnorm_fwd)(element *y, float *rstd, const element *x, const element *w, float offset, int64_t rows,
                              int64_t width, float eps)
{
    for (int64_t r = 0; r < rows; r++, x += width, y += width) {
        float scale = 1.0F / sqrtf(row_squares(x, width) / (float)width + eps);
        vf scales = vf_set(scale), offsets = vf_set(offset);
        int64_t i = 0;

        rstd[r] = scale;
        for (; i + VF_LANES <= width; i += VF_LANES)
            element_store(y + i, vf_mul(vf_mul(element_load(x + i), scales), vf_add(element_load(w + i), offsets)));
        if (i < width)
            element_store_n(y + i,
                            vf_mul(vf_mul(element_load_n(x + i, width - i), scales),
                                   vf_add(element_load_n(w + i, width - i), offsets)),
                            width - i);
    }
}

/* One row's dot(dy (w + offset), x). */
VF_INLINE float row_dot(const element *dy, const element *x, const element *w, vs offset, int64_t width)
{
    vs sum[ROW_SUMS] = {vs_zero(), vs_zero(), vs_zero(), vs_zero()};
    int64_t i = 0;

    for (; i + ROW_STEP <= width; i += ROW_STEP) {
        VF_UNROLL
        for (int64_t s = 0; s < ROW_SUMS; s++) {
            int64_t at = i + s * VS_LANES;

            sum[s] = vs_fma(vs_mul(elements_load(dy + at), vs_add(elements_load(w + at), offset)),
                            elements_load(x + at), sum[s]);
        }
    }
    for (; i < width; i += VS_LANES)
        sum[0] = vs_fma(vs_mul(elements_load_n(dy + i, width - i), vs_add(elements_load_n(w + i, width - i), offset)),
                        elements_load_n(x + i, width - i), sum[0]);
    return row_total(sum);
}

/* scale (dy (w + offset) - x mean) for n <= VF_LANES elements; adds dy x scale to dw. */
VF_INLINE vf rows_row_grads(float *dw, const element *dy, const element *x, const element *w, vf offset, vf scale,
                            vf mean, int64_t n)
{
    vf g = element_load_n(dy, n), v = element_load_n(x, n);

    vf_store_n(dw, vf_fma(g, vf_mul(v, scale), vf_load_n(dw, n)), n);
    return vf_mul(scale, vf_fnma(v, mean, vf_mul(g, vf_add(element_load_n(w, n), offset))));
}

void TT_TYPED(tt_rmsnorm_bwd)(element *dx, float *dw, const element *acc, const element *dy, const element *x,
                              const element *w, float offset, const float *rstd, int64_t rows, int64_t width)
{
    memset(dw, 0, (size_t)width * sizeof *dw);
    for (int64_t r = 0; r < rows; r++, dy += width, x += width, dx += width) {
        vf scales = vf_set(rstd[r]), offsets = vf_set(offset), v;
        vf means = vf_set(row_dot(dy, x, w, vs_set(offset), width) * rstd[r] / (float)width * rstd[r]);
        int64_t i = 0;

        for (; i + VF_LANES <= width; i += VF_LANES) {
            v = rows_row_grads(dw + i, dy + i, x + i, w + i, offsets, scales, means, VF_LANES);
            element_store(dx + i, acc ? vf_add(element_load(acc + i), v) : v);
        }
        if (i < width) {
            v = rows_row_grads(dw + i, dy + i, x + i, w + i, offsets, scales, means, width - i);
            element_store_n(dx + i, acc ? vf_add(element_load_n(acc + i, width - i), v) : v, width - i);
        }
        acc = acc ? acc + width : NULL;
    }
}

void TT_TYPED(tt_sum_rows)(float *y, const float *acc, const element *x, int64_t rows, int64_t width, int64_t columns)
{
    for (int64_t c = 0; c < columns; c += VF_LANES) {
        int64_t n = columns - c;
        vf sum = vf_zero();

        for (int64_t r = 0; r < rows; r++)
            sum = vf_add(sum, element_load_n(x + r * width + c, n));
        vf_store_n(y + c, acc ? vf_add(vf_load_n(acc + c, n), sum) : sum, n);
    }
}

void TT_TYPED(tt_scatter_add)(float *dw, const element *dx, const int32_t *tokens, int64_t n, int64_t width,
                              int64_t columns)
{
    for (int64_t i = 0; i < n; i++) {
        float *to = dw + tokens[i] * width;
        const element *from = dx + i * width;

        for (int64_t c = 0; c < columns; c += VF_LANES)
            vf_store_n(to + c, vf_add(vf_load_n(to + c, columns - c), element_load_n(from + c, columns - c)),
                       columns - c);
    }
}

/* --- LayerNorm --- */

VF_INLINE float row_mean(const element *x, int64_t width)
{
    vs sum[ROW_SUMS] = {vs_zero(), vs_zero(), vs_zero(), vs_zero()};
    int64_t i = 0;

    for (; i + ROW_STEP <= width; i += ROW_STEP) {
        VF_UNROLL
        for (int64_t s = 0; s < ROW_SUMS; s++)
            sum[s] = vs_add(sum[s], elements_load(x + i + s * VS_LANES));
    }
    for (; i < width; i += VS_LANES)
        sum[0] = vs_add(sum[0], elements_load_n(x + i, width - i));
    return row_total(sum) / (float)width;
}

/* x - mean in the lanes below n, 0 in the others. */
VF_INLINE vs centred(const element *x, vs mean, int64_t n)
{
    return vs_select_first(n, vs_sub(elements_load_n(x, n), mean), vs_zero());
}

/* The mean of (x - mean)^2, in a separate pass, because mean(x^2) - mean^2 cancels. */
VF_INLINE float row_variance(const element *x, float mean, int64_t width)
{
    vs sum[ROW_SUMS] = {vs_zero(), vs_zero(), vs_zero(), vs_zero()}, middle = vs_set(mean), v;
    int64_t i = 0;

    for (; i + ROW_STEP <= width; i += ROW_STEP) {
        VF_UNROLL
        for (int64_t s = 0; s < ROW_SUMS; s++) {
            v = vs_sub(elements_load(x + i + s * VS_LANES), middle);
            sum[s] = vs_fma(v, v, sum[s]);
        }
    }
    for (; i < width; i += VS_LANES) {
        v = centred(x + i, middle, width - i);
        sum[0] = vs_fma(v, v, sum[0]);
    }
    return row_total(sum) / (float)width;
}

void TT_TYPED(tt_layernorm_fwd)(element *y, float *mean, float *rstd, const element *x, const element *w,
                                const element *b, int64_t rows, int64_t width, float eps)
{
    for (int64_t r = 0; r < rows; r++, x += width, y += width) {
        vf middle, scale;

        mean[r] = row_mean(x, width);
        rstd[r] = 1.0F / sqrtf(row_variance(x, mean[r], width) + eps);
        middle = vf_set(mean[r]);
        scale = vf_set(rstd[r]);
        for (int64_t i = 0, n = width; i < width; i += VF_LANES, n -= VF_LANES) {
            vf v = vf_mul(vf_sub(element_load_n(x + i, n), middle), scale);

            element_store_n(y + i, vf_fma(v, element_load_n(w + i, n), b ? element_load_n(b + i, n) : vf_zero()), n);
        }
    }
}

/* The means over a row of dy w and of dy w (x - mean), in two times sixteen partial sums each: more would not fit into
 * the registers of AVX2. */
VF_INLINE void row_dots(const element *dy, const element *x, const element *w, vs mean, int64_t width, float *ret_plain,
                        float *ret_with_x)
{
    vs plain[2] = {vs_zero(), vs_zero()}, with_x[2] = {vs_zero(), vs_zero()}, g;
    int64_t i = 0;

    for (; i + 2 * VS_LANES <= width; i += 2 * VS_LANES) {
        VF_UNROLL
        for (int64_t s = 0; s < 2; s++) {
            int64_t at = i + s * VS_LANES;

            g = vs_mul(elements_load(dy + at), elements_load(w + at));
            plain[s] = vs_add(plain[s], g);
            with_x[s] = vs_fma(g, vs_sub(elements_load(x + at), mean), with_x[s]);
        }
    }
    for (; i < width; i += VS_LANES) {
        g = vs_mul(elements_load_n(dy + i, width - i), elements_load_n(w + i, width - i));
        plain[0] = vs_add(plain[0], g);
        with_x[0] = vs_fma(g, centred(x + i, mean, width - i), with_x[0]);
    }
    *ret_plain = vs_sum(vs_add(plain[0], plain[1])) / (float)width;
    *ret_with_x = vs_sum(vs_add(with_x[0], with_x[1])) / (float)width;
}

void TT_TYPED(tt_layernorm_bwd)(const struct tt_layernorm_grads *of, int64_t rows, int64_t width)
{
    int64_t groups = tt_layernorm_groups(of);

    memset(of->dw, 0, (size_t)(groups * width) * sizeof *of->dw);
    if (of->db)
        memset(of->db, 0, (size_t)(groups * width) * sizeof *of->db);
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = r % groups * width;
        const element *dy = (const element *)of->dy + r * width, *x = (const element *)of->x + r * width;
        const element *acc = of->acc ? (const element *)of->acc + r * width : NULL, *w = (const element *)of->w + at;
        element *dx = (element *)of->dx + r * width;
        float plain, with_x, *dw = of->dw + at, *db = of->db ? of->db + at : NULL;
        vf mean = vf_set(of->mean[r]), scale = vf_set(of->rstd[r]), plains, with_xs;

        row_dots(dy, x, w, vs_set(of->mean[r]), width, &plain, &with_x);
        plains = vf_set(plain);
        with_xs = vf_set(with_x * of->rstd[r] * of->rstd[r]);
        for (int64_t i = 0, n = width; i < width; i += VF_LANES, n -= VF_LANES) {
            vf g = element_load_n(dy + i, n), v = vf_sub(element_load_n(x + i, n), mean), d;

            vf_store_n(dw + i, vf_fma(g, vf_mul(v, scale), vf_load_n(dw + i, n)), n);
            if (db)
                vf_store_n(db + i, vf_add(g, vf_load_n(db + i, n)), n);
            d = vf_sub(vf_mul(g, element_load_n(w + i, n)), plains);
            d = vf_mul(scale, vf_fnma(v, with_xs, d));
            element_store_n(dx + i, acc ? vf_add(element_load_n(acc + i, n), d) : d, n);
        }
    }
}

/* --- columns times magnitudes --- */

VF_INLINE vf roots(const float *squares, int64_t n)
{
    return vf_sqrt(vf_max(vf_load_n(squares, n), vf_set(FLT_MIN)));
}

void TT_TYPED(tt_dora_fwd)(element *y, const element *x, const element *m, const float *squares, int64_t rows,
                           int64_t width)
{
    for (int64_t i = 0, n = width; i < width; i += VF_LANES, n -= VF_LANES) {
        vf factor = vf_div(element_load_n(m + i, n), roots(squares + i, n));

        for (int64_t r = 0; r < rows; r++)
            element_store_n(y + r * width + i, vf_mul(element_load_n(x + r * width + i, n), factor), n);
    }
}

void TT_TYPED(tt_dora_bwd)(element *dx, float *dm, const element *acc, const element *dy, const element *x,
                           const element *m, const float *squares, int64_t rows, int64_t width)
{
    for (int64_t i = 0, n = width; i < width; i += VF_LANES, n -= VF_LANES) {
        vf root = roots(squares + i, n), factor = vf_div(element_load_n(m + i, n), root), sum = vf_zero();

        for (int64_t r = 0; r < rows; r++) {
            int64_t at = r * width + i;
            vf g = element_load_n(dy + at, n), grad = vf_mul(g, factor);

            sum = vf_fma(g, element_load_n(x + at, n), sum);
            element_store_n(dx + at, acc ? vf_add(element_load_n(acc + at, n), grad) : grad, n);
        }
        vf_store_n(dm + i, vf_div(sum, root), n);
    }
}

/*
 * --- the rows that experts share ---
 *
 * The rows of a token lie far apart, so the rows of the next token are fetched meanwhile. Every row's bits depend on
 * its own operands only.
 */

enum {
    MIX_ROWS_LINE = 64 / sizeof(element), /* elements of a cache line */
    MIX_VECTORS = 4,                      /* at a time */
    MIX_STEP = MIX_VECTORS * VF_LANES
};

/* The rows to add for one row of y, and the places of the next row's; NULL: there is none. */
struct mix {
    const element *x;
    const int32_t *places, *next;
    const float *gates; /* NULL: 1 */
    int64_t k, width;
};

VF_INLINE void fetch(const element *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += MIX_ROWS_LINE)
        __builtin_prefetch(x + i, 0, 2);
}

/* `n` columns from `begin` on, in `vectors` vectors; callers pass their number as a constant. */
VF_INLINE void mix_columns(element *y, const element *acc, const struct mix *m, int64_t begin, int64_t n, int vectors)
{
    vf sum[MIX_VECTORS];

    VF_UNROLL
    for (int v = 0; v < vectors; v++)
        sum[v] = vf_zero();
    for (int64_t j = 0; j < m->k; j++) {
        const element *row = m->x + m->places[j] * m->width + begin;
        vf gate = vf_set(m->gates ? m->gates[j] : 1.0F);

        if (m->next)
            fetch(m->x + m->next[j] * m->width + begin, n);
        VF_UNROLL
        for (int v = 0; v < vectors; v++)
            sum[v] = vf_fma(gate, element_load_n(row + v * VF_LANES, n - v * VF_LANES), sum[v]);
    }
    VF_UNROLL
    for (int v = 0; v < vectors; v++) {
        int64_t at = begin + v * VF_LANES, left = n - v * VF_LANES;

        if (acc)
            sum[v] = vf_add(element_load_n(acc + at, left), sum[v]);
        element_store_n(y + at, sum[v], left);
    }
}

void TT_TYPED(tt_mix_rows)(element *y, const element *acc, const element *x, const int32_t *places, const float *gates,
                           int64_t rows, int64_t k, int64_t width)
{
    for (int64_t r = 0; r < rows; r++) {
        struct mix m = {.x = x,
                        .places = places + r * k,
                        .next = r + 1 < rows ? places + (r + 1) * k : NULL,
                        .gates = gates ? gates + r * k : NULL,
                        .k = k,
                        .width = width};
        int64_t c = 0;

        for (; c + MIX_STEP <= width; c += MIX_STEP)
            mix_columns(y + r * width, acc ? acc + r * width : NULL, &m, c, MIX_STEP, MIX_VECTORS);
        for (; c < width; c += VF_LANES)
            mix_columns(y + r * width, acc ? acc + r * width : NULL, &m, c, width - c < VF_LANES ? width - c : VF_LANES,
                        1);
    }
}

/* to = gate * from; returns the dot product of from and x, which may be `to`. */
VF_INLINE float mix_rows_row_grads(element *to, const element *from, const element *x, vs gate, int64_t width)
{
    vs sum[ROW_SUMS] = {vs_zero(), vs_zero(), vs_zero(), vs_zero()}, d;
    int64_t i = 0;

    for (; i + ROW_STEP <= width; i += ROW_STEP) {
        VF_UNROLL
        for (int64_t s = 0; s < ROW_SUMS; s++) {
            int64_t at = i + s * VS_LANES;

            d = elements_load(from + at);
            sum[s] = vs_fma(d, elements_load(x + at), sum[s]);
            elements_store(to + at, vs_mul(gate, d));
        }
    }
    for (; i < width; i += VS_LANES) {
        d = elements_load_n(from + i, width - i);
        sum[0] = vs_fma(d, elements_load_n(x + i, width - i), sum[0]);
        elements_store_n(to + i, vs_mul(gate, d), width - i);
    }
    return row_total(sum);
}

void TT_TYPED(tt_mix_rows_bwd)(element *dx, float *dgates, const element *dy, const element *x, const int32_t *places,
                               const float *gates, int64_t rows, int64_t k, int64_t width)
{
    for (int64_t i = 0; i < rows * k; i++) {
        if (i + 1 < rows * k)
            fetch(x + places[i + 1] * width, width);
        dgates[i] = mix_rows_row_grads(dx + places[i] * width, dy + i / k * width, x + places[i] * width,
                                       vs_set(gates[i]), width);
    }
}

/*
 * --- a matrix times a vector ---
 *
 * Rows are read four at a time: they share the loads of the vector and hide
 * the latency of each other's sums. With four streams, processors prefetch too little at the beginning of each, so in
 * short rows the next four are prefetched as they lie in memory. Every row is summed in the same order, whatever the
 * others are.
 */

enum {
    ROWS = 4,
    LONG = 16384, /* bytes of a row */
    GEMV_LINE = 64
};

VF_INLINE void some_rows(float *y, const element *w, const element *x, int rows, int64_t width, bool ahead)
{
    const char *next = (const char *)(w + rows * width);
    vs sum[ROWS] = {vs_zero(), vs_zero(), vs_zero(), vs_zero()};
    int64_t i = 0;

    for (; i + VS_LANES <= width; i += VS_LANES) {
        vs part = elements_load(x + i);

        for (int at = 0; ahead && at < rows * VS_LANES * (int)sizeof(element); at += GEMV_LINE)
            __builtin_prefetch(next + i * rows * (int64_t)sizeof(element) + at, 0, 3);

        VF_UNROLL
        for (int r = 0; r < rows; r++)
            sum[r] = vs_fma(elements_load(w + r * width + i), part, sum[r]);
    }
    if (i < width) {
        vs part = elements_load_n(x + i, width - i);

        VF_UNROLL
        for (int r = 0; r < rows; r++)
            sum[r] = vs_fma(elements_load_n(w + r * width + i, width - i), part, sum[r]);
    }
    VF_UNROLL
    for (int r = 0; r < rows; r++)
        y[r] = vs_sum(sum[r]);
}

void TT_TYPED(tt_gemv)(float *y, const element *w, const element *x, int64_t rows, int64_t width)
{
    bool is_long = width * (int64_t)sizeof(element) >= LONG;
    int64_t r = 0;

    for (; r + ROWS <= rows; r += ROWS)
        some_rows(y + r, w + r * width, x, ROWS, width, !is_long);
    for (; r < rows; r++)
        some_rows(y + r, w + r * width, x, 1, width, false);
}

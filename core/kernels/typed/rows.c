/* SPDX-License-Identifier: MIT
 *
 * The portable kernels over rows: RMSNorm, LayerNorm, sums of rows, scattered rows, a matrix times a vector. Sums run
 * in lanes (vector_math.h), so their order does not depend on the instruction set.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/kernels/typed/element.h"
#include "core/kernels/vector_math.h"

void TT_TYPED(tt_gemv, loops)(tt_real *y, const element *w, const element *x, int64_t rows, int64_t width)
{
    for (int64_t r = 0; r < rows; r++, w += width) {
        tt_real lane[TT_LANES] = {0.0F};
        int64_t i = 0;

        for (; i + TT_LANES <= width; i += TT_LANES) {
            for (int l = 0; l < TT_LANES; l++)
                lane[l] += value_of(w[i + l]) * value_of(x[i + l]);
        }
        for (int l = 0; i + l < width; l++)
            lane[l] += value_of(w[i + l]) * value_of(x[i + l]);
        y[r] = tt_lanes_sum(lane);
    }
}

void TT_TYPED(tt_gemv_packed, loops)(tt_real *y, const struct tt_packed_rows *w, const element *x)
{
    enum { AT_ONCE = 512 };
    int64_t bytes = tt_packing_row_bytes(w->packing, w->width);

    for (int64_t r = 0; r < w->rows; r++) {
        for (int64_t v = 0; v < w->vectors; v++) {
            const element *part = x + v * w->width;
            tt_real lane[TT_LANES] = {0.0F};
            float some[AT_ONCE];

            for (int64_t i = 0, n; i < w->width; i += n) {
                n = w->width - i < AT_ONCE ? w->width - i : AT_ONCE;
                tt_unpack(w->packing, (const char *)w->data + r * bytes, w->width, i, n, some);
                for (int64_t k = 0; k < n; k++)
                    lane[k % TT_LANES] += some[k] * value_of(part[i + k]);
            }
            y[v * w->y_row + r] = tt_lanes_sum(lane);
        }
    }
}

void TT_TYPED(tt_unpack, loops)(element *to, enum tt_packing_choice packing, const void *row, int64_t width,
                                int64_t begin, int64_t n)
{
    enum { AT_ONCE = 512 };
    float some[AT_ONCE];

    for (int64_t i = 0, have; i < n; i += have) {
        have = n - i < AT_ONCE ? n - i : AT_ONCE;
        tt_unpack(packing, row, width, begin + i, have, some);
        for (int64_t k = 0; k < have; k++)
            to[i + k] = element_of(some[k]);
    }
}

void TT_TYPED(tt_rmsnorm_fwd, loops)(element *y, tt_real *rstd, const element *x, const element *w, tt_real offset,
                                     int64_t rows, int64_t width, tt_real eps)
{
    for (int64_t r = 0; r < rows; r++, x += width, y += width) {
        tt_real lane[TT_LANES] = {0.0F}, scale;
        int64_t i = 0;

        for (; i + TT_LANES <= width; i += TT_LANES) {
            for (int l = 0; l < TT_LANES; l++)
                lane[l] += value_of(x[i + l]) * value_of(x[i + l]);
        }
        for (int l = 0; i + l < width; l++)
            lane[l] += value_of(x[i + l]) * value_of(x[i + l]);
        scale = 1.0F / tt_sqrt(tt_lanes_sum(lane) / (tt_real)width + eps);
        rstd[r] = scale;
        TT_INDEPENDENT
        for (i = 0; i < width; i++)
            y[i] = element_of(value_of(x[i]) * scale * (value_of(w[i]) + offset));
    }
}

/* One row's dot(dy, (w + offset) x). */
static tt_real row_dot(const element *dy, const element *x, const element *w, tt_real offset, int64_t width)
{
    tt_real lane[TT_LANES] = {0.0F};
    int64_t i = 0;

    for (; i + TT_LANES <= width; i += TT_LANES) {
        for (int l = 0; l < TT_LANES; l++)
            lane[l] += value_of(dy[i + l]) * (value_of(w[i + l]) + offset) * value_of(x[i + l]);
    }
    for (int l = 0; i + l < width; l++)
        lane[l] += value_of(dy[i + l]) * (value_of(w[i + l]) + offset) * value_of(x[i + l]);
    return tt_lanes_sum(lane);
}

void TT_TYPED(tt_rmsnorm_bwd, loops)(element *dx, tt_real *dw, const element *acc, const element *dy, const element *x,
                                     const element *w, tt_real offset, const tt_real *rstd, int64_t rows, int64_t width)
{
    memset(dw, 0, (size_t)width * sizeof *dw);
    for (int64_t r = 0; r < rows; r++, dy += width, x += width, dx += width) {
        tt_real scale = rstd[r], mean = row_dot(dy, x, w, offset, width) * scale / (tt_real)width * scale;

        if (acc) {
            TT_INDEPENDENT
            for (int64_t i = 0; i < width; i++) {
                dw[i] += value_of(dy[i]) * (value_of(x[i]) * scale);
                dx[i] = element_of(value_of(acc[i]) +
                                   scale * (value_of(dy[i]) * (value_of(w[i]) + offset) - value_of(x[i]) * mean));
            }
            acc += width;
        } else {
            TT_INDEPENDENT
            for (int64_t i = 0; i < width; i++) {
                dw[i] += value_of(dy[i]) * (value_of(x[i]) * scale);
                dx[i] = element_of(scale * (value_of(dy[i]) * (value_of(w[i]) + offset) - value_of(x[i]) * mean));
            }
        }
    }
}

void TT_TYPED(tt_scatter_add, loops)(tt_real *dw, const element *dx, const int32_t *tokens, int64_t n, int64_t width,
                                     int64_t columns)
{
    for (int64_t i = 0; i < n; i++) {
        tt_real *to = dw + tokens[i] * width;
        const element *from = dx + i * width;

        for (int64_t c = 0; c < columns; c++)
            to[c] += value_of(from[c]);
    }
}

void TT_TYPED(tt_sum_rows, loops)(tt_real *y, const tt_real *acc, const element *x, int64_t rows, int64_t width,
                                  int64_t columns)
{
    enum { AT_ONCE = 64 };

    for (int64_t first = 0; first < columns; first += AT_ONCE) {
        int64_t n = columns - first < AT_ONCE ? columns - first : AT_ONCE;
        tt_real sum[AT_ONCE] = {0.0F};

        for (int64_t r = 0; r < rows; r++) {
            for (int64_t c = 0; c < n; c++)
                sum[c] += value_of(x[r * width + first + c]);
        }
        for (int64_t c = 0; c < n; c++)
            y[first + c] = acc ? acc[first + c] + sum[c] : sum[c];
    }
}

/* --- LayerNorm --- */

static tt_real row_sum(const element *x, int64_t width)
{
    tt_real lane[TT_LANES] = {0.0F};
    int64_t i = 0;

    for (; i + TT_LANES <= width; i += TT_LANES) {
        for (int l = 0; l < TT_LANES; l++)
            lane[l] += value_of(x[i + l]);
    }
    for (int l = 0; i + l < width; l++)
        lane[l] += value_of(x[i + l]);
    return tt_lanes_sum(lane);
}

/* The sum of (x - mean)^2, in a separate pass, because mean(x^2) - mean^2 cancels. */
static tt_real row_squares(const element *x, tt_real mean, int64_t width)
{
    tt_real lane[TT_LANES] = {0.0F};
    int64_t i = 0;

    for (; i + TT_LANES <= width; i += TT_LANES) {
        for (int l = 0; l < TT_LANES; l++)
            lane[l] += (value_of(x[i + l]) - mean) * (value_of(x[i + l]) - mean);
    }
    for (int l = 0; i + l < width; l++)
        lane[l] += (value_of(x[i + l]) - mean) * (value_of(x[i + l]) - mean);
    return tt_lanes_sum(lane);
}

void TT_TYPED(tt_layernorm_fwd, loops)(element *y, tt_real *mean, tt_real *rstd, const element *x, const element *w,
                                       const element *b, int64_t rows, int64_t width, tt_real eps)
{
    for (int64_t r = 0; r < rows; r++, x += width, y += width) {
        tt_real middle = row_sum(x, width) / (tt_real)width;
        tt_real scale = 1.0F / tt_sqrt(row_squares(x, middle, width) / (tt_real)width + eps);

        mean[r] = middle;
        rstd[r] = scale;
        TT_INDEPENDENT
        for (int64_t i = 0; i < width; i++)
            y[i] = element_of((value_of(x[i]) - middle) * scale * value_of(w[i]) + (b ? value_of(b[i]) : 0.0F));
    }
}

/* The sums over a row of dy w and of dy w (x - mean). */
static void row_dots(const element *dy, const element *x, const element *w, tt_real mean, int64_t width,
                     tt_real *ret_plain, tt_real *ret_with_x)
{
    tt_real plain[TT_LANES] = {0.0F}, with_x[TT_LANES] = {0.0F};
    int64_t i = 0;

    for (; i + TT_LANES <= width; i += TT_LANES) {
        for (int l = 0; l < TT_LANES; l++) {
            plain[l] += value_of(dy[i + l]) * value_of(w[i + l]);
            with_x[l] += value_of(dy[i + l]) * value_of(w[i + l]) * (value_of(x[i + l]) - mean);
        }
    }
    for (int l = 0; i + l < width; l++) {
        plain[l] += value_of(dy[i + l]) * value_of(w[i + l]);
        with_x[l] += value_of(dy[i + l]) * value_of(w[i + l]) * (value_of(x[i + l]) - mean);
    }
    *ret_plain = tt_lanes_sum(plain);
    *ret_with_x = tt_lanes_sum(with_x);
}

/* Adds a row's contribution to dw and, unless it is NULL, to db. */
static void row_weights(tt_real *dw, tt_real *db, const element *dy, const element *x, tt_real mean, tt_real rstd,
                        int64_t width)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < width; i++)
        dw[i] += value_of(dy[i]) * ((value_of(x[i]) - mean) * rstd);
    TT_INDEPENDENT
    for (int64_t i = 0; db && i < width; i++)
        db[i] += value_of(dy[i]);
}

void TT_TYPED(tt_layernorm_bwd, loops)(const struct tt_layernorm_grads *of, int64_t rows, int64_t width)
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
        tt_real scale = of->rstd[r], mean = of->mean[r], plain, with_x;

        row_dots(dy, x, w, mean, width, &plain, &with_x);
        plain /= (tt_real)width;
        with_x = with_x * scale / (tt_real)width * scale;
        row_weights(of->dw + at, of->db ? of->db + at : NULL, dy, x, mean, scale, width);
        if (acc) {
            TT_INDEPENDENT
            for (int64_t i = 0; i < width; i++)
                dx[i] = element_of(value_of(acc[i]) + scale * (value_of(dy[i]) * value_of(w[i]) - plain -
                                                               (value_of(x[i]) - mean) * with_x));
        } else {
            TT_INDEPENDENT
            for (int64_t i = 0; i < width; i++)
                dx[i] =
                    element_of(scale * (value_of(dy[i]) * value_of(w[i]) - plain - (value_of(x[i]) - mean) * with_x));
        }
    }
}

/* --- columns times magnitudes --- */

static inline tt_real root_of(tt_real squares)
{
    return tt_sqrt(squares > FLT_MIN ? squares : FLT_MIN);
}

void TT_TYPED(tt_dora_fwd, loops)(element *y, const element *x, const element *m, const tt_real *squares, int64_t rows,
                                  int64_t width)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++)
            y[r * width + i] = element_of(value_of(x[r * width + i]) * (value_of(m[i]) / root_of(squares[i])));
}

void TT_TYPED(tt_dora_bwd, loops)(element *dx, tt_real *dm, const element *acc, const element *dy, const element *x,
                                  const element *m, const tt_real *squares, int64_t rows, int64_t width)
{
    memset(dm, 0, (size_t)width * sizeof *dm);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) {
            int64_t at = r * width + i;
            tt_real g = value_of(dy[at]), grad = g * (value_of(m[i]) / root_of(squares[i]));

            dm[i] += g * value_of(x[at]) / root_of(squares[i]);
            dx[at] = element_of(acc ? value_of(acc[at]) + grad : grad);
        }
}

/* --- rows shared by experts: the sum of a token's rows, and their gradients --- */

enum { COLUMNS = 256 /* columns summed at a time */ };

/* sum[c] = the weighted sum of the k rows. */
static void mix(tt_real *sum, const element *x, const int32_t *places, const tt_real *gates, int64_t k, int64_t width,
                int64_t columns)
{
    for (int64_t c = 0; c < columns; c++)
        sum[c] = 0.0F;
    for (int64_t j = 0; j < k; j++) {
        const element *row = x + places[j] * width;
        tt_real gate = gates ? gates[j] : 1.0F;

        TT_INDEPENDENT
        for (int64_t c = 0; c < columns; c++)
            sum[c] += gate * value_of(row[c]);
    }
}

void TT_TYPED(tt_mix_rows, loops)(element *y, const element *acc, const element *x, const int32_t *places,
                                  const tt_real *gates, int64_t rows, int64_t k, int64_t width)
{
    tt_real sum[COLUMNS];

    for (int64_t r = 0; r < rows; r++) {
        for (int64_t begin = 0; begin < width; begin += COLUMNS) {
            int64_t columns = width - begin < COLUMNS ? width - begin : COLUMNS, at = r * width + begin;

            mix(sum, x + begin, places + r * k, gates ? gates + r * k : NULL, k, width, columns);
            TT_INDEPENDENT
            for (int64_t c = 0; c < columns; c++)
                y[at + c] = element_of((acc ? value_of(acc[at + c]) : 0.0F) + sum[c]);
        }
    }
}

static tt_real dot(const element *a, const element *b, int64_t n)
{
    tt_real lane[TT_LANES] = {0.0F};
    int64_t i = 0;

    for (; i + TT_LANES <= n; i += TT_LANES)
        for (int l = 0; l < TT_LANES; l++)
            lane[l] += value_of(a[i + l]) * value_of(b[i + l]);
    for (int l = 0; i + l < n; l++)
        lane[l] += value_of(a[i + l]) * value_of(b[i + l]);
    return tt_lanes_sum(lane);
}

void TT_TYPED(tt_mix_rows_bwd, loops)(element *dx, tt_real *dgates, const element *dy, const element *x,
                                      const int32_t *places, const tt_real *gates, int64_t rows, int64_t k,
                                      int64_t width)
{
    for (int64_t i = 0; i < rows * k; i++) {
        const element *from = dy + i / k * width;
        element *to = dx + places[i] * width;
        tt_real gate = gates[i];

        dgates[i] = dot(from, x + places[i] * width, width);
        TT_INDEPENDENT
        for (int64_t c = 0; c < width; c++)
            to[c] = element_of(gate * value_of(from[c]));
    }
}

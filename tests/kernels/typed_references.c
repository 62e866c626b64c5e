/* SPDX-License-Identifier: MIT
 *
 * The references of kernels on arrays of one element type, compiled for float and for bfloat16. They compute in
 * double.
 */
#include <math.h>
#include <string.h>

#include "core/kernels/typed/element.h"
#include "core/math/rng.h"
#include "tests/kernels/references.h"

static inline double exact_of(element x)
{
    return (double)value_of(x);
}

static inline element element_of_exact(double x)
{
    return element_of((float)x);
}

/* --- rows --- */

void TT_TYPED(tt_gemv, ref)(float *y, const element *w, const element *x, int64_t rows, int64_t width)
{
    for (int64_t r = 0; r < rows; r++, w += width) {
        double sum = 0.0;

        for (int64_t i = 0; i < width; i++)
            sum += exact_of(w[i]) * exact_of(x[i]);
        y[r] = (float)sum;
    }
}

void TT_TYPED(tt_gemv_packed, ref)(float *y, const struct tt_packed_rows *w, const element *x)
{
    int64_t bytes = tt_packing_row_bytes(w->packing, w->width);

    for (int64_t r = 0; r < w->rows; r++)
        for (int64_t v = 0; v < w->vectors; v++) {
            double sum = 0.0;

            for (int64_t i = 0; i < w->width; i++) {
                float one;

                tt_unpack(w->packing, (const char *)w->data + r * bytes, w->width, i, 1, &one);
                sum += (double)one * exact_of(x[v * w->width + i]);
            }
            y[v * w->y_row + r] = (float)sum;
        }
}

void TT_TYPED(tt_unpack, ref)(element *to, enum tt_packing_choice packing, const void *row, int64_t width,
                              int64_t begin, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float one;

        tt_unpack(packing, row, width, begin + i, 1, &one);
        to[i] = element_of(one);
    }
}

void TT_TYPED(tt_rmsnorm_fwd, ref)(element *y, float *rstd, const element *x, const element *w, float offset,
                                   int64_t rows, int64_t width, float eps)
{
    for (int64_t r = 0; r < rows; r++, x += width, y += width) {
        double sum = 0.0, scale;

        for (int64_t i = 0; i < width; i++)
            sum += exact_of(x[i]) * exact_of(x[i]);
        scale = 1.0 / sqrt(sum / (double)width + (double)eps);
        rstd[r] = (float)scale;
        for (int64_t i = 0; i < width; i++)
            y[i] = element_of_exact(exact_of(x[i]) * scale * (exact_of(w[i]) + (double)offset));
    }
}

void TT_TYPED(tt_rmsnorm_bwd, ref)(element *dx, float *dw, const element *acc, const element *dy, const element *x,
                                   const element *w, float offset, const float *rstd, int64_t rows, int64_t width)
{
    for (int64_t i = 0; i < width; i++) {
        double sum = 0.0;

        for (int64_t r = 0; r < rows; r++)
            sum += exact_of(dy[r * width + i]) * exact_of(x[r * width + i]) * (double)rstd[r];
        dw[i] = (float)sum;
    }
    for (int64_t r = 0; r < rows; r++) {
        double scale = (double)rstd[r], dot = 0.0;

        for (int64_t i = r * width; i < (r + 1) * width; i++)
            dot += exact_of(dy[i]) * (exact_of(w[i - r * width]) + (double)offset) * exact_of(x[i]);
        dot *= scale * scale / (double)width;
        for (int64_t i = r * width; i < (r + 1) * width; i++) {
            double factor = exact_of(w[i - r * width]) + (double)offset;

            dx[i] = element_of_exact((acc ? exact_of(acc[i]) : 0.0) +
                                     scale * (exact_of(dy[i]) * factor - exact_of(x[i]) * dot));
        }
    }
}

void TT_TYPED(tt_sum_rows, ref)(float *y, const float *acc, const element *x, int64_t rows, int64_t width,
                                int64_t columns)
{
    for (int64_t c = 0; c < columns; c++) {
        double sum = 0.0;

        for (int64_t r = 0; r < rows; r++)
            sum += exact_of(x[r * width + c]);
        y[c] = (float)(sum + (acc ? (double)acc[c] : 0.0));
    }
}

void TT_TYPED(tt_scatter_add, ref)(float *dw, const element *dx, const int32_t *tokens, int64_t n, int64_t width,
                                   int64_t columns)
{
    for (int64_t i = 0; i < n; i++) {
        for (int64_t c = 0; c < columns; c++)
            dw[tokens[i] * width + c] += value_of(dx[i * width + c]);
    }
}

void TT_TYPED(tt_layernorm_fwd, ref)(element *y, float *mean, float *rstd, const element *x, const element *w,
                                     const element *b, int64_t rows, int64_t width, float eps)
{
    for (int64_t r = 0; r < rows; r++, x += width, y += width) {
        double sum = 0.0, squares = 0.0, middle, scale;

        for (int64_t i = 0; i < width; i++)
            sum += exact_of(x[i]);
        middle = sum / (double)width;
        for (int64_t i = 0; i < width; i++)
            squares += (exact_of(x[i]) - middle) * (exact_of(x[i]) - middle);
        scale = 1.0 / sqrt(squares / (double)width + (double)eps);
        mean[r] = (float)middle;
        rstd[r] = (float)scale;
        for (int64_t i = 0; i < width; i++)
            y[i] = element_of_exact((exact_of(x[i]) - middle) * scale * exact_of(w[i]) + (b ? exact_of(b[i]) : 0.0));
    }
}

/* One row of dx; dot_1 and dot_x are the means of the normalised row's gradient, and of its product with that row. */
static void row_ref(element *dx, const element *acc, const element *dy, const element *x, const element *w, double mean,
                    double rstd, int64_t width)
{
    double dot_1 = 0.0, dot_x = 0.0;

    for (int64_t i = 0; i < width; i++) {
        dot_1 += exact_of(dy[i]) * exact_of(w[i]) / (double)width;
        dot_x += exact_of(dy[i]) * exact_of(w[i]) * (exact_of(x[i]) - mean) * rstd / (double)width;
    }
    for (int64_t i = 0; i < width; i++)
        dx[i] = element_of_exact((acc ? exact_of(acc[i]) : 0.0) + rstd * (exact_of(dy[i]) * exact_of(w[i]) - dot_1 -
                                                                          (exact_of(x[i]) - mean) * rstd * dot_x));
}

void TT_TYPED(tt_layernorm_bwd, ref)(const struct tt_layernorm_grads *of, int64_t rows, int64_t width)
{
    const element *dy = of->dy, *x = of->x, *acc = of->acc, *w = of->w;
    int64_t groups = tt_layernorm_groups(of);

    for (int64_t i = 0; i < groups * width; i++) {
        double scaled = 0.0, plain = 0.0;

        for (int64_t r = i / width; r < rows; r += groups) {
            double grad = exact_of(dy[r * width + i % width]);

            scaled += grad * (exact_of(x[r * width + i % width]) - (double)of->mean[r]) * (double)of->rstd[r];
            plain += grad;
        }
        of->dw[i] = (float)scaled;
        if (of->db)
            of->db[i] = (float)plain;
    }
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = r * width;

        row_ref((element *)of->dx + at, acc ? acc + at : NULL, dy + at, x + at, w + r % groups * width,
                (double)of->mean[r], (double)of->rstd[r], width);
    }
}

void TT_TYPED(tt_mix_rows, ref)(element *y, const element *acc, const element *x, const int32_t *places,
                                const float *gates, int64_t rows, int64_t k, int64_t width)
{
    for (int64_t i = 0; i < rows * width; i++) {
        double sum = acc ? exact_of(acc[i]) : 0.0;

        for (int64_t j = i / width * k; j < (i / width + 1) * k; j++)
            sum += (gates ? (double)gates[j] : 1.0) * exact_of(x[places[j] * width + i % width]);
        y[i] = element_of_exact(sum);
    }
}

void TT_TYPED(tt_mix_rows_bwd, ref)(element *dx, float *dgates, const element *dy, const element *x,
                                    const int32_t *places, const float *gates, int64_t rows, int64_t k, int64_t width)
{
    for (int64_t i = 0; i < rows * k; i++) {
        const element *from = dy + i / k * width;
        double sum = 0.0;

        for (int64_t c = 0; c < width; c++)
            sum += exact_of(from[c]) * exact_of(x[places[i] * width + c]);
        for (int64_t c = 0; c < width; c++)
            dx[places[i] * width + c] = element_of_exact((double)gates[i] * exact_of(from[c]));
        dgates[i] = (float)sum;
    }
}

/* --- elements --- */

void TT_TYPED(tt_add, ref)(element *y, const element *a, const element *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = element_of(value_of(a[i]) + value_of(b[i]));
}

static double inner(double x)
{
    return 0.79788456080286535588 * (x + 0.044715 * x * x * x);
}

void TT_TYPED(tt_gelu_fwd, ref)(element *y, const element *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = element_of_exact(exact_of(x[i]) / (1.0 + exp(-2.0 * inner(exact_of(x[i])))));
}

static double gelu_slope(double x)
{
    double sigmoid = 1.0 / (1.0 + exp(-2.0 * inner(x)));
    double slope = 2.0 * 0.79788456080286535588 * (1.0 + 3.0 * 0.044715 * x * x);

    return sigmoid * (1.0 + x * slope * (1.0 - sigmoid));
}

void TT_TYPED(tt_gelu_bwd, ref)(element *dx, const element *dy, const element *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        dx[i] = element_of_exact(exact_of(dy[i]) * gelu_slope(exact_of(x[i])));
}

void TT_TYPED(tt_geglu_fwd, ref)(element *h, const element *g, const element *u, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        h[i] = element_of_exact(exact_of(g[i]) / (1.0 + exp(-2.0 * inner(exact_of(g[i])))) * exact_of(u[i]));
}

void TT_TYPED(tt_geglu_bwd, ref)(element *dg, element *du, const element *dh, const element *g, const element *u,
                                 int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double grad = exact_of(dh[i]), gate = exact_of(g[i]), up = exact_of(u[i]);

        dg[i] = element_of_exact(grad * up * gelu_slope(gate));
        du[i] = element_of_exact(grad * gate / (1.0 + exp(-2.0 * inner(gate))));
    }
}

/* The probability of the standard normal distribution below x. */
static double normal(double x)
{
    return erfc(-x * 0.70710678118654752440) / 2.0;
}

void TT_TYPED(tt_gelu_erf_fwd, ref)(element *y, const element *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = element_of_exact(exact_of(x[i]) * normal(exact_of(x[i])));
}

void TT_TYPED(tt_gelu_erf_bwd, ref)(element *dx, const element *dy, const element *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double at = exact_of(x[i]), density = 0.39894228040143267794 * exp(-at * at / 2.0);

        dx[i] = element_of_exact(exact_of(dy[i]) * (normal(at) + at * density));
    }
}

void TT_TYPED(tt_rope, ref)(element *y, const element *x, const float *table, const struct tt_rope_shape *shape,
                            int64_t first_row, int64_t rows)
{
    int64_t first = shape->unrotated, dim = tt_rope_rotated(shape), half = dim / 2;
    int64_t step = shape->rotate_half ? half : 1, stride = shape->rotate_half ? 1 : 2;

    for (int64_t head = 0; head < rows * shape->heads; head++, x += shape->head_dim, y += shape->head_dim) {
        const float *angle = table + tt_rope_position(shape, first_row + head / shape->heads) * dim;

        for (int64_t i = 0; i < shape->head_dim; i++)
            if (i < first || i >= first + dim)
                y[i] = x[i];
        for (int64_t i = 0; i < half; i++) {
            double c = (double)angle[2 * i], s = shape->inverse ? -(double)angle[2 * i + 1] : (double)angle[2 * i + 1];
            int64_t low = first + i * stride, high = low + step;
            double a = exact_of(x[low]), b = exact_of(x[high]);

            y[low] = element_of_exact(a * c - b * s);
            y[high] = element_of_exact(a * s + b * c);
        }
    }
}

static double exact_root(float squares)
{
    return sqrt(fmax((double)squares, 0x1p-126));
}

void TT_TYPED(tt_dora_fwd, ref)(element *y, const element *x, const element *m, const float *squares, int64_t rows,
                                int64_t width)
{
    for (int64_t i = 0; i < rows * width; i++)
        y[i] = element_of_exact(exact_of(x[i]) * exact_of(m[i % width]) / exact_root(squares[i % width]));
}

void TT_TYPED(tt_dora_bwd, ref)(element *dx, float *dm, const element *acc, const element *dy, const element *x,
                                const element *m, const float *squares, int64_t rows, int64_t width)
{
    for (int64_t c = 0; c < width; c++) {
        double sum = 0.0, root = exact_root(squares[c]);

        for (int64_t r = 0; r < rows; r++) {
            int64_t i = r * width + c;

            sum += exact_of(dy[i]) * exact_of(x[i]);
            dx[i] = element_of_exact((acc ? exact_of(acc[i]) : 0.0) + exact_of(dy[i]) * exact_of(m[c]) / root);
        }
        dm[c] = (float)(sum / root);
    }
}

void TT_TYPED(tt_dropout, ref)(element *y, const element *x, const element *acc, const struct tt_dropout *dropout,
                               uint64_t first, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        struct tt_rng rng = {dropout->seed, dropout->stream};
        uint64_t pair = tt_rng_bits(&rng, (first + (uint64_t)i) >> 1);
        uint64_t word = (first + (uint64_t)i) & 1 ? pair >> 32 : pair & 0xffffffff;
        double kept = (double)(float)(exact_of(x[i]) * (word >= dropout->drop ? (double)dropout->scale : 0.0));

        y[i] = element_of_exact(acc ? exact_of(acc[i]) + kept : kept);
    }
}

void TT_TYPED(tt_scale, ref)(element *y, const element *x, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = element_of_exact((double)factor * exact_of(x[i]));
}

void TT_TYPED(tt_swiglu_fwd, ref)(element *h, const element *g, const element *u, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        h[i] = element_of_exact(exact_of(g[i]) / (1.0 + exp(-exact_of(g[i]))) * exact_of(u[i]));
}

void TT_TYPED(tt_swiglu_bwd, ref)(element *dg, element *du, const element *dh, const element *g, const element *u,
                                  int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double grad = exact_of(dh[i]), gate = exact_of(g[i]), up = exact_of(u[i]);
        double sigmoid = 1.0 / (1.0 + exp(-gate));

        dg[i] = element_of_exact(grad * up * sigmoid * (1.0 + gate * (1.0 - sigmoid)));
        du[i] = element_of_exact(grad * gate * sigmoid);
    }
}

static const float slope = 1.702F, limit = 7.0F;

/* A NaN stays NaN. */
static float below(float x)
{
    return x > limit ? limit : x;
}

static float within(float x)
{
    return x < -limit ? -limit : below(x);
}

void TT_TYPED(tt_swiglu_clamped_fwd, ref)(element *h, const element *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double gate = (double)below(value_of(x[2 * i])), up = (double)within(value_of(x[2 * i + 1]));

        h[i] = element_of_exact((up + 1.0) * gate / (1.0 + exp(-(double)slope * gate)));
    }
}

void TT_TYPED(tt_swiglu_clamped_bwd, ref)(element *dx, const element *dh, const element *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float g = value_of(x[2 * i]), u = value_of(x[2 * i + 1]);
        double gate = (double)below(g), up = (double)within(u), sigmoid = 1.0 / (1.0 + exp(-(double)slope * gate));
        double slope_of_gate = sigmoid * (1.0 + (double)slope * gate * (1.0 - sigmoid));

        dx[2 * i] = element_of_exact(g > limit ? 0.0 : exact_of(dh[i]) * (up + 1.0) * slope_of_gate);
        dx[2 * i + 1] = element_of_exact(fabsf(u) > limit ? 0.0 : exact_of(dh[i]) * gate * sigmoid);
    }
}

/* --- attention: scores are not kept, but computed again for each sum and each COLUMNS columns of a result --- */

enum { COLUMNS = 64 };

static int64_t columns_from(int64_t first, int64_t n)
{
    return n - first < COLUMNS ? n - first : COLUMNS;
}

static double scale_of(const struct tt_attention_shape *shape)
{
    return shape->scale > 0.0F ? (double)shape->scale : 1.0 / sqrt((double)shape->head_dim);
}

/* A pair (row i, key j) of one head in double; rows of q and k start at the head's first column. */
static double score(const element *q, const element *k, const struct tt_attention_shape *shape)
{
    double sum = 0.0;

    for (int64_t e = 0; e < shape->head_dim; e++)
        sum += exact_of(q[e]) * exact_of(k[e]);
    sum *= scale_of(shape);
    return shape->soft_cap > 0.0F ? (double)shape->soft_cap * tanh(sum / (double)shape->soft_cap) : sum;
}

/* One row of one head; sink: the head's, or NULL. Returns the logarithm of the sum of its exponentials. */
static double attend(element *o, const element *q, const element *k, const element *v, int64_t keys,
                     const struct tt_attention_shape *shape, const float *sink)
{
    int64_t dim = shape->head_dim, width = tt_attention_value_dim(shape), stride = tt_attention_value_stride(shape);
    double largest = sink ? (double)*sink : -INFINITY, sum = 0.0;

    for (int64_t j = 0; j < keys; j++)
        largest = fmax(largest, score(q, k + j * dim, shape));
    for (int64_t j = 0; j < keys; j++)
        sum += exp(score(q, k + j * dim, shape) - largest);
    sum += sink ? exp((double)*sink - largest) : 0.0;
    for (int64_t first = 0; first < width; first += COLUMNS) {
        double out[COLUMNS] = {0.0};

        for (int64_t j = 0; j < keys; j++) {
            double weight = exp(score(q, k + j * dim, shape) - largest);

            for (int64_t e = 0; e < columns_from(first, width); e++)
                out[e] += weight * exact_of(v[j * stride + first + e]);
        }
        for (int64_t e = 0; e < columns_from(first, width); e++)
            o[first + e] = element_of_exact(out[e] / sum);
    }
    return largest + log(sum);
}

// NOLINTBEGIN(readability-non-const-parameter): the type of the slot
void TT_TYPED(tt_attention_fwd, ref)(element *o, float *lse, const element *q, const element *k, const element *v,
                                     const struct tt_attention_shape *shape, int64_t first_row, int64_t rows,
                                     float *scratch)
// NOLINTEND(readability-non-const-parameter)
{
    int64_t dim = shape->head_dim, q_stride = shape->heads * dim;
    int64_t o_stride = shape->heads * tt_attention_value_dim(shape);

    (void)scratch;
    for (int64_t i = first_row; i < first_row + rows; i++) {
        int64_t start = tt_attention_start(shape, i), at = i - shape->begin;

        lse[at * shape->heads] =
            (float)attend(o + at * o_stride, q + at * q_stride, k + start * dim,
                          v + start * tt_attention_value_stride(shape), i + 1 - start, shape, shape->sinks);
    }
}

// NOLINTBEGIN(readability-non-const-parameter): the type of the slot
void TT_TYPED(tt_attention_row, ref)(element *o, const element *q, const element *k, const element *v,
                                     const struct tt_attention_shape *shape, int64_t keys, float *scratch)
// NOLINTEND(readability-non-const-parameter)
{
    int64_t dim = shape->head_dim, width = tt_attention_value_dim(shape);

    (void)scratch;
    for (int64_t h = 0; h < shape->heads / shape->kv_heads; h++)
        (void)attend(o + h * width, q + h * dim, k, v, keys, shape, shape->sinks ? shape->sinks + h : NULL);
}

#ifdef TT_ELEMENT_BF16
typedef struct tt_attention_bf16_grads element_grads;
#else
typedef struct tt_attention_grads element_grads;
#endif

/* The probability p of (row i, key j) for query head `head` of the group and the gradient ds of its score. */
static double pair(const element_grads *group, const struct tt_attention_shape *shape, int64_t head, int64_t i,
                   int64_t j, double *ret_ds)
{
    int64_t dim = shape->head_dim, width = tt_attention_value_dim(shape),
            row = (i - shape->begin) * shape->heads + head;
    const element *q = group->q + row * dim, *k = group->k + j * shape->kv_heads * dim;
    const element *dout = group->dout + row * width, *o = group->o + row * width;
    const element *v = group->v + j * shape->kv_heads * width;
    double s = score(q, k, shape), p = exp(s - (double)group->lse[row]), dot = 0.0, capped;

    for (int64_t e = 0; e < width; e++)
        dot += exact_of(dout[e]) * (exact_of(v[e]) - exact_of(o[e]));
    capped = shape->soft_cap > 0.0F ? s / (double)shape->soft_cap : 0.0;
    *ret_ds = p * dot * scale_of(shape) * (1.0 - capped * capped);
    return p;
}

/* The first given row that may see the key. */
static int64_t first_row(const struct tt_attention_shape *shape, int64_t key)
{
    return key > shape->begin ? key : shape->begin;
}

/* A range of keys of one group of heads, as in attention_bwd. */
struct range {
    const element_grads *group;
    const struct tt_attention_shape *shape;
    int64_t heads, first_key, keys;
};

/* dq of row i of a head. */
static void grad_row(const struct range *r, int64_t i, int64_t head)
{
    const element_grads *group = r->group;
    int64_t dim = r->shape->head_dim, k_stride = r->shape->kv_heads * dim;
    float *dq = group->dq + ((i - r->shape->begin) * r->shape->heads + head) * dim;
    int64_t start = tt_attention_start(r->shape, i), from = start > r->first_key ? start : r->first_key;
    double ds;

    for (int64_t first = 0; first < dim; first += COLUMNS) {
        double sum[COLUMNS] = {0.0};

        for (int64_t j = from; j <= i && j < r->first_key + r->keys; j++) {
            (void)pair(group, r->shape, head, i, j, &ds);
            for (int64_t e = 0; e < columns_from(first, dim); e++)
                sum[e] += ds * exact_of(group->k[j * k_stride + first + e]);
        }
        for (int64_t e = 0; e < columns_from(first, dim); e++)
            dq[first + e] = (float)sum[e];
    }
}

/* dk of key j, or dv, from column `first` on. */
static void grad_key(const struct range *r, int64_t j, int64_t first, bool values)
{
    const element_grads *group = r->group;
    int64_t dim = values ? tt_attention_value_dim(r->shape) : r->shape->head_dim, n = columns_from(first, dim);
    const element *from = values ? group->dout : group->q;
    float *to = (values ? group->dv : group->dk) + (j - r->first_key) * r->shape->kv_heads * dim + first;
    int64_t end = tt_attention_end(r->shape);
    double sum[COLUMNS] = {0.0}, ds;

    for (int64_t head = 0; head < r->heads; head++) {
        for (int64_t i = first_row(r->shape, j); i < end && tt_attention_start(r->shape, i) <= j; i++) {
            int64_t at = ((i - r->shape->begin) * r->shape->heads + head) * dim + first;
            double p = pair(group, r->shape, head, i, j, &ds);

            for (int64_t e = 0; e < n; e++)
                sum[e] += (values ? p : ds) * exact_of(from[at + e]);
        }
    }
    for (int64_t e = 0; e < n; e++)
        to[e] = (float)sum[e];
}

// NOLINTBEGIN(readability-non-const-parameter): the type of the slot
void TT_TYPED(tt_attention_bwd, ref)(const element_grads *group, const struct tt_attention_shape *shape, int64_t heads,
                                     int64_t first_key, int64_t keys, float *scratch)
// NOLINTEND(readability-non-const-parameter)
{
    struct range range = {group, shape, heads, first_key, keys};

    (void)scratch;
    for (int64_t i = first_row(shape, first_key); i < tt_attention_end(shape); i++)
        for (int64_t head = 0; head < heads; head++)
            grad_row(&range, i, head);
    for (int64_t j = first_key; j < first_key + keys; j++) {
        for (int64_t first = 0; first < shape->head_dim; first += COLUMNS)
            grad_key(&range, j, first, false);
        for (int64_t first = 0; first < tt_attention_value_dim(shape); first += COLUMNS)
            grad_key(&range, j, first, true);
    }
}

void TT_TYPED(tt_sinks_bwd, ref)(float *dsinks, const element *dout, const element *o, const float *lse,
                                 const element *sinks, int64_t rows, int64_t heads, int64_t dim)
{
    for (int64_t h = 0; h < heads; h++) {
        double sum = 0.0;

        for (int64_t at = h; at < rows * heads; at += heads) {
            double product = 0.0;

            for (int64_t e = 0; e < dim; e++)
                product += exact_of(dout[at * dim + e]) * exact_of(o[at * dim + e]);
            sum -= exp(exact_of(sinks[h]) - (double)lse[at]) * product;
        }
        dsinks[h] = (float)sum;
    }
}

/* SPDX-License-Identifier: MIT
 *
 * The portable kernels that work element by element: sums, GELU, GeGLU, SwiGLU, RoPE. Like all portable kernels they
 * are plain loops that gcc and clang turn into vector code for any instruction set: no libm call inside a loop, no
 * branch on data.
 */
#include <math.h>
#include <string.h>

#include "core/kernels/typed/element.h"
#include "core/kernels/vector_math.h"
#include "core/math/rng.h"

void TT_TYPED(tt_add, loops)(element *y, const element *a, const element *b, int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        y[i] = element_of(value_of(a[i]) + value_of(b[i]));
}

void TT_TYPED(tt_dropout, loops)(element *y, const element *x, const element *acc, const struct tt_dropout *dropout,
                                 uint64_t first, int64_t n)
{
    const struct tt_rng rng = {dropout->seed, dropout->stream};

    for (int64_t i = 0; i < n; i++) {
        uint64_t number = first + (uint64_t)i;
        uint32_t word = (uint32_t)(tt_rng_bits(&rng, number / 2) >> 32 * (number % 2));
        tt_real product = value_of(x[i]) * (word < dropout->drop ? 0.0F : dropout->scale);

        y[i] = element_of(acc ? value_of(acc[i]) + product : product);
    }
}

/* sqrt(2 / pi); this times 0.044715, and times 3 0.044715; doubled for the sigmoid */
static const tt_real linear = (tt_real)1.5957691216057308, cubic = (tt_real)0.07135481627260025,
                     slope_cubic = (tt_real)0.21406444881780076;

static inline tt_real gelu_sigmoid(tt_real x)
{
    return 1.0F / (1.0F + tt_expf(-x * (linear + cubic * x * x)));
}

/* This order of operations avoids 0 times infinity far from 0. */
static inline tt_real gelu_slope(tt_real x, tt_real sigmoid)
{
    return sigmoid + x * sigmoid * ((linear + slope_cubic * x * x) * (1.0F - sigmoid));
}

void TT_TYPED(tt_gelu_fwd, loops)(element *y, const element *x, int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        tt_real v = value_of(x[i]);

        y[i] = element_of(v / (1.0F + tt_expf(-v * (linear + cubic * v * v))));
    }
}

void TT_TYPED(tt_gelu_bwd, loops)(element *dx, const element *dy, const element *x, int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        dx[i] = element_of(value_of(dy[i]) * gelu_slope(value_of(x[i]), gelu_sigmoid(value_of(x[i]))));
}

void TT_TYPED(tt_geglu_fwd, loops)(element *h, const element *g, const element *u, int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        h[i] = element_of(value_of(g[i]) * gelu_sigmoid(value_of(g[i])) * value_of(u[i]));
}

void TT_TYPED(tt_geglu_bwd, loops)(element *dg, element *du, const element *dh, const element *g, const element *u,
                                   int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        tt_real grad = value_of(dh[i]), gate = value_of(g[i]), up = value_of(u[i]), sigmoid = gelu_sigmoid(gate);

        dg[i] = element_of(grad * up * gelu_slope(gate, sigmoid));
        du[i] = element_of(grad * (gate * sigmoid));
    }
}

void TT_TYPED(tt_gelu_erf_fwd, loops)(element *y, const element *x, int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        tt_real v = value_of(x[i]), tail = tt_normal_tail(v).tail;

        y[i] = element_of(v > 0.0F ? v - v * tail : v * tail);
    }
}

void TT_TYPED(tt_gelu_erf_bwd, loops)(element *dx, const element *dy, const element *x, int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        tt_real v = value_of(x[i]);
        struct tt_normal_tail of = tt_normal_tail(v);

        dx[i] = element_of(value_of(dy[i]) * ((v > 0.0F ? 1.0F - of.tail : of.tail) + of.slope));
    }
}

/* Rotates one head. There are two loops, because pairs are either interleaved or half a head apart. */
static void rope_head(element *y, const element *x, const tt_real *angle, int64_t half, tt_real sign, bool rotate_half)
{
    if (rotate_half) {
        TT_INDEPENDENT
        for (int64_t i = 0; i < half; i++) {
            tt_real c = angle[2 * i], s = sign * angle[2 * i + 1], a = value_of(x[i]), b = value_of(x[i + half]);

            y[i] = element_of(a * c - b * s);
            y[i + half] = element_of(a * s + b * c);
        }
    } else {
        TT_INDEPENDENT
        for (int64_t i = 0; i < half; i++) {
            tt_real c = angle[2 * i], s = sign * angle[2 * i + 1], a = value_of(x[2 * i]), b = value_of(x[2 * i + 1]);

            y[2 * i] = element_of(a * c - b * s);
            y[2 * i + 1] = element_of(a * s + b * c);
        }
    }
}

void TT_TYPED(tt_rope, loops)(element *y, const element *x, const tt_real *table, const struct tt_rope_shape *shape,
                              int64_t first_row, int64_t rows)
{
    int64_t first = shape->unrotated, dim = tt_rope_rotated(shape), last = shape->head_dim - first - dim;
    bool copies = y != x && first + last > 0;
    tt_real sign = shape->inverse ? -1.0F : 1.0F;

    for (int64_t r = first_row; r < first_row + rows; r++) {
        const tt_real *angle = table + tt_rope_position(shape, r) * dim;

        for (int64_t head = 0; head < shape->heads; head++, x += shape->head_dim, y += shape->head_dim) {
            if (copies) {
                memcpy(y, x, (size_t)first * sizeof *y);
                memcpy(y + first + dim, x + first + dim, (size_t)last * sizeof *y);
            }
            rope_head(y + first, x + first, angle, dim / 2, sign, shape->rotate_half);
        }
    }
}

void TT_TYPED(tt_scale, loops)(element *y, const element *x, tt_real factor, int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        y[i] = element_of(factor * value_of(x[i]));
}

void TT_TYPED(tt_swiglu_fwd, loops)(element *h, const element *g, const element *u, int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        h[i] = element_of(value_of(g[i]) / (1.0F + tt_expf(-value_of(g[i]))) * value_of(u[i]));
}

void TT_TYPED(tt_swiglu_bwd, loops)(element *dg, element *du, const element *dh, const element *g, const element *u,
                                    int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        tt_real grad = value_of(dh[i]), gate = value_of(g[i]), up = value_of(u[i]);
        tt_real sigmoid = 1.0F / (1.0F + tt_expf(-gate));

        dg[i] = element_of(grad * up * sigmoid * (1.0F + gate * (1.0F - sigmoid)));
        du[i] = element_of(grad * gate * sigmoid);
    }
}

/* --- SwiGLU of gpt-oss (OpenAI 2025), whose inputs are pairs of a clamped gate and a clamped factor --- */

static const tt_real slope = (tt_real)1.702, limit = 7.0F;

/* A NaN stays a NaN. */
static inline tt_real below(tt_real x)
{
    return x > limit ? limit : x;
}

static inline tt_real within(tt_real x)
{
    return x < -limit ? -limit : below(x);
}

void TT_TYPED(tt_swiglu_clamped_fwd, loops)(element *h, const element *x, int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        tt_real gate = below(value_of(x[2 * i])), up = within(value_of(x[2 * i + 1]));

        h[i] = element_of((up + 1.0F) * (gate / (1.0F + tt_expf(-slope * gate))));
    }
}

void TT_TYPED(tt_swiglu_clamped_bwd, loops)(element *dx, const element *dh, const element *x, int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        tt_real g = value_of(x[2 * i]), u = value_of(x[2 * i + 1]), grad = value_of(dh[i]);
        tt_real gate = below(g), up = within(u), sigmoid = 1.0F / (1.0F + tt_expf(-slope * gate));
        tt_real dg = grad * (up + 1.0F) * (sigmoid * (1.0F + slope * gate * (1.0F - sigmoid)));
        tt_real du = grad * (gate * sigmoid);

        dx[2 * i] = element_of(g > limit ? 0.0F : dg);
        dx[2 * i + 1] = element_of(u > limit || u < -limit ? 0.0F : du);
    }
}

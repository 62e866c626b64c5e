/* SPDX-License-Identifier: MIT
 *
 * The references of the kernels that work element by element, in double.
 */
#include <math.h>

#include "core/kernels/typed/element.h"

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

void TT_TYPED(tt_gelu_bwd, ref)(element *dx, const element *dy, const element *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double at = exact_of(x[i]), sigmoid = 1.0 / (1.0 + exp(-2.0 * inner(at)));
        double slope = 2.0 * 0.79788456080286535588 * (1.0 + 3.0 * 0.044715 * at * at);

        dx[i] = element_of_exact(exact_of(dy[i]) * sigmoid * (1.0 + at * slope * (1.0 - sigmoid)));
    }
}

void TT_TYPED(tt_rope, ref)(element *y, const element *x, const float *table, const struct tt_rope_shape *shape,
                            int64_t first_row, int64_t rows)
{
    int64_t first = shape->unrotated, dim = shape->head_dim - first, half = dim / 2;
    int64_t step = shape->rotate_half ? half : 1, stride = shape->rotate_half ? 1 : 2;

    for (int64_t head = 0; head < rows * shape->heads; head++, x += shape->head_dim, y += shape->head_dim) {
        const float *angle = table + tt_rope_position(shape, first_row + head / shape->heads) * dim;

        for (int64_t i = 0; i < first; i++)
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

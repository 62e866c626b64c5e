/* SPDX-License-Identifier: MIT
 *
 * SwiGLU of gpt-oss (OpenAI 2025), whose inputs are pairs of a clamped gate and a clamped factor, and its references.
 */
#include <math.h>

#include "core/kernels/typed/element.h"
#include "core/kernels/vector_math.h"

static const float slope = 1.702F, limit = 7.0F;

/* A NaN stays one. */
static inline float below(float x)
{
    return x > limit ? limit : x;
}

static inline float within(float x)
{
    return x < -limit ? -limit : below(x);
}

void TT_TYPED(tt_swiglu_clamped_fwd, generic)(element *h, const element *x, int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        float gate = below(value_of(x[2 * i])), up = within(value_of(x[2 * i + 1]));

        h[i] = element_of((up + 1.0F) * (gate / (1.0F + tt_expf(-slope * gate))));
    }
}

void TT_TYPED(tt_swiglu_clamped_bwd, generic)(element *dx, const element *dh, const element *x, int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        float g = value_of(x[2 * i]), u = value_of(x[2 * i + 1]), grad = value_of(dh[i]);
        float gate = below(g), up = within(u), sigmoid = 1.0F / (1.0F + tt_expf(-slope * gate));
        float dg = grad * (up + 1.0F) * (sigmoid * (1.0F + slope * gate * (1.0F - sigmoid)));
        float du = grad * (gate * sigmoid);

        dx[2 * i] = element_of(g > limit ? 0.0F : dg);
        dx[2 * i + 1] = element_of(u > limit || u < -limit ? 0.0F : du);
    }
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

/* SPDX-License-Identifier: MIT
 *
 * The portable kernels of GELU; style as in generic.c.
 */
#include "core/kernels/kernels.h"
#include "core/kernels/vector_math.h"

/* sqrt(2 / pi), and the same times 0.044715 and times 3 0.044715; doubled for the sigmoid */
static const float linear = 1.5957691216F, cubic = 0.0713548163F, slope_cubic = 0.2140644489F;

void tt_gelu_fwd_generic(float *y, const float *x, int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] / (1.0F + tt_expf(-x[i] * (linear + cubic * x[i] * x[i])));
}

void tt_gelu_bwd_generic(float *dx, const float *dy, const float *x, int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++) {
        float square = x[i] * x[i], sigmoid = 1.0F / (1.0F + tt_expf(-x[i] * (linear + cubic * square)));

        /* this order avoids 0 times infinity far from 0 */
        dx[i] = dy[i] * (sigmoid + x[i] * sigmoid * ((linear + slope_cubic * square) * (1.0F - sigmoid)));
    }
}

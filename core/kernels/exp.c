/* SPDX-License-Identifier: MIT
 *
 * EXP is not an op. The kernel shows the e^x that attention, cross-entropy and SwiGLU use.
 */
#include <float.h>
#include <math.h>

#include "core/kernels/kernels.h"
#include "core/kernels/vector_math.h"

void tt_exp_ref(float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double e = exp((double)x[i]);

        y[i] = e < (double)FLT_MIN ? 0.0F : (float)e;
    }
}

void tt_exp_generic(float *y, const float *x, int64_t n)
{
    TT_INDEPENDENT
    for (int64_t i = 0; i < n; i++)
        y[i] = tt_expf(x[i]);
}

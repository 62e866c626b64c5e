/* SPDX-License-Identifier: MIT
 *
 * Measures the denominator of mfu.
 */
#include "trainer/step/peak.h"

#include "core/base/mem.h"
#include "core/kernels/matmul.h"
#include "core/math/bf16.h"
#include "core/os/file.h"

enum { ROWS_PER_THREAD = 512, COLUMNS = 512, DEPTH = 512, MOST_RUNS = 15 };

static double best_rate(struct tt_team *team, const struct tt_matmul *product)
{
    double start = tt_clock_sec(), best = 0.0;

    for (int run = 0; run < MOST_RUNS && tt_clock_sec() - start < 0.15; run++) {
        double t0 = tt_clock_sec(), rate;

        tt_matmul(team, product);
        rate = 2.0 * (double)product->m * COLUMNS * DEPTH / (tt_clock_sec() - t0);
        best = rate > best ? rate : best;
    }
    return best;
}

/* n numbers of either type. */
static void *numbers(int64_t n, enum tt_dtype dtype, int period)
{
    float *x = tt_calloc((size_t)n, sizeof *x);

    for (int64_t i = 0; i < n; i++) {
        float value = (float)(i % period) * 0.25F;

        if (dtype == TT_BF16)
            ((tt_bf16 *)(void *)x)[i] = tt_bf16_from_float(value);
        else
            x[i] = value;
    }
    return x;
}

double tt_peak_measure(struct tt_team *team, enum tt_dtype dtype)
{
    int64_t rows = (int64_t)ROWS_PER_THREAD * tt_team_threads(team);
    void *a = numbers(rows * DEPTH, dtype, 7), *b = numbers((int64_t)DEPTH * COLUMNS, dtype, 5);
    float *c = tt_calloc((size_t)(rows * COLUMNS), sizeof *c);
    struct tt_matmul product = {.bf16 = dtype == TT_BF16,
                                .c_bf16 = dtype == TT_BF16,
                                .m = rows,
                                .n = COLUMNS,
                                .k = DEPTH,
                                .a = a,
                                .b = b,
                                .c = c,
                                .lda = DEPTH,
                                .ldb = COLUMNS,
                                .ldc = COLUMNS};
    double best;

    product.scratch =
        tt_calloc((size_t)(tt_team_threads(team) * tt_matmul_scratch_floats(&product)) + 1, sizeof(float));
    best = best_rate(team, &product);
    tt_free(product.scratch);
    tt_free(a);
    tt_free(b);
    tt_free(c);
    return best;
}

int tt_peak_measure_slowest(struct tt_comm *comm, struct tt_team *team, enum tt_dtype dtype, double *ret_flops)
{
    double least = -tt_peak_measure(team, dtype); /* the maximum of the negative values: the slowest rank */
    int rc = 0;

    TT_TRY(tt_comm_max_f64(comm, &least, 1));
    *ret_flops = -least;
out:
    return rc;
}

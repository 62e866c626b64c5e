/* SPDX-License-Identifier: MIT
 *
 * Measures the denominator of mfu.
 */
#include "cli/run/peak.h"

#include "core/base/mem.h"
#include "core/kernels/blas.h"
#include "core/os/file.h"

double tt_peak_measure(struct tt_team *team)
{
    enum { ROWS_PER_THREAD = 512, COLUMNS = 512, DEPTH = 512, MOST_RUNS = 15 };
    int64_t rows = (int64_t)ROWS_PER_THREAD * tt_team_threads(team);
    float *a = tt_calloc((size_t)(rows * DEPTH), sizeof *a), *b = tt_calloc((size_t)DEPTH * COLUMNS, sizeof *b);
    float *c = tt_calloc((size_t)(rows * COLUMNS), sizeof *c);
    struct tt_gemm gemm = {
        .m = rows, .n = COLUMNS, .k = DEPTH, .a = a, .b = b, .c = c, .lda = DEPTH, .ldb = COLUMNS, .ldc = COLUMNS};
    double start = tt_clock_sec(), best = 0.0;

    for (int64_t i = 0; i < rows * DEPTH; i++)
        a[i] = (float)(i % 7) * 0.25f;
    for (int64_t i = 0; i < (int64_t)DEPTH * COLUMNS; i++)
        b[i] = (float)(i % 5) * 0.5f;
    for (int run = 0; run < MOST_RUNS && tt_clock_sec() - start < 0.15; run++) {
        double t0 = tt_clock_sec(), rate;

        tt_gemm(team, &gemm);
        rate = 2.0 * (double)rows * COLUMNS * DEPTH / (tt_clock_sec() - t0);
        best = rate > best ? rate : best;
    }
    tt_free(a);
    tt_free(b);
    tt_free(c);
    return best;
}

int tt_peak_measure_slowest(struct tt_comm *comm, struct tt_team *team, double *ret_flops)
{
    double least = -tt_peak_measure(team); /* the maximum of the negative values: the slowest rank */
    int rc = 0;

    TT_TRY(tt_comm_max_f64(comm, &least, 1));
    *ret_flops = -least;
out:
    return rc;
}

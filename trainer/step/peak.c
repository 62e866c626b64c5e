/* SPDX-License-Identifier: MIT
 *
 * Measures the peak rate, the denominator of mfu.
 */
#include "trainer/step/peak.h"

#include <math.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include <sys/resource.h>

#include "core/base/mem.h"
#include "core/kernels/matmul.h"
#include "core/math/bf16.h"
#include "core/os/file.h"

enum { ROWS_PER_THREAD = 512, COLUMNS = 512, DEPTH = 512, MOST_ROUNDS = 40, ENOUGH = 12 /* undisturbed ones */ };
static const double ENOUGH_SEC = 0.03, ALL_ROUNDS_SEC = 0.15;

/* Whether the threads computed all the time, so that the clock measures the processor. */
static bool is_undisturbed(const struct tt_peak_round *round, int threads)
{
    static const double busy = 0.9; /* part of the time in which the threads computed */

    return !round->is_preempted && round->processor_sec >= busy * round->wall_sec * threads;
}

double tt_peak_of(const struct tt_peak_round *rounds, int n, int threads)
{
    double by_clock = 0.0, by_processor = 0.0;

    for (int i = 0; i < n; i++) {
        const struct tt_peak_round *r = &rounds[i];

        if (r->wall_sec <= 0.0 || r->processor_sec <= 0.0)
            continue;
        by_processor = fmax(by_processor, r->flops / r->processor_sec * threads);
        if (is_undisturbed(r, threads))
            by_clock = fmax(by_clock, r->flops / r->wall_sec);
    }
    return by_clock > 0.0 ? by_clock : by_processor;
}

/* A product whose tiles are timed. */
struct timed {
    const struct tt_matmul *product;
    double *sec; /* seconds of each thread, a cache line apart */
};
static const ptrdiff_t APART = 8;

static double thread_sec(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    struct timed *timed = arg;
    double begin = thread_sec();

    tt_matmul_tile(timed->product, tile, worker);
    timed->sec[worker * APART] += thread_sec() - begin;
}

static long preemptions(void)
{
    struct rusage usage = {0};

    (void)getrusage(RUSAGE_SELF, &usage);
    return usage.ru_nivcsw;
}

static double best_rate(struct tt_team *team, const struct tt_matmul *product)
{
    int threads = tt_team_threads(team), n = 0, undisturbed = 0;
    struct timed timed = {product, tt_calloc((size_t)(threads * APART), sizeof *timed.sec)};
    struct tt_peak_round rounds[MOST_ROUNDS];
    double start = tt_clock_sec();

    while (n < MOST_ROUNDS && tt_clock_sec() - start < (undisturbed < ENOUGH ? ALL_ROUNDS_SEC : ENOUGH_SEC)) {
        struct tt_peak_round *r = &rounds[n++];
        double begin = tt_clock_sec();
        long before = preemptions();

        memset(timed.sec, 0, (size_t)(threads * APART) * sizeof *timed.sec);
        tt_team_run(team, tt_matmul_tiles(product), run_tile, &timed);
        *r = (struct tt_peak_round){.flops = 2.0 * (double)product->m * COLUMNS * DEPTH,
                                    .wall_sec = tt_clock_sec() - begin,
                                    .is_preempted = preemptions() != before};
        for (int t = 0; t < threads; t++)
            r->processor_sec += timed.sec[t * APART];
        undisturbed += is_undisturbed(r, threads);
    }
    tt_free(timed.sec);
    return tt_peak_of(rounds, n, threads);
}

/* Allocates n numbers of either type. */
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

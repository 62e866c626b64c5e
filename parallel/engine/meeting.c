/* SPDX-License-Identifier: MIT
 *
 * What a transfer costs the thread that computes while it is under way. The thread computes products until the
 * collective is complete. What these took longer than alone is the time that the transfer took.
 */
#include <math.h>

#include "core/base/mem.h"
#include "core/kernels/matmul.h"
#include "core/math/stats.h"
#include "core/os/file.h"
#include "core/os/team.h"
#include "parallel/engine/measure_round.h"

enum { SIDE = 256, DEPTH = 512, MOST_ROUNDS = 31, FEWEST_ROUNDS = 3 };

struct computing {
    struct tt_comm *comm;
    struct tt_team *team;
    struct tt_matmul product;
    int rc; /* of the first poll that failed */
};

static void poll(void *arg)
{
    struct computing *c = arg;

    if (c->rc == 0)
        c->rc = tt_comm_progress(c->comm);
}

static int computing_init(struct computing *c, struct tt_comm *comm, int threads)
{
    float *a = tt_calloc((size_t)SIDE * DEPTH, sizeof *a), *b = tt_calloc((size_t)SIDE * DEPTH, sizeof *b);

    c->comm = comm;
    c->product = (struct tt_matmul){.trans_b = true,
                                    .m = SIDE,
                                    .n = SIDE,
                                    .k = DEPTH,
                                    .a = a,
                                    .b = b,
                                    .c = tt_calloc((size_t)SIDE * SIDE, sizeof(float)),
                                    .lda = DEPTH,
                                    .ldb = DEPTH,
                                    .ldc = SIDE};
    c->product.scratch = tt_calloc((size_t)(threads * tt_matmul_scratch_floats(&c->product)), sizeof(float));
    return tt_comm_agree(comm, tt_team_new(threads, &c->team));
}

static void computing_release(struct computing *c)
{
    tt_team_free(c->team);
    tt_free((void *)c->product.a);
    tt_free((void *)c->product.b);
    tt_free(c->product.c);
    tt_free(c->product.scratch);
}

/* One product, with the polls that a step makes. */
static int compute(struct computing *c)
{
    tt_team_set_poll(c->team, poll, c);
    tt_matmul(c->team, &c->product);
    tt_team_set_poll(c->team, NULL, NULL);
    return c->rc;
}

/* The median time of a product while nothing is transferred, on all ranks at once. */
static int time_product(struct computing *c, double *ret_sec)
{
    enum { PRODUCTS = 101 };
    double secs[PRODUCTS];
    int rc = 0;

    TT_TRY(tt_comm_barrier(c->comm));
    for (int i = 0; i < PRODUCTS; i++) {
        double start = tt_clock_sec();

        TT_TRY(compute(c));
        secs[i] = tt_clock_sec() - start;
    }
    *ret_sec = tt_median(secs, PRODUCTS);
out:
    return rc;
}

/* Of one round: how long the transfer lasted, and what it took of the thread. */
static int meet(struct tt_measure_round *r, struct computing *c, double product_sec, double *ret_lasted,
                double *ret_taken)
{
    double start, worst[2];
    struct tt_span span;
    bool done = false;
    int rc = 0;

    TT_TRY(tt_measure_round_start(r));
    start = tt_clock_sec();
    TT_TRY(tt_collective_begin(r->collective));
    worst[1] = 0.0;
    while (!done) {
        TT_TRY(compute(c));
        worst[1] -= product_sec;
        TT_TRY(tt_collective_test(r->collective, &done));
    }
    worst[1] += tt_clock_sec() - start;
    span = tt_collective_span(r->collective);
    worst[0] = span.end - span.begin;
    TT_TRY(tt_comm_max_f64(r->comm, worst, 2));
    *ret_lasted = worst[0];
    *ret_taken = fmax(worst[1], 0.0);
out:
    return rc;
}

/* Adds the seconds of one kind of collective: alone, met, and taken from the thread. */
static int add_kind(struct computing *c, enum tt_measured kind, int64_t bytes, double seconds, double sums[3])
{
    struct tt_measure_round round = {0};
    double lasted[MOST_ROUNDS], taken[MOST_ROUNDS], product_sec, alone, spent = 0.0;
    int n = 0, rc = 0;

    TT_TRY(tt_measure(c->comm, kind, bytes, FEWEST_ROUNDS, &alone));
    TT_TRY(tt_measure_round_init(&round, c->comm, kind, bytes));
    TT_TRY(time_product(c, &product_sec));
    while (n < FEWEST_ROUNDS || (n < MOST_ROUNDS && spent < seconds)) {
        TT_TRY(meet(&round, c, product_sec, &lasted[n], &taken[n]));
        spent += lasted[n++]; /* the same on all ranks, so that all stop together */
    }
    sums[0] += alone;
    sums[1] += tt_median(lasted, n);
    sums[2] += tt_median(taken, n);
out:
    tt_measure_round_release(&round);
    return rc;
}

int tt_measure_meeting(struct tt_comm *comm, int threads, int64_t bytes, double seconds, double *ret_share,
                       double *ret_stretch)
{
    const double most_share = 0.95; /* more would stop the simulated thread */
    double sums[3] = {0.0, 0.0, 0.0};
    struct computing c = {0};
    int rc = 0;

    TT_TRY(computing_init(&c, comm, threads));
    TT_TRY(add_kind(&c, TT_MEASURE_ALL_GATHER, bytes, seconds / 2.0, sums));
    TT_TRY(add_kind(&c, TT_MEASURE_REDUCE_SCATTER, bytes, seconds / 2.0, sums));
    *ret_share = fmin(sums[2] / sums[1], most_share);
    *ret_stretch = fmax(sums[1] / sums[0], 1.0);
out:
    computing_release(&c);
    return rc;
}

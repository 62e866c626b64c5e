/* SPDX-License-Identifier: MIT
 *
 * The timing of collectives. The first two rounds do not count: they fault the pages in and open the connections. Each
 * round starts with cold caches, as a step of a model does: the ranks write an array larger than the caches.
 */
#include "parallel/engine/measure.h"

#include <math.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/kernels/matmul.h"
#include "core/math/stats.h"
#include "core/os/file.h"
#include "core/os/team.h"
#include "parallel/comm/collectives.h"

/* A collective to time, with its memory. */
struct round {
    struct tt_comm *comm;
    struct tt_group group;
    struct tt_segment_list *lists; /* [ranks] blocks, back to back in data */
    char *data, *other, *cache;    /* cache: written to empty the caches */
    size_t bytes, other_bytes;
    struct tt_collective *collective; /* NULL: plain copies */
};

enum { WARM_ROUNDS = 2, ALIGNMENT = 64, CACHE_BYTES = 64 << 20 };

static const char *const names[TT_MEASURED_KINDS] = {"copy", "all-gather", "reduce-scatter", "all-reduce"};

const char *tt_measured_name(enum tt_measured kind)
{
    return names[kind];
}

/* Collective. Release it even after an error. Errors: as tt_measure. */
static int round_init(struct round *b, struct tt_comm *comm, enum tt_measured kind, int64_t bytes)
{
    int n = comm->size, me = comm->rank, rc = 0;
    size_t block = (size_t)(bytes / n / ALIGNMENT * ALIGNMENT), scratch;
    struct tt_segment whole;

    b->comm = comm;
    b->bytes = block * (size_t)n;
    scratch = (size_t)tt_collective_staging(
        &(struct tt_collective_desc){.op = TT_ALL_SUM, .ranks = n, .bytes = (int64_t)b->bytes});
    b->other_bytes = b->bytes > scratch ? b->bytes : scratch;
    b->group = (struct tt_group){n, me, tt_calloc((size_t)n, sizeof(int))};
    b->data = tt_map(b->bytes + ALIGNMENT);
    b->other = tt_map(b->other_bytes + ALIGNMENT);
    b->cache = tt_map(CACHE_BYTES);
    rc = b->data && b->other && b->cache
             ? 0
             : tt_fail(TT_EFIT, "the system refused %zu bytes to measure collectives", b->bytes);
    if ((rc = tt_comm_agree(comm, rc)) < 0)
        return rc;
    memset(b->data, 0, b->bytes);
    memset(b->other, 0, b->other_bytes);
    for (int i = 0; i < n; i++)
        b->group.ranks[i] = i;
    b->lists = tt_segment_blocks(b->data, n, (int64_t)block);
    whole = (struct tt_segment){b->data, b->bytes};
    switch (kind) {
    case TT_MEASURE_ALL_GATHER:
        return tt_all_gather_new(comm, &b->group, TT_TAG_COLLECTIVE, b->lists[me], b->lists, &b->collective);
    case TT_MEASURE_REDUCE_SCATTER:
        return tt_reduce_scatter_new(comm, &b->group, TT_TAG_COLLECTIVE, b->lists, b->lists[me], b->other,
                                     &b->collective);
    case TT_MEASURE_ALL_REDUCE:
        return tt_all_reduce_new(comm, &b->group, TT_TAG_COLLECTIVE, (struct tt_segment_list){&whole, 1}, b->other,
                                 &b->collective);
    default:
        return 0;
    }
}

static void round_release(struct round *b)
{
    tt_collective_free(b->collective);
    tt_unmap(b->data, b->bytes + ALIGNMENT);
    tt_unmap(b->other, b->other_bytes + ALIGNMENT);
    tt_unmap(b->cache, CACHE_BYTES);
    tt_free(b->lists);
    tt_group_release(&b->group);
}

/* Empties the caches, then waits for all ranks. */
static int round_start(struct round *b)
{
    for (size_t i = 0; i < CACHE_BYTES; i += ALIGNMENT) /* memset would write past the caches */
        b->cache[i]++;
    return tt_comm_barrier(b->comm);
}

static int run_round(struct round *b, double *ret_sec)
{
    double start;
    int rc = 0;

    TT_TRY(round_start(b));
    start = tt_clock_sec();
    if (b->collective) {
        TT_TRY(tt_collective_begin(b->collective));
        TT_TRY(tt_collective_wait(b->collective));
    } else {
        memcpy(b->other, b->data, b->bytes - b->bytes / (size_t)b->group.n);
    }
    *ret_sec = tt_clock_sec() - start;
    rc = tt_comm_max_f64(b->comm, ret_sec, 1);
out:
    return rc;
}

int tt_measure(struct tt_comm *comm, enum tt_measured kind, int64_t bytes, int rounds, double *ret_sec)
{
    double *sec = tt_calloc((size_t)rounds, sizeof *sec), ignored;
    struct round b = {0};
    int rc = 0;

    TT_TRY(round_init(&b, comm, kind, bytes));
    for (int i = 0; i < WARM_ROUNDS; i++)
        TT_TRY(run_round(&b, &ignored));
    for (int i = 0; i < rounds; i++)
        TT_TRY(run_round(&b, &sec[i]));
    *ret_sec = tt_median(sec, rounds);
out:
    round_release(&b);
    tt_free(sec);
    return rc;
}

/*
 * --- transfers that meet compute ---
 *
 * The cost of a transfer to the thread that computes at the same time. The thread runs GEMMs until the collective is
 * complete; the time by which they exceed their usual time is the transfer's share.
 */

enum { SIDE = 256, DEPTH = 512, MOST_ROUNDS = 31, FEWEST_ROUNDS = 3 };

struct computing {
    struct tt_comm *comm;
    struct tt_team *team;
    struct tt_matmul product;
    int rc; /* code of the first poll that failed */
};

static void poll(void *arg)
{
    struct computing *c = arg;

    if (c->rc == 0)
        c->rc = tt_comm_progress(c->comm);
}

/* One GEMM, with the same polls that a step makes. */
static int compute(struct computing *c)
{
    tt_team_set_poll(c->team, poll, c);
    tt_matmul(c->team, &c->product);
    tt_team_set_poll(c->team, NULL, NULL);
    return c->rc;
}

/* The median time of a GEMM while nothing is transferred, with all ranks computing at once. */
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

/* Measures one round: the duration of the transfer, and the time that it takes from the computing thread. */
static int meet(struct round *r, struct computing *c, double product_sec, double *ret_lasted, double *ret_taken)
{
    double start, worst[2];
    struct tt_span span;
    bool done = false;
    int rc = 0;

    TT_TRY(round_start(r));
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

/* Adds the seconds of one kind of collective: alone, while the thread computes, and the time taken from the thread. */
static int add_kind(struct computing *c, enum tt_measured kind, int64_t bytes, double seconds, double sums[3])
{
    struct round round = {0};
    double lasted[MOST_ROUNDS], taken[MOST_ROUNDS], product_sec, alone = 0.0, spent = 0.0;
    int n = 0, rc = 0;

    TT_TRY(tt_measure(c->comm, kind, bytes, FEWEST_ROUNDS, &alone));
    TT_TRY(round_init(&round, c->comm, kind, bytes));
    TT_TRY(time_product(c, &product_sec));
    while (n < FEWEST_ROUNDS || (n < MOST_ROUNDS && spent < seconds)) {
        TT_TRY(meet(&round, c, product_sec, &lasted[n], &taken[n]));
        spent += lasted[n++]; /* the same on all ranks, so that all stop together */
    }
    sums[0] += alone;
    sums[1] += tt_median(lasted, n);
    sums[2] += tt_median(taken, n);
out:
    round_release(&round);
    return rc;
}

int tt_measure_meeting(struct tt_comm *comm, int threads, int64_t bytes, double seconds, double *ret_share,
                       double *ret_stretch)
{
    const double most_share = 0.95; /* with a larger share, the simulated thread would stand still */
    float *a = tt_calloc((size_t)SIDE * DEPTH, sizeof *a), *b = tt_calloc((size_t)SIDE * DEPTH, sizeof *b);
    float *product = tt_calloc((size_t)SIDE * SIDE, sizeof *product);
    double sums[3] = {0.0, 0.0, 0.0};
    struct computing c = {.comm = comm,
                          .product = {.trans_b = true,
                                      .m = SIDE,
                                      .n = SIDE,
                                      .k = DEPTH,
                                      .a = a,
                                      .b = b,
                                      .c = product,
                                      .lda = DEPTH,
                                      .ldb = DEPTH,
                                      .ldc = SIDE}};
    int rc = 0;

    c.product.scratch = tt_calloc((size_t)(threads * tt_matmul_scratch_floats(&c.product)), sizeof(float));
    TT_TRY(tt_comm_agree(comm, tt_team_new(threads, &c.team)));
    TT_TRY(add_kind(&c, TT_MEASURE_ALL_GATHER, bytes, seconds / 2.0, sums));
    TT_TRY(add_kind(&c, TT_MEASURE_REDUCE_SCATTER, bytes, seconds / 2.0, sums));
    *ret_share = fmin(sums[2] / sums[1], most_share);
    *ret_stretch = fmax(sums[1] / sums[0], 1.0);
out:
    tt_team_free(c.team);
    tt_free(a);
    tt_free(b);
    tt_free(product);
    tt_free(c.product.scratch);
    return rc;
}

/* SPDX-License-Identifier: MIT
 *
 * SQUARES: adds the sum of squares of the rows to a sum.
 *   in    a flat array of n floats; the rows that add   out   struct tt_exact, which is added to
 * SUM: adds n floats to a sum.
 *   in    n floats                                      out   struct tt_exact, which is added to
 *
 * Sums for the gradient norm and the loss. They do not depend on which rank holds which rows, or which grains of their
 * columns. A grain of a row is summed in double, in an order that depends on its width only, and these sums are added
 * exactly. Threads add to their own accumulators, which are integers and can be merged in any order.
 */
#include <pthread.h>

#include "core/kernels/kernels.h"
#include "core/math/exact.h"
#include "core/math/round.h"
#include "core/ops/step/step.h"

enum {
    LANES = 8,
    TILE_ELEMENTS = 1 << 16,
    TERMS_BETWEEN_CARRIES = 1 << 24, /* tt_exact_add allows 2^30 */
};

struct squares {
    const struct tt_rows *rows;
    const tt_real *grad;
    struct tt_exact *sum;
    pthread_mutex_t lock; /* protects sum; taken once per tile */
};

void TT_LOOPS(squares)(double *sum, const tt_real *x, int64_t n)
{
    double lane[LANES] = {0.0};
    int64_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        for (int j = 0; j < LANES; j++)
            lane[j] += (double)x[i + j] * (double)x[i + j];
    }
    for (int j = 0; i + j < n; j++)
        lane[j] += (double)x[i + j] * (double)x[i + j];
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int j = 0; j < half; j++)
            lane[j] += lane[j + half];
    }
    *sum = lane[0];
}

static int64_t rows_per_tile(const struct tt_rows *rows)
{
    return rows->width >= TILE_ELEMENTS ? 1 : TILE_ELEMENTS / rows->width;
}

static int64_t n_tiles(const struct tt_rows *rows)
{
    return rows->adds ? tt_div_up(rows->rows, rows_per_tile(rows)) : 0;
}

static void add_row(const struct tt_rows *rows, const tt_real *row, struct tt_exact *sum)
{
    for (int64_t at = 0; at < rows->width; at += rows->grain) {
        double squares;

        tt_kernels()->squares(&squares, row + at, rows->grain < rows->width - at ? rows->grain : rows->width - at);
        tt_exact_add(sum, squares);
    }
}

static void sum_tile(void *arg, int64_t tile, int worker)
{
    struct squares *s = arg;
    const struct tt_rows *rows = s->rows;
    struct tt_exact sum = {{0}, 0};
    struct tt_range part;

    (void)worker;
    for (; tile >= n_tiles(rows); rows++)
        tile -= n_tiles(rows);
    part = tt_tile_range(rows->rows, rows_per_tile(rows), tile);
    for (int64_t row = part.begin; row < part.begin + part.n; row++)
        add_row(rows, s->grad + rows->begin + row * rows->width, &sum);
    tt_exact_normalize(&sum);
    (void)pthread_mutex_lock(&s->lock);
    tt_exact_merge(s->sum, &sum);
    (void)pthread_mutex_unlock(&s->lock);
}

static void run_squares(const struct tt_step_call *call)
{
    struct squares s = {.rows = call->rows, .grad = call->in, .sum = call->out[0], .lock = PTHREAD_MUTEX_INITIALIZER};
    int64_t tiles = 0;

    for (int i = 0; i < call->n_rows; i++)
        tiles += n_tiles(&call->rows[i]);
    tt_team_run(call->team, tiles, sum_tile, &s);
    (void)pthread_mutex_destroy(&s.lock);
    tt_exact_normalize(s.sum);
}

static void run_sum(const struct tt_step_call *call)
{
    struct tt_exact *sum = call->out[0];
    const tt_real *values = call->in;

    for (int64_t i = 0; i < call->n; i++) {
        tt_exact_add(sum, (double)values[i]);
        if (i % TERMS_BETWEEN_CARRIES == TERMS_BETWEEN_CARRIES - 1)
            tt_exact_normalize(sum);
    }
    tt_exact_normalize(sum);
}

const struct tt_step_row TT_OF_TYPE(tt_step_op_squares) = {
    .name = "squares", .run = run_squares, .cost = tt_step_cost, .floats = 1.0};
const struct tt_step_row TT_OF_TYPE(tt_step_op_sum) = {
    .name = "sum", .run = run_sum, .cost = tt_step_cost, .floats = 1.0};

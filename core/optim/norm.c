/* SPDX-License-Identifier: MIT
 *
 * Sums for the gradient norm and the loss that do not depend on which rank holds which rows. A row is summed in double,
 * in an order that depends on its width only, and the row sums are added exactly. Threads add to their own
 * accumulators, which are integers and can be merged in any order.
 */
#include <pthread.h>

#include "core/kernels/kernels.h"
#include "core/math/round.h"
#include "core/optim/optim.h"

enum {
    LANES = 8,
    TILE_ELEMENTS = 1 << 16,
    TERMS_BETWEEN_CARRIES = 1 << 24, /* tt_exact_add allows 2^30 */
};

struct squares {
    const struct tt_rows *rows;
    const float *grad;
    struct tt_exact *sum;
    pthread_mutex_t lock; /* protects sum; taken once per tile */
};

void tt_squares_ref(double *sum, const float *x, int64_t n)
{
    *sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        *sum += (double)x[i] * (double)x[i];
}

void tt_squares_generic(double *sum, const float *x, int64_t n)
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
    int64_t per_tile = rows_per_tile(rows);

    return tt_div_up(rows->rows, per_tile);
}

static void sum_tile(void *arg, int64_t tile, int worker)
{
    struct squares *s = arg;
    const struct tt_rows *rows = s->rows;
    struct tt_exact sum = {{0}, 0};
    int64_t row, end;

    (void)worker;
    for (; tile >= n_tiles(rows); rows++)
        tile -= n_tiles(rows);
    row = tile * rows_per_tile(rows);
    end = row + rows_per_tile(rows);
    if (end > rows->rows)
        end = rows->rows;
    for (; row < end; row++) {
        double squares;

        tt_kernels()->squares(&squares, s->grad + rows->begin + row * rows->width, rows->width);
        tt_exact_add(&sum, squares);
    }
    tt_exact_normalize(&sum);
    (void)pthread_mutex_lock(&s->lock);
    tt_exact_merge(s->sum, &sum);
    (void)pthread_mutex_unlock(&s->lock);
}

void tt_sum_squares(struct tt_team *team, const struct tt_rows *rows, int n, const float *grad, struct tt_exact *sum)
{
    struct squares s = {.rows = rows, .grad = grad, .sum = sum, .lock = PTHREAD_MUTEX_INITIALIZER};
    int64_t tiles = 0;

    for (int i = 0; i < n; i++)
        tiles += n_tiles(&rows[i]);
    tt_team_run(team, tiles, sum_tile, &s);
    (void)pthread_mutex_destroy(&s.lock);
    tt_exact_normalize(sum);
}

void tt_sum_floats(const float *values, int64_t n, struct tt_exact *sum)
{
    for (int64_t i = 0; i < n; i++) {
        tt_exact_add(sum, (double)values[i]);
        if (i % TERMS_BETWEEN_CARRIES == TERMS_BETWEEN_CARRIES - 1)
            tt_exact_normalize(sum);
    }
    tt_exact_normalize(sum);
}

/* SPDX-License-Identifier: MIT
 *
 * AdamW and Adam (Loshchilov and Hutter 2019, Kingma and Ba 2015) in one pass over param, grad and both moments, with
 * PyTorch's order of operations in float. The loop has one multiplication or addition per line of the formula and the
 * build forbids contraction, so an element gets the same bits in a vector, in a loop's tail, and on every shard.
 */
#include <math.h>

#include "core/optim/optim.h"

enum { CHUNK = 1 << 14 }; /* elements a tile: four arrays of 64 KiB stay in a core's cache */

/* The numbers of a step, and the arrays of the whole call. */
struct update {
    const struct tt_rows *rows;
    float *param;
    const float *grad;
    float *exp_avg, *exp_avg_sq;
    bool decoupled;
    float clip, decay, weight_decay; /* decay: 1 - lr * weight_decay */
    float mix1, beta2, mix2;         /* mix: 1 - beta */
    float step_size, root_correction2, eps;
};

/* `decoupled` is a constant where this is called, so that the loops have no branch. */
static inline void update_range(const struct update *u, bool decoupled, int64_t begin, int64_t n)
{
    const struct update k = *u; /* in registers: the arrays cannot alias a local */
    float *restrict param = k.param + begin;
    const float *restrict grad = k.grad + begin;
    float *restrict exp_avg = k.exp_avg + begin;
    float *restrict exp_avg_sq = k.exp_avg_sq + begin;

    for (int64_t i = 0; i < n; i++) {
        float p = param[i], g = grad[i] * k.clip, m, v;

        if (decoupled) {
            p = p * k.decay;
        } else {
            g = g + k.weight_decay * p;
        }
        m = exp_avg[i] + k.mix1 * (g - exp_avg[i]);
        v = exp_avg_sq[i] * k.beta2 + k.mix2 * g * g;
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        param[i] = p - k.step_size * m / (sqrtf(v) / k.root_correction2 + k.eps);
    }
}

static int64_t n_chunks(const struct tt_rows *rows)
{
    return (rows->rows * rows->width + CHUNK - 1) / CHUNK;
}

static void update_tile(void *arg, int64_t tile, int worker)
{
    const struct update *u = arg;
    const struct tt_rows *rows = u->rows;
    int64_t begin, left;

    (void)worker;
    for (; tile >= n_chunks(rows); rows++)
        tile -= n_chunks(rows);
    begin = tile * CHUNK;
    left = rows->rows * rows->width - begin;
    if (left > CHUNK)
        left = CHUNK;
    if (u->decoupled) {
        update_range(u, true, rows->begin + begin, left);
    } else {
        update_range(u, false, rows->begin + begin, left);
    }
}

void tt_adamw(struct tt_team *team, const struct tt_scalars *scalars, bool decoupled, const struct tt_rows *rows, int n,
              float *param, const float *grad, float *exp_avg, float *exp_avg_sq)
{
    const struct tt_scalars *s = scalars;
    struct update u = {.rows = rows,
                       .grad = grad,
                       .decoupled = decoupled,
                       .clip = s->clip,
                       .decay = (float)(1.0 - s->lr * s->weight_decay),
                       .weight_decay = (float)s->weight_decay,
                       .mix1 = (float)(1.0 - s->beta1),
                       .beta2 = (float)s->beta2,
                       .mix2 = (float)(1.0 - s->beta2),
                       .step_size = (float)(s->lr / s->bias_correction1),
                       .root_correction2 = (float)sqrt(s->bias_correction2),
                       .eps = (float)s->eps};
    int64_t tiles = 0;

    u.param = param;
    u.exp_avg = exp_avg;
    u.exp_avg_sq = exp_avg_sq;
    for (int i = 0; i < n; i++)
        tiles += n_chunks(&rows[i]);
    tt_team_run(team, tiles, update_tile, &u);
}

/* SPDX-License-Identifier: MIT
 *
 * ADAMW: updates parameters.
 *   in    the gradient, which is multiplied by scalars->clip first
 *   out   param, exp_avg, exp_avg_sq: flat arrays of n floats, as `in` is; rows says which elements are updated
 *   decoupled: AdamW, else Adam, whose weight decay is added to the gradient
 *
 * AdamW and Adam (Loshchilov and Hutter 2019, Kingma and Ba 2015) in one pass over param, grad and both moments,
 * including clipping, with PyTorch's order of operations in float. Every variant of the kernel does one multiplication,
 * addition, division or root per step of the formula and fuses none. So an element gets the same bits in a vector, in a
 * tail, on every shard and with every instruction set.
 */
#include <math.h>

#include "core/kernels/kernels.h"
#include "core/math/round.h"
#include "core/ops/step/step.h"

enum { CHUNK = 1 << 14 }; /* elements per tile */

void tt_adamw_ref(const struct tt_adamw_numbers *numbers, float *param, const float *grad, float *exp_avg,
                  float *exp_avg_sq, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double p = (double)param[i], g = (double)grad[i] * (double)numbers->clip, m, v;

        if (numbers->decoupled) {
            p *= (double)numbers->decay;
        } else {
            g += (double)numbers->weight_decay * p;
        }
        m = (double)exp_avg[i] + (double)numbers->mix1 * (g - (double)exp_avg[i]);
        v = (double)exp_avg_sq[i] * (double)numbers->beta2 + (double)numbers->mix2 * g * g;
        exp_avg[i] = (float)m;
        exp_avg_sq[i] = (float)v;
        param[i] = (float)(p - (double)numbers->step_size * m /
                                   (sqrt(v) / (double)numbers->root_correction2 + (double)numbers->eps));
    }
}

/* Callers pass `decoupled` as a constant, so that the loops have no branch. */
static inline void update_range(const struct tt_adamw_numbers *numbers, bool decoupled, float *restrict param,
                                const float *restrict grad, float *restrict exp_avg, float *restrict exp_avg_sq,
                                int64_t n)
{
    const struct tt_adamw_numbers k = *numbers; /* in registers: the arrays cannot alias a local */

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

void tt_adamw_generic(const struct tt_adamw_numbers *numbers, float *param, const float *grad, float *exp_avg,
                      float *exp_avg_sq, int64_t n)
{
    if (numbers->decoupled) {
        update_range(numbers, true, param, grad, exp_avg, exp_avg_sq, n);
    } else {
        update_range(numbers, false, param, grad, exp_avg, exp_avg_sq, n);
    }
}

/* The arrays of a whole call. */
struct update {
    struct tt_adamw_numbers numbers;
    const struct tt_rows *rows;
    float *param;
    const float *grad;
    float *exp_avg, *exp_avg_sq;
};

static int64_t n_chunks(const struct tt_rows *rows)
{
    return tt_div_up(rows->rows * rows->width, CHUNK);
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
    begin += rows->begin;
    tt_kernels()->adamw(&u->numbers, u->param + begin, u->grad + begin, u->exp_avg + begin, u->exp_avg_sq + begin,
                        left);
}

static void run(const struct tt_step_call *call)
{
    const struct tt_scalars *s = call->scalars;
    struct update u = {.numbers = {.decoupled = call->decoupled,
                                   .clip = s->clip,
                                   .decay = (float)(1.0 - s->lr * s->weight_decay),
                                   .weight_decay = (float)s->weight_decay,
                                   .mix1 = (float)(1.0 - s->beta1),
                                   .beta2 = (float)s->beta2,
                                   .mix2 = (float)(1.0 - s->beta2),
                                   .step_size = (float)(s->lr / s->bias_correction1),
                                   .root_correction2 = (float)sqrt(s->bias_correction2),
                                   .eps = (float)s->eps},
                       .rows = call->rows,
                       .param = call->out[0],
                       .grad = call->in,
                       .exp_avg = call->out[1],
                       .exp_avg_sq = call->out[2]};
    int64_t tiles = 0;

    for (int i = 0; i < call->n_rows; i++)
        tiles += n_chunks(&call->rows[i]);
    tt_team_run(call->team, tiles, update_tile, &u);
}

static void cost(const struct tt_step_call *call, struct tt_cost *ret_cost)
{
    /* reads parameter, gradient and two moments, writes three */
    ret_cost->bytes = 7.0 * (double)sizeof(float) * (double)call->n;
}

const struct tt_step_row tt_step_op_adamw = {.name = "adamw", .run = run, .cost = cost};

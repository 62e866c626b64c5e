/* SPDX-License-Identifier: MIT
 *
 * LION (Chen et al. 2023): updates parameters by the sign of a mean of momentum and gradient.
 *   in    the gradient, which is multiplied by scalars->clip first
 *   out   param, exp_avg: flat arrays of n elements of type dtype; `in` is of floats; rows says which elements are
 *         updated, and each parameter's factor of the learning rate
 *   param = param (1 - lr weight_decay) - lr sign(beta1 exp_avg + (1 - beta1) gradient)
 *   exp_avg = beta2 exp_avg + (1 - beta2) gradient
 *
 * Each operation is a float operation, and none are fused, so an element gets the same bits on every shard. Arrays in
 * bfloat16 are rounded at random, as in adamw.c.
 */
#include "core/math/bf16.h"
#include "core/optim/optim.h"

struct numbers {
    tt_real clip, keep, step, beta1, mix1, beta2, mix2; /* keep: 1 - lr weight_decay; mix: 1 - beta */
};

static struct numbers numbers_of(const struct tt_scalars *s, const struct tt_rows *rows)
{
    double lr = s->lr * rows->lr_factor, weight_decay = rows->no_decay ? 0.0 : s->weight_decay;

    return (struct numbers){.clip = (tt_real)s->clip,
                            .keep = (tt_real)(1.0 - lr * weight_decay),
                            .step = (tt_real)lr,
                            .beta1 = (tt_real)s->beta1,
                            .mix1 = (tt_real)(1.0 - s->beta1),
                            .beta2 = (tt_real)s->beta2,
                            .mix2 = (tt_real)(1.0 - s->beta2)};
}

/* Returns the parameter, and the momentum in *m. */
static inline tt_real moved(const struct numbers *k, tt_real param, tt_real grad, tt_real *m)
{
    tt_real g = grad * k->clip, mean = k->beta1 * *m + k->mix1 * g;

    *m = k->beta2 * *m + k->mix2 * g;
    return param * k->keep - k->step * (mean > 0.0F ? 1.0F : mean < 0.0F ? -1.0F : mean); /* NaN stays NaN */
}

static void update(const struct tt_step_call *call, struct tt_update_part part)
{
    const struct numbers k = numbers_of(call->scalars, part.rows);
    const tt_real *restrict grad = call->in;
    struct tt_update_part run;

    while (tt_update_next(&part, &run))
        for (int64_t i = 0; i < run.n; i++) {
            int64_t at = run.begin + i;

            if (call->dtype == TT_BF16) {
                tt_bf16 *param = call->out[0], *exp_avg = call->out[1];
                tt_real m = tt_bf16_to_float(exp_avg[at]), p = moved(&k, tt_bf16_to_float(param[at]), grad[at], &m);
                uint64_t bits = tt_update_random(call, &run, i);

                param[at] = tt_bf16_from_float_random(p, (uint16_t)bits);
                exp_avg[at] = tt_bf16_from_float_random(m, (uint16_t)(bits >> 16));
            } else {
                tt_real *restrict param = call->out[0], *restrict exp_avg = call->out[1];

                param[at] = moved(&k, param[at], grad[at], &exp_avg[at]);
            }
        }
}

/* Reads and writes parameter and momentum, reads the gradient. */
const struct tt_step_row TT_OF_TYPE(tt_step_op_lion) = {
    .name = "lion", .run = tt_update_run, .update = update, .cost = tt_step_cost, .numbers = 4.0, .floats = 1.0};

const struct tt_optim_row TT_OF_TYPE(tt_optim_lion) = {
    .update = TT_STEP_LION,
    .moments = {"exp_avg"},
    .options = {{"betas", TT_TORCH_PAIR, .key = {"beta1", "beta2"}, .number = {0.9, 0.95}}},
};

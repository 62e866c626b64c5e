/* SPDX-License-Identifier: MIT
 *
 * ADAMW: updates parameters.
 *   in    the gradient, which is multiplied by scalars->clip first
 *   out   param, exp_avg, exp_avg_sq: flat arrays of n elements of type dtype; `in` is of floats; rows says which
 *         elements are updated, and each parameter's factor of the learning rate
 *   decoupled: AdamW, else Adam, whose weight decay is added to the gradient
 *
 * AdamW and Adam (Loshchilov and Hutter 2019, Kingma and Ba 2015) in one pass over param, grad and both moments,
 * including clipping, with PyTorch's order of operations in float. Every variant of the kernel does one multiplication,
 * addition, division or root per step of the formula and fuses none. So an element gets the same bits in a vector, in a
 * tail, on every shard and with every instruction set.
 *
 * Weights and moments in bfloat16 are widened, updated as floats, and rounded at random (tt_bf16_from_float_random).
 * To the nearest, a step that changes a weight by less than 1/256 of itself would be lost every time, and a second
 * moment with beta2 above 0.996 could never shrink. At random, the mean is that of float32. The random bits are a
 * function of seed, step, the parameter's name and the element's index in it, so they depend neither on the layout nor
 * on threads, and a resumed run draws the same. The new moments that the weight's update uses are not yet rounded.
 */
#include <math.h>

#include "core/kernels/kernels.h"
#include "core/math/rng.h"
#include "core/math/round.h"
#include "core/ops/step/step.h"

enum { CHUNK = 1 << 14 }; /* elements per tile */

/* The random bits of element i; 16 of them for each of param, exp_avg and exp_avg_sq, the lowest first. */
static uint64_t random_bits(const struct tt_adamw_rounding *rounding, int64_t i)
{
    const struct tt_rng rng = {rounding->seed, rounding->stream};

    return tt_rng_bits(&rng, rounding->first + (uint64_t)i);
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

void tt_adamw_bf16_generic(const struct tt_adamw_numbers *numbers, const struct tt_adamw_rounding *rounding,
                           tt_bf16 *param, const float *grad, tt_bf16 *exp_avg, tt_bf16 *exp_avg_sq, int64_t n)
{
    enum { BLOCK = 256 };
    float p[BLOCK], m[BLOCK], v[BLOCK];

    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t size = n - at < BLOCK ? n - at : BLOCK;

        tt_bf16_widen_generic(p, param + at, size);
        tt_bf16_widen_generic(m, exp_avg + at, size);
        tt_bf16_widen_generic(v, exp_avg_sq + at, size);
        tt_adamw_generic(numbers, p, grad + at, m, v, size);
        for (int64_t i = 0; i < size; i++) {
            uint64_t bits = random_bits(rounding, at + i);

            param[at + i] = tt_bf16_from_float_random(p[i], (uint16_t)bits);
            exp_avg[at + i] = tt_bf16_from_float_random(m[i], (uint16_t)(bits >> 16));
            exp_avg_sq[at + i] = tt_bf16_from_float_random(v[i], (uint16_t)(bits >> 32));
        }
    }
}

/* The numbers of a parameter in this step. */
static struct tt_adamw_numbers numbers_of(const struct tt_step_call *call, const struct tt_rows *rows)
{
    const struct tt_scalars *s = call->scalars;
    double lr = s->lr * rows->lr_factor, weight_decay = rows->no_decay ? 0.0 : s->weight_decay;

    return (struct tt_adamw_numbers){.decoupled = call->decoupled,
                                     .clip = s->clip,
                                     .decay = (float)(1.0 - lr * weight_decay),
                                     .weight_decay = (float)weight_decay,
                                     .mix1 = (float)(1.0 - s->beta1),
                                     .beta2 = (float)s->beta2,
                                     .mix2 = (float)(1.0 - s->beta2),
                                     .step_size = (float)(lr / s->bias_correction1),
                                     .root_correction2 = (float)sqrt(s->bias_correction2),
                                     .eps = (float)s->eps};
}

static int64_t n_chunks(const struct tt_rows *rows)
{
    return tt_div_up(rows->rows * rows->width, CHUNK);
}

/* Updates elements [first, first + n) of the rows: by runs whose elements are neighbours in the whole parameter too. */
static void update_rounded(const struct tt_step_call *call, const struct tt_adamw_numbers *numbers,
                           const struct tt_rows *rows, int64_t first, int64_t n)
{
    bool whole = rows->width == rows->stride;

    for (int64_t end = first + n, run; first < end; first += run) {
        int64_t row = whole ? 0 : first / rows->width, in_row = first - row * rows->width, begin = rows->begin + first;
        const struct tt_adamw_rounding rounding = {call->scalars->rounding_seed, rows->stream,
                                                   (uint64_t)(rows->index + row * rows->stride + in_row)};

        run = whole || end - first < rows->width - in_row ? end - first : rows->width - in_row;
        tt_kernels()->adamw_bf16(numbers, &rounding, (tt_bf16 *)call->out[0] + begin, (const float *)call->in + begin,
                                 (tt_bf16 *)call->out[1] + begin, (tt_bf16 *)call->out[2] + begin, run);
    }
}

static void update_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_step_call *call = arg;
    const struct tt_rows *rows = call->rows;
    struct tt_adamw_numbers numbers;
    int64_t first, begin, left;

    (void)worker;
    for (; tile >= n_chunks(rows); rows++)
        tile -= n_chunks(rows);
    numbers = numbers_of(call, rows);
    first = tile * CHUNK;
    left = rows->rows * rows->width - first;
    if (left > CHUNK)
        left = CHUNK;
    begin = rows->begin + first;
    if (call->dtype == TT_BF16) {
        update_rounded(call, &numbers, rows, first, left);
    } else {
        tt_kernels()->adamw(&numbers, (float *)call->out[0] + begin, (const float *)call->in + begin,
                            (float *)call->out[1] + begin, (float *)call->out[2] + begin, left);
    }
}

static void run(const struct tt_step_call *call)
{
    struct tt_step_call copy = *call;
    int64_t tiles = 0;

    for (int i = 0; i < call->n_rows; i++)
        tiles += n_chunks(&call->rows[i]);
    tt_team_run(call->team, tiles, update_tile, &copy);
}

static void cost(const struct tt_step_call *call, struct tt_cost *ret_cost)
{
    /* reads and writes parameter and two moments, reads the gradient */
    ret_cost->bytes = (6.0 * (double)tt_dtype_size(call->dtype) + (double)sizeof(float)) * (double)call->n;
}

const struct tt_step_row tt_step_op_adamw = {.name = "adamw", .run = run, .cost = cost};

/* SPDX-License-Identifier: MIT
 *
 * Muon (Jordan 2024, torch.optim.Muon) for the matrices of transformer blocks: what it does to single elements. Between
 * the two ops the updates of a matrix are gathered and orthogonalized (orthogonalize.c).
 *
 * MOMENTUM: the update before it is orthogonalized.
 *   out   the gradient, which is multiplied by scalars->clip and replaced by the update; the momentum: flat arrays of n
 *         elements. The gradient is of floats, the momentum of type dtype; rows says which elements count
 *   momentum += (1 - scalars->momentum) (gradient - momentum); the update is the momentum, or with scalars->nesterov
 *   gradient + scalars->momentum (momentum - gradient).
 *
 * MUON: updates this rank's part of one matrix.
 *   in    the whole matrix of the orthogonalized update, floats
 *   n     its rows; rows (below) have its columns as stride
 *   out   param, a flat array of type dtype; rows (one) says which elements are updated
 *   param = param (1 - lr weight_decay) - lr factor update, where scalars->muon_lr says how the factor depends on the
 *   shape (rows, columns):
 *     ORIGINAL            sqrt(max(1, rows / columns))
 *     MATCH_RMS_ADAMW     0.2 sqrt(max(rows, columns)): elements change about as much as AdamW changes them, so AdamW's
 *                         learning rate and weight decay can be used (Liu et al. 2025)
 *     SPECTRAL_UNCLAMPED  sqrt(rows / columns)
 *
 * Both do the same float operations for each element and fuse none, so an element gets the same bits on every shard.
 * Weights and momentum in bfloat16 are rounded at random, as in adamw.c, with bits of the same generator; the update
 * uses the momentum that is not yet rounded.
 */
#include <math.h>

#include "core/math/bf16.h"
#include "core/math/rng.h"
#include "core/math/round.h"
#include "core/ops/step/step.h"

enum { CHUNK = 1 << 14 }; /* elements per tile */

/* The elements that a tile updates. */
struct part {
    const struct tt_rows *rows;
    int64_t first; /* of the rows' elements */
    int64_t begin; /* in the flat arrays */
    int64_t index; /* in the whole parameter */
    int64_t n;
};

static int64_t n_chunks(const struct tt_rows *rows)
{
    return tt_div_up(rows->rows * rows->width, CHUNK);
}

static struct part part_of(const struct tt_step_call *call, int64_t tile)
{
    const struct tt_rows *rows = call->rows;
    int64_t first, left;

    for (; tile >= n_chunks(rows); rows++)
        tile -= n_chunks(rows);
    first = tile * CHUNK;
    left = rows->rows * rows->width - first;
    return (struct part){rows, first, rows->begin + first, 0, left < CHUNK ? left : CHUNK};
}

/* Takes from a tile's part the next elements that are neighbours in the whole parameter too; false: none is left. */
static bool next_run(struct part *left, struct part *ret_run)
{
    const struct tt_rows *rows = left->rows;
    bool whole = rows->width == rows->stride;
    int64_t row = whole ? 0 : left->first / rows->width, in_row = left->first - row * rows->width;

    if (left->n == 0)
        return false;
    *ret_run = *left;
    ret_run->index = rows->index + row * rows->stride + in_row;
    if (!whole && rows->width - in_row < left->n)
        ret_run->n = rows->width - in_row;
    left->first += ret_run->n;
    left->begin += ret_run->n;
    left->n -= ret_run->n;
    return true;
}

static void run_tiles(const struct tt_step_call *call, void (*tile)(void *arg, int64_t tile, int worker))
{
    struct tt_step_call copy = *call;
    int64_t tiles = 0;

    for (int i = 0; i < call->n_rows; i++)
        tiles += n_chunks(&call->rows[i]);
    tt_team_run(call->team, tiles, tile, &copy);
}

/* The random bits of an element: the lowest 16 for the parameter, the next for the momentum. */
static uint64_t random_bits(const struct tt_step_call *call, const struct part *at, int64_t i)
{
    const struct tt_rng rng = {call->scalars->rounding_seed, at->rows->stream};

    return tt_rng_bits(&rng, (uint64_t)(at->index + i));
}

/* --- MOMENTUM --- */

struct momentum_numbers {
    float clip, mix; /* mix: 1 - momentum */
    bool nesterov;
};

/* Returns the update of one element, and its momentum in *m. */
static inline float moved(const struct momentum_numbers *k, float grad, float *m)
{
    float g = grad * k->clip;

    *m = *m + k->mix * (g - *m);
    return k->nesterov ? *m - k->mix * (*m - g) : *m;
}

static void move(const struct tt_step_call *call, const struct momentum_numbers *k, const struct part *at)
{
    float *restrict grad = (float *)call->out[0] + at->begin;

    if (call->dtype == TT_BF16) {
        tt_bf16 *momentum = (tt_bf16 *)call->out[1] + at->begin;

        for (int64_t i = 0; i < at->n; i++) {
            float m = tt_bf16_to_float(momentum[i]);

            grad[i] = moved(k, grad[i], &m);
            momentum[i] = tt_bf16_from_float_random(m, (uint16_t)(random_bits(call, at, i) >> 16));
        }
    } else {
        float *restrict momentum = (float *)call->out[1] + at->begin;

        for (int64_t i = 0; i < at->n; i++)
            grad[i] = moved(k, grad[i], &momentum[i]);
    }
}

static void momentum_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_step_call *call = arg;
    const struct momentum_numbers k = {call->scalars->clip, (float)(1.0 - call->scalars->momentum),
                                       call->scalars->nesterov};
    struct part left = part_of(call, tile), at;

    (void)worker;
    while (next_run(&left, &at))
        move(call, &k, &at);
}

static void run_momentum(const struct tt_step_call *call)
{
    run_tiles(call, momentum_tile);
}

static void cost_of_momentum(const struct tt_step_call *call, struct tt_cost *ret_cost)
{
    /* reads and writes gradient and momentum */
    ret_cost->bytes = 2.0 * (double)(tt_dtype_size(call->dtype) + sizeof(float)) * (double)call->n;
}

const struct tt_step_row tt_step_op_momentum = {.name = "momentum", .run = run_momentum, .cost = cost_of_momentum};

/* --- MUON --- */

static double lr_factor(enum tt_muon_lr how, double rows, double columns)
{
    switch (how) {
    case TT_MUON_MATCH_RMS_ADAMW:
        return 0.2 * sqrt(fmax(rows, columns));
    case TT_MUON_SPECTRAL_UNCLAMPED:
        return sqrt(rows / columns);
    default:
        return sqrt(fmax(1.0, rows / columns));
    }
}

static void apply(const struct tt_step_call *call, float keep, float step, const struct part *at)
{
    const float *restrict update = (const float *)call->in + at->index;

    if (call->dtype == TT_BF16) {
        tt_bf16 *param = (tt_bf16 *)call->out[0] + at->begin;

        for (int64_t i = 0; i < at->n; i++) {
            float p = tt_bf16_to_float(param[i]) * keep - step * update[i];

            param[i] = tt_bf16_from_float_random(p, (uint16_t)random_bits(call, at, i));
        }
    } else {
        float *restrict param = (float *)call->out[0] + at->begin;

        for (int64_t i = 0; i < at->n; i++)
            param[i] = param[i] * keep - step * update[i];
    }
}

static void update_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_step_call *call = arg;
    const struct tt_scalars *s = call->scalars;
    struct part left = part_of(call, tile), at;
    const struct tt_rows *rows = left.rows;
    double lr = s->lr * rows->lr_factor, weight_decay = rows->no_decay ? 0.0 : s->weight_decay;
    const float keep = (float)(1.0 - lr * weight_decay);
    const float step = (float)(lr * lr_factor(s->muon_lr, (double)call->n, (double)rows->stride));

    (void)worker;
    while (next_run(&left, &at))
        apply(call, keep, step, &at);
}

static void run_update(const struct tt_step_call *call)
{
    run_tiles(call, update_tile);
}

static void cost_of_update(const struct tt_step_call *call, struct tt_cost *ret_cost)
{
    const struct tt_rows *rows = call->rows;

    /* reads the update, reads and writes the parameter */
    ret_cost->bytes =
        (double)(2 * tt_dtype_size(call->dtype) + sizeof(float)) * (double)rows->rows * (double)rows->width;
}

const struct tt_step_row tt_step_op_muon = {.name = "muon", .run = run_update, .cost = cost_of_update};

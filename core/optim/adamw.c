/* SPDX-License-Identifier: MIT
 *
 * ADAMW and ADAM: update parameters. Adam adds the weight decay to the gradient.
 *   in    the gradient, which is multiplied by scalars->clip first
 *   out   param, exp_avg, exp_avg_sq: flat arrays of n elements of type dtype; `in` is of floats; rows says which
 *         elements are updated, and each parameter's factor of the learning rate
 *
 * AdamW and Adam (Loshchilov and Hutter 2019, Kingma and Ba 2015) in one pass over param, grad and both moments,
 * including clipping, with PyTorch's order of operations in float. Every variant of the kernel does one multiplication,
 * addition, division or root per step of the formula and fuses none. So an element gets the same bits in a vector, in a
 * tail, on every shard and with every instruction set.
 *
 * Weights and moments in bfloat16 are widened, updated as floats, and rounded at random (tt_bf16_from_float_random). If
 * they were rounded to nearest, a step that changes a weight by less than 1/256 of itself would always be lost, and a
 * second moment with beta2 above 0.996 could never shrink. With random rounding, the mean equals that of float32. The
 * random bits are a function of seed, step, the parameter's name and the element's index in it, so they depend neither
 * on the layout nor on threads, and a resumed run draws the same bits. The weight's update uses the new moments before
 * they are rounded.
 *
 * ADAMW_8BIT: AdamW with moments of 8 bits in blocks (Dettmers et al. 2022; core/math/dynamic.h), as bitsandbytes'
 * AdamW8bit.
 *   in       the gradient, as above
 *   out      [0] param, of type dtype; [1] and [2] the codes of both moments, bytes. rows says where the codes and the
 *            blocks of a parameter are
 *   largest  the largest magnitude of each block, of both moments
 *
 * A block is widened into floats, updated as above, and rounded to the nearest codes. The parameter's update uses the
 * new moments before they are rounded. An element's bits depend on its whole block, so a block is never divided:
 * parallel/layout cuts parameters where blocks end, and tiles are whole blocks.
 */
#include <math.h>

#include "core/kernels/kernels.h"
#include "core/math/rng.h"
#include "core/optim/optim.h"

/* Callers pass `decoupled` as a constant, so that the loops have no branch. */
static inline void update_range(const struct tt_adamw_numbers *numbers, bool decoupled, tt_real *restrict param,
                                const tt_real *restrict grad, tt_real *restrict exp_avg, tt_real *restrict exp_avg_sq,
                                int64_t n)
{
    const struct tt_adamw_numbers k = *numbers; /* local copies, for registers: the arrays cannot alias them */

    for (int64_t i = 0; i < n; i++) {
        tt_real p = param[i], g = grad[i] * k.clip, m, v;

        if (decoupled) {
            p = p * k.decay;
        } else {
            g = g + k.weight_decay * p;
        }
        m = exp_avg[i] + k.mix1 * (g - exp_avg[i]);
        v = exp_avg_sq[i] * k.beta2 + k.mix2 * g * g;
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
        param[i] = p - k.step_size * m / (tt_sqrt(v) / k.root_correction2 + k.eps);
    }
}

void TT_LOOPS(adamw)(const struct tt_adamw_numbers *numbers, tt_real *param, const tt_real *grad, tt_real *exp_avg,
                     tt_real *exp_avg_sq, int64_t n)
{
    if (numbers->decoupled) {
        update_range(numbers, true, param, grad, exp_avg, exp_avg_sq, n);
    } else {
        update_range(numbers, false, param, grad, exp_avg, exp_avg_sq, n);
    }
}

void TT_LOOPS(adamw_bf16)(const struct tt_adamw_numbers *numbers, const struct tt_adamw_rounding *rounding,
                          tt_bf16 *param, const tt_real *grad, tt_bf16 *exp_avg, tt_bf16 *exp_avg_sq, int64_t n)
{
    enum { BLOCK = 256 };
    const struct tt_rng rng = {rounding->seed, rounding->stream};
    tt_real p[BLOCK], m[BLOCK], v[BLOCK];

    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t size = n - at < BLOCK ? n - at : BLOCK;

        TT_LOOPS(bf16_widen)(p, param + at, size);
        TT_LOOPS(bf16_widen)(m, exp_avg + at, size);
        TT_LOOPS(bf16_widen)(v, exp_avg_sq + at, size);
        TT_LOOPS(adamw)(numbers, p, grad + at, m, v, size);
        for (int64_t i = 0; i < size; i++) {
            uint64_t bits = tt_rng_bits(&rng, rounding->first + (uint64_t)(at + i)); /* 16 for each of the three */

            param[at + i] = tt_bf16_from_float_random(p[i], (uint16_t)bits);
            exp_avg[at + i] = tt_bf16_from_float_random(m[i], (uint16_t)(bits >> 16));
            exp_avg_sq[at + i] = tt_bf16_from_float_random(v[i], (uint16_t)(bits >> 32));
        }
    }
}

/* The largest magnitude. As numbers without a sign, floats have the order of their bits, of which compilers find the
 * largest in vectors. */
static tt_real largest_of(const tt_real *x, int64_t n)
{
    tt_real_bits most = 0;
    tt_real largest;

    for (int64_t i = 0; i < n; i++) {
        tt_real_bits bits;

        memcpy(&bits, &x[i], sizeof bits);
        bits &= TT_REAL_BITS_MAX;
        most = bits > most ? bits : most;
    }
    memcpy(&largest, &most, sizeof largest);
    return largest;
}

/* Overwrites x. A block of zeros has code 0, as before the first step. */
static void store_codes(const struct tt_dynamic *map, tt_real *x, tt_real largest, int64_t n, uint8_t *code)
{
    if (!(largest > 0.0F)) {
        memset(code, 0, (size_t)n);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        x[i] /= largest;
    for (int64_t i = 0; i < n; i++)
        code[i] = tt_dynamic_code(map, x[i]);
}

/* Callers pass param or half, and NULL for the other one. */
static inline void update_blocks(const struct tt_adamw_numbers *numbers, const struct tt_adamw_rounding *rounding,
                                 tt_real *param, tt_bf16 *half, const tt_real *grad,
                                 const struct tt_moment_blocks *moments, int64_t n)
{
    tt_real moment[2][TT_DYNAMIC_BLOCK], widened[TT_DYNAMIC_BLOCK];

    for (int64_t at = 0; at < n; at += TT_DYNAMIC_BLOCK) {
        int64_t size = n - at < TT_DYNAMIC_BLOCK ? n - at : TT_DYNAMIC_BLOCK, block = at / TT_DYNAMIC_BLOCK;

        for (int k = 0; k < 2; k++)
            for (int64_t i = 0; i < size; i++)
                moment[k][i] = moments->map[k]->number[moments->code[k][at + i]] * moments->largest[k][block];
        if (half)
            TT_LOOPS(bf16_widen)(widened, half + at, size);
        TT_LOOPS(adamw)(numbers, half ? widened : param + at, grad + at, moment[0], moment[1], size);
        for (int64_t i = 0; half && i < size; i++) {
            const struct tt_rng rng = {rounding->seed, rounding->stream};

            half[at + i] = tt_bf16_from_float_random(widened[i],
                                                     (uint16_t)tt_rng_bits(&rng, rounding->first + (uint64_t)(at + i)));
        }
        for (int k = 0; k < 2; k++) {
            moments->largest[k][block] = largest_of(moment[k], size);
            store_codes(moments->map[k], moment[k], moments->largest[k][block], size, moments->code[k] + at);
        }
    }
}

void TT_LOOPS(adamw_8bit)(const struct tt_adamw_numbers *numbers, tt_real *param, const tt_real *grad,
                          const struct tt_moment_blocks *moments, int64_t n)
{
    update_blocks(numbers, NULL, param, NULL, grad, moments, n);
}

void TT_LOOPS(adamw_8bit_bf16)(const struct tt_adamw_numbers *numbers, const struct tt_adamw_rounding *rounding,
                               tt_bf16 *param, const tt_real *grad, const struct tt_moment_blocks *moments, int64_t n)
{
    update_blocks(numbers, rounding, NULL, param, grad, moments, n);
}

/* The numbers for a parameter in this step. */
static struct tt_adamw_numbers numbers_of(const struct tt_step_call *call, const struct tt_rows *rows)
{
    const struct tt_scalars *s = call->scalars;
    double lr = s->lr * rows->lr_factor, weight_decay = rows->no_decay ? 0.0 : s->weight_decay;

    return (struct tt_adamw_numbers){.decoupled = call->op != TT_STEP_ADAM,
                                     .clip = (tt_real)s->clip,
                                     .decay = (tt_real)(1.0 - lr * weight_decay),
                                     .weight_decay = (tt_real)weight_decay,
                                     .mix1 = (tt_real)(1.0 - s->beta1),
                                     .beta2 = (tt_real)s->beta2,
                                     .mix2 = (tt_real)(1.0 - s->beta2),
                                     .step_size = (tt_real)(lr / s->bias_correction1),
                                     .root_correction2 = (tt_real)sqrt(s->bias_correction2),
                                     .eps = (tt_real)s->eps};
}

static void update(const struct tt_step_call *call, struct tt_update_part part)
{
    const struct tt_adamw_numbers numbers = numbers_of(call, part.rows);
    struct tt_update_part run;

    if (call->dtype != TT_BF16) {
        tt_kernels()->adamw(&numbers, (tt_real *)call->out[0] + part.begin, (const tt_real *)call->in + part.begin,
                            (tt_real *)call->out[1] + part.begin, (tt_real *)call->out[2] + part.begin, part.n);
        return;
    }
    while (tt_update_next(&part, &run)) {
        const struct tt_adamw_rounding rounding = {call->scalars->step_seed, run.rows->stream, (uint64_t)run.index};

        tt_kernels()->adamw_bf16(&numbers, &rounding, (tt_bf16 *)call->out[0] + run.begin,
                                 (const tt_real *)call->in + run.begin, (tt_bf16 *)call->out[1] + run.begin,
                                 (tt_bf16 *)call->out[2] + run.begin, run.n);
    }
}

/* Reads and writes parameter and two moments, reads the gradient. */
#define STEP(op)                                                                                                  \
    {                                                                                                             \
        .name = (op), .run = tt_update_run, .update = update, .cost = tt_step_cost, .numbers = 6.0, .floats = 1.0 \
    }

const struct tt_step_row TT_OF_TYPE(tt_step_op_adamw) = STEP("adamw");
const struct tt_step_row TT_OF_TYPE(tt_step_op_adam) = STEP("adam");

/* --- moments in blocks --- */

enum { TILE = 64 }; /* blocks */

static int64_t blocks_of(const struct tt_rows *rows)
{
    return tt_blocks_count(rows->rows * rows->width, rows->run);
}

/* Updates n blocks from `block` on, which are in one run. */
static void update_run(const struct tt_step_call *call, const struct tt_rows *rows, int64_t block, int64_t n)
{
    const struct tt_adamw_numbers numbers = numbers_of(call, rows);
    int64_t run = tt_blocks_run(rows->run, rows->rows * rows->width), of_run = tt_div_up(run, TT_DYNAMIC_BLOCK);
    int64_t in_run = block % of_run * TT_DYNAMIC_BLOCK, first = block / of_run * run + in_run;
    int64_t left = run - in_run, code = rows->code + first, elements = n * TT_DYNAMIC_BLOCK;
    struct tt_moment_blocks moments = {.map = {tt_dynamic_map(true), tt_dynamic_map(false)}};
    struct tt_update_part part = {rows, first, rows->begin + first, 0, elements < left ? elements : left};
    const tt_real *grad = (const tt_real *)call->in + part.begin;

    for (int k = 0; k < 2; k++) {
        moments.code[k] = (uint8_t *)call->out[1 + k] + code;
        moments.largest[k] = call->largest[k] + rows->block + block;
    }
    if (call->dtype == TT_BF16) {
        struct tt_update_part whole = part;
        struct tt_adamw_rounding rounding;

        (void)tt_update_next(&whole, &part); /* a run is contiguous in the whole parameter: this is all of it */
        rounding = (struct tt_adamw_rounding){call->scalars->step_seed, rows->stream, (uint64_t)part.index};
        tt_kernels()->adamw_8bit_bf16(&numbers, &rounding, (tt_bf16 *)call->out[0] + part.begin, grad, &moments,
                                      part.n);
    } else {
        tt_kernels()->adamw_8bit(&numbers, (tt_real *)call->out[0] + part.begin, grad, &moments, part.n);
    }
}

static void update_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_step_call *call = arg;
    const struct tt_rows *rows = call->rows;
    struct tt_range blocks;
    int64_t of_run, n;

    (void)worker;
    for (; tile >= tt_tiles(blocks_of(rows), TILE); rows++)
        tile -= tt_tiles(blocks_of(rows), TILE);
    blocks = tt_tile_range(blocks_of(rows), TILE, tile);
    of_run = tt_div_up(tt_blocks_run(rows->run, rows->rows * rows->width), TT_DYNAMIC_BLOCK);
    for (; blocks.n > 0; blocks.begin += n, blocks.n -= n) {
        n = of_run - blocks.begin % of_run;
        n = n < blocks.n ? n : blocks.n;
        update_run(call, rows, blocks.begin, n);
    }
}

static void run(const struct tt_step_call *call)
{
    int64_t tiles = 0;

    for (int i = 0; i < call->n_rows; i++)
        tiles += tt_tiles(blocks_of(&call->rows[i]), TILE);
    tt_team_run(call->team, tiles, update_tile, (void *)call);
}

/* Reads and writes the parameter; reads the gradient; reads and writes two bytes, and 1/256 of two floats. */
const struct tt_step_row TT_OF_TYPE(tt_step_op_adamw_8bit) = {
    .name = "adamw_8bit", .run = run, .cost = tt_step_cost, .numbers = 2.0, .floats = 2.0 + 4.0 / TT_DYNAMIC_BLOCK};

/* --- the optimizers --- */

/* PyTorch takes all options of the optimizer from the checkpoint, including the implementation: the fused kernel,
 * torchtitan's default. */
#define OPTIONS(decoupled)                                                                                      \
    {                                                                                                           \
        {"betas", TT_TORCH_PAIR, .key = {"beta1", "beta2"}, .number = {0.9, 0.95}},                             \
            {"eps", TT_TORCH_REAL, .key = {"eps"}, .number = {1e-8}},                                           \
            {"decoupled_weight_decay", TT_TORCH_FLAG, .number = {decoupled}},                                   \
            {"fused", TT_TORCH_FLAG, .number = {1.0}}, {"foreach", TT_TORCH_FLAG, .number = {0.0}},             \
            {"amsgrad", TT_TORCH_FLAG, .number = {0.0}}, {"maximize", TT_TORCH_FLAG, .number = {0.0}},          \
            {"capturable", TT_TORCH_FLAG, .number = {0.0}}, {"differentiable", TT_TORCH_FLAG, .number = {0.0}}, \
    }

const struct tt_optim_row TT_OF_TYPE(tt_optim_adamw) = {
    .update = TT_STEP_ADAMW, .moments = {"exp_avg", "exp_avg_sq"}, .counts_steps = true, .options = OPTIONS(1.0)};
const struct tt_optim_row TT_OF_TYPE(tt_optim_adam) = {
    .update = TT_STEP_ADAM, .moments = {"exp_avg", "exp_avg_sq"}, .counts_steps = true, .options = OPTIONS(0.0)};
const struct tt_optim_row TT_OF_TYPE(tt_optim_adamw_8bit) = {
    .update = TT_STEP_ADAMW_8BIT,
    .codes = {"state1", "state2"},
    .largest = {"absmax1", "absmax2"},
    .counts_steps = true,
    .options = {{"betas", TT_TORCH_PAIR, .key = {"beta1", "beta2"}, .number = {0.9, 0.95}},
                {"eps", TT_TORCH_REAL, .key = {"eps"}, .number = {1e-8}}},
};

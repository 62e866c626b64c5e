/* SPDX-License-Identifier: MIT
 *
 * AVERAGE: the exponential moving average of weights after a step.
 *   in    the weights: n elements of type dtype
 *   out   their averages: n floats, average = decay * average + (1 - decay) * weight
 *   scalars->average_decay
 *
 * Each operation is a float operation, and none are fused, so an element has the same bits wherever it is stored.
 * Averages of weights in bfloat16 are floats too: most steps are smaller than half the distance to the next bfloat16.
 */
#include "core/math/bf16.h"
#include "core/ops/rule.h"
#include "core/ops/step/step.h"

enum { CHUNK = 1 << 14 }; /* elements per tile */

static void add_floats(tt_real *restrict average, const tt_real *restrict weight, int64_t n, tt_real decay, tt_real mix)
{
    for (int64_t i = 0; i < n; i++)
        average[i] = decay * average[i] + mix * weight[i];
}

static void add_bf16(tt_real *restrict average, const tt_bf16 *restrict weight, int64_t n, tt_real decay, tt_real mix)
{
    for (int64_t i = 0; i < n; i++)
        average[i] = decay * average[i] + mix * tt_bf16_to_float(weight[i]);
}

static void average_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_step_call *call = arg;
    struct tt_range part = tt_tile_range(call->n, CHUNK, tile);
    tt_real decay = (tt_real)call->scalars->average_decay, mix = (tt_real)(1.0 - call->scalars->average_decay);
    tt_real *average = (tt_real *)call->out[0] + part.begin;

    (void)worker;
    if (call->dtype == TT_BF16)
        add_bf16(average, (const tt_bf16 *)call->in + part.begin, part.n, decay, mix);
    else
        add_floats(average, (const tt_real *)call->in + part.begin, part.n, decay, mix);
}

static void average_run(const struct tt_step_call *call)
{
    tt_team_run(call->team, tt_tiles(call->n, CHUNK), average_tile, (void *)call);
}

/* Reads the weights, reads and writes the averages. */
const struct tt_step_row TT_OF_TYPE(tt_step_op_average) = {
    .name = "average", .run = average_run, .cost = tt_step_cost, .numbers = 1.0, .floats = 2.0};

/*
 * BALANCE: moves the biases of a layer's experts towards an even load, as torchtitan does. An expert's bias grows by
 * balance_coeff if its load is below the mean, and shrinks by it if its load is above; then the mean of these changes
 * is subtracted from each.
 *   in   n int64, the loads of the experts      out   n floats, the biases, which are added to
 *   scalars balance_coeff
 *
 * Loads are integers, and so are the signs and their sum: the biases have the same bits on every layout.
 */

/* The sign of (mean - load). */
static int sign_of(int64_t sum, int64_t n, int64_t load)
{
    return (sum > n * load) - (sum < n * load);
}

static void balance_run(const struct tt_step_call *call)
{
    const int64_t *loads = call->in;
    tt_real *biases = call->out[0], coeff = (tt_real)call->scalars->balance_coeff;
    int64_t sum = 0, signs = 0;

    for (int64_t i = 0; i < call->n; i++)
        sum += loads[i];
    for (int64_t i = 0; i < call->n; i++)
        signs += sign_of(sum, call->n, loads[i]);
    for (int64_t i = 0; i < call->n; i++) {
        double centred = (double)sign_of(sum, call->n, loads[i]) - (double)signs / (double)call->n;

        biases[i] += (tt_real)((double)coeff * centred);
    }
}

/* Reads and writes the biases; a load has the size of two floats. */
const struct tt_step_row TT_OF_TYPE(tt_step_op_balance) = {
    .name = "balance", .run = balance_run, .cost = tt_step_cost, .floats = 4.0};

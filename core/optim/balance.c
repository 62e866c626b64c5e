/* SPDX-License-Identifier: MIT
 *
 * BALANCE: moves the biases of a layer's experts towards an even load, as torchtitan does. Experts with less than the
 * mean load get balance_coeff, those with more lose it; then the mean of these changes is subtracted from each.
 *   in   n int64, the loads of the experts      out   n floats, the biases, which are added to
 *   scalars balance_coeff
 *
 * Loads are integers, and so are the signs and their sum: the biases have the same bits on every layout.
 */
#include "core/ops/step/step.h"

/* Of mean - load. */
static int sign_of(int64_t sum, int64_t n, int64_t load)
{
    return (sum > n * load) - (sum < n * load);
}

static void run(const struct tt_step_call *call)
{
    const int64_t *loads = call->in;
    float *biases = call->out[0], coeff = call->scalars->balance_coeff;
    int64_t sum = 0, signs = 0;

    for (int64_t i = 0; i < call->n; i++)
        sum += loads[i];
    for (int64_t i = 0; i < call->n; i++)
        signs += sign_of(sum, call->n, loads[i]);
    for (int64_t i = 0; i < call->n; i++) {
        double centred = (double)sign_of(sum, call->n, loads[i]) - (double)signs / (double)call->n;

        biases[i] += (float)((double)coeff * centred);
    }
}

static void cost(const struct tt_step_call *call, struct tt_cost *ret_cost)
{
    ret_cost->bytes = (2.0 * sizeof(float) + sizeof(int64_t)) * (double)call->n;
}

const struct tt_step_row tt_step_op_balance = {.name = "balance", .run = run, .cost = cost};

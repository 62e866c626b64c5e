/* SPDX-License-Identifier: MIT
 *
 * COUNT: adds to the counter of each expert the slots that it got.
 *   in   n int32, experts, negative where there is no token      out   int64 counters, one for each expert
 */
#include "core/ops/step/step.h"

/* One pass over few integers, so one thread does it. */
static void run(const struct tt_step_call *call)
{
    const int32_t *experts = call->in;
    int64_t *counters = call->out[0];

    for (int64_t i = 0; i < call->n; i++)
        if (experts[i] >= 0)
            counters[experts[i]]++;
}

static void cost(const struct tt_step_call *call, struct tt_cost *ret_cost)
{
    ret_cost->bytes = (double)sizeof(int32_t) * (double)call->n;
}

const struct tt_step_row tt_step_op_count = {.name = "count", .run = run, .cost = cost};

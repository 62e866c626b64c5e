/* SPDX-License-Identifier: MIT
 *
 * FOLD: adds a sum of gradients to those that follow it in the tree over microbatches.
 *   sums   `parts` arrays of n floats: a sum, then its neighbours in the tree from the smallest to the largest; the
 *          last one is also written
 *
 * ADD: out[0] = [out[1] +] in
 *   in, out[1]   n floats; out[1] may be absent or be out[0]
 */
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/math/round.h"
#include "core/ops/step/step.h"

enum { TILE = 4096 };

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_step_call *call = arg;
    int64_t begin = tile * TILE;
    int64_t n = call->n - begin < TILE ? call->n - begin : TILE;
    const float *sum = (const float *)call->sums[0] + begin;
    float between[TILE];

    (void)worker;
    for (int64_t s = 1; s < call->parts; s++) {
        float *level = (float *)call->sums[s] + begin, *into = s == call->parts - 1 ? level : between;

        tt_kernels()->add(into, level, sum, n);
        sum = into;
    }
}

static void run(const struct tt_step_call *call)
{
    tt_team_run(call->team, tt_div_up(call->n, TILE), run_tile, (void *)call);
}

static void cost(const struct tt_step_call *call, struct tt_cost *ret_cost)
{
    ret_cost->bytes = ((double)call->parts + 1.0) * (double)sizeof(float) * (double)call->n; /* sources and the sum */
}

static void add_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_step_call *call = arg;
    int64_t begin = tile * TILE, n = call->n - begin < TILE ? call->n - begin : TILE;
    const float *in = (const float *)call->in + begin;
    float *out = (float *)call->out[0] + begin;

    (void)worker;
    if (call->out[1])
        tt_kernels()->add(out, (const float *)call->out[1] + begin, in, n);
    else
        memcpy(out, in, (size_t)n * sizeof *out);
}

static void add(const struct tt_step_call *call)
{
    tt_team_run(call->team, tt_div_up(call->n, TILE), add_tile, (void *)call);
}

const struct tt_step_row tt_step_op_add = {.name = "add", .run = add};
const struct tt_step_row tt_step_op_fold = {.name = "fold", .run = run, .cost = cost};

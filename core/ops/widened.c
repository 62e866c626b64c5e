/* SPDX-License-Identifier: MIT
 *
 * Nodes in bfloat16 by arithmetic in float.
 */
#include "core/ops/widened.h"

#include "core/kernels/kernels.h"
#include "core/ops/rule.h"

enum { TILE = 16384, LINE = 64 };

/* Bytes of the floats of a value; 0 if it is absent or not bfloat16. */
static int64_t bytes_of(const struct tt_graph *graph, int value)
{
    if (value == TT_NONE || graph->values[value].dtype != TT_BF16)
        return 0;
    return tt_round_up(tt_value_elements(&graph->values[value]) * (int64_t)sizeof(float), LINE);
}

int64_t tt_widened_bytes(const struct tt_graph *graph, const struct tt_node *node)
{
    int64_t bytes = 0;

    for (int i = 0; i < node->n_in; i++)
        bytes += bytes_of(graph, node->in[i]);
    for (int k = 0; k < node->n_out; k++)
        bytes += bytes_of(graph, node->out[k]);
    return bytes;
}

struct conversion {
    float *wide;
    tt_bf16 *half;
    int64_t n;
    bool widen;
};

static void convert_tile(void *arg, int64_t tile, int worker)
{
    const struct conversion *c = arg;
    struct tt_range part = tt_tile_range(c->n, TILE, tile);

    (void)worker;
    if (c->widen)
        tt_kernels()->bf16_widen(c->wide + part.begin, c->half + part.begin, part.n);
    else
        tt_kernels()->bf16_round(c->half + part.begin, c->wide + part.begin, part.n);
}

static void convert(const struct tt_call *call, int value, void *wide, void *half, bool widen)
{
    struct conversion c = {wide, half, tt_value_elements(&call->graph->values[value]), widen};

    tt_team_run(call->team, tt_tiles(c.n, TILE), convert_tile, &c);
}

void tt_run_widened(const struct tt_call *call, void (*run)(const struct tt_call *call))
{
    const struct tt_node *node = call->node;
    struct tt_call wide = *call;
    char *at = call->scratch;

    for (int i = 0; i < node->n_in; i++) {
        int64_t bytes = bytes_of(call->graph, node->in[i]);

        if (!bytes)
            continue;
        wide.in[i] = at;
        convert(call, node->in[i], at, call->in[i], true);
        at += bytes;
    }
    for (int k = 0; k < node->n_out; k++) {
        if (bytes_of(call->graph, node->out[k])) {
            wide.out[k] = at;
            at += bytes_of(call->graph, node->out[k]);
        }
    }
    wide.scratch = at;
    run(&wide);
    for (int k = 0; k < node->n_out; k++)
        if (wide.out[k] != call->out[k])
            convert(call, node->out[k], wide.out[k], call->out[k], false);
}

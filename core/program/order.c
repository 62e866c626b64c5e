/* SPDX-License-Identifier: MIT
 *
 * Orders of compute, and the nodes that they stand for.
 */
#include "core/program/order.h"

#include "core/base/mem.h"

/* --- making one --- */

void tt_order_add(struct tt_order *order, int microbatch, int stage, enum tt_pass pass)
{
    TT_PUSH(order->turns, order->n, order->cap) = (struct tt_turn){microbatch, stage, pass};
    if (microbatch >= order->microbatches)
        order->microbatches = microbatch + 1;
    order->trains = order->trains || pass != TT_PASS_FORWARD;
}

struct tt_order tt_order_accumulate(int microbatches, bool trains)
{
    struct tt_order order = {0};

    for (int mb = 0; mb < microbatches; mb++) {
        tt_order_add(&order, mb, 0, TT_PASS_FORWARD);
        if (trains)
            tt_order_add(&order, mb, 0, TT_PASS_BACKWARD);
    }
    return order;
}

void tt_order_release(struct tt_order *order)
{
    tt_free(order->turns);
    *order = (struct tt_order){0};
}

/* --- its nodes --- */

static const char *const pass_names[] = {"forward", "backward", "weight part"};

/* done: a bit per pass of the turn's microbatch that came before. */
static int check_turn(const struct tt_turn *turn, unsigned done)
{
    if (turn->stage != 0)
        return tt_fail(TT_EINTERNAL, "the order of compute has a turn of stage %d, and there is one graph",
                       turn->stage);
    if (done & 1U << turn->pass)
        return tt_fail(TT_EINTERNAL, "the order of compute has the %s of microbatch %d twice", pass_names[turn->pass],
                       turn->microbatch);
    if (turn->pass != TT_PASS_FORWARD && !(done & 1U << (turn->pass - 1)))
        return tt_fail(TT_EINTERNAL, "the order of compute has the %s of microbatch %d before its %s",
                       pass_names[turn->pass], turn->microbatch, pass_names[turn->pass - 1]);
    return 0;
}

/* Every microbatch has what the order is for. */
static int check_complete(const struct tt_order *order, const unsigned *done)
{
    for (int mb = 0; mb < order->microbatches; mb++)
        for (int pass = TT_PASS_FORWARD; pass <= (order->trains ? TT_PASS_BACKWARD : TT_PASS_FORWARD); pass++)
            if (!(done[mb] & 1U << pass))
                return tt_fail(TT_EINTERNAL, "the order of compute lacks the %s of microbatch %d", pass_names[pass],
                               mb);
    return 0;
}

static bool is_weight_part(const struct tt_graph *graph, const struct tt_node *node)
{
    for (int k = 0; k < node->n_out; k++)
        if (graph->values[node->out[k]].kind != TT_VALUE_PARAM_GRAD)
            return false;
    return true;
}

/* weights_apart: the weight part is a turn of its own. */
static bool is_of_pass(const struct tt_graph *graph, const struct tt_node *node, enum tt_pass pass, bool weights_apart)
{
    if (!node->backward || pass == TT_PASS_FORWARD)
        return node->backward == (pass != TT_PASS_FORWARD);
    return !weights_apart || is_weight_part(graph, node) == (pass == TT_PASS_WEIGHTS);
}

int tt_order_positions(const struct tt_order *order, const struct tt_graph *graph, struct tt_position **ret_positions,
                       int *ret_n)
{
    unsigned *all = tt_calloc((size_t)order->microbatches + 1, sizeof *all);
    unsigned *done = tt_calloc((size_t)order->microbatches + 1, sizeof *done);
    struct tt_position *positions = NULL;
    int n = 0, cap = 0, rc = 0;

    for (int t = 0; t < order->n; t++)
        all[order->turns[t].microbatch] |= 1U << order->turns[t].pass;
    for (int t = 0; t < order->n; t++) {
        const struct tt_turn *turn = &order->turns[t];
        bool weights_apart = all[turn->microbatch] & 1U << TT_PASS_WEIGHTS;

        TT_TRY(check_turn(turn, done[turn->microbatch]));
        done[turn->microbatch] |= 1U << turn->pass;
        for (int node = 0; node < graph->n_nodes; node++)
            if (is_of_pass(graph, &graph->nodes[node], turn->pass, weights_apart))
                TT_PUSH(positions, n, cap) = (struct tt_position){t, turn->microbatch, node};
    }
    TT_TRY(check_complete(order, done));
    *ret_positions = positions;
    *ret_n = n;
    positions = NULL;
out:
    tt_free(positions);
    tt_free(all);
    tt_free(done);
    return rc;
}

/* SPDX-License-Identifier: MIT
 *
 * Orders of compute, and their nodes.
 */
#include "core/program/order.h"

#include <stdio.h>

#include "core/base/mem.h"

/* --- making an order --- */

void tt_order_add(struct tt_order *order, int microbatch, int stage, enum tt_pass pass)
{
    TT_PUSH(order->turns, order->n, order->cap) = (struct tt_turn){microbatch, stage, pass};
    if (microbatch >= order->microbatches)
        order->microbatches = microbatch + 1;
    order->trains = order->trains || pass != TT_PASS_FORWARD;
}

struct tt_order tt_order_accumulate(int microbatches, int n_stages, bool trains)
{
    struct tt_order order = {0};

    for (int mb = 0; mb < microbatches; mb++) {
        for (int stage = 0; stage < n_stages; stage++)
            tt_order_add(&order, mb, stage, TT_PASS_FORWARD);
        for (int stage = n_stages - 1; trains && stage >= 0; stage--)
            tt_order_add(&order, mb, stage, TT_PASS_BACKWARD);
    }
    return order;
}

void tt_order_release(struct tt_order *order)
{
    tt_free(order->turns);
    *order = (struct tt_order){0};
}

/* --- its nodes --- */

/* The walk over the turns. */
struct pass_over {
    const struct tt_order *order;
    const struct tt_stage *stages;
    int n_stages;
    unsigned *all;  /* microbatch * n_stages + stage -> a bit for each pass in the order */
    unsigned *done; /* the same, for the turns so far */
    int **carried;  /* stage -> node -> microbatches so far; if gradients are carried */
    struct tt_position *positions;
    int n, cap;
};

static const char *const pass_names[] = {"forward", "backward", "weight part"};

/* "the forward of microbatch 1", with the stage if there are several. */
static const char *name_of(const struct pass_over *p, struct tt_turn turn, char text[80])
{
    if (p->n_stages == 1)
        (void)snprintf(text, 80, "the %s of microbatch %d", pass_names[turn.pass], turn.microbatch);
    else
        (void)snprintf(text, 80, "the %s of microbatch %d in stage %d", pass_names[turn.pass], turn.microbatch,
                       turn.stage);
    return text;
}

static unsigned *passes_of(const struct pass_over *p, unsigned *of, const struct tt_turn *turn)
{
    return &of[(size_t)turn->microbatch * (size_t)p->n_stages + (size_t)turn->stage];
}

static bool came(const struct pass_over *p, struct tt_turn turn)
{
    return *passes_of(p, p->done, &turn) & 1U << turn.pass;
}

/* Checks that a turn comes after the turns that it depends on: the previous pass, and the same pass of the stage that
 * sends its values, if that stage is on this rank. */
static int check_turn(const struct pass_over *p, const struct tt_turn *turn)
{
    struct tt_turn own = *turn, neighbour = *turn;
    bool is_here;
    char text[80];

    if (turn->pass != TT_PASS_FORWARD)
        own.pass = (enum tt_pass)(turn->pass - 1);
    neighbour.stage += turn->pass == TT_PASS_FORWARD ? -1 : 1;
    is_here = neighbour.stage >= 0 && neighbour.stage < p->n_stages &&
              p->stages[neighbour.stage].number - p->stages[turn->stage].number == neighbour.stage - turn->stage;
    if (came(p, *turn))
        return tt_fail(TT_EINTERNAL, "the order of compute has %s twice", name_of(p, *turn, text));
    if (turn->pass != TT_PASS_FORWARD && !came(p, own))
        return tt_fail(TT_EINTERNAL, "the order of compute has %s before its %s", name_of(p, *turn, text),
                       pass_names[own.pass]);
    if (turn->pass != TT_PASS_WEIGHTS && is_here && !came(p, neighbour))
        return tt_fail(TT_EINTERNAL, "the order of compute has %s before that of stage %d", name_of(p, *turn, text),
                       neighbour.stage);
    return 0;
}

/* How many of a node's outputs are gradients of parameters. */
static int param_grads(const struct tt_graph *graph, const struct tt_node *node)
{
    int n = 0;

    for (int k = 0; k < node->n_out; k++)
        n += graph->values[node->out[k]].kind == TT_VALUE_PARAM_GRAD;
    return n;
}

bool tt_order_is_weight_part(const struct tt_graph *graph, const struct tt_node *node)
{
    return param_grads(graph, node) == node->n_out;
}

/* weights_apart: the order has the weight part as a separate turn. */
static bool is_of_pass(const struct tt_graph *graph, const struct tt_node *node, enum tt_pass pass, bool weights_apart)
{
    if (!node->backward || pass == TT_PASS_FORWARD)
        return node->backward == (pass != TT_PASS_FORWARD);
    return !weights_apart || tt_order_is_weight_part(graph, node) == (pass == TT_PASS_WEIGHTS);
}

static int add_turn(struct pass_over *p, int t)
{
    const struct tt_turn *turn = &p->order->turns[t];
    const struct tt_graph *graph = p->stages[turn->stage].graph;
    bool weights_apart = *passes_of(p, p->all, turn) & 1U << TT_PASS_WEIGHTS;
    char text[80];
    int rc = 0;

    TT_TRY(check_turn(p, turn));
    *passes_of(p, p->done, turn) |= 1U << turn->pass;
    for (int node = 0; node < graph->n_nodes; node++) {
        if (!is_of_pass(graph, &graph->nodes[node], turn->pass, weights_apart))
            continue;
        if (graph->carries && param_grads(graph, &graph->nodes[node]) > 0 &&
            turn->microbatch != p->carried[turn->stage][node]++)
            return tt_fail(TT_EINTERNAL,
                           "the order of compute has %s before that of the microbatch whose gradients it adds to",
                           name_of(p, *turn, text));
        TT_PUSH(p->positions, p->n, p->cap) = (struct tt_position){t, turn->microbatch, turn->stage, node};
    }
out:
    return rc;
}

int tt_order_positions(const struct tt_order *order, const struct tt_stage *stages, int n_stages,
                       struct tt_position **ret_positions, int *ret_n)
{
    struct pass_over p = {.order = order, .stages = stages, .n_stages = n_stages};
    size_t n_turns = (size_t)order->microbatches * (size_t)n_stages;
    int passes = order->trains ? 2 : 1, rc = 0; /* forward, and backward */
    char text[80];

    p.all = tt_calloc(n_turns + 1, sizeof *p.all);
    p.done = tt_calloc(n_turns + 1, sizeof *p.done);
    p.carried = tt_calloc((size_t)n_stages, sizeof *p.carried);
    for (int s = 0; s < n_stages; s++)
        p.carried[s] = tt_calloc((size_t)stages[s].graph->n_nodes + 1, sizeof **p.carried);
    for (int t = 0; t < order->n; t++) {
        const struct tt_turn *turn = &order->turns[t];

        if (turn->stage < 0 || turn->stage >= n_stages)
            TT_TRY(tt_fail(TT_EINTERNAL,
                           "the order of compute has a turn of stage %d, but there are only "
                           "%d",
                           turn->stage, n_stages));
        *passes_of(&p, p.all, turn) |= 1U << turn->pass;
    }
    for (int t = 0; t < order->n; t++)
        TT_TRY(add_turn(&p, t));
    for (int i = 0; i < (int)n_turns * passes; i++) { /* every microbatch must have all passes in every stage */
        struct tt_turn turn = {i / passes / n_stages, i / passes % n_stages, (enum tt_pass)(i % passes)};

        if (!came(&p, turn))
            TT_TRY(tt_fail(TT_EINTERNAL, "the order of compute lacks %s", name_of(&p, turn, text)));
    }
    *ret_positions = p.positions;
    *ret_n = p.n;
    p.positions = NULL;
out:
    tt_free(p.positions);
    tt_free(p.all);
    tt_free(p.done);
    for (int s = 0; s < n_stages; s++)
        tt_free(p.carried[s]);
    tt_free(p.carried);
    return rc;
}

/* SPDX-License-Identifier: MIT
 *
 * EXPERTS_FFN_BWD: the gradients of EXPERTS_FFN. Gate and up are what it has left of them; what is missing, and hidden,
 * is computed again.
 *   in   dy (R, D), x (R, D), ends (X G) I32, w1, w3 (Y, M, D), w2 (Y, D, M), acc of w1, w3 and w2, or none; gate and
 *        up of EXPERTS_FFN, or none: then all of them is missing
 *   out  dx (R, D), may take dy's memory; dw1, dw3, dw2 = [acc +] gradient, may take acc's memory. If the weights are
 *        frozen only dx
 *   attr those of EXPERTS_FFN; round_leaves: if there are peers, the gradient of each one's rows is rounded to bfloat16
 *        before they are added; that of peers with blocks of the same tokens is one
 *
 * The order of the sums is that of SWIGLU_BWD, EXPERTS_BWD_X and EXPERTS_BWD_W: dx is that of w3, plus that of w1. The
 * gradients that the rows of the peers give to a weight are added in the order of core/math/tree.h. With peers the node
 * runs on windows, as EXPERTS_FFN does; scratch keeps sums from one window to the next.
 */
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/ops/experts/pairs.h"
#include "core/ops/rule.h"

enum { TILE = 4096, LINE = 16, WEIGHTS = 3, HIDDEN = 3 };
enum { DY, X, ENDS, W1, W3, W2, ACC, GATE = ACC + WEIGHTS, UP }; /* inputs */
/*
 * In scratch: hidden, and before it the gate of pairs whose gate is missing; the gradient of up, and before it up in
 * the same way; the gradient of hidden, then of gate.
 */
enum { H, DU, DG };

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[X]];
    const char *const suffixes[] = {"w1", "w3", "w2"};
    int64_t rows = tt_value_rows(&x), width = graph->values[node->in[W1]].shape[1];
    int rc = 0;

    if (!tt_op_acc_fits(graph, node, DY, rows, tt_value_width(&x)) || !tt_op_acc_fits(graph, node, GATE, rows, width) ||
        !tt_op_acc_fits(graph, node, UP, rows, width))
        return tt_op_mismatch(graph, node,
                              "dy, x (R, D), ends (X G), w1 and w3 (Y, M, D), w2 (Y, D, M), gate and up (R, M)");
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape));
    for (int k = 0; k < node->n_out - 1; k++) {
        const struct tt_value w = graph->values[node->in[W1 + k]];

        if (!tt_op_acc_fits(graph, node, ACC + k, tt_value_rows(&w), tt_value_width(&w)))
            return tt_op_mismatch(graph, node, "sums of gradients with the shapes of the weights");
        TT_TRY(tt_op_output(graph, node, 1 + k, name, suffixes[k], w.ndim, w.shape));
    }
out:
    return rc;
}

/* --- running --- */

/* Gate and up of pairs, from row 0 of the window on. */
struct hidden {
    struct tt_pairs pairs;
    char *gate, *up;
};

struct work {
    struct tt_pairs_work of;
    int64_t d, m, rows;
    char *sums[WEIGHTS];
    char *hidden[HIDDEN];
    struct hidden kept, missing; /* in the inputs, in scratch */
};

static int64_t hidden_bytes(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_value *w1 = &graph->values[node->in[W1]];
    int64_t rows = node->attr.peers.n > 1 ? node->attr.window : tt_value_rows(&graph->values[node->in[X]]);

    return tt_round_up(rows * w1->shape[1] * (int64_t)tt_dtype_size(w1->dtype), LINE * (int64_t)sizeof(float));
}

/* The products for the gradient of a weight (0 to 2: w1, w3, w2), without addresses. */
static struct tt_pair_products weight_products(const struct tt_graph *graph, const struct tt_node *node, int weight)
{
    const struct tt_value *w = &graph->values[node->in[W1 + weight]];

    return (struct tt_pair_products){
        .op = TT_OP_EXPERTS_BWD_W, .bf16 = tt_op_is_bf16(graph, node), .m = w->shape[1], .k = w->shape[2]};
}

/* Bytes of the sums of a weight. */
static int64_t sums_bytes(const struct tt_graph *graph, const struct tt_node *node, int weight, int threads)
{
    struct tt_pair_products of = weight_products(graph, node, weight);

    if (node->n_out == 1)
        return 0;
    return tt_round_up(tt_pairs_sums_floats(&node->attr, &of, threads), LINE) * (int64_t)sizeof(float);
}

static void *element_of(const struct work *w, char *first, int64_t element)
{
    return first + element * (int64_t)(w->of.bf16 ? sizeof(tt_bf16) : sizeof(float));
}

/* Finds out which pairs have their gate and up. */
static void divide(struct work *w)
{
    const struct tt_call *call = w->of.call;
    struct tt_pairs parts[2];
    int64_t first;

    tt_pairs_cut(&w->of.pairs, call->in[GATE] ? tt_value_rows(tt_call_in(call, GATE)) : 0, parts);
    first = tt_pairs_rows(&parts[0]) ? parts[0].before * w->m : 0;
    w->kept = (struct hidden){parts[0], NULL, NULL};
    if (call->in[GATE]) {
        w->kept.gate = element_of(w, call->in[GATE], first);
        w->kept.up = element_of(w, call->in[UP], first);
    }
    w->missing = (struct hidden){parts[1], w->hidden[H], w->hidden[DU]};
}

static struct work work_of(const struct tt_call *call)
{
    const struct tt_value *w1 = tt_call_in(call, W1);
    struct work w = {.d = w1->shape[2], .m = w1->shape[1]};
    char *at = call->scratch;

    for (int i = 0; i < WEIGHTS; i++) {
        w.sums[i] = at;
        at += sums_bytes(call->graph, call->node, i, tt_team_threads(call->team));
    }
    for (int i = 0; i < HIDDEN; i++, at += hidden_bytes(call->graph, call->node))
        w.hidden[i] = at;
    w.of = (struct tt_pairs_work){.call = call,
                                  .pairs = tt_pairs_of(call, ENDS),
                                  .most = tt_pairs_most_rows(&call->node->attr, tt_value_rows(tt_call_in(call, X))),
                                  .bf16 = tt_op_is_bf16(call->graph, call->node),
                                  .scratch = at};
    w.rows = tt_pairs_rows(&w.of.pairs);
    divide(&w);
    return w;
}

/* Computes gate and up of the pairs that lack them. */
static void compute_missing(const struct work *w)
{
    const struct tt_call *call = w->of.call;
    struct tt_pairs_work of = w->of;

    of.pairs = w->missing.pairs;
    tt_pairs_multiply(&of, TT_OP_EXPERTS, w->m, w->d, call->in[X], call->in[W1], NULL, w->missing.gate);
    tt_pairs_multiply(&of, TT_OP_EXPERTS, w->m, w->d, call->in[X], call->in[W3], NULL, w->missing.up);
}

/* Hidden, and the gradients of gate and up, for the part of a tile that is of those pairs. */
static void swiglu_of(const struct work *w, const struct hidden *from, struct tt_range tile)
{
    struct tt_range part = tt_pairs_part(&from->pairs, w->m, tile);
    const void *gate, *up;
    void *hidden, *dgate, *dup;
    float made[TILE];

    if (part.n <= 0)
        return;
    gate = element_of(w, from->gate, part.begin);
    up = element_of(w, from->up, part.begin);
    hidden = element_of(w, w->hidden[H], part.begin);
    dgate = element_of(w, w->hidden[DG], part.begin);
    dup = element_of(w, w->hidden[DU], part.begin);
    TT_RUN_KERNEL(w->of.call, swiglu_fwd, (void *)made, gate, up, part.n);
    TT_RUN_KERNEL(w->of.call, swiglu_bwd, dgate, dup, dgate, gate, up, part.n);
    memcpy(hidden, made,
           (size_t)((char *)element_of(w, hidden, part.n) - (char *)hidden)); /* gate may have been here */
}

static void swiglu_tile(void *arg, int64_t tile, int worker)
{
    const struct work *w = arg;
    struct tt_range part = tt_tile_range(w->rows * w->m, TILE, tile);

    (void)worker;
    swiglu_of(w, &w->kept, part);
    swiglu_of(w, &w->missing, part);
}

static void gradients(const struct work *w)
{
    const struct tt_call *call = w->of.call;
    const void *const dy[WEIGHTS] = {w->hidden[DG], w->hidden[DU], call->in[DY]};
    const void *const x[WEIGHTS] = {call->in[X], call->in[X], w->hidden[H]};

    for (int k = 0; k < WEIGHTS; k++) {
        struct tt_pair_products of = weight_products(call->graph, call->node, k);

        of.in[0] = dy[k];
        of.in[1] = x[k];
        of.acc = call->in[ACC + k];
        of.out = call->out[1 + k];
        of.scratch = w->of.scratch;
        of.rows = w->of.most;
        tt_pairs_gradients(call, &w->of.pairs, &of, (float *)(void *)w->sums[k]);
    }
}

static void run(const struct tt_call *call)
{
    struct work w = work_of(call);
    char *dgate = w.hidden[DG], *dup = w.hidden[DU];

    compute_missing(&w);
    tt_pairs_multiply(&w.of, TT_OP_EXPERTS_BWD_X, w.d, w.m, call->in[DY], call->in[W2], NULL, dgate);
    tt_team_run(call->team, tt_tiles(w.rows * w.m, TILE), swiglu_tile, &w);
    if (call->node->n_out > 1)
        gradients(&w);
    tt_pairs_multiply(&w.of, TT_OP_EXPERTS_BWD_X, w.m, w.d, dup, call->in[W3], NULL, call->out[0]);
    tt_pairs_multiply(&w.of, TT_OP_EXPERTS_BWD_X, w.m, w.d, dgate, call->in[W1], call->out[0], call->out[0]);
}

static int64_t scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    const struct tt_value *w1 = &graph->values[node->in[W1]];
    int64_t most = 0;
    const enum tt_op_id ops[] = {TT_OP_EXPERTS, TT_OP_EXPERTS_BWD_X, TT_OP_EXPERTS_BWD_W};

    for (int i = 0; i < 6; i++) {
        struct tt_pair_products of = {.op = ops[i % 3],
                                      .bf16 = tt_op_is_bf16(graph, node),
                                      .m = w1->shape[i < 3 ? 1 : 2],
                                      .k = w1->shape[i < 3 ? 2 : 1],
                                      .rows =
                                          tt_pairs_most_rows(&node->attr, tt_value_rows(&graph->values[node->in[X]]))};
        int64_t bytes = tt_pairs_scratch(&of, tt_pairs_count(&node->attr), threads);

        most = bytes > most ? bytes : most;
    }
    for (int k = 0; k < WEIGHTS; k++)
        most += sums_bytes(graph, node, k, threads);
    return most + HIDDEN * hidden_bytes(graph, node);
}

/* As if every expert had equally many rows: three products, three for gradients of weights, and two for a gate and an
 * up that nobody has kept. */
static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    const struct tt_value *x = &graph->values[node->in[X]], *w1 = &graph->values[node->in[W1]];
    int products = (node->n_out > 1 ? 6 : 3) + (node->in[GATE] == TT_NONE ? 2 : 0);

    ret_cost->flops = 2.0 * products * (double)tt_value_elements(x) * (double)w1->shape[1];
    ret_cost->bytes = tt_op_bytes(graph, node);
    ret_cost->bf16 = tt_op_is_bf16(graph, node);
}

const struct tt_op_row tt_op_experts_ffn_bwd = {
    .name = "experts_ffn_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE,
           TT_TYPE_F32, TT_TYPE_F32, TT_TYPE_F32, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .remakes = 2,
    .out = {TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_F32, TT_TYPE_F32},
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .part = TT_PART_GEMM,
    .infer = infer,
    .run = run,
    .cost = cost,
    .scratch_bytes = scratch,
    .alias = {1, 7, 8, 9},
};

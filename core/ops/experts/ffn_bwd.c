/* SPDX-License-Identifier: MIT
 *
 * EXPERTS_FFN_BWD: the gradients of EXPERTS_FFN. Gate, up and hidden are computed again, since nothing is kept whose
 * size only the step knows.
 *   in   dy (R, D), x (R, D), ends (X G) I32, w1, w3 (Y, M, D), w2 (Y, D, M), acc of w1, w3 and w2, or none
 *   out  dx (R, D), may take dy's memory; dw1, dw3, dw2 = [acc +] gradient, may take acc's memory. If the weights are
 *        frozen only dx
 *   attr those of EXPERTS_FFN; round_leaves: if there are peers, the gradient of each one's rows is rounded to bfloat16
 *        before they are added; that of peers with blocks of the same tokens is one
 *
 * The order of the sums is that of SWIGLU_BWD, EXPERTS_BWD_X and EXPERTS_BWD_W: dx is that of w3, plus that of w1. The
 * gradients that the rows of the peers give to a weight are added in the order of core/math/tree.h. With peers the node
 * runs on windows, as EXPERTS_FFN does; scratch keeps sums from one window to the next.
 */
#include "core/kernels/kernels.h"
#include "core/ops/experts/pairs.h"
#include "core/ops/rule.h"

enum { TILE = 8192, LINE = 16, HIDDEN = 4 };
enum { DY, X, ENDS, W1, W3, W2, ACC }; /* inputs */
enum { GATE, UP, H, DH };              /* in scratch; the gradients of gate and up take the memory of DH and UP */

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[X]];
    const char *const suffixes[] = {"w1", "w3", "w2"};
    int rc = 0;

    if (!tt_op_acc_fits(graph, node, DY, tt_value_rows(&x), tt_value_width(&x)))
        return tt_op_mismatch(graph, node, "dy, x (R, D), ends (X G), w1 and w3 (Y, M, D), w2 (Y, D, M)");
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

struct work {
    struct tt_pairs_work of;
    int64_t d, m, rows;
    float *sums;
    char *hidden[HIDDEN];
};

static int64_t hidden_bytes(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_value *w1 = &graph->values[node->in[W1]];
    int64_t rows = node->attr.peers.n > 1 ? node->attr.window : tt_value_rows(&graph->values[node->in[X]]);

    return tt_round_up(rows * w1->shape[1] * (int64_t)tt_dtype_size(w1->dtype), LINE * (int64_t)sizeof(float));
}

/* The products for the gradients of w1, w3 and w2, without addresses. */
static void weight_products(const struct tt_graph *graph, const struct tt_node *node, struct tt_pair_products of[3])
{
    const struct tt_value *w1 = &graph->values[node->in[W1]];

    for (int k = 0; k < 3; k++)
        of[k] = (struct tt_pair_products){.op = TT_OP_EXPERTS_BWD_W,
                                          .bf16 = tt_op_is_bf16(graph, node),
                                          .m = w1->shape[k < 2 ? 1 : 2],
                                          .k = w1->shape[k < 2 ? 2 : 1]};
}

static int64_t sums_bytes(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_pair_products of[3];

    if (node->n_out == 1)
        return 0;
    weight_products(graph, node, of);
    return tt_round_up(tt_pairs_sums_floats(&node->attr, of, 3, threads), LINE) * (int64_t)sizeof(float);
}

static struct work work_of(const struct tt_call *call)
{
    const struct tt_value *w1 = tt_call_in(call, W1);
    struct work w = {.d = w1->shape[2], .m = w1->shape[1], .sums = call->scratch};
    char *at = (char *)call->scratch + sums_bytes(call->graph, call->node, tt_team_threads(call->team));

    for (int i = 0; i < HIDDEN; i++, at += hidden_bytes(call->graph, call->node))
        w.hidden[i] = at;
    w.of = (struct tt_pairs_work){.call = call,
                                  .pairs = tt_pairs_of(call, ENDS),
                                  .most = tt_pairs_most_rows(&call->node->attr, tt_value_rows(tt_call_in(call, X))),
                                  .bf16 = tt_op_is_bf16(call->graph, call->node),
                                  .scratch = at};
    w.rows = tt_pairs_rows(&w.of.pairs);
    return w;
}

static void *hidden_at(const struct work *w, int which, int64_t element)
{
    return w->hidden[which] + element * (int64_t)(w->of.bf16 ? sizeof(tt_bf16) : sizeof(float));
}

static void swiglu_tile(void *arg, int64_t tile, int worker)
{
    const struct work *w = arg;
    struct tt_range part = tt_tile_range(w->rows * w->m, TILE, tile);

    (void)worker;
    TT_RUN_KERNEL(w->of.call, swiglu_fwd, hidden_at(w, H, part.begin), hidden_at(w, GATE, part.begin),
                  hidden_at(w, UP, part.begin), part.n);
    TT_RUN_KERNEL(w->of.call, swiglu_bwd, hidden_at(w, DH, part.begin), hidden_at(w, UP, part.begin),
                  hidden_at(w, DH, part.begin), hidden_at(w, GATE, part.begin), hidden_at(w, UP, part.begin), part.n);
}

static void gradients(const struct work *w)
{
    const struct tt_call *call = w->of.call;
    struct tt_pair_products of[3];
    const void *const dy[3] = {w->hidden[DH], w->hidden[UP], call->in[DY]};
    const void *const x[3] = {call->in[X], call->in[X], w->hidden[H]};

    weight_products(call->graph, call->node, of);
    for (int k = 0; k < 3; k++) {
        of[k].in[0] = dy[k];
        of[k].in[1] = x[k];
        of[k].acc = call->in[ACC + k];
        of[k].out = call->out[1 + k];
        of[k].scratch = w->of.scratch;
        of[k].rows = w->of.most;
    }
    tt_pairs_gradients(call, &w->of.pairs, of, 3, w->sums);
}

static void run(const struct tt_call *call)
{
    struct work w = work_of(call);

    tt_pairs_multiply(&w.of, TT_OP_EXPERTS, w.m, w.d, call->in[X], call->in[W1], NULL, w.hidden[GATE]);
    tt_pairs_multiply(&w.of, TT_OP_EXPERTS, w.m, w.d, call->in[X], call->in[W3], NULL, w.hidden[UP]);
    tt_pairs_multiply(&w.of, TT_OP_EXPERTS_BWD_X, w.d, w.m, call->in[DY], call->in[W2], NULL, w.hidden[DH]);
    tt_team_run(call->team, tt_tiles(w.rows * w.m, TILE), swiglu_tile, &w);
    if (call->node->n_out > 1)
        gradients(&w);
    tt_pairs_multiply(&w.of, TT_OP_EXPERTS_BWD_X, w.m, w.d, w.hidden[UP], call->in[W3], NULL, call->out[0]);
    tt_pairs_multiply(&w.of, TT_OP_EXPERTS_BWD_X, w.m, w.d, w.hidden[DH], call->in[W1], call->out[0], call->out[0]);
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
    return sums_bytes(graph, node, threads) + HIDDEN * hidden_bytes(graph, node) + most;
}

/* As if every expert had equally many rows: three products again, and five for gradients. */
static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    const struct tt_value *x = &graph->values[node->in[X]], *w1 = &graph->values[node->in[W1]];
    int products = node->n_out > 1 ? 8 : 5;

    ret_cost->flops = 2.0 * products * (double)tt_value_elements(x) * (double)w1->shape[1];
    ret_cost->bytes = tt_op_bytes(graph, node);
    ret_cost->bf16 = tt_op_is_bf16(graph, node);
}

const struct tt_op_row tt_op_experts_ffn_bwd = {
    .name = "experts_ffn_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE,
           TT_TYPE_F32, TT_TYPE_F32, TT_TYPE_F32},
    .out = {TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_F32, TT_TYPE_F32},
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .part = TT_PART_GEMM,
    .infer = infer,
    .run = run,
    .cost = cost,
    .scratch_bytes = scratch,
    .alias = {1, 7, 8, 9},
};

/* SPDX-License-Identifier: MIT
 *
 * EXPERTS_FFN: y = (silu(x w1^T) * (x w3^T)) w2^T, with separate weights for each expert's rows. It has the same bits
 * as EXPERTS for w1 and w3, then SWIGLU, then EXPERTS for w2. It replaces these nodes if the experts are spread over
 * ranks: gate, up and hidden then have rows from several ranks, and how many is known only when the step runs.
 *   in   x (R, D), ends (X G) I32 (DISPATCH), w1 (Y, M, D), w3 (Y, M, D), w2 (Y, D, M)
 *   out  y (R, D); gate, up (R, M): x w1^T and x w3^T, for backward
 *   attr experts (X), parts (G)
 *        peers: the n ranks that share the experts; each has Y = X / n. Without peers Y is X
 *        window: with peers, the largest number of their rows that this rank takes at once
 *
 * With peers the node runs on windows (experts.h): x and y then hold at most `window` rows of pairs (expert, source),
 * and `ends` says which. y may be x. Gate and up hold the first pairs of this rank's experts whose rows fit into R, and
 * nothing is written beyond them. With an even load these are nearly all pairs; backward recomputes the others. So the
 * memory is the same as for a rank that has all experts.
 *
 * EXPERTS_FFN_BWD: the gradients of EXPERTS_FFN. It reads the part of gate and up that EXPERTS_FFN kept, and computes
 * the rest and hidden again.
 *   in   dy (R, D), x (R, D), ends (X G) I32, w1, w3 (Y, M, D), w2 (Y, D, M), acc of w1, w3 and w2, or none; gate and
 *        up of EXPERTS_FFN, or none: then backward recomputes all of gate and up
 *   out  dx (R, D), may take dy's memory; dw1, dw3, dw2 = [acc +] gradient, may take acc's memory. If the weights are
 *        frozen only dx
 *   attr as EXPERTS_FFN; round_leaves: the gradient from each peer's rows is rounded to bfloat16 before the gradients
 *        are added; peers with blocks of the same tokens count as one
 *
 * The sums have the same order as in SWIGLU_BWD, EXPERTS_BWD_X and EXPERTS_BWD_W: dx is the part from w3, plus the part
 * from w1. The gradients of a weight for the peers' rows are added in the order of core/math/tree.h. With peers the
 * node runs on windows, as EXPERTS_FFN does; scratch keeps sums from one window to the next.
 */
#include <string.h>

#include "core/graph/pieces.h"
#include "core/kernels/kernels.h"
#include "core/ops/experts/experts.h"
#include "core/ops/rule.h"

enum { TILE = 4096, LINE = 16, WEIGHTS = 3, HIDDEN = 3 };
enum { X, ENDS, W1, W3, W2 }; /* inputs of EXPERTS_FFN */
enum { Y, GATE, UP };         /* outputs */
/* inputs of EXPERTS_FFN_BWD */
enum { DY, BWD_X, BWD_ENDS, BWD_W1, BWD_W3, BWD_W2, ACC, BWD_GATE = ACC + WEIGHTS, BWD_UP };
/*
 * Arrays in scratch, each of which holds two values in turn: gate (of the pairs for which it was not kept), then
 * hidden; up (likewise), then its gradient; the gradient of hidden, then of gate. EXPERTS_FFN uses the first two
 * arrays.
 */
enum { H, DU, DG };

static bool is_bwd(const struct tt_node *node)
{
    return node->op == TT_OP_EXPERTS_FFN_BWD;
}

/* An input of EXPERTS_FFN; in EXPERTS_FFN_BWD, dy comes before the inputs. */
static const struct tt_value *value_of(const struct tt_graph *graph, const struct tt_node *node, int i)
{
    return &graph->values[node->in[i + is_bwd(node)]];
}

static bool is_weight(const struct tt_graph *graph, int value, int64_t experts, int64_t m, int64_t k)
{
    const struct tt_value *w = &graph->values[value];

    return w->ndim == 3 && w->shape[0] == experts && w->shape[1] == m && w->shape[2] == k;
}

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[X]], w1 = graph->values[node->in[W1]];
    int ranks = node->attr.peers.n > 1 ? node->attr.peers.n : 1;
    int64_t experts = node->attr.experts, own = experts / ranks, width = tt_value_width(&x);
    int64_t hidden[2] = {tt_value_rows(&x), w1.shape[1]};
    int rc = 0;

    if (w1.ndim != 3 || own * ranks != experts ||
        tt_value_elements(&graph->values[node->in[ENDS]]) != experts * tt_parts_grains(&node->attr.parts) ||
        !is_weight(graph, node->in[W1], own, w1.shape[1], width) ||
        !is_weight(graph, node->in[W3], own, w1.shape[1], width) ||
        !is_weight(graph, node->in[W2], own, width, w1.shape[1]))
        return tt_op_mismatch(graph, node, "x (R, D), ends (X G), w1 and w3 (Y, M, D), w2 (Y, D, M)");
    TT_TRY(tt_op_output(graph, node, Y, name, NULL, x.ndim, x.shape));
    TT_TRY(tt_op_output(graph, node, GATE, name, "gate", 2, hidden));
    TT_TRY(tt_op_output(graph, node, UP, name, "up", 2, hidden));
out:
    return rc;
}

/* The gradients of all three weights are computed, or none if the weights are frozen. */
static int backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    const int *of = forward.in, values[4] = {of[X], of[W1], of[W3], of[W2]};
    int in[11] = {grad_out[0], of[X],       of[ENDS],          of[W1],         of[W3], of[W2], grad_in[W1],
                  grad_in[W3], grad_in[W2], forward.out[GATE], forward.out[UP]};
    int n = tt_rule_wanted(graph, of[W1]) + tt_rule_wanted(graph, of[W3]) + tt_rule_wanted(graph, of[W2]);
    int grad[4], rc = 0;

    if (n != 0 && n != 3)
        return tt_fail(TT_EUSAGE, "some weights of the experts of '%s' are frozen and others are not",
                       graph->values[forward.out[0]].name);
    TT_TRY(tt_rule_node(graph, TT_OP_EXPERTS_FFN_BWD, &forward, in, 11, values, n ? 4 : 1, grad));
    TT_TRY(tt_rule_add(graph, &forward, X, grad[0], grad_in));
    for (int i = W1; n && i <= W2; i++)
        tt_rule_set(&forward, i, grad[i - W1 + 1], grad_in);
out:
    return rc;
}

static int bwd_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[BWD_X]];
    const char *const suffixes[] = {"w1", "w3", "w2"};
    int64_t rows = tt_value_rows(&x), width = graph->values[node->in[BWD_W1]].shape[1];
    int rc = 0;

    if (!tt_op_acc_fits(graph, node, DY, rows, tt_value_width(&x)) ||
        !tt_op_acc_fits(graph, node, BWD_GATE, rows, width) || !tt_op_acc_fits(graph, node, BWD_UP, rows, width))
        return tt_op_mismatch(graph, node,
                              "dy, x (R, D), ends (X G), w1 and w3 (Y, M, D), w2 (Y, D, M), gate and up (R, M)");
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape));
    for (int k = 0; k < node->n_out - 1; k++) {
        const struct tt_value w = graph->values[node->in[BWD_W1 + k]];

        if (!tt_op_acc_fits(graph, node, ACC + k, tt_value_rows(&w), tt_value_width(&w)))
            return tt_op_mismatch(graph, node, "sums of gradients with the shapes of the weights");
        TT_TRY(tt_op_output(graph, node, 1 + k, name, suffixes[k], w.ndim, w.shape));
    }
out:
    return rc;
}

/* --- running --- */

/* Gate and up of pairs, starting at row 0 of the window: outputs or inputs of the node, or arrays in scratch. */
struct hidden {
    struct tt_pairs pairs;
    char *gate, *up;
};

/* The data of a run. */
struct work {
    struct tt_pairs_work of;
    int64_t d, m, rows;
    const void *x, *w1, *w3;
    char *sums[WEIGHTS], *hidden[HIDDEN]; /* in scratch, before the part of the products */
    struct hidden kept, other;
};

/* Bytes of each of the hidden arrays. */
static int64_t hidden_bytes(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_value *w1 = value_of(graph, node, W1);
    int64_t rows = node->attr.peers.n > 1 ? node->attr.window : tt_value_rows(value_of(graph, node, X));

    return tt_round_up(rows * w1->shape[1] * (int64_t)tt_dtype_size(w1->dtype), LINE * (int64_t)sizeof(tt_real));
}

/* The products for the gradient of a weight (0 to 2: w1, w3, w2), without addresses. */
static struct tt_pair_products weight_products(const struct tt_graph *graph, const struct tt_node *node, int weight)
{
    const struct tt_value *w = value_of(graph, node, W1 + weight);

    return (struct tt_pair_products){
        .op = TT_OP_EXPERTS_BWD_W, .bf16 = tt_op_is_bf16(graph, node), .m = w->shape[1], .k = w->shape[2]};
}

/* Bytes of the sums of a weight. */
static int64_t sums_bytes(const struct tt_graph *graph, const struct tt_node *node, int weight, int threads)
{
    struct tt_pair_products of = weight_products(graph, node, weight);

    if (!is_bwd(node) || node->n_out == 1)
        return 0;
    return tt_round_up(tt_pairs_sums_floats(&node->attr, &of, threads), LINE) * (int64_t)sizeof(tt_real);
}

/*
 * Cuts pairs into two parts: the pairs whose rows are among the first `most` rows of all pairs, and the rest. The part
 * to which a pair belongs does not depend on how the pairs are distributed over calls.
 */
static void cut_pairs(const struct tt_pairs *pairs, int64_t most, struct tt_pairs ret_parts[2])
{
    struct tt_pairs *first = &ret_parts[0], *rest = &ret_parts[1];
    int64_t pair = pairs->first;

    while (pair < pairs->end && pairs->before + pairs->ends[pair] - pairs->begin <= most)
        pair++;
    *first = *rest = *pairs;
    first->end = rest->first = pair;
    rest->begin += tt_pairs_rows(first);
    rest->before += tt_pairs_rows(first);
}

/* No pair has more rows than this, if a rank has `rows` rows for all experts: an expert gets each token at most
 * once. */
static int64_t most_rows_of_pairs(const struct tt_attr *attr, int64_t rows)
{
    int64_t grain = tt_parts_grain_rows(&attr->parts, rows / (attr->top_k ? attr->top_k : 1));

    return grain > rows ? grain : rows;
}

static void *element_of(const struct work *w, char *first, int64_t element)
{
    return first + element * (int64_t)(w->of.bf16 ? sizeof(tt_bf16) : sizeof(tt_real));
}

static struct work work_of(const struct tt_call *call)
{
    const struct tt_graph *graph = call->graph;
    const struct tt_node *node = call->node;
    bool bwd = is_bwd(node);
    const struct tt_value *w1 = value_of(graph, node, W1);
    void *gate = bwd ? call->in[BWD_GATE] : call->out[GATE], *up = bwd ? call->in[BWD_UP] : call->out[UP];
    int64_t kept = !gate ? 0 : tt_value_rows(bwd ? tt_call_in(call, BWD_GATE) : tt_call_out(call, GATE)), first;
    struct work w = {.d = w1->shape[2],
                     .m = w1->shape[1],
                     .x = call->in[X + bwd],
                     .w1 = call->in[W1 + bwd],
                     .w3 = call->in[W3 + bwd]};
    struct tt_pairs parts[2];
    char *at = call->scratch;

    for (int i = 0; i < WEIGHTS; i++) {
        w.sums[i] = at;
        at += sums_bytes(graph, node, i, tt_team_threads(call->team));
    }
    for (int i = 0; i < (bwd ? HIDDEN : DG); i++, at += hidden_bytes(graph, node))
        w.hidden[i] = at;
    w.of = (struct tt_pairs_work){.call = call,
                                  .pairs = tt_pairs_of(call, ENDS + bwd),
                                  .most = most_rows_of_pairs(&node->attr, tt_value_rows(value_of(graph, node, X))),
                                  .bf16 = tt_op_is_bf16(graph, node),
                                  .scratch = at};
    w.rows = tt_pairs_rows(&w.of.pairs);
    cut_pairs(&w.of.pairs, kept, parts);
    first = tt_pairs_rows(&parts[0]) ? parts[0].before * w.m : 0;
    w.kept = (struct hidden){parts[0], gate, up};
    if (gate) {
        w.kept.gate = element_of(&w, gate, first);
        w.kept.up = element_of(&w, up, first);
    }
    w.other = (struct hidden){parts[1], w.hidden[H], w.hidden[DU]};
    return w;
}

/* Computes gate and up. */
static void multiply(const struct work *w, const struct hidden *hidden)
{
    struct tt_pairs_work of = w->of;

    of.pairs = hidden->pairs;
    tt_pairs_multiply(&of, TT_OP_EXPERTS, w->m, w->d, w->x, w->w1, NULL, hidden->gate);
    tt_pairs_multiply(&of, TT_OP_EXPERTS, w->m, w->d, w->x, w->w3, NULL, hidden->up);
}

/* Clips a range of elements of rows of `width` to the rows of the pairs; n is 0 or less if nothing remains. */
static struct tt_range part_of_pairs(const struct tt_pairs *pairs, int64_t width, struct tt_range range)
{
    int64_t begin = pairs->begin * width, end = begin + tt_pairs_rows(pairs) * width, to = range.begin + range.n;

    if (range.begin > begin)
        begin = range.begin;
    return (struct tt_range){begin, (to < end ? to : end) - begin};
}

/* Computes hidden, and in backward the gradients of gate and up, for the part of a tile that belongs to these pairs. */
static void swiglu_of(const struct work *w, const struct hidden *from, struct tt_range tile)
{
    struct tt_range part = part_of_pairs(&from->pairs, w->m, tile);
    const void *gate, *up;
    void *hidden, *dgate, *dup;
    tt_real made[TILE];

    if (part.n <= 0)
        return;
    gate = element_of(w, from->gate, part.begin);
    up = element_of(w, from->up, part.begin);
    hidden = element_of(w, w->hidden[H], part.begin);
    if (!is_bwd(w->of.call->node)) {
        TT_RUN_KERNEL(w->of.call, swiglu_fwd, hidden, gate, up, part.n);
        return;
    }
    dgate = element_of(w, w->hidden[DG], part.begin);
    dup = element_of(w, w->hidden[DU], part.begin);
    TT_RUN_KERNEL(w->of.call, swiglu_fwd, (void *)made, gate, up, part.n);
    TT_RUN_KERNEL(w->of.call, swiglu_bwd, dgate, dup, dgate, gate, up, part.n);
    memcpy(hidden, made,
           (size_t)((char *)element_of(w, hidden, part.n) - (char *)hidden)); /* gate may have been stored here */
}

static void swiglu_tile(void *arg, int64_t tile, int worker)
{
    const struct work *w = arg;
    struct tt_range part = tt_tile_range(w->rows * w->m, TILE, tile);

    (void)worker;
    swiglu_of(w, &w->kept, part);
    swiglu_of(w, &w->other, part);
}

static void run(const struct tt_call *call)
{
    struct work w = work_of(call);

    multiply(&w, &w.kept);
    multiply(&w, &w.other);
    tt_team_run(call->team, tt_tiles(w.rows * w.m, TILE), swiglu_tile, &w);
    tt_pairs_multiply(&w.of, TT_OP_EXPERTS, w.d, w.m, w.hidden[H], call->in[W2], NULL, call->out[Y]);
}

static void gradients(const struct work *w)
{
    const struct tt_call *call = w->of.call;
    const void *const dy[WEIGHTS] = {w->hidden[DG], w->hidden[DU], call->in[DY]};
    const void *const x[WEIGHTS] = {call->in[BWD_X], call->in[BWD_X], w->hidden[H]};

    for (int k = 0; k < WEIGHTS; k++) {
        struct tt_pair_products of = weight_products(call->graph, call->node, k);

        of.in[0] = dy[k];
        of.in[1] = x[k];
        of.acc = call->in[ACC + k];
        of.out = call->out[1 + k];
        of.scratch = w->of.scratch;
        of.rows = w->of.most;
        tt_pairs_gradients(call, &w->of.pairs, &of, (tt_real *)(void *)w->sums[k]);
    }
}

static void bwd_run(const struct tt_call *call)
{
    struct work w = work_of(call);
    char *dgate = w.hidden[DG], *dup = w.hidden[DU];

    multiply(&w, &w.other);
    tt_pairs_multiply(&w.of, TT_OP_EXPERTS_BWD_X, w.d, w.m, call->in[DY], call->in[BWD_W2], NULL, dgate);
    tt_team_run(call->team, tt_tiles(w.rows * w.m, TILE), swiglu_tile, &w);
    if (call->node->n_out > 1)
        gradients(&w);
    tt_pairs_multiply(&w.of, TT_OP_EXPERTS_BWD_X, w.m, w.d, dup, call->in[BWD_W3], NULL, call->out[0]);
    tt_pairs_multiply(&w.of, TT_OP_EXPERTS_BWD_X, w.m, w.d, dgate, call->in[BWD_W1], call->out[0], call->out[0]);
}

static int64_t scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    const enum tt_op_id ops[] = {TT_OP_EXPERTS, TT_OP_EXPERTS_BWD_X, TT_OP_EXPERTS_BWD_W};
    const struct tt_value *w1 = value_of(graph, node, W1);
    int64_t most = 0;

    for (int i = 0; i < 6; i++) {
        struct tt_pair_products of = {.op = ops[i % 3],
                                      .bf16 = tt_op_is_bf16(graph, node),
                                      .m = w1->shape[i < 3 ? 1 : 2],
                                      .k = w1->shape[i < 3 ? 2 : 1],
                                      .rows = most_rows_of_pairs(&node->attr, tt_value_rows(value_of(graph, node, X)))};
        int64_t bytes = tt_pairs_scratch(&of, tt_pairs_count(&node->attr), threads);

        if (is_bwd(node) || of.op == TT_OP_EXPERTS)
            most = bytes > most ? bytes : most;
    }
    for (int k = 0; k < WEIGHTS; k++)
        most += sums_bytes(graph, node, k, threads);
    return most + (is_bwd(node) ? HIDDEN : DG) * hidden_bytes(graph, node);
}

/* Assumes that every expert has the same number of rows: three products; in backward three more for gradients of
 * weights, and two for gate and up if they were not kept. */
static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    int products = 3;

    if (is_bwd(node))
        products += (node->n_out > 1 ? 3 : 0) + (node->in[BWD_GATE] == TT_NONE ? 2 : 0);
    ret_cost->flops = 2.0 * products * (double)tt_value_elements(value_of(graph, node, X)) *
                      (double)value_of(graph, node, W1)->shape[1];
    ret_cost->bf16 = tt_op_is_bf16(graph, node);
}

const struct tt_op_row TT_OF_TYPE(tt_op_experts_ffn) = {
    .name = "experts_ffn",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .part = TT_PART_GEMM,
    .weight = TT_WEIGHT_EXCHANGE,
    .infer = infer,
    .backward = backward,
    .run = run,
    .cost = cost,
    .scratch_bytes = scratch,
};

bool tt_node_routes(const struct tt_graph *graph, int node, struct tt_routed *ret_routed)
{
    const struct tt_node *of = &graph->nodes[node];

    *ret_routed = of->op == TT_OP_EXPERTS_FFN ? (struct tt_routed){1, {X}, ENDS, Y, 1}
                                              : (struct tt_routed){2, {0, 1}, 2, 0, of->n_out}; /* dy and x */
    return (of->op == TT_OP_EXPERTS_FFN || of->op == TT_OP_EXPERTS_FFN_BWD) && of->attr.peers.n > 1;
}

const struct tt_op_row TT_OF_TYPE(tt_op_experts_ffn_bwd) = {
    .name = "experts_ffn_bwd",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE,
           TT_TYPE_F32, TT_TYPE_F32, TT_TYPE_F32, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE},
    .remakes = 2,
    .out = {TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_F32, TT_TYPE_F32},
    .part = TT_PART_GEMM,
    .infer = bwd_infer,
    .run = bwd_run,
    .cost = cost,
    .scratch_bytes = scratch,
    .alias = {1, 7, 8, 9},
};

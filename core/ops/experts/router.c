/* SPDX-License-Identifier: MIT
 *
 * ROUTER: which experts see each token, and with which weights. All arithmetic after the product is in float32.
 *   in   x (N, D), w (X, D), bias (X) F32 or none: added to the scores where experts are chosen, and nowhere else
 *        logit_bias (X) or none: added to x w^T
 *        labels (N, or of several ranks' rows) I32 or none: TT_LABEL_PADDING where there is no token
 *   out  ids (N, k) I32: of each token, ascending; of padding, their complements (choice.h)
 *        gates (N, k) F32: the weights of these experts
 *        scores (N, X) F32: softmax or sigmoid of the logits, x w^T [+ logit_bias]
 *        losses (5, N) F32: terms of the auxiliary losses and the logsumexp of the logits (router_losses.h), if any
 *   attr top_k (k), router, losses, seq_len, pieces, rows (N), first_row
 *   The k experts are those with the largest scores, and of equal scores those with the smaller ids, so the choice is
 *   defined for all inputs. With groups, experts of the best kept_groups groups only; of equal groups, the first ones.
 *   normalize: the gates of a token are divided by their sum, of sigmoids by their sum + 1e-20, since it may be 0.
 *   balanced: slot i of all N k slots gets expert i mod X instead, with its score (to measure speed without imbalance).
 *   The terms of padding are 0, and it is not counted among the tokens of a balance loss.
 *   If other ranks have other rows, balance losses are 0: ROUTER_LOSSES has them.
 *
 * ROUTER_BWD: through the gates; the choice itself, and so the bias, has no gradient.
 *   in   dgates (N, k) F32, ids, gates, scores, x, w, acc of x or none, acc of w or none, losses or
 *        none, ids of all rows or none: if other ranks have some of them and there are balance losses; acc of
 *        logit_bias or none
 *   out  dx = [acc +] dlogits w, dw = [acc +] dlogits^T x; if there is a logit_bias that is trained, its gradient:
 *        [acc +] the sum of the rows of dlogits. Each may take its acc's memory
 */
#include <math.h>
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/ops/experts/choice.h"
#include "core/ops/experts/router_losses.h"
#include "core/ops/grains.h"
#include "core/ops/rule.h"

enum { TILE_ROWS = 64, SUM_COLUMNS = 16, LINE = 16 /* floats of a cache line */ };
enum { LOGIT_BIAS = 3, LABELS = 4, ACC_OF_LOGIT_BIAS = 10 /* inputs of ROUTER and ROUTER_BWD */ };

static const float least_sum = 1e-20F; /* transformers' */

/* --- forward --- */

/* Whether the options are possible with X experts: groups of at least two that have room for k experts. */
static bool options_fit(const struct tt_attr *attr, int64_t experts)
{
    const struct tt_router *r = &attr->router;

    if (attr->top_k < 1 || attr->top_k > experts || r->scale < 0.0F)
        return false;
    if (r->groups <= 1)
        return true;
    return r->groups <= TT_MOST_GROUPS && experts % r->groups == 0 && experts / r->groups >= 2 && r->kept_groups >= 1 &&
           r->kept_groups <= r->groups && attr->top_k <= r->kept_groups * (experts / r->groups);
}

/* Labels are of this rank's rows, or also of those of other ranks with the same sequences. */
static bool labels_fit(const struct tt_graph *graph, const struct tt_node *node, int64_t rows)
{
    return node->n_in <= LABELS || node->in[LABELS] == TT_NONE ||
           tt_value_elements(&graph->values[node->in[LABELS]]) % rows == 0;
}

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]], w = graph->values[node->in[1]];
    int64_t chosen[2] = {tt_value_rows(&x), node->attr.top_k}, scores[2] = {tt_value_rows(&x), w.shape[0]};
    int64_t losses[2] = {TT_ROUTER_LOSS_ROWS, tt_value_rows(&x)};
    int rc = 0;

    if (x.ndim < 2 || w.ndim != 2 || tt_value_width(&x) != w.shape[1] || !options_fit(&node->attr, w.shape[0]) ||
        (node->in[2] != TT_NONE && tt_value_elements(&graph->values[node->in[2]]) != w.shape[0]) ||
        !tt_op_acc_fits(graph, node, LOGIT_BIAS, 1, w.shape[0]) || !labels_fit(graph, node, tt_value_rows(&x)) ||
        !tt_grain_fits(&node->attr.rows, tt_value_rows(&x)) ||
        !tt_router_losses_fit(&node->attr, tt_router_all_rows(&node->attr, tt_value_rows(&x))))
        return tt_op_mismatch(graph, node,
                              "x (N, D), w (X, D), bias, logit_bias (X), 1 <= top_k <= X, and groups of at least two "
                              "experts that divide X and have top_k of them");
    TT_TRY(tt_op_output(graph, node, 0, name, "experts", 2, chosen));
    TT_TRY(tt_op_output(graph, node, 1, name, "gates", 2, chosen));
    TT_TRY(tt_op_output(graph, node, 2, name, NULL, 2, scores));
    if (tt_router_has_losses(&node->attr))
        TT_TRY(tt_op_output(graph, node, 3, name, "losses", 2, losses));
out:
    return rc;
}

/* The experts of all rows, if ROUTER_LOSSES has been added already; else tt_graph_add_router_losses sets them. */
static int ids_of_all(const struct tt_graph *graph, int router)
{
    for (int n = router + 1; n < graph->n_nodes; n++)
        if (graph->nodes[n].op == TT_OP_ROUTER_LOSSES &&
            graph->nodes[n].in[TT_COUNTED_IDS] == graph->nodes[router].out[0])
            return graph->nodes[n].in[1];
    return TT_NONE;
}

static int backward(struct tt_graph *graph, int node, const int *grad_out, int *grad_in)
{
    const struct tt_node forward = graph->nodes[node];
    int x = forward.in[0], w = forward.in[1], bias = forward.in[LOGIT_BIAS], rc = 0, grad[3], of[3] = {x, w, bias};
    int losses = forward.n_out > 3 ? forward.out[3] : TT_NONE;
    bool trains_bias = bias != TT_NONE && tt_rule_wanted(graph, bias);
    int in[11] = {grad_out[1],
                  forward.out[0],
                  forward.out[1],
                  forward.out[2],
                  x,
                  w,
                  grad_in[0],
                  grad_in[1],
                  losses,
                  ids_of_all(graph, node),
                  trains_bias ? grad_in[LOGIT_BIAS] : TT_NONE};

    TT_TRY(tt_rule_node(graph, TT_OP_ROUTER_BWD, &forward, in, 11, of, trains_bias ? 3 : 2, grad));
    tt_rule_set(&forward, 0, grad[0], grad_in);
    tt_rule_set(&forward, 1, grad[1], grad_in);
    if (trains_bias)
        tt_rule_set(&forward, LOGIT_BIAS, grad[2], grad_in);
out:
    return rc;
}

/* logits = x w^T */
static struct tt_matmul product_of(const struct tt_graph *graph, const struct tt_node *node)
{
    const struct tt_value *x = &graph->values[node->in[0]], *w = &graph->values[node->in[1]];
    int64_t k = tt_value_width(x);

    return (struct tt_matmul){.bf16 = tt_op_is_bf16(graph, node),
                              .trans_b = true,
                              .m = tt_value_rows(x),
                              .n = w->shape[0],
                              .k = k,
                              .lda = k,
                              .ldb = k,
                              .ldc = w->shape[0],
                              .m_grain = tt_grain_size(&node->attr.rows)};
}

/* Returns the logsumexp. */
static float softmax(float *row, int64_t n)
{
    float most = row[0], sum = 0.0F;

    for (int64_t i = 1; i < n; i++)
        most = row[i] > most ? row[i] : most;
    for (int64_t i = 0; i < n; i++)
        row[i] -= most;
    tt_kernels()->exp(row, row, n);
    for (int64_t i = 0; i < n; i++)
        sum += row[i];
    for (int64_t i = 0; i < n; i++)
        row[i] /= sum;
    return (float)((double)most + log((double)sum));
}

static void sigmoid(float *row, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        row[i] = -row[i];
    tt_kernels()->exp(row, row, n);
    for (int64_t i = 0; i < n; i++)
        row[i] = 1.0F / (1.0F + row[i]);
}

static float scale_of(const struct tt_router *r)
{
    return r->scale > 0.0F ? r->scale : 1.0F;
}

/* The scores of the chosen experts as their weights. */
static void weigh(const struct tt_router *r, const int32_t *ids, const float *scores, int k, float *gates)
{
    float sum = 0.0F, scale = scale_of(r);

    for (int j = 0; j < k; j++)
        sum += gates[j] = scores[ids[j]];
    if (r->score == TT_SCORE_SIGMOID)
        sum += least_sum;
    for (int j = 0; j < k && r->normalize; j++)
        gates[j] /= sum;
    for (int j = 0; j < k && scale != 1.0F; j++)
        gates[j] *= scale;
}

static void add_logit_bias(const struct tt_call *call, float *logits, int64_t n)
{
    const tt_bf16 *half = call->in[LOGIT_BIAS];

    if (tt_call_in(call, LOGIT_BIAS)->dtype == TT_F32)
        tt_kernels()->add(logits, logits, call->in[LOGIT_BIAS], n);
    else
        for (int64_t i = 0; i < n; i++)
            logits[i] += tt_bf16_to_float(half[i]);
}

static bool is_padding(const struct tt_call *call, int64_t row)
{
    const int32_t *labels = call->node->n_in > LABELS ? call->in[LABELS] : NULL;

    return labels &&
           labels[call->node->attr.first_row % tt_value_elements(tt_call_in(call, LABELS)) + row] == TT_LABEL_PADDING;
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const struct tt_router *router = &call->node->attr.router;
    int64_t experts = tt_value_width(tt_call_out(call, 2));
    struct tt_range part = tt_tile_range(tt_value_rows(tt_call_out(call, 2)), TILE_ROWS, tile);
    int k = call->node->attr.top_k;

    (void)worker;
    for (int64_t r = part.begin; r < part.begin + part.n; r++) {
        int32_t *ids = (int32_t *)call->out[0] + r * k;
        float *scores = (float *)call->out[2] + r * experts;
        const struct tt_choice choice = {scores, call->in[2]};

        float lse = 0.0F;

        if (call->in[LOGIT_BIAS])
            add_logit_bias(call, scores, experts);
        if (router->score == TT_SCORE_SIGMOID)
            sigmoid(scores, experts);
        else
            lse = softmax(scores, experts);
        if (call->node->n_out > 3)
            ((float *)call->out[3])[TT_ROUTER_LSE * tt_value_rows(tt_call_out(call, 2)) + r] = lse;
        if (router->balanced)
            tt_choose_in_turn(ids, call->node->attr.first_row + r, k, experts);
        else
            tt_choose(ids, &choice, router, k, experts);
        weigh(router, ids, scores, k, (float *)call->out[1] + r * k);
        for (int j = 0; j < k && is_padding(call, r); j++)
            ids[j] = ~ids[j];
    }
}

/* After all tokens have their experts. */
static void losses_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    int64_t rows = tt_value_rows(tt_call_out(call, 2)), experts = tt_value_width(tt_call_out(call, 2));
    struct tt_range part = tt_tile_range(rows, TILE_ROWS, tile);
    const struct tt_attr *attr = &call->node->attr;
    float *losses = call->out[3];

    (void)worker;
    for (int64_t r = part.begin; r < part.begin + part.n; r++)
        tt_router_loss_terms(
            attr,
            tt_router_losses_apart(attr, rows) ? (struct tt_token_factors){0}
                                               : tt_router_token_factors(attr, call->scratch, r, rows, experts),
            &(struct tt_loss_token){(const float *)call->out[2] + r * experts, losses[TT_ROUTER_LSE * rows + r],
                                    tt_id_is_padding(((const int32_t *)call->out[0])[r * attr->top_k])},
            r, rows, experts, losses);
}

static void run(const struct tt_call *call)
{
    struct tt_matmul product = product_of(call->graph, call->node);

    product.a = call->in[0];
    product.b = call->in[1];
    product.c = call->out[2];
    product.scratch = call->scratch;
    tt_matmul(call->team, &product);
    tt_team_run(call->team, tt_tiles(product.m, TILE_ROWS), run_tile, (void *)call);
    if (call->node->n_out <= 3)
        return;
    if (!tt_router_losses_apart(&call->node->attr, product.m))
        tt_router_factors(&call->node->attr, call->out[0], tt_router_loads(call, product.n), product.m, product.n,
                          call->scratch);
    tt_team_run(call->team, tt_tiles(product.m, TILE_ROWS), losses_tile, (void *)call);
}

static int64_t scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_matmul product = product_of(graph, node);
    int64_t floats = threads * tt_matmul_scratch_floats(&product);
    int64_t factors =
        tt_router_losses_apart(&node->attr, product.m) ? 0 : tt_router_factor_floats(&node->attr, product.m, product.n);

    return (floats > factors ? floats : factors) * (int64_t)sizeof(float);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    struct tt_matmul product = product_of(graph, node);

    ret_cost->flops = 2.0 * (double)product.m * (double)product.n * (double)product.k;
    ret_cost->bytes = tt_op_bytes(graph, node);
    ret_cost->bf16 = product.bf16;
}

/* --- backward --- */

static int infer_bwd(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value scores = graph->values[node->in[3]], x = graph->values[node->in[4]];
    const struct tt_value w = graph->values[node->in[5]];
    int64_t n = tt_value_rows(&x), k = node->attr.top_k;
    int rc = 0;

    if (w.ndim != 2 || tt_value_width(&x) != w.shape[1] || tt_value_rows(&scores) != n ||
        tt_value_width(&scores) != w.shape[0] || !tt_op_acc_fits(graph, node, 0, n, k) ||
        !tt_op_acc_fits(graph, node, 1, n, k) || !tt_op_acc_fits(graph, node, 2, n, k) ||
        (node->in[8] == TT_NONE) == tt_router_has_losses(&node->attr) || !tt_grain_fits(&node->attr.rows, n) ||
        (node->in[9] == TT_NONE) == tt_router_losses_apart(&node->attr, n) ||
        !tt_op_acc_fits(graph, node, 9, tt_router_all_rows(&node->attr, n), k) ||
        !tt_op_acc_fits(graph, node, ACC_OF_LOGIT_BIAS, 1, w.shape[0]) ||
        !tt_op_acc_fits(graph, node, 6, n, w.shape[1]) || !tt_op_acc_fits(graph, node, 7, w.shape[0], w.shape[1]))
        return tt_op_mismatch(graph, node, "dgates, ids, gates (N, k), scores (N, X), x (N, D), w (X, D)");
    TT_TRY(tt_op_output(graph, node, 0, name, NULL, x.ndim, x.shape));
    TT_TRY(tt_op_output(graph, node, 1, name, "w", 2, w.shape));
    if (node->n_out > 2)
        TT_TRY(tt_op_output(graph, node, 2, name, "logit_bias", 1, w.shape));
out:
    return rc;
}

/* dx and dw, without addresses. */
static void products_of(const struct tt_graph *graph, const struct tt_node *node, struct tt_matmul *ret_dx,
                        struct tt_matmul *ret_dw)
{
    const struct tt_value *x = &graph->values[node->in[4]], *w = &graph->values[node->in[5]];
    int64_t n = tt_value_rows(x), d = w->shape[1], experts = w->shape[0], grain = tt_grain_size(&node->attr.rows);
    bool bf16 = tt_op_is_bf16(graph, node);

    *ret_dx = (struct tt_matmul){.bf16 = bf16,
                                 .c_bf16 = bf16,
                                 .m = n,
                                 .n = d,
                                 .k = experts,
                                 .lda = experts,
                                 .ldb = d,
                                 .ldc = d,
                                 .m_grain = grain};
    *ret_dw = (struct tt_matmul){.bf16 = bf16,
                                 .trans_a = true,
                                 .m = experts,
                                 .n = d,
                                 .k = n,
                                 .lda = experts,
                                 .ldb = d,
                                 .ldc = d,
                                 .k_grain = grain};
}

/*
 * Through the gates of a token: the gradient of each expert's logit. A normalized gate falls with the other chosen
 * experts' scores. A softmax falls with all logits; so the normalized gates of a softmax are one of the chosen logits.
 */
static void logits_grad(const struct tt_attr *attr, const float *dgates, const int32_t *ids, const float *gates,
                        const float *scores, int64_t experts, float *dlogits)
{
    bool sigmoid = attr->router.score == TT_SCORE_SIGMOID, normalize = attr->router.normalize;
    float sum = 0.0F, mean;

    for (int j = 0; j < attr->top_k; j++)
        sum += gates[j] * dgates[j];
    for (int64_t i = 0; i < experts; i++)
        dlogits[i] = normalize || sigmoid ? 0.0F : -scores[i] * sum;
    mean = sigmoid && !normalize ? 0.0F : sum / scale_of(&attr->router);
    for (int j = 0; j < attr->top_k; j++) {
        float slope = gates[j] * (dgates[j] - mean);

        dlogits[tt_id_expert(ids[j])] = sigmoid ? slope * (1.0F - scores[tt_id_expert(ids[j])]) : slope;
    }
}

/* Floats before the scratch of the products: dlogits, in bfloat16 again if products are. */
static int64_t logits_floats(const struct tt_graph *graph, const struct tt_node *node)
{
    int64_t n = tt_value_elements(&graph->values[node->in[3]]);

    return tt_round_up(n, LINE) * (tt_op_is_bf16(graph, node) ? 2 : 1);
}

static void logits_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const struct tt_value *scores = tt_call_in(call, 3);
    int64_t experts = tt_value_width(scores), k = call->node->attr.top_k;
    struct tt_range part = tt_tile_range(tt_value_rows(scores), TILE_ROWS, tile);
    float *dlogits = call->scratch;
    tt_bf16 *rounded = (tt_bf16 *)(void *)(dlogits + tt_round_up(tt_value_elements(scores), LINE));
    const float *losses = call->in[8], *factors = dlogits + logits_floats(call->graph, call->node);
    const struct tt_attr *attr = &call->node->attr;
    int64_t rows = tt_value_rows(scores);

    (void)worker;
    for (int64_t r = part.begin; r < part.begin + part.n; r++) {
        logits_grad(&call->node->attr, (const float *)call->in[0] + r * k, (const int32_t *)call->in[1] + r * k,
                    (const float *)call->in[2] + r * k, (const float *)call->in[3] + r * experts, experts,
                    dlogits + r * experts);
        if (losses && !tt_id_is_padding(((const int32_t *)call->in[1])[r * k]))
            tt_router_loss_grad(attr,
                                tt_router_token_factors(attr, factors, r, tt_router_loss_rows(attr, rows), experts),
                                (const float *)call->in[3] + r * experts, losses[TT_ROUTER_LSE * rows + r], experts,
                                call->scalars->inv_tokens, dlogits + r * experts);
    }
    if (tt_op_is_bf16(call->graph, call->node))
        tt_kernels()->bf16_round(rounded + part.begin * experts, dlogits + part.begin * experts, part.n * experts);
}

/* Of the gradient of w: its sums over grains of rows. */
static int64_t partial_floats(const struct tt_node *node, const struct tt_matmul *dw)
{
    return tt_round_up(tt_matmul_partial_floats(dw, node->in[7] != TT_NONE), LINE);
}

/* A tile is some columns of dlogits, which are in scratch. */
static void logit_bias_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_call *call = arg;
    const float *dlogits = call->scratch, *acc = call->in[ACC_OF_LOGIT_BIAS];
    const struct tt_value *scores = tt_call_in(call, 3);
    int64_t experts = tt_value_width(scores);
    struct tt_range part = tt_tile_range(experts, SUM_COLUMNS, tile);

    (void)worker;
    tt_kernels()->sum_rows((float *)call->out[2] + part.begin, acc ? acc + part.begin : NULL, dlogits + part.begin,
                           tt_value_rows(scores), experts, part.n);
}

static void run_bwd(const struct tt_call *call)
{
    const struct tt_value *scores = tt_call_in(call, 3);
    float *dlogits = call->scratch;
    struct tt_matmul dx, dw;

    products_of(call->graph, call->node, &dx, &dw);
    if (call->in[8])
        tt_router_factors(&call->node->attr, call->in[9] ? call->in[9] : call->in[1], tt_router_loads(call, dx.k),
                          tt_router_loss_rows(&call->node->attr, dx.m), dx.k,
                          dlogits + logits_floats(call->graph, call->node));
    tt_team_run(call->team, tt_tiles(tt_value_rows(scores), TILE_ROWS), logits_tile, (void *)call);
    if (call->node->n_out > 2)
        tt_team_run(call->team, tt_tiles(tt_value_width(scores), SUM_COLUMNS), logit_bias_tile, (void *)call);
    dx.a = dw.a = dx.bf16 ? dlogits + tt_round_up(tt_value_elements(scores), LINE) : dlogits;
    dw.partial = dlogits + logits_floats(call->graph, call->node);
    dx.scratch = dw.scratch = dw.partial + partial_floats(call->node, &dw);
    dx.b = call->in[5];
    dx.acc = call->in[6];
    dx.c = call->out[0];
    dw.b = call->in[4];
    dw.acc = call->in[7];
    dw.c = call->out[1];
    tt_matmul(call->team, &dx);
    tt_matmul(call->team, &dw);
}

static int64_t scratch_bwd(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_matmul dx, dw;
    int64_t a, b;

    products_of(graph, node, &dx, &dw);
    a = tt_matmul_scratch_floats(&dx);
    b = tt_matmul_scratch_floats(&dw);
    a = partial_floats(node, &dw) + threads * (a > b ? a : b);
    b = tt_router_factor_floats(&node->attr, tt_router_loss_rows(&node->attr, dx.m), dx.k);
    return (logits_floats(graph, node) + (a > b ? a : b)) * (int64_t)sizeof(float);
}

static void cost_bwd(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    struct tt_matmul dx, dw;

    products_of(graph, node, &dx, &dw);
    ret_cost->flops = 4.0 * (double)dx.m * (double)dx.n * (double)dx.k;
    ret_cost->bytes = tt_op_bytes(graph, node);
    ret_cost->bf16 = dx.bf16;
}

const struct tt_op_row tt_op_router = {
    .name = "router",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_COMPUTE, TT_TYPE_IDS},
    .may_lack = 2,
    .out = {TT_TYPE_IDS, TT_TYPE_F32, TT_TYPE_F32, TT_TYPE_F32},
    .cuts = TT_CUT_ROWS,
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .weight = TT_WEIGHT_MATMUL,
    .infer = infer,
    .backward = backward,
    .run = run,
    .cost = cost,
    .scratch_bytes = scratch,
};

const struct tt_op_row tt_op_router_bwd = {
    .name = "router_bwd",
    .in = {TT_TYPE_F32, TT_TYPE_IDS, TT_TYPE_F32, TT_TYPE_F32, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE,
           TT_TYPE_F32, TT_TYPE_F32, TT_TYPE_IDS, TT_TYPE_F32},
    .may_lack = 1,
    .out = {TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_F32},
    .cuts = TT_CUT_ROWS,
    .computes = TT_COMPUTES(TT_F32) | TT_COMPUTES(TT_BF16),
    .infer = infer_bwd,
    .run = run_bwd,
    .cost = cost_bwd,
    .scratch_bytes = scratch_bwd,
    .alias = {7, 8, 11},
};

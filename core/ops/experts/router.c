/* SPDX-License-Identifier: MIT
 *
 * ROUTER: chooses the experts of each token, and their weights. All arithmetic after the product is in float32.
 *   in   x (N, D), w (X, D), bias (X) F32 or none: added to the scores only for the choice of experts
 *        logit_bias (X) or none: added to x w^T
 *        labels (N, or the rows of several ranks) I32 or none: TT_LABEL_PADDING where there is no token
 *   out  ids (N, k) I32: each token's, ascending; for padding, their complements (router.h)
 *        gates (N, k) F32: the weights of these experts
 *        scores (N, X) F32: softmax or sigmoid of the logits, x w^T [+ logit_bias]
 *        losses (5, N) F32: terms of the auxiliary losses and the logsumexp of the logits (router.h), if any
 *   attr top_k (k), router, losses, seq_len, pieces, rows (N), first_row
 *   The k experts are those with the largest scores, and among equal scores those with the smaller ids, so the choice
 *   is defined for all inputs. With groups, only experts of the best kept_groups groups; among equal groups, the first
 *   ones.
 *   normalize: the gates of a token are divided by their sum, of sigmoids by their sum + 1e-20, since it may be 0.
 *   balanced: slot i of all N k slots gets expert i mod X instead, with its score (to measure speed without imbalance).
 *   The terms of padding are 0, and balance losses do not count padding as tokens.
 *   If other ranks have other rows, balance losses are 0 here: ROUTER_LOSSES computes them.
 *
 * ROUTER_BWD: the gradient through the gates; the choice itself, and so the bias, has no gradient.
 *   in   dgates (N, k) F32, ids, gates, scores, x, w, acc of x or none, acc of w or none, losses or
 *        none, ids of all rows or none: if other ranks have some of them and there are balance losses; acc of
 *        logit_bias or none
 *   out  dx = [acc +] dlogits w, dw = [acc +] dlogits^T x; if there is a logit_bias that is trained, its gradient:
 *        [acc +] the sum of the rows of dlogits. Each may take its acc's memory
 */
#include "core/ops/experts/router.h"

#include <math.h>
#include <string.h>

#include "core/graph/pieces.h"
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/math/elementary.h"
#include "core/ops/op.h"
#include "core/ops/rule.h"

enum { TILE_ROWS = 64, SUM_COLUMNS = 16, LINE = 16 /* floats of a cache line */ };
enum { LOGIT_BIAS = 3, LABELS = 4, ACC_OF_LOGIT_BIAS = 10 /* inputs of ROUTER and ROUTER_BWD */ };

static const tt_real least_sum = 1e-20F; /* transformers' */

/* --- the choice of a token's experts --- */

enum { MOST_GROUPS = 64 };

/* The scores that decide the choice: the token's scores, each plus the bias of its expert. */
struct choice {
    const tt_real *scores, *bias; /* (X); NULL: no bias */
};

/* Inserts an expert into the n chosen ones, which are in ascending order. */
static void insert(int32_t *ids, int n, int32_t expert)
{
    for (; n > 0 && ids[n - 1] > expert; n--)
        ids[n] = ids[n - 1];
    ids[n] = expert;
}

/* Whether `expert` is among the n chosen ones. */
static bool is_chosen(const int32_t *ids, int n, int64_t expert)
{
    for (int i = 0; i < n; i++)
        if (ids[i] == expert)
            return true;
    return false;
}

static tt_real value_of(const struct choice *c, int64_t expert)
{
    return c->bias ? c->scores[expert] + c->bias[expert] : c->scores[expert];
}

/* The best expert in [from, end) that is not among the n chosen ones; the first one if all scores are NaN. */
static int64_t best_of(const struct choice *c, const int32_t *chosen, int n, int64_t from, int64_t end)
{
    int64_t best = TT_NONE;

    for (int64_t i = from; i < end; i++)
        if ((best == TT_NONE || value_of(c, i) > value_of(c, best)) && !is_chosen(chosen, n, i))
            best = i;
    return best;
}

static tt_real group_value(const struct choice *c, enum tt_group_rule rule, int64_t from, int64_t end)
{
    int32_t first = (int32_t)best_of(c, NULL, 0, from, end);
    tt_real best = value_of(c, first);

    return rule == TT_GROUP_TWO_BEST ? best + value_of(c, best_of(c, &first, 1, from, end)) : best;
}

/* The groups from which a token's experts may come, as a bit mask. */
static uint64_t kept_groups(const struct choice *c, const struct tt_router *r, int64_t experts)
{
    tt_real value[MOST_GROUPS];
    int64_t each = experts / r->groups;
    uint64_t kept = 0;

    for (int g = 0; g < r->groups; g++)
        value[g] = group_value(c, r->group_rule, g * each, (g + 1) * each);
    for (int n = 0; n < r->kept_groups; n++) {
        int best = TT_NONE;

        for (int g = 0; g < r->groups; g++)
            if ((best == TT_NONE || value[g] > value[best]) && !(kept & UINT64_C(1) << g))
                best = g;
        kept |= UINT64_C(1) << best;
    }
    return kept;
}

/* Writes the ids of k experts, ascending. They are valid even if scores are NaN; the loss will show the NaN. */
static void choose(int32_t *ids, const struct choice *c, const struct tt_router *r, int k, int64_t experts)
{
    int groups = r->groups > 1 ? r->groups : 1;
    uint64_t kept = groups > 1 ? kept_groups(c, r, experts) : 1;
    int64_t each = experts / groups;

    for (int chosen = 0; chosen < k; chosen++) {
        int64_t best = TT_NONE;

        for (int g = 0; g < groups; g++) {
            int64_t of_group = kept & UINT64_C(1) << g ? best_of(c, ids, chosen, g * each, (g + 1) * each) : TT_NONE;

            if (of_group != TT_NONE && (best == TT_NONE || value_of(c, of_group) > value_of(c, best)))
                best = of_group;
        }
        insert(ids, chosen, (int32_t)best);
    }
}

/* The same without scores: slot i of all slots gets expert i mod X. row: the token's row among the rows of all
 * ranks. */
static void choose_in_turn(int32_t *ids, int64_t row, int k, int64_t experts)
{
    for (int j = 0; j < k; j++)
        insert(ids, j, (int32_t)((row * k + j) % experts));
}

/*
 * The auxiliary losses of a router. Sums over experts are in the experts' order; everything else is per token, or
 * integers.
 */

static bool balances(const struct tt_attr *attr)
{
    return attr->losses.sequence > 0.0F || attr->losses.microbatch > 0.0F || attr->losses.global_batch > 0.0F;
}

static bool has_losses(const struct tt_attr *attr)
{
    return balances(attr) || attr->losses.z > 0.0F;
}

/* The rows of the whole microbatch, if a rank has `rows` of them. */
static int64_t all_rows_of(const struct tt_attr *attr, int64_t rows)
{
    return attr->rows.grains > 1 ? attr->rows.whole : rows;
}

bool tt_router_losses_apart(const struct tt_attr *attr, int64_t rows)
{
    return (attr->losses.sequence > 0.0F || attr->losses.microbatch > 0.0F) && all_rows_of(attr, rows) != rows;
}

/* The number of rows that the factors count: the whole microbatch if ROUTER_LOSSES computes the losses, else this
 * rank's rows. */
static int64_t loss_rows_of(const struct tt_attr *attr, int64_t rows)
{
    return tt_router_losses_apart(attr, rows) ? all_rows_of(attr, rows) : rows;
}

bool tt_node_counted(const struct tt_graph *graph, int node, struct tt_router_counted *ret_counted)
{
    const struct tt_node *of = &graph->nodes[node];
    bool router = of->op == TT_OP_ROUTER;

    if (of->op == TT_OP_ROUTER_LOSSES)
        *ret_counted = (struct tt_router_counted){of->in[TT_COUNTED_IDS], of->out[0]};
    else
        *ret_counted = (struct tt_router_counted){of->out[0], router && of->n_out > 3 ? of->out[3] : TT_NONE};
    return !of->backward && (of->op == TT_OP_ROUTER_LOSSES ||
                             (router && !tt_router_losses_apart(&of->attr, tt_value_rows(&graph->values[of->out[0]]))));
}

/* Whether a router can have the losses; rows: the tokens of all ranks. */
static bool losses_fit(const struct tt_attr *attr, int64_t rows)
{
    const struct tt_router_losses *l = &attr->losses;

    return !(l->sequence < 0.0F || l->microbatch < 0.0F || l->z < 0.0F || l->global_batch < 0.0F) &&
           (l->sequence <= 0.0F ||
            (attr->seq_len > 0 && rows % attr->seq_len == 0 && attr->seq_len % tt_pieces_count(&attr->pieces) == 0)) &&
           (l->z <= 0.0F || attr->router.score == TT_SCORE_SOFTMAX);
}

/* The number of tokens whose balance is one term: a sequence, or all. */
static int64_t tokens_of(const struct tt_attr *attr, int64_t rows)
{
    return attr->losses.sequence > 0.0F ? attr->seq_len : rows;
}

int64_t tt_router_factor_floats(const struct tt_attr *attr, int64_t rows, int64_t experts)
{
    return balances(attr) ? (rows / tokens_of(attr, rows) + 2) * experts : 0;
}

/* The index of the term for a row of the microbatch: its sequence, which may be in pieces (pieces.h), or the only
 * term. */
static int64_t term_of(const struct tt_attr *attr, int64_t row, int64_t rows)
{
    int64_t piece = attr->seq_len / tt_pieces_count(&attr->pieces);

    return attr->losses.sequence > 0.0F ? row / piece % (rows / attr->seq_len) : 0;
}

/* Computes the factors of one loss from the number of slots of each expert. */
static void finish(tt_real coeff, int64_t experts, tt_real *factors)
{
    double slots = 0.0, each;

    for (int64_t x = 0; x < experts; x++)
        slots += (double)factors[x];
    each = slots > 0.0 ? (double)coeff * (double)experts / slots : 0.0; /* a sequence may be all padding */
    for (int64_t x = 0; x < experts; x++)
        factors[x] = (tt_real)(each * (double)factors[x]);
}

/* The loads of the node's layer in the previous step; NULL: they were even, or no loss depends on them. */
static const int64_t *loads_of(const struct tt_call *call, int64_t experts)
{
    bool needed = call->node->attr.losses.global_batch > 0.0F && call->scalars->loads;

    return needed ? call->scalars->loads + call->node->block * experts : NULL;
}

/* Factors of the loss of the global batch. */
static void fill_global(const struct tt_attr *attr, const int64_t *loads, int64_t experts, tt_real *factors)
{
    double coeff = (double)(tt_real)attr->losses.global_batch;
    int64_t slots = 0;

    for (int64_t x = 0; x < experts && loads; x++)
        slots += loads[x];
    for (int64_t x = 0; x < experts; x++)
        factors[x] = (tt_real)(slots ? coeff * (double)experts * (double)loads[x] / (double)slots : coeff);
}

void tt_router_factors(const struct tt_attr *attr, const int32_t *ids, const int64_t *loads, int64_t rows,
                       int64_t experts, tt_real *factors)
{
    int64_t tokens, terms;
    tt_real *all;

    if (!balances(attr))
        return;
    tokens = tokens_of(attr, rows);
    terms = rows / tokens;
    all = factors + terms * experts;
    memset(factors, 0, (size_t)((terms + 1) * experts) * sizeof *factors);
    for (int64_t row = 0; row < rows; row++) {
        tt_real *term = factors + term_of(attr, row, rows) * experts;

        for (int j = 0; j < attr->top_k; j++, ids++) { /* exact: a microbatch has less than 2^24 slots of an expert */
            if (*ids < 0)
                continue;
            term[*ids] += 1.0F;
            all[*ids] += 1.0F;
        }
    }
    for (int64_t i = 0; i < terms; i++)
        finish(attr->losses.sequence, experts, factors + i * experts);
    finish(attr->losses.microbatch, experts, all);
    fill_global(attr, loads, experts, all + experts);
}

/* 1 / the sum of a token's scores; 1 for a softmax. */
static tt_real share_of(const struct tt_attr *attr, const tt_real *scores, int64_t experts)
{
    tt_real sum = 1e-20F; /* all sigmoids may vanish */

    if (attr->router.score == TT_SCORE_SOFTMAX)
        return 1.0F;
    for (int64_t x = 0; x < experts; x++)
        sum += scores[x];
    return 1.0F / sum;
}

static tt_real sum_of(const tt_real *factors, const tt_real *scores, int64_t experts)
{
    tt_real sum = 0.0F;

    for (int64_t x = 0; x < experts; x++)
        sum += factors[x] * scores[x];
    return sum;
}

struct tt_token_factors tt_router_token_factors(const struct tt_attr *attr, const tt_real *factors, int64_t row,
                                                int64_t all_rows, int64_t experts)
{
    const tt_real *all;

    if (!balances(attr))
        return (struct tt_token_factors){0};
    all = factors + all_rows / tokens_of(attr, all_rows) * experts;
    return (struct tt_token_factors){factors + term_of(attr, attr->first_row + row, all_rows) * experts, all,
                                     all + experts};
}

void tt_router_loss_terms(const struct tt_attr *attr, struct tt_token_factors factors,
                          const struct tt_loss_token *token, int64_t row, int64_t rows, int64_t experts,
                          tt_real *losses)
{
    tt_real share = share_of(attr, token->scores, experts), sequence = 0.0F, microbatch = 0.0F, global = 0.0F;

    if (factors.sequence && !token->padding) {
        sequence = share * sum_of(factors.sequence, token->scores, experts);
        microbatch = share * sum_of(factors.microbatch, token->scores, experts);
        global = share * sum_of(factors.global, token->scores, experts);
    }
    losses[TT_ROUTER_SEQUENCE * rows + row] = sequence;
    losses[TT_ROUTER_MICROBATCH * rows + row] = microbatch;
    losses[TT_ROUTER_GLOBAL_BATCH * rows + row] = global;
    losses[TT_ROUTER_Z * rows + row] = token->padding ? 0.0F : (tt_real)attr->losses.z * token->lse * token->lse;
    losses[TT_ROUTER_LSE * rows + row] = token->lse;
}

/* Adds the gradient of a token's terms, times `scale`, to the gradient of its logits. */
static void add_loss_grad(const struct tt_attr *attr, struct tt_token_factors factors, const tt_real *scores,
                          tt_real lse, int64_t experts, tt_real scale, tt_real *dlogits)
{
    bool sigmoid = attr->router.score == TT_SCORE_SIGMOID;
    tt_real z = 2.0F * (tt_real)attr->losses.z * lse * scale;

    if (factors.sequence) {
        const tt_real *a = factors.sequence, *b = factors.microbatch, *c = factors.global;
        tt_real share = share_of(attr, scores, experts);
        tt_real mean = share * (sum_of(a, scores, experts) + sum_of(b, scores, experts) + sum_of(c, scores, experts));

        for (int64_t x = 0; x < experts; x++) {
            tt_real slope = share * scores[x] * (a[x] + b[x] + c[x] - mean) * scale;

            dlogits[x] += sigmoid ? slope * (1.0F - scores[x]) : slope;
        }
    }
    for (int64_t x = 0; x < experts && attr->losses.z > 0.0F; x++)
        dlogits[x] += z * scores[x];
}

/* --- ROUTER --- */

/* Whether the options fit X experts: groups have at least two experts, and the kept groups at least k. */
static bool options_fit(const struct tt_attr *attr, int64_t experts)
{
    const struct tt_router *r = &attr->router;

    if (attr->top_k < 1 || attr->top_k > experts || r->scale < 0.0F)
        return false;
    if (r->groups <= 1)
        return true;
    return r->groups <= MOST_GROUPS && experts % r->groups == 0 && experts / r->groups >= 2 && r->kept_groups >= 1 &&
           r->kept_groups <= r->groups && attr->top_k <= r->kept_groups * (experts / r->groups);
}

/* Labels belong to this rank's rows, or to the rows of all ranks with the same sequences. */
static bool labels_fit(const struct tt_graph *graph, const struct tt_node *node, int64_t rows)
{
    return node->n_in <= LABELS || node->in[LABELS] == TT_NONE ||
           tt_value_elements(&graph->values[node->in[LABELS]]) % rows == 0;
}

static int router_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value x = graph->values[node->in[0]], w = graph->values[node->in[1]];
    int64_t chosen[2] = {tt_value_rows(&x), node->attr.top_k}, scores[2] = {tt_value_rows(&x), w.shape[0]};
    int64_t losses[2] = {TT_ROUTER_LOSS_ROWS, tt_value_rows(&x)};
    int rc = 0;

    if (x.ndim < 2 || w.ndim != 2 || tt_value_width(&x) != w.shape[1] || !options_fit(&node->attr, w.shape[0]) ||
        (node->in[2] != TT_NONE && tt_value_elements(&graph->values[node->in[2]]) != w.shape[0]) ||
        !tt_op_acc_fits(graph, node, LOGIT_BIAS, 1, w.shape[0]) || !labels_fit(graph, node, tt_value_rows(&x)) ||
        !tt_grain_fits(&node->attr.rows, tt_value_rows(&x)) ||
        !losses_fit(&node->attr, all_rows_of(&node->attr, tt_value_rows(&x))))
        return tt_op_mismatch(graph, node,
                              "x (N, D), w (X, D), bias, logit_bias (X), 1 <= top_k <= X, and groups of at least two "
                              "experts that divide X and have top_k of them");
    TT_TRY(tt_op_output(graph, node, 0, name, "experts", 2, chosen));
    TT_TRY(tt_op_output(graph, node, 1, name, "gates", 2, chosen));
    TT_TRY(tt_op_output(graph, node, 2, name, NULL, 2, scores));
    if (has_losses(&node->attr))
        TT_TRY(tt_op_output(graph, node, 3, name, "losses", 2, losses));
out:
    return rc;
}

/* The experts of all rows, if ROUTER_LOSSES has already been added; otherwise tt_graph_add_router_losses sets them
 * later. */
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
static tt_real softmax(tt_real *row, int64_t n)
{
    tt_real most = row[0], sum = 0.0F;

    for (int64_t i = 1; i < n; i++)
        most = row[i] > most ? row[i] : most;
    for (int64_t i = 0; i < n; i++)
        row[i] -= most;
    tt_kernels()->exp(row, row, n);
    for (int64_t i = 0; i < n; i++)
        sum += row[i];
    for (int64_t i = 0; i < n; i++)
        row[i] /= sum;
    return (tt_real)((double)most + tt_log((double)sum));
}

static void sigmoid(tt_real *row, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        row[i] = -row[i];
    tt_kernels()->exp(row, row, n);
    for (int64_t i = 0; i < n; i++)
        row[i] = 1.0F / (1.0F + row[i]);
}

static tt_real scale_of(const struct tt_router *r)
{
    return r->scale > 0.0 ? (tt_real)r->scale : 1.0F;
}

/* Turns the scores of the chosen experts into their gates. */
static void weigh(const struct tt_router *r, const int32_t *ids, const tt_real *scores, int k, tt_real *gates)
{
    tt_real sum = 0.0F, scale = scale_of(r);

    for (int j = 0; j < k; j++)
        sum += gates[j] = scores[ids[j]];
    if (r->score == TT_SCORE_SIGMOID)
        sum += least_sum;
    for (int j = 0; j < k && r->normalize; j++)
        gates[j] /= sum;
    for (int j = 0; j < k && scale != 1.0F; j++)
        gates[j] *= scale;
}

static void add_logit_bias(const struct tt_call *call, tt_real *logits, int64_t n)
{
    const tt_bf16 *half = call->in[LOGIT_BIAS];

    if (tt_call_in(call, LOGIT_BIAS)->dtype == TT_REAL_TYPE)
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

static void router_run_tile(const struct tt_call *call, struct tt_range part)
{
    const struct tt_router *router = &call->node->attr.router;
    int64_t experts = tt_value_width(tt_call_out(call, 2));
    int k = call->node->attr.top_k;

    for (int64_t r = part.begin; r < part.begin + part.n; r++) {
        int32_t *ids = (int32_t *)call->out[0] + r * k;
        tt_real *scores = (tt_real *)call->out[2] + r * experts;
        const struct choice choice = {scores, call->in[2]};

        tt_real lse = 0.0F;

        if (call->in[LOGIT_BIAS])
            add_logit_bias(call, scores, experts);
        if (router->score == TT_SCORE_SIGMOID)
            sigmoid(scores, experts);
        else
            lse = softmax(scores, experts);
        if (call->node->n_out > 3)
            ((tt_real *)call->out[3])[TT_ROUTER_LSE * tt_value_rows(tt_call_out(call, 2)) + r] = lse;
        if (router->balanced)
            choose_in_turn(ids, call->node->attr.first_row + r, k, experts);
        else
            choose(ids, &choice, router, k, experts);
        weigh(router, ids, scores, k, (tt_real *)call->out[1] + r * k);
        for (int j = 0; j < k && is_padding(call, r); j++)
            ids[j] = ~ids[j];
    }
}

/* Runs after all tokens have their experts. */
static void losses_tile(const struct tt_call *call, struct tt_range part)
{
    int64_t rows = tt_value_rows(tt_call_out(call, 2)), experts = tt_value_width(tt_call_out(call, 2));
    const struct tt_attr *attr = &call->node->attr;
    tt_real *losses = call->out[3];

    for (int64_t r = part.begin; r < part.begin + part.n; r++)
        tt_router_loss_terms(
            attr,
            tt_router_losses_apart(attr, rows) ? (struct tt_token_factors){0}
                                               : tt_router_token_factors(attr, call->scratch, r, rows, experts),
            &(struct tt_loss_token){(const tt_real *)call->out[2] + r * experts, losses[TT_ROUTER_LSE * rows + r],
                                    ((const int32_t *)call->out[0])[r * attr->top_k] < 0},
            r, rows, experts, losses);
}

static void router_run(const struct tt_call *call)
{
    struct tt_matmul product = product_of(call->graph, call->node);

    product.a = call->in[0];
    product.b = call->in[1];
    product.c = call->out[2];
    product.scratch = call->scratch;
    tt_matmul(call->team, &product);
    tt_op_run_tiles(call, product.m, TILE_ROWS, router_run_tile);
    if (call->node->n_out <= 3)
        return;
    if (!tt_router_losses_apart(&call->node->attr, product.m))
        tt_router_factors(&call->node->attr, call->out[0], loads_of(call, product.n), product.m, product.n,
                          call->scratch);
    tt_op_run_tiles(call, product.m, TILE_ROWS, losses_tile);
}

static int64_t router_scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_matmul product = product_of(graph, node);
    int64_t floats = threads * tt_matmul_scratch_floats(&product);
    int64_t factors =
        tt_router_losses_apart(&node->attr, product.m) ? 0 : tt_router_factor_floats(&node->attr, product.m, product.n);

    return (floats > factors ? floats : factors) * (int64_t)sizeof(tt_real);
}

static void router_cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    struct tt_matmul product = product_of(graph, node);

    ret_cost->flops = 2.0 * (double)product.m * (double)product.n * (double)product.k;
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
        (node->in[8] == TT_NONE) == has_losses(&node->attr) || !tt_grain_fits(&node->attr.rows, n) ||
        (node->in[9] == TT_NONE) == tt_router_losses_apart(&node->attr, n) ||
        !tt_op_acc_fits(graph, node, 9, all_rows_of(&node->attr, n), k) ||
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
 * The gradient of each expert's logit through the gates of a token. A normalized gate depends on the scores of the
 * other chosen experts too. A softmax depends on all logits; so the normalized gates of a softmax are a softmax of the
 * chosen logits.
 */
static void logits_grad(const struct tt_attr *attr, const tt_real *dgates, const int32_t *ids, const tt_real *gates,
                        const tt_real *scores, int64_t experts, tt_real *dlogits)
{
    bool sigmoid = attr->router.score == TT_SCORE_SIGMOID, normalize = attr->router.normalize;
    tt_real sum = 0.0F, mean;

    for (int j = 0; j < attr->top_k; j++)
        sum += gates[j] * dgates[j];
    for (int64_t i = 0; i < experts; i++)
        dlogits[i] = normalize || sigmoid ? 0.0F : -scores[i] * sum;
    mean = sigmoid && !normalize ? 0.0F : sum / scale_of(&attr->router);
    for (int j = 0; j < attr->top_k; j++) {
        tt_real slope = gates[j] * (dgates[j] - mean);

        dlogits[tt_id_expert(ids[j])] = sigmoid ? slope * (1.0F - scores[tt_id_expert(ids[j])]) : slope;
    }
}

/* Floats before the scratch of the products: dlogits and, if the products are in bfloat16, a copy in bfloat16. */
static int64_t logits_floats(const struct tt_graph *graph, const struct tt_node *node)
{
    int64_t n = tt_value_elements(&graph->values[node->in[3]]);

    return tt_round_up(n, LINE) * (tt_op_is_bf16(graph, node) ? 2 : 1);
}

static void logits_tile(const struct tt_call *call, struct tt_range part)
{
    const struct tt_value *scores = tt_call_in(call, 3);
    int64_t experts = tt_value_width(scores), k = call->node->attr.top_k;
    tt_real *dlogits = call->scratch;
    tt_bf16 *rounded = (tt_bf16 *)(void *)(dlogits + tt_round_up(tt_value_elements(scores), LINE));
    const tt_real *losses = call->in[8], *factors = dlogits + logits_floats(call->graph, call->node);
    const struct tt_attr *attr = &call->node->attr;
    int64_t rows = tt_value_rows(scores);

    for (int64_t r = part.begin; r < part.begin + part.n; r++) {
        logits_grad(&call->node->attr, (const tt_real *)call->in[0] + r * k, (const int32_t *)call->in[1] + r * k,
                    (const tt_real *)call->in[2] + r * k, (const tt_real *)call->in[3] + r * experts, experts,
                    dlogits + r * experts);
        if (losses && ((const int32_t *)call->in[1])[r * k] >= 0)
            add_loss_grad(attr, tt_router_token_factors(attr, factors, r, loss_rows_of(attr, rows), experts),
                          (const tt_real *)call->in[3] + r * experts, losses[TT_ROUTER_LSE * rows + r], experts,
                          (tt_real)call->scalars->inv_tokens, dlogits + r * experts);
    }
    if (tt_op_is_bf16(call->graph, call->node))
        tt_kernels()->bf16_round(rounded + part.begin * experts, dlogits + part.begin * experts, part.n * experts);
}

/* For the gradient of w: its sums over grains of rows. */
static int64_t partial_floats(const struct tt_node *node, const struct tt_matmul *dw)
{
    return tt_round_up(tt_matmul_partial_floats(dw, node->in[7] != TT_NONE), LINE);
}

/* A tile is some columns of dlogits, which are in scratch. */
static void logit_bias_tile(const struct tt_call *call, struct tt_range part)
{
    const tt_real *dlogits = call->scratch, *acc = call->in[ACC_OF_LOGIT_BIAS];
    const struct tt_value *scores = tt_call_in(call, 3);
    int64_t experts = tt_value_width(scores);

    tt_kernels()->sum_rows((tt_real *)call->out[2] + part.begin, acc ? acc + part.begin : NULL, dlogits + part.begin,
                           tt_value_rows(scores), experts, part.n);
}

static void run_bwd(const struct tt_call *call)
{
    const struct tt_value *scores = tt_call_in(call, 3);
    tt_real *dlogits = call->scratch;
    struct tt_matmul dx, dw;

    products_of(call->graph, call->node, &dx, &dw);
    if (call->in[8])
        tt_router_factors(&call->node->attr, call->in[9] ? call->in[9] : call->in[1], loads_of(call, dx.k),
                          loss_rows_of(&call->node->attr, dx.m), dx.k,
                          dlogits + logits_floats(call->graph, call->node));
    tt_op_run_tiles(call, tt_value_rows(scores), TILE_ROWS, logits_tile);
    if (call->node->n_out > 2)
        tt_op_run_tiles(call, tt_value_width(scores), SUM_COLUMNS, logit_bias_tile);
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
    b = tt_router_factor_floats(&node->attr, loss_rows_of(&node->attr, dx.m), dx.k);
    return (logits_floats(graph, node) + (a > b ? a : b)) * (int64_t)sizeof(tt_real);
}

static void cost_bwd(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    struct tt_matmul dx, dw;

    products_of(graph, node, &dx, &dw);
    ret_cost->flops = 4.0 * (double)dx.m * (double)dx.n * (double)dx.k;
    ret_cost->bf16 = dx.bf16;
}

const struct tt_op_row TT_OF_TYPE(tt_op_router) = {
    .name = "router",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_COMPUTE, TT_TYPE_IDS},
    .may_lack = 2,
    .out = {TT_TYPE_IDS, TT_TYPE_F32, TT_TYPE_F32, TT_TYPE_F32},
    .cuts = TT_CUT_ROWS,
    .weight = TT_WEIGHT_MATMUL,
    .infer = router_infer,
    .backward = backward,
    .run = router_run,
    .cost = router_cost,
    .scratch_bytes = router_scratch,
};

const struct tt_op_row TT_OF_TYPE(tt_op_router_bwd) = {
    .name = "router_bwd",
    .in = {TT_TYPE_F32, TT_TYPE_IDS, TT_TYPE_F32, TT_TYPE_F32, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_COMPUTE,
           TT_TYPE_F32, TT_TYPE_F32, TT_TYPE_IDS, TT_TYPE_F32},
    .may_lack = 1,
    .out = {TT_TYPE_COMPUTE, TT_TYPE_F32, TT_TYPE_F32},
    .cuts = TT_CUT_ROWS,
    .infer = infer_bwd,
    .run = run_bwd,
    .cost = cost_bwd,
    .scratch_bytes = scratch_bwd,
    .alias = {7, 8, 11},
};

/*
 * ROUTER_LOSSES: the balance losses of a router if this rank has only a part of the microbatch's rows. The ranks have
 * gathered the experts of all rows.
 *   in   scores (N, X) F32, ids (N', k) I32 of all rows, losses (5, N) F32 of ROUTER, ids (N, k) I32 of ROUTER
 *   out  losses (5, N) F32, with the terms of all losses (router.h)
 *   attr as ROUTER, without rows
 */

enum { SCORES, ALL_IDS, LOSSES, IDS = TT_COUNTED_IDS };

static int balance_infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    const struct tt_value scores = graph->values[node->in[SCORES]];
    int64_t rows = tt_value_rows(&scores), losses[2] = {TT_ROUTER_LOSS_ROWS, rows}, k = node->attr.top_k;

    if (scores.ndim != 2 || tt_value_width(&graph->values[node->in[ALL_IDS]]) != k ||
        !losses_fit(&node->attr, tt_value_rows(&graph->values[node->in[ALL_IDS]])) ||
        !tt_op_acc_fits(graph, node, LOSSES, losses[0], rows) || !tt_op_acc_fits(graph, node, IDS, rows, k))
        return tt_op_mismatch(graph, node, "scores (N, X), ids of all rows, losses (5, N), ids (N, k)");
    return tt_op_output(graph, node, 0, name, NULL, 2, losses);
}

static void balance_run_tile(const struct tt_call *call, struct tt_range part)
{
    int64_t rows = tt_value_rows(tt_call_in(call, SCORES)), experts = tt_value_width(tt_call_in(call, SCORES));
    int64_t all_rows = tt_value_rows(tt_call_in(call, ALL_IDS));
    const tt_real *losses = call->in[LOSSES];
    const int32_t *ids = call->in[IDS];

    for (int64_t r = part.begin; r < part.begin + part.n; r++)
        tt_router_loss_terms(
            &call->node->attr, tt_router_token_factors(&call->node->attr, call->scratch, r, all_rows, experts),
            &(struct tt_loss_token){(const tt_real *)call->in[SCORES] + r * experts, losses[TT_ROUTER_LSE * rows + r],
                                    ids[r * call->node->attr.top_k] < 0},
            r, rows, experts, call->out[0]);
}

static void balance_run(const struct tt_call *call)
{
    const struct tt_value *scores = tt_call_in(call, SCORES);

    tt_router_factors(&call->node->attr, call->in[ALL_IDS], loads_of(call, tt_value_width(scores)),
                      tt_value_rows(tt_call_in(call, ALL_IDS)), tt_value_width(scores), call->scratch);
    tt_op_run_tiles(call, tt_value_rows(scores), TILE_ROWS, balance_run_tile);
}

static int64_t balance_scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    (void)threads;
    return tt_router_factor_floats(&node->attr, tt_value_rows(&graph->values[node->in[ALL_IDS]]),
                                   tt_value_width(&graph->values[node->in[SCORES]])) *
           (int64_t)sizeof(tt_real);
}

const struct tt_op_row TT_OF_TYPE(tt_op_router_losses) = {
    .name = "router_losses",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_F32, TT_TYPE_IDS},
    .out = {TT_TYPE_F32},
    .computes = TT_COMPUTES(TT_F32),
    .infer = balance_infer,
    .run = balance_run,
    .flops = 4.0,
    .scratch_bytes = balance_scratch,
};

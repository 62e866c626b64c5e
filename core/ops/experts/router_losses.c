/* SPDX-License-Identifier: MIT
 *
 * The auxiliary losses of a router. Sums over experts are in their order, and all else is by tokens or integers.
 */
#include "core/ops/experts/router_losses.h"

#include <string.h>

#include "core/graph/pieces.h"
#include "core/ops/experts/choice.h"
#include "core/ops/op.h"

static bool balances(const struct tt_attr *attr)
{
    return attr->losses.sequence > 0.0F || attr->losses.microbatch > 0.0F || attr->losses.global_batch > 0.0F;
}

int64_t tt_router_all_rows(const struct tt_attr *attr, int64_t rows)
{
    return attr->rows.grains > 1 ? attr->rows.whole : rows;
}

bool tt_router_losses_apart(const struct tt_attr *attr, int64_t rows)
{
    return (attr->losses.sequence > 0.0F || attr->losses.microbatch > 0.0F) && tt_router_all_rows(attr, rows) != rows;
}

int64_t tt_router_loss_rows(const struct tt_attr *attr, int64_t rows)
{
    return tt_router_losses_apart(attr, rows) ? tt_router_all_rows(attr, rows) : rows;
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

bool tt_router_losses_fit(const struct tt_attr *attr, int64_t rows)
{
    const struct tt_router_losses *l = &attr->losses;

    return !(l->sequence < 0.0F || l->microbatch < 0.0F || l->z < 0.0F || l->global_batch < 0.0F) &&
           (l->sequence <= 0.0F ||
            (attr->seq_len > 0 && rows % attr->seq_len == 0 && attr->seq_len % tt_pieces_count(&attr->pieces) == 0)) &&
           (l->z <= 0.0F || attr->router.score == TT_SCORE_SOFTMAX);
}

/* The tokens whose balance is one term: of a sequence, or all. */
static int64_t tokens_of(const struct tt_attr *attr, int64_t rows)
{
    return attr->losses.sequence > 0.0F ? attr->seq_len : rows;
}

int64_t tt_router_factor_floats(const struct tt_attr *attr, int64_t rows, int64_t experts)
{
    return balances(attr) ? (rows / tokens_of(attr, rows) + 2) * experts : 0;
}

/* The term of a row of the microbatch: its sequence, which has pieces (pieces.h), or the only one. */
static int64_t term_of(const struct tt_attr *attr, int64_t row, int64_t rows)
{
    int64_t piece = attr->seq_len / tt_pieces_count(&attr->pieces);

    return attr->losses.sequence > 0.0F ? row / piece % (rows / attr->seq_len) : 0;
}

/* Makes factors of one loss from the number of slots of each expert. */
static void finish(float coeff, int64_t experts, float *factors)
{
    double slots = 0.0, each;

    for (int64_t x = 0; x < experts; x++)
        slots += (double)factors[x];
    each = slots > 0.0 ? (double)coeff * (double)experts / slots : 0.0; /* a sequence may be all padding */
    for (int64_t x = 0; x < experts; x++)
        factors[x] = (float)(each * (double)factors[x]);
}

const int64_t *tt_router_loads(const struct tt_call *call, int64_t experts)
{
    bool needed = call->node->attr.losses.global_batch > 0.0F && call->scalars->loads;

    return needed ? call->scalars->loads + call->node->block * experts : NULL;
}

/* Factors of the loss of the global batch. */
static void fill_global(const struct tt_attr *attr, const int64_t *loads, int64_t experts, float *factors)
{
    double coeff = (double)attr->losses.global_batch;
    int64_t slots = 0;

    for (int64_t x = 0; x < experts && loads; x++)
        slots += loads[x];
    for (int64_t x = 0; x < experts; x++)
        factors[x] = (float)(slots ? coeff * (double)experts * (double)loads[x] / (double)slots : coeff);
}

void tt_router_factors(const struct tt_attr *attr, const int32_t *ids, const int64_t *loads, int64_t rows,
                       int64_t experts, float *factors)
{
    int64_t tokens, terms;
    float *all;

    if (!balances(attr))
        return;
    tokens = tokens_of(attr, rows);
    terms = rows / tokens;
    all = factors + terms * experts;
    memset(factors, 0, (size_t)((terms + 1) * experts) * sizeof *factors);
    for (int64_t row = 0; row < rows; row++) {
        float *term = factors + term_of(attr, row, rows) * experts;

        for (int j = 0; j < attr->top_k; j++, ids++) { /* exact: a microbatch has less than 2^24 slots of an expert */
            if (tt_id_is_padding(*ids))
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

/* 1 / the sum of a token's scores, which is 1 for a softmax. */
static float share_of(const struct tt_attr *attr, const float *scores, int64_t experts)
{
    float sum = 1e-20F; /* sigmoids may vanish */

    if (attr->router.score == TT_SCORE_SOFTMAX)
        return 1.0F;
    for (int64_t x = 0; x < experts; x++)
        sum += scores[x];
    return 1.0F / sum;
}

static float sum_of(const float *factors, const float *scores, int64_t experts)
{
    float sum = 0.0F;

    for (int64_t x = 0; x < experts; x++)
        sum += factors[x] * scores[x];
    return sum;
}

struct tt_token_factors tt_router_token_factors(const struct tt_attr *attr, const float *factors, int64_t row,
                                                int64_t all_rows, int64_t experts)
{
    const float *all;

    if (!balances(attr))
        return (struct tt_token_factors){0};
    all = factors + all_rows / tokens_of(attr, all_rows) * experts;
    return (struct tt_token_factors){factors + term_of(attr, attr->first_row + row, all_rows) * experts, all,
                                     all + experts};
}

void tt_router_loss_terms(const struct tt_attr *attr, struct tt_token_factors factors,
                          const struct tt_loss_token *token, int64_t row, int64_t rows, int64_t experts, float *losses)
{
    float share = share_of(attr, token->scores, experts), sequence = 0.0F, microbatch = 0.0F, global = 0.0F;

    if (factors.sequence && !token->padding) {
        sequence = share * sum_of(factors.sequence, token->scores, experts);
        microbatch = share * sum_of(factors.microbatch, token->scores, experts);
        global = share * sum_of(factors.global, token->scores, experts);
    }
    losses[TT_ROUTER_SEQUENCE * rows + row] = sequence;
    losses[TT_ROUTER_MICROBATCH * rows + row] = microbatch;
    losses[TT_ROUTER_GLOBAL_BATCH * rows + row] = global;
    losses[TT_ROUTER_Z * rows + row] = token->padding ? 0.0F : attr->losses.z * token->lse * token->lse;
    losses[TT_ROUTER_LSE * rows + row] = token->lse;
}

void tt_router_loss_grad(const struct tt_attr *attr, struct tt_token_factors factors, const float *scores, float lse,
                         int64_t experts, float scale, float *dlogits)
{
    bool sigmoid = attr->router.score == TT_SCORE_SIGMOID;
    float z = 2.0F * attr->losses.z * lse * scale;

    if (factors.sequence) {
        const float *a = factors.sequence, *b = factors.microbatch, *c = factors.global;
        float share = share_of(attr, scores, experts);
        float mean = share * (sum_of(a, scores, experts) + sum_of(b, scores, experts) + sum_of(c, scores, experts));

        for (int64_t x = 0; x < experts; x++) {
            float slope = share * scores[x] * (a[x] + b[x] + c[x] - mean) * scale;

            dlogits[x] += sigmoid ? slope * (1.0F - scores[x]) : slope;
        }
    }
    for (int64_t x = 0; x < experts && attr->losses.z > 0.0F; x++)
        dlogits[x] += z * scores[x];
}

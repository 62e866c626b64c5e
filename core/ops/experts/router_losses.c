/* SPDX-License-Identifier: MIT
 *
 * The auxiliary losses of a router. Sums over experts are in their order, and all else is by tokens or integers.
 */
#include "core/ops/experts/router_losses.h"

#include <string.h>

static bool balances(const struct tt_attr *attr)
{
    return attr->losses.sequence > 0.0F || attr->losses.microbatch > 0.0F || attr->losses.global_batch > 0.0F;
}

bool tt_router_losses_fit(const struct tt_attr *attr, int64_t rows)
{
    const struct tt_router_losses *l = &attr->losses;

    return !(l->sequence < 0.0F || l->microbatch < 0.0F || l->z < 0.0F || l->global_batch < 0.0F) &&
           (l->sequence <= 0.0F || (attr->seq_len > 0 && rows % attr->seq_len == 0)) &&
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

/* Factors of one loss from the slots of `tokens` tokens. */
static void fill(const struct tt_attr *attr, float coeff, const int32_t *ids, int64_t tokens, int64_t experts,
                 float *factors)
{
    double each = (double)coeff * (double)experts / ((double)tokens * attr->top_k);

    memset(factors, 0, (size_t)experts * sizeof *factors);
    for (int64_t i = 0; i < tokens * attr->top_k; i++)
        factors[ids[i]] += 1.0F; /* exact: a microbatch has less than 2^24 slots of an expert */
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
    int64_t tokens;

    if (!balances(attr))
        return;
    tokens = tokens_of(attr, rows);
    for (int64_t first = 0; first < rows; first += tokens, factors += experts)
        fill(attr, attr->losses.sequence, ids + first * attr->top_k, tokens, experts, factors);
    fill(attr, attr->losses.microbatch, ids, rows, experts, factors);
    fill_global(attr, loads, experts, factors + experts);
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

void tt_router_loss_terms(const struct tt_attr *attr, const float *factors, const float *scores, float lse, int64_t row,
                          int64_t rows, int64_t experts, float *losses)
{
    int64_t tokens = tokens_of(attr, rows);
    float share = share_of(attr, scores, experts), sequence = 0.0F, microbatch = 0.0F, global = 0.0F;

    if (balances(attr)) {
        sequence = share * sum_of(factors + row / tokens * experts, scores, experts);
        microbatch = share * sum_of(factors + rows / tokens * experts, scores, experts);
        global = share * sum_of(factors + (rows / tokens + 1) * experts, scores, experts);
    }
    losses[TT_ROUTER_SEQUENCE * rows + row] = sequence;
    losses[TT_ROUTER_MICROBATCH * rows + row] = microbatch;
    losses[TT_ROUTER_GLOBAL_BATCH * rows + row] = global;
    losses[TT_ROUTER_Z * rows + row] = attr->losses.z * lse * lse;
    losses[TT_ROUTER_LSE * rows + row] = lse;
}

void tt_router_loss_grad(const struct tt_attr *attr, const float *factors, const float *scores, float lse, int64_t row,
                         int64_t rows, int64_t experts, float scale, float *dlogits)
{
    int64_t tokens = tokens_of(attr, rows);
    bool sigmoid = attr->router.score == TT_SCORE_SIGMOID;
    float z = 2.0F * attr->losses.z * lse * scale;

    if (balances(attr)) {
        const float *a = factors + row / tokens * experts, *b = factors + rows / tokens * experts, *c = b + experts;
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

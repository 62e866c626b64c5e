/* SPDX-License-Identifier: MIT
 *
 * Products of pairs of an expert and a source; see pairs.h.
 */
#include "core/ops/experts/pairs.h"

#include <string.h>

#include "core/kernels/kernels.h"
#include "core/math/tree.h"
#include "core/ops/rule.h"

enum { LINE = 64 /* bytes of a cache line */, TILE = 4096 /* floats of a sum that a thread adds */ };

struct tt_pairs tt_pairs_of(const struct tt_call *call, int ends)
{
    const struct tt_attr *attr = &call->node->attr;
    const int32_t *in = call->in[ends];
    bool shared = attr->peers.n > 1;

    return (struct tt_pairs){.ends = in,
                             .first = shared ? in[attr->experts] : 0,
                             .end = shared ? in[attr->experts + 1] : attr->experts,
                             .sources = shared ? attr->peers.n : 1};
}

static const void *at(const void *x, bool bf16, int64_t i)
{
    return x ? (const char *)x + i * (int64_t)(bf16 ? sizeof(tt_bf16) : sizeof(float)) : NULL;
}

/* The rows of a pair, and where its operands begin. */
static struct tt_expert_rows rows_of(const struct tt_pairs *pairs, const struct tt_pair_products *p, int64_t pair)
{
    int64_t begin = pair > pairs->first ? pairs->ends[pair - 1] : 0, weight = pair / pairs->sources * p->m * p->k;
    struct tt_expert_rows of = {.rows = pairs->ends[pair] - begin};
    bool of_weight = p->op == TT_OP_EXPERTS_BWD_W;
    int64_t in = p->op == TT_OP_EXPERTS ? p->k : p->m, out = p->op == TT_OP_EXPERTS ? p->m : p->k;

    of.in[0] = at(p->in[0], p->bf16, begin * in);
    of.in[1] = at(p->in[1], p->bf16, of_weight ? begin * p->k : weight);
    of.acc = at(p->acc, p->bf16 && !of_weight, of_weight ? weight : begin * out);
    of.out = (void *)(uintptr_t)at(p->out, p->bf16 && !of_weight, of_weight ? weight : begin * out);
    return of;
}

/* --- runs of the team --- */

/* Scratch: the rows of each pair, then each worker's floats. */
static int64_t rows_bytes(int64_t pairs)
{
    return tt_round_up(pairs * (int64_t)sizeof(struct tt_expert_rows), LINE);
}

static struct tt_experts_products products_of(const struct tt_pair_products *p, int64_t pairs)
{
    struct tt_experts_products products = {.op = p->op, .bf16 = p->bf16, .m = p->m, .k = p->k, .of = p->scratch};

    products.scratch_floats = tt_experts_scratch_floats(&products, p->rows);
    products.scratch = p->scratch ? (float *)(void *)((char *)p->scratch + rows_bytes(pairs)) : NULL;
    return products;
}

int64_t tt_pairs_scratch(const struct tt_pair_products *products, int64_t pairs, int threads)
{
    return rows_bytes(pairs) + threads * products_of(products, pairs).scratch_floats * (int64_t)sizeof(float);
}

void tt_pairs_multiply(const struct tt_call *call, const struct tt_pairs *pairs,
                       const struct tt_pair_products *products)
{
    struct tt_experts_products run = products_of(products, call->node->attr.experts);

    for (int64_t pair = pairs->first; pair < pairs->end; pair++)
        run.of[run.n++] = rows_of(pairs, products, pair);
    tt_experts_run(call->team, &run);
}

/* --- gradients of weights, from several sources --- */

int64_t tt_pairs_sums_floats(const struct tt_pair_products *products, int n, int sources)
{
    int64_t floats = 0;

    for (int j = 0; j < n; j++)
        floats += products[j].m * products[j].k;
    return sources > 1 ? tt_tree_stack_depth(sources) * floats : 0;
}

/* A step of a sum: sum += other, or the rounding of sum. */
struct addition {
    float *sum;
    const float *other;
    int64_t floats;
};

static void round_tile(void *arg, int64_t tile, int worker)
{
    const struct addition *a = arg;
    struct tt_range part = tt_tile_range(a->floats, TILE, tile);
    tt_bf16 rounded[TILE];

    (void)worker;
    tt_kernels()->bf16_round(rounded, a->sum + part.begin, part.n);
    tt_kernels()->bf16_widen(a->sum + part.begin, rounded, part.n);
}

static void add_tile(void *arg, int64_t tile, int worker)
{
    const struct addition *a = arg;
    struct tt_range part = tt_tile_range(a->floats, TILE, tile);

    (void)worker;
    tt_tree_add(a->sum + part.begin, a->sum + part.begin, a->other + part.begin, part.n);
}

/* The gradients of a pair alone, one kind after another. */
static void make_leaf(const struct tt_call *call, const struct tt_pairs *pairs, const struct tt_pair_products *products,
                      int n, int64_t pair, float *to)
{
    for (int j = 0; j < n; to += products[j].m * products[j].k, j++) {
        struct tt_experts_products run = products_of(&products[j], call->node->attr.experts);

        run.n = 1;
        run.of[0] = rows_of(pairs, &products[j], pair);
        run.of[0].acc = NULL;
        run.of[0].out = to;
        tt_experts_run(call->team, &run);
    }
}

/* The finished sum of an expert goes to its place. */
static void store_sum(const struct tt_pairs *pairs, const struct tt_pair_products *products, int n, int64_t pair,
                      const float *sum)
{
    for (int j = 0; j < n; j++) {
        struct tt_expert_rows of = rows_of(pairs, &products[j], pair);
        int64_t floats = products[j].m * products[j].k;

        if (of.acc)
            tt_tree_add(of.out, of.acc, sum, floats);
        else
            memcpy(of.out, sum, (size_t)floats * sizeof *sum);
        sum += floats;
    }
}

/* The sums of an expert that are not added yet are one for each bit of the number of sources so far. */
static int sums_after(int sources)
{
    int n = 0;

    for (; sources; sources &= sources - 1)
        n++;
    return n;
}

void tt_pairs_gradients(const struct tt_call *call, const struct tt_pairs *pairs,
                        const struct tt_pair_products *products, int n, float *sums, bool rounds)
{
    struct addition a = {.floats = 0};

    for (int j = 0; j < n; j++) {
        a.floats += products[j].m * products[j].k;
        if (pairs->sources == 1)
            tt_pairs_multiply(call, pairs, &products[j]);
    }
    for (int64_t pair = pairs->first; pair < pairs->end && pairs->sources > 1; pair++) {
        int source = (int)(pair % pairs->sources), depth = sums_after(source);
        bool last = source + 1 == pairs->sources;

        a.sum = sums + depth * a.floats;
        make_leaf(call, pairs, products, n, pair, a.sum);
        if (rounds)
            tt_team_run(call->team, tt_tiles(a.floats, TILE), round_tile, &a);
        for (int carries = last ? depth : tt_tree_carries(source); carries > 0; carries--, depth--) {
            a.sum = sums + (depth - 1) * a.floats;
            a.other = sums + depth * a.floats;
            tt_team_run(call->team, tt_tiles(a.floats, TILE), add_tile, &a);
        }
        if (last)
            store_sum(pairs, products, n, pair, sums);
    }
}

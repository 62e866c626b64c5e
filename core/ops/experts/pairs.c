/* SPDX-License-Identifier: MIT
 *
 * Products of pairs of an expert and a source; see pairs.h.
 */
#include "core/ops/experts/pairs.h"

#include <string.h>

#include "core/graph/pieces.h"
#include "core/kernels/kernels.h"
#include "core/math/tree.h"
#include "core/ops/rule.h"

enum { LINE = 64 /* bytes of a cache line */, TILE = 4096 /* floats of a sum that a thread adds */ };

static bool is_shared(const struct tt_attr *attr)
{
    return attr->peers.n > 1;
}

/* The pairs of an expert. */
static int sources_of(const struct tt_attr *attr)
{
    return (is_shared(attr) ? attr->peers.n / tt_parts_blocks(&attr->parts) : 1) * tt_parts_grains(&attr->parts);
}

/* The experts of this rank. */
static int64_t experts_of(const struct tt_attr *attr)
{
    return is_shared(attr) ? attr->experts / attr->peers.n : attr->experts;
}

int64_t tt_pairs_count(const struct tt_attr *attr)
{
    return experts_of(attr) * sources_of(attr);
}

/* An expert has a token of a grain once at most. */
int64_t tt_pairs_most_rows(const struct tt_attr *attr, int64_t rows)
{
    int64_t grain = tt_parts_grain_rows(&attr->parts, rows / (attr->top_k ? attr->top_k : 1));

    return grain > rows ? grain : rows;
}

struct tt_pairs tt_pairs_of(const struct tt_call *call, int ends)
{
    const struct tt_attr *attr = &call->node->attr;
    const int32_t *in = call->in[ends];
    int64_t n = tt_pairs_count(attr);

    return (struct tt_pairs){.ends = in,
                             .first = is_shared(attr) ? in[n] : 0,
                             .end = is_shared(attr) ? in[n + 1] : n,
                             .before = is_shared(attr) ? in[n + 2] : 0,
                             .sources = sources_of(attr),
                             .grains = tt_parts_grains(&attr->parts)};
}

void tt_pairs_cut(const struct tt_pairs *pairs, int64_t most, struct tt_pairs ret_parts[2])
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

struct tt_range tt_pairs_part(const struct tt_pairs *pairs, int64_t width, struct tt_range range)
{
    int64_t begin = pairs->begin * width, end = begin + tt_pairs_rows(pairs) * width, to = range.begin + range.n;

    if (range.begin > begin)
        begin = range.begin;
    return (struct tt_range){begin, (to < end ? to : end) - begin};
}

static const void *at(const void *x, bool bf16, int64_t i)
{
    return x ? (const char *)x + i * (int64_t)(bf16 ? sizeof(tt_bf16) : sizeof(float)) : NULL;
}

/* The rows of a pair, and where its operands begin. */
static struct tt_expert_rows rows_of(const struct tt_pairs *pairs, const struct tt_pair_products *p, int64_t pair)
{
    int64_t begin = pair > pairs->first ? pairs->ends[pair - 1] : pairs->begin,
            weight = pair / pairs->sources * p->m * p->k;
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

/* All products of a kind. */
static void run_all(const struct tt_call *call, const struct tt_pairs *pairs, const struct tt_pair_products *products)
{
    struct tt_experts_products run = products_of(products, tt_pairs_count(&call->node->attr));

    if (pairs->end <= pairs->first)
        return;
    for (int64_t pair = pairs->first; pair < pairs->end; pair++)
        run.of[run.n++] = rows_of(pairs, products, pair);
    tt_experts_run(call->team, &run);
}

void tt_pairs_multiply(const struct tt_pairs_work *w, enum tt_op_id op, int64_t m, int64_t k, const void *in,
                       const void *weights, const void *acc, void *out)
{
    struct tt_pair_products products = {.op = op,
                                        .bf16 = w->bf16,
                                        .m = m,
                                        .k = k,
                                        .in = {in, weights},
                                        .acc = acc,
                                        .out = out,
                                        .scratch = w->scratch,
                                        .rows = w->most};

    run_all(w->call, &w->pairs, &products);
}

/* --- gradients of weights, from several sources --- */

/*
 * Of several experts, the gradients of their pairs with one source are made and added together: enough to give every
 * thread some tiles, and no more, since each takes room for its sums. One thread takes one expert, so that the sums
 * stay in its cache.
 */
static int64_t experts_at_once(const struct tt_pair_products *products, int64_t experts, int threads)
{
    enum { TILES = 4 }; /* of each thread */
    struct tt_experts_products of = {.op = products->op, .bf16 = products->bf16, .m = products->m, .k = products->k};
    int64_t most = tt_div_up((int64_t)TILES * threads, tt_experts_tiles(&of, 1));

    if (threads == 1)
        return 1;
    return most < experts ? most : experts;
}

/* Otherwise the products themselves are the gradients. */
static bool are_added(const struct tt_attr *attr)
{
    return sources_of(attr) > 1 || attr->round_leaves;
}

int64_t tt_pairs_sums_floats(const struct tt_attr *attr, const struct tt_pair_products *products, int threads)
{
    if (!are_added(attr))
        return 0;
    return tt_tree_stack_depth(sources_of(attr)) * experts_at_once(products, experts_of(attr), threads) * products->m *
           products->k;
}

/* What the gradients of a weight of all experts are made with. A level of the sums has those of all experts at once. */
struct gradients {
    const struct tt_call *call;
    const struct tt_pairs *pairs;
    const struct tt_pair_products *products;
    float *sums;
    int64_t floats, at_once; /* of an expert; experts */
};

/* to = [acc +] (a + b), or [acc +] a without b. The sum is also left in a if there is an acc. */
struct addition {
    float *to, *a;
    const float *acc, *b;
    int64_t floats;
};

static void add_tile(void *arg, int64_t tile, int worker)
{
    const struct addition *add = arg;
    struct tt_range part = tt_tile_range(add->floats, TILE, tile);
    float *to = add->to + part.begin, *sum = add->a + part.begin;

    (void)worker;
    if (add->b) {
        float *into = add->acc ? sum : to;

        tt_tree_add(into, sum, add->b + part.begin, part.n);
        sum = into;
    }
    if (add->acc)
        tt_tree_add(to, add->acc + part.begin, sum, part.n);
    else if (sum != to)
        memcpy(to, sum, (size_t)part.n * sizeof *to);
}

static void round_tile(void *arg, int64_t tile, int worker)
{
    const struct addition *add = arg;
    struct tt_range part = tt_tile_range(add->floats, TILE, tile);
    tt_bf16 rounded[TILE];

    (void)worker;
    tt_kernels()->bf16_round(rounded, add->to + part.begin, part.n);
    tt_kernels()->bf16_widen(add->to + part.begin, rounded, part.n);
}

static void run_tiles(const struct gradients *g, struct addition *addition, void (*tile)(void *, int64_t, int))
{
    tt_team_run(g->call->team, tt_tiles(addition->floats, TILE), tile, addition);
}

/* The gradients of experts for the rows of one source. */
static void make_leaves(const struct gradients *g, int source, int64_t from, int64_t end, float *to)
{
    struct tt_experts_products run = products_of(g->products, tt_pairs_count(&g->call->node->attr));

    for (int64_t e = from; e < end; e++, to += g->floats) {
        struct tt_expert_rows of = rows_of(g->pairs, g->products, e * g->pairs->sources + source);

        of.acc = NULL;
        of.out = to;
        run.of[run.n++] = of;
    }
    tt_experts_run(g->call->team, &run);
}

/* The finished sums of experts, a + b or a, go to their places. */
static void store_sums(const struct gradients *g, int64_t from, int64_t end, float *a, const float *b)
{
    for (int64_t e = from; e < end; e++, a += g->floats) {
        struct tt_expert_rows of = rows_of(g->pairs, g->products, e * g->pairs->sources);
        struct addition addition = {.to = of.out, .a = a, .b = b, .acc = of.acc, .floats = g->floats};

        run_tiles(g, &addition, add_tile);
        b = b ? b + g->floats : NULL;
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

/*
 * Adds the gradients for the rows of one source to those of the sources before it. Grains of the same tokens are a
 * power of two of sources, so their sum is complete after so many additions, and may be rounded then. The last addition
 * of all is made where the gradients go, unless its result is rounded.
 */
static void add_source(const struct gradients *g, int source, int64_t from, int64_t end)
{
    int depth = sums_after(source), grains = g->pairs->grains;
    bool last = source + 1 == g->pairs->sources;
    bool rounds = g->call->node->attr.round_leaves && (source + 1) % grains == 0;
    int additions = last ? depth : tt_tree_carries(source);
    bool stores_sum = last && additions > 0 && !(rounds && 1 << additions == grains);
    int64_t level = g->at_once * g->floats;
    float *sum = g->sums + depth * level + from % g->at_once * g->floats;
    struct addition a = {.to = sum, .floats = (end - from) * g->floats};

    if (from >= end)
        return;
    make_leaves(g, source, from, end, sum);
    additions -= stores_sum;
    for (int added = 0;; added++, sum -= level) {
        if (rounds && 1 << added == grains)
            run_tiles(g, &a, round_tile);
        if (added == additions)
            break;
        a.to = a.a = sum - level;
        a.b = sum;
        run_tiles(g, &a, add_tile);
    }
    if (last)
        store_sums(g, from, end, stores_sum ? sum - level : sum, stores_sum ? sum : NULL);
}

/* The first expert from `from` to `end` whose pair with a source is not before `pair`. */
static int64_t expert_at(const struct tt_pairs *pairs, int64_t pair, int source, int64_t from, int64_t end)
{
    int64_t e = (pair + pairs->sources - 1 - source) / pairs->sources;

    return e < from ? from : e > end ? end : e;
}

void tt_pairs_gradients(const struct tt_call *call, const struct tt_pairs *pairs,
                        const struct tt_pair_products *products, float *sums)
{
    const struct tt_attr *attr = &call->node->attr;
    struct gradients g = {call, pairs, products, sums, products->m * products->k, 1};
    int64_t experts = tt_div_up(pairs->end, pairs->sources);

    if (!are_added(attr)) {
        run_all(call, pairs, products);
        return;
    }
    g.at_once = experts_at_once(products, experts_of(attr), tt_team_threads(call->team));
    for (int64_t first = pairs->first / pairs->sources / g.at_once * g.at_once; first < experts; first += g.at_once)
        for (int source = 0; source < pairs->sources; source++) {
            int64_t end = first + g.at_once < experts ? first + g.at_once : experts;

            add_source(&g, source, expert_at(pairs, pairs->first, source, first, end),
                       expert_at(pairs, pairs->end, source, first, end));
        }
}

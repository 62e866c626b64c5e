/* SPDX-License-Identifier: MIT
 *
 * EXPERTS: y = x w^T, with a separate weight for each expert's rows.
 *   in   x (R, K), w (X, M, K), ends (X G) I32 (DISPATCH)      out  y (R, M)
 *   Grain g of the rows of expert e has rows [ends[i - 1], ends[i]), i = e G + g.
 *
 * EXPERTS_BWD_X: in  dy (R, M), w, ends, acc (R, K) or none      out  dx = [acc +] dy w, may take acc's memory
 * EXPERTS_BWD_W: in  dy, x, ends, acc (X, M, K) or none          out  dw = [acc +] dy^T x, may take acc's memory
 *   An expert without rows gets acc, or zeros. The gradients of grains are added in the order of core/math/tree.h.
 *   attr experts (X), parts (G)
 *
 * The rows of one expert and grain are one product (experts.h). The team runs the tiles of all experts together, so an
 * expert with many rows does not keep the others waiting. An expert gets the same rows of a grain on every layout, so
 * its product has the same shape, and the bits do not depend on the layout, whatever the kernel.
 */
#include "core/ops/experts/experts.h"

#include <string.h>

#include "core/graph/pieces.h"
#include "core/kernels/kernels.h"
#include "core/kernels/matmul.h"
#include "core/math/bf16.h"
#include "core/math/round.h"
#include "core/math/tree.h"
#include "core/ops/rule.h"

/* --- products --- */

enum {
    LINE = 16,    /* floats of a cache line */
    FEW_ROWS = 4, /* up to this number of rows, each row is a product of its own, as a vector */
    CLASSES = 64  /* classes of numbers of rows: none, and one for each power of two */
};

/* The product of some rows, without addresses. */
static struct tt_matmul product_of(const struct tt_experts_products *p, int64_t rows)
{
    struct tt_matmul product = {.m = rows, .n = p->k, .k = p->m, .lda = p->m, .ldb = p->k, .ldc = p->k};

    if (p->op == TT_OP_EXPERTS)
        product =
            (struct tt_matmul){.trans_b = true, .m = rows, .n = p->m, .k = p->k, .lda = p->k, .ldb = p->k, .ldc = p->m};
    else if (p->op == TT_OP_EXPERTS_BWD_W)
        product =
            (struct tt_matmul){.trans_a = true, .m = p->m, .n = p->k, .k = rows, .lda = p->m, .ldb = p->k, .ldc = p->k};
    product.of_many = true;
    product.bf16 = p->bf16;
    product.c_bf16 = p->bf16 && p->op != TT_OP_EXPERTS_BWD_W;
    return product;
}

/* --- few rows: products of vectors, which do not copy the weight --- */

static bool are_few(const struct tt_experts_products *p, int64_t rows)
{
    return p->op == TT_OP_EXPERTS && (p->alone || rows <= FEW_ROWS);
}

/* Multiplies a part of the weight with all rows while the part is in the cache. */
static struct tt_gemv vectors_of(const struct tt_experts_products *p, const struct tt_expert_rows *of)
{
    return (struct tt_gemv){.bf16 = p->bf16,
                            .y_bf16 = p->bf16,
                            .w = of->in[1],
                            .x = of->in[0],
                            .y = of->out,
                            .rows = p->m,
                            .width = p->k,
                            .vectors = of->rows};
}

/* --- tiles --- */

/* The gradient of an expert without rows. */
static void leave(const struct tt_experts_products *p, const struct tt_expert_rows *of)
{
    size_t bytes = (size_t)(p->m * p->k) * sizeof(tt_real);

    if (!of->acc)
        memset(of->out, 0, bytes);
    else if (of->acc != of->out)
        memcpy(of->out, of->acc, bytes);
}

static int64_t tiles_of(const struct tt_experts_products *p, const struct tt_expert_rows *of)
{
    struct tt_gemv vectors;
    struct tt_matmul product;

    if (of->rows == 0)
        return p->op == TT_OP_EXPERTS_BWD_W ? 1 : 0;
    if (are_few(p, of->rows)) {
        vectors = vectors_of(p, of);
        return tt_gemv_tiles(&vectors);
    }
    product = product_of(p, of->rows);
    return tt_matmul_tiles(&product);
}

/* The product to which a tile belongs: the first one whose tiles end after it. */
static int64_t find(const struct tt_experts_products *p, int64_t tile)
{
    int64_t low = 0, high = p->n - 1;

    while (low < high) {
        int64_t middle = (low + high) / 2;

        if (tile < p->of[middle].tiles)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Products that the team runs. */
struct products_run {
    const struct tt_experts_products *products;
    int threads;
};

/* The weight that the thread will probably need after the last tile of a product; NULL: unknown. */
static const void *next_weight(const struct products_run *run, int64_t place)
{
    const struct tt_experts_products *p = run->products;
    const struct tt_expert_rows *of;

    if (p->op == TT_OP_EXPERTS_BWD_W || place + run->threads >= p->n)
        return NULL;
    of = &p->of[p->of[place + run->threads].order];
    return of->rows && !are_few(p, of->rows) ? of->in[1] : NULL;
}

static void run_tile(void *arg, int64_t tile, int worker)
{
    const struct products_run *run = arg;
    const struct tt_experts_products *p = run->products;
    int64_t place = find(p, tile);
    const struct tt_expert_rows *of = &p->of[p->of[place].order];
    struct tt_matmul product = product_of(p, of->rows);
    bool last = tile + 1 == p->of[place].tiles;

    tile -= place ? p->of[place - 1].tiles : 0;
    if (of->rows == 0) {
        leave(p, of);
    } else if (are_few(p, of->rows)) {
        struct tt_gemv vectors = vectors_of(p, of);

        tt_gemv_tile(&vectors, tile);
    } else {
        product.a = of->in[0];
        product.b = of->in[1];
        product.acc = p->op == TT_OP_EXPERTS ? NULL : of->acc;
        product.c = of->out;
        product.next_b = last ? next_weight(run, place) : NULL;
        product.scratch = p->scratch + worker * p->scratch_floats;
        tt_matmul_tile(&product, tile, 0);
    }
}

/* 0 for 0, otherwise 1 + log2. */
static int size_class(int64_t rows)
{
    int size = 0;

    for (; rows; rows /= 2)
        size++;
    return size;
}

/*
 * The order in which products run: by number of rows (compared as powers of two), largest first, because a large tile
 * at the end would leave the other threads idle.
 */
static void put_in_order(const struct tt_experts_products *p)
{
    int64_t begin[CLASSES] = {0}, next = 0;

    for (int64_t i = 0; i < p->n; i++)
        begin[size_class(p->of[i].rows)]++;
    for (int size = CLASSES - 1; size >= 0; size--) {
        int64_t n = begin[size];

        begin[size] = next;
        next += n;
    }
    for (int64_t i = 0; i < p->n; i++)
        p->of[begin[size_class(p->of[i].rows)]++].order = i;
}

void tt_experts_run(struct tt_team *team, const struct tt_experts_products *products)
{
    struct products_run run = {products, tt_team_threads(team)};
    int64_t tiles = 0;

    put_in_order(products);
    for (int64_t place = 0; place < products->n; place++) {
        tiles += tiles_of(products, &products->of[products->of[place].order]);
        products->of[place].tiles = tiles;
    }
    tt_team_run(team, tiles, run_tile, &run);
}

int64_t tt_experts_scratch_floats(const struct tt_experts_products *products, int64_t rows)
{
    struct tt_matmul most = product_of(products, rows);

    return tt_round_up(tt_matmul_scratch_floats(&most), LINE);
}

/* --- products of pairs of an expert and a source --- */

enum { LINE_BYTES = 64 /* bytes of a cache line */, TILE = 4096 /* floats of a sum that one thread adds at once */ };

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

static const void *at(const void *x, bool bf16, int64_t i)
{
    return x ? (const char *)x + i * (int64_t)(bf16 ? sizeof(tt_bf16) : sizeof(tt_real)) : NULL;
}

/* The rows of a pair, and the addresses of its operands. */
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

/* Scratch: the rows of each pair, then the floats of each worker. */
static int64_t rows_bytes(int64_t pairs)
{
    return tt_round_up(pairs * (int64_t)sizeof(struct tt_expert_rows), LINE_BYTES);
}

static struct tt_experts_products pair_products_of(const struct tt_pair_products *p, int64_t pairs)
{
    struct tt_experts_products products = {.op = p->op, .bf16 = p->bf16, .m = p->m, .k = p->k, .of = p->scratch};

    products.scratch_floats = tt_experts_scratch_floats(&products, p->rows);
    products.scratch = p->scratch ? (tt_real *)(void *)((char *)p->scratch + rows_bytes(pairs)) : NULL;
    return products;
}

int64_t tt_pairs_scratch(const struct tt_pair_products *products, int64_t pairs, int threads)
{
    return rows_bytes(pairs) + threads * pair_products_of(products, pairs).scratch_floats * (int64_t)sizeof(tt_real);
}

/* All products of one kind. */
static void run_all(const struct tt_call *call, const struct tt_pairs *pairs, const struct tt_pair_products *products)
{
    struct tt_experts_products run = pair_products_of(products, tt_pairs_count(&call->node->attr));

    run.alone = tt_graph_is_of_sequences(call->graph);
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
 * For one source, the gradients of several experts are computed and added together: enough experts to give every thread
 * some tiles, but no more, since each expert needs room for its sums. One thread takes one expert, so that the sums
 * stay in its cache.
 */
static int64_t experts_at_once(const struct tt_pair_products *products, int64_t experts, int threads)
{
    enum { TILES = 4 }; /* tiles for each thread */
    struct tt_experts_products of = {.op = products->op, .bf16 = products->bf16, .m = products->m, .k = products->k};
    int64_t most = tt_div_up((int64_t)TILES * threads, tiles_of(&of, &(struct tt_expert_rows){.rows = 1}));

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

/* Everything needed for the gradients of one weight of all experts. Each level of the sums holds one sum per expert. */
struct gradients {
    const struct tt_call *call;
    const struct tt_pairs *pairs;
    const struct tt_pair_products *products;
    tt_real *sums;
    int64_t floats, at_once; /* floats of an expert; number of experts */
};

/* to = [acc +] (a + b), or [acc +] a without b. If there is an acc, the sum also stays in a. */
struct addition {
    tt_real *to, *a;
    const tt_real *acc, *b;
    int64_t floats;
};

static void add_tile(void *arg, int64_t tile, int worker)
{
    const struct addition *add = arg;
    struct tt_range part = tt_tile_range(add->floats, TILE, tile);
    tt_real *to = add->to + part.begin, *sum = add->a + part.begin;

    (void)worker;
    if (add->b) {
        tt_real *into = add->acc ? sum : to;

        TT_OF_TYPE(tt_tree_add)(into, sum, add->b + part.begin, part.n);
        sum = into;
    }
    if (add->acc)
        TT_OF_TYPE(tt_tree_add)(to, add->acc + part.begin, sum, part.n);
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

/* Computes the gradients of several experts for the rows of one source. */
static void make_leaves(const struct gradients *g, int source, int64_t from, int64_t end, tt_real *to)
{
    struct tt_experts_products run = pair_products_of(g->products, tt_pairs_count(&g->call->node->attr));

    for (int64_t e = from; e < end; e++, to += g->floats) {
        struct tt_expert_rows of = rows_of(g->pairs, g->products, e * g->pairs->sources + source);

        of.acc = NULL;
        of.out = to;
        run.of[run.n++] = of;
    }
    tt_experts_run(g->call->team, &run);
}

/* Writes the finished sums of experts, a + b or a, to their places. */
static void store_sums(const struct gradients *g, int64_t from, int64_t end, tt_real *a, const tt_real *b)
{
    for (int64_t e = from; e < end; e++, a += g->floats) {
        struct tt_expert_rows of = rows_of(g->pairs, g->products, e * g->pairs->sources);
        struct addition addition = {.to = of.out, .a = a, .b = b, .acc = of.acc, .floats = g->floats};

        run_tiles(g, &addition, add_tile);
        b = b ? b + g->floats : NULL;
    }
}

/* The pending sums of an expert: one for each set bit in the number of sources so far. */
static int sums_after(int sources)
{
    int n = 0;

    for (; sources; sources &= sources - 1)
        n++;
    return n;
}

/*
 * Adds the gradients for the rows of one source to the sums over earlier sources. The number of sources that are grains
 * of the same tokens is a power of two, so their sum is complete after a fixed number of additions, and may then be
 * rounded. The last addition of all writes directly into the result, unless the result is rounded.
 */
static void add_source(const struct gradients *g, int source, int64_t from, int64_t end)
{
    int depth = sums_after(source), grains = g->pairs->grains;
    bool last = source + 1 == g->pairs->sources;
    bool rounds = g->call->node->attr.round_leaves && (source + 1) % grains == 0;
    int additions = last ? depth : tt_tree_carries(source);
    bool stores_sum = last && additions > 0 && !(rounds && 1 << additions == grains);
    int64_t level = g->at_once * g->floats;
    tt_real *sum = g->sums + depth * level + from % g->at_once * g->floats;
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

/* The first expert in [from, end) whose pair with a source is `pair` or a later one. */
static int64_t expert_at(const struct tt_pairs *pairs, int64_t pair, int source, int64_t from, int64_t end)
{
    int64_t e = (pair + pairs->sources - 1 - source) / pairs->sources;

    return e < from ? from : e > end ? end : e;
}

void tt_pairs_gradients(const struct tt_call *call, const struct tt_pairs *pairs,
                        const struct tt_pair_products *products, tt_real *sums)
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

/* --- the ops --- */

/* R, M, K and X of a node; false if its inputs do not fit. */
struct sizes {
    int64_t rows, m, k, experts;
};

static bool ends_fit(const struct tt_graph *graph, const struct tt_node *node, int64_t experts)
{
    const struct tt_value *ends = &graph->values[node->in[2]];

    return ends->ndim == 1 && ends->shape[0] == experts * tt_parts_grains(&node->attr.parts) &&
           node->attr.experts == experts;
}

static bool sizes_of(const struct tt_graph *graph, const struct tt_node *node, struct sizes *ret_sizes)
{
    const struct tt_value *a = &graph->values[node->in[0]], *b = &graph->values[node->in[1]];
    struct sizes s = {.rows = tt_value_rows(a), .experts = node->attr.experts};

    if (node->op == TT_OP_EXPERTS_BWD_W) {
        s.m = tt_value_width(a);
        s.k = tt_value_width(b);
        *ret_sizes = s;
        return tt_value_rows(b) == s.rows && ends_fit(graph, node, s.experts) &&
               tt_op_acc_fits(graph, node, 3, s.experts * s.m, s.k);
    }
    if (b->ndim != 3)
        return false;
    s.m = b->shape[1];
    s.k = b->shape[2];
    *ret_sizes = s;
    if (node->op == TT_OP_EXPERTS)
        return tt_value_width(a) == s.k && ends_fit(graph, node, b->shape[0]);
    return tt_value_width(a) == s.m && ends_fit(graph, node, b->shape[0]) &&
           tt_op_acc_fits(graph, node, 3, s.rows, s.k);
}

static int infer(struct tt_graph *graph, struct tt_node *node, const char *name)
{
    static const char *const wanted[TT_OPS] = {
        [TT_OP_EXPERTS] = "x (R, K), w (X, M, K), ends (X)",
        [TT_OP_EXPERTS_BWD_X] = "dy (R, M), w (X, M, K), ends (X), acc (R, K)",
        [TT_OP_EXPERTS_BWD_W] = "dy (R, M), x (R, K), ends (X), acc (X, M, K)",
    };
    struct sizes s = {0};
    bool fit = sizes_of(graph, node, &s);
    const int64_t rows[2] = {s.rows, node->op == TT_OP_EXPERTS ? s.m : s.k}, weight[3] = {s.experts, s.m, s.k};
    bool of_weight = node->op == TT_OP_EXPERTS_BWD_W;

    if (!fit)
        return tt_op_mismatch(graph, node, wanted[node->op]);
    return tt_op_output(graph, node, 0, name, NULL, of_weight ? 3 : 2, of_weight ? weight : rows);
}

/* The products of a node, without addresses. */
static struct tt_pair_products experts_products_of(const struct tt_graph *graph, const struct tt_node *node)
{
    struct sizes s = {0};

    (void)sizes_of(graph, node, &s);
    return (struct tt_pair_products){
        .op = node->op, .bf16 = tt_op_is_bf16(graph, node), .m = s.m, .k = s.k, .rows = s.rows};
}

/* Scratch: first the sums over grains, then the scratch of the products. */
static int64_t sums_bytes(const struct tt_node *node, const struct tt_pair_products *products, int threads)
{
    bool adds = node->op == TT_OP_EXPERTS_BWD_W;
    int64_t floats = adds ? tt_pairs_sums_floats(&node->attr, products, threads) : 0;

    return tt_round_up(floats * (int64_t)sizeof(tt_real), LINE_BYTES);
}

static void experts_run(const struct tt_call *call)
{
    struct tt_pair_products products = experts_products_of(call->graph, call->node);
    struct tt_pairs_work work = {
        .call = call, .pairs = tt_pairs_of(call, 2), .most = products.rows, .bf16 = products.bf16};
    const void *acc = products.op == TT_OP_EXPERTS ? NULL : call->in[3];

    products.scratch = work.scratch =
        (char *)call->scratch + sums_bytes(call->node, &products, tt_team_threads(call->team));
    if (products.op != TT_OP_EXPERTS_BWD_W) {
        tt_pairs_multiply(&work, products.op, products.m, products.k, call->in[0], call->in[1], acc, call->out[0]);
        return;
    }
    products.in[0] = call->in[0];
    products.in[1] = call->in[1];
    products.acc = acc;
    products.out = call->out[0];
    tt_pairs_gradients(call, &work.pairs, &products, call->scratch);
}

static int64_t scratch(const struct tt_graph *graph, const struct tt_node *node, int threads)
{
    struct tt_pair_products products = experts_products_of(graph, node);

    return sums_bytes(node, &products, threads) + tt_pairs_scratch(&products, tt_pairs_count(&node->attr), threads);
}

static void cost(const struct tt_graph *graph, const struct tt_node *node, struct tt_cost *ret_cost)
{
    struct tt_pair_products products = experts_products_of(graph, node);

    ret_cost->flops = 2.0 * (double)products.rows * (double)products.m * (double)products.k;
    ret_cost->bf16 = products.bf16;
}

const struct tt_op_row TT_OF_TYPE(tt_op_experts) = {
    .name = "experts",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS},
    .out = {TT_TYPE_COMPUTE},
    .part = TT_PART_GEMM,
    .weight = TT_WEIGHT_MATMUL,
    .infer = infer,
    .backward = tt_rule_backward,
    .gradients = {{TT_OP_EXPERTS_BWD_X, 0, 1, {TT_DY0, TT_X1, TT_X2, TT_DX0}},
                  {TT_OP_EXPERTS_BWD_W, 1, 1, {TT_DY0, TT_X0, TT_X2, TT_DX1}}},
    .run = experts_run,
    .cost = cost,
    .scratch_bytes = scratch,
};

const struct tt_op_row TT_OF_TYPE(tt_op_experts_bwd_x) = {
    .name = "experts_bwd_x",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_COMPUTE},
    .out = {TT_TYPE_COMPUTE},
    .part = TT_PART_GEMM,
    .infer = infer,
    .run = experts_run,
    .cost = cost,
    .scratch_bytes = scratch,
    .alias = {4},
};

const struct tt_op_row TT_OF_TYPE(tt_op_experts_bwd_w) = {
    .name = "experts_bwd_w",
    .in = {TT_TYPE_COMPUTE, TT_TYPE_COMPUTE, TT_TYPE_IDS, TT_TYPE_F32},
    .out = {TT_TYPE_F32},
    .part = TT_PART_GEMM,
    .infer = infer,
    .run = experts_run,
    .cost = cost,
    .scratch_bytes = scratch,
    .alias = {4},
};

/* SPDX-License-Identifier: MIT
 *
 * The products of experts (experts.h).
 */
#include <string.h>

#include "core/kernels/gemv.h"
#include "core/kernels/matmul.h"
#include "core/math/bf16.h"
#include "core/math/round.h"
#include "core/ops/experts/experts.h"

enum {
    LINE = 16,    /* floats of a cache line */
    FEW_ROWS = 4, /* that a weight is read for as for vectors */
    CLASSES = 64  /* of numbers of rows: none, and one for each power of two */
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

/* --- few rows: as products of vectors, which do not copy the weight --- */

static bool are_few(const struct tt_experts_products *p, int64_t rows)
{
    return p->op == TT_OP_EXPERTS && rows <= FEW_ROWS;
}

static struct tt_gemv vector_of(const struct tt_experts_products *p, const struct tt_expert_rows *of, int64_t row)
{
    int64_t size = p->bf16 ? (int64_t)sizeof(tt_bf16) : (int64_t)sizeof(float);

    return (struct tt_gemv){.bf16 = p->bf16,
                            .y_bf16 = p->bf16,
                            .w = of->in[1],
                            .x = (const char *)of->in[0] + row * p->k * size,
                            .y = (char *)of->out + row * p->m * size,
                            .rows = p->m,
                            .width = p->k};
}

/* A part of the weight for all rows, while it is in the cache. */
static void run_vectors(const struct tt_experts_products *p, const struct tt_expert_rows *of, int64_t tile)
{
    for (int64_t row = 0; row < of->rows; row++) {
        struct tt_gemv vector = vector_of(p, of, row);

        tt_gemv_tile(&vector, tile);
    }
}

/* --- tiles --- */

/* What an expert without rows leaves of its gradient. */
static void leave(const struct tt_experts_products *p, const struct tt_expert_rows *of)
{
    size_t bytes = (size_t)(p->m * p->k) * sizeof(float);

    if (!of->acc)
        memset(of->out, 0, bytes);
    else if (of->acc != of->out)
        memcpy(of->out, of->acc, bytes);
}

static int64_t tiles_of(const struct tt_experts_products *p, const struct tt_expert_rows *of)
{
    struct tt_gemv vector;
    struct tt_matmul product;

    if (of->rows == 0)
        return p->op == TT_OP_EXPERTS_BWD_W ? 1 : 0;
    if (are_few(p, of->rows)) {
        vector = vector_of(p, of, 0);
        return tt_gemv_tiles(&vector);
    }
    product = product_of(p, of->rows);
    return tt_matmul_tiles(&product);
}

/* The place of the product that has a tile: the first one whose tiles end after it. */
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
struct run {
    const struct tt_experts_products *products;
    int threads;
};

/* The weight that the thread is likely to multiply with after the last tile of a product; NULL: unknown. */
static const void *next_weight(const struct run *run, int64_t place)
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
    const struct run *run = arg;
    const struct tt_experts_products *p = run->products;
    int64_t place = find(p, tile);
    const struct tt_expert_rows *of = &p->of[p->of[place].order];
    struct tt_matmul product = product_of(p, of->rows);
    bool last = tile + 1 == p->of[place].tiles;

    tile -= place ? p->of[place - 1].tiles : 0;
    if (of->rows == 0) {
        leave(p, of);
    } else if (are_few(p, of->rows)) {
        run_vectors(p, of, tile);
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

/* 0 of 0, otherwise 1 + log2. */
static int size_class(int64_t rows)
{
    int size = 0;

    for (; rows; rows /= 2)
        size++;
    return size;
}

/*
 * The order in which products are run: those with more rows first, up to a factor of two, since large tiles at the end
 * would leave the other threads without work.
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
    struct run run = {products, tt_team_threads(team)};
    int64_t tiles = 0;

    put_in_order(products);
    for (int64_t place = 0; place < products->n; place++) {
        tiles += tiles_of(products, &products->of[products->of[place].order]);
        products->of[place].tiles = tiles;
    }
    tt_team_run(team, tiles, run_tile, &run);
}

int64_t tt_experts_tiles(const struct tt_experts_products *products, int64_t rows)
{
    struct tt_expert_rows of = {.rows = rows > 0 ? rows : 1};

    return tiles_of(products, &of);
}

int64_t tt_experts_scratch_floats(const struct tt_experts_products *products, int64_t rows)
{
    struct tt_matmul most = product_of(products, rows);

    return tt_round_up(tt_matmul_scratch_floats(&most), LINE);
}

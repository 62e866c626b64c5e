/* SPDX-License-Identifier: MIT
 *
 * Matrix products on the team, in every element type: cutting them into tiles, and the sums over grains.
 *
 * Tiles are as large as the balance between 2, 4 or 8 threads allows, because every tile packs its operands again. If a
 * product is one of many, it need not keep several threads busy by itself, so only large ones are cut.
 */
#include "core/kernels/matmul.h"

#include "core/kernels/kernels.h"
#include "core/math/round.h"
#include "core/math/tree.h"

enum {
    LINE = 16,                    /* floats of a cache line */
    TILE_MIN = 384,               /* of the dimension that is cut */
    HALF_MIN = 256,               /* a dimension of this size is cut in two even if its halves are below TILE_MIN */
    SERIAL_FLOPS = 2 * 1000000,   /* a smaller product is cheaper than waking the team */
    THREAD_MIN = 96,              /* the same, where there are more threads than tiles */
    OF_MANY_FLOPS = 2 * 64000000, /* flops of a tile of one of many products: about a millisecond */
    OF_MANY_MIN = 192             /* the cut dimension; packing then costs little compared with the tile's flops */
};

/* --- tiles --- */

/* The number of tiles of one grain: at least `threads`, if the grain is that large. */
static int64_t tiles_of(int64_t m, int64_t n, int64_t k, int threads)
{
    int64_t size = m > n ? m : n, tiles = 1;

    if (2.0 * (double)m * (double)n * (double)k < (double)SERIAL_FLOPS)
        return 1;
    while (size / (2 * tiles) >= TILE_MIN)
        tiles *= 2;
    if (tiles == 1 && size >= HALF_MIN)
        tiles = 2;
    while (tiles < threads && size / (2 * tiles) >= THREAD_MIN)
        tiles *= 2;
    return tiles;
}

/* The number of tiles of one of many products. */
static int64_t tiles_of_many(int64_t m, int64_t n, int64_t k)
{
    int64_t size = m > n ? m : n, tiles = tt_div_up(2 * m * n * k, OF_MANY_FLOPS), most = size / OF_MANY_MIN;

    return tiles <= most ? tiles : most > 1 ? most : 1;
}

/* A dimension in grains; the last one may be shorter. */
struct grains {
    int64_t n, size, last;
};

static struct grains grains_of(int64_t extent, int64_t size)
{
    struct grains grains = {1, extent, extent};

    if (!size || size >= extent)
        return grains;
    grains.n = tt_div_up(extent, size);
    grains.size = size;
    grains.last = extent - (grains.n - 1) * size;
    return grains;
}

static bool bits_by_shape(const struct tt_matmul *product)
{
    return product->bf16 ? tt_bgemm_is_blas() : tt_sgemm_is_blas();
}

/*
 * The grains of m or n; each is a separate product. If the bits of an element depend only on k in this kernel, all
 * grains form one product: every part of it has the same bits, and fewer products pack less.
 */
static struct grains products_of(const struct tt_matmul *product, int64_t extent, int64_t size)
{
    return grains_of(extent, bits_by_shape(product) ? size : 0);
}

/* The number of tiles of grain (i, j), and its place in c. */
static int64_t tiles_of_grain(const struct tt_matmul *product, int64_t i, int64_t j, struct tt_rectangle *ret_at)
{
    struct grains m = products_of(product, product->m, product->m_grain);
    struct grains n = products_of(product, product->n, product->n_grain);
    struct grains k = grains_of(product->k, product->k_grain);

    *ret_at =
        (struct tt_rectangle){i * m.size, i == m.n - 1 ? m.last : m.size, j * n.size, j == n.n - 1 ? n.last : n.size};
    return product->of_many
               ? tiles_of_many(ret_at->rows, ret_at->columns, k.size)
               : tiles_of(ret_at->rows, ret_at->columns, k.size, bits_by_shape(product) ? 0 : product->threads);
}

int64_t tt_matmul_tiles(const struct tt_matmul *product)
{
    struct grains m = products_of(product, product->m, product->m_grain);
    struct grains n = products_of(product, product->n, product->n_grain);
    struct tt_rectangle at;
    int64_t tiles = 0;

    for (int64_t i = 0; i < m.n; i++)
        for (int64_t j = 0; j < n.n; j++)
            tiles += tiles_of_grain(product, i, j, &at);
    return tiles;
}

/* Cuts the grain along its longer side. */
static struct tt_rectangle tile_of(const struct tt_rectangle *grain, int64_t tile, int64_t tiles)
{
    struct tt_rectangle at = *grain;
    bool rows = grain->rows >= grain->columns;
    int64_t size = rows ? grain->rows : grain->columns;
    int64_t begin = size * tile / tiles, end = size * (tile + 1) / tiles;

    if (rows) {
        at.row += begin;
        at.rows = end - begin;
    } else {
        at.column += begin;
        at.columns = end - begin;
    }
    return at;
}

/* The place of a tile in c. */
static struct tt_rectangle place_of(const struct tt_matmul *product, int64_t tile)
{
    struct grains m = products_of(product, product->m, product->m_grain);
    struct grains n = products_of(product, product->n, product->n_grain);
    struct tt_rectangle at = {0};

    for (int64_t i = 0; i < m.n; i++) {
        for (int64_t j = 0; j < n.n; j++) {
            int64_t tiles = tiles_of_grain(product, i, j, &at);

            if (tile < tiles)
                return tile_of(&at, tile, tiles);
            tile -= tiles;
        }
    }
    return at;
}

/* --- parts --- */

/* The address of element i; NULL if the array is NULL. */
static void *element(const void *x, bool bf16, int64_t i)
{
    return x ? (char *)(uintptr_t)x + i * (bf16 ? (int64_t)sizeof(tt_bf16) : (int64_t)sizeof(tt_real)) : NULL;
}

struct tt_matmul tt_matmul_part(const struct tt_matmul *product, const struct tt_rectangle *at, int64_t begin,
                                int64_t k)
{
    const struct tt_matmul *p = product;
    struct tt_matmul part = *p;
    int64_t first = at->row * p->ldc + at->column;

    part.m = at->rows;
    part.n = at->columns;
    part.k = k;
    part.a = element(p->a, p->bf16, p->trans_a ? at->row + begin * p->lda : at->row * p->lda + begin);
    if (p->b_packing) {
        part.b_row += p->trans_b ? at->column : begin;
        part.b_column += p->trans_b ? begin : at->column;
    } else {
        part.b = element(p->b, p->bf16, p->trans_b ? at->column * p->ldb + begin : at->column + begin * p->ldb);
    }
    part.acc = element(p->acc, p->c_bf16, first);
    part.c = element(p->c, p->c_bf16, first);
    return part;
}

void tt_matmul_store(const struct tt_matmul *product, tt_real *sum, int64_t stride)
{
    for (int64_t i = 0; i < product->m; i++, sum += stride) {
        const void *acc = element(product->acc, product->c_bf16, i * product->ldc);
        void *c = element(product->c, product->c_bf16, i * product->ldc);

        if (product->c_bf16) {
            for (int64_t j = 0; acc && j < product->n; j++)
                sum[j] += tt_bf16_to_float(((const tt_bf16 *)acc)[j]);
            tt_kernels()->bf16_round(c, sum, product->n);
        } else if (acc) {
            TT_OF_TYPE(tt_tree_add)(c, acc, sum, product->n);
        }
    }
}

/*
 * Vector kernels unpack parts of a packed b just before they pack them, so that they stay in the second cache. For a
 * library, a product unpacks UNPACK_COLUMNS columns of b into the scratch, multiplies them, and goes on with the next
 * columns. One call of the kernel sums over all of k, so an element of c has the bits of a product with the unpacked b,
 * unless the kernel's bits depend on the shape.
 */
enum { UNPACK_COLUMNS = TT_BGEMM_COLUMNS };

/* Whether b consists of plain elements, in contiguous rows. */
static bool is_plain(const struct tt_matmul *product)
{
    return product->bf16 && product->b_packing == TT_PACKING_BF16;
}

/* Whether the kernel needs all of k unpacked; that of doubles does, too. */
static bool needs_all(const struct tt_matmul *product)
{
    return bits_by_shape(product) || sizeof(tt_real) > sizeof(float);
}

static int64_t unpacked_columns(const struct tt_matmul *product)
{
    int64_t most = needs_all(product) ? UNPACK_COLUMNS : TT_UNPACKED_COLUMNS;

    return product->n < most ? product->n : most;
}

static int64_t unpacked_floats(const struct tt_matmul *product)
{
    int64_t most = product->bf16 ? TT_BGEMM_DEPTH : TT_SGEMM_DEPTH;
    int64_t depth = product->k < most || needs_all(product) ? product->k : most;
    int64_t elements = product->b_packing && !is_plain(product) ? unpacked_columns(product) * depth : 0;

    return tt_round_up(product->bf16 ? tt_div_up(elements, 2) : elements, LINE);
}

/* Columns [column, column + columns) of B over [begin, begin + k), one line after the other. */
static void unpack(const struct tt_matmul *product, int64_t column, int64_t columns, int64_t begin, int64_t k, void *to)
{
    const struct tt_matmul *p = product;
    int64_t lines = p->trans_b ? columns : k, n = p->trans_b ? k : columns;
    int64_t first = p->b_column + (p->trans_b ? begin : column), row = p->b_row + (p->trans_b ? column : begin);
    int64_t bytes = tt_packing_row_bytes(p->b_packing, p->b_width);
    const char *from = (const char *)p->b + row * bytes;

    for (int64_t i = 0; i < lines; i++, from += bytes) {
        if (p->bf16)
            tt_kernels()->unpack_bf16(element(to, true, i * n), p->b_packing, from, p->b_width, first, n);
        else
            tt_kernels()->unpack(element(to, false, i * n), p->b_packing, from, p->b_width, first, n);
    }
}

#ifndef TT_WIDE /* the kernel of doubles gets all of b unpacked */

const void *tt_matmul_b(const struct tt_matmul *product, int64_t column, int64_t begin, int64_t k, int64_t *ret_stride)
{
    const struct tt_matmul *p = product;
    int64_t first = column / TT_UNPACKED_COLUMNS * TT_UNPACKED_COLUMNS, left = p->n - first, columns;

    if (!p->b_packing) {
        *ret_stride = p->ldb;
        return element(p->b, p->bf16, p->trans_b ? column * p->ldb + begin : begin * p->ldb + column);
    }
    columns = left < TT_UNPACKED_COLUMNS ? left : TT_UNPACKED_COLUMNS;
    *ret_stride = p->trans_b ? k : columns;
    if (column == first)
        unpack(p, first, columns, begin, k, p->unpacked);
    return element(p->unpacked, p->bf16, p->trans_b ? (column - first) * k : column - first);
}

struct tt_b_memory tt_matmul_b_memory(const struct tt_matmul *product, int64_t column, int64_t columns, int64_t begin,
                                      int64_t k)
{
    const struct tt_matmul *p = product;
    int64_t size = p->bf16 ? (int64_t)sizeof(tt_bf16) : (int64_t)sizeof(tt_real), bytes = p->ldb * size;
    int64_t row = p->trans_b ? column : begin, at = p->trans_b ? begin : column, width = p->ldb;

    if (columns <= 0 || k <= 0)
        return (struct tt_b_memory){0};
    if (p->b_packing) {
        bytes = tt_packing_row_bytes(p->b_packing, p->b_width);
        width = p->b_width;
        row += p->b_row;
        at += p->b_column;
    }
    return (struct tt_b_memory){.first = (const char *)p->b + row * bytes + bytes * at / width,
                                .stride = bytes,
                                .lines = p->trans_b ? columns : k,
                                .bytes = bytes * (p->trans_b ? k : columns) / width};
}

#endif

static void multiply(const struct tt_matmul *product);

static void multiply_unpacked(const struct tt_matmul *product)
{
    const struct tt_matmul *p = product;
    int64_t most = unpacked_columns(p);

    for (int64_t at = 0, n; at < p->n; at += n) {
        struct tt_matmul part = *p;

        n = p->n - at < most ? p->n - at : most;
        unpack(p, at, n, 0, p->k, p->scratch);
        part.n = n;
        part.b = p->scratch;
        part.b_packing = TT_PACKING_NONE;
        part.ldb = p->trans_b ? p->k : n;
        part.next_b = NULL;
        part.scratch = p->scratch + unpacked_floats(p);
        part.acc = element(p->acc, p->c_bf16, at);
        part.c = element(p->c, p->c_bf16, at);
        multiply(&part);
    }
}

/* On the calling thread, without grains. */
static void multiply(const struct tt_matmul *product)
{
    struct tt_matmul own = *product;

    if (is_plain(product)) {
        own.b = (const tt_bf16 *)product->b + product->b_row * product->b_width + product->b_column;
        own.ldb = product->b_width;
        own.b_packing = TT_PACKING_NONE;
    } else if (product->b_packing && needs_all(product)) {
        multiply_unpacked(product);
        return;
    } else if (product->b_packing) {
        own.unpacked = product->scratch;
        own.scratch = product->scratch + unpacked_floats(product);
        own.next_b = NULL;
    }
    if (own.bf16)
        tt_kernels()->bgemm(&own);
    else
        tt_kernels()->sgemm(&own);
}

/* --- sums over grains of k --- */

/* The lowest sum can be stored in c itself, unless c holds bfloat16 or may be acc. */
static bool sums_in_c(const struct tt_matmul *product, bool has_acc)
{
    return !has_acc && !product->c_bf16;
}

int64_t tt_matmul_partial_floats(const struct tt_matmul *product, bool has_acc)
{
    int depth = tt_tree_stack_depth(grains_of(product->k, product->k_grain).n);

    if (!product->k_grain)
        return 0;
    return (sums_in_c(product, has_acc) ? depth - 1 : depth) * product->m * product->ldc;
}

/* Entry `depth` of the stack of sums, at the first element of the rectangle, with the strides of c. */
static tt_real *entry(const struct tt_matmul *product, const struct tt_rectangle *at, int depth)
{
    int in_partial = sums_in_c(product, product->acc) ? depth - 1 : depth;
    tt_real *sums = in_partial < 0 ? product->c : product->partial + in_partial * product->m * product->ldc;

    return sums + at->row * product->ldc + at->column;
}

static void add_rectangle(const struct tt_rectangle *at, int64_t stride, tt_real *to, const tt_real *from)
{
    for (int64_t i = 0; i < at->rows; i++)
        TT_OF_TYPE(tt_tree_add)(to + i * stride, to + i * stride, from + i * stride, at->columns);
}

/* sum = [acc +] the product over grain i of k, with the strides of c. */
static void multiply_grain(const struct tt_matmul *product, const struct tt_rectangle *at, int64_t i,
                           const tt_real *acc, tt_real *sum)
{
    struct grains k = grains_of(product->k, product->k_grain);
    struct tt_matmul part = tt_matmul_part(product, at, i * k.size, i + 1 < k.n ? k.size : k.last);

    part.c = sum;
    part.c_bf16 = false;
    part.acc = acc;
    multiply(&part);
}

/* The tree over the products of the grains of k. */
static void multiply_grains(const struct tt_matmul *product, const struct tt_rectangle *at)
{
    struct grains k = grains_of(product->k, product->k_grain);
    struct tt_matmul whole = tt_matmul_part(product, at, 0, product->k);
    int depth = 0;

    for (int64_t i = 0; i < k.n; i++) {
        int carries = i + 1 < k.n ? tt_tree_carries(i) : depth;
        tt_real *sum = entry(product, at, depth++);

        multiply_grain(product, at, i, NULL, sum);
        for (int j = 0; j < product->n_more; j++) {
            struct tt_matmul other = product->more[j];

            other.scratch = product->scratch;
            multiply_grain(&other, at, i, sum, sum);
        }
        for (; carries > 0; carries--, depth--)
            add_rectangle(at, product->ldc, entry(product, at, depth - 2), entry(product, at, depth - 1));
    }
    tt_matmul_store(&whole, entry(product, at, 0), product->ldc);
}

/* --- the product --- */

int64_t tt_matmul_scratch_floats(const struct tt_matmul *product)
{
    int64_t most = (product->bf16 ? tt_bgemm_scratch(product) : tt_sgemm_scratch(product)) + unpacked_floats(product);

    for (int j = 0; j < product->n_more; j++) {
        int64_t floats = tt_matmul_scratch_floats(&product->more[j]);

        most = floats > most ? floats : most;
    }
    return most;
}

void tt_matmul_tile(const struct tt_matmul *product, int64_t tile, int worker)
{
    struct tt_rectangle at = place_of(product, tile);
    struct tt_matmul own = *product;

    own.scratch += worker * tt_matmul_scratch_floats(product);
    if (own.k_grain) {
        multiply_grains(&own, &at);
    } else {
        own = tt_matmul_part(&own, &at, 0, own.k);
        multiply(&own);
    }
}

static void matmul_run_tile(void *arg, int64_t tile, int worker)
{
    tt_matmul_tile(arg, tile, worker);
}

void tt_matmul(struct tt_team *team, const struct tt_matmul *product)
{
    struct tt_matmul own = *product;

    /* on a few cores larger tiles win, since every tile packs its operands */
    own.threads = tt_team_threads(team) > 2 ? tt_team_threads(team) : 0;
    tt_team_run(team, tt_matmul_tiles(&own), matmul_run_tile, &own);
}

/*
 * A matrix times a vector on the team.
 */

enum {
    TILE_ELEMENTS = 32768, /* elements of w: reading them takes much longer than handing out a tile */
    AT_ONCE = 64,          /* rows whose sums are rounded together */
    VECTORS_AT_ONCE = 16   /* and vectors */
};

static int64_t vectors_of(const struct tt_gemv *g)
{
    return g->vectors ? g->vectors : 1;
}

/* Sums of rows [row, row + n): y[v * y_row + i] of vector v and row `row` + i. */
static void sum_rows(const struct tt_gemv *g, int64_t row, int64_t n, tt_real *y, int64_t y_row)
{
    int64_t vectors = vectors_of(g);
    struct tt_packed_rows packed = {.packing = g->packing,
                                    .data = (const char *)g->w + row * tt_packing_row_bytes(g->packing, g->width),
                                    .rows = n,
                                    .width = g->width,
                                    .vectors = vectors,
                                    .y_row = y_row};

    if (g->packing && g->bf16)
        tt_kernels()->gemv_packed_bf16(y, &packed, g->x);
    else if (g->packing)
        tt_kernels()->gemv_packed(y, &packed, g->x);
    for (int64_t v = 0; v < vectors && !g->packing; v++, y += y_row) {
        if (g->bf16)
            tt_kernels()->gemv_bf16(y, (const tt_bf16 *)g->w + row * g->width, (const tt_bf16 *)g->x + v * g->width, n,
                                    g->width);
        else
            tt_kernels()->gemv(y, (const tt_real *)g->w + row * g->width, (const tt_real *)g->x + v * g->width, n,
                               g->width);
    }
}

/* The same for products that are bfloat16. */
static void rounded_rows(const struct tt_gemv *g, struct tt_range part)
{
    tt_real sums[AT_ONCE * VECTORS_AT_ONCE];

    for (int64_t v = 0; v < vectors_of(g); v += VECTORS_AT_ONCE) {
        struct tt_gemv some = *g;

        some.vectors = vectors_of(g) - v < VECTORS_AT_ONCE ? vectors_of(g) - v : VECTORS_AT_ONCE;
        some.x = element(g->x, g->bf16, v * g->width);
        for (int64_t r = 0; r < part.n; r += AT_ONCE) {
            int64_t n = part.n - r < AT_ONCE ? part.n - r : AT_ONCE, row = part.begin + r;

            sum_rows(&some, row, n, sums, n);
            for (int64_t i = 0; i < some.vectors; i++)
                tt_kernels()->bf16_round((tt_bf16 *)g->y + (v + i) * g->rows + row, sums + i * n, n);
        }
    }
}

static int64_t tile_rows(const struct tt_gemv *g)
{
    return TILE_ELEMENTS / g->width + 1;
}

int64_t tt_gemv_tiles(const struct tt_gemv *gemv)
{
    return tt_tiles(gemv->rows, tile_rows(gemv));
}

void tt_gemv_tile(const struct tt_gemv *gemv, int64_t tile)
{
    const struct tt_gemv *g = gemv;
    struct tt_range part = tt_tile_range(g->rows, tile_rows(g), tile);

    if (g->y_bf16)
        rounded_rows(g, part);
    else
        sum_rows(g, part.begin, part.n, (tt_real *)g->y + part.begin, g->rows);
}

static void gemv_run_tile(void *arg, int64_t tile, int worker)
{
    (void)worker;
    tt_gemv_tile(arg, tile);
}

void tt_gemv(struct tt_team *team, const struct tt_gemv *gemv)
{
    tt_team_run(team, tt_gemv_tiles(gemv), gemv_run_tile, (void *)gemv);
}

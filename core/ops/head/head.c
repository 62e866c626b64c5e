/* SPDX-License-Identifier: MIT
 *
 * The products of the output projection.
 */
#include "core/ops/head/head.h"

#include <string.h>

#include "core/kernels/kernels.h"
#include "core/math/tree.h"
#include "core/ops/grains.h"

enum {
    DX_TILES_WANTED = 16,
    SLICE_MIN = 2048, /* of the vocabulary */
    LINE = 16         /* floats of a cache line */
};

/* --- how the products are cut --- */

/* The products of a chunk of `rows`, without addresses: logits, dw, and dx of a part of the vocabulary. */
static struct tt_matmul logits_product(const struct tt_head *head, int64_t rows)
{
    return (struct tt_matmul){.bf16 = head->bf16,
                              .trans_b = true,
                              .m = rows,
                              .n = head->vocab,
                              .k = head->width,
                              .lda = head->width,
                              .ldb = head->width,
                              .ldc = head->vocab,
                              .n_grain = head->vocab_grain};
}

static struct tt_matmul dw_product(const struct tt_head *head, int64_t rows)
{
    return (struct tt_matmul){.bf16 = head->bf16,
                              .trans_a = true,
                              .m = head->vocab,
                              .n = head->width,
                              .k = rows,
                              .lda = head->grad_stride,
                              .ldb = head->width,
                              .ldc = head->width,
                              .m_grain = head->vocab_grain};
}

static struct tt_matmul dx_product(const struct tt_head *head, int64_t rows, int64_t vocab)
{
    return (struct tt_matmul){.bf16 = head->bf16,
                              .m = rows,
                              .n = head->width,
                              .k = vocab,
                              .lda = head->grad_stride,
                              .ldb = head->width,
                              .ldc = head->row_step};
}

static int64_t vocab_grains(const struct tt_head *head)
{
    return tt_tiles(head->vocab, head->vocab_grain);
}

/* Floats of a row of logits that its gradient fills in bfloat16. */
static int64_t half_row(const struct tt_head *head)
{
    return tt_round_up(tt_div_up(head->vocab, 2), LINE);
}

struct tt_head tt_head_of(const struct tt_graph *graph, const struct tt_node *node, int x, int w, int64_t rows,
                          bool grad)
{
    struct tt_head head = {.bf16 = tt_op_is_bf16(graph, node),
                           .rows = rows,
                           .width = tt_value_width(&graph->values[x]),
                           .vocab = tt_value_rows(&graph->values[w]),
                           .slices = 1};
    struct tt_matmul slice;

    head.vocab_grain = tt_grain_or(&node->attr.out, head.vocab);
    head.grad_stride = head.bf16 ? 2 * head.vocab : head.vocab;
    if (!grad)
        return head;
    head.slice_step = rows * head.width;
    head.row_step = head.width;
    slice = dx_product(&head, rows, head.vocab_grain);
    while (head.slices * tt_matmul_tiles(&slice) < DX_TILES_WANTED &&
           head.vocab_grain / (2 * head.slices) >= SLICE_MIN) {
        head.slices *= 2;
        slice.k = head.vocab_grain / head.slices;
    }
    head.in_rows = head.bf16 && half_row(&head) + vocab_grains(&head) * head.slices * head.width <= head.vocab;
    if (head.in_rows) {
        head.slice_step = head.width;
        head.row_step = head.vocab;
    }
    return head;
}

int64_t tt_head_slice_floats(const struct tt_head *head)
{
    return head->in_rows ? 0 : vocab_grains(head) * head->slices * head->slice_step;
}

int64_t tt_head_worker_floats(const struct tt_head *head)
{
    struct tt_matmul products[3] = {logits_product(head, head->rows), dw_product(head, head->rows),
                                    dx_product(head, head->rows, head->vocab_grain)};
    int64_t most = 0;

    for (int i = 0; i < 3; i++) {
        int64_t floats = tt_matmul_scratch_floats(&products[i]);

        most = floats > most ? floats : most;
    }
    return most;
}

/* --- the products of a chunk --- */

void tt_head_logits(const struct tt_head_chunk *chunk)
{
    struct tt_matmul product = logits_product(chunk->head, chunk->n);

    product.a = chunk->x;
    product.b = chunk->w;
    product.c = chunk->logits;
    product.scratch = chunk->workers;
    tt_matmul(chunk->team, &product);
}

static struct tt_matmul chunk_dw(const struct tt_head_chunk *chunk)
{
    struct tt_matmul product = dw_product(chunk->head, chunk->n);

    product.a = chunk->logits;
    product.b = chunk->x;
    product.acc = chunk->acc;
    product.c = chunk->dw;
    return product;
}

/* Row `row` of slice i of dx: the slices of the first grain of the vocabulary, then of the next. */
static float *dx_slice(const struct tt_head_chunk *chunk, int64_t i, int64_t row)
{
    const struct tt_head *head = chunk->head;
    float *first = head->in_rows ? chunk->logits + half_row(head) : chunk->slices;

    return first + i * head->slice_step + row * head->row_step;
}

static struct tt_matmul chunk_dx(const struct tt_head_chunk *chunk, int64_t i)
{
    const struct tt_head *head = chunk->head;
    int64_t size = head->bf16 ? (int64_t)sizeof(tt_bf16) : (int64_t)sizeof(float);
    struct tt_range grain = tt_tile_range(head->vocab, head->vocab_grain, i / head->slices);
    int64_t begin = grain.begin + grain.n * (i % head->slices) / head->slices;
    int64_t end = grain.begin + grain.n * (i % head->slices + 1) / head->slices;
    struct tt_matmul product = dx_product(head, chunk->n, end - begin);

    product.a = (const char *)chunk->logits + begin * size;
    product.b = (const char *)chunk->w + begin * head->width * size;
    product.c = dx_slice(chunk, i, 0);
    return product;
}

static int64_t dx_slices(const struct tt_head_chunk *chunk)
{
    return vocab_grains(chunk->head) * chunk->head->slices;
}

/* The tiles of all slices. A slice of the last grain may have fewer than others. */
static int64_t dx_tiles(const struct tt_head_chunk *chunk)
{
    int64_t tiles = 0;

    for (int64_t i = 0; i < dx_slices(chunk); i++) {
        struct tt_matmul slice = chunk_dx(chunk, i);

        tiles += tt_matmul_tiles(&slice);
    }
    return tiles;
}

/* The product that has this tile, and the tile's number in it: those of dx, which are longer, then those of dw. */
static struct tt_matmul product_of(const struct tt_head_chunk *chunk, int64_t *tile)
{
    for (int64_t i = 0; i < dx_slices(chunk); i++) {
        struct tt_matmul slice = chunk_dx(chunk, i);
        int64_t tiles = tt_matmul_tiles(&slice);

        if (*tile < tiles)
            return slice;
        *tile -= tiles;
    }
    return chunk_dw(chunk);
}

static void grad_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_head_chunk *chunk = arg;
    struct tt_matmul product = product_of(chunk, &tile);

    /* workers that run another product meanwhile use other parts of the scratch */
    product.scratch =
        chunk->workers + worker * (tt_head_worker_floats(chunk->head) - tt_matmul_scratch_floats(&product));
    tt_matmul_tile(&product, tile, worker);
}

/* Adds the slices of a grain in order, then the grains as a tree. */
static void dx_sum_row(const struct tt_head_chunk *chunk, int64_t row)
{
    int64_t n = chunk->head->width, slices = chunk->head->slices;
    struct tt_tree_walk walk = tt_tree_walk_make(vocab_grains(chunk->head));
    int64_t into, from;

    for (int64_t i = 0; i < dx_slices(chunk); i++) {
        float *grain = dx_slice(chunk, i / slices * slices, row);

        if (i % slices)
            tt_kernels()->add(grain, grain, dx_slice(chunk, i, row), n);
    }
    while (tt_tree_walk_next(&walk, &into, &from))
        tt_kernels()->add(dx_slice(chunk, into * slices, row), dx_slice(chunk, into * slices, row),
                          dx_slice(chunk, from * slices, row), n);
    if (chunk->dx_bf16)
        tt_kernels()->bf16_round((tt_bf16 *)chunk->dx + row * n, dx_slice(chunk, 0, row), n);
    else
        memcpy((float *)chunk->dx + row * n, dx_slice(chunk, 0, row), (size_t)n * sizeof(float));
}

static void dx_sum_tile(void *arg, int64_t tile, int worker)
{
    const struct tt_head_chunk *chunk = arg;
    struct tt_range part = tt_tile_range(chunk->n, TT_HEAD_TILE_ROWS, tile);

    (void)worker;
    for (int64_t row = part.begin; row < part.begin + part.n; row++)
        dx_sum_row(chunk, row);
}

void tt_head_grads(const struct tt_head_chunk *chunk)
{
    struct tt_matmul dw = chunk_dw(chunk);
    int64_t dw_tiles = chunk->dw ? tt_matmul_tiles(&dw) : 0;

    tt_team_run(chunk->team, dx_tiles(chunk) + dw_tiles, grad_tile, (void *)chunk);
    tt_team_run(chunk->team, tt_tiles(chunk->n, TT_HEAD_TILE_ROWS), dx_sum_tile, (void *)chunk);
}

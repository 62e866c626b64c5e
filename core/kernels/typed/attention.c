/* SPDX-License-Identifier: MIT
 *
 * Causal attention in tiles of TT_ATTENTION_ROWS rows against TT_ATTENTION_KEYS keys, by matrix products.
 *
 * It skips tiles above the diagonal, and tiles that lie before the documents of all their rows. Forward: the running
 * maximum and sum of Milakov & Gimelshein (2018); the output row is rescaled when the maximum grows. Backward (Dao et
 * al. 2022): p = exp(s - lse), dp = do v^T, ds = p (dp - dot(do, o)), then dq += ds k, dk += ds^T q, dv += p^T do,
 * query heads and their blocks in order.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/kernels/matmul.h"
#include "core/kernels/typed/element.h"
#include "core/kernels/vector_math.h"
#include "core/math/elementary.h"

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The row length of a tile of scores; short sequences have narrower tiles. */
static int64_t tile_width(int64_t seq_len)
{
    return min64(seq_len, TT_ATTENTION_KEYS);
}

/* A tile: rows [row, row + rows) of a head against keys [key, key + keys). */
struct tile {
    int64_t row, rows, key, keys;
    int64_t first_key; /* first key of the first tile of these rows */
    int64_t origin;    /* backward: the first key of dk and dv */
    int64_t width;     /* row length of the scores */
    int64_t k_stride, v_stride;
};

/* The keys [begin, end) of the tile that its row r may see: none for rows above the first key. */
struct span {
    int64_t begin, end;
};

static struct span visible(const struct tile *tile, const struct tt_attention_shape *shape, int64_t r)
{
    int64_t begin = tt_attention_start(shape, tile->row + r) - tile->key;
    int64_t end = min64(tile->row + r + 1 - tile->key, tile->keys);

    end = end > 0 ? end : 0;
    begin = begin > 0 ? begin : 0;
    return (struct span){min64(begin, end), end};
}

/* Sets the scores that the row must not see to 0. */
static void hide(tt_real *row, const struct tile *tile, struct span seen)
{
    memset(row, 0, (size_t)seen.begin * sizeof *row);
    memset(row + seen.end, 0, (size_t)(tile->keys - seen.end) * sizeof *row);
}

static void row_scale(tt_real *x, int64_t n, tt_real factor)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= factor;
}

/*
 * Turns the scores of a tile into weights exp(s - largest), with the largest score of the row so far. largest and sum
 * are per row. Rescales o to the new maximum, except for the first tile of keys, when o is undefined. For a row whose
 * document begins after the tile, the maximum stays at its lowest value.
 */
static void softmax_tile(tt_real *s, const struct tile *tile, tt_real scale, tt_real *largest, tt_real *sum, tt_real *o,
                         int64_t o_stride, const struct tt_attention_shape *shape)
{
    bool is_first = tile->key == tile->first_key;

    for (int64_t r = 0; r < tile->rows; r++, s += tile->width) {
        struct span seen = visible(tile, shape, r);
        int64_t n = seen.end - seen.begin;
        tt_real here, added;

        if (shape->soft_cap > 0.0F)
            tt_row_cap(s + seen.begin, n, tt_attention_scale(shape), shape->soft_cap);
        here = n ? scale * tt_row_max(s + seen.begin, n) : -TT_REAL_MAX;

        here = !is_first && largest[r] > here ? largest[r] : here;
        added = n ? tt_row_exp(s + seen.begin, n, scale, here) : 0.0F;
        hide(s, tile, seen);
        if (!is_first) {
            tt_real shrink = tt_expf(largest[r] - here);

            row_scale(o + r * o_stride, tt_attention_value_dim(shape), shrink);
            added += sum[r] * shrink;
        }
        largest[r] = here;
        sum[r] = added;
    }
}

/* Rows of floats, `stride` apart. */
struct rows {
    const tt_real *x;
    int64_t stride;
};

/* Rows of elements as floats: in place, or widened into scratch. */
static struct rows rows_of(const element *x, int64_t stride, int64_t n, int64_t dim, tt_real *scratch)
{
#ifdef TT_ELEMENT_BF16
    for (int64_t r = 0; r < n; r++)
        TT_LOOPS(bf16_widen)(scratch + r * dim, x + r * stride, dim);
    return (struct rows){scratch, dim};
#else
    (void)n, (void)dim, (void)scratch;
    return (struct rows){x, stride};
#endif
}

/* scores = the tile's rows of q times its rows of k. */
static void tile_scores(tt_real *s, struct rows q, struct rows k, const struct tile *tile, int64_t dim)
{
    TT_LOOPS(sgemm)
    (&(struct tt_matmul){.trans_b = true,
                         .m = tile->rows,
                         .n = tile->keys,
                         .k = dim,
                         .a = q.x,
                         .lda = q.stride,
                         .b = k.x,
                         .ldb = k.stride,
                         .c = s,
                         .ldc = tile->width});
}

/* out (the tile's rows of o or dq) = [out +] weights times the tile's rows of k or v. */
static void tile_rows(tt_real *out, int64_t stride, const tt_real *weights, struct rows kv, const struct tile *tile,
                      int64_t dim, bool add)
{
    TT_LOOPS(sgemm)
    (&(struct tt_matmul){.m = tile->rows,
                         .n = dim,
                         .k = tile->keys,
                         .a = weights,
                         .lda = tile->width,
                         .b = kv.x,
                         .ldb = kv.stride,
                         .acc = add ? out : NULL,
                         .c = out,
                         .ldc = stride});
}

/*
 * Scratch: scores; for bfloat16 also the tile's rows of q, of k or v, and of o. The rows of o are rescaled and summed
 * in float32, and rounded once.
 */
void TT_TYPED(tt_attention_fwd, loops)(element *o, tt_real *lse, const element *q, const element *k, const element *v,
                                       const struct tt_attention_shape *shape, int64_t first_row, int64_t rows,
                                       tt_real *scratch)
{
    tt_real largest[TT_ATTENTION_ROWS] = {0.0F}, sum[TT_ATTENTION_ROWS] = {0.0F};
    tt_real scale =
        shape->soft_cap > 0.0F ? 1.0F : tt_attention_scale(shape); /* of the scores that the softmax reads */
    int64_t dim = shape->head_dim, stride = shape->heads * dim, width = tt_attention_value_dim(shape);
    int64_t v_stride = tt_attention_value_stride(shape), o_stride = shape->heads * width;
    struct tile tile = {.row = first_row,
                        .rows = rows,
                        .key = tt_attention_start(shape, first_row),
                        .first_key = tt_attention_start(shape, first_row),
                        .width = tile_width(shape->seq_len)};
    tt_real *wide_q = scratch + TT_ATTENTION_ROWS * tile.width, *wide_kv = wide_q + TT_ATTENTION_ROWS * dim;
    struct rows q_rows = rows_of(q + (first_row - shape->begin) * stride, stride, rows, dim, wide_q);
    element *to = o + (first_row - shape->begin) * o_stride;
#ifdef TT_ELEMENT_BF16
    tt_real *out = wide_kv + tile.width * (dim > width ? dim : width);
    int64_t out_stride = width;
#else
    tt_real *out = to;
    int64_t out_stride = o_stride;
#endif

    for (; tile.key < first_row + rows; tile.key += TT_ATTENTION_KEYS) {
        tile.keys = min64(first_row + rows - tile.key, TT_ATTENTION_KEYS);
        tile_scores(scratch, q_rows, rows_of(k + tile.key * dim, dim, tile.keys, dim, wide_kv), &tile, dim);
        softmax_tile(scratch, &tile, scale, largest, sum, out, out_stride, shape);
        tile_rows(out, out_stride, scratch, rows_of(v + tile.key * v_stride, v_stride, tile.keys, width, wide_kv),
                  &tile, width, tile.key > tile.first_key);
    }
    for (int64_t r = 0; r < rows; r++) {
        tt_real share = shape->sinks ? tt_add_sink(&largest[r], &sum[r], shape->sinks[0]) : 1.0F / sum[r];

        row_scale(out + r * out_stride, width, share);
        lse[(first_row - shape->begin + r) * shape->heads] = largest[r] + (tt_real)tt_log((double)sum[r]);
#ifdef TT_ELEMENT_BF16
        TT_LOOPS(bf16_round)(to + r * o_stride, out + r * width, width);
#endif
    }
}

#ifdef TT_ELEMENT_BF16
typedef struct tt_attention_bf16_grads element_grads;
#else
typedef struct tt_attention_grads element_grads;
#endif

/* out (the tile's keys of dk or dv) += weights^T times rows of q or do. */
static void tile_keys(tt_real *out, int64_t stride, const tt_real *weights, struct rows rows, const struct tile *tile,
                      int64_t dim)
{
    out += (tile->key - tile->origin) * stride;
    TT_LOOPS(sgemm)
    (&(struct tt_matmul){.trans_a = true,
                         .m = tile->keys,
                         .n = dim,
                         .k = tile->rows,
                         .a = weights,
                         .lda = tile->width,
                         .b = rows.x,
                         .ldb = rows.stride,
                         .acc = out,
                         .c = out,
                         .ldc = stride});
}

/* delta[r] = dot(do, o) of each row. */
static void row_dots(tt_real *delta, const element *dout, const element *o, const struct tile *tile,
                     const struct tt_attention_shape *shape)
{
    for (int64_t r = 0; r < tile->rows; r++) {
        int64_t dim = tt_attention_value_dim(shape), i = 0;
        int64_t at = (tile->row - shape->begin + r) * shape->heads * dim;
        tt_real lane[TT_LANES] = {0.0F};

        for (; i + TT_LANES <= dim; i += TT_LANES) {
            for (int l = 0; l < TT_LANES; l++)
                lane[l] += value_of(dout[at + i + l]) * value_of(o[at + i + l]);
        }
        for (int l = 0; i + l < dim; l++)
            lane[l] += value_of(dout[at + i + l]) * value_of(o[at + i + l]);
        delta[r] = tt_lanes_sum(lane);
    }
}

/* Turns scores into probabilities and dp into the gradient of the scores, both in place; lse: one per row of the
 * tile. */
static void softmax_tile_bwd(tt_real *s, tt_real *dp, const struct tile *tile, tt_real scale, const tt_real *lse,
                             const tt_real *delta, const struct tt_attention_shape *shape)
{
    for (int64_t r = 0; r < tile->rows; r++, s += tile->width, dp += tile->width) {
        struct span seen = visible(tile, shape, r);
        tt_real shift = lse[r * shape->heads], mean = delta[r];

        if (shape->soft_cap > 0.0F) {
            tt_real cap = shape->soft_cap;

            TT_INDEPENDENT
            for (int64_t i = seen.begin; i < seen.end; i++) {
                tt_real t = tt_tanhf(scale / cap * s[i]), p = tt_expf(cap * t - shift);

                s[i] = p;
                dp[i] = scale * p * (dp[i] - mean) * (1.0F - t * t);
            }
        } else {
            TT_INDEPENDENT
            for (int64_t i = seen.begin; i < seen.end; i++) {
                tt_real p = tt_expf(scale * s[i] - shift);

                s[i] = p;
                dp[i] = scale * p * (dp[i] - mean);
            }
        }
        hide(s, tile, seen);
        hide(dp, tile, seen);
    }
}

static void clear_rows(tt_real *x, int64_t stride, int64_t rows, int64_t dim)
{
    for (int64_t r = 0; r < rows; r++)
        memset(x + r * stride, 0, (size_t)dim * sizeof *x);
}

/* Keys [first_key, end_key) of one query head; earlier rows and rows of later documents do not see them. */
static void head_bwd(const element_grads *head, const struct tt_attention_shape *shape, int64_t first_key,
                     int64_t end_key, tt_real *scratch)
{
    tt_real delta[TT_ATTENTION_ROWS], scale = tt_attention_scale(shape);
    int64_t dim = shape->head_dim, q_stride = shape->heads * dim;
    int64_t width = tt_attention_value_dim(shape), o_stride = shape->heads * width;
    struct tile tile = {.width = tile_width(shape->seq_len),
                        .k_stride = shape->kv_heads * dim,
                        .v_stride = shape->kv_heads * width,
                        .origin = first_key};
    tt_real *s = scratch, *dp = scratch + TT_ATTENTION_ROWS * tile.width;
    tt_real *wide_q = dp + TT_ATTENTION_ROWS * tile.width, *wide_dout = wide_q + TT_ATTENTION_ROWS * dim;
    tt_real *wide_k = wide_dout + TT_ATTENTION_ROWS * width, *wide_v = wide_k + tile.width * dim;

    for (tile.row = first_key > shape->begin ? first_key : shape->begin; tile.row < tt_attention_end(shape);
         tile.row += TT_ATTENTION_ROWS) {
        int64_t end = min64(tile.row + TT_ATTENTION_ROWS, tt_attention_end(shape));
        int64_t start = tt_attention_start(shape, tile.row), at = tile.row - shape->begin;
        struct rows q, dout;

        tile.rows = end - tile.row;
        q = rows_of(head->q + at * q_stride, q_stride, tile.rows, dim, wide_q);
        dout = rows_of(head->dout + at * o_stride, o_stride, tile.rows, width, wide_dout);
        row_dots(delta, head->dout, head->o, &tile, shape);
        tile.first_key = start > first_key ? start : first_key;
        if (tile.first_key >= min64(end, end_key))
            clear_rows(head->dq + at * q_stride, q_stride, tile.rows, dim);
        for (tile.key = tile.first_key; tile.key < min64(end, end_key); tile.key += TT_ATTENTION_KEYS) {
            struct rows k, v;

            tile.keys = min64(min64(end, end_key) - tile.key, TT_ATTENTION_KEYS);
            k = rows_of(head->k + tile.key * tile.k_stride, tile.k_stride, tile.keys, dim, wide_k);
            v = rows_of(head->v + tile.key * tile.v_stride, tile.v_stride, tile.keys, width, wide_v);
            tile_scores(s, q, k, &tile, dim);
            tile_scores(dp, dout, v, &tile, width);
            softmax_tile_bwd(s, dp, &tile, scale, head->lse + at * shape->heads, delta, shape);
            tile_rows(head->dq + at * q_stride, q_stride, dp, k, &tile, dim, tile.key > tile.first_key);
            tile_keys(head->dk, tile.k_stride, dp, q, &tile, dim);
            tile_keys(head->dv, tile.v_stride, s, dout, &tile, width);
        }
    }
}

void TT_TYPED(tt_attention_bwd, loops)(const element_grads *group, const struct tt_attention_shape *shape,
                                       int64_t heads, int64_t first_key, int64_t keys, tt_real *scratch)
{
    int64_t dim = shape->head_dim, width = tt_attention_value_dim(shape);
    element_grads head = *group;

    for (int64_t j = 0; j < keys; j++) {
        memset(group->dk + j * shape->kv_heads * dim, 0, (size_t)dim * sizeof *group->dk);
        memset(group->dv + j * shape->kv_heads * width, 0, (size_t)width * sizeof *group->dv);
    }
    for (int64_t h = 0; h < heads; h++) {
        head_bwd(&head, shape, first_key, first_key + keys, scratch);
        head.dq += dim;
        head.dout += width;
        head.q += dim;
        head.o += width;
        head.lse += 1;
    }
}

/* --- one row over cached keys and values: a row of k and of v is read once for all query heads that share it --- */

static tt_real attention_row_dot(const tt_real *a, const tt_real *b, int64_t n)
{
    tt_real lane[TT_LANES] = {0.0F};
    int64_t i = 0;

    for (; i + TT_LANES <= n; i += TT_LANES) {
        for (int l = 0; l < TT_LANES; l++)
            lane[l] += a[i + l] * b[i + l];
    }
    for (int l = 0; i + l < n; l++)
        lane[l] += a[i + l] * b[i + l];
    return tt_lanes_sum(lane);
}

/* n elements as floats: in place, or widened into scratch. */
static const tt_real *floats_of(const element *x, int64_t n, tt_real *scratch)
{
#ifdef TT_ELEMENT_BF16
    TT_LOOPS(bf16_widen)(scratch, x, n);
    return scratch;
#else
    (void)n, (void)scratch;
    return x;
#endif
}

/* Scratch: a row of scores per query head; for bfloat16 also the rows of q and of o, and one row of k or v. */
void TT_TYPED(tt_attention_row, loops)(element *o, const element *q, const element *k, const element *v,
                                       const struct tt_attention_shape *shape, int64_t keys, tt_real *scratch)
{
    int64_t heads = shape->heads / shape->kv_heads, dim = shape->head_dim;
    int64_t width = tt_attention_value_dim(shape), stride = tt_attention_value_stride(shape);
    tt_real scale = shape->soft_cap > 0.0F ? 1.0F : tt_attention_scale(shape), *wide = scratch + heads * keys;
    const tt_real *q_rows = floats_of(q, heads * dim, wide);
#ifdef TT_ELEMENT_BF16
    tt_real *sums = wide + heads * dim, *wide_row = sums + heads * width;
#else
    tt_real *sums = o, *wide_row = NULL;
#endif

    for (int64_t j = 0; j < keys; j++) {
        const tt_real *row = floats_of(k + j * dim, dim, wide_row);

        for (int64_t h = 0; h < heads; h++)
            scratch[h * keys + j] = attention_row_dot(q_rows + h * dim, row, dim);
    }
    for (int64_t h = 0; h < heads; h++) {
        tt_real *s = scratch + h * keys, largest, sum, share;

        if (shape->soft_cap > 0.0F)
            tt_row_cap(s, keys, tt_attention_scale(shape), shape->soft_cap);
        largest = scale * tt_row_max(s, keys);
        sum = tt_row_exp(s, keys, scale, largest);
        share = shape->sinks ? tt_add_sink(&largest, &sum, shape->sinks[h]) : 1.0F / sum;

        for (int64_t j = 0; j < keys; j++)
            s[j] *= share;
    }
    memset(sums, 0, (size_t)(heads * width) * sizeof *sums);
    for (int64_t j = 0; j < keys; j++) {
        const tt_real *row = floats_of(v + j * stride, width, wide_row);

        for (int64_t h = 0; h < heads; h++) {
            tt_real *out = sums + h * width, weight = scratch[h * keys + j];

            for (int64_t e = 0; e < width; e++)
                out[e] += weight * row[e];
        }
    }
#ifdef TT_ELEMENT_BF16
    TT_LOOPS(bf16_round)(o, sums, heads * width);
#endif
}

/* --- the gradient of the sinks --- */

static tt_real sinks_dot(const element *a, const element *b, int64_t n)
{
    tt_real lane[TT_LANES] = {0.0F};
    int64_t i = 0;

    for (; i + TT_LANES <= n; i += TT_LANES) {
        for (int l = 0; l < TT_LANES; l++)
            lane[l] += value_of(a[i + l]) * value_of(b[i + l]);
    }
    for (int l = 0; i + l < n; l++)
        lane[l] += value_of(a[i + l]) * value_of(b[i + l]);
    return tt_lanes_sum(lane);
}

void TT_TYPED(tt_sinks_bwd, loops)(tt_real *dsinks, const element *dout, const element *o, const tt_real *lse,
                                   const element *sinks, int64_t rows, int64_t heads, int64_t dim)
{
    memset(dsinks, 0, (size_t)heads * sizeof *dsinks);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++) {
            int64_t at = r * heads + h;

            dsinks[h] -= tt_expf(value_of(sinks[h]) - lse[at]) * sinks_dot(dout + at * dim, o + at * dim, dim);
        }
}

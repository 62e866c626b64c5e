/* SPDX-License-Identifier: MIT
 *
 * Causal attention in tiles of TT_ATTENTION_ROWS rows against TT_ATTENTION_KEYS keys, by matrix products.
 *
 * Tiles above the diagonal are not visited. Forward: the running maximum and sum of Milakov & Gimelshein (2018), the
 * output row is scaled when the maximum grows. Backward (Dao et al. 2022): p = exp(s - lse), dp = do v^T,
 * ds = p (dp - dot(do, o)), then dq += ds k, dk += ds^T q, dv += p^T do, query heads and their blocks in order.
 */
#include <math.h>
#include <string.h>

#include "core/kernels/blas.h"
#include "core/kernels/kernels.h"
#include "core/kernels/vector_math.h"

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The row length of a tile of scores; tiles of a short sequence are narrower. */
static int64_t tile_width(int64_t seq_len)
{
    return min64(seq_len, TT_ATTENTION_KEYS);
}

/* A tile: rows [row, row + rows) of a head against keys [key, key + keys). */
struct tile {
    int64_t row, rows, key, keys;
    int64_t width;    /* row length of the scores */
    int64_t k_stride; /* of rows of k and v */
};

/* The number of the tile's keys that its row r may see; 0 for rows above the first key. */
static int64_t visible(const struct tile *tile, int64_t r)
{
    int64_t n = min64(tile->row + r + 1 - tile->key, tile->keys);

    return n > 0 ? n : 0;
}

static void row_scale(float *x, int64_t n, float factor)
{
    for (int64_t i = 0; i < n; i++)
        x[i] *= factor;
}

/*
 * Turns the scores of a tile into weights exp(s - largest), with the largest score of the row so far. largest and sum
 * are per row. o is scaled to the new maximum, except for the first tile of keys, when it is undefined.
 */
static void softmax_tile(float *s, const struct tile *tile, float scale, float *largest, float *sum, float *o,
                         const struct tt_attention_shape *shape)
{
    for (int64_t r = 0; r < tile->rows; r++, s += tile->width) {
        int64_t n = visible(tile, r);
        float here = scale * tt_row_max(s, n), added;

        here = tile->key > 0 && largest[r] > here ? largest[r] : here;
        added = tt_row_exp(s, n, scale, here);
        memset(s + n, 0, (size_t)(tile->keys - n) * sizeof *s);
        if (tile->key > 0) {
            float shrink = tt_expf(largest[r] - here);

            row_scale(o + r * shape->heads * shape->head_dim, shape->head_dim, shrink);
            added += sum[r] * shrink;
        }
        largest[r] = here;
        sum[r] = added;
    }
}

/* scores = rows of q times rows of k, both from the tile's first. */
static void tile_scores(float *s, const float *q, const float *k, const struct tile *tile,
                        const struct tt_attention_shape *shape)
{
    int64_t q_stride = shape->heads * shape->head_dim, k_stride = tile->k_stride;

    tt_gemm_serial(&(struct tt_gemm){.trans_b = true,
                                     .m = tile->rows,
                                     .n = tile->keys,
                                     .k = shape->head_dim,
                                     .a = q + tile->row * q_stride,
                                     .lda = q_stride,
                                     .b = k + tile->key * k_stride,
                                     .ldb = k_stride,
                                     .c = s,
                                     .ldc = tile->width});
}

/* out (the tile's rows of o or dq) = [out +] weights times rows of kv. */
static void tile_rows(float *out, const float *weights, const float *kv, const struct tile *tile,
                      const struct tt_attention_shape *shape, bool add)
{
    int64_t q_stride = shape->heads * shape->head_dim, k_stride = tile->k_stride;

    out += tile->row * q_stride;
    tt_gemm_serial(&(struct tt_gemm){.m = tile->rows,
                                     .n = shape->head_dim,
                                     .k = tile->keys,
                                     .a = weights,
                                     .lda = tile->width,
                                     .b = kv + tile->key * k_stride,
                                     .ldb = k_stride,
                                     .acc = add ? out : NULL,
                                     .c = out,
                                     .ldc = q_stride});
}

/* out (the tile's keys of dk or dv) += weights^T times rows of q or do. */
static void tile_keys(float *out, const float *weights, const float *rows, const struct tile *tile,
                      const struct tt_attention_shape *shape)
{
    int64_t q_stride = shape->heads * shape->head_dim, k_stride = tile->k_stride;

    out += tile->key * k_stride;
    tt_gemm_serial(&(struct tt_gemm){.trans_a = true,
                                     .m = tile->keys,
                                     .n = shape->head_dim,
                                     .k = tile->rows,
                                     .a = weights,
                                     .lda = tile->width,
                                     .b = rows + tile->row * q_stride,
                                     .ldb = q_stride,
                                     .acc = out,
                                     .c = out,
                                     .ldc = k_stride});
}

void tt_attention_fwd_generic(float *o, float *lse, const float *q, const float *k, const float *v,
                              const struct tt_attention_shape *shape, int64_t first_row, int64_t rows, float *scratch)
{
    float largest[TT_ATTENTION_ROWS] = {0.0F}, sum[TT_ATTENTION_ROWS] = {0.0F};
    float scale = 1.0F / sqrtf((float)shape->head_dim);
    struct tile tile = {
        .row = first_row, .rows = rows, .width = tile_width(shape->seq_len), .k_stride = shape->head_dim};
    float *out = o + first_row * shape->heads * shape->head_dim;

    for (; tile.key < first_row + rows; tile.key += TT_ATTENTION_KEYS) {
        tile.keys = min64(first_row + rows - tile.key, TT_ATTENTION_KEYS);
        tile_scores(scratch, q, k, &tile, shape);
        softmax_tile(scratch, &tile, scale, largest, sum, out, shape);
        tile_rows(o, scratch, v, &tile, shape, tile.key > 0);
    }
    for (int64_t r = 0; r < rows; r++) {
        row_scale(out + r * shape->heads * shape->head_dim, shape->head_dim, 1.0F / sum[r]);
        lse[(first_row + r) * shape->heads] = largest[r] + logf(sum[r]);
    }
}

/* delta[r] = dot(do, o) of each row. */
static void row_dots(float *delta, const float *dout, const float *o, const struct tile *tile,
                     const struct tt_attention_shape *shape)
{
    for (int64_t r = 0; r < tile->rows; r++) {
        int64_t at = (tile->row + r) * shape->heads * shape->head_dim, i = 0;
        float lane[TT_LANES] = {0.0F};

        for (; i + TT_LANES <= shape->head_dim; i += TT_LANES) {
            for (int l = 0; l < TT_LANES; l++)
                lane[l] += dout[at + i + l] * o[at + i + l];
        }
        for (int l = 0; i + l < shape->head_dim; l++)
            lane[l] += dout[at + i + l] * o[at + i + l];
        delta[r] = tt_lanes_sum(lane);
    }
}

/* Turns scores into probabilities and dp into the gradient of the scores, both in place; lse: of the tile's rows. */
static void softmax_tile_bwd(float *s, float *dp, const struct tile *tile, float scale, const float *lse,
                             const float *delta, const struct tt_attention_shape *shape)
{
    for (int64_t r = 0; r < tile->rows; r++, s += tile->width, dp += tile->width) {
        int64_t n = visible(tile, r);
        float shift = lse[r * shape->heads], mean = delta[r];

        TT_INDEPENDENT
        for (int64_t i = 0; i < n; i++) {
            float p = tt_expf(scale * s[i] - shift);

            s[i] = p;
            dp[i] = scale * p * (dp[i] - mean);
        }
        memset(s + n, 0, (size_t)(tile->keys - n) * sizeof *s);
        memset(dp + n, 0, (size_t)(tile->keys - n) * sizeof *dp);
    }
}

/* Keys [first_key, end_key) of one query head; rows above them see none. */
static void head_bwd(const struct tt_attention_grads *head, const struct tt_attention_shape *shape, int64_t first_key,
                     int64_t end_key, float *scratch)
{
    float delta[TT_ATTENTION_ROWS], scale = 1.0F / sqrtf((float)shape->head_dim);
    struct tile tile = {.width = tile_width(shape->seq_len), .k_stride = shape->kv_heads * shape->head_dim};
    float *s = scratch, *dp = scratch + TT_ATTENTION_ROWS * tile.width;

    for (tile.row = first_key; tile.row < shape->seq_len; tile.row += TT_ATTENTION_ROWS) {
        int64_t end = min64(tile.row + TT_ATTENTION_ROWS, shape->seq_len);

        tile.rows = end - tile.row;
        row_dots(delta, head->dout, head->o, &tile, shape);
        for (tile.key = first_key; tile.key < min64(end, end_key); tile.key += TT_ATTENTION_KEYS) {
            tile.keys = min64(min64(end, end_key) - tile.key, TT_ATTENTION_KEYS);
            tile_scores(s, head->q, head->k, &tile, shape);
            tile_scores(dp, head->dout, head->v, &tile, shape);
            softmax_tile_bwd(s, dp, &tile, scale, head->lse + tile.row * shape->heads, delta, shape);
            tile_rows(head->dq, dp, head->k, &tile, shape, tile.key > first_key);
            tile_keys(head->dk, dp, head->q, &tile, shape);
            tile_keys(head->dv, s, head->dout, &tile, shape);
        }
    }
}

void tt_attention_bwd_generic(const struct tt_attention_grads *group, const struct tt_attention_shape *shape,
                              int64_t heads, int64_t first_key, int64_t keys, float *scratch)
{
    struct tt_attention_grads head = *group;
    size_t bytes = (size_t)shape->head_dim * sizeof *group->dk;

    for (int64_t j = first_key; j < first_key + keys; j++) {
        memset(group->dk + j * shape->kv_heads * shape->head_dim, 0, bytes);
        memset(group->dv + j * shape->kv_heads * shape->head_dim, 0, bytes);
    }
    for (int64_t h = 0; h < heads; h++) {
        head_bwd(&head, shape, first_key, first_key + keys, scratch);
        head.dq += shape->head_dim;
        head.dout += shape->head_dim;
        head.q += shape->head_dim;
        head.o += shape->head_dim;
        head.lse += 1;
    }
}

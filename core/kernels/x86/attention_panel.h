/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_X86_ATTENTION_PANEL_H
#define TT_CORE_KERNELS_X86_ATTENTION_PANEL_H

/**
 * Causal attention forward (method: Milakov & Gimelshein 2018, Dao et al. 2022), in float32 or with products of pairs
 * of bfloat16 (product.h). Everything else is float32 in both.
 *
 * The lanes of a vector are query rows: a panel is PANEL rows of a head. With q transposed once per panel, both
 * products read k and v one element at a time, and maximum, sum and rescaling need no operation across lanes. A block
 * of keys goes through scores^T = k q^T, weights^T = 2^(scores - maximum), o^T += v^T weights^T; the scale and log2(e)
 * are multiplied into q, or into the scores of bfloat16. Keys beyond a vector's last row are not visited, nor those
 * before the documents of all rows; only the square on the diagonal is masked, and keys before the last row's document.
 */
#include <float.h>
#include <math.h>

#include "core/kernels/x86/product.h"

enum { KEYS = TT_ATTENTION_BLOCK };
_Static_assert(PANEL <= TT_ATTENTION_PANEL && TT_ATTENTION_ROWS % PANEL == 0, "scratch, tiles");

static const float LOG2_E = 0x1.715476p+0F, LN_2 = 0x1.62e430p-1F;

/* Of scores in powers of 2. */
VF_INLINE float score_scale(const struct tt_attention_shape *shape)
{
    return shape->scale > 0.0F ? LOG2_E * shape->scale : LOG2_E / sqrtf((float)shape->head_dim);
}

struct panel {
    const struct tt_attention_shape *shape;
    int64_t row, rows;             /* of the sequence; rows <= PANEL */
    int64_t first_key;             /* that the panel's first row sees */
    int64_t dim;                   /* of v and o */
    int64_t key_dim;               /* of q and k */
    int64_t depth;                 /* key_dim, or pairs of it: elements of a row of k */
    int64_t v_step;                /* elements of a row of v */
    float scale;                   /* of the scores of bfloat16 */
    product_type *qt;              /* (depth, PANEL) */
    float *ot;                     /* (dim, PANEL) */
    float *weights;                /* (KEYS, PANEL) */
    product_type *factors;         /* weights, or pairs of them along the keys */
    float *largest, *sum, *shrink; /* PANEL: the maximum in powers of 2 */
};

/* Before the first keys. A finite maximum stays one if a row sees no key of a block. */
static void panel_begin(struct panel *panel)
{
    panel->first_key = tt_attention_start(panel->shape, panel->row);
    for (int64_t i = 0; i < panel->dim * PANEL; i += VF_LANES)
        vf_store(panel->ot + i, vf_zero());
    for (int64_t v = 0; v < PANEL; v += VF_LANES) {
        vf_store(panel->largest + v, vf_set(-FLT_MAX));
        vf_store(panel->sum + v, vf_zero());
    }
}

VF_INLINE int64_t product_elements(int64_t n)
{
    return (n + PRODUCT_STEP - 1) / PRODUCT_STEP;
}

#if defined(__AVX512BF16__)

VF_INLINE vf scaled(const float *s, vf scale)
{
    return vf_mul(scale, vf_load(s));
}

/* Weights of n keys from `key` on, an even number, and of the vectors from `first` on, as pairs of bfloat16. */
static void pack_weights(struct panel *panel, int64_t key, int64_t n, int64_t first)
{
    for (int64_t j = 0; j < n; j += 2) {
        const float *s = panel->weights + (key + j) * PANEL;

        for (int64_t v = first * VF_LANES; v < PANEL; v += VF_LANES)
            vp_store(panel->factors + (key + j) * PANEL + v * PRODUCT_STEP,
                     vp_pairs(vf_load(s + v), j + 1 < n ? vf_load(s + PANEL + v) : vf_zero()));
    }
}

#else

VF_INLINE vf scaled(const float *s, vf scale)
{
    (void)scale;
    return vf_load(s);
}

VF_INLINE void pack_weights(struct panel *panel, int64_t key, int64_t n, int64_t first)
{
    (void)panel, (void)key, (void)n, (void)first;
}

#endif

/* The largest of n scores of the rows of one vector and of `first`. */
static vf column_max(const float *s, int64_t n, vf scale, vf first)
{
    vf a = first, b = first;
    int64_t j = 0;

    for (; j + 2 <= n; j += 2, s += 2 * PANEL) {
        a = vf_max(a, scaled(s, scale));
        b = vf_max(b, scaled(s + PANEL, scale));
    }
    if (j < n)
        a = vf_max(a, scaled(s, scale));
    return vf_max(a, b);
}

/* Scores of one vector of rows into weights; returns their sum. */
static vf column_weights(float *s, int64_t n, vf scale, vf largest)
{
    vf a = vf_zero(), b = vf_zero();
    int64_t j = 0;

    for (; j + 2 <= n; j += 2, s += 2 * PANEL) {
        vf x = vf_exp2_low(vf_sub(scaled(s, scale), largest));
        vf y = vf_exp2_low(vf_sub(scaled(s + PANEL, scale), largest));

        vf_store(s, x);
        vf_store(s + PANEL, y);
        a = vf_add(a, x);
        b = vf_add(b, y);
    }
    if (j < n) {
        vf x = vf_exp2_low(vf_sub(scaled(s, scale), largest));

        vf_store(s, x);
        a = vf_add(a, x);
    }
    return vf_add(a, b);
}

/* Vector v of the panel sees the first n keys of the block. When the maximum grows, the sums so far are scaled down. */
static void softmax(struct panel *panel, int64_t v, int64_t n)
{
    int64_t at = v * VF_LANES;
    vf before = vf_load(panel->largest + at), scale = vf_set(panel->scale);
    vf largest = column_max(panel->weights + at, n, scale, before);
    vf shrink = vf_exp2_low(vf_sub(before, largest)), sum = column_weights(panel->weights + at, n, scale, largest);

    vf_store(panel->largest + at, largest);
    vf_store(panel->sum + at, vf_fma(vf_load(panel->sum + at), shrink, sum));
    vf_store(panel->shrink + at, shrink);
}

static void rescale(struct panel *panel)
{
    vf shrink[PRODUCT_VECTORS];

    for (int64_t v = 0; v < PRODUCT_VECTORS; v++)
        shrink[v] = vf_load(panel->shrink + v * VF_LANES);
    for (int64_t e = 0; e < panel->dim; e++) {
        for (int64_t v = 0; v < PRODUCT_VECTORS; v++) {
            float *o = panel->ot + e * PANEL + v * VF_LANES;

            vf_store(o, vf_mul(shrink[v], vf_load(o)));
        }
    }
}

/* Masks the scores of n keys from `key` on, row `at` of the weights, for rows whose documents begin after them. */
static void mask_documents(struct panel *panel, int64_t key, int64_t at, int64_t n)
{
    float *s = panel->weights + at * PANEL;
    int64_t seen = 0; /* rows that see the key: the first ones */

    if (tt_attention_start(panel->shape, panel->row + panel->rows - 1) <= key)
        return;
    for (int64_t j = 0; j < n; j++, s += PANEL) {
        while (seen < panel->rows && tt_attention_start(panel->shape, panel->row + seen) <= key + j)
            seen++;
        for (int64_t v = 0; v < PANEL; v += VF_LANES)
            vf_store(s + v, vf_select(vf_first(seen - v), vf_load(s + v), vf_set(-INFINITY)));
    }
}

/* Keys from `key` on that no row of the panel is above; k and v: their first elements. */
static void block_below(struct panel *panel, const product_type *k, const product_type *v, int64_t key, int64_t keys)
{
    product_rows(panel->weights, PANEL, k, panel->depth, panel->qt, PANEL, keys, PRODUCT_VECTORS, panel->depth);
    mask_documents(panel, key, 0, keys);
    for (int64_t i = 0; i < PRODUCT_VECTORS; i++)
        softmax(panel, i, keys);
    if (key > panel->first_key)
        rescale(panel);
    pack_weights(panel, 0, keys, 0);
    product_columns_add(panel->ot, PANEL, v, panel->v_step, panel->factors, PANEL, panel->dim, PRODUCT_VECTORS,
                        product_elements(keys));
}

/* Masks the scores in the square on the diagonal that vector v must not see. */
static void mask(struct panel *panel, int64_t v, int64_t n)
{
    float *s = panel->weights + (v * VF_LANES) * PANEL + v * VF_LANES;

    for (int64_t j = 1; j < n && j < VF_LANES; j++)
        vf_store(s + j * PANEL, vf_select(vf_first(j), vf_set(-INFINITY), vf_load(s + j * PANEL)));
}

/* The keys of the panel's own rows: key group g is seen by the vectors from g on. */
static void block_diagonal(struct panel *panel, const product_type *k, const product_type *v)
{
    for (int64_t g = 0; g * VF_LANES < panel->rows; g++) {
        int64_t at = g * VF_LANES, left = panel->rows - at, n = left < VF_LANES ? left : VF_LANES;

        product_rows(panel->weights + at * PANEL + at, PANEL, k + at * panel->depth * PRODUCT_STEP, panel->depth,
                     panel->qt + at * PRODUCT_STEP, PANEL, n, (int)(PRODUCT_VECTORS - g), panel->depth);
        mask(panel, g, n);
        mask_documents(panel, panel->row + at, at, n);
    }
    for (int64_t g = 0; g < PRODUCT_VECTORS; g++) {
        int64_t seen = (g + 1) * VF_LANES;

        softmax(panel, g, seen < panel->rows ? seen : panel->rows);
    }
    if (panel->row > panel->first_key)
        rescale(panel);
    for (int64_t g = 0; g * VF_LANES < panel->rows; g++) {
        int64_t at = g * VF_LANES, left = panel->rows - at, n = left < VF_LANES ? left : VF_LANES;

        pack_weights(panel, at, n, g);
        product_columns_add(panel->ot + at, PANEL, v + at * panel->v_step, panel->v_step,
                            panel->factors + at * PANEL + at * PRODUCT_STEP, PANEL, panel->dim,
                            (int)(PRODUCT_VECTORS - g), product_elements(n));
    }
}

/* The sink of the head: the maximum and the sum include it. Returns what the vector's weights are multiplied by. */
static vf add_sink(struct panel *panel, int64_t v)
{
    vf before = vf_load(panel->largest + v * VF_LANES), sink = vf_set(LOG2_E * panel->shape->sinks[0]);
    vf largest = vf_max(before, sink), shrink = vf_exp2_low(vf_sub(before, largest));
    vf sum = vf_fma(vf_load(panel->sum + v * VF_LANES), shrink, vf_exp2_low(vf_sub(sink, largest)));

    vf_store(panel->largest + v * VF_LANES, largest);
    vf_store(panel->sum + v * VF_LANES, sum);
    return vf_div(shrink, sum);
}

/* o^T as the result, and the rows' lse. */
static void panel_end(struct panel *panel, float *lse, int64_t lse_stride)
{
    for (int64_t v = 0; v < PRODUCT_VECTORS; v++) {
        vf share = panel->shape->sinks ? add_sink(panel, v) : vf_div(vf_set(1.0F), vf_load(panel->sum + v * VF_LANES));

        vf_store(panel->shrink + v * VF_LANES, share);
    }
    rescale(panel);
    for (int64_t r = 0; r < panel->rows; r++)
        lse[r * lse_stride] = panel->largest[r] * LN_2 + logf(panel->sum[r]);
}

#endif

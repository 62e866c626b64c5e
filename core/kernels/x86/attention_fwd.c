/* SPDX-License-Identifier: MIT
 *
 * Causal attention forward in AVX2 or AVX-512 (method: Milakov & Gimelshein 2018, Dao et al. 2022).
 *
 * The lanes of a vector are query rows: a panel is PANEL rows of a head. With q transposed once per panel, both
 * products read k and v in place, one element at a time, and maximum, sum and rescaling need no operation across
 * lanes. A block of keys goes through scores^T = k q^T, weights^T = 2^(scores - maximum), o^T += v^T weights^T;
 * 1/sqrt(E) and log2(e) are multiplied into q. Keys beyond a vector's last row are not visited; only the square on the
 * diagonal is masked.
 */
#include <math.h>

#include "core/kernels/x86/product.h"
#include "core/kernels/x86/x86.h"

enum { KEYS = TT_ATTENTION_BLOCK };
_Static_assert(PANEL <= TT_ATTENTION_PANEL && TT_ATTENTION_ROWS % PANEL == 0, "scratch, tiles");

static const float LOG2_E = 0x1.715476p+0F, LN_2 = 0x1.62e430p-1F;

struct panel {
    int64_t row, rows; /* of the sequence; rows <= PANEL */
    int64_t dim;
    const float *k, *v;            /* (T, dim) */
    float *qt, *ot;                /* (dim, PANEL) */
    float *weights;                /* (KEYS, PANEL) */
    float *largest, *sum, *shrink; /* PANEL: the maximum in powers of 2 */
};

/* q^T times scale; the lanes beyond the last row are 0 and harmless. */
static void load_queries(struct panel *panel, const float *q, int64_t q_stride, float scale)
{
    int64_t n = panel->dim * PANEL;
    vf factor = vf_set(scale);

    if (panel->rows < PANEL) {
        for (int64_t i = 0; i < n; i += VF_LANES)
            vf_store(panel->qt + i, vf_zero());
    }
    transpose(panel->qt, PANEL, q, q_stride, panel->rows, panel->dim);
    for (int64_t i = 0; i < n; i += VF_LANES) {
        vf_store(panel->qt + i, vf_mul(factor, vf_load(panel->qt + i)));
        vf_store(panel->ot + i, vf_zero());
    }
    for (int64_t v = 0; v < PANEL; v += VF_LANES) {
        vf_store(panel->largest + v, vf_set(-INFINITY));
        vf_store(panel->sum + v, vf_zero());
    }
}

/* The largest of n scores of the rows of one vector and of `first`. */
static vf column_max(const float *s, int64_t n, vf first)
{
    vf a = first, b = first;
    int64_t j = 0;

    for (; j + 2 <= n; j += 2, s += 2 * PANEL) {
        a = vf_max(a, vf_load(s));
        b = vf_max(b, vf_load(s + PANEL));
    }
    if (j < n)
        a = vf_max(a, vf_load(s));
    return vf_max(a, b);
}

/* Scores of one vector of rows into weights; returns their sum. */
static vf column_weights(float *s, int64_t n, vf largest)
{
    vf a = vf_zero(), b = vf_zero();
    int64_t j = 0;

    for (; j + 2 <= n; j += 2, s += 2 * PANEL) {
        vf x = vf_exp2_low(vf_sub(vf_load(s), largest)), y = vf_exp2_low(vf_sub(vf_load(s + PANEL), largest));

        vf_store(s, x);
        vf_store(s + PANEL, y);
        a = vf_add(a, x);
        b = vf_add(b, y);
    }
    if (j < n) {
        vf x = vf_exp2_low(vf_sub(vf_load(s), largest));

        vf_store(s, x);
        a = vf_add(a, x);
    }
    return vf_add(a, b);
}

/* Vector v of the panel sees the first n keys of the block. When the maximum grows, the sums so far are scaled down. */
static void softmax(struct panel *panel, int64_t v, int64_t n)
{
    int64_t at = v * VF_LANES;
    vf before = vf_load(panel->largest + at), largest = column_max(panel->weights + at, n, before);
    vf shrink = vf_exp2_low(vf_sub(before, largest)), sum = column_weights(panel->weights + at, n, largest);

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

/* Keys that every row of the panel sees. */
static void block_below(struct panel *panel, int64_t key, int64_t keys)
{
    int64_t dim = panel->dim;

    product_rows(panel->weights, PANEL, panel->k + key * dim, dim, panel->qt, PANEL, keys, PRODUCT_VECTORS, dim);
    for (int64_t v = 0; v < PRODUCT_VECTORS; v++)
        softmax(panel, v, keys);
    if (key > 0)
        rescale(panel);
    product_columns_add(panel->ot, PANEL, panel->v + key * dim, dim, panel->weights, PANEL, dim, PRODUCT_VECTORS, keys);
}

/* Masks the scores in the square on the diagonal that vector v must not see. */
static void mask(struct panel *panel, int64_t v, int64_t n)
{
    float *s = panel->weights + (v * VF_LANES) * PANEL + v * VF_LANES;

    for (int64_t j = 1; j < n && j < VF_LANES; j++)
        vf_store(s + j * PANEL, vf_select(vf_first(j), vf_set(-INFINITY), vf_load(s + j * PANEL)));
}

/* The keys of the panel's own rows: key group g is seen by the vectors from g on. */
static void block_diagonal(struct panel *panel)
{
    int64_t dim = panel->dim;
    const float *k = panel->k + panel->row * dim, *v = panel->v + panel->row * dim;

    for (int64_t g = 0; g * VF_LANES < panel->rows; g++) {
        int64_t at = g * VF_LANES, left = panel->rows - at, n = left < VF_LANES ? left : VF_LANES;

        product_rows(panel->weights + at * PANEL + at, PANEL, k + at * dim, dim, panel->qt + at, PANEL, n,
                     (int)(PRODUCT_VECTORS - g), dim);
        mask(panel, g, n);
    }
    for (int64_t g = 0; g < PRODUCT_VECTORS; g++) {
        int64_t seen = (g + 1) * VF_LANES;

        softmax(panel, g, seen < panel->rows ? seen : panel->rows);
    }
    if (panel->row > 0)
        rescale(panel);
    for (int64_t g = 0; g * VF_LANES < panel->rows; g++) {
        int64_t at = g * VF_LANES, left = panel->rows - at, n = left < VF_LANES ? left : VF_LANES;

        product_columns_add(panel->ot + at, PANEL, v + at * dim, dim, panel->weights + at * PANEL + at, PANEL, dim,
                            (int)(PRODUCT_VECTORS - g), n);
    }
}

static void store_rows(struct panel *panel, float *o, int64_t o_stride, float *lse, int64_t lse_stride)
{
    for (int64_t v = 0; v < PRODUCT_VECTORS; v++) {
        vf share = vf_div(vf_set(1.0F), vf_load(panel->sum + v * VF_LANES));

        vf_store(panel->shrink + v * VF_LANES, share);
    }
    rescale(panel);
    transpose(o, o_stride, panel->ot, PANEL, panel->dim, panel->rows);
    for (int64_t r = 0; r < panel->rows; r++)
        lse[r * lse_stride] = panel->largest[r] * LN_2 + logf(panel->sum[r]);
}

void TT_ISA(tt_attention_fwd)(float *o, float *lse, const float *q, const float *k, const float *v,
                              const struct tt_attention_shape *shape, int64_t first_row, int64_t rows, float *scratch)
{
    int64_t dim = shape->head_dim, q_stride = shape->heads * dim, end = first_row + rows;
    struct panel panel = {.dim = dim, .k = k, .v = v, .qt = scratch, .ot = scratch + dim * PANEL};

    panel.weights = panel.ot + dim * PANEL;
    panel.largest = panel.weights + KEYS * PANEL;
    panel.sum = panel.largest + PANEL;
    panel.shrink = panel.sum + PANEL;
    for (panel.row = first_row; panel.row < end; panel.row += PANEL) {
        panel.rows = end - panel.row < PANEL ? end - panel.row : PANEL;
        load_queries(&panel, q + panel.row * q_stride, q_stride, LOG2_E / sqrtf((float)dim));
        for (int64_t key = 0; key < panel.row; key += KEYS)
            block_below(&panel, key, panel.row - key < KEYS ? panel.row - key : KEYS);
        block_diagonal(&panel);
        store_rows(&panel, o + panel.row * q_stride, q_stride, lse + panel.row * shape->heads, shape->heads);
    }
}

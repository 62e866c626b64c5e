/* SPDX-License-Identifier: MIT
 *
 * Causal attention forward in bfloat16 by vdpbf16ps. k is read in place, v as pairs of neighbouring keys. The weights
 * are rounded to bfloat16 for the product with v; their sum is not.
 */
#include "core/kernels/x86/attention_panel.h"
#include "core/kernels/x86/element.h"
#include "core/kernels/x86/x86.h"

struct work {
    struct panel panel;
    tt_bf16 *k; /* (KEYS, depth) pairs: a copy, where an odd head has no room for its last pair */
    tt_bf16 *v; /* (KEYS / 2, v_step) pairs of keys */
    float *o;   /* (PANEL, dim) */
};

/* q^T as pairs; lanes beyond the last row are 0 and harmless. */
static void load_queries(struct panel *panel, const tt_bf16 *q, int64_t q_stride)
{
    for (int64_t r = 0; r < PANEL; r += EIGHT)
        pack_eight_rows(panel->qt + r * PRODUCT_STEP, PANEL, q + r * q_stride, q_stride, panel->rows - r,
                        panel->key_dim);
}

static const tt_bf16 *load_keys(struct work *work, const tt_bf16 *k, int64_t keys)
{
    int64_t dim = work->panel.key_dim, row = work->panel.depth * PRODUCT_STEP;

    if (row == dim)
        return k;
    for (int64_t j = 0; j < keys; j++) {
        memcpy(work->k + j * row, k + j * dim, (size_t)dim * sizeof *k);
        work->k[j * row + dim] = 0;
    }
    return work->k;
}

static const tt_bf16 *load_values(struct work *work, const tt_bf16 *v, int64_t keys)
{
    int64_t dim = work->panel.dim, stride = tt_attention_value_stride(work->panel.shape);

    for (int64_t j = 0; j < keys; j += 2) {
        const tt_bf16 *low = v + j * stride, *high = j + 1 < keys ? low + stride : NULL;

        for (int64_t e = 0; e < dim; e += VP_LANES)
            vp_store(work->v + j * work->panel.v_step + e * PRODUCT_STEP, interleave(low, high, e, dim - e));
    }
    return work->v;
}

static void store_rows(struct work *work, tt_bf16 *o, int64_t o_stride)
{
    int64_t dim = work->panel.dim;

    transpose(work->o, dim, work->panel.ot, PANEL, dim, work->panel.rows);
    for (int64_t r = 0; r < work->panel.rows; r++)
        for (int64_t e = 0; e < dim; e += VF_LANES)
            bf16_store_n(o + r * o_stride + e, vf_load_n(work->o + r * dim + e, dim - e), dim - e);
}

static void lay_out(struct work *work, float *scratch)
{
    struct panel *panel = &work->panel;

    panel->qt = (tt_bf16 *)(void *)scratch;
    panel->ot = scratch + panel->depth * PANEL;
    panel->weights = panel->ot + panel->dim * PANEL;
    panel->factors = (tt_bf16 *)(void *)(panel->weights + KEYS * PANEL);
    panel->largest = panel->weights + KEYS * PANEL + KEYS / 2 * PANEL;
    panel->sum = panel->largest + PANEL;
    panel->shrink = panel->sum + PANEL;
    work->v = (tt_bf16 *)(void *)(panel->shrink + PANEL);
    work->k = work->v + KEYS * panel->v_step;
    work->o = panel->shrink + PANEL + KEYS / 2 * panel->v_step + KEYS * panel->depth;
}

void TT_ISA(tt_attention_fwd_bf16)(tt_bf16 *o, float *lse, const tt_bf16 *q, const tt_bf16 *k, const tt_bf16 *v,
                                   const struct tt_attention_shape *shape, int64_t first_row, int64_t rows,
                                   float *scratch)
{
    int64_t dim = shape->head_dim, q_stride = shape->heads * dim, end = first_row + rows;
    int64_t width = tt_attention_value_dim(shape), o_stride = shape->heads * width;
    int64_t v_stride = tt_attention_value_stride(shape);
    struct work work = {.panel = {.shape = shape,
                                  .dim = width,
                                  .key_dim = dim,
                                  .depth = (dim + 1) / 2,
                                  .v_step = (width + VP_LANES - 1) / VP_LANES * VP_LANES,
                                  .scale = score_scale(shape)}};
    struct panel *panel = &work.panel;

    lay_out(&work, scratch);
    for (panel->row = first_row; panel->row < end; panel->row += PANEL) {
        int64_t at = panel->row - shape->begin;

        panel->rows = end - panel->row < PANEL ? end - panel->row : PANEL;
        load_queries(panel, q + at * q_stride, q_stride);
        panel_begin(panel);
        for (int64_t key = panel->first_key; key < panel->row; key += KEYS) {
            int64_t keys = panel->row - key < KEYS ? panel->row - key : KEYS;

            block_below(panel, load_keys(&work, k + key * dim, keys), load_values(&work, v + key * v_stride, keys), key,
                        keys);
        }
        block_diagonal(panel, load_keys(&work, k + panel->row * dim, panel->rows),
                       load_values(&work, v + panel->row * v_stride, panel->rows));
        panel_end(panel, lse + at * shape->heads, shape->heads);
        store_rows(&work, o + at * o_stride, o_stride);
    }
}

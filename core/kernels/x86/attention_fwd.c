/* SPDX-License-Identifier: MIT
 *
 * Causal attention forward in AVX2 or AVX-512, products in float32. Floats are read in place; blocks of bfloat16 are
 * widened first.
 */
#include "core/kernels/x86/attention_panel.h"
#include "core/kernels/x86/element.h"
#include "core/kernels/x86/x86.h"

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
    for (int64_t i = 0; i < n; i += VF_LANES)
        vf_store(panel->qt + i, vf_mul(factor, vf_load(panel->qt + i)));
}

#ifdef TT_ELEMENT_BF16

/* Widens rows into scratch. */
static const float *floats_of(float *to, const element *from, int64_t *stride, int64_t rows, int64_t dim)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t e = 0; e < dim; e += VF_LANES)
            vf_store_n(to + r * dim + e, element_load_n(from + r * *stride + e, dim - e), dim - e);
    *stride = dim;
    return to;
}

static void store_rows(const struct panel *panel, element *o, int64_t stride, float *scratch)
{
    int64_t dim = panel->dim;

    transpose(scratch, dim, panel->ot, PANEL, dim, panel->rows);
    for (int64_t r = 0; r < panel->rows; r++)
        for (int64_t e = 0; e < dim; e += VF_LANES)
            element_store_n(o + r * stride + e, vf_load_n(scratch + r * dim + e, dim - e), dim - e);
}

#else

VF_INLINE const float *floats_of(float *to, const element *from, const int64_t *stride, int64_t rows, int64_t dim)
{
    (void)to, (void)stride, (void)rows, (void)dim;
    return from;
}

VF_INLINE void store_rows(const struct panel *panel, element *o, int64_t stride, float *scratch)
{
    (void)scratch;
    transpose(o, stride, panel->ot, PANEL, panel->dim, panel->rows);
}

#endif

void TT_TYPED(tt_attention_fwd)(element *o, float *lse, const element *q, const element *k, const element *v,
                                const struct tt_attention_shape *shape, int64_t first_row, int64_t rows, float *scratch)
{
    int64_t dim = shape->head_dim, stride = shape->heads * dim, end = first_row + rows;
    struct panel panel = {
        .shape = shape, .dim = dim, .depth = dim, .v_step = dim, .qt = scratch, .ot = scratch + dim * PANEL};
    float *wide_k, *wide_v;

    panel.weights = panel.factors = panel.ot + dim * PANEL;
    panel.largest = panel.weights + KEYS * PANEL;
    panel.sum = panel.largest + PANEL;
    panel.shrink = panel.sum + PANEL;
    wide_k = panel.shrink + PANEL; /* also of rows of q and o */
    wide_v = wide_k + KEYS * dim;
    for (panel.row = first_row; panel.row < end; panel.row += PANEL) {
        int64_t q_stride = stride, k_stride = dim;
        const float *q_rows;

        panel.rows = end - panel.row < PANEL ? end - panel.row : PANEL;
        q_rows = floats_of(wide_k, q + panel.row * stride, &q_stride, panel.rows, dim);
        load_queries(&panel, q_rows, q_stride, LOG2_E / sqrtf((float)dim));
        panel_begin(&panel);
        for (int64_t key = panel.first_key; key < panel.row; key += KEYS) {
            int64_t keys = panel.row - key < KEYS ? panel.row - key : KEYS;

            block_below(&panel, floats_of(wide_k, k + key * dim, &k_stride, keys, dim),
                        floats_of(wide_v, v + key * dim, &k_stride, keys, dim), key, keys);
        }
        block_diagonal(&panel, floats_of(wide_k, k + panel.row * dim, &k_stride, panel.rows, dim),
                       floats_of(wide_v, v + panel.row * dim, &k_stride, panel.rows, dim));
        panel_end(&panel, lse + panel.row * shape->heads, shape->heads);
        store_rows(&panel, o + panel.row * stride, stride, wide_k);
    }
}

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
    int64_t n = panel->key_dim * PANEL;
    vf factor = vf_set(scale);

    if (panel->rows < PANEL) {
        for (int64_t i = 0; i < n; i += VF_LANES)
            vf_store(panel->qt + i, vf_zero());
    }
    transpose(panel->qt, PANEL, q, q_stride, panel->rows, panel->key_dim);
    for (int64_t i = 0; i < n; i += VF_LANES)
        vf_store(panel->qt + i, vf_mul(factor, vf_load(panel->qt + i)));
}

#ifdef TT_ELEMENT_BF16

/* Widens rows into scratch. */
static const float *floats_of(float *to, const element *from, int64_t stride, int64_t rows, int64_t dim)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t e = 0; e < dim; e += VF_LANES)
            vf_store_n(to + r * dim + e, element_load_n(from + r * stride + e, dim - e), dim - e);
    return to;
}

/* The distance of the rows that floats_of gives. */
VF_INLINE int64_t stride_of_floats(int64_t stride, int64_t dim)
{
    (void)stride;
    return dim;
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

VF_INLINE const float *floats_of(float *to, const element *from, int64_t stride, int64_t rows, int64_t dim)
{
    (void)to, (void)stride, (void)rows, (void)dim;
    return from;
}

VF_INLINE int64_t stride_of_floats(int64_t stride, int64_t dim)
{
    (void)dim;
    return stride;
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
    int64_t dim = shape->head_dim, q_stride = shape->heads * dim, end = first_row + rows;
    int64_t width = tt_attention_value_dim(shape), o_stride = shape->heads * width;
    int64_t v_stride = tt_attention_value_stride(shape);
    struct panel panel = {.shape = shape,
                          .dim = width,
                          .key_dim = dim,
                          .depth = dim,
                          .v_step = stride_of_floats(v_stride, width),
                          .qt = scratch,
                          .ot = scratch + dim * PANEL};
    float *wide_k, *wide_v;

    panel.weights = panel.factors = panel.ot + width * PANEL;
    panel.largest = panel.weights + KEYS * PANEL;
    panel.sum = panel.largest + PANEL;
    panel.shrink = panel.sum + PANEL;
    wide_k = panel.shrink + PANEL; /* also of rows of q and o */
    wide_v = wide_k + KEYS * (dim > width ? dim : width);
    for (panel.row = first_row; panel.row < end; panel.row += PANEL) {
        int64_t at = panel.row - shape->begin;

        panel.rows = end - panel.row < PANEL ? end - panel.row : PANEL;
        load_queries(&panel, floats_of(wide_k, q + at * q_stride, q_stride, panel.rows, dim),
                     stride_of_floats(q_stride, dim), score_scale(shape));
        panel_begin(&panel);
        for (int64_t key = panel.first_key; key < panel.row; key += KEYS) {
            int64_t keys = panel.row - key < KEYS ? panel.row - key : KEYS;

            block_below(&panel, floats_of(wide_k, k + key * dim, dim, keys, dim),
                        floats_of(wide_v, v + key * v_stride, v_stride, keys, width), key, keys);
        }
        block_diagonal(&panel, floats_of(wide_k, k + panel.row * dim, dim, panel.rows, dim),
                       floats_of(wide_v, v + panel.row * v_stride, v_stride, panel.rows, width));
        panel_end(&panel, lse + at * shape->heads, shape->heads);
        store_rows(&panel, o + at * o_stride, o_stride, wide_k);
    }
}

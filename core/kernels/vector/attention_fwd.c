/* SPDX-License-Identifier: MIT
 *
 * Causal attention forward. Products are in float32: floats are read in place, blocks of bfloat16
 * are widened first. With AVX512-BF16, the bfloat16 kernel uses vdpbf16ps: k is read in place, v as pairs of
 * neighbouring keys, and the weights are rounded to bfloat16 for the product with v, but their sum is not.
 * Everything else is float32 in both. The method: Milakov & Gimelshein 2018, Dao et al. 2022.
 *
 * The lanes of a vector are query rows: a panel is PANEL rows of a head. With q transposed once per panel, both
 * products read k and v one element at a time, and maximum, sum and rescaling need no operation across lanes. A block
 * of keys goes through scores^T = k q^T, weights^T = 2^(scores - maximum), o^T += v^T weights^T; the scale and log2(e)
 * are multiplied into q, or into the scores of bfloat16. Keys beyond a vector's last row are skipped, and so are keys
 * before the documents of all rows. Only the square on the diagonal, and keys before the last row's document, are
 * masked.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/kernels/vector/element.h"
#include "core/kernels/vector/product.h"
#include "core/kernels/vector/tanh.h"
#include "core/math/elementary.h"

enum { KEYS = TT_ATTENTION_BLOCK, VECTORS = 3 /* vectors of rows at a time */ };
_Static_assert(TT_ATTENTION_ROWS % PANEL == 0 && PANEL % (VECTORS * VF_LANES) == 0, "tiles");

static const float LOG2_E = 0x1.715476p+0F, LN_2 = 0x1.62e430p-1F;

/* The factor that turns scores into powers of 2 or, if they have a cap, into arguments of tanh. */
VF_INLINE float score_scale(const struct tt_attention_shape *shape)
{
    if (shape->soft_cap > 0.0F)
        return tt_attention_scale(shape) / shape->soft_cap;
    return shape->scale > 0.0F ? LOG2_E * shape->scale : LOG2_E / sqrtf((float)shape->head_dim);
}

struct panel {
    const struct tt_attention_shape *shape;
    int64_t row, rows;             /* of the sequence; rows <= PANEL */
    int64_t first_key;             /* the first key that the panel's first row sees */
    int64_t dim;                   /* width of a head of v and o */
    int64_t key_dim;               /* width of a head of q and k */
    int64_t depth;                 /* key_dim, or pairs of it: elements of a row of k */
    int64_t v_step;                /* elements of a row of v */
    float scale;                   /* factor of the scores of bfloat16 */
    float cap;                     /* cap of the scores, in powers of 2; 0: none */
    product_type *qt;              /* (depth, PANEL) */
    float *ot;                     /* (dim, PANEL) */
    float *weights;                /* (KEYS, PANEL) */
    product_type *factors;         /* the weights, or their pairs along the keys */
    float *largest, *sum, *shrink; /* PANEL: the maximum in powers of 2 */
};

/* The maximum before the first keys. It is finite, and stays so if a row sees no key of a block. */
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

/* Weights of n keys from `key` on, an even number, and of the rows from `first` on, as pairs of bfloat16. */
static void pack_weights(struct panel *panel, int64_t key, int64_t n, int64_t first)
{
    for (int64_t j = 0; j < n; j += 2) {
        const float *s = panel->weights + (key + j) * PANEL;

        for (int64_t v = first; v < PANEL; v += VF_LANES)
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

/* The largest of n scores of each row of `vectors` vectors and of `largest`, which it becomes: two chains of maxima for
 * each vector, which wait for each other's results less if there are several vectors. */
VF_INLINE void column_max(vf *largest, int vectors, const float *s, int64_t n, vf scale)
{
    vf other[VECTORS];
    int64_t j = 0;

    VF_UNROLL
    for (int v = 0; v < vectors; v++)
        other[v] = largest[v];
    for (; j + 2 <= n; j += 2, s += 2 * PANEL) {
        VF_UNROLL
        for (int v = 0; v < vectors; v++) {
            largest[v] = vf_max(largest[v], scaled(s + v * VF_LANES, scale));
            other[v] = vf_max(other[v], scaled(s + PANEL + v * VF_LANES, scale));
        }
    }
    VF_UNROLL
    for (int v = 0; v < vectors; v++) {
        if (j < n)
            largest[v] = vf_max(largest[v], scaled(s + v * VF_LANES, scale));
        largest[v] = vf_max(largest[v], other[v]);
    }
}

/* Turns the scores of one vector of rows into weights; returns their sum. */
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

/* The `vectors` vectors of rows from `at` on see the first n keys of the block. When the maximum grows, the sums so far
 * shrink. */
VF_INLINE void softmax(struct panel *panel, int64_t at, int vectors, int64_t n)
{
    vf scale = vf_set(panel->cap > 0.0F ? 1.0F : panel->scale), largest[VECTORS];

    VF_UNROLL
    for (int v = 0; v < vectors; v++)
        largest[v] = vf_load(panel->largest + at + v * VF_LANES);
    column_max(largest, vectors, panel->weights + at, n, scale);
    for (int v = 0; v < vectors; v++, at += VF_LANES) {
        vf shrink = vf_exp2_low(vf_sub(vf_load(panel->largest + at), largest[v]));
        vf sum = column_weights(panel->weights + at, n, scale, largest[v]);

        vf_store(panel->largest + at, largest[v]);
        vf_store(panel->sum + at, vf_fma(vf_load(panel->sum + at), shrink, sum));
        vf_store(panel->shrink + at, shrink);
    }
}

static void rescale(struct panel *panel)
{
    vf shrink[PANEL / VF_LANES];

    VF_UNROLL
    for (int64_t v = 0; v < PANEL / VF_LANES; v++)
        shrink[v] = vf_load(panel->shrink + v * VF_LANES);
    for (int64_t e = 0; e < panel->dim; e++) {
        VF_UNROLL
        for (int64_t v = 0; v < PANEL / VF_LANES; v++) {
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

/* Caps the scores of n keys, row `at` of the weights, and of the rows from `first` on. */
static void cap_scores(struct panel *panel, int64_t at, int64_t n, int64_t first)
{
    const vf cap = vf_set(panel->cap), scale = vf_set(panel->scale);

    for (float *s = panel->weights + at * PANEL; n > 0; n--, s += PANEL)
        for (int64_t v = first; v < PANEL; v += VF_LANES)
            vf_store(s + v, vf_mul(cap, vf_tanh(scaled(s + v, scale))));
}

/* Keys from `key` on that come after no row of the panel; k and v: their first elements. */
static void block_below(struct panel *panel, const product_type *k, const product_type *v, int64_t key, int64_t keys)
{
    product_rows(panel->weights, PANEL, k, panel->depth, panel->qt, PANEL, keys, PANEL, panel->depth);
    if (panel->cap > 0.0F)
        cap_scores(panel, 0, keys, 0);
    mask_documents(panel, key, 0, keys);
    for (int64_t at = 0; at < PANEL; at += VECTORS * VF_LANES)
        softmax(panel, at, VECTORS, keys);
    if (key > panel->first_key)
        rescale(panel);
    pack_weights(panel, 0, keys, 0);
    product_columns_add(panel->ot, PANEL, v, panel->v_step, panel->factors, PANEL, panel->dim, PANEL,
                        product_elements(keys));
}

/* Masks the scores of n keys in the square on the diagonal that the group of rows from `at` on must not see. */
static void mask(struct panel *panel, int64_t at, int64_t n)
{
    for (int64_t j = 1; j < n; j++) {
        float *s = panel->weights + (at + j) * PANEL + at;

        for (int64_t v = 0; v < GROUP; v += VF_LANES)
            vf_store(s + v, vf_select(vf_first(j - v), vf_set(-INFINITY), vf_load(s + v)));
    }
}

/* The keys of the panel's own rows: the same group of rows and later ones see a group of keys. */
static void block_diagonal(struct panel *panel, const product_type *k, const product_type *v)
{
    for (int64_t at = 0; at < panel->rows; at += GROUP) {
        int64_t left = panel->rows - at, n = left < GROUP ? left : GROUP;

        product_rows(panel->weights + at * PANEL + at, PANEL, k + at * panel->depth * PRODUCT_STEP, panel->depth,
                     panel->qt + at * PRODUCT_STEP, PANEL, n, PANEL - at, panel->depth);
        if (panel->cap > 0.0F)
            cap_scores(panel, at, n, at);
        mask(panel, at, n);
        mask_documents(panel, panel->row + at, at, n);
    }
    for (int64_t at = 0; at < PANEL; at += VF_LANES) {
        int64_t seen = at / GROUP * GROUP + GROUP;

        softmax(panel, at, 1, seen < panel->rows ? seen : panel->rows);
    }
    if (panel->row > panel->first_key)
        rescale(panel);
    for (int64_t at = 0; at < panel->rows; at += GROUP) {
        int64_t left = panel->rows - at, n = left < GROUP ? left : GROUP;

        pack_weights(panel, at, n, at);
        product_columns_add(panel->ot + at, PANEL, v + at * panel->v_step, panel->v_step,
                            panel->factors + at * PANEL + at * PRODUCT_STEP, PANEL, panel->dim, PANEL - at,
                            product_elements(n));
    }
}

/* The sink of the head: the maximum and the sum include it. Returns the factor for the weights of the vector of rows
 * from `at` on. */
static vf add_sink(struct panel *panel, int64_t at)
{
    vf before = vf_load(panel->largest + at), sink = vf_set(LOG2_E * panel->shape->sinks[0]);
    vf largest = vf_max(before, sink), shrink = vf_exp2_low(vf_sub(before, largest));
    vf sum = vf_fma(vf_load(panel->sum + at), shrink, vf_exp2_low(vf_sub(sink, largest)));

    vf_store(panel->largest + at, largest);
    vf_store(panel->sum + at, sum);
    return vf_div(shrink, sum);
}

/* Writes o^T as the result, and the rows' lse. */
static void panel_end(struct panel *panel, float *lse, int64_t lse_stride)
{
    for (int64_t at = 0; at < PANEL; at += VF_LANES) {
        vf share = panel->shape->sinks ? add_sink(panel, at) : vf_div(vf_set(1.0F), vf_load(panel->sum + at));

        vf_store(panel->shrink + at, share);
    }
    rescale(panel);
    for (int64_t r = 0; r < panel->rows; r++)
        lse[r * lse_stride] = panel->largest[r] * LN_2 + (float)tt_log((double)panel->sum[r]);
}

#if !defined(__AVX512BF16__)

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

/* The stride of the rows that floats_of returns. */
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
                          .cap = LOG2_E * shape->soft_cap,
                          .qt = scratch,
                          .ot = scratch + dim * PANEL};
    float *wide_k, *wide_v;

    panel.weights = panel.factors = panel.ot + width * PANEL;
    panel.largest = panel.weights + KEYS * PANEL;
    panel.sum = panel.largest + PANEL;
    panel.shrink = panel.sum + PANEL;
    wide_k = panel.shrink + PANEL; /* later, rows of q and o use this memory too */
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

#else

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
                                  .scale = score_scale(shape),
                                  .cap = LOG2_E * shape->soft_cap}};
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

#endif

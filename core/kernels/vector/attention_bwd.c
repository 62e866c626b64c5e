/* SPDX-License-Identifier: MIT
 *
 * Causal attention backward (method: Dao et al. 2022).
 *
 * The lanes of a vector are keys: a panel is PANEL keys of the call's range. k^T and v^T of the panel and the sums
 * dk^T, dv^T are vectors along keys; q and do are read an element at a time, a row's lse and dot(do, o) are one
 * number per row, and dq is summed as rows. A block of rows goes through p = 2^(q k^T - lse), ds = p (do v^T -
 * dot(do, o)), dv^T += do^T p, dk^T += q^T ds, dq += ds k. log2(e) times the scale of the scores is multiplied into
 * k^T, the scale into dq and dk at the end.
 *
 * AVX512-BF16 multiplies pairs of bfloat16 (product.h), so the summed dimension of each product is stored in pairs: q
 * and do along the head and along the rows, p along the rows, ds along the rows and along the keys, k along the keys. p
 * and ds are rounded to bfloat16 for the products; everything else is float32. The other instruction sets widen
 * bfloat16.
 *
 * Order of the sums: heads, strips of rows, panels of keys, blocks of rows. A strip's q and do are packed, because the
 * rows of a matrix with a power of two of columns would share few sets of the cache. Strips begin where panels do. If
 * the present rows begin later, the first strip contains earlier rows too, whose q and do are 0.
 */
#include <math.h>
#include <string.h>

#include "core/kernels/kernels.h"
#include "core/kernels/vector/element.h"
#include "core/kernels/vector/product.h"
#include "core/kernels/vector/tanh.h"

#ifdef TT_ELEMENT_BF16
typedef struct tt_attention_bf16_grads element_grads;
#else
typedef struct tt_attention_grads element_grads;
#endif

enum { STRIP = TT_ATTENTION_STRIP, BLOCK = TT_ATTENTION_BLOCK };
_Static_assert(STRIP % PANEL == 0, "a panel's diagonal");

static const float LOG2_E = 0x1.715476p+0F;

/* The elements of a head. */
struct width {
    int64_t dim, wide; /* and rounded up to whole vectors */
    int64_t depth;     /* dim, or pairs of it */
    int64_t across;    /* elements of a row of q_across or dout_across: dim, or wide */
};

struct work {
    const element_grads *head;
    struct width q, v; /* of heads of q and k, and of v and o */
    int64_t q_stride, k_stride, o_stride, v_stride, lse_stride, seq_len;
    const struct tt_attention_shape *shape;
    int64_t row, rows; /* the strip */
    int64_t missing;   /* rows of the strip before the first one that is present */
    float scale;
    product_type *q_rows, *dout;          /* (STRIP, depth) */
    product_type *q_across, *dout_across; /* q and dout, or pairs of rows of them (STRIP / 2, across) */
    float *dq;                            /* (STRIP, wide) */
    float *lse, *delta;                   /* (STRIP): lse in powers of 2 */
    product_type *kt, *vt, *k;            /* (depth, PANEL), (depth, PANEL), (PANEL or pairs, wide) */
    float *p, *ds;                        /* (BLOCK, PANEL) */
    product_type *p_across, *ds_across;   /* p and ds, or pairs of rows of them (BLOCK / 2, PANEL) */
    product_type *ds_along;               /* ds, or pairs along its rows (BLOCK, PANEL / 2) */
    float *wide_rows;                     /* (PANEL, dim): widened */
    float *dkt, *dvt;                     /* (panels of the range, dim, PANEL) */
};

#if !defined(__AVX512BF16__)
#ifdef TT_ELEMENT_BF16

VF_INLINE int64_t element_scratch(int64_t dim)
{
    return PANEL * dim;
}

static void copy_floats(float *to, const element *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += VF_LANES)
        vf_store_n(to + i, element_load_n(from + i, n - i), n - i);
}

static void transpose_floats(float *to, float *rows, const element *from, int64_t stride, int64_t n, int64_t dim)
{
    for (int64_t r = 0; r < n; r++)
        copy_floats(rows + r * dim, from + r * stride, dim);
    transpose(to, PANEL, rows, dim, n, dim);
}

#else

VF_INLINE int64_t element_scratch(int64_t dim)
{
    (void)dim;
    return 0;
}

VF_INLINE void copy_floats(float *to, const element *from, int64_t n)
{
    memcpy(to, from, (size_t)n * sizeof *to);
}

VF_INLINE void transpose_floats(float *to, float *rows, const element *from, int64_t stride, int64_t n, int64_t dim)
{
    (void)rows;
    transpose(to, PANEL, from, stride, n, dim);
}

#endif
#endif

/* The factor that turns scores into powers of 2 or, if they have a cap, into arguments of tanh. */
VF_INLINE float score_scale(const struct work *work)
{
    return work->shape->soft_cap > 0.0F ? work->scale / work->shape->soft_cap : work->scale * LOG2_E;
}

static void *take(float **scratch, int64_t floats)
{
    float *taken = *scratch;

    *scratch += floats;
    return taken;
}

/* Returns what follows. */
static float *lay_out(struct work *work, float *scratch)
{
    int64_t strip = work->seq_len < STRIP ? (work->seq_len + 15) / 16 * 16 : STRIP;

    work->q_rows = take(&scratch, strip * work->q.depth);
    work->dout = take(&scratch, strip * work->v.depth);
    work->dq = take(&scratch, strip * work->q.wide);
    work->lse = take(&scratch, strip);
    work->delta = take(&scratch, strip);
    work->kt = take(&scratch, PANEL * work->q.depth);
    work->vt = take(&scratch, PANEL * work->v.depth);
    work->k = take(&scratch, PANEL / PRODUCT_STEP * work->q.wide);
    work->p = take(&scratch, BLOCK * PANEL);
    work->ds = take(&scratch, BLOCK * PANEL);
#if defined(__AVX512BF16__)
    work->q_across = take(&scratch, strip / 2 * work->q.across);
    work->dout_across = take(&scratch, strip / 2 * work->v.across);
    work->p_across = take(&scratch, BLOCK / 2 * PANEL);
    work->ds_across = take(&scratch, BLOCK / 2 * PANEL);
    work->ds_along = take(&scratch, BLOCK * PANEL / 2);
#else
    work->q_across = work->q_rows;
    work->dout_across = work->dout;
    work->p_across = work->p;
    work->ds_across = work->ds_along = work->ds;
    work->wide_rows = take(&scratch, element_scratch(work->q.dim > work->v.dim ? work->q.dim : work->v.dim));
#endif
    return scratch;
}

#if defined(__AVX512BF16__)

/* Packs rows of q or dout of the strip, as pairs along the rows and across them. */
static void load_rows(const struct work *work, product_type *along, product_type *across, const element *from,
                      int64_t stride, const struct width *of)
{
    int64_t width = of->depth * PRODUCT_STEP, missing = work->missing;

    memset(along, 0, (size_t)(missing * width) * sizeof *along);
    for (int64_t r = missing; r < work->rows; r++) {
        along[(r + 1) * width - 1] = 0; /* of an odd head */
        memcpy(along + r * width, from + (r - missing) * stride, (size_t)of->dim * sizeof *from);
    }
    for (int64_t r = 0; r < work->rows; r += 2) {
        const element *low = r < missing ? NULL : from + (r - missing) * stride;
        const element *high = r + 1 < missing || r + 1 >= work->rows ? NULL : from + (r + 1 - missing) * stride;

        for (int64_t e = 0; e < of->dim; e += VP_LANES)
            vp_store(across + r * of->across + e * PRODUCT_STEP, interleave(low, high, e, of->dim - e));
    }
}

/* Keys beyond the sequence are 0; the mask hides them. */
static void load_panel(struct work *work, int64_t key, int64_t keys)
{
    const element *k = work->head->k + key * work->k_stride, *v = work->head->v + key * work->v_stride;

    for (int64_t j = 0; j < PANEL; j += EIGHT) {
        int64_t row = j < keys ? j : 0;

        pack_eight_rows(work->kt + j * PRODUCT_STEP, PANEL, k + row * work->k_stride, work->k_stride, keys - j,
                        work->q.dim);
        pack_eight_rows(work->vt + j * PRODUCT_STEP, PANEL, v + row * work->v_stride, work->v_stride, keys - j,
                        work->v.dim);
    }
    for (int64_t j = 0; j < PANEL; j += 2) {
        const element *low = j < keys ? k + j * work->k_stride : NULL;
        const element *high = j + 1 < keys ? k + (j + 1) * work->k_stride : NULL;

        for (int64_t e = 0; e < work->q.dim; e += VP_LANES)
            vp_store(work->k + j * work->q.wide + e * PRODUCT_STEP, interleave(low, high, e, work->q.dim - e));
    }
}

VF_INLINE vf score_of(const float *s, vf scale)
{
    return vf_mul(scale, vf_load(s));
}

/* Packs p and ds of n rows and of the first keys as pairs. */
static void pack_block(struct work *work, int64_t n, int64_t keys)
{
    for (int64_t r = 0; r < n; r += 2) {
        for (int64_t v = 0; v < keys; v += VF_LANES) {
            const float *p = work->p + r * PANEL + v, *ds = work->ds + r * PANEL + v;
            bool two = r + 1 < n;
            vf high = two ? vf_load(ds + PANEL) : vf_zero();
            int64_t to = r * PANEL + v * PRODUCT_STEP;

            vp_store(work->p_across + to, vp_pairs(vf_load(p), two ? vf_load(p + PANEL) : vf_zero()));
            vp_store(work->ds_across + to, vp_pairs(vf_load(ds), high));
            vp_store_half(work->ds_along + r * PANEL + v, vf_load(ds));
            if (two)
                vp_store_half(work->ds_along + (r + 1) * PANEL + v, high);
        }
    }
}

#else

/* Rows of q or dout of the strip. */
static void load_rows(const struct work *work, product_type *along, product_type *across, const element *from,
                      int64_t stride, const struct width *of)
{
    int64_t missing = work->missing;

    (void)across;
    memset(along, 0, (size_t)(missing * of->dim) * sizeof *along);
    for (int64_t r = missing; r < work->rows; r++)
        copy_floats(along + r * of->dim, from + (r - missing) * stride, of->dim);
}

/* Keys beyond the sequence are 0; the mask hides them. */
static void load_panel(struct work *work, int64_t key, int64_t keys)
{
    int64_t stride = work->k_stride, dim = work->q.dim, wide = work->q.wide;
    const element *k = work->head->k + key * stride, *v = work->head->v + key * work->v_stride;
    vf factor = vf_set(score_scale(work));

    if (keys < PANEL) {
        memset(work->kt, 0, (size_t)(PANEL * dim) * sizeof(float));
        memset(work->vt, 0, (size_t)(PANEL * work->v.dim) * sizeof(float));
    }
    if (keys < PANEL || wide > dim)
        memset(work->k, 0, (size_t)(PANEL * wide) * sizeof(float));
    transpose_floats(work->kt, work->wide_rows, k, stride, keys, dim);
    transpose_floats(work->vt, work->wide_rows, v, work->v_stride, keys, work->v.dim);
    for (int64_t j = 0; j < keys; j++)
        copy_floats(work->k + j * wide, k + j * stride, dim);
    for (int64_t i = 0; i < dim * PANEL; i += VF_LANES)
        vf_store(work->kt + i, vf_mul(factor, vf_load(work->kt + i)));
}

VF_INLINE vf score_of(const float *s, vf scale)
{
    (void)scale; /* it is already in the keys */
    return vf_load(s);
}

VF_INLINE void pack_block(struct work *work, int64_t n, int64_t keys)
{
    (void)work, (void)n, (void)keys;
}

#endif

static void load_strip(struct work *work)
{
    const element_grads *head = work->head;
    int64_t first = work->row + work->missing - work->shape->begin, dim = work->v.dim;

    load_rows(work, work->q_rows, work->q_across, head->q + first * work->q_stride, work->q_stride, &work->q);
    load_rows(work, work->dout, work->dout_across, head->dout + first * work->o_stride, work->o_stride, &work->v);
    for (int64_t r = 0; r < work->missing; r++)
        work->delta[r] = work->lse[r] = 0.0F;
    for (int64_t r = work->missing; r < work->rows; r++) {
        int64_t row = first + r - work->missing, at = row * work->o_stride, e = 0;
        vs sum = vs_zero();

        for (; e + VS_LANES <= dim; e += VS_LANES)
            sum = vs_fma(elements_load(head->dout + at + e), elements_load(head->o + at + e), sum);
        if (e < dim) {
            int64_t n = dim - e;

            sum = vs_fma(elements_load_n(head->dout + at + e, n), elements_load_n(head->o + at + e, n), sum);
        }
        work->delta[r] = vs_sum(sum);
        work->lse[r] = head->lse[row * work->lse_stride] * LOG2_E;
    }
    memset(work->dq, 0, (size_t)(work->rows * work->q.wide) * sizeof(float));
}

/* Row r of the block sees the first `keys` of the panel, or, where they end with the square on the diagonal, the first
 * r + 1 of the last group; but no keys before its document. key: the panel's first. */
VF_INLINE void softmax_of(struct work *work, int64_t key, int64_t first, int64_t n, int64_t keys, bool diagonal,
                          bool capped)
{
    const vf cap = vf_set(LOG2_E * work->shape->soft_cap), scale = vf_set(score_scale(work));

    for (int64_t r = 0; r < n; r++) {
        int64_t hidden = tt_attention_start(work->shape, work->row + first + r) - key;
        vf lse = vf_set(work->lse[first + r]), delta = vf_set(work->delta[first + r]);
        float *p = work->p + r * PANEL, *ds = work->ds + r * PANEL;

        for (int64_t v = 0; v < keys; v += VF_LANES, p += VF_LANES, ds += VF_LANES) {
            vf score = score_of(p, scale), part = capped ? vf_tanh(score) : vf_zero(), weight, slope;

            weight = vf_exp2_low(vf_sub(capped ? vf_mul(cap, part) : score, lse));
            slope = vf_mul(weight, vf_sub(vf_load(ds), delta));
            if (capped)
                slope = vf_mul(slope, vf_fnma(part, part, vf_set(1.0F)));
            if (diagonal && v >= keys - GROUP) {
                vmask seen = vf_first(r + 1 - (v - (keys - GROUP)));

                weight = vf_select(seen, weight, vf_zero());
                slope = vf_select(seen, slope, vf_zero());
            }
            if (v < hidden) {
                weight = vf_select(vf_first(hidden - v), vf_zero(), weight);
                slope = vf_select(vf_first(hidden - v), vf_zero(), slope);
            }
            vf_store(p, weight);
            vf_store(ds, slope);
        }
    }
}

static void softmax(struct work *work, int64_t key, int64_t first, int64_t n, int64_t keys, bool diagonal)
{
    if (work->shape->soft_cap > 0.0F)
        softmax_of(work, key, first, n, keys, diagonal, true);
    else if (diagonal)
        softmax_of(work, key, first, n, keys, true, false);
    else
        softmax_of(work, key, first, n, PANEL, false, false); /* the compiler unrolls this */
}

/* Rows first..first + n - 1 of the strip, n <= BLOCK, against the first `keys` of the panel. */
static void block(struct work *work, int64_t panel, int64_t key, int64_t first, int64_t n, int64_t keys, bool diagonal)
{
    const struct width *wq = &work->q, *wv = &work->v;
    int64_t pairs = (n + PRODUCT_STEP - 1) / PRODUCT_STEP;
    const product_type *q = work->q_rows + first * wq->depth * PRODUCT_STEP;
    const product_type *dout = work->dout + first * wv->depth * PRODUCT_STEP;

    product_rows(work->p, PANEL, q, wq->depth, work->kt, PANEL, n, keys, wq->depth);
    product_rows(work->ds, PANEL, dout, wv->depth, work->vt, PANEL, n, keys, wv->depth);
    softmax(work, key, first, n, keys, diagonal);
    pack_block(work, n, keys);
    product_columns_add(work->dvt + panel * wv->dim * PANEL, PANEL, work->dout_across + first * wv->across, wv->across,
                        work->p_across, PANEL, wv->dim, keys, pairs);
    product_columns_add(work->dkt + panel * wq->dim * PANEL, PANEL, work->q_across + first * wq->across, wq->across,
                        work->ds_across, PANEL, wq->dim, keys, pairs);
    product_rows_add(work->dq + first * wq->wide, wq->wide, work->ds_along, PANEL / PRODUCT_STEP, work->k, wq->wide, n,
                     wq->wide, keys / PRODUCT_STEP);
}

/* Whether the document of row `first` of the strip, and so of every later row, begins after the panel. */
static bool is_hidden(const struct work *work, int64_t key, int64_t first)
{
    return tt_attention_start(work->shape, work->row + first) >= key + PANEL;
}

/* Multiplies the strip's rows with a panel of keys: rows above it see nothing; the square on the diagonal is done in
 * groups. */
static void strip_panel(struct work *work, int64_t panel, int64_t key)
{
    int64_t first = key > work->row ? key - work->row : 0;

    if (key >= work->row) {
        for (int64_t at = 0; at < PANEL && first < work->rows; at += GROUP) {
            int64_t left = work->rows - first, n = left < GROUP ? left : GROUP;

            block(work, panel, key, first, n, at + GROUP, true);
            first += n;
        }
    }
    for (; first < work->rows && !is_hidden(work, key, first); first += BLOCK) {
        int64_t left = work->rows - first;

        block(work, panel, key, first, left < BLOCK ? left : BLOCK, PANEL, false);
    }
}

/* The start of a panel, at most the first row. */
static int64_t first_strip(const struct work *work, int64_t first_key)
{
    int64_t begin = work->shape->begin;

    return begin > first_key ? begin - (begin - first_key) % PANEL : first_key;
}

static void head_bwd(struct work *work, int64_t first_key, int64_t keys)
{
    int64_t begin = work->shape->begin, end = tt_attention_end(work->shape);

    for (work->row = first_strip(work, first_key); work->row < end; work->row += STRIP) {
        int64_t left = end - work->row;

        work->rows = left < STRIP ? left : STRIP;
        work->missing = begin > work->row ? begin - work->row : 0;
        load_strip(work);
        for (int64_t j = 0; j < keys && first_key + j < work->row + work->rows; j += PANEL) {
            if (is_hidden(work, first_key + j, 0))
                continue;
            load_panel(work, first_key + j, keys - j < PANEL ? keys - j : PANEL);
            strip_panel(work, j / PANEL, first_key + j);
        }
        for (int64_t r = work->missing; r < work->rows; r++) {
            float *to = work->head->dq + (work->row + r - begin) * work->q_stride;
            const float *dq = work->dq + r * work->q.wide;

            for (int64_t e = 0; e < work->q.dim; e += VF_LANES)
                vf_store_n(to + e, vf_mul(vf_set(work->scale), vf_load(dq + e)), work->q.dim - e);
        }
    }
}

/* Multiplies the sums of the panels by factor and stores them as rows of keys. */
static void store_keys(float *to, int64_t stride, float *sums, int64_t dim, int64_t keys, float factor)
{
    for (int64_t j = 0; j < keys; j += PANEL) {
        float *panel = sums + j * dim;

        for (int64_t i = 0; i < dim * PANEL; i += VF_LANES)
            vf_store(panel + i, vf_mul(vf_set(factor), vf_load(panel + i)));
        transpose(to + j * stride, stride, panel, PANEL, dim, keys - j < PANEL ? keys - j : PANEL);
    }
}

static struct width width_of(int64_t dim)
{
    int64_t wide = (dim + VF_LANES - 1) / VF_LANES * VF_LANES;

    return (struct width){dim, wide, (dim + PRODUCT_STEP - 1) / PRODUCT_STEP, PRODUCT_STEP == 1 ? dim : wide};
}

void TT_TYPED(tt_attention_bwd)(const element_grads *group, const struct tt_attention_shape *shape, int64_t heads,
                                int64_t first_key, int64_t keys, float *scratch)
{
    element_grads head = *group;
    int64_t dim = shape->head_dim, v_dim = tt_attention_value_dim(shape), panels = (keys + PANEL - 1) / PANEL;
    struct work work = {.head = &head,
                        .q = width_of(dim),
                        .v = width_of(v_dim),
                        .q_stride = shape->heads * dim,
                        .k_stride = shape->kv_heads * dim,
                        .o_stride = shape->heads * v_dim,
                        .v_stride = shape->kv_heads * v_dim,
                        .lse_stride = shape->heads,
                        .seq_len = shape->seq_len,
                        .shape = shape,
                        .scale = tt_attention_scale(shape)};

    work.dkt = lay_out(&work, scratch);
    work.dvt = work.dkt + panels * dim * PANEL;
    memset(work.dkt, 0, (size_t)(panels * (dim + v_dim) * PANEL) * sizeof(float));
    for (int64_t h = 0; h < heads; h++) {
        head_bwd(&work, first_key, keys);
        head.dq += dim;
        head.dout += v_dim;
        head.q += dim;
        head.o += v_dim;
        head.lse += 1;
    }
    store_keys(group->dk, work.k_stride, work.dkt, dim, keys, work.scale);
    store_keys(group->dv, work.v_stride, work.dvt, v_dim, keys, 1.0F);
}

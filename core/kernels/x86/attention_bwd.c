/* SPDX-License-Identifier: MIT
 *
 * Causal attention backward in AVX2 or AVX-512 (method: Dao et al. 2022).
 *
 * The lanes of a vector are keys: a panel is PANEL keys of the call's range. k^T and v^T of the panel and the sums
 * dk^T, dv^T are vectors along keys; q and do are read an element at a time, a row's lse and dot(do, o) are one
 * number per row, and dq is summed as rows. A block of rows goes through p = 2^(q k^T - lse), ds = p (do v^T -
 * dot(do, o)), dv^T += do^T p, dk^T += q^T ds, dq += ds k. log2(e) / sqrt(E) is multiplied into k^T, 1 / sqrt(E) into
 * dq and dk at the end.
 *
 * Order of the sums: heads, strips of rows, panels of keys, blocks of rows. A strip's q and do are packed, because the
 * rows of a matrix with a power of two of columns would share few sets of the cache.
 */
#include <math.h>
#include <string.h>

#include "core/kernels/x86/product.h"
#include "core/kernels/x86/x86.h"

enum { STRIP = TT_ATTENTION_STRIP, BLOCK = TT_ATTENTION_BLOCK };
_Static_assert(PANEL <= TT_ATTENTION_PANEL && STRIP % PANEL == 0, "scratch, and a panel's diagonal");

static const float LOG2_E = 0x1.715476p+0F;

struct work {
    const struct tt_attention_grads *head;
    int64_t dim, wide; /* head_dim, and rounded up to whole vectors */
    int64_t q_stride, k_stride, lse_stride, seq_len;
    int64_t row, rows; /* the strip */
    float scale;
    float *q, *dout;    /* (STRIP, dim) */
    float *dq;          /* (STRIP, wide) */
    float *lse, *delta; /* (STRIP): lse in powers of 2 */
    float *kt, *vt, *k; /* (dim, PANEL), (dim, PANEL), (PANEL, wide) */
    float *p, *ds;      /* (BLOCK, PANEL) */
    float *dkt, *dvt;   /* (panels of the range, dim, PANEL) */
};

static float *lay_out(struct work *work, float *scratch)
{
    float **const parts[] = {&work->q,  &work->dout, &work->dq, &work->lse, &work->delta,
                             &work->kt, &work->vt,   &work->k,  &work->p,   &work->ds};
    int64_t strip = work->seq_len < STRIP ? (work->seq_len + 15) / 16 * 16 : STRIP, dim = work->dim, wide = work->wide;
    const int64_t sizes[] = {strip * dim, strip * dim, strip * wide, strip,         strip,
                             PANEL * dim, PANEL * dim, PANEL * wide, BLOCK * PANEL, BLOCK * PANEL};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        *parts[i] = scratch;
        scratch += sizes[i];
    }
    return scratch;
}

static void load_strip(struct work *work)
{
    const struct tt_attention_grads *head = work->head;

    for (int64_t r = 0; r < work->rows; r++) {
        int64_t at = (work->row + r) * work->q_stride, e = 0;
        vf sum = vf_zero();

        memcpy(work->q + r * work->dim, head->q + at, (size_t)work->dim * sizeof(float));
        memcpy(work->dout + r * work->dim, head->dout + at, (size_t)work->dim * sizeof(float));
        for (; e + VF_LANES <= work->dim; e += VF_LANES)
            sum = vf_fma(vf_load(head->dout + at + e), vf_load(head->o + at + e), sum);
        if (e < work->dim) {
            int64_t n = work->dim - e;

            sum = vf_fma(vf_load_n(head->dout + at + e, n), vf_load_n(head->o + at + e, n), sum);
        }
        work->delta[r] = vf_sum(sum);
        work->lse[r] = head->lse[(work->row + r) * work->lse_stride] * LOG2_E;
    }
    memset(work->dq, 0, (size_t)(work->rows * work->wide) * sizeof(float));
}

/* Keys beyond the sequence are 0; the mask hides them. */
static void load_panel(struct work *work, int64_t key, int64_t keys)
{
    const float *k = work->head->k + key * work->k_stride, *v = work->head->v + key * work->k_stride;
    vf factor = vf_set(work->scale * LOG2_E);

    if (keys < PANEL) {
        memset(work->kt, 0, (size_t)(PANEL * work->dim) * sizeof(float));
        memset(work->vt, 0, (size_t)(PANEL * work->dim) * sizeof(float));
    }
    if (keys < PANEL || work->wide > work->dim)
        memset(work->k, 0, (size_t)(PANEL * work->wide) * sizeof(float));
    transpose(work->kt, PANEL, k, work->k_stride, keys, work->dim);
    transpose(work->vt, PANEL, v, work->k_stride, keys, work->dim);
    for (int64_t j = 0; j < keys; j++)
        memcpy(work->k + j * work->wide, k + j * work->k_stride, (size_t)work->dim * sizeof(float));
    for (int64_t i = 0; i < work->dim * PANEL; i += VF_LANES)
        vf_store(work->kt + i, vf_mul(factor, vf_load(work->kt + i)));
}

/* Row r of the block sees all nv vectors of keys, or, in the square at the end of vector nv - 1, its
 * first r + 1 lanes. */
static void softmax(struct work *work, int64_t first, int64_t n, int nv, bool diagonal)
{
    for (int64_t r = 0; r < n; r++) {
        vf lse = vf_set(work->lse[first + r]), delta = vf_set(work->delta[first + r]);
        float *p = work->p + r * PANEL, *ds = work->ds + r * PANEL;

        for (int64_t v = 0; v < nv; v++, p += VF_LANES, ds += VF_LANES) {
            vf weight = vf_exp2_low(vf_sub(vf_load(p), lse)), slope = vf_mul(weight, vf_sub(vf_load(ds), delta));

            if (diagonal && v == nv - 1) {
                weight = vf_select(vf_first(r + 1), weight, vf_zero());
                slope = vf_select(vf_first(r + 1), slope, vf_zero());
            }
            vf_store(p, weight);
            vf_store(ds, slope);
        }
    }
}

/* Rows first..first + n - 1 of the strip, n <= BLOCK, against the first nv vectors of the panel. */
static void block(struct work *work, int64_t panel, int64_t first, int64_t n, int nv, bool diagonal)
{
    int64_t dim = work->dim, vectors = work->wide / VF_LANES;
    const float *q = work->q + first * dim, *dout = work->dout + first * dim;

    product_rows(work->p, PANEL, q, dim, work->kt, PANEL, n, nv, dim);
    product_rows(work->ds, PANEL, dout, dim, work->vt, PANEL, n, nv, dim);
    softmax(work, first, n, nv, diagonal);
    product_columns_add(work->dvt + panel * dim * PANEL, PANEL, dout, dim, work->p, PANEL, dim, nv, n);
    product_columns_add(work->dkt + panel * dim * PANEL, PANEL, q, dim, work->ds, PANEL, dim, nv, n);
    for (int64_t v = 0; v < vectors;) {
        int64_t left = vectors - v, take = left == 4 ? 2 : left < PRODUCT_VECTORS ? left : PRODUCT_VECTORS;

        product_rows_add(work->dq + first * work->wide + v * VF_LANES, work->wide, work->ds, PANEL,
                         work->k + v * VF_LANES, work->wide, n, (int)take, nv * VF_LANES);
        v += take;
    }
}

/* The strip's rows against a panel of keys: rows above it see nothing, the square on the diagonal goes by vectors. */
static void strip_panel(struct work *work, int64_t panel, int64_t key)
{
    int64_t first = key > work->row ? key - work->row : 0;

    if (key >= work->row) {
        for (int64_t g = 0; g < PRODUCT_VECTORS && first < work->rows; g++) {
            int64_t left = work->rows - first, n = left < VF_LANES ? left : VF_LANES;

            block(work, panel, first, n, (int)g + 1, true);
            first += n;
        }
    }
    for (; first < work->rows; first += BLOCK) {
        int64_t left = work->rows - first;

        block(work, panel, first, left < BLOCK ? left : BLOCK, PRODUCT_VECTORS, false);
    }
}

static void head_bwd(struct work *work, int64_t first_key, int64_t keys)
{
    for (work->row = first_key; work->row < work->seq_len; work->row += STRIP) {
        int64_t left = work->seq_len - work->row;

        work->rows = left < STRIP ? left : STRIP;
        load_strip(work);
        for (int64_t j = 0; j < keys && first_key + j < work->row + work->rows; j += PANEL) {
            load_panel(work, first_key + j, keys - j < PANEL ? keys - j : PANEL);
            strip_panel(work, j / PANEL, first_key + j);
        }
        for (int64_t r = 0; r < work->rows; r++) {
            float *to = work->head->dq + (work->row + r) * work->q_stride;
            const float *dq = work->dq + r * work->wide;

            for (int64_t e = 0; e < work->dim; e += VF_LANES)
                vf_store_n(to + e, vf_mul(vf_set(work->scale), vf_load(dq + e)), work->dim - e);
        }
    }
}

/* Sums of the panels, times factor, into rows of keys. */
static void store_keys(const struct work *work, float *to, float *sums, int64_t keys, float factor)
{
    for (int64_t j = 0; j < keys; j += PANEL) {
        float *panel = sums + j * work->dim;

        for (int64_t i = 0; i < work->dim * PANEL; i += VF_LANES)
            vf_store(panel + i, vf_mul(vf_set(factor), vf_load(panel + i)));
        transpose(to + j * work->k_stride, work->k_stride, panel, PANEL, work->dim,
                  keys - j < PANEL ? keys - j : PANEL);
    }
}

void TT_ISA(tt_attention_bwd)(const struct tt_attention_grads *group, const struct tt_attention_shape *shape,
                              int64_t heads, int64_t first_key, int64_t keys, float *scratch)
{
    struct tt_attention_grads head = *group;
    int64_t dim = shape->head_dim, panels = (keys + PANEL - 1) / PANEL;
    struct work work = {.head = &head,
                        .dim = dim,
                        .wide = (dim + VF_LANES - 1) / VF_LANES * VF_LANES,
                        .q_stride = shape->heads * dim,
                        .k_stride = shape->kv_heads * dim,
                        .lse_stride = shape->heads,
                        .seq_len = shape->seq_len,
                        .scale = 1.0F / sqrtf((float)dim)};

    work.dkt = lay_out(&work, scratch);
    work.dvt = work.dkt + panels * dim * PANEL;
    memset(work.dkt, 0, (size_t)(2 * panels * dim * PANEL) * sizeof(float));
    for (int64_t h = 0; h < heads; h++) {
        head_bwd(&work, first_key, keys);
        head.dq += dim;
        head.dout += dim;
        head.q += dim;
        head.o += dim;
        head.lse += 1;
    }
    store_keys(&work, group->dk + first_key * work.k_stride, work.dkt, keys, work.scale);
    store_keys(&work, group->dv + first_key * work.k_stride, work.dvt, keys, 1.0F);
}

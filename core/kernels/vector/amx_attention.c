/* SPDX-License-Identifier: MIT
 *
 * Causal attention of bfloat16 by AMX (method: Dao et al. 2022). It computes what the kernels for AVX512-BF16 compute
 * (attention_fwd.c, attention_bwd.c): weights and the gradients of scores are rounded to bfloat16 for the products,
 * their sums are not, and everything else is float32. The lanes of a vector are keys in both passes.
 *
 * All matrices are arrays of tiles. A product that sums over keys or rows adds steps of 32 in order, beginning at keys
 * that are multiples of KEYS, or at the first key of the call. Keys that a row does not see add 0. So the bits of a row
 * of o, lse and dq, and of a key of dk and dv, do not depend on how the rows are divided into calls or blocks.
 *
 * Forward: a block of keys goes through scores = q k^T, weights = 2^(scores - maximum), o += weights v.
 *
 * Backward: a block of rows and a panel of keys go through p = 2^(q k^T - lse), ds = p (do v^T - dot(do, o)), dv^T +=
 * do^T p, dk^T += q^T ds, dq += ds k, where p and ds are computed in squares of 32 x 32. A strip of rows is packed once
 * for all panels, both along the heads and along the rows.
 */
#include <float.h>
#include <math.h>

#define TT_ELEMENT_BF16
#include "core/kernels/vector/amx_pack.h"
#include "core/kernels/vector/element.h"
#include "core/kernels/vector/tanh.h"
#include "core/math/elementary.h"

#define SUMS  INT64_C(256) /* floats of a tile */
#define KEYS  ((int64_t)TT_ATTENTION_TILE_KEYS)
#define PANEL INT64_C(64) /* keys of a panel (backward) */

static const float LOG2_E = 0x1.715476p+0F, LN_2 = 0x1.62e430p-1F;

/* The width of a head of q and k, or of v and o. */
struct width {
    int64_t dim, tiles; /* elements, and the number of tiles of 16 elements */
    int64_t steps;      /* number of steps of 32, in a product that sums over the elements */
};

static struct width width_of(int64_t dim)
{
    return (struct width){dim, tt_div_up(dim, LINES), tt_div_up(dim, STEP)};
}

static void *take(float **scratch, int64_t n)
{
    float *taken = *scratch;

    *scratch += n;
    return taken;
}

static void *take_tiles(float **scratch, int64_t tiles)
{
    return take(scratch, tiles * TILE / 2);
}

/* The factor that turns scores into powers of 2 or, if they have a cap, into arguments of tanh. */
static float score_scale(const struct tt_attention_shape *shape)
{
    return shape->soft_cap > 0.0F ? tt_attention_scale(shape) / shape->soft_cap : tt_attention_scale(shape) * LOG2_E;
}

/* The keys that a row sees, among at most n keys from `key` on: [begin, end). */
struct seen {
    int64_t begin, end;
};

static struct seen seen_by(const struct tt_attention_shape *shape, int64_t row, int64_t key, int64_t n)
{
    return (struct seen){tt_attention_start(shape, row) - key, up_to(row + 1 - key, n)};
}

/* x for keys from `at` on that the row sees, else y. */
VF_INLINE vs where_seen(struct seen seen, int64_t at, vs x, vs y)
{
    return vs_select_first(seen.begin - at, y, vs_select_first(seen.end - at, x, y));
}

VF_INLINE vs vs_exp2_low(vs a)
{
    VS_EACH(i) a.part[i] = vf_exp2_low(a.part[i]);
    return a;
}

VF_INLINE float exp2_low(float x)
{
    float lanes[VF_LANES];

    vf_store(lanes, vf_exp2_low(vf_set(x)));
    return lanes[0];
}

VF_INLINE vs vs_tanh(vs a)
{
    VS_EACH(i) a.part[i] = vf_tanh(a.part[i]);
    return a;
}

/* 32 floats as bfloat16. Denormal results may become 0, since products treat them as 0. */
VF_INLINE v_halves rounded(vs low, vs high)
{
#if defined(__AVX512BF16__)
    return (v_halves)_mm512_cvtne2ps_pbh(high.part[0], low.part[0]);
#else
    tt_bf16 x[2 * VS_LANES];
    v_halves both;

    VS_EACH(i)
    {
        vh_store(x + i * VF_LANES, vh_rounded(low.part[i]));
        vh_store(x + VS_LANES + i * VF_LANES, vh_rounded(high.part[i]));
    }
    memcpy(&both, x, sizeof both);
    return both;
#endif
}

/* --- products --- */

/* The tiles of an operand: the next 16 lines are `line` elements after a tile, the next step of k `step` elements. */
struct side {
    const tt_bf16 *tiles;
    int64_t line, step;
};

/* Callers pass the numbers of tiles of rows and of columns, 1 or 2, as constants. */
INLINE void multiply_tiles(float *c, int64_t c_row, struct side a, struct side b, int rows, int columns, int64_t steps,
                           bool add)
{
    const tt_bf16 *lower = a.tiles + a.line, *right = b.tiles + b.line;

    if (add) {
        TILE_LOAD(0, c);
        if (columns > 1)
            TILE_LOAD(1, c + SUMS);
        if (rows > 1)
            TILE_LOAD(2, c + c_row);
        if (rows > 1 && columns > 1)
            TILE_LOAD(3, c + c_row + SUMS);
    } else {
        zero_sums(rows, columns);
    }
    for (; steps > 0; steps--) {
        multiply_step(a.tiles, lower, b.tiles, right, rows, columns);
        a.tiles += a.step;
        lower += a.step;
        b.tiles += b.step;
        right += b.step;
    }
    store_sums(c, c_row, SUMS, TILE_BYTES, rows, columns);
}

/* c = [c +] a b; rows and columns in tiles, c_row floats between rows of tiles. */
static __attribute__((noinline)) void multiply(float *c, int64_t c_row, struct side a, struct side b, int64_t rows,
                                               int64_t columns, int64_t steps, bool add)
{
    for (int64_t i = 0; i < rows; i += 2, c += 2 * c_row, a.tiles += 2 * a.line) {
        struct side at = b;

        for (int64_t j = 0; j < columns; j += 2, at.tiles += 2 * at.line) {
            if (rows - i > 1 && columns - j > 1)
                multiply_tiles(c + j * SUMS, c_row, a, at, 2, 2, steps, add);
            else if (rows - i > 1)
                multiply_tiles(c + j * SUMS, c_row, a, at, 2, 1, steps, add);
            else if (columns - j > 1)
                multiply_tiles(c + j * SUMS, c_row, a, at, 1, 2, steps, add);
            else
                multiply_tiles(c + j * SUMS, c_row, a, at, 1, 1, steps, add);
        }
    }
}

/* Rows of heads as an even number of tiles of lines, and of steps along the heads. */
static void pack_rows(tt_bf16 *to, const tt_bf16 *from, int64_t stride, int64_t rows, const struct width *width,
                      bool as_pairs)
{
    const struct operand x = {from, stride, true, as_pairs};
    int64_t tiles = tt_div_up(rows, LINES);

    pack(to, &x, 0, rows, 0, width->dim);
    if (tiles % 2)
        memset(to + tiles * width->steps * TILE, 0, (size_t)(width->steps * TILE) * sizeof *to);
}

/* The same rows for a product that sums over them: the lines are their elements. */
static void pack_columns(tt_bf16 *to, const tt_bf16 *from, int64_t stride, int64_t rows, const struct width *width,
                         bool as_pairs)
{
    const struct operand x = {from, stride, false, as_pairs};

    pack(to, &x, 0, width->dim, 0, rows);
}

/* --- forward --- */

enum { MOST_ROWS = TT_ATTENTION_ROWS };
_Static_assert(MOST_ROWS % 32 == 0, "whole squares");

struct forward {
    const struct tt_attention_shape *shape;
    struct width q, v; /* widths of heads of q and k, and of v and o */
    int64_t row, rows; /* the first row, in the sequence, and the number of rows of the call */
    float scale, cap;  /* factor of the scores, see score_scale; cap 0: none */
    tt_bf16 *queries;  /* (tiles of rows, steps of a head) */
    tt_bf16 *keys;     /* (tiles of keys, steps of a head), pairs */
    tt_bf16 *values;   /* (tiles of a head, steps of keys), pairs */
    float *scores;     /* (2, tiles of keys) */
    tt_bf16 *weights;  /* (2, steps of keys) */
    float *o;          /* (tiles of rows, tiles of a head) */
    float *sums;       /* 16 partial sums of each row, which are added at the end */
    float *largest;    /* largest score of each row, in powers of 2 */
    float *shrink;     /* factors of the 16 rows of a tile */
};

/* The largest element, ignoring NaN, of each of 16 rows of tiles that lie side by side; the lanes are rows. */
VF_INLINE vs row_largest(const float *s, int64_t tiles)
{
    vs largest;

    for (int64_t g = 0; g < VS_PARTS; g++) {
        vf x[VF_LANES];

        for (int64_t i = 0; i < VF_LANES; i++) {
            const float *row = s + (g * VF_LANES + i) * LINES;

            x[i] = vf_set(-INFINITY);
            for (int64_t j = 0; j < tiles; j++)
                for (int64_t v = 0; v < LINES; v += VF_LANES) /* vf_max ignores a NaN in its first operand */
                    x[i] = vf_max(vf_load(row + j * SUMS + v), x[i]);
        }
        vf_transpose(x);
        for (int64_t i = 1; i < VF_LANES; i++)
            x[0] = vf_max(x[i], x[0]);
        largest.part[g] = x[0];
    }
    return largest;
}

/* Multiplies 16 rows of tiles that lie side by side by factors. */
static void rescale(float *o, int64_t n_tiles, const float *factors)
{
    for (int64_t r = 0; r < LINES; r++) {
        vs factor = vs_set(factors[r]);

        for (int64_t e = 0; e < n_tiles; e++)
            vs_store(o + e * SUMS + r * LINES, vs_mul(factor, vs_load(o + e * SUMS + r * LINES)));
    }
}

/* Turns 16 rows of scores into weights. If the maximum grows, the earlier sums and o shrink. at: in the call. */
static void softmax(struct forward *w, int64_t at, const float *s, tt_bf16 *weights, int64_t steps)
{
    float *most = w->largest + at, *sums = w->sums + at * VS_LANES, *shrink = w->shrink;
    vs scale = vs_set(w->cap > 0.0F ? 1.0F : w->scale), before = vs_load(most);
    vs largest = vs_max(vs_mul(scale, row_largest(s, 2 * steps)), before);
    bool shrinks = false;

    vs_store(most, largest);
    vs_store(shrink, vs_exp2_low(vs_sub(before, largest)));
    for (int64_t r = 0; r < LINES; r++, s += LINES, weights += STEP, sums += VS_LANES) {
        vs less = vs_set(most[r]), sum = vs_mul(vs_set(shrink[r]), vs_load(sums));

        shrinks = shrinks || shrink[r] != 1.0F;
        for (int64_t p = 0; p < steps; p++) {
            vs x = vs_exp2_low(vs_sub(vs_mul(scale, vs_load(s + 2 * p * SUMS)), less));
            vs y = vs_exp2_low(vs_sub(vs_mul(scale, vs_load(s + (2 * p + 1) * SUMS)), less));
            v_halves both = rounded(x, y);

            sum = vs_add(sum, vs_add(x, y));
            memcpy(weights + p * TILE, &both, sizeof both);
        }
        vs_store(sums, sum);
    }
    if (shrinks)
        rescale(w->o + at / LINES * w->v.tiles * SUMS, w->v.tiles, w->shrink);
}

/* Hides scores from 16 rows, from `row` on: of n keys from `key` on, those that a row does not see. */
static void mask(struct forward *w, float *s, int64_t row, int64_t key, int64_t n)
{
    int64_t last = w->row + w->rows - 1;

    for (int64_t r = 0; r < LINES; r++, s += LINES) {
        struct seen seen = seen_by(w->shape, up_to(row + r, last), key, n);

        for (int64_t j = 0; j < n; j += LINES) {
            float *x = s + j / LINES * SUMS;

            if (seen.begin > j || seen.end < j + LINES)
                vs_store(x, where_seen(seen, j, vs_load(x), vs_set(-INFINITY)));
        }
    }
}

/* n rows from `at` on, at most 32, with the keys from `key` on, of which the rows see some. */
static void square_rows(struct forward *w, int64_t at, int64_t n, int64_t key, int64_t packed)
{
    int64_t first = w->row + at, last = first + n - 1, steps = tt_div_up(up_to(last + 1 - key, KEYS), STEP);
    int64_t tiles = tt_div_up(n, LINES), c_row = KEYS / LINES * SUMS, head = w->q.steps * TILE;
    struct side q = {w->queries + at / LINES * head, head, TILE}, k = {w->keys, head, TILE};
    struct side weights = {w->weights, KEYS / STEP * TILE, TILE}, v = {w->values, packed * TILE, TILE};
    bool masked = first + 1 - key < steps * STEP || tt_attention_start(w->shape, last) > key;
    const vs cap = vs_set(w->cap), scale = vs_set(w->scale);

    multiply(w->scores, c_row, q, k, tiles, 2 * steps, w->q.steps, false);
    for (int64_t t = 0; t < tiles; t++) {
        float *s = w->scores + t * c_row;

        for (int64_t i = 0; w->cap > 0.0F && i < 2 * steps * SUMS; i += LINES)
            vs_store(s + i, vs_mul(cap, vs_tanh(vs_mul(scale, vs_load(s + i)))));
        if (masked)
            mask(w, s, first + t * LINES, key, steps * STEP);
        softmax(w, at + t * LINES, s, w->weights + t * weights.line, steps);
    }
    multiply(w->o + at / LINES * w->v.tiles * SUMS, w->v.tiles * SUMS, weights, v, tiles, w->v.tiles, steps, true);
}

/* All rows, and the block of keys from `key` on; `key` is a multiple of KEYS. */
static void block_of_keys(struct forward *w, const tt_bf16 *k, const tt_bf16 *v, int64_t key)
{
    int64_t end = w->row + w->rows, keys = up_to(end - key, KEYS), stride = tt_attention_value_stride(w->shape);

    pack_rows(w->keys, k + key * w->q.dim, w->q.dim, keys, &w->q, true);
    pack_columns(w->values, v + key * stride, stride, keys, &w->v, true);
    for (int64_t at = 0; at < w->rows; at += SIDE) {
        int64_t first = w->row + at, n = up_to(w->rows - at, SIDE);

        if (first + n > key && tt_attention_start(w->shape, first) < key + KEYS)
            square_rows(w, at, n, key, tt_div_up(keys, STEP));
    }
}

/* Stores the results of n rows, at most 16, from `at` on. */
static void store_rows(struct forward *w, int64_t at, int64_t n, tt_bf16 *o, float *lse)
{
    int64_t stride = w->shape->heads * w->v.dim;

    for (int64_t r = at; r < at + n; r++) {
        float sum = vs_sum(vs_load(w->sums + r * VS_LANES)), largest = w->largest[r], share = 1.0F;

        if (w->shape->sinks) { /* the maximum and the sum include the sink */
            float sink = LOG2_E * w->shape->sinks[0], before = largest;

            largest = largest > sink ? largest : sink;
            share = exp2_low(before - largest);
            sum = sum * share + exp2_low(sink - largest);
        }
        lse[r * w->shape->heads] = largest * LN_2 + (float)tt_log((double)sum);
        share /= sum;
        for (int64_t e = 0; e < w->v.dim; e += LINES) {
            const float *from = w->o + (r / LINES * w->v.tiles + e / LINES) * SUMS + r % LINES * LINES;

            elements_store_n(o + r * stride + e, vs_mul(vs_set(share), vs_load(from)), w->v.dim - e);
        }
    }
}

void TT_TYPED(tt_attention_fwd)(tt_bf16 *o, float *lse, const tt_bf16 *q, const tt_bf16 *k, const tt_bf16 *v,
                                const struct tt_attention_shape *shape, int64_t first_row, int64_t rows, float *scratch)
{
    struct forward w = {.shape = shape,
                        .q = width_of(shape->head_dim),
                        .v = width_of(tt_attention_value_dim(shape)),
                        .row = first_row,
                        .rows = rows,
                        .scale = score_scale(shape),
                        .cap = LOG2_E * shape->soft_cap};
    int64_t at = first_row - shape->begin, q_stride = shape->heads * w.q.dim, tiles = tt_div_up(rows, SIDE) * 2;

    w.queries = take_tiles(&scratch, tiles * w.q.steps);
    w.keys = take_tiles(&scratch, KEYS / LINES * w.q.steps);
    w.values = take_tiles(&scratch, KEYS / STEP * w.v.tiles);
    w.scores = take(&scratch, 2 * KEYS / LINES * SUMS);
    w.weights = take_tiles(&scratch, 2 * KEYS / STEP);
    w.o = take(&scratch, tiles * w.v.tiles * SUMS);
    w.sums = take(&scratch, tiles * LINES * VS_LANES);
    w.largest = take(&scratch, tiles * LINES);
    w.shrink = take(&scratch, LINES);
    pack_rows(w.queries, q + at * q_stride, q_stride, rows, &w.q, false);
    memset(w.o, 0, (size_t)(tiles * w.v.tiles * SUMS) * sizeof *w.o);
    memset(w.sums, 0, (size_t)(tiles * LINES * VS_LANES) * sizeof *w.sums);
    for (int64_t r = 0; r < tiles * LINES; r += VS_LANES)
        vs_store(w.largest + r, vs_set(-FLT_MAX)); /* finite, so that a row may see no key of a block */
    tile_configure();
    for (int64_t key = tt_attention_start(shape, first_row) / KEYS * KEYS; key < first_row + rows; key += KEYS)
        block_of_keys(&w, k, v, key);
    tile_release();
    for (int64_t r = 0; r < rows; r += LINES)
        store_rows(&w, r, up_to(rows - r, LINES), o + at * shape->heads * w.v.dim, lse + at * shape->heads);
}

/* --- backward --- */

enum { STRIP = TT_ATTENTION_STRIP, BLOCK = 64 /* rows that are computed before they are added to dk and dv */ };
_Static_assert(STRIP % BLOCK % 32 == 0, "whole squares");

struct backward {
    const struct tt_attention_bf16_grads *head;
    const struct tt_attention_shape *shape;
    struct width q, v;
    int64_t q_stride, k_stride, o_stride, v_stride;
    int64_t row, rows;           /* the strip: its first row, and the number of rows */
    int64_t missing;             /* rows of the strip that precede the given rows; fewer than 32 */
    float scale, cap;            /* factor of the scores, see score_scale */
    tt_bf16 *queries, *dout;     /* (tiles of rows, steps of a head) */
    tt_bf16 *queries_t, *dout_t; /* (steps of rows, tiles of a head) */
    float *dq;                   /* (tiles of rows, tiles of a head) */
    float *lse, *delta;          /* of each row; lse in powers of 2 */
    tt_bf16 *keys, *values;      /* (tiles of keys, steps of a head), pairs */
    tt_bf16 *keys_across;        /* (tiles of a head, steps of keys), pairs */
    float *p, *ds;               /* (2, 2): a square */
    tt_bf16 *p_pairs, *ds_pairs; /* (tiles of keys, steps of the block), as pairs of rows */
    tt_bf16 *ds_along;           /* (tiles of rows of the block, steps of keys) */
    tt_bf16 *some_rows;          /* (32, dim) */
    float *dk, *dv;              /* (squares of keys, tiles of a head, 2) */
};

/* Takes pairs of elements from two rows of 32: four neighbours of every eight. */
#define QUADS(l, s) (l) / 4 * 8 + (l) % 4 + (s), 32 + (l) / 4 * 8 + (l) % 4 + (s)
#define QUAD_KEY(c) ((c) / 4 * 8 + (c) % 4) /* key of column c in the first of two tiles of such pairs */
#define QUAD_SECOND 4                       /* added to it in the second tile */

/* One instruction each, but the columns are reordered. */
VF_INLINE void store_pairs(tt_bf16 *first, tt_bf16 *second, const v_halves *low, const v_halves *high)
{
    v_halves x = PICK(v_halves, *low, *high, LANES(QUADS, 0)),
             y = PICK(v_halves, *low, *high, LANES(QUADS, QUAD_SECOND));

    memcpy(first, &x, sizeof x);
    memcpy(second, &y, sizeof y);
}

/* n rows of a strip, at most 32; the first `missing` of them are not given and become 0. */
static void load_rows(struct backward *w, tt_bf16 *along, tt_bf16 *across, const tt_bf16 *from, int64_t stride,
                      int64_t n, int64_t missing, const struct width *width)
{
    if (missing) {
        memset(w->some_rows, 0, (size_t)(missing * width->dim) * sizeof *from);
        for (int64_t r = missing; r < n; r++)
            memcpy(w->some_rows + r * width->dim, from + (r - missing) * stride, (size_t)width->dim * sizeof *from);
        from = w->some_rows;
        stride = width->dim;
    }
    pack_rows(along, from, stride, n, width, false);
    pack_columns(across, from, stride, n, width, false);
}

static void load_strip(struct backward *w)
{
    const struct tt_attention_bf16_grads *head = w->head;
    int64_t dim = w->v.dim, heads = w->shape->heads;

    for (int64_t at = 0; at < w->rows; at += STEP) {
        int64_t n = up_to(w->rows - at, STEP), missing = at == 0 ? w->missing : 0;
        int64_t from = w->row + at + missing - w->shape->begin, tile = at / LINES, step = at / STEP;

        load_rows(w, w->queries + tile * w->q.steps * TILE, w->queries_t + step * w->q.tiles * TILE,
                  head->q + from * w->q_stride, w->q_stride, n, missing, &w->q);
        load_rows(w, w->dout + tile * w->v.steps * TILE, w->dout_t + step * w->v.tiles * TILE,
                  head->dout + from * w->o_stride, w->o_stride, n, missing, &w->v);
    }
    for (int64_t r = w->missing; r < w->rows; r++) {
        int64_t row = w->row + r - w->shape->begin, at = row * w->o_stride;
        vs sum = vs_zero();

        for (int64_t e = 0; e < dim; e += VS_LANES)
            sum =
                vs_fma(elements_load_n(head->dout + at + e, dim - e), elements_load_n(head->o + at + e, dim - e), sum);
        w->delta[r] = vs_sum(sum);
        w->lse[r] = head->lse[row * heads] * LOG2_E;
    }
    memset(w->dq, 0, (size_t)(tt_round_up(w->rows, SIDE) * w->q.tiles * LINES) * sizeof *w->dq);
}

static void load_panel(struct backward *w, int64_t key, int64_t keys)
{
    const tt_bf16 *k = w->head->k + key * w->k_stride, *v = w->head->v + key * w->v_stride;

    pack_rows(w->keys, k, w->k_stride, keys, &w->q, true);
    pack_rows(w->values, v, w->v_stride, keys, &w->v, true);
    pack_columns(w->keys_across, k, w->k_stride, keys, &w->q, true);
}

/* A square of 32 rows and 32 keys: rows from `at` on in the strip (square r of the block), keys from square c of the
 * panel. */
struct square {
    int64_t at, r, c;
    int64_t key, keys; /* the first key, and the number of keys from there to the end of the panel */
    bool masked;
};

/* Computes p and ds of a square in bfloat16. */
VF_INLINE void softmax_of(struct backward *w, const struct square *square, bool masked, bool capped)
{
    const vs cap = vs_set(w->cap), scale = vs_set(w->scale), one = vs_set(1.0F), zero = vs_zero();
    int64_t pairs_line = BLOCK / STEP * TILE, line = PANEL / STEP * TILE;
    tt_bf16 *p_pairs = w->p_pairs + 2 * square->c * pairs_line + square->r * TILE;
    tt_bf16 *ds_pairs = w->ds_pairs + 2 * square->c * pairs_line + square->r * TILE;
    tt_bf16 *along = w->ds_along + 2 * square->r * line + square->c * TILE;

    for (int64_t i = 0; i < SIDE; i += 2) {
        v_halves p[2], ds[2];

        for (int64_t r = i; r < i + 2; r++) {
            int64_t row = square->at + r, from = r / LINES * 2 * SUMS + r % LINES * LINES;
            bool there = row >= w->missing && row < w->rows;
            struct seen seen = {0, 0};
            vs lse = vs_set(masked && !there ? 0.0F : w->lse[row]),
               delta = vs_set(masked && !there ? 0.0F : w->delta[row]);
            vs weight[2], slope[2];

            if (masked && there)
                seen = seen_by(w->shape, w->row + row, square->key, square->keys);
            for (int64_t j = 0; j < 2; j++) {
                vs score = vs_mul(scale, vs_load(w->p + from + j * SUMS)), part = zero;

                if (capped) {
                    part = vs_tanh(score);
                    score = vs_mul(cap, part);
                }
                weight[j] = vs_exp2_low(vs_sub(score, lse));
                slope[j] = vs_mul(weight[j], vs_sub(vs_load(w->ds + from + j * SUMS), delta));
                if (capped)
                    slope[j] = vs_mul(slope[j], vs_sub(one, vs_mul(part, part)));
                if (masked) {
                    weight[j] = where_seen(seen, j * LINES, weight[j], zero);
                    slope[j] = where_seen(seen, j * LINES, slope[j], zero);
                }
            }
            p[r - i] = rounded(weight[0], weight[1]);
            ds[r - i] = rounded(slope[0], slope[1]);
            memcpy(along + r / LINES * line + r % LINES * STEP, &ds[r - i], sizeof ds[0]);
        }
        store_pairs(p_pairs + i / 2 * STEP, p_pairs + pairs_line + i / 2 * STEP, &p[0], &p[1]);
        store_pairs(ds_pairs + i / 2 * STEP, ds_pairs + pairs_line + i / 2 * STEP, &ds[0], &ds[1]);
    }
}

static void square_products(struct backward *w, const struct square *square)
{
    int64_t q_head = w->q.steps * TILE, v_head = w->v.steps * TILE, tile = square->at / LINES;
    struct side q = {w->queries + tile * q_head, q_head, TILE}, k = {w->keys + 2 * square->c * q_head, q_head, TILE};
    struct side dout = {w->dout + tile * v_head, v_head, TILE}, v = {w->values + 2 * square->c * v_head, v_head, TILE};

    multiply(w->p, 2 * SUMS, q, k, 2, 2, w->q.steps, false);
    multiply(w->ds, 2 * SUMS, dout, v, 2, 2, w->v.steps, false);
    if (w->cap > 0.0F)
        softmax_of(w, square, true, true);
    else if (square->masked)
        softmax_of(w, square, true, false);
    else
        softmax_of(w, square, false, false);
}

/* n rows from `at` on in the strip, and a panel of keys that begins `square` squares after the first key of the
 * call. */
static void block_of_rows(struct backward *w, int64_t at, int64_t n, int64_t key, int64_t keys, int64_t square)
{
    int64_t squares = tt_div_up(keys, STEP), first[PANEL / 32] = {0}, end[PANEL / 32] = {0};
    int64_t line = PANEL / STEP * TILE, pairs_line = BLOCK / STEP * TILE, last_row = w->row + w->rows - 1;

    for (int64_t r = 0; r < tt_div_up(n, STEP); r++) {
        int64_t row = w->row + at + r * STEP, last = up_to(row + STEP - 1, last_row);
        int64_t start = tt_attention_start(w->shape, row) - key, from = start > 0 ? start / STEP : 0;
        int64_t to = last < key ? 0 : up_to((last - key) / STEP + 1, squares);
        struct side ds = {w->ds_along + 2 * r * line + from * TILE, line, TILE};
        struct side k = {w->keys_across + from * TILE, squares * TILE, TILE};

        if (from >= to)
            continue;
        for (int64_t c = from; c < to; c++) {
            struct square one = {at + r * STEP, r, c, key + c * STEP, keys - c * STEP, true};

            one.masked = row < one.key + STEP - 1 || one.keys < STEP || last < row + STEP - 1 ||
                         row < w->shape->begin || tt_attention_start(w->shape, last) > one.key;
            square_products(w, &one);
            first[c] = end[c] ? first[c] : r;
            end[c] = r + 1;
        }
        multiply(w->dq + (at / LINES + 2 * r) * w->q.tiles * SUMS, w->q.tiles * SUMS, ds, k, 2, w->q.tiles, to - from,
                 true);
    }
    for (int64_t c = 0; c < squares; c++) {
        int64_t step = at / STEP + first[c], from = 2 * c * pairs_line + first[c] * TILE;
        struct side q = {w->queries_t + step * w->q.tiles * TILE, TILE, w->q.tiles * TILE};
        struct side dout = {w->dout_t + step * w->v.tiles * TILE, TILE, w->v.tiles * TILE};
        struct side p = {w->p_pairs + from, pairs_line, TILE}, ds = {w->ds_pairs + from, pairs_line, TILE};

        if (!end[c])
            continue;
        multiply(w->dv + (square + c) * w->v.tiles * 2 * SUMS, 2 * SUMS, dout, p, w->v.tiles, 2, end[c] - first[c],
                 true);
        multiply(w->dk + (square + c) * w->q.tiles * 2 * SUMS, 2 * SUMS, q, ds, w->q.tiles, 2, end[c] - first[c], true);
    }
}

static void strip_panel(struct backward *w, int64_t key, int64_t keys, int64_t square)
{
    /* Rows before the panel see none of its keys. The rows and the panel begin a multiple of 32 after the first key. */
    for (int64_t at = key > w->row ? key - w->row : 0; at < w->rows; at += BLOCK) {
        if (tt_attention_start(w->shape, w->row + at) >= key + keys)
            break;
        block_of_rows(w, at, up_to(w->rows - at, BLOCK), key, keys, square);
    }
}

static void head_bwd(struct backward *w, int64_t first_key, int64_t keys)
{
    int64_t begin = w->shape->begin, end = tt_attention_end(w->shape);
    vs factor = vs_set(tt_attention_scale(w->shape));

    for (w->row = begin > first_key ? begin - (begin - first_key) % STEP : first_key; w->row < end; w->row += STRIP) {
        w->rows = up_to(end - w->row, STRIP);
        w->missing = begin > w->row ? begin - w->row : 0;
        load_strip(w);
        for (int64_t j = 0; j < keys && first_key + j < w->row + w->rows; j += PANEL) {
            int64_t n = up_to(keys - j, PANEL);

            if (tt_attention_start(w->shape, w->row) >= first_key + j + n)
                continue;
            load_panel(w, first_key + j, n);
            strip_panel(w, first_key + j, n, j / STEP);
        }
        for (int64_t r = w->missing; r < w->rows; r++) {
            float *to = w->head->dq + (w->row + r - begin) * w->q_stride;
            const float *dq = w->dq + r / LINES * w->q.tiles * SUMS + r % LINES * LINES;

            for (int64_t e = 0; e < w->q.dim; e += LINES, dq += SUMS)
                vs_store_n(to + e, vs_mul(factor, vs_load(dq)), w->q.dim - e);
        }
    }
}

/* Stores sums that are squares of keys, times factor, as rows of keys. */
static void store_keys(float *to, int64_t stride, const float *sums, const struct width *width, int64_t keys,
                       float factor)
{
    for (int64_t j = 0; j < keys; j += STEP) {
        for (int64_t e = 0; e < width->dim; e += LINES) {
            for (int64_t t = 0; t < 2; t++, sums += SUMS) {
                v_pairs x[LINES];

                memcpy(x, sums, sizeof x);
                transpose_square(x);
                for (int64_t c = 0; c < LINES; c++) {
                    int64_t key = j + QUAD_KEY(c) + t * QUAD_SECOND;
                    float row[LINES];

                    memcpy(row, &x[c], sizeof row);
                    if (key < keys)
                        vs_store_n(to + key * stride + e, vs_mul(vs_set(factor), vs_load(row)), width->dim - e);
                }
            }
        }
    }
}

static void lay_out(struct backward *w, int64_t keys, float *scratch)
{
    int64_t rows = tt_round_up(up_to(w->shape->seq_len, STRIP), STEP), squares = tt_div_up(keys, STEP);

    w->queries = take_tiles(&scratch, rows / LINES * w->q.steps);
    w->dout = take_tiles(&scratch, rows / LINES * w->v.steps);
    w->queries_t = take_tiles(&scratch, rows / STEP * w->q.tiles);
    w->dout_t = take_tiles(&scratch, rows / STEP * w->v.tiles);
    w->dq = take(&scratch, rows * w->q.tiles * LINES);
    w->lse = take(&scratch, rows);
    w->delta = take(&scratch, rows);
    w->keys = take_tiles(&scratch, PANEL / LINES * w->q.steps);
    w->values = take_tiles(&scratch, PANEL / LINES * w->v.steps);
    w->keys_across = take_tiles(&scratch, PANEL / STEP * w->q.tiles);
    w->p = take(&scratch, 4 * SUMS);
    w->ds = take(&scratch, 4 * SUMS);
    w->p_pairs = take_tiles(&scratch, PANEL / LINES * (BLOCK / STEP));
    w->ds_pairs = take_tiles(&scratch, PANEL / LINES * (BLOCK / STEP));
    w->ds_along = take_tiles(&scratch, BLOCK / LINES * (PANEL / STEP));
    w->some_rows = take_tiles(&scratch, 2 * (w->q.steps > w->v.steps ? w->q.steps : w->v.steps));
    w->dk = take(&scratch, squares * w->q.tiles * 2 * SUMS);
    w->dv = take(&scratch, squares * w->v.tiles * 2 * SUMS);
    memset(w->dk, 0, (size_t)(squares * (w->q.tiles + w->v.tiles) * 2 * SUMS) * sizeof *w->dk);
}

void TT_TYPED(tt_attention_bwd)(const struct tt_attention_bf16_grads *group, const struct tt_attention_shape *shape,
                                int64_t heads, int64_t first_key, int64_t keys, float *scratch)
{
    struct tt_attention_bf16_grads head = *group;
    struct backward w = {.head = &head,
                         .shape = shape,
                         .q = width_of(shape->head_dim),
                         .v = width_of(tt_attention_value_dim(shape)),
                         .scale = score_scale(shape),
                         .cap = LOG2_E * shape->soft_cap};

    w.q_stride = shape->heads * w.q.dim;
    w.k_stride = shape->kv_heads * w.q.dim;
    w.o_stride = shape->heads * w.v.dim;
    w.v_stride = shape->kv_heads * w.v.dim;
    lay_out(&w, keys, scratch);
    tile_configure();
    for (int64_t h = 0; h < heads; h++) {
        head_bwd(&w, first_key, keys);
        head.dq += w.q.dim;
        head.dout += w.v.dim;
        head.q += w.q.dim;
        head.o += w.v.dim;
        head.lse += 1;
    }
    tile_release();
    store_keys(group->dk, w.k_stride, w.dk, &w.q, keys, tt_attention_scale(shape));
    store_keys(group->dv, w.v_stride, w.dv, &w.v, keys, 1.0F);
}

/* SPDX-License-Identifier: MIT
 *
 * The reference of the attention kernels: sums in double. Scores are not kept, but computed again for each sum and for
 * each COLUMNS columns of a result.
 */
#include <math.h>

#include "core/kernels/typed/element.h"

enum { COLUMNS = 64 };

static int64_t columns_from(int64_t first, int64_t n)
{
    return n - first < COLUMNS ? n - first : COLUMNS;
}

/* A pair (row i, key j) of one head in double; rows of q and k start at the head's first column. */
static double score(const element *q, const element *k, int64_t head_dim)
{
    double sum = 0.0;

    for (int64_t e = 0; e < head_dim; e++)
        sum += exact_of(q[e]) * exact_of(k[e]);
    return sum / sqrt((double)head_dim);
}

/* One row of one head. Returns the logarithm of the sum of its exponentials. */
static double attend(element *o, const element *q, const element *k, const element *v, int64_t keys, int64_t dim)
{
    double largest = -INFINITY, sum = 0.0;

    for (int64_t j = 0; j < keys; j++)
        largest = fmax(largest, score(q, k + j * dim, dim));
    for (int64_t j = 0; j < keys; j++)
        sum += exp(score(q, k + j * dim, dim) - largest);
    for (int64_t first = 0; first < dim; first += COLUMNS) {
        double out[COLUMNS] = {0.0};

        for (int64_t j = 0; j < keys; j++) {
            double weight = exp(score(q, k + j * dim, dim) - largest);

            for (int64_t e = 0; e < columns_from(first, dim); e++)
                out[e] += weight * exact_of(v[j * dim + first + e]);
        }
        for (int64_t e = 0; e < columns_from(first, dim); e++)
            o[first + e] = element_of_exact(out[e] / sum);
    }
    return largest + log(sum);
}

// NOLINTBEGIN(readability-non-const-parameter): the type of the slot
void TT_TYPED(tt_attention_fwd, ref)(element *o, float *lse, const element *q, const element *k, const element *v,
                                     const struct tt_attention_shape *shape, int64_t first_row, int64_t rows,
                                     float *scratch)
// NOLINTEND(readability-non-const-parameter)
{
    int64_t dim = shape->head_dim, q_stride = shape->heads * dim;

    (void)scratch;
    for (int64_t i = first_row; i < first_row + rows; i++) {
        int64_t start = tt_attention_start(shape, i);

        lse[i * shape->heads] =
            (float)attend(o + i * q_stride, q + i * q_stride, k + start * dim, v + start * dim, i + 1 - start, dim);
    }
}

// NOLINTBEGIN(readability-non-const-parameter): the type of the slot
void TT_TYPED(tt_attention_row, ref)(element *o, const element *q, const element *k, const element *v,
                                     const struct tt_attention_shape *shape, int64_t keys, float *scratch)
// NOLINTEND(readability-non-const-parameter)
{
    int64_t dim = shape->head_dim;

    (void)scratch;
    for (int64_t h = 0; h < shape->heads / shape->kv_heads; h++)
        (void)attend(o + h * dim, q + h * dim, k, v, keys, dim);
}

#ifdef TT_ELEMENT_BF16
typedef struct tt_attention_bf16_grads element_grads;
#else
typedef struct tt_attention_grads element_grads;
#endif

/* The probability p of (row i, key j) for query head `head` of the group and the gradient ds of its score. */
static double pair(const element_grads *group, const struct tt_attention_shape *shape, int64_t head, int64_t i,
                   int64_t j, double *ret_ds)
{
    int64_t dim = shape->head_dim, at = i * shape->heads * dim + head * dim, key = j * shape->kv_heads * dim;
    double p = exp(score(group->q + at, group->k + key, dim) - (double)group->lse[i * shape->heads + head]), dot = 0.0;

    for (int64_t e = 0; e < dim; e++)
        dot += exact_of(group->dout[at + e]) * (exact_of(group->v[key + e]) - exact_of(group->o[at + e]));
    *ret_ds = p * dot / sqrt((double)dim);
    return p;
}

/* A range of keys of one group of heads, as attention_bwd has it. */
struct range {
    const element_grads *group;
    const struct tt_attention_shape *shape;
    int64_t heads, first_key, keys;
};

/* dq of row i of a head. */
static void grad_row(const struct range *r, int64_t i, int64_t head)
{
    const element_grads *group = r->group;
    int64_t dim = r->shape->head_dim, k_stride = r->shape->kv_heads * dim;
    float *dq = group->dq + (i * r->shape->heads + head) * dim;
    int64_t start = tt_attention_start(r->shape, i), from = start > r->first_key ? start : r->first_key;
    double ds;

    for (int64_t first = 0; first < dim; first += COLUMNS) {
        double sum[COLUMNS] = {0.0};

        for (int64_t j = from; j <= i && j < r->first_key + r->keys; j++) {
            (void)pair(group, r->shape, head, i, j, &ds);
            for (int64_t e = 0; e < columns_from(first, dim); e++)
                sum[e] += ds * exact_of(group->k[j * k_stride + first + e]);
        }
        for (int64_t e = 0; e < columns_from(first, dim); e++)
            dq[first + e] = (float)sum[e];
    }
}

/* dk and dv of key j, of the columns from `first` on. */
static void grad_key(const struct range *r, int64_t j, int64_t first)
{
    const element_grads *group = r->group;
    int64_t dim = r->shape->head_dim, q_stride = r->shape->heads * dim, n = columns_from(first, dim);
    int64_t to = j * r->shape->kv_heads * dim + first;
    double dk[COLUMNS] = {0.0}, dv[COLUMNS] = {0.0}, ds;

    for (int64_t head = 0; head < r->heads; head++) {
        for (int64_t i = j; i < r->shape->seq_len && tt_attention_start(r->shape, i) <= j; i++) {
            int64_t at = i * q_stride + head * dim + first;
            double p = pair(group, r->shape, head, i, j, &ds);

            for (int64_t e = 0; e < n; e++) {
                dv[e] += p * exact_of(group->dout[at + e]);
                dk[e] += ds * exact_of(group->q[at + e]);
            }
        }
    }
    for (int64_t e = 0; e < n; e++) {
        group->dk[to + e] = (float)dk[e];
        group->dv[to + e] = (float)dv[e];
    }
}

// NOLINTBEGIN(readability-non-const-parameter): the type of the slot
void TT_TYPED(tt_attention_bwd, ref)(const element_grads *group, const struct tt_attention_shape *shape, int64_t heads,
                                     int64_t first_key, int64_t keys, float *scratch)
// NOLINTEND(readability-non-const-parameter)
{
    struct range range = {group, shape, heads, first_key, keys};

    (void)scratch;
    for (int64_t i = first_key; i < shape->seq_len; i++)
        for (int64_t head = 0; head < heads; head++)
            grad_row(&range, i, head);
    for (int64_t j = first_key; j < first_key + keys; j++)
        for (int64_t first = 0; first < shape->head_dim; first += COLUMNS)
            grad_key(&range, j, first);
}

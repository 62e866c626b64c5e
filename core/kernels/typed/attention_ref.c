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

static double scale_of(const struct tt_attention_shape *shape)
{
    return shape->scale > 0.0F ? (double)shape->scale : 1.0 / sqrt((double)shape->head_dim);
}

/* A pair (row i, key j) of one head in double; rows of q and k start at the head's first column. */
static double score(const element *q, const element *k, const struct tt_attention_shape *shape)
{
    double sum = 0.0;

    for (int64_t e = 0; e < shape->head_dim; e++)
        sum += exact_of(q[e]) * exact_of(k[e]);
    return sum * scale_of(shape);
}

/* One row of one head; sink: of that head, or NULL. Returns the logarithm of the sum of its exponentials. */
static double attend(element *o, const element *q, const element *k, const element *v, int64_t keys,
                     const struct tt_attention_shape *shape, const float *sink)
{
    int64_t dim = shape->head_dim, width = tt_attention_value_dim(shape), stride = tt_attention_value_stride(shape);
    double largest = sink ? (double)*sink : -INFINITY, sum = 0.0;

    for (int64_t j = 0; j < keys; j++)
        largest = fmax(largest, score(q, k + j * dim, shape));
    for (int64_t j = 0; j < keys; j++)
        sum += exp(score(q, k + j * dim, shape) - largest);
    sum += sink ? exp((double)*sink - largest) : 0.0;
    for (int64_t first = 0; first < width; first += COLUMNS) {
        double out[COLUMNS] = {0.0};

        for (int64_t j = 0; j < keys; j++) {
            double weight = exp(score(q, k + j * dim, shape) - largest);

            for (int64_t e = 0; e < columns_from(first, width); e++)
                out[e] += weight * exact_of(v[j * stride + first + e]);
        }
        for (int64_t e = 0; e < columns_from(first, width); e++)
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
    int64_t o_stride = shape->heads * tt_attention_value_dim(shape);

    (void)scratch;
    for (int64_t i = first_row; i < first_row + rows; i++) {
        int64_t start = tt_attention_start(shape, i), at = i - shape->begin;

        lse[at * shape->heads] =
            (float)attend(o + at * o_stride, q + at * q_stride, k + start * dim,
                          v + start * tt_attention_value_stride(shape), i + 1 - start, shape, shape->sinks);
    }
}

// NOLINTBEGIN(readability-non-const-parameter): the type of the slot
void TT_TYPED(tt_attention_row, ref)(element *o, const element *q, const element *k, const element *v,
                                     const struct tt_attention_shape *shape, int64_t keys, float *scratch)
// NOLINTEND(readability-non-const-parameter)
{
    int64_t dim = shape->head_dim, width = tt_attention_value_dim(shape);

    (void)scratch;
    for (int64_t h = 0; h < shape->heads / shape->kv_heads; h++)
        (void)attend(o + h * width, q + h * dim, k, v, keys, shape, shape->sinks ? shape->sinks + h : NULL);
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
    int64_t dim = shape->head_dim, width = tt_attention_value_dim(shape),
            row = (i - shape->begin) * shape->heads + head;
    const element *q = group->q + row * dim, *k = group->k + j * shape->kv_heads * dim;
    const element *dout = group->dout + row * width, *o = group->o + row * width;
    const element *v = group->v + j * shape->kv_heads * width;
    double p = exp(score(q, k, shape) - (double)group->lse[row]), dot = 0.0;

    for (int64_t e = 0; e < width; e++)
        dot += exact_of(dout[e]) * (exact_of(v[e]) - exact_of(o[e]));
    *ret_ds = p * dot * scale_of(shape);
    return p;
}

/* The first row that is there and may see the key. */
static int64_t first_row(const struct tt_attention_shape *shape, int64_t key)
{
    return key > shape->begin ? key : shape->begin;
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
    float *dq = group->dq + ((i - r->shape->begin) * r->shape->heads + head) * dim;
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

/* dk of key j, of the columns from `first` on; or dv. */
static void grad_key(const struct range *r, int64_t j, int64_t first, bool values)
{
    const element_grads *group = r->group;
    int64_t dim = values ? tt_attention_value_dim(r->shape) : r->shape->head_dim, n = columns_from(first, dim);
    const element *from = values ? group->dout : group->q;
    float *to = (values ? group->dv : group->dk) + (j - r->first_key) * r->shape->kv_heads * dim + first;
    int64_t end = tt_attention_end(r->shape);
    double sum[COLUMNS] = {0.0}, ds;

    for (int64_t head = 0; head < r->heads; head++) {
        for (int64_t i = first_row(r->shape, j); i < end && tt_attention_start(r->shape, i) <= j; i++) {
            int64_t at = ((i - r->shape->begin) * r->shape->heads + head) * dim + first;
            double p = pair(group, r->shape, head, i, j, &ds);

            for (int64_t e = 0; e < n; e++)
                sum[e] += (values ? p : ds) * exact_of(from[at + e]);
        }
    }
    for (int64_t e = 0; e < n; e++)
        to[e] = (float)sum[e];
}

// NOLINTBEGIN(readability-non-const-parameter): the type of the slot
void TT_TYPED(tt_attention_bwd, ref)(const element_grads *group, const struct tt_attention_shape *shape, int64_t heads,
                                     int64_t first_key, int64_t keys, float *scratch)
// NOLINTEND(readability-non-const-parameter)
{
    struct range range = {group, shape, heads, first_key, keys};

    (void)scratch;
    for (int64_t i = first_row(shape, first_key); i < tt_attention_end(shape); i++)
        for (int64_t head = 0; head < heads; head++)
            grad_row(&range, i, head);
    for (int64_t j = first_key; j < first_key + keys; j++) {
        for (int64_t first = 0; first < shape->head_dim; first += COLUMNS)
            grad_key(&range, j, first, false);
        for (int64_t first = 0; first < tt_attention_value_dim(shape); first += COLUMNS)
            grad_key(&range, j, first, true);
    }
}

/* SPDX-License-Identifier: MIT
 *
 * The reference of the attention kernels: sums in double; every score is computed again where it is needed.
 */
#include <math.h>

#include "core/kernels/typed/element.h"

/* A pair (row i, key j) of one head in double; rows of q and k start at the head's first column. */
static double score(const element *q, const element *k, int64_t head_dim)
{
    double sum = 0.0;

    for (int64_t e = 0; e < head_dim; e++)
        sum += exact_of(q[e]) * exact_of(k[e]);
    return sum / sqrt((double)head_dim);
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
        double largest = -INFINITY, sum = 0.0;

        for (int64_t j = 0; j <= i; j++)
            largest = fmax(largest, score(q + i * q_stride, k + j * dim, dim));
        for (int64_t j = 0; j <= i; j++)
            sum += exp(score(q + i * q_stride, k + j * dim, dim) - largest);
        lse[i * shape->heads] = (float)(largest + log(sum));
        for (int64_t e = 0; e < dim; e++) {
            double out = 0.0;

            for (int64_t j = 0; j <= i; j++)
                out += exp(score(q + i * q_stride, k + j * dim, dim) - largest) * exact_of(v[j * dim + e]);
            o[i * q_stride + e] = element_of_exact(out / sum);
        }
    }
}

// NOLINTBEGIN(readability-non-const-parameter): the type of the slot
void TT_TYPED(tt_attention_row, ref)(element *o, const element *q, const element *k, const element *v,
                                     const struct tt_attention_shape *shape, int64_t keys, float *scratch)
// NOLINTEND(readability-non-const-parameter)
{
    int64_t dim = shape->head_dim;

    (void)scratch;
    for (int64_t h = 0; h < shape->heads / shape->kv_heads; h++, q += dim, o += dim) {
        double largest = -INFINITY, sum = 0.0;

        for (int64_t j = 0; j < keys; j++)
            largest = fmax(largest, score(q, k + j * dim, dim));
        for (int64_t j = 0; j < keys; j++)
            sum += exp(score(q, k + j * dim, dim) - largest);
        for (int64_t e = 0; e < dim; e++) {
            double out = 0.0;

            for (int64_t j = 0; j < keys; j++)
                out += exp(score(q, k + j * dim, dim) - largest) * exact_of(v[j * dim + e]);
            o[e] = element_of_exact(out / sum);
        }
    }
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

// NOLINTBEGIN(readability-non-const-parameter): the type of the slot
void TT_TYPED(tt_attention_bwd, ref)(const element_grads *group, const struct tt_attention_shape *shape, int64_t heads,
                                     int64_t first_key, int64_t keys, float *scratch)
// NOLINTEND(readability-non-const-parameter)
{
    int64_t dim = shape->head_dim, q_stride = shape->heads * dim, k_stride = shape->kv_heads * dim;
    double ds;

    (void)scratch;
    for (int64_t i = first_key; i < shape->seq_len; i++) {
        for (int64_t c = 0; c < heads * dim; c++) {
            double sum = 0.0;

            for (int64_t j = first_key; j <= i && j < first_key + keys; j++) {
                (void)pair(group, shape, c / dim, i, j, &ds);
                sum += ds * exact_of(group->k[j * k_stride + c % dim]);
            }
            group->dq[i * q_stride + c] = (float)sum;
        }
    }
    for (int64_t j = first_key; j < first_key + keys; j++) {
        for (int64_t e = 0; e < dim; e++) {
            double dk = 0.0, dv = 0.0;

            for (int64_t head = 0; head < heads; head++) {
                for (int64_t i = j; i < shape->seq_len; i++) {
                    dv += pair(group, shape, head, i, j, &ds) * exact_of(group->dout[i * q_stride + head * dim + e]);
                    dk += ds * exact_of(group->q[i * q_stride + head * dim + e]);
                }
            }
            group->dk[j * k_stride + e] = (float)dk;
            group->dv[j * k_stride + e] = (float)dv;
        }
    }
}

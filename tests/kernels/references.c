/* SPDX-License-Identifier: MIT
 *
 * The references of kernels for one type; see references.h.
 */
#include "tests/kernels/references.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "core/kernels/matmul.h"
#include "core/kernels/vector_math.h"
#include "core/math/rng.h"

/* --- conversions and exp --- */

/* By arithmetic in double: 8 digits of the mantissa, or fewer below the smallest normal number, 2^-126. */
void tt_bf16_round_ref(tt_bf16 *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double x = (double)from[i], unit;
        float rounded = from[i];
        uint32_t bits;

        if (isfinite(x) && x != 0.0) {
            unit = ldexp(1.0, (ilogb(x) < -126 ? -126 : ilogb(x)) - 7);
            rounded = (float)copysign(nearbyint(x / unit) * unit, x); /* ties to even; may be infinite */
        }
        memcpy(&bits, &rounded, sizeof bits);
        to[i] = (tt_bf16)(bits >> 16 | (isnan(x) ? 0x40U : 0U));
    }
}

void tt_bf16_widen_ref(float *to, const tt_bf16 *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int exponent = from[i] >> 7 & 0xff, digits = from[i] & 0x7f;
        double x = exponent ? ldexp(128.0 + digits, exponent - 134) : ldexp(digits, -133);

        if (exponent == 0xff)
            x = digits ? (double)NAN : (double)INFINITY;
        to[i] = (float)copysign(x, from[i] >> 15 ? -1.0 : 1.0);
    }
}

void tt_exp_ref(float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double e = exp((double)x[i]);

        y[i] = e < (double)FLT_MIN ? 0.0F : (float)e;
    }
}

/* --- cross-entropy --- */

/* As fmax() over all elements, so NaN does not count. gcc 12 for 64-bit Arm stops with an internal error
 * (vect_transform_reduction) at -O3 if fmax() reduces an array. */
static double largest_of(const float *x, int64_t n)
{
    double largest = -INFINITY;

    for (int64_t i = 0; i < n; i++)
        largest = (double)x[i] > largest ? (double)x[i] : largest;
    return largest;
}

static double logsumexp(const float *logits, int64_t vocab)
{
    double largest = largest_of(logits, vocab), sum = 0.0;

    for (int64_t v = 0; v < vocab; v++)
        sum += exp((double)logits[v] - largest);
    return largest + log(sum);
}

void tt_cross_entropy_ref(float *loss, float *z, const float *logits, const int32_t *labels, int64_t rows,
                          int64_t vocab, float z_loss)
{
    for (int64_t r = 0; r < rows; r++, logits += vocab) {
        double lse = labels[r] < 0 ? 0.0 : logsumexp(logits, vocab);

        loss[r] = labels[r] < 0 ? 0.0F : (float)(lse - (double)logits[labels[r]]);
        if (z)
            z[r] = (float)((double)z_loss * lse * lse);
    }
}

void tt_cross_entropy_grad_ref(float *loss, float *z, float *logits, const int32_t *labels, int64_t rows, int64_t vocab,
                               float scale, float z_loss)
{
    tt_cross_entropy_ref(loss, z, logits, labels, rows, vocab, z_loss);
    for (int64_t r = 0; r < rows; r++, logits += vocab) {
        double lse = logsumexp(logits, vocab), share = z ? 1.0 + 2.0 * (double)z_loss * lse : 1.0;

        for (int64_t v = 0; v < vocab; v++) {
            double slope = share * exp((double)logits[v] - lse) - (v == labels[r] ? 1.0 : 0.0);

            logits[v] = labels[r] < 0 ? 0.0F : (float)((double)scale * slope);
        }
    }
}

void tt_cross_entropy_grad_bf16_ref(float *loss, float *z, float *logits, const int32_t *labels, int64_t rows,
                                    int64_t vocab, float scale, float z_loss)
{
    tt_cross_entropy_grad_ref(loss, z, logits, labels, rows, vocab, scale, z_loss);
    for (int64_t r = 0; r < rows; r++)
        tt_round_in_place(logits + r * vocab, vocab);
}

void tt_softmax_sum_ref(float *largest, float *sum, const float *x, int64_t n)
{
    double most = largest_of(x, n), total = 0.0;

    for (int64_t i = 0; i < n; i++)
        total += exp((double)x[i] - (isinf(most) && most < 0.0 ? 0.0 : most));
    *largest = (float)most;
    *sum = (float)total;
}

void tt_soft_cap_ref(float *y, const float *x, int64_t n, float cap)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = (float)((double)cap * tanh((double)x[i] / (double)cap));
}

static double softmax_slope(float x, float largest, float factor, float cap)
{
    double part = cap > 0.0F ? (double)x / (double)cap : 0.0;

    return (double)factor * exp((double)x - (double)largest) * (1.0 - part * part);
}

void tt_softmax_grad_ref(float *y, const float *x, int64_t n, float largest, float factor, float cap)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = (float)softmax_slope(x[i], largest, factor, cap);
}

/* Each element is read before the rounded values, which take half of its memory, can overwrite it. */
void tt_softmax_grad_bf16_ref(tt_bf16 *y, const float *x, int64_t n, float largest, float factor, float cap)
{
    for (int64_t i = 0; i < n; i++) {
        tt_bf16 rounded = tt_bf16_from_float((float)softmax_slope(x[i], largest, factor, cap));

        memcpy(y + i, &rounded, sizeof rounded);
    }
}

/* --- shards --- */

void tt_row_squares_ref(float *sum, const float *w, const float *a, const float *b, int64_t rank, int64_t stride,
                        int64_t width)
{
    double squares = 0.0;

    for (int64_t i = 0; i < width; i++) {
        double v = (double)w[i];

        for (int64_t k = 0; k < rank; k++)
            v += (double)b[k] * (double)a[k * stride + i];
        squares += v * v;
    }
    *sum = (float)squares;
}

void tt_squares_ref(double *sum, const float *x, int64_t n)
{
    *sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        *sum += (double)x[i] * (double)x[i];
}

void tt_adamw_ref(const struct tt_adamw_numbers *numbers, float *param, const float *grad, float *exp_avg,
                  float *exp_avg_sq, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double p = (double)param[i], g = (double)grad[i] * (double)numbers->clip, m, v;

        if (numbers->decoupled) {
            p *= (double)numbers->decay;
        } else {
            g += (double)numbers->weight_decay * p;
        }
        m = (double)exp_avg[i] + (double)numbers->mix1 * (g - (double)exp_avg[i]);
        v = (double)exp_avg_sq[i] * (double)numbers->beta2 + (double)numbers->mix2 * g * g;
        exp_avg[i] = (float)m;
        exp_avg_sq[i] = (float)v;
        param[i] = (float)(p - (double)numbers->step_size * m /
                                   (sqrt(v) / (double)numbers->root_correction2 + (double)numbers->eps));
    }
}

void tt_adamw_bf16_ref(const struct tt_adamw_numbers *numbers, const struct tt_adamw_rounding *rounding, tt_bf16 *param,
                       const float *grad, tt_bf16 *exp_avg, tt_bf16 *exp_avg_sq, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float p = tt_bf16_to_float(param[i]), m = tt_bf16_to_float(exp_avg[i]), v = tt_bf16_to_float(exp_avg_sq[i]);
        const struct tt_rng rng = {rounding->seed, rounding->stream};
        uint64_t bits = tt_rng_bits(&rng, rounding->first + (uint64_t)i);

        tt_adamw_ref(numbers, &p, grad + i, &m, &v, 1);
        param[i] = tt_bf16_from_float_random(p, (uint16_t)bits);
        exp_avg[i] = tt_bf16_from_float_random(m, (uint16_t)(bits >> 16));
        exp_avg_sq[i] = tt_bf16_from_float_random(v, (uint16_t)(bits >> 32));
    }
}

/* The nearest of all numbers; of two, the lower one. */
static uint8_t nearest_code(const struct tt_dynamic *map, double x)
{
    int best = 0;

    for (int i = 1; i < TT_DYNAMIC_CODES; i++)
        if (fabs((double)map->number[i] - x) < fabs((double)map->number[best] - x))
            best = i;
    return (uint8_t)best;
}

void tt_adamw_8bit_ref(const struct tt_adamw_numbers *numbers, float *param, const float *grad,
                       const struct tt_moment_blocks *moments, int64_t n)
{
    for (int64_t at = 0; at < n; at += TT_DYNAMIC_BLOCK) {
        int64_t size = n - at < TT_DYNAMIC_BLOCK ? n - at : TT_DYNAMIC_BLOCK, block = at / TT_DYNAMIC_BLOCK;
        float moment[2][TT_DYNAMIC_BLOCK];

        for (int k = 0; k < 2; k++)
            for (int64_t i = 0; i < size; i++)
                moment[k][i] = moments->map[k]->number[moments->code[k][at + i]] * moments->largest[k][block];
        tt_adamw_ref(numbers, param + at, grad + at, moment[0], moment[1], size);
        for (int k = 0; k < 2; k++) {
            float most = 0.0F;

            for (int64_t i = 0; i < size; i++)
                most = fmaxf(most, fabsf(moment[k][i]));
            moments->largest[k][block] = most;
            for (int64_t i = 0; i < size; i++)
                moments->code[k][at + i] =
                    most > 0.0F ? nearest_code(moments->map[k], (double)moment[k][i] / (double)most) : 0;
        }
    }
}

void tt_adamw_8bit_bf16_ref(const struct tt_adamw_numbers *numbers, const struct tt_adamw_rounding *rounding,
                            tt_bf16 *param, const float *grad, const struct tt_moment_blocks *moments, int64_t n)
{
    const struct tt_rng rng = {rounding->seed, rounding->stream};

    for (int64_t at = 0; at < n; at += TT_DYNAMIC_BLOCK) {
        int64_t size = n - at < TT_DYNAMIC_BLOCK ? n - at : TT_DYNAMIC_BLOCK;
        struct tt_moment_blocks block = *moments;
        float p[TT_DYNAMIC_BLOCK];

        for (int k = 0; k < 2; k++) {
            block.code[k] += at;
            block.largest[k] += at / TT_DYNAMIC_BLOCK;
        }
        tt_bf16_widen_ref(p, param + at, size);
        tt_adamw_8bit_ref(numbers, p, grad + at, &block, size);
        for (int64_t i = 0; i < size; i++)
            param[at + i] =
                tt_bf16_from_float_random(p[i], (uint16_t)tt_rng_bits(&rng, rounding->first + (uint64_t)(at + i)));
    }
}

/* --- products --- */

void tt_sgemm_ref(const struct tt_matmul *gemm)
{
    const float *a = gemm->a, *b = gemm->b, *acc = gemm->acc;
    float *c = gemm->c;

    for (int64_t i = 0; i < gemm->m; i++) {
        for (int64_t j = 0; j < gemm->n; j++) {
            double sum = 0.0;

            for (int64_t p = 0; p < gemm->k; p++)
                sum += (double)a[gemm->trans_a ? p * gemm->lda + i : i * gemm->lda + p] *
                       (double)b[gemm->trans_b ? j * gemm->ldb + p : p * gemm->ldb + j];
            if (acc)
                sum += (double)acc[i * gemm->ldc + j];
            c[i * gemm->ldc + j] = (float)sum;
        }
    }
}

void tt_bgemm_ref(const struct tt_matmul *gemm)
{
    const tt_bf16 *a = gemm->a, *b = gemm->b;

    for (int64_t i = 0; i < gemm->m; i++) {
        for (int64_t j = 0; j < gemm->n; j++) {
            int64_t at = i * gemm->ldc + j;
            double sum = 0.0;

            for (int64_t p = 0; p < gemm->k; p++)
                sum += (double)tt_bf16_to_float(a[gemm->trans_a ? p * gemm->lda + i : i * gemm->lda + p]) *
                       (double)tt_bf16_to_float(b[gemm->trans_b ? j * gemm->ldb + p : p * gemm->ldb + j]);
            if (gemm->acc)
                sum += (double)(gemm->c_bf16 ? tt_bf16_to_float(((const tt_bf16 *)gemm->acc)[at])
                                             : ((const float *)gemm->acc)[at]);
            if (gemm->c_bf16)
                ((tt_bf16 *)gemm->c)[at] = tt_bf16_from_float((float)sum);
            else
                ((float *)gemm->c)[at] = (float)sum;
        }
    }
}

/* --- the table --- */

/* amx.c under another name */
extern const struct tt_kernels tt_kernels_amx_emulated;

const struct tt_kernels *kernels_amx_emulated(void)
{
    static struct tt_kernels table;
    int last = 0;

    while (tt_kernels_variant(last + 1))
        last++;
    table = *tt_kernels_variant(last);
    table.name = "amx_emulated";
    table.bgemm = tt_kernels_amx_emulated.bgemm;
    table.attention_fwd_bf16 = tt_kernels_amx_emulated.attention_fwd_bf16;
    table.attention_bwd_bf16 = tt_kernels_amx_emulated.attention_bwd_bf16;
    return &table;
}

/* The portable vector kernels with 16 lanes; kernels that they lack come from the slowest variant. */
extern const struct tt_kernels tt_kernels_generic16;

static const struct tt_kernels *wide_variant(void)
{
    static struct tt_kernels table;

    table = tt_kernels_generic16;
#define TT_KERNEL(name, args) table.name = table.name ? table.name : tt_kernels_variant(0)->name;
#include "core/kernels/kernels.def"
#undef TT_KERNEL
    return &table;
}

const struct tt_kernels *kernels_variant(int i)
{
    static const struct tt_kernels reference = {
        .name = "ref",
#define TT_KERNEL(name, args) .name = tt_##name##_ref,
#include "core/kernels/kernels.def"
#undef TT_KERNEL
    };
    int n = 0;

    if (i == 0)
        return &reference;
    while (tt_kernels_variant(n))
        n++;
    return i <= n       ? tt_kernels_variant(i - 1)
           : i == n + 1 ? kernels_amx_emulated()
           : i == n + 2 ? wide_variant()
                        : NULL;
}

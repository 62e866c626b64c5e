/* SPDX-License-Identifier: MIT
 *
 * Kernels over flat shards: the optimizer, sums of squares, bfloat16. The bits are those of the
 * portable kernels: only products that are exact in double are fused.
 */
#include "core/kernels/kernels.h"
#include "core/kernels/vector/element.h"

/*
 * --- floats rounded to bfloat16 at random ---
 *
 * The bits are those of tt_rng_bits (core/math/rng.h) and of tt_bf16_from_float_random (core/math/bf16.h). The random
 * bits, 64 for each element, take two vectors, one for each half of the elements.
 */

/* The random bits of VF_LANES elements. */
struct random_words {
    vw first, second;
};

VF_INLINE struct random_words random_words(uint64_t seed, uint64_t stream, uint64_t index)
{
    return (struct random_words){philox(seed, stream, index), philox(seed, stream, index + VF_LANES / 2)};
}

/* Bits 16 k to 16 k + 15 of each element, in its lane of 32. */
VF_INLINE vw random_field(const struct random_words *words, int k)
{
    const vw mask = vw_set(0xffff);

    return vw_narrow(vw_and(vw_right(words->first, 16 * k), mask), vw_and(vw_right(words->second, 16 * k), mask));
}

/* The numbers of a step in vectors. */
struct numbers {
    vf clip, decay, weight_decay, mix1, beta2, mix2, step_size, root_correction2, eps;
};

VF_INLINE struct numbers spread(const struct tt_adamw_numbers *n)
{
    return (struct numbers){vf_set(n->clip),  vf_set(n->decay), vf_set(n->weight_decay), vf_set(n->mix1),
                            vf_set(n->beta2), vf_set(n->mix2),  vf_set(n->step_size),    vf_set(n->root_correction2),
                            vf_set(n->eps)};
}

/* A parameter and its moments. */
struct element_state {
    vf p, m, v;
};

VF_INLINE struct element_state updated(const struct numbers *k, bool decoupled, struct element_state s, vf grad)
{
    vf g = vf_mul(grad, k->clip), root;

    if (decoupled) {
        s.p = vf_mul(s.p, k->decay);
    } else {
        g = vf_add(g, vf_mul(k->weight_decay, s.p));
    }
    s.m = vf_add(s.m, vf_mul(k->mix1, vf_sub(g, s.m)));
    s.v = vf_add(vf_mul(s.v, k->beta2), vf_mul(vf_mul(k->mix2, g), g));
    root = vf_add(vf_div(vf_sqrt(s.v), k->root_correction2), k->eps);
    s.p = vf_sub(s.p, vf_div(vf_mul(k->step_size, s.m), root));
    return s;
}

/* n elements, VF_LANES or fewer. */
VF_INLINE void update(const struct numbers *k, bool decoupled, float *param, const float *grad, float *exp_avg,
                      float *exp_avg_sq, int64_t n)
{
    struct element_state s = {vf_load_n(param, n), vf_load_n(exp_avg, n), vf_load_n(exp_avg_sq, n)};

    s = updated(k, decoupled, s, vf_load_n(grad, n));
    vf_store_n(exp_avg, s.m, n);
    vf_store_n(exp_avg_sq, s.v, n);
    vf_store_n(param, s.p, n);
}

VF_INLINE void update_range(const struct tt_adamw_numbers *numbers, bool decoupled, float *param, const float *grad,
                            float *exp_avg, float *exp_avg_sq, int64_t n)
{
    const struct numbers k = spread(numbers);
    int64_t i = 0;

    for (; i + VF_LANES <= n; i += VF_LANES)
        update(&k, decoupled, param + i, grad + i, exp_avg + i, exp_avg_sq + i, VF_LANES);
    if (i < n)
        update(&k, decoupled, param + i, grad + i, exp_avg + i, exp_avg_sq + i, n - i);
}

void TT_ISA(tt_adamw)(const struct tt_adamw_numbers *numbers, float *param, const float *grad, float *exp_avg,
                      float *exp_avg_sq, int64_t n)
{
    if (numbers->decoupled) {
        update_range(numbers, true, param, grad, exp_avg, exp_avg_sq, n);
    } else {
        update_range(numbers, false, param, grad, exp_avg, exp_avg_sq, n);
    }
}

VF_INLINE void update_range_bf16(const struct tt_adamw_numbers *numbers, const struct tt_adamw_rounding *rounding,
                                 bool decoupled, tt_bf16 *param, const float *grad, tt_bf16 *exp_avg,
                                 tt_bf16 *exp_avg_sq, int64_t n)
{
    const struct numbers k = spread(numbers);

    for (int64_t i = 0; i < n; i += VF_LANES) {
        int64_t left = n - i;
        struct random_words random = random_words(rounding->seed, rounding->stream, rounding->first + (uint64_t)i);
        struct element_state s = {bf16_load_n(param + i, left), bf16_load_n(exp_avg + i, left),
                                  bf16_load_n(exp_avg_sq + i, left)};

        s = updated(&k, decoupled, s, vf_load_n(grad + i, left));
        vh_store_n(param + i, vh_rounded_at_random(s.p, random_field(&random, 0)), left);
        vh_store_n(exp_avg + i, vh_rounded_at_random(s.m, random_field(&random, 1)), left);
        vh_store_n(exp_avg_sq + i, vh_rounded_at_random(s.v, random_field(&random, 2)), left);
    }
}

void TT_ISA(tt_adamw_bf16)(const struct tt_adamw_numbers *numbers, const struct tt_adamw_rounding *rounding,
                           tt_bf16 *param, const float *grad, tt_bf16 *exp_avg, tt_bf16 *exp_avg_sq, int64_t n)
{
    if (numbers->decoupled) {
        update_range_bf16(numbers, rounding, true, param, grad, exp_avg, exp_avg_sq, n);
    } else {
        update_range_bf16(numbers, rounding, false, param, grad, exp_avg, exp_avg_sq, n);
    }
}

/*
 * --- moments of 8 bits ---
 *
 * A block is widened into floats and updated in vectors.
 */

#if defined(__AVX2__)

/* Writes whole vectors, as there is room for a whole block. */
VF_INLINE void block_load(float *to, const uint8_t *code, const struct tt_dynamic *map, float largest, int64_t n)
{
    uint8_t some[TT_DYNAMIC_BLOCK];

    if (n < TT_DYNAMIC_BLOCK) { /* whole vectors of codes, too */
        memset(some, 0, sizeof some);
        code = memcpy(some, code, (size_t)n);
    }
    for (int64_t i = 0; i < n; i += VF_LANES)
        vf_store(to + i, vf_mul(vf_lookup(map->number, vn_load(code + i)), vf_set(largest)));
}

/* Reads whole vectors. */
VF_INLINE void find_codes(uint8_t *code, float *from, const struct tt_dynamic *map, float largest, int64_t n)
{
    uint8_t some[TT_DYNAMIC_BLOCK], *to = n < TT_DYNAMIC_BLOCK ? some : code;

    for (int64_t i = 0; i < n; i += VF_LANES)
        vn_store(to + i, vn_codes(map, vf_div(vf_load(from + i), vf_set(largest))));
    if (n < TT_DYNAMIC_BLOCK)
        memcpy(code, some, (size_t)n);
}

#else /* no gathers */

VF_INLINE void block_load(float *to, const uint8_t *code, const struct tt_dynamic *map, float largest, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = map->number[code[i]] * largest;
}

VF_INLINE void find_codes(uint8_t *code, float *from, const struct tt_dynamic *map, float largest, int64_t n)
{
    for (int64_t i = 0; i < n; i += VF_LANES)
        vf_store_n(from + i, vf_div(vf_load_n(from + i, n - i), vf_set(largest)), n - i);
    for (int64_t i = 0; i < n; i++)
        code[i] = tt_dynamic_code(map, from[i]);
}

#endif

/* The codes of tt_dynamic_code, or 0 in a block of zeros. May overwrite `from`. */
VF_INLINE void block_store(uint8_t *code, float *from, const struct tt_dynamic *map, float largest, int64_t n)
{
    if (largest > 0.0F) {
        find_codes(code, from, map, largest, n);
    } else {
        memset(code, 0, (size_t)n);
    }
}

/* A block of at most TT_DYNAMIC_BLOCK elements. The parameter is in `param`, or if that is NULL in `half`, where it is
 * rounded at random. */
VF_INLINE void update_block(const struct numbers *k, const struct tt_adamw_rounding *rounding, float *param,
                            tt_bf16 *half, const float *grad, const struct tt_moment_blocks *moments, int64_t at,
                            int64_t n)
{
    float moment[2][TT_DYNAMIC_BLOCK];
    vf largest[2] = {vf_zero(), vf_zero()};

    for (int j = 0; j < 2; j++)
        block_load(moment[j], moments->code[j] + at, moments->map[j], moments->largest[j][at / TT_DYNAMIC_BLOCK], n);
    for (int64_t i = 0; i < n; i += VF_LANES) {
        int64_t left = n - i;
        struct element_state s = {param ? vf_load_n(param + at + i, left) : bf16_load_n(half + at + i, left),
                                  vf_load_n(moment[0] + i, left), vf_load_n(moment[1] + i, left)};

        s = updated(k, true, s, vf_load_n(grad + at + i, left));
        largest[0] = vf_max(largest[0], vf_max(s.m, vf_sub(vf_zero(), s.m)));
        largest[1] = vf_max(largest[1], s.v);
        vf_store_n(moment[0] + i, s.m, left);
        vf_store_n(moment[1] + i, s.v, left);
        if (param) {
            vf_store_n(param + at + i, s.p, left);
        } else {
            struct random_words random =
                random_words(rounding->seed, rounding->stream, rounding->first + (uint64_t)(at + i));

            vh_store_n(half + at + i, vh_rounded_at_random(s.p, random_field(&random, 0)), left);
        }
    }
    for (int j = 0; j < 2; j++) {
        float most = vf_largest(largest[j]);

        moments->largest[j][at / TT_DYNAMIC_BLOCK] = most;
        block_store(moments->code[j] + at, moment[j], moments->map[j], most, n);
    }
}

void TT_ISA(tt_adamw_8bit)(const struct tt_adamw_numbers *numbers, float *param, const float *grad,
                           const struct tt_moment_blocks *moments, int64_t n)
{
    const struct numbers k = spread(numbers);

    for (int64_t at = 0; at < n; at += TT_DYNAMIC_BLOCK)
        update_block(&k, NULL, param, NULL, grad, moments, at, n - at < TT_DYNAMIC_BLOCK ? n - at : TT_DYNAMIC_BLOCK);
}

void TT_ISA(tt_adamw_8bit_bf16)(const struct tt_adamw_numbers *numbers, const struct tt_adamw_rounding *rounding,
                                tt_bf16 *param, const float *grad, const struct tt_moment_blocks *moments, int64_t n)
{
    const struct numbers k = spread(numbers);

    for (int64_t at = 0; at < n; at += TT_DYNAMIC_BLOCK)
        update_block(&k, rounding, NULL, param, grad, moments, at,
                     n - at < TT_DYNAMIC_BLOCK ? n - at : TT_DYNAMIC_BLOCK);
}

/* Element i belongs to lane i % 8. */
void TT_ISA(tt_squares)(double *sum, const float *x, int64_t n)
{
    vd eight = vd_zero();

    for (int64_t i = 0; i < n; i += 8)
        eight = vd_add_squares(eight, x + i, n - i);
    *sum = vd_sum(eight);
}

void TT_ISA(tt_bf16_round)(tt_bf16 *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += VF_LANES)
        bf16_store_n(to + i, vf_load_n(from + i, n - i), n - i);
}

void TT_ISA(tt_bf16_widen)(float *to, const tt_bf16 *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += VF_LANES)
        vf_store_n(to + i, bf16_load_n(from + i, n - i), n - i);
}

/* --- the squares of a row of a weight with its adapter --- */

void TT_ISA(tt_row_squares)(float *sum, const float *w, const float *a, const float *b, int64_t rank, int64_t stride,
                            int64_t width)
{
    enum { LANES = 16, PARTS = 4, AT_ONCE = LANES * PARTS };
    vs squares = vs_zero();
    int64_t i = 0;

    for (; i + AT_ONCE <= width; i += AT_ONCE) {
        vs v[PARTS];

        for (int64_t j = 0; j < PARTS; j++)
            v[j] = vs_load(w + i + j * LANES);
        for (int64_t k = 0; k < rank; k++)
            for (int64_t j = 0; j < PARTS; j++)
                v[j] = vs_fma(vs_set(b[k]), vs_load(a + k * stride + i + j * LANES), v[j]);
        for (int64_t j = 0; j < PARTS; j++)
            squares = vs_fma(v[j], v[j], squares);
    }
    for (; i < width; i += LANES) {
        vs v = vs_load_n(w + i, width - i);

        for (int64_t k = 0; k < rank; k++)
            v = vs_fma(vs_set(b[k]), vs_load_n(a + k * stride + i, width - i), v);
        squares = vs_fma(v, v, squares);
    }
    *sum = vs_sum(squares);
}

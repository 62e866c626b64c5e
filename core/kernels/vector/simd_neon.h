/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_VECTOR_SIMD_NEON_H
#define TT_CORE_KERNELS_VECTOR_SIMD_NEON_H

/**
 * The operations of simd.h for the vectors that every 64-bit Arm processor has: 4 lanes. simd_c.h says what each does.
 */
#include <string.h>

#include <arm_neon.h>

#define VF_LANES     INT64_C(4) /* 64 bits, like the indices that it is multiplied with */
#define VF_REGISTERS 32
typedef float32x4_t vf;
typedef uint32x4_t vmask; /* all bits of a lane */

VF_INLINE vf vf_zero(void)
{
    return vdupq_n_f32(0.0F);
}

VF_INLINE vf vf_set(float x)
{
    return vdupq_n_f32(x);
}

VF_INLINE vf vf_load(const float *x)
{
    return vld1q_f32(x);
}

VF_INLINE void vf_store(float *x, vf a)
{
    vst1q_f32(x, a);
}

VF_INLINE vf vf_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}

VF_INLINE vf vf_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}

VF_INLINE vf vf_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}

VF_INLINE vf vf_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}

VF_INLINE vf vf_sqrt(vf a)
{
    return vsqrtq_f32(a);
}

VF_INLINE vf vf_fma(vf a, vf b, vf c)
{
    return vfmaq_f32(c, a, b);
}

VF_INLINE vf vf_fnma(vf a, vf b, vf c)
{
    return vfmsq_f32(c, a, b);
}

/* a in the lanes of the mask, b in the others. */
VF_INLINE vf vf_select(vmask mask, vf a, vf b)
{
    return vbslq_f32(mask, a, b);
}

VF_INLINE vmask vf_less(vf a, vf b)
{
    return vcltq_f32(a, b);
}

/* Arm's own maximum is NaN if one of the two is. */
VF_INLINE vf vf_max(vf a, vf b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

VF_INLINE vf vf_min(vf a, vf b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}

VF_INLINE vmask vf_first(int64_t n)
{
    const int32x4_t lanes = {0, 1, 2, 3};
    int bound = n >= VF_LANES ? (int)VF_LANES : n <= 0 ? 0 : (int)n;

    return vcltq_s32(lanes, vdupq_n_s32(bound));
}

/* There are no loads and stores with a mask. */
VF_INLINE vf vf_load_n(const float *x, int64_t n)
{
    if (n >= VF_LANES)
        return vf_load(x);
    if (n <= 0)
        return vf_zero();
    if (n == 1)
        return vld1q_lane_f32(x, vf_zero(), 0);
    return vcombine_f32(vld1_f32(x), n == 3 ? vld1_lane_f32(x + 2, vdup_n_f32(0.0F), 0) : vdup_n_f32(0.0F));
}

VF_INLINE void vf_store_n(float *x, vf a, int64_t n)
{
    if (n >= VF_LANES) {
        vf_store(x, a);
    } else if (n >= 2) {
        vst1_f32(x, vget_low_f32(a));
        if (n == 3)
            vst1q_lane_f32(x + 2, a, 2);
    } else if (n == 1) {
        vst1q_lane_f32(x, a, 0);
    }
}

VF_INLINE vf vf_of_bits(uint32x4_t bits)
{
    return vreinterpretq_f32_u32(bits);
}

/* In two factors, since 2^128 is not a float. */
VF_INLINE vf vf_scale(vf a, vf shifted)
{
    int32x4_t n = vsubq_s32(vreinterpretq_s32_f32(shifted), vdupq_n_s32(0x4b400000));
    int32x4_t half = vshrq_n_s32(n, 1), bias = vdupq_n_s32(127);
    int32x4_t low = vshlq_n_s32(vaddq_s32(half, bias), 23);
    int32x4_t high = vshlq_n_s32(vaddq_s32(vsubq_s32(n, half), bias), 23);

    return vmulq_f32(vmulq_f32(a, vreinterpretq_f32_s32(low)), vreinterpretq_f32_s32(high));
}

VF_INLINE vf vf_power(vf shifted)
{
    return vf_of_bits(vaddq_u32(vshlq_n_u32(vreinterpretq_u32_f32(shifted), 23), vdupq_n_u32(0x3f800000)));
}

/* (0 + 2) + (1 + 3) */
VF_INLINE float vf_sum(vf a)
{
    return vpadds_f32(vadd_f32(vget_low_f32(a), vget_high_f32(a)));
}

VF_INLINE float vf_largest(vf a)
{
    return vmaxvq_f32(a);
}

/* --- halves: the upper 16 bits of floats, which are bfloat16 --- */

typedef uint16x4_t vh;

VF_INLINE vh vh_load(const uint16_t *x)
{
    return vld1_u16(x);
}

VF_INLINE vh vh_load_n(const uint16_t *x, int64_t n)
{
    uint16_t some[VF_LANES] = {0};

    if (n >= VF_LANES)
        return vh_load(x);
    for (int64_t i = 0; i < n; i++)
        some[i] = x[i];
    return vh_load(some);
}

VF_INLINE void vh_store(uint16_t *x, vh a)
{
    vst1_u16(x, a);
}

VF_INLINE void vh_store_n(uint16_t *x, vh a, int64_t n)
{
    uint16_t some[VF_LANES];

    if (n >= VF_LANES) {
        vh_store(x, a);
        return;
    }
    vh_store(some, a);
    for (int64_t i = 0; i < n; i++)
        x[i] = some[i];
}

/* The lower and the upper bytes of the elements are chosen apart. */
VF_INLINE void vh_choose(uint16_t *to, const vh *table, const uint8_t *pairs, bool in_turn)
{
    uint8x16_t bytes = vld1q_u8(pairs), low = vandq_u8(bytes, vdupq_n_u8(15)), high = vshrq_n_u8(bytes, 4);
    uint8x16_t first = vreinterpretq_u8_u16(vcombine_u16(table[0], table[1]));
    uint8x16_t second = vreinterpretq_u8_u16(vcombine_u16(table[2], table[3]));
    uint8x16_t lower = vuzp1q_u8(first, second), upper = vuzp2q_u8(first, second);
    uint8x16_t numbers[2] = {in_turn ? vzip1q_u8(high, low) : low, in_turn ? vzip2q_u8(high, low) : high};

    VF_UNROLL
    for (int64_t i = 0; i < 2; i++) {
        uint8x16_t a = vqtbl1q_u8(lower, numbers[i]), b = vqtbl1q_u8(upper, numbers[i]);

        vst1q_u16(to + 16 * i, vreinterpretq_u16_u8(vzip1q_u8(a, b)));
        vst1q_u16(to + 16 * i + 8, vreinterpretq_u16_u8(vzip2q_u8(a, b)));
    }
}

VF_INLINE vf vh_widened(vh a)
{
    return vf_of_bits(vshll_n_u16(a, 16));
}

VF_INLINE vh vh_rounded(vf x)
{
    uint32x4_t bits = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    uint16x4_t up = vshrn_n_u32(vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd), 16);
    uint16x4_t quiet = vorr_u16(vshrn_n_u32(bits, 16), vdup_n_u16(0x40));

    return vbsl_u16(vmovn_u32(vceqq_f32(x, x)), up, quiet);
}

/* --- words of 64 bits --- */

typedef uint64x2_t vw;

VF_INLINE vw vw_set(uint64_t x)
{
    return vdupq_n_u64(x);
}

VF_INLINE vw vw_count(void)
{
    return (vw){0, 1};
}

VF_INLINE vf vw_floats(vw a)
{
    return vreinterpretq_f32_u64(a);
}

VF_INLINE vw vw_narrow(vw a, vw b)
{
    return vreinterpretq_u64_u32(vcombine_u32(vmovn_u64(a), vmovn_u64(b)));
}

VF_INLINE vh vh_rounded_at_random(vf x, vw random)
{
    uint32x4_t bits = vreinterpretq_u32_f32(x), exponent = vdupq_n_u32(0x7f800000);
    uint32x4_t special = vceqq_u32(vandq_u32(bits, exponent), exponent);
    uint16x4_t up = vshrn_n_u32(vaddq_u32(bits, vreinterpretq_u32_u64(random)), 16);

    return vbsl_u16(vmovn_u32(special), vh_rounded(x), up);
}

VF_INLINE vw vw_add(vw a, vw b)
{
    return vaddq_u64(a, b);
}

VF_INLINE vw vw_and(vw a, vw b)
{
    return vandq_u64(a, b);
}

VF_INLINE vw vw_or(vw a, vw b)
{
    return vorrq_u64(a, b);
}

VF_INLINE vw vw_xor(vw a, vw b)
{
    return veorq_u64(a, b);
}

VF_INLINE vw vw_left(vw a, int n)
{
    return vshlq_u64(a, vdupq_n_s64(n));
}

VF_INLINE vw vw_right(vw a, int n)
{
    return vshlq_u64(a, vdupq_n_s64(-n));
}

VF_INLINE vw vw_mul_low(vw a, vw b)
{
    return vmull_u32(vmovn_u64(a), vmovn_u64(b));
}

/* --- lanes that change places --- */

VF_INLINE vf vf_even_twice(vf a)
{
    return vtrn1q_f32(a, a);
}

VF_INLINE vf vf_odd_twice(vf a)
{
    return vtrn2q_f32(a, a);
}

VF_INLINE vf vf_swap_pairs(vf a)
{
    return vrev64q_f32(a);
}

VF_INLINE vf vf_every_other(vf low, vf high, int odd)
{
    return odd ? vuzp2q_f32(low, high) : vuzp1q_f32(low, high);
}

VF_INLINE vf vf_fma_sub_add(vf a, vf b, vf c)
{
    const uint32x4_t signs = {0x80000000, 0, 0x80000000, 0};

    return vfmaq_f32(vf_of_bits(veorq_u32(vreinterpretq_u32_f32(c), signs)), a, b);
}

/* --- elements of packed matrices --- */

VF_INLINE vf vf_of_bytes(const int8_t *x)
{
    int32_t four;
    int8x8_t bytes;

    memcpy(&four, x, sizeof four);
    bytes = vreinterpret_s8_s32(vdup_n_s32(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}

VF_INLINE vf vf_of_f16(const uint16_t *x)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(x)));
}

typedef uint32x4_t vn;

VF_INLINE vn vn_load(const uint8_t *x)
{
    uint32_t four;
    uint8x8_t bytes;

    memcpy(&four, x, sizeof four);
    bytes = vreinterpret_u8_u32(vdup_n_u32(four));
    return vmovl_u16(vget_low_u16(vmovl_u8(bytes)));
}

VF_INLINE vn vn_next(vn a)
{
    return vshrq_n_u32(a, 4);
}

/* The table as bytes: the four bytes of element n are at 4 n. */
VF_INLINE vf vf_choose(const vf *table, vn a)
{
    uint8x16x4_t bytes = {{vreinterpretq_u8_f32(table[0]), vreinterpretq_u8_f32(table[1]),
                           vreinterpretq_u8_f32(table[2]), vreinterpretq_u8_f32(table[3])}};
    uint32x4_t at = vandq_u32(a, vdupq_n_u32(15));

    at = vaddq_u32(vmulq_u32(at, vdupq_n_u32(0x04040404)), vdupq_n_u32(0x03020100));
    return vreinterpretq_f32_u8(vqtbl4q_u8(bytes, vreinterpretq_u8_u32(at)));
}

VF_INLINE void vf_store_halves(float *low, float *high, vf a)
{
    vst1_f32(low, vget_low_f32(a));
    vst1_f32(high, vget_high_f32(a));
}

VF_INLINE void vf_store_few(float *x, vf a, int64_t n)
{
    vf_store_n(x, a, n);
}

/* Transposes VF_LANES vectors in place. */
VF_INLINE void vf_transpose(vf *x)
{
    float64x2_t a = vreinterpretq_f64_f32(vtrn1q_f32(x[0], x[1])), b = vreinterpretq_f64_f32(vtrn2q_f32(x[0], x[1]));
    float64x2_t c = vreinterpretq_f64_f32(vtrn1q_f32(x[2], x[3])), d = vreinterpretq_f64_f32(vtrn2q_f32(x[2], x[3]));

    x[0] = vreinterpretq_f32_f64(vtrn1q_f64(a, c));
    x[1] = vreinterpretq_f32_f64(vtrn1q_f64(b, d));
    x[2] = vreinterpretq_f32_f64(vtrn2q_f64(a, c));
    x[3] = vreinterpretq_f32_f64(vtrn2q_f64(b, d));
}

#define VF_TILE VF_LANES

VF_INLINE void vf_transpose_tile(float *to, int64_t to_row, const float *from, int64_t from_row)
{
    vf x[VF_TILE];

    VF_UNROLL
    for (int64_t i = 0; i < VF_TILE; i++)
        x[i] = vf_load(from + i * from_row);
    vf_transpose(x);
    VF_UNROLL
    for (int64_t i = 0; i < VF_TILE; i++)
        vf_store(to + i * to_row, x[i]);
}

/* --- sums in double --- */

typedef struct {
    float64x2_t of[4];
} vd;

VF_INLINE vd vd_zero(void)
{
    float64x2_t zero = vdupq_n_f64(0.0);

    return (vd){{zero, zero, zero, zero}};
}

VF_INLINE vd vd_add_squares(vd sum, const float *x, int64_t n)
{
    vf low = vf_load_n(x, n), high = vf_load_n(x + VF_LANES, n - VF_LANES);
    float64x2_t a = vcvt_f64_f32(vget_low_f32(low)), b = vcvt_high_f64_f32(low);
    float64x2_t c = vcvt_f64_f32(vget_low_f32(high)), d = vcvt_high_f64_f32(high);

    return (vd){{vfmaq_f64(sum.of[0], a, a), vfmaq_f64(sum.of[1], b, b), vfmaq_f64(sum.of[2], c, c),
                 vfmaq_f64(sum.of[3], d, d)}};
}

VF_INLINE double vd_sum(vd a)
{
    return vpaddd_f64(vaddq_f64(vaddq_f64(a.of[0], a.of[2]), vaddq_f64(a.of[1], a.of[3])));
}

#endif

/* SPDX-License-Identifier: MIT
 *
 * The fused multiply-add of the portable vectors, which processors without one use, compared with the C library's,
 * which rounds once: at random arguments, and where rounding a sum first to double and then to float would be wrong.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/kernels/vector/simd.h"
#include "core/math/rng.h"

static int failures, tried;

static void check(float a, float b, float c)
{
    float sum[VF_LANES], want = fmaf(a, b, c);

    vf_store(sum, vf_fma(vf_set(a), vf_set(b), vf_set(c)));
    for (int64_t i = 0; i < VF_LANES; i++) {
        tried++;
        if (memcmp(&sum[i], &want, sizeof want) == 0 || (isnan(want) && isnan(sum[i])))
            continue;
        if (failures++ < 5)
            printf("# fma(%a, %a, %a) is %a, wanted %a\n", (double)a, (double)b, (double)c, (double)sum[i],
                   (double)want);
    }
}

/* A float with random bits, of any exponent or near 2^around. */
static float any(const struct tt_rng *rng, uint64_t i, int around)
{
    uint32_t bits = (uint32_t)tt_rng_bits(rng, i);
    float x;

    if (around)
        bits = (bits & 0x807fffffU) | ((uint32_t)(127 + around + (int)(bits >> 23 & 3U)) << 23);
    if (i % 3 == 0)
        bits &= 0xfffff000U; /* few bits: sums are exact, or halfway */
    memcpy(&x, &bits, sizeof x);
    return x;
}

int main(void)
{
    static const int exponents[] = {0, 1, -20, 24, -70, -64, 60};
    static const float special[] = {0.0F,       -0.0F,           1.0F,
                                    -1.0F,      0x1p-149F,       0x1p-126F,
                                    -0x1p-126F, 0x1.fffffep127F, -0x1.fffffep127F,
                                    INFINITY,   -INFINITY,       NAN,
                                    0x1p-75F,   0x1.000002p0F,   0x1.fffffep-1F,
                                    0x1p24F,    0x1.8p-74F,      0x1p64F};
    enum { SPECIAL = sizeof special / sizeof *special };
    struct tt_rng rng = tt_rng_make(1, "fused");

    for (int a = 0; a < SPECIAL; a++)
        for (int b = 0; b < SPECIAL; b++)
            for (int c = 0; c < SPECIAL; c++)
                check(special[a], special[b], special[c]);
    for (uint64_t i = 0; i < 400000; i++) {
        int e = exponents[i % (sizeof exponents / sizeof *exponents)];
        float a = any(&rng, 3 * i, e), b = any(&rng, 3 * i + 1, e ? 1 : 0), c = any(&rng, 3 * i + 2, 0);

        check(a, b, c);
        check(a, b, any(&rng, 3 * i + 2, e ? e + 1 : 0));
        /* the product is just above or below half an ulp of c */
        c = ldexpf(1.0F + ldexpf((float)(i % 1000), -23), 25);
        check(1.0F + ldexpf(1.0F, -(int)(i % 23) - 1), i % 2 ? 2.0F - ldexpf(1.0F, -22) : 2.0F, c);
        check(1.0F + ldexpf(1.0F, -(int)(i % 23) - 1), i % 2 ? -2.0F + ldexpf(1.0F, -22) : -2.0F, c);
    }
    printf("%s 1 - vf_fma rounds once: %d results of %d lanes\n1..1\n", failures ? "not ok" : "ok", tried,
           (int)VF_LANES);
    return failures ? 1 : 0;
}

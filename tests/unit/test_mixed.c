/* SPDX-License-Identifier: MIT
 *
 * The conversions of mixed precision. Rounding is compared with a search; conversions are right in place at every size;
 * sums are in the order of the tree.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/math/rng.h"
#include "core/ops/step/step.h"
#include "tests/help/tree.h"

static struct tt_team *team;

static int set_up(void **state)
{
    return tt_team_new(3, &team);
}

static int tear_down(void **state)
{
    tt_team_free(team);
    return 0;
}

/* The step ops on the host. */
static void round_to(const float *from, int64_t n, uint16_t *to)
{
    const struct tt_step_call call = {.in = from, .out = {to}, .n = n, .team = team};

    tt_step_row(TT_STEP_ROUND)->run(&call);
}

static void in_place(enum tt_step_op_id op, float *whole, int64_t n)
{
    const struct tt_step_call call = {.out = {whole}, .n = n, .team = team};

    tt_step_row(op)->run(&call);
}

static void fold_halves(const uint16_t *leaves, int64_t n_leaves, int64_t stride, int64_t n, float *sum)
{
    const struct tt_step_call call = {
        .in = leaves, .parts = n_leaves, .stride = stride, .n = n, .out = {sum}, .team = team};

    tt_step_row(TT_STEP_FOLD_HALVES)->run(&call);
}

static float of_bits(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The nearer of the two neighbours in bfloat16, or the even one if both are equally near. Overflow gives infinity, as
 * in IEEE. */
static float nearest(float value)
{
    uint32_t low = bits_of(value) & 0xffff0000U, high = low + 0x10000U;
    double below = fabs((double)value - (double)of_bits(low));
    double above =
        isinf(of_bits(high)) ? ldexp(1.0, 128) - fabs((double)value) : fabs((double)of_bits(high) - (double)value);

    if (below != above)
        return of_bits(below < above ? low : high);
    return of_bits(low & 0x10000U ? high : low);
}

static void numbers_are_rounded_to_the_nearest(void **state)
{
    for (uint64_t bits = 0; bits < 1ULL << 32; bits += 977) {
        float value = of_bits((uint32_t)bits), found;
        uint16_t half;

        round_to(&value, 1, &half);
        found = of_bits((uint32_t)half << 16);
        if (isnan(value) ? !isnan(found) : bits_of(found) != bits_of(isinf(value) ? value : nearest(value)))
            fail_msg("%a (%08x) gives %a", (double)value, (unsigned)bits, (double)found);
    }
    for (uint32_t low = 0x7f800001U; low < 0x7f800100U; low++) { /* NaNs whose upper 16 bits are those of infinity */
        float value = of_bits(low);
        uint16_t half;

        round_to(&value, 1, &half);
        assert_true(isnan(of_bits((uint32_t)half << 16)));
    }
}

static void numbers_are_narrowed_in_place(void **state)
{
    static const int64_t sizes[] = {0, 1, 2, 3, 1023, 1024, 1025, 1026, 2047, 2049, 4097, 8191, 30000, 100003};
    struct tt_rng rng = tt_rng_make(1, "wire");

    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int64_t n = sizes[s];
        float *whole = tt_calloc((size_t)n + 1, sizeof *whole), *from = tt_calloc((size_t)n + 1, sizeof *from);
        uint16_t *wanted = tt_calloc((size_t)n + 1, sizeof *wanted);

        for (int64_t i = 0; i < n; i++)
            whole[i] = from[i] = (float)tt_rng_normal(&rng, (uint64_t)i, 0.0);
        whole[n] = 5.0F; /* guards */
        round_to(from, n, wanted);
        in_place(TT_STEP_NARROW, whole, n);
        assert_memory_equal(tt_mixed_half(whole, n), wanted, (size_t)n * sizeof *wanted);
        assert_true(whole[n] == 5.0F);
        tt_free(whole);
        tt_free(from);
        tt_free(wanted);
    }
}

static void sums_are_the_trees(void **state)
{
    enum { N = 700, MOST = 13, STRIDE = N + 5 };
    struct tt_rng rng = tt_rng_make(2, "wire");
    uint16_t *leaves = tt_calloc((size_t)MOST * STRIDE, sizeof *leaves);

    for (int i = 0; i < MOST * STRIDE; i++)
        leaves[i] = (uint16_t)(bits_of((float)tt_rng_normal(&rng, (uint64_t)i, 0.0)) >> 16);
    for (int n_leaves = 1; n_leaves <= MOST; n_leaves++) {
        float wide[MOST][N], *rows[MOST], found[N];

        for (int leaf = 0; leaf < n_leaves; leaf++) {
            rows[leaf] = wide[leaf];
            for (int i = 0; i < N; i++)
                wide[leaf][i] = of_bits((uint32_t)leaves[leaf * STRIDE + i] << 16);
        }
        fold_tree(rows, n_leaves, N);
        fold_halves(leaves, n_leaves, STRIDE, N, found);
        assert_memory_equal(found, wide[0], sizeof found);
    }
    tt_free(leaves);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_rounded_to_the_nearest),
        cmocka_unit_test(numbers_are_narrowed_in_place),
        cmocka_unit_test(sums_are_the_trees),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

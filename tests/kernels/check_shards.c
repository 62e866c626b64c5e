/* SPDX-License-Identifier: MIT
 *
 * Kernels on flat shards: the optimizer, sums of squares, bfloat16. Losses must not depend on the layout. So these
 * kernels agree not only with the reference, but bit for bit with the portable kernel, and their results are the same
 * wherever the elements are cut.
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/math/bf16.h"
#include "core/math/round.h"
#include "tests/kernels/kernelcheck.h"

static const int64_t lengths[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 97, 257, 1000, 4099};
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

static bool is_reference(const struct check *check)
{
    return strcmp(check->table->name, "ref") == 0;
}

struct moments {
    float *param, *exp_avg, *exp_avg_sq;
};

static struct moments copy_of(struct check *check, const struct moments *from, int64_t n)
{
    return (struct moments){check_copy(check, from->param, n), check_copy(check, from->exp_avg, n),
                            check_copy(check, from->exp_avg_sq, n)};
}

static void compare_moments(struct check *check, const char *shape, const struct moments *got,
                            const struct moments *want, const double *near, int64_t n)
{
    check_compare(check, "param", shape, got->param, want->param, n, near, 0.0);
    check_compare(check, "exp_avg", shape, got->exp_avg, want->exp_avg, n, near, 0.0);
    check_compare(check, "exp_avg_sq", shape, got->exp_avg_sq, want->exp_avg_sq, n, near, 0.0);
}

/* How much rounding in float may change an element. */
static double adamw_error(const struct moments *given, const float *grad, int64_t i)
{
    return 8.0 * (double)FLT_EPSILON *
           (1.0 + fabs((double)given->param[i]) + fabs((double)given->exp_avg[i]) + (double)given->exp_avg_sq[i] +
            fabs((double)grad[i]) + (double)grad[i] * (double)grad[i]);
}

static void check_adamw(struct check *check)
{
    for (int k = 0; k < 2 * N_LENGTHS * N_FILLS; k++) {
        int64_t n = lengths[k / 2 / N_FILLS], cut = check_draw(check, n);
        struct tt_adamw_numbers numbers = {k % 2, 0.75F, 0.9999F, 0.1F, 0.1F, 0.95F, 0.05F, 1e-3F, 0.5F, 1e-8F};
        float *grad = check_filled(check, n, k / 2 % N_FILLS);
        struct moments given = {check_filled(check, n, FILL_NORMAL), check_filled(check, n, FILL_NORMAL),
                                check_filled(check, n, FILL_NORMAL)};
        struct moments want, got, parts, portable;
        double *near = check_doubles(check, n);
        char shape[64];

        (void)snprintf(shape, sizeof shape, "n=%lld fill %d decoupled %d", (long long)n, k / 2 % N_FILLS, k % 2);
        for (int64_t i = 0; i < n; i++) {
            given.exp_avg_sq[i] = fabsf(given.exp_avg_sq[i]);
            near[i] = adamw_error(&given, grad, i);
        }
        want = copy_of(check, &given, n);
        got = copy_of(check, &given, n);
        parts = copy_of(check, &given, n);
        portable = copy_of(check, &given, n);
        tt_adamw_ref(&numbers, want.param, grad, want.exp_avg, want.exp_avg_sq, n);
        check->table->adamw(&numbers, got.param, grad, got.exp_avg, got.exp_avg_sq, n);
        compare_moments(check, shape, &got, &want, near, n);
        check->table->adamw(&numbers, parts.param, grad, parts.exp_avg, parts.exp_avg_sq, cut);
        check->table->adamw(&numbers, parts.param + cut, grad + cut, parts.exp_avg + cut, parts.exp_avg_sq + cut,
                            n - cut);
        compare_moments(check, shape, &parts, &got, NULL, n);
        tt_adamw_loops(&numbers, portable.param, grad, portable.exp_avg, portable.exp_avg_sq, n);
        if (!is_reference(check))
            compare_moments(check, shape, &got, &portable, NULL, n);
        check_reset(check, shape);
    }
}

static uint16_t *check_halves(struct check *check, int64_t n)
{
    return (uint16_t *)(void *)check_array(check, (n + 1) / 2);
}

/* Weights and moments in bfloat16. */
struct halves {
    tt_bf16 *of[3];
};

static struct halves copy_of_halves(struct check *check, const struct halves *from, int64_t n)
{
    struct halves copy;

    for (int k = 0; k < 3; k++)
        copy.of[k] = memcpy(check_halves(check, n), from->of[k], (size_t)n * sizeof(tt_bf16));
    return copy;
}

static struct moments widened(struct check *check, const struct halves *from, int64_t n)
{
    struct moments to = {check_array(check, n), check_array(check, n), check_array(check, n)};

    tt_bf16_widen_ref(to.param, from->of[0], n);
    tt_bf16_widen_ref(to.exp_avg, from->of[1], n);
    tt_bf16_widen_ref(to.exp_avg_sq, from->of[2], n);
    return to;
}

static struct halves random_halves(struct check *check, int64_t n)
{
    struct halves h;

    for (int k = 0; k < 3; k++) {
        const float *x = check_filled(check, n, FILL_NORMAL);

        h.of[k] = check_halves(check, n);
        for (int64_t i = 0; i < n; i++)
            h.of[k][i] = tt_bf16_from_float(k == 2 ? fabsf(x[i]) : x[i]);
    }
    return h;
}

/*
 * The reference computes in double, so the values that it rounds differ by as much as check_adamw allows. Random bits
 * may then carry in one and not in the other: such elements differ by up to 2^-7 of the value, the largest gap between
 * neighbours. All others have the same bits.
 */
static void check_adamw_bf16(struct check *check)
{
    for (int k = 0; k < 2 * N_LENGTHS * N_FILLS; k++) {
        int64_t n = lengths[k / 2 / N_FILLS], cut = check_draw(check, n);
        struct tt_adamw_numbers numbers = {k % 2, 0.75F, 0.9999F, 0.1F, 0.1F, 0.95F, 0.05F, 1e-3F, 0.5F, 1e-8F};
        /* elements on both sides of 2^32 */
        struct tt_adamw_rounding rounding = {(uint64_t)k * 77, UINT64_C(0x123456789abcdef0), UINT32_MAX - 20U}, rest;
        float *grad = check_filled(check, n, k / 2 % N_FILLS);
        struct halves given = random_halves(check, n), want = copy_of_halves(check, &given, n);
        struct halves got = copy_of_halves(check, &given, n), parts = copy_of_halves(check, &given, n);
        struct halves portable = copy_of_halves(check, &given, n);
        struct moments before = widened(check, &given, n), wide_want, wide_got, wide;
        double *near[3] = {check_doubles(check, n), check_doubles(check, n), check_doubles(check, n)};
        char shape[64];

        (void)snprintf(shape, sizeof shape, "n=%lld fill %d decoupled %d", (long long)n, k / 2 % N_FILLS, k % 2);
        tt_adamw_bf16_ref(&numbers, &rounding, want.of[0], grad, want.of[1], want.of[2], n);
        check->table->adamw_bf16(&numbers, &rounding, got.of[0], grad, got.of[1], got.of[2], n);
        wide_want = widened(check, &want, n);
        wide_got = widened(check, &got, n);
        for (int64_t i = 0; i < n; i++) {
            double before_rounding = adamw_error(&before, grad, i);

            near[0][i] = before_rounding + 0x1p-7 * (fabs((double)wide_want.param[i]) + before_rounding);
            near[1][i] = before_rounding + 0x1p-7 * (fabs((double)wide_want.exp_avg[i]) + before_rounding);
            near[2][i] = before_rounding + 0x1p-7 * (fabs((double)wide_want.exp_avg_sq[i]) + before_rounding);
        }
        check_compare(check, "param", shape, wide_got.param, wide_want.param, n, near[0], 0.0);
        check_compare(check, "exp_avg", shape, wide_got.exp_avg, wide_want.exp_avg, n, near[1], 0.0);
        check_compare(check, "exp_avg_sq", shape, wide_got.exp_avg_sq, wide_want.exp_avg_sq, n, near[2], 0.0);
        rest = rounding;
        rest.first += (uint64_t)cut;
        check->table->adamw_bf16(&numbers, &rounding, parts.of[0], grad, parts.of[1], parts.of[2], cut);
        check->table->adamw_bf16(&numbers, &rest, parts.of[0] + cut, grad + cut, parts.of[1] + cut, parts.of[2] + cut,
                                 n - cut);
        wide = widened(check, &parts, n);
        compare_moments(check, shape, &wide, &wide_got, NULL, n);
        tt_adamw_bf16_loops(&numbers, &rounding, portable.of[0], grad, portable.of[1], portable.of[2], n);
        wide = widened(check, &portable, n);
        if (!is_reference(check))
            compare_moments(check, shape, &wide_got, &wide, NULL, n);
        check_reset(check, shape);
    }
}

/* A parameter in floats or in bfloat16, and its moments in blocks. */
struct in_blocks {
    float *param;
    tt_bf16 *half;
    struct tt_moment_blocks moments;
};

static uint8_t *check_bytes(struct check *check, int64_t n)
{
    return (uint8_t *)(void *)check_array(check, (n + 3) / 4);
}

static struct in_blocks copy_of_blocks(struct check *check, const struct in_blocks *from, int64_t n)
{
    struct in_blocks copy = {check_copy(check, from->param, n), check_halves(check, n), from->moments};

    memcpy(copy.half, from->half, (size_t)n * sizeof *copy.half);
    for (int k = 0; k < 2; k++) {
        copy.moments.code[k] = memcpy(check_bytes(check, n), from->moments.code[k], (size_t)n);
        copy.moments.largest[k] = check_copy(check, from->moments.largest[k], tt_div_up(n, TT_DYNAMIC_BLOCK));
    }
    return copy;
}

/* Every fourth block has no moments yet. */
static struct in_blocks random_blocks(struct check *check, int64_t n)
{
    struct in_blocks at = {check_filled(check, n, FILL_NORMAL),
                           check_halves(check, n),
                           {.map = {tt_dynamic_map(true), tt_dynamic_map(false)}}};

    tt_bf16_round_ref(at.half, at.param, n);
    for (int k = 0; k < 2; k++) {
        at.moments.code[k] = check_bytes(check, n);
        at.moments.largest[k] = check_filled(check, tt_div_up(n, TT_DYNAMIC_BLOCK), FILL_NORMAL);
        for (int64_t b = 0; b < tt_div_up(n, TT_DYNAMIC_BLOCK); b++)
            at.moments.largest[k][b] = b % 4 == 3 ? 0.0F : fabsf(at.moments.largest[k][b]);
        for (int64_t i = 0; i < n; i++)
            at.moments.code[k][i] = (uint8_t)check_draw(check, TT_DYNAMIC_CODES);
    }
    return at;
}

/* A step of elements [begin, n), where a block begins. */
static void step_blocks(const struct tt_kernels *table, bool bf16, const struct tt_adamw_numbers *numbers,
                        const struct in_blocks *at, const float *grad, int64_t begin, int64_t n)
{
    struct tt_adamw_rounding rounding = {77, UINT64_C(0x123456789abcdef0), UINT32_MAX - 20U};
    struct tt_moment_blocks moments = at->moments;

    rounding.first += (uint64_t)begin;
    for (int k = 0; k < 2; k++) {
        moments.code[k] += begin;
        moments.largest[k] += begin / TT_DYNAMIC_BLOCK;
    }
    if (bf16)
        table->adamw_8bit_bf16(numbers, &rounding, at->half + begin, grad + begin, &moments, n - begin);
    else
        table->adamw_8bit(numbers, at->param + begin, grad + begin, &moments, n - begin);
}

static void same_blocks(struct check *check, const char *shape, const struct in_blocks *got,
                        const struct in_blocks *want, int64_t n)
{
    bool same = memcmp(got->param, want->param, (size_t)n * sizeof(float)) == 0 &&
                memcmp(got->half, want->half, (size_t)n * sizeof(tt_bf16)) == 0;

    for (int k = 0; k < 2; k++)
        same = same && memcmp(got->moments.code[k], want->moments.code[k], (size_t)n) == 0 &&
               memcmp(got->moments.largest[k], want->moments.largest[k],
                      (size_t)tt_div_up(n, TT_DYNAMIC_BLOCK) * sizeof(float)) == 0;
    check->compared++;
    if (!same && check->failures++ < 5)
        printf("# %s (%s), %s: other bits\n", check->kernel, check->table->name, shape);
}

/* The reference computes in double, so where a moment is in the middle of two numbers its code may be the other one. */
static void codes_near(struct check *check, const char *shape, const struct in_blocks *got,
                       const struct in_blocks *want, int64_t n)
{
    int64_t others = 0;

    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < n; i++) {
            int difference = got->moments.code[k][i] - want->moments.code[k][i];

            others += difference != 0;
            if ((difference < -1 || difference > 1) && check->failures++ < 5)
                printf("# %s (%s), %s: code %d of moment %d, wanted %d\n", check->kernel, check->table->name, shape,
                       got->moments.code[k][i], k, want->moments.code[k][i]);
        }
    check->compared += n;
    if (others > 1 + n / 500 && check->failures++ < 5)
        printf("# %s (%s), %s: %lld codes differ\n", check->kernel, check->table->name, shape, (long long)others);
}

static void check_adamw_blocks(struct check *check, bool bf16)
{
    const struct tt_adamw_numbers numbers = {true, 0.75F, 0.9999F, 0.1F, 0.1F, 0.95F, 0.05F, 1e-3F, 0.5F, 1e-8F};

    for (int k = 0; k < N_LENGTHS * FILL_NAN; k++) {
        int64_t n = lengths[k / FILL_NAN], blocks = tt_div_up(n, TT_DYNAMIC_BLOCK);
        int64_t cut = check_draw(check, blocks) * TT_DYNAMIC_BLOCK;
        float *grad = check_filled(check, n, (enum fill)(k % FILL_NAN));
        struct in_blocks given = random_blocks(check, n), want = copy_of_blocks(check, &given, n);
        struct in_blocks got = copy_of_blocks(check, &given, n), parts = copy_of_blocks(check, &given, n);
        struct in_blocks portable = copy_of_blocks(check, &given, n);
        static const struct tt_kernels loops = {.adamw_8bit = tt_adamw_8bit_loops,
                                                .adamw_8bit_bf16 = tt_adamw_8bit_bf16_loops};
        static const struct tt_kernels references = {.adamw_8bit = tt_adamw_8bit_ref,
                                                     .adamw_8bit_bf16 = tt_adamw_8bit_bf16_ref};
        double *near = check_doubles(check, n);
        float *wide[2] = {check_array(check, n), check_array(check, n)};
        char shape[64];

        (void)snprintf(shape, sizeof shape, "n=%lld fill %d", (long long)n, k % FILL_NAN);
        step_blocks(&references, bf16, &numbers, &want, grad, 0, n);
        step_blocks(check->table, bf16, &numbers, &got, grad, 0, n);
        tt_bf16_widen_ref(wide[0], got.half, n);
        tt_bf16_widen_ref(wide[1], want.half, n);
        for (int64_t i = 0; i < n; i++)
            near[i] = 8.0 * (double)FLT_EPSILON * (1.0 + fabs((double)given.param[i])) +
                      (bf16 ? 0x1p-7 : 8.0 * (double)FLT_EPSILON) * fabs((double)(bf16 ? wide[1] : want.param)[i]);
        check_compare(check, "param", shape, bf16 ? wide[0] : got.param, bf16 ? wide[1] : want.param, n, near, 0.0);
        for (int j = 0; j < 2; j++)
            check_compare(check, "largest", shape, got.moments.largest[j], want.moments.largest[j], blocks, NULL, 4.0);
        codes_near(check, shape, &got, &want, n);
        step_blocks(check->table, bf16, &numbers, &parts, grad, cut, n);
        step_blocks(check->table, bf16, &numbers, &parts, grad, 0, cut);
        same_blocks(check, shape, &parts, &got, n);
        step_blocks(&loops, bf16, &numbers, &portable, grad, 0, n);
        if (!is_reference(check))
            same_blocks(check, shape, &portable, &got, n);
        check_reset(check, shape);
    }
}

static void check_adamw_8bit(struct check *check)
{
    check_adamw_blocks(check, false);
}

static void check_adamw_8bit_bf16(struct check *check)
{
    check_adamw_blocks(check, true);
}

static void check_squares(struct check *check)
{
    for (int k = 0; k < N_LENGTHS * N_FILLS; k++) {
        int64_t n = lengths[k / N_FILLS];
        float *x = check_filled(check, n, k % N_FILLS), got_float, want_float;
        double got, want, portable;
        char shape[64];

        (void)snprintf(shape, sizeof shape, "n=%lld fill %d", (long long)n, k % N_FILLS);
        tt_squares_ref(&want, x, n);
        check->table->squares(&got, x, n);
        tt_squares_loops(&portable, x, n);
        got_float =
            (float)(got *
                    (k % N_FILLS == FILL_TINY ? 0x1p200 : 1.0)); /* squares of denormals are too small for a float */
        want_float = (float)(want * (k % N_FILLS == FILL_TINY ? 0x1p200 : 1.0));
        check_compare(check, "sum", shape, &got_float, &want_float, 1, NULL, 1.0);
        if (!is_reference(check) && isfinite(want) && got != portable) {
            check->failures++;
            printf("# squares (%s) %s: %.17g, the portable kernel's is %.17g\n", check->table->name, shape, got,
                   portable);
        }
        check_reset(check, shape);
    }
}

static void compare_halves(struct check *check, const float *from, const uint16_t *got, const uint16_t *want, int64_t n)
{
    for (int64_t i = 0; i < n; i++, check->compared++) {
        if (got[i] != want[i] && check->failures++ < 5)
            printf("# bf16_round (%s) of %a is %#x, wanted %#x\n", check->table->name, (double)from[i], got[i],
                   want[i]);
    }
}

/* Every upper half of a float, with lower halves near the tie, in pieces of awkward length. */
static void check_bf16_round(struct check *check)
{
    static const uint32_t lower[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};

    for (uint32_t high = 0, l = 0; l < sizeof lower / sizeof *lower; l += high == 0) {
        int64_t n = 1 + check_draw(check, 300);
        float *from = check_array(check, n);
        uint16_t *got = check_halves(check, n), *want = check_halves(check, n);

        for (int64_t i = 0; i < n; i++) {
            uint32_t bits = ((high + (uint32_t)i) & 0xffffU) << 16 | lower[l];

            memcpy(&from[i], &bits, sizeof bits);
        }
        tt_bf16_round_ref(want, from, n);
        check->table->bf16_round(got, from, n);
        compare_halves(check, from, got, want, n);
        high = high + (uint32_t)n > 0xffffU ? 0 : high + (uint32_t)n;
        check_reset(check, "bf16_round");
    }
}

static void check_bf16_widen(struct check *check)
{
    for (uint32_t high = 0; high <= 0xffffU;) {
        int64_t n = 1 + check_draw(check, 300);
        float *got = check_array(check, n), *want = check_array(check, n);
        uint16_t *from = check_halves(check, n);

        for (int64_t i = 0; i < n; i++, high++)
            from[i] = (uint16_t)high;
        tt_bf16_widen_ref(want, from, n);
        check->table->bf16_widen(got, from, n);
        check_compare(check, "float", "bf16_widen", got, want, n, NULL, 0.0);
        check_reset(check, "bf16_widen");
    }
}

const struct check_case shard_cases[] = {
    {"adamw", check_adamw},           {"adamw_bf16", check_adamw_bf16},           {"squares", check_squares},
    {"adamw_8bit", check_adamw_8bit}, {"adamw_8bit_bf16", check_adamw_8bit_bf16}, {"bf16_round", check_bf16_round},
    {"bf16_widen", check_bf16_widen},
};
const int n_shard_cases = sizeof shard_cases / sizeof *shard_cases;

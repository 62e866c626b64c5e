/* SPDX-License-Identifier: MIT */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/hash.h"
#include "core/math/elementary.h"
#include "core/math/rng.h"

/* Compares results at random arguments with the C library's long double functions, which have 64 bits or more. */

enum { TRIES = 200000 };

static struct tt_rng rng;

static double uniform(uint64_t i, double low, double high)
{
    return low + (high - low) * tt_rng_uniform(&rng, i);
}

/* The error in units of the last place of a double that is not denormal. */
static double ulps(double got, long double want)
{
    double size = fabs((double)want);
    double ulp = ldexp(1.0, (size > DBL_MIN ? ilogb(size) : ilogb(DBL_MIN)) - 52);

    return (double)fabsl((long double)got - want) / ulp;
}

static void check(const char *what, double x, double got, long double want, double most)
{
    if (!(ulps(got, want) <= most))
        fail_msg("%s of %a: %a is %.3f ulp off", what, x, got, ulps(got, want));
}

static void logarithm(void **state)
{
    rng = tt_rng_make(1, "log");
    for (uint64_t i = 0; i < TRIES; i++) {
        double near = uniform(i, 0.5, 2.0), any = ldexp(near, (int)(i % 2090) - 1070);

        check("log", near, tt_log(near), logl((long double)near), 1.0);
        check("log", any, tt_log(any), logl((long double)any), 1.0);
    }
    assert_true(tt_log(1.0) == 0.0);
    assert_true(tt_log(0.0) == -INFINITY && tt_log(INFINITY) == INFINITY);
    assert_true(isnan(tt_log(-1.0)) && isnan(tt_log(NAN)));
}

static void exponential(void **state)
{
    rng = tt_rng_make(1, "exp");
    for (uint64_t i = 0; i < TRIES; i++) {
        double near = uniform(i, -1.0, 1.0), any = uniform(i, -745.0, 709.7);

        check("exp", near, tt_exp(near), expl((long double)near), 1.0);
        check("exp", any, tt_exp(any), expl((long double)any), 1.0);
    }
    assert_true(tt_exp(0.0) == 1.0 && tt_exp(-INFINITY) == 0.0);
    assert_true(tt_exp(INFINITY) == INFINITY && tt_exp(710.0) == INFINITY && isnan(tt_exp(NAN)));
}

static void sine_and_cosine(void **state)
{
    rng = tt_rng_make(1, "sin");
    for (uint64_t i = 0; i < TRIES; i++) {
        double small = uniform(i, -4.0, 4.0), large = uniform(i, -1.6e6, 1.6e6);

        check("sin", small, tt_sin(small), sinl((long double)small), 1.0);
        check("cos", small, tt_cos(small), cosl((long double)small), 1.0);
        check("sin", large, tt_sin(large), sinl((long double)large), 1.0);
        check("cos", large, tt_cos(large), cosl((long double)large), 1.0);
    }
    assert_true(tt_cos(0.0) == 1.0 && tt_sin(0.0) == 0.0 && isnan(tt_sin(INFINITY)) && isnan(tt_cos(NAN)));
}

/* The library's own pow can be off by some of its ulp, which is a thousandth of a double's ulp. */
static void power(void **state)
{
    rng = tt_rng_make(1, "pow");
    for (uint64_t i = 0; i < TRIES / 10; i++) {
        double theta = uniform(i, 1.0, 1e7), share = -uniform(i + 1, 0.0, 1.0), beta = uniform(i, 0.5, 1.0);
        double n = (double)(i % 1000 + 1);

        check("pow", theta, tt_pow(theta, share), powl((long double)theta, (long double)share), 0.51);
        check("pow", beta, tt_pow(beta, n), powl((long double)beta, (long double)n), 0.51);
    }
    assert_true(tt_pow(3.0, 4.0) == 81.0 && tt_pow(0.5, 3.0) == 0.125 && tt_pow(7.0, 0.0) == 1.0);
    assert_true(tt_pow(0.0, 2.0) == 0.0 && tt_pow(0.9, 1e9) == 0.0 && tt_pow(2.0, 1e9) == INFINITY);
}

static void error_function(void **state)
{
    rng = tt_rng_make(1, "erfc");
    for (uint64_t i = 0; i < TRIES / 100; i++) {
        double x = uniform(i, 0.0, 5.0);

        check("erfc", x, tt_erfc(x), erfcl((long double)x), 0.52);
    }
    assert_true(tt_erfc(0.0) == 1.0 && tt_erfc(100.0) == 0.0);
}

/* Accuracy does not show that the bits are the same on every processor and with every compiler; this does. */
static void results_have_recorded_bits(void **state)
{
    uint64_t bits[7] = {0}, hash = 0;

    rng = tt_rng_make(1, "bits");
    for (uint64_t i = 0; i < 1000; i++) {
        double x = uniform(i, 0.0, 4.0);
        double results[7] = {
            tt_log(x), tt_exp(x), tt_sin(x), tt_cos(x), tt_pow(x, 2.5), tt_erfc(x), tt_rng_normal(&rng, i, 3.0)};

        memcpy(bits, results, sizeof bits);
        hash = tt_hash64(bits, sizeof bits, hash);
    }
    if (hash != UINT64_C(0xd5d149944bec7a10))
        fail_msg("the hash of the results is 0x%llx", (unsigned long long)hash);
}

/* Many numbers in one call, beginning at any of them, with tails and without. */
static void normal_numbers_have_the_same_bits_in_arrays(void **state)
{
    enum { N = 3000 };
    static const double cuts[] = {0.0, 0.2, 3.0};
    static float x[N];

    rng = tt_rng_make(1, "arrays");
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
        for (int first = 0, n = 1; first + n <= N; first += n, n = 2 * n + 1)
            tt_rng_normals(&rng, (uint64_t)first + 7, n, 0.02, cuts[c], x + first);
        for (int i = 0; i < N / 2; i++)
            if (x[i] != (float)(0.02 * tt_rng_normal(&rng, (uint64_t)i + 7, cuts[c])))
                fail_msg("number %d with cut %g", i, cuts[c]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logarithm),
        cmocka_unit_test(exponential),
        cmocka_unit_test(sine_and_cosine),
        cmocka_unit_test(power),
        cmocka_unit_test(error_function),
        cmocka_unit_test(results_have_recorded_bits),
        cmocka_unit_test(normal_numbers_have_the_same_bits_in_arrays),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

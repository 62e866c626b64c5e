/* SPDX-License-Identifier: MIT
 *
 * Weighted mixtures: proportions, the order of samples, and access to any of them.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/data/sampler.h"
#include "core/math/rng.h"

static struct tt_mixture make(const double *weight, int n)
{
    struct tt_mixture m;

    if (tt_mixture_init(&m, weight, n) < 0)
        fail_msg("%s", tt_error_message());
    return m;
}

/* Walks `samples` samples in order: each dataset's samples are numbered without gaps, and the number of its samples
 * never differs from its share by more than one. */
static void check_walk(const struct tt_mixture *m, const double *weight, int64_t first, int64_t samples)
{
    int64_t count[TT_MIXTURE_MOST] = {0};
    double sum = 0.0;

    for (int k = 0; k < m->n; k++)
        sum += weight[k];
    for (int64_t i = 0; i < samples; i++) {
        struct tt_mixture_sample found = tt_mixture_get(m, first + i);
        int k = found.part;

        if (i == 0)
            for (int j = 0; j < m->n; j++) /* where the walk begins, found without walking there */
                while (tt_mixture_find(m, j, count[j]) < first)
                    count[j]++;
        if (found.number != count[k]++)
            fail_msg("sample %lld is number %lld of part %d", (long long)(first + i), (long long)found.number, k);
        if (tt_mixture_find(m, k, found.number) != first + i)
            fail_msg("part %d has number %lld elsewhere", k, (long long)found.number);
        for (int j = 0; j < m->n; j++) {
            double off = (double)count[j] - weight[j] / sum * (double)(first + i + 1);

            if (fabs(off) >= 1.0)
                fail_msg("after %lld samples part %d of %d is off by %g", (long long)(first + i + 1), j, m->n, off);
        }
    }
}

static void every_prefix_has_the_proportions(void **state)
{
    static const double weights[][6] = {{1},
                                        {1, 1},
                                        {7, 3},
                                        {0.7, 0.3},
                                        {0.1, 0.2},
                                        {1, 1, 1},
                                        {5, 3, 2},
                                        {100, 1, 1},
                                        {1, 100, 99},
                                        {0.5, 0.25, 0.25},
                                        {1, 2, 3, 4, 5},
                                        {1e-3, 1, 1},
                                        {64, 1, 1, 1, 1, 1},
                                        {3, 3, 3, 2, 2, 2},
                                        {12.5, 37.5, 50},
                                        {1000, 1}};

    for (size_t w = 0; w < sizeof weights / sizeof *weights; w++) {
        struct tt_mixture m;
        int n = 0;

        while (n < 6 && weights[w][n] > 0.0)
            n++;
        m = make(weights[w], n);
        check_walk(&m, weights[w], 0, 3 * m.period);
        check_walk(&m, weights[w], m.period - 1, m.period);
        tt_mixture_release(&m);
    }
}

static void random_weights_keep_their_proportions(void **state)
{
    const struct tt_rng rng = tt_rng_make(1, "weights");
    uint64_t at = 0;

    for (int round = 0; round < 60; round++) {
        double weight[TT_MIXTURE_MOST];
        int n = 1 + (int)(tt_rng_bits(&rng, at++) % (round % 10 ? 9 : TT_MIXTURE_MOST));
        struct tt_mixture m;

        for (int k = 0; k < n; k++)
            weight[k] = (double)(1 + tt_rng_bits(&rng, at++) % (round % 2 ? 9 : 300));
        m = make(weight, n);
        check_walk(&m, weight, 0, m.period + 2);
        tt_mixture_release(&m);
    }
}

static void shares_are_the_smallest_whole_numbers(void **state)
{
    struct tt_mixture m = make((const double[]){0.7, 0.1, 0.2}, 3);

    assert_int_equal(m.period, 10);
    assert_int_equal(m.share[0], 7);
    assert_int_equal(m.share[1], 1);
    assert_int_equal(m.share[2], 2);
    tt_mixture_release(&m);
    m = make((const double[]){3e9, 1.5e9}, 2);
    assert_int_equal(m.period, 3);
    tt_mixture_release(&m);
}

/* Weights without a small common denominator are rounded, so proportions are only as exact as the rounding. */
static void other_weights_are_rounded(void **state)
{
    static const double weight[] = {123456789.0, 3.0, 987654321.0};
    struct tt_mixture m = make(weight, 3);

    assert_int_equal(m.period, TT_MIXTURE_PERIOD);
    assert_int_equal(m.share[1], 1);
    assert_true(fabs((double)m.share[0] - weight[0] / 1111111113.0 * TT_MIXTURE_PERIOD) <= 1.0);
    for (int64_t i = 0; i < 100000; i += 997) {
        struct tt_mixture_sample found = tt_mixture_get(&m, i * 1000003);

        assert_int_equal(tt_mixture_find(&m, found.part, found.number), i * 1000003);
    }
    assert_int_equal(tt_mixture_find(&m, 1, INT64_MAX / 4), INT64_MAX);
    tt_mixture_release(&m);
}

static void a_mixture_has_a_limit(void **state)
{
    double weight[TT_MIXTURE_MOST + 1];
    struct tt_mixture m;

    for (int k = 0; k <= TT_MIXTURE_MOST; k++)
        weight[k] = 1.0;
    assert_int_equal(tt_mixture_init(&m, weight, TT_MIXTURE_MOST + 1), TT_EUSAGE);
    assert_int_equal(tt_mixture_init(&m, weight, 0), TT_EUSAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_prefix_has_the_proportions),
        cmocka_unit_test(random_weights_keep_their_proportions),
        cmocka_unit_test(shares_are_the_smallest_whole_numbers),
        cmocka_unit_test(other_weights_are_rounded),
        cmocka_unit_test(a_mixture_has_a_limit),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT
 *
 * Choosing tokens: which are kept, and how often each is drawn. The tests are not random: over an even grid of N
 * uniform numbers, a token of probability p is drawn N p times, give or take one.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/math/rng.h"
#include "core/models/sampling.h"

enum { VOCAB = 9, DRAWS = 20000 };

/* Probabilities 0.4, 0.2, 0.15, 0.1, 0.05, 0.04, 0.03, 0.02, 0.01, not in order. */
static const double probability[VOCAB] = {0.05, 0.4, 0.01, 0.1, 0.15, 0.02, 0.2, 0.04, 0.03};

static void make_logits(float *logits)
{
    for (int v = 0; v < VOCAB; v++)
        logits[v] = (float)(log(probability[v]) + 3.0);
}

/* wanted: probabilities, which need not add up to 1. */
static void check_draws(struct tt_sampling sampling, const double *wanted)
{
    struct tt_picker *picker = tt_picker_new(&sampling, VOCAB);
    int count[VOCAB] = {0};
    float logits[VOCAB];
    double sum = 0.0;

    make_logits(logits);
    for (int i = 0; i < DRAWS; i++)
        count[tt_picker_pick(picker, logits, (i + 0.5) / DRAWS)]++;
    for (int v = 0; v < VOCAB; v++)
        sum += wanted[v];
    for (int v = 0; v < VOCAB; v++) {
        if (fabs(count[v] - DRAWS * wanted[v] / sum) > 1.5)
            fail_msg("temperature %g, top_k %d, top_p %g: token %d drawn %d times, expected %.1f", sampling.temperature,
                     (int)sampling.top_k, sampling.top_p, v, count[v], DRAWS * wanted[v] / sum);
    }
    tt_picker_free(picker);
}

static void temperature_flattens_and_sharpens(void **state)
{
    static const double temperatures[] = {1.0, 0.5, 2.0};

    for (int t = 0; t < 3; t++) {
        double wanted[VOCAB];

        for (int v = 0; v < VOCAB; v++)
            wanted[v] = pow(probability[v], 1.0 / temperatures[t]);
        check_draws((struct tt_sampling){temperatures[t], 0, 1.0}, wanted);
        check_draws((struct tt_sampling){temperatures[t], VOCAB, 1.0}, wanted);
    }
}

static void top_k_keeps_the_largest(void **state)
{
    for (int k = 1; k <= VOCAB; k++) {
        double wanted[VOCAB];

        for (int v = 0; v < VOCAB; v++) {
            int larger = 0;

            for (int u = 0; u < VOCAB; u++)
                larger += probability[u] > probability[v];
            wanted[v] = larger < k ? probability[v] : 0.0;
        }
        check_draws((struct tt_sampling){1.0, k, 1.0}, wanted);
    }
}

/* 0.4 + 0.2 + 0.15 reach 0.7; 0.4 alone reaches 0.3; of the first three, 0.75 in all, 0.6 is 80 %. */
static void top_p_keeps_the_fewest_that_reach_it(void **state)
{
    static const double three[VOCAB] = {[1] = 0.4, [6] = 0.2, [4] = 0.15}, two[VOCAB] = {[1] = 0.4, [6] = 0.2};
    static const double one[VOCAB] = {[1] = 0.4};

    check_draws((struct tt_sampling){1.0, 0, 0.7}, three);
    check_draws((struct tt_sampling){1.0, 0, 0.3}, one);
    check_draws((struct tt_sampling){1.0, 0, 0.0001}, one);
    check_draws((struct tt_sampling){1.0, 0, 0.9999}, probability);
    check_draws((struct tt_sampling){1.0, 3, 0.79}, two);
    check_draws((struct tt_sampling){1.0, 3, 0.81}, three);
}

static void greedy_takes_the_largest_and_the_first_of_equals(void **state)
{
    const struct tt_sampling greedy = {0.0, 5, 0.5}, one = {1.0, 1, 1.0};
    struct tt_picker *a = tt_picker_new(&greedy, VOCAB), *b = tt_picker_new(&one, VOCAB);
    float equal[VOCAB] = {0.0F, 2.0F, 1.0F, 2.0F, 2.0F, -1.0F, 2.0F, 0.5F, 2.0F};
    float logits[VOCAB];

    make_logits(logits);
    assert_int_equal(tt_picker_pick(a, logits, 0.99), 1);
    assert_int_equal(tt_picker_pick(a, equal, 0.99), 1);
    assert_int_equal(tt_picker_pick(b, equal, 0.99), 1);
    tt_picker_free(a);
    tt_picker_free(b);
}

static bool is_even(const void *unused, int32_t token)
{
    (void)unused;
    return token % 2 == 0;
}

/* Token 1 is the likeliest of all, token 6 of the even ones, token 4 of the rest. */
static void only_allowed_tokens_are_picked(void **state)
{
    static const struct tt_sampling ways[] = {
        {0.0, 0, 1.0}, {1.0, 0, 1.0}, {1.0, 7, 1.0}, {1.0, 0, 0.99}, {1.0, 2, 1.0}};
    int count[VOCAB];
    float logits[VOCAB];

    make_logits(logits);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        struct tt_picker *picker = tt_picker_new(&ways[w], VOCAB);

        memset(count, 0, sizeof count);
        tt_picker_allow(picker, is_even, NULL);
        for (int i = 0; i < DRAWS; i++)
            count[tt_picker_pick(picker, logits, (i + 0.5) / DRAWS)]++;
        for (int v = 1; v < VOCAB; v += 2)
            assert_int_equal(count[v], 0);
        assert_true(count[6] > count[4] && (w == 0 || count[4] > 0));
        if (w == 1)
            assert_true(fabs(count[6] - DRAWS * 0.2 / 0.44) < 1.5);
        tt_picker_allow(picker, NULL, NULL);
        assert_int_equal(tt_picker_pick(picker, logits, w ? 0.3 : 0.0), 1);
        tt_picker_free(picker);
    }
}

/* A vocabulary of realistic size with random logits, compared with sorting all of it. */
static const float *sorted_logits;

static int by_rank(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;

    if (sorted_logits[*x] != sorted_logits[*y])
        return sorted_logits[*x] > sorted_logits[*y] ? -1 : 1;
    return *x - *y;
}

static void the_heap_ranks_as_a_sort_does(void **state)
{
    enum { LARGE = 5003, KEPT = 40 };
    const struct tt_sampling sampling = {1.0, KEPT, 1.0};
    struct tt_picker *picker = tt_picker_new(&sampling, LARGE);
    struct tt_rng rng = tt_rng_make(3, "logits");
    static float logits[LARGE];
    static int32_t order[LARGE];
    double at = 0.0, sum = 0.0;

    for (int32_t v = 0; v < LARGE; v++) {
        logits[v] = (float)round(8.0 * tt_rng_normal(&rng, (uint64_t)v, 0.0)) / 8.0F; /* many are equal */
        order[v] = v;
    }
    sorted_logits = logits;
    qsort(order, LARGE, sizeof *order, by_rank);
    for (int i = 0; i < KEPT; i++)
        sum += exp((double)logits[order[i]]);
    for (int i = 0; i < KEPT; i++) {
        double share = exp((double)logits[order[i]]) / sum;

        assert_int_equal(tt_picker_pick(picker, logits, at + 0.5 * share), order[i]);
        at += share;
    }
    tt_picker_free(picker);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(temperature_flattens_and_sharpens),
        cmocka_unit_test(top_k_keeps_the_largest),
        cmocka_unit_test(top_p_keeps_the_fewest_that_reach_it),
        cmocka_unit_test(greedy_takes_the_largest_and_the_first_of_equals),
        cmocka_unit_test(only_allowed_tokens_are_picked),
        cmocka_unit_test(the_heap_ranks_as_a_sort_does),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

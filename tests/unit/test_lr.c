/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/optim/optim.h"

static void check(struct tt_lr_schedule schedule, const double *wanted, int n)
{
    for (int i = 0; i < n; i++) {
        double got = tt_lr_at(&schedule, i + 1);

        if (fabs(got - wanted[i]) > 1e-12)
            fail_msg("step %d: %.15g, wanted %.15g", i + 1, got, wanted[i]);
    }
}

static void torchtitans_vectors(void **state)
{
    static const double no_ratio[] = {.5, 1, 1, 7 / 8.0, 6 / 8.0, 5 / 8.0, 4 / 8.0, 3 / 8.0, 2 / 8.0, 1 / 8.0};
    static const double half[] = {.5, 1, 1, 1, 1, 1, .8, .6, .4, .2};
    static const double short_run[] = {.2, .4, .6, .8, 1};
    static const double no_decay[] = {.5, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const double capped[] = {.2, .4, .6, .8, 1, 1, .8, .6, .4, .2};

    check((struct tt_lr_schedule){.base = 1.0, .warmup_steps = 2, .total_steps = 10, .decay_ratio = (double)NAN},
          no_ratio, 10);
    check((struct tt_lr_schedule){.base = 1.0, .warmup_steps = 2, .total_steps = 10, .decay_ratio = 0.5}, half, 10);
    check((struct tt_lr_schedule){.base = 1.0, .warmup_steps = 10, .total_steps = 5, .decay_ratio = (double)NAN},
          short_run, 5);
    check((struct tt_lr_schedule){.base = 1.0, .warmup_steps = 2, .total_steps = 10, .decay_ratio = 0.0}, no_decay, 10);
    check((struct tt_lr_schedule){.base = 1.0, .warmup_steps = 5, .total_steps = 10, .decay_ratio = 0.8}, capped, 10);
}

/* As in the reference runs of tests/golden: three steps of warm-up, then cosine down to a tenth. */
static void cosine_with_a_floor(void **state)
{
    const struct tt_lr_schedule s = {.base = 1e-3,
                                     .warmup_steps = 3,
                                     .total_steps = 20,
                                     .decay_ratio = (double)NAN,
                                     .decay = TT_DECAY_COSINE,
                                     .min_factor = 0.1};

    assert_true(fabs(tt_lr_at(&s, 1) - 1e-3 / 3.0) < 1e-15);
    assert_true(fabs(tt_lr_at(&s, 4) - 1e-3) < 1e-15);
    assert_true(fabs(tt_lr_at(&s, 5) - 0.0009923378948577559) < 1e-15);
    assert_true(fabs(tt_lr_at(&s, 20) - 0.0001076621051422442) < 1e-15);
}

static void square_root_decay(void **state)
{
    const struct tt_lr_schedule s = {
        .base = 2.0, .total_steps = 4, .decay_ratio = (double)NAN, .decay = TT_DECAY_SQRT, .min_factor = 0.2};

    assert_true(tt_lr_at(&s, 1) == 2.0);
    assert_true(fabs(tt_lr_at(&s, 2) - 2.0 * (0.2 + 0.8 * 0.5)) < 1e-15);
    assert_true(fabs(tt_lr_at(&s, 4) - 2.0 * (0.2 + 0.8 * (1.0 - sqrt(0.75)))) < 1e-15);
}

/* Here torchtitan's formula gives rates below 0 or, for cosine, rates that rise again. */
static void steps_beyond_the_last_keep_its_rate(void **state)
{
    const struct tt_lr_schedule linear = {
        .base = 1.0, .warmup_steps = 2, .total_steps = 10, .decay_ratio = (double)NAN, .min_factor = 0.2};
    const struct tt_lr_schedule cosine = {
        .base = 1.0, .warmup_steps = 2, .total_steps = 10, .decay_ratio = 0.5, .decay = TT_DECAY_COSINE};
    const struct tt_lr_schedule warmup = {
        .base = 1.0, .warmup_steps = 10, .total_steps = 5, .decay_ratio = (double)NAN};

    assert_true(tt_lr_at(&linear, 11) == tt_lr_at(&linear, 10));
    assert_true(tt_lr_at(&linear, 1000000) == tt_lr_at(&linear, 10));
    assert_true(fabs(tt_lr_at(&linear, 10) - 0.3) < 1e-15);
    assert_true(tt_lr_at(&cosine, 13) == tt_lr_at(&cosine, 10));
    assert_true(tt_lr_at(&warmup, 9) == 1.0);
}

/* round(7 * 0.5) is 4 and round(5 * 0.5) is 2 in Python. */
static void decay_steps_round_half_to_even(void **state)
{
    static const double seven[] = {1, 1, 1, 1, .75, .5, .25}, five[] = {1, 1, 1, 1, .5};

    check((struct tt_lr_schedule){.base = 1.0, .total_steps = 7, .decay_ratio = 0.5}, seven, 7);
    check((struct tt_lr_schedule){.base = 1.0, .total_steps = 5, .decay_ratio = 0.5}, five, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(torchtitans_vectors),
        cmocka_unit_test(cosine_with_a_floor),
        cmocka_unit_test(square_root_decay),
        cmocka_unit_test(steps_beyond_the_last_keep_its_rate),
        cmocka_unit_test(decay_steps_round_half_to_even),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

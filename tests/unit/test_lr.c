/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "core/config/config.h"
#include "core/optim/lr.h"
#include "core/os/file.h"
#include "trainer/step/deadline.h"

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

/* --- the last step moves --- */

static double rate(const char *ends, int64_t step)
{
    struct tt_lr_ends list = {.n = 0};
    const struct tt_lr_schedule s = {
        .base = 1.0, .warmup_steps = 10, .total_steps = 7, .decay_ratio = 0.2, .ends = &list, .min_factor = 0.1};

    assert_true(tt_lr_ends_read(ends, &list));
    return tt_lr_at(&s, step);
}

/* Without a decision the curve is that of a fixed length, to the last bit; a decision does not change earlier steps. */
static void a_moved_end_moves_the_decay(void **state)
{
    const struct tt_lr_schedule fixed = {
        .base = 1.0, .warmup_steps = 10, .total_steps = 100, .decay_ratio = 0.2, .min_factor = 0.1};

    for (int64_t i = 1; i <= 110; i++) {
        assert_true(rate("0:100", i) == tt_lr_at(&fixed, i));
        assert_true(rate("0:200,40:100", i) == tt_lr_at(&fixed, i));
        assert_true(i > 90 || rate("0:100,90:150", i) == tt_lr_at(&fixed, i));
    }
}

/* In the decay a decision bends the curve, which goes on from its value and reaches the same end. */
static void an_end_that_moves_in_the_decay_bends_it(void **state)
{
    assert_true(fabs(rate("0:100", 90) - rate("0:100,90:110", 90)) == 0.0);
    for (int64_t last = 91; last < 200; last++) {
        char ends[32];
        double before, step;

        (void)snprintf(ends, sizeof ends, "0:100,90:%lld", (long long)last);
        before = rate(ends, 90);
        step = (before - 0.1) / (double)(last + 1 - 90);
        for (int64_t i = 91; i <= last; i++)
            assert_true(fabs(rate(ends, i) - (before - step * (double)(i - 90))) < 1e-12);
        assert_true(rate(ends, last + 5) == rate(ends, last));
    }
    /* too late for the whole decay: it begins at once */
    assert_true(rate("0:1000,60:70", 60) == 1.0);
    for (int64_t i = 61; i <= 70; i++)
        assert_true(fabs(rate("0:1000,60:70", i) - (1.0 - 0.9 * (double)(i - 60) / 11.0)) < 1e-12);
}

static void ends_are_read_as_they_are_written(void **state)
{
    static const char *const good[] = {"0:1", "0:1000,800:950,940:940", "0:100000000000000000"};
    static const char *const bad[] = {"",        "0",        "0:",      "1:5", "0:5,",        "0:5,0:6",
                                      "0:5;3:4", "0:5, 3:4", "0:5,3:2", "0:0", "0:9,5:8,5:7", "0:9999999999999999999",
                                      "x",       "0:-5"};
    struct tt_lr_ends ends;

    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct tt_text text = {0};

        assert_true(tt_lr_ends_read(good[i], &ends));
        tt_lr_ends_text(&ends, &text);
        assert_string_equal(text.text, good[i]);
        tt_text_release(&text);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (tt_lr_ends_read(bad[i], &ends))
            fail_msg("'%s' was read", bad[i]);
    assert_true(tt_lr_ends_read(good[1], &ends));
    assert_int_equal(tt_lr_last_step(&ends, 0), 1000);
    assert_int_equal(tt_lr_last_step(&ends, 799), 1000);
    assert_int_equal(tt_lr_last_step(&ends, 800), 950);
    assert_int_equal(tt_lr_last_step(&ends, 2000), 940);
    ends.n = 0;
    assert_true(tt_lr_last_step(&ends, 5) == INT64_MAX);
}

/* --- who decides --- */

static void the_last_step_is_the_one_for_which_there_is_time(void **state)
{
    static const struct {
        struct tt_deadline_facts facts;
        int64_t wanted;
    } cases[] = {
        /* step, trained, finish, step_sec, tail, last, most */
        {{100, 100, 1000, 1, 0, 10000, 10000}, 1000},   /* the first decision */
        {{100, 100, 1000, 1, 50, 10000, 10000}, 950},   /* with a save at the end */
        {{100, 100, 1000, 1, 0, 1000, 10000}, 1000},    /* as planned */
        {{100, 100, 1000, 1.01, 0, 1000, 10000}, 1000}, /* nearly as planned */
        {{100, 100, 1000, 1.05, 0, 1000, 10000}, 957},  /* slower */
        {{100, 100, 1000, 0.98, 0, 1000, 10000}, 1000}, /* a little faster */
        {{100, 100, 1000, 0.5, 0, 1000, 10000}, 1900},  /* faster */
        {{100, 100, 1000, 0.5, 0, 1000, 1200}, 1200},   /* as far as training.steps allows */
        {{990, 990, 1000, 1, 0, 1000, 10000}, 1000},    {{990, 990, 1000, 1.2, 0, 1000, 10000}, 998},
        {{990, 999, 1000, 1.2, 0, 1000, 10000}, 990}, /* no time for a step */
        {{990, 2000, 1000, 1, 0, 1000, 10000}, 990},  /* too late */
        {{0, 2000, 1000, 1, 0, 1000, 10000}, 1},      /* a run has a step */
        {{100, 100, 1000, 1, 0, 1000, 600}, 600},     /* training.steps became less */
        {{100, 2000, 1000, 0, 0, 1000, 10000}, 100},  /* too late, and no step was measured */
        {{100, 0, 1e15, 1e-3, 0, 1000, 10000}, 10000},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t got = tt_deadline_decide(&cases[i].facts);

        if (got != cases[i].wanted)
            fail_msg("case %d: %lld, wanted %lld", (int)i, (long long)got, (long long)cases[i].wanted);
    }
}

/* A run on a machine whose steps take other times than before. Returns the time of the run. */
static double run(double (*step_sec)(int64_t step), double pause_sec, int64_t every, double finish_sec, int *ret_moves)
{
    struct tt_config *cfg = NULL;
    struct tt_train_progress at = {.ends = {.n = 1, .end[0].last = 1000000}};
    struct tt_deadline_clock clock;

    assert_int_equal(tt_config_new(&cfg), 0);
    cfg->lr_scheduler.finish_by = (int64_t)finish_sec;
    tt_deadline_begin(&at, 0.0, &clock);
    clock.pretends = false;
    *ret_moves = 0;
    while (at.step < tt_lr_last_step(&at.ends, at.step)) {
        double sec = step_sec(++at.step), pause = at.step == 1 || at.step % every == 0 ? pause_sec : 0.0;
        int64_t last;

        tt_deadline_count(&clock, at.step, sec, tt_lr_last_step(&at.ends, at.step) - at.step);
        clock.before_sec += sec;
        clock.begun_sec = tt_clock_sec(); /* the real clock stands still */
        if ((last = tt_deadline_propose(&clock, cfg, &at, 1000000))) {
            at.ends.end[at.ends.n++] = (struct tt_lr_end){at.step, last};
            ++*ret_moves;
        }
        tt_deadline_pause(&clock, pause);
        clock.before_sec += pause;
    }
    tt_config_free(cfg);
    return clock.before_sec + pause_sec;
}

static double steady(int64_t step)
{
    return step == 1 ? 3.0 : 1.0;
}

static double slows(int64_t step)
{
    return step < 4000 ? 1.0 : 2.5;
}

static double quickens(int64_t step)
{
    return step < 1500 ? 2.0 : 0.7;
}

/* Every third step is long, and the host is busy from time to time. */
static double uneven(int64_t step)
{
    return (step % 3 == 0 ? 1.6 : 0.9) * (step / 700 % 2 ? 1.3 : 1.0);
}

static void a_run_ends_within_a_twentieth_of_its_time(void **state)
{
    double (*const machines[])(int64_t) = {steady, slows, quickens, uneven};
    static const double finish[] = {60.0, 900.0, 7200.0};

    for (size_t m = 0; m < sizeof machines / sizeof *machines; m++)
        for (size_t f = 0; f < sizeof finish / sizeof *finish; f++)
            for (int pauses = 0; pauses < 3; pauses++) {
                double pause = pauses == 2 ? 0.1 * finish[f] : pauses ? 0.01 * finish[f] : 0.0;
                int moves;
                double took = run(machines[m], pause, pauses == 2 ? 1000000 : 50, finish[f], &moves);

                if (took < 0.95 * finish[f] || took > 1.05 * finish[f] || moves > 60)
                    fail_msg("machine %d, %g s, pauses of %g s: took %g s, %d decisions", (int)m, finish[f], pause,
                             took, moves);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(torchtitans_vectors),
        cmocka_unit_test(cosine_with_a_floor),
        cmocka_unit_test(square_root_decay),
        cmocka_unit_test(steps_beyond_the_last_keep_its_rate),
        cmocka_unit_test(decay_steps_round_half_to_even),
        cmocka_unit_test(a_moved_end_moves_the_decay),
        cmocka_unit_test(an_end_that_moves_in_the_decay_bends_it),
        cmocka_unit_test(ends_are_read_as_they_are_written),
        cmocka_unit_test(the_last_step_is_the_one_for_which_there_is_time),
        cmocka_unit_test(a_run_ends_within_a_twentieth_of_its_time),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT
 *
 * The disk space for a run's checkpoints, compared with a simulation of its saves and removals one by one.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "checkpoint/save/plan.h"

/* The most bytes in use at any time, without the folder's bytes from before. The oldest steps are removed first. */
static double simulate(const struct tt_ckpt_demand *d, int64_t keep)
{
    double used = 0.0, most = 0.0;
    int64_t held = d->held;

    for (int64_t i = 0; i < d->saves; i++) {
        used += i + 1 < d->saves ? d->one : d->last;
        most = fmax(most, used);
        for (held++; keep > 0 && held > keep; held--)
            used -= d->one;
    }
    return d->saves > 0 ? fmax(most, used + d->exports) : 0.0;
}

static void demand_is_what_saves_take_one_by_one(void **state)
{
    static const double last[] = {60.0, 20.0}, exports[] = {0.0, 20.0, 10.0};

    for (int i = 0; i < 6 * 6 * 8 * 6; i++) {
        struct tt_ckpt_demand d = {
            .one = 60.0, .last = last[i % 2], .exports = exports[i / 2 % 3], .saves = i / 6 % 8, .held = i / 48 % 6};
        int64_t keep = i / 288;
        double found = tt_ckpt_demand_bytes(&d, keep), wanted = simulate(&d, keep);

        if (keep == 0 || d.held <= keep)
            assert_true(found == wanted);
        else
            assert_true(found >= wanted);
    }
}

static void a_run_that_keeps_everything_does_not_overflow(void **state)
{
    const struct tt_ckpt_demand d = {.one = 1e13, .last = 1e13, .saves = INT64_MAX / 2, .held = 3};

    assert_true(tt_ckpt_demand_bytes(&d, 0) > 1e31);
    assert_true(tt_ckpt_demand_bytes(&d, INT64_MAX) > 1e31);
    assert_true(tt_ckpt_demand_bytes(&d, 1) == 1e13);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(demand_is_what_saves_take_one_by_one),
        cmocka_unit_test(a_run_that_keeps_everything_does_not_overflow),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

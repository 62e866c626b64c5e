/* SPDX-License-Identifier: MIT
 *
 * The parts of the time add up to the whole step, whatever its instructions are.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/program/instr/instr.h"

/* A program of instructions that run no node. Each takes a second, with half a second between them. */
enum { N = 4 };
static struct tt_instr instrs[N] = {{.kind = TT_BEGIN, .begin = TT_NONE},
                                    {.kind = TT_WAIT, .begin = 0},
                                    {.kind = TT_FOLD, .begin = TT_NONE},
                                    {.kind = TT_OPTIMIZER, .begin = TT_NONE}};
static const struct tt_program program = {.instrs = instrs, .n_instrs = N};

static void fill_spans(struct tt_span spans[N])
{
    for (int i = 0; i < N; i++)
        spans[i] = (struct tt_span){10.0 + 1.5 * i, 11.0 + 1.5 * i};
}

static void every_moment_has_one_part(void **state)
{
    struct tt_span spans[N];
    struct tt_split split = {0}, run = {0};
    double sum = 0.0, percent[TT_SPLIT_PARTS];

    fill_spans(spans);
    tt_split_add(&split, &program, spans, (struct tt_span){8.0, 16.0});
    assert_true(split.sec[TT_SPLIT_COMMUNICATION] == 2.0 + 3 * 0.5);
    assert_true(split.sec[TT_SPLIT_OTHER] == 1.0);
    assert_true(split.sec[TT_SPLIT_OPTIMIZER] == 1.0);
    assert_true(split.sec[TT_SPLIT_IDLE] == 2.0 + 0.5);
    tt_split_add_run(&run, &program, spans);
    assert_true(run.sec[TT_SPLIT_COMMUNICATION] == split.sec[TT_SPLIT_COMMUNICATION]);
    assert_true(run.sec[TT_SPLIT_IDLE] == 0.0);
    tt_split_percent(&split, percent);
    for (int p = 0; p < TT_SPLIT_PARTS; p++)
        sum += percent[p];
    assert_true(sum == 100.0);
    assert_true(percent[TT_SPLIT_OTHER] == 12.5);
}

static void waits_belong_to_the_group_of_their_collective(void **state)
{
    struct tt_span spans[N];
    double sec[TT_GROUPS] = {0.0};

    fill_spans(spans);
    instrs[0].collective.group = TT_GROUP_TP;
    tt_split_add_waits(sec, &program, spans);
    tt_split_add_waits(sec, &program, spans);
    for (int g = 0; g < TT_GROUPS; g++)
        assert_true(sec[g] == (g == TT_GROUP_TP ? 2.0 : 0.0));
}

static void an_empty_split_is_all_zero(void **state)
{
    struct tt_split split = {0};
    double percent[TT_SPLIT_PARTS];

    tt_split_percent(&split, percent);
    for (int p = 0; p < TT_SPLIT_PARTS; p++)
        assert_true(percent[p] == 0.0);
}

static void every_part_has_a_name(void **state)
{
    for (int p = 0; p < TT_SPLIT_PARTS; p++)
        for (int q = 0; q < p; q++)
            assert_string_not_equal(tt_split_name((enum tt_split_part)p), tt_split_name((enum tt_split_part)q));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_moment_has_one_part),
        cmocka_unit_test(waits_belong_to_the_group_of_their_collective),
        cmocka_unit_test(an_empty_split_is_all_zero),
        cmocka_unit_test(every_part_has_a_name),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

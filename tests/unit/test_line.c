/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/load/load.h"
#include "checkpoint/steps/line.h"
#include "checkpoint/steps/steps.h"
#include "core/base/mem.h"

static void names_of_steps_that_were_set_aside(void **state)
{
    static const char *const others[] = {
        "step-60",          "step-60.abandoned",   "step-60.abandoned-",  "step-60.lost-a1",
        "step-.damaged-a1", "step-060.damaged-a1", ".step-60.damaged-a1", "step-60-a1"};
    struct tt_aside aside;
    const char *run_id;
    int64_t step;
    char *name = tt_aside_name(60, TT_ASIDE_ABANDONED, "a1-b2");

    assert_string_equal(name, "step-60.abandoned-a1-b2");
    assert_true(tt_aside_parse(name, &aside));
    assert_int_equal(aside.step, 60);
    assert_int_equal(aside.kind, TT_ASIDE_ABANDONED);
    assert_string_equal(aside.run_id, "a1-b2");
    assert_int_equal(tt_step_number(name), -1);
    assert_int_equal(tt_step_number_aside(name), 60);
    assert_int_equal(tt_step_number_aside("step-7"), 7);
    assert_true(tt_aside_parse("step-0.damaged-x", &aside));
    assert_int_equal(aside.kind, TT_ASIDE_DAMAGED);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_false(tt_aside_parse(others[i], &aside));
    assert_true(tt_parent_parse(".parent-step-60-a1", &step, &run_id));
    assert_int_equal(step, 60);
    assert_string_equal(run_id, "a1");
    assert_false(tt_parent_parse(".parent-step-60", &step, &run_id));
    assert_false(tt_parent_parse(".parent-step-x-a1", &step, &run_id));
    tt_free(name);
}

static void a_request_is_recognised_in_the_line(void **state)
{
    const struct tt_line_request none = {-1, 0}, back = {20, 0}, back_without = {20, TT_SKIP_OPTIMIZER},
                                 both = {-1, TT_SKIP_TRAIN_STATE | TT_SKIP_DATALOADER};
    json_t *old = json_pack("{s:s, s:i}", "run_id", "aa", "step", 20), *line = tt_line_of(old), *meta;

    /* a manifest from before there were lines */
    assert_string_equal(json_string_value(json_object_get(line, "id")), "aa");
    assert_true(json_is_null(json_object_get(line, "parent")));
    assert_true(tt_line_is_begun_with(old, &none));
    assert_false(tt_line_is_begun_with(old, &back));
    json_decref(line);
    line = tt_line_new("bb", old, &back);
    meta = json_pack("{s:s, s:i, s:o}", "run_id", "cc", "step", 40, "line", line);
    assert_string_equal(json_string_value(json_object_get(line, "id")), "bb");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(line, "parent"), "step")), 20);
    assert_string_equal(json_string_value(json_object_get(json_object_get(line, "parent"), "run_id")), "aa");
    assert_true(tt_line_is_begun_with(meta, &back));
    assert_false(tt_line_is_begun_with(meta, &back_without));
    assert_false(tt_line_is_begun_with(meta, &none));
    (void)json_object_set_new(meta, "line", tt_line_new("dd", NULL, &both));
    assert_true(tt_line_is_begun_with(meta, &both));
    assert_false(tt_line_is_begun_with(meta, &back));
    json_decref(meta);
    json_decref(old);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_steps_that_were_set_aside),
        cmocka_unit_test(a_request_is_recognised_in_the_line),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

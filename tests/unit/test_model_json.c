/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include <cmocka.h>

#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/models/model_json.h"
#include "core/os/file.h"

/* A model is unchanged after it was written to model.json and read back. */
static void check_model_json(const struct tt_model *model)
{
    char path[] = "/tmp/titan-test-XXXXXX", *text = tt_model_json_text(model), *again;
    struct tt_model *back = NULL;
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    assert_int_equal(tt_file_replace(path, text, strlen(text)), 0);
    if (tt_model_json_load(path, &back) < 0)
        fail_msg("%s", tt_error_message());
    again = tt_model_json_text(back);
    assert_string_equal(text, again);
    assert_int_equal(back->n_params, model->n_params);
    assert_true(tt_model_n_elements(back) == tt_model_n_elements(model));
    assert_int_equal(unlink(path), 0);
    tt_free(text);
    tt_free(again);
    tt_model_free(back);
}

static void a_checkpoint_says_which_model_it_is(void **state)
{
    const struct tt_model_dims odd = {
        .dim = 96, .n_heads = 6, .n_kv_heads = 2, .head_dim = 10, .norm_eps = 3e-7F, .rope = {.theta = 1e4}, .tied = 1};
    const struct tt_model_dims routed = {.moe = {.score = TT_SCORE_SIGMOID,
                                                 .groups = 8,
                                                 .kept_groups = 4,
                                                 .group_rule = TT_GROUP_TWO_BEST,
                                                 .route_scale = 2.5,
                                                 .dense_set = 10},
                                         .sliding_window = 12,
                                         .window_from = 3,
                                         .tied = -1};
    struct tt_model *model = NULL;
    char *text;

    for (int r = 0; r < tt_model_n_rows; r++) {
        for (int f = 0; f < tt_model_rows[r]->n_flavors; f++) {
            assert_int_equal(
                tt_model_new(tt_model_rows[r]->name, tt_model_rows[r]->flavors[f].name, NULL, NULL, &model), 0);
            check_model_json(model);
            tt_model_free(model);
        }
    }
    assert_int_equal(tt_model_new("llama3", "debugmodel", &odd, NULL, &model), 0);
    check_model_json(model);
    tt_model_free(model);
    assert_int_equal(tt_model_new("qwen3", "debugmodel_moe", &routed, NULL, &model), 0);
    check_model_json(model);
    text = tt_model_json_text(model);
    assert_non_null(strstr(text, "\"score\":\"sigmoid\""));
    assert_non_null(strstr(text, "\"group_rule\":\"two_best\""));
    assert_non_null(strstr(text, "\"dense_set\":10"));
    assert_non_null(strstr(text, "\"sliding_window\":12"));
    assert_non_null(strstr(text, "\"window_from\":3"));
    tt_free(text);
    tt_model_free(model);
    model = NULL;
    assert_int_equal(tt_model_json_load("/nonexistent/model.json", &model), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "/nonexistent/model.json"));
    assert_null(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_checkpoint_says_which_model_it_is),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

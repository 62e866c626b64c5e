/* SPDX-License-Identifier: MIT
 *
 * Initial values by rules in the configuration: which parameters a rule applies to, and how. Rows that are filled
 * separately get the same bits as in the whole.
 */
#include <math.h>
#include <stdlib.h>

#include "core/base/mem.h"
#include "model_help.h"
#include "parallel/layout/init.h"

static struct tt_model *make(const char *name)
{
    const struct tt_model_dims dims = {.n_layers = 2, .tied = -1};
    struct tt_model *model = NULL;

    assert_int_equal(tt_model_new(name, "debugmodel", &dims, NULL, &model), 0);
    return model;
}

static int apply(struct tt_model *model, double std, int n, const char *const *rules)
{
    return tt_init_rules_apply(model, std,
                               (struct tt_words){.n = n, .is_list = true, .word = (char **)(uintptr_t)rules});
}

static void init_std_scales_what_the_family_scales(void **state)
{
    struct tt_model *model = make("llama3"), *plain = make("llama3");

    assert_int_equal(apply(model, 0.005, 0, NULL), 0);
    assert_true(find_param(model, "layers.0.attention.wq.weight")->std == 0.005);
    assert_true(find_param(model, "layers.1.attention.wo.weight")->std == 0.005 / sqrt(4.0));
    assert_true(find_param(model, "tok_embeddings.weight")->std == 1.0);
    assert_true(find_param(model, "output.weight")->std == find_param(plain, "output.weight")->std);
    assert_int_equal(apply(model, 0.02, 0, NULL), 0);
    for (int p = 0; p < model->n_params; p++)
        assert_true(model->params[p].std == plain->params[p].std);
    tt_model_free(model);
    tt_model_free(plain);
    model = make("gpt2");
    assert_int_equal(apply(model, 0.01, 0, NULL), 0);
    assert_true(find_param(model, "tok_embeddings.weight")->std == 0.01);
    assert_true(find_param(model, "layers.0.feed_forward.w2.weight")->std == 0.01 / sqrt(4.0));
    assert_true(find_param(model, "pos_embeddings.weight")->std == 0.01);
    tt_model_free(model);
}

static void the_first_rule_that_matches_counts(void **state)
{
    static const char *const rules[] = {"layers.0.attention.wo=zeros", "attention.wo=normal(0.5,1)",
                                        "w[13]=uniform(-0.1, 0.3)", "^norm=constant(-2.5)", "a=*b|tok=ones"};
    struct tt_model *model = make("llama3");
    const struct tt_param *p;

    assert_int_equal(apply(model, (double)NAN, 5, rules), 0);
    assert_int_equal(find_param(model, "layers.0.attention.wo.weight")->init, TT_PARAM_ZEROS);
    p = find_param(model, "layers.1.attention.wo.weight");
    assert_true(p->init == TT_PARAM_NORMAL && p->std == 0.5 && p->cut == 1.0);
    p = find_param(model, "layers.1.feed_forward.w3.weight");
    assert_true(p->init == TT_PARAM_UNIFORM && p->low == -0.1 && p->high == 0.3);
    assert_true(find_param(model, "norm.weight")->init == TT_PARAM_CONSTANT &&
                find_param(model, "norm.weight")->low == -2.5);
    assert_int_equal(find_param(model, "tok_embeddings.weight")->init, TT_PARAM_ONES);
    assert_int_equal(find_param(model, "layers.1.attention.wq.weight")->init, TT_PARAM_NORMAL);
    tt_model_free(model);
}

static void values_are_the_rules_whoever_fills_them(void **state)
{
    static const char *const rules[] = {"w1=uniform(-0.1,0.3)", "wo=normal(0.5,1)", "wq=constant(3)"};
    static const char *const names[] = {"layers.0.feed_forward.w1.weight", "layers.0.attention.wo.weight",
                                        "layers.0.attention.wq.weight"};
    struct tt_model *model = make("llama3");

    assert_int_equal(apply(model, (double)NAN, 3, rules), 0);
    for (int i = 0; i < 3; i++) {
        const struct tt_param *p = find_param(model, names[i]);
        int64_t rows = p->shape[0], n = rows * p->shape[1], cut = rows / 3;
        float *whole = tt_calloc((size_t)n, sizeof *whole), *parts = tt_calloc((size_t)n, sizeof *parts);
        double low = 1e9, high = -1e9, sum = 0.0;

        fill_rows(p, 7, 0, rows, whole);
        fill_rows(p, 7, 0, cut, parts);
        fill_rows(p, 7, cut, rows - cut, parts + cut * p->shape[1]);
        assert_memory_equal(whole, parts, (size_t)n * sizeof *whole);
        for (int64_t k = 0; k < n; k++) {
            low = fmin(low, (double)whole[k]);
            high = fmax(high, (double)whole[k]);
            sum += (double)whole[k];
        }
        if (i == 0)
            assert_true(low >= -0.1000001 && low < -0.09 && high <= 0.3000001 && high > 0.29 &&
                        fabs(sum / (double)n - 0.1) < 0.01);
        else if (i == 1)
            assert_true(low >= -1.0 && low < -0.9 && high <= 1.0 && high > 0.9);
        else
            assert_true(low == 3.0 && high == 3.0);
        tt_free(whole);
        tt_free(parts);
    }
    tt_model_free(model);
}

static void what_is_not_a_rule_is_refused(void **state)
{
    static const char *const wrong[][2] = {
        {"attention.wo", "'attention.wo' is not a rule such as"},
        {"=zeros", "is not a rule"},
        {"wo=normal", "is not a rule"},
        {"wo=normal()", "is not a rule"},
        {"wo=normal(0)", "is not a rule"},
        {"wo=normal(1,2,3)", "is not a rule"},
        {"wo=normal(1", "is not a rule"},
        {"wo=uniform(2,1)", "is not a rule"},
        {"wo=constant(nan)", "is not a rule"},
        {"wo=zeros(1)", "is not a rule"},
        {"wo=kaiming(1)", "normal(STD)"},
        {"w(=zeros", "invalid regular expression 'w('"},
        {"nosuch=zeros", "'nosuch' matches no parameter"},
    };
    struct tt_model *model = make("llama3");

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(apply(model, (double)NAN, 1, &wrong[i][0]), TT_EUSAGE);
        if (!strstr(tt_error_message(), wrong[i][1]))
            fail_msg("%s: %s", wrong[i][0], tt_error_message());
        assert_int_equal(tt_error_key(), TT_KEY(model.init_rules));
    }
    tt_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(init_std_scales_what_the_family_scales),
        cmocka_unit_test(the_first_rule_that_matches_counts),
        cmocka_unit_test(values_are_the_rules_whoever_fills_them),
        cmocka_unit_test(what_is_not_a_rule_is_refused),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

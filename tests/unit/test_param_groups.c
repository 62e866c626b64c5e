/* SPDX-License-Identifier: MIT
 *
 * Groups of parameters by name: which parameters the expressions select, and which expressions are refused.
 */
#include <stdlib.h>

#include "core/base/mem.h"
#include "model_help.h"
#include "parallel/layout/units.h"

static struct tt_model *make(const char *name)
{
    const struct tt_model_dims dims = {.n_layers = 2, .tied = -1};
    struct tt_model *model = NULL;

    assert_int_equal(tt_model_new(name, "debugmodel", &dims, NULL, &model), 0);
    return model;
}

static struct tt_words words(int n, const char *const *word)
{
    return (struct tt_words){.n = n, .is_list = true, .word = (char **)(uintptr_t)word};
}

static int without_decay(struct tt_model *model, int n, const char *const *regexes)
{
    return tt_param_groups_apply(model, words(n, regexes), (struct tt_words){0});
}

static int with_factors(struct tt_model *model, int n, const char *const *factors)
{
    return tt_param_groups_apply(model, (struct tt_words){0}, words(n, factors));
}

static void all_parameters_are_alike_by_default(void **state)
{
    struct tt_model *model = make("gpt2");

    assert_int_equal(tt_param_groups_apply(model, (struct tt_words){0}, (struct tt_words){0}), 0);
    for (int p = 0; p < model->n_params; p++)
        assert_true(model->params[p].lr_factor == 1.0 && !model->params[p].no_decay);
    tt_model_free(model);
}

/* In these models the vectors are the norms and the biases. An expression is allowed even if another one matches
 * everything that it matches. */
static void norm_and_bias_select_the_vectors(void **state)
{
    static const char *const usual[] = {"norm", "bias", "norm.bias"};
    static const char *const models[] = {"llama3", "gpt2"};
    static const int n[] = {1, 3};

    for (int m = 0; m < 2; m++) {
        struct tt_model *model = make(models[m]);

        assert_int_equal(without_decay(model, n[m], usual), 0);
        for (int p = 0; p < model->n_params; p++)
            assert_true(model->params[p].no_decay == (model->params[p].ndim == 1));
        tt_model_free(model);
    }
}

static void the_first_factor_that_matches_counts(void **state)
{
    static const char *const factors[] = {"layers.0.attention.wo=0.5", "attention.wo=2e-1", "a=*b|tok=0"};
    struct tt_model *model = make("llama3");

    assert_int_equal(with_factors(model, 3, factors), 0);
    assert_true(find_param(model, "layers.0.attention.wo.weight")->lr_factor == 0.5);
    assert_true(find_param(model, "layers.1.attention.wo.weight")->lr_factor == 0.2);
    assert_true(find_param(model, "tok_embeddings.weight")->lr_factor == 0.0);
    assert_true(find_param(model, "layers.1.attention.wq.weight")->lr_factor == 1.0);
    assert_false(find_param(model, "layers.1.attention.wo.weight")->no_decay);
    tt_model_free(model);
}

static void expressions_that_select_nothing_and_bad_factors_are_errors(void **state)
{
    static const char *const bad[] = {"wo", "wo=", "=1", "wo=x", "wo=1x", "wo=-1", "wo=nan", "wo=inf"};
    static const char *const none[] = {"norm", "biases"}, *const syntax[] = {"wo("}, *const taken[] = {"w=1", "wo=2"};
    struct tt_model *model = make("llama3");

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(with_factors(model, 1, &bad[i]), TT_EUSAGE);
        assert_int_equal(tt_error_key(), TT_KEY(optimizer.lr_factors));
        assert_non_null(strstr(tt_error_message(), "is not regex=factor"));
    }
    assert_int_equal(with_factors(model, 2, taken), TT_EUSAGE);
    assert_non_null(strstr(tt_error_message(), "'wo' matches no parameter that an earlier factor has not taken"));
    assert_int_equal(without_decay(model, 2, none), TT_EUSAGE);
    assert_int_equal(tt_error_key(), TT_KEY(optimizer.no_decay));
    assert_non_null(strstr(tt_error_message(), "'biases' matches no parameter\nhelp: names look like"));
    assert_int_equal(without_decay(model, 1, syntax), TT_EUSAGE);
    assert_int_equal(tt_error_key(), TT_KEY(optimizer.no_decay));
    tt_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_parameters_are_alike_by_default),
        cmocka_unit_test(norm_and_bias_select_the_vectors),
        cmocka_unit_test(the_first_factor_that_matches_counts),
        cmocka_unit_test(expressions_that_select_nothing_and_bad_factors_are_errors),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

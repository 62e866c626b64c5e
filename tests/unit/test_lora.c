/* SPDX-License-Identifier: MIT
 *
 * The parameters of low-rank adapters.
 */
#include <stdlib.h>

#include <unistd.h>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/models/lora.h"
#include "core/models/model_json.h"
#include "core/os/file.h"
#include "model_help.h"

static struct tt_model *make(const struct tt_model_dims *overrides)
{
    struct tt_model *model = NULL;

    if (tt_model_new("llama3", "debugmodel", overrides, NULL, &model) < 0)
        fail_msg("%s", tt_error_message());
    return model;
}

static struct tt_model_dims with_adapters(int64_t rank, double alpha, const char *const *modules, int n)
{
    struct tt_model_dims dims = {.tied = -1, .lora = {.rank = rank, .alpha = alpha}};

    for (int i = 0; i < n; i++)
        dims.lora.modules |= tt_lora_module(modules[i]);
    return dims;
}

static void adapters_follow_their_weights(void **state)
{
    static const char *const some[] = {"q_proj", "down_proj"};
    struct tt_model_dims dims = with_adapters(8, 16.0, some, 2);
    struct tt_model *plain = make(NULL), *model = make(&dims);
    const struct tt_param *w = find_param(model, "layers.2.attention.wq.weight"), *a = w + 1, *b = w + 2;

    assert_int_equal(model->n_params, plain->n_params + 2 * 2 * 6);
    assert_string_equal(a->name, "layers.2.attention.wq.lora_a.weight");
    assert_string_equal(b->name, "layers.2.attention.wq.lora_b.weight");
    assert_string_equal(a->hf_name, "base_model.model.model.layers.2.self_attn.q_proj.lora_A.weight");
    assert_string_equal(b->hf_name, "base_model.model.model.layers.2.self_attn.q_proj.lora_B.weight");
    assert_true(w->frozen && w->adapted && !w->adapter);
    assert_true(!a->frozen && a->adapter && !b->frozen && b->adapter && a->block == 2 && b->block == 2);
    assert_true(a->shape[0] == 8 && a->shape[1] == 256 && b->shape[0] == 256 && b->shape[1] == 8);
    assert_true(a->init == TT_PARAM_UNIFORM && a->high == 1.0 / 16.0 && a->low == -a->high);
    assert_true(b->init == TT_PARAM_ZEROS);
    assert_true(a->hf_transform == TT_HF_SAME && b->hf_transform == TT_HF_ROPE_PAIRS && b->hf_heads == 16);
    assert_true(!find_param(model, "layers.2.attention.wk.weight")->adapted);
    assert_int_equal(tt_model_n_trained(model), 6 * (8 * (256 + 256) + 8 * (768 + 256)));
    assert_int_equal(tt_model_n_elements(model), tt_model_n_elements(plain) + tt_model_n_trained(model));
    tt_model_free(plain);
    tt_model_free(model);
}

/* A frozen weight of a product is multiplied once in backward, not twice. */
static void flops_of_adapters(void **state)
{
    static const char *const some[] = {"v_proj"};
    struct tt_model_dims dims = with_adapters(4, 16.0, some, 1);
    struct tt_model *plain = make(NULL), *model = make(&dims);
    double products = (double)(tt_model_n_elements(plain) - 2048 * 256);

    assert_true(tt_model_flops_per_token(model, 64) ==
                tt_model_flops_per_token(plain, 64) - 2.0 * products + 6.0 * (double)tt_model_n_trained(model));
    tt_model_free(plain);
    tt_model_free(model);
}

static void a_checkpoint_says_which_adapters_it_has(void **state)
{
    static const char *const some[] = {"v_proj", "gate_proj"};
    static const struct {
        const char *lora, *message;
    } wrong[] = {
        {"{\"rank\": 4, \"alpha\": 1.5, \"target_modules\": [\"lm_head\"]}", "cannot have an adapter"},
        {"{\"rank\": 4, \"alpha\": 1.5, \"target_modules\": []}", "0 target modules"},
        {"{\"rank\": -4, \"alpha\": 1.5, \"target_modules\": [\"v_proj\"]}", "rank -4"},
        {"{\"alpha\": 1.5, \"target_modules\": [\"v_proj\"]}", "rank"},
    };
    struct tt_model_dims dims = with_adapters(4, 1.5, some, 2);
    struct tt_model *model = make(&dims), *back = NULL;
    char *text = tt_model_json_text(model), path[] = "/tmp/titan-model-XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(tt_file_replace(path, text, strlen(text)), 0);
    assert_int_equal(tt_model_json_load(path, &back), 0);
    assert_memory_equal(&back->dims.lora, &model->dims.lora, sizeof back->dims.lora);
    assert_int_equal(back->n_params, model->n_params);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        json_t *json = NULL, *lora = json_loads(wrong[i].lora, 0, NULL);
        char *changed;

        assert_int_equal(tt_json_load(path, &json), 0);
        assert_non_null(lora);
        (void)json_object_set_new(json, "lora", lora);
        changed = tt_json_text(json);
        assert_int_equal(tt_file_replace(path, changed, strlen(changed)), 0);
        assert_int_equal(tt_model_json_load(path, &(struct tt_model *){NULL}), TT_EDATA);
        if (!strstr(tt_error_message(), wrong[i].message))
            fail_msg("%s: %s", wrong[i].lora, tt_error_message());
        tt_free(changed);
        json_decref(json);
    }
    (void)unlink(path);
    (void)close(fd);
    tt_free(text);
    tt_model_free(back);
    tt_model_free(model);
}

/* The error names no modules, since the model would refuse those as well. */
static void models_without_adapters_say_so(void **state)
{
    static const char *const names[] = {"gpt2", "deepseek_v3", "gpt_oss"};
    struct tt_model_dims dims = {.tied = -1, .lora = {.rank = 4, .alpha = 1.0, .modules = 0x7f}};
    struct tt_model *model = NULL;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_int_equal(tt_model_new(names[i], "debugmodel", &dims, NULL, &model), TT_EUSAGE);
        if (!strstr(tt_error_message(), " has no adapters") || strstr(tt_error_message(), "q_proj"))
            fail_msg("%s: %s", names[i], tt_error_message());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapters_follow_their_weights),
        cmocka_unit_test(flops_of_adapters),
        cmocka_unit_test(a_checkpoint_says_which_adapters_it_has),
        cmocka_unit_test(models_without_adapters_say_so),
    };

    (void)cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

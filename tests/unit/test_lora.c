/* SPDX-License-Identifier: MIT
 *
 * The parameters of low-rank adapters.
 */
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
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

    tt_lora_set_targets(&dims.lora, modules, n);
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

/* The layers that the words select, as "0.wq 1.w2"; the caller frees it. NULL: the model is refused. */
static char *selected(const char *const *words, int n)
{
    struct tt_model_dims dims = with_adapters(2, 4.0, words, n);
    struct tt_model *model = NULL;
    struct tt_text text = {0};

    if (tt_model_new("llama3", "debugmodel", &dims, NULL, &model) < 0)
        return NULL;
    for (int p = 0; p < model->n_params; p++) {
        const char *name = model->params[p].name;

        if (model->params[p].adapted)
            tt_text_add(&text, "%s%d.%.2s", text.size ? " " : "", model->params[p].block, strrchr(name, '.') - 2);
    }
    tt_model_free(model);
    return text.text;
}

/* As PEFT's check_target_module_exists: a name is a whole name or its end after a dot, an expression matches all of a
 * name. Names of titan and of Hugging Face mean the same. */
static void targets_select_layers(void **state)
{
    static const struct {
        const char *words[3];
        const char *layers; /* NULL: refused */
        const char *message;
    } cases[] = {
        {{"layers.1.attention.wq"}, "1.wq", NULL},
        {{"model.layers.1.self_attn.q_proj"}, "1.wq", NULL},
        {{"layers.1.self_attn.q_proj"}, "1.wq", NULL},
        {{"attention.wo"}, "0.wo 1.wo 2.wo 3.wo 4.wo 5.wo", NULL},
        {{"mlp.down_proj", "layers.0.attention.wk"}, "0.wk 0.w2 1.w2 2.w2 3.w2 4.w2 5.w2", NULL},
        {{"layers.[02].*w[12]"}, "0.w1 0.w2 2.w1 2.w2", NULL},
        {{"layers\\.(1|5)\\.attention\\.w(q|v)"}, "1.wq 1.wv 5.wq 5.wv", NULL},
        {{".*\\.4\\..*(up|gate)_proj", "o_proj"}, "0.wo 1.wo 2.wo 3.wo 4.wo 4.w1 4.w3 5.wo", NULL},
        {{"layers.[0-3]"}, NULL, "'layers.[0-3]' selects no layer of llama3 debugmodel that can have an adapter"},
        {{"wo", "attention.wx"}, NULL, "did you mean 'attention.wq'"},
        {{"q_prj"}, NULL, "did you mean 'q_proj'"},
        {{"w"}, NULL, "'w' selects no layer"},
        {{"proj"}, NULL, "'proj' selects no layer"},
        {{"lm_head"}, NULL, "names look like layers.0.attention.wq or model.layers.0.self_attn.q_proj"},
        {{"*.wq"}, NULL, "lora.target_modules"},
    };
    char *all, *every;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int n = 0;
        char *found;

        while (n < 3 && cases[i].words[n])
            n++;
        found = selected(cases[i].words, n);
        if (!found != !cases[i].layers || (found && strcmp(found, cases[i].layers) != 0))
            fail_msg("%s: found %s, wanted %s", cases[i].words[0], found ? found : tt_error_message(),
                     cases[i].layers ? cases[i].layers : cases[i].message);
        if (!found && !strstr(tt_error_message(), cases[i].message) && strcmp(cases[i].message, "lora.target_modules"))
            fail_msg("%s: %s", cases[i].words[0], tt_error_message());
        tt_free(found);
    }
    all = selected((const char *const[]){"all-linear"}, 1);
    every = selected(tt_lora_modules, tt_lora_n_modules);
    assert_string_equal(all, every);
    tt_free(all);
    tt_free(every);
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
    static const char *const some[] = {"v_proj", "layers.[13].attention.w[qo]", "gate_proj"};
    static const struct {
        const char *lora, *message;
    } wrong[] = {
        {"{\"rank\": 4, \"alpha\": 1.5, \"target_modules\": [\"lm_head\"]}", "'lm_head' selects no layer"},
        {"{\"rank\": 4, \"alpha\": 1.5, \"target_modules\": [7]}", "a member that is not a text"},
        {"{\"rank\": 4, \"alpha\": 1.5, \"target_modules\": []}", "0 target modules"},
        {"{\"rank\": -4, \"alpha\": 1.5, \"target_modules\": [\"v_proj\"]}", "rank -4"},
        {"{\"alpha\": 1.5, \"target_modules\": [\"v_proj\"]}", "rank"},
    };
    struct tt_model_dims dims = with_adapters(4, 1.5, some, 3);
    struct tt_model *model = make(&dims), *back = NULL;
    char *text = tt_model_json_text(model), path[] = "/tmp/titan-model-XXXXXX";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(tt_file_replace(path, text, strlen(text)), 0);
    assert_int_equal(tt_model_json_load(path, &back), 0);
    assert_true(back->dims.lora.rank == 4 && back->dims.lora.alpha == 1.5);
    assert_int_equal(back->dims.lora.modules, model->dims.lora.modules);
    assert_int_equal(back->n_params, model->n_params);
    for (int p = 0; p < model->n_params; p++)
        assert_string_equal(back->params[p].name, model->params[p].name);
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
        cmocka_unit_test(targets_select_layers),
        cmocka_unit_test(flops_of_adapters),
        cmocka_unit_test(a_checkpoint_says_which_adapters_it_has),
        cmocka_unit_test(models_without_adapters_say_so),
    };

    (void)cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

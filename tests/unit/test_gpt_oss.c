/* SPDX-License-Identifier: MIT
 *
 * gpt-oss: names and shapes, initial values, config.json, and how its windows change counts.
 */
#include <math.h>

#include "core/graph/graph.h"
#include "core/models/model_json.h"
#include "model_help.h"

static void parameters_have_torchtitans_names_and_rules(void **state)
{
    static const struct {
        const char *name, *hf_name;
        int ndim;
        int64_t shape[3];
        double std; /* 0: a constant */
        bool of_experts;
    } wanted[] = {
        {"attention_norm.weight", "input_layernorm.weight", 1, {2880}, 0.0, false},
        {"attention.wq.weight", "self_attn.q_proj.weight", 2, {4096, 2880}, 1.0, false},
        {"attention.wq.bias", "self_attn.q_proj.bias", 1, {4096}, 1.0, false},
        {"attention.wk.weight", "self_attn.k_proj.weight", 2, {512, 2880}, 1.0, false},
        {"attention.wv.bias", "self_attn.v_proj.bias", 1, {512}, 1.0, false},
        {"attention.sinks", "self_attn.sinks", 1, {64}, 1.0, false},
        {"attention.wo.weight", "self_attn.o_proj.weight", 2, {2880, 4096}, 1.0, false},
        {"attention.wo.bias", "self_attn.o_proj.bias", 1, {2880}, 1.0, false},
        {"moe.router.gate.weight", "mlp.router.weight", 2, {32, 2880}, 1.0, false},
        {"moe.router.gate.bias", "mlp.router.bias", 1, {32}, 0.0, false},
        {"moe.experts.mlp1_weight", "mlp.experts.gate_up_proj", 3, {32, 5760, 2880}, 1.0, true},
        {"moe.experts.mlp1_bias", "mlp.experts.gate_up_proj_bias", 2, {32, 5760}, 1.0, true},
        {"moe.experts.mlp2_weight", "mlp.experts.down_proj", 3, {32, 2880, 2880}, 1.0, true},
        {"moe.experts.mlp2_bias", "mlp.experts.down_proj_bias", 2, {32, 2880}, 1.0, true},
    };
    struct tt_model *model = make_of("gpt_oss", "20b", NULL);

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        char *name = tt_format("layers.3.%s", wanted[i].name);
        const struct tt_param *p = find_param(model, name);

        assert_string_equal(p->hf_name + strlen("model.layers.3."), wanted[i].hf_name);
        assert_int_equal(p->ndim, wanted[i].ndim);
        assert_memory_equal(p->shape, wanted[i].shape, (size_t)p->ndim * sizeof *p->shape);
        assert_true(p->of_experts == wanted[i].of_experts);
        assert_true((p->init == TT_PARAM_NORMAL) == (wanted[i].std > 0.0));
        if (p->init == TT_PARAM_NORMAL) /* smaller by depth, in all layers */
            assert_true(fabs(p->std - 0.02 / sqrt(8.0)) < 1e-12);
        tt_free(name);
    }
    assert_true(find_param(model, "layers.3.moe.experts.mlp1_weight")->hf_transform == TT_HF_EXPERTS_TRANSPOSE);
    assert_true(find_param(model, "layers.3.moe.router.gate.bias")->init == TT_PARAM_ZEROS);
    tt_model_free(model);
}

/* The key adds biases for balancing, which do not exist in Hugging Face's class. */
static void experts_may_be_balanced_by_biases(void **state)
{
    const struct tt_model_dims biased = {.moe = {.biased = true}, .tied = -1};
    struct tt_model *model = make_of("gpt_oss", "debugmodel", &biased);
    const struct tt_param *bias = find_param(model, "layers.1.moe.expert_bias");

    assert_true(bias->buffer && bias->frozen && !bias->hf_name && bias->shape[0] == 8);
    tt_model_free(model);
}

/* Attention of layers 0 and 2 sees a window, attention of layers 1 and 3 all keys; every layer has sinks. */
static void every_other_layer_has_a_window(void **state)
{
    struct tt_model *model = make_of("gpt_oss", "debugmodel", NULL);
    int *grad = tt_calloc((size_t)model->n_params, sizeof *grad), found = 0;
    struct tt_graph *graph = NULL;

    assert_int_equal(tt_model_graph(model, TT_GRAPH_TRAIN, TT_F32, 1, 16, false, &graph, grad), 0);
    for (int n = 0; n < graph->n_nodes; n++) {
        const struct tt_node *node = &graph->nodes[n];

        if (node->op != TT_OP_ATTENTION)
            continue;
        assert_true(node->attr.sliding_window == (node->block % 2 == 0 ? 128 : 0));
        assert_true(node->in[4] != TT_NONE);
        found++;
    }
    assert_int_equal(found, 4);
    for (int p = 0; p < model->n_params; p++)
        if (grad[p] == TT_NONE)
            fail_msg("%s has no gradient", model->params[p].name);
    tt_graph_free(graph);
    tt_free(grad);
    tt_model_free(model);
}

/* Of 200 rows, 72 do not see all keys: each of two layers computes 72 * 73 / 2 pairs fewer. torchtitan's formula counts
 * all. */
static void flops_of_windows(void **state)
{
    struct tt_model *model = make_of("gpt_oss", "debugmodel", NULL);
    double per_pair = 6.0 * 64.0 * 128.0, pairs = 200.0 * 201.0 / 2.0;
    double others = tt_model_flops_per_token(model, 1) - per_pair * 4.0;

    assert_true(tt_model_flops_per_token(model, 200) == others + per_pair * 4.0 * 200.0);
    assert_true(fabs(tt_model_flops_per_token_causal(model, 200) * 200.0 -
                     (others * 200.0 + per_pair * (4.0 * pairs - 2.0 * 72.0 * 73.0 / 2.0))) < 1.0);
    assert_true(tt_model_flops_per_token_causal(model, 100) == others + per_pair * 4.0 * 50.5);
    tt_model_free(model);
}

#define CONFIG(more)                                                                                    \
    "{\"model_type\":\"gpt_oss\",\"hidden_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":4," \
    "\"num_key_value_heads\":2,\"head_dim\":32,\"intermediate_size\":96,\"vocab_size\":300,"            \
    "\"num_local_experts\":8,\"num_experts_per_tok\":2,\"rope_theta\":150000,\"sliding_window\":16" more "}"
#define YARN                                                                                          \
    ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":32.0,\"beta_fast\":32.0,\"beta_slow\":1.0," \
    "\"truncate\":false,\"original_max_position_embeddings\":4096}"

static void hf_config(void **state)
{
    static const struct {
        const char *json, *message;
    } bad[] = {
        {CONFIG(",\"quantization_config\":{\"quant_method\":\"gptq\"}"), "quant_method 'gptq' is not supported"},
        {CONFIG(",\"layer_types\":[\"sliding_attention\",\"sliding_attention\",\"sliding_attention\"]"),
         "layer_types[1] is 'sliding_attention'; only 'full_attention' is supported there"},
        {CONFIG(",\"layer_types\":[\"sliding_attention\"]"), "layer_types[1] is '(not a string)'"},
        {CONFIG(",\"attention_bias\":false"), "attention_bias false is not supported"},
        {CONFIG(",\"swiglu_limit\":5.0"), "swiglu_limit 5 is not supported; only 7 is"},
        {CONFIG(",\"swiglu_alpha\":1.5"), "swiglu_alpha 1.5 is not supported; only 1.702 is"},
        {CONFIG(",\"output_router_logits\":1"), "output_router_logits must be true or false"},
    };
    static const struct { /* as transformers' GptOssConfig reads them */
        const char *json;
        double factor;
    } rope[] = {
        {CONFIG(""), 32.0},
        {CONFIG(",\"rope_scaling\":null"), 32.0},
        {CONFIG(",\"rope_scaling\":{}"), 32.0},
        {CONFIG(",\"rope_scaling\":{\"rope_type\":\"default\"}"), 0.0},
        {CONFIG(",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":150000.0}"), 0.0},
    };
    struct tt_model *model = NULL;
    const struct tt_model_dims *d;

    if (model_of_json("gpt_oss",
                      CONFIG(YARN ",\"swiglu_limit\":7.0,\"layer_types\":[\"sliding_attention\","
                                  "\"full_attention\",\"sliding_attention\"]"),
                      &model) < 0)
        fail_msg("%s", tt_error_message());
    d = &model->dims;
    assert_true(d->sliding_window == 16 && d->moe.experts == 8 && d->moe.top_k == 2 && d->moe.ffn_dim == 96);
    assert_true(d->rope.fractional && d->rope.factor == 32.0 && d->rope.theta == 150000.0 && d->norm_eps == 1e-5F);
    assert_true(d->n_kv_heads == 2 && d->head_dim == 32);
    tt_model_free(model);
    model = NULL;
    for (size_t i = 0; i < sizeof rope / sizeof *rope; i++) {
        if (model_of_json("gpt_oss", rope[i].json, &model) < 0)
            fail_msg("%s", tt_error_message());
        d = &model->dims;
        assert_true(d->rope.factor == rope[i].factor && d->rope.theta == 150000.0);
        if (rope[i].factor > 0.0)
            assert_true(d->rope.fractional && d->rope.original_max == 4096.0 && d->rope.beta_fast == 32.0 &&
                        d->rope.beta_slow == 1.0);
        tt_model_free(model);
        model = NULL;
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(model_of_json("gpt_oss", bad[i].json, &model), TT_EDATA, bad[i].message);
    assert_null(model);
}

/* A checkpoint describes the model's window and the kind of its YaRN. */
static void model_json_has_the_window(void **state)
{
    struct tt_model *model = make_of("gpt_oss", "debugmodel", NULL), *back = NULL,
                    *other = make_of("llama3", "1B", NULL);
    char *text = tt_model_json_text(model), *plain = tt_model_json_text(other);
    char folder[] = "/tmp/titan-test-XXXXXX", *path;

    assert_non_null(mkdtemp(folder));
    path = tt_format("%s/model.json", folder);
    assert_int_equal(tt_file_replace(path, text, strlen(text)), 0);
    assert_int_equal(tt_model_json_load(path, &back), 0);
    assert_true(back->dims.sliding_window == 128 && back->dims.rope.fractional);
    assert_null(strstr(plain, "sliding_window"));
    assert_null(strstr(plain, "fractional"));
    assert_int_equal(tt_folder_remove(folder), 0);
    tt_free(path);
    tt_free(text);
    tt_free(plain);
    tt_model_free(model);
    tt_model_free(back);
    tt_model_free(other);
}

/*
 * The angles of the first pairs of gpt-oss, from the formulas of transformers with truncate false: pairs up to 8.09
 * turn as they are, pairs from 17.40 on 32 times slower, and those between are mixed.
 */
static void yarn_between_fractions_of_pairs(void **state)
{
    struct tt_model *model = make_of("gpt_oss", "20b", NULL);
    float *table = tt_calloc(2 * 64, sizeof *table);
    double scale = 0.1 * log(32.0) + 1.0, low, high;

    low = 64.0 * log(4096.0 / (32.0 * 2.0 * acos(-1.0))) / (2.0 * log(150000.0));
    high = 64.0 * log(4096.0 / (2.0 * acos(-1.0))) / (2.0 * log(150000.0));
    assert_true(fabs(low - 8.09) < 0.01 && fabs(high - 17.40) < 0.01);
    tt_rope_fill(&model->dims.rope, 2, 64, TT_F32, table);
    for (int i = 0; i < 32; i++) {
        double ramp = fmin(fmax(((double)i - low) / (high - low), 0.0), 1.0), plain = pow(150000.0, -i / 32.0);
        double angle = plain * (1.0 - ramp) + plain / 32.0 * ramp;

        assert_true(fabs((double)table[64 + 2 * i] - scale * cos(angle)) < 1e-6);
        assert_true(fabs((double)table[64 + 2 * i + 1] - scale * sin(angle)) < 1e-6);
    }
    tt_free(table);
    tt_model_free(model);
}

static void impossible_windows_are_refused(void **state)
{
    const struct tt_model_dims negative = {.sliding_window = -2, .tied = -1};
    struct tt_model *model = NULL;

    assert_fails(tt_model_new("gpt_oss", "20b", &negative, NULL, &model), TT_EUSAGE, "sees a window of -2 keys");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_have_torchtitans_names_and_rules),
        cmocka_unit_test(experts_may_be_balanced_by_biases),
        cmocka_unit_test(every_other_layer_has_a_window),
        cmocka_unit_test(flops_of_windows),
        cmocka_unit_test(hf_config),
        cmocka_unit_test(model_json_has_the_window),
        cmocka_unit_test(yarn_between_fractions_of_pairs),
        cmocka_unit_test(impossible_windows_are_refused),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT
 *
 * Models with experts: counts, sizes that are refused, config.json.
 */
#include <math.h>

#include "core/base/json.h"
#include "core/base/mem.h"
#include "model_help.h"
#include "tests/help/log.h"

/* The counts and flops that torchtitan and the models' authors give; flops count the experts that a token uses. */
static void counts_of_models_with_experts(void **state)
{
    static const struct {
        const char *name, *flavor;
        int64_t parameters, active;
        int64_t seq_len;
        double flops; /* 0: not published */
    } wanted[] = {
        {"qwen3", "debugmodel_moe", 315758848, 51517696, 4096, 1111266816.0},
        {"qwen3", "30B-A3B", 30532122624, 3353032704, 4096, 27914883072.0},
        {"qwen3", "235B-A22B", 235093634560, 22190763520, 4096, 167260001280.0},
        {"mixtral", "8x7B", 46702792704, 12879925248, 4096, 0.0},
        {"mixtral", "8x22B", 140630071296, 39161468928, 4096, 0.0},
        {"deepseek_v3", "debugmodel", 33014016, 28098816, 2048, 542934528.0},
        {"deepseek_v3", "16B", 15706484224, 2661150208, 4096, 18105996288.0},
        {"deepseek_v3", "236B", 235741434880, 21375800320, 4096, 185507051520.0},
        {"deepseek_v3", "671B", 671026404352, 37552282624, 4096, 281158232064.0},
        {"gpt_oss", "debugmodel", 81489440, 46003744, 4096, 0.0},
        {"gpt_oss", "20b", 20914757184, 4187440704, 4096, 26481681792.0},
        {"gpt_oss", "120b", 116829156672, 5711982912, 4096, 0.0},
    };

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        struct tt_model *model = make_of(wanted[i].name, wanted[i].flavor, NULL);

        assert_true(tt_model_n_elements(model) == wanted[i].parameters);
        assert_true(tt_model_n_active(model) == wanted[i].active);
        if (wanted[i].flops > 0.0)
            assert_true(tt_model_flops_per_token(model, wanted[i].seq_len) == wanted[i].flops);
        tt_model_free(model);
    }
}

static void impossible_experts_are_refused(void **state)
{
    static const struct {
        struct tt_model_dims dims;
        const char *message;
    } wanted[] = {
        {{.moe = {.top_k = 65}, .tied = -1}, "65 of 64 experts for each token; the number must lie in 1..64"},
        {{.moe = {.top_k = -1}, .tied = -1}, "-1 of 64 experts for each token; the number must lie in 1..64"},
        {{.moe = {.experts = 1 << 20}, .tied = -1}, "the model has 1048576 experts; there must be 1..16384"},
        {{.moe = {.ffn_dim = -3}, .tied = -1}, "experts are -3 wide"},
        {{.moe = {.dense_layers = 9}, .tied = -1}, "9 layers without experts, of 8 layers"},
        {{.moe = {.groups = 5}, .tied = -1}, "64 experts do not divide into 5 groups of two or more"},
        {{.moe = {.groups = 64}, .tied = -1}, "64 experts do not divide into 64 groups of two or more"},
        {{.moe = {.groups = 65}, .tied = -1}, "experts are in 65 groups; there must be 1..64"},
        {{.moe = {.groups = 8}, .tied = -1}, "a token's experts are in 0 of 8 groups; there must be 1..8"},
        {{.moe = {.groups = 32, .kept_groups = 3}, .tied = -1},
         "8 experts for each token, but 3 groups of 2 experts have only 6"},
        {{.moe = {.route_scale = -1.0}, .tied = -1}, "the gates of experts are multiplied by -1"},
        {{.lora = {.rank = 2, .alpha = 1.0, .modules = 1U << 6}, .tied = -1}, "experts have no adapters"},
    };
    const struct tt_model_dims balanced = {.moe = {.balanced = true}, .tied = -1};
    struct tt_model *model = NULL;

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        assert_fails(tt_model_new("qwen3", "debugmodel_moe", &wanted[i].dims, NULL, &model), TT_EUSAGE,
                     wanted[i].message);
    assert_fails(tt_model_new("qwen3", "debugmodel", &balanced, NULL, &model), TT_EUSAGE, "is for models with experts");
    assert_null(model);
}

#define MOE_CONFIG                                                                                        \
    "{\"model_type\":\"qwen3_moe\",\"hidden_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":4," \
    "\"intermediate_size\":96,\"vocab_size\":300,\"moe_intermediate_size\":24,\"num_experts_per_tok\":2"

#define MANY_LAYERS                                                                                        \
    "{\"model_type\":\"qwen3_moe\",\"hidden_size\":64,\"num_hidden_layers\":90,\"num_attention_heads\":4," \
    "\"intermediate_size\":96,\"vocab_size\":300,\"moe_intermediate_size\":24,\"num_experts_per_tok\":2,"  \
    "\"num_experts\":8,\"mlp_only_layers\":[80]}"

/* The member only matters when transformers trains. */
static void output_router_logits_is_a_note(void **state)
{
    static const char *const json[] = {MOE_CONFIG ",\"num_experts\":8,\"output_router_logits\":true}",
                                       MOE_CONFIG ",\"num_experts\":8,\"output_router_logits\":false}"};
    struct tt_model *model = NULL;

    for (int i = 0; i < 2; i++) {
        log_catch();
        assert_int_equal(model_of_json("qwen3", json[i], &model), 0);
        assert_true((strstr(caught.last, "the balance loss that transformers adds") != NULL) == (i == 0));
        log_release();
        tt_model_free(model);
        model = NULL;
    }
}

/* transformers 5 renamed num_experts; the class does not normalize by default. */
static void hf_config_of_experts(void **state)
{
    static const struct {
        const char *json, *message;
    } wanted[] = {
        {MOE_CONFIG ",\"num_experts\":8,\"decoder_sparse_step\":0}", "decoder_sparse_step must be a positive integer"},
        {MOE_CONFIG ",\"num_experts\":8,\"mlp_only_layers\":1}", "mlp_only_layers must be a list of layers"},
        {MOE_CONFIG ",\"num_experts\":8,\"mlp_only_layers\":[\"a\"]}", "mlp_only_layers must be a list of layers"},
        {MOE_CONFIG ",\"num_experts\":8,\"output_router_logits\":1}", "output_router_logits must be true or false"},
    };
    const struct tt_moe *moe;
    struct tt_model *model = NULL;

    assert_int_equal(model_of_json("qwen3", MOE_CONFIG ",\"num_local_experts\":8,\"mlp_only_layers\":[0,1]}", &model),
                     0);
    moe = &model->dims.moe;
    assert_true(moe->experts == 8 && moe->top_k == 2 && moe->ffn_dim == 24 && moe->dense_layers == 2);
    assert_true(moe->gates_as_scored);
    assert_string_equal(find_param(model, "layers.1.feed_forward.w1.weight")->hf_name,
                        "model.layers.1.mlp.gate_proj.weight");
    assert_string_equal(find_param(model, "layers.2.moe.experts.w2")->hf_name,
                        "model.layers.2.mlp.experts.*.down_proj.weight");
    tt_model_free(model);
    model = NULL;
    assert_int_equal(model_of_json("qwen3", MOE_CONFIG ",\"num_experts\":8,\"norm_topk_prob\":true}", &model), 0);
    assert_false(model->dims.moe.gates_as_scored);
    tt_model_free(model);
    model = NULL;
    assert_int_equal(model_of_json("qwen3",
                                   MOE_CONFIG ",\"num_experts\":8,\"decoder_sparse_step\":2,\"mlp_only_layers\":[1]}",
                                   &model),
                     0);
    assert_int_equal(tt_model_dense_layers(&model->dims), 3);
    tt_model_free(model);
    model = NULL;
    assert_int_equal(model_of_json("qwen3", MOE_CONFIG ",\"num_experts\":8,\"mlp_only_layers\":[2,0]}", &model), 0);
    assert_int_equal(tt_model_dense_layers(&model->dims), 2);
    assert_true(tt_model_has_experts(&model->dims, 1) && !tt_model_has_experts(&model->dims, 2));
    assert_non_null(find_param(model, "layers.1.moe.experts.w1"));
    assert_non_null(find_param(model, "layers.2.feed_forward.w1.weight"));
    tt_model_free(model);
    model = NULL;
    assert_fails(model_of_json("qwen3", MANY_LAYERS, &model), TT_EDATA,
                 "layer 80 has no experts (decoder_sparse_step 1 or mlp_only_layers");
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        assert_fails(model_of_json("qwen3", wanted[i].json, &model), TT_EDATA, wanted[i].message);
    assert_fails(model_of_json("qwen3", MOE_CONFIG ",\"num_experts\":1}", &model), TT_EUSAGE,
                 "2 of 1 experts for each token");
    assert_null(model);
}

/* The shapes of the parameters of attention with latents, of the shared experts, and of the biases, under all names. */
static void latents_and_shared_experts(void **state)
{
    static const struct {
        const char *name, *hf_name;
        int64_t rows, columns; /* columns 0: a vector */
    } wanted[] = {
        {"layers.3.attention.wq_a.weight", "self_attn.q_a_proj.weight", 1536, 7168},
        {"layers.3.attention.q_norm.weight", "self_attn.q_a_layernorm.weight", 1536, 0},
        {"layers.3.attention.wq_b.weight", "self_attn.q_b_proj.weight", 24576, 1536},
        {"layers.3.attention.wkv_a.weight", "self_attn.kv_a_proj_with_mqa.weight", 576, 7168},
        {"layers.3.attention.kv_norm.weight", "self_attn.kv_a_layernorm.weight", 512, 0},
        {"layers.3.attention.wkv_b.weight", "self_attn.kv_b_proj.weight", 32768, 512},
        {"layers.3.attention.wo.weight", "self_attn.o_proj.weight", 7168, 16384},
        {"layers.3.moe.shared_experts.w1.weight", "mlp.shared_experts.gate_proj.weight", 2048, 7168},
        {"layers.3.moe.shared_experts.w2.weight", "mlp.shared_experts.down_proj.weight", 7168, 2048},
        {"layers.3.moe.shared_experts.w3.weight", "mlp.shared_experts.up_proj.weight", 2048, 7168},
        {"layers.3.moe.router.gate.weight", "mlp.gate.weight", 256, 7168},
        {"layers.3.moe.expert_bias", "mlp.gate.e_score_correction_bias", 256, 0},
    };
    const struct tt_model_dims biased = {.moe = {.biased = true}, .tied = -1};
    struct tt_model *model = make_of("deepseek_v3", "671B", NULL), *small = make_of("deepseek_v3", "16B", &biased);

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        const struct tt_param *p = find_param(model, wanted[i].name);

        assert_string_equal(p->hf_name + strlen("model.layers.3."), wanted[i].hf_name);
        assert_true(p->shape[0] == wanted[i].rows && p->ndim == (wanted[i].columns ? 2 : 1));
        assert_true(p->ndim == 1 || p->shape[1] == wanted[i].columns);
    }
    assert_non_null(find_param(model, "layers.2.feed_forward.w1.weight"));
    assert_null(find_param(small, "layers.1.moe.expert_bias")->hf_name); /* DeepseekV2ForCausalLM has none */
    assert_true(find_param(small, "layers.1.attention.wq.weight")->shape[0] == 16 * INT64_C(192));
    assert_true(find_param(small, "layers.1.moe.shared_experts.w1.weight")->shape[0] == 2 * INT64_C(1408));
    /* torchtitan's init: weights that add to the residual are smaller by depth, and so are the routers */
    assert_true(find_param(model, "layers.3.attention.wkv_b.weight")->std == 0.02);
    assert_true(find_param(model, "layers.3.moe.shared_experts.w1.weight")->std == 0.02);
    assert_true(fabs(find_param(model, "layers.3.moe.shared_experts.w2.weight")->std - 0.02 / sqrt(8.0)) < 1e-12);
    assert_true(fabs(find_param(model, "layers.3.moe.router.gate.weight")->std - 0.02 / sqrt(8.0)) < 1e-12);
    assert_true(fabs(find_param(model, "layers.3.attention.wo.weight")->std - 0.02 / sqrt(8.0)) < 1e-12);
    tt_model_free(model);
    tt_model_free(small);
}

static void impossible_latents_are_refused(void **state)
{
    static const struct {
        struct tt_model_dims dims;
        const char *message;
    } wanted[] = {
        {{.mla = {.rope_dim = 63}, .tied = -1}, "63 of 192 elements of each head are rotated"},
        {{.head_dim = 64, .tied = -1}, "64 of 64 elements of each head are rotated (model.head_dim)"},
        {{.mla = {.kv_rank = -1}, .tied = -1}, "the latents of attention have -1"},
        {{.mla = {.value_dim = 1 << 20}, .tied = -1}, "16 heads of values of 1048576 elements"},
        {{.n_kv_heads = 4, .tied = -1}, "n_kv_heads is 4; with latent attention it must equal"},
        {{.moe = {.shared = -1}, .tied = -1}, "-1 shared experts"},
        {{.rope = {.low_freq_factor = 1.0}, .tied = -1}, "the model has YaRN's"},
        {{.rope = {.beta_slow = 40.0}, .tied = -1}, "beta_fast 32 and beta_slow 40"},
        {{.lora = {.rank = 2, .alpha = 1.0, .modules = 1U << 3}, .tied = -1}, "deepseek_v3 has no adapters"},
    };
    struct tt_model *model = NULL;

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        assert_fails(tt_model_new("deepseek_v3", "debugmodel", &wanted[i].dims, NULL, &model), TT_EUSAGE,
                     wanted[i].message);
    assert_null(model);
}

#define V3_CONFIG(more)                                                                                     \
    "{\"model_type\":\"deepseek_v3\",\"hidden_size\":64,\"num_hidden_layers\":3,\"num_attention_heads\":4," \
    "\"intermediate_size\":96,\"vocab_size\":300,\"moe_intermediate_size\":24,\"num_experts_per_tok\":2,"   \
    "\"n_shared_experts\":1,\"first_k_dense_replace\":1,\"kv_lora_rank\":24,\"qk_nope_head_dim\":16,"       \
    "\"qk_rope_head_dim\":8,\"v_head_dim\":12,\"n_group\":4,\"topk_group\":2" more "}"

/* Both spellings of the scaling, as transformers 4 and 5 write them. */
static void hf_config_of_deepseek(void **state)
{
    static const char *const good[] = {
        V3_CONFIG(",\"n_routed_experts\":8,\"q_lora_rank\":null,\"rope_theta\":10000,\"num_nextn_predict_layers\":1,"
                  "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"mscale\":1.0,\"mscale_all_dim\":0.5,"
                  "\"beta_fast\":32,\"beta_slow\":1,\"original_max_position_embeddings\":4096}"),
        V3_CONFIG(",\"num_local_experts\":8,\"q_lora_rank\":null,\"head_dim\":8,\"rope_parameters\":{\"rope_theta\":"
                  "10000.0,\"rope_type\":\"yarn\",\"factor\":40,\"mscale\":1.0,\"mscale_all_dim\":0.5,"
                  "\"original_max_position_embeddings\":4096}"),
    };
    static const struct {
        const char *json, *message;
        int code;
    } bad[] = {
        {V3_CONFIG(",\"n_routed_experts\":8,\"scoring_func\":\"softmax\""), "scoring_func 'softmax' is not", TT_EDATA},
        {V3_CONFIG(",\"n_routed_experts\":8,\"topk_method\":\"greedy\""), "topk_method 'greedy' is not", TT_EDATA},
        {V3_CONFIG(",\"n_routed_experts\":8,\"moe_layer_freq\":2"), "moe_layer_freq 2 is not supported", TT_EDATA},
        {V3_CONFIG(",\"n_routed_experts\":8,\"rope_interleave\":false"), "rope_interleave false", TT_EDATA},
        {V3_CONFIG(",\"n_routed_experts\":8,\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}"),
         "fmt 'e5m2' is not supported; only 'e4m3' is", TT_EDATA},
        {V3_CONFIG(",\"n_routed_experts\":8,\"rope_scaling\":{\"type\":\"yarn\"}"),
         "rope_type yarn needs the key 'factor'", TT_EDATA},
        {V3_CONFIG(
             ",\"n_routed_experts\":8,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"attention_factor\":-1.5}"),
         "attention_factor must be a positive number", TT_EDATA},
        {V3_CONFIG(",\"n_routed_experts\":10"), "10 experts do not divide into 4 groups", TT_EUSAGE},
        {V3_CONFIG(",\"n_routed_experts\":4"), "4 experts do not divide into 4 groups of two or more", TT_EUSAGE},
    };
    const char *kimi = "{\"model_type\":\"kimi_k2\",\"hidden_size\":64,\"num_hidden_layers\":3,"
                       "\"num_attention_heads\":4,\"intermediate_size\":96,\"vocab_size\":300,"
                       "\"moe_intermediate_size\":24,\"num_experts_per_tok\":2,\"n_shared_experts\":1,"
                       "\"first_k_dense_replace\":1,\"n_group\":1,\"topk_group\":1,\"n_routed_experts\":8,"
                       "\"rope_theta\":50000.0,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":32.0,"
                       "\"beta_fast\":1.0,\"beta_slow\":1.0,\"mscale\":1.0,\"mscale_all_dim\":1.0,"
                       "\"original_max_position_embeddings\":4096}}";
    struct tt_model *model = NULL;

    if (model_of_json("deepseek_v3", kimi, &model) < 0)
        fail_msg("%s", tt_error_message());
    assert_true(model->dims.rope.beta_fast == 1.0 && model->dims.rope.beta_slow == 1.0);
    tt_model_free(model);
    model = NULL;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        const struct tt_model_dims *d;

        if (model_of_json("deepseek_v3", good[i], &model) < 0)
            fail_msg("%s", tt_error_message());
        d = &model->dims;
        assert_true(d->head_dim == 24 && d->n_kv_heads == 4 && d->norm_eps == 1e-6F);
        assert_true(d->mla.kv_rank == 24 && d->mla.q_rank == 0 && d->mla.rope_dim == 8 && d->mla.value_dim == 12);
        assert_true(d->moe.experts == 8 && d->moe.shared == 1 && d->moe.dense_layers == 1 && d->moe.biased);
        assert_true(d->moe.score == TT_SCORE_SIGMOID && d->moe.group_rule == TT_GROUP_TWO_BEST);
        assert_true(d->moe.groups == 4 && d->moe.kept_groups == 2 && d->moe.route_scale == 2.5);
        assert_true(!d->moe.gates_as_scored && d->rope.factor == 40.0 && d->rope.original_max == 4096.0);
        assert_true(d->rope.beta_fast == 32.0 && d->rope.beta_slow == 1.0 && d->rope.mscale_all_dim == 0.5);
        tt_model_free(model);
        model = NULL;
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(model_of_json("deepseek_v3", bad[i].json, &model), bad[i].code, bad[i].message);
    assert_null(model);
}

/* layers: w marks one with a window. */
static void check_windows(const struct tt_model *model, int64_t window, const char *layers)
{
    assert_int_equal(model->dims.sliding_window, window);
    for (int l = 0; layers[l]; l++)
        if (tt_model_is_windowed(&model->dims, l) != (layers[l] == 'w'))
            fail_msg("layer %d of %s %s", l, model->row->name, layers);
}

/* The layers with a window are those that transformers' classes derive from their configurations. */
static void sliding_windows_are_those_of_the_class(void **state)
{
#define LAYERS4(type, more)                                                                              \
    "{\"model_type\":\"" type "\",\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":4," \
    "\"num_key_value_heads\":4,\"intermediate_size\":96,\"vocab_size\":300" more "}"
#define FULL    "\"full_attention\""
#define SLIDING "\"sliding_attention\""
    static const struct {
        const char *name, *json;
        int64_t window;
        const char *layers; /* w: with a window */
    } wanted[] = {
        {"llama3", LAYERS4("mistral", ""), 4096, "wwww"},
        {"llama3", LAYERS4("mistral", ",\"sliding_window\":9"), 9, "wwww"},
        {"llama3", LAYERS4("mistral", ",\"sliding_window\":null"), 0, "----"},
        {"mixtral", LAYERS4("mixtral", ",\"num_local_experts\":4"), 0, "----"},
        {"mixtral", LAYERS4("mixtral", ",\"num_local_experts\":4,\"sliding_window\":9"), 9, "wwww"},
        {"qwen3", LAYERS4("qwen3", ",\"sliding_window\":9"), 0, "----"},
        {"qwen3", LAYERS4("qwen3", ",\"sliding_window\":9,\"use_sliding_window\":true"), 0, "----"},
        {"qwen3", LAYERS4("qwen3", ",\"sliding_window\":9,\"use_sliding_window\":true,\"max_window_layers\":0"), 9,
         "wwww"},
        {"qwen3", LAYERS4("qwen3", ",\"use_sliding_window\":true,\"max_window_layers\":3"), 4096, "---w"},
        {"qwen3",
         LAYERS4("qwen3",
                 ",\"sliding_window\":9,\"use_sliding_window\":true,\"max_window_layers\":0,\"layer_types\":[" FULL
                 "," FULL "," SLIDING "," SLIDING "]"),
         9, "--ww"},
        {"qwen3",
         LAYERS4("qwen3", ",\"sliding_window\":9,\"use_sliding_window\":true,\"layer_types\":[" SLIDING "," FULL
                          "," SLIDING "," FULL "]"),
         9, "w-w-"},
        {"qwen3", LAYERS4("qwen3_moe", ",\"num_experts\":16,\"sliding_window\":9"), 0, "----"},
        {"qwen3", LAYERS4("qwen3_moe", ",\"num_experts\":16,\"sliding_window\":9,\"use_sliding_window\":true"), 9,
         "wwww"},
    };
    struct tt_model *model = NULL;
    json_t *config;
    char *text;

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        if (model_of_json(wanted[i].name, wanted[i].json, &model) < 0)
            fail_msg("%s", tt_error_message());
        check_windows(model, wanted[i].window, wanted[i].layers);
        config = tt_model_hf_config(model);
        text = tt_json_text(config);
        tt_model_free(model);
        if (model_of_json(wanted[i].name, text, &model) < 0)
            fail_msg("%s", tt_error_message());
        check_windows(model, wanted[i].window, wanted[i].layers);
        tt_model_free(model);
        json_decref(config);
        tt_free(text);
        model = NULL;
    }
    assert_int_equal(
        model_of_json("qwen3",
                      LAYERS4("qwen3", ",\"sliding_window\":9,\"use_sliding_window\":true,\"layer_types\":[" FULL
                                       "," SLIDING "," FULL "," FULL "]"),
                      &model),
        0);
    check_windows(model, 9, "fwff");
    tt_model_free(model);
    model = NULL;
    assert_fails(
        model_of_json("qwen3",
                      LAYERS4("qwen3", ",\"sliding_window\":9,\"use_sliding_window\":true,\"layer_types\":[" FULL
                                       "," SLIDING "]"),
                      &model),
        TT_EDATA, "each of 4 layers must be 'sliding_attention' or 'full_attention'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_of_models_with_experts),          cmocka_unit_test(impossible_experts_are_refused),
        cmocka_unit_test(sliding_windows_are_those_of_the_class), cmocka_unit_test(hf_config_of_experts),
        cmocka_unit_test(output_router_logits_is_a_note),         cmocka_unit_test(latents_and_shared_experts),
        cmocka_unit_test(impossible_latents_are_refused),         cmocka_unit_test(hf_config_of_deepseek),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

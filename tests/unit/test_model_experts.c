/* SPDX-License-Identifier: MIT
 *
 * Models with experts: counts, sizes that are refused, config.json.
 */
#include "model_help.h"

/* The counts and flops of torchtitan and of the models' authors; flops are those of the experts that a token gets. */
static void counts_of_models_with_experts(void **state)
{
    static const struct {
        const char *name, *flavor;
        int64_t parameters, active;
        double flops; /* at 4096 tokens; 0: not published */
    } wanted[] = {
        {"qwen3", "debugmodel_moe", 315758848, 51517696, 1111266816.0},
        {"qwen3", "30B-A3B", 30532122624, 3353032704, 27914883072.0},
        {"qwen3", "235B-A22B", 235093634560, 22190763520, 167260001280.0},
        {"mixtral", "8x7B", 46702792704, 12879925248, 0.0},
        {"mixtral", "8x22B", 140630071296, 39161468928, 0.0},
    };

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        struct tt_model *model = make_of(wanted[i].name, wanted[i].flavor, NULL);

        assert_true(tt_model_n_elements(model) == wanted[i].parameters);
        assert_true(tt_model_n_active(model) == wanted[i].active);
        if (wanted[i].flops > 0.0)
            assert_true(tt_model_flops_per_token(model, 4096) == wanted[i].flops);
        tt_model_free(model);
    }
}

static void impossible_experts_are_refused(void **state)
{
    static const struct {
        struct tt_model_dims dims;
        const char *message;
    } wanted[] = {
        {{.moe = {.top_k = 65}, .tied = -1}, "65 experts for each token, of 64; there must be 1..64"},
        {{.moe = {.top_k = -1}, .tied = -1}, "-1 experts for each token, of 64; there must be 1..64"},
        {{.moe = {.experts = 1 << 20}, .tied = -1}, "the model has 1048576 experts; there must be 1..16384"},
        {{.moe = {.ffn_dim = -3}, .tied = -1}, "experts are -3 wide"},
        {{.moe = {.dense_layers = 9}, .tied = -1}, "9 layers without experts, of 8 layers"},
        {{.moe = {.groups = 5}, .tied = -1}, "64 experts do not divide into 5 groups of two or more"},
        {{.moe = {.groups = 64}, .tied = -1}, "64 experts do not divide into 64 groups of two or more"},
        {{.moe = {.groups = 65}, .tied = -1}, "experts are in 65 groups; there must be 1..64"},
        {{.moe = {.groups = 8}, .tied = -1}, "a token's experts are in 0 of 8 groups; there must be 1..8"},
        {{.moe = {.groups = 32, .kept_groups = 3}, .tied = -1},
         "8 experts for each token, and 3 groups of 2 experts have 6"},
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

/* transformers 5 renamed num_experts; the class does not normalize by default. */
static void hf_config_of_experts(void **state)
{
    static const struct {
        const char *json, *message;
    } wanted[] = {
        {MOE_CONFIG "}", "missing key 'num_local_experts'"},
        {MOE_CONFIG ",\"num_experts\":8,\"decoder_sparse_step\":2}", "decoder_sparse_step 2 is not supported"},
        {MOE_CONFIG ",\"num_experts\":8,\"mlp_only_layers\":[1]}", "mlp_only_layers is supported for the first"},
        {MOE_CONFIG ",\"num_experts\":8,\"output_router_logits\":true}", "output_router_logits true"},
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
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        assert_fails(model_of_json("qwen3", wanted[i].json, &model), TT_EDATA, wanted[i].message);
    assert_fails(model_of_json("qwen3", MOE_CONFIG ",\"num_experts\":1}", &model), TT_EUSAGE,
                 "2 experts for each token, of 1");
    assert_null(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_of_models_with_experts),
        cmocka_unit_test(impossible_experts_are_refused),
        cmocka_unit_test(hf_config_of_experts),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT */
#include <math.h>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/models/hf.h"
#include "core/os/file.h"
#include "model_help.h"

/* --- what an absent member of config.json means --- */

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_boolean(value) ? (double)json_is_true(value) : json_number_value(value);
}

static void check_number(const char *type, const json_t *sizes, const char *key, double found)
{
    if (number(sizes, key) != found)
        fail_msg("%s: %s is %.9g, and %.9g by transformers", type, key, found, number(sizes, key));
}

static void check_sizes(const char *type, const json_t *sizes, const struct tt_model_dims *d)
{
    int64_t windows = 0;

    check_number(type, sizes, "dim", (double)d->dim);
    check_number(type, sizes, "n_layers", (double)d->n_layers);
    check_number(type, sizes, "n_heads", (double)d->n_heads);
    check_number(type, sizes, "n_kv_heads", (double)d->n_kv_heads);
    check_number(type, sizes, "head_dim", (double)d->head_dim);
    check_number(type, sizes, "ffn_dim", (double)d->ffn_dim);
    check_number(type, sizes, "vocab_size", (double)d->vocab_size);
    check_number(type, sizes, "max_positions", (double)d->max_positions);
    check_number(type, sizes, "tied", (double)d->tied);
    check_number(type, sizes, "theta", d->rope.theta);
    check_number(type, sizes, "factor", d->rope.factor);
    check_number(type, sizes, "original_max", d->rope.original_max);
    check_number(type, sizes, "window", (double)d->sliding_window);
    check_number(type, sizes, "experts", (double)d->moe.experts);
    if ((float)number(sizes, "norm_eps") != d->norm_eps)
        fail_msg("%s: the epsilon is %g", type, (double)d->norm_eps);
    for (int64_t l = 0; l < d->n_layers; l++)
        windows += tt_model_is_windowed(d, l);
    if (d->window_from == 0) /* otherwise the class does not list them: all layers have the window */
        assert_int_equal(windows, json_array_size(json_object_get(sizes, "windows")));
}

static void check_experts(const char *type, const json_t *sizes, const struct tt_model_dims *d)
{
    check_number(type, sizes, "top_k", (double)d->moe.top_k);
    check_number(type, sizes, "norm_topk_prob", !d->moe.gates_as_scored);
    check_number(type, sizes, "expert_width", (double)d->moe.ffn_dim);
    check_number(type, sizes, "shared", (double)d->moe.shared);
    check_number(type, sizes, "dense", (double)d->moe.dense_layers);
    if (number(sizes, "groups") == 1.0) /* one group is none */
        assert_true(d->moe.groups == 0 && d->moe.kept_groups == 0);
    else
        check_number(type, sizes, "groups", (double)d->moe.groups);
    if (d->moe.groups)
        check_number(type, sizes, "kept_groups", (double)d->moe.kept_groups);
    check_number(type, sizes, "scale", d->moe.route_scale);
    assert_true(d->moe.biased == (d->moe.score == TT_SCORE_SIGMOID));
}

static void check_latents(const char *type, const json_t *sizes, const struct tt_model_dims *d)
{
    check_number(type, sizes, "kv_rank", (double)d->mla.kv_rank);
    check_number(type, sizes, "q_rank", (double)d->mla.q_rank);
    check_number(type, sizes, "rope_dim", (double)d->mla.rope_dim);
    check_number(type, sizes, "value_dim", (double)d->mla.value_dim);
}

/* Calls fn for every class of the table that transformers' own code printed. */
static void for_each_class(void (*fn)(const char *type, json_t *of))
{
    char *path = tt_format("%s/tests/unit/data/hf_classes.json", TT_SOURCE_DIR);
    const char *type;
    json_t *table = NULL, *of;

    assert_int_equal(tt_json_load(path, &table), 0);
    for (int r = 0; r < tt_model_n_rows; r++) {
        for (int c = 0; c < tt_model_rows[r]->n_classes; c++)
            if (!json_object_get(table, tt_model_rows[r]->classes[c].type))
                fail_msg("the table lacks %s", tt_model_rows[r]->classes[c].type);
    }
    json_object_foreach(table, type, of)
    {
        fn(type, of);
    }
    json_decref(table);
    tt_free(path);
}

static const char *model_of_type(const char *type)
{
    const struct tt_model_row *row;

    if (!tt_hf_find_class(type, &row))
        fail_msg("no model reads %s", type);
    return row->name;
}

static struct tt_model *read_json(const char *type, const char *json)
{
    struct tt_model *model = NULL;

    if (model_of_json(model_of_type(type), json, &model) < 0)
        fail_msg("%s: %s", json, tt_error_message());
    return model;
}

static void check_empty(const char *type, json_t *of)
{
    json_t *sizes = json_object_get(of, "sizes"), *config = json_pack("{s:s}", "model_type", type);
    struct tt_model *model;
    char *json;

    add_needed(type, config, sizes);
    json = tt_json_text(config);
    model = read_json(type, json);
    json_decref(config);
    check_sizes(type, sizes, &model->dims);
    if (model->dims.moe.experts)
        check_experts(type, sizes, &model->dims);
    if (model->dims.mla.kv_rank)
        check_latents(type, sizes, &model->dims);
    tt_model_free(model);
    tt_free(json);
}

static void an_empty_config_is_that_of_the_class(void **state)
{
    struct tt_model *model = NULL;

    for_each_class(check_empty);
    assert_fails(model_of_json("deepseek_v3", "{\"model_type\":\"deepseek_v2\"}", &model), TT_EDATA,
                 "missing key 'num_experts_per_tok'");
    assert_fails(model_of_json("glm4_moe", "{\"model_type\":\"glm4_moe\"}", &model), TT_EDATA,
                 "partial_rotary_factor 0.5 rotates 21 of the 42 elements of a head; RoPE rotates pairs");
}

/* Of a model that also reads images, the configuration of the language model, and what is outside of it for both. */
static void the_language_model_of_several_parts_is_read(void **state)
{
    struct tt_model *model = NULL;

    assert_int_equal(
        model_of_json("gemma3",
                      "{\"model_type\":\"gemma3\",\"eos_token_id\":[1,106],\"text_config\":{\"hidden_size\":"
                      "2560,\"intermediate_size\":10240,\"num_hidden_layers\":34,\"sliding_window\":1024,"
                      "\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"}},\"vision_config\":{}}",
                      &model),
        0);
    assert_int_equal(tt_model_n_elements(model), 3880263168); /* google/gemma-3-4b without its vision tower */
    assert_true(model->dims.tied == 1 && model->dims.rope.linear);
    tt_model_free(model);
    assert_int_equal(
        model_of_json(
            "llama3",
            "{\"model_type\":\"mistral3\",\"tie_word_embeddings\":true,\"text_config\":{"
            "\"model_type\":\"mistral\",\"hidden_size\":64,\"num_attention_heads\":4,\"num_key_value_heads\":4}}",
            &model),
        0);
    assert_true(model->dims.tied == 1 && model->dims.dim == 64);
    tt_model_free(model);
    assert_fails(model_of_json("llama3",
                               "{\"model_type\":\"mistral3\",\"text_config\":{\"model_type\":\"ministral3\","
                               "\"rope_parameters\":{\"rope_type\":\"yarn\",\"llama_4_scaling_beta\":0.1}}}",
                               &model),
                 TT_EDATA, "model_type 'ministral3' is not supported\nhelp: the nearest family is");
    assert_non_null(strstr(tt_error_message(), "that it lacks: rope_parameters.\"llama_4_scaling_beta\"\n"));
    assert_fails(model_of_json("llama3",
                               "{\"model_type\":\"internvl\",\"text_config\":{\"model_type\":\"qwen2\"},"
                               "\"vision_config\":{}}",
                               &model),
                 TT_EDATA,
                 "'internvl' is not supported\nhelp: the nearest family to its text_config is qwen2 (Qwen2ForCausalLM, "
                 "model.name qwen2). titan reads such a model from a folder of its own\n");
}

/* The notes since the last call of this function. */
static char notes[4096];

static void keep_note(void *arg, enum tt_log_level level, const char *text)
{
    (void)arg;
    (void)level;
    (void)snprintf(notes + strlen(notes), sizeof notes - strlen(notes), "%s\n", text);
}

/* A file with all keys as the class itself writes them gives the same model as a file without them. */
static void check_all_keys(const char *type, json_t *of)
{
    json_t *keys = json_object_get(of, "keys"), *sizes = json_object_get(of, "sizes");
    struct tt_model *model;
    char *text;

    (void)json_object_del(keys, "layer_types"); /* the table only contains the kinds */
    add_needed(type, keys, sizes);
    text = tt_json_text(keys);
    *notes = '\0';
    model = read_json(type, text);
    if (strstr(notes, "not used"))
        fail_msg("%s", notes);
    check_sizes(type, sizes, &model->dims);
    tt_model_free(model);
    tt_free(text);
}

static void all_keys_of_a_class_are_known(void **state)
{
    for_each_class(check_all_keys);
}

/* --- spellings --- */

#define OF(type, more)                                                                                   \
    "{\"model_type\":\"" type "\",\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4," \
    "\"num_key_value_heads\":4,\"intermediate_size\":96,\"vocab_size\":300,\"max_position_embeddings\":128" more "}"
#define YARN "\"rope_type\":\"yarn\",\"factor\":4.0"

/* As in transformers 5, the older key wins, and so does the length outside of the object; without either, the length
 * is the limit. */
static void rope_is_read_as_transformers_does(void **state)
{
    static const struct {
        const char *json;
        double theta, factor, original_max;
        bool fractional;
    } wanted[] = {
        {OF("llama", ""), 10000.0, 0.0, 0.0, false},
        {OF("mixtral", ""), 1000000.0, 0.0, 0.0, false},
        {OF("llama", ",\"rope_theta\":500.0,\"rope_parameters\":{\"rope_theta\":600.0}"), 600.0, 0.0, 0.0, false},
        {OF("llama", ",\"rope_parameters\":{\"rope_theta\":600.0},\"rope_scaling\":{" YARN "}"), 10000.0, 4.0, 128.0,
         false},
        {OF("llama", ",\"rope_parameters\":{" YARN "},\"rope_scaling\":{}"), 10000.0, 4.0, 128.0, false},
        {OF("llama", ",\"rope_parameters\":{" YARN ",\"original_max_position_embeddings\":32}"), 10000.0, 4.0, 32.0,
         false},
        {OF("llama", ",\"original_max_position_embeddings\":16,\"rope_parameters\":{" YARN
                     ",\"original_max_position_embeddings\":32,\"truncate\":null}"),
         10000.0, 4.0, 16.0, true},
        {OF("llama",
            ",\"original_max_position_embeddings\":16,\"rope_parameters\":{\"rope_type\":\"llama3\",\"factor\":"
            "2.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0}"),
         10000.0, 2.0, 16.0, false},
        {OF("gpt_oss", ",\"num_local_experts\":4,\"original_max_position_embeddings\":16,\"rope_theta\":99.0"), 99.0,
         32.0, 16.0, true},
        {OF("gpt_oss", ",\"num_local_experts\":4,\"rope_parameters\":{}"), 150000.0, 0.0, 0.0, false},
        {OF("gpt_neox", ",\"rotary_emb_base\":500"), 500.0, 0.0, 0.0, false},
        {OF("gpt_neox", ",\"rotary_emb_base\":500,\"rope_theta\":500"), 500.0, 0.0, 0.0, false},
        {OF("gemma3_text", ",\"original_max_position_embeddings\":16,\"rope_theta\":99.0,\"rope_local_base_freq\":9.0,"
                           "\"rope_scaling\":{" YARN "}"),
         99.0, 4.0, 128.0, false},
    };

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        struct tt_model *model;
        const struct tt_rope *rope;
        json_t *json = json_loads(wanted[i].json, 0, NULL);

        model = read_json(json_string_value(json_object_get(json, "model_type")), wanted[i].json);
        rope = &model->dims.rope;
        if (rope->theta != wanted[i].theta || rope->factor != wanted[i].factor ||
            rope->original_max != wanted[i].original_max || rope->fractional != wanted[i].fractional)
            fail_msg("%s: theta %g, factor %g, original_max %g, fractional %d", wanted[i].json, rope->theta,
                     rope->factor, rope->original_max, rope->fractional);
        tt_model_free(model);
        json_decref(json);
    }
}

#define LISTS "\"short_factor\":[1,1.1,1.2,1.3,1.4,1.5,1.6,1.7],\"long_factor\":[2,2.1,2.2,2.3,2.4,2.5,2.6,2.7]"

static void longrope_is_read_in_all_spellings(void **state)
{
    struct tt_model *partial;
    static const struct {
        const char *json;
        double factor, original_max, scale;
    } wanted[] = {
        {OF("phi3", ",\"original_max_position_embeddings\":32,\"rope_scaling\":{\"type\":\"longrope\"," LISTS "}"), 4.0,
         32.0, 1.1832159566},
        {OF("phi3", ",\"original_max_position_embeddings\":32,\"rope_scaling\":{\"type\":\"su\"," LISTS "}"), 4.0, 32.0,
         1.1832159566},
        {OF("phi3", ",\"rope_scaling\":{\"type\":\"yarn\"," LISTS "}"), 1.0, 4096.0, 1.0},
        {OF("phi3",
            ",\"original_max_position_embeddings\":32,\"rope_parameters\":{\"rope_type\":\"longrope\",\"rope_theta\":"
            "10000.0,\"original_max_position_embeddings\":16,\"attention_factor\":1.25," LISTS "}"),
         4.0, 32.0, 1.25},
        {OF("llama", ",\"rope_parameters\":{\"rope_type\":\"longrope\",\"original_max_position_embeddings\":16,"
                     "\"factor\":2.0," LISTS "}"),
         2.0, 16.0, 1.1180339887},
    };

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        json_t *json = json_loads(wanted[i].json, 0, NULL), *again;
        const char *type = json_string_value(json_object_get(json, "model_type"));
        struct tt_model *model = read_json(type, wanted[i].json);
        struct tt_rope rope = model->dims.rope;
        char *text;

        if (rope.factor != wanted[i].factor || rope.original_max != wanted[i].original_max ||
            fabs(tt_rope_table_scale(&rope) - wanted[i].scale) > 1e-9 || rope.short_factor[7] != 1.7F ||
            rope.long_factor[7] != 2.7F || rope.long_factor[8] != 0.0F)
            fail_msg("%s: factor %g, original_max %g, scale %.10g", wanted[i].json, rope.factor, rope.original_max,
                     tt_rope_table_scale(&rope));
        again = tt_model_hf_config(model); /* and titan reads what it writes in the same way */
        text = json_dumps(again, 0);
        tt_model_free(model);
        model = read_json(type, text);
        assert_true(model->dims.rope.factor == rope.factor && model->dims.rope.original_max == rope.original_max &&
                    model->dims.rope.attention_factor == rope.attention_factor);
        assert_memory_equal(model->dims.rope.short_factor, rope.short_factor, sizeof rope.short_factor);
        assert_memory_equal(model->dims.rope.long_factor, rope.long_factor, sizeof rope.long_factor);
        tt_model_free(model);
        free(text);
        json_decref(again);
        json_decref(json);
    }
    partial = read_json("phi3", OF("phi3", ",\"partial_rotary_factor\":0.5,\"rope_scaling\":{\"type\":\"longrope\","
                                           "\"short_factor\":[1,2,3,4],\"long_factor\":[4,5,6,7]}"));
    assert_int_equal(partial->dims.rotary_dim, 8); /* of 16, so 4 factors */
    assert_true(partial->dims.rope.long_factor[3] == 7.0F);
    tt_model_free(partial);
}

static void what_transformers_reads_otherwise_is_refused(void **state)
{
    static const struct {
        const char *name, *json, *message;
    } wanted[] = {
        {"gpt_oss", "{\"model_type\":\"gpt_oss\",\"num_experts_per_tok\":4,\"experts_per_token\":2}",
         "experts_per_token 2 is not supported; only 4 is"},
        {"qwen3", "{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":9000000000000000000}",
         "num_hidden_layers is 9000000000000000000; at most 16384 is supported"},
        {"llama3", OF("mistral", ",\"use_sliding_window\":false"), "use_sliding_window turns the window off, but"},
        {"llama3", OF("mistral", ",\"use_sliding_window\":null,\"sliding_window\":24"), "has sliding_window 24"},
        {"mixtral", OF("mixtral", ",\"use_sliding_window\":false,\"sliding_window\":24"), "has sliding_window 24"},
        {"mixtral", OF("mixtral", ",\"num_experts\":4,\"num_local_experts\":8"),
         "two names of one size, but their values differ"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"n_embd\":64,\"hidden_size\":48}", "n_embd and hidden_size are two names"},
        {"deepseek_v3", OF("deepseek_v3", ",\"rope_interleave\":null"), "rope_interleave null is not supported"},
        {"deepseek_v3", OF("deepseek_v3", ",\"routed_scaling_factor\":0"), "routed_scaling_factor 0 is not supported"},
        {"deepseek_v3",
         OF("deepseek_v3", ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0,\"mscale_all_dim\":1.0}"),
         "mscale_all_dim 1 is not supported; only 0 is"},
        {"deepseek_v3", OF("deepseek_v3", ",\"n_group\":null"), "n_group is null, which is not a size"},
        {"llama3", OF("llama", ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}"),
         "a separate RoPE for one type of layers ('full_attention')"},
        {"qwen3", OF("qwen3", ",\"head_dim\":null"), "head_dim is null, which is not a size"},
        {"gpt_neox", OF("gpt_neox", ",\"rotary_emb_base\":500,\"rope_theta\":400"),
         "rope_theta and rotary_emb_base are two names of one size, but their values differ"},
        {"gpt_neox", OF("gpt_neox", ",\"rotary_pct\":0.5,\"partial_rotary_factor\":0.25"),
         "partial_rotary_factor and rotary_pct are two names of one size, but their values differ"},
        {"gpt_neox", OF("gpt_neox", ",\"rotary_pct\":0.2"), "rotary_pct 0.2 rotates 3 of the 16 elements of a head"},
        {"gpt_neox", OF("gpt_neox", ",\"hidden_act\":\"relu\""), "hidden_act 'relu' is not supported"},
        {"llama3", OF("llama", ",\"hidden_act\":\"gelu\""), "hidden_act 'gelu' is not supported; only 'silu' is"},
        {"llama3", OF("llama", ",\"hidden_act\":7"), "hidden_act must be a string"},
        {"starcoder2", OF("starcoder2", ",\"hidden_act\":\"gelu\""), "only 'gelu_pytorch_tanh' is"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"activation_function\":\"gelu_10\"}", "only 'gelu_pytorch_tanh' is"},
    };
    struct tt_model *model = NULL;

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        assert_fails(model_of_json(wanted[i].name, wanted[i].json, &model), TT_EDATA, wanted[i].message);
    assert_null(model);
}

static void nulls_and_second_names_are_those_of_transformers(void **state)
{
    struct tt_model *model =
        read_json("mistral", OF("mistral", ",\"use_sliding_window\":false,\"sliding_window\":null"));

    assert_int_equal(model->dims.sliding_window, 0);
    tt_model_free(model);
    model =
        read_json("deepseek_v3",
                  OF("deepseek_v3", ",\"norm_topk_prob\":null,\"num_local_experts\":16,\"first_k_dense_replace\":1"));
    assert_true(model->dims.moe.gates_as_scored && model->dims.moe.experts == 16);
    tt_model_free(model);
    model = read_json("gpt2", "{\"model_type\":\"gpt2\",\"hidden_size\":48,\"num_attention_heads\":4,\"vocab_size\":50,"
                              "\"num_hidden_layers\":2,\"max_position_embeddings\":32}");
    assert_true(model->dims.dim == 48 && model->dims.ffn_dim == 192 && model->dims.n_layers == 2);
    assert_true(model->dims.n_heads == 4 && model->dims.max_positions == 32);
    tt_model_free(model);
    model = read_json("qwen3", OF("qwen3", ",\"attention_bias\":true"));
    assert_int_equal(model->dims.head_dim, 128);
    assert_true(model->dims.qkv_bias && model->dims.out_bias);
    tt_model_free(model);
    model = read_json("gemma2", OF("gemma2", ",\"attn_logit_softcapping\":5.0"));
    assert_true(model->dims.score_cap == 5.0);
    tt_model_free(model);
    model = read_json("gemma3_text", OF("gemma3_text", ",\"attn_logit_softcapping\":5.0"));
    assert_true(model->dims.score_cap == 0.0); /* which transformers ignores */
    tt_model_free(model);
}

/* The file states all that differs between Pythia, RedPajama-INCITE and GPT-NeoX-20B. */
static void the_forms_of_gpt_neox_are_read(void **state)
{
    static const struct {
        const char *json;
        int64_t rotary_dim;
        bool parallel, bias, tanh_gelu;
    } wanted[] = {
        {OF("gpt_neox", ""), 4, true, true, false},
        {OF("gpt_neox", ",\"rotary_pct\":0.5,\"use_parallel_residual\":false"), 8, false, true, false},
        {OF("gpt_neox", ",\"rotary_pct\":1.0,\"hidden_act\":\"gelu_fast\""), 0, true, true, true},
        {OF("gpt_neox", ",\"rotary_pct\":1.0,\"hidden_act\":\"gelu_python\""), 0, true, true, false},
        {OF("gpt_neox", ",\"rotary_pct\":1.0,\"attention_bias\":false,\"rope_parameters\":{\"rope_type\":\"default\","
                        "\"partial_rotary_factor\":0.5}"),
         8, true, false, false},
    };

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        struct tt_model *model = read_json("gpt_neox", wanted[i].json);
        const struct tt_model_dims *d = &model->dims;

        if (d->rotary_dim != wanted[i].rotary_dim || d->parallel != wanted[i].parallel ||
            d->qkv_bias != wanted[i].bias || d->out_bias != wanted[i].bias || d->tanh_gelu != wanted[i].tanh_gelu)
            fail_msg("%s: rotary_dim %lld, parallel %d, biases %d and %d, tanh_gelu %d", wanted[i].json,
                     (long long)d->rotary_dim, d->parallel, d->qkv_bias, d->out_bias, d->tanh_gelu);
        tt_model_free(model);
    }
}

/* Every other layer from the first on, before max_window_layers, which is 28 where the file does not say. */
static void windows_of_qwen2_moe_are_in_every_other_of_the_first_layers(void **state)
{
    static const struct {
        const char *more;
        unsigned windows; /* bit l: layer l has a window */
    } wanted[] = {
        {"", 0x15},
        {",\"max_window_layers\":3", 0x5},
        {",\"max_window_layers\":6", 0x15},
        {",\"layer_types\":[\"full_attention\",\"sliding_attention\",\"full_attention\",\"full_attention\","
         "\"sliding_attention\",\"sliding_attention\"],\"max_window_layers\":3",
         0x32},
    };

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        char *json = tt_format("{\"model_type\":\"qwen2_moe\",\"num_hidden_layers\":6,\"use_sliding_window\":true%s}",
                               wanted[i].more);
        struct tt_model *model = read_json("qwen2_moe", json);

        for (int64_t l = 0; l < 6; l++)
            if (tt_model_is_windowed(&model->dims, l) != ((wanted[i].windows >> l & 1U) != 0))
                fail_msg("%s: layer %d", json, (int)l);
        tt_model_free(model);
        tt_free(json);
    }
}

/* --- keys of others --- */

static void keys_of_another_class_that_change_the_mathematics_are_refused(void **state)
{
    static const struct {
        const char *name, *json, *message;
    } wanted[] = {
        {"llama3", OF("llama", ",\"embedding_multiplier\":12.0"),
         "embedding_multiplier 12.0 changes what a model computes, but titan does not support it for model_type "
         "llama\nhelp: is model_type right? It is a key of model_type granite. If the weights"},
        {"llama3", OF("llama", ",\"alibi\":true"), "It is a key of model_type bloom, which titan does not support."},
        {"llama3", OF("llama", ",\"attention_multiplier\":1.0"), "attention_multiplier 1.0 changes"},
        {"llama3", OF("llama", ",\"no_rope_layers\":[1,1,0,1]"), "no_rope_layers [1, 1, 0, 1] changes"},
        {"llama3", OF("llama", ",\"num_experts\":8"), "a key of model_type qwen3_moe. If the weights"},
        {"llama3", OF("llama", ",\"qkv_bias\":true"), "qkv_bias true changes"},
        {"llama3", OF("llama", ",\"final_logit_softcapping\":30.0"), "final_logit_softcapping 30.0 changes"},
        {"llama3", OF("llama", ",\"use_qk_norm\":true"), "a key of model_type qwen3. If"},
        {"llama3", OF("llama", ",\"clip_qkv\":8.0"), "clip_qkv 8.0 changes"},
        {"llama3", OF("llama", ",\"rope_interleaved\":true"), "rope_interleaved true changes"},
        {"llama3", OF("llama", ",\"kv_lora_rank\":8"), "kv_lora_rank 8 changes"},
        {"llama3", OF("llama", ",\"per_layer_config\":{\"1\":{\"head_dim\":8}}"), "per_layer_config {"},
        {"llama3", OF("llama", ",\"position_embedding_type\":\"nope\""), "position_embedding_type \"nope\" changes"},
        {"mixtral", OF("mixtral", ",\"norm_topk_prob\":false"), "norm_topk_prob false changes"},
        {"mixtral", OF("mixtral", ",\"n_shared_experts\":1"), "n_shared_experts 1 changes"},
        {"qwen3", OF("qwen3_moe", ",\"routed_scaling_factor\":2.5"), "routed_scaling_factor 2.5 changes"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"hidden_act\":\"silu\"}", "hidden_act \"silu\" changes"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"sliding_window\":16}", "sliding_window 16 changes"},
        {"gpt2", "{\"model_type\":\"gpt2\",\"rope_scaling\":{\"type\":\"linear\"}}", "rope_scaling {"},
    };
    struct tt_model *model = NULL;

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        assert_fails(model_of_json(wanted[i].name, wanted[i].json, &model), TT_EDATA, wanted[i].message);
    assert_null(model);
}

static void keys_without_an_effect_are_read_over(void **state)
{
    static const char *const silent[] = {
        OF("llama", ",\"embedding_multiplier\":1.0,\"residual_multiplier\":1,\"logits_scaling\":1.0"),
        OF("llama", ",\"attention_multiplier\":null,\"qkv_bias\":false,\"no_rope_layers\":[1,1]"),
        OF("llama", ",\"rope_interleaved\":false,\"is_llama_config\":true,\"num_experts\":0,\"clip_qkv\":null"),
        OF("llama", ",\"layer_types\":[\"full_attention\",\"full_attention\"],\"mlp_layer_types\":[\"dense\"]"),
        OF("llama", ",\"_attn_implementation_autoset\":true,\"temperature\":0.6,\"pruned_heads\":{}"),
    };

    for (size_t i = 0; i < sizeof silent / sizeof *silent; i++) {
        *notes = '\0';
        tt_model_free(read_json("llama", silent[i]));
        assert_string_equal(notes, "");
    }
}

/* The names that transformers gives to one function. */
static void activations_have_several_names(void **state)
{
    static const char *const same[] = {
        OF("llama", ",\"hidden_act\":\"swish\""),
        OF("gpt_oss", ",\"num_local_experts\":4,\"hidden_act\":\"swish\""),
        OF("starcoder2", ",\"hidden_act\":\"gelu_new\""),
        OF("starcoder2", ",\"hidden_act\":\"gelu_accurate\""),
        OF("gemma2", ",\"hidden_activation\":\"gelu_python_tanh\""),
        OF("gemma", ",\"hidden_act\":\"gelu\",\"hidden_activation\":null"),
        OF("gemma", ",\"hidden_act\":\"gelu_new\",\"hidden_activation\":\"gelu_pytorch_tanh\""),
        "{\"model_type\":\"gpt2\",\"activation_function\":\"gelu_pytorch_tanh\"}",
        "{\"model_type\":\"gpt2\",\"activation_function\":\"gelu_fast\"}",
    };

    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        json_t *json = json_loads(same[i], 0, NULL);

        tt_model_free(read_json(json_string_value(json_object_get(json, "model_type")), same[i]));
        json_decref(json);
    }
}

static void keys_that_nobody_knows_are_listed(void **state)
{
    *notes = '\0';
    tt_model_free(read_json("llama", OF("llama", ",\"novelty\":3,\"a\\u001bb\":1,\"rope_parameters\":{\"rope_type\":"
                                                 "\"default\",\"factor\":8.0,\"finetuned\":true}")));
    assert_non_null(strstr(notes, "config.json: not used, since titan or the model does not know them: \"novelty\", "
                                  "\"a\\u001Bb\", rope_parameters.\"factor\"\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_config_is_that_of_the_class),
        cmocka_unit_test(all_keys_of_a_class_are_known),
        cmocka_unit_test(the_language_model_of_several_parts_is_read),
        cmocka_unit_test(rope_is_read_as_transformers_does),
        cmocka_unit_test(longrope_is_read_in_all_spellings),
        cmocka_unit_test(what_transformers_reads_otherwise_is_refused),
        cmocka_unit_test(nulls_and_second_names_are_those_of_transformers),
        cmocka_unit_test(the_forms_of_gpt_neox_are_read),
        cmocka_unit_test(windows_of_qwen2_moe_are_in_every_other_of_the_first_layers),
        cmocka_unit_test(keys_of_another_class_that_change_the_mathematics_are_refused),
        cmocka_unit_test(keys_without_an_effect_are_read_over),
        cmocka_unit_test(activations_have_several_names),
        cmocka_unit_test(keys_that_nobody_knows_are_listed),
    };

    tt_log_set_sink(keep_note, NULL);
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdlib.h>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/models/hf.h"
#include "core/os/file.h"
#include "model_help.h"

static const struct tt_model_dims no_overrides = {.tied = -1};

static struct tt_model *make(const char *flavor, const struct tt_model_dims *overrides)
{
    return make_of("llama3", flavor, overrides);
}

static void counts_and_flops_are_torchtitans(void **state)
{
    static const struct {
        const char *flavor;
        int64_t parameters, seq_len;
        double flops; /* 0: not published */
    } wanted[] = {
        {"debugmodel", 6163712, 2048, 71585280.0},
        {"125M", 124668672, 1024, 0.0},
        {"1B", 1235814400, 8192, 0.0},
        {"3B", 3212749824, 8192, 0.0},
        {"8B", 8030261248, 8192, 57914449920.0},
        {"70B", 70553706496, 8192, 481442709504.0},
        {"405B", 405853388800, 8192, 2625449459712.0},
    };

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        struct tt_model *model = make(wanted[i].flavor, NULL);

        assert_true(tt_model_n_elements(model) == wanted[i].parameters);
        if (wanted[i].flops > 0.0)
            assert_true(tt_model_flops_per_token(model, wanted[i].seq_len) == wanted[i].flops);
        tt_model_free(model);
    }
}

/* Learned positions are looked up like an embedding, so they take no products. */
static void flops_leave_out_learned_positions(void **state)
{
    struct tt_model *model = make_of("gpt2", "124M", NULL);

    assert_true(tt_model_flops_per_token(model, 100) ==
                6.0 * (124439808.0 - 1024.0 * 768.0) + 6.0 * 12.0 * 12.0 * 128.0 * 100.0);
    tt_model_free(model);
}

/* The formula counts a tied embedding and, with causal attention, (T + 1) / 2 keys per query. */
static void flops_of_tied_and_causal(void **state)
{
    struct tt_model *model = make("1B", NULL);
    double matrices = 6.0 * 1235814400.0, per_key = 6.0 * 16.0 * 32.0 * 128.0;

    assert_true(tt_model_flops_per_token(model, 100) == matrices + per_key * 100.0);
    assert_true(tt_model_flops_per_token_causal(model, 100) == matrices + per_key * 50.5);
    assert_true(tt_model_flops_per_token_causal(model, 1) == tt_model_flops_per_token(model, 1));
    tt_model_free(model);
}

static void parameters_are_in_forward_order(void **state)
{
    static const char *const wanted[] = {"tok_embeddings.weight",
                                         "layers.0.attention_norm.weight",
                                         "layers.0.attention.wq.weight",
                                         "layers.0.attention.wk.weight",
                                         "layers.0.attention.wv.weight",
                                         "layers.0.attention.wo.weight",
                                         "layers.0.ffn_norm.weight",
                                         "layers.0.feed_forward.w1.weight",
                                         "layers.0.feed_forward.w3.weight",
                                         "layers.0.feed_forward.w2.weight",
                                         "norm.weight",
                                         "output.weight"};
    const struct tt_model_dims one_layer = {.n_layers = 1, .tied = -1}, tied = {.n_layers = 1, .tied = 1};
    struct tt_model *model = make("125M", &one_layer);
    const struct tt_param *wk = find_param(model, "layers.0.attention.wk.weight");

    assert_int_equal(model->n_params, 12);
    for (int i = 0; i < 12; i++)
        assert_string_equal(model->params[i].name, wanted[i]);
    assert_int_equal(model->params[0].block, TT_BLOCK_EMBEDDINGS);
    assert_int_equal(model->params[9].block, 0);
    assert_int_equal(model->params[10].block, TT_BLOCK_HEAD);
    assert_int_equal(wk->shape[0], 256);
    assert_int_equal(wk->shape[1], 768);
    tt_model_free(model);

    model = make("125M", &tied);
    assert_int_equal(model->n_params, 11);
    for (int p = 0; p < model->n_params; p++)
        assert_string_not_equal(model->params[p].name, "output.weight");
    tt_model_free(model);
}

struct mapping {
    const char *name, *hf_name;
    enum tt_hf_transform transform;
    int heads, part, parts;
};

static void check_mappings(const char *name, const char *flavor, const struct mapping *wanted, size_t n)
{
    struct tt_model *model = make_of(name, flavor, NULL);

    for (size_t i = 0; i < n; i++) {
        const struct tt_param *p = find_param(model, wanted[i].name);

        if (!p)
            fail_msg("%s has no %s", name, wanted[i].name);
        assert_string_equal(p->hf_name, wanted[i].hf_name);
        assert_int_equal(p->hf_transform, wanted[i].transform);
        assert_int_equal(p->hf_heads, wanted[i].heads);
        assert_int_equal(p->hf_part, wanted[i].part);
        assert_int_equal(p->hf_parts, wanted[i].parts);
    }
    tt_model_free(model);
}

static void hugging_face_names_and_transforms(void **state)
{
    static const struct mapping llama3[] = {
        {"tok_embeddings.weight", "model.embed_tokens.weight", TT_HF_SAME, 0, 0, 0},
        {"layers.11.attention_norm.weight", "model.layers.11.input_layernorm.weight", TT_HF_SAME, 0, 0, 0},
        {"layers.11.attention.wq.weight", "model.layers.11.self_attn.q_proj.weight", TT_HF_ROPE_PAIRS, 12, 0, 0},
        {"layers.11.attention.wk.weight", "model.layers.11.self_attn.k_proj.weight", TT_HF_ROPE_PAIRS, 4, 0, 0},
        {"layers.11.attention.wv.weight", "model.layers.11.self_attn.v_proj.weight", TT_HF_SAME, 0, 0, 0},
        {"layers.11.attention.wo.weight", "model.layers.11.self_attn.o_proj.weight", TT_HF_SAME, 0, 0, 0},
        {"layers.11.ffn_norm.weight", "model.layers.11.post_attention_layernorm.weight", TT_HF_SAME, 0, 0, 0},
        {"layers.11.feed_forward.w1.weight", "model.layers.11.mlp.gate_proj.weight", TT_HF_SAME, 0, 0, 0},
        {"layers.11.feed_forward.w2.weight", "model.layers.11.mlp.down_proj.weight", TT_HF_SAME, 0, 0, 0},
        {"layers.11.feed_forward.w3.weight", "model.layers.11.mlp.up_proj.weight", TT_HF_SAME, 0, 0, 0},
        {"norm.weight", "model.norm.weight", TT_HF_SAME, 0, 0, 0},
        {"output.weight", "lm_head.weight", TT_HF_SAME, 0, 0, 0},
    };
    static const struct mapping qwen3[] = {
        {"layers.35.attention.wq.weight", "model.layers.35.self_attn.q_proj.weight", TT_HF_SAME, 0, 0, 0},
        {"layers.35.attention.q_norm.weight", "model.layers.35.self_attn.q_norm.weight", TT_HF_SAME, 0, 0, 0},
        {"layers.35.attention.k_norm.weight", "model.layers.35.self_attn.k_norm.weight", TT_HF_SAME, 0, 0, 0},
        {"output.weight", "lm_head.weight", TT_HF_SAME, 0, 0, 0},
    };
    static const struct mapping gpt2[] = {
        {"tok_embeddings.weight", "transformer.wte.weight", TT_HF_SAME, 0, 0, 0},
        {"pos_embeddings.weight", "transformer.wpe.weight", TT_HF_SAME, 0, 0, 0},
        {"layers.11.attention_norm.bias", "transformer.h.11.ln_1.bias", TT_HF_SAME, 0, 0, 0},
        {"layers.11.attention.wq.weight", "transformer.h.11.attn.c_attn.weight", TT_HF_TRANSPOSE, 0, 0, 3},
        {"layers.11.attention.wk.bias", "transformer.h.11.attn.c_attn.bias", TT_HF_SAME, 0, 1, 3},
        {"layers.11.attention.wv.weight", "transformer.h.11.attn.c_attn.weight", TT_HF_TRANSPOSE, 0, 2, 3},
        {"layers.11.attention.wo.weight", "transformer.h.11.attn.c_proj.weight", TT_HF_TRANSPOSE, 0, 0, 1},
        {"layers.11.ffn_norm.weight", "transformer.h.11.ln_2.weight", TT_HF_SAME, 0, 0, 0},
        {"layers.11.feed_forward.w1.weight", "transformer.h.11.mlp.c_fc.weight", TT_HF_TRANSPOSE, 0, 0, 1},
        {"layers.11.feed_forward.w2.bias", "transformer.h.11.mlp.c_proj.bias", TT_HF_SAME, 0, 0, 1},
        {"norm.bias", "transformer.ln_f.bias", TT_HF_SAME, 0, 0, 0},
    };

    check_mappings("llama3", "125M", llama3, sizeof llama3 / sizeof *llama3);
    check_mappings("qwen3", "8B", qwen3, sizeof qwen3 / sizeof *qwen3);
    check_mappings("gpt2", "124M", gpt2, sizeof gpt2 / sizeof *gpt2);
}

static float *fill(const struct tt_param *p, uint64_t seed, int64_t *ret_n)
{
    struct tt_box whole = tt_box_whole(p->ndim, p->shape);
    int64_t n = tt_box_volume(&whole);
    float *data = tt_calloc((size_t)n, sizeof *data);

    fill_rows(p, seed, 0, p->shape[0], data);
    *ret_n = n;
    return data;
}

/* Fills the parameter and compares its moments. With `largest` not 0, no value may be larger and some must come
 * near. */
static void check_moments(const struct tt_model *model, const char *name, double std, double largest)
{
    const struct tt_param *p = find_param(model, name);
    double sum = 0.0, squares = 0.0, far = 0.0, n_root;
    int64_t n = 0;
    float *data = fill(p, 42, &n);

    for (int64_t i = 0; i < n; i++) {
        sum += (double)data[i];
        squares += (double)data[i] * (double)data[i];
        far = fmax(far, fabs((double)data[i]));
    }
    n_root = sqrt((double)n);
    if (fabs(sum / (double)n) > 5.0 * std / n_root || fabs(sqrt(squares / (double)n) / std - 1.0) > 5.0 / n_root)
        fail_msg("%s: mean %g, std %g; wanted std %g", name, sum / (double)n, sqrt(squares / (double)n), std);
    if (largest > 0.0) {
        assert_true(far <= largest * 1.0000001 && far > 0.99 * largest);
    } else {
        assert_true(far > 3.5 * std);
    }
    tt_free(data);
}

static void init_has_torchtitans_moments(void **state)
{
    /* A normal distribution cut at 3 std keeps 0.98658 of its std: the root of 1 - 2 * 3 * phi(3) / (2 * Phi(3) -
     * 1). */
    double cut = 0.986578, head = 1.0 / 16.0, deep0 = 0.02 / sqrt(2.0), deep5 = 0.02 / sqrt(12.0);
    const struct tt_model_dims tied = {.tied = 1};
    struct tt_model *model = make("debugmodel", NULL);
    const struct tt_param *norm = find_param(model, "layers.3.ffn_norm.weight");
    int64_t n = 0;
    float *ones = fill(norm, 42, &n);

    for (int64_t i = 0; i < n; i++)
        assert_true(ones[i] == 1.0F);
    tt_free(ones);
    check_moments(model, "tok_embeddings.weight", 1.0, 0.0);
    check_moments(model, "layers.0.attention.wq.weight", 0.02, 0.0);
    check_moments(model, "layers.5.attention.wk.weight", 0.02, 0.0);
    check_moments(model, "layers.5.attention.wv.weight", 0.02, 0.0);
    check_moments(model, "layers.5.feed_forward.w1.weight", 0.02, 0.0);
    check_moments(model, "layers.0.attention.wo.weight", deep0, 0.0);
    check_moments(model, "layers.5.attention.wo.weight", deep5, 0.0);
    check_moments(model, "layers.5.feed_forward.w2.weight", deep5, 0.0);
    check_moments(model, "layers.5.feed_forward.w3.weight", deep5, 0.0);
    check_moments(model, "output.weight", head * cut, 3.0 * head);
    tt_model_free(model);

    model = make("debugmodel", &tied);
    check_moments(model, "tok_embeddings.weight", head * cut, 3.0 * head);
    tt_model_free(model);
}

static void check_constant(const struct tt_model *model, const char *name, float value)
{
    int64_t n = 0;
    float *data = fill(find_param(model, name), 42, &n);

    for (int64_t i = 0; i < n; i++)
        assert_true(data[i] == value);
    tt_free(data);
}

static void init_of_gpt2_and_qwen3(void **state)
{
    double deep = 0.02 / sqrt(12.0);
    struct tt_model *model = make_of("gpt2", "debugmodel", NULL);

    check_moments(model, "tok_embeddings.weight", 0.02, 0.0);
    check_moments(model, "pos_embeddings.weight", 0.01, 0.0);
    check_moments(model, "layers.0.attention.wo.weight", deep, 0.0);
    check_moments(model, "layers.5.feed_forward.w2.weight", deep, 0.0);
    check_moments(model, "layers.5.feed_forward.w1.weight", 0.02, 0.0);
    check_constant(model, "layers.3.attention_norm.weight", 1.0F);
    check_constant(model, "layers.3.attention_norm.bias", 0.0F);
    check_constant(model, "layers.3.attention.wq.bias", 0.0F);
    tt_model_free(model);

    model = make_of("qwen3", "debugmodel", NULL);
    check_moments(model, "layers.3.feed_forward.w3.weight", 0.02 / sqrt(8.0), 0.0);
    check_constant(model, "layers.3.attention.q_norm.weight", 1.0F);
    tt_model_free(model);
}

/* A parameter without a rule would keep whatever memory contained. parallel/layout/init.c refuses TT_PARAM_NONE. */
static void every_parameter_has_an_init_rule(void **state)
{
    for (int r = 0; r < tt_model_n_rows; r++) {
        struct tt_model *model = make_of(tt_model_rows[r]->name, "debugmodel", NULL);

        for (int p = 0; p < model->n_params; p++)
            assert_true(model->params[p].init != TT_PARAM_NONE);
        tt_model_free(model);
    }
}

static void init_bits_do_not_depend_on_the_split(void **state)
{
    static const char *const names[] = {"output.weight", "layers.2.feed_forward.w2.weight", "norm.weight"};
    struct tt_model *model = make("debugmodel", NULL);

    for (int k = 0; k < 3; k++) {
        const struct tt_param *p = find_param(model, names[k]);
        int64_t n = 0, width;
        float *whole = fill(p, 7, &n), *part = tt_calloc((size_t)n, sizeof *part), *other = fill(p, 8, &n);

        width = n / p->shape[0];
        for (int64_t row = 0, rows = 1; row < p->shape[0]; row += rows, rows = rows * 3 % 101) {
            rows = row + rows > p->shape[0] ? p->shape[0] - row : rows;
            fill_rows(p, 7, row, rows, part + row * width);
        }
        assert_memory_equal(whole, part, (size_t)n * sizeof *whole);
        if (p->init == TT_PARAM_NORMAL)
            assert_memory_not_equal(whole, other, 64);
        tt_free(whole);
        tt_free(part);
        tt_free(other);
    }
    tt_model_free(model);
}

/* Parameters with the same shape and rule differ, since a parameter's name keys its random numbers. */
static void init_differs_between_parameters(void **state)
{
    struct tt_model *model = make("debugmodel", NULL);
    float a[256], b[256];

    fill_rows(find_param(model, "layers.0.attention.wq.weight"), 42, 0, 1, a);
    fill_rows(find_param(model, "layers.0.attention.wk.weight"), 42, 0, 1, b);
    assert_memory_not_equal(a, b, sizeof a);
    fill_rows(find_param(model, "layers.1.attention.wq.weight"), 42, 0, 1, b);
    assert_memory_not_equal(a, b, sizeof a);
    tt_model_free(model);
}

static void overrides_replace_the_flavors_dims(void **state)
{
    const struct tt_model_dims overrides = {.dim = 96,
                                            .n_layers = 2,
                                            .n_heads = 6,
                                            .n_kv_heads = 2,
                                            .ffn_dim = 100,
                                            .vocab_size = 500,
                                            .norm_eps = 1e-6F,
                                            .rope = {.theta = 10000.0, .factor = 1.0},
                                            .tied = 1};
    const struct tt_model_dims heads = {.n_heads = 8, .tied = -1};
    struct tt_model *model = make("debugmodel", &overrides);
    const struct tt_model_dims *d = &model->dims;

    assert_true(d->dim == 96 && d->n_layers == 2 && d->n_heads == 6 && d->n_kv_heads == 2 && d->ffn_dim == 100);
    assert_true(d->head_dim == 16 && d->vocab_size == 500 && d->norm_eps == 1e-6F && d->tied == 1);
    assert_true(d->rope.theta == 10000.0 && d->rope.factor == 0.0);
    tt_model_free(model);

    model = make("debugmodel", &heads); /* kv heads and head_dim follow */
    assert_true(model->dims.n_kv_heads == 8 && model->dims.head_dim == 32);
    assert_true(model->dims.rope.factor == 8.0 && model->dims.rope.original_max == 8192.0);
    tt_model_free(model);
}

static void impossible_dims_are_refused(void **state)
{
    static const struct {
        struct tt_model_dims overrides;
        const char *message;
    } wanted[] = {
        {{.n_kv_heads = 5, .tied = -1}, "model.n_heads 16 is not a multiple of model.n_kv_heads 5"},
        {{.n_kv_heads = 32, .tied = -1}, "model.n_kv_heads is 32; it must lie in 1..16"},
        {{.n_heads = 7, .tied = -1}, "model.dim 256 is not a multiple of model.n_heads 7"},
        {{.head_dim = 15, .tied = -1}, "head dimension 15 is odd"},
        {{.dim = 48, .tied = -1}, "head dimension 3 is odd"},
        {{.dim = -1, .tied = -1}, "model.dim is -1"},
        {{.n_layers = INT64_MAX, .tied = -1}, "model.n_layers is"},
        {{.vocab_size = (int64_t)1 << 31, .tied = -1}, "model.vocab_size is 2147483648"},
        {{.ffn_dim = -5, .tied = -1}, "model.ffn_dim is -5"},
        {{.head_dim = 1 << 22, .tied = -1}, "model.n_heads * head_dim"},
        {{.norm_eps = -1.0F, .tied = -1}, "model.norm_eps is -1"},
        {{.rope = {.theta = -2.0}, .tied = -1}, "model.rope_theta is -2"},
        {{.rope = {.theta = (double)NAN}, .tied = -1}, "model.rope_theta is nan"},
        {{.rope = {.factor = 0.5}, .tied = -1}, "model.rope_scaling.factor is 0.5"},
        {{.rope = {.low_freq_factor = 4.0}, .tied = -1}, "low_freq_factor 4 and model.rope_scaling.high_freq_factor 4"},
        {{.rope = {.original_max = -1.0}, .tied = -1}, "model.rope_scaling.original_max is -1"},
    };
    struct tt_model *model = NULL;

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        assert_fails(tt_model_new("llama3", "debugmodel", &wanted[i].overrides, NULL, &model), TT_EUSAGE,
                     wanted[i].message);
    }
    assert_null(model);
}

static void gpt2_refuses_what_it_does_not_have(void **state)
{
    static const struct {
        struct tt_model_dims overrides;
        const char *message;
    } wanted[] = {
        {{.n_kv_heads = 4, .tied = -1}, "model.n_kv_heads is 4; in gpt2 it must equal the number of query heads (16)"},
        {{.head_dim = 32, .tied = -1}, "model.head_dim is 32; gpt2 has model.dim 256 / model.n_heads 16"},
        {{.rope = {.theta = 1e4}, .tied = -1}, "have no meaning for gpt2"},
        {{.rope = {.factor = 8.0}, .tied = -1}, "have no meaning for gpt2"},
        {{.max_positions = -1, .tied = -1}, "max_position_embeddings is -1"},
    };
    struct tt_model *model = NULL;
    struct tt_graph *graph = NULL;

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        assert_fails(tt_model_new("gpt2", "debugmodel", &wanted[i].overrides, NULL, &model), TT_EUSAGE,
                     wanted[i].message);
    assert_null(model);
    model = make_of("gpt2", "124M", NULL);
    assert_fails(tt_model_graph(model, TT_GRAPH_VALIDATE, TT_F32, 1, 1025, false, &graph, NULL), TT_EUSAGE,
                 "seq_len 1025 is longer than the 1024 positions that gpt2 124M has learned\nhelp: set "
                 "training.seq_len");
    assert_null(graph);
    assert_int_equal(tt_model_graph(model, TT_GRAPH_VALIDATE, TT_F32, 1, 1024, false, &graph, NULL), 0);
    tt_graph_free(graph);
    tt_model_free(model);
}

static void unknown_names_list_the_choices(void **state)
{
    struct tt_model *model = NULL;

    assert_fails(tt_model_new("lama3", "8B", NULL, NULL, &model), TT_EUSAGE,
                 "unknown model.name 'lama3'\nhelp: did you mean llama3? the choices are llama3");
    assert_fails(tt_model_new("bert", "8B", NULL, NULL, &model), TT_EUSAGE, "\nhelp: the choices are llama3");
    assert_fails(tt_model_new("llama3", "debug_model", NULL, NULL, &model), TT_EUSAGE,
                 "unknown model.flavor of llama3 'debug_model'\nhelp: did you mean debugmodel? the choices are "
                 "debugmodel, 125M, 1B, 3B, 8B, 70B, 405B, hf");
}

static void read_golden_config(const char *name, struct tt_model **ret_model)
{
    char *folder = tt_format("%s/tests/golden/data/%s", TT_SOURCE_DIR, name);

    if (tt_model_new("llama3", "hf", &no_overrides, folder, ret_model) < 0)
        fail_msg("%s", tt_error_message());
    tt_free(folder);
}

static void hf_config_of_transformers_5(void **state)
{
    struct tt_model *model = NULL;
    const struct tt_model_dims *d;

    read_golden_config("llama3", &model);
    d = &model->dims;
    assert_string_equal(model->flavor, "hf");
    assert_true(d->dim == 64 && d->n_layers == 3 && d->n_heads == 4 && d->n_kv_heads == 2 && d->head_dim == 16);
    assert_true(d->ffn_dim == 160 && d->vocab_size == 512 && d->norm_eps == 1e-5F && d->tied == 0);
    assert_true(d->rope.theta == 500000.0 && d->rope.factor == 0.0);
    tt_model_free(model);

    read_golden_config("llama3_tied_scaled", &model);
    d = &model->dims;
    assert_true(d->head_dim == 8 && d->tied == 1 && d->rope.theta == 500000.0 && d->rope.factor == 8.0);
    assert_true(d->rope.low_freq_factor == 1.0 && d->rope.high_freq_factor == 4.0 && d->rope.original_max == 32.0);
    tt_model_free(model);
}

#define LLAMA_CONFIG    CONFIG_OF("llama")
#define MISTRAL_CONFIG  CONFIG_OF("mistral")
#define CONFIG_OF(type) CONFIG_WITH(type, ",\"num_key_value_heads\":4")
#define CONFIG_WITH(type, heads)                                                                              \
    "{\"model_type\":\"" type "\",\"hidden_size\":64,\"num_hidden_layers\":1,\"num_attention_heads\":4" heads \
    ",\"intermediate_size\":96,\"vocab_size\":300,\"torch_dtype\":\"bfloat16\""

static void hf_config_of_transformers_4(void **state)
{
    struct tt_model *model = NULL;

    assert_int_equal(model_of_json("llama3", CONFIG_WITH("llama", "") "}", &model),
                     0); /* absent members have Hugging Face's defaults */
    assert_true(model->dims.n_kv_heads == 4 && model->dims.head_dim == 16 && model->dims.rope.theta == 10000.0);
    assert_true(model->dims.norm_eps == 1e-6F && model->dims.tied == 0 && model->dims.rope.factor == 0.0);
    tt_model_free(model);
    assert_int_equal(model_of_json("llama3",
                                   LLAMA_CONFIG ",\"rope_theta\":500000,\"rope_scaling\":{\"rope_type\":\"llama3\","
                                                "\"factor\":32.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                                                "\"original_max_position_embeddings\":8192},\"head_dim\":32}",
                                   &model),
                     0);
    assert_true(model->dims.rope.theta == 500000.0 && model->dims.rope.factor == 32.0);
    assert_true(model->dims.rope.original_max == 8192.0 && model->dims.head_dim == 32);
    tt_model_free(model);
    assert_int_equal(
        model_of_json("llama3",
                      LLAMA_CONFIG
                      ",\"rope_scaling\":null,\"head_dim\":null,\"hidden_act\":\"silu\",\"mlp_bias\":false,"
                      "\"sliding_window\":4096,\"use_sliding_window\":false,"
                      "\"layer_types\":[\"full_attention\"]}",
                      &model),
        0);
    tt_model_free(model);
    assert_int_equal(model_of_json("llama3", MISTRAL_CONFIG ",\"sliding_window\":null,\"head_dim\":32}", &model), 0);
    assert_true(model->dims.head_dim == 32);
    tt_model_free(model);
}

static void hf_configs_that_titan_cannot_build_are_refused(void **state)
{
    static const struct {
        const char *json, *message;
    } wanted[] = {
        {"{\"model_type\":\"mamba\"}",
         "'mamba' is not supported\nhelp: the nearest family is llama (LlamaForCausalLM, model.name llama3). It has "
         "all settings of this file, so only the code of both classes shows how they differ\n"
         "help: supported are llama and mistral and "},
        {"{}", "missing key 'model_type'"},
        {"[1]", "not a JSON object"},
        {"{\"model_type\":", "config.json:1:"},
        {"{\"model_type\":\"mamba\",\"architectures\":[\"MambaForCausalLM\"],\"hidden_act\":\"silu\","
         "\"rms_norm_eps\":1e-5,\"num_key_value_heads\":2,\"clip_qkv\":8.0}",
         "'mamba' (MambaForCausalLM) is not supported\nhelp: the nearest family is llama (LlamaForCausalLM, "
         "model.name llama3). Settings of this file that it lacks: \"clip_qkv\" 8.0\n"},
        {"{\"model_type\":\"persimmon\",\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-5,\"partial_rotary_factor\":0.5,"
         "\"attention_bias\":true}",
         "the nearest family is glm (GlmForCausalLM, model.name glm). It has all settings"},
        {"{\"model_type\":\"nemotron\",\"hidden_act\":\"relu2\",\"norm_eps\":1e-5,\"num_key_value_heads\":8}",
         "the nearest family is llama (LlamaForCausalLM, model.name llama3). Settings of this file that it lacks: "
         "\"hidden_act\" \"relu2\", \"norm_eps\" 1e-5\n"},
        {"{\"model_type\":\"hunyuan_v1_dense\",\"rms_norm_eps\":1e-5,\"use_qk_norm\":true,\"rope_scaling\":{\"type\":"
         "\"dynamic\",\"alpha\":1000.0,\"factor\":1.0}}",
         "the nearest family is llama (LlamaForCausalLM, model.name llama3). Settings of this file that it lacks: "
         "\"use_qk_norm\" true, rope_scaling.\"alpha\"\n"},
        {"{\"model_type\":\"qwen2_5_vl\",\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[16,24,24]}}",
         "that it lacks: rope_scaling.\"type\", rope_scaling.\"mrope_section\"\n"},
        {MISTRAL_CONFIG ",\"attention_bias\":true}", "attention_bias true is not supported"},
        {MISTRAL_CONFIG ",\"mlp_bias\":true}", "mlp_bias true is not supported"},
        {LLAMA_CONFIG ",\"mlp_bias\":1}", "mlp_bias must be true or false"},
        {LLAMA_CONFIG ",\"hidden_act\":\"gelu\"}", "hidden_act 'gelu' is not supported; only 'silu' is"},
        {LLAMA_CONFIG ",\"sliding_window\":4096}", "sliding_window attention is not supported"},
        {MISTRAL_CONFIG ",\"sliding_window\":0}", "sliding_window must be a positive integer"},
        {MISTRAL_CONFIG ",\"sliding_window\":9,\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
         "the layers of a mistral all have the window"},
        {LLAMA_CONFIG ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", "layer_types[1]"},
        {LLAMA_CONFIG ",\"attention_dropout\":0.1}", "attention_dropout 0.1 is not supported"},
        {LLAMA_CONFIG ",\"quantization_config\":{\"bits\":4}}", "quant_method '(none)' is not supported"},
        {LLAMA_CONFIG ",\"rope_scaling\":{\"type\":\"proportional\",\"factor\":2.0}}", "rope_type 'proportional'"},
        {LLAMA_CONFIG ",\"rope_scaling\":{\"type\":\"longrope\",\"factor\":2.0}}", "needs the key 'short_factor'"},
        {LLAMA_CONFIG ",\"rope_scaling\":{\"type\":\"linear\"}}", "rope_type linear needs the key 'factor'"},
        {LLAMA_CONFIG ",\"rope_scaling\":{\"factor\":2.0}}", "RoPE scaling without a rope_type"},
        {LLAMA_CONFIG ",\"rope_scaling\":3}", "must be an object"},
        {LLAMA_CONFIG ",\"rope_parameters\":{\"rope_type\":\"llama3\",\"factor\":2.0}}", "needs the key 'low_freq"},
        {CONFIG_WITH("llama", "") ",\"num_key_value_heads\":0}", "num_key_value_heads must be a positive integer"},
        {LLAMA_CONFIG ",\"rms_norm_eps\":\"small\"}", "rms_norm_eps must be a number"},
    };
    struct tt_model *model = NULL;

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        assert_fails(model_of_json("llama3", wanted[i].json, &model), TT_EDATA, wanted[i].message);
    assert_fails(model_of_json("llama3", CONFIG_WITH("llama", "") ",\"num_key_value_heads\":3}", &model), TT_EUSAGE,
                 "model.n_kv_heads 3");
    assert_fails(tt_model_new("llama3", "hf", NULL, NULL, &model), TT_EUSAGE, "set model.hf_assets_path to");
    assert_fails(tt_model_new("llama3", "hf", NULL, "/nonexistent", &model), TT_EDATA, "/nonexistent/config.json");
    assert_null(model);
}

/* A rule for layers with a window can be written in more than one way. */
static bool same_windows(const struct tt_model_dims *a, const struct tt_model_dims *b)
{
    for (int64_t l = 0; l < a->n_layers; l++)
        if (tt_model_is_windowed(a, l) != tt_model_is_windowed(b, l))
            return false;
    return a->sliding_window == b->sliding_window;
}

static bool dims_equal(const struct tt_model_dims *a, const struct tt_model_dims *b)
{
    return a->dim == b->dim && a->n_layers == b->n_layers && a->n_heads == b->n_heads &&
           a->n_kv_heads == b->n_kv_heads && a->head_dim == b->head_dim && a->ffn_dim == b->ffn_dim &&
           a->vocab_size == b->vocab_size && a->norm_eps == b->norm_eps && a->tied == b->tied &&
           a->max_positions == b->max_positions && memcmp(&a->rope, &b->rope, sizeof a->rope) == 0 &&
           a->moe.experts == b->moe.experts && a->moe.top_k == b->moe.top_k && a->moe.ffn_dim == b->moe.ffn_dim &&
           a->moe.dense_layers == b->moe.dense_layers && a->moe.dense_set == b->moe.dense_set &&
           a->moe.gates_as_scored == b->moe.gates_as_scored && same_windows(a, b) &&
           memcmp(&a->unrotated, &b->unrotated, sizeof a->unrotated) == 0 && a->local_theta == b->local_theta &&
           a->qkv_bias == b->qkv_bias && a->out_bias == b->out_bias && a->mlp_bias == b->mlp_bias &&
           memcmp(&a->multipliers, &b->multipliers, sizeof a->multipliers) == 0;
}

/* Writes the model's config.json and reads it back. */
static void check_hf_config(const struct tt_model *model)
{
    json_t *config = tt_model_hf_config(model);
    char *text = tt_json_text(config);
    struct tt_model *back = NULL;

    if (!json_is_null(json_object_get(config, "bos_token_id")) ||
        !json_is_null(json_object_get(config, "eos_token_id")) ||
        !json_is_null(json_object_get(config, "pad_token_id"))) /* else they would be those of the class */
        fail_msg("%s %s: ids of tokens in %s", model->row->name, model->flavor, text);
    if (model_of_json(model->row->name, text, &back) < 0)
        fail_msg("%s", tt_error_message());
    if (!dims_equal(&model->dims, &back->dims))
        fail_msg("%s %s: other dims after %s", model->row->name, model->flavor, text);
    json_decref(config);
    tt_free(text);
    tt_model_free(back);
}

static bool has_flavor(const struct tt_model_row *row, const char *name)
{
    for (int i = 0; i < row->n_flavors; i++)
        if (strcmp(row->flavors[i].name, name) == 0)
            return true;
    return false;
}

/* A model of the table, whose parameters transformers counted, is the flavor of that name, if there is one. */
static void check_published(const struct tt_model_row *row, const char *type, const char *flavor, json_t *of)
{
    json_t *config = json_object_get(of, "config");
    struct tt_model *model = NULL, *same = NULL;
    char *text;

    (void)json_object_set_new(config, "model_type", json_string(type));
    text = tt_json_text(config);
    if (model_of_json(row->name, text, &model) < 0)
        fail_msg("%s %s: %s", row->name, flavor, tt_error_message());
    if (tt_model_n_elements(model) != json_integer_value(json_object_get(of, "parameters")))
        fail_msg("%s %s has %lld parameters", row->name, flavor, (long long)tt_model_n_elements(model));
    if (has_flavor(row, flavor)) {
        same = make_of(row->name, flavor, NULL);
        if (!dims_equal(&model->dims, &same->dims))
            fail_msg("%s %s has other sizes than %s", row->name, flavor, text);
    }
    tt_model_free(model);
    tt_model_free(same);
    tt_free(text);
}

static void counts_of_published_models_are_those_of_transformers(void **state)
{
    char *path = tt_format("%s/tests/unit/data/hf_classes.json", TT_SOURCE_DIR);
    const char *type, *flavor;
    json_t *table = NULL, *of, *model;

    assert_int_equal(tt_json_load(path, &table), 0);
    json_object_foreach(table, type, of)
    {
        const struct tt_model_row *row;

        assert_non_null(tt_hf_find_class(type, &row));
        json_object_foreach(json_object_get(of, "published"), flavor, model)
        {
            check_published(row, type, flavor, model);
        }
    }
    json_decref(table);
    tt_free(path);
}

/* Beyond the first training's length, dynamic scaling follows from the length of sequences, but not from that of their
 * documents, nor from each length of a growing text. */
static void linear_and_dynamic_scaling_are_read(void **state)
{
    struct tt_graph *graph = NULL;
    struct tt_model *model = NULL;
    struct tt_model_dims overrides = {.rope = {.low_freq_factor = 1.0}, .tied = -1};

    assert_int_equal(
        model_of_json("llama3", LLAMA_CONFIG ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}", &model), 0);
    assert_true(model->dims.rope.linear && model->dims.rope.factor == 4.0);
    assert_int_equal(tt_model_check_seq_len(model, 1000000, true), 0);
    check_hf_config(model);
    tt_model_free(model);
    assert_int_equal(model_of_json("llama3",
                                   LLAMA_CONFIG ",\"max_position_embeddings\":48,"
                                                "\"rope_parameters\":{\"rope_type\":\"dynamic\",\"factor\":1.0}}",
                                   &model),
                     0);
    assert_true(model->dims.rope.dynamic && model->dims.rope.original_max == 48.0);
    assert_int_equal(tt_model_check_seq_len(model, 48, true), 0);
    assert_int_equal(tt_model_check_seq_len(model, 49, false), 0);
    assert_fails(tt_model_check_seq_len(model, 49, true), TT_EUSAGE,
                 "seq_len 49 is longer than the 48 positions of llama3 hf, whose rope_type is dynamic");
    assert_fails(tt_model_decode_graph(model, TT_F32, &(struct tt_decode){.context = 49, .rows = 1}, &graph), TT_EUSAGE,
                 "a context of 49 tokens is longer than the 48 positions of llama3 hf, whose rope_type is dynamic");
    assert_null(graph);
    check_hf_config(model);
    tt_model_free(model);
    overrides.rope.linear = true;
    overrides.rope.factor = 2.0;
    model = NULL;
    assert_fails(tt_model_new("llama3", "debugmodel", &overrides, NULL, &model), TT_EUSAGE,
                 "but the model has rope_type linear");
}

static void hf_configs_are_written_and_read_back(void **state)
{
    const struct tt_model_dims odd = {.norm_eps = 3e-7F, .rope = {.theta = 12345.5, .factor = 1.0}, .tied = 1};
    struct tt_model *model = NULL;

    for (int r = 0; r < tt_model_n_rows; r++) {
        for (int f = 0; f < tt_model_rows[r]->n_flavors; f++) {
            const char *name = tt_model_rows[r]->name, *flavor = tt_model_rows[r]->flavors[f].name;

            assert_int_equal(tt_model_new(name, flavor, NULL, NULL, &model), 0);
            check_hf_config(model);
            tt_model_free(model);
        }
    }
    model = make("debugmodel", &odd);
    check_hf_config(model);
    tt_model_free(model);
}

static void hf_configs_have_what_transformers_asks_for(void **state)
{
    struct tt_model *model = make("1B", NULL);
    json_t *config = tt_model_hf_config(model);
    char *text = tt_json_text(config);

    assert_non_null(strstr(text, "\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\""));
    assert_non_null(strstr(text, "\"torch_dtype\":\"float32\""));
    assert_non_null(strstr(text, "\"tie_word_embeddings\":true,\"bos_token_id\":null,\"eos_token_id\":null"));
    assert_non_null(strstr(text, "\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\""));
    assert_true(json_real_value(json_object_get(config, "rms_norm_eps")) == 1e-5);
    json_decref(config);
    tt_free(text);
    tt_model_free(model);
}

#define GPT2_CONFIG "{\"model_type\":\"gpt2\",\"n_embd\":64,\"n_layer\":1,\"n_head\":4,\"vocab_size\":300"

/* The published file has a null n_inner, dropout, and members for other tasks. What changes the numbers is refused. */
static void hf_config_of_gpt2(void **state)
{
    static const struct {
        const char *json, *message;
    } wanted[] = {
        {GPT2_CONFIG ",\"activation_function\":\"relu\"}", "activation_function 'relu' is not supported"},
        {GPT2_CONFIG ",\"scale_attn_weights\":false}", "scale_attn_weights false is not supported"},
        {GPT2_CONFIG ",\"scale_attn_by_inverse_layer_idx\":true}", "scale_attn_by_inverse_layer_idx true"},
        {GPT2_CONFIG ",\"add_cross_attention\":true}", "add_cross_attention true"},
        {GPT2_CONFIG ",\"n_positions\":0}", "n_positions must be a positive integer"},
    };
    struct tt_model *model = NULL;

    assert_int_equal(model_of_json("gpt2",
                                   GPT2_CONFIG
                                   ",\"n_inner\":null,\"n_ctx\":1024,\"n_positions\":512,\"attn_pdrop\":0.1,"
                                   "\"resid_pdrop\":0.1,\"embd_pdrop\":0.1,\"summary_type\":\"cls_index\"}",
                                   &model),
                     0);
    assert_true(model->dims.ffn_dim == 256 && model->dims.max_positions == 512 && model->dims.tied == 1);
    assert_true(model->dims.head_dim == 16 && model->dims.n_kv_heads == 4 && model->dims.norm_eps == 1e-5F);
    tt_model_free(model);
    model = NULL;
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        assert_fails(model_of_json("gpt2", wanted[i].json, &model), TT_EDATA, wanted[i].message);
    assert_null(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_and_flops_are_torchtitans),
        cmocka_unit_test(counts_of_published_models_are_those_of_transformers),
        cmocka_unit_test(flops_leave_out_learned_positions),
        cmocka_unit_test(flops_of_tied_and_causal),
        cmocka_unit_test(parameters_are_in_forward_order),
        cmocka_unit_test(hugging_face_names_and_transforms),
        cmocka_unit_test(init_has_torchtitans_moments),
        cmocka_unit_test(init_of_gpt2_and_qwen3),
        cmocka_unit_test(every_parameter_has_an_init_rule),
        cmocka_unit_test(init_bits_do_not_depend_on_the_split),
        cmocka_unit_test(init_differs_between_parameters),
        cmocka_unit_test(overrides_replace_the_flavors_dims),
        cmocka_unit_test(impossible_dims_are_refused),
        cmocka_unit_test(gpt2_refuses_what_it_does_not_have),
        cmocka_unit_test(unknown_names_list_the_choices),
        cmocka_unit_test(hf_config_of_transformers_5),
        cmocka_unit_test(hf_config_of_transformers_4),
        cmocka_unit_test(linear_and_dynamic_scaling_are_read),
        cmocka_unit_test(hf_configs_that_titan_cannot_build_are_refused),
        cmocka_unit_test(hf_config_of_gpt2),
        cmocka_unit_test(hf_configs_are_written_and_read_back),
        cmocka_unit_test(hf_configs_have_what_transformers_asks_for),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

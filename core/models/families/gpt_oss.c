/* SPDX-License-Identifier: MIT
 *
 * gpt-oss (OpenAI 2025): Llama's blocks with biases everywhere, attention with sinks (in every other layer limited to a
 * window), and experts in all layers. An expert's gate and factor alternate in one matrix, and both are clamped
 * (SWIGLU_CLAMPED). RoPE rotates halves, and the layout is the same as in Hugging Face's files, except that the
 * matrices of experts are transposed there. Parameters have torchtitan's names and init rules.
 */
#include <math.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define FLAVOR(text, d, l, v, x)                                                                                       \
    {.name = (text), .dims = {.dim = (d), .n_layers = (l), .n_heads = 64, .n_kv_heads = 8, .head_dim = 64,             \
                              .ffn_dim = 2880, .vocab_size = (v), .norm_eps = 1e-5F, .max_positions = 131072,          \
                              .rope = {.theta = 150000.0, .factor = 32.0, .original_max = 4096.0, .beta_fast = 32.0,   \
                                       .beta_slow = 1.0, .fractional = true},                                          \
                              .sliding_window = 128, .moe = {.experts = (x), .top_k = 4}}}

static const struct tt_flavor flavors[] = {
    /*     name          dim   layers vocab   experts */
    FLAVOR("debugmodel", 256,  4,     2048,   8),
    FLAVOR("20b",        2880, 24,    201088, 32),
    FLAVOR("120b",       2880, 36,    201088, 128),
};
/* clang-format on */

/* --- config.json --- */

static const struct tt_hf_class classes[] = {
    {.type = "gpt_oss",
     .architecture = "GptOssForCausalLM",
     .reads = "decoder experts num_experts num_local_experts experts_per_token swiglu_alpha swiglu_limit",
     .dims = {.dim = 2880,
              .n_layers = 36,
              .n_heads = 64,
              .n_kv_heads = 8,
              .head_dim = 64,
              .ffn_dim = 2880,
              .vocab_size = 201088,
              .norm_eps = 1e-5F,
              .rope = {.theta = 150000.0,
                       .factor = 32.0,
                       .original_max = 4096.0,
                       .beta_fast = 32.0,
                       .beta_slow = 1.0,
                       .fractional = true},
              .max_positions = 131072,
              .sliding_window = 128,
              .moe = {.experts = 128, .top_k = 4}},
     .window = {.absent = 128, .any = true}},
};

static const char *layer_type(int64_t layer)
{
    return layer % 2 == 0 ? "sliding_attention" : "full_attention";
}

/* If the key is absent, the layers have these types too. */
static int check_layer_types(const json_t *config, const char *where, int64_t layers)
{
    const json_t *types = json_object_get(config, "layer_types");

    if (!types || json_is_null(types))
        return 0;
    for (int64_t l = 0; l < layers; l++) {
        const char *type = json_string_value(json_array_get(types, (size_t)l));

        if (!type || strcmp(type, layer_type(l)) != 0)
            return tt_fail(TT_EDATA, "%s: layer_types[%lld] is '%s'; only '%s' is supported there", where, (long long)l,
                           type ? type : "(not a string)", layer_type(l));
    }
    return 0;
}

static int read_hf_config(const void *config, const char *where, struct tt_model_dims *d)
{
    static const struct tt_hf_key keys[] = {
        TT_HF_KEY("head_dim", NULL, SIZE, head_dim),
        TT_HF_KEY("sliding_window", NULL, SIZE, sliding_window),
        TT_HF_KEY("num_experts", "num_local_experts", SIZE, moe.experts),
        TT_HF_KEY("num_experts_per_tok", NULL, SIZE, moe.top_k),
    };
    int rc = 0;

    TT_TRY(tt_hf_must_be_activation(config, "hidden_act", TT_ACTIVATION_SILU, where));
    TT_TRY(tt_hf_must_be_flag(config, "attention_bias", true, where));
    TT_TRY(tt_hf_must_equal(config, "swiglu_alpha", 1.702, where));
    TT_TRY(tt_hf_must_equal(config, "swiglu_limit", 7.0, where));
    TT_TRY(tt_hf_router_logits(config, where));
    TT_TRY(tt_hf_sizes(config, where, d));
    TT_TRY(tt_hf_read(config, keys, sizeof keys / sizeof *keys, where, d));
    TT_TRY(tt_hf_must_equal(config, "experts_per_token", (double)d->moe.top_k, where)); /* key in the first files */
    TT_TRY(check_layer_types(config, where, d->n_layers));
out:
    return rc;
}

static void write_hf_config(const struct tt_model *model, void *config)
{
    const struct tt_model_dims *d = &model->dims;
    json_t *types = json_array();

    for (int64_t l = 0; l < d->n_layers; l++)
        (void)json_array_append_new(types, json_string(layer_type(l)));
    if (d->rope.factor == 0.0) /* the class uses YaRN if nothing is said */
        (void)json_object_set_new(config, "rope_scaling", json_pack("{s:s}", "rope_type", "default"));
    (void)json_object_update_new(
        config, json_pack("{s:b, s:I, s:I, s:I, s:o, s:o, s:o, s:b}", "attention_bias", true, "num_local_experts",
                          (json_int_t)d->moe.experts, "num_experts_per_tok", (json_int_t)d->moe.top_k,
                          "experts_per_token", (json_int_t)d->moe.top_k, "layer_types", types, "swiglu_alpha",
                          tt_json_number(1.702), "swiglu_limit", tt_json_number(7.0), "output_router_logits", false));
}

/* --- parameters --- */

/* Elements have the type of the weights beside them. */
static void set_normal(struct tt_param *p, double depth)
{
    p->init = TT_PARAM_NORMAL;
    p->std = TT_INIT_STD / depth;
    p->cut = 2.0;
    p->depth = depth;
}

/* The layer `name`: a weight (rows, columns) and a bias. */
static void add_affine(struct tt_model *m, int l, const char *name, const char *hf_name, int64_t rows, int64_t columns,
                       double depth)
{
    set_normal(
        tt_params_linear(m, l, name, hf_name, rows, columns, (struct tt_normal){.cut = 2.0, .depth = depth}, true) + 1,
        depth);
}

/* A matrix (rows, columns) and a bias for each expert. */
static void add_expert_layer(struct tt_model *m, int l, const char *name, const char *hf_name, int64_t rows,
                             int64_t columns, double depth)
{
    struct tt_normal normal = {.cut = 2.0, .depth = depth};
    char *weight = tt_format("moe.experts.%s_weight", name), *bias = tt_format("moe.experts.%s_bias", name);
    char *hf_weight = tt_format("mlp.experts.%s", hf_name), *hf_bias = tt_format("mlp.experts.%s_bias", hf_name);

    tt_params_experts(m, l, weight, hf_weight, m->dims.moe.experts, rows, columns, normal)->hf_transform =
        TT_HF_EXPERTS_TRANSPOSE;
    tt_params_matrix(m, l, bias, hf_bias, m->dims.moe.experts, rows, normal)->of_experts = true;
    tt_free(weight);
    tt_free(bias);
    tt_free(hf_weight);
    tt_free(hf_bias);
}

static void add_block(struct tt_model *m, int l)
{
    const struct tt_model_dims *d = &m->dims;
    double deep = sqrt(2.0 * (l + 1.0));
    int64_t q = d->n_heads * d->head_dim, kv = d->n_kv_heads * d->head_dim;

    tt_params_norm(m, l, "attention_norm", "input_layernorm", d->dim);
    add_affine(m, l, "attention.wq", "self_attn.q_proj", q, d->dim, deep);
    add_affine(m, l, "attention.wk", "self_attn.k_proj", kv, d->dim, deep);
    add_affine(m, l, "attention.wv", "self_attn.v_proj", kv, d->dim, deep);
    set_normal(tt_params_vector(m, l, "attention.sinks", "self_attn.sinks", d->n_heads, TT_PARAM_NORMAL), deep);
    add_affine(m, l, "attention.wo", "self_attn.o_proj", d->dim, q, deep);
    tt_params_norm(m, l, "ffn_norm", "post_attention_layernorm", d->dim);
    (void)tt_params_linear(m, l, "moe.router.gate", "mlp.router", d->moe.experts, d->dim,
                           (struct tt_normal){.cut = 2.0, .depth = deep}, true);
    if (d->moe.biased)
        (void)tt_params_buffer(m, l, "moe.expert_bias", NULL, d->moe.experts);
    add_expert_layer(m, l, "mlp1", "gate_up_proj", 2 * d->moe.ffn_dim, d->dim, deep);
    add_expert_layer(m, l, "mlp2", "down_proj", d->dim, d->moe.ffn_dim, deep);
}

/* --- the graph --- */

static int attention(struct tt_build *b, int layer, int x)
{
    const struct tt_model_dims *d = &b->model->dims;
    int qkv[3];

    qkv[0] = tt_build_affine(b, "attention.q", "attention.wq", x);
    qkv[1] = tt_build_affine(b, "attention.k", "attention.wk", x);
    qkv[2] = tt_build_affine(b, "attention.v", "attention.wv", x);
    qkv[0] = tt_build_rope(b, "attention.q_rope", qkv[0], d->n_heads, true);
    qkv[1] = tt_build_rope(b, "attention.k_rope", qkv[1], d->n_kv_heads, true);
    x = tt_build_attention(b, "attention.heads", qkv, tt_build_param(b, "attention", "sinks"),
                           tt_model_is_windowed(d, layer) ? d->sliding_window : 0);
    return tt_build_affine(b, "attention.out", "attention.wo", x);
}

/* The rows of each expert times its matrix, plus its bias. */
static int expert_layer(struct tt_build *b, const char *name, const char *weight, const char *bias, int rows, int ends,
                        const struct tt_attr *attr)
{
    char *product = tt_format("%s.product", name);
    int in[3] = {rows, tt_build_param(b, "moe.experts", weight), ends};

    tt_build_node(b, TT_OP_EXPERTS, product, in, 3, attr, 1, &in[0]);
    in[1] = tt_build_param(b, "moe.experts", bias);
    tt_build_node(b, TT_OP_EXPERTS_BIAS, name, in, 3, attr, 1, &in[0]);
    tt_free(product);
    return in[0];
}

static int expert(struct tt_build *b, int rows, int ends, const struct tt_attr *attr)
{
    rows = expert_layer(b, "moe.gate_up", "mlp1_weight", "mlp1_bias", rows, ends, attr);
    tt_build_node(b, TT_OP_SWIGLU_CLAMPED, "moe.hidden", &rows, 1, NULL, 1, &rows);
    return expert_layer(b, "moe.down", "mlp2_weight", "mlp2_bias", rows, ends, attr);
}

/* A softmax over the logits of a token's experts equals a softmax over all logits, divided by the sum over these
 * experts. */
static int feed_forward(struct tt_build *b, int layer, int x)
{
    (void)layer;
    return tt_build_experts(b, x, true, expert);
}

static const struct tt_gguf_size sizes[] = {TT_GGUF_DECODER, TT_GGUF_EXPERTS, TT_GGUF_EXPERT_WIDTH,
                                            TT_GGUF_SIZE("attention.sliding_window", INT, sliding_window, false)};
static const struct tt_gguf_arch archs[] = {{.name = "gpt-oss",
                                             .size = sizes,
                                             .n_sizes = TT_COUNT(sizes),
                                             .experts = true,
                                             .exact_yarn = true,
                                             .own_head = true,
                                             .window_period = 2,
                                             .needs_window = true,
                                             .ffn_is_expert = true}};
static const struct tt_gguf_name names[] = {
    {.ours = "ffn_norm.weight", .theirs = "post_attention_norm.weight"},
    {.ours = "moe.experts.mlp1_weight", .theirs = "ffn_gate_exps.weight", .layout = TT_GGUF_EVEN},
    {.ours = "moe.experts.mlp1_weight", .theirs = "ffn_up_exps.weight", .layout = TT_GGUF_ODD},
    {.ours = "moe.experts.mlp1_bias", .theirs = "ffn_gate_exps.bias", .layout = TT_GGUF_EVEN},
    {.ours = "moe.experts.mlp1_bias", .theirs = "ffn_up_exps.bias", .layout = TT_GGUF_ODD},
    {.ours = "moe.experts.mlp2_weight", .theirs = "ffn_down_exps.weight"},
    {.ours = "moe.experts.mlp2_bias", .theirs = "ffn_down_exps.bias"},
};

static const struct tt_model_parts parts = {add_block, attention, feed_forward};

const struct tt_model_row tt_model_gpt_oss = {
    .name = "gpt_oss",
    TT_MODEL_TABLES,
    .gguf_names = names,
    .n_gguf_names = TT_COUNT(names),
    TT_MODEL_LLAMA_NAMES,
    .undivided = true,
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .parts = &parts,
};

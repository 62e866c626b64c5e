/* SPDX-License-Identifier: MIT
 *
 * Llama 3: pre-norm blocks of grouped-query attention with RoPE and a SwiGLU feed-forward. Parameters are named as in
 * torchtitan, initialised by its rules, and mapped to Hugging Face's names (where q and k rows are permuted: their RoPE
 * rotates the halves of a head, ours neighbouring pairs).
 */
#include <math.h>

#include "core/base/mem.h"
#include "core/models/build.h"
#include "core/models/hf_config.h"
#include "core/models/rows.h"

/* clang-format off */
#define LLAMA_3_1_ROPE                                                                                                 \
    {.theta = 500000.0, .factor = 8.0, .low_freq_factor = 1.0, .high_freq_factor = 4.0, .original_max = 8192.0}
#define FLAVOR(text, d, l, h, k, f, v, t)                                                                              \
    {.name = (text), .dims = {.dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .ffn_dim = (f),          \
                              .vocab_size = (v), .norm_eps = 1e-5F, .rope = LLAMA_3_1_ROPE,                         \
                              .max_positions = 131072, .tied = (t)}}

/* head_dim 0: dim / heads; kv 0: as many as heads. Both follow an override of what they come from. */
static const struct tt_flavor flavors[] = {
    /*     name          dim    layers heads kv  ffn    vocab  tied */
    FLAVOR("debugmodel", 256,   6,     16,   0,  768,   2048,   0),
    FLAVOR("125M",       768,   12,    12,   4,  2048,  32000,  0),
    FLAVOR("1B",         2048,  16,    32,   8,  8192,  128256, 1),
    FLAVOR("3B",         3072,  28,    24,   8,  8192,  128256, 1),
    FLAVOR("8B",         4096,  32,    32,   8,  14336, 128256, 0),
    FLAVOR("70B",        8192,  80,    64,   8,  28672, 128256, 0),
    FLAVOR("405B",       16384, 126,   128,  8,  53248, 128256, 0),
};
/* clang-format on */

static int read_hf_config(const void *config, const char *where, struct tt_model_dims *ret_dims)
{
    struct tt_model_dims d = {0};
    double eps = 0.0;
    bool tied = false;
    int rc = 0;

    TT_TRY(tt_hf_check_common(config, where));
    TT_TRY(tt_hf_must_be(config, "hidden_act", "silu", where));
    TT_TRY(tt_hf_must_be_off(config, "attention_bias", where));
    TT_TRY(tt_hf_must_be_off(config, "mlp_bias", where));
    TT_TRY(tt_hf_int(config, "hidden_size", -1, where, &d.dim));
    TT_TRY(tt_hf_int(config, "num_hidden_layers", -1, where, &d.n_layers));
    TT_TRY(tt_hf_int(config, "num_attention_heads", -1, where, &d.n_heads));
    TT_TRY(tt_hf_int(config, "num_key_value_heads", 0, where, &d.n_kv_heads));
    TT_TRY(tt_hf_int(config, "head_dim", 0, where, &d.head_dim));
    TT_TRY(tt_hf_int(config, "intermediate_size", -1, where, &d.ffn_dim));
    TT_TRY(tt_hf_int(config, "vocab_size", -1, where, &d.vocab_size));
    TT_TRY(tt_hf_real(config, "rms_norm_eps", 1e-6, where, &eps));
    TT_TRY(tt_hf_bool(config, "tie_word_embeddings", false, where, &tied));
    TT_TRY(tt_hf_rope(config, 10000.0, where, &d.rope));
    TT_TRY(tt_hf_int(config, "max_position_embeddings", 0, where, &d.max_positions));
    d.norm_eps = (float)eps;
    d.tied = tied;
    *ret_dims = d;
out:
    return rc;
}

static void *write_hf_config(const struct tt_model *model)
{
    json_t *config = tt_hf_config_new(model, "LlamaForCausalLM");

    tt_hf_config_decoder(config, model);
    (void)json_object_set_new(config, "mlp_bias", json_false());
    return config;
}

/* Room for all parameters is made beforehand; this returns the next one, with its names in block `block`. */
static struct tt_param *next_param(struct tt_model *model, int block, const char *name, const char *hf_name)
{
    struct tt_param *p = &model->params[model->n_params++];

    p->block = block;
    if (block < 0) {
        p->name = tt_format("%s.weight", name);
        p->hf_name = tt_format("%s.weight", hf_name);
    } else {
        p->name = tt_format("layers.%d.%s.weight", block, name);
        p->hf_name = tt_format("model.layers.%d.%s.weight", block, hf_name);
    }
    return p;
}

static void add_norm(struct tt_model *model, int block, const char *name, const char *hf_name)
{
    struct tt_param *p = next_param(model, block, name, hf_name);

    p->ndim = 1;
    p->shape[0] = model->dims.dim;
    p->init = TT_PARAM_ONES;
}

static struct tt_param *add_matrix(struct tt_model *model, int block, const char *name, const char *hf_name,
                                   int64_t rows, int64_t columns, double std, double cut)
{
    struct tt_param *p = next_param(model, block, name, hf_name);

    p->ndim = 2;
    p->shape[0] = rows;
    p->shape[1] = columns;
    p->init = TT_PARAM_NORMAL;
    p->std = std;
    p->cut = cut;
    return p;
}

/* The rows of q and k are permuted inside each head in Hugging Face's files. */
static void add_rotated(struct tt_model *model, int block, const char *name, const char *hf_name, int64_t heads)
{
    const struct tt_model_dims *d = &model->dims;
    struct tt_param *p = add_matrix(model, block, name, hf_name, heads * d->head_dim, d->dim, 0.02, 2.0);

    p->hf_transform = TT_HF_ROPE_PAIRS;
    p->hf_heads = (int)heads;
}

static void add_block_params(struct tt_model *m, int l)
{
    const struct tt_model_dims *d = &m->dims;
    int64_t q_width = d->n_heads * d->head_dim, kv_width = d->n_kv_heads * d->head_dim;
    double std = 0.02, cut = 2.0;              /* the cut is absolute, so it never acts */
    double deep = std / sqrt(2.0 * (l + 1.0)); /* what is added to the residual starts smaller the deeper it is */

    add_norm(m, l, "attention_norm", "input_layernorm");
    add_rotated(m, l, "attention.wq", "self_attn.q_proj", d->n_heads);
    add_rotated(m, l, "attention.wk", "self_attn.k_proj", d->n_kv_heads);
    (void)add_matrix(m, l, "attention.wv", "self_attn.v_proj", kv_width, d->dim, std, cut);
    (void)add_matrix(m, l, "attention.wo", "self_attn.o_proj", d->dim, q_width, deep, cut);
    add_norm(m, l, "ffn_norm", "post_attention_layernorm");
    (void)add_matrix(m, l, "feed_forward.w1", "mlp.gate_proj", d->ffn_dim, d->dim, std, cut);
    (void)add_matrix(m, l, "feed_forward.w3", "mlp.up_proj", d->ffn_dim, d->dim, deep, cut);
    (void)add_matrix(m, l, "feed_forward.w2", "mlp.down_proj", d->dim, d->ffn_dim, deep, cut);
}

static void add_params(struct tt_model *model)
{
    enum { PER_BLOCK = 9, OUTSIDE = 3 };
    const struct tt_model_dims *d = &model->dims;
    double head_std = 1.0 / sqrt((double)d->dim), head_cut = 3.0 * head_std;
    bool tied = d->tied != 0;

    model->params = tt_calloc((size_t)(PER_BLOCK * d->n_layers + OUTSIDE), sizeof *model->params);
    (void)add_matrix(model, TT_BLOCK_EMBEDDINGS, "tok_embeddings", "model.embed_tokens", d->vocab_size, d->dim,
                     tied ? head_std : 1.0, tied ? head_cut : 0.0);
    for (int l = 0; l < d->n_layers; l++)
        add_block_params(model, l);
    add_norm(model, TT_BLOCK_HEAD, "norm", "model.norm");
    if (!tied)
        (void)add_matrix(model, TT_BLOCK_HEAD, "output", "lm_head", d->vocab_size, d->dim, head_std, head_cut);
}

static int attention(struct tt_build *b, int x)
{
    const struct tt_model_dims *d = &b->model->dims;
    int q = tt_build_linear(b, "attention.q", "attention.wq", x);
    int k = tt_build_linear(b, "attention.k", "attention.wk", x);
    int v = tt_build_linear(b, "attention.v", "attention.wv", x);
    int heads;

    q = tt_build_rope(b, "attention.q_rope", q, d->n_heads);
    k = tt_build_rope(b, "attention.k_rope", k, d->n_kv_heads);
    heads = tt_build_attention(b, "attention.heads", q, k, v);
    return tt_build_linear(b, "attention.out", "attention.wo", heads);
}

static int feed_forward(struct tt_build *b, int x)
{
    int gate = tt_build_linear(b, "feed_forward.gate", "feed_forward.w1", x);
    int up = tt_build_linear(b, "feed_forward.up", "feed_forward.w3", x);
    int hidden = tt_build_swiglu(b, "feed_forward.hidden", gate, up);

    return tt_build_linear(b, "feed_forward.out", "feed_forward.w2", hidden);
}

static void build(const struct tt_model *model, int64_t batch, int64_t seq_len, struct tt_graph *graph)
{
    struct tt_build b;
    int x;

    tt_build_begin(&b, model, batch, seq_len, graph);
    x = tt_build_embedding(&b, "embeddings", "tok_embeddings");
    for (int l = 0; l < model->dims.n_layers; l++) {
        tt_build_block(&b, l);
        x = tt_build_add(&b, "attention_residual", x, attention(&b, tt_build_rmsnorm(&b, "attention_norm", x)));
        x = tt_build_add(&b, "out", x, feed_forward(&b, tt_build_rmsnorm(&b, "ffn_norm", x)));
    }
    tt_build_block(&b, TT_NONE);
    x = tt_build_rmsnorm(&b, "norm", x);
    tt_build_head_loss(&b, model->dims.tied ? "tok_embeddings" : "output", x);
}

const struct tt_model_row tt_model_llama3 = {
    .name = "llama3",
    .flavors = flavors,
    .n_flavors = (int)(sizeof flavors / sizeof *flavors),
    .hf_model_type = "llama",
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .add_params = add_params,
    .build = build,
};

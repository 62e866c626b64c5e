/* SPDX-License-Identifier: MIT
 *
 * GPT-2 (Radford et al. 2019): pre-norm blocks with LayerNorm, biases everywhere, GELU in its tanh form, learned
 * positions and a head that is the token embedding. torchtitan has no such model, so the parameters are named in its
 * style. Hugging Face's files keep matrices as [in, out] and q, k, v in one tensor, c_attn.
 *
 * The initialization is the original's: normal 0.02, divided by sqrt(2 L) for layers that add to the residual, and 0.01
 * for positions.
 */
#include <math.h>

#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define FLAVOR(text, d, l, h, v, p)                                                                                    \
    {.name = (text), .dims = {.dim = (d), .n_layers = (l), .n_heads = (h), .ffn_dim = INT64_C(4) * (d),                \
                              .vocab_size = (v), .norm_eps = 1e-5F, .max_positions = (p), .tied = 1}}

static const struct tt_flavor flavors[] = {
    /*     name          dim   layers heads vocab  positions */
    FLAVOR("debugmodel", 256,  6,     16,   2048,  2048),
    FLAVOR("124M",       768,  12,    12,   50257, 1024),
    FLAVOR("355M",       1024, 24,    16,   50257, 1024),
    FLAVOR("774M",       1280, 36,    20,   50257, 1024),
    FLAVOR("1558M",      1600, 48,    25,   50257, 1024),
};
/* clang-format on */

static const struct tt_hf_class classes[] = {
    {.type = "gpt2",
     .architecture = "GPT2LMHeadModel",
     .reads = "gpt2",
     .dims = {.dim = 768,
              .n_layers = 12,
              .n_heads = 12,
              .vocab_size = 50257,
              .norm_eps = 1e-5F,
              .max_positions = 1024,
              .tied = 1}},
};

static int read_hf_config(const void *config, const char *where, struct tt_model_dims *d)
{
    static const struct tt_hf_key keys[] = {
        TT_HF_KEY("n_embd", "hidden_size", SIZE, dim),
        TT_HF_KEY("n_layer", "num_hidden_layers", SIZE, n_layers),
        TT_HF_KEY("n_head", "num_attention_heads", SIZE, n_heads),
        TT_HF_KEY("n_positions", "max_position_embeddings", SIZE, max_positions),
        TT_HF_KEY("n_inner", NULL, SIZE, ffn_dim),
        TT_HF_KEY("vocab_size", NULL, SIZE, vocab_size),
        TT_HF_KEY("layer_norm_epsilon", NULL, FLOAT, norm_eps),
        TT_HF_KEY("tie_word_embeddings", NULL, TIED, tied),
    };
    static const char *const dropout[] = {"attn_pdrop", "embd_pdrop", "resid_pdrop", NULL};
    int rc = 0;

    TT_TRY(tt_hf_must_be_activation(config, "activation_function", TT_ACTIVATION_GELU_TANH, where));
    TT_TRY(tt_hf_must_be_flag(config, "scale_attn_by_inverse_layer_idx", false, where));
    TT_TRY(tt_hf_must_be_flag(config, "add_cross_attention", false, where));
    TT_TRY(tt_hf_must_be_flag(config, "scale_attn_weights", true, where));
    TT_TRY(tt_hf_note_dropout(config, dropout, where));
    TT_TRY(tt_hf_read(config, keys, sizeof keys / sizeof *keys, where, d));
    d->ffn_dim = d->ffn_dim ? d->ffn_dim : 4 * d->dim;
out:
    return rc;
}

static void write_hf_config(const struct tt_model *model, void *config)
{
    const struct tt_model_dims *d = &model->dims;

    (void)json_object_update_new(config, json_pack("{s:I, s:I, s:I, s:I, s:I, s:s, s:o, s:f, s:f, s:f}", "n_embd",
                                                   (json_int_t)d->dim, "n_layer", (json_int_t)d->n_layers, "n_head",
                                                   (json_int_t)d->n_heads, "n_inner", (json_int_t)d->ffn_dim,
                                                   "n_positions", (json_int_t)d->max_positions, "activation_function",
                                                   "gelu_new", "layer_norm_epsilon", tt_hf_float(d->norm_eps),
                                                   "attn_pdrop", 0.0, "embd_pdrop", 0.0, "resid_pdrop", 0.0));
}

/* The place of our layer in a tensor of theirs: all of it, or part `part` of three. */
struct place {
    const char *hf_name;
    int part, parts;
};

/* A layer `name` with weight (rows, columns), which tensor parallelism cuts as `tp` says, and bias (rows). */
static void add_affine(struct tt_model *m, int l, const char *name, struct place place, int64_t rows, int64_t columns,
                       double depth, enum tt_param_tp tp)
{
    struct tt_param *p =
        tt_params_linear(m, l, name, place.hf_name, rows, columns, (struct tt_normal){.depth = depth}, true);

    p[0].hf_transform = TT_HF_TRANSPOSE;
    p[0].tp = tp;
    p[1].tp = tp == TT_TP_ROWS ? tp : TT_TP_WHOLE;
    for (int i = 0; i < 2; i++) {
        p[i].hf_part = place.part;
        p[i].hf_parts = place.parts;
        p[i].hf_row = place.part * rows;
        p[i].hf_rows = place.parts * rows;
    }
}

static void add_block(struct tt_model *m, int l)
{
    const struct tt_model_dims *d = &m->dims;
    double deep = sqrt(2.0 * (double)d->n_layers); /* divides the weights of layers that add to the residual */

    tt_params_norm(m, l, "attention_norm", "ln_1", d->dim);
    add_affine(m, l, "attention.wq", (struct place){"attn.c_attn", 0, 3}, d->dim, d->dim, 1.0, TT_TP_ROWS);
    add_affine(m, l, "attention.wk", (struct place){"attn.c_attn", 1, 3}, d->dim, d->dim, 1.0, TT_TP_ROWS);
    add_affine(m, l, "attention.wv", (struct place){"attn.c_attn", 2, 3}, d->dim, d->dim, 1.0, TT_TP_ROWS);
    add_affine(m, l, "attention.wo", (struct place){"attn.c_proj", 0, 1}, d->dim, d->dim, deep, TT_TP_COLUMNS);
    tt_params_norm(m, l, "ffn_norm", "ln_2", d->dim);
    add_affine(m, l, "feed_forward.w1", (struct place){"mlp.c_fc", 0, 1}, d->ffn_dim, d->dim, 1.0, TT_TP_ROWS);
    add_affine(m, l, "feed_forward.w2", (struct place){"mlp.c_proj", 0, 1}, d->dim, d->ffn_dim, deep, TT_TP_COLUMNS);
}

static int attention(struct tt_build *b, int layer, int x)
{
    int qkv[3] = {tt_build_affine(b, "attention.q", "attention.wq", x),
                  tt_build_affine(b, "attention.k", "attention.wk", x),
                  tt_build_affine(b, "attention.v", "attention.wv", x)};

    (void)layer;
    return tt_build_affine(b, "attention.out", "attention.wo",
                           tt_build_attention(b, "attention.heads", qkv, TT_NONE, 0));
}

static int feed_forward(struct tt_build *b, int layer, int x)
{
    int hidden = tt_build_affine(b, "feed_forward.in", "feed_forward.w1", x);

    (void)layer;
    tt_build_node(b, TT_OP_GELU, "feed_forward.hidden", &hidden, 1, NULL, 1, &hidden);
    return tt_build_affine(b, "feed_forward.out", "feed_forward.w2", hidden);
}

static const struct tt_gguf_size sizes[] = {TT_GGUF_BLOCKS,
                                            TT_GGUF_SIZE("attention.layer_norm_epsilon", FLOAT, norm_eps, false)};
static const struct tt_gguf_arch archs[] = {{.name = "gpt2", .size = sizes, .n_sizes = TT_COUNT(sizes)}};
static const struct tt_gguf_name names[] = {
    {.ours = "attention.wq.weight", .theirs = "attn_qkv.weight", .part = 0, .parts = 3},
    {.ours = "attention.wk.weight", .theirs = "attn_qkv.weight", .part = 1, .parts = 3},
    {.ours = "attention.wv.weight", .theirs = "attn_qkv.weight", .part = 2, .parts = 3},
    {.ours = "attention.wq.bias", .theirs = "attn_qkv.bias", .part = 0, .parts = 3},
    {.ours = "attention.wk.bias", .theirs = "attn_qkv.bias", .part = 1, .parts = 3},
    {.ours = "attention.wv.bias", .theirs = "attn_qkv.bias", .part = 2, .parts = 3},
    {.ours = "feed_forward.w1.weight", .theirs = "ffn_up.weight"},
    {.ours = "feed_forward.w1.bias", .theirs = "ffn_up.bias"},
    {.ours = "feed_forward.w2.weight", .theirs = "ffn_down.weight"},
    {.ours = "feed_forward.w2.bias", .theirs = "ffn_down.bias"},
};

static const struct tt_model_parts parts = {add_block, attention, feed_forward};

const struct tt_model_row tt_model_gpt2 = {
    .name = "gpt2",
    TT_MODEL_TABLES,
    .gguf_names = names,
    .n_gguf_names = TT_COUNT(names),
    .hf_blocks = "transformer.h.",
    .hf_prefix = "transformer.",
    .hf_embeddings = "transformer.wte.weight",
    .hf_norm = "transformer.ln_f",
    .norm = TT_NORM_LAYER,
    .learned_positions = true,
    .plain_embeddings = true,
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .parts = &parts,
};

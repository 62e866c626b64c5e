/* SPDX-License-Identifier: MIT
 *
 * GPT-NeoX (Black et al. 2022) and Pythia: blocks whose attention and feed-forward read the same x, each through its
 * own LayerNorm; or, as the configuration says, one after the other. Biases everywhere, GELU in its exact form, RoPE in
 * the first part of each head, which rotates halves. In Hugging Face's files q, k and v are one tensor, which holds the
 * rows of one head after another. torchtitan has no such model; parameters have its names and init rules, and biases
 * begin as zeros.
 */
#include "core/base/error.h"
#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define FLAVOR(text, d, l, h, v, tanh)                                                                                 \
    {.name = (text), .dims = {.dim = (d), .n_layers = (l), .n_heads = (h), .rotary_dim = (d) / (h) / 4,                \
                              .ffn_dim = INT64_C(4) * (d), .vocab_size = (v), .norm_eps = 1e-5F,                       \
                              .rope = {.theta = 10000.0}, .max_positions = 2048, .parallel = true,                     \
                              .tanh_gelu = (tanh), .qkv_bias = true, .out_bias = true, .mlp_bias = true}}

static const struct tt_flavor flavors[] = {
    /*     name          dim   layers heads vocab  GELU's tanh form */
    FLAVOR("debugmodel", 256,  6,     8,    2048,  false),
    FLAVOR("70m",        512,  6,     8,    50304, false),
    FLAVOR("160m",       768,  12,    12,   50304, false),
    FLAVOR("410m",       1024, 24,    16,   50304, false),
    FLAVOR("1b",         2048, 16,    8,    50304, false),
    FLAVOR("1.4b",       2048, 24,    16,   50304, false),
    FLAVOR("2.8b",       2560, 32,    32,   50304, false),
    FLAVOR("6.9b",       4096, 32,    32,   50432, false),
    FLAVOR("12b",        5120, 36,    40,   50688, false),
    FLAVOR("20b",        6144, 44,    64,   50432, true),
};
/* clang-format on */

static const struct tt_hf_class classes[] = {
    {.type = "gpt_neox",
     .architecture = "GPTNeoXForCausalLM",
     .reads = "decoder dropout layer_norm_eps rotary_pct rotary_emb_base use_parallel_residual",
     .eps = "layer_norm_eps",
     .theta_key = "rotary_emb_base",
     .rotated_key = "rotary_pct",
     .rotated = 0.25,
     .attention_bias = TT_HF_BIAS_ALL,
     .dims = {.dim = 6144,
              .n_layers = 44,
              .n_heads = 64,
              .ffn_dim = 24576,
              .vocab_size = 50432,
              .norm_eps = 1e-5F,
              .rope = {.theta = 10000.0},
              .max_positions = 2048,
              .parallel = true,
              .qkv_bias = true,
              .out_bias = true,
              .mlp_bias = true}},
};

static int read_hf_config(const void *config, const char *where, struct tt_model_dims *d)
{
    return tt_hf_bool(config, "use_parallel_residual", d->parallel, where, &d->parallel);
}

static void write_hf_config(const struct tt_model *model, void *config)
{
    const struct tt_model_dims *d = &model->dims;

    (void)json_object_update_new(config,
                                 json_pack("{s:b, s:f, s:o, s:o}", "use_parallel_residual", d->parallel,
                                           "hidden_dropout", 0.0, "rotary_emb_base", tt_json_number(d->rope.theta),
                                           "rotary_pct", tt_json_number(tt_hf_rotated(d))));
}

static const struct tt_decoder decoder = {.rotate_half = true,
                                          .heads_in_turn = true,
                                          .activation = TT_ACTIVATION_GELU,
                                          .hf_heads = {"attention.query_key_value", "attention.query_key_value",
                                                       "attention.query_key_value", "attention.dense"},
                                          .hf_ffn = {"mlp.dense_h_to_4h", "mlp.dense_4h_to_h"}};

static const struct tt_gguf_size sizes[] = {TT_GGUF_LAYER_NORM,
                                            TT_GGUF_SIZE("use_parallel_residual", BOOL, parallel, false)};
static const struct tt_gguf_arch archs[] = {{.name = "gptneox",
                                             .size = sizes,
                                             .n_sizes = TT_COUNT(sizes),
                                             .biases = TT_GGUF_ALL_BIASES,
                                             .part_rotated = true,
                                             .own_head = true,
                                             .full_heads = true,
                                             .equal_heads = true,
                                             .tanh_gelu = true}};
static const struct tt_gguf_name names[] = {
    {.ours = "attention.wq.weight", .theirs = "attn_qkv.weight", .parts = 3},
    {.ours = "attention.wq.bias", .theirs = "attn_qkv.bias", .parts = 3},
    {.ours = "attention.wk.weight", .theirs = "attn_qkv.weight", .part = 1, .parts = 3},
    {.ours = "attention.wk.bias", .theirs = "attn_qkv.bias", .part = 1, .parts = 3},
    {.ours = "attention.wv.weight", .theirs = "attn_qkv.weight", .part = 2, .parts = 3},
    {.ours = "attention.wv.bias", .theirs = "attn_qkv.bias", .part = 2, .parts = 3},
    {.ours = "feed_forward.w1.weight", .theirs = "ffn_up.weight"},
    {.ours = "feed_forward.w1.bias", .theirs = "ffn_up.bias"},
};

const struct tt_model_row tt_model_gpt_neox = {
    .name = "gpt_neox",
    TT_MODEL_TABLES,
    .gguf_names = names,
    .n_gguf_names = TT_COUNT(names),
    .hf_blocks = "gpt_neox.layers.",
    .hf_embeddings = "gpt_neox.embed_in.weight",
    .hf_norm = "gpt_neox.final_layer_norm",
    .hf_head = "embed_out.weight",
    .norm = TT_NORM_LAYER,
    .decoder = &decoder,
    .parts = &tt_decoder_parts,
    .adaptable = true,
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
};

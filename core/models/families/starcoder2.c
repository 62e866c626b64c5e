/* SPDX-License-Identifier: MIT
 *
 * StarCoder2 (Lozhkov et al. 2024): Llama's blocks with LayerNorms, biases everywhere, which the configuration may
 * turn off, and a feed-forward of two layers with GELU in its tanh form. RoPE rotates halves and the layout is that of
 * Hugging Face's files. torchtitan has no such model; parameters have its names and init rules, and biases begin as
 * zeros.
 */
#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define FLAVOR(text, d, l, h, k, f, v, base, p, window)                                                                \
    {.name = (text), .dims = {.dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .ffn_dim = (f),          \
                              .vocab_size = (v), .norm_eps = 1e-5F, .rope = {.theta = (base)}, .max_positions = (p),   \
                              .tied = 1, .sliding_window = (window), .window_from = 1,                                 \
                              .qkv_bias = true, .out_bias = true, .mlp_bias = true}}

static const struct tt_flavor flavors[] = {
    /*     name          dim   layers heads kv ffn    vocab  theta              positions window */
    FLAVOR("debugmodel", 256,  6,     16,   4, 1024,  2048,  10000.0,           4096,     1024),
    FLAVOR("3B",         3072, 30,    24,   2, 12288, 49152, 999999.4420358813, 16384,    4096),
    FLAVOR("7B",         4608, 32,    36,   4, 18432, 49152, 1000000.0,         16384,    4096),
    FLAVOR("15B",        6144, 40,    48,   4, 24576, 49152, 100000.0,          16384,    4096),
};
/* clang-format on */

static const struct tt_hf_class classes[] = {
    {.type = "starcoder2",
     .architecture = "Starcoder2ForCausalLM",
     .reads = "decoder dropout use_bias norm_epsilon",
     .eps = "norm_epsilon",
     .dims = {.dim = 3072,
              .n_layers = 30,
              .n_heads = 24,
              .n_kv_heads = 2,
              .ffn_dim = 12288,
              .vocab_size = 49152,
              .norm_eps = 1e-5F,
              .rope = {.theta = 10000.0},
              .max_positions = 4096,
              .tied = 1},
     .window = {.any = true}},
};

static int read_hf_config(const void *config, const char *where, struct tt_model_dims *d)
{
    bool bias = true;
    int rc = tt_hf_bool(config, "use_bias", bias, where, &bias);

    d->qkv_bias = d->out_bias = d->mlp_bias = bias;
    return rc;
}

static void write_hf_config(const struct tt_model *model, void *config)
{
    (void)json_object_update_new(config, json_pack("{s:b, s:f, s:f}", "use_bias", model->dims.mlp_bias,
                                                   "residual_dropout", 0.0, "embedding_dropout", 0.0));
    (void)json_object_del(config, "attention_bias");
}

static const struct tt_decoder decoder = {
    .rotate_half = true, .activation = TT_ACTIVATION_GELU_TANH, .hf_ffn = {"mlp.c_fc", "mlp.c_proj"}};

static const struct tt_gguf_size sizes[] = {TT_GGUF_LAYER_NORM, TT_GGUF_WINDOW};
static const struct tt_gguf_arch archs[] = {{.name = "starcoder2",
                                             .size = sizes,
                                             .n_sizes = TT_COUNT(sizes),
                                             .biases = TT_GGUF_ALL_BIASES,
                                             .full_heads = true}};
static const struct tt_gguf_name names[] = {
    {.ours = "feed_forward.w1.weight", .theirs = "ffn_up.weight"},
    {.ours = "feed_forward.w1.bias", .theirs = "ffn_up.bias"},
};

const struct tt_model_row tt_model_starcoder2 = {
    .name = "starcoder2",
    TT_MODEL_TABLES,
    .gguf_names = names,
    .n_gguf_names = TT_COUNT(names),
    TT_MODEL_LLAMA_NAMES,
    .norm = TT_NORM_LAYER,
    .decoder = &decoder,
    .parts = &tt_decoder_parts,
    .adaptable = true,
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
};

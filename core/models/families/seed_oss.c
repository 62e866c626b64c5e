/* SPDX-License-Identifier: MIT
 *
 * Seed-OSS (ByteDance Seed 2025): Llama's blocks with biases of q, k and v, which the configuration may turn off, and
 * heads of a size of their own. RoPE rotates halves and the layout is that of Hugging Face's files. torchtitan has no
 * such model; parameters have its names and init rules, and biases begin as zeros.
 */
#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define FLAVOR(text, d, l, h, k, e, f, v, p)                                                                           \
    {.name = (text), .dims = {.dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .head_dim = (e),         \
                              .ffn_dim = (f), .vocab_size = (v), .norm_eps = 1e-6F, .rope = {.theta = 10000000.0},     \
                              .max_positions = (p), .qkv_bias = true}}

static const struct tt_flavor flavors[] = {
    /*     name          dim   layers heads kv head ffn    vocab   positions */
    FLAVOR("debugmodel", 256,  6,     16,   4, 32,  768,   2048,   4096),
    FLAVOR("36B",        5120, 64,    80,   8, 128, 27648, 155136, 524288),
};
/* clang-format on */

static const struct tt_hf_class classes[] = {
    {.type = "seed_oss",
     .architecture = "SeedOssForCausalLM",
     .reads = "decoder mlp_bias attention_out_bias dropout",
     .attention_bias = TT_HF_BIAS_QKV,
     .mlp_bias = true,
     .dims = {.dim = 4096,
              .n_layers = 64,
              .n_heads = 80,
              .n_kv_heads = 8,
              .head_dim = 128,
              .ffn_dim = 27648,
              .vocab_size = 155136,
              .norm_eps = 1e-6F,
              .rope = {.theta = 10000.0},
              .max_positions = 524288,
              .qkv_bias = true}},
};

static int read_hf_config(const void *config, const char *where, struct tt_model_dims *d)
{
    return tt_hf_bool(config, "attention_out_bias", false, where, &d->out_bias);
}

static void write_hf_config(const struct tt_model *model, void *config)
{
    (void)json_object_update_new(
        config, json_pack("{s:b, s:f}", "attention_out_bias", model->dims.out_bias, "residual_dropout", 0.0));
}

static const struct tt_decoder decoder = {.rotate_half = true};

static const struct tt_gguf_size sizes[] = {TT_GGUF_DECODER};
static const struct tt_gguf_arch archs[] = {
    {.name = "seed_oss", .size = sizes, .n_sizes = TT_COUNT(sizes), .biases = TT_GGUF_QKV_BIAS}};
static const struct tt_gguf_name names[] = {{.ours = "ffn_norm.weight", .theirs = "post_attention_norm.weight"}};

const struct tt_model_row tt_model_seed_oss = {
    .name = "seed_oss",
    TT_MODEL_TABLES,
    .gguf_names = names,
    .n_gguf_names = TT_COUNT(names),
    TT_MODEL_LLAMA_NAMES,
    .decoder = &decoder,
    .parts = &tt_decoder_parts,
    .adaptable = true,
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
};

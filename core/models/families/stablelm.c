/* SPDX-License-Identifier: MIT
 *
 * StableLM (Stability AI 2023) and StableLM 2: Llama's blocks with LayerNorms, RoPE of the first quarter of each head,
 * and in the newer models biases of q, k and v. RoPE rotates halves and the layout is that of Hugging Face's files.
 * torchtitan has no such model; parameters have its names and init rules, and biases begin as zeros. StableLM 2 12B has
 * a parallel residual and norms of q and k, which titan refuses by name.
 */
#include "core/base/error.h"
#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define FLAVOR(text, d, l, h, k, f, v, bias)                                                                           \
    {.name = (text), .dims = {.dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .ffn_dim = (f),          \
                              .rotary_dim = (d) / (h) / 4, .vocab_size = (v), .norm_eps = 1e-5F,                       \
                              .rope = {.theta = 10000.0}, .max_positions = 4096, .qkv_bias = (bias)}}

static const struct tt_flavor flavors[] = {
    /*     name          dim   layers heads kv  ffn    vocab   biases */
    FLAVOR("debugmodel", 256,  6,     8,    4,  768,   2048,   true),
    FLAVOR("3B",         2560, 32,    32,   32, 6912,  50304,  false),
    FLAVOR("2-1.6B",     2048, 24,    32,   32, 5632,  100352, true),
};
/* clang-format on */

static const struct tt_hf_class classes[] = {
    {.type = "stablelm",
     .architecture = "StableLmForCausalLM",
     .reads = "decoder dropout layer_norm_eps use_qkv_bias",
     .eps = "layer_norm_eps",
     .rotated = 0.25,
     .dims = {.dim = 2560,
              .n_layers = 32,
              .n_heads = 32,
              .n_kv_heads = 32,
              .ffn_dim = 6912,
              .vocab_size = 50304,
              .norm_eps = 1e-5F,
              .rope = {.theta = 10000.0},
              .max_positions = 4096}},
};

/* The class's heads divide the width, whatever head_dim says. */
static int read_hf_config(const void *config, const char *where, struct tt_model_dims *d)
{
    int rc = 0;

    TT_TRY(tt_hf_bool(config, "use_qkv_bias", d->qkv_bias, where, &d->qkv_bias));
    if (d->head_dim && d->head_dim * d->n_heads != d->dim)
        return tt_fail(TT_EDATA,
                       "%s: head_dim is %lld, but the heads of a stablelm have hidden_size / num_attention_heads "
                       "elements\nhelp: remove head_dim",
                       where, (long long)d->head_dim);
out:
    return rc;
}

static void write_hf_config(const struct tt_model *model, void *config)
{
    (void)json_object_update_new(config,
                                 json_pack("{s:b, s:b, s:b, s:f}", "use_qkv_bias", model->dims.qkv_bias,
                                           "use_parallel_residual", 0, "qk_layernorm", 0, "hidden_dropout", 0.0));
    (void)json_object_del(config, "attention_bias");
}

static const struct tt_decoder decoder = {.rotate_half = true};

static const struct tt_gguf_size sizes[] = {TT_GGUF_LAYER_NORM};
static const struct tt_gguf_arch archs[] = {{.name = "stablelm",
                                             .size = sizes,
                                             .n_sizes = TT_COUNT(sizes),
                                             .biases = TT_GGUF_QKV_BIAS,
                                             .part_rotated = true,
                                             .full_heads = true}};

const struct tt_model_row tt_model_stablelm = {
    .name = "stablelm",
    TT_MODEL_TABLES,
    TT_MODEL_LLAMA_NAMES,
    .norm = TT_NORM_LAYER,
    .decoder = &decoder,
    .parts = &tt_decoder_parts,
    .adaptable = true,
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
};

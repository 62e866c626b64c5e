/* SPDX-License-Identifier: MIT
 *
 * The first Gemma (Gemma Team 2024), also published as CodeGemma: Llama's blocks with norms whose weights are 1 + w, a
 * feed-forward gated by GELU in its tanh form, and embeddings times sqrt(D). RoPE rotates halves and the layout is that
 * of Hugging Face's files. torchtitan has no such model; parameters have its names and init rules.
 */
#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define SIZES(d, l, h, k, e, f, v, p)                                                                                  \
    .dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .head_dim = (e), .ffn_dim = (f),                   \
    .vocab_size = (v), .norm_eps = 1e-6F, .rope = {.theta = 10000.0}, .max_positions = (p), .tied = 1

static const struct tt_flavor flavors[] = {
    /*                      dim   layers heads kv  head ffn    vocab   positions */
    {"debugmodel", {SIZES(  256,  6,     16,   4,  16,  768,   2048,   4096)}},
    {"2B",         {SIZES(  2048, 18,    8,    1,  256, 16384, 256000, 8192)}},
    {"7B",         {SIZES(  3072, 28,    16,   16, 256, 24576, 256000, 8192)}},
};

static const struct tt_hf_class classes[] = {
    {.type = "gemma",
     .architecture = "GemmaForCausalLM",
     .reads = "decoder hidden_activation",
     .attention_bias = TT_HF_BIAS_ALL,
     .gelu_is_tanh = true,
     .dims = {SIZES(3072, 28, 16, 16, 256, 24576, 256000, 8192)}},
};
/* clang-format on */

/* Older versions of transformers read hidden_activation in place of hidden_act. */
static int read_hf_config(const void *config, const char *where, struct tt_model_dims *d)
{
    (void)d;
    return tt_hf_must_be_activation(config, "hidden_activation", TT_ACTIVATION_GELU_TANH, where);
}

static const struct tt_decoder decoder = {
    .rotate_half = true, .activation = TT_ACTIVATION_GELU_TANH, .scaled_embeddings = true};

static const struct tt_gguf_size sizes[] = {TT_GGUF_DECODER};
static const struct tt_gguf_arch archs[] = {
    {.name = "gemma", .size = sizes, .n_sizes = TT_COUNT(sizes), .biases = TT_GGUF_NO_BIAS, .tied = true}};

const struct tt_model_row tt_model_gemma = {
    .name = "gemma",
    TT_MODEL_TABLES,
    TT_MODEL_LLAMA_NAMES,
    .norm = TT_NORM_RMS_OFFSET,
    .decoder = &decoder,
    .parts = &tt_decoder_parts,
    .adaptable = true,
    .read_hf_config = read_hf_config,
};

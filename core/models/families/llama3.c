/* SPDX-License-Identifier: MIT
 *
 * Llama 3 (Dubey et al. 2024), with the RoPE scaling of 3.1. RoPE rotates neighbouring pairs, as torchtitan does;
 * Hugging Face's files have the rows of q and k permuted for rotating halves. Files of Mistral are the same except for
 * a sliding window, which all layers may have, and in files of Ministral some; titan writes a model without one as
 * Llama. InternLM3 and IQuest-Coder are other names of Llama's class.
 */
#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define LLAMA_3_1_ROPE                                                                                                 \
    {.theta = 500000.0, .factor = 8.0, .low_freq_factor = 1.0, .high_freq_factor = 4.0, .original_max = 8192.0}
#define FLAVOR(text, d, l, h, k, f, v, t)                                                                              \
    {.name = (text), .dims = {.dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .ffn_dim = (f),          \
                              .vocab_size = (v), .norm_eps = 1e-5F, .rope = LLAMA_3_1_ROPE,                         \
                              .max_positions = 131072, .tied = (t)}}

/* head_dim 0: dim / heads; kv 0: the number of heads. Both follow overrides of dim and heads. */
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

#define MISTRAL_SIZES                                                                                   \
    .dim = 4096, .n_layers = 32, .n_heads = 32, .n_kv_heads = 8, .ffn_dim = 14336, .vocab_size = 32000, \
    .norm_eps = 1e-6F, .rope = {.theta = 10000.0}, .max_positions = 131072

enum { LLAMA, MISTRAL, MINISTRAL };

static const struct tt_hf_class classes[] = {
    [LLAMA] = {.type = "llama",
               .architecture = "LlamaForCausalLM",
               .reads = "decoder mlp_bias",
               .attention_bias = TT_HF_BIAS_ALL,
               .mlp_bias = true,
               .dims = {.dim = 4096,
                        .n_layers = 32,
                        .n_heads = 32,
                        .ffn_dim = 11008,
                        .vocab_size = 32000,
                        .norm_eps = 1e-6F,
                        .rope = {.theta = 10000.0},
                        .max_positions = 2048}},
    [MISTRAL] = {.type = "mistral",
                 .architecture = "MistralForCausalLM",
                 .within = "mistral3",
                 .reads = "decoder mlp_bias",
                 .dims = {MISTRAL_SIZES},
                 .window = {.absent = 4096, .any = true}},
    [MINISTRAL] = {.type = "ministral",
                   .architecture = "MinistralForCausalLM",
                   .reads = "decoder",
                   .dims = {MISTRAL_SIZES},
                   .window = {.absent = 4096, .any = true, .by_layers = true}},
    {.type = "internlm3",
     .architecture = "InternLM3ForCausalLM",
     .reads = "decoder",
     .dims = {.dim = 4096,
              .n_layers = 48,
              .n_heads = 32,
              .n_kv_heads = 2,
              .head_dim = 128,
              .ffn_dim = 10240,
              .vocab_size = 128512,
              .norm_eps = 1e-5F,
              .rope = {.theta = 10000.0},
              .max_positions = 32768}},
    {.type = "iquestcoder",
     .architecture = "IQuestCoderForCausalLM",
     .reads = "decoder mlp_bias",
     .attention_bias = TT_HF_BIAS_ALL,
     .mlp_bias = true,
     .dims = {.dim = 5120,
              .n_layers = 80,
              .n_heads = 40,
              .n_kv_heads = 8,
              .head_dim = 128,
              .ffn_dim = 27648,
              .vocab_size = 76800,
              .norm_eps = 1e-5F,
              .rope = {.theta = 10000.0},
              .max_positions = 131072}},
};

static int class_of(const struct tt_model_dims *dims)
{
    bool all = true;

    for (int64_t l = 0; l < dims->n_layers; l++)
        all = all && tt_model_is_windowed(dims, l);
    return dims->sliding_window == 0 ? LLAMA : all ? MISTRAL : MINISTRAL;
}

static const struct tt_gguf_size sizes[] = {TT_GGUF_DECODER};
static const struct tt_gguf_arch archs[] = {
    {.name = "llama", .size = sizes, .n_sizes = TT_COUNT(sizes), .rope_factors = true}};
static const struct tt_decoder decoder = {0};

const struct tt_model_row tt_model_llama3 = {
    .name = "llama3",
    TT_MODEL_TABLES,
    TT_MODEL_LLAMA_NAMES,
    .decoder = &decoder,
    .parts = &tt_decoder_parts,
    .class_of = class_of,
    .adaptable = true,
};

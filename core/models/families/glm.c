/* SPDX-License-Identifier: MIT
 *
 * GLM-4 (GLM Team 2024; the weights in the format of Hugging Face's own class) and GLM-4-0414 (2025): Llama's blocks,
 * in the newer models with norms before and after attention and feed-forward, and with biases of q, k and v, which the
 * configuration may turn off. Gate and factor of the feed-forward are one tensor of Hugging Face's files. RoPE turns
 * pairs (2i, 2i+1) in the first half of each head, in the files too. torchtitan has no such models; parameters have its
 * names and init rules.
 */
#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define FLAVOR(text, d, l, h, k, e, f, v, p, eps, bias)                                                                \
    {.name = (text), .dims = {.dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .head_dim = (e),         \
                              .rotary_dim = (e) / 2, .ffn_dim = (f), .vocab_size = (v), .norm_eps = (eps),             \
                              .rope = {.theta = 10000.0}, .max_positions = (p), .qkv_bias = (bias)}}

static const struct tt_flavor flavors[] = {
    /*     name          dim   layers heads kv head ffn    vocab   positions epsilon      biases */
    FLAVOR("debugmodel", 256,  6,     16,   4, 16,  768,   2048,   4096,     1.5625e-7F,  true),
    FLAVOR("9B",         4096, 40,    32,   2, 128, 13696, 151552, 131072,   1.5625e-7F,  true),
};

static const struct tt_flavor flavors_4[] = {
    FLAVOR("debugmodel", 256,  6,     16,   4, 16,  768,   2048,   4096,     1e-5F,       true),
    FLAVOR("9B",         4096, 40,    32,   2, 128, 13696, 151552, 32768,    1e-5F,       true),
    FLAVOR("32B",        6144, 61,    48,   2, 128, 23040, 151552, 32768,    1e-5F,       false),
};
/* clang-format on */

#define CLASS(type_, class_)                                                                             \
    {                                                                                                    \
        .type = (type_), .architecture = (class_), .reads = "decoder", .attention_bias = TT_HF_BIAS_QKV, \
        .rotated = 0.5, .dims = {                                                                        \
            .dim = 4096,                                                                                 \
            .n_layers = 40,                                                                              \
            .n_heads = 32,                                                                               \
            .n_kv_heads = 2,                                                                             \
            .head_dim = 128,                                                                             \
            .ffn_dim = 13696,                                                                            \
            .vocab_size = 151552,                                                                        \
            .norm_eps = 1.5625e-7F,                                                                      \
            .rope = {.theta = 10000.0},                                                                  \
            .max_positions = 131072,                                                                     \
            .qkv_bias = true                                                                             \
        }                                                                                                \
    }

static const struct tt_hf_class classes[] = {CLASS("glm", "GlmForCausalLM")};
static const struct tt_hf_class classes_4[] = {CLASS("glm4", "Glm4ForCausalLM")};

#define FFN .hf_ffn = {"mlp.gate_up_proj", "mlp.down_proj", "mlp.gate_up_proj"}

static const struct tt_decoder decoder = {.pairs_in_files = true, FFN};

static const struct tt_decoder decoder_4 = {
    .pairs_in_files = true,
    .hf_norms = {"input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm"},
    FFN};

static const struct tt_gguf_size sizes[] = {TT_GGUF_DECODER};

#define ARCH .size = sizes, .n_sizes = TT_COUNT(sizes), .part_rotated = true, .biases = TT_GGUF_QKV_BIAS

static const struct tt_gguf_arch archs[] = {{.name = "chatglm", ARCH, .full_heads = true}};
static const struct tt_gguf_arch archs_4[] = {{.name = "glm4", ARCH}};
static const struct tt_gguf_name names[] = {
    {.ours = "feed_forward.w1.weight", .theirs = "ffn_up.weight", .parts = 2},
    {.ours = "feed_forward.w3.weight", .theirs = "ffn_up.weight", .part = 1, .parts = 2},
};

const struct tt_model_row tt_model_glm = {
    .name = "glm",
    TT_MODEL_TABLES,
    .gguf_names = names,
    .n_gguf_names = TT_COUNT(names),
    TT_MODEL_LLAMA_NAMES,
    .decoder = &decoder,
    .parts = &tt_decoder_parts,
    .adaptable = true,
};

const struct tt_model_row tt_model_glm4 = {
    .name = "glm4",
    .flavors = flavors_4,
    .n_flavors = TT_COUNT(flavors_4),
    .classes = classes_4,
    .n_classes = TT_COUNT(classes_4),
    .archs = archs_4,
    .n_archs = TT_COUNT(archs_4),
    .gguf_names = names,
    .n_gguf_names = TT_COUNT(names),
    TT_MODEL_LLAMA_NAMES,
    .decoder = &decoder_4,
    .parts = &tt_decoder_parts,
    .adaptable = true,
};

/* SPDX-License-Identifier: MIT
 *
 * Qwen2 and Qwen2.5 (Qwen Team 2024): Llama's blocks with biases of q, k and v. RoPE rotates halves and the layout is
 * that of Hugging Face's files. torchtitan has no such model; parameters have its names and init rules, and biases
 * begin as zeros.
 */
#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define FLAVOR(text, d, l, h, k, f, v, p, t)                                                                           \
    {.name = (text), .dims = {.dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .ffn_dim = (f),          \
                              .vocab_size = (v), .norm_eps = 1e-6F, .rope = {.theta = 1000000.0},                      \
                              .max_positions = (p), .tied = (t)}}

static const struct tt_flavor flavors[] = {
    /*     name          dim   layers heads kv ffn    vocab   positions tied */
    FLAVOR("debugmodel", 256,  6,     16,   8, 768,   2048,   4096,     1),
    FLAVOR("0.5B",       896,  24,    14,   2, 4864,  151936, 32768,    1),
    FLAVOR("1.5B",       1536, 28,    12,   2, 8960,  151936, 32768,    1),
    FLAVOR("3B",         2048, 36,    16,   2, 11008, 151936, 32768,    1),
    FLAVOR("7B",         3584, 28,    28,   4, 18944, 152064, 32768,    0),
    FLAVOR("14B",        5120, 48,    40,   8, 13824, 152064, 32768,    0),
    FLAVOR("32B",        5120, 64,    40,   8, 27648, 152064, 32768,    0),
    FLAVOR("72B",        8192, 80,    64,   8, 29568, 152064, 32768,    0),
};
/* clang-format on */

static const struct tt_hf_class classes[] = {
    {.type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .reads = "decoder max_window_layers",
     .attention_bias = TT_HF_BIAS_IGNORED,
     .dims = {.dim = 4096,
              .n_layers = 32,
              .n_heads = 32,
              .n_kv_heads = 32,
              .ffn_dim = 22016,
              .vocab_size = 151936,
              .norm_eps = 1e-6F,
              .rope = {.theta = 10000.0},
              .max_positions = 32768},
     .window = {.absent = 4096, .any = true, .needs_use = true, .by_layers = true, .layers = 28}},
};

static const struct tt_gguf_size sizes[] = {TT_GGUF_DECODER};
static const struct tt_gguf_arch archs[] = {{.name = "qwen2", .size = sizes, .n_sizes = TT_COUNT(sizes)}};
static const struct tt_decoder decoder = {.qkv_bias = true, .rotate_half = true};

const struct tt_model_row tt_model_qwen2 = {
    .name = "qwen2",
    TT_MODEL_TABLES,
    TT_MODEL_LLAMA_NAMES,
    .decoder = &decoder,
    .parts = &tt_decoder_parts,
    .adaptable = true,
};

/* SPDX-License-Identifier: MIT
 *
 * OLMo 2 (Team OLMo 2025) and OLMo 3: Llama's blocks with norms after attention and feed-forward, before the residual,
 * and norms of q and of k over all heads. Three of four layers of OLMo 3 have a window; only the others have scaled
 * RoPE. RoPE rotates halves and the layout is that of Hugging Face's files. torchtitan has no such models; parameters
 * have its names and init rules.
 */
#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define SIZES(d, l, h, k, f, v, p)                                                                                     \
    .dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .ffn_dim = (f), .vocab_size = (v),                 \
    .norm_eps = 1e-6F, .max_positions = (p)

#define FLAVOR(text, ...) {.name = (text), .dims = {SIZES(__VA_ARGS__), .rope = {.theta = 500000.0}}}

#define FLAVOR_3(text, ...)                                                                                            \
    {.name = (text), .dims = {SIZES(__VA_ARGS__), .sliding_window = 4096, .full = {.every = 4},                        \
                              .local_theta = 500000.0,                                                                 \
                              .rope = {.theta = 500000.0, .factor = 8.0, .original_max = 8192.0, .beta_fast = 32.0,    \
                                       .beta_slow = 1.0}}}

static const struct tt_flavor flavors[] = {
    /*       name          dim   layers heads kv  ffn    vocab   positions */
    FLAVOR(  "debugmodel", 256,  6,     16,   4,  768,   2048,   4096),
    FLAVOR(  "1B",         2048, 16,    16,   16, 8192,  100352, 4096),
    FLAVOR(  "7B",         4096, 32,    32,   32, 11008, 100352, 4096),
    FLAVOR(  "13B",        5120, 40,    40,   40, 13824, 100352, 4096),
    FLAVOR(  "32B",        5120, 64,    40,   8,  27648, 100352, 4096),
    FLAVOR_3("3-7B",       4096, 32,    32,   32, 11008, 100278, 65536),
    FLAVOR_3("3-32B",      5120, 64,    40,   8,  27648, 100278, 65536),
};
/* clang-format on */

enum { OLMO2, OLMO3 };

static const struct tt_hf_class classes[] = {
    [OLMO2] = {.type = "olmo2",
               .architecture = "Olmo2ForCausalLM",
               .reads = "decoder",
               .attention_bias = TT_HF_BIAS_ALL,
               .dims = {.dim = 4096,
                        .n_layers = 32,
                        .n_heads = 32,
                        .ffn_dim = 11008,
                        .vocab_size = 50304,
                        .norm_eps = 1e-5F,
                        .rope = {.theta = 10000.0},
                        .max_positions = 2048}},
    [OLMO3] = {.type = "olmo3",
               .architecture = "Olmo3ForCausalLM",
               .reads = "decoder",
               .attention_bias = TT_HF_BIAS_ALL,
               .dims = {.dim = 4096,
                        .n_layers = 32,
                        .n_heads = 32,
                        .ffn_dim = 11008,
                        .vocab_size = 50304,
                        .norm_eps = 1e-5F,
                        .rope = {.theta = 500000.0},
                        .local_theta = 500000.0,
                        .max_positions = 2048},
               .window = {.absent = 4096, .any = true, .by_layers = true, .every = 4}},
};

static int class_of(const struct tt_model_dims *dims)
{
    return dims->sliding_window > 0 ? OLMO3 : OLMO2;
}

static const struct tt_decoder decoder = {
    .rotate_half = true,
    .qk_norm = TT_QK_WIDTH,
    .hf_norms = {.after_attention = "post_attention_layernorm", .after_ffn = "post_feedforward_layernorm"}};

static const struct tt_gguf_size sizes[] = {TT_GGUF_DECODER, TT_GGUF_WINDOW};
static const struct tt_gguf_arch archs[] = {{.name = "olmo2",
                                             .size = sizes,
                                             .n_sizes = TT_COUNT(sizes),
                                             .biases = TT_GGUF_NO_BIAS,
                                             .own_head = true,
                                             .full_heads = true,
                                             .window_period = 4,
                                             .local_rope = true}};

const struct tt_model_row tt_model_olmo2 = {
    .name = "olmo2",
    TT_MODEL_TABLES,
    TT_MODEL_LLAMA_NAMES,
    .decoder = &decoder,
    .parts = &tt_decoder_parts,
    .class_of = class_of,
    .adaptable = true,
};

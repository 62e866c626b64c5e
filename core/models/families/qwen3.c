/* SPDX-License-Identifier: MIT
 *
 * Qwen3 (Yang et al. 2025): Llama's blocks with an RMSNorm in every head of q and k, dense or with experts. RoPE
 * rotates halves and the layout is that of Hugging Face's files, as in torchtitan.
 */
#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define FLAVOR(text, d, l, h, k, f, v, p, t)                                                                           \
    {.name = (text), .dims = {.dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .head_dim = 128,         \
                              .ffn_dim = (f), .vocab_size = (v), .norm_eps = 1e-6F, .rope = {.theta = 1000000.0},      \
                              .max_positions = (p), .tied = (t)}}

#define MOE_FLAVOR(text, d, l, h, k, f, v, p, x, top, m)                                                               \
    {.name = (text), .dims = {.dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .head_dim = 128,         \
                              .ffn_dim = (f), .vocab_size = (v), .norm_eps = 1e-6F,                                    \
                              .rope = {.theta = 1000000.0}, .max_positions = (p),                                      \
                              .moe = {.experts = (x), .top_k = (top), .ffn_dim = (m)}}}

static const struct tt_flavor flavors[] = {
    /*     name          dim   layers heads kv ffn    vocab   positions tied */
    FLAVOR("debugmodel", 256,  8,     16,   8, 3072,  2048,   4096,     1),
    FLAVOR("0.6B",       1024, 28,    16,   8, 3072,  151936, 40960,    1),
    FLAVOR("1.7B",       2048, 28,    16,   8, 6144,  151936, 40960,    1),
    FLAVOR("4B",         2560, 36,    32,   8, 9728,  151936, 40960,    1),
    FLAVOR("8B",         4096, 36,    32,   8, 12288, 151936, 40960,    0),
    FLAVOR("14B",        5120, 40,    40,   8, 17408, 151936, 40960,    0),
    FLAVOR("32B",        5120, 64,    64,   8, 25600, 151936, 40960,    0),
    /*         name              dim   layers heads kv ffn    vocab   positions experts of a token, their width */
    MOE_FLAVOR("debugmodel_moe", 256,  8,     16,   8, 3072,  2048,   4096,     64,     8,          768),
    MOE_FLAVOR("30B-A3B",        2048, 48,    32,   4, 6144,  151936, 40960,    128,    8,          768),
    MOE_FLAVOR("235B-A22B",      4096, 94,    64,   4, 12288, 151936, 40960,    128,    8,          1536),
};
/* clang-format on */

static const struct tt_hf_class classes[] = {
    {.type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .reads = "decoder mlp_bias max_window_layers",
     .attention_bias = TT_HF_BIAS_ALL,
     .dims = {.dim = 4096,
              .n_layers = 32,
              .n_heads = 32,
              .n_kv_heads = 32,
              .head_dim = 128,
              .ffn_dim = 22016,
              .vocab_size = 151936,
              .norm_eps = 1e-6F,
              .rope = {.theta = 10000.0},
              .max_positions = 32768},
     .window = {.absent = 4096, .any = true, .needs_use = true, .by_layers = true, .layers = 28}},
    {.type = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .reads = "decoder mlp_bias experts num_experts num_local_experts moe_intermediate_size norm_topk_prob "
              "decoder_sparse_step mlp_only_layers router_jitter_noise",
     .attention_bias = TT_HF_BIAS_ALL,
     .dims = {.dim = 2048,
              .n_layers = 24,
              .n_heads = 32,
              .n_kv_heads = 4,
              .ffn_dim = 6144,
              .vocab_size = 151936,
              .norm_eps = 1e-6F,
              .rope = {.theta = 10000.0},
              .max_positions = 32768,
              .moe = {.experts = 128, .top_k = 8, .ffn_dim = 768, .gates_as_scored = true}},
     .window = {.absent = 4096, .any = true, .needs_use = true}},
};

static int class_of(const struct tt_model_dims *dims)
{
    return dims->moe.experts > 0;
}

static void write_hf_config(const struct tt_model *model, void *config)
{
    const struct tt_moe *moe = &model->dims.moe;
    json_t *dense;

    if (!moe->experts)
        return;
    dense = json_array();
    for (int64_t l = 0; l < model->dims.n_layers; l++)
        if (!tt_model_has_experts(&model->dims, l))
            (void)json_array_append_new(dense, json_integer(l));
    (void)json_object_update_new(
        config, json_pack("{s:I, s:I, s:I, s:b, s:i, s:o, s:b}", "num_experts", (json_int_t)moe->experts,
                          "num_experts_per_tok", (json_int_t)moe->top_k, "moe_intermediate_size",
                          (json_int_t)moe->ffn_dim, "norm_topk_prob", !moe->gates_as_scored, "decoder_sparse_step", 1,
                          "mlp_only_layers", dense, "output_router_logits", false));
}

static const struct tt_gguf_size sizes[] = {TT_GGUF_DECODER};
static const struct tt_gguf_size expert_sizes[] = {TT_GGUF_DECODER, TT_GGUF_EXPERTS, TT_GGUF_EXPERT_WIDTH};
static const struct tt_gguf_arch archs[] = {
    {.name = "qwen3", .size = sizes, .n_sizes = TT_COUNT(sizes), .biases = TT_GGUF_NO_BIAS},
    {.name = "qwen3moe",
     .size = expert_sizes,
     .n_sizes = TT_COUNT(expert_sizes),
     .experts = true,
     .biases = TT_GGUF_NO_BIAS}};

static const struct tt_decoder decoder = {.qk_norm = TT_QK_HEADS,
                                          .rotate_half = true,
                                          .hf_experts = {"mlp.gate.weight", "mlp.experts.*.gate_proj.weight",
                                                         "mlp.experts.*.down_proj.weight",
                                                         "mlp.experts.*.up_proj.weight"}};

const struct tt_model_row tt_model_qwen3 = {
    .name = "qwen3",
    TT_MODEL_TABLES,
    TT_MODEL_LLAMA_NAMES,
    .decoder = &decoder,
    .parts = &tt_decoder_parts,
    .class_of = class_of,
    .adaptable = true,
    .write_hf_config = write_hf_config,
};

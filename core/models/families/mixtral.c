/* SPDX-License-Identifier: MIT
 *
 * Mixtral (Jiang et al. 2024): Llama's blocks with experts. RoPE rotates halves and the layout is that of Hugging
 * Face's files.
 */
#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define FLAVOR(text, d, l, h, k, f, v, p, x, top)                                                                      \
    {.name = (text), .dims = {.dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .ffn_dim = (f),          \
                              .vocab_size = (v), .norm_eps = 1e-5F, .rope = {.theta = 1000000.0},                      \
                              .max_positions = (p), .moe = {.experts = (x), .top_k = (top)}}}

static const struct tt_flavor flavors[] = {
    /*     name          dim   layers heads kv ffn    vocab  positions experts of a token */
    FLAVOR("debugmodel", 256,  6,     16,   8, 768,   2048,  4096,     8,      2),
    FLAVOR("8x7B",       4096, 32,    32,   8, 14336, 32000, 32768,    8,      2),
    FLAVOR("8x22B",      6144, 56,    48,   8, 16384, 32768, 65536,    8,      2),
};
/* clang-format on */

static const struct tt_hf_class classes[] = {
    {.type = "mixtral",
     .architecture = "MixtralForCausalLM",
     .reads = "decoder mlp_bias experts num_experts num_local_experts router_jitter_noise",
     .dims = {.dim = 4096,
              .n_layers = 32,
              .n_heads = 32,
              .n_kv_heads = 8,
              .ffn_dim = 14336,
              .vocab_size = 32000,
              .norm_eps = 1e-5F,
              .rope = {.theta = 1000000.0},
              .max_positions = 131072,
              .moe = {.experts = 8, .top_k = 2}},
     .window = {.any = true}},
};

static void write_hf_config(const struct tt_model *model, void *config)
{
    (void)json_object_update_new(config, json_pack("{s:I, s:I, s:b, s:f}", "num_local_experts",
                                                   (json_int_t)model->dims.moe.experts, "num_experts_per_tok",
                                                   (json_int_t)model->dims.moe.top_k, "output_router_logits", false,
                                                   "router_jitter_noise", 0.0));
}

/* In llama.cpp it is the same architecture as Llama's, whose RoPE rotates pairs. */
static const struct tt_gguf_size sizes[] = {TT_GGUF_DECODER, TT_GGUF_EXPERTS};
static const struct tt_gguf_arch archs[] = {{.name = "llama",
                                             .size = sizes,
                                             .n_sizes = TT_COUNT(sizes),
                                             .experts = true,
                                             .rope_factors = true,
                                             .ffn_is_expert = true}};
static const struct tt_gguf_name names[] = {
    {.ours = "attention.wq.weight", .theirs = "attn_q.weight", .layout = TT_GGUF_PAIRS},
    {.ours = "attention.wk.weight", .theirs = "attn_k.weight", .layout = TT_GGUF_PAIRS}};

static const struct tt_decoder decoder = {
    .rotate_half = true,
    .hf_experts = {"block_sparse_moe.gate.weight", "block_sparse_moe.experts.*.w1.weight",
                   "block_sparse_moe.experts.*.w2.weight", "block_sparse_moe.experts.*.w3.weight"}};

const struct tt_model_row tt_model_mixtral = {
    .name = "mixtral",
    TT_MODEL_TABLES,
    TT_MODEL_LLAMA_NAMES,
    .decoder = &decoder,
    .parts = &tt_decoder_parts,
    .gguf_names = names,
    .n_gguf_names = TT_COUNT(names),
    .adaptable = true,
    .write_hf_config = write_hf_config,
};

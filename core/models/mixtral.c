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

static int read_hf_config(const void *config, const char *where, struct tt_model_dims *ret_dims)
{
    int rc = 0;

    TT_TRY(tt_hf_read_decoder(config, where, ret_dims));
    TT_TRY(tt_hf_experts(config, false, where, ret_dims));
out:
    return rc;
}

static void write_hf_config(const struct tt_model *model, void *config)
{
    tt_hf_config_decoder(config, model);
    (void)json_object_update_new(
        config, json_pack("{s:I, s:I, s:o, s:b, s:f}", "num_local_experts", (json_int_t)model->dims.moe.experts,
                          "num_experts_per_tok", (json_int_t)model->dims.moe.top_k, "sliding_window",
                          model->dims.sliding_window ? json_integer(model->dims.sliding_window) : json_null(),
                          "output_router_logits", false, "router_jitter_noise", 0.0));
}

/* The same architecture as Llama's there, whose RoPE rotates pairs. */
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
    .flavors = flavors,
    .n_flavors = TT_COUNT(flavors),
    .classes = classes,
    .n_classes = TT_COUNT(classes),
    .archs = archs,
    .n_archs = TT_COUNT(archs),
    .gguf_names = names,
    .n_gguf_names = TT_COUNT(names),
    .hf_blocks = "model.layers.",
    .adaptable = true,
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .decoder = &decoder,
    .add_params = tt_decoder_params,
    .norm = tt_build_rmsnorm,
    .attention = tt_decoder_attention,
    .feed_forward = tt_decoder_feed_forward,
};

/* SPDX-License-Identifier: MIT
 *
 * OLMoE (Muennighoff et al. 2024): Llama's blocks with experts in all layers, and norms of q and of k over all heads.
 * RoPE rotates halves and the layout is that of Hugging Face's files. torchtitan has no such model; parameters have
 * its names and init rules.
 */
#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define FLAVOR(text, d, l, h, k, f, v, p, x, top)                                                                      \
    {.name = (text), .dims = {.dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .ffn_dim = (f),          \
                              .vocab_size = (v), .norm_eps = 1e-5F, .rope = {.theta = 10000.0}, .max_positions = (p),  \
                              .moe = {.experts = (x), .top_k = (top), .gates_as_scored = true}}}

static const struct tt_flavor flavors[] = {
    /*     name          dim   layers heads kv  ffn   vocab  positions experts of a token */
    FLAVOR("debugmodel", 256,  6,     16,   8,  256,  2048,  4096,     16,     4),
    FLAVOR("7B-A1B",     2048, 16,    16,   16, 1024, 50304, 4096,     64,     8),
};
/* clang-format on */

static const struct tt_hf_class classes[] = {
    {.type = "olmoe",
     .architecture = "OlmoeForCausalLM",
     .reads = "decoder experts num_experts num_local_experts norm_topk_prob",
     .attention_bias = TT_HF_BIAS_ALL,
     .dims = {.dim = 2048,
              .n_layers = 16,
              .n_heads = 16,
              .ffn_dim = 2048,
              .vocab_size = 50304,
              .norm_eps = 1e-5F,
              .rope = {.theta = 10000.0},
              .max_positions = 4096,
              .moe = {.experts = 64, .top_k = 8, .gates_as_scored = true}}},
};

static void write_hf_config(const struct tt_model *model, void *config)
{
    const struct tt_moe *moe = &model->dims.moe;

    (void)json_object_update_new(config, json_pack("{s:I, s:I, s:b, s:b}", "num_experts", (json_int_t)moe->experts,
                                                   "num_experts_per_tok", (json_int_t)moe->top_k, "norm_topk_prob",
                                                   !moe->gates_as_scored, "output_router_logits", false));
}

static const struct tt_decoder decoder = {.rotate_half = true,
                                          .qk_norm = TT_QK_WIDTH,
                                          .hf_experts = {"mlp.gate.weight", "mlp.experts.*.gate_proj.weight",
                                                         "mlp.experts.*.down_proj.weight",
                                                         "mlp.experts.*.up_proj.weight"}};

static const struct tt_gguf_size sizes[] = {TT_GGUF_DECODER, TT_GGUF_EXPERTS};
static const struct tt_gguf_arch archs[] = {{.name = "olmoe",
                                             .size = sizes,
                                             .n_sizes = TT_COUNT(sizes),
                                             .experts = true,
                                             .biases = TT_GGUF_NO_BIAS,
                                             .own_head = true,
                                             .full_heads = true,
                                             .equal_heads = true,
                                             .gates_as_scored = true}};

const struct tt_model_row tt_model_olmoe = {
    .name = "olmoe",
    TT_MODEL_TABLES,
    TT_MODEL_LLAMA_NAMES,
    .decoder = &decoder,
    .parts = &tt_decoder_parts,
    .adaptable = true,
    .write_hf_config = write_hf_config,
};

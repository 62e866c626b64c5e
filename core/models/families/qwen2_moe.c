/* SPDX-License-Identifier: MIT
 *
 * Qwen1.5-MoE and Qwen2-57B-A14B (Qwen Team 2024): Qwen2's blocks with experts, and an expert that sees all tokens,
 * whose output is multiplied by the sigmoid of a product with the token. RoPE rotates halves and the layout is that of
 * Hugging Face's files. torchtitan has no such model; parameters have its names and init rules.
 */
#include "core/base/error.h"
#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define FLAVOR(text, d, l, h, k, f, v, p, x, top, m, s)                                                                \
    {.name = (text), .dims = {.dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .ffn_dim = (f),          \
                              .vocab_size = (v), .norm_eps = 1e-6F, .rope = {.theta = 1000000.0},                      \
                              .max_positions = (p), .qkv_bias = true,                                                  \
                              .moe = {.experts = (x), .top_k = (top), .ffn_dim = (m), .shared_dim = (s),               \
                                      .gates_as_scored = true}}}

static const struct tt_flavor flavors[] = {
    /*     name          dim   layers heads kv  ffn    vocab   positions experts of a token, widths: own, shared */
    FLAVOR("debugmodel", 256,  6,     16,   8,  768,   2048,   4096,     16,     4,          128,   256),
    FLAVOR("A2.7B",      2048, 24,    16,   16, 5632,  151936, 8192,     60,     4,          1408,  5632),
    FLAVOR("57B-A14B",   3584, 28,    28,   4,  18944, 151936, 131072,   64,     8,          2560,  20480),
};
/* clang-format on */

static const struct tt_hf_class classes[] = {
    {.type = "qwen2_moe",
     .architecture = "Qwen2MoeForCausalLM",
     .reads = "decoder experts num_experts moe_intermediate_size norm_topk_prob decoder_sparse_step mlp_only_layers "
              "shared_expert_intermediate_size qkv_bias max_window_layers",
     .attention_bias = TT_HF_BIAS_IGNORED,
     .dims = {.dim = 2048,
              .n_layers = 24,
              .n_heads = 16,
              .n_kv_heads = 16,
              .ffn_dim = 5632,
              .vocab_size = 151936,
              .norm_eps = 1e-6F,
              .rope = {.theta = 10000.0},
              .max_positions = 32768,
              .qkv_bias = true,
              .moe = {.experts = 60, .top_k = 4, .ffn_dim = 1408, .shared_dim = 5632, .gates_as_scored = true}},
     .window = {.absent = 4096, .any = true, .needs_use = true, .by_layers = true, .every = 2}},
};

/* Without layer_types, every other layer before max_window_layers has the window, beginning with the first one. */
static int read_windows(const json_t *config, const char *where, struct tt_model_dims *d)
{
    int64_t end = 28;
    int rc = 0;

    if (!d->sliding_window || tt_hf_member(config, "layer_types"))
        goto out;
    TT_TRY(tt_hf_int(config, "max_window_layers", end, where, &end));
    if (end >= d->n_layers)
        goto out;
    if (d->n_layers > TT_LAYER_BITS)
        return tt_fail(TT_EDATA, "%s: max_window_layers is supported for models of at most %d layers", where,
                       TT_LAYER_BITS);
    d->full = (struct tt_layers){0};
    for (int64_t l = 0; l < d->n_layers; l++)
        if (l % 2 == 1 || l >= end)
            d->full.bits |= INT64_C(1) << l;
out:
    return rc;
}

static int read_hf_config(const void *config, const char *where, struct tt_model_dims *d)
{
    static const struct tt_hf_key shared = TT_HF_KEY("shared_expert_intermediate_size", NULL, SIZE, moe.shared_dim);
    int rc = 0;

    TT_TRY(tt_hf_read(config, &shared, 1, where, d));
    TT_TRY(tt_hf_bool(config, "qkv_bias", d->qkv_bias, where, &d->qkv_bias));
    rc = read_windows(config, where, d);
out:
    return rc;
}

static void write_hf_config(const struct tt_model *model, void *config)
{
    const struct tt_moe *moe = &model->dims.moe;
    json_t *dense = json_array();

    for (int64_t l = 0; l < model->dims.n_layers; l++)
        if (!tt_model_has_experts(&model->dims, l))
            (void)json_array_append_new(dense, json_integer(l));
    (void)json_object_update_new(
        config, json_pack("{s:I, s:I, s:I, s:I, s:b, s:b, s:i, s:o, s:b}", "num_experts", (json_int_t)moe->experts,
                          "num_experts_per_tok", (json_int_t)moe->top_k, "moe_intermediate_size",
                          (json_int_t)moe->ffn_dim, "shared_expert_intermediate_size", (json_int_t)moe->shared_dim,
                          "norm_topk_prob", !moe->gates_as_scored, "qkv_bias", model->dims.qkv_bias,
                          "decoder_sparse_step", 1, "mlp_only_layers", dense, "output_router_logits", false));
    (void)json_object_del(config, "attention_bias");
    if (model->dims.sliding_window > 0) /* layer_types say which layers have it */
        (void)json_object_set_new(config, "max_window_layers", json_integer(model->dims.n_layers));
}

static const struct tt_decoder decoder = {
    .rotate_half = true,
    .hf_shared = {"mlp.shared_expert.gate_proj.weight", "mlp.shared_expert.down_proj.weight",
                  "mlp.shared_expert.up_proj.weight"},
    .hf_shared_gate = "mlp.shared_expert_gate.weight",
    .hf_experts = {"mlp.gate.weight", "mlp.experts.*.gate_proj.weight", "mlp.experts.*.down_proj.weight",
                   "mlp.experts.*.up_proj.weight"}};

static const struct tt_gguf_size sizes[] = {
    TT_GGUF_DECODER, TT_GGUF_EXPERTS, TT_GGUF_EXPERT_WIDTH,
    TT_GGUF_SIZE("expert_shared_feed_forward_length", INT, moe.shared_dim, false)};
static const struct tt_gguf_arch archs[] = {{.name = "qwen2moe",
                                             .size = sizes,
                                             .n_sizes = TT_COUNT(sizes),
                                             .experts = true,
                                             .biases = TT_GGUF_QKV_BIAS,
                                             .own_head = true,
                                             .full_heads = true,
                                             .gates_as_scored = true}};

const struct tt_model_row tt_model_qwen2_moe = {
    .name = "qwen2_moe",
    TT_MODEL_TABLES,
    TT_MODEL_LLAMA_NAMES,
    .decoder = &decoder,
    .parts = &tt_decoder_parts,
    .adaptable = true,
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
};

/* SPDX-License-Identifier: MIT
 *
 * Qwen3 (Yang et al. 2025): Llama's blocks with an RMSNorm in every head of q and k, dense or with experts. RoPE
 * rotates halves and the layout is that of Hugging Face's files, as in torchtitan.
 */
#include <string.h>

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

static int read_hf_config(const void *config, const char *where, struct tt_model_dims *ret_dims)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    int rc = 0;

    TT_TRY(tt_decoder_read_hf(config, where, ret_dims));
    if (type && strcmp(type, tt_model_qwen3.hf_same_as) == 0)
        TT_TRY(tt_hf_experts(config, "moe_intermediate_size", where, ret_dims));
out:
    return rc;
}

static void *write_hf_config(const struct tt_model *model)
{
    bool experts = model->dims.moe.experts > 0;
    json_t *config = tt_hf_config_new(model, experts ? "Qwen3MoeForCausalLM" : "Qwen3ForCausalLM");

    tt_hf_config_decoder(config, model);
    if (experts)
        tt_hf_config_experts(config, model);
    tt_hf_config_windows(config, model);
    return config;
}

static const struct tt_decoder decoder = {.qk_norm = true,
                                          .rotate_half = true,
                                          .hf_experts = {"mlp.gate.weight", "mlp.experts.*.gate_proj.weight",
                                                         "mlp.experts.*.down_proj.weight",
                                                         "mlp.experts.*.up_proj.weight"}};

static void add_params(struct tt_model *model)
{
    tt_decoder_params(model, &decoder);
}

static void build(const struct tt_model *model, int64_t batch, int64_t seq_len, struct tt_graph *graph)
{
    tt_decoder_build(model, &decoder, batch, seq_len, graph);
}

const struct tt_model_row tt_model_qwen3 = {
    .name = "qwen3",
    .flavors = flavors,
    .n_flavors = (int)(sizeof flavors / sizeof *flavors),
    .hf_model_type = "qwen3",
    .hf_same_as = "qwen3_moe",
    .hf_blocks = "model.layers.",
    .adaptable = true,
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
    .add_params = add_params,
    .build = build,
};

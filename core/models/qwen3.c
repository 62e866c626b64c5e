/* SPDX-License-Identifier: MIT
 *
 * Qwen3, the dense models (Yang et al. 2025): Llama's blocks with an RMSNorm in every head of q and k. RoPE rotates
 * halves and the layout is that of Hugging Face's files, as in torchtitan.
 */
#include "core/models/decoder.h"
#include "core/models/hf_config.h"
#include "core/models/rows.h"

/* clang-format off */
#define FLAVOR(text, d, l, h, k, f, v, p, t)                                                                           \
    {.name = (text), .dims = {.dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .head_dim = 128,         \
                              .ffn_dim = (f), .vocab_size = (v), .norm_eps = 1e-6F, .rope = {.theta = 1000000.0},      \
                              .max_positions = (p), .tied = (t)}}

static const struct tt_flavor flavors[] = {
    /*     name          dim   layers heads kv ffn    vocab   positions tied */
    FLAVOR("debugmodel", 256,  8,     16,   8, 3072,  2048,   4096,     1),
    FLAVOR("0.6B",       1024, 28,    16,   8, 3072,  151936, 40960,    1),
    FLAVOR("1.7B",       2048, 28,    16,   8, 6144,  151936, 40960,    1),
    FLAVOR("4B",         2560, 36,    32,   8, 9728,  151936, 40960,    1),
    FLAVOR("8B",         4096, 36,    32,   8, 12288, 151936, 40960,    0),
    FLAVOR("14B",        5120, 40,    40,   8, 17408, 151936, 40960,    0),
    FLAVOR("32B",        5120, 64,    64,   8, 25600, 151936, 40960,    0),
};
/* clang-format on */

static void *write_hf_config(const struct tt_model *model)
{
    json_t *config = tt_hf_config_new(model, "Qwen3ForCausalLM");

    tt_hf_config_decoder(config, model);
    (void)json_object_update_new(config, json_pack("{s:b, s:n}", "use_sliding_window", false, "sliding_window"));
    return config;
}

static const struct tt_decoder decoder = {.qk_norm = true, .rotate_half = true};

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
    .hf_blocks = "model.layers.",
    .adaptable = true,
    .read_hf_config = tt_decoder_read_hf,
    .write_hf_config = write_hf_config,
    .add_params = add_params,
    .build = build,
};

/* SPDX-License-Identifier: MIT
 *
 * Llama 3 (Dubey et al. 2024), with the RoPE scaling of 3.1. RoPE rotates neighbouring pairs, as torchtitan does;
 * Hugging Face's files have the rows of q and k permuted for rotating halves. Files of Mistral are the same but for a
 * sliding window, which all layers may have; a model without one is written as Llama.
 */
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define LLAMA_3_1_ROPE                                                                                                 \
    {.theta = 500000.0, .factor = 8.0, .low_freq_factor = 1.0, .high_freq_factor = 4.0, .original_max = 8192.0}
#define FLAVOR(text, d, l, h, k, f, v, t)                                                                              \
    {.name = (text), .dims = {.dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .ffn_dim = (f),          \
                              .vocab_size = (v), .norm_eps = 1e-5F, .rope = LLAMA_3_1_ROPE,                         \
                              .max_positions = 131072, .tied = (t)}}

/* head_dim 0: dim / heads; kv 0: as many as heads. Both follow overrides of dim and heads. */
static const struct tt_flavor flavors[] = {
    /*     name          dim    layers heads kv  ffn    vocab  tied */
    FLAVOR("debugmodel", 256,   6,     16,   0,  768,   2048,   0),
    FLAVOR("125M",       768,   12,    12,   4,  2048,  32000,  0),
    FLAVOR("1B",         2048,  16,    32,   8,  8192,  128256, 1),
    FLAVOR("3B",         3072,  28,    24,   8,  8192,  128256, 1),
    FLAVOR("8B",         4096,  32,    32,   8,  14336, 128256, 0),
    FLAVOR("70B",        8192,  80,    64,   8,  28672, 128256, 0),
    FLAVOR("405B",       16384, 126,   128,  8,  53248, 128256, 0),
};
/* clang-format on */

static void *write_hf_config(const struct tt_model *model)
{
    int64_t window = model->dims.sliding_window;
    json_t *config = tt_hf_config_new(model, window ? "MistralForCausalLM" : "LlamaForCausalLM");

    tt_hf_config_decoder(config, model);
    if (window)
        (void)json_object_update_new(config, json_pack("{s:s, s:I}", "model_type", tt_model_llama3.hf_same_as,
                                                       "sliding_window", (json_int_t)window));
    else
        (void)json_object_set_new(config, "mlp_bias", json_false());
    return config;
}

static const struct tt_decoder decoder = {0};

static void add_params(struct tt_model *model)
{
    tt_decoder_params(model, &decoder);
}

static void build(const struct tt_model *model, int64_t batch, int64_t seq_len, struct tt_graph *graph)
{
    tt_decoder_build(model, &decoder, batch, seq_len, graph);
}

const struct tt_model_row tt_model_llama3 = {
    .name = "llama3",
    .flavors = flavors,
    .n_flavors = (int)(sizeof flavors / sizeof *flavors),
    .hf_model_type = "llama",
    .hf_same_as = "mistral", /* which may have sliding windows */
    .hf_blocks = "model.layers.",
    .adaptable = true,
    .read_hf_config = tt_decoder_read_hf,
    .write_hf_config = write_hf_config,
    .add_params = add_params,
    .build = build,
};

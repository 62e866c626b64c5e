/* SPDX-License-Identifier: MIT
 *
 * ERNIE 4.5's dense models (Baidu 2025): Llama's blocks, of which the configuration says whether all linear layers have
 * biases. RoPE turns pairs (2i, 2i+1), in Hugging Face's files too. torchtitan has no such model; parameters have its
 * names and init rules, and biases begin as zeros.
 */
#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

#define SIZES                                                                                      \
    .dim = 1024, .n_layers = 18, .n_heads = 16, .n_kv_heads = 2, .head_dim = 128, .ffn_dim = 3072, \
    .vocab_size = 103424, .norm_eps = 1e-5F, .rope = {.theta = 500000.0}, .max_positions = 131072, .tied = 1

static const struct tt_flavor flavors[] = {
    {.name = "debugmodel",
     .dims = {.dim = 256,
              .n_layers = 6,
              .n_heads = 16,
              .n_kv_heads = 4,
              .head_dim = 32,
              .ffn_dim = 768,
              .vocab_size = 2048,
              .norm_eps = 1e-5F,
              .rope = {.theta = 500000.0},
              .max_positions = 4096,
              .tied = 1}},
    {.name = "0.3B", .dims = {SIZES}},
};

static const struct tt_hf_class classes[] = {
    {.type = "ernie4_5", .architecture = "Ernie4_5ForCausalLM", .reads = "decoder use_bias", .dims = {SIZES}},
};

static int read_hf_config(const void *config, const char *where, struct tt_model_dims *d)
{
    bool bias = false;
    int rc = tt_hf_bool(config, "use_bias", bias, where, &bias);

    d->qkv_bias = d->out_bias = d->mlp_bias = bias;
    return rc;
}

static void write_hf_config(const struct tt_model *model, void *config)
{
    (void)json_object_set_new(config, "use_bias", json_boolean(model->dims.mlp_bias));
    (void)json_object_del(config, "attention_bias");
}

static const struct tt_decoder decoder = {.pairs_in_files = true};

static const struct tt_gguf_size sizes[] = {TT_GGUF_DECODER};
static const struct tt_gguf_arch archs[] = {
    {.name = "ernie4_5", .size = sizes, .n_sizes = TT_COUNT(sizes), .biases = TT_GGUF_NO_BIAS}};

const struct tt_model_row tt_model_ernie4_5 = {
    .name = "ernie4_5",
    TT_MODEL_TABLES,
    TT_MODEL_LLAMA_NAMES,
    .decoder = &decoder,
    .parts = &tt_decoder_parts,
    .adaptable = true,
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
};

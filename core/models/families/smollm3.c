/* SPDX-License-Identifier: MIT
 *
 * SmolLM3 (Hugging Face 2025): Llama's blocks; every fourth one rotates neither q nor k. RoPE rotates halves and the
 * layout is that of Hugging Face's files. torchtitan has no such model; parameters have its names and init rules.
 */
#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define FLAVOR(text, d, l, h, k, f, v, p)                                                                              \
    {.name = (text), .dims = {.dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .ffn_dim = (f),          \
                              .vocab_size = (v), .norm_eps = 1e-6F, .rope = {.theta = 5000000.0},                      \
                              .max_positions = (p), .tied = 1, .unrotated = {.every = 4}}}

static const struct tt_flavor flavors[] = {
    /*     name          dim   layers heads kv ffn    vocab   positions */
    FLAVOR("debugmodel", 256,  6,     16,   4, 768,   2048,   4096),
    FLAVOR("3B",         2048, 36,    16,   4, 11008, 128256, 65536),
};
/* clang-format on */

static const struct tt_hf_class classes[] = {
    {.type = "smollm3",
     .architecture = "SmolLM3ForCausalLM",
     .reads = "decoder mlp_bias no_rope_layers no_rope_layer_interval max_window_layers",
     .attention_bias = TT_HF_BIAS_ALL,
     .mlp_bias = true,
     .dims = {.dim = 2048,
              .n_layers = 36,
              .n_heads = 16,
              .n_kv_heads = 4,
              .ffn_dim = 11008,
              .vocab_size = 128256,
              .norm_eps = 1e-6F,
              .rope = {.theta = 2000000.0},
              .max_positions = 32768,
              .tied = 1,
              .unrotated = {.every = 4}},
     .window = {.needs_use = true}},
};

/* A 0 in no_rope_layers means what the key's name says. */
static bool is_unrotated(const json_t *member)
{
    return json_is_integer(member) && json_integer_value(member) == 0;
}

static int read_hf_config(const void *config, const char *where, struct tt_model_dims *d)
{
    const json_t *listed = json_object_get(config, "no_rope_layers");
    int rc = 0;

    TT_TRY(tt_hf_int(config, "no_rope_layer_interval", d->unrotated.every, where, &d->unrotated.every));
    if (!listed || json_is_null(listed))
        return 0;
    if (!json_is_array(listed) || (int64_t)json_array_size(listed) < d->n_layers)
        return tt_fail(TT_EDATA, "%s: no_rope_layers must be a list of %lld numbers, one for each layer", where,
                       (long long)d->n_layers);
    for (size_t l = 0; l < json_array_size(listed); l++)
        if (!json_is_integer(json_array_get(listed, l)) || json_integer_value(json_array_get(listed, l)) / 2 != 0)
            return tt_fail(TT_EDATA, "%s: no_rope_layers[%zu] must be 0 or 1", where, l);
    TT_TRY(tt_hf_layers(listed, d->n_layers, is_unrotated, "no_rope_layers", where, &d->unrotated));
out:
    return rc;
}

static void write_hf_config(const struct tt_model *model, void *config)
{
    const struct tt_layers *unrotated = &model->dims.unrotated;
    json_t *rotated = json_array();

    for (int64_t l = 0; l < model->dims.n_layers; l++)
        (void)json_array_append_new(rotated, json_integer(tt_layers_have(unrotated, l) ? 0 : 1));
    (void)json_object_update_new(config, json_pack("{s:o, s:I}", "no_rope_layers", rotated, "no_rope_layer_interval",
                                                   (json_int_t)(unrotated->every > 0 ? unrotated->every : 4)));
}

static const struct tt_decoder decoder = {.rotate_half = true};

static const struct tt_gguf_size sizes[] = {TT_GGUF_DECODER};
static const struct tt_gguf_arch archs[] = {
    {.name = "smollm3", .size = sizes, .n_sizes = TT_COUNT(sizes), .biases = TT_GGUF_NO_BIAS, .unrotated_every = 4}};
/* In llama.cpp, the rows of q and k are ordered for pairs. */
static const struct tt_gguf_name names[] = {
    {.ours = "attention.wq.weight", .theirs = "attn_q.weight", .layout = TT_GGUF_PAIRS},
    {.ours = "attention.wq.bias", .theirs = "attn_q.bias", .layout = TT_GGUF_PAIRS},
    {.ours = "attention.wk.weight", .theirs = "attn_k.weight", .layout = TT_GGUF_PAIRS},
    {.ours = "attention.wk.bias", .theirs = "attn_k.bias", .layout = TT_GGUF_PAIRS},
};

const struct tt_model_row tt_model_smollm3 = {
    .name = "smollm3",
    TT_MODEL_TABLES,
    .gguf_names = names,
    .n_gguf_names = TT_COUNT(names),
    TT_MODEL_LLAMA_NAMES,
    .decoder = &decoder,
    .parts = &tt_decoder_parts,
    .adaptable = true,
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
};

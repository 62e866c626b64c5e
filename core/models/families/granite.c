/* SPDX-License-Identifier: MIT
 *
 * Granite 3 (IBM 2024): Llama's blocks with four constant factors: for the embeddings, for the output that a block adds
 * to the residual, for the scores of attention, and for the logits. RoPE rotates halves and the layout is that of
 * Hugging Face's files. torchtitan has no such model; parameters have its names and init rules.
 */
#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define FLAVOR(text, d, l, h, k, f, v, p, scores, logits)                                                              \
    {.name = (text), .dims = {.dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .ffn_dim = (f),          \
                              .vocab_size = (v), .norm_eps = 1e-5F, .rope = {.theta = 10000000.0},                     \
                              .max_positions = (p), .tied = 1,                                                         \
                              .multipliers = {12.0, 0.22, 1.0 / (scores), 1.0 / (logits)}}}

static const struct tt_flavor flavors[] = {
    /*     name          dim   layers heads kv ffn    vocab  positions 1/scores 1/logits */
    FLAVOR("debugmodel", 256,  6,     16,   4, 768,   2048,  4096,     16.0,    8.0),
    FLAVOR("2B",         2048, 40,    32,   8, 8192,  49159, 131072,   64.0,    8.0),
    FLAVOR("8B",         4096, 40,    32,   8, 12800, 49159, 131072,   128.0,   16.0),
};
/* clang-format on */

static const struct tt_hf_class classes[] = {
    {.type = "granite",
     .architecture = "GraniteForCausalLM",
     .reads = "decoder mlp_bias dropout embedding_multiplier residual_multiplier attention_multiplier logits_scaling",
     .attention_bias = TT_HF_BIAS_ALL,
     .mlp_bias = true,
     .dims = {.dim = 4096,
              .n_layers = 32,
              .n_heads = 32,
              .ffn_dim = 11008,
              .vocab_size = 32000,
              .norm_eps = 1e-6F,
              .rope = {.theta = 10000.0},
              .max_positions = 2048,
              .multipliers = {1.0, 1.0, 1.0, 1.0}}},
};

static int read_hf_config(const void *config, const char *where, struct tt_model_dims *d)
{
    static const struct tt_hf_key keys[] = {
        TT_HF_KEY("embedding_multiplier", NULL, REAL, multipliers.embedding),
        TT_HF_KEY("residual_multiplier", NULL, REAL, multipliers.residual),
        TT_HF_KEY("attention_multiplier", NULL, REAL, multipliers.attention),
        TT_HF_KEY("logits_scaling", NULL, REAL, multipliers.logits),
    };
    const double *const read[] = {&d->multipliers.embedding, &d->multipliers.residual, &d->multipliers.attention,
                                  &d->multipliers.logits};
    int rc = 0;

    TT_TRY(tt_hf_read(config, keys, TT_COUNT(keys), where, d));
    for (int i = 0; i < TT_COUNT(keys); i++)
        if (!(*read[i] > 0.0))
            return tt_fail(TT_EDATA, "%s: %s must be a positive number", where, keys[i].key);
    d->multipliers.logits = 1.0 / d->multipliers.logits;
out:
    return rc;
}

static void write_hf_config(const struct tt_model *model, void *config)
{
    const struct tt_multipliers *m = &model->dims.multipliers;

    (void)json_object_update_new(config, json_pack("{s:f, s:f, s:f, s:f}", "embedding_multiplier", m->embedding,
                                                   "residual_multiplier", m->residual, "attention_multiplier",
                                                   m->attention, "logits_scaling", 1.0 / m->logits));
}

static const struct tt_decoder decoder = {.rotate_half = true};

static const struct tt_gguf_size sizes[] = {TT_GGUF_DECODER,
                                            TT_GGUF_SIZE("embedding_scale", REAL, multipliers.embedding, true),
                                            TT_GGUF_SIZE("residual_scale", REAL, multipliers.residual, true),
                                            TT_GGUF_SIZE("attention.scale", REAL, multipliers.attention, true),
                                            TT_GGUF_SIZE("logit_scale", DIVISOR, multipliers.logits, false)};
static const struct tt_gguf_arch archs[] = {{.name = "granite", .size = sizes, .n_sizes = TT_COUNT(sizes)}};
/* In llama.cpp, the rows of q and k are ordered for pairs. */
static const struct tt_gguf_name names[] = {
    {.ours = "attention.wq.weight", .theirs = "attn_q.weight", .layout = TT_GGUF_PAIRS},
    {.ours = "attention.wq.bias", .theirs = "attn_q.bias", .layout = TT_GGUF_PAIRS},
    {.ours = "attention.wk.weight", .theirs = "attn_k.weight", .layout = TT_GGUF_PAIRS},
    {.ours = "attention.wk.bias", .theirs = "attn_k.bias", .layout = TT_GGUF_PAIRS},
};

const struct tt_model_row tt_model_granite = {
    .name = "granite",
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

/* SPDX-License-Identifier: MIT
 *
 * Gemma 2 (Gemma Team 2024) and the language models of Gemma 3 (2025): blocks with norms before and after both parts,
 * whose weights are 1 + w, a feed-forward gated by GELU, embeddings times sqrt(D), and their own scale of scores. Gemma
 * 2 caps scores and logits; every other layer has a window. Gemma 3 normalises the heads of q and k; five of six layers
 * have a window and their own RoPE. RoPE rotates halves and the layout is the same as in Hugging Face's files.
 * torchtitan has no such models, but the parameters follow its names and init rules.
 */
#include <math.h>

#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define SIZES(d, l, h, k, e, f, v, p, window, scale)                                                                   \
    .dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .head_dim = (e), .ffn_dim = (f),                   \
    .vocab_size = (v), .norm_eps = 1e-6F, .max_positions = (p), .tied = 1, .sliding_window = (window),                 \
    .multipliers = {.attention = (scale)}

#define FLAVOR_2(text, ...) {.name = (text), .dims = {SIZES(__VA_ARGS__), .rope = {.theta = 10000.0},                  \
                                                      .score_cap = 50.0, .logit_cap = 30.0}}

#define FLAVOR_3(text, ...) {.name = (text), .dims = {SIZES(__VA_ARGS__), .rope = {.theta = 1e6},                      \
                                                      .full = {.every = 6}, .local_theta = 10000.0}}

#define FLAVOR_3_LONG(text, ...) {.name = (text), .dims = {SIZES(__VA_ARGS__),                                         \
                                                           .rope = {.theta = 1e6, .factor = 8.0, .linear = true,       \
                                                                    .original_max = 131072.0},                         \
                                                           .full = {.every = 6}, .local_theta = 10000.0}}

static const struct tt_flavor flavors_2[] = {
    /*       name          dim   layers heads kv  head ffn    vocab   positions window scale of scores */
    FLAVOR_2("debugmodel", 256,  6,     16,   4,  16,  768,   2048,   4096,     1024,  0.25),
    FLAVOR_2("2B",         2304, 26,    8,    4,  256, 9216,  256000, 8192,     4096,  0.0625),
    FLAVOR_2("9B",         3584, 42,    16,   8,  256, 14336, 256000, 8192,     4096,  0.0625),
    FLAVOR_2("27B",        4608, 46,    32,   16, 128, 36864, 256000, 8192,     4096,  1.0 / 12.0),
};

static const struct tt_flavor flavors_3[] = {
    FLAVOR_3("debugmodel", 256,  6,     16,   4,  16,  768,   2048,   4096,     512,   0.25),
    FLAVOR_3("270M",       640,  18,    4,    1,  256, 2048,  262144, 32768,    512,   0.0625),
    FLAVOR_3("1B",         1152, 26,    4,    1,  256, 6912,  262144, 32768,    512,   0.0625),
    FLAVOR_3_LONG("4B",    2560, 34,    8,    4,  256, 10240, 262208, 131072,   1024,  0.0625),
    FLAVOR_3_LONG("12B",   3840, 48,    16,   8,  256, 15360, 262208, 131072,   1024,  0.0625),
    FLAVOR_3_LONG("27B",   5376, 62,    32,   16, 128, 21504, 262208, 131072,   1024,  0.077151674981045956),
};
/* clang-format on */

#define READS                                                                                         \
    "decoder hidden_activation query_pre_attn_scalar attn_logit_softcapping final_logit_softcapping " \
    "rope_local_base_freq sliding_window_pattern"
#define CLASS_SIZES                                                                                                  \
    .dim = 2304, .n_layers = 26, .n_heads = 8, .n_kv_heads = 4, .head_dim = 256, .ffn_dim = 9216, .norm_eps = 1e-6F, \
    .tied = 1, .multipliers = {.attention = 0.0625}

static const struct tt_hf_class classes_2[] = {
    {.type = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .reads = READS,
     .attention_bias = TT_HF_BIAS_ALL,
     .dims = {CLASS_SIZES, .vocab_size = 256000, .rope = {.theta = 10000.0}, .max_positions = 8192, .score_cap = 50.0,
              .logit_cap = 30.0},
     .window = {.absent = 4096, .any = true, .by_layers = true, .every = 2}},
};

static const struct tt_hf_class classes_3[] = {
    {.type = "gemma3_text",
     .architecture = "Gemma3ForCausalLM",
     .within = "gemma3",
     .reads = READS,
     .attention_bias = TT_HF_BIAS_ALL,
     .dims = {CLASS_SIZES, .vocab_size = 262208, .rope = {.theta = 1e6}, .local_theta = 10000.0,
              .max_positions = 131072},
     .window = {.absent = 4096, .any = true, .by_layers = true, .every = 6}},
};

/* A cap; null means that there is none. */
static int read_cap(const json_t *config, const char *key, const char *where, double *cap)
{
    int rc = 0;

    if (json_is_null(json_object_get(config, key))) {
        *cap = 0.0;
        return 0;
    }
    TT_TRY(tt_hf_real(config, key, *cap, where, cap));
    if (tt_hf_member(config, key) && !(*cap > 0.0))
        return tt_fail(TT_EDATA, "%s: %s must be a positive number or null", where, key);
out:
    return rc;
}

static int read_hf_config(const void *config, const char *where, struct tt_model_dims *d)
{
    double scalar = 1.0 / (d->multipliers.attention * d->multipliers.attention);
    int rc = 0;

    TT_TRY(tt_hf_must_be_activation(config, "hidden_activation", TT_ACTIVATION_GELU_TANH, where));
    TT_TRY(tt_hf_real(config, "query_pre_attn_scalar", scalar, where, &scalar));
    if (!(scalar > 0.0))
        return tt_fail(TT_EDATA, "%s: query_pre_attn_scalar must be a positive number", where);
    d->multipliers.attention = 1.0 / sqrt(scalar);
    TT_TRY(read_cap(config, "attn_logit_softcapping", where, &d->score_cap));
    TT_TRY(read_cap(config, "final_logit_softcapping", where, &d->logit_cap));
out:
    return rc;
}

/* Older files store the period of layers without a window, and the RoPE of the others, under other names. */
static int read_hf_config_3(const void *config, const char *where, struct tt_model_dims *d)
{
    const json_t *newer = tt_hf_member(tt_hf_member(config, "rope_parameters"), "sliding_attention");
    int rc = 0;

    TT_TRY(read_hf_config(config, where, d));
    if (d->score_cap > 0.0) {
        tt_note("%s: attn_logit_softcapping has no effect: transformers' %s does not cap scores", where,
                classes_3[0].type);
        d->score_cap = 0.0;
    }
    if (!newer)
        TT_TRY(tt_hf_real(config, "rope_local_base_freq", classes_3[0].dims.local_theta, where, &d->local_theta));
    if (!(d->local_theta > 0.0) || !isfinite(d->local_theta))
        return tt_fail(TT_EDATA, "%s: rope_local_base_freq must be a positive number", where);
    if (!tt_hf_member(config, "layer_types"))
        TT_TRY(tt_hf_int(config, "sliding_window_pattern", d->full.every, where, &d->full.every));
out:
    return rc;
}

static json_t *cap_or_null(double cap)
{
    return cap > 0.0 ? tt_json_number(cap) : json_null();
}

static void write_hf_config(const struct tt_model *model, void *config)
{
    const struct tt_model_dims *d = &model->dims;
    double scalar = 1.0 / (d->multipliers.attention * d->multipliers.attention), whole = round(scalar);

    (void)json_object_update_new(
        config, json_pack("{s:o, s:o, s:o, s:o}", "hidden_activation", tt_hf_activation(TT_ACTIVATION_GELU_TANH),
                          "query_pre_attn_scalar",
                          fabs(scalar - whole) < 1e-9 * scalar ? json_integer((json_int_t)whole) : json_real(scalar),
                          "attn_logit_softcapping", cap_or_null(d->score_cap), "final_logit_softcapping",
                          cap_or_null(d->logit_cap)));
}

#define NORMS                                                                                \
    .hf_norms = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", \
                 "post_feedforward_layernorm"}

static const struct tt_decoder decoder_2 = {
    .rotate_half = true, .activation = TT_ACTIVATION_GELU_TANH, .scaled_embeddings = true, NORMS};

static const struct tt_decoder decoder_3 = {.rotate_half = true,
                                            .activation = TT_ACTIVATION_GELU_TANH,
                                            .scaled_embeddings = true,
                                            .qk_norm = TT_QK_HEADS,
                                            NORMS};

/* In GGUF files the scale of scores follows from the sizes; the 27B models of both families have another rule. */
static double scale_by_width(const struct tt_model_dims *d, int64_t layers)
{
    return 1.0 / sqrt((double)(d->n_layers == layers ? d->dim / d->n_heads : d->head_dim));
}

static double score_scale_2(const struct tt_model_dims *d)
{
    return scale_by_width(d, 46);
}

static double score_scale_3(const struct tt_model_dims *d)
{
    return scale_by_width(d, 62);
}

static const struct tt_gguf_size sizes_2[] = {TT_GGUF_DECODER, TT_GGUF_WINDOW,
                                              TT_GGUF_SIZE("attn_logit_softcapping", REAL, score_cap, false),
                                              TT_GGUF_SIZE("final_logit_softcapping", REAL, logit_cap, false)};
static const struct tt_gguf_size sizes_3[] = {TT_GGUF_DECODER, TT_GGUF_WINDOW};
static const struct tt_gguf_arch archs_2[] = {{.name = "gemma2",
                                               .size = sizes_2,
                                               .n_sizes = TT_COUNT(sizes_2),
                                               .biases = TT_GGUF_NO_BIAS,
                                               .tied = true,
                                               .window_period = 2,
                                               .needs_window = true,
                                               .score_scale = score_scale_2}};
static const struct tt_gguf_arch archs_3[] = {{.name = "gemma3",
                                               .size = sizes_3,
                                               .n_sizes = TT_COUNT(sizes_3),
                                               .biases = TT_GGUF_NO_BIAS,
                                               .window_period = 6,
                                               .needs_window = true,
                                               .local_rope = true,
                                               .local_theta = 10000.0,
                                               .score_scale = score_scale_3}};

const struct tt_model_row tt_model_gemma2 = {
    .name = "gemma2",
    .flavors = flavors_2,
    .n_flavors = TT_COUNT(flavors_2),
    .classes = classes_2,
    .n_classes = TT_COUNT(classes_2),
    .archs = archs_2,
    .n_archs = TT_COUNT(archs_2),
    TT_MODEL_LLAMA_NAMES,
    .norm = TT_NORM_RMS_OFFSET,
    .decoder = &decoder_2,
    .parts = &tt_decoder_parts,
    .adaptable = true,
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
};

const struct tt_model_row tt_model_gemma3 = {
    .name = "gemma3",
    .flavors = flavors_3,
    .n_flavors = TT_COUNT(flavors_3),
    .classes = classes_3,
    .n_classes = TT_COUNT(classes_3),
    .archs = archs_3,
    .n_archs = TT_COUNT(archs_3),
    TT_MODEL_LLAMA_NAMES,
    .norm = TT_NORM_RMS_OFFSET,
    .decoder = &decoder_3,
    .parts = &tt_decoder_parts,
    .adaptable = true,
    .read_hf_config = read_hf_config_3,
    .write_hf_config = write_hf_config,
};

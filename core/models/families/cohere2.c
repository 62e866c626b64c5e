/* SPDX-License-Identifier: MIT
 *
 * Cohere's Command R7B and Command A (2024, 2025), and the older Command R and Aya: blocks whose attention and
 * feed-forward read the same x through one LayerNorm without a bias. Three of four layers of the newer models have a
 * window and RoPE, the fourth has neither; the older ones have RoPE in all layers, and Command R+ has norms of q and k
 * with weights of each head's own. Logits are scaled. RoPE turns pairs (2i, 2i+1), in Hugging Face's files too.
 * torchtitan has no such models; parameters have its names and init rules.
 */
#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define SIZES(d, l, h, k, f, v, base, p, scale)                                                                        \
    .dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .ffn_dim = (f), .vocab_size = (v),                 \
    .norm_eps = 1e-5F, .rope = {.theta = (base)}, .max_positions = (p), .tied = 1, .parallel = true,                   \
    .multipliers = {.logits = (scale)}

#define FLAVOR_1(text, ...) {.name = (text), .dims = {SIZES(__VA_ARGS__)}}

#define FLAVOR_P(text, ...) {.name = (text), .dims = {SIZES(__VA_ARGS__), .head_norms = true}}

#define FLAVOR_2(text, window, ...) {.name = (text), .dims = {SIZES(__VA_ARGS__), .sliding_window = (window),          \
                                                              .full = {.every = 4}, .unrotated = {.every = 4}}}

static const struct tt_flavor flavors[] = {
    /*       name           window dim    layers heads kv  ffn    vocab   theta       positions logits */
    FLAVOR_2("debugmodel",  1024,  256,   6,     16,   4,  768,   2048,   50000.0,    4096,     0.25),
    FLAVOR_2("7B",          4096,  4096,  32,    32,   8,  14336, 256000, 50000.0,    132096,   0.25),
    FLAVOR_2("111B",        4096,  12288, 64,    96,   8,  36864, 256000, 50000.0,    131072,   0.25),
    FLAVOR_1("aya-8B",             4096,  32,    32,   8,  14336, 256000, 10000.0,    8192,     0.125),
    FLAVOR_1("R-32B",              8192,  40,    64,   8,  24576, 256000, 4000000.0,  131072,   0.0625),
    FLAVOR_1("R-35B",              8192,  40,    64,   64, 22528, 256000, 8000000.0,  8192,     0.0625),
    FLAVOR_P("R-plus-104B",        12288, 64,    96,   8,  33792, 256000, 75000000.0, 8192,     5.0 / 6.0),
};
/* clang-format on */

enum { COHERE2, COHERE };

#define CLASS_SIZES                                                                                        \
    .dim = 8192, .n_layers = 40, .n_heads = 64, .ffn_dim = 22528, .vocab_size = 256000, .norm_eps = 1e-5F, \
    .max_positions = 8192, .tied = 1, .parallel = true, .multipliers = {.logits = 0.0625}

static const struct tt_hf_class classes[] = {
    [COHERE2] = {.type = "cohere2",
                 .architecture = "Cohere2ForCausalLM",
                 .reads = "decoder cohere logit_scale layer_norm_eps sliding_window_pattern position_embedding_type",
                 .eps = "layer_norm_eps",
                 .attention_bias = TT_HF_BIAS_ALL,
                 .dims = {CLASS_SIZES, .rope = {.theta = 10000.0}},
                 .window = {.absent = 4096, .any = true, .by_layers = true, .every = 4}},
    [COHERE] = {.type = "cohere",
                .architecture = "CohereForCausalLM",
                .reads = "decoder logit_scale layer_norm_eps use_qk_norm",
                .eps = "layer_norm_eps",
                .attention_bias = TT_HF_BIAS_ALL,
                .dims = {CLASS_SIZES, .rope = {.theta = 500000.0}}},
};

static int class_of(const struct tt_model_dims *d)
{
    return d->sliding_window > 0 || d->unrotated.every || d->unrotated.bits ? COHERE2 : COHERE;
}

/* Cohere2's layers without a window have no RoPE. Keys of Cohere's own code must say what all its models have. */
static int read_layers(const json_t *config, const char *where, struct tt_model_dims *d)
{
    static const char *const always[] = {"use_embedding_sharing", "use_gated_activation", "use_parallel_block",
                                         "use_parallel_embedding"};
    int rc = 0;

    if (d->sliding_window > 0 && !tt_hf_member(config, "layer_types"))
        TT_TRY(tt_hf_int(config, "sliding_window_pattern", d->full.every, where, &d->full.every));
    TT_TRY(tt_hf_rotate_windows(where, d));
    TT_TRY(tt_hf_must_be(config, "position_embedding_type", "rope_gptj", where));
    for (int i = 0; i < TT_COUNT(always); i++)
        TT_TRY(tt_hf_must_be_flag(config, always[i], true, where));
out:
    return rc;
}

static int read_hf_config(const void *config, const char *where, struct tt_model_dims *d)
{
    static const struct tt_hf_key scale = TT_HF_KEY("logit_scale", NULL, REAL, multipliers.logits);
    int rc = 0;

    TT_TRY(tt_hf_read(config, &scale, 1, where, d));
    if (!(d->multipliers.logits > 0.0))
        return tt_fail(TT_EDATA, "%s: logit_scale must be a positive number", where);
    if (tt_hf_class(config) == &classes[COHERE2])
        TT_TRY(read_layers(config, where, d));
    else
        TT_TRY(tt_hf_bool(config, "use_qk_norm", false, where, &d->head_norms));
out:
    return rc;
}

static void write_hf_config(const struct tt_model *model, void *config)
{
    double scale = model->dims.multipliers.logits;

    if (class_of(&model->dims) == COHERE)
        (void)json_object_set_new(config, "use_qk_norm", json_boolean(model->dims.head_norms));
    (void)json_object_set_new(config, "logit_scale", tt_json_number(scale != 0.0 ? scale : 1.0));
}

static const struct tt_decoder decoder = {
    .head_norms = TT_QK_EACH, .pairs_in_files = true, .hf_norms = {.before_attention = "input_layernorm"}};

#define GGUF_ARCH(name_, sizes_)                                                                             \
    .name = (name_), .size = (sizes_), .n_sizes = TT_COUNT(sizes_), .biases = TT_GGUF_NO_BIAS, .tied = true, \
    .parallel = true, .full_heads = true

static const struct tt_gguf_size sizes_1[] = {TT_GGUF_LAYER_NORM,
                                              TT_GGUF_SIZE("logit_scale", REAL, multipliers.logits, true)};
static const struct tt_gguf_size sizes_2[] = {TT_GGUF_LAYER_NORM, TT_GGUF_WINDOW,
                                              TT_GGUF_SIZE("logit_scale", REAL, multipliers.logits, false)};
static const struct tt_gguf_arch archs[] = {
    {GGUF_ARCH("command-r", sizes_1), .windowless = true, .plain_layers = 63},
    {GGUF_ARCH("cohere2", sizes_2), .window_period = 4, .needs_window = true, .unrotated_every = 4},
};

const struct tt_model_row tt_model_cohere2 = {
    .name = "cohere2",
    TT_MODEL_TABLES,
    TT_MODEL_LLAMA_NAMES,
    .norm = TT_NORM_LAYER_PLAIN,
    .decoder = &decoder,
    .parts = &tt_decoder_parts,
    .class_of = class_of,
    .adaptable = true,
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
};

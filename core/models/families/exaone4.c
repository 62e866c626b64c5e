/* SPDX-License-Identifier: MIT
 *
 * EXAONE 4 (LG AI Research 2025): Llama's blocks with norms after attention and feed-forward, before the residual, and
 * an RMSNorm in every head of q and k. Three of four layers of the large model have a window, and the others have no
 * RoPE; the small model has neither windows nor layers without RoPE. RoPE rotates halves and the layout is that of
 * Hugging Face's files. torchtitan has no such model; parameters have its names and init rules.
 */
#include "core/base/error.h"
#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define SIZES(d, l, h, k, e, f, v, p, t)                                                                               \
    .dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .head_dim = (e), .ffn_dim = (f),                   \
    .vocab_size = (v), .norm_eps = 1e-5F, .max_positions = (p), .tied = (t),                                           \
    .rope = {.theta = 1000000.0, .factor = 16.0, .low_freq_factor = 1.0, .high_freq_factor = 4.0,                      \
             .original_max = 8192.0}
#define WINDOW(n) .sliding_window = (n), .full = {.every = 4}, .unrotated = {.every = 4}

static const struct tt_flavor flavors[] = {
    /*                      dim   layers heads kv head ffn    vocab   positions tied */
    {"debugmodel", {SIZES(  256,  6,     16,   4, 16,  768,   2048,   4096,     1), WINDOW(1024)}},
    {"1.2B",       {SIZES(  2048, 30,    32,   8, 64,  4096,  102400, 65536,    1)}},
    {"32B",        {SIZES(  5120, 64,    40,   8, 128, 27392, 102400, 131072,   0), WINDOW(4096)}},
};
/* clang-format on */

static const struct tt_hf_class classes[] = {
    {.type = "exaone4",
     .architecture = "Exaone4ForCausalLM",
     .reads = "decoder sliding_window_pattern",
     .dims = {.dim = 4096,
              .n_layers = 32,
              .n_heads = 32,
              .n_kv_heads = 32,
              .ffn_dim = 16384,
              .vocab_size = 102400,
              .norm_eps = 1e-5F,
              .rope = {.theta = 10000.0},
              .max_positions = 2048},
     .window = {.absent = 4096, .any = true, .by_layers = true, .every = 4}},
};

/* In a model with a window, layers without it have no RoPE. layer_types take precedence over the pattern, which is a
 * number, or a text that only the lists of published files explain. */
static int read_hf_config(const void *config, const char *where, struct tt_model_dims *d)
{
    const json_t *window = json_object_get(config, "sliding_window");

    if (json_is_null(window))
        return 0;
    if (d->sliding_window == 0)
        return tt_fail(TT_EDATA,
                       "%s: sliding_window is set, but layer_types give it to no layer: then the class has no RoPE at "
                       "all, which is not supported\nhelp: set sliding_window to null if the model has no windows",
                       where);
    if (!tt_hf_member(config, "layer_types")) {
        int rc = tt_hf_int(config, "sliding_window_pattern", d->full.every, where, &d->full.every);

        if (rc < 0)
            return rc;
    }
    return tt_hf_rotate_windows(where, d);
}

/* Without a window the class needs the list of layers too. */
static void write_hf_config(const struct tt_model *model, void *config)
{
    json_t *types;

    if (model->dims.sliding_window > 0)
        return;
    types = json_array();
    for (int64_t l = 0; l < model->dims.n_layers; l++)
        (void)json_array_append_new(types, json_string("full_attention"));
    (void)json_object_set_new(config, "layer_types", types);
}

static const struct tt_decoder decoder = {
    .rotate_half = true,
    .qk_norm = TT_QK_HEADS,
    .hf_norms = {.after_attention = "post_attention_layernorm", .after_ffn = "post_feedforward_layernorm"}};

const struct tt_model_row tt_model_exaone4 = {
    .name = "exaone4",
    .flavors = flavors,
    .n_flavors = TT_COUNT(flavors),
    .classes = classes,
    .n_classes = TT_COUNT(classes),
    TT_MODEL_LLAMA_NAMES,
    .decoder = &decoder,
    .parts = &tt_decoder_parts,
    .adaptable = true,
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
};

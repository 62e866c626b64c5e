/* SPDX-License-Identifier: MIT
 *
 * Phi-3 (Abdin et al. 2024) and Phi-4: Llama's blocks, whose q, k and v are one tensor in Hugging Face's files, as are
 * the gate and the factor of the feed-forward. RoPE rotates halves. torchtitan has no such models; parameters have its
 * names and init rules.
 */
#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define FLAVOR(text, d, l, h, k, f, v, base, p, window)                                                                \
    {.name = (text), .dims = {.dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .ffn_dim = (f),          \
                              .vocab_size = (v), .norm_eps = 1e-5F, .rope = {.theta = (base)}, .max_positions = (p),   \
                              .sliding_window = (window), .window_from = (window) > 0}}

static const struct tt_flavor flavors[] = {
    /*     name          dim   layers heads kv  ffn    vocab   theta     positions window */
    FLAVOR("debugmodel", 256,  6,     16,   4,  768,   2048,   10000.0,  4096,     1024),
    FLAVOR("mini-4k",    3072, 32,    32,   32, 8192,  32064,  10000.0,  4096,     2047),
    FLAVOR("medium-4k",  5120, 40,    40,   10, 17920, 32064,  10000.0,  4096,     2047),
    FLAVOR("4",          5120, 40,    40,   10, 17920, 100352, 250000.0, 16384,    0),
};
/* clang-format on */

static const struct tt_hf_class classes[] = {
    {.type = "phi3",
     .architecture = "Phi3ForCausalLM",
     .reads = "decoder dropout",
     .rotated = 1.0,
     .dims = {.dim = 3072,
              .n_layers = 32,
              .n_heads = 32,
              .ffn_dim = 8192,
              .vocab_size = 32064,
              .norm_eps = 1e-5F,
              .rope = {.theta = 10000.0, .original_max = 4096.0},
              .max_positions = 4096},
     .window = {.any = true}},
};

/* The class of transformers 4 expects the original training length outside the object, which then has 3 members. */
static void write_hf_config(const struct tt_model *model, void *config)
{
    const struct tt_rope *rope = &model->dims.rope;
    int64_t first = rope->factor != 0.0 ? (int64_t)rope->original_max : model->dims.max_positions;

    (void)json_object_del(json_object_get(config, "rope_scaling"), "original_max_position_embeddings");
    (void)json_object_update_new(config, json_pack("{s:f, s:f, s:I}", "resid_pdrop", 0.0, "embd_pdrop", 0.0,
                                                   "original_max_position_embeddings", (json_int_t)first));
}

static const struct tt_decoder decoder = {
    .rotate_half = true,
    .hf_heads = {"self_attn.qkv_proj", "self_attn.qkv_proj", "self_attn.qkv_proj", "self_attn.o_proj"},
    .hf_ffn = {"mlp.gate_up_proj", "mlp.down_proj", "mlp.gate_up_proj"}};

static const struct tt_gguf_size sizes[] = {TT_GGUF_DECODER, TT_GGUF_WINDOW};
static const struct tt_gguf_arch archs[] = {{.name = "phi3",
                                             .size = sizes,
                                             .n_sizes = TT_COUNT(sizes),
                                             .biases = TT_GGUF_NO_BIAS,
                                             .part_rotated = true,
                                             .full_heads = true,
                                             .long_factors = true}};
static const struct tt_gguf_name names[] = {
    {.ours = "attention.wq.weight", .theirs = "attn_qkv.weight", .parts = 3},
    {.ours = "attention.wk.weight", .theirs = "attn_qkv.weight", .part = 1, .parts = 3},
    {.ours = "attention.wv.weight", .theirs = "attn_qkv.weight", .part = 2, .parts = 3},
    {.ours = "feed_forward.w1.weight", .theirs = "ffn_up.weight", .parts = 2},
    {.ours = "feed_forward.w3.weight", .theirs = "ffn_up.weight", .part = 1, .parts = 2},
};

const struct tt_model_row tt_model_phi3 = {
    .name = "phi3",
    TT_MODEL_TABLES,
    .gguf_names = names,
    .n_gguf_names = TT_COUNT(names),
    TT_MODEL_LLAMA_NAMES,
    .decoder = &decoder,
    .parts = &tt_decoder_parts,
    .adaptable = true,
    .write_hf_config = write_hf_config,
};

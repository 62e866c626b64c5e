/* SPDX-License-Identifier: MIT
 *
 * DeepSeek-V3 (DeepSeek-AI 2024) and, with a softmax in its routers, DeepSeek-V2: multi-head latent attention, experts
 * (some of which see all tokens), and dense first layers. RoPE rotates neighbouring pairs, in titan as in Hugging
 * Face's files. Files of DeepSeek-V3 contain one more layer than the configuration says; it predicts a second token,
 * and titan does not read it. GLM-4.5 (GLM Team 2025) has DeepSeek-V3's experts, but Llama's attention, in which RoPE
 * turns the halves of the first half of each head.
 */
#include <string.h>

#include "core/models/gguf.h"
#include "core/models/hf.h"
#include "core/models/internal.h"

/* clang-format off */
#define YARN(m) {.theta = 10000.0, .factor = 40.0, .original_max = 4096.0, .beta_fast = 32.0, .beta_slow = 1.0,       \
                 .mscale = (m), .mscale_all_dim = (m)}
#define FLAVOR(text, d, l, h, q, f, v, m, ...)                                                                         \
    {.name = (text), .dims = {.dim = (d), .n_layers = (l), .n_heads = (h), .head_dim = 192, .ffn_dim = (f),            \
                              .vocab_size = (v), .norm_eps = 1e-6F, .rope = YARN(m), .max_positions = 163840,          \
                              .mla = {.kv_rank = 512, .q_rank = (q), .rope_dim = 64, .value_dim = 128},                \
                              .moe = {__VA_ARGS__}}}

static const struct tt_flavor flavors[] = {
    /*     name          dim   layers heads q_rank ffn    vocab   mscale */
    FLAVOR("debugmodel", 256,  6,     16,   0,     1024,  2048,   0.70,
           .experts = 8, .top_k = 3, .ffn_dim = 256, .shared = 2, .dense_layers = 1, .gates_as_scored = true),
    FLAVOR("16B",        2048, 27,    16,   0,     10944, 102400, 0.707,
           .experts = 64, .top_k = 6, .ffn_dim = 1408, .shared = 2, .dense_layers = 1, .gates_as_scored = true),
    FLAVOR("236B",       5120, 60,    128,  1536,  12288, 102400, 0.707,
           .experts = 160, .top_k = 6, .ffn_dim = 1536, .shared = 2, .dense_layers = 1, .gates_as_scored = true,
           .groups = 8, .kept_groups = 3, .route_scale = 16.0),
    FLAVOR("671B",       7168, 61,    128,  1536,  18432, 129280, 1.0,
           .experts = 256, .top_k = 8, .ffn_dim = 2048, .shared = 1, .dense_layers = 3, .biased = true,
           .score = TT_SCORE_SIGMOID, .groups = 8, .kept_groups = 4, .group_rule = TT_GROUP_TWO_BEST,
           .route_scale = 2.5),
};

#define GLM(text, d, l, h, k, e, f, v, p, norms, ...)                                                                  \
    {.name = (text), .dims = {.dim = (d), .n_layers = (l), .n_heads = (h), .n_kv_heads = (k), .head_dim = (e),         \
                              .rotary_dim = (e) / 2, .ffn_dim = (f), .vocab_size = (v), .norm_eps = 1e-5F,             \
                              .rope = {.theta = 1000000.0}, .max_positions = (p), .qkv_bias = true,                    \
                              .head_norms = (norms),                                                                   \
                              .moe = {.shared = 1, .biased = true, .score = TT_SCORE_SIGMOID,                          \
                                      .group_rule = TT_GROUP_TWO_BEST, __VA_ARGS__}}}

static const struct tt_flavor flavors_glm[] = {
    /*  name          dim   layers heads kv head ffn    vocab   positions norms */
    GLM("debugmodel", 256,  6,     16,   4, 16,  768,   2048,   4096,     true,
        .experts = 8, .top_k = 3, .ffn_dim = 128, .dense_layers = 1, .route_scale = 1.5),
    GLM("4.5-Air",    4096, 46,    96,   8, 128, 10944, 151552, 131072,   false,
        .experts = 128, .top_k = 8, .ffn_dim = 1408, .dense_layers = 1, .route_scale = 1.0),
    GLM("4.5",        5120, 92,    96,   8, 128, 12288, 151552, 131072,   true,
        .experts = 160, .top_k = 8, .ffn_dim = 1536, .dense_layers = 3, .route_scale = 2.5),
};
/* clang-format on */

/* --- config.json --- */

#define LATENTS .head_dim = 192, .mla = {.kv_rank = 512, .q_rank = 1536, .rope_dim = 64, .value_dim = 128}

static const struct tt_hf_class classes[] = {
    {.type = "deepseek_v3",
     .architecture = "DeepseekV3ForCausalLM",
     .copy = "kimi_k2",
     .reads = "decoder mlp_bias experts latents routed num_local_experts moe_intermediate_size norm_topk_prob",
     .dims = {.dim = 7168,
              .n_layers = 61,
              .n_heads = 128,
              .ffn_dim = 18432,
              .vocab_size = 129280,
              .norm_eps = 1e-6F,
              .rope = {.theta = 10000.0},
              .max_positions = 4096,
              LATENTS,
              .moe = {.experts = 256,
                      .top_k = 8,
                      .ffn_dim = 2048,
                      .shared = 1,
                      .dense_layers = 3,
                      .biased = true,
                      .score = TT_SCORE_SIGMOID,
                      .groups = 8,
                      .kept_groups = 4,
                      .group_rule = TT_GROUP_TWO_BEST,
                      .route_scale = 2.5}}},
    {.type = "deepseek_v2",
     .architecture = "DeepseekV2ForCausalLM",
     .reads = "decoder mlp_bias experts latents routed num_experts moe_intermediate_size norm_topk_prob",
     .dims = {.dim = 4096,
              .n_layers = 32,
              .n_heads = 32,
              .ffn_dim = 11008,
              .vocab_size = 102400,
              .norm_eps = 1e-6F,
              .rope = {.theta = 10000.0},
              .max_positions = 2048,
              LATENTS,
              .moe = {.experts = 64, .ffn_dim = 1407, .shared = 2, .gates_as_scored = true, .route_scale = 1.0}}},
};

static const struct tt_hf_class classes_glm[] = {
    {.type = "glm4_moe",
     .architecture = "Glm4MoeForCausalLM",
     .reads = "decoder experts routed num_local_experts moe_intermediate_size norm_topk_prob use_qk_norm",
     .attention_bias = TT_HF_BIAS_QKV,
     .rotated = 0.5,
     .dims = {.dim = 4096,
              .n_layers = 46,
              .n_heads = 96,
              .n_kv_heads = 8,
              .ffn_dim = 10944,
              .vocab_size = 151552,
              .norm_eps = 1e-5F,
              .rope = {.theta = 10000.0},
              .max_positions = 131072,
              .moe = {.experts = 128,
                      .top_k = 8,
                      .ffn_dim = 1408,
                      .shared = 1,
                      .dense_layers = 1,
                      .biased = true,
                      .score = TT_SCORE_SIGMOID,
                      .groups = 1,
                      .kept_groups = 1,
                      .group_rule = TT_GROUP_TWO_BEST,
                      .route_scale = 1.0}}},
};

static int class_of(const struct tt_model_dims *dims)
{
    return dims->moe.score != TT_SCORE_SIGMOID;
}

static int read_mla(const void *config, const char *where, struct tt_model_dims *d)
{
    static const struct tt_hf_key keys[] = {
        TT_HF_KEY("kv_lora_rank", NULL, SIZE, mla.kv_rank),
        TT_HF_KEY("q_lora_rank", NULL, NULLABLE, mla.q_rank), /* null: queries have no latent */
        TT_HF_KEY("qk_rope_head_dim", NULL, SIZE, mla.rope_dim),
        TT_HF_KEY("v_head_dim", NULL, SIZE, mla.value_dim),
    };
    int64_t plain = d->head_dim - d->mla.rope_dim;
    int rc = 0;

    TT_TRY(tt_hf_int(config, "qk_nope_head_dim", plain, where, &plain));
    TT_TRY(tt_hf_read(config, keys, sizeof keys / sizeof *keys, where, d));
    TT_TRY(tt_hf_must_be_flag(config, "rope_interleave", true, where));
    d->head_dim = plain + d->mla.rope_dim;
out:
    return rc;
}

/* The factor of the gates. Without it experts would have no effect, and 0 means 1 in tt_moe. */
static int read_scale(const void *config, const char *where, struct tt_moe *moe)
{
    int rc = 0;

    TT_TRY(tt_hf_real(config, "routed_scaling_factor", moe->route_scale, where, &moe->route_scale));
    if (!(moe->route_scale > 0.0))
        rc = tt_fail(TT_EDATA, "%s: routed_scaling_factor %g is not supported; it must be positive", where,
                     moe->route_scale);
out:
    return rc;
}

/* DeepSeek-V3's router: its groups count by their two best experts, and a bias is added for the choice of experts. */
static int read_sigmoid(const void *config, const char *where, struct tt_moe *moe)
{
    bool normalized = !moe->gates_as_scored;
    int rc = 0;

    TT_TRY(tt_hf_must_be(config, "scoring_func", "sigmoid", where));
    TT_TRY(tt_hf_must_be(config, "topk_method", "noaux_tc", where));
    TT_TRY(tt_hf_bool(config, "norm_topk_prob", normalized, where, &normalized));
    TT_TRY(tt_hf_int(config, "n_group", moe->groups, where, &moe->groups));
    TT_TRY(tt_hf_int(config, "topk_group", moe->kept_groups, where, &moe->kept_groups));
    TT_TRY(read_scale(config, where, moe));
    moe->gates_as_scored = !normalized;
out:
    return rc;
}

/* DeepSeek-V2's router, which does not normalize gates. */
static int read_softmax(const void *config, const char *where, struct tt_moe *moe)
{
    const char *method = json_string_value(json_object_get(config, "topk_method"));
    int rc = 0;

    TT_TRY(tt_hf_must_be(config, "scoring_func", "softmax", where));
    TT_TRY(tt_hf_must_be_flag(config, "norm_topk_prob", false, where));
    TT_TRY(read_scale(config, where, moe));
    if (method && strcmp(method, "greedy") != 0) {
        TT_TRY(tt_hf_must_be(config, "topk_method", "group_limited_greedy", where));
        TT_TRY(tt_hf_int(config, "n_group", -1, where, &moe->groups));
        TT_TRY(tt_hf_int(config, "topk_group", -1, where, &moe->kept_groups));
    }
    moe->gates_as_scored = true;
out:
    return rc;
}

/* Each class has another name for the number of experts; a token's number of experts has no default in DeepSeek-V2's
 * class. */
static int read_experts(const void *config, const char *where, struct tt_model_dims *d)
{
    bool v2 = tt_hf_class(config) == &classes[1];
    const struct tt_hf_key keys[] = {
        TT_HF_KEY("n_routed_experts", v2 ? "num_experts" : "num_local_experts", SIZE, moe.experts),
        TT_HF_KEY("moe_intermediate_size", NULL, SIZE, moe.ffn_dim),
        TT_HF_KEY("n_shared_experts", NULL, COUNT, moe.shared),
        TT_HF_KEY("first_k_dense_replace", NULL, COUNT, moe.dense_layers),
    };
    struct tt_moe *moe = &d->moe;
    int64_t every = 1;
    int rc = 0;

    TT_TRY(tt_hf_int(config, "num_experts_per_tok", moe->top_k ? moe->top_k : -1, where, &moe->top_k));
    TT_TRY(tt_hf_read(config, keys, sizeof keys / sizeof *keys, where, d));
    TT_TRY(tt_hf_router_logits(config, where));
    TT_TRY(tt_hf_int(config, "moe_layer_freq", 1, where, &every));
    if (every != 1)
        return tt_fail(TT_EDATA, "%s: moe_layer_freq %lld is not supported; only 1 is", where, (long long)every);
    TT_TRY(v2 ? read_softmax(config, where, moe) : read_sigmoid(config, where, moe));
    if (moe->groups == 1)
        moe->groups = moe->kept_groups = 0;
out:
    return rc;
}

static int read_hf_config(const void *config, const char *where, struct tt_model_dims *dims)
{
    int rc = 0;

    TT_TRY(read_mla(config, where, dims));
    TT_TRY(read_experts(config, where, dims));
out:
    return rc;
}

static int read_hf_config_glm(const void *config, const char *where, struct tt_model_dims *dims)
{
    int rc = 0;

    TT_TRY(tt_hf_bool(config, "use_qk_norm", dims->head_norms, where, &dims->head_norms));
    TT_TRY(read_experts(config, where, dims));
out:
    return rc;
}

static void write_experts(json_t *config, const struct tt_moe *moe)
{
    bool sigmoid = moe->score == TT_SCORE_SIGMOID;
    int64_t groups = moe->groups > 1 ? moe->groups : 1, kept = moe->groups > 1 ? moe->kept_groups : 1;

    (void)json_object_update_new(
        config, json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:b, s:s, s:s, s:b}", "n_routed_experts",
                          (json_int_t)moe->experts, "num_experts_per_tok", (json_int_t)moe->top_k,
                          "moe_intermediate_size", (json_int_t)moe->ffn_dim, "n_shared_experts",
                          (json_int_t)moe->shared, "first_k_dense_replace", (json_int_t)moe->dense_layers, "n_group",
                          (json_int_t)groups, "topk_group", (json_int_t)kept, "routed_scaling_factor",
                          tt_json_number(moe->route_scale > 0.0 ? moe->route_scale : 1.0), "norm_topk_prob",
                          !moe->gates_as_scored, "scoring_func", sigmoid ? "sigmoid" : "softmax", "topk_method",
                          sigmoid      ? "noaux_tc"
                          : groups > 1 ? "group_limited_greedy"
                                       : "greedy",
                          "output_router_logits", false));
}

static void write_hf_config(const struct tt_model *model, void *config)
{
    const struct tt_model_dims *d = &model->dims;

    (void)json_object_del(config, "head_dim"); /* in the class, it is the size of the rotated part */
    (void)json_object_update_new(
        config, json_pack("{s:I, s:o, s:I, s:I, s:I, s:i}", "kv_lora_rank", (json_int_t)d->mla.kv_rank, "q_lora_rank",
                          d->mla.q_rank ? json_integer(d->mla.q_rank) : json_null(), "qk_nope_head_dim",
                          (json_int_t)(d->head_dim - d->mla.rope_dim), "qk_rope_head_dim", (json_int_t)d->mla.rope_dim,
                          "v_head_dim", (json_int_t)d->mla.value_dim, "num_nextn_predict_layers", 0));
    write_experts(config, &d->moe);
}

static void write_hf_config_glm(const struct tt_model *model, void *config)
{
    write_experts(config, &model->dims.moe);
    (void)json_object_del(config, "scoring_func"); /* the class has no other */
    (void)json_object_del(config, "topk_method");
    (void)json_object_update_new(
        config, json_pack("{s:b, s:i}", "use_qk_norm", model->dims.head_norms, "num_nextn_predict_layers", 0));
}

/* --- the rows --- */

static const struct tt_gguf_size sizes[] = {
    TT_GGUF_BLOCKS,
    TT_GGUF_EXPERTS,
    TT_GGUF_EXPERT_WIDTH,
    TT_GGUF_SIZE("attention.layer_norm_rms_epsilon", FLOAT, norm_eps, false),
    TT_GGUF_SIZE("rope.freq_base", REAL, rope.theta, true),
    TT_GGUF_SIZE("rope.dimension_count", INT, mla.rope_dim, false),
    TT_GGUF_SIZE("attention.kv_lora_rank", INT, mla.kv_rank, false),
    TT_GGUF_SIZE("attention.q_lora_rank", INT, mla.q_rank, true),
    TT_GGUF_SIZE("attention.key_length_mla", INT, head_dim, false),
    TT_GGUF_SIZE("attention.value_length_mla", INT, mla.value_dim, false),
    TT_GGUF_SIZE("leading_dense_block_count", INT, moe.dense_layers, true),
    TT_GGUF_SIZE("expert_shared_count", INT, moe.shared, false),
    TT_GGUF_SIZE("expert_weights_scale", REAL, moe.route_scale, true),
};
static const struct tt_gguf_arch archs[] = {
    {.name = "deepseek2", .size = sizes, .n_sizes = TT_COUNT(sizes), .experts = true, .latents = true}};
static const struct tt_gguf_name names[] = {
    {.ours = "attention.q_norm.weight", .theirs = "attn_q_a_norm.weight"},
    {.ours = "attention.wkv_b.weight", .theirs = "attn_k_b.weight", .layout = TT_GGUF_KEYS},
    {.ours = "attention.wkv_b.weight", .theirs = "attn_v_b.weight", .layout = TT_GGUF_VALUES},
    {.ours = "moe.expert_bias", .theirs = "exp_probs_b.bias"},
};

#define EXPERTS                                                                                           \
    .hf_bias = "mlp.gate.e_score_correction_bias",                                                        \
    .hf_shared = {"mlp.shared_experts.gate_proj.weight", "mlp.shared_experts.down_proj.weight",           \
                  "mlp.shared_experts.up_proj.weight"},                                                   \
    .hf_experts = {"mlp.gate.weight", "mlp.experts.*.gate_proj.weight", "mlp.experts.*.down_proj.weight", \
                   "mlp.experts.*.up_proj.weight"}

static const struct tt_decoder decoder = {EXPERTS};
static const struct tt_decoder decoder_glm = {.rotate_half = true, .head_norms = TT_QK_HEADS, EXPERTS};

const struct tt_model_row tt_model_deepseek_v3 = {
    .name = "deepseek_v3",
    TT_MODEL_TABLES,
    TT_MODEL_LLAMA_NAMES,
    .decoder = &decoder,
    .parts = &tt_decoder_parts,
    .gguf_names = names,
    .n_gguf_names = TT_COUNT(names),
    .class_of = class_of,
    .read_hf_config = read_hf_config,
    .write_hf_config = write_hf_config,
};

const struct tt_model_row tt_model_glm4_moe = {
    .name = "glm4_moe",
    .flavors = flavors_glm,
    .n_flavors = TT_COUNT(flavors_glm),
    .classes = classes_glm,
    .n_classes = TT_COUNT(classes_glm),
    TT_MODEL_LLAMA_NAMES,
    .decoder = &decoder_glm,
    .parts = &tt_decoder_parts,
    .adaptable = true,
    .read_hf_config = read_hf_config_glm,
    .write_hf_config = write_hf_config_glm,
};

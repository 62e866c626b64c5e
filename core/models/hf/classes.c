/* SPDX-License-Identifier: MIT
 *
 * The classes of config.json that titan reads, each with what transformers 5 takes where the file says nothing.
 * tests/interop/class_defaults.py asks transformers for the same; its answer is in tests/unit/data/hf_classes.json.
 */
#include <string.h>

#include "core/models/hf/config.h"

/* What DeepSeek's classes have in common. */
#define LATENTS .head_dim = 192, .mla = {.kv_rank = 512, .q_rank = 1536, .rope_dim = 64, .value_dim = 128}

static const struct tt_hf_class classes[] = {
    {"llama",
     {.dim = 4096,
      .n_layers = 32,
      .n_heads = 32,
      .ffn_dim = 11008,
      .vocab_size = 32000,
      .norm_eps = 1e-6F,
      .rope = {.theta = 10000.0},
      .max_positions = 2048},
     {0}},
    {"mistral",
     {.dim = 4096,
      .n_layers = 32,
      .n_heads = 32,
      .n_kv_heads = 8,
      .ffn_dim = 14336,
      .vocab_size = 32000,
      .norm_eps = 1e-6F,
      .rope = {.theta = 10000.0},
      .max_positions = 131072},
     {.absent = 4096, .any = true}},
    {"mixtral",
     {.dim = 4096,
      .n_layers = 32,
      .n_heads = 32,
      .n_kv_heads = 8,
      .ffn_dim = 14336,
      .vocab_size = 32000,
      .norm_eps = 1e-5F,
      .rope = {.theta = 1000000.0},
      .max_positions = 131072,
      .moe = {.experts = 8, .top_k = 2}},
     {.any = true}},
    {"qwen3",
     {.dim = 4096,
      .n_layers = 32,
      .n_heads = 32,
      .n_kv_heads = 32,
      .head_dim = 128,
      .ffn_dim = 22016,
      .vocab_size = 151936,
      .norm_eps = 1e-6F,
      .rope = {.theta = 10000.0},
      .max_positions = 32768},
     {.absent = 4096, .any = true, .needs_use = true, .by_layers = true, .layers = 28}},
    {"qwen3_moe",
     {.dim = 2048,
      .n_layers = 24,
      .n_heads = 32,
      .n_kv_heads = 4,
      .ffn_dim = 6144,
      .vocab_size = 151936,
      .norm_eps = 1e-6F,
      .rope = {.theta = 10000.0},
      .max_positions = 32768,
      .moe = {.experts = 128, .top_k = 8, .ffn_dim = 768, .gates_as_scored = true}},
     {.absent = 4096, .any = true, .needs_use = true}},
    {"deepseek_v2",
     {.dim = 4096,
      .n_layers = 32,
      .n_heads = 32,
      .ffn_dim = 11008,
      .vocab_size = 102400,
      .norm_eps = 1e-6F,
      .rope = {.theta = 10000.0},
      .max_positions = 2048,
      LATENTS,
      .moe = {.experts = 64, .ffn_dim = 1407, .shared = 2, .gates_as_scored = true, .route_scale = 1.0}},
     {0}},
    {"deepseek_v3",
     {.dim = 7168,
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
              .route_scale = 2.5}},
     {0}},
    {"gpt_oss",
     {.dim = 2880,
      .n_layers = 36,
      .n_heads = 64,
      .n_kv_heads = 8,
      .head_dim = 64,
      .ffn_dim = 2880,
      .vocab_size = 201088,
      .norm_eps = 1e-5F,
      .rope = {.theta = 150000.0,
               .factor = 32.0,
               .original_max = 4096.0,
               .beta_fast = 32.0,
               .beta_slow = 1.0,
               .fractional = true},
      .max_positions = 131072,
      .sliding_window = 128,
      .moe = {.experts = 128, .top_k = 4}},
     {.absent = 128, .any = true}},
    {"gpt2",
     {.dim = 768,
      .n_layers = 12,
      .n_heads = 12,
      .vocab_size = 50257,
      .norm_eps = 1e-5F,
      .max_positions = 1024,
      .tied = 1},
     {0}},
};

const struct tt_hf_class *tt_hf_class_of(const char *model_type)
{
    if (strcmp(model_type, "kimi_k2") == 0) /* its folders have a copy of DeepSeek-V3's class */
        model_type = "deepseek_v3";
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (strcmp(classes[i].type, model_type) == 0)
            return &classes[i];
    return NULL;
}

const struct tt_hf_class *tt_hf_class(const json_t *config)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));

    return type ? tt_hf_class_of(type) : NULL;
}

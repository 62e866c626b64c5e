/* SPDX-License-Identifier: MIT
 *
 * A weight that is not used would change what the model computes: the files are of another one. What never does so is
 * told apart by name.
 */
#include "checkpoint/hf/extra.h"

#include <stdlib.h>
#include <string.h>

#include "checkpoint/hf/map.h"
#include "checkpoint/hf/packed.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "parallel/layout/patterns.h"

enum kind { KNOWN, BESIDE, ASKED, FOREIGN, N_KINDS };

/* Constants in older files: they follow from the configuration, or are the causal mask; and scales of activations,
 * which are not rounded to FP8 here. */
static bool is_derived(const struct tt_model *model, const struct tt_manifest_tensor *t)
{
    static const char *const ends[] = {"rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached",
                                       ".attn.masked_bias", ".activation_scale"};

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (tt_text_ends(t->name, ends[i]))
            return true;
    return model->row->learned_positions && t->ndim == 4 && tt_text_ends(t->name, ".attn.bias"); /* GPT-2's mask */
}

/* The name of a parameter, or of what a quantized one consists of. */
static bool is_parameter(const struct tt_model *model, const char *name)
{
    const char *prefix = model->row->hf_prefix ? model->row->hf_prefix : "";
    size_t skip = strlen(prefix);

    for (int p = 0; p < model->n_params; p++) {
        const char *known = model->params[p].hf_name;

        if (tt_hf_is_name(&model->params[p], name) ||
            (known && strncmp(known, prefix, skip) == 0 && strcmp(known + skip, name) == 0))
            return true;
    }
    return false;
}

/* The number of the block that a tensor is in; -1: none. */
static long block_of(const struct tt_model *model, const char *name)
{
    const char *blocks = model->row->hf_blocks, *prefix = model->row->hf_prefix;
    char *end = NULL;
    long block;

    if (prefix && tt_text_begins(blocks, prefix) && !tt_text_begins(name, prefix))
        blocks += strlen(prefix);
    if (!tt_text_begins(name, blocks))
        return -1;
    block = strtol(name + strlen(blocks), &end, 10);
    return *end == '.' && end > name + strlen(blocks) ? block : -1;
}

/* DeepSeek's layers that predict a further token are blocks behind the last one. */
static bool predicts_further(const struct tt_source *source, const struct tt_model *model, long block)
{
    char *mark = tt_format("%s%ld.eh_proj.weight", model->row->hf_blocks, block);
    bool has_mark = block >= model->dims.n_layers && tt_manifest_find(&source->manifest, TT_CKPT_MODEL, mark);

    tt_free(mark);
    return has_mark;
}

/* Parts that read what the language model computes, or that make other inputs for it. */
static bool is_beside(const struct tt_source *source, const struct tt_model *model, const char *name)
{
    static const char *const begins[] = {"vision_tower.",       "model.vision_tower.",
                                         "vision_model.",       "visual.",
                                         "model.visual.",       "multi_modal_projector.",
                                         "mm_projector.",       "model.multi_modal_projector.",
                                         "model.mm_projector.", "audio_tower.",
                                         "model.audio_tower.",  "mtp.",
                                         "model.mtp.",          "score.",
                                         "classifier.",         "v_head.",
                                         "value_head.",         "multiple_choice_head."};

    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (tt_text_begins(name, begins[i]))
            return true;
    return predicts_further(source, model, block_of(model, name));
}

/* What a tensor says about the model that it is of. */
static const struct {
    const char *part, *advice;
} advices[] = {
    {"_proj.bias", "Qwen2 and its relatives have such biases; titan does not have these models"},
    {"q_norm.", "is model_type qwen3, or another with norms of queries and keys?"},
    {"k_norm.", "is model_type qwen3, or another with norms of queries and keys?"},
    {".sinks", "is model_type gpt_oss?"},
    {"block_sparse_moe.", "is model_type mixtral?"},
    {".e_score_correction_bias", "is model_type deepseek_v3?"},
    {".kv_a_proj_with_mqa.", "is model_type deepseek_v2 or deepseek_v3?"},
    {".mlp.experts.", "is model_type qwen3_moe, deepseek_v2, deepseek_v3 or gpt_oss?"},
    {".shared_expert", "is model_type deepseek_v2 or deepseek_v3? titan has no other models with shared experts"},
    {"feedforward_layernorm.", "Gemma has such norms; titan does not have this model"},
    {".lora_", "these are adapters: merge them into the weights, for instance with PEFT's merge_and_unload"},
    {"scale", "the weights are quantized: use files in float32, bfloat16 or float16"},
    {"wpe.", "is model_type gpt2?"},
};

static const char *advice_of(const char *name)
{
    for (size_t i = 0; i < sizeof advices / sizeof *advices; i++)
        if (strstr(name, advices[i].part))
            return advices[i].advice;
    return "is model_type in config.json right?";
}

struct extra {
    const struct tt_source *source;
    const struct tt_model *model;
    struct tt_patterns leave_out;
    bool *used; /* per expression */
    int n[N_KINDS];
    const char *first[N_KINDS];
};

static int sort_tensor(struct extra *e, const struct tt_manifest_tensor *t, enum kind *ret_kind)
{
    bool tied = e->model->dims.tied == 1 && strcmp(t->name, "lm_head.weight") == 0;
    char *weight = tt_strndup(t->name, tt_hf_weight_name(t->name));
    bool known = tied || is_derived(e->model, t) || is_parameter(e->model, weight);
    int pattern = TT_NONE, rc = 0;

    tt_free(weight);
    *ret_kind = KNOWN;
    if (known)
        return 0;
    if (e->source->leave_out)
        TT_TRY(tt_patterns_find(&e->leave_out, 0, t->name, &pattern));
    if (pattern != TT_NONE)
        e->used[pattern] = true;
    *ret_kind = pattern != TT_NONE ? ASKED : is_beside(e->source, e->model, t->name) ? BESIDE : FOREIGN;
out:
    return rc;
}

static int sort_tensors(struct extra *e)
{
    int rc = 0;

    for (int i = 0; i < e->source->manifest.n_tensors; i++) {
        enum kind kind = KNOWN;

        TT_TRY(sort_tensor(e, &e->source->manifest.tensor[i], &kind));
        if (e->n[kind]++ == 0)
            e->first[kind] = e->source->manifest.tensor[i].name;
    }
    for (int p = 0; e->source->leave_out && p < e->leave_out.words.n; p++)
        if (!e->used[p])
            TT_TRY(tt_patterns_fail_unused(&e->leave_out, p, "unused tensor of the files", "lm_head.bias"));
out:
    return rc;
}

static int fail_foreign(const struct extra *e)
{
    const char *name = e->first[FOREIGN];
    long block = block_of(e->model, name);
    char *advice = block < e->model->dims.n_layers
                       ? tt_strdup(advice_of(name))
                       : tt_format("the model has %lld layers (num_hidden_layers in config.json, or %s), and the files "
                                   "have more",
                                   (long long)e->model->dims.n_layers, tt_key_name(TT_KEY_N_LAYERS));

    (void)tt_fail(TT_EDATA,
                  "tensor '%s' of '%s' has no place in %s, which would compute something else than the model that the "
                  "weights are of (%d such tensor%s)\n"
                  "help: %s; to leave tensors out nevertheless, name them by regular expressions: %s when training, "
                  "--leave-out of titan ckpt convert",
                  name, e->source->path, e->model->row->name, e->n[FOREIGN], e->n[FOREIGN] == 1 ? "" : "s", advice,
                  tt_key_name(TT_KEY_LEAVE_OUT));
    tt_free(advice);
    return TT_EDATA;
}

static void note(const struct extra *e, enum kind kind, const char *why)
{
    int n = e->n[kind];

    if (n > 0)
        tt_note("%d tensor%s of '%s' %s not used (%s), for instance '%s'", n, n == 1 ? "" : "s", e->source->path,
                n == 1 ? "is" : "are", why, e->first[kind]);
}

int tt_hf_check_extra(const struct tt_source *source, const struct tt_model *model, bool refuse)
{
    struct extra e = {.source = source, .model = model};
    int rc = 0;

    if (source->leave_out) {
        TT_TRY(tt_patterns_init(TT_KEY_LEAVE_OUT, *source->leave_out, &e.leave_out));
        e.used = tt_calloc((size_t)source->leave_out->n + 1, sizeof *e.used);
    }
    TT_TRY(sort_tensors(&e));
    note(&e, BESIDE, "not part of the language model");
    note(&e, ASKED, "as asked for");
    if (e.n[FOREIGN] && refuse)
        rc = fail_foreign(&e);
    else
        note(&e, FOREIGN, "the model has no place for it");
out:
    if (source->leave_out)
        tt_patterns_release(&e.leave_out);
    tt_free(e.used);
    return rc;
}

int tt_titan_check_extra(const struct tt_source *source, const struct tt_model *model)
{
    for (int i = 0; i < source->manifest.n_tensors; i++) {
        const struct tt_manifest_tensor *t = &source->manifest.tensor[i];
        bool known = t->group != TT_CKPT_MODEL || (model->dims.tied == 1 && strcmp(t->name, "output.weight") == 0);

        for (int p = 0; p < model->n_params && !known; p++)
            known = strcmp(model->params[p].name, t->name) == 0;
        if (!known)
            return tt_fail(TT_EDATA,
                           "tensor '%s' of '%s' has no place in %s, which would compute something else than the model "
                           "that the weights are of\n"
                           "help: are --assets, or --model and --flavor, those of the checkpoint?",
                           t->name, source->path, model->row->name);
    }
    return 0;
}

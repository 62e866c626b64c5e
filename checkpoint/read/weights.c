/* SPDX-License-Identifier: MIT
 *
 * The tensors of a checkpoint under the requested names; rows.c reads them. An unused tensor shows that the files
 * belong to another model, which computes something else. Harmless tensors are recognized by their names.
 */
#include "checkpoint/read/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/format/cast.h"
#include "checkpoint/read/map.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/math/round.h"
#include "core/models/gguf.h"
#include "core/models/model_json.h"
#include "core/os/file.h"
#include "parallel/layout/units.h"

/* --- which model --- */

/* The model that the folder describes in model.json or config.json; NULL if it contains neither. */
static int model_of_assets(const char *folder, struct tt_model **ret_model)
{
    char *ours = tt_format("%s/model.json", folder), *theirs = tt_format("%s/config.json", folder);
    bool has_ours = false, has_theirs = false;
    int rc = 0;

    TT_TRY(tt_path_exists(ours, &has_ours));
    TT_TRY(tt_path_exists(theirs, &has_theirs));
    if (has_ours)
        rc = tt_model_json_load(ours, ret_model);
    else if (has_theirs)
        rc = tt_model_from_hf(folder, ret_model);
out:
    tt_free(ours);
    tt_free(theirs);
    return rc;
}

/* The model that the user names. A flavor defines a vocabulary size, but torchtitan uses the tokenizer's. */
static int told_model(const struct tt_source *source, const struct tt_told *told, struct tt_model **ret_model)
{
    const struct tt_manifest_tensor *embedding =
        tt_manifest_find(&source->manifest, TT_CKPT_MODEL, "tok_embeddings.weight");
    struct tt_model_dims overrides = {.tied = -1};
    int rc = 0;

    if (told->assets)
        TT_TRY(model_of_assets(told->assets, ret_model));
    if (*ret_model && told->model) {
        rc = tt_fail(TT_EUSAGE, "'%s' says which model it is, so --model %s is not needed", told->assets, told->model);
    } else if (!*ret_model && told->model) {
        overrides.vocab_size = embedding && embedding->ndim == 2 ? embedding->shape[0] : 0;
        rc = tt_model_new(told->model, told->flavor ? told->flavor : "", &overrides, NULL, ret_model);
    } else if (!*ret_model) {
        rc =
            tt_fail(TT_EDATA,
                    "'%s' does not say which model it is%s%s%s\n"
                    "help: --assets DIR (a folder with config.json and the tokenizer), or --model NAME --flavor FLAVOR",
                    source->path, told->assets ? ", nor does '" : "", told->assets ? told->assets : "",
                    told->assets ? "'" : "");
    }
out:
    return rc;
}

int tt_source_model(struct tt_source *source, const struct tt_told *told, struct tt_model **ret_model)
{
    char *assets = tt_source_assets(source), *path = tt_format("%s/model.json", assets);
    bool is_hf = false, exists = false, is_gguf = tt_source_is_gguf(source);
    int rc = 0;

    *ret_model = NULL;
    TT_TRY(tt_source_is_hf(source, &is_hf));
    TT_TRY(is_gguf ? 0 : tt_path_exists(path, &exists));
    if (is_hf || is_gguf) {
        rc = tt_fail(TT_EUSAGE, "'%s' is already a %s\nhelp: titan ckpt convert makes a titan checkpoint of it",
                     source->path, is_hf ? "Hugging Face folder" : "GGUF file");
    } else if (exists && (told->assets || told->model)) {
        rc = tt_fail(TT_EUSAGE, "'%s' already names its model\nhelp: leave out --%s", source->path,
                     told->assets ? "assets" : "model");
    } else if (exists) {
        rc = tt_model_json_load(path, ret_model);
    } else {
        rc = told_model(source, told, ret_model);
        source->assets = rc == 0 && told->assets ? tt_strdup(told->assets) : NULL;
    }
out:
    tt_free(assets);
    tt_free(path);
    return rc;
}

/* --- tensors that the model does not use --- */

enum kind { KNOWN, BESIDE, ASKED, FOREIGN, N_KINDS };

/* Tensors that are not needed: constants in older files (the causal mask, and others that follow from the
 * configuration), and scales of activations, because titan does not round activations to FP8. */
static bool is_derived(const struct tt_manifest_tensor *t)
{
    static const char *const ends[] = {"rotary_emb.inv_freq", "rotary_emb.cos_cached",  "rotary_emb.sin_cached",
                                       ".attn.masked_bias",   ".attention.masked_bias", ".activation_scale"};

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (tt_text_ends(t->name, ends[i]))
            return true;
    /* the causal masks of GPT-2 and GPT-NeoX */
    return t->ndim == 4 && (tt_text_ends(t->name, ".attn.bias") || tt_text_ends(t->name, ".attention.bias"));
}

/* How names of a language model begin in files that contain other parts too, as Gemma 3's, and in files of its own. */
static const struct {
    const char *whole, *own;
} language_models[] = {{"language_model.", ""}, {"model.language_model.", "model."}};

/* A tensor's name in a file of the language model alone; the caller frees it. */
static char *own_name(const char *name)
{
    for (size_t i = 0; i < sizeof language_models / sizeof *language_models; i++)
        if (tt_text_begins(name, language_models[i].whole))
            return tt_format("%s%s", language_models[i].own, name + strlen(language_models[i].whole));
    return tt_strdup(name);
}

/* Whether a name belongs to a parameter, with or without the family's prefix. */
static bool is_parameter(const struct tt_model *model, const char *name)
{
    const char *prefix = model->row->hf_prefix ? model->row->hf_prefix : "";

    for (int p = 0; p < model->n_params; p++) {
        const char *known = model->params[p].hf_name;

        if (tt_hf_is_name(&model->params[p], name) ||
            (known && tt_text_begins(known, prefix) && strcmp(known + strlen(prefix), name) == 0))
            return true;
    }
    return false;
}

/* The number of the block that contains a tensor; -1: none. */
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

/* Whether a tensor belongs to one of DeepSeek's layers that predict a further token: blocks after the last one. */
static bool predicts_further(const struct tt_source *source, const struct tt_model *model, long block)
{
    char *mark = tt_format("%s%ld.eh_proj.weight", model->row->hf_blocks, block);
    bool has_mark = block >= model->dims.n_layers && tt_manifest_find(&source->manifest, TT_CKPT_MODEL, mark);

    tt_free(mark);
    return has_mark;
}

/* Whether a tensor belongs to a part that processes the outputs of the language model, or that makes other inputs for
 * it. */
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

/* The model that a tensor suggests. */
static const struct {
    const char *part, *advice;
} advices[] = {
    {"_proj.bias", "Qwen2 and its relatives have such biases: is model_type right?"},
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

/* For a tensor of elements or scales, the length of the name of their weight; otherwise the length of the whole
 * name. */
static size_t weight_name(const char *name)
{
    static const char *const ends[] = {"_scale_inv", "_blocks", "_scales"};
    size_t size = strlen(name);

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (tt_text_ends(name, ends[i]))
            return size - strlen(ends[i]);
    return size;
}

struct extra {
    const struct tt_source *source;
    const struct tt_model *model;
    struct tt_patterns leave_out;
    int n[N_KINDS];
    const char *first[N_KINDS];
};

static int sort_tensor(struct extra *e, const struct tt_manifest_tensor *t, enum kind *ret_kind)
{
    char *name = own_name(t->name), *of_bnb = tt_bnb_weight_of(name);
    bool tied = e->model->dims.tied == 1 && strcmp(name, "lm_head.weight") == 0;
    char *weight = of_bnb ? of_bnb : tt_strndup(name, weight_name(name));
    bool known = tied || is_derived(t) || is_parameter(e->model, weight);
    int pattern = TT_NONE, rc = 0;

    tt_free(weight);
    tt_free(name);
    *ret_kind = KNOWN;
    if (known)
        return 0;
    if (e->source->leave_out)
        TT_TRY(tt_patterns_find(&e->leave_out, 0, t->name, &pattern));
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
    if (e->source->leave_out)
        rc = tt_patterns_check_used(&e->leave_out, "unused tensor of the files", "lm_head.bias");
out:
    return rc;
}

static int fail_foreign(const struct extra *e)
{
    const char *name = e->first[FOREIGN], *advice = "is model_type in config.json right?";
    char more_layers[200];

    for (size_t i = sizeof advices / sizeof *advices; i > 0; i--)
        if (strstr(name, advices[i - 1].part))
            advice = advices[i - 1].advice;
    (void)snprintf(more_layers, sizeof more_layers,
                   "the model has %lld layers (num_hidden_layers in config.json, or %s), and the files have more",
                   (long long)e->model->dims.n_layers, TT_KEY_NAME(model.n_layers));
    if (block_of(e->model, name) >= e->model->dims.n_layers)
        advice = more_layers;
    if (e->source->is_adapter)
        return tt_fail(TT_EDATA,
                       "tensor '%s' of '%s' is of an adapter that this run does not have\n"
                       "help: leave out %s, so that adapter_config.json decides",
                       name, e->source->path, TT_KEY_NAME(lora.target_modules));
    (void)tt_fail(TT_EDATA,
                  "tensor '%s' of '%s' does not belong to %s, which would compute something else without it (%d such "
                  "tensor%s)\n"
                  "help: %s; to leave tensors out nevertheless, name them by regular expressions: %s when training, "
                  "--leave-out of titan ckpt convert",
                  name, e->source->path, e->model->row->name, e->n[FOREIGN], e->n[FOREIGN] == 1 ? "" : "s", advice,
                  TT_KEY_NAME(checkpoint.initial_load_leave_out));
    return TT_EDATA;
}

static void note(const struct extra *e, enum kind kind, const char *why)
{
    int n = e->n[kind];

    if (n > 0)
        tt_note("%d tensor%s of '%s' %s not used (%s), for instance '%s'", n, n == 1 ? "" : "s", e->source->path,
                n == 1 ? "is" : "are", why, e->first[kind]);
}

/* Looks for tensors that do not belong to the model (see tt_weights_import). If refuse is false, a note names them. */
static int check_hf_extra(const struct tt_source *source, const struct tt_model *model, bool refuse)
{
    struct extra e = {.source = source, .model = model};
    int rc = 0;

    if (source->leave_out)
        TT_TRY(tt_patterns_init(TT_KEY(checkpoint.initial_load_leave_out), *source->leave_out, &e.leave_out));
    TT_TRY(sort_tensors(&e));
    note(&e, BESIDE, "not part of the language model");
    note(&e, ASKED, "as requested");
    if (e.n[FOREIGN] && refuse)
        rc = fail_foreign(&e);
    else
        note(&e, FOREIGN, "the model does not use it");
out:
    if (source->leave_out)
        tt_patterns_release(&e.leave_out);
    return rc;
}

/* The same for a checkpoint with titan's names. */
static int check_titan_extra(const struct tt_source *source, const struct tt_model *model)
{
    for (int i = 0; i < source->manifest.n_tensors; i++) {
        const struct tt_manifest_tensor *t = &source->manifest.tensor[i];
        bool known = t->group != TT_CKPT_MODEL || (model->dims.tied == 1 && strcmp(t->name, "output.weight") == 0);

        for (int p = 0; p < model->n_params && !known; p++)
            known = strcmp(model->params[p].name, t->name) == 0;
        if (!known)
            return tt_fail(TT_EDATA,
                           "tensor '%s' of '%s' does not belong to %s, which would compute something else without it\n"
                           "help: do --assets, or --model and --flavor, name the model of the checkpoint?",
                           t->name, source->path, model->row->name);
    }
    return 0;
}

/* --- weights in FP8 and MXFP4 --- */

enum { MXFP4_BLOCK = 32, MXFP4_BYTES = MXFP4_BLOCK / 2, FP8_BLOCK = 128 };

/* A tensor that is stored as it is. */
static struct tt_hf_stored stored_plain(const struct tt_manifest_tensor *tensor)
{
    struct tt_hf_stored stored = {.values = tensor, .dtype = tensor->dtype, .ndim = tensor->ndim};

    memcpy(stored.shape, tensor->shape, sizeof stored.shape);
    return stored;
}

static int fail_scales(const struct tt_manifest_tensor *values, const struct tt_manifest_tensor *scales,
                       const char *wanted)
{
    struct tt_box a = tt_box_whole(values->ndim, values->shape), b = tt_box_whole(scales->ndim, scales->shape);
    char of[128], have[128];

    return tt_fail(TT_EDATA, "tensor '%s' is %s %s, and its scales '%s' are %s %s; wanted %s", values->name,
                   tt_dtype_name(values->dtype), tt_box_text(of, sizeof of, &a), scales->name,
                   tt_dtype_name(scales->dtype), tt_box_text(have, sizeof have, &b), wanted);
}

static int pack_fp8(const int64_t *block, struct tt_hf_stored *s)
{
    const struct tt_manifest_tensor *scales = s->scales;
    struct tt_box whole = tt_box_whole(scales->ndim, scales->shape);
    bool is_one = block[0] == 0 || scales->ndim < 2; /* one scale for the whole matrix */
    char wanted[128];

    (void)snprintf(wanted, sizeof wanted, "a matrix, and a scale for each block of %lld by %lld elements",
                   (long long)block[0], (long long)block[1]);
    s->block_rows = is_one ? s->shape[0] : block[0];
    s->block_width = is_one ? s->shape[1] : block[1];
    if (s->ndim != 2 ||
        !(tt_cast_known(TT_F32, scales->dtype) || scales->dtype == TT_F8_E8M0 || scales->dtype == TT_U8) ||
        (is_one ? tt_box_volume(&whole) != 1
                : scales->shape[0] != tt_div_up(s->shape[0], block[0]) ||
                      scales->shape[1] != tt_div_up(s->shape[1], block[1]) || scales->ndim != 2))
        return fail_scales(s->values, scales, is_one ? "a matrix and one scale" : wanted);
    return 0;
}

static int pack_mxfp4(struct tt_hf_stored *s)
{
    const struct tt_manifest_tensor *scales = s->scales;
    int n = s->ndim - 1;

    if (s->ndim != 4 || s->shape[n] != MXFP4_BYTES || scales->ndim != n ||
        memcmp(scales->shape, s->shape, (size_t)n * sizeof *s->shape) != 0 || scales->dtype != TT_U8)
        return fail_scales(s->values, scales, "16 bytes in the last dimension, and a U8 for each 16");
    s->ndim = n;
    s->shape[n - 1] *= MXFP4_BLOCK;
    s->shape[n] = 0;
    s->block_rows = 1;
    s->block_width = MXFP4_BLOCK;
    s->is_turned = true;
    return 0;
}

/* Combines two tensors into one weight; TT_EDATA if they do not belong together. The first holds FP8 elements,
 * scaled in blocks of block[0] rows and block[1] columns (0: in one block), or blocks of MXFP4. */
static int stored_packed(const struct tt_manifest_tensor *values, const struct tt_manifest_tensor *scales,
                         const int64_t *block, struct tt_hf_stored *ret_stored)
{
    *ret_stored = stored_plain(values);
    ret_stored->scales = scales;
    ret_stored->dtype = TT_BF16;
    return values->dtype == TT_F8_E4M3 ? pack_fp8(block, ret_stored) : pack_mxfp4(ret_stored);
}

/* Reads the size of FP8 blocks, rows and columns, from the source's config.json: 128 if it gives none, 0 if a matrix
 * has one scale. */
static int find_block_size(const struct tt_source *source, int64_t *ret_block)
{
    char *assets = tt_source_assets(source), *path = tt_format("%s/config.json", assets);
    json_t *config = NULL;
    const json_t *size;
    bool exists = false;
    int n = 0, rc = 0;

    ret_block[0] = ret_block[1] = FP8_BLOCK;
    TT_TRY(tt_path_exists(path, &exists));
    TT_TRY(exists ? tt_json_load(path, &config) : 0);
    size = json_object_get(json_object_get(config, "quantization_config"), "weight_block_size");
    if (json_is_null(size))
        ret_block[0] = ret_block[1] = 0;
    else if (size && (!tt_json_sizes(size, ret_block, 2, &n) || n != 2 || ret_block[0] < 1 || ret_block[1] < 1))
        rc = tt_fail(TT_EDATA, "'%s': quantization_config: weight_block_size must be two positive integers", path);
out:
    json_decref(config);
    tt_free(assets);
    tt_free(path);
    return rc;
}

/* --- the weights --- */

/* Biases of experts, under titan's and Hugging Face's names, keep their dtype. */
static bool keeps_dtype(const char *name)
{
    return tt_text_ends(name, ".expert_bias") || tt_text_ends(name, ".e_score_correction_bias");
}

static void add(struct tt_weights *w, int number, const char *name, enum tt_dtype dtype, int ndim, const int64_t *shape)
{
    struct tt_weight weight = {
        .name = name, .dtype = dtype, .keeps_dtype = keeps_dtype(name), .ndim = ndim, .number = number};

    for (int d = 0; d < ndim; d++)
        weight.shape[d] = shape[d];
    TT_PUSH(w->weight, w->n, w->cap) = weight;
}

static void begin(struct tt_weights *w, enum tt_weights_kind kind, struct tt_source *source,
                  const struct tt_model *model)
{
    size_t n = (size_t)source->manifest.n_tensors + 1, n_params = model ? (size_t)model->n_params : 0;
    int64_t *first = tt_calloc(n_params + 1, sizeof *first);

    for (size_t p = 0; p < n_params; p++)
        first[p + 1] = first[p] + tt_hf_tensors_of(&model->params[p]);
    *w = (struct tt_weights){.kind = kind,
                             .source = source,
                             .model = model,
                             .stored = tt_calloc((size_t)first[n_params] + 1, sizeof(struct tt_hf_stored)),
                             .first = first,
                             .checked = tt_calloc(n, sizeof(bool)),
                             .seen = tt_calloc(n, sizeof(int64_t)),
                             .digest = tt_calloc(n, sizeof(uint64_t))};
}

void tt_weights_release(struct tt_weights *weights)
{
    if (weights->kind == TT_WEIGHTS_FROM_HF)
        for (int64_t i = 0; i < weights->first[weights->model->n_params]; i++)
            tt_free(weights->stored[i].bnb);
    tt_base_free(weights->base);
    tt_free(weights->weight);
    tt_free(weights->stored);
    tt_free(weights->first);
    tt_free(weights->hf);
    tt_free(weights->gguf);
    tt_free(weights->checked);
    tt_free(weights->seen);
    tt_free(weights->digest);
    *weights = (struct tt_weights){0};
}

void tt_weights_stored(struct tt_source *source, enum tt_ckpt_group group, struct tt_weights *w)
{
    begin(w, TT_WEIGHTS_STORED, source, NULL);
    for (int i = 0; i < source->manifest.n_tensors; i++) {
        const struct tt_manifest_tensor *t = &source->manifest.tensor[i];

        if (t->group == group)
            add(w, i, t->name, t->dtype, t->ndim, t->shape);
    }
}

/* The published gpt2 files contain the model without its head, so their names lack the prefix. In files of several
 * models, names have one more (own_name). */
static const struct tt_manifest_tensor *find_tensor(const struct tt_weights *w, const char *name)
{
    const struct tt_manifest *manifest = &w->source->manifest;
    const struct tt_manifest_tensor *found = tt_manifest_find(manifest, TT_CKPT_MODEL, name);
    const char *prefix = w->model->row->hf_prefix;

    if (!found && prefix && tt_text_begins(name, prefix))
        found = tt_manifest_find(manifest, TT_CKPT_MODEL, name + strlen(prefix));
    for (size_t i = 0; i < sizeof language_models / sizeof *language_models && !found; i++) {
        char *whole;

        if (!tt_text_begins(name, language_models[i].own))
            continue;
        whole = tt_format("%s%s", language_models[i].whole, name + strlen(language_models[i].own));
        found = tt_manifest_find(manifest, TT_CKPT_MODEL, whole);
        tt_free(whole);
    }
    return found;
}

/* The tensor whose name is `name` followed by `end`. */
static const struct tt_manifest_tensor *find_end(const struct tt_weights *w, const char *name, const char *end)
{
    char *whole = tt_format("%s%s", name, end);
    const struct tt_manifest_tensor *found = find_tensor(w, whole);

    tt_free(whole);
    return found;
}

static int fail_missing(const struct tt_weights *w, const char *name, const char *end, const struct tt_param *param)
{
    return tt_fail(TT_EDATA, "the weights in '%s' lack tensor '%s%s' (the model's %s)", w->source->path, name, end,
                   param->name);
}

/* Finds the tensor of a weight, or its two tensors of elements and scales. */
static int find_stored(const struct tt_weights *w, const struct tt_param *param, const char *name,
                       struct tt_hf_stored *ret_stored)
{
    const struct tt_manifest_tensor *values = find_tensor(w, name), *scales;
    bool is_import = w->kind == TT_WEIGHTS_FROM_HF;
    const char *end = "_scale_inv";

    if (values && !(is_import && values->dtype == TT_F8_E4M3)) {
        struct tt_bnb *bnb = NULL;
        int rc = is_import ? tt_bnb_find(w->source, values, &bnb) : 0;

        *ret_stored = stored_plain(values);
        ret_stored->bnb = bnb;
        if (bnb) {
            ret_stored->dtype = bnb->dtype;
            ret_stored->ndim = 2;
            memcpy(ret_stored->shape, bnb->shape, sizeof bnb->shape);
        }
        if (rc < 0 || bnb)
            return rc;
        if (is_import && find_end(w, name, end))
            return tt_fail(TT_EDATA,
                           "'%s': tensor '%s' is %s, but there are scales for it, '%s%s'; wanted F8_E4M3 or no scales",
                           w->source->path, values->name, tt_dtype_name(values->dtype), values->name, end);
        return 0;
    }
    if (!values && is_import) {
        values = find_end(w, name, "_blocks");
        end = "_scales";
    }
    if (!values)
        return fail_missing(w, name, "", param);
    scales = find_end(w, name, end);
    if (!scales)
        return fail_missing(w, name, end, param);
    return stored_packed(values, scales, w->block, ret_stored);
}

/* Whether a tensor lacks only rows of the vocabulary. */
static bool may_grow(const struct tt_weights *w, const struct tt_param *param, const struct tt_hf_stored *stored)
{
    return w->kind == TT_WEIGHTS_FROM_HF && param->hf_transform == TT_HF_SAME && param->ndim == 2 &&
           (strcmp(param->name, "tok_embeddings.weight") == 0 || strcmp(param->name, "output.weight") == 0) &&
           stored->ndim == 2 && stored->shape[1] == param->shape[1] && stored->shape[0] > 0 &&
           stored->shape[0] < param->shape[0];
}

/* Finds the tensor `name`, which holds a parameter, and checks its shape. */
static int find(struct tt_weights *w, const struct tt_param *param, int64_t expert, const char *name, int ndim,
                const int64_t *shape)
{
    struct tt_hf_stored *stored = &w->stored[w->first[param - w->model->params] + expert];
    struct tt_box wanted, found;
    char a[128], b[128];
    int rc = 0;

    TT_TRY(find_stored(w, param, name, stored));
    wanted =
        tt_box_whole(ndim, stored->is_turned && param->hf_transform == TT_HF_EXPERTS_TRANSPOSE ? param->shape : shape);
    found = tt_box_whole(stored->ndim, stored->shape);
    if (!tt_box_equal(&wanted, &found) && strcmp(param->name, "pos_embeddings.weight") == 0)
        return tt_fail(TT_EDATA,
                       "tensor '%s' is %s, wanted %s: learned positions cannot become more or fewer\n"
                       "help: leave out %s, and set %s to at most %lld",
                       stored->values->name, tt_box_text(b, sizeof b, &found), tt_box_text(a, sizeof a, &wanted),
                       TT_KEY_NAME(model.max_position_embeddings), TT_KEY_NAME(training.seq_len),
                       (long long)stored->shape[0]);
    if (!tt_box_equal(&wanted, &found) && !(w->source->extend_vocabulary && may_grow(w, param, stored)))
        return tt_fail(TT_EDATA, "tensor '%s' is %s, wanted %s for the model's %s\nhelp: %s%s", stored->values->name,
                       tt_box_text(b, sizeof b, &found), tt_box_text(a, sizeof a, &wanted), param->name,
                       may_grow(w, param, stored) ? "for new tokens, in training, set "
                                                  : "do the sizes of the model match the weights' config.json?",
                       may_grow(w, param, stored) ? TT_KEY_NAME(checkpoint.initial_load_extend_vocabulary) : "");
    if (!tt_cast_known(TT_F32, stored->dtype) && stored->dtype != TT_F64) /* which only float64 can read */
        return tt_fail(TT_EDATA, "tensor '%s' is %s; weights are F32, BF16 or F16, or F8_E4M3 with scales", name,
                       tt_dtype_name(stored->dtype));
out:
    return rc;
}

static void note_new_rows(const struct tt_weights *w)
{
    for (int p = 0; p < w->model->n_params; p++) {
        const struct tt_hf_stored *stored = &w->stored[w->first[p]];

        if (stored->values && may_grow(w, &w->model->params[p], stored))
            tt_note("%s has %lld rows, and '%s' has %lld: the new ones are the mean of these", w->model->params[p].name,
                    (long long)w->model->params[p].shape[0], stored->values->name, (long long)stored->shape[0]);
    }
}

/* The name under which the files of a tied model may contain a copy of the embedding. */
static const char *head_name(const struct tt_weights *w)
{
    return w->kind == TT_WEIGHTS_FROM_HF ? "lm_head.weight" : "output.weight";
}

static int fail_tied(const struct tt_weights *w, const char *embedding, const char *how)
{
    return tt_fail(TT_EDATA,
                   "'%s': the output of the model is tied to its embedding, but tensor '%s' %s '%s'\n"
                   "help: to use both, set tie_word_embeddings to false in config.json (in training also "
                   "%s=false); else remove %s from the weights",
                   w->source->path, head_name(w), how, embedding, TT_KEY_NAME(model.tie_embeddings), head_name(w));
}

/* The files of a tied model may contain a copy of the embedding as the head, but not a different matrix. */
static int check_tied(const struct tt_weights *w)
{
    const struct tt_manifest_tensor *head = find_tensor(w, head_name(w));
    const struct tt_manifest_tensor *embedding = NULL;
    struct tt_box a, b;
    bool equal = false;
    int rc = 0;

    for (int p = 0; p < w->model->n_params; p++)
        if (strcmp(w->model->params[p].name, "tok_embeddings.weight") == 0)
            embedding = w->stored[w->first[p]].values;
    if (w->model->dims.tied != 1 || !head || !embedding || head == embedding)
        return 0;
    a = tt_box_whole(head->ndim, head->shape);
    b = tt_box_whole(embedding->ndim, embedding->shape);
    if (!tt_box_equal(&a, &b) || !tt_cast_known(TT_F32, head->dtype))
        return fail_tied(w, embedding->name, "does not have the shape of");
    TT_TRY(tt_source_equal(w->source, head, embedding, &equal));
    rc = equal ? 0 : fail_tied(w, embedding->name, "differs from");
out:
    return rc;
}

/* Finds the tensor of a parameter, or the tensors of its experts, which must all have the same dtype. */
static int find_theirs(struct tt_weights *w, int p)
{
    const struct tt_param *param = &w->model->params[p];
    struct tt_hf_tensor theirs = tt_hf_tensor_of(w->model, p);
    const struct tt_hf_stored *stored = &w->stored[w->first[p]];
    int rc = 0;

    for (int64_t e = 0; e < tt_hf_tensors_of(param) && rc == 0; e++) {
        char *name = param->hf_transform == TT_HF_EXPERTS ? tt_hf_expert_name(theirs.name, e) : tt_strdup(theirs.name);

        rc = find(w, param, e, name, theirs.ndim, theirs.shape);
        tt_free(name);
        if (rc == 0 && stored[e].dtype != stored[0].dtype)
            rc = tt_fail(TT_EDATA, "tensor '%s' is %s, and '%s' is %s; experts must all have the same type",
                         stored[e].values->name, tt_dtype_name(stored[e].values->dtype), stored[0].values->name,
                         tt_dtype_name(stored[0].values->dtype));
    }
    return rc;
}

static int from_hf(struct tt_source *source, const struct tt_model *model, enum tt_extra extra, struct tt_weights *w)
{
    int rc = 0;

    begin(w, TT_WEIGHTS_FROM_HF, source, model);
    TT_TRY(find_block_size(source, w->block));
    for (int p = 0; p < model->n_params; p++) {
        const struct tt_param *param = &model->params[p];

        if (param->adapter != source->is_adapter || !param->hf_name)
            continue;
        TT_TRY(find_theirs(w, p));
        add(w, p, param->name, w->stored[w->first[p]].dtype, param->ndim, param->shape);
    }
    if (extra) {
        TT_TRY(check_tied(w));
        note_new_rows(w);
        TT_TRY(check_hf_extra(source, model, extra == TT_EXTRA_REFUSED));
    }
out:
    return rc;
}

/* A parameter among the weights that the source leaves out. */
static struct tt_hf_stored stored_apart(const struct tt_weights *w, const struct tt_param *param)
{
    struct tt_hf_stored stored = {.dtype = tt_base_dtype(w->base), .ndim = param->ndim};

    memcpy(stored.shape, param->shape, sizeof param->shape);
    return stored;
}

/* Finds the model's parameters by titan's names. */
static int find_params(struct tt_weights *w, bool adapters)
{
    const struct tt_param *param = w->model->params;
    int rc = 0;

    if (!adapters)
        TT_TRY(tt_base_open(w->source, w->model, &w->base));
    for (int p = 0; p < w->model->n_params; p++, param++) {
        if (w->base && !param->adapter && !param->buffer)
            w->stored[w->first[p]] = stored_apart(w, param);
        else if (!adapters || param->adapter)
            TT_TRY(find(w, param, 0, param->name, param->ndim, param->shape));
    }
    rc = check_tied(w);
out:
    return rc;
}

/* From a PyTorch folder, whose tensors have titan's names, takes only the parameters of the model, in its order. */
static int from_dcp(struct tt_source *source, const struct tt_model *model, struct tt_weights *w)
{
    int rc = 0;

    begin(w, TT_WEIGHTS_STORED, source, model);
    TT_TRY(find_params(w, false));
    for (int p = 0; p < model->n_params; p++) {
        const struct tt_manifest_tensor *t = w->stored[w->first[p]].values;

        add(w, (int)(t - source->manifest.tensor), model->params[p].name, t->dtype, t->ndim, t->shape);
    }
    TT_TRY(check_titan_extra(source, model));
out:
    return rc;
}

static void note_left_out(const struct tt_model *model)
{
    for (int p = 0; p < model->n_params; p++)
        if (!model->params[p].hf_name) {
            tt_note(
                "%s and similar biases are not exported: Hugging Face's class for %s has none, so its routers choose "
                "experts by their scores alone",
                model->params[p].name, model->title);
            return;
        }
}

int tt_weights_to_hf(struct tt_source *source, const struct tt_model *model, bool adapters, struct tt_weights *w)
{
    int n = 0, rc = 0;

    begin(w, TT_WEIGHTS_TO_HF, source, model);
    if (adapters && model->dims.lora.rank == 0)
        TT_TRY(
            tt_fail(TT_EDATA, "'%s' has no adapters: it was trained without %s", source->path, TT_KEY_NAME(lora.rank)));
    TT_TRY(find_params(w, adapters));
    w->hf = tt_hf_tensors(model, adapters, &n);
    for (int i = 0; i < n; i++)
        add(w, i, w->hf[i].name, w->stored[w->first[w->hf[i].param[0]]].dtype, w->hf[i].ndim, w->hf[i].shape);
    if (!adapters)
        note_left_out(model);
out:
    return rc;
}

int tt_weights_to_gguf(struct tt_source *source, const struct tt_model *model, struct tt_weights *w)
{
    int rc = 0;

    begin(w, TT_WEIGHTS_TO_GGUF, source, model);
    TT_TRY(find_params(w, false));
    TT_TRY(tt_gguf_parts(model, &w->gguf, &w->n_gguf));
    for (int i = 0; i < w->n_gguf; i++) {
        const struct tt_gguf_part *part = &w->gguf[i];

        add(w, i, part->name, part->n_params ? w->stored[w->first[part->param[0]]].dtype : TT_F32, part->ndim,
            part->shape);
    }
out:
    return rc;
}

/* Finds the tensor of a part. ret_missing: the file lacks the tensor, which is allowed if llama.cpp has no such
 * tensor. */
static int find_part(struct tt_weights *w, int i, bool *ret_missing)
{
    const struct tt_gguf_part *part = &w->gguf[i];
    const struct tt_manifest_tensor *t = tt_manifest_find(&w->source->manifest, TT_CKPT_MODEL, part->name);
    struct tt_box wanted = tt_box_whole(part->ndim, part->shape), found;
    struct tt_hf_stored *stored = &w->stored[i];
    char a[128], b[128];

    *ret_missing = !t && w->model->params[part->param[0]].buffer;
    if (*ret_missing)
        return 0;
    if (!t)
        return fail_missing(w, part->name, "", &w->model->params[part->param[0]]);
    if (t->packing && t->ndim == 1)
        return tt_fail(TT_EDATA, "'%s': tensor '%s', a vector, is %s; wanted F32, F16 or BF16", w->source->path,
                       t->name, t->packing->name);
    *stored = stored_plain(t);
    if (t->packing) { /* shapes and types count elements, not bytes */
        stored->dtype = TT_F32;
        stored->shape[t->ndim - 1] = t->shape[t->ndim - 1] / t->packing->bytes * t->packing->elements;
    }
    found = tt_box_whole(stored->ndim, stored->shape);
    if (!tt_box_equal(&wanted, &found))
        return tt_fail(TT_EDATA,
                       "'%s': tensor '%s' is %s, wanted %s for the model's %s\n"
                       "help: the sizes in the file are not those of its tensors; download it again, or ask its author",
                       w->source->path, t->name, tt_box_text(b, sizeof b, &found), tt_box_text(a, sizeof a, &wanted),
                       w->model->params[part->param[0]].name);
    return 0;
}

/* Fails if a tensor of the file is not used, since its values would silently be lost. */
static int check_parts(const struct tt_weights *w)
{
    const struct tt_manifest *m = &w->source->manifest;

    for (int i = 0; i < m->n_tensors; i++) {
        bool known = tt_gguf_reads_rope_factors(w->model, m->tensor[i].name);

        for (int k = 0; k < w->n_gguf && !known; k++)
            known = strcmp(w->gguf[k].name, m->tensor[i].name) == 0;
        if (!known)
            return tt_fail(TT_EDATA, "'%s': the model, a %s, does not use tensor '%s'", w->source->path,
                           w->model->row->name, m->tensor[i].name);
    }
    return 0;
}

/* The dtype of the tensors that hold a parameter; float32 if they differ. */
static enum tt_dtype dtype_of(const struct tt_weights *w, int param)
{
    enum tt_dtype dtype = TT_F32;
    bool found = false;

    for (int i = 0; i < w->n_gguf; i++)
        for (int k = 0; k < w->gguf[i].n_params && !w->gguf[i].is_copy; k++) {
            if (w->gguf[i].param[k] != param)
                continue;
            dtype = found && w->stored[i].dtype != dtype ? TT_F32 : w->stored[i].dtype;
            found = true;
        }
    return dtype;
}

static int from_gguf(struct tt_source *source, const struct tt_model *model, struct tt_weights *w)
{
    bool *missing = NULL;
    int rc = 0;

    begin(w, TT_WEIGHTS_FROM_GGUF, source, model);
    TT_TRY(tt_gguf_parts(model, &w->gguf, &w->n_gguf));
    missing = tt_calloc((size_t)model->n_params + 1, sizeof *missing);
    tt_free(w->stored);
    w->stored = tt_calloc((size_t)w->n_gguf + 1, sizeof *w->stored);
    for (int p = 0; p < model->n_params; p++)
        missing[p] = model->params[p].buffer; /* buffers are left out unless the file contains them */
    for (int i = 0; i < w->n_gguf; i++)
        if (w->gguf[i].n_params && !w->gguf[i].is_copy)
            TT_TRY(find_part(w, i, &missing[w->gguf[i].param[0]]));
    TT_TRY(check_parts(w));
    for (int p = 0; p < model->n_params; p++) {
        const struct tt_param *param = &model->params[p];

        if (!param->adapter && !missing[p])
            add(w, p, param->name, dtype_of(w, p), param->ndim, param->shape);
    }
out:
    tt_free(missing);
    return rc;
}

int tt_weights_import(struct tt_source *source, const struct tt_model *model, enum tt_extra extra, struct tt_weights *w)
{
    if (source->kind == TT_PATH_DCP)
        return from_dcp(source, model, w);
    return tt_source_is_gguf(source) ? from_gguf(source, model, w) : from_hf(source, model, extra, w);
}

static int check_alike(const struct tt_weights *a, const struct tt_weights *b)
{
    for (int i = 0; i < a->n && i < b->n; i++) {
        const struct tt_weight *x = &a->weight[i], *y = &b->weight[i];
        struct tt_box wanted = tt_box_whole(x->ndim, x->shape), found = tt_box_whole(y->ndim, y->shape);
        char want[128], have[128];

        if (strcmp(x->name, y->name) != 0)
            return tt_fail(TT_EDATA, "'%s' has tensor '%s' where '%s' has '%s': they are not of one model",
                           b->source->path, y->name, a->source->path, x->name);
        if (!tt_box_equal(&wanted, &found))
            return tt_fail(TT_EDATA, "tensor '%s' is %s in '%s', and %s in '%s'", x->name,
                           tt_box_text(have, sizeof have, &found), b->source->path,
                           tt_box_text(want, sizeof want, &wanted), a->source->path);
        if (!tt_cast_known(TT_F32, x->dtype) || !tt_cast_known(TT_F32, y->dtype))
            return tt_fail(TT_EDATA, "tensor '%s' is %s; only F32, BF16 and F16 have a mean", x->name,
                           tt_dtype_name(tt_cast_known(TT_F32, x->dtype) ? y->dtype : x->dtype));
    }
    return a->n == b->n
               ? 0
               : tt_fail(TT_EDATA, "'%s' has %d tensors, '%s' has %d", a->source->path, a->n, b->source->path, b->n);
}

int tt_weights_mean(struct tt_weights *of, const double *share, int n, struct tt_weights *w)
{
    int rc = 0;

    begin(w, TT_WEIGHTS_MEAN, of[0].source, NULL);
    w->of = of;
    w->share = share;
    w->n_of = n;
    for (int k = 1; k < n; k++)
        TT_TRY(check_alike(&of[0], &of[k]));
    for (int i = 0; i < of[0].n; i++)
        TT_PUSH(w->weight, w->n, w->cap) = of[0].weight[i];
out:
    return rc;
}

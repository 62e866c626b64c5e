/* SPDX-License-Identifier: MIT
 *
 * The tensors of a checkpoint under the requested names; weights_read.c reads them.
 */
#include "checkpoint/hf/weights.h"

#include <string.h>

#include "checkpoint/format/cast.h"
#include "checkpoint/hf/extra.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/models/gguf.h"

/* The biases of experts, by titan's and by Hugging Face's names. */
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

static struct tt_weights begin(enum tt_weights_kind kind, struct tt_source *source, const struct tt_model *model)
{
    size_t n = (size_t)source->manifest.n_tensors + 1, n_params = model ? (size_t)model->n_params : 0;
    int64_t *first = tt_calloc(n_params + 1, sizeof *first);

    for (size_t p = 0; p < n_params; p++)
        first[p + 1] = first[p] + tt_hf_tensors_of(&model->params[p]);
    return (struct tt_weights){.kind = kind,
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

void tt_weights_stored(struct tt_source *source, enum tt_ckpt_group group, struct tt_weights *ret_weights)
{
    struct tt_weights w = begin(TT_WEIGHTS_STORED, source, NULL);

    for (int i = 0; i < source->manifest.n_tensors; i++) {
        const struct tt_manifest_tensor *t = &source->manifest.tensor[i];

        if (t->group == group)
            add(&w, i, t->name, t->dtype, t->ndim, t->shape);
    }
    *ret_weights = w;
}

bool tt_weights_digest(const struct tt_weights *weights, const struct tt_weight *weight, uint64_t *ret_digest)
{
    const struct tt_manifest_tensor *t = &weights->source->manifest.tensor[weight->number];

    if (weights->kind != TT_WEIGHTS_STORED || !t->has_digest)
        return false;
    *ret_digest = t->digest;
    return true;
}

/* The published gpt2 files are of the model without its head, so their names lack the prefix. */
static const struct tt_manifest_tensor *find_tensor(const struct tt_weights *w, const char *name)
{
    const struct tt_manifest *manifest = &w->source->manifest;
    const struct tt_manifest_tensor *found = tt_manifest_find(manifest, TT_CKPT_MODEL, name);
    const char *prefix = w->model->row->hf_prefix;

    if (!found && prefix && strncmp(name, prefix, strlen(prefix)) == 0)
        found = tt_manifest_find(manifest, TT_CKPT_MODEL, name + strlen(prefix));
    return found;
}

/* The same for the name and an end. */
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

static int fail_scaled(const struct tt_weights *w, const struct tt_manifest_tensor *t, const char *end)
{
    return tt_fail(TT_EDATA,
                   "'%s': tensor '%s' is %s, but there are scales for it, '%s%s'; wanted F8_E4M3 or no scales",
                   w->source->path, t->name, tt_dtype_name(t->dtype), t->name, end);
}

/* Finds the tensor of a weight, or that of its elements and that of its scales. */
static int find_stored(const struct tt_weights *w, const struct tt_param *param, const char *name,
                       struct tt_hf_stored *ret_stored)
{
    const struct tt_manifest_tensor *values = find_tensor(w, name), *scales;
    bool is_import = w->kind == TT_WEIGHTS_FROM_HF;
    const char *end = "_scale_inv";

    if (values && !(is_import && values->dtype == TT_F8_E4M3)) {
        *ret_stored = tt_hf_stored_plain(values);
        return is_import && find_end(w, name, end) ? fail_scaled(w, values, end) : 0;
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
    return tt_hf_stored_packed(values, scales, w->block, ret_stored);
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
                       tt_key_name(TT_KEY_MAX_POSITIONS), tt_key_name(TT_KEY_SEQ_LEN), (long long)stored->shape[0]);
    if (!tt_box_equal(&wanted, &found) && !(w->source->extend_vocabulary && may_grow(w, param, stored)))
        return tt_fail(TT_EDATA, "tensor '%s' is %s, wanted %s for the model's %s\nhelp: %s%s", stored->values->name,
                       tt_box_text(b, sizeof b, &found), tt_box_text(a, sizeof a, &wanted), param->name,
                       may_grow(w, param, stored) ? "for new tokens, in training, set "
                                                  : "are the dims those of the weights' config.json?",
                       may_grow(w, param, stored) ? tt_key_name(TT_KEY_EXTEND_VOCABULARY) : "");
    if (!tt_cast_known(TT_F32, stored->dtype))
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

/* What a tied model's files may have under this name is a copy of the embedding. */
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
                   w->source->path, head_name(w), how, embedding, tt_key_name(TT_KEY_TIE_EMBEDDINGS), head_name(w));
}

/* A tied model's files may have a copy of the embedding for the head, but not a different matrix. */
static int check_tied(const struct tt_weights *w)
{
    const struct tt_manifest_tensor *head = tt_manifest_find(&w->source->manifest, TT_CKPT_MODEL, head_name(w));
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

/* Finds the tensor of a parameter, or those of its experts, which have one type. */
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
            rc = tt_fail(TT_EDATA, "tensor '%s' is %s, and '%s' is %s; experts must have one type",
                         stored[e].values->name, tt_dtype_name(stored[e].values->dtype), stored[0].values->name,
                         tt_dtype_name(stored[0].values->dtype));
    }
    return rc;
}

int tt_weights_from_hf(struct tt_source *source, const struct tt_model *model, enum tt_extra check_extra,
                       struct tt_weights *ret_weights)
{
    struct tt_weights w = begin(TT_WEIGHTS_FROM_HF, source, model);
    int rc = 0;

    TT_TRY(tt_hf_block_size(source, w.block));
    for (int p = 0; p < model->n_params; p++) {
        const struct tt_param *param = &model->params[p];

        if (param->adapter || !param->hf_name)
            continue;
        TT_TRY(find_theirs(&w, p));
        add(&w, p, param->name, w.stored[w.first[p]].dtype, param->ndim, param->shape);
    }
    if (check_extra) {
        TT_TRY(check_tied(&w));
        note_new_rows(&w);
        TT_TRY(tt_hf_check_extra(source, model, check_extra == TT_EXTRA_REFUSED));
    }
    *ret_weights = w;
out:
    if (rc < 0)
        tt_weights_release(&w);
    return rc;
}

/* Finds the model's parameters by titan's names. */
static int find_params(struct tt_weights *w)
{
    int rc = 0;

    for (int p = 0; p < w->model->n_params; p++) {
        const struct tt_param *param = &w->model->params[p];

        TT_TRY(find(w, param, 0, param->name, param->ndim, param->shape));
    }
    rc = check_tied(w);
out:
    return rc;
}

int tt_weights_of_model(struct tt_source *source, const struct tt_model *model, struct tt_weights *ret_weights)
{
    struct tt_weights w = begin(TT_WEIGHTS_STORED, source, model);
    int rc = 0;

    TT_TRY(find_params(&w));
    for (int p = 0; p < model->n_params; p++) {
        const struct tt_manifest_tensor *t = w.stored[w.first[p]].values;

        add(&w, (int)(t - source->manifest.tensor), model->params[p].name, t->dtype, t->ndim, t->shape);
    }
    TT_TRY(tt_titan_check_extra(source, model));
    *ret_weights = w;
out:
    if (rc < 0)
        tt_weights_release(&w);
    return rc;
}

static void note_left_out(const struct tt_model *model)
{
    for (int p = 0; p < model->n_params; p++)
        if (!model->params[p].hf_name) {
            tt_note("%s and the like are not exported: Hugging Face's class of %s has none, so its routers choose "
                    "experts by their scores alone",
                    model->params[p].name, model->title);
            return;
        }
}

/* The whole model with its adapters merged, or the adapters alone. */
static int export(struct tt_source *source, const struct tt_model *model, bool adapters, struct tt_weights *ret_weights)
{
    struct tt_weights w = begin(TT_WEIGHTS_TO_HF, source, model);
    int n = 0, rc = 0;

    TT_TRY(find_params(&w));
    w.hf = tt_hf_tensors(model, adapters, &n);
    for (int i = 0; i < n; i++)
        add(&w, i, w.hf[i].name, w.stored[w.first[w.hf[i].param[0]]].dtype, w.hf[i].ndim, w.hf[i].shape);
    if (!adapters)
        note_left_out(model);
    *ret_weights = w;
out:
    if (rc < 0)
        tt_weights_release(&w);
    return rc;
}

int tt_weights_to_hf(struct tt_source *source, const struct tt_model *model, struct tt_weights *ret_weights)
{
    return export(source, model, false, ret_weights);
}

int tt_weights_of_adapters(struct tt_source *source, const struct tt_model *model, struct tt_weights *ret_weights)
{
    if (model->dims.lora.rank == 0)
        return tt_fail(TT_EDATA, "'%s' has no adapters: it was trained without %s", source->path,
                       tt_key_name(TT_KEY_LORA_RANK));
    return export(source, model, true, ret_weights);
}

int tt_weights_to_gguf(struct tt_source *source, const struct tt_model *model, struct tt_weights *ret_weights)
{
    struct tt_weights w = begin(TT_WEIGHTS_TO_GGUF, source, model);
    int rc = 0;

    TT_TRY(find_params(&w));
    TT_TRY(tt_gguf_parts(model, &w.gguf, &w.n_gguf));
    for (int i = 0; i < w.n_gguf; i++) {
        const struct tt_gguf_part *part = &w.gguf[i];

        add(&w, i, part->name, part->n_params ? w.stored[w.first[part->param[0]]].dtype : TT_F32, part->ndim,
            part->shape);
    }
    *ret_weights = w;
out:
    if (rc < 0)
        tt_weights_release(&w);
    return rc;
}

/* A tensor of a GGUF file, as elements. */
static struct tt_hf_stored as_elements(const struct tt_manifest_tensor *t)
{
    struct tt_hf_stored stored = tt_hf_stored_plain(t);

    if (!t->packing)
        return stored;
    stored.dtype = TT_F32;
    stored.shape[stored.ndim - 1] = t->shape[t->ndim - 1] / t->packing->bytes * t->packing->elements;
    return stored;
}

/* Finds the tensor of a part. ret_missing: the file does not have it, which is no fault of what llama.cpp lacks. */
static int find_part(struct tt_weights *w, int i, bool *ret_missing)
{
    const struct tt_gguf_part *part = &w->gguf[i];
    const struct tt_manifest_tensor *t = tt_manifest_find(&w->source->manifest, TT_CKPT_MODEL, part->name);
    struct tt_box wanted = tt_box_whole(part->ndim, part->shape), found;
    char a[128], b[128];

    *ret_missing = !t && w->model->params[part->param[0]].buffer;
    if (*ret_missing)
        return 0;
    if (!t)
        return fail_missing(w, part->name, "", &w->model->params[part->param[0]]);
    if (t->packing && t->ndim == 1)
        return tt_fail(TT_EDATA, "'%s': tensor '%s', a vector, is %s; wanted F32, F16 or BF16", w->source->path,
                       t->name, t->packing->name);
    w->stored[i] = as_elements(t);
    found = tt_box_whole(w->stored[i].ndim, w->stored[i].shape);
    if (!tt_box_equal(&wanted, &found))
        return tt_fail(TT_EDATA, "'%s': tensor '%s' is %s, wanted %s for the model's %s", w->source->path, t->name,
                       tt_box_text(b, sizeof b, &found), tt_box_text(a, sizeof a, &wanted),
                       w->model->params[part->param[0]].name);
    return 0;
}

/* Tensors that the model has no place for would be lost in silence. */
static int check_parts(const struct tt_weights *w)
{
    const struct tt_manifest *m = &w->source->manifest;

    for (int i = 0; i < m->n_tensors; i++) {
        bool known = tt_gguf_reads_rope_factors(w->model) && strcmp(m->tensor[i].name, "rope_freqs.weight") == 0;

        for (int k = 0; k < w->n_gguf && !known; k++)
            known = strcmp(w->gguf[k].name, m->tensor[i].name) == 0;
        if (!known)
            return tt_fail(TT_EDATA, "'%s': the model, a %s, has no place for tensor '%s'", w->source->path,
                           w->model->row->name, m->tensor[i].name);
    }
    return 0;
}

/* The type of the tensors that have a parameter; float32 if they differ. */
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

int tt_weights_from_gguf(struct tt_source *source, const struct tt_model *model, struct tt_weights *ret_weights)
{
    struct tt_weights w = begin(TT_WEIGHTS_FROM_GGUF, source, model);
    bool *missing = NULL;
    int rc = 0;

    TT_TRY(tt_gguf_parts(model, &w.gguf, &w.n_gguf));
    missing = tt_calloc((size_t)model->n_params + 1, sizeof *missing);
    tt_free(w.stored);
    w.stored = tt_calloc((size_t)w.n_gguf + 1, sizeof *w.stored);
    for (int i = 0; i < w.n_gguf; i++)
        if (w.gguf[i].n_params && !w.gguf[i].is_copy)
            TT_TRY(find_part(&w, i, &missing[w.gguf[i].param[0]]));
    TT_TRY(check_parts(&w));
    for (int p = 0; p < model->n_params; p++) {
        const struct tt_param *param = &model->params[p];

        if (!param->adapter && !missing[p] && (!param->buffer || strcmp(model->row->name, "deepseek_v3") == 0))
            add(&w, p, param->name, dtype_of(&w, p), param->ndim, param->shape);
    }
    *ret_weights = w;
out:
    tt_free(missing);
    if (rc < 0)
        tt_weights_release(&w);
    return rc;
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

int tt_weights_mean(struct tt_weights *of, const double *share, int n, struct tt_weights *ret_weights)
{
    struct tt_weights w = begin(TT_WEIGHTS_MEAN, of[0].source, NULL);
    int rc = 0;

    w.of = of;
    w.share = share;
    w.n_of = n;
    for (int k = 1; k < n; k++)
        TT_TRY(check_alike(&of[0], &of[k]));
    for (int i = 0; i < of[0].n; i++)
        TT_PUSH(w.weight, w.n, w.cap) = of[0].weight[i];
    *ret_weights = w;
out:
    if (rc < 0)
        tt_weights_release(&w);
    return rc;
}

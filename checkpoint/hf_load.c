/* SPDX-License-Identifier: MIT
 *
 * Hugging Face weights in: finds each parameter's tensor, compares shapes, and reads this rank's rows (hf_map.h).
 */
#include "checkpoint/hf_load.h"

#include <stdio.h>
#include <string.h>

#include "checkpoint/hf_map.h"
#include "checkpoint/source.h"
#include "core/base/log.h"
#include "core/base/mem.h"

struct load {
    struct tt_source *source;
    const struct tt_model *model;
    const struct tt_manifest_tensor *tensor; /* the one that is being read */
};

static int check_shape(const struct tt_manifest_tensor *t, const struct tt_hf_tensor *want,
                       const struct tt_param *param)
{
    struct tt_box wanted = tt_box_whole(want->ndim, want->shape), found = tt_box_whole(t->ndim, t->shape);
    char a[128], b[128];

    if (tt_box_equal(&wanted, &found))
        return 0;
    return tt_fail(TT_EDATA,
                   "tensor '%s' is %s, wanted %s for the model's %s\nhelp: are the dims those of the weights' "
                   "config.json?",
                   t->name, tt_box_text(b, sizeof b, &found), tt_box_text(a, sizeof a, &wanted), param->name);
}

static int read_theirs(void *arg, int param, int64_t row, int64_t n, float *data)
{
    struct load *load = arg;

    (void)param;
    return tt_source_read(load->source, load->tensor, row, n, TT_F32, data);
}

/* The published gpt2 files are of the model without its head: their names lack the prefix. */
static const struct tt_manifest_tensor *find_tensor(const struct load *load, const char *name)
{
    const struct tt_manifest *manifest = &load->source->manifest;
    const struct tt_manifest_tensor *found = tt_manifest_find(manifest, TT_GROUP_MODEL, name);
    const char *prefix = load->model->row->hf_prefix;

    if (!found && prefix && strncmp(name, prefix, strlen(prefix)) == 0)
        found = tt_manifest_find(manifest, TT_GROUP_MODEL, name + strlen(prefix));
    return found;
}

static int read_param(struct load *load, int p, const struct tt_ckpt_chunk *chunk)
{
    const struct tt_param *param = &load->model->params[p];
    struct tt_hf_tensor want = tt_hf_tensor_of(load->model, p);
    int rc;

    load->tensor = find_tensor(load, want.name);
    if (!load->tensor)
        return tt_fail(TT_EDATA, "the weights in '%s' lack tensor '%s' (the model's %s)", load->source->path, want.name,
                       param->name);
    if ((rc = check_shape(load->tensor, &want, param)) < 0)
        return rc;
    return tt_hf_import(load->model, p, read_theirs, load, chunk->row_begin, chunk->row_count, chunk->data);
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);

    return n >= m && strcmp(name + n - m, end) == 0;
}

/* Constants that older files carry: derived from the configuration, or the causal mask. */
static bool is_derived(const char *name)
{
    static const char *const ends[] = {"rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"};

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(name, ends[i]))
            return true;
    return false;
}

static bool is_known(const struct tt_model *model, const char *name)
{
    const char *prefix = model->row->hf_prefix ? model->row->hf_prefix : "";
    size_t skip = strlen(prefix);

    if (is_derived(name) || (model->dims.tied == 1 && strcmp(name, "lm_head.weight") == 0))
        return true;
    for (int p = 0; p < model->n_params; p++) {
        const char *known = model->params[p].hf_name;

        if (strcmp(known, name) == 0 || (strncmp(known, prefix, skip) == 0 && strcmp(known + skip, name) == 0))
            return true;
    }
    return false;
}

static void note_extra(const struct tt_source *source, const struct tt_model *model)
{
    const char *first = NULL;
    int n = 0;

    for (int i = 0; i < source->manifest.n_tensors; i++) {
        if (is_known(model, source->manifest.tensor[i].name))
            continue;
        first = first ? first : source->manifest.tensor[i].name;
        n++;
    }
    if (n)
        tt_note("%d tensors of '%s' are not used, for instance '%s'", n, source->path, first);
}

int tt_hf_load(struct tt_comm *comm, const char *folder, const struct tt_model *model,
               const struct tt_ckpt_state *state)
{
    struct tt_source *source = NULL;
    int rc = tt_source_open(folder, TT_PATH_PLAIN, &source);
    struct load load = {.source = source, .model = model};

    for (int p = 0; p < model->n_params && rc == 0; p++)
        rc = read_param(&load, p, &state->model[p]);
    TT_TRY(tt_comm_agree(comm, rc));
    if (comm->rank == 0)
        note_extra(source, model);
out:
    tt_source_free(source);
    return rc;
}

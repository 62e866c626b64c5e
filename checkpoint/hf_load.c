/* SPDX-License-Identifier: MIT
 *
 * Hugging Face weights in. Only q and k of Llama differ in their rows: RoPE pairs are (2i, 2i+1) with us and
 * (i, i + E/2) with them, inside every head, so a whole head is read and its rows are put in our order.
 */
#include "checkpoint/hf_load.h"

#include <stdio.h>
#include <string.h>

#include "checkpoint/source.h"
#include "core/base/log.h"
#include "core/base/mem.h"

static int check_shape(const struct tt_manifest_tensor *t, const struct tt_param *param)
{
    struct tt_box wanted = tt_box_whole(param->ndim, param->shape), found = tt_box_whole(t->ndim, t->shape);
    char a[128], b[128];

    if (tt_box_equal(&wanted, &found))
        return 0;
    return tt_fail(TT_EDATA,
                   "tensor '%s' is %s, the model's %s is %s\nhelp: are the dims those of the weights' config.json?",
                   t->name, tt_box_text(b, sizeof b, &found), param->name, tt_box_text(a, sizeof a, &wanted));
}

/* Our row of a head -> theirs. */
static int64_t hf_row(int64_t row, int64_t head_dim)
{
    return row % 2 * (head_dim / 2) + row / 2;
}

static int read_rope_pairs(struct tt_source *source, const struct tt_manifest_tensor *t, const struct tt_param *param,
                           const struct tt_ckpt_chunk *chunk)
{
    int64_t width = param->shape[1], head_dim = param->shape[0] / param->hf_heads;
    float *head = tt_calloc((size_t)(head_dim * width), sizeof *head);
    int64_t end = chunk->row_begin + chunk->row_count;
    int rc = 0;

    for (int64_t h = chunk->row_begin / head_dim; h * head_dim < end; h++) {
        TT_TRY(tt_source_read(source, t, h * head_dim, head_dim, TT_F32, head));
        for (int64_t i = 0; i < head_dim; i++) {
            int64_t row = h * head_dim + i;

            if (row >= chunk->row_begin && row < end)
                memcpy((float *)chunk->data + (row - chunk->row_begin) * width, head + hf_row(i, head_dim) * width,
                       (size_t)width * sizeof *head);
        }
    }
out:
    tt_free(head);
    return rc;
}

static int read_param(struct tt_source *source, const struct tt_param *param, const struct tt_ckpt_chunk *chunk)
{
    const struct tt_manifest_tensor *t = tt_manifest_find(&source->manifest, TT_GROUP_MODEL, param->hf_name);
    int rc;

    if (!t)
        return tt_fail(TT_EDATA, "the weights in '%s' lack tensor '%s' (the model's %s)", source->path, param->hf_name,
                       param->name);
    if ((rc = check_shape(t, param)) < 0 || chunk->row_count == 0)
        return rc;
    switch (param->hf_transform) {
    case TT_HF_SAME:
        return tt_source_read(source, t, chunk->row_begin, chunk->row_count, TT_F32, chunk->data);
    case TT_HF_ROPE_PAIRS:
        return read_rope_pairs(source, t, param, chunk);
    default:
        return tt_fail(TT_EINTERNAL, "parameter %s has a layout that cannot be read", param->name);
    }
}

static bool is_known(const struct tt_model *model, const char *name)
{
    static const char rotary[] = "rotary_emb.inv_freq"; /* derived from the configuration */
    size_t size = strlen(name);

    if (size >= sizeof rotary - 1 && strcmp(name + size - (sizeof rotary - 1), rotary) == 0)
        return true;
    if (model->dims.tied == 1 && strcmp(name, "lm_head.weight") == 0)
        return true;
    for (int p = 0; p < model->n_params; p++)
        if (strcmp(model->params[p].hf_name, name) == 0)
            return true;
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

    for (int p = 0; p < model->n_params && rc == 0; p++)
        rc = read_param(source, &model->params[p], &state->model[p]);
    TT_TRY(tt_comm_agree(comm, rc));
    if (comm->rank == 0)
        note_extra(source, model);
out:
    tt_source_free(source);
    return rc;
}

/* SPDX-License-Identifier: MIT
 *
 * Loads Hugging Face weights into a training run: every rank reads its part of every parameter.
 */
#include "checkpoint/load/hf.h"

#include "checkpoint/durable/patience.h"
#include "checkpoint/read/weights.h"
#include "core/base/mem.h"
#include "core/math/packing.h"

struct load {
    const char *folder;
    const struct tt_hf_options *options; /* may be NULL */
    const struct tt_model *model;
    const struct tt_ckpt_state *state; /* NULL: nothing is read */
    bool checks;                       /* this rank also looks for tensors that the model lacks */
};

/* Reads the rows of a part, or all rows that packing needs, and packs them. There is never more than one whole matrix
 * of the model in memory. */
static int read_packed(struct tt_weights *weights, const struct tt_weight *weight, const struct tt_ckpt_chunk *chunk)
{
    bool all = tt_packing_needs_whole(chunk->packing);
    int64_t first = chunk->part.offset[0], n = tt_box_volume(&chunk->part) ? chunk->part.shape[0] : 0;
    int64_t begin = all ? 0 : first, rows = all ? chunk->shape[0] : n, width = chunk->shape[1];
    float *matrix;
    int rc = 0;

    if (n == 0) /* but the file is checked */
        return tt_weights_read(weights, weight, 0, 0, TT_F32, NULL);
    matrix = tt_calloc_for((size_t)(rows * width), sizeof *matrix, chunk->name);
    if (!matrix)
        return TT_ENOMEM;
    TT_TRY(tt_weights_read(weights, weight, begin, rows, TT_F32, matrix));
    tt_pack(chunk->packing, matrix, rows, width, first - begin, n, chunk->data);
out:
    tt_free(matrix);
    return rc;
}

/* Reads whole rows; if the part has only some of the columns, copies it out of them. */
static int read_part(struct tt_weights *weights, const struct tt_weight *weight, const struct tt_ckpt_chunk *chunk)
{
    bool empty = tt_box_volume(&chunk->part) == 0;
    int64_t begin = chunk->part.offset[0], n = empty ? 0 : chunk->part.ndim ? chunk->part.shape[0] : 1;
    struct tt_box rows = tt_box_rows(chunk->ndim, chunk->shape, begin, n);
    size_t size = tt_dtype_size(chunk->dtype);
    void *whole;
    int rc = 0;

    if (chunk->packing)
        return read_packed(weights, weight, chunk);
    if (empty || tt_box_equal(&rows, &chunk->part))
        return tt_weights_read(weights, weight, begin, n, chunk->dtype, chunk->data);
    whole = tt_calloc_for((size_t)tt_box_volume(&rows), size, chunk->name);
    if (!whole)
        return TT_ENOMEM;
    TT_TRY(tt_weights_read(weights, weight, begin, n, chunk->dtype, whole));
    tt_box_copy(&chunk->part, chunk->data, &rows, whole, size);
out:
    tt_free(whole);
    return rc;
}

static int read_parts(void *arg)
{
    const struct load *load = arg;
    struct tt_source *source = NULL;
    struct tt_weights weights = {0};
    int rc = 0;

    TT_TRY(tt_source_open(load->folder, TT_PATH_PLAIN, &source));
    if (load->options) {
        source->leave_out = load->options->leave_out;
        source->extend_vocabulary = load->options->extend_vocabulary;
    }
    TT_TRY(tt_weights_import(source, load->model, load->checks ? TT_EXTRA_REFUSED : TT_EXTRA_IGNORED, &weights));
    for (int i = 0; i < weights.n && load->state; i++)
        TT_TRY(read_part(&weights, &weights.weight[i], &load->state->model[weights.weight[i].number]));
out:
    tt_weights_release(&weights);
    tt_source_free(source);
    return rc;
}

int tt_hf_load(struct tt_comm *comm, const char *folder, const struct tt_hf_options *options,
               const struct tt_model *model, const struct tt_ckpt_state *state)
{
    struct tt_patience patience = tt_patience_begin(comm, "loading Hugging Face weights");
    struct load load = {folder, options, model, state, comm->rank == 0};
    int rc = tt_patience_work(comm, true, read_parts, &load);

    tt_patience_end(comm, &patience);
    return rc;
}

int tt_hf_examine(const char *folder, const struct tt_hf_options *options, const struct tt_model *model)
{
    return read_parts(&(struct load){folder, options, model, NULL, true});
}

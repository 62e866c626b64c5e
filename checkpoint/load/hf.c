/* SPDX-License-Identifier: MIT
 *
 * Loads Hugging Face weights into a training run: every rank reads its part of every parameter.
 */
#include "checkpoint/load/hf.h"

#include "checkpoint/durable/patience.h"
#include "checkpoint/read/weights.h"
#include "core/base/mem.h"

struct load {
    const char *folder;
    const struct tt_hf_options *options; /* may be NULL */
    const struct tt_model *model;
    const struct tt_ckpt_state *state; /* NULL: nothing is read */
    bool checks;                       /* this rank also looks for tensors that the model lacks */
};

/* Reads whole rows; if the part has only some of the columns, copies it out of them. */
static int read_part(struct tt_weights *weights, const struct tt_weight *weight, const struct tt_ckpt_chunk *chunk)
{
    bool empty = tt_box_volume(&chunk->part) == 0;
    int64_t begin = chunk->part.offset[0], n = empty ? 0 : chunk->part.ndim ? chunk->part.shape[0] : 1;
    struct tt_box rows = tt_box_rows(chunk->ndim, chunk->shape, begin, n);
    size_t size = tt_dtype_size(chunk->dtype);
    void *whole;
    int rc = 0;

    if (chunk->packing && !empty)
        return tt_weights_read_packed(weights, weight, chunk->packing, &chunk->part, chunk->data);
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

/* Prints a note if blocks of 4 bits become other blocks of 4 bits, which changes weights for a second time. */
static void note_repacked(const struct tt_weights *weights, const struct tt_ckpt_state *state)
{
    for (int i = 0; i < weights->n && weights->kind == TT_WEIGHTS_FROM_HF; i++) {
        const struct tt_weight *weight = &weights->weight[i];
        const struct tt_bnb *bnb = weights->stored[weights->first[weight->number]].bnb;

        if (!bnb || !bnb->block || state->model[weight->number].packing != TT_PACKING_NF4 ||
            tt_weights_keep_packing(weights, weight, TT_PACKING_NF4))
            continue;
        tt_note("the weights of '%s' are in 4 bits, but not in blocks of %d nf4 elements with double quantization: "
                "they are packed anew, which changes '%s' and others",
                weights->source->path, TT_NF4_BLOCK, weight->name);
        return;
    }
}

static int read_parts(void *arg)
{
    const struct load *load = arg;
    struct tt_source *source = NULL;
    struct tt_weights weights = {0};
    int rc = 0;

    TT_TRY(tt_source_open(load->folder, TT_PATH_PLAIN, &source));
    if (load->options) {
        source->is_adapter = load->options->adapters;
        source->leave_out = load->options->leave_out;
        source->extend_vocabulary = load->options->extend_vocabulary;
    }
    TT_TRY(tt_weights_import(source, load->model, load->checks ? TT_EXTRA_REFUSED : TT_EXTRA_IGNORED, &weights));
    if (load->checks && load->state)
        note_repacked(&weights, load->state);
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

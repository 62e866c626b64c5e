/* SPDX-License-Identifier: MIT
 *
 * Loads Hugging Face weights into a training run: every rank reads its rows of every parameter.
 */
#include "checkpoint/hf/load.h"

#include "checkpoint/hf/weights.h"
#include "checkpoint/load/patience.h"

struct load {
    const char *folder;
    const struct tt_model *model;
    const struct tt_ckpt_state *state;
    bool checks; /* this rank also looks for tensors that the model does not have */
};

static int read_rows(void *arg)
{
    const struct load *load = arg;
    struct tt_source *source = NULL;
    struct tt_weights weights = {0};
    int rc = tt_source_open(load->folder, TT_PATH_PLAIN, &source);

    if (rc == 0)
        rc = tt_weights_from_hf(source, load->model, load->checks, &weights);
    for (int p = 0; p < load->model->n_params && rc == 0; p++) {
        const struct tt_ckpt_chunk *chunk = &load->state->model[p];

        rc = tt_weights_read(&weights, &weights.weight[p], chunk->row_begin, chunk->row_count, TT_F32, chunk->data);
    }
    tt_weights_release(&weights);
    tt_source_free(source);
    return rc;
}

int tt_hf_load(struct tt_comm *comm, const char *folder, const struct tt_model *model,
               const struct tt_ckpt_state *state)
{
    struct tt_patience patience = tt_patience_begin(comm, "loading Hugging Face weights");
    struct load load = {folder, model, state, comm->rank == 0};
    int rc = tt_patience_work(comm, true, read_rows, &load);

    tt_patience_end(comm, &patience);
    return rc;
}

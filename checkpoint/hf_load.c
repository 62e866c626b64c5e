/* SPDX-License-Identifier: MIT
 *
 * Hugging Face weights into a training run: every rank reads its rows of every parameter.
 */
#include "checkpoint/hf_load.h"

#include "checkpoint/weights.h"

int tt_hf_load(struct tt_comm *comm, const char *folder, const struct tt_model *model,
               const struct tt_ckpt_state *state)
{
    struct tt_source *source = NULL;
    struct tt_weights weights = {0};
    int rc = tt_source_open(folder, TT_PATH_PLAIN, &source);

    if (rc == 0)
        rc = tt_weights_from_hf(source, model, comm->rank == 0, &weights);
    for (int p = 0; p < model->n_params && rc == 0; p++) {
        const struct tt_ckpt_chunk *chunk = &state->model[p];

        rc = tt_weights_read(&weights, &weights.weight[p], chunk->row_begin, chunk->row_count, TT_F32, chunk->data);
    }
    rc = tt_comm_agree(comm, rc);
    tt_weights_release(&weights);
    tt_source_free(source);
    return rc;
}

/* SPDX-License-Identifier: MIT
 *
 * Validation while training: the mean loss over validation.steps batches per rank, or over all of the data.
 */
#include "cli/run/validation.h"
#include "cli/train/trainer.h"

/* Samples to look at: whole batches of all ranks' rounds, or everything. */
static int64_t samples_wanted(const struct tt_trainer *t)
{
    int64_t all = tt_sampler_epoch_samples(t->validation.sampler);
    int64_t wanted = t->cfg->validation.steps * t->cfg->validation.local_batch_size * tt_mesh_dp(&t->mesh);

    return t->cfg->validation.steps < 0 || wanted > all ? all : wanted;
}

int tt_trainer_validate(struct tt_trainer *t)
{
    const struct tt_validation validation = {.engine = t->engine,
                                             .data = &t->validation,
                                             .batch = t->cfg->validation.local_batch_size,
                                             .samples = samples_wanted(t)};
    struct tt_validation_result found;
    int rc = 0;

    TT_TRY(tt_validation_run(t->comm, &validation, &found));
    if (t->comm->rank == 0)
        tt_metrics_validate(&t->metrics, t->at.step, found.loss, found.tokens, found.seconds, tt_mesh_dp(&t->mesh));
out:
    return rc;
}

/* SPDX-License-Identifier: MIT
 *
 * Validation during training: which data, when, and how much of it.
 */
#include "cli/train/validate.h"

#include "cli/train/data/datasets.h"

int tt_validator_open(const struct tt_setup *setup, struct tt_validator *ret_validator)
{
    *ret_validator = (struct tt_validator){.setup = setup};
    return setup->cfg->validation.enable ? tt_datasets_open_validation(setup, &ret_validator->data) : 0;
}

void tt_validator_release(struct tt_validator *v)
{
    tt_train_data_release(&v->data);
}

bool tt_validator_is_due(const struct tt_validator *v, int64_t step, bool last)
{
    const struct tt_config *cfg = v->setup->cfg;

    return cfg->validation.enable && (last || step == 1 || step % cfg->validation.freq == 0);
}

/* The number of samples: validation.steps batches of every rank, or all samples. */
static int64_t samples_wanted(const struct tt_validator *v)
{
    const struct tt_config *cfg = v->setup->cfg;
    int64_t all = tt_sampler_epoch_samples(v->data.sampler);
    int64_t wanted = cfg->validation.steps * cfg->validation.local_batch_size * tt_mesh_dp(&v->setup->job.mesh);

    return cfg->validation.steps < 0 || wanted > all ? all : wanted;
}

int tt_validator_run(struct tt_validator *v, struct tt_validation_result *ret_result)
{
    const struct tt_validation validation = {.engine = v->setup->engine,
                                             .data = &v->data,
                                             .batch = v->setup->cfg->validation.local_batch_size,
                                             .samples = samples_wanted(v)};

    return tt_validation_run(v->setup->comm, &validation, ret_result);
}

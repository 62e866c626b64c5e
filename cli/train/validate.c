/* SPDX-License-Identifier: MIT
 *
 * Validation during training: which data, when, and how much of it.
 */
#include "cli/train/validate.h"

#include "cli/train/data/datasets.h"
#include "core/base/mem.h"

int tt_validator_open(const struct tt_setup *setup, struct tt_validator *ret_validator)
{
    const struct tt_datasets *datasets = &setup->cfg->validation.dataset;
    struct tt_validator *v = ret_validator;
    int n = setup->cfg->validation.enable ? datasets->n : 0, rc = 0;

    *v = (struct tt_validator){.setup = setup,
                               .set = tt_calloc((size_t)n, sizeof *v->set),
                               .found = tt_calloc((size_t)n, sizeof *v->found),
                               .name = tt_calloc((size_t)n, sizeof *v->name)};
    for (; v->n < n && rc == 0; v->n++) {
        rc = tt_datasets_open_validation(setup, v->n, &v->set[v->n]);
        v->name[v->n] = datasets->entry[v->n].name;
    }
    return rc;
}

void tt_validator_release(struct tt_validator *v)
{
    for (int i = 0; i < v->n; i++)
        tt_train_data_release(&v->set[i]);
    tt_free(v->set);
    tt_free(v->found);
    tt_free((void *)v->name);
    *v = (struct tt_validator){.n = 0};
}

bool tt_validator_is_due(const struct tt_validator *v, int64_t step, bool last)
{
    const struct tt_config *cfg = v->setup->cfg;

    return cfg->validation.enable && (last || step == 1 || step % cfg->validation.freq == 0);
}

/* Also exchanges them back. */
static void exchange_averages(const struct tt_validator *v)
{
    if (v->setup->cfg->ema.validate)
        tt_state_exchange_averages(tt_engine_state(v->setup->engine), tt_engine_layout(v->setup->engine));
}

int tt_validator_run(struct tt_validator *v, int (*asked_to_stop)(void), double long_sec, bool is_long,
                     const char *progress)
{
    int rc = 0;

    exchange_averages(v);
    for (int i = 0; i < v->n; i++) {
        const struct tt_validation validation = {.engine = v->setup->engine,
                                                 .data = &v->set[i],
                                                 .batch = v->setup->cfg->validation.local_batch_size,
                                                 .samples = tt_validation_samples(v->setup->cfg, &v->set[i]),
                                                 .progress = progress,
                                                 .asked_to_stop = asked_to_stop,
                                                 .long_sec = long_sec,
                                                 .is_long = is_long};

        TT_TRY(tt_validation_run(v->setup->comm, &validation, &v->found[i]));
    }
out:
    exchange_averages(v);
    return rc;
}

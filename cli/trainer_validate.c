/* SPDX-License-Identifier: MIT
 *
 * Validation: the mean loss over the first validation.steps batches (or all) of the validation data, in file order.
 * Batch k goes to rank k mod dp; what is missing to a full round is masked, so that every rank runs the same program.
 */
#include "cli/trainer.h"
#include "core/base/file.h"

/* Samples to look at: whole batches of all ranks' rounds, or everything. */
static int64_t samples_wanted(const struct tt_trainer *t)
{
    int64_t all = tt_sampler_epoch_samples(t->validation.sampler);
    int64_t wanted = t->cfg->validation.steps * t->cfg->validation.local_batch_size * tt_mesh_dp(&t->mesh);

    return t->cfg->validation.steps < 0 || wanted > all ? all : wanted;
}

static int load_batch(struct tt_trainer *t, int64_t first, int64_t n_samples, int64_t *valid)
{
    int64_t batch = t->cfg->validation.local_batch_size, T = t->cfg->validation.seq_len;
    int64_t there = n_samples - first < 0 ? 0 : n_samples - first < batch ? n_samples - first : batch;
    int32_t *tokens = tt_engine_validation_tokens(t->engine), *labels = tt_engine_validation_labels(t->engine);

    for (int64_t i = there * T; i < batch * T; i++) {
        tokens[i] = 0;
        labels[i] = -100;
    }
    return tt_train_data_batch(&t->validation, first, there, tokens, labels, valid);
}

int tt_trainer_validate(struct tt_trainer *t)
{
    int64_t batch = t->cfg->validation.local_batch_size, dp = tt_mesh_dp(&t->mesh);
    int64_t n_samples = samples_wanted(t), rounds = (n_samples + batch * dp - 1) / (batch * dp), valid = 0;
    struct tt_step step = {.scalars = {.inv_valid_tokens = 1.0f}};
    struct tt_exact sum = {{0}, 0};
    double start = tt_clock_sec();
    int rank = t->comm->rank, rc = 0;

    for (int64_t round = 0; round < rounds; round++) {
        rc = load_batch(t, (round * dp + rank) * batch, n_samples, &valid);
        TT_TRY(tt_comm_agree(t->comm, rc));
        TT_TRY(tt_engine_validate(t->engine, &step));
        tt_exact_merge(&sum, &step.loss_sum); /* exact, so that rounds of other rank counts add up to the same */
    }
    TT_TRY(tt_comm_sum_i64(t->comm, &valid, 1));
    if (rank == 0)
        tt_metrics_validate(&t->metrics, t->at.step, valid ? tt_exact_value(&sum) / (double)valid : 0.0, valid,
                            tt_clock_sec() - start, (int)dp);
out:
    return rc;
}

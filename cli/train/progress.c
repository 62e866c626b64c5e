/* SPDX-License-Identifier: MIT
 *
 * How far a run has come, its end, and its part of a manifest.
 */
#include "cli/train/progress.h"

#include "checkpoint/load/load.h"

void tt_train_progress_advance(struct tt_train_progress *p, int64_t samples, int64_t seq_len)
{
    p->step++;
    p->optimizer_step++;
    p->lr_step++;
    p->sample_cursor += samples;
    p->ntokens_seen += samples * seq_len;
}

int64_t tt_train_progress_last_step(const struct tt_train_progress *p, const struct tt_setup *setup,
                                    const struct tt_train_data *data)
{
    const struct tt_config *cfg = setup->cfg;
    int64_t steps = cfg->training.steps, left, last;
    bool counts_epochs = cfg->training.epochs != TT_NULL_INT;

    if (cfg->dataloader.repeat && !counts_epochs)
        return steps;
    left = tt_train_data_samples(data, counts_epochs ? cfg->training.epochs : 1) - p->sample_cursor;
    last =
        p->step + (left > 0 ? left / setup->job.global_batch : 0); /* samples that do not fill a batch are not used */
    return last < steps || counts_epochs ? last : steps;
}

void tt_train_progress_count_steps(const struct tt_train_progress *p, const struct tt_setup *setup,
                                   const struct tt_train_data *data)
{
    int64_t last = tt_train_progress_last_step(p, setup, data);

    if (setup->cfg->training.epochs != TT_NULL_INT && last > 0)
        setup->cfg->training.steps = last;
}

int tt_train_progress_check(const struct tt_train_progress *p, const struct tt_setup *setup,
                            const struct tt_train_data *data)
{
    bool counts_epochs = setup->cfg->training.epochs != TT_NULL_INT;
    char have[32], used[32];

    if (p->step > 0 || tt_train_progress_last_step(p, setup, data) > 0)
        return 0;
    return tt_fail(TT_EDATA,
                   "the data has ended before the first step: %s '%s' has %s samples of training.seq_len %lld, "
                   "%s are used, one step takes %lld\nhelp: set %s, a smaller batch, or use more data",
                   data->n > 1 ? "the mixture with" : "dataset", data->part[0].name,
                   tt_text_count(have, sizeof have, tt_train_data_samples(data, 1)),
                   (long long)setup->cfg->training.seq_len, tt_text_count(used, sizeof used, p->sample_cursor),
                   (long long)setup->job.global_batch,
                   counts_epochs ? "a larger training.epochs" : "dataloader.repeat=true");
}

json_t *tt_train_progress_json(const struct tt_train_progress *p)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "step", (json_int_t)p->step, "tokens",
                     (json_int_t)p->ntokens_seen, "ntokens_seen", (json_int_t)p->ntokens_seen, "sample_cursor",
                     (json_int_t)p->sample_cursor, "optimizer_step", (json_int_t)p->optimizer_step, "lr_step",
                     (json_int_t)p->lr_step);
}

int tt_train_progress_restore(const json_t *meta, unsigned skip, struct tt_train_progress *ret_progress)
{
    static const char where[] = "manifest.json";
    struct tt_train_progress p = {0};
    int rc = 0;

    if (!(skip & TT_SKIP_DATALOADER))
        TT_TRY(tt_json_get_int(meta, "sample_cursor", where, &p.sample_cursor));
    if (!(skip & TT_SKIP_TRAIN_STATE)) {
        TT_TRY(tt_json_get_int(meta, "step", where, &p.step));
        TT_TRY(tt_json_get_int(meta, "ntokens_seen", where, &p.ntokens_seen));
    }
    if (!(skip & TT_SKIP_OPTIMIZER))
        TT_TRY(tt_json_get_int(meta, "optimizer_step", where, &p.optimizer_step));
    if (!(skip & TT_SKIP_LR_SCHEDULER))
        TT_TRY(tt_json_get_int(meta, "lr_step", where, &p.lr_step));
    *ret_progress = p;
out:
    return rc;
}

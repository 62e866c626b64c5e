/* SPDX-License-Identifier: MIT
 *
 * Loads the batch of a step and trains on it.
 */
#include "trainer/step/step.h"

#include <math.h>

#include "checkpoint/load/load.h"
#include "core/kernels/kernels.h"
#include "core/math/elementary.h"
#include "core/math/rng.h"
#include "core/os/file.h"

/* --- progress --- */

int64_t tt_train_progress_most_steps(const struct tt_train_progress *p, const struct tt_setup *setup,
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

int64_t tt_train_progress_last_step(const struct tt_train_progress *p, const struct tt_setup *setup,
                                    const struct tt_train_data *data)
{
    int64_t most = tt_train_progress_most_steps(p, setup, data), last = tt_lr_last_step(&p->ends, p->step);

    return last < most ? last : most;
}

void tt_train_progress_count_steps(struct tt_train_progress *p, const struct tt_setup *setup,
                                   const struct tt_train_data *data)
{
    const struct tt_config *cfg = setup->cfg;
    int64_t most = tt_train_progress_most_steps(p, setup, data);

    if (cfg->training.epochs != TT_NULL_INT && most > 0)
        setup->cfg->training.steps = most;
    if (cfg->lr_scheduler.ends) /* a check of the configuration found that it can be read */
        (void)tt_lr_ends_read(cfg->lr_scheduler.ends, &p->ends);
    else if (cfg->lr_scheduler.finish_by != TT_NULL_INT && !p->ends.n)
        p->ends = (struct tt_lr_ends){.n = 1, .end[0].last = most};
}

int tt_train_progress_check(const struct tt_train_progress *p, const struct tt_setup *setup,
                            const struct tt_train_data *data)
{
    bool counts_epochs = setup->cfg->training.epochs != TT_NULL_INT;
    char have[32], used[32];

    if (p->step > 0 || tt_train_progress_most_steps(p, setup, data) > 0)
        return 0;
    return tt_fail(TT_EDATA,
                   "the data has ended before the first step: %s '%s' has %s samples of training.seq_len %lld, "
                   "of which %s are used, and one step takes %lld\nhelp: set %s, set a smaller batch, or use more data",
                   data->n > 1 ? "the mixture with" : "dataset", data->part[0].name,
                   tt_text_count(have, sizeof have, tt_train_data_samples(data, 1)),
                   (long long)setup->cfg->training.seq_len, tt_text_count(used, sizeof used, p->sample_cursor),
                   (long long)setup->job.global_batch,
                   counts_epochs ? "a larger training.epochs" : "dataloader.repeat=true");
}

json_t *tt_train_progress_json(const struct tt_train_progress *p)
{
    struct tt_text ends = {0};
    json_t *o;

    tt_lr_ends_text(&p->ends, &ends);
    o = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:s*}", "step", (json_int_t)p->step, "tokens",
                  (json_int_t)p->ntokens_seen, "ntokens_seen", (json_int_t)p->ntokens_seen, "sample_cursor",
                  (json_int_t)p->sample_cursor, "optimizer_step", (json_int_t)p->optimizer_step, "lr_step",
                  (json_int_t)p->lr_step, "trained_s", tt_json_number(p->trained_sec), "ends", ends.text);
    tt_text_release(&ends);
    return o;
}

int tt_train_progress_restore(const struct tt_config *cfg, const json_t *meta, unsigned skip,
                              struct tt_train_progress *ret_progress)
{
    static const char where[] = "manifest.json";
    const char *ends = cfg->lr_scheduler.ends;
    struct tt_train_progress p = {0};
    int rc = 0;

    if (!(skip & TT_SKIP_DATALOADER))
        TT_TRY(tt_json_get_int(meta, "sample_cursor", where, &p.sample_cursor));
    if (!(skip & TT_SKIP_TRAIN_STATE)) {
        TT_TRY(tt_json_get_int(meta, "step", where, &p.step));
        TT_TRY(tt_json_get_int(meta, "ntokens_seen", where, &p.ntokens_seen));
        p.trained_sec = json_number_value(json_object_get(meta, "trained_s")); /* older checkpoints lack it */
    }
    if (!(skip & TT_SKIP_OPTIMIZER))
        TT_TRY(tt_json_get_int(meta, "optimizer_step", where, &p.optimizer_step));
    if (!(skip & TT_SKIP_LR_SCHEDULER))
        TT_TRY(tt_json_get_int(meta, "lr_step", where, &p.lr_step));
    if (!ends && cfg->lr_scheduler.finish_by != TT_NULL_INT && !(skip & (TT_SKIP_TRAIN_STATE | TT_SKIP_LR_SCHEDULER)))
        ends = json_string_value(json_object_get(meta, "ends"));
    if (ends && !tt_lr_ends_read(ends, &p.ends))
        TT_TRY(tt_fail(TT_EDATA, "%s: '%s' are not the last steps of a run (lr_scheduler.ends)", where, ends));
    *ret_progress = p;
out:
    return rc;
}

/* --- a step --- */

static const double usual_balance_coeff = 1e-3; /* as in torchtitan and DeepSeek-V3 */

struct tt_step tt_train_step_of(const struct tt_config *cfg, double lr, int64_t update, int64_t valid_tokens)
{
    double n = (double)update;

    return (struct tt_step){
        .scalars =
            {
                .inv_valid_tokens = 1.0 / (double)valid_tokens,
                .lr = lr,
                .beta1 = cfg->optimizer.beta1,
                .beta2 = cfg->optimizer.beta2,
                .eps = cfg->optimizer.eps,
                .weight_decay = cfg->optimizer.weight_decay,
                .bias_correction1 = 1.0 - tt_pow(cfg->optimizer.beta1, n),
                .bias_correction2 = 1.0 - tt_pow(cfg->optimizer.beta2, n),
                .balance_coeff =
                    isnan(cfg->training.load_balance_coeff) ? usual_balance_coeff : cfg->training.load_balance_coeff,
                .average_decay = cfg->ema.decay,
                .momentum = cfg->optimizer.muon_momentum,
                .muon_lr = (enum tt_adjust_choice)cfg->optimizer.muon_adjust_lr,
                .nesterov = cfg->optimizer.muon_nesterov,
                .step_seed = tt_rng_seed_of_step((uint64_t)cfg->debug.seed, update),
            },
        .max_norm = cfg->training.max_norm,
    };
}

/* Loads this rank's microbatches of the step. ret_valid is the number of tokens in the whole batch that have a label,
 * ret_tokens the number of tokens that are not padding. */
static int load(const struct tt_setup *s, struct tt_train_data *data, const struct tt_train_progress *at,
                struct tt_train_step *step, int64_t *ret_valid, int64_t *ret_tokens)
{
    double start = tt_clock_sec();
    int64_t batch = s->job.microbatch_size, valid = 0, counts[2], tokens = 0;
    int rc = 0;

    step->local_valid = 0;
    for (int a = 0; a < s->job.microbatches && rc == 0; a++) {
        int64_t first = at->sample_cursor + tt_engine_microbatch(s->engine, a) * batch;

        rc = tt_train_data_batch(data, first, batch, tt_engine_inputs(s->engine, a).tokens,
                                 tt_engine_inputs(s->engine, a).labels, tt_engine_inputs(s->engine, a).positions,
                                 &valid);
        if (rc == 0)
            step->local_valid += tt_engine_valid_labels(s->engine, a);
        for (int64_t i = 0; i < batch * data->seq_len && rc == 0; i++)
            tokens += tt_engine_inputs(s->engine, a).labels[i] != TT_LABEL_PADDING;
    }
    step->data_sec = tt_clock_sec() - start; /* waiting for other ranks is communication */
    TT_TRY(tt_comm_agree(s->comm, rc));
    counts[0] = tt_engine_layout(s->engine)->counts_tokens ? valid : 0;
    counts[1] = tt_engine_layout(s->engine)->counts_tokens ? tokens : 0;
    s->comm->waiting_for = "count of valid tokens";
    TT_TRY(tt_comm_sum_i64(s->comm, counts, 2));
    *ret_valid = counts[0];
    *ret_tokens = counts[1];
    if (counts[0] == 0)
        rc = tt_fail(TT_EDATA, "step %lld has no token whose label counts", (long long)at->step + 1);
    step->load = (struct tt_span){start, tt_clock_sec()};
out:
    return rc;
}

int tt_train_step(const struct tt_setup *s, struct tt_train_data *data, int (*asked_to_stop)(void),
                  const struct tt_tick *tick, struct tt_train_progress *at, struct tt_train_step *ret_done)
{
    const struct tt_config *cfg = s->cfg;
    bool own_length = cfg->lr_scheduler.total_steps != TT_NULL_INT;
    const struct tt_lr_schedule schedule = {
        .base = cfg->optimizer.lr,
        .warmup_steps = cfg->lr_scheduler.warmup_steps,
        .total_steps = own_length ? cfg->lr_scheduler.total_steps : cfg->training.steps,
        .ends = &at->ends,
        .ends_shift = at->lr_step - at->step,
        .decay_ratio = cfg->lr_scheduler.decay_ratio,
        .decay = cfg->lr_scheduler.decay_type,
        .min_factor = cfg->lr_scheduler.min_lr_factor,
    };
    struct tt_train_step done = {.local_valid = 0};
    int64_t valid = 0, tokens = 0;
    int rc = 0;

    TT_TRY(load(s, data, at, &done, &valid, &tokens));
    done.step = tt_train_step_of(cfg, tt_lr_at(&schedule, at->lr_step + 1), at->optimizer_step + 1, valid);
    done.step.tokens = tokens;
    done.step.asked_to_stop = asked_to_stop;
    done.step.tick = tick ? *tick : (struct tt_tick){0};
    rc = tt_engine_step(s->engine, &done.step);
    if (rc == TT_ENONFINITE) {
        rc = tt_engine_explain(s->engine, &done.step);
        rc = tt_wrap(rc, "step %lld", (long long)at->step + 1);
    }
    if (rc < 0)
        goto out;
    at->step++;
    at->optimizer_step++;
    at->lr_step++;
    at->sample_cursor += s->job.global_batch;
    at->ntokens_seen += s->job.global_batch * cfg->training.seq_len;
    *ret_done = done;
out:
    return rc;
}

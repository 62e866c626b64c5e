/* SPDX-License-Identifier: MIT
 *
 * The training loop.
 */
#include "cli/train/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cli/run/signals.h"
#include "core/base/mem.h"
#include "core/optim/optim.h"
#include "core/os/file.h"

static struct tt_lr_schedule schedule_of(const struct tt_config *cfg)
{
    bool own_length = cfg->lr_scheduler.total_steps != TT_NULL_INT;

    return (struct tt_lr_schedule){
        .base = cfg->optimizer.lr,
        .warmup_steps = cfg->lr_scheduler.warmup_steps,
        .total_steps = own_length ? cfg->lr_scheduler.total_steps : cfg->training.steps,
        .decay_ratio = cfg->lr_scheduler.decay_ratio,
        .decay = cfg->lr_scheduler.decay_type == TT_DECAY_LINEAR ? TT_LR_LINEAR
                 : cfg->lr_scheduler.decay_type == TT_DECAY_SQRT ? TT_LR_SQRT
                                                                 : TT_LR_COSINE,
        .min_factor = cfg->lr_scheduler.min_lr_factor,
    };
}

static double learning_rate(const struct tt_trainer *t)
{
    struct tt_lr_schedule schedule = schedule_of(t->cfg);

    return tt_lr_at(&schedule, t->at.lr_step + 1);
}

static struct tt_step prepare_step(const struct tt_trainer *t, int64_t valid_tokens)
{
    const struct tt_config *cfg = t->cfg;
    double n = (double)(t->at.optimizer_step + 1);

    return (struct tt_step){
        .scalars =
            {
                .inv_valid_tokens = (float)(1.0 / (double)valid_tokens),
                .lr = learning_rate(t),
                .beta1 = cfg->optimizer.beta1,
                .beta2 = cfg->optimizer.beta2,
                .eps = cfg->optimizer.eps,
                .weight_decay = cfg->optimizer.weight_decay,
                .bias_correction1 = 1.0 - pow(cfg->optimizer.beta1, n),
                .bias_correction2 = 1.0 - pow(cfg->optimizer.beta2, n),
            },
        .max_norm = cfg->training.max_norm,
        .decoupled = cfg->optimizer.name == TT_OPTIM_ADAMW,
    };
}

/* Loads this rank's microbatches of the step; ret_valid is the number of tokens of the whole batch that count. */
static int load_step(struct tt_trainer *t, int64_t *ret_valid, int64_t *ret_local_valid)
{
    double start = tt_clock_sec();
    int64_t valid = 0;
    int rc = 0;

    for (int a = 0; a < t->microbatches && rc == 0; a++) {
        int64_t first = t->at.sample_cursor + tt_engine_microbatch(t->engine, a) * t->cfg->training.local_batch_size;

        rc = tt_train_data_batch(&t->data, first, t->cfg->training.local_batch_size, tt_engine_tokens(t->engine, a),
                                 tt_engine_labels(t->engine, a), &valid);
    }
    t->data_sec += tt_clock_sec() - start; /* waiting for other ranks is communication */
    TT_TRY(tt_comm_agree(t->comm, rc));
    *ret_local_valid = valid;
    t->comm->waiting_for = "count of valid tokens";
    TT_TRY(tt_comm_sum_i64(t->comm, &valid, 1));
    *ret_valid = valid;
    if (valid == 0)
        rc = tt_fail(TT_EDATA, "step %lld has no token whose label counts", (long long)t->at.step + 1);
    t->load = (struct tt_span){start, tt_clock_sec()};
out:
    return rc;
}

static double communication_sec(const struct tt_engine *engine)
{
    static const enum tt_instr_kind kinds[] = {TT_UNSHARD,    TT_WAIT_UNSHARD,    TT_REDUCE, TT_WAIT_REDUCE,
                                               TT_ALL_REDUCE, TT_WAIT_ALL_REDUCE, TT_CLIP};
    const struct tt_times *times = tt_executor_times(tt_engine_executor(engine));
    double sec = 0.0;

    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        sec += times->sec[kinds[i]];
    return sec;
}

/* Reports the step just done, averaged over the steps since the last report (collective). */
static int report(struct tt_trainer *t, const struct tt_step *step, int64_t valid, int64_t local_valid)
{
    double now = tt_clock_sec(), n = (double)t->report_steps;
    double local_mean = local_valid ? step->local_loss_sum / (double)local_valid : 0.0;
    struct tt_step_report r = {
        .step = t->at.step,
        .total_steps = tt_trainer_last_step(t),
        .loss = step->loss,
        .grad_norm = step->grad_norm,
        .lr = step->scalars.lr,
        .ntokens_seen = t->at.ntokens_seen,
        .tokens_per_rank = t->global_batch * t->cfg->training.seq_len / tt_mesh_dp(&t->mesh),
        .step_time = (now - t->report_start) / n,
        .data_time = t->data_sec / n,
        /* ranks also wait for each other between programs, to agree on how to go on */
        .comm_time = fmax(communication_sec(t->engine), t->comm->wait_sec) / n,
        .comm_exposed = t->comm->wait_sec / n,
        .comm_bytes = t->comm->payload_bytes / t->report_steps,
        .memory_bytes = tt_metrics_resident_bytes(),
    };
    double most[2] = {local_mean, r.memory_bytes};
    int rc;

    (void)valid;
    t->comm->waiting_for = "report";
    if ((rc = tt_comm_max_f64(t->comm, most, 2)) < 0)
        return rc;
    t->spent.step_sec += now - t->report_start;
    t->spent.data_sec += t->data_sec;
    t->spent.exposed_sec += t->comm->wait_sec;
    r.max_loss = most[0];
    r.memory_bytes = most[1];
    if (t->comm->rank == 0)
        tt_metrics_step(&t->metrics, &r);
    return 0;
}

static void begin_report(struct tt_trainer *t)
{
    t->report_start = tt_clock_sec();
    t->report_steps = 0;
    t->data_sec = 0.0;
    t->comm->wait_sec = 0.0;
    t->comm->payload_bytes = 0;
    tt_executor_reset_times(tt_engine_executor(t->engine));
}

/* What is not training (saving, validating) is not in the records of steps: neither its time nor what it sends. */
struct pause {
    double begin, wait_sec;
    int64_t payload_bytes;
};

static struct pause begin_pause(const struct tt_trainer *t)
{
    return (struct pause){tt_clock_sec(), t->comm->wait_sec, t->comm->payload_bytes};
}

static void end_pause(struct tt_trainer *t, const struct pause *pause)
{
    t->report_start += tt_clock_sec() - pause->begin;
    t->comm->wait_sec = pause->wait_sec;
    t->comm->payload_bytes = pause->payload_bytes;
}

/* --- stops --- */

/* A step that takes longer than this, in seconds, may be given up in its middle. */
static double long_step_sec(void)
{
    const char *text = getenv("TITAN_LONG_STEP"); // NOLINT(concurrency-mt-unsafe): nobody sets it
    char *end = NULL;
    double sec = text ? strtod(text, &end) : 0.0;

    return text && end != text && sec >= 0.0 ? sec : 20.0;
}

/* What ranks must know of each other at the end of every step, in one message. */
struct news {
    int stop;          /* 0, or the code to end with because a signal asked for it */
    bool long_step;    /* on some rank the last step, or the predicted one, takes long */
    bool save_written; /* the save under way is written everywhere */
    bool warned;       /* mpirun may be about to kill some rank */
};

static int exchange_news(struct tt_trainer *t, struct news *ret_news)
{
    double most[4] = {-(double)tt_signals_asked(), !tt_trainer_save_is_written(t), t->step_sec > long_step_sec(),
                      tt_signals_warned_sec() >= 0.0};
    int rc = 0;

    TT_TRY(tt_comm_max_f64(t->comm, most, 4));
    *ret_news = (struct news){-(int)most[0], most[2] > 0.0, most[1] == 0.0, most[3] > 0.0};
out:
    return rc;
}

/* What the first signal is answered during the step that begins. */
static void prepare_answer(const struct tt_trainer *t)
{
    char text[200];

    if (t->comm->rank != 0)
        return;
    if (t->long_steps && t->at.step > 0 && t->store)
        (void)snprintf(text, sizeof text,
                       "titan: stopping within step %" PRId64 ", keeping step %" PRId64 "; again: stop without saving",
                       t->at.step + 1, t->at.step);
    else if (t->long_steps)
        (void)snprintf(text, sizeof text, "titan: stopping within step %" PRId64 "; again: stop at once",
                       t->at.step + 1);
    else
        (void)snprintf(text, sizeof text, "titan: stopping after step %" PRId64 "%s", t->at.step + 1,
                       t->store ? " and saving; again: stop without saving"
                                : ", nothing is saved (checkpoint.enable is off); again: stop at once");
    tt_signals_answer(text);
}

static void answer_during(const struct tt_trainer *t, const char *what)
{
    char text[200];

    if (t->comm->rank != 0)
        return;
    (void)snprintf(text, sizeof text, "titan: stopping after the %s of step %" PRId64 "; again: stop without it", what,
                   t->at.step);
    tt_signals_answer(text);
}

/* --- the step --- */

int tt_trainer_step(struct tt_trainer *t, struct tt_trainer_step *ret_step)
{
    struct tt_trainer_step did = {0};
    int rc = 0;

    TT_TRY(load_step(t, &did.valid, &did.local_valid));
    did.step = prepare_step(t, did.valid);
    if (t->long_steps)
        did.step.asked_to_stop = tt_signals_asked;
    rc = tt_engine_step(t->engine, &did.step);
    if (rc == TT_ENONFINITE) {
        rc = tt_engine_explain(t->engine, &did.step);
        rc = tt_wrap(rc, "step %lld", (long long)t->at.step + 1);
    }
    if (rc < 0)
        goto out;
    t->at.step++;
    t->at.optimizer_step++;
    t->at.lr_step++;
    t->at.sample_cursor += t->global_batch;
    t->at.ntokens_seen += t->global_batch * t->cfg->training.seq_len;
    t->report_steps++;
    *ret_step = did;
out:
    return rc;
}

/* A step that is given up changes nothing; ret_stop is then why, else 0. */
static int train_step(struct tt_trainer *t, int *ret_stop)
{
    struct tt_trainer_step did;
    struct pause pause;
    int rc = 0;

    *ret_stop = 0;
    prepare_answer(t);
    rc = tt_trainer_step(t, &did);
    if (rc == TT_ESTOPPED || rc == TT_EINTERRUPTED) {
        *ret_stop = rc;
        return 0;
    }
    if (rc < 0)
        goto out;
    pause = begin_pause(t);
    TT_TRY(tt_trainer_measure_peak(t));
    end_pause(t, &pause);
    if (t->at.step == 1 || t->at.step % t->cfg->metrics.log_freq == 0) {
        TT_TRY(report(t, &did.step, did.valid, did.local_valid));
        begin_report(t);
    }
out:
    return rc;
}

/* Saves where training stands, unless that is what was saved last. Nothing is lost before the first step. */
static int save_at_stop(struct tt_trainer *t)
{
    int rc = 0;

    if (!t->store || t->at.step == 0)
        return 0;
    TT_TRY(tt_trainer_save_end(t));
    if (t->saved_step == t->at.step)
        return 0;
    answer_during(t, "checkpoint");
    rc = tt_trainer_save(t, false, true);
out:
    return rc;
}

/*
 * mpirun may be about to kill the ranks, or only continued them after a pause: saves where training stands, and waits until
 * the SIGTERM is due that tells which. ret_stop is then what it asks for.
 */
static int heed_warning(struct tt_trainer *t, int *ret_stop)
{
    static const struct timespec nap = {0, 20000000};
    static const double due_sec = 1.5;
    struct news news;
    int rc = 0;

    TT_TRY(save_at_stop(t));
    while (!tt_signals_asked() && tt_signals_warned_sec() >= 0.0 && tt_signals_warned_sec() < due_sec)
        (void)nanosleep(&nap, NULL);
    tt_signals_settle_warning();
    TT_TRY(exchange_news(t, &news));
    *ret_stop = news.stop;
out:
    return rc;
}

/* Whether a signal asks to stop, and the end of a save that is written everywhere. */
static int end_step(struct tt_trainer *t, int *ret_stop)
{
    struct news news;
    struct pause pause;
    int rc = 0;

    t->comm->waiting_for = "end of step";
    TT_TRY(exchange_news(t, &news));
    *ret_stop = news.stop;
    t->long_steps = news.long_step;
    pause = begin_pause(t);
    if (news.save_written)
        TT_TRY(tt_trainer_save_end(t));
    if (news.warned && t->store && !news.stop)
        TT_TRY(heed_warning(t, ret_stop));
    end_pause(t, &pause);
out:
    return rc;
}

static bool save_is_due(const struct tt_trainer *t, bool last)
{
    const struct tt_config *cfg = t->cfg;

    if (!t->store || (t->saved_step == t->at.step && !last))
        return false;
    return last || t->at.step % cfg->checkpoint.interval == 0 ||
           (t->at.step == 1 && cfg->checkpoint.enable_first_step_checkpoint);
}

static bool validation_is_due(const struct tt_trainer *t, bool last)
{
    const struct tt_config *cfg = t->cfg;

    return cfg->validation.enable && (last || t->at.step == 1 || t->at.step % cfg->validation.freq == 0);
}

/* What comes after a step that was done; ret_stop becomes what a signal asked meanwhile. */
static int after_step(struct tt_trainer *t, int *ret_stop)
{
    struct pause pause = begin_pause(t);
    bool last = t->at.step >= tt_trainer_last_step(t), stop = *ret_stop != 0;
    bool saves = save_is_due(t, last || stop), validates = validation_is_due(t, last) && !stop;
    int rc = 0;

    if (tt_trainer_trace_is_due(t))
        TT_TRY(tt_trainer_trace(t, pause.begin));
    if (saves) {
        answer_during(t, "checkpoint");
        TT_TRY(tt_trainer_save(t, last, stop));
    } else if (!t->store && (last || t->at.step % t->cfg->checkpoint.interval == 0)) {
        TT_TRY(tt_trainer_check_replicas(t)); /* a save does that itself */
    }
    if (validates) {
        answer_during(t, "validation");
        TT_TRY(tt_trainer_validate(t));
    }
    if ((saves || validates) && !stop && !last)
        TT_TRY(end_step(t, ret_stop));
    end_pause(t, &pause);
out:
    return rc;
}

int64_t tt_trainer_last_step(const struct tt_trainer *t)
{
    int64_t left = tt_sampler_epoch_samples(t->data.sampler) - t->at.sample_cursor, last;

    if (t->cfg->dataloader.repeat)
        return t->cfg->training.steps;
    last = t->at.step + (left > 0 ? left / t->global_batch : 0); /* a rest that makes no batch is left out */
    return last < t->cfg->training.steps ? last : t->cfg->training.steps;
}

/* Data that ends is the end of training, but there must be a beginning. */
static int check_data(const struct tt_trainer *t)
{
    if (t->at.step > 0 || tt_trainer_last_step(t) > 0)
        return 0;
    return tt_fail(
        TT_EDATA,
        "the data has ended before the first step: dataset '%s' has %lld samples of training.seq_len %lld, "
        "%lld are used, one step takes %lld\nhelp: set dataloader.repeat=true, a smaller batch, or use more data",
        t->data.dataset->ref.name, (long long)tt_sampler_epoch_samples(t->data.sampler),
        (long long)t->cfg->training.seq_len, (long long)t->at.sample_cursor, (long long)t->global_batch);
}

/* The sentence that a stopped run ends with. */
static int stopped(const struct tt_trainer *t, int stop)
{
    if (t->at.step == 0)
        return tt_fail(stop, "stopped by a signal before step 1 was done; there is nothing to save");
    return tt_fail(stop, "stopped by a signal after step %" PRId64 "%s", t->at.step,
                   t->store ? "; everything is saved" : " (checkpoint.enable is off: nothing was saved)");
}

int tt_trainer_run(struct tt_trainer *t)
{
    int stop = 0, rc = 0;

    TT_TRY(check_data(t));
    t->step_sec = t->predicted_step_sec;
    begin_report(t);
    t->started_sec = t->report_start;
    TT_TRY(end_step(t, &stop));
    if (t->at.step >= tt_trainer_last_step(t))
        TT_TRY(tt_trainer_save_complete(t));
    while (t->at.step < tt_trainer_last_step(t) && !stop) {
        double start = tt_clock_sec();

        TT_TRY(train_step(t, &stop));
        if (stop)
            break;
        t->step_sec = tt_clock_sec() - start;
        TT_TRY(end_step(t, &stop));
        TT_TRY(after_step(t, &stop));
    }
    stop = t->at.step < tt_trainer_last_step(t) ? stop : 0; /* what is complete was not stopped */
    if (stop)
        TT_TRY(save_at_stop(t));
out:
    if (t->comm->rank == 0)
        tt_signals_answer("titan: the run is ending");
    rc = tt_trainer_save_drain(t, rc);
    if (rc < 0)
        return rc;
    if (stop)
        rc = stopped(t, stop);
    else if (t->comm->rank == 0)
        tt_trainer_farewell(t);
    return rc;
}

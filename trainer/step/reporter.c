/* SPDX-License-Identifier: MIT
 *
 * The reports of steps, the peak with which their speed is compared, and one function for each other event of a run.
 */
#include "trainer/step/reporter.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"
#include "parallel/planner/cost.h"
#include "trainer/job/predict.h"
#include "trainer/run/folder.h"
#include "trainer/step/peak.h"

enum { PEAKS = 3 }; /* at the start, and after each of the first two steps */

void tt_reporter_init(const struct tt_setup *setup, const struct tt_run_events *events,
                      struct tt_reporter *ret_reporter)
{
    *ret_reporter = (struct tt_reporter){.setup = setup, .metrics.events = events};
}

int tt_reporter_open(struct tt_reporter *r)
{
    const struct tt_model *model = r->setup->job.model;
    const struct tt_config *cfg = r->setup->cfg;
    struct tt_metrics *m = &r->metrics;
    int rc = 0;

    if (r->setup->comm->rank != 0)
        return 0;
    m->flops_per_token = tt_model_flops_per_token(model, cfg->training.seq_len);
    m->flops_per_token_causal = tt_model_flops_per_token_causal(model, cfg->training.seq_len);
    m->memory_total_bytes = tt_job_machine_bytes();
    if (cfg->metrics.enable_jsonl)
        TT_TRY(tt_run_folder_metrics(cfg, &m->records));
    if (cfg->metrics.enable_tensorboard && tt_run_folder_board(cfg, &m->board) < 0)
        tt_warn("training continues without TensorBoard: %s", tt_error_message());
out:
    return rc;
}

void tt_reporter_close(struct tt_reporter *r, int64_t step, int exit_code)
{
    struct tt_metrics *m = &r->metrics;

    if (m->records) {
        json_t *end = json_pack("{s:s, s:I, s:i}", "type", "end", "step", (json_int_t)step, "exit", exit_code);

        if (exit_code != 0)
            (void)json_object_set_new(end, "error", tt_json_string(tt_error_message()));
        tt_metrics_record(m, end);
        tt_records_close(m->records);
    }
    tt_tensorboard_close(m->board);
    *m = (struct tt_metrics){.records = NULL};
}

int tt_reporter_measure_peak(struct tt_reporter *r, struct tt_team *team)
{
    struct tt_comm *comm = r->setup->comm;
    const char *before = comm->waiting_for;
    double given = r->setup->cfg->metrics.peak_flops;
    enum tt_dtype dtype = r->setup->job.engine.param_dtype;
    int rc = 0;

    if (!isnan(given)) {
        r->metrics.peak_flops = given;
        return 0;
    }
    if (r->peaks == PEAKS)
        return 0;
    comm->waiting_for = "measurement of the peak";
    TT_TRY(tt_comm_barrier(comm));
    comm->waiting_for = before;
    if (dtype != TT_F32 && r->peaks == 0) /* only the prediction needs it, which is made once */
        r->float_flops = tt_peak_measure(team, TT_F32);
    r->metrics.peak_flops = fmax(r->metrics.peak_flops, tt_peak_measure(team, dtype));
    r->peaks++;
out:
    return rc;
}

int tt_reporter_predict(struct tt_reporter *r)
{
    const struct tt_setup *s = r->setup;
    struct tt_machine machine = s->job.engine.machine;
    struct tt_job_prediction p = {0};
    int rc = 0;

    if (!s->cfg->parallelism.machine_file)
        tt_machine_take_peaks(&machine, s->job.engine.param_dtype, r->metrics.peak_flops / s->threads,
                              r->float_flops / s->threads);
    TT_TRY(tt_job_predict_once(&s->job, s->comm, &machine, s->engine, &p));
    r->predicted_step_sec = p.step_sec;
    r->predicted_idle = p.run.bubble_share;
    r->largest_rank = p.rank;
    r->largest_bytes = p.memory.total;
out:
    tt_job_prediction_release(&p);
    return rc;
}

/* --- steps --- */

static void open_window(struct tt_reporter *r)
{
    struct tt_comm *comm = r->setup->comm;

    r->window = (struct tt_report_window){.start = tt_clock_sec()};
    comm->wait_sec = 0.0;
    comm->payload_bytes = 0;
}

void tt_reporter_begin_steps(struct tt_reporter *r, const struct tt_train_progress *at)
{
    open_window(r);
    r->results.tokens_before = at->ntokens_seen;
    r->started_sec = r->window.start;
    r->live.step_sec = r->predicted_step_sec;
}

static double percent_of(double part, double whole)
{
    return whole > 0.0 ? 100.0 * part / whole : 0.0;
}

/* NaN when the peak is unknown. */
static double percent_of_peak(const struct tt_step_report *r, double flops_per_token)
{
    return r->peak_flops > 0.0 ? 100.0 * r->tps * flops_per_token / r->peak_flops : (double)NAN;
}

static double at_most_100(double percent)
{
    return percent > 100.0 ? 100.0 : percent;
}

/* A loss whose coefficient is 0 is none. */
static double if_on(double coefficient, double loss)
{
    return coefficient > 0.0 ? loss : (double)NAN;
}

static void fill(struct tt_step_report *r)
{
#define TT_METRIC(id, name, presence, source, line, board, watch, status) r->value[TT_METRIC_##id] = (source);
#include "trainer/step/metrics.def"
#undef TT_METRIC
}

void tt_reporter_count(struct tt_reporter *r, int64_t step, const struct tt_train_step *done)
{
    const struct tt_engine *engine = r->setup->engine;

    tt_split_add_run(&r->window.split, tt_engine_program(engine), tt_executor_spans(tt_engine_executor(engine)));
    tt_split_add_waits(r->spent.group_sec, tt_engine_program(engine), tt_executor_spans(tt_engine_executor(engine)));
    r->window.steps++;
    r->window.data_sec += done->data_sec;
    r->live.step_sec = (tt_clock_sec() - r->window.start) / (double)r->window.steps;
    r->results.step = step;
    r->results.loss = done->step.loss;
    r->results.z_loss = if_on(r->setup->cfg->training.z_loss, done->step.z_loss);
}

int tt_reporter_step(struct tt_reporter *r, const struct tt_train_step *done, const struct tt_train_progress *at,
                     int64_t last_step)
{
    const struct tt_setup *s = r->setup;
    const struct tt_layout *layout = tt_engine_layout(s->engine);
    struct tt_comm *comm = s->comm;
    double now = tt_clock_sec(), n = (double)r->window.steps;
    double local_mean = done->local_valid ? done->step.local_loss_sum / (double)done->local_valid : 0.0;
    double most[2] = {local_mean, tt_metrics_resident_bytes()};
    int64_t tokens = s->job.global_batch * s->cfg->training.seq_len / s->job.mesh.n_ranks; /* of a rank in a step */
    struct tt_step_report report = {
        .cfg = s->cfg,
        .of = &done->step,
        .step = at->step,
        .total_steps = last_step,
        .ntokens_seen = at->ntokens_seen,
        .step_time = (now - r->window.start) / n,
        .data_time = r->window.data_sec / n,
        /* ranks also wait for each other between programs, to agree on what comes next */
        .comm_time = fmax(r->window.split.sec[TT_SPLIT_COMMUNICATION], comm->wait_sec) / n,
        .comm_exposed = comm->wait_sec / n,
        .comm_bytes = comm->payload_bytes / r->window.steps,
        .loads = {done->step.loads, layout->blocks, layout->experts, s->cfg->metrics.expert_loads},
        .memory_total_bytes = r->metrics.memory_total_bytes,
        .peak_flops = r->metrics.peak_flops,
        .flops_per_token = r->metrics.flops_per_token,
        .flops_per_token_causal = r->metrics.flops_per_token_causal,
    };
    int rc = 0;

    comm->waiting_for = "report";
    TT_TRY(tt_comm_max_f64(comm, most, 2));
    r->spent.step_sec += now - r->window.start;
    r->spent.data_sec += r->window.data_sec;
    r->spent.exposed_sec += comm->wait_sec;
    report.max_loss = most[0];
    report.memory_bytes = most[1];
    report.tps = report.step_time > 0.0 ? (double)tokens / report.step_time : 0.0;
    if (comm->rank == 0) {
        fill(&report);
        tt_metrics_step(&r->metrics, &report);
    }
    open_window(r);
out:
    return rc;
}

struct tt_tick tt_reporter_live(struct tt_reporter *r, int64_t step, int64_t last_step)
{
    const struct tt_run_events *events = r->metrics.events;

    r->live.step = step;
    r->live.last_step = last_step;
    r->live.begun_sec = tt_clock_sec();
    return (struct tt_tick){events->live ? events->tick : NULL, r};
}

struct tt_pause tt_reporter_pause(const struct tt_reporter *r)
{
    return (struct tt_pause){tt_clock_sec(), r->window.start, r->setup->comm->wait_sec, r->setup->comm->payload_bytes};
}

void tt_reporter_resume(struct tt_reporter *r, const struct tt_pause *pause)
{
    r->window.start = pause->window_start + tt_clock_sec() - pause->begin; /* with all pauses within this one */
    r->setup->comm->wait_sec = pause->wait_sec;
    r->setup->comm->payload_bytes = pause->payload_bytes;
}

/* --- events --- */

static bool is_silent(const struct tt_reporter *r)
{
    return r->setup->comm->rank != 0;
}

void tt_reporter_validated(struct tt_reporter *r, int64_t step, const struct tt_validation_result *result, int n,
                           const char *const *name)
{
    struct tt_metrics_set *set = tt_calloc((size_t)n, sizeof *set);
    struct tt_metrics_validation all = {.step = step, .set = set, .n = name[0] ? n : 0};
    double sum = 0.0, resident = tt_metrics_resident_bytes();

    for (int i = 0; i < n; i++) {
        set[i] = (struct tt_metrics_set){name[i], result[i].loss, result[i].tokens};
        sum += result[i].loss * (double)result[i].tokens;
        all.tokens += result[i].tokens;
        all.seconds += result[i].seconds;
    }
    all.loss = n == 1 ? result[0].loss : all.tokens ? sum / (double)all.tokens : 0.0;
    r->results.validated = step;
    r->results.validation_loss = all.loss;
    all.tps = all.seconds > 0.0 ? (double)all.tokens / all.seconds / r->setup->job.mesh.n_ranks : 0.0;
    all.gib = resident / 0x1p30;
    all.gib_percent = percent_of(resident, r->metrics.memory_total_bytes);
    if (!is_silent(r))
        tt_metrics_validate(&r->metrics, &all);
    tt_free(set);
}

void tt_reporter_sampled(struct tt_reporter *r, const struct tt_metrics_sample *sample)
{
    if (!is_silent(r))
        tt_metrics_sample(&r->metrics, sample);
}

/* --- checkpoints --- */

void tt_reporter_saved(struct tt_reporter *r, const struct tt_ckpt_saved *saved, bool async)
{
    double sec = async ? saved->write_sec : saved->seconds; /* the time that is printed with it */
    double rate = sec > 0.0 ? (double)saved->bytes / sec / 1e9 : 0.0;
    char size[32];

    if (is_silent(r))
        return;
    r->results.saved = saved->step;
    tt_metrics_checkpoint(&r->metrics, saved, async);
    tt_text_bytes(size, sizeof size, (double)saved->bytes);
    if (async)
        tt_note("checkpoint step-%" PRId64
                ": %s in %d file%s, training waited %.2f s (%.2f s for the copy), written in %.2f s (%.2f GB/s)",
                saved->step, size, saved->files, saved->files == 1 ? "" : "s", saved->blocked_sec, saved->stage_sec,
                saved->write_sec, rate);
    else
        tt_note("checkpoint step-%" PRId64 ": %s in %d file%s, %.2f s (%.2f GB/s)", saved->step, size, saved->files,
                saved->files == 1 ? "" : "s", saved->seconds, rate);
}

void tt_reporter_save_failed(struct tt_reporter *r, int64_t step)
{
    if (is_silent(r))
        return;
    tt_metrics_checkpoint_failed(&r->metrics, step, tt_error_message());
    tt_warn("checkpoint of step %" PRId64 " FAILED, training continues, older checkpoints are unchanged: %s", step,
            tt_error_message());
}

/* --- signals --- */

/* What a second interrupt does. */
static const char *without(bool saves)
{
    return saves ? "stop without saving" : "stop at once";
}

void tt_reporter_answer_in_step(const struct tt_reporter *r, int64_t steps_done, bool is_long, bool saves)
{
    char text[200];

    if (is_silent(r))
        return;
    if (is_long && steps_done > 0 && saves)
        (void)snprintf(text, sizeof text, "stopping within step %" PRId64 ", keeping step %" PRId64, steps_done + 1,
                       steps_done);
    else if (is_long)
        (void)snprintf(text, sizeof text, "stopping within step %" PRId64, steps_done + 1);
    else
        (void)snprintf(text, sizeof text, "stopping after step %" PRId64 "%s", steps_done + 1,
                       saves                                 ? " and saving"
                       : r->setup->cfg->checkpoint.load_only ? ", nothing is saved (checkpoint.load_only)"
                                                             : ", nothing is saved (checkpoint.enable is off)");
    r->metrics.events->answer(text, without(saves && !(is_long && steps_done == 0)));
}

void tt_reporter_answer_in_save(const struct tt_reporter *r, int64_t step)
{
    char text[200];

    if (is_silent(r))
        return;
    (void)snprintf(text, sizeof text, "stopping after the checkpoint of step %" PRId64, step);
    r->metrics.events->answer(text, "stop without it");
    r->metrics.events->saves(r->metrics.events->arg);
}

/* where: "after ..." or "within ...", of the step that is done. */
static void answer_in_pause(const struct tt_reporter *r, const char *where, int64_t step, bool saves)
{
    char text[200];

    if (is_silent(r))
        return;
    (void)snprintf(text, sizeof text, "stopping %s step %" PRId64 "%s", where, step, saves ? ", keeping the step" : "");
    r->metrics.events->answer(text, without(saves));
}

void tt_reporter_answer_in_sample(const struct tt_reporter *r, int64_t step, bool saves)
{
    answer_in_pause(r, "after the text that is sampled after", step, saves);
}

void tt_reporter_answer_in_validation(const struct tt_reporter *r, int64_t step, bool saves)
{
    answer_in_pause(r, "within the validation of", step, saves);
}

void tt_reporter_answer_at_end(const struct tt_reporter *r)
{
    if (!is_silent(r))
        r->metrics.events->answer("the run is ending", NULL);
}

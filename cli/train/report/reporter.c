/* SPDX-License-Identifier: MIT
 *
 * The reports of steps, and the peak with which their speed is compared.
 */
#include "cli/train/report/reporter.h"

#include <math.h>
#include <stdlib.h>

#include <unistd.h>

#include "cli/run/screen.h"
#include "core/base/log.h"
#include "core/os/file.h"
#include "parallel/planner/cost.h"
#include "trainer/job/predict.h"
#include "trainer/run/folder.h"
#include "trainer/step/peak.h"

enum { PEAKS = 3 }; /* at the start, and after each of the first two steps */

void tt_reporter_init(const struct tt_setup *setup, struct tt_reporter *ret_reporter)
{
    *ret_reporter = (struct tt_reporter){.setup = setup};
}

int tt_reporter_open(struct tt_reporter *r, bool json)
{
    const char *no_color = getenv("NO_COLOR"); // NOLINT(concurrency-mt-unsafe): before the team has work
    const struct tt_model *model = r->setup->job.model;
    const struct tt_config *cfg = r->setup->cfg;
    struct tt_metrics *m = &r->metrics;
    int rc = 0;

    if (r->setup->comm->rank != 0)
        return 0;
    m->json_stdout = json;
    /* Open MPI gives a rank a pseudo terminal as stdout even if its own output is a file, but a pipe as stderr */
    m->color = isatty(STDOUT_FILENO) == 1 && isatty(STDERR_FILENO) == 1 && !(no_color && no_color[0]) &&
               !cfg->metrics.disable_color_printing;
    m->columns = tt_screen_columns(STDOUT_FILENO);
    r->live.on = !json && tt_screen_live_begin();
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
    r->live.shown_sec = r->window.start;
    r->live.step_sec = r->predicted_step_sec;
}

/* NaN if the run has no z-loss. */
static double z_loss_of(const struct tt_reporter *r, const struct tt_train_step *done)
{
    return r->setup->cfg->training.z_loss > 0.0 ? done->step.z_loss : (double)NAN;
}

static struct tt_loads loads_of(const struct tt_reporter *r, const struct tt_train_step *done)
{
    const struct tt_layout *layout = tt_engine_layout(r->setup->engine);

    return (struct tt_loads){.slots = done->step.loads,
                             .blocks = layout->blocks,
                             .experts = layout->experts,
                             .all = r->setup->cfg->metrics.expert_loads};
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
    r->results.z_loss = z_loss_of(r, done);
}

int tt_reporter_step(struct tt_reporter *r, const struct tt_train_step *done, const struct tt_train_progress *at,
                     int64_t last_step)
{
    const struct tt_setup *s = r->setup;
    struct tt_comm *comm = s->comm;
    double now = tt_clock_sec(), n = (double)r->window.steps;
    double local_mean = done->local_valid ? done->step.local_loss_sum / (double)done->local_valid : 0.0;
    struct tt_step_report report = {
        .step = at->step,
        .total_steps = last_step,
        .loss = done->step.loss,
        .grad_norm = done->step.grad_norm,
        .z_loss = z_loss_of(r, done),
        .loads = loads_of(r, done),
        .lr = done->step.scalars.lr,
        .ntokens_seen = at->ntokens_seen,
        .tokens_per_rank = s->job.global_batch * s->cfg->training.seq_len / s->job.mesh.n_ranks,
        .step_time = (now - r->window.start) / n,
        .data_time = r->window.data_sec / n,
        /* ranks also wait for each other between programs, to agree on what comes next */
        .comm_time = fmax(r->window.split.sec[TT_SPLIT_COMMUNICATION], comm->wait_sec) / n,
        .comm_exposed = comm->wait_sec / n,
        .comm_bytes = comm->payload_bytes / r->window.steps,
        .memory_bytes = tt_metrics_resident_bytes(),
    };
    double most[2] = {local_mean, report.memory_bytes};
    const double coefficients[TT_ROUTER_LOSSES] = {[TT_ROUTER_SEQUENCE] = s->cfg->training.sequence_balance_loss,
                                                   [TT_ROUTER_MICROBATCH] = s->cfg->training.microbatch_balance_loss,
                                                   [TT_ROUTER_Z] = s->cfg->training.router_z_loss,
                                                   [TT_ROUTER_GLOBAL_BATCH] =
                                                       s->cfg->training.global_batch_balance_loss};
    int rc = 0;

    for (int k = 0; k < TT_ROUTER_LOSSES; k++)
        report.router_losses[k] = coefficients[k] > 0.0 ? done->step.router_losses[k] : (double)NAN;
    comm->waiting_for = "report";
    TT_TRY(tt_comm_max_f64(comm, most, 2));
    r->spent.step_sec += now - r->window.start;
    r->spent.data_sec += r->window.data_sec;
    r->spent.exposed_sec += comm->wait_sec;
    report.max_loss = most[0];
    report.memory_bytes = most[1];
    if (comm->rank == 0)
        tt_metrics_step(&r->metrics, &report);
    open_window(r);
    r->live.shown_sec = r->window.start;
out:
    return rc;
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

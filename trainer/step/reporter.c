/* SPDX-License-Identifier: MIT
 *
 * The reports of steps, the peak against which their speed is measured, and one function for each other event of a
 * run.
 */
#include "trainer/step/reporter.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"
#include "core/os/machine.h"
#include "parallel/planner/cost.h"
#include "trainer/job/predict.h"
#include "trainer/run/folder.h"
#include "trainer/step/peak.h"

static bool is_silent(const struct tt_reporter *r)
{
    return r->setup->comm->rank != 0;
}

/* --- memory --- */

/*
 * The peak memory of this program. ru_maxrss also counts memory of the process before it became titan (the child of a
 * large Python, for example), so it is used only if /proc does not give the peak. The file stays open, since steps must
 * not open files.
 */
static double resident_bytes(void)
{
    static const char mark[] = "VmHWM:";
    static int fd = -1;
    char text[4096];
    const char *line;
    struct rusage usage;
    ssize_t n;

    if (fd < 0)
        fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    n = fd < 0 ? 0 : pread(fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    if ((line = strstr(text, mark)))
        return strtod(line + sizeof mark - 1, NULL) * 1024.0;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (double)usage.ru_maxrss * 1024.0 : 0.0;
}

/* --- the imbalance of experts --- */

static int64_t sum_of(const struct tt_loads *loads, int block)
{
    int64_t sum = 0;

    for (int x = 0; loads->slots && x < loads->experts; x++)
        sum += loads->slots[(int64_t)block * loads->experts + x];
    return sum;
}
/* NaN: the block has no experts. */
static double imbalance_of(const struct tt_loads *loads, int block)
{
    int64_t most = 0, sum = sum_of(loads, block);

    for (int x = 0; sum && x < loads->experts; x++) {
        int64_t slots = loads->slots[(int64_t)block * loads->experts + x];

        most = slots > most ? slots : most;
    }
    return sum ? (double)most * (double)loads->experts / (double)sum : (double)NAN;
}

/* The first block with the greatest imbalance; -1: no block has experts. */
static int worst_of(const struct tt_loads *loads)
{
    int worst = -1;

    for (int block = 0; block < loads->blocks; block++)
        if (imbalance_of(loads, block) > (worst < 0 ? 0.0 : imbalance_of(loads, worst)))
            worst = block;
    return worst;
}

static double worst_imbalance(const struct tt_loads *loads)
{
    int worst = worst_of(loads);

    return worst < 0 ? (double)NAN : imbalance_of(loads, worst);
}

/* Adds the members that follow the greatest imbalance: imbalance_layer, imbalances and, with `all`, expert_loads. Adds
 * nothing if no block has experts. */
static void record_loads(const struct tt_loads *loads, json_t *record)
{
    int worst = worst_of(loads);
    json_t *imbalances, *all;

    if (worst < 0)
        return;
    imbalances = json_object();
    all = json_object();
    for (int block = 0; block < loads->blocks; block++) {
        json_t *list;
        char layer[16];

        if (!sum_of(loads, block))
            continue;
        list = json_array();
        for (int x = 0; x < loads->experts; x++)
            (void)json_array_append_new(list,
                                        json_integer((json_int_t)loads->slots[(int64_t)block * loads->experts + x]));
        (void)snprintf(layer, sizeof layer, "%d", block);
        (void)json_object_set_new(imbalances, layer, tt_json_number(imbalance_of(loads, block)));
        (void)json_object_set_new(all, layer, list);
    }
    (void)json_object_set_new(record, "imbalance_layer", json_integer(worst));
    (void)json_object_set_new(record, "imbalances", imbalances);
    if (loads->all)
        (void)json_object_set(record, "expert_loads", all);
    json_decref(all);
}

/* Writes a scalar as a separate event; frees the tag. */
static void board_one(struct tt_tensorboard *board, int64_t step, double value, char *tag)
{
    tt_tensorboard_add(board, step, &(struct tt_scalar){tag, value}, 1);
    tt_free(tag);
}

/* --- records --- */

/* Writes one record (takes the reference) to the file, and passes it to the command that shows records; adds "time". */
static void add_record(struct tt_metrics *metrics, json_t *record)
{
    const char *lost = metrics->output_lost ? NULL : metrics->events->lost(metrics->events->arg);
    char *text;

    if (lost) { /* if the terminal or pipe is gone, training continues; record why nothing more was printed */
        metrics->output_lost = true;
        add_record(metrics, json_pack("{s:s, s:s++}", "type", "note", "text", "standard ", lost,
                                      " can no longer be written; training continues"));
    }
    (void)json_object_set_new(record, "time", tt_json_number(tt_clock_wall_sec()));
    text = tt_json_text(record);
    if (metrics->records)
        tt_records_add(metrics->records, text);
    metrics->events->record(metrics->events->arg, text);
    tt_free(text);
    json_decref(record);
}

/* --- steps --- */

/* Writes a step to TensorBoard, if enabled, and to the records. The numbers that every run reports form one TensorBoard
 * event; each other number is a separate event. */
static void report_step(struct tt_metrics *m, const struct tt_step_report *r)
{
    json_t *o = json_pack("{s:s, s:I}", "type", "step", "step", (json_int_t)r->step);
    struct tt_scalar scalars[TT_METRICS];
    enum tt_metric k;
    int n = 0;

    for (int place = 1; (k = tt_metric_at(TT_LIST_BOARD, place)) < TT_METRICS; place++)
        if (!tt_metric_rows[k].is_optional)
            scalars[n++] = (struct tt_scalar){tt_metric_rows[k].tag, r->value[k]};
    if (m->board)
        tt_tensorboard_add(m->board, r->step, scalars, n);
    for (int place = 1; m->board && (k = tt_metric_at(TT_LIST_BOARD, place)) < TT_METRICS; place++)
        if (tt_metric_rows[k].is_optional && isfinite(r->value[k]))
            tt_tensorboard_add(m->board, r->step, &(struct tt_scalar){tt_metric_rows[k].tag, r->value[k]}, 1);
    for (int block = 0; m->board && block < r->loads.blocks; block++)
        if (sum_of(&r->loads, block))
            board_one(m->board, r->step, imbalance_of(&r->loads, block),
                      tt_format("experts/imbalance/layers.%d", block));
    for (k = 0; k < TT_METRICS; k++) {
        const struct tt_metric_row *row = &tt_metric_rows[k];
        double value = r->value[k];

        if (row->name && (!row->is_optional || isfinite(value)))
            (void)json_object_set_new(o, row->name,
                                      row->is_integer ? json_integer((json_int_t)value) : tt_json_number(value));
        if (k == TT_METRIC_IMBALANCE)
            record_loads(&r->loads, o);
    }
    add_record(m, o);
}

void tt_reporter_record(struct tt_reporter *r, json_t *record)
{
    add_record(&r->metrics, record);
}

/* --- validations, texts, checkpoints --- */

/* The same for a validation. The loss of each named set is a separate field, "loss/NAME", so that programs find it. */
static void report_validation(struct tt_metrics *m, const struct tt_metrics_validation *v)
{
    const struct tt_scalar scalars[] = {
        {"validation_metrics/loss", v->loss},
        {"validation_metrics/throughput(tps)", v->tps},
        {"validation_metrics/memory/max_active(GiB)", v->gib},
        {"validation_metrics/memory/max_active(%)", v->gib_percent},
        {"validation_metrics/memory/max_reserved(GiB)", v->gib},
        {"validation_metrics/memory/max_reserved(%)", v->gib_percent},
    };
    json_t *record = json_pack("{s:s, s:I, s:o, s:I, s:o, s:o}", "type", "validate", "step", (json_int_t)v->step,
                               "loss", tt_json_number(v->loss), "ntokens", (json_int_t)v->tokens, "tps",
                               tt_json_number(v->tps), "time_s", tt_json_number(v->seconds));

    if (m->board)
        tt_tensorboard_add(m->board, v->step, scalars, (int)(sizeof scalars / sizeof scalars[0]));
    for (int i = 0; i < v->n; i++) {
        char *loss = tt_format("loss/%s", v->set[i].name);

        if (m->board)
            board_one(m->board, v->step, v->set[i].loss, tt_format("validation_metrics/%s/loss", v->set[i].name));
        (void)json_object_set_new(record, loss, tt_json_number(v->set[i].loss));
        tt_free(loss);
    }
    add_record(m, record);
}
void tt_reporter_sampled(struct tt_reporter *r, const struct tt_metrics_sample *sample)
{
    struct tt_metrics *m = &r->metrics;

    if (is_silent(r))
        return;
    m->events->sampled(m->events->arg, sample);
    if (m->board)
        tt_tensorboard_add_text(m->board, sample->step, "sample/text_summary", sample->text);
    add_record(m, json_pack("{s:s, s:I, s:o, s:o, s:I, s:s, s:o}", "type", "sample", "step", (json_int_t)sample->step,
                            "prompt", sample->prompt ? tt_json_string(sample->prompt) : json_null(), "text",
                            tt_json_string(sample->text), "tokens", (json_int_t)sample->tokens, "finish",
                            sample->finish, "time_s", tt_json_number(sample->seconds)));
}

void tt_reporter_scored(struct tt_reporter *r, const struct tt_metrics_task *task)
{
    struct tt_metrics *m = &r->metrics;
    json_t *record = json_pack("{s:s, s:I, s:o, s:s, s:i, s:I}", "type", "task", "step", (json_int_t)task->step, "task",
                               tt_json_string(task->path), "format", task->format, "documents", task->documents,
                               "contexts_cut", (json_int_t)task->cut);

    m->events->scored(m->events->arg, task);
    for (int k = 0; k < TT_TASK_METRICS; k++) {
        const struct tt_task_metric_row *row = &tt_task_metric_rows[k];

        if (!isfinite(task->value[k]))
            continue;
        (void)json_object_set_new(record, row->name, tt_json_number(task->value[k]));
        if (m->board && row->is_shown)
            board_one(m->board, task->step, task->value[k], tt_format("tasks/%s/%s", task->name, row->name));
    }
    (void)json_object_set_new(record, "time_s", tt_json_number(task->seconds));
    add_record(m, record);
}

/* --- the reporter --- */

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
        add_record(m, end);
        tt_records_close(m->records);
    }
    tt_tensorboard_close(m->board);
    *m = (struct tt_metrics){.records = NULL};
}

/* Whether other processes use this machine, which makes all measured rates too low. */
static void note_others(struct tt_reporter *r, const struct tt_load *before)
{
    const struct tt_load now = tt_load_read(NULL);
    struct tt_text text = {0};

    tt_load_text(before, &now, r->setup->local_size * r->setup->threads, &text);
    (void)snprintf(r->others, sizeof r->others, "%s", text.text ? text.text : "");
    tt_text_release(&text);
}

int tt_reporter_measure_peak(struct tt_reporter *r, struct tt_team *team)
{
    struct tt_comm *comm = r->setup->comm;
    const char *before = comm->waiting_for;
    double given = r->setup->cfg->metrics.peak_flops;
    enum tt_dtype dtype = r->setup->job.engine.param_dtype;
    struct tt_load load = {0};
    int rc = 0;

    if (r->peaks == 0)
        load = tt_load_read(NULL);
    if (!isnan(given)) {
        r->metrics.peak_flops = given;
        if (r->peaks++ == 0)
            note_others(r, &load);
        return 0;
    }
    if (r->peaks == PEAKS)
        return 0;
    comm->waiting_for = "measurement of the peak";
    TT_TRY(tt_comm_barrier(comm));
    comm->waiting_for = before;
    if (dtype != TT_F32 && r->peaks == 0) /* used only for the prediction, which is made once */
        r->float_flops = tt_peak_measure(team, TT_F32);
    r->metrics.peak_flops = fmax(r->metrics.peak_flops, tt_peak_measure(team, dtype));
    if (r->peaks++ == 0)
        note_others(r, &load);
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

/* A loss; NaN if its coefficient is 0. */
static double if_on(double coefficient, double loss)
{
    return coefficient > 0.0 ? loss : (double)NAN;
}

static void fill(struct tt_step_report *r)
{
#define TT_METRIC(id, name, presence, source, line, board, watch, status) r->value[TT_METRIC_##id] = (source);
#include "trainer/step/metrics.def"
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
    const struct tt_run_events *events = r->metrics.events;
    struct tt_comm *comm = s->comm;
    double now = tt_clock_sec(), n = (double)r->window.steps;
    double local_mean = done->local_valid ? done->step.local_loss_sum / (double)done->local_valid : 0.0;
    double most[2] = {local_mean, resident_bytes()};
    int64_t tokens = s->job.global_batch * s->cfg->training.seq_len / s->job.mesh.n_ranks; /* per rank and step */
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
    r->spent.steps += r->window.steps;
    r->spent.step_sec += now - r->window.start;
    r->spent.data_sec += r->window.data_sec;
    r->spent.exposed_sec += comm->wait_sec;
    report.max_loss = most[0];
    report.memory_bytes = most[1];
    report.tps = report.step_time > 0.0 ? (double)tokens / report.step_time : 0.0;
    if (comm->rank == 0) {
        fill(&report);
        events->step(events->arg, &report);
        report_step(&r->metrics, &report);
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
    r->window.start = pause->window_start + tt_clock_sec() - pause->begin; /* counts all pauses within this one */
    r->setup->comm->wait_sec = pause->wait_sec;
    r->setup->comm->payload_bytes = pause->payload_bytes;
}

/* --- events --- */

void tt_reporter_validated(struct tt_reporter *r, int64_t step, const struct tt_validation_result *result, int n,
                           const char *const *name)
{
    const struct tt_run_events *events = r->metrics.events;
    struct tt_metrics_set *set = tt_calloc((size_t)n, sizeof *set);
    struct tt_metrics_validation all = {.step = step, .set = set, .n = name[0] ? n : 0};
    double sum = 0.0, resident = resident_bytes();

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
    if (!is_silent(r)) {
        events->validated(events->arg, &all);
        report_validation(&r->metrics, &all);
    }
    tt_free(set);
}

/* --- the end --- */

void tt_reporter_moved(struct tt_reporter *r, const struct tt_train_progress *at, int64_t before, double step_sec)
{
    double finish_sec = (double)r->setup->cfg->lr_scheduler.finish_by;
    int64_t last = tt_lr_last_step(&at->ends, at->step);
    struct tt_text ends = {0};
    char left[32], one[32];

    if (is_silent(r))
        return;
    tt_lr_ends_text(&at->ends, &ends);
    add_record(&r->metrics,
               json_pack("{s:s, s:I, s:I, s:I, s:o, s:o, s:s}", "type", "last_step", "step", (json_int_t)at->step,
                         "last_step", (json_int_t)last, "before", (json_int_t)before, "trained_s",
                         tt_json_number(at->trained_sec), "step_time_s", tt_json_number(step_sec), "ends", ends.text));
    tt_note("step %" PRId64 ": the last step is %" PRId64 " now, instead of %" PRId64 ": %s of lr_scheduler.finish_by "
            "are left, and a step takes %s (lr_scheduler.ends=%s repeats this run)",
            at->step, last, before, tt_text_duration(left, sizeof left, fmax(finish_sec - at->trained_sec, 0.0)),
            tt_text_duration(one, sizeof one, step_sec), ends.text);
    tt_text_release(&ends);
}

/* --- checkpoints --- */

void tt_reporter_saved(struct tt_reporter *r, const struct tt_ckpt_saved *saved, bool async)
{
    double sec = async ? saved->write_sec : saved->seconds; /* the time that is printed with the save */
    double rate = sec > 0.0 ? (double)saved->bytes / sec / 1e9 : 0.0;
    char size[32];

    if (is_silent(r))
        return;
    r->results.saved = saved->step;
    add_record(&r->metrics,
               json_pack("{s:s, s:I, s:b, s:o, s:o, s:o, s:o, s:I, s:I}", "type", "checkpoint", "step",
                         (json_int_t)saved->step, "async", async, "blocked_s", tt_json_number(saved->blocked_sec),
                         "staged_s", tt_json_number(saved->stage_sec), "written_s", tt_json_number(saved->write_sec),
                         "total_s", tt_json_number(saved->seconds), "bytes", (json_int_t)saved->bytes, "files",
                         (json_int_t)saved->files));
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
    add_record(&r->metrics, json_pack("{s:s, s:I, s:o}", "type", "checkpoint", "step", (json_int_t)step, "error",
                                      tt_json_string(tt_error_message())));
    tt_warn("checkpoint of step %" PRId64 " FAILED, training continues, older checkpoints are unchanged: %s", step,
            tt_error_message());
}

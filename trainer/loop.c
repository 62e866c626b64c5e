/* SPDX-License-Identifier: MIT
 *
 * The training loop.
 */
#include "trainer/loop.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <unistd.h>

#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/os/file.h"
#include "trainer/data/data.h"

/* The result points into the loop. */
static struct tt_run_about about_of(const struct tt_loop *l)
{
    return (struct tt_run_about){
        .reporter = &l->reporter, .start = &l->start, .at = &l->at, .data = &l->data, .validator = &l->validator};
}

static int64_t last_step(const struct tt_loop *l)
{
    return tt_train_progress_last_step(&l->at, l->setup, &l->data);
}

static int64_t most_steps(const struct tt_loop *l)
{
    return tt_train_progress_most_steps(&l->at, l->setup, &l->data);
}

/* --- stops --- */

/* A step that takes longer than this many seconds may be abandoned before its end. */
static double long_step_sec(void)
{
    const char *text = getenv("TITAN_LONG_STEP"); // NOLINT(concurrency-mt-unsafe): titan never calls setenv
    char *end = NULL;
    double sec = text ? strtod(text, &end) : 0.0;

    return text && end != text && sec >= 0.0 ? sec : 20.0;
}

/* The message that ranks exchange at the end of every step. */
struct news {
    double trained_sec; /* by rank 0's clock */
    int64_t last_step;  /* a new decision of rank 0 about the last step (trainer/step/deadline.h); 0: none */
    int stop;           /* 0, or the exit code that a signal asked for */
    bool long_step;     /* on some rank, the last step was long (at first: the predicted step) */
    bool save_written;  /* all ranks have written their files of the save that is under way */
    bool warned;        /* mpirun may be about to kill a rank */
};

static int exchange_news(struct tt_loop *l, struct news *ret_news)
{
    double most[6] = {-(double)l->options.events->asked_to_stop(), !tt_saver_is_written(&l->saver),
                      l->pace.step_sec > long_step_sec(), l->options.events->warned_sec() >= 0.0};
    int rc = 0;

    if (l->setup->comm->rank == 0) {
        most[4] = tt_deadline_trained_sec(&l->deadline);
        most[5] = (double)tt_deadline_propose(&l->deadline, l->setup->cfg, &l->at, most_steps(l));
    }
    TT_TRY(tt_comm_max_f64(l->setup->comm, most, 6));
    *ret_news = (struct news){.stop = -(int)most[0],
                              .long_step = most[2] > 0.0,
                              .save_written = most[1] == 0.0,
                              .warned = most[3] > 0.0,
                              .trained_sec = most[4],
                              .last_step = (int64_t)most[5]};
out:
    return rc;
}

/* Takes rank 0's time, and its decision about the last step, if there is one. */
static void take_deadline(struct tt_loop *l, const struct news *news)
{
    struct tt_train_progress *at = &l->at;
    int64_t before = last_step(l);

    at->trained_sec = news->trained_sec;
    if (!news->last_step)
        return;
    at->ends.end[at->ends.n++] = (struct tt_lr_end){at->step, news->last_step};
    tt_reporter_moved(&l->reporter, at, before, l->deadline.step_sec);
}

static bool is_stop(int rc)
{
    return rc == TT_ESTOPPED || rc == TT_EINTERRUPTED;
}

/* --- answers: what rank 0 prints at once after a signal, before the loop acts on it --- */

/* The effect of a second interrupt, in words. */
static const char *without(bool saves)
{
    return saves ? "stop without saving" : "stop at once";
}

static void answer(const struct tt_loop *l, const char *again, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* again: the effect of a second signal. */
static void answer(const struct tt_loop *l, const char *again, const char *format, ...)
{
    char text[200];
    va_list args;

    if (l->setup->comm->rank != 0)
        return;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    l->options.events->answer(text, again);
}

/* Sets the answer for the step that begins. A long step may end early. */
static void answer_in_step(const struct tt_loop *l)
{
    bool is_long = l->pace.is_long, saves = l->saver.store;
    int64_t done = l->at.step;
    const char *again = without(saves && !(is_long && done == 0));

    if (is_long && done > 0 && saves)
        answer(l, again, "stopping within step %" PRId64 ", keeping step %" PRId64, done + 1, done);
    else if (is_long)
        answer(l, again, "stopping within step %" PRId64, done + 1);
    else
        answer(l, again, "stopping after step %" PRId64 "%s", done + 1,
               saves                                 ? " and saving"
               : l->setup->cfg->checkpoint.load_only ? ", nothing is saved (checkpoint.load_only)"
                                                     : ", nothing is saved (checkpoint.enable is off)");
}

static void answer_in_save(const struct tt_loop *l)
{
    answer(l, "stop without it", "stopping after the checkpoint of step %" PRId64, l->at.step);
    if (l->setup->comm->rank == 0)
        l->options.events->saves(l->options.events->arg);
}

/* Sets the answer to a signal that arrives during a validation, which it would abandon, or during a sampled text.
 * where: "after ..." or "within ..." the last step. */
static void answer_in_pause(const struct tt_loop *l, const char *where)
{
    bool saves = l->saver.store;

    answer(l, without(saves), "stopping %s step %" PRId64 "%s", where, l->at.step, saves ? ", keeping the step" : "");
}

/* --- the step --- */

/* An abandoned step changes nothing. ret_stop is then the code that the signal asked for, otherwise 0. */
static int train_step(struct tt_loop *l, struct tt_train_step *ret_done, int *ret_stop)
{
    const struct tt_tick tick = tt_reporter_live(&l->reporter, l->at.step, last_step(l));
    struct tt_pause pause;
    int rc = 0;

    *ret_stop = 0;
    answer_in_step(l);
    rc = tt_train_step(l->setup, &l->data, l->pace.is_long ? l->options.events->asked_to_stop : NULL, &tick, &l->at,
                       ret_done);
    if (is_stop(rc)) {
        *ret_stop = rc;
        return 0;
    }
    if (rc < 0)
        goto out;
    tt_reporter_count(&l->reporter, l->at.step, ret_done);
    pause = tt_reporter_pause(&l->reporter);
    TT_TRY(tt_reporter_measure_peak(&l->reporter, tt_engine_team(l->setup->engine)));
    tt_reporter_resume(&l->reporter, &pause);
    if (l->at.step == 1 || l->at.step % l->setup->cfg->metrics.log_freq == 0)
        rc = tt_reporter_step(&l->reporter, ret_done, &l->at, last_step(l));
out:
    return rc;
}

/* Saves the current step, unless it is already saved or no step has been done. */
static int save_at_stop(struct tt_loop *l)
{
    int rc = 0;

    if (!l->saver.store || l->at.step == 0)
        return 0;
    TT_TRY(tt_saver_end(&l->saver));
    if (l->saver.saved_step == l->at.step)
        return 0;
    answer_in_save(l);
    rc = tt_saver_save(&l->saver, &l->at, false, true);
out:
    return rc;
}

/*
 * mpirun may be about to kill the ranks, or it may only have continued them after a pause. Saves the current step, then
 * waits until SIGTERM arrives or is no longer expected. ret_stop is the code that a signal asked for, or 0.
 */
static int save_and_await_sigterm(struct tt_loop *l, int *ret_stop)
{
    static const struct timespec nap = {0, 20000000};
    static const double due_sec = 1.5;
    struct news news;
    int rc = 0;

    TT_TRY(save_at_stop(l));
    while (!l->options.events->asked_to_stop() && l->options.events->warned_sec() >= 0.0 &&
           l->options.events->warned_sec() < due_sec)
        (void)nanosleep(&nap, NULL);
    l->options.events->settle_warning();
    TT_TRY(exchange_news(l, &news));
    *ret_stop = news.stop;
out:
    return rc;
}

/* Ends a save that all ranks have written. ret_stop is the code that a signal asked for, or 0. */
static int end_step(struct tt_loop *l, int *ret_stop)
{
    struct news news;
    struct tt_pause pause;
    int rc = 0;

    l->setup->comm->waiting_for = "end of step";
    TT_TRY(exchange_news(l, &news));
    take_deadline(l, &news);
    *ret_stop = news.stop;
    l->pace.is_long = news.long_step;
    pause = tt_reporter_pause(&l->reporter);
    if (news.save_written)
        TT_TRY(tt_saver_end(&l->saver));
    if (news.warned && l->saver.store && !news.stop)
        TT_TRY(save_and_await_sigterm(l, ret_stop));
    tt_reporter_resume(&l->reporter, &pause);
out:
    return rc;
}

/* Writes the trace of the step just done, which ended at end_sec. Training continues if the trace cannot be written. */
static int trace(struct tt_loop *l, const struct tt_train_step *done, double end_sec)
{
    const struct tt_setup *s = l->setup;
    char *folder = tt_format("%s/%s", s->cfg->job.dump_folder, s->cfg->profiling.save_traces_folder);
    struct tt_trace_step step = {.step = l->at.step,
                                 .rank = s->comm->rank,
                                 .world = s->comm->size,
                                 .threads = s->threads,
                                 .load = done->load,
                                 .end = end_sec,
                                 .lead = done->load.end - done->load.begin};
    int rc = 0;

    s->comm->waiting_for = "trace";
    TT_TRY(tt_comm_max_f64(s->comm, &step.lead, 1));
    /* does not recreate a removed run folder, since no run would own it */
    rc = tt_comm_agree(s->comm, tt_lock_check(&l->folder.lock));
    if (rc == 0)
        rc = tt_comm_agree(s->comm, tt_trace_write(s->engine, &step, folder));
    if (rc == TT_EIO || rc == TT_EDATA || rc == TT_ENOMEM) {
        tt_warn("no trace of step %" PRId64 ", training continues: %s", l->at.step, tt_error_message());
        rc = 0;
    }
out:
    tt_free(folder);
    return rc;
}

/* An abandoned validation reports nothing. ret_stop is then the code that the signal asked for. */
static int validate(struct tt_loop *l, int *ret_stop)
{
    const struct tt_validator *v = &l->validator;
    int rc;

    answer_in_pause(l, "within the validation of");
    rc = tt_validator_run(&l->validator, l->options.events->asked_to_stop, long_step_sec(), l->pace.is_long,
                          l->options.events->live ? "validating" : NULL);
    if (is_stop(rc)) {
        *ret_stop = rc;
        return 0;
    }
    if (rc == 0) {
        tt_reporter_validated(&l->reporter, l->at.step, v->found, v->n, v->name);
        l->owes_validation = false;
    }
    return rc;
}

/* --- what follows a step --- */
static bool validation_is_due(const struct tt_loop *l, bool last)
{
    const struct tt_config *cfg = l->setup->cfg;

    return cfg->validation.enable && (last || l->at.step == 1 || l->at.step % cfg->validation.freq == 0);
}

/* Does the validation after the last step that an earlier start was stopped or killed before it could do. */
static int make_up_validation(struct tt_loop *l, int *ret_stop)
{
    struct tt_comm *comm = l->setup->comm;
    bool due = validation_is_due(l, l->at.step >= last_step(l)), has = true;
    struct tt_pause pause = tt_reporter_pause(&l->reporter);
    double lacks;
    int rc = 0;

    if (!due || l->start.since.step != l->at.step)
        return 0;
    if (comm->rank == 0)
        rc = tt_run_folder_has_validation(l->setup->cfg, l->at.step, &has);
    TT_TRY(tt_comm_agree(comm, rc));
    lacks = !has;
    TT_TRY(tt_comm_max_f64(comm, &lacks, 1));
    if (lacks > 0.0 && l->setup->cfg->ema.validate && l->start.averages_begin) {
        tt_note("the validation of step %" PRId64 " was cut short and is not done again: step-%" PRId64
                " has no averages of the weights",
                l->at.step, l->at.step);
    } else if (lacks > 0.0) {
        l->owes_validation = true;
        if (!*ret_stop)
            TT_TRY(validate(l, ret_stop));
    }
    tt_reporter_resume(&l->reporter, &pause);
out:
    return rc;
}

/* An abandoned evaluation reports the tasks that are complete. ret_stop is then the code that the signal asked for. */
static int score_tasks(struct tt_loop *l, int *ret_stop)
{
    int rc;

    answer_in_pause(l, "within the tasks of");
    rc = tt_train_tasks_score(&l->tasks, l->at.step, l->options.events->asked_to_stop, &l->reporter);
    if (is_stop(rc))
        *ret_stop = rc;
    return is_stop(rc) ? 0 : rc;
}

/* Everything after a step: trace, save, validation, a sampled text, tasks. ret_stop becomes the code that a signal
 * asked for in the meantime. */
static int after_step(struct tt_loop *l, const struct tt_train_step *done, int *ret_stop)
{
    const struct tt_config *cfg = l->setup->cfg;
    struct tt_pause pause = tt_reporter_pause(&l->reporter);
    int64_t step = l->at.step, interval = cfg->checkpoint.interval;
    bool last = step >= last_step(l), stop = *ret_stop != 0;
    bool saves = last || stop || step % interval == 0 || (step == 1 && cfg->checkpoint.enable_first_step_checkpoint);
    bool samples = cfg->metrics.sample_freq && (last || step % cfg->metrics.sample_freq == 0) && !stop;
    bool scores = cfg->metrics.task_freq && (last || step % cfg->metrics.task_freq == 0) && !stop;
    bool validates;
    int rc = 0;

    /* a saved step is saved again only if it is the last one, since that may be saved in another form */
    saves = saves && l->saver.store && (last || l->saver.saved_step != step);
    l->owes_validation = validation_is_due(l, last);
    validates = l->owes_validation && !stop;
    if (cfg->profiling.enable_profiling && step % cfg->profiling.profile_freq == 0)
        TT_TRY(trace(l, done, pause.begin));
    if (saves) {
        answer_in_save(l);
        TT_TRY(tt_saver_save(&l->saver, &l->at, last, stop));
    } else if (!l->saver.store && (last || step % interval == 0)) {
        TT_TRY(tt_saver_check_replicas(&l->saver, step)); /* a save also compares the replicas */
    }
    if (validates)
        TT_TRY(validate(l, ret_stop));
    if (samples && !*ret_stop) {
        answer_in_pause(l, "after the text that is sampled after");
        TT_TRY(tt_train_text_sample(&l->text, step, &l->reporter));
    }
    if (scores && !*ret_stop)
        TT_TRY(score_tasks(l, ret_stop));
    if ((saves || validates || samples || scores) && !*ret_stop && !last)
        TT_TRY(end_step(l, ret_stop));
    tt_reporter_resume(&l->reporter, &pause);
out:
    return rc;
}

/* The final message of a run that was stopped. */
static int stopped(const struct tt_loop *l, int stop)
{
    if (l->at.step == 0)
        return tt_fail(stop, "stopped by a signal before step 1 was done; there is nothing to save");
    if (l->saver.store && l->owes_validation)
        return tt_fail(stop,
                       "stopped by a signal after step %" PRId64
                       "; everything is saved, and the run continues with the validation of this step",
                       l->at.step);
    return tt_fail(stop, "stopped by a signal after step %" PRId64 "%s", l->at.step,
                   l->saver.store                        ? "; everything is saved"
                   : l->setup->cfg->checkpoint.load_only ? " (checkpoint.load_only: nothing was saved)"
                                                         : " (checkpoint.enable is off: nothing was saved)");
}

int tt_loop_run(struct tt_loop *l)
{
    const struct tt_run_events *events = l->options.events;
    const struct tt_run_about about = about_of(l);
    struct tt_train_step done;
    int64_t first = l->at.step;
    bool retains;
    int stop = 0, rc = 0;

    l->pace.step_sec = l->reporter.predicted_step_sec;
    tt_reporter_begin_steps(&l->reporter, &l->at);
    TT_TRY(end_step(l, &stop));
    /* if no steps are left, completes the last save, unless the step came from another folder */
    retains = l->setup->cfg->checkpoint.load_step < 0 &&
              !json_object_get(l->start.since.keys, TT_KEY_NAME(checkpoint.keep_latest_k));
    if (l->at.step >= last_step(l) && l->start.since.step >= 0)
        TT_TRY(tt_saver_complete(&l->saver, l->at.step, retains));
    TT_TRY(make_up_validation(l, &stop));
    while (l->at.step < last_step(l) && !stop) {
        double start = tt_clock_sec(), end;

        TT_TRY(train_step(l, &done, &stop));
        if (stop)
            break;
        end = tt_clock_sec();
        l->pace.step_sec = end - start;
        tt_deadline_count(&l->deadline, l->at.step, l->pace.step_sec, last_step(l) - l->at.step);
        TT_TRY(end_step(l, &stop));
        TT_TRY(after_step(l, &done, &stop));
        tt_deadline_pause(&l->deadline, tt_clock_sec() - end);
    }
    stop = l->at.step < last_step(l) || l->owes_validation ? stop : 0; /* a complete run was not stopped */
    if (stop)
        TT_TRY(save_at_stop(l));
out:
    if (l->setup->comm->rank == 0)
        events->answer("the run is ending", NULL);
    rc = tt_saver_drain(&l->saver, rc);
    if (rc < 0)
        return rc;
    if (stop)
        return stopped(l, stop);
    /* a run that was complete when it started has already printed that */
    if (l->setup->comm->rank == 0 && l->at.step > first)
        events->end(events->arg, &about);
    return 0;
}

/* --- open and close: the parts of a loop, each before the parts that need it --- */

static int take_folder(struct tt_loop *l)
{
    const struct tt_config *cfg = l->setup->cfg;
    bool resumes = false;
    int rc = 0;

    if (l->setup->comm->rank == 0 && (rc = tt_start_can_resume(cfg, &resumes)) == 0)
        rc = tt_run_folder_take(cfg, resumes, l->options.overwrite, &l->folder);
    if (l->setup->comm->rank == 0 && rc == 0 && !l->folder.replaces)
        tt_run_folder_console(cfg, l->options.argc, l->options.argv);
    return tt_comm_agree(l->setup->comm, rc);
}

/* Removes the run that this one replaces, once it is known that the data exists, and that the initial weights exist and
 * fit. */
static int replace_run(struct tt_loop *l)
{
    const struct tt_config *cfg = l->setup->cfg;
    struct tt_train_progress at = l->at;
    struct tt_start start = {.since.step = -1};
    int rc = 0;

    if (l->options.overwrite && (cfg->checkpoint.initial_load_path || cfg->checkpoint.initial_load_in_hf))
        rc = tt_start_peek(l->setup, &l->data, true, &at, &start);
    tt_start_release(&start);
    if (rc < 0)
        return rc;
    if (l->folder.replaces && (rc = tt_run_folder_replace(cfg, &l->folder)) == 0)
        tt_run_folder_console(cfg, l->options.argc, l->options.argv);
    return tt_comm_agree(l->setup->comm, rc);
}

/* The record of a run's start. `titan status` uses it to find the run's state, and to say how to continue the run. */
static json_t *record_of(const struct tt_loop *l)
{
    const struct tt_setup *s = l->setup;
    const struct tt_start *start = &l->start;
    const struct tt_machine *machine = &s->job.engine.machine;
    char host[256] = "", cwd[4096];
    json_t *argv = json_array(), *o;

    for (int i = 0; i < l->options.argc; i++)
        (void)json_array_append_new(argv, tt_json_string(l->options.argv[i]));
    (void)gethostname(host, sizeof host - 1);
    o = json_pack("{s:s, s:i, s:s, s:s, s:i, s:i, s:o, s:I, s:o, s:b, s:o, s:o, s:I, s:I, s:o, s:I}", "type", "run",
                  "schema", 1, "version", TITAN_VERSION, "run_id", l->run_id, "world", s->comm->size,
                  "threads_per_rank", s->threads, "argv", argv, "parameters",
                  (json_int_t)tt_model_n_elements(s->job.model), "weights", tt_json_string(start->weights_from),
                  "layout_exact", tt_setup_layout_exact(s), "kernels", tt_setup_kernels_json(s), "peak_flops",
                  tt_json_number(l->reporter.metrics.peak_flops), "memory_predicted_bytes",
                  (json_int_t)(l->reporter.largest_bytes + s->job.staging_bytes), "staging_bytes",
                  (json_int_t)s->job.staging_bytes, "host", tt_json_string(host), "pid", (json_int_t)getpid());
    if (getcwd(cwd, sizeof cwd))
        (void)json_object_set_new(o, "cwd", tt_json_string(cwd));
    if (s->cfg->parallelism.fsdp_engine == TT_ENGINE_PLANNED) { /* the plan depends on the cost table */
        (void)json_object_set_new(o, "machine", json_string(machine->name));
        (void)json_object_set_new(o, "machine_hash", json_sprintf("%016" PRIx64, tt_machine_hash(machine)));
    }
    if (start->since.step >= 0)
        (void)json_object_set_new(o, "resumed_from", json_integer(start->since.step));
    if (start->since.keys)
        (void)json_object_set(o, "changed", start->since.keys);
    (void)json_object_set_new(o, "config", tt_config_to_json(s->cfg, false));
    return o;
}

int tt_loop_open(const struct tt_setup *s, const struct tt_loop_options *options, struct tt_loop *ret_loop)
{
    struct tt_loop *l = ret_loop;
    char *checkpoints = tt_run_folder_checkpoints(s->cfg);
    double begun_sec = tt_clock_sec();
    int rc = 0;

    *l = (struct tt_loop){.setup = s, .options = *options, .folder = TT_RUN_FOLDER_NONE};
    tt_reporter_init(s, options->events, &l->reporter);
    TT_TRY(take_folder(l));
    tt_random_word(l->run_id);
    TT_TRY(tt_comm_broadcast(s->comm, l->run_id, sizeof l->run_id, 0));
    TT_TRY(tt_datasets_open_training(s, &l->data));
    tt_train_progress_count_steps(&l->at, s, &l->data);
    TT_TRY(tt_validator_open(s, &l->validator));
    TT_TRY(tt_train_text_open(s, &l->data, &l->text));
    TT_TRY(tt_train_tasks_open(s, &l->data, &l->tasks));
    TT_TRY(tt_comm_agree(s->comm, tt_engine_allocate(s->engine)));
    TT_TRY(replace_run(l));
    tt_saver_init(s, &l->reporter, &l->data, &l->saver);
    if (s->cfg->checkpoint.enable && !s->cfg->checkpoint.load_only)
        TT_TRY(tt_saver_open(&l->saver, checkpoints, l->run_id));
    TT_TRY(tt_start_load(&l->saver, l->run_id, &l->at, &l->start));
    tt_train_progress_count_steps(&l->at, s, &l->data); /* earlier steps may have had another batch size */
    tt_deadline_begin(&l->at, begun_sec, &l->deadline);
    TT_TRY(tt_train_progress_check(&l->at, s, &l->data));
    TT_TRY(tt_saver_check_space(&l->saver, &l->at));
    TT_TRY(tt_reporter_measure_peak(&l->reporter, tt_engine_team(s->engine)));
    TT_TRY(tt_reporter_predict(&l->reporter));
    rc = tt_reporter_open(&l->reporter);
    if (rc == 0 && s->comm->rank == 0 && l->at.step < last_step(l)) /* run.yaml describes the start that trained last */
        rc = tt_run_folder_record(s->cfg, options->argc, options->argv, s->comm->size, s->threads,
                                  &s->job.engine.machine);
    TT_TRY(tt_comm_agree(s->comm, rc));
    if (s->comm->rank == 0) {
        const struct tt_run_about about = about_of(l);

        tt_reporter_record(&l->reporter, record_of(l));
        options->events->begin(options->events->arg, &about);
    }
    s->comm->timeout_sec = (double)s->cfg->comm.train_timeout_seconds;
    l->has_begun = true;
out:
    tt_free(checkpoints);
    return rc;
}

void tt_loop_close(struct tt_loop *l, int exit_code)
{
    if (!l->setup)
        return;
    tt_reporter_close(&l->reporter, l->at.step, exit_code);
    tt_saver_close(&l->saver);
    tt_start_release(&l->start);
    tt_train_tasks_release(&l->tasks);
    tt_train_text_release(&l->text);
    tt_validator_release(&l->validator);
    tt_train_data_release(&l->data);
    if (!l->has_begun) /* removes all traces of a run that did not begin */
        tt_run_folder_undo(l->setup->cfg, &l->folder);
    tt_run_folder_release(&l->folder);
    *l = (struct tt_loop){.setup = NULL};
}

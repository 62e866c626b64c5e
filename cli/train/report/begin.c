/* SPDX-License-Identifier: MIT
 *
 * The start of a run: the banner on the screen and in console.log, notes and warnings that follow it, and the record
 * of the run.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "cli/run/screen.h"
#include "cli/train/report/banner.h"
#include "cli/train/report/reporter.h"
#include "cli/train/start/start.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/os/cores.h"

static const char *plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

static int64_t last_step_of(const struct tt_setup *s, const struct tt_run_about *about)
{
    return tt_train_progress_last_step(about->at, s, about->data);
}

/* console.log always has the whole banner. */
static void print_banner(const struct tt_reporter *r, const struct tt_run_about *about, FILE *file)
{
    int columns = tt_screen_columns(file == stderr ? STDERR_FILENO : STDOUT_FILENO);
    struct tt_text all = {0}, brief = {0};

    tt_banner_all(r, about, &all);
    if (about->verbose) {
        tt_screen_put(file, all.text, columns, TT_BANNER_INDENT);
    } else {
        tt_banner_brief(r, about, columns, &brief);
        tt_screen_log(all.text);
        tt_screen_show(file, brief.text, columns, TT_BANNER_INDENT);
    }
    tt_text_release(&all);
    tt_text_release(&brief);
}

/* --- what follows the banner --- */

/* A longer step or run is more often a mistake in the configuration than intended. */
static const double long_step_sec = 60.0, long_run_sec = 30.0 * 86400.0;

static void warn_of_length(const struct tt_reporter *r, int64_t left)
{
    const struct tt_setup *s = r->setup;
    double step = r->predicted_step_sec, run = step * (double)left;
    char one[32], all[32];

    if (left <= 0 || (step < long_step_sec && run < long_run_sec))
        return;
    tt_warn("a step of %s on %d rank%s is predicted to take %s, %" PRId64 " step%s %s\nhelp: a step is %" PRId64
            " sequence%s of %" PRId64
            " tokens; set a smaller training.global_batch_size or training.seq_len, a smaller model.flavor, or fewer "
            "training.steps, or use more ranks; `titan estimate --ranks N` predicts them",
            s->job.model->title, s->comm->size, plural(s->comm->size), tt_text_duration(one, sizeof one, step), left,
            plural(left), tt_text_duration(all, sizeof all, run), s->job.global_batch, plural(s->job.global_batch),
            s->cfg->training.seq_len);
}

/* Warns if the learning rate is still rising when the run ends. */
static void warn_of_warm_up(const struct tt_config *cfg)
{
    int64_t warm_up = cfg->lr_scheduler.warmup_steps, steps = cfg->training.steps;

    if (warm_up > steps)
        tt_warn("the warm-up of %" PRId64 " steps is longer than the run of %" PRId64
                " step%s, which ends before the learning rate is optimizer.lr\nhelp: set lr_scheduler.warmup_steps, "
                "for instance to %" PRId64,
                warm_up, steps, plural(steps), steps < 20 ? 1 : steps / 10);
}

/* A flag is meant to matter. In files both keys are common: run.yaml has the number that was computed. */
static void warn_of_steps(const struct tt_config *cfg)
{
    if (cfg->training.epochs != TT_NULL_INT && strncmp(tt_config_origin(cfg, "training.steps"), "flag ", 5) == 0)
        tt_warn("training.steps is not used: training.epochs is %" PRId64 ", which is %" PRId64
                " steps\nhelp: set training.epochs=null to count steps",
                cfg->training.epochs, cfg->training.steps);
}

/* Cores that no rank of this host uses. */
static void note_idle_cores(const struct tt_setup *s)
{
    int host = tt_cores()->cores, used = s->local_size * s->threads;

    if (used < host)
        tt_note("%d of the %d cores of this host %s idle: mpirun -n %d --map-by slot:PE=%d --bind-to core titan train "
                "... would use %s",
                host - used, host, host - used == 1 ? "is" : "are", s->local_size, host / s->local_size,
                host - used == 1 ? "it" : "them");
}

void tt_reporter_describe(const struct tt_reporter *r, const struct tt_run_about *about, FILE *file)
{
    if (file)
        print_banner(r, about, file);
    note_idle_cores(r->setup);
    warn_of_length(r, last_step_of(r->setup, about) - about->at->step);
    warn_of_warm_up(r->setup->cfg);
    warn_of_steps(r->setup->cfg);
}

static void note_where_it_starts(const struct tt_setup *s, const struct tt_run_about *about)
{
    int64_t step = about->at->step, steps = s->cfg->training.steps, epochs = s->cfg->training.epochs;

    if (step > 0 && epochs != TT_NULL_INT && tt_train_data_samples(about->data, epochs) < about->at->sample_cursor)
        tt_note("the run is complete: with step %" PRId64 " it has done more than training.epochs, which is %" PRId64
                "; --training.epochs=N continues it, --overwrite starts again",
                step, epochs);
    else if (step > 0 && step >= last_step_of(s, about) && epochs != TT_NULL_INT)
        tt_note("the run is complete: it has done %" PRId64 " epoch%s with step %" PRId64
                "; --training.epochs=N continues it, --overwrite starts again",
                epochs, plural(epochs), step);
    else if (step > steps)
        tt_note("the run is complete: it is at step %" PRId64 ", and training.steps is %" PRId64
                "; --training.steps=N continues it, --overwrite starts again",
                step, steps);
    else if (step == steps)
        tt_note("the run is complete: step %" PRId64 " of %" PRId64
                "; --training.steps=N continues it, --overwrite starts again",
                step, steps);
    else if (step > 0 && step >= last_step_of(s, about))
        tt_note("the run is complete: its data ended after step %" PRId64
                "; --dataloader.repeat=true continues it, --overwrite starts again",
                step);
    else
        tt_note("training starts at step %" PRId64, step + 1);
}

/* --- the record --- */

/* The plan depends on the cost table. */
static void add_machine(const struct tt_setup *s, json_t *o)
{
    const struct tt_machine *machine = &s->job.engine.machine;

    if (s->cfg->parallelism.fsdp_engine != TT_ENGINE_PLANNED)
        return;
    (void)json_object_set_new(o, "machine", json_string(machine->name));
    (void)json_object_set_new(o, "machine_hash", json_sprintf("%016" PRIx64, tt_machine_hash(machine)));
}

/* Where the run is: `titan status` tells it, and how to continue from there. */
static void add_place(json_t *o)
{
    char host[256] = "", cwd[4096];

    (void)gethostname(host, sizeof host - 1);
    (void)json_object_set_new(o, "host", tt_json_string(host));
    (void)json_object_set_new(o, "pid", json_integer((json_int_t)getpid()));
    if (getcwd(cwd, sizeof cwd))
        (void)json_object_set_new(o, "cwd", tt_json_string(cwd));
}

static json_t *record_of(const struct tt_reporter *r, const struct tt_run_about *about)
{
    const struct tt_setup *s = r->setup;
    const struct tt_start *start = about->start;
    json_t *argv = json_array(), *o;

    for (int i = 0; i < about->argc; i++)
        (void)json_array_append_new(argv, tt_json_string(about->argv[i]));
    o = json_pack("{s:s, s:i, s:s, s:s, s:i, s:i, s:o, s:I, s:o, s:b, s:o, s:o, s:I, s:I}", "type", "run", "schema", 1,
                  "version", TITAN_VERSION, "run_id", about->run_id, "world", s->comm->size, "threads_per_rank",
                  s->threads, "argv", argv, "parameters", (json_int_t)tt_model_n_elements(s->job.model), "weights",
                  tt_json_string(start->weights_from), "layout_exact", tt_setup_layout_exact(s), "kernels",
                  tt_setup_kernels_json(s), "peak_flops", tt_json_number(r->metrics.peak_flops),
                  "memory_predicted_bytes", (json_int_t)(r->largest_bytes + s->job.staging_bytes), "staging_bytes",
                  (json_int_t)s->job.staging_bytes);
    add_place(o);
    add_machine(s, o);
    if (start->resumed_from >= 0)
        (void)json_object_set_new(o, "resumed_from", json_integer(start->resumed_from));
    if (start->changed)
        (void)json_object_set(o, "changed", start->changed);
    (void)json_object_set_new(o, "config", tt_config_to_json(s->cfg, false));
    return o;
}

void tt_reporter_begin(struct tt_reporter *r, const struct tt_run_about *about)
{
    if (r->setup->comm->rank != 0)
        return;
    tt_metrics_record(&r->metrics, record_of(r, about));
    tt_reporter_describe(r, about, stderr);
    note_where_it_starts(r->setup, about);
}

/* SPDX-License-Identifier: MIT
 *
 * The output of a training run: the lines of its steps, of events between them, of its beginning and of its end.
 */
#include "cli/train/screen.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include "cli/cli.h"
#include "cli/run/screen.h"
#include "cli/run/signals.h"
#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"
#include "core/os/machine.h"
#include "trainer/job/predict.h"
#include "trainer/run/console.h"
#include "trainer/run/folder.h"
#include "trainer/start/start.h"
#include "trainer/step/reporter.h"

/* --- lines --- */

/* torchtitan's colours, field by field; empty strings when the output is not a terminal. */
static const char *paint(const struct tt_train_screen *s, const char *code)
{
    return s->color ? code : "";
}

/* A field of the step line, such as "loss:  8.07324". */
struct field {
    const char *color; /* torchtitan's colour */
    int rank;          /* if the terminal is too narrow, the fields with the highest rank are left out first */
    char text[64];
};

/* The rank of grad_norm; loss, speed and eta have lower ranks: at 80 columns all of them are shown. */
enum { RANK_KEPT = 2 };

/* The form of the step line on a terminal. */
struct line_form {
    int rank;     /* fields up to this rank are shown */
    int gap;      /* spaces between fields */
    bool squeeze; /* at most one space within a field */
};

static void squeeze(const char *text, char *out)
{
    for (; *text; text++)
        if (!(text[0] == ' ' && text[1] == ' '))
            *out++ = *text;
    *out = 0;
}

/* The columns of the line. The last field, eta, counts with its largest length. */
static int columns_of(const struct field *field, int n, struct line_form form)
{
    int columns = (int)strlen("eta: 10 min 10 s");
    char text[sizeof field->text];

    for (int i = 0; i < n - 1; i++) {
        if (field[i].rank > form.rank || !field[i].text[0])
            continue;
        squeeze(field[i].text, text);
        columns += (int)strlen(form.squeeze ? text : field[i].text) + form.gap;
    }
    return columns;
}

/* Leaves out fields until only the most important are left (RANK_KEPT), then narrows spaces, then leaves out more.
 */
static struct line_form form_of(const struct field *field, int n, int columns)
{
    struct line_form form = {.gap = 2};

    for (int i = 0; i < n; i++)
        form.rank = field[i].rank > form.rank ? field[i].rank : form.rank;
    while (columns && columns_of(field, n, form) > columns) {
        bool is_narrow = form.gap == 1 && form.squeeze;

        if (form.rank > (is_narrow ? 0 : RANK_KEPT))
            form.rank--;
        else if (form.gap > 1)
            form.gap = 1;
        else if (!form.squeeze)
            form.squeeze = true;
        else
            break;
    }
    return form;
}

static void print_fields(const struct tt_train_screen *s, const struct field *field, int n)
{
    struct line_form form = form_of(field, n, s->columns);
    char text[sizeof field->text];
    struct tt_text line = {0};

    for (int i = 0; i < n; i++) /* console.log gets all fields, without colours */
        if (field[i].text[0])
            tt_text_add(&line, "%s%s", line.size ? "  " : "", field[i].text);
    tt_text_add(&line, "\n");
    tt_console_add(line.text);
    tt_text_release(&line);
    if (s->json)
        return;
    for (int i = 0, printed = 0; i < n; i++) {
        if (field[i].rank > form.rank || !field[i].text[0])
            continue;
        squeeze(field[i].text, text);
        (void)printf("%*s%s%s", printed++ ? form.gap : 0, "", paint(s, field[i].color),
                     form.squeeze ? text : field[i].text);
    }
    (void)printf("%s\n", paint(s, "\033[39m"));
    (void)fflush(stdout);
}

/* Adds the text of a number in the form that its row gives; nothing if the number is left out. */
static void add_number(const struct tt_step_report *r, enum tt_metric k, char *text, size_t size)
{
    const struct tt_metric_row *row = &tt_metric_rows[k];
    double value = r->value[k];
    char word[32];

    if ((row->is_optional && !isfinite(value)) || (row->how == TT_HOW_DURATION && value == 0.0))
        return;
    if (row->how == TT_HOW_COUNT)
        (void)tt_text_count(word, sizeof word, (int64_t)llround(value));
    else if (row->how == TT_HOW_DURATION)
        (void)tt_text_duration(word, sizeof word, value);
    else if (row->how == TT_HOW_SHARE)
        (void)snprintf(word, sizeof word, isfinite(value) ? "%.2f%%" : "N/A", value);
    if (row->how == TT_HOW_NUMBER)
        (void)snprintf(text, size, row->text, value, k + 1 < TT_METRICS ? r->value[k + 1] : 0.0);
    else
        (void)snprintf(text, size, row->text, word);
}

static void show_step(void *arg, const struct tt_step_report *r)
{
    struct tt_train_screen *s = arg;
    struct field field[TT_METRICS + 1] = {{.color = "\033[31m"}};
    int width = snprintf(NULL, 0, "%" PRId64, r->total_steps), n = 1;
    enum tt_metric k;

    (void)snprintf(field[0].text, sizeof field->text, "step: %*" PRId64 "/%" PRId64, width < 2 ? 2 : width, r->step,
                   r->total_steps);
    for (; (k = tt_metric_at(TT_LIST_LINE, n)) < TT_METRICS; n++) {
        field[n] = (struct field){.color = tt_metric_rows[k].color, .rank = tt_metric_rows[k].rank};
        add_number(r, k, field[n].text, sizeof field->text);
    }
    print_fields(s, field, n);
    s->shown_sec = tt_clock_sec();
}

/* Prints the loss of each named set on its own line. */
static void print_sets(const struct tt_train_screen *s, const struct tt_metrics_validation *v)
{
    char text[32], name[256];

    for (int i = 0; i < v->n; i++) {
        const struct tt_metrics_set *set = &v->set[i];
        char *line = tt_format("validate step: %2" PRId64 "  loss: %7.4f  set: %s  tokens: %s\n", v->step, set->loss,
                               set->name, tt_text_count(text, sizeof text, set->tokens));

        tt_console_add(line);
        tt_free(line);
        tt_shown(name, sizeof name, set->name, strlen(set->name));
        if (!s->json)
            (void)printf("%svalidate step: %2" PRId64 "  %sloss: %7.4f  %sset: %s  tokens: %s\n", paint(s, "\033[33m"),
                         v->step, paint(s, "\033[32m"), set->loss, paint(s, "\033[39m"), name, text);
    }
}

static void show_validation(void *arg, const struct tt_metrics_validation *v)
{
    const struct tt_train_screen *s = arg;
    char text[32], *line;

    tt_text_count(text, sizeof text, (int64_t)llround(v->tps));
    line = tt_format("validate step: %2" PRId64 "  loss: %7.4f  memory: %5.2fGiB(%.2f%%)  tps: %s\n", v->step, v->loss,
                     v->gib, v->gib_percent, text);
    tt_console_add(line);
    tt_free(line);
    if (!s->json)
        (void)printf("%svalidate step: %2" PRId64 "  %sloss: %7.4f  %smemory: %5.2fGiB(%.2f%%)  %stps: %s%s\n",
                     paint(s, "\033[33m"), v->step, paint(s, "\033[32m"), v->loss, paint(s, "\033[38;2;54;234;195m"),
                     v->gib, v->gib_percent, paint(s, "\033[34m"), text, paint(s, "\033[39m"));
    print_sets(s, v);
    if (!s->json)
        (void)fflush(stdout);
}

/* Shows the text on one line, since line breaks in it would look like other lines of the run. */
static void show_sample(void *arg, const struct tt_metrics_sample *sample)
{
    const struct tt_train_screen *s = arg;
    char *head = tt_format("sample step: %2" PRId64 "  ", sample->step);
    struct tt_text line = {0};

    tt_text_add(&line, "%s", head);
    tt_text_add_replaced(&line, sample->text, strlen(sample->text), "\n", "\\n");
    tt_text_add(&line, "\n");
    tt_screen_log(line.text);
    if (!s->json) {
        tt_screen_show(stdout, line.text, s->columns, (int)strlen(head));
        (void)fflush(stdout);
    }
    tt_text_release(&line);
    tt_free(head);
}

static void show_score(void *arg, const struct tt_metrics_task *task)
{
    const struct tt_train_screen *s = arg;
    struct tt_text line = {0};

    tt_text_add(&line, "task step: %2" PRId64 "  %s", task->step, task->name);
    for (int k = 0; k < TT_TASK_METRICS; k++)
        if (tt_task_metric_rows[k].is_shown && isfinite(task->value[k]))
            tt_text_add(&line, "  %s: %.4f", tt_task_metric_rows[k].name, task->value[k]);
    tt_text_add(&line, "\n");
    tt_screen_log(line.text);
    if (!s->json) {
        tt_screen_show(stdout, line.text, s->columns, 0);
        (void)fflush(stdout);
    }
    tt_text_release(&line);
}

static void show_record(void *arg, const char *line)
{
    const struct tt_train_screen *s = arg;

    if (!s->json)
        return;
    tt_print("%s\n", line);
    (void)fflush(stdout);
}

static const char *lost(void *arg)
{
    (void)arg;
    return ferror(stdout) ? "output" : ferror(stderr) ? "error" : NULL;
}

/*
 * --- the live line ---
 *
 * The thread that runs the step writes it between two instructions, so that it cannot interrupt other output.
 */

/* seconds between two live lines */
static double every_sec(void)
{
    const char *text = getenv("TITAN_LIVE_SEC"); // NOLINT(concurrency-mt-unsafe): titan never calls setenv
    char *end = NULL;
    double sec = text ? strtod(text, &end) : 0.0;

    return text && end != text && sec >= 0.0 ? sec : 0.25;
}

/* "step: 13/60 loss: 6.11477 270 ms a step eta: 12 s", and during a long step " 12 s into this one", which comes last
 * because a narrow terminal cuts the line. */
static void show_live(const struct tt_reporter *r, double sec)
{
    const struct tt_live *live = &r->live;
    int width = snprintf(NULL, 0, "%" PRId64, live->last_step);
    double in_step = sec - live->begun_sec, left = (double)(live->last_step - live->step) * live->step_sec - in_step;
    char loss[32] = "", now[32] = "", one[32], eta[32], text[200];

    if (r->results.step)
        (void)snprintf(loss, sizeof loss, "loss: %8.5f  ", r->results.loss);
    if (in_step >= 1.0)
        (void)tt_text_duration(now, sizeof now, floor(in_step));
    (void)snprintf(text, sizeof text, "step: %*" PRId64 "/%" PRId64 "  %s%s a step  eta: %s%s%s%s",
                   width < 2 ? 2 : width, live->step, live->last_step, loss,
                   tt_text_duration(one, sizeof one, live->step_sec),
                   tt_text_duration(eta, sizeof eta, left >= 1.0 ? floor(left) : fmax(left, 0.0)), now[0] ? "  " : "",
                   now, now[0] ? " into this one" : "");
    tt_screen_live(text);
}

static void tick(void *reporter, double sec)
{
    const struct tt_reporter *r = reporter;
    struct tt_train_screen *s = r->metrics.events->arg;

    if (sec - s->shown_sec < s->every_sec)
        return;
    s->shown_sec = sec;
    show_live(r, sec);
}

static void show_saving(void *arg)
{
    const struct tt_train_screen *s = arg;

    if (s->events.live)
        tt_screen_live("titan: saving");
}

/* --- the begin --- */

/* A longer step or run is more likely a mistake in the configuration than intended. */
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
            "training.steps, or use more ranks; `titan estimate --ranks N` predicts the times of steps",
            s->job.model->title, s->comm->size, tt_plural(s->comm->size), tt_text_duration(one, sizeof one, step), left,
            tt_plural(left), tt_text_duration(all, sizeof all, run), s->job.global_batch,
            tt_plural(s->job.global_batch), s->cfg->training.seq_len);
}

void tt_describe_run(const struct tt_run_about *about, bool verbose, FILE *file)
{
    const struct tt_setup *s = about->reporter->setup;
    const struct tt_config *cfg = s->cfg;
    int64_t warm_up = cfg->lr_scheduler.warmup_steps, steps = cfg->training.steps;
    int columns = tt_screen_columns(file == stderr ? STDERR_FILENO : STDOUT_FILENO);
    int host = tt_cores()->cores, used = s->local_size * s->threads;
    struct tt_text all = {0}, brief = {0};

    if (file) {
        tt_banner_all(about, &all);
        if (!verbose)
            tt_banner_brief(about, columns, &brief);
        tt_screen_log(all.text); /* console.log always gets the whole banner */
        tt_screen_show(file, verbose ? all.text : brief.text, columns, TT_BANNER_INDENT);
        tt_text_release(&all);
        tt_text_release(&brief);
    }
    if (used < host)
        tt_note("%d of the %d cores of this host %s idle: mpirun -n %d --map-by slot:PE=%d --bind-to core titan train "
                "... would use %s",
                host - used, host, host - used == 1 ? "is" : "are", s->local_size, host / s->local_size,
                host - used == 1 ? "it" : "them");
    warn_of_length(about->reporter, tt_steps_left_of(about));
    tt_cli_note_idle(s->cfg, s->job.model);
    if (warm_up > steps)
        tt_warn(
            "the warm-up of %" PRId64 " steps is longer than the run of %" PRId64
            " step%s, which ends before the learning rate reaches optimizer.lr\nhelp: set lr_scheduler.warmup_steps, "
            "for instance to %" PRId64,
            warm_up, steps, tt_plural(steps), steps < 20 ? 1 : steps / 10);
    /* whoever gives the flag expects an effect; files often contain both keys, since run.yaml records the computed
     * number */
    if (cfg->training.epochs != TT_NULL_INT && tt_text_begins(tt_config_origin(cfg, TT_KEY(training.steps)), "flag "))
        tt_warn("training.steps is not used: training.epochs is %" PRId64 ", which is %" PRId64
                " steps\nhelp: set training.epochs=null to count steps",
                cfg->training.epochs, steps);
}

static void note_where_it_starts(const struct tt_setup *s, const struct tt_run_about *about)
{
    int64_t step = about->at->step, steps = s->cfg->training.steps, epochs = s->cfg->training.epochs;

    if (step > 0 && epochs != TT_NULL_INT && tt_train_data_samples(about->data, epochs) < about->at->sample_cursor)
        tt_note("the run is complete: with step %" PRId64
                " it has done more epochs than training.epochs, which is %" PRId64
                "; --training.epochs=N continues it, --overwrite starts again",
                step, epochs);
    else if (step > 0 && step >= tt_last_step_of(about) && epochs != TT_NULL_INT)
        tt_note("the run is complete: it has done %" PRId64 " epoch%s with step %" PRId64
                "; --training.epochs=N continues it, --overwrite starts again",
                epochs, tt_plural(epochs), step);
    else if (step > steps)
        tt_note("the run is complete: it is at step %" PRId64 ", and training.steps is %" PRId64
                "; --training.steps=N continues it, --overwrite starts again",
                step, steps);
    else if (step == steps)
        tt_note("the run is complete: step %" PRId64 " of %" PRId64
                "; --training.steps=N continues it, --overwrite starts again",
                step, steps);
    else if (step > 0 && step >= tt_last_step_of(about) && step < tt_most_steps_of(about))
        tt_note("the run is complete: its decay ended with step %" PRId64 " (%s); --checkpoint.load_step=N continues "
                "from an earlier step, --overwrite starts again",
                step, s->cfg->lr_scheduler.ends ? TT_KEY_NAME(lr_scheduler.ends) : TT_KEY_NAME(lr_scheduler.finish_by));
    else if (step > 0 && step >= tt_last_step_of(about))
        tt_note("the run is complete: its data ended after step %" PRId64
                "; --dataloader.repeat=true continues it, --overwrite starts again",
                step);
    else
        tt_note("training starts at step %" PRId64, step + 1);
}

static void show_begin(void *arg, const struct tt_run_about *about)
{
    struct tt_train_screen *s = arg;

    tt_describe_run(about, s->verbose, stderr);
    note_where_it_starts(about->reporter->setup, about);
    s->shown_sec = tt_clock_sec();
}

/*
 * --- where the time of a finished run went ---
 *
 * The last lines of a run also name the change that would help most. titan plans a policy before recommending it, so
 * its memory and traffic are known.
 */

enum { WORTH_SAYING_PERCENT = 5 };

static double percent(double part, double whole)
{
    return whole > 0.0 ? 100.0 * part / whole : 0.0;
}

/* A policy that sends less than the current one, as advice. */
struct remedy {
    const char *flag;
    const char *price; /* its cost besides memory, or "" */
    bool (*apply)(const struct tt_setup *s, struct tt_engine_options *options);
};

static bool keep_gathered(const struct tt_setup *s, struct tt_engine_options *options)
{
    options->sharding.reshard = TT_RESHARD_AFTER_FORWARD_NEVER;
    options->choose_reshard_by_limit = false;
    return s->job.mesh.size[TT_MESH_DP_SHARD] > 1;
}

static bool defers(struct tt_engine_options *options, enum tt_reduce_when when)
{
    bool already = options->reduce != TT_REDUCE_EACH;

    options->reduce = when;
    return !already && tt_engine_block(options) > 1;
}

static bool reduce_runs(const struct tt_setup *s, struct tt_engine_options *options)
{
    (void)s;
    return defers(options, TT_REDUCE_RUNS) && tt_engine_is_exact(options);
}

static bool defer_gradients(const struct tt_setup *s, struct tt_engine_options *options)
{
    return defers(options, TT_REDUCE_LAST) && (!s->job.pipeline || tt_pipeline_ascends(s->job.pipeline));
}

static const struct remedy remedies[] = {
    {"--parallelism.fsdp_reshard_after_forward=never", "", keep_gathered},
    {"--training.gradient_sync=every_run", "", reduce_runs},
    {"--training.gradient_sync=last_microbatch", " (gradients are then added in another order)", defer_gradients},
};

/* Finds the most bytes that a rank sends in a step, and the most memory that a rank needs. */
static int find_needs(const struct tt_job *job, int64_t *ret_sent, int64_t *ret_memory)
{
    struct tt_job_prediction p = {0};
    int rc = tt_job_predict(job, &job->engine.machine, NULL, 0, &p);

    if (rc < 0)
        return rc;
    *ret_sent = p.payload_bytes;
    *ret_memory = p.memory.total;
    tt_job_prediction_release(&p);
    return 0;
}

/* Appends the first remedy that fits in memory and sends less. */
static bool advise_less_traffic(const struct tt_setup *s, struct tt_text *out)
{
    int64_t sent = 0, memory = 0;
    char before[32], after[32], need[32], limit[32];

    if (find_needs(&s->job, &sent, &memory) < 0)
        return false;
    for (size_t i = 0; i < sizeof remedies / sizeof remedies[0]; i++) {
        struct tt_job job = s->job;
        int64_t bytes = 0;

        if (!remedies[i].apply(s, &job.engine) || find_needs(&job, &bytes, &memory) < 0)
            continue;
        if (bytes >= sent || memory > s->memory_limit)
            continue;
        tt_text_add(out, "%s sends %s a step instead of %s and needs %s a rank of %s%s", remedies[i].flag,
                    tt_text_bytes(after, sizeof after, (double)bytes),
                    tt_text_bytes(before, sizeof before, (double)sent),
                    tt_text_bytes(need, sizeof need, (double)memory),
                    tt_text_bytes(limit, sizeof limit, (double)s->memory_limit), remedies[i].price);
        return true;
    }
    return false;
}

void tt_advice(const struct tt_setup *s, const struct tt_spent *spent, struct tt_text *out)
{
    double exposed = percent(spent->exposed_sec, spent->step_sec), data = percent(spent->data_sec, spent->step_sec);
    /* whether ranks that share layers wait longer for each other than the ranks of the pipeline do */
    bool layers_wait = tt_mesh_size(&s->job.mesh, TT_GROUP_TP) > 1 &&
                       (!s->job.pipeline || spent->group_sec[TT_GROUP_TP] > spent->group_sec[TT_GROUP_PP]);

    if (spent->step_sec <= 0.0)
        return;
    exposed = exposed > 100.0 - data ? 100.0 - data : exposed; /* a wait may count in both sums */
    tt_text_add(out, "  time     compute %.0f %%, exposed communication %.0f %%, data %.0f %%\n",
                fmax(100.0 - exposed - data, 0.0), exposed, data);
    if (data > WORTH_SAYING_PERCENT && !(s->job.pipeline && exposed > data)) {
        tt_text_add(out, "  hint     loading data takes time: put dataloader.cache_dir on a local disk\n");
    } else if (exposed > WORTH_SAYING_PERCENT && layers_wait) {
        tt_text_add(out,
                    "  hint     ranks that share layers wait for each other in every layer: keep them on one host, "
                    "or lower parallelism.tensor_parallel_degree\n");
    } else if (exposed > WORTH_SAYING_PERCENT && s->job.pipeline) {
        tt_text_add(out, "  hint     a pipeline waits less with more microbatches a run (training.local_batch_size / "
                         "parallelism.pipeline_parallel_microbatch_size), or with another "
                         "parallelism.pipeline_parallel_schedule\n");
    } else if (exposed > WORTH_SAYING_PERCENT) {
        tt_text_add(out, "  hint     ");
        if (!advise_less_traffic(s, out))
            tt_text_add(out, "try --parallelism.fsdp_prefetch=2, or over several hosts replicas that shard within one "
                             "(data_parallel_replicate_degree)");
        tt_text_add(out, "; `titan tune` measures the choices\n");
    } else if (s->memory.total > s->memory_limit / 10 * 9) {
        tt_text_add(out, "  hint     memory is nearly full: fsdp_reshard_after_forward=always, or "
                         "activation_checkpoint.mode=full, makes room\n");
    }
}

void tt_advice_pace(const struct tt_spent *spent, double predicted_step_sec, const char *others, struct tt_text *out)
{
    static const double much = 2.0, worth_sec = 5.0;
    double step_sec = spent->steps ? spent->step_sec / (double)spent->steps : 0.0;
    char text[32];

    if (predicted_step_sec <= 0.0 || step_sec <= much * predicted_step_sec || spent->step_sec < worth_sec)
        return;
    tt_text_add(out, "  hint     steps took %.1f times as long as predicted (%s); %s\n", step_sec / predicted_step_sec,
                tt_text_duration(text, sizeof text, predicted_step_sec),
                others[0] ? others : "`titan doctor` looks for the reason");
}

/* --- the end --- */

static void add_tokens(const struct tt_reporter *r, const struct tt_run_about *about, double sec, struct tt_text *out)
{
    int64_t seen = about->at->ntokens_seen, epoch = tt_train_data_samples(about->data, 1);
    char count[32], rate[32];

    tt_text_add(out, "  tokens   %s seen", tt_text_count(count, sizeof count, seen));
    if (epoch > 0 && about->data->n == 1) /* the datasets of a mixture have their own epochs */
        tt_text_add(out, " (%.2f epochs)", (double)about->at->sample_cursor / (double)epoch);
    if (sec > 0.0)
        tt_text_add(out, ", %s a second",
                    tt_text_count(rate, sizeof rate, (int64_t)((double)(seen - r->results.tokens_before) / sec)));
    tt_text_add(out, "\n");
}

/* At the start or now. The ranks of this host are already idle, but still count in the mean. */
static const char *others_at_the_end(const struct tt_reporter *r, struct tt_text *text)
{
    const struct tt_load now = tt_load_read(NULL);

    tt_load_text(&now, &now, r->setup->local_size * r->setup->threads, text);
    return text->text ? text->text : r->others;
}

static void show_end(void *arg, const struct tt_run_about *about)
{
    const struct tt_reporter *r = about->reporter;
    const struct tt_setup *s = r->setup;
    double sec = tt_clock_sec() - r->started_sec;
    const struct tt_results *results = &r->results;
    char *folder = tt_run_folder_checkpoints(s->cfg), elapsed[32];
    struct tt_text text = {0}, others = {0};

    (void)arg;
    tt_text_add(&text, "  loss     %.5f at step %" PRId64, results->loss, results->step);
    if (isfinite(results->z_loss))
        tt_text_add(&text, ", z-loss %.5f", results->z_loss);
    if (results->validated)
        tt_text_add(&text, ", validation %.5f at step %" PRId64, results->validation_loss, results->validated);
    tt_text_add(&text, "\n");
    add_tokens(r, about, sec, &text);
    tt_advice(s, &r->spent, &text);
    tt_advice_pace(&r->spent, r->predicted_step_sec, others_at_the_end(r, &others), &text);
    if (results->saved)
        tt_text_add(&text, "  saved    step-%" PRId64 " in %s\n", results->saved, folder);
    else
        tt_text_add(&text, "  saved    nothing (checkpoint.%s)\n",
                    s->cfg->checkpoint.enable ? "load_only is true" : "enable is false");
    tt_free(folder);
    tt_screen_put(stderr, text.text, tt_screen_columns(STDERR_FILENO), TT_BANNER_INDENT);
    tt_text_release(&text);
    tt_text_release(&others);
    if (tt_most_steps_of(about) < s->cfg->training.steps)
        tt_screen_say("titan: the data has ended (dataloader.repeat is false): there is no batch for step %" PRId64
                      "\n",
                      about->at->step + 1);
    tt_screen_say("titan: training completed: step %" PRId64 ", %s, in %s\n", about->at->step,
                  tt_text_duration(elapsed, sizeof elapsed, sec), s->cfg->job.dump_folder);
}

/* --- the screen --- */

void tt_train_screen_init(const struct tt_setup *setup, bool json, bool verbose, struct tt_train_screen *ret_screen)
{
    const char *no_color = getenv("NO_COLOR"); // NOLINT(concurrency-mt-unsafe): before the team has work
    struct tt_train_screen *s = ret_screen;

    *s = (struct tt_train_screen){
        .json = json,
        .verbose = verbose,
        /* Open MPI gives a rank a pseudo terminal as stdout even if its own output is a file, but a pipe as stderr */
        .color = isatty(STDOUT_FILENO) == 1 && isatty(STDERR_FILENO) == 1 && !(no_color && no_color[0]) &&
                 !setup->cfg->metrics.disable_color_printing,
        .columns = tt_screen_columns(STDOUT_FILENO),
        .every_sec = every_sec(),
        .events = {.arg = s,
                   .live = setup->comm->rank == 0 && !json && tt_screen_live_begin(),
                   .begin = show_begin,
                   .step = show_step,
                   .validated = show_validation,
                   .sampled = show_sample,
                   .scored = show_score,
                   .record = show_record,
                   .saves = show_saving,
                   .tick = tick,
                   .end = show_end,
                   .lost = lost,
                   .answer = tt_signals_answer,
                   .asked_to_stop = tt_signals_asked,
                   .warned_sec = tt_signals_warned_sec,
                   .settle_warning = tt_signals_settle_warning},
    };
}

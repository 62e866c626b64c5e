/* SPDX-License-Identifier: MIT
 *
 * Console lines and metrics.jsonl.
 */
#include "cli/run/records/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli/run/screen.h"
#include "core/base/mem.h"
#include "core/base/shown.h"
#include "core/base/text.h"
#include "core/os/file.h"
#include "trainer/run/console.h"

/*
 * The peak of this program. ru_maxrss also counts what the process was before it became titan (a child of a large
 * Python, for example), so it is only for systems without the kernel's own line. The file stays open, since steps open
 * nothing.
 */
double tt_metrics_resident_bytes(void)
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

/* The loss of the terminal or pipe does not end training; metrics.jsonl notes why nothing more was printed. */
static void note_lost_output(struct tt_metrics *m)
{
    bool out = ferror(stdout), err = ferror(stderr);

    if (m->output_lost || (!out && !err))
        return;
    m->output_lost = true;
    tt_metrics_record(m, json_pack("{s:s, s:s++}", "type", "note", "text", "standard ", out ? "output" : "error",
                                   " can no longer be written; training continues"));
}

void tt_metrics_record(struct tt_metrics *metrics, json_t *record)
{
    char *text;

    note_lost_output(metrics);
    (void)json_object_set_new(record, "time", tt_json_number(tt_clock_wall_sec()));
    text = tt_json_text(record);
    if (metrics->records)
        tt_records_add(metrics->records, text);
    if (metrics->json_stdout) {
        tt_print("%s\n", text);
        (void)fflush(stdout);
    }
    tt_free(text);
    json_decref(record);
}

/* Rates of one rank, and percentages of the peak; NaN when the peak is unknown. */
struct derived {
    double tps, tflops;
    double mfu;        /* torchtitan's, which also counts masked positions: above 100 for long sequences */
    double mfu_causal; /* at most 100, even if the measured peak was too low */
};

static struct derived derive(const struct tt_metrics *m, const struct tt_step_report *r)
{
    struct derived d;

    d.tps = r->step_time > 0.0 ? (double)r->tokens_per_rank / r->step_time : 0.0;
    d.tflops = d.tps * m->flops_per_token / 1e12;
    d.mfu = m->peak_flops > 0.0 ? 100.0 * d.tps * m->flops_per_token / m->peak_flops : (double)NAN;
    d.mfu_causal =
        m->peak_flops > 0.0 ? fmin(100.0, 100.0 * d.tps * m->flops_per_token_causal / m->peak_flops) : (double)NAN;
    return d;
}

/* The time of the remaining steps at the pace of the last ones, without saves and validations. */
static double eta_sec(const struct tt_step_report *r)
{
    return (double)(r->total_steps - r->step) * r->step_time;
}

/* In records and in TensorBoard. */
static const struct {
    const char *name, *tag;
} router_losses[TT_ROUTER_LOSSES] = {
    [TT_ROUTER_SEQUENCE] = {"sequence_balance_loss", "loss_metrics/sequence_balance_loss"},
    [TT_ROUTER_MICROBATCH] = {"microbatch_balance_loss", "loss_metrics/microbatch_balance_loss"},
    [TT_ROUTER_Z] = {"router_z_loss", "loss_metrics/router_z_loss"},
    [TT_ROUTER_GLOBAL_BATCH] = {"global_batch_balance_loss", "loss_metrics/global_batch_balance_loss"},
};

static json_t *step_record(const struct tt_step_report *r, const struct derived *d)
{
    json_t *o = json_pack("{s:s, s:I}", "type", "step", "step", (json_int_t)r->step);
    const struct {
        const char *name;
        double value;
    } numbers[] = {
        {"loss", r->loss},
        {"max_loss", r->max_loss},
        {"grad_norm", r->grad_norm},
        {"lr", r->lr},
        {"tps", d->tps},
        {"tflops", d->tflops},
        {"mfu", d->mfu},
        {"mfu_causal", d->mfu_causal},
        {"memory_gib", r->memory_bytes / 0x1p30},
        {"step_time_s", r->step_time},
        {"data_time_s", r->data_time},
        {"comm_time_s", r->comm_time},
        {"comm_exposed_s", r->comm_exposed},
        {"eta_s", eta_sec(r)},
    };

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        (void)json_object_set_new(o, numbers[i].name, tt_json_number(numbers[i].value));
    if (isfinite(r->z_loss))
        (void)json_object_set_new(o, "z_loss", tt_json_number(r->z_loss));
    for (int k = 0; k < TT_ROUTER_LOSSES; k++)
        if (isfinite(r->router_losses[k]))
            (void)json_object_set_new(o, router_losses[k].name, tt_json_number(r->router_losses[k]));
    tt_loads_record(&r->loads, o);
    (void)json_object_update_new(o, json_pack("{s:I, s:I}", "ntokens_seen", (json_int_t)r->ntokens_seen, "comm_bytes",
                                              (json_int_t)r->comm_bytes));
    return o;
}

static double percent_of(double part, double whole)
{
    return whole > 0.0 ? 100.0 * part / whole : 0.0;
}

/* torchtitan's tags. Memory that a process holds is both its active and its reserved memory. */
static void board_step(const struct tt_metrics *m, const struct tt_step_report *r, const struct derived *d)
{
    double gib = r->memory_bytes / 0x1p30, percent = percent_of(r->memory_bytes, m->memory_total_bytes);
    const struct tt_scalar scalars[] = {
        {"loss_metrics/global_avg_loss", r->loss},
        {"loss_metrics/global_max_loss", r->max_loss},
        {"grad_norm", r->grad_norm},
        {"throughput(tps)", d->tps},
        {"tflops", d->tflops},
        {"mfu(%)", d->mfu},
        {"time_metrics/end_to_end(s)", r->step_time},
        {"time_metrics/data_loading(s)", r->data_time},
        {"time_metrics/data_loading(%)", percent_of(r->data_time, r->step_time)},
        {"memory/max_active(GiB)", gib},
        {"memory/max_active(%)", percent},
        {"memory/max_reserved(GiB)", gib},
        {"memory/max_reserved(%)", percent},
        {"n_tokens_seen", (double)r->ntokens_seen},
        {"lr", r->lr},
    };

    if (m->board)
        tt_tensorboard_add(m->board, r->step, scalars, (int)(sizeof scalars / sizeof scalars[0]));
    if (m->board && isfinite(r->z_loss))
        tt_tensorboard_add(m->board, r->step, &(struct tt_scalar){"loss_metrics/global_avg_z_loss", r->z_loss}, 1);
    for (int k = 0; k < TT_ROUTER_LOSSES && m->board; k++)
        if (isfinite(r->router_losses[k]))
            tt_tensorboard_add(m->board, r->step, &(struct tt_scalar){router_losses[k].tag, r->router_losses[k]}, 1);
    tt_loads_board(&r->loads, m->board, r->step);
}

static void board_validate(const struct tt_metrics *m, const struct tt_metrics_validation *v, double tps,
                           double resident)
{
    double gib = resident / 0x1p30, percent = percent_of(resident, m->memory_total_bytes);
    const struct tt_scalar scalars[] = {
        {"validation_metrics/loss", v->loss},
        {"validation_metrics/throughput(tps)", tps},
        {"validation_metrics/memory/max_active(GiB)", gib},
        {"validation_metrics/memory/max_active(%)", percent},
        {"validation_metrics/memory/max_reserved(GiB)", gib},
        {"validation_metrics/memory/max_reserved(%)", percent},
    };

    if (m->board)
        tt_tensorboard_add(m->board, v->step, scalars, (int)(sizeof scalars / sizeof scalars[0]));
    for (int i = 0; i < v->n && m->board; i++) {
        char *tag = tt_format("validation_metrics/%s/loss", v->set[i].name);

        tt_tensorboard_add(m->board, v->step, &(struct tt_scalar){tag, v->set[i].loss}, 1);
        tt_free(tag);
    }
}

/* torchtitan's colours, field by field; empty strings when the output is not a terminal. */
static const char *paint(const struct tt_metrics *m, const char *code)
{
    return m->color ? code : "";
}

/* A field of the step line, such as "loss:  8.07324". */
struct field {
    const char *color; /* torchtitan's colour; "": none */
    int rank;          /* if the terminal is too narrow, fields of the highest rank are left out first */
    char text[64];
};

/* grad_norm is of this rank, loss, speed and eta are below it: at 80 columns they are all there. */
enum { RANK_KEPT = 2 };

/* How much of the step line a terminal shows. */
struct line_form {
    int rank;     /* the highest of the fields */
    int gap;      /* spaces between fields */
    bool squeeze; /* no more than one space within a field */
};

static void squeeze(const char *text, char *out)
{
    for (; *text; text++)
        if (!(text[0] == ' ' && text[1] == ' '))
            *out++ = *text;
    *out = 0;
}

/* Columns of the line. The last field, eta, counts with its greatest length. */
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

/* Leaves out fields, down to those that matter most (RANK_KEPT); then makes spaces narrower, and then leaves out more.
 */
static struct line_form form_of(const struct field *field, int n, int most_rank, int columns)
{
    struct line_form form = {.rank = most_rank, .gap = 2};

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

/* All fields, without colours. */
static void log_fields(const struct field *field, int n)
{
    struct tt_text line = {0};

    for (int i = 0; i < n; i++)
        if (field[i].text[0])
            tt_text_add(&line, "%s%s", line.size ? "  " : "", field[i].text);
    tt_text_add(&line, "\n");
    tt_console_add(line.text);
    tt_text_release(&line);
}

static void print_fields(const struct tt_metrics *m, const struct field *field, int n, int most_rank)
{
    struct line_form form = form_of(field, n, most_rank, m->columns);
    char text[sizeof field->text];

    log_fields(field, n);
    if (m->json_stdout)
        return;
    for (int i = 0, printed = 0; i < n; i++) {
        if (field[i].rank > form.rank || !field[i].text[0])
            continue;
        squeeze(field[i].text, text);
        (void)printf("%*s%s%s", printed++ ? form.gap : 0, "", paint(m, field[i].color),
                     form.squeeze ? text : field[i].text);
    }
    (void)printf("%s\n", paint(m, "\033[39m"));
    (void)fflush(stdout);
}

static void print_step(const struct tt_metrics *m, const struct tt_step_report *r, const struct derived *d)
{
    enum { FIELDS = 12, MOST_RANK = 9 };
    /* the order in which fields are left out on a narrow terminal is in titan-train(1) */
    struct field f[FIELDS] = {{"\033[31m", 0, ""},
                              {"\033[32m", 0, ""},
                              {"\033[38;2;180;60;0m", RANK_KEPT, ""},
                              {"\033[38;2;54;234;195m", 5, ""},
                              {"\033[34m", 0, ""},
                              {"\033[36m", 8, ""},
                              {"\033[35m", MOST_RANK, ""},
                              {"\033[39m", 6, ""},
                              {"\033[39m", 3, ""},
                              {"\033[39m", 4, ""},
                              {"\033[39m", 7, ""},
                              {"\033[39m", 1, ""}};
    int worst = tt_loads_worst(&r->loads);
    int width = snprintf(NULL, 0, "%" PRId64, r->total_steps);
    char count[32];

    (void)snprintf(f[0].text, sizeof f->text, "step: %*" PRId64 "/%" PRId64, width < 2 ? 2 : width, r->step,
                   r->total_steps);
    (void)snprintf(f[1].text, sizeof f->text, "loss: %8.5f", r->loss);
    (void)snprintf(f[2].text, sizeof f->text, "grad_norm: %7.4f", r->grad_norm);
    (void)snprintf(f[3].text, sizeof f->text, "memory: %5.2fGiB(%.2f%%)", r->memory_bytes / 0x1p30,
                   100.0 * r->memory_bytes / m->memory_total_bytes);
    (void)snprintf(f[4].text, sizeof f->text, "tps: %s", tt_text_count(count, sizeof count, (int64_t)llround(d->tps)));
    (void)snprintf(f[5].text, sizeof f->text, "tflops: %.2f", d->tflops);
    (void)snprintf(f[6].text, sizeof f->text, isfinite(d->mfu_causal) ? "mfu: %.2f%%" : "mfu: N/A", d->mfu_causal);
    (void)snprintf(f[7].text, sizeof f->text, "lr: %.2e", r->lr);
    if (isfinite(r->z_loss))
        (void)snprintf(f[8].text, sizeof f->text, "z_loss: %.5f", r->z_loss);
    if (worst >= 0)
        (void)snprintf(f[9].text, sizeof f->text, "imbalance: %.2f", tt_loads_imbalance(&r->loads, worst));
    (void)snprintf(f[10].text, sizeof f->text, "tokens: %s", tt_text_count(count, sizeof count, r->ntokens_seen));
    if (r->step < r->total_steps)
        (void)snprintf(f[11].text, sizeof f->text, "eta: %s", tt_text_duration(count, sizeof count, eta_sec(r)));
    print_fields(m, f, FIELDS, MOST_RANK);
}

void tt_metrics_step(struct tt_metrics *m, const struct tt_step_report *r)
{
    struct derived d = derive(m, r);

    print_step(m, r, &d);
    board_step(m, r, &d);
    tt_metrics_record(m, step_record(r, &d));
}

/* The loss of each named set on a line of its own. */
static void print_sets(const struct tt_metrics *m, const struct tt_metrics_validation *v)
{
    char text[32], name[256];

    for (int i = 0; i < v->n; i++) {
        const struct tt_metrics_set *set = &v->set[i];
        char *line = tt_format("validate step: %2" PRId64 "  loss: %7.4f  set: %s  tokens: %s\n", v->step, set->loss,
                               set->name, tt_text_count(text, sizeof text, set->tokens));

        tt_console_add(line);
        tt_free(line);
        tt_shown(name, sizeof name, set->name, strlen(set->name));
        if (!m->json_stdout)
            (void)printf("%svalidate step: %2" PRId64 "  %sloss: %7.4f  %sset: %s  tokens: %s\n", paint(m, "\033[33m"),
                         v->step, paint(m, "\033[32m"), set->loss, paint(m, "\033[39m"), name, text);
    }
}

/* "loss/NAME" of each named set: fields of their own, so that readers of numbers find them. */
static json_t *validation_record(const struct tt_metrics_validation *v, double tps)
{
    json_t *record = json_pack("{s:s, s:I, s:o, s:I, s:o, s:o}", "type", "validate", "step", (json_int_t)v->step,
                               "loss", tt_json_number(v->loss), "ntokens", (json_int_t)v->tokens, "tps",
                               tt_json_number(tps), "time_s", tt_json_number(v->seconds));

    for (int i = 0; i < v->n; i++) {
        char *loss = tt_format("loss/%s", v->set[i].name);

        (void)json_object_set_new(record, loss, tt_json_number(v->set[i].loss));
        tt_free(loss);
    }
    return record;
}

void tt_metrics_validate(struct tt_metrics *m, const struct tt_metrics_validation *v)
{
    double resident = tt_metrics_resident_bytes();
    double tps = v->seconds > 0.0 ? (double)v->tokens / v->seconds / v->ranks : 0.0;
    char text[32], *line;

    tt_text_count(text, sizeof text, (int64_t)llround(tps));
    line = tt_format("validate step: %2" PRId64 "  loss: %7.4f  memory: %5.2fGiB(%.2f%%)  tps: %s\n", v->step, v->loss,
                     resident / 0x1p30, 100.0 * resident / m->memory_total_bytes, text);
    tt_console_add(line);
    tt_free(line);
    if (!m->json_stdout)
        (void)printf("%svalidate step: %2" PRId64 "  %sloss: %7.4f  %smemory: %5.2fGiB(%.2f%%)  %stps: %s%s\n",
                     paint(m, "\033[33m"), v->step, paint(m, "\033[32m"), v->loss, paint(m, "\033[38;2;54;234;195m"),
                     resident / 0x1p30, 100.0 * resident / m->memory_total_bytes, paint(m, "\033[34m"), text,
                     paint(m, "\033[39m"));
    print_sets(m, v);
    if (!m->json_stdout)
        (void)fflush(stdout);
    board_validate(m, v, tps, resident);
    tt_metrics_record(m, validation_record(v, tps));
}

/* The text on one line: it may have line breaks, which would look like other lines of the run. */
static void print_sample(const struct tt_metrics *m, const struct tt_metrics_sample *sample)
{
    char *head = tt_format("sample step: %2" PRId64 "  ", sample->step);
    struct tt_text line = {0};

    tt_text_add(&line, "%s", head);
    tt_text_add_replaced(&line, sample->text, strlen(sample->text), "\n", "\\n");
    tt_text_add(&line, "\n");
    tt_screen_log(line.text);
    if (!m->json_stdout) {
        tt_screen_show(stdout, line.text, m->columns, (int)strlen(head));
        (void)fflush(stdout);
    }
    tt_text_release(&line);
    tt_free(head);
}

void tt_metrics_sample(struct tt_metrics *m, const struct tt_metrics_sample *sample)
{
    print_sample(m, sample);
    if (m->board)
        tt_tensorboard_add_text(m->board, sample->step, "sample/text_summary", sample->text);
    tt_metrics_record(m, json_pack("{s:s, s:I, s:o, s:o, s:I, s:s, s:o}", "type", "sample", "step",
                                   (json_int_t)sample->step, "prompt",
                                   sample->prompt ? tt_json_string(sample->prompt) : json_null(), "text",
                                   tt_json_string(sample->text), "tokens", (json_int_t)sample->tokens, "finish",
                                   sample->finish, "time_s", tt_json_number(sample->seconds)));
}

void tt_metrics_checkpoint(struct tt_metrics *m, const struct tt_ckpt_saved *saved, bool async)
{
    tt_metrics_record(m, json_pack("{s:s, s:I, s:b, s:o, s:o, s:o, s:o, s:I, s:I}", "type", "checkpoint", "step",
                                   (json_int_t)saved->step, "async", async, "blocked_s",
                                   tt_json_number(saved->blocked_sec), "staged_s", tt_json_number(saved->stage_sec),
                                   "written_s", tt_json_number(saved->write_sec), "total_s",
                                   tt_json_number(saved->seconds), "bytes", (json_int_t)saved->bytes, "files",
                                   (json_int_t)saved->files));
}

void tt_metrics_checkpoint_failed(struct tt_metrics *m, int64_t step, const char *why)
{
    tt_metrics_record(
        m, json_pack("{s:s, s:I, s:o}", "type", "checkpoint", "step", (json_int_t)step, "error", tt_json_string(why)));
}

/* SPDX-License-Identifier: MIT
 *
 * Console lines and metrics.jsonl.
 */
#include "cli/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <sys/resource.h>
#include <unistd.h>

#include "core/base/file.h"
#include "core/base/limits.h"
#include "core/base/mem.h"
#include "core/base/text.h"

double tt_metrics_resident_bytes(void)
{
    struct rusage usage;

    return getrusage(RUSAGE_SELF, &usage) == 0 ? (double)usage.ru_maxrss * 1024.0 : 0.0;
}

double tt_metrics_machine_bytes(void)
{
    return fmin((double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE), tt_limits_read("").memory_bytes);
}

/* A terminal or a pipe that is gone does not end training; the file says why nothing more was printed. */
static void note_lost_output(struct tt_metrics *m)
{
    bool out = ferror(stdout), err = ferror(stderr);
    json_t *o;

    if (m->output_lost || (!out && !err))
        return;
    m->output_lost = true;
    o = json_object();
    (void)json_object_set_new(o, "type", json_string("note"));
    (void)json_object_set_new(
        o, "text", json_sprintf("standard %s can no longer be written; training continues", out ? "output" : "error"));
    tt_metrics_record(m, o);
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
        (void)printf("%s\n", text);
        (void)fflush(stdout);
    }
    tt_free(text);
    json_decref(record);
}

/* Of one rank; shares of the peak in percent, NaN when it is unknown. */
struct derived {
    double tps, tflops;
    double mfu;        /* torchtitan's, which counts masked positions too: above 100 for long sequences */
    double mfu_causal; /* 100 at most, also where the peak was measured too low */
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

/* Of the steps that are left, at the pace of the last ones; saves and validations come on top. */
static double eta_sec(const struct tt_step_report *r)
{
    return (double)(r->total_steps - r->step) * r->step_time;
}

static json_t *step_record(const struct tt_step_report *r, const struct derived *d)
{
    json_t *o = json_object();
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

    (void)json_object_set_new(o, "type", json_string("step"));
    (void)json_object_set_new(o, "step", json_integer(r->step));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        (void)json_object_set_new(o, numbers[i].name, tt_json_number(numbers[i].value));
    (void)json_object_set_new(o, "ntokens_seen", json_integer(r->ntokens_seen));
    (void)json_object_set_new(o, "comm_bytes", json_integer(r->comm_bytes));
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
}

static void board_validate(const struct tt_metrics *m, int64_t step, double loss, double tps, double resident)
{
    double gib = resident / 0x1p30, percent = percent_of(resident, m->memory_total_bytes);
    const struct tt_scalar scalars[] = {
        {"validation_metrics/loss", loss},
        {"validation_metrics/throughput(tps)", tps},
        {"validation_metrics/memory/max_active(GiB)", gib},
        {"validation_metrics/memory/max_active(%)", percent},
        {"validation_metrics/memory/max_reserved(GiB)", gib},
        {"validation_metrics/memory/max_reserved(%)", percent},
    };

    if (m->board)
        tt_tensorboard_add(m->board, step, scalars, (int)(sizeof scalars / sizeof scalars[0]));
}

/* torchtitan's colours, field by field; empty strings when the output is not a terminal. */
static const char *paint(const struct tt_metrics *m, const char *code)
{
    return m->color ? code : "";
}

void tt_metrics_step(struct tt_metrics *m, const struct tt_step_report *r)
{
    struct derived d = derive(m, r);
    char tps[32], tokens[32], eta[32];
    int width = snprintf(NULL, 0, "%" PRId64, r->total_steps);

    if (!m->json_stdout) {
        const char *end = paint(m, "\033[39m");

        (void)printf("%sstep: %*" PRId64 "/%" PRId64
                     "  %sloss: %8.5f  %sgrad_norm: %7.4f  %smemory: %5.2fGiB(%.2f%%)  %stps: %s  "
                     "%stflops: %.2f  %smfu: ",
                     paint(m, "\033[31m"), width < 2 ? 2 : width, r->step, r->total_steps, paint(m, "\033[32m"),
                     r->loss, paint(m, "\033[38;2;180;60;0m"), r->grad_norm, paint(m, "\033[38;2;54;234;195m"),
                     r->memory_bytes / 0x1p30, 100.0 * r->memory_bytes / m->memory_total_bytes, paint(m, "\033[34m"),
                     tt_text_count(tps, sizeof tps, (int64_t)llround(d.tps)), paint(m, "\033[36m"), d.tflops,
                     paint(m, "\033[35m"));
        if (isfinite(d.mfu_causal))
            (void)printf("%.2f%%%s", d.mfu_causal, end);
        else
            (void)printf("N/A%s", end);
        (void)printf("  lr: %.2e  tokens: %s", r->lr, tt_text_count(tokens, sizeof tokens, r->ntokens_seen));
        if (r->step < r->total_steps)
            (void)printf("  eta: %s", tt_text_duration(eta, sizeof eta, eta_sec(r)));
        (void)printf("\n");
        (void)fflush(stdout);
    }
    board_step(m, r, &d);
    tt_metrics_record(m, step_record(r, &d));
}

void tt_metrics_validate(struct tt_metrics *m, int64_t step, double loss, int64_t tokens, double seconds, int ranks)
{
    double resident = tt_metrics_resident_bytes(), tps = seconds > 0.0 ? (double)tokens / seconds / ranks : 0.0;
    json_t *o = json_object();
    char text[32];

    if (!m->json_stdout) {
        (void)printf("%svalidate step: %2" PRId64 "  %sloss: %7.4f  %smemory: %5.2fGiB(%.2f%%)  %stps: %s%s\n",
                     paint(m, "\033[33m"), step, paint(m, "\033[32m"), loss, paint(m, "\033[38;2;54;234;195m"),
                     resident / 0x1p30, 100.0 * resident / m->memory_total_bytes, paint(m, "\033[34m"),
                     tt_text_count(text, sizeof text, (int64_t)llround(tps)), paint(m, "\033[39m"));
        (void)fflush(stdout);
    }
    board_validate(m, step, loss, tps, resident);
    (void)json_object_set_new(o, "type", json_string("validate"));
    (void)json_object_set_new(o, "step", json_integer(step));
    (void)json_object_set_new(o, "loss", tt_json_number(loss));
    (void)json_object_set_new(o, "ntokens", json_integer(tokens));
    (void)json_object_set_new(o, "tps", tt_json_number(tps));
    (void)json_object_set_new(o, "time_s", tt_json_number(seconds));
    tt_metrics_record(m, o);
}

void tt_metrics_checkpoint(struct tt_metrics *m, const struct tt_ckpt_saved *saved, bool async)
{
    json_t *o = json_object();

    (void)json_object_set_new(o, "type", json_string("checkpoint"));
    (void)json_object_set_new(o, "step", json_integer(saved->step));
    (void)json_object_set_new(o, "async", json_boolean(async));
    (void)json_object_set_new(o, "blocked_s", tt_json_number(saved->blocked_sec));
    (void)json_object_set_new(o, "staged_s", tt_json_number(saved->stage_sec));
    (void)json_object_set_new(o, "written_s", tt_json_number(saved->write_sec));
    (void)json_object_set_new(o, "total_s", tt_json_number(saved->seconds));
    (void)json_object_set_new(o, "bytes", json_integer(saved->bytes));
    (void)json_object_set_new(o, "files", json_integer(saved->files));
    tt_metrics_record(m, o);
}

void tt_metrics_checkpoint_failed(struct tt_metrics *m, int64_t step, const char *why)
{
    json_t *o = json_object();

    (void)json_object_set_new(o, "type", json_string("checkpoint"));
    (void)json_object_set_new(o, "step", json_integer(step));
    (void)json_object_set_new(o, "error", json_string(why));
    tt_metrics_record(m, o);
}

/* SPDX-License-Identifier: MIT
 *
 * The rows of metrics.def in metrics.jsonl and for TensorBoard, and the other records of a run.
 */
#include "trainer/step/metrics.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"

const struct tt_metric_row tt_metric_rows[TT_METRICS] = {
/* torchtitan's colours */
#define GREEN     "\033[32m"
#define ORANGE    "\033[38;2;180;60;0m"
#define TURQUOISE "\033[38;2;54;234;195m"
#define BLUE      "\033[34m"
#define CYAN      "\033[36m"
#define MAGENTA   "\033[35m"
#define PLAIN     "\033[39m"
#define ALWAYS    .is_optional = false
#define INTEGER   .is_integer = true
#define SOMETIMES .is_optional = true
#define CHART     TT_WATCH_CHART
#define COMPARE   TT_WATCH_COMPARE
#define LINE(at, rank_, color_, how_, text_) \
    .place[TT_LIST_LINE] = (at), .rank = (rank_), .color = (color_), .how = TT_HOW_##how_, .text = (text_)
#define NO_LINE         .place[TT_LIST_LINE] = 0
#define BOARD(at, tag_) .place[TT_LIST_BOARD] = (at), .tag = (tag_)
#define NO_BOARD        .place[TT_LIST_BOARD] = 0
#define TT_METRIC(id, name_, presence, source, line, board, watch_, status) \
    [TT_METRIC_##id] = {.name = (name_), presence, line, board, .watch = (watch_), .place[TT_LIST_STATUS] = (status)},
#include "trainer/step/metrics.def"
#undef TT_METRIC
};

enum tt_metric tt_metric_at(enum tt_metric_list list, int place)
{
    enum tt_metric k = 0;

    while (k < TT_METRICS && tt_metric_rows[k].place[list] != place)
        k++;
    return k;
}

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

/* --- the imbalance of experts --- */

static const int64_t *of_block(const struct tt_loads *loads, int block)
{
    return loads->slots + (int64_t)block * loads->experts;
}

static int64_t sum_of(const struct tt_loads *loads, int block)
{
    int64_t sum = 0;

    for (int x = 0; loads->slots && x < loads->experts; x++)
        sum += of_block(loads, block)[x];
    return sum;
}

static bool has(const struct tt_loads *loads, int block)
{
    return sum_of(loads, block) > 0;
}

static double imbalance_of(const struct tt_loads *loads, int block)
{
    const int64_t *slots = of_block(loads, block);
    int64_t most = 0;

    for (int x = 0; x < loads->experts; x++)
        most = slots[x] > most ? slots[x] : most;
    return (double)most * (double)loads->experts / (double)sum_of(loads, block);
}

/* The block with the greatest imbalance, of several the first; -1: no block has experts. */
static int worst_of(const struct tt_loads *loads)
{
    double most = 0.0;
    int worst = -1;

    for (int block = 0; block < loads->blocks; block++) {
        double imbalance = has(loads, block) ? imbalance_of(loads, block) : 0.0;

        if (imbalance > most) {
            most = imbalance;
            worst = block;
        }
    }
    return worst;
}

double tt_loads_imbalance(const struct tt_loads *loads)
{
    int worst = worst_of(loads);

    return worst < 0 ? (double)NAN : imbalance_of(loads, worst);
}

static json_t *list_of(const struct tt_loads *loads, int block)
{
    json_t *list = json_array();

    for (int x = 0; x < loads->experts; x++)
        (void)json_array_append_new(list, json_integer((json_int_t)of_block(loads, block)[x]));
    return list;
}

/* Adds what follows the greatest imbalance: imbalance_layer, imbalances, and expert_loads with `all`. Nothing if no
 * block has experts. */
static void record_loads(const struct tt_loads *loads, json_t *record)
{
    int worst = worst_of(loads);
    json_t *imbalances, *all;

    if (worst < 0)
        return;
    imbalances = json_object();
    all = json_object();
    for (int block = 0; block < loads->blocks; block++) {
        char layer[16];

        if (!has(loads, block))
            continue;
        (void)snprintf(layer, sizeof layer, "%d", block);
        (void)json_object_set_new(imbalances, layer, tt_json_number(imbalance_of(loads, block)));
        (void)json_object_set_new(all, layer, list_of(loads, block));
    }
    (void)json_object_set_new(record, "imbalance_layer", json_integer(worst));
    (void)json_object_set_new(record, "imbalances", imbalances);
    if (loads->all)
        (void)json_object_set(record, "expert_loads", all);
    json_decref(all);
}

static void board_loads(const struct tt_loads *loads, struct tt_tensorboard *board, int64_t step)
{
    for (int block = 0; block < loads->blocks; block++) {
        char *tag = tt_format("experts/imbalance/layers.%d", block);

        if (has(loads, block))
            tt_tensorboard_add(board, step, &(struct tt_scalar){tag, imbalance_of(loads, block)}, 1);
        tt_free(tag);
    }
}

/* --- records --- */

/* The loss of the terminal or pipe does not end training; metrics.jsonl notes why nothing more was printed. */
static void note_lost_output(struct tt_metrics *m)
{
    const char *lost = m->output_lost ? NULL : m->events->lost(m->events->arg);

    if (!lost)
        return;
    m->output_lost = true;
    tt_metrics_record(m, json_pack("{s:s, s:s++}", "type", "note", "text", "standard ", lost,
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
    metrics->events->record(metrics->events->arg, text);
    tt_free(text);
    json_decref(record);
}

/* --- steps --- */

static json_t *step_record(const struct tt_step_report *r)
{
    json_t *o = json_pack("{s:s, s:I}", "type", "step", "step", (json_int_t)r->step);

    for (enum tt_metric k = 0; k < TT_METRICS; k++) {
        const struct tt_metric_row *row = &tt_metric_rows[k];
        double value = r->value[k];

        if (row->name && (!row->is_optional || isfinite(value)))
            (void)json_object_set_new(o, row->name,
                                      row->is_integer ? json_integer((json_int_t)value) : tt_json_number(value));
        if (k == TT_METRIC_IMBALANCE)
            record_loads(&r->loads, o);
    }
    return o;
}

/* All numbers that every run has are one event, each of the others is one of its own. */
static void board_step(struct tt_tensorboard *board, const struct tt_step_report *r)
{
    struct tt_scalar scalars[TT_METRICS];
    enum tt_metric k;
    int n = 0;

    for (int place = 1; (k = tt_metric_at(TT_LIST_BOARD, place)) < TT_METRICS; place++)
        if (!tt_metric_rows[k].is_optional)
            scalars[n++] = (struct tt_scalar){tt_metric_rows[k].tag, r->value[k]};
    tt_tensorboard_add(board, r->step, scalars, n);
    for (int place = 1; (k = tt_metric_at(TT_LIST_BOARD, place)) < TT_METRICS; place++)
        if (tt_metric_rows[k].is_optional && isfinite(r->value[k]))
            tt_tensorboard_add(board, r->step, &(struct tt_scalar){tt_metric_rows[k].tag, r->value[k]}, 1);
    board_loads(&r->loads, board, r->step);
}

void tt_metrics_step(struct tt_metrics *m, const struct tt_step_report *r)
{
    m->events->step(m->events->arg, r);
    if (m->board)
        board_step(m->board, r);
    tt_metrics_record(m, step_record(r));
}

/* --- validations, texts, checkpoints --- */

static void board_validate(struct tt_tensorboard *board, const struct tt_metrics_validation *v)
{
    const struct tt_scalar scalars[] = {
        {"validation_metrics/loss", v->loss},
        {"validation_metrics/throughput(tps)", v->tps},
        {"validation_metrics/memory/max_active(GiB)", v->gib},
        {"validation_metrics/memory/max_active(%)", v->gib_percent},
        {"validation_metrics/memory/max_reserved(GiB)", v->gib},
        {"validation_metrics/memory/max_reserved(%)", v->gib_percent},
    };

    tt_tensorboard_add(board, v->step, scalars, (int)(sizeof scalars / sizeof scalars[0]));
    for (int i = 0; i < v->n; i++) {
        char *tag = tt_format("validation_metrics/%s/loss", v->set[i].name);

        tt_tensorboard_add(board, v->step, &(struct tt_scalar){tag, v->set[i].loss}, 1);
        tt_free(tag);
    }
}

/* "loss/NAME" of each named set: fields of their own, so that readers of numbers find them. */
static json_t *validation_record(const struct tt_metrics_validation *v)
{
    json_t *record = json_pack("{s:s, s:I, s:o, s:I, s:o, s:o}", "type", "validate", "step", (json_int_t)v->step,
                               "loss", tt_json_number(v->loss), "ntokens", (json_int_t)v->tokens, "tps",
                               tt_json_number(v->tps), "time_s", tt_json_number(v->seconds));

    for (int i = 0; i < v->n; i++) {
        char *loss = tt_format("loss/%s", v->set[i].name);

        (void)json_object_set_new(record, loss, tt_json_number(v->set[i].loss));
        tt_free(loss);
    }
    return record;
}

void tt_metrics_validate(struct tt_metrics *m, const struct tt_metrics_validation *v)
{
    m->events->validated(m->events->arg, v);
    if (m->board)
        board_validate(m->board, v);
    tt_metrics_record(m, validation_record(v));
}

void tt_metrics_sample(struct tt_metrics *m, const struct tt_metrics_sample *sample)
{
    m->events->sampled(m->events->arg, sample);
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

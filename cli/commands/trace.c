/* SPDX-License-Identifier: MIT
 *
 * titan trace summary DIR: how a traced step spent its time.
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/run/screen.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/math/stats.h"
#include "core/os/file.h"
#include "core/program/instr/instr.h"

/*
 * How a traced step spent its time, from the files of tt_trace_write. Times are in seconds, and means over the ranks
 * with a file.
 */

/* All events with one name: an op ("linear"), or a collective of some units ("reduce layers.0"). */
struct row {
    char *name;
    char *part;    /* of an op: its part of the model (gemm, attention, …) */
    int count;     /* how often one rank ran it */
    int64_t bytes; /* of a collective: bytes that one rank sends in the step */
    double sec;    /* of an op: seconds of computing; of a collective: seconds under way */
    double exposed_sec;
};

struct rows {
    struct row *row;
    int n, cap;
};

struct rank_times {
    int rank;
    double step_sec, compute_sec, exposed_sec;
};

struct summary {
    char *folder; /* of the iteration */
    int64_t step;
    int world, n_ranks; /* ranks of the job; ranks with a file */
    int cap_ranks;
    struct rank_times *ranks;
    struct rows ops, collectives; /* ops are sorted by sec, collectives by exposed_sec, largest first */
    struct tt_split split;
    double step_sec; /* the step time of the slowest rank */
    int slowest;     /* index into ranks: the rank that computed longest */
    double median_compute_sec;
    char *hint;
};

/* --- the summary --- */

static void release_rows(struct rows *rows)
{
    for (int i = 0; i < rows->n; i++) {
        tt_free(rows->row[i].name);
        tt_free(rows->row[i].part);
    }
    tt_free(rows->row);
}

static void release_summary(struct summary *s)
{
    release_rows(&s->ops);
    release_rows(&s->collectives);
    tt_free(s->ranks);
    tt_free(s->folder);
    tt_free(s->hint);
    *s = (struct summary){0};
}

/* --- choosing a folder --- */

/* The number between `prefix` and `suffix` in a name; -1 if the name has another form. */
static int64_t number_in(const char *name, const char *prefix, const char *suffix)
{
    size_t n = strlen(prefix);
    char *end;
    int64_t number;

    if (strncmp(name, prefix, n) != 0 || name[n] < '0' || name[n] > '9')
        return -1;
    number = strtoll(name + n, &end, 10);
    return strcmp(end, suffix) == 0 ? number : -1;
}

/* The requested or the newest iteration_N in a folder; NULL if there is none. */
static int find_iteration(const char *folder, int64_t wanted, char **ret_path)
{
    char **names = NULL;
    int n = 0, rc = tt_folder_list_found(folder, &names, &n);
    int64_t best = -1;

    for (int i = 0; i < n; i++) {
        int64_t number = number_in(names[i], "iteration_", "");

        if (number > best && (wanted == 0 || number == wanted))
            best = number;
    }
    tt_names_free(names, n);
    *ret_path = best >= 0 ? tt_format("%s/iteration_%" PRId64, folder, best) : NULL;
    return rc;
}

static int find_folder(const char *path, int64_t iteration, char **ret_folder)
{
    char *in_run = tt_format("%s/profiling/traces", path);
    char *folder = NULL;
    bool is_folder = false, is_one = false;
    char **names = NULL;
    int n = 0, rc = 0;

    TT_TRY(tt_path_is_folder(path, &is_folder));
    if (!is_folder) {
        rc = tt_fail(TT_EDATA, "no folder '%s'", path);
        goto out;
    }
    if (iteration == 0)
        TT_TRY(tt_folder_list(path, &names, &n));
    for (int i = 0; i < n; i++)
        is_one = is_one || number_in(names[i], "rank", "_trace.json") >= 0;
    if (is_one)
        folder = tt_strdup(path);
    else
        TT_TRY(find_iteration(path, iteration, &folder));
    if (!folder)
        TT_TRY(find_iteration(in_run, iteration, &folder));
    if (!folder && iteration)
        rc = tt_fail(TT_EDATA, "'%s' has no trace of step %" PRId64, path, iteration);
    else if (!folder)
        rc = tt_fail(TT_EDATA,
                     "'%s' has no traces; name a run, its folder of traces, or one iteration_N\n"
                     "help: train with --profiling.enable_profiling",
                     path);
    *ret_folder = folder;
out:
    tt_names_free(names, n);
    tt_free(in_run);
    return rc;
}

/* --- the files --- */

static struct row *row_of(struct rows *rows, const char *name, const char *part)
{
    for (int i = 0; i < rows->n; i++)
        if (strcmp(rows->row[i].name, name) == 0)
            return &rows->row[i];
    TT_PUSH(rows->row, rows->n, rows->cap) =
        (struct row){.name = tt_strdup(name), .part = part ? tt_strdup(part) : NULL};
    return &rows->row[rows->n - 1];
}

static void add_event(struct summary *s, struct rank_times *rank, const json_t *event)
{
    const json_t *args = json_object_get(event, "args");
    const char *category = tt_cli_text(event, "cat"), *part = tt_cli_text(args, "part");
    double sec = json_number_value(json_object_get(event, "dur")) * 1e-6;
    char *name = tt_format("%s %s", tt_cli_text(args, "collective"), tt_cli_text(args, "units"));
    struct row *row;

    if (strcmp(category, "compute") == 0 && strcmp(part, tt_split_name(TT_SPLIT_COMMUNICATION)) != 0 &&
        strcmp(part, tt_split_name(TT_SPLIT_IDLE)) != 0) {
        row = row_of(&s->ops, tt_cli_text(args, "op"), part);
        row->count++;
        row->sec += sec;
        rank->compute_sec += sec;
    } else if (strcmp(category, "wait") == 0) {
        row_of(&s->collectives, name, NULL)->exposed_sec += sec;
    } else if (strcmp(category, "communication") == 0) {
        row = row_of(&s->collectives, name, NULL);
        row->count++;
        row->sec += sec;
        row->bytes += tt_cli_int(args, "bytes");
    }
    tt_free(name);
}

static int read_about(struct summary *s, const char *path, const json_t *about, struct rank_times *rank)
{
    const json_t *split = json_object_get(about, "split_s");
    int64_t world, number;
    double sec;
    int rc = 0;

    if (strcmp(tt_cli_text(about, "type"), "trace") != 0 || !json_is_object(split))
        return tt_fail(TT_EDATA, "%s is not a titan trace", path);
    TT_TRY(tt_json_get_int(about, "step", path, &s->step));
    TT_TRY(tt_json_get_int(about, "world", path, &world));
    TT_TRY(tt_json_get_int(about, "rank", path, &number));
    TT_TRY(tt_json_get_real(about, "step_time_s", path, &rank->step_sec));
    for (int p = 0; p < TT_SPLIT_PARTS; p++) {
        TT_TRY(tt_json_get_real(split, tt_split_name((enum tt_split_part)p), path, &sec));
        s->split.sec[p] += sec;
        if (p == TT_SPLIT_COMMUNICATION)
            rank->exposed_sec = sec;
    }
    s->world = (int)world;
    rank->rank = (int)number;
out:
    return rc;
}

static int read_file(struct summary *s, const char *path)
{
    struct rank_times rank = {0};
    json_t *file = NULL, *events, *event;
    size_t i;
    int rc = 0;

    TT_TRY(tt_json_load(path, &file));
    TT_TRY(read_about(s, path, json_object_get(file, "otherData"), &rank));
    events = json_object_get(file, "traceEvents");
    json_array_foreach(events, i, event) add_event(s, &rank, event);
    TT_PUSH(s->ranks, s->n_ranks, s->cap_ranks) = rank;
out:
    json_decref(file);
    return rc;
}

static int read_files(struct summary *s)
{
    char **names = NULL;
    int n = 0, rc = 0;

    TT_TRY(tt_folder_list(s->folder, &names, &n));
    for (int i = 0; i < n && rc == 0; i++) {
        char *path = tt_format("%s/%s", s->folder, names[i]);

        if (number_in(names[i], "rank", "_trace.json") >= 0)
            rc = read_file(s, path);
        tt_free(path);
    }
    if (rc == 0 && s->n_ranks == 0)
        rc = tt_fail(TT_EDATA, "'%s' has no rankR_trace.json", s->folder);
out:
    tt_names_free(names, n);
    return rc;
}

/* --- the conclusion --- */

static int by_time(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    double more = y->exposed_sec != x->exposed_sec ? y->exposed_sec - x->exposed_sec : y->sec - x->sec;

    return more > 0.0 ? 1 : more < 0.0 ? -1 : strcmp(x->name, y->name);
}

/* Turns sums into means over the ranks, and sorts. */
static void conclude(struct rows *rows, int n_ranks)
{
    for (int i = 0; i < rows->n; i++) {
        rows->row[i].sec /= n_ranks;
        rows->row[i].exposed_sec /= n_ranks;
        rows->row[i].count = (rows->row[i].count + n_ranks - 1) / n_ranks;
        rows->row[i].bytes /= n_ranks;
    }
    if (rows->n)
        qsort(rows->row, (size_t)rows->n, sizeof *rows->row, by_time);
}

static int by_rank(const void *a, const void *b)
{
    return ((const struct rank_times *)a)->rank - ((const struct rank_times *)b)->rank;
}

static void find_slowest(struct summary *s)
{
    int n = s->n_ranks;
    double *sec = tt_calloc((size_t)n, sizeof *sec);

    qsort(s->ranks, (size_t)n, sizeof *s->ranks, by_rank);
    for (int i = 0; i < n; i++) {
        sec[i] = s->ranks[i].compute_sec;
        if (s->ranks[i].compute_sec > s->ranks[s->slowest].compute_sec)
            s->slowest = i;
        if (s->ranks[i].step_sec > s->step_sec)
            s->step_sec = s->ranks[i].step_sec;
    }
    s->median_compute_sec = tt_median(sec, n);
    tt_free(sec);
}

/* The exposed time of the collectives whose name begins with `collective` ("": all of them). */
static double exposed_of(const struct summary *s, const char *collective)
{
    double sec = 0.0;

    for (int i = 0; i < s->collectives.n; i++)
        if (tt_text_begins(s->collectives.row[i].name, collective))
            sec += s->collectives.row[i].exposed_sec;
    return sec;
}

/* The cause of most of the waiting, and a remedy. */
static const char *advice_on_waits(const struct summary *s)
{
    double all = exposed_of(s, "");

    if (2.0 * (exposed_of(s, "receive") + exposed_of(s, "send")) >= all)
        return "between the stages of the pipeline: try more microbatches in a run (training.local_batch_size / "
               "parallelism.pipeline_parallel_microbatch_size), or another parallelism.pipeline_parallel_schedule";
    if (2.0 * (exposed_of(s, "gather rows") + exposed_of(s, "sum") + exposed_of(s, "swap blocks")) >= all)
        return "between ranks that share layers: keep them on one host, or lower parallelism.tensor_parallel_degree";
    if (2.0 * exposed_of(s, "unshard") >= all)
        return "gathering: try parallelism.fsdp_engine=planned, fsdp_prefetch=2, or fsdp_reshard_after_forward=never";
    return "reducing gradients: try training.gradient_sync=every_run, or a larger global batch";
}

/* Where the user should look first: the largest avoidable cost. */
static char *make_hint(const struct summary *s)
{
    static const double much = 10.0; /* percent */
    double percent[TT_SPLIT_PARTS], slowest = s->ranks[s->slowest].compute_sec;

    tt_split_percent(&s->split, percent);
    if (s->n_ranks < s->world)
        return tt_format("only %d of %d ranks have a trace here: is the folder shared by all hosts?", s->n_ranks,
                         s->world);
    if (percent[TT_SPLIT_IDLE] > much)
        return tt_format("%.0f%% of the step is outside of the program: loading the batch, reporting; is the token "
                         "cache on a slow disk?",
                         percent[TT_SPLIT_IDLE]);
    if (s->world > 1 && slowest > 1.1 * s->median_compute_sec)
        return tt_format("rank %d computes %.0f%% longer than the median and all others wait for it: do ranks share "
                         "its cores? `titan launch` binds each to its own",
                         s->ranks[s->slowest].rank, 100.0 * (slowest / s->median_compute_sec - 1.0));
    if (percent[TT_SPLIT_COMMUNICATION] > much)
        return tt_format("%.0f%% of the step waits for communication, most of it %s", percent[TT_SPLIT_COMMUNICATION],
                         advice_on_waits(s));
    if (percent[TT_SPLIT_GEMM] >= 50.0)
        return tt_format("%.0f%% of the step is matrix products: `titan bench` shows how close they are to the peak",
                         percent[TT_SPLIT_GEMM]);
    return tt_format(
        "matrix products are only %.0f%% of the step; %s is the largest op: small models and long sequences "
        "look like this",
        percent[TT_SPLIT_GEMM], s->ops.n ? s->ops.row[0].name : "none");
}

/*
 * Reads the traces of one iteration.
 *   path       an iteration's folder, a folder of iterations, or a run's folder
 *   iteration  its number; 0: the newest
 * Errors: TT_EDATA for a folder without traces, or a file that is not a trace. Release even after an error.
 */
static int read_summary(const char *path, int64_t iteration, struct summary *s)
{
    int rc = 0;

    TT_TRY(find_folder(path, iteration, &s->folder));
    TT_TRY(read_files(s));
    conclude(&s->ops, s->n_ranks);
    conclude(&s->collectives, s->n_ranks);
    for (int p = 0; p < TT_SPLIT_PARTS; p++)
        s->split.sec[p] /= s->n_ranks;
    find_slowest(s);
    s->hint = make_hint(s);
out:
    return rc;
}

/* --- the command --- */

static const struct tt_option options[] = {
    {"iteration", NULL, "N", "the step to look at (default: the newest that has a trace)"},
    {"json", NULL, NULL, "print JSON"},
    TT_OPTION_HELP,
    {0},
};

static const char usage[] =
    "usage: titan trace summary DIR [--iteration N] [--json]\n\n"
    "Says where the time of a traced step went. DIR is a run's folder, its folder of traces or one\n"
    "iteration_N. `titan train --profiling.enable_profiling` writes traces; view single ones with\n"
    "chrome://tracing or ui.perfetto.dev.\n\n";

/* --- text --- */

static void print_split(const struct summary *s)
{
    double percent[TT_SPLIT_PARTS];

    tt_split_percent(&s->split, percent);
    tt_print("\n%-14s %10s %7s\n", "part", "time", "share");
    for (int p = 0; p < TT_SPLIT_PARTS; p++)
        tt_print("%-14s %7.2f ms %6.1f%%\n", tt_split_name((enum tt_split_part)p), 1e3 * s->split.sec[p], percent[p]);
}

static void print_collectives(const struct summary *s)
{
    enum { SHOWN = 12 };
    char bytes[32];

    if (s->collectives.n == 0)
        return;
    tt_print("\n%-36s %6s %12s %12s %12s\n", "collective", "count", "sent", "under way", "exposed");
    for (int i = 0; i < s->collectives.n && i < SHOWN; i++) {
        const struct row *r = &s->collectives.row[i];

        tt_print("%-36s %6d %12s %9.2f ms %9.2f ms\n", r->name, r->count,
                 tt_text_bytes(bytes, sizeof bytes, (double)r->bytes), 1e3 * r->sec, 1e3 * r->exposed_sec);
    }
    if (s->collectives.n > SHOWN)
        tt_print("and %d more\n", s->collectives.n - SHOWN);
}

static void print_summary(const struct summary *s)
{
    const struct rank_times *slowest = &s->ranks[s->slowest];

    tt_print("step %" PRId64 " of %d rank%s: %.2f ms (%s)\n", s->step, s->n_ranks, s->n_ranks == 1 ? "" : "s",
             1e3 * s->step_sec, s->folder);
    print_split(s);
    tt_print("\n%-22s %-14s %6s %10s %7s\n", "op", "part", "count", "time", "share");
    for (int i = 0; i < s->ops.n; i++) {
        const struct row *op = &s->ops.row[i];

        tt_print("%-22s %-14s %6d %7.2f ms %6.1f%%\n", op->name, op->part, op->count, 1e3 * op->sec,
                 100.0 * op->sec / s->step_sec);
    }
    print_collectives(s);
    if (s->n_ranks > 1)
        tt_print("\nslowest: rank %d computes %.2f ms (median %.2f ms) and waits %.2f ms\n", slowest->rank,
                 1e3 * slowest->compute_sec, 1e3 * s->median_compute_sec, 1e3 * slowest->exposed_sec);
    tt_print("\nhint: %s\n", s->hint);
}

/* --- JSON --- */

static json_t *summary_json(const struct summary *s)
{
    const struct rank_times *slowest = &s->ranks[s->slowest];
    json_t *ops = json_array(), *collectives = json_array(), *split = json_object();
    double percent[TT_SPLIT_PARTS];

    tt_split_percent(&s->split, percent);
    for (int p = 0; p < TT_SPLIT_PARTS; p++)
        (void)json_object_set_new(split, tt_split_name((enum tt_split_part)p), json_real(percent[p]));
    for (int i = 0; i < s->ops.n; i++) {
        const struct row *op = &s->ops.row[i];

        (void)json_array_append_new(ops,
                                    json_pack("{s:s, s:s, s:i, s:f, s:f}", "op", op->name, "part", op->part, "count",
                                              op->count, "time_s", op->sec, "percent", 100.0 * op->sec / s->step_sec));
    }
    for (int i = 0; i < s->collectives.n; i++) {
        const struct row *r = &s->collectives.row[i];

        (void)json_array_append_new(collectives, json_pack("{s:s, s:i, s:I, s:f, s:f}", "collective", r->name, "count",
                                                           r->count, "bytes", (json_int_t)r->bytes, "time_s", r->sec,
                                                           "exposed_s", r->exposed_sec));
    }
    return json_pack("{s:s, s:i, s:o, s:I, s:i, s:i, s:f, s:o, s:o, s:o, s:{s:i, s:f, s:f, s:f}, s:s}", "type",
                     "trace_summary", "schema", 1, "folder", tt_json_string(s->folder), "step", (json_int_t)s->step,
                     "ranks", s->n_ranks, "world", s->world, "step_time_s", s->step_sec, "split", split, "compute", ops,
                     "communication", collectives, "slowest_rank", "rank", slowest->rank, "compute_s",
                     slowest->compute_sec, "median_compute_s", s->median_compute_sec, "exposed_s", slowest->exposed_sec,
                     "hint", s->hint);
}

/* --- the command --- */

static int summarise(const struct tt_args *args)
{
    struct summary summary = {0};
    int64_t iteration = 0;
    int rc = 0;

    if (args->n_words < 1)
        return tt_fail(TT_EUSAGE, "'titan trace' needs to know what to do\nhelp: titan trace summary DIR");
    if (strcmp(args->word[0], "summary") != 0)
        return tt_fail(TT_EUSAGE, "unknown command 'trace %s'\nhelp: titan trace summary %s", args->word[0],
                       args->n_words == 1 ? args->word[0] : "DIR");
    if (args->n_words != 2)
        return tt_fail(TT_EUSAGE, "'titan trace summary' takes one folder\nhelp: titan trace summary DIR");
    TT_TRY(tt_cli_count("trace", args, "iteration", 1, INT64_MAX, &iteration));
    TT_TRY(read_summary(args->word[1], iteration, &summary));
    if (tt_args_has(args, "json"))
        rc = tt_cli_print_json(summary_json(&summary));
    else
        print_summary(&summary);
out:
    release_summary(&summary);
    return rc;
}

const struct tt_command tt_command_trace = {
    .name = "trace",
    .arguments = "summary DIR",
    .summary = "where the time of a traced step went",
    .usage = usage,
    .options = options,
    .run = summarise,
};

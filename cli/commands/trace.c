/* SPDX-License-Identifier: MIT
 *
 * titan trace summary DIR: where the time of a traced step went.
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
#include "core/os/file.h"
#include "core/program/instr/instr.h"

/*
 * Where the time of a traced step went, from the files of tt_trace_write. Times are means over the ranks that have a
 * file, in seconds.
 */

/* All events with one name: an op ("linear"), or a collective of some units ("reduce layers.0"). */
struct row {
    char *name;
    char *part;    /* of an op: gemm, attention, … */
    int count;     /* of one rank */
    int64_t bytes; /* of collectives: that one rank sends in the step */
    double sec;    /* computing; of collectives: under way */
    double exposed_sec;
};

struct rank_times {
    int rank;
    double step_sec, compute_sec, exposed_sec;
};

struct summary {
    char *folder; /* of the iteration */
    int64_t step;
    int world, n_ranks; /* ranks of the job, and ranks that have a file */
    struct rank_times *ranks;
    struct row *ops, *collectives; /* the largest first: by sec, by exposed_sec */
    int n_ops, n_collectives;
    struct tt_split split;
    double step_sec; /* of the slowest */
    int slowest;     /* index into ranks: the one that computed longest */
    double median_compute_sec;
    char *hint;
};

/* --- the summary --- */

static void release_rows(struct row *rows, int n)
{
    for (int i = 0; i < n; i++) {
        tt_free(rows[i].name);
        tt_free(rows[i].part);
    }
    tt_free(rows);
}

static void release_summary(struct summary *s)
{
    release_rows(s->ops, s->n_ops);
    release_rows(s->collectives, s->n_collectives);
    tt_free(s->ranks);
    tt_free(s->folder);
    tt_free(s->hint);
    *s = (struct summary){0};
}

/* --- which folder --- */

/* The number between `prefix` and `suffix` in a name; -1 if the name is of another kind. */
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

static int is_iteration(const char *folder, bool *ret_is)
{
    char **names = NULL;
    int n = 0, rc = tt_folder_list(folder, &names, &n);

    for (int i = 0; i < n; i++)
        *ret_is = *ret_is || number_in(names[i], "rank", "_trace.json") >= 0;
    tt_names_free(names, n);
    return rc;
}

/* The wanted or the newest iteration_N in a folder; NULL if there is none. */
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
    int rc = 0;

    TT_TRY(tt_path_is_folder(path, &is_folder));
    if (!is_folder) {
        rc = tt_fail(TT_EDATA, "no folder '%s'", path);
        goto out;
    }
    if (iteration == 0)
        TT_TRY(is_iteration(path, &is_one));
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
                     "'%s' has no traces; wanted a run, its folder of traces, or one iteration_N\nhelp: train with "
                     "--profiling.enable_profiling",
                     path);
    *ret_folder = folder;
out:
    tt_free(in_run);
    return rc;
}

/* --- the files --- */

struct rows {
    struct row *row;
    int n, cap;
};

struct reader {
    struct summary *s;
    struct rows ops, collectives;
    int cap_ranks;
    const char *path; /* of the file being read */
};

static struct row *row_of(struct rows *rows, const char *name, const char *part)
{
    for (int i = 0; i < rows->n; i++)
        if (strcmp(rows->row[i].name, name) == 0)
            return &rows->row[i];
    TT_PUSH(rows->row, rows->n, rows->cap) =
        (struct row){.name = tt_strdup(name), .part = part ? tt_strdup(part) : NULL};
    return &rows->row[rows->n - 1];
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    return text ? text : "?";
}

static bool is_computing(const char *part)
{
    return strcmp(part, tt_split_name(TT_SPLIT_COMMUNICATION)) != 0 && strcmp(part, tt_split_name(TT_SPLIT_IDLE)) != 0;
}

static void add_event(struct reader *r, struct rank_times *rank, const json_t *event)
{
    const json_t *args = json_object_get(event, "args");
    const char *category = text_of(event, "cat"), *part = text_of(args, "part");
    double sec = json_number_value(json_object_get(event, "dur")) * 1e-6;
    char *name = tt_format("%s %s", text_of(args, "collective"), text_of(args, "units"));
    struct row *row;

    if (strcmp(category, "compute") == 0 && is_computing(part)) {
        row = row_of(&r->ops, text_of(args, "op"), part);
        row->count++;
        row->sec += sec;
        rank->compute_sec += sec;
    } else if (strcmp(category, "wait") == 0) {
        row_of(&r->collectives, name, NULL)->exposed_sec += sec;
    } else if (strcmp(category, "communication") == 0) {
        row = row_of(&r->collectives, name, NULL);
        row->count++;
        row->sec += sec;
        row->bytes += json_integer_value(json_object_get(args, "bytes"));
    }
    tt_free(name);
}

static int read_about(struct reader *r, const json_t *about, struct rank_times *rank)
{
    const json_t *split = json_object_get(about, "split_s");
    int64_t step, world, number;
    double sec;
    int rc = 0;

    if (strcmp(text_of(about, "type"), "trace") != 0 || !json_is_object(split))
        return tt_fail(TT_EDATA, "%s is not a titan trace", r->path);
    TT_TRY(tt_json_get_int(about, "step", r->path, &step));
    TT_TRY(tt_json_get_int(about, "world", r->path, &world));
    TT_TRY(tt_json_get_int(about, "rank", r->path, &number));
    TT_TRY(tt_json_get_real(about, "step_time_s", r->path, &rank->step_sec));
    for (int p = 0; p < TT_SPLIT_PARTS; p++) {
        TT_TRY(tt_json_get_real(split, tt_split_name((enum tt_split_part)p), r->path, &sec));
        r->s->split.sec[p] += sec;
        if (p == TT_SPLIT_COMMUNICATION)
            rank->exposed_sec = sec;
    }
    r->s->step = step;
    r->s->world = (int)world;
    rank->rank = (int)number;
out:
    return rc;
}

static int read_file(struct reader *r)
{
    struct rank_times rank = {0};
    json_t *file = NULL, *events, *event;
    size_t i;
    int rc = 0;

    TT_TRY(tt_json_load(r->path, &file));
    TT_TRY(read_about(r, json_object_get(file, "otherData"), &rank));
    events = json_object_get(file, "traceEvents");
    json_array_foreach(events, i, event) add_event(r, &rank, event);
    TT_PUSH(r->s->ranks, r->s->n_ranks, r->cap_ranks) = rank;
out:
    json_decref(file);
    return rc;
}

static int read_files(struct reader *r)
{
    char **names = NULL;
    int n = 0, rc = 0;

    TT_TRY(tt_folder_list(r->s->folder, &names, &n));
    for (int i = 0; i < n && rc == 0; i++) {
        char *path = tt_format("%s/%s", r->s->folder, names[i]);

        r->path = path;
        if (number_in(names[i], "rank", "_trace.json") >= 0)
            rc = read_file(r);
        tt_free(path);
    }
    if (rc == 0 && r->s->n_ranks == 0)
        rc = tt_fail(TT_EDATA, "'%s' has no rankR_trace.json", r->s->folder);
out:
    tt_names_free(names, n);
    return rc;
}

/* --- the conclusion --- */

static void mean_over_ranks(struct rows *rows, int n_ranks)
{
    for (int i = 0; i < rows->n; i++) {
        rows->row[i].sec /= n_ranks;
        rows->row[i].exposed_sec /= n_ranks;
        rows->row[i].count = (rows->row[i].count + n_ranks - 1) / n_ranks;
        rows->row[i].bytes /= n_ranks;
    }
}

static int by_time(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    double more = y->exposed_sec != x->exposed_sec ? y->exposed_sec - x->exposed_sec : y->sec - x->sec;

    return more > 0.0 ? 1 : more < 0.0 ? -1 : strcmp(x->name, y->name);
}

static int by_compute(const void *a, const void *b)
{
    const struct rank_times *x = a, *y = b;

    return (x->compute_sec > y->compute_sec) - (x->compute_sec < y->compute_sec);
}

static int by_rank(const void *a, const void *b)
{
    return ((const struct rank_times *)a)->rank - ((const struct rank_times *)b)->rank;
}

static void find_slowest(struct summary *s)
{
    int n = s->n_ranks;

    qsort(s->ranks, (size_t)n, sizeof *s->ranks, by_compute);
    s->median_compute_sec = 0.5 * (s->ranks[(n - 1) / 2].compute_sec + s->ranks[n / 2].compute_sec);
    qsort(s->ranks, (size_t)n, sizeof *s->ranks, by_rank);
    for (int i = 0; i < n; i++) {
        if (s->ranks[i].compute_sec > s->ranks[s->slowest].compute_sec)
            s->slowest = i;
        if (s->ranks[i].step_sec > s->step_sec)
            s->step_sec = s->ranks[i].step_sec;
    }
}

/* The exposed time of collectives whose name begins with `collective`; "": of all. */
static double exposed_of(const struct summary *s, const char *collective)
{
    double sec = 0.0;

    for (int i = 0; i < s->n_collectives; i++)
        if (strncmp(s->collectives[i].name, collective, strlen(collective)) == 0)
            sec += s->collectives[i].exposed_sec;
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

/* The first thing to look at: the largest cost that can be changed. */
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
        return tt_format("%.0f%% of the step is matrix products: `titan bench` says how near they are to the peak",
                         percent[TT_SPLIT_GEMM]);
    return tt_format(
        "matrix products are only %.0f%% of the step; %s is the largest op: small models and long sequences "
        "look like this",
        percent[TT_SPLIT_GEMM], s->n_ops ? s->ops[0].name : "none");
}

/*
 * Reads the traces of one iteration.
 *   path       an iteration's folder, a folder of iterations, or a run's folder
 *   iteration  which one; 0: the newest
 * Errors: TT_EDATA for a folder without traces, or a file that is not a trace. Release when done.
 */
static int read_summary(const char *path, int64_t iteration, struct summary *ret_summary)
{
    struct summary s = {0};
    struct reader r = {.s = &s};
    int rc = 0;

    rc = find_folder(path, iteration, &s.folder);
    if (rc == 0)
        rc = read_files(&r);
    s.ops = r.ops.row;
    s.n_ops = r.ops.n;
    s.collectives = r.collectives.row;
    s.n_collectives = r.collectives.n;
    TT_TRY(rc);
    mean_over_ranks(&r.ops, s.n_ranks);
    mean_over_ranks(&r.collectives, s.n_ranks);
    for (int p = 0; p < TT_SPLIT_PARTS; p++)
        s.split.sec[p] /= s.n_ranks;
    if (s.n_ops)
        qsort(s.ops, (size_t)s.n_ops, sizeof *s.ops, by_time);
    if (s.n_collectives)
        qsort(s.collectives, (size_t)s.n_collectives, sizeof *s.collectives, by_time);
    find_slowest(&s);
    s.hint = make_hint(&s);
    *ret_summary = s;
    s = (struct summary){0};
out:
    release_summary(&s);
    return rc;
}

/* --- the command --- */

const struct tt_option tt_trace_options[] = {
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

static void print_ops(const struct summary *s)
{
    tt_print("\n%-22s %-14s %6s %10s %7s\n", "op", "part", "count", "time", "share");
    for (int i = 0; i < s->n_ops; i++)
        tt_print("%-22s %-14s %6d %7.2f ms %6.1f%%\n", s->ops[i].name, s->ops[i].part, s->ops[i].count,
                 1e3 * s->ops[i].sec, 100.0 * s->ops[i].sec / s->step_sec);
}

static void print_collectives(const struct summary *s)
{
    enum { SHOWN = 12 };
    char bytes[32];

    if (s->n_collectives == 0)
        return;
    tt_print("\n%-36s %6s %12s %12s %12s\n", "collective", "count", "sent", "under way", "exposed");
    for (int i = 0; i < s->n_collectives && i < SHOWN; i++) {
        const struct row *r = &s->collectives[i];

        tt_print("%-36s %6d %12s %9.2f ms %9.2f ms\n", r->name, r->count,
                 tt_text_bytes(bytes, sizeof bytes, (double)r->bytes), 1e3 * r->sec, 1e3 * r->exposed_sec);
    }
    if (s->n_collectives > SHOWN)
        tt_print("and %d more\n", s->n_collectives - SHOWN);
}

static void print_summary(const struct summary *s)
{
    const struct rank_times *slowest = &s->ranks[s->slowest];

    tt_print("step %" PRId64 " of %d rank%s: %.2f ms (%s)\n", s->step, s->n_ranks, s->n_ranks == 1 ? "" : "s",
             1e3 * s->step_sec, s->folder);
    print_split(s);
    print_ops(s);
    print_collectives(s);
    if (s->n_ranks > 1)
        tt_print("\nslowest: rank %d computes %.2f ms (median %.2f ms) and waits %.2f ms\n", slowest->rank,
                 1e3 * slowest->compute_sec, 1e3 * s->median_compute_sec, 1e3 * slowest->exposed_sec);
    tt_print("\nhint: %s\n", s->hint);
}

/* --- JSON --- */

static json_t *split_json(const struct summary *s)
{
    double percent[TT_SPLIT_PARTS];
    json_t *o = json_object();

    tt_split_percent(&s->split, percent);
    for (int p = 0; p < TT_SPLIT_PARTS; p++)
        (void)json_object_set_new(o, tt_split_name((enum tt_split_part)p), json_real(percent[p]));
    return o;
}

static json_t *summary_json(const struct summary *s)
{
    const struct rank_times *slowest = &s->ranks[s->slowest];
    json_t *ops = json_array(), *collectives = json_array();

    for (int i = 0; i < s->n_ops; i++)
        (void)json_array_append_new(ops, json_pack("{s:s, s:s, s:i, s:f, s:f}", "op", s->ops[i].name, "part",
                                                   s->ops[i].part, "count", s->ops[i].count, "time_s", s->ops[i].sec,
                                                   "percent", 100.0 * s->ops[i].sec / s->step_sec));
    for (int i = 0; i < s->n_collectives; i++)
        (void)json_array_append_new(
            collectives, json_pack("{s:s, s:i, s:I, s:f, s:f}", "collective", s->collectives[i].name, "count",
                                   s->collectives[i].count, "bytes", (json_int_t)s->collectives[i].bytes, "time_s",
                                   s->collectives[i].sec, "exposed_s", s->collectives[i].exposed_sec));
    return json_pack("{s:s, s:i, s:o, s:I, s:i, s:i, s:f, s:o, s:o, s:o, s:{s:i, s:f, s:f, s:f}, s:s}", "type",
                     "trace_summary", "schema", 1, "folder", tt_json_string(s->folder), "step", (json_int_t)s->step,
                     "ranks", s->n_ranks, "world", s->world, "step_time_s", s->step_sec, "split", split_json(s),
                     "compute", ops, "communication", collectives, "slowest_rank", "rank", slowest->rank, "compute_s",
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

int tt_command_trace(int argc, char **argv)
{
    return tt_cli_run(argc, argv, "trace", usage, tt_trace_options, summarise);
}

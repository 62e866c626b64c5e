/* SPDX-License-Identifier: MIT
 *
 * titan trace summary DIR: where the time of a traced step went.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/measure/trace_summary.h"
#include "cli/run/screen.h"

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

static void print_split(const struct tt_trace_summary *s)
{
    double percent[TT_SPLIT_PARTS];

    tt_split_percent(&s->split, percent);
    tt_print("\n%-14s %10s %7s\n", "part", "time", "share");
    for (int p = 0; p < TT_SPLIT_PARTS; p++)
        tt_print("%-14s %7.2f ms %6.1f%%\n", tt_split_name((enum tt_split_part)p), 1e3 * s->split.sec[p], percent[p]);
}

static void print_ops(const struct tt_trace_summary *s)
{
    tt_print("\n%-22s %-14s %6s %10s %7s\n", "op", "part", "count", "time", "share");
    for (int i = 0; i < s->n_ops; i++)
        tt_print("%-22s %-14s %6d %7.2f ms %6.1f%%\n", s->ops[i].name, s->ops[i].part, s->ops[i].count,
                 1e3 * s->ops[i].sec, 100.0 * s->ops[i].sec / s->step_sec);
}

static void print_collectives(const struct tt_trace_summary *s)
{
    enum { SHOWN = 12 };
    char bytes[32];

    if (s->n_collectives == 0)
        return;
    tt_print("\n%-36s %6s %12s %12s %12s\n", "collective", "count", "sent", "under way", "exposed");
    for (int i = 0; i < s->n_collectives && i < SHOWN; i++) {
        const struct tt_trace_row *r = &s->collectives[i];

        tt_print("%-36s %6d %12s %9.2f ms %9.2f ms\n", r->name, r->count,
                 tt_text_bytes(bytes, sizeof bytes, (double)r->bytes), 1e3 * r->sec, 1e3 * r->exposed_sec);
    }
    if (s->n_collectives > SHOWN)
        tt_print("and %d more\n", s->n_collectives - SHOWN);
}

static void print_summary(const struct tt_trace_summary *s)
{
    const struct tt_trace_rank *slowest = &s->ranks[s->slowest];

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

static json_t *split_json(const struct tt_trace_summary *s)
{
    double percent[TT_SPLIT_PARTS];
    json_t *o = json_object();

    tt_split_percent(&s->split, percent);
    for (int p = 0; p < TT_SPLIT_PARTS; p++)
        (void)json_object_set_new(o, tt_split_name((enum tt_split_part)p), json_real(percent[p]));
    return o;
}

static json_t *summary_json(const struct tt_trace_summary *s)
{
    const struct tt_trace_rank *slowest = &s->ranks[s->slowest];
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
    struct tt_trace_summary summary = {0};
    int64_t iteration = 0;
    int rc = 0;

    if (args->n_words < 1)
        return tt_fail(TT_EUSAGE, "'titan trace' needs to know what to do\nhelp: titan trace summary DIR");
    if (strcmp(args->word[0], "summary") != 0)
        return tt_fail(TT_EUSAGE, "unknown command 'trace %s'\nhelp: titan trace summary %s", args->word[0],
                       args->n_words == 1 ? args->word[0] : "DIR");
    if (args->n_words != 2)
        return tt_fail(TT_EUSAGE, "'titan trace summary' takes one folder\nhelp: titan trace summary DIR");
    if (args->n_overrides)
        return tt_fail(TT_EUSAGE, "trace: unexpected argument '%s'", args->override[0]);
    TT_TRY(tt_cli_count("trace", args, "iteration", 1, INT64_MAX, &iteration));
    TT_TRY(tt_trace_summary_read(args->word[1], iteration, &summary));
    if (tt_args_has(args, "json"))
        rc = tt_cli_print_json(summary_json(&summary));
    else
        print_summary(&summary);
out:
    tt_trace_summary_release(&summary);
    return rc;
}

int tt_command_trace(int argc, char **argv)
{
    struct tt_args *args = NULL;
    int rc = tt_args_parse(argc, argv, tt_trace_options, &args), code;

    if (rc == 0 && tt_args_has(args, "help"))
        code = tt_cli_print_help(usage, tt_trace_options);
    else if (rc < 0 || (rc = summarise(args)) < 0)
        code = tt_cli_fail(rc);
    else
        code = tt_cli_finish();
    tt_args_free(args);
    return code;
}

/* SPDX-License-Identifier: MIT
 *
 * `titan estimate --backtest`: predictions for measured runs of clusters, and their errors.
 */
#include "estimate/backtest/backtest.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/estimate/estimate.h"
#include "cli/estimate/screen.h"
#include "cli/run/screen.h"
#include "core/base/mem.h"
#include "core/os/file.h"

static const double gib = 1024.0 * 1024.0 * 1024.0;

/* --- text --- */

static void print_score(const char *name, const struct tt_score *s)
{
    if (s->n > 0)
        tt_print_broken(4, "  %-44s %4d rows  median %4.1f %%  90th percentile %4.1f %%  worst %5.1f %%\n", name, s->n,
                        100 * s->median, 100 * s->p90, 100 * s->worst);
}

/* titan-estimate(1) lists the order in which columns are left out on a narrow terminal. */
static void print_rows(const struct tt_backtest *t)
{
    static const struct tt_column columns[] = {{"run", 32, false, 0, 0, 0},     {"machine", 11, false, 1, 3, 0},
                                               {"stack", 24, false, 1, 2, 0},   {"devices", 7, true, 1, 1, 0},
                                               {"measured", 10, true, 1, 0, 0}, {"predicted", 10, true, 1, 0, 0},
                                               {"error", 7, true, 1, 0, 0},     {"most", 0, false, 1, 4, 10}};
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns};

    for (int i = 0; i < t->n; i++) {
        const struct tt_cluster_run *run = &t->run[i];
        const struct tt_backtest_row *row = &t->row[i];
        char memory[96] = "";

        if (isnan(row->error) || run->layout_of_sweep)
            continue;
        if (!isnan(row->memory_error))
            (void)snprintf(memory, sizeof memory, "; memory %.1f GiB, predicted %.1f GiB, %+.1f %%", run->bytes / gib,
                           row->memory.allocated / gib, 100 * row->memory_error);
        tt_columns_cell(&table, "%s", run->id);
        tt_columns_cell(&table, "%s", run->job.machine->name);
        tt_columns_cell(&table, "%s", run->job.stack->name);
        tt_columns_cell(&table, "%.0f", tt_cluster_devices(&run->job));
        tt_columns_cell(&table, "%.3f s", run->sec);
        tt_columns_cell(&table, "%.3f s", row->time.total);
        tt_columns_cell(&table, "%+.1f %%", 100 * row->error);
        tt_columns_cell(&table, "%s%s", tt_cluster_dominant(&row->time)->name, memory);
    }
    if (table.rows)
        tt_columns_print(&table);
}

static void print_excluded(const struct tt_backtest *t)
{
    bool any = false;

    for (int i = 0; i < t->n; i++) {
        const struct tt_cluster_run *run = &t->run[i];

        if (run->layout_of_sweep)
            continue;
        if (run->excluded || (run->bytes > 0 && t->row[i].memory_excluded)) {
            if (!any)
                tt_print("\nnot scored\n");
            any = true;
            tt_print_broken(4, "  %-32s %s: %s\n", run->id, run->excluded ? "time" : "memory",
                            run->excluded ? run->excluded : t->row[i].memory_excluded);
        }
    }
}

/* Prints the number of rows that do not name their software; their error may come from a wrong stack. */
static void print_assumed(const struct tt_backtest *t)
{
    const struct tt_cluster_stack *stack;

    for (int i = 0; (stack = tt_cluster_stack_at(i)); i++) {
        int n = 0, first = -1;

        for (int k = t->n - 1; k >= 0; k--)
            if (t->run[k].stack_assumed && t->run[k].job.stack == stack && !isnan(t->row[k].error)) {
                n++;
                first = k;
            }
        if (n > 0)
            tt_print_broken(
                2,
                "\n%d %s (%s%s): the table does not say which software ran; predicted as %s. A column 'stack' names "
                "it.\n",
                n, n == 1 ? "row" : "rows", t->run[first].id, n == 1 ? "" : " and others", stack->name);
    }
}

static void print_sweeps(const struct tt_backtest *t)
{
    static const struct tt_column columns[] = {{"sweep (layouts)", 22, false, 0, 0, 0},
                                               {"ran", 4, true, 1, 0, 0},
                                               {"oom", 4, true, 1, 0, 0},
                                               {"median", 7, true, 1, 0, 0},
                                               {"Kendall tau", 11, true, 1, 1, 0},
                                               {"pick / best", 13, true, 1, 0, 0},
                                               {"pick that fits", 14, true, 1, 0, 0}};
    struct tt_columns table = {.column = columns, .n = sizeof columns / sizeof *columns};

    if (t->n_sweeps == 0)
        return;
    for (int i = 0; i < t->n_sweeps; i++) {
        const struct tt_backtest_sweep *s = &t->sweep[i];

        tt_columns_cell(&table, "%s", s->id);
        tt_columns_cell(&table, "%d", s->n);
        tt_columns_cell(&table, "%d", s->n_oom);
        tt_columns_cell(&table, "%.1f %%", 100 * s->time.median);
        tt_columns_cell(&table, "%.2f", s->kendall_tau);
        tt_columns_cell(&table, "%.3f", s->pick_over_best);
        if (isnan(s->pick_that_fits))
            tt_columns_cell(&table, "out of memory");
        else
            tt_columns_cell(&table, "%.3f", s->pick_that_fits);
    }
    tt_print("\n");
    tt_columns_print(&table);
}

static int n_labelled(const struct tt_backtest *t)
{
    return t->fits[0][0] + t->fits[0][1] + t->fits[1][0] + t->fits[1][1];
}

static void print_summary(const struct tt_backtest *t)
{
    if (t->n == 0)
        tt_print("the table has no rows\n");
    tt_print("\nstep time, errors without their signs\n");
    print_score("dense, 16 bits, below 128k tokens", &t->plain);
    print_score("float8, experts, or 128k tokens and more", &t->special);
    print_score("the first, products fitted to other rows", &t->left_out);
    print_score("the first, products fitted to one row", &t->one_row);
    print_score("the first, products of other stacks", &t->foreign);
    if (!isnan(t->held))
        tt_print_broken(4, "  80 %% intervals from other tables contain %.0f %% of the rows\n", 100 * t->held);
    if (t->memory.n > 0)
        tt_print("\npeak memory\n");
    print_score("of the framework's allocator", &t->memory);
    if (n_labelled(t) > 0)
        tt_print_broken(
            6,
            "\nfits: %.1f %% of %d rows right; fits and ran %d, fits but out of memory %d (%d of them outside a "
            "5 %% band),\n      does not fit but ran %d, does not fit and out of memory %d\n",
            100.0 * (t->fits[0][0] + t->fits[1][1]) / n_labelled(t), n_labelled(t), t->fits[1][1], t->fits[1][0],
            t->false_fits_far, t->fits[0][1], t->fits[0][0]);
    if (t->ran > 0)
        tt_print_broken(6,
                        "      of %d published runs, %d are predicted not to fit: errors of the model or, for %d, "
                        "perhaps of recomputation that the source does not state\n",
                        t->ran, t->ran_refused, t->ran_unstated);
}

/* --- JSON --- */

static json_t *score_json(const struct tt_score *s)
{
    return json_pack("{s:i, s:o, s:o, s:o}", "rows", s->n, "median_error", tt_json_number(s->median), "p90_error",
                     tt_json_number(s->p90), "worst_error", tt_json_number(s->worst));
}

static json_t *row_json(const struct tt_cluster_run *run, const struct tt_backtest_row *row)
{
    json_t *o = json_pack("{s:o, s:s, s:s, s:f}", "id", tt_json_string(run->id), "machine", run->job.machine->name,
                          "stack", run->job.stack->name, "devices", tt_cluster_devices(&run->job));

    if (row->time.total > 0)
        (void)json_object_update_new(
            o,
            json_pack("{s:f, s:o, s:o, s:o, s:o, s:o, s:s, s:o, s:f, s:s}", "predicted_s", row->time.total,
                      "measured_s", tt_json_number(run->sec > 0 ? run->sec : NAN), "error", tt_json_number(row->error),
                      "error_left_out", tt_json_number(row->left_out), "error_one_row", tt_json_number(row->one_row),
                      "error_foreign", tt_json_number(row->foreign), "dominant", tt_cluster_dominant(&row->time)->name,
                      "parts_s", tt_cluster_parts_json(&row->time), "predicted_bytes", row->memory.allocated,
                      "predicted_fit", tt_cluster_fit_words[tt_cluster_fits(&row->memory)]));
    if (run->stack_assumed)
        (void)json_object_set_new(o, "stack_assumed", json_true());
    if (run->bytes > 0)
        (void)json_object_update_new(o, json_pack("{s:f, s:o}", "measured_bytes", run->bytes, "memory_error",
                                                  tt_json_number(row->memory_error)));
    if (run->excluded)
        (void)json_object_set_new(o, "excluded", json_string(run->excluded));
    if (run->bytes > 0 && row->memory_excluded)
        (void)json_object_set_new(o, "memory_excluded", json_string(row->memory_excluded));
    if (run->oom || run->failed)
        (void)json_object_set_new(o, "result", json_string(run->oom ? "oom" : "error"));
    return o;
}

static json_t *sweeps_json(const struct tt_backtest *t)
{
    json_t *list = json_array();

    for (int i = 0; i < t->n_sweeps; i++) {
        const struct tt_backtest_sweep *s = &t->sweep[i];

        (void)json_array_append_new(list,
                                    json_pack("{s:o, s:o, s:i, s:i, s:o, s:o, s:o, s:o}", "id", tt_json_string(s->id),
                                              "source", tt_json_string(s->source), "ran", s->n, "oom", s->n_oom,
                                              "kendall_tau", tt_json_number(s->kendall_tau), "pick_over_best",
                                              tt_json_number(s->pick_over_best), "pick_that_fits_over_best",
                                              tt_json_number(s->pick_that_fits), "time", score_json(&s->time)));
    }
    return list;
}

static json_t *to_json(const struct tt_backtest *t)
{
    int labelled = n_labelled(t);
    json_t *rows = json_array(), *fits, *o;

    for (int i = 0; i < t->n; i++)
        (void)json_array_append_new(rows, row_json(&t->run[i], &t->row[i]));
    fits = json_pack("{s:o, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "right",
                     tt_json_number(labelled ? (double)(t->fits[0][0] + t->fits[1][1]) / labelled : NAN), "rows",
                     labelled, "fits_and_ran", t->fits[1][1], "fits_but_oom", t->fits[1][0],
                     "fits_but_oom_outside_5_percent", t->false_fits_far, "refused_but_ran", t->fits[0][1],
                     "refused_and_oom", t->fits[0][0], "published_runs", t->ran, "published_runs_refused",
                     t->ran_refused, "published_runs_refused_unstated", t->ran_unstated);
    o = json_pack("{s:s, s:i, s:o, s:o, s:o, s:o, s:o}", "type", "backtest", "schema", 1, "time", score_json(&t->plain),
                  "time_special", score_json(&t->special), "time_left_out", score_json(&t->left_out), "time_one_row",
                  score_json(&t->one_row), "time_foreign", score_json(&t->foreign));
    (void)json_object_update_new(o, json_pack("{s:{s:o}, s:o, s:o, s:o, s:o}", "interval", "holds",
                                              tt_json_number(t->held), "memory", score_json(&t->memory), "fits", fits,
                                              "sweeps", sweeps_json(t), "rows", rows));
    return o;
}

/* --- the command --- */

/* The share of the rows of a back-test whose measured time is in the interval from `evidence`. is_own: the rows are
 * part of the evidence, and each is predicted, and its interval made, without its own table. NaN: no row counts. */
static double held_score(const struct tt_backtest *evidence, const struct tt_backtest *test, bool is_own)
{
    int n = 0, held = 0;

    for (int i = 0; i < test->n; i++) {
        const struct tt_cluster_run *run = &test->run[i];
        double error = is_own ? test->row[i].outside : test->row[i].error;
        struct tt_cluster_interval in;

        if (isnan(error) || run->layout_of_sweep)
            continue;
        tt_cluster_interval(evidence, &run->job, is_own ? run->id : NULL, &in);
        n++;
        held += 1 / (1 + error) >= in.low && 1 / (1 + error) <= in.high;
    }
    return n ? (double)held / n : NAN;
}

/* Counts the rows within the intervals from the built-in runs; is_own: the rows are these runs. */
static int hold(struct tt_backtest *test, bool is_own)
{
    struct tt_backtest_evidence evidence = {0};
    int rc = 0;

    TT_TRY(tt_backtest_evidence_load(&evidence));
    test->held = held_score(&evidence.test, test, is_own);
out:
    tt_backtest_evidence_release(&evidence);
    return rc;
}

int tt_print_backtest(const struct tt_args *args)
{
    struct tt_csv tables[2] = {{0}, {0}};
    const char *where[2] = {"the built-in table of runs", "the built-in table of layouts"};
    struct tt_backtest test = {0};
    char *text = NULL;
    size_t size = 0;
    int rc = 0;

    if (args->n_words > 1 || args->n_overrides > 0)
        return tt_fail(TT_EUSAGE, "estimate --backtest: '%s' is one word too many\nhelp: give one table, or none",
                       args->n_overrides > 0 ? args->override[0] : args->word[1]);
    if (args->n_words == 1) {
        where[0] = args->word[0];
        TT_TRY(tt_file_read(where[0], &text, &size));
        TT_TRY(tt_csv_parse(text, size, where[0], &tables[0]));
    } else {
        TT_TRY(tt_csv_parse(tt_backtest_runs, tt_backtest_runs_size, where[0], &tables[0]));
        TT_TRY(tt_csv_parse(tt_backtest_layouts, tt_backtest_layouts_size, where[1], &tables[1]));
    }
    TT_TRY(tt_backtest_score(tables, where, args->n_words == 1 ? 1 : 2, &test));
    TT_TRY(hold(&test, args->n_words == 0));
    if (tt_args_has(args, "json"))
        rc = tt_cli_print_json(to_json(&test));
    else {
        print_rows(&test);
        print_excluded(&test);
        print_assumed(&test);
        print_sweeps(&test);
        print_summary(&test);
    }
out:
    tt_backtest_release(&test);
    tt_csv_release(&tables[0]);
    tt_csv_release(&tables[1]);
    tt_free(text);
    return rc;
}

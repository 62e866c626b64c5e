/* SPDX-License-Identifier: MIT
 *
 * titan export --csv RUN: what a run recorded, as a table.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/watch/history.h"
#include "core/base/mem.h"
#include "core/os/file.h"

const struct tt_option tt_export_options[] = {
    {"csv", NULL, NULL, "comma-separated values (RFC 4180), a row for each step"},
    {"out", NULL, "FILE", "write to FILE instead of standard output"},
    TT_OPTION_HELP,
    {0},
};

static const char usage[] =
    "usage: titan export --csv [RUN] [--out FILE]\n\n"
    "Writes what a run recorded as a table for spreadsheets, pandas, R or Weights & Biases: a column for each\n"
    "number of the step records, and the losses of validations. RUN is the folder of a run or its\n"
    "metrics.jsonl (default: ./outputs).\n\n";

/* The shortest text that reads back to the same number; nothing for one that is missing or not finite. */
static void add_number(struct tt_text *out, double x)
{
    char text[32];

    if (!isfinite(x))
        return;
    for (int digits = 6; digits <= 17; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    tt_text_add(out, "%s", text);
}

/* A name, quoted if it needs to be. */
static void add_name(struct tt_text *out, const char *name)
{
    if (!strpbrk(name, ",\"\r\n")) {
        tt_text_add(out, "%s", name);
        return;
    }
    tt_text_add(out, "\"");
    tt_text_add_replaced(out, name, strlen(name), "\"", "\"\"");
    tt_text_add(out, "\"");
}

/* Whether a column of validations is a loss: of all sets, or of one. */
static bool is_loss(const char *column)
{
    return strcmp(column, "loss") == 0 || tt_table_set_name(column);
}

/* One row: of a step record, a validation, or both, if they have the same step. row -1: there is none. */
static void add_row(struct tt_text *out, const struct tt_history *h, int64_t step_row, int64_t validation_row)
{
    const struct tt_table *s = &h->steps, *v = &h->validations;

    tt_text_add(out, "%" PRId64, step_row >= 0 ? s->step[step_row] : v->step[validation_row]);
    for (int c = 0; c < s->n_columns; c++) {
        tt_text_add(out, ",");
        add_number(out, step_row >= 0 ? s->column[c][step_row] : (double)NAN);
    }
    for (int c = 0; c < v->n_columns && v->n; c++) {
        if (!is_loss(v->name[c]))
            continue;
        tt_text_add(out, ",");
        add_number(out, validation_row >= 0 ? v->column[c][validation_row] : (double)NAN);
    }
    tt_text_add(out, "\n");
}

/* A piece of text is passed on when it has grown to this size. */
enum { PIECE_BYTES = 1 << 16 };

static void pass(struct tt_text *text, FILE *to, size_t least)
{
    if (text->size < least || !text->size)
        return;
    (void)fwrite(text->text, 1, text->size, to);
    text->size = 0;
}

static void write_csv(const struct tt_history *h, FILE *to)
{
    const struct tt_table *s = &h->steps, *v = &h->validations;
    struct tt_text text = {0};

    tt_text_add(&text, "step");
    for (int c = 0; c < s->n_columns; c++) {
        tt_text_add(&text, ",");
        add_name(&text, s->name[c]);
    }
    for (int c = 0; c < v->n_columns && v->n; c++) {
        char *name = is_loss(v->name[c]) ? tt_format("validation_%s", v->name[c]) : NULL;

        tt_text_add(&text, name ? "," : "");
        if (name)
            add_name(&text, name);
        tt_free(name);
    }
    tt_text_add(&text, "\n");
    for (int64_t i = 0, k = 0; i < s->n || k < v->n;) {
        bool step = i < s->n && (k >= v->n || s->step[i] <= v->step[k]);
        bool validation = k < v->n && (i >= s->n || v->step[k] <= s->step[i]);

        add_row(&text, h, step ? i : -1, validation ? k : -1);
        i += step;
        k += validation;
        pass(&text, to, PIECE_BYTES);
    }
    pass(&text, to, 0);
    tt_text_release(&text);
}

/* Writes to a file that appears under its name when it is complete. */
static int write_file(const struct tt_history *h, const char *path)
{
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    int rc;

    if (!to)
        return tt_fail(TT_ENOMEM, "no memory for '%s'", path);
    write_csv(h, to);
    rc = fclose(to) == 0 ? tt_file_replace(path, text, size) : tt_fail(TT_ENOMEM, "no memory for '%s'", path);
    free(text); // NOLINT: it is the C library's
    return rc;
}

static int export_run(const struct tt_args *args)
{
    struct tt_history history = {.path = NULL};
    const char *out = tt_args_last(args, "out");
    int rc = 0;

    if (!tt_args_has(args, "csv")) {
        rc = tt_fail(TT_EUSAGE, "export: the format is missing\nhelp: titan export --csv [RUN]");
        goto out;
    }
    if (args->n_words > 1) {
        rc = tt_fail(TT_EUSAGE, "export: one run at a time, %d given\nhelp: --out FILE names the file to write",
                     args->n_words);
        goto out;
    }
    TT_TRY(tt_history_load(args->n_words ? args->word[0] : "./outputs", &history));
    if (out)
        rc = write_file(&history, out);
    else
        write_csv(&history, stdout);
out:
    tt_history_release(&history);
    return rc;
}

int tt_command_export(int argc, char **argv)
{
    struct tt_args *args = NULL;
    int rc = tt_args_parse(argc, argv, tt_export_options, &args), code;

    if (rc == 0 && args->n_overrides)
        rc = tt_fail(TT_EUSAGE, "export: '%s' is not an option\nhelp: titan export --help lists them",
                     args->override[0]);
    if (rc < 0) {
        code = tt_cli_fail(rc);
    } else if (tt_args_has(args, "help")) {
        code = tt_cli_print_help(usage, tt_export_options);
    } else {
        tt_cli_install_log();
        rc = export_run(args);
        code = rc < 0 ? tt_cli_fail(rc) : tt_cli_finish();
    }
    tt_args_free(args);
    return code;
}

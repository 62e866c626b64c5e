/* SPDX-License-Identifier: MIT
 *
 * titan export --csv RUN: the records of a run as a table.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <unistd.h>

#include "cli/cli.h"
#include "cli/watch/history.h"
#include "core/base/mem.h"
#include "core/os/file.h"

static const struct tt_option options[] = {
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

/* Adds the shortest text that reads back to the same number; nothing if the number is missing or not finite. */
static void add_number(struct tt_text *out, double x)
{
    char text[32];

    if (!isfinite(x))
        return;
    (void)tt_text_real(text, sizeof text, x);
    if (tt_text_ends(text, ".0"))
        text[strlen(text) - 2] = 0;
    tt_text_add(out, "%s", text);
}

/* A name, quoted if necessary. */
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

/* Whether a column of validations is a loss, on all sets or on one. */
static bool is_loss(const char *column)
{
    return strcmp(column, "loss") == 0 || tt_table_set_name(column);
}

/* The destination of the table: standard output, or a file that is being written. */
struct sink {
    const struct tt_history *history;
    struct tt_text text;
    const char *path; /* NULL: standard output */
    int fd;
    int64_t at;
};

/* Text is written when it has grown to this size. */
enum { PIECE_BYTES = 1 << 16 };

static int pass(struct sink *s, size_t least)
{
    size_t size;
    int rc = 0;

    if (s->text.size < least || !s->text.size)
        return 0;
    tt_text_make_printable(&s->text); /* a person may read the table */
    size = s->text.size;
    if (!s->path)
        (void)fwrite(s->text.text, 1, size, stdout);
    else
        rc = tt_file_pwrite(s->fd, s->path, s->text.text, size, s->at, NULL);
    s->at += (int64_t)size;
    s->text.size = 0;
    return rc;
}

/* Adds a row for a step record, a validation, or both if their steps are equal. A row of -1 means none. from: the
 * file of the records; values: room for the numbers of a row. */
static int add_row(struct sink *sink, int from, int64_t step_row, int64_t validation_row, double *values)
{
    const struct tt_table *s = &sink->history->steps, *v = &sink->history->validations;
    struct tt_text *out = &sink->text;
    int rc = 0;

    tt_text_add(out, "%" PRId64, step_row >= 0 ? s->step[step_row] : v->step[validation_row]);
    if (step_row >= 0)
        TT_TRY(tt_history_row(sink->history, from, s, step_row, values));
    for (int c = 0; c < s->n_columns; c++) {
        tt_text_add(out, ",");
        add_number(out, step_row >= 0 ? values[c] : (double)NAN);
    }
    if (validation_row >= 0)
        TT_TRY(tt_history_row(sink->history, from, v, validation_row, values));
    for (int c = 0; c < v->n_columns && v->n; c++) {
        if (!is_loss(v->name[c]))
            continue;
        tt_text_add(out, ",");
        add_number(out, validation_row >= 0 ? values[c] : (double)NAN);
    }
    tt_text_add(out, "\n");
out:
    return rc;
}

static void add_header(const struct tt_history *h, struct tt_text *text)
{
    const struct tt_table *s = &h->steps, *v = &h->validations;

    tt_text_add(text, "step");
    for (int c = 0; c < s->n_columns; c++) {
        tt_text_add(text, ",");
        add_name(text, s->name[c]);
    }
    for (int c = 0; c < v->n_columns && v->n; c++) {
        char *name = is_loss(v->name[c]) ? tt_format("validation_%s", v->name[c]) : NULL;

        tt_text_add(text, name ? "," : "");
        if (name)
            add_name(text, name);
        tt_free(name);
    }
    tt_text_add(text, "\n");
}

/* Reads the records a second time, row by row, so that a run of any length takes little memory. */
static int write_csv(struct sink *sink)
{
    const struct tt_table *s = &sink->history->steps, *v = &sink->history->validations;
    int columns = s->n_columns > v->n_columns ? s->n_columns : v->n_columns, from = -1, rc = 0;
    double *values = tt_calloc((size_t)columns + 1, sizeof *values);
    int64_t bytes = 0;

    TT_TRY(tt_file_open(sink->history->path, &from, &bytes));
    add_header(sink->history, &sink->text);
    for (int64_t i = 0, k = 0; i < s->n || k < v->n;) {
        bool step = i < s->n && (k >= v->n || s->step[i] <= v->step[k]);
        bool validation = k < v->n && (i >= s->n || v->step[k] <= s->step[i]);

        TT_TRY(add_row(sink, from, step ? i : -1, validation ? k : -1, values));
        i += step;
        k += validation;
        TT_TRY(pass(sink, PIECE_BYTES));
    }
    rc = pass(sink, 0);
out:
    if (from >= 0)
        (void)close(from);
    tt_text_release(&sink->text);
    tt_free(values);
    return rc;
}

static int write_file(void *arg, int fd, const char *name)
{
    struct sink *sink = arg;

    sink->fd = fd;
    sink->path = name;
    return write_csv(sink);
}

/* "Export" may mean weights or records. */
static int fail_format(const char *run)
{
    struct tt_text word = {0};
    int rc;

    tt_text_add_word(&word, run);
    rc = tt_fail(TT_EUSAGE,
                 "export: records or weights?\nhelp: `titan export --csv %s` prints what the run recorded as a table; "
                 "`titan ckpt consolidate %s FOLDER --format hf` writes its weights for transformers",
                 word.text, word.text);
    tt_text_release(&word);
    return rc;
}

static int export_run(const struct tt_args *args)
{
    struct tt_history history = {.path = NULL};
    struct sink sink = {.history = &history};
    const char *out = tt_args_last(args, "out");
    int rc = 0;

    if (!tt_args_has(args, "csv"))
        return fail_format(args->n_words ? args->word[0] : "outputs");
    if (args->n_words > 1)
        return tt_fail(TT_EUSAGE, "export: one run at a time, %d given\nhelp: --out FILE names the file to write",
                       args->n_words);
    TT_TRY(tt_history_load(args->n_words ? args->word[0] : "./outputs", true, &history));
    rc = out ? tt_file_replace_by(out, write_file, &sink) : write_csv(&sink);
out:
    tt_history_release(&history);
    return rc;
}

/* Refuses options of other exports of weights, before they would count as unknown. */
static int run(int argc, char **argv)
{
    const struct tt_command records = {
        .name = "export",
        .usage = usage,
        .options = options,
        .run = export_run,
    };
    int rc = 0;

    for (int i = 0; i < argc && rc == 0; i++) {
        const char *name = argv[i] + strspn(argv[i], "-");
        char *word = tt_strndup(name, strcspn(name, "="));

        if (name != argv[i] && tt_text_is_listed(word, "hf|format|to|safetensors|gguf|onnx|dtype|weights|huggingface"))
            rc = fail_format(argv[0][0] != '-' ? argv[0] : argv[argc - 1][0] != '-' ? argv[argc - 1] : "outputs");
        tt_free(word);
    }
    return rc < 0 ? tt_cli_fail(rc) : tt_command_run(&records, argc, argv);
}

const struct tt_command tt_command_export = {
    .name = "export",
    .arguments = "--csv [RUN]",
    .summary = "what a run recorded, as a table",
    .usage = usage,
    .options = options,
    .main = run,
};

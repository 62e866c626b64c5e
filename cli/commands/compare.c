/* SPDX-License-Identifier: MIT
 *
 * titan compare A B: the first step and field in which two runs differ; with --gradients, what makes the gradients of
 * two jobs differ. Like diff(1), 0 means equal and 1 different.
 */
#include "cli/watch/compare.h"

#include <float.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/referee/referee.h"
#include "cli/run/screen.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"

static const struct tt_option options[] = {
    {"assert_equal", NULL, NULL, "print nothing but the first difference, as an error"},
    {"tolerance", NULL, "X", "numbers may differ by X times the larger one (default 0: the same bits)"},
    {"key", NULL, "FIELD,...", "compare these fields of the step records (default: loss, grad_norm, lr, ntokens_seen)"},
    {"from", NULL, "STEP", "compare from this step on"},
    {"to", NULL, "STEP", "compare up to this step"},
    {"gradients", NULL, NULL, "compare the gradients, weights and activations of two dumps, and name what differs"},
    {"reference", NULL, "R", "with --gradients: a dump in float64 that A and B are both judged by"},
    {"dtype", NULL, "TYPE", "with --gradients: the type in which the judged job computes, such as bfloat16"},
    {"step", NULL, "STEP", "with --gradients: compare this step only"},
    {"html", NULL, "FILE", "with --gradients: also write a page with a picture of all tensors"},
    {"json", NULL, NULL, "print JSON"},
    TT_OPTION_HELP,
    {0},
};

static const char usage[] =
    "usage: titan compare A B [--assert-equal] [--tolerance X] [options]\n"
    "       titan compare --gradients A B [--reference R] [--dtype TYPE] [--html FILE]\n\n"
    "Compares what two runs recorded: steps, losses, gradient norms, learning rates, tokens, and validation\n"
    "losses. A and B are run folders or files metrics.jsonl. With --gradients, A and B are dumps of training\n"
    "steps, such as titan's and a GPU job's. Exit code 0: equal; 1: different.\n\n";

enum { EXIT_DIFFERENT = 1, FIELDS_MOST = 32 };

/* A number rounded to `digits` significant digits; "not finite" for null. */
static const char *rounded(char *buf, size_t size, const json_t *value, int digits)
{
    char text[32];

    if (json_is_integer(value))
        return tt_text_count(buf, size, json_integer_value(value));
    if (!json_is_real(value))
        return "not finite";
    (void)snprintf(text, sizeof text, "%.*e", digits - 1, json_real_value(value));
    (void)tt_text_real(buf, size, strtod(text, NULL));
    if (tt_text_ends(buf, ".0"))
        buf[strlen(buf) - 2] = 0;
    return buf;
}

/* "step 3: loss is 1.5 in A, 1.6 in B", with enough digits to tell both apart; NULL: no number differs. */
static char *first_difference(const json_t *json)
{
    const json_t *first = json_object_get(json, "first");
    char text[2][32];
    const char *a, *b;
    int digits = 6;

    if (!json_is_object(first))
        return NULL;
    do {
        a = rounded(text[0], sizeof text[0], json_object_get(first, "a"), digits);
        b = rounded(text[1], sizeof text[1], json_object_get(first, "b"), digits);
    } while (strcmp(a, b) == 0 && digits++ < 17);
    return tt_format("step %" PRId64 ": %s is %s in %s, %s in %s", tt_cli_int(first, "step"),
                     tt_cli_text(first, "field"), a, tt_cli_text(json, "a"), b, tt_cli_text(json, "b"));
}

static const char *rough(char *buf, size_t size, const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);

    if (!json_is_number(value))
        return "not finite";
    (void)snprintf(buf, size, "%.3g", json_number_value(value));
    return buf;
}

static void print_fields(const json_t *fields)
{
    char most[32], relative[32];

    for (size_t i = 0; i < json_array_size(fields); i++) {
        const json_t *f = json_array_get(fields, i);
        const char *name = tt_cli_text(f, "field");
        int64_t compared = tt_cli_int(f, "compared"), different = tt_cli_int(f, "different");

        if (different == 0)
            tt_print("  %-16s equal in %" PRId64 " record%s\n", name, compared, compared == 1 ? "" : "s");
        else
            tt_print("  %-16s differs in %" PRId64 " of %" PRId64 " records, first at step %" PRId64
                     ", most at step %" PRId64 ": by %s (relative %s)\n",
                     name, different, compared, tt_cli_int(f, "first_step"), tt_cli_int(f, "max_step"),
                     rough(most, sizeof most, f, "max_abs"), rough(relative, sizeof relative, f, "max_rel"));
    }
}

static void print_only(const char *where, const json_t *ranges)
{
    enum { SHOWN = 5 };
    size_t n = json_array_size(ranges);

    for (size_t i = 0; i < n && i < SHOWN; i++) {
        const json_t *r = json_array_get(ranges, i);
        int64_t count = tt_cli_int(r, "count");

        tt_print("only in %s: step%s %" PRId64, where, count == 1 ? "" : "s", tt_cli_int(r, "from"));
        if (count > 1)
            tt_print(" to %" PRId64 " (%" PRId64 " records)", tt_cli_int(r, "to"), count);
        tt_print("\n");
    }
    if (n > SHOWN)
        tt_print("only in %s: %zu more ranges of steps\n", where, n - SHOWN);
}

static void print_pairs(const json_t *pairs, const char *title)
{
    if (json_array_size(pairs))
        tt_print("  %s\n", title);
    for (size_t i = 0; i < json_array_size(pairs); i++) {
        const json_t *p = json_array_get(pairs, i);
        char *a = tt_json_text(json_object_get(p, "a")), *b = tt_json_text(json_object_get(p, "b"));

        tt_print("    %s: %s, %s\n", tt_cli_text(p, "key"), a, b);
        tt_free(a);
        tt_free(b);
    }
}

static void print_comparison(const json_t *json)
{
    bool equal = json_is_true(json_object_get(json, "equal"));
    const char *a = tt_cli_text(json, "a"), *b = tt_cli_text(json, "b");
    double tolerance = json_number_value(json_object_get(json, "tolerance"));
    char *first = first_difference(json), number[32];

    if (first)
        tt_print("%s\n", first);
    tt_free(first);
    print_only(a, json_object_get(json, "only_a"));
    print_only(b, json_object_get(json, "only_b"));
    tt_print("%s: %s and %s, %" PRId64 " step%s compared", equal ? "EQUAL" : "DIFFERENT", a, b,
             tt_cli_int(json, "steps"), tt_cli_int(json, "steps") == 1 ? "" : "s");
    if (tolerance > 0.0)
        tt_print(", tolerance %s", tt_text_real(number, sizeof number, tolerance));
    tt_print("\n");
    print_fields(json_object_get(json, "fields"));
    print_pairs(json_object_get(json, "config"), "in the configurations:");
    print_pairs(json_object_get(json, "notes"), "other facts, which do not count as differences:");
}

/* For --assert-equal: reports runs that differ as an error. */
static void say_difference(const json_t *json)
{
    bool in_a = json_array_size(json_object_get(json, "only_a")) > 0;
    const json_t *range = json_array_get(json_object_get(json, in_a ? "only_a" : "only_b"), 0);
    char *first = first_difference(json);

    if (first)
        (void)tt_fail(TT_EINTERNAL, "the runs differ: %s", first);
    else if (range)
        (void)tt_fail(TT_EINTERNAL, "the runs differ: step %" PRId64 " is only in %s", tt_cli_int(range, "from"),
                      tt_cli_text(json, in_a ? "a" : "b"));
    else
        (void)tt_fail(TT_EINTERNAL, "the runs differ: neither has a step to compare");
    (void)tt_cli_fail(TT_EINTERNAL);
    tt_free(first);
}

/* --- gradients --- */

static int write_page(const json_t *json, const char *path)
{
    struct tt_text text = {0};
    int rc;

    tt_referee_draw_html(json, &text);
    rc = tt_file_replace(path, text.text, text.size);
    tt_text_release(&text);
    return rc;
}

/* Returns EXIT_DIFFERENT if the dumps differ by more than rounding. */
static int judge(const struct tt_args *args)
{
    struct tt_referee_options o = {
        .reference = tt_args_last(args, "reference"), .dtype = tt_args_last(args, "dtype"), .step = -1};
    json_t *json = NULL;
    bool ok = false;
    int rc = 0;

    TT_TRY(tt_cli_count("compare", args, "step", 0, INT64_MAX - 1, &o.step));
    TT_TRY(tt_referee_judge(args->word[0], args->word[1], &o, &json));
    ok = json_is_true(json_object_get(json, "ok"));
    if (tt_args_last(args, "html"))
        TT_TRY(write_page(json, tt_args_last(args, "html")));
    if (tt_args_has(args, "json"))
        (void)tt_cli_print_json(json_incref(json));
    else
        tt_referee_print(json);
    rc = tt_cli_finish();
    rc = rc == 0 && !ok ? EXIT_DIFFERENT : rc;
out:
    json_decref(json);
    return rc;
}

/* --- the command --- */

/* Options that belong to one kind of comparison only. */
static int check_options(const struct tt_args *args)
{
    static const char of_runs[] = "assert_equal|tolerance|key|from|to", of_dumps[] = "reference|dtype|step|html";
    bool gradients = tt_args_has(args, "gradients");

    for (int i = 0; i < args->n_options; i++) {
        const char *name = args->option[i].option->name;

        if (tt_text_is_one_of(name, gradients ? of_runs : of_dumps))
            return tt_fail(TT_EUSAGE, "compare: --%s %s\nhelp: titan compare --help lists both kinds of comparison",
                           strcmp(name, "assert_equal") == 0 ? "assert-equal" : name,
                           gradients ? "does not go with --gradients" : "needs --gradients");
    }
    return 0;
}

/* Returns EXIT_DIFFERENT if the runs differ. */
static int compare(const struct tt_args *args)
{
    struct tt_compare_options o = {.from = 0, .to = INT64_MAX - 1};
    const char *field[FIELDS_MOST];
    json_t *json = NULL;
    bool equal = false;
    char *text = NULL;
    int rc = 0;

    if (args->n_words != 2) {
        rc = tt_fail(TT_EUSAGE, "compare: two runs are needed, %d given\nhelp: titan compare A B [--assert-equal]",
                     args->n_words);
        goto out;
    }
    TT_TRY(check_options(args));
    if (tt_args_has(args, "gradients")) {
        rc = judge(args);
        goto out;
    }
    TT_TRY(tt_cli_real("compare", args, "tolerance", 0.0, DBL_MAX, "a number of 0 or more", &o.tolerance));
    TT_TRY(tt_cli_count("compare", args, "from", 0, INT64_MAX - 1, &o.from));
    TT_TRY(tt_cli_count("compare", args, "to", 0, INT64_MAX - 1, &o.to));
    TT_TRY(tt_cli_list("compare", args, "key", FIELDS_MOST, field, &o.n_fields, &text));
    o.field = field;
    TT_TRY(tt_compare_runs(args->word[0], args->word[1], &o, &json));
    equal = json_is_true(json_object_get(json, "equal"));
    if (tt_args_has(args, "json"))
        (void)tt_cli_print_json(json_incref(json));
    else if (!tt_args_has(args, "assert_equal"))
        print_comparison(json);
    else if (!equal)
        say_difference(json);
    rc = tt_cli_finish();
    rc = rc == 0 && !equal ? EXIT_DIFFERENT : rc;
out:
    tt_free(text);
    json_decref(json);
    return rc;
}

const struct tt_command tt_command_compare = {
    .name = "compare",
    .arguments = "A B [--assert-equal], or --gradients A B",
    .summary = "the first step and field in which two runs differ, or gradients",
    .usage = usage,
    .options = options,
    .run = compare,
};

/* SPDX-License-Identifier: MIT
 *
 * titan compare A B: the first step and field in which two runs differ. Like diff(1), 0 means equal and 1 different.
 */
#include "cli/watch/compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/run/screen.h"
#include "core/base/mem.h"
#include "core/base/text.h"

const struct tt_option tt_compare_options[] = {
    {"assert_equal", NULL, NULL, "print nothing but the first difference, as an error"},
    {"tolerance", NULL, "X", "numbers may differ by X times the larger one (default 0: the same bits)"},
    {"key", NULL, "FIELD,...", "compare these fields of the step records (default: loss, grad_norm, lr, ntokens_seen)"},
    {"from", NULL, "STEP", "compare from this step on"},
    {"to", NULL, "STEP", "compare up to this step"},
    {"json", NULL, NULL, "print JSON"},
    TT_OPTION_HELP,
    {0},
};

static const char usage[] =
    "usage: titan compare A B [--assert-equal] [--tolerance X] [options]\n\n"
    "Compares what two runs recorded: steps, losses, gradient norms, learning rates, tokens, and validation\n"
    "losses. A and B are run folders or files metrics.jsonl. Exit code 0: equal; 1: different.\n\n";

enum { EXIT_DIFFERENT = 1, FIELDS_MOST = 32 };

/* --- text --- */

static json_int_t integer(const json_t *json, const char *key)
{
    return json_integer_value(json_object_get(json, key));
}

static const char *string(const json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));

    return text ? text : "-";
}

/* The name of a field as it can be printed, since the records may be another user's. Caller: tt_free. */
static char *field_name(const json_t *json)
{
    struct tt_text name = {0};

    tt_text_add(&name, "%s", string(json, "field"));
    tt_text_make_printable(&name);
    return name.text;
}

/* A number rounded to so many digits; "not finite" for null. */
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

/* The values of both runs in a member of their comparison, with enough digits to tell them apart. */
struct values {
    char text[2][32];
    const char *a, *b;
};

static void show_values(const json_t *json, struct values *v)
{
    const json_t *a = json_object_get(json, "a"), *b = json_object_get(json, "b");

    for (int digits = 6; digits <= 17; digits++) {
        v->a = rounded(v->text[0], sizeof v->text[0], a, digits);
        v->b = rounded(v->text[1], sizeof v->text[1], b, digits);
        if (strcmp(v->a, v->b) != 0)
            break;
    }
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
        char *name = field_name(f);

        if (integer(f, "different") == 0)
            tt_print("  %-16s equal in %" JSON_INTEGER_FORMAT " record%s\n", name, integer(f, "compared"),
                     integer(f, "compared") == 1 ? "" : "s");
        else
            tt_print("  %-16s differs in %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT
                     " records, first at step %" JSON_INTEGER_FORMAT ", most at step %" JSON_INTEGER_FORMAT
                     ": by %s (relative %s)\n",
                     name, integer(f, "different"), integer(f, "compared"), integer(f, "first_step"),
                     integer(f, "max_step"), rough(most, sizeof most, f, "max_abs"),
                     rough(relative, sizeof relative, f, "max_rel"));
        tt_free(name);
    }
}

static void print_only(const char *where, const json_t *ranges)
{
    enum { SHOWN = 5 };
    size_t n = json_array_size(ranges);

    for (size_t i = 0; i < n && i < SHOWN; i++) {
        const json_t *r = json_array_get(ranges, i);

        tt_print("only in %s: step%s %" JSON_INTEGER_FORMAT, where, integer(r, "count") == 1 ? "" : "s",
                 integer(r, "from"));
        if (integer(r, "count") > 1)
            tt_print(" to %" JSON_INTEGER_FORMAT " (%" JSON_INTEGER_FORMAT " records)", integer(r, "to"),
                     integer(r, "count"));
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
        struct tt_text line = {0};

        tt_text_add(&line, "    %s: %s, %s\n", string(p, "key"), a, b);
        tt_text_make_printable(&line); /* the records may be another user's */
        tt_print("%s", line.text);
        tt_text_release(&line);
        tt_free(a);
        tt_free(b);
    }
}

static void print_comparison(const json_t *json)
{
    const json_t *first = json_object_get(json, "first");
    bool equal = json_is_true(json_object_get(json, "equal"));
    char *name = field_name(first), tolerance[32];
    struct values values;

    show_values(first, &values);
    if (json_is_object(first))
        tt_print("step %" JSON_INTEGER_FORMAT ": %s is %s in %s, %s in %s\n", integer(first, "step"), name, values.a,
                 string(json, "a"), values.b, string(json, "b"));
    tt_free(name);
    print_only(string(json, "a"), json_object_get(json, "only_a"));
    print_only(string(json, "b"), json_object_get(json, "only_b"));
    tt_print("%s: %s and %s, %" JSON_INTEGER_FORMAT " step%s compared", equal ? "EQUAL" : "DIFFERENT",
             string(json, "a"), string(json, "b"), integer(json, "steps"), integer(json, "steps") == 1 ? "" : "s");
    if (json_number_value(json_object_get(json, "tolerance")) > 0.0)
        tt_print(", tolerance %s",
                 tt_text_real(tolerance, sizeof tolerance, json_number_value(json_object_get(json, "tolerance"))));
    tt_print("\n");
    print_fields(json_object_get(json, "fields"));
    print_pairs(json_object_get(json, "config"), "in the configurations:");
    print_pairs(json_object_get(json, "notes"), "other facts, which do not count as differences:");
}

/* What --assert-equal says of runs that are not equal. */
static void say_difference(const json_t *json)
{
    const json_t *first = json_object_get(json, "first"), *range = NULL;
    bool in_a = json_array_size(json_object_get(json, "only_a")) > 0;
    char *name = field_name(first);
    struct values values;
    int rc = 0;

    show_values(first, &values);
    if (json_is_object(first))
        rc = tt_fail(TT_EINTERNAL, "the runs differ: step %" JSON_INTEGER_FORMAT ": %s is %s in %s, %s in %s",
                     integer(first, "step"), name, values.a, string(json, "a"), values.b, string(json, "b"));
    tt_free(name);
    if (rc < 0) {
        (void)tt_cli_fail(rc);
        return;
    }
    range = json_array_get(json_object_get(json, in_a ? "only_a" : "only_b"), 0);
    if (range)
        (void)tt_cli_fail(tt_fail(TT_EINTERNAL, "the runs differ: step %" JSON_INTEGER_FORMAT " is only in %s",
                                  integer(range, "from"), string(json, in_a ? "a" : "b")));
    else
        (void)tt_cli_fail(tt_fail(TT_EINTERNAL, "the runs differ: neither has a step to compare"));
}

/* --- the command --- */

static int read_tolerance(const struct tt_args *args, double *ret_tolerance)
{
    const char *text = tt_args_last(args, "tolerance");
    char *end = NULL;

    *ret_tolerance = 0.0;
    if (!text)
        return 0;
    *ret_tolerance = strtod(text, &end);
    if (end == text || *end || !(*ret_tolerance >= 0.0) || !isfinite(*ret_tolerance))
        return tt_fail(TT_EUSAGE, "compare: --tolerance '%s' is not a number of 0 or more", text);
    return 0;
}

/* Cuts the lists of --key, which may repeat, into words of `text`. */
static int read_fields(const struct tt_args *args, char **text, const char **field, int *ret_n)
{
    struct tt_text all = {0};
    int n = 0;
    char *rest = NULL;

    for (int i = 0; tt_args_value(args, "key", i); i++)
        tt_text_add(&all, "%s,", tt_args_value(args, "key", i));
    *text = all.text;
    for (char *word = all.text ? strtok_r(all.text, ",", &rest) : NULL; word; word = strtok_r(NULL, ",", &rest)) {
        if (n == FIELDS_MOST)
            return tt_fail(TT_EUSAGE, "compare: --key takes at most %d fields", FIELDS_MOST);
        field[n++] = word;
    }
    *ret_n = n;
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
    TT_TRY(read_tolerance(args, &o.tolerance));
    TT_TRY(tt_cli_count("compare", args, "from", 0, INT64_MAX - 1, &o.from));
    TT_TRY(tt_cli_count("compare", args, "to", 0, INT64_MAX - 1, &o.to));
    TT_TRY(read_fields(args, &text, field, &o.n_fields));
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

int tt_command_compare(int argc, char **argv)
{
    return tt_cli_run(argc, argv, "compare", usage, tt_compare_options, compare);
}

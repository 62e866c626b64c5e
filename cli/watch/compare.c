/* SPDX-License-Identifier: MIT
 *
 * Compares two runs by their records.
 */
#include "cli/watch/compare.h"

#include <math.h>
#include <string.h>

#include "cli/watch/history.h"
#include "core/base/mem.h"
#include "trainer/step/metrics.h"

struct comparison {
    const struct tt_compare_options *options;
    struct tt_history run[2];
    json_t *fields, *only[2];
    json_t *first; /* the difference at the smallest step, so far */
    int64_t first_step;
};

static bool is_equal(double a, double b, double tolerance)
{
    if (isnan(a) || isnan(b))
        return isnan(a) && isnan(b);
    return a == b || fabs(a - b) <= tolerance * fmax(fabs(a), fabs(b));
}

/* --- numbers --- */

struct found {
    int64_t compared, different, first, most_step;
    double first_a, first_b, max_abs, max_rel;
};

static void compare_pair(struct found *f, int64_t step, double a, double b, double tolerance)
{
    double delta = fabs(a - b), size = fmax(fabs(a), fabs(b));

    f->compared++;
    if (is_equal(a, b, tolerance))
        return;
    if (f->different++ == 0) {
        f->first = step;
        f->first_a = a;
        f->first_b = b;
        f->most_step = step;
    }
    if (delta > f->max_abs || (isnan(delta) && !isnan(f->max_abs))) {
        f->max_abs = delta;
        f->most_step = step;
    }
    if (isnan(delta) || (size > 0.0 && delta / size > f->max_rel))
        f->max_rel = isnan(delta) ? delta : delta / size;
}

/* Iterates over the rows of two tables whose steps are in a range, and pairs rows with equal steps. */
struct pairing {
    const struct tt_table *t[2];
    int64_t row[2], to;
};

static struct pairing pair_up(const struct comparison *c, const struct tt_table *a, const struct tt_table *b)
{
    return (struct pairing){.t = {a, b},
                            .row = {tt_table_find(a, c->options->from), tt_table_find(b, c->options->from)},
                            .to = c->options->to};
}

/* The table of the next row, 0 or 1, or 2 if both have a row with its step; -1 at the end. The caller advances. */
static int next_row(const struct pairing *p, int64_t *ret_step)
{
    int64_t step[2];

    for (int s = 0; s < 2; s++) {
        step[s] = p->row[s] < p->t[s]->n ? p->t[s]->step[p->row[s]] : INT64_MAX;
        if (step[s] > p->to)
            step[s] = INT64_MAX;
    }
    *ret_step = step[0] < step[1] ? step[0] : step[1];
    return *ret_step == INT64_MAX ? -1 : step[0] == step[1] ? 2 : step[1] < step[0];
}

static void advance(struct pairing *p, int side)
{
    p->row[0] += side != 1;
    p->row[1] += side != 0;
}

static void add_field(struct comparison *c, const char *name, const struct found *f)
{
    bool differs = f->different > 0;

    (void)json_array_append_new(c->fields, json_pack("{s:s, s:I, s:I, s:o, s:o, s:o, s:o}", "field", name, "compared",
                                                     (json_int_t)f->compared, "different", (json_int_t)f->different,
                                                     "first_step", differs ? json_integer(f->first) : json_null(),
                                                     "max_abs", differs ? tt_json_number(f->max_abs) : json_null(),
                                                     "max_rel", differs ? tt_json_number(f->max_rel) : json_null(),
                                                     "max_step", differs ? json_integer(f->most_step) : json_null()));
    if (!differs || (c->first && c->first_step <= f->first))
        return;
    json_decref(c->first);
    c->first_step = f->first;
    c->first = json_pack("{s:I, s:s, s:o, s:o}", "step", (json_int_t)f->first, "field", name, "a",
                         tt_json_number(f->first_a), "b", tt_json_number(f->first_b));
}

/* Compares one column, named `called` in the report. A column that a table lacks counts as NaN. Validations are not
 * mentioned if there are none. */
static void compare_column(struct comparison *c, const struct tt_table *a, const struct tt_table *b, const char *column,
                           const char *called)
{
    const double *x = tt_table_column(a, column), *y = tt_table_column(b, column);
    struct pairing p = pair_up(c, a, b);
    struct found found = {.compared = 0};
    int64_t step;
    int side;

    while ((side = next_row(&p, &step)) >= 0) {
        if (side == 2)
            compare_pair(&found, step, x ? x[p.row[0]] : (double)NAN, y ? y[p.row[1]] : (double)NAN,
                         c->options->tolerance);
        advance(&p, side);
    }
    if (found.compared || called == column)
        add_field(c, called, &found);
}

/* Compares the loss on all sets together, and on each set that both runs have. */
static void compare_validations(struct comparison *c)
{
    const struct tt_table *a = &c->run[0].validations, *b = &c->run[1].validations;

    compare_column(c, a, b, "loss", "validation loss");
    for (int i = 0; i < a->n_columns; i++) {
        const char *set = tt_table_set_name(a->name[i]);
        char *called = set ? tt_format("validation loss on %s", set) : NULL;

        if (set && tt_table_column(b, a->name[i]))
            compare_column(c, a, b, a->name[i], called);
        tt_free(called);
    }
}

static int compare_fields(struct comparison *c)
{
    const struct tt_table *a = &c->run[0].steps, *b = &c->run[1].steps;
    const char *const *field = c->options->field;

    for (enum tt_metric k = 0; k < TT_METRICS && c->options->n_fields == 0; k++)
        if (tt_metric_rows[k].watch & TT_WATCH_COMPARE)
            compare_column(c, a, b, tt_metric_rows[k].name, tt_metric_rows[k].name);
    for (int i = 0; i < c->options->n_fields; i++) {
        if (!tt_table_column(a, field[i]) && !tt_table_column(b, field[i]))
            return tt_fail(TT_EUSAGE,
                           "no step record has a number '%s'\nhelp: titan-train(1) lists the fields of metrics.jsonl",
                           field[i]);
        compare_column(c, a, b, field[i], field[i]);
    }
    if (c->options->n_fields == 0)
        compare_validations(c);
    return 0;
}

/* --- steps of only one run --- */

static void add_range(json_t *ranges, int64_t from, int64_t to, int64_t count)
{
    if (count)
        (void)json_array_append_new(ranges, json_pack("{s:I, s:I, s:I}", "from", (json_int_t)from, "to", (json_int_t)to,
                                                      "count", (json_int_t)count));
}

/* Returns the number of steps that both runs have, and lists the ranges of steps that only one run has. */
static int64_t compare_steps(struct comparison *c)
{
    struct pairing p = pair_up(c, &c->run[0].steps, &c->run[1].steps);
    int64_t from[2] = {0, 0}, to[2] = {0, 0}, count[2] = {0, 0}, both = 0, step;
    int side;

    do {
        side = next_row(&p, &step);
        for (int s = 0; s < 2; s++) {
            if (side == s) {
                from[s] = count[s]++ ? from[s] : step;
                to[s] = step;
            } else {
                add_range(c->only[s], from[s], to[s], count[s]);
                count[s] = 0;
            }
        }
        both += side == 2;
        if (side >= 0)
            advance(&p, side);
    } while (side >= 0);
    return both;
}

/* --- configurations --- */

/* Adds a key to the list if the configurations differ in it, unless a configuration before number s contains it. */
static void add_key(json_t *list, int n, const json_t *const *config, int s, const char *section, const char *key)
{
    json_t *values = json_array(), *first = NULL;
    bool is_new = strcmp(key, "dump_folder") != 0, differs = false;

    for (int i = 0; i < n; i++) {
        json_t *value = json_object_get(json_object_get(config[i], section), key);

        first = i ? first : value;
        is_new = is_new && !(i < s && value);
        /* json_equal does not accept NULL as equal */
        differs = differs || (value != first && !json_equal(value, first));
        (void)json_array_append_new(values, value ? json_incref(value) : json_null());
    }
    if (is_new && differs)
        (void)json_array_append_new(
            list, json_pack("{s:o, s:O}", "key", json_sprintf("%s.%s", section, key), "values", values));
    json_decref(values);
}

json_t *tt_compare_configs(int n, const json_t *const *config)
{
    json_t *list = json_array(), *section, *value;
    const char *name, *key;

    for (int s = 0; s < n; s++) {
        json_object_foreach((json_t *)(uintptr_t)config[s], name, section)
        {
            json_object_foreach(section, key, value) add_key(list, n, config, s, name, key);
        }
    }
    return list;
}

static void add_pair(json_t *list, json_t *key, const json_t *a, const json_t *b)
{
    (void)json_array_append_new(list, json_pack("{s:o, s:O?, s:O?}", "key", key, "a", a, "b", b));
}

static json_t *config_differences(const json_t *a, const json_t *b)
{
    json_t *list = json_array(), *found = tt_compare_configs(2, (const json_t *const[]){a, b}), *row;
    size_t i;

    json_array_foreach(found, i, row)
    {
        const json_t *values = json_object_get(row, "values");

        add_pair(list, json_incref(json_object_get(row, "key")), json_array_get(values, 0), json_array_get(values, 1));
    }
    json_decref(found);
    return list;
}

static json_t *note_differences(const json_t *a, const json_t *b)
{
    static const char *const keys[] = {"version", "world", "threads_per_rank", "kernels", "weights", "layout_exact"};
    json_t *list = json_array();

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const json_t *one = json_object_get(a, keys[i]), *other = json_object_get(b, keys[i]);

        if (one != other && !json_equal(one, other))
            add_pair(list, json_string(keys[i]), one, other);
    }
    return list;
}

int tt_compare_runs(const char *a, const char *b, const struct tt_compare_options *options, json_t **ret_json)
{
    struct comparison c = {
        .options = options, .fields = json_array(), .only = {json_array(), json_array()}, .first = NULL};
    const char *given[2] = {a, b};
    int64_t steps;
    bool equal;
    int rc = 0;

    for (int s = 0; s < 2; s++)
        TT_TRY(tt_history_load(given[s], false, &c.run[s]));
    steps = compare_steps(&c);
    TT_TRY(compare_fields(&c));
    equal = steps > 0 && !c.first && !json_array_size(c.only[0]) && !json_array_size(c.only[1]);
    *ret_json = json_pack(
        "{s:s, s:i, s:o, s:o, s:b, s:I, s:f, s:O?, s:O, s:O, s:O, s:o, s:o}", "type", "compare", "schema", 1, "a",
        tt_json_string(a), "b", tt_json_string(b), "equal", equal, "steps", (json_int_t)steps, "tolerance",
        options->tolerance, "first", c.first, "fields", c.fields, "only_a", c.only[0], "only_b", c.only[1], "config",
        config_differences(json_object_get(c.run[0].run, "config"), json_object_get(c.run[1].run, "config")), "notes",
        note_differences(c.run[0].run, c.run[1].run));
out:
    for (int s = 0; s < 2; s++) {
        tt_history_release(&c.run[s]);
        json_decref(c.only[s]);
    }
    json_decref(c.fields);
    json_decref(c.first);
    return rc;
}

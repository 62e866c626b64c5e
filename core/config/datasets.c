/* SPDX-License-Identifier: MIT
 *
 * Values of the keys that name datasets: one word, or a list of mappings. The rows of entry.def say what a mapping may
 * contain, as the rows of schema.def do for the configuration.
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/config/internal.h"

enum { ENTRIES_MOST = 64 }; /* most entries of a list; core/data/sampler.h has the same limit */

static void *field_of(const struct tt_dataset_entry *entry, const struct tt_config_row *row)
{
    return (char *)entry + row->offset;
}

void tt_config_datasets_release(struct tt_datasets *d)
{
    for (int i = 0; i < d->n; i++)
        for (int k = 0; k < tt_config_n_entry_rows; k++)
            tt_config_member_release(&tt_config_entry_rows[k], field_of(&d->entry[i], &tt_config_entry_rows[k]));
    tt_free(d->entry);
    *d = (struct tt_datasets){.n = 0};
}

/* --- reading --- */

static void set_defaults(struct tt_dataset_entry *entry)
{
    *entry = (struct tt_dataset_entry){.line = 0};
    for (int i = 0; i < tt_config_n_entry_rows; i++) {
        const struct tt_config_row *row = &tt_config_entry_rows[i];

        (void)tt_config_flag_set(row, field_of(entry, row), row->preset ? row->preset : "null", NULL);
    }
}

/* The row of a key, in which '-' counts as '_'. */
static const struct tt_config_row *find_row(const char *key)
{
    for (int i = 0; i < tt_config_n_entry_rows; i++) {
        const char *name = tt_config_entry_rows[i].key;
        size_t n = 0;

        while (key[n] && (key[n] == '-' ? '_' : key[n]) == name[n])
            n++;
        if (!key[n] && !name[n])
            return &tt_config_entry_rows[i];
    }
    return NULL;
}

static void report_unknown(const char *key, struct tt_text *why)
{
    const char *names[16], *near;
    int n = tt_config_n_entry_rows < 16 ? tt_config_n_entry_rows : 16;

    for (int i = 0; i < n; i++)
        names[i] = tt_config_entry_rows[i].key;
    near = tt_text_nearest(key, names, n);
    tt_text_add(why, "unknown key '%.60s'\nhelp: ", key);
    if (near)
        tt_text_add(why, "did you mean '%s'? ", near);
    tt_text_add(why, "the keys of an entry are ");
    for (int i = 0; i < n; i++)
        tt_text_add(why, "%s%s", i ? ", " : "", names[i]);
}

static bool set_pair(struct tt_dataset_entry *entry, const struct tt_yaml *map, int i, bool is_flag,
                     struct tt_text *why, const struct tt_yaml **fault)
{
    const struct tt_yaml *key = map->key[i], *value = map->item[i];
    const struct tt_config_row *row = find_row(key->text);
    struct tt_text reason = {0};
    bool ok = false;

    *fault = key;
    for (int k = 0; k < i && row; k++) {
        if (find_row(map->key[k]->text) == row) {
            tt_text_add(why, "duplicate key '%s'", row->key);
            return false;
        }
    }
    if (!row) {
        report_unknown(key->text, why);
        return false;
    }
    ok = tt_config_member_set(row, field_of(entry, row), value, is_flag, &reason, NULL);
    if (!ok) {
        tt_text_add(why, "%s: %s", row->key, reason.text);
        *fault = tt_yaml_is_null(value) && !*value->text ? key : value;
    }
    tt_text_release(&reason);
    return ok;
}

static bool set_entry(struct tt_dataset_entry *entry, const struct tt_yaml *node, bool is_flag, struct tt_text *why,
                      const struct tt_yaml **fault)
{
    set_defaults(entry);
    entry->line = is_flag ? 0 : node->line;
    entry->column = node->column;
    *fault = node;
    if (node->kind == TT_YAML_SCALAR)
        return tt_config_choice_set(find_row("dataset"), &entry->dataset, node, why);
    if (node->kind == TT_YAML_LIST) {
        tt_text_add(why, "expected a mapping such as {dataset: text, dataset_path: FILE, weight: 1}, found a list");
        return false;
    }
    for (int i = 0; i < node->n; i++)
        if (!set_pair(entry, node, i, is_flag, why, fault))
            return false;
    *fault = node;
    if (!entry->dataset)
        tt_text_add(why,
                    "the key 'dataset' is missing\nhelp: it says what the entry is: kjv, text, jsonl, tokens, ...");
    return entry->dataset;
}

static bool set_list(struct tt_datasets *member, const struct tt_yaml *list, bool is_flag, struct tt_text *why,
                     const struct tt_yaml **fault)
{
    struct tt_datasets d = {.is_list = true};
    bool ok = list->n >= 1 && list->n <= ENTRIES_MOST;

    *fault = list;
    if (!ok)
        tt_text_add(why, list->n ? "the list has %d entries, the limit is %d" : "the list is empty", list->n,
                    ENTRIES_MOST);
    d.entry = tt_calloc((size_t)list->n, sizeof *d.entry);
    while (ok && d.n < list->n) {
        struct tt_text reason = {0};

        ok = set_entry(&d.entry[d.n], list->item[d.n], is_flag, &reason, fault);
        d.n++;
        if (!ok)
            tt_text_add(why, "entry %d: %s", d.n, reason.text);
        tt_text_release(&reason);
    }
    if (ok) {
        tt_config_datasets_release(member);
        *member = d;
    } else {
        tt_config_datasets_release(&d);
    }
    return ok;
}

/* Adds the place of a fault within the text of a flag. */
static void add_place(const char *text, int line, int column, struct tt_text *why)
{
    const char *begin = text;
    size_t at;

    for (int i = 1; i < line && strchr(begin, '\n'); i++)
        begin = strchr(begin, '\n') + 1;
    at = (size_t)(begin - text) + (size_t)column;
    if (at > strlen(text))
        tt_text_add(why, " at its end");
    else
        tt_text_add(why, " at character %zu", at);
}

/* Sets a list from the value of a flag, in YAML's flow style. */
static bool set_flow(struct tt_datasets *member, const char *text, struct tt_text *why)
{
    struct tt_yaml_doc doc = {0};
    const struct tt_yaml *fault;
    int line = 0, column = 0;
    bool ok = tt_yaml_parse(text, strlen(text), &doc, &line, &column, why);

    if (!ok) {
        add_place(text, line, column, why);
        tt_text_add(why, "\nhelp: a list is written as [{dataset: text, dataset_path: FILE}, ...]");
    }
    ok = ok && set_list(member, doc.root, true, why, &fault);
    tt_yaml_release(&doc);
    return ok;
}

bool tt_config_datasets_set(const struct tt_config_row *row, struct tt_datasets *member, const struct tt_yaml *node,
                            bool is_flag, struct tt_text *why, const struct tt_yaml **ret_fault)
{
    const struct tt_yaml *fault = node;
    struct tt_datasets d;
    const char *word = NULL;

    if (node->kind == TT_YAML_LIST) {
        bool ok = set_list(member, node, is_flag, why, &fault);

        if (!ok && ret_fault)
            *ret_fault = fault;
        return ok;
    }
    if (is_flag && node->kind == TT_YAML_SCALAR && node->text[0] == '[')
        return set_flow(member, node->text, why);
    if (!tt_config_choice_set(row, &word, node, why))
        return false;
    d = (struct tt_datasets){.n = 1, .entry = tt_calloc(1, sizeof *d.entry)};
    set_defaults(d.entry);
    d.entry->dataset = word;
    tt_config_datasets_release(member);
    *member = d;
    return true;
}

/* --- completing entries --- */

static bool has_name(const struct tt_datasets *d, const char *name)
{
    for (int i = 0; i < d->n; i++)
        if (d->entry[i].name && strcmp(d->entry[i].name, name) == 0)
            return true;
    return false;
}

/* Replaces kjv by its held-back chapters. The entry keeps a name that the user gave. If another entry is called
 * kjv_validation, it also keeps the name "kjv", since names must differ. */
static void hold_back(struct tt_dataset_entry *entry, const struct tt_datasets *training)
{
    static const char held_back[] = "kjv_validation";

    if (entry->name && strcmp(entry->name, entry->dataset) == 0 && !has_name(training, held_back)) {
        tt_free((void *)entry->name);
        entry->name = tt_strdup(held_back);
    }
    tt_free((void *)entry->dataset);
    entry->dataset = tt_strdup(held_back);
}

struct tt_datasets tt_config_datasets_held_back(const struct tt_datasets *d, bool same)
{
    struct tt_datasets copy = {.n = d->n, .is_list = d->is_list, .entry = tt_calloc((size_t)d->n, sizeof *copy.entry)};

    for (int i = 0; i < d->n; i++) {
        set_defaults(&copy.entry[i]);
        for (int k = 0; k < tt_config_n_entry_rows; k++) {
            const struct tt_config_row *row = &tt_config_entry_rows[k];

            if (row->kind != TT_KIND_REAL)
                *(char **)field_of(&copy.entry[i], row) = tt_strdup(*(char *const *)field_of(&d->entry[i], row));
        }
        if (!same && strcmp(d->entry[i].dataset, "kjv") == 0)
            hold_back(&copy.entry[i], d);
    }
    return copy;
}

struct tt_dataset_entry tt_config_dataset(const struct tt_config *cfg, const struct tt_datasets *d, int i)
{
    struct tt_dataset_entry e = d->entry[i];

    if (!d->is_list) {
        e.name = e.dataset;
        e.dataset_path = d == &cfg->validation.dataset ? cfg->validation.dataset_path : cfg->training.dataset_path;
    }
    if (!e.text_field)
        e.text_field = cfg->training.text_field;
    return e;
}

/* --- writing --- */

/* Whether the entry would mean the same without the key. */
static bool has_default(const struct tt_dataset_entry *entry, const struct tt_config_row *row)
{
    const void *field = field_of(entry, row);

    return row->kind == TT_KIND_REAL ? *(const double *)field == strtod(row->preset, NULL) : !*(char *const *)field;
}

static void add_entry(const struct tt_dataset_entry *entry, struct tt_text *out)
{
    bool is_first = true;

    tt_text_add(out, "{");
    for (int i = 0; i < tt_config_n_entry_rows; i++) {
        const struct tt_config_row *row = &tt_config_entry_rows[i];

        if (has_default(entry, row))
            continue;
        tt_text_add(out, "%s%s: ", is_first ? "" : ", ", row->key);
        if (row->kind == TT_KIND_TEXT)
            tt_yaml_write_text(out, *(char *const *)field_of(entry, row));
        else
            tt_config_member_text(row, field_of(entry, row), out);
        is_first = false;
    }
    tt_text_add(out, "}");
}

void tt_config_datasets_text(const struct tt_datasets *d, struct tt_text *out)
{
    if (!d->is_list) {
        tt_text_add(out, "%s", d->n ? d->entry[0].dataset : "null");
        return;
    }
    for (int i = 0; i < d->n; i++) {
        tt_text_add(out, i ? ", " : "[");
        add_entry(&d->entry[i], out);
    }
    tt_text_add(out, "]");
}

static json_t *entry_json(const struct tt_dataset_entry *entry)
{
    json_t *json = json_object();

    for (int i = 0; i < tt_config_n_entry_rows; i++) {
        const struct tt_config_row *row = &tt_config_entry_rows[i];
        const void *field = field_of(entry, row);

        if (!has_default(entry, row))
            (void)json_object_set_new(json, row->key,
                                      row->kind == TT_KIND_REAL ? tt_json_number(*(const double *)field)
                                                                : tt_json_string(*(char *const *)field));
    }
    return json;
}

json_t *tt_config_datasets_json(const struct tt_datasets *d)
{
    json_t *json;

    if (!d->is_list)
        return d->n ? json_string(d->entry[0].dataset) : json_null();
    json = json_array();
    for (int i = 0; i < d->n; i++)
        (void)json_array_append_new(json, entry_json(&d->entry[i]));
    return json;
}

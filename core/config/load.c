/* SPDX-License-Identifier: MIT
 *
 * The configuration: defaults, then files, then flags, with the origin of each value; then the rules between keys.
 * Order of calls: new, load (or load_text), the flavor's values, any number of reads, free.
 */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/config/config.h"
#include "core/config/internal.h"
#include "core/config/yaml.h"
#include "core/keys/key.h"
#include "core/os/file.h"

/* Sets the origin of a value; takes ownership of both texts. */
static void set_origin(struct tt_config *cfg, const struct tt_config_row *row, char *origin, char *where)
{
    struct tt_config_origin *o = tt_config_origin_of(cfg, row);

    tt_free(o->origin);
    tt_free(o->where);
    o->origin = origin;
    o->where = where;
    o->is_derived = false;
}

int tt_config_new(struct tt_config **ret_config)
{
    struct tt_config *cfg = tt_calloc(1, sizeof *cfg);

    cfg->origins = tt_calloc(1, sizeof *cfg->origins);
    cfg->origins->of = tt_calloc((size_t)tt_config_n_rows, sizeof *cfg->origins->of);
    for (int i = 0; i < tt_config_n_rows; i++) {
        const struct tt_config_row *row = &tt_config_rows[i];

        if (!tt_config_flag_set(row, tt_config_member(cfg, row), row->preset ? row->preset : "null", NULL))
            abort(); /* schema.def is wrong; a unit test checks every row */
        set_origin(cfg, row, tt_strdup("default"), tt_strdup("default"));
    }
    *ret_config = cfg;
    return 0;
}

void tt_config_free(struct tt_config *cfg)
{
    if (!cfg)
        return;
    for (int i = 0; i < tt_config_n_rows; i++) {
        tt_config_member_release(&tt_config_rows[i], tt_config_member(cfg, &tt_config_rows[i]));
        tt_free(cfg->origins->of[i].origin);
        tt_free(cfg->origins->of[i].where);
    }
    tt_free(cfg->origins->of);
    tt_free(cfg->origins);
    tt_free(cfg);
}

const char *tt_config_origin(const struct tt_config *cfg, enum tt_key key)
{
    return tt_config_origin_of(cfg, tt_config_row(key))->origin;
}

/* ---- keys that follow others ---- */

/* Whether the key was not set, or was set to null. */
static bool is_open(const struct tt_config *cfg, enum tt_key key)
{
    struct tt_text value = {0};
    bool open;

    tt_config_value_text(cfg, tt_config_row(key), &value);
    open = strcmp(value.text, "null") == 0;
    tt_text_release(&value);
    return open;
}

/* Marks a value that comes from another key or from the flavor. */
static void derive(struct tt_config *cfg, enum tt_key key, const char *origin)
{
    const struct tt_config_row *row = tt_config_row(key);

    set_origin(cfg, row, tt_strdup(origin), tt_strdup(origin));
    tt_config_origin_of(cfg, row)->is_derived = true;
}

/* The last part of a path, up to its first dot. */
static char *name_of_path(const char *path)
{
    const char *end = path + strlen(path), *begin, *dot;

    while (end > path + 1 && end[-1] == '/')
        end--;
    for (begin = end; begin > path && begin[-1] != '/';)
        begin--;
    dot = begin < end ? memchr(begin + 1, '.', (size_t)(end - begin) - 1) : NULL; /* not the dot of a hidden file */
    return tt_strndup(begin, (size_t)((dot ? dot : end) - begin));
}

/* Gives every entry of a list a name. */
static void name_dataset(struct tt_datasets *d)
{
    for (int i = 0; i < d->n && d->is_list; i++) {
        struct tt_dataset_entry *e = &d->entry[i];

        if (!e->name)
            e->name = e->dataset_path ? name_of_path(e->dataset_path) : tt_strdup(e->dataset);
    }
}

/* Sets the keys that follow other keys unless they are set (validation's data and length). */
static void follow_keys(struct tt_config *cfg)
{
    struct tt_datasets *training = &cfg->training.dataset, *validation = &cfg->validation.dataset;

    name_dataset(training);
    if (is_open(cfg, TT_KEY(validation.seq_len))) {
        cfg->validation.seq_len = cfg->training.seq_len;
        derive(cfg, TT_KEY(validation.seq_len), TT_KEY_NAME(training.seq_len));
    }
    if (is_open(cfg, TT_KEY(validation.dataset))) {
        *validation = tt_config_datasets_held_back(training, cfg->validation.split > 0.0);
        derive(cfg, TT_KEY(validation.dataset), TT_KEY_NAME(training.dataset));
    }
    name_dataset(validation);
    if (!cfg->validation.dataset_path && cfg->training.dataset_path && !validation->is_list && !training->is_list &&
        strcmp(validation->entry->dataset, training->entry->dataset) == 0) {
        cfg->validation.dataset_path = tt_strdup(cfg->training.dataset_path);
        derive(cfg, TT_KEY(validation.dataset_path), TT_KEY_NAME(training.dataset_path));
    }
}

/* ---- the flavor ---- */

int tt_config_set_flavor(struct tt_config *cfg, enum tt_key key, double value)
{
    const struct tt_config_row *row = tt_config_row(key);
    void *member = tt_config_member(cfg, row);

    if (!tt_text_begins(row->section, "model") ||
        (row->kind != TT_KIND_INT && row->kind != TT_KIND_MAYBE && row->kind != TT_KIND_REAL))
        return tt_fail(TT_EINTERNAL, "'%s' is not a key that a flavor can set to such a value", row->path);
    if (!is_open(cfg, key) && strcmp(tt_config_origin_of(cfg, row)->origin, "flavor") != 0)
        return 0; /* a file or a flag has set it; null there means the flavor's value */
    if (row->kind == TT_KIND_INT)
        *(int64_t *)member = (int64_t)value;
    else if (row->kind == TT_KIND_MAYBE)
        *(int *)member = value != 0.0;
    else
        *(double *)member = value;
    derive(cfg, key, "flavor");
    return 0;
}

/* ---- another run ---- */

bool tt_config_is_set(const struct tt_config *cfg, enum tt_key key)
{
    const struct tt_config_origin *o = tt_config_origin_of(cfg, tt_config_row(key));

    return !o->is_derived && strcmp(o->origin, "default") != 0;
}

int tt_config_adopt(struct tt_config *cfg, enum tt_key key, const char *value, const char *origin)
{
    const struct tt_config_row *row = tt_config_row(key);
    struct tt_text why = {0};
    int rc = 0;

    if (tt_config_flag_set(row, tt_config_member(cfg, row), value, &why))
        set_origin(cfg, row, tt_strdup(origin), tt_strdup(origin));
    else
        rc = tt_fail(TT_EDATA, "%s: %s: %s", origin, row->path, why.text);
    tt_text_release(&why);
    return rc;
}

/* ---- where an error is ---- */

static bool is_builtin(const struct tt_config_origin *o)
{
    return tt_text_begins(o->origin, "builtin:");
}

bool tt_config_is_users(const struct tt_config *cfg, const struct tt_config_row *row)
{
    return tt_config_is_set(cfg, row->id) && !is_builtin(tt_config_origin_of(cfg, row));
}

/* Adds the value, and the key that it follows. */
static void add_source(const struct tt_config *cfg, const struct tt_config_row *row, struct tt_text *out)
{
    enum { LONG = 40 };
    const struct tt_config_origin *o = tt_config_origin_of(cfg, row);
    struct tt_text value = {0};
    bool is_null;

    tt_config_value_text(cfg, row, &value);
    is_null = value.size && strcmp(value.text, "null") == 0;
    if (is_null && !o->is_derived)
        tt_text_add(out, "not set");
    else if (value.size && value.size <= LONG)
        tt_text_add(out, "%s ", value.text);
    if (o->is_derived)
        tt_text_add(out, "from %s", strcmp(o->origin, "flavor") == 0 ? TT_KEY_NAME(model.flavor) : o->origin);
    else if (is_builtin(o))
        tt_text_add(out, "in the built-in %s", strcmp(o->origin, "builtin:quick") == 0 ? "quick run" : "configuration");
    else if (!is_null)
        tt_text_add(out, "by default");
    tt_text_release(&value);
}

/*
 * Appends the place of an error about row's value: "my.yaml:3:9: training.steps", "flag --training.steps" or, for a
 * value that the user did not set, "training.steps (10000 by default)".
 */
static void add_place(const struct tt_config *cfg, const struct tt_config_row *row, struct tt_text *out)
{
    const char *where = tt_config_origin_of(cfg, row)->where;

    if (tt_config_is_users(cfg, row)) {
        tt_text_add(out, strstr(where, row->path) ? "%s" : "%s: %s", where, row->path);
        return;
    }
    tt_text_add(out, "%s (", row->path);
    add_source(cfg, row, out);
    tt_text_add(out, ")");
}

char *tt_config_beside(const struct tt_config *cfg, enum tt_key key)
{
    const struct tt_config_row *row = tt_config_row(key);
    const char *where = tt_config_origin_of(cfg, row)->where, *slash = strrchr(where, '/'), *value;
    struct tt_path_info info = {0};
    char *beside, *help = NULL;

    value = row->kind == TT_KIND_TEXT ? *(char *const *)tt_config_member(cfg, row) : NULL;
    if (!value || !*value || *value == '/' || !slash || tt_text_begins(where, "flag ") ||
        tt_path_look(value, &info) < 0 || info.kind != TT_FILE_NONE || info.is_link)
        return NULL;
    beside = tt_format("%.*s/%s", (int)(slash - where), where, value);
    if (tt_path_look(beside, &info) == 0 && info.kind != TT_FILE_NONE)
        help = tt_format("paths are relative to the folder in which titan starts, not to the configuration: write '%s'",
                         beside);
    tt_free(beside);
    return help;
}

int tt_config_locate(const struct tt_config *cfg, int rc)
{
    enum tt_key key = tt_error_key();
    struct tt_text place = {0};
    char *beside;

    if (rc >= 0 || !cfg || key == TT_KEY_NONE)
        return rc;
    add_place(cfg, tt_config_row(key), &place);
    beside = rc == TT_EDATA ? tt_config_beside(cfg, key) : NULL; /* tt_config_beside does nothing if the path exists */
    if (beside)
        tt_error_drop_hint();
    (void)tt_fail(rc, "%s: %s", place.text, tt_error_message());
    if (beside)
        (void)tt_error_add_hint(rc, "%s", beside);
    tt_text_release(&place);
    tt_free(beside);
    return rc;
}

/* ---- collecting errors, so that all mistakes are reported at once ---- */

enum { REPORT_BYTES = 14000 }; /* tt_fail's message holds 16 KiB */

void tt_config_report_add(struct tt_config_report *report, const char *where, const char *fmt, ...)
{
    char message[2048];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    for (char *c = message; *c; c++) {
        if (((unsigned char)*c < 0x20 && *c != '\n') || *c == 0x7f)
            *c = '?'; /* an escape sequence in a file must not reach the terminal */
    }
    report->n++;
    if (report->text.size + strlen(where) + strlen(message) > REPORT_BYTES) {
        report->n_hidden++;
        return;
    }
    tt_text_add(&report->text, "%s%s: %s", report->text.size ? "\n" : "", where, message);
}

void tt_config_report_key(struct tt_config_report *report, const char *where, const char *path, const char *message)
{
    if (!path || (tt_text_begins(where, "flag --") && strcmp(where + 7, path) == 0))
        tt_config_report_add(report, where, "%s", message);
    else
        tt_config_report_add(report, where, "%s: %s", path, message);
}

/* The place of a node in the file, "my.yaml:14:7"; the caller frees it. */
static char *place(const struct tt_config_report *report, const struct tt_yaml *node)
{
    return report->is_builtin ? tt_strdup(report->name) : tt_format("%s:%d:%d", report->name, node->line, node->column);
}

void tt_config_report_at(struct tt_config_report *report, const struct tt_yaml *node, const char *path, const char *fmt,
                         ...)
{
    char *where = place(report, node), *message;
    va_list args;

    va_start(args, fmt);
    message = tt_vformat(fmt, args);
    va_end(args);
    tt_config_report_key(report, where, path, message);
    tt_free(where);
    tt_free(message);
}

static void report_unknown(struct tt_config_report *report, const char *where, const char *what, const char *path)
{
    enum { MOST_SUGGESTIONS = 200 }; /* a file full of unknown keys must be refused quickly */
    struct tt_text help = {0};

    if (report->n < MOST_SUGGESTIONS)
        tt_config_suggest(path, &help);
    tt_config_report_add(report, where, "unknown %s '%s'%s", what, path, help.size ? help.text : "");
    tt_text_release(&help);
}

void tt_config_report_unknown(struct tt_config_report *report, const struct tt_yaml *key, const char *path)
{
    char *where = place(report, key);

    report_unknown(report, where, strchr(path, '.') ? "key" : "section", path);
    tt_free(where);
}

void tt_config_report_unknown_flag(struct tt_config_report *report, const char *where, const char *path)
{
    report_unknown(report, where, "key", path);
}

void tt_config_report_value(struct tt_config_report *report, const struct tt_config *cfg,
                            const struct tt_config_row *row, const char *message)
{
    struct tt_text place = {0};

    add_place(cfg, row, &place);
    tt_config_report_add(report, place.text, "%s", message);
    tt_text_release(&place);
}

/* If there are several errors, each help line is indented below its error. */
static void add_indented(struct tt_text *out, const char *text)
{
    const char *help;

    while ((help = strstr(text, "\nhelp: "))) {
        tt_text_add_bytes(out, text, (size_t)(help - text));
        tt_text_add(out, "\n  help: ");
        text = help + strlen("\nhelp: ");
    }
    tt_text_add(out, "%s", text);
}

int tt_config_report_finish(struct tt_config_report *report)
{
    int rc = 0;
    char *line = report->notes.text, *end;

    if (report->n == 1) {
        rc = tt_fail(TT_EUSAGE, "%s", report->text.text);
    } else if (report->n > 1) {
        struct tt_text all = {0};

        add_indented(&all, report->text.text);
        if (report->n_hidden)
            tt_text_add(&all, "\nand %d more", report->n_hidden);
        rc = tt_fail(TT_EUSAGE, "%d errors in the %s\n%s", report->n,
                     report->subject ? report->subject : "configuration", all.text);
        tt_text_release(&all);
    } else {
        for (; line && *line; line = end + 1) {
            end = strchr(line, '\n');
            *end = 0;
            tt_note("%s", line);
        }
    }
    tt_text_release(&report->text);
    tt_text_release(&report->notes);
    return rc;
}

/* ---- configurations that come with titan, in the program or installed with it ---- */

/* The configuration that `titan train` runs without a file: a one-minute run that learns something on any machine. */
static const char quick[] = "job:\n"
                            "  dump_folder: ./outputs/quick\n"
                            "  description: built-in quick run\n"
                            "model:\n"
                            "  name: llama3\n"
                            "  flavor: debugmodel\n"
                            "training:\n"
                            "  dataset: kjv\n"
                            "  seq_len: 256\n"
                            "  local_batch_size: 2\n"
                            "  global_batch_size: 8\n"
                            "  steps: 60\n"
                            "optimizer:\n"
                            "  lr: 8e-4\n"
                            "lr_scheduler:\n"
                            "  warmup_steps: 2\n"
                            "  decay_ratio: 0.8\n"
                            "  decay_type: linear\n"
                            "checkpoint:\n"
                            "  enable: true\n"
                            "  interval: 30\n"
                            "metrics:\n"
                            "  log_freq: 1\n"
                            "validation:\n"
                            "  local_batch_size: 4\n";

const struct tt_config_builtin tt_config_builtins[] = {
    {"builtin:quick", quick},
    {"builtin:defaults", ""},
};
const int tt_config_n_builtins = sizeof tt_config_builtins / sizeof *tt_config_builtins;

/*
 * The installed file for configs/NAME, if no such file exists here: PREFIX/share/titan/configs/NAME if the running
 * program is PREFIX/bin/titan, so that an installation can be moved. NULL if there is none. The caller frees it
 * (tt_free).
 */
static char *find_shipped(const char *path)
{
    static const char folder[] = "configs/";
    struct tt_path_info info = {0};
    char *program, *slash, *found = NULL;

    if (strncmp(path, folder, strlen(folder)) != 0 || strchr(path + strlen(folder), '/') ||
        tt_path_look(path, &info) < 0 || info.is_link || info.kind != TT_FILE_NONE)
        return NULL;
    program = tt_path_of_program();
    for (int i = 0; i < 2 && program; i++) { /* PREFIX/bin/titan */
        slash = strrchr(program, '/');
        if (slash)
            *slash = 0;
    }
    if (program)
        found = tt_format("%s/share/titan/%s", program, path);
    tt_free(program);
    if (found && tt_path_look(found, &info) == 0 && info.kind == TT_FILE_REGULAR)
        return found;
    tt_free(found);
    return NULL;
}

/* ---- files ---- */

struct reading {
    struct tt_config *cfg;
    struct tt_config_report report;
};

/* The position of a wrong value; if the value is missing, the position of its key. */
static const struct tt_yaml *spot(const struct tt_yaml *key, const struct tt_yaml *value)
{
    return tt_yaml_is_null(value) && !*value->text ? key : value;
}

/* Notes the effect of null where torchtitan would draw a random value. */
static void note_null(struct tt_config_report *report, const struct tt_config_row *row, const struct tt_yaml *value)
{
    if ((row->flags & TT_FLAG_NULL_DEFAULT) && tt_yaml_is_null(value))
        tt_text_add(&report->notes, "%s: null means the default, %s: a run can always be repeated\n", row->path,
                    row->preset);
}

static void read_value(struct reading *r, const struct tt_config_row *row, const char *path, const struct tt_yaml *key,
                       const struct tt_yaml *value)
{
    struct tt_config_origin *o = tt_config_origin_of(r->cfg, row);
    const struct tt_yaml *fault = value;
    struct tt_text why = {0};

    if (o->line) {
        tt_config_report_at(&r->report, key, NULL, "duplicate key '%s' (first at line %d)", path, o->line);
        return;
    }
    o->line = key->line;
    note_null(&r->report, row, value);
    if (tt_config_member_set(row, tt_config_member(r->cfg, row), value, false, &why, &fault)) {
        set_origin(r->cfg, row,
                   r->report.is_builtin ? tt_strdup(r->report.name) : tt_format("%s:%d", r->report.name, key->line),
                   place(&r->report, value));
    } else {
        o->is_bad = true;
        tt_config_report_at(&r->report, spot(key, fault), path, "%s", why.text);
    }
    tt_text_release(&why);
}

static void read_map(struct reading *r, const char *prefix, const struct tt_yaml *map);

static void read_section(struct reading *r, const char *path, const struct tt_yaml *key, const struct tt_yaml *value)
{
    bool is_toml = value->kind == TT_YAML_SCALAR && strchr(value->text, '=');

    if (value->kind == TT_YAML_MAP) {
        read_map(r, path, value);
    } else if (!tt_yaml_is_null(value)) {
        tt_config_report_at(&r->report, value, path, "expected a mapping of keys, found %s%s",
                            value->kind == TT_YAML_LIST ? "a list" : "a value",
                            is_toml ? "\nhelp: YAML has a colon where TOML has '=': KEY: VALUE" : "");
    } else if (strchr(path, '.')) { /* null for a mapping of nullable keys sets all of them to null */
        for (int i = 0; i < tt_config_n_rows; i++)
            if (strcmp(tt_config_rows[i].section, path) == 0)
                read_value(r, &tt_config_rows[i], tt_config_rows[i].path, key, value);
    }
}

/* Whether there are inactive keys below path, so that their mapping must be read. */
static bool has_inactive_below(const char *path)
{
    size_t n = strlen(path);

    for (int i = 0; i < tt_config_n_inactives; i++) {
        if (strncmp(tt_config_inactives[i].path, path, n) == 0 && tt_config_inactives[i].path[n] == '.')
            return true;
    }
    return false;
}

/* Reports or notes the use of an inactive key. */
static void inactive_use(const struct tt_config_inactive *row, const char *where, const char *path,
                         const struct tt_yaml *node, struct tt_config_report *report)
{
    if (row->kind == TT_INACTIVE_IDLE || tt_config_inactive_is_neutral(row, node))
        return;
    if (row->kind == TT_INACTIVE_REFUSED)
        tt_config_report_add(report, where, "%s is a torchtitan key that titan does not have: %s%s", path, row->why,
                             strchr(row->why, '\n') ? "" : "\nhelp: leave it out");
    else
        tt_text_add(&report->notes, "%s: %s has no effect: %s\n", where, path, row->why);
}

static void read_pair(struct reading *r, const char *path, const struct tt_yaml *key, const struct tt_yaml *value)
{
    const struct tt_config_row *row = tt_config_row_find(path);
    const struct tt_config_inactive *inactive = row ? NULL : tt_config_inactive_find(path);

    if (row) {
        read_value(r, row, path, key, value);
    } else if (tt_config_is_section(path) || has_inactive_below(path)) {
        read_section(r, path, key, value);
    } else if (inactive) {
        char *where = place(&r->report, spot(key, value));

        inactive_use(inactive, where, path, value, &r->report);
        tt_free(where);
    } else {
        tt_config_report_unknown(&r->report, key, path);
    }
}

static void read_map(struct reading *r, const char *prefix, const struct tt_yaml *map)
{
    for (int i = 0; i < map->n; i++) {
        char *path = tt_format("%s%s%s", prefix, *prefix ? "." : "", map->key[i]->text);
        int first = 0;

        for (char *c = path; *c; c++)
            *c = *c == '-' ? '_' : *c;
        while (strcmp(map->key[first]->text, map->key[i]->text) != 0)
            first++;
        if (first < i) {
            tt_config_report_at(&r->report, map->key[i], NULL, "duplicate key '%s' (first at line %d)", path,
                                map->key[first]->line);
        } else if (map->item[i]->is_closed || map->item[i]->kind == TT_YAML_MAP) { /* not cut off by a syntax error */
            read_pair(r, path, map->key[i], map->item[i]);
        }
        tt_free(path);
    }
}

/* Reports a file of another kind, perhaps torchtitan's. */
static bool is_misplaced(struct tt_config_report *report, const char *text, size_t size)
{
    const char *name = report->name;

    if (report->is_builtin)
        return false;
    if (tt_text_ends(name, ".toml") || tt_toml_is_likely(text, size))
        tt_config_report_add(
            report, name,
            "this is TOML, but titan reads YAML\nhelp: `titan config import %s --out FILE.yaml` converts "
            "a torchtitan file",
            name);
    else if (tt_text_ends(name, ".py"))
        tt_config_report_add(report, name, "%s", tt_config_python);
    else
        return false;
    report->is_partial = true;
    return true;
}

static void read_text(struct reading *r, const char *name, const char *text, size_t size)
{
    struct tt_config_report *report = &r->report;
    struct tt_yaml_doc doc = {0};
    struct tt_text why = {0};
    struct tt_yaml at = {0};

    report->name = name;
    report->is_builtin = tt_text_begins(name, "builtin:");
    if (is_misplaced(report, text, size))
        return;
    for (int i = 0; i < tt_config_n_rows; i++)
        r->cfg->origins->of[i].line = 0;
    if (!tt_yaml_parse(text, size, &doc, &at.line, &at.column, &why)) {
        tt_config_report_at(report, &at, NULL, "%s", why.text);
        report->is_partial = true;
    }
    if (doc.root && doc.root->kind == TT_YAML_MAP)
        read_map(r, "", doc.root);
    else if (!why.size && doc.root && !tt_yaml_is_null(doc.root))
        tt_config_report_at(report, doc.root, NULL, "expected a mapping of sections, such as 'training:'");
    tt_yaml_release(&doc);
    tt_text_release(&why);
}

static void read_file(struct reading *r, const char *path)
{
    char *text = NULL, *found = NULL;
    size_t size = 0;

    for (int i = 0; i < tt_config_n_builtins; i++) {
        if (strcmp(path, tt_config_builtins[i].name) == 0) {
            read_text(r, path, tt_config_builtins[i].text, strlen(tt_config_builtins[i].text));
            return;
        }
    }
    found = find_shipped(path);
    if (found)
        tt_text_add(&r->report.notes, "no file %s here: titan's own is read, %s\n", path, found);
    path = found ? found : path;
    if (tt_file_read_any(path, TT_YAML_MAX_BYTES, &text, &size) == 0) {
        read_text(r, path, text, size);
    } else {
        tt_config_report_add(&r->report, "--config", "%s", tt_error_message());
        r->report.is_partial = true;
    }
    tt_free(text);
    tt_free(found);
}

/* ---- flags ---- */

static void read_flag_value(struct tt_config *cfg, const struct tt_config_row *row, const struct tt_override *override,
                            const char *where, struct tt_config_report *report)
{
    struct tt_yaml_doc doc = {0};
    struct tt_text why = {0};
    struct tt_yaml *node = tt_config_flag_node(&doc, row, override->value);

    note_null(report, row, node);
    if (tt_config_member_set(row, tt_config_member(cfg, row), node, true, &why, NULL)) {
        set_origin(cfg, row, tt_strdup(where), tt_strdup(where));
    } else {
        tt_config_origin_of(cfg, row)->is_bad = true;
        tt_config_report_add(report, where, "%s", why.text);
    }
    tt_yaml_release(&doc);
    tt_text_release(&why);
}

static void read_inactive_flag(const struct tt_config_inactive *inactive, const struct tt_override *override,
                               const char *where, struct tt_config_report *report)
{
    struct tt_yaml_doc doc = {0};
    struct tt_yaml *node = tt_yaml_add(&doc, TT_YAML_SCALAR, 0, 0);

    node->text = tt_strdup(override->value);
    inactive_use(inactive, where, override->path, node, report);
    tt_yaml_release(&doc);
}

static void read_override(void *arg, const struct tt_override *override, const char *where)
{
    struct reading *r = arg;
    const struct tt_config_row *row = tt_config_row_find(override->path);
    const struct tt_config_inactive *inactive = row ? NULL : tt_config_inactive_find(override->path);
    bool is_section = !row && !inactive && tt_config_is_section(override->path);

    if (!row && !inactive && !is_section) {
        tt_config_report_unknown_flag(&r->report, where, override->path);
    } else if (is_section &&
               !(override->value && strcmp(override->value, "null") == 0 && strchr(override->path, '.'))) {
        tt_config_report_add(&r->report, where, "'%s' is a section; set its keys one by one", override->path);
    } else if (!override->value) {
        tt_config_report_add(&r->report, where, "needs a value");
    } else if (row) {
        read_flag_value(r->cfg, row, override, where, &r->report);
    } else if (inactive) {
        read_inactive_flag(inactive, override, where, &r->report);
    } else {
        for (int i = 0; i < tt_config_n_rows; i++)
            if (strcmp(tt_config_rows[i].section, override->path) == 0)
                read_flag_value(r->cfg, &tt_config_rows[i], override, where, &r->report);
    }
}

int tt_config_read(struct tt_config *cfg, const struct tt_config_input *input)
{
    struct reading r = {.cfg = cfg, .report = {.n = input->n_errors}};

    if (input->n_errors)
        tt_text_add(&r.report.text, "%s", input->errors);
    if (input->text)
        read_text(&r, input->text_name, input->text, input->text_size);
    for (int i = 0; i < input->n_files; i++)
        read_file(&r, input->files[i]);
    tt_override_each(input->n_args, input->args, &r.report, read_override, &r);
    follow_keys(cfg);
    if (!r.report.is_partial)
        tt_config_check_rules(cfg, &r.report);
    if (!r.report.is_partial && input->check)
        input->check(cfg, &r.report, input->check_arg);
    return tt_config_report_finish(&r.report);
}

int tt_config_load(struct tt_config *cfg, int n_files, const char *const *files, int n_args, const char *const *args)
{
    const struct tt_config_input input = {.n_files = n_files, .files = files, .n_args = n_args, .args = args};

    return tt_config_read(cfg, &input);
}

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

enum { MOST_SUGGESTIONS = 200 }; /* a file of nothing but unknown keys must not take seconds */

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

static void set_default(struct tt_config *cfg, const struct tt_config_row *row)
{
    struct tt_yaml_doc doc = {0};
    struct tt_text why = {0};
    struct tt_yaml *node = tt_config_flag_node(&doc, row, row->preset ? row->preset : "null");

    if (!tt_config_value_set(cfg, row, node, false, &why, NULL))
        abort(); /* schema.def is wrong; a unit test checks every row */
    set_origin(cfg, row, tt_strdup("default"), tt_strdup("default"));
    tt_yaml_release(&doc);
    tt_text_release(&why);
}

int tt_config_new(struct tt_config **ret_config)
{
    struct tt_config *cfg = tt_calloc(1, sizeof *cfg);

    cfg->origins = tt_calloc(1, sizeof *cfg->origins);
    cfg->origins->of = tt_calloc((size_t)tt_config_n_rows, sizeof *cfg->origins->of);
    for (int i = 0; i < tt_config_n_rows; i++)
        set_default(cfg, &tt_config_rows[i]);
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

const char *tt_config_where(const struct tt_config *cfg, enum tt_key key)
{
    return tt_config_origin_of(cfg, tt_config_row(key))->where;
}

/* ---- keys that follow others ---- */

/* Whether the key was not set, or was set to null. */
static bool is_open(const struct tt_config *cfg, const struct tt_config_row *row)
{
    struct tt_text value = {0};
    bool open;

    tt_config_value_text(cfg, row, &value);
    open = strcmp(value.text, "null") == 0;
    tt_text_release(&value);
    return open;
}

/* The value came from elsewhere: another key, the flavor. */
static void derive(struct tt_config *cfg, const struct tt_config_row *row, const char *origin)
{
    set_origin(cfg, row, tt_strdup(origin), tt_strdup(origin));
    tt_config_origin_of(cfg, row)->is_derived = true;
}

static void follow(struct tt_config *cfg, enum tt_key key, enum tt_key leader)
{
    derive(cfg, tt_config_row(key), tt_key_name(leader));
}

/* Sets the keys that follow other keys unless they are set (validation's data and length). */
static void follow_keys(struct tt_config *cfg)
{
    struct tt_datasets *training = &cfg->training.dataset, *validation = &cfg->validation.dataset;

    tt_config_datasets_name(training);
    if (is_open(cfg, tt_config_row(TT_KEY(validation.seq_len)))) {
        cfg->validation.seq_len = cfg->training.seq_len;
        follow(cfg, TT_KEY(validation.seq_len), TT_KEY(training.seq_len));
    }
    if (is_open(cfg, tt_config_row(TT_KEY(validation.dataset)))) {
        *validation = tt_config_datasets_held_back(training, cfg->validation.split > 0.0);
        follow(cfg, TT_KEY(validation.dataset), TT_KEY(training.dataset));
    }
    tt_config_datasets_name(validation);
    if (!cfg->validation.dataset_path && cfg->training.dataset_path && !validation->is_list && !training->is_list &&
        strcmp(validation->entry->dataset, training->entry->dataset) == 0) {
        cfg->validation.dataset_path = tt_strdup(cfg->training.dataset_path);
        follow(cfg, TT_KEY(validation.dataset_path), TT_KEY(training.dataset_path));
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
    if (!is_open(cfg, row) && strcmp(tt_config_origin_of(cfg, row)->origin, "flavor") != 0)
        return 0; /* a file or a flag has set it; null there means the flavor's value */
    if (row->kind == TT_KIND_INT)
        *(int64_t *)member = (int64_t)value;
    else if (row->kind == TT_KIND_MAYBE)
        *(int *)member = value != 0.0;
    else
        *(double *)member = value;
    derive(cfg, row, "flavor");
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
    struct tt_yaml_doc doc = {0};
    struct tt_text why = {0};
    int rc = 0;

    if (tt_config_value_set(cfg, row, tt_config_flag_node(&doc, row, value), true, &why, NULL))
        set_origin(cfg, row, tt_strdup(origin), tt_strdup(origin));
    else
        rc = tt_fail(TT_EDATA, "%s: %s: %s", origin, row->path, why.text);
    tt_yaml_release(&doc);
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

/* The value, and what it follows from. */
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
 * Appends where an error about row's value begins: "my.yaml:3:9: training.steps", "flag --training.steps", or of a
 * value that nobody set "training.steps (10000 by default)".
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
    beside = rc == TT_EDATA ? tt_config_beside(cfg, key) : NULL; /* what is not there is not read */
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
            *c = '?'; /* an escape sequence quoted from a file must not reach the terminal */
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
    if (strncmp(where, "flag --", 7) == 0 && strcmp(where + 7, path) == 0) {
        tt_config_report_add(report, where, "%s", message);
    } else {
        tt_config_report_add(report, where, "%s: %s", path, message);
    }
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

/* What `titan train` runs when it is given no file: a run of a minute that learns something on any machine. */
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

static bool is_file(const char *path)
{
    struct tt_path_info info = {0};

    return tt_path_look(path, &info) == 0 && info.kind == TT_FILE_REGULAR;
}

/*
 * The installed file that configs/NAME means where no such file exists: PREFIX/share/titan/configs/NAME if the running
 * program is PREFIX/bin/titan, so an installation can be moved. NULL if there is none. The caller frees it (tt_free).
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
    if (found && !is_file(found)) {
        tt_free(found);
        found = NULL;
    }
    return found;
}

/* ---- files ---- */

/* The file that is being read. */
struct source {
    struct tt_config *cfg;
    struct tt_config_report *report;
    const char *name; /* "my.yaml", "builtin:quick" */
    bool is_builtin;  /* its line numbers mean nothing to the user */
};

static char *place(const struct source *s, const struct tt_yaml *node)
{
    return s->is_builtin ? tt_strdup(s->name) : tt_format("%s:%d:%d", s->name, node->line, node->column);
}

/* The position of a wrong value; for a missing value, the position of its key. */
static const struct tt_yaml *spot(const struct tt_yaml *key, const struct tt_yaml *value)
{
    return tt_yaml_is_null(value) && !*value->text ? key : value;
}

static void report_at(const struct source *s, const struct tt_yaml *node, const char *text)
{
    char *where = place(s, node);

    tt_config_report_add(s->report, where, "%s", text);
    tt_free(where);
}

/* Notes what titan does with null where torchtitan would draw a value. */
static void note_null(struct tt_config_report *report, const struct tt_config_row *row, const struct tt_yaml *value)
{
    if ((row->flags & TT_FLAG_NULL_DEFAULT) && tt_yaml_is_null(value))
        tt_text_add(&report->notes, "%s: null means the default, %s: a run can always be repeated\n", row->path,
                    row->preset);
}

static void read_value(const struct source *s, const struct tt_config_row *row, const char *path,
                       const struct tt_yaml *key, const struct tt_yaml *value)
{
    struct tt_config_origin *o = tt_config_origin_of(s->cfg, row);
    const struct tt_yaml *fault = value;
    struct tt_text message = {0};

    if (o->line) {
        tt_text_add(&message, "duplicate key '%s' (first at line %d)", path, o->line);
        report_at(s, key, message.text);
        tt_text_release(&message);
        return;
    }
    o->line = key->line;
    note_null(s->report, row, value);
    if (tt_config_value_set(s->cfg, row, value, false, &message, &fault)) {
        set_origin(s->cfg, row, s->is_builtin ? tt_strdup(s->name) : tt_format("%s:%d", s->name, key->line),
                   place(s, value));
    } else {
        char *where = place(s, spot(key, fault));

        o->is_bad = true;
        tt_config_report_key(s->report, where, path, message.text);
        tt_free(where);
    }
    tt_text_release(&message);
}

static void read_map(const struct source *s, const char *prefix, const struct tt_yaml *map);

/* `section: null` for a mapping of nullable keys means that all of them are null. */
static void read_null_section(const struct source *s, const char *path, const struct tt_yaml *key,
                              const struct tt_yaml *value)
{
    for (int i = 0; i < tt_config_n_rows; i++) {
        if (strcmp(tt_config_rows[i].section, path) == 0 && strchr(path, '.'))
            read_value(s, &tt_config_rows[i], tt_config_rows[i].path, key, value);
    }
}

static void read_section(const struct source *s, const char *path, const struct tt_yaml *key,
                         const struct tt_yaml *value)
{
    struct tt_text message = {0};

    if (value->kind == TT_YAML_MAP) {
        read_map(s, path, value);
    } else if (tt_yaml_is_null(value)) {
        read_null_section(s, path, key, value);
    } else {
        tt_text_add(&message, "%s: expected a mapping of keys, found %s", path,
                    value->kind == TT_YAML_LIST ? "a list" : "a value");
        if (value->kind == TT_YAML_SCALAR && strchr(value->text, '='))
            tt_text_add(&message, "\nhelp: YAML has a colon where TOML has '=': KEY: VALUE");
        report_at(s, value, message.text);
        tt_text_release(&message);
    }
}

/* Whether path has inactive keys below it, so that its mapping must be read. */
static bool has_inactive_below(const char *path)
{
    size_t n = strlen(path);

    for (int i = 0; i < tt_config_n_inactives; i++) {
        if (strncmp(tt_config_inactives[i].path, path, n) == 0 && tt_config_inactives[i].path[n] == '.')
            return true;
    }
    return false;
}

static void read_pair(const struct source *s, const char *path, const struct tt_yaml *key, const struct tt_yaml *value)
{
    const struct tt_config_row *row = tt_config_row_find(path);
    const struct tt_config_inactive *inactive = row ? NULL : tt_config_inactive_find(path);
    struct tt_text message = {0};

    if (row) {
        read_value(s, row, path, key, value);
    } else if (tt_config_is_section(path) || has_inactive_below(path)) {
        read_section(s, path, key, value);
    } else if (inactive) {
        char *where = place(s, spot(key, value));

        tt_config_inactive_use(inactive, where, path, value, s->report);
        tt_free(where);
    } else {
        tt_text_add(&message, strchr(path, '.') ? "unknown key '%s'" : "unknown section '%s'", path);
        if (s->report->n < MOST_SUGGESTIONS)
            tt_config_suggest(path, &message);
        report_at(s, key, message.text);
    }
    tt_text_release(&message);
}

static void read_map(const struct source *s, const char *prefix, const struct tt_yaml *map)
{
    for (int i = 0; i < map->n; i++) {
        char *path = tt_format("%s%s%s", prefix, *prefix ? "." : "", map->key[i]->text);
        int first = 0;

        for (char *c = path; *c; c++)
            *c = *c == '-' ? '_' : *c;
        while (strcmp(map->key[first]->text, map->key[i]->text) != 0)
            first++;
        if (first < i) {
            char *message = tt_format("duplicate key '%s' (first at line %d)", path, map->key[first]->line);

            report_at(s, map->key[i], message);
            tt_free(message);
        } else if (map->item[i]->is_closed || map->item[i]->kind == TT_YAML_MAP) { /* not cut off by a syntax error */
            read_pair(s, path, map->key[i], map->item[i]);
        }
        tt_free(path);
    }
}

static bool ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);

    return n > m && strcmp(name + n - m, end) == 0;
}

/* Reports a file of another kind, which may be torchtitan's. */
static bool is_misplaced(const struct source *s, const char *text, size_t size)
{
    if (s->is_builtin)
        return false;
    if (ends_in(s->name, ".toml") || tt_toml_is_likely(text, size)) {
        tt_config_report_add(s->report, s->name,
                             "this is TOML, titan reads YAML\nhelp: `titan config import %s --out FILE.yaml` converts "
                             "a torchtitan file",
                             s->name);
    } else if (ends_in(s->name, ".py")) {
        tt_config_report_add(s->report, s->name, "%s", tt_config_python);
    } else {
        return false;
    }
    s->report->is_partial = true;
    return true;
}

/* Reads the source from text. */
static void read_text(const struct source *s, const char *text, size_t size)
{
    struct tt_config *cfg = s->cfg;
    struct tt_config_report *report = s->report;
    const char *name = s->name;
    struct tt_yaml_doc doc = {0};
    struct tt_text why = {0};
    int line = 0, column = 0;
    bool ok;

    if (is_misplaced(s, text, size))
        return;
    ok = tt_yaml_parse(text, size, &doc, &line, &column, &why);
    for (int i = 0; i < tt_config_n_rows; i++)
        cfg->origins->of[i].line = 0;
    if (!ok) {
        char *where = tt_format("%s:%d:%d", name, line, column);

        tt_config_report_add(report, where, "%s", why.text);
        report->is_partial = true;
        tt_free(where);
    }
    if (doc.root && doc.root->kind == TT_YAML_MAP) {
        read_map(s, "", doc.root);
    } else if (ok && doc.root && !tt_yaml_is_null(doc.root)) {
        report_at(s, doc.root, "expected a mapping of sections, such as 'training:'");
    }
    tt_yaml_release(&doc);
    tt_text_release(&why);
}

static void read_file(struct tt_config *cfg, const char *path, struct tt_config_report *report)
{
    struct source s = {.cfg = cfg, .report = report};
    char *text = NULL, *found = NULL;
    size_t size = 0;

    for (int i = 0; i < tt_config_n_builtins; i++) {
        if (strcmp(path, tt_config_builtins[i].name) == 0) {
            s.name = path;
            s.is_builtin = true;
            read_text(&s, tt_config_builtins[i].text, strlen(tt_config_builtins[i].text));
            return;
        }
    }
    found = find_shipped(path);
    if (found)
        tt_text_add(&report->notes, "no file %s here: titan's own is read, %s\n", path, found);
    s.name = found ? found : path;
    if (tt_file_read_any(s.name, TT_YAML_MAX_BYTES, &text, &size) == 0) {
        read_text(&s, text, size);
    } else {
        tt_config_report_add(report, "--config", "%s", tt_error_message());
        report->is_partial = true;
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
    if (tt_config_value_set(cfg, row, node, true, &why, NULL)) {
        set_origin(cfg, row, tt_strdup(where), tt_strdup(where));
    } else {
        tt_config_origin_of(cfg, row)->is_bad = true;
        tt_config_report_add(report, where, "%s", why.text);
    }
    tt_yaml_release(&doc);
    tt_text_release(&why);
}

static void read_null_map(struct tt_config *cfg, const struct tt_override *override, const char *where,
                          struct tt_config_report *report)
{
    for (int i = 0; i < tt_config_n_rows; i++) {
        if (strcmp(tt_config_rows[i].section, override->path) == 0)
            read_flag_value(cfg, &tt_config_rows[i], override, where, report);
    }
}

static void read_inactive_flag(const struct tt_config_inactive *inactive, const struct tt_override *override,
                               const char *where, struct tt_config_report *report)
{
    struct tt_yaml_doc doc = {0};
    struct tt_yaml *node = tt_yaml_add(&doc, TT_YAML_SCALAR, 0, 0);

    node->text = tt_strdup(override->value);
    tt_config_inactive_use(inactive, where, override->path, node, report);
    tt_yaml_release(&doc);
}

static void read_override(struct tt_config *cfg, const struct tt_override *override, struct tt_config_report *report)
{
    const struct tt_config_row *row = tt_config_row_find(override->path);
    const struct tt_config_inactive *inactive = row ? NULL : tt_config_inactive_find(override->path);
    char *where = tt_format("flag %s", override->flag);
    struct tt_text message = {0};

    if (!row && !inactive &&
        !(override->value && strcmp(override->value, "null") == 0 && strchr(override->path, '.') &&
          tt_config_is_section(override->path))) {
        tt_text_add(&message,
                    tt_config_is_section(override->path) ? "'%s' is a section; set its keys one by one"
                                                         : "unknown key '%s'",
                    override->path);
        if (!tt_config_is_section(override->path))
            tt_config_suggest(override->path, &message);
        tt_config_report_add(report, where, "%s", message.text);
    } else if (!override->value) {
        tt_config_report_add(report, where, "needs a value");
    } else if (row) {
        read_flag_value(cfg, row, override, where, report);
    } else if (inactive) {
        read_inactive_flag(inactive, override, where, report);
    } else {
        read_null_map(cfg, override, where, report);
    }
    tt_text_release(&message);
    tt_free(where);
}

static void read_args(struct tt_config *cfg, int n_args, const char *const *args, struct tt_config_report *report)
{
    for (int i = 0; i < n_args;) {
        struct tt_override override = {0};

        if (!tt_override_next(n_args, args, &i, &override)) {
            tt_config_report_add(report, "command line", "'%s' is not an override such as --training.steps=100",
                                 args[i++]);
            continue;
        }
        read_override(cfg, &override, report);
        tt_free(override.path);
        tt_free(override.flag);
    }
}

/* Ends every load: sets keys that follow others, then applies the rules and the caller's check. */
static int finish(struct tt_config *cfg, const struct tt_config_input *input, struct tt_config_report *report)
{
    follow_keys(cfg);
    if (!report->is_partial)
        tt_config_check_rules(cfg, report);
    if (!report->is_partial && input->check)
        input->check(cfg, report, input->check_arg);
    return tt_config_report_finish(report);
}

static void read_named_text(struct tt_config *cfg, const struct tt_config_input *input, struct tt_config_report *report)
{
    const struct source s = {.cfg = cfg,
                             .report = report,
                             .name = input->text_name,
                             .is_builtin = strncmp(input->text_name, "builtin:", 8) == 0};

    read_text(&s, input->text, input->text_size);
}

int tt_config_read(struct tt_config *cfg, const struct tt_config_input *input)
{
    struct tt_config_report report = {.n = input->n_errors};

    if (input->n_errors)
        tt_text_add(&report.text, "%s", input->errors);
    if (input->text)
        read_named_text(cfg, input, &report);
    for (int i = 0; i < input->n_files; i++)
        read_file(cfg, input->files[i], &report);
    read_args(cfg, input->n_args, input->args, &report);
    return finish(cfg, input, &report);
}

int tt_config_load(struct tt_config *cfg, int n_files, const char *const *files, int n_args, const char *const *args)
{
    const struct tt_config_input input = {.n_files = n_files, .files = files, .n_args = n_args, .args = args};

    return tt_config_read(cfg, &input);
}

int tt_config_load_text(struct tt_config *cfg, const char *name, const char *text, size_t size)
{
    return tt_config_read(cfg, &(struct tt_config_input){.text = text, .text_size = size, .text_name = name});
}

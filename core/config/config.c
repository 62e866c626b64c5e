/* SPDX-License-Identifier: MIT
 *
 * The configuration: defaults, then files, then flags, with the origin of each value; then the rules between keys.
 * Order of calls: new, load (or load_text), the flavor's values, any number of reads, free.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/config/internal.h"
#include "core/config/parse/toml.h"
#include "core/os/file.h"

enum { MOST_SUGGESTIONS = 200 }; /* a file of nothing but unknown keys must not take seconds */

static struct tt_config_origin *origin_of(const struct tt_config *cfg, const struct tt_config_row *row)
{
    return &cfg->origins->of[row - tt_config_rows];
}

void tt_config_set_origin(struct tt_config *cfg, const struct tt_config_row *row, char *origin, char *where)
{
    struct tt_config_origin *o = origin_of(cfg, row);

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
    tt_config_set_origin(cfg, row, tt_strdup("default"), tt_strdup("default"));
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
        tt_config_value_release(cfg, &tt_config_rows[i]);
        tt_free(cfg->origins->of[i].origin);
        tt_free(cfg->origins->of[i].where);
    }
    tt_free(cfg->origins->of);
    tt_free(cfg->origins);
    tt_free(cfg);
}

const char *tt_config_origin(const struct tt_config *cfg, const char *path)
{
    const struct tt_config_row *row = tt_config_row_find(path);

    return row ? origin_of(cfg, row)->origin : NULL;
}

const char *tt_config_where(const struct tt_config *cfg, const char *path)
{
    const struct tt_config_row *row = tt_config_row_find(path);

    return row ? origin_of(cfg, row)->where : NULL;
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
    struct tt_config_origin *o = origin_of(s->cfg, row);
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
        tt_config_set_origin(s->cfg, row, s->is_builtin ? tt_strdup(s->name) : tt_format("%s:%d", s->name, key->line),
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
    found = tt_config_shipped(path);
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
        tt_config_set_origin(cfg, row, tt_strdup(where), tt_strdup(where));
    } else {
        origin_of(cfg, row)->is_bad = true;
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
    tt_config_follow(cfg);
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

/* SPDX-License-Identifier: MIT
 *
 * Writes the configuration: as YAML (plain, with origins, or as a commented template), as JSON, and as the list of
 * flags.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/config/args.h"
#include "core/config/internal.h"

static int depth_of(const char *section)
{
    int depth = 1;

    for (const char *c = section; *c; c++)
        depth += *c == '.';
    return depth;
}

void tt_config_yaml_value(const struct tt_config *cfg, const struct tt_config_row *row, struct tt_text *out)
{
    const void *member = tt_config_member(cfg, row);
    const struct tt_words *words = member;

    if (row->kind == TT_KIND_TEXT && *(char *const *)member) {
        tt_yaml_write_text(out, *(char *const *)member);
    } else if (row->kind == TT_KIND_WORDS && words->is_list) {
        tt_text_add(out, "[");
        for (int i = 0; i < words->n; i++) {
            tt_text_add(out, i ? ", " : "");
            tt_yaml_write_text(out, words->word[i]);
        }
        tt_text_add(out, "]");
    } else {
        tt_config_value_text(cfg, row, out);
    }
}

void tt_config_wrap(struct tt_text *out, int indent, const char *lead, const char *text)
{
    size_t room = TT_HELP_COLUMNS - (size_t)indent - strlen(lead);

    while (*text) {
        size_t n = strlen(text);

        if (n > room) {
            for (n = room; n > 1 && text[n] != ' '; n--)
                ;
            for (size_t k = room; n == 1 && k > 1; k--) /* a single long word: choices, a|b|... */
                n = text[k - 1] == '|' ? k : n;
            if (n == 1)
                n = strcspn(text, " ");
        }
        tt_text_add(out, "%*s%s%.*s\n", indent, "", lead, (int)n, text);
        text += n;
        while (*text == ' ')
            text++;
    }
}

static void begin_section(const char *name, enum tt_config_comments comments, struct tt_text *out)
{
    int indent = 2 * (depth_of(name) - 1);

    if (comments == TT_CONFIG_TEMPLATE && indent == 0)
        tt_text_add(out, "\n");
    for (int i = 0; i < tt_config_n_sections && comments == TT_CONFIG_TEMPLATE; i++)
        if (strcmp(tt_config_sections[i].name, name) == 0)
            tt_config_wrap(out, indent, "# ", tt_config_sections[i].doc);
    tt_text_add(out, "%*s%s:\n", indent, "", tt_config_leaf(name));
}

/* Adds the default as a comment if the value differs from it. */
static void add_default(const struct tt_config *cfg, const struct tt_config_row *row, struct tt_text *out)
{
    struct tt_text value = {0};
    const char *preset = row->preset ? *row->preset ? row->preset : "\"\"" : "null";

    tt_config_value_text(cfg, row, &value);
    if (!tt_config_origin_of(cfg, row)->is_derived && tt_config_is_set(cfg, row->id) &&
        strcmp(value.size ? value.text : "", preset) != 0 &&
        !(row->kind == TT_KIND_REAL && value.size && strtod(value.text, NULL) == strtod(preset, NULL)))
        tt_text_add(out, "; default %s", preset);
    tt_text_release(&value);
}

static void write_row(const struct tt_config *cfg, const struct tt_config_row *row, enum tt_config_comments comments,
                      struct tt_text *out)
{
    int indent = 2 * depth_of(row->section);
    struct tt_text range = {0};
    size_t start;

    if (comments == TT_CONFIG_TEMPLATE) {
        tt_text_add(&range, "%s (", row->doc);
        tt_config_range_text(row, &range);
        add_default(cfg, row, &range);
        tt_text_add(&range, "%s)", row->flags & TT_FLAG_OWN ? "; titan's own" : "");
        tt_config_wrap(out, indent, "# ", range.text);
    }
    start = out->size;
    tt_text_add(out, "%*s%s: ", indent, "", row->key);
    if (comments == TT_CONFIG_TEMPLATE && tt_config_origin_of(cfg, row)->is_derived)
        tt_text_add(out, "null"); /* so that it still follows the other key when the user changes the other key */
    else
        tt_config_yaml_value(cfg, row, out);
    if (comments == TT_CONFIG_ORIGINS)
        tt_text_add(out, "%*s # %s", out->size - start < 48 ? 48 - (int)(out->size - start) : 1, "",
                    tt_config_origin_of(cfg, row)->origin);
    tt_text_add(out, "\n");
    tt_text_release(&range);
}

void tt_config_to_yaml(const struct tt_config *cfg, enum tt_config_comments comments, struct tt_text *out)
{
    const char *section = "";

    if (comments == TT_CONFIG_TEMPLATE)
        tt_text_add(out, "# A configuration of titan with every key. Keep the keys that you change; the\n"
                         "# others have their defaults.\n"
                         "# `titan config check --config FILE` checks it, titan-config(5) explains it.\n");

    for (int i = 0; i < tt_config_n_rows; i++) {
        const struct tt_config_row *row = &tt_config_rows[i];
        bool is_back =
            strncmp(section, row->section, strlen(row->section)) == 0 && section[strlen(row->section)] == '.';

        if (strcmp(section, row->section) != 0 && !is_back)
            begin_section(row->section, comments, out);
        section = row->section;
        write_row(cfg, row, comments, out);
    }
}

json_t *tt_config_value_json(const struct tt_config *cfg, const struct tt_config_row *row)
{
    const void *member = tt_config_member(cfg, row);
    const struct tt_words *words = member;
    struct tt_text text = {0};
    json_t *json = NULL;

    tt_config_value_text(cfg, row, &text);
    if (row->kind == TT_KIND_BOOL) {
        json = json_boolean(*(const bool *)member);
    } else if (row->kind == TT_KIND_MAYBE && *(const int *)member != TT_NULL_BOOL) {
        json = json_boolean(*(const int *)member);
    } else if (row->kind == TT_KIND_INT && *(const int64_t *)member != TT_NULL_INT &&
               !(row->zero_word && *(const int64_t *)member == 0)) {
        json = json_integer(*(const int64_t *)member);
    } else if (row->kind == TT_KIND_REAL && !isnan(*(const double *)member)) {
        json = tt_json_number(*(const double *)member);
    } else if (row->kind == TT_KIND_WORDS && words->is_list) {
        json = json_array();
        for (int i = 0; i < words->n; i++)
            (void)json_array_append_new(json, json_string(words->word[i]));
    } else if (row->kind == TT_KIND_DATASETS) {
        json = tt_config_datasets_json(member);
    } else if ((row->flags & TT_FLAG_NULLABLE) && strcmp(text.text, "null") == 0 &&
               !(row->kind == TT_KIND_TEXT && *(char *const *)member)) {
        json = json_null();
    } else {
        json = json_string(text.size ? text.text : "");
    }
    tt_text_release(&text);
    return json;
}

/* The object of a section; created if it is missing. */
static json_t *json_section(json_t *root, const char *section)
{
    char *copy = tt_strdup(section), *rest = NULL;
    json_t *at = root;

    for (char *name = strtok_r(copy, ".", &rest); name; name = strtok_r(NULL, ".", &rest)) {
        if (!json_object_get(at, name))
            (void)json_object_set_new(at, name, json_object());
        at = json_object_get(at, name);
    }
    tt_free(copy);
    return at;
}

json_t *tt_config_to_json(const struct tt_config *cfg, bool with_origins)
{
    json_t *root = json_object();

    for (int i = 0; i < tt_config_n_rows; i++) {
        const struct tt_config_row *row = &tt_config_rows[i];
        json_t *value = tt_config_value_json(cfg, row);

        if (with_origins) {
            json_t *pair = json_object();

            (void)json_object_set_new(pair, "value", value);
            (void)json_object_set_new(pair, "origin", json_string(tt_config_origin_of(cfg, row)->origin));
            value = pair;
        }
        (void)json_object_set_new(json_section(root, row->section), row->key, value);
    }
    return root;
}

/* dashes: "--", or "" if the key is not a flag. */
static void help_key(const struct tt_config_row *row, const char *dashes, struct tt_text *out)
{
    const char *preset = row->preset ? *row->preset ? row->preset : "\"\"" : "null";
    struct tt_text range = {0}, about = {0};

    tt_config_range_text(row, &range);
    tt_text_add(&about, "%s (%s)", row->doc, range.text);
    tt_text_add(out, "  %s%s%s[%s]\n", dashes, row->path,
                strlen(dashes) + strlen(row->path) + strlen(preset) + 6 > TT_HELP_COLUMNS ? "\n      " : "  ", preset);
    tt_config_wrap(out, 6, "", about.text);
    tt_text_release(&range);
    tt_text_release(&about);
}

static void help_section(const struct tt_config_section *section, struct tt_text *out)
{
    enum { INDENT = 4 };
    char *text = tt_format("%s: %s", section->name, section->doc);
    size_t start = out->size;

    tt_config_wrap(out, INDENT, "", text);
    memmove(out->text + start, out->text + start + INDENT, out->size - start - INDENT + 1);
    out->size -= INDENT;
    tt_free(text);
}

void tt_config_help(struct tt_text *out)
{
    for (int s = 0; s < tt_config_n_sections; s++) {
        const struct tt_config_section *section = &tt_config_sections[s];

        tt_text_add(out, "%s", s ? "\n" : "");
        help_section(section, out);
        for (int i = 0; i < tt_config_n_rows; i++)
            if (strcmp(tt_config_rows[i].section, section->name) == 0)
                help_key(&tt_config_rows[i], "--", out);
    }
    tt_text_add(out, "\nEntries of a list of datasets:\n    [{dataset: text, dataset_path: FILE, weight: 2}, ...]\n");
    for (int i = 0; i < tt_config_n_entry_rows; i++)
        help_key(&tt_config_entry_rows[i], "", out);
}

void tt_config_help_sections(struct tt_text *out)
{
    for (int s = 0; s < tt_config_n_sections; s++) {
        struct tt_text keys = {0};

        for (int i = 0; i < tt_config_n_rows; i++)
            if (strcmp(tt_config_rows[i].section, tt_config_sections[s].name) == 0)
                tt_text_add(&keys, "%s%s", keys.size ? " " : "", tt_config_rows[i].key);
        help_section(&tt_config_sections[s], out);
        tt_config_wrap(out, 6, "", keys.text ? keys.text : "");
        tt_text_release(&keys);
    }
}

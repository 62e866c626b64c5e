/* SPDX-License-Identifier: MIT
 *
 * Writes what was read from a torchtitan file as YAML with comments: the sections in titan's order, then those that
 * titan does not have.
 */
#include <string.h>

#include <ctype.h>

#include "core/base/mem.h"
#include "core/config/import/items.h"

/* A comment of one or several lines; a help line is a line of its own. */
static void comment(struct tt_text *out, int indent, const char *text)
{
    char *copy = tt_strdup(text), *rest = NULL;

    for (char *c = copy; *c; c++) /* YAML has no other characters in comments for certain */
        *c = *c == '\n' || (*c >= 0x20 && *c < 0x7f) ? *c : '?';
    for (char *line = strtok_r(copy, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        tt_config_wrap(out, indent, "# ", line);
    tt_free(copy);
}

/* Whether the value is a word or a number in the file and is the same in YAML. */
static bool is_bare(const struct tt_yaml *node)
{
    for (const char *c = node->text; *c; c++)
        if (!isalnum((unsigned char)*c) && (c == node->text || (*c != '.' && *c != '_')))
            return false;
    return !node->is_quoted;
}

static void write_node(const struct tt_yaml *node, struct tt_text *out)
{
    if (node->kind == TT_YAML_SCALAR) {
        if (is_bare(node))
            tt_text_add(out, "%s", node->text);
        else
            tt_yaml_write_text(out, node->text);
        return;
    }
    tt_text_add(out, node->kind == TT_YAML_LIST ? "[" : "{");
    for (int i = 0; i < node->n; i++) {
        tt_text_add(out, i ? ", " : "");
        if (node->kind == TT_YAML_MAP) {
            tt_yaml_write_text(out, node->key[i]->text);
            tt_text_add(out, ": ");
        }
        write_node(node->item[i], out);
    }
    tt_text_add(out, node->kind == TT_YAML_LIST ? "]" : "}");
}

static void write_value(const struct tt_import *import, const struct tt_import_item *item, struct tt_text *out)
{
    if (item->value && (!item->row || item->fate == TT_IMPORT_REFUSED))
        write_node(item->value, out);
    else
        tt_config_yaml_value(import->cfg, item->row, out);
}

/* Whether path is a key of the section itself. */
static bool is_in(const char *path, const char *section)
{
    size_t n = strlen(section);

    return strncmp(path, section, n) == 0 && path[n] == '.' && !strchr(path + n + 1, '.');
}

static void write_item(const struct tt_import *import, const struct tt_import_item *item, int indent,
                       struct tt_text *out)
{
    struct tt_text note = {0};

    if (item->fate == TT_IMPORT_LEFT_OUT) {
        tt_text_add(&note, "left out: %s = ", item->was);
        if (item->value->kind == TT_YAML_MAP && item->value->n)
            tt_text_add(&note, "{...}");
        else
            write_node(item->value, &note);
        tt_text_add(&note, " (%.*s)", (int)strcspn(item->why, "\n"), item->why);
    } else if (item->fate == TT_IMPORT_REFUSED) {
        tt_text_add(&note, "refused: %s", item->why);
    } else if (item->why) {
        tt_text_add(&note, "%s", item->why);
    } else if (strcmp(item->was, item->path) != 0) {
        tt_text_add(&note, "%s in the file", item->was);
    }
    if (note.size)
        comment(out, indent, note.text);
    tt_text_release(&note);
    if (item->fate == TT_IMPORT_LEFT_OUT)
        return;
    tt_text_add(out, "%*s%s: ", indent, "", strrchr(item->path, '.') + 1);
    write_value(import, item, out);
    tt_text_add(out, "\n");
}

/* What a run would do otherwise because the file does not set a key. Validation's defaults only count if it is on. */
static void write_difference(const struct tt_import *import, const struct tt_config_difference *difference, int indent,
                             struct tt_text *out)
{
    const struct tt_config_row *row = tt_config_row_find(difference->path);
    struct tt_text value = {0}, note = {0};

    if (tt_import_find(import, difference->path) ||
        (is_in(difference->path, "validation") && !import->cfg->validation.enable))
        return;
    tt_config_value_text(import->cfg, row, &value);
    tt_text_add(&note, "not set: %s; torchtitan's default is %s, titan's is %s: %s", row->path, difference->theirs,
                value.size ? value.text : "empty", difference->why);
    comment(out, indent, note.text);
    tt_text_release(&value);
    tt_text_release(&note);
}

static int count_written(const struct tt_import *import, const char *section)
{
    int n = 0;

    for (int i = 0; i < import->n; i++)
        n += is_in(import->item[i].path, section) && import->item[i].fate != TT_IMPORT_LEFT_OUT;
    return n;
}

/* Whether a key of the section around this one was written. */
static bool is_begun(const struct tt_import *import, const char *section)
{
    char *outer = tt_strndup(section, strcspn(section, "."));
    bool is_begun = count_written(import, outer) > 0;

    tt_free(outer);
    return is_begun;
}

/* The items of a section with their comments. A section without a key consists of comments. */
static void write_section(const struct tt_import *import, const char *section, struct tt_text *out)
{
    const char *dot = strchr(section, '.');
    bool is_open = count_written(import, section) > 0;
    int indent = is_open ? dot ? 4 : 2 : 0;

    if (is_open && dot && !is_begun(import, section))
        tt_text_add(out, "%.*s:\n", (int)(dot - section), section);
    if (is_open)
        tt_text_add(out, "%s%s:\n", dot ? "  " : "", dot ? dot + 1 : section);
    for (int i = 0; i < import->n; i++)
        if (is_in(import->item[i].path, section))
            write_item(import, &import->item[i], indent, out);
    for (int i = 0; i < tt_config_n_differences; i++)
        if (is_in(tt_config_differences[i].path, section))
            write_difference(import, &tt_config_differences[i], indent, out);
}

/* The section of a key, if it is none of titan's and none of the items before has it. */
static char *new_section(const struct tt_import *import, int i)
{
    const char *path = import->item[i].path;
    char *section = tt_strndup(path, (size_t)(strrchr(path, '.') - path));
    bool is_new = !tt_config_is_section(section);

    for (int j = 0; j < i; j++)
        is_new = is_new && !is_in(import->item[j].path, section);
    if (is_new)
        return section;
    tt_free(section);
    return NULL;
}

void tt_import_write(const struct tt_import *import, struct tt_text *out)
{
    struct tt_text note = {0};

    tt_text_add(&note,
                "Made from %s by `titan config import`. Comments name what was left out, what titan refuses, and where "
                "titan's default differs from that of torchtitan v0.2.2.",
                import->name);
    comment(out, 0, note.text);
    tt_text_release(&note);
    for (int s = 0; s < tt_config_n_sections; s++)
        write_section(import, tt_config_sections[s].name, out);
    for (int i = 0; i < import->n; i++) {
        char *section = new_section(import, i);

        if (section)
            write_section(import, section, out);
        tt_free(section);
    }
}

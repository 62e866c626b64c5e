/* SPDX-License-Identifier: MIT
 *
 * torchtitan's configurations as lists of keys and values; see pairs.h.
 */
#include "cli/cluster/inputs/pairs.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/config/parse/toml.h"
#include "core/os/file.h"

void tt_pairs_add(struct tt_pairs *pairs, const char *where, char *key, char *value)
{
    TT_PUSH(pairs->item, pairs->n, pairs->cap) = (struct tt_pair){.key = key, .value = value, .where = where};
}

/* Words with commas between them; a list in the list is one word with blanks. */
static void add_list(struct tt_text *out, const struct tt_yaml *list, char between)
{
    for (int i = 0; i < list->n; i++) {
        const struct tt_yaml *item = list->item[i];

        if (i > 0)
            tt_text_add(out, "%c", between);
        if (item->kind == TT_YAML_SCALAR)
            tt_text_add(out, "%s", item->text);
        else if (item->kind == TT_YAML_LIST && between == ',')
            add_list(out, item, ' ');
    }
}

static void add_toml(struct tt_pairs *pairs, const char *where, const char *prefix, const struct tt_yaml *map)
{
    for (int i = 0; i < map->n; i++) {
        char *key = tt_format("%s%s%s", prefix, *prefix ? "." : "", map->key[i]->text);
        const struct tt_yaml *item = map->item[i];
        struct tt_text list = {0};

        if (item->kind == TT_YAML_MAP) {
            add_toml(pairs, where, key, item);
            tt_free(key);
            continue;
        }
        if (item->kind == TT_YAML_SCALAR)
            tt_text_add(&list, "%s", item->text);
        if (item->kind == TT_YAML_LIST)
            add_list(&list, item, ',');
        tt_pairs_add(pairs, where, key, list.text ? list.text : tt_strdup(""));
    }
}

/* The same of JSON. */
static void add_json_list(struct tt_text *out, const json_t *list, char between)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);

        if (i > 0)
            tt_text_add(out, "%c", between);
        if (json_is_array(item) && between == ',')
            add_json_list(out, item, ' ');
        else
            tt_text_add(out, "%s", json_is_string(item) ? json_string_value(item) : "?");
    }
}

static void add_json(struct tt_pairs *pairs, const char *where, const char *prefix, json_t *object)
{
    const char *name;
    json_t *value;

    json_object_foreach(object, name, value)
    {
        char *key = tt_format("%s%s%s", prefix, *prefix ? "." : "", name);
        struct tt_text text = {0};
        char *json;

        if (json_is_object(value)) {
            add_json(pairs, where, key, value);
            tt_pairs_add(pairs, where, key, tt_strdup("{}"));
            continue;
        }
        if (json_is_string(value))
            tt_text_add(&text, "%s", json_string_value(value));
        else if (json_is_array(value))
            add_json_list(&text, value, ',');
        else {
            json = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
            tt_text_add(&text, "%s", json ? json : "");
            free(json);
        }
        tt_pairs_add(pairs, where, key, text.text ? text.text : tt_strdup(""));
    }
}

int tt_pairs_read_flags(struct tt_pairs *pairs, int n, const char *const *flags)
{
    for (int i = 0; i < n; i++) {
        const char *name = flags[i], *equal = strchr(name, '=');
        bool has_next = i + 1 < n && strncmp(flags[i + 1], "--", 2) != 0, off;
        char *key, *dot;

        if (strncmp(name, "--", 2) != 0)
            return tt_fail(TT_EUSAGE, "estimate: '%s' after -- is not a flag of torchtitan such as --module llama3",
                           name);
        key = tt_format("%.*s", equal ? (int)(equal - name - 2) : (int)strlen(name) - 2, name + 2);
        for (char *c = key; *c; c++)
            *c = *c == '-' ? '_' : *c;
        dot = strrchr(key, '.');
        off = dot && strncmp(dot, ".no_", 4) == 0 && !equal; /* "--compile.no-enable" */
        if (off)
            memmove(dot + 1, dot + 4, strlen(dot + 4) + 1);
        tt_pairs_add(pairs, "the flags after --", key,
                     tt_strdup(equal      ? equal + 1
                               : has_next ? flags[++i]
                               : off      ? "false"
                                          : "true"));
    }
    return 0;
}

const char *tt_pairs_get(const struct tt_pairs *pairs, const char *key)
{
    for (int i = pairs->n - 1; i >= 0; i--)
        if (strcmp(pairs->item[i].key, key) == 0)
            return strcmp(pairs->item[i].value, "null") == 0 || strcmp(pairs->item[i].value, "None") == 0
                       ? NULL
                       : pairs->item[i].value;
    return NULL;
}

bool tt_pairs_has(const struct tt_pairs *pairs, const char *key)
{
    for (int i = 0; i < pairs->n; i++)
        if (strcmp(pairs->item[i].key, key) == 0)
            return true;
    return false;
}

const char *tt_pairs_get_any(const struct tt_pairs *pairs, const char *const *keys)
{
    const char *value = NULL;

    for (int i = 0; keys[i] && !value; i++)
        value = tt_pairs_get(pairs, keys[i]);
    return value;
}

static int read_toml(struct tt_pairs *pairs, const char *path, const char *text, size_t size)
{
    struct tt_yaml_doc doc = {0};
    struct tt_text why = {0};
    int line = 0, column = 0, rc = 0;

    if (!tt_toml_parse(text, size, &doc, &line, &column, &why))
        rc = tt_fail(TT_EDATA, "%s:%d:%d: %s\nhelp: wanted a configuration of torchtitan, TOML or JSON", path, line,
                     column, why.text);
    else if (doc.root)
        add_toml(pairs, path, "", doc.root);
    tt_yaml_release(&doc);
    tt_text_release(&why);
    return rc;
}

int tt_pairs_read(struct tt_pairs *pairs, const char *path)
{
    char *text = NULL;
    json_t *json = NULL;
    size_t size = 0;
    int rc = 0;

    TT_TRY(tt_file_read(path, &text, &size));
    if (size && text[strspn(text, " \t\r\n")] == '{') {
        TT_TRY(tt_json_parse(text, size, path, &json));
        add_json(pairs, path, "", json);
    } else
        TT_TRY(read_toml(pairs, path, text, size));
out:
    json_decref(json);
    tt_free(text);
    return rc;
}

void tt_pairs_release(struct tt_pairs *pairs)
{
    for (int i = 0; i < pairs->n; i++) {
        tt_free(pairs->item[i].key);
        tt_free(pairs->item[i].value);
    }
    tt_free(pairs->item);
    *pairs = (struct tt_pairs){0};
}

/* SPDX-License-Identifier: MIT
 *
 * A reader of TOML; see yaml.h. One pass over the text by recursive descent; the depth is limited.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <ctype.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/config/yaml.h"

struct reader {
    const char *at, *end, *line_start;
    int line, depth;
    struct tt_yaml_doc *doc;
    struct tt_text *why;
    bool failed;
};

static int column(const struct reader *r)
{
    return (int)(r->at - r->line_start) + 1;
}

static struct tt_yaml *fail(struct reader *r, const char *what)
{
    if (!r->failed)
        tt_text_add(r->why, "TOML syntax: %s", what);
    r->failed = true;
    return NULL;
}

static char peek(const struct reader *r)
{
    return r->at < r->end ? *r->at : 0;
}

static void next(struct reader *r)
{
    if (*r->at == '\n') {
        r->line++;
        r->line_start = r->at + 1;
    }
    r->at++;
}

static bool take(struct reader *r, char c)
{
    if (peek(r) != c || r->at == r->end)
        return false;
    next(r);
    return true;
}

/* Skips spaces and, with `lines`, comments and line ends. */
static void skip(struct reader *r, bool lines)
{
    while (r->at < r->end) {
        if (*r->at == '#' && lines) {
            while (r->at < r->end && *r->at != '\n')
                r->at++;
        } else if (*r->at == ' ' || *r->at == '\t' || *r->at == '\r' || (lines && *r->at == '\n')) {
            next(r);
        } else {
            return;
        }
    }
}

static struct tt_yaml *add(struct reader *r, enum tt_yaml_kind kind)
{
    struct tt_yaml *node;

    if (r->doc->n >= TT_YAML_MAX_NODES)
        return fail(r, "too many values");
    node = tt_yaml_add(r->doc, kind, r->line, column(r));
    node->is_closed = true;
    return node;
}

/* --- strings --- */

/* Reads an escape sequence after its backslash. */
static bool escape(struct reader *r, struct tt_text *out)
{
    static const char letters[] = "btnfr\"\\", meanings[] = "\b\t\n\f\r\"\\";
    char c = peek(r);
    const char *known = c ? strchr(letters, c) : NULL;
    size_t digits = c == 'u' ? 4 : c == 'U' ? 8 : 0;
    int64_t code;
    char buf[4];

    if (known) {
        tt_text_add_bytes(out, &meanings[known - letters], 1);
        next(r);
        return true;
    }
    code = digits ? tt_text_hex(r->at + 1, (size_t)(r->end - r->at) - 1, digits) : -1;
    if (code <= 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return false;
    r->at += 1 + digits;
    tt_text_add_bytes(out, buf, (size_t)tt_utf8_encode((uint32_t)code, buf));
    return true;
}

/* Reads a string, from its first quote; three quotes begin a multi-line string. */
static char *string(struct reader *r, bool may_be_long)
{
    char quote = *r->at;
    bool is_long = may_be_long && r->end - r->at >= 3 && r->at[1] == quote && r->at[2] == quote;
    struct tt_text out = {0};

    r->at += is_long ? 3 : 1;
    if (is_long && peek(r) == '\r')
        next(r);
    if (is_long && peek(r) == '\n')
        next(r);
    while (r->at < r->end && (is_long || *r->at != '\n')) {
        if (*r->at == quote && (!is_long || (r->end - r->at >= 3 && r->at[1] == quote && r->at[2] == quote))) {
            r->at += is_long ? 3 : 1;
            return out.text ? out.text : tt_strdup("");
        }
        if (*r->at == '\\' && quote == '"') {
            next(r);
            if (is_long && isspace((unsigned char)peek(r))) {
                while (r->at < r->end && isspace((unsigned char)*r->at))
                    next(r);
            } else if (!escape(r, &out)) {
                (void)fail(r, "an unknown escape in a string");
                break;
            }
            continue;
        }
        if (!*r->at) {
            (void)fail(r, "a 0 byte");
            break;
        }
        tt_text_add_bytes(&out, r->at, 1);
        next(r);
    }
    (void)fail(r, "the string does not end");
    tt_text_release(&out);
    return NULL;
}

/* --- keys --- */

static struct tt_yaml *one_key(struct reader *r)
{
    struct tt_yaml *key = add(r, TT_YAML_SCALAR);
    const char *begin = r->at;

    if (!key)
        return NULL;
    if (peek(r) == '"' || peek(r) == '\'') {
        key->text = string(r, false);
        return key->text ? key : NULL;
    }
    while (r->at < r->end && (isalnum((unsigned char)*r->at) || *r->at == '_' || *r->at == '-'))
        r->at++;
    if (r->at == begin)
        return fail(r, "a key is expected, made of letters, digits, _ and -");
    key->text = tt_strndup(begin, (size_t)(r->at - begin));
    return key;
}

/* Reads a.b.c: finds or makes the map to which the last word belongs, and returns that word too. */
static struct tt_yaml *path(struct reader *r, struct tt_yaml *map, struct tt_yaml **ret_key)
{
    for (int depth = 0; depth < TT_YAML_MAX_DEPTH; depth++) {
        struct tt_yaml *key, *below;

        skip(r, false);
        if (!(key = one_key(r)))
            return NULL;
        skip(r, false);
        if (!take(r, '.')) {
            *ret_key = key;
            return map;
        }
        if (!(below = tt_yaml_get(map, key->text))) {
            if (!(below = add(r, TT_YAML_MAP)))
                return NULL;
            tt_yaml_put(map, key, below);
        }
        if (below->kind != TT_YAML_MAP)
            return fail(r, "a key below a value that is not a table");
        map = below;
    }
    return fail(r, "tables are nested too deeply");
}

/* --- values --- */

static struct tt_yaml *value(struct reader *r);

static struct tt_yaml *array(struct reader *r)
{
    struct tt_yaml *list = add(r, TT_YAML_LIST);

    next(r);
    while (list) {
        struct tt_yaml *item;

        skip(r, true);
        if (take(r, ']'))
            return list;
        if (!(item = value(r)))
            return NULL;
        TT_PUSH(list->item, list->n, list->cap) = item;
        skip(r, true);
        if (!take(r, ',') && peek(r) != ']')
            return fail(r, "',' or ']' is expected in an array");
    }
    return NULL;
}

static bool pair(struct reader *r, struct tt_yaml *map)
{
    struct tt_yaml *key = NULL, *owner = path(r, map, &key), *item;

    if (!owner)
        return false;
    if (!take(r, '='))
        return fail(r, "'=' is expected after a key");
    skip(r, false);
    if (!(item = value(r)))
        return false;
    tt_yaml_put(owner, key, item); /* the code that reads the tree reports duplicates */
    return true;
}

static struct tt_yaml *inline_table(struct reader *r)
{
    struct tt_yaml *map = add(r, TT_YAML_MAP);

    next(r);
    skip(r, false);
    if (!map || take(r, '}'))
        return map;
    while (pair(r, map)) {
        skip(r, false);
        if (take(r, '}'))
            return map;
        if (!take(r, ','))
            return fail(r, "',' or '}' is expected in a table");
    }
    return NULL;
}

static struct tt_yaml *plain(struct reader *r)
{
    struct tt_yaml *node = add(r, TT_YAML_SCALAR);
    const char *begin = r->at;

    while (r->at < r->end && (isalnum((unsigned char)*r->at) || (*r->at && strchr("+-._:", *r->at))))
        r->at++;
    if (!node || r->at == begin)
        return fail(r, "a value is expected");
    node->text = tt_strndup(begin, (size_t)(r->at - begin));
    return node;
}

static struct tt_yaml *value(struct reader *r)
{
    struct tt_yaml *node = NULL;
    char c = peek(r);

    if (++r->depth > TT_YAML_MAX_DEPTH)
        return fail(r, "values are nested too deeply");
    if (c == '[') {
        node = array(r);
    } else if (c == '{') {
        node = inline_table(r);
    } else if (c == '"' || c == '\'') {
        node = add(r, TT_YAML_SCALAR);
        if (node) {
            node->is_quoted = true;
            if (!(node->text = string(r, true)))
                node = NULL;
        }
    } else {
        node = plain(r);
    }
    r->depth--;
    return node;
}

/* --- the document --- */

static struct tt_yaml *header(struct reader *r)
{
    struct tt_yaml *key = NULL, *owner, *table;

    next(r);
    if (peek(r) == '[')
        return fail(r, "arrays of tables are not read");
    if (!(owner = path(r, r->doc->root, &key)))
        return NULL;
    if (!take(r, ']'))
        return fail(r, "']' is expected after the name of a table");
    table = tt_yaml_get(owner, key->text);
    if (table)
        return table->kind == TT_YAML_MAP ? table : fail(r, "a table with the name of a value");
    if ((table = add(r, TT_YAML_MAP)))
        tt_yaml_put(owner, key, table);
    return table;
}

bool tt_toml_parse(const char *text, size_t size, struct tt_yaml_doc *doc, int *ret_line, int *ret_column,
                   struct tt_text *why)
{
    struct reader r = {.at = text, .end = text + size, .line_start = text, .line = 1, .doc = doc, .why = why};
    struct tt_yaml *table = doc->root = add(&r, TT_YAML_MAP);

    if (size > TT_YAML_MAX_BYTES)
        (void)fail(&r, "the file is too large");
    for (skip(&r, true); !r.failed && r.at < r.end; skip(&r, true)) {
        if (peek(&r) == '[')
            table = header(&r);
        else
            (void)pair(&r, table);
        skip(&r, false);
        if (!r.failed && r.at < r.end && *r.at != '\n' && *r.at != '#')
            (void)fail(&r, "something follows a value on its line");
    }
    *ret_line = r.line;
    *ret_column = column(&r);
    return !r.failed;
}

bool tt_toml_is_likely(const char *text, size_t size)
{
    struct reader r = {.at = text, .end = text + size, .line_start = text, .line = 1};
    const char *at;

    skip(&r, true);
    at = r.at;
    if (at < r.end && *at == '[') {
        while (at < r.end && *at != '\n' && *at != ']' && *at != ',')
            at++;
        if (at == r.end || *at != ']')
            return false;
        for (at++; at < r.end && (*at == ' ' || *at == '\r'); at++)
            ;
        return at == r.end || *at == '\n' || *at == '#';
    }
    while (at < r.end && (isalnum((unsigned char)*at) || *at == '_' || *at == '-' || *at == '.' || *at == ' '))
        at++;
    return at < r.end && *at == '=' && at > r.at;
}

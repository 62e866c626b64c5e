/* SPDX-License-Identifier: MIT
 *
 * Parses YAML text into a tree with positions, from libyaml's events. Only this file includes yaml.h. The tree is built
 * with an explicit stack, so that deep nesting reaches a limit instead of crashing the program. An alias shares the
 * node of its anchor. So aliases of aliases cost nothing until code walks the tree; the number of aliases is limited
 * for that reason.
 */
#include "core/config/yaml.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <ctype.h>
#include <yaml.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"

struct anchor {
    char *name;
    struct tt_yaml *node;
};

struct builder {
    struct tt_yaml_doc *doc;
    struct tt_yaml *stack[TT_YAML_MAX_DEPTH];
    int depth;
    struct tt_yaml *pending_key[TT_YAML_MAX_DEPTH]; /* for the map at each depth: a key that still lacks its value */
    struct anchor *anchor;
    int n_anchors, cap_anchors;
    int n_aliases, n_documents;
    int line, column; /* of the fault */
    struct tt_text *why;
};

struct tt_yaml *tt_yaml_add(struct tt_yaml_doc *doc, enum tt_yaml_kind kind, int line, int column)
{
    struct tt_yaml *node = tt_calloc(1, sizeof *node);

    node->kind = kind;
    node->line = line;
    node->column = column;
    TT_PUSH(doc->node, doc->n, doc->cap) = node;
    return node;
}

/* Adds a pair to a map. */
static void put(struct tt_yaml *map, struct tt_yaml *key, struct tt_yaml *value)
{
    if (map->n == map->cap) {
        map->cap = map->cap ? 2 * map->cap : 8;
        map->key = tt_realloc((void *)map->key, (size_t)map->cap, sizeof *map->key);
        map->item = tt_realloc((void *)map->item, (size_t)map->cap, sizeof *map->item);
    }
    map->key[map->n] = key;
    map->item[map->n++] = value;
}

struct tt_yaml *tt_yaml_get(const struct tt_yaml *map, const char *key)
{
    for (int i = 0; map && map->kind == TT_YAML_MAP && i < map->n; i++)
        if (strcmp(map->key[i]->text, key) == 0)
            return map->item[i];
    return NULL;
}

void tt_yaml_release(struct tt_yaml_doc *doc)
{
    for (int i = 0; i < doc->n; i++) {
        tt_free(doc->node[i]->text);
        tt_free((void *)doc->node[i]->key);
        tt_free((void *)doc->node[i]->item);
        tt_free(doc->node[i]);
    }
    tt_free((void *)doc->node);
    *doc = (struct tt_yaml_doc){0};
}

bool tt_yaml_is_null(const struct tt_yaml *node)
{
    static const char *const words[] = {"", "~", "null", "Null", "NULL"};
    bool found = false;

    for (size_t i = 0; node->kind == TT_YAML_SCALAR && !node->is_quoted && i < sizeof words / sizeof *words; i++)
        found = found || strcmp(node->text, words[i]) == 0;
    return found;
}

static bool fault(struct builder *b, const yaml_mark_t *mark, const char *what)
{
    b->line = (int)mark->line + 1;
    b->column = (int)mark->column + 1;
    tt_text_add(b->why, "%s", what);
    return false;
}

/* Puts a node (finished, or just opened) where the top of the stack expects it. */
static bool attach(struct builder *b, struct tt_yaml *node, const yaml_mark_t *mark)
{
    struct tt_yaml *top = b->depth ? b->stack[b->depth - 1] : NULL;
    struct tt_yaml **key = b->depth ? &b->pending_key[b->depth - 1] : NULL;

    if (!top) {
        b->doc->root = node;
    } else if (top->kind == TT_YAML_LIST) {
        TT_PUSH(top->item, top->n, top->cap) = node;
    } else if (*key) {
        put(top, *key, node);
        *key = NULL;
    } else if (node->kind == TT_YAML_SCALAR) {
        *key = node;
    } else {
        return fault(b, mark, "a key must be a word, not a list or a mapping");
    }
    return true;
}

static void name_anchor(struct builder *b, const yaml_char_t *name, struct tt_yaml *node)
{
    if (name)
        TT_PUSH(b->anchor, b->n_anchors, b->cap_anchors) = (struct anchor){tt_strdup((const char *)name), node};
}

static bool on_scalar(struct builder *b, const yaml_event_t *event)
{
    struct tt_yaml *node =
        tt_yaml_add(b->doc, TT_YAML_SCALAR, (int)event->start_mark.line + 1, (int)event->start_mark.column + 1);

    node->text = tt_strndup((const char *)event->data.scalar.value, event->data.scalar.length);
    node->is_quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    node->is_closed = true;
    if (strlen(node->text) != event->data.scalar.length)
        return fault(b, &event->start_mark, "a value must not contain a 0 byte");
    name_anchor(b, event->data.scalar.anchor, node);
    return attach(b, node, &event->start_mark);
}

static bool on_open(struct builder *b, const yaml_event_t *event, enum tt_yaml_kind kind, const yaml_char_t *anchor)
{
    struct tt_yaml *node;

    if (b->depth == TT_YAML_MAX_DEPTH)
        return fault(b, &event->start_mark, "nested too deeply: 16 levels are the limit");
    node = tt_yaml_add(b->doc, kind, (int)event->start_mark.line + 1, (int)event->start_mark.column + 1);
    name_anchor(b, anchor, node);
    if (!attach(b, node, &event->start_mark))
        return false;
    b->pending_key[b->depth] = NULL;
    b->stack[b->depth++] = node;
    return true;
}

static bool on_alias(struct builder *b, const yaml_event_t *event)
{
    const char *name = (const char *)event->data.alias.anchor;

    if (++b->n_aliases > TT_YAML_MAX_ALIASES)
        return fault(b, &event->start_mark, "too many aliases: 256 are the limit");
    for (int i = b->n_anchors - 1; i >= 0; i--) {
        if (strcmp(b->anchor[i].name, name) != 0)
            continue;
        if (!b->anchor[i].node->is_closed)
            return fault(b, &event->start_mark, "an alias inside its own anchor");
        return attach(b, b->anchor[i].node, &event->start_mark);
    }
    (void)fault(b, &event->start_mark, "");
    tt_text_add(b->why, "there is no anchor '&%.60s' before this alias", name);
    return false;
}

static bool on_event(struct builder *b, const yaml_event_t *event)
{
    if (b->doc->n >= TT_YAML_MAX_NODES)
        return fault(b, &event->start_mark, "too many values: 20000 are the limit");
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (b->n_documents++)
            return fault(b, &event->start_mark, "a second document begins here; one is expected");
        return true;
    case YAML_SCALAR_EVENT:
        return on_scalar(b, event);
    case YAML_SEQUENCE_START_EVENT:
        return on_open(b, event, TT_YAML_LIST, event->data.sequence_start.anchor);
    case YAML_MAPPING_START_EVENT:
        return on_open(b, event, TT_YAML_MAP, event->data.mapping_start.anchor);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        if (b->depth > 0) { /* libyaml only ends collections that it began */
            b->stack[--b->depth]->is_closed = true;
        }
        return true;
    case YAML_ALIAS_EVENT:
        return on_alias(b, event);
    default:
        return true;
    }
}

/* The position of a byte offset, for libyaml's reader errors (bad UTF-8, control characters), which have no mark. */
static void position_of(const char *text, size_t offset, int *line, int *column)
{
    *line = *column = 1;
    for (size_t i = 0; i < offset; i++) {
        if (text[i] == '\n') {
            (*line)++;
            *column = 1;
        } else if (((unsigned char)text[i] & 0xc0) != 0x80) {
            (*column)++;
        }
    }
}

/* Column of the tab that indents a line, or 0. */
static int indenting_tab(const char *text, size_t size, size_t line)
{
    const char *at = text, *end = text + size;

    for (size_t i = 0; i < line && at; i++) {
        at = memchr(at, '\n', (size_t)(end - at));
        at = at ? at + 1 : NULL;
    }
    for (int column = 1; at && at < end && (*at == ' ' || *at == '\t'); at++, column++) {
        if (*at == '\t')
            return column;
    }
    return 0;
}

/* libyaml begins a new line at the end of a text that does not end with one. */
static void stay_inside(const char *text, size_t size, int *line, int *column)
{
    const char *end = text + size, *begin = end;
    int lines = 1;

    while (begin > text && begin[-1] != '\n')
        begin--;
    for (const char *at = text; at < begin; at++)
        lines += *at == '\n';
    if (*line > lines) {
        *line = lines;
        *column = (int)(end - begin) + 1;
    }
}

static void parser_fault(struct builder *b, const yaml_parser_t *parser, const char *text, size_t size)
{
    const char *problem = parser->problem ? parser->problem : "not readable";
    int line = (int)parser->context_mark.line + 1, column = (int)parser->context_mark.column + 1, tab;

    if (parser->error == YAML_READER_ERROR) {
        position_of(text, parser->problem_offset < size ? parser->problem_offset : size, &b->line, &b->column);
        tt_text_add(b->why, "YAML syntax: %s", problem);
        return;
    }
    b->line = (int)parser->problem_mark.line + 1;
    b->column = (int)parser->problem_mark.column + 1;
    tab = indenting_tab(text, size, parser->problem_mark.line);
    if (tab) {
        b->column = tab;
        tt_text_add(b->why, "a tab is used for indentation; YAML needs spaces");
        return;
    }
    stay_inside(text, size, &b->line, &b->column);
    stay_inside(text, size, &line, &column);
    tt_text_add(b->why, "YAML syntax: %s", problem);
    if (parser->context && line < b->line)
        tt_text_add(b->why, " (%s that began at line %d)", parser->context, line);
    else if (parser->context)
        tt_text_add(b->why, " (%s)", parser->context);
}

bool tt_yaml_parse(const char *text, size_t size, struct tt_yaml_doc *doc, int *ret_line, int *ret_column,
                   struct tt_text *why)
{
    struct builder b = {.doc = doc, .line = 1, .column = 1, .why = why};
    yaml_parser_t parser;
    bool ok = true, is_done = false;

    *doc = (struct tt_yaml_doc){0};
    if (size > TT_YAML_MAX_BYTES) {
        tt_text_add(why, "the file is larger than 1 MiB; this is not a configuration");
        *ret_line = *ret_column = 1;
        return false;
    }
    if (!yaml_parser_initialize(&parser)) {
        tt_text_add(why, "cannot start the YAML parser");
        *ret_line = *ret_column = 1;
        return false;
    }
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, size);
    while (ok && !is_done) {
        yaml_event_t event;

        if (!yaml_parser_parse(&parser, &event)) {
            parser_fault(&b, &parser, text, size);
            ok = false;
            break;
        }
        ok = on_event(&b, &event);
        is_done = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    for (int i = 0; i < b.n_anchors; i++)
        tt_free(b.anchor[i].name);
    tt_free(b.anchor);
    *ret_line = b.line;
    *ret_column = b.column;
    return ok;
}

/* Whether the character is printable in YAML and not a line separator, which folding would remove. */
static bool is_printable(uint32_t code)
{
    return code >= 0x20 && !(code >= 0x7f && code < 0xa0) && code != 0x2028 && code != 0x2029 && code != 0xfeff &&
           code != 0xfffe && code != 0xffff;
}

static bool is_plain(const char *text)
{
    static const char *const special[] = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"};
    char lower[8] = {0};

    if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ./_", text[0]) || !text[0])
        return false;
    if (strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789./_+-") != strlen(text))
        return false;
    if (text[0] == '.' && text[1] != '/' && text[1] != '.')
        return false; /* such as .5 and .inf, which are numbers */
    for (size_t i = 0; i < sizeof lower - 1 && text[i]; i++)
        lower[i] = (char)(text[i] >= 'A' && text[i] <= 'Z' ? text[i] + 32 : text[i]);
    for (size_t i = 0; i < sizeof special / sizeof *special; i++) {
        if (strlen(text) < sizeof lower && strcmp(lower, special[i]) == 0)
            return false;
    }
    return true;
}

void tt_yaml_write_text(struct tt_text *out, const char *text)
{
    const char *at = text, *end = text + strlen(text);

    if (is_plain(text)) {
        tt_text_add(out, "%s", text);
        return;
    }
    tt_text_add(out, "\"");
    while (at < end) {
        uint32_t code;
        int n = tt_utf8_decode(at, (size_t)(end - at), &code);

        if (*at == '"' || *at == '\\') {
            tt_text_add(out, "\\%c", *at);
        } else if (n && is_printable(code)) {
            tt_text_add_bytes(out, at, (size_t)n);
        } else {
            tt_text_add(out, "\\u%04X", n ? code : 0xfffd);
        }
        at += n ? n : 1;
    }
    tt_text_add(out, "\"");
}

/* A reader of TOML; see yaml.h. One pass over the text by recursive descent; the depth is limited. */

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
            put(map, key, below);
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
    put(owner, key, item); /* the code that reads the tree reports duplicates */
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
        put(owner, key, table);
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

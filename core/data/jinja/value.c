/* SPDX-License-Identifier: MIT
 *
 * Memory and values of templates. Values behave as in Python.
 */
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/base/utf8.h"
#include "core/data/jinja/internal.h"

enum { BLOCK_BYTES = 16384, ALIGNMENT = 16, DEEPEST_VALUE = 100 };

struct tt_jblock {
    struct tt_jblock *before;
    size_t used, cap;
    _Alignas(ALIGNMENT) char bytes[];
};

/* --- memory --- */

void tt_jfail(struct tt_jwork *w, int code, const char *fmt, ...)
{
    char text[512];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    w->rc = tt_fail(code, "%s, line %d: %s", w->where, w->line, text);
    longjmp(w->end, 1);
}

void *tt_jalloc(struct tt_jwork *w, size_t bytes)
{
    struct tt_jblock *b = w->block;
    void *p;

    if (bytes > w->most_bytes || w->bytes > w->most_bytes - bytes)
        tt_jfail(w, TT_EUSAGE, "the template needs more than %zu MiB", w->most_bytes >> 20);
    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    w->bytes += bytes;
    if (!b || b->cap - b->used < bytes) {
        size_t cap = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;

        b = tt_calloc(1, sizeof *b + cap);
        b->cap = cap;
        b->before = w->block;
        w->block = b;
    }
    p = b->bytes + b->used;
    b->used += bytes;
    return p;
}

void tt_jwork_release(struct tt_jwork *w)
{
    while (w->block) {
        struct tt_jblock *before = w->block->before;

        tt_free(w->block);
        w->block = before;
    }
}

void tt_jstep(struct tt_jwork *w, size_t n)
{
    w->steps += n;
    if (w->steps > w->most_steps)
        tt_jfail(w, TT_EUSAGE, "the template takes too many steps");
}

void tt_jdeeper(struct tt_jwork *w, int most)
{
    if (++w->depth > most)
        tt_jfail(w, TT_EUSAGE, "it is nested more than %d deep", most);
}

char *tt_jcopy(struct tt_jwork *w, const char *text, size_t size)
{
    char *copy = tt_jalloc(w, size + 1);

    memcpy(copy, text, size);
    return copy;
}

void *tt_jgrow(struct tt_jwork *w, void *array, size_t n, size_t *cap, size_t item_size)
{
    void *more;

    if (n < *cap)
        return array;
    *cap = *cap ? 2 * *cap : 8;
    more = tt_jalloc(w, *cap * item_size);
    if (n)
        memcpy(more, array, n * item_size);
    return more;
}

/* --- making values --- */

struct tt_jvalue tt_jlist_new(struct tt_jwork *w, enum tt_jkind kind)
{
    return (struct tt_jvalue){.kind = kind, .list = tt_jalloc(w, sizeof(struct tt_jlist))};
}

void tt_jlist_add(struct tt_jwork *w, struct tt_jlist *list, struct tt_jvalue value)
{
    list->item = tt_jgrow(w, list->item, list->n, &list->cap, sizeof *list->item);
    list->item[list->n++] = value;
}

void tt_jlist_extend(struct tt_jwork *w, struct tt_jlist *list, const struct tt_jlist *more)
{
    for (size_t i = 0; i < more->n; i++)
        tt_jlist_add(w, list, more->item[i]);
}

struct tt_jvalue tt_jdict_new(struct tt_jwork *w, enum tt_jkind kind)
{
    return (struct tt_jvalue){.kind = kind, .dict = tt_jalloc(w, sizeof(struct tt_jdict))};
}

struct tt_jvalue *tt_jdict_get(struct tt_jwork *w, const struct tt_jdict *dict, struct tt_jvalue key)
{
    if (key.kind >= TT_J_LIST && key.kind != TT_J_TUPLE)
        tt_jfail(w, TT_EUSAGE, "%s cannot be a key", tt_jkind_name(key));
    for (size_t i = 0; i < dict->n; i++) {
        tt_jstep(w, 1);
        if (tt_jequal(w, dict->pair[i].key, key))
            return &dict->pair[i].value;
    }
    return NULL;
}

static void add_pair(struct tt_jwork *w, struct tt_jdict *dict, struct tt_jvalue key, struct tt_jvalue value)
{
    dict->pair = tt_jgrow(w, dict->pair, dict->n, &dict->cap, sizeof *dict->pair);
    dict->pair[dict->n++] = (struct tt_jpair){key, value};
}

void tt_jdict_set(struct tt_jwork *w, struct tt_jdict *dict, struct tt_jvalue key, struct tt_jvalue value)
{
    struct tt_jvalue *found = tt_jdict_get(w, dict, key);

    if (found)
        *found = value;
    else
        add_pair(w, dict, key, value);
}

struct tt_jvalue tt_jfrom_json(struct tt_jwork *w, const json_t *json)
{
    struct tt_jvalue v = tt_jnone;
    const char *key;
    json_t *member;
    size_t size;

    tt_jdeeper(w, DEEPEST_VALUE);
    tt_jstep(w, 1);
    if (json_is_object(json)) {
        v = tt_jdict_new(w, TT_J_DICT);
        json_object_keylen_foreach((json_t *)(uintptr_t)json, key, size, member)
        {
            add_pair(w, v.dict, tt_jstring(key, size), tt_jfrom_json(w, member));
        }
    } else if (json_is_array(json)) {
        v = tt_jlist_new(w, TT_J_LIST);
        for (size_t i = 0; i < json_array_size(json); i++)
            tt_jlist_add(w, v.list, tt_jfrom_json(w, json_array_get(json, i)));
    } else if (json_is_string(json)) {
        v = tt_jstring(json_string_value(json), json_string_length(json));
    } else if (json_is_integer(json)) {
        v = tt_jint((int64_t)json_integer_value(json));
    } else if (json_is_real(json)) {
        v = (struct tt_jvalue){.kind = TT_J_REAL, .real = json_real_value(json)};
    } else if (json_is_boolean(json)) {
        v = tt_jbool(json_is_true(json));
    }
    w->depth--;
    return v;
}

/* --- questions about values --- */

const char *tt_jkind_name(struct tt_jvalue v)
{
    static const char *const names[] = {[TT_J_UNDEFINED] = "something undefined",
                                        [TT_J_NONE] = "none",
                                        [TT_J_BOOL] = "a boolean",
                                        [TT_J_INT] = "an integer",
                                        [TT_J_REAL] = "a real number",
                                        [TT_J_STRING] = "a string",
                                        [TT_J_LIST] = "a list",
                                        [TT_J_TUPLE] = "a tuple",
                                        [TT_J_DICT] = "a mapping",
                                        [TT_J_NAMESPACE] = "a namespace",
                                        [TT_J_LOOP] = "the loop",
                                        [TT_J_MACRO] = "a macro",
                                        [TT_J_FUNCTION] = "a function",
                                        [TT_J_METHOD] = "a method"};

    return names[v.kind];
}

bool tt_jis_true(struct tt_jvalue v)
{
    switch (v.kind) {
    case TT_J_UNDEFINED:
    case TT_J_NONE:
        return false;
    case TT_J_BOOL:
    case TT_J_INT:
        return v.integer != 0;
    case TT_J_REAL:
        return v.real != 0.0;
    case TT_J_STRING:
        return v.size != 0;
    case TT_J_LIST:
    case TT_J_TUPLE:
        return v.list->n != 0 || (v.is_lazy && !v.is_view);
    case TT_J_DICT:
        return v.dict->n != 0;
    default:
        return true;
    }
}

bool tt_jis(struct tt_jvalue v, const char *text)
{
    return v.kind == TT_J_STRING && v.size == strlen(text) && memcmp(v.text, text, v.size) == 0;
}

static bool is_number(struct tt_jvalue v)
{
    return v.kind == TT_J_BOOL || v.kind == TT_J_INT || v.kind == TT_J_REAL;
}

static bool is_list(struct tt_jvalue v)
{
    return v.kind == TT_J_LIST || v.kind == TT_J_TUPLE;
}

static double as_real(struct tt_jvalue v)
{
    return v.kind == TT_J_REAL ? v.real : (double)v.integer;
}

static bool equal_dicts(struct tt_jwork *w, const struct tt_jdict *a, const struct tt_jdict *b)
{
    for (size_t i = 0; i < a->n; i++) {
        const struct tt_jvalue *other = tt_jdict_get(w, b, a->pair[i].key);

        if (!other || !tt_jequal(w, a->pair[i].value, *other))
            return false;
    }
    return a->n == b->n;
}

bool tt_jequal(struct tt_jwork *w, struct tt_jvalue a, struct tt_jvalue b)
{
    bool same = a.kind == b.kind;

    tt_jdeeper(w, 4 * TT_J_DEEPEST);
    if (is_number(a) && is_number(b)) {
        same = a.kind == TT_J_REAL || b.kind == TT_J_REAL ? as_real(a) == as_real(b) : a.integer == b.integer;
    } else if (same && a.kind == TT_J_STRING) {
        tt_jstep(w, a.size / 64);
        same = a.size == b.size && memcmp(a.text, b.text, a.size) == 0;
    } else if (same && is_list(a)) {
        tt_jcheck_made(w, a);
        tt_jcheck_made(w, b);
        same = a.list->n == b.list->n;
        for (size_t i = 0; same && i < a.list->n; i++) {
            tt_jstep(w, 1);
            same = tt_jequal(w, a.list->item[i], b.list->item[i]);
        }
    } else if (same && a.kind == TT_J_DICT) {
        same = equal_dicts(w, a.dict, b.dict);
    } else if (same && a.kind > TT_J_DICT) {
        same = a.dict == b.dict;
    }
    w->depth--;
    return same;
}

/* Compares bytes; in UTF-8 this gives the order of the characters. */
static int compare_strings(struct tt_jvalue a, struct tt_jvalue b)
{
    size_t n = a.size < b.size ? a.size : b.size;
    int order = n ? memcmp(a.text, b.text, n) : 0;

    return order ? order : (a.size > b.size) - (a.size < b.size);
}

/* Returns a negative number, 0 or a positive one. */
static int compare(struct tt_jwork *w, struct tt_jvalue a, struct tt_jvalue b)
{
    if (is_number(a) && is_number(b)) {
        if (a.kind == TT_J_REAL || b.kind == TT_J_REAL)
            return (as_real(a) > as_real(b)) - (as_real(a) < as_real(b));
        return (a.integer > b.integer) - (a.integer < b.integer);
    }
    if (a.kind == TT_J_STRING && b.kind == TT_J_STRING) {
        tt_jstep(w, (a.size < b.size ? a.size : b.size) / 64);
        return compare_strings(a, b);
    }
    tt_jfail(w, TT_EUSAGE, "%s and %s cannot be ordered", tt_jkind_name(a), tt_jkind_name(b));
}

struct tt_jlist *tt_jitems(struct tt_jwork *w, struct tt_jvalue v)
{
    struct tt_jlist *made;

    if (v.is_lazy && !v.is_view && v.list->is_walked)
        tt_jfail(w, TT_EUSAGE, "what a filter gives is walked twice, without the filter list");
    if (v.is_lazy)
        v.list->is_walked = true;
    if (is_list(v))
        return v.list;
    made = tt_jalloc(w, sizeof *made);
    if (v.kind == TT_J_UNDEFINED)
        return made;
    if (v.kind == TT_J_DICT) {
        for (size_t i = 0; i < v.dict->n; i++)
            tt_jlist_add(w, made, v.dict->pair[i].key);
        return made;
    }
    if (v.kind != TT_J_STRING)
        tt_jfail(w, TT_EUSAGE, "%s has no items", tt_jkind_name(v));
    for (size_t i = 0; i < v.size;) {
        size_t next = i + 1;

        while (next < v.size && ((unsigned char)v.text[next] & 0xc0) == 0x80)
            next++;
        tt_jlist_add(w, made, tt_jstring(v.text + i, next - i));
        i = next;
    }
    return made;
}

void tt_jcheck_made(struct tt_jwork *w, struct tt_jvalue v)
{
    if (v.is_lazy)
        tt_jfail(w, TT_EUSAGE, "what a filter or a mapping gives for loops is used as a list, without the filter list");
}

int64_t tt_jlength(struct tt_jwork *w, struct tt_jvalue v)
{
    int64_t n = 0;

    switch (v.kind) {
    case TT_J_UNDEFINED:
        return 0;
    case TT_J_LIST:
    case TT_J_TUPLE:
        if (!v.is_view)
            tt_jcheck_made(w, v);
        return (int64_t)v.list->n;
    case TT_J_DICT:
        return (int64_t)v.dict->n;
    case TT_J_STRING:
        tt_jstep(w, v.size / 64);
        for (size_t i = 0; i < v.size; i++)
            n += ((unsigned char)v.text[i] & 0xc0) != 0x80;
        return n;
    default:
        tt_jfail(w, TT_EUSAGE, "%s has no length", tt_jkind_name(v));
    }
}

static bool contains(struct tt_jwork *w, struct tt_jvalue whole, struct tt_jvalue part)
{
    struct tt_jlist *items;

    if (whole.kind == TT_J_DICT)
        return tt_jdict_get(w, whole.dict, part) != NULL;
    if (whole.kind == TT_J_STRING) {
        if (part.kind != TT_J_STRING)
            tt_jfail(w, TT_EUSAGE, "%s cannot be in a string", tt_jkind_name(part));
        return tt_jfind(w, whole, 0, part) != SIZE_MAX;
    }
    items = tt_jitems(w, whole);
    for (size_t i = 0; i < items->n; i++) {
        tt_jstep(w, 1);
        if (tt_jequal(w, items->item[i], part))
            return true;
    }
    return false;
}

bool tt_jholds(struct tt_jwork *w, const char *op, struct tt_jvalue a, struct tt_jvalue b)
{
    int order;

    if (strcmp(op, "==") == 0 || strcmp(op, "!=") == 0)
        return tt_jequal(w, a, b) == (op[0] == '=');
    if (strcmp(op, "in") == 0 || strcmp(op, "not in") == 0)
        return contains(w, b, a) == (op[0] == 'i');
    order = compare(w, a, b);
    return (op[1] == '=' && order == 0) || (op[0] == '<' ? order < 0 : order > 0);
}

/* --- writing values --- */

void tt_jtext_add(struct tt_jwork *w, struct tt_jtext *t, const char *text, size_t size)
{
    if (t->cap - t->size < size) {
        size_t cap = t->cap > size ? 2 * t->cap : t->cap + size + 64;
        char *more = tt_jalloc(w, cap);

        if (t->size)
            memcpy(more, t->text, t->size);
        t->text = more;
        t->cap = cap;
    }
    if (size)
        memcpy(t->text + t->size, text, size);
    t->size += size;
}

static void add_words(struct tt_jwork *w, struct tt_jtext *t, const char *words)
{
    tt_jtext_add(w, t, words, strlen(words));
}

/* Adds a short text made by printf. */
static void __attribute__((format(printf, 3, 4)))
add_format(struct tt_jwork *w, struct tt_jtext *t, const char *fmt, ...)
{
    char buf[32];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(buf, sizeof buf, fmt, args);
    va_end(args);
    add_words(w, t, buf);
}

struct tt_jvalue tt_jtext_value(const struct tt_jtext *t)
{
    return tt_jstring(t->text ? t->text : "", t->size);
}

/* As in Python's repr: the shortest digits that read back as the same number. */
static void add_real(struct tt_jwork *w, struct tt_jtext *t, double real)
{
    char buf[48];

    if (!isfinite(real)) {
        add_words(w, t, isnan(real) ? "nan" : real > 0 ? "inf" : "-inf");
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(buf, sizeof buf, "%.*e", digits - 1, real);
        if (strtod(buf, NULL) == real) {
            int power = (int)strtol(strchr(buf, 'e') + 1, NULL, 10);

            if (power >= -4 && power < 16)
                (void)snprintf(buf, sizeof buf, "%.*f", digits - 1 > power ? digits - 1 - power : 1, real);
            break;
        }
    }
    add_words(w, t, buf);
}

/* A string as Python's repr writes it. */
static void add_repr(struct tt_jwork *w, struct tt_jtext *t, struct tt_jvalue v)
{
    bool has_single = v.size && memchr(v.text, '\'', v.size), has_double = v.size && memchr(v.text, '"', v.size);
    char quote = has_single && !has_double ? '"' : '\'';

    tt_jtext_add(w, t, &quote, 1);
    for (size_t i = 0; i < v.size; i++) {
        char c = v.text[i];

        if (c == '\n' || c == '\r' || c == '\t') {
            add_words(w, t, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
        } else if ((unsigned char)c < 0x20 || c == 0x7f) {
            add_format(w, t, "\\x%02x", (unsigned char)c);
        } else {
            if (c == '\\' || c == quote)
                add_words(w, t, "\\");
            tt_jtext_add(w, t, &c, 1);
        }
    }
    tt_jtext_add(w, t, &quote, 1);
}

static void add_shown(struct tt_jwork *w, struct tt_jtext *t, struct tt_jvalue v)
{
    if (v.kind == TT_J_STRING)
        add_repr(w, t, v);
    else if (v.kind == TT_J_UNDEFINED)
        add_words(w, t, "Undefined");
    else
        tt_jtext_add_value(w, t, v);
}

static void add_items(struct tt_jwork *w, struct tt_jtext *t, struct tt_jvalue v)
{
    bool is_dict = v.kind == TT_J_DICT, is_tuple = v.kind == TT_J_TUPLE;
    size_t n = is_dict ? v.dict->n : v.list->n;

    add_words(w, t, is_dict ? "{" : is_tuple ? "(" : "[");
    for (size_t i = 0; i < n; i++) {
        add_words(w, t, i ? ", " : "");
        if (is_dict) {
            add_shown(w, t, v.dict->pair[i].key);
            add_words(w, t, ": ");
        }
        add_shown(w, t, is_dict ? v.dict->pair[i].value : v.list->item[i]);
    }
    add_words(w, t, is_dict ? "}" : is_tuple ? n == 1 ? ",)" : ")" : "]");
}

void tt_jtext_add_value(struct tt_jwork *w, struct tt_jtext *t, struct tt_jvalue v)
{
    tt_jdeeper(w, 4 * TT_J_DEEPEST);
    tt_jstep(w, 1);
    tt_jcheck_made(w, v);
    switch (v.kind) {
    case TT_J_UNDEFINED:
        break;
    case TT_J_NONE:
        add_words(w, t, "None");
        break;
    case TT_J_BOOL:
        add_words(w, t, v.integer ? "True" : "False");
        break;
    case TT_J_INT:
        add_format(w, t, "%lld", (long long)v.integer);
        break;
    case TT_J_REAL:
        add_real(w, t, v.real);
        break;
    case TT_J_STRING:
        tt_jtext_add(w, t, v.text, v.size);
        break;
    case TT_J_LIST:
    case TT_J_TUPLE:
    case TT_J_DICT:
        add_items(w, t, v);
        break;
    default:
        tt_jfail(w, TT_EUSAGE, "%s cannot be written", tt_jkind_name(v));
    }
    w->depth--;
}

struct tt_jvalue tt_jto_string(struct tt_jwork *w, struct tt_jvalue v)
{
    struct tt_jtext text = {0};

    if (v.kind == TT_J_STRING)
        return v;
    tt_jtext_add_value(w, &text, v);
    return tt_jtext_value(&text);
}

/* ---- the filter tojson, which writes as Python's json.dumps does ---- */

struct style {
    bool ascii, sorts;
    int64_t indent; /* -1: on one line */
    struct tt_jvalue comma, colon;
};

static void add_string(struct tt_jwork *w, struct tt_jtext *t, struct tt_jvalue v, const struct style *style)
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    uint32_t code = 0;

    add_words(w, t, "\"");
    for (size_t i = 0, n; i < v.size; i += n) {
        const char *p = v.text + i, *found = *p ? strchr(from, *p) : NULL;

        n = 1;
        if (found) {
            add_words(w, t, "\\");
            tt_jtext_add(w, t, &to[found - from], 1);
        } else if ((unsigned char)*p < 0x20) {
            add_format(w, t, "\\u%04x", (unsigned char)*p);
        } else if ((unsigned char)*p < 0x7f || !style->ascii) {
            tt_jtext_add(w, t, p, 1);
        } else {
            n = (size_t)tt_utf8_decode(p, v.size - i, &code);
            n = n ? n : 1;
            if (code > 0xffff) {
                add_format(w, t, "\\u%04x", 0xd800 + ((code - 0x10000) >> 10));
                code = 0xdc00 + ((code - 0x10000) & 0x3ff);
            }
            add_format(w, t, "\\u%04x", code);
        }
    }
    add_words(w, t, "\"");
}

static void add_line(struct tt_jwork *w, struct tt_jtext *t, const struct style *style, int level)
{
    if (style->indent < 0)
        return;
    add_words(w, t, "\n");
    for (int64_t i = 0; i < style->indent * level; i++)
        add_words(w, t, " ");
}

static void add_value(struct tt_jwork *w, struct tt_jtext *t, struct tt_jvalue v, const struct style *style, int level);

static int by_key(const void *a, const void *b)
{
    return compare_strings(((const struct tt_jpair *)a)->key, ((const struct tt_jpair *)b)->key);
}

/* The pairs in the order in which they are written. */
static const struct tt_jpair *pairs_of(struct tt_jwork *w, const struct tt_jdict *dict, const struct style *style)
{
    struct tt_jpair *pairs = dict->pair;

    for (size_t i = 0; i < dict->n; i++)
        if (pairs[i].key.kind != TT_J_STRING)
            tt_jfail(w, TT_EUSAGE, "tojson of a mapping with %s as a key is not supported",
                     tt_jkind_name(pairs[i].key));
    if (style->sorts && dict->n) {
        pairs = memcpy(tt_jalloc(w, dict->n * sizeof *pairs), pairs, dict->n * sizeof *pairs);
        qsort(pairs, dict->n, sizeof *pairs, by_key);
    }
    return pairs;
}

static void add_members(struct tt_jwork *w, struct tt_jtext *t, struct tt_jvalue v, const struct style *style,
                        int level)
{
    bool is_dict = v.kind == TT_J_DICT;
    const struct tt_jpair *pairs = is_dict ? pairs_of(w, v.dict, style) : NULL;
    size_t n = is_dict ? v.dict->n : v.list->n;

    add_words(w, t, is_dict ? "{" : "[");
    for (size_t i = 0; i < n; i++) {
        if (i)
            tt_jtext_add(w, t, style->comma.text, style->comma.size);
        add_line(w, t, style, level + 1);
        if (is_dict) {
            add_string(w, t, pairs[i].key, style);
            tt_jtext_add(w, t, style->colon.text, style->colon.size);
        }
        add_value(w, t, is_dict ? pairs[i].value : v.list->item[i], style, level + 1);
    }
    if (n)
        add_line(w, t, style, level);
    add_words(w, t, is_dict ? "}" : "]");
}

static void add_value(struct tt_jwork *w, struct tt_jtext *t, struct tt_jvalue v, const struct style *style, int level)
{
    tt_jstep(w, 1);
    tt_jcheck_made(w, v);
    if (level > TT_J_DEEPEST)
        tt_jfail(w, TT_EUSAGE, "values are nested too deeply");
    switch (v.kind) {
    case TT_J_NONE:
        add_words(w, t, "null");
        break;
    case TT_J_BOOL:
        add_words(w, t, v.integer ? "true" : "false");
        break;
    case TT_J_INT:
    case TT_J_REAL:
        tt_jtext_add_value(w, t, v);
        break;
    case TT_J_STRING:
        add_string(w, t, v, style);
        break;
    case TT_J_LIST:
    case TT_J_TUPLE:
    case TT_J_DICT:
        add_members(w, t, v, style, level);
        break;
    default:
        tt_jfail(w, TT_EUSAGE, "%s cannot be written as JSON", tt_jkind_name(v));
    }
}

void tt_jtext_add_json(struct tt_jwork *w, struct tt_jtext *t, struct tt_jvalue v, const struct tt_jargs *args)
{
    struct tt_jvalue indent = tt_jarg(w, args, 1, "indent", tt_jnone);
    struct tt_jvalue separators = tt_jarg(w, args, 2, "separators", tt_jnone);
    struct style style = {.ascii = tt_jis_true(tt_jarg(w, args, 0, "ensure_ascii", tt_jnone)),
                          .sorts = tt_jis_true(tt_jarg(w, args, 3, "sort_keys", tt_jnone)),
                          .indent = -1};

    if (indent.kind != TT_J_NONE) {
        if (indent.kind != TT_J_INT || indent.integer < 0 || indent.integer > 100)
            tt_jfail(w, TT_EUSAGE, "tojson with an indent that is not a small integer is not supported");
        style.indent = indent.integer;
    }
    style.comma = style.indent < 0 ? tt_jstring(", ", 2) : tt_jstring(",", 1);
    style.colon = tt_jstring(": ", 2);
    if (separators.kind != TT_J_NONE) {
        if (!is_list(separators) || separators.list->n != 2 || separators.list->item[0].kind != TT_J_STRING ||
            separators.list->item[1].kind != TT_J_STRING)
            tt_jfail(w, TT_EUSAGE, "the separators of tojson are not two strings");
        style.comma = separators.list->item[0];
        style.colon = separators.list->item[1];
    }
    add_value(w, t, v, &style, 0);
}

/* SPDX-License-Identifier: MIT
 *
 * The filter tojson, as transformers has it: Python's json.dumps.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/utf8.h"
#include "core/data/jinja/internal.h"

struct style {
    bool ascii, sorts;
    int64_t indent; /* -1: on one line */
    struct tt_jvalue comma, colon;
};

static void add_words(struct tt_jwork *w, struct tt_jtext *t, const char *words)
{
    tt_jtext_add(w, t, words, strlen(words));
}

static void add_unit(struct tt_jwork *w, struct tt_jtext *t, unsigned unit)
{
    char buf[16];

    (void)snprintf(buf, sizeof buf, "\\u%04x", unit);
    add_words(w, t, buf);
}

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
            add_unit(w, t, (unsigned char)*p);
        } else if ((unsigned char)*p < 0x7f || !style->ascii) {
            tt_jtext_add(w, t, p, 1);
        } else {
            n = (size_t)tt_utf8_decode(p, v.size - i, &code);
            n = n ? n : 1;
            if (code > 0xffff) {
                add_unit(w, t, 0xd800 + ((code - 0x10000) >> 10));
                code = 0xdc00 + ((code - 0x10000) & 0x3ff);
            }
            add_unit(w, t, code);
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

static void add_list(struct tt_jwork *w, struct tt_jtext *t, const struct tt_jlist *list, const struct style *style,
                     int level)
{
    add_words(w, t, "[");
    for (size_t i = 0; i < list->n; i++) {
        if (i)
            tt_jtext_add(w, t, style->comma.text, style->comma.size);
        add_line(w, t, style, level + 1);
        add_value(w, t, list->item[i], style, level + 1);
    }
    if (list->n)
        add_line(w, t, style, level);
    add_words(w, t, "]");
}

static int by_key(const void *a, const void *b)
{
    const struct tt_jpair *x = a, *y = b;
    size_t n = x->key.size < y->key.size ? x->key.size : y->key.size;
    int order = n ? memcmp(x->key.text, y->key.text, n) : 0;

    return order ? order : (x->key.size > y->key.size) - (x->key.size < y->key.size);
}

static const struct tt_jpair *sorted(struct tt_jwork *w, const struct tt_jdict *dict)
{
    struct tt_jpair *pairs = tt_jalloc(w, dict->n * sizeof *pairs);

    for (size_t i = 0; i < dict->n; i++)
        pairs[i] = dict->pair[i];
    if (dict->n)
        qsort(pairs, dict->n, sizeof *pairs, by_key);
    return pairs;
}

static void add_dict(struct tt_jwork *w, struct tt_jtext *t, const struct tt_jdict *dict, const struct style *style,
                     int level)
{
    const struct tt_jpair *pairs = dict->pair;

    for (size_t i = 0; i < dict->n; i++)
        if (dict->pair[i].key.kind != TT_J_STRING)
            tt_jfail(w, TT_EUSAGE, "tojson of a mapping with %s as a key is not supported",
                     tt_jkind_name(dict->pair[i].key));
    if (style->sorts)
        pairs = sorted(w, dict);
    add_words(w, t, "{");
    for (size_t i = 0; i < dict->n; i++) {
        if (i)
            tt_jtext_add(w, t, style->comma.text, style->comma.size);
        add_line(w, t, style, level + 1);
        add_string(w, t, pairs[i].key, style);
        tt_jtext_add(w, t, style->colon.text, style->colon.size);
        add_value(w, t, pairs[i].value, style, level + 1);
    }
    if (dict->n)
        add_line(w, t, style, level);
    add_words(w, t, "}");
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
        add_list(w, t, v.list, style, level);
        break;
    case TT_J_DICT:
        add_dict(w, t, v.dict, style, level);
        break;
    default:
        tt_jfail(w, TT_EUSAGE, "%s cannot be written as JSON", tt_jkind_name(v));
    }
}

void tt_jtext_add_json(struct tt_jwork *w, struct tt_jtext *t, struct tt_jvalue v, const struct tt_jargs *args)
{
    static const char *const names[] = {"ensure_ascii", "indent", "separators", "sort_keys", NULL};
    struct tt_jvalue none = {.kind = TT_J_NONE}, indent = tt_jarg(w, args, 1, "indent", none);
    struct tt_jvalue separators = tt_jarg(w, args, 2, "separators", none);
    struct style style = {.ascii = tt_jis_true(tt_jarg(w, args, 0, "ensure_ascii", none)),
                          .sorts = tt_jis_true(tt_jarg(w, args, 3, "sort_keys", none)),
                          .indent = -1};

    tt_jcheck_args(w, "tojson", args, 4, names);
    if (indent.kind != TT_J_NONE) {
        if (indent.kind != TT_J_INT || indent.integer < 0 || indent.integer > 100)
            tt_jfail(w, TT_EUSAGE, "tojson with an indent that is not a small integer is not supported");
        style.indent = indent.integer;
    }
    style.comma = style.indent < 0 ? tt_jstring(", ", 2) : tt_jstring(",", 1);
    style.colon = tt_jstring(": ", 2);
    if (separators.kind != TT_J_NONE) {
        if ((separators.kind != TT_J_LIST && separators.kind != TT_J_TUPLE) || separators.list->n != 2 ||
            separators.list->item[0].kind != TT_J_STRING || separators.list->item[1].kind != TT_J_STRING)
            tt_jfail(w, TT_EUSAGE, "the separators of tojson are not two strings");
        style.comma = separators.list->item[0];
        style.colon = separators.list->item[1];
    }
    add_value(w, t, v, &style, 0);
}

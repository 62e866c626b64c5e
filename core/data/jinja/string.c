/* SPDX-License-Identifier: MIT
 *
 * Strings of templates: their methods, and the functions behind filters and methods. As in Python, positions count
 * characters.
 */
#include <string.h>

#include "core/base/utf8.h"
#include "core/data/jinja/internal.h"

/* White space as in Python's str.isspace. */
size_t tt_jspace_at(const char *p, size_t size)
{
    uint32_t c = 0;
    int n = tt_utf8_decode(p, size, &c);
    bool is_space = (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
                    (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
                    c == 0x3000;

    return n > 0 && is_space ? (size_t)n : 0;
}

static size_t next_char(struct tt_jvalue v, size_t at)
{
    at++;
    while (at < v.size && ((unsigned char)v.text[at] & 0xc0) == 0x80)
        at++;
    return at;
}

static size_t previous_char(struct tt_jvalue v, size_t at)
{
    at--;
    while (at > 0 && ((unsigned char)v.text[at] & 0xc0) == 0x80)
        at--;
    return at;
}

static bool is_stripped(struct tt_jwork *w, const char *p, size_t n, const struct tt_jvalue *chars)
{
    return chars ? tt_jfind(w, *chars, 0, tt_jstring(p, n)) != SIZE_MAX : tt_jspace_at(p, n) == n;
}

static void expect_string(struct tt_jwork *w, struct tt_jvalue v)
{
    if (v.kind != TT_J_STRING)
        tt_jfail(w, TT_EUSAGE, "found %s where a string was expected", tt_jkind_name(v));
}

struct tt_jvalue tt_jstrip(struct tt_jwork *w, struct tt_jvalue v, const struct tt_jvalue *chars, int sides)
{
    size_t n;

    expect_string(w, v);
    if (chars && chars->kind == TT_J_NONE)
        chars = NULL;
    if (chars)
        expect_string(w, *chars);
    while ((sides & 1) && v.size && is_stripped(w, v.text, n = next_char(v, 0), chars)) {
        v.text += n;
        v.size -= n;
    }
    while ((sides & 2) && v.size && (n = previous_char(v, v.size), is_stripped(w, v.text + n, v.size - n, chars)))
        v.size = n;
    return v;
}

size_t tt_jfind(struct tt_jwork *w, struct tt_jvalue text, size_t from, struct tt_jvalue part)
{
    const char *p, *end;

    expect_string(w, text);
    expect_string(w, part);
    p = text.text + from;
    end = text.text + text.size;
    if (!part.size)
        return from <= text.size ? from : SIZE_MAX;
    tt_jstep(w, 1 + (text.size - from) / 64);
    while ((size_t)(end - p) >= part.size && (p = memchr(p, part.text[0], (size_t)(end - p) - part.size + 1))) {
        tt_jstep(w, 1 + part.size / 64);
        if (memcmp(p, part.text, part.size) == 0)
            return (size_t)(p - text.text);
        p++;
    }
    return SIZE_MAX;
}

/* The offset of character i, or that of the end if there is no such character. */
static size_t offset_of(struct tt_jvalue v, int64_t i)
{
    size_t at = 0;

    for (; i > 0 && at < v.size; i--)
        at = next_char(v, at);
    return at;
}

struct tt_jvalue tt_jat(struct tt_jwork *w, struct tt_jvalue v, int64_t i)
{
    int64_t n = tt_jlength(w, v);
    size_t at;

    tt_jcheck_made(w, v);
    i = i < 0 ? i + n : i;
    if (i < 0 || i >= n)
        return tt_jundefined("item");
    if (v.kind != TT_J_STRING)
        return v.list->item[i];
    tt_jstep(w, v.size / 16);
    at = offset_of(v, i);
    return tt_jstring(v.text + at, next_char(v, at) - at);
}

/* A bound of a slice, clipped to low and high as in Python. */
static int64_t bound_of(struct tt_jwork *w, struct tt_jvalue v, int64_t n, int64_t low, int64_t high, int64_t missing)
{
    int64_t i;

    if (v.kind == TT_J_NONE || v.kind == TT_J_UNDEFINED)
        return missing;
    if (v.kind != TT_J_INT && v.kind != TT_J_BOOL)
        tt_jfail(w, TT_EUSAGE, "%s cannot be a bound of a slice", tt_jkind_name(v));
    i = v.integer < 0 ? v.integer + n : v.integer;
    return i < low ? low : i > high ? high : i;
}

struct tt_jvalue tt_jslice(struct tt_jwork *w, struct tt_jvalue v, struct tt_jvalue first, struct tt_jvalue end,
                           struct tt_jvalue step)
{
    int64_t by = step.kind == TT_J_INT ? step.integer : 1, n, from, to;
    struct tt_jvalue made;
    struct tt_jlist *items;
    struct tt_jtext text = {0};

    if (v.kind != TT_J_STRING && v.kind != TT_J_LIST && v.kind != TT_J_TUPLE)
        tt_jfail(w, TT_EUSAGE, "%s has no slices", tt_jkind_name(v));
    tt_jcheck_made(w, v);
    if (by == 0)
        tt_jfail(w, TT_EUSAGE, "the step of a slice is 0");
    n = tt_jlength(w, v);
    by = by > n ? n + 1 : by < -n ? -n - 1 : by; /* no item is further away */
    from = bound_of(w, first, n, by > 0 ? 0 : -1, by > 0 ? n : n - 1, by > 0 ? 0 : n - 1);
    to = bound_of(w, end, n, by > 0 ? 0 : -1, by > 0 ? n : n - 1, by > 0 ? n : -1);
    if (v.kind == TT_J_STRING && by == 1) {
        size_t begin = offset_of(v, from);

        tt_jstep(w, v.size / 16);
        return tt_jstring(v.text + begin, to > from ? offset_of(v, to) - begin : 0);
    }
    items = tt_jitems(w, v);
    made = tt_jlist_new(w, v.kind == TT_J_STRING ? TT_J_LIST : v.kind);
    for (int64_t i = from; by > 0 ? i < to : i > to; i += by) {
        tt_jstep(w, 1);
        if (v.kind == TT_J_STRING)
            tt_jtext_add(w, &text, items->item[i].text, items->item[i].size);
        else
            tt_jlist_add(w, made.list, items->item[i]);
    }
    return v.kind == TT_J_STRING ? tt_jtext_value(&text) : made;
}

struct tt_jvalue tt_jreplace(struct tt_jwork *w, struct tt_jvalue v, struct tt_jvalue from, struct tt_jvalue to,
                             int64_t most)
{
    struct tt_jtext text = {0};
    size_t done = 0, found;

    expect_string(w, v);
    expect_string(w, from);
    expect_string(w, to);
    if (!from.size)
        tt_jfail(w, TT_EUSAGE, "replace of an empty string is not supported");
    while (most-- != 0 && (found = tt_jfind(w, v, done, from)) != SIZE_MAX) {
        tt_jtext_add(w, &text, v.text + done, found - done);
        tt_jtext_add(w, &text, to.text, to.size);
        done = found + from.size;
    }
    tt_jtext_add(w, &text, v.text + done, v.size - done);
    return tt_jtext_value(&text);
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool is_cased(uint32_t code)
{
    return tt_utf8_case(code, TT_LOWER) != code || tt_utf8_case(code, TT_UPPER) != code;
}

struct tt_jvalue tt_jcase(struct tt_jwork *w, struct tt_jvalue v, const char *how)
{
    struct tt_jtext text = {0};
    bool first = true;
    size_t n;

    expect_string(w, v);
    for (size_t i = 0; i < v.size; i += n) {
        bool up = strcmp(how, "upper") == 0 || (strcmp(how, "lower") != 0 && first);
        uint32_t code, to;
        char buf[4];

        n = (size_t)tt_utf8_decode(v.text + i, v.size - i, &code);
        to = tt_utf8_case(code, !up ? TT_LOWER : strcmp(how, "upper") == 0 ? TT_UPPER : TT_TITLE);
        if (!to && code)
            tt_jfail(w, TT_EUSAGE, "%s of the character U+%04X is not supported", how, (unsigned)code);
        tt_jtext_add(w, &text, buf, (size_t)tt_utf8_encode(to, buf));
        first = (strcmp(how, "title") == 0 && !is_cased(code)) ||
                (strcmp(how, "words") == 0 && code < 0x80 && strchr(" \t\n\r-({[<", (int)code));
    }
    return tt_jtext_value(&text);
}

/* --- methods --- */

static void push_part(struct tt_jwork *w, struct tt_jlist *list, struct tt_jvalue v, size_t from, size_t to)
{
    tt_jstep(w, 1);
    tt_jlist_add(w, list, tt_jstring(v.text + from, to - from));
}

/* Splits a text at white space, at most `most` times; the rest becomes the last word. */
static struct tt_jvalue split_words(struct tt_jwork *w, struct tt_jvalue v, int64_t most)
{
    struct tt_jvalue list = tt_jlist_new(w, TT_J_LIST);

    for (;;) {
        size_t at = 0;

        v = tt_jstrip(w, v, NULL, 1);
        if (!v.size)
            return list;
        while (at < v.size && (most == 0 || !tt_jspace_at(v.text + at, v.size - at)))
            at = next_char(v, at);
        push_part(w, list.list, v, 0, at);
        v.text += at;
        v.size -= at;
        most -= most > 0;
    }
}

/* The last place at which part occurs and ends at `end` or before. */
static size_t find_last(struct tt_jwork *w, struct tt_jvalue v, size_t end, struct tt_jvalue part)
{
    tt_jstep(w, 1 + v.size / 16);
    for (size_t at = end + 1; at-- > 0;) {
        if (part.size > end - at || (part.size && v.text[at] != part.text[0]))
            continue;
        tt_jstep(w, 1 + part.size / 64);
        if (memcmp(v.text + at, part.text, part.size) == 0)
            return at;
    }
    return SIZE_MAX;
}

static struct tt_jvalue split(struct tt_jwork *w, struct tt_jvalue v, const struct tt_jargs *args, bool from_right)
{
    struct tt_jvalue by = tt_jarg(w, args, 0, "sep", tt_jnone);
    struct tt_jvalue cuts = tt_jarg(w, args, 1, "maxsplit", tt_jint(-1)), list;
    int64_t most = cuts.kind == TT_J_INT ? cuts.integer : -1;
    size_t done = 0, found, end = v.size;

    if (by.kind == TT_J_NONE && from_right && most >= 0)
        tt_jfail(w, TT_EUSAGE, "rsplit at white space with a limit is not supported");
    if (by.kind == TT_J_NONE)
        return split_words(w, v, most);
    expect_string(w, by);
    if (!by.size)
        tt_jfail(w, TT_EUSAGE, "split at an empty string");
    list = tt_jlist_new(w, TT_J_LIST);
    if (!from_right) {
        for (; most-- != 0 && (found = tt_jfind(w, v, done, by)) != SIZE_MAX; done = found + by.size)
            push_part(w, list.list, v, done, found);
        push_part(w, list.list, v, done, v.size);
        return list;
    }
    for (; most-- != 0 && (found = find_last(w, v, end, by)) != SIZE_MAX; end = found)
        push_part(w, list.list, v, found + by.size, end);
    push_part(w, list.list, v, 0, end);
    return tt_jslice(w, list, tt_jnone, tt_jnone, tt_jint(-1));
}

/* The length of the line end at p (as in str.splitlines), or 0. */
static size_t line_end_at(const char *p, size_t size)
{
    uint32_t c = 0;
    int n = tt_utf8_decode(p, size, &c);

    if (size >= 2 && p[0] == '\r' && p[1] == '\n')
        return 2;
    return (c >= 0xa && c <= 0xd) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029 ? (size_t)n
                                                                                                         : 0;
}

struct tt_jvalue tt_jlines(struct tt_jwork *w, struct tt_jvalue v)
{
    struct tt_jvalue list = tt_jlist_new(w, TT_J_LIST);
    size_t done = 0, n;

    for (size_t at = 0; at < v.size; at = n ? at + n : next_char(v, at)) {
        n = line_end_at(v.text + at, v.size - at);
        if (!n)
            continue;
        push_part(w, list.list, v, done, at);
        done = at + n;
    }
    if (done < v.size)
        push_part(w, list.list, v, done, v.size);
    return list;
}

static bool is_edge(struct tt_jwork *w, struct tt_jvalue v, struct tt_jvalue edge, bool at_end)
{
    expect_string(w, edge);
    tt_jstep(w, 1 + edge.size / 64);
    return edge.size <= v.size && memcmp(v.text + (at_end ? v.size - edge.size : 0), edge.text, edge.size) == 0;
}

/* edge: a string, or a tuple of strings. */
static bool has_edge(struct tt_jwork *w, struct tt_jvalue v, struct tt_jvalue edge, bool at_end)
{
    bool found = false;

    if (edge.kind == TT_J_TUPLE) {
        for (size_t i = 0; i < edge.list->n; i++)
            found = found || is_edge(w, v, edge.list->item[i], at_end);
        return found;
    }
    return is_edge(w, v, edge, at_end);
}

static int64_t count(struct tt_jwork *w, struct tt_jvalue v, struct tt_jvalue part)
{
    int64_t n = 0;
    size_t at = 0;

    expect_string(w, part);
    if (!part.size)
        return tt_jlength(w, v) + 1;
    for (; (at = tt_jfind(w, v, at, part)) != SIZE_MAX; at += part.size)
        n++;
    return n;
}

static bool are_all(struct tt_jwork *w, struct tt_jvalue v, const char *name)
{
    bool all = v.size > 0;

    for (size_t i = 0; i < v.size; i++) {
        char c = v.text[i];
        bool digit = c >= '0' && c <= '9';

        if ((unsigned char)c >= 0x80)
            tt_jfail(w, TT_EUSAGE, "%s of text that is not ASCII is not supported", name);
        all = all && (strcmp(name, "isspace") == 0   ? tt_jspace_at(&c, 1) == 1
                      : strcmp(name, "isdigit") == 0 ? digit
                      : strcmp(name, "isalpha") == 0 ? is_letter(c)
                                                     : digit || is_letter(c));
    }
    return all;
}

static struct tt_jvalue join(struct tt_jwork *w, struct tt_jvalue v, struct tt_jvalue list)
{
    struct tt_jlist *items = tt_jitems(w, list);
    struct tt_jtext text = {0};

    for (size_t i = 0; i < items->n; i++) {
        expect_string(w, items->item[i]);
        if (i)
            tt_jtext_add(w, &text, v.text, v.size);
        tt_jtext_add(w, &text, items->item[i].text, items->item[i].size);
    }
    return tt_jtext_value(&text);
}

static struct tt_jvalue place_of(struct tt_jwork *w, struct tt_jvalue v, struct tt_jvalue part, bool last)
{
    size_t at;

    expect_string(w, part);
    at = last ? find_last(w, v, v.size, part) : tt_jfind(w, v, 0, part);
    return tt_jint(at == SIZE_MAX ? -1 : tt_jlength(w, tt_jstring(v.text, at)));
}

static struct tt_jvalue remove_edge(struct tt_jwork *w, struct tt_jvalue v, struct tt_jvalue edge, bool at_end)
{
    expect_string(w, edge);
    if (has_edge(w, v, edge, at_end)) {
        v.text += at_end ? 0 : edge.size;
        v.size -= edge.size;
    }
    return v;
}

static struct tt_jvalue call_string(struct tt_jwork *w, struct tt_jvalue v, const char *name,
                                    const struct tt_jargs *args)
{
    struct tt_jvalue first = tt_jarg(w, args, 0, "", tt_jnone), second = tt_jarg(w, args, 1, "", tt_jnone);
    struct tt_jvalue limit = tt_jarg(w, args, 2, "count", tt_jint(-1));
#define IS(word) (strcmp(name, word) == 0)

    if (IS("strip") || IS("lstrip") || IS("rstrip"))
        return tt_jstrip(w, v, &first, IS("strip") ? 3 : IS("lstrip") ? 1 : 2);
    if (IS("split") || IS("rsplit"))
        return split(w, v, args, IS("rsplit"));
    if (IS("startswith") || IS("endswith"))
        return tt_jbool(has_edge(w, v, first, IS("endswith")));
    if (IS("removeprefix") || IS("removesuffix"))
        return remove_edge(w, v, first, IS("removesuffix"));
    if (IS("replace"))
        return tt_jreplace(w, v, first, second, limit.kind == TT_J_INT ? limit.integer : -1);
    if (IS("upper") || IS("lower") || IS("title") || IS("capitalize"))
        return tt_jcase(w, v, name);
    if (IS("splitlines"))
        return tt_jlines(w, v);
    if (IS("find") || IS("rfind"))
        return place_of(w, v, first, IS("rfind"));
    if (IS("count"))
        return tt_jint(count(w, v, first));
    if (IS("join"))
        return join(w, v, first);
    return tt_jbool(are_all(w, v, name));
#undef IS
}

/* The most arguments of each method. */
static const struct method {
    const char *name;
    size_t most_args;
} string_methods[] = {{"strip", 1},      {"lstrip", 1},       {"rstrip", 1},       {"split", 2},   {"rsplit", 2},
                      {"startswith", 1}, {"endswith", 1},     {"replace", 3},      {"upper", 0},   {"lower", 0},
                      {"title", 0},      {"capitalize", 0},   {"splitlines", 0},   {"find", 1},    {"rfind", 1},
                      {"count", 1},      {"join", 1},         {"removeprefix", 1}, {"isspace", 0}, {"isdigit", 0},
                      {"isalpha", 0},    {"removesuffix", 1}, {"isalnum", 0},      {NULL, 0}},
  dict_methods[] = {{"get", 2}, {"items", 0}, {"keys", 0}, {"values", 0}, {NULL, 0}},
  list_methods[] = {{"index", 1}, {"count", 1}, {NULL, 0}};

static const struct method *find_method(struct tt_jvalue v, const char *name)
{
    const struct method *m = v.kind == TT_J_STRING                         ? string_methods
                             : v.kind == TT_J_DICT                         ? dict_methods
                             : v.kind == TT_J_LIST || v.kind == TT_J_TUPLE ? list_methods
                                                                           : NULL;

    while (m && m->name && strcmp(m->name, name) != 0)
        m++;
    return m && m->name ? m : NULL;
}

bool tt_jhas_method(struct tt_jvalue v, const char *name)
{
    return find_method(v, name) != NULL;
}

static struct tt_jvalue call_dict(struct tt_jwork *w, struct tt_jvalue v, const char *name, const struct tt_jargs *args)
{
    struct tt_jvalue list;

    if (strcmp(name, "get") == 0) {
        const struct tt_jvalue *found = tt_jdict_get(w, v.dict, tt_jarg(w, args, 0, "", tt_jnone));

        return found ? *found : tt_jarg(w, args, 1, "", tt_jnone);
    }
    list = tt_jlist_new(w, TT_J_LIST);
    list.is_lazy = list.is_view = true;
    for (size_t i = 0; i < v.dict->n; i++) {
        struct tt_jvalue pair = tt_jlist_new(w, TT_J_TUPLE);

        tt_jlist_add(w, pair.list, v.dict->pair[i].key);
        tt_jlist_add(w, pair.list, v.dict->pair[i].value);
        tt_jlist_add(w, list.list, strcmp(name, "items") == 0 ? pair : pair.list->item[strcmp(name, "values") == 0]);
    }
    return list;
}

static struct tt_jvalue call_list(struct tt_jwork *w, struct tt_jvalue v, const char *name, const struct tt_jargs *args)
{
    struct tt_jvalue wanted = tt_jarg(w, args, 0, "", tt_jundefined(""));
    int64_t n = 0;

    for (size_t i = 0; i < v.list->n; i++) {
        tt_jstep(w, 1);
        if (!tt_jequal(w, v.list->item[i], wanted))
            continue;
        if (strcmp(name, "index") == 0)
            return tt_jint((int64_t)i);
        n++;
    }
    if (strcmp(name, "index") == 0)
        tt_jfail(w, TT_EUSAGE, "the list has no such item");
    return tt_jint(n);
}

struct tt_jvalue tt_jcall_method(struct tt_jwork *w, struct tt_jvalue self, const char *name,
                                 const struct tt_jargs *args)
{
    static const char *const named[] = {"sep", "maxsplit", NULL};
    const struct method *m = find_method(self, name);

    tt_jcheck_args(w, name, args, m ? m->most_args : 0, self.kind == TT_J_STRING ? named : named + 2);
    if (self.kind == TT_J_STRING)
        return call_string(w, self, name, args);
    return self.kind == TT_J_DICT ? call_dict(w, self, name, args) : call_list(w, self, name, args);
}

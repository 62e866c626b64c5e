/* SPDX-License-Identifier: MIT
 *
 * A scanner of JSON (RFC 8259) for the lines of a corpus.
 */
#include "core/base/jsonline.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/text.h"
#include "core/base/utf8.h"

enum { DEEPEST = 2048, DEEPEST_TREE = 100, REPLACEMENT = 0xfffd };

struct scan {
    const char *line;
    size_t size, at;
    struct tt_json_problem problem; /* problem.what NULL: none yet */
};

const char *tt_json_kind_name(enum tt_json_kind kind)
{
    static const char *const names[] = {
        [TT_JSON_OBJECT] = "an object", [TT_JSON_ARRAY] = "an array",    [TT_JSON_STRING] = "a string",
        [TT_JSON_NUMBER] = "a number",  [TT_JSON_BOOLEAN] = "a boolean", [TT_JSON_NULL] = "null"};

    return names[kind];
}

static bool fail(struct scan *s, const char *what)
{
    s->problem = (struct tt_json_problem){what, s->at + 1};
    return false;
}

/* The next byte, or 0 at the end. A 0 byte within the line is an error everywhere, too. */
static char peek(const struct scan *s)
{
    return s->at < s->size ? s->line[s->at] : 0;
}

static void skip_space(struct scan *s)
{
    while (s->at < s->size && strchr(" \t\r\n", s->line[s->at]) && s->line[s->at])
        s->at++;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int hex_digit(char c)
{
    return is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool skip_escape(struct scan *s)
{
    s->at++;
    if (peek(s) == 'u') {
        for (int i = 0; i < 4; i++) {
            s->at++;
            if (hex_digit(peek(s)) < 0)
                return fail(s, "invalid \\u escape");
        }
    } else if (!peek(s) || !strchr("\"\\/bfnrt", peek(s))) {
        return fail(s, "invalid escape");
    }
    s->at++;
    return true;
}

static bool skip_string(struct scan *s)
{
    s->at++;
    for (;;) {
        char c = peek(s);

        if (c == '"')
            break;
        if (s->at == s->size)
            return fail(s, "the string does not end");
        if ((unsigned char)c < 0x20)
            return fail(s, "control character in a string");
        if (c != '\\')
            s->at++;
        else if (!skip_escape(s))
            return false;
    }
    s->at++;
    return true;
}

static bool skip_digits(struct scan *s)
{
    if (!is_digit(peek(s)))
        return fail(s, "invalid number");
    while (is_digit(peek(s)))
        s->at++;
    return true;
}

static bool skip_number(struct scan *s)
{
    if (peek(s) == '-')
        s->at++;
    if (peek(s) == '0')
        s->at++;
    else if (!skip_digits(s))
        return false;
    if (peek(s) == '.') {
        s->at++;
        if (!skip_digits(s))
            return false;
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        s->at++;
        if (peek(s) == '+' || peek(s) == '-')
            s->at++;
        return skip_digits(s);
    }
    return true;
}

static bool skip_word(struct scan *s, enum tt_json_kind *ret_kind)
{
    static const struct {
        const char *word;
        enum tt_json_kind kind;
    } words[] = {{"true", TT_JSON_BOOLEAN}, {"false", TT_JSON_BOOLEAN},   {"null", TT_JSON_NULL},
                 {"NaN", TT_JSON_NUMBER},   {"Infinity", TT_JSON_NUMBER}, {"-Infinity", TT_JSON_NUMBER}};

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i].word);

        if (s->size - s->at >= n && memcmp(s->line + s->at, words[i].word, n) == 0) {
            s->at += n;
            *ret_kind = words[i].kind;
            return true;
        }
    }
    return fail(s, s->at == s->size ? "the line ends early" : "a value was expected");
}

/* A value that is neither object nor array. */
static bool skip_scalar(struct scan *s, enum tt_json_kind *ret_kind)
{
    char c = peek(s);

    if (c == '"') {
        *ret_kind = TT_JSON_STRING;
        return skip_string(s);
    }
    if (is_digit(c) || (c == '-' && s->at + 1 < s->size && s->line[s->at + 1] != 'I')) {
        *ret_kind = TT_JSON_NUMBER;
        return skip_number(s);
    }
    return skip_word(s, ret_kind);
}

/* A key and its colon, with the space around. */
static bool skip_key(struct scan *s)
{
    skip_space(s);
    if (peek(s) != '"')
        return fail(s, s->at == s->size ? "the line ends early" : "a key in quotes was expected");
    if (!skip_string(s))
        return false;
    skip_space(s);
    if (peek(s) != ':')
        return fail(s, s->at == s->size ? "the line ends early" : "':' was expected");
    s->at++;
    return true;
}

/* After a nested value: closes what ends here and goes to the place of the next value. */
static bool skip_ends(struct scan *s, const char *open, int *depth)
{
    while (*depth > 0) {
        char kind = open[*depth - 1];

        skip_space(s);
        if (peek(s) == ',') {
            s->at++;
            return kind == '[' || skip_key(s);
        }
        if (peek(s) != (kind == '[' ? ']' : '}'))
            return fail(s, s->at == s->size ? "the line ends early" : "',' or the closing bracket was expected");
        s->at++;
        (*depth)--;
    }
    return true;
}

static bool skip_value(struct scan *s, enum tt_json_kind *ret_kind)
{
    char open[DEEPEST];
    enum tt_json_kind kind;
    int depth = 0;
    bool is_first = true;

    do {
        char c;

        skip_space(s);
        c = peek(s);
        kind = c == '{' ? TT_JSON_OBJECT : TT_JSON_ARRAY;
        if (c != '{' && c != '[') {
            if (!skip_scalar(s, &kind) || !skip_ends(s, open, &depth))
                return false;
        } else {
            if (depth == DEEPEST)
                return fail(s, "values are nested too deeply");
            open[depth++] = c;
            s->at++;
            skip_space(s);
            if (peek(s) == (c == '[' ? ']' : '}')) {
                s->at++;
                depth--;
                if (!skip_ends(s, open, &depth))
                    return false;
            } else if (c == '{' && !skip_key(s)) {
                return false;
            }
        }
        if (is_first)
            *ret_kind = kind;
        is_first = false;
    } while (depth > 0);
    return true;
}

/* Reads the members of the object that begins here. */
static bool read_members(struct scan *s, tt_json_member_fn fn, void *arg)
{
    struct tt_text key = {0};
    bool good = true;

    s->at++;
    skip_space(s);
    if (peek(s) == '}') {
        s->at++;
        return true;
    }
    while (good) {
        struct tt_json_member m = {0};
        size_t begin;

        skip_space(s);
        begin = s->at;
        if (!(good = skip_key(s)))
            break;
        key.size = 0;
        tt_text_add_bytes(&key, "", 0);
        tt_jsonline_text(s->line + begin, s->at - begin, &key);
        skip_space(s);
        begin = s->at;
        if (!(good = skip_value(s, &m.kind)))
            break;
        m.key = key.text;
        m.key_size = key.size;
        m.value = s->line + begin;
        m.value_size = s->at - begin;
        fn(arg, &m);
        skip_space(s);
        if (peek(s) == '}')
            break;
        if (peek(s) != ',')
            good = fail(s, s->at == s->size ? "the line ends early" : "',' or '}' was expected");
        s->at++;
    }
    s->at += good;
    tt_text_release(&key);
    return good;
}

bool tt_jsonline_members(const char *line, size_t size, tt_json_member_fn fn, void *arg, enum tt_json_kind *ret_kind,
                         struct tt_json_problem *ret_problem)
{
    struct scan s = {.line = line, .size = size};
    bool good;

    skip_space(&s);
    *ret_kind = TT_JSON_OBJECT;
    good = peek(&s) == '{' ? read_members(&s, fn, arg) : skip_value(&s, ret_kind);
    if (good) {
        skip_space(&s);
        good = s.at == s.size || fail(&s, "end of file expected");
    }
    *ret_problem = s.problem;
    return good;
}

void tt_jsonline_elements(const char *value, size_t size, tt_json_member_fn fn, void *arg)
{
    struct scan s = {.line = value, .size = size, .at = 1};

    for (;;) {
        struct tt_json_member m = {0};
        size_t begin;

        skip_space(&s);
        begin = s.at;
        if (peek(&s) == ']' || !skip_value(&s, &m.kind))
            return;
        m.value = s.line + begin;
        m.value_size = s.at - begin;
        fn(arg, &m);
        skip_space(&s);
        s.at++; /* the comma, or the end */
    }
}

/* The code of the \uXXXX at p, which has been checked. */
static uint32_t unit_at(const char *p)
{
    uint32_t code = 0;

    for (int i = 2; i < 6; i++)
        code = code << 4 | (uint32_t)hex_digit(p[i]);
    return code;
}

/* Appends the character of the escape sequence at p; returns the length of the sequence. */
static size_t add_escape(const char *p, size_t size, struct tt_text *out)
{
    static const char names[] = "bfnrt", bytes[] = "\b\f\n\r\t";
    const char *found = strchr(names, p[1]);
    uint32_t code, low;
    size_t used = 6;
    char buf[4];

    if (p[1] != 'u') {
        tt_text_add_bytes(out, found ? &bytes[found - names] : &p[1], 1);
        return 2;
    }
    code = unit_at(p);
    if (code >= 0xd800 && code < 0xe000) {
        low = code < 0xdc00 && size >= 12 && p[6] == '\\' && p[7] == 'u' ? unit_at(p + 6) : 0;
        if (low >= 0xdc00 && low < 0xe000) {
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
            used = 12;
        } else {
            code = REPLACEMENT;
        }
    }
    tt_text_add_bytes(out, buf, (size_t)tt_utf8_encode(code, buf));
    return used;
}

void tt_jsonline_text(const char *value, size_t size, struct tt_text *out)
{
    size_t done = 1, i = 1; /* after the quote */

    while (i < size && value[i] != '"') {
        if (value[i] != '\\') {
            i++;
            continue;
        }
        tt_text_add_bytes(out, value + done, i - done);
        i += add_escape(value + i, size - i, out);
        done = i;
    }
    tt_text_add_bytes(out, value + done, i - done);
}

/* --- trees --- */

struct growing {
    json_t *json; /* NULL: something in it cannot be in a tree */
    int depth;
};

static json_t *make_tree(const struct tt_json_member *m, int depth);

static void add_to_tree(void *arg, const struct tt_json_member *member)
{
    struct growing *g = arg;
    json_t *value = g->json ? make_tree(member, g->depth + 1) : NULL;
    int rc = -1;

    if (value && member->key)
        rc = json_object_setn_new_nocheck(g->json, member->key, member->key_size, value);
    else if (value)
        rc = json_array_append_new(g->json, value);
    if (rc < 0) {
        json_decref(g->json);
        g->json = NULL;
    }
}

static json_t *make_number(const struct tt_json_member *m)
{
    bool is_real = memchr(m->value, '.', m->value_size) || memchr(m->value, 'e', m->value_size) ||
                   memchr(m->value, 'E', m->value_size);
    char text[64];
    long long integer;

    if (m->value_size >= sizeof text)
        return NULL;
    memcpy(text, m->value, m->value_size);
    text[m->value_size] = 0;
    errno = 0;
    integer = strtoll(text, NULL, 10);
    if (strchr(text, 'N') || strchr(text, 'I')) /* NaN and Infinity, which trees do not have */
        return json_null();
    return is_real || errno ? json_real(strtod(text, NULL)) : json_integer(integer);
}

static json_t *make_string(const struct tt_json_member *m)
{
    struct tt_text text = {0};
    json_t *json;

    tt_text_add_bytes(&text, "", 0);
    tt_jsonline_text(m->value, m->value_size, &text);
    json = json_stringn(text.text, text.size);
    tt_text_release(&text);
    return json;
}

static json_t *make_tree(const struct tt_json_member *m, int depth)
{
    struct growing g = {.depth = depth};
    struct tt_json_problem problem;
    enum tt_json_kind kind;

    if (depth > DEEPEST_TREE)
        return NULL;
    switch (m->kind) {
    case TT_JSON_OBJECT:
        g.json = json_object();
        (void)tt_jsonline_members(m->value, m->value_size, add_to_tree, &g, &kind, &problem);
        return g.json;
    case TT_JSON_ARRAY:
        g.json = json_array();
        tt_jsonline_elements(m->value, m->value_size, add_to_tree, &g);
        return g.json;
    case TT_JSON_STRING:
        return make_string(m);
    case TT_JSON_NUMBER:
        return make_number(m);
    case TT_JSON_BOOLEAN:
        return json_boolean(m->value[0] == 't');
    default:
        return json_null();
    }
}

json_t *tt_jsonline_tree(const struct tt_json_member *value)
{
    return make_tree(value, 0);
}

/* SPDX-License-Identifier: MIT
 *
 * The translation has two steps. The first reads the expression and writes it with marks in place of sets of
 * characters. Then the sets are known, and with them the kinds of characters, and the marks become classes of kinds.
 * What is rare and would be matched differently is refused.
 */
#include "core/tokenizer/pattern.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/base/mem.h"
#include "core/base/utf8.h"
#include "core/tokenizer/charset.h"

enum {
    DEEPEST_GROUP = 100,
    DEEPEST_CLASS = 8,
    MARK = 1, /* in the expression of the first step, before the index of a set as four digits */
    MOST_SETS = 0x10000,
};

/* What (?flags) set, until the group ends. */
struct group {
    bool ignores_case, dot_is_any;
    int also_closes; /* the groups that flags without a colon opened in this group */
};

struct parser {
    const char *text, *where;
    size_t size, at;
    struct tt_charset *set;
    int n_sets, cap_sets;
    struct group group[DEEPEST_GROUP];
    int depth;
    char last_letter; /* if the expression ignores case: the letter just before; else 0 */
    struct tt_text out;
};

/* One element of a class, or an escape sequence: a character or a set. */
struct element {
    bool is_set;
    uint32_t code;
    struct tt_charset set;
};

static int refuse(const struct parser *p, const char *what)
{
    return tt_fail(TT_EDATA, "%s%sthe pattern uses %s (at byte %zu), which titan cannot match as its author meant",
                   p->where ? p->where : "", p->where ? ": " : "", what, p->at);
}

static int fail_syntax(const struct parser *p, const char *what)
{
    return tt_fail(TT_EDATA, "%s%sinvalid regular expression '%.*s': %s (at byte %zu)", p->where ? p->where : "",
                   p->where ? ": " : "", p->size < 200 ? (int)p->size : 200, p->text, what, p->at);
}

static bool has_next(const struct parser *p, const char *text)
{
    size_t size = strlen(text);

    return p->size - p->at >= size && memcmp(p->text + p->at, text, size) == 0;
}

static bool accept(struct parser *p, const char *text)
{
    bool is_next = has_next(p, text);

    p->at += is_next ? strlen(text) : 0;
    return is_next;
}

/* Writes the mark of a set, which is taken. */
static int put_set(struct parser *p, struct tt_charset *set)
{
    int i = 0;

    while (i < p->n_sets && !tt_charset_equal(&p->set[i], set))
        i++;
    if (i == MOST_SETS)
        return refuse(p, "too many classes");
    if (i == p->n_sets) {
        TT_PUSH(p->set, p->n_sets, p->cap_sets) = *set;
        *set = (struct tt_charset){0};
    }
    tt_text_add(&p->out, "%c%04x", MARK, (unsigned)i);
    return 0;
}

/* --- case: of letters of ASCII only, and of the two other letters that are the same as one of them --- */

static void ignore_case(struct tt_charset *set)
{
    for (uint32_t c = 'a'; c <= 'z'; c++) {
        uint32_t also = c == 'k' ? 0x212a : c == 's' ? 0x17f : c;

        if (!tt_charset_has(set, c) && !tt_charset_has(set, c - 'a' + 'A') && !tt_charset_has(set, also))
            continue;
        tt_charset_add(set, c, c);
        tt_charset_add(set, c - 'a' + 'A', c - 'a' + 'A');
        tt_charset_add(set, also, also);
    }
}

static int check_case(const struct parser *p, const struct tt_charset *set)
{
    struct tt_charset cased = {0}, ours = {0};
    bool is_simple;

    (void)tt_charset_add_property(&cased, "uppercase", 9);
    (void)tt_charset_add_property(&cased, "lowercase", 9);
    (void)tt_charset_add_property(&cased, "lt", 2);
    tt_charset_add(&ours, 0, 0x7f);
    tt_charset_add(&ours, 0x17f, 0x17f);
    tt_charset_add(&ours, 0x212a, 0x212a);
    tt_charset_complement(&ours);
    tt_charset_intersect(&cased, &ours);
    tt_charset_intersect(&cased, set);
    is_simple = cased.n == 0;
    tt_charset_release(&cased);
    tt_charset_release(&ours);
    return is_simple ? 0 : refuse(p, "letters beyond ASCII where case is ignored");
}

/* Some pairs of letters, of which each is one character here, are also one character together, as in U+00DF. */
static int check_pair(struct parser *p, uint32_t code)
{
    static const char *const pairs[] = {"ss", "st", "ff", "fi", "fl"};
    char letter = code < 128 ? (char)(code | 0x20) : 0, last = p->last_letter;

    p->last_letter = letter;
    for (size_t i = 0; last && i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i][0] == last && pairs[i][1] == letter)
            return refuse(p, "letters that have a ligature where case is ignored");
    return 0;
}

/* --- escapes and classes --- */

static int parse_digits(struct parser *p, int base, int most, uint32_t *ret_code)
{
    char digits[9] = "", *end;
    size_t n = 0;

    while (n < (size_t)most && p->at < p->size && strchr("0123456789abcdefABCDEF", p->text[p->at]) && p->text[p->at] &&
           (base == 16 || (p->text[p->at] >= '0' && p->text[p->at] <= '7')))
        digits[n++] = p->text[p->at++];
    *ret_code = (uint32_t)strtoul(digits, &end, base);
    if (*end || n == 0 || *ret_code >= TT_CODE_END || (*ret_code >= 0xd800 && *ret_code < 0xe000))
        return fail_syntax(p, "an escape that is not a character");
    return 0;
}

/* In a class, and only there, a word has no superscripts and fractions of Latin-1, as [:word:] in Oniguruma. */
static bool add_property(struct tt_charset *set, const char *name, size_t size, bool in_class)
{
    if (in_class && size == 4 && strncasecmp(name, "word", 4) == 0)
        return tt_charset_add_bracket(set, "word", 4);
    return tt_charset_add_property(set, name, size);
}

static int parse_property(struct parser *p, bool is_negated, bool in_class, struct element *e)
{
    const char *end = memchr(p->text + p->at, '}', p->size - p->at);
    char what[80];
    size_t size;

    if (!accept(p, "{") || !end)
        return fail_syntax(p, "\\p without a name in braces");
    if (accept(p, "^"))
        is_negated = !is_negated;
    size = (size_t)(end - (p->text + p->at));
    e->is_set = true;
    if (!add_property(&e->set, p->text + p->at, size, in_class)) {
        (void)snprintf(what, sizeof what, "\\p{%.*s}, a property that titan does not have", size < 40 ? (int)size : 40,
                       p->text + p->at);
        return refuse(p, what);
    }
    p->at += size + 1;
    if (is_negated)
        tt_charset_complement(&e->set);
    return 0;
}

/* The sets of \d, \w, \s, \h, of which capitals are the others; false: another escape. */
static bool parse_shorthand(char c, bool in_class, struct element *e)
{
    static const char *const names[][2] = {{"d", "nd"}, {"w", "word"}, {"s", "whitespace"}, {"h", "xdigit"}};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if ((c | 0x20) != names[i][0][0])
            continue;
        e->is_set = true;
        (void)add_property(&e->set, names[i][1], strlen(names[i][1]), in_class);
        if (!(c & 0x20))
            tt_charset_complement(&e->set);
        return true;
    }
    return false;
}

/* An escape that is one character or a set, after the backslash. */
static int parse_escape(struct parser *p, bool in_class, struct element *e)
{
    static const char named[] = "tnrfvae", code[] = "\t\n\r\f\v\a\x1b";
    char c = p->text[p->at], next = p->size - p->at >= 2 ? p->text[p->at + 1] : 0;
    const char *known = c ? strchr(named, c) : NULL;
    char what[] = "\\?";
    int n;

    if ((unsigned char)c >= 0x80) {
        n = tt_utf8_decode(p->text + p->at, p->size - p->at, &e->code);
        p->at += (size_t)n;
        return n ? 0 : fail_syntax(p, "a byte that is not UTF-8");
    }
    if (c >= '0' && c <= '7' && (in_class || c == '0' || (next >= '0' && next <= '7'))) /* not a reference */
        return parse_digits(p, 8, 3, &e->code);
    p->at++;
    if (known) {
        e->code = (uint32_t)code[known - named];
        return 0;
    }
    if (c == 'p' || c == 'P')
        return parse_property(p, c == 'P', in_class, e);
    if (c == 'b' && in_class) {
        e->code = '\b';
        return 0;
    }
    if (c == 'u')
        return parse_digits(p, 16, 4, &e->code);
    if (c == 'x' && accept(p, "{")) {
        int rc = parse_digits(p, 16, 8, &e->code);

        return rc < 0 || accept(p, "}") ? rc : fail_syntax(p, "an escape that is not a character");
    }
    if (c == 'x')
        return parse_digits(p, 16, 2, &e->code);
    if (parse_shorthand(c, in_class, e))
        return 0;
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || !c) {
        p->at--;
        what[1] = c ? c : '0';
        return refuse(p, what);
    }
    e->code = (unsigned char)c;
    return 0;
}

static int parse_char(struct parser *p, uint32_t *ret_code)
{
    int n = tt_utf8_decode(p->text + p->at, p->size - p->at, ret_code);

    if (!n)
        return fail_syntax(p, "a byte that is not UTF-8");
    if (!*ret_code)
        return fail_syntax(p, "a 0 byte");
    p->at += (size_t)n;
    return 0;
}

static int parse_class(struct parser *p, int depth, struct tt_charset *set);

/* [:name:] or [:^name:]; *ret_found false: there is none, so the bracket begins a class. */
static bool parse_bracket(struct parser *p, struct tt_charset *set)
{
    const char *name = p->text + p->at + 2, *end = p->text + p->size, *close = name;
    struct tt_charset made = {0};
    bool is_negated, is_known;

    if (!has_next(p, "[:"))
        return false;
    is_negated = name < end && *name == '^';
    name += is_negated;
    for (close = name; close < end && *close >= 'a' && *close <= 'z';)
        close++;
    is_known = end - close >= 2 && close[0] == ':' && close[1] == ']' &&
               tt_charset_add_bracket(&made, name, (size_t)(close - name));
    if (is_known && is_negated)
        tt_charset_complement(&made);
    if (is_known) {
        tt_charset_unite(set, &made);
        p->at = (size_t)(close - p->text) + 2;
    }
    tt_charset_release(&made);
    return is_known;
}

static int parse_element(struct parser *p, int depth, struct element *e)
{
    if (has_next(p, "[")) {
        e->is_set = true;
        if (parse_bracket(p, &e->set))
            return 0;
        p->at++;
        return parse_class(p, depth + 1, &e->set);
    }
    if (p->size - p->at >= 2 && accept(p, "\\"))
        return parse_escape(p, true, e);
    return parse_char(p, &e->code);
}

/* Adds an element, or the range that begins with it. */
static int parse_range(struct parser *p, int depth, struct tt_charset *set)
{
    struct element first = {0}, last = {0};
    int rc = 0;

    TT_TRY(parse_element(p, depth, &first));
    if (first.is_set) {
        tt_charset_unite(set, &first.set);
        goto out;
    }
    last.code = first.code;
    if (has_next(p, "-") && p->size - p->at >= 2 && p->text[p->at + 1] != ']') {
        p->at++;
        TT_TRY(parse_element(p, depth, &last));
        if (last.is_set || last.code < first.code)
            TT_TRY(fail_syntax(p, "a range that ends before it begins"));
    }
    tt_charset_add(set, first.code, last.code);
out:
    tt_charset_release(&first.set);
    tt_charset_release(&last.set);
    return rc;
}

/* A class, after its bracket. && has the lowest precedence but for ^. */
static int parse_class(struct parser *p, int depth, struct tt_charset *set)
{
    struct tt_charset both = {0};
    bool is_negated = accept(p, "^"), has_both = false;
    size_t begin = p->at;
    int rc = 0;

    if (depth > DEEPEST_CLASS)
        TT_TRY(refuse(p, "deeply nested classes"));
    while (!has_next(p, "]") || p->at == begin) { /* a bracket at the beginning is a character */
        if (p->at == p->size)
            TT_TRY(fail_syntax(p, "missing closing bracket of a class"));
        if (!accept(p, "&&")) {
            TT_TRY(parse_range(p, depth, set));
            continue;
        }
        if (has_both)
            tt_charset_intersect(set, &both);
        tt_charset_release(&both);
        both = *set;
        *set = (struct tt_charset){0};
        has_both = true;
    }
    p->at++;
    if (has_both)
        tt_charset_intersect(set, &both);
    if (p->group[p->depth].ignores_case) {
        TT_TRY(check_case(p, set));
        ignore_case(set);
    }
    if (is_negated)
        tt_charset_complement(set);
out:
    tt_charset_release(&both);
    return rc;
}

/* --- groups and repetitions --- */

static int open_group(struct parser *p, const char *text)
{
    if (p->depth + 1 == DEEPEST_GROUP)
        return refuse(p, "deeply nested groups");
    p->group[p->depth + 1] = p->group[p->depth];
    p->group[++p->depth].also_closes = 0;
    tt_text_add(&p->out, "%s", text);
    return 0;
}

static int close_group(struct parser *p)
{
    if (p->depth == 0)
        return fail_syntax(p, "a closing parenthesis without an opening one");
    for (int i = 0; i <= p->group[p->depth].also_closes; i++)
        tt_text_add(&p->out, ")");
    p->depth--;
    return 0;
}

/* (?flags) holds to the end of the group, whose alternatives after it belong to it; (?flags:...) for a group. */
static int parse_flags(struct parser *p)
{
    struct group flags = p->group[p->depth];
    bool on = true;
    int rc = 0;

    for (; p->at < p->size && !has_next(p, ":") && !has_next(p, ")"); p->at++) {
        switch (p->text[p->at]) {
        case '-':
            on = false;
            break;
        case 'i':
            flags.ignores_case = on;
            break;
        case 'm':
            flags.dot_is_any = on;
            break;
        default:
            return refuse(p, "a group of another kind");
        }
    }
    if (accept(p, ")")) {
        flags.also_closes++;
        p->group[p->depth] = flags;
        tt_text_add(&p->out, "(?:");
        return 0;
    }
    p->at++;
    TT_TRY(open_group(p, "(?:"));
    flags.also_closes = 0;
    p->group[p->depth] = flags;
out:
    return rc;
}

/* After the bracket. No group captures, since nothing refers to what a group matched. */
static int parse_group(struct parser *p)
{
    static const char *const same[] = {"?:", "?=", "?!", "?<=", "?<!", "?>"};
    char text[8];

    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        if (!accept(p, same[i]))
            continue;
        (void)snprintf(text, sizeof text, "(%s", same[i]);
        return open_group(p, text);
    }
    if (accept(p, "?#")) {
        while (p->at < p->size && !has_next(p, ")"))
            p->at += has_next(p, "\\") && p->at + 1 < p->size ? 2 : 1;
        return accept(p, ")") ? 0 : fail_syntax(p, "missing closing parenthesis of a comment");
    }
    if (accept(p, "?<")) {
        while (p->at < p->size && !has_next(p, ">"))
            p->at++;
        return accept(p, ">") ? open_group(p, "(?:") : fail_syntax(p, "missing end of the name of a group");
    }
    return accept(p, "?") ? parse_flags(p) : open_group(p, "(?:");
}

/* {n}, {n,}, {,m} and {n,m}; *ret_found false: the brace is a character. */
static int parse_interval(struct parser *p, bool *ret_found)
{
    const char *begin = p->text + p->at + 1, *end = p->text + p->size, *q = begin;
    size_t low = 0, high = 0;
    bool has_comma;

    while (q < end && *q >= '0' && *q <= '9') {
        q++;
        low++;
    }
    has_comma = q < end && *q == ',';
    q += has_comma;
    while (has_comma && q < end && *q >= '0' && *q <= '9') {
        q++;
        high++;
    }
    *ret_found = q < end && *q == '}' && low + high > 0;
    if (!*ret_found)
        return 0;
    p->at = (size_t)(q + 1 - p->text);
    if (has_next(p, "+")) /* Ruby repeats the repetition; PCRE2's is possessive */
        return refuse(p, "a quantifier of the form {n,m}+");
    if (!has_comma && has_next(p, "?"))
        return refuse(p, "a quantifier of the form {n}?");
    tt_text_add(&p->out, "{%s%.*s}", low ? "" : "0", (int)(q - begin), begin);
    return 0;
}

/* \b and \B by what is before and after, and what else is not a character or a set. *ret_found false: nothing. */
static int parse_assertion(struct parser *p, bool *ret_found)
{
    static const char *const same[] = {"\\A", "\\z", "\\Z"};
    struct tt_charset set = {0};
    bool is_boundary;
    int rc = 0;

    *ret_found = true;
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        if (accept(p, same[i])) {
            tt_text_add(&p->out, "%s", same[i]);
            return 0;
        }
    }
    is_boundary = has_next(p, "\\b");
    *ret_found = is_boundary || has_next(p, "\\B");
    if (!*ret_found)
        return 0;
    p->at += 2;
    for (int side = 0; side < 2; side++) {
        static const char *const begin[2][2][2] = {{{"(?:(?<=", ")(?="}, {"|(?<!", ")(?!"}},
                                                   {{"(?:(?<=", ")(?!"}, {"|(?<!", ")(?="}}};

        for (int part = 0; part < 2; part++) {
            tt_text_add(&p->out, "%s", begin[is_boundary][side][part]);
            (void)tt_charset_add_property(&set, "word", 4);
            TT_TRY(put_set(p, &set));
        }
        tt_text_add(&p->out, ")");
    }
    tt_text_add(&p->out, ")");
out:
    tt_charset_release(&set);
    return rc;
}

/* A character, an escape, a class or a dot. */
static int parse_atom(struct parser *p)
{
    struct element e = {0};
    bool ignores_case = p->group[p->depth].ignores_case;
    int rc = 0;

    if (accept(p, "[")) {
        TT_TRY(parse_class(p, 0, &e.set));
    } else if (accept(p, ".")) {
        if (!p->group[p->depth].dot_is_any)
            tt_charset_add(&e.set, '\n', '\n');
        tt_charset_complement(&e.set);
    } else {
        if (p->size - p->at >= 2 && accept(p, "\\")) {
            TT_TRY(parse_escape(p, false, &e));
        } else {
            TT_TRY(parse_char(p, &e.code));
        }
        if (!e.is_set) {
            tt_charset_add(&e.set, e.code, e.code);
            if (ignores_case) { /* Oniguruma ignores it in characters and classes, but not in \p{...} alone */
                TT_TRY(check_case(p, &e.set));
                TT_TRY(check_pair(p, e.code));
                ignore_case(&e.set);
            }
        }
    }
    if (!ignores_case || e.is_set)
        p->last_letter = 0;
    TT_TRY(put_set(p, &e.set));
out:
    tt_charset_release(&e.set);
    return rc;
}

static int parse(struct parser *p)
{
    int rc = 0;

    while (p->at < p->size) {
        char c = p->text[p->at];
        bool is_done = false;

        if (c == '\\')
            TT_TRY(parse_assertion(p, &is_done));
        if (c == '{')
            TT_TRY(parse_interval(p, &is_done));
        if (is_done) {
            p->last_letter = 0;
            continue;
        }
        if (c && strchr("()|*+?^$", c)) {
            p->at++;
            p->last_letter = 0;
            if (c == '(') {
                TT_TRY(parse_group(p));
            } else if (c == ')') {
                TT_TRY(close_group(p));
            } else {
                tt_text_add(&p->out, "%c", c);
            }
            continue;
        }
        TT_TRY(parse_atom(p));
    }
    if (p->depth > 0)
        TT_TRY(fail_syntax(p, "missing closing parenthesis"));
    for (int i = 0; i < p->group[0].also_closes; i++)
        tt_text_add(&p->out, ")");
out:
    return rc;
}

/* The second step. */
static int write_over_kinds(const struct parser *p, struct tt_pattern *pattern)
{
    if (!tt_kinds_init(&pattern->kinds, p->set, p->n_sets))
        return refuse(p, "more than 256 kinds of characters");
    tt_text_add_bytes(&pattern->text, "", 0);
    for (size_t i = 0; i < p->out.size; i++) {
        char digits[5] = "";

        if (p->out.text[i] != MARK) {
            tt_text_add_bytes(&pattern->text, &p->out.text[i], 1);
            continue;
        }
        memcpy(digits, p->out.text + i + 1, 4);
        tt_kinds_put(&pattern->kinds, &p->set[strtol(digits, NULL, 16)], &pattern->text);
        i += 4;
    }
    return 0;
}

int tt_pattern_init(struct tt_pattern *pattern, const char *text, size_t size, const char *where)
{
    struct parser *p = tt_calloc(1, sizeof *p);
    struct tt_charset line_end = {0};
    int rc = 0;

    *pattern = (struct tt_pattern){0};
    p->text = text;
    p->size = size;
    p->where = where;
    tt_charset_add(&line_end, '\n', '\n');
    TT_PUSH(p->set, p->n_sets, p->cap_sets) = line_end; /* ^ and $ ask for it */
    TT_TRY(parse(p));
    TT_TRY(write_over_kinds(p, pattern));
out:
    for (int i = 0; i < p->n_sets; i++)
        tt_charset_release(&p->set[i]);
    tt_free(p->set);
    tt_text_release(&p->out);
    tt_free(p);
    return rc;
}

void tt_pattern_release(struct tt_pattern *pattern)
{
    tt_text_release(&pattern->text);
    tt_kinds_release(&pattern->kinds);
    *pattern = (struct tt_pattern){0};
}

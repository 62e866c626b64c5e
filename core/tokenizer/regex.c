/* SPDX-License-Identifier: MIT
 *
 * The owner of PCRE2: translates an expression, then compiles and matches it.
 *
 * An expression is in Oniguruma's Ruby syntax. It only tests whether characters belong to certain sets. Characters that
 * no set tells apart are of one kind; there are at most 256 kinds. So titan rewrites the expression over kinds, which
 * are bytes, and matches it against the kinds of the text's characters. So titan needs none of PCRE2's tables, and
 * every class has 256 bits. The translation has two steps. The first reads the expression and writes it with marks in
 * place of sets of characters. Then the sets are known, and so are the kinds of characters, and the marks become
 * classes of kinds. Rare constructs that PCRE2 would match differently are refused.
 *
 * Expressions are compiled with the JIT. Matching is bounded (steps, heap, JIT stack), so that a hostile tokenizer file
 * causes an error and not a hang. PCRE2 only limits the steps of a search from one position of the text. So each
 * position first gets a small limit, which is enough for good patterns. A position that needs more steps takes them
 * from a budget for the whole text.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "core/tokenizer/regex.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <pcre2.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/tokenizer/charset.h"

enum {
    DEEPEST_GROUP = 100,
    DEEPEST_CLASS = 8,
    MARK = 1, /* in the expression of the first step, before the index of a set as four digits */
    MOST_SETS = 0x10000,
};

/* The settings of (?flags), until the group ends. */
struct group {
    bool ignores_case, dot_is_any;
    int also_closes; /* the number of groups that flags without a colon opened in this group */
};

/* A translated expression. */
struct pattern {
    struct tt_text text; /* the expression over kinds */
    struct tt_kinds kinds;
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
    return tt_fail(TT_EDATA, "%s%sthe pattern uses %s (at byte %zu), which titan cannot match as intended",
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

static bool is_equal(const struct tt_charset *a, const struct tt_charset *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->edge, b->edge, a->n * sizeof *a->edge) == 0);
}

/* Writes the mark of a set; takes ownership of the set. */
static int put_set(struct parser *p, struct tt_charset *set)
{
    int i = 0;

    while (i < p->n_sets && !is_equal(&p->set[i], set))
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

/* --- case: only of ASCII letters, and of the two other letters that equal one of them --- */

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
    return is_simple ? 0 : refuse(p, "letters beyond ASCII in a part that ignores case");
}

/* Some pairs of letters equal a single character, such as U+00DF; here each letter counts as one character. */
static int check_pair(struct parser *p, uint32_t code)
{
    static const char *const pairs[] = {"ss", "st", "ff", "fi", "fl"};
    char letter = code < 128 ? (char)(code | 0x20) : 0, last = p->last_letter;

    p->last_letter = letter;
    for (size_t i = 0; last && i < sizeof pairs / sizeof *pairs; i++)
        if (pairs[i][0] == last && pairs[i][1] == letter)
            return refuse(p, "letters that have a ligature in a part that ignores case");
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

/* Only in a class, \w excludes the superscripts and fractions of Latin-1, like [:word:] in Oniguruma. */
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

/* The sets of \d, \w, \s, \h; capital letters mean the complement. False: another escape. */
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

/* [:name:] or [:^name:]; *ret_found false: there is no such class, so the bracket begins a class. */
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

/* Adds an element, or the range that it begins. */
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

/* A class, after its bracket. && has the lowest precedence except for ^. */
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

/* (?flags) applies until the end of the group, including later alternatives of the group; (?flags:...) applies to its
 * own group. */
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
            return refuse(p, "an unsupported kind of group");
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

/* Parses a group after its bracket. No group captures, since nothing refers to its match. */
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

/* \b and \B, as assertions about the characters around them, and \A, \z, \Z. *ret_found false: another escape. */
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
            if (ignores_case) { /* Oniguruma ignores case in characters and classes, but not in \p{...} alone */
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

/* Appends one of the sets, as a class of a regular expression over kinds. */
static void put_kinds(const struct tt_kinds *kinds, const struct tt_charset *set, struct tt_text *out)
{
    bool has[TT_MOST_KINDS] = {false};
    int count = 0, last = 0;

    for (size_t i = 0; i < kinds->n; i++)
        has[kinds->interval[i].kind] = has[kinds->interval[i].kind] || tt_charset_has(set, kinds->interval[i].begin);
    for (int k = 0; k < TT_MOST_KINDS; k++) {
        count += has[k];
        last = has[k] ? k : last;
    }
    if (count == 1) {
        tt_text_add(out, "\\x%02x", (unsigned)last);
        return;
    }
    tt_text_add(out, count ? "[" : "[^\\x00-\\xff");
    for (int k = 0; k < TT_MOST_KINDS; k++)
        if (has[k])
            tt_text_add(out, "\\x%02x", (unsigned)k);
    tt_text_add(out, "]");
}

/* The second step of the translation. */
static int write_over_kinds(const struct parser *p, struct pattern *pattern)
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
        put_kinds(&pattern->kinds, &p->set[strtol(digits, NULL, 16)], &pattern->text);
        i += 4;
    }
    return 0;
}

/* Translates `size` bytes of an expression. TT_EDATA if PCRE2 and Oniguruma would match differently. Release even
 * after an error. */
static int translate(struct pattern *pattern, const char *text, size_t size, const char *where)
{
    struct parser *p = tt_calloc(1, sizeof *p);
    struct tt_charset line_end = {0};
    int rc = 0;

    *pattern = (struct pattern){0};
    p->text = text;
    p->size = size;
    p->where = where;
    tt_charset_add(&line_end, '\n', '\n');
    TT_PUSH(p->set, p->n_sets, p->cap_sets) = line_end; /* ^ and $ need it */
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

static void pattern_release(struct pattern *pattern)
{
    tt_text_release(&pattern->text);
    tt_kinds_release(&pattern->kinds);
    *pattern = (struct pattern){0};
}

/* --- compiling and matching --- */

#define PCRE2_CODE_UNIT_WIDTH 8

enum {
    FREE_STEPS = 1000,
    MOST_STEPS = 100000000, /* steps from one position */
    BUDGET = 1000000000,    /* and BUDGET_BYTE for every byte of the text */
    BUDGET_BYTE = 16,
    RAISE = 8,
    HEAP_LIMIT_KIB = 65536,
    JIT_STACK_MIN = 32 * 1024,
    JIT_STACK_MAX = 8 * 1024 * 1024,
    MOST_NESTED = 24, /* enough for the nested steps of a pre-tokenizer, and a few more */
};

struct tt_regex {
    pcre2_code *code;
    struct tt_kinds kinds;
    bool is_literal; /* an expression of bytes, not of kinds */
};

struct tt_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    int64_t budget; /* steps left for this text */
    struct {
        char *kinds;
        size_t cap;
    } subject[MOST_NESTED];
    int n_nested;
};

static int compile(const char *pattern, size_t size, uint32_t options, pcre2_code **ret_code, char message[160])
{
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    pcre2_code *code = NULL;
    PCRE2_SIZE at = 0;
    int error = PCRE2_ERROR_NOMEMORY;

    if (context) {
        (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF); /* as in Ruby, only \n ends a line */
        code = pcre2_compile((PCRE2_SPTR)pattern, size, PCRE2_USE_OFFSET_LIMIT | options, &error, &at, context);
    }
    pcre2_compile_context_free(context);
    if (!code) {
        (void)pcre2_get_error_message(error, (PCRE2_UCHAR *)message, 160);
        return TT_EDATA;
    }
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without a JIT, the interpreter gives the same matches */
    *ret_code = code;
    return 0;
}

static int fail_compile(const char *pattern, size_t size, const char *where, const char *message)
{
    return tt_fail(TT_EDATA, "%s%sinvalid regular expression '%.*s': %s", where ? where : "", where ? ": " : "",
                   size < 200 ? (int)size : 200, pattern, message);
}

int tt_regex_new(const char *pattern, size_t size, const char *where, struct tt_regex **ret_regex)
{
    struct pattern translated = {0};
    struct tt_regex *regex;
    pcre2_code *code = NULL;
    char message[160] = "";
    int rc = 0;

    TT_TRY(translate(&translated, pattern, size, where));
    if (compile(translated.text.text, translated.text.size, PCRE2_MULTILINE, &code, message) < 0)
        TT_TRY(fail_compile(pattern, size, where, message));
    regex = tt_calloc(1, sizeof *regex);
    *regex = (struct tt_regex){.code = code, .kinds = translated.kinds};
    translated.kinds = (struct tt_kinds){0};
    *ret_regex = regex;
out:
    pattern_release(&translated);
    return rc;
}

int tt_regex_new_literal(const char *text, size_t size, const char *where, struct tt_regex **ret_regex)
{
    pcre2_code *code = NULL;
    char message[160] = "";

    if (compile(text, size, PCRE2_LITERAL, &code, message) < 0)
        return fail_compile(text, size, where, message);
    *ret_regex = tt_calloc(1, sizeof **ret_regex);
    **ret_regex = (struct tt_regex){.code = code, .is_literal = true};
    return 0;
}

void tt_regex_free(struct tt_regex *regex)
{
    if (!regex)
        return;
    pcre2_code_free(regex->code);
    tt_kinds_release(&regex->kinds);
    tt_free(regex);
}

int tt_matcher_new(struct tt_matcher **ret_matcher)
{
    struct tt_matcher *m = tt_calloc(1, sizeof *m);

    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    m->stack = pcre2_jit_stack_create(JIT_STACK_MIN, JIT_STACK_MAX, NULL); /* NULL when there is no JIT */
    if (!m->data || !m->context) {
        tt_matcher_free(m);
        return tt_fail(TT_ENOMEM, "cannot allocate a regular expression matcher");
    }
    (void)pcre2_set_heap_limit(m->context, HEAP_LIMIT_KIB);
    if (m->stack)
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
    tt_matcher_begin(m, 0);
    *ret_matcher = m;
    return 0;
}

void tt_matcher_free(struct tt_matcher *matcher)
{
    if (!matcher)
        return;
    pcre2_match_data_free(matcher->data);
    pcre2_match_context_free(matcher->context);
    pcre2_jit_stack_free(matcher->stack);
    for (int i = 0; i < MOST_NESTED; i++)
        tt_free(matcher->subject[i].kinds);
    tt_free(matcher);
}

void tt_matcher_begin(struct tt_matcher *matcher, size_t size)
{
    matcher->budget = BUDGET + BUDGET_BYTE * (int64_t)size;
}

/* Searches for a match that begins in [from, last], with at most `steps` from each position; returns PCRE2's code. */
static int match_within(const struct tt_matches *s, size_t from, size_t last, int64_t steps)
{
    struct tt_matcher *m = s->matcher;

    (void)pcre2_set_match_limit(m->context, (uint32_t)steps);
    (void)pcre2_set_offset_limit(m->context, last);
    return pcre2_match(s->regex->code, (PCRE2_SPTR)s->subject, s->subject_size, from, 0, m->data, m->context);
}

/* The same, one position at a time: a position that needs more than the free steps takes more from the budget. */
static int match_slowly(const struct tt_matches *s, size_t from)
{
    struct tt_matcher *m = s->matcher;

    for (size_t at = from;; at++) {
        int n = match_within(s, at, at, FREE_STEPS);

        for (int64_t steps = FREE_STEPS; n == PCRE2_ERROR_MATCHLIMIT && steps < MOST_STEPS && m->budget > 0;) {
            steps = steps * RAISE < MOST_STEPS ? steps * RAISE : MOST_STEPS;
            steps = steps < m->budget ? steps : m->budget;
            m->budget -= steps;
            n = match_within(s, at, at, steps);
        }
        if (n != PCRE2_ERROR_NOMATCH || at >= s->subject_size)
            return n;
    }
}

static size_t length_of(unsigned char first)
{
    return first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

/* Writes the kinds of all characters of a valid text; returns their number. */
static size_t write_kinds(const struct tt_kinds *kinds, const char *text, size_t size, char *out)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t n = 0;

    for (size_t i = 0; i < size; n++) {
        uint32_t code = p[i];

        if (code < 0x80) {
            out[n] = (char)kinds->ascii[code];
            i++;
        } else if (code < 0xe0 && i + 1 < size) {
            out[n] = (char)tt_kinds_of(kinds, (code & 0x1fu) << 6 | (p[i + 1] & 0x3fu));
            i += 2;
        } else if (code < 0xf0 && i + 2 < size) {
            code = (code & 0xfu) << 12 | (p[i + 1] & 0x3fu) << 6 | (p[i + 2] & 0x3fu);
            out[n] = (char)tt_kinds_of(kinds, code);
            i += 3;
        } else if (i + 3 < size) {
            code = (code & 7u) << 18 | (p[i + 1] & 0x3fu) << 12 | (p[i + 2] & 0x3fu) << 6 | (p[i + 3] & 0x3fu);
            out[n] = (char)tt_kinds_of(kinds, code);
            i += 4;
        } else {
            break; /* not valid */
        }
    }
    return n;
}

void tt_matches_begin(struct tt_matches *s, struct tt_matcher *matcher, const struct tt_regex *regex, const char *text,
                      size_t size)
{
    int level = matcher->n_nested++;

    *s = (struct tt_matches){
        .matcher = matcher, .regex = regex, .text = text, .subject = text, .size = size, .subject_size = size};
    if (regex->is_literal)
        return;
    if (matcher->subject[level].cap < size + 1) {
        matcher->subject[level].cap = 2 * (size + 1);
        tt_free(matcher->subject[level].kinds); /* its old content need not be kept */
        matcher->subject[level].kinds = tt_calloc(matcher->subject[level].cap, 1);
    }
    s->subject_size = write_kinds(&regex->kinds, text, size, matcher->subject[level].kinds);
    s->subject = matcher->subject[level].kinds;
}

void tt_matches_end(struct tt_matches *s)
{
    s->matcher->n_nested--;
}

/* The offset in the text for an offset in the subject, which never decreases from call to call. */
static size_t offset_in_text(struct tt_matches *s, size_t at)
{
    if (s->subject_size == s->size)
        return at;
    for (; s->seen < at; s->seen++)
        s->seen_at += length_of((unsigned char)s->text[s->seen_at]);
    return s->seen_at;
}

int tt_matches_next(struct tt_matches *s, bool *ret_found, size_t *ret_begin, size_t *ret_end)
{
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(s->matcher->data);
    size_t end;
    int n;

    *ret_found = false;
    if (s->from > s->subject_size)
        return 0;
    n = match_within(s, s->from, PCRE2_UNSET, FREE_STEPS);
    if (n == PCRE2_ERROR_MATCHLIMIT)
        n = match_slowly(s, s->from);
    if (n < 0 && n != PCRE2_ERROR_NOMATCH) {
        PCRE2_UCHAR message[160] = "";

        (void)pcre2_get_error_message(n, message, sizeof message);
        return tt_fail(TT_EDATA, "the tokenizer's pattern gave up at byte %zu of a text of %zu bytes: %s",
                       offset_in_text(s, s->from), s->size, (const char *)message);
    }
    *ret_found = n >= 0;
    if (n < 0)
        return 0;
    end = at[1];
    s->from = at[0] == end ? end + 1 : end;
    while (s->regex->is_literal && s->from < s->size && ((unsigned char)s->text[s->from] & 0xc0) == 0x80)
        s->from++;
    *ret_begin = offset_in_text(s, at[0]);
    *ret_end = offset_in_text(s, end);
    return 0;
}

int tt_matcher_find(struct tt_matcher *matcher, const struct tt_regex *regex, const char *text, size_t size,
                    bool *ret_found, size_t *ret_begin, size_t *ret_end)
{
    struct tt_matches matches;
    int rc;

    tt_matches_begin(&matches, matcher, regex, text, size);
    rc = tt_matches_next(&matches, ret_found, ret_begin, ret_end);
    tt_matches_end(&matches);
    return rc;
}

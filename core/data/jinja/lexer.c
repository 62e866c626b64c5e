/* SPDX-License-Identifier: MIT
 *
 * Splits a template into Jinja's tokens, and removes white space around blocks that is not part of the text.
 */
#include <string.h>

#include "core/base/utf8.h"
#include "core/data/jinja/internal.h"

struct lexer {
    struct tt_jwork *w;
    const char *text;
    size_t size, at;
    size_t counted;   /* lines have been counted up to this place */
    bool begins_line; /* the text before `at` ends a line, or is empty */
    struct tt_jtoken *token;
    size_t n, cap;
};

static void count_lines(struct lexer *l, size_t to)
{
    for (; l->counted < to; l->counted++)
        l->w->line += l->text[l->counted] == '\n';
}

static char peek(const struct lexer *l, size_t ahead)
{
    return l->at + ahead < l->size ? l->text[l->at + ahead] : 0;
}

static void add(struct lexer *l, enum tt_jtoken_kind kind, const char *text, size_t size)
{
    l->token = tt_jgrow(l->w, l->token, l->n, &l->cap, sizeof *l->token);
    l->token[l->n++] = (struct tt_jtoken){kind, l->w->line, text, size};
}

/* Adds the text from `from` to this place, if any. */
static void add_from(struct lexer *l, enum tt_jtoken_kind kind, size_t from)
{
    add(l, kind, tt_jcopy(l->w, l->text + from, l->at - from), l->at - from);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c);
}

/* Adds the character of \xHH, \uHHHH or \UHHHHHHHH at p. */
static size_t add_code(struct lexer *l, const char *p, size_t size, size_t digits, struct tt_jtext *out)
{
    int64_t code = tt_text_hex(p + 2, size - 2, digits);
    char buf[4];

    if (code < 0)
        tt_jfail(l->w, TT_EUSAGE, "invalid escape '\\%c' in a string", p[1]);
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        tt_jfail(l->w, TT_EUSAGE, "a string has the character U+%04X, which is not supported", (unsigned)code);
    tt_jtext_add(l->w, out, buf, (size_t)tt_utf8_encode((uint32_t)code, buf));
    return 2 + digits;
}

static size_t add_escape(struct lexer *l, const char *p, size_t size, struct tt_jtext *out)
{
    static const char names[] = "abfnrtv\\'\"", bytes[] = "\a\b\f\n\r\t\v\\'\"";
    const char *found = p[1] ? strchr(names, p[1]) : NULL;

    if (found) {
        tt_jtext_add(l->w, out, &bytes[found - names], 1);
        return 2;
    }
    if (p[1] == 'x' || p[1] == 'u' || p[1] == 'U')
        return add_code(l, p, size, p[1] == 'x' ? 2 : p[1] == 'u' ? 4 : 8, out);
    if (is_digit(p[1]) || p[1] == 'N')
        tt_jfail(l->w, TT_EUSAGE, "the escape '\\%c' in a string is not supported", p[1]);
    if (p[1] == '\n') /* a backslash at the end continues the line */
        return 2;
    tt_jtext_add(l->w, out, p, 1);
    return 1;
}

static void lex_string(struct lexer *l)
{
    struct tt_jtext out = {0};
    char quote = l->text[l->at++];

    for (;;) {
        char c = peek(l, 0);

        if (l->at >= l->size)
            tt_jfail(l->w, TT_EUSAGE, "a string does not end");
        if (c == quote)
            break;
        if (c == '\\' && l->at + 1 < l->size) {
            l->at += add_escape(l, l->text + l->at, l->size - l->at, &out);
        } else {
            tt_jtext_add(l->w, &out, &l->text[l->at], 1);
            l->at++;
        }
    }
    l->at++;
    add(l, TT_JT_STRING, tt_jcopy(l->w, out.text ? out.text : "", out.size), out.size);
}

static void lex_number(struct lexer *l)
{
    size_t from = l->at;
    bool is_real = false;

    while (is_digit(peek(l, 0)))
        l->at++;
    if (peek(l, 0) == '.' && is_digit(peek(l, 1))) {
        is_real = true;
        l->at++;
        while (is_digit(peek(l, 0)))
            l->at++;
    }
    if (is_name(peek(l, 0)))
        tt_jfail(l->w, TT_EUSAGE, "a number of this form is not supported");
    add_from(l, is_real ? TT_JT_REAL : TT_JT_INT, from);
}

static void lex_operator(struct lexer *l, int *depth)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    char c = peek(l, 0);

    for (size_t i = 0; i < sizeof two / sizeof *two; i++) {
        if (c == two[i][0] && peek(l, 1) == two[i][1]) {
            add(l, TT_JT_OP, two[i], 2);
            l->at += 2;
            return;
        }
    }
    if (!c || !strchr("+-/*%~[](){}<>=.:|,;", c))
        tt_jfail(l->w, TT_EUSAGE, "a character (0x%02x) that is not part of Jinja", (unsigned char)c);
    *depth += strchr("[({", c) ? 1 : strchr("])}", c) ? -1 : 0;
    l->at++;
    add_from(l, TT_JT_OP, l->at - 1);
}

static void skip_space(struct lexer *l)
{
    size_t n;

    while (l->at < l->size && (n = tt_jspace_at(l->text + l->at, l->size - l->at)))
        l->at += n;
}

/* Takes the end of a tag: '-' removes the white space after it, and a block removes the line end after it. */
static bool lex_end(struct lexer *l, const char *end, bool is_block)
{
    char sign = peek(l, 0);
    size_t n = sign == '-' || (sign == '+' && is_block) ? 1 : 0;

    if (peek(l, n) != end[0] || peek(l, n + 1) != end[1])
        return false;
    l->at += n + 2;
    if (sign == '-')
        skip_space(l);
    else if (n == 0 && is_block && peek(l, 0) == '\n')
        l->at++;
    l->begins_line = l->text[l->at - 1] == '\n';
    return true;
}

static void lex_comment(struct lexer *l)
{
    for (;; l->at++) {
        if (l->at >= l->size)
            tt_jfail(l->w, TT_EUSAGE, "a comment does not end");
        if (lex_end(l, "#}", true))
            return;
    }
}

static void lex_code(struct lexer *l, bool is_block)
{
    int depth = 0; /* of brackets: within them }} does not end the code */

    add(l, is_block ? TT_JT_BLOCK : TT_JT_PRINT, "", 0);
    for (;;) {
        char c;

        skip_space(l);
        count_lines(l, l->at < l->size ? l->at : l->size);
        if (l->at >= l->size)
            tt_jfail(l->w, TT_EUSAGE, "%s does not end", is_block ? "{%" : "{{");
        if (depth <= 0 && lex_end(l, is_block ? "%}" : "}}", is_block))
            break;
        c = peek(l, 0);
        if (c == '\'' || c == '"') {
            lex_string(l);
        } else if (is_digit(c)) {
            lex_number(l);
        } else if (is_name(c)) {
            size_t from = l->at;

            while (is_name(peek(l, 0)))
                l->at++;
            add_from(l, TT_JT_NAME, from);
        } else {
            lex_operator(l, &depth);
        }
    }
    add(l, is_block ? TT_JT_BLOCK_END : TT_JT_PRINT_END, "", 0);
}

/* Takes the text up to the tag at `to`, which begins with `sign`. */
static void lex_data(struct lexer *l, size_t to, char kind, char sign)
{
    struct tt_jvalue data = tt_jstring(l->text + l->at, to - l->at);
    size_t line = data.size; /* the start of the text's last line */

    if (kind && sign == '-') {
        data = tt_jstrip(l->w, data, NULL, 2);
    } else if (kind && sign != '+' && kind != '{') {
        while (line && data.text[line - 1] != '\n')
            line--;
        if ((line || l->begins_line) && !tt_jstrip(l->w, tt_jstring(data.text + line, data.size - line), NULL, 2).size)
            data.size = line;
    }
    if (data.size)
        add(l, TT_JT_DATA, data.text, data.size);
}

/* Makes all line ends \n, and removes the last one. */
static void normalise_lines(struct lexer *l, const char *text, size_t size)
{
    char *made = tt_jalloc(l->w, size + 1);
    size_t n = 0;

    for (size_t i = 0; i < size; i++) {
        if (text[i] == '\r' && i + 1 < size && text[i + 1] == '\n')
            continue;
        made[n++] = text[i] == '\r' ? '\n' : text[i];
    }
    l->text = made;
    l->size = n && made[n - 1] == '\n' ? n - 1 : n;
}

static bool begins_tag(const struct lexer *l, size_t at)
{
    char kind = at + 1 < l->size ? l->text[at + 1] : 0;

    return l->text[at] == '{' && (kind == '{' || kind == '%' || kind == '#');
}

const struct tt_jtoken *tt_jlex(struct tt_jwork *w, const char *text, size_t size)
{
    struct lexer l = {.w = w, .begins_line = true};

    w->line = 1;
    normalise_lines(&l, text, size);
    while (l.at < l.size) {
        size_t to = l.at;
        char kind = 0, sign = 0;

        while (to < l.size && !begins_tag(&l, to))
            to++;
        if (to < l.size) {
            kind = l.text[to + 1];
            sign = to + 2 < l.size && (l.text[to + 2] == '-' || l.text[to + 2] == '+') ? l.text[to + 2] : 0;
        }
        lex_data(&l, to, kind, sign);
        l.at = to + (kind ? 2 : 0) + (sign ? 1 : 0);
        count_lines(&l, l.at);
        if (kind == '#')
            lex_comment(&l);
        else if (kind)
            lex_code(&l, kind == '%');
    }
    count_lines(&l, l.size);
    add(&l, TT_JT_END, "", 0);
    return l.token;
}

/* SPDX-License-Identifier: MIT
 *
 * The owner of PCRE2. Expressions are compiled with the JIT; matching is bounded (steps, heap, JIT stack), so that a
 * hostile tokenizer file causes an error and not a hang. PCRE2 only limits the steps of a search from one position of
 * the text. So each position first gets a small limit, which is enough for good patterns. A position that needs more
 * steps takes them from a budget for the whole text.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "core/tokenizer/regex.h"

#include <stdint.h>

#include <pcre2.h>

#include "core/base/mem.h"
#include "core/base/text.h"

enum {
    FREE_STEPS = 1000,
    MOST_STEPS = 100000000, /* from one position */
    BUDGET = 1000000000,    /* and BUDGET_BYTE for every byte of the text */
    BUDGET_BYTE = 16,
    RAISE = 8,
    HEAP_LIMIT_KIB = 65536,
    JIT_STACK_MIN = 32 * 1024,
    JIT_STACK_MAX = 8 * 1024 * 1024,
};

/* Unicode's White_Space, which Oniguruma's \s means; PCRE2's \s also has U+180E. */
#define SPACES "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define WORDS  "\\p{L}\\p{M}\\p{N}\\p{Pc}"

struct tt_regex {
    pcre2_code *code;
};

struct tt_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    int64_t budget; /* steps left for this text */
};

static int refuse(const char *where, const char *what, size_t at)
{
    return tt_fail(TT_EDATA, "%s%sthe pattern uses %s (at byte %zu), which titan cannot match as its author meant",
                   where ? where : "", where ? ": " : "", what, at);
}

/* Appends the rewritten form of one escape sequence; p[0] is the backslash, size >= 2. */
static int rewrite_escape(const char *p, bool in_class, const char *where, size_t at, struct tt_text *out)
{
    switch (p[1]) {
    case 's':
        tt_text_add(out, in_class ? "%s" : "[%s]", SPACES);
        return 0;
    case 'w':
        tt_text_add(out, in_class ? "%s" : "[%s]", WORDS);
        return 0;
    case 'S':
        if (!in_class) {
            tt_text_add(out, "[^%s]", SPACES);
            return 0;
        }
        break;
    case 'W':
        if (!in_class) {
            tt_text_add(out, "[^%s]", WORDS);
            return 0;
        }
        break;
    case 'h':
    case 'H':
        return refuse(where, "\\h", at);
    default:
        break;
    }
    tt_text_add_bytes(out, p, 2);
    return 0;
}

/* {n,m}+ repeats the repetition in Ruby's syntax and is possessive in PCRE2's. */
static bool ends_interval(const char *pattern, size_t at)
{
    size_t i = at;

    while (i > 0 && ((pattern[i - 1] >= '0' && pattern[i - 1] <= '9') || pattern[i - 1] == ','))
        i--;
    return i < at && i > 0 && pattern[i - 1] == '{' && (i < 2 || pattern[i - 2] != '\\');
}

int tt_regex_rewrite(const char *pattern, size_t size, const char *where, char **ret_pattern)
{
    struct tt_text out = {0};
    bool in_class = false;
    size_t class_begin = 0;
    int rc = 0;

    tt_text_add_bytes(&out, "", 0);
    for (size_t i = 0; i < size; i++) {
        char c = pattern[i], next = i + 1 < size ? pattern[i + 1] : 0;

        if (!c)
            TT_TRY(refuse(where, "a 0 byte", i));
        if (c == '\\' && i + 1 < size) {
            TT_TRY(rewrite_escape(pattern + i, in_class, where, i, &out));
            i++;
            continue;
        }
        if (in_class) {
            if (c == '[' && next != ':')
                TT_TRY(refuse(where, "a class within a class", i));
            if (c == '&' && next == '&')
                TT_TRY(refuse(where, "an intersection of classes", i));
            if (c == '[') { /* [:name:], up to its closing bracket */
                while (i + 1 < size && pattern[i + 1] != ']')
                    tt_text_add_bytes(&out, &pattern[i++], 1);
                tt_text_add_bytes(&out, &pattern[i++], 1);
                c = ']';
            } else if (c == ']' && i > class_begin) {
                in_class = false;
            }
        } else if (c == '[') {
            in_class = true;
            class_begin = i + (next == '^' ? 2 : 1);
        } else if (c == '+' && i > 1 && pattern[i - 1] == '}' && ends_interval(pattern, i - 1)) {
            TT_TRY(refuse(where, "a quantifier of the form {n,m}+", i));
        }
        tt_text_add_bytes(&out, &c, 1);
    }
    *ret_pattern = out.text;
    return 0;
out:
    tt_text_release(&out);
    return rc;
}

static int compile(const char *pattern, size_t size, uint32_t options, const char *where, struct tt_regex **ret_regex)
{
    struct tt_regex *regex;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    pcre2_code *code = NULL;
    PCRE2_SIZE at = 0;
    int error = 0;

    if (context) {
        (void)pcre2_set_newline(context, PCRE2_NEWLINE_LF); /* as in Ruby, only \n ends a line */
        code = pcre2_compile((PCRE2_SPTR)pattern, size, PCRE2_UTF | PCRE2_USE_OFFSET_LIMIT | options, &error, &at,
                             context);
    }
    pcre2_compile_context_free(context);
    if (!code) {
        PCRE2_UCHAR text[160] = "out of memory";

        (void)pcre2_get_error_message(error, text, sizeof text);
        return tt_fail(TT_EDATA, "%s%sinvalid regular expression '%.200s': %s (at byte %zu)", where ? where : "",
                       where ? ": " : "", pattern, (const char *)text, (size_t)at);
    }
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without a JIT the interpreter gives the same matches */
    regex = tt_calloc(1, sizeof *regex);
    regex->code = code;
    *ret_regex = regex;
    return 0;
}

int tt_regex_new(const char *pattern, size_t size, const char *where, struct tt_regex **ret_regex)
{
    char *rewritten = NULL;
    int rc = 0;

    TT_TRY(tt_regex_rewrite(pattern, size, where, &rewritten));
    TT_TRY(compile(rewritten, PCRE2_ZERO_TERMINATED, PCRE2_UCP | PCRE2_MULTILINE, where, ret_regex));
out:
    tt_free(rewritten);
    return rc;
}

int tt_regex_new_literal(const char *text, size_t size, const char *where, struct tt_regex **ret_regex)
{
    return compile(text, size, PCRE2_LITERAL, where, ret_regex);
}

void tt_regex_free(struct tt_regex *regex)
{
    if (!regex)
        return;
    pcre2_code_free(regex->code);
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
    tt_free(matcher);
}

void tt_matcher_begin(struct tt_matcher *matcher, size_t size)
{
    matcher->budget = BUDGET + BUDGET_BYTE * (int64_t)size;
}

struct search {
    const struct tt_regex *regex;
    const char *text;
    size_t size;
};

/* Searches for a match that begins in [from, last], with at most `steps` from each position; returns PCRE2's code. */
static int match_within(struct tt_matcher *m, const struct search *s, size_t from, size_t last, int64_t steps)
{
    (void)pcre2_set_match_limit(m->context, (uint32_t)steps);
    (void)pcre2_set_offset_limit(m->context, last);
    return pcre2_match(s->regex->code, (PCRE2_SPTR)s->text, s->size, from, PCRE2_NO_UTF_CHECK, m->data, m->context);
}

/* The same, one position at a time: a position that needs more than the free steps takes them from the budget. */
static int match_slowly(struct tt_matcher *m, const struct search *s, size_t from)
{
    size_t at = from;
    int n;

    for (;;) {
        n = match_within(m, s, at, at, FREE_STEPS);
        for (int64_t steps = FREE_STEPS; n == PCRE2_ERROR_MATCHLIMIT && steps < MOST_STEPS && m->budget > 0;) {
            steps = steps * RAISE < MOST_STEPS ? steps * RAISE : MOST_STEPS;
            steps = steps < m->budget ? steps : m->budget;
            m->budget -= steps;
            n = match_within(m, s, at, at, steps);
        }
        if (n != PCRE2_ERROR_NOMATCH || at >= s->size)
            return n;
        do {
            at++;
        } while (at < s->size && ((unsigned char)s->text[at] & 0xc0) == 0x80);
    }
}

int tt_matcher_find(struct tt_matcher *matcher, const struct tt_regex *regex, const char *text, size_t size,
                    size_t from, bool *ret_found, size_t *ret_begin, size_t *ret_end)
{
    const struct search s = {regex, text, size};
    int n = match_within(matcher, &s, from, PCRE2_UNSET, FREE_STEPS);

    if (n == PCRE2_ERROR_MATCHLIMIT)
        n = match_slowly(matcher, &s, from);
    if (n < 0 && n != PCRE2_ERROR_NOMATCH) {
        PCRE2_UCHAR message[160] = "";

        (void)pcre2_get_error_message(n, message, sizeof message);
        return tt_fail(TT_EDATA, "the tokenizer's pattern gave up at byte %zu of a text of %zu bytes: %s", from, size,
                       (const char *)message);
    }
    *ret_found = n >= 0;
    if (n >= 0) {
        const PCRE2_SIZE *at = pcre2_get_ovector_pointer(matcher->data);

        *ret_begin = at[0];
        *ret_end = at[1];
    }
    return 0;
}

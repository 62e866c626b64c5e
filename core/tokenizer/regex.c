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
#include "core/tokenizer/pattern.h"

enum {
    FREE_STEPS = 1000,
    MOST_STEPS = 100000000, /* from one position */
    BUDGET = 1000000000,    /* and BUDGET_BYTE for every byte of the text */
    BUDGET_BYTE = 16,
    RAISE = 8,
    HEAP_LIMIT_KIB = 65536,
    JIT_STACK_MIN = 32 * 1024,
    JIT_STACK_MAX = 8 * 1024 * 1024,
    MOST_NESTED = 24, /* the steps of a pre-tokenizer, one in another, and some */
};

struct tt_regex {
    pcre2_code *code;
    struct tt_kinds kinds;
    bool is_literal; /* of bytes, not of kinds */
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
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* without a JIT the interpreter gives the same matches */
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
    struct tt_pattern translated = {0};
    struct tt_regex *regex;
    pcre2_code *code = NULL;
    char message[160] = "";
    int rc = 0;

    TT_TRY(tt_pattern_init(&translated, pattern, size, where));
    if (compile(translated.text.text, translated.text.size, PCRE2_MULTILINE, &code, message) < 0)
        TT_TRY(fail_compile(pattern, size, where, message));
    regex = tt_calloc(1, sizeof *regex);
    *regex = (struct tt_regex){.code = code, .kinds = translated.kinds};
    translated.kinds = (struct tt_kinds){0};
    *ret_regex = regex;
out:
    tt_pattern_release(&translated);
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

/* The same, one position at a time: a position that needs more than the free steps takes them from the budget. */
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

/* Writes the kinds of all characters of a valid text; returns how many there are. */
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
        tt_free(matcher->subject[level].kinds); /* its content need not be kept */
        matcher->subject[level].kinds = tt_calloc(matcher->subject[level].cap, 1);
    }
    s->subject_size = write_kinds(&regex->kinds, text, size, matcher->subject[level].kinds);
    s->subject = matcher->subject[level].kinds;
}

void tt_matches_end(struct tt_matches *s)
{
    s->matcher->n_nested--;
}

/* The offset in the text of an offset in the subject, which never becomes less from call to call. */
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

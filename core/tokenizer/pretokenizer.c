/* SPDX-License-Identifier: MIT
 *
 * Pre-tokenizers of BPE: Split, Digits, ByteLevel, Metaspace and sequences of them. Others are refused by name, since a
 * different cut would silently give different tokens.
 */
#include "core/tokenizer/pretokenizer.h"

#include <string.h>

#include "core/base/utf8.h"

#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

enum { DEEPEST_SEQUENCE = 4 };

static int add_pattern(struct tt_pretokenizer *p, const char *pattern, size_t size, bool is_literal, const char *where)
{
    int rc = 0;

    if (p->n_steps == TT_PRETOKENIZER_STEPS)
        return tt_fail(TT_EDATA, "%s: pre_tokenizer has more than %d steps", where, TT_PRETOKENIZER_STEPS);
    if (is_literal) {
        TT_TRY(tt_regex_new_literal(pattern, size, where, &p->step[p->n_steps]));
    } else {
        TT_TRY(tt_regex_new(pattern, size, where, &p->step[p->n_steps]));
    }
    p->n_steps++;
out:
    return rc;
}

static int add_split(struct tt_pretokenizer *p, const json_t *json, const char *where)
{
    const json_t *pattern = json_object_get(json, "pattern"), *text;
    const char *behavior = json_string_value(json_object_get(json, "behavior"));

    if (!behavior || strcmp(behavior, "Isolated") != 0) {
        return tt_fail(TT_EDATA, "%s: pre_tokenizer Split with behavior '%s' is not supported (Isolated is)", where,
                       behavior ? behavior : "(none)");
    }
    text = json_object_get(pattern, "Regex");
    if (json_is_string(text))
        return add_pattern(p, json_string_value(text), json_string_length(text), false, where);
    text = json_object_get(pattern, "String");
    if (!json_is_string(text))
        return tt_fail(TT_EDATA, "%s: pre_tokenizer Split has neither pattern.Regex nor pattern.String", where);
    if (!json_string_length(text)) /* an empty string matches nowhere */
        return 0;
    return add_pattern(p, json_string_value(text), json_string_length(text), true, where);
}

static int add_byte_level(struct tt_pretokenizer *p, const json_t *json, const char *where)
{
    const json_t *use_regex = json_object_get(json, "use_regex"); /* absent in old files, where it is true */

    p->prefix_space = json_is_true(json_object_get(json, "add_prefix_space"));
    p->prefix_step = p->n_steps;
    return json_is_false(use_regex) ? 0 : add_pattern(p, GPT2_PATTERN, strlen(GPT2_PATTERN), false, where);
}

int tt_metaspace_init(struct tt_metaspace *m, const json_t *json, const char *what, const char *where)
{
    static const char *const names[] = {
        [TT_PREPEND_ALWAYS] = "always", [TT_PREPEND_FIRST] = "first", [TT_PREPEND_NEVER] = "never"};
    const char *mark = tt_json_plain_string(json_object_get(json, "replacement"));
    const json_t *scheme = json_object_get(json, "prepend_scheme"); /* absent in old files */
    bool is_known = !scheme, never = json_is_false(json_object_get(json, "add_prefix_space"));
    uint32_t code;

    *m = (struct tt_metaspace){.prepend = never ? TT_PREPEND_NEVER : TT_PREPEND_ALWAYS,
                               .splits = !json_is_false(json_object_get(json, "split"))};
    if (!mark || !*mark || tt_utf8_decode(mark, strlen(mark), &code) != (int)strlen(mark))
        return tt_fail(TT_EDATA, "%s: the replacement of %s Metaspace is not one character", where, what);
    memcpy(m->mark, mark, strlen(mark));
    for (int i = 0; json_is_string(scheme) && i <= TT_PREPEND_NEVER; i++) {
        if (strcmp(json_string_value(scheme), names[i]) == 0) {
            m->prepend = (enum tt_prepend)i;
            is_known = true;
        }
    }
    if (!is_known || (never && m->prepend != TT_PREPEND_NEVER)) {
        return tt_fail(TT_EDATA, "%s: %s Metaspace with prepend_scheme '%s'%s is not supported", where, what,
                       json_is_string(scheme) ? json_string_value(scheme) : "(not a string)",
                       is_known ? " and add_prefix_space false" : "");
    }
    return 0;
}

static int add_metaspace(struct tt_pretokenizer *p, const json_t *json, const char *where)
{
    if (p->metaspace_step >= 0)
        return tt_fail(TT_EDATA, "%s: more than one pre_tokenizer Metaspace is not supported", where);
    p->metaspace_step = p->n_steps;
    return tt_metaspace_init(&p->metaspace, json, "pre_tokenizer", where);
}

static int add_steps(struct tt_pretokenizer *p, const json_t *json, const char *where, int depth)
{
    const char *type = json_string_value(json_object_get(json, "type"));
    int rc = 0;

    if (!type)
        return tt_fail(TT_EDATA, "%s: pre_tokenizer without a type", where);
    if (strcmp(type, "Sequence") == 0 && depth < DEEPEST_SEQUENCE) {
        const json_t *list = json_object_get(json, "pretokenizers");

        for (size_t i = 0; i < json_array_size(list); i++)
            TT_TRY(add_steps(p, json_array_get(list, i), where, depth + 1));
        goto out;
    }
    if (p->prefix_step >= 0) {
        return tt_fail(TT_EDATA, "%s: pre_tokenizer '%s' after ByteLevel is not supported (ByteLevel must be the last)",
                       where, type);
    }
    if (strcmp(type, "Split") == 0) {
        TT_TRY(add_split(p, json, where));
    } else if (strcmp(type, "Digits") == 0) {
        const char *pattern =
            json_is_true(json_object_get(json, "individual_digits")) ? "\\p{RustNumber}" : "\\p{RustNumber}+";

        TT_TRY(add_pattern(p, pattern, strlen(pattern), false, where));
    } else if (strcmp(type, "ByteLevel") == 0 && p->metaspace_step < 0) {
        TT_TRY(add_byte_level(p, json, where));
    } else if (strcmp(type, "Metaspace") == 0) {
        TT_TRY(add_metaspace(p, json, where));
    } else {
        return tt_fail(TT_EDATA,
                       "%s: pre_tokenizer '%s'%s is not supported (Split, Digits, ByteLevel and Metaspace are)", where,
                       type, p->metaspace_step >= 0 ? " after Metaspace" : "");
    }
out:
    return rc;
}

int tt_pretokenizer_init(struct tt_pretokenizer *p, const json_t *json, const char *where)
{
    int rc = 0;

    *p = (struct tt_pretokenizer){.prefix_step = -1, .metaspace_step = -1};
    if (json && !json_is_null(json))
        TT_TRY(add_steps(p, json, where, 0));
out:
    return rc;
}

void tt_pretokenizer_release(struct tt_pretokenizer *p)
{
    for (int i = 0; i < TT_PRETOKENIZER_STEPS; i++)
        tt_regex_free(p->step[i]);
    *p = (struct tt_pretokenizer){.prefix_step = -1, .metaspace_step = -1};
}

struct split {
    const struct tt_pretokenizer *p;
    struct tt_matcher *matcher;
    struct tt_text *scratch;
    const char *first; /* a piece at this address begins the document; NULL: none does */
    tt_word_fn fn;
    void *arg;
};

static int run_steps(const struct split *s, int step, bool has_prefix, const char *text, size_t size);

static int run_metaspace(const struct split *s, const char *text, size_t size)
{
    const struct tt_metaspace *m = &s->p->metaspace;
    bool prepends = m->prepend == TT_PREPEND_ALWAYS || (m->prepend == TT_PREPEND_FIRST && text == s->first);
    size_t mark_size = strlen(m->mark), done = 0;
    int rc = 0;

    s->scratch->size = 0;
    if (prepends && text[0] != ' ' && (size < mark_size || memcmp(text, m->mark, mark_size) != 0))
        tt_text_add_bytes(s->scratch, m->mark, mark_size);
    tt_text_add_replaced(s->scratch, text, size, " ", m->mark);
    text = s->scratch->text;
    size = s->scratch->size;
    for (size_t i = 1; m->splits && i + mark_size <= size; i++) {
        if (text[i] != m->mark[0] || memcmp(text + i, m->mark, mark_size) != 0)
            continue;
        TT_TRY(run_steps(s, s->p->metaspace_step, true, text + done, i - done));
        done = i;
    }
    TT_TRY(run_steps(s, s->p->metaspace_step, true, text + done, size - done));
out:
    return rc;
}

/* Cuts around the matches of a step; the next steps cut the pieces. */
static int run_pattern(const struct split *s, int step, const char *text, size_t size)
{
    struct tt_matches matches;
    size_t done = 0, begin = 0, end = 0;
    bool found = false;
    int rc = 0;

    tt_matches_begin(&matches, s->matcher, s->p->step[step], text, size);
    for (;;) {
        TT_TRY(tt_matches_next(&matches, &found, &begin, &end));
        if (!found)
            break;
        TT_TRY(run_steps(s, step + 1, false, text + done, begin - done));
        TT_TRY(run_steps(s, step + 1, false, text + begin, end - begin));
        done = end;
    }
    TT_TRY(run_steps(s, step + 1, false, text + done, size - done));
out:
    tt_matches_end(&matches);
    return rc;
}

/* Runs the steps from `step` on one piece. The depth is at most the number of steps, plus one for the space. */
static int run_steps(const struct split *s, int step, bool has_prefix, const char *text, size_t size)
{
    if (!size)
        return 0;
    if (step == s->p->prefix_step && s->p->prefix_space && !has_prefix && text[0] != ' ') {
        s->scratch->size = 0;
        tt_text_add_bytes(s->scratch, " ", 1);
        tt_text_add_bytes(s->scratch, text, size);
        return run_steps(s, step, true, s->scratch->text, s->scratch->size);
    }
    if (step == s->p->metaspace_step && !has_prefix)
        return run_metaspace(s, text, size);
    return step == s->p->n_steps ? s->fn(s->arg, text, size) : run_pattern(s, step, text, size);
}

int tt_pretokenizer_split(const struct tt_pretokenizer *p, struct tt_matcher *matcher, struct tt_text *scratch,
                          const char *text, size_t size, bool is_first, tt_word_fn fn, void *arg)
{
    struct split s = {p, matcher, scratch, is_first ? text : NULL, fn, arg};

    return run_steps(&s, 0, false, text, size);
}

/* SPDX-License-Identifier: MIT
 *
 * From text to words. Added tokens are searched for in the text; the text between them is normalised, and searched for
 * the other added tokens; the pre-tokenizer cuts the rest into words. Unsupported steps are refused by name, since a
 * different cut or composition would silently give different tokens.
 */
#include "core/tokenizer/pretokenizer.h"

#include <string.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"

/* --- marked passages --- */

void tt_passages_add(struct tt_passages *passages, size_t begin, size_t end)
{
    if (begin < end)
        TT_PUSH(passages->item, passages->n, passages->cap) = (struct tt_passage){begin, end};
}

void tt_passages_release(struct tt_passages *passages)
{
    tt_free(passages->item);
    *passages = (struct tt_passages){0};
}

/* Adds to ret_passages the parts of the passages (NULL: none) that lie in [at, at + size) of the text, counted from
 * `at`. */
static void cut_passages(const struct tt_passages *passages, size_t at, size_t size, struct tt_passages *ret_passages)
{
    for (size_t i = 0; passages && i < passages->n; i++) {
        size_t begin = passages->item[i].begin < at ? at : passages->item[i].begin;
        size_t end = passages->item[i].end > at + size ? at + size : passages->item[i].end;

        if (begin < end)
            tt_passages_add(ret_passages, begin - at, end - at);
    }
}

bool tt_passages_touch(const struct tt_passages *passages, size_t begin, size_t end)
{
    end = end > begin ? end : begin + 1;
    for (size_t i = 0; i < passages->n; i++)
        if (passages->item[i].begin < end && begin < passages->item[i].end)
            return true;
    return false;
}

/* --- the normalizer: normal forms of Unicode, and plain replacements of text --- */

enum { DEEPEST_SEQUENCE = 4 };

struct tt_normal_form {
    const char *type;
    enum tt_utf8_form form;
    unsigned char first; /* in UTF-8, the lowest byte of a character that the form may change or move */
};

static const struct tt_normal_form forms[] = {
    {"NFC", TT_UTF8_NFC, 0xcc},   /* U+0300, the first combining mark */
    {"NFD", TT_UTF8_NFD, 0xc3},   /* U+00C0 */
    {"NFKC", TT_UTF8_NFKC, 0xc2}, /* U+00A0 */
    {"NFKD", TT_UTF8_NFKD, 0xc2},
};

static int new_step(struct tt_normalizer *n, const char *where, struct tt_normalizer_step **ret_step)
{
    if (n->n_steps == TT_NORMALIZER_STEPS)
        return tt_fail(TT_EDATA, "%s: normalizer has more than %d steps", where, TT_NORMALIZER_STEPS);
    *ret_step = &n->step[n->n_steps++];
    return 0;
}

/* Prepend, or Replace. */
static int add_text(struct tt_normalizer *n, const json_t *json, bool replaces, const char *where)
{
    const char *from = tt_json_plain_string(json_object_get(json_object_get(json, "pattern"), "String"));
    const char *to = tt_json_plain_string(json_object_get(json, replaces ? "content" : "prepend"));
    struct tt_normalizer_step *step = NULL;
    int rc = 0;

    if (!replaces && !to)
        return tt_fail(TT_EDATA, "%s: normalizer Prepend has no string prepend", where);
    if (replaces && (!from || !*from || !to))
        return tt_fail(TT_EDATA, "%s: normalizer Replace is supported with a string as pattern.String and as content",
                       where);
    TT_TRY(new_step(n, where, &step));
    step->from = replaces ? tt_strdup(from) : NULL;
    step->to = tt_strdup(to);
out:
    return rc;
}

/*
 * The `tokenizers` library uses the normal forms of Unicode 9.0: later characters stay as they are, and do not combine.
 * Unicode never changes the normal forms of existing characters.
 */
static void read_assigned(struct tt_normalizer *n)
{
    struct tt_charset sets[2] = {{0}, {0}};

    tt_charset_add(&sets[0], '\n', '\n');
    (void)tt_charset_add_property(&sets[1], "assigned9", 9);
    (void)tt_kinds_init(&n->assigned, sets, 2);
    tt_charset_release(&sets[0]);
    tt_charset_release(&sets[1]);
}

static int add_steps(struct tt_normalizer *n, const json_t *json, const char *where, int depth)
{
    const char *type = json_string_value(json_object_get(json, "type"));
    const json_t *list = json_object_get(json, "normalizers");
    struct tt_normalizer_step *step = NULL;
    int rc = 0;

    for (size_t i = 0; type && i < sizeof forms / sizeof *forms; i++) {
        if (strcmp(type, forms[i].type) != 0)
            continue;
        TT_TRY(new_step(n, where, &step));
        step->form = &forms[i];
        if (!n->assigned.n)
            read_assigned(n);
        return 0;
    }
    if (type && (strcmp(type, "Prepend") == 0 || strcmp(type, "Replace") == 0))
        return add_text(n, json, strcmp(type, "Replace") == 0, where);
    if (!type || strcmp(type, "Sequence") != 0 || depth > DEEPEST_SEQUENCE) {
        return tt_fail(TT_EDATA,
                       "%s: normalizer '%s' is not supported (null, NFC, NFD, NFKC, NFKD, Prepend and Replace are)",
                       where, type ? type : "(no type)");
    }
    for (size_t i = 0; i < json_array_size(list); i++)
        TT_TRY(add_steps(n, json_array_get(list, i), where, depth + 1));
out:
    return rc;
}

int tt_normalizer_init(struct tt_normalizer *n, const json_t *json, const char *where)
{
    *n = (struct tt_normalizer){0};
    return !json || json_is_null(json) ? 0 : add_steps(n, json, where, 0);
}

void tt_normalizer_release(struct tt_normalizer *n)
{
    for (int i = 0; i < n->n_steps; i++) {
        tt_free(n->step[i].from);
        tt_free(n->step[i].to);
    }
    tt_kinds_release(&n->assigned);
    *n = (struct tt_normalizer){0};
}

static bool may_change(const struct tt_normal_form *form, const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)text[i] >= form->first)
            return true;
    return false;
}

/* text may be the scratch's own text. */
static void substitute(const struct tt_normalizer_step *step, struct tt_text *scratch, const char *text, size_t size)
{
    struct tt_text made = {0};

    tt_text_add_bytes(&made, "", 0); /* so that made.text is not NULL even if it stays empty */
    if (step->from) {
        tt_text_add_replaced(&made, text, size, step->from, step->to);
    } else if (size) { /* nothing is put before an empty text */
        tt_text_add_bytes(&made, step->to, strlen(step->to));
        tt_text_add_bytes(&made, text, size);
    }
    tt_text_release(scratch);
    *scratch = made;
}

static int put_normal(const struct tt_normal_form *form, const char *text, size_t size, struct tt_text *out)
{
    if (may_change(form, text, size))
        return tt_utf8_normalize(form->form, text, size, out);
    tt_text_add_bytes(out, text, size);
    return 0;
}

/* Converts the text between unassigned characters. text may be the scratch's own text. */
static int convert(const struct tt_normalizer *n, const struct tt_normal_form *form, struct tt_text *scratch,
                   const char *text, size_t size)
{
    uint8_t assigned = tt_kinds_of(&n->assigned, 'a');
    struct tt_text made = {0};
    size_t done = 0, length = 0;
    int rc = 0;

    tt_text_add_bytes(&made, "", 0);
    for (size_t i = 0; i < size; i += length) {
        uint32_t code = 0;

        length = (size_t)tt_utf8_decode(text + i, size - i, &code);
        if (!length)
            TT_TRY(tt_fail(TT_EDATA, "invalid UTF-8 at byte %zu of the text", i));
        if (code < 0x80 || tt_kinds_of(&n->assigned, code) == assigned)
            continue;
        TT_TRY(put_normal(form, text + done, i - done, &made));
        tt_text_add_bytes(&made, text + i, length);
        done = i + length;
    }
    TT_TRY(put_normal(form, text + done, size - done, &made));
    tt_text_release(scratch);
    *scratch = made;
    return 0;
out:
    tt_text_release(&made);
    return rc;
}

int tt_normalizer_apply(const struct tt_normalizer *n, struct tt_text *scratch, const char *text, size_t size,
                        const char **ret_text, size_t *ret_size)
{
    int rc = 0;

    for (int i = 0; i < n->n_steps; i++) {
        if (!n->step[i].form) {
            substitute(&n->step[i], scratch, text, size);
        } else if (may_change(n->step[i].form, text, size)) {
            TT_TRY(convert(n, n->step[i].form, scratch, text, size));
        } else {
            continue;
        }
        text = scratch->text;
        size = scratch->size;
    }
    *ret_text = text;
    *ret_size = size;
out:
    return rc;
}

/* --- the pre-tokenizer: Split, Digits, ByteLevel, Metaspace and sequences of them --- */

#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

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

/* Reads what a Split does with its matches. */
static int read_behavior(const json_t *json, const char *where, enum tt_split_at *ret_behavior)
{
    static const char *const names[] = {
        [TT_SPLIT_ISOLATED] = "Isolated",        [TT_SPLIT_WITH_PREVIOUS] = "MergedWithPrevious",
        [TT_SPLIT_WITH_NEXT] = "MergedWithNext", [TT_SPLIT_CONTIGUOUS] = "Contiguous",
        [TT_SPLIT_REMOVED] = "Removed",
    };
    const char *behavior = json_string_value(json_object_get(json, "behavior"));

    for (int i = TT_SPLIT_ISOLATED; behavior && i <= TT_SPLIT_REMOVED; i++) {
        if (strcmp(behavior, names[i]) == 0) {
            *ret_behavior = (enum tt_split_at)i;
            return 0;
        }
    }
    return tt_fail(TT_EDATA, "%s: pre_tokenizer Split with behavior '%s' is not supported", where,
                   behavior ? behavior : "(none)");
}

static int add_split(struct tt_pretokenizer *p, const json_t *json, const char *where)
{
    const json_t *pattern = json_object_get(json, "pattern"), *text = json_object_get(pattern, "Regex");
    bool is_literal = !json_is_string(text);
    enum tt_split_at behavior = TT_SPLIT_ISOLATED;
    int rc = 0;

    TT_TRY(read_behavior(json, where, &behavior));
    text = is_literal ? json_object_get(pattern, "String") : text;
    if (!json_is_string(text))
        return tt_fail(TT_EDATA, "%s: pre_tokenizer Split has neither pattern.Regex nor pattern.String", where);
    if (is_literal && !json_string_length(text)) /* an empty string matches nowhere */
        return 0;
    TT_TRY(add_pattern(p, json_string_value(text), json_string_length(text), is_literal, where));
    p->behavior[p->n_steps - 1] = behavior;
    p->inverts[p->n_steps - 1] = json_is_true(json_object_get(json, "invert"));
out:
    return rc;
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

static int add_cuts(struct tt_pretokenizer *p, const json_t *json, const char *where, int depth)
{
    const char *type = json_string_value(json_object_get(json, "type"));
    int rc = 0;

    if (!type)
        return tt_fail(TT_EDATA, "%s: pre_tokenizer without a type", where);
    if (strcmp(type, "Sequence") == 0 && depth < DEEPEST_SEQUENCE) {
        const json_t *list = json_object_get(json, "pretokenizers");

        for (size_t i = 0; i < json_array_size(list); i++)
            TT_TRY(add_cuts(p, json_array_get(list, i), where, depth + 1));
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
        TT_TRY(add_cuts(p, json, where, 0));
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
    const char *first; /* the piece at this address begins the document; NULL: no piece does */
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

/* A piece between two cuts of a step; it may still grow. */
struct piece {
    size_t begin, end;
    bool is_match; /* it ends with a match */
};

/* Whether two adjacent parts of a text (matches, or the text between them) form one piece. */
static bool joins(enum tt_split_at behavior, bool was_match, bool is_match)
{
    return behavior == TT_SPLIT_WITH_PREVIOUS ? is_match && !was_match
           : behavior == TT_SPLIT_WITH_NEXT   ? was_match && !is_match
                                              : behavior == TT_SPLIT_CONTIGUOUS && was_match == is_match;
}

/* Passes a piece to the next step, unless it is a match that the step removes. */
static int put_piece(const struct split *s, int step, const char *text, const struct piece *piece)
{
    if (piece->is_match && s->p->behavior[step] == TT_SPLIT_REMOVED)
        return 0;
    return run_steps(s, step + 1, false, text + piece->begin, piece->end - piece->begin);
}

/* Adds a part of the text to the piece, or passes the piece on and begins another one. */
static int add_part(const struct split *s, int step, const char *text, struct piece *piece, struct piece part)
{
    int rc = 0;

    part.is_match = part.is_match != s->p->inverts[step];
    if (piece->end > piece->begin && joins(s->p->behavior[step], piece->is_match, part.is_match))
        part.begin = piece->begin;
    else
        rc = put_piece(s, step, text, piece);
    *piece = part;
    return rc;
}

/* Cuts the text at the matches of a step; the next steps cut the pieces. */
static int run_pattern(const struct split *s, int step, const char *text, size_t size)
{
    struct tt_matches matches;
    struct piece piece = {0};
    size_t done = 0, begin = 0, end = 0;
    bool found = false;
    int rc = 0;

    tt_matches_begin(&matches, s->matcher, s->p->step[step], text, size);
    for (;;) {
        TT_TRY(tt_matches_next(&matches, &found, &begin, &end));
        if (!found)
            break;
        if (done < begin)
            TT_TRY(add_part(s, step, text, &piece, (struct piece){done, begin, false}));
        TT_TRY(add_part(s, step, text, &piece, (struct piece){begin, end, true}));
        done = end;
    }
    if (done < size)
        TT_TRY(add_part(s, step, text, &piece, (struct piece){done, size, false}));
    TT_TRY(put_piece(s, step, text, &piece));
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

/* --- added tokens: the longest leftmost match, with the flags of Hugging Face's format --- */

static void index_token(struct tt_added *a, int i, int pass, const char *text, size_t size)
{
    int at = 0;

    tt_strmap_set(&a->index[pass], text, size, i);
    a->begins[pass][(uint8_t)text[0]] = true;
    while (at < a->n_lengths[pass] && a->length[pass][at] > size)
        at++;
    if (at < a->n_lengths[pass] && a->length[pass][at] == size)
        return;
    TT_PUSH(a->length[pass], a->n_lengths[pass], a->cap_lengths[pass]) = 0;
    memmove(&a->length[pass][at + 1], &a->length[pass][at],
            (size_t)(a->n_lengths[pass] - 1 - at) * sizeof *a->length[pass]);
    a->length[pass][at] = size;
}

/* Indexes a token by its content, which is normalised for the second pass. */
static int index_content(struct tt_added *a, int i)
{
    const struct tt_added_token *t = &a->token[i];
    const char *text = t->content;
    struct tt_text scratch = {0};
    size_t size = t->size;
    int rc = 0;

    if (t->is_normalized)
        TT_TRY(tt_normalizer_apply(&a->normalizer, &scratch, text, size, &text, &size));
    if (size)
        index_token(a, i, t->is_normalized ? 1 : 0, text, size);
out:
    tt_text_release(&scratch);
    return rc;
}

static int read_token(struct tt_added *a, const json_t *json, const char *where)
{
    const json_t *content = json_object_get(json, "content");
    struct tt_added_token t = {0};
    int64_t id = 0;
    int rc = 0;

    TT_TRY(tt_json_get_int(json, "id", where, &id));
    if (!json_is_string(content))
        return tt_fail(TT_EDATA, "%s: added token %lld has no content", where, (long long)id);
    if (id < 0 || id >= INT32_MAX) {
        return tt_fail(TT_EDATA, "%s: added token '%s' has the id %lld", where, json_string_value(content),
                       (long long)id);
    }
    t.size = json_string_length(content);
    if (!t.size)
        return 0;
    t.content = tt_strndup(json_string_value(content), t.size);
    t.id = (int32_t)id;
    t.is_special = json_is_true(json_object_get(json, "special"));
    t.is_single_word = json_is_true(json_object_get(json, "single_word"));
    t.strips_left = json_is_true(json_object_get(json, "lstrip"));
    t.strips_right = json_is_true(json_object_get(json, "rstrip"));
    t.is_normalized = json_is_true(json_object_get(json, "normalized"));
    TT_PUSH(a->token, a->n, a->cap) = t;
    TT_TRY(index_content(a, a->n - 1));
out:
    return rc;
}

/* A word character in Rust's regular expressions; \w of PCRE2 and of Oniguruma differ. */
#define WORD "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\p{Join_Control}]"

int tt_added_init(struct tt_added *added, const json_t *json, const json_t *normalizer, const char *where)
{
    const struct {
        const char *pattern;
        struct tt_regex **regex;
    } pattern[] = {{"\\A" WORD, &added->word_begin},
                   {WORD "\\z", &added->word_end},
                   {"\\A\\s+", &added->space_begin},
                   {"\\s+\\z", &added->space_end}};
    int rc = 0;

    TT_TRY(tt_normalizer_init(&added->normalizer, normalizer, where));
    if (json && !json_is_null(json) && !json_is_array(json))
        return tt_fail(TT_EDATA, "%s: added_tokens is not an array", where);
    for (size_t i = 0; i < json_array_size(json); i++)
        TT_TRY(read_token(added, json_array_get(json, i), where));
    for (size_t i = 0; i < sizeof pattern / sizeof pattern[0]; i++)
        TT_TRY(tt_regex_new(pattern[i].pattern, strlen(pattern[i].pattern), where, pattern[i].regex));
out:
    return rc;
}

void tt_added_release(struct tt_added *added)
{
    for (int i = 0; i < added->n; i++)
        tt_free(added->token[i].content);
    tt_free(added->token);
    for (int pass = 0; pass < 2; pass++) {
        tt_strmap_release(&added->index[pass]);
        tt_free(added->length[pass]);
    }
    tt_regex_free(added->word_begin);
    tt_regex_free(added->word_end);
    tt_regex_free(added->space_begin);
    tt_regex_free(added->space_end);
    tt_normalizer_release(&added->normalizer);
    *added = (struct tt_added){0};
}

struct search {
    const struct tt_added *added;
    struct tt_matcher *matcher;
    bool find_special;
    bool is_first;                      /* the text of the pass begins at the beginning of the whole text */
    const struct tt_passages *passages; /* passages of the text of the pass */
    tt_added_fn fn;
    void *arg;
};

/* The longest token of the pass that begins at p, or NULL; ret_size: its length in the text. */
static const struct tt_added_token *token_at(const struct tt_added *a, int pass, const char *p, size_t size,
                                             size_t *ret_size)
{
    if (!a->begins[pass][(uint8_t)*p])
        return NULL;
    for (int i = 0; i < a->n_lengths[pass]; i++) {
        size_t length = a->length[pass][i];
        int64_t found = length <= size ? tt_strmap_get(&a->index[pass], p, length, -1) : -1;

        *ret_size = length;
        if (found >= 0)
            return &a->token[found];
    }
    return NULL;
}

/* Applies single_word, lstrip and rstrip to a token at [begin, end): extends it over white space, or refuses it. */
static int apply_flags(const struct search *s, const struct tt_added_token *t, const char *text, size_t size,
                       size_t done, size_t *begin, size_t *end, bool *ret_taken)
{
    const struct tt_added *a = s->added;
    size_t token_end = *end, from, to;
    bool found = false;
    int rc = 0;

    *ret_taken = false;
    if (t->is_special && !s->find_special)
        return 0;
    if (t->is_single_word) {
        size_t last = *begin; /* the last character before the token: \z matches from there */

        while (last > 0 && *begin - last < 4 && ((unsigned char)text[--last] & 0xc0) == 0x80)
            ;
        TT_TRY(tt_matcher_find(s->matcher, a->word_end, text + last, *begin - last, &found, &from, &to));
        if (found)
            return 0;
        TT_TRY(tt_matcher_find(s->matcher, a->word_begin, text + token_end, size - token_end, &found, &from, &to));
        if (found)
            return 0;
    }
    if (t->strips_left) {
        size_t after = done < *begin ? done : *begin;

        TT_TRY(tt_matcher_find(s->matcher, a->space_end, text + after, *begin - after, &found, &from, &to));
        if (found)
            *begin = after + from;
    }
    if (t->strips_right) {
        TT_TRY(tt_matcher_find(s->matcher, a->space_begin, text + token_end, size - token_end, &found, &from, &to));
        if (found)
            *end = token_end + to;
    }
    *ret_taken = true;
out:
    return rc;
}

static int search_pass(const struct search *s, int pass, const char *text, size_t size);

/* Sets ret_place to the place in the normalised text that corresponds to `at` in text: the results for both
 * beginnings agree up to there. */
static int place_after(const struct tt_normalizer *n, const char *text, size_t at, const char *normal,
                       size_t normal_size, size_t *ret_place)
{
    struct tt_text scratch = {0};
    const char *part = NULL;
    size_t part_size = 0, same = 0;
    int rc = 0;

    TT_TRY(tt_normalizer_apply(n, &scratch, text, at, &part, &part_size));
    while (same < part_size && same < normal_size && part[same] == normal[same])
        same++;
    *ret_place = same;
out:
    tt_text_release(&scratch);
    return rc;
}

/* Turns passages of text into passages of the normalised text. */
static int follow_passages(const struct tt_normalizer *n, const char *text, const char *normal, size_t normal_size,
                           struct tt_passages *passages)
{
    int rc = 0;

    for (size_t i = 0; i < passages->n; i++) {
        TT_TRY(place_after(n, text, passages->item[i].begin, normal, normal_size, &passages->item[i].begin));
        TT_TRY(place_after(n, text, passages->item[i].end, normal, normal_size, &passages->item[i].end));
    }
out:
    return rc;
}

/* Passes on the piece of `size` bytes at `at` in the pass's text. */
static int emit(const struct search *s, int32_t id, const char *text, size_t at, size_t size)
{
    struct tt_passages passages = {0};
    int rc;

    cut_passages(s->passages, at, size, &passages);
    rc = s->fn(s->arg, id, text + at, size, s->is_first && at == 0, &passages);
    tt_passages_release(&passages);
    return rc;
}

static int emit_text(const struct search *s, int pass, const char *text, size_t at, size_t size)
{
    struct search inner = *s;
    struct tt_text scratch = {0};
    struct tt_passages passages = {0};
    const char *normal = NULL;
    size_t normal_size = 0;
    int rc = 0;

    if (!size)
        return 0;
    if (pass == 1)
        return emit(s, -1, text, at, size);
    inner.is_first = s->is_first && at == 0;
    inner.passages = &passages;
    TT_TRY(tt_normalizer_apply(&s->added->normalizer, &scratch, text + at, size, &normal, &normal_size));
    cut_passages(s->passages, at, size, &passages);
    if (normal != text + at)
        TT_TRY(follow_passages(&s->added->normalizer, text + at, normal, normal_size, &passages));
    TT_TRY(search_pass(&inner, 1, normal, normal_size));
out:
    tt_text_release(&scratch);
    tt_passages_release(&passages);
    return rc;
}

static int search_pass(const struct search *s, int pass, const char *text, size_t size)
{
    size_t done = 0;
    int rc = 0;

    if (!s->added->n_lengths[pass])
        return emit_text(s, pass, text, 0, size);
    for (size_t i = 0; i < size;) {
        size_t begin = i, end, length = 0;
        const struct tt_added_token *t = token_at(s->added, pass, text + i, size - i, &length);
        bool taken = false;

        if (!t) {
            i++;
            continue;
        }
        end = i + length;
        i = end; /* even a refused match must not overlap the next one */
        TT_TRY(apply_flags(s, t, text, size, done, &begin, &end, &taken));
        if (!taken)
            continue;
        if (done < begin)
            TT_TRY(emit_text(s, pass, text, done, begin - done));
        TT_TRY(emit(s, t->id, text, begin, end - begin));
        done = end;
    }
    if (done < size)
        TT_TRY(emit_text(s, pass, text, done, size - done));
out:
    return rc;
}

int tt_added_split(const struct tt_added *added, struct tt_matcher *matcher, bool find_special, const char *text,
                   size_t size, const struct tt_passages *passages, tt_added_fn fn, void *arg)
{
    struct search s = {added, matcher, find_special, true, passages, fn, arg};

    return search_pass(&s, 0, text, size);
}

const struct tt_added_token *tt_added_at(const struct tt_added *added, const char *text, size_t size)
{
    const struct tt_added_token *found = NULL;

    for (int i = 0; i < added->n; i++) {
        const struct tt_added_token *t = &added->token[i];

        if (t->size <= size && (!found || t->size > found->size) && memcmp(text, t->content, t->size) == 0)
            found = t;
    }
    return found;
}

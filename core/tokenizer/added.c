/* SPDX-License-Identifier: MIT
 *
 * Added tokens: the longest leftmost match over raw text, with the flags of Hugging Face's format. Tokens that are not
 * "normalized" are searched for first, the others in the remaining text, after the normalizer.
 */
#include "core/tokenizer/added.h"

#include <string.h>

#include "core/base/mem.h"

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

/* A word character of Rust's regular expressions; \w of PCRE2 and of Oniguruma differ. */
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
    const struct tt_passages *passages; /* of the text of the pass */
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

/* Applies single_word, lstrip and rstrip to a token at [begin, end): extends it by white space, or refuses it. */
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

/* Sets ret_place to where the normaliser puts what is at `at` of text: up to there both begin with the same. */
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

/* The passages of text as those of the normalised text. */
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

/* Gives on the piece of `size` bytes at `at` of the pass's text. */
static int emit(const struct search *s, int32_t id, const char *text, size_t at, size_t size)
{
    struct tt_passages passages = {0};
    int rc;

    tt_passages_cut(s->passages, at, size, &passages);
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
    tt_passages_cut(s->passages, at, size, &passages);
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
        i = end; /* matches never overlap, even if this one is refused */
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

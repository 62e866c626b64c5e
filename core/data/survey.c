/* SPDX-License-Identifier: MIT
 *
 * Counts what is in a corpus, document by document.
 */
#include "core/data/survey.h"

#include <stdlib.h>

#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/base/utf8.h"

/* Blocks of letters, in order. Digits, punctuation, symbols and marks are in none. */
static const struct {
    uint32_t first, last;
    int script;
} blocks[] = {
    {0x41, 0x5a, 0},      {0x61, 0x7a, 0},      {0xaa, 0xaa, 0},       {0xba, 0xba, 0},      {0xc0, 0xd6, 0},
    {0xd8, 0xf6, 0},      {0xf8, 0x24f, 0},     {0x370, 0x3ff, 1},     {0x400, 0x52f, 2},    {0x531, 0x58f, 3},
    {0x5d0, 0x5f2, 4},    {0x620, 0x64a, 5},    {0x66e, 0x6d3, 5},     {0x6fa, 0x6ff, 5},    {0x750, 0x77f, 5},
    {0x904, 0x939, 6},    {0x958, 0x961, 6},    {0x985, 0x9b9, 7},     {0xb85, 0xbb9, 8},    {0xc05, 0xc39, 9},
    {0xe01, 0xe30, 10},   {0xe40, 0xe46, 10},   {0xf40, 0xf6c, 16},    {0x10a0, 0x10ff, 11}, {0x1100, 0x11ff, 12},
    {0x1200, 0x137f, 13}, {0x1e00, 0x1eff, 0},  {0x1f00, 0x1fff, 1},   {0x3041, 0x309f, 14}, {0x30a1, 0x30ff, 14},
    {0x3400, 0x4dbf, 15}, {0x4e00, 0x9fff, 15}, {0xac00, 0xd7a3, 12},  {0xf900, 0xfaff, 15}, {0xff21, 0xff3a, 0},
    {0xff41, 0xff5a, 0},  {0xff66, 0xff9d, 14}, {0x20000, 0x323af, 15}};

static const char *const scripts[TT_SURVEY_SCRIPTS] = {
    "Latin",  "Greek", "Cyrillic", "Armenian", "Hebrew",   "Arabic", "Devanagari", "Bengali", "Tamil",
    "Telugu", "Thai",  "Georgian", "Hangul",   "Ethiopic", "Kana",   "Han",        "Tibetan", "other"};

const char *tt_survey_script(int number)
{
    return scripts[number];
}

/* The script of a letter beyond ASCII; -1: it is no letter. */
static int script_of(uint32_t code)
{
    int low = 0, high = (int)(sizeof blocks / sizeof *blocks) - 1;

    while (low <= high) {
        int middle = (low + high) / 2;

        if (code < blocks[middle].first)
            high = middle - 1;
        else if (code > blocks[middle].last)
            low = middle + 1;
        else
            return blocks[middle].script;
    }
    return (code >= 0x700 && code < 0x2000) || (code >= 0xa000 && code < 0xac00) ? TT_SURVEY_SCRIPTS - 1 : -1;
}

static bool is_odd(uint32_t code)
{
    return (code < 0x20 && code != '\t' && code != '\n' && code != '\r' && code != '\f') ||
           (code >= 0x7f && code < 0xa0) || (code >= 0xe000 && code < 0xf900) || code == 0xfffd || code == 0xfeff ||
           (code & 0xfffe) == 0xfffe || code >= 0xe0000;
}

static void count_letters(struct tt_survey *s, const char *text, size_t size)
{
    for (size_t i = 0; i < size;) {
        uint32_t code = (unsigned char)text[i];
        int n = 1, script;

        if (code >= 0x80) {
            n = tt_utf8_decode(text + i, size - i, &code);
            n = n ? n : 1;
        }
        script = code >= 0x80 ? script_of(code) : (code | 0x20) >= 'a' && (code | 0x20) <= 'z' ? 0 : -1;
        if (script >= 0) {
            s->letters++;
            s->letters_of[script]++;
        }
        s->odd_bytes += is_odd(code) ? n : 0;
        i += (size_t)n;
    }
}

/* Where the hash is, or could be. */
static struct tt_survey_hash *place(const struct tt_survey *s, const struct tt_survey_hash *h)
{
    size_t i = h->part[0] & (s->hash_cap - 1);

    while ((s->hash[i].part[0] || s->hash[i].part[1]) &&
           (s->hash[i].part[0] != h->part[0] || s->hash[i].part[1] != h->part[1]))
        i = (i + 1) & (s->hash_cap - 1);
    return &s->hash[i];
}

static void grow(struct tt_survey *s)
{
    struct tt_survey_hash *old = s->hash;
    size_t old_cap = s->hash_cap;

    s->hash_cap = old_cap ? 2 * old_cap : 1024;
    s->hash = tt_calloc(s->hash_cap, sizeof *s->hash);
    for (size_t i = 0; i < old_cap; i++)
        if (old[i].part[0] || old[i].part[1])
            *place(s, &old[i]) = old[i];
    tt_free(old);
}

bool tt_survey_add(struct tt_survey *survey, const char *text, size_t size)
{
    struct tt_survey_hash h = {{tt_hash64(text, size, 0), tt_hash64(text, size, 1) | 1}}, *at;
    bool is_known;

    if (2 * survey->n_hashes >= survey->hash_cap)
        grow(survey);
    at = place(survey, &h);
    is_known = at->part[1] != 0;
    *at = h;
    survey->n_hashes += !is_known;
    survey->duplicates += is_known;
    survey->duplicate_bytes += is_known ? (int64_t)size : 0;
    survey->empty += size == 0;
    survey->bytes += (int64_t)size;
    survey->is_sorted = false;
    TT_PUSH(survey->length, survey->documents, survey->cap) = (int64_t)size;
    count_letters(survey, text, size);
    return is_known;
}

void tt_survey_release(struct tt_survey *survey)
{
    tt_free(survey->length);
    tt_free(survey->hash);
    *survey = (struct tt_survey){0};
}

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

int64_t tt_survey_length(struct tt_survey *survey, double share)
{
    int64_t i = (int64_t)(share * (double)survey->documents);

    if (!survey->documents)
        return 0;
    if (!survey->is_sorted)
        qsort(survey->length, (size_t)survey->documents, sizeof *survey->length, compare);
    survey->is_sorted = true;
    return survey->length[i < survey->documents ? i : survey->documents - 1];
}

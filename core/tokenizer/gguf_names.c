/* SPDX-License-Identifier: MIT
 *
 * The names that llama.cpp has for the expressions by which tokenizers cut text into words. Its own expressions are
 * other spellings of these, since its engine lacks parts of theirs.
 */
#include "core/tokenizer/gguf_names.h"

#include <string.h>

#include "core/base/mem.h"

#define END_OF_TEXT               "\\s+(?!\\S)|\\s+"
#define ENGLISH                   "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LETTERS                   "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define OTHERS                    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" END_OF_TEXT
#define GPT2                      "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|" END_OF_TEXT
#define UPPER                     "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER                     "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(first, second, end) "[^\\r\\n\\p{L}\\p{N}]?" UPPER first LOWER second end
#define SLASHES                   " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|" END_OF_TEXT
#define DIGIT                     "Digits"

enum { MOST_STEPS = 3 };

/* A name, and the expressions in their order; DIGIT: each digit is a word. Of two with the same ones, the first that
 * says the same about merges counts. */
static const struct pre {
    const char *name;
    bool ignores_merges;
    const char *step[MOST_STEPS];
} pres[] = {
    {"llama-bpe", true, {ENGLISH "|" LETTERS "|\\p{N}{1,3}|" OTHERS}},
    {"dbrx", false, {ENGLISH "|" LETTERS "|\\p{N}{1,3}|" OTHERS}},
    {"qwen2", false, {ENGLISH "|" LETTERS "|\\p{N}|" OTHERS}},
    {"qwen35",
     false,
     {ENGLISH
      "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" END_OF_TEXT}},
    {"gpt-2", false, {GPT2}},
    {"smollm", false, {DIGIT, GPT2}},
    {"tekken", true, {CASED("*", "+", "") "|" CASED("+", "*", "") "|\\p{N}|" SLASHES}},
    {"gpt-4o", false, {CASED("*", "+", ENGLISH "?") "|" CASED("+", "*", ENGLISH "?") "|\\p{N}{1,3}|" SLASHES}},
    {"deepseek-v3",
     false,
     {"\\p{N}{1,3}", "[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
      "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"}},
};

enum { N_PRES = sizeof pres / sizeof *pres };

/* Names of files of llama.cpp's that mean the same. */
static const char *const same_pres[][2] = {
    {"llama3", "llama-bpe"},       {"llama-v3", "llama-bpe"}, {"smaug-bpe", "dbrx"},
    {"deepseek-r1-qwen", "qwen2"}, {"llama4", "gpt-4o"},
};

/* The expressions of a pre_tokenizer; false: a step that no row has. */
static bool find_steps(const json_t *json, const char **step, int *n)
{
    const char *type = json_string_value(json_object_get(json, "type"));
    const json_t *list = json_object_get(json, "pretokenizers"), *regex;

    if (!type || *n >= MOST_STEPS + 1)
        return false;
    if (strcmp(type, "Sequence") == 0) {
        for (size_t i = 0; i < json_array_size(list); i++)
            if (!find_steps(json_array_get(list, i), step, n))
                return false;
        return true;
    }
    if (strcmp(type, "ByteLevel") == 0) {
        if (json_is_true(json_object_get(json, "add_prefix_space")))
            return false;
        if (!json_is_false(json_object_get(json, "use_regex")))
            step[(*n)++] = GPT2;
        return true;
    }
    if (strcmp(type, "Digits") == 0 && json_is_true(json_object_get(json, "individual_digits"))) {
        step[(*n)++] = DIGIT;
        return true;
    }
    regex = json_object_get(json_object_get(json, "pattern"), "Regex");
    if (strcmp(type, "Split") != 0 || !json_is_string(regex))
        return false;
    step[(*n)++] = json_string_value(regex);
    return true;
}

static bool has_steps(const struct pre *pre, const char *const *step, int n)
{
    for (int i = 0; i < MOST_STEPS; i++)
        if ((i < n) != (pre->step[i] != NULL) || (i < n && strcmp(step[i], pre->step[i]) != 0))
            return false;
    return n <= MOST_STEPS;
}

int tt_gguf_pre_name(const json_t *pre_tokenizer, bool ignores_merges, const char *where, const char **ret_name)
{
    const char *step[MOST_STEPS + 1] = {0};
    int n = 0;
    bool known = find_steps(pre_tokenizer, step, &n);

    *ret_name = NULL;
    for (int i = 0; i < N_PRES && known; i++)
        if (has_steps(&pres[i], step, n) && (!*ret_name || pres[i].ignores_merges == ignores_merges))
            *ret_name = pres[i].name;
    if (*ret_name)
        return 0;
    return tt_fail(TT_EDATA,
                   "%s: llama.cpp has no name for the way in which this tokenizer cuts text into words%s%s%s\n"
                   "help: --format hf writes the model for transformers",
                   where, n ? ": '" : "", n ? step[n - 1] : "", n ? "'" : "");
}

static const struct pre *find_pre(const char *name)
{
    for (size_t i = 0; i < sizeof same_pres / sizeof *same_pres; i++)
        if (strcmp(same_pres[i][0], name) == 0)
            name = same_pres[i][1];
    for (int i = 0; i < N_PRES; i++)
        if (strcmp(pres[i].name, name) == 0)
            return &pres[i];
    return NULL;
}

bool tt_gguf_pre_begins(const char *name)
{
    const struct pre *pre = find_pre(name);

    return pre && (strcmp(pre->name, "llama-bpe") == 0 || strcmp(pre->name, "tekken") == 0);
}

int tt_gguf_pre_tokenizer(const char *name, const char *where, json_t **ret_json, bool *ret_ignores_merges)
{
    const struct pre *pre = find_pre(name);
    json_t *steps;

    if (!pre)
        return tt_fail(TT_EDATA,
                       "%s: titan does not know the pre-tokenizer '%s' of llama.cpp\n"
                       "help: take the tokenizer in Hugging Face's format",
                       where, name);
    steps = json_array();
    for (int i = 0; i < MOST_STEPS && pre->step[i]; i++)
        (void)json_array_append_new(steps,
                                    strcmp(pre->step[i], DIGIT) == 0
                                        ? json_pack("{s:s, s:b}", "type", "Digits", "individual_digits", true)
                                        : json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex",
                                                    pre->step[i], "behavior", "Isolated", "invert", false));
    (void)json_array_append_new(steps, json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", false,
                                                 "trim_offsets", true, "use_regex", false));
    *ret_json = json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", steps);
    *ret_ignores_merges = pre->ignores_merges;
    return 0;
}

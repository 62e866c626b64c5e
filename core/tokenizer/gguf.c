/* SPDX-License-Identifier: MIT
 *
 * Makes the files of a tokenizer from the values of a GGUF file. A file that titan wrote contains a tokenizer.json; for
 * other files, this makes one from the tokens, and from the merges or the scores.
 */
#include "core/tokenizer/gguf.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/utf8.h"
#include "core/tokenizer/strmap.h"

/* --- llama.cpp's names for the expressions that cut text into words; its own expressions are other spellings of these
 * --- */

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
#define HAN                       "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

/* DeepSeek's first tokenizers list the cased letters, but not all of Unicode's: Georgian, phonetic and mathematical
 * letters are missing. */
#define CASED_LETTER                                                               \
    "(?:(?![\u0560\u0588\u10c7-\u10ff\u1c80-\u1c8a\u2d00-\u2d2d\ua790-\ua7fa"      \
    "\uab30-\uab68\U00010570-\U000105bc\U00010d50-\U00010d85\U00016e40-\U00016e7f" \
    "\U0001d400-\U0001d7cb\U0001df00-\U0001df1e])\\p{L&})"

enum { MOST_STEPS = 6 };

/* A name, and its expressions in order; DIGIT: each digit is a word. If two rows have the same expressions, the first
 * one with the right rule for merges is used. */
static const struct pre {
    const char *name;
    bool ignores_merges;
    bool nfc; /* its models were trained on text in the normal form NFC, which the file does not mention */
    const char *step[MOST_STEPS];
} pres[] = {
    {"llama-bpe", true, false, {ENGLISH "|" LETTERS "|\\p{N}{1,3}|" OTHERS}},
    {"dbrx", false, false, {ENGLISH "|" LETTERS "|\\p{N}{1,3}|" OTHERS}},
    {"qwen2", false, true, {ENGLISH "|" LETTERS "|\\p{N}|" OTHERS}},
    {"deepseek-r1-qwen", false, false, {ENGLISH "|" LETTERS "|\\p{N}|" OTHERS}},
    {"qwen35",
     false,
     false,
     {ENGLISH
      "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|" END_OF_TEXT}},
    {"gpt-2", false, false, {GPT2}},
    {"mpt", false, true, {GPT2}},
    {"smollm", false, false, {DIGIT, GPT2}},
    {"command-r", false, true, {DIGIT, GPT2}},
    {"tekken", true, false, {CASED("*", "+", "") "|" CASED("+", "*", "") "|\\p{N}|" SLASHES}},
    {"gpt-4o", false, false, {CASED("*", "+", ENGLISH "?") "|" CASED("+", "*", ENGLISH "?") "|\\p{N}{1,3}|" SLASHES}},
    {"seed-coder", false, false, {ENGLISH "|" LETTERS "|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\r\n]+|\\s*[\r\n]+|" END_OF_TEXT}},
    {"deepseek-llm",
     false,
     false,
     {"[\r\n]", "\\s?" CASED_LETTER "+", "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", "\\s+$",
      HAN, DIGIT}},
    {"deepseek-coder", false, false, {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", HAN, DIGIT}},
    {"deepseek-v3",
     false,
     false,
     {"\\p{N}{1,3}", "[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+",
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
      "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"}},
};

enum { N_PRES = sizeof pres / sizeof *pres };

/* Other names in llama.cpp's files with the same meaning. */
static const char *const same_pres[][2] = {
    {"llama3", "llama-bpe"}, {"llama-v3", "llama-bpe"}, {"falcon3", "llama-bpe"}, {"smaug-bpe", "dbrx"},
    {"glm4", "dbrx"},        {"chatglm-bpe", "dbrx"},   {"llama4", "gpt-4o"},     {"phi-2", "gpt-2"},
    {"olmo", "mpt"},         {"starcoder", "smollm"},   {"refact", "smollm"},     {"codeshell", "smollm"},
};

/* The expressions of a pre_tokenizer; false: it has a step that no row contains. */
static bool find_steps(const json_t *json, const char **step, int *n)
{
    const char *type = json_string_value(json_object_get(json, "type"));
    const char *behavior = json_string_value(json_object_get(json, "behavior"));
    const json_t *list = json_object_get(json, "pretokenizers"), *regex;

    if (behavior && strcmp(behavior, "Isolated") != 0 &&
        !(strcmp(behavior, "Removed") == 0 && json_is_true(json_object_get(json, "invert"))))
        return false; /* the expressions below match any text, so nothing remains to be removed */
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
    bool known = find_steps(pre_tokenizer, step, &n), same = false;

    *ret_name = NULL;
    for (int i = 0; i < N_PRES && known && !same; i++) {
        if (!has_steps(&pres[i], step, n))
            continue;
        same = pres[i].ignores_merges == ignores_merges;
        if (!*ret_name || same)
            *ret_name = pres[i].name;
    }
    if (*ret_name)
        return 0;
    return tt_fail(TT_EDATA,
                   "%s: llama.cpp has no name for this tokenizer's way of cutting text into words%s%s%s\n"
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

/* Whether llama.cpp begins texts with BOS if the pre-tokenizer has this name and the file does not say. */
static bool begins_by_name(const char *name)
{
    const struct pre *pre = find_pre(name);

    return pre && (strcmp(pre->name, "llama-bpe") == 0 || strcmp(pre->name, "tekken") == 0);
}

int tt_gguf_pre_tokenizer(const char *name, const char *where, json_t **ret_json, bool *ret_ignores_merges,
                          bool *ret_nfc)
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
    *ret_nfc = pre->nfc;
    return 0;
}

/* --- reading --- */

/* The tokens of a file. */
struct tokens {
    const struct tt_gguf *file;
    int64_t n;
    const char **text;
    size_t *size;
    const struct tt_gguf_value *type, *score; /* may be NULL */
    struct tt_strmap id_of;                   /* ids of normal tokens */
};

static int32_t type_of(const struct tokens *t, int64_t id)
{
    return t->type ? tt_gguf_i32_at(t->type, id) : TT_GGUF_NORMAL;
}

static void release(struct tokens *t)
{
    tt_free(t->text);
    tt_free(t->size);
    tt_strmap_release(&t->id_of);
}

/* A JSON tree cannot contain a key with a zero character, and every text must be UTF-8. */
static int check_text(const struct tokens *t, int64_t id)
{
    size_t at = 0;
    uint32_t code;

    while (at < t->size[id]) {
        int n = tt_utf8_decode(t->text[id] + at, t->size[id] - at, &code);

        if (n <= 0 || code == 0)
            return tt_fail(TT_EDATA, "'%s': token %lld is not a text in UTF-8", t->file->path, (long long)id);
        at += (size_t)n;
    }
    return 0;
}

static int read_tokens(struct tokens *t)
{
    const struct tt_gguf_value *list = NULL;
    size_t at = 0;
    int rc = 0;

    TT_TRY(tt_gguf_array(t->file, "tokenizer.ggml.tokens", TT_GGUF_STRING, &list));
    TT_TRY(tt_gguf_array(t->file, "tokenizer.ggml.token_type", TT_GGUF_I32, &t->type));
    TT_TRY(tt_gguf_array(t->file, "tokenizer.ggml.scores", TT_GGUF_F32, &t->score));
    if (!list || list->n == 0)
        return tt_fail(TT_EDATA, "'%s' has no tokens (tokenizer.ggml.tokens)", t->file->path);
    if ((t->type && t->type->n != list->n) || (t->score && t->score->n != list->n))
        return tt_fail(TT_EDATA, "'%s' is damaged: it has %lld tokens, but not the same number of types or scores",
                       t->file->path, (long long)list->n);
    t->n = list->n;
    t->text = tt_calloc_for((size_t)t->n, sizeof *t->text, t->file->path);
    t->size = tt_calloc_for((size_t)t->n, sizeof *t->size, t->file->path);
    TT_TRY(t->text && t->size ? 0 : TT_ENOMEM);
    for (int64_t id = 0; id < t->n; id++) {
        t->text[id] = tt_gguf_next_string(list, &at, &t->size[id]);
        TT_TRY(check_text(t, id));
        if (type_of(t, id) != TT_GGUF_UNUSED)
            tt_strmap_set(&t->id_of, t->text[id], t->size[id], id);
    }
out:
    return rc;
}

static json_t *text_json(const struct tokens *t, int64_t id)
{
    return json_stringn(t->text[id], t->size[id]);
}

static json_t *vocab_of(const struct tokens *t)
{
    json_t *vocab = json_object();

    for (int64_t id = 0; id < t->n; id++) {
        char *key = tt_strndup(t->text[id], t->size[id]);

        if (type_of(t, id) != TT_GGUF_UNUSED)
            (void)json_object_set_new(vocab, key, json_integer((json_int_t)id));
        tt_free(key);
    }
    return vocab;
}

/* Control tokens are special; tokens that a user added are not. */
static json_t *added_of(const struct tokens *t)
{
    json_t *list = json_array();

    for (int64_t id = 0; id < t->n; id++) {
        int32_t type = type_of(t, id);

        if (type == TT_GGUF_CONTROL || type == TT_GGUF_USER_DEFINED || type == TT_GGUF_UNKNOWN)
            (void)json_array_append_new(list, json_pack("{s:I, s:o, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)id,
                                                        "content", text_json(t, id), "single_word", false, "lstrip",
                                                        false, "rstrip", false, "normalized", false, "special",
                                                        type != TT_GGUF_USER_DEFINED));
    }
    return list;
}

/* --- byte-level --- */

static int read_merges(const struct tokens *t, json_t **ret_merges)
{
    const struct tt_gguf_value *list = NULL;
    json_t *merges = NULL;
    size_t at = 0, size = 0;
    int rc = 0;

    TT_TRY(tt_gguf_array(t->file, "tokenizer.ggml.merges", TT_GGUF_STRING, &list));
    if (!list)
        return tt_fail(TT_EDATA, "'%s' has no merges (tokenizer.ggml.merges)", t->file->path);
    merges = json_array();
    for (int64_t i = 0; i < list->n && rc == 0; i++) {
        const char *text = tt_gguf_next_string(list, &at, &size);
        const char *space = memchr(text, ' ', size);
        json_t *pair = space ? json_pack("[o, o]", json_stringn(text, (size_t)(space - text)),
                                         json_stringn(space + 1, size - (size_t)(space - text) - 1))
                             : NULL;

        if (!pair || json_array_append_new(merges, pair) < 0)
            rc = tt_fail(TT_EDATA, "'%s': merge %lld is not two texts", t->file->path, (long long)i);
    }
    *ret_merges = merges;
    merges = NULL;
out:
    json_decref(merges);
    return rc;
}

/*
 * The name of the pre-tokenizer. For files without a name, llama.cpp uses "default", with which no model was trained;
 * the right one is known only for GPT-2.
 */
static int read_pre(const struct tt_gguf *file, char **ret_name)
{
    char *name = NULL, *arch = NULL;
    int rc = 0;

    TT_TRY(tt_gguf_string(file, "tokenizer.ggml.pre", &name));
    TT_TRY(tt_gguf_string(file, "general.architecture", &arch));
    if (name && strcmp(name, "default") != 0) {
        *ret_name = name;
        name = NULL;
    } else if (arch && strcmp(arch, "gpt2") == 0) {
        *ret_name = tt_strdup("gpt-2");
    } else {
        rc = tt_fail(TT_EDATA,
                     "'%s' does not say how its tokenizer cuts text into words (tokenizer.ggml.pre is %s)\n"
                     "help: take the tokenizer in Hugging Face's format, or a newer file of this model",
                     file->path, name ? "'default'" : "missing");
    }
out:
    tt_free(name);
    tt_free(arch);
    return rc;
}

static int byte_level(const struct tokens *t, json_t **ret_json)
{
    json_t *merges = NULL, *pre = NULL;
    bool ignores = false, nfc = false;
    char *name = NULL;
    int rc = 0;

    TT_TRY(read_pre(t->file, &name));
    TT_TRY(tt_gguf_pre_tokenizer(name, t->file->path, &pre, &ignores, &nfc));
    TT_TRY(read_merges(t, &merges));
    *ret_json = json_pack(
        "{s:s, s:o, s:o?, s:O, s:{s:s, s:b, s:b, s:b}, s:{s:s, s:b, s:b, s:o, s:O}}", "version", "1.0", "added_tokens",
        added_of(t), "normalizer", nfc ? json_pack("{s:s}", "type", "NFC") : NULL, "pre_tokenizer", pre, "decoder",
        "type", "ByteLevel", "add_prefix_space", true, "trim_offsets", true, "use_regex", true, "model", "type", "BPE",
        "ignore_merges", ignores, "byte_fallback", false, "vocab", vocab_of(t), "merges", merges);
out:
    json_decref(merges);
    json_decref(pre);
    tt_free(name);
    return rc;
}

/* --- SentencePiece --- */

/* Far longer than any token that SentencePiece makes; titan tries all ways to cut a token. */
enum { TOKEN_BYTES_MOST = 4096 };

/* A token as the union of two others. */
struct join {
    float score;
    int64_t id, left, right;
};

static int compare_joins(const void *pa, const void *pb)
{
    const struct join *a = pa, *b = pb;

    if (a->score != b->score)
        return a->score > b->score ? -1 : 1;
    if (a->id != b->id)
        return a->id < b->id ? -1 : 1;
    return a->left != b->left ? (a->left < b->left ? -1 : 1) : (a->right > b->right) - (a->right < b->right);
}

/* All ways to join two tokens, in the order in which they are tried: by the score of the union. */
static json_t *joins_of(const struct tokens *t)
{
    json_t *merges = json_array();
    struct join *join = NULL;
    int n = 0, cap = 0;

    for (int64_t id = 0; id < t->n; id++)
        for (size_t i = 1; i < t->size[id] && type_of(t, id) == TT_GGUF_NORMAL; i++) {
            int64_t left = tt_strmap_get(&t->id_of, t->text[id], i, -1);
            int64_t right = tt_strmap_get(&t->id_of, t->text[id] + i, t->size[id] - i, -1);

            if (left >= 0 && right >= 0 && type_of(t, left) == TT_GGUF_NORMAL && type_of(t, right) == TT_GGUF_NORMAL)
                TT_PUSH(join, n, cap) = (struct join){tt_gguf_f32_at(t->score, id), id, left, right};
        }
    if (n)
        qsort(join, (size_t)n, sizeof *join, compare_joins);
    for (int i = 0; i < n; i++)
        (void)json_array_append_new(merges,
                                    json_pack("[o, o]", text_json(t, join[i].left), text_json(t, join[i].right)));
    tt_free(join);
    return merges;
}

/* Marks for spaces; prefix: and one before every text, even if it begins with a space. */
static json_t *marks_normalizer(bool prefix)
{
    json_t *steps = json_array();

    if (prefix)
        (void)json_array_append_new(steps, json_pack("{s:s, s:s}", "type", "Prepend", "prepend", TT_GGUF_MARK));
    (void)json_array_append_new(
        steps, json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", " ", "content", TT_GGUF_MARK));
    return json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", steps);
}

static int sentencepiece(const struct tokens *t, json_t **ret_json)
{
    const int64_t none = -1;
    bool prefix = true;
    int64_t unknown = -1;
    int rc = 0;

    if (!t->score)
        return tt_fail(TT_EDATA, "'%s' has no scores (tokenizer.ggml.scores)", t->file->path);
    for (int64_t id = 0; id < t->n; id++)
        if (type_of(t, id) == TT_GGUF_NORMAL && t->size[id] > TOKEN_BYTES_MOST)
            return tt_fail(TT_EDATA, "'%s': token %lld has %zu bytes, wanted at most %d", t->file->path, (long long)id,
                           t->size[id], TOKEN_BYTES_MOST);
    TT_TRY(tt_gguf_bool(t->file, "tokenizer.ggml.add_space_prefix", &prefix, &prefix));
    TT_TRY(tt_gguf_int(t->file, "tokenizer.ggml.unknown_token_id", &none, &unknown));
    *ret_json = json_pack(
        "{s:s, s:o, s:o, s:n, s:{s:s, s:[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}, {s:s, s:s, s:i, s:i}]}, "
        "s:{s:s, s:b, s:b, s:o?, s:o, s:o}}",
        "version", "1.0", "added_tokens", added_of(t), "normalizer", marks_normalizer(prefix), "pre_tokenizer",
        "decoder", "type", "Sequence", "decoders", "type", "Replace", "pattern", "String", TT_GGUF_MARK, "content", " ",
        "type", "ByteFallback", "type", "Fuse", "type", "Strip", "content", " ", "start", prefix ? 1 : 0, "stop", 0,
        "model", "type", "BPE", "byte_fallback", true, "fuse_unk", true, "unk_token",
        unknown >= 0 && unknown < t->n ? text_json(t, unknown) : NULL, "vocab", vocab_of(t), "merges", joins_of(t));
out:
    return rc;
}

/* Makes a tokenizer.json from the tokens of a file. */
static int make_json(const struct tt_gguf *file, json_t **ret_json)
{
    struct tokens t = {.file = file};
    char *model = NULL;
    int rc = 0;

    TT_TRY(tt_gguf_string(file, "tokenizer.ggml.model", &model));
    TT_TRY(read_tokens(&t));
    if (model && strcmp(model, "gpt2") == 0)
        rc = byte_level(&t, ret_json);
    else if (model && strcmp(model, "llama") == 0)
        rc = sentencepiece(&t, ret_json);
    else
        rc = tt_fail(TT_EDATA, "'%s': the tokenizer '%s' is not supported; gpt2 and llama are", file->path,
                     model ? model : "(none)");
out:
    release(&t);
    tt_free(model);
    return rc;
}

/* --- the files --- */

/* The token of a key, as a name for tokenizer_config.json; NULL if there is none. */
static int special_of(const struct tt_gguf *file, const char *key, json_t **ret_name)
{
    const int64_t none = -1;
    struct tokens t = {.file = file};
    int64_t id = -1;
    int rc = 0;

    TT_TRY(tt_gguf_int(file, key, &none, &id));
    if (id < 0)
        goto out;
    TT_TRY(read_tokens(&t));
    if (id >= t.n)
        rc = tt_fail(TT_EDATA, "'%s': '%s' is %lld, but there are only %lld tokens", file->path, key, (long long)id,
                     (long long)t.n);
    else
        *ret_name = text_json(&t, id);
out:
    release(&t);
    return rc;
}

/* Whether a text begins with BOS: as the file says, else by llama.cpp's rule. */
static int read_begins(const struct tt_gguf *file, bool *ret_begins)
{
    char *model = NULL, *pre = NULL;
    bool unsaid = false;
    int rc = 0;

    TT_TRY(tt_gguf_string(file, "tokenizer.ggml.model", &model));
    TT_TRY(tt_gguf_string(file, "tokenizer.ggml.pre", &pre));
    unsaid = model && (strcmp(model, "llama") == 0 || (strcmp(model, "gpt2") == 0 && pre && begins_by_name(pre)));
    TT_TRY(tt_gguf_bool(file, "tokenizer.ggml.add_bos_token", &unsaid, ret_begins));
out:
    tt_free(model);
    tt_free(pre);
    return rc;
}

/* The file may say that a text begins with BOS although its tokenizer.json does not. Returns true in that case. */
static bool add_bos(json_t *root, json_t *bos, int64_t id)
{
    const char *type = json_string_value(json_object_get(json_object_get(root, "post_processor"), "type"));
    const char *name = json_string_value(bos);
    bool lacks = !type || strcmp(type, "ByteLevel") == 0;
    json_t *own = json_pack(
        "{s:s, s:[{s:{s:O, s:i}}, {s:{s:s, s:i}}], s:[{s:{s:O, s:i}}, {s:{s:s, s:i}}, {s:{s:s, s:i}}], "
        "s:{s:{s:O, s:[I], s:[O]}}}",
        "type", "TemplateProcessing", "single", "SpecialToken", "id", bos, "type_id", 0, "Sequence", "id", "A",
        "type_id", 0, "pair", "SpecialToken", "id", bos, "type_id", 0, "Sequence", "id", "A", "type_id", 0, "Sequence",
        "id", "B", "type_id", 1, "special_tokens", name, "id", bos, "ids", (json_int_t)id, "tokens", bos);

    if (lacks)
        (void)json_object_set(root, "post_processor", own);
    json_decref(own);
    return lacks;
}

static int tokenizer_json(const struct tt_gguf *file, char **ret_text, size_t *ret_size)
{
    const int64_t none = -1;
    json_t *root = NULL, *bos = NULL;
    char *text = NULL;
    bool begins = false, added;
    int64_t id = -1;
    int rc = 0;

    TT_TRY(tt_gguf_string(file, "tokenizer.huggingface.json", &text));
    if (text)
        TT_TRY(tt_json_parse(text, strlen(text), file->path, &root));
    else
        TT_TRY(make_json(file, &root));
    TT_TRY(read_begins(file, &begins));
    TT_TRY(tt_gguf_int(file, "tokenizer.ggml.bos_token_id", &none, &id));
    TT_TRY(special_of(file, "tokenizer.ggml.bos_token_id", &bos));
    added = begins && bos && add_bos(root, bos, id);
    if (text && !added) { /* unchanged, so that titan still recognizes data that were packed with this tokenizer */
        *ret_text = text;
        text = NULL;
    } else {
        *ret_text = tt_json_text(root);
    }
    *ret_size = strlen(*ret_text);
out:
    json_decref(root);
    json_decref(bos);
    tt_free(text);
    return rc;
}

static int tokenizer_config(const struct tt_gguf *file, char **ret_text, size_t *ret_size)
{
    json_t *bos = NULL, *eos = NULL, *config = NULL;
    int rc = 0;

    TT_TRY(special_of(file, "tokenizer.ggml.bos_token_id", &bos));
    TT_TRY(special_of(file, "tokenizer.ggml.eos_token_id", &eos));
    config = json_pack("{s:O*, s:O*, s:s}", "bos_token", bos, "eos_token", eos, "tokenizer_class",
                       "PreTrainedTokenizerFast");
    *ret_text = tt_json_text(config);
    *ret_size = strlen(*ret_text);
out:
    json_decref(bos);
    json_decref(eos);
    json_decref(config);
    return rc;
}

/* "none": llama.cpp expects ids. */
static int has_tokenizer(const struct tt_gguf *file, bool *ret_has)
{
    char *model = NULL;
    int rc = tt_gguf_string(file, "tokenizer.ggml.model", &model);

    *ret_has = model && strcmp(model, "none") != 0 && strcmp(model, "no_vocab") != 0;
    tt_free(model);
    return rc;
}

int tt_gguf_tokenizer_file(const struct tt_gguf *file, const char *name, char **ret_text, size_t *ret_size)
{
    bool has_one = false;
    int rc = 0;

    *ret_text = NULL;
    *ret_size = 0;
    TT_TRY(has_tokenizer(file, &has_one));
    if (has_one && strcmp(name, "tokenizer.json") == 0)
        rc = tokenizer_json(file, ret_text, ret_size);
    else if (has_one && strcmp(name, "tokenizer_config.json") == 0)
        rc = tokenizer_config(file, ret_text, ret_size);
    else if (strcmp(name, "chat_template.jinja") == 0)
        rc = tt_gguf_string(file, "tokenizer.chat_template", ret_text);
    *ret_size = rc == 0 && *ret_text && !*ret_size ? strlen(*ret_text) : *ret_size;
out:
    return rc;
}

int tt_gguf_tokenizer_load(const char *path, const char *name, char **ret_text, size_t *ret_size)
{
    struct tt_gguf file = {0};
    int rc = tt_gguf_open(path, &file);

    if (rc == 0)
        rc = tt_gguf_tokenizer_file(&file, name, ret_text, ret_size);
    tt_gguf_release(&file);
    return rc;
}

int tt_gguf_has_tokenizer(const char *path, bool *ret_has)
{
    struct tt_gguf file = {0};
    int rc = tt_gguf_open(path, &file);

    if (rc == 0)
        rc = has_tokenizer(&file, ret_has);
    tt_gguf_release(&file);
    return rc;
}

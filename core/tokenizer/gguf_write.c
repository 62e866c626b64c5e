/* SPDX-License-Identifier: MIT
 *
 * Writes a tokenizer as values of a GGUF file. llama.cpp implements byte-level BPE ("gpt2"), exactly as `tokenizers`
 * does, and SentencePiece's ("llama"), which merges the two neighbours whose union is the token with the highest score,
 * even if there is no merge for these two. The scores written here follow the order of the merges.
 */
#include <stdlib.h>
#include <string.h>

#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/tokenizer/gguf.h"
#include "core/tokenizer/strmap.h"
#include "core/tokenizer/tokenizer.h"

/* A token in the form of the file. */
struct token {
    char *text;
    size_t size;
    int32_t type;
    float score;
};

struct vocabulary {
    const struct tt_tokenizer *tokenizer;
    const char *where;
    json_t *root;
    int64_t n;
    struct token *token;
    struct tt_strmap id_of; /* text -> id, for the operands and results of merges */
};

static void release(struct vocabulary *v)
{
    for (int64_t i = 0; i < v->n; i++)
        tt_free(v->token[i].text);
    tt_free(v->token);
    tt_strmap_release(&v->id_of);
    json_decref(v->root);
}

static void set_token(struct vocabulary *v, int64_t id, const char *text, size_t size, int32_t type)
{
    tt_free(v->token[id].text);
    v->token[id] = (struct token){.text = tt_strndup(text, size), .size = size, .type = type};
}

/* Tokens that users of llama.cpp expect to be control tokens, regardless of the file. */
static bool looks_special(const char *text)
{
    return (tt_text_begins(text, "<|") && tt_text_ends(text, "|>")) ||
           (tt_text_begins(text, "<\xef\xbd\x9c") && tt_text_ends(text, "\xef\xbd\x9c>")) || strcmp(text, "<pad>") == 0;
}

/* Whether an added token depends on the text beside it. */
static bool takes_spaces(const json_t *entry)
{
    return json_is_true(json_object_get(entry, "lstrip")) || json_is_true(json_object_get(entry, "rstrip")) ||
           json_is_true(json_object_get(entry, "single_word"));
}

static void read_added(struct vocabulary *v, bool is_llama)
{
    const json_t *list = json_object_get(v->root, "added_tokens");
    const char *first = NULL;

    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const char *content = json_string_value(json_object_get(entry, "content"));
        int64_t id = (int64_t)json_integer_value(json_object_get(entry, "id"));
        bool special = json_is_true(json_object_get(entry, "special")) || looks_special(content);
        struct tt_text text = {0};

        if (!first && takes_spaces(entry))
            first = content;
        if (is_llama && !special)
            tt_text_add_replaced(&text, content, strlen(content), TT_GGUF_MARK, " ");
        else
            tt_text_add_bytes(&text, content, strlen(content));
        set_token(v, id, text.text, text.size, special ? TT_GGUF_CONTROL : TT_GGUF_USER_DEFINED);
        tt_text_release(&text);
    }
    if (first)
        tt_note("llama.cpp ignores lstrip, rstrip and single_word of added tokens, which '%s' uses: it keeps the "
                "spaces beside them, and finds them within words",
                first);
}

static int read_tokens(struct vocabulary *v, bool is_llama)
{
    const json_t *model = json_object_get(v->root, "model");
    const char *unknown = json_string_value(json_object_get(model, "unk_token")), *key;
    struct tt_text text = {0};
    json_t *value;

    json_object_foreach(json_object_get(model, "vocab"), key, value)
    {
        int64_t id = (int64_t)json_integer_value(value);
        bool is_byte = is_llama && strlen(key) == 6 && tt_text_begins(key, "<0x") && key[5] == '>';

        text.size = 0;
        tt_json_add_key(&text, key);
        set_token(v, id, text.text ? text.text : "", text.size, is_byte ? TT_GGUF_BYTE : TT_GGUF_NORMAL);
        tt_strmap_set(&v->id_of, text.text, text.size, id);
    }
    tt_text_release(&text);
    read_added(v, is_llama);
    for (int64_t id = 0; id < v->n; id++) {
        char *name = v->token[id].text ? NULL : tt_format("[PAD%lld]", (long long)id);

        if (name)
            set_token(v, id, name, strlen(name), TT_GGUF_UNUSED);
        else if (is_llama && unknown && strcmp(v->token[id].text, unknown) == 0)
            v->token[id].type = TT_GGUF_UNKNOWN;
        tt_free(name);
    }
    return 0;
}

/* --- merges --- */

/* The two halves of a merge, in either form. Both are known to be in the vocabulary. */
static bool halves_of(const struct vocabulary *v, const json_t *merge, struct tt_text *left, struct tt_text *right)
{
    const char *text = json_string_value(merge);
    size_t size = json_string_length(merge);

    left->size = right->size = 0;
    if (!text) {
        const json_t *a = json_array_get(merge, 0), *b = json_array_get(merge, 1);

        tt_text_add_bytes(left, json_string_value(a), json_string_length(a));
        tt_text_add_bytes(right, json_string_value(b), json_string_length(b));
        return true;
    }
    for (size_t i = 1; i + 1 < size; i++)
        if (text[i] == ' ' && tt_strmap_get(&v->id_of, text, i, -1) >= 0 &&
            tt_strmap_get(&v->id_of, text + i + 1, size - i - 1, -1) >= 0) {
            tt_text_add_bytes(left, text, i);
            tt_text_add_bytes(right, text + i + 1, size - i - 1);
            return true;
        }
    return false; /* "#version" */
}

static void put_merges(const struct vocabulary *v, struct tt_gguf_values *values)
{
    const json_t *merges = json_object_get(json_object_get(v->root, "model"), "merges");
    struct tt_text left = {0}, right = {0}, both = {0};
    struct tt_gguf_values items = {0};

    for (size_t i = 0; i < json_array_size(merges); i++) {
        if (!halves_of(v, json_array_get(merges, i), &left, &right))
            continue;
        both.size = 0;
        /* llama.cpp cuts at the space between the halves, so a space inside a half is written in the byte-level
         * alphabet */
        tt_text_add_replaced(&both, left.text, left.size, " ", "\xc4\xa0");
        tt_text_add_bytes(&both, " ", 1);
        tt_text_add_replaced(&both, right.text, right.size, " ", "\xc4\xa0");
        tt_gguf_add_string(&items, both.text, both.size);
        items.n++;
    }
    tt_gguf_put_array(values, "tokenizer.ggml.merges", TT_GGUF_STRING, items.n);
    tt_text_add_bytes(&values->text, items.text.text, items.text.size);
    tt_text_release(&items.text);
    tt_text_release(&left);
    tt_text_release(&right);
    tt_text_release(&both);
}

/* The number of ways in which a token is the union of two tokens. */
static int64_t splits_of(const struct vocabulary *v, const struct token *t)
{
    int64_t n = 0;

    for (size_t i = 1; i < t->size; i++)
        n += tt_strmap_get(&v->id_of, t->text, i, -1) >= 0 &&
             tt_strmap_get(&v->id_of, t->text + i, t->size - i, -1) >= 0;
    return n;
}

/*
 * The score of a token is minus the position of the first merge that makes it; tokens that no merge makes get the
 * lowest score. ret_ways: in how many ways llama.cpp can make tokens that this tokenizer cannot.
 */
static void set_scores(struct vocabulary *v, int64_t *ret_ways)
{
    const json_t *merges = json_object_get(json_object_get(v->root, "model"), "merges");
    int64_t *made = tt_calloc((size_t)v->n + 1, sizeof *made), ways = 0;
    struct tt_text left = {0}, right = {0};
    size_t n = json_array_size(merges);

    for (int64_t id = 0; id < v->n; id++)
        v->token[id].score = -(float)n - 1.0F;
    for (size_t i = n; i > 0; i--) {
        int64_t id;

        if (!halves_of(v, json_array_get(merges, i - 1), &left, &right))
            continue;
        tt_text_add_bytes(&left, right.text, right.size);
        id = tt_strmap_get(&v->id_of, left.text, left.size, -1);
        v->token[id].score = -(float)(i - 1);
        made[id]++;
    }
    for (int64_t id = 0; id < v->n; id++)
        if (v->token[id].type == TT_GGUF_NORMAL && splits_of(v, &v->token[id]) > made[id])
            ways += splits_of(v, &v->token[id]) - made[id];
    *ret_ways = ways;
    tt_free(made);
    tt_text_release(&left);
    tt_text_release(&right);
}

/* --- the kinds --- */

static bool is_byte_level(const json_t *pre)
{
    const json_t *list = json_object_get(pre, "pretokenizers");
    const char *type = json_string_value(json_object_get(pre, "type"));
    bool found = type && strcmp(type, "ByteLevel") == 0;

    for (size_t i = 0; i < json_array_size(list) && !found; i++)
        found = is_byte_level(json_array_get(list, i));
    return found;
}

static int put_byte_level(struct vocabulary *v, struct tt_gguf_values *values)
{
    const json_t *model = json_object_get(v->root, "model"), *normalizer = json_object_get(v->root, "normalizer");
    const char *pre = NULL;
    int rc = 0;

    TT_TRY(tt_gguf_pre_name(json_object_get(v->root, "pre_tokenizer"),
                            json_is_true(json_object_get(model, "ignore_merges")), v->where, &pre));
    if (normalizer && !json_is_null(normalizer)) {
        const char *type = json_string_value(json_object_get(normalizer, "type"));

        if (!type || strcmp(type, "NFC") != 0)
            return tt_fail(TT_EDATA, "%s: llama.cpp does not normalize text as this tokenizer does (%s)", v->where,
                           type ? type : "(no type)");
        tt_note("llama.cpp does not bring text into the normal form NFC, as this tokenizer does");
    }
    tt_gguf_put_string(values, "tokenizer.ggml.model", "gpt2", 4);
    tt_gguf_put_string(values, "tokenizer.ggml.pre", pre, strlen(pre));
    put_merges(v, values);
out:
    return rc;
}

static bool is_text(const json_t *json, const char *text)
{
    return json_is_string(json) && strcmp(json_string_value(json), text) == 0;
}

/* Whether a normalizer replaces spaces by the same mark as llama.cpp. */
static bool replaces_spaces(const json_t *step)
{
    return is_text(json_object_get(step, "type"), "Replace") &&
           is_text(json_object_get(step, "content"), TT_GGUF_MARK) &&
           is_text(json_object_get(json_object_get(step, "pattern"), "String"), " ");
}

/* The normalizer of older files: it replaces spaces by the same mark as llama.cpp; Prepend adds one before the text. */
static int read_steps(const struct vocabulary *v, const json_t *normalizer, bool *ret_prefix)
{
    const json_t *list = json_object_get(normalizer, "normalizers");
    bool replaces = replaces_spaces(normalizer);
    const char *other = replaces || json_array_size(list) ? NULL : "no Sequence";

    for (size_t i = 0; i < json_array_size(list) && !other; i++) {
        const json_t *step = json_array_get(list, i), *type = json_object_get(step, "type");

        if (is_text(type, "Prepend") && is_text(json_object_get(step, "prepend"), TT_GGUF_MARK))
            *ret_prefix = true;
        else if (replaces_spaces(step))
            replaces = true;
        else
            other = json_is_string(type) ? json_string_value(type) : "no type";
    }
    if (!other && !replaces)
        other = "no Replace";
    return other
               ? tt_fail(TT_EDATA, "%s: llama.cpp does not normalize text as this tokenizer does (%s)", v->where, other)
               : 0;
}

/* Gemma's pre-tokenizer splits at spaces, but its normalizer leaves none. */
static bool splits_at_spaces(const json_t *pre)
{
    return is_text(json_object_get(pre, "type"), "Split") &&
           is_text(json_object_get(json_object_get(pre, "pattern"), "String"), " ");
}

/* Whether a space is put before the text: by Metaspace, or by the normalizer Prepend of older files. */
static int find_prefix(const struct vocabulary *v, bool *ret_prefix)
{
    const json_t *pre = json_object_get(v->root, "pre_tokenizer"), *normalizer = json_object_get(v->root, "normalizer");
    const char *type = json_string_value(json_object_get(pre, "type"));
    const char *mark = json_string_value(json_object_get(pre, "replacement"));
    const char *scheme = json_string_value(json_object_get(pre, "prepend_scheme"));

    *ret_prefix = false;
    if (type && strcmp(type, "Metaspace") == 0 && mark && strcmp(mark, TT_GGUF_MARK) == 0 &&
        (!normalizer || json_is_null(normalizer))) {
        *ret_prefix =
            !(scheme && strcmp(scheme, "never") == 0) && !json_is_false(json_object_get(pre, "add_prefix_space"));
        if (*ret_prefix)
            tt_note("llama.cpp puts a space before every text, even before one that begins with a space%s; this "
                    "tokenizer does not",
                    scheme && strcmp(scheme, "first") == 0 ? " or follows a special token" : "");
        return 0;
    }
    if (!pre || json_is_null(pre) || splits_at_spaces(pre))
        return read_steps(v, normalizer, ret_prefix);
    return tt_fail(TT_EDATA, "%s: llama.cpp does not cut text as this tokenizer does (pre_tokenizer %s)", v->where,
                   type ? type : "(no type)");
}

static int put_sentencepiece(struct vocabulary *v, struct tt_gguf_values *values)
{
    bool prefix = false;
    int64_t ways = 0;
    int rc = 0;

    if (!json_is_true(json_object_get(json_object_get(v->root, "model"), "byte_fallback")))
        return tt_fail(TT_EDATA, "%s: llama.cpp needs byte_fallback in tokenizers that spell words in characters",
                       v->where);
    TT_TRY(find_prefix(v, &prefix));
    set_scores(v, &ways);
    if (ways)
        tt_note(
            "llama.cpp may cut some words into other tokens: it joins any neighbours whose union is a token; in %lld "
            "cases this tokenizer does not",
            (long long)ways);
    tt_gguf_put_string(values, "tokenizer.ggml.model", "llama", 5);
    tt_gguf_put_string(values, "tokenizer.ggml.pre", "default", 7);
    tt_gguf_put_bool(values, "tokenizer.ggml.add_space_prefix", prefix);
    tt_gguf_put_array(values, "tokenizer.ggml.scores", TT_GGUF_F32, v->n);
    for (int64_t i = 0; i < v->n; i++)
        tt_gguf_add_f32(values, v->token[i].score);
out:
    return rc;
}

static void put_tokens(const struct vocabulary *v, struct tt_gguf_values *values)
{
    tt_gguf_put_array(values, "tokenizer.ggml.tokens", TT_GGUF_STRING, v->n);
    for (int64_t i = 0; i < v->n; i++)
        tt_gguf_add_string(values, v->token[i].text, v->token[i].size);
    tt_gguf_put_array(values, "tokenizer.ggml.token_type", TT_GGUF_I32, v->n);
    for (int64_t i = 0; i < v->n; i++)
        tt_gguf_add_i32(values, v->token[i].type);
}

static void put_ends(const struct vocabulary *v, const struct tt_gguf_ends *ends, struct tt_gguf_values *values)
{
    int32_t bos = tt_tokenizer_info(v->tokenizer)->bos, eos = tt_tokenizer_info(v->tokenizer)->eos;

    if (bos >= 0)
        tt_gguf_put_u32(values, "tokenizer.ggml.bos_token_id", bos);
    if (eos >= 0)
        tt_gguf_put_u32(values, "tokenizer.ggml.eos_token_id", eos);
    if (ends->turn >= 0 && ends->turn != eos)
        tt_gguf_put_u32(values, "tokenizer.ggml.eot_token_id", ends->turn);
    for (int64_t i = 0; i < v->n; i++)
        if (v->token[i].type == TT_GGUF_UNKNOWN)
            tt_gguf_put_u32(values, "tokenizer.ggml.unknown_token_id", i);
    tt_gguf_put_bool(values, "tokenizer.ggml.add_bos_token", bos >= 0 && ends->begins);
    tt_gguf_put_bool(values, "tokenizer.ggml.add_eos_token", false);
    if (ends->chat_template)
        tt_gguf_put_string(values, "tokenizer.chat_template", ends->chat_template, strlen(ends->chat_template));
}

/* llama.cpp takes models of that name for Phi-3, looks these tokens up, and refuses the file if none of them exists. */
static const char *missing_of_phi3(const struct vocabulary *v, const char *name)
{
    static const char *const wanted[] = {"</s>", "<unk>", "<s>", "<|endoftext|>"};
    const char *missing = NULL;

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted && (strcasestr(name, "phi3") || strcasestr(name, "phi-3"));
         i++) {
        bool found = false;

        for (int64_t id = 0; id < v->n && !found; id++)
            found = strcmp(v->token[id].text, wanted[i]) == 0;
        missing = found ? missing : wanted[i];
    }
    return missing;
}

static void put_name(const struct vocabulary *v, const char *name, struct tt_gguf_values *values)
{
    const char *missing = v ? missing_of_phi3(v, name) : NULL;

    if (missing)
        tt_note(
            "the file has no general.name: with '%s' llama.cpp would look for the tokens of Phi-3, and this tokenizer "
            "has no %s",
            name, missing);
    else
        tt_gguf_put_string(values, "general.name", name, strlen(name));
}

int tt_gguf_put_tokenizer(const struct tt_tokenizer *tokenizer, const struct tt_gguf_ends *ends, int64_t vocab_size,
                          struct tt_gguf_values *values)
{
    const struct tt_tokenizer_info *info;
    struct vocabulary v = {.tokenizer = tokenizer, .n = vocab_size};
    bool bytes;
    int rc = 0;

    if (!tokenizer) {
        put_name(NULL, ends->name, values);
        tt_gguf_put_string(values, "tokenizer.ggml.model", "none", 4);
        return 0;
    }
    info = tt_tokenizer_info(tokenizer);
    v.where = info->where;
    if (info->vocab_size > vocab_size)
        return tt_fail(TT_EDATA,
                       "%s has %lld tokens, but the model has rows for only %lld: llama.cpp needs one row "
                       "per token",
                       v.where, (long long)info->vocab_size, (long long)vocab_size);
    v.token = tt_calloc_for((size_t)vocab_size + 1, sizeof *v.token, v.where);
    TT_TRY(v.token ? 0 : TT_ENOMEM);
    TT_TRY(tt_json_parse(info->json, info->json_size, v.where, &v.root));
    bytes = is_byte_level(json_object_get(v.root, "pre_tokenizer"));
    TT_TRY(read_tokens(&v, !bytes));
    put_name(&v, ends->name, values);
    TT_TRY(bytes ? put_byte_level(&v, values) : put_sentencepiece(&v, values));
    put_tokens(&v, values);
    put_ends(&v, ends, values);
    tt_gguf_put_string(values, "tokenizer.huggingface.json", info->json, info->json_size);
out:
    release(&v);
    return rc;
}

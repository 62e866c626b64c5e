/* SPDX-License-Identifier: MIT
 *
 * The model of a tokenizer.json: the kind, the vocabulary, the merges in both formats.
 */
#include <stdio.h>
#include <string.h>

#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/base/utf8.h"
#include "core/tokenizer/bytelevel.h"
#include "core/tokenizer/tokenizer_struct.h"

enum { MOST_TOKENS = 1 << 26 };

/* Records the bytes of an id. */
int tt_tokenizer_set_token(struct tt_tokenizer *t, const char *where, int64_t id, const char *text, size_t size,
                           bool is_byte_level)
{
    struct tt_token_bytes *token;
    size_t at = t->bytes.size;

    if (id < 0 || id >= MOST_TOKENS)
        return tt_fail(TT_EDATA, "%s: token '%.80s' has the id %lld", where, text, (long long)id);
    if (id >= t->vocab_size) {
        void *more = tt_try_realloc(t->token, (size_t)id + 1, sizeof *t->token);

        if (!more)
            return tt_fail(TT_ENOMEM, "%s: no memory for %lld tokens", where, (long long)id + 1);
        t->token = more;
        memset(t->token + t->vocab_size, 0, (size_t)(id + 1 - t->vocab_size) * sizeof *t->token);
        t->vocab_size = id + 1;
    }
    token = &t->token[id];
    is_byte_level = is_byte_level && tt_bytelevel_decode(text, size, &t->bytes);
    if (!is_byte_level)
        tt_text_add_bytes(&t->bytes, text, size);
    *token = (struct tt_token_bytes){
        .at = at, .size = (uint32_t)(t->bytes.size - at), .is_used = true, .is_byte_level = is_byte_level};
    return 0;
}

static int64_t largest_id(json_t *vocab)
{
    const char *key;
    json_t *value;
    int64_t largest = -1;

    json_object_foreach(vocab, key, value)
    {
        if (json_is_integer(value) && json_integer_value(value) > largest)
            largest = json_integer_value(value);
    }
    return largest;
}

static int read_vocab(struct tt_tokenizer *t, json_t *vocab, const char *where)
{
    int64_t largest = largest_id(vocab);
    struct tt_text token = {0};
    const char *key;
    json_t *value;
    int rc = 0;

    if (!json_is_object(vocab) || json_object_size(vocab) == 0) {
        return tt_fail(TT_EDATA, "%s: model.vocab is %s, wanted an object of token: id", where,
                       json_is_object(vocab) ? "empty" : "missing or of another type");
    }
    if (largest >= 0 && largest < MOST_TOKENS) /* allocate once, not at every id */
        t->token = tt_calloc_for((size_t)largest + 1, sizeof *t->token, where);
    if (largest >= 0 && largest < MOST_TOKENS && !t->token)
        return TT_ENOMEM;
    t->vocab_size = largest >= 0 && largest < MOST_TOKENS ? largest + 1 : 0;
    json_object_foreach(vocab, key, value)
    {
        int64_t id = json_is_integer(value) ? (int64_t)json_integer_value(value) : -1;

        if (id >= 0 && id < t->vocab_size && t->token[id].is_used) {
            rc = tt_fail(TT_EDATA, "%s: two tokens of model.vocab have the id %lld ('%.80s' is one)", where,
                         (long long)id, key);
            goto out;
        }
        token.size = 0;
        tt_json_add_key(&token, key);
        TT_TRY(tt_tokenizer_set_token(t, where, id, token.text, token.size, t->is_byte_level));
        tt_strmap_set(&t->vocab, token.text, token.size, id);
    }
out:
    tt_text_release(&token);
    return rc;
}

/* Splits a merge written as one string: at the only space where both halves and their concatenation are tokens. */
static int split_merge(const struct tt_tokenizer *t, const char *text, size_t size, size_t index, const char *where,
                       size_t *ret_space)
{
    char *sum = tt_calloc(size + 1, 1);
    int found = 0, spaces = 0;

    for (size_t i = 1; i + 1 < size; i++) {
        if (text[i] != ' ')
            continue;
        spaces++;
        memcpy(sum, text, i);
        memcpy(sum + i, text + i + 1, size - i - 1);
        if (tt_strmap_get(&t->vocab, text, i, -1) < 0 || tt_strmap_get(&t->vocab, text + i + 1, size - i - 1, -1) < 0 ||
            tt_strmap_get(&t->vocab, sum, size - 1, -1) < 0)
            continue;
        *ret_space = i;
        found++;
    }
    tt_free(sum);
    if (found == 1)
        return 0;
    return tt_fail(TT_EDATA, "%s: model.merges[%zu] '%.80s' %s", where, index, text,
                   found    ? "can be split at more than one space"
                   : spaces ? "names tokens that are not in model.vocab"
                            : "is not two tokens with a space between them");
}

static int read_merge(struct tt_tokenizer *t, const json_t *merge, size_t index, const char *where)
{
    const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);
    struct tt_text sum = {0};
    int64_t ids[3];
    size_t space = 0;
    int rc = 0;

    if (json_is_string(merge)) {
        const char *text = json_string_value(merge);
        size_t size = json_string_length(merge);

        if (strncmp(text, "#version", 8) == 0)
            return 0;
        TT_TRY(split_merge(t, text, size, index, where, &space));
        ids[0] = tt_strmap_get(&t->vocab, text, space, -1);
        ids[1] = tt_strmap_get(&t->vocab, text + space + 1, size - space - 1, -1);
        tt_text_add_bytes(&sum, text, space);
        tt_text_add_bytes(&sum, text + space + 1, size - space - 1);
    } else if (json_array_size(merge) == 2 && json_is_string(left) && json_is_string(right)) {
        ids[0] = tt_strmap_get(&t->vocab, json_string_value(left), json_string_length(left), -1);
        ids[1] = tt_strmap_get(&t->vocab, json_string_value(right), json_string_length(right), -1);
        tt_text_add_bytes(&sum, json_string_value(left), json_string_length(left));
        tt_text_add_bytes(&sum, json_string_value(right), json_string_length(right));
    } else {
        rc = tt_fail(TT_EDATA, "%s: model.merges[%zu] is neither a string nor a pair of strings", where, index);
        goto out;
    }
    ids[2] = tt_strmap_get(&t->vocab, sum.text, sum.size, -1);
    if (ids[0] < 0 || ids[1] < 0 || ids[2] < 0) {
        rc = tt_fail(TT_EDATA, "%s: model.merges[%zu] makes '%.80s' of tokens that are not in model.vocab", where,
                     index, sum.text);
        goto out;
    }
    tt_bpe_add(&t->bpe, (int32_t)ids[0], (int32_t)ids[1], (int32_t)index, (int32_t)ids[2]);
out:
    tt_text_release(&sum);
    return rc;
}

/* Refuses an option of the model that titan's BPE does not have, unless it is absent, null, false, "" or 0. */
static int refuse_option(const json_t *model, const char *key, const char *where)
{
    const json_t *value = json_object_get(model, key);

    if (!value || json_is_null(value) || json_is_false(value) ||
        (json_is_string(value) && !json_string_length(value)) ||
        (json_is_number(value) && json_number_value(value) == 0.0))
        return 0;
    return tt_fail(TT_EDATA, "%s: model.%s is not supported", where, key);
}

/* Returns how many bytes have no token. Only the model's vocabulary counts; added tokens are read later. */
static int index_bytes(struct tt_tokenizer *t, bool falls_back, int *ret_first)
{
    int missing = 0;

    for (int byte = 0; byte < 256; byte++) {
        char code[8];
        int n = t->is_byte_level ? tt_utf8_encode(tt_bytelevel_code((uint8_t)byte), code)
                                 : snprintf(code, sizeof code, "<0x%02X>", (unsigned)byte);
        bool is_utf8 = byte < 0xc0 || (byte > 0xc1 && byte < 0xf5);

        t->byte_id[byte] = t->is_byte_level || falls_back ? (int32_t)tt_strmap_get(&t->vocab, code, (size_t)n, -1) : -1;
        if (t->byte_id[byte] < 0 && is_utf8 && missing++ == 0)
            *ret_first = byte;
    }
    return missing;
}

/* Reads what text outside of the vocabulary becomes. */
static int read_unknown(struct tt_tokenizer *t, const json_t *model, bool falls_back, const char *where)
{
    const json_t *unknown = json_object_get(model, "unk_token");
    int first = 0, missing = index_bytes(t, falls_back, &first);

    if (json_is_string(unknown))
        t->unknown = (int32_t)tt_strmap_get(&t->vocab, json_string_value(unknown), json_string_length(unknown), -1);
    if (!missing)
        return 0;
    if (t->is_byte_level && falls_back)
        return tt_fail(TT_EDATA, "%s: model.byte_fallback with ByteLevel is not supported", where);
    if (!t->is_byte_level && json_is_string(unknown) && t->unknown < 0) {
        return tt_fail(TT_EDATA, "%s: model.unk_token '%.80s' is not in model.vocab", where,
                       json_string_value(unknown));
    }
    if (t->is_byte_level || falls_back) {
        tt_warn("%s: %d of 256 bytes are not in the vocabulary (0x%02x is the first); in text they become %s", where,
                missing, first, t->unknown >= 0 ? "the unknown token" : "nothing");
    }
    return 0;
}

static void index_chars(struct tt_tokenizer *t, json_t *vocab)
{
    struct tt_text token = {0};
    const char *key;
    json_t *value;

    json_object_foreach(vocab, key, value)
    {
        uint32_t code;

        token.size = 0;
        tt_json_add_key(&token, key);
        if (token.size && tt_utf8_decode(token.text, token.size, &code) == (int)token.size)
            tt_strmap_set(&t->chars, token.text, token.size, (int64_t)json_integer_value(value));
    }
    tt_text_release(&token);
}

/* A SentencePiece-style tokenizer, which spells words in characters, has Metaspace or byte_fallback. */
static int check_kind(const struct tt_tokenizer *t, bool falls_back, const char *where)
{
    const struct tt_pretokenizer *p = &t->pretokenizer;

    if (t->is_byte_level || p->metaspace_step >= 0 || falls_back)
        return 0;
    return tt_fail(TT_EDATA,
                   "%s: %s, and model.byte_fallback is not set, so this is neither a byte-level BPE "
                   "tokenizer nor a SentencePiece-style one",
                   where, p->n_steps ? "pre_tokenizer has no ByteLevel and no Metaspace" : "no pre_tokenizer");
}

int tt_tokenizer_check_type(const json_t *model, const char *where)
{
    const json_t *named = json_object_get(model, "type");
    const char *type = json_string_value(named);

    /* files of the first versions have no type; they were all BPE */
    if (named && (!type || strcmp(type, "BPE") != 0))
        return tt_fail(TT_EDATA, "%s: model '%s' is not supported (BPE is)", where, type ? type : "(no type)");
    return 0;
}

int tt_tokenizer_read_model(struct tt_tokenizer *t, json_t *model, const char *where)
{
    static const char *const refused[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    bool falls_back = json_is_true(json_object_get(model, "byte_fallback"));
    const json_t *merges = json_object_get(model, "merges");
    int rc = 0;

    if (!json_is_object(model))
        return tt_fail(TT_EDATA, "%s: it has no model, so this is not a tokenizer.json", where);
    TT_TRY(check_kind(t, falls_back, where));
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        TT_TRY(refuse_option(model, refused[i], where));
    TT_TRY(read_vocab(t, json_object_get(model, "vocab"), where));
    if (!json_is_array(merges))
        return tt_fail(TT_EDATA, "%s: model.merges is missing or not an array", where);
    for (size_t i = 0; i < json_array_size(merges); i++)
        TT_TRY(read_merge(t, json_array_get(merges, i), i, where));
    TT_TRY(read_unknown(t, model, falls_back, where));
    t->fuse_unknown = json_is_true(json_object_get(model, "fuse_unk"));
    t->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    if (!t->is_byte_level)
        index_chars(t, json_object_get(model, "vocab"));
    if (t->ignore_merges) {
        for (int64_t id = 0; id < t->vocab_size; id++) {
            if (t->token[id].is_used && t->token[id].is_byte_level == t->is_byte_level)
                tt_strmap_set(&t->words, t->bytes.text + t->token[id].at, t->token[id].size, id);
        }
    }
out:
    return rc;
}

/* SPDX-License-Identifier: MIT
 *
 * The reader of tokenizer.json and tokenizer_config.json. The order of reading is: pre_tokenizer, which says whether
 * words are spelt in bytes, model, normalizer, added tokens, decoder, post_processor, then BOS and EOS.
 */
#include <stdio.h>
#include <string.h>

#include "core/base/builtin.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/os/file.h"
#include "core/tokenizer/decoder.h"
#include "core/tokenizer/gguf.h"
#include "core/tokenizer/internal.h"
#include "core/tokenizer/tokenizer.h"

/* --- the model: its kind, the vocabulary, the merges in both formats --- */

enum { MOST_TOKENS = 1 << 26 };

/* Appends the bytes that a text in this alphabet encodes. Returns false and appends nothing if it has other
 * characters. */
static bool decode_bytelevel(const char *text, size_t size, struct tt_text *out)
{
    size_t before = out->size;

    while (size) {
        uint32_t code;
        int n = tt_utf8_decode(text, size, &code);
        int byte = n ? tt_bytelevel_byte(code) : -1;
        char c = (char)byte;

        if (byte < 0) {
            out->size = before;
            return false;
        }
        tt_text_add_bytes(out, &c, 1);
        text += n;
        size -= (size_t)n;
    }
    return true;
}

/* Records the bytes of an id. */
static int set_token(struct tt_tokenizer *t, const char *where, int64_t id, const char *text, size_t size,
                     bool is_byte_level)
{
    struct tt_token_bytes *token;
    size_t at = t->bytes.size;

    if (id < 0 || id >= MOST_TOKENS)
        return tt_fail(TT_EDATA, "%s: token '%.80s' has the id %lld", where, text, (long long)id);
    if (id >= t->info.vocab_size) {
        void *more = tt_try_realloc(t->token, (size_t)id + 1, sizeof *t->token);

        if (!more)
            return tt_fail(TT_ENOMEM, "%s: no memory for %lld tokens", where, (long long)id + 1);
        t->token = more;
        memset(t->token + t->info.vocab_size, 0, (size_t)(id + 1 - t->info.vocab_size) * sizeof *t->token);
        t->info.vocab_size = id + 1;
    }
    token = &t->token[id];
    is_byte_level = is_byte_level && decode_bytelevel(text, size, &t->bytes);
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
    t->info.vocab_size = largest >= 0 && largest < MOST_TOKENS ? largest + 1 : 0;
    json_object_foreach(vocab, key, value)
    {
        int64_t id = json_is_integer(value) ? (int64_t)json_integer_value(value) : -1;

        if (id >= 0 && id < t->info.vocab_size && t->token[id].is_used) {
            rc = tt_fail(TT_EDATA, "%s: two tokens of model.vocab have the id %lld ('%.80s' is one)", where,
                         (long long)id, key);
            goto out;
        }
        token.size = 0;
        tt_json_add_key(&token, key);
        TT_TRY(set_token(t, where, id, token.text, token.size, t->is_byte_level));
        tt_strmap_set(&t->vocab, token.text, token.size, id);
    }
out:
    tt_text_release(&token);
    return rc;
}

/* Splits a merge that is written as one string, at the only space where both halves and their concatenation are
 * tokens. */
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
    const json_t *pair[2] = {json_array_get(merge, 0), json_array_get(merge, 1)};
    const char *text = json_string_value(merge), *half[2] = {text, NULL};
    size_t size[2] = {0, 0};
    struct tt_text sum = {0};
    int64_t ids[3];
    int rc = 0;

    if (text) {
        if (strncmp(text, "#version", 8) == 0)
            return 0;
        TT_TRY(split_merge(t, text, json_string_length(merge), index, where, &size[0]));
        half[1] = text + size[0] + 1;
        size[1] = json_string_length(merge) - size[0] - 1;
    } else if (json_array_size(merge) == 2 && json_is_string(pair[0]) && json_is_string(pair[1])) {
        for (int i = 0; i < 2; i++) {
            half[i] = json_string_value(pair[i]);
            size[i] = json_string_length(pair[i]);
        }
    } else {
        rc = tt_fail(TT_EDATA, "%s: model.merges[%zu] is neither a string nor a pair of strings", where, index);
        goto out;
    }
    for (int i = 0; i < 2; i++) {
        ids[i] = tt_strmap_get(&t->vocab, half[i], size[i], -1);
        tt_text_add_bytes(&sum, half[i], size[i]);
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

/* Refuses an option of the model that titan's BPE does not support, unless it is absent, null, false, "" or 0. */
static int refuse_option(const json_t *model, const char *key, const char *where)
{
    const json_t *value = json_object_get(model, key);

    if (!value || json_is_null(value) || json_is_false(value) ||
        (json_is_string(value) && !json_string_length(value)) ||
        (json_is_number(value) && json_number_value(value) == 0.0))
        return 0;
    return tt_fail(TT_EDATA, "%s: model.%s is not supported", where, key);
}

/* Returns the number of bytes that have no token. Only the model's vocabulary counts; added tokens are read later. */
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

/* Reads how to encode text that is not in the vocabulary. */
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

static int check_type(const json_t *model, const char *where)
{
    const json_t *named = json_object_get(model, "type");
    const char *type = json_string_value(named);

    /* files of the first versions have no type; they were all BPE */
    if (named && (!type || strcmp(type, "BPE") != 0))
        return tt_fail(TT_EDATA, "%s: model '%s' is not supported (BPE is)", where, type ? type : "(no type)");
    return 0;
}

static int read_model(struct tt_tokenizer *t, json_t *model, const char *where)
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
        for (int64_t id = 0; id < t->info.vocab_size; id++) {
            if (t->token[id].is_used && t->token[id].is_byte_level == t->is_byte_level)
                tt_strmap_set(&t->words, t->bytes.text + t->token[id].at, t->token[id].size, id);
        }
    }
out:
    return rc;
}

/* --- the text that the `tokenizers` library puts around a text, and BOS before every text --- */

enum { DEEPEST_SEQUENCE = 4 };

static const char *type_of(const json_t *json)
{
    const char *type = json_string_value(json_object_get(json, "type"));

    return type ? type : "(no type)";
}

/* The special tokens that a post-processor puts around a single text; -1: none. */
struct ends {
    int32_t begin, after; /* after: the second one */
    int32_t end;
};

/* Reads the list of a TemplateProcessing: special tokens, the text, special tokens. */
static int read_template(const struct tt_tokenizer *t, const json_t *single, struct ends *ends)
{
    int32_t *const before[] = {&ends->begin, &ends->after};
    size_t n[2] = {0, 0}; /* the tokens before and after the text */
    bool has_text = false;

    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *special = json_object_get(json_array_get(single, i), "SpecialToken");
        const char *name = tt_json_plain_string(json_object_get(special, "id"));
        int32_t *to = has_text ? &ends->end : before[n[0] ? 1 : 0];

        has_text = has_text || !special;
        if (!special)
            continue;
        if (++n[has_text] > (has_text ? 1 : 2)) {
            return tt_fail(TT_EDATA, "%s: post_processor puts more than %s text, which is not supported", t->info.where,
                           has_text ? "one token after a" : "two tokens before a");
        }
        if (name)
            *to = tt_tokenizer_token_to_id(t, name);
    }
    return 0;
}

/* ends keep their values if there are none. depth: nesting of sequences. */
static int read_post_processor(const struct tt_tokenizer *t, const json_t *json, int depth, struct ends *ends)
{
    const json_t *list = json_object_get(json, "processors");
    int rc = 0;

    if (!json || json_is_null(json) || strcmp(type_of(json), "ByteLevel") == 0)
        return 0;
    if (strcmp(type_of(json), "Sequence") == 0 && depth < DEEPEST_SEQUENCE) {
        for (size_t i = 0; i < json_array_size(list); i++)
            TT_TRY(read_post_processor(t, json_array_get(list, i), depth + 1, ends));
        goto out;
    }
    if (strcmp(type_of(json), "TemplateProcessing") == 0)
        return read_template(t, json_object_get(json, "single"), ends);
    rc = tt_fail(TT_EDATA, "%s: post_processor '%s' is not supported (ByteLevel, TemplateProcessing and null are)",
                 t->info.where, type_of(json));
out:
    return rc;
}

/* --- BOS --- */

static const char sequence_begin[] = "{\"type\":\"Sequence\",\"processors\":[", sequence_end[] = "]}";

/*
 * The post-processor that puts BOS before every text, as text; NULL: BOS is not a token with a name. Its members are in
 * an order that the library never writes, so that value_before cannot mistake the library's output for it.
 */
static char *bos_processor(const struct tt_tokenizer *t)
{
    size_t size = 0;
    const char *bytes = tt_tokenizer_id_to_token(t, t->info.bos, &size);
    char *name = tt_strndup(bytes, size), *text = NULL;
    json_t *json = NULL;

    if (size && strlen(name) == size && tt_tokenizer_token_to_id(t, name) == t->info.bos)
        json = json_pack("{s:s, s:{s:{s:s, s:[i], s:[s]}}, s:[{s:{s:s, s:i}}, {s:{s:s, s:i}}], "
                         "s:[{s:{s:s, s:i}}, {s:{s:s, s:i}}, {s:{s:s, s:i}}, {s:{s:s, s:i}}]}",
                         "type", "TemplateProcessing", "special_tokens", name, "id", name, "ids", t->info.bos, "tokens",
                         name, "single", "SpecialToken", "id", name, "type_id", 0, "Sequence", "id", "A", "type_id", 0,
                         "pair", "SpecialToken", "id", name, "type_id", 0, "Sequence", "id", "A", "type_id", 0,
                         "SpecialToken", "id", name, "type_id", 1, "Sequence", "id", "B", "type_id", 1);
    if (json)
        text = tt_json_text(json);
    json_decref(json);
    tt_free(name);
    return text;
}

/* Finds the post-processor in the text of tokenizer.json; the library always writes one, perhaps null. */
static struct tt_json_field find_processor(const struct tt_tokenizer *t)
{
    struct tt_json_field found = {.name = "post_processor"};
    struct tt_json_problem problem;
    json_type kind;

    if (!tt_json_fields(t->info.json, t->info.json_size, &found, 1, &kind, &problem))
        found.value = NULL;
    return found;
}

/* The text of tokenizer.json with the part between `from` and `to` replaced. */
static void put_instead(const struct tt_tokenizer *t, const char *from, const char *to, const char *text, size_t size,
                        struct tt_text *out)
{
    tt_text_add_bytes(out, t->info.json, (size_t)(from - t->info.json));
    tt_text_add_bytes(out, text, size);
    tt_text_add_bytes(out, to, t->info.json_size - (size_t)(to - t->info.json));
}

bool tt_tokenizer_json_with_bos(const struct tt_tokenizer *t, struct tt_text *out)
{
    struct tt_json_field found = find_processor(t);
    char *bos = found.value && t->info.bos >= 0 && !t->info.adds_bos ? bos_processor(t) : NULL;
    struct tt_text text = {0};

    if (!bos)
        return false;
    if (found.size == 4 && memcmp(found.value, "null", 4) == 0) {
        tt_text_add(&text, "%s", bos);
    } else {
        tt_text_add(&text, "%s", sequence_begin);
        tt_text_add_bytes(&text, found.value, found.size);
        tt_text_add(&text, ",%s%s", bos, sequence_end);
    }
    put_instead(t, found.value, found.value + found.size, text.text, text.size, out);
    tt_text_release(&text);
    tt_free(bos);
    return true;
}

/* The value before tt_tokenizer_json_with_bos changed it. */
static struct tt_json_field value_before(struct tt_json_field now, const char *bos)
{
    size_t n = strlen(bos), begin = strlen(sequence_begin), end = strlen(sequence_end);

    if (now.size == n && memcmp(now.value, bos, n) == 0)
        return (struct tt_json_field){.value = "null", .size = 4};
    if (now.size > begin + 1 + n + end && memcmp(now.value, sequence_begin, begin) == 0 &&
        memcmp(now.value + now.size - end - n, bos, n) == 0 && now.value[now.size - end - n - 1] == ',')
        return (struct tt_json_field){.value = now.value + begin, .size = now.size - begin - 1 - n - end};
    return now;
}

static uint64_t hash_files(const struct tt_tokenizer *t)
{
    struct tt_json_field found = {0}, before = {0};
    char *bos = t->info.adds_bos ? bos_processor(t) : NULL;
    struct tt_text text = {0};
    uint64_t hash;

    if (bos) {
        found = find_processor(t);
        before = found.value ? value_before(found, bos) : found;
    }
    if (before.value != found.value)
        put_instead(t, found.value, found.value + found.size, before.value, before.size, &text);
    hash = text.text ? tt_hash64(text.text, text.size, 0) : tt_hash64(t->info.json, t->info.json_size, 0);
    tt_text_release(&text);
    tt_free(bos);
    return hash;
}

/* --- the whole --- */

/*
 * The `tokenizers` library does not read the ids of added tokens. To tokens that are not in model.vocab it gives, in
 * order, the ids that follow the number of tokens in model.vocab; older versions, the ids that follow the largest id of
 * an added token. Both agree with the file if the library wrote it.
 */
static int check_added_id(const struct tt_added_token *a, int64_t next, int64_t largest, const char *where)
{
    if (a->id == next || (largest >= next && a->id == largest + 1))
        return 0;
    return tt_fail(TT_EDATA,
                   "%s: added token '%.80s' has the id %d, and the `tokenizers` library gives it %lld\n"
                   "help: the library numbers added tokens in their order, after model.vocab; add the missing tokens "
                   "to added_tokens, or save the tokenizer again with transformers",
                   where, a->content, a->id, (long long)next);
}

static int read_added(struct tt_tokenizer *t, const json_t *json, const json_t *normalizer, const char *where)
{
    int64_t next = (int64_t)t->vocab.n, largest = -1;
    int rc = 0;

    TT_TRY(tt_added_init(&t->added, json, normalizer, where));
    for (int i = 0; i < t->added.n; i++) {
        const struct tt_added_token *a = &t->added.token[i];
        int64_t known = tt_strmap_get(&t->vocab, a->content, a->size, -1);

        if (known >= 0 && known != a->id) {
            return tt_fail(TT_EDATA, "%s: added token '%.80s' has the id %d, but model.vocab says %lld", where,
                           a->content, a->id, (long long)known);
        }
        if (known < 0)
            TT_TRY(check_added_id(a, next++, largest, where));
        largest = a->id > largest ? a->id : largest;
        TT_TRY(set_token(t, where, a->id, a->content, a->size, false));
        t->token[a->id].is_special = a->is_special;
        tt_strmap_set(&t->vocab, a->content, a->size, a->id);
    }
out:
    return rc;
}

/* With a normalizer, the library may find the beginning of the text at another position. */
static int check_first(const struct tt_tokenizer *t, const char *where)
{
    const struct tt_pretokenizer *p = &t->pretokenizer;

    if (p->metaspace_step < 0 || p->metaspace.prepend != TT_PREPEND_FIRST || t->added.normalizer.n_steps == 0)
        return 0;
    return tt_fail(
        TT_EDATA, "%s: pre_tokenizer Metaspace with prepend_scheme 'first' is not supported together with a normalizer",
        where);
}

/* A token named by tokenizer_config.json, as a string or as an object with content. */
static int read_named(const struct tt_tokenizer *t, const json_t *config, const char *key, const char *where,
                      int32_t *ret_id)
{
    const json_t *value = json_object_get(config, key);
    const char *name = tt_json_plain_string(json_is_object(value) ? json_object_get(value, "content") : value);

    if (!value || json_is_null(value))
        return 0;
    if (!name) {
        return tt_fail(TT_EDATA, "%s: %s of tokenizer_config.json is neither a string nor an object with content",
                       where, key);
    }
    *ret_id = tt_tokenizer_token_to_id(t, name);
    if (*ret_id < 0) {
        return tt_fail(TT_EDATA, "%s: %s '%s' of tokenizer_config.json is not a token of tokenizer.json", where, key,
                       name);
    }
    return 0;
}

static int read_ends(struct tt_tokenizer *t, const json_t *post_processor, const json_t *config, const char *where)
{
    struct ends ends = {-1, -1, -1};
    int rc = 0;

    TT_TRY(read_post_processor(t, post_processor, 0, &ends));
    t->info.bos = ends.begin; /* without a config, the template is the only source */
    t->info.eos = ends.end;
    TT_TRY(read_named(t, config, "bos_token", where, &t->info.bos));
    TT_TRY(read_named(t, config, "eos_token", where, &t->info.eos));
    t->info.adds_bos = ends.begin >= 0 && ends.begin == t->info.bos;
    t->info.after_bos = t->info.adds_bos ? ends.after : -1;
out:
    return rc;
}

/*
 * Parses tokenizer_config.json, or gives NULL. The file only says what BOS and EOS are, so it need not be valid JSON if
 * the template of tokenizer.json names both.
 */
static void parse_config(struct tt_tokenizer *t, const char *where, json_t **ret_config, char **ret_problem)
{
    char *config_where = tt_format("%s: tokenizer_config.json", where);

    if (t->info.config && tt_json_parse(t->info.config, t->info.config_size, config_where, ret_config) < 0) {
        *ret_problem = tt_strdup(tt_error_message());
        tt_free(t->info.config);
        t->info.config = NULL;
        t->info.config_size = 0;
    }
    tt_free(config_where);
}

/* The path of a file in the folder of tokenizer.json. */
static char *path_beside(const char *json_path, const char *name)
{
    const char *slash = strrchr(json_path, '/');

    return tt_format("%.*s%s", slash ? (int)(slash - json_path + 1) : 0, json_path, name);
}

/* The chat template of tokenizer_config.json. Older files contain a list of named templates. */
static void read_chat_template(struct tt_tokenizer *t, const json_t *config)
{
    const json_t *value = json_object_get(config, "chat_template"), *row;
    size_t i;

    json_array_foreach(value, i, row)
    {
        const char *name = json_string_value(json_object_get(row, "name"));

        if (name && strcmp(name, "default") == 0) {
            value = json_object_get(row, "template");
            break;
        }
    }
    if (json_is_string(value)) {
        t->info.chat_template = tt_strdup(json_string_value(value));
        t->info.chat_where = path_beside(t->info.where, "tokenizer_config.json");
    }
}

static int check_ends(const struct tt_tokenizer *t, const char *problem)
{
    if (t->info.bos < 0 || t->info.eos < 0)
        return tt_fail(TT_EDATA, "%s\nhelp: it says which tokens begin and end a document; save the tokenizer again",
                       problem);
    tt_note("%s; BOS and EOS come from the template in tokenizer.json", problem);
    return 0;
}

/* Options that change the text of one call to the library; documents are not such calls. transformers resets these
 * options too. */
static void note_unused(const json_t *root, const char *where)
{
    static const char *const keys[] = {"truncation", "padding"};

    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *value = json_object_get(root, keys[i]);

        if (value && !json_is_null(value))
            tt_note("%s: its %s is not applied: documents are whole", where, keys[i]);
    }
}

static bool is_lfs_pointer(const char *text, size_t size)
{
    static const char begin[] = "version https://git-lfs";

    return size >= sizeof begin - 1 && memcmp(text, begin, sizeof begin - 1) == 0;
}

static int read_all(struct tt_tokenizer *t, const char *where)
{
    json_t *root = NULL, *config = NULL;
    char *problem = NULL;
    int rc = 0;

    if (is_lfs_pointer(t->info.json, t->info.json_size)) {
        rc = tt_fail(TT_EDATA, "%s is a Git LFS pointer (%zu bytes), not a tokenizer\nhelp: git lfs pull", where,
                     t->info.json_size);
        goto out;
    }
    TT_TRY(tt_json_parse(t->info.json, t->info.json_size, where, &root));
    parse_config(t, where, &config, &problem);
    TT_TRY(check_type(json_object_get(root, "model"), where));
    note_unused(root, where);
    TT_TRY(tt_pretokenizer_init(&t->pretokenizer, json_object_get(root, "pre_tokenizer"), where));
    t->is_byte_level = t->pretokenizer.prefix_step >= 0;
    TT_TRY(read_model(t, json_object_get(root, "model"), where));
    TT_TRY(read_added(t, json_object_get(root, "added_tokens"), json_object_get(root, "normalizer"), where));
    TT_TRY(check_first(t, where));
    TT_TRY(tt_decoder_init(&t->decoder, json_object_get(root, "decoder"), t->is_byte_level, where));
    TT_TRY(read_ends(t, json_object_get(root, "post_processor"), config, where));
    if (problem)
        TT_TRY(check_ends(t, problem));
    read_chat_template(t, config);
    t->info.hash = hash_files(t);
    t->info.hash = tt_hash64(&t->info.bos, sizeof t->info.bos, t->info.hash);
    t->info.hash = tt_hash64(&t->info.eos, sizeof t->info.eos, t->info.hash);
out:
    json_decref(root);
    json_decref(config);
    tt_free(problem);
    return rc;
}

int tt_tokenizer_parse(const char *json, size_t json_size, const char *config, size_t config_size, const char *where,
                       struct tt_tokenizer **ret_tokenizer)
{
    struct tt_tokenizer *t = tt_calloc(1, sizeof *t);
    int rc = 0;

    t->info.where = tt_strdup(where);
    t->info.json = tt_calloc(json_size + 1, 1);
    memcpy(t->info.json, json, json_size);
    t->info.json_size = json_size;
    if (config) {
        t->info.config = tt_calloc(config_size + 1, 1);
        memcpy(t->info.config, config, config_size);
        t->info.config_size = config_size;
    }
    t->info.bos = t->info.after_bos = t->info.eos = t->unknown = -1;
    TT_TRY(read_all(t, where));
    *ret_tokenizer = t;
    return 0;
out:
    tt_tokenizer_free(t);
    return rc;
}

/* Fails because the folder contains no tokenizer.json; names the other kind of tokenizer that it contains. */
static int fail_kind(const char *folder)
{
    static const struct {
        const char *file, *kind, *help;
    } other[] = {
        {"tokenizer.model", "a SentencePiece or tiktoken model",
         "save the tokenizer as tokenizer.json with transformers"},
        {"vocab.txt", "a WordPiece vocabulary", "use a model with a BPE tokenizer"},
        {"vocab.json", "vocab.json and merges.txt", "save the tokenizer as tokenizer.json with transformers"},
        {"tekken.json", "Mistral's tekken", "save the tokenizer as tokenizer.json with transformers"},
    };

    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
        char *path = tt_format("%s/%s", folder, other[i].file);
        bool exists = false;
        int rc = tt_path_exists(path, &exists);

        tt_free(path);
        if (rc < 0)
            return rc;
        if (exists) {
            return tt_fail(TT_EDATA, "'%s' has no tokenizer.json but %s (%s), which titan does not read\nhelp: %s",
                           folder, other[i].file, other[i].kind, other[i].help);
        }
    }
    return tt_fail(TT_EDATA,
                   "'%s' has no tokenizer.json\nhelp: point %s at a folder that holds tokenizer.json and "
                   "tokenizer_config.json, or leave it out for the built-in tokenizer",
                   folder, TT_KEY_NAME(model.hf_assets_path));
}

/* A file in the folder of tokenizer.json; NULL if there is none. */
static int read_beside(const char *json_path, const char *name, char **ret_text, size_t *ret_size)
{
    char *path = path_beside(json_path, name);
    bool exists = false;
    int rc = tt_path_exists(path, &exists);

    if (rc == 0 && exists)
        rc = tt_file_read(path, ret_text, ret_size);
    tt_free(path);
    return rc;
}

/*
 * Reads the file that names BOS and EOS: tokenizer_config.json, or, if that is not JSON, special_tokens_map.json, which
 * contains the same.
 */
static int read_config(const char *json_path, char **ret_text, size_t *ret_size)
{
    json_t *json = NULL, *map_json = NULL;
    char *map = NULL, *problem = NULL;
    size_t map_size = 0;
    int rc = 0;

    TT_TRY(read_beside(json_path, "tokenizer_config.json", ret_text, ret_size));
    if (!*ret_text || tt_json_parse(*ret_text, *ret_size, "tokenizer_config.json", &json) == 0)
        goto out;
    problem = tt_strdup(tt_error_message());
    TT_TRY(read_beside(json_path, "special_tokens_map.json", &map, &map_size));
    if (!map || tt_json_parse(map, map_size, "special_tokens_map.json", &map_json) < 0)
        goto out; /* parse_config reports what is wrong */
    tt_note("%s: %s; BOS and EOS come from special_tokens_map.json", json_path, problem);
    tt_free(*ret_text);
    *ret_text = map;
    *ret_size = map_size;
    map = NULL;
out:
    json_decref(json);
    json_decref(map_json);
    tt_free(map);
    tt_free(problem);
    return rc;
}

/* The files of a tokenizer. */
struct files {
    char *json, *config, *chat;
    size_t json_size, config_size, chat_size;
};

/* chat_where: file of the chat template, which takes precedence over tokenizer_config.json's; this takes ownership of
 * it. */
static int parse_files(struct files *files, const char *where, char *chat_where, struct tt_tokenizer **ret_tokenizer)
{
    int rc = tt_tokenizer_parse(files->json, files->json_size, files->config, files->config_size, where, ret_tokenizer);

    if (rc < 0 || !files->chat) {
        tt_free(chat_where);
        return rc;
    }
    tt_free((*ret_tokenizer)->info.chat_template);
    tt_free((*ret_tokenizer)->info.chat_where);
    (*ret_tokenizer)->info.chat_template = files->chat;
    (*ret_tokenizer)->info.chat_where = chat_where;
    files->chat = NULL;
    return 0;
}

static void release_files(struct files *files)
{
    tt_free(files->json);
    tt_free(files->config);
    tt_free(files->chat);
}

static int load_gguf(const char *path, struct tt_tokenizer **ret_tokenizer)
{
    struct files files = {0};
    struct tt_gguf file = {0};
    int rc = 0;

    TT_TRY(tt_gguf_open(path, &file));
    TT_TRY(tt_gguf_tokenizer_file(&file, "tokenizer.json", &files.json, &files.json_size));
    TT_TRY(tt_gguf_tokenizer_file(&file, "tokenizer_config.json", &files.config, &files.config_size));
    TT_TRY(tt_gguf_tokenizer_file(&file, "chat_template.jinja", &files.chat, &files.chat_size));
    rc = files.json ? parse_files(&files, path, tt_strdup(path), ret_tokenizer)
                    : tt_fail(TT_EDATA, "'%s' has no tokenizer", path);
out:
    tt_gguf_release(&file);
    release_files(&files);
    return rc;
}

int tt_tokenizer_load(const char *path, struct tt_tokenizer **ret_tokenizer)
{
    char *json_path = NULL;
    struct files files = {0};
    bool is_folder = false, exists = false;
    int rc = 0;

    if (!path || !*path) {
        struct tt_builtin file = tt_builtin_get(TT_BUILTIN_TOKENIZER);
        struct tt_builtin second = tt_builtin_get(TT_BUILTIN_TOKENIZER_CONFIG);

        return tt_tokenizer_parse(file.bytes, file.size, second.bytes, second.size, file.name, ret_tokenizer);
    }
    if (tt_gguf_is_path(path))
        return tt_path_blame_missing(load_gguf(path, ret_tokenizer), path, TT_KEY(model.hf_assets_path));
    if (tt_text_ends(path, ".model")) {
        return tt_fail(TT_EDATA,
                       "'%s' is a SentencePiece or tiktoken model, which titan does not read\nhelp: save the "
                       "tokenizer as tokenizer.json with transformers",
                       path);
    }
    TT_TRY(tt_path_is_folder(path, &is_folder));
    json_path = is_folder ? tt_format("%s/tokenizer.json", path) : tt_strdup(path);
    TT_TRY(tt_path_exists(json_path, &exists));
    if (is_folder && !exists) {
        rc = fail_kind(path);
        goto out;
    }
    TT_TRY(tt_file_read(json_path, &files.json, &files.json_size));
    TT_TRY(read_config(json_path, &files.config, &files.config_size));
    TT_TRY(read_beside(json_path, "chat_template.jinja", &files.chat, &files.chat_size));
    TT_TRY(parse_files(&files, json_path, path_beside(json_path, "chat_template.jinja"), ret_tokenizer));
out:
    if (rc < 0)
        rc = tt_path_blame_missing(rc, path, TT_KEY(model.hf_assets_path));
    tt_free(json_path);
    release_files(&files);
    return rc;
}

static void release_bpe(struct tt_bpe *bpe)
{
    tt_free(bpe->merge);
    *bpe = (struct tt_bpe){0};
}

void tt_tokenizer_free(struct tt_tokenizer *t)
{
    if (!t)
        return;
    tt_free(t->info.where);
    tt_free(t->info.json);
    tt_free(t->info.config);
    tt_free(t->info.chat_template);
    tt_free(t->info.chat_where);
    tt_strmap_release(&t->vocab);
    tt_strmap_release(&t->words);
    tt_strmap_release(&t->chars);
    release_bpe(&t->bpe);
    tt_pretokenizer_release(&t->pretokenizer);
    tt_added_release(&t->added);
    tt_decoder_release(&t->decoder);
    tt_free(t->token);
    tt_text_release(&t->bytes);
    tt_free(t);
}

const struct tt_tokenizer_info *tt_tokenizer_info(const struct tt_tokenizer *t)
{
    return &t->info;
}

void tt_tokenizer_begin(const struct tt_tokenizer *tokenizer, struct tt_ids *ids)
{
    if (tokenizer->info.bos >= 0)
        tt_ids_add(ids, tokenizer->info.bos);
    if (tokenizer->info.after_bos >= 0)
        tt_ids_add(ids, tokenizer->info.after_bos);
}

int32_t tt_tokenizer_token_to_id(const struct tt_tokenizer *tokenizer, const char *token)
{
    return (int32_t)tt_strmap_get(&tokenizer->vocab, token, strlen(token), -1);
}

bool tt_tokenizer_is_special(const struct tt_tokenizer *tokenizer, int32_t id)
{
    return id >= 0 && id < tokenizer->info.vocab_size && tokenizer->token[id].is_special;
}

const char *tt_tokenizer_id_to_token(const struct tt_tokenizer *t, int32_t id, size_t *ret_size)
{
    bool is_token = tt_tokenizer_has(t, id);

    *ret_size = is_token ? t->token[id].size : 0;
    return is_token ? t->bytes.text + t->token[id].at : "";
}

size_t tt_tokenizer_added_at(const struct tt_tokenizer *tokenizer, const char *text, size_t size)
{
    const struct tt_added_token *found = tt_added_at(&tokenizer->added, text, size);

    return found ? found->size : 0;
}

bool tt_tokenizer_has(const struct tt_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->info.vocab_size && t->token[id].is_used;
}

int tt_tokenizer_decode_part(const struct tt_tokenizer *t, struct tt_decoding *decoding, const int32_t *ids, int64_t n,
                             struct tt_text *text)
{
    for (int64_t i = 0; i < n; i++) {
        if (!tt_tokenizer_has(t, ids[i])) {
            return tt_fail(TT_EDATA, "%s: %d is not the id of a token (the vocabulary has %lld)", t->info.where, ids[i],
                           (long long)t->info.vocab_size);
        }
        tt_decoder_add(&t->decoder, decoding, t->bytes.text + t->token[ids[i]].at, t->token[ids[i]].size, text);
    }
    return 0;
}

void tt_tokenizer_decode_end(const struct tt_tokenizer *t, struct tt_decoding *decoding, struct tt_text *text)
{
    tt_decoder_end(&t->decoder, decoding, text);
}

int tt_tokenizer_decode(const struct tt_tokenizer *t, const int32_t *ids, int64_t n, struct tt_text *text)
{
    struct tt_decoding decoding = {0};
    int rc = tt_tokenizer_decode_part(t, &decoding, ids, n, text);

    if (rc == 0)
        tt_tokenizer_decode_end(t, &decoding, text);
    tt_decoding_release(&decoding);
    return rc;
}

/* SPDX-License-Identifier: MIT
 *
 * The reader of tokenizer.json and tokenizer_config.json. Reading goes: model kind, vocabulary, merges, added tokens,
 * normalizer, pre_tokenizer, post_processor, decoder, then BOS and EOS.
 */
#include "core/data/tokenizer.h"

#include <string.h>

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/data/builtin.h"
#include "core/data/tokenizer_struct.h"
#include "core/data/utf8.h"

enum { MOST_TOKENS = 1 << 26, DEEPEST_SEQUENCE = 4 };

static const char *type_of(const json_t *json)
{
    const char *type = json_string_value(json_object_get(json, "type"));

    return type ? type : "(no type)";
}

/* Records the bytes that an id stands for. */
static int set_token(struct tt_tokenizer *t, const char *where, int64_t id, const char *text, size_t size,
                     bool is_byte_level)
{
    struct tt_token_bytes *token;
    size_t at = t->bytes.size;

    if (id < 0 || id >= MOST_TOKENS)
        return tt_fail(TT_EDATA, "%s: token '%.80s' has the id %lld", where, text, (long long)id);
    if (id >= t->vocab_size) {
        t->token = tt_realloc(t->token, (size_t)id + 1, sizeof *t->token);
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
    const char *key;
    json_t *value;
    int rc = 0;

    if (!json_is_object(vocab) || json_object_size(vocab) == 0)
        return tt_fail(TT_EDATA, "%s: model.vocab is %s, wanted an object of token: id", where,
                       json_is_object(vocab) ? "empty" : "missing or of another type");
    if (largest >= 0 && largest < MOST_TOKENS) /* once, instead of at every id */
        t->token = tt_calloc((size_t)largest + 1, sizeof *t->token);
    t->vocab_size = largest >= 0 && largest < MOST_TOKENS ? largest + 1 : 0;
    json_object_foreach(vocab, key, value)
    {
        size_t size = strlen(key);
        int64_t id = json_is_integer(value) ? (int64_t)json_integer_value(value) : -1;

        if (id >= 0 && id < t->vocab_size && t->token[id].is_used)
            return tt_fail(TT_EDATA, "%s: two tokens of model.vocab have the id %lld ('%.80s' is one)", where,
                           (long long)id, key);
        TT_TRY(set_token(t, where, id, key, size, true));
        tt_strmap_set(&t->vocab, key, size, id);
    }
out:
    return rc;
}

/* The two halves of a merge written as one string: at the only space where both halves and their sum are tokens. */
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
                            : "is not two tokens with a space between");
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

/* An option of the model that must be absent, null, false, "" or 0, since titan's BPE has no such thing. */
static int refuse_option(const json_t *model, const char *key, const char *where)
{
    const json_t *value = json_object_get(model, key);

    if (!value || json_is_null(value) || json_is_false(value) ||
        (json_is_string(value) && !json_string_length(value)) ||
        (json_is_number(value) && json_number_value(value) == 0.0))
        return 0;
    return tt_fail(TT_EDATA, "%s: model.%s is not supported (byte-level BPE only)", where, key);
}

static void index_bytes(struct tt_tokenizer *t)
{
    int missing = 0, first = 0;

    for (int byte = 0; byte < 256; byte++) {
        char code[4];
        int n = tt_utf8_encode(tt_bytelevel_code((uint8_t)byte), code);
        bool is_utf8 = byte < 0xc0 || (byte > 0xc1 && byte < 0xf5);

        t->byte_id[byte] = (int32_t)tt_strmap_get(&t->vocab, code, (size_t)n, -1);
        if (t->byte_id[byte] < 0 && is_utf8 && missing++ == 0)
            first = byte;
    }
    if (missing)
        tt_warn("%s: %d of 256 bytes are not in the vocabulary (0x%02x is the first); in text they become %s", t->where,
                missing, first, t->unknown >= 0 ? "the unknown token" : "nothing");
}

static int read_model(struct tt_tokenizer *t, json_t *model, const char *where)
{
    static const char *const refused[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix",
                                          "byte_fallback"};
    const json_t *merges = json_object_get(model, "merges"), *unknown = json_object_get(model, "unk_token");
    int rc = 0;

    if (!json_is_object(model))
        return tt_fail(TT_EDATA, "%s: no model in it, so this is not a tokenizer.json", where);
    /* files of the first versions have no type; they were all BPE */
    if (json_object_get(model, "type") && strcmp(type_of(model), "BPE") != 0)
        return tt_fail(TT_EDATA, "%s: model '%s' is not supported (byte-level BPE only)", where, type_of(model));
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        TT_TRY(refuse_option(model, refused[i], where));
    TT_TRY(read_vocab(t, json_object_get(model, "vocab"), where));
    if (!json_is_array(merges))
        return tt_fail(TT_EDATA, "%s: model.merges is missing or not an array", where);
    for (size_t i = 0; i < json_array_size(merges); i++)
        TT_TRY(read_merge(t, json_array_get(merges, i), i, where));
    t->unknown = json_is_string(unknown)
                     ? (int32_t)tt_strmap_get(&t->vocab, json_string_value(unknown), json_string_length(unknown), -1)
                     : -1;
    t->fuse_unknown = json_is_true(json_object_get(model, "fuse_unk"));
    t->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    index_bytes(t);
    if (t->ignore_merges) {
        for (int64_t id = 0; id < t->vocab_size; id++) {
            if (t->token[id].is_byte_level)
                tt_strmap_set(&t->words, t->bytes.text + t->token[id].at, t->token[id].size, id);
        }
    }
out:
    return rc;
}

static int read_added(struct tt_tokenizer *t, const json_t *json, const char *where)
{
    int rc = 0;

    TT_TRY(tt_added_init(&t->added, json, where));
    for (int i = 0; i < t->added.n; i++) {
        const struct tt_added_token *a = &t->added.token[i];
        int64_t known = tt_strmap_get(&t->vocab, a->content, a->size, a->id);

        if (known != a->id)
            return tt_fail(TT_EDATA, "%s: added token '%.80s' has the id %d, but model.vocab says %lld", where,
                           a->content, a->id, (long long)known);
        TT_TRY(set_token(t, where, a->id, a->content, a->size, false));
        t->token[a->id].is_special = a->is_special;
        tt_strmap_set(&t->vocab, a->content, a->size, a->id);
    }
out:
    return rc;
}

static int check_normalizer(const json_t *json, const char *where, int depth)
{
    const json_t *list = json_object_get(json, "normalizers");
    int rc = 0;

    if (!json || json_is_null(json))
        return 0;
    if (strcmp(type_of(json), "Sequence") != 0 || depth > DEEPEST_SEQUENCE)
        return tt_fail(TT_EDATA, "%s: normalizer '%s' is not supported (null is)", where, type_of(json));
    for (size_t i = 0; i < json_array_size(list); i++)
        TT_TRY(check_normalizer(json_array_get(list, i), where, depth + 1));
out:
    return rc;
}

static int check_decoder(const json_t *json, const char *where, int depth)
{
    const json_t *list = json_object_get(json, "decoders");
    int rc = 0;

    if (!json || json_is_null(json) || strcmp(type_of(json), "ByteLevel") == 0)
        return 0;
    if (strcmp(type_of(json), "Sequence") != 0 || depth > DEEPEST_SEQUENCE)
        return tt_fail(TT_EDATA, "%s: decoder '%s' is not supported (byte-level BPE only: ByteLevel)", where,
                       type_of(json));
    for (size_t i = 0; i < json_array_size(list); i++)
        TT_TRY(check_decoder(json_array_get(list, i), where, depth + 1));
out:
    return rc;
}

/* ret_begin/end: the special tokens that the post-processor puts around a single text, -1 for none. */
static int read_post_processor(const struct tt_tokenizer *t, const json_t *json, const char *where, int depth,
                               int32_t *ret_begin, int32_t *ret_end)
{
    const json_t *list = json_object_get(json, "processors"), *single = json_object_get(json, "single");
    size_t n = json_array_size(single);
    int rc = 0;

    if (!json || json_is_null(json) || strcmp(type_of(json), "ByteLevel") == 0)
        return 0;
    if (strcmp(type_of(json), "Sequence") == 0 && depth < DEEPEST_SEQUENCE) {
        for (size_t i = 0; i < json_array_size(list); i++)
            TT_TRY(read_post_processor(t, json_array_get(list, i), where, depth + 1, ret_begin, ret_end));
        goto out;
    }
    if (strcmp(type_of(json), "TemplateProcessing") != 0)
        return tt_fail(TT_EDATA,
                       "%s: post_processor '%s' is not supported (ByteLevel, TemplateProcessing and null are)", where,
                       type_of(json));
    for (int end = 0; end < 2 && n; end++) {
        const json_t *special = json_object_get(json_array_get(single, end ? n - 1 : 0), "SpecialToken");
        const char *name = json_string_value(json_object_get(special, "id"));

        if (name)
            *(end ? ret_end : ret_begin) = tt_tokenizer_token_to_id(t, name);
    }
out:
    return rc;
}

/* A token named by tokenizer_config.json, as a string or as an object with content. */
static int read_named(const struct tt_tokenizer *t, const json_t *config, const char *key, const char *where,
                      int32_t *ret_id)
{
    const json_t *value = json_object_get(config, key);
    const char *name = json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);

    if (!value || json_is_null(value))
        return 0;
    if (!name)
        return tt_fail(TT_EDATA, "%s: %s of tokenizer_config.json is neither a string nor an object with content",
                       where, key);
    *ret_id = tt_tokenizer_token_to_id(t, name);
    if (*ret_id < 0)
        return tt_fail(TT_EDATA, "%s: %s '%s' of tokenizer_config.json is not a token of tokenizer.json", where, key,
                       name);
    return 0;
}

static int read_ends(struct tt_tokenizer *t, const json_t *post_processor, const json_t *config, const char *where)
{
    int32_t begin = -1, end = -1;
    int rc = 0;

    TT_TRY(read_post_processor(t, post_processor, where, 0, &begin, &end));
    t->bos = begin; /* without a config, the template is all that is known */
    t->eos = end;
    TT_TRY(read_named(t, config, "bos_token", where, &t->bos));
    TT_TRY(read_named(t, config, "eos_token", where, &t->eos));
    t->adds_bos = begin >= 0 && begin == t->bos;
out:
    return rc;
}

static bool is_lfs_pointer(const char *text, size_t size)
{
    static const char begin[] = "version https://git-lfs";

    return size >= sizeof begin - 1 && memcmp(text, begin, sizeof begin - 1) == 0;
}

static int read_all(struct tt_tokenizer *t, const char *where)
{
    json_t *root = NULL, *config = NULL;
    char *config_where = tt_format("%s: tokenizer_config.json", where);
    int rc = 0;

    if (is_lfs_pointer(t->json, t->json_size)) {
        rc = tt_fail(TT_EDATA, "%s is a Git LFS pointer (%zu bytes), not a tokenizer\nhelp: git lfs pull", where,
                     t->json_size);
        goto out;
    }
    TT_TRY(tt_json_parse(t->json, t->json_size, where, &root));
    if (t->config)
        TT_TRY(tt_json_parse(t->config, t->config_size, config_where, &config));
    TT_TRY(read_model(t, json_object_get(root, "model"), where));
    TT_TRY(read_added(t, json_object_get(root, "added_tokens"), where));
    TT_TRY(check_normalizer(json_object_get(root, "normalizer"), where, 0));
    TT_TRY(tt_pretokenizer_init(&t->pretokenizer, json_object_get(root, "pre_tokenizer"), where));
    TT_TRY(check_decoder(json_object_get(root, "decoder"), where, 0));
    TT_TRY(read_ends(t, json_object_get(root, "post_processor"), config, where));
    t->hash = tt_hash64(t->json, t->json_size, 0);
    t->hash = tt_hash64(&t->bos, sizeof t->bos, t->hash);
    t->hash = tt_hash64(&t->eos, sizeof t->eos, t->hash);
out:
    json_decref(root);
    json_decref(config);
    tt_free(config_where);
    return rc;
}

int tt_tokenizer_parse(const char *json, size_t json_size, const char *config, size_t config_size, const char *where,
                       struct tt_tokenizer **ret_tokenizer)
{
    struct tt_tokenizer *t = tt_calloc(1, sizeof *t);
    int rc = 0;

    t->where = tt_strdup(where);
    t->json = tt_calloc(json_size + 1, 1);
    memcpy(t->json, json, json_size);
    t->json_size = json_size;
    if (config) {
        t->config = tt_calloc(config_size + 1, 1);
        memcpy(t->config, config, config_size);
        t->config_size = config_size;
    }
    t->bos = t->eos = t->unknown = -1;
    TT_TRY(read_all(t, where));
    *ret_tokenizer = t;
    return 0;
out:
    tt_tokenizer_free(t);
    return rc;
}

/* No tokenizer.json in the folder: says which other kind is there. */
static int fail_kind(const char *folder)
{
    static const struct {
        const char *file, *kind, *help;
    } other[] = {
        {"tokenizer.model", "a SentencePiece or tiktoken model",
         "save the tokenizer as tokenizer.json with transformers"},
        {"vocab.txt", "a WordPiece vocabulary", "use a model with a byte-level BPE tokenizer"},
        {"vocab.json", "vocab.json and merges.txt", "save the tokenizer as tokenizer.json with transformers"},
        {"tekken.json", "Mistral's tekken", "save the tokenizer as tokenizer.json with transformers"},
    };

    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
        char *path = tt_format("%s/%s", folder, other[i].file);
        bool exists = tt_path_exists(path);

        tt_free(path);
        if (exists)
            return tt_fail(TT_EDATA, "'%s' has no tokenizer.json but %s (%s), which titan does not read\nhelp: %s",
                           folder, other[i].file, other[i].kind, other[i].help);
    }
    return tt_fail(TT_EDATA,
                   "'%s' has no tokenizer.json\nhelp: point model.hf_assets_path at a folder that holds "
                   "tokenizer.json and tokenizer_config.json, or leave it out for the built-in tokenizer",
                   folder);
}

static bool has_suffix(const char *text, const char *suffix)
{
    size_t n = strlen(text), m = strlen(suffix);

    return n >= m && strcmp(text + n - m, suffix) == 0;
}

static int load_builtin(struct tt_tokenizer **ret_tokenizer)
{
    struct tt_builtin json = tt_builtin_get(TT_BUILTIN_TOKENIZER);
    struct tt_builtin config = tt_builtin_get(TT_BUILTIN_TOKENIZER_CONFIG);

    return tt_tokenizer_parse(json.bytes, json.size, config.bytes, config.size, json.name, ret_tokenizer);
}

int tt_tokenizer_load(const char *path, struct tt_tokenizer **ret_tokenizer)
{
    char *json_path = NULL, *config_path = NULL, *json = NULL, *config = NULL, *slash;
    size_t json_size = 0, config_size = 0;
    int rc = 0;

    if (!path || !*path)
        return load_builtin(ret_tokenizer);
    if (has_suffix(path, ".model"))
        return tt_fail(TT_EDATA,
                       "'%s' is a SentencePiece or tiktoken model, which titan does not read\nhelp: save the "
                       "tokenizer as tokenizer.json with transformers",
                       path);
    json_path = tt_path_is_folder(path) ? tt_format("%s/tokenizer.json", path) : tt_strdup(path);
    if (tt_path_is_folder(path) && !tt_path_exists(json_path)) {
        rc = fail_kind(path);
        goto out;
    }
    TT_TRY(tt_file_read(json_path, &json, &json_size));
    slash = strrchr(json_path, '/');
    config_path =
        tt_format("%.*s/tokenizer_config.json", slash ? (int)(slash - json_path) : 1, slash ? json_path : ".");
    if (tt_path_exists(config_path))
        TT_TRY(tt_file_read(config_path, &config, &config_size));
    TT_TRY(tt_tokenizer_parse(json, json_size, config, config_size, json_path, ret_tokenizer));
out:
    tt_free(json_path);
    tt_free(config_path);
    tt_free(json);
    tt_free(config);
    return rc;
}

void tt_tokenizer_free(struct tt_tokenizer *t)
{
    if (!t)
        return;
    tt_free(t->where);
    tt_free(t->json);
    tt_free(t->config);
    tt_strmap_release(&t->vocab);
    tt_strmap_release(&t->words);
    tt_bpe_release(&t->bpe);
    tt_pretokenizer_release(&t->pretokenizer);
    tt_added_release(&t->added);
    tt_free(t->token);
    tt_text_release(&t->bytes);
    tt_free(t);
}

int64_t tt_tokenizer_vocab_size(const struct tt_tokenizer *tokenizer)
{
    return tokenizer->vocab_size;
}

int32_t tt_tokenizer_bos(const struct tt_tokenizer *tokenizer)
{
    return tokenizer->bos;
}

int32_t tt_tokenizer_eos(const struct tt_tokenizer *tokenizer)
{
    return tokenizer->eos;
}

bool tt_tokenizer_adds_bos(const struct tt_tokenizer *tokenizer)
{
    return tokenizer->adds_bos;
}

int32_t tt_tokenizer_token_to_id(const struct tt_tokenizer *tokenizer, const char *token)
{
    return (int32_t)tt_strmap_get(&tokenizer->vocab, token, strlen(token), -1);
}

bool tt_tokenizer_is_special(const struct tt_tokenizer *tokenizer, int32_t id)
{
    return id >= 0 && id < tokenizer->vocab_size && tokenizer->token[id].is_special;
}

uint64_t tt_tokenizer_hash(const struct tt_tokenizer *tokenizer)
{
    return tokenizer->hash;
}

const char *tt_tokenizer_where(const struct tt_tokenizer *tokenizer)
{
    return tokenizer->where;
}

struct tt_tokenizer_files tt_tokenizer_files(const struct tt_tokenizer *t)
{
    return (struct tt_tokenizer_files){t->json, t->config, t->json_size, t->config_size};
}

int tt_tokenizer_decode(const struct tt_tokenizer *t, const int32_t *ids, int64_t n, struct tt_text *text)
{
    for (int64_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= t->vocab_size || !t->token[ids[i]].is_used)
            return tt_fail(TT_EDATA, "%s: %d is not the id of a token (the vocabulary has %lld)", t->where, ids[i],
                           (long long)t->vocab_size);
        tt_text_add_bytes(text, t->bytes.text + t->token[ids[i]].at, t->token[ids[i]].size);
    }
    return 0;
}

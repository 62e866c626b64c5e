/* SPDX-License-Identifier: MIT
 *
 * The reader of tokenizer.json and tokenizer_config.json. The order of reading is: pre_tokenizer, which says
 * whether words are spelt in bytes, model (tokenizer_model.c), normalizer, added tokens, decoder, post_processor,
 * then BOS and EOS.
 */
#include "core/tokenizer/tokenizer.h"

#include <string.h>

#include "core/base/hash.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/data/builtin.h"
#include "core/os/file.h"
#include "core/tokenizer/gguf.h"
#include "core/tokenizer/postprocessor.h"
#include "core/tokenizer/tokenizer_struct.h"

/*
 * The `tokenizers` library does not read the ids of added tokens. It gives those that model.vocab lacks the ids after
 * the number of tokens in it, in their order; older versions, the ids after the largest one of an added token. Both
 * are what it has written, unless the file was made in another way.
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
        TT_TRY(tt_tokenizer_set_token(t, where, a->id, a->content, a->size, false));
        t->token[a->id].is_special = a->is_special;
        tt_strmap_set(&t->vocab, a->content, a->size, a->id);
    }
out:
    return rc;
}

/* With a normalizer, the library may see the beginning of the text at another position. */
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
    int32_t begin = -1, end = -1;
    int rc = 0;

    TT_TRY(tt_postprocessor_read(t, post_processor, &begin, &end));
    t->bos = begin; /* without a config, the template is the only source */
    t->eos = end;
    TT_TRY(read_named(t, config, "bos_token", where, &t->bos));
    TT_TRY(read_named(t, config, "eos_token", where, &t->eos));
    t->adds_bos = begin >= 0 && begin == t->bos;
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

    if (t->config && tt_json_parse(t->config, t->config_size, config_where, ret_config) < 0) {
        *ret_problem = tt_strdup(tt_error_message());
        tt_free(t->config);
        t->config = NULL;
        t->config_size = 0;
    }
    tt_free(config_where);
}

/* The path of a file in the folder of tokenizer.json. */
static char *path_beside(const char *json_path, const char *name)
{
    const char *slash = strrchr(json_path, '/');

    return tt_format("%.*s%s", slash ? (int)(slash - json_path + 1) : 0, json_path, name);
}

/* The chat template of tokenizer_config.json. Older files have a list of templates with names. */
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
        t->chat_template = tt_strdup(json_string_value(value));
        t->chat_where = path_beside(t->where, "tokenizer_config.json");
    }
}

static int check_ends(const struct tt_tokenizer *t, const char *problem)
{
    if (t->bos < 0 || t->eos < 0)
        return tt_fail(TT_EDATA, "%s\nhelp: it says which tokens begin and end a document; save the tokenizer again",
                       problem);
    tt_note("%s; BOS and EOS are those of the template of tokenizer.json", problem);
    return 0;
}

/* What the library does to the text of one call, which is not a document there. transformers sets both anew, too. */
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

    if (is_lfs_pointer(t->json, t->json_size)) {
        rc = tt_fail(TT_EDATA, "%s is a Git LFS pointer (%zu bytes), not a tokenizer\nhelp: git lfs pull", where,
                     t->json_size);
        goto out;
    }
    TT_TRY(tt_json_parse(t->json, t->json_size, where, &root));
    parse_config(t, where, &config, &problem);
    TT_TRY(tt_tokenizer_check_type(json_object_get(root, "model"), where));
    note_unused(root, where);
    TT_TRY(tt_pretokenizer_init(&t->pretokenizer, json_object_get(root, "pre_tokenizer"), where));
    t->is_byte_level = t->pretokenizer.prefix_step >= 0;
    TT_TRY(tt_tokenizer_read_model(t, json_object_get(root, "model"), where));
    TT_TRY(read_added(t, json_object_get(root, "added_tokens"), json_object_get(root, "normalizer"), where));
    TT_TRY(check_first(t, where));
    TT_TRY(tt_decoder_init(&t->decoder, json_object_get(root, "decoder"), t->is_byte_level, where));
    TT_TRY(read_ends(t, json_object_get(root, "post_processor"), config, where));
    if (problem)
        TT_TRY(check_ends(t, problem));
    read_chat_template(t, config);
    t->hash = tt_postprocessor_hash(t);
    t->hash = tt_hash64(&t->bos, sizeof t->bos, t->hash);
    t->hash = tt_hash64(&t->eos, sizeof t->eos, t->hash);
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

/* Fails because the folder has no tokenizer.json; names the other kind of tokenizer that it has. */
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
                   folder, tt_key_name(TT_KEY_MODEL_FOLDER));
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
 * Reads the file that names BOS and EOS: tokenizer_config.json, or, if that is not JSON, special_tokens_map.json,
 * which says the same.
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
    tt_note("%s: %s; BOS and EOS are those of special_tokens_map.json", json_path, problem);
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

/* The chat template of a file of its own counts more than that of tokenizer_config.json. */
static void set_chat_template(struct tt_tokenizer *t, char *text, char *where)
{
    tt_free(t->chat_template);
    tt_free(t->chat_where);
    t->chat_template = text;
    t->chat_where = where;
}

static int load_gguf(const char *path, struct tt_tokenizer **ret_tokenizer)
{
    char *json = NULL, *config = NULL, *chat = NULL;
    size_t json_size = 0, config_size = 0, chat_size = 0;
    struct tt_gguf file = {0};
    int rc = 0;

    TT_TRY(tt_gguf_open(path, &file));
    TT_TRY(tt_gguf_tokenizer_file(&file, "tokenizer.json", &json, &json_size));
    TT_TRY(tt_gguf_tokenizer_file(&file, "tokenizer_config.json", &config, &config_size));
    TT_TRY(tt_gguf_tokenizer_file(&file, "chat_template.jinja", &chat, &chat_size));
    if (!json) {
        rc = tt_fail(TT_EDATA, "'%s' has no tokenizer", path);
        goto out;
    }
    TT_TRY(tt_tokenizer_parse(json, json_size, config, config_size, path, ret_tokenizer));
    if (chat)
        set_chat_template(*ret_tokenizer, chat, tt_strdup(path));
    chat = NULL;
out:
    tt_gguf_release(&file);
    tt_free(json);
    tt_free(config);
    tt_free(chat);
    return rc;
}

int tt_tokenizer_load(const char *path, struct tt_tokenizer **ret_tokenizer)
{
    char *json_path = NULL, *json = NULL, *config = NULL, *chat = NULL;
    size_t json_size = 0, config_size = 0, chat_size = 0;
    bool is_folder = false, exists = false;
    int rc = 0;

    if (!path || !*path)
        return load_builtin(ret_tokenizer);
    if (tt_gguf_is_path(path))
        return tt_path_blame_missing(load_gguf(path, ret_tokenizer), path, TT_KEY_MODEL_FOLDER);
    if (has_suffix(path, ".model")) {
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
    TT_TRY(tt_file_read(json_path, &json, &json_size));
    TT_TRY(read_config(json_path, &config, &config_size));
    TT_TRY(read_beside(json_path, "chat_template.jinja", &chat, &chat_size));
    TT_TRY(tt_tokenizer_parse(json, json_size, config, config_size, json_path, ret_tokenizer));
    if (chat)
        set_chat_template(*ret_tokenizer, chat, path_beside(json_path, "chat_template.jinja"));
    chat = NULL;
out:
    if (rc < 0)
        rc = tt_path_blame_missing(rc, path, TT_KEY_MODEL_FOLDER);
    tt_free(json_path);
    tt_free(json);
    tt_free(config);
    tt_free(chat);
    return rc;
}

void tt_tokenizer_free(struct tt_tokenizer *t)
{
    if (!t)
        return;
    tt_free(t->where);
    tt_free(t->json);
    tt_free(t->config);
    tt_free(t->chat_template);
    tt_free(t->chat_where);
    tt_strmap_release(&t->vocab);
    tt_strmap_release(&t->words);
    tt_strmap_release(&t->chars);
    tt_bpe_release(&t->bpe);
    tt_pretokenizer_release(&t->pretokenizer);
    tt_added_release(&t->added);
    tt_decoder_release(&t->decoder);
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

uint64_t tt_tokenizer_hash(const struct tt_tokenizer *tokenizer)
{
    return tokenizer->hash;
}

const char *tt_tokenizer_chat_template(const struct tt_tokenizer *tokenizer)
{
    return tokenizer->chat_template;
}

const char *tt_tokenizer_chat_template_where(const struct tt_tokenizer *tokenizer)
{
    return tokenizer->chat_where;
}

const char *tt_tokenizer_where(const struct tt_tokenizer *tokenizer)
{
    return tokenizer->where;
}

struct tt_tokenizer_files tt_tokenizer_files(const struct tt_tokenizer *t)
{
    return (struct tt_tokenizer_files){t->json, t->config, t->json_size, t->config_size};
}

bool tt_tokenizer_has(const struct tt_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->vocab_size && t->token[id].is_used;
}

int tt_tokenizer_decode_part(const struct tt_tokenizer *t, struct tt_decoding *decoding, const int32_t *ids, int64_t n,
                             struct tt_text *text)
{
    for (int64_t i = 0; i < n; i++) {
        if (!tt_tokenizer_has(t, ids[i])) {
            return tt_fail(TT_EDATA, "%s: %d is not the id of a token (the vocabulary has %lld)", t->where, ids[i],
                           (long long)t->vocab_size);
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

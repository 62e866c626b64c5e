/* SPDX-License-Identifier: MIT
 *
 * The datasets, one row each, and the cache of packed tokens. The name of a cache file is a hash of everything that
 * determines its content. So a changed corpus or tokenizer gives a new file. A damaged file is rebuilt.
 *
 * To add a dataset:
 *   1. A row in the table below, with a variant of its own.
 *   2. open_source for text, prepare_tokens for packed tokens.
 *   3. A case in tests/unit/test_dataset.c.
 */
#include "core/data/dataset.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <sys/stat.h>
#include <unistd.h>

#include "core/base/builtin.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/data/chat.h"
#include "core/data/html.h"
#include "core/data/source.h"
#include "core/os/file.h"
#include "core/tokenizer/charset.h"

enum {
    CACHE_FORMAT = 1,
    CHAT_FORMAT = 2,
    HTML_FORMAT = 1
}; /* change this number if the same files would give other tokens */

enum variant { KJV_TRAIN, KJV_VALIDATION, TEXT, JSONL, PARQUET, ARROW, SFT, TOKENS, TOKENS_U16 };

static const struct tt_dataset_kind kinds[] = {
    {"kjv", KJV_TRAIN, false, true},
    {"kjv_validation", KJV_VALIDATION, false, true},
    {"text", TEXT, true, true},
    {"jsonl", JSONL, true, true},
    {"c4", JSONL, true, true},
    {"c4_test", JSONL, true, true},
    {"parquet", PARQUET, true, true},
    {"arrow", ARROW, true, true},
    {"jsonl_sft", SFT, true, true},
    {"tokens", TOKENS, true, false},
    {"tokens_u16", TOKENS_U16, true, false},
};

enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

/* Fails with a list of the datasets and the nearest name. */
static int fail_unknown(const char *name)
{
    const char *names[N_KINDS], *near;
    struct tt_text list = {0};
    int rc;

    for (int i = 0; i < N_KINDS; i++) {
        tt_text_add(&list, "%s%s", i ? ", " : "", kinds[i].name);
        names[i] = kinds[i].name;
    }
    near = tt_text_meant(name, names, N_KINDS);
    rc = tt_fail(TT_EUSAGE, "dataset '%s' is not one of %s%s%s%s", name, list.text,
                 near ? "\nhelp: did you mean '" : "", near ? near : "", near ? "'?" : "");
    tt_text_release(&list);
    return rc;
}

int tt_dataset_find(const char *name, const struct tt_dataset_kind **ret_kind)
{
    for (int i = 0; i < N_KINDS; i++) {
        if (strcmp(name, kinds[i].name) != 0)
            continue;
        *ret_kind = &kinds[i];
        return 0;
    }
    return fail_unknown(name);
}

static int check_kind(const struct tt_dataset_spec *spec, const struct tt_dataset_kind **ret_kind)
{
    int rc = tt_dataset_find(spec->name, ret_kind);

    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): tt_fail's codes are negative
    if (rc == 0 && (*ret_kind)->needs_path && (!spec->path || !*spec->path))
        rc = tt_fail(TT_EUSAGE, "dataset '%s' needs a path\nhelp: set %s (or %s) to the file or folder", spec->name,
                     TT_KEY_NAME(training.dataset_path), TT_KEY_NAME(validation.dataset_path));
    return rc;
}

static int check_spec(const struct tt_dataset_spec *spec, const struct tt_dataset_kind **ret_kind)
{
    const struct tt_tokenizer_info *tokenizer;
    char has[32], rows[32];
    int rc = check_kind(spec, ret_kind);

    if (rc < 0 || !(*ret_kind)->is_text)
        return rc;
    if (!spec->tokenizer)
        return tt_fail(TT_EUSAGE, "dataset '%s' is text and needs a tokenizer", spec->name);
    tokenizer = tt_tokenizer_info(spec->tokenizer);
    if (spec->vocab_size && tokenizer->vocab_size > spec->vocab_size)
        return tt_fail_key(TT_EUSAGE, TT_KEY(model.vocab_size),
                           "the tokenizer has %s tokens (%s), %s is %s\nhelp: set %s to at least %lld, or %s to the "
                           "tokenizer of the model",
                           tt_text_count(has, sizeof has, tokenizer->vocab_size), tokenizer->where,
                           TT_KEY_NAME(model.vocab_size), tt_text_count(rows, sizeof rows, spec->vocab_size),
                           TT_KEY_NAME(model.vocab_size), (long long)tokenizer->vocab_size,
                           TT_KEY_NAME(model.hf_assets_path));
    return 0;
}

static void init_builtin(struct tt_source *source, struct tt_builtin builtin)
{
    int cap = 0;

    *source = (struct tt_source){
        .kind = TT_SOURCE_JSONL, .text_field = tt_strdup("text"), .builtin = builtin, .bytes = (int64_t)builtin.size};
    TT_PUSH(source->path, source->n_paths, cap) = tt_strdup(builtin.name);
}

static int open_source(const struct tt_dataset_kind *kind, const struct tt_dataset_spec *spec, struct tt_source *source)
{
    switch ((enum variant)kind->variant) {
    case KJV_TRAIN:
        init_builtin(source, tt_builtin_get(TT_BUILTIN_KJV_TRAIN));
        return 0;
    case KJV_VALIDATION:
        init_builtin(source, tt_builtin_get(TT_BUILTIN_KJV_VALIDATION));
        return 0;
    case TEXT:
        return tt_source_init(source, TT_SOURCE_TEXT, spec->path, NULL, NULL);
    case SFT:
        return tt_source_init(source, TT_SOURCE_LINES, spec->path, NULL, NULL);
    case PARQUET:
        return tt_source_init(source, TT_SOURCE_JSONL, spec->path, spec->text_field, ".parquet");
    case ARROW:
        return tt_source_init(source, TT_SOURCE_JSONL, spec->path, spec->text_field, ".arrow");
    default:
        return tt_source_init(source, TT_SOURCE_JSONL, spec->path, spec->text_field, NULL);
    }
}

struct packing {
    struct tt_encoder *encoder;
    struct tt_token_writer *writer;
    struct tt_ids ids;
    struct tt_chat *chat;
    struct tt_chat_ids chat_ids;
};

static int pack_document(void *arg, const char *text, size_t size)
{
    struct packing *p = arg;
    int rc = 0;

    p->ids.n = 0;
    TT_TRY(tt_encoder_encode_document(p->encoder, text, size, &p->ids));
    TT_TRY(tt_token_writer_add(p->writer, p->ids.id, NULL, p->ids.n));
out:
    return rc;
}

static int pack_conversation(void *arg, const char *line, size_t size)
{
    struct packing *p = arg;
    int rc = 0;

    TT_TRY(tt_chat_read(p->chat, line, size, &p->chat_ids));
    TT_TRY(tt_token_writer_add(p->writer, p->chat_ids.ids.id, p->chat_ids.counts.id, p->chat_ids.ids.n));
out:
    return rc;
}

static const char *template_of(const struct tt_dataset_spec *spec)
{
    return spec->chat_template ? spec->chat_template : "auto";
}

static int pack_source(const struct tt_source *source, uint64_t source_hash, const struct tt_dataset_spec *spec,
                       const char *path, struct tt_token_info *ret_info)
{
    const struct tt_tokenizer *t = spec->tokenizer;
    const struct tt_tokenizer_info *info = tt_tokenizer_info(t);
    struct tt_token_info about = {.tokenizer_hash = info->hash,
                                  .unicode = TT_UNICODE_VERSION,
                                  .source_hash = source_hash,
                                  .bos = info->bos,
                                  .eos = info->eos};
    struct packing p = {0};
    bool is_chat = source->kind == TT_SOURCE_LINES;
    char *what = tt_format("tokenizing %s", spec->name);
    int rc = 0;

    TT_TRY(is_chat ? tt_chat_new(t, template_of(spec), &p.chat) : tt_encoder_new(t, &p.encoder));
    TT_TRY(tt_token_writer_new(path, info->vocab_size, &p.writer));
    TT_TRY(tt_source_each(source, what, is_chat ? pack_conversation : pack_document, &p));
    TT_TRY(tt_token_writer_finish(p.writer, &about, ret_info));
    if (!is_chat && about.bos < 0 && about.eos < 0 && ret_info->n_documents > 1)
        tt_warn(
            "%s names no token that begins or ends a document, so the %lld documents of %s follow each other without "
            "a separator\nhelp: a tokenizer_config.json beside it says which: {\"eos_token\": \"...\"}",
            info->where, (long long)ret_info->n_documents, spec->name);
out:
    tt_token_writer_free(p.writer);
    tt_encoder_free(p.encoder);
    tt_ids_release(&p.ids);
    tt_chat_free(p.chat);
    tt_chat_ids_release(&p.chat_ids);
    tt_free(what);
    return rc;
}

int tt_dataset_pack(const struct tt_dataset_spec *spec, const char *path, struct tt_token_info *ret_info)
{
    const struct tt_dataset_kind *kind = NULL;
    struct tt_source source = {0};
    uint64_t hash = 0;
    int rc = 0;

    TT_TRY(check_spec(spec, &kind));
    if (!kind->is_text)
        return tt_fail(TT_EUSAGE, "dataset '%s' is already packed\nhelp: train on it with %s=%s", spec->name,
                       TT_KEY_NAME(training.dataset), spec->name);
    TT_TRY(open_source(kind, spec, &source));
    TT_TRY(tt_source_hash(&source, &hash));
    TT_TRY(pack_source(&source, hash, spec, path, ret_info));
out:
    tt_source_release(&source);
    return rc;
}

int tt_dataset_each(const struct tt_dataset_spec *spec, const char *what, tt_document_fn fn, void *arg)
{
    const struct tt_dataset_kind *kind = NULL;
    struct tt_source source = {0};
    int rc = 0;

    TT_TRY(check_kind(spec, &kind));
    if (!kind->is_text)
        return tt_fail(TT_EUSAGE, "dataset '%s' contains tokens, not text", spec->name);
    TT_TRY(open_source(kind, spec, &source));
    rc = tt_source_each(&source, what, fn, arg);
out:
    tt_source_release(&source);
    return rc;
}

/* Whether path is an intact cache of this source and tokenizer. Errors other than damage are returned. */
static int find_cache(const char *path, uint64_t source_hash, uint64_t tokenizer_hash, struct tt_token_info *ret_info,
                      bool *ret_found)
{
    bool exists = false;
    int rc = 0;

    *ret_found = false;
    TT_TRY(tt_path_exists(path, &exists));
    if (!exists)
        goto out;
    rc = tt_tokenfile_check(path, false, ret_info);
    if (rc == TT_EDATA)
        tt_note("making the token cache again: %s", tt_error_message());
    *ret_found = rc == 0 && ret_info->source_hash == source_hash && ret_info->tokenizer_hash == tokenizer_hash;
    rc = rc == TT_EDATA ? 0 : rc;
out:
    return rc;
}

/* A hash of everything that determines the tokens, besides the files and the tokenizer. A chat template may write any
 * token that tokenizer_config.json names. */
static uint64_t hash_reading(const struct tt_source *source, const struct tt_dataset_spec *spec)
{
    const struct tt_tokenizer_info *files = tt_tokenizer_info(spec->tokenizer);
    const char *template = files->chat_template, *name = template_of(spec);
    uint64_t hash = (uint64_t)source->kind;

    if (source->kind == TT_SOURCE_LINES) {
        hash = files->config ? tt_hash64(files->config, files->config_size, hash) : hash;
        hash = template ? tt_hash64(template, strlen(template), hash) : hash;
        hash = tt_hash64(name, strlen(name), hash) + CHAT_FORMAT;
    }
    for (int i = 0; i < source->n_paths && source->kind == TT_SOURCE_TEXT; i++)
        if (tt_html_is_name(source->path[i])) /* where it is among the files determines what becomes of its bytes */
            hash = tt_mix64(hash + (uint64_t)i + HTML_FORMAT);
    return tt_hash64(source->text_field, strlen(source->text_field), hash);
}

/* Whether this is the name of an unfinished token file; earlier versions used .tmp.NUMBER. */
static bool is_unfinished(const char *name)
{
    static const char old[] = ".tokens.tmp.";
    const char *found = strstr(name, old);

    return tt_file_is_temporary(name, ".tokens") ||
           (found && found[strlen(old)] && strspn(found + strlen(old), "0123456789") == strlen(found + strlen(old)));
}

/* Removes the files that killed writers left in the cache. A living writer holds a lock on its file, so that file
 * stays. A file that cannot be removed stays too; it only takes up space. */
static void sweep_cache(const char *folder)
{
    char **names = NULL;
    int n = 0;

    if (tt_folder_list(folder, &names, &n) < 0)
        return;
    for (int i = 0; i < n; i++) {
        char *path = tt_format("%s/%s", folder, names[i]);

        if (is_unfinished(names[i]))
            tt_file_sweep(path);
        tt_free(path);
    }
    tt_names_free(names, n);
}

static int prepare_text(const struct tt_dataset_kind *kind, const struct tt_dataset_spec *spec,
                        struct tt_dataset_ref *ret_ref)
{
    struct tt_source source = {0};
    uint64_t tokenizer_hash = tt_tokenizer_info(spec->tokenizer)->hash, key[5];
    char *path = NULL;
    bool found = false;
    int rc = 0;

    if (!spec->cache_dir || !*spec->cache_dir)
        return tt_fail(TT_EINTERNAL, "dataset '%s' needs a cache folder", spec->name);
    TT_TRY(open_source(kind, spec, &source));
    TT_TRY(tt_source_hash(&source, &key[0]));
    key[1] = tokenizer_hash;
    key[2] = hash_reading(&source, spec);
    key[3] = CACHE_FORMAT;
    key[4] = tt_hash64(TT_UNICODE_VERSION, strlen(TT_UNICODE_VERSION), 0);
    TT_TRY(tt_folder_make(spec->cache_dir));
    sweep_cache(spec->cache_dir);
    path = tt_format("%s/%s-%016" PRIx64 ".tokens", spec->cache_dir, spec->name, tt_hash64(key, sizeof key, 0));
    if (strlen(path) >= TT_DATASET_PATH_BYTES) {
        TT_TRY(
            tt_fail(TT_EUSAGE, "the path of the cache is longer than %d bytes: %s", TT_DATASET_PATH_BYTES - 1, path));
    }
    TT_TRY(find_cache(path, key[0], tokenizer_hash, &ret_ref->info, &found));
    if (!found)
        TT_TRY(pack_source(&source, key[0], spec, path, &ret_ref->info));
    (void)snprintf(ret_ref->path, sizeof ret_ref->path, "%s", path);
out:
    tt_source_release(&source);
    tt_free(path);
    return rc;
}

/* Fails with the first token beyond the vocabulary. */
static int fail_vocabulary(const struct tt_dataset_ref *ref, int64_t vocab_size)
{
    enum { BLOCK = 4096 };
    struct tt_dataset *d = NULL;
    int32_t ids[BLOCK] = {0};
    int64_t at = 0, i = 0, n = 0;
    int rc = 0;

    TT_TRY(tt_dataset_open(ref, &d));
    for (at = 0; at < ref->info.n_tokens && i == n; at += n) {
        n = ref->info.n_tokens - at < BLOCK ? ref->info.n_tokens - at : BLOCK;
        TT_TRY(tt_dataset_copy(d, at, n, ids));
        for (i = 0; i < n && ids[i] < vocab_size;)
            i++;
    }
    rc = tt_fail(TT_EDATA,
                 "%s: token id %lld at position %lld, but %s is %lld (largest id in the file: %lld)\nhelp: set %s to "
                 "at least %lld, or use the model this file was made for",
                 ref->path, (long long)ids[i < n ? i : n - 1], (long long)(at - n + i), TT_KEY_NAME(model.vocab_size),
                 (long long)vocab_size, (long long)ref->info.max_id, TT_KEY_NAME(model.vocab_size),
                 (long long)ref->info.max_id + 1);
out:
    tt_dataset_free(d);
    return rc;
}

/* Checks the tokenizer, since tokens mean something only with the tokenizer that made them. */
static int check_tokenizer(const struct tt_dataset_spec *spec, const struct tt_token_info *info)
{
    const struct tt_tokenizer *t = spec->tokenizer;

    if (!t || !info->tokenizer_hash || info->tokenizer_hash == tt_tokenizer_info(t)->hash)
        return 0;
    return tt_fail(TT_EDATA,
                   "'%s' was packed with another tokenizer (hash %016" PRIx64 "), not with %s (hash %016" PRIx64
                   ")\nhelp: set %s to the folder of its tokenizer, or pack the text again",
                   spec->path, info->tokenizer_hash, tt_tokenizer_info(t)->where, tt_tokenizer_info(t)->hash,
                   TT_KEY_NAME(model.hf_assets_path));
}

int tt_dataset_peek(const struct tt_dataset_spec *spec)
{
    const struct tt_dataset_kind *kind = NULL;
    struct tt_token_info info = {0};
    int rc = 0;

    TT_TRY(tt_dataset_find(spec->name, &kind));
    if (kind->is_text || !spec->path)
        goto out;
    TT_TRY(tt_tokenfile_peek(spec->path, kind->variant == TOKENS_U16, &info));
    rc = check_tokenizer(spec, &info);
out:
    return rc;
}

static int prepare_tokens(const struct tt_dataset_kind *kind, const struct tt_dataset_spec *spec,
                          struct tt_dataset_ref *ret_ref)
{
    int rc = 0;

    if (strlen(spec->path) >= sizeof ret_ref->path)
        return tt_fail(TT_EUSAGE, "dataset_path is longer than %d bytes", TT_DATASET_PATH_BYTES - 1);
    TT_TRY(tt_tokenfile_check(spec->path, kind->variant == TOKENS_U16, &ret_ref->info));
    (void)snprintf(ret_ref->path, sizeof ret_ref->path, "%s", spec->path);
    rc = check_tokenizer(spec, &ret_ref->info);
out:
    return rc;
}

int tt_dataset_prepare(const struct tt_dataset_spec *spec, struct tt_dataset_ref *ret_ref)
{
    const struct tt_dataset_kind *kind = NULL;
    struct tt_dataset_ref *ref = tt_calloc(1, sizeof *ref);
    int rc = 0;

    TT_TRY(check_spec(spec, &kind));
    (void)snprintf(ref->name, sizeof ref->name, "%s", spec->name);
    TT_TRY(kind->is_text ? prepare_text(kind, spec, ref) : prepare_tokens(kind, spec, ref));
    if (spec->vocab_size && ref->info.max_id >= spec->vocab_size)
        TT_TRY(fail_vocabulary(ref, spec->vocab_size));
    *ret_ref = *ref;
out:
    if (rc < 0 && spec->path && !tt_source_is_there(spec->path))
        rc = tt_path_blame_missing(rc, spec->path, TT_KEY(training.dataset_path));
    tt_free(ref);
    return rc;
}

/* ---- an open dataset: reading its tokens, and checking that the file is still the one that was prepared ---- */

/* Adds the host to an error message, since on other hosts the same path may lead to another file. */
static int say_host(int rc)
{
    char host[256] = "";

    if (rc >= 0)
        return rc;
    (void)gethostname(host, sizeof host - 1);
    return tt_wrap(rc, "host '%s'", host);
}

static int fail_changed(const struct tt_dataset *d, const char *how)
{
    return say_host(tt_fail(TT_EDATA,
                            "'%s' does not hold the tokens that were prepared: %s\nhelp: the file was changed while it "
                            "was in use, or this host has another one under that name. The folder must be shared, or "
                            "every host must have the same file",
                            d->ref.path, how));
}

static int look(const struct tt_dataset *d, struct stat *ret_st)
{
    char how[96];

    if (fstat(d->fd, ret_st) < 0)
        return say_host(tt_fail(TT_EIO, "cannot stat '%s': %s", d->ref.path, strerror(errno)));
    if ((int64_t)ret_st->st_size == d->ref.info.file_size)
        return 0;
    (void)snprintf(how, sizeof how, "it has %lld bytes here, but %lld were prepared", (long long)ret_st->st_size,
                   (long long)d->ref.info.file_size);
    return fail_changed(d, how);
}

static double modified_sec(const struct stat *st)
{
    return (double)st->st_mtim.tv_sec + 1e-9 * (double)st->st_mtim.tv_nsec;
}

int tt_dataset_open(const struct tt_dataset_ref *ref, struct tt_dataset **ret_dataset)
{
    struct tt_dataset *d = tt_calloc(1, sizeof *d);
    struct stat st;
    int64_t bytes = 0;
    int rc;

    d->ref = *ref;
    d->fd = -1;
    TT_TRY(say_host(tt_file_open(ref->path, &d->fd, &bytes)));
    TT_TRY(look(d, &st));
    d->device = (uint64_t)st.st_dev;
    d->inode = (uint64_t)st.st_ino;
    d->modified_sec = modified_sec(&st);
    if (ref->info.offsets_at)
        TT_TRY(say_host(tt_tokenfile_offsets(d->fd, ref->path, &ref->info, &d->offsets)));
    *ret_dataset = d;
    return 0;
out:
    tt_dataset_free(d);
    return rc;
}

void tt_dataset_free(struct tt_dataset *dataset)
{
    if (!dataset)
        return;
    if (dataset->fd >= 0)
        (void)close(dataset->fd);
    tt_free(dataset->offsets);
    tt_free(dataset);
}

int tt_dataset_verify(struct tt_dataset *dataset)
{
    const struct tt_dataset_ref *ref = &dataset->ref;
    uint64_t digest = 0;
    struct stat st;
    char how[96];
    int rc = 0;

    TT_TRY(look(dataset, &st));
    TT_TRY(say_host(tt_tokenfile_digest(dataset->fd, ref->path, &ref->info, &digest)));
    if (digest != ref->info.digest) {
        (void)snprintf(how, sizeof how, "its digest is %016" PRIx64 ", wanted %016" PRIx64, digest, ref->info.digest);
        return fail_changed(dataset, how);
    }
    dataset->modified_sec = modified_sec(&st);
out:
    return rc;
}

int tt_dataset_recheck(struct tt_dataset *dataset)
{
    struct stat st;
    int rc = look(dataset, &st);

    return rc < 0 || modified_sec(&st) == dataset->modified_sec ? rc : tt_dataset_verify(dataset);
}

/* Converts the uint16 at the end of the array to int32, starting at its beginning. */
static void widen(int32_t *ids, int64_t n)
{
    const char *from = (const char *)ids + (size_t)n * sizeof(uint16_t);

    for (int64_t i = 0; i < n; i++) {
        uint16_t id;

        memcpy(&id, from + (size_t)i * sizeof id, sizeof id);
        ids[i] = id;
    }
}

int tt_dataset_copy(const struct tt_dataset *dataset, int64_t begin, int64_t n, int32_t *ids)
{
    const struct tt_token_info *info = &dataset->ref.info;
    size_t bytes = (size_t)n * (size_t)info->item_size;
    uint32_t largest = 0;
    struct stat st;
    char how[128];
    int rc, changed;

    if (begin < 0 || n < 0 || n > info->n_tokens - begin)
        return tt_fail(TT_EINTERNAL, "tokens %lld to %lld of %lld", (long long)begin, (long long)(begin + n),
                       (long long)info->n_tokens);
    rc = tt_file_pread(dataset->fd, dataset->ref.path, (char *)(ids + n) - bytes, bytes,
                       info->tokens_at + begin * info->item_size);
    if (rc == TT_EDATA && (changed = look(dataset, &st)) < 0)
        return changed; /* say that the file changed, which explains more than where it ends */
    if (rc < 0)
        return say_host(rc);
    if (info->item_size == 2)
        widen(ids, n);
    for (int64_t i = 0; i < n; i++)
        largest = (uint32_t)ids[i] > largest ? (uint32_t)ids[i] : largest;
    if (largest <= info->max_id)
        return 0;
    while ((uint32_t)*ids <= info->max_id) {
        begin++;
        ids++;
    }
    (void)snprintf(how, sizeof how, "id %u at position %lld, the largest was %lld", (uint32_t)*ids, (long long)begin,
                   (long long)info->max_id);
    return fail_changed(dataset, how);
}

/* Reads the bytes that contain the tokens' bits into the end of ret_counts, and expands the bits, starting at its
 * beginning. */
int tt_dataset_counts(const struct tt_dataset *dataset, int64_t begin, int64_t n, uint8_t *ret_counts)
{
    const struct tt_token_info *info = &dataset->ref.info;
    int64_t shift = begin % 8, bytes = (shift + n + 7) / 8;
    uint8_t *from;
    int rc;

    if (!info->mask_at || begin < 0 || n < 0 || n > info->n_tokens - begin)
        return tt_fail(TT_EINTERNAL, "mask of tokens %lld to %lld of %lld", (long long)begin, (long long)(begin + n),
                       (long long)info->n_tokens);
    if (!n)
        return 0;
    from = ret_counts + n - bytes;
    rc = tt_file_pread(dataset->fd, dataset->ref.path, from, (size_t)bytes, info->mask_at + begin / 8);
    for (int64_t i = 0; i < n && rc == 0; i++)
        ret_counts[i] = from[(shift + i) / 8] >> (shift + i) % 8 & 1;
    return say_host(rc);
}

/* SPDX-License-Identifier: MIT
 *
 * Checking and writing packed token files. They are read, not mapped, so that a file truncated meanwhile causes an
 * error, not a signal.
 */
#include "core/data/tokenfile.h"

#include <stdio.h>
#include <string.h>

#include <unistd.h>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/data/reader.h"
#include "core/keys/key.h"
#include "core/os/file.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "token files are little-endian and are read as they are"
#endif

/* The header of titan's token files. */
#define TT_TOKEN_MAGIC "titanTOK"

/* The content is hashed block by block, so that a writer can hash while it writes. */
enum { TT_TOKEN_VERSION = 1, TT_TOKEN_VERSION_MASK = 2, TT_TOKEN_BLOCK = 1 << 20 };

struct tt_token_header {
    char magic[8];
    uint32_t version;
    uint32_t item_size;
    int64_t n_tokens;
    int64_t n_documents;
    int64_t vocab_size;
    int64_t max_id;
    int32_t bos, eos;
    uint64_t tokenizer_hash;
    uint64_t source_hash;
    uint64_t content_hash;
    int64_t n_learned;                    /* in version 2; otherwise 0 */
    char unicode[TT_TOKEN_UNICODE_BYTES]; /* "": unknown */
    uint64_t reserved[3];
    uint64_t header_hash; /* of all preceding bytes of the header */
};

_Static_assert(sizeof(struct tt_token_header) == 136 - 8, "the header is 128 bytes");

static uint64_t header_hash(const struct tt_token_header *h)
{
    return tt_hash64(h, offsetof(struct tt_token_header, header_hash), 0);
}

static int64_t offsets_at(int64_t n_tokens, int64_t item_size)
{
    return ((int64_t)sizeof(struct tt_token_header) + n_tokens * item_size + 7) / 8 * 8;
}

enum { LLMC_HEADER = 1024, BEGINNING = 4096, PROGRESS_FROM = 256 << 20 };

/* A file that is being checked, with its first bytes. */
struct file {
    const char *path;
    int fd;
    int64_t size;
    bool whole; /* whether the content is checked too */
    uint8_t begin[BEGINNING];
    size_t n_begin;
};

static uint32_t largest(const uint8_t *tokens, size_t bytes, int item_size, uint32_t max)
{
    if (item_size == 2) {
        const uint16_t *t = (const uint16_t *)(const void *)tokens;

        for (size_t i = 0; i < bytes / 2; i++)
            max = t[i] > max ? t[i] : max;
    } else {
        const uint32_t *t = (const uint32_t *)(const void *)tokens;

        for (size_t i = 0; i < bytes / 4; i++)
            max = t[i] > max ? t[i] : max;
    }
    return max;
}

/* Hashes all bytes from `begin` on and finds the largest token in them. */
static int read_content(int fd, const char *path, int64_t begin, int64_t end, int item_size, uint64_t *ret_hash,
                        uint32_t *ret_largest)
{
    uint8_t *block = tt_calloc(TT_TOKEN_BLOCK, 1);
    uint64_t hash = 0;
    uint32_t max = 0;
    int rc = 0;

    for (int64_t at = begin; at < end; at += TT_TOKEN_BLOCK) {
        size_t n = (size_t)(end - at < TT_TOKEN_BLOCK ? end - at : TT_TOKEN_BLOCK);

        TT_TRY(tt_file_pread(fd, path, block, n, at));
        hash = tt_hash64(block, n, hash);
        max = largest(block, n, item_size, max);
        if (end - begin > PROGRESS_FROM)
            tt_progress(path, (double)(at - begin), (double)(end - begin));
    }
    *ret_hash = hash;
    *ret_largest = max;
out:
    tt_free(block);
    return rc;
}

int tt_tokenfile_digest(int fd, const char *path, const struct tt_token_info *info, uint64_t *ret_digest)
{
    uint32_t unused;

    return read_content(fd, path, info->tokens_at, info->file_size, info->item_size, ret_digest, &unused);
}

int tt_tokenfile_offsets(int fd, const char *path, const struct tt_token_info *info, int64_t **ret_offsets)
{
    int64_t n = info->n_documents, *offset = tt_calloc((size_t)n + 1, sizeof *offset);
    bool good;
    int rc = 0;

    TT_TRY(tt_file_pread(fd, path, offset, ((size_t)n + 1) * sizeof *offset, info->offsets_at));
    good = offset[0] == 0 && offset[n] == info->n_tokens;
    for (int64_t d = 0; good && d < n; d++)
        good = offset[d] <= offset[d + 1];
    if (!good)
        TT_TRY(tt_fail(TT_EDATA, "'%s' is damaged: its document offsets do not rise from 0 to its %lld tokens", path,
                       (long long)info->n_tokens));
    *ret_offsets = offset;
    offset = NULL;
out:
    tt_free(offset);
    return rc;
}

/* The description of a file with that header. */
static struct tt_token_info info_of(const struct tt_token_header *h)
{
    struct tt_token_info info = {.format = TT_TOKENS_TITAN,
                                 .item_size = (int32_t)h->item_size,
                                 .n_tokens = h->n_tokens,
                                 .n_documents = h->n_documents,
                                 .tokens_at = (int64_t)sizeof *h,
                                 .offsets_at = offsets_at(h->n_tokens, h->item_size),
                                 .n_learned = h->n_tokens,
                                 .vocab_size = h->vocab_size,
                                 .bos = h->bos,
                                 .eos = h->eos,
                                 .max_id = h->max_id,
                                 .tokenizer_hash = h->tokenizer_hash,
                                 .source_hash = h->source_hash,
                                 .digest = h->content_hash};

    (void)snprintf(info.unicode, sizeof info.unicode, "%.*s", (int)sizeof h->unicode - 1, h->unicode);
    info.file_size = info.offsets_at + 8 * (h->n_documents + 1);
    if (h->version == TT_TOKEN_VERSION_MASK) {
        info.mask_at = info.file_size;
        info.n_learned = h->n_learned;
        info.file_size += (h->n_tokens + 7) / 8;
    }
    return info;
}

static int check_titan(const struct file *file, struct tt_token_info *info)
{
    struct tt_token_header h;
    int64_t *offsets = NULL;
    uint64_t hash = 0;
    int rc = 0;

    if (file->n_begin < sizeof h) {
        return tt_fail(TT_EDATA, "'%s' is truncated: %lld bytes, less than its header", file->path,
                       (long long)file->size);
    }
    memcpy(&h, file->begin, sizeof h);
    if (h.version != TT_TOKEN_VERSION && h.version != TT_TOKEN_VERSION_MASK) {
        return tt_fail(TT_EDATA, "'%s' has version %u of the token format, but this titan reads %d and %d", file->path,
                       h.version, TT_TOKEN_VERSION, TT_TOKEN_VERSION_MASK);
    }
    if (h.header_hash != header_hash(&h) || (h.item_size != 2 && h.item_size != 4) || h.n_tokens < 0 ||
        h.n_tokens > INT64_MAX / 16 || h.n_documents < 0 || h.n_documents > INT64_MAX / 16)
        return tt_fail(TT_EDATA, "'%s' is damaged: its header does not match its checksum", file->path);
    *info = info_of(&h);
    if (file->size != info->file_size)
        return tt_fail(TT_EDATA, "'%s' is truncated: %lld tokens in %lld documents need %lld bytes, the file has %lld",
                       file->path, (long long)h.n_tokens, (long long)h.n_documents, (long long)info->file_size,
                       (long long)file->size);
    if (!file->whole)
        goto out;
    TT_TRY(tt_tokenfile_digest(file->fd, file->path, info, &hash));
    if (hash != h.content_hash)
        return tt_fail(TT_EDATA, "'%s' is damaged: its content does not match the checksum in its header", file->path);
    TT_TRY(tt_tokenfile_offsets(file->fd, file->path, info, &offsets));
out:
    tt_free(offsets);
    return rc;
}

static int check_llmc(const struct file *file, struct tt_token_info *info)
{
    int32_t h[3];
    int item_size;
    int64_t needed;

    if (file->size < LLMC_HEADER) {
        return tt_fail(TT_EDATA, "'%s' is truncated: %lld bytes, less than llm.c's header of %d", file->path,
                       (long long)file->size, LLMC_HEADER);
    }
    memcpy(h, file->begin, sizeof h);
    item_size = h[0] == 20240520 ? 2 : 4;
    if (h[1] != (item_size == 2 ? 1 : 7))
        return tt_fail(TT_EDATA, "'%s' is an llm.c file of version %d, wanted %d", file->path, h[1],
                       item_size == 2 ? 1 : 7);
    needed = LLMC_HEADER + (int64_t)h[2] * item_size;
    if (h[2] < 0 || needed != file->size) {
        return tt_fail(TT_EDATA,
                       "'%s' is truncated or damaged: its header says %d tokens, %lld bytes, the file has %lld",
                       file->path, h[2], (long long)needed, (long long)file->size);
    }
    *info = (struct tt_token_info){
        .format = TT_TOKENS_LLMC, .item_size = item_size, .n_tokens = h[2], .tokens_at = LLMC_HEADER};
    return 0;
}

static int check_raw(const struct file *file, struct tt_token_info *info)
{
    if (file->size % 2)
        return tt_fail(TT_EDATA, "'%s' has an odd number of bytes (%lld), so it does not hold uint16 tokens",
                       file->path, (long long)file->size);
    *info = (struct tt_token_info){.format = TT_TOKENS_RAW_U16, .item_size = 2, .n_tokens = file->size / 2};
    return 0;
}

/* Completes the description of a foreign file, which counts as one document; reads it once for its digest and largest
 * id. */
static int complete_foreign(const struct file *file, struct tt_token_info *info)
{
    uint32_t max = 0;
    int rc;

    info->n_documents = 1;
    info->n_learned = info->n_tokens;
    info->bos = info->eos = -1;
    info->file_size = file->size;
    if (!file->whole)
        return 0;
    rc = read_content(file->fd, file->path, info->tokens_at, file->size, info->item_size, &info->digest, &max);
    info->max_id = max;
    return rc;
}

static bool is_titan(const struct file *file)
{
    return memcmp(file->begin, TT_TOKEN_MAGIC, sizeof(((struct tt_token_header *)0)->magic)) == 0;
}

static bool is_llmc(const struct file *file)
{
    int32_t first = 0;

    memcpy(&first, file->begin, sizeof first); /* zeros follow the bytes of a shorter file */
    return first == 20240520 || first == 20240801;
}

/* Refuses a file with a header, which would silently give wrong tokens if it were read as headerless. */
static int refuse_header(const struct file *file)
{
    int32_t version = 0;

    memcpy(&version, file->begin + sizeof version, sizeof version);
    if (is_titan(file) || (is_llmc(file) && (version == 1 || version == 7)))
        return tt_fail(TT_EDATA,
                       "'%s' begins with the header of a token file of %s, which is not headerless uint16\n"
                       "help: use %s=tokens",
                       file->path, is_titan(file) ? "titan" : "llm.c", TT_KEY_NAME(training.dataset));
    if (memcmp(file->begin, "\x93NUMPY", 6) == 0)
        return tt_fail(TT_EDATA,
                       "'%s' begins with the header of an array of NumPy, which is not headerless uint16\n"
                       "help: write the array with tofile(), as uint16",
                       file->path);
    return 0;
}

static int check_content(const struct file *file, bool is_raw, struct tt_token_info *info)
{
    int rc = 0;

    if (!is_raw || memcmp(file->begin, "version https://git-lfs", 23) == 0)
        TT_TRY(tt_reader_refuse(file->path, file->begin, file->n_begin, false));
    if (is_raw) {
        TT_TRY(refuse_header(file));
        TT_TRY(check_raw(file, info));
    } else if (is_titan(file)) {
        TT_TRY(check_titan(file, info));
    } else if (is_llmc(file)) {
        TT_TRY(check_llmc(file, info));
    } else {
        return tt_fail(TT_EDATA,
                       "'%s' is neither a token file of titan nor one of llm.c\nhelp: for headerless uint16 "
                       "tokens use %s=tokens_u16, for text pack it first: titan data pack",
                       file->path, TT_KEY_NAME(training.dataset));
    }
    if (info->format != TT_TOKENS_TITAN)
        TT_TRY(complete_foreign(file, info));
    if (!info->n_tokens)
        return tt_fail(TT_EDATA, "'%s' holds no tokens", file->path);
out:
    return rc;
}

static int check(const char *path, bool is_raw, bool whole, struct tt_token_info *ret_info)
{
    struct file *file = tt_calloc(1, sizeof *file);
    struct tt_token_info info = {0};
    int rc = 0;

    file->path = path;
    file->whole = whole;
    file->fd = -1;
    TT_TRY(tt_file_open(path, &file->fd, &file->size));
    if (!file->size)
        TT_TRY(tt_fail(TT_EDATA, "'%s' is empty", path));
    file->n_begin = file->size < BEGINNING ? (size_t)file->size : BEGINNING;
    TT_TRY(tt_file_pread(file->fd, path, file->begin, file->n_begin, 0));
    TT_TRY(check_content(file, is_raw, &info));
    *ret_info = info;
out:
    if (file->fd >= 0)
        (void)close(file->fd);
    tt_free(file);
    return rc;
}

int tt_tokenfile_check(const char *path, bool is_raw, struct tt_token_info *ret_info)
{
    return check(path, is_raw, true, ret_info);
}

int tt_tokenfile_peek(const char *path, bool is_raw, struct tt_token_info *ret_info)
{
    return check(path, is_raw, false, ret_info);
}

/* ---- writing; order of the calls: new, add..., finish, free ---- */

struct tt_token_writer {
    char *path, *temporary; /* temporary is NULL when the file is finished */
    int fd;
    int item_size;
    int64_t vocab_size;
    int64_t n_tokens;
    int64_t max_id;
    int64_t *offset; /* where each document begins */
    int64_t n_documents, cap_documents;
    uint8_t *mask; /* n_tokens bits; NULL: no mask */
    int64_t n_mask, cap_mask, n_learned;
    uint8_t *block;
    size_t used;
    int64_t position; /* position of the block in the file */
    uint64_t hash;
};

int tt_token_writer_new(const char *path, int64_t vocab_size, struct tt_token_writer **ret_writer)
{
    struct tt_token_writer *w = NULL;
    struct tt_path_info info;
    int rc = 0;

    TT_TRY(tt_path_look(path, &info));
    /* the rename would replace a device or a pipe with a file */
    if (info.kind != TT_FILE_NONE && info.kind != TT_FILE_REGULAR)
        TT_TRY(tt_fail(TT_EUSAGE, "cannot write tokens to '%s': it exists and is not a file", path));
    tt_file_sweep_beside(path);
    w = tt_calloc(1, sizeof *w);
    w->fd = -1;
    w->path = tt_strdup(path);
    w->item_size = vocab_size <= 65536 ? 2 : 4;
    w->vocab_size = vocab_size;
    w->block = tt_calloc(TT_TOKEN_BLOCK, 1);
    w->position = (int64_t)sizeof(struct tt_token_header);
    TT_TRY(tt_file_temporary(w->path, &w->temporary, &w->fd));
    *ret_writer = w;
    w = NULL;
out:
    tt_token_writer_free(w);
    return rc;
}

static int write_at(struct tt_token_writer *w, const void *bytes, size_t size, int64_t offset)
{
    char advice[100];

    (void)snprintf(advice, sizeof advice, "choose another folder (of a cache: %s)", TT_KEY_NAME(dataloader.cache_dir));
    return tt_file_pwrite(w->fd, w->temporary, bytes, size, offset, advice);
}

static int flush_block(struct tt_token_writer *w)
{
    int rc = write_at(w, w->block, w->used, w->position);

    if (w->used)
        w->hash = tt_hash64(w->block, w->used, w->hash);
    w->position += (int64_t)w->used;
    w->used = 0;
    return rc;
}

static int put(struct tt_token_writer *w, const void *bytes, size_t size)
{
    const uint8_t *p = bytes;
    int rc = 0;

    while (size) {
        size_t n = TT_TOKEN_BLOCK - w->used < size ? TT_TOKEN_BLOCK - w->used : size;

        memcpy(w->block + w->used, p, n);
        w->used += n;
        p += n;
        size -= n;
        if (w->used == TT_TOKEN_BLOCK)
            TT_TRY(flush_block(w));
    }
out:
    return rc;
}

/* Appends the bits of n tokens. */
static void add_mask(struct tt_token_writer *w, const int32_t *counts, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int64_t at = w->n_tokens + (int64_t)i;

        if (at % 8 == 0)
            TT_PUSH(w->mask, w->n_mask, w->cap_mask) = 0;
        w->mask[at / 8] |= (uint8_t)((counts[i] != 0) << at % 8);
        w->n_learned += counts[i] != 0;
    }
}

int tt_token_writer_add(struct tt_token_writer *w, const int32_t *ids, const int32_t *counts, size_t n)
{
    int rc = 0;

    if (counts)
        add_mask(w, counts, n);
    TT_PUSH(w->offset, w->n_documents, w->cap_documents) = w->n_tokens;
    for (size_t i = 0; i < n; i++) {
        uint16_t small = (uint16_t)ids[i];

        if (ids[i] < 0 || ids[i] >= w->vocab_size)
            return tt_fail(TT_EINTERNAL, "token %d is not in a vocabulary of %lld", ids[i], (long long)w->vocab_size);
        w->max_id = ids[i] > w->max_id ? ids[i] : w->max_id;
        TT_TRY(w->item_size == 2 ? put(w, &small, 2) : put(w, &ids[i], 4));
    }
    w->n_tokens += (int64_t)n;
out:
    return rc;
}

int tt_token_writer_finish(struct tt_token_writer *w, const struct tt_token_info *about, struct tt_token_info *ret_info)
{
    static const uint8_t zeros[8];
    struct tt_token_header h = {.version = w->mask ? TT_TOKEN_VERSION_MASK : TT_TOKEN_VERSION,
                                .item_size = (uint32_t)w->item_size,
                                .n_tokens = w->n_tokens,
                                .n_documents = w->n_documents,
                                .vocab_size = w->vocab_size,
                                .max_id = w->max_id,
                                .bos = about->bos,
                                .eos = about->eos,
                                .tokenizer_hash = about->tokenizer_hash,
                                .source_hash = about->source_hash,
                                .n_learned = w->n_learned};
    int64_t begin = offsets_at(w->n_tokens, w->item_size);
    int rc = 0;

    TT_TRY(put(w, zeros, (size_t)(begin - (int64_t)sizeof h - w->n_tokens * w->item_size)));
    TT_TRY(put(w, w->offset, (size_t)w->n_documents * sizeof *w->offset));
    TT_TRY(put(w, &w->n_tokens, sizeof w->n_tokens));
    TT_TRY(put(w, w->mask, (size_t)w->n_mask));
    TT_TRY(flush_block(w));
    memcpy(h.magic, TT_TOKEN_MAGIC, sizeof h.magic);
    memcpy(h.unicode, about->unicode, sizeof h.unicode);
    h.content_hash = w->hash;
    h.header_hash = header_hash(&h);
    TT_TRY(write_at(w, &h, sizeof h, 0));
    TT_TRY(tt_file_complete(w->path, &w->temporary, w->fd));
    *ret_info = info_of(&h);
out:
    return rc;
}

void tt_token_writer_free(struct tt_token_writer *writer)
{
    if (!writer)
        return;
    if (writer->fd >= 0)
        (void)close(writer->fd);
    if (writer->temporary)
        (void)unlink(writer->temporary);
    tt_free(writer->path);
    tt_free(writer->temporary);
    tt_free(writer->offset);
    tt_free(writer->mask);
    tt_free(writer->block);
    tt_free(writer);
}

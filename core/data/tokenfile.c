/* SPDX-License-Identifier: MIT
 *
 * Packed token files: check and write. Order of a writer's calls: new, add..., finish, free.
 */
#include "core/data/tokenfile.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <libgen.h>

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/data/reader.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "token files are little-endian and are mapped as they are"
#endif

enum { VERSION = 1, BLOCK = 1 << 20, LLMC_HEADER = 1024, PROGRESS_FROM = 256 << 20 };

static const char magic[8] = "titanTOK";

struct header {
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
    uint64_t reserved[5];
    uint64_t header_hash; /* of the bytes before */
};

_Static_assert(sizeof(struct header) == 136 - 8, "the header is 128 bytes");

static uint64_t hash_header(const struct header *h)
{
    return tt_hash64(h, offsetof(struct header, header_hash), 0);
}

static int64_t offsets_at(int64_t n_tokens, int64_t item_size)
{
    return ((int64_t)sizeof(struct header) + n_tokens * item_size + 7) / 8 * 8;
}

/* The hash of size bytes, block by block, so that a writer can compute it on the way. */
static uint64_t hash_content(const char *path, const uint8_t *bytes, int64_t size)
{
    uint64_t hash = 0;

    for (int64_t at = 0; at < size; at += BLOCK) {
        hash = tt_hash64(bytes + at, (size_t)(size - at < BLOCK ? size - at : BLOCK), hash);
        if (size > PROGRESS_FROM)
            tt_progress(path, (double)at, (double)size);
    }
    return hash;
}

static int64_t largest(const uint8_t *tokens, int64_t n, int item_size)
{
    uint32_t max = 0;

    if (item_size == 2) {
        const uint16_t *t = (const uint16_t *)(const void *)tokens;

        for (int64_t i = 0; i < n; i++)
            max = t[i] > max ? t[i] : max;
    } else {
        const uint32_t *t = (const uint32_t *)(const void *)tokens;

        for (int64_t i = 0; i < n; i++)
            max = t[i] > max ? t[i] : max;
    }
    return (int64_t)max;
}

static int check_offsets(const char *path, const int64_t *offset, const struct tt_token_info *info)
{
    bool good = offset[0] == 0 && offset[info->n_documents] == info->n_tokens;

    for (int64_t d = 0; good && d < info->n_documents; d++)
        good = offset[d] <= offset[d + 1];
    return good ? 0
                : tt_fail(TT_EDATA, "'%s' is damaged: its document offsets do not rise from 0 to its %lld tokens", path,
                          (long long)info->n_tokens);
}

static int check_titan(const char *path, const struct tt_mapping *file, struct tt_token_info *info)
{
    struct header h;
    int64_t needed;

    if (file->size < sizeof h)
        return tt_fail(TT_EDATA, "'%s' is truncated: %zu bytes, less than its header", path, file->size);
    memcpy(&h, file->data, sizeof h);
    if (h.version != VERSION) {
        return tt_fail(TT_EDATA, "'%s' has version %u of the token format, this titan reads %d", path, h.version,
                       VERSION);
    }
    if (h.header_hash != hash_header(&h) || (h.item_size != 2 && h.item_size != 4) || h.n_tokens < 0 ||
        h.n_tokens > INT64_MAX / 16 || h.n_documents < 0 || h.n_documents > INT64_MAX / 16)
        return tt_fail(TT_EDATA, "'%s' is damaged: its header does not have the checksum it says", path);
    *info = (struct tt_token_info){.format = TT_TOKENS_TITAN,
                                   .item_size = (int32_t)h.item_size,
                                   .n_tokens = h.n_tokens,
                                   .n_documents = h.n_documents,
                                   .tokens_at = (int64_t)sizeof h,
                                   .offsets_at = offsets_at(h.n_tokens, h.item_size),
                                   .file_size = (int64_t)file->size,
                                   .vocab_size = h.vocab_size,
                                   .bos = h.bos,
                                   .eos = h.eos,
                                   .max_id = h.max_id,
                                   .tokenizer_hash = h.tokenizer_hash,
                                   .source_hash = h.source_hash,
                                   .digest = h.content_hash};
    needed = info->offsets_at + 8 * (h.n_documents + 1);
    if ((int64_t)file->size != needed) {
        return tt_fail(TT_EDATA, "'%s' is truncated: %lld tokens in %lld documents need %lld bytes, the file has %zu",
                       path, (long long)h.n_tokens, (long long)h.n_documents, (long long)needed, file->size);
    }
    if (hash_content(path, file->data + sizeof h, (int64_t)(file->size - sizeof h)) != h.content_hash)
        return tt_fail(TT_EDATA, "'%s' is damaged: its content does not have the checksum that its header says", path);
    return check_offsets(path, (const int64_t *)(const void *)(file->data + info->offsets_at), info);
}

static int check_llmc(const char *path, const struct tt_mapping *file, struct tt_token_info *info)
{
    int32_t h[3];
    int item_size;
    int64_t needed;

    if (file->size < LLMC_HEADER) {
        return tt_fail(TT_EDATA, "'%s' is truncated: %zu bytes, less than llm.c's header of %d", path, file->size,
                       LLMC_HEADER);
    }
    memcpy(h, file->data, sizeof h);
    item_size = h[0] == 20240520 ? 2 : 4;
    if (h[1] != (item_size == 2 ? 1 : 7))
        return tt_fail(TT_EDATA, "'%s' is an llm.c file of version %d, wanted %d", path, h[1], item_size == 2 ? 1 : 7);
    needed = LLMC_HEADER + (int64_t)h[2] * item_size;
    if (h[2] < 0 || needed != (int64_t)file->size) {
        return tt_fail(TT_EDATA,
                       "'%s' is truncated or damaged: its header says %d tokens, %lld bytes, the file has %zu", path,
                       h[2], (long long)needed, file->size);
    }
    *info = (struct tt_token_info){
        .format = TT_TOKENS_LLMC, .item_size = item_size, .n_tokens = h[2], .tokens_at = LLMC_HEADER};
    return 0;
}

static int check_raw(const char *path, const struct tt_mapping *file, struct tt_token_info *info)
{
    if (file->size % 2) {
        return tt_fail(TT_EDATA, "'%s' has an odd number of bytes (%zu), so it does not hold uint16 tokens", path,
                       file->size);
    }
    *info = (struct tt_token_info){
        .format = TT_TOKENS_RAW_U16, .item_size = 2, .n_tokens = (int64_t)(file->size / 2), .tokens_at = 0};
    return 0;
}

/* A foreign file: one document, digest and largest id by reading it once. */
static void complete_foreign(const char *path, const struct tt_mapping *file, struct tt_token_info *info)
{
    const uint8_t *tokens = file->data + info->tokens_at;

    info->n_documents = 1;
    info->bos = info->eos = -1;
    info->file_size = (int64_t)file->size;
    info->digest = hash_content(path, tokens, info->n_tokens * info->item_size);
    info->max_id = largest(tokens, info->n_tokens, info->item_size);
}

int tt_tokenfile_check(const char *path, bool is_raw, struct tt_token_info *ret_info)
{
    struct tt_mapping file = {0};
    struct tt_token_info info = {0};
    int32_t first = 0;
    int rc = 0;

    TT_TRY(tt_mapping_open(path, &file));
    if (!file.size) {
        rc = tt_fail(TT_EDATA, "'%s' is empty", path);
        goto out;
    }
    if (!is_raw || memcmp(file.data, "version https://git-lfs", file.size < 23 ? file.size : 23) == 0)
        TT_TRY(tt_reader_refuse(path, file.data, file.size, false));
    if (file.size >= sizeof first)
        memcpy(&first, file.data, sizeof first);
    if (is_raw) {
        TT_TRY(check_raw(path, &file, &info));
    } else if (file.size >= sizeof magic && memcmp(file.data, magic, sizeof magic) == 0) {
        TT_TRY(check_titan(path, &file, &info));
    } else if (first == 20240520 || first == 20240801) {
        TT_TRY(check_llmc(path, &file, &info));
    } else {
        TT_TRY(tt_fail(TT_EDATA,
                       "'%s' is neither a token file of titan nor one of llm.c\nhelp: for headerless uint16 "
                       "tokens use training.dataset=tokens_u16, for text pack it first: titan data pack",
                       path));
    }
    if (info.format != TT_TOKENS_TITAN)
        complete_foreign(path, &file, &info);
    if (!info.n_tokens)
        TT_TRY(tt_fail(TT_EDATA, "'%s' holds no tokens", path));
    *ret_info = info;
out:
    tt_mapping_release(&file);
    return rc;
}

struct tt_token_writer {
    char *path, *temporary; /* temporary NULL: finished */
    int fd;
    int item_size;
    int64_t vocab_size;
    int64_t n_tokens;
    int64_t max_id;
    int64_t *offset; /* where each document begins */
    int64_t n_documents, cap_documents;
    uint8_t *block;
    size_t used;
    int64_t position; /* in the file, of the block */
    uint64_t hash;
};

int tt_token_writer_new(const char *path, int64_t vocab_size, struct tt_token_writer **ret_writer)
{
    struct tt_token_writer *w = NULL;
    struct tt_path_info info;
    int rc = 0;

    TT_TRY(tt_path_look(path, &info));
    /* the rename would put a file in the place of a device or a pipe */
    if (info.kind != TT_FILE_NONE && info.kind != TT_FILE_REGULAR)
        return tt_fail(TT_EUSAGE, "cannot write tokens to '%s': it exists and is not a file", path);
    w = tt_calloc(1, sizeof *w);
    w->fd = -1;
    w->path = tt_strdup(path);
    w->item_size = vocab_size <= 65536 ? 2 : 4;
    w->vocab_size = vocab_size;
    w->block = tt_calloc(BLOCK, 1);
    w->position = (int64_t)sizeof(struct header);
    TT_TRY(tt_file_temporary(path, &w->temporary, &w->fd));
    *ret_writer = w;
    return 0;
out:
    tt_token_writer_free(w);
    return rc;
}

static int flush_block(struct tt_token_writer *w)
{
    int rc = tt_file_pwrite(w->fd, w->temporary, w->block, w->used, w->position);

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
        size_t n = BLOCK - w->used < size ? BLOCK - w->used : size;

        memcpy(w->block + w->used, p, n);
        w->used += n;
        p += n;
        size -= n;
        if (w->used == BLOCK)
            TT_TRY(flush_block(w));
    }
out:
    return rc;
}

int tt_token_writer_add(struct tt_token_writer *w, const int32_t *ids, size_t n)
{
    int rc = 0;

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

static int make_durable(struct tt_token_writer *w)
{
    char *copy = tt_strdup(w->path);
    int rc = 0;

    if (fsync(w->fd) < 0 || close(w->fd) < 0) {
        rc = tt_fail(TT_EIO, "cannot fsync '%s': %s", w->temporary, strerror(errno));
        goto out;
    }
    w->fd = -1;
    if (rename(w->temporary, w->path) < 0) {
        rc = tt_fail(TT_EIO, "cannot rename '%s' to '%s': %s", w->temporary, w->path, strerror(errno));
        goto out;
    }
    tt_free(w->temporary);
    w->temporary = NULL;
    TT_TRY(tt_folder_sync(dirname(copy)));
out:
    tt_free(copy);
    return rc;
}

int tt_token_writer_finish(struct tt_token_writer *w, const struct tt_token_info *about, struct tt_token_info *ret_info)
{
    static const uint8_t zeros[8];
    struct header h = {.version = VERSION,
                       .item_size = (uint32_t)w->item_size,
                       .n_tokens = w->n_tokens,
                       .n_documents = w->n_documents,
                       .vocab_size = w->vocab_size,
                       .max_id = w->max_id,
                       .bos = about->bos,
                       .eos = about->eos,
                       .tokenizer_hash = about->tokenizer_hash,
                       .source_hash = about->source_hash};
    int64_t begin = offsets_at(w->n_tokens, w->item_size);
    int rc = 0;

    TT_TRY(put(w, zeros, (size_t)(begin - (int64_t)sizeof h - w->n_tokens * w->item_size)));
    TT_TRY(put(w, w->offset, (size_t)w->n_documents * sizeof *w->offset));
    TT_TRY(put(w, &w->n_tokens, sizeof w->n_tokens));
    TT_TRY(flush_block(w));
    memcpy(h.magic, magic, sizeof magic);
    h.content_hash = w->hash;
    h.header_hash = hash_header(&h);
    TT_TRY(tt_file_pwrite(w->fd, w->temporary, &h, sizeof h, 0));
    TT_TRY(make_durable(w));
    *ret_info = *about;
    ret_info->format = TT_TOKENS_TITAN;
    ret_info->item_size = w->item_size;
    ret_info->n_tokens = w->n_tokens;
    ret_info->n_documents = w->n_documents;
    ret_info->tokens_at = (int64_t)sizeof h;
    ret_info->offsets_at = begin;
    ret_info->file_size = begin + 8 * (w->n_documents + 1);
    ret_info->vocab_size = w->vocab_size;
    ret_info->max_id = w->max_id;
    ret_info->digest = h.content_hash;
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
    tt_free(writer->block);
    tt_free(writer);
}

/* SPDX-License-Identifier: MIT
 *
 * Checking packed token files. They are read, not mapped, so that a file that is truncated meanwhile gives an error
 * and not a signal.
 */
#include "core/data/tokenfile.h"

#include <stdio.h>
#include <string.h>

#include <unistd.h>

#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/data/reader.h"
#include "core/data/tokenfile_struct.h"
#include "core/os/file.h"

enum { LLMC_HEADER = 1024, BEGINNING = 4096, PROGRESS_FROM = 256 << 20 };

/* A file that is being checked, and its first bytes. */
struct file {
    const char *path;
    int fd;
    int64_t size;
    bool whole; /* the content is checked too */
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
    if (!good) {
        rc = tt_fail(TT_EDATA, "'%s' is damaged: its document offsets do not rise from 0 to its %lld tokens", path,
                     (long long)info->n_tokens);
        goto out;
    }
    *ret_offsets = offset;
    offset = NULL;
out:
    tt_free(offset);
    return rc;
}

static int check_titan(const struct file *file, struct tt_token_info *info)
{
    struct tt_token_header h;
    int64_t needed, *offsets = NULL;
    uint64_t hash = 0;
    int rc = 0;

    if (file->n_begin < sizeof h) {
        return tt_fail(TT_EDATA, "'%s' is truncated: %lld bytes, less than its header", file->path,
                       (long long)file->size);
    }
    memcpy(&h, file->begin, sizeof h);
    if (h.version != TT_TOKEN_VERSION && h.version != TT_TOKEN_VERSION_MASK) {
        return tt_fail(TT_EDATA, "'%s' has version %u of the token format, this titan reads %d and %d", file->path,
                       h.version, TT_TOKEN_VERSION, TT_TOKEN_VERSION_MASK);
    }
    if (h.header_hash != tt_token_header_hash(&h) || (h.item_size != 2 && h.item_size != 4) || h.n_tokens < 0 ||
        h.n_tokens > INT64_MAX / 16 || h.n_documents < 0 || h.n_documents > INT64_MAX / 16)
        return tt_fail(TT_EDATA, "'%s' is damaged: its header does not match its checksum", file->path);
    *info = (struct tt_token_info){.format = TT_TOKENS_TITAN,
                                   .item_size = (int32_t)h.item_size,
                                   .n_tokens = h.n_tokens,
                                   .n_documents = h.n_documents,
                                   .tokens_at = (int64_t)sizeof h,
                                   .offsets_at = tt_token_offsets_at(h.n_tokens, h.item_size),
                                   .file_size = file->size,
                                   .n_learned = h.n_tokens,
                                   .vocab_size = h.vocab_size,
                                   .bos = h.bos,
                                   .eos = h.eos,
                                   .max_id = h.max_id,
                                   .tokenizer_hash = h.tokenizer_hash,
                                   .source_hash = h.source_hash,
                                   .digest = h.content_hash};
    (void)snprintf(info->unicode, sizeof info->unicode, "%.*s", (int)sizeof h.unicode - 1, h.unicode);
    needed = info->offsets_at + 8 * (h.n_documents + 1);
    if (h.version == TT_TOKEN_VERSION_MASK) {
        info->mask_at = needed;
        info->n_learned = h.n_learned;
        needed += (h.n_tokens + 7) / 8;
    }
    if (file->size != needed) {
        return tt_fail(TT_EDATA, "'%s' is truncated: %lld tokens in %lld documents need %lld bytes, the file has %lld",
                       file->path, (long long)h.n_tokens, (long long)h.n_documents, (long long)needed,
                       (long long)file->size);
    }
    if (!file->whole)
        goto out;
    TT_TRY(tt_tokenfile_digest(file->fd, file->path, info, &hash));
    if (hash != h.content_hash) {
        return tt_fail(TT_EDATA, "'%s' is damaged: its content does not match the checksum in its header", file->path);
    }
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
    if (file->size % 2) {
        return tt_fail(TT_EDATA, "'%s' has an odd number of bytes (%lld), so it does not hold uint16 tokens",
                       file->path, (long long)file->size);
    }
    *info =
        (struct tt_token_info){.format = TT_TOKENS_RAW_U16, .item_size = 2, .n_tokens = file->size / 2, .tokens_at = 0};
    return 0;
}

/* Completes a foreign file, which has one document; its digest and largest id are found by reading it once. */
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

/* A header would be read as tokens, and without a word. */
static int refuse_header(const struct file *file)
{
    int32_t version = 0;

    memcpy(&version, file->begin + sizeof version, sizeof version);
    if (is_titan(file) || (is_llmc(file) && (version == 1 || version == 7)))
        return tt_fail(TT_EDATA,
                       "'%s' begins with the header of a token file of %s, which is not headerless uint16\n"
                       "help: use %s=tokens",
                       file->path, is_titan(file) ? "titan" : "llm.c", tt_key_name(TT_KEY_DATASET));
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
                       file->path, tt_key_name(TT_KEY_DATASET));
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
    if (!file->size) {
        rc = tt_fail(TT_EDATA, "'%s' is empty", path);
        goto out;
    }
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

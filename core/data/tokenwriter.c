/* SPDX-License-Identifier: MIT
 *
 * The writer of packed token files. Order of the calls: new, add..., finish, free.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <libgen.h>

#include "core/base/key.h"
#include "core/base/mem.h"
#include "core/data/tokenfile.h"
#include "core/data/tokenfile_struct.h"
#include "core/os/file.h"

struct tt_token_writer {
    char *path, *temporary; /* temporary NULL: finished */
    int fd;
    int item_size;
    int64_t vocab_size;
    int64_t n_tokens;
    int64_t max_id;
    int64_t *offset; /* where each document begins */
    int64_t n_documents, cap_documents;
    uint8_t *mask; /* of n_tokens bits; NULL: none */
    int64_t n_mask, cap_mask, n_learned;
    uint8_t *block;
    size_t used;
    int64_t position; /* in the file, of the block */
    uint64_t hash;
};

static bool has_suffix(const char *name, size_t n, const char *suffix)
{
    size_t m = strlen(suffix);

    return n >= m && memcmp(name + n - m, suffix, m) == 0;
}

/* STEM.tmp.NUMBER, the name that earlier versions used. */
static bool is_old_temporary(const char *name, const char *stem)
{
    size_t n = strlen(name);

    while (n && name[n - 1] >= '0' && name[n - 1] <= '9')
        n--;
    return name[n] && has_suffix(name, n, ".tmp.") && has_suffix(name, n - strlen(".tmp."), stem);
}

void tt_token_sweep(const char *folder, const char *stem)
{
    char **names = NULL;
    int n = 0;

    if (tt_folder_list(folder, &names, &n) < 0)
        return;
    for (int i = 0; i < n; i++) {
        char *path;

        if (!tt_file_is_temporary(names[i], stem) && !is_old_temporary(names[i], stem))
            continue;
        path = tt_format("%s/%s", folder, names[i]);
        tt_file_sweep(path);
        tt_free(path);
    }
    tt_names_free(names, n);
}

int tt_token_writer_new(const char *path, int64_t vocab_size, struct tt_token_writer **ret_writer)
{
    char *copy_dir = tt_strdup(path), *copy_base = tt_strdup(path);
    struct tt_token_writer *w = NULL;
    struct tt_path_info info;
    int rc = 0;

    TT_TRY(tt_path_look(path, &info));
    /* the rename would replace a device or a pipe by a file */
    if (info.kind != TT_FILE_NONE && info.kind != TT_FILE_REGULAR) {
        rc = tt_fail(TT_EUSAGE, "cannot write tokens to '%s': it exists and is not a file", path);
        goto out;
    }
    tt_token_sweep(dirname(copy_dir), basename(copy_base));
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
    tt_free(copy_dir);
    tt_free(copy_base);
    return rc;
}

static int write_at(struct tt_token_writer *w, const void *bytes, size_t size, int64_t offset)
{
    char advice[100];

    (void)snprintf(advice, sizeof advice, "choose another folder (of a cache: %s)", tt_key_name(TT_KEY_CACHE_DIR));
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

/* The lock is kept until the rename, since files without a lock are swept. */
static int make_durable(struct tt_token_writer *w)
{
    char *copy = tt_strdup(w->path);
    int rc = 0, tries = 0;

    while (fsync(w->fd) < 0) {
        if (tt_path_again(errno, &tries))
            continue;
        rc = tt_file_fail("fsync", w->temporary, errno, NULL);
        goto out;
    }
    if (rename(w->temporary, w->path) < 0) {
        rc = tt_fail(TT_EIO, "cannot rename '%s' to '%s': %s", w->temporary, w->path, strerror(errno));
        goto out;
    }
    tt_free(w->temporary);
    w->temporary = NULL;
    rc = close(w->fd);
    w->fd = -1;
    if (rc < 0) {
        rc = tt_file_fail("close", w->path, errno, NULL);
        goto out;
    }
    TT_TRY(tt_folder_sync(dirname(copy)));
out:
    tt_free(copy);
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
    int64_t begin = tt_token_offsets_at(w->n_tokens, w->item_size), mask = begin + 8 * (w->n_documents + 1);
    int rc = 0;

    TT_TRY(put(w, zeros, (size_t)(begin - (int64_t)sizeof h - w->n_tokens * w->item_size)));
    TT_TRY(put(w, w->offset, (size_t)w->n_documents * sizeof *w->offset));
    TT_TRY(put(w, &w->n_tokens, sizeof w->n_tokens));
    TT_TRY(put(w, w->mask, (size_t)w->n_mask));
    TT_TRY(flush_block(w));
    memcpy(h.magic, TT_TOKEN_MAGIC, sizeof h.magic);
    memcpy(h.unicode, about->unicode, sizeof h.unicode);
    h.content_hash = w->hash;
    h.header_hash = tt_token_header_hash(&h);
    TT_TRY(write_at(w, &h, sizeof h, 0));
    TT_TRY(make_durable(w));
    *ret_info = *about;
    ret_info->format = TT_TOKENS_TITAN;
    ret_info->item_size = w->item_size;
    ret_info->n_tokens = w->n_tokens;
    ret_info->n_documents = w->n_documents;
    ret_info->tokens_at = (int64_t)sizeof h;
    ret_info->offsets_at = begin;
    ret_info->mask_at = w->mask ? mask : 0;
    ret_info->n_learned = w->mask ? w->n_learned : w->n_tokens;
    ret_info->file_size = mask + w->n_mask;
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
    tt_free(writer->mask);
    tt_free(writer->block);
    tt_free(writer);
}

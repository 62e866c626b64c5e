/* SPDX-License-Identifier: MIT
 *
 * A file of complete lines.
 */
#include "trainer/run/records.h"

#include <errno.h>
#include <string.h>

#include <sys/stat.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/os/file.h"

enum { BLOCK_BYTES = 1 << 16 };

struct tt_records {
    int fd;
    char *path;
    int64_t size; /* bytes of complete lines */
    bool failed;  /* titan has already warned */
};

static int append(struct tt_records *r, const char *bytes, size_t size)
{
    int error = tt_file_put(r->fd, bytes, size);

    return error ? tt_fail(TT_EIO, "cannot write '%s': %s", r->path, strerror(error)) : 0;
}

static int cut(const struct tt_records *r)
{
    return ftruncate(r->fd, (off_t)r->size) < 0 ? tt_fail(TT_EIO, "cannot cut '%s': %s", r->path, strerror(errno)) : 0;
}

/* The offset of an incomplete last line; the size of the file when every line is complete. */
static int find_torn(int fd, const char *path, int64_t size, int64_t *ret_begin)
{
    char *block = tt_calloc(1, BLOCK_BYTES);
    int64_t at = size;
    int rc = 0;

    *ret_begin = 0;
    while (at > 0) {
        int64_t n = at < BLOCK_BYTES ? at : BLOCK_BYTES;
        const char *end;

        at -= n;
        TT_TRY(tt_file_pread(fd, path, block, (size_t)n, at));
        end = memrchr(block, '\n', (size_t)n);
        if (end) {
            *ret_begin = at + (end - block) + 1;
            break;
        }
    }
out:
    tt_free(block);
    return rc;
}

/* Repairs an incomplete last line: if only the line end is missing, adds it; otherwise removes the line. */
static int mend(struct tt_records *r, int fd, int64_t size)
{
    int64_t begin = size;
    json_t *record = NULL;
    char *text = NULL;
    int rc = 0;

    TT_TRY(find_torn(fd, r->path, size, &begin));
    r->size = begin;
    if (begin == size)
        goto out;
    text = tt_calloc((size_t)(size - begin) + 1, 1);
    TT_TRY(tt_file_pread(fd, r->path, text, (size_t)(size - begin), begin));
    if (tt_json_parse(text, (size_t)(size - begin), r->path, &record) == 0 && json_is_object(record)) {
        TT_TRY(append(r, "\n", 1));
        r->size = size + 1;
    } else {
        TT_TRY(cut(r));
        tt_note("'%s' ended within a record, which was removed", r->path);
    }
out:
    json_decref(record);
    tt_free(text);
    return rc;
}

int tt_records_open(const char *path, struct tt_records **ret_records)
{
    struct tt_records *r = tt_calloc(1, sizeof *r);
    int64_t size = 0;
    int fd = -1, rc = 0;

    r->fd = -1;
    r->path = tt_strdup(path);
    TT_TRY(tt_file_append(path, &r->fd));
    TT_TRY(tt_file_open(path, &fd, &size));
    TT_TRY(mend(r, fd, size));
    *ret_records = r;
    r = NULL;
out:
    if (fd >= 0)
        (void)close(fd);
    tt_records_close(r);
    return rc;
}

void tt_records_add(struct tt_records *r, const char *line)
{
    char *text = tt_format("%s\n", line);
    size_t size = strlen(text);

    if (append(r, text, size) == 0) {
        r->size += (int64_t)size;
    } else {
        if (!r->failed)
            tt_warn("%s; training continues, but its records are missing there", tt_error_message());
        r->failed = true;
        (void)!cut(r);
    }
    tt_free(text);
}

/* Passes the lines of a block that begins at offset `at` of the file to `take`, last first. Returns where the first of
 * them begins. */
static size_t take_back(const char *block, size_t size, int64_t at, const char *path,
                        bool (*take)(void *arg, const json_t *record), void *arg, bool *done)
{
    size_t left = size;

    while (left > 0 && !*done) {
        size_t end = block[left - 1] == '\n' ? left - 1 : left;
        const char *before = memrchr(block, '\n', end);
        size_t begin = before ? (size_t)(before - block) + 1 : 0;
        json_t *record = NULL;

        if (!before && at > 0)
            break; /* the line begins before the block */
        if (tt_json_parse(block + begin, end - begin, path, &record) < 0)
            record = NULL;
        *done = take(arg, record);
        json_decref(record);
        left = begin;
    }
    return left;
}

int tt_records_backwards(const char *path, bool (*take)(void *arg, const json_t *record), void *arg)
{
    size_t cap = BLOCK_BYTES;
    char *block = tt_calloc(cap, 1);
    int64_t end = 0;
    bool done = false;
    int fd = -1, rc = 0;

    TT_TRY(tt_file_open(path, &fd, &end));
    while (end > 0 && !done) {
        size_t size = end < (int64_t)cap ? (size_t)end : cap, left;

        TT_TRY(tt_file_pread(fd, path, block, size, end - (int64_t)size));
        left = take_back(block, size, end - (int64_t)size, path, take, arg, &done);
        end -= (int64_t)(size - left);
        if (left == size && !done)
            block = tt_realloc(block, cap *= 2, 1);
    }
out:
    if (fd >= 0)
        (void)close(fd);
    tt_free(block);
    return rc;
}

void tt_records_close(struct tt_records *r)
{
    if (!r)
        return;
    if (r->fd >= 0)
        (void)close(r->fd);
    tt_free(r->path);
    tt_free(r);
}

/* SPDX-License-Identifier: MIT
 *
 * Durable files and atomic publication. The order of the system calls here decides what a crash leaves.
 */
#include "checkpoint/steps/commit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/save/fault.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"

enum { WRITE_EARLY = 1 << 20 };

static int fail_write(const char *what, const char *path, int error)
{
    char advice[100];

    (void)snprintf(advice, sizeof advice, "keep fewer checkpoints (%s)", tt_key_name(TT_KEY_KEEP_LATEST));
    return tt_file_fail(what, path, error, advice);
}

static int fault(const char *point, int rank)
{
    return rank < 0 ? 0 : tt_fault(point, rank);
}

/* Some file systems cannot reserve; there the write fails. (posix_fallocate would write every page instead.) */
static int reserve(const struct tt_durable *file, int64_t bytes)
{
    int tries = 0;

    while (fallocate(file->fd, 0, 0, (off_t)bytes) < 0) {
        if (errno == EOPNOTSUPP || errno == EINVAL || errno == ENOSYS)
            break;
        if (!tt_path_again(errno, &tries))
            return fail_write("reserve space for", file->temporary, errno);
    }
    return 0;
}

int tt_durable_begin(const char *path, int64_t bytes, int rank, struct tt_durable *ret_file)
{
    struct tt_durable file = {.fd = -1, .path = tt_strdup(path), .rank = rank};
    int rc = 0;

    TT_TRY(tt_file_temporary(path, &file.temporary, &file.fd));
    TT_TRY(fault("open", rank));
    if (bytes > 0)
        TT_TRY(reserve(&file, bytes));
    TT_TRY(fault("allocate", rank));
    *ret_file = file;
out:
    if (rc < 0)
        tt_durable_cancel(&file);
    return rc;
}

static bool set_direct(int fd, bool on)
{
    int flags = fcntl(fd, F_GETFL);

    return flags >= 0 && fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

void tt_durable_direct(struct tt_durable *file, bool on)
{
    if (file->direct != on && set_direct(file->fd, on))
        file->direct = on;
}

int tt_durable_write(const struct tt_durable *file, const void *bytes, size_t size, int64_t offset)
{
    const char *from = bytes;
    bool direct = file->direct;
    int64_t at = offset;

    for (size_t left = size; left > 0;) {
        ssize_t n = pwrite(file->fd, from, left, (off_t)at);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EINVAL && direct) { /* not supported after all, or a short write ended unaligned */
            direct = false;
            if (set_direct(file->fd, false))
                continue;
        }
        if (n <= 0)
            return fail_write("write", file->temporary, n < 0 ? errno : ENOSPC);
        from += n;
        at += n;
        left -= (size_t)n;
    }
    /* Otherwise the disk would be idle until fsync. This is only a hint; fsync reports failures. */
    if (!direct && size >= WRITE_EARLY)
        (void)sync_file_range(file->fd, (off_t)offset, (off_t)size, SYNC_FILE_RANGE_WRITE);
    return 0;
}

int tt_durable_cut(const struct tt_durable *file, int64_t bytes)
{
    int tries = 0;

    while (ftruncate(file->fd, (off_t)bytes) < 0) {
        if (!tt_path_again(errno, &tries))
            return fail_write("cut", file->temporary, errno);
    }
    return 0;
}

void tt_durable_cancel(struct tt_durable *file)
{
    if (file->fd >= 0) {
        (void)close(file->fd);
        (void)unlink(file->temporary);
    }
    tt_free(file->path);
    tt_free(file->temporary);
    *file = (struct tt_durable){.fd = -1};
}

int tt_durable_end(struct tt_durable *file)
{
    int rc = 0, fd = file->fd, tries = 0;

    TT_TRY(fault("fsync", file->rank));
    while (fsync(fd) < 0) {
        if (tt_path_again(errno, &tries))
            continue;
        rc = fail_write("make durable", file->temporary, errno);
        goto out;
    }
    file->fd = -1;
    if (close(fd) < 0) {
        rc = fail_write("close", file->temporary, errno);
        goto out;
    }
    TT_TRY(fault("file_rename", file->rank));
    if (rename(file->temporary, file->path) < 0)
        rc = fail_write("rename", file->temporary, errno);
out:
    tt_durable_cancel(file);
    return rc;
}

int tt_durable_put(const char *path, const void *bytes, size_t size)
{
    struct tt_durable file = {.fd = -1};
    int rc = 0;

    TT_TRY(tt_durable_begin(path, (int64_t)size, -1, &file));
    if ((rc = tt_durable_write(&file, bytes, size, 0)) < 0) {
        tt_durable_cancel(&file);
        goto out;
    }
    rc = tt_durable_end(&file);
out:
    return rc;
}

int tt_commit_check_space(const char *folder, int64_t bytes)
{
    int64_t have = tt_folder_free_bytes(folder);
    char need_text[24], have_text[24];

    if (have < 0 || have >= bytes)
        return 0;
    return tt_fail(TT_EIO,
                   "not enough space in '%s': need %s, have %s\n"
                   "help: free space there, or keep fewer checkpoints (%s)",
                   folder, tt_text_bytes(need_text, sizeof need_text, (double)bytes),
                   tt_text_bytes(have_text, sizeof have_text, (double)have), tt_key_name(TT_KEY_KEEP_LATEST));
}

int tt_commit_sync_tree(const char *folder)
{
    char **names = NULL;
    int n = 0, rc = 0;

    TT_TRY(tt_folder_list(folder, &names, &n));
    for (int i = 0; i < n; i++) {
        char *child = tt_format("%s/%s", folder, names[i]);
        bool is_folder = false;

        rc = tt_path_is_folder(child, &is_folder);
        if (rc == 0 && is_folder)
            rc = tt_folder_sync(child);
        tt_free(child);
        if (rc < 0)
            goto out;
    }
    rc = tt_folder_sync(folder);
out:
    tt_names_free(names, n);
    return rc;
}

static int fail_publish(const char *from, const char *to, int error)
{
    if (error == EEXIST || error == ENOTEMPTY)
        return tt_fail(TT_EUSAGE, "'%s' exists already", to);
    return tt_fail(TT_EIO, "cannot rename '%s' to '%s': %s", from, to, strerror(error));
}

/* For file systems without an exchange (some network ones): renames the old folder, then the new one. A crash between
 * the two leaves the old one under its `aside` name; tt_ckpt_store_open puts it back. */
static int replace_in_two_steps(const char *from, const char *to, const char *old, int rank)
{
    int rc = 0;

    if (rename(to, old) < 0)
        return fail_publish(to, old, errno);
    TT_TRY(fault("aside", rank));
    if (rename(from, to) < 0)
        rc = fail_publish(from, to, errno);
out:
    if (rc < 0)
        (void)rename(old, to);
    return rc;
}

static int exchange(const char *from, const char *to, const char *old, int rank)
{
    /* An injected error simulates a file system without an exchange. */
    if (fault("exchange", rank) < 0)
        return replace_in_two_steps(from, to, old, rank);
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) < 0)
        return errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP ? replace_in_two_steps(from, to, old, rank)
                                                                         : fail_publish(from, to, errno);
    /* `from` is now the old one. If this rename fails, the caller can still remove it under that name. */
    return rename(from, old) < 0 ? fail_publish(from, old, errno) : 0;
}

int tt_commit_publish(const char *parent, const char *temporary, const char *name, const char *aside, bool replace,
                      int rank)
{
    char *from = tt_format("%s/%s", parent, temporary), *to = tt_format("%s/%s", parent, name);
    char *old = tt_format("%s/%s", parent, aside);
    bool exists = false;
    int rc = 0;

    TT_TRY(tt_path_exists(to, &exists));
    TT_TRY(fault("publish", rank));
    if (exists && replace) {
        TT_TRY(exchange(from, to, old, rank));
    } else if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) < 0) {
        /* Without NOREPLACE, a plain rename still refuses to replace a folder with content. */
        if ((errno != EINVAL && errno != ENOSYS) || rename(from, to) < 0) {
            rc = fail_publish(from, to, errno);
            goto out;
        }
    }
    TT_TRY(fault("published", rank));
    TT_TRY(tt_folder_sync(parent));
    /* The new one is now committed; a remainder of the old one is not a failure. */
    if (exists && replace && (fault("replaced", rank) < 0 || tt_folder_remove(old) < 0))
        tt_warn("the replaced '%s' could not be removed: %s", old, tt_error_message());
out:
    tt_free(from);
    tt_free(to);
    tt_free(old);
    return rc;
}

/* Gives the new folder the name that the old one is to have, then exchanges the two. */
static int exchange_keeping(const char *from, const char *to, const char *kept, int rank)
{
    if (fault("exchange", rank) < 0)
        return replace_in_two_steps(from, to, kept, rank);
    if (rename(from, kept) < 0)
        return fail_publish(from, kept, errno);
    if (renameat2(AT_FDCWD, kept, AT_FDCWD, to, RENAME_EXCHANGE) < 0) {
        int error = errno;

        if (rename(kept, from) < 0)
            return fail_publish(kept, from, errno);
        return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP ? replace_in_two_steps(from, to, kept, rank)
                                                                         : fail_publish(from, to, error);
    }
    return 0;
}

int tt_commit_publish_keeping(const char *parent, const char *temporary, const char *name, const char *keep, int rank)
{
    char *from = tt_format("%s/%s", parent, temporary), *to = tt_format("%s/%s", parent, name);
    char *kept = tt_format("%s/%s", parent, keep);
    bool exists = false;
    int rc = 0;

    TT_TRY(tt_path_exists(kept, &exists));
    if (exists) {
        rc = fail_publish(to, kept, EEXIST);
        goto out;
    }
    TT_TRY(fault("publish", rank));
    TT_TRY(exchange_keeping(from, to, kept, rank));
    TT_TRY(fault("published", rank));
    TT_TRY(tt_folder_sync(parent));
out:
    tt_free(from);
    tt_free(to);
    tt_free(kept);
    return rc;
}

int tt_commit_remove(const char *parent, const char *name, const char *aside, int rank)
{
    char *from = tt_format("%s/%s", parent, name), *to = tt_format("%s/%s", parent, aside);
    int rc = 0;

    TT_TRY(fault("retention", rank));
    if (rename(from, to) < 0) {
        rc = tt_fail(TT_EIO, "cannot remove '%s': %s", from, strerror(errno));
        goto out;
    }
    TT_TRY(tt_folder_sync(parent));
    TT_TRY(fault("retention_remove", rank));
    rc = tt_folder_remove(to);
out:
    tt_free(from);
    tt_free(to);
    return rc;
}

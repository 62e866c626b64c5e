/* SPDX-License-Identifier: MIT
 *
 * Files and folders that appear whole or not at all. The order of the system calls here decides what a crash leaves.
 */
#include "checkpoint/durable/durable.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "core/base/error.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/os/file.h"

/* --- injected failures --- */

/* Performs one "point:rank:action". */
static int obey(const char *spec, const char *point, int rank)
{
    size_t length = strlen(point), action_length;
    const char *action;
    char *end;

    if (strncmp(spec, point, length) != 0 || spec[length] != ':')
        return 0;
    spec += length + 1;
    if (*spec == '*')
        end = (char *)(uintptr_t)spec + 1;
    else if (strtol(spec, &end, 10) != rank)
        return 0;
    action = *end == ':' ? end + 1 : end;
    action_length = strcspn(action, ",");
    if (strncmp(action, "kill", action_length) == 0)
        (void)raise(SIGKILL);
    if (strncmp(action, "pause", action_length) == 0)
        return raise(SIGSTOP); /* until the test sends SIGCONT */
    return tt_fail(TT_EIO, "save failed at '%s': %s (injected by TITAN_FAULT)", point,
                   strerror(strncmp(action, "enospc", action_length) == 0 ? ENOSPC : EIO));
}

int tt_fault(const char *point, int rank)
{
    const char *spec = getenv("TITAN_FAULT"); // NOLINT(concurrency-mt-unsafe): titan never changes the environment
    int rc = 0;

    for (; spec && rank >= 0 && rc == 0; spec = strchr(spec, ',') ? strchr(spec, ',') + 1 : NULL)
        rc = obey(spec, point, rank);
    return rc;
}

/* --- files and publication --- */

enum { WRITE_EARLY = 1 << 20 };

static int fail_write(const char *what, const char *path, int error)
{
    char advice[100];

    (void)snprintf(advice, sizeof advice, "keep fewer checkpoints (%s)", TT_KEY_NAME(checkpoint.keep_latest_k));
    return tt_file_fail(what, path, error, advice);
}

/* Some file systems cannot reserve space; there a full disk makes the write fail later. (posix_fallocate would write
 * every page instead.) */
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
    TT_TRY(tt_fault("open", rank));
    if (bytes > 0)
        TT_TRY(reserve(&file, bytes));
    TT_TRY(tt_fault("allocate", rank));
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
        /* direct writes are not supported after all, or a short write ended unaligned */
        if (n < 0 && errno == EINVAL && direct) {
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
    /* Makes the system write to disk now; otherwise the disk would be idle until fsync. This is only a hint; fsync
     * reports failures. */
    if (!direct && size >= WRITE_EARLY)
        (void)sync_file_range(file->fd, (off_t)offset, (off_t)size, SYNC_FILE_RANGE_WRITE);
    return 0;
}

int tt_durable_cut(const struct tt_durable *file, int64_t bytes)
{
    int tries = 0;

    while (ftruncate(file->fd, (off_t)bytes) < 0)
        if (!tt_path_again(errno, &tries))
            return fail_write("cut", file->temporary, errno);
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

    TT_TRY(tt_fault("fsync", file->rank));
    while (fsync(fd) < 0)
        if (!tt_path_again(errno, &tries))
            TT_TRY(fail_write("make durable", file->temporary, errno));
    file->fd = -1;
    if (close(fd) < 0)
        TT_TRY(fail_write("close", file->temporary, errno));
    TT_TRY(tt_fault("file_rename", file->rank));
    if (rename(file->temporary, file->path) < 0)
        rc = fail_write("rename", file->temporary, errno);
out:
    tt_durable_cancel(file);
    return rc;
}

int tt_durable_put(const char *folder, const char *name, const void *bytes, size_t size)
{
    char *path = tt_format("%s/%s", folder, name);
    struct tt_durable file = {.fd = -1};
    int rc = 0;

    TT_TRY(tt_durable_begin(path, (int64_t)size, -1, &file));
    TT_TRY(tt_durable_write(&file, bytes, size, 0));
    TT_TRY(tt_durable_end(&file));
out:
    tt_durable_cancel(&file);
    tt_free(path);
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
                   tt_text_bytes(have_text, sizeof have_text, (double)have), TT_KEY_NAME(checkpoint.keep_latest_k));
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

/* For file systems that cannot exchange two folders (some network ones): renames the old folder, then the new one. A
 * crash between the two renames leaves the old folder under its `aside` name; tt_ckpt_store_open puts it back. */
static int replace_in_two_steps(const char *from, const char *to, const char *old, int rank)
{
    int rc = 0;

    if (rename(to, old) < 0)
        return fail_publish(to, old, errno);
    TT_TRY(tt_fault("aside", rank));
    if (rename(from, to) < 0)
        rc = fail_publish(from, to, errno);
out:
    if (rc < 0)
        (void)rename(old, to);
    return rc;
}

/* Renames the new folder to the old one's future name, then exchanges the two. */
static int exchange(const char *from, const char *to, const char *old, int rank)
{
    int error;

    /* An injected error simulates a file system without an exchange. */
    if (tt_fault("exchange", rank) < 0)
        return replace_in_two_steps(from, to, old, rank);
    if (rename(from, old) < 0)
        return fail_publish(from, old, errno);
    if (renameat2(AT_FDCWD, old, AT_FDCWD, to, RENAME_EXCHANGE) == 0)
        return 0;
    error = errno;
    if (rename(old, from) < 0)
        return fail_publish(old, from, errno);
    return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP ? replace_in_two_steps(from, to, old, rank)
                                                                     : fail_publish(from, to, error);
}

int tt_commit_publish(const char *parent, const char *temporary, const char *name, const char *aside, bool keeps,
                      int rank)
{
    char *from = tt_format("%s/%s", parent, temporary), *to = tt_format("%s/%s", parent, name);
    char *old = tt_format("%s/%s", parent, aside);
    bool exists = false, is_taken = false;
    int rc = 0;

    TT_TRY(tt_path_exists(to, &exists));
    TT_TRY(keeps ? tt_path_exists(old, &is_taken) : 0);
    TT_TRY(is_taken ? fail_publish(to, old, EEXIST) : 0);
    TT_TRY(tt_fault("publish", rank));
    if (exists) {
        TT_TRY(exchange(from, to, old, rank));
    } else if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) < 0) {
        /* Without NOREPLACE, a plain rename still refuses to replace a folder with content. */
        if ((errno != EINVAL && errno != ENOSYS) || rename(from, to) < 0)
            TT_TRY(fail_publish(from, to, errno));
    }
    TT_TRY(tt_fault("published", rank));
    TT_TRY(tt_folder_sync(parent));
    /* The new folder is now committed. If part of the old one remains, that is not a failure. */
    if (exists && !keeps && (tt_fault("replaced", rank) < 0 || tt_folder_remove(old) < 0))
        tt_warn("the replaced '%s' could not be removed: %s", old, tt_error_message());
out:
    tt_free(from);
    tt_free(to);
    tt_free(old);
    return rc;
}

int tt_commit_remove(const char *parent, const char *name, const char *aside, int rank)
{
    char *from = tt_format("%s/%s", parent, name), *to = tt_format("%s/%s", parent, aside);
    int rc = 0;

    TT_TRY(tt_fault("retention", rank));
    if (rename(from, to) < 0)
        TT_TRY(tt_fail(TT_EIO, "cannot remove '%s': %s", from, strerror(errno)));
    TT_TRY(tt_folder_sync(parent));
    TT_TRY(tt_fault("retention_remove", rank));
    rc = tt_folder_remove(to);
out:
    tt_free(from);
    tt_free(to);
    return rc;
}

/* --- outputs of commands --- */

/* The real path, or NULL if nothing exists there. Fails if the path cannot be examined at the moment. */
static int find_real(const char *path, char **ret_real)
{
    int tries = 0;

    while (!(*ret_real = realpath(path, NULL)))
        if (!tt_path_again(errno, &tries))
            return errno == ENOENT ? 0 : tt_path_fail("examine", path, errno);
    return 0;
}

int tt_output_check_apart(const char *path, const char *source)
{
    char *target = NULL, *from = NULL;
    size_t n;
    int rc = 0;

    TT_TRY(find_real(path, &target));
    TT_TRY(find_real(source, &from));
    n = target ? strlen(target) : 0;
    if (target && from && strncmp(from, target, n) == 0 && (from[n] == '/' || !from[n]))
        rc = tt_fail(TT_EUSAGE, "'%s' would replace its own source '%s'\nhelp: choose another folder", path, source);
out:
    free(target);
    free(from);
    return rc;
}

static void release(struct tt_output *output)
{
    tt_mem_on_end(NULL, NULL);
    tt_free(output->parent);
    tt_free(output->name);
    tt_free(output->temporary);
    tt_free(output->aside);
    tt_free(output->folder);
    if (output->lock_fd >= 0)
        (void)close(output->lock_fd);
    *output = (struct tt_output){.lock_fd = -1};
}

static void name_output(const char *given, struct tt_output *output)
{
    char *path = tt_strdup(given), *slash;

    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = 0;
    slash = strrchr(path, '/');
    output->name = tt_strdup(slash ? slash + 1 : path);
    output->parent = slash == path ? tt_strdup("/") : slash ? tt_strndup(path, (size_t)(slash - path)) : tt_strdup(".");
    tt_free(path);
}

/* Called when memory runs out, before the process ends: removes the unfinished folder. */
static void remove_folder(void *folder)
{
    (void)!tt_folder_remove(folder);
}

/* Locks a folder while it is being made; -1 if it is already locked or the file system does not support locks. */
static int lock_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0) {
        (void)close(fd);
        fd = -1;
    }
    return fd;
}

/* ".tmp-NAME-0123456789abcdef" with the prefix ".tmp-NAME-"; older releases used the process number. */
static bool is_made(const char *name, const char *prefix)
{
    size_t n = strlen(prefix);

    return strncmp(name, prefix, n) == 0 && name[n] &&
           (tt_random_is_word(name + n) || strspn(name + n, "0123456789") == strlen(name + n));
}

/* An older output is renamed only when a new one replaces it, so if the new one is in place, the renamed folder is
 * useless. */
int tt_output_sweep(const char *parent, const char *name)
{
    char *temporary = tt_format(".tmp-%s-", name), *aside = tt_format(".old-%s-", name);
    char *home = tt_format("%s/%s", parent, name), **names = NULL;
    bool taken = false;
    int n = 0, rc = 0;

    TT_TRY(tt_path_exists(home, &taken));
    TT_TRY(tt_folder_list(parent, &names, &n));
    for (int i = 0; i < n && rc == 0; i++) {
        char *path = tt_format("%s/%s", parent, names[i]);
        int lock = is_made(names[i], temporary) ? lock_folder(path) : -1;

        if (lock >= 0 || (is_made(names[i], aside) && taken))
            rc = tt_folder_remove(path);
        if (lock >= 0)
            (void)close(lock);
        tt_free(path);
    }
out:
    tt_names_free(names, n);
    tt_free(temporary);
    tt_free(aside);
    tt_free(home);
    return rc;
}

int tt_output_begin(const char *path, int64_t bytes, struct tt_output *ret_output)
{
    struct tt_output output = {.lock_fd = -1};
    char *prefix = NULL;
    int rc = 0;

    name_output(path, &output);
    prefix = tt_format("%s/.tmp-%s", output.parent, output.name);
    TT_TRY(tt_folder_make(output.parent));
    TT_TRY(tt_output_sweep(output.parent, output.name));
    TT_TRY(tt_commit_check_space(output.parent, bytes + bytes / 100 + ((int64_t)1 << 20)));
    TT_TRY(tt_folder_temporary(prefix, &output.folder));
    tt_mem_on_end(remove_folder, output.folder);
    output.temporary = tt_strdup(output.folder + strlen(output.parent) + 1);
    output.aside = tt_format(".old%s", output.temporary + strlen(".tmp"));
    output.lock_fd = lock_folder(output.folder);
    *ret_output = output;
out:
    tt_free(prefix);
    if (rc < 0)
        release(&output);
    return rc;
}

int tt_output_publish(struct tt_output *output)
{
    int rc = tt_commit_sync_tree(output->folder);

    if (rc == 0)
        rc = tt_commit_publish(output->parent, output->temporary, output->name, output->aside, false, -1);
    if (rc == 0)
        release(output);
    return rc;
}

void tt_output_abandon(struct tt_output *output)
{
    char *message = tt_strdup(tt_error_message());

    if (output->folder) {
        (void)!tt_folder_remove(output->folder);
        (void)tt_fail(0, "%s", message);
    }
    release(output);
    tt_free(message);
}

int tt_output_copy(const struct tt_output *output, const char *from_folder, bool (*want)(const char *name))
{
    char **names = NULL;
    int n = 0, rc = 0;

    TT_TRY(tt_folder_list_found(from_folder, &names, &n));
    for (int i = 0; i < n && rc == 0; i++) {
        char *from = tt_format("%s/%s", from_folder, names[i]), *text = NULL;
        struct tt_path_info info = {0};
        size_t size = 0;

        rc = want(names[i]) ? tt_path_look(from, &info) : 0;
        if (rc == 0 && info.kind != TT_FILE_NONE && info.kind != TT_FILE_FOLDER) {
            rc = tt_file_read(from, &text, &size);
            rc = rc < 0 ? rc : tt_durable_put(output->folder, names[i], text, size);
        }
        tt_free(text);
        tt_free(from);
    }
out:
    tt_names_free(names, n);
    return rc;
}

/* SPDX-License-Identifier: MIT
 *
 * Files, folders and clocks. Durability rule: a name counts as written after the file was fsynced, renamed into place,
 * and its folder fsynced; tt_file_replace does the three in that order.
 */
#include "core/base/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <libgen.h>

#include "core/base/mem.h"
#include "core/base/text.h"

/* "No such file" with the nearest name in the same folder, which is what a typing error needs. */
static int fail_missing(const char *path)
{
    char *copy_dir = tt_strdup(path), *copy_base = tt_strdup(path);
    const char *folder = dirname(copy_dir), *wanted = basename(copy_base), *near = NULL;
    char **names = NULL;
    int n = 0, rc;

    if (tt_path_is_folder(folder) && tt_folder_list(folder, &names, &n) == 0)
        near = tt_text_nearest(wanted, (const char *const *)names, n);
    if (near)
        rc = tt_fail(TT_EDATA, "cannot open '%s': no such file\nhelp: did you mean '%s%s%s'?", path, folder,
                     strcmp(folder, "/") == 0 ? "" : "/", near);
    else
        rc = tt_fail(TT_EDATA, "cannot open '%s': no such file", path);
    tt_names_free(names, n);
    tt_free(copy_dir);
    tt_free(copy_base);
    return rc;
}

static int open_for_reading(const char *path, int *ret_fd, size_t *ret_size)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return errno == ENOENT ? fail_missing(path) : tt_fail(TT_EIO, "cannot open '%s': %s", path, strerror(errno));
    if (fstat(fd, &st) < 0 || S_ISDIR(st.st_mode)) {
        (void)close(fd);
        return tt_fail(TT_EIO, "cannot read '%s': %s", path, S_ISDIR(st.st_mode) ? "it is a folder" : strerror(errno));
    }
    *ret_fd = fd;
    *ret_size = (size_t)st.st_size;
    return 0;
}

int tt_file_read(const char *path, char **ret_text, size_t *ret_size)
{
    char *text = NULL;
    size_t size = 0, used = 0, cap;
    int fd = -1, rc = 0;

    TT_TRY(open_for_reading(path, &fd, &size));
    cap = size + 1; /* a pipe or /proc file says 0 and still has content, so read to the end */
    text = tt_calloc(cap + 1, 1);
    for (;;) {
        ssize_t n = read(fd, text + used, cap - used);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            rc = tt_fail(TT_EIO, "cannot read '%s': %s", path, strerror(errno));
            goto out;
        }
        if (n == 0)
            break;
        used += (size_t)n;
        if (used == cap) {
            cap *= 2;
            text = tt_realloc(text, cap + 1, 1);
        }
    }
    text[used] = 0;
    *ret_text = text;
    *ret_size = used;
    text = NULL;
out:
    tt_free(text);
    if (fd >= 0)
        (void)close(fd);
    return rc;
}

int tt_mapping_open(const char *path, struct tt_mapping *ret_mapping)
{
    struct tt_mapping mapping = {0};
    size_t size = 0;
    int fd = -1, rc = 0;

    TT_TRY(open_for_reading(path, &fd, &size));
    if (size) {
        void *p = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);

        if (p == MAP_FAILED) {
            rc = tt_fail(TT_EIO, "cannot map '%s': %s", path, strerror(errno));
            goto out;
        }
        mapping.data = p;
        mapping.size = size;
    }
    *ret_mapping = mapping;
out:
    if (fd >= 0)
        (void)close(fd);
    return rc;
}

void tt_mapping_release(struct tt_mapping *mapping)
{
    if (mapping->data)
        (void)munmap((void *)(uintptr_t)mapping->data, mapping->size);
    *mapping = (struct tt_mapping){0};
}

int tt_file_pwrite(int fd, const char *path, const void *bytes, size_t size, int64_t offset)
{
    const char *p = bytes;

    while (size) {
        ssize_t n = pwrite(fd, p, size, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return tt_fail(TT_EIO, "cannot write '%s': %s", path, strerror(errno));
        if (n == 0)
            return tt_fail(TT_EIO, "cannot write '%s': the system wrote nothing", path);
        p += n;
        offset += n;
        size -= (size_t)n;
    }
    return 0;
}

int tt_file_pread(int fd, const char *path, void *bytes, size_t size, int64_t offset)
{
    char *p = bytes;

    while (size) {
        ssize_t n = pread(fd, p, size, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return tt_fail(TT_EIO, "cannot read '%s': %s", path, strerror(errno));
        if (n == 0)
            return tt_fail(TT_EDATA, "'%s' is truncated: it ends at byte %lld, %zu bytes early", path,
                           (long long)offset, size);
        p += n;
        offset += n;
        size -= (size_t)n;
    }
    return 0;
}

int tt_file_replace(const char *path, const void *bytes, size_t size)
{
    char *temporary = tt_format("%s.tmp", path), *copy = tt_strdup(path);
    int fd, rc = 0;

    fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) {
        rc = tt_fail(TT_EIO, "cannot create '%s': %s", temporary, strerror(errno));
        goto out;
    }
    TT_TRY(tt_file_pwrite(fd, temporary, bytes, size, 0));
    if (fsync(fd) < 0) {
        rc = tt_fail(TT_EIO, "cannot fsync '%s': %s", temporary, strerror(errno));
        goto out;
    }
    rc = close(fd);
    fd = -1;
    if (rc < 0) {
        rc = tt_fail(TT_EIO, "cannot close '%s': %s", temporary, strerror(errno));
        goto out;
    }
    if (rename(temporary, path) < 0) {
        rc = tt_fail(TT_EIO, "cannot rename '%s' to '%s': %s", temporary, path, strerror(errno));
        goto out;
    }
    TT_TRY(tt_folder_sync(dirname(copy)));
out:
    if (fd >= 0)
        (void)close(fd);
    if (rc < 0)
        (void)unlink(temporary);
    tt_free(temporary);
    tt_free(copy);
    return rc;
}

int tt_folder_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = 0;

    if (fd < 0)
        return tt_fail(TT_EIO, "cannot open folder '%s': %s", path, strerror(errno));
    if (fsync(fd) < 0 && errno != EINVAL) /* EINVAL: the file system has nothing to sync for folders */
        rc = tt_fail(TT_EIO, "cannot fsync folder '%s': %s", path, strerror(errno));
    (void)close(fd);
    return rc;
}

int tt_folder_make(const char *path)
{
    char *copy = tt_strdup(path);
    int rc = 0;

    for (char *p = copy + 1; *copy; p++) {
        char kept = *p;

        if (kept != '/' && kept != 0)
            continue;
        *p = 0;
        if (mkdir(copy, 0755) < 0 && errno != EEXIST)
            rc = tt_fail(TT_EIO, "cannot create folder '%s': %s", copy, strerror(errno));
        else if (!tt_path_is_folder(copy))
            rc = tt_fail(TT_EIO, "cannot create folder '%s': a file of that name exists", copy);
        *p = kept;
        if (rc < 0 || kept == 0)
            break;
    }
    tt_free(copy);
    return rc;
}

enum { DEEPEST_FOLDER = 32 }; /* checkpoints are three levels deep; deeper trees are not ours */

static int remove_tree(const char *path, int depth)
{
    struct stat st;
    char **names = NULL;
    int n = 0, rc = 0;

    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : tt_fail(TT_EIO, "cannot stat '%s': %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return unlink(path) < 0 && errno != ENOENT ? tt_fail(TT_EIO, "cannot remove '%s': %s", path, strerror(errno))
                                                   : 0;
    if (depth > DEEPEST_FOLDER)
        return tt_fail(TT_EIO, "cannot remove '%s': folders are nested deeper than %d", path, DEEPEST_FOLDER);
    TT_TRY(tt_folder_list(path, &names, &n));
    for (int i = 0; i < n; i++) {
        char *child = tt_format("%s/%s", path, names[i]);

        rc = remove_tree(child, depth + 1);
        tt_free(child);
        if (rc < 0)
            goto out;
    }
    if (rmdir(path) < 0 && errno != ENOENT)
        rc = tt_fail(TT_EIO, "cannot remove folder '%s': %s", path, strerror(errno));
out:
    tt_names_free(names, n);
    return rc;
}

int tt_folder_remove(const char *path)
{
    return remove_tree(path, 0);
}

bool tt_path_exists(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0;
}

bool tt_path_is_folder(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int tt_folder_list(const char *path, char ***ret_names, int *ret_n)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    char **names = NULL;
    int n = 0, cap = 0;

    if (!dir)
        return tt_fail(errno == ENOENT ? TT_EDATA : TT_EIO, "cannot list folder '%s': %s", path, strerror(errno));
    while ((entry = readdir(dir))) { // NOLINT(concurrency-mt-unsafe): a DIR of our own
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        TT_PUSH(names, n, cap) = tt_strdup(entry->d_name);
    }
    (void)closedir(dir);
    if (n)
        qsort(names, (size_t)n, sizeof *names, compare_names);
    *ret_names = names;
    *ret_n = n;
    return 0;
}

void tt_names_free(char **names, int n)
{
    for (int i = 0; i < n; i++)
        tt_free(names[i]);
    tt_free(names);
}

int64_t tt_folder_free_bytes(const char *path)
{
    struct statvfs fs;

    return statvfs(path, &fs) < 0 ? -1 : (int64_t)fs.f_bavail * (int64_t)fs.f_frsize;
}

static double seconds(clockid_t clock)
{
    struct timespec t;

    (void)clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double tt_clock_sec(void)
{
    return seconds(CLOCK_MONOTONIC);
}

double tt_clock_wall_sec(void)
{
    return seconds(CLOCK_REALTIME);
}

/* SPDX-License-Identifier: MIT
 *
 * What is at a path, and folders: listing, making, removing, making durable.
 */
#include "core/os/path.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/base/mem.h"

enum { MOST_PAUSES = 5, FIRST_PAUSE_MS = 10, MOST_INTERRUPTS = 1000, PAUSES = 8 };

/* tries holds two counts: the pauses, plus PAUSES times the interrupts. */
bool tt_path_again(int error, int *tries)
{
    int pauses = *tries % PAUSES;
    struct timespec pause = {0, ((long)FIRST_PAUSE_MS << pauses) * 1000000L};

    if (error == EINTR)
        return (*tries += PAUSES) < MOST_INTERRUPTS * PAUSES;
    if ((error != EAGAIN && error != ESTALE) || pauses >= MOST_PAUSES)
        return false;
    ++*tries;
    (void)nanosleep(&pause, NULL);
    return true;
}

char *tt_path_seen(const char *path)
{
    char here[PATH_MAX];

    while (strncmp(path, "./", 2) == 0)
        path += 2;
    if (*path == '/' || !*path || !getcwd(here, sizeof here))
        return tt_strdup("");
    return tt_format("; from the current folder it is '%s%s%s'%s", here, strcmp(here, "/") == 0 ? "" : "/", path,
                     *path == '~'        ? " (only a shell expands ~)"
                     : strchr(path, '$') ? " (only a shell expands $)"
                                         : "");
}

int tt_path_fail(const char *verb, const char *path, int error)
{
    bool never = error == ENOENT || error == ENOTDIR || error == ELOOP || error == ENAMETOOLONG;
    char *seen = error == ENOENT ? tt_path_seen(path) : tt_strdup("");
    int code = never ? TT_EDATA : error == ENOMEM ? TT_ENOMEM : TT_EIO;

    (void)tt_fail(code, "cannot %s '%s': %s%s", verb, path, strerror(error), seen);
    tt_free(seen);
    return code;
}

/* 0, or the errno. */
static int stat_at(const char *path, bool follow, struct stat *st)
{
    int tries = 0;

    while ((follow ? stat(path, st) : lstat(path, st)) < 0)
        if (!tt_path_again(errno, &tries))
            return errno;
    return 0;
}

int tt_path_look(const char *path, struct tt_path_info *ret_info)
{
    struct tt_path_info info = {0};
    struct stat st;
    int error = stat_at(path, false, &st);

    if (error == 0 && S_ISLNK(st.st_mode)) {
        info.is_link = true;
        error = stat_at(path, true, &st);
    }
    if (error && error != ENOENT)
        return tt_path_fail("look at", path, error);
    if (error == 0) {
        info.kind = S_ISREG(st.st_mode) ? TT_FILE_REGULAR : S_ISDIR(st.st_mode) ? TT_FILE_FOLDER : TT_FILE_OTHER;
        info.bytes = (int64_t)st.st_size;
        info.device = (uint64_t)st.st_dev;
        info.inode = (uint64_t)st.st_ino;
        info.modified_sec = (double)st.st_mtime;
    }
    *ret_info = info;
    return 0;
}

int tt_path_exists(const char *path, bool *ret_exists)
{
    struct tt_path_info info = {0};
    int rc = tt_path_look(path, &info);

    *ret_exists = info.kind != TT_FILE_NONE;
    return rc;
}

char *tt_path_of_program(void)
{
    char path[4096];
    ssize_t size = readlink("/proc/self/exe", path, sizeof path - 1);

    if (size <= 0)
        return NULL;
    path[size] = 0;
    return tt_strdup(path);
}

int tt_path_blame_missing(int rc, const char *path, enum tt_key key)
{
    struct stat st;

    return stat(path, &st) != 0 && errno == ENOENT ? tt_fail_key(rc, key, "%s", tt_error_message()) : rc;
}

int tt_path_is_folder(const char *path, bool *ret_is_folder)
{
    struct tt_path_info info = {0};
    int rc = tt_path_look(path, &info);

    *ret_is_folder = info.kind == TT_FILE_FOLDER;
    return rc;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Returns 0 or an errno. After an error the list is empty, since half a list would make files look absent. */
static int list(const char *path, char ***ret_names, int *ret_n)
{
    DIR *dir = opendir(path);
    struct dirent *entry;
    char **names = NULL;
    int n = 0, cap = 0, error;

    if (!dir)
        return errno;
    while ((void)(errno = 0), (entry = readdir(dir))) { // NOLINT(concurrency-mt-unsafe): a DIR of our own
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        TT_PUSH(names, n, cap) = tt_strdup(entry->d_name);
    }
    error = errno;
    (void)closedir(dir);
    if (error) {
        tt_names_free(names, n);
        return error;
    }
    if (n)
        qsort(names, (size_t)n, sizeof *names, compare_names);
    *ret_names = names;
    *ret_n = n;
    return 0;
}

static int list_folder(const char *path, bool may_miss, char ***ret_names, int *ret_n)
{
    int tries = 0, error;

    *ret_names = NULL;
    *ret_n = 0;
    while ((error = list(path, ret_names, ret_n)) != 0)
        if (!tt_path_again(error, &tries))
            return error == ENOENT && may_miss ? 0 : tt_path_fail("list folder", path, error);
    return 0;
}

int tt_folder_list(const char *path, char ***ret_names, int *ret_n)
{
    return list_folder(path, false, ret_names, ret_n);
}

int tt_folder_list_found(const char *path, char ***ret_names, int *ret_n)
{
    return list_folder(path, true, ret_names, ret_n);
}

void tt_names_free(char **names, int n)
{
    for (int i = 0; i < n; i++)
        tt_free(names[i]);
    tt_free(names);
}

static int make_one(const char *path)
{
    bool is_folder = false;
    int tries = 0, rc = 0;

    while (mkdir(path, 0755) < 0 && errno != EEXIST)
        if (!tt_path_again(errno, &tries))
            return tt_fail(TT_EIO, "cannot create folder '%s': %s", path, strerror(errno));
    TT_TRY(tt_path_is_folder(path, &is_folder));
    if (!is_folder)
        rc = tt_fail(TT_EIO, "cannot create folder '%s': a file of that name exists", path);
out:
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
        rc = make_one(copy);
        *p = kept;
        if (rc < 0 || kept == 0)
            break;
    }
    tt_free(copy);
    return rc;
}

enum { DEEPEST_FOLDER = 32 }; /* checkpoints are three levels deep; titan makes no deeper trees */

static int remove_tree(const char *path, int depth)
{
    struct stat st;
    char **names = NULL;
    int n = 0, rc = 0, error = stat_at(path, false, &st);

    if (error)
        return error == ENOENT ? 0 : tt_fail(TT_EIO, "cannot look at '%s': %s", path, strerror(error));
    if (!S_ISDIR(st.st_mode))
        return unlink(path) < 0 && errno != ENOENT ? tt_fail(TT_EIO, "cannot remove '%s': %s", path, strerror(errno))
                                                   : 0;
    if (depth > DEEPEST_FOLDER)
        return tt_fail(TT_EIO, "cannot remove '%s': folders are nested deeper than %d", path, DEEPEST_FOLDER);
    TT_TRY(tt_folder_list_found(path, &names, &n));
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

int tt_folder_sync(const char *path)
{
    int fd, tries = 0, rc = 0;

    while ((fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) {
        if (!tt_path_again(errno, &tries))
            return tt_fail(TT_EIO, "cannot open folder '%s': %s", path, strerror(errno));
    }
    while (rc == 0 && fsync(fd) < 0) {
        if (errno == EINVAL || errno == EOPNOTSUPP) /* this file system does not sync folders */
            break;
        if (!tt_path_again(errno, &tries))
            rc = tt_fail(TT_EIO, "cannot fsync folder '%s': %s", path, strerror(errno));
    }
    (void)close(fd);
    return rc;
}

int64_t tt_folder_free_bytes(const char *path)
{
    struct statvfs fs;

    return statvfs(path, &fs) < 0 ? -1 : (int64_t)fs.f_bavail * (int64_t)fs.f_frsize;
}

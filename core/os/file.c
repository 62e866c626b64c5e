/* SPDX-License-Identifier: MIT
 *
 * Paths, folders, files and clocks. Durability rule: a name counts as written once the file has been fsynced and
 * renamed into place and its folder has been fsynced. tt_file_replace does these three in that order.
 */
#include "core/os/file.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <libgen.h>

#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/text.h"

enum { MOST_PAUSES = 5, FIRST_PAUSE_MS = 10, MOST_INTERRUPTS = 1000, PAUSES = 8 };

/* `tries` combines two counts: the pauses, plus PAUSES times the interrupts. */
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

/* Returns 0 or an errno. */
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
        return tt_path_fail("examine", path, error);
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

int tt_path_has(const char *folder, const char *name, bool *ret_has)
{
    char *path = tt_format("%s/%s", folder, name);
    int rc = tt_path_exists(path, ret_has);

    tt_free(path);
    return rc;
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
        return error == ENOENT ? 0 : tt_fail(TT_EIO, "cannot examine '%s': %s", path, strerror(error));
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

/* ---- files ---- */

/* Fails with "No such file", and suggests the nearest name in the same folder in case of a typing error. */
static int fail_missing(const char *path)
{
    char *copy_dir = tt_strdup(path), *copy_base = tt_strdup(path);
    const char *folder = dirname(copy_dir), *wanted = basename(copy_base), *near = NULL;
    char *seen = tt_path_seen(path);
    char **names = NULL;
    int n = 0, rc;

    if (tt_folder_list(folder, &names, &n) == 0)
        near = tt_text_nearest(wanted, (const char *const *)names, n);
    rc = tt_fail(TT_EDATA, "cannot open '%s': no such file%s", path, seen);
    if (near)
        (void)tt_error_add_hint(rc, "did you mean '%s%s%s'?", strcmp(folder, ".") == 0 ? "" : folder,
                                strcmp(folder, "/") == 0 || strcmp(folder, ".") == 0 ? "" : "/", near);
    tt_names_free(names, n);
    tt_free(seen);
    tt_free(copy_dir);
    tt_free(copy_base);
    return rc;
}

static int fail_kind(const char *path, mode_t mode)
{
    const char *what = S_ISDIR(mode)    ? "a folder"
                       : S_ISFIFO(mode) ? "a pipe"
                       : S_ISCHR(mode)  ? "a device"
                       : S_ISBLK(mode)  ? "a device"
                                        : "not a file";

    return tt_fail(TT_EDATA, "cannot read '%s': it is %s, wanted a regular file", path, what);
}

/* flags: O_NONBLOCK if a pipe or a device must not block the process. */
static int open_for_reading(const char *path, int flags, int *ret_fd, struct stat *ret_stat)
{
    int fd, tries = 0, error;

    while ((fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | flags)) < 0) {
        if (errno == ENOENT)
            return fail_missing(path);
        if (errno == ENXIO || errno == ENODEV) /* a socket, or a device without a driver */
            return tt_fail(TT_EDATA, "cannot read '%s': it is not a file", path);
        if (!tt_path_again(errno, &tries))
            return tt_path_fail("open", path, errno);
    }
    if (fstat(fd, ret_stat) < 0) {
        error = errno;
        (void)close(fd);
        return tt_fail(TT_EIO, "cannot examine '%s': %s", path, strerror(error));
    }
    *ret_fd = fd;
    return 0;
}

int tt_file_open(const char *path, int *ret_fd, int64_t *ret_bytes)
{
    struct stat st;
    int fd = -1, rc = 0;

    TT_TRY(open_for_reading(path, O_NONBLOCK, &fd, &st));
    if (!S_ISREG(st.st_mode))
        TT_TRY(fail_kind(path, st.st_mode));
    *ret_fd = fd;
    *ret_bytes = (int64_t)st.st_size;
    fd = -1;
out:
    if (fd >= 0)
        (void)close(fd);
    return rc;
}

int tt_file_append(const char *path, int *ret_fd)
{
    struct stat st;
    int fd, tries = 0, rc = 0;

    /* O_NONBLOCK: a pipe without a reader would block the process */
    while ((fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0644)) < 0) {
        if (errno == ENXIO || errno == ENODEV || errno == EISDIR)
            return tt_fail(TT_EDATA, "cannot write '%s': it is not a regular file", path);
        if (!tt_path_again(errno, &tries))
            return tt_fail(TT_EIO, "cannot open '%s': %s", path, strerror(errno));
    }
    if (fstat(fd, &st) < 0)
        rc = tt_fail(TT_EIO, "cannot examine '%s': %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        rc = tt_fail(TT_EDATA, "cannot write '%s': it is not a regular file", path);
    if (rc < 0)
        (void)close(fd);
    else
        *ret_fd = fd;
    return rc;
}

static int fail_large(const char *path, int64_t bytes, int64_t most)
{
    char found[24], wanted[24];

    return tt_fail(TT_EDATA, "'%s' is too large: it has %s%s; titan reads at most %s", path,
                   bytes > most ? "" : "more than ",
                   tt_text_bytes(found, sizeof found, (double)(bytes > most ? bytes : most)),
                   tt_text_bytes(wanted, sizeof wanted, (double)most));
}

/* Reads to the end; the file probably has `expected` bytes. Files in /proc have size 0, but are not empty. */
static int read_all(int fd, const char *path, int64_t expected, int64_t most, char **ret_text, size_t *ret_size)
{
    size_t used = 0, cap = (size_t)expected + 1;
    char *text, *more;
    int tries = 0, rc = 0;

    if (expected > most)
        return fail_large(path, expected, most);
    text = tt_try_realloc(NULL, cap + 1, 1);
    while (text) {
        ssize_t n = read(fd, text + used, cap - used);

        if (n < 0 && tt_path_again(errno, &tries))
            continue;
        if (n < 0) {
            rc = errno == EISDIR ? fail_kind(path, S_IFDIR)
                                 : tt_fail(TT_EIO, "cannot read '%s': %s", path, strerror(errno));
            goto out;
        }
        if (n == 0)
            break;
        used += (size_t)n;
        if ((int64_t)used > most)
            TT_TRY(fail_large(path, 0, most));
        if (used < cap)
            continue;
        cap = cap < 4096 ? 4096 : 2 * cap;
        if (!(more = tt_try_realloc(text, cap + 1, 1)))
            tt_free(text);
        text = more;
    }
    if (!text)
        return tt_fail(TT_ENOMEM, "cannot read '%s': no memory for its %zu bytes", path, cap);
    text[used] = 0;
    *ret_text = text;
    *ret_size = used;
    text = NULL;
out:
    tt_free(text);
    return rc;
}

int tt_file_read(const char *path, char **ret_text, size_t *ret_size)
{
    int64_t bytes = 0;
    int fd = -1, rc = 0;

    TT_TRY(tt_file_open(path, &fd, &bytes));
    TT_TRY(read_all(fd, path, bytes, TT_FILE_MOST, ret_text, ret_size));
out:
    if (fd >= 0)
        (void)close(fd);
    return rc;
}

int tt_file_read_any(const char *path, int64_t most, char **ret_text, size_t *ret_size)
{
    struct stat st;
    int fd = -1, rc = 0;

    TT_TRY(open_for_reading(path, 0, &fd, &st));
    TT_TRY(read_all(fd, path, S_ISREG(st.st_mode) ? (int64_t)st.st_size : 0, most, ret_text, ret_size));
out:
    if (fd >= 0)
        (void)close(fd);
    return rc;
}

int tt_mapping_open(const char *path, struct tt_mapping *ret_mapping)
{
    struct tt_mapping mapping = {0};
    int64_t size = 0;
    int fd = -1, rc = 0;

    TT_TRY(tt_file_open(path, &fd, &size));
    if (size) {
        void *p = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);

        if (p == MAP_FAILED)
            TT_TRY(tt_fail(TT_EIO, "cannot map '%s': %s", path, strerror(errno)));
        mapping.data = p;
        mapping.size = (size_t)size;
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

int tt_file_fail(const char *what, const char *path, int error, const char *advice)
{
    if (error == EFBIG)
        return tt_fail(TT_EIO, "cannot %s '%s': %s\nhelp: raise the limit on the size of a file (ulimit -f)", what,
                       path, strerror(error));
    if (error == ENOSPC || error == EDQUOT)
        return tt_fail(TT_EIO, "cannot %s '%s': %s\nhelp: free space there%s%s", what, path, strerror(error),
                       advice ? ", or " : "", advice ? advice : "");
    return tt_fail(TT_EIO, "cannot %s '%s': %s", what, path, strerror(error));
}

int tt_file_put(int fd, const void *bytes, size_t size)
{
    const char *p = bytes;

    while (size) {
        ssize_t n = write(fd, p, size);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN) {
            (void)poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
            continue;
        }
        if (n <= 0)
            return n < 0 ? errno : ENOSPC;
        p += n;
        size -= (size_t)n;
    }
    return 0;
}

int tt_file_pwrite(int fd, const char *path, const void *bytes, size_t size, int64_t offset, const char *advice)
{
    const char *p = bytes;

    while (size) {
        ssize_t n = pwrite(fd, p, size, (off_t)offset);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return tt_file_fail("write", path, errno, advice);
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

void tt_random_word(char ret_word[TT_RANDOM_WORD_BYTES])
{
    static atomic_uint_fast64_t made;
    uint64_t word = 0;
    struct timespec now;

    /* If the system offers no random numbers (a very old kernel), time and process number suffice, since O_EXCL
     * prevents collisions. */
    if (getrandom(&word, sizeof word, 0) != (ssize_t)sizeof word) {
        (void)clock_gettime(CLOCK_REALTIME, &now);
        word = ((uint64_t)now.tv_sec << 32 ^ (uint64_t)now.tv_nsec ^ (uint64_t)getpid() << 20) +
               atomic_fetch_add_explicit(&made, 1, memory_order_relaxed);
    }
    (void)snprintf(ret_word, TT_RANDOM_WORD_BYTES, "%016" PRIx64, word);
}

bool tt_random_is_word(const char *text)
{
    return strlen(text) == TT_RANDOM_WORD_BYTES - 1 && strspn(text, "0123456789abcdef") == TT_RANDOM_WORD_BYTES - 1;
}

enum { NAME_TRIES = 100 };

/* Fails because a name is too long. The prefix is the requested name plus ".tmp". */
static int fail_too_long(const char *prefix)
{
    const char *name = strrchr(prefix, '/') ? strrchr(prefix, '/') + 1 : prefix;
    const int added = TT_RANDOM_WORD_BYTES + (int)strlen(".tmp-");

    return tt_fail(TT_EIO,
                   "the name '%s' is too long with the suffix that it has until the file is complete\n"
                   "help: choose a name of at most %d bytes, in a path of at most %d",
                   name, NAME_MAX - added, PATH_MAX - 1 - added);
}

/* Creates PREFIX-RANDOM: a file (ret_fd) or a folder (ret_fd NULL). */
static int make_temporary(const char *prefix, char **ret_name, int *ret_fd)
{
    char word[TT_RANDOM_WORD_BYTES], *name = NULL;
    int tries = 0, made = -1;

    for (int i = 0; i < NAME_TRIES && made < 0; i++) {
        tt_free(name);
        tt_random_word(word);
        name = tt_format("%s-%s", prefix, word);
        do
            made = ret_fd ? open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644) : mkdir(name, 0755);
        while (made < 0 && tt_path_again(errno, &tries));
        if (made < 0 && errno != EEXIST)
            break;
    }
    if (made < 0) {
        bool full = errno == ENOSPC || errno == EDQUOT;
        int rc = errno == ENAMETOOLONG ? fail_too_long(prefix)
                                       : tt_fail(TT_EIO, "cannot create '%s': %s%s", name, strerror(errno),
                                                 full ? "\nhelp: free space there" : "");

        tt_free(name);
        return rc;
    }
    if (ret_fd)
        *ret_fd = made;
    *ret_name = name;
    return 0;
}

/* Checks what is at the path, since a rename would replace a device or a link, such as /dev/stdout. */
static int check_replaceable(const char *path)
{
    struct tt_path_info info = {0};

    if (tt_path_look(path, &info) < 0 || (info.kind == TT_FILE_NONE && !info.is_link) ||
        (info.kind == TT_FILE_REGULAR && !info.is_link))
        return 0; /* if a path cannot be examined, it cannot be replaced either */
    return tt_fail(TT_EDATA, "cannot replace '%s': it is %s, not a regular file\nhelp: name a file", path,
                   info.is_link                  ? "a link"
                   : info.kind == TT_FILE_FOLDER ? "a folder"
                                                 : "a device or a pipe");
}

/* Returns 0, or an errno. */
static int lock_file(int fd, int operation)
{
    while (flock(fd, operation) < 0)
        if (errno != EINTR)
            return errno;
    return 0;
}

int tt_file_temporary(const char *path, char **ret_name, int *ret_fd)
{
    char *prefix = tt_format("%s.tmp", path);
    struct stat st;
    int rc = 0;

    TT_TRY(check_replaceable(path));
    for (;;) {
        TT_TRY(make_temporary(prefix, ret_name, ret_fd));
        (void)lock_file(*ret_fd, LOCK_EX);              /* without locks, there are no sweeps either */
        if (fstat(*ret_fd, &st) < 0 || st.st_nlink > 0) /* otherwise a sweep removed the file before it was locked */
            break;
        (void)close(*ret_fd);
        tt_free(*ret_name);
    }
out:
    tt_free(prefix);
    return rc;
}

void tt_file_sweep(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat st;

    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && lock_file(fd, LOCK_EX | LOCK_NB) == 0)
        (void)unlink(path);
    (void)close(fd);
}

void tt_file_sweep_beside(const char *path)
{
    char *copy_dir = tt_strdup(path), *copy_base = tt_strdup(path), **names = NULL;
    const char *folder = dirname(copy_dir), *base = basename(copy_base);
    int n = 0;

    if (tt_folder_list(folder, &names, &n) < 0)
        n = 0;
    for (int i = 0; i < n; i++) {
        char *name;

        if (strncmp(names[i], base, strlen(base)) != 0 || names[i][strlen(base)] != '.' ||
            !tt_file_is_temporary(names[i], base))
            continue;
        name = tt_format("%s/%s", folder, names[i]);
        tt_file_sweep(name);
        tt_free(name);
    }
    tt_names_free(names, n);
    tt_free(copy_dir);
    tt_free(copy_base);
}

int tt_folder_temporary(const char *prefix, char **ret_name)
{
    return make_temporary(prefix, ret_name, NULL);
}

bool tt_file_is_temporary(const char *name, const char *stem)
{
    size_t word = TT_RANDOM_WORD_BYTES - 1, n = strlen(name), m = strlen(stem), tail = word + strlen(".tmp-");

    return n >= m + tail && strncmp(name + n - tail - m, stem, m) == 0 && strncmp(name + n - tail, ".tmp-", 5) == 0 &&
           tt_random_is_word(name + n - word);
}

static int sync_file(int fd, const char *name)
{
    int tries = 0;

    while (fsync(fd) < 0)
        if (!tt_path_again(errno, &tries))
            return tt_file_fail("fsync", name, errno, NULL);
    return 0;
}

/* The file is closed after the rename, since closing ends its lock. After fsync, closing cannot lose its content. */
static int put_in_place(const char *path, char **name)
{
    char *copy = tt_strdup(path);
    int rc = 0;

    if (rename(*name, path) < 0)
        TT_TRY(tt_fail(TT_EIO, "cannot rename '%s' to '%s': %s", *name, path, strerror(errno)));
    tt_free(*name);
    *name = NULL;
    TT_TRY(tt_folder_sync(dirname(copy)));
out:
    tt_free(copy);
    return rc;
}

int tt_file_complete(const char *path, char **name, int fd)
{
    int rc = sync_file(fd, *name);

    return rc < 0 ? rc : put_in_place(path, name);
}

struct bytes {
    const void *bytes;
    size_t size;
};

static int write_bytes(void *arg, int fd, const char *name)
{
    const struct bytes *b = arg;

    return tt_file_pwrite(fd, name, b->bytes, b->size, 0, NULL);
}

/* A file that is being written under a temporary name. fd -1: none. */
struct pending {
    char *temporary;
    int fd;
};

/* A file that replaces another one gets its permissions. */
static void keep_mode(const char *path, int fd)
{
    struct stat st;

    if (stat(path, &st) == 0 && S_ISREG(st.st_mode))
        (void)!fchmod(fd, st.st_mode & 0777);
}

static int begin_file(struct pending *file, const char *path, int (*write)(void *arg, int fd, const char *name),
                      void *arg)
{
    int rc = 0;

    *file = (struct pending){.fd = -1};
    tt_file_sweep_beside(path);
    TT_TRY(tt_file_temporary(path, &file->temporary, &file->fd));
    keep_mode(path, file->fd);
    TT_TRY(write(arg, file->fd, file->temporary));
    rc = sync_file(file->fd, file->temporary);
out:
    return rc;
}

static void end_file(struct pending *file)
{
    if (file->temporary)
        (void)unlink(file->temporary);
    if (file->fd >= 0)
        (void)close(file->fd);
    tt_free(file->temporary);
}

int tt_file_replace_by(const char *path, int (*write)(void *arg, int fd, const char *name), void *arg)
{
    struct pending file;
    int rc = 0;

    TT_TRY(begin_file(&file, path, write, arg));
    TT_TRY(put_in_place(path, &file.temporary));
out:
    end_file(&file);
    return rc;
}

int tt_file_replace(const char *path, const void *bytes, size_t size)
{
    return tt_file_replace_by(path, write_bytes, &(struct bytes){bytes, size});
}

int tt_file_replace_pair(struct tt_new_file main, struct tt_new_file other)
{
    struct pending first = {.fd = -1}, last = {.fd = -1};
    int rc = 0;

    TT_TRY(begin_file(&first, other.path, write_bytes, &(struct bytes){other.bytes, other.size}));
    TT_TRY(begin_file(&last, main.path, write_bytes, &(struct bytes){main.bytes, main.size}));
    if (unlink(main.path) < 0 && errno != ENOENT)
        TT_TRY(tt_fail(TT_EIO, "cannot remove '%s': %s", main.path, strerror(errno)));
    TT_TRY(put_in_place(other.path, &first.temporary));
    TT_TRY(put_in_place(main.path, &last.temporary));
out:
    end_file(&first);
    end_file(&last);
    return rc;
}

int tt_json_load(const char *path, json_t **ret_json)
{
    char *text = NULL;
    size_t size = 0;
    int rc = 0;

    TT_TRY(tt_file_read(path, &text, &size));
    TT_TRY(tt_json_parse(text, size, path, ret_json));
out:
    tt_free(text);
    return rc;
}

int tt_json_save(const char *path, const json_t *json)
{
    char *text = NULL;
    int rc = tt_json_dump(json, path, &text);

    if (rc == 0)
        rc = tt_file_replace(path, text, strlen(text));
    free(text);
    return rc;
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

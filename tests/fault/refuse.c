/* SPDX-License-Identifier: MIT
 *
 * Makes system calls fail for as long as the program runs. Preloaded into the program as it is shipped:
 *
 *     TITAN_REFUSE=CALL:ERROR:PATTERN[,…] LD_PRELOAD=librefuse.so titan …
 *
 * With TITAN_FREE=BYTES:PATTERN, file systems report that much free space for paths that contain PATTERN.
 *
 * Every CALL on a path that contains PATTERN fails with ERROR, a name such as EACCES. Calls: open (for reading), stat,
 * realpath, statvfs, opendir, readdir, unlink, rmdir, write, flock, setlk (record locks). It is compiled with 64-bit
 * offsets, like the program, so that it defines the functions that the program calls (open64 and so on).
 */
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <dlfcn.h>

#define EXPORT __attribute__((visibility("default")))

/* dlsym gives an object pointer; POSIX says that it may be a function. */
#define NEXT(type, name)                   \
    type next;                             \
    void *symbol = dlsym(RTLD_NEXT, name); \
    memcpy(&next, &symbol, sizeof next)

static const struct {
    const char *name;
    int value;
} errors[] = {{"EACCES", EACCES}, {"EIO", EIO},       {"EMFILE", EMFILE}, {"ESTALE", ESTALE},
              {"ENOLCK", ENOLCK}, {"ENOSYS", ENOSYS}, {"ENOSPC", ENOSPC}, {"EOPNOTSUPP", EOPNOTSUPP}};

static bool is_refused(const char *call, const char *path)
{
    const char *spec = getenv("TITAN_REFUSE");

    for (; spec && path; spec = strchr(spec, ',') ? strchr(spec, ',') + 1 : NULL) {
        char name[32], error[32], pattern[256];

        if (sscanf(spec, "%31[^:]:%31[^:]:%255[^,]", name, error, pattern) != 3)
            abort();
        if (strcmp(name, call) != 0 || !strstr(path, pattern))
            continue;
        for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
            if (strcmp(errors[i].name, error) == 0) {
                errno = errors[i].value;
                return true;
            }
        }
        abort();
    }
    return false;
}

static bool is_refused_fd(const char *call, int fd)
{
    char link[64], path[PATH_MAX] = "";
    int kept = errno;
    ssize_t n;

    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    errno = kept;
    return is_refused(call, path);
}

typedef int (*open_fn)(const char *, int, ...);
typedef int (*stat_fn)(const char *, struct stat *);
typedef DIR *(*opendir_fn)(const char *);
typedef struct dirent *(*readdir_fn)(DIR *);
typedef char *(*realpath_fn)(const char *, char *);
typedef int (*statvfs_fn)(const char *, struct statvfs *);
typedef int (*path_fn)(const char *);
typedef int (*flock_fn)(int, int);
typedef int (*fcntl_fn)(int, int, ...);
typedef ssize_t (*write_fn)(int, const void *, size_t);

EXPORT int open(const char *path, int flags, ...)
{
    NEXT(open_fn, "open");
    va_list args;
    mode_t mode;

    va_start(args, flags);
    mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return (flags & O_ACCMODE) == O_RDONLY && is_refused("open", path) ? -1 : next(path, flags, mode);
}

EXPORT int stat(const char *path, struct stat *st)
{
    NEXT(stat_fn, "stat");
    return is_refused("stat", path) ? -1 : next(path, st);
}

EXPORT int lstat(const char *path, struct stat *st)
{
    NEXT(stat_fn, "lstat");
    return is_refused("stat", path) ? -1 : next(path, st);
}

EXPORT char *realpath(const char *path, char *resolved)
{
    NEXT(realpath_fn, "realpath");
    return is_refused("realpath", path) ? NULL : next(path, resolved);
}

EXPORT int statvfs(const char *path, struct statvfs *fs)
{
    NEXT(statvfs_fn, "statvfs");
    const char *spec = getenv("TITAN_FREE"), *pattern = spec ? strchr(spec, ':') : NULL;

    if (is_refused("statvfs", path) || next(path, fs) < 0)
        return -1;
    if (pattern && strstr(path, pattern + 1)) {
        fs->f_frsize = 1;
        fs->f_bavail = strtoull(spec, NULL, 10);
    }
    return 0;
}

EXPORT DIR *opendir(const char *path)
{
    NEXT(opendir_fn, "opendir");
    return is_refused("opendir", path) ? NULL : next(path);
}

EXPORT struct dirent *readdir(DIR *dir)
{
    NEXT(readdir_fn, "readdir");
    return is_refused_fd("readdir", dirfd(dir)) ? NULL : next(dir);
}

EXPORT int unlink(const char *path)
{
    NEXT(path_fn, "unlink");
    return is_refused("unlink", path) ? -1 : next(path);
}

EXPORT int rmdir(const char *path)
{
    NEXT(path_fn, "rmdir");
    return is_refused("rmdir", path) ? -1 : next(path);
}

EXPORT int flock(int fd, int operation)
{
    NEXT(flock_fn, "flock");
    return is_refused_fd("flock", fd) ? -1 : next(fd, operation);
}

EXPORT ssize_t write(int fd, const void *bytes, size_t size)
{
    NEXT(write_fn, "write");
    return is_refused_fd("write", fd) ? -1 : next(fd, bytes, size);
}

EXPORT int fcntl(int fd, int command, ...)
{
    NEXT(fcntl_fn, "fcntl");
    va_list args;
    void *arg;

    va_start(args, command);
    arg = va_arg(args, void *);
    va_end(args);
    return command == F_OFD_SETLK && is_refused_fd("setlk", fd) ? -1 : next(fd, command, arg);
}

/* SPDX-License-Identifier: MIT
 *
 * Failures of system calls on demand, preloaded into the program as it is shipped:
 *
 *     TITAN_SHIM=CALL:N:ACTION[:RANK] LD_PRELOAD=libshim.so titan train ...
 *
 * The N-th CALL (from 1) that touches a path with "/checkpoint/" in it fails as ACTION says, on rank RANK only if given:
 *     kill    the process dies before the call, as if by power loss
 *     after   the process dies behind the call
 *     ENOSPC EDQUOT EIO   the call fails with that error, and so does every later one of its kind
 *     short   (pwrite) half of the bytes are written, and that is what the call returns
 * CALL "any" counts every call. With TITAN_SHIM_LOG=FILE nothing fails, and each call is a line of FILE.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <dlfcn.h>

/* What the shim replaces; the libc's own is found behind it. */
#define EXPORT __attribute__((visibility("default")))

enum verdict { GO_ON, FAIL, CUT_SHORT, DIE_BEHIND };

struct plan {
    char call[32], action[16];
    long n;
    long rank; /* -1: every rank */
    bool failed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* a save may have a thread of its own */
static long seen;
static struct plan plan;

static void read_plan(void)
{
    const char *text = getenv("TITAN_SHIM"), *rank = getenv("OMPI_COMM_WORLD_RANK");

    plan.rank = -1;
    if (plan.n || !text)
        return;
    if (sscanf(text, "%31[^:]:%ld:%15[^:]:%ld", plan.call, &plan.n, plan.action, &plan.rank) < 3)
        abort();
    if (plan.rank >= 0 && plan.rank != (rank ? strtol(rank, NULL, 10) : 0))
        plan.n = LONG_MAX;
}

static void write_line(const char *call, const char *path)
{
    const char *file = getenv("TITAN_SHIM_LOG"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    FILE *log = file ? fopen(file, "a") : NULL;

    if (!log)
        return;
    (void)fprintf(log, "%s %s %s\n", rank ? rank : "0", call, path);
    (void)fclose(log);
}

static enum verdict decide(const char *call)
{
    static const struct {
        const char *name;
        int value;
    } errors[] = {{"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT}, {"EIO", EIO}};

    read_plan();
    if (!plan.n || (strcmp(plan.call, "any") != 0 && strcmp(plan.call, call) != 0))
        return GO_ON;
    if (++seen < plan.n || (seen > plan.n && !plan.failed))
        return GO_ON;
    if (strcmp(plan.action, "kill") == 0)
        (void)raise(SIGKILL);
    if (strcmp(plan.action, "after") == 0)
        return DIE_BEHIND;
    if (strcmp(plan.action, "short") == 0)
        return CUT_SHORT;
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (strcmp(plan.action, errors[i].name) == 0) {
            plan.failed = true;
            errno = errors[i].value;
            return FAIL;
        }
    }
    abort();
}

static enum verdict judge(const char *call, const char *path)
{
    enum verdict verdict;
    int kept = errno;

    if (!strstr(path, "/checkpoint/"))
        return GO_ON;
    (void)pthread_mutex_lock(&lock);
    write_line(call, path);
    errno = kept;
    verdict = decide(call);
    (void)pthread_mutex_unlock(&lock);
    return verdict;
}

static enum verdict judge_fd(const char *call, int fd)
{
    char link[64], path[PATH_MAX] = "";
    int kept = errno;
    ssize_t n;

    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    errno = kept;
    return judge(call, path);
}

/* dlsym gives an object pointer; POSIX says that it may be a function. */
#define NEXT(type, name)                   \
    type next;                             \
    void *symbol = dlsym(RTLD_NEXT, name); \
    memcpy(&next, &symbol, sizeof next)

#define FINISH(result)             \
    do {                           \
        if (verdict == DIE_BEHIND) \
            (void)raise(SIGKILL);  \
        return result;             \
    } while (0)

typedef ssize_t (*pwrite_fn)(int, const void *, size_t, off_t);
typedef int (*fd_fn)(int);
typedef int (*allocate_fn)(int, int, off_t, off_t);
typedef int (*rename_fn)(const char *, const char *);
typedef int (*renameat2_fn)(int, const char *, int, const char *, unsigned);
typedef int (*path_fn)(const char *);
typedef int (*mkdir_fn)(const char *, mode_t);

EXPORT ssize_t pwrite(int fd, const void *bytes, size_t size, off_t offset)
{
    NEXT(pwrite_fn, "pwrite");
    enum verdict verdict = judge_fd("pwrite", fd);
    ssize_t n;

    if (verdict == FAIL)
        return -1;
    n = next(fd, bytes, verdict == CUT_SHORT ? size / 2 : size, offset);
    FINISH(n);
}

/* The names that a program compiled with 64-bit offsets calls. */
EXPORT ssize_t pwrite64(int fd, const void *bytes, size_t size, off_t offset) __attribute__((alias("pwrite")));

EXPORT int fsync(int fd)
{
    NEXT(fd_fn, "fsync");
    enum verdict verdict = judge_fd("fsync", fd);
    int rc = verdict == FAIL ? -1 : next(fd);

    FINISH(rc);
}

EXPORT int fallocate(int fd, int mode, off_t offset, off_t size)
{
    NEXT(allocate_fn, "fallocate");
    enum verdict verdict = judge_fd("fallocate", fd);
    int rc = verdict == FAIL ? -1 : next(fd, mode, offset, size);

    FINISH(rc);
}

EXPORT int fallocate64(int fd, int mode, off_t offset, off_t size) __attribute__((alias("fallocate")));

EXPORT int rename(const char *from, const char *to)
{
    NEXT(rename_fn, "rename");
    enum verdict verdict = judge("rename", from);
    int rc = verdict == FAIL ? -1 : next(from, to);

    FINISH(rc);
}

EXPORT int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    NEXT(renameat2_fn, "renameat2");
    enum verdict verdict = judge("rename", from);
    int rc = verdict == FAIL ? -1 : next(from_folder, from, to_folder, to, flags);

    FINISH(rc);
}

EXPORT int unlink(const char *path)
{
    NEXT(path_fn, "unlink");
    enum verdict verdict = judge("unlink", path);
    int rc = verdict == FAIL ? -1 : next(path);

    FINISH(rc);
}

EXPORT int rmdir(const char *path)
{
    NEXT(path_fn, "rmdir");
    enum verdict verdict = judge("rmdir", path);
    int rc = verdict == FAIL ? -1 : next(path);

    FINISH(rc);
}

EXPORT int mkdir(const char *path, mode_t mode)
{
    NEXT(mkdir_fn, "mkdir");
    enum verdict verdict = judge("mkdir", path);
    int rc = verdict == FAIL ? -1 : next(path, mode);

    FINISH(rc);
}

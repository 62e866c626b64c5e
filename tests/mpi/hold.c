/* SPDX-License-Identifier: MIT
 *
 * Delays a rank in the middle of its work on files. Preloaded into the program as it is shipped:
 *
 *     TITAN_HOLD=CALL:PART:RANK:SECONDS LD_PRELOAD=libhold.so titan train ...
 *
 * The first CALL (pread, fsync) of rank RANK on a file whose path contains PART takes SECONDS. With 0 the process stops
 * there, as by SIGSTOP. A line on stderr says so. With start:-:RANK:0 the start of MPI never returns.
 */
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/types.h>
#include <unistd.h>

#include <dlfcn.h>

#define EXPORT __attribute__((visibility("default")))

static atomic_bool held;

static void hold(const char *call, int fd)
{
    const char *text = getenv("TITAN_HOLD"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    char wanted[32], part[64], link[64], path[PATH_MAX] = "";
    unsigned seconds;
    long holder;
    ssize_t n;

    if (!text || sscanf(text, "%31[^:]:%63[^:]:%ld:%u", wanted, part, &holder, &seconds) != 4)
        return;
    if (strcmp(call, wanted) != 0 || holder != (rank ? strtol(rank, NULL, 10) : 0))
        return;
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    if (!strstr(path, part) || atomic_exchange(&held, true))
        return;
    (void)fprintf(stderr, "held up: %s of %s\n", call, path);
    if (seconds > 0)
        (void)sleep(seconds);
    else
        (void)kill(getpid(), SIGSTOP);
}

/* dlsym gives an object pointer; POSIX says that it may be a function. */
#define NEXT(type, name)                   \
    type next;                             \
    void *symbol = dlsym(RTLD_NEXT, name); \
    memcpy(&next, &symbol, sizeof next)

/* A function that MPI calls at its start, under MPI's name and with its pointers. For the held rank it never
 * returns. */
EXPORT int never_dup(void *comm, void **ret_comm) __asm__("MPI_Comm_dup");

EXPORT int never_dup(void *comm, void **ret_comm)
{
    typedef int (*dup_fn)(void *, void **);
    NEXT(dup_fn, "MPI_Comm_dup");
    const char *text = getenv("TITAN_HOLD"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    long holder;

    if (text && sscanf(text, "start:-:%ld:0", &holder) == 1 && rank && strtol(rank, NULL, 10) == holder) {
        (void)fprintf(stderr, "held up: the start of MPI\n");
        for (;;)
            (void)pause();
    }
    return next(comm, ret_comm);
}

typedef ssize_t (*pread_fn)(int, void *, size_t, off_t);
typedef int (*fd_fn)(int);

EXPORT ssize_t pread(int fd, void *bytes, size_t size, off_t offset)
{
    NEXT(pread_fn, "pread");

    hold("pread", fd);
    return next(fd, bytes, size, offset);
}

/* The name under which a program with 64-bit offsets calls it. */
EXPORT ssize_t pread64(int fd, void *bytes, size_t size, off_t offset) __attribute__((alias("pread")));

EXPORT int fsync(int fd)
{
    NEXT(fd_fn, "fsync");

    hold("fsync", fd);
    return next(fd);
}

/* SPDX-License-Identifier: MIT
 *
 * Interrupts writes to standard output and error. Preloaded into the program as it is shipped:
 *
 *     TITAN_INTERRUPT=1 LD_PRELOAD=libinterrupt.so titan …
 *
 * Of three such writes, the first fails with EINTR, the second fails with EAGAIN, and the third writes only some of its
 * bytes. Every second poll fails with EINTR.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <poll.h>
#include <unistd.h>

#include <dlfcn.h>

typedef ssize_t (*write_fn)(int fd, const void *bytes, size_t size);
typedef int (*poll_fn)(struct pollfd *polled, nfds_t n, int timeout);

#define EXPORT __attribute__((visibility("default")))

/* dlsym gives an object pointer; POSIX says that it may be a function. */
#define NEXT(type, name)                   \
    type next;                             \
    void *symbol = dlsym(RTLD_NEXT, name); \
    memcpy(&next, &symbol, sizeof next)

EXPORT ssize_t write(int fd, const void *bytes, size_t size)
{
    enum { SOME = 300 };
    static atomic_uint calls;
    unsigned call;
    NEXT(write_fn, "write");

    if ((fd != STDOUT_FILENO && fd != STDERR_FILENO) || !getenv("TITAN_INTERRUPT"))
        return next(fd, bytes, size);
    call = atomic_fetch_add(&calls, 1) % 3;
    if (call < 2) {
        errno = call == 0 ? EINTR : EAGAIN;
        return -1;
    }
    return next(fd, bytes, size < SOME ? size : SOME);
}

EXPORT int poll(struct pollfd *polled, nfds_t n, int timeout)
{
    static atomic_uint calls;
    NEXT(poll_fn, "poll");

    if (getenv("TITAN_INTERRUPT") && atomic_fetch_add(&calls, 1) % 2 == 0) {
        errno = EINTR;
        return -1;
    }
    return next(polled, n, timeout);
}

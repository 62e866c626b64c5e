/* SPDX-License-Identifier: MIT
 *
 * Simulates a link that changes bits. Preloaded into a rank, it flips the lowest bit of data that the rank reads from
 * the memory of others.
 *
 *     TITAN_FLIP_RANK=RANK TITAN_FLIP_MARK=FILE LD_PRELOAD=libflip.so titan …
 *
 * RANK is Open MPI's number of the rank; FILE is created when the first bit is flipped.
 */
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <dlfcn.h>

__attribute__((visibility("default"))) ssize_t process_vm_readv(pid_t pid, const struct iovec *local,
                                                                unsigned long n_local, const struct iovec *remote,
                                                                unsigned long n_remote, unsigned long flags)
{
    ssize_t (*next)(pid_t, const struct iovec *, unsigned long, const struct iovec *, unsigned long, unsigned long);
    const char *wanted = getenv("TITAN_FLIP_RANK"), *rank = getenv("OMPI_COMM_WORLD_RANK");
    void *symbol = dlsym(RTLD_NEXT, "process_vm_readv");
    ssize_t n;

    memcpy(&next, &symbol, sizeof next); /* dlsym gives an object pointer; POSIX says that it may be a function */
    n = next(pid, local, n_local, remote, n_remote, flags);
    if (n > 4096 && wanted && rank && strcmp(wanted, rank) == 0) {
        const char *mark = getenv("TITAN_FLIP_MARK");

        *(char *)local[0].iov_base ^= 1;
        if (mark)
            (void)close(open(mark, O_CREAT | O_WRONLY, 0644));
    }
    return n;
}

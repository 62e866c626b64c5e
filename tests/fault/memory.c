/* SPDX-License-Identifier: MIT
 *
 * Makes an allocation fail on demand. Preloaded into the program as it is shipped:
 *
 *     TITAN_MEMORY=K TITAN_MEMORY_MARK=FILE LD_PRELOAD=libmemory.so titan ckpt inspect ...
 *
 * The K-th allocation after the start of main fails, whether titan, one of its libraries or the libc makes it. The file
 * is created when that happens, so a run without it made fewer allocations. No allocation fails while hwloc reads the
 * processors, which takes some hundred small ones: hwloc does not check all of them.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <fcntl.h>
#include <unistd.h>

#include <dlfcn.h>

#define EXPORT __attribute__((visibility("default")))

static atomic_long seen;
static atomic_bool armed;
static _Thread_local bool spared;
static long fatal;
static const char *mark;

/* Requests made before the libc's functions are known are served from here, and never freed. */
static char early[1 << 16];
static size_t early_used;

static void *early_memory(size_t bytes)
{
    void *p = early + early_used;

    early_used += (bytes + 15) / 16 * 16;
    if (early_used > sizeof early)
        abort();
    return p;
}

static bool fails(void)
{
    int fd;

    if (spared || !atomic_load(&armed) || atomic_fetch_add(&seen, 1) + 1 != fatal)
        return false;
    if ((fd = open(mark, O_WRONLY | O_CREAT, 0600)) >= 0)
        (void)close(fd);
    errno = ENOMEM;
    return true;
}

/* dlsym gives an object pointer; POSIX says that it may be a function. It asks for memory itself, which
 * its header denies. */
#define NEXT(type, name)                     \
    static type next;                        \
    static volatile bool asking;             \
    if (!next && !asking) {                  \
        void *symbol;                        \
                                             \
        asking = true;                       \
        symbol = dlsym(RTLD_NEXT, name);     \
        memcpy(&next, &symbol, sizeof next); \
        asking = false;                      \
    }

typedef void *(*malloc_fn)(size_t);
typedef void *(*calloc_fn)(size_t, size_t);
typedef void *(*realloc_fn)(void *, size_t);
typedef void (*free_fn)(void *);

EXPORT void *malloc(size_t bytes)
{
    NEXT(malloc_fn, "malloc");
    if (!next)
        return early_memory(bytes);
    return fails() ? NULL : next(bytes);
}

EXPORT void *calloc(size_t n, size_t size)
{
    NEXT(calloc_fn, "calloc");
    if (!next)
        return early_memory(n * size);
    return fails() ? NULL : next(n, size);
}

EXPORT void *realloc(void *p, size_t bytes)
{
    NEXT(realloc_fn, "realloc");
    return fails() ? NULL : next(p, bytes);
}

EXPORT void free(void *p)
{
    NEXT(free_fn, "free");
    if (next && !((char *)p >= early && (char *)p < early + sizeof early))
        next(p);
}

typedef int (*topology_init_fn)(void **);
typedef void (*topology_destroy_fn)(void *);

EXPORT int hwloc_topology_init(void **topology);
EXPORT int hwloc_topology_init(void **topology)
{
    NEXT(topology_init_fn, "hwloc_topology_init");
    spared = true;
    return next(topology);
}

EXPORT void hwloc_topology_destroy(void *topology);
EXPORT void hwloc_topology_destroy(void *topology)
{
    NEXT(topology_destroy_fn, "hwloc_topology_destroy");
    next(topology);
    spared = false;
}

typedef int (*main_fn)(int, char **, char **);
typedef int (*start_fn)(main_fn, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);

static main_fn real_main;

static int armed_main(int argc, char **argv, char **environment)
{
    const char *k = getenv("TITAN_MEMORY");

    mark = getenv("TITAN_MEMORY_MARK");
    fatal = k ? strtol(k, NULL, 10) : 0;
    atomic_store(&armed, fatal > 0 && mark);
    return real_main(argc, argv, environment);
}

EXPORT int __libc_start_main(main_fn function, int argc, char **argv, void (*init)(void), void (*fini)(void),
                             void (*rtld_fini)(void), void *stack_end);
EXPORT int __libc_start_main(main_fn function, int argc, char **argv, void (*init)(void), void (*fini)(void),
                             void (*rtld_fini)(void), void *stack_end)
{
    start_fn next;
    void *symbol = dlsym(RTLD_NEXT, "__libc_start_main");

    memcpy(&next, &symbol, sizeof next);
    real_main = function;
    return next(armed_main, argc, argv, init, fini, rtld_fini, stack_end);
}

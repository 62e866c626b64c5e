/* SPDX-License-Identifier: MIT
 *
 * Heap memory with a count of its allocations, and page-mapped memory for arenas.
 */
#include "core/base/mem.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/mman.h>
#include <unistd.h>

#include "core/base/error.h"

static atomic_uint_fast64_t allocations;

static struct {
    void (*fn)(void *arg);
    void *arg;
} on_end;

void tt_mem_on_end(void (*fn)(void *arg), void *arg)
{
    on_end.arg = arg;
    on_end.fn = fn;
}

/* Calls _exit, not exit(): other threads may hold locks that exit's handlers need. */
static void end(size_t bytes)
{
    static atomic_flag ending = ATOMIC_FLAG_INIT;

    if (!atomic_flag_test_and_set(&ending)) {
        (void)fprintf(stderr, "titan: error: out of memory: cannot allocate %zu bytes\n", bytes);
        if (on_end.fn)
            on_end.fn(on_end.arg);
    }
    _exit(tt_error_exit_code(TT_ENOMEM));
}

static void *check(void *p, size_t bytes)
{
    if (!p && bytes)
        end(bytes);
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    return p;
}

static size_t product(size_t n, size_t size)
{
    size_t bytes;

    if (__builtin_mul_overflow(n, size, &bytes))
        (void)check(NULL, SIZE_MAX);
    return bytes;
}

void *tt_calloc(size_t n, size_t size)
{
    size_t bytes = product(n, size);

    return check(calloc(1, bytes ? bytes : 1), bytes);
}

void *tt_realloc(void *p, size_t n, size_t size)
{
    size_t bytes = product(n, size);

    return check(realloc(p, bytes ? bytes : 1), bytes);
}

void *tt_calloc_for(size_t n, size_t size, const char *what)
{
    bool impossible = size && n > (size_t)PTRDIFF_MAX / size;
    void *p = impossible ? NULL : calloc(n ? n : 1, size ? size : 1);

    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    if (!p)
        (void)tt_fail(TT_ENOMEM, "no memory for %zu x %zu bytes, which '%s' needs", n, size, what);
    return p;
}

void *tt_try_realloc(void *p, size_t n, size_t size)
{
    size_t bytes;

    if (__builtin_mul_overflow(n, size, &bytes))
        return NULL;
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    return realloc(p, bytes ? bytes : 1);
}

char *tt_strndup(const char *text, size_t n)
{
    char *copy = tt_calloc(n + 1, 1);

    memcpy(copy, text, n);
    return copy;
}

char *tt_strdup(const char *text)
{
    return text ? tt_strndup(text, strlen(text)) : NULL;
}

char *tt_vformat(const char *fmt, va_list args)
{
    va_list again;
    char *text;
    int n;

    va_copy(again, args);
    n = vsnprintf(NULL, 0, fmt, again);
    va_end(again);
    text = tt_calloc(n < 0 ? 1 : (size_t)n + 1, 1);
    (void)vsnprintf(text, n < 0 ? 1 : (size_t)n + 1, fmt, args);
    return text;
}

char *tt_format(const char *fmt, ...)
{
    va_list args;
    char *text;

    va_start(args, fmt);
    text = tt_vformat(fmt, args);
    va_end(args);
    return text;
}

void tt_free(void *p)
{
    free(p);
}

uint64_t tt_mem_allocations(void)
{
    return atomic_load_explicit(&allocations, memory_order_relaxed);
}

void *tt_map(size_t bytes)
{
    const size_t huge = (size_t)2 << 20;
    size_t rounded = (bytes + huge - 1) / huge * huge;
    char *raw = mmap(NULL, rounded + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *aligned;

    if (raw == MAP_FAILED)
        return NULL;
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    aligned = (char *)(((uintptr_t)raw + huge - 1) / huge * huge);
    if (aligned > raw)
        (void)munmap(raw, (size_t)(aligned - raw));
    (void)munmap(aligned + rounded, (size_t)(raw + rounded + huge - (aligned + rounded)));
    (void)madvise(aligned, rounded, MADV_HUGEPAGE);
    return aligned;
}

void tt_unmap(void *p, size_t bytes)
{
    const size_t huge = (size_t)2 << 20;

    if (p)
        (void)munmap(p, (bytes + huge - 1) / huge * huge);
}

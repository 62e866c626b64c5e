/* SPDX-License-Identifier: MIT */
#ifndef TT_BASE_MEM_H
#define TT_BASE_MEM_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

/**
 * All of titan's own heap memory comes from these functions, so that a test can assert that the step loop allocates
 * nothing. Callers need not check for NULL: when memory runs out, these functions end the process with a message and
 * the exit code of TT_ENOMEM. For sizes that come from a file, use tt_calloc_for and tt_try_realloc. (Large arrays are
 * planned and checked against memory_limit beforehand.)
 */

/** n * size zeroed bytes; the product is checked. */
void *tt_calloc(size_t n, size_t size);

/** Grows or shrinks p (may be NULL) to n * size bytes; new bytes are not initialised. */
void *tt_realloc(void *p, size_t n, size_t size);

/**
 * The same for sizes that come from a file: these functions return NULL if there is not enough memory or the product
 * overflows, and p is unchanged. tt_calloc_for also sets the error message, which says that there is no memory for
 * `what`: `if (!p) return TT_ENOMEM;`
 */
void *tt_try_realloc(void *p, size_t n, size_t size);
void *tt_calloc_for(size_t n, size_t size, const char *what);

char *tt_strdup(const char *text);
char *tt_strndup(const char *text, size_t n);

/** A new string made by printf. */
char *tt_format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
char *tt_vformat(const char *fmt, va_list args) __attribute__((format(printf, 1, 0)));

/** Releases memory that the functions above returned; NULL is allowed. */
void tt_free(void *p);

/**
 * Registers fn(arg) to be called once before the process ends because memory ran out, so that it can remove unfinished
 * files; NULL clears it. A process has one such function at a time. fn may allocate.
 */
void tt_mem_on_end(void (*fn)(void *arg), void *arg);

/** The number of allocations of this process so far; for the test of the step loop. */
uint64_t tt_mem_allocations(void);

/** Room for one more item in a growing array: `TT_PUSH(list->item, list->n, list->cap) = x;` */
#define TT_PUSH(array, n, cap)                                                                                        \
    (*((n) == (cap) ? ((cap) = (cap) ? 2 * (cap) : 16, (array) = tt_realloc((array), (size_t)(cap), sizeof *(array)), \
                       &(array)[(n)++])                                                                               \
                    : &(array)[(n)++]))

/** Huge-page friendly zeroed memory for arenas, aligned to 2 MiB. Returns NULL when the system refuses. */
void *tt_map(size_t bytes);
void tt_unmap(void *p, size_t bytes);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_KERNELS_VECTOR_FETCH_H
#define TT_CORE_KERNELS_VECTOR_FETCH_H

#include <stdint.h>

#define FETCH_INLINE static inline __attribute__((always_inline, unused))

/**
 * Lines of a matrix that are fetched into the second cache while other data is multiplied: a few cache lines at a time,
 * because a processor drops requests beyond its queue. All sizes are in bytes.
 */
struct fetch {
    const char *line; /* the first one that is not fetched yet */
    int64_t stride, lines, bytes;
    int64_t at;    /* in the first line */
    int64_t count; /* cache lines at a time */
};

enum { FETCHED = 64 /* bytes of a cache line */ };

/* `lines` lines, in `turns` turns; they may begin anywhere in a cache line. No turns: nothing. */
FETCH_INLINE struct fetch fetch_in_turns(const void *first, int64_t stride, int64_t lines, int64_t bytes, int64_t turns)
{
    int64_t cache_lines = lines * (bytes / FETCHED + 1);

    return (struct fetch){.line = first,
                          .stride = stride,
                          .lines = lines,
                          .bytes = bytes,
                          .count = turns ? (cache_lines + turns - 1) / turns : 0};
}

/* One turn. */
FETCH_INLINE void fetch_some(struct fetch *f)
{
    for (int64_t i = 0; i < f->count && f->lines > 0; i++) {
        __builtin_prefetch(f->line + (f->at < f->bytes ? f->at : f->bytes - 1), 0, 2);
        f->at += FETCHED;
        if (f->at >= f->bytes + FETCHED) {
            f->at = 0;
            f->line += f->stride;
            f->lines--;
        }
    }
}

#endif

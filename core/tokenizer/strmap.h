/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_TOKENIZER_STRMAP_H
#define TT_CORE_TOKENIZER_STRMAP_H

#include <stddef.h>
#include <stdint.h>

/**
 * A map from byte strings to integers (open addressing, linear probing; keys are copied; only tt_strmap_clear removes
 * anything). Zero-initialise; release when done. Lookups are thread-safe while no thread changes the map.
 */
struct tt_strmap_entry {
    uint64_t hash; /* 0: the entry is free */
    size_t key;    /* offset in pool */
    size_t size;
    int64_t value;
};

struct tt_strmap {
    struct tt_strmap_entry *entry;
    size_t n;
    size_t cap; /* a power of two, or 0 */
    char *pool;
    size_t pool_size;
    size_t pool_cap;
};

/** Sets the value of a key, replacing any earlier value. */
void tt_strmap_set(struct tt_strmap *map, const char *key, size_t size, int64_t value);

/** The value of a key, or `missing`. */
int64_t tt_strmap_get(const struct tt_strmap *map, const char *key, size_t size, int64_t missing);

/** Removes all keys; keeps the memory. */
void tt_strmap_clear(struct tt_strmap *map);

void tt_strmap_release(struct tt_strmap *map);

#endif

/* SPDX-License-Identifier: MIT
 *
 * The string map of the tokenizer: vocabulary, added tokens, cache of words.
 */
#include "core/tokenizer/strmap.h"

#include <string.h>

#include "core/base/hash.h"
#include "core/base/mem.h"

static uint64_t hash_key(const char *key, size_t size)
{
    uint64_t hash = tt_hash64(key, size, 0);

    return hash ? hash : 1;
}

/* The entry of a key, or the free entry where it would go. The map always has a free entry. */
static struct tt_strmap_entry *find(const struct tt_strmap *map, uint64_t hash, const char *key, size_t size)
{
    for (size_t i = hash & (map->cap - 1);; i = (i + 1) & (map->cap - 1)) {
        struct tt_strmap_entry *e = &map->entry[i];

        if (!e->hash || (e->hash == hash && e->size == size && (!size || memcmp(map->pool + e->key, key, size) == 0)))
            return e;
    }
}

static void grow(struct tt_strmap *map)
{
    struct tt_strmap_entry *old = map->entry;
    size_t old_cap = map->cap;

    map->cap = old_cap ? 2 * old_cap : 64;
    map->entry = tt_calloc(map->cap, sizeof *map->entry);
    for (size_t i = 0; i < old_cap; i++) {
        if (!old[i].hash)
            continue;
        for (size_t at = old[i].hash & (map->cap - 1);; at = (at + 1) & (map->cap - 1)) {
            if (map->entry[at].hash)
                continue;
            map->entry[at] = old[i];
            break;
        }
    }
    tt_free(old);
}

void tt_strmap_set(struct tt_strmap *map, const char *key, size_t size, int64_t value)
{
    struct tt_strmap_entry *e;
    uint64_t hash = hash_key(key, size);

    if (2 * (map->n + 1) > map->cap)
        grow(map);
    e = find(map, hash, key, size);
    if (!e->hash) {
        if (map->pool_size + size > map->pool_cap) {
            map->pool_cap = 2 * (map->pool_size + size);
            map->pool = tt_realloc(map->pool, map->pool_cap, 1);
        }
        if (size)
            memcpy(map->pool + map->pool_size, key, size);
        *e = (struct tt_strmap_entry){.hash = hash, .key = map->pool_size, .size = size};
        map->pool_size += size;
        map->n++;
    }
    e->value = value;
}

int64_t tt_strmap_get(const struct tt_strmap *map, const char *key, size_t size, int64_t missing)
{
    const struct tt_strmap_entry *e;

    if (!map->n)
        return missing;
    e = find(map, hash_key(key, size), key, size);
    return e->hash ? e->value : missing;
}

void tt_strmap_clear(struct tt_strmap *map)
{
    if (map->cap)
        memset(map->entry, 0, map->cap * sizeof *map->entry);
    map->n = 0;
    map->pool_size = 0;
}

void tt_strmap_release(struct tt_strmap *map)
{
    tt_free(map->entry);
    tt_free(map->pool);
    *map = (struct tt_strmap){0};
}

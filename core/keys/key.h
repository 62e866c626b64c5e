/* SPDX-License-Identifier: MIT */
#ifndef TT_KEYS_KEY_H
#define TT_KEYS_KEY_H

#include <stddef.h>

/**
 * The keys of the configuration as constants, for all layers: TT_KEY(training.steps) is the key training.steps of
 * core/keys/schema.def; it does not compile if there is no such key. An error about a key carries the key
 * (tt_fail_key), messages name it by tt_key_name, and core/config knows its value and where the user set it.
 */
#define TT_KEY(path) ((enum tt_key)offsetof(struct tt_key_numbers, path))

/* A key's number is the index of its member; members are named as users write the keys. */
struct tt_key_numbers {
    char none;
#define TT_SECTION(section, doc) struct {
#define TT_SECTION_END(section) \
    }                           \
    section;
#define TT_MAP(section, key, doc) struct {
#define TT_MAP_END(key) \
    }                   \
    key;
#define TT_EACH(section, key) char key;
#include "core/keys/schema.def"
};

enum tt_key { TT_KEY_NONE, TT_KEYS = sizeof(struct tt_key_numbers) };

/** The name of a key as a constant string, for tables. */
#define TT_KEY_NAME(path) (&#path[0 * offsetof(struct tt_key_numbers, path)])

/** A list of keys, for functions that take one: TT_KEY_LIST(TT_KEY(model.dim), TT_KEY(model.n_heads)). */
#define TT_KEY_LIST(...) ((const enum tt_key[]){__VA_ARGS__, TT_KEY_NONE})

/** The key as users write it, "training.steps"; "" for TT_KEY_NONE. */
const char *tt_key_name(enum tt_key key);

#endif

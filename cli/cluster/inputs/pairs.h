/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_CLUSTER_INPUTS_PAIRS_H
#define TT_CLI_CLUSTER_INPUTS_PAIRS_H

#include <stdbool.h>

#include "core/base/error.h"

/**
 * A configuration of torchtitan, whatever its form, as a list of keys and values: TOML, JSON or flags. Keys of nested
 * sections have dots. Zero-initialise; tt_pairs_release.
 */
struct tt_pair {
    char *key, *value;
    const char *where; /* the file, or a word for flags */
};

struct tt_pairs {
    struct tt_pair *item;
    int n, cap;
};

/** Adds a pair at the end; key and value are the list's from now on. */
void tt_pairs_add(struct tt_pairs *pairs, const char *where, char *key, char *value);

/** Adds what a TOML file, or a JSON file, says; path stays as long as the list. TT_EDATA: it is neither. */
int tt_pairs_read(struct tt_pairs *pairs, const char *path) TT_MUST_CHECK;

/** Adds flags: "--section.key value", "--section.key=value", "--section.key", "--section.no-key". TT_EUSAGE. */
int tt_pairs_read_flags(struct tt_pairs *pairs, int n, const char *const *flags) TT_MUST_CHECK;

/** The value of the last pair with the key; NULL: there is none, or it is null. */
const char *tt_pairs_get(const struct tt_pairs *pairs, const char *key);

/** The same with the first of several keys that has one; NULL ends them. */
const char *tt_pairs_get_any(const struct tt_pairs *pairs, const char *const *keys);

bool tt_pairs_has(const struct tt_pairs *pairs, const char *key);
void tt_pairs_release(struct tt_pairs *pairs);

#endif

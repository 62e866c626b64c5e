/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_TOKENIZER_CHARSET_H
#define TT_CORE_TOKENIZER_CHARSET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/text.h"

/**
 * The version of Unicode in unicode.def. Token ids depend on the properties of characters, so titan takes these from
 * that table, not from a library whose version depends on the system. The `tokenizers` library uses the same version.
 */
#define TT_UNICODE_VERSION "16.0"

/** A set of code points: those in [edge[0], edge[1]), [edge[2], edge[3]), ... in ascending order. */
struct tt_charset {
    uint32_t *edge;
    size_t n, cap;
};

enum { TT_CODE_END = 0x110000 };

void tt_charset_release(struct tt_charset *set);
void tt_charset_add(struct tt_charset *set, uint32_t first, uint32_t last);
void tt_charset_unite(struct tt_charset *set, const struct tt_charset *other);
void tt_charset_intersect(struct tt_charset *set, const struct tt_charset *other);
void tt_charset_complement(struct tt_charset *set);
bool tt_charset_has(const struct tt_charset *set, uint32_t code);

/**
 * Adds the characters with a property: a category, a script, or another name of \p{...} in Oniguruma. Case, spaces,
 * underscores and hyphens of the name do not matter. False: there is no such property.
 */
bool tt_charset_add_property(struct tt_charset *set, const char *name, size_t size);

/** Adds the characters of [:name:], which differ from \p{name} for "punct" and "word". */
bool tt_charset_add_bracket(struct tt_charset *set, const char *name, size_t size);

/**
 * Characters that no set of a list tells apart are of the same kind. A kind is a byte; the kind of the line end is the
 * byte of the line end.
 */
enum { TT_MOST_KINDS = 256 };

/** The code points from begin to the next interval are of one kind. */
struct tt_kind_interval {
    uint32_t begin;
    int kind;
};

struct tt_kinds {
    struct tt_kind_interval *interval;
    size_t n;
    uint8_t ascii[128];               /* kind by character */
    uint16_t page[TT_CODE_END / 256]; /* for each code point / 256: the row that has its kind */
    uint8_t (*row)[256];              /* for each code point % 256 */
    size_t n_rows, cap_rows;
};

/** One of the sets must contain only the line end. False: there are more than 256 kinds. Release in any case. */
bool tt_kinds_init(struct tt_kinds *kinds, const struct tt_charset *set, int n_sets);
void tt_kinds_release(struct tt_kinds *kinds);

static inline uint8_t tt_kinds_of(const struct tt_kinds *k, uint32_t code)
{
    return code < 128 ? k->ascii[code] : k->row[k->page[code >> 8]][code & 255];
}

#endif

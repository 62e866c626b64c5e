/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_TOKENIZER_KINDS_H
#define TT_CORE_TOKENIZER_KINDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/text.h"
#include "core/tokenizer/charset.h"

/** Characters that no set of a list tells apart are one kind: a byte; that of the line end is the line end. */
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
    uint16_t page[TT_CODE_END / 256]; /* by code point / 256: which row has its kind */
    uint8_t (*row)[256];              /* by code point % 256 */
    size_t n_rows, cap_rows;
};

/** One of the sets has only the line end. False: there are more than 256 kinds. Release in any case. */
bool tt_kinds_init(struct tt_kinds *kinds, const struct tt_charset *set, int n_sets);
void tt_kinds_release(struct tt_kinds *kinds);

/** Appends one of the sets as a class of a regular expression over kinds. */
void tt_kinds_put(const struct tt_kinds *kinds, const struct tt_charset *set, struct tt_text *out);

static inline uint8_t tt_kinds_of(const struct tt_kinds *k, uint32_t code)
{
    return code < 128 ? k->ascii[code] : k->row[k->page[code >> 8]][code & 255];
}

#endif

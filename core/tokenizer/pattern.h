/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_TOKENIZER_PATTERN_H
#define TT_CORE_TOKENIZER_PATTERN_H

#include <stddef.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/tokenizer/kinds.h"

/**
 * A regular expression of a tokenizer file, in Oniguruma's Ruby syntax, translated for PCRE2. All that the expression
 * says of characters is whether they are in certain sets. Characters that no set tells apart are one kind, of which
 * there are less than 256. So the expression is written over kinds, which are bytes, and is matched against the kinds
 * of the text's characters. Hence no table of PCRE2 takes part, and every class is 256 bits.
 */
struct tt_pattern {
    struct tt_text text; /* the expression over kinds */
    struct tt_kinds kinds;
};

/**
 * Translates size bytes of an expression; where (a file; NULL: none) is for messages. TT_EDATA for what PCRE2 would
 * match otherwise than Oniguruma. Release also after an error.
 */
int tt_pattern_init(struct tt_pattern *pattern, const char *text, size_t size, const char *where) TT_MUST_CHECK;
void tt_pattern_release(struct tt_pattern *pattern);

#endif

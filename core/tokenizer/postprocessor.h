/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_TOKENIZER_POSTPROCESSOR_H
#define TT_CORE_TOKENIZER_POSTPROCESSOR_H

#include "core/base/json.h"
#include "core/tokenizer/tokenizer.h"

/**
 * Reads "post_processor". ret_begin/end: the special tokens that it puts around a single text; they keep their values
 * if there are none.
 */
int tt_postprocessor_read(const struct tt_tokenizer *t, const json_t *json, int32_t *ret_begin,
                          int32_t *ret_end) TT_MUST_CHECK;

/**
 * A hash of tokenizer.json. What tt_tokenizer_json_with_bos adds does not change it, since titan's documents begin with
 * BOS in any case.
 */
uint64_t tt_postprocessor_hash(const struct tt_tokenizer *t);

#endif

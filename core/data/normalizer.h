/* SPDX-License-Identifier: MIT */
#ifndef TT_DATA_NORMALIZER_H
#define TT_DATA_NORMALIZER_H

#include <stdbool.h>

#include "core/base/json.h"
#include "core/base/text.h"

/**
 * The normalizer of a tokenizer.json: Unicode's normal forms (NFC for Qwen), alone or in a Sequence, or none. Text that a
 * tokenizer has never seen composed another way gives other tokens, so what is not built is refused by name.
 */
enum { TT_NORMALIZER_STEPS = 4 };

struct tt_normal_form;

struct tt_normalizer {
    const struct tt_normal_form *step[TT_NORMALIZER_STEPS];
    int n_steps;
};

/** Reads the JSON value of "normalizer" (null and absent: none); where (a file) is for messages. */
int tt_normalizer_init(struct tt_normalizer *n, const json_t *json, const char *where) TT_MUST_CHECK;

/**
 * Normalises text (valid UTF-8). ret_text and ret_size are `text` itself where nothing changes, which for plain text is
 * seen without looking any character up; otherwise they point into scratch, which is cleared and used.
 */
int tt_normalizer_apply(const struct tt_normalizer *n, struct tt_text *scratch, const char *text, size_t size,
                        const char **ret_text, size_t *ret_size) TT_MUST_CHECK;

#endif

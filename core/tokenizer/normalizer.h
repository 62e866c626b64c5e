/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_TOKENIZER_NORMALIZER_H
#define TT_CORE_TOKENIZER_NORMALIZER_H

#include <stdbool.h>

#include "core/base/json.h"
#include "core/base/text.h"
#include "core/tokenizer/kinds.h"

/**
 * The normalizer of a tokenizer.json: Unicode's normal forms (NFC for Qwen), Prepend and Replace of plain strings
 * (Llama 2), alone or in a Sequence, or none. Differently composed text gives other tokens, so a normalizer that is not
 * supported is refused by name.
 */
enum { TT_NORMALIZER_STEPS = 4 };

struct tt_normal_form;

struct tt_normalizer_step {
    const struct tt_normal_form *form; /* NULL: replaces `from` by `to` */
    char *from;                        /* NULL: `to` is put before the text */
    char *to;
};

struct tt_normalizer {
    struct tt_normalizer_step step[TT_NORMALIZER_STEPS];
    int n_steps;
    struct tt_kinds assigned; /* with a normal form: whether Unicode 9.0 has a character */
};

/** Reads the JSON value of "normalizer" (null and absent: none); where is for messages. Release also after an error. */
int tt_normalizer_init(struct tt_normalizer *n, const json_t *json, const char *where) TT_MUST_CHECK;
void tt_normalizer_release(struct tt_normalizer *n);

/**
 * Normalises text (valid UTF-8). If nothing changes, ret_text is `text` itself; plain text takes this path without a
 * table lookup. Otherwise ret_text points into scratch, which is cleared and used.
 */
int tt_normalizer_apply(const struct tt_normalizer *n, struct tt_text *scratch, const char *text, size_t size,
                        const char **ret_text, size_t *ret_size) TT_MUST_CHECK;

#endif

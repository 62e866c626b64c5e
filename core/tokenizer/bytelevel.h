/* SPDX-License-Identifier: MIT */
#ifndef TT_CORE_TOKENIZER_BYTELEVEL_H
#define TT_CORE_TOKENIZER_BYTELEVEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/text.h"

/**
 * The byte-level alphabet of GPT-2: a token's text has one printable character per byte. Bytes 33-126, 161-172 and
 * 174-255 are written as themselves, the other 68 as U+0100 and up, in order.
 */
uint32_t tt_bytelevel_code(uint8_t byte);

/** The byte of a character of that alphabet, or -1. */
int tt_bytelevel_byte(uint32_t code);

/**
 * Appends the bytes that a text in this alphabet encodes. Returns false and appends nothing if it has other characters.
 */
bool tt_bytelevel_decode(const char *text, size_t size, struct tt_text *out);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef TT_BASE_UTF8_H
#define TT_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/error.h"
#include "core/base/text.h"

/** The offset of the first byte that is not part of a valid UTF-8 sequence (RFC 3629), or -1 if text is valid. */
int64_t tt_utf8_invalid(const char *text, size_t size);

/**
 * The number of bytes (0..3) at the end of text that begin a character without completing it, as at the end of a part
 * of a stream. Other faults of the text are ignored.
 */
size_t tt_utf8_unfinished(const char *text, size_t size);

/** Appends text with U+FFFD for every byte sequence that is not UTF-8, as decoders of tokens do. */
void tt_utf8_repair(const char *text, size_t size, struct tt_text *out);

/** Decodes the character at p; returns its length in bytes, 0 when p does not begin a valid character. */
int tt_utf8_decode(const char *p, size_t size, uint32_t *ret_code);

/** Writes code (a valid scalar value) into buf of at least 4 bytes; returns the length. */
int tt_utf8_encode(uint32_t code, char *buf);

enum tt_utf8_form { TT_UTF8_NFC, TT_UTF8_NFD, TT_UTF8_NFKC, TT_UTF8_NFKD };

/** Appends text in a normal form. TT_EDATA if it is not valid UTF-8. */
int tt_utf8_normalize(enum tt_utf8_form form, const char *text, size_t size, struct tt_text *out) TT_MUST_CHECK;

#endif

/* SPDX-License-Identifier: MIT */
#ifndef TT_BASE_UTF8_H
#define TT_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/** The offset of the first byte that is not part of a valid UTF-8 sequence (RFC 3629), or -1 if text is valid. */
int64_t tt_utf8_invalid(const char *text, size_t size);

/**
 * The number of bytes (0..3) at the end of text that begin a character without completing it, as at the end of a part
 * of a stream. Other faults of the text are ignored.
 */
size_t tt_utf8_unfinished(const char *text, size_t size);

/** Decodes the character at p; returns its length in bytes, 0 when p does not begin a valid character. */
int tt_utf8_decode(const char *p, size_t size, uint32_t *ret_code);

/** Writes code (a valid scalar value) into buf of at least 4 bytes; returns the length. */
int tt_utf8_encode(uint32_t code, char *buf);

/**
 * Writes text that others have written (names in files, values, paths) into out, cut at a whole character if it does
 * not fit, with a final 0. Such text must not steer the terminal on which it is printed, and an XML file may not hold
 * control characters at all. Messages (core/base/error.h) and screens (tt_print in cli/run/screen.h) show all their
 * text this way, so callers need not think of it.
 *
 * Control characters (but not ends of lines), characters that change the direction of text, and bytes that are not
 * UTF-8 become \u001b, \u202e or \xff; the rest stays as it is. Shown text stays the same when it is shown again, and
 * JSON stays the same JSON.
 */
void tt_shown(char *out, size_t out_size, const char *text, size_t size);

/**
 * The next character of such text: its bytes, or an escape in buf of TT_SHOWN_BYTES, ret_n bytes either way.
 *   ret_used  the bytes of text that it takes
 */
enum { TT_SHOWN_BYTES = 16 };
const char *tt_shown_next(const char *text, size_t size, char *buf, size_t *ret_used, size_t *ret_n);

#endif

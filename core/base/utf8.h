/* SPDX-License-Identifier: MIT */
#ifndef TT_BASE_UTF8_H
#define TT_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/** The offset of the first byte that is not part of a valid UTF-8 sequence (RFC 3629), or -1 if text is valid. */
int64_t tt_utf8_invalid(const char *text, size_t size);

/**
 * The number of bytes (0..3) at the end of text that begin a character without completing it, as at the end of a part
 * of a stream. Ignores other faults of the text.
 */
size_t tt_utf8_unfinished(const char *text, size_t size);

/** Decodes the character at p; returns its length in bytes, 0 if no valid character begins at p. */
int tt_utf8_decode(const char *p, size_t size, uint32_t *ret_code);

/**
 * The character in lower, upper or title case, as Python's functions have it. 0 if that is several characters, as for
 * the German sharp s, or depends on its neighbours, as for a sigma.
 */
enum tt_case { TT_LOWER, TT_UPPER, TT_TITLE };
uint32_t tt_utf8_case(uint32_t code, enum tt_case to);

/** Writes code (a valid scalar value) into buf of at least 4 bytes; returns the length. */
int tt_utf8_encode(uint32_t code, char *buf);

/**
 * Makes text from outside (names in files, values, paths) printable, and writes it to out with a final 0, cut after a
 * whole character if it does not fit. Such text must not control the terminal on which it is printed, and an XML file
 * must not contain control characters. Messages (core/base/error.h) and screens (tt_print in cli/run/screen.h) show all
 * text this way, so callers need not do it.
 *
 * Control characters (but not ends of lines), characters that change the direction of text, and bytes that are not
 * UTF-8 become \u001b, \u202e or \xff; the rest stays as it is. Escaping a text twice changes nothing more, and valid
 * JSON remains the same JSON.
 */
void tt_shown(char *out, size_t out_size, const char *text, size_t size);

/**
 * The next character of such text: its bytes, or an escape in buf of TT_SHOWN_BYTES; ret_n is the number of bytes.
 *   ret_used  the number of bytes of text that the character takes
 */
enum { TT_SHOWN_BYTES = 16 };
const char *tt_shown_next(const char *text, size_t size, char *buf, size_t *ret_used, size_t *ret_n);

#endif

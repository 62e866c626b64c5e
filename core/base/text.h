/* SPDX-License-Identifier: MIT */
#ifndef TT_BASE_TEXT_H
#define TT_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/base/error.h"
#include "core/base/utf8.h"

/** A growing string. Zero-initialise it and release it when done. `text` is NULL until something is added. */
struct tt_text {
    char *text;
    size_t size; /* bytes used, without the final 0 */
    size_t cap;
};

void tt_text_add(struct tt_text *t, const char *fmt, ...) TT_PRINTF(2, 3);
void tt_text_add_bytes(struct tt_text *t, const void *bytes, size_t size);
void tt_text_release(struct tt_text *t);

/** Adds a number as n little-endian bytes, at most 8. */
void tt_text_add_little(struct tt_text *t, uint64_t number, size_t n);
uint64_t tt_text_little(const void *bytes, size_t n);

/** Adds bytes, with every occurrence of `from` (not empty; leftmost first) replaced by `to`. */
void tt_text_add_replaced(struct tt_text *t, const char *bytes, size_t size, const char *from, const char *to);

static inline bool tt_text_begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

bool tt_text_ends(const char *text, const char *with);

/** Whether word is one of "a|b|c"; the first function ignores case. */
bool tt_text_is_listed(const char *word, const char *list);
bool tt_text_is_one_of(const char *word, const char *list);

/** Adds the divisors of n, as in "1, 2, 3 or 6"; if there are more than ten, only the largest. */
void tt_text_add_divisors(struct tt_text *t, int64_t n);

/** Adds a word of a command line, quoted for a shell if necessary, and always on one line. */
void tt_text_add_word(struct tt_text *t, const char *word);

/**
 * Appends text as tt_shown shows it, or escaped for an element or an attribute of XML or HTML. The last function makes
 * the whole buffer printable: text from another user must not control the terminal on which it is printed.
 */
void tt_text_add_shown(struct tt_text *t, const char *text, size_t size);
void tt_text_add_xml(struct tt_text *t, const char *text);
void tt_text_make_printable(struct tt_text *t);

/** The number of edits (insert, delete, replace, swap neighbours) that turn a into b, ignoring case; "did you mean". */
int tt_text_distance(const char *a, const char *b);

/**
 * The candidate nearest to word, or NULL if none is near (more than max(1, length / 3) edits away).
 *   choices  n strings, owned by the caller
 */
const char *tt_text_nearest(const char *word, const char *const *choices, int n);

/**
 * The name that the user probably meant by a word. First choice, ignoring all characters except letters and digits: a
 * name that is contained in the word, or the reverse: llama3 for "Llama-3.1-8B". Second: the nearest name, if no other
 * is equally near. Third: the name whose beginning shares most letters with the word, if these are a large part of
 * either: h100-sxm for "nvidia-h100-80gb". NULL: none.
 */
const char *tt_text_meant(const char *word, const char *const *names, int n);

/** "1.50 GiB", "12 B": a readable number of bytes, into buf of at least 24 bytes; returns buf. */
char *tt_text_bytes(char *buf, size_t buf_size, double bytes);

/** "410 ms", "25.1 s", "4 min 10 s", "3 h 12 min", "5.2 days": a readable time, into buf of at least 24 bytes. */
char *tt_text_duration(char *buf, size_t buf_size, double sec);

/**
 * The shortest text that reads back to the same finite number, as a person would write it: "0.0008", "500000.0",
 * "1e-8", "1e12"; into buf of at least 32 bytes; returns buf.
 */
char *tt_text_real(char *buf, size_t buf_size, double x);

/** "12,345,678" into buf of at least 28 bytes; returns buf. */
char *tt_text_count(char *buf, size_t buf_size, int64_t n);

/** Reads a size such as 512, 4k, 16MiB, 1.5G (all powers of 1024); false if the text is not a size. */
bool tt_text_to_bytes(const char *text, int64_t *ret_bytes);

/** The value of the n hexadecimal digits at the beginning of text, n < 16; -1 if the text does not begin with n
 * digits. */
int64_t tt_text_hex(const char *text, size_t size, size_t n);

/** Appends text with U+FFFD in place of every byte sequence that is not UTF-8, as token decoders do. */
void tt_utf8_repair(const char *text, size_t size, struct tt_text *out);

enum tt_utf8_form { TT_UTF8_NFC, TT_UTF8_NFD, TT_UTF8_NFKC, TT_UTF8_NFKD };

/** Appends text in a normal form. TT_EDATA if it is not valid UTF-8. */
int tt_utf8_normalize(enum tt_utf8_form form, const char *text, size_t size, struct tt_text *out) TT_MUST_CHECK;

#endif

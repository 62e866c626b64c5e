/* SPDX-License-Identifier: MIT */
#ifndef TT_BASE_JSON_H
#define TT_BASE_JSON_H

/**
 * Trees of JSON, by jansson; only this header includes it. Text is read by titan's own reader: integers are exact to 64
 * bits, larger ones become reals, and errors have positions. Use jansson's json_t API directly to build and to walk
 * values; the functions here add titan's errors.
 */
#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#include "core/base/error.h"
#include "core/base/json_reader.h"

/**
 * Parses text; `where` names the source in messages. Refuses duplicate keys and trailing text. What Python writes is
 * read as in Python: an integer beyond 64 bits is a real; NaN, Infinity and -Infinity, which a real of jansson cannot
 * be, are values of a form of their own, so that nothing takes them for another value. The caller calls json_decref.
 */
int tt_json_parse(const char *text, size_t size, const char *where, json_t **ret_json) TT_MUST_CHECK;

/** "NaN", "Infinity" or "-Infinity" if the value is one of them, else NULL. */
const char *tt_json_not_finite(const json_t *json);

/**
 * Appends the text of a key of a tree. A key of jansson ends with a 0, so in a tree a zero character of a key is the
 * two bytes C0 80, which no other key has.
 */
void tt_json_add_key(struct tt_text *text, const char *key);

/** Reads the next value as a tree. Refuses duplicate keys. */
int tt_json_read_tree(struct tt_json_reader *reader, json_t **ret_json) TT_MUST_CHECK;

/** Reads and parses a file. */
int tt_json_load(const char *path, json_t **ret_json) TT_MUST_CHECK;

/** Writes indented JSON durably (tt_file_replace), doubles exact and as short as possible, as in all texts below. */
int tt_json_save(const char *path, const json_t *json) TT_MUST_CHECK;

/** The text that tt_json_save writes, to be written to path; the caller frees it with free. */
int tt_json_dump(const json_t *json, const char *path, char **ret_text) TT_MUST_CHECK;

/** Compact text of json; the caller frees with tt_free. */
char *tt_json_text(const json_t *json);

/** Text of json over several lines, each level indented by so many spaces; the caller frees with tt_free. */
char *tt_json_indented(const json_t *json, int indent);

/** A member of an object that must exist with that type, or TT_EDATA naming `where` and the key. */
int tt_json_get_int(const json_t *object, const char *key, const char *where, int64_t *ret_value) TT_MUST_CHECK;
int tt_json_get_real(const json_t *object, const char *key, const char *where, double *ret_value) TT_MUST_CHECK;
int tt_json_get_string(const json_t *object, const char *key, const char *where, const char **ret_value) TT_MUST_CHECK;

/** A string; NULL if it is none, or has zero characters, at which a string of C would end. */
const char *tt_json_plain_string(const json_t *json);

/** Reads an array of at most `most` integers, none of them negative. false: it is something else. */
bool tt_json_sizes(const json_t *array, int64_t *sizes, size_t most, int *ret_n);

/** The array that tt_json_sizes reads. */
json_t *tt_json_from_sizes(const int64_t *sizes, int n);

/** A string. Text that is not UTF-8, as a path may be, has U+FFFD for what is not; jansson would give NULL. */
json_t *tt_json_string(const char *text);

/** A finite double, or null for NaN and infinity, which JSON cannot express. */
json_t *tt_json_number(double value);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef TT_BASE_JSONLINE_H
#define TT_BASE_JSONLINE_H

#include <stdbool.h>
#include <stddef.h>

#include "core/base/json.h"
#include "core/base/text.h"

/**
 * The members of an object on one line of JSON, without building a tree. Only the wanted field is decoded. The form of
 * numbers is checked, but they are not converted, so that no unused value can be too large. NaN and Infinity, which
 * Python writes, count as numbers.
 */
enum tt_json_kind {
    TT_JSON_OBJECT,
    TT_JSON_ARRAY,
    TT_JSON_STRING,
    TT_JSON_NUMBER,
    TT_JSON_BOOLEAN,
    TT_JSON_NULL,
};

/** "an object", "a string", ... */
const char *tt_json_kind_name(enum tt_json_kind kind);

struct tt_json_member {
    const char *key; /* decoded, ends with a 0 that key_size does not count */
    size_t key_size;
    enum tt_json_kind kind;
    const char *value; /* as written in the line; a string with its quotes */
    size_t value_size;
};

/** What is wrong with a line, and where (counted from 1). */
struct tt_json_problem {
    const char *what;
    size_t column;
};

/** Receives one member; its key is valid during the call, its value as long as the line. */
typedef void (*tt_json_member_fn)(void *arg, const struct tt_json_member *member);

/**
 * Checks a line of valid UTF-8 and calls fn for every member of its object, in order, including repeated keys. A line
 * with another kind of value is valid too and has no members. False with ret_problem when the line is not JSON; fn may
 * have been called for some members by then.
 */
bool tt_jsonline_members(const char *line, size_t size, tt_json_member_fn fn, void *arg, enum tt_json_kind *ret_kind,
                         struct tt_json_problem *ret_problem);

/** Calls fn for every element of a checked array value, in order; their keys are NULL. */
void tt_jsonline_elements(const char *value, size_t size, tt_json_member_fn fn, void *arg);

/**
 * A checked value as a tree, with null for NaN and Infinity; NULL: it is nested deeper than 100, or has a number that
 * is too large. The caller calls json_decref.
 */
json_t *tt_jsonline_tree(const struct tt_json_member *value);

/** Appends the text of a checked string value; half a surrogate pair becomes U+FFFD. */
void tt_jsonline_text(const char *value, size_t size, struct tt_text *out);

#endif

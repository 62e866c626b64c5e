/* SPDX-License-Identifier: MIT */
#ifndef TT_BASE_JSON_H
#define TT_BASE_JSON_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "core/base/error.h"
#include "core/base/text.h"

/**
 * Reads JSON (RFC 8259) in the order of the text, value by value, without a tree. tt_json_parse builds trees with it.
 * Text must be UTF-8; values are nested at most 2,048 deep. Every function returns TT_EDATA, with the position, if the
 * text is not JSON; do not use the reader afterwards.
 *
 *     TT_TRY(tt_json_open(&reader));             at an object or an array
 *     for (;;) {
 *         TT_TRY(tt_json_next(&reader, &more));
 *         if (!more)
 *             break;
 *         TT_TRY(tt_json_key(&reader, &key));    only in an object; the caller must refuse equal keys
 *         TT_TRY(tt_json_read_number(&reader, &number));
 *     }
 */
enum { TT_JSON_DEEPEST = 2048 };

/** The fault in a text, and its byte position (from 1). */
struct tt_json_problem {
    const char *what;
    size_t column;
};

struct tt_json_reader {
    const char *text, *at, *end;
    const char *where; /* names the source in messages */
    int depth, deepest;
    bool fresh;                              /* nothing has been read in the innermost object or array */
    bool lenient;                            /* see tt_json_fields */
    unsigned char is_array[TT_JSON_DEEPEST]; /* for each depth */
    struct tt_text decoded;
    struct tt_json_problem problem; /* of the last error */
};

/** Text and where must outlive the reader. The caller releases it. */
void tt_json_reader_init(struct tt_json_reader *reader, const char *text, size_t size, const char *where);
void tt_json_reader_release(struct tt_json_reader *reader);

/** The first character of the next value: one of { [ " - 0…9 t f n N I in valid JSON; 0 at the end. */
char tt_json_peek(struct tt_json_reader *reader);

/** Opens the object or array that comes next. */
int tt_json_open(struct tt_json_reader *reader) TT_MUST_CHECK;

/** Goes to the next member of the innermost object or array, or closes it: ret_more is false. */
int tt_json_next(struct tt_json_reader *reader, bool *ret_more) TT_MUST_CHECK;

/** A string in the text or in the reader's memory, without a final 0; valid until the next read. */
struct tt_json_span {
    const char *text;
    size_t size;
};

/** The key of a member; a key with a zero character is an error. */
int tt_json_key(struct tt_json_reader *reader, struct tt_json_span *ret_key) TT_MUST_CHECK;
int tt_json_read_string(struct tt_json_reader *reader, struct tt_json_span *ret_string) TT_MUST_CHECK;

/** An integer beyond 64 bits, which Python may write, is a real; a real beyond double is an error. */
struct tt_json_value {
    bool is_integer;
    int64_t integer;
    double real;
};
int tt_json_read_number(struct tt_json_reader *reader, struct tt_json_value *ret_number) TT_MUST_CHECK;

/** Skips a value of any kind. Checks its syntax, but not whether its keys differ. */
int tt_json_skip(struct tt_json_reader *reader) TT_MUST_CHECK;

/** Checks that only white space is left. */
int tt_json_finish(struct tt_json_reader *reader) TT_MUST_CHECK;

/**
 * Goes to a position where a value begins. So a caller can skip a value and read it after its object is closed: save
 * the current position (reader->at), go to the value's position, read it, and go back.
 */
void tt_json_go(struct tt_json_reader *reader, const char *place);

/** Sets a message about `place` in the text, with its line and character, both from 1; returns TT_EDATA. */
int tt_json_fail_at(const struct tt_json_reader *reader, const char *place, const char *what);

/**
 * Parses text; `where` names the source in messages. Refuses duplicate keys and trailing text. Python's extensions are
 * read as in Python: an integer beyond 64 bits is a real; NaN, Infinity and -Infinity, which jansson's reals cannot
 * represent, become special values that no code can mistake for others. The caller calls json_decref.
 */
int tt_json_parse(const char *text, size_t size, const char *where, json_t **ret_json) TT_MUST_CHECK;

/**
 * Appends the text of a key of a tree. jansson's keys end with a 0, so in a tree a zero character within a key is
 * stored as the bytes C0 80, which no other key contains.
 */
void tt_json_add_key(struct tt_text *text, const char *key);

/** Reads the next value as a tree. Refuses duplicate keys. */
int tt_json_read_tree(struct tt_json_reader *reader, json_t **ret_json) TT_MUST_CHECK;

/**
 * Indented text for a file. Doubles are exact and as short as possible, here and in all functions below. path is for
 * messages. The caller frees it with free.
 */
int tt_json_dump(const json_t *json, const char *path, char **ret_text) TT_MUST_CHECK;

/** Compact text of json; the caller frees with tt_free. */
char *tt_json_text(const json_t *json);

/**
 * Text of json over several lines, each level indented by the given number of spaces; the caller frees with tt_free.
 */
char *tt_json_indented(const json_t *json, int indent);

/** A member of an object. It must exist and have the given type; otherwise TT_EDATA names `where` and the key. */
int tt_json_get_int(const json_t *object, const char *key, const char *where, int64_t *ret_value) TT_MUST_CHECK;
int tt_json_get_real(const json_t *object, const char *key, const char *where, double *ret_value) TT_MUST_CHECK;
int tt_json_get_string(const json_t *object, const char *key, const char *where, const char **ret_value) TT_MUST_CHECK;

/** The text of a string; NULL if the value is not a string, or contains zero characters, at which a C string would
 * end. */
const char *tt_json_plain_string(const json_t *json);

/** Reads an array of at most `most` integers, none of them negative. False if the value is anything else. */
bool tt_json_sizes(const json_t *array, int64_t *sizes, size_t most, int *ret_n);

/** The array that tt_json_sizes reads. */
json_t *tt_json_from_sizes(const int64_t *sizes, int n);

/** A string. In text that is not valid UTF-8, such as some paths, invalid bytes become U+FFFD; jansson would return
 * NULL. */
json_t *tt_json_string(const char *text);

/** A finite double, or null for NaN and infinity, which JSON cannot express. */
static inline json_t *tt_json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

/**
 * The members of an object on one line of a corpus, without a tree. The reader is lenient here: the text is known to be
 * UTF-8; half a surrogate pair becomes U+FFFD; NaN and Infinity are numbers (null in a tree); among equal keys, the
 * last one counts. Decodes only the requested members, and does not convert numbers, so that no unused value can be too
 * large.
 */
struct tt_json_field {
    const char *name;
    const char *value; /* as written in the line, a string with its quotes; NULL: there is no such member */
    size_t size;
    json_type kind; /* JSON_REAL: any number; JSON_TRUE: a boolean */
};

/** "an object", "a string", ... */
const char *tt_json_kind_name(json_type kind);

/**
 * Checks a line of valid UTF-8 and finds the n fields in its object. A line with another kind of value is valid too,
 * without members. False, with ret_problem, if the line is not JSON.
 */
bool tt_json_fields(const char *line, size_t size, struct tt_json_field *field, int n, json_type *ret_kind,
                    struct tt_json_problem *ret_problem);

/**
 * A checked value as a tree; NULL: it is nested more than 101 levels deep, or contains a number that is too large. The
 * caller calls json_decref.
 */
json_t *tt_json_value_tree(const char *value, size_t size);

/** Appends the text of a checked string value. */
void tt_json_add_string(const char *value, size_t size, struct tt_text *out);

#endif

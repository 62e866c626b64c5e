/* SPDX-License-Identifier: MIT
 *
 * The JSON reader, which counts lines only for messages; trees of its values; exact writing.
 */
#include "core/base/json.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctype.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"

enum { REPLACEMENT = 0xfffd, DEEPEST_TREE_OF_LINE = 101 };

void tt_json_reader_init(struct tt_json_reader *reader, const char *text, size_t size, const char *where)
{
    reader->text = reader->at = text;
    reader->end = text + size;
    reader->where = where;
    reader->depth = 0;
    reader->deepest = TT_JSON_DEEPEST;
    reader->fresh = reader->lenient = false;
    reader->decoded = (struct tt_text){0};
    reader->problem = (struct tt_json_problem){0};
}

void tt_json_reader_release(struct tt_json_reader *reader)
{
    tt_text_release(&reader->decoded);
}

int tt_json_fail_at(const struct tt_json_reader *reader, const char *place, const char *what)
{
    const char *line = reader->text;
    size_t number = 1, column = 1;

    for (const char *p = reader->text; p < place; p++) {
        if (*p == '\n') {
            number++;
            line = p + 1;
        }
    }
    for (const char *p = line; p < place; p++)
        column += ((unsigned char)*p & 0xc0) != 0x80; /* the first byte of a character */
    column -= place == reader->end && place > line;   /* if the text ends early, points at its last character */
    return tt_fail(TT_EDATA, "%s:%zu:%zu: invalid JSON: %s", reader->where, number, column, what);
}

static int fail(struct tt_json_reader *reader, const char *what)
{
    what = reader->at == reader->end ? "the text ends early" : what;
    reader->problem = (struct tt_json_problem){what, (size_t)(reader->at - reader->text) + 1};
    return tt_json_fail_at(reader, reader->at, what);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

char tt_json_peek(struct tt_json_reader *reader)
{
    while (reader->at < reader->end &&
           (*reader->at == ' ' || *reader->at == '\n' || *reader->at == '\t' || *reader->at == '\r'))
        reader->at++;
    return reader->at < reader->end ? *reader->at : 0;
}

int tt_json_open(struct tt_json_reader *reader)
{
    char c = tt_json_peek(reader);

    if (c != '{' && c != '[')
        return fail(reader, "'{' or '[' was expected");
    if (reader->depth == reader->deepest)
        return fail(reader, "values are nested too deeply");
    reader->is_array[reader->depth++] = c == '[';
    reader->at++;
    reader->fresh = true;
    return 0;
}

int tt_json_next(struct tt_json_reader *reader, bool *ret_more)
{
    bool is_array = reader->is_array[reader->depth - 1], fresh = reader->fresh;
    char c = tt_json_peek(reader);

    reader->fresh = false;
    *ret_more = c != (is_array ? ']' : '}');
    if (!*ret_more) {
        reader->at++;
        reader->depth--;
        return 0;
    }
    if (fresh)
        return 0;
    if (c != ',')
        return fail(reader, is_array ? "',' or ']' was expected" : "',' or '}' was expected");
    reader->at++;
    return 0;
}

/* Decodes the \u sequence at the reader's position, or two of them that form one character. If out is NULL, skips
 * it. */
static int decode_unit(struct tt_json_reader *reader, struct tt_text *out)
{
    const char *p = reader->at;
    size_t left = (size_t)(reader->end - p);
    int64_t code = tt_text_hex(p + 2, left - 2, 4), low = 0;
    char buf[4];

    if (code < 0)
        return fail(reader, "invalid \\u escape");
    if (code >= 0xd800 && code < 0xe000) {
        if (code < 0xdc00 && left >= 12 && p[6] == '\\' && p[7] == 'u')
            low = tt_text_hex(p + 8, left - 8, 4);
        if (low < 0xdc00 || low >= 0xe000)
            low = 0;
        if (!low && !reader->lenient)
            return fail(reader, "half of a surrogate pair, which is no character");
        code = low ? 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00) : REPLACEMENT;
    }
    reader->at += low ? 12 : 6;
    if (out)
        tt_text_add_bytes(out, buf, (size_t)tt_utf8_encode((uint32_t)code, buf));
    return 0;
}

static int decode_escape(struct tt_json_reader *reader, struct tt_text *out)
{
    static const char letters[] = "\"\\/bfnrt", bytes[] = "\"\\/\b\f\n\r\t";
    char letter = reader->at + 1 < reader->end ? reader->at[1] : 0;
    const char *found = letter ? strchr(letters, letter) : NULL;

    if (letter == 'u')
        return decode_unit(reader, out);
    if (!found)
        return fail(reader, "invalid escape");
    if (out)
        tt_text_add_bytes(out, &bytes[found - letters], 1);
    reader->at += 2;
    return 0;
}

/* Skips ordinary characters of a string, up to a quote, a backslash or the end. */
static inline int pass_plain(struct tt_json_reader *reader)
{
    const char *begin = reader->at, *p = begin;
    unsigned char all = 0;
    int64_t invalid;

    while (p < reader->end && *p != '"' && *p != '\\' && (unsigned char)*p >= 0x20)
        all |= (unsigned char)*p++;
    reader->at = p;
    if (all >= 0x80 && !reader->lenient && (invalid = tt_utf8_invalid(begin, (size_t)(p - begin))) >= 0) {
        reader->at = begin + invalid;
        return fail(reader, "text that is not UTF-8");
    }
    if (p == reader->end)
        return fail(reader, "");
    return (unsigned char)*p < 0x20 ? fail(reader, "control character in a string") : 0;
}

/* Reads a string, which is appended to out if it contains escapes. If out is NULL, skips it. */
static inline int take_string(struct tt_json_reader *reader, struct tt_text *out, struct tt_json_span *ret_string)
{
    size_t from = out ? out->size : 0;
    const char *begin;
    int rc = 0;

    if (tt_json_peek(reader) != '"')
        return fail(reader, "a string was expected");
    begin = ++reader->at;
    TT_TRY(pass_plain(reader));
    *ret_string = (struct tt_json_span){begin, (size_t)(reader->at - begin)};
    if (*reader->at == '\\' && out)
        tt_text_add_bytes(out, begin, ret_string->size);
    while (*reader->at == '\\') {
        TT_TRY(decode_escape(reader, out));
        begin = reader->at;
        TT_TRY(pass_plain(reader));
        if (!out)
            continue;
        tt_text_add_bytes(out, begin, (size_t)(reader->at - begin));
        *ret_string = (struct tt_json_span){out->text + from, out->size - from};
    }
    reader->at++;
out:
    return rc;
}

int tt_json_read_string(struct tt_json_reader *reader, struct tt_json_span *ret_string)
{
    reader->decoded.size = 0;
    return take_string(reader, &reader->decoded, ret_string);
}

/* Reads a key and its colon; `passes`: the caller does not need the key. */
static inline int take_key(struct tt_json_reader *reader, bool passes, struct tt_json_span *ret_key)
{
    int rc = 0;

    if (tt_json_peek(reader) != '"')
        return fail(reader, "a key in quotes was expected");
    TT_TRY(passes ? take_string(reader, NULL, ret_key) : tt_json_read_string(reader, ret_key));
    if (tt_json_peek(reader) != ':')
        return fail(reader, "':' was expected");
    reader->at++;
out:
    return rc;
}

int tt_json_key(struct tt_json_reader *reader, struct tt_json_span *ret_key)
{
    const char *begin = (tt_json_peek(reader), reader->at);
    int rc = take_key(reader, false, ret_key);

    if (rc == 0 && memchr(ret_key->text, 0, ret_key->size))
        return tt_json_fail_at(reader, begin, "a key with a zero character");
    return rc;
}

/* Reads a number that is known to be well-formed. Copies it first, since the text need not end with a 0. */
static int read_real(struct tt_json_reader *reader, const char *begin, double *ret_real)
{
    reader->decoded.size = 0;
    tt_text_add_bytes(&reader->decoded, begin, (size_t)(reader->at - begin));
    *ret_real = strtod(reader->decoded.text, NULL);
    return isinf(*ret_real) ? tt_json_fail_at(reader, begin, "the number is too large") : 0;
}

static int pass_digits(struct tt_json_reader *reader)
{
    if (reader->at == reader->end || !is_digit(*reader->at))
        return fail(reader, "invalid number");
    while (reader->at < reader->end && is_digit(*reader->at))
        reader->at++;
    return 0;
}

/* Skips a fraction or an exponent, which makes a number a real: ".5", "e-3", ".5E3". */
static int pass_fraction(struct tt_json_reader *reader)
{
    int rc = 0;

    if (*reader->at == '.') {
        reader->at++;
        TT_TRY(pass_digits(reader));
    }
    if (reader->at < reader->end && (*reader->at == 'e' || *reader->at == 'E')) {
        reader->at++;
        if (reader->at < reader->end && (*reader->at == '+' || *reader->at == '-'))
            reader->at++;
        rc = pass_digits(reader);
    }
out:
    return rc;
}

/* Reads a number; converts a real only if the caller wants its value. */
static inline int take_number(struct tt_json_reader *reader, bool is_wanted, struct tt_json_value *ret_number)
{
    bool negative = tt_json_peek(reader) == '-', fits = true;
    const char *begin = reader->at, *digits = begin + negative;
    int64_t value = 0;
    int rc = 0;

    reader->at = digits;
    if (reader->at == reader->end || !is_digit(*reader->at))
        return fail(reader, "invalid number");
    while (reader->at < reader->end && is_digit(*reader->at)) {
        int digit = *reader->at++ - '0';

        fits = fits && !__builtin_mul_overflow(value, 10, &value) &&
               !__builtin_add_overflow(value, negative ? -digit : digit, &value);
    }
    if (*digits == '0' && reader->at - digits > 1) {
        reader->at = digits + 1;
        return fail(reader, "a number begins with 0");
    }
    *ret_number = (struct tt_json_value){.is_integer = fits, .integer = value, .real = (double)value};
    if (reader->at < reader->end && (*reader->at == '.' || *reader->at == 'e' || *reader->at == 'E')) {
        TT_TRY(pass_fraction(reader));
        ret_number->is_integer = false;
    }
    if (!ret_number->is_integer && is_wanted)
        rc = read_real(reader, begin, &ret_number->real);
out:
    return rc;
}

int tt_json_read_number(struct tt_json_reader *reader, struct tt_json_value *ret_number)
{
    return take_number(reader, true, ret_number);
}

/* Reads true, false, null, or NaN, Infinity and -Infinity (which Python writes), and returns its first character. */
static int read_word(struct tt_json_reader *reader, char *ret_letter)
{
    static const char *const words[] = {"true", "false", "null", "NaN", "Infinity", "-Infinity"};

    *ret_letter = tt_json_peek(reader);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i]);

        if ((size_t)(reader->end - reader->at) < n || memcmp(reader->at, words[i], n) != 0)
            continue;
        reader->at += n;
        return 0;
    }
    return fail(reader, "a value was expected");
}

/* Whether the next value is a number. -Infinity counts as a word. */
static bool is_at_number(struct tt_json_reader *reader)
{
    char c = tt_json_peek(reader);

    return is_digit(c) || (c == '-' && !(reader->end - reader->at > 1 && reader->at[1] == 'I'));
}

/* Opens an object or an array, or skips any other value. */
static int pass_node(struct tt_json_reader *reader)
{
    struct tt_json_value number;
    struct tt_json_span string;
    char c = tt_json_peek(reader);

    if (c == '{' || c == '[')
        return tt_json_open(reader);
    if (c == '"')
        return take_string(reader, NULL, &string);
    return is_at_number(reader) ? take_number(reader, !reader->lenient, &number) : read_word(reader, &c);
}

int tt_json_skip(struct tt_json_reader *reader)
{
    struct tt_json_span key;
    int depth = reader->depth, rc = 0;
    bool more;

    TT_TRY(pass_node(reader));
    while (reader->depth > depth) {
        TT_TRY(tt_json_next(reader, &more));
        if (more && !reader->is_array[reader->depth - 1])
            TT_TRY(reader->lenient ? take_key(reader, true, &key) : tt_json_key(reader, &key));
        if (more)
            TT_TRY(pass_node(reader));
    }
out:
    return rc;
}

int tt_json_finish(struct tt_json_reader *reader)
{
    (void)tt_json_peek(reader);
    return reader->at == reader->end ? 0 : fail(reader, "end of file expected");
}

void tt_json_go(struct tt_json_reader *reader, const char *place)
{
    reader->at = place;
    reader->fresh = false;
}

/* ---- lines of a corpus ---- */

const char *tt_json_kind_name(json_type kind)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "a string", [JSON_INTEGER] = "a number",
        [JSON_REAL] = "a number",    [JSON_TRUE] = "a boolean", [JSON_FALSE] = "a boolean", [JSON_NULL] = "null"};

    return names[kind];
}

static void begin_line(struct tt_json_reader *reader, const char *line, size_t size)
{
    tt_json_reader_init(reader, line, size, "line");
    reader->lenient = true;
}

/* Skips the next value. */
static int take_value(struct tt_json_reader *reader, struct tt_json_field *field)
{
    char c = tt_json_peek(reader);
    int rc;

    field->kind = c == '{'               ? JSON_OBJECT
                  : c == '['             ? JSON_ARRAY
                  : c == '"'             ? JSON_STRING
                  : c == 't' || c == 'f' ? JSON_TRUE
                  : c == 'n'             ? JSON_NULL
                                         : JSON_REAL;
    field->value = reader->at;
    rc = tt_json_skip(reader);
    field->size = (size_t)(reader->at - field->value);
    return rc;
}

bool tt_json_fields(const char *line, size_t size, struct tt_json_field *field, int n, json_type *ret_kind,
                    struct tt_json_problem *ret_problem)
{
    struct tt_json_field other = {.kind = JSON_OBJECT};
    struct tt_json_reader reader;
    struct tt_json_span key;
    bool is_object, more;
    int rc = 0;

    begin_line(&reader, line, size);
    is_object = more = tt_json_peek(&reader) == '{';
    TT_TRY(is_object ? tt_json_open(&reader) : take_value(&reader, &other));
    while (more) {
        struct tt_json_field *found = &other;

        TT_TRY(tt_json_next(&reader, &more));
        if (!more)
            break;
        TT_TRY(take_key(&reader, false, &key));
        for (int i = 0; i < n; i++)
            if (strlen(field[i].name) == key.size && memcmp(field[i].name, key.text, key.size) == 0)
                found = &field[i];
        TT_TRY(take_value(&reader, found));
    }
    TT_TRY(tt_json_finish(&reader));
out:
    *ret_kind = is_object ? JSON_OBJECT : other.kind;
    *ret_problem = reader.problem;
    tt_json_reader_release(&reader);
    return rc == 0;
}

json_t *tt_json_value_tree(const char *value, size_t size)
{
    struct tt_json_reader reader;
    json_t *json = NULL;

    begin_line(&reader, value, size);
    reader.deepest = DEEPEST_TREE_OF_LINE;
    if (tt_json_read_tree(&reader, &json) < 0)
        json = NULL;
    tt_json_reader_release(&reader);
    return json;
}

void tt_json_add_string(const char *value, size_t size, struct tt_text *out)
{
    struct tt_json_reader reader;
    struct tt_json_span string;

    begin_line(&reader, value, size);
    if (take_string(&reader, out, &string) == 0 && string.text >= value && string.text < value + size)
        tt_text_add_bytes(out, string.text, string.size); /* the string contains no escapes */
    tt_json_reader_release(&reader);
}

/* ---- trees ---- */

static void *get_memory(size_t bytes)
{
    return tt_realloc(NULL, bytes, 1);
}

/* Gives jansson an allocator that never fails, so that no caller has to handle a half-built value. */
__attribute__((constructor)) static void take_over_memory(void)
{
    json_set_alloc_funcs(get_memory, tt_free);
}

enum { EXACT_DOUBLE = JSON_REAL_PRECISION(17) };

#define NOT_FINITE  "not a finite number"
#define ZERO_IN_KEY "\xc0\x80"

/* "NaN", "Infinity" or "-Infinity" if the value is one of them, else NULL. */
static const char *not_finite(const json_t *json)
{
    return json_object_size(json) == 1 ? json_string_value(json_object_get(json, NOT_FINITE)) : NULL;
}

void tt_json_add_key(struct tt_text *text, const char *key)
{
    const char *zero;

    for (; (zero = strstr(key, ZERO_IN_KEY)); key = zero + 2) {
        tt_text_add_bytes(text, key, (size_t)(zero - key));
        tt_text_add_bytes(text, "", 1);
    }
    tt_text_add_bytes(text, key, strlen(key));
}

static void keep_zeros(struct tt_text *key, struct tt_json_span span)
{
    for (size_t i = 0; i < span.size; i++)
        tt_text_add_bytes(key, span.text[i] ? &span.text[i] : ZERO_IN_KEY, span.text[i] ? 1 : 2);
    tt_text_add_bytes(key, "", 0);
}

static json_t *json_of_word(const struct tt_json_reader *reader, char letter)
{
    const char *word = letter == 'N' ? "NaN" : letter == 'I' ? "Infinity" : "-Infinity";

    if (letter == 't' || letter == 'f')
        return json_boolean(letter == 't');
    return letter == 'n' || reader->lenient ? json_null() : json_pack("{s:s}", NOT_FINITE, word);
}

/* Reads a value; reads only the beginning of an object or an array. */
static int read_node(struct tt_json_reader *reader, json_t **ret_json)
{
    struct tt_json_value number;
    struct tt_json_span string;
    char c = tt_json_peek(reader);
    int rc = 0;

    if (c == '{' || c == '[') {
        TT_TRY(tt_json_open(reader));
        *ret_json = c == '{' ? json_object() : json_array();
    } else if (c == '"') {
        TT_TRY(tt_json_read_string(reader, &string));
        *ret_json = json_stringn_nocheck(string.text, string.size);
    } else if (is_at_number(reader)) {
        TT_TRY(tt_json_read_number(reader, &number));
        *ret_json = number.is_integer ? json_integer((json_int_t)number.integer) : json_real(number.real);
    } else {
        TT_TRY(read_word(reader, &c));
        *ret_json = json_of_word(reader, c);
    }
out:
    return rc;
}

/* Reads the next member of an object or an array and adds it; ret_member is NULL at the end. */
static int read_member(struct tt_json_reader *reader, json_t *parent, json_t **ret_member)
{
    struct tt_json_span span;
    struct tt_text key = {0};
    const char *place;
    bool more;
    int rc = 0;

    *ret_member = NULL;
    TT_TRY(tt_json_next(reader, &more));
    if (!more)
        goto out;
    if (json_is_array(parent)) {
        TT_TRY(read_node(reader, ret_member));
        (void)json_array_append_new(parent, *ret_member);
        goto out;
    }
    (void)tt_json_peek(reader);
    place = reader->at;
    TT_TRY(take_key(reader, false, &span));
    keep_zeros(&key, span);
    if (!reader->lenient && json_object_get(parent, key.text))
        TT_TRY(tt_json_fail_at(reader, place, "duplicate key"));
    TT_TRY(read_node(reader, ret_member));
    (void)json_object_set_new_nocheck(parent, key.text, *ret_member);
out:
    tt_text_release(&key);
    return rc;
}

int tt_json_read_tree(struct tt_json_reader *reader, json_t **ret_json)
{
    json_t *root = NULL, **open = NULL, *value;
    int n = 0, cap = 0, rc = 0;

    TT_TRY(read_node(reader, &root));
    value = root;
    for (;;) {
        if ((json_is_object(value) || json_is_array(value)) && !not_finite(value))
            TT_PUSH(open, n, cap) = value;
        else if (!value)
            n--;
        if (n == 0)
            break;
        TT_TRY(read_member(reader, open[n - 1], &value));
    }
    *ret_json = root;
    root = NULL;
out:
    json_decref(root);
    tt_free(open);
    return rc;
}

int tt_json_parse(const char *text, size_t size, const char *where, json_t **ret_json)
{
    struct tt_json_reader reader;
    json_t *json = NULL;
    int rc = 0;

    tt_json_reader_init(&reader, text, size, where);
    TT_TRY(tt_json_read_tree(&reader, &json));
    TT_TRY(tt_json_finish(&reader));
    *ret_json = json;
    json = NULL;
out:
    json_decref(json);
    tt_json_reader_release(&reader);
    return rc;
}

/* Replaces doubles written with 17 digits by their shortest text, in place. */
static void shorten(char *text)
{
    char *to = text;

    for (const char *at = text; *at;) {
        size_t n = strspn(at, "-+.0123456789eE"), span = n;
        char number[32];

        if (*at == '"') {
            for (n = 1; at[n] && at[n] != '"'; n++)
                n += at[n] == '\\' && at[n + 1];
            n += at[n] == '"';
        } else if ((*at == '-' || isdigit((unsigned char)*at)) && strcspn(at, ".eE") < span) {
            (void)tt_text_real(number, sizeof number, strtod(at, NULL));
            if (strlen(number) < span) {
                memcpy(to, number, strlen(number));
                to += strlen(number);
                at += span;
                continue;
            }
        } else if (!isdigit((unsigned char)*at)) {
            n = 1;
        }
        memmove(to, at, n);
        to += n;
        at += n;
    }
    *to = 0;
}

/* NULL if the value is not valid UTF-8. */
static char *dump(const json_t *json, size_t flags)
{
    char *text = json_dumps(json, flags | EXACT_DOUBLE);

    if (text)
        shorten(text);
    return text;
}

int tt_json_dump(const json_t *json, const char *path, char **ret_text)
{
    *ret_text = dump(json, JSON_INDENT(1));
    return *ret_text ? 0 : tt_fail(TT_EINTERNAL, "cannot write '%s': the JSON value is not valid UTF-8", path);
}

char *tt_json_text(const json_t *json)
{
    char *text = dump(json, JSON_COMPACT | JSON_ENCODE_ANY);

    return text ? text : tt_strdup("null");
}

char *tt_json_indented(const json_t *json, int indent)
{
    char *text = dump(json, JSON_INDENT((size_t)indent) | JSON_ENCODE_ANY);

    return text ? text : tt_strdup("null");
}

static int fail_member(const json_t *object, const char *key, const char *where, const char *wanted)
{
    const json_t *member = json_object_get(object, key);

    if (not_finite(member))
        return tt_fail(TT_EDATA, "%s: '%s' is %s, wanted %s", where, key, not_finite(member), wanted);
    return tt_fail(TT_EDATA, "%s: %s '%s', wanted %s", where, member ? "wrong type of" : "missing key", key, wanted);
}

int tt_json_get_int(const json_t *object, const char *key, const char *where, int64_t *ret_value)
{
    const json_t *member = json_object_get(object, key);

    if (!json_is_integer(member))
        return fail_member(object, key, where, "an integer");
    *ret_value = (int64_t)json_integer_value(member);
    return 0;
}

int tt_json_get_real(const json_t *object, const char *key, const char *where, double *ret_value)
{
    const json_t *member = json_object_get(object, key);

    if (!json_is_number(member))
        return fail_member(object, key, where, "a number");
    *ret_value = json_number_value(member);
    return 0;
}

int tt_json_get_string(const json_t *object, const char *key, const char *where, const char **ret_value)
{
    const json_t *member = json_object_get(object, key);

    if (!json_is_string(member))
        return fail_member(object, key, where, "a string");
    *ret_value = json_string_value(member);
    return 0;
}

const char *tt_json_plain_string(const json_t *json)
{
    const char *text = json_string_value(json);

    return text && strlen(text) == json_string_length(json) ? text : NULL;
}

json_t *tt_json_string(const char *text)
{
    struct tt_text repaired = {0};
    json_t *string;

    tt_utf8_repair(text, strlen(text), &repaired);
    string = json_string(repaired.size ? repaired.text : "");
    tt_text_release(&repaired);
    return string;
}

bool tt_json_sizes(const json_t *array, int64_t *sizes, size_t most, int *ret_n)
{
    if (!json_is_array(array) || json_array_size(array) > most)
        return false;
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *member = json_array_get(array, i);

        if (!json_is_integer(member) || json_integer_value(member) < 0)
            return false;
        sizes[i] = (int64_t)json_integer_value(member);
    }
    *ret_n = (int)json_array_size(array);
    return true;
}

json_t *tt_json_from_sizes(const int64_t *sizes, int n)
{
    json_t *array = json_array();

    for (int i = 0; i < n; i++)
        (void)json_array_append_new(array, json_integer(sizes[i]));
    return array;
}

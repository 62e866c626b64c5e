/* SPDX-License-Identifier: MIT
 *
 * The grammar of JSON. Lines are only counted for messages.
 */
#include "core/base/json_reader.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/utf8.h"

void tt_json_reader_init(struct tt_json_reader *reader, const char *text, size_t size, const char *where)
{
    reader->text = reader->at = text;
    reader->end = text + size;
    reader->where = where;
    reader->depth = 0;
    reader->fresh = false;
    reader->decoded = (struct tt_text){0};
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
    column -= place == reader->end && place > line;   /* the last character of a text that ends early */
    return tt_fail(TT_EDATA, "%s:%zu:%zu: invalid JSON: %s", reader->where, number, column, what);
}

static int fail(const struct tt_json_reader *reader, const char *what)
{
    return tt_json_fail_at(reader, reader->at, reader->at == reader->end ? "the text ends early" : what);
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
    if (reader->depth == TT_JSON_DEEPEST)
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

/* The code of four digits, or -1. */
static int unit_at(const char *p, const char *end)
{
    int code = 0;

    for (int i = 0; i < 4; i++) {
        char c = p + i < end ? p[i] : 0;
        int digit = is_digit(c)            ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;

        if (digit < 0)
            return -1;
        code = code << 4 | digit;
    }
    return code;
}

/* Decodes the \u sequence at the reader's place, or two of them that are one character. */
static int decode_unit(struct tt_json_reader *reader)
{
    const char *p = reader->at;
    int code = unit_at(p + 2, reader->end), low = 0;
    char buf[4];

    if (code < 0)
        return fail(reader, "invalid \\u escape");
    if (code >= 0xd800 && code < 0xe000) {
        if (code < 0xdc00 && reader->end - p >= 12 && p[6] == '\\' && p[7] == 'u')
            low = unit_at(p + 8, reader->end);
        if (low < 0xdc00 || low >= 0xe000)
            return fail(reader, "half of a surrogate pair, which is no character");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    reader->at += low ? 12 : 6;
    tt_text_add_bytes(&reader->decoded, buf, (size_t)tt_utf8_encode((uint32_t)code, buf));
    return 0;
}

static int decode_escape(struct tt_json_reader *reader)
{
    static const char letters[] = "\"\\/bfnrt", bytes[] = "\"\\/\b\f\n\r\t";
    char letter = reader->at + 1 < reader->end ? reader->at[1] : 0;
    const char *found = letter ? strchr(letters, letter) : NULL;

    if (letter == 'u')
        return decode_unit(reader);
    if (!found)
        return fail(reader, "invalid escape");
    tt_text_add_bytes(&reader->decoded, &bytes[found - letters], 1);
    reader->at += 2;
    return 0;
}

/* Passes what stands for itself in a string, up to a quote, a backslash or the end. */
static int pass_plain(struct tt_json_reader *reader)
{
    const char *begin = reader->at, *p = begin;
    unsigned char all = 0;
    int64_t invalid;

    while (p < reader->end && *p != '"' && *p != '\\' && (unsigned char)*p >= 0x20)
        all |= (unsigned char)*p++;
    reader->at = p;
    if (all >= 0x80 && (invalid = tt_utf8_invalid(begin, (size_t)(p - begin))) >= 0) {
        reader->at = begin + invalid;
        return fail(reader, "text that is not UTF-8");
    }
    if (p == reader->end)
        return fail(reader, "");
    return (unsigned char)*p < 0x20 ? fail(reader, "control character in a string") : 0;
}

int tt_json_read_string(struct tt_json_reader *reader, struct tt_json_span *ret_string)
{
    const char *begin;
    int rc = 0;

    if (tt_json_peek(reader) != '"')
        return fail(reader, "a string was expected");
    begin = ++reader->at;
    TT_TRY(pass_plain(reader));
    *ret_string = (struct tt_json_span){begin, (size_t)(reader->at - begin)};
    if (*reader->at == '\\') {
        reader->decoded.size = 0;
        tt_text_add_bytes(&reader->decoded, begin, ret_string->size);
        while (*reader->at == '\\') {
            TT_TRY(decode_escape(reader));
            begin = reader->at;
            TT_TRY(pass_plain(reader));
            tt_text_add_bytes(&reader->decoded, begin, (size_t)(reader->at - begin));
        }
        *ret_string = (struct tt_json_span){reader->decoded.text, reader->decoded.size};
    }
    reader->at++;
out:
    return rc;
}

int tt_json_any_key(struct tt_json_reader *reader, struct tt_json_span *ret_key)
{
    int rc = 0;

    if (tt_json_peek(reader) != '"')
        return fail(reader, "a key in quotes was expected");
    TT_TRY(tt_json_read_string(reader, ret_key));
    if (tt_json_peek(reader) != ':')
        return fail(reader, "':' was expected");
    reader->at++;
out:
    return rc;
}

int tt_json_key(struct tt_json_reader *reader, struct tt_json_span *ret_key)
{
    const char *begin = (tt_json_peek(reader), reader->at);
    int rc = tt_json_any_key(reader, ret_key);

    if (rc == 0 && memchr(ret_key->text, 0, ret_key->size))
        return tt_json_fail_at(reader, begin, "a key with a zero character");
    return rc;
}

/* The value of a number with that form, which is copied since the text need not end with a 0. */
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

/* Passes what makes a number a real: ".5", "e-3", ".5E3". */
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

int tt_json_read_number(struct tt_json_reader *reader, struct tt_json_value *ret_number)
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
    if (!ret_number->is_integer)
        rc = read_real(reader, begin, &ret_number->real);
out:
    return rc;
}

int tt_json_read_word(struct tt_json_reader *reader, char *ret_letter)
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

bool tt_json_at_number(struct tt_json_reader *reader)
{
    char c = tt_json_peek(reader);

    return is_digit(c) || (c == '-' && !(reader->end - reader->at > 1 && reader->at[1] == 'I'));
}

/* Opens an object or an array, or passes any other value. */
static int pass_node(struct tt_json_reader *reader)
{
    struct tt_json_value number;
    struct tt_json_span string;
    char c = tt_json_peek(reader);

    if (c == '{' || c == '[')
        return tt_json_open(reader);
    if (c == '"')
        return tt_json_read_string(reader, &string);
    return tt_json_at_number(reader) ? tt_json_read_number(reader, &number) : tt_json_read_word(reader, &c);
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
            TT_TRY(tt_json_key(reader, &key));
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

const char *tt_json_place(const struct tt_json_reader *reader)
{
    return reader->at;
}

void tt_json_go(struct tt_json_reader *reader, const char *place)
{
    reader->at = place;
    reader->fresh = false;
}

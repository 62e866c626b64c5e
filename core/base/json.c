/* SPDX-License-Identifier: MIT
 *
 * The owner of jansson: trees of what the reader reads, exact writing.
 */
#include "core/base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ctype.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/os/file.h"

/* Gives jansson an allocator that never fails, so that no caller has to deal with a half-built value. */
__attribute__((constructor)) static void take_over_memory(void)
{
    json_set_alloc_funcs(tt_mem_malloc, tt_free);
}

enum { EXACT_DOUBLE = JSON_REAL_PRECISION(17) };

#define NOT_FINITE  "not a finite number"
#define ZERO_IN_KEY "\xc0\x80"

const char *tt_json_not_finite(const json_t *json)
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

static json_t *json_of_word(char letter)
{
    const char *word = letter == 'N' ? "NaN" : letter == 'I' ? "Infinity" : "-Infinity";

    if (letter == 't' || letter == 'f')
        return json_boolean(letter == 't');
    return letter == 'n' ? json_null() : json_pack("{s:s}", NOT_FINITE, word);
}

/* Reads a value; of an object or an array only its beginning. */
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
    } else if (tt_json_at_number(reader)) {
        TT_TRY(tt_json_read_number(reader, &number));
        *ret_json = number.is_integer ? json_integer((json_int_t)number.integer) : json_real(number.real);
    } else {
        TT_TRY(tt_json_read_word(reader, &c));
        *ret_json = json_of_word(c);
    }
out:
    return rc;
}

/* Reads the next member of an object or an array into it; ret_member is NULL at its end. */
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
    place = tt_json_place(reader);
    TT_TRY(tt_json_any_key(reader, &span));
    keep_zeros(&key, span);
    if (json_object_get(parent, key.text)) {
        rc = tt_json_fail_at(reader, place, "duplicate key");
        goto out;
    }
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
        if ((json_is_object(value) || json_is_array(value)) && !tt_json_not_finite(value))
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

int tt_json_load(const char *path, json_t **ret_json)
{
    char *text = NULL;
    size_t size = 0;
    int rc = 0;

    TT_TRY(tt_file_read(path, &text, &size));
    TT_TRY(tt_json_parse(text, size, path, ret_json));
out:
    tt_free(text);
    return rc;
}

/* Replaces doubles of 17 digits by their shortest text, in place. */
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

int tt_json_save(const char *path, const json_t *json)
{
    char *text = NULL;
    int rc = tt_json_dump(json, path, &text);

    if (rc == 0)
        rc = tt_file_replace(path, text, strlen(text));
    free(text);
    return rc;
}

char *tt_json_text(const json_t *json)
{
    char *text = dump(json, JSON_COMPACT | JSON_ENCODE_ANY);
    char *copy = tt_strdup(text ? text : "null");

    free(text);
    return copy;
}

char *tt_json_indented(const json_t *json, int indent)
{
    char *text = dump(json, JSON_INDENT((size_t)indent) | JSON_ENCODE_ANY);
    char *copy = tt_strdup(text ? text : "null");

    free(text);
    return copy;
}

static int fail_member(const json_t *object, const char *key, const char *where, const char *wanted)
{
    const char *not_finite = tt_json_not_finite(json_object_get(object, key));

    if (not_finite)
        return tt_fail(TT_EDATA, "%s: '%s' is %s, wanted %s", where, key, not_finite, wanted);
    return tt_fail(TT_EDATA, "%s: %s '%s'%s%s", where, json_object_get(object, key) ? "wrong type of" : "missing key",
                   key, wanted[0] ? ", wanted " : "", wanted);
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

json_t *tt_json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
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

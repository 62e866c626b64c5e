/* SPDX-License-Identifier: MIT
 *
 * The owner of jansson: parsing with titan's errors, exact writing.
 */
#include "core/base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/os/file.h"

/* Gives jansson an allocator that never fails, so that no caller has to deal with a half-built value. */
__attribute__((constructor)) static void take_over_memory(void)
{
    json_set_alloc_funcs(tt_mem_malloc, tt_free);
}

enum { EXACT_DOUBLE = JSON_REAL_PRECISION(17), STRICT = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY };

/* Whether the digits are a number that needs more than 64 bits; is_negative: a minus sign precedes them. */
static bool is_oversize(const char *digits, size_t n, bool is_negative)
{
    const char *most = is_negative ? "9223372036854775808" : "9223372036854775807";

    return n > 19 || (n == 19 && memcmp(digits, most, 19) > 0);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Copies the text and adds an exponent of 0 to every integer beyond 64 bits, which makes it a real; strings stay. */
static void widen_integers(const char *text, size_t size, struct tt_text *out)
{
    size_t done = 0, i = 0;
    bool in_string = false;

    while (i < size) {
        size_t begin = i;

        if (in_string || !is_digit(text[i])) {
            in_string = in_string != (text[i] == '"');
            i += in_string && text[i] == '\\' && i + 1 < size ? 2 : 1;
            continue;
        }
        while (i < size && is_digit(text[i]))
            i++;
        if (i < size && strchr(".eE", text[i]) && text[i]) { /* a real: its digits are no integers */
            while (i < size && text[i] && (is_digit(text[i]) || strchr(".eE+-", text[i])))
                i++;
        } else if (is_oversize(text + begin, i - begin, begin > 0 && text[begin - 1] == '-')) {
            tt_text_add_bytes(out, text + done, i - done);
            tt_text_add_bytes(out, "e0", 2);
            done = i;
        }
    }
    tt_text_add_bytes(out, text + done, size - done);
}

int tt_json_parse(const char *text, size_t size, const char *where, json_t **ret_json)
{
    json_error_t error;
    json_t *json = json_loadb(text, size, STRICT, &error);

    if (!json && json_error_code(&error) == json_error_numeric_overflow) {
        struct tt_text wide = {0};

        widen_integers(text, size, &wide);
        json = json_loadb(wide.text, wide.size, STRICT, &error);
        tt_text_release(&wide);
    }
    if (!json)
        return tt_fail(TT_EDATA, "%s:%d:%d: invalid JSON: %s", where, error.line, error.column, error.text);
    *ret_json = json;
    return 0;
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

int tt_json_save(const char *path, const json_t *json)
{
    char *text = json_dumps(json, JSON_INDENT(1) | EXACT_DOUBLE);
    int rc;

    if (!text)
        return tt_fail(TT_EINTERNAL, "cannot write '%s': the JSON value is not valid UTF-8", path);
    rc = tt_file_replace(path, text, strlen(text));
    free(text);
    return rc;
}

char *tt_json_text(const json_t *json)
{
    char *text = json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY | EXACT_DOUBLE);
    char *copy = tt_strdup(text ? text : "null");

    free(text);
    return copy;
}

static int fail_member(const json_t *object, const char *key, const char *where, const char *wanted)
{
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

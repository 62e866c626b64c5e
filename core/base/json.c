/* SPDX-License-Identifier: MIT
 *
 * The owner of jansson: parsing with titan's errors, exact writing.
 */
#include "core/base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/file.h"
#include "core/base/mem.h"

enum { EXACT_DOUBLE = JSON_REAL_PRECISION(17) };

int tt_json_parse(const char *text, size_t size, const char *where, json_t **ret_json)
{
    json_error_t error;
    json_t *json = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &error);

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

json_t *tt_json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

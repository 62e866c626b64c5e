/* SPDX-License-Identifier: MIT
 *
 * Cuts JSON text without parsing it: only strings and brackets matter. Each part is parsed later, which finds invalid
 * JSON; commas and colons between parts are checked here.
 */
#include "checkpoint/format/manifest_split.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "core/base/mem.h"
#include "core/base/text.h"

struct cursor {
    const char *at, *end;
    const char *where;
};

struct piece {
    const char *begin, *end;
};

static int fail(const struct cursor *c)
{
    return tt_fail(TT_EDATA, "'%s' is not a manifest: its JSON is broken", c->where);
}

static char next(struct cursor *c)
{
    while (c->at < c->end && strchr(" \t\r\n", *c->at) && *c->at)
        c->at++;
    return c->at < c->end ? *c->at : 0;
}

static bool take(struct cursor *c, char wanted)
{
    if (next(c) != wanted)
        return false;
    c->at++;
    return true;
}

/* Moves the cursor past the string that begins here. */
static bool pass_string(struct cursor *c)
{
    if (!take(c, '"'))
        return false;
    for (; c->at < c->end && *c->at != '"'; c->at++)
        if (*c->at == '\\')
            c->at++;
    if (c->at >= c->end)
        return false;
    c->at++;
    return true;
}

/* Moves the cursor past the value that begins here: up to a comma or bracket of the enclosing value. */
static bool pass_value(struct cursor *c, struct piece *ret_piece)
{
    int64_t depth = 0;

    (void)next(c);
    ret_piece->begin = c->at;
    while (c->at < c->end) {
        char ch = *c->at;

        if (ch == '"') {
            if (!pass_string(c))
                return false;
            continue;
        }
        if (depth == 0 && (ch == ',' || ch == ']' || ch == '}'))
            break;
        depth += (ch == '[' || ch == '{') - (ch == ']' || ch == '}');
        c->at++;
    }
    ret_piece->end = c->at;
    return depth == 0 && ret_piece->end > ret_piece->begin;
}

static bool pass_key(struct cursor *c, struct piece *ret_key)
{
    (void)next(c);
    ret_key->begin = c->at;
    if (!pass_string(c))
        return false;
    ret_key->end = c->at;
    return take(c, ':');
}

/* Hands over a part as one value; named: as an object with the key before it. */
static int hand_over(struct cursor *c, const struct piece *part, bool named, tt_manifest_part_fn on_part, void *arg)
{
    struct tt_text text = {0};
    json_t *json = NULL;
    int rc = 0;

    if (named) {
        tt_text_add(&text, "{");
        tt_text_add_bytes(&text, part->begin, (size_t)(part->end - part->begin));
        tt_text_add(&text, "}");
        TT_TRY(tt_json_parse(text.text, text.size, c->where, &json));
    } else {
        TT_TRY(tt_json_parse(part->begin, (size_t)(part->end - part->begin), c->where, &json));
    }
    rc = on_part(arg, json);
out:
    json_decref(json);
    tt_text_release(&text);
    return rc;
}

/* Hands over every member of a list or an object. */
static int split_members(const struct piece *list, const char *where, char open, char close,
                         tt_manifest_part_fn on_part, void *arg)
{
    struct cursor c = {list->begin, list->end, where};
    bool named = open == '{';
    int rc = 0;

    if (!take(&c, open))
        return tt_fail(TT_EDATA, "'%s': no %s", where, named ? "tensors" : "list of files");
    if (take(&c, close))
        return next(&c) ? fail(&c) : 0;
    do {
        struct piece key, value;

        (void)next(&c);
        key.begin = c.at;
        if ((named && !pass_key(&c, &key)) || !pass_value(&c, &value))
            return fail(&c);
        if (named)
            value.begin = key.begin;
        TT_TRY(hand_over(&c, &value, named, on_part, arg));
    } while (take(&c, ','));
    if (!take(&c, close) || next(&c))
        rc = fail(&c);
out:
    return rc;
}

static bool is_key(const struct piece *key, const char *name)
{
    size_t n = strlen(name);

    return (size_t)(key->end - key->begin) == n + 2 && memcmp(key->begin + 1, name, n) == 0;
}

int tt_manifest_split(const char *text, size_t size, const char *where,
                      int (*check)(const json_t *rest, const char *where), tt_manifest_part_fn on_file,
                      tt_manifest_part_fn on_tensor, void *arg, json_t **ret_rest)
{
    struct cursor c = {text, text + size, where};
    struct piece files = {text, text}, tensors = {text, text}, key, value;
    struct tt_text rest = {0};
    json_t *json = NULL;
    int rc = 0;

    if (!take(&c, '{')) {
        rc = fail(&c);
        goto out;
    }
    tt_text_add(&rest, "{");
    do {
        struct piece *large;

        if (!pass_key(&c, &key) || !pass_value(&c, &value)) {
            rc = fail(&c);
            goto out;
        }
        large = is_key(&key, "files") ? &files : is_key(&key, "tensors") ? &tensors : NULL;
        if (rest.size > 1)
            tt_text_add(&rest, ",");
        tt_text_add_bytes(&rest, key.begin, (size_t)(key.end - key.begin));
        tt_text_add(&rest, ":");
        if (large) {
            *large = value;
            tt_text_add(&rest, "null"); /* so that a second one is refused as a duplicate key */
        } else {
            tt_text_add_bytes(&rest, value.begin, (size_t)(value.end - value.begin));
        }
    } while (take(&c, ','));
    if (!take(&c, '}') || next(&c)) {
        rc = fail(&c);
        goto out;
    }
    tt_text_add(&rest, "}");
    TT_TRY(tt_json_parse(rest.text, rest.size, where, &json));
    TT_TRY(check(json, where));
    TT_TRY(split_members(&files, where, '[', ']', on_file, arg));
    TT_TRY(split_members(&tensors, where, '{', '}', on_tensor, arg));
    *ret_rest = json;
    json = NULL;
out:
    json_decref(json);
    tt_text_release(&rest);
    return rc;
}

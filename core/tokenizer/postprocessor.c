/* SPDX-License-Identifier: MIT
 *
 * "post_processor" of tokenizer.json: what the `tokenizers` library puts around a text. titan's own documents always
 * begin with BOS and end with EOS; other programs only add what this says.
 */
#include "core/tokenizer/postprocessor.h"

#include <string.h>

#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/data/jsonline.h"
#include "core/tokenizer/tokenizer_struct.h"

enum { DEEPEST_SEQUENCE = 4 };

static const char *type_of(const json_t *json)
{
    const char *type = json_string_value(json_object_get(json, "type"));

    return type ? type : "(no type)";
}

static int read_to(const struct tt_tokenizer *t, const json_t *json, int depth, int32_t *ret_begin, int32_t *ret_end)
{
    const json_t *list = json_object_get(json, "processors"), *single = json_object_get(json, "single");
    size_t n = json_array_size(single);
    int rc = 0;

    if (!json || json_is_null(json) || strcmp(type_of(json), "ByteLevel") == 0)
        return 0;
    if (strcmp(type_of(json), "Sequence") == 0 && depth < DEEPEST_SEQUENCE) {
        for (size_t i = 0; i < json_array_size(list); i++)
            TT_TRY(read_to(t, json_array_get(list, i), depth + 1, ret_begin, ret_end));
        goto out;
    }
    if (strcmp(type_of(json), "TemplateProcessing") != 0) {
        return tt_fail(TT_EDATA,
                       "%s: post_processor '%s' is not supported (ByteLevel, TemplateProcessing and null are)",
                       t->where, type_of(json));
    }
    for (int end = 0; end < 2 && n; end++) {
        const json_t *special = json_object_get(json_array_get(single, end ? n - 1 : 0), "SpecialToken");
        const char *name = tt_json_plain_string(json_object_get(special, "id"));

        if (name)
            *(end ? ret_end : ret_begin) = tt_tokenizer_token_to_id(t, name);
    }
out:
    return rc;
}

int tt_postprocessor_read(const struct tt_tokenizer *t, const json_t *json, int32_t *ret_begin, int32_t *ret_end)
{
    return read_to(t, json, 0, ret_begin, ret_end);
}

/* --- BOS --- */

static const char sequence_begin[] = "{\"type\":\"Sequence\",\"processors\":[", sequence_end[] = "]}";

/*
 * The post-processor that puts BOS before every text, as text; NULL: BOS is not a token with a name. The order of its
 * members is not that of the library, so that value_before takes nothing for it that the library has written.
 */
static char *bos_processor(const struct tt_tokenizer *t)
{
    size_t size = 0;
    const char *bytes = tt_tokenizer_id_to_token(t, t->bos, &size);
    char *name = tt_strndup(bytes, size), *text = NULL;
    json_t *json = NULL;

    if (size && strlen(name) == size && tt_tokenizer_token_to_id(t, name) == t->bos)
        json = json_pack("{s:s, s:{s:{s:s, s:[i], s:[s]}}, s:[{s:{s:s, s:i}}, {s:{s:s, s:i}}], "
                         "s:[{s:{s:s, s:i}}, {s:{s:s, s:i}}, {s:{s:s, s:i}}, {s:{s:s, s:i}}]}",
                         "type", "TemplateProcessing", "special_tokens", name, "id", name, "ids", t->bos, "tokens",
                         name, "single", "SpecialToken", "id", name, "type_id", 0, "Sequence", "id", "A", "type_id", 0,
                         "pair", "SpecialToken", "id", name, "type_id", 0, "Sequence", "id", "A", "type_id", 0,
                         "SpecialToken", "id", name, "type_id", 1, "Sequence", "id", "B", "type_id", 1);
    if (json)
        text = tt_json_text(json);
    json_decref(json);
    tt_free(name);
    return text;
}

/* Where the value of a member is in a text. */
struct value {
    const char *key, *text;
    size_t size;
};

static void take_value(void *arg, const struct tt_json_member *member)
{
    struct value *value = arg;

    if (strlen(value->key) == member->key_size && memcmp(value->key, member->key, member->key_size) == 0) {
        value->text = member->value;
        value->size = member->value_size;
    }
}

/* Finds the post-processor in the text of tokenizer.json; the library always writes one, perhaps null. */
static struct value find_value(const struct tt_tokenizer *t)
{
    struct value found = {.key = "post_processor"};
    struct tt_json_problem problem;
    enum tt_json_kind kind;

    if (!tt_jsonline_members(t->json, t->json_size, take_value, &found, &kind, &problem))
        found.text = NULL;
    return found;
}

/* The text of tokenizer.json with something else between `from` and `to`. */
static void put_instead(const struct tt_tokenizer *t, const char *from, const char *to, const char *text, size_t size,
                        struct tt_text *out)
{
    tt_text_add_bytes(out, t->json, (size_t)(from - t->json));
    tt_text_add_bytes(out, text, size);
    tt_text_add_bytes(out, to, t->json_size - (size_t)(to - t->json));
}

bool tt_tokenizer_json_with_bos(const struct tt_tokenizer *t, struct tt_text *out)
{
    struct value found = find_value(t);
    char *bos = found.text && t->bos >= 0 && !t->adds_bos ? bos_processor(t) : NULL;
    struct tt_text text = {0};

    if (!bos)
        return false;
    if (found.size == 4 && memcmp(found.text, "null", 4) == 0) {
        tt_text_add(&text, "%s", bos);
    } else {
        tt_text_add(&text, "%s", sequence_begin);
        tt_text_add_bytes(&text, found.text, found.size);
        tt_text_add(&text, ",%s%s", bos, sequence_end);
    }
    put_instead(t, found.text, found.text + found.size, text.text, text.size, out);
    tt_text_release(&text);
    tt_free(bos);
    return true;
}

/* What the value was before tt_tokenizer_json_with_bos changed it. */
static struct value value_before(struct value now, const char *bos)
{
    size_t n = strlen(bos), begin = strlen(sequence_begin), end = strlen(sequence_end);

    if (now.size == n && memcmp(now.text, bos, n) == 0)
        return (struct value){.text = "null", .size = 4};
    if (now.size > begin + 1 + n + end && memcmp(now.text, sequence_begin, begin) == 0 &&
        memcmp(now.text + now.size - end - n, bos, n) == 0 && now.text[now.size - end - n - 1] == ',')
        return (struct value){.text = now.text + begin, .size = now.size - begin - 1 - n - end};
    return now;
}

uint64_t tt_postprocessor_hash(const struct tt_tokenizer *t)
{
    struct value found = {0}, before = {0};
    char *bos = t->adds_bos ? bos_processor(t) : NULL;
    struct tt_text text = {0};
    uint64_t hash;

    if (bos) {
        found = find_value(t);
        before = found.text ? value_before(found, bos) : found;
    }
    if (before.text != found.text)
        put_instead(t, found.text, found.text + found.size, before.text, before.size, &text);
    hash = text.text ? tt_hash64(text.text, text.size, 0) : tt_hash64(t->json, t->json_size, 0);
    tt_text_release(&text);
    tt_free(bos);
    return hash;
}

/* SPDX-License-Identifier: MIT */
#ifndef TT_TESTS_TOKENIZER_HELP_H
#define TT_TESTS_TOKENIZER_HELP_H

/** Tokenizers and the ids that they must give, for the tests of core/tokenizer. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/json.h"
#include "core/os/file.h"
#include "core/tokenizer/tokenizer.h"

#define DATA TT_SOURCE_DIR "/tests/unit/data/"

/* The tokenizer of a file or folder, or the built-in one for NULL. The caller frees it. */
static inline struct tt_tokenizer *load(const char *path)
{
    struct tt_tokenizer *t = NULL;

    if (tt_tokenizer_load(path, &t) < 0)
        fail_msg("%s", tt_error_message());
    return t;
}

/* A tokenizer from the texts of tokenizer.json and tokenizer_config.json, which may be NULL. */
static inline int parse(const char *json, const char *config, struct tt_tokenizer **ret_tokenizer)
{
    return tt_tokenizer_parse(json, strlen(json), config, config ? strlen(config) : 0, "t.json", ret_tokenizer);
}

/* The text must be encoded to these ids, twice. */
static inline void expect_ids(const struct tt_tokenizer *t, const char *text, size_t size, const json_t *want)
{
    struct tt_encoder *encoder = NULL;
    struct tt_ids ids = {0};

    assert_int_equal(tt_encoder_new(t, &encoder), 0);
    for (int round = 0; round < 2; round++) { /* the second round finds its words in the cache */
        ids.n = 0;
        if (tt_encoder_encode(encoder, text, size, &ids) < 0)
            fail_msg("%s", tt_error_message());
        if (ids.n != json_array_size(want))
            fail_msg("'%s': %zu ids, wanted %zu", text, ids.n, json_array_size(want));
        for (size_t i = 0; i < ids.n; i++) {
            if (ids.id[i] != json_integer_value(json_array_get(want, i)))
                fail_msg("'%s': id %zu is %d, wanted %lld", text, i, ids.id[i],
                         (long long)json_integer_value(json_array_get(want, i)));
        }
    }
    tt_ids_release(&ids);
    tt_encoder_free(encoder);
}

/* As above, with the ids as a JSON list. */
static inline void expect_text_ids(const struct tt_tokenizer *t, const char *text, const char *want)
{
    json_t *ids = NULL;

    assert_int_equal(tt_json_parse(want, strlen(want), "want", &ids), 0);
    expect_ids(t, text, strlen(text), ids);
    json_decref(ids);
}

/* All cases of a JSON file, a list of {"text", "ids"}. */
static inline void expect_golden(const struct tt_tokenizer *t, const char *path)
{
    json_t *cases = NULL;

    assert_int_equal(tt_json_load(path, &cases), 0);
    assert_true(json_array_size(cases) > 0);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *text = json_object_get(json_array_get(cases, i), "text");

        expect_ids(t, json_string_value(text), json_string_length(text),
                   json_object_get(json_array_get(cases, i), "ids"));
    }
    json_decref(cases);
}

#endif

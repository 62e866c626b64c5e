/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pthread.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/mem.h"
#include "core/base/rng.h"
#include "core/data/bpe.h"
#include "core/data/builtin.h"
#include "core/data/regex.h"
#include "core/data/strmap.h"
#include "core/data/tokenizer.h"
#include "core/data/utf8.h"

#define DATA TT_SOURCE_DIR "/tests/unit/data/"

static struct tt_tokenizer *load(const char *path)
{
    struct tt_tokenizer *t = NULL;

    if (tt_tokenizer_load(path, &t) < 0)
        fail_msg("%s", tt_error_message());
    return t;
}

/* A tokenizer.json of 256 bytes "a".. and more, made of text. */
__attribute__((unused)) static int parse(const char *json, const char *config, struct tt_tokenizer **ret_tokenizer)
{
    return tt_tokenizer_parse(json, strlen(json), config, config ? strlen(config) : 0, "t.json", ret_tokenizer);
}

static void expect_ids(const struct tt_tokenizer *t, const char *text, size_t size, const json_t *want)
{
    struct tt_encoder *encoder = NULL;
    struct tt_ids ids = {0};

    assert_int_equal(tt_encoder_new(t, &encoder), 0);
    for (int round = 0; round < 2; round++) { /* the second finds its words in the cache */
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

static void expect_golden(const struct tt_tokenizer *t, const char *path)
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

__attribute__((unused)) static void expect_text_ids(const struct tt_tokenizer *t, const char *text, const char *want)
{
    json_t *ids = NULL;

    assert_int_equal(tt_json_parse(want, strlen(want), "want", &ids), 0);
    expect_ids(t, text, strlen(text), ids);
    json_decref(ids);
}

static void builtin_tokenizer_gives_the_golden_ids(void **state)
{
    struct tt_tokenizer *t = load(NULL);

    (void)state;
    assert_int_equal(tt_tokenizer_vocab_size(t), 2048);
    assert_int_equal(tt_tokenizer_bos(t), 0);
    assert_int_equal(tt_tokenizer_eos(t), 1);
    assert_int_equal(tt_tokenizer_token_to_id(t, "<|end_of_text|>"), 1);
    assert_int_equal(tt_tokenizer_token_to_id(t, "no such token"), -1);
    assert_true(tt_tokenizer_is_special(t, 1));
    assert_false(tt_tokenizer_is_special(t, 2));
    expect_golden(t, TT_SOURCE_DIR "/tests/unit/tokenizer_golden.json");
    tt_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(builtin_tokenizer_gives_the_golden_ids),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

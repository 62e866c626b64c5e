/* SPDX-License-Identifier: MIT
 *
 * Tokenizer folders as transformers writes them, and broken ones.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/file.h"
#include "core/base/json.h"
#include "core/base/log.h"
#include "core/base/mem.h"
#include "core/data/tokenizer.h"

#define DATA TT_SOURCE_DIR "/tests/unit/data/"

static struct tt_tokenizer *load(const char *path)
{
    struct tt_tokenizer *t = NULL;

    if (tt_tokenizer_load(path, &t) < 0)
        fail_msg("%s", tt_error_message());
    return t;
}

static int parse(const char *json, const char *config, struct tt_tokenizer **ret_tokenizer)
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

/* Folders that transformers 4 and 5 wrote (make_folders.py), and the ids that they gave. */
static void folders_of_transformers_give_the_golden_ids(void **state)
{
    static const char *const names[] = {"llama3", "qwen3", "gpt2", "mistral_nemo"};
    static const int32_t bos[] = {320, -1, 320, 320}, eos[] = {321, 320, 320, 321};

    (void)state;
    for (int i = 0; i < 8; i++) {
        char *folder = tt_format(DATA "transformers/v%d/%s", i < 4 ? 4 : 5, names[i % 4]);
        char *golden = tt_format("%s/golden.json", folder);
        struct tt_tokenizer *t = load(folder);

        expect_golden(t, golden);
        assert_int_equal(tt_tokenizer_bos(t), bos[i % 4]);
        assert_int_equal(tt_tokenizer_eos(t), eos[i % 4]);
        tt_tokenizer_free(t);
        tt_free(golden);
        tt_free(folder);
    }
}

static char noted[512];

static void take_note(void *arg, enum tt_log_level level, const char *text)
{
    (void)arg;
    (void)level;
    (void)snprintf(noted, sizeof noted, "%s", text);
}

static void put(const char *folder, const char *name, const char *text, size_t size)
{
    char *path = tt_format("%s/%s", folder, name);

    if (tt_file_replace(path, text, size) < 0)
        fail_msg("%s", tt_error_message());
    tt_free(path);
}

/* What transformers writes for a tokenizer without a length. */
static void numbers_beyond_64_bits_are_read(void **state)
{
    static const char config[] = "{\"model_max_length\": 1000000000000000019884624838656, \"n\": "
                                 "[-99999999999999999999, 9223372036854775807, 1e3, \"\\\"99999999999999999999\\\\\"], "
                                 "\"bos_token\": null, \"eos_token\": \"<|end_of_text|>\"}";
    struct tt_tokenizer *t = NULL, *builtin = load(NULL);
    const json_t *list;
    json_t *json = NULL;

    (void)state;
    assert_int_equal(parse(tt_tokenizer_files(builtin).json, config, &t), 0);
    assert_int_equal(tt_tokenizer_eos(t), 1);
    tt_tokenizer_free(t);
    tt_tokenizer_free(builtin);
    assert_int_equal(tt_json_parse(config, strlen(config), "config", &json), 0);
    assert_true(json_real_value(json_object_get(json, "model_max_length")) == 1000000000000000019884624838656.0);
    list = json_object_get(json, "n");
    assert_true(json_real_value(json_array_get(list, 0)) == -99999999999999999999.0);
    assert_true(json_integer_value(json_array_get(list, 1)) == INT64_MAX);
    assert_true(json_real_value(json_array_get(list, 2)) == 1000.0);
    assert_string_equal(json_string_value(json_array_get(list, 3)), "\"99999999999999999999\\");
    json_decref(json);
}

static void a_config_that_is_no_json_stops_only_where_it_is_needed(void **state)
{
    static const char map[] = "{\"bos_token\": \"<|end_of_text|>\", \"eos_token\": {\"content\": \"<|end_of_text|>\"}}";
    char folder[] = "/tmp/titan_tokenizer_XXXXXX";
    struct tt_tokenizer *t = NULL, *builtin = load(NULL);
    struct tt_tokenizer_files files = tt_tokenizer_files(builtin);

    (void)state;
    assert_non_null(mkdtemp(folder));
    tt_log_set_sink(take_note, NULL);
    put(folder, "tokenizer.json", files.json, files.json_size);
    put(folder, "tokenizer_config.json", "{\"eos_token\": ", 14);
    /* the template names neither */
    assert_int_equal(tt_tokenizer_load(folder, &t), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "tokenizer_config.json:1:14: invalid JSON"));
    assert_non_null(strstr(tt_error_message(), "help: it says which tokens begin and end a document"));
    put(folder, "special_tokens_map.json", map, strlen(map));
    assert_int_equal(tt_tokenizer_load(folder, &t), 0);
    assert_non_null(strstr(noted, "BOS and EOS are those of special_tokens_map.json"));
    assert_int_equal(tt_tokenizer_bos(t), 1);
    assert_int_equal(tt_tokenizer_eos(t), 1);
    tt_tokenizer_free(t);
    tt_log_set_sink(NULL, NULL);
    tt_tokenizer_free(builtin);
    assert_int_equal(tt_folder_remove(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_of_transformers_give_the_golden_ids),
        cmocka_unit_test(numbers_beyond_64_bits_are_read),
        cmocka_unit_test(a_config_that_is_no_json_stops_only_where_it_is_needed),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

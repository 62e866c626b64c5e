/* SPDX-License-Identifier: MIT
 *
 * Tokenizer folders as transformers writes them, and broken ones.
 */
#include <stdio.h>

#include "core/base/builtin.h"
#include "core/base/mem.h"
#include "core/os/file.h"
#include "tests/help/log.h"
#include "tokenizer_help.h"

/* Folders that transformers 4 and 5 wrote (make_folders.py), and the ids that they produced. */
static void folders_of_transformers_give_the_golden_ids(void **state)
{
    static const char *const names[] = {"llama3", "qwen3", "gpt2", "mistral_nemo"};
    static const int32_t bos[] = {320, -1, 320, 320}, eos[] = {321, 320, 320, 321};

    for (int i = 0; i < 8; i++) {
        char *folder = tt_format(DATA "transformers/v%d/%s", i < 4 ? 4 : 5, names[i % 4]);
        char *golden = tt_format("%s/golden.json", folder);
        struct tt_tokenizer *t = load(folder);

        expect_golden(t, golden);
        assert_int_equal(tt_tokenizer_info(t)->bos, bos[i % 4]);
        assert_int_equal(tt_tokenizer_info(t)->eos, eos[i % 4]);
        tt_tokenizer_free(t);
        tt_free(golden);
        tt_free(folder);
    }
}

/* The built-in tokenizer with this post-processor: an export's adds BOS, and has the same hash. */
static void expect_bos_added(const char *processor, const char *wanted)
{
    static const char config[] = "{\"bos_token\": \"<|begin_of_text|>\", \"eos_token\": \"<|end_of_text|>\"}";
    struct tt_builtin file = tt_builtin_get(TT_BUILTIN_TOKENIZER);
    struct tt_tokenizer *before = NULL, *after = NULL;
    struct tt_text json = {0}, text = {0};

    tt_text_add_replaced(&json, file.bytes, file.size, "\"post_processor\": null", processor);
    assert_int_equal(parse(json.text, config, &before), 0);
    assert_false(tt_tokenizer_info(before)->adds_bos);
    assert_true(tt_tokenizer_json_with_bos(before, &text));
    assert_non_null(strstr(text.text, wanted));
    assert_int_equal(parse(text.text, config, &after), 0);
    assert_true(tt_tokenizer_info(after)->adds_bos);
    assert_int_equal(tt_tokenizer_info(after)->bos, tt_tokenizer_info(before)->bos);
    assert_int_equal(tt_tokenizer_info(after)->eos, tt_tokenizer_info(before)->eos);
    assert_true(tt_tokenizer_info(after)->hash == tt_tokenizer_info(before)->hash);
    assert_false(tt_tokenizer_json_with_bos(after, &text));
    tt_text_release(&json);
    tt_text_release(&text);
    tt_tokenizer_free(before);
    tt_tokenizer_free(after);
}

#define TEMPLATE "{\"type\":\"TemplateProcessing\""

static void bos_can_be_added_for_other_programs(void **state)
{
    static const char sequence[] =
        "\"post_processor\": {\"type\":\"Sequence\",\"processors\":[{\"type\": \"ByteLevel\"}," TEMPLATE;
    struct tt_tokenizer *llama = load(DATA "transformers/v5/llama3"), *qwen = load(DATA "transformers/v5/qwen3");
    struct tt_text unused = {0};

    expect_bos_added("\"post_processor\": null",
                     "\"post_processor\": " TEMPLATE ",\"special_tokens\":{\"<|begin_of_text|>\":");
    expect_bos_added("\"post_processor\": {\"type\": \"ByteLevel\"}", sequence);
    expect_bos_added("\"post_processor\": " TEMPLATE
                     ", \"single\": [{\"Sequence\": {\"id\": \"A\"}}, {\"SpecialToken\": "
                     "{\"id\": \"<|end_of_text|>\"}}]}",
                     "]}," TEMPLATE);
    assert_false(tt_tokenizer_json_with_bos(llama, &unused)); /* the tokenizer already adds BOS */
    assert_false(tt_tokenizer_json_with_bos(qwen, &unused));  /* the tokenizer has no BOS */
    tt_tokenizer_free(llama);
    tt_tokenizer_free(qwen);
}

/* The text of the ids, decoded at once and one by one. */
static void expect_text(const struct tt_tokenizer *t, const json_t *list, const json_t *want)
{
    size_t n = json_array_size(list);
    struct tt_decoding decoding = {0};
    struct tt_text text = {0}, parts = {0};
    struct tt_ids ids = {0};

    for (size_t i = 0; i < n; i++)
        tt_ids_add(&ids, (int32_t)json_integer_value(json_array_get(list, i)));
    tt_text_add_bytes(&text, "", 0);
    tt_text_add_bytes(&parts, "", 0);
    if (tt_tokenizer_decode(t, ids.id, (int64_t)n, &text) < 0)
        fail_msg("%s", tt_error_message());
    for (size_t i = 0; i < n; i++)
        assert_int_equal(tt_tokenizer_decode_part(t, &decoding, ids.id + i, 1, &parts), 0);
    tt_tokenizer_decode_end(t, &decoding, &parts);
    if (text.size != json_string_length(want) || memcmp(text.text, json_string_value(want), text.size) != 0)
        fail_msg("'%s', wanted '%s'", text.text, json_string_value(want));
    assert_int_equal(parts.size, text.size);
    assert_memory_equal(parts.text, text.text, text.size);
    tt_decoding_release(&decoding);
    tt_text_release(&text);
    tt_text_release(&parts);
    tt_ids_release(&ids);
}

/* Folders with SentencePiece vocabularies: ids and texts. The last case of each file has only ids; its bytes are not
 * text. */
static void folders_of_sentencepiece_give_the_golden_ids_and_texts(void **state)
{
    static const char *const names[] = {"v4/llama2", "v4/mistral7b", "v5/llama2", "v5/mistral7b"};

    for (int i = 0; i < 4; i++) {
        char *folder = tt_format(DATA "transformers/%s", names[i]), *golden = tt_format("%s/golden.json", folder);
        struct tt_tokenizer *t = load(folder);
        json_t *cases = NULL;

        assert_int_equal(tt_tokenizer_info(t)->bos, 1);
        assert_int_equal(tt_tokenizer_info(t)->eos, 2);
        assert_true(tt_tokenizer_info(t)->adds_bos);
        if (tt_json_load(golden, &cases) < 0)
            fail_msg("%s", tt_error_message());
        assert_int_equal(json_array_size(cases), 13);
        for (size_t k = 0; k < 13; k++) {
            const json_t *one = json_array_get(cases, k), *text = json_object_get(one, "text");

            if (k < 12)
                expect_ids(t, json_string_value(text), json_string_length(text), json_object_get(one, "ids"));
            expect_text(t, json_object_get(one, "ids"), json_object_get(one, "decoded"));
        }
        json_decref(cases);
        tt_tokenizer_free(t);
        tt_free(golden);
        tt_free(folder);
    }
}

/* The tokenizer.json of a family: one of the vocabularies with the parts of the family. */
static struct tt_tokenizer *family(const json_t *all, const json_t *of, const char *name)
{
    json_t *root = json_deep_copy(json_object_get(of, "parts"));
    json_t *model = json_deep_copy(json_object_get(all, json_string_value(json_object_get(of, "of"))));
    struct tt_tokenizer *t = NULL;
    char *text;

    assert_int_equal(json_object_update(model, json_object_get(of, "options")), 0);
    assert_int_equal(json_object_set_new(root, "model", model), 0);
    text = tt_json_text(root);
    if (parse(text, NULL, &t) < 0)
        fail_msg("%s: %s", name, tt_error_message());
    tt_free(text);
    json_decref(root);
    return t;
}

static void expect_begin(const struct tt_tokenizer *t, const json_t *want)
{
    struct tt_ids ids = {0};

    tt_tokenizer_begin(t, &ids);
    assert_int_equal(ids.n, json_array_size(want));
    for (size_t i = 0; i < ids.n; i++)
        assert_int_equal(ids.id[i], json_integer_value(json_array_get(want, i)));
    tt_ids_release(&ids);
}

/* data/make_tokenizers.py made them. */
static void tokenizers_of_families_give_the_golden_ids_and_texts(void **state)
{
    const char *name;
    json_t *all = NULL, *texts, *of;

    assert_int_equal(tt_json_load(DATA "family_tokenizers.json", &all), 0);
    texts = json_object_get(all, "texts");
    json_object_foreach(json_object_get(all, "families"), name, of)
    {
        struct tt_tokenizer *t = family(all, of, name);
        const json_t *ids;
        size_t i;

        expect_begin(t, json_object_get(of, "begin"));
        json_array_foreach(json_object_get(of, "ids"), i, ids)
        {
            const json_t *text = json_array_get(texts, i), *back = json_array_get(json_object_get(of, "texts"), i);

            if (text)
                expect_ids(t, json_string_value(text), json_string_length(text), ids);
            expect_text(t, ids, json_is_null(back) ? text : back);
        }
        tt_tokenizer_free(t);
    }
    json_decref(all);
}

/* Without a pre-tokenizer the text is one word. */
static void a_word_of_a_mebibyte_has_the_ids_of_its_parts(void **state)
{
    static const char part[] = " In the beginning God created the heaven";
    struct tt_tokenizer *t = load(DATA "transformers/v4/llama2");
    struct tt_encoder *encoder = NULL;
    struct tt_ids one = {0}, all = {0};
    struct tt_text text = {0};
    size_t times = (1 << 20) / (sizeof part - 1);

    assert_int_equal(tt_encoder_new(t, &encoder), 0);
    assert_int_equal(tt_encoder_encode(encoder, part + 1, sizeof part - 2, &one), 0);
    for (size_t i = 0; i < times; i++)
        tt_text_add_bytes(&text, part, sizeof part - 1);
    assert_int_equal(tt_encoder_encode(encoder, text.text + 1, text.size - 1, &all), 0);
    assert_int_equal(all.n, times * one.n);
    for (size_t i = 0; i < all.n; i++)
        assert_int_equal(all.id[i], one.id[i % one.n]);
    tt_ids_release(&one);
    tt_ids_release(&all);
    tt_text_release(&text);
    tt_encoder_free(encoder);
    tt_tokenizer_free(t);
}

/* Llama 2's tokenizer without a token for the byte 0xC2. */
static struct tt_tokenizer *load_without_byte(bool fuses)
{
    struct tt_tokenizer *t = NULL;
    struct tt_text less = {0}, changed = {0};
    char *json = NULL;
    size_t size = 0;

    assert_int_equal(tt_file_read(DATA "transformers/v4/llama2/tokenizer.json", &json, &size), 0);
    tt_text_add_replaced(&less, json, size, "\"<0xC2>\"", "\"<no byte>\"");
    tt_text_add_replaced(&changed, less.text, less.size, "\"fuse_unk\": true",
                         fuses ? "\"fuse_unk\": true" : "\"fuse_unk\": false");
    assert_int_equal(changed.size, size + 3 + !fuses);
    log_catch();
    if (parse(changed.text, NULL, &t) < 0)
        fail_msg("%s", tt_error_message());
    log_release();
    assert_non_null(strstr(caught.last, "1 of 256 bytes are not in the vocabulary (0xc2 is the first)"));
    tt_text_release(&less);
    tt_text_release(&changed);
    tt_free(json);
    return t;
}

/* As in `tokenizers`, the unknown token comes just before the next character that is a token, and so after any
 * bytes. */
static void characters_without_bytes_are_unknown(void **state)
{
    static const struct {
        bool fuses;
        const char *text, *ids;
    } cases[] = {
        {true, "\u00a0\u00ff\u65e5th\u00a0", "[422, 198, 194, 233, 154, 168, 0, 259, 0]"},
        {true, "\u00a0\u00a1th\u00a0\u00a2", "[422, 0, 259, 0]"},
        {false, "\u00a0\u00a1th\u00a0\u00a2", "[422, 0, 0, 259, 0, 0]"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tt_tokenizer *t = load_without_byte(cases[i].fuses);
        json_t *want = NULL;

        assert_int_equal(tt_json_parse(cases[i].ids, strlen(cases[i].ids), "ids", &want), 0);
        expect_ids(t, cases[i].text, strlen(cases[i].text), want);
        json_decref(want);
        tt_tokenizer_free(t);
    }
}

static void put(const char *folder, const char *name, const char *text, size_t size)
{
    char *path = tt_format("%s/%s", folder, name);

    if (tt_file_replace(path, text, size) < 0)
        fail_msg("%s", tt_error_message());
    tt_free(path);
}

/* transformers writes such a number for a tokenizer without a maximal length. */
static void numbers_beyond_64_bits_are_read(void **state)
{
    static const char config[] = "{\"model_max_length\": 1000000000000000019884624838656, \"n\": "
                                 "[-99999999999999999999, 9223372036854775807, 1e3, \"\\\"99999999999999999999\\\\\"], "
                                 "\"bos_token\": null, \"eos_token\": \"<|end_of_text|>\"}";
    struct tt_tokenizer *t = NULL, *builtin = load(NULL);
    const json_t *list;
    json_t *json = NULL;

    assert_int_equal(parse(tt_tokenizer_info(builtin)->json, config, &t), 0);
    assert_int_equal(tt_tokenizer_info(t)->eos, 1);
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

static void a_broken_config_is_an_error_only_if_it_is_needed(void **state)
{
    static const char map[] = "{\"bos_token\": \"<|end_of_text|>\", \"eos_token\": {\"content\": \"<|end_of_text|>\"}}";
    char folder[] = "/tmp/titan_tokenizer_XXXXXX";
    struct tt_tokenizer *t = NULL, *builtin = load(NULL);
    const struct tt_tokenizer_info *files = tt_tokenizer_info(builtin);

    assert_non_null(mkdtemp(folder));
    log_catch();
    put(folder, "tokenizer.json", files->json, files->json_size);
    put(folder, "tokenizer_config.json", "{\"eos_token\": ", 14);
    /* The template names neither BOS nor EOS. */
    assert_int_equal(tt_tokenizer_load(folder, &t), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "tokenizer_config.json:1:14: invalid JSON"));
    assert_non_null(strstr(tt_error_message(), "help: it says which tokens begin and end a document"));
    put(folder, "special_tokens_map.json", map, strlen(map));
    assert_int_equal(tt_tokenizer_load(folder, &t), 0);
    assert_non_null(strstr(caught.last, "BOS and EOS come from special_tokens_map.json"));
    assert_int_equal(tt_tokenizer_info(t)->bos, 1);
    assert_int_equal(tt_tokenizer_info(t)->eos, 1);
    tt_tokenizer_free(t);
    log_release();
    tt_tokenizer_free(builtin);
    assert_int_equal(tt_folder_remove(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_of_transformers_give_the_golden_ids),
        cmocka_unit_test(bos_can_be_added_for_other_programs),
        cmocka_unit_test(folders_of_sentencepiece_give_the_golden_ids_and_texts),
        cmocka_unit_test(tokenizers_of_families_give_the_golden_ids_and_texts),
        cmocka_unit_test(a_word_of_a_mebibyte_has_the_ids_of_its_parts),
        cmocka_unit_test(characters_without_bytes_are_unknown),
        cmocka_unit_test(numbers_beyond_64_bits_are_read),
        cmocka_unit_test(a_broken_config_is_an_error_only_if_it_is_needed),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

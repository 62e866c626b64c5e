/* SPDX-License-Identifier: MIT */
#include <stdio.h>

#include <pthread.h>

#include "core/base/builtin.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/math/rng.h"
#include "core/os/file.h"
#include "core/tokenizer/decoder.h"
#include "core/tokenizer/strmap.h"
#include "tests/help/log.h"
#include "tokenizer_help.h"

static void builtin_tokenizer_gives_the_golden_ids(void **state)
{
    struct tt_tokenizer *t = load(NULL);

    assert_int_equal(tt_tokenizer_info(t)->vocab_size, 2048);
    assert_int_equal(tt_tokenizer_info(t)->bos, 0);
    assert_int_equal(tt_tokenizer_info(t)->eos, 1);
    assert_int_equal(tt_tokenizer_token_to_id(t, "<|end_of_text|>"), 1);
    assert_int_equal(tt_tokenizer_token_to_id(t, "no such token"), -1);
    assert_true(tt_tokenizer_is_special(t, 1));
    assert_false(tt_tokenizer_is_special(t, 2));
    expect_golden(t, TT_SOURCE_DIR "/tests/unit/tokenizer_golden.json");
    tt_tokenizer_free(t);
}

/* The built-in tokenizer.json with members replaced. */
static char *patched(const json_t *patch, int drop_every)
{
    struct tt_builtin file = tt_builtin_get(TT_BUILTIN_TOKENIZER);
    json_t *root = NULL, *model;
    const char *key;
    json_t *value;
    char *text;

    assert_int_equal(tt_json_parse(file.bytes, file.size, file.name, &root), 0);
    model = json_incref(json_object_get(root, "model"));
    json_object_foreach((json_t *)(uintptr_t)patch, key, value)
    {
        if (strcmp(key, "model") == 0)
            assert_int_equal(json_object_update(model, value), 0);
        else
            assert_int_equal(json_object_set(root, key, value), 0);
    }
    if (drop_every) {
        json_t *kept = json_array(), *merges = json_object_get(model, "merges");

        for (size_t i = 0; i < json_array_size(merges); i++) {
            if (i % (size_t)drop_every)
                json_array_append(kept, json_array_get(merges, i));
        }
        json_object_set_new(model, "merges", kept);
    }
    text = tt_json_text(root);
    json_decref(model);
    json_decref(root);
    return text;
}

static struct tt_tokenizer *load_patched(const char *patch)
{
    struct tt_tokenizer *t = NULL;
    json_t *json = NULL;
    char *text;

    assert_int_equal(tt_json_parse(patch, strlen(patch), "patch", &json), 0);
    text = patched(json, 0);
    if (parse(text, NULL, &t) < 0)
        fail_msg("%s", tt_error_message());
    tt_free(text);
    json_decref(json);
    return t;
}

static void variants_give_the_golden_ids(void **state)
{
    json_t *variants = NULL;

    assert_int_equal(tt_json_load(DATA "tokenizer_variants.json", &variants), 0);
    assert_int_equal(json_array_size(variants), 6);
    for (size_t i = 0; i < json_array_size(variants); i++) {
        const json_t *v = json_array_get(variants, i), *cases = json_object_get(v, "cases");
        char *text = patched(json_object_get(v, "patch"), (int)json_integer_value(json_object_get(v, "drop_every")));
        struct tt_tokenizer *t = NULL;

        if (parse(text, NULL, &t) < 0)
            fail_msg("%s: %s", json_string_value(json_object_get(v, "name")), tt_error_message());
        for (size_t c = 0; c < json_array_size(cases); c++) {
            const json_t *one = json_array_get(cases, c), *words = json_object_get(one, "text");

            expect_ids(t, json_string_value(words), json_string_length(words), json_object_get(one, "ids"));
        }
        tt_tokenizer_free(t);
        tt_free(text);
    }
    json_decref(variants);
}

static void gpt2_file_gives_the_golden_ids(void **state)
{
    struct tt_tokenizer *t = load(DATA "gpt2_small.json");

    expect_golden(t, DATA "gpt2_small_golden.json");
    tt_tokenizer_free(t);
}

/* data/make_tokenizers.py made them. */
static void normalizers_and_spaces_give_the_golden_ids(void **state)
{
    static const char *const names[] = {"qwen_small", "gpt2_prefix_small", "nfkd_small"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *file = tt_format(DATA "%s.json", names[i]), *golden = tt_format(DATA "%s_golden.json", names[i]);
        struct tt_tokenizer *t = load(file);

        expect_golden(t, golden);
        tt_tokenizer_free(t);
        tt_free(file);
        tt_free(golden);
    }
}

static void expect_round_trip(struct tt_tokenizer *t, struct tt_encoder *encoder, const char *text, size_t size)
{
    struct tt_ids ids = {0};
    struct tt_text back = {0};

    assert_int_equal(tt_encoder_encode(encoder, text, size, &ids), 0);
    assert_int_equal(tt_tokenizer_decode(t, ids.id, (int64_t)ids.n, &back), 0);
    assert_int_equal(back.size, size);
    if (size)
        assert_memory_equal(back.text, text, size);
    tt_ids_release(&ids);
    tt_text_release(&back);
}

static size_t random_text(const struct tt_rng *rng, uint64_t *at, char *text, int n)
{
    size_t size = 0;

    for (int i = 0; i < n; i++) {
        uint64_t bits = tt_rng_bits(rng, (*at)++);
        uint32_t code = bits % 4 == 0 ? (uint32_t)(bits >> 8) % 0x110000 : (uint32_t)(bits >> 8) % 0x180;

        if (code >= 0xd800 && code < 0xe000)
            code = ' ';
        size += (size_t)tt_utf8_encode(code, text + size);
    }
    return size;
}

static void decoding_gives_the_text_back(void **state)
{
    struct tt_rng rng = tt_rng_make(3, "text");
    uint64_t at = 0;
    struct tt_tokenizer *t = load(NULL);
    struct tt_encoder *encoder = NULL;
    char *spaces = tt_calloc(100000, 1);
    char text[400];

    assert_int_equal(tt_encoder_new(t, &encoder), 0);
    for (int round = 0; round < 3000; round++)
        expect_round_trip(t, encoder, text, random_text(&rng, &at, text, round % 100));
    memset(spaces, ' ', 100000); /* one word of many bytes */
    expect_round_trip(t, encoder, spaces, 100000);
    memset(spaces, 'e', 100000);
    expect_round_trip(t, encoder, spaces, 100000);
    tt_free(spaces);
    tt_encoder_free(encoder);
    tt_tokenizer_free(t);
}

struct thread {
    const struct tt_tokenizer *tokenizer;
    struct tt_ids ids;
    int rc;
};

static void *encode_corpus(void *arg)
{
    struct thread *th = arg;
    struct tt_builtin corpus = tt_builtin_get(TT_BUILTIN_KJV_VALIDATION);
    struct tt_encoder *encoder = NULL;

    th->rc = tt_encoder_new(th->tokenizer, &encoder);
    if (th->rc == 0)
        th->rc = tt_encoder_encode(encoder, corpus.bytes, corpus.size, &th->ids);
    tt_encoder_free(encoder);
    return NULL;
}

static void threads_share_a_tokenizer(void **state)
{
    struct tt_tokenizer *t = load(NULL);
    struct thread th[3] = {{t, {0}, 0}, {t, {0}, 0}, {t, {0}, 0}};
    pthread_t id[3];

    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&id[i], NULL, encode_corpus, &th[i]), 0);
    for (int i = 0; i < 3; i++) {
        pthread_join(id[i], NULL);
        assert_int_equal(th[i].rc, 0);
        assert_int_equal(th[i].ids.n, th[0].ids.n);
        assert_memory_equal(th[i].ids.id, th[0].ids.id, th[0].ids.n * sizeof(int32_t));
    }
    for (int i = 0; i < 3; i++)
        tt_ids_release(&th[i].ids);
    tt_tokenizer_free(t);
}

/* A vocabulary of five characters and of what they merge into. "a b" has a space in it, which old files allow. */
#define TINY(merges, more)                                                                                          \
    "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2, \"ab\": 3, \"abc\": 4, \"x y\": 5, " \
    "\"x yc\": 6, \"x\": 7, \"y\": 8, \"bc\": 9, \"yc\": 11}, \"merges\": " merges "}, "                            \
    "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"use_regex\": false}" more "}"

static void both_formats_of_merges_are_read(void **state)
{
    static const char *const same[] = {TINY("[\"#version: 0.2\", \"b c\", \"a b\", \"a bc\"]", ""),
                                       TINY("[[\"b\", \"c\"], [\"a\", \"b\"], [\"a\", \"bc\"]]", "")};

    for (int i = 0; i < 2; i++) {
        struct tt_tokenizer *t = NULL;

        if (parse(same[i], NULL, &t) < 0)
            fail_msg("%s", tt_error_message());
        expect_text_ids(t, "abc", "[4]");
        expect_text_ids(t, "abab", "[3, 3]");
        expect_text_ids(t, "bbcab", "[1, 9, 3]");
        expect_text_ids(t, "az", "[0]"); /* z is not in the vocabulary and there is no unknown token */
        assert_int_equal(tt_tokenizer_info(t)->vocab_size, 12);
        assert_int_equal(tt_tokenizer_info(t)->bos, -1);
        tt_tokenizer_free(t);
    }
}

static void equal_pairs_merge_from_the_left(void **state)
{
    struct tt_tokenizer *t = NULL;

    assert_int_equal(parse("{\"model\": {\"vocab\": {\"a\": 0, \"aa\": 1, \"b\": 2}, \"merges\": [\"a a\"]}, "
                           "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"use_regex\": false}}",
                           NULL, &t),
                     0);
    expect_text_ids(t, "aaa", "[1, 0]");
    expect_text_ids(t, "baaaaab", "[2, 1, 1, 0, 2]");
    tt_tokenizer_free(t);
}

static void unknown_bytes_become_the_unknown_token(void **state)
{
    static const char *const want[] = {"[0, 7, 7, 0, 7]", "[0, 7, 0, 7]"};

    for (int fuse = 0; fuse < 2; fuse++) {
        char *text = tt_format("{\"model\": {\"vocab\": {\"a\": 0, \"?\": 7}, \"merges\": [], \"unk_token\": \"?\", "
                               "\"fuse_unk\": %s}, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"use_regex\": false}}",
                               fuse ? "true" : "false");
        struct tt_tokenizer *t = NULL;

        assert_int_equal(parse(text, NULL, &t), 0);
        expect_text_ids(t, "axyaz", want[fuse]);
        tt_tokenizer_free(t);
        tt_free(text);
    }
}

static void a_caret_matches_at_every_line(void **state)
{
    struct tt_tokenizer *t = NULL;

    assert_int_equal(
        parse("{\"model\": {\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [\"a b\"]}, \"pre_tokenizer\": "
              "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"^a\"}, "
              "\"behavior\": \"Isolated\"}, {\"type\": \"ByteLevel\", \"use_regex\": false}]}}",
              NULL, &t),
        0);
    expect_text_ids(t, "bab\nab", "[1, 2, 0, 1]"); /* the line end is not in the vocabulary */
    tt_tokenizer_free(t);
}

/* One match of this pattern takes only a few million steps, but the text contains hundreds of matches. */
static void a_hostile_pattern_is_given_up_in_a_long_text(void **state)
{
    static const char json[] =
        "{\"model\": {\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": []}, \"pre_tokenizer\": {\"type\": "
        "\"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "
        "\"(?:a?){22}a{22}b\"}, \"behavior\": \"Isolated\"}, {\"type\": \"ByteLevel\", "
        "\"use_regex\": false}]}}";
    enum { MATCHES = 300, MATCH = 23 };
    struct tt_encoder *encoder = NULL;
    struct tt_tokenizer *t = NULL;
    struct tt_ids ids = {0};
    char *text = tt_calloc(MATCHES * MATCH + 1, 1);

    memset(text, 'a', (size_t)MATCHES * MATCH);
    for (int i = 1; i <= MATCHES; i++)
        text[i * MATCH - 1] = 'b';
    assert_int_equal(parse(json, NULL, &t), 0);
    assert_int_equal(tt_encoder_new(t, &encoder), 0);
    assert_int_equal(tt_encoder_encode(encoder, text, (size_t)MATCHES * MATCH, &ids), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "the tokenizer's pattern gave up at byte "));
    assert_int_equal(tt_encoder_encode(encoder, text, MATCH, &ids), 0); /* the next text has its own budget */
    assert_int_equal(ids.n, MATCH);
    tt_ids_release(&ids);
    tt_encoder_free(encoder);
    tt_tokenizer_free(t);
    tt_free(text);
}

static void added_tokens_do_not_overlap(void **state)
{
    struct tt_tokenizer *t =
        load_patched("{\"added_tokens\": [{\"id\": 2048, \"content\": \"xyz\"}, {\"id\": 2049, \"content\": \"yz\"}]}");

    expect_text_ids(t, "xyzyz", "[2048, 2049]");
    tt_tokenizer_free(t);
}

/* A merge may join bytes, and its token begins within a character. */
static void merged_bytes_are_marked(void **state)
{
    static const char json[] =
        "{\"model\": {\"vocab\": {\"<0xE2>\": 0, \"<0x96>\": 1, \"<0x81>\": 2, \"<0x96><0x81>\": 3, \"a\": 4}, "
        "\"merges\": [[\"<0x96>\", \"<0x81>\"]], \"byte_fallback\": true}, \"decoder\": {\"type\": \"Fuse\"}}";
    struct tt_passages passages = {0};
    struct tt_tokenizer *t = NULL;
    struct tt_encoder *encoder = NULL;
    struct tt_ids ids = {0}, marks = {0};

    assert_int_equal(parse(json, NULL, &t), 0);
    assert_int_equal(tt_encoder_new(t, &encoder), 0);
    tt_passages_add(&passages, 3, 4);
    assert_int_equal(tt_encoder_encode_marked(encoder,
                                              "\xe2\x96\x81"
                                              "a",
                                              4, &passages, &ids, &marks),
                     0);
    assert_int_equal(ids.n, 3);
    assert_int_equal(marks.n, 3);
    assert_int_equal(ids.id[1], 3);
    assert_int_equal(marks.id[0] + marks.id[1], 0);
    assert_int_equal(marks.id[2], 1);
    tt_passages_release(&passages);
    tt_ids_release(&ids);
    tt_ids_release(&marks);
    tt_encoder_free(encoder);
    tt_tokenizer_free(t);
}

/* A part that Split removes gives no tokens, and does not shift the marks of the next part. */
static void text_after_removed_text_is_marked(void **state)
{
    struct tt_tokenizer *t = load_patched(
        "{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": "
        "{\"String\": \" \"}, \"behavior\": \"Removed\"}, {\"type\": \"ByteLevel\", \"use_regex\": false}]}}");
    struct tt_passages passages = {0};
    struct tt_encoder *encoder = NULL;
    struct tt_ids ids = {0}, marks = {0};

    assert_int_equal(tt_encoder_new(t, &encoder), 0);
    tt_passages_add(&passages, 4, 5);
    assert_int_equal(tt_encoder_encode_marked(encoder, "x  zqx", 6, &passages, &ids, &marks), 0);
    assert_int_equal(ids.n, 4);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(marks.id[i], i == 2);
    tt_passages_release(&passages);
    tt_ids_release(&marks);
    tt_ids_release(&ids);
    tt_encoder_free(encoder);
    tt_tokenizer_free(t);
}

static void merges_with_spaces_split_where_both_halves_are_tokens(void **state)
{
    struct tt_tokenizer *t = NULL;

    assert_int_equal(parse(TINY("[\"x y c\"]", ""), NULL, &t), 0); /* "x y" + "c", since "xy c" is no token */
    tt_tokenizer_free(t);
    assert_int_equal(parse(TINY("[\"ab\"]", ""), NULL, &t), TT_EDATA);
    assert_string_equal(tt_error_message(), "t.json: model.merges[0] 'ab' is not two tokens with a space between them");
    assert_int_equal(parse(TINY("[\"a q\"]", ""), NULL, &t), TT_EDATA);
    assert_string_equal(tt_error_message(), "t.json: model.merges[0] 'a q' names tokens that are not in model.vocab");
    assert_int_equal(parse(TINY("[[\"c\", \"a\"]]", ""), NULL, &t), TT_EDATA);
    assert_string_equal(tt_error_message(), "t.json: model.merges[0] makes 'ca' of tokens that are not in model.vocab");
    assert_int_equal(parse(TINY("[7]", ""), NULL, &t), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "neither a string nor a pair"));
}

static void ends_of_documents_come_from_config_or_template(void **state)
{
    static const char template[] =
        "{\"post_processor\": {\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"}, {\"type\": "
        "\"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<|begin_of_text|>\", \"type_id\": 0}}, "
        "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}]}]}}";
    struct tt_tokenizer *t = load_patched(template), *builtin = load(NULL), *other = NULL;
    const struct tt_tokenizer_info *files = tt_tokenizer_info(builtin);
    static const char config[] = "{\"bos_token\": {\"content\": \"<|end_of_text|>\"}, \"eos_token\": null}";
    static const char only_eos[] = "{\"bos_token\": null, \"eos_token\": \"<|end_of_text|>\"}";

    assert_int_equal(tt_tokenizer_info(t)->bos, 0);
    assert_int_equal(tt_tokenizer_info(t)->eos, -1);
    assert_true(tt_tokenizer_info(t)->adds_bos);
    assert_false(tt_tokenizer_info(builtin)->adds_bos);
    assert_int_equal(tt_tokenizer_parse(files->json, files->json_size, config, strlen(config), "t", &other), 0);
    assert_int_equal(tt_tokenizer_info(other)->bos, 1);
    assert_int_equal(tt_tokenizer_info(other)->eos, -1);
    assert_true(tt_tokenizer_info(other)->hash != tt_tokenizer_info(builtin)->hash);
    tt_tokenizer_free(other);
    assert_int_equal(tt_tokenizer_parse(files->json, files->json_size, only_eos, strlen(only_eos), "t", &other), 0);
    assert_int_equal(tt_tokenizer_info(other)->bos, -1);
    assert_int_equal(tt_tokenizer_info(other)->eos, 1);
    assert_true(tt_tokenizer_info(other)->hash != tt_tokenizer_info(builtin)->hash);
    tt_tokenizer_free(other);
    assert_int_equal(tt_tokenizer_parse(files->json, files->json_size, "{\"bos_token\": \"<s>\"}", 20, "t", &other),
                     TT_EDATA);
    assert_string_equal(tt_error_message(),
                        "t: bos_token '<s>' of tokenizer_config.json is not a token of tokenizer.json");
    tt_tokenizer_free(t);
    tt_tokenizer_free(builtin);
}

static void documents_have_both_ends_and_special_tokens_can_be_text(void **state)
{
    static const char text[] = "a<|end_of_text|>";
    struct tt_tokenizer *t = load(NULL);
    struct tt_encoder *encoder = NULL;
    struct tt_ids ids = {0};

    assert_int_equal(tt_encoder_new(t, &encoder), 0);
    assert_int_equal(tt_encoder_encode_document(encoder, text, strlen(text), &ids), 0);
    assert_int_equal(ids.n, 4);
    assert_int_equal(ids.id[0], 0);
    assert_int_equal(ids.id[2], 1);
    assert_int_equal(ids.id[3], 1);
    ids.n = 0;
    tt_encoder_find_special(encoder, false);
    assert_int_equal(tt_encoder_encode(encoder, text, strlen(text), &ids), 0);
    assert_true(ids.n > 4);
    for (size_t i = 0; i < ids.n; i++)
        assert_int_not_equal(ids.id[i], 1);
    ids.n = 0;
    assert_int_equal(tt_encoder_encode(encoder, "ab\xff", 3, &ids), TT_EDATA);
    assert_string_equal(tt_error_message(), "invalid UTF-8 at byte 2 of the text (0xff)");
    assert_int_equal(ids.n, 0);
    tt_ids_release(&ids);
    tt_encoder_free(encoder);
    tt_tokenizer_free(t);
}

/* The library's decoders decode these; ByteFallback may come before the marks are replaced. */
static void bytes_are_decoded_before_or_after_marks(void **state)
{
#define BEGIN     "{\"SpecialToken\": {\"id\": \"<|begin_of_text|>\", \"type_id\": 0}}"
#define BYTES     "{\"type\":\"ByteFallback\"}"
#define REPLACE   "{\"type\":\"Replace\",\"pattern\":{\"String\":\"\u2581\"},\"content\":\" \"}"
#define META(how) "{\"type\":\"Metaspace\",\"replacement\":\"\u2581\",\"prepend_scheme\":\"" how "\"}"
#define FUSE      "{\"type\":\"Fuse\"}"
#define STRIP     "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}"
    enum { N_TEXTS = 4, MOST = 10 };
    static const char *const tokens[N_TEXTS][MOST] = {
        {"\u2581a", "<0xE4>", "<0xBD>", "<0xA0>", "\u2581\u2581b", "<0xE2>", "<0x96>", "<0x81>", "c"},
        {"<0xE2>", "<0x96>", "<0x81>", "\u2581a", "<0xFF>", "\u2581b"},
        {"<0xFF>", "\u2581a"},
        {"\u2581\u2581a", "\u2581"},
    };
    static const struct {
        const char *steps, *texts[N_TEXTS];
    } wanted[] = {
        {BYTES "," REPLACE, {" a\u4f60  b c", "  a\ufffd b", "\ufffd a", "  a "}},
        {BYTES "," META("always"), {"a\u4f60  b c", " a\ufffd b", "\ufffd a", "a "}},
        {BYTES "," META("never"), {" a\u4f60  b c", "  a\ufffd b", "\ufffd a", "  a "}},
        {BYTES "," FUSE "," REPLACE "," STRIP, {"a\u4f60  b c", " a\ufffd b", "\ufffd a", " a "}},
        {BYTES "," REPLACE "," FUSE "," STRIP, {"a\u4f60  b c", " a\ufffd b", "\ufffd a", " a "}},
        {REPLACE "," BYTES "," FUSE, {" a\u4f60  b\u2581c", "\u2581 a\ufffd b", "\ufffd a", "  a "}},
    };
    static const char *const bad[] = {BYTES "," FUSE "," META("always"), REPLACE "," BYTES "," META("always"),
                                      BYTES "," REPLACE "," REPLACE};

    for (size_t i = 0; i < sizeof wanted / sizeof *wanted + sizeof bad / sizeof *bad; i++) {
        bool is_good = i < sizeof wanted / sizeof *wanted;
        const char *steps = is_good ? wanted[i].steps : bad[i - sizeof wanted / sizeof *wanted];
        char *json = tt_format("{\"type\":\"Sequence\",\"decoders\":[%s]}", steps);
        struct tt_decoder d;
        json_t *parsed = NULL;

        assert_int_equal(tt_json_parse(json, strlen(json), "decoder", &parsed), 0);
        assert_int_equal(tt_decoder_init(&d, parsed, false, "decoder"), is_good ? 0 : TT_EDATA);
        for (int t = 0; is_good && t < N_TEXTS; t++) {
            struct tt_decoding state_of = {0};
            struct tt_text text = {0};

            for (int k = 0; k < MOST && tokens[t][k]; k++)
                tt_decoder_add(&d, &state_of, tokens[t][k], strlen(tokens[t][k]), &text);
            tt_decoder_end(&d, &state_of, &text);
            assert_string_equal(text.text, wanted[i].texts[t]);
            tt_text_release(&text);
            tt_decoding_release(&state_of);
        }
        tt_decoder_release(&d);
        json_decref(parsed);
        tt_free(json);
    }
}

static void other_kinds_are_refused_by_name(void **state)
{
    static const struct {
        const char *patch, *message;
    } bad[] = {
        {"{\"model\": {\"type\": \"WordPiece\"}}", "model 'WordPiece' is not supported"},
        {"{\"model\": {\"type\": \"Unigram\"}}", "model 'Unigram' is not supported"},
        {"{\"model\": {\"type\": \"WordPiece\"}, \"pre_tokenizer\": {\"type\": \"BertPreTokenizer\"}}",
         "model 'WordPiece' is not supported"},
        {"{\"model\": {\"end_of_word_suffix\": \"</w>\"}}", "model.end_of_word_suffix is not supported"},
        {"{\"model\": {\"dropout\": 0.1}}", "model.dropout is not supported"},
        {"{\"model\": {\"merges\": null}}", "model.merges is missing"},
        {"{\"model\": {\"vocab\": {}}}", "model.vocab is empty"},
        {"{\"model\": {\"vocab\": {\"a\": 3, \"b\": 3}}}", "two tokens of model.vocab have the id 3"},
        {"{\"model\": {\"vocab\": {\"a\": \"x\"}}}", "token 'a' has the id -1"},
        {"{\"model\": null}", "it has no model"},
        {"{\"normalizer\": {\"type\": \"Strip\"}}", "normalizer 'Strip' is not supported"},
        {"{\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Lowercase\"}]}}",
         "normalizer 'Lowercase'"},
        {"{\"pre_tokenizer\": null}", "no pre_tokenizer"},
        {"{\"pre_tokenizer\": {\"type\": \"Metaspace\"}}",
         "the replacement of pre_tokenizer Metaspace is not one character"},
        {"{\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": \"last\"}}",
         "pre_tokenizer Metaspace with prepend_scheme 'last' is not supported"},
        {"{\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": \"first\"}, "
         "\"normalizer\": {\"type\": \"NFC\"}}",
         "prepend_scheme 'first' is not supported together with a normalizer"},
        {"{\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"_\"}}",
         "decoder 'ByteLevel' is not supported"},
        {"{\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"_\"}, \"decoder\": null}", "no decoder"},
        {"{\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"_\"}, \"decoder\": {\"type\": \"Sequence\", "
         "\"decoders\": [{\"type\": \"Fuse\"}, {\"type\": \"ByteFallback\"}]}}",
         "decoder 'ByteFallback' is not supported at its place"},
        {"{\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"_\"}, \"model\": {\"unk_token\": \"<u>\"}}",
         "model.unk_token '<u>' is not in model.vocab"},
        {"{\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": \"a\"}, \"content\": \"b\"}}",
         "normalizer Replace is supported with a string"},

        {"{\"pre_tokenizer\": {\"type\": \"Digits\"}}", "pre_tokenizer has no ByteLevel and no Metaspace"},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \"a\"}, \"behavior\": \"Doubled\"}}",
         "Split with behavior 'Doubled'"},
        {"{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(a\"}, \"behavior\": \"Isolated\"}}",
         "invalid regular expression '(a': missing closing parenthesis"},
        {"{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\"}, {\"type\": "
         "\"Digits\"}]}}",
         "pre_tokenizer 'Digits' after ByteLevel"},
        {"{\"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Metaspace\", \"replacement\": "
         "\"_\"}, {\"type\": \"ByteLevel\"}]}}",
         "pre_tokenizer 'ByteLevel' after Metaspace"},
        {"{\"decoder\": {\"type\": \"WordPiece\"}}", "decoder 'WordPiece' is not supported"},
        {"{\"post_processor\": {\"type\": \"BertProcessing\"}}", "post_processor 'BertProcessing' is not supported"},
        {"{\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [" BEGIN ", " BEGIN ", " BEGIN
         ", {\"Sequence\": {\"id\": \"A\"}}]}}",
         "post_processor puts more than two tokens before a text"},
        {"{\"added_tokens\": [{\"id\": 9, \"content\": \"<|end_of_text|>\"}]}",
         "added token '<|end_of_text|>' has the id 9, but model.vocab says 1"},
        {"{\"added_tokens\": {}}", "added_tokens is not an array"},
        {"{\"added_tokens\": [{\"id\": 2048, \"content\": \"xyz\"}, {\"id\": 2050, \"content\": \"yz\"}]}",
         "added token 'yz' has the id 2050, and the `tokenizers` library gives it 2049"},
        {"{\"added_tokens\": [{\"id\": 5, \"content\": \"xyz\"}]}", "gives it 2048"},
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct tt_tokenizer *t = NULL;
        json_t *patch = NULL;
        char *text;

        assert_int_equal(tt_json_parse(bad[i].patch, strlen(bad[i].patch), "patch", &patch), 0);
        if (json_is_null(json_object_get(patch, "model"))) { /* cannot be merged into the model */
            text = tt_strdup("{\"model\": null}");
        } else {
            text = patched(patch, 0);
        }
        assert_int_equal(parse(text, NULL, &t), TT_EDATA);
        assert_null(t);
        if (!strstr(tt_error_message(), bad[i].message) || strncmp(tt_error_message(), "t.json: ", 8) != 0)
            fail_msg("'%s' instead of '%s'", tt_error_message(), bad[i].message);
        tt_free(text);
        json_decref(patch);
    }
    assert_int_equal(tt_error_exit_code(TT_EDATA), 3);
}

static void files_of_other_kinds_are_named(void **state)
{
    char folder[] = "/tmp/titan_tokenizer_XXXXXX";
    struct tt_tokenizer *t = NULL;
    char *path;

    assert_non_null(mkdtemp(folder));
    assert_int_equal(tt_tokenizer_load(folder, &t), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "has no tokenizer.json\nhelp: point model.hf_assets_path"));
    path = tt_format("%s/tokenizer.model", folder);
    assert_int_equal(tt_file_replace(path, "x", 1), 0);
    assert_int_equal(tt_tokenizer_load(folder, &t), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "tokenizer.model (a SentencePiece or tiktoken model)"));
    assert_int_equal(tt_tokenizer_load(path, &t), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "is a SentencePiece or tiktoken model"));
    tt_free(path);
    path = tt_format("%s/tokenizer.json", folder);
    assert_int_equal(tt_file_replace(path, "version https://git-lfs.github.com/spec/v1\n", 43), 0);
    assert_int_equal(tt_tokenizer_load(folder, &t), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "is a Git LFS pointer (43 bytes)"));
    assert_int_equal(tt_file_replace(path, "{\n \"model\": ]}", 14), 0);
    assert_int_equal(tt_tokenizer_load(folder, &t), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "tokenizer.json:2:"));
    tt_free(path);
    assert_int_equal(tt_tokenizer_load("/no/such/folder", &t), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "no such file"));
    assert_int_equal(tt_folder_remove(folder), 0);
}

/* As in the tokenizer of torchtitan's tests, bytes stand for themselves, so ByteLevel finds few of them. */
static void a_zero_character_can_be_a_token(void **state)
{
    static const char model[] =
        "{\"model\": {\"vocab\": {\"\\u0000\": 0, \"a\": 1, \"\\u0000a\": 2, \"b\": 3, \"\\\\x80\": "
        "4}, \"merges\": [[\"\\u0000\", \"a\"]]%s}, \"pre_tokenizer\": %s, \"decoder\": %s}";
    static const char byte_level[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}";
    static const char metaspace[] = "{\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": \"never\"}";
    struct tt_encoder *encoder = NULL;
    struct tt_text text = {0};
    struct tt_ids ids = {0};

    for (int i = 0; i < 2; i++) {
        char *json = tt_format(model, "", i ? metaspace : byte_level, i ? metaspace : byte_level);
        struct tt_tokenizer *t = NULL;

        if (parse(json, NULL, &t) < 0)
            fail_msg("%s", tt_error_message());
        assert_int_equal(tt_encoder_new(t, &encoder), 0);
        ids.n = text.size = 0;
        assert_int_equal(tt_encoder_encode(encoder, "b\0ab", 4, &ids), 0);
        assert_int_equal(ids.n, 3);
        assert_int_equal(ids.id[1], i ? 2 : 1); /* ByteLevel writes a zero byte as another character */
        assert_int_equal(tt_tokenizer_decode(t, (const int32_t[]){0, 1}, 2, &text), 0);
        assert_int_equal(text.size, 2);
        assert_memory_equal(text.text, "\0a", 2);
        tt_encoder_free(encoder);
        tt_tokenizer_free(t);
        tt_free(json);
    }
    tt_ids_release(&ids);
    tt_text_release(&text);
}

static void what_is_not_applied_is_said(void **state)
{
    static const char json[] =
        "{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [], \"byte_fallback\": true}, \"decoder\": "
        "{\"type\": \"Fuse\"}, \"truncation\": {\"max_length\": 8}%s}";
    char *good = tt_format(json, ""), *bad = tt_format(json, ", \"normalizer\": {\"type\": \"Replace\", \"pattern\": "
                                                             "{\"String\": \"a\\u0000b\"}, \"content\": \"x\"}");
    struct tt_tokenizer *t = NULL;

    log_catch();
    assert_int_equal(parse(good, NULL, &t), 0);
    assert_int_equal(caught.notes, 1);
    log_release();
    tt_tokenizer_free(t);
    assert_int_equal(parse(bad, NULL, &t), TT_EDATA); /* a C string would end at the zero character */
    assert_non_null(strstr(tt_error_message(), "normalizer Replace is supported with a string"));
    tt_free(good);
    tt_free(bad);
}

static void maps_keep_what_they_are_given(void **state)
{
    struct tt_strmap map = {0};
    char key[16];

    assert_int_equal(tt_strmap_get(&map, "x", 1, -7), -7);
    for (int i = 0; i < 5000; i++)
        tt_strmap_set(&map, key, (size_t)snprintf(key, sizeof key, "%d", i), i);
    tt_strmap_set(&map, "17", 2, 99);
    tt_strmap_set(&map, "", 0, 5);
    assert_int_equal(map.n, 5001);
    for (int i = 0; i < 5000; i++)
        assert_int_equal(tt_strmap_get(&map, key, (size_t)snprintf(key, sizeof key, "%d", i), -1), i == 17 ? 99 : i);
    assert_int_equal(tt_strmap_get(&map, "", 0, -1), 5);
    assert_int_equal(tt_strmap_get(&map, "5000", 4, -1), -1);
    tt_strmap_clear(&map);
    assert_int_equal(tt_strmap_get(&map, "17", 2, -1), -1);
    tt_strmap_release(&map);
}

static void utf8_streams_in_whole_characters(void **state)
{
    static const struct {
        const char *text;
        size_t size, unfinished;
    } cases[] = {
        {"", 0, 0},         {"abc", 3, 0},          {"a\xc3", 2, 1},         {"\xc3\xa9", 2, 0},
        {"\xe2\x82", 2, 2}, {"\xe2\x82\xac", 3, 0}, {"x\xf0\x9f\x98", 4, 3}, {"\xf0\x9f\x98\x80", 4, 0},
        {"\xf4\x8f", 2, 2}, {"\xed\x9f", 2, 2},     {"\xed\xa0", 2, 0}, /* the character would be a surrogate */
        {"\xe0\x9f", 2, 0},                                             /* overlong */
        {"\xf4\x90", 2, 0},                                             /* beyond U+10FFFF */
        {"\xc0", 1, 0},     {"\x80", 1, 0},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(tt_utf8_unfinished(cases[i].text, cases[i].size), cases[i].unfinished);
}

/* As Python's bytes.decode("utf-8", "replace") and the tokenizers library do it. */
static void utf8_is_repaired_as_by_decoders(void **state)
{
    static const struct {
        const char *text, *repaired;
    } cases[] = {
        {"", ""},
        {"caf\xc3\xa9", "caf\xc3\xa9"},
        {"a\x80z", "a\xef\xbf\xbdz"},
        {"\xe2\x82", "\xef\xbf\xbd"},
        {"\xe2\x82z", "\xef\xbf\xbdz"},
        {"\xf0\x9f\x98\xf0\x9f\x98\x80", "\xef\xbf\xbd\xf0\x9f\x98\x80"},
        {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tt_text out = {0};

        tt_utf8_repair(cases[i].text, strlen(cases[i].text), &out);
        assert_string_equal(out.text ? out.text : "", cases[i].repaired);
        tt_text_release(&out);
    }
}

static void utf8_is_strict(void **state)
{
    static const struct {
        const char *text;
        size_t size;
        int64_t bad;
    } cases[] = {{"", 0, -1},
                 {"abcdefghij", 10, -1},
                 {"\xf0\x9f\x99\x82", 4, -1},
                 {"a\x80", 2, 1},
                 {"ab\xc0\x80", 4, 2},
                 {"\xed\xa0\x80", 3, 0},
                 {"\xf4\x90\x80\x80", 4, 0},
                 {"\xe4\xbd", 2, 0},
                 {"\xe0\x80\x80", 3, 0},
                 {"abcdefgh\xff"
                  "abcdefgh",
                  17, 8},
                 {"\xf4\x8f\xbf\xbf", 4, -1}};

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(tt_utf8_invalid(cases[i].text, cases[i].size), cases[i].bad);
    for (int byte = 0; byte < 256; byte++)
        assert_int_equal(tt_bytelevel_byte(tt_bytelevel_code((uint8_t)byte)), byte);
    assert_int_equal(tt_bytelevel_code(' '), 0x120);
    assert_int_equal(tt_bytelevel_code('\n'), 0x10a);
    assert_int_equal(tt_bytelevel_code(173), 0x143);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(builtin_tokenizer_gives_the_golden_ids),
        cmocka_unit_test(variants_give_the_golden_ids),
        cmocka_unit_test(gpt2_file_gives_the_golden_ids),
        cmocka_unit_test(normalizers_and_spaces_give_the_golden_ids),
        cmocka_unit_test(decoding_gives_the_text_back),
        cmocka_unit_test(threads_share_a_tokenizer),
        cmocka_unit_test(both_formats_of_merges_are_read),
        cmocka_unit_test(equal_pairs_merge_from_the_left),
        cmocka_unit_test(unknown_bytes_become_the_unknown_token),
        cmocka_unit_test(a_caret_matches_at_every_line),
        cmocka_unit_test(a_hostile_pattern_is_given_up_in_a_long_text),
        cmocka_unit_test(added_tokens_do_not_overlap),
        cmocka_unit_test(merged_bytes_are_marked),
        cmocka_unit_test(text_after_removed_text_is_marked),
        cmocka_unit_test(merges_with_spaces_split_where_both_halves_are_tokens),
        cmocka_unit_test(ends_of_documents_come_from_config_or_template),
        cmocka_unit_test(documents_have_both_ends_and_special_tokens_can_be_text),
        cmocka_unit_test(bytes_are_decoded_before_or_after_marks),
        cmocka_unit_test(other_kinds_are_refused_by_name),
        cmocka_unit_test(files_of_other_kinds_are_named),
        cmocka_unit_test(a_zero_character_can_be_a_token),
        cmocka_unit_test(what_is_not_applied_is_said),
        cmocka_unit_test(maps_keep_what_they_are_given),
        cmocka_unit_test(utf8_is_strict),
        cmocka_unit_test(utf8_streams_in_whole_characters),
        cmocka_unit_test(utf8_is_repaired_as_by_decoders),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT
 *
 * The parts of a tokenizer that depend on Unicode: regular expressions and normal forms.
 */
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/os/file.h"
#include "core/tokenizer/pretokenizer.h"
#include "core/tokenizer/regex.h"
#include "tokenizer_help.h"

static void patterns_with_another_meaning_are_refused(void **state)
{
    static const char *const refused[] = {"a{1,3}+", "a{2}?",  "(?i:\u00e4)",   "(?i:[\u00e9-\u00fc])",
                                          "(?i:st)", "(a)\\1", "\\p{Nonsense}", "\\X",
                                          "\\K",     "(?x:a)", "\\g<a>"};
    static const char *const invalid[] = {"\\pL", "[a", "(a", "a)", "[z-a]", "*", "\\x{110000}"};
    struct tt_regex *regex = NULL;

    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        assert_int_equal(tt_regex_new(refused[i], strlen(refused[i]), "p", &regex), TT_EDATA);
        assert_non_null(strstr(tt_error_message(), "p: the pattern uses "));
    }
    for (size_t i = 0; i < sizeof invalid / sizeof invalid[0]; i++) {
        assert_int_equal(tt_regex_new(invalid[i], strlen(invalid[i]), "p", &regex), TT_EDATA);
        assert_non_null(strstr(tt_error_message(), "p: invalid regular expression '"));
    }
}

/* The matches of the library tokenizers 0.23.3, as parts of the text in brackets. */
static void patterns_match_as_in_oniguruma(void **state)
{
    static const struct {
        const char *pattern, *text, *matches;
    } cases[] = {
        {"\\w+", "a_1 \u00b2\u0345 \u2160 \u2075x", "[a_1][\u00b2\u0345][\u2160][x]"},
        {"[[:word:]]", "\u00b2a", "[a]"},
        {"[\\w]|[^\\w!]+", "a!\u00b2-", "[a][\u00b2-]"},
        {"\\s", "a \u180e\u3000b", "[ ][\u3000]"},
        {"[^\\s]+", "ab c", "[ab][c]"},
        {"\\h", "fg1", "[f][1]"},
        {"[a[bc]&&[^b]]", "abc", "[a][c]"},
        {"[^a&&b]", "abc", "[a][b][c]"},
        {"[[:punct:]]", "a+.", "[+][.]"},
        {"\\p{Punct}|\\P{^Lu}", "+.A", "[.][A]"},
        {"(?i:'s|K)", "'S'\u017f\u212ak", "['S]['\u017f][\u212a][k]"},
        {"a(?i)b|c", "aBCac", "[aB][ac]"},
        {"^a|b$", "a\nab\nb", "[a][a][b][b]"},
        {".", "\n\u00e9", "[\u00e9]"},
        {"(?m:.)", "\n", "[\n]"},
        {"a{,2}b", "aaab", "[aab]"},
        {"{a|a{", "{aa{", "[{a][a{]"},
        {"\\bb|\\Bc", "ab bcc", "[b][c][c]"},
        {"[]\\[a]+", "]a[", "[]a[]"},
        {"[-a]|[b-]", "-ab", "[-][a][b]"},
        {"\\x41\\u0042\\x{43}\\103\\.", "ABCC.", "[ABCC.]"},
        {"(?<n>a)(b)?(?#c)(?=c)", "abc", "[ab]"},
        {"\\p{Han}+|\\p{Greek}", "\u4f60\u597d\u03b1a", "[\u4f60\u597d][\u03b1]"},
        {"[\u3040-\u30ff]+", "a\u3042\u30a2\u4e00", "[\u3042\u30a2]"},
        {"(?!a)\\w", "ab", "[b]"},
        {"", "\u00e9", "[][]"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *pattern = cases[i].pattern, *text = cases[i].text;
        struct tt_text found_all = {0};
        struct tt_matcher *matcher = NULL;
        struct tt_regex *regex = NULL;
        struct tt_matches matches;
        size_t begin, end;
        bool found = true;

        if (tt_regex_new(pattern, strlen(pattern), "p", &regex) < 0)
            fail_msg("%s", tt_error_message());
        assert_int_equal(tt_matcher_new(&matcher), 0);
        tt_matches_begin(&matches, matcher, regex, text, strlen(text));
        tt_text_add_bytes(&found_all, "", 0);
        for (;;) {
            assert_int_equal(tt_matches_next(&matches, &found, &begin, &end), 0);
            if (!found)
                break;
            tt_text_add(&found_all, "[%.*s]", (int)(end - begin), text + begin);
        }
        tt_matches_end(&matches);
        if (strcmp(found_all.text, cases[i].matches) != 0)
            fail_msg("%s in %s: %s, wanted %s", pattern, text, found_all.text, cases[i].matches);
        tt_text_release(&found_all);
        tt_matcher_free(matcher);
        tt_regex_free(regex);
    }
}

/* --- where words end beside every kind of character, as checksums of the library tokenizers' output --- */

struct checksum {
    uint32_t crc;
};

static int add_size(void *arg, const char *word, size_t size)
{
    struct checksum *c = arg;

    (void)word;
    c->crc ^= (uint8_t)size;
    for (int bit = 0; bit < 8; bit++)
        c->crc = c->crc & 1 ? c->crc >> 1 ^ 0xedb88320u : c->crc >> 1;
    return 0;
}

static void check_words_beside(const struct tt_pretokenizer *p, struct tt_matcher *matcher, uint32_t code,
                               struct checksum *sum)
{
    struct tt_text text = {0}, scratch = {0};
    char c[8] = "";

    (void)tt_utf8_encode(code, c);
    c[code == 0 ? 1 : strlen(c)] = 0;
    for (const char *place = "c| c|aca|1c1|!cc\nc"; *place; place++) {
        if (*place == 'c') {
            tt_text_add_bytes(&text, c, code ? strlen(c) : 1);
        } else if (*place != '|') {
            tt_text_add_bytes(&text, place, 1);
        }
    }
    tt_matcher_begin(matcher, text.size);
    assert_int_equal(tt_pretokenizer_split(p, matcher, &scratch, text.text, text.size, true, add_size, sum), 0);
    tt_text_release(&text);
    tt_text_release(&scratch);
}

/* tests/interop/unicode_with_tokenizers.py --record made the file. */
static void words_end_where_recorded(void **state)
{
    json_t *rows = NULL, *row, *pattern;
    size_t i, k;

    assert_int_equal(tt_json_load(DATA "word_ends.json", &rows), 0);
    json_array_foreach(rows, i, row)
    {
        json_t *steps = json_array(), *sequence = json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", steps);
        struct checksum sum = {0xffffffffu};
        struct tt_matcher *matcher = NULL;
        struct tt_pretokenizer p;

        json_array_foreach(json_object_get(row, "patterns"), k, pattern)
        {
            (void)json_array_append_new(steps, json_pack("{s:s, s:{s:O}, s:s}", "type", "Split", "pattern", "Regex",
                                                         pattern, "behavior", "Isolated"));
        }
        if (tt_pretokenizer_init(&p, sequence, "words") < 0)
            fail_msg("%s", tt_error_message());
        assert_int_equal(tt_matcher_new(&matcher), 0);
        for (uint32_t code = 0; code < 0x20000; code += code < 0x80 ? 1 : 37)
            if (code < 0xd800 || code >= 0xe000)
                check_words_beside(&p, matcher, code, &sum);
        if ((json_int_t)(sum.crc ^ 0xffffffffu) != json_integer_value(json_object_get(row, "crc32")))
            fail_msg("%s", json_string_value(json_object_get(row, "name")));
        tt_matcher_free(matcher);
        tt_pretokenizer_release(&p);
        json_decref(sequence);
    }
    json_decref(rows);
}

static void expect_normal(const char *type, const char *text, size_t size, const char *want, size_t want_size)
{
    json_t *json = json_pack("{s:s}", "type", type);
    struct tt_text scratch = {0};
    struct tt_normalizer n;
    const char *got;
    size_t got_size;

    assert_int_equal(tt_normalizer_init(&n, json, "n"), 0);
    assert_int_equal(tt_normalizer_apply(&n, &scratch, text, size, &got, &got_size), 0);
    if (got_size != want_size || memcmp(got, want, want_size) != 0)
        fail_msg("%s of %.40s: %.40s", type, text, got);
    tt_text_release(&scratch);
    tt_normalizer_release(&n);
    json_decref(json);
}

static void normal_forms_are_those_of_one_version(void **state)
{
    static const struct {
        const char *type, *text, *want;
    } cases[] = {
        {"NFC", "a\u0301\u0323", "\u1ea1\u0301"},
        {"NFD", "\u1ea5", "a\u0302\u0301"},
        {"NFD", "a\u0301\u0eba", "a\u0301\u0eba"}, /* the mark is of Unicode 12.0; with its class it would come first */
        {"NFC", "\U00011935\U00011930", "\U00011935\U00011930"}, /* Unicode 13.0 composes these two */
        {"NFKC", "\ua7f2\u32ff\ufb01", "\ua7f2\u32fffi"},        /* from 14.0 and 12.1 */
        {"NFC", "e\u0301\U0001fa77e\u0301", "\u00e9\U0001fa77\u00e9"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_normal(cases[i].type, cases[i].text, strlen(cases[i].text), cases[i].want, strlen(cases[i].want));
}

/* Sorting so many marks took utf8proc_map half a minute, and four times as long for twice as many. */
static void many_marks_are_sorted_at_once(void **state)
{
    enum { PAIRS = 100000 };
    struct tt_text text = {0}, want = {0};

    tt_text_add(&text, "a");
    tt_text_add(&want, "\u1ea1");
    for (int i = 0; i < PAIRS; i++)
        tt_text_add_bytes(&text, "\u0301\u0323", 4);
    for (int i = 0; i < 2 * PAIRS - 1; i++)
        tt_text_add_bytes(&want, i < PAIRS - 1 ? "\u0323" : "\u0301", 2);
    expect_normal("NFC", text.text, text.size, want.text, want.size);
    tt_text_release(&text);
    tt_text_release(&want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patterns_with_another_meaning_are_refused),
        cmocka_unit_test(patterns_match_as_in_oniguruma),
        cmocka_unit_test(words_end_where_recorded),
        cmocka_unit_test(normal_forms_are_those_of_one_version),
        cmocka_unit_test(many_marks_are_sorted_at_once),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

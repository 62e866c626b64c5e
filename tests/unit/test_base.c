/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

#include <cmocka.h>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/mem.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/math/exact.h"
#include "core/math/rng.h"
#include "core/os/file.h"
#include "core/os/team.h"

static void error_codes_map_to_exit_codes(void **state)
{
    assert_int_equal(tt_error_exit_code(0), 0);
    assert_int_equal(tt_error_exit_code(TT_EUSAGE), 2);
    assert_int_equal(tt_error_exit_code(TT_EIO), 3);
    assert_int_equal(tt_error_exit_code(TT_ESTOPPED), 75);
}

static void wrapping_puts_context_in_front(void **state)
{
    assert_int_equal(tt_fail(TT_EDATA, "cannot open '%s'", "x"), TT_EDATA);
    assert_int_equal(tt_wrap(TT_EDATA, "loading shard %d", 3), TT_EDATA);
    assert_string_equal(tt_error_message(), "loading shard 3: cannot open 'x'");
}

static void a_message_may_quote_the_one_before(void **state)
{
    (void)tt_fail(TT_EDATA, "'%s' is missing", "x");
    (void)tt_fail(TT_EDATA, "none of %d is intact: %s", 2, tt_error_message());
    assert_string_equal(tt_error_message(), "none of 2 is intact: 'x' is missing");
}

static void exact_sum_does_not_depend_on_order(void **state)
{
    static double terms[1000];
    struct tt_rng rng = tt_rng_make(7, "terms");
    struct tt_exact forward = {0}, backward = {0}, halves[2] = {{{0}, 0}, {{0}, 0}};

    for (int i = 0; i < 1000; i++)
        terms[i] = ldexp(tt_rng_normal(&rng, (uint64_t)i, 0.0), (i * 37) % 400 - 200);
    for (int i = 0; i < 1000; i++) {
        tt_exact_add(&forward, terms[i]);
        tt_exact_add(&backward, terms[999 - i]);
        tt_exact_add(&halves[i % 2], terms[i]);
    }
    tt_exact_normalize(&halves[0]);
    tt_exact_normalize(&halves[1]);
    tt_exact_merge(&halves[0], &halves[1]);
    assert_true(tt_exact_value(&forward) == tt_exact_value(&backward));
    assert_true(tt_exact_value(&forward) == tt_exact_value(&halves[0]));
}

static void exact_sum_cancels_exactly(void **state)
{
    struct tt_exact sum = {0};

    tt_exact_add(&sum, 1e300);
    tt_exact_add(&sum, 3.25);
    tt_exact_add(&sum, -1e300);
    tt_exact_add(&sum, 0x1p-1074);
    tt_exact_add(&sum, -0x1p-1074);
    assert_true(tt_exact_value(&sum) == 3.25);
    tt_exact_add(&sum, -3.25);
    tt_exact_add(&sum, 0x3p-1074);
    assert_true(tt_exact_value(&sum) == 0x3p-1074);
    tt_exact_add(&sum, (double)INFINITY);
    assert_true(isnan(tt_exact_value(&sum)));
}

static void normal_numbers_have_the_right_moments(void **state)
{
    struct tt_rng rng = tt_rng_make(42, "layers.0.attention.wq.weight");
    double sum = 0.0, squares = 0.0, largest = 0.0;
    int n = 200000;

    for (int i = 0; i < n; i++) {
        double x = tt_rng_normal(&rng, (uint64_t)i, 0.0), cut = tt_rng_normal(&rng, (uint64_t)i, 2.0);

        sum += x;
        squares += x * x;
        largest = fmax(largest, fabs(cut));
    }
    assert_true(fabs(sum / n) < 0.01);
    assert_true(fabs(squares / n - 1.0) < 0.01);
    assert_true(largest <= 2.0 && largest > 1.99);
}

static void a_permutation_has_every_index_once(void **state)
{
    struct tt_rng rng = tt_rng_make(1, "epoch 0");
    int64_t order[100];
    int seen[100] = {0};

    tt_rng_permutation(&rng, 100, order);
    for (int i = 0; i < 100; i++)
        seen[order[i]]++;
    for (int i = 0; i < 100; i++)
        assert_int_equal(seen[i], 1);
}

static void crc32c_matches_the_standard(void **state)
{
    assert_int_equal(tt_crc32c(0, "123456789", 9), 0xe3069283u);
    assert_int_equal(tt_crc32c(tt_crc32c(0, "1234", 4), "56789", 5), 0xe3069283u);
}

/* Long texts are hashed by different code than short ones. */
static void crc32c_of_a_text_is_that_of_its_pieces(void **state)
{
    enum { SIZE = 40000 };
    static uint8_t bytes[SIZE];
    struct tt_rng rng = tt_rng_make(1, "bytes");
    uint32_t crc = 0;

    for (int i = 0; i < SIZE; i++)
        bytes[i] = (uint8_t)tt_rng_bits(&rng, (uint64_t)i);
    for (int size = 1, at = 1; at <= SIZE; size = size % 100 + 1, at += size) {
        crc = tt_crc32c(crc, bytes + at - size, (size_t)size);
        assert_int_equal(tt_crc32c(0, bytes, (size_t)at), crc);
        assert_int_equal(tt_crc32c_portable(0, bytes, (size_t)at), crc);
    }
}

static void nearest_word_is_found(void **state)
{
    static const char *const keys[] = {"steps", "seq_len", "max_norm"};

    assert_string_equal(tt_text_nearest("step", keys, 3), "steps");
    assert_string_equal(tt_text_nearest("seqlen", keys, 3), "seq_len");
    assert_null(tt_text_nearest("warmup", keys, 3));
    assert_int_equal(tt_text_distance("ab", "ba"), 1);
}

static void numbers_are_written_for_people(void **state)
{
    char buf[32];
    int64_t bytes = 0;

    assert_string_equal(tt_text_count(buf, sizeof buf, 1234567), "1,234,567");
    assert_string_equal(tt_text_count(buf, sizeof buf, -12), "-12");
    assert_string_equal(tt_text_bytes(buf, sizeof buf, 1536.0), "1.50 KiB");
    assert_string_equal(tt_text_duration(buf, sizeof buf, 0.0), "0 ms");
    assert_string_equal(tt_text_duration(buf, sizeof buf, 0.00012), "0.12 ms");
    assert_string_equal(tt_text_duration(buf, sizeof buf, 0.41), "410 ms");
    assert_string_equal(tt_text_duration(buf, sizeof buf, 25.14), "25.1 s");
    assert_string_equal(tt_text_duration(buf, sizeof buf, 59.96), "1 min 0 s");
    assert_string_equal(tt_text_duration(buf, sizeof buf, 3599.4), "59 min 59 s");
    assert_string_equal(tt_text_duration(buf, sizeof buf, 15367.0), "4 h 16 min");
    assert_string_equal(tt_text_duration(buf, sizeof buf, 3.0 * 86400.0), "3.0 days");
    assert_string_equal(tt_text_duration(buf, sizeof buf, 1e9), "31.7 years");
    assert_string_equal(tt_text_duration(buf, sizeof buf, 1.0 / 0.0), "inf years");
    assert_string_equal(tt_text_duration(buf, sizeof buf, -1.0), "unknown");
    assert_true(tt_text_to_bytes("80GiB", &bytes) && bytes == (int64_t)80 << 30);
    assert_true(tt_text_to_bytes("1.5k", &bytes) && bytes == 1536);
    assert_false(tt_text_to_bytes("12 parsecs", &bytes));
}

static void a_real_is_as_short_as_it_can_be(void **state)
{
    static const struct {
        double x;
        const char *text;
    } cases[] = {{0.0, "0.0"},
                 {-0.0, "-0.0"},
                 {0.0008, "0.0008"},
                 {1e-4, "0.0001"},
                 {1e-5, "1e-5"},
                 {1.5e-8, "1.5e-8"},
                 {0.1, "0.1"},
                 {-2.5, "-2.5"},
                 {1.0, "1.0"},
                 {17.0, "17.0"},
                 {500000.0, "500000.0"},
                 {1e6, "1e6"},
                 {1234567.0, "1234567.0"},
                 {1e12, "1e12"},
                 {1.0 / 3.0, "0.3333333333333333"},
                 {0.1 + 0.2, "0.30000000000000004"},
                 {5e-324, "5e-324"},
                 {1e300, "1e300"},
                 {9007199254740993.0, "9007199254740992.0"},
                 {1.7976931348623157e308, "1.7976931348623157e308"}};
    uint64_t bits = 88172645463325252U; /* xorshift */
    char buf[32];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(tt_text_real(buf, sizeof buf, cases[i].x), cases[i].text);
    for (int i = 0; i < 20000; i++) {
        double x;

        bits ^= bits << 13;
        bits ^= bits >> 7;
        bits ^= bits << 17;
        memcpy(&x, &bits, sizeof x);
        if (isfinite(x))
            assert_true(strtod(tt_text_real(buf, sizeof buf, x), NULL) == x);
        x = (double)(int64_t)(bits >> 30) / 65536.0;
        assert_true(strtod(tt_text_real(buf, sizeof buf, x), NULL) == x);
    }
}

static void a_name_is_found_that_was_meant(void **state)
{
    static const char *const machines[] = {"a100-40", "a100-80", "h100-sxm", "h100-pcie", "mi300x"};
    static const char *const models[] = {"llama3", "qwen3", "gpt2", "deepseek_v3", "gpt_oss"};
    static const char *const flavors[] = {"debugmodel", "8B", "70B", "405B", "0.6B"};

    assert_string_equal(tt_text_meant("H100", machines, 5), "h100-sxm");
    assert_string_equal(tt_text_meant("nvidia-h100-pcie-80gb", machines, 5), "h100-pcie");
    assert_string_equal(tt_text_meant("A100-80GB", machines, 5), "a100-80");
    assert_string_equal(tt_text_meant("mi300", machines, 5), "mi300x");
    assert_null(tt_text_meant("tpu-v5p", machines, 5));
    assert_string_equal(tt_text_meant("meta-llama/Llama-3.1-8B", models, 5), "llama3");
    assert_string_equal(tt_text_meant("Qwen/Qwen3-0.6B", models, 5), "qwen3");
    assert_string_equal(tt_text_meant("deepseek-v3", models, 5), "deepseek_v3");
    assert_string_equal(tt_text_meant("llama", models, 5), "llama3");
    assert_null(tt_text_meant("bert", models, 5));
    assert_string_equal(tt_text_meant("llama3_8b", flavors, 5), "8B");
    assert_string_equal(tt_text_meant("debug", flavors, 5), "debugmodel");
    assert_null(tt_text_meant("", flavors, 5));
}

/* The first and last characters of each length, and byte sequences that are not UTF-8 (RFC 3629, section 4). */
/* The text after it was made printable once and twice, and in XML. */
static void expect_shown(const char *text, size_t size, const char *wanted, const char *wanted_xml)
{
    struct tt_text shown = {0}, again = {0}, xml = {0};
    char buf[64];

    tt_text_add_shown(&shown, text, size);
    assert_string_equal(shown.text, wanted);
    tt_text_add_shown(&again, shown.text, shown.size);
    assert_string_equal(again.text, wanted);
    tt_shown(buf, sizeof buf, text, size);
    assert_string_equal(buf, wanted);
    if (wanted_xml) {
        tt_text_add_xml(&xml, text);
        assert_string_equal(xml.text, wanted_xml);
    }
    tt_text_release(&shown);
    tt_text_release(&again);
    tt_text_release(&xml);
}

static void text_of_others_does_not_steer_a_terminal(void **state)
{
    char buf[8];

    expect_shown("", 0, "", NULL);
    expect_shown("a\nb \xc3\xa4 \xf0\x9f\xa9\xb7", 11, "a\nb \xc3\xa4 \xf0\x9f\xa9\xb7", NULL);
    expect_shown("\x1b[2J\r\t\x7f", 7, "\\u001b[2J\\u000d\\u0009\\u007f", NULL);
    expect_shown("a\0b", 3, "a\\u0000b", NULL);
    expect_shown("\xc2\x9b"
                 "1m",
                 4, "\\u009b1m", NULL); /* C1 */
    expect_shown("\xe2\x80\xae"
                 "gpj",
                 6, "\\u202egpj", NULL); /* from right to left */
    expect_shown("\xe2\x81\xa6"
                 "x",
                 4, "\\u2066x", NULL);               /* an isolate */
    expect_shown("\xff\xc3", 2, "\\xff\\xc3", NULL); /* not UTF-8 */
    expect_shown("<a b=\"c\">&\x1b", 11, "<a b=\"c\">&\\u001b", "&lt;a b=&quot;c&quot;&gt;&amp;\\u001b");
    tt_shown(buf, sizeof buf,
             "ab\x1b"
             "c",
             4);
    assert_string_equal(buf, "ab"); /* not half of an escape */
    (void)tt_fail(TT_EDATA, "tensor '%s'", "\x1b]0;x\a");
    assert_string_equal(tt_error_message(), "tensor '\\u001b]0;x\\u0007'");
    (void)tt_wrap(TT_EDATA, "%s", "\x1b");
    assert_string_equal(tt_error_message(), "\\u001b: tensor '\\u001b]0;x\\u0007'");
    (void)tt_error_add_hint(TT_EDATA, "%s", "\x9b");
    assert_non_null(strstr(tt_error_message(), "\nhelp: \\x9b"));
}

static void utf8_characters_are_decoded_and_encoded(void **state)
{
    static const uint32_t codes[] = {0, 0x7f, 0x80, 0x7ff, 0x800, 0xd7ff, 0xe000, 0xffff, 0x10000, 0x10ffff};
    static const char *const none[] = {"\x80",
                                       "\xc1\xbf",
                                       "\xe0\x9f\xbf",
                                       "\xed\xa0\x80",
                                       "\xe2\x82",
                                       "\xf0\x8f\xbf\xbf",
                                       "\xf4\x90\x80\x80",
                                       "\xf5\x80\x80\x80",
                                       "\xf0\x9f\x98",
                                       "\xc3"};
    uint32_t code;
    char buf[4];

    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        int n = tt_utf8_encode(codes[i], buf);

        assert_int_equal(n, 1 + (codes[i] > 0x7f) + (codes[i] > 0x7ff) + (codes[i] > 0xffff));
        assert_int_equal(tt_utf8_decode(buf, (size_t)n, &code), n);
        assert_int_equal(code, codes[i]);
        assert_int_equal(tt_utf8_decode(buf, (size_t)n - 1, &code), 0);
    }
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        assert_int_equal(tt_utf8_decode(none[i], strlen(none[i]), &code), 0);
}

static void count_tile(void *arg, int64_t tile, int worker)
{
    (void)worker;
    ((int *)arg)[tile]++;
}

/* Long and short runs, with workers that spin and workers that sleep, and with more threads than cores. */
static void team_runs_every_tile_once(void **state)
{
    enum { RUNS = 2000, MOST = 300 };
    static int count[MOST];

    for (int ranks = 1; ranks <= 1000; ranks *= 1000) {
        struct tt_team *team = NULL;
        int want[MOST] = {0};

        assert_int_equal(tt_team_new(4, &team), 0);
        tt_team_share(team, ranks);
        memset(count, 0, sizeof count);
        for (int run = 0; run < RUNS; run++) {
            int n = 1 + (run * 7919) % MOST;

            for (int i = 0; i < n; i++)
                want[i]++;
            tt_team_run(team, n, count_tile, count);
            if (run % 500 == 0)
                (void)usleep(2000); /* long enough for the workers to fall asleep */
            assert_memory_equal(count, want, sizeof want);
        }
        tt_team_free(team);
    }
}

static void a_missing_file_is_an_error_that_names_a_similar_one(void **state)
{
    char folder[] = "/tmp/titan-test-XXXXXX";
    char *path, *text = NULL, *typo;
    size_t size = 0;

    assert_non_null(mkdtemp(folder));
    path = tt_format("%s/config.yaml", folder);
    typo = tt_format("%s/confg.yaml", folder);
    assert_int_equal(tt_file_replace(path, "hello", 5), 0);
    assert_int_equal(tt_file_read(path, &text, &size), 0);
    assert_int_equal(size, 5);
    assert_string_equal(text, "hello");
    tt_free(text);
    assert_int_equal(tt_file_read(typo, &text, &size), TT_EDATA);
    assert_non_null(strstr(tt_error_message(), "did you mean"));
    assert_int_equal(tt_folder_remove(folder), 0);
    assert_int_equal(access(folder, F_OK), -1);
    tt_free(path);
    tt_free(typo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_codes_map_to_exit_codes),
        cmocka_unit_test(wrapping_puts_context_in_front),
        cmocka_unit_test(a_message_may_quote_the_one_before),
        cmocka_unit_test(exact_sum_does_not_depend_on_order),
        cmocka_unit_test(exact_sum_cancels_exactly),
        cmocka_unit_test(normal_numbers_have_the_right_moments),
        cmocka_unit_test(a_permutation_has_every_index_once),
        cmocka_unit_test(crc32c_matches_the_standard),
        cmocka_unit_test(crc32c_of_a_text_is_that_of_its_pieces),
        cmocka_unit_test(nearest_word_is_found),
        cmocka_unit_test(numbers_are_written_for_people),
        cmocka_unit_test(a_real_is_as_short_as_it_can_be),
        cmocka_unit_test(a_name_is_found_that_was_meant),
        cmocka_unit_test(text_of_others_does_not_steer_a_terminal),
        cmocka_unit_test(utf8_characters_are_decoded_and_encoded),
        cmocka_unit_test(team_runs_every_tile_once),
        cmocka_unit_test(a_missing_file_is_an_error_that_names_a_similar_one),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

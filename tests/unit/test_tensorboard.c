/* SPDX-License-Identifier: MIT
 *
 * Event records, compared with bytes that TensorBoard's own reader accepts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "trainer/run/tensorboard.h"

static void assert_hex(const uint8_t *bytes, size_t n, const char *want)
{
    char hex[512] = "";

    assert_true(2 * n < sizeof hex);
    for (size_t i = 0; i < n; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", bytes[i]);
    assert_string_equal(hex, want);
}

static void version_record_has_the_known_bytes(void **state)
{
    uint8_t record[128];
    size_t n = tt_tensorboard_record(1700000000.0, 0, NULL, 0, record, sizeof record);

    assert_hex(record, n, "1800000000000000a37f4b220900000040fc54d9411a0d627261696e2e4576656e743a32eced8f9d");
}

static void scalar_record_has_the_known_bytes(void **state)
{
    const struct tt_scalar loss = {"loss", 8.0};
    uint8_t record[128];
    size_t n = tt_tensorboard_record(1700000000.0, 1, &loss, 1, record, sizeof record);

    assert_hex(record, n, "1a00000000000000129bd82d0900000040fc54d94110012a0d0a0b0a046c6f737315000000414c6981e3");
}

static void large_steps_take_several_bytes(void **state)
{
    const struct tt_scalar loss = {"loss", 8.0};
    uint8_t record[128];
    size_t n = tt_tensorboard_record(1700000000.0, 300, &loss, 1, record, sizeof record);

    assert_int_equal(n, 12 + 27 + 4);
    assert_int_equal(record[12 + 9], 0x10);
    assert_int_equal(record[12 + 10], 0xac); /* 300 = 2 * 128 + 44 */
    assert_int_equal(record[12 + 11], 0x02);
}

/* TensorBoard's own classes decoded the event: its tag, plug-in and tensor are as in PyTorch's add_text. */
static void text_record_has_the_known_bytes(void **state)
{
    uint8_t record[160];
    size_t n = tt_tensorboard_text_record(1700000000.0, 1, "sample/text_summary", "And", record, sizeof record);

    assert_hex(record, n,
               "3d000000000000006049f1ec0900000040fc54d94110012a300a2e0a1373616d706c652f746578745f73756d6d617279"
               "420d08071204120208014203416e644a080a060a0474657874c47887d8");
}

/* The size of the longest text that is kept, and of a longer one, which is cut before a character of several bytes. */
static void a_long_text_is_cut_between_characters(void **state)
{
    static char text[TT_BOARD_TEXT + 8];
    static uint8_t record[TT_BOARD_TEXT + 1024];
    size_t whole, cut;

    memset(text, 'a', TT_BOARD_TEXT);
    whole = tt_tensorboard_text_record(0.0, 1, "sample", text, record, sizeof record);
    assert_true(whole > TT_BOARD_TEXT);
    memcpy(text + TT_BOARD_TEXT - 1, "\u20ac", sizeof "\u20ac");
    cut = tt_tensorboard_text_record(0.0, 1, "sample", text, record, sizeof record);
    assert_int_equal(cut, whole - 1);
}

static void a_record_that_does_not_fit_is_not_written(void **state)
{
    const struct tt_scalar loss = {"loss", 8.0};
    uint8_t record[41];

    assert_int_equal(tt_tensorboard_record(0.0, 1, &loss, 1, record, sizeof record), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version_record_has_the_known_bytes),
        cmocka_unit_test(scalar_record_has_the_known_bytes),
        cmocka_unit_test(large_steps_take_several_bytes),
        cmocka_unit_test(text_record_has_the_known_bytes),
        cmocka_unit_test(a_long_text_is_cut_between_characters),
        cmocka_unit_test(a_record_that_does_not_fit_is_not_written),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

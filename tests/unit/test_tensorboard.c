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

#include "cli/run/records/tensorboard.h"

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
        cmocka_unit_test(a_record_that_does_not_fit_is_not_written),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

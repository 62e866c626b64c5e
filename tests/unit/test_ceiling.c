/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "parallel/planner/ceiling.h"

/* Every range of arrays of every small size, compared with a loop. */
static void every_range_has_its_largest_value(void **state)
{
    int64_t values[23];
    uint32_t random = 7;

    for (int n = 1; n <= 23; n++) {
        struct tt_ceiling *ceiling;

        for (int i = 0; i < n; i++) {
            random = random * 1664525u + 1013904223u;
            values[i] = (int64_t)(random >> 16) - 30000;
        }
        ceiling = tt_ceiling_new(values, n);
        for (int from = 0; from < n; from++) {
            int64_t most = values[from];

            for (int until = from + 1; until <= n; until++) {
                most = values[until - 1] > most ? values[until - 1] : most;
                assert_int_equal(tt_ceiling_most(ceiling, from, until), most);
            }
        }
        tt_ceiling_free(ceiling);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_range_has_its_largest_value)};

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("ceiling", tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT
 *
 * Text that fits a terminal.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/run/screen.h"

static void put(const char *text, int columns, int indent, const char *expect)
{
    char *found = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&found, &size);

    assert_non_null(file);
    tt_screen_put(file, text, columns, indent);
    assert_int_equal(fclose(file), 0);
    assert_string_equal(found, expect);
    free(found);
}

static void long_lines_are_broken_at_spaces(void **state)
{
    put("  data     one two three\nshort\n", 0, 11, "  data     one two three\nshort\n");
    put("  data     one two three four\nshort\n", 20, 11,
        "  data     one two\n           three\n           four\nshort\n");
    put("exactly eight\n", 13, 2, "exactly eight\n");
    put("exactly eight\n", 12, 2, "exactly\n  eight\n");
}

static void long_words_stay_whole(void **state)
{
    put("abcdefghijklmnopqrstuvwxyz0123456789abcdefghij\n", 40, 2, "abcdefghijklmnopqrstuvwxyz0123456789abcdefghij\n");
    put("no newline at the end", 40, 2, "no newline at the end\n");
    put("", 40, 2, "");
}

static void the_environment_says_how_wide_it_is(void **state)
{
    assert_int_equal(setenv("TITAN_COLUMNS", "97", 1), 0);
    assert_int_equal(tt_screen_columns(), 97);
    assert_int_equal(setenv("TITAN_COLUMNS", "7", 1), 0);
    assert_int_equal(tt_screen_columns(), 0);
    assert_int_equal(setenv("TITAN_COLUMNS", "x", 1), 0);
    assert_int_equal(tt_screen_columns(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_lines_are_broken_at_spaces),
        cmocka_unit_test(long_words_stay_whole),
        cmocka_unit_test(the_environment_says_how_wide_it_is),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

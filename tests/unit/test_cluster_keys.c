/* SPDX-License-Identifier: MIT
 *
 * Every key of torchtitan's configurations is known to predictions about clusters.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "estimate/formats/formats.h"

static void every_key_of_torchtitan_has_a_class(void **state)
{
    FILE *f = fopen(TT_SOURCE_DIR "/tests/cli/torchtitan/all_keys.txt", "r");
    char key[128];
    int n = 0;

    assert_non_null(f);
    for (; fscanf(f, "%127s", key) == 1; n++) {
        if (tt_cluster_recipe_class(key) == TT_RECIPE_UNKNOWN)
            print_message("# torchtitan.c does not know %s\n", key);
        assert_int_not_equal(tt_cluster_recipe_class(key), TT_RECIPE_UNKNOWN);
    }
    (void)fclose(f);
    assert_true(n > 200);
}

static void keys_that_nobody_knows_are_told_apart(void **state)
{
    assert_int_equal(tt_cluster_recipe_class("training.seq_len"), TT_RECIPE_KNOWN);
    assert_int_equal(tt_cluster_recipe_class("optimizer.name"), TT_RECIPE_KNOWN);
    assert_int_equal(tt_cluster_recipe_class("checkpoint.export_dtype"), TT_RECIPE_FREE);
    assert_int_equal(tt_cluster_recipe_class("training.new_key"), TT_RECIPE_COSTLY);
    assert_int_equal(tt_cluster_recipe_class("optimizer.cpu_offload"), TT_RECIPE_COSTLY);
    assert_int_equal(tt_cluster_recipe_class("lora.rank"), TT_RECIPE_COSTLY);
    assert_int_equal(tt_cluster_recipe_class("mood.colour"), TT_RECIPE_UNKNOWN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_of_torchtitan_has_a_class),
        cmocka_unit_test(keys_that_nobody_knows_are_told_apart),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/math/tree.h"

enum { MOST_LEAVES = 64, TEXT_BYTES = 1024 };

static const char *const orders[] = {
    [1] = "0",
    [2] = "(0+1)",
    [3] = "((0+1)+2)",
    [4] = "((0+1)+(2+3))",
    [5] = "(((0+1)+(2+3))+4)",
    [6] = "(((0+1)+(2+3))+(4+5))",
    [7] = "(((0+1)+(2+3))+((4+5)+6))",
    [8] = "(((0+1)+(2+3))+((4+5)+(6+7)))",
    [9] = "((((0+1)+(2+3))+((4+5)+(6+7)))+8)",
};

static void add_text(char *into, const char *from)
{
    char sum[TEXT_BYTES];

    assert_true(snprintf(sum, sizeof sum, "(%s+%s)", into, from) < TEXT_BYTES);
    memcpy(into, sum, sizeof sum);
}

static void walk_text(int n, char *ret_text)
{
    static char leaves[MOST_LEAVES][TEXT_BYTES];
    struct tt_tree_walk walk = tt_tree_walk_make(n);
    int64_t into, from;
    int additions = 0;

    for (int i = 0; i < n; i++)
        (void)snprintf(leaves[i], TEXT_BYTES, "%d", i);
    for (; tt_tree_walk_next(&walk, &into, &from); additions++)
        add_text(leaves[into], leaves[from]);
    assert_int_equal(additions, n - 1);
    memcpy(ret_text, leaves[0], TEXT_BYTES);
}

static void stack_text(int n, char *ret_text)
{
    static char stack[MOST_LEAVES][TEXT_BYTES];
    int depth = 0, most = 0;

    for (int i = 0; i < n; i++) {
        (void)snprintf(stack[depth++], TEXT_BYTES, "%d", i);
        most = depth > most ? depth : most;
        for (int carry = tt_tree_carries(i); carry > 0; carry--, depth--)
            add_text(stack[depth - 2], stack[depth - 1]);
    }
    for (; depth > 1; depth--)
        add_text(stack[depth - 2], stack[depth - 1]);
    assert_int_equal(most, tt_tree_stack_depth(n));
    memcpy(ret_text, stack[0], TEXT_BYTES);
}

static void neighbours_are_added_first(void **state)
{
    char text[TEXT_BYTES];

    for (int n = 1; n <= 9; n++) {
        walk_text(n, text);
        assert_string_equal(text, orders[n]);
    }
}

static void stack_gives_the_same_order(void **state)
{
    char walked[TEXT_BYTES], stacked[TEXT_BYTES];

    for (int n = 1; n <= MOST_LEAVES; n++) {
        walk_text(n, walked);
        stack_text(n, stacked);
        assert_string_equal(walked, stacked);
    }
}

/* Sums of groups of 4 leaves, added as a tree, are the same expression as one tree over all leaves. */
static void groups_of_a_power_of_two_are_subtrees(void **state)
{
    char whole[TEXT_BYTES], groups[TEXT_BYTES], expanded[TEXT_BYTES] = "";

    for (int n_groups = 1; n_groups <= 7; n_groups++) {
        char *end = expanded;

        walk_text(4 * n_groups, whole);
        walk_text(n_groups, groups);
        for (const char *c = groups; *c; c++) {
            int first = 4 * (*c - '0');

            if (*c >= '0' && *c <= '9')
                end += snprintf(end, (size_t)(expanded + sizeof expanded - end), "((%d+%d)+(%d+%d))", first, first + 1,
                                first + 2, first + 3);
            else
                *end++ = *c;
        }
        *end = 0;
        assert_string_equal(whole, expanded);
    }
}

static void fold_adds_in_this_order(void **state)
{
    /* In float32, 2^24 + 1 = 2^24, but 2^24 + (1 + 1) is exact. */
    float a[] = {16777216.0F}, b[] = {1.0F}, c[] = {1.0F}, d[] = {1.0F};
    float *leaves[] = {a, b, c, d};

    tt_tree_fold(leaves, 4, 1);
    assert_true(a[0] == 16777218.0F); /* (2^24 + 1) + (1 + 1); added one by one, the sum stays 2^24 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_are_added_first),
        cmocka_unit_test(stack_gives_the_same_order),
        cmocka_unit_test(groups_of_a_power_of_two_are_subtrees),
        cmocka_unit_test(fold_adds_in_this_order),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("tree", tests, NULL, NULL);
}

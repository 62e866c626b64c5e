/* SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/math/tree.h"
#include "tests/help/tree.h"

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

/* The lowest leaf of a sum. */
static int first_leaf(const char *text)
{
    int leaf = 0;

    for (text += strspn(text, "("); *text >= '0' && *text <= '9'; text++)
        leaf = 10 * leaf + (*text - '0');
    return leaf;
}

/* The leaves in the order of `order`; *ret_held: the largest number of sums held at once. */
static void put_text(int n, const int *order, char *ret_text, int *ret_held)
{
    static char sums[MOST_LEAVES][TEXT_BYTES];
    int nodes[2 * MOST_LEAVES], neighbours[TT_TREE_LEVELS], held = 0;

    *ret_held = 0;
    for (int i = 0; i < tt_tree_nodes(n); i++)
        nodes[i] = TT_TREE_NONE;
    for (int i = 0; i < n; i++) {
        int leaf = order[i], sum = leaf, found;

        assert_int_equal(tt_tree_root(nodes), TT_TREE_NONE);
        (void)snprintf(sums[leaf], TEXT_BYTES, "%d", leaf);
        held++;
        *ret_held = held > *ret_held ? held : *ret_held;
        found = tt_tree_put(nodes, n, leaf, leaf, neighbours);
        for (int k = 0; k < found; sum = neighbours[k++]) {
            char a[TEXT_BYTES], *to = sums[neighbours[k]];

            memcpy(a, sums[sum], sizeof a); /* a + b is b + a, and the text has the lower leaves first */
            if (first_leaf(a) < first_leaf(to)) {
                add_text(a, to);
                memcpy(to, a, sizeof a);
            } else {
                add_text(to, a);
            }
        }
        held -= found;
    }
    memcpy(ret_text, sums[tt_tree_root(nodes)], TEXT_BYTES);
}

static void leaves_may_come_in_any_order(void **state)
{
    char walked[TEXT_BYTES], text[TEXT_BYTES];
    int order[MOST_LEAVES], held, levels = 0; /* levels: floor(log2 n) + 1 */

    for (int n = 1; n <= MOST_LEAVES; n++) {
        bool is_power = (n & (n - 1)) == 0;

        levels += is_power;
        walk_text(n, walked);
        for (int way = 0; way < 12; way++) {
            for (int i = 0; i < n; i++)
                order[i] = way == 1 ? n - 1 - i : i;
            for (int64_t i = n - 1, r = way; way > 1 && i > 0; i--) { /* shuffled, differently each time */
                int64_t with;
                int leaf = order[i];

                r = (r * 1103515 + 12345) & 0xffffff;
                with = r / 64 % (i + 1);
                order[i] = order[with];
                order[with] = leaf;
            }
            put_text(n, order, text, &held);
            assert_string_equal(text, walked);
            if (way < 2) /* including the current leaf; backwards, an odd one at the end waits for all others */
                assert_true(held <= levels + (way == 1 && !is_power));
        }
    }
}

static void fold_adds_in_this_order(void **state)
{
    /* In float32, 2^24 + 1 = 2^24, but 2^24 + (1 + 1) is exact. */
    float a[] = {16777216.0F}, b[] = {1.0F}, c[] = {1.0F}, d[] = {1.0F};
    float *leaves[] = {a, b, c, d};

    fold_tree(leaves, 4, 1);
    assert_true(a[0] == 16777218.0F); /* (2^24 + 1) + (1 + 1); added one by one, the sum stays 2^24 */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_are_added_first),
        cmocka_unit_test(stack_gives_the_same_order),
        cmocka_unit_test(groups_of_a_power_of_two_are_subtrees),
        cmocka_unit_test(leaves_may_come_in_any_order),
        cmocka_unit_test(fold_adds_in_this_order),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("tree", tests, NULL, NULL);
}

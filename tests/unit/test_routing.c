/* SPDX-License-Identifier: MIT
 *
 * Rounds of rows for experts that ranks share: for any numbers of rows, every row goes once to the rank of its expert,
 * into a window that is large enough for the largest pair, and both sides of a message list the same bytes. The rows of
 * ranks that have blocks of the same tokens arrive grain by grain, one block after the other.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/program/routing.h"

enum { RANKS = 4, EXPERTS = 8, OWN = EXPERTS / RANKS, GRAINS = 2, ENDS = EXPERTS * GRAINS, MOST = 64 };

/* The rows of each rank for each expert and grain. */
typedef int rows_of_all[RANKS][ENDS];

/* How the tokens of the ranks are divided into blocks and grains. */
struct shape {
    int blocks, grains;
};

static const struct shape whole = {1, 1};

/* The rows that have arrived, by rank, by expert and grain, and by number within these. */
struct seen {
    bool row[RANKS][ENDS][MOST];
    int n, of_rank[RANKS]; /* rows; of_rank: the rows that it has taken */
};

static void fill(struct tt_routing *r, rows_of_all rows, int ends)
{
    for (int rank = 0; rank < RANKS; rank++)
        for (int i = 0, end = 0; i < ends; i++)
            r->ends[rank * ends + i] = end += rows[rank][i];
}

/* The segments for one rank in a list. */
static const struct tt_segment *segments_of(const struct tt_swap_list *list, int rank)
{
    const struct tt_segment *first = list->segments;

    for (int q = 0; q < rank; q++)
        first += list->n[q];
    return first;
}

/* Checks the rows of a pair in the order in which the node reads them: block by block. */
static void expect_pair(const struct tt_routing *r, struct shape shape, rows_of_all rows, const char *window, int to,
                        int pair, struct seen *seen)
{
    int sources = RANKS / shape.blocks * shape.grains, source = pair % sources, first = r->pairs[r->n_pairs];
    int end = (to * OWN + pair / sources) * shape.grains + source % shape.grains;
    int at = pair > first ? r->pairs[pair - 1] : 0;

    for (int block = 0; block < shape.blocks; block++) {
        int from = source / shape.grains * shape.blocks + block;

        for (int i = 0; i < rows[from][end]; i++, at++, seen->n++) {
            assert_int_equal(window[at], 1 + from * ENDS + end);
            assert_false(seen->row[from][end][i]);
            seen->row[from][end][i] = true;
        }
    }
    assert_int_equal(at, r->pairs[pair]);
}

/* Rows are one byte, which identifies them. */
static void expect_round(struct tt_routing routing[RANKS], struct shape shape, rows_of_all in,
                         char own[RANKS][ENDS * MOST], char window[RANKS][ENDS * MOST], int64_t limit,
                         struct seen *seen)
{
    for (int rank = 0; rank < RANKS; rank++) {
        struct tt_routed_rows rows = {own[rank], window[rank], 1};

        tt_routing_list(&routing[rank], &rows, 1);
        memset(window[rank], 0, ENDS * MOST);
    }
    for (int to = 0; to < RANKS; to++) {
        const struct tt_routing *r = &routing[to];
        int64_t in_window = 0;

        for (int from = 0; from < RANKS; from++) {
            const struct tt_segment *given = segments_of(&routing[from].there, to),
                                    *taken = segments_of(&r->back, from);

            assert_int_equal(routing[from].there.n[to], r->back.n[from]);
            for (int i = 0; i < r->back.n[from]; i++) {
                assert_int_equal(given[i].bytes, taken[i].bytes);
                memcpy(taken[i].data, given[i].data, taken[i].bytes);
                in_window += (int64_t)taken[i].bytes;
            }
        }
        assert_true(in_window <= limit);
        assert_int_equal(r->pairs[r->n_pairs + 2], seen->of_rank[to]);
        seen->of_rank[to] += (int)in_window;
        for (int pair = r->pairs[r->n_pairs]; pair < r->pairs[r->n_pairs + 1]; pair++)
            expect_pair(r, shape, in, window[to], to, pair, seen);
    }
}

/* Returns the number of rounds. */
static int route(rows_of_all rows, struct shape shape, int64_t limit)
{
    struct tt_routing routing[RANKS];
    static char own[RANKS][ENDS * MOST], window[RANKS][ENDS * MOST];
    static struct seen seen;
    int rounds = 0, total = 0, ends = EXPERTS * shape.grains;

    memset(&seen, 0, sizeof seen);
    for (int rank = 0; rank < RANKS; rank++) {
        const struct tt_routing_ranks ranks = {RANKS, rank, EXPERTS, shape.blocks, shape.grains};
        char *at = own[rank];

        tt_routing_init(&routing[rank], ends, RANKS);
        fill(&routing[rank], rows, ends);
        tt_routing_begin(&routing[rank], &ranks, limit);
        for (int i = 0; i < ends; at += rows[rank][i], total += rows[rank][i], i++)
            memset(at, 1 + rank * ENDS + i, (size_t)rows[rank][i]);
    }
    for (bool more = true; more; rounds += more) {
        for (int rank = 0; rank < RANKS; rank++) {
            bool again = tt_routing_next(&routing[rank]);

            assert_true(rank == 0 || again == more);
            more = again;
        }
        if (more)
            expect_round(routing, shape, rows, own, window, limit, &seen);
    }
    assert_int_equal(seen.n, total);
    for (int rank = 0; rank < RANKS; rank++)
        tt_routing_release(&routing[rank]);
    return rounds;
}

static void even_rows_take_one_round(void **state)
{
    rows_of_all rows;

    for (int i = 0; i < RANKS * ENDS; i++)
        rows[i / ENDS][i % ENDS] = 5;
    assert_int_equal(route(rows, whole, 5 * EXPERTS), 1);
    assert_int_equal(route(rows, whole, 5 * EXPERTS - 1), 2);
    assert_int_equal(route(rows, whole, 5), EXPERTS);
    assert_int_equal(route(rows, (struct shape){4, 1}, 20), OWN);
    assert_int_equal(route(rows, (struct shape){2, 2}, 5 * ENDS), 1);
    assert_int_equal(route(rows, (struct shape){2, 2}, 10), ENDS / 2);
}

static void no_rows_take_one_round(void **state)
{
    rows_of_all rows = {{0}};

    assert_int_equal(route(rows, whole, 1), 1);
    assert_int_equal(route(rows, (struct shape){2, 2}, 1), 1);
}

static void all_rows_of_one_expert_take_as_many_rounds_as_windows(void **state)
{
    rows_of_all rows = {{0}};

    for (int rank = 0; rank < RANKS; rank++)
        rows[rank][5] = 8;
    assert_int_equal(route(rows, whole, 8), 4);
    assert_int_equal(route(rows, whole, 17), 2);
    assert_int_equal(route(rows, whole, 32), 1);
    assert_int_equal(route(rows, (struct shape){2, 1}, 17), 2);
    assert_int_equal(route(rows, (struct shape){4, 1}, 32), 1);
}

static void any_rows_go_to_their_experts(void **state)
{
    const struct shape shapes[] = {{1, 1}, {1, 2}, {2, 1}, {2, 2}, {4, 1}, {4, 2}};
    unsigned seed = 1;

    for (int n = 0; n < 200; n++) {
        struct shape shape = shapes[n % 6];
        rows_of_all rows;

        for (int i = 0; i < RANKS * ENDS; i++) {
            seed = seed * 1664525U + 1013904223U;
            rows[i / ENDS][i % ENDS] = seed >> 28 < 6 ? 0 : (int)(seed >> 16) % 20;
        }
        (void)route(rows, shape, 20 * shape.blocks + n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(even_rows_take_one_round),
        cmocka_unit_test(no_rows_take_one_round),
        cmocka_unit_test(all_rows_of_one_expert_take_as_many_rounds_as_windows),
        cmocka_unit_test(any_rows_go_to_their_experts),
    };

    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("routing", tests, NULL, NULL);
}

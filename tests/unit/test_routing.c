/* SPDX-License-Identifier: MIT
 *
 * Rounds of rows for experts that ranks share: whatever the numbers of rows, every row goes once to the rank of its
 * expert, into a window that is large enough for the largest pair, and both sides of a message list the same bytes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/mem.h"
#include "core/program/routing.h"

enum { RANKS = 4, EXPERTS = 8, OWN = EXPERTS / RANKS, MOST = 64 };

/* Rows of each rank for each expert. */
typedef int rows_of_all[RANKS][EXPERTS];

/* What has arrived: the row `begin + i` of a rank's rows for an expert is named by these. */
struct seen {
    bool row[RANKS][EXPERTS][MOST];
    int n;
};

static void fill(struct tt_routing *r, rows_of_all rows)
{
    for (int rank = 0; rank < RANKS; rank++)
        for (int expert = 0, end = 0; expert < EXPERTS; expert++)
            r->ends[rank * EXPERTS + expert] = end += rows[rank][expert];
}

/* The segments for one rank in a list. */
static const struct tt_segment *segments_of(const struct tt_swap_list *list, int rank)
{
    const struct tt_segment *first = list->segments;

    for (int q = 0; q < rank; q++)
        first += list->n[q];
    return first;
}

/* Rows have one byte, so the address of a row on its rank tells which it is. */
static void expect_round(struct tt_routing routing[RANKS], char own[RANKS][EXPERTS * MOST],
                         char window[RANKS][EXPERTS * MOST], int64_t limit, struct seen *seen)
{
    for (int rank = 0; rank < RANKS; rank++) {
        struct tt_routed_rows rows = {own[rank], window[rank], 1};

        tt_routing_list(&routing[rank], &rows, 1);
        memset(window[rank], 0, EXPERTS * MOST);
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
        for (int pair = r->pairs[EXPERTS]; pair < r->pairs[EXPERTS + 1]; pair++) { /* as the node reads it */
            int begin = pair > r->pairs[EXPERTS] ? r->pairs[pair - 1] : 0;

            for (int i = begin; i < r->pairs[pair]; i++, seen->n++) {
                int expert = to * OWN + pair / RANKS, from = pair % RANKS;
                bool *row = &seen->row[from][expert][i - begin];

                assert_int_equal(window[to][i], 1 + from * EXPERTS + expert);
                assert_false(*row);
                *row = true;
            }
        }
    }
}

/* Returns the number of rounds. */
static int route(rows_of_all rows, int64_t limit)
{
    struct tt_routing routing[RANKS];
    static char own[RANKS][EXPERTS * MOST], window[RANKS][EXPERTS * MOST];
    static struct seen seen;
    int rounds = 0, total = 0;

    memset(&seen, 0, sizeof seen);
    for (int rank = 0; rank < RANKS; rank++) {
        char *at = own[rank];

        tt_routing_init(&routing[rank], EXPERTS, RANKS);
        fill(&routing[rank], rows);
        tt_routing_begin(&routing[rank], RANKS, rank, EXPERTS, limit);
        for (int expert = 0; expert < EXPERTS; at += rows[rank][expert], total += rows[rank][expert], expert++)
            memset(at, 1 + rank * EXPERTS + expert, (size_t)rows[rank][expert]);
    }
    for (bool more = true; more; rounds += more) {
        for (int rank = 0; rank < RANKS; rank++) {
            bool again = tt_routing_next(&routing[rank]);

            assert_true(rank == 0 || again == more);
            more = again;
        }
        if (more)
            expect_round(routing, own, window, limit, &seen);
    }
    assert_int_equal(seen.n, total);
    for (int rank = 0; rank < RANKS; rank++)
        tt_routing_release(&routing[rank]);
    return rounds;
}

static void even_rows_take_one_round(void **state)
{
    rows_of_all rows;

    for (int i = 0; i < RANKS * EXPERTS; i++)
        rows[i / EXPERTS][i % EXPERTS] = 5;
    assert_int_equal(route(rows, 5 * EXPERTS), 1);
    assert_int_equal(route(rows, 5 * EXPERTS - 1), 2);
    assert_int_equal(route(rows, 5), EXPERTS);
}

static void no_rows_take_one_round(void **state)
{
    rows_of_all rows = {{0}};

    assert_int_equal(route(rows, 1), 1);
}

static void all_rows_of_one_expert_take_as_many_rounds_as_windows(void **state)
{
    rows_of_all rows = {{0}};

    for (int rank = 0; rank < RANKS; rank++)
        rows[rank][5] = 8;
    assert_int_equal(route(rows, 8), 4);
    assert_int_equal(route(rows, 17), 2);
    assert_int_equal(route(rows, 32), 1);
}

static void any_rows_go_to_their_experts(void **state)
{
    unsigned seed = 1;

    for (int n = 0; n < 200; n++) {
        rows_of_all rows;

        for (int i = 0; i < RANKS * EXPERTS; i++) {
            seed = seed * 1664525U + 1013904223U;
            rows[i / EXPERTS][i % EXPERTS] = seed >> 28 < 6 ? 0 : (int)(seed >> 16) % 20;
        }
        (void)route(rows, 20 + n);
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

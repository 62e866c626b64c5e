/* SPDX-License-Identifier: MIT
 *
 * Prints the orders of all pipeline schedules for up to 8 ranks, 4 stages per rank and 4 microbatches per rank. A line
 * contains the schedule, ranks, stages, microbatches, the rank, and its turns: "1F1B 2 2 2 1 1F0 1B0 1F1 1B1".
 */
#include <stdio.h>

#include "parallel/pipeline/schedule.h"

enum { MAX_RANKS = 8, MAX_CHUNKS = 4 };

static void print_order(const struct tt_pipeline *p, int rank)
{
    const struct tt_order *order = &p->orders[rank];

    (void)printf("%s %d %d %d %d", p->schedule->name, p->ranks, p->n_stages, p->microbatches, rank);
    for (int t = 0; t < order->n; t++)
        (void)printf(" %d%c%d", order->turns[t].stage, tt_pipeline_letter(p, &order->turns[t]),
                     order->turns[t].microbatch);
    (void)printf("\n");
}

/* Skips numbers that the schedule does not allow. */
static void print_schedule(enum tt_pipeline_schedule schedule, int ranks)
{
    for (int chunks = 1; chunks <= MAX_CHUNKS; chunks++)
        for (int n = 1; n <= 4 * ranks; n++) {
            struct tt_pipeline *p = NULL;

            if (tt_pipeline_new(schedule, NULL, ranks, ranks * chunks, n, &p) < 0)
                continue;
            for (int rank = 0; rank < ranks; rank++)
                print_order(p, rank);
            tt_pipeline_free(p);
        }
}

int main(void)
{
    for (int s = 0; s < TT_PP_CSV_SINGLE; s++)
        for (int ranks = 2; ranks <= MAX_RANKS; ranks++)
            print_schedule((enum tt_pipeline_schedule)s, ranks);
    return 0;
}

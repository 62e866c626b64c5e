/* SPDX-License-Identifier: MIT */
#ifndef TT_PROGRAM_ROUTING_H
#define TT_PROGRAM_ROUTING_H

#include <stdbool.h>
#include <stdint.h>

#include "core/comm/comm.h"

/**
 * Who gives which rows to whom when ranks share experts. A pair is an expert of one rank and a rank with rows for it.
 * Every rank knows the number of rows of every pair, so all compute the same rounds without further agreement: in each
 * round every rank takes its next pairs, in ascending order of (expert, source), as long as their rows fit its window.
 * A pair is never cut. Nothing is allocated after tt_routing_new.
 */

/* Rows that travel, and come back after the window has been used. */
struct tt_routed_rows {
    char *own;     /* this rank's rows, sorted by expert */
    char *window;  /* rows that this rank takes */
    int64_t bytes; /* of a row */
};

/* Data for each rank, or from it: the segments of rank q follow those of the ranks before it. */
struct tt_swap_list {
    struct tt_segment *segments;
    int *n; /* [rank] */
};

struct tt_routing {
    int ranks, index; /* of the ranks that share experts, this one's place */
    int experts;      /* of all ranks */
    int64_t window;   /* the most rows of a round */
    int32_t *ends;    /* [rank][expert] the end of its rows for the expert, which begin at that of the one before it */
    int *first, *end; /* [rank] its pairs of this round: expert of the rank * ranks + source */
    int32_t
        *pairs; /* what the node reads (core/ops/experts/pairs.h): ends of pairs in this rank's window, first, end */
    struct tt_swap_list there, back; /* towards the experts: what this rank gives and takes */
};

/** Room for as many experts and ranks; *routing is the caller's (tt_routing_release). */
void tt_routing_init(struct tt_routing *routing, int most_experts, int most_ranks);
void tt_routing_release(struct tt_routing *routing);

/** Begins with the first round; `ends` of all ranks are there. window: at least the rows of the largest pair. */
void tt_routing_begin(struct tt_routing *routing, int ranks, int index, int experts, int64_t window);

/** Finds the next round; false: no rank has any pair left. */
bool tt_routing_next(struct tt_routing *routing);

/**
 * Lists what this rank gives to the ranks of the experts in this round (`there`), and what it takes into its window
 * (`back`), for n kinds of rows. Both sides have the same segments. On the way back the two change roles. What stays on
 * this rank is in the lists too.
 */
void tt_routing_list(struct tt_routing *routing, const struct tt_routed_rows *rows, int n);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef TT_PROGRAM_ROUTING_H
#define TT_PROGRAM_ROUTING_H

#include <stdbool.h>
#include <stdint.h>

#include "core/comm/comm.h"

/**
 * Who gives which rows to whom when ranks share experts. A pair is an expert of one rank and a source of rows for it: a
 * grain of the tokens of a rank, or of ranks that have blocks of the same tokens and are neighbours. The rows of a pair
 * are those of its blocks, one after the other. Every rank knows the number of rows of every pair, so all compute the
 * same rounds without further agreement: in each round every rank takes its next pairs, in ascending order of (expert,
 * source), as long as their rows fit its window. A pair is never cut. Nothing is allocated after tt_routing_init.
 */

/* Ranks that share experts. */
struct tt_routing_ranks {
    int n, index; /* this one's place */
    int experts;  /* of all ranks */
    int blocks;   /* neighbours that have the same tokens; divides n */
    int grains;   /* of these tokens */
};

/* Rows that travel, and come back after the window has been used. */
struct tt_routed_rows {
    char *own;     /* this rank's rows, sorted by expert and grain */
    char *window;  /* rows that this rank takes */
    int64_t bytes; /* of a row */
};

/* Data for each rank, or from it: the segments of rank q follow those of the ranks before it. */
struct tt_swap_list {
    struct tt_segment *segments;
    int *n; /* [rank] */
};

struct tt_routing {
    struct tt_routing_ranks ranks;
    int sources;      /* pairs of an expert */
    int n_pairs;      /* of each rank */
    int64_t window;   /* the most rows of a round */
    int32_t *ends;    /* [rank][expert][grain] the end of its rows for them, which begin at the end before it */
    int *first, *end; /* [rank] its pairs of this round: expert of the rank * sources + source */
    int64_t rows;     /* of this rank's pairs up to the end of this round */
    int32_t *pairs; /* what the node reads (core/ops/experts/pairs.h): ends of pairs in this rank's window, first, end,
                       * rows before this round */
    struct tt_swap_list there, back; /* towards the experts: what this rank gives and takes */
};

/** Room for as many ends of a rank (experts times grains) and ranks; *routing is the caller's (tt_routing_release). */
void tt_routing_init(struct tt_routing *routing, int most_ends, int most_ranks);
void tt_routing_release(struct tt_routing *routing);

/** The ends that each rank has. */
static inline int tt_routing_ends(const struct tt_routing_ranks *ranks)
{
    return ranks->experts * ranks->grains;
}

/** Begins with the first round; `ends` of all ranks are there. window: at least the rows of the largest pair. */
void tt_routing_begin(struct tt_routing *routing, const struct tt_routing_ranks *ranks, int64_t window);

/** Finds the next round; false: no rank has any pair left. */
bool tt_routing_next(struct tt_routing *routing);

/**
 * Lists what this rank gives to the ranks of the experts in this round (`there`), and what it takes into its window
 * (`back`), for n kinds of rows. Both sides have the same segments. On the way back the two change roles. What stays on
 * this rank is in the lists too.
 */
void tt_routing_list(struct tt_routing *routing, const struct tt_routed_rows *rows, int n);

#endif

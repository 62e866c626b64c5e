/* SPDX-License-Identifier: MIT */
#ifndef TT_PROGRAM_ROUTING_H
#define TT_PROGRAM_ROUTING_H

#include <stdbool.h>
#include <stdint.h>

#include "core/comm/comm.h"

/**
 * The routes of rows between ranks that share experts. A pair consists of an expert and a source of rows for it: a
 * grain of the tokens of one rank, or of neighbouring ranks with blocks of the same tokens. The rows of a pair are the
 * rows of its blocks, one block after another. Every rank knows the number of rows of every pair, so all ranks compute
 * the same rounds without further messages: in each round every rank takes its next pairs, in ascending order of
 * (expert, source), as long as their rows fit in its window. A pair is never split. Nothing is allocated after
 * tt_routing_init.
 */

/* Ranks that share experts. */
struct tt_routing_ranks {
    int n, index; /* this rank's place */
    int experts;  /* of all ranks */
    int blocks;   /* number of neighbours with blocks of the same tokens; divides n */
    int grains;   /* grains of these tokens */
};

/* Rows that travel to the experts, and return after the node has run on the window. */
struct tt_routed_rows {
    char *own;     /* this rank's rows, sorted by expert and grain */
    char *window;  /* rows that this rank receives */
    int64_t bytes; /* bytes of a row */
};

/* Data for each rank, or from each rank: the segments for rank q follow those for the ranks before it. */
struct tt_swap_list {
    struct tt_segment *segments;
    int *n; /* [rank] */
};

/* Collectives, as the executor uses them. parallel/engine/transfer.c implements them over a tt_comm. On one rank all
 * members are NULL. */
struct tt_exchange {
    void *ctx;
    int (*begin)(void *ctx, int instr); /* instr is a TT_BEGIN */
    int (*wait)(void *ctx, int instr);  /* waits for the collective that `begin` began with this instr */
    int (*progress)(void *ctx);         /* advances the collectives that are under way; never blocks */
    void (*poll)(void *ctx);            /* the same, called between tiles; progress returns its failure */
    /* exchanges rows among the ranks that share experts, and waits; rows that stay on their rank are not exchanged */
    int (*swap_begin)(void *ctx, const struct tt_swap_list *give, const struct tt_swap_list *take);
    int (*swap_wait)(void *ctx);
    int (*sum)(void *ctx, int64_t *words, int n); /* adds over all ranks; for each term, only one rank sets the words */
    int (*most)(void *ctx, double *value);        /* the maximum over all ranks */
};

struct tt_routing {
    struct tt_routing_ranks ranks;
    int sources;      /* number of pairs of an expert */
    int n_pairs;      /* number of pairs of each rank */
    int64_t window;   /* the most rows of a rank in a round */
    int32_t *ends;    /* [rank][expert][grain] the end of the rank's rows for them, which begin at the previous end */
    int *first, *end; /* [rank] its pairs in this round: expert of the rank * sources + source */
    int64_t rows;     /* rows of this rank's pairs up to the end of this round */
    /* Input of the node (core/ops/experts/experts.h): ends of pairs in this rank's window, first, end, rows before this
     * round. */
    int32_t *pairs;
    struct tt_swap_list there, back; /* towards the experts: the rows that this rank sends and receives */
};

/** Allocates room for at most this many ranks and ends per rank (experts x grains). Free it with tt_routing_release. */
void tt_routing_init(struct tt_routing *routing, int most_ends, int most_ranks);
void tt_routing_release(struct tt_routing *routing);

/** The number of ends of a rank. */
static inline int tt_routing_ends(const struct tt_routing_ranks *ranks)
{
    return ranks->experts * ranks->grains;
}

/** Begins the first round; `ends` of all ranks must be set. window: at least the rows of the largest pair. */
void tt_routing_begin(struct tt_routing *routing, const struct tt_routing_ranks *ranks, int64_t window);

/** Finds the next round; false: no rank has pairs left. */
bool tt_routing_next(struct tt_routing *routing);

/**
 * Lists the rows that this rank sends to the ranks of the experts in this round (`there`), and the rows that it
 * receives into its window (`back`), for n kinds of rows. Both sides have the same segments. On the way back, the two
 * lists change roles. The lists include the rows that stay on this rank.
 */
void tt_routing_list(struct tt_routing *routing, const struct tt_routed_rows *rows, int n);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_PIPELINE_CROSSINGS_H
#define TT_PARALLEL_PIPELINE_CROSSINGS_H

#include "core/program/order.h"
#include "core/program/program.h"

/**
 * When a rank of a pipeline sends and receives what crosses the boundaries of its stages. Every scheduler adds these
 * transfers to what it writes.
 *
 * A receive begins one turn before the turn that needs it, so that it overlaps that turn's work, and its memory is not
 * taken earlier; but the first ones of a run begin with it, so that nothing is on its way between two runs. A send
 * begins after the turn that makes the values. It is awaited when something arrives from the receiver that was made
 * after the receive began, since then the wait cannot be a wait for what this rank does later. If nothing does, it is
 * awaited at the end.
 */

/* The orders of all ranks of a pipeline for the same microbatches; turns have the numbers of stages in the model. */
struct tt_peers {
    const struct tt_order *orders; /* [ranks] */
    int ranks, rank;               /* rank: this one */
    int run_microbatches;          /* of a run, all of which end on every rank before its next run */
    const int *rank_of_stage;      /* [n_stages] */
    int n_stages;
};

/* Begins or awaits a transfer. */
struct tt_crossing {
    int turn;   /* the number of turns in the order: after all of them */
    bool after; /* at the end of that turn; else at its beginning */
    bool waits; /* else it begins */
    enum tt_purpose purpose;
    int microbatch, stage;
};

struct tt_crossings {
    struct tt_crossing *items; /* in the order in which they come */
    int n, cap;
};

/**
 * The transfers of an order on the stages of a rank, whose order in `peers` has the same turns. The caller's
 * (tt_crossings_release).
 */
struct tt_crossings tt_crossings_make(const struct tt_order *order, const struct tt_stage *stages,
                                      const struct tt_peers *peers);
void tt_crossings_release(struct tt_crossings *crossings);

/**
 * Adds to the schedule those from item `next` on that come before the nodes of a turn, or at the end if turn is the
 * number of turns. Returns the first item that is left.
 */
int tt_crossings_add(const struct tt_crossings *crossings, int next, int turn, struct tt_schedule *schedule);

#endif

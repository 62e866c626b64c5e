/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_PIPELINE_CROSSINGS_H
#define TT_PARALLEL_PIPELINE_CROSSINGS_H

#include "core/program/order.h"
#include "core/program/program.h"

/**
 * The sends and receives of a pipeline rank at the boundaries of its stages. Every scheduler adds these transfers to
 * its schedule.
 *
 * A receive begins one turn before the turn that needs it: early enough to overlap that turn, and no earlier, to save
 * memory. The first receives of a run begin with the run, so that nothing is under way between two runs. A send begins
 * after the turn that computes the values. Wait for a send only where its completion cannot depend on this rank's own
 * later work: at the first arrival from the receiver that the receiver made after it began to receive. If there is no
 * such arrival, wait at the end.
 */

/* The orders of all ranks of a pipeline for the same microbatches; their turns use the stage numbers of the model. */
struct tt_peers {
    const struct tt_order *orders; /* [ranks] */
    int ranks, rank;               /* rank: this rank */
    int run_microbatches;          /* microbatches of one run; every rank ends a run before it begins the next one */
    const int *rank_of_stage;      /* [n_stages] */
    int n_stages;
};

/* The beginning of a transfer, or the wait for it. */
struct tt_crossing {
    int turn;   /* its turn in the order, or the number of turns: after all of them */
    bool after; /* at the end of that turn; otherwise at its beginning */
    bool waits; /* it is a wait; otherwise a beginning */
    enum tt_purpose purpose;
    int microbatch, stage;
};

struct tt_crossings {
    struct tt_crossing *items; /* in the order of execution */
    int n, cap;
};

/**
 * The transfers of a rank's order of compute. `order` names stages by their index among this rank's, and the rank's
 * order in `peers` has the same turns. Free it with tt_crossings_release.
 */
struct tt_crossings tt_crossings_make(const struct tt_order *order, const struct tt_stage *stages,
                                      const struct tt_peers *peers);
void tt_crossings_release(struct tt_crossings *crossings);

/**
 * Adds to the schedule the items, starting at `next`, that come before the nodes of a turn (the number of turns stands
 * for the end). Returns the first remaining item.
 */
int tt_crossings_add(const struct tt_crossings *crossings, int next, int turn, struct tt_schedule *schedule);

#endif

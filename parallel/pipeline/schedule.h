/* SPDX-License-Identifier: MIT */
#ifndef TT_PIPELINE_SCHEDULE_H
#define TT_PIPELINE_SCHEDULE_H

#include "core/program/order.h"

/**
 * Schedules of pipelines: for every rank the order in which it computes the microbatches of one run through its
 * stages. Orders are torch's, turn by turn. A schedule is a pure function of numbers; what is sent between ranks
 * follows from the orders.
 */

enum tt_pipeline_schedule {
#define TT_PIPELINE_SCHEDULE(id, row) TT_PP_##id,
#include "parallel/pipeline/schedules.def"
#undef TT_PIPELINE_SCHEDULE
    TT_PP_SCHEDULES
};

/* A pipeline on all of its ranks. */
struct tt_pipeline {
    const struct tt_pipeline_row *schedule;
    int ranks, n_stages, microbatches;
    int *rank_of_stage;      /* [n_stages] */
    struct tt_order *orders; /* [ranks]: the turns of the rank's stages, with the numbers of all stages */
    bool *weights_apart;     /* [n_stages * microbatches]: the weight part is a turn of its own */
};

struct tt_pipeline_row {
    const char *name; /* torchtitan's */
    bool multi;       /* a rank may have several stages */
    bool v;           /* rank r has stages r and 2 ranks - 1 - r; otherwise r, r + ranks, r + 2 ranks, ... */
    bool splits;      /* some backwards are two turns, with the weight part apart */
    /* Fails if the schedule cannot have these numbers; NULL: it can have any. */
    int (*check)(int ranks, int microbatches);
    /* Adds all turns of one rank to its order; NULL: the orders are in a CSV file, which also places the stages. */
    void (*generate)(struct tt_pipeline *pipeline, int rank);
};

const struct tt_pipeline_row *tt_pipeline_row(enum tt_pipeline_schedule schedule);

/** The schedule with this name; TT_EUSAGE lists all names. */
int tt_pipeline_find(const char *name, enum tt_pipeline_schedule *ret_schedule) TT_MUST_CHECK;

/**
 * Makes the orders of a run and checks them (tt_pipeline_check).
 *   csv_path      of the schedules that are in a file, which is read here; otherwise NULL
 *   n_stages      a multiple of ranks
 *   microbatches  of the run, at least 1
 * *ret_pipeline is the caller's (tt_pipeline_free). Errors: TT_EUSAGE naming what the schedule cannot do and what
 * works, or that the file is missing or has no such schedule, with line and cell (tt_pipeline_csv_parse); TT_EIO.
 */
int tt_pipeline_new(enum tt_pipeline_schedule schedule, const char *csv_path, int ranks, int n_stages, int microbatches,
                    struct tt_pipeline **ret_pipeline) TT_MUST_CHECK;
void tt_pipeline_free(struct tt_pipeline *pipeline);

/** The schedule's name, as the configuration has it. */
const char *tt_pipeline_row_name(const struct tt_pipeline *pipeline);

/**
 * Whether every stage computes in the order of the microbatches, in forward and in backward, so that gradients can be
 * carried from one to the next.
 */
bool tt_pipeline_ascends(const struct tt_pipeline *pipeline);

/** What torch calls a turn: 'F' forward, 'B' backward, 'I' its input part, 'W' its weight part. */
char tt_pipeline_letter(const struct tt_pipeline *pipeline, const struct tt_turn *turn);

/**
 * The order of a run without backward on one rank of a pipeline, as in validation: as many microbatches at a time as
 * there are ranks go through the rank's stages, from the first to the last. The caller's (tt_order_release).
 */
struct tt_order tt_pipeline_forward_order(const struct tt_pipeline *pipeline, int rank, int microbatches);

#endif

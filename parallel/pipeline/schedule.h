/* SPDX-License-Identifier: MIT */
#ifndef TT_PIPELINE_SCHEDULE_H
#define TT_PIPELINE_SCHEDULE_H

#include "core/base/text.h"
#include "core/program/order.h"
#include "core/program/program.h"

/**
 * Pipeline schedules: for every rank the order in which it computes the microbatches of one run through its stages. The
 * orders equal torch's, turn by turn. A schedule is a pure function of its numbers; the transfers between ranks follow
 * from the orders.
 */

enum tt_pipeline_schedule {
#define TT_PIPELINE_SCHEDULE(id, row) TT_PP_##id,
#include "parallel/pipeline/schedules.def"
#undef TT_PIPELINE_SCHEDULE
    TT_PP_SCHEDULES
};

/* A pipeline, with the orders of all its ranks. */
struct tt_pipeline {
    const struct tt_pipeline_row *schedule;
    int ranks, n_stages, microbatches;
    int *rank_of_stage;      /* [n_stages] */
    struct tt_order *orders; /* [ranks]: the turns of the rank's stages, with the numbers of all stages */
    bool *weights_apart;     /* [n_stages * microbatches]: the weight part is a separate turn */
};

struct tt_lane; /* see orders.c: the order of a rank, under construction */

struct tt_pipeline_row {
    const char *name; /* torchtitan's */
    bool multi;       /* a rank may have several stages */
    bool v;           /* rank r has stages r and 2 ranks - 1 - r; otherwise r, r + ranks, r + 2 ranks, ... */
    bool splits;      /* some backwards are two turns, with a separate weight part */
    /* Fails if the schedule does not support these numbers. NULL: it supports all. */
    int (*check)(const struct tt_pipeline_row *row, int ranks, int microbatches);
    /* Adds all turns of a rank; NULL: the orders are in a CSV file, which also places the stages. */
    void (*generate)(struct tt_lane *lane);
};

const struct tt_pipeline_row *tt_pipeline_row(enum tt_pipeline_schedule schedule);

/** The schedule with this name; TT_EUSAGE lists all names. */
int tt_pipeline_find(const char *name, enum tt_pipeline_schedule *ret_schedule) TT_MUST_CHECK;

/**
 * Makes the orders of a run and checks them (tt_pipeline_check).
 *   csv_path      for a schedule in a CSV file, which is read here; otherwise NULL
 *   n_stages      a multiple of ranks
 *   microbatches  of the run, at least 1
 * The caller frees *ret_pipeline with tt_pipeline_free. Errors: TT_EUSAGE, which says what the schedule cannot do and
 * what works, or that the file is missing, or that it does not contain such a schedule, with line and cell
 * (tt_pipeline_csv_parse); TT_EIO.
 */
int tt_pipeline_new(enum tt_pipeline_schedule schedule, const char *csv_path, int ranks, int n_stages, int microbatches,
                    struct tt_pipeline **ret_pipeline) TT_MUST_CHECK;
void tt_pipeline_free(struct tt_pipeline *pipeline);

/** Fills in the order of a rank by the row of the pipeline's schedule. */
void tt_pipeline_generate(struct tt_pipeline *pipeline, int rank);

/**
 * Whether every stage takes the microbatches in ascending order, in forward and in backward, so that gradients can be
 * carried from one microbatch to the next.
 */
bool tt_pipeline_ascends(const struct tt_pipeline *pipeline);

/** Torch's letter for a turn: 'F' forward, 'B' backward, 'I' its input part, 'W' its weight part. */
char tt_pipeline_letter(const struct tt_pipeline *pipeline, const struct tt_turn *turn);

/**
 * The order of a run without backward on one rank of a pipeline, as in validation: microbatches, in groups of one per
 * rank, go through the rank's stages from the first to the last. Free it with tt_order_release.
 */
struct tt_order tt_pipeline_forward_order(const struct tt_pipeline *pipeline, int rank, int microbatches);

/**
 * Runs a pipeline with a clock. Ranks compute their turns in order, each turn as soon as the turns that it depends on
 * are done: a forward needs the forward of the previous stage, a backward its own forward and the backward of the next
 * stage, a weight part its backward. Nothing is measured, so all ranks get the same result.
 */

/* Seconds that one microbatch takes in a stage. */
struct tt_stage_times {
    double forward;
    double input;  /* the part of backward for which other stages wait, if the weight part is a separate turn */
    double weight; /* the weight part */
    double full;   /* backward in one turn */
};

struct tt_pipeline_times {
    const struct tt_stage_times *stages; /* [n_stages] */
    double send;                         /* from the end of a turn until its result has reached another rank */
};

/* A turn: orders[rank].turns[turn]. */
struct tt_turn_at {
    int rank, turn;
};

struct tt_pipeline_run {
    int ranks;
    double makespan;        /* from the first beginning to the last end */
    double *busy;           /* [ranks] seconds that the rank computes */
    double *bubble;         /* [ranks] makespan - busy */
    double bubble_share;    /* sum of bubble / (ranks * makespan) */
    int *peak_input;        /* [ranks] the most microbatches between forward and (the input part of) backward */
    int *peak_weight;       /* [ranks] the same, between forward and the end of backward with its weight part */
    struct tt_span **spans; /* [ranks][orders[rank].n] when turns begin and end */
    /* all turns of all ranks, sorted by beginning, then by rank. If no turn takes 0 seconds, each turn comes after all
     * turns that it depends on. */
    struct tt_turn_at *turns;
    int n_turns;
};

/**
 * Errors: TT_EINTERNAL, which names the turn, unless the orders form one run: every stage is on one rank, every
 * microbatch has one forward and one backward in each stage, the latter as one turn or as two, and no rank waits
 * forever. The caller frees ret_run with tt_pipeline_run_release.
 */
int tt_pipeline_simulate(const struct tt_pipeline *pipeline, const struct tt_pipeline_times *times,
                         struct tt_pipeline_run *ret_run) TT_MUST_CHECK;
void tt_pipeline_run_release(struct tt_pipeline_run *run);

/**
 * Makes the checks of tt_pipeline_simulate and returns its errors.
 *   ret_where where the fault was found; turn is TT_NONE if the rank lacks a turn. May be NULL.
 */
int tt_pipeline_check(const struct tt_pipeline *pipeline, struct tt_turn_at *ret_where) TT_MUST_CHECK;

/**
 * Pipeline schedules as torch writes them with "compute_only": a line for each rank, whose cells are its turns,
 * separated by commas. A cell is stage, letter (F, B, I or W) and microbatch, as in 2F0; an empty cell means idle.
 * (0F3;3B1)OVERLAP_F_B is two turns, one after the other. Blanks around cells, quotes around a cell and empty lines at
 * the end are allowed.
 */

/**
 * Fills in orders, weights_apart and rank_of_stage of a pipeline without orders, and checks them (tt_pipeline_check).
 *   text, size contents of the file name name of the file, for messages
 * Errors: TT_EUSAGE, with line and cell.
 */
int tt_pipeline_csv_parse(const char *text, size_t size, const char *name, struct tt_pipeline *pipeline) TT_MUST_CHECK;

#endif

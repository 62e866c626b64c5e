/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_MEASURE_TUNE_H
#define TT_CLI_MEASURE_TUNE_H

#include "core/comm/comm.h"
#include "core/config/args.h"

/**
 * Trials of combinations of policies: each combination trains a few steps from the same weights on the same data, all
 * in one job, taking turns, so that other load on the machine affects them all.
 */
enum { TT_TUNE_FLAGS = 10 };

struct tt_tune_row {
    char *label;
    char *flag[TT_TUNE_FLAGS]; /* overrides that make this combination */
    int n_flags;
    bool may_fail;                    /* has a degree that may be impossible */
    char *problem;                    /* why it was not tried; NULL when it was */
    bool is_absent;                   /* asks for what is not built: no row at all */
    double *step_secs, *exposed_secs; /* of each timed step: of the slowest rank */
    int n_steps, cap_steps, cap_exposed;
    double *losses; /* of the first trial, every step */
    int n_losses, cap_losses;
    double step_sec, exposed_sec; /* medians */
    double predicted_step_sec, predicted_exposed_sec;
    int64_t payload_bytes; /* that rank 0 sent in a step, with rows of experts */
    int64_t peak_bytes;    /* its arena */
    int64_t sync;          /* TT_SYNC_*: the order in which gradients were added */
    bool same_bits;        /* as the first combination that was tried with the same sync */
    bool fits;
};

struct tt_tune {
    const struct tt_args *args; /* the command line: files and overrides */
    int ranks, steps, rounds;
    struct tt_tune_row *rows;
    int n, cap;
    int best;          /* row, TT_NONE if nothing fits */
    char machine[160]; /* what times are predicted for */
};

/** Tries every row (collective); what fits is measured, what does not fit says so. */
int tt_tune_run(struct tt_tune *tune, struct tt_comm *comm) TT_MUST_CHECK;
void tt_tune_release(struct tt_tune *tune);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_STEPS_LINE_H
#define TT_CHECKPOINT_STEPS_LINE_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/steps/store.h"
#include "core/base/error.h"
#include "core/base/json.h"

/**
 * The line of a run: the steps that follow from each other. A resume goes on with the line of the step it loads; going back
 * (checkpoint.load_step, exclude_from_loading) begins a new one. The manifest's key "line":
 *
 *     {"id": "hex", "parent": {"run_id": "hex", "step": 20} | null, "begun_with": {"load_step": 20, "exclude": ["…"]}}
 *
 * begun_with is what the configuration asked for when the line began. The same request again is not a request to go back
 * again: a scheduler restarts a job with the command it has.
 */

/** What a start asks for; skip: flags of checkpoint/load/load.h. */
struct tt_line_request {
    int64_t load_step; /* -1: the newest good one */
    unsigned skip;
};

/** The line of a manifest (a new reference); one that has none is of a line named after its run, begun with no request. */
json_t *tt_line_of(const json_t *meta);

/** A line that begins now, with the step of parent_meta or, NULL, with nothing. */
json_t *tt_line_new(const char *run_id, const json_t *parent_meta, const struct tt_line_request *request);

/** Whether the line of the manifest began with this request. */
bool tt_line_is_begun_with(const json_t *meta, const struct tt_line_request *request);

/** Where a run goes on from. */
struct tt_line_start {
    int64_t step;
    bool begins;            /* a new line */
    bool restarts;          /* which counts its steps from 0 again */
    const int64_t *damaged; /* newer steps that were passed over */
    int n_damaged;
};

/**
 * Rank 0, after the start was loaded on all ranks and before training: sets aside, newest first, what is not of the line:
 * damaged steps that were passed over, and with a new line every newer step, or every other one if it restarts; the start
 * itself then when the line's first step is committed (tt_line_committed). After a failure the folder is still one that the
 * same command starts from.
 */
int tt_line_start(struct tt_ckpt_store *store, const struct tt_line_start *start) TT_MUST_CHECK;

/** Rank 0, after a step of the run was published: the start of a line that restarted gives way. A failure is a warning. */
void tt_line_committed(struct tt_ckpt_store *store, int64_t step);

/** Rank 0, with the lock just taken: ends what a killed run left between its first step and setting its start aside. */
int tt_line_sweep(const char *folder) TT_MUST_CHECK;

#endif

/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_STEPS_LINE_H
#define TT_CHECKPOINT_STEPS_LINE_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/steps/steps.h"
#include "core/base/error.h"
#include "core/base/json.h"

/**
 * The line of a run: steps each of which was trained from the previous one. A resume continues the line of the step
 * that it loads. Going back (checkpoint.load_step, exclude_from_loading) begins a new line. The manifest describes the
 * line under the key "line":
 *
 *     {"id": "hex", "parent": {"run_id": "hex", "step": 20} | null, "begun_with": {"load_step": 20, "exclude": ["…"]}}
 *
 * begun_with is the request in the configuration with which the line began. A start with the same request does not go
 * back again, because a scheduler restarts a job with the same command.
 */

/**
 * The parts that a load leaves out, under the names that checkpoint.exclude_from_loading accepts (line.c lists them
 * too).
 */
enum {
    TT_SKIP_OPTIMIZER = 1,    /* "optimizer": moments and averages keep their values */
    TT_SKIP_LR_SCHEDULER = 2, /* "lr_scheduler"; this part and the next are in meta; the caller ignores them */
    TT_SKIP_DATALOADER = 4,   /* "dataloader" */
    TT_SKIP_TRAIN_STATE = 8,  /* "train_state" */
    /* set by loads: the checkpoint contains no averages of the weights, so the run keeps its own */
    TT_SKIP_AVERAGES = 16,
    TT_SKIP_AVERAGED = 32, /* instead of the weights, loads their averages; TT_EDATA if there are none */
};

/** The flag of a name, or TT_EUSAGE with a list of all names. */
int tt_ckpt_skip_flag(const char *name, unsigned *ret_flag) TT_MUST_CHECK;

/** The request of a start. skip: TT_SKIP_*. */
struct tt_line_request {
    int64_t load_step; /* -1: the newest good step */
    unsigned skip;
};

/**
 * The line of a manifest (a new reference). Without the key "line", the line is named after the run and began without a
 * request.
 */
json_t *tt_line_of(const json_t *meta);

/** A new line, which continues the step of parent_meta or, if that is NULL, nothing. */
json_t *tt_line_new(const char *run_id, const json_t *parent_meta, const struct tt_line_request *request);

/** Whether the line of the manifest began with this request. */
bool tt_line_is_begun_with(const json_t *meta, const struct tt_line_request *request);

/** The step from which a run continues. */
struct tt_line_start {
    int64_t step;
    bool begins;            /* a new line */
    bool restarts;          /* the line counts its steps from 0 again */
    const int64_t *damaged; /* newer steps that were skipped */
    int n_damaged;
};

/**
 * For rank 0, after all ranks have loaded the start and before training. Sets aside, newest first, the steps that do
 * not belong to the line: damaged steps that were skipped; for a new line every newer step; for a line that restarts
 * every other step. In the last case, the step from which the line starts is set aside when the line's first step is
 * committed (tt_line_committed). After a failure, the same command can still start from the folder.
 */
int tt_line_start(struct tt_ckpt_store *store, const struct tt_line_start *start) TT_MUST_CHECK;

/** For rank 0, after a step was published: sets aside the step from which a line restarted. A failure is a warning. */
void tt_line_committed(struct tt_ckpt_store *store, int64_t step);

#endif

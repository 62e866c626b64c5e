/* SPDX-License-Identifier: MIT */
#ifndef TT_OPTIM_LR_H
#define TT_OPTIM_LR_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/text.h"
#include "core/keys/choices.h"

/** The learning rate of a step, and the last step, if that is decided during the run (lr_scheduler.finish_by). */

/* `last` is the last step of the run, as decided after `step` steps of training. */
struct tt_lr_end {
    int64_t step, last;
};

/* All such decisions of a run, in order; the first one is made before the first step. n is 0 if the length is fixed. */
enum { TT_LR_ENDS = 256 };
struct tt_lr_ends {
    int n;
    struct tt_lr_end end[TT_LR_ENDS];
};

/** The last step, by the decisions up to step `step`; INT64_MAX if there are none. */
int64_t tt_lr_last_step(const struct tt_lr_ends *ends, int64_t step);

/** Appends "0:1000,800:950", the form of lr_scheduler.ends; tt_lr_ends_read reads it back. False: not of this form. */
void tt_lr_ends_text(const struct tt_lr_ends *ends, struct tt_text *out);
bool tt_lr_ends_read(const char *text, struct tt_lr_ends *ret_ends);

/* torchtitan's warm-up, stable, decay schedule. Two functions fill it: tt_train_step (trainer/step/step.c), and for
 * checkpoints in PyTorch's format next_rate (checkpoint/export/dcp.c). */
struct tt_lr_schedule {
    double base;
    int64_t warmup_steps;
    int64_t total_steps;           /* not used if there are ends */
    const struct tt_lr_ends *ends; /* NULL: none */
    int64_t ends_shift;            /* to be added to the steps of ends: the schedule may count from another step */
    double decay_ratio;            /* NaN: all steps after the warm-up decay */
    enum tt_decay_choice decay;
    double min_factor;
};

/** The learning rate of train step `step` (1 for the first); clamped to the last value beyond total_steps. */
double tt_lr_at(const struct tt_lr_schedule *schedule, int64_t step);

#endif

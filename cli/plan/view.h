/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_PLAN_VIEW_H
#define TT_CLI_PLAN_VIEW_H

#include "checkpoint/save/plan.h"
#include "parallel/planner/cost.h"
#include "trainer/job/job.h"
#include "trainer/job/predict.h"
#include "trainer/job/summary.h"

struct tt_plan_policy {
    const struct tt_ckpt_policy *policy;
    struct tt_ckpt_preview preview;
};

/* A future save, with the configured policy or, for --checkpoint, with each policy in checkpoint/save/plan.c. */
struct tt_plan_save {
    int64_t step;
    bool model_only;
    bool is_open; /* the last save, whose step is not known; `step` is then only an example */
    const struct tt_ckpt_policy *configured;
    int n, cap;
    struct tt_plan_policy *policies;
};

/**
 * A planned rank, to be shown as text, as JSON or as a picture.
 */
struct tt_plan_view {
    struct tt_config *cfg;
    struct tt_job job;
    int rank;
    bool instructions; /* list the instructions too */
    bool checkpoint;   /* list the files of a save too */
    struct tt_engine *engine;
    struct tt_summary summary;
    struct tt_machine machine;           /* the machine for which times are predicted */
    struct tt_timeline time;             /* the times of this rank, as if no other stage made it wait */
    struct tt_job_prediction all;        /* times of all ranks */
    struct tt_plan_save save, last_save; /* last_save: n is 0 if it does not differ from the others */
};

/** Prints the plan on stdout. */
void tt_plan_print(const struct tt_plan_view *view);

/** Writes an SVG file (replaced atomically). */
int tt_plan_svg(const struct tt_plan_view *view, const char *path) TT_MUST_CHECK;

/** The state of a unit after its forward: "whole" (it is never gathered), "resharded" or "kept". */
const char *tt_plan_unit_fate(const struct tt_layout *layout, const struct tt_unit *unit);

/** Appends the instruction at which most memory is in use, or "validation". */
void tt_plan_peak_text(const struct tt_plan_view *view, struct tt_text *out);

/* A layer of the pictures: kinds of memory that are shown together, from the bottom up. */
struct tt_plan_layer {
    const char *name;
    const char *color; /* in pictures */
    char letter;       /* in the text */
    unsigned kinds;    /* a bit for each enum tt_memory_kind */
};

extern const struct tt_plan_layer tt_plan_layers[];
extern const int tt_plan_n_layers;

/** Bytes of a layer at an instruction. */
int64_t tt_plan_layer_bytes(const struct tt_summary *summary, int layer, int instr);

/** The first instruction of [from, to) at which most memory is in use. */
int tt_plan_largest(const struct tt_summary *summary, int from, int to);

#endif

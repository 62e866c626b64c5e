/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_LOAD_H
#define TT_CHECKPOINT_LOAD_H

#include <stdint.h>

#include "checkpoint/state.h"
#include "core/base/comm.h"
#include "core/base/error.h"
#include "core/base/json.h"

/**
 * Loading into any number of ranks and any sharding. Every rank reads the rows that it holds; each stored chunk's
 * checksum is verified by exactly one rank. All functions are collective: every rank gets the same result.
 */

/** What a load leaves out, by the names of checkpoint.exclude_from_loading. */
enum {
    TT_SKIP_OPTIMIZER = 1,    /* "optimizer": the moments keep what they have */
    TT_SKIP_LR_SCHEDULER = 2, /* "lr_scheduler" … the rest is in meta, and is the caller's to ignore */
    TT_SKIP_DATALOADER = 4,   /* "dataloader" */
    TT_SKIP_TRAIN_STATE = 8,  /* "train_state" */
};

/** The flag of a name, or TT_EUSAGE naming the ones there are. */
int tt_ckpt_skip_flag(const char *name, unsigned *ret_flag) TT_MUST_CHECK;

/**
 * Finds what a resume would load, without loading: the newest good step (load_step < 0) or that step.
 *   ret_step  -1 when the folder holds no step
 *   ret_meta  the manifest's other keys (step, ntokens_seen, mesh, config, …), the caller's; NULL when there is none
 * TT_EDATA when load_step is missing or damaged, or when there are steps and all are damaged.
 */
int tt_ckpt_peek(struct tt_comm *comm, const char *folder, int64_t load_step, int64_t *ret_step,
                 json_t **ret_meta) TT_MUST_CHECK;

/**
 * Resumes: fills state from the newest step whose checksums hold, as above. Damaged newer ones are reported (tt_warn on
 * rank 0) and passed over, unless load_step names one. A checkpoint that is intact but does not fit the model (tensors
 * missing, extra, of another shape) is TT_EDATA listing them, never passed over. On failure state is undefined.
 */
int tt_ckpt_resume(struct tt_comm *comm, const struct tt_ckpt_layout *layout, const char *folder, int64_t load_step,
                   unsigned skip, const struct tt_ckpt_state *state, int64_t *ret_step,
                   json_t **ret_meta) TT_MUST_CHECK;

/**
 * Loads from a path given by a person: a step, a run or checkpoint folder (newest good step), or safetensors files with
 * titan's names and no manifest (then with TT_SKIP_OPTIMIZER). ret_meta as above; NULL without a manifest.
 */
int tt_ckpt_load(struct tt_comm *comm, const struct tt_ckpt_layout *layout, const char *path, unsigned skip,
                 const struct tt_ckpt_state *state, json_t **ret_meta) TT_MUST_CHECK;

#endif

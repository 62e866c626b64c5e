/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_LOAD_LOAD_H
#define TT_CHECKPOINT_LOAD_LOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/format/manifest.h"
#include "checkpoint/format/state.h"
#include "checkpoint/steps/line.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/comm/comm.h"

/**
 * Loading into any number of ranks and any sharding. Rank 0 reads the manifest and passes it on. Each stored chunk's
 * checksum is verified by exactly one rank. All functions are collective: every rank gets the same result.
 */

/** Who reads rows that several replicas hold (checkpoint.load_policy). */
enum tt_ckpt_reading {
    TT_READ_ONCE, /* the first replica, which passes them on */
    TT_READ_ALL,  /* every replica */
};

/** What a load leaves out, by the names of checkpoint.exclude_from_loading. */
enum {
    TT_SKIP_OPTIMIZER = 1,    /* "optimizer": the moments keep what they have */
    TT_SKIP_LR_SCHEDULER = 2, /* "lr_scheduler" … the rest is in meta, and is the caller's to ignore */
    TT_SKIP_DATALOADER = 4,   /* "dataloader" */
    TT_SKIP_TRAIN_STATE = 8,  /* "train_state" */
};

/** The flag of a name, or TT_EUSAGE naming the ones there are. */
int tt_ckpt_skip_flag(const char *name, unsigned *ret_flag) TT_MUST_CHECK;

/** What a resume is to load. */
struct tt_ckpt_request {
    struct tt_line_request line;
    enum tt_ckpt_reading reading;
    bool as_asked; /* also when the line of the newest step began with this very request; for who saves nothing */
    /* May refuse a step that was found, before its tensors are looked at, and add to what is skipped; NULL: takes all. Local,
     * on every rank. A refusal is final: no older step is tried. */
    int (*accept)(void *arg, const struct tt_manifest *manifest, unsigned *skip);
    void *arg;
};

/** What was found. Zero-initialise; release. */
struct tt_ckpt_found {
    int64_t step;     /* -1: the folder holds none */
    json_t *meta;     /* the manifest's other keys (step, ntokens_seen, mesh, config, …); NULL when there is none */
    bool applied;     /* the step's line began with this request: nothing was left out, and load_step did not count */
    unsigned skip;    /* what was left out */
    int64_t *damaged; /* newer steps that were passed over */
    int n_damaged;
};
void tt_ckpt_found_release(struct tt_ckpt_found *found);

/**
 * Finds what a resume would load, without loading: the newest good step, or load_step, unless the newest good step is of a
 * line that began with the same request. Nothing in the folder is changed.
 *
 * Newer steps that are proved to be damaged (TT_EDATA) are reported (tt_warn on rank 0) and passed over; one that cannot be
 * read just now is TT_EIO, never passed over. TT_EDATA: load_step is missing or damaged; there are steps and all are
 * damaged; there are only steps that were set aside.
 */
int tt_ckpt_peek(struct tt_comm *comm, const char *folder, const struct tt_ckpt_request *request,
                 struct tt_ckpt_found *ret_found) TT_MUST_CHECK;

/**
 * Resumes: fills state from that step. Checksums are verified; a mismatch is damage as above. A checkpoint that is intact but
 * does not fit the model (tensors missing, extra, of another shape) is TT_EDATA listing them, never passed over. On failure
 * state is undefined.
 */
int tt_ckpt_resume(struct tt_comm *comm, const struct tt_ckpt_layout *layout, const char *folder,
                   const struct tt_ckpt_request *request, const struct tt_ckpt_state *state,
                   struct tt_ckpt_found *ret_found) TT_MUST_CHECK;

/**
 * Loads from a path given by a person: a step, a run or checkpoint folder (newest good step), or safetensors files with
 * titan's names and no manifest (then with TT_SKIP_OPTIMIZER). ret_meta as above; NULL without a manifest.
 */
int tt_ckpt_load(struct tt_comm *comm, const struct tt_ckpt_layout *layout, const char *path,
                 enum tt_ckpt_reading reading, unsigned skip, const struct tt_ckpt_state *state,
                 json_t **ret_meta) TT_MUST_CHECK;

#endif

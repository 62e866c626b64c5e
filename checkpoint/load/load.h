/* SPDX-License-Identifier: MIT */
#ifndef TT_CHECKPOINT_LOAD_LOAD_H
#define TT_CHECKPOINT_LOAD_LOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "checkpoint/format/manifest.h"
#include "checkpoint/format/state.h"
#include "checkpoint/steps/line.h"
#include "checkpoint/steps/steps.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/comm/comm.h"
#include "core/keys/choices.h"

/**
 * Loads a checkpoint into any number of ranks and any sharding. Rank 0 reads the manifest and passes it on. Exactly one
 * rank verifies the checksum of each stored chunk. Functions with a communicator are collective, and every rank gets
 * the same result.
 */

/** A request to resume. */
struct tt_ckpt_request {
    struct tt_line_request line;
    enum tt_load_choice reading; /* which ranks read the rows that several replicas hold */
    /* load the requested step even if the line of the newest step began with this request; for runs that save
     * nothing */
    bool as_asked;
    /* May refuse a step before its tensors are examined, and may add TT_SKIP flags. NULL: accept every step. Called
     * locally on every rank. A refusal is final: titan tries no older step. */
    int (*accept)(void *arg, const struct tt_manifest *manifest, unsigned *skip);
    void *arg;
};

/** The step that was found. Zero-initialise it, and release it. */
struct tt_ckpt_found {
    int64_t step;     /* -1: the folder contains no step */
    json_t *meta;     /* the manifest's other keys (step, ntokens_seen, mesh, config, …); NULL when there is none */
    bool applied;     /* the step's line began with this request, so nothing is left out and load_step is ignored */
    unsigned skip;    /* what was left out */
    int64_t *damaged; /* newer steps that were skipped */
    int n_damaged;
};
void tt_ckpt_found_release(struct tt_ckpt_found *found);

/**
 * Finds the step that a resume would load, without loading it: the newest good step, or load_step, unless the newest
 * good step belongs to a line that began with the same request. Changes nothing in the folder.
 *
 * Newer steps that are proven to be damaged (TT_EDATA) are reported (tt_warn on rank 0) and skipped. A step that cannot
 * be read at the moment is TT_EIO and is never skipped. TT_EDATA: load_step is missing or damaged; all steps are
 * damaged; or all steps were set aside.
 */
int tt_ckpt_peek(struct tt_comm *comm, const char *folder, const struct tt_ckpt_request *request,
                 struct tt_ckpt_found *ret_found) TT_MUST_CHECK;

/**
 * Resumes: fills state from that step. Checksums are verified; a mismatch counts as damage. An intact checkpoint that
 * does not fit the model (tensors are missing, extra, or of another shape) is TT_EDATA with a list of them and is never
 * skipped. After a failure the state is undefined.
 */
int tt_ckpt_resume(struct tt_comm *comm, const struct tt_mesh *mesh, const char *folder,
                   const struct tt_ckpt_request *request, const struct tt_ckpt_state *state,
                   struct tt_ckpt_found *ret_found) TT_MUST_CHECK;

/**
 * Loads from a path that the user gives: a step, a run or checkpoint folder (its newest good step), or safetensors
 * files with titan's names and no manifest (then with TT_SKIP_OPTIMIZER). If the source has none of the optional
 * tensors of `state`, they keep their values. Adds the parts that were left out to `skip`. ret_meta as above; NULL
 * without a manifest.
 */
int tt_ckpt_load(struct tt_comm *comm, const struct tt_mesh *mesh, const char *path, enum tt_load_choice reading,
                 unsigned *skip, const struct tt_ckpt_state *state, json_t **ret_meta) TT_MUST_CHECK;

/**
 * Whether tt_ckpt_load would find the tensors of `state` at the path; `state` needs neither parts nor data. Reads
 * manifest and headers, but no weights, so damaged bytes are not noticed. Not collective. ret_meta as above.
 */
int tt_ckpt_examine(const char *path, const struct tt_ckpt_state *state, unsigned skip,
                    json_t **ret_meta) TT_MUST_CHECK;

#endif

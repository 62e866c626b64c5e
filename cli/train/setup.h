/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_TRAIN_SETUP_H
#define TT_CLI_TRAIN_SETUP_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/job/job.h"
#include "core/base/json.h"
#include "core/comm/comm.h"
#include "core/config/config.h"
#include "parallel/engine/engine.h"

/**
 * What is decided before anything is changed: the job, and this rank's engine, threads and memory. All other parts of a
 * run read it, and none changes it; only training.steps may follow from training.epochs, when the data is open.
 *
 *     struct tt_setup setup;
 *     rc = tt_setup_init(cfg, comm, false, &setup);
 *     ...
 *     tt_setup_release(&setup);
 */
struct tt_setup {
    struct tt_config *cfg;
    struct tt_comm *comm;
    struct tt_job job;
    struct tt_engine *engine; /* nothing large is allocated yet */
    struct tt_engine_memory memory;
    int threads;
    int local_rank, local_size; /* on this host */
    int64_t memory_limit;       /* bytes that this rank may use: the smallest limit of all ranks */
    char *kernels_differ;       /* text: how kernels differ between ranks; NULL: they do not */
};

/**
 * Collective: every rank returns the same code, with the message of the lowest failing rank. Sets the values in cfg
 * that were left to titan. The set-up may be released after an error too.
 *   starts_over  the run does not resume, so gradient_sync auto ignores its checkpoints
 * Errors: TT_EUSAGE for an impossible configuration, TT_EFIT if a rank does not fit into its memory.
 */
int tt_setup_init(struct tt_config *cfg, struct tt_comm *comm, bool starts_over,
                  struct tt_setup *ret_setup) TT_MUST_CHECK;
void tt_setup_release(struct tt_setup *setup);

/** Whether the losses of this run are the same, to the bit, for every power-of-two split of its batch over ranks. */
bool tt_setup_layout_exact(const struct tt_setup *setup);

/* kernels.c */

/**
 * Compares the kernels of all ranks, those of the BLAS library and titan's own, since bits depend on them. A difference
 * is not an error, but then the curve is not layout-exact. *ret_differ, the caller's, describes it; NULL: there is
 * none. Collective.
 */
int tt_setup_compare_kernels(struct tt_comm *comm, char **ret_differ) TT_MUST_CHECK;

/** The kernels of this rank, {"blas": "Haswell", "titan": "avx2"}, with "differ" if ranks differ. The caller's
 * (json_decref). */
json_t *tt_setup_kernels_json(const struct tt_setup *setup);

/* sync.c */

/**
 * Sets in the job's engine when gradients are reduced, and why if gradient_sync is `auto`: as in the checkpoint from
 * which the run resumes; without one, what rank 0 chooses (tt_job_choose_sync). Collective.
 */
int tt_setup_first_sync(struct tt_setup *setup, bool starts_over) TT_MUST_CHECK;

/** The gradient_sync of the run that wrote the manifest with this description, which owns the text; NULL if it is not
 * recorded. */
const char *tt_setup_recorded_sync(const json_t *meta);

/** The configuration's word for it. */
const char *tt_setup_sync_word(enum tt_sync_choice sync);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef TT_TRAINER_JOB_SETUP_H
#define TT_TRAINER_JOB_SETUP_H

#include <stdbool.h>
#include <stdint.h>

#include "core/base/json.h"
#include "core/comm/comm.h"
#include "core/config/config.h"
#include "parallel/engine/engine.h"
#include "trainer/job/job.h"

/**
 * Everything decided before anything is changed: the job, and this rank's engine, threads and memory. The other parts
 * of a run only read it, except that training.epochs may set training.steps when the data is open.
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
    char *kernels_differ;       /* the differences between the kernels of ranks, as text; NULL: none */
};

/**
 * Collective: every rank returns the same code, with the message of the lowest failing rank. Sets those values in cfg
 * that the user left to titan. Release the set-up even after an error.
 *   starts_over  the run does not resume, so gradient_sync auto ignores its checkpoints
 * Errors: TT_EUSAGE for an impossible configuration, TT_EFIT if a rank does not fit in its memory.
 */
int tt_setup_init(struct tt_config *cfg, struct tt_comm *comm, bool starts_over,
                  struct tt_setup *ret_setup) TT_MUST_CHECK;
void tt_setup_release(struct tt_setup *setup);

/** Whether the losses of this run are the same, to the bit, on any power-of-two number of ranks. */
static inline bool tt_setup_layout_exact(const struct tt_setup *s)
{
    return !s->kernels_differ && s->cfg->parallelism.reduction_order == TT_ORDER_TREE &&
           tt_engine_is_exact(&s->job.engine);
}

/** The kernels of this rank, {"blas": "Haswell", "titan": "avx2"}, with "differ" if ranks differ. Free it with
 * json_decref. */
json_t *tt_setup_kernels_json(const struct tt_setup *setup);

/** The gradient_sync recorded in a manifest's description, which owns the text; NULL: none is recorded. */
const char *tt_setup_recorded_sync(const json_t *meta);

/** The word of gradient_sync for a choice. */
const char *tt_setup_sync_word(enum tt_sync_choice sync);

#endif

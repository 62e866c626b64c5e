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
 * What is decided before anything is touched: the job, and the engine, the threads and the memory of this rank.
 * Everything else of a run reads it, and nothing changes it.
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
    int64_t memory_limit;       /* bytes that this rank may use; the least of all ranks */
    char *kernels_differ;       /* which ranks compute with other kernels than rank 0; NULL: none */
};

/**
 * Collective: every rank returns the same code, with the message of the lowest failing rank. Sets what is automatic in
 * cfg. The set-up may be released after an error too.
 *   starts_over  gradient_sync auto does not look for a checkpoint that the run could resume from
 * Errors: TT_EUSAGE for what cannot be, TT_EFIT when a rank does not fit in its memory.
 */
int tt_setup_init(struct tt_config *cfg, struct tt_comm *comm, bool starts_over,
                  struct tt_setup *ret_setup) TT_MUST_CHECK;
void tt_setup_release(struct tt_setup *setup);

/** Whether the losses of this run do not depend on how it is laid out over ranks. */
bool tt_setup_layout_exact(const struct tt_setup *setup);

/* kernels.c */

/**
 * Ranks compare what their bits depend on: the kernels of the BLAS library and titan's own. Another choice on some rank
 * is no error, but the curve is then not layout-exact. *ret_differ is the caller's; NULL: all are the same. Collective.
 */
int tt_setup_compare_kernels(struct tt_comm *comm, char **ret_differ) TT_MUST_CHECK;

/** {"blas": "Haswell", "titan": "avx2"}, of this rank, with "differ" where ranks do; json_decref. */
json_t *tt_setup_kernels_json(const struct tt_setup *setup);

/* sync.c */

/**
 * The gradient_sync to try: the configured one; for `auto` what the checkpoint that the run resumes from was trained
 * with, else last_microbatch if reduction_order is fast. Collective.
 */
int tt_setup_first_sync(const struct tt_setup *setup, bool starts_over, enum tt_sync_choice *ret_sync) TT_MUST_CHECK;

/** The gradient_sync of the run that wrote a manifest; NULL if it does not say. */
const char *tt_setup_recorded_sync(const json_t *meta);

/** The configuration's word for it. */
const char *tt_setup_sync_word(enum tt_sync_choice sync);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef TT_CLI_JOB_H
#define TT_CLI_JOB_H

#include <stdint.h>

#include "core/base/error.h"
#include "core/config/config.h"
#include "parallel/cost.h"
#include "parallel/engine.h"

/**
 * What a configuration means on a number of ranks: model, mesh, batch, and the options of the engine. The one place that
 * says so: train, plan, estimate and tune all ask here, so that what is predicted is what runs.
 *
 *     struct tt_job job = {0};
 *     TT_TRY(tt_job_init(cfg, n_ranks, threads, &job));
 *     TT_TRY(tt_engine_new(&job.engine, comm, rank, &engine));
 *     ...
 *     tt_job_release(&job);
 *
 * Pure: touches no files but those that dimensions come from (model.hf_assets_path), starts and allocates nothing large.
 */
struct tt_job {
    struct tt_model *model;
    struct tt_mesh mesh;
    int64_t microbatches; /* per rank and step */
    int64_t global_batch; /* sequences a step */
    struct tt_engine_options engine;
};

/**
 * The job of n_ranks ranks with `threads` threads each. Fills the model keys of cfg that came from the flavor.
 *   memory_limit  bytes that a rank may use, which the planned engine chooses by
 * Errors: TT_EUSAGE for a mesh, batch or model that cannot be; ret_job is then left released.
 */
int tt_job_init(struct tt_config *cfg, int n_ranks, int threads, int64_t memory_limit,
                struct tt_job *ret_job) TT_MUST_CHECK;

/** How many of n_ranks ranks with `threads` threads each would share this host. */
int tt_job_ranks_on_host(int n_ranks, int threads);
void tt_job_release(struct tt_job *job);

/**
 * Threads of a rank that shares its host with local_size - 1 others: parallelism.threads_per_rank, else the cores bound to
 * the rank, else, when the launcher bound none, a fair part of the host's.
 */
int tt_job_threads(const struct tt_config *cfg, int local_size);

/** Bytes that each of local_size ranks on this host may use: parallelism.memory_limit, else a fair part of 0.9 of it. */
int64_t tt_job_memory_limit(const struct tt_config *cfg, int local_size);

/** The cost table that predicts: parallelism.machine_file, else the built-in one. */
int tt_job_machine(const struct tt_config *cfg, struct tt_machine *ret_machine) TT_MUST_CHECK;

/** Appends the policies in words: "wrap block, reshard default, …". */
void tt_job_policies_text(const struct tt_config *cfg, struct tt_text *out);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef TT_TESTS_TRAIN_JOB_H
#define TT_TESTS_TRAIN_JOB_H

#include "core/data/sampler.h"
#include "core/optim/lr.h"
#include "parallel/engine/engine.h"

/**
 * A short training run on ranks that are threads, for tests: what `titan train` does around the engine, without files
 * and configuration. Everything that 4.4 of the design promises to be independent of the layout is in the result.
 */
enum { TRAIN_JOB_STEPS = 32 };

struct train_job {
    const struct tt_model *model;
    const struct tt_dataset *dataset; /* samples in file order */
    struct tt_device *device;         /* of all ranks; NULL: the host */
    int ranks, replicate;             /* replicate divides ranks */
    enum tt_reshard reshard;
    const char *wrap;                    /* NULL: block */
    struct tt_words wrap_patterns, keep; /* n 0: none; see struct tt_sharding */
    int reshard_part;
    bool last_microbatch; /* gradient_sync; else every_microbatch */
    int prefetch, threads;
    struct tt_recompute recompute;
    enum tt_init init;
    enum tt_dtype param_dtype, reduce_dtype;
    int n_stages; /* and order, order_arg: see struct tt_engine_options */
    struct tt_order (*order)(const struct tt_engine_options *options);
    const void *order_arg;
    enum tt_scheduler scheduler;
    int64_t bucket_bytes;      /* planned: 0 from the machine */
    struct tt_machine machine; /* planned: all 0 is the built-in one */
    int64_t local_batch, global_batch, seq_len;
    int steps;
    int64_t validation_batches; /* of local_batch samples, from the start of the data; 0: none */
    struct tt_lr_schedule schedule;
    bool gives_up; /* each step is first given up somewhere in the middle, which must change nothing */
    double beta1, beta2, eps, weight_decay, max_norm;
    bool adam; /* not decoupled */
    /* Weights before the first step: load, or the init rules with seed when it is NULL. Collective. */
    uint64_t seed;
    int (*load)(struct tt_comm *comm, struct tt_engine *engine, void *arg);
    void *load_arg;
};

/* Of all ranks; whole parameters stand one after another in the model's order. */
struct train_result {
    double loss[TRAIN_JOB_STEPS], norm[TRAIN_JOB_STEPS], lr[TRAIN_JOB_STEPS];
    double validation;              /* sum of token losses */
    int64_t n_elements;             /* of each of the following */
    float *param;                   /* after the last step */
    float *exp_avg, *exp_avg_sq;    /* after the last step */
    int64_t payload;                /* sent by a rank in one step */
    int64_t control;                /* control bytes sent by a rank in one step */
    uint64_t allocations;           /* by steps 3 and on, of all ranks, in the quietest window of four steps */
    struct tt_engine_memory memory; /* of rank 0 */
    int collectives;                /* begun by rank 0's program */
    int64_t step_bytes, live_bytes; /* most of all ranks: arena of the step, lower bound */
};

/**
 * On one rank and thread: three steps, with a large rate and strong clipping, so that every rounding shows in the next.
 */
struct train_job train_job_make(const struct tt_model *model, const struct tt_dataset *dataset, int64_t global_batch,
                                int64_t local_batch, int64_t seq_len);

/**
 * The payload in float32 of one step and rank for one unit, by hand: what the programs' own formula must be equal to.
 *   shard         elements of the unit's flat shard, padding included
 *   grads         the same of its gradients: a tied weight has two
 *   second_ranks  that the gather of backward runs over: 1 where the unit is kept, S / n shards each of n neighbours
 */
int64_t train_job_payload(const struct train_job *job, int64_t shard, int64_t grads, int64_t second_ranks);

/**
 * Runs the job. Every rank checks: the program by tt_program_check; payload bytes of each step = tt_program_payload;
 * loss and norm the same bits on all ranks; parameters and moments the same bits on all replicas; the eager engine's
 * arena at most 1.05 of its lower bound, and 16 KiB: around the few buffers of a tiny model a single one decides
 * what is wasted. (The planned engine's is at most eager's.) The result is the caller's (train_result_release), also
 * after a failure.
 */
int train_job_run(const struct train_job *job, struct train_result *ret_result) TT_MUST_CHECK;
void train_result_release(struct train_result *result);

/** The first thing in which two results differ, in words; NULL if losses, norms and all state are the same bits. */
const char *train_result_difference(const struct train_job *job, const struct train_result *a,
                                    const struct train_result *b);

/** Largest relative difference of losses and norms. */
double train_result_distance(const struct train_job *job, const struct train_result *a, const struct train_result *b);

/** The engine's options on the mesh of a job; for tests that need no run. */
int train_job_options(const struct train_job *job, struct tt_engine_options *ret_options) TT_MUST_CHECK;

/** Whether the design promises the bits of one rank. */
bool train_job_is_exact(const struct train_job *job);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef TT_TESTS_TRAIN_JOB_H
#define TT_TESTS_TRAIN_JOB_H

#include "core/data/sampler.h"
#include "core/optim/lr.h"
#include "core/optim/optim.h"
#include "parallel/engine/engine.h"

/**
 * A short training run on ranks that are threads, for tests. It does what `titan train` does around the engine, without
 * files and configuration. The result holds everything that does not depend on the layout.
 */
enum { TRAIN_JOB_STEPS = 32 };

struct train_job {
    const struct tt_model *model;
    const struct tt_dataset *dataset; /* samples in file order */
    const struct tt_mixture *mixture; /* of these documents, and of the same ones shuffled; NULL: these alone */
    struct tt_device *device;         /* of all ranks; NULL: the host */
    int ranks, replicate;             /* pipe * replicate * context * tensor divides ranks */
    int pipe;                         /* ranks of a pipeline; 0 or 1: none */
    int tensor;                       /* ranks that share a layer; 0 or 1: none */
    int grains;                       /* of tensor parallelism, a multiple of `tensor`; 0: `tensor` */
    int context;                      /* ranks that share a sequence; 0 or 1: none */
    int experts;                      /* ranks that share experts; 0 or 1: none */
    double moe_window;                /* see struct tt_engine_options */
    int sequence_grains;              /* of context parallelism, a multiple of `context`; 0: `context` */
    bool gathers, contiguous;         /* keys and values, not heads; a grain is one piece, without a mirror image */
    enum tt_pipeline_schedule schedule_of_pipe;
    int runs, stages_per_rank; /* runs through the pipeline in a step, and stages per rank; 0: 1 */
    enum tt_reshard reshard;
    const char *wrap;                    /* NULL: block, unless there are patterns */
    struct tt_words wrap_patterns, keep; /* n 0: none; see struct tt_sharding */
    int reshard_part;
    bool last_microbatch, every_run; /* gradient_sync; else every_microbatch */
    int prefetch, threads;
    struct tt_recompute recompute;
    enum tt_init_choice init;
    enum tt_dtype shard_dtype, param_dtype, reduce_dtype;
    int n_stages; /* and order, order_arg: see struct tt_engine_options */
    struct tt_order (*order)(const struct tt_engine_options *options);
    const void *order_arg;
    enum tt_engine_choice scheduler;
    int64_t bucket_bytes;      /* for the planned scheduler; 0: from the machine */
    struct tt_machine machine; /* the machine for the planned scheduler; all 0: the built-in one */
    int64_t local_batch, global_batch, seq_len;
    bool documents;                        /* see struct tt_engine_options */
    double z_loss;                         /* the same */
    struct tt_router_losses router_losses; /* see struct tt_engine_options */
    double balance_coeff;                  /* step size for the experts' biases, if the model has them */
    double average_decay;                  /* decay of the weights' averages; 0: none */
    int first_step;             /* the run begins after this step, which another run made; `load` sets the state */
    int steps;                  /* the last one */
    int64_t validation_batches; /* batches of local_batch samples from the start of the data; 0: none */
    struct tt_lr_schedule schedule;
    bool gives_up; /* every step is first abandoned somewhere in its middle, which must change nothing */
    double beta1, beta2, eps, weight_decay, max_norm;
    /* The numbers of Muon, if the model has parameters that it trains; train_job_make sets PyTorch's. */
    double momentum;
    bool nesterov;
    int muon_steps;
    enum tt_adjust_choice muon_lr;
    /* Sets the weights before the first step; NULL: the init rules with `seed`. Collective. */
    uint64_t seed;
    int (*load)(struct tt_comm *comm, struct tt_engine *engine, void *arg);
    void *load_arg;
    /* Called after every step, with its number, from 1; NULL: nothing is called. Collective. */
    int (*after_step)(struct tt_comm *comm, struct tt_engine *engine, int step, void *arg);
    void *after_arg;
};

/* The result of all ranks. Steps up to first_step hold zeros. Whole parameters follow one another in the model's
 * order. */
struct train_result {
    double loss[TRAIN_JOB_STEPS], norm[TRAIN_JOB_STEPS], lr[TRAIN_JOB_STEPS];
    double z_loss[TRAIN_JOB_STEPS];
    double router_losses[TRAIN_JOB_STEPS][TT_ROUTER_LOSSES];
    int64_t *loads;                 /* [step][block][expert]; NULL: the model has no experts */
    double validation;              /* sum of token losses */
    int64_t n_elements;             /* elements of each of the following arrays */
    float *param;                   /* after the last step; of any type, as floats */
    float *exp_avg, *exp_avg_sq;    /* the same */
    float *ema;                     /* the same; zeros without averages */
    int64_t payload;                /* sent by a rank in one step */
    int64_t control;                /* control bytes sent by a rank in one step */
    uint64_t allocations;           /* allocations of all ranks from step 3 on, in the best window of four steps */
    struct tt_engine_memory memory; /* of rank 0 */
    int collectives;                /* collectives that rank 0's program begins */
    int64_t step_bytes, live_bytes; /* the largest of all ranks: step region of the arena, and its lower bound */
};

/**
 * A job of three steps on one rank and thread. A large learning rate and strong clipping make every rounding error
 * visible in the next step.
 */
struct train_job train_job_make(const struct tt_model *model, const struct tt_dataset *dataset, int64_t global_batch,
                                int64_t local_batch, int64_t seq_len);

/**
 * The payload of one unit for one rank in a step, in bytes of float32, written by hand. It must equal the prediction of
 * the program.
 *   shard         elements of the unit's flat shard, padding included
 *   grads         the same for its gradients, of which a tied weight has two
 *   second_ranks  ranks of the gather for backward: 1 if the unit is kept; n if each of n neighbours keeps S / n shards
 */
int64_t train_job_payload(const struct train_job *job, int64_t shard, int64_t grads, int64_t second_ranks);

/**
 * Runs the job. Every rank checks the program with tt_program_check. The payload of each step must be
 * tt_program_payload. Loss and norm must have the same bits on all ranks, parameters and moments on all replicas. The
 * eager scheduler's arena must be at most 1.05 of its lower bound plus 16 KiB, since in a tiny model a single buffer
 * may waste that much; the planned scheduler's must be at most eager's. The caller releases the result
 * (train_result_release), even after a failure.
 */
int train_job_run(const struct train_job *job, struct train_result *ret_result) TT_MUST_CHECK;
void train_result_release(struct train_result *result);

/** The first difference between two results, in words; NULL if losses, norms and all state have the same bits. */
const char *train_result_difference(const struct train_job *job, const struct train_result *a,
                                    const struct train_result *b);

/** The largest relative difference of the losses and norms. */
double train_result_distance(const struct train_job *job, const struct train_result *a, const struct train_result *b);

/** The engine's options on the mesh of a job; the caller releases what they refer to. */
int train_job_options(const struct train_job *job, struct tt_engine_options *ret_options) TT_MUST_CHECK;
void train_job_options_release(struct tt_engine_options *options);

/** Whether the job must give the bits of one rank. */
bool train_job_is_exact(const struct train_job *job);

/**
 * A `load` of a job whose arg is its model: the routers' weights are 0, so all scores are equal, and every token
 * chooses the first experts.
 */
int train_job_equal_scores(struct tt_comm *comm, struct tt_engine *engine, void *arg);

#endif

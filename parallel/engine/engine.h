/* SPDX-License-Identifier: MIT */
#ifndef TT_PARALLEL_ENGINE_ENGINE_H
#define TT_PARALLEL_ENGINE_ENGINE_H

#include "core/comm/comm.h"
#include "core/keys/choices.h"
#include "core/models/model.h"
#include "core/passes/recompute.h"
#include "core/program/executor.h"
#include "core/program/order.h"
#include "parallel/layout/init.h"
#include "parallel/layout/mesh.h"
#include "parallel/layout/units.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/planner/cost.h"

/**
 * Training on one rank: makes, from a model, a mesh and policies, everything that a step needs.
 *
 *     tt_engine_new          graphs, layout, programs; predicts memory; allocates nothing large
 *     tt_engine_allocate     allocates the arena
 *     tt_engine_init_params  or a checkpoint load into tt_engine_state
 *     tt_engine_step, tt_engine_validate, any number of times
 *     tt_engine_free
 *
 * The engine knows neither files nor the configuration, so tests can run it on threads.
 */
#define TT_MOE_WINDOW 2.0

/*
 * When the shard ranks reduce-scatter their gradients. A run is one pass of microbatches through the pipeline, or the
 * step if there is no pipeline. With TT_REDUCE_RUNS each rank adds the whole gradients of a run's microbatches in the
 * order of the tree, which takes memory for one sum per level. With TT_REDUCE_LAST it keeps a single sum, to which each
 * microbatch is added in turn.
 */
enum tt_reduce_when {
    TT_REDUCE_EACH, /* after each microbatch */
    TT_REDUCE_RUNS, /* after each run */
    TT_REDUCE_LAST, /* after the last microbatch of the step */
};

struct tt_engine_options {
    const struct tt_model *model; /* must outlive the engine */
    struct tt_device *device;     /* must outlive the engine too; NULL: the host */
    struct tt_mesh mesh;
    struct tt_sharding sharding;
    enum tt_reduce_when reduce;
    int prefetch;
    struct tt_recompute recompute;
    enum tt_dtype param_dtype, reduce_dtype; /* TT_F32 or TT_BF16; see core/ops/step/step.h */
    enum tt_dtype shard_dtype; /* type of parameters and moments in the state: TT_F32, or the same as param_dtype */
    bool averages;             /* training keeps an EMA of the trained weights (TT_STATE_EMA) */
    enum tt_init_choice init;
    double moe_window; /* for experts spread over ranks: see struct tt_experts_division; 0: TT_MOE_WINDOW */
    int muon_steps;    /* Newton-Schulz iterations, if Muon trains parameters of the model */
    int threads;       /* threads of this rank */
    double z_loss;     /* coefficient of the z-loss, in training only; 0: none */
    struct tt_router_losses router_losses; /* in training only */
    bool documents;                        /* tokens attend only within their documents; the inputs have positions */
    int64_t local_batch, seq_len;          /* local_batch 0: validation only; no training step, no moments */
    int microbatches;                      /* A, the number of microbatches per rank and step */
    int64_t validation_batch, validation_seq_len; /* 0: no validation program */
    enum tt_engine_choice scheduler;
    /*
     * A pipeline over the ranks of TT_GROUP_PP: the places of its stages, and the orders of one run. A step consists of
     * `microbatches` / pipeline->microbatches runs. Both must outlive the engine. NULL: every rank has the whole model.
     */
    const struct tt_stage_places *places;
    const struct tt_pipeline *pipeline;
    /*
     * Without a pipeline: the step has several stages (core/passes/stage.h), all on this rank, cut between blocks. Only
     * tests use this.
     */
    int n_stages; /* 0 or 1: the model is a single graph */
    /* The order of compute, of n_stages stages and `microbatches` microbatches; NULL: one microbatch after another. */
    struct tt_order (*order)(const struct tt_engine_options *options);
    const void *order_arg; /* for that function */
    /* the following members are for the planned scheduler */
    struct tt_machine machine;    /* all 0: the built-in one */
    int64_t bucket_bytes;         /* 0: from the cost table */
    int64_t memory_limit;         /* limit of all memory of one rank; 0: no limit */
    bool choose_reshard_by_limit; /* ignore reshard, and keep those units gathered that save the most time */
};

/** Whether the state of an engine with these options contains the array. */
bool tt_engine_has(const struct tt_engine_options *options, enum tt_state_array array);

/** How many consecutive microbatches of a rank are added before the reduce-scatter of their gradients. */
int tt_engine_block(const struct tt_engine_options *options);

/** tt_mesh_is_exact for a step with these options. */
static inline bool tt_engine_is_exact(const struct tt_engine_options *o)
{
    return tt_mesh_is_exact(&o->mesh, o->microbatches, tt_engine_block(o), o->reduce == TT_REDUCE_LAST);
}

struct tt_engine;

/** Plans the step of comm's rank, or of `rank` if comm is NULL and the engine is used only for predictions. The caller
 * frees the engine with tt_engine_free. Not collective. */
int tt_engine_new(const struct tt_engine_options *options, struct tt_comm *comm, int rank,
                  struct tt_engine **ret_engine) TT_MUST_CHECK;
void tt_engine_free(struct tt_engine *engine);

/* The memory of one rank in bytes, known before anything is allocated. */
struct tt_engine_memory {
    int64_t state; /* parameter shards and moments */
    int64_t constants;
    int64_t samples;                  /* whole sequences, of which this rank computes some pieces */
    int64_t step;                     /* high-water mark of all transient memory */
    int64_t total;                    /* the sum: the size of the arena */
    int64_t by_kind[TT_MEMORY_KINDS]; /* at the peak of the step; params and optimizer included */
};
struct tt_engine_memory tt_engine_memory(const struct tt_engine *engine);

/** Compares the programs of all ranks, which must begin the same exchanges (collective). Errors: as
 * tt_program_agree. */
int tt_engine_agree(const struct tt_engine *engine, struct tt_comm *comm) TT_MUST_CHECK;

/** Allocates the arena and makes the collectives (collective). TT_EFIT if the system refuses the memory. */
int tt_engine_allocate(struct tt_engine *engine) TT_MUST_CHECK;

/** Fills this rank's part of every parameter by its init rule, with the same bits on every mesh. See tt_init_params. */
int tt_engine_init_params(struct tt_engine *engine, uint64_t seed) TT_MUST_CHECK;

/** The same for the trained parameters only, for a run whose frozen weights are loaded. See tt_init_trained. */
int tt_engine_init_trained(struct tt_engine *engine, uint64_t seed) TT_MUST_CHECK;

/** Bytes of one rank while tt_engine_init_params runs with `how`: everything except the step region, plus the buffer
 * that `how` needs. */
int64_t tt_engine_init_bytes(const struct tt_engine *engine, enum tt_init_choice how);

/**
 * The global index (0 .. G/local - 1) of this rank's a-th microbatch of a step. See tt_mesh_microbatch.
 */
int64_t tt_engine_microbatch(const struct tt_engine *engine, int a);

/** The input buffers of microbatch a, (local_batch, seq_len) each; positions are NULL without options.documents. Ranks
 * that share layers or sequences get the same whole samples. Waits until the device has done all earlier work. */
struct tt_inputs tt_engine_inputs(const struct tt_engine *engine, int a);

/** How many labels of microbatch a count, among the tokens whose losses this rank computes. */
int64_t tt_engine_valid_labels(const struct tt_engine *engine, int a);

/** Does one optimizer step on the inputs (collective); see tt_executor_run. max_norm and scalars must be
 * set. */
int tt_engine_step(struct tt_engine *engine, struct tt_step *step) TT_MUST_CHECK;

/** The loads of experts in the last step; see tt_executor_loads. The engine must train. */
int64_t *tt_engine_loads(struct tt_engine *engine, int64_t *ret_n);

/** After TT_ENONFINITE: names the first bad value of all ranks in this thread's error message (collective). */
int tt_engine_explain(struct tt_engine *engine, struct tt_step *step) TT_MUST_CHECK;

/** The inputs of the validation program. */
struct tt_inputs tt_engine_validation_inputs(const struct tt_engine *engine);

/** Runs the validation program (collective). step->loss is the sum of all token losses, multiplied by
 * inv_valid_tokens. */
int tt_engine_validate(struct tt_engine *engine, struct tt_step *step) TT_MUST_CHECK;

/**
 * The state. The device may still work on it after a step; tt_engine_state waits for the device. A caller that keeps
 * the addresses must call tt_engine_synchronize before each access; it returns 0, or the error of failed work.
 */
struct tt_state *tt_engine_state(struct tt_engine *engine);
int tt_engine_synchronize(const struct tt_engine *engine) TT_MUST_CHECK;

const struct tt_layout *tt_engine_layout(const struct tt_engine *engine);
/** The program of a training step and its executor, or those of validation if the engine does not train. */
const struct tt_program *tt_engine_program(const struct tt_engine *engine);
struct tt_executor *tt_engine_executor(const struct tt_engine *engine);

/** When the collective that an instruction of the last step began was under way (tt_clock_sec); {0, 0} if it began
 * none. */
struct tt_span tt_engine_transfer_span(const struct tt_engine *engine, int instr);
struct tt_team *tt_engine_team(const struct tt_engine *engine);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef TT_PROGRAM_EXECUTOR_H
#define TT_PROGRAM_EXECUTOR_H

#include "core/device/device.h"
#include "core/ops/op.h"
#include "core/os/team.h"
#include "core/program/routing.h"
#include "core/program/state.h"

/**
 * The executor runs a program. All memory is in the arena that the caller has allocated: the state (shards of
 * parameters and moments, kept between steps), a region of constants per program, and one step region that the programs
 * of a job share. A run allocates nothing, opens nothing and decides nothing.
 *
 * The arena is memory of a device, and all work on it goes to one stream. tt_executor_run returns when the whole
 * program is in the stream's queue, perhaps before the program has run. The executor waits when the host needs a
 * result, and before a collective begins, since the host then reads and writes the arena. All other code must wait
 * before it touches the arena.
 */

struct tt_executor;

/**
 * Binds a program to memory and fills in its constants. Free it with tt_executor_free. const_region and step_region
 * must have at least the program's const_bytes and step_bytes, and be 64-byte aligned. All arguments must outlive the
 * executor except the stream, which must be freed first, since its queue may still contain the executor's work.
 */
struct tt_executor *tt_executor_new(const struct tt_program *program, struct tt_state *state, void *const_region,
                                    void *step_region, struct tt_team *team, struct tt_device_stream *stream);
void tt_executor_free(struct tt_executor *executor);

/** Installs the collectives. A single rank needs none. */
void tt_executor_set_exchange(struct tt_executor *executor, const struct tt_exchange *exchange);

/** Sets the numbers of this rank's microbatches among those of all ranks, which dropout reads; not copied. */
void tt_executor_set_microbatches(struct tt_executor *executor, const int64_t *numbers);

/** The address of an operand. The exchange builds its segment lists from these before the first step. */
void *tt_executor_operand(const struct tt_executor *executor, int instr, int operand);

/* The inputs of a microbatch, (B, T) int32 each; NULL: the program has no such input. */
struct tt_inputs {
    int32_t *tokens, *labels, *positions;
};

/** The memory for the inputs of microbatch mb. Waits for the stream, since earlier work may still use that memory. */
struct tt_inputs tt_executor_inputs(const struct tt_executor *executor, int mb);

/**
 * Waits for the last run of a decode graph. ret_logits: its result, (V) floats, valid until the next run of any program
 * in the same step region.
 */
int tt_executor_logits(const struct tt_executor *executor, const float **ret_logits) TT_MUST_CHECK;

/* Called after every instruction of a step, on the thread that runs it, with the time (tt_clock_sec). fn may be
 * NULL. */
struct tt_tick {
    void (*fn)(void *arg, double sec);
    void *arg;
};

/*
 * Sees what a rank computes while a step runs, for `titan reference`. The addresses are valid only during the calls,
 * which may not change anything.
 */
struct tt_observer {
    void *arg;
    /* The gradients of a unit's trained parameters, before clipping, summed over microbatches and ranks: this rank's
     * part, at the places of the parameters in the state; in the type of sums (tt_dtype_sums). */
    void (*gradients)(void *arg, int unit, const void *sums);
    /* A value after its node has run or its exchange is complete, but not rows of experts that ranks share; the losses
     * of a microbatch's tokens, once they are complete. NULL: not called. */
    void (*value)(void *arg, const struct tt_graph *graph, int value, int microbatch, const void *data);
};

/** Every later run is seen by the observer, which must outlive the executor; NULL: by none. */
void tt_executor_observe(struct tt_executor *executor, const struct tt_observer *observer);

struct tt_step {
    struct tt_scalars scalars; /* in: lr, Adam's numbers, inv_valid_tokens. out: clip */
    double max_norm;           /* in: 0 = no clipping */
    int64_t tokens;            /* in: tokens of the global batch that are not padding; 0: there is no padding */
    /* in: called on every rank at the same few places of the step, before any state changes. If it returns a negative
     * code on some rank, all ranks abandon the step with that code. NULL: steps are never abandoned */
    int (*asked_to_stop)(void);
    struct tt_tick tick; /* in */
    double loss;         /* out: the same for the z-losses; 0 if the graph has none */
    double z_loss;       /* out: the same for the z-losses; 0 if the graph has none */
    /* out: the same for the auxiliary losses of routers, which count all tokens; 0 if the graph has none */
    double router_losses[TT_ROUTER_LOSSES];
    struct tt_exact loss_sum; /* out: the global sum of token losses, exact */
    double local_loss_sum;    /* out: this rank's sum of token losses */
    double grad_norm;         /* out: L2 norm before clipping; 0 in a forward-only program */
    /* out: the slots of each expert of each block, layout.blocks x layout.experts, the same on all ranks; valid
     * until the next run. NULL: the model has no experts */
    const int64_t *loads;
};

/**
 * Runs the program once (collective over the ranks of the exchange). TT_ENONFINITE, before any parameter changes, if
 * the loss or the norm is not finite; tt_executor_explain then finds the cause.
 */
int tt_executor_run(struct tt_executor *executor, struct tt_step *step) TT_MUST_CHECK;

/**
 * Whether the ranks ask, before this instruction, if they should abandon the step. They never ask after the
 * instruction that decides (instr.h), and they ask together. Since the ranks of a pipeline are at different places in
 * different programs, they ask only between two runs of a step, when no transfer between them is under way.
 */
static inline bool tt_program_asks(const struct tt_program *program, int instr)
{
    enum { ASKED = 256 };
    int every = program->n_instrs / ASKED;

    if (program->is_piped)
        return program->instrs[instr].starts_run;
    return instr > 0 && (every <= 1 || instr % every == 0);
}

/* A value of this rank that is not finite. */
struct tt_bad_value {
    char name[256]; /* "parameter layers.0.attention.wq.weight", "layers.3.attention.o of microbatch 2"; "": there is
                       none */
    /* Its place in the computation, comparable between the ranks of a pipeline: by microbatch, then forward from the
     * first stage to the last, then backward. The value with the smallest place caused the others. */
    int64_t order;
};

/**
 * After TT_ENONFINITE, on the same inputs: runs the step again up to the clip and examines every value. Returns the
 * first value on this rank that is not finite. Collective. Changes no parameter.
 */
int tt_executor_explain(struct tt_executor *executor, struct tt_step *step, struct tt_bad_value *ret_bad) TT_MUST_CHECK;

/**
 * The expert loads of the last step, layout.blocks x layout.experts; 0 before the first step. The next step's loss
 * depends on them (tt_scalars.loads), so a caller that continues a run sets them.
 */
int64_t *tt_executor_loads(struct tt_executor *executor, int64_t *ret_n);

/**
 * When each instruction of the last run began and ended (tt_clock_sec), [n_instrs]. Between two instructions, the
 * thread advances collectives. Spans are always recorded; this costs two clock reads per instruction. After a run that
 * stopped early, the remaining spans are those of the previous run.
 */
const struct tt_span *tt_executor_spans(const struct tt_executor *executor);

#endif

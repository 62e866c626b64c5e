/* SPDX-License-Identifier: MIT */
#ifndef TT_PROGRAM_EXECUTOR_H
#define TT_PROGRAM_EXECUTOR_H

#include "core/device/device.h"
#include "core/ops/op.h"
#include "core/os/team.h"
#include "core/program/routing.h"
#include "core/program/state.h"

/**
 * The executor runs a program. All memory is in the arena that the caller allocated: the state (shards of parameters
 * and moments, kept between steps), a region of constants per program, and one step region that the programs of a job
 * share. A run allocates nothing, opens nothing and decides nothing.
 *
 * The arena is memory of a device, and all work on it goes to one stream. tt_executor_run returns once the stream has
 * been given the whole program, which may be before the program has run. The executor waits where the host needs a
 * result, and before a collective begins, since the host reads and writes the arena for it. All other code must wait
 * before it touches the arena.
 */

/* Collectives, as the executor uses them. parallel/engine/transfer/transfer.c implements them over a tt_comm. On one
 * rank all members are NULL. */
struct tt_exchange {
    void *ctx;
    int (*begin)(void *ctx, int instr); /* instr is a TT_BEGIN */
    int (*wait)(void *ctx, int instr);  /* the same */
    int (*progress)(void *ctx);         /* advances the collectives that are under way; never blocks */
    void (*poll)(void *ctx);            /* the same between tiles; progress returns the failure */
    /* begins and awaits an exchange among the ranks that share experts; what a rank gives itself is not exchanged */
    int (*swap_begin)(void *ctx, const struct tt_swap_list *give, const struct tt_swap_list *take);
    int (*swap_wait)(void *ctx);
    int (*sum)(void *ctx, int64_t *words, int n); /* adds over all ranks; each term is in one rank's words only */
    int (*most)(void *ctx, double *value);        /* the largest over all ranks */
};

struct tt_executor;

/**
 * Binds a program to memory and has its constants filled. const_region and step_region have at least the program's
 * const_bytes and step_bytes and are 64-byte aligned. All arguments must outlive the executor except the stream, which
 * must be freed first, since it may still have work of the executor.
 */
int tt_executor_new(const struct tt_program *program, struct tt_state *state, void *const_region, void *step_region,
                    struct tt_team *team, struct tt_device_stream *stream,
                    struct tt_executor **ret_executor) TT_MUST_CHECK;
void tt_executor_free(struct tt_executor *executor);

/** Installs the collectives. Not needed if there is one rank. */
void tt_executor_set_exchange(struct tt_executor *executor, const struct tt_exchange *exchange);

/** The address of an operand. The exchange builds its segment lists from these before the first step. */
void *tt_executor_operand(const struct tt_executor *executor, int instr, int operand);

/**
 * The memory for the tokens and labels of microbatch mb, (B, T) int32 each. Waits for the stream, since earlier work
 * may still use that memory.
 */
int32_t *tt_executor_tokens(const struct tt_executor *executor, int mb);
int32_t *tt_executor_labels(const struct tt_executor *executor, int mb);

/** The same for positions; NULL if the program has none. */
int32_t *tt_executor_positions(const struct tt_executor *executor, int mb);

/**
 * Waits for the last run of a decode graph. ret_logits: its result, (V) floats, valid until the next run of any program
 * in the same step region.
 */
int tt_executor_logits(const struct tt_executor *executor, const float **ret_logits) TT_MUST_CHECK;

/* Called after every instruction of a step, on the thread that runs it, with the time (tt_clock_sec). fn NULL: nobody
 * looks. */
struct tt_tick {
    void (*fn)(void *arg, double sec);
    void *arg;
};

struct tt_step {
    struct tt_scalars scalars; /* in: lr, Adam's numbers, inv_valid_tokens. out: clip */
    double max_norm;           /* in: 0 = no clipping */
    int64_t tokens;            /* in: of the global batch, without padding; 0: there is none, so all of them */
    bool decoupled;            /* in: AdamW, not Adam */
    /* in: asked on every rank at the same few places of the step, before any state changes. If a rank's answer is a
     * negative code, all ranks give the step up with that code. NULL: the step is never given up */
    int (*asked_to_stop)(void);
    struct tt_tick tick; /* in */
    double loss;         /* out: sum of the token losses of the global batch * inv_valid_tokens */
    double z_loss;       /* out: the same of the z-losses; 0 if the graph has none */
    /* out: the same of the auxiliary losses of routers, whose tokens all count; 0 if the graph has none */
    double router_losses[TT_ROUTER_LOSSES];
    struct tt_exact loss_sum; /* out: the global sum of token losses, exact */
    double local_loss_sum;    /* out: this rank's sum of token losses */
    double grad_norm;         /* out: L2 norm before clipping; 0 in a forward-only program */
    /* out: how many slots each expert of each block got, layout.blocks x layout.experts, the same on all ranks; valid
     * until the next run. NULL: the model has no experts */
    const int64_t *loads;
};

/**
 * Runs the program once (collective over the ranks of the exchange). TT_ENONFINITE, before any parameter changes, if
 * the loss or the norm is not finite; tt_executor_explain then finds the cause.
 */
int tt_executor_run(struct tt_executor *executor, struct tt_step *step) TT_MUST_CHECK;

/**
 * Whether a step asks before an instruction, if that is not after the one that decides (instr.h), whether it is to be
 * given up. Ranks ask together. The ranks of a pipeline are at different places of different programs, so they ask only
 * between the runs of a step, when nothing is on its way from one to another.
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
    /* When it is computed, the same for all ranks of a pipeline: by the microbatch, within it forward from the first
     * stage to the last one, then backward. The smallest is the cause of others. */
    int64_t order;
};

/** The first parameter of which this rank has a value that is not finite. Not collective. */
void tt_executor_bad_parameter(const struct tt_executor *executor, struct tt_bad_value *ret_bad);

/**
 * After TT_ENONFINITE, on the same inputs: runs the step again up to the clip and examines every value. Gives the first
 * one on this rank that is not finite. Collective. Changes no parameter.
 */
int tt_executor_explain(struct tt_executor *executor, struct tt_step *step, struct tt_bad_value *ret_bad) TT_MUST_CHECK;

/**
 * The loads of experts in the last step, which the loss of the global batch in the next one depends on
 * (tt_scalars.loads): layout.blocks x layout.experts, 0 before the first step. A caller that continues a run sets them.
 */
int64_t *tt_executor_loads(struct tt_executor *executor, int64_t *ret_n);

/**
 * When each instruction of the last run began and ended (tt_clock_sec), [n_instrs]. The time between two of them is the
 * progress of collectives. Spans are always recorded, which takes two readings of the clock per instruction. After a
 * run that stopped early, the remaining spans are those of the previous run.
 */
const struct tt_span *tt_executor_spans(const struct tt_executor *executor);

#endif

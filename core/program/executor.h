/* SPDX-License-Identifier: MIT */
#ifndef TT_PROGRAM_EXECUTOR_H
#define TT_PROGRAM_EXECUTOR_H

#include "core/device/device.h"
#include "core/math/exact.h"
#include "core/ops/op.h"
#include "core/os/team.h"
#include "core/program/program.h"

/**
 * The executor walks a program. All memory is the arena that the caller allocated: state (parameter and moment shards,
 * kept between steps), a region of constants per program, and one step region that the programs of a job share.
 * Running allocates nothing, opens nothing and decides nothing.
 *
 * The arena is memory of a device, and all work on it goes to one stream. A run ends when the stream has been given the
 * whole program, which may be before it has run. The executor itself waits where the host needs a result, and before a
 * collective begins, which reads and writes the arena from the host. Everybody else waits before touching the arena.
 */

/* Sums of a step that the stream adds up and the host reads. */
enum { TT_SUM_LOSS, TT_SUM_SQUARES, TT_SUMS };

/* The state of one rank: flat shards, one array per unit, as the layout says. */
struct tt_state {
    float **param;         /* [unit] shard_elements */
    float **exp_avg;       /* [unit]; NULL before training (validation only) */
    float **exp_avg_sq;    /* [unit] */
    char *cache;           /* the program's cache_bytes, for generation */
    struct tt_exact *sums; /* [TT_SUMS] */
    int n_units;
};

/* How collectives happen; parallel/engine/transfer.c implements it over a tt_comm. NULL members on one rank. */
struct tt_exchange {
    void *ctx;
    int (*begin)(void *ctx, int instr);                  /* instr is a TT_BEGIN */
    int (*wait)(void *ctx, int instr);                   /* the same */
    int (*progress)(void *ctx);                          /* advances what is under way; never blocks */
    void (*poll)(void *ctx);                             /* the same between tiles; keeps a failure for progress */
    int (*sum)(void *ctx, struct tt_exact *sums, int n); /* over all ranks; sums already hold each term once */
    int (*most)(void *ctx, double *value);               /* the largest over all ranks */
};

struct tt_executor;

/**
 * Binds a program to memory and has its constants filled. const_region and step_region have at least the program's
 * const_bytes and step_bytes and are 64-byte aligned. Everything passed in must outlive the executor, but the stream,
 * which must be freed first: it may still have work of the executor.
 */
int tt_executor_new(const struct tt_program *program, struct tt_state *state, void *const_region, void *step_region,
                    struct tt_team *team, struct tt_device_stream *stream,
                    struct tt_executor **ret_executor) TT_MUST_CHECK;
void tt_executor_free(struct tt_executor *executor);

/** Installs the collectives; not needed when no rank exchanges anything. */
void tt_executor_set_exchange(struct tt_executor *executor, const struct tt_exchange *exchange);

/** The address of an operand; for the exchange, which builds its segment lists before the first step. */
void *tt_executor_operand(const struct tt_executor *executor, int instr, int operand);

/**
 * Where the loader writes microbatch mb's tokens and labels, (B, T) int32 each. Waits for the stream, since earlier
 * work may still use that memory.
 */
int32_t *tt_executor_tokens(const struct tt_executor *executor, int mb);
int32_t *tt_executor_labels(const struct tt_executor *executor, int mb);

/**
 * Waits for the last run of a decode graph. ret_logits: its result, (V) floats, valid until the next run of any program
 * in the same step region.
 */
int tt_executor_logits(const struct tt_executor *executor, const float **ret_logits) TT_MUST_CHECK;

struct tt_step {
    struct tt_scalars scalars; /* in: lr, Adam's numbers, inv_valid_tokens. out: clip */
    double max_norm;           /* in: 0 = no clipping */
    bool decoupled;            /* in: AdamW, not Adam */
    /* in: asked on every rank at the same few places of the step, before anything that is kept changes. Where one
     * rank's answer is not 0 but a negative code, the step is given up on all, with that code and the state
     * before it. NULL: never */
    int (*asked_to_stop)(void);
    double loss;              /* out: sum of the token losses of the global batch * inv_valid_tokens */
    struct tt_exact loss_sum; /* out: the global sum of token losses, exact */
    double local_loss_sum;    /* out: this rank's sum of token losses */
    double grad_norm;         /* out: L2 norm before clipping; 0 in a forward-only program */
};

/**
 * Runs the program once (collective over the ranks of the exchange). A loss or norm that is not finite is
 * TT_ENONFINITE, before any parameter changed; tt_executor_explain then finds the culprit.
 */
int tt_executor_run(struct tt_executor *executor, struct tt_step *step) TT_MUST_CHECK;

/**
 * Writes the first of this rank's parameters that holds a value that is not finite, "parameter
 * layers.0.attention.wq.weight", into name; empty if none does. Not collective.
 */
void tt_executor_bad_parameter(const struct tt_executor *executor, char *name, size_t name_size);

/**
 * After TT_ENONFINITE, on the same inputs: runs the step again up to the clip, looking at every value, and writes the
 * first that is not finite on this rank, "layers.3.attention.o of microbatch 2", into name; empty if none here.
 * Collective. Changes no parameter.
 */
int tt_executor_explain(struct tt_executor *executor, struct tt_step *step, char *name, size_t name_size) TT_MUST_CHECK;

/**
 * When each instruction of the last run began and ended (tt_clock_sec), [n_instrs]; what lies between two of them is
 * the progress of collectives. Always recorded: two readings of the clock an instruction. After a run that stopped
 * early the rest is of the run before.
 */
const struct tt_span *tt_executor_spans(const struct tt_executor *executor);

#endif

/* SPDX-License-Identifier: MIT */
#ifndef TT_PROGRAM_INTERNAL_H
#define TT_PROGRAM_INTERNAL_H

#include "core/math/tree.h"
#include "core/ops/step/step.h"
#include "core/program/program.h"
#include "core/program/routing.h"
#include "core/program/state.h"

/**
 * The walk over a schedule that makes a program. Only lower.c and the rows of instructions use its members.
 */
struct tt_walk {
    struct tt_lowering in;
    struct tt_program *program;
    int at; /* index in the schedule of the instruction that is being lowered */
    /* gradients are carried from one microbatch to the next, either in all stages or in none */
    bool carries;
    int n_values;            /* number of values of all stages together */
    int *first_value;        /* stage -> the number of its first value among them */
    int *same_as;            /* number of a value -> number of the value whose buffer it uses, usually its own */
    int *last_reader;        /* slot -> index in the schedule of its last reader, or TT_NONE */
    int *value_buffer;       /* slot -> its buffer */
    int **grad_buffer;       /* microbatch * n_units + unit -> whole gradients, by their index in the unit */
    int *unit_grad;          /* microbatch * n_units + unit -> its flat gradient, if nothing is reduced */
    int *param_shard;        /* unit -> state buffer of its parameter shard */
    int *unsharded;          /* param -> gathered buffer, TT_NONE if it is resharded */
    int *update;             /* param -> gathered Muon update, TT_NONE if nothing is gathered */
    int *kept;               /* unit -> kept part; TT_NONE if nothing is kept */
    int *begun[TT_PURPOSES]; /* by purpose in the schedule: unit -> its TT_BEGIN without a wait so far */
    int *transfer_begun;     /* the same for transfers: (microbatch * n_stages + stage) * TT_PURPOSES + purpose */
    bool *tag_taken;         /* tag -> whether a collective under way uses it */
    int n_tags, cap_tags;
    int *exchanging; /* TT_BEGINs of exchanges inside a layer for which no wait has been added yet */
    int n_exchanging, cap_exchanging;
    int n_exchanges[TT_AXES]; /* number of exchanges that have begun so far */
    int block;                /* number of microbatches whose gradients are added before they are reduced, at least 1 */
    /* The sums before the reduction, a tree (core/math/tree.h) for each unit and block: the microbatch whose buffers
     * contain the sum. */
    int *block_sums;
    int *partial; /* the sums of reduced gradients, a tree for each unit: their buffers */
    int n_leaves; /* leaves of each of these trees */
};

/** The tree of sums of a unit's gradients in the block of a microbatch. */
static inline int *tt_lower_block_sums(const struct tt_walk *w, int mb, int unit)
{
    int64_t blocks = w->in.microbatches / w->block;

    return &w->block_sums[(unit * blocks + mb / w->block) * tt_tree_nodes(w->block)];
}

/** The tree of sums of a unit's reduced gradients. */
static inline int *tt_lower_partial(const struct tt_walk *w, int unit)
{
    return &w->partial[unit * tt_tree_nodes(w->n_leaves)];
}

/**
 * The slot of a value of a microbatch. If a value exists in several stages, these share a slot: boundaries and their
 * gradients, inputs and constants.
 */
static inline int64_t tt_lower_slot(const struct tt_walk *w, int mb, int stage, int value)
{
    return (int64_t)mb * w->n_values + w->same_as[w->first_value[stage] + value];
}

/** The TT_BEGIN of a transfer between stages for which no wait has been added yet, or TT_NONE. */
static inline int *tt_lower_transfer_begun(struct tt_walk *w, const struct tt_instr *from)
{
    return &w->transfer_begun[((int64_t)from->microbatch * w->in.n_stages + from->stage) * TT_PURPOSES +
                              (int)from->purpose];
}

/** The graph of an instruction of the schedule. */
static inline const struct tt_graph *tt_lower_graph(const struct tt_walk *w, const struct tt_instr *from)
{
    return w->in.stages[from->stage].graph;
}

/* lower.c */

/** A new buffer whose life begins with the next instruction. Returns its id. */
int tt_lower_buffer(struct tt_walk *w, enum tt_memory_kind kind, int64_t bytes);

/** A buffer that covers `bytes` bytes of another one, from `offset` on. */
int tt_lower_part(struct tt_walk *w, int root, int64_t offset, int64_t bytes);

/** Begins a new instruction, a copy of `from` without operands. It is then the newest instruction. */
void tt_lower_begin(struct tt_walk *w, const struct tt_instr *from);

/** Adds an operand, or TT_NONE, to the newest instruction. The buffer then lives at least until that instruction. */
void tt_lower_operand(struct tt_walk *w, int buffer);

/** A new buffer that the newest instruction writes. */
int tt_lower_made(struct tt_walk *w, enum tt_memory_kind kind, int64_t bytes);

/** The buffer of a value in the microbatch and stage of an instruction; TT_NONE if there is none. */
int tt_lower_input(struct tt_walk *w, const struct tt_instr *from, int value);

/** The buffer for output k of an instruction's node: a new one, or the buffer of an input that nothing reads later. */
int tt_lower_output(struct tt_walk *w, const struct tt_instr *from, int k);

/** A new buffer for a value of the microbatch and stage of an instruction, which the newest instruction writes. */
int tt_lower_value(struct tt_walk *w, const struct tt_instr *from, int value);

/** The buffer in which microbatch mb's whole gradient k of a unit is written. */
int tt_lower_grad(struct tt_walk *w, int mb, int unit, int k);

/** The first of the microbatches that share their gradient buffers with mb. */
static inline int64_t tt_lower_grad_owner(const struct tt_walk *w, int mb)
{
    return w->carries ? 0 : mb;
}

/** The finished sum of a unit's gradients. */
static inline int tt_lower_sum(const struct tt_walk *w, int unit)
{
    return tt_tree_root(tt_lower_partial(w, unit));
}

/* instr/nodes.c, experts.c */

/** Adds the inputs of an instruction's node as operands of the newest instruction. */
int tt_lower_inputs(struct tt_walk *w, const struct tt_instr *from) TT_MUST_CHECK;

/**
 * Waits for the exchanges inside a layer that produce inputs of an instruction's node, or send data that the node
 * overwrites.
 */
void tt_lower_await_inputs(struct tt_walk *w, const struct tt_instr *from);

/* instr/collective.c */

/** If an instruction's node is an exchange, begins it. */
int tt_lower_exchange(struct tt_walk *w, const struct tt_instr *from) TT_MUST_CHECK;

/**
 * Waits for the exchange inside a layer that writes a buffer and, if the buffer is `overwritten`, for exchanges that
 * read it.
 */
void tt_lower_await(struct tt_walk *w, int buffer, bool overwritten);

/** Waits for the collectives that produce gradients of the instruction's units and microbatch. */
void tt_lower_await_grads(struct tt_walk *w, const struct tt_instr *from);

/** Waits for all exchanges and collectives that are under way. */
void tt_lower_await_all(struct tt_walk *w);

/** Notes that the schedule's instruction `at` may read the values of the transfer `from`. */
void tt_lower_note_crossing(struct tt_walk *w, const struct tt_instr *from, int at);

/** Exchanges a unit's sum of its shared gradient, the buffer `own`, with the other end of the pipeline. Returns the
 * buffer of the other sum. */
int tt_lower_exchange_tied(struct tt_walk *w, const struct tt_instr *from, int own);

/** Adds a TT_BEGIN for a purpose: the purpose of `from`, or one that replaces it. The caller adds the operands. */
void tt_lower_collective(struct tt_walk *w, const struct tt_instr *from, enum tt_purpose purpose);

/** The collective of these units, without a tag. */
static inline struct tt_collective_desc tt_lower_describe(const struct tt_walk *w, enum tt_purpose purpose,
                                                          const int *units, int n)
{
    int64_t elements = 0;

    for (int i = 0; i < n; i++)
        elements += tt_purpose_elements(&w->in.layout->units[units[i]], purpose);
    return tt_lowering_collective(&w->in, purpose, units[0], elements);
}

struct tt_step; /* core/program/executor.h */
struct tt_bad_value;
struct tt_observer;

/**
 * A running program. Only executor.c and the rows of instructions use its members.
 */
struct tt_executor {
    const struct tt_program *program;
    struct tt_state *state;
    struct tt_team *team;
    struct tt_device_stream *stream; /* for all computation */
    int64_t done;                    /* the event after the last run */
    struct tt_exchange exchange;
    struct tt_routing routing; /* for experts that ranks share */
    void **address;            /* per operand of the program */
    char *const_region, *step_region;
    struct tt_rows **rows;       /* [unit][trained parameter] this rank's rows, for the norm and the optimizer */
    struct tt_rows ***parts;     /* [unit][parameter] the parts of all ranks of TT_GROUP_MATRIX, or NULL */
    struct tt_exact *sums;       /* the sums of the last run; tt_sums_bytes */
    struct tt_exact *none;       /* zeros, the same number of words as the sums */
    const int64_t *microbatches; /* their numbers in the step; NULL: 0, 1, ... */
    int64_t *loads;        /* loads of experts in the last complete step, 0 before the first; NULL: there are none */
    struct tt_span *spans; /* [instruction] times of the last run */
    /* in explain, otherwise NULL: the first bad value so far; its name is "" if another rank produced it and will name
     * it */
    struct tt_bad_value *bad;
    const struct tt_observer *observer; /* NULL: none */
};

/** The ranks that share the experts of a node. */
struct tt_routing_ranks tt_node_routing_ranks(const struct tt_node *node);

/** The addresses of an instruction's operands. */
static inline void *const *tt_running_address(const struct tt_executor *executor, const struct tt_instr *instr)
{
    return &executor->address[instr->operands];
}

/** Whether all n elements, of type TT_F32 or TT_BF16, are finite; true for other types. */
bool tt_running_all_finite(enum tt_dtype dtype, const void *data, int64_t n);

/** Gives a step op to the stream. */
void tt_running_step(struct tt_executor *executor, struct tt_step_call call);

/** The place of an instruction's node in the step (struct tt_bad_value). */
int64_t tt_running_order(const struct tt_executor *ex, const struct tt_instr *instr);

/** Waits for the collective that instruction i began. */
int tt_running_wait(struct tt_executor *ex, int i) TT_MUST_CHECK;

#endif

/* SPDX-License-Identifier: MIT */
#ifndef TT_PROGRAM_LOWERING_H
#define TT_PROGRAM_LOWERING_H

#include "core/program/program.h"

/**
 * The walk over a schedule that makes a program; only lower.c, lower_buffers.c and lower_collectives.c look inside.
 */
enum { TT_MOST_LEVELS = 32 };

/* A unit may be gathered again while its reduce-scatter is still under way, so waits are paired by kind and unit. */
enum tt_awaited { TT_AWAIT_GATHER, TT_AWAIT_REDUCE, TT_AWAIT_ALL_REDUCE, TT_AWAITED };

struct tt_walk {
    struct tt_lowering in;
    struct tt_program *program;
    bool sharded;                 /* more than one shard: collectives are real */
    bool gathers;                 /* parameters are not the shards: several, or of another type */
    int *last_reader;             /* microbatch * n_values + value -> node that reads it last, TT_NONE if none */
    int *value_buffer;            /* microbatch * n_values + value -> buffer */
    int *grad_buffer;             /* microbatch * n_params + param -> whole gradient */
    int *unit_grad;               /* microbatch * n_units + unit -> its flat gradient, when there is one shard */
    int *param_shard;             /* unit -> state buffer of its parameter shard */
    int *unsharded;               /* param -> gathered buffer, TT_NONE when resharded */
    int *kept;                    /* unit -> kept part, TT_NONE when there is none */
    int *begun[TT_AWAITED];       /* unit -> instruction that began its newest collective of each kind */
    int (*level)[TT_MOST_LEVELS]; /* unit -> buffers of partial sums, TT_NONE where empty */
    int *sum;                     /* unit -> finished gradient shard */
};

/* lower_buffers.c */

/** A new buffer that lives from the next instruction on; its id. */
int tt_lower_buffer(struct tt_walk *w, enum tt_memory_kind kind, int64_t bytes);

/** `bytes` bytes of another buffer, from `offset` on, as a buffer. */
int tt_lower_part(struct tt_walk *w, int root, int64_t offset, int64_t bytes);

/** Begins an instruction, a copy of `from` without operands: the newest one. */
void tt_lower_begin(struct tt_walk *w, const struct tt_instr *from);

/** Adds an operand, or TT_NONE, to the newest instruction; the buffer lives at least until there. */
void tt_lower_operand(struct tt_walk *w, int buffer);

/** A buffer made by the newest instruction. */
int tt_lower_made(struct tt_walk *w, enum tt_memory_kind kind, int64_t bytes);

/** The buffer of a value that microbatch mb reads; TT_NONE when it is not there. */
int tt_lower_input(struct tt_walk *w, int mb, int value);

/** The buffer that output k of a node writes in microbatch mb: a new one, or an input's that nobody reads later. */
int tt_lower_output(struct tt_walk *w, int mb, int node, int k);

/** Where microbatch mb's whole gradient of a parameter is written. */
int tt_lower_grad(struct tt_walk *w, int mb, int param);

/** The first of the microbatches that share their gradients with mb. */
int64_t tt_lower_grad_owner(const struct tt_walk *w, int mb);

/* lower_collectives.c: one instruction of the schedule each */

/** A wait has the operands of what it waits for, so that they live until then; returns that. */
const struct tt_instr *tt_lower_wait(struct tt_walk *w, const struct tt_instr *from, enum tt_awaited kind);

/** Gathers from the kept parts where there are any: the schedule need not know. */
int tt_lower_unshard(struct tt_walk *w, const struct tt_instr *from) TT_MUST_CHECK;
void tt_lower_reshard(struct tt_walk *w, const struct tt_instr *from);
void tt_lower_keep(struct tt_walk *w, const struct tt_instr *from);
void tt_lower_reduce(struct tt_walk *w, const struct tt_instr *from);

/** One shard: there is nothing to exchange, but what would travel is rounded all the same. */
void tt_lower_round(struct tt_walk *w, const struct tt_instr *from);
void tt_lower_wait_reduce(struct tt_walk *w, const struct tt_instr *from);
void tt_lower_all_reduce(struct tt_walk *w, const struct tt_instr *from);

#endif

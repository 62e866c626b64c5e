/* SPDX-License-Identifier: MIT */
#ifndef TT_PROGRAM_PROGRAM_H
#define TT_PROGRAM_PROGRAM_H

#include <stdint.h>

#include "core/base/error.h"
#include "core/graph/graph.h"
#include "core/program/layout.h"

/**
 * A program: one optimizer step (or one validation batch) of one rank, as a linear list of instructions on buffers whose
 * addresses in one arena are known before anything runs.
 *
 * A scheduler (parallel/fsdp/fsdp.c) writes the schedule: which node or collective comes when, for all microbatches.
 * tt_program_new lowers it: every value of every microbatch becomes a buffer with a first and a last instruction,
 * gradients become sums in the order of the balanced tree over microbatches, and the memory plan gives offsets. The
 * executor walks the result and decides nothing; `titan plan` prints it.
 */
enum tt_instr_kind {
    TT_RUN,          /* run a node of a microbatch */
    TT_LOSS,         /* add the microbatch's token losses to the exact sum */
    TT_UNSHARD,      /* start gathering a unit's parameters */
    TT_WAIT_UNSHARD, /* until they are there */
    TT_RESHARD,      /* the unit's gathered parameters are not needed any more */
    TT_KEEP,         /* the same, but this rank's part of them is copied aside: 1/n, see tt_unit.keep_degree */
    TT_UNSHARD_KEPT, /* start gathering a unit from the kept parts of n neighbouring ranks; TT_WAIT_UNSHARD completes it */
    TT_REDUCE,       /* start the reduce-scatter of a unit's gradients of one microbatch */
    TT_WAIT_REDUCE, /* until this rank has its sum */
    TT_FOLD,        /* add sums of earlier microbatches, in tree order */
    TT_ALL_REDUCE,  /* start the sum of a unit's gradient shard over the replicas */
    TT_WAIT_ALL_REDUCE,
    TT_NORM,      /* add the squares of a unit's gradient shard to the exact sum */
    TT_CLIP,      /* sum loss and norm over the ranks; stop here if not finite; set the clip scalar */
    TT_OPTIMIZER, /* update a unit's shard */
    TT_INSTR_KINDS
};

/** "run", "unshard", "wait", … for plans and traces. */
const char *tt_instr_name(enum tt_instr_kind kind);

/* Units whose collective is issued as one. */
struct tt_bucket {
    int *units;
    int n;
};

struct tt_instr {
    enum tt_instr_kind kind;
    int microbatch; /* TT_RUN, TT_LOSS, TT_REDUCE, TT_WAIT_REDUCE, TT_FOLD */
    int node;       /* TT_RUN */
    int unit;       /* all but TT_RUN, TT_LOSS, TT_CLIP; of a bucket the first */
    int bucket;     /* collectives of several units: index into buckets; TT_NONE: just `unit` */
    int begin;      /* TT_WAIT_*: the instruction it completes */
    int operands;   /* index of the first operand in tt_program.operands; see below */
    int n_operands;
};

/*
 * Operands are buffer ids (TT_NONE: absent optional input):
 *   TT_RUN           the node's inputs, its outputs, the scratch buffer
 *   TT_LOSS          the token losses
 *   TT_UNSHARD       the units' parameters, whole, one buffer each (also on its wait; on TT_RESHARD those of one
 *                    unit, or none when lowering freed each after its last read)
 *   TT_KEEP          the unit's parameters, whole; its kept part: (S / n) chunks of every parameter, one after the other
 *   TT_UNSHARD_KEPT  the units' parameters, whole; the kept part of each unit (also on its wait)
 *   TT_REDUCE        the units' whole gradients, one buffer each, a result (flat shard) per unit, staging (also on its
 *                    wait); on one shard with bfloat16 the units' gradients only
 *   TT_FOLD          the leaf, then partial sums from the smallest to the largest; the last one is also written
 *   TT_ALL_REDUCE    the units' gradient shards, staging (also on its wait)
 *   TT_NORM, TT_OPTIMIZER  the unit's gradient shard
 */

enum tt_memory_kind {
    TT_MEMORY_PARAM,     /* parameter shards (state) */
    TT_MEMORY_OPTIMIZER, /* optimizer moments (state) */
    TT_MEMORY_CONST,     /* tables */
    TT_MEMORY_CACHE,     /* keys and values of generation, kept between runs */
    TT_MEMORY_INPUT,     /* tokens and labels */
    TT_MEMORY_UNSHARDED, /* gathered parameters */
    TT_MEMORY_KEPT,      /* parts of them that wait for the backward pass */
    TT_MEMORY_ACTIVATION,
    TT_MEMORY_ACTIVATION_GRAD,
    TT_MEMORY_PARAM_GRAD, /* whole gradients of one microbatch */
    TT_MEMORY_GRAD,       /* gradient shards and partial sums */
    TT_MEMORY_STAGING,    /* what collectives receive before they add */
    TT_MEMORY_SCRATCH,    /* of one op */
    TT_MEMORY_KINDS
};

const char *tt_memory_name(enum tt_memory_kind kind);

struct tt_buffer {
    enum tt_memory_kind kind;
    int64_t bytes;
    int first, last; /* instructions between which it holds data, inclusive */
    int root;        /* the buffer whose memory it is part of; itself when it has its own */
    int64_t offset;  /* bytes: inside the root, or inside the region (step, const, the unit's parameter shard) */
    int value;       /* graph value it holds, or TT_NONE */
    int microbatch;  /* of that value, or TT_NONE */
    int unit;        /* TT_MEMORY_PARAM: whose shard; gradients: whose; else TT_NONE */
};

struct tt_program {
    const struct tt_graph *graph;   /* of one microbatch; not owned */
    const struct tt_layout *layout; /* not owned */
    int microbatches;
    int threads;                             /* of the team; scratch sizes depend on it */
    enum tt_dtype param_dtype, reduce_dtype; /* TT_F32 or TT_BF16: what gathers and reduce-scatters carry (mixed.h) */
    struct tt_instr *instrs;
    int n_instrs, cap_instrs;
    struct tt_bucket *buckets;
    int n_buckets, cap_buckets;
    int *operands;
    int n_operands, cap_operands;
    struct tt_buffer *buffers;
    int n_buffers, cap_buffers;
    int *tokens, *labels; /* buffers of each microbatch's inputs */
    int logits;           /* buffer of a decode graph's result, there until the next run; else TT_NONE */
    int64_t const_bytes;  /* region of constants, kept between runs */
    int64_t cache_bytes;  /* region of the key/value cache, kept between runs */
    int64_t step_bytes;   /* region of everything transient: the high-water mark of the plan */
    int64_t live_bytes;   /* largest sum of live step buffers; step_bytes cannot be less */
    int peak_instr;       /* where that is */
};

/* A time: seconds since the step began, or of tt_clock_sec. */
struct tt_span {
    double begin, end;
};

/* What a scheduler writes, in order; n_microbatches copies of the graph unrolled. */
struct tt_schedule {
    struct tt_instr *instrs; /* kind, microbatch, node, unit, bucket; the rest is filled by lowering */
    int n, cap;
    struct tt_bucket *buckets;
    int n_buckets, cap_buckets;
};

void tt_schedule_add(struct tt_schedule *schedule, enum tt_instr_kind kind, int microbatch, int node, int unit);

/** Declares a bucket of n units (copied); returns its index for tt_schedule_add_bucket. */
int tt_schedule_bucket(struct tt_schedule *schedule, const int *units, int n);
void tt_schedule_add_bucket(struct tt_schedule *schedule, enum tt_instr_kind kind, int microbatch, int bucket);

void tt_schedule_release(struct tt_schedule *schedule);

/** The units of a collective instruction: ret_n of them, valid as long as the buckets and the instruction are. */
const int *tt_instr_units(const struct tt_bucket *buckets, const struct tt_instr *instr, int *ret_n);

/** What a collective carries, given what gathers and reduce-scatters carry. Sums over replicas travel as they are. */
static inline enum tt_dtype tt_wire_dtype(enum tt_instr_kind kind, enum tt_dtype param_dtype,
                                          enum tt_dtype reduce_dtype)
{
    return kind == TT_UNSHARD || kind == TT_UNSHARD_KEPT ? param_dtype : kind == TT_REDUCE ? reduce_dtype : TT_F32;
}

/**
 * Bytes of one rank's flat shards of the units of an instruction, as they travel. TT_UNSHARD_KEPT sends S / n times as
 * much of each.
 */
int64_t tt_instr_shard_bytes(const struct tt_program *program, const struct tt_instr *instr);

/* What lowering needs to know beside the schedule. */
struct tt_lowering {
    const struct tt_graph *graph;
    const struct tt_layout *layout;
    int microbatches;
    int threads;
    enum tt_dtype param_dtype, reduce_dtype; /* TT_F32 (0) or TT_BF16 */
    bool free_early; /* a gathered parameter's memory is free after its last read, not only at its unit's reshard */
    /* Bytes that a collective receives before it adds them; from parallel/, which knows the algorithms. */
    int64_t (*reduce_staging)(const struct tt_layout *layout, int64_t shard_bytes);
    int64_t (*all_reduce_staging)(const struct tt_layout *layout, int64_t shard_bytes);
};

/** Before there is a program: tt_instr_shard_bytes of a collective over these units, and what a TT_REDUCE receives. */
int64_t tt_lowering_shard_bytes(const struct tt_lowering *lowering, enum tt_instr_kind kind, const int *units, int n);
int64_t tt_lowering_reduce_staging(const struct tt_lowering *lowering, int64_t shard_bytes);

/**
 * Lowers a schedule. With one shard the unshard, reshard and reduce instructions vanish: parameters are the shards and
 * gradients are written where they accumulate; but for parameters in bfloat16, which are always copies, and gradients in
 * bfloat16, which TT_REDUCE then rounds where they are. lowering's graph and layout must outlive the program.
 */
int tt_program_new(const struct tt_lowering *lowering, const struct tt_schedule *schedule,
                   struct tt_program **ret_program) TT_MUST_CHECK;
void tt_program_free(struct tt_program *program);

/** Sums of live bytes by kind at one instruction; state kinds are not included. */
void tt_program_memory_at(const struct tt_program *program, int instr, int64_t bytes[TT_MEMORY_KINDS]);

/**
 * Checks a program independently of how it was made: no two live buffers overlap, every operand is read within its
 * buffer's life, nothing reaches beyond its region. TT_EINTERNAL names the instruction and the buffers. Quadratic in the
 * buffers that live at once; for tests and debug.check_plan.
 */
int tt_program_check(const struct tt_program *program) TT_MUST_CHECK;

/** Bytes of state of one rank: parameter shards, and optimizer moments (two per element). */
int64_t tt_layout_param_bytes(const struct tt_layout *layout);

/**
 * Offsets for n buffers with lifetimes so that no two live ones overlap; returns the high-water mark in bytes.
 * Reads bytes, first, last, root == own index; writes offset. live_bytes is the lower bound, reached at *ret_peak.
 */
int64_t tt_memory_plan(struct tt_buffer *buffers, int n, int n_instrs, int64_t *ret_live_bytes, int *ret_peak);

#endif

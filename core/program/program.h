/* SPDX-License-Identifier: MIT */
#ifndef TT_PROGRAM_PROGRAM_H
#define TT_PROGRAM_PROGRAM_H

#include <stdint.h>

#include "core/base/error.h"
#include "core/math/round.h"
#include "core/passes/stage.h"
#include "core/program/layout.h"

/**
 * A program is one optimizer step (or one validation batch) of one rank: a linear list of instructions on buffers whose
 * offsets in one arena are known before anything runs.
 *
 * It computes the stages (core/passes/stage.h) of this rank: the whole model as one graph, or several graphs. A value
 * that leaves one stage and enters the next has one buffer; so does its gradient, which goes the other way.
 *
 * A scheduler (parallel/fsdp/fsdp.c) writes the schedule: which node or collective comes when, for all microbatches.
 * tt_program_new lowers it. Every value of every microbatch becomes a buffer with a first and a last instruction,
 * gradients are summed in the order of the balanced tree over microbatches, and the memory plan assigns offsets. The
 * executor runs the result and decides nothing; `titan plan` prints it.
 */
enum tt_instr_kind {
#define TT_INSTR(id, row) TT_##id,
#include "core/program/instr.def"
#undef TT_INSTR
    TT_INSTR_KINDS
};

/* The purpose of a collective. A TT_WAIT keeps the purpose from the schedule, although lowering may choose another one
 * for the TT_BEGIN. */
enum tt_purpose {
#define TT_PURPOSE(id, row) TT_##id,
#include "core/program/purpose.def"
#undef TT_PURPOSE
    TT_PURPOSES
};

enum { TT_ARENA_ALIGN = 64 }; /* a cache line, and the size of the widest vector */

/** The bytes that an array takes in an arena. */
static inline int64_t tt_arena_bytes(int64_t bytes)
{
    return tt_round_up(bytes, TT_ARENA_ALIGN);
}

/* Sends and receives are between two ranks of a group; the other operations are among all of its ranks, or among
 * neighbours in it. */
enum tt_collective_op {
    TT_ALL_GATHER,
    TT_REDUCE_SCATTER,
    TT_ALL_SUM,
    TT_ALL_TO_ALL,
    TT_SEND,
    TT_RECEIVE,
    TT_COLLECTIVE_OPS
};

/* The exchange of a TT_BEGIN, and the number of its ranks. */
struct tt_collective_desc {
    enum tt_collective_op op;
    enum tt_group_id group;
    int ranks;           /* number of ranks: the whole group, or neighbours in it */
    int peer;            /* for a send or a receive: the place of the other rank in the group */
    enum tt_dtype dtype; /* type in which the data travels */
    int64_t shard_bytes; /* bytes of one rank's flat shards of the units, in that type */
    /* a rank's input to an all-gather, or its output from a reduce-scatter; the values of an all-reduce; a rank's
     * block for each other rank in an all-to-all; the data of a send */
    int64_t bytes;
    int tag; /* 0 or more; no other collective under way uses the same tag */
};

/** Whether any data travels. Nothing else decides this. */
static inline bool tt_collective_travels(const struct tt_collective_desc *desc)
{
    return desc->ranks > 1;
}

/* Units that share one collective. */
struct tt_bucket {
    const int *units;
    int n;
};

struct tt_instr {
    enum tt_instr_kind kind;
    enum tt_purpose purpose; /* TT_BEGIN, TT_WAIT */
    int microbatch;          /* TT_RUN, TT_LOSS, TT_COUNT, TT_ADD, TT_FOLD; reductions: the microbatch that came last */
    int stage; /* TT_RUN, TT_LOSS, TT_COUNT, transfers, exchanges inside a layer: index into stages; else 0 */
    /* TT_RUN, TT_BEGIN of an exchange inside a layer: in that graph; in a schedule also TT_COUNT; else TT_NONE */
    int node;
    int unit;        /* for a bucket its first unit; TT_RUN, TT_LOSS, TT_COUNT, TT_CLIP, transfers: TT_NONE */
    int bucket;      /* collectives of several units: index into buckets; TT_NONE: only `unit` */
    int begin;       /* TT_WAIT: the TT_BEGIN that it waits for; else TT_NONE */
    bool starts_run; /* the first instruction of a further run through the pipeline (tt_lowering.run_microbatches) */
    int operands;    /* index of the first operand in tt_program.operands; see below */
    int n_operands;
    struct tt_collective_desc collective; /* TT_BEGIN */
};

/*
 * Operands are buffer ids (TT_NONE: absent optional input):
 *   TT_RUN, TT_EXPERTS  the node's inputs, its outputs, the scratch buffer
 *   TT_LOSS          the token losses
 *   TT_COUNT         the experts of the tokens, the terms of the router's losses
 *   TT_RESHARD       the unit's parameters, whole, one buffer each; none if lowering frees each after its last read
 *   TT_KEEP          the unit's parameters, whole; its kept part: (S / n) chunks of every parameter, one after the
 *                    other
 *   TT_ADD           for each whole gradient of the unit, or for all at once if nothing is reduced: that of the
 *                    microbatch, then its neighbours in the tree, as of TT_FOLD
 *   TT_FOLD          a sum, then its neighbours in the tree from the smallest to the largest; the last one is also
 *                    written
 *   TT_NORM, TT_OPTIMIZER  the unit's gradient shard; TT_OPTIMIZER replaces Muon's part of it by the updates
 *   TT_MUON          the whole update of each of the unit's matrices that Muon trains, scratch
 *   TT_BEGIN, and the TT_WAIT that completes it, by purpose:
 *     TT_UNSHARD       the units' parameters, whole, one buffer each
 *     TT_UNSHARD_KEPT  the same, then the kept part of each unit
 *     TT_REDUCE        the units' whole gradients, one buffer each, a result (flat shard) per unit, staging; if
 *                      nothing travels, only the units' gradients
 *     TT_ALL_REDUCE    the units' gradient shards, staging
 *     TT_GATHER_UPDATES  the whole updates of the units' matrices, one buffer each; Muon's part of each unit's gradient
 *                      shard
 *     TT_SEND_VALUES, TT_RECEIVE_VALUES, TT_SEND_GRADS, TT_RECEIVE_GRADS
 *                      the values that cross the boundary of a stage, or their gradients
 *     TT_SEND_TIED, TT_RECEIVE_TIED
 *                      the sum of a tied weight's gradient that this rank made, or the other one
 *     TT_GATHER_VALUES, TT_SUM_VALUES, TT_SUM_ALL_VALUES, TT_SWAP_VALUES
 *                      the node's inputs, its output, staging
 */

enum tt_memory_kind {
    TT_MEMORY_PARAM,     /* parameter shards (state) */
    TT_MEMORY_OPTIMIZER, /* optimizer moments (state) */
    TT_MEMORY_CONST,     /* tables */
    TT_MEMORY_CACHE,     /* keys and values of generation, kept between runs */
    TT_MEMORY_INPUT,     /* tokens, labels and positions */
    TT_MEMORY_UNSHARDED, /* gathered parameters */
    TT_MEMORY_KEPT,      /* parts of gathered parameters, kept for backward */
    TT_MEMORY_ACTIVATION,
    TT_MEMORY_ACTIVATION_GRAD,
    TT_MEMORY_PARAM_GRAD, /* whole gradients of microbatches, and their sums before a reduce-scatter; whole updates of
                             Muon */
    TT_MEMORY_GRAD,       /* gradient shards and partial sums */
    TT_MEMORY_STAGING,    /* data that collectives receive before they add it */
    TT_MEMORY_SCRATCH,    /* scratch of one op */
    TT_MEMORY_KINDS
};

const char *tt_memory_name(enum tt_memory_kind kind);

/** Whether memory of this kind is in the step region, that is, neither state nor kept between runs. */
static inline bool tt_memory_is_of_step(enum tt_memory_kind kind)
{
    return kind != TT_MEMORY_PARAM && kind != TT_MEMORY_CONST && kind != TT_MEMORY_CACHE;
}

struct tt_buffer {
    enum tt_memory_kind kind;
    int64_t bytes;
    int first, last; /* its life: the first and the last instruction that uses it */
    int root;        /* the buffer whose memory contains it, or itself */
    int64_t offset;  /* in bytes, within the root, or within its region (step, constants, the unit's parameter shard) */
    int value;       /* its graph value, or TT_NONE */
    int stage;       /* the stage of that value; else 0 */
    int microbatch;  /* microbatch of that value, or TT_NONE */
    int unit;        /* unit of a parameter shard or of gradients; else TT_NONE */
};

struct tt_schedule;

struct tt_program {
    struct tt_schedule *schedule;  /* a copy of its schedule, if tt_lowering.keeps_schedule; else NULL */
    bool frees_early;              /* tt_lowering.free_early */
    const struct tt_stage *stages; /* this rank's stages, ascending: graphs of one microbatch; not owned */
    int n_stages;
    bool is_piped;                  /* the program exchanges values with other ranks of a pipeline */
    const struct tt_layout *layout; /* not owned */
    int microbatches;
    int threads;                             /* threads of the team; scratch sizes depend on it */
    int muon_steps;                          /* Newton-Schulz iterations */
    enum tt_dtype shard_dtype;               /* type of parameters and moments in the state: TT_F32 or TT_BF16 */
    enum tt_dtype param_dtype, reduce_dtype; /* of gathered parameters; of reduced gradients: TT_F32 or TT_BF16 */
    struct tt_instr *instrs;
    int n_instrs, cap_instrs;
    struct tt_bucket *buckets;
    int n_buckets, cap_buckets;
    int *operands;
    int n_operands, cap_operands;
    struct tt_buffer *buffers;
    int n_buffers, cap_buffers;
    int *tokens, *labels, *positions; /* buffers of each microbatch's inputs */
    int logits;                       /* buffer of a decode graph's result, valid until the next run; else TT_NONE */
    int64_t const_bytes;              /* region of constants, kept between runs */
    int64_t cache_bytes;              /* region of the key/value cache, kept between runs */
    int64_t step_bytes;               /* region of all transient memory: the high-water mark of the memory plan */
    int64_t live_bytes;               /* largest sum of live step buffers; step_bytes cannot be less */
    int peak_instr;                   /* the instruction at which live_bytes is reached */
};

/* A span of time, in seconds since the beginning of the step, or on tt_clock_sec. */
struct tt_span {
    double begin, end;
};

/* A scheduler's output: the stages, unrolled for all microbatches, with collectives. */
struct tt_schedule {
    struct tt_instr *instrs; /* kind, purpose, microbatch, stage, node, unit, bucket; lowering fills the rest */
    int n, cap;
    struct tt_bucket *buckets;
    int n_buckets, cap_buckets;
};

/** Adds an instruction that runs a node of a stage. After a node that produces the token losses it adds their sum too,
 * and after a router the count of its experts. */
void tt_schedule_run(struct tt_schedule *schedule, const struct tt_stage *stages, int microbatch, int stage, int node);

/** Adds an instruction that neither runs a node nor belongs to a collective. microbatch: 0 for an instruction that
 * belongs to none. */
void tt_schedule_add(struct tt_schedule *schedule, enum tt_instr_kind kind, int microbatch, int unit);

/** A copy of a bucket, with its own units (tt_free). */
struct tt_bucket tt_bucket_copy(const struct tt_bucket *bucket);

/** Adds a bucket of n units, which are copied. Returns its index. */
int tt_schedule_bucket(struct tt_schedule *schedule, const int *units, int n);

/** Begins (TT_BEGIN) or waits for (TT_WAIT) the transfer at a boundary of a stage of this rank. */
void tt_schedule_transfer(struct tt_schedule *schedule, enum tt_instr_kind kind, enum tt_purpose purpose,
                          int microbatch, int stage);

/** Begins (TT_BEGIN) or waits for (TT_WAIT) the collective of a bucket, or of the unit alone if bucket is TT_NONE. */
void tt_schedule_collective(struct tt_schedule *schedule, enum tt_instr_kind kind, enum tt_purpose purpose,
                            int microbatch, int unit, int bucket);

void tt_schedule_release(struct tt_schedule *schedule);

/** The units of an instruction, valid while the buckets and the instruction exist; n is 0 if it belongs to none. */
struct tt_bucket tt_instr_units(const struct tt_bucket *buckets, const struct tt_instr *instr);

/** The graph of a TT_RUN, TT_LOSS or TT_COUNT, or of an exchange inside a layer. */
static inline const struct tt_graph *tt_instr_graph(const struct tt_program *program, const struct tt_instr *instr)
{
    return program->stages[instr->stage].graph;
}

/** The node of such an instruction. */
static inline const struct tt_node *tt_instr_node(const struct tt_program *program, const struct tt_instr *instr)
{
    return &tt_instr_graph(program, instr)->nodes[instr->node];
}

/** Whether something crosses a boundary of the stage for this purpose, to or from another rank. */
bool tt_stage_transfers(const struct tt_stage *stage, enum tt_purpose purpose);

/* The arguments of lowering, besides the schedule. */
struct tt_lowering {
    const struct tt_stage *stages;
    int n_stages;
    const struct tt_layout *layout;
    int microbatches;
    /* microbatches of one run through the pipeline; runs do not overlap; 0: no pipeline */
    int run_microbatches;
    /* How many consecutive microbatches are added before their gradients are reduced, a divisor of the number of
     * microbatches; 0 or 1: each is reduced by itself. */
    int block;
    int threads;
    int muon_steps;                          /* Newton-Schulz iterations */
    enum tt_dtype shard_dtype;               /* TT_F32 (0), or the same as param_dtype */
    enum tt_dtype param_dtype, reduce_dtype; /* TT_F32 (0) or TT_BF16 */
    bool averages;       /* the state has averages of the trained weights, which the end of the step updates */
    bool keeps_schedule; /* the program keeps a copy of its schedule */
    bool free_early;     /* free a gathered parameter after its last read, not at the reshard of its unit */
    /* The staging memory of a collective, in bytes. parallel/, which knows the algorithms, sets this. */
    int64_t (*staging)(const struct tt_collective_desc *desc);
};

/** The collective by which a node exchanges values with the ranks that share its layer, without a tag. */
struct tt_collective_desc tt_node_collective(const struct tt_graph *graph, int node);

/**
 * The bytes that a node sends to the ranks that share its experts if every expert gets the same number of rows; 0 for
 * other nodes. The actual number is known only when the step runs. TT_ROUTED_CALLS: the number of exchanges in a round,
 * one after another.
 */
int64_t tt_node_routed_bytes(const struct tt_graph *graph, int node);
enum { TT_ROUTED_CALLS = 3 };

/* The worst case of such a node: all tokens choose the experts of one rank. */
struct tt_routed_most {
    int64_t bytes;          /* bytes that a rank sends: all its rows, and all results for the other ranks */
    double rows;            /* rows of the busiest rank, divided by its rows under equal loads */
    double calls, messages; /* number of its exchanges; more rows take more rounds */
    double link_bytes;      /* bytes that it sends and receives, not at the same time */
};

/** All 0 for a node that sends no rows. */
struct tt_routed_most tt_node_routed_most(const struct tt_graph *graph, int node);

/** The same for a whole run of a program, including the messages that announce numbers of rows. ret_most: the worst
 * case. */
int64_t tt_program_routed_bytes(const struct tt_program *program, int64_t *ret_most);

/** Whether the sum of a TT_SUM_VALUES is rounded afterwards. Such a sum arrives in this rank's block of the input. */
bool tt_exchange_rounds(const struct tt_program *program, const struct tt_instr *begin);

/**
 * For a collective with this purpose: how many elements of a unit's flat shard it carries, how many pieces they form,
 * and how many elements piece k has. A piece is a parameter, a gradient (a tied weight has two, a frozen parameter
 * none), or the update of a Muon matrix.
 */
int64_t tt_purpose_elements(const struct tt_unit *unit, enum tt_purpose purpose);
int tt_purpose_pieces(const struct tt_unit *unit, enum tt_purpose purpose);
int64_t tt_purpose_chunk(const struct tt_unit *unit, enum tt_purpose purpose, int k);

/**
 * The collective of units whose flat shards have `elements` elements, without a tag; `unit` is the first of the units.
 */
struct tt_collective_desc tt_lowering_collective(const struct tt_lowering *lowering, enum tt_purpose purpose, int unit,
                                                 int64_t elements);

/** Whether a unit's parameters are gathered: there are several shards, or nodes read another type. */
bool tt_lowering_gathers(const struct tt_lowering *lowering, int unit);

/** Whether a unit's gradients stay whole until they are reduced. Otherwise nodes write them directly into the sum. */
bool tt_lowering_reduces(const struct tt_lowering *lowering, int unit);

/**
 * Lowers a schedule. With one shard, TT_UNSHARD, TT_RESHARD and TT_REDUCE vanish: the shards are the parameters, and
 * nodes write gradients directly into the sum. bfloat16 is an exception: parameters are copies unless the shards are
 * bfloat16 too, and TT_REDUCE rounds gradients in place. The caller frees the program with tt_program_free; lowering's
 * stages and layout must outlive it. Errors: TT_EINTERNAL for an impossible schedule, for a stage that exchanges values
 * with a stage on no rank, and if two stages produce the same gradient of a parameter.
 */
int tt_program_new(const struct tt_lowering *lowering, const struct tt_schedule *schedule,
                   struct tt_program **ret_program) TT_MUST_CHECK;
void tt_program_free(struct tt_program *program);

/** The live bytes of each kind at one instruction. Kinds of state are not counted. */
void tt_program_memory_at(const struct tt_program *program, int instr, int64_t bytes[TT_MEMORY_KINDS]);

/**
 * Checks a program independently of how it was made: no two live buffers overlap, every operand is used within its
 * buffer's life, and no buffer reaches beyond its region. TT_EINTERNAL names the instruction and the buffers. Takes
 * time quadratic in the number of buffers that live at once. For tests and debug.check_plan.
 */
int tt_program_check(const struct tt_program *program) TT_MUST_CHECK;

/**
 * Assigns offsets to n buffers so that no two buffers that live at the same time overlap. Returns the high-water mark
 * in bytes. Reads bytes, first, last and root (only buffers that are their own root are placed), and writes offset.
 * *ret_live_bytes is the lower bound of the result: the live bytes at instruction *ret_peak.
 */
int64_t tt_memory_plan(struct tt_buffer *buffers, int n, int n_instrs, int64_t *ret_live_bytes, int *ret_peak);

#endif

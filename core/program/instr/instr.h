/* SPDX-License-Identifier: MIT */
#ifndef TT_INSTR_INSTR_H
#define TT_INSTR_INSTR_H

#include "core/base/text.h"
#include "core/ops/step/step.h"
#include "core/program/program.h"

/**
 * The table of instructions. A row contains everything that titan knows about an instruction; instr.def explains how to
 * add one. TT_BEGIN begins a collective and TT_WAIT waits for it. The differences between collectives are in a row for
 * each purpose; purpose.def explains how to add one.
 */
struct tt_walk; /* core/program/internal.h */

struct tt_executor; /* core/program/executor.h, like struct tt_step */
struct tt_step;

/**
 * The parts of the time of a step, on the thread that runs the program. Every moment of the step belongs to exactly
 * one part, so the parts add up to its duration.
 */
enum tt_split_part {
    TT_SPLIT_GEMM, /* GEMMs of the linear layers */
    TT_SPLIT_ATTENTION,
    TT_SPLIT_NORMS,
    TT_SPLIT_HEAD,          /* output projection, loss and their gradients */
    TT_SPLIT_OPTIMIZER,     /* update, norm of the gradients */
    TT_SPLIT_COMMUNICATION, /* exposed: beginning, progress between instructions, waiting, sums of loss and norm */
    TT_SPLIT_OTHER,         /* elementwise ops, embedding, sums over microbatches */
    TT_SPLIT_IDLE,          /* outside every instruction: loading the batch, agreeing on it */
    TT_SPLIT_PARTS
};

/* How pictures show an instruction. */
enum tt_phase {
    TT_PHASE_FORWARD,
    TT_PHASE_BACKWARD,
    TT_PHASE_SUMS, /* sums between forward and backward, and after them */
    TT_PHASE_UPDATE,
    TT_PHASE_EXCHANGE, /* begins a collective; the picture shows the collective */
    TT_PHASE_WAIT,
    TT_PHASES
};

/* The cost of an instruction on the computing thread. */
struct tt_instr_cost {
    struct tt_cost work;    /* arithmetic or memory, whichever takes longer */
    double calls, messages; /* number of calls, and of small messages that are sent one after another */
    double link_bytes;      /* bytes that it sends and waits for */
};

struct tt_instr_row {
    const char *name; /* in plans and traces; for TT_BEGIN and TT_WAIT, the row of the purpose gives the name */
    enum tt_split_part part;
    enum tt_phase phase;
    bool of_units;      /* uses instr.unit and instr.bucket */
    bool of_microbatch; /* uses instr.microbatch; names and plans show it */
    bool quiet;         /* takes too little time to be worth showing in a trace */
    bool begins, waits; /* begins a collective; waits for the one that instr.begin began */
    bool decides;       /* decides whether the step stops here: state changes only afterwards */
    /* For instructions whose part and phase depend on their node. NULL: `part` and `phase` apply. */
    enum tt_split_part (*part_of)(const struct tt_program *program, const struct tt_instr *instr);
    enum tt_phase (*phase_of)(const struct tt_program *program, const struct tt_instr *instr);
    const char *(*op_of)(const struct tt_program *program, const struct tt_instr *instr);
    /* Appends the text after the name; NULL: the units, if any. */
    void (*subject)(const struct tt_program *program, const struct tt_instr *instr, struct tt_text *out);
    /* Gives the step op that the instruction runs, with the members on which the cost depends. NULL: see `cost`. */
    struct tt_step_call (*step_of)(const struct tt_program *program, const struct tt_instr *instr);
    /* The cost, if step_of is NULL; NULL: negligible or, for TT_BEGIN, in the row of the purpose. */
    void (*cost)(const struct tt_program *program, const struct tt_instr *instr, struct tt_instr_cost *ret_cost);
    /* Lowers an instruction of the schedule to instructions of the program. NULL: schedules do not contain it. */
    int (*lower)(struct tt_walk *walk, const struct tt_instr *from);
    /* NULL: the instruction only ends lifetimes. */
    int (*run)(struct tt_executor *executor, int instr, struct tt_step *step);
};

/* The ranks of a collective. TT_AMONG_MATRIX: all ranks that hold parts of the unit's matrices, including those that
 * share its layers. TT_AMONG_STAGES: the ranks of two stages (no unit). TT_AMONG_PEERS: the ranks that share the layer
 * of a node (no unit). */
enum tt_among {
    TT_AMONG_SHARDS,
    TT_AMONG_MATRIX,
    TT_AMONG_NEIGHBOURS,
    TT_AMONG_REPLICAS,
    TT_AMONG_STAGES,
    TT_AMONG_PEERS
};
enum tt_carries { TT_CARRIES_PARAMS, TT_CARRIES_GRADS, TT_CARRIES_SUMS, TT_CARRIES_UPDATES };

struct tt_purpose_row {
    const char *name, *wait_name; /* names of its TT_BEGIN and TT_WAIT */
    /* in traces, before the name of the group; NULL: the whole group takes part */
    const char *part_of_group;
    enum tt_collective_op op;
    enum tt_among among;
    enum tt_carries carries;
    bool of_microbatch;
    bool rare; /* plans mention it only if it occurs */
    /* Appends the text after the name of a TT_BEGIN or a TT_WAIT; NULL: the units. */
    void (*subject)(const struct tt_program *program, const struct tt_instr *instr, struct tt_text *out);
    /* Adds the TT_BEGIN, if there is anything to do. NULL: schedules do not contain this purpose. */
    int (*lower)(struct tt_walk *walk, const struct tt_instr *from);
    /* Adds the instructions that follow the TT_WAIT. begin: the TT_BEGIN, or TT_NONE if nothing travels. NULL: no
     * instruction follows. */
    int (*arrived)(struct tt_walk *walk, const struct tt_instr *from, int begin);
    /* Work of this rank before the collective begins and after it is complete; NULL: none. */
    void (*before)(struct tt_executor *executor, const struct tt_instr *begin);
    void (*after)(struct tt_executor *executor, const struct tt_instr *begin);
    /* The cost of `before`; NULL: negligible. */
    void (*cost)(const struct tt_program *program, const struct tt_instr *begin, struct tt_instr_cost *ret_cost);
};

#define TT_INSTR(id, row) extern const struct tt_instr_row tt_instr_##row;
#include "core/program/instr.def"
#undef TT_INSTR
#define TT_PURPOSE(id, row) extern const struct tt_purpose_row tt_purpose_##row;
#include "core/program/purpose.def"
#undef TT_PURPOSE

const struct tt_instr_row *tt_instr_row(const struct tt_instr *instr);
const struct tt_purpose_row *tt_purpose_row(enum tt_purpose purpose);

/** "run", "unshard", "wait unshard", … for plans and traces. */
const char *tt_instr_name(const struct tt_instr *instr);

/** The name of the op of the node that the instruction runs, or else the instruction's own name. */
const char *tt_instr_op_name(const struct tt_program *program, const struct tt_instr *instr);

/** Appends "run layers.3.attention.o (linear) of microbatch 1". */
void tt_instr_text(const struct tt_program *program, int instr, struct tt_text *out);

/** Appends " to stage 1" for a transfer between stages. */
void tt_transfer_text(const struct tt_program *program, const struct tt_instr *instr, struct tt_text *out);

/** Appends "layers.0+layers.1"; shortens long lists in the middle. */
void tt_units_text(const struct tt_program *program, const int *units, int n, struct tt_text *out);

enum tt_phase tt_instr_phase(const struct tt_program *program, const struct tt_instr *instr);
struct tt_instr_cost tt_instr_cost(const struct tt_program *program, const struct tt_instr *instr);

struct tt_split {
    double sec[TT_SPLIT_PARTS];
};

/** "gemm", "attention", … */
const char *tt_split_name(enum tt_split_part part);

/** The part to which an instruction belongs, by its row (instr.h). */
enum tt_split_part tt_split_part_of(const struct tt_program *program, int instr);

/**
 * Adds the time of the instructions of one run. TT_SPLIT_COMMUNICATION is the only definition of communication time.
 *   spans  of its instructions (tt_executor_spans)
 */
void tt_split_add_run(struct tt_split *split, const struct tt_program *program, const struct tt_span *spans);

/** Adds the time of the waits of one run, by the group of their collectives. */
void tt_split_add_waits(double sec[TT_GROUPS], const struct tt_program *program, const struct tt_span *spans);

/**
 * Adds a whole step that ran from step.begin to step.end.
 *   spans  of its instructions (tt_executor_spans), inside the step
 */
void tt_split_add(struct tt_split *split, const struct tt_program *program, const struct tt_span *spans,
                  struct tt_span step);

/** Percent of the whole; they add up to 100, or are all 0 for an empty split. */
void tt_split_percent(const struct tt_split *split, double ret_percent[TT_SPLIT_PARTS]);

#endif

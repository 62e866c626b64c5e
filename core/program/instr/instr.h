/* SPDX-License-Identifier: MIT */
#ifndef TT_INSTR_INSTR_H
#define TT_INSTR_INSTR_H

#include "core/base/text.h"
#include "core/program/executor.h"
#include "core/program/split.h"

/**
 * The table of instructions: a row per instruction says everything that titan knows about it. To add one: a line in
 * instr.def and a row (this struct) in one of the other files here. Collectives are begun by TT_BEGIN and awaited by
 * TT_WAIT; what differs between them is in a row per purpose. To add one: a line in purpose.def and a row.
 */
struct tt_walk; /* core/program/lowering.h */

/* What people see an instruction as, in pictures. */
enum tt_phase {
    TT_PHASE_FORWARD,
    TT_PHASE_BACKWARD,
    TT_PHASE_SUMS, /* between and after them */
    TT_PHASE_UPDATE,
    TT_PHASE_EXCHANGE, /* begins a collective: drawn as that */
    TT_PHASE_WAIT,
    TT_PHASES
};

/* What an instruction takes on the computing thread. */
struct tt_instr_cost {
    struct tt_cost work;    /* arithmetic and memory, whichever takes longer */
    double calls, messages; /* of small messages that follow each other */
};

struct tt_instr_row {
    const char *name; /* in plans and traces; of TT_BEGIN and TT_WAIT in their purpose's row */
    enum tt_split_part part;
    enum tt_phase phase;
    bool of_units;      /* instr.unit and instr.bucket say of which */
    bool of_microbatch; /* instr.microbatch counts, and is shown */
    bool quiet;         /* does nothing that a trace could show */
    bool begins, waits; /* a collective; waits: for the one that instr.begin began */
    bool decides;       /* the step stops here or not: nothing that is kept changes before, and afterwards it does */
    /* Where the answer depends on the node that runs; NULL: part and phase say it. */
    enum tt_split_part (*part_of)(const struct tt_program *program, const struct tt_instr *instr);
    enum tt_phase (*phase_of)(const struct tt_program *program, const struct tt_instr *instr);
    const char *(*op_of)(const struct tt_program *program, const struct tt_instr *instr);
    /* Appends what follows the name; NULL: the units, if it has any. */
    void (*subject)(const struct tt_program *program, const struct tt_instr *instr, struct tt_text *out);
    /* NULL: nothing worth counting. */
    void (*cost)(const struct tt_program *program, const struct tt_instr *instr, struct tt_instr_cost *ret_cost);
    /* From an instruction of the schedule to those of the program. NULL: a schedule cannot hold it. */
    int (*lower)(struct tt_walk *walk, const struct tt_instr *from);
    /* NULL: an end of lifetimes, nothing to do. */
    int (*run)(struct tt_executor *executor, int instr, struct tt_step *step);
};

/* Whose ranks a collective runs over, and what it carries. */
enum tt_among { TT_AMONG_SHARDS, TT_AMONG_NEIGHBOURS, TT_AMONG_REPLICAS };
enum tt_carries { TT_CARRIES_PARAMS, TT_CARRIES_GRADS, TT_CARRIES_SUMS };

struct tt_purpose_row {
    const char *name, *wait_name; /* of its TT_BEGIN and TT_WAIT */
    const char *part_of_group;    /* in traces, before the name of the group; NULL: all of it */
    enum tt_collective_op op;
    enum tt_among among;
    enum tt_carries carries;
    bool of_microbatch;
    bool rare; /* plans mention it only where there is one */
    /* Adds the TT_BEGIN when the collective happens. NULL: a schedule cannot hold it. */
    int (*lower)(struct tt_walk *walk, const struct tt_instr *from);
    /* After the TT_WAIT. begin: the TT_BEGIN, TT_NONE where nothing travels. NULL: nothing to add. */
    int (*arrived)(struct tt_walk *walk, const struct tt_instr *from, int begin);
    /* On this rank before it begins and after it is complete; NULL: nothing. */
    void (*before)(struct tt_executor *executor, const struct tt_instr *begin);
    void (*after)(struct tt_executor *executor, const struct tt_instr *begin);
};

#define TT_INSTR(id, row) extern const struct tt_instr_row tt_instr_##row;
#include "core/program/instr/instr.def"
#undef TT_INSTR
#define TT_PURPOSE(id, row) extern const struct tt_purpose_row tt_purpose_##row;
#include "core/program/instr/purpose.def"
#undef TT_PURPOSE

const struct tt_instr_row *tt_instr_row(const struct tt_instr *instr);
const struct tt_purpose_row *tt_purpose_row(enum tt_purpose purpose);

/** "run", "unshard", "wait unshard", … for plans and traces. */
const char *tt_instr_name(const struct tt_instr *instr);

/** The op of the node that it runs, else its name. */
const char *tt_instr_op_name(const struct tt_program *program, const struct tt_instr *instr);

/** Appends "run layers.3.attention.o (linear) of microbatch 1". */
void tt_instr_text(const struct tt_program *program, int instr, struct tt_text *out);

/** Appends "layers.0+layers.1"; long lists are cut in the middle. */
void tt_units_text(const struct tt_program *program, const int *units, int n, struct tt_text *out);

enum tt_phase tt_instr_phase(const struct tt_program *program, const struct tt_instr *instr);
struct tt_instr_cost tt_instr_cost(const struct tt_program *program, const struct tt_instr *instr);

#endif

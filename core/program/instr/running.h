/* SPDX-License-Identifier: MIT */
#ifndef TT_INSTR_RUNNING_H
#define TT_INSTR_RUNNING_H

#include "core/ops/step/step.h"
#include "core/program/executor.h"
#include "core/program/routing.h"

/**
 * A running program. Only executor.c and the rows of instructions use its members.
 */
struct tt_executor {
    const struct tt_program *program;
    struct tt_state *state;
    struct tt_team *team;
    struct tt_device_stream *stream; /* for all compute */
    int64_t done;                    /* its event after the last run */
    struct tt_exchange exchange;
    struct tt_routing routing; /* for experts that ranks share */
    void **address;            /* per operand of the program */
    char *const_region, *step_region;
    struct tt_rows **rows; /* [unit] this rank's rows, for the norm and the optimizer */
    int *n_rows;
    struct tt_rows ***parts;  /* [unit][parameter] the parts of all ranks of TT_GROUP_MATRIX, or NULL */
    struct tt_exact *sums;    /* what the last run has summed; tt_sums_bytes */
    struct tt_exact *none;    /* zeros, as many */
    int64_t *loads;           /* of experts in the last step that was done, 0 before it; NULL: there are none */
    struct tt_span *spans;    /* [instruction] of the last run */
    struct tt_bad_value *bad; /* in explain: the first one so far; its name is "" if it came from another rank, which
                                 names it; else NULL */
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

/** Gives the stream a step op. */
void tt_running_step(struct tt_executor *executor, struct tt_step_call call);

/** Gives the stream a step op for each whole parameter or gradient of the instruction's units, which are its first
 * operands. */
void tt_running_each_whole(struct tt_executor *executor, const struct tt_instr *instr, enum tt_step_op_id op);

/** The run of an instruction's node, whose operands are those of TT_RUN. */
struct tt_call tt_running_call(const struct tt_executor *ex, const struct tt_instr *instr, const struct tt_step *step);

/** In explain: notes the first output of a node that has a value that is not finite. The stream has run the node. */
void tt_running_examine(struct tt_executor *ex, const struct tt_instr *instr, const struct tt_call *call);

/** Where the node of an instruction comes in the step (struct tt_bad_value). */
int64_t tt_running_order(const struct tt_executor *ex, const struct tt_instr *instr);

/** In explain: notes whether an exchange inside of a layer brought values that are not finite. Waits for the stream. */
int tt_running_examine_exchange(struct tt_executor *ex, const struct tt_instr *begin) TT_MUST_CHECK;

/** Waits for the collective that instruction i began. */
int tt_running_wait(struct tt_executor *ex, int i) TT_MUST_CHECK;

#endif

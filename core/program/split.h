/* SPDX-License-Identifier: MIT */
#ifndef TT_PROGRAM_SPLIT_H
#define TT_PROGRAM_SPLIT_H

#include "core/program/program.h"

/**
 * Where the time of a step went on the thread that runs the program. Every moment of the step belongs to exactly one
 * part, so the parts add up to the step.
 */
enum tt_split_part {
    TT_SPLIT_GEMM, /* products of the linear layers */
    TT_SPLIT_ATTENTION,
    TT_SPLIT_NORMS,
    TT_SPLIT_HEAD,          /* output projection, loss and their gradients */
    TT_SPLIT_OPTIMIZER,     /* update, norm of the gradients */
    TT_SPLIT_COMMUNICATION, /* exposed: beginning, progress between instructions, waiting, sums of loss and norm */
    TT_SPLIT_OTHER,         /* elementwise ops, embedding, sums over microbatches */
    TT_SPLIT_IDLE,          /* outside of every instruction: loading the batch, agreeing on it */
    TT_SPLIT_PARTS
};

struct tt_split {
    double sec[TT_SPLIT_PARTS];
};

/** "gemm", "attention", … */
const char *tt_split_name(enum tt_split_part part);

/** The part that an instruction belongs to, by its row (instr.h). */
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

/* SPDX-License-Identifier: MIT
 *
 * The time of a step by parts.
 */
#include "core/program/split.h"

#include "core/ops/op.h"

const char *tt_split_name(enum tt_split_part part)
{
    static const char *const names[TT_SPLIT_PARTS] = {
        [TT_SPLIT_GEMM] = "gemm",           [TT_SPLIT_ATTENTION] = "attention",
        [TT_SPLIT_NORMS] = "norms",         [TT_SPLIT_HEAD] = "head",
        [TT_SPLIT_OPTIMIZER] = "optimizer", [TT_SPLIT_COMMUNICATION] = "communication",
        [TT_SPLIT_OTHER] = "other",         [TT_SPLIT_IDLE] = "idle"};

    return names[part];
}

enum tt_split_part tt_split_part_of(const struct tt_program *program, int i)
{
    static const enum tt_split_part of_op[] = {[TT_PART_OTHER] = TT_SPLIT_OTHER,
                                               [TT_PART_GEMM] = TT_SPLIT_GEMM,
                                               [TT_PART_ATTENTION] = TT_SPLIT_ATTENTION,
                                               [TT_PART_NORM] = TT_SPLIT_NORMS,
                                               [TT_PART_HEAD] = TT_SPLIT_HEAD};
    const struct tt_instr *instr = &program->instrs[i];

    switch (instr->kind) {
    case TT_RUN:
        return of_op[tt_op_row(program->graph->nodes[instr->node].op)->part];
    case TT_LOSS:
        return TT_SPLIT_HEAD;
    case TT_NORM:
    case TT_OPTIMIZER:
        return TT_SPLIT_OPTIMIZER;
    case TT_FOLD:
        return TT_SPLIT_OTHER;
    default:
        return TT_SPLIT_COMMUNICATION;
    }
}

void tt_split_add(struct tt_split *split, const struct tt_program *program, const struct tt_span *spans,
                  struct tt_span step)
{
    int n = program->n_instrs;

    if (n == 0) {
        split->sec[TT_SPLIT_IDLE] += step.end - step.begin;
        return;
    }
    split->sec[TT_SPLIT_IDLE] += spans[0].begin - step.begin + step.end - spans[n - 1].end;
    for (int i = 0; i < n; i++) {
        split->sec[tt_split_part_of(program, i)] += spans[i].end - spans[i].begin;
        if (i + 1 < n)
            split->sec[TT_SPLIT_COMMUNICATION] += spans[i + 1].begin - spans[i].end;
    }
}

void tt_split_percent(const struct tt_split *split, double ret_percent[TT_SPLIT_PARTS])
{
    double whole = 0.0;

    for (int p = 0; p < TT_SPLIT_PARTS; p++)
        whole += split->sec[p];
    for (int p = 0; p < TT_SPLIT_PARTS; p++)
        ret_percent[p] = whole > 0.0 ? 100.0 * split->sec[p] / whole : 0.0;
}

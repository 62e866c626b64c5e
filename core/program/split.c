/* SPDX-License-Identifier: MIT
 *
 * Adds up the time of a step by parts.
 */
#include "core/program/split.h"

const char *tt_split_name(enum tt_split_part part)
{
    static const char *const names[TT_SPLIT_PARTS] = {
        [TT_SPLIT_GEMM] = "gemm",           [TT_SPLIT_ATTENTION] = "attention",
        [TT_SPLIT_NORMS] = "norms",         [TT_SPLIT_HEAD] = "head",
        [TT_SPLIT_OPTIMIZER] = "optimizer", [TT_SPLIT_COMMUNICATION] = "communication",
        [TT_SPLIT_OTHER] = "other",         [TT_SPLIT_IDLE] = "idle"};

    return names[part];
}

void tt_split_add_run(struct tt_split *split, const struct tt_program *program, const struct tt_span *spans)
{
    int n = program->n_instrs;

    for (int i = 0; i < n; i++) {
        split->sec[tt_split_part_of(program, i)] += spans[i].end - spans[i].begin;
        if (i + 1 < n)
            split->sec[TT_SPLIT_COMMUNICATION] += spans[i + 1].begin - spans[i].end;
    }
}

void tt_split_add_waits(double sec[TT_GROUPS], const struct tt_program *program, const struct tt_span *spans)
{
    for (int i = 0; i < program->n_instrs; i++) {
        int begin = program->instrs[i].begin;

        if (begin != TT_NONE)
            sec[program->instrs[begin].collective.group] += spans[i].end - spans[i].begin;
    }
}

void tt_split_add(struct tt_split *split, const struct tt_program *program, const struct tt_span *spans,
                  struct tt_span step)
{
    int n = program->n_instrs;

    split->sec[TT_SPLIT_IDLE] += step.end - step.begin - (n ? spans[n - 1].end - spans[0].begin : 0.0);
    tt_split_add_run(split, program, spans);
}

void tt_split_percent(const struct tt_split *split, double ret_percent[TT_SPLIT_PARTS])
{
    double whole = 0.0;

    for (int p = 0; p < TT_SPLIT_PARTS; p++)
        whole += split->sec[p];
    for (int p = 0; p < TT_SPLIT_PARTS; p++)
        ret_percent[p] = whole > 0.0 ? 100.0 * split->sec[p] / whole : 0.0;
}

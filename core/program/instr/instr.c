/* SPDX-License-Identifier: MIT
 *
 * The tables of instructions and of purposes, in the order of their lists, and functions for all rows.
 */
#include "core/program/instr/instr.h"

static const struct tt_instr_row *const instr_rows[] = {
#define TT_INSTR(id, row) &tt_instr_##row,
#include "core/program/instr.def"
#undef TT_INSTR
};

static const struct tt_purpose_row *const purpose_rows[] = {
#define TT_PURPOSE(id, row) &tt_purpose_##row,
#include "core/program/purpose.def"
#undef TT_PURPOSE
};

const struct tt_instr_row *tt_instr_row(const struct tt_instr *instr)
{
    return instr_rows[instr->kind];
}

const struct tt_purpose_row *tt_purpose_row(enum tt_purpose purpose)
{
    return purpose_rows[purpose];
}

/* --- names --- */

const char *tt_instr_name(const struct tt_instr *instr)
{
    const struct tt_instr_row *row = tt_instr_row(instr);

    return row->begins  ? tt_purpose_row(instr->purpose)->name
           : row->waits ? tt_purpose_row(instr->purpose)->wait_name
                        : row->name;
}

const char *tt_instr_op_name(const struct tt_program *program, const struct tt_instr *instr)
{
    const struct tt_instr_row *row = tt_instr_row(instr);

    return row->op_of ? row->op_of(program, instr) : tt_instr_name(instr);
}

void tt_units_text(const struct tt_program *program, const int *units, int n, struct tt_text *out)
{
    enum { SHOWN = 3 };

    for (int i = 0; i < n; i++) {
        if (n > SHOWN && i == SHOWN - 1) {
            tt_text_add(out, "+..+%s (%d units)", program->layout->units[units[n - 1]].name, n);
            return;
        }
        tt_text_add(out, "%s%s", i ? "+" : "", program->layout->units[units[i]].name);
    }
}

void tt_instr_text(const struct tt_program *program, int i, struct tt_text *out)
{
    const struct tt_instr *instr = &program->instrs[i];
    const struct tt_instr_row *row = tt_instr_row(instr);
    bool of_collective = row->begins || row->waits;

    tt_text_add(out, "%s", tt_instr_name(instr));
    if (row->subject) {
        row->subject(program, instr, out);
    } else if (of_collective && tt_purpose_row(instr->purpose)->subject) {
        tt_purpose_row(instr->purpose)->subject(program, instr, out);
    } else if (row->of_units) {
        const struct tt_bucket of = tt_instr_units(program->buckets, instr);

        tt_text_add(out, " ");
        tt_units_text(program, of.units, of.n, out);
    }
    if ((of_collective ? tt_purpose_row(instr->purpose)->of_microbatch : row->of_microbatch) &&
        program->microbatches > 1)
        tt_text_add(out, " of microbatch %d", instr->microbatch);
}

/* --- kinds of time --- */

enum tt_split_part tt_split_part_of(const struct tt_program *program, int i)
{
    const struct tt_instr *instr = &program->instrs[i];
    const struct tt_instr_row *row = tt_instr_row(instr);

    return row->part_of ? row->part_of(program, instr) : row->part;
}

enum tt_phase tt_instr_phase(const struct tt_program *program, const struct tt_instr *instr)
{
    const struct tt_instr_row *row = tt_instr_row(instr);

    return row->phase_of ? row->phase_of(program, instr) : row->phase;
}

struct tt_instr_cost tt_instr_cost(const struct tt_program *program, const struct tt_instr *instr)
{
    const struct tt_instr_row *row = tt_instr_row(instr);
    struct tt_instr_cost cost = {0};

    if (row->step_of) {
        struct tt_step_call call = row->step_of(program, instr);

        tt_step_row(call.op)->cost(&call, &cost.work);
    } else if (row->cost) {
        row->cost(program, instr, &cost);
    } else if (row->begins && tt_purpose_row(instr->purpose)->cost) {
        tt_purpose_row(instr->purpose)->cost(program, instr, &cost);
    }
    return cost;
}

/* --- the time of a step by parts --- */

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

/* SPDX-License-Identifier: MIT
 *
 * The memory timeline as text, and the layers that are stacked in it and in the picture.
 */
#include <stdio.h>
#include <string.h>

#include <unistd.h>

#include "cli/plan/view.h"
#include "cli/run/screen.h"
#include "core/program/instr/instr.h"

#define BIT(kind) (1U << (kind))

/* The colours differ for readers who cannot distinguish red from green, and in grey. */
const struct tt_plan_layer tt_plan_layers[] = {
    {"parameters", "#4477aa", 'P', BIT(TT_MEMORY_PARAM) | BIT(TT_MEMORY_CONST)},
    {"optimizer", "#88a6c8", 'O', BIT(TT_MEMORY_OPTIMIZER)},
    {"gradients", "#aa3377", 'g', BIT(TT_MEMORY_GRAD)},
    {"activations", "#ccbb44", 'a', BIT(TT_MEMORY_ACTIVATION) | BIT(TT_MEMORY_INPUT)},
    {"activation gradients", "#ee9944", 'd', BIT(TT_MEMORY_ACTIVATION_GRAD)},
    {"unsharded parameters", "#66ccee", 'U', BIT(TT_MEMORY_UNSHARDED) | BIT(TT_MEMORY_KEPT)},
    {"unsharded gradients", "#ee6677", 'G', BIT(TT_MEMORY_PARAM_GRAD)},
    {"reduce staging", "#228833", 'r', BIT(TT_MEMORY_STAGING)},
    {"scratch", "#bbbbbb", 's', BIT(TT_MEMORY_SCRATCH)},
};
enum { N_LAYERS = sizeof tt_plan_layers / sizeof tt_plan_layers[0] };
const int tt_plan_n_layers = N_LAYERS;

int64_t tt_plan_layer_bytes(const struct tt_summary *summary, int layer, int instr)
{
    int64_t bytes = 0;

    for (int k = 0; k < TT_MEMORY_KINDS; k++)
        if (tt_plan_layers[layer].kinds & BIT(k))
            bytes += summary->live[instr][k];
    return bytes;
}

/* The phase of the instructions that a column of the plot covers. */
static char phase_of(const struct tt_program *program, int from, int to)
{
    static const char marks[TT_PHASES] = {[TT_PHASE_FORWARD] = '>', [TT_PHASE_BACKWARD] = '<', [TT_PHASE_UPDATE] = '*'};

    for (int i = from; i < to; i++) {
        char mark = marks[tt_instr_phase(program, &program->instrs[i])];

        if (mark)
            return mark;
    }
    return ' ';
}

enum { COLUMNS = 72, ROWS = 12, LABEL = 14 }; /* LABEL: columns before the plot */

/* Instructions [*from, *to) of a column. */
static void column_range(int n_instrs, int columns, int column, int *from, int *to)
{
    *from = (int)((int64_t)column * n_instrs / columns);
    *to = (int)((int64_t)(column + 1) * n_instrs / columns);
}

/* The letters of a column from the bottom up, at its instruction with the most memory. */
static void fill_column(const struct tt_summary *s, int from, int to, int64_t top, char letters[ROWS])
{
    int most = from, row = 0;
    int64_t sum = 0;

    for (int i = from; i < to; i++)
        if (tt_summary_live_bytes(s, i) > tt_summary_live_bytes(s, most))
            most = i;
    for (int l = 0; l < N_LAYERS; l++) {
        sum += tt_plan_layer_bytes(s, l, most);
        for (int64_t end = (sum * ROWS * 2 / top + 1) / 2; row < end && row < ROWS; row++)
            letters[row] = tt_plan_layers[l].letter;
    }
    for (; row < ROWS; row++)
        letters[row] = ' ';
}

/* The legend on a terminal, broken where that ends. */
static void print_legend(const struct tt_program *p, int terminal)
{
    struct tt_text text = {0};

    tt_text_add(&text, "%*s%d instructions: > forward, < backward, * norm and update\n%*s", LABEL, "", p->n_instrs,
                LABEL, "");
    for (int l = 0; l < N_LAYERS; l++)
        tt_text_add(&text, "%s%c %s", l ? ", " : "", tt_plan_layers[l].letter, tt_plan_layers[l].name);
    tt_text_add(&text, "\n");
    tt_screen_put(stdout, text.text, terminal, LABEL);
    tt_text_release(&text);
}

void tt_plan_print_timeline(const struct tt_summary *s)
{
    const struct tt_program *p = s->program;
    int terminal = tt_screen_columns(STDOUT_FILENO), most = terminal ? terminal - LABEL : COLUMNS;
    int columns = most < COLUMNS ? most : COLUMNS;
    char plot[COLUMNS][ROWS], phase[COLUMNS + 1] = "", label[32];
    int64_t top = 1;

    columns = p->n_instrs < columns ? p->n_instrs : columns;
    for (int i = 0; i < p->n_instrs; i++)
        if (tt_summary_live_bytes(s, i) > top)
            top = tt_summary_live_bytes(s, i);
    for (int c = 0; c < columns; c++) {
        int from, to;

        column_range(p->n_instrs, columns, c, &from, &to);
        fill_column(s, from, to, top, plot[c]);
        phase[c] = phase_of(p, from, to);
    }
    phase[columns] = 0;
    for (int row = ROWS - 1; row >= 0; row--) {
        tt_print("%12s |", row == ROWS - 1 || row == ROWS / 2 - 1
                               ? tt_text_bytes(label, sizeof label, (double)top * (row + 1) / ROWS)
                               : "");
        for (int c = 0; c < columns; c++)
            tt_print("%c", plot[c][row]);
        tt_print("\n");
    }
    tt_print("%12s +%.*s\n", "0", columns, "------------------------------------------------------------------------");
    tt_print("%12s  %s\n", "", phase);
    if (terminal) {
        print_legend(p, terminal);
        return;
    }
    tt_print("%12s  %d instructions: > forward, < backward, * norm and update\n%12s ", "", p->n_instrs, "");
    for (int l = 0; l < N_LAYERS; l++)
        tt_print("%s %c %s%s", l == 5 ? "\n              " : "", tt_plan_layers[l].letter, tt_plan_layers[l].name,
                 l == N_LAYERS - 1 ? "\n"
                 : l == 4          ? ""
                                   : ",");
}
